"""Tickets in the table, and callers as the items of realtime hold them.

A ticket lets its holder open one WebSocket connection, so that no key is in an address.

The ticket authorizer loads this, and its cold start delays each connection: no heavy imports here.
"""

from __future__ import annotations

import hashlib
import secrets

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.access import Principal, build_anybody
from ojs.domain.realtime import TICKET_S
from ojs.store.table import keys
from ojs.store.table.table import Put, Table

_SPARE_S = 60


def to_ttl(until_ms: int) -> int:
    """Return the `ttl` of an item that is valid until a time (ms). Readers compare `until`."""
    return until_ms // 1_000 + _SPARE_S


def format_caller(principal: Principal) -> str:
    """Return the stored form of a caller."""
    return jsontext.dumps(principal.context())


def parse_caller(text: str) -> Principal:
    """Return the caller that `format_caller` wrote. Only a server without keys has one without a
    name. Raises ValueError for any other text.
    """
    context = jsontext.stored(text)
    found = build_anybody(context) if context.get("principal") == "" else Principal.of(context)
    if found is None:
        raise ValueError("must name a caller")
    return found


class TicketStore:
    """The store of tickets. Each is valid once, for `TICKET_S`."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    def issue(self, principal: Principal) -> str:
        """Store a new ticket and return its secret, which the table doesn't have. One call."""
        secret, until_ms = secrets.token_urlsafe(32), self._clock.now_ms() + 1_000 * TICKET_S
        # No condition: no two secrets are equal.
        self._table.put(
            Put(
                {
                    "pk": keys.ticket(_digest(secret)),
                    "sk": keys.RECORD,
                    "caller": format_caller(principal),
                    "until": until_ms,
                    "ttl": to_ttl(until_ms),
                }
            )
        )
        return secret

    def redeem(self, secret: str) -> Principal | None:
        """Delete a ticket; return its caller, or None if it is unknown, used, or too old.

        One call. Of two concurrent calls, one gets the caller. After a lost response the ticket is
        used: the client gets another one.
        """
        item = self._table.take(keys.ticket(_digest(secret)), keys.RECORD)
        if item is None or int(str(item["until"])) <= self._clock.now_ms():
            return None
        return parse_caller(str(item["caller"]))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
