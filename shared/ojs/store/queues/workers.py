"""Workers in the table: one small item each, in a few partitions so that they can be listed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from ojs.domain import jsontext
from ojs.domain.access import ANYBODY, Principal
from ojs.domain.errors import Conflict, OjsError, forbidden, known
from ojs.domain.pool.worker import DEAD_AFTER_MS, Directive, Worker
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value

# A partition takes 1 000 writes a second. With a heartbeat every five seconds this many partitions
# carry 80 000 workers, and a listing reads at most so many partitions.
SHARDS = 16
_FORGET_AFTER_S = 86_400


def key_of(worker_id: str) -> tuple[str, str]:
    """Key of a worker's item."""
    return keys.worker(f"{zlib.crc32(worker_id.encode('utf-8')) % SHARDS:02d}"), worker_id


def from_item(item: Item) -> Worker:
    """The worker an item holds."""
    stored: dict[str, Any] = dict(item)
    return Worker(
        id=stored["sk"],
        state=stored.get("state", "running"),
        directive=known(
            Directive, stored.get("directive", Directive.RUNNING), "", Directive.RUNNING
        ),
        active_jobs=stored.get("active", 0),
        info=jsontext.stored(stored["info"]) if "info" in stored else {},
        first_seen_ms=stored.get("first", 0),
        last_seen_ms=stored.get("seen", 0),
        pool=stored.get("pool"),
        holder=stored.get("by"),
    )


def _seen(now_ms: int) -> dict[str, Value]:
    return {"seen": now_ms, "ttl": now_ms // 1000 + _FORGET_AFTER_S}


_OF_CALLER = "attribute_not_exists(#by) OR #by = :by"


def _its_own(
    pool: str | None, caller: Principal, now_ms: int
) -> tuple[str | None, dict[str, Value]]:
    """The condition that a worker belongs to no other pool than the one it declares, if any, and to
    no other holder of keys, if the caller's key is bound to its own.
    """
    conditions: list[str] = []
    values: dict[str, Value] = {}
    if pool is not None:
        # Race: two workers of the same id, or one that changes its pool. A fetch must belong to one
        # pool, so the second is refused while the first is alive.
        conditions.append("attribute_not_exists(#pool) OR #pool = :pool")
        values[":pool"] = pool
    if caller.bound:
        # Race: another's worker of this id is made at this moment. The second is refused while the
        # first is alive.
        conditions.append(_OF_CALLER)
        values[":by"] = caller.holder or ""
    if not conditions:
        return None, {}
    own = " AND ".join(f"({each})" for each in conditions)
    return f"{own} OR #seen < :alive", {**values, ":alive": now_ms - DEAD_AFTER_MS}


def refused(worker_id: str, pool: str | None, caller: Principal, lost: LostRace) -> OjsError:
    """The error of a worker whose id is another's, or that belongs to another pool."""
    if lost.item and not from_item(lost.item).is_of(caller):
        return forbidden()
    there = str((lost.item or {}).get("pool", ""))
    return Conflict(
        f"The worker '{worker_id}' belongs to the pool '{there}'.",
        details={"worker_id": worker_id, "field": "pool", "pool": there, "requested": str(pool)},
    )


class WorkerStore:
    """The store of workers."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, worker_id: str) -> Worker | None:
        """One worker, read consistently."""
        item = self._table.get(*key_of(worker_id))
        return from_item(item) if item else None

    def touch(
        self,
        worker_id: str,
        *,
        now_ms: int,
        state: str | None = None,
        active_jobs: int | None = None,
        info: Mapping[str, Any] | None = None,
        directive: Directive | None = None,
        only_known: bool = False,
        pool: str | None = None,
        caller: Principal = ANYBODY,
    ) -> Worker:
        """Record that a worker is alive, and what it reports.

        Raises LostRace when `only_known` and there is no such worker, when it declares another pool
        than before, or when it is another's than the caller's.
        """
        reported: dict[str, Value | None] = {
            "state": state,
            "active": active_jobs,
            "info": jsontext.dumps(info) if info else None,
            "directive": None if directive is None else directive.value,
            "pool": pool,
            "by": caller.holder,
        }
        setting = {} if only_known else _seen(now_ms)
        setting |= {name: value for name, value in reported.items() if value is not None}
        condition, values = _its_own(pool, caller, now_ms)
        if only_known:
            # Race: the worker's record was removed meanwhile. The caller answers 404 instead of
            # creating an empty record.
            condition = "attribute_exists(pk)"
        item = self._table.update(
            Update(
                *key_of(worker_id),
                set=setting,
                compute={"first": "if_not_exists(#first, :now)"},
                condition=condition,
                values={":now": now_ms, **values},
            )
        )
        return from_item(item)

    def join(
        self, worker_id: str, pool: str, *, now_ms: int, caller: Principal = ANYBODY
    ) -> Worker:
        """Record the pool that a worker's fetch declares. Raises Conflict, PermissionDenied."""
        try:
            return self.touch(worker_id, now_ms=now_ms, pool=pool, caller=caller)
        except LostRace as lost:
            raise refused(worker_id, pool, caller, lost) from None

    def register(
        self,
        worker_id: str,
        *,
        now_ms: int,
        info: Mapping[str, Any],
        pool: str | None = None,
        caller: Principal = ANYBODY,
    ) -> Worker:
        """Replace a worker's record: an earlier directive was for an earlier process.

        Raises Conflict when a live worker of the same id belongs to another pool, PermissionDenied
        when it is another's.
        """
        pk, sk = key_of(worker_id)
        fixed: dict[str, Value] = {"pk": pk, "sk": sk, "info": jsontext.dumps(info)}
        item = fixed | {"first": now_ms} | _seen(now_ms)
        item |= {} if pool is None else {"pool": pool}
        item |= {} if caller.holder is None else {"by": caller.holder}
        condition, values = _its_own(pool, caller, now_ms)
        try:
            self._table.put(Put(item, condition=condition, values=values))
        except LostRace as lost:
            raise refused(worker_id, pool, caller, lost) from None
        return from_item(item)

    def remove(self, worker_id: str, caller: Principal = ANYBODY) -> bool:
        """Delete a worker's record; False when there was none. Raises PermissionDenied when it is
        another's.
        """
        condition, values = "attribute_exists(pk)", dict[str, Value]()
        if caller.bound:
            condition, values = f"{condition} AND ({_OF_CALLER})", {":by": caller.holder or ""}
        # Race: two removals, one of which finds no worker; or another's worker of this id is made.
        try:
            self._table.delete(*key_of(worker_id), condition=condition, values=values)
        except LostRace as lost:
            if lost.item:
                raise forbidden() from None
            return False
        return True

    def page(self, *, limit: int, after: str | None) -> tuple[list[Worker], str | None]:
        """Up to `limit` workers, and where to continue (a worker id)."""
        workers: list[Worker] = []
        shard = 0 if after is None else int(key_of(after)[0].removeprefix(keys.worker("")))
        while shard < SHARDS and len(workers) < limit:
            condition, values = "pk = :shard", {":shard": keys.worker(f"{shard:02d}")}
            if after is not None:
                condition += " AND sk > :after"
                values[":after"] = after
            found = self._table.query(condition, values, limit=limit - len(workers))
            workers += [from_item(item) for item in found.items]
            if found.last is None:
                shard += 1
                after = None
            elif found.items:
                after = str(found.items[-1]["sk"])
        return workers, workers[-1].id if len(workers) >= limit else None
