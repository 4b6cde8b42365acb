"""Reads statistics: counters of the projection, and counts from the index.

The projection writes the counters of each queue (`S|{queue}`, and by stream shard:
`ojs.store.derived.sharded`). The metrics sweep writes the sums of all queues (`S|*`). The counters
are delayed by the DynamoDB stream. The index has less delay, so it is used for counts that need
only one page.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice, starmap
from types import MappingProxyType
from typing import Any

from ojs.domain import jsontext, times
from ojs.domain.counters.definitions import COUNTERS, Metric
from ojs.domain.fair_queue.tags import arrival, tagged
from ojs.domain.job.states import State
from ojs.domain.pool.statistics import QueueSnapshot
from ojs.domain.queue.order import QueueOrders
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import (
    ACTIVITIES,
    DAY_MS,
    DURATION_BUCKETS_S,
    HOUR_MS,
    MINUTE_MS,
    QUEUE_TIME_BUCKETS_S,
    Activity,
    Day,
    Filling,
    Point,
    QueueDay,
    QueueGauges,
    QueueMetrics,
    QueueSummary,
    Rates,
    StateCounts,
    Totals,
    WorkerCounts,
    rates,
)
from ojs.records import record
from ojs.store.derived.sharded import Key, ShardActivity, ShardCounters, merged
from ojs.store.derived.shards import ShardCounts
from ojs.store.queues.queues import from_item
from ojs.store.table import keys
from ojs.store.table.errors import Unreadable, ignore_unreadable, readable
from ojs.store.table.races import wins
from ojs.store.table.table import MAX_BATCH_GET, Put, Table
from ojs.store.table.values import Item, Value, projected

# Maximum number of jobs that are counted in the index: one page, about two read units. One more
# entry is read to detect whether there are more.
MAX_SHALLOW = 100

# For each length of a period: the prefix of the sort keys of its counters, and the time for which
# they are shown. The table keeps them slightly longer (`ttl`), so that the shown counters are
# complete.
KEPT_MS = {MINUTE_MS: DAY_MS, HOUR_MS: 7 * DAY_MS, DAY_MS: 399 * DAY_MS}
# A queue has no counters by hour, and its counters by day are kept for a shorter time than the
# totals.
QUEUE_DAYS_MS = 89 * DAY_MS
_SPARE_MS = {MINUTE_MS: HOUR_MS, HOUR_MS: DAY_MS, DAY_MS: DAY_MS}

_ENTRY_STATES = {
    keys.START: State.SCHEDULED,
    keys.RETRY: State.RETRYABLE,
    keys.LEASE_END: State.ACTIVE,
}
# Number of items of a queue's summary, and of its day, without the items of shards.
SUMMARY_ITEMS, DAY_ITEMS = 5, 3
# The attribute with the number of all dispatches of the queue's jobs.
_DISPATCHED = "t_started"
# The projection has normally processed the stream after this time. Otherwise an alarm is raised.
_COUNTED_MS = 600_000
# Minimum number of a shard's items in a read unit, for eventually consistent reads.
_SHARD_ITEMS_A_UNIT = 8
_EARLIEST = "0"  # before every sort key of a ready partition
_MILLI = 1_000


@record(frozen=True)
class ReadyLine:
    """The first entries of a queue's ready index. `whole` is true if these are all."""

    positions: Sequence[keys.Position]
    whole: bool

    @property
    def batches(self) -> frozenset[str]:
        """The tokens of staged batches among the entries."""
        return frozenset(found.batch for found in self.positions if found.batch is not None)

    def without(self, staged: Collection[str]) -> ReadyLine:
        """Return the entries without the jobs of these batches, which are not committed yet."""
        kept = [found for found in self.positions if found.batch not in staged]
        return ReadyLine(kept, self.whole)


