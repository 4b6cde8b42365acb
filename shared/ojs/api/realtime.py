"""Realtime: tickets for WebSocket connections, and server-sent events in bounded answers."""

from __future__ import annotations

from ojs import runtime
from ojs.domain.access import Scope
from ojs.domain.errors import Unsupported
from ojs.domain.realtime import ALL, EVENT_TYPES, TICKET_S, check_channel, check_event_type
from ojs.http.answer import Answer, shown, source
from ojs.http.answers import Positive
from ojs.http.binding import query
from ojs.http.binding.request import Request
from ojs.http.endpoint import Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.models import NoOptions
from ojs.http.parameters import listed, text

_t: tuple[str, str] = source()


class TicketAnswer(Answer[tuple[str, str]]):
    """A ticket for one WebSocket connection."""

    ticket: str = shown(_t[0], says="value of the query parameter `ticket`; valid once")
    url: str = shown(_t[1], says="address to connect to, without the ticket")
    expires_in: Positive = shown(TICKET_S, says="seconds")


# --- endpoints ------------------------------------------------------------------------------------

realtime = Resource("realtime", "events")


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
    return Reply(TicketAnswer.of((current.stores.tickets.issue(request.principal), url)), 201)


STREAM_TYPE = "text/event-stream"
_LAST_ID = "Last-Event-ID"
_SELECTED = listed(
    "event_types",
    pattern=f"({'|'.join(EVENT_TYPES)})",
    what="only events of these types, separated by commas; progress only on a job's stream",
)
_CHANNEL = Parameter(
    "channel", text(r"(all|job:.+|queue:.+)", 300), "job:{id}, queue:{name}, or all (default)"
)
_HEADERS = (
    Parameter(_LAST_ID, {"type": "string"}, "`id` of the last event that the client received"),
)
_STREAM = Success(
    None,
    "The events up to now, as server-sent events; ask again after `retry` ms.",
    text=True,
    text_type=STREAM_TYPE,
)
_ENDED = Success(None, "The client has the final state: do not ask again.")

_streams = Resource("", "events")


def _types(request: Request) -> tuple[str, ...]:
    return query.names(request.query, ("event_types",), check_event_type)


def _job(request: Request, job_id: str) -> Reply:
    last_id = request.headers.get(_LAST_ID.lower())
    found = runtime.current().event_streams.read_job(job_id, last_id, _types(request))
    return Reply(None, 204) if found is None else _reply(found)


def _log(request: Request, queue: str | None) -> Reply:
    current, types = runtime.current(), _types(request)
    if queue is not None:
        current.queues.get(queue)
    last_id = request.headers.get(_LAST_ID.lower())
    reaches = request.principal.reaches
    return _reply(current.event_streams.read_log(queue, last_id, types, reaches))


def _reply(events: str) -> Reply:
    return Reply(events, headers={"Content-Type": STREAM_TYPE})


@_streams.endpoint(
    "GET /jobs/{id}/events",
    Permission(Scope.JOBS_READ, QueueScope.JOB),
    {200: _STREAM, 204: _ENDED},
    errors=(404,),
    query=_SELECTED,
    headers=_HEADERS,
)
def stream_job_events(request: Request) -> Reply:
    """Follow the state and the progress of a job."""
    return _job(request, request.named)


@_streams.endpoint(
    "GET /queues/{name}/events",
    Permission(Scope.ADMIN_READ, QueueScope.PATH),
    _STREAM,
    errors=(404,),
    query=_SELECTED,
    headers=_HEADERS,
    derived=True,
)
def stream_queue_events(request: Request) -> Reply:
    """Follow the events of a queue and of its jobs."""
    return _log(request, request.named)


@_streams.endpoint(
    "GET /events/stream",
    Permission(None, QueueScope.NAMED),
    {200: _STREAM, 204: _ENDED},
    errors=(404,),
    query=(_CHANNEL, *_SELECTED),
    headers=_HEADERS,
    derived=True,
)
def stream_events(request: Request) -> Reply:
    """Follow a job (scope jobs:read), or a queue or all queues (scope admin:read)."""
    given = request.query.get("channel", ALL)
    channel = query.checked("channel", check_channel, given)
    kind, _, name = channel.partition(":")
    request.needs(Scope.JOBS_READ if kind == "job" else Scope.ADMIN_READ)
    if kind == "job":
        if request.principal.limited:
            request.check_job_reach(runtime.current().jobs.queue_of(name), name)
        return _job(request, name)
    if kind == "queue":
        request.touches(name)
        return _log(request, name)
    return _log(request, None)
