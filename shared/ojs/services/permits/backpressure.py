"""The bounds of queues: who may enter, and what happens when there is no room (backpressure seed).

reject       refuse at once
block        wait for room, as long as the caller allows
drop_oldest  discard the oldest job in line

A push that waits looks again and again. Each look begins anew, with the queue as it is then, and
not as it was when the request came.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from ojs.clock import Clock
from ojs.domain.errors import BackendError, BackendUnavailable, OjsError, QueueFull
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.queue.config import BLOCK, DROP_OLDEST
from ojs.domain.queue.queue import Queue
from ojs.store.jobs.records import JobStore
from ojs.store.permits.counters import BoundReached, CounterValue, Gates
from ojs.store.table.errors import LostRace

# API Gateway gives up after 29 s.
MAX_BLOCK_MS = 25_000
_FIRST_LOOK_MS = 100
_LOOK_EVERY_MS = 1_000
_TRIES = 8
# A batch has no more jobs; more than these do not give way at once.
_MOST_DROPPED = 1_000
_UNKNOWN_RETRY_S, _LONGEST_RETRY_S = 5, 60
T = TypeVar("T")


@dataclass(frozen=True)
class _CapacityRequest:
    """What one queue is asked to take."""

    queue: Queue
    count: int
    size: int
    job_type: str

    @property
    def fits_at_all(self) -> bool:
        """Whether there would be room if the queue were empty."""
        most, space = self.queue.config.max_size, self.queue.config.max_size_bytes
        return (most is None or self.count <= most) and (space is None or self.size <= space)

    def beyond(self, level: CounterValue) -> tuple[int, int]:
        """Jobs and bytes that must go from the queue first."""
        most, space = self.queue.config.max_size, self.queue.config.max_size_bytes
        count = 0 if most is None else max(0, level.count + self.count - most)
        return count, 0 if space is None else max(0, level.size + self.size - space)


@dataclass(frozen=True)
class QueuePressure:
    """How full a queue is, beyond its warning threshold: jobs, their bound, and the fraction."""

    depth: int
    bound: int
    fraction: float


@dataclass
class Reservation:
    """Room that was reserved, by queue, with the level of each gate after it."""

    rooms: list[_CapacityRequest] = field(default_factory=list)
    levels: dict[str, CounterValue] = field(default_factory=dict)
    kept: Sequence[Job] = ()

    def keep(self, stored: Sequence[Job]) -> None:
        """These jobs take their room; that of all others is given back."""
        self.kept = stored

    def pressure(self, queue: str) -> QueuePressure | None:
        """Whether the queue should be said to be filling up (backpressure seed, section 7.3)."""
        config = next((r.queue.config for r in self.rooms if r.queue.name == queue), None)
        if config is None:
            return None
        level = self.levels[queue]
        for used, bound in (
            (level.count, config.max_size),
            (level.size, config.max_size_bytes),
        ):
            if bound is not None and used >= bound * config.warning_threshold:
                return QueuePressure(used, bound, min(1.0, used / bound))
        return None


class NoRoomYet(Exception):
    """A queue has no room, and its strategy is to wait for some; see `QueueBounds.wait`."""

    def __init__(self, room: _CapacityRequest, level: CounterValue) -> None:
        super().__init__(room.queue.name)
        self.room = room
        self.level = level


class QueueBounds:
    """Guards the bounded queues."""

    def __init__(
        self,
        gates: Gates,
        jobs: JobStore,
        clock: Clock,
        *,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._gates = gates
        self._jobs = jobs
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    def enter(
        self,
        jobs: Sequence[Job],
        queues: Mapping[str, Queue],
        *,
        waits: bool = False,
        drops: bool = True,
        copies: bool = False,
        may_enter: Callable[[], None] = lambda: None,
    ) -> Reservation:
        """Reserve room for all of these jobs, in every bounded queue they go to, or for none.

        Where a queue's strategy is `block`, raises NoRoomYet for a caller that `waits`, if the jobs
        would have room in the empty queue. Without `drops` no other job gives way. For `copies` of
        dead letters others do, and nothing else, whatever the strategy; they are refused only when
        too few wait. `may_enter` is asked before any job gives way, and raises what the push is
        refused for. Raises QueueFull, BackendUnavailable.
        """
        rooms = _rooms(jobs, queues)
        if not rooms:
            return Reservation()
        full, room = self._all(rooms, drops=drops, copies=copies, may_enter=may_enter)
        if isinstance(full, Reservation):
            return full
        if waits and room.queue.config.overflow_policy == BLOCK and room.fits_at_all:
            raise NoRoomYet(room, full.level)
        raise self._refusal(room, full.level)

    def wait(self, look: Callable[[], T], wait_ms: int) -> T:
        """What `look` returns, which is called again as long as it raises NoRoomYet.

        It is called at once, ever less often after that, and for the last time when `wait_ms` are
        over. Raises QueueFull then, with the numbers of the last look, and whatever `look` raises.
        """
        until_ms = self._clock.now_ms() + wait_ms
        pause_ms = _FIRST_LOOK_MS
        while True:
            try:
                return look()
            except NoRoomYet as full:
                left_ms = until_ms - self._clock.now_ms()
                if left_ms <= 0:
                    raise self._refusal(full.room, full.level) from None
            # Never in step with other pushes that wait.
            self._sleep(min(left_ms, pause_ms * (0.5 + self._chance() / 2)) / 1_000)
            pause_ms = min(2 * pause_ms, _LOOK_EVERY_MS)

    @contextmanager
    def room(
        self,
        jobs: Sequence[Job],
        queues: Mapping[str, Queue],
        *,
        waits: bool = False,
        drops: bool = True,
        copies: bool = False,
        may_enter: Callable[[], None] = lambda: None,
    ) -> Iterator[Reservation]:
        """Room for these jobs while they are stored; what is not kept is given back after.

        The arguments, and what is raised for want of room, are those of `enter`. When the store
        fails it is unknown whether the jobs are stored: then the room counts as taken.
        """
        entry = self.enter(
            jobs, queues, waits=waits, drops=drops, copies=copies, may_enter=may_enter
        )
        try:
            yield entry
        except BackendError:
            raise
        except OjsError:
            self.leave(entry)
            raise
        except LostRace as lost:
            # After a repetition they may be stored, and have moved on: unknown means taken.
            if not lost.repeated:
                self.leave(entry)
            raise
        self.leave(entry)

    def leave(self, entry: Reservation) -> None:
        """Give back what was reserved, but for what is kept."""
        kept: dict[str, tuple[int, int]] = {}
        for job in entry.kept:
            count, size = kept.get(job.queue, (0, 0))
            kept[job.queue] = (count + 1, size + (job.held or 0))
        for room in entry.rooms:
            count, size = kept.get(room.queue.name, (0, 0))
            if room.count > count:
                self._release(room, room.count - count, room.size - size)

    def _all(
        self,
        rooms: Sequence[_CapacityRequest],
        *,
        drops: bool,
        copies: bool,
        may_enter: Callable[[], None],
    ) -> tuple[Reservation | BoundReached, _CapacityRequest]:
        """Room in all queues, or why not and in which; nothing is kept then, and none gave way."""

        def gives(room: _CapacityRequest) -> bool:
            return drops and (copies or room.queue.config.overflow_policy == DROP_OLDEST)

        entry = Reservation()
        wanting = rooms
        for tried in count():
            full = self._take(entry, wanting, gives)
            giving: list[tuple[_CapacityRequest, CounterValue, Sequence[Job]]] = []
            # Nobody gives way for what is refused in the end: each queue is asked first.
            for room, refusal in full:
                oldest = None
                if gives(room) and tried < _TRIES:
                    oldest = self._oldest(room, refusal.level, spare=tried, copies=copies)
                elif copies:
                    # Some wait, but others were quicker each time: no reason to have none of this.
                    raise BackendUnavailable("Others are coming into this queue; try again.")
                if oldest is None:
                    self.leave(entry)
                    return refusal, room
                giving.append((room, refusal.level, oldest))
            if not giving:
                break
            try:
                may_enter()
            except Exception:
                self.leave(entry)
                raise
            for room, level, oldest in giving:
                self._drop(room, level, oldest)
            wanting = [room for room, _ in full]
        return entry, rooms[-1]

    def _take(
        self,
        entry: Reservation,
        rooms: Sequence[_CapacityRequest],
        gives: Callable[[_CapacityRequest], bool],
    ) -> list[tuple[_CapacityRequest, BoundReached]]:
        """Reserve what there is; those that are full, and only the one where nobody `gives` way."""
        full: list[tuple[_CapacityRequest, BoundReached]] = []
        for room in rooms:
            try:
                entry.levels[room.queue.name] = self._reserve(room)
            except BoundReached as refusal:
                if not gives(room):
                    return [(room, refusal)]
                full.append((room, refusal))
            else:
                entry.rooms.append(room)
        return full

    def _reserve(self, room: _CapacityRequest) -> CounterValue:
        config = room.queue.config
        return self._gates.reserve(
            room.queue.name,
            count=room.count,
            size=room.size,
            max_count=config.max_size,
            max_size=config.max_size_bytes,
            warn_at=config.warning_threshold,
            now_ms=self._clock.now_ms(),
        )

    def _release(self, room: _CapacityRequest, count: int, size: int) -> None:
        self._gates.release(room.queue.name, count=count, size=size, now_ms=self._clock.now_ms())

    def _oldest(
        self, room: _CapacityRequest, level: CounterValue, *, spare: int, copies: bool
    ) -> Sequence[Job] | None:
        """The oldest jobs in line, as many as stand in the way; None where that makes no room.

        None of them, to try again, where the index tells of jobs that have left the line: `spare`
        more are looked at then.
        """
        jobs, size = room.beyond(level)
        if not room.fits_at_all or jobs > _MOST_DROPPED:
            return None
        # As if all were of one size; some more where those in front are smaller than that.
        alike = math.ceil(size * level.count / level.size) if size and level.size else 0
        looked_at = min(max(jobs, alike) + spare, _MOST_DROPPED)
        while True:
            found = self._jobs.oldest(
                room.queue.name, room.queue.lanes, limit=looked_at, copies=copies
            )
            heads = self._jobs.heads(found)
            line = [heads[job_id] for job_id in found if job_id in heads]
            line = [j for j in line if j.state is State.AVAILABLE and j.queue == room.queue.name]
            freed = 0
            for number, job in enumerate(line, start=1):
                freed += _bytes(job)
                if number >= jobs and freed >= size:
                    return line[:number]
            if len(line) < len(found):
                return ()
            if len(found) < looked_at or looked_at == _MOST_DROPPED:
                return None
            looked_at = min(4 * looked_at, _MOST_DROPPED)

    def _drop(self, room: _CapacityRequest, level: CounterValue, oldest: Sequence[Job]) -> None:
        loose = []
        for job in oldest:
            try:
                after, failure = lifecycle.drop(job, now_ms=self._clock.now_ms())
                self._jobs.replace(job, after, failure=failure)
            except (LostRace, OjsError):
                # It was fetched or cancelled meanwhile: that may have made room as well.
                continue
            if job.held is None:
                loose.append(_bytes(job))
        if loose:
            # Nobody lets these go: they were there before the bound. Were they not told of, the
            # next ones would give way, too, and the push be refused all the same. A sweep that
            # counted meanwhile knows of them, and then this is not written.
            self._gates.recount(
                room.queue.name,
                level,
                loose=max(0, level.loose - len(loose)),
                loose_bytes=max(0, level.loose_bytes - sum(loose)),
                drain=None,
            )

    def _refusal(self, room: _CapacityRequest, level: CounterValue) -> QueueFull:
        config = room.queue.config
        by_count = config.max_size is not None and level.count + room.count > config.max_size
        unit = "jobs" if by_count or config.max_size_bytes is None else "bytes"
        depth = level.count if unit == "jobs" else level.size
        bound = (config.max_size if unit == "jobs" else config.max_size_bytes) or 0
        self._gates.refused(
            room.queue.name,
            count=room.count,
            depth=depth,
            bound=bound,
            job_type=room.job_type,
            policy=config.overflow_policy,
            now_ms=self._clock.now_ms(),
        )
        return QueueFull(
            room.queue.name,
            depth=depth,
            bound=bound,
            strategy=config.overflow_policy,
            unit=unit,
            retry_after_s=_retry_after_s(level, room.count),
        )


def _rooms(jobs: Sequence[Job], queues: Mapping[str, Queue]) -> list[_CapacityRequest]:
    """What each bounded queue is asked to take, in order of name."""
    asked: dict[str, _CapacityRequest] = {}
    for job in jobs:
        if job.held is None:
            continue
        before = asked.get(job.queue) or _CapacityRequest(queues[job.queue], 0, 0, job.type)
        asked[job.queue] = _CapacityRequest(
            before.queue, before.count + 1, before.size + job.held, before.job_type
        )
    return [asked[name] for name in sorted(asked)]


def _bytes(job: Job) -> int:
    """What a job counts for under a bound of bytes."""
    return job.held or job.size


def _retry_after_s(level: CounterValue, count: int) -> int:
    """When there may be room again, from how fast jobs left lately."""
    if not level.drain:
        return _UNKNOWN_RETRY_S
    return max(1, min(_LONGEST_RETRY_S, math.ceil(60 * count / level.drain)))
