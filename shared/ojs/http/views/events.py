"""The event log: reading requests and building answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ojs.domain.errors import InvalidRequest
from ojs.domain.events import query as event_query
from ojs.domain.events.query import EVENT_PREFIX, EventFilter, EventPage
from ojs.domain.job import envelope
from ojs.http.binding import paging, query
from ojs.http.contract.operations import DEFAULT_EVENTS, MAX_EVENTS, MAX_OFFSET

if TYPE_CHECKING:
    from ojs.http.contract import answers


@dataclass(frozen=True)
class EventRequest:
    """A request for events. At most one of `after` and `cursor` is set, decoded by then."""

    wanted: EventFilter
    limit: int
    page: int
    after: str | None
    cursor: str | None

    @property
    def skip(self) -> int:
        """How many of the latest events to leave out."""
        return (self.page - 1) * self.limit


def asked(given: Mapping[str, str], *, now_ms: int) -> EventRequest:
    """Read which events a query asks for. Raises InvalidRequest naming a parameter."""
    since_ms, until_ms = query.span(given, now_ms=now_ms)
    wanted = EventFilter(
        types=query.names(given, ("types", "type"), event_query.check_type),
        queues=query.names(given, ("queues", "queue"), envelope.check_queue),
        job_types=query.names(given, ("job_types", "job_type"), envelope.check_type),
        sources=query.names(given, ("sources", "source"), event_query.check_source),
        since_ms=since_ms,
        until_ms=until_ms,
    )
    per_page = paging.integer(given, "per_page", default=DEFAULT_EVENTS, least=1, most=MAX_EVENTS)
    limit = paging.integer(given, "limit", default=per_page, least=1, most=MAX_EVENTS)
    page = paging.integer(given, "page", default=1, least=1, most=MAX_OFFSET + 1)
    if (page - 1) * limit > MAX_OFFSET:
        rule = f"must not skip more than {MAX_OFFSET} events; go on with cursor instead"
        raise InvalidRequest("page", rule, value=given["page"])
    position = query.given(given, "after", "cursor")
    if position is None:
        return EventRequest(wanted, limit, page, None, None)
    name, text = position
    if page > 1:
        raise InvalidRequest("page", f"cannot be combined with {name}", value=given["page"])
    if name == "after":
        text = text if text.startswith(EVENT_PREFIX) else paging.opened(text, name)
        return EventRequest(wanted, limit, page, text, None)
    return EventRequest(wanted, limit, page, None, paging.opened(text, name))


def answer(given: EventRequest, found: EventPage) -> answers.EventsAnswer:
    """A page of events, under both names that clients know.

    `cursor` continues forward from the newest event; `pagination.next_cursor` continues in the
    direction of the listing: back to older events, or forward where the request had `after`.
    """
    events = cast("list[answers.Event]", found.events)
    following = found.older or (found.cursor if found.has_more else None)
    pagination: answers.EventsPagination = {
        "has_more": following is not None,
        "limit": given.limit,
        "offset": given.skip,
        "page": given.page,
        "per_page": given.limit,
    }
    if following is not None:
        pagination["next_cursor"] = paging.sealed(following)
    return {
        "events": events,
        "items": events,
        "cursor": paging.sealed(found.cursor),
        "has_more": found.has_more,
        "pagination": pagination,
    }
