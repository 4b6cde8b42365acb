"""Workers with free slots, by the group of their queues."""

from __future__ import annotations

import hashlib
import secrets

from ojs.domain.realtime import Listener
from ojs.store.realtime.tickets import to_ttl
from ojs.store.table import keys
from ojs.store.table.record import Record
from ojs.store.table.table import Put, Table

LISTENER = Record(
    Listener,
    "a listener",
    {"worker": "worker_id", "until": "until_ms"},
    apart={"connection": lambda item: str(item["sk"]).partition("|")[2]},
)
_PLACE_BYTES = 3


class ListenerStore:
    """The store of listeners."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, group: str, listener: Listener) -> None:
        """Store that a worker listens. One call, safe to repeat."""
        # No condition: the connection belongs to this worker alone.
        place = {"pk": keys.listeners(group), "sk": _place(listener.connection)}
        self._table.put(Put(LISTENER.item(listener, **place, ttl=to_ttl(listener.until_ms))))

    def remove(self, group: str, connection: str) -> None:
        """Delete a listener. One call, safe to repeat."""
        self._table.delete(keys.listeners(group), _place(connection))

    def some(self, group: str, number: int, *, now_ms: int) -> list[Listener]:
        """Return up to `number` listeners, from a random one on.

        One consistent query, and another one if the first reaches the end of the partition.
        """
        start = secrets.token_hex(_PLACE_BYTES)
        found = self._page(group, "AND sk >= :start", {":start": start}, number)
        if len(found) < number:
            found += self._page(group, "AND sk < :start", {":start": start}, number - len(found))
        return [listener for listener in found if listener.until_ms > now_ms]

    def _page(
        self, group: str, condition: str, values: dict[str, str], limit: int
    ) -> list[Listener]:
        page = self._table.query(
            f"pk = :group {condition}",
            {":group": keys.listeners(group), **values},
            limit=limit,
            consistent=True,
        )
        return [LISTENER.of(item) for item in page.items]


def _place(connection: str) -> str:
    """Return the sort key of a listener.

    The IDs of connections that are opened at the same time can begin alike. A hash spreads them.
    """
    digest = hashlib.sha256(connection.encode("utf-8")).hexdigest()
    return f"{digest[: 2 * _PLACE_BYTES]}|{connection}"
