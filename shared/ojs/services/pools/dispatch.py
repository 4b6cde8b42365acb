"""Which queue a fetch takes its next job from (fair-scheduling seed, sections 7 and 8).

    who fetches                         its turns
    nobody's pool, or one not configured  counted by each container, by what the fetch asks for
    a worker of a pool                  the pool's ledger gives them out (`ojs.store.permits.sequencer`), so
                                        that all containers together keep the order

A turn is drawn when there is something to hand out, and belongs to one queue; where that has no
job, another gets it (`ojs.domain.pool.dispatch`). Strict without a guarantee and a single queue need no
turns, and an idle pool writes nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ojs.clock import Clock
from ojs.domain.job.job import POOL_SEAT, WORKER_SEAT
from ojs.domain.pool.dispatch import LEAST_LOADED, DispatchSequence
from ojs.domain.pool.pool import SEATS_KEPT_S, Pool, seat_of
from ojs.domain.pool.worker import Worker
from ojs.store.permits.counters import Gates
from ojs.store.permits.sequencer import Sequencer, SequenceRange, SequencerState, StarvationOverride
from ojs.store.table import keys

# How far ahead it is looked whose turn comes, by the number of queues.
_AHEAD = 4
# A queue seen empty by this container is given no turn of another's for so long; its own it has.
_EMPTY_MS = 1_000
# How far a line is looked at to see how deep it is. Beyond that it is as deep as projected.
PAGE = 100
# What was claimed a moment ago is not counted: a line that fills less of it may be longer, too.
_DEEP = 80
_REMEMBERED = 1_000


class JobSource(Protocol):
    """A queue, as a fetch takes from it."""

    def peek(self) -> int:
        """How many jobs are there to be claimed, as far as is known; 0: none."""
        ...

    def claim(self) -> bool:
        """Claim the next; False when there is none any more."""
        ...


@dataclass
class DispatchPlan:
    """The turns of one fetch. `pool` is None outside of one that is configured."""

    turns: DispatchSequence
    strategy: str
    pool: Pool | None = None
    worker: Worker | None = None
    ledger: SequencerState = field(default_factory=SequencerState)
    # Places taken for jobs to come, and of these how many jobs have: `WORKER_SEAT` counts too.
    drawn: int = 0
    drawn_by_worker: int = 0
    used: int = 0
    # The turn that is likely to come next.
    following: int = 0
    # Of queues that are deeper than was looked: how many jobs are left, as far as was counted.
    deep: dict[str, int] = field(default_factory=dict)

    @property
    def seats(self) -> str:
        """The places that a job takes which is claimed on this course."""
        by_pool = POOL_SEAT if self.pool is not None and self.pool.seated else ""
        return by_pool + (WORKER_SEAT if self.room_of_worker is not None else "")

    @property
    def room_of_worker(self) -> int | None:
        """How many jobs the worker runs at most, if that is to be heeded here."""
        if self.pool is None or self.strategy != LEAST_LOADED or self.worker is None:
            return None
        said = self.worker.info.get("concurrency")
        return said if isinstance(said, int) and said > 0 else None

    @property
    def full(self) -> bool:
        """Whether the pool's running jobs took all its places when it was read."""
        if self.pool is None or self.pool.concurrency is None:
            return False
        return self.ledger.seats >= self.pool.concurrency

    @property
    def plain(self) -> bool:
        """Whether queues are served as they are listed, and nothing is to be drawn for it."""
        free = not self.turns.counted and self.strategy != LEAST_LOADED
        return free and not self.seats

    def prefer(self, left: Collection[str], sources: Mapping[str, JobSource]) -> str:
        """Whom a free turn goes to: the deepest backlog, or the first as listed."""
        listed = [name for name in self.turns.queues if name in left]
        if self.strategy == LEAST_LOADED:
            return max(listed, key=lambda name: max(self.deep.get(name, 0), sources[name].peek()))
        return listed[0]

    def ahead(self, left: Collection[str]) -> Iterator[str]:
        """The queues that are left, in the order in which their turns come, as far as is known."""
        told: dict[str, None] = {}
        if self.turns.counted:
            for turn in range(self.following, self.following + _AHEAD * len(self.turns.queues)):
                name = self.turns.at(turn)
                if name is None:
                    break
                if name in left:
                    told.setdefault(name)
        yield from told
        yield from (name for name in self.turns.queues if name in left and name not in told)


