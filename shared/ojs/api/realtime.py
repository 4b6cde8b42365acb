"""Realtime: tickets for WebSocket connections."""

from __future__ import annotations

from ojs import runtime
from ojs.domain.errors import Unsupported
from ojs.domain.realtime import TICKET_S
from ojs.http.answer import Answer, shown, source
from ojs.http.answers import Positive
from ojs.http.binding.request import Request
from ojs.http.endpoint import Permission, QueueScope, Reply, Resource, Success
from ojs.http.models import NoOptions

_t: tuple[str, str] = source()


class TicketAnswer(Answer[tuple[str, str]]):
    """A ticket for one WebSocket connection."""

    ticket: str = shown(_t[0], says="value of the query parameter `ticket`; valid once")
    url: str = shown(_t[1], says="address to connect to, without the ticket")
    expires_in: Positive = shown(TICKET_S, says="seconds")


# --- endpoints ------------------------------------------------------------------------------------

realtime = Resource("realtime", "realtime")


@realtime.endpoint(
    "POST /tickets",
    Permission(None, QueueScope.NONE),
    {201: Success(TicketAnswer, "A ticket.")},
    errors=(422,),
    request=NoOptions,
)
def create_ticket(request: Request) -> Reply:
    """Create a ticket for one WebSocket connection."""
    current = runtime.current()
    url = current.settings.socket_url
    if current.settings.realtime == "off" or url is None:
        raise Unsupported("This deployment has no WebSocket API: its setting realtime is off.")
    return Reply(TicketAnswer.of((current.tickets.issue(request.principal), url)), 201)
