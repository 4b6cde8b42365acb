"""How worker pools stand, in the table: their running jobs and workers as they were counted, and
what a sweep found wrong with them.

What is wrong is in one item beside the pool, `P|{pool}`/`watch`, which is written when something
begins or ends and is gone when nothing is left: its stream records become the events
(fair-scheduling seed, section 11.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ojs.domain import jsontext
from ojs.domain.job.states import State
from ojs.domain.pool.pool import Pool
from ojs.domain.pool.statistics import Overload, PoolAlerts, Starved
from ojs.store.permits import sequencer as ledger
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put, Table
from ojs.store.table.values import Value

# A pool that is removed leaves what was wrong with it for so long; `KEPT_S` is renewed before half
# of it is over.
KEPT_S = 2 * 86_400


@dataclass(frozen=True)
class PoolHealth:
    """What is known of a pool: its running jobs, its workers as a sweep counted them at
    `counted_ms` (None: never), and what is wrong with it.
    """

    active: int
    workers: int
    counted_ms: int | None
    watch: PoolAlerts


class PoolHealthStore:
    """The store of how pools stand."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def read(self, pools: Iterable[Pool]) -> dict[str, PoolHealth]:
        """How these stand, by name. One call for 25 of them.

        Running jobs of a pool with a limit are as its ledger counts them now, those of others as
        the projection did.
        """
        wanted = list(pools)
        found = self._table.batch_get(
            key
            for pool in wanted
            for key in (
                ledger.key_of(pool.name),
                (_counters(pool.name), keys.NOW),
                (_counters(pool.name), keys.GAUGE),
                (keys.pool(pool.name), keys.WATCH),
            )
        )
        standings = {}
        for pool in wanted:
            counters = _counters(pool.name)
            gauge: Mapping[str, Any] = found.get((counters, keys.GAUGE), {})
            if pool.concurrency is not None:
                active = ledger.from_item(found.get(ledger.key_of(pool.name), {})).seats
            else:
                now: Mapping[str, Any] = found.get((counters, keys.NOW), {})
                active = int(now.get(State.ACTIVE.value, 0))
            item = found.get((keys.pool(pool.name), keys.WATCH))
            watch = PoolAlerts(pool.created_ms) if item is None else watch_from(item)
            standings[pool.name] = PoolHealth(
                # Deltas may arrive out of order: for a moment, less may have come than has gone.
                active=max(0, active),
                workers=int(gauge.get("workers", 0)),
                counted_ms=int(gauge["at"]) if "at" in gauge else None,
                watch=watch.of(pool.created_ms),
            )
        return standings

    def save_workers(self, counts: Mapping[str, int], *, now_ms: int) -> None:
        """Note how many workers pools have. One call for 25 pools."""
        # No condition: of two sweeps at once the last word counts, for a minute.
        self._table.write_many(
            [
                {
                    "pk": _counters(name),
                    "sk": keys.GAUGE,
                    "workers": count,
                    "at": now_ms,
                    # Workers name pools that may not exist.
                    "ttl": now_ms // 1000 + KEPT_S,
                }
                for name, count in counts.items()
            ]
        )

    def save_watch(self, name: str, before: PoolAlerts, after: PoolAlerts) -> bool:
        """Note what is wrong with a pool, over what was read; False when another sweep did."""
        # Race: two sweeps at once. One of them tells; the other's view is dropped, and what it saw
        # and the first did not is told by the next.
        condition = "attribute_not_exists(pk)" if not before.rev else "#rev = :seen"
        values: dict[str, Value] = {":seen": before.rev} if before.rev else {}
        pk = keys.pool(name)
        try:
            if after:
                item = _watch_item(pk, after, rev=before.rev + 1)
                self._table.put(Put(item, condition=condition, values=values))
            elif before.rev:
                self._table.delete(pk, keys.WATCH, condition=condition, values=values)
        except LostRace:
            return False
        return True


def _counters(pool: str) -> str:
    return keys.stats(keys.pool_stats(pool))


def _watch_item(pk: str, watch: PoolAlerts, *, rev: int) -> dict[str, Value]:
    item: dict[str, Value] = {
        "pk": pk,
        "sk": keys.WATCH,
        "created": watch.pool_ms,
        "starved": jsontext.dumps(
            {name: [each.since_ms, each.available] for name, each in watch.starved.items()}
        ),
        "at": watch.at_ms,
        "rev": rev,
        "ttl": watch.at_ms // 1000 + KEPT_S,
    }
    if watch.overload is not None:
        over = watch.overload
        item |= {"since": over.since_ms, "active": over.active, "waiting": over.waiting}
    return item


def watch_from(item: Mapping[str, Any]) -> PoolAlerts:
    """What an item says is wrong. Raises KeyError, TypeError, ValueError."""
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
