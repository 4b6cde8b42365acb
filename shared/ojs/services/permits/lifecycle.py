"""The permits of jobs: acquired for a fetch, taken by the jobs it claims, released when these end.

Three kinds limit running jobs: those of the job's queue, of its rate limit key, and of whom it is
handed out to: a worker pool, a worker, a delivery. A job in a bounded queue holds room there as
well, from its push (`ojs.services.permits.backpressure`) until it is done.

Each permit is noted on the job record by the write that begins the run, and released once, after
the write that ends it. If that fails, or the process dies in between, one too many counts until it
is found out that no job runs with it (`ojs.store.permits.semaphore`); there are never too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace

from ojs.domain.job.job import Job, JobPermits
from ojs.domain.job.permits import (
    DELIVERY_PERMIT,
    KEY_PERMIT,
    POOL_PERMIT,
    QUEUE_PERMIT,
    WORKER_PERMIT,
    RunPermits,
)
from ojs.domain.job.states import State
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.queue.queue import Queue
from ojs.domain.rate_limit.limiter import RATE, LimitDecision
from ojs.records import record
from ojs.services.permits.key_permits import Candidate, KeyGrant, KeyPermits, KeyPermitUse
from ojs.services.permits.pool_permits import WORKER_KEPT_S, PoolPermits, PoolPermitUse
from ojs.services.permits.queue_permits import QueuePermits, QueuePermitUse, semaphore_use
from ojs.services.permits.semaphore_permits import (
    ReleasedPermits,
    SemaphorePermits,
    SemaphoreUse,
    semaphore_of,
)
from ojs.store.permits.counter_items import ANY_VERSION
from ojs.store.permits.depth_counter import DepthCounter, Room
from ojs.store.queues.pools import PoolStore
from ojs.store.queues.queues import QueueStore


@record
class FetchPermits:
    """What one fetch has acquired of each kind, and what it knows to be refused."""

    pool: PoolPermitUse
    queues: dict[str, QueuePermitUse] = field(default_factory=dict)
    keys: KeyPermitUse = field(default_factory=KeyPermitUse)

    @property
    def held_back(self) -> list[Queue]:
        """The queues whose rate limit has refused a start."""
        return [use.queue for use in self.queues.values() if RATE in use.blocked]

    @property
    def keys_wait(self) -> list[int | None]:
        """Of each key whose limit has refused a start: when the next one may be, if that is known;
        None where a job of the key must end first, in whatever queue.
        """
        return [decision.free_ms for decision in self.keys.blocked.values()]

    @property
    def freed(self) -> bool:
        """Whether it has released permits that no job took, of a limit that had none left."""
        of_queues = (use.semaphore for use in self.queues.values())
        of_keys = self.keys.semaphores.values()
        uses = [*self.pool.semaphores.values(), *of_queues, *of_keys]
        return any(use is not None and use.freed for use in uses)

    def exhausted(self, queue: Queue) -> bool:
        """Whether the queue has refused more permits than those taken."""
        use = self.queues.get(queue.name)
        return use is not None and use.closed and use.used >= use.granted


@record(frozen=True)
class Acquired:
    """The permits of all kinds that one candidate of a fetch needs."""

    fetch: FetchPermits
    queue: Queue
    candidate: Candidate
    grant: KeyGrant | None

    @property
    def start_ms(self) -> int | None:
        """When its start was counted; None where no rate limit counts it."""
        starts = None if self.grant is None else self.grant.starts
        return None if starts is None else starts.now_ms

    @property
    def noted(self) -> JobPermits:
        """The permits as the job record notes them."""
        job_id = self.candidate.job_id
        pool = self.fetch.pool.pool
        of_queue = self.fetch.queues.get(self.queue.name)
        uses = dict(self.fetch.pool.semaphores)
        if of_queue is not None and of_queue.semaphore is not None:
            uses[QUEUE_PERMIT] = of_queue.semaphore
        if self.grant is not None and self.grant.semaphore is not None:
            uses[KEY_PERMIT] = self.grant.semaphore
        shards = {limit: use.permits[job_id] for limit, use in uses.items()}
        return JobPermits(
            run=RunPermits(self.fetch.pool.run, shards) if shards else None,
            pool=None if pool is None else pool.name,
        )


class Permits:
    """Acquires and releases what jobs hold of all limits that they are under."""

    def __init__(
        self,
        *,
        queue_permits: QueuePermits,
        key_permits: KeyPermits,
        pool_permits: PoolPermits,
        semaphores: SemaphorePermits,
        depth: DepthCounter,
        queues: QueueStore,
        pools: PoolStore,
    ) -> None:
        self._queues = queue_permits
        self._keys = key_permits
        self._pools = pool_permits
        self._semaphores = semaphores
        self._depth = depth
        self._queue_store = queues
        self._pool_store = pools

    # --- for a fetch ------------------------------------------------------------------------

    def prefetch(self, fetch: FetchPermits, candidates: Iterable[Candidate]) -> None:
        """Read what the limits of these candidates need, except what was read already. One call."""
        self._keys.prefetch(fetch.keys, candidates)

    def is_blocked(self, fetch: FetchPermits, candidate: Candidate) -> bool:
        """Whether it is known already that the candidate's own limit is reached; costs nothing."""
        return self._keys.is_blocked(fetch.keys, candidate)

    def acquire(
        self,
        fetch: FetchPermits,
        queue: Queue,
        candidate: Candidate,
        following: Sequence[Candidate] = (),
        *,
        wanted: int,
    ) -> Acquired | None:
        """Acquire all permits that a candidate needs; None if one kind refuses them.

        Those of the pool were acquired before the fetch's sequence numbers. Acquires also for jobs
        that follow, up to `wanted` in all; what no job takes is released by `close`. Raises
        OjsError.
        """
        job_ids = [candidate.job_id, *(each.job_id for each in following)]

        def run() -> str:
            return self._pools.run(fetch.pool)

        if not self._queues.acquire(fetch.queues, queue, job_ids, run=run, wanted=wanted):
            return None
        if not self._pools.ensure(fetch.pool, candidate.job_id):
            return None
        if candidate.position.limit is None:
            return Acquired(fetch, queue, candidate, None)
        self._keys.prefetch(fetch.keys, [candidate])
        grant = self._keys.acquire(fetch.keys, candidate, following, run=run, wanted=wanted)
        return None if grant is None else Acquired(fetch, queue, candidate, grant)

    def commit(self, acquired: Acquired) -> None:
        """Take the permits for a claim that is about to be written.

        If its result is unknown they are not released: it is found out later.
        """
        job_id = acquired.candidate.job_id
        self._keys.commit(acquired.fetch.keys, job_id)
        self._queues.commit(acquired.fetch.queues, acquired.queue, job_id)
        self._pools.commit(acquired.fetch.pool, job_id)

    def rollback(self, acquired: Acquired, *, unknown: bool) -> None:
        """Take the permits back from a claim that lost its race.

        `unknown` says that an earlier try of the claim may have succeeded, and the job have ended
        since: then its end may have released the permits, so they are left to be found out, and the
        start stays counted.
        """
        if not unknown:
            job_id = acquired.candidate.job_id
            self._keys.rollback(acquired.fetch.keys, acquired.grant, job_id)
            self._pools.rollback(acquired.fetch.pool, job_id)
            self._queues.rollback(acquired.fetch.queues, acquired.queue, job_id)

    def close(self, fetch: FetchPermits, end: Callable[[Job, LimitDecision], None]) -> None:
        """Release what no job took, and record limits that start or stop throttling.

        `end` postpones or drops the jobs whose limit says so when it is reached.
        """
        self._queues.close(fetch.queues)
        self._keys.close(fetch.keys, end)
        self._pools.close(fetch.pool)

    # --- for a job --------------------------------------------------------------------------

    def release(self, job: Job, *, ended_ms: int, stopped: list[Job] | None = None) -> bool:
        """Release everything that a job held. Call it only after the write that ended the job.

        Returns whether somebody may wait for it. With `stopped` the job's permits stay: it is added
        there, for `release_stopped`.
        """
        if job.reserved_bytes is not None:
            self._depth.release(job.queue, Room.of([job]), now_ms=ended_ms)
        return self._release_run(job, ended_ms, stopped)

    def release_unused(self, before: Job, after: Job, stopped: list[Job] | None = None) -> bool:
        """Release what a job needs no more after a change that was written, as `release` does."""
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
        """Release the permits of jobs that stopped running: those of one limit together."""
        released = self._semaphores.release(jobs, now_ms=now_ms)
        for job in jobs:
            self._keys.release_left(job)
        return released

    def reacquire(self, before: Job, after: Job) -> Job | None:
        """A job that resumes an attempt whose lease had run out, with the permits it needs; None if
        others acquired them meanwhile.
        """
        if before.order is None or after.lease is None:
            return after
        now_ms = after.lease.until_ms - after.lease.length_ms
        resumed = self._reacquire(before, now_ms)
        if resumed is None:
            return None
        return replace(after, permits=resumed if resumed.shards else None)

    def _reacquire(self, job: Job, now_ms: int) -> RunPermits | None:
        """The permits of a job of all its limits, acquired anew; None if one is refused."""
        run = self._semaphores.new_run()
        queue = self._queue_store.get(job.queue)
        pool = self._pool_store.get(job.pool) if job.pool is not None else None
        uses: dict[str, SemaphoreUse] = {}
        if queue is not None and (of_queue := semaphore_use(queue, lambda: run)) is not None:
            uses[QUEUE_PERMIT] = of_queue
        if pool is not None and pool.limits_concurrency:
            uses[POOL_PERMIT] = PoolPermitUse(pool).semaphore(POOL_PERMIT, lambda: run)
        if (
            pool is not None
            and pool.strategy == DispatchStrategy.LEAST_LOADED
            and (name := semaphore_of(job, WORKER_PERMIT)) is not None
        ):
            # The worker runs the job already, so its own limit does not matter.
            uses[WORKER_PERMIT] = SemaphoreUse(name, None, ANY_VERSION, run, WORKER_KEPT_S)
        if (name := semaphore_of(job, DELIVERY_PERMIT)) is not None:
            # And so does the target.
            uses[DELIVERY_PERMIT] = SemaphoreUse(name, None, ANY_VERSION, run, WORKER_KEPT_S)
        if (of_key := self._keys.to_resume(job, run, now_ms=now_ms)) is not None:
            uses[KEY_PERMIT] = of_key
        for use in uses.values():
            if not self._semaphores.acquire(use, [job.id]).count:
                for other in uses.values():
                    self._semaphores.release_unused(other)
                return None
        return RunPermits(run, {limit: use.permits[job.id] for limit, use in uses.items()})

    def undo_reacquire(self, after: Job) -> None:
        """Release what `reacquire` acquired for a job whose write was lost."""
        if after.lease is not None:
            self._semaphores.release([after], now_ms=after.lease.until_ms - after.lease.length_ms)

    def _release_run(self, job: Job, now_ms: int, stopped: list[Job] | None) -> bool:
        """Release the permits of a job that stopped running."""
        if stopped is not None:
            stopped.append(job)
            return False
        return self.release_stopped([job], now_ms=now_ms).awaited
