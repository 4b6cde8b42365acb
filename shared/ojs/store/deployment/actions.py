"""Storage of the audit log: the actions of operators."""

from __future__ import annotations

from ojs.domain.actions import KEPT_MS, PERIOD_MS, OperatorAction
from ojs.domain.page import Page
from ojs.store.table import keys
from ojs.store.table.record import Record, as_json, flag
from ojs.store.table.table import Put, Table

ACTION = Record(
    OperatorAction,
    "action",
    {
        "at": "at_ms",
        "op": "operation",
        "method": "method",
        "path": "path",
        "status": "status",
        "by": "actor",
        "key": "key",
        "kind": "kind",
        "name": "name",
        "before": as_json("before"),
        "after": as_json("after"),
        "etag": "etag",
        "omitted": flag("omitted"),
    },
    apart={"id": lambda item: item["sk"]},
)


class ActionStore:
    """Reads and writes the audit log."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, action: OperatorAction) -> None:
        """Store an action. Makes one call. Raises OjsError."""
        pk, ttl = keys.actions(action.at_ms // PERIOD_MS), (action.at_ms + KEPT_MS) // 1_000
        self._table.put(Put(ACTION.item(action, pk=pk, sk=action.id, ttl=ttl)))

    def get(self, action_id: str, *, now_ms: int) -> OperatorAction | None:
        """Read an action. Makes one call."""
        made_ms = _made_ms(action_id)
        item = self._table.get(keys.actions(made_ms // PERIOD_MS), action_id)
        return ACTION.of(item) if item and made_ms >= now_ms - KEPT_MS else None

    def list(self, *, limit: int, before: str | None, now_ms: int) -> Page[OperatorAction]:
        """Return a page of actions, the most recent first. At most four calls.

        Args:
            limit: Maximum number of actions.
            before: ID of the last action of the last page, or None to start with the most recent.
            now_ms: Current time in milliseconds since the epoch.
        """
        period = (now_ms if before is None else _made_ms(before)) // PERIOD_MS
        found: list[OperatorAction] = []
        while period >= (now_ms - KEPT_MS) // PERIOD_MS and len(found) <= limit:
            condition, values = "pk = :pk", {":pk": keys.actions(period)}
            if before is not None:
                condition += " AND sk < :before"
                values[":before"] = before
            # Read one more than the page. It shows whether there is another page.
            left = limit + 1 - len(found)
            page = self._table.query(condition, dict(values), limit=left, forward=False)
            # DynamoDB deletes expired items late.
            found += [ACTION.of(item) for item in page.items if int(item["at"]) >= now_ms - KEPT_MS]
            period -= 1
        return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)


def _made_ms(action_id: str) -> int:
    """Return when a UUID of version 7 was created (ms)."""
    return int(action_id.replace("-", "")[:12], 16)
