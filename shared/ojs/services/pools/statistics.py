"""Statistics of scheduling: how worker pools stand, and what their queues were given lately.

Each costs the same however many jobs there are. Nothing here is asked for by a fetch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ojs.clock import Clock
from ojs.domain.errors import InvalidRequest, NotFound
from ojs.domain.job import envelope
from ojs.domain.pool.dispatch import ROUND_ROBIN
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
from ojs.store.derived.statistics import StatisticsStore
from ojs.store.queues.pool_health import PoolHealth, PoolHealthStore
from ojs.store.queues.pools import PoolStore
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.workers import WorkerStore


class PoolStatistics:
    """Reads statistics of scheduling; changes nothing."""

    def __init__(
        self,
        standings: PoolHealthStore,
        pools: PoolStore,
        queues: QueueStore,
        stats: StatisticsStore,
        workers: WorkerStore,
        clock: Clock,
    ) -> None:
        self._standings = standings
        self._pools = pools
        self._queues = queues
        self._stats = stats
        self._workers = workers
        self._clock = clock

    # --- pools --------------------------------------------------------------------------------

    def standings(self, pools: Sequence[Pool]) -> list[PoolStatus]:
        """How these pools stand, in order. One call for 25 of them, and 17 at the most for workers.

        Workers are counted while there are at most `MAX_COUNTED_WORKERS` in all; of more it is told
        what the gauges sweep counted, which is up to a minute ago.
        """
        if not pools:
            return []
        found = self._standings.read(pools)
        workers = self._count_workers(found)
        return [
            PoolStatus(pool, workers.get(pool.name, 0), found[pool.name].active) for pool in pools
        ]

    def _count_workers(self, found: dict[str, PoolHealth]) -> dict[str, int]:
        totals, _ = self._stats.totals()
        known = totals.workers.running + totals.workers.quiet + totals.workers.stale
        swept = {
            name: standing.workers
            for name, standing in found.items()
            # What an earlier sweep counted is gone: the latest found none.
            if standing.counted_ms is not None and standing.counted_ms >= (totals.at_ms or 0)
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
        """A page of queues in order of name, of one pool or of all there are, and what they were
        given in the last minute. Two calls, one for every 20 queues, and two for up to 25 pools.

        A queue's ratio is its part of what was started from those of the page; of a pool's queues,
        from all of the pool. Raises NotFound for an unknown pool, InvalidRequest for a bad cursor.
        """
        if cursor is not None:
            try:
                envelope.check_queue(cursor)
            except ValueError:
                rule = "is not one this server gave"
                raise InvalidRequest("cursor", rule, value=cursor) from None
        if pool is not None:
            return self._of_pool(pool, limit=limit, skip=skip, cursor=cursor)
        end = skip + limit
        names, _ = self._queues.names(limit=end + 1, after=cursor, consistent=True)
        following = names[end - 1] if len(names) > end else None
        now_ms = self._clock.now_ms()
        sights = self._stats.sights(names[skip:end], now_ms=now_ms)
        only = self._only_pool()
        homes = {name for sight in sights if (name := home_of(sight.queue)) is not None}
        known = {
            each.name: each for each in self._pools.get_many(homes | ({only} if only else set()))
        }
        shares = self._shares(sights, known, ratios(sights, now_ms), now_ms)
        strategy = known[only].strategy if only in known else ROUND_ROBIN
        return SchedulingStats(shares, strategy, following)

    def _of_pool(self, name: str, *, limit: int, skip: int, cursor: str | None) -> SchedulingStats:
        pool = self._pools.get(name)
        if pool is None:
            raise NotFound("pool", name)
        now_ms = self._clock.now_ms()
        sights = self._stats.sights(sorted(pool.queues), now_ms=now_ms)
        of_all = ratios(sights, now_ms)
        left = [sight for sight in sights if cursor is None or sight.queue.name > cursor][skip:]
        shown = left[:limit]
        following = shown[-1].queue.name if len(left) > limit else None
        homes = {home for sight in shown if (home := home_of(sight.queue)) is not None}
        known = {each.name: each for each in self._pools.get_many(homes - {name})} | {name: pool}
        watched = self._shares(shown, known, of_all, now_ms, of=pool)
        return SchedulingStats(watched, pool.strategy, following)

    def _only_pool(self) -> str | None:
        """The name of the pool, when there is one and no other."""
        names, _ = self._pools.names(limit=2)
        return names[0] if len(names) == 1 else None

    def _shares(
        self,
        sights: Sequence[QueueSnapshot],
        known: dict[str, Pool],
        of_all: dict[str, float],
        now_ms: int,
        *,
        of: Pool | None = None,
    ) -> list[QueueShare]:
        """What is told of queues: under the pool asked for, else each under its own."""
        standings = self._standings.read(known.values())
        shares = []
        for sight in sights:
            home = known.get(home_of(sight.queue) or "")
            watch = None if home is None else standings[home.name].watch
            ratio = of_all[sight.queue.name]
            shares.append(share_of(sight, ratio, of or home, watch, now_ms))
        return shares