class DispatchPlanner:
    """Sets fetches on their course. One for each container."""

    def __init__(
        self,
        ledgers: Sequencer,
        gates: Gates,
        clock: Clock,
        *,
        depths: Callable[[Sequence[str]], Mapping[str, int]],
    ) -> None:
        """`depths` tells how many jobs queues have in line, as projected."""
        self._depths = depths
        self._ledgers = ledgers
        self._gates = gates
        self._clock = clock
        self._own: OrderedDict[tuple[object, ...], int] = OrderedDict()
        self._empty: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def of_pool(self, pool: Pool, ledger: SequencerState, worker: Worker | None) -> DispatchPlan:
        """The course of a pool's worker."""
        return DispatchPlan(
            pool.turns, pool.strategy, pool, worker, ledger, following=ledger.next_turn
        )

    def of_wishes(
        self, queues: Sequence[str], strategy: str, weights: Mapping[str, int]
    ) -> DispatchPlan:
        """The course of a fetch outside of pools, as it wishes."""
        course = DispatchPlan(DispatchSequence.of(queues, strategy, weights), strategy)
        with self._lock:
            course.following = self._own.get(_key(course), 0)
        return course

    def serve(
        self, course: DispatchPlan, sources: Mapping[str, JobSource], wanted: Callable[[], int]
    ) -> None:
        """Claim from these queues, one job a turn, until no more are wanted or there.

        Raises OjsError; what was claimed by then is claimed.
        """
        idle = {name for name in course.turns.queues if name not in sources}
        forced, passed = self._overdue(course, sources)
        while wanted():
            there = self._there(course, sources, idle, wanted())
            if not there:
                return
            drawn = self._draw(course, min(there, wanted()), forced, passed)
            if not drawn.count:
                return
            at_once = forced.queue if forced is not None and drawn.forced else None
            forced, passed = None, []
            for turn in range(drawn.first, drawn.first + drawn.count):
                if not (wanted() and self._one(course, sources, idle, turn, at_once)):
                    break
                at_once = None

    def settle(self, course: DispatchPlan) -> None:
        """Give back the places that were not used."""
        now_ms = self._clock.now_ms()
        if course.pool is None:
            return
        if course.pool.seated and course.drawn > course.used:
            unused = course.drawn - course.used
            self._gates.free_slots(course.pool.gate, count=unused, now_ms=now_ms)
        if course.worker is not None and course.drawn_by_worker > course.used:
            self._gates.free_slots(
                seat_of(course.pool.name, course.worker.id),
                count=course.drawn_by_worker - course.used,
                now_ms=now_ms,
            )

    # --- whose turn -----------------------------------------------------------------------------

    def _one(
        self,
        course: DispatchPlan,
        sources: Mapping[str, JobSource],
        idle: set[str],
        turn: int,
        at_once: str | None,
    ) -> bool:
        """Claim one job with a turn; False when no queue has any."""
        if at_once is not None and sources[at_once].claim():
            return True
        while (name := self._whose(course, sources, idle, turn)) is not None:
            if sources[name].claim():
                self._seen(name, empty=False)
                if name in course.deep:
                    course.deep[name] -= 1
                return True
            idle.add(name)
            self._seen(name, empty=True)
        return False

    def _whose(
        self,
        course: DispatchPlan,
        sources: Mapping[str, JobSource],
        idle: Collection[str],
        turn: int,
    ) -> str | None:
        name = course.turns.at(turn) if course.turns.counted else None
        if name is not None and name not in idle:
            return name
        left = [name for name in course.turns.queues if name not in idle]
        if not left:
            return None
        if name is None or not course.turns.weights:
            return course.prefer(left, sources)
        return course.turns.instead(turn, self._likely(left))

    def _there(
        self, course: DispatchPlan, sources: Mapping[str, JobSource], idle: set[str], wanted: int
    ) -> int:
        """How many jobs there are to hand out, as far as is known, or as many as are wanted."""
        left = [name for name in course.turns.queues if name not in idle]
        likely = self._likely(left)
        order = [*course.ahead(likely), *(name for name in left if name not in likely)]
        found = 0
        for name in order:
            there = sources[name].peek()
            found += there
            if not there:
                idle.add(name)
            self._seen(name, empty=not there)
            # The deepest backlog is known when all are.
            if found >= wanted and course.strategy != LEAST_LOADED:
                return wanted
        if course.strategy == LEAST_LOADED:
            whole = [name for name in order if sources[name].peek() >= _DEEP]
            if unknown := [name for name in whole if name not in course.deep]:
                course.deep |= self._depths(unknown)
        return min(found, wanted)

    def _overdue(
        self, course: DispatchPlan, sources: Mapping[str, JobSource]
    ) -> tuple[StarvationOverride | None, list[str]]:
        """The queue that must be served now, if its time is over; and those whose time is over,
        too, but which have no jobs.
        """
        pool = course.pool
        if pool is None or pool.prevention is None or len(sources) < 2:
            return None, []
        limit_ms = self._clock.now_ms() - pool.prevention.interval_ms
        last = {name: course.ledger.forced.get(keys.forced(name)) for name in sources}
        since = {name: pool.configured_ms if at is None else at for name, at in last.items()}
        passed: list[str] = []
        for name in sorted(sources, key=lambda name: since[name]):
            if since[name] > limit_ms:
                break
            if sources[name].peek():
                return StarvationOverride(name, last[name]), passed
            passed.append(name)
        return None, passed

    # --- drawing ----------------------------------------------------------------------------------

    def _draw(
        self,
        course: DispatchPlan,
        count: int,
        forced: StarvationOverride | None,
        passed: Sequence[str],
    ) -> SequenceRange:
        """Turns, and the places that jobs need which are claimed with them."""
        if course.pool is None:
            return self._own_turns(course, count)
        now_ms = self._clock.now_ms()
        if (limit := course.room_of_worker) is not None and course.worker is not None:
            # What another fetch of the same worker leaves to this one.
            count = self._gates.take_slots(
                seat_of(course.pool.name, course.worker.id),
                count=count,
                limit=limit,
                version=course.worker.first_seen_ms,
                now_ms=now_ms,
                kept_s=SEATS_KEPT_S,
            ).count
            course.drawn_by_worker += count
        if not count or not (course.turns.counted or course.pool.seated):
            return SequenceRange(count)
        drawn = self._ledgers.draw(course.pool, count, now_ms=now_ms, forced=forced, passed=passed)
        course.drawn += drawn.count
        course.following = drawn.first + drawn.count
        return drawn

    def _own_turns(self, course: DispatchPlan, count: int) -> SequenceRange:
        """Turns by this container's own count."""
        key = _key(course)
        with self._lock:
            first = self._own.get(key, 0)
            self._own[key] = first + count
            self._own.move_to_end(key)
            while len(self._own) > _REMEMBERED:
                self._own.popitem(last=False)
        course.following = first + count
        return SequenceRange(count, first)

    # --- which are empty --------------------------------------------------------------------------

    def _seen(self, name: str, *, empty: bool) -> None:
        with self._lock:
            if not empty:
                self._empty.pop(name, None)
                return
            self._empty[name] = self._clock.now_ms()
            self._empty.move_to_end(name)
            while len(self._empty) > _REMEMBERED:
                self._empty.popitem(last=False)

    def _likely(self, names: Iterable[str]) -> list[str]:
        """Those that were not seen empty a moment ago, or all, if all were."""
        since_ms = self._clock.now_ms() - _EMPTY_MS
        known = list(names)
        with self._lock:
            likely = [name for name in known if self._empty.get(name, since_ms) <= since_ms]
        return likely or known


def _key(course: DispatchPlan) -> tuple[object, ...]:
    return course.turns.queues, course.strategy, course.turns.weights
