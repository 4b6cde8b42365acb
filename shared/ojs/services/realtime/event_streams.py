"""Server-sent events in bounded answers (ojs-realtime section 2).

An answer has the events up to now, and the client asks again with the last ID that it has. That ID
is all that is known of the client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ojs.clock import Clock
from ojs.domain import jsontext, times
from ojs.domain.access import Reaches
from ojs.domain.errors import InvalidRequest, NotFound
from ojs.domain.events.query import EVENT_PREFIX, RETAIN_MS, EventFilter, EventPage
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.realtime import ALL, STATE_CHANGED
from ojs.domain.realtime_events import (
    LiveEvent,
    find_type,
    from_log,
    make_gap,
    make_progress,
    read_time,
)
from ojs.records import record
from ojs.services.operations.events import Events
from ojs.store.jobs.records import JobStore

# When a client asks again (ms).
_JOB_MS, _LOG_MS, _MORE_MS = 1_000, 3_000, 100
MAX_EVENTS = 100
# Maximum number of characters of an ID that a client has. A longer one is none of this server.
_MAX_ID = 4_096
# State and run of a job, and the time of a report of progress. Heartbeats change neither.
_JOB_ID = re.compile(r"([a-z]+)\.(\d{1,9}\.\d{1,9}\.\d{1,15})(?:\.(\d{1,15}))?", re.ASCII)
_TIMES: Mapping[State, Callable[[Job], int | None]] = {
    State.AVAILABLE: lambda job: job.enqueued_ms,
    State.ACTIVE: lambda job: job.started_ms,
    State.COMPLETED: lambda job: job.completed_ms,
    State.CANCELLED: lambda job: job.cancelled_ms,
    State.DISCARDED: lambda job: job.discarded_ms,
    State.RETRYABLE: lambda job: (job.retry_at_ms or 0) - (job.retry_delay_ms or 0) or None,
}


@record(frozen=True)
class _Wanted(EventFilter):
    """The events of the log that a stream has."""

    event_types: Collection[str] = ()
    reaches: Reaches = lambda _queue: True

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event matches."""
        kind = find_type(event["type"])
        if kind is None or (self.event_types and kind not in self.event_types):
            return False
        return super().matches(event) and self.reaches(event["data"]["queue"])


class EventStreams:
    """Makes the answers of streams."""

    def __init__(self, events: Events, jobs: JobStore, clock: Clock) -> None:
        self._events = events
        self._jobs = jobs
        self._clock = clock

    def read_job(
        self, job_id: str, last_id: str | None, event_types: Collection[str]
    ) -> str | None:
        """Return the stream of a job: its state, if the client lacks it. One call.

        Between two answers a job can pass several states. The answer has the last one. Returns None
        if the client has the final state. Raises NotFound.
        """
        job = self._jobs.with_progress(job_id)
        if job is None:
            raise NotFound("job", job_id)
        had = _JOB_ID.fullmatch(last_id) if last_id and len(last_id) <= _MAX_ID else None
        before, place, reported = had.groups() if had else ("pending", None, None)
        here, report = f"{job.life}.{job.attempt}.{job.started_ms or 0}", job.progress or {}
        found: list[LiveEvent] = []
        if had is None or (before, place) != (job.state.value, here):
            found.append(_state(job, before))
        elif job.state.terminal:
            return None
        told_ms = report.get("updated_ms")
        if told_ms is not None and report["progress"] is not None and str(told_ms) != reported:
            percent, message = int(round(report["progress"], 6) * 100), report.get("message")
            found.append(make_progress("", job.id, job.queue, percent, message, told_ms))
        current = f"{job.state.value}.{here}" + ("" if told_ms is None else f".{told_ms}")
        wanted = [each for each in found if not event_types or each.type in event_types]
        position = current if found and not wanted else None
        return _text(_JOB_MS, ((current, each) for each in wanted), position)

    def read_log(
        self,
        queue: str | None,
        last_id: str | None,
        event_types: Collection[str],
        reaches: Reaches,
    ) -> str:
        """Return the stream of a queue, or of all queues within reach: the events of the log after
        a position. Without a position it begins now.
        """
        channel = ALL if queue is None else f"queue:{queue}"
        wanted = _Wanted(
            queues=() if queue is None else (queue,), event_types=event_types, reaches=reaches
        )
        now_ms = self._clock.now_ms()
        if last_id is not None:
            page = self._following(wanted, last_id, now_ms)
            if page is not None:
                found = [(each.id, each) for event in page.events for each in from_log([event])]
                return _text(_MORE_MS if page.has_more else _LOG_MS, found, page.cursor)
        # From now on, after what tells that events can be missing.
        start = self._events.find_end()
        lost = [] if last_id is None else [(start, make_gap(channel, now_ms - RETAIN_MS, now_ms))]
        return _text(_LOG_MS, lost, start)

    def _following(self, wanted: EventFilter, last_id: str, now_ms: int) -> EventPage | None:
        """Return the events after an ID that is kept, or after a cursor; None for anything else."""
        if len(last_id) > _MAX_ID:
            return None
        if last_id.startswith(EVENT_PREFIX):
            at_ms = read_time(last_id, now_ms)
            if at_ms is None or at_ms < now_ms - RETAIN_MS:
                return None
        try:
            return self._events.list(wanted, limit=MAX_EVENTS, after=last_id)
        except InvalidRequest:
            return None


def _state(job: Job, before: str) -> LiveEvent:
    """Return the state of a job, as a change from the one that the client has."""
    entered_ms = _TIMES[job.state](job) if job.state in _TIMES else None
    time = times.format_ms(entered_ms or job.created_ms)
    told = {
        "job_id": job.id,
        "queue": job.queue,
        "type": job.type,
        "from": before,
        "to": job.state.value,
        "timestamp": time,
    }
    return LiveEvent("", STATE_CHANGED, job.queue, job.id, time, told)


def _text(retry_ms: int, events: Iterable[tuple[str, LiveEvent]], last_id: str | None) -> str:
    """Return an answer. An ID without data is the client's position, and no event."""
    parts = [f"retry: {retry_ms}\n"]
    for event_id, event in events:
        parts.append(f"id: {event_id}\nevent: {event.type}\ndata: {jsontext.dumps(event.data)}\n")
    if last_id is not None:
        parts.append(f"id: {last_id}\n")
    return "\n".join(parts) + "\n"
