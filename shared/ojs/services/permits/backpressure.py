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
from ojs.domain.queue.queue import Queue
from ojs.services.jobs.transitions import JobChanges
from ojs.store.jobs.records import JobStore
from ojs.store.permits.counter_items import CounterValue
from ojs.store.permits.depth_counter import BoundReached, DepthCounter
from ojs.store.table.errors import LostRace, NotDone

# API Gateway gives up after 29 s.
MAX_BLOCK_MS = 25_000
_FIRST_PAUSE_MS = 100
_LONGEST_PAUSE_MS = 1_000
_TRIES = 8
# A batch has no more jobs; no more are dropped at once.
_MOST_DROPPED = 1_000
_UNKNOWN_RETRY_S, _LONGEST_RETRY_S = 5, 60
T = TypeVar("T")


@dataclass(frozen=True)
class _CapacityRequest:
    """The jobs and bytes that one queue should take."""

    queue: Queue
    count: int
    size: int
    job_type: str

    @property
    def fits_at_all(self) -> bool:
        """Whether there would be room if the queue were empty."""
        most, space = self.queue.config.max_size, self.queue.config.max_size_bytes
        return (most is None or self.count <= most) and (space is None or self.size <= space)

    def beyond(self, value: CounterValue) -> tuple[int, int]:
        """Jobs and bytes that must leave the queue first."""
        most, space = self.queue.config.max_size, self.queue.config.max_size_bytes
        count = 0 if most is None else max(0, value.count + self.count - most)
        return count, 0 if space is None else max(0, value.size + self.size - space)


@dataclass(frozen=True)
class QueuePressure:
    """How full a queue is, beyond its warning threshold: jobs, their bound, and the fraction."""

    depth: int
    bound: int
    fraction: float


@dataclass
class Reservation:
    """Room that was reserved, by queue, and what each depth counter showed after it."""

    requests: list[_CapacityRequest] = field(default_factory=list)
    values: dict[str, CounterValue] = field(default_factory=dict)
    kept: Sequence[Job] = ()

    def keep(self, stored: Sequence[Job]) -> None:
        """Keep the room of these jobs, which were stored; that of all others is released."""
        self.kept = stored

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


class NoRoomYet(Exception):
    """A queue has no room, and its policy is to wait for some; see `QueueBounds.wait`."""

    def __init__(self, request: _CapacityRequest, value: CounterValue) -> None:
        super().__init__(request.queue.name)
        self.request = request
        self.value = value


