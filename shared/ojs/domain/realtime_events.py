"""Events as the realtime bindings have them (ojs-realtime section 4), made of those of the log.

One change of a job has up to four events in the log, and one `job.state_changed` for each state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from ojs.domain import ids, jsontext, times
from ojs.domain.events.event import event_id
from ojs.domain.events.query import EVENT_PREFIX
from ojs.domain.events.types import EventType
from ojs.domain.realtime import MAX_SENT, PROGRESS, STATE_CHANGED, Subscriber
from ojs.records import record

GAP, DROPPED = "system.gap", "system.events_dropped"
# Type of an event in the log → the state that the job was in, if the event doesn't say, and is in.
_STATES = {
    EventType.JOB_ENQUEUED: ("pending", "available"),
    EventType.JOB_SCHEDULED: ("pending", "scheduled"),
    EventType.JOB_STARTED: ("available", "active"),
    EventType.JOB_COMPLETED: ("active", "completed"),
    EventType.JOB_RETRYING: ("active", "retryable"),
    EventType.JOB_DISCARDED: ("active", "discarded"),
    EventType.JOB_CANCELLED: ("available", "cancelled"),
}
_QUEUES = (EventType.QUEUE_PAUSED, EventType.QUEUE_RESUMED)
# Maximum number of events that are sent at a time to a client that receives them one by one, and to
# one that receives batches. Older ones are dropped.
MAX_SINGLE = 100
MAX_BATCHED = 1_000
# The clock of the server that wrote an event may be ahead of this one (ms).
_AHEAD_MS = 60_000
# Bytes of a message around its events.
_ENVELOPE = 30


@record(frozen=True)
class LiveEvent:
    """An event for subscribers.

    Attributes:
        id: That of the event in the log.
        type: As subscribers select it.
        queue: The queue that it is about, or the job's.
        job: ID of the job; None: it is about the queue.
        timestamp: When it happened.
        data: Of the event.
        log: The events of the log that the same change has, for `detail`.
    """

    id: str
    type: str
    queue: str
    job: str | None
    timestamp: str
    data: Mapping[str, Any]
    log: Sequence[Mapping[str, Any]] = field(default=())

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that it is sent on."""
        of_queue = (f"queue:{self.queue}", "all")
        return of_queue if self.job is None else (f"job:{self.job}", *of_queue)


def read_time(event_id: str, now_ms: int) -> int | None:
    """Return when an event happened (ms); None for an ID that no event has."""
    text = event_id.removeprefix(EVENT_PREFIX)
    if not event_id.startswith(EVENT_PREFIX) or not ids.is_uuid7(text):
        return None
    at_ms = int(text.replace("-", "")[:12], 16)
    return at_ms if at_ms <= now_ms + _AHEAD_MS else None


def find_type(kind: str) -> str | None:
    """Return the type that an event of the log has here; None: it is not sent."""
    return STATE_CHANGED if kind in _STATES else kind if kind in _QUEUES else None


def from_log(envelopes: Sequence[Mapping[str, Any]]) -> Iterator[LiveEvent]:
    """Convert the events of one change, in their order.

    With `detail` a subscriber gets each envelope once: before or with the event that it led to.
    """
    before: list[Mapping[str, Any]] = []
    found: list[LiveEvent] = []
    for envelope in envelopes:
        before.append(envelope)
        event = _converted(envelope, before)
        if event is not None:
            found.append(event)
            before = []
    if found and before:
        # What follows the last one, as the entry of a dead letter.
        *found, last = found
        found.append(_with_log(last, [*last.log, *before]))
    yield from found


def _with_log(event: LiveEvent, log: Sequence[Mapping[str, Any]]) -> LiveEvent:
    return LiveEvent(event.id, event.type, event.queue, event.job, event.timestamp, event.data, log)


