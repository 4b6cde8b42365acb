"""Statistics: queues with their counts, totals, history, and the values of metrics.

The cost does not depend on the number of jobs: at most three calls for one queue or for the
totals. In listings, one call reads 100 items: two per queue, four per queue for metrics, and one
more for each open shard of the stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ojs.clock import Clock
from ojs.domain.errors import BAD_CURSOR, NotFound, naming_field
from ojs.domain.job import envelope
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.domain.pool.pool import Pool
from ojs.domain.pool.statistics import metrics_of
from ojs.domain.queue.order import QueueOrder
from ojs.domain.rate_limit.limiter import limiter_name
from ojs.domain.stats import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    Activity,
    LimitMetrics,
    MetricsSnapshot,
    Period,
    Point,
    PoolMetrics,
    QueueDay,
    QueueStats,
    QueueSummary,
    StateCounts,
    Totals,
    rates,
)
from ojs.domain.tenants import get_tenant
from ojs.store.derived import statistics as store
from ojs.store.derived.pool_health import PoolHealthStore
from ojs.store.derived.statistics import Counters, ReadyLine
from ojs.store.jobs.lease_notes import SLOTS_ITEM, ClaimIntents, slots_in_use
from ojs.store.permits.key_limits import KeyLimits
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.queues import queues as queue_store
from ojs.store.queues.pools import PoolStore
from ojs.store.table import keys

# Number of read units for the items of one page of queues. A response has at most 60. The rest is
# for names and for items that are larger than usual.
_LIST_UNITS = 48
# Metrics include this number of queues, ordered by name. A scrape reads four items of each.
MAX_METRIC_QUEUES = 500
# Metrics include this number of worker pools, ordered by name, up to this total number of their
# queues. A scrape reads five items of each queue, and four of each pool.
MAX_METRIC_POOLS = 100
MAX_METRIC_POOL_QUEUES = 500
# Metrics include this number of rate limit keys, ordered by name. A scrape reads the limiter of
# each, the shards of its permits, and its throttle state.
MAX_METRIC_KEYS = 100


class Statistics:
    """Reads statistics. Makes no writes."""

    def __init__(
        self,
        *,
        statistics: store.StatisticsStore,
        notes: ClaimIntents,
        queues: queue_store.QueueStore,
        key_limits: KeyLimits,
        throttle_states: ThrottleStates,
        pools: PoolStore,
        pool_health: PoolHealthStore,
        clock: Clock,
    ) -> None:
        self._stats = statistics
        self._notes = notes
        self._queues = queues
        self._limits = key_limits
        self._throttle_states = throttle_states
        self._pools = pools
        self._health = pool_health
        self._clock = clock

    def queue(self, name: str, *, hour: bool = False) -> QueueStats:
        """Return one queue's statistics. All values are zero if the queue does not exist.

        Makes three calls, one more for the activity of the last `hour`, and one to five for jobs
        that were claimed in the last minute.

        If there are at most `ojs.store.derived.statistics.MAX_SHALLOW` available, scheduled,
        retryable, and active jobs, they are counted in the index. A small number of recently
        claimed jobs is counted in the lease notes. Otherwise the counts are those of the
        projection.
        """
        now_ms = self._clock.now_ms()
        # The index first, because the batches found in it are looked up with the counters.
        ready = self._stats.ready(name)
        waiting = self._stats.waiting(name)
        counters = self._stats.counters(
            name, now_ms=now_ms, batches=ready.batches, other=SLOTS_ITEM
        )
        ready = ready.without(counters.staged)
        if counters.queue is not None and counters.queue.lanes != 1:
            # The index partitions of other lanes were not read.
            ready, waiting = ReadyLine((), whole=False), None
        last_hour = Activity()
        if hour:
            since_ms = now_ms - now_ms % MINUTE_MS - HOUR_MS + MINUTE_MS
            # The items of shards were read before, so activity that is moved from them in between
            # is counted once.
            points = self._stats.points(
                name, MINUTE_MS, since_ms, now_ms + 1, recent=counters.recent, consistent=True
            )
            last_hour = sum((point.activity for point in points), last_hour)
        states = dict(counters.levels.states)
        priorities: Mapping[int, int] = counters.priorities
        if ready.whole:
            states[State.AVAILABLE] = len(ready.positions)
            priorities = Counter(position.priority for position in ready.positions)
        if waiting is not None:
            states.update(waiting)
            noted = self._notes.few_running(name, slots_in_use(counters.other))
            states[State.ACTIVE] = (
                counters.levels.states[State.ACTIVE]
                if noted is None
                else waiting[State.ACTIVE] + noted
            )
        return QueueStats(
            name=name,
            queue=counters.queue,
            levels=StateCounts(states, counters.levels.dead),
            now_ms=now_ms,
            today=counters.today,
            rates=rates(counters.minute, counters.minute_before, now_ms),
            priorities=priorities,
            oldest_available_ms=_oldest(ready, counters) if states[State.AVAILABLE] else None,
            last_hour=last_hour,
        )

    def existing(self, name: str, *, hour: bool = False) -> QueueStats:
        """Return the statistics of an existing queue. Raises NotFound."""
        stats = self.queue(name, hour=hour)
        if stats.queue is None:
            raise NotFound("queue", name)
        return stats

    def most_listed(self, *, days: bool = False) -> int:
        """Return the maximum number of queues, or `days` of queues, per page. Makes one call."""
        items = store.DAY_ITEMS if days else store.SUMMARY_ITEMS
        return self._stats.fitting(_LIST_UNITS, items)

    def list(
        self,
        *,
        limit: int,
        skip: int = 0,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> Page[QueueSummary]:
        """Return a page of queues, ordered by name, with their projected counts and rates.

        The age of the oldest available job is that of the last sweep. Makes one call, and one or
        two for up to `most_listed` queues.

        Args:
            limit: Maximum number of queues.
            skip: Number of queues to skip.
            cursor: Cursor of the previous page.
            tenant: Only queues of this tenant. Default: all queues.

        Returns:
            The page.

        Raises:
            InvalidRequest: The cursor is invalid.
        """
        names, following = self._names(limit, skip, cursor, tenant)
        return Page(self._stats.summaries(names, now_ms=self._clock.now_ms()), following)

    def list_by(
        self,
        order: QueueOrder,
        *,
        limit: int,
        skip: int = 0,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> tuple[Page[QueueSummary], int]:
        """Return a page of queues, ordered by a count as of the last sweep.

        Queues whose count is zero are omitted. The values of each queue are those of `list`. Makes
        one call, and one or two for up to `most_listed` queues.

        Args:
            order: The count to order by.
            limit: Maximum number of queues.
            skip: Number of queues to skip.
            cursor: Cursor of the previous page.
            tenant: Only queues of this tenant. Default: all queues.

        Returns:
            The page, and the total number of queues with such a count.

        Raises:
            InvalidRequest: The cursor is invalid.
        """
        found = self._stats.orders().by(order)
        if tenant is not None:
            found = [each for each in found if get_tenant(each[1]) == tenant]
        after: tuple[int, str] | None = None
        if cursor is not None:
            with naming_field("cursor", cursor, BAD_CURSOR):
                value, _, name = cursor.partition(" ")
                after = int(value), envelope.check_queue(name)
        left = [each for each in found if after is None or each > after][skip:]
        shown = left[:limit]
        summaries = self._stats.summaries([name for _, name in shown], now_ms=self._clock.now_ms())
        following = "{} {}".format(*shown[-1]) if len(left) > limit else None
        there = [each for each in summaries if each.queue is not None]
        return Page(there, following), len(found)

    def days(
        self, *, limit: int, cursor: str | None = None, tenant: str | None = None
    ) -> Page[QueueDay]:
        """Return a page of queues (of a tenant), by name, with their projected activity of today.

        Makes one call, and one for up to `most_listed` days. Raises InvalidRequest for an invalid
        cursor.
        """
        names, following = self._names(limit, 0, cursor, tenant)
        return Page(self._stats.days(names, now_ms=self._clock.now_ms()), following)

    def _names(
        self, limit: int, skip: int, cursor: str | None, tenant: str | None
    ) -> tuple[Sequence[str], str | None]:
        """Return the names of a page of queues, and the cursor of the next page."""
        if cursor is not None:
            with naming_field("cursor", cursor, BAD_CURSOR):
                envelope.check_queue(cursor)
        # Names are small, so skipped names are read as well, and one more to detect whether there
        # is a next page.
        end = skip + limit
        names, _ = self._queues.names(limit=end + 1, after=cursor, tenant=tenant)
        return names[skip:end], names[end - 1] if len(names) > end else None

    def totals(self, tenant: str | None = None) -> Totals:
        """Return the totals of all queues, as stored by the last metrics sweep. Makes one call.

        With a tenant, add the current counts of its queues. Makes one call for 1,000 names, and one
        for each page of counts. Workers are not counted by tenant.
        """
        totals, _ = self._stats.totals()
        if tenant is None:
            return totals
        names = self._queues.all_names(tenant)
        levels, _, _ = self._stats.levels(names)
        return Totals(totals.at_ms, len(names), sum(levels.values(), StateCounts()))

    def history(
        self, period: Period, *, since_ms: int, until_ms: int, queue: str | None = None
    ) -> Sequence[Point]:
        """Return points of activity, oldest first. Makes one call.

        Deleted points and points in the future are omitted. A period without activity is a point
        of zeros.

        Args:
            period: Length of each point.
            since_ms: Time in the first point, in milliseconds since the epoch.
            until_ms: End of the range, in milliseconds since the epoch.
            queue: Name of the queue. Default: all queues together.

        Returns:
            The points.
        """
        now_ms = self._clock.now_ms()
        length_ms = _kept_as(period, queue)
        kept_ms = store.KEPT_MS[length_ms]
        if queue is not None and length_ms == DAY_MS:
            kept_ms = store.QUEUE_DAYS_MS
        since_ms = max(since_ms, now_ms - kept_ms)
        starts = range(since_ms - since_ms % period.ms, min(until_ms, now_ms + 1), period.ms)
        if not starts:
            return []
        sums = dict.fromkeys(starts, Activity())
        end_ms = min(starts[-1] + period.ms, now_ms + 1)
        name = keys.ALL_QUEUES if queue is None else queue
        for point in self._stats.points(name, length_ms, starts[0], end_ms):
            sums[point.start_ms - point.start_ms % period.ms] += point.activity
        return [Point(start, activity) for start, activity in sums.items()]

    def metrics(self) -> MetricsSnapshot:
        """Return the values of all metrics.

        Makes four calls, one per 100 items of queues (four items per queue, and one per open
        shard), and two more if there are rate limits. With worker pools, it makes two more, and
        one per 100 items of their queues.
        """
        now_ms = self._clock.now_ms()
        names, _ = self._queues.names(limit=MAX_METRIC_QUEUES)
        return MetricsSnapshot(
            now_ms=now_ms,
            queues=self._stats.metrics(names, now_ms=now_ms),
            totals=self.totals(),
            limits=self._of_keys(),
            pools=self._of_pools(now_ms),
        )

    def _of_pools(self, now_ms: int) -> Sequence[PoolMetrics]:
        """Return metrics of the first pools by name, up to MAX_METRIC_POOL_QUEUES queues."""
        names, _ = self._pools.names(limit=MAX_METRIC_POOLS)
        if not names:
            return []
        pools: list[Pool] = []
        queues: dict[str, None] = {}
        for pool in self._pools.get_many(names):
            queues |= dict.fromkeys(pool.queues)
            if len(queues) > MAX_METRIC_POOL_QUEUES:
                break
            pools.append(pool)
        wanted = list(dict.fromkeys(name for pool in pools for name in pool.queues))
        snapshots = {each.queue.name: each for each in self._stats.snapshots(wanted, now_ms=now_ms)}
        health_of = self._health.read(pools)
        return [
            metrics_of(
                pool, health_of[pool.name].active, [snapshots[name] for name in pool.queues], now_ms
            )
            for pool in pools
        ]

    def _of_keys(self) -> Sequence[LimitMetrics]:
        known, _ = self._limits.keys(limit=MAX_METRIC_KEYS)
        if not known:
            return []
        found = self._limits.get_many({limiter_name(key): 1 for key in known}, consistent=False)
        limiters = (found[limiter_name(key)] for key in known)
        states = self._throttle_states.get_many(LimitName.of_key(key) for key in known)
        return [
            LimitMetrics(
                key=key,
                active=limiter.active if limiter.counted else None,
                waiting=state.waiting or 0,
                exceeded=state.exceeded,
                waits=state.waits,
                waited_ms=state.waited_ms,
            )
            for key, limiter, state in zip(known, limiters, states, strict=True)
        ]


def _oldest(ready: ReadyLine, counters: Counters) -> int | None:
    """Return when the oldest available job became available (ms), if known."""
    shown = [store.ready_since_ms(position) for position in ready.positions]
    if ready.whole:
        return min(shown, default=None)
    first = ready.positions[0].priority if ready.positions else None
    # If all jobs have one priority, the oldest job is the first one, or one of the first jobs of a
    # fair queue. Otherwise only the sweep has read the whole index.
    if shown and set(counters.priorities) <= {first}:
        return min(shown)
    return counters.oldest_ms if counters.oldest_ms is not None else min(shown, default=None)


def _kept_as(period: Period, queue: str | None) -> int:
    """Return the length (ms) of the stored points that a history of this period is summed from."""
    if period is Period.DAY:
        return DAY_MS
    return HOUR_MS if period is Period.HOUR and queue is None else MINUTE_MS
