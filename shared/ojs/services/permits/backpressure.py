"""Reserves space in bounded queues and applies the overflow policy of a full queue.

Policies:
    reject: Return an error immediately.
    block: Wait for space until the caller's deadline.
    drop_oldest: Discard the oldest available job.

A blocked enqueue re-reads the queue's configuration before each attempt.
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

# API Gateway ends a request after 29 s.
MAX_BLOCK_MS = 25_000
_FIRST_PAUSE_MS = 100
_LONGEST_PAUSE_MS = 1_000
# Maximum number of jobs in a batch. One enqueue never needs to drop more.
_MOST_DROPPED = 1_000
# Jobs dropped in one transaction: each is two writes.
_AT_ONCE = MAX_TRANSACTION // 2
# Maximum number and duration of an enqueue's attempts to drop jobs before other requests do.
_TRIES = 16
_DROPPING_MS = 20_000
# After lost races, an enqueue drops jobs that it selects at random among 4, 16, or 64 times the
# required number.
_SPREAD, _LARGEST_SPREAD = 4, 64
_FIRST_RETRY_S, _LONGEST_RETRY_PAUSE_S = 0.02, 0.4
_UNKNOWN_RETRY_S, _LONGEST_RETRY_S = 5, 60
# Times (ms) for a write of new jobs without a response: the time after which the write can't take
# effect, and the time after the reservation during which a removal of the job records is recorded.
IN_DOUBT_MS, DOUBTED_MS = 30_000, 90_000
_MOST_DOUBTS = 100
T = TypeVar("T")


@record(frozen=True)
class _CapacityRequest:
    """The space that one queue needs: `count` jobs of `size` bytes in total.

    `wanted` is the space to reserve. It excludes the space of jobs that leave the queue in
    the write that stores the new ones.
    """

    queue: Queue
    count: int
    size: int
    job_type: str
    wanted: CapacityUse

    def beyond(self, value: DepthValue, taken: CapacityUse) -> tuple[int, int]:
        """Return how many jobs and bytes must leave the queue first, if the counter has `value`.

        `taken` is the space that is already reserved for this request.
        """
        config = self.queue.config
        return (
            _beyond(value.count, self.wanted.count - taken.count, config.max_size),
            _beyond(value.size, self.wanted.size - taken.size, config.max_size_bytes),
        )


def _beyond(used: int, more: int, bound: int | None) -> int:
    return 0 if bound is None or more <= 0 else max(0, used + more - bound)


@record(frozen=True)
class QueuePressure:
    """The depth of a queue beyond its warning threshold: jobs or bytes, limit, and ratio."""

    depth: int
    bound: int
    fraction: float


@record
class Reservation:
    """Reserved space by queue, and the value of each depth counter after the reservation.

    `freed` are counted jobs that finished in the write that stored the `kept` jobs.
    """

    requests: Sequence[_CapacityRequest] = ()
    taken: dict[str, CapacityUse] = field(default_factory=dict)
    values: dict[str, DepthValue] = field(default_factory=dict)
    kept: Sequence[Job] = ()
    freed: Sequence[Job] = ()

    def keep(self, stored: Sequence[Job], freed: Sequence[Job] = ()) -> None:
        """Keep the space of the stored jobs, and release all other space.

        The space of the `freed` jobs is released as well, except the part that stored jobs use
        again.
        """
        self.kept, self.freed = stored, freed

    def room(self, queue: str) -> CapacityUse:
        """Return the space that is reserved in a queue."""
        return self.taken.get(queue, CapacityUse())

    def take(self, queue: str, room: CapacityUse) -> None:
        """Record that more space is reserved in a queue."""
        self.taken[queue] = self.room(queue).with_all(room)

    def left(self) -> Mapping[str, CapacityUse]:
        """Return the space to release, by queue."""
        left = dict(self.taken)
        for jobs, sign in ((self.kept, -1), (_leaving(self.freed, self.kept), 1)):
            for job in jobs:
                room = left.get(job.queue, CapacityUse())
                left[job.queue] = room.with_all(CapacityUse.of([job]), sign)
        return left

    def pressure(self, queue: str) -> QueuePressure | None:
        """Return the depth of the queue if it exceeds the warning threshold, otherwise None."""
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
    """A reservation with unknown outcome: the jobs might be stored or not.

    `job` is the first of the jobs. From `ripe_ms` (ms) on, the write of the jobs can't take effect.
    """

    reservation: Reservation
    job: Job
    reserved_ms: int
    ripe_ms: int


class CapacityPending(Exception):
    """A full queue with the policy `block`. `QueueBounds.wait` repeats the attempt."""

    def __init__(self, request: _CapacityRequest, value: DepthValue) -> None:
        super().__init__(request.queue.name)
        self.request = request
        self.value = value


class QueueBounds:
    """Reserves space in bounded queues. Queues without a size limit need no request here."""

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
        """Create the service.

        Args:
            jobs: Store of the job records.
            clock: Source of the current time.
            depth: Store of the depth counters.
            stored: Counts the jobs of a queue in the index. It may stop soon after the given
                number.
            sleep: Waits for a time in seconds.
            chance: Returns a random number from 0 to 1.
            ended: Called with each job that is dropped.
        """
        self._ended = ended
        self._depth = depth
        self._stored = stored
        self._jobs = jobs
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        # Reservations with unknown outcome, the oldest first.
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
        """Reserve space for all `jobs` in their bounded queues, or for none of them.

        Args:
            jobs: New jobs that are not stored yet.
            queues: Configuration of each queue, by name.
            replaced: Jobs that the same write removes. Their space in the same queue is reused.
            waits: Whether the caller can wait. Applies to queues with the policy `block`.
            drops: Whether `drop_oldest` may discard other jobs.
            copies: Whether the jobs are copies of dead letters. Copies displace only other copies,
                regardless of the policy.
            may_enter: Called before a job is discarded. Can raise an error to reject the request.

        Returns:
            The reservation. Call `leave` to release the space of the jobs that are not stored.

        Raises:
            QueueFull: A queue is full and its policy rejects the jobs.
            CapacityPending: A queue is full, its policy is `block`, and `waits` is true.
            BatchTooLarge: The jobs don't fit into the empty queue by number.
            PayloadTooLarge: The jobs don't fit into the empty queue by bytes.
            BackendUnavailable: DynamoDB rejected a write. Nothing is reserved.
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
        """Raise BatchTooLarge or PayloadTooLarge for jobs that don't fit into the empty queue."""
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
        """Return how many more jobs the queue accepts. None if it rejects none for their number."""
        config = queue.config
        if config.max_size is None or config.overflow_policy is OverflowPolicy.DROP_OLDEST:
            return None
        return max(0, config.max_size - self._depth.value(queue.name).count)

    def pause(self, tried: int) -> None:
        """Wait before the next attempt, after `tried` attempts that lost a race."""
        longest = min(_LONGEST_RETRY_PAUSE_S, _FIRST_RETRY_S * 2**tried)
        # A random pause, so that the competing requests don't conflict again.
        self._sleep(longest * (0.5 + self._chance() / 2))

    def wait(self, attempt: Callable[[], T], wait_ms: int) -> T:
        """Call `attempt` repeatedly while it raises CapacityPending, and return its result.

        The first call is immediate. The pauses grow from about 100 ms to about 1 s. The last call
        is made when `wait_ms` milliseconds have passed. If it fails too, raises QueueFull with the
        values of that attempt. Other errors of `attempt` are raised immediately.
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
            # A random pause, so that blocked requests don't all retry at the same time.
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
        """Reserve space while the jobs are stored, and release unused space afterwards.

        If the store fails without a response, it is unknown whether the jobs are stored. The
        space then stays reserved until a later request of this container, or a sweep, finds
        that they are not.

        Args:
            jobs: See `enter`.
            queues: See `enter`.
            replaced: See `enter`.
            waits: See `enter`.
            drops: See `enter`.
            copies: See `enter`.
            may_enter: See `enter`.

        Yields:
            The reservation. Call its `keep` with the jobs that were stored.

        Raises:
            OjsError: The errors of `enter`.
            CapacityPending: A queue is full, its policy is `block`, and `waits` is true.
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
                # A part of the space belongs to the replaced jobs, so the sweep corrects it.
                self._doubt(reservation, jobs, reserved_ms)
            raise
        except LostRace as lost:
            # After a retried write, the jobs may be stored and have changed since. Keep the
            # space.
            if not lost.repeated:
                self.leave(reservation)
            raise
        self.leave(reservation)

    def leave(self, reservation: Reservation, *, doubted_since_ms: int | None = None) -> None:
        """Release the space of the reservation that was not kept.

        For a reservation with unknown outcome, `doubted_since_ms` is its time
        (`DepthCounter.release`).
        """
        for queue, room in reservation.left().items():
            if any(map(any, room.parts.values())):
                now_ms = self._clock.now_ms()
                self._depth.release(queue, room, now_ms=now_ms, doubted_since_ms=doubted_since_ms)

    def _doubt(self, reservation: Reservation, jobs: Sequence[Job], reserved_ms: int) -> None:
        """Store a reservation as unresolved, if the outcome of the write of its new jobs is
        unknown.
        """
        job = self._jobs.unsettled.get(jobs[0].id) if jobs else None
        if job is not None and not reservation.kept:
            ripe_ms = self._clock.now_ms() + IN_DOUBT_MS
            self._doubts.append(_UnresolvedReservation(reservation, job, reserved_ms, ripe_ms))

    def note_leaving(self, job: Job) -> None:
        """Record that a job's record is about to move to another queue.

        Has the effect of a removal.
        """
        if job.reserved_in is not None:
            now_ms = self._clock.now_ms()
            self._depth.note_removal(job.queue, job.reserved_in, now_ms=now_ms)

    def _settle(self) -> None:
        """Release the space of unresolved reservations whose jobs were not stored.

        Only reservations whose write can't take effect are processed. If the outcome can't be
        determined, the sweep corrects the counter.
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
        """Reserve space in all queues. If a queue is full, return it, with nothing reserved."""

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
                # Check every queue before dropping anything, so that a batch that will be rejected
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
                        # Requests that have dropped only some jobs could wait for each other.
                        # Start again.
                        self.leave(reservation)
                        reservation, left = Reservation(requests), requests
                    lost = self._lost(lost, until_ms)
        except (OjsError, LostRace):
            # No new job is stored. Dropped jobs are not restored.
            self.leave(reservation)
            raise

    def _lost(self, lost: int, until_ms: int) -> int:
        """Pause after a round that dropped no job, and return the number of such rounds.

        Other requests dropped or fetched the jobs, which doesn't always free space for this
        request. Raises BackendContended after 16 rounds, or at `until_ms`.
        """
        if lost == _TRIES or self._clock.now_ms() >= until_ms:
            raise BackendContended("Too many concurrent requests for this queue.")
        self.pause(lost)
        return lost + 1

    def _take(
        self,
        reservation: Reservation,
        requests: Sequence[_CapacityRequest],
        may_drop: Callable[[_CapacityRequest], bool],
    ) -> list[tuple[_CapacityRequest, BoundReached]]:
        """Reserve the missing space in each queue, or release the excess.

        Return the full queues. If dropping is not allowed in one of them, return only that queue.
        """
        full: list[tuple[_CapacityRequest, BoundReached]] = []
        for request in requests:
            name, config = request.queue.name, request.queue.config
            missing = request.wanted.with_all(reservation.room(name), -1)
            try:
                # This write is made even if nothing is missing in total, because a job that uses
                # the space of another job can be counted in a different period.
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
        """Return the available jobs that must be dropped. None if dropping frees too little.

        These are the oldest jobs. After rounds that were `lost` to other requests, a random
        selection of old jobs. Returns an empty list if the index was stale, or if other requests
        are about to store jobs that can be dropped. The caller then tries again.
        """
        name = request.queue.name
        taken = reservation.room(name)
        jobs, size = request.beyond(value, taken)
        if jobs > _MOST_DROPPED:
            return None
        if not jobs and not size:
            return ()
        # Assumes jobs of the mean size. Reads more jobs if the oldest ones are smaller.
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
                # Space without stored jobs, which belongs to other requests in progress and to this
                # one.
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
        """Drop jobs of the full queues. Return whether at least one was dropped."""
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
        """Drop jobs and return how many were dropped. Their space moves to the reservation.

        The counter doesn't change. If the function crashes, a sweep finds that this space has
        no job.
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
        # Jobs that were stored before the queue had a size limit are in the untracked part of the
        # counter.
        untracked = min(untracked, value.untracked)
        untracked_bytes = min(untracked_bytes, value.untracked_bytes)
        if untracked and self._depth.take_over(name, value, count=untracked, size=untracked_bytes):
            reservation.take(name, CapacityUse().plus(untracked, untracked_bytes, 0))
        return len(dropped)

    def _drop_some(self, jobs: Sequence[Job]) -> list[Job]:
        """Drop these jobs and return the ones that were dropped.

        Another request fetched, cancelled, or dropped each of the others, or the outcome of the
        write is unknown. In that case the space stays counted until a sweep corrects it.
        """
        now_ms = self._clock.now_ms()
        dropping = [(job, *lifecycle.drop(job, now_ms=now_ms)) for job in jobs]
        # Race with a fetch, a cancellation, or another enqueue that drops the same jobs. The first
        # write wins, and the loser doesn't take the space. An available job has no permits to
        # release.
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
            # The item of an error blocked the transaction. The job is not dropped.
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
    """Raise PayloadTooLarge if `size` exceeds the queue's size limit in bytes.

    Args:
        queue: The queue.
        size: Size of the jobs in bytes.
        field: Request field that the error names.

    Raises:
        PayloadTooLarge: The jobs don't fit into the empty queue.
    """
    limit = queue.config.max_size_bytes
    if limit is not None and size > limit:
        raise PayloadTooLarge(field, size=size, limit=limit, queue=queue.name)


