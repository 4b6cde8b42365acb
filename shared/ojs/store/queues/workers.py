"""Storage of workers: one small item each, in SHARDS partitions, so that they can be listed."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Any

from ojs.domain import jsontext
from ojs.domain.access import ANYBODY, Principal
from ojs.domain.errors import Conflict, known
from ojs.domain.pool.worker import DEAD_AFTER_MS, Directive, Worker
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.races import losing_as, wins
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value

# A partition takes 1,000 writes per second. With a heartbeat every 5 seconds, SHARDS partitions
# carry 80,000 workers, and a listing reads at most SHARDS partitions.
SHARDS = 16
_FORGET_AFTER_S = 86_400
# Follows the worker ID in the sort key, if the caller's access key restricts the names of workers.
MARK = re.compile(r"[0-9a-f]{16}")


def shard_of(worker_id: str) -> int:
    """Return the number of the partition with a worker's item."""
    return zlib.crc32(worker_id.encode("utf-8")) % SHARDS


def key_of(worker_id: str, caller: Principal = ANYBODY) -> tuple[str, str]:
    """Return the key of a worker's item.

    If the caller's access key restricts the names of workers, the caller has separate records. So
    it can't take over the name of another caller's worker (ADR 84).
    """
    shard = f"{shard_of(worker_id):02d}"
    if not caller.bound:
        return keys.worker(shard), worker_id
    # A sort key can be shorter than the name.
    named = caller.holder or ""
    if caller.tenant is not None:
        # No name of a key contains a line break.
        named = f"{caller.tenant}\n{named}"
    mark = hashlib.sha256(named.encode("utf-8")).hexdigest()[:16]
    return keys.worker(shard), f"{worker_id}|{mark}"


def from_item(item: Item) -> Worker:
    """Return a worker from its item."""
    stored: dict[str, Any] = dict(item)
    return Worker(
        id=stored["sk"].partition("|")[0],
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
        connection=stored.get("conn"),
        next_ms=stored.get("next"),
    )


