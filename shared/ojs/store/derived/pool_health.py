"""Storage of the health of worker pools: numbers of active jobs and workers, and alerts.

The alerts of a pool are one item, `P|{pool}`/`watch`. It is written when an alert starts or ends,
and removed when no alert is left. Its stream records become events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ojs.domain import jsontext
from ojs.domain.job.states import State
from ojs.domain.pool.pool import Pool
from ojs.domain.pool.statistics import Overload, PoolAlerts, Starved
from ojs.records import record
from ojs.store.derived.sharded import ShardCounters
from ojs.store.permits import semaphore
from ojs.store.table import keys
from ojs.store.table.races import wins
from ojs.store.table.table import Put, Table
from ojs.store.table.values import Value, projected

# Time to live of the alerts, for pools that are deleted. The sweep renews it after half of the
# time.
KEPT_S = 2 * 86_400


@record(frozen=True)
class PoolHealth:
    """The health of a pool: its active jobs, its workers, and its alerts.

    The sweep counted the workers at `counted_ms` (None: never).
    """

    active: int
    workers: int
    counted_ms: int | None
    alerts: PoolAlerts


class PoolHealthStore:
    """Reads and writes the health of pools."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._sharded = ShardCounters(table)

    def read(self, pools: Iterable[Pool]) -> dict[str, PoolHealth]:
        """Return the health of these pools, by name. Makes one call for 25 pools.

        The active jobs of a pool with a limit are counted by its semaphore. Those of other pools
        are counted by the projection, with a delay.
        """
        wanted = {pool.name: (pool, _keys(pool)) for pool in pools}
        found = self._sharded.batch_get(key for _, read in wanted.values() for key in read)
        by_name = {}
        for pool, read in wanted.values():
            now, gauge, watch, *permits = (found.get(key, {}) for key in read)
            active = projected(now, State.ACTIVE.value)
            if pool.concurrency is not None:
                active = max(0, semaphore.taken(permits))
            alerts = alerts_from(watch) if watch else PoolAlerts(pool.created_ms)
            by_name[pool.name] = PoolHealth(
                active=active,
                workers=int(gauge.get("workers", 0)),
                counted_ms=int(gauge["at"]) if "at" in gauge else None,
                alerts=alerts.of(pool.created_ms),
            )
        return by_name

    def save_workers(self, counts: Mapping[str, int], *, now_ms: int) -> None:
        """Store the number of workers of each pool. Makes one call for 25 pools."""
        # No condition. If two sweeps run at the same time, the last write applies until the next
        # sweep.
        self._table.write_many(
            [
                {
                    "pk": _counters(name),
                    "sk": keys.GAUGE,
                    "workers": count,
                    "at": now_ms,
                    # Workers can name pools that don't exist.
                    "ttl": now_ms // 1000 + KEPT_S,
                }
                for name, count in counts.items()
            ]
        )

    def save_alerts(self, name: str, before: PoolAlerts, after: PoolAlerts) -> bool:
        """Store a pool's alerts.

        Args:
            name: Name of the pool.
            before: Alerts as read.
            after: Alerts to store.

        Returns:
            False if another sweep stored alerts since they were read.
        """
        # Race: two sweeps. One write wins. The next sweep reports changes that only the loser saw.
        condition = "attribute_not_exists(pk)" if not before.rev else "#rev = :seen"
        values: dict[str, Value] = {":seen": before.rev} if before.rev else {}
        pk = keys.pool(name)
        if after:
            put = Put(_alerts_item(pk, after, rev=before.rev + 1), condition, values)
            return wins(lambda: self._table.put(put))
        if before.rev:
            return wins(
                lambda: self._table.delete(pk, keys.ALERTS, condition=condition, values=values)
            )
        return True


def _counters(pool: str) -> str:
    return keys.stats(keys.pool_stats(pool))


def _keys(pool: Pool) -> list[tuple[str, str]]:
    """Return the keys of a pool's items: statistics counters, alerts, and semaphore."""
    counters = _counters(pool.name)
    return [
        (counters, keys.NOW),
        (counters, keys.GAUGE),
        (keys.pool(pool.name), keys.ALERTS),
        *(semaphore.keys_of(pool.semaphore, pool.concurrency) if pool.concurrency else ()),
    ]


def _alerts_item(pk: str, alerts: PoolAlerts, *, rev: int) -> dict[str, Value]:
    item: dict[str, Value] = {
        "pk": pk,
        "sk": keys.ALERTS,
        "created": alerts.pool_ms,
        "starved": jsontext.dumps(
            {name: [each.since_ms, each.available] for name, each in alerts.starved.items()}
        ),
        "at": alerts.at_ms,
        "rev": rev,
        "ttl": alerts.at_ms // 1000 + KEPT_S,
    }
    if alerts.overload is not None:
        over = alerts.overload
        item |= {"since": over.since_ms, "active": over.active, "waiting": over.waiting}
    return item


def alerts_from(item: Mapping[str, Any]) -> PoolAlerts:
    """Return the alerts of an item. Raises KeyError, TypeError, or ValueError if it is damaged."""
    starved: dict[str, Any] = jsontext.stored(item["starved"])
    overload = None
    if "since" in item:
        overload = Overload(item["since"], item["active"], item["waiting"])
    return PoolAlerts(
        pool_ms=item["created"],
        starved={name: Starved(int(since), int(n)) for name, (since, n) in starved.items()},
        overload=overload,
        at_ms=item["at"],
        rev=item["rev"],
    )
