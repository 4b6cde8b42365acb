"""The sweep that repairs the semaphores of worker pools (`ojs.services.permits.repair`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ojs.domain.errors import OjsError
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import DEFAULT_POOL, Pool
from ojs.services.permits.repair import CountedPermits, PermitRepair
from ojs.services.sweeps import GoOn, SweepReport, always
from ojs.store.queues.pools import PoolStore
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.workers import WorkerStore

_PAGE = 100


class PoolPermitSweep:
    """Repairs the semaphores of pools and of their workers."""

    name = "pool_permits"

    def __init__(
        self, *, pools: PoolStore, queues: QueueStore, workers: WorkerStore, repair: PermitRepair
    ) -> None:
        self._pools = pools
        self._queues = queues
        self._workers = workers
        self._repair = repair

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Check every pool with permits, and the permits of about `limit` workers.

        Counts: those of `PermitRepair.check`, failed (pools), and `more` (1 when it ended early).
        """
        counts: Counter[str] = Counter()
        workers: Mapping[str, Sequence[str]] | None = None
        after: str | None = None
        while True:
            names, after = self._pools.names(limit=_PAGE, after=after)
            for pool in self._pools.get_many(names):
                by_worker = pool.strategy == DispatchStrategy.LEAST_LOADED
                if not pool.seated and not by_worker:
                    continue
                if not go_on():
                    counts["more"] = 1
                    return SweepReport(counts)
                if by_worker and workers is None:
                    workers = self._by_pool(limit)
                try:
                    self._one(pool, (workers or {}).get(pool.name, ()), now_ms, counts)
                except OjsError:
                    # One failure must not stop the others; the next run checks this pool again.
                    counts["failed"] += 1
            if after is None:
                return SweepReport(counts)

    def _one(self, pool: Pool, workers: Sequence[str], now_ms: int, counts: Counter[str]) -> None:
        found, _ = self._queues.get_many(pool.queues)
        counted = CountedPermits.of_pool(
            pool, [found[name] for name in pool.queues if name in found]
        )
        if pool.seated:
            self._repair.check([counted], now_ms, counts)
        if workers:
            self._repair.check_workers(counted, workers, now_ms, counts)

    def _by_pool(self, limit: int) -> Mapping[str, Sequence[str]]:
        """About `limit` workers that have a record, by the pool they belong to."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        after: str | None = None
        seen = 0
        while seen < limit:
            page, after = self._workers.page(limit=_PAGE, after=after)
            seen += len(page)
            for worker in page:
                found[worker.pool or DEFAULT_POOL].append(worker.id)
            if after is None:
                break
        return found
