"""Connections in the table."""

from __future__ import annotations

from ojs.domain.realtime import Connection
from ojs.store.realtime.tickets import caller_of, caller_text, ttl_s
from ojs.store.table import keys
from ojs.store.table.races import wins
from ojs.store.table.record import Attribute, Record, words
from ojs.store.table.table import Put, Table, Update

CONNECTION = Record(
    Connection,
    "a connection",
    {
        "caller": Attribute("principal", caller_text, caller_of),
        "until": "until_ms",
        "grp": "group",
        "channels": words("channels"),
    },
    apart={"id": lambda item: str(item["pk"]).removeprefix(keys.connection(""))},
)


class ConnectionStore:
    """The store of connections."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, connection: str, *, now_ms: int) -> Connection | None:
        """Return a connection, or None if it has ended. One consistent read."""
        item = self._table.get(keys.connection(connection), keys.RECORD)
        found = None if item is None else CONNECTION.of(item)
        return found if found is not None and found.until_ms > now_ms else None

    def add(self, connection: Connection) -> None:
        """Store a new connection. One call, safe to repeat."""
        # No condition: API Gateway gives each connection a new ID.
        item = CONNECTION.item(
            connection,
            pk=keys.connection(connection.id),
            sk=keys.RECORD,
            ttl=ttl_s(connection.until_ms),
        )
        self._table.put(Put(item))

    def change(
        self, before: Connection, *, channels: tuple[str, ...], group: str | None = None
    ) -> bool:
        """Store the channels and the group of a connection as read.

        Returns:
            False if another message of the connection changed it since, or it has ended.
        """
        # Race: two messages of one connection. The loser reads the connection again.
        seen = " ".join(before.channels)
        condition = "#channels = :seen" if seen else "attribute_not_exists(#channels)"
        setting = {"grp": group or before.group, "channels": " ".join(channels)}
        return wins(
            lambda: self._table.update(
                Update(
                    keys.connection(before.id),
                    keys.RECORD,
                    set={name: text for name, text in setting.items() if text},
                    remove=[name for name, text in setting.items() if not text],
                    condition=f"attribute_exists(pk) AND {condition}",
                    values={":seen": seen} if seen else {},
                ),
                tell_loser=False,
            )
        )

    def remove(self, connection: str) -> Connection | None:
        """Delete a connection; return its last record, or None if it had ended. One call."""
        item = self._table.take(keys.connection(connection), keys.RECORD)
        return None if item is None else CONNECTION.of(item)
