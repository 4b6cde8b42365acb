"""Bulk operations in the table: one small item each, changed only by whoever holds it.

    O|{id}  @   what is asked for, how far it is; who works on it, and until when at the latest

While it is not over the index `work` lists it by when somebody should look at it: at once, or when
the one who holds it must have died. The index `expiry` lists all that are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ojs.domain import jsontext
from ojs.domain.dead_letter.bulk import Action, BulkOperation, Phase, Refusal
from ojs.domain.dead_letter.filter import ArgsMatch, DeadLetterFilter
from ojs.domain.ids import IdSource
from ojs.domain.page import Page
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value

# How long an operation that is over is kept.
KEPT_S = 7 * 86_400


@dataclass(frozen=True)
class ClaimedOperation:
    """An operation that one container works on, by its token."""

    operation: BulkOperation
    token: str


class BulkOperationStore:
    """The store of bulk operations."""

    def __init__(self, table: Table, ids: IdSource) -> None:
        self._table = table
        self._ids = ids

    def create(self, operation: BulkOperation, *, held_until_ms: int) -> ClaimedOperation:
        """Store a new one, held by the caller until a time (ms) at the latest."""
        token = self._ids.token()
        self._table.put(Put(_item(operation) | _hold(token, held_until_ms)))
        return ClaimedOperation(operation, token)

    def take(self, operation_id: str, *, now_ms: int, until_ms: int) -> ClaimedOperation | None:
        """Work on one that is not over; None when there is none that nobody else holds."""
        token = self._ids.token()
        # Race: two sweeps, or a sweep and the request it began with. One holds it; the other leaves
        # it alone.
        try:
            item = self._table.update(
                Update(
                    keys.operation(operation_id),
                    keys.HEAD,
                    set=_hold(token, until_ms),
                    condition="attribute_exists(#wpk) "
                    "AND (attribute_not_exists(#hold) OR #held_until <= :now)",
                    values={":now": now_ms},
                )
            )
        except LostRace as lost:
            if not lost.item or lost.item.get("hold") != token:
                return None
            item = lost.item
        return ClaimedOperation(_from(item), token)

    def save(self, held: ClaimedOperation, *, until_ms: int) -> ClaimedOperation:
        """Store how far it is, and go on holding it. Raises LostRace when somebody else holds it.

        The answer says if somebody asked to stop it.
        """
        return self._save(held, _hold(held.token, until_ms))

    def release(self, held: ClaimedOperation, *, look_at_ms: int) -> BulkOperation:
        """Store how far it is, and let it go: it is over, or others look at it from then on.

        Raises LostRace as `save` does.
        """
        if held.operation.phase.over:
            changes: dict[str, Value] = {
                "state": held.operation.phase.value,
                "finished": held.operation.finished_ms or 0,
                "ttl": (held.operation.finished_ms or 0) // 1000 + KEPT_S,
            }
            return self._save(held, changes, ["wpk", "wsk", "held_until"]).operation
        free: dict[str, Value] = {"wsk": keys.instant(look_at_ms), "held_until": 0}
        return self._save(held, free).operation

    def _save(
        self, held: ClaimedOperation, changes: dict[str, Value], remove: Sequence[str] = ()
    ) -> ClaimedOperation:
        new = _progress(held.operation)
        # Race: the hold ran out and another took it. The loser stops: what it did is done, and the
        # other finds it done. The token stays when it is let go, so that a lost answer is no loss;
        # `held_until` says whether it holds.
        item = self._table.update(
            Update(
                keys.operation(held.operation.id),
                keys.HEAD,
                set=new | changes,
                remove=[*(["waits"] if "waits" not in new else []), *remove],
                condition="#hold = :token",
                values={":token": held.token},
            )
        )
        return replace(held, operation=_from(item))

    def stop(self, operation: BulkOperation, *, now_ms: int) -> BulkOperation:
        """Have one end: at once if nobody works on it, else after the slice they are in.

        Raises LostRace when that, or its end, is decided already.
        """
        pk = keys.operation(operation.id)
        running: dict[str, Value] = {":running": Phase.RUNNING.value}
        # Race: somebody takes it to work on. Then they are asked to stop.
        try:
            item = self._table.update(
                Update(
                    pk,
                    keys.HEAD,
                    set={
                        "state": Phase.STOPPED.value,
                        "updated": now_ms,
                        "finished": now_ms,
                        "ttl": now_ms // 1000 + KEPT_S,
                    },
                    remove=["wpk", "wsk", "waits", "hold", "held_until"],
                    condition="#state = :running AND #held_until <= :now",
                    values=running | {":now": now_ms},
                )
            )
        except LostRace:
            # Race: it ends by itself. The loser is told so.
            item = self._table.update(
                Update(
                    pk,
                    keys.HEAD,
                    set={"state": Phase.STOPPING.value},
                    condition="#state = :running",
                    values=running,
                )
            )
        return _from(item)

    def get(self, operation_id: str, *, now_ms: int) -> BulkOperation | None:
        """One, consistently."""
        item = self._table.get(keys.operation(operation_id), keys.HEAD)
        return None if item is None or _gone(item, now_ms) else _from(item)

    def due(self, *, now_ms: int, limit: int) -> list[str]:
        """Ids of those that somebody should look at, the longest waiting first. May be stale."""
        found = self._table.query(
            "wpk = :line AND wsk <= :now",
            {":line": keys.OPERATIONS, ":now": keys.upto(now_ms)},
            index="work",
            limit=limit,
        )
        return [keys.operation_id(str(item["pk"])) for item in found.items]

    def list(self, *, now_ms: int, limit: int, before: str | None = None) -> Page[BulkOperation]:
        """A page of those that are kept, latest first; the cursor is the last one's id."""
        condition, values = "epk = :line", {":line": keys.OPERATIONS}
        if before is not None:
            condition += " AND esk < :before"
            values[":before"] = before
        # One more than asked for: DynamoDB says to go on also after the last of them.
        found = self._table.query(
            condition, dict(values), index="expiry", limit=limit + 1, forward=False
        )
        pks = [str(item["pk"]) for item in found.items[:limit]]
        heads = self._table.batch_get((pk, keys.HEAD) for pk in pks)
        kept = [
            _from(heads[pk, keys.HEAD])
            for pk in pks
            if (pk, keys.HEAD) in heads and not _gone(heads[pk, keys.HEAD], now_ms)
        ]
        return Page(kept, keys.operation_id(pks[-1]) if len(found.items) > limit else None)


