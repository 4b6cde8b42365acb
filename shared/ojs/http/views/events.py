"""The event log: reading requests and building answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ojs.domain.errors import InvalidRequest
from ojs.domain.events import query as event_query
from ojs.domain.events.query import EVENT_PREFIX, EventFilter, EventPage
from ojs.domain.job import envelope
from ojs.http.binding import paging, query
from ojs.http.contract.operations import DEFAULT_EVENTS, MAX_EVENTS
from ojs.http.parameters import MAX_OFFSET
from ojs.records import record

if TYPE_CHECKING:
    from ojs.http.contract import answers


@record(frozen=True)
class EventRequest:
    """A request for events. At most one of `after` and `cursor` is set, decoded by then."""

    wanted: EventFilter
    # Its offset counts from the latest event.
    window: paging.PageWindow
    after: str | None = None
    cursor: str | None = None


def read(parameters: Mapping[str, str], *, now_ms: int) -> EventRequest:
    """Read which events a query asks for. Raises InvalidRequest naming a parameter."""
    since_ms, until_ms = query.span(parameters, now_ms=now_ms)
    wanted = EventFilter(
        types=query.names(parameters, ("types", "type"), event_query.check_type),
        queues=query.names(parameters, ("queues", "queue"), envelope.check_queue),
        job_types=query.names(parameters, ("job_types", "job_type"), envelope.check_type),
        sources=query.names(parameters, ("sources", "source"), event_query.check_source),
        since_ms=since_ms,
        until_ms=until_ms,
    )
    limit = paging.limit(parameters, default=DEFAULT_EVENTS, most=MAX_EVENTS)
    page = paging.integer(parameters, "page", default=1, least=1, most=MAX_OFFSET + 1)
    window = paging.PageWindow(limit, offset=(page - 1) * limit)
    if window.offset > MAX_OFFSET:
        rule = f"must not skip more than {MAX_OFFSET} events; use cursor instead"
        raise InvalidRequest("page", rule, value=parameters["page"])
    position = query.either(parameters, "after", "cursor")
    if position is None:
        return EventRequest(wanted, window)
    name, text = position
    if page > 1:
        raise InvalidRequest("page", f"cannot be combined with {name}", value=parameters["page"])
    # Of an event's id no cursor was made.
    opened = (
        text if text.startswith(EVENT_PREFIX) and name == "after" else paging.opened(text, name)
    )
    return EventRequest(wanted, window, **{name: opened})


def answer(request: EventRequest, found: EventPage) -> answers.EventsAnswer:
    """A page of events, under both names that clients know.

    `cursor` continues forward from the newest event; `pagination.next_cursor` continues in the
    direction of the listing: back to older events, or forward where the request had `after`.
    """
    shown = [{**event, "timestamp": event["time"]} for event in found.events]
    events = cast("list[answers.Event]", shown)
    following = found.older or (found.cursor if found.has_more else None)
    pagination = cast("answers.EventsPagination", paging.position(request.window, following))
    if request.after is None and request.cursor is None:
        # Events are not counted. A total of one more than those so far tells of a next page.
        pagination["total"] = request.window.offset + len(events) + (following is not None)
    return {
        "events": events,
        "items": events,
        "cursor": paging.sealed(found.cursor),
        "has_more": found.has_more,
        "pagination": pagination,
    }
