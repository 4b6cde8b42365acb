"""Storage of bulk operations: one small item each. Only the container with the claim changes it.

    O|{id}  @   filter, progress, and the claim: its container and its end

The index `work` lists each unfinished operation by the time when it is due: immediately, or when
the current claim expires. The index `expiry` lists all retained operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from ojs.domain import jsontext
from ojs.domain.bulk.operation import Action, BulkOperation, JobIds, Phase, Refusal
from ojs.domain.errors import UnknownForm, known
from ojs.domain.filters import jobs as job_filter
from ojs.domain.filters.conditions import ArgsMatch
from ojs.domain.filters.dead_letters import DeadLetterFilter
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.ids import IdSource
from ojs.domain.page import Page
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.races import unless_lost, won_or
from ojs.store.table.record import Attribute, Record, flag, member, words
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value

# Retention of a finished operation.
KEPT_S = 7 * 86_400
# Names of the fields in a stored filter of dead letters, and the fields of the filter.
_STORED = {name: name for name in ("queue", "type", "error_type")} | {
    "since_ms": "since", "until_ms": "until", "args": "args",
}  # fmt: skip


@record(frozen=True)
class ClaimedOperation:
    """An operation that a container has claimed, and the token of the claim."""

    operation: BulkOperation
    token: str


class BulkOperationStore:
    """Reads and writes bulk operations."""

    def __init__(self, table: Table, ids: IdSource) -> None:
        self._table = table
        self._ids = ids

    def create(self, operation: BulkOperation, *, claimed_until_ms: int) -> ClaimedOperation:
        """Store a new operation, claimed by the caller until a time (ms)."""
        token = self._ids.token()
        self._table.put(Put(_item(operation) | _hold(token, claimed_until_ms)))
        return ClaimedOperation(operation, token)

    def take(self, operation_id: str, *, now_ms: int, until_ms: int) -> ClaimedOperation | None:
        """Claim an operation.

        Args:
            operation_id: ID of the operation.
            now_ms: Current time in milliseconds since the epoch.
            until_ms: End of the claim.

        Returns:
            None if the operation has finished, is claimed by another container, or has a format
            that only a newer version can read.
        """
        token = self._ids.token()
        # Race: two sweeps, or a sweep and the request that created the operation. One of them
        # claims it, and the other skips it.
        item = unless_lost(
            lambda: self._table.update(
                Update(
                    keys.operation(operation_id),
                    keys.RECORD,
                    set=_hold(token, until_ms),
                    condition="attribute_exists(#wpk) "
                    "AND (attribute_not_exists(#hold) OR #held_until <= :now)",
                    values={":now": now_ms},
                ),
                own=("hold", token),
            )
        )
        if item is None:
            return None
        try:
            return ClaimedOperation(OPERATION.of(item), token)
        except UnknownForm:
            # Only a newer version can read the operation. It is due again when this claim expires.
            return None

    def save(self, claim: ClaimedOperation, *, until_ms: int) -> ClaimedOperation:
        """Store the progress and extend the claim.

        Returns:
            The claim as stored. It shows whether the operation must stop.

        Raises:
            LostRace: Another container has claimed the operation.
        """
        return self._save(claim, _hold(claim.token, until_ms))

    def release(self, claim: ClaimedOperation, *, look_at_ms: int) -> BulkOperation:
        """Store the progress and release the claim.

        The operation has finished, or is due again at `look_at_ms`.

        Raises:
            LostRace: Another container has claimed the operation.
        """
        if claim.operation.phase.over:
            ended = _ended(claim.operation)
            return self._save(claim, ended, ["wpk", "wsk", "held_until"]).operation
        free: dict[str, Value] = {"wsk": keys.instant(look_at_ms), "held_until": 0}
        return self._save(claim, free).operation

    def _save(
        self, claim: ClaimedOperation, changes: dict[str, Value], remove: Sequence[str] = ()
    ) -> ClaimedOperation:
        new = _progress(claim.operation)
        # Race: the claim expired and another container claimed the operation. The loser stops. Its
        # work is stored, and the other container finds the jobs changed. A release keeps the token,
        # so that a retry of the write succeeds. The attribute `held_until` shows whether the claim
        # is valid.
        item = self._table.update(
            Update(
                keys.operation(claim.operation.id),
                keys.RECORD,
                set=new | changes,
                remove=[*(name for name in ("waits", "cursor") if name not in new), *remove],
                condition="#hold = :token",
                values={":token": claim.token},
            )
        )
        return replace(claim, operation=OPERATION.of(item))

    def stop(self, operation: BulkOperation, *, now_ms: int) -> BulkOperation:
        """Stop an operation: immediately if it is not claimed, otherwise after the current slice.

        Raises:
            LostRace: The operation is stopping or has finished.
        """
        running: dict[str, Value] = {":running": Phase.RUNNING.value}
        # Race: a container claims the operation. That container must then stop it.
        stop = Update(
            keys.operation(operation.id),
            keys.RECORD,
            set=_ended(operation.ended(Phase.STOPPED, now_ms=now_ms)) | {"updated": now_ms},
            remove=["wpk", "wsk", "waits", "hold", "held_until"],
            condition="#state = :running AND #held_until <= :now",
            values=running | {":now": now_ms},
        )
        # Race: the operation finishes first. The caller receives LostRace.
        stop_later = Update(
            keys.operation(operation.id),
            keys.RECORD,
            set={"state": Phase.STOPPING.value},
            condition="#state = :running",
            values=running,
        )
        stopped = won_or(lambda: self._table.update(stop), lambda _: self._table.update(stop_later))
        return OPERATION.of(stopped)

    def get(self, operation_id: str, *, now_ms: int) -> BulkOperation | None:
        """Read one operation, strongly consistent."""
        item = self._table.get(keys.operation(operation_id), keys.RECORD)
        return None if item is None or _gone(item, now_ms) else OPERATION.of(item)

    def due(self, *, now_ms: int, limit: int) -> list[str]:
        """Return the IDs of due operations, the longest due first.

        The read is eventually consistent.
        """
        found = self._table.query(
            "wpk = :line AND wsk <= :now",
            {":line": keys.OPERATIONS, ":now": keys.upto(now_ms)},
            index="work",
            limit=limit,
        )
        return [keys.operation_id(str(item["pk"])) for item in found.items]

    def list(
        self, *, now_ms: int, limit: int, before: str | None = None, of_jobs: bool = False
    ) -> Page[BulkOperation]:
        """Return a page of operations, the most recent first. The cursor is the ID of the last one.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Maximum number of operations.
            before: Cursor of the last page. Default: start with the most recent.
            of_jobs: Whether to return operations on jobs. If false, those on dead letters.
        """
        line = keys.JOB_OPERATIONS if of_jobs else keys.OPERATIONS
        condition, values = "epk = :line", {":line": line}
        if before is not None:
            condition += " AND esk < :before"
            values[":before"] = before
        # Read one more than the page, because DynamoDB returns a position even after the last item.
        found = self._table.query(
            condition, dict(values), index="expiry", limit=limit + 1, forward=False
        )
        pks = [str(item["pk"]) for item in found.items[:limit]]
        items = self._table.batch_get((pk, keys.RECORD) for pk in pks)
        kept = []
        for pk in pks:
            item = items.get((pk, keys.RECORD))
            if item is not None and not _gone(item, now_ms):
                with suppress(UnknownForm):
                    kept.append(OPERATION.of(item))
        return Page(kept, keys.operation_id(pks[-1]) if len(found.items) > limit else None)


def _hold(token: str, until_ms: int) -> dict[str, Value]:
    """Return the attributes of a claim. Without a release, the operation is due at `until_ms`."""
    return {
        "hold": token,
        "held_until": until_ms,
        "wpk": keys.OPERATIONS,
        "wsk": keys.instant(until_ms),
    }


def _ended(operation: BulkOperation) -> dict[str, Value]:
    """Return the attributes of a finished operation."""
    item, at_ms = OPERATION.item(operation), operation.finished_ms or 0
    # The purpose of an erasure can contain personal data.
    names = ("state", "ids", "wanted") if operation.action is Action.ERASE_JOBS else ("state",)
    over = {name: item[name] for name in names if name in item}
    return over | {"finished": at_ms, "ttl": at_ms // 1000 + KEPT_S}


def _gone(item: Item, now_ms: int) -> bool:
    """Return whether an operation's time to live has ended. DynamoDB deletes the item later."""
    return "ttl" in item and int(item["ttl"]) * 1000 <= now_ms


