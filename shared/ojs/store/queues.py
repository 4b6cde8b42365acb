"""Queues in the table, and the registry that names them all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ojs.domain.queue import Queue, QueueState
from ojs.store import keys
from ojs.store.errors import LostRace
from ojs.store.items import Item, Value
from ojs.store.table import Put, Table, Update


class Queues:
    """The store of queues and their registry."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, name: str) -> Queue | None:
        """One queue, consistently."""
        item = self._table.get(keys.queue(name), keys.HEAD)
        return from_item(name, item) if item else None

    def ensure(self, name: str, *, now_ms: int) -> Queue:
        """The queue, created with defaults if it was not there."""
        # The registry first: if we die in between, a sweep looks at an empty queue; the other
        # way round it would never look at a queue with jobs.
        self._table.put(Put({"pk": keys.QUEUES, "sk": name}))
        queue = Queue(name, created_ms=now_ms)
        # Race: another first push, or a pause of a queue not seen before. The loser takes what
        # stands there.
        try:
            self._table.put(Put(_item(queue), condition="attribute_not_exists(pk)"))
        except LostRace as lost:
            return from_item(name, lost.item or {})
        return queue

    def set_state(self, name: str, state: QueueState, *, now_ms: int) -> Queue:
        """Pause or resume; the queue must exist."""
        # Race: another operator. The last word counts, and is never about a queue that is gone.
        item = self._table.update(
            Update(
                keys.queue(name),
                keys.HEAD,
                set={"state": state.value, "changed": now_ms},
                condition="attribute_exists(pk)",
            )
        )
        return from_item(name, item)

    def names(
        self, *, limit: int, after: str | None = None, consistent: bool = False
    ) -> tuple[list[str], str | None]:
        """A page of the registry in order of name, and where to go on."""
        condition, values = "pk = :queues", {":queues": keys.QUEUES}
        if after is not None:
            condition += " AND sk > :after"
            values[":after"] = after
        found = self._table.query(condition, values, limit=limit, consistent=consistent)
        names = [str(item["sk"]) for item in found.items]
        return names, (names[-1] if found.last and names else None)

    def get_many(
        self, names: Iterable[str], worker: tuple[str, str] | None = None
    ) -> tuple[dict[str, Queue], Item | None]:
        """Several queues, consistently, and with the same call the record of the worker asking."""
        wanted = [(keys.queue(name), keys.HEAD) for name in names]
        found = self._table.batch_get([*wanted, *([worker] if worker else [])])
        queues = {}
        for pk, sk in wanted:
            if (pk, sk) in found:
                name = pk.removeprefix(keys.queue(""))
                queues[name] = from_item(name, found[pk, sk])
        return queues, found.get(worker) if worker else None


def from_item(name: str, item: Item) -> Queue:
    """The queue an item holds."""
    given: dict[str, Any] = dict(item)
    return Queue(
        name=name,
        state=QueueState(given.get("state", QueueState.ACTIVE)),
        lanes=given.get("lanes", 1),
        created_ms=given.get("created", 0),
        changed_ms=given.get("changed"),
    )


def _item(queue: Queue) -> dict[str, Value]:
    item: dict[str, Value] = {
        "pk": keys.queue(queue.name),
        "sk": keys.HEAD,
        "state": queue.state.value,
        "created": queue.created_ms,
    }
    if queue.lanes != 1:
        item["lanes"] = queue.lanes
    return item
