"""The sweep over worker pools that limit their running jobs: sets right what their gates count, as
`ojs.services.permits.repair` has it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from ojs.domain.errors import OjsError
from ojs.domain.pool.dispatch import LEAST_LOADED
from ojs.domain.pool.pool import DEFAULT_POOL, Pool
from ojs.services.permits.repair import CountedPermits, PermitRepair
from ojs.store.queues.pools import PoolStore
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.workers import WorkerStore

_PAGE = 100
# Workers whose places one run looks at.
MAX_WORKERS = 2_000


class PoolPermitSweep:
    """Looks after the places of running jobs in pools."""

    def __init__(
        self, pools: PoolStore, queues: QueueStore, workers: WorkerStore, slots: PermitRepair
    ) -> None:
        self._pools = pools
        self._queues = queues
        self._workers = workers
        self._slots = slots

    def run_once(self, now_ms: int, go_on: Callable[[], bool] = lambda: True) -> dict[str, int]:
        """One look at every pool that has places to count.

        Counts: those of `PermitRepair.look`, failed (pools), and `more` (1 when it ended early).
        """
        counts: Counter[str] = Counter()
        workers: Mapping[str, Sequence[str]] | None = None
        after: str | None = None
        while True:
            names, after = self._pools.names(limit=_PAGE, after=after)
            for pool in self._pools.get_many(names):
                by_worker = pool.strategy == LEAST_LOADED
                if not pool.seated and not by_worker:
                    continue
                if not go_on():
                    counts["more"] = 1
                    return dict(counts)
                if by_worker and workers is None:
                    workers = self._by_pool()
                try:
                    self._one(pool, (workers or {}).get(pool.name, ()), now_ms, counts)
                except OjsError:
                    # One pool must not hold up the others; the next minute finds it again.
                    counts["failed"] += 1
            if after is None:
                return dict(counts)

    def _one(self, pool: Pool, workers: Sequence[str], now_ms: int, counts: Counter[str]) -> None:
        found, _ = self._queues.get_many(pool.queues)
        counted = CountedPermits.of_pool(
            pool, [found[name] for name in pool.queues if name in found]
        )
        if pool.seated:
            self._slots.look([counted], now_ms, counts)
        if workers:
            self._slots.look_at_workers(counted, workers, now_ms, counts)

    def _by_pool(self) -> Mapping[str, Sequence[str]]:
        """Workers that have a record, by the pool they belong to."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        after: str | None = None
        seen = 0
        while seen < MAX_WORKERS:
            page, after = self._workers.page(limit=_PAGE, after=after)
            seen += len(page)
            for worker in page:
                found[worker.pool or DEFAULT_POOL].append(worker.id)
            if after is None:
                break
        return found
