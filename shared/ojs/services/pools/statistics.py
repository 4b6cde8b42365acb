"""Scheduling statistics: the status of worker pools, and recent starts from their queues.

The cost does not depend on the number of jobs. Fetches do not read statistics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ojs.clock import Clock
from ojs.domain.errors import BAD_CURSOR, NotFound, naming_field
from ojs.domain.job import envelope
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import DEFAULT_POOL, Pool
from ojs.domain.pool.statistics import (
    MAX_COUNTED_WORKERS,
    PoolStatus,
    QueueShare,
    QueueSnapshot,
    SchedulingStats,
    home_of,
    ratios,
    share_of,
)
from ojs.domain.pool.worker import DEAD_AFTER_MS
from ojs.store.derived.pool_health import PoolHealth, PoolHealthStore
from ojs.store.derived.statistics import StatisticsStore
from ojs.store.queues.pools import PoolStore
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.workers import WorkerStore


class PoolStatistics:
    """Reads scheduling statistics. Makes no writes."""

    def __init__(
        self,
        *,
        pool_health: PoolHealthStore,
        pools: PoolStore,
        queues: QueueStore,
        statistics: StatisticsStore,
        workers: WorkerStore,
        clock: Clock,
    ) -> None:
        self._health = pool_health
        self._pools = pools
        self._queues = queues
        self._stats = statistics
        self._workers = workers
        self._clock = clock

    # --- pools --------------------------------------------------------------------------------

    def statuses(self, pools: Sequence[Pool]) -> list[PoolStatus]:
        """Return the status of these pools, in order.

        Makes one call per 25 pools, and up to 17 calls for workers. Counts up to
        `MAX_COUNTED_WORKERS` workers. If there are more, the counts are those of the last metrics
        sweep, up to one minute old.
        """
        if not pools:
            return []
        found = self._health.read(pools)
        workers = self._count_workers(found)
        return [
            PoolStatus(pool, workers.get(pool.name, 0), found[pool.name].active) for pool in pools
        ]

    def _count_workers(self, found: dict[str, PoolHealth]) -> dict[str, int]:
        totals, _ = self._stats.totals()
        known = totals.workers.running + totals.workers.quiet + totals.workers.stale
        swept = {
            name: health.workers
            for name, health in found.items()
            # An older count is outdated: the most recent sweep found no workers of this pool.
            if health.counted_ms is not None and health.counted_ms >= (totals.at_ms or 0)
        }
        if known > MAX_COUNTED_WORKERS:
            return swept
        page, more = self._workers.page(limit=MAX_COUNTED_WORKERS + 1, after=None)
        if more is not None and swept:
            return swept
        now_ms = self._clock.now_ms()
        return Counter(
            worker.pool or DEFAULT_POOL
            for worker in page
            if now_ms - worker.last_seen_ms <= DEAD_AFTER_MS
        )

    # --- queues -------------------------------------------------------------------------------

    def stats(
        self, *, limit: int, skip: int = 0, cursor: str | None = None, pool: str | None = None
    ) -> SchedulingStats:
        """Return a page of queues, ordered by name, with their starts in the last minute.

        Makes two calls, one per 20 queues, and two for up to 25 pools. The ratio of a queue is its
        part of all starts from the queues of the page, or of the pool if `pool` is set.

        Args:
            limit: Maximum number of queues.
            skip: Number of queues to skip.
            cursor: Name of the last queue of the previous page.
            pool: Name of a pool. Default: all queues.

        Returns:
            The page.

        Raises:
            NotFound: The pool does not exist.
            InvalidRequest: The cursor is invalid.
        """
        if cursor is not None:
            with naming_field("cursor", cursor, BAD_CURSOR):
                envelope.check_queue(cursor)
        if pool is not None:
            return self._of_pool(pool, limit=limit, skip=skip, cursor=cursor)
        end = skip + limit
        names, _ = self._queues.names(limit=end + 1, after=cursor, consistent=True)
        following = names[end - 1] if len(names) > end else None
        now_ms = self._clock.now_ms()
        snapshots = self._stats.snapshots(names[skip:end], now_ms=now_ms)
        pool_names, _ = self._pools.names(limit=2)
        only = pool_names[0] if len(pool_names) == 1 else None
        known = self._homes(snapshots, *([only] if only else []))
        shares = self._shares(snapshots, known, ratios(snapshots, now_ms), now_ms)
        strategy = known[only].strategy if only in known else DispatchStrategy.ROUND_ROBIN
        return SchedulingStats(shares, strategy, following)

    def _of_pool(self, name: str, *, limit: int, skip: int, cursor: str | None) -> SchedulingStats:
        pool = self._pools.get(name)
        if pool is None:
            raise NotFound("pool", name)
        now_ms = self._clock.now_ms()
        snapshots = self._stats.snapshots(sorted(pool.queues), now_ms=now_ms)
        of_all = ratios(snapshots, now_ms)
        left = [
            snapshot for snapshot in snapshots if cursor is None or snapshot.queue.name > cursor
        ][skip:]
        shown = left[:limit]
        following = shown[-1].queue.name if len(left) > limit else None
        known = self._homes(shown, without=name) | {name: pool}
        shares = self._shares(shown, known, of_all, now_ms, of=pool)
        return SchedulingStats(shares, pool.strategy, following)

    def _homes(
        self, snapshots: Sequence[QueueSnapshot], *more: str, without: str | None = None
    ) -> dict[str, Pool]:
        """Return the pools of these queues, and the pools `more`, by name."""
        homes = {home_of(snapshot.queue) for snapshot in snapshots} - {None, without}
        read = self._pools.get_many({name for name in (*homes, *more) if name is not None})
        return {pool.name: pool for pool in read}

    def _shares(
        self,
        snapshots: Sequence[QueueSnapshot],
        known: dict[str, Pool],
        of_all: dict[str, float],
        now_ms: int,
        *,
        of: Pool | None = None,
    ) -> list[QueueShare]:
        """Return the shares of queues, relative to the pool `of`, or else to their own pools."""
        health_of = self._health.read(known.values())
        shares = []
        for snapshot in snapshots:
            home = known.get(home_of(snapshot.queue) or "")
            alerts = None if home is None else health_of[home.name].alerts
            ratio = of_all[snapshot.queue.name]
            shares.append(share_of(snapshot, ratio, of or home, alerts, now_ms))
        return shares
