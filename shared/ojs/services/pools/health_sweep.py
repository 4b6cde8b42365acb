"""Minute sweep of worker pools that detects starved queues and overloaded pools.

It reads the counters of the projection, so its cost does not depend on the number of jobs. It
stores an alert when a condition starts and removes it when the condition ends. The stream record
of that write becomes the event, so each condition is reported once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field

from ojs.domain.pool.pool import Pool
from ojs.domain.pool.statistics import (
    Overload,
    PoolAlerts,
    QueueSnapshot,
    Starved,
    home_of,
    metrics_of,
    patience_ms,
)
from ojs.domain.stats import DAY_MS, MINUTE_MS, PoolMetrics
from ojs.records import record
from ojs.services.sweeps import (
    GoOn,
    SweepQueues,
    SweepReport,
    SweepRun,
    always,
    counting_failures,
    rotated,
)
from ojs.store.deployment.maintenance import MaintenanceStore
from ojs.store.derived.pool_health import KEPT_S, PoolHealth, PoolHealthStore
from ojs.store.derived.statistics import StatisticsStore
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.queues.pools import PoolStore
from ojs.store.table import keys

# Number of queues of the pools that are read together, in five calls.
_QUEUES = 100
_RENEW_MS = KEPT_S * 1_000 // 2


@record(frozen=True, eq=False)
class PoolHealthReport(SweepReport):
    """The result of a run, and the metrics of the pools that it checked.

    `counts` has: pools (checked), starved (queues that became starved), overloaded (pools that
    became overloaded), over (conditions that ended), raced (pools that another sweep changed
    first), failed, and `more`.
    """

    pools: Sequence[PoolMetrics] = ()


@record
class _HealthRun(SweepRun):
    seen: list[PoolMetrics] = field(default_factory=list)


class PoolHealthSweep:
    """Detects starved queues and overloaded pools."""

    name = "pool_health"

    def __init__(
        self,
        *,
        sweep_queues: SweepQueues,
        pools: PoolStore,
        pool_health: PoolHealthStore,
        statistics: StatisticsStore,
        throttle_states: ThrottleStates,
        maintenance: MaintenanceStore,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._every = sweep_queues
        self._pools = pools
        self._health = pool_health
        self._stats = statistics
        self._throttle_states = throttle_states
        self._maintenance = maintenance
        self._choose = choose

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> PoolHealthReport:
        """Check worker pools. If there are more than `limit`, start at a random one.

        Cost: one call for the names. For pools with 100 queues in total: two calls, one per 20
        queues, and one if any queue has limits. One call for each queue without recent starts that
        is not known to be starved, and one to read the maintenance mode for the first of them. One
        write for each pool whose alerts change.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Maximum number of pools.
            go_on: Returns whether enough time is left to continue.

        Returns:
            The counts of the run and the metrics of the pools.
        """
        run = _HealthRun(now_ms, limit, go_on)
        for chunk in self._chunks(run):
            if run.stop(0):
                break
            with counting_failures(run.counts, f"pools {chunk[0].name} to {chunk[-1].name}"):
                self._look(run, chunk)
        run.seen.sort(key=lambda pool: pool.name)
        return PoolHealthReport(+run.counts, run.seen, failures=run.counts.failures)

    def _chunks(self, run: _HealthRun) -> Iterator[list[Pool]]:
        """Yield the pools to check, in groups that are read together."""
        names = self._every.pool_names()
        # A random start, so that no pool is always omitted if only a few fit into one run.
        wanted = rotated(names, self._choose)[: run.limit] if len(names) > run.limit else names
        for at in range(0, len(wanted), _QUEUES):
            chunk: list[Pool] = []
            for pool in self._pools.get_many(wanted[at : at + _QUEUES], run.counts.fail):
                if chunk and sum(len(each.queues) for each in [*chunk, pool]) > _QUEUES:
                    yield chunk
                    chunk = []
                chunk.append(pool)
            if chunk:
                yield chunk

    def _look(self, run: _HealthRun, pools: Sequence[Pool]) -> None:
        names = list(dict.fromkeys(name for pool in pools for name in pool.queues))
        found = self._stats.snapshots(names, now_ms=run.now_ms)
        snapshots = {snapshot.queue.name: snapshot for snapshot in found}
        health_of = self._health.read(pools)
        throttled = self._throttled(found)
        for pool in pools:
            run.counts["pools"] += 1
            with counting_failures(run.counts, f"pool {pool.name}"):
                of_pool = [snapshots[name] for name in pool.queues]
                health = health_of[pool.name]
                run.seen.append(metrics_of(pool, health.active, of_pool, run.now_ms))
                starved = self._starved(run, pool, health, of_pool, throttled)
                self._save(run, pool, health, of_pool, starved)

    def _throttled(self, snapshots: Sequence[QueueSnapshot]) -> set[str]:
        """Return the queues that their own limits throttle. Makes one call if any has limits."""
        limiters = [
            LimitName.of_queue(snapshot.queue.name, counts)
            for snapshot in snapshots
            for counts, limit in (
                (keys.SEMAPHORE, snapshot.queue.config.concurrency),
                (keys.RATE, snapshot.queue.config.rate_limit),
            )
            if limit is not None and snapshot.waiting
        ]
        full = {snapshot.queue.name for snapshot in snapshots if snapshot.full}
        states = self._throttle_states.get_many(limiters) if limiters else []
        return full | {
            state.limiter.queue for state in states if state.throttled and state.limiter.queue
        }

    def _starved(
        self,
        run: _HealthRun,
        pool: Pool,
        health: PoolHealth,
        snapshots: Sequence[QueueSnapshot],
        throttled: set[str],
    ) -> dict[str, Starved]:
        """Return the queues with waiting jobs but no start during the pool's rotation interval."""
        known, patience = health.alerts.starved, patience_ms(pool)
        starved = {}
        for snapshot in snapshots:
            name, oldest_ms = snapshot.queue.name, snapshot.oldest_ms
            if home_of(snapshot.queue) != pool.name or name in throttled or not snapshot.waiting:
                continue
            if oldest_ms is None or run.now_ms - oldest_ms <= patience:
                continue
            if snapshot.minute.started or snapshot.minute_before.started:
                continue
            if name in known:
                starved[name] = known[name]
                continue
            # No worker receives jobs during maintenance.
            if self._maintenance.on():
                continue
            since_ms = self._since(name, oldest_ms, run.now_ms)
            if run.now_ms - since_ms > patience:
                starved[name] = Starved(since_ms, snapshot.waiting)
        return starved

    def _since(self, name: str, oldest_ms: int, now_ms: int) -> int:
        """Return since when (ms) no job of a queue with waiting jobs was started. Makes one call.

        This is the time when the oldest job was enqueued, or the end of the last minute with a
        start.
        """
        first_ms = max(oldest_ms, now_ms - DAY_MS)
        points = self._stats.points(name, MINUTE_MS, first_ms, now_ms + 1)
        ends = (point.start_ms + MINUTE_MS for point in points if point.activity.started)
        return max([first_ms, *ends])

    def _save(
        self,
        run: _HealthRun,
        pool: Pool,
        health: PoolHealth,
        snapshots: Sequence[QueueSnapshot],
        starved: Mapping[str, Starved],
    ) -> None:
        """Store the pool's alerts if a condition started or ended, or if they must be renewed."""
        before = health.alerts
        waiting = 0
        if pool.concurrency is not None and health.active >= pool.concurrency:
            waiting = sum(snapshot.waiting for snapshot in snapshots)
        overload = None
        if waiting:
            overload = before.overload or Overload(run.now_ms, health.active, waiting)
        after = PoolAlerts(pool.created_ms, starved, overload, run.now_ms)
        same = (before.starved, before.overload) == (after.starved, after.overload)
        if same and (not after or run.now_ms - before.at_ms < _RENEW_MS):
            return
        if not self._health.save_alerts(pool.name, before, after):
            run.counts["raced"] += 1
            return
        run.counts["starved"] += len(starved.keys() - before.starved.keys())
        run.counts["overloaded"] += before.overload is None and overload is not None
        run.counts["over"] += len(before.starved.keys() - starved.keys())
        run.counts["over"] += before.overload is not None and overload is None