def _seen(now_ms: int) -> dict[str, Value]:
    return {"seen": now_ms, "ttl": now_ms // 1000 + _FORGET_AFTER_S}


def _its_own(pool: str | None, now_ms: int) -> tuple[str | None, dict[str, Value]]:
    """Return the condition that a worker belongs to no pool other than the one that it declares."""
    if pool is None:
        return None, {}
    # Race: two workers with the same id, or one that changes its pool. A fetch must belong to one
    # pool, so the second is rejected while the first is alive.
    dead = "(#seen < :alive AND (attribute_not_exists(#next) OR #next < :alive))"
    own = f"attribute_not_exists(#pool) OR #pool = :pool OR {dead}"
    return own, {":pool": pool, ":alive": now_ms - DEAD_AFTER_MS}


def refused(worker_id: str, pool: str | None, lost: LostRace) -> Conflict:
    """Return the error for a worker that belongs to another pool.

    Args:
        worker_id: ID of the worker.
        pool: Pool that the worker requests.
        lost: The lost race, with the worker's record.
    """
    there = str((lost.item or {}).get("pool", ""))
    return Conflict(
        f"Worker '{worker_id}' belongs to pool '{there}', not to '{pool}'. Use another worker_id.",
        details={"worker_id": worker_id, "field": "pool", "pool": there, "requested": str(pool)},
    )


def of_before(items: Mapping[tuple[str, str], Item], worker_id: str) -> Item | None:
    """Return the item that a version before 0.3 wrote for this worker ID, for any caller."""
    item = items.get(key_of(worker_id))
    return None if item is None or "by" in item else item


class WorkerStore:
    """Reads and writes workers."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def records(self, worker_id: str, caller: Principal | None = None) -> list[tuple[str, Worker]]:
        """Return the records of a worker ID, the most recent first, each with its sort key.

        If `caller` is given, only the record of that caller's worker is returned. At most two
        calls.
        """
        key = key_of(worker_id, caller or ANYBODY)
        item = self._table.get(*key)
        found = [] if item is None else [item]
        if caller is None:
            condition, values = "pk = :pk AND begins_with(sk, :id)", {":pk": key[0]}
            found += self._table.query(condition, {**values, ":id": f"{worker_id}|"}).items
        elif item is None and caller.bound_by_key:
            before = self._table.get(*key_of(worker_id))
            found += [before] if before is not None and "by" not in before else []
        workers = [(str(each["sk"]), from_item(each)) for each in found]
        return sorted(workers, key=lambda each: each[1].last_seen_ms, reverse=True)

    def direct(self, worker_id: str, sk: str, directive: Directive) -> Worker | None:
        """Set the directive of a worker's record.

        Args:
            worker_id: ID of the worker.
            sk: Sort key of the record.
            directive: New directive.

        Returns:
            None if the record was removed since it was read.
        """
        # Race: the record is removed. This write must not create an empty record.
        update = Update(
            key_of(worker_id)[0], sk, set={"directive": directive.value},
            condition="attribute_exists(pk)",
        )  # fmt: skip
        with suppress(LostRace):
            return from_item(self._table.update(update))
        return None

    def touch(
        self,
        worker_id: str,
        *,
        now_ms: int,
        state: str | None = None,
        active_jobs: int | None = None,
        info: Mapping[str, Any] | None = None,
        pool: str | None = None,
        caller: Principal = ANYBODY,
        next_ms: int | None = None,
        connection: str | None = None,
    ) -> Worker:
        """Record that a worker is alive, and the values that it reports.

        Args:
            worker_id: ID of the worker.
            now_ms: Current time in milliseconds since the epoch.
            state: State that the worker reports.
            active_jobs: Number of active jobs that the worker reports.
            info: Other values that the worker reports.
            pool: Pool of the worker.
            caller: The authenticated caller.
            next_ms: When the next heartbeat of an idle worker is due.
            connection: Connection that the worker listens with.

        Raises:
            LostRace: The worker declares another pool than before.
        """
        reported: dict[str, Value | None] = {
            "state": state,
            "active": active_jobs,
            "info": jsontext.dumps(info) if info else None,
            "pool": pool,
            "by": caller.holder,
            "next": next_ms,
            "conn": connection,
        }
        given = {name: value for name, value in reported.items() if value is not None}
        condition, values = _its_own(pool, now_ms)
        key = key_of(worker_id, caller)
        item = self._table.update(
            Update(
                *key,
                set=_seen(now_ms) | given,
                # A busy worker is heard at the usual interval.
                remove=() if next_ms or connection else ("next",),
                compute={"first": "if_not_exists(#first, :now)"},
                condition=condition,
                values={":now": now_ms, **values},
            )
        )
        if caller.bound_by_key and item["first"] == now_ms:
            # The record is new. Values that a version before 0.3 stored still apply to this worker.
            before = self._table.get(*key_of(worker_id))
            kept = {} if before is None or "by" in before else before
            names = {"pool", "info", "directive"} & kept.keys() - item.keys()
            if taken := {name: kept[name] for name in names}:
                item = self._table.update(Update(*key, set=taken))
        return from_item(item)

    def join(
        self, worker_id: str, pool: str, *, now_ms: int, caller: Principal = ANYBODY
    ) -> Worker:
        """Record that a worker fetches for a pool.

        Args:
            worker_id: ID of the worker.
            pool: Name of the pool.
            now_ms: Current time in milliseconds since the epoch.
            caller: The client.

        Raises:
            Conflict: The worker belongs to another pool.
        """
        with losing_as(lambda lost: refused(worker_id, pool, lost)):
            return self.touch(worker_id, now_ms=now_ms, pool=pool, caller=caller)

    def register(
        self,
        worker_id: str,
        *,
        now_ms: int,
        info: Mapping[str, Any],
        pool: str | None = None,
        caller: Principal = ANYBODY,
    ) -> Worker:
        """Replace a worker's record.

        A directive for an earlier process with the same ID is removed.

        Args:
            worker_id: ID of the worker.
            now_ms: Current time in milliseconds since the epoch.
            info: Information from the worker.
            pool: Name of the pool, or None.
            caller: The client.

        Raises:
            Conflict: A live worker with the same ID belongs to another pool.
        """
        pk, sk = key_of(worker_id, caller)
        fixed: dict[str, Value] = {"pk": pk, "sk": sk, "info": jsontext.dumps(info)}
        item = fixed | {"first": now_ms} | _seen(now_ms)
        item |= {} if pool is None else {"pool": pool}
        item |= {} if caller.holder is None else {"by": caller.holder}
        condition, values = _its_own(pool, now_ms)
        with losing_as(lambda lost: refused(worker_id, pool, lost)):
            self._table.put(Put(item, condition=condition, values=values))
        return from_item(item)

    def remove(self, worker_id: str, sk: str) -> bool:
        """Delete a worker's record. Return false if it doesn't exist."""
        # Race: two removals. One of them finds no record.
        return wins(
            lambda: self._table.delete(key_of(worker_id)[0], sk, condition="attribute_exists(pk)")
        )

    def page(
        self, *, limit: int, after: str | None, skip: Container[int] = ()
    ) -> tuple[list[Worker], str | None]:
        """Return up to `limit` workers, and the sort key of the last one.

        One call for each partition, except those to skip.
        """
        workers: list[Worker] = []
        shard, last = 0, after
        if after is not None:
            shard = int(key_of(after.partition("|")[0])[0].removeprefix(keys.worker("")))
        while shard < SHARDS and len(workers) < limit:
            if shard in skip:
                shard, after = shard + 1, None
                continue
            condition, values = "pk = :shard", {":shard": keys.worker(f"{shard:02d}")}
            if after is not None:
                condition += " AND sk > :after"
                values[":after"] = after
            found = self._table.query(condition, values, limit=limit - len(workers))
            workers += [from_item(item) for item in found.items]
            last = str(found.items[-1]["sk"]) if found.items else last
            if found.last is None:
                shard += 1
                after = None
            elif found.items:
                after = last
        return workers, last if len(workers) >= limit else None
