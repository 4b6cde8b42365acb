"""Worker pools looked at each minute: queues that are given nothing, pools that run all they may.

What is seen is worked out from the counters that the projection keeps, so it costs the same however
many jobs there are. It is written down when something begins or ends, and that becomes the event
(fair-scheduling seed, section 11.1): each is told once until it is over.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ojs.domain.errors import OjsError
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
from ojs.store.derived.statistics import StatisticsStore
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.queues.pool_health import KEPT_S, PoolHealth, PoolHealthStore
from ojs.store.queues.pools import PoolStore
from ojs.store.table import keys

_NAMES = 1_000
# Names of pools that one run reads, of which it looks at as many as it may.
_MAX_NAMES = 10_000
# Pools are looked at together as long as they have no more queues than this: five calls.
_QUEUES = 100
_RENEW_MS = KEPT_S * 1_000 // 2


@dataclass(frozen=True)
class PoolHealthReport:
    """What a run did and what it saw.

    `counts` has: pools (looked at), starved (queues, begun to be so), overloaded (pools, the same),
    over (of both, ended), raced (another sweep was ahead), failed, and `more` (1 when it ended
    early).
    """

    counts: Mapping[str, int]
    pools: Sequence[PoolMetrics] = ()


@dataclass
class _Run:
    """One run under way."""

    now_ms: int
    counts: Counter[str] = field(default_factory=Counter)
    seen: list[PoolMetrics] = field(default_factory=list)


class PoolHealthSweep:
    """Looks over worker pools."""

    def __init__(
        self,
        pools: PoolStore,
        standings: PoolHealthStore,
        stats: StatisticsStore,
        edges: ThrottleStates,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._pools = pools
        self._standings = standings
        self._stats = stats
        self._edges = edges
        self._choose = choose

    def run_once(
        self, now_ms: int, limit: int, go_on: Callable[[], bool] = lambda: True
    ) -> PoolHealthReport:
        """One look at up to `limit` pools; where there are more, from a random one on.

        One call for the names; for pools with 100 queues in all two, one for every 20 queues, and
        one where any has limits of its own; one for a queue that is not known to be starved and was
        given nothing in the last minutes, and one write for a pool with which something begins or
        ends. Safe to run twice at once.
        """
        run = _Run(now_ms)
        for chunk in self._chunks(limit):
            if not go_on():
                run.counts["more"] = 1
                break
            self._look(run, chunk)
        run.seen.sort(key=lambda pool: pool.name)
        return PoolHealthReport({name: n for name, n in run.counts.items() if n}, run.seen)

    def _chunks(self, limit: int) -> Iterator[list[Pool]]:
        """The pools to be looked at, those together that are read together."""
        names: list[str] = []
        after: str | None = None
        while len(names) < _MAX_NAMES:
            page, after = self._pools.names(limit=_NAMES, after=after)
            names += page
            if after is None:
                break
        # All of them have their turn, however few one run comes to.
        start = self._choose(len(names)) if len(names) > limit else 0
        wanted = [*names[start:], *names[:start]][:limit]
        for at in range(0, len(wanted), _QUEUES):
            chunk: list[Pool] = []
            for pool in self._pools.get_many(wanted[at : at + _QUEUES]):
                if chunk and sum(len(each.queues) for each in [*chunk, pool]) > _QUEUES:
                    yield chunk
                    chunk = []
                chunk.append(pool)
            if chunk:
                yield chunk

    def _look(self, run: _Run, pools: Sequence[Pool]) -> None:
        names = list(dict.fromkeys(name for pool in pools for name in pool.queues))
        found = self._stats.sights(names, now_ms=run.now_ms)
        sights = {sight.queue.name: sight for sight in found}
        standings = self._standings.read(pools)
        held = self._held(found)
        for pool in pools:
            of_pool = [sights[name] for name in pool.queues]
            standing = standings[pool.name]
            run.counts["pools"] += 1
            run.seen.append(metrics_of(pool, standing.active, of_pool, run.now_ms))
            try:
                starved = self._starved(run, pool, standing, of_pool, held)
                self._note(run, pool, standing, of_pool, starved)
            except OjsError:
                # One must not hold up the others; the next minute looks at it again.
                run.counts["failed"] += 1

    def _held(self, sights: Sequence[QueueSnapshot]) -> set[str]:
        """Queues that their own limits hold back. One call where any has limits."""
        limiters = [
            LimitName.of_queue(sight.queue.name, counts)
            for sight in sights
            for counts, limit in (
                (keys.SLOTS, sight.queue.config.concurrency),
                (keys.RATE, sight.queue.config.rate_limit),
            )
            if limit is not None and sight.waiting
        ]
        full = {sight.queue.name for sight in sights if sight.full}
        edges = self._edges.get_many(limiters) if limiters else []
        return full | {edge.limiter.queue for edge in edges if edge.held and edge.limiter.queue}

    def _starved(
        self,
        run: _Run,
        pool: Pool,
        standing: PoolHealth,
        sights: Sequence[QueueSnapshot],
        held: set[str],
    ) -> dict[str, Starved]:
        """Queues with jobs that were given nothing for longer than the pool's rotation interval."""
        known, patience = standing.watch.starved, patience_ms(pool)
        starved = {}
        for sight in sights:
            name, oldest_ms = sight.queue.name, sight.oldest_ms
            if home_of(sight.queue) != pool.name or name in held or not sight.waiting:
                continue
            if oldest_ms is None or run.now_ms - oldest_ms <= patience:
                continue
            if sight.minute.started or sight.minute_before.started:
                continue
            if name in known:
                starved[name] = known[name]
                continue
            since_ms = self._since(name, oldest_ms, run.now_ms)
            if run.now_ms - since_ms > patience:
                starved[name] = Starved(since_ms, sight.waiting)
        return starved

    def _since(self, name: str, oldest_ms: int, now_ms: int) -> int:
        """Since when a queue whose oldest job waits was given nothing: not before that job came,
        nor before the end of the last minute in which anything was started. One call.
        """
        first_ms = max(oldest_ms, now_ms - DAY_MS)
        points = self._stats.points(name, MINUTE_MS, first_ms, now_ms + 1)
        ends = (point.start_ms + MINUTE_MS for point in points if point.activity.started)
        return max([first_ms, *ends])

    def _note(
        self,
        run: _Run,
        pool: Pool,
        standing: PoolHealth,
        sights: Sequence[QueueSnapshot],
        starved: Mapping[str, Starved],
    ) -> None:
        """Write down what began or ended."""
        before = standing.watch
        waiting = 0
        if pool.concurrency is not None and standing.active >= pool.concurrency:
            waiting = sum(sight.waiting for sight in sights)
        overload = None
        if waiting:
            overload = before.overload or Overload(run.now_ms, standing.active, waiting)
        after = PoolAlerts(pool.created_ms, starved, overload, run.now_ms)
        same = (before.starved, before.overload) == (after.starved, after.overload)
        if same and (not after or run.now_ms - before.at_ms < _RENEW_MS):
            return
        if not self._standings.save_watch(pool.name, before, after):
            run.counts["raced"] += 1
            return
        run.counts["starved"] += len(starved.keys() - before.starved.keys())
        run.counts["overloaded"] += before.overload is None and overload is not None
        run.counts["over"] += len(before.starved.keys() - starved.keys())
        run.counts["over"] += before.overload is not None and overload is None
