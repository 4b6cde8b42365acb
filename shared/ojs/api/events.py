"""The event log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from ojs import runtime
from ojs.domain.access import Scope
from ojs.domain.errors import InvalidRequest
from ojs.domain.events import query as domain
from ojs.domain.events.query import EVENT_PREFIX, EventFilter, EventPage
from ojs.domain.ids import UUID7
from ojs.domain.job import envelope
from ojs.domain.job.envelope import QUEUE_PATTERN, TYPE_PATTERN
from ojs.domain.requests import Field
from ojs.http.answer import Answer, made, shown, source
from ojs.http.answers import Moment
from ojs.http.binding import paging, query
from ojs.http.binding.paging import Listed, Position
from ojs.http.binding.request import Request
from ojs.http.endpoint import Parameter, Permission, QueueScope, Reply, Resource
from ojs.http.parameters import MAX_OFFSET, MOMENT_SCHEMA, listed, whole
from ojs.records import record

DEFAULT_EVENTS = 100
MAX_EVENTS = 1_000


@record(frozen=True)
class _Asked:
    """A request for events. At most one of `after` and `cursor` is set. Both are decoded."""

    wanted: EventFilter
    # The offset counts from the most recent event.
    window: paging.PageWindow
    after: str | None = None
    cursor: str | None = None


def _read(parameters: Mapping[str, str], *, now_ms: int) -> _Asked:
    """Parse the query. Raise InvalidRequest if a parameter is invalid."""
    since_ms, until_ms = query.span(parameters, now_ms=now_ms)
    wanted = EventFilter(
        types=query.names(parameters, ("types", "type"), domain.check_type),
        queues=query.names(parameters, ("queues", "queue"), envelope.check_queue),
        job_types=query.names(parameters, ("job_types", "job_type"), envelope.check_type),
        sources=query.names(parameters, ("sources", "source"), domain.check_source),
        since_ms=since_ms,
        until_ms=until_ms,
    )
    limit = paging.limit(parameters, default=DEFAULT_EVENTS, most=MAX_EVENTS)
    page = paging.integer(parameters, "page", default=1, least=1, most=MAX_OFFSET + 1)
    window = paging.PageWindow(limit, offset=(page - 1) * limit)
    if window.offset > MAX_OFFSET:
        rule = f"must not skip more than {MAX_OFFSET} events. Use cursor instead"
        raise InvalidRequest("page", rule, value=parameters["page"])
    position = query.either(parameters, "after", "cursor")
    if position is None:
        return _Asked(wanted, window)
    name, text = position
    if page > 1:
        raise InvalidRequest("page", f"can't be combined with {name}", value=parameters["page"])
    # An event ID is not an encoded cursor.
    opened = (
        text if text.startswith(EVENT_PREFIX) and name == "after" else paging.opened(text, name)
    )
    return _Asked(wanted, window, **{name: opened})


@record(frozen=True)
class _Found:
    """A request for events and the page that was found."""

    asked: _Asked
    page: EventPage

    @property
    def listed(self) -> Listed[Any]:
        """The page for `pagination`: the next page has older events, or newer ones with `after`."""
        page, following = self.page, self.page.older
        if following is None and page.has_more:
            following = page.cursor
        total = None
        if self.asked.after is None and self.asked.cursor is None:
            # Events are not counted. A total of one more than those so far leads to the next page.
            total = self.asked.window.offset + len(page.events) + (following is not None)
        return Listed(page.events, self.asked.window, following, total)


_e: Mapping[str, Any] = source()
_f: _Found = source()
_l: Listed[Any] = source()


class Event(Answer[Mapping[str, Any]]):
    """A lifecycle event (ojs-events sections 2 to 4)."""

    specversion: str = _e["specversion"]
    id: Annotated[str, Field(json_schema_extra={"pattern": f"evt_{UUID7.pattern}"})] = _e["id"]
    type: str = _e["type"]
    source: str = _e["source"]
    time: Moment = _e["time"]
    timestamp: Moment = time
    subject: str = shown(_e["subject"], says="a job's id, a queue's or a worker's name")
    data: dict[str, Any] = _e["data"]


class EventsPagination(Position):
    """The cursor of the next page of events, and the minimum number of events."""

    total: Annotated[int, Field(ge=0)] = shown(
        _l.total,
        absent=True,
        says="events up to the end of this page, and one if there are more; not with after or "
        "cursor",
    )


class EventsAnswer(Answer[_Found]):
    """Events, oldest first. If `has_more` is true, pass `cursor` as `after` to continue."""

    events: list[Event] = Event.each(_f.page.events)
    items: list[Event] = events
    cursor: Annotated[str, Field(min_length=1)] = shown(
        made(paging.sealed, _f.page.cursor), says="to be passed as `after`"
    )
    has_more: bool = _f.page.has_more
    pagination: EventsPagination = EventsPagination.of(_f.listed)


# --- endpoints ------------------------------------------------------------------------------------

# One row for each parameter. The formatter would split the rows.
# fmt: off
_CURSOR = {"type": "string", "pattern": "[A-Za-z0-9_-]+={0,2}"}
_LIMIT = whole(1, MAX_EVENTS, DEFAULT_EVENTS)
_EVENTS = (
    *listed("types", "type", pattern=domain.TYPE_PATTERN,
        what="types of event, separated by commas; each may end in `*`"),
    *listed("queues", "queue", pattern=f"({QUEUE_PATTERN})", what="only events of these queues"),
    *listed("job_types", "job_type", pattern=f"({TYPE_PATTERN})",
        what="only events of jobs of these types"),
    *listed("sources", "source", pattern=domain.SOURCE_PATTERN,
        what="only events from these sources; each may end in `*`"),
    Parameter("since", MOMENT_SCHEMA, "only events of this time or later"),
    Parameter("until", MOMENT_SCHEMA, "only events before this time"),
    Parameter("after", _CURSOR,
        "go forward from here: `cursor` of an answer, or an event's id; without it the answer has "
        "the latest events"),
    Parameter("cursor", _CURSOR, "`pagination.next_cursor` of an answer; not together with after"),
    Parameter("limit", _LIMIT, "most events of one answer"),
    Parameter("per_page", _LIMIT, "the same as limit"),
    Parameter("page", whole(1, MAX_OFFSET + 1, 1),
        f"page number, from the latest events back; the pages before it may have {MAX_OFFSET} "
        "events in all"),
)
# fmt: on

events = Resource("events", "events")


@events.endpoint(
    "GET",
    Permission(Scope.ADMIN_READ, QueueScope.FILTER),
    EventsAnswer,
    query=_EVENTS,
    derived=True,
)
def list_events(request: Request) -> Reply:
    """List lifecycle events.

    Events in the order in which they were recorded.
    """
    current = runtime.current()
    asked = _read(request.query, now_ms=current.clock.now_ms())
    page = current.events.list(
        asked.wanted,
        limit=asked.window.limit,
        skip=asked.window.offset,
        after=asked.after,
        cursor=asked.cursor,
    )
    return Reply(EventsAnswer.of(_Found(asked, page)))