@record(frozen=True)
class Counters:
    """The counters of a queue from the projection, and the uncommitted batches.

    `other` is another item that the caller requested in the same call.
    """

    queue: Queue | None
    levels: StateCounts
    priorities: Mapping[int, int]
    today: Activity
    minute: Activity
    minute_before: Activity
    oldest_ms: int | None
    recent: ShardActivity
    staged: frozenset[str]
    other: Item | None


@record(frozen=True)
class QueuesOutline:
    """The lanes of queues, their jobs by state if known, and the totals of all queues.

    `total_ms` is when the totals were counted, if they were. It also has the number of queues, and
    the maximum number of read units used. `whole` is false if a shard of the stream is new. `other`
    is the item that the caller requested in the same call.
    """

    lanes: Mapping[str, int]
    levels: Mapping[str, StateCounts]
    total: StateCounts
    total_ms: int | None
    queues: int
    units: float
    whole: bool
    other: Item | None
    # Counters of the days and minutes of the first queue, in the items of shards.
    recent: ShardActivity


# Prefix of the attributes that count jobs sent by deliveries.
PUSHES = "d_"


@record(frozen=True)
class Oldest:
    """The time when the oldest available job became available (None: not found), and the read
    count.
    """

    ms: int | None
    probes: int
    # Whether the search was complete.
    sure: bool


