"""The reconcile sweep: sets gates right that count wrongly (design section 5, "Gates").

What follows is about the bounds of queues; the places of running jobs are in `ojs.services.permits.repair`.

A gate counts the jobs it was charged for and, beside them, jobs that were stored while the queue
had no bound ("loose" ones). Both go wrong by and by, and only towards too many:

- a loose job that is done is not let go at the gate: loose ones are counted anew each minute
- whoever charged a job and died before it was stored, or ended it and died before letting it go,
  leaves a charge behind: a leak

A gate must never count too few. So a leak is healed only when nobody can be about to store a job
that was charged for, nor to let one go that is done:

1. nobody passed the gate for SETTLED_MS, which is longer than any function runs, and no batch holds
   room that is yet to be committed or undone: all jobs charged for are stored, or never will be
2. they are counted: by their heads, found by the index, and by the projection. The larger counts
3. the count is noted, and nothing else happens until SETTLED_MS later: a job that was done and not
   let go when it was counted has been let go by then, which changes the gate
4. if nobody passed the gate in all that time, what it was charged for was too much by then already:
   it is set to what was noted, or to what is counted now if that is more, under the condition that
   still nobody passes

Under constant traffic leaks stay: the queue is full a little early until it comes to rest for two
minutes. So do those of a queue with more than MOST_COUNTED jobs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from ojs.domain.errors import OjsError
from ojs.services.permits.repair import CountedPermits, PermitRepair
from ojs.store.permits.counters import CounterValue, Gates
from ojs.store.permits.recount import Occupancy, Recount, RecountedQueue
from ojs.store.queues.queues import QueueStore

# The sweep runs for 55 s, a request for 29 s; the index is behind by less than the rest.
SETTLED_MS = 60_000
# After a bound was set, loose jobs may still come; for so long they are looked for though none is
# known of.
_CONFIGURED_MS = 600_000
# Jobs of one queue that are looked at one by one; each costs a read unit or half of one.
MOST_COUNTED = 5_000
_DRAIN_MINUTES = 5
_NAMES = 1_000
_QUEUES = 33  # one call


class ReconcileSweep:
    """Looks after the gates of bounded queues."""

    def __init__(
        self,
        queues: QueueStore,
        gates: Gates,
        census: Recount,
        slots: PermitRepair,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._queues = queues
        self._gates = gates
        self._census = census
        self._slots = slots
        self._choose = choose

    def run_once(
        self, now_ms: int, limit: int, go_on: Callable[[], bool] = lambda: True
    ) -> dict[str, int]:
        """One look at every bounded queue, counting the jobs of at most `limit` of them.

        Counts: unbounded (queues passed over), bounded (queues looked at), counted (queues whose
        jobs were), recounted, suspected, healed, those of `PermitRepair.look`, failed, and `more` (1 when
        it ended early and another should follow). Begins at a random queue, so that a look cut
        short starves none.
        """
        counts: Counter[str] = Counter()
        names = self._names()
        start = self._choose(len(names)) if names else 0
        names = names[start:] + names[:start]
        staged: Collection[str] | None = None
        asked = False
        for at in range(0, len(names), _QUEUES):
            found = self._census.known(names[at : at + _QUEUES])
            if not self._places(found, now_ms, counts, go_on):
                return dict(counts)
            for known in found:
                if not known.queue.config.bounded:
                    counts["unbounded"] += 1
                if not known.queue.charged:
                    continue
                if counts["counted"] >= limit or not go_on():
                    counts["more"] = 1
                    return dict(counts)
                if not asked:
                    staged, asked = self._census.staged(), True
                try:
                    self._look(known, staged, now_ms, counts)
                except OjsError:
                    # One queue must not hold up the others; the next minute finds it again.
                    counts["failed"] += 1
        return dict(counts)

    def settle(self, name: str) -> None:
        """Count the jobs that a queue holds into its gate, before it gets a bound.

        A push that is under way meanwhile is found by the sweep. Raises OjsError.
        """
        for known in self._census.known([name]):
            counted, _ = self._census.count(known.queue, most=MOST_COUNTED)
            loose, loose_bytes = _more(counted, known.projected)
            self._gates.recount(name, known.level, loose=loose, loose_bytes=loose_bytes, drain=None)

    def _places(
        self,
        found: Sequence[RecountedQueue],
        now_ms: int,
        counts: Counter[str],
        go_on: Callable[[], bool],
    ) -> bool:
        """See to the places of running jobs; False when there is no time left to do so."""
        slotted = [CountedPermits.of_queue(known.queue) for known in found if known.queue.slotted]
        if slotted and not go_on():
            counts["more"] = 1
            return False
        try:
            self._slots.look(slotted, now_ms, counts)
        except OjsError:
            counts["failed"] += 1  # as below
        return True

    # --- one queue ----------------------------------------------------------------------------

    def _look(
        self,
        known: RecountedQueue,
        staged: Collection[str] | None,
        now_ms: int,
        counts: Counter[str],
    ) -> None:
        counts["bounded"] += 1
        level, name = known.level, known.queue.name
        counted = self._count(known, now_ms, counts)
        loose = self._loose(known, counted, now_ms)
        drain = self._census.drain(name, now_ms=now_ms, minutes=_DRAIN_MINUTES)
        same = loose == (level.loose, level.loose_bytes)
        if not same or drain != (level.drain or 0):
            self._gates.recount(name, level, loose=loose[0], loose_bytes=loose[1], drain=drain)
            counts["recounted"] += not same
        if not same or counted is None or not counted[1] or not _at_rest(level, now_ms):
            return
        # A batch that is undone gives back all its room, stored or not. Until then the jobs in line
        # are fewer than what was charged for, and nothing is wrong.
        if staged is not None and name not in staged:
            self._heal(known, counted[0], now_ms, counts)

    def _count(
        self, known: RecountedQueue, now_ms: int, counts: Counter[str]
    ) -> tuple[Occupancy, bool] | None:
        """The queue's jobs, if there is anything that needs them counted, and whether all were."""
        level, projected = known.level, known.projected
        looks_wrong = (level.charged, level.charged_bytes) != (
            projected.held,
            projected.held_bytes,
        )
        if not self._loosened(known, now_ms) and not (looks_wrong and _at_rest(level, now_ms)):
            return None
        counts["counted"] += 1
        return self._census.count(known.queue, most=MOST_COUNTED)

    @staticmethod
    def _loosened(known: RecountedQueue, now_ms: int) -> bool:
        """Whether there may be loose jobs, or are some at the gate that are gone."""
        configured_ms = known.queue.configured_ms or known.queue.created_ms
        if known.level.loose or known.level.loose_bytes or known.projected.loose:
            return True
        return now_ms - configured_ms < _CONFIGURED_MS

    @staticmethod
    def _loose(
        known: RecountedQueue, counted: tuple[Occupancy, bool] | None, now_ms: int
    ) -> tuple[int, int]:
        """What should stand for loose jobs at the gate: jobs and bytes."""
        level = known.level
        if counted is None:
            return level.loose, level.loose_bytes
        found, whole = counted
        loose, size = _more(found, known.projected)
        configured_ms = known.queue.configured_ms or 0
        if not whole and now_ms - configured_ms < SETTLED_MS:
            # The projection may not have seen all of them yet.
            return max(loose, level.loose), max(size, level.loose_bytes)
        return loose, size

    def _heal(
        self, known: RecountedQueue, counted: Occupancy, now_ms: int, counts: Counter[str]
    ) -> None:
        level, projected, name = known.level, known.projected, known.queue.name
        # The larger counts; but the projection may be late, and what it alone knows of is no reason
        # to count more than was charged for.
        count = max(counted.held, min(projected.held, level.charged))
        size = max(counted.held_bytes, min(projected.held_bytes, level.charged_bytes))
        too_few = count > level.charged or size > level.charged_bytes
        suspicion = level.suspicion
        if not too_few and (count, size) == (level.charged, level.charged_bytes):
            return
        if too_few:
            # Jobs that are there must count, at once.
            count, size = max(count, level.charged), max(size, level.charged_bytes)
        elif suspicion is None:
            self._gates.suspect(name, level, count=count, size=size, now_ms=now_ms)
            counts["suspected"] += 1
            return
        elif now_ms - suspicion.at_ms < SETTLED_MS:
            return
        else:
            count, size = max(count, suspicion.count), max(size, suspicion.size)
            if (count, size) == (level.charged, level.charged_bytes):
                return
        if self._gates.heal(name, level, count=count, size=size):
            counts["healed"] += 1

    def _names(self) -> list[str]:
        names: list[str] = []
        after: str | None = None
        while True:
            page, after = self._queues.names(limit=_NAMES, after=after)
            names += page
            if after is None:
                return names


def _more(counted: Occupancy, projected: Occupancy) -> tuple[int, int]:
    """Loose jobs and their bytes, whichever way of counting knows of more."""
    return (
        max(counted.loose, projected.loose),
        max(counted.loose_bytes, projected.loose_bytes),
    )


def _at_rest(level: CounterValue, now_ms: int) -> bool:
    """Whether nobody passed the gate for so long that all who did are done."""
    return now_ms - level.changed_ms >= SETTLED_MS
