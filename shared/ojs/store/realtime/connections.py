"""Tickets and connections in the table."""

from __future__ import annotations

import hashlib
import secrets

from ojs.domain import jsontext
from ojs.domain.access import Principal
from ojs.domain.realtime import Connection
from ojs.store.table import keys
from ojs.store.table.races import wins
from ojs.store.table.record import Attribute, Record, words
from ojs.store.table.table import Put, Table, Update

_SPARE_S = 60


def caller() -> Attribute:
    """The caller of a connection."""
    return Attribute("principal", _caller_text, _caller)


def ttl_s(until_ms: int) -> int:
    """Return the `ttl` of an item that is valid until a time (ms). Readers compare `until`."""
    return until_ms // 1_000 + _SPARE_S


def _caller_text(principal: Principal) -> str:
    return jsontext.dumps(principal.context())


def _caller(text: str) -> Principal:
    return Principal.of(jsontext.stored(text)) or Principal(None)


CONNECTION = Record(
    Connection,
    "a connection",
    {
        "caller": caller(),
        "line": words("line"),
        "until": "until_ms",
        "grp": "group",
        "channels": words("channels"),
    },
    apart={"id": lambda item: str(item["pk"]).removeprefix(keys.connection(""))},
)


class TicketStore:
    """The store of tickets. A ticket lets its holder connect once, soon."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, principal: Principal, *, until_ms: int) -> str:
        """Store a new ticket and return its secret, which the table doesn't have. One call."""
        secret = secrets.token_urlsafe(32)
        # No condition: no two secrets are equal.
        self._table.put(
            Put(
                {
                    "pk": keys.ticket(_digest(secret)),
                    "sk": keys.RECORD,
                    "caller": _caller_text(principal),
                    "until": until_ms,
                    "ttl": ttl_s(until_ms),
                }
            )
        )
        return secret

    def take(self, secret: str, *, now_ms: int) -> Principal | None:
        """Delete a ticket; return its caller, or None if it is unknown, used, or too old.

        One call. Of two concurrent calls, one gets the caller. After a lost response the ticket is
        used: the client gets another one.
        """
        item = self._table.take(keys.ticket(_digest(secret)), keys.RECORD)
        if item is None or int(str(item["until"])) <= now_ms:
            return None
        return _caller(str(item["caller"]))


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
        # No condition: API Gateway gives each connection an ID of its own.
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
        """Delete a connection; return it as it was, or None if it had ended. One call."""
        item = self._table.take(keys.connection(connection), keys.RECORD)
        return None if item is None else CONNECTION.of(item)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