def _converted(envelope: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> LiveEvent | None:
    kind, data, time = envelope["type"], envelope["data"], envelope["time"]
    if kind in _STATES:
        before, after = _STATES[kind]
        told = {
            "job_id": envelope["subject"],
            "queue": data["queue"],
            "type": data["job_type"],
            "from": data.get("from", before),
            "to": after,
            "timestamp": time,
        }
        job: str | None = envelope["subject"]
        return LiveEvent(envelope["id"], STATE_CHANGED, data["queue"], job, time, told, log)
    if kind in _QUEUES:
        told = {"queue": data["queue"], "timestamp": time}
        return LiveEvent(envelope["id"], kind, data["queue"], None, time, told, log)
    return None


def make_progress(
    cause: str, job: str, queue: str, percent: int, message: str | None, at_ms: int
) -> LiveEvent:
    """Return the event of a report of progress, which is not in the log.

    `cause` tells it from others of its job.
    """
    time = times.format_ms(at_ms)
    told = {"job_id": job, "progress": percent, "message": message, "timestamp": time}
    shown = {name: value for name, value in told.items() if value is not None}
    return LiveEvent(event_id(at_ms, job, cause, PROGRESS), PROGRESS, queue, job, time, shown)


# --- messages -----------------------------------------------------------------------------------


def is_wanted(subscriber: Subscriber, event: LiveEvent) -> bool:
    """Return whether a subscriber of a channel of an event receives it."""
    selected = not subscriber.event_types or event.type in subscriber.event_types
    return selected and subscriber.principal.reaches(event.queue)


def make_messages(
    subscriber: Subscriber, events: Sequence[LiveEvent], *, single: int = MAX_SINGLE
) -> list[tuple[str, Sequence[LiveEvent]]]:
    """Return the messages of a subscriber with events of its channel, each with its events.

    If there are too many events, the oldest are dropped. The first messages tell that.
    """
    if subscriber.digest and events[-1].type != GAP:
        return [(make_digest(event.queue for event in events), events)]
    most = MAX_BATCHED if subscriber.batch else single
    dropped, kept = events[: max(0, len(events) - most)], events[-most:]
    told = [(text, dropped) for text in make_drop_notices(subscriber.channel, dropped)]
    if not subscriber.batch:
        return told + [(jsontext.dumps(_message(subscriber, each)), [each]) for each in kept]
    return told + list(_batches(subscriber, kept))


def _message(subscriber: Subscriber, event: LiveEvent) -> dict[str, Any]:
    data = {**event.data}
    if subscriber.detail:
        data["events"] = [*event.log]
    return _event(subscriber.channel, event.type, data, event.id, event.timestamp)


def _event(channel: str, kind: str, data: Any, event_id: str, timestamp: str) -> dict[str, Any]:
    return {
        "type": "event",
        "channel": channel,
        "event": kind,
        "data": data,
        "id": event_id,
        "timestamp": timestamp,
    }


def _batches(
    subscriber: Subscriber, events: Iterable[LiveEvent]
) -> Iterator[tuple[str, Sequence[LiveEvent]]]:
    """Return messages with several events. Each has up to `MAX_SENT` bytes, or one event."""
    told: list[dict[str, Any]] = []
    part: list[LiveEvent] = []
    size = 0
    for event in events:
        message = _message(subscriber, event)
        more = jsontext.size_of(message) + 1
        if part and size + more > MAX_SENT - _ENVELOPE:
            yield jsontext.dumps({"type": "events", "events": told}), part
            told, part, size = [], [], 0
        told.append(message)
        part.append(event)
        size += more
    if part:
        yield jsontext.dumps({"type": "events", "events": told}), part


def make_drop_notices(channel: str, dropped: Sequence[LiveEvent]) -> list[str]:
    """Return the messages about events that a client doesn't receive (sections 4.4 and 5.4)."""
    if not dropped:
        return []
    first, last = dropped[0], dropped[-1]
    ids = {"oldest_dropped_id": first.id, "newest_dropped_id": last.id}
    count = len(dropped)
    warning = {"type": "warning", "code": "events_dropped", "count": count, "channel": channel}
    data = {"channel": channel, "dropped_count": count, **ids, "timestamp": last.timestamp}
    notice = _event(channel, DROPPED, data, last.id, last.timestamp)
    return [jsontext.dumps({**warning, **ids}), jsontext.dumps(notice)]


def make_gap(channel: str, start_ms: int, end_ms: int) -> LiveEvent:
    """Return the event for a client that missed events which are not replayed (section 4.5)."""
    end = times.format_ms(end_ms)
    data = {"channel": channel, "gap_start": times.format_ms(start_ms), "gap_end": end}
    return LiveEvent(event_id(end_ms, channel, GAP), GAP, "", None, end, data)


def make_digest(queues: Iterable[str]) -> str:
    """Return the message that names the queues in which something changed."""
    return jsontext.dumps({"type": "changed", "queues": sorted(set(queues))})
