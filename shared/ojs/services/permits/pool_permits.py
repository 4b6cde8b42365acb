"""Permits of running jobs in the pool they are handed out to: one of the pool's, where it has a
limit, and one of the worker's, where jobs go to the least loaded worker.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ojs.clock import Clock
from ojs.domain.job.job import POOL_PERMIT, WORKER_PERMIT, Job
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import Pool, pool_semaphore, worker_semaphore
from ojs.domain.pool.worker import Worker
from ojs.store.permits.counter_items import ANY_VERSION
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.permits.sequencer import Sequencer, SequenceRange, StarvationOverride
from ojs.store.queues.pools import PoolStore

# The semaphore of a worker is removed when the worker got no job for so long.
WORKER_KEPT_S = 30 * 86_400


@dataclass
class PoolPermitUse:
    """The permits that one fetch acquired of a pool and of a worker, and the jobs that took some.

    `pool` is None where no pool is configured: then none are needed.
    """

    pool: Pool | None = None
    worker: Worker | None = None
    acquired: int = 0
    acquired_by_worker: int = 0
    used: int = 0

    @property
    def scopes(self) -> str:
        """The permit scopes of each job claimed by this fetch: pool, worker, both or none."""
        by_pool = POOL_PERMIT if self.pool is not None and self.pool.limits_concurrency else ""
        return by_pool + (WORKER_PERMIT if self.worker_limit is not None else "")

    @property
    def worker_limit(self) -> int | None:
        """The most jobs that the worker runs at a time; None if this fetch does not limit them."""
        if self.pool is None or self.worker is None:
            return None
        if self.pool.strategy != DispatchStrategy.LEAST_LOADED:
            return None
        registered = self.worker.info.get("concurrency")
        return registered if isinstance(registered, int) and registered > 0 else None


class PoolPermits:
    """Acquires and releases the permits of pools and of their workers."""

    def __init__(
        self,
        *,
        semaphore: ConcurrencySemaphore,
        sequencer: Sequencer,
        pools: PoolStore,
        clock: Clock,
    ) -> None:
        self._semaphore = semaphore
        self._sequencer = sequencer
        self._pools = pools
        self._clock = clock

    def acquire(
        self,
        use: PoolPermitUse,
        count: int,
        *,
        numbered: bool,
        override: StarvationOverride | None,
        empty: Collection[str],
    ) -> SequenceRange:
        """Acquire what up to `count` jobs of a configured pool need: permits, and sequence numbers
        if its dispatches are `numbered`; the other arguments are those of
        `Sequencer.next_numbers`. Raises OjsError.
        """
        assert use.pool is not None
        now_ms = self._clock.now_ms()
        if (limit := use.worker_limit) is not None and use.worker is not None:
            # Other fetches of the same worker may hold some of its permits.
            count = self._semaphore.acquire(
                worker_semaphore(use.pool.name, use.worker.id),
                count=count,
                limit=limit,
                version=use.worker.first_seen_ms,
                now_ms=now_ms,
                kept_s=WORKER_KEPT_S,
            ).count
            use.acquired_by_worker += count
        # Without numbers and permits the sequencer is only written for a starving queue: once in an
        # interval.
        written = numbered or use.pool.limits_concurrency or override is not None or bool(empty)
        if not count or not written:
            return SequenceRange(count)
        numbers = self._sequencer.next_numbers(
            use.pool, count, now_ms=now_ms, override=override, empty=empty
        )
        use.acquired += numbers.count
        return numbers

    def close(self, use: PoolPermitUse) -> None:
        """Release the permits that no job took."""
        now_ms = self._clock.now_ms()
        if use.pool is None:
            return
        if use.pool.limits_concurrency and use.acquired > use.used:
            unused = use.acquired - use.used
            self._semaphore.release(use.pool.semaphore, count=unused, now_ms=now_ms)
        if use.worker is not None and use.acquired_by_worker > use.used:
            self._semaphore.release(
                worker_semaphore(use.pool.name, use.worker.id),
                count=use.acquired_by_worker - use.used,
                now_ms=now_ms,
            )

    def release(self, job: Job, *, now_ms: int) -> None:
        """Release the permits of a job. If this fails, a sweep repairs the semaphores."""
        if job.pool is None:
            return
        if POOL_PERMIT in job.pool_permits:
            self._semaphore.release(pool_semaphore(job.pool), count=1, now_ms=now_ms)
        if WORKER_PERMIT in job.pool_permits and job.worker_id is not None:
            name = worker_semaphore(job.pool, job.worker_id)
            self._semaphore.release(name, count=1, now_ms=now_ms)

    def reacquire(self, job: Job, *, now_ms: int) -> str | None:
        """The permit scopes of a job that goes on after its lease ended; None when the pool has no
        permit left.
        """
        pool = self._pools.get(job.pool) if job.pool is not None else None
        if pool is None:
            return ""
        scopes = ""
        if pool.limits_concurrency:
            granted = self._semaphore.acquire(
                pool.semaphore,
                count=1,
                limit=pool.concurrency,
                version=pool.version,
                now_ms=now_ms,
            )
            if not granted.count:
                return None
            scopes += POOL_PERMIT
        if pool.strategy == DispatchStrategy.LEAST_LOADED and job.worker_id is not None:
            # The worker runs the job already, so its own limit does not matter.
            self._semaphore.acquire(
                worker_semaphore(pool.name, job.worker_id),
                count=1,
                limit=None,
                version=ANY_VERSION,
                now_ms=now_ms,
                kept_s=WORKER_KEPT_S,
            )
            scopes += WORKER_PERMIT
        return scopes
