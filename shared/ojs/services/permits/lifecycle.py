"""Permits of jobs: acquired for a fetch, used by the jobs it claims, released when the jobs stop.

Four kinds of limits apply to running jobs: the limits of the job's queue, of its tenant, of its
rate limit key, and of its receiver. The receiver is a worker pool, a worker, or a delivery. A job
in a bounded queue also reserves space there, from its creation until it reaches a final state
(`ojs.services.permits.backpressure`).

The write that starts the run stores each permit in the job record. The permit is released once,
after the write that ends the run. If the release fails, or the process crashes before it, the
semaphore counts one permit too many until a check detects that no job runs with it
(`ojs.store.permits.semaphore`). It never counts too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from ojs.clock import Clock
from ojs.domain.errors import OjsError
from ojs.domain.job.job import Job, JobPermits
from ojs.domain.job.permits import (
    DELIVERY_PERMIT,
    KEY_PERMIT,
    QUEUE_PERMIT,
    WORKER_PERMIT,
    RunPermits,
)
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Queue
from ojs.domain.rate_limit.limiter import CONCURRENCY, RATE, LimitDecision
from ojs.domain.tenants import get_tenant
from ojs.records import record
from ojs.services.permits.key_permits import KeyPermits
from ojs.services.permits.kinds import (
    KINDS,
    Candidate,
    FetchPermits,
    KeyGrant,
    QueueGrant,
    SemaphoreUse,
    semaphore_of,
)
from ojs.services.permits.semaphore_permits import ReleasedPermits, SemaphorePermits
from ojs.store.bounds.depth_counter import CapacityUse, DepthCounter
from ojs.store.permits.counter_items import ANY_VERSION, PermitGrant
from ojs.store.permits.rate_window import RateWindowStore
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.queues.pools import PoolStore
from ojs.store.queues.queues import QueueStore
from ojs.store.table import keys

_COUNTS = {CONCURRENCY: keys.SEMAPHORE, RATE: keys.RATE}


@record(frozen=True)
class Acquired:
    """The permits of all kinds that one candidate of a fetch needs."""

    fetch: FetchPermits
    queue: Queue
    candidate: Candidate
    grant: KeyGrant | None

    @property
    def start_ms(self) -> int | None:
        """The time at which the start was counted. None if no rate limit counts it."""
        starts = None if self.grant is None else self.grant.starts
        return None if starts is None else starts.now_ms

    @property
    def uses(self) -> dict[str, SemaphoreUse]:
        """The semaphores that the candidate has a permit of, by kind."""
        of_key = None if self.grant is None else self.grant.semaphore
        others = (*self.fetch.list_uses(self.queue), of_key)
        return self.fetch.held | {use.kind: use for use in others if use is not None}

    @property
    def noted(self) -> JobPermits:
        """The permits in the form of the job record."""
        job_id, pool = self.candidate.job_id, self.fetch.pool
        shards = {kind: use.permits[job_id] for kind, use in self.uses.items()}
        return JobPermits(
            run=RunPermits(self.fetch.run, shards) if shards else None,
            pool=None if pool is None else pool.name,
        )


class Permits:
    """Acquires and releases the permits and the space of jobs, for all limits."""

    def __init__(
        self,
        *,
        key_permits: KeyPermits,
        semaphores: SemaphorePermits,
        rate_windows: RateWindowStore,
        throttle_states: ThrottleStates,
        depth: DepthCounter,
        queues: QueueStore,
        pools: PoolStore,
        clock: Clock,
    ) -> None:
        self._keys = key_permits
        self._semaphores = semaphores
        self._rate_windows = rate_windows
        self._states = throttle_states
        self._depth = depth
        self._queues = queues
        self._pools = pools
        self._clock = clock
        self.new_run = semaphores.new_run

    # --- for a fetch ------------------------------------------------------------------------

    def hold(self, fetch: FetchPermits, job_ids: Sequence[str]) -> int:
        """Acquire the receiver's permits for the first of these jobs, or for other jobs instead.

        Return the number of jobs for which there are enough permits. Raises OjsError if a call
        fails.
        """
        count = len(job_ids)
        for kind, use in fetch.held.items():
            spare = len(use.unused)
            missing = [job_id for job_id in job_ids if job_id not in use.permits]
            # If all permits of a delivery are in use, the request that releases one of them
            # dispatches.
            full = kind == DELIVERY_PERMIT and use.full
            if count > spare and not full:
                self._semaphores.acquire(use, missing[: count - spare])
            count = min(count, len(use.unused))
        return count

    def prefetch(self, fetch: FetchPermits, candidates: Iterable[Candidate]) -> None:
        """Read the state of the candidates' limits in one call.

        State that was read before is not read again.
        """
        self._keys.prefetch(fetch, candidates)

    def is_blocked(self, fetch: FetchPermits, candidate: Candidate) -> bool:
        """Return whether the candidate's own limit is already known to be reached. No request."""
        return self._keys.is_blocked(fetch, candidate)

    def acquire(
        self,
        fetch: FetchPermits,
        queue: Queue,
        candidate: Candidate,
        following: Sequence[Candidate] = (),
        *,
        wanted: int,
    ) -> Acquired | None:
        """Acquire all permits that a candidate needs.

        The permits of the receiver were acquired before the fetch's sequence numbers (`hold`).
        Also acquires permits for the following jobs. `close` releases the unused ones.

        Args:
            fetch: State of the fetch.
            queue: Queue of the candidate.
            candidate: The job to claim.
            following: Jobs that the fetch may claim after it.
            wanted: Maximum number of jobs to acquire permits for, 1 or more.

        Returns:
            The permits. None if one of the limits is reached.

        Raises:
            OjsError: A read or a write failed.
        """
        job_ids = [candidate.job_id, *(each.job_id for each in following)]
        if not self._admits(fetch, queue, job_ids, wanted):
            return None
        if not all(self._semaphores.ensure(use, job_ids[0]) for use in fetch.held.values()):
            return None
        if candidate.position.limit is None:
            return Acquired(fetch, queue, candidate, None)
        self._keys.prefetch(fetch, [candidate])
        grant = self._keys.acquire(fetch, candidate, following, wanted=wanted)
        return None if grant is None else Acquired(fetch, queue, candidate, grant)

    def commit(self, acquired: Acquired) -> None:
        """Mark the permits as used, before the write of the claim.

        If the outcome of the write is unknown, they are not released. A later check detects leaked
        permits.
        """
        fetch, job_id = acquired.fetch, acquired.candidate.job_id
        for use in acquired.uses.values():
            use.used.add(job_id)
        fetch.open.pop(job_id, None)
        if (grant := fetch.queues.get(acquired.queue.name)) is not None:
            grant.used += 1
            grant.started = job_id

    def rollback(self, acquired: Acquired, *, unknown: bool) -> None:
        """Undo `commit` for a claim that lost its race.

        If `unknown` is true, an earlier attempt of the claim may have succeeded, and the job may
        have finished since. Its end may then have released the permits. So they are left to the
        later check, and the start stays counted.
        """
        if unknown:
            return
        fetch, job_id = acquired.fetch, acquired.candidate.job_id
        for use in acquired.uses.values():
            use.used.discard(job_id)
        self._keys.rollback(fetch, acquired.grant, job_id)
        if (grant := fetch.queues.get(acquired.queue.name)) is not None:
            grant.used -= 1

    def close(self, fetch: FetchPermits, end: Callable[[Job, LimitDecision], None]) -> None:
        """Release the unused permits, and record limits that start or stop throttling.

        `end` postpones or drops the jobs whose limit is reached, if the limit is configured to do
        so.
        """
        for grant in fetch.queues.values():
            # A failure here must not affect the jobs that were claimed.
            with suppress(OjsError):
                self._record_throttling(grant)
        for use in fetch.uses.values():
            if use is not None:
                self._semaphores.release_unused(use)
        for grant in fetch.queues.values():
            if unused := grant.granted - grant.used:
                # If this fails, the starts stay counted until the end of their period.
                with suppress(OjsError):
                    self._count_starts(grant.queue, -unused)
        self._keys.close(fetch, end)

    # --- a queue's own limits -------------------------------------------------------------------

    def _admits(
        self, fetch: FetchPermits, queue: Queue, job_ids: Sequence[str], wanted: int
    ) -> bool:
        """Return whether a queue's limits allow the first of these jobs to be claimed.

        Each fetch requests the permits of a queue once, for up to `wanted` jobs.
        """
        uses = fetch.list_uses(queue)
        if not uses and queue.config.rate_limit is None:
            return True
        grant = fetch.queues.setdefault(queue.name, QueueGrant(queue))
        if grant.used == grant.granted:
            if grant.closed:
                return False
            granted = self._grant(grant, uses, job_ids[:wanted])
            grant.granted += granted
            grant.closed = granted < min(wanted, len(job_ids))
            grant.waiting = max(0, len(job_ids) - granted)
        if grant.used == grant.granted:
            return False
        if all(self._semaphores.ensure(use, job_ids[0]) for use in uses):
            return True
        # Another fetch reclaimed the permit because this fetch was slow, and no other permit is
        # free.
        grant.granted, grant.closed = grant.used, True
        return False

    def _grant(
        self, grant: QueueGrant, uses: Sequence[SemaphoreUse], job_ids: Sequence[str]
    ) -> int:
        permits, blocked = len(job_ids), job_ids[0]
        for at, use in enumerate(uses):
            if permits == 0:
                break
            of_use = self._semaphores.acquire(use, job_ids[:permits])
            if use.kind == QUEUE_PERMIT:
                short = of_use.count < len(job_ids)
                grant.grants[CONCURRENCY] = of_use, blocked if short else None
            for before in uses[:at]:
                self._release_beyond(before, of_use.count)
            permits = of_use.count
        if permits == 0 or (of_rate := self._count_starts(grant.queue, permits)) is None:
            return permits
        starts = of_rate.count
        grant.grants[RATE] = of_rate, blocked if starts < permits else None
        for use in uses:
            self._release_beyond(use, starts)
        return starts

    def _release_beyond(self, use: SemaphoreUse, count: int) -> None:
        """Release the unused permits above `count`."""
        if (most := len(use.unused) - count) > 0:
            self._semaphores.release_unused(use, most=most)

    def _count_starts(self, queue: Queue, count: int) -> PermitGrant | None:
        """Count starts of a queue's jobs, or undo them.

        Return None if the queue has no rate limit.
        """
        config, now_ms = queue.config, self._clock.now_ms()
        if config.rate_limit is None:
            return None
        return self._rate_windows.acquire(
            queue.name, config.rate_limit, config.rate_period_ms, count=count, now_ms=now_ms
        )

    def _record_throttling(self, of_queue: QueueGrant) -> None:
        now_ms = self._clock.now_ms()
        for strategy, (grant, blocked) in of_queue.grants.items():
            limiter = LimitName.of_queue(of_queue.queue.name, _COUNTS[strategy])
            since_ms = grant.throttled_since_ms
            if blocked is not None and grant.full and since_ms is None:
                self._states.mark_throttled(limiter, strategy, grant, job_id=blocked, now_ms=now_ms)
            # The limit is still throttling, so no second event is emitted.
            still = blocked is not None or (grant.full and of_queue.waiting > 0)
            if since_ms is not None and of_queue.started is not None and not still:
                self._states.clear(limiter, grant, job_id=of_queue.started, now_ms=now_ms)

    # --- permits of one job ---------------------------------------------------------------------

    def release(self, job: Job, *, ended_ms: int, stopped: list[Job] | None = None) -> bool:
        """Release the space and the permits of a job, after the write that finished it.

        Args:
            job: The job before the write that finished it.
            ended_ms: Time when it finished, in milliseconds since the epoch.
            stopped: If set, the job is added to this list and its permits stay, for
                `release_stopped`.

        Returns:
            Whether other jobs may wait for the released permits.
        """
        if job.reserved_bytes is not None:
            self._depth.release(job.queue, CapacityUse.of([job]), now_ms=ended_ms)
        return self._release_run(job, ended_ms, stopped)

    def release_unused(self, before: Job, after: Job, stopped: list[Job] | None = None) -> bool:
        """Release the permits and space that a job no longer needs after a written change.

        Args:
            before: The job before the change.
            after: The job after the change.
            stopped: See `release`.

        Returns:
            Whether other jobs might wait for the released permits.
        """
        if after.state.terminal and not before.state.terminal:
            ended_ms = after.discarded_ms or after.cancelled_ms or after.completed_ms or 0
            return self.release(before, ended_ms=ended_ms, stopped=stopped)
        if before.state is State.ACTIVE and after.state is not State.ACTIVE:
            stopped_ms = after.enqueued_ms or 0
            if after.state is State.RETRYABLE:
                stopped_ms = (after.retry_at_ms or 0) - (after.retry_delay_ms or 0)
            return self._release_run(before, stopped_ms, stopped)
        return False

    def release_stopped(self, jobs: Sequence[Job], *, now_ms: int) -> ReleasedPermits:
        """Release the permits of jobs that stopped running. Makes one write per shard."""
        released = self._semaphores.release(jobs, now_ms=now_ms)
        for job in jobs:
            self._keys.release_left(job)
        return released

    def reacquire(self, before: Job, after: Job) -> Job | None:
        """Acquire permits for a job that resumes an attempt after its lease expired.

        Returns the job with its permits. None if other jobs have acquired them since the expiry.
        """
        if before.order is None or after.lease is None:
            return after
        now_ms = after.lease.until_ms - after.lease.length_ms
        resumed = self._reacquire(before, now_ms)
        if resumed is None:
            return None
        return replace(after, permits=resumed if resumed.shards else None)

    def _reacquire(self, job: Job, now_ms: int) -> RunPermits | None:
        """Acquire the permits of all limits of a job again. Return None if any limit is reached."""
        pool = self._pools.get(job.pool) if job.pool is not None else None
        read = self._queues.get if get_tenant(job.queue) is None else self._queues.current
        fetch, queue = FetchPermits(self.new_run, pool), read(job.queue)
        uses = [use for kind in KINDS if (use := self._to_resume(kind, fetch, queue, job, now_ms))]
        for use in uses:
            if not self._semaphores.acquire(use, [job.id]).count:
                for other in uses:
                    self._semaphores.release_unused(other)
                return None
        return RunPermits(fetch.run, {use.kind: use.permits[job.id] for use in uses})

    def _to_resume(
        self, kind: str, fetch: FetchPermits, queue: Queue | None, job: Job, now_ms: int
    ) -> SemaphoreUse | None:
        if kind == KEY_PERMIT:
            return self._keys.to_resume(job, fetch.run, now_ms=now_ms)
        by_load = fetch.pool is not None and fetch.pool.by_load
        name = semaphore_of(job, kind)
        if name is not None and (kind == DELIVERY_PERMIT or (kind == WORKER_PERMIT and by_load)):
            # The worker or target already runs the job, so its own limit does not apply.
            return SemaphoreUse(kind, name, None, ANY_VERSION, fetch.run)
        return fetch.use(kind, queue)

    def undo_reacquire(self, after: Job) -> None:
        """Release the permits that `reacquire` acquired for a job whose write lost its race."""
        if after.lease is not None:
            self._semaphores.release([after], now_ms=after.lease.until_ms - after.lease.length_ms)

    def _release_run(self, job: Job, now_ms: int, stopped: list[Job] | None) -> bool:
        """Release the permits of a job that stopped running."""
        if stopped is not None:
            stopped.append(job)
            return False
        return self.release_stopped([job], now_ms=now_ms).awaited
