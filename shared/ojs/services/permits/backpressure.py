"""The bounds of queues: reserves room for jobs, and does what a full queue's policy says.

reject       refuse at once
block        wait for room, as long as the caller allows
drop_oldest  discard the oldest job in line

A push that waits tries again and again, each time with the queue as it is then, and not as it was
when the request came.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from typing import TypeVar

from ojs.clock import Clock
from ojs.domain.errors import (
    BackendContended,
    BackendError,
    BatchTooLarge,
    OjsError,
    PayloadTooLarge,
    QueueFull,
)
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.queue.config import OverflowPolicy
from ojs.domain.queue.queue import Queue
from ojs.records import record
from ojs.store.bounds.depth_counter import BoundReached, CapacityUse, DepthCounter, DepthValue
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import LostRace, WriteNotApplied
from ojs.store.table.table import MAX_TRANSACTION

# API Gateway gives up after 29 s.
MAX_BLOCK_MS = 25_000
_FIRST_PAUSE_MS = 100
_LONGEST_PAUSE_MS = 1_000
# A batch has no more jobs; no more are dropped for one push.
_MOST_DROPPED = 1_000
# Jobs dropped in one transaction: each is two writes.
_AT_ONCE = MAX_TRANSACTION // 2
# How often a push looks for jobs to drop that others do not drop first, and for how long.
_TRIES = 16
_DROPPING_MS = 20_000
# Pushes that meet on the same jobs choose at random among so many times what they need.
_SPREAD, _LARGEST_SPREAD = 4, 64
_FIRST_RETRY_S, _LONGEST_RETRY_PAUSE_S = 0.02, 0.4
_UNKNOWN_RETRY_S, _LONGEST_RETRY_S = 5, 60
# After a write of new jobs without an answer: when it takes effect no more, and for how long after
# their room was reserved the removal of their records would be known.
IN_DOUBT_MS, DOUBTED_MS = 30_000, 90_000
_MOST_DOUBTS = 100
T = TypeVar("T")


@record(frozen=True)
class _CapacityRequest:
    """What one queue should take: `count` jobs of `size` bytes in all. `wanted` is the room to
    reserve: theirs, without that of jobs which leave the queue with the very write that stores
    them.
    """

    queue: Queue
    count: int
    size: int
    job_type: str
    wanted: CapacityUse

    def beyond(self, value: DepthValue, taken: CapacityUse) -> tuple[int, int]:
        """Jobs and bytes that must leave the queue first, with this room taken already."""
        config = self.queue.config
        return (
            _beyond(value.count, self.wanted.count - taken.count, config.max_size),
            _beyond(value.size, self.wanted.size - taken.size, config.max_size_bytes),
        )


def _beyond(used: int, more: int, bound: int | None) -> int:
    return 0 if bound is None or more <= 0 else max(0, used + more - bound)


@record(frozen=True)
class QueuePressure:
    """How full a queue is, beyond its warning threshold: jobs, their bound, and the fraction."""

    depth: int
    bound: int
    fraction: float


@record
class Reservation:
    """Room that was reserved, by queue, and what each depth counter showed after it.

    `freed` are counted jobs that ended with the write that stored the `kept` ones.
    """

    requests: Sequence[_CapacityRequest] = ()
    taken: dict[str, CapacityUse] = field(default_factory=dict)
    values: dict[str, DepthValue] = field(default_factory=dict)
    kept: Sequence[Job] = ()
    freed: Sequence[Job] = ()

    def keep(self, stored: Sequence[Job], freed: Sequence[Job] = ()) -> None:
        """Keep the room of these jobs, which were stored; that of all others is released, and that
        of the `freed` ones, as far as it was not taken over.
        """
        self.kept, self.freed = stored, freed

    def room(self, queue: str) -> CapacityUse:
        """What is reserved in a queue."""
        return self.taken.get(queue, CapacityUse())

    def take(self, queue: str, room: CapacityUse) -> None:
        """Note more room in a queue as reserved."""
        self.taken[queue] = self.room(queue).with_all(room)

    def left(self) -> Mapping[str, CapacityUse]:
        """What is to be released, by queue."""
        left = dict(self.taken)
        for jobs, sign in ((self.kept, -1), (_leaving(self.freed, self.kept), 1)):
            for job in jobs:
                room = left.get(job.queue, CapacityUse())
                left[job.queue] = room.with_all(CapacityUse.of([job]), sign)
        return left

    def pressure(self, queue: str) -> QueuePressure | None:
        """How full the queue is, if the caller should be warned."""
        config = next((r.queue.config for r in self.requests if r.queue.name == queue), None)
        if config is None:
            return None
        value = self.values[queue]
        for used, bound in ((value.count, config.max_size), (value.size, config.max_size_bytes)):
            if bound is not None and used >= bound * config.warning_threshold:
                return QueuePressure(used, bound, min(1.0, used / bound))
        return None


@record(frozen=True)
class _UnresolvedReservation:
    """Room of new jobs that are stored or not: the first of them, when their room was reserved, and
    from when on the write of the jobs takes effect no more (ms).
    """

    reservation: Reservation
    job: Job
    reserved_ms: int
    ripe_ms: int


class CapacityPending(Exception):
    """A queue has no room, and its policy is to wait for some; see `QueueBounds.wait`."""

    def __init__(self, request: _CapacityRequest, value: DepthValue) -> None:
        super().__init__(request.queue.name)
        self.request = request
        self.value = value


class QueueBounds:
    """Reserves room in bounded queues; unbounded queues cost nothing here."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        clock: Clock,
        depth: DepthCounter,
        stored: Callable[[Queue, int], int],
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
        ended: Callable[[Job], None] = lambda _: None,
    ) -> None:
        """`stored` counts the jobs that the index shows in a queue, up to so many and a few more;
        `sleep` takes s; `ended` is told of each job that is dropped.
        """
        self._ended = ended
        self._depth = depth
        self._stored = stored
        self._jobs = jobs
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        # In the order of time.
        self._doubts: deque[_UnresolvedReservation] = deque(maxlen=_MOST_DOUBTS)

    def enter(
        self,
        jobs: Sequence[Job],
        queues: Mapping[str, Queue],
        *,
        replaced: Sequence[Job] = (),
        waits: bool = False,
        drops: bool = True,
        copies: bool = False,
        may_enter: Callable[[], None] = lambda: None,
    ) -> Reservation:
        """Reserve room for all of these jobs, in every bounded queue they go to, or for none.

        Jobs that are `replaced` by the write that stores the new ones leave their room to them,
        where both are in one queue.

        Where a queue's policy is `block`, raises NoRoomYet for a caller that `waits`. Without
        `drops` no other job is dropped. `copies` of dead letters make other copies drop, and
        nothing else, whatever the policy; they are refused only when too few copies are in line.
        `may_enter` is called where a queue is full, before any job is dropped, and raises what the
        push is refused for instead. Raises QueueFull, BackendUnavailable, and for what has no room
        in the empty queue either BatchTooLarge or PayloadTooLarge.
        """
        requests = _requests(jobs, queues, replaced)
        if not requests:
            return Reservation()
        self._settle()
        for request in requests:
            self._check_fits(request)
        full, request = self._all(requests, drops=drops, copies=copies, may_enter=may_enter)
        if isinstance(full, Reservation):
            return full
        if waits and request.queue.config.overflow_policy.allows(waiting=True):
            raise CapacityPending(request, full.value)
        raise self._refusal(request, full.value)

    def _check_fits(self, request: _CapacityRequest) -> None:
        """Raise BatchTooLarge or PayloadTooLarge for what would not fit into the empty queue."""
        queue, config = request.queue.name, request.queue.config
        if config.max_size is not None and request.count > config.max_size:
            raise BatchTooLarge(
                queue,
                count=request.count,
                depth=self._depth.value(queue).count,
                bound=config.max_size,
                strategy=config.overflow_policy.value,
            )
        check_size(request.queue, request.size, "body" if request.count == 1 else "jobs")

    def space(self, queue: Queue) -> int | None:
        """For how many more jobs a queue has space; None if it refuses none for their number."""
        config = queue.config
        if config.max_size is None or config.overflow_policy is OverflowPolicy.DROP_OLDEST:
            return None
        return max(0, config.max_size - self._depth.value(queue.name).count)

    def pause(self, tried: int) -> None:
        """Wait before a try that others were quicker with so many times."""
        longest = min(_LONGEST_RETRY_PAUSE_S, _FIRST_RETRY_S * 2**tried)
        # Random, so that those who met do not meet again.
        self._sleep(longest * (0.5 + self._chance() / 2))

    def wait(self, attempt: Callable[[], T], wait_ms: int) -> T:
        """What `attempt` returns, which is called again as long as it raises NoRoomYet.

        It is called at once, ever less often after that, and for the last time when `wait_ms` are
        over. Raises QueueFull then, with the numbers of the last attempt, and whatever `attempt`
        raises.
        """
        until_ms = self._clock.now_ms() + wait_ms
        pause_ms = _FIRST_PAUSE_MS
        while True:
            try:
                return attempt()
            except CapacityPending as full:
                left_ms = until_ms - self._clock.now_ms()
                if left_ms <= 0:
                    raise self._refusal(full.request, full.value) from None
            # Random, so that pushes that wait do not all try at once.
            self._sleep(min(left_ms, pause_ms * (0.5 + self._chance() / 2)) / 1_000)
            pause_ms = min(2 * pause_ms, _LONGEST_PAUSE_MS)

    @contextmanager
    def room(
        self,
        jobs: Sequence[Job],
        queues: Mapping[str, Queue],
        *,
        replaced: Sequence[Job] = (),
        waits: bool = False,
        drops: bool = True,
        copies: bool = False,
        may_enter: Callable[[], None] = lambda: None,
    ) -> Iterator[Reservation]:
        """Room for these jobs while they are stored; what is not kept is released afterwards.

        Arguments and exceptions are those of `enter`. When the store fails without an answer it is
        unknown whether the jobs are stored: then the room stays reserved, until a later request of
        this container, or a sweep, finds that they are not.
        """
        reserved_ms = self._clock.now_ms()
        reservation = self.enter(
            jobs,
            queues,
            replaced=replaced,
            waits=waits,
            drops=drops,
            copies=copies,
            may_enter=may_enter,
        )
        try:
            yield reservation
        except OjsError as error:
            if isinstance(error, WriteNotApplied) or not isinstance(error, BackendError):
                self.leave(reservation)
            elif not replaced:
                # Where they replace others, a part of their room is of those.
                self._doubt(reservation, jobs, reserved_ms)
            raise
        except LostRace as lost:
            # After a repetition they may be stored, and have moved on: the room stays reserved.
            if not lost.repeated:
                self.leave(reservation)
            raise
        self.leave(reservation)

    def leave(self, reservation: Reservation, *, doubted_since_ms: int | None = None) -> None:
        """Release what was reserved, except for what is kept; `doubted_since_ms` as
        `DepthCounter.release` has it.
        """
        for queue, room in reservation.left().items():
            if any(map(any, room.parts.values())):
                now_ms = self._clock.now_ms()
                self._depth.release(queue, room, now_ms=now_ms, doubted_since_ms=doubted_since_ms)

    def _doubt(self, reservation: Reservation, jobs: Sequence[Job], reserved_ms: int) -> None:
        """Note that nobody knows whether these new jobs are stored, if so."""
        job = self._jobs.unsettled.get(jobs[0].id) if jobs else None
        if job is not None and not reservation.kept:
            ripe_ms = self._clock.now_ms() + IN_DOUBT_MS
            self._doubts.append(_UnresolvedReservation(reservation, job, reserved_ms, ripe_ms))

    def note_leaving(self, job: Job) -> None:
        """Note that the record of a job is about to be another queue's, as its removal is noted."""
        if job.reserved_in is not None:
            now_ms = self._clock.now_ms()
            self._depth.note_removal(job.queue, job.reserved_in, now_ms=now_ms)

    def _settle(self) -> None:
        """Release the room of new jobs that were not stored, once they will not be. What cannot be
        known any more is left to the sweep.
        """
        while True:
            try:
                doubt = self._doubts.popleft()
            except IndexError:
                return
            now_ms = self._clock.now_ms()
            if now_ms < doubt.ripe_ms:
                self._doubts.appendleft(doubt)
                return
            if now_ms - doubt.reserved_ms >= DOUBTED_MS:
                continue
            try:
                stored = self._jobs.is_stored(doubt.job)
            except OjsError:
                self._doubts.append(doubt)
                return
            if not stored:
                self.leave(doubt.reservation, doubted_since_ms=doubt.reserved_ms)

    def _all(
        self,
        requests: Sequence[_CapacityRequest],
        *,
        drops: bool,
        copies: bool,
        may_enter: Callable[[], None],
    ) -> tuple[Reservation | BoundReached, _CapacityRequest]:
        """Reserve room in all queues; or which queue is full, with nothing reserved."""

        def may_drop(request: _CapacityRequest) -> bool:
            policy = request.queue.config.overflow_policy
            return drops and (copies or policy.allows(dropping=True))

        reservation = Reservation(requests)
        until_ms = self._clock.now_ms() + _DROPPING_MS
        left, lost = requests, 0
        try:
            while True:
                full = self._take(reservation, left, may_drop)
                if not full:
                    return reservation, requests[-1]
                may_enter()
                victims: list[Sequence[Job]] = []
                # Check every queue before dropping anything, so that a batch that will be refused
                # does not discard jobs.
                for request, refusal in full:
                    oldest = None
                    if may_drop(request):
                        oldest = self._oldest(
                            request, reservation, refusal.value, lost=lost, copies=copies
                        )
                    if oldest is None:
                        self.leave(reservation)
                        return refusal, request
                    victims.append(oldest)
                left = [request for request, _ in full]
                if not self._drop_all(reservation, full, victims, until_ms):
                    if lost:
                        # Pushes that have dropped a part of what they need may wait for each other.
                        self.leave(reservation)
                        reservation, left = Reservation(requests), requests
                    lost = self._lost(lost, until_ms)
        except (OjsError, LostRace):
            # Nothing is stored; what was dropped stays so.
            self.leave(reservation)
            raise

    def _lost(self, lost: int, until_ms: int) -> int:
        """Pause after a round that dropped nothing; how many there were. Others dropped or fetched
        the jobs, which need not have made room for this push. Raises BackendContended.
        """
        if lost == _TRIES or self._clock.now_ms() >= until_ms:
            raise BackendContended("Others are coming into this queue; try again.")
        self.pause(lost)
        return lost + 1

    def _take(
        self,
        reservation: Reservation,
        requests: Sequence[_CapacityRequest],
        may_drop: Callable[[_CapacityRequest], bool],
    ) -> list[tuple[_CapacityRequest, BoundReached]]:
        """Reserve in each queue what is still missing, or release what is too much. Returns the
        full queues; if one of them may not drop jobs, only that one.
        """
        full: list[tuple[_CapacityRequest, BoundReached]] = []
        for request in requests:
            name, config = request.queue.name, request.queue.config
            missing = request.wanted.with_all(reservation.room(name), -1)
            try:
                # Also when nothing is missing in all: a job that takes over the room of another
                # counts in another period.
                reservation.values[name] = self._depth.reserve(
                    name,
                    missing,
                    max_count=config.max_size,
                    max_size=config.max_size_bytes,
                    warn_at=config.warning_threshold,
                    now_ms=self._clock.now_ms(),
                )
            except BoundReached as refusal:
                if not may_drop(request):
                    return [(request, refusal)]
                full.append((request, refusal))
            else:
                reservation.take(name, missing)
        return full

    def _oldest(
        self,
        request: _CapacityRequest,
        reservation: Reservation,
        value: DepthValue,
        *,
        lost: int,
        copies: bool,
    ) -> Sequence[Job] | None:
        """Jobs in line that must be dropped; None if dropping makes no room.

        They are the oldest; after rounds that were `lost` to others, some of the oldest. Returns an
        empty list if the index was stale, or others are about to store jobs that may be dropped
        then; the caller tries again.
        """
        name = request.queue.name
        taken = reservation.room(name)
        jobs, size = request.beyond(value, taken)
        if jobs > _MOST_DROPPED:
            return None
        if not jobs and not size:
            return ()
        # Assumes jobs of the mean size; reads more if those in front are smaller.
        by_size = math.ceil(size * value.count / value.size) if size and value.size else 0
        wanted = min(max(jobs, by_size, 1), _MOST_DROPPED)
        while True:
            limit = min(wanted * min(_SPREAD**lost, _LARGEST_SPREAD), _MOST_DROPPED)
            found = self._jobs.index.oldest(name, request.queue.lanes, limit=limit, copies=copies)
            some = found
            if lost:
                some = sorted(found, key=lambda _: self._chance())[: 2 * wanted]
            records = self._jobs.read_records(some)
            line = [records[job_id] for job_id in some if job_id in records]
            line = [j for j in line if j.state is State.AVAILABLE and j.queue == name]
            freed = 0
            for number, job in enumerate(line, start=1):
                freed += _bytes(job)
                if number >= jobs and freed >= size:
                    return line[:number]
            if len(line) < len(some):
                return ()
            if len(some) == len(found) and (len(found) < limit or limit == _MOST_DROPPED):
                # Room that no job stands for yet: of pushes which are under way, and of this one.
                coming = value.count - taken.count - self._stored(request.queue, value.count)
                return () if coming >= max(1, jobs - len(line)) else None
            wanted = min(4 * wanted, _MOST_DROPPED)

    def _drop_all(
        self,
        reservation: Reservation,
        full: Sequence[tuple[_CapacityRequest, BoundReached]],
        victims: Sequence[Sequence[Job]],
        until_ms: int,
    ) -> bool:
        """Drop jobs of full queues; whether any was."""
        return (
            sum(
                self._drop(reservation, request, refusal.value, oldest, until_ms)
                for (request, refusal), oldest in zip(full, victims, strict=True)
            )
            > 0
        )

    def _drop(
        self,
        reservation: Reservation,
        request: _CapacityRequest,
        value: DepthValue,
        oldest: Sequence[Job],
        until_ms: int,
    ) -> int:
        """Drop jobs; their room is the reservation's, and the counter stays as it is. Returns how
        many were dropped.

        If the function dies, a sweep finds that no job stands for this room.
        """
        name = request.queue.name
        dropped: list[Job] = []
        for start in range(0, len(oldest), _AT_ONCE):
            if self._clock.now_ms() >= until_ms:
                break
            dropped += self._drop_some(oldest[start : start + _AT_ONCE])
        untracked = 0
        untracked_bytes = 0
        for job in dropped:
            if job.reserved_bytes is None:
                untracked, untracked_bytes = untracked + 1, untracked_bytes + job.size
            else:
                reservation.take(name, CapacityUse.of([job]))
        # Jobs stored before the bound existed are in the untracked part of the counter.
        untracked = min(untracked, value.untracked)
        untracked_bytes = min(untracked_bytes, value.untracked_bytes)
        if untracked and self._depth.take_over(name, value, count=untracked, size=untracked_bytes):
            reservation.take(name, CapacityUse().plus(untracked, untracked_bytes, 0))
        return len(dropped)

    def _drop_some(self, jobs: Sequence[Job]) -> list[Job]:
        """Drop these jobs; returns those that were. The others were fetched, cancelled or dropped
        by somebody else, or nobody knows: then their room stays counted until a sweep repairs it.
        """
        now_ms = self._clock.now_ms()
        dropping = [(job, *lifecycle.drop(job, now_ms=now_ms)) for job in jobs]
        # Race: a fetch, a cancel, another push that drops them. Whoever changes a record first has
        # it; the loser takes no room for it. A job in line holds no permits to release.
        try:
            if len(jobs) == 1:
                ((job, after, failure),) = dropping
                self._jobs.replace(job, after, failure=failure)
            else:
                noted = [
                    (job, *self._jobs.noting(job, after, failure))
                    for job, after, failure in dropping
                ]
                self._jobs.replace_all(
                    [(job, after) for job, after, _ in noted],
                    [apart for _, _, apart in noted if apart is not None],
                )
        except LostRace as lost:
            if len(jobs) == 1:
                return []
            left = [job for job, met in zip(jobs, lost.items, strict=False) if met is None]
            if len(left) < len(jobs):
                return self._drop_some(left) if left else []
            # An entry of a history was in the way, which is left as it is.
            return [dropped for job in jobs for dropped in self._drop_some([job])]
        except OjsError:
            return []
        for _, after, _ in dropping:
            self._ended(after)
        return list(jobs)

    def _refusal(self, request: _CapacityRequest, value: DepthValue) -> QueueFull:
        config = request.queue.config
        by_count = (
            config.max_size is not None and value.count + request.wanted.count > config.max_size
        )
        unit = "jobs" if by_count or config.max_size_bytes is None else "bytes"
        depth = value.count if unit == "jobs" else value.size
        bound = (config.max_size if unit == "jobs" else config.max_size_bytes) or 0
        self._depth.refused(
            request.queue.name,
            count=request.count,
            depth=depth,
            bound=bound,
            job_type=request.job_type,
            policy=config.overflow_policy.value,
            now_ms=self._clock.now_ms(),
        )
        return QueueFull(
            request.queue.name,
            depth=depth,
            bound=bound,
            strategy=config.overflow_policy.value,
            unit=unit,
            retry_after_s=_retry_after_s(value, request.count),
        )