class QueueBounds:
    """Reserves room in bounded queues; unbounded queues cost nothing here."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        changes: JobChanges,
        clock: Clock,
        depth: DepthCounter,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._depth = depth
        self._jobs = jobs
        self._changes = changes
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

        Where a queue's policy is `block`, raises NoRoomYet for a caller that `waits`, if the jobs
        would have room in the empty queue. Without `drops` no other job is dropped. `copies` of
        dead letters make other copies drop, and nothing else, whatever the policy; they are refused
        only when too few copies are in line. `may_enter` is called before any job is dropped, and
        raises what the push is refused for. Raises QueueFull, BackendUnavailable.
        """
        requests = _requests(jobs, queues)
        if not requests:
            return Reservation()
        full, request = self._all(requests, drops=drops, copies=copies, may_enter=may_enter)
        if isinstance(full, Reservation):
            return full
        if (
            waits
            and request.queue.config.overflow_policy.allows(waiting=True)
            and request.fits_at_all
        ):
            raise NoRoomYet(request, full.value)
        raise self._refusal(request, full.value)

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
            except NoRoomYet as full:
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
        waits: bool = False,
        drops: bool = True,
        copies: bool = False,
        may_enter: Callable[[], None] = lambda: None,
    ) -> Iterator[Reservation]:
        """Room for these jobs while they are stored; what is not kept is released afterwards.

        Arguments and exceptions are those of `enter`. When the store fails without an answer it is
        unknown whether the jobs are stored: then the room stays reserved.
        """
        reservation = self.enter(
            jobs, queues, waits=waits, drops=drops, copies=copies, may_enter=may_enter
        )
        try:
            yield reservation
        except OjsError as error:
            if isinstance(error, NotDone) or not isinstance(error, BackendError):
                self.leave(reservation)
            raise
        except LostRace as lost:
            # After a repetition they may be stored, and have moved on: the room stays reserved.
            if not lost.repeated:
                self.leave(reservation)
            raise
        self.leave(reservation)

    def leave(self, reservation: Reservation) -> None:
        """Release what was reserved, except for what is kept."""
        kept: dict[str, tuple[int, int]] = {}
        for job in reservation.kept:
            count, size = kept.get(job.queue, (0, 0))
            kept[job.queue] = (count + 1, size + (job.reserved_bytes or 0))
        for request in reservation.requests:
            count, size = kept.get(request.queue.name, (0, 0))
            if request.count > count:
                self._depth.release(
                    request.queue.name,
                    count=request.count - count,
                    size=request.size - size,
                    now_ms=self._clock.now_ms(),
                )

    def _all(
        self,
        requests: Sequence[_CapacityRequest],
        *,
        drops: bool,
        copies: bool,
        may_enter: Callable[[], None],
    ) -> tuple[Reservation | BoundReached, _CapacityRequest]:
        """Reserve room in all queues; or which queue is full, with nothing reserved or dropped."""

        def may_drop(request: _CapacityRequest) -> bool:
            policy = request.queue.config.overflow_policy
            return drops and (copies or policy.allows(dropping=True))

        reservation = Reservation()
        left = requests
        for tried in count():
            full = self._take(reservation, left, may_drop)
            drop: list[tuple[_CapacityRequest, CounterValue, Sequence[Job]]] = []
            # Check every queue before dropping anything, so that a batch that will be refused does
            # not discard jobs.
            for request, refusal in full:
                oldest = None
                if may_drop(request) and tried < _TRIES:
                    oldest = self._oldest(request, refusal.value, spare=tried, copies=copies)
                elif copies:
                    # Copies are in line, but other pushes were quicker each time: not a refusal.
                    raise BackendUnavailable("Others are coming into this queue; try again.")
                if oldest is None:
                    self.leave(reservation)
                    return refusal, request
                drop.append((request, refusal.value, oldest))
            if not drop:
                break
            try:
                may_enter()
            except Exception:
                self.leave(reservation)
                raise
            for request, value, oldest in drop:
                self._drop(request, value, oldest)
            left = [request for request, _ in full]
        return reservation, requests[-1]

    def _take(
        self,
        reservation: Reservation,
        requests: Sequence[_CapacityRequest],
        may_drop: Callable[[_CapacityRequest], bool],
    ) -> list[tuple[_CapacityRequest, BoundReached]]:
        """Reserve room in each queue. Returns the full queues; if one of them may not drop jobs,
        only that one.
        """
        full: list[tuple[_CapacityRequest, BoundReached]] = []
        for request in requests:
            try:
                config = request.queue.config
                reservation.values[request.queue.name] = self._depth.reserve(
                    request.queue.name,
                    count=request.count,
                    size=request.size,
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
                reservation.requests.append(request)
        return full

    def _oldest(
        self, request: _CapacityRequest, value: CounterValue, *, spare: int, copies: bool
    ) -> Sequence[Job] | None:
        """The oldest jobs in line that must be dropped; None if dropping makes no room.

        Returns an empty list if the index was stale; the caller retries and looks at `spare` more
        entries.
        """
        jobs, size = request.beyond(value)
        if not request.fits_at_all or jobs > _MOST_DROPPED:
            return None
        # Assumes jobs of the mean size; reads more if those in front are smaller.
        by_size = math.ceil(size * value.count / value.size) if size and value.size else 0
        limit = min(max(jobs, by_size) + spare, _MOST_DROPPED)
        while True:
            found = self._jobs.index.oldest(
                request.queue.name, request.queue.lanes, limit=limit, copies=copies
            )
            records = self._jobs.read_records(found)
            line = [records[job_id] for job_id in found if job_id in records]
            line = [j for j in line if j.state is State.AVAILABLE and j.queue == request.queue.name]
            freed = 0
            for number, job in enumerate(line, start=1):
                freed += _bytes(job)
                if number >= jobs and freed >= size:
                    return line[:number]
            if len(line) < len(found):
                return ()
            if len(found) < limit or limit == _MOST_DROPPED:
                return None
            limit = min(4 * limit, _MOST_DROPPED)

    def _drop(self, request: _CapacityRequest, value: CounterValue, oldest: Sequence[Job]) -> None:
        untracked = []
        for job in oldest:
            try:
                after, failure = lifecycle.drop(job, now_ms=self._clock.now_ms())
                self._changes.replace(job, after, failure=failure)
            except (LostRace, OjsError):
                # The job was fetched or cancelled meanwhile: that may have made room as well.
                continue
            if job.reserved_bytes is None:
                untracked.append(_bytes(job))
        if untracked:
            # Jobs stored before the bound existed are untracked, so that dropping them does not
            # lower the counter. Subtract them here, or the push is refused all the same, and the
            # next one drops jobs again. If a sweep recounted meanwhile, this is not written.
            self._depth.recount(
                request.queue.name,
                value,
                untracked=max(0, value.untracked - len(untracked)),
                untracked_bytes=max(0, value.untracked_bytes - sum(untracked)),
                drain=None,
            )

    def _refusal(self, request: _CapacityRequest, value: CounterValue) -> QueueFull:
        config = request.queue.config
        by_count = config.max_size is not None and value.count + request.count > config.max_size
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


def _requests(jobs: Sequence[Job], queues: Mapping[str, Queue]) -> list[_CapacityRequest]:
    """The request to each bounded queue, in order of name."""
    requests: dict[str, _CapacityRequest] = {}
    for job in jobs:
        if job.reserved_bytes is None:
            continue
        before = requests.get(job.queue) or _CapacityRequest(queues[job.queue], 0, 0, job.type)
        requests[job.queue] = _CapacityRequest(
            before.queue, before.count + 1, before.size + job.reserved_bytes, before.job_type
        )
    return [requests[name] for name in sorted(requests)]


def _bytes(job: Job) -> int:
    """The bytes a job counts as."""
    return job.reserved_bytes or job.size


def _retry_after_s(value: CounterValue, count: int) -> int:
    """In how many seconds there may be room, by how fast jobs left lately."""
    if not value.drain:
        return _UNKNOWN_RETRY_S
    return max(1, min(_LONGEST_RETRY_S, math.ceil(60 * count / value.drain)))
