"""Storage of worker pools, and of the pool entries in the items of their queues.

A queue's item lists the pools that include the queue, and the pool that isolates it. A fetch reads
that item anyway, so isolation has no additional cost. A pool and its queues are written in one
transaction, and a queue of a pool can't be deleted. So the pool and its queues always agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import Pool
from ojs.domain.queue.queue import PoolMark, Queue
from ojs.store.queues.queues import marks_text, reconfiguring
from ojs.store.queues.registry import QueueRegistry
from ojs.store.queues.replicas import QueueRecords, on_all
from ojs.store.table import keys
from ojs.store.table.errors import Unreadable, readable
from ojs.store.table.races import lost_race
from ojs.store.table.record import Record, as_json, flag, member, rewriting
from ojs.store.table.table import MAX_TRANSACTION, Delete, Put, Table, Update
from ojs.store.table.values import Item, Value

# Number of writes in a transaction for the pool itself.
_OF_POOL = 2


class PoolStore:
    """Reads and writes pools and the registry of their names."""

    def __init__(self, table: Table, registry: QueueRegistry) -> None:
        self._table = table
        self._registry = registry

    def get(self, name: str) -> Pool | None:
        """Read one pool, strongly consistent."""
        item = self._table.get(*key_of(name))
        return POOL.of(item) if item else None

    def get_many(self, names: Iterable[str], unreadable: Unreadable | None = None) -> list[Pool]:
        """Return several pools in the order given, without those that don't exist.

        `unreadable` is called for each pool that can't be read, which is then skipped. If it is
        None, an error is raised.
        """
        wanted = list(names)
        found = self._table.batch_get(key_of(name) for name in wanted)
        items = (found.get(key_of(name)) for name in wanted)
        there = (item for item in items if item is not None)
        return list(readable(POOL.of, there, unreadable))

    def names(
        self, *, limit: int, after: str | None = None, consistent: bool = True
    ) -> tuple[list[str], str | None]:
        """Return a page of the registry in order of name, and the key of the next page."""
        condition, values = "pk = :pools", {":pools": keys.POOLS}
        if after is not None:
            condition += " AND sk > :after"
            values[":after"] = after
        # One more than the page: DynamoDB returns a position also after the very last item.
        found = self._table.query(condition, values, limit=limit + 1, consistent=consistent)
        names = [str(item["sk"]) for item in found.items]
        return names[:limit], names[limit - 1] if len(names) > limit else None

    def save(self, before: Pool | None, pool: Pool, queues: Sequence[Queue]) -> Pool:
        """Store a pool, and update its entries in the queues that it has or had.

        Args:
            before: Pool as read, or None if it is new.
            pool: Pool to store.
            queues: All queues that the pool has or had, as read.

        Raises:
            LostRace: The pool or a queue has changed, or a queue is being deleted.
        """
        stored = replace(
            pool,
            created_ms=pool.configured_ms if before is None else before.created_ms,
            changes=0 if before is None else before.changes + 1,
        )
        condition, values = _as_read(before)
        writes: list[Put | Update | Delete] = [
            Put(_item(stored), condition=condition, values=values)
            if before is None
            else rewriting(_item(before), _item(stored), condition, values)
        ]
        if before is None:
            writes.append(Put({"pk": keys.POOLS, "sk": pool.name}))
        writes += self._marks(stored, queues)
        lost = lost_race(lambda: self._table.transact(writes))
        # The pool is already stored if the response of an earlier attempt was lost.
        if lost is not None and _item(stored) not in lost.items:
            raise lost
        return stored

    def begin_limit(self, pool: Pool) -> Pool:
        """Make active jobs acquire permits, as if the pool had a limit, until the next `save`.

        Raises:
            LostRace: The pool has changed.
        """
        pending = replace(pool, limiting=True, changes=pool.changes + 1)
        self._table.update(rewriting(_item(pool), _item(pending), *_as_read(pool)))
        return pending

    def remove(self, pool: Pool, queues: Sequence[Queue]) -> None:
        """Delete a pool and its entries in its queues. Raises LostRace as `save` does.

        The permits of its semaphore are kept: active jobs release their permits there, and a pool
        with the same name uses the semaphore again.
        """
        condition, values = _as_read(pool)
        self._table.transact(
            [
                Delete(*key_of(pool.name), condition=condition, values=values),
                Delete(keys.POOLS, pool.name),
                *self._marks(replace(pool, queues=()), queues),
            ]
        )

    def _marks(self, pool: Pool, queues: Sequence[Queue]) -> list[Update | Delete]:
        """Return the writes that update a pool's entries in its queues.

        The queues are marked as active in the registry first, so that sweeps read them. Raises
        OjsError and LostRace.
        """
        changes: list[tuple[Queue, Update]] = []
        for queue in queues:
            marks = {name: mark for name, mark in queue.pools.items() if name != pool.name}
            if queue.name in pool.queues:
                marks[pool.name] = PoolMark(pool.isolated, pool.fairness)
            if marks == queue.pools:
                continue
            self._registry.note(queue.name, changes=True)
            # Race: another pool adds or removes the queue, or it is configured or deleted. The
            # loser reads again: two pools must not both isolate it, no pool may have a deleted
            # queue, and whether tenants share the queue depends on all its pools.
            change = reconfiguring(
                queue,
                replace(queue, pools=marks),
                {"pools": marks_text(marks)} if marks else {},
                [] if marks else ["pools"],
                now_ms=pool.configured_ms,
                may_drain=False,
            )
            changes.append((queue, change))
        many = sum(1 + queue.replicas for queue, _ in changes) > MAX_TRANSACTION - _OF_POOL
        if many:
            # The sweep creates the replicas again.
            records = QueueRecords(self._table)
            for queue, _ in changes:
                if queue.replicas:
                    records.drop(queue.name, queue.replicas)
        return [
            write
            for queue, change in changes
            for write in on_all(change, queue.name, 0 if many else queue.replicas)
        ]


def key_of(name: str) -> tuple[str, str]:
    """Return the key of a pool's item."""
    return keys.pool(name), keys.RECORD


def _as_read(pool: Pool | None) -> tuple[str, dict[str, Value]]:
    """Return the condition that a pool has not changed since it was read."""
    # Race: another operator. The loser reads and checks again.
    if pool is None:
        return "attribute_not_exists(pk)", {}
    return (
        "#created = :created AND #changes = :changes",
        {":created": pool.created_ms, ":changes": pool.changes},
    )


def _prevention(stored: dict[str, Any]) -> dict[str, Any]:
    # Numbers are stored as decimals.
    return stored | {"min_dispatch_ratio": float(stored["min_dispatch_ratio"])}


POOL = Record(
    Pool,
    "pool",
    {
        "queues": as_json("queues", tuple),
        "strategy": member("strategy", DispatchStrategy, "", DispatchStrategy.ROUND_ROBIN),
        "created": "created_ms",
        "configured": "configured_ms",
        "changes": "changes",
        "weights": as_json("weights"),
        "concurrency": "concurrency",
        "isolated": flag("isolated"),
        "prevention": as_json("prevention_config", _prevention),
        "tenants": as_json("tenants"),
        "seating": flag("limiting"),
    },
    apart={"name": lambda item: str(item["pk"]).removeprefix(keys.pool(""))},
    always=("strategy", "created", "configured", "changes"),
)


def _item(pool: Pool) -> Item:
    pk, sk = key_of(pool.name)
    return POOL.item(pool, pk=pk, sk=sk)