def check_size(queue: Queue, size: int, field: str) -> None:
    """Raise PayloadTooLarge for more bytes than a queue may ever hold."""
    limit = queue.config.max_size_bytes
    if limit is not None and size > limit:
        raise PayloadTooLarge(field, size=size, limit=limit, queue=queue.name)


def _requests(
    jobs: Sequence[Job], queues: Mapping[str, Queue], replaced: Sequence[Job]
) -> list[_CapacityRequest]:
    """The request to each bounded queue, in order of name."""
    requests = []
    for name in sorted({job.queue for job in jobs if job.reserved_bytes is not None}):
        entering = [job for job in jobs if job.queue == name]
        room = wanted = CapacityUse.of(entering)
        for job in _leaving(replaced, entering):
            if job.queue == name and job.reserved_bytes is not None:
                # No more than is needed: the rest is released when the job has left.
                count, size = min(1, wanted.count), min(job.reserved_bytes, wanted.size)
                wanted = wanted.plus(-count, -size, job.reserved_in or 0)
        first = entering[0].type
        requests.append(_CapacityRequest(queues[name], room.count, room.size, first, wanted))
    return requests


def _leaving(replaced: Sequence[Job], entering: Sequence[Job]) -> list[Job]:
    """Jobs whose room is taken over, reserved no later than those that enter.

    Clocks differ. The other way round, those who die in between would leave room without a job in
    an earlier period than the job without room, and a sweep would release it.
    """
    latest = max((job.reserved_in or 0 for job in entering), default=0)
    return [
        replace(job, reserved_in=min(job.reserved_in or 0, latest)) if entering else job
        for job in replaced
    ]


def _bytes(job: Job) -> int:
    """The bytes a job counts as."""
    return job.reserved_bytes or job.size


def _retry_after_s(value: DepthValue, count: int) -> int:
    """In how many seconds there may be room, by how fast jobs left lately."""
    if not value.drain:
        return _UNKNOWN_RETRY_S
    return max(1, min(_LONGEST_RETRY_S, math.ceil(60 * count / value.drain)))