def _hold(token: str, until_ms: int) -> dict[str, Value]:
    """Held by whoever knows the token; should they die, others look at it after that."""
    return {
        "hold": token,
        "held_until": until_ms,
        "wpk": keys.OPERATIONS,
        "wsk": keys.instant(until_ms),
    }


def _gone(item: Item, now_ms: int) -> bool:
    """Whether it was kept as long as it should be: the table removes it some time later."""
    return "ttl" in item and int(item["ttl"]) * 1000 <= now_ms


def _progress(operation: BulkOperation) -> dict[str, Value]:
    """What changes while it goes on."""
    new: dict[str, Value] = {
        "updated": operation.updated_ms,
        "succeeded": operation.succeeded,
        "failed": operation.failed,
        "errors": jsontext.dumps([(e.job_id, e.code, e.message) for e in operation.errors]),
    }
    if operation.cursor is not None:
        new["cursor"] = operation.cursor
    if operation.waiting_for_room:
        new["waits"] = 1
    return new


def _item(operation: BulkOperation) -> dict[str, Value]:
    wanted = operation.wanted
    asked = {
        "queue": wanted.queue,
        "type": wanted.type,
        "error_type": wanted.error_type,
        "since_ms": wanted.since_ms,
        "until_ms": wanted.until_ms,
        "args": None if wanted.args is None else wanted.args.given,
    }
    return {
        "pk": keys.operation(operation.id),
        "sk": keys.HEAD,
        "epk": keys.OPERATIONS,
        "esk": operation.id,
        "action": operation.action.value,
        "wanted": jsontext.dumps({name: each for name, each in asked.items() if each is not None}),
        "state": operation.phase.value,
        "started": operation.started_ms,
        **_progress(operation),
    }


def _from(item: Item) -> BulkOperation:
    given: dict[str, Any] = dict(item)
    asked: dict[str, Any] = jsontext.stored(given["wanted"])
    if "args" in asked:
        asked["args"] = ArgsMatch.of(asked["args"])
    return BulkOperation(
        id=keys.operation_id(given["pk"]),
        action=Action(given["action"]),
        wanted=DeadLetterFilter(**asked),
        started_ms=given["started"],
        updated_ms=given["updated"],
        phase=Phase(given["state"]),
        finished_ms=given.get("finished"),
        cursor=given.get("cursor"),
        succeeded=given["succeeded"],
        failed=given["failed"],
        errors=tuple(Refusal(*error) for error in jsontext.stored(given["errors"])),
        waiting_for_room="waits" in given,
    )
