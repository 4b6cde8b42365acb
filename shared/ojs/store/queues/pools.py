"""Worker pools in the table, and what queues know of the pools they are in.

A queue's own item says which pools have it, and which of them alone: a fetch reads it anyway, so
isolation costs nothing. Both are written in one transaction, and a queue that is in a pool cannot
be deleted: what a pool says of its queues and they of it is always the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ojs.domain import jsontext
from ojs.domain.pool.pool import Pool, Prevention
from ojs.domain.queue.queue import PoolMark, Queue, QueueState
from ojs.store.queues.queues import as_read
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Delete, Put, Table, Update
from ojs.store.table.values import Item, Value


class PoolStore:
    """The store of pools and their registry."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, name: str) -> Pool | None:
        """One pool, consistently."""
        item = self._table.get(*key_of(name))
        return from_item(item) if item else None

    def get_many(self, names: Iterable[str]) -> list[Pool]:
        """Several pools in the order of their names; those that do not exist are left out."""
        wanted = list(names)
        found = self._table.batch_get(key_of(name) for name in wanted)
        items = (found.get(key_of(name)) for name in wanted)
        return [from_item(item) for item in items if item is not None]

    def names(self, *, limit: int, after: str | None = None) -> tuple[list[str], str | None]:
        """A page of the registry in order of name, and where to go on."""
        condition, values = "pk = :pools", {":pools": keys.POOLS}
        if after is not None:
            condition += " AND sk > :after"
            values[":after"] = after
        # One more than asked for: DynamoDB says to go on also after the last of them.
        found = self._table.query(condition, values, limit=limit + 1, consistent=True)
        names = [str(item["sk"]) for item in found.items]
        return names[:limit], names[limit - 1] if len(names) > limit else None

    def save(self, before: Pool | None, pool: Pool, queues: Sequence[Queue]) -> Pool:
        """Store a pool as it is to be, with what its queues, and those it had, know of it.

        `queues` are all of these, as read. Raises LostRace when anybody changed the pool or one of
        the queues since, or deletes one.
        """
        stored = replace(
            pool,
            created_ms=pool.configured_ms if before is None else before.created_ms,
            changes=0 if before is None else before.changes + 1,
        )
        condition, values = _as_read(before)
        writes: list[Put | Update] = [Put(_item(stored), condition=condition, values=values)]
        if before is None:
            writes.append(Put({"pk": keys.POOLS, "sk": pool.name}))
        writes += self._marks(stored, queues)
        self._transact(writes, stored)
        return stored

    def seat(self, pool: Pool) -> Pool:
        """From now on running jobs take places, as though there were a limit; `save` takes that
        back. Raises LostRace.
        """
        seating = replace(pool, seating=True, changes=pool.changes + 1)
        condition, values = _as_read(pool)
        self._table.put(Put(_item(seating), condition=condition, values=values))
        return seating

    def remove(self, pool: Pool, queues: Sequence[Queue]) -> None:
        """Forget a pool, and have its queues forget it. Raises LostRace as `save` does.

        What its ledger counts stays: jobs that run give their places back there, and a pool of the
        same name goes on with it.
        """
        condition, values = _as_read(pool)
        self._table.transact(
            [
                Delete(*key_of(pool.name), condition=condition, values=values),
                Delete(keys.POOLS, pool.name),
                *self._marks(replace(pool, queues=()), queues),
            ]
        )

    def _marks(self, pool: Pool, queues: Sequence[Queue]) -> list[Update]:
        """What is to change with the queues, so that each knows of the pool as it is."""
        writes: list[Update] = []
        for queue in queues:
            marks = {name: mark for name, mark in queue.pools.items() if name != pool.name}
            if queue.name in pool.queues:
                marks[pool.name] = PoolMark(pool.isolated, pool.fairness)
            if marks == queue.pools:
                continue
            setting: dict[str, Value] = {"pools": marks_text(marks)} if marks else {}
            removing = [] if marks else ["pools"]
            after = replace(queue, pools=marks)
            if after.fairness is None:
                removing.append("tagging")
            elif queue.fairness is None:
                # Its jobs have no tags, nor have those that are being pushed
                # (`ojs.services.jobs.fairness_backfill`).
                setting["tagging"] = pool.configured_ms
            # Race: another pool takes or leaves the queue, somebody configures it or deletes it.
            # The loser reads again: two pools must not both have it for themselves, nor one have
            # what is gone; and whether tenants share it is decided by both.
            unchanged, values = as_read(queue)
            writes.append(
                Update(
                    keys.queue(queue.name),
                    keys.HEAD,
                    set=setting,
                    compute={"changes": "if_not_exists(#changes, :none) + :one"},
                    remove=removing,
                    condition=f"attribute_exists(pk) AND #state <> :draining AND {unchanged}",
                    values={
                        ":draining": QueueState.DRAINING.value,
                        ":none": 0,
                        ":one": 1,
                        **values,
                    },
                )
            )
        return writes

    def _transact(self, writes: Sequence[Put | Update], stored: Pool) -> None:
        try:
            self._table.transact(writes)
        except LostRace as lost:
            # The answer of an earlier try of ours may have been lost: it is as we want it.
            found = next((item for item in lost.items if item and item["pk"] == _pk(stored)), None)
            if found is None or dict(found) != _item(stored):
                raise


