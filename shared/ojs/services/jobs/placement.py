"""Places in line. Whatever makes a job available asks here for its place.

Where tenants share a queue fairly the place is a tag, paid with one write for each tenant, line and
call (`ojs.domain.fair_queue.tags`); elsewhere it is the time, which costs nothing. A job that comes back,
retried or handed back, pays for its turn like any other: put where it stood before, a job that no
worker can take would stand before all others for good, and keeping its tag would cost every claim.

The tag is taken first, the job is stored after. Whoever dies or loses a race in between leaves a
step that no job took: the tenant's next job comes a turn later, nothing is lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ojs.clock import Clock
from ojs.domain.fair_queue.tags import Fairness, Share, tagged, tags, ticks_at, with_tag
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Queue
from ojs.store.jobs.fair_queue import FairLine, TenantFinishTags, ends_of
from ojs.store.jobs.records import JobStore
from ojs.store.queues.queues import QueueStore

Key = tuple[str, str]
# Where tenants' jobs were read to end.
FinishTags = Mapping[Key, int | None]
# Fair queues that a container knows of.
_REMEMBERED = 1_000


class FairQueuePlacement:
    """Gives jobs their places in line."""

    def __init__(
        self, jobs: JobStore, queues: QueueStore, tenants: TenantFinishTags, clock: Clock
    ) -> None:
        self._jobs = jobs
        self._queues = queues
        self._tenants = tenants
        self._clock = clock
        # Of one lane: which of several a job will be in is not known before the queue is read.
        self._fair: OrderedDict[str, Fairness] = OrderedDict()

    def read(
        self, coming: Iterable[tuple[str, int | None, Mapping[str, object]]]
    ) -> tuple[dict[str, Queue], FinishTags]:
        """The queues of jobs that are about to come, and where their tenants' jobs end: of queues
        that were fair the last time. One call for a hundred of both.

        Each job is given as queue, priority (None if it does not stand in line at once) and
        content.
        """
        names: list[str] = []
        wanted: list[Key] = []
        for name, priority, content in coming:
            names.append(name)
            fairness = self._fair.get(name)
            if fairness is not None and priority is not None:
                wanted.append(FairLine(name, 0, priority).end(fairness.share(content).tenant))
        names, wanted = list(dict.fromkeys(names)), list(dict.fromkeys(wanted))
        ends: FinishTags = {}
        if len(names) == 1 and not wanted:
            queue = self._queues.get(names[0])
            found = {} if queue is None else {names[0]: queue}
        else:
            found, items = self._queues.get_many(sorted(names), wanted)
            ends = ends_of(wanted, items)
        self._remember(found.values())
        return found, ends

    def _remember(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            fairness = queue.fairness
            # In two steps that no other thread can make fail in between.
            self._fair.pop(queue.name, None)
            if fairness is None or queue.lanes > 1:
                continue
            self._fair[queue.name] = fairness
            while len(self._fair) > _REMEMBERED:
                self._fair.popitem(last=False)

    def under(self, job: Job, queue: Queue) -> Job:
        """A job as it comes into a queue: with a share if that is fair, without one if not.

        Reads its content where that is kept apart and not loaded. Raises OjsError.
        """
        return self.all_under([job], queue)[0]

    def all_under(self, jobs: Sequence[Job], queue: Queue) -> list[Job]:
        """The same of several jobs, whose contents are read together."""
        fairness = queue.fairness
        if fairness is None:
            return [replace(job, share=None) for job in jobs]
        unread = [job for job in jobs if job.content is None]
        contents = {job.id: job.content for job in self._jobs.with_contents(unread)}
        return [
            replace(job, share=fairness.share(contents.get(job.id, job.content))) for job in jobs
        ]

    def enter(self, job: Job) -> Job:
        """A job that is to become available, with its place in line. Raises OjsError.

        Does nothing to one without a share, or that does not become available.
        """
        return self.enter_all([job])[0]

    def enter_all(self, jobs: Sequence[Job], ends: FinishTags | None = None) -> list[Job]:
        """The same of several: in each line the jobs of a tenant follow each other in the order
        given. `ends` is what was read of the tenants.
        """
        comers = [job for job in jobs if _needs_tag(job)]
        if not comers:
            return list(jobs)
        groups: dict[Key, list[Job]] = {}
        lines: dict[FairLine, list[Key]] = {}
        for job in comers:
            line = FairLine.of(job)
            key = line.end(_share(job).tenant)
            if key not in groups:
                lines.setdefault(line, []).append(key)
            groups.setdefault(key, []).append(job)
        known = dict(ends or {})
        if unread := [key for key in groups if key not in known]:
            known |= self._tenants.ends(unread)
        now_ms = self._clock.now_ms()
        placed: dict[str, Job] = {}
        for line, tenants in lines.items():
            virtual = self._tenants.virtual(line)
            if virtual is None:
                virtual = ticks_at(now_ms)
            for key in tenants:
                group = groups[key]
                shares = [_share(job) for job in group]
                first = self._tenants.take(
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
