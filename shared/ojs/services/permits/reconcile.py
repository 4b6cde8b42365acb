"""The reconcile sweep: repairs the depth counters of bounded queues.

The semaphores of running jobs are repaired by `ojs.services.permits.repair`.

A depth counter has a tracked part, for jobs that were counted one by one, and an untracked part,
for jobs stored before the queue had a bound. Both drift over time, and only upwards:

- an untracked job that is done is not subtracted: the untracked part is recounted each minute
- a function that dies after counting a job and before storing it, or after ending it and before
  subtracting it, leaves the tracked part one too high

The counter must never be too low. So the tracked part is repaired only when no function can be
about to store a counted job, or to subtract a job that is done:

1. the counter has not changed for SETTLED_MS, which is longer than any function runs, and no batch
   has room that is yet to be committed or undone: all counted jobs are stored, or never will be
2. the jobs are counted, by the records that the index lists and by the projection. The larger
   number counts
3. the number is recorded, and nothing else happens for SETTLED_MS: a job that was done but not yet
   subtracted when it was counted is subtracted by then, which changes the counter
4. if the counter did not change in that time, it was too high already: it is set to the recorded
   number, or to the number counted now if that is larger, on condition that it is still unchanged

Under constant traffic drift stays: the queue is full a little early until it is at rest for two
minutes. It also stays in a queue with more than MOST_COUNTED jobs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from ojs.domain.errors import OjsError
from ojs.services.permits.repair import CountedPermits, PermitRepair
from ojs.services.sweeps import GoOn, SweepReport, always
from ojs.store.permits.counter_items import CounterValue
from ojs.store.permits.depth_counter import DepthCounter
from ojs.store.permits.recount import Occupancy, Recount, RecountedQueue
from ojs.store.queues.queues import QueueStore

# The sweep runs for 55 s, a request for 29 s; the index is late by less than the rest.
SETTLED_MS = 60_000
# For so long after a bound was set, untracked jobs may still be stored, and are looked for.
_CONFIGURED_MS = 600_000
# Jobs of one queue that are read one by one; each costs a read unit or half of one.
MOST_COUNTED = 5_000
_DRAIN_MINUTES = 5
_NAMES = 1_000
_QUEUES = 33  # one call


class ReconcileSweep:
    """Repairs the depth counters of bounded queues, and the semaphores of all limited queues."""

    name = "reconcile"

    def __init__(
        self,
        *,
        queues: QueueStore,
        depth: DepthCounter,
        recount: Recount,
        repair: PermitRepair,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._queues = queues
        self._depth = depth
        self._recount = recount
        self._repair = repair
        self._choose = choose

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Check every bounded queue, counting the jobs of at most `limit` of them.

        Counts: unbounded (queues not checked), bounded (queues checked), counted (queues whose jobs
        were counted), recounted, suspected, healed, those of `PermitRepair.check`, failed, and
        `more` (1 when it ended early and another run should follow). Begins at a random queue, so
        that every queue gets its turn when runs end early.
        """
        counts: Counter[str] = Counter()
        names = self._names()
        start = self._choose(len(names)) if names else 0
        names = names[start:] + names[:start]
        staged: Collection[str] | None = None
        asked = False
        for at in range(0, len(names), _QUEUES):
            found = self._recount.known(names[at : at + _QUEUES])
            if not self._check_permits(found, now_ms, counts, go_on):
                return SweepReport(counts)
            for known in found:
                if not known.queue.config.bounded:
                    counts["unbounded"] += 1
                if not known.queue.charged:
                    continue
                if counts["counted"] >= limit or not go_on():
                    counts["more"] = 1
                    return SweepReport(counts)
                if not asked:
                    staged, asked = self._recount.staged(), True
                try:
                    self._check(known, staged, now_ms, counts)
                except OjsError:
                    # One failure must not stop the others; the next run checks this queue again.
                    counts["failed"] += 1
        return SweepReport(counts)

    def count_untracked(self, name: str) -> None:
        """Count the jobs in a queue into its depth counter, before the queue gets a bound.

        A push that is under way is found by the sweep. Raises OjsError.
        """
        for known in self._recount.known([name]):
            counted, _ = self._recount.count(known.queue, most=MOST_COUNTED)
            untracked, size = _larger(counted, known.projected)
            self._depth.recount(
                name, known.value, untracked=untracked, untracked_bytes=size, drain=None
            )

    def _check_permits(
        self,
        found: Sequence[RecountedQueue],
        now_ms: int,
        counts: Counter[str],
        go_on: GoOn,
    ) -> bool:
        """Repair the semaphores of these queues; False when there is no time left to do so."""
        limited = [CountedPermits.of_queue(known.queue) for known in found if known.queue.slotted]
        if limited and not go_on():
            counts["more"] = 1
            return False
        try:
            self._repair.check(limited, now_ms, counts)
        except OjsError:
            counts["failed"] += 1
        return True

    # --- one queue ----------------------------------------------------------------------------

    def _check(
        self,
        known: RecountedQueue,
        staged: Collection[str] | None,
        now_ms: int,
        counts: Counter[str],
    ) -> None:
        counts["bounded"] += 1
        value, name = known.value, known.queue.name
        counted = self._count(known, now_ms, counts)
        untracked = self._untracked(known, counted, now_ms)
        drain = self._recount.drain(name, now_ms=now_ms, minutes=_DRAIN_MINUTES)
        same = untracked == (value.untracked, value.untracked_bytes)
        if not same or drain != (value.drain or 0):
            self._depth.recount(
                name, value, untracked=untracked[0], untracked_bytes=untracked[1], drain=drain
            )
            counts["recounted"] += not same
        if not same or counted is None or not counted[1] or not _at_rest(value, now_ms):
            return
        # A batch that is undone releases all its room, whether its jobs were stored or not. Until
        # then fewer jobs are in line than were counted, and nothing is wrong.
        if staged is not None and name not in staged:
            self._repair_tracked(known, counted[0], now_ms, counts)

    def _count(
        self, known: RecountedQueue, now_ms: int, counts: Counter[str]
    ) -> tuple[Occupancy, bool] | None:
        """The queue's jobs, and whether all were counted; None if there is no need to count."""
        value, projected = known.value, known.projected
        looks_wrong = (value.tracked, value.tracked_bytes) != (
            projected.tracked,
            projected.tracked_bytes,
        )
        if not self._may_have_untracked(known, now_ms) and not (
            looks_wrong and _at_rest(value, now_ms)
        ):
            return None
        counts["counted"] += 1
        return self._recount.count(known.queue, most=MOST_COUNTED)

    @staticmethod
    def _may_have_untracked(known: RecountedQueue, now_ms: int) -> bool:
        """Whether there may be untracked jobs, or the counter shows some that are gone."""
        configured_ms = known.queue.configured_ms or known.queue.created_ms
        value = known.value
        if value.untracked or value.untracked_bytes or known.projected.untracked:
            return True
        return now_ms - configured_ms < _CONFIGURED_MS

    @staticmethod
    def _untracked(
        known: RecountedQueue, counted: tuple[Occupancy, bool] | None, now_ms: int
    ) -> tuple[int, int]:
        """The number of untracked jobs and their bytes that the counter should show."""
        value = known.value
        if counted is None:
            return value.untracked, value.untracked_bytes
        found, whole = counted
        untracked, size = _larger(found, known.projected)
        configured_ms = known.queue.configured_ms or 0
        if not whole and now_ms - configured_ms < SETTLED_MS:
            # The projection may not have seen all of them yet.
            return max(untracked, value.untracked), max(size, value.untracked_bytes)
        return untracked, size

    def _repair_tracked(
        self, known: RecountedQueue, counted: Occupancy, now_ms: int, counts: Counter[str]
    ) -> None:
        value, projected, name = known.value, known.projected, known.queue.name
        tracked = (value.tracked, value.tracked_bytes)
        # The larger number counts; but the projection may be late, so that it alone is no reason to
        # count more than the counter shows.
        count = max(counted.tracked, min(projected.tracked, value.tracked))
        size = max(counted.tracked_bytes, min(projected.tracked_bytes, value.tracked_bytes))
        if (count, size) == tracked:
            return
        drift = value.drift
        if count > value.tracked or size > value.tracked_bytes:
            # The counter is too low: repair it at once.
            count, size = max(count, value.tracked), max(size, value.tracked_bytes)
        elif drift is None:
            self._depth.record_drift(name, value, count=count, size=size, now_ms=now_ms)
            counts["suspected"] += 1
            return
        elif now_ms - drift.at_ms < SETTLED_MS:
            return
        else:
            count, size = max(count, drift.count), max(size, drift.size)
            if (count, size) == tracked:
                return
        if self._depth.repair(name, value, count=count, size=size):
            counts["healed"] += 1

    def _names(self) -> list[str]:
        names: list[str] = []
        after: str | None = None
        while True:
            page, after = self._queues.names(limit=_NAMES, after=after)
            names += page
            if after is None:
                return names


def _larger(counted: Occupancy, projected: Occupancy) -> tuple[int, int]:
    """Untracked jobs and their bytes, by the source that knows of more."""
    return (
        max(counted.untracked, projected.untracked),
        max(counted.untracked_bytes, projected.untracked_bytes),
    )


def _at_rest(value: CounterValue, now_ms: int) -> bool:
    """Whether every function that changed the counter has ended by now."""
    return now_ms - value.changed_ms >= SETTLED_MS
