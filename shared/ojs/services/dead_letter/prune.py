"""Deletes dead letters after their retention, every five minutes.

For each queue, the sweep deletes the dead letters that are too old, and then the oldest ones above
the maximum number. Then it deletes the oldest ones above the maximum across queues (`_default`).
All limits apply. The sweep reads up to 100 jobs at a time, archives them if the queue requires
that, and deletes them one by one. Each deletion has the condition that the dead letter is
unchanged. A run can therefore be shortened, repeated, or run twice at the same time.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from itertools import islice

from ojs.domain.job.job import Job
from ojs.domain.job.retention import PRUNED_EVERY_MS, DeadLetterRetention, PruningPolicy
from ojs.records import record
from ojs.services.dead_letter.archive import Archive
from ojs.services.jobs.dead_letter_copies import DeadLetterCopies
from ojs.services.listing.dead_letters import still_listed
from ojs.services.sweeps import (
    GoOn,
    SweepReport,
    SweepRun,
    always,
    counting_failures,
    rotated,
)
from ojs.store.dead_letter.pruning import DeadQueue, Pruning
from ojs.store.jobs import items
from ojs.store.jobs.records import JobStore
from ojs.store.table import keys

_SLICE = 100
# Maximum number of index keys in memory, for all partitions, while the last dead letter to keep is
# searched.
_PAGE = 2_000
_SMALLEST_PAGE = 10


@record(frozen=True)
class _RetentionCount:
    """A queue with dead letters, and its retention.

    `own_count`: the queue has its own maximum number. The maximum across queues doesn't apply.
    """

    queue: DeadQueue
    retention: DeadLetterRetention
    own_count: bool

    @classmethod
    def of(cls, queue: DeadQueue, overall: DeadLetterRetention) -> _RetentionCount:
        """Return the retention of a queue, by its configuration and that of all queues."""
        layers = queue.layers
        retention = layers.in_force().dead_letter
        age_ms, count = retention.max_age_ms, retention.max_count
        if not layers.own_max_age:
            age_ms = min(age_ms, overall.max_age_ms)
        own = layers.own_max_count
        if not own:
            count = min(count, overall.max_count)
        return cls(queue, DeadLetterRetention(age_ms, count, retention.pruning_policy), own)


@record
class _PruneRun(SweepRun):
    # Number of jobs that this run deleted, by queue. The counts of the projection might still
    # include them.
    pruned: Counter[str] = field(default_factory=Counter)

    def over(self) -> bool:
        return self.stop(self.counts["pruned"])


class PruneSweep:
    """Deletes dead letters above the age limit or the maximum number."""

    name = "prune"

    def __init__(
        self,
        *,
        jobs: JobStore,
        pruning: Pruning,
        copies: DeadLetterCopies,
        archive: Archive,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._jobs = jobs
        self._pruning = pruning
        self._copies = copies
        self._archive = archive
        self._choose = choose

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Prune jobs, unless the current five minutes are already completed.

        Starts at a random queue, so that shortened runs starve none.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Approximate maximum number of jobs.
            go_on: Returns whether enough time is left to continue.

        Returns:
            Numbers of jobs: pruned, archived, moved_on (changed during the run), waiting (their
            copy is still due). Number of queues: failed. And `more`.
        """
        due_ms = now_ms - now_ms % PRUNED_EVERY_MS
        token = self._pruning.lock(due_ms, now_ms=now_ms)
        if token is None:
            return SweepReport()
        run = _PruneRun(now_ms, limit, go_on)
        with counting_failures(run.counts, "the list of dead letters"):
            self._all(run)
        # The run of the next minute processes the remaining and failed queues.
        done = not run.counts["more"] and not run.counts["failed"]
        self._pruning.unlock(token, done_ms=due_ms if done else None)
        return SweepReport(+run.counts, failures=run.counts.failures)

    def _all(self, run: _PruneRun) -> None:
        oldest = self._jobs.index.dead(limit=1, oldest_first=True)
        if not oldest or run.over():
            return
        overall = self._pruning.policy().in_force().dead_letter
        found = self._pruning.queues()
        there = rotated(
            [_RetentionCount.of(queue, overall) for queue in found.queues], self._choose
        )
        oldest_ms = keys.instant_of(oldest[0][1])
        for kept in there:
            until_ms = run.now_ms - kept.retention.max_age_ms
            # If the oldest dead letter is within the age limit, no queue is read.
            what = f"queue {kept.queue.name}"
            if oldest_ms < until_ms and not self._safely(run, what, self._line, kept, until_ms):
                return
        for kept in there:
            name, most = kept.queue.name, kept.retention.max_count
            if not self._safely(run, f"queue {name}", self._by_count, [kept], most, [name]):
                return
        shared = [kept for kept in there if not kept.own_count]
        names = [kept.queue.name for kept in shared] if found.own_counts else [None]
        self._safely(run, "all queues", self._by_count, shared, overall.max_count, names)

    @staticmethod
    def _safely(run: _PruneRun, name: str, step: Callable[..., None], *what: object) -> bool:
        """Run a step and count its failure. Return False if the time is up."""
        if run.over():
            return False
        with counting_failures(run.counts, name):
            step(run, *what)
        return not run.counts["more"]

    # --- which dead letters to delete ------------------------------------------------------------

    def _by_count(
        self,
        run: _PruneRun,
        some: Sequence[_RetentionCount],
        most: int,
        names: Sequence[str | None],
    ) -> None:
        """Delete the oldest dead letters of some queues, above `most` in total.

        `names` are the queues whose index partitions are read. None is the partition of all queues.
        """
        counted = sum(kept.queue.dead - run.pruned[kept.queue.name] for kept in some)
        if counted <= most:
            return
        # The counts can include deleted jobs. The index shows which dead letter is the last one to
        # keep, so that not too many are deleted.
        last = next(islice(self._latest_first(run, names), most - 1, None), None)
        if last is None or run.counts["more"]:
            return
        for kept in some:
            self._line(run, kept, before=last)

    def _latest_first(self, run: _PruneRun, names: Sequence[str | None]) -> Iterator[str]:
        """Yield the merged index keys of several partitions, most recent first, within the time."""
        size = max(_SMALLEST_PAGE, _PAGE // len(names))
        return heapq.merge(*(self._keys(run, name, size) for name in names), reverse=True)

    def _keys(self, run: _PruneRun, name: str | None, size: int) -> Iterator[str]:
        before: str | None = None
        while not run.over():
            entries = self._jobs.index.dead(name, limit=size, before=before)
            yield from (key for _, key in entries)
            if len(entries) < size:
                return
            before = entries[-1][1]

    # --- slices -------------------------------------------------------------------------------

    def _line(
        self,
        run: _PruneRun,
        kept: _RetentionCount,
        until_ms: int | None = None,
        before: str | None = None,
    ) -> None:
        """Delete the dead letters of a queue that were discarded before a time, or before a key."""
        name = kept.queue.name
        after: str | None = None
        while not run.over():
            size = min(_SLICE, run.limit - run.counts["pruned"])
            entries = self._jobs.index.dead(
                name, limit=size, until_ms=until_ms, before=before, after=after, oldest_first=True
            )
            if not entries:
                return
            # Continue after this page: the index can still list deleted jobs, and some jobs are
            # kept.
            after = self._slice(run, kept, entries)
            if after == entries[-1][1] and len(entries) < size:
                return

    def _slice(
        self, run: _PruneRun, kept: _RetentionCount, entries: Sequence[tuple[str, str]]
    ) -> str:
        """Delete the listed dead letters that are unchanged. Return the last processed key."""
        name = kept.queue.name
        records = self._jobs.read_records((job_id for job_id, _ in entries), run.counts.fail)
        dead: list[Job] = []
        for job_id, key in entries:
            job = records.get(job_id)
            if job is None or job.queue != name or not still_listed(job, key):
                continue
            with counting_failures(run.counts, f"job {job_id}"):
                # The copy must be created before the deletion.
                job = self._copies.follow(job)
                if job.copy_due:
                    run.counts["waiting"] += 1
                elif job.queue == name and still_listed(job, key):
                    dead.append(job)
        last = entries[-1][1]
        if kept.retention.pruning_policy == PruningPolicy.ARCHIVE:
            # A job that an operator deleted is not archived.
            deleted = [job for job in dead if job.deleting]
            wanted = [job for job in dead if not job.deleting]
            written, looked = self._archive.keep(name, wanted, now_ms=run.now_ms)
            run.counts["archived"] += len(written)
            if looked < len(wanted):
                last = str(items.index_entries(wanted[looked - 1])["wsk"])
            dead = deleted + written
        for job in dead:
            with counting_failures(run.counts, f"job {job.id}"):
                if self._jobs.removal.prune(job):
                    run.pruned[name] += 1
                    run.counts["pruned"] += 1
                else:
                    run.counts["moved_on"] += 1
        return last