def key_of(name: str) -> tuple[str, str]:
    """Key of a pool's item."""
    return keys.pool(name), keys.HEAD


def _pk(pool: Pool) -> str:
    return keys.pool(pool.name)


def marks_text(marks: Mapping[str, PoolMark]) -> str:
    """What a queue knows of its pools, as it is stored."""
    return jsontext.dumps({name: marks[name].compact() for name in sorted(marks)})


def _as_read(pool: Pool | None) -> tuple[str, dict[str, Value]]:
    """The condition that nobody changed a pool since it was read."""
    # Race: another operator. The loser reads again and checks anew.
    if pool is None:
        return "attribute_not_exists(pk)", {}
    return (
        "#created = :created AND #changes = :changes",
        {":created": pool.created_ms, ":changes": pool.changes},
    )


def _item(pool: Pool) -> dict[str, Value]:
    item: dict[str, Value] = {
        "pk": keys.pool(pool.name),
        "sk": keys.HEAD,
        "queues": jsontext.dumps(list(pool.queues)),
        "strategy": pool.strategy,
        "created": pool.created_ms,
        "configured": pool.configured_ms,
        "changes": pool.changes,
    }
    if pool.weights:
        item["weights"] = jsontext.dumps(dict(pool.weights))
    if pool.concurrency is not None:
        item["concurrency"] = pool.concurrency
    if pool.isolated:
        item["isolated"] = 1
    if pool.told:
        item["prevention"] = jsontext.dumps(dict(pool.told))
    if pool.tenants:
        item["tenants"] = jsontext.dumps(dict(pool.tenants))
    if pool.seating:
        item["seating"] = 1
    return item


def from_item(item: Item) -> Pool:
    """The pool an item holds."""
    given: dict[str, Any] = dict(item)
    told: dict[str, Any] = jsontext.stored(given["prevention"]) if "prevention" in given else {}
    prevention = None
    if told:
        # As it was given: numbers are stored as decimals.
        told["min_dispatch_ratio"] = float(told["min_dispatch_ratio"])
    if told.get("enabled"):
        prevention = Prevention(told["rotation_interval"], told["min_dispatch_ratio"])
    return Pool(
        name=given["pk"].removeprefix(keys.pool("")),
        queues=tuple(jsontext.stored(given["queues"])),
        strategy=given["strategy"],
        weights=jsontext.stored(given["weights"]) if "weights" in given else {},
        concurrency=given.get("concurrency"),
        isolated="isolated" in given,
        prevention=prevention,
        told=told,
        tenants=jsontext.stored(given["tenants"]) if "tenants" in given else {},
        created_ms=given["created"],
        configured_ms=given["configured"],
        changes=given["changes"],
        seating="seating" in given,
    )
