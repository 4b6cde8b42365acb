"""Connections in the table."""

from __future__ import annotations

import hashlib
from typing import Any

from ojs.domain.realtime import Connection
from ojs.store.realtime.tickets import format_caller, parse_caller, to_ttl
from ojs.store.table import keys
from ojs.store.table.races import wins
from ojs.store.table.record import Attribute, Record
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item

# What the attributes of channels begin with.
_CHANNEL = "c_"


def _channels(item: Item) -> tuple[str, ...]:
    return tuple(sorted(str(item[name]) for name in item if name.startswith(_CHANNEL)))


CONNECTION = Record(
    Connection,
    "a connection",
    {
        "caller": Attribute("principal", format_caller, parse_caller),
        "until": "until_ms",
        "grp": "group",
    },
    apart={
        "id": lambda item: str(item["pk"]).removeprefix(keys.connection("")),
        "channels": _channels,
    },
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
            ttl=to_ttl(connection.until_ms),
        )
        self._table.put(Put(item))

    def add_channel(self, connection: str, channel: str) -> bool:
        """Store that a connection subscribes to a channel. One call, safe to repeat.

        Returns:
            False if the connection has ended.
        """
        return self._change(connection, set={_name(channel): channel})

    def remove_channel(self, connection: str, channel: str) -> bool:
        """Undo `add_channel`. One call, safe to repeat."""
        return self._change(connection, remove=[_name(channel)])

    def set_group(self, connection: str, group: str) -> bool:
        """Store the group of workers that a connection listens in. As `add_channel`."""
        return self._change(connection, set={"grp": group})

    def _change(self, connection: str, **change: Any) -> bool:
        # Race: the connection ends. Messages of one connection change different attributes.
        place = keys.connection(connection), keys.RECORD
        update = Update(*place, **change, condition="attribute_exists(pk)")
        return wins(lambda: self._table.update(update, tell_loser=False))

    def remove(self, connection: str) -> Connection | None:
        """Delete a connection; return its last record, or None if it had ended. One call."""
        item = self._table.take(keys.connection(connection), keys.RECORD)
        return None if item is None else CONNECTION.of(item)


def _name(channel: str) -> str:
    """Return the attribute of a channel, whose name can have any length and characters."""
    return _CHANNEL + hashlib.sha256(channel.encode("utf-8")).hexdigest()[:16]
