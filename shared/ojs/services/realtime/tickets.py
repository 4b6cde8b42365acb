"""Tickets: each lets its holder open one WebSocket connection, so that no key is in an address."""

from __future__ import annotations

from ojs.clock import Clock
from ojs.domain.access import Principal
from ojs.domain.realtime import TICKET_S
from ojs.store.realtime.tickets import TicketStore


class Tickets:
    """Issues and redeems tickets."""

    def __init__(self, tickets: TicketStore, clock: Clock) -> None:
        self._tickets = tickets
        self._clock = clock

    def issue(self, principal: Principal) -> str:
        """Return a new ticket of a caller. It is valid for `TICKET_S`, and stored hashed."""
        return self._tickets.add(principal, until_ms=self._clock.now_ms() + 1_000 * TICKET_S)

    def redeem(self, ticket: str) -> Principal | None:
        """Return the caller of a ticket, which is used then; None for one that is not valid."""
        return self._tickets.take(ticket, now_ms=self._clock.now_ms())
