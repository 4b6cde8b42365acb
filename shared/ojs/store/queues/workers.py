"""Workers in the table: one small item each, in a few partitions so that they can be listed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from ojs.domain import jsontext
from ojs.domain.errors import Conflict, known
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
    )


def _seen(now_ms: int) -> dict[str, Value]:
    return {"seen": now_ms, "ttl": now_ms // 1000 + _FORGET_AFTER_S}


def _of_one_pool(pool: str | None, now_ms: int) -> tuple[str | None, dict[str, Value]]:
    """The condition that a worker belongs to no other pool than the one it declares, if any."""
    if pool is None:
        return None, {}
    # Race: two workers of the same id, or one that changes its pool. A fetch must belong to one
    # pool, so the second is refused while the first is alive.
    return "attribute_not_exists(#pool) OR #pool = :pool OR #seen < :alive", {
        ":pool": pool,
        ":alive": now_ms - DEAD_AFTER_MS,
    }


def of_another(worker_id: str, pool: str, lost: LostRace) -> Conflict:
    """The error of a worker that declares this pool although it belongs to another one."""
    there = str((lost.item or {}).get("pool", ""))
    return Conflict(
        f"The worker '{worker_id}' belongs to the pool '{there}'.",
        details={"worker_id": worker_id, "field": "pool", "pool": there, "requested": pool},
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
    ) -> Worker:
        """Record that a worker is alive, and what it reports.

        Raises LostRace when `only_known` and there is no such worker, or when it declares another
        pool than before.
        """
        reported: dict[str, Value | None] = {
            "state": state,
            "active": active_jobs,
            "info": jsontext.dumps(info) if info else None,
            "directive": None if directive is None else directive.value,
            "pool": pool,
        }
        setting = {} if only_known else _seen(now_ms)
        setting |= {name: value for name, value in reported.items() if value is not None}
        condition, values = _of_one_pool(pool, now_ms)
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

    def join(self, worker_id: str, pool: str, *, now_ms: int) -> Worker:
        """Record the pool that a worker's fetch declares. Raises Conflict."""
        try:
            return self.touch(worker_id, now_ms=now_ms, pool=pool)
        except LostRace as lost:
            raise of_another(worker_id, pool, lost) from None

    def register(
        self, worker_id: str, *, now_ms: int, info: Mapping[str, Any], pool: str | None = None
    ) -> Worker:
        """Replace a worker's record: an earlier directive was for an earlier process.

        Raises Conflict when a live worker of the same id belongs to another pool.
        """
        pk, sk = key_of(worker_id)
        fixed: dict[str, Value] = {"pk": pk, "sk": sk, "info": jsontext.dumps(info)}
        item = fixed | {"first": now_ms} | _seen(now_ms) | ({} if pool is None else {"pool": pool})
        condition, values = _of_one_pool(pool, now_ms)
        try:
            self._table.put(Put(item, condition=condition, values=values))
        except LostRace as lost:
            raise of_another(worker_id, str(pool), lost) from None
        return from_item(item)

    def remove(self, worker_id: str) -> bool:
        """Delete a worker's record; False when there was none."""
        # Race: two removals. One of them finds no worker.
        try:
            self._table.delete(*key_of(worker_id), condition="attribute_exists(pk)")
        except LostRace:
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