def _requests(
    jobs: Sequence[Job], queues: Mapping[str, Queue], replaced: Sequence[Job]
) -> list[_CapacityRequest]:
    """Return the request to each bounded queue, ordered by name."""
    requests = []
    for name in sorted({job.queue for job in jobs if job.reserved_bytes is not None}):
        entering = [job for job in jobs if job.queue == name]
        room = wanted = CapacityUse.of(entering)
        for job in _leaving(replaced, entering):
            if job.queue == name and job.reserved_bytes is not None:
                # At most the required space is used again. The rest is released when the job has
                # left.
                count, size = min(1, wanted.count), min(job.reserved_bytes, wanted.size)
                wanted = wanted.plus(-count, -size, job.reserved_in or 0)
        first = entering[0].type
        requests.append(_CapacityRequest(queues[name], room.count, room.size, first, wanted))
    return requests


def _leaving(replaced: Sequence[Job], entering: Sequence[Job]) -> list[Job]:
    """Return the jobs whose space is taken over, with a period not later than the new jobs'.

    Clocks differ. In the opposite order, a crash would leave space without a job in an earlier
    period than the job without space, and a sweep would release it.
    """
    latest = max((job.reserved_in or 0 for job in entering), default=0)
    return [
        replace(job, reserved_in=min(job.reserved_in or 0, latest)) if entering else job
        for job in replaced
    ]


def _bytes(job: Job) -> int:
    """Return the bytes that a job counts as."""
    return job.reserved_bytes or job.size


def _retry_after_s(value: DepthValue, count: int) -> int:
    """Return the time (s) until space is probably free, based on the recent rate of departures."""
    if not value.drain:
        return _UNKNOWN_RETRY_S
    return max(1, min(_LONGEST_RETRY_S, math.ceil(60 * count / value.drain)))
