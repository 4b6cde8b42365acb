"""The event log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from ojs import runtime
from ojs.domain.access import Scope
from ojs.domain.errors import InvalidRequest, NotImplementedFeature
from ojs.domain.events import query as domain
from ojs.domain.events.event import matches
from ojs.domain.events.query import EVENT_PREFIX, EventFilter, EventPage
from ojs.domain.events.types import EventType
from ojs.domain.ids import UUID7
from ojs.domain.job import envelope
from ojs.domain.job.envelope import QUEUE_PATTERN, TYPE_PATTERN
from ojs.domain.requests import Field
from ojs.http.answer import Answer, AsIs, absent, made, shown, source
from ojs.http.answers import Id, Moment
from ojs.http.binding import paging, query
from ojs.http.binding.paging import Listed, Position
from ojs.http.binding.request import Request
from ojs.http.endpoint import Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.parameters import DEFAULT_LIMIT, MAX_OFFSET, MOMENT_SCHEMA, listed, whole
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


class DeploymentActor(AsIs):
    """Who caused an event."""

    type: Literal["worker"]
    id: str


class DeploymentEvent(AsIs):
    """Something that happened to a job."""

    id: str
    job_id: Id
    event_type: str
    timestamp: Moment
    actor: DeploymentActor = absent()
    data: dict[str, Any]


class DeploymentHistoryAnswer(AsIs):
    """Events of jobs, newest first. A page can be short, or empty, although older events exist."""

    events: list[DeploymentEvent]
    next_cursor: Annotated[str, Field(min_length=1)] = absent("to be passed as `cursor`")


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
    Permission(Scope.ADMIN_READ, QueueScope.TENANT),
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
        replace(asked.wanted, tenant=request.principal.tenant),
        limit=asked.window.limit,
        skip=asked.window.offset,
        after=asked.after,
        cursor=asked.cursor,
    )
    return Reply(EventsAnswer.of(_Found(asked, page)))


# --- history of all jobs --------------------------------------------------------------------------

_OF_JOBS = "job.*"
# Name of an event in the history of a job → its type in the event log.
_LOGGED = {
    "job.created": EventType.JOB_ENQUEUED,
    "job.attempt_started": EventType.JOB_STARTED,
    "job.attempt_completed": EventType.JOB_COMPLETED,
    "job.attempt_failed": EventType.JOB_FAILED,
}
_NAMES = {logged: name for name, logged in _LOGGED.items()}
_CLAMPED = "X-OJS-Limit-Clamped"
# One row for each parameter. The formatter would split the rows.
# fmt: off
_HISTORY = (
    Parameter("start", MOMENT_SCHEMA, "only events of this time or later"),
    Parameter("end", MOMENT_SCHEMA, "only events before this time"),
    *listed("event_types", pattern=domain.TYPE_PATTERN,
        what="only these events of jobs, separated by commas; each may end in `*`"),
    *listed("queues", "queue", pattern=f"({QUEUE_PATTERN})", what="only events of these queues"),
    *listed("job_types", "job_type", pattern=f"({TYPE_PATTERN})",
        what="only events of jobs of these types"),
    Parameter("query", {"type": "string"}, "501: texts are not searched"),
    Parameter("limit", {"type": "integer", "minimum": 1, "default": DEFAULT_LIMIT},
        f"most events of one answer; above {MAX_EVENTS}: {MAX_EVENTS}"),
    Parameter("cursor", _CURSOR, "`next_cursor` of the answer before"),
)
# fmt: on
history = Resource("history", "events")


def _types(parameters: Mapping[str, str]) -> tuple[str, ...]:
    """Return the types in the event log that a query asks for. Raises InvalidRequest."""
    asked = query.names(parameters, ("event_types",), domain.check_type)
    if not asked:
        return (_OF_JOBS,)
    found = tuple(
        each.value
        for each in EventType
        if matches(each, (_OF_JOBS,))
        and (matches(each, asked) or matches(_NAMES.get(each, each), asked))
    )
    if not found:
        rule = "must contain an event of jobs, such as job.attempt_failed"
        raise InvalidRequest("event_types", rule, value=parameters["event_types"])
    return found


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    data = event["data"]
    worker = data.get("worker_id")
    return {
        "id": event["id"],
        "job_id": event["subject"],
        "event_type": _NAMES.get(event["type"], event["type"]),
        "timestamp": event["time"],
        **({"actor": {"type": "worker", "id": worker}} if worker else {}),
        "data": data,
    }


@history.endpoint(
    "GET",
    Permission(Scope.ADMIN_READ, QueueScope.FILTER),
    Success(DeploymentHistoryAnswer, "Events of jobs, newest first.", sometimes=(_CLAMPED,)),
    errors=(501,),
    query=_HISTORY,
    derived=True,
)
def search_history(request: Request) -> Reply:
    """Search the history of all jobs.

    Events of jobs, newest first.
    """
    asked, current = request.query, runtime.current()
    if asked.get("query"):
        raise NotImplementedFeature("'query': this server doesn't search texts.", field="query")
    now_ms = current.clock.now_ms()
    since_ms, until_ms = query.span(asked, now_ms=now_ms, since="start", until="end")
    wanted = EventFilter(
        types=_types(asked),
        queues=query.names(asked, ("queues", "queue"), envelope.check_queue),
        job_types=query.names(asked, ("job_types", "job_type"), envelope.check_type),
        since_ms=since_ms,
        until_ms=until_ms,
    )
    limit = paging.integer(asked, "limit", default=DEFAULT_LIMIT, least=1, most=10**9 - 1)
    cursor = paging.opened(asked["cursor"]) if asked.get("cursor") else None
    page = current.events.list(wanted, limit=min(limit, MAX_EVENTS), cursor=cursor)
    told: dict[str, Any] = {"events": [_event(event) for event in reversed(page.events)]}
    if page.older is not None:
        told["next_cursor"] = paging.sealed(page.older)
    return Reply(told, headers={_CLAMPED: "true"} if limit > MAX_EVENTS else {})