class StatisticsStore:
    """Reads and writes statistics. Only the metrics sweep writes."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._sharded = ShardCounters(table)

    # --- one queue ----------------------------------------------------------------------------

    def ready(self, name: str) -> ReadyLine:
        """Return the first entries of a queue's ready index. Makes one call."""
        found = self._table.query(
            "wpk = :line", {":line": keys.ready(name, 0)}, index="work", limit=MAX_SHALLOW + 1
        )
        positions = keys.positions(found.items)
        return ReadyLine(positions, found.last is None and len(found.items) <= MAX_SHALLOW)

    def waiting(self, name: str) -> Mapping[State, int] | None:
        """Count the scheduled, retryable, and active jobs by state.

        None if there are too many. Makes one call.

        The counts include scheduled jobs of a large batch that is still being stored.
        """
        found = self._table.query(
            "wpk = :line", {":line": keys.due(name, 0)}, index="work", limit=MAX_SHALLOW + 1
        )
        if found.last is not None or len(found.items) > MAX_SHALLOW:
            return None
        counted = dict.fromkeys(_ENTRY_STATES.values(), 0)
        for item in found.items:
            if not keys.is_job_entry(item):
                continue
            state = _ENTRY_STATES.get(str(item["wsk"])[-1:])
            if state is None:
                return None
            counted[state] += 1
        return counted

    def counters(self, name: str, *, now_ms: int, batches: Collection[str], other: Key) -> Counters:
        """Read a queue, its counters, uncommitted batches, and another item. Makes one call.

        Args:
            name: Name of the queue.
            now_ms: Current time in milliseconds since the epoch.
            batches: Tokens of batches. Those that don't fit into one call count as not committed.
            other: Key of another item to read.
        """
        stats = keys.stats(name)
        wanted = [
            (keys.queue(name), keys.RECORD),
            (stats, keys.NOW),
            (stats, keys.GAUGE),
            *((stats, _sort_key(*of)) for of in ((DAY_MS, now_ms), *_minutes(now_ms))),
        ]
        looked_up = list(islice(batches, MAX_BATCH_GET - len(wanted) - 1))
        staged = [(keys.batch(token), keys.RECORD) for token in looked_up]
        found, recent = self._sharded.batch_get_with_recent(name, [*wanted, other, *staged])
        queue, now, gauge, today, minute, before = (found.get(key, {}) for key in wanted)
        return Counters(
            queue=from_item(name, queue) if queue else None,
            levels=_levels(now),
            priorities=_priorities(now),
            today=_activity(today),
            minute=_activity(minute),
            minute_before=_activity(before),
            oldest_ms=_optional(gauge, "oldest"),
            recent=recent,
            staged=frozenset(batches)
            - {token for token in looked_up if (keys.batch(token), keys.RECORD) not in found},
            other=found.get(other),
        )

    # --- several queues -----------------------------------------------------------------------

    def _items(
        self, names: Sequence[str], *sort_keys: str, consistent: bool = False
    ) -> Iterator[tuple[str, Item, list[Item]]]:
        """Yield each queue's name, its own item, and its statistics items. A missing item is {}.

        Makes one call for MAX_BATCH_GET items.
        """
        keys_of = {
            name: [(keys.queue(name), keys.RECORD), *((keys.stats(name), sk) for sk in sort_keys)]
            for name in names
        }
        found = self._sharded.batch_get(
            (key for of_one in keys_of.values() for key in of_one), consistent=consistent
        )
        for name in names:
            queue, *statistics = (found.get(key, {}) for key in keys_of[name])
            yield name, queue, statistics

    def available(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of available jobs of these queues, from the projection.

        Makes one call for 100 items.
        """
        found = self._sharded.batch_get(
            ((keys.stats(name), keys.NOW) for name in names), consistent=False
        )
        return {
            name: projected(found.get((keys.stats(name), keys.NOW), {}), State.AVAILABLE)
            for name in names
        }

    def pushes(self, names: Sequence[str]) -> dict[str, Mapping[str, int]]:
        """Return how many jobs of these queues were sent by deliveries, and how many of them
        finished.

        The counts are `pushed`, `completed`, and `failed`, from the projection. One call for 100
        queues.
        """
        if not names:
            return {}
        found = self._sharded.batch_get(
            ((keys.stats(name), keys.NOW) for name in names), consistent=False
        )
        return {
            name: {
                kind: projected(found.get((keys.stats(name), keys.NOW), {}), f"{PUSHES}{kind}")
                for kind in ("pushed", "completed", "failed")
            }
            for name in names
        }

    def summaries(self, names: Sequence[str], *, now_ms: int) -> list[QueueSummary]:
        """Return queues with their counts, in the order of the names.

        The read is eventually consistent.

        A call reads 100 items: five for each queue, and one for each open stream shard.
        """
        items = self._items(names, keys.NOW, keys.GAUGE, *starmap(_sort_key, _minutes(now_ms)))
        found = []
        for name, queue, (now, gauge, minute, before) in items:
            levels = _levels(now)
            found.append(
                QueueSummary(
                    name=name,
                    queue=from_item(name, queue) if queue else None,
                    levels=levels,
                    now_ms=now_ms,
                    rates=rates(_activity(minute), _activity(before), now_ms),
                    oldest_available_ms=(
                        _optional(gauge, "oldest") if levels.of(State.AVAILABLE) else None
                    ),
                )
            )
        return found

    def days(self, names: Sequence[str], *, now_ms: int) -> list[QueueDay]:
        """Return the current day of queues, in the order of the names.

        The read is eventually consistent.

        A call reads 100 items: three for each queue, and one for each open stream shard.
        """
        items = self._items(names, keys.NOW, _sort_key(DAY_MS, now_ms))
        return [QueueDay(name, _levels(now), _activity(day)) for name, _, (now, day) in items]

    def fitting(self, units: int, items: int) -> int:
        """Return the number of queues that can be read with at most `units` read units.

        Each queue has `items` items, and one for each open stream shard. Makes one call.
        """
        return max(1, 2 * units // (items + self._sharded.look()))

    def outline(
        self, names: Sequence[str], *, now_ms: int, other: Key | None = None
    ) -> QueuesOutline:
        """Return which queues have jobs, and the totals of all queues.

        Makes one call, eventually consistent.

        Args:
            names: Names of the queues.
            now_ms: Current time in milliseconds since the epoch.
            other: Key of another item to read in the same call.
        """
        own = {name: (keys.queue(name), keys.RECORD) for name in names}
        counted = {name: (keys.stats(name), keys.NOW) for name in names}
        total = keys.stats(keys.ALL_QUEUES), keys.NOW
        others = [] if other is None else [other]
        found, recent, whole = self._sharded.outline(
            [*own.values(), *counted.values(), total, *others]
        )
        there = [(name, found[key]) for name, key in own.items() if key in found]
        queues = list(readable(lambda one: from_item(*one), there, ignore_unreadable))
        older = {queue.name for queue in queues if queue.created_ms < now_ms - _COUNTED_MS}
        return QueuesOutline(
            # A queue that is deleted, or that can't be read, might still have jobs.
            lanes=dict.fromkeys(names, 1) | {queue.name: queue.lanes for queue in queues},
            levels={
                name: _levels(found.get(key, {}))
                for name, key in counted.items()
                # A queue that was just created has no counters yet.
                if whole and (key in found or name in older)
            },
            total=_levels(found.get(total, {})),
            total_ms=_optional(found.get(total, {}), "at"),
            queues=projected(found.get(total, {}), "queues"),
            units=1 + (len(names) * (2 + self._sharded.shards) + len(others)) / 2,
            whole=whole,
            other=None if other is None else found.get(other),
            recent=recent,
        )

    def levels(self, names: Sequence[str]) -> tuple[dict[str, StateCounts], int, float]:
        """Return the jobs of queues by state, and the number of calls and of read units used.

        Queues without stored counts are not returned. `names` must be in order. Eventually
        consistent.
        """
        if not names:
            return {}, 0, 0.0
        found, calls, units = self._sharded.levels(names)
        return {name: _levels(item) for name, item in found.items()}, calls, units

    def levels_units(self, names: int, among: int) -> float:
        """Return the maximum number of read units of `levels` for `names` queues.

        `among` is the number of all queues.
        """
        return names / 2 + self._sharded.shards * among / _SHARD_ITEMS_A_UNIT + 2

    def lanes(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of lanes of queues. Makes one call for each 100 items.

        The number is 1 for a queue that is deleted or can't be read.
        """
        found = self._table.batch_get(
            ((keys.queue(name), keys.RECORD) for name in names), consistent=False
        )
        there = [(pk.removeprefix(keys.queue("")), item) for (pk, _), item in found.items()]
        queues = readable(lambda one: from_item(*one), there, ignore_unreadable)
        return dict.fromkeys(names, 1) | {queue.name: queue.lanes for queue in queues}

    def outlined(self, units: int) -> int:
        """Return the number of queues that an outline can have with at most `units` read units."""
        return max(1, 2 * units // (2 + max(1, self._sharded.shards)))

    def snapshots(self, names: Sequence[str], *, now_ms: int) -> list[QueueSnapshot]:
        """Return snapshots of queues, in the order of the names. The read is eventually consistent.

        A queue that doesn't exist has zeros. A call reads 100 items: five for each queue, and one
        for each open stream shard.
        """
        minutes = (_sort_key(*minute) for minute in _minutes(now_ms))
        return [
            QueueSnapshot(
                queue=from_item(name, queue),
                levels=_levels(now),
                dispatched=projected(now, _DISPATCHED),
                oldest_ms=_optional(gauge, "oldest"),
                minute=_activity(minute),
                minute_before=_activity(before),
            )
            for name, queue, (now, gauge, minute, before) in self._items(
                names, keys.NOW, keys.GAUGE, *minutes
            )
        ]

    def gauges(
        self,
        names: Sequence[str],
        unreadable: Unreadable | None = None,
        *,
        counted: Mapping[str, Sequence[ShardCounts]] | None = None,
        before: Mapping[str, QueueGauges] = MappingProxyType({}),
    ) -> list[QueueGauges]:
        """Return the gauges of these queues.

        A call reads 100 items.

        Args:
            names: Names of the queues. Each takes three items, and one for each open stream shard.
            unreadable: Called for each queue that can't be read, which is then skipped. If it is
                None, an error is raised.
            counted: The counters of the shards, read before (`counted`). Default: they are read.
            before: Earlier gauges of queues whose record and oldest job are known. Each takes one
                item.
        """
        if counted is None:
            found = self._items(names, keys.NOW, keys.GAUGE)
            return list(readable(lambda one: _gauges(one[0], one[1], *one[2]), found, unreadable))
        now = {name: (keys.stats(name), keys.NOW) for name in names}
        wanted = [*now.values()]
        for name in names:
            if name not in before:
                wanted += [(keys.queue(name), keys.RECORD), (keys.stats(name), keys.GAUGE)]
        there = self._table.batch_get(wanted, consistent=False)

        def of(name: str) -> QueueGauges:
            levels = merged(now[name], there.get(now[name]), counted[name]) or {}
            if (known := before.get(name)) is not None:
                return _counted(known.queue, levels, known.oldest_ms)
            record = there.get((keys.queue(name), keys.RECORD), {})
            return _gauges(name, record, levels, there.get((keys.stats(name), keys.GAUGE), {}))

        return list(readable(of, names, unreadable))

    def metrics(self, names: Sequence[str], *, now_ms: int) -> Iterator[QueueMetrics]:
        """Yield the metrics of these queues, in order.

        Reads four items for each queue, and one more for each open shard, 100 items per call.
        """
        today = _sort_key(DAY_MS, now_ms)
        size = MAX_BATCH_GET
        for at in range(0, len(names), size):
            part = self._items(names[at : at + size], keys.NOW, keys.GAUGE, today)
            for name, queue, (now, gauge, day) in part:
                yield QueueMetrics(**vars(_gauges(name, queue, now, gauge)), today=_day(day))

    def totals(self) -> tuple[Totals, int | None]:
        """Return the totals, and the start (ms) of the last minute whose activity was stored."""
        item = self._table.get(keys.stats(keys.ALL_QUEUES), keys.NOW) or {}
        totals = Totals(
            at_ms=_optional(item, "at"),
            queues=projected(item, "queues"),
            levels=_levels(item),
            workers=WorkerCounts(
                running=projected(item, "workers_running"),
                quiet=projected(item, "workers_quiet"),
                stale=projected(item, "workers_stale"),
            ),
            rates=Rates(
                processed=projected(item, "rate_processed") / _MILLI,
                failed=projected(item, "rate_failed") / _MILLI,
            ),
            oldest_ms=_optional(item, "oldest"),
            orders=str(item.get("orders", "")),
        )
        return totals, _optional(item, "through")

    def orders(self) -> QueueOrders:
        """Return the orders of queues that the metrics sweep stored. Makes one call."""
        item = self._table.get(keys.stats(keys.ALL_QUEUES), keys.ORDERS, consistent=False)
        if item is None:
            return QueueOrders()
        packed: Any = item["zip"]
        return QueueOrders(jsontext.stored(zlib.decompress(packed).decode("utf-8")))

    # --- history ------------------------------------------------------------------------------

    def points(
        self,
        name: str,
        length_ms: int,
        since_ms: int,
        until_ms: int,
        *,
        recent: ShardActivity | None = None,
        consistent: bool = False,
    ) -> list[Point]:
        """Return the activity of the periods that start in [since_ms, until_ms). One or two calls.

        Periods without activity are left out.

        Args:
            name: Name of the queue, or `ALL_QUEUES`.
            length_ms: Length of a period: a minute, an hour, or a day.
            since_ms: Start of the first period.
            until_ms: End of the range.
            recent: Counters of the shards, if they were read before. Default: read by one more
                call.
            consistent: Whether the reads are strongly consistent.
        """
        pk = keys.stats(name)
        starts = range(since_ms - since_ms % length_ms, until_ms, length_ms)
        if not starts:
            return []
        sort_keys = {_sort_key(length_ms, start): start for start in starts}
        if recent is None:
            recent = self._sharded.recent(name, consistent=consistent)
        if length_ms == DAY_MS and name != keys.ALL_QUEUES:
            # Items can be large (counts by type, histograms). A query returns 1 MB, a read by keys
            # up to 16 MB.
            by_key = self._table.batch_get(((pk, sk) for sk in sort_keys), consistent=consistent)
            items = {str(item["sk"]): item for item in by_key.values()}
        else:
            found = self._table.query_all(
                "pk = :pk AND sk BETWEEN :first AND :last",
                {":pk": pk, ":first": min(sort_keys), ":last": max(sort_keys)},
                consistent=consistent,
            )
            items = {str(item["sk"]): item for item in found}
        whole = ((start, recent.added(pk, sk, items.get(sk))) for sk, start in sort_keys.items())
        return [Point(start, _activity(item)) for start, item in whole if item is not None]

    def minutes(
        self,
        changes: Mapping[str, int],
        since_ms: int,
        until_ms: int,
        *,
        counted: Mapping[str, Sequence[ShardCounts]],
        moved_ms: int,
    ) -> Iterator[tuple[str, list[Point]]]:
        """Yield each queue's activity of the minutes that start in [since_ms, until_ms).

        Minutes without activity are omitted. Eventually consistent.

        Args:
            changes: When each queue changed (ms), by name.
            since_ms: Earliest start (ms).
            until_ms: End (ms), exclusive.
            counted: The counters of the shards, read before (`counted`).
            moved_ms: The own items of a queue are read if a shard moved its counters there at this
                time (ms) or later, or if no shard has counted its last change. One call for a
                hundred items, one for each minute.
        """
        starts = range(since_ms - since_ms % MINUTE_MS, until_ms, MINUTE_MS)
        sort_keys = {_sort_key(MINUTE_MS, start): start for start in starts}
        moved = [
            name
            for name, changed_ms in changes.items()
            if any(one.part >= moved_ms for one in counted[name])
            or all(one.changed_ms < changed_ms for one in counted[name])
        ]
        own = self._table.batch_get(
            ((keys.stats(name), sk) for name in moved for sk in sort_keys), consistent=False
        )
        for name in changes:
            pk, recent = keys.stats(name), ShardActivity(counted[name])
            whole = ((ms, recent.added(pk, sk, own.get((pk, sk)))) for sk, ms in sort_keys.items())
            yield name, [Point(ms, _activity(item)) for ms, item in whole if item is not None]

    @property
    def shards(self) -> int:
        """Return the number of known open shards of the stream."""
        return self._sharded.shards

    def counted(self, names: Sequence[str]) -> dict[str, list[ShardCounts]]:
        """Return what the open shards have counted of these queues, in order of name, by queue."""
        return self._sharded.of_queues(names)

    def latest_days(
        self,
        name: str,
        first_ms: int,
        last_ms: int,
        *,
        limit: int,
        recent: ShardActivity | None = None,
    ) -> tuple[list[Point], bool]:
        """Return the most recent days with activity between two times, and whether these are all.

        Makes one call, eventually consistent.

        Args:
            name: Name of the queue.
            first_ms: Time in the first day.
            last_ms: Time in the last day.
            limit: Maximum number of days.
            recent: Counters of the shards, if they were read before.
        """
        if last_ms < first_ms:
            return [], True
        pk, first, last = keys.stats(name), _sort_key(DAY_MS, first_ms), _sort_key(DAY_MS, last_ms)
        found = self._table.query(
            "pk = :pk AND sk BETWEEN :first AND :last",
            {":pk": pk, ":first": first, ":last": last},
            limit=limit,
            forward=False,
        )
        items = {str(item["sk"]): item for item in found.items}
        if found.last is not None:
            first = min(items)
        recent = recent or ShardActivity(())
        days = sorted({*items, *recent.between(first, last)}, reverse=True)
        whole = ((sk, recent.added(pk, sk, items.get(sk))) for sk in days)
        points = [Point(_day_ms(sk), _activity(item)) for sk, item in whole if item is not None]
        return points, found.last is None

    def fold_closed(self, *, now_ms: int, go_on: Callable[[], bool]) -> int:
        """Move the counters of closed stream shards to the queues' own items.

        Return the number of moved items. Makes one call if no shard is closed. Raises OjsError.
        """
        return self._sharded.fold_closed(now_ms=now_ms, go_on=go_on)

    # --- the metrics sweep --------------------------------------------------------------------

    def oldest(self, queue: Queue, *, probes: int) -> Oldest:
        """Return since when the oldest available job is available: the first job of each priority.

        Each query reads one entry of the next lower priority, with at most `probes` queries. A fair
        queue is not sorted by age, so the first 100 jobs of a priority are compared there. These
        include the oldest if at most 100 tenants of equal weight have available jobs. Jobs of a
        batch that is still being stored are counted.
        """
        oldest: int | None = None
        used = 0
        for lane in range(queue.lanes):
            after, size = _EARLIEST, 1
            while True:
                if used >= probes:
                    return Oldest(oldest, used, sure=False)
                used += 1
                found = self._table.query(
                    "wpk = :line AND wsk > :after",
                    {":line": keys.ready(queue.name, lane), ":after": after},
                    index="work",
                    limit=size,
                )
                if not found.items:
                    break
                positions = keys.positions(found.items)
                if not positions:
                    after = str(found.items[-1]["wsk"])
                    continue
                if size == 1 and tagged(positions[0].order):
                    size = MAX_SHALLOW
                    continue
                first = positions[0].priority
                since = min(ready_since_ms(p) for p in positions if p.priority == first)
                oldest = since if oldest is None else min(oldest, since)
                after = keys.below(first)
        return Oldest(oldest, used, sure=True)

    def save_oldest(self, name: str, oldest_ms: int | None, *, now_ms: int) -> None:
        """Store the time since when the oldest available job is available.

        Args:
            name: Name of the queue.
            oldest_ms: The time in milliseconds since the epoch, or None if no job is available.
            now_ms: Current time in milliseconds since the epoch.
        """
        # No condition. If two sweeps run at the same time, the last write applies until the next
        # sweep.
        pk = keys.stats(name)
        if oldest_ms is None:
            self._table.delete(pk, keys.GAUGE)
        else:
            self._table.put(Put({"pk": pk, "sk": keys.GAUGE, "oldest": oldest_ms, "at": now_ms}))

    def save_point(self, length_ms: int, point: Point, *, now_ms: int) -> bool:
        """Store the activity of a period across queues.

        Args:
            length_ms: Length of the period.
            point: Activity of the period.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            False if a later sweep stored it already.
        """
        kept_s = (KEPT_MS[length_ms] + _SPARE_MS[length_ms]) // 1_000
        return self._save_total(
            _sort_key(length_ms, point.start_ms),
            {
                **asdict(point.activity),
                "ttl": (point.start_ms + length_ms) // 1_000 + kept_s,
            },
            now_ms,
        )

    def save_totals(self, totals: Totals, *, through_ms: int, now_ms: int) -> bool:
        """Store the totals of all queues.

        Args:
            totals: The totals.
            through_ms: End of the last period that they include.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            False if a later sweep stored them already.
        """
        return self._save_total(
            keys.NOW,
            {
                **{state.value: count for state, count in totals.levels.states.items()},
                "dead": totals.levels.dead,
                "queues": totals.queues,
                "workers_running": totals.workers.running,
                "workers_quiet": totals.workers.quiet,
                "workers_stale": totals.workers.stale,
                "rate_processed": round(totals.rates.processed * _MILLI),
                "rate_failed": round(totals.rates.failed * _MILLI),
                "oldest": totals.oldest_ms or 0,
                "orders": totals.orders,
                "through": through_ms,
            },
            now_ms,
        )

    def save_orders(self, orders: QueueOrders, before: str, *, now_ms: int) -> str:
        """Store the orders of queues, unless they are unchanged.

        Args:
            orders: The orders.
            before: Name of the stored orders.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            Name of these orders.
        """
        if not orders.rows and not before:
            return ""
        text = jsontext.dumps({name: [*row] for name, row in orders.rows.items()})
        name = hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
        if name != before:
            self._save_total(keys.ORDERS, {"zip": zlib.compress(text.encode("utf-8"))}, now_ms)
        return name

    def _save_total(self, sk: str, values: Mapping[str, Value], now_ms: int) -> bool:
        item = {name: value for name, value in values.items() if value}
        # Race: two sweeps. The one that started later wins. The totals of the other are dropped.
        return wins(
            lambda: self._table.put(
                Put(
                    {"pk": keys.stats(keys.ALL_QUEUES), "sk": sk, "at": now_ms, **item},
                    condition="attribute_not_exists(pk) OR #at <= :at",
                    values={":at": now_ms},
                )
            )
        )


def ready_since_ms(position: keys.Position) -> int:
    """Return when a job entered the ready index (ms).

    The time is at the start of the job's order (`ojs.domain.ids.IdSource`), after the fairness tag
    if there is one.
    """
    return int(arrival(position.order)[:11], 16)


def _minutes(now_ms: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the current minute and the previous one, as arguments of `_sort_key`."""
    return (MINUTE_MS, now_ms), (MINUTE_MS, max(0, now_ms - MINUTE_MS))


def _sort_key(length_ms: int, ms: int) -> str:
    """Return the sort key of the minute, hour, or day of a time (ms)."""
    text = times.format_ms(ms)
    if length_ms == MINUTE_MS:
        return keys.minute(text[:16])
    return keys.hour(text[:13]) if length_ms == HOUR_MS else keys.day(text[:10])


def _day_ms(sk: str) -> int:
    """Return the start of the day of a sort key (ms)."""
    return int(datetime.fromisoformat(sk[2:]).replace(tzinfo=UTC).timestamp()) * 1_000


def _optional(item: Mapping[str, Any], name: str) -> int | None:
    return int(item[name]) if name in item else None


def _levels(item: Item) -> StateCounts:
    return StateCounts(
        {state: projected(item, state.value) for state in State}, projected(item, "dead")
    )


def _gauges(name: str, item: Item, now: Item, gauge: Item) -> QueueGauges:
    return _counted(from_item(name, item), now, _optional(gauge, "oldest"))


def _counted(queue: Queue, now: Item, oldest_ms: int | None) -> QueueGauges:
    config, levels = queue.config, _levels(now)
    filling = None
    if config.bounded:
        filling = Filling(
            depth=levels.depth,
            max_size=config.max_size,
            size=projected(now, "loose_b") + projected(now, "held_b"),
            max_size_bytes=config.max_size_bytes,
        )
    return QueueGauges(queue, levels, projected(now, "changed"), oldest_ms, filling)


def _priorities(item: Item) -> dict[int, int]:
    counted = {}
    for name, count in item.items():
        digits = name.removeprefix("p")
        if name != digits and digits.removeprefix("-").isdecimal() and int(count) > 0:
            counted[int(digits)] = int(count)
    return counted


def _activity(item: Item) -> Activity:
    return Activity(**{name: projected(item, name) for name in ACTIVITIES})


def _day(item: Item) -> Day:
    """Return a queue's day from the attributes that `ojs.projections.counters` writes."""
    return Day(
        activity=_activity(item),
        durations=[projected(item, f"bd{at}") for at in range(len(DURATION_BUCKETS_S) + 1)],
        queue_times=[projected(item, f"bw{at}") for at in range(len(QUEUE_TIME_BUCKETS_S) + 1)],
        counts={each.attribute: _counts(item, each) for each in COUNTERS if each.says},
    )


def _counts(item: Item, counter: Metric) -> dict[str, int]:
    """Return the values of a counter by the value of its label."""
    found = sorted(item) if counter.by else (counter.attribute,)
    return {
        name.removeprefix(counter.prefix): projected(item, name)
        for name in found
        if name.startswith(counter.prefix)
    }
