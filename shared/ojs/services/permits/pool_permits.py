"""Permits of running jobs by whom they are handed out to: one of the worker pool's, where it has a
limit, and one of the worker's, where jobs go to the least loaded worker; and one of the delivery's
that pushes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from ojs.domain.job.permits import DELIVERY_PERMIT, POOL_PERMIT, WORKER_PERMIT
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import Pool, worker_semaphore
from ojs.domain.pool.worker import Worker
from ojs.records import record
from ojs.services.permits.semaphore_permits import SemaphorePermits, SemaphoreUse

if TYPE_CHECKING:
    from ojs.domain.delivery.delivery import Delivery

# The semaphore of a worker or delivery is removed when it got no job for so long.
WORKER_KEPT_S = 30 * 86_400


@record
class PoolPermitUse:
    """The permits that one fetch acquires of a pool, of a worker and of a delivery.

    Each is None where it is not configured: then none are needed. `run` is the token of the fetch,
    "" until a permit is acquired. Of the delivery's it takes those of `shards`, if there are any.
    """

    pool: Pool | None = None
    worker: Worker | None = None
    delivery: Delivery | None = None
    shards: Sequence[int] = ()
    run: str = ""
    semaphores: dict[str, SemaphoreUse] = field(default_factory=dict)

    @property
    def limits(self) -> str:
        """Which permits each job claimed by this fetch needs."""
        by_pool = POOL_PERMIT if self.pool is not None and self.pool.limits_concurrency else ""
        by_worker = WORKER_PERMIT if self.worker_limit is not None else ""
        return by_pool + by_worker + (DELIVERY_PERMIT if self.delivery is not None else "")

    @property
    def worker_limit(self) -> int | None:
        """The most jobs that the worker runs at a time; None if this fetch does not limit them."""
        if self.pool is None or self.worker is None:
            return None
        if self.pool.strategy != DispatchStrategy.LEAST_LOADED:
            return None
        return self.worker.concurrency

    def semaphore(self, limit: str, run: Callable[[], str]) -> SemaphoreUse:
        """The use of the semaphore of one of `limits`."""
        if limit not in self.semaphores:
            if limit == DELIVERY_PERMIT:
                assert self.delivery is not None
                use = SemaphoreUse(
                    self.delivery.semaphore,
                    self.delivery.concurrency,
                    self.delivery.version,
                    run(),
                    WORKER_KEPT_S,
                    # Whoever is refused stops, until one of these that are full is released.
                    exact=True,
                    only=self.shards,
                )
            elif limit == POOL_PERMIT:
                assert self.pool is not None
                use = SemaphoreUse(
                    self.pool.semaphore, self.pool.concurrency, self.pool.version, run()
                )
            else:
                assert self.pool is not None
                assert self.worker is not None
                use = SemaphoreUse(
                    worker_semaphore(self.pool.name, self.worker.id),
                    self.worker_limit,
                    self.worker.first_seen_ms,
                    run(),
                    WORKER_KEPT_S,
                )
            self.semaphores[limit] = use
        return self.semaphores[limit]


class PoolPermits:
    """Acquires and releases the permits of pools, of their workers and of deliveries."""

    def __init__(self, semaphores: SemaphorePermits) -> None:
        self._semaphores = semaphores

    def run(self, use: PoolPermitUse) -> str:
        """The token of a fetch."""
        use.run = use.run or self._semaphores.new_run()
        return use.run

    def acquire(self, use: PoolPermitUse, job_ids: Sequence[str]) -> int:
        """Acquire what the first of these jobs need, or as many others in their place; for how many
        there is enough. Raises OjsError.
        """
        count = len(job_ids)
        # The narrowest first: other fetches of the same worker or delivery may have some of them.
        for limit in reversed(use.limits):
            semaphore = use.semaphore(limit, lambda: self.run(use))
            spare = len(semaphore.unused)
            missing = [job_id for job_id in job_ids if job_id not in semaphore.permits]
            # Where a delivery was seen full, whoever makes room takes it.
            full = limit == DELIVERY_PERMIT and semaphore.full
            if count > spare and not full:
                self._semaphores.acquire(semaphore, missing[: count - spare])
            count = min(count, len(semaphore.unused))
        return count

    def ensure(self, use: PoolPermitUse, job_id: str) -> bool:
        """Whether a job has all permits that it needs, of those that were acquired."""
        return all(
            self._semaphores.ensure(use.semaphore(limit, lambda: self.run(use)), job_id)
            for limit in use.limits
        )

    @staticmethod
    def commit(use: PoolPermitUse, job_id: str) -> None:
        """Take the permits of a job that is about to be claimed."""
        for semaphore in use.semaphores.values():
            semaphore.used.add(job_id)

    @staticmethod
    def rollback(use: PoolPermitUse, job_id: str) -> None:
        """Take the permits back: the job was not claimed."""
        for semaphore in use.semaphores.values():
            semaphore.used.discard(job_id)

    def close(self, use: PoolPermitUse) -> None:
        """Release the permits that no job took."""
        for semaphore in use.semaphores.values():
            self._semaphores.release_unused(semaphore)