def _progress(operation: BulkOperation) -> dict[str, Value]:
    """Return the attributes that change with the progress of an operation."""
    item = OPERATION.item(operation)
    new = {name: item[name] for name in _PROGRESS if name in item}
    return new | ({"before_round": operation.before_round} if operation.round > 1 else {})


def _item(operation: BulkOperation) -> Item:
    line = keys.JOB_OPERATIONS if operation.action.of_jobs else keys.OPERATIONS
    pk = keys.operation(operation.id)
    return OPERATION.item(operation, pk=pk, sk=keys.RECORD, epk=line, esk=operation.id)


def _ids(wanted: object) -> bytes | None:
    if not isinstance(wanted, JobIds):
        return None
    return b"".join(UUID(job_id).bytes for job_id in wanted.ids)


def _filter(wanted: DeadLetterFilter | JobFilter | JobIds) -> str | None:
    if isinstance(wanted, JobIds):
        return None
    if isinstance(wanted, JobFilter):
        return jsontext.dumps(wanted.to_dict())
    return jsontext.dumps(
        {
            stored: value.text if isinstance(value, ArgsMatch) else value
            for stored, name in _STORED.items()
            if (value := wanted.values.get(name)) is not None
        }
    )


def _wanted(stored: Mapping[str, Any]) -> DeadLetterFilter | JobFilter | JobIds:
    action = known(Action, stored["action"], "an operation to")
    if "ids" in stored:
        packed = stored["ids"]
        each = (packed[at : at + 16] for at in range(0, len(packed), 16))
        return JobIds(tuple(str(UUID(bytes=one)) for one in each))
    fields: dict[str, Any] = jsontext.stored(stored["wanted"])
    # Without a rule that it does not know, this version would touch jobs that were not meant.
    for name in fields.keys() - set(job_filter.FIELDS if action.of_jobs else _STORED):
        raise UnknownForm("an operation that filters by", name)
    if action.of_jobs:
        return job_filter.parse(fields, now_ms=stored["started"])
    values = {_STORED[name]: value for name, value in fields.items()}
    args = None if "args" not in values else ArgsMatch.of(values.pop("args"))
    return DeadLetterFilter(**values, args=args)


OPERATION = Record(
    BulkOperation,
    "operation",
    {
        "action": member("action", Action, "an operation to"),
        "ids": Attribute("wanted", _ids, None, "B"),
        "wanted": Attribute("wanted", _filter),
        "dry": flag("dry_run"),
        "state": member("phase", Phase, "an operation in state"),
        "started": "started_ms",
        "finished": "finished_ms",
        "updated": "updated_ms",
        "succeeded": "succeeded",
        "failed": "failed",
        "errors": Attribute(
            "errors",
            lambda errors: jsontext.dumps([(e.job_id, e.code, e.message) for e in errors]),
            lambda text: tuple(Refusal(*error) for error in jsontext.stored(text)),
        ),
        "cursor": "cursor",
        "waits": flag("waiting_for_room"),
        "round": "round",
        "before_round": "before_round",
        "clears": words("clears"),
    },
    apart={"id": lambda item: keys.operation_id(item["pk"]), "wanted": _wanted},
    always=("state", "succeeded", "failed", "errors"),
)
_PROGRESS = ("updated", "succeeded", "failed", "errors", "cursor", "waits", "round")
