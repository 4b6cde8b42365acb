"""Every five minutes: remove dead letters that nobody is to keep longer (dead-letter seed, 5, 8).

Age first, then the oldest beyond the number, queue by queue; then the number of all together, by
what is configured for all (`_default`). Each limit holds, so the tightest one decides. A slice of
up to 100 is read, archived where its queue says so, and deleted head by head, each on condition
that it is that very dead letter still. So a run may be cut short, repeated, or run twice at once,
and one that comes after an outage catches up.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ojs.domain.errors import OjsError
from ojs.domain.job.job import Job
from ojs.domain.job.retention import ARCHIVE, PRUNED_EVERY_MS, DeadLetterRetention
from ojs.services.dead_letter.archive import Archive
from ojs.services.dead_letter.copies import DeadLetterCopies
from ojs.store.dead_letter.pruning import DeadQueue, Pruning
from ojs.store.jobs import items
from ojs.store.jobs.records import JobStore
from ojs.store.table import keys

_SLICE = 100
# Keys that a look for the last that stays holds at a time, of all lines together.
_PAGE = 2_000
_SMALLEST_PAGE = 10


@dataclass(frozen=True)
class _Kept:
    """A queue with dead letters, and which of them stay. `own_count` says that the number is its
    own, and not that of all queues together.
    """

    queue: DeadQueue
    retention: DeadLetterRetention
    own_count: bool

    @classmethod
    def of(cls, queue: DeadQueue, overall: DeadLetterRetention) -> _Kept:
        """By what is configured for it, and for all."""
        layers = queue.layers
        retention = layers.in_force().dead_letter
        age_ms, count = retention.max_age_ms, retention.max_count
        if not layers.own_max_age:
            age_ms = min(age_ms, overall.max_age_ms)
        own = layers.own_max_count
        if not own:
            count = min(count, overall.max_count)
        return cls(queue, DeadLetterRetention(age_ms, count, retention.pruning_policy), own)


@dataclass
class _Run:
    """One run under way."""

    now_ms: int
    limit: int
    go_on: Callable[[], bool]
    counts: Counter[str] = field(default_factory=Counter)
    # By queue: those removed by this run, which the counts may know of or not.
    pruned: Counter[str] = field(default_factory=Counter)

    def stop(self) -> bool:
        """Whether time is up, or the limit reached; says so in the counts."""
        if self.counts["pruned"] >= self.limit or not self.go_on():
            self.counts["more"] = 1
        return bool(self.counts["more"])


class PruneSweep:
    """Removes them."""

    def __init__(
        self,
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

    def run_once(
        self, now_ms: int, limit: int, go_on: Callable[[], bool] = lambda: True
    ) -> dict[str, int]:
        """Prune for the latest five-minute mark, unless that is done; at most about `limit` jobs.

        Counts: pruned, archived, moved_on (jobs that somebody changed meanwhile), waiting (whose
        copy is still to be made), failed (queues), and `more` (1 when the run ended early and
        another should follow). `go_on` says whether there is time left. Begins at a random queue,
        so that a run cut short starves none.
        """
        mark_ms = now_ms - now_ms % PRUNED_EVERY_MS
        turn = self._pruning.take(mark_ms, now_ms=now_ms)
        if turn is None:
            return {}
        run = _Run(now_ms, limit, go_on)
        self._all(run)
        # What is left, or failed, the next minute looks at again.
        over = not run.counts["more"] and not run.counts["failed"]
        self._pruning.give_back(turn, done_ms=mark_ms if over else None)
        return {name: count for name, count in run.counts.items() if count}

    def _all(self, run: _Run) -> None:
        oldest = self._jobs.dead(limit=1, oldest_first=True)
        if not oldest or run.stop():
            return
        overall = self._pruning.policy().in_force().dead_letter
        found = self._pruning.queues()
        there = [_Kept.of(queue, overall) for queue in found.queues]
        start = self._choose(len(there)) if there else 0
        there = there[start:] + there[:start]
        oldest_ms = keys.instant_of(oldest[0][1])
        for kept in there:
            until_ms = run.now_ms - kept.retention.max_age_ms
            # Where the oldest of all is young enough nothing need be read.
            if oldest_ms < until_ms and not self._safely(run, self._by_age, kept, until_ms):
                return
        for kept in there:
            name, most = kept.queue.name, kept.retention.max_count
            if not self._safely(run, self._by_count, [kept], most, [name]):
                return
        shared = [kept for kept in there if not kept.own_count]
        names = [kept.queue.name for kept in shared] if found.own_counts else [None]
        self._safely(run, self._by_count, shared, overall.max_count, names)

    @staticmethod
    def _safely(run: _Run, step: Callable[..., None], *what: object) -> bool:
        """Take a step; False when there is no time for another. What fails must not hold up the
        other queues, and is found again.
        """
        if run.stop():
            return False
        try:
            step(run, *what)
        except OjsError:
            run.counts["failed"] += 1
        return not run.counts["more"]

    # --- which --------------------------------------------------------------------------------

    def _by_age(self, run: _Run, kept: _Kept, until_ms: int) -> None:
        self._line(run, kept, until_ms=until_ms)

    def _by_count(
        self, run: _Run, some: Sequence[_Kept], most: int, names: Sequence[str | None]
    ) -> None:
        """Remove the oldest of some queues beyond so many of them together. `names` are the lines
        they stand in, None being that of all.
        """
        counted = sum(kept.queue.dead - run.pruned[kept.queue.name] for kept in some)
        if counted <= most:
            return
        # The counts are of a moment ago: what they know of may be gone. The line itself says where
        # the last one stands that stays, so that never too many go.
        last = next(islice(self._latest_first(run, names), most - 1, None), None)
        if last is None or run.counts["more"]:
            return
        for kept in some:
            self._line(run, kept, before=last)

    def _latest_first(self, run: _Run, names: Sequence[str | None]) -> Iterator[str]:
        """The places of dead letters of several lines in one order; ends when time is up."""
        size = max(_SMALLEST_PAGE, _PAGE // len(names))
        return heapq.merge(*(self._places(run, name, size) for name in names), reverse=True)

    def _places(self, run: _Run, name: str | None, size: int) -> Iterator[str]:
        before: str | None = None
        while True:
            if run.stop():
                return
            entries = self._jobs.dead(name, limit=size, before=before)
            for _, place in entries:
                yield place
            if len(entries) < size:
                return
            before = entries[-1][1]

    # --- slices -------------------------------------------------------------------------------

    def _line(
        self, run: _Run, kept: _Kept, *, until_ms: int | None = None, before: str | None = None
    ) -> None:
        """Remove what of a queue was discarded before a time, or stands before a place."""
        name = kept.queue.name
        after: str | None = None
        while not run.stop():
            size = min(_SLICE, run.limit - run.counts["pruned"])
            entries = self._jobs.dead(
                name, limit=size, until_ms=until_ms, before=before, after=after, oldest_first=True
            )
            if not entries:
                return
            # Behind what was looked at: the index may be slow to forget, and some stay.
            after = self._slice(run, kept, entries)
            if after == entries[-1][1] and len(entries) < size:
                return

    def _slice(self, run: _Run, kept: _Kept, entries: Sequence[tuple[str, str]]) -> str:
        """Remove those that are still the dead letters listed; the place of the last looked at."""
        name = kept.queue.name
        heads = self._jobs.heads(job_id for job_id, _ in entries)
        dead: list[Job] = []
        for job_id, place in entries:
            job = heads.get(job_id)
            if job is None or not _stands(job, name, place):
                continue
            # Its copy first: it could not be made any more.
            job = self._copies.follow(job)
            if job.copy_due:
                run.counts["waiting"] += 1
            elif _stands(job, name, place):
                dead.append(job)
        last = entries[-1][1]
        if kept.retention.pruning_policy == ARCHIVE:
            # Whoever deletes one by hand wants it to be nowhere.
            deleted = [job for job in dead if job.deleting]
            wanted = [job for job in dead if not job.deleting]
            written, looked = self._archive.keep(name, wanted, now_ms=run.now_ms)
            run.counts["archived"] += len(written)
            if looked < len(wanted):
                last = str(items.index_entries(wanted[looked - 1])["wsk"])
            dead = deleted + written
        for job in dead:
            if self._jobs.prune(job):
                run.pruned[name] += 1
                run.counts["pruned"] += 1
            else:
                run.counts["moved_on"] += 1
        return last


def _stands(job: Job, queue: str, place: str) -> bool:
    """Whether a job is the dead letter that stands there: it may have come back, and died anew."""
    return job.dead_letter and job.queue == queue and items.index_entries(job)["wsk"] == place
