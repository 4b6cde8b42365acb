"""Assigns positions in the ready index to jobs that become available.

In a fair queue, the position is a tag (`ojs.domain.fair_queue.tags`), which costs one write for
each tenant, ready partition, and call. In other queues, the position is the time, which costs
nothing. A retried or released job gets a new tag. If it kept its previous tag, a job that no worker
can process would always be first. To store the tag in the job record would make each claim more
expensive.

The tag is assigned before the job is stored. A crash or a lost race in between leaves an unused
tag. The tenant's next job then has a position that is one step later, and no job is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.fair_queue.tags import Fairness, Share, tagged, tags, ticks_at, with_tag
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Queue
from ojs.store.jobs.fair_queue import FairLine, TenantFinishTags, finish_tags_of
from ojs.store.jobs.reading import JobReader
from ojs.store.queues.queues import QueueStore

Key = tuple[str, str]
# Finish tags of tenants, as read. None for a tenant without one.
FinishTags = Mapping[Key, int | None]
# Maximum number of fair queues in the per-container cache.
_REMEMBERED = 1_000


class FairQueuePlacement:
    """Assigns jobs their sort keys in the ready index."""

    def __init__(
        self,
        *,
        jobs: JobReader,
        queues: QueueStore,
        finish_tags: TenantFinishTags,
        clock: Clock,
    ) -> None:
        self._jobs = jobs
        self._queues = queues
        self._tenants = finish_tags
        self._clock = clock
        # Per-container cache of fair queues with one lane. If a queue has several lanes, a job's
        # lane is unknown before the queue is read.
        self._fair: BoundedMap[str, Fairness] = BoundedMap(_REMEMBERED)

    def read(
        self, coming: Iterable[tuple[str, int | None, Mapping[str, object]]]
    ) -> tuple[dict[str, Queue], FinishTags]:
        """Read the queues of new jobs, and the finish tags of their tenants in queues known as
        fair.

        Makes one call for 100 queues and tags. Each job is given as its queue, priority (None if
        the job does not become available immediately), and content.
        """
        names: list[str] = []
        wanted: list[Key] = []
        for name, priority, content in coming:
            names.append(name)
            fairness = self._fair.get(name)
            if fairness is not None and priority is not None:
                wanted.append(FairLine(name, 0, priority).key_of(fairness.share(content).tenant))
        names, wanted = list(dict.fromkeys(names)), list(dict.fromkeys(wanted))
        finish_tags: FinishTags = {}
        if len(names) == 1 and not wanted:
            queue = self._queues.current(names[0])
            found = {} if queue is None else {names[0]: queue}
        else:
            found, items = self._queues.current_many(sorted(names), wanted)
            finish_tags = finish_tags_of(wanted, items)
        self._remember(found.values())
        return found, finish_tags

    def _remember(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            fairness = queue.fairness
            if fairness is None or queue.lanes > 1:
                self._fair.forget(queue.name)
            else:
                self._fair.put(queue.name, fairness)

    def with_share(self, job: Job, queue: Queue) -> Job:
        """Return the job with its tenant's share if the queue is fair, otherwise without.

        Loads the content if necessary. Raises OjsError.
        """
        return self.with_shares([job], queue)[0]

    def with_shares(self, jobs: Sequence[Job], queue: Queue) -> list[Job]:
        """Call `with_share` for several jobs. Their contents are loaded together."""
        fairness = queue.fairness
        if fairness is None:
            return [replace(job, share=None) for job in jobs]
        unread = [job for job in jobs if job.content is None]
        contents = {job.id: job.content for job in self._jobs.with_contents(unread)}
        return [
            replace(job, share=fairness.share(contents.get(job.id, job.content))) for job in jobs
        ]

    def assign_position(self, job: Job) -> Job:
        """Return a job that becomes available with its sort key. Raises OjsError.

        A job without a share, or that does not become available, is returned unchanged.
        """
        return self.assign_positions([job])[0]

    def assign_positions(
        self, jobs: Sequence[Job], finish_tags: FinishTags | None = None
    ) -> list[Job]:
        """Return several jobs with their sort keys. The jobs of a tenant keep their order.

        `finish_tags` are the tags that were already read. Other tags are read here.
        """
        comers = [job for job in jobs if _needs_tag(job)]
        if not comers:
            return list(jobs)
        lines: dict[FairLine, dict[Key, list[Job]]] = {}
        for job in comers:
            line = FairLine.of(job)
            key = line.key_of(_share(job).tenant)
            lines.setdefault(line, {}).setdefault(key, []).append(job)
        known = dict(finish_tags or {})
        if unread := [key for tenants in lines.values() for key in tenants if key not in known]:
            known |= self._tenants.finish_tags(unread)
        now_ms = self._clock.now_ms()
        placed: dict[str, Job] = {}
        for line, tenants in lines.items():
            virtual = self._tenants.virtual_time(line)
            if virtual is None:
                virtual = ticks_at(now_ms)
            for key, group in tenants.items():
                shares = [_share(job) for job in group]
                first = self._tenants.advance(
                    key,
                    sum(share.step for share in shares),
                    virtual=virtual,
                    seen=known[key],
                    now_ms=now_ms,
                )
                for job, tag in zip(group, tags(shares, first), strict=True):
                    placed[job.id] = replace(job, order=with_tag(tag, job.order or ""))
        return [placed.get(job.id, job) for job in jobs]


def _needs_tag(job: Job) -> bool:
    return (
        job.share is not None
        and job.state is State.AVAILABLE
        and job.order is not None
        and not tagged(job.order)
    )


def _share(job: Job) -> Share:
    assert job.share is not None
    return job.share
