"""Permits of running jobs in the pool they were handed out to: one of the pool's, where it has a
limit, and one of the worker's, where jobs go to the least loaded worker.

A fetch acquires them before it claims a job (`ojs.services.pools.dispatch`). This module releases
them, and acquires them again for a job that goes on after its lease ended.
"""

from __future__ import annotations

from ojs.domain.job.job import POOL_PERMIT, WORKER_PERMIT, Job
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import SEATS_KEPT_S, gate_of, seat_of
from ojs.store.permits.counter_items import ANY_VERSION
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.queues.pools import PoolStore
from ojs.store.table.table import Table


class PoolPermits:
    """Releases the pool's and the worker's permits of jobs, and acquires them again."""

    def __init__(self, table: Table, *, semaphore: ConcurrencySemaphore) -> None:
        self._pools = PoolStore(table)
        self._semaphore = semaphore

    def release(self, job: Job, *, now_ms: int) -> None:
        """Release the permits of a job. If this fails, a sweep repairs the semaphores."""
        if job.pool is None:
            return
        if POOL_PERMIT in job.seats:
            self._semaphore.release(gate_of(job.pool), count=1, now_ms=now_ms)
        if WORKER_PERMIT in job.seats and job.worker_id is not None:
            name = seat_of(job.pool, job.worker_id)
            self._semaphore.release(name, count=1, now_ms=now_ms)

    def reacquire(self, job: Job, *, now_ms: int) -> str | None:
        """The permits (`Job.seats`) of a job that goes on after its lease ended; None when the pool
        has none left.
        """
        pool = self._pools.get(job.pool) if job.pool is not None else None
        if pool is None:
            return ""
        permits = ""
        if pool.seated:
            granted = self._semaphore.acquire(
                pool.gate, count=1, limit=pool.concurrency, version=pool.version, now_ms=now_ms
            )
            if not granted.count:
                return None
            permits += POOL_PERMIT
        if pool.strategy == DispatchStrategy.LEAST_LOADED and job.worker_id is not None:
            # The worker runs the job already, so its own limit does not matter.
            self._semaphore.acquire(
                seat_of(pool.name, job.worker_id),
                count=1,
                limit=None,
                version=ANY_VERSION,
                now_ms=now_ms,
                kept_s=SEATS_KEPT_S,
            )
            permits += WORKER_PERMIT
        return permits
