"""Replays events to a client that was disconnected (ojs-realtime section 5.5.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ojs.clock import Clock
from ojs.domain.events.query import RETAIN_MS, EventFilter
from ojs.domain.realtime import ALL, STATE_CHANGED, Subscriber
from ojs.domain.realtime_events import LiveEvent, find_type, from_log, make_gap
from ojs.records import record
from ojs.services.operations.events import Events
from ojs.services.realtime.event_sender import EventSender

# Maximum number of events that are replayed. A client that missed more reads the current state.
MAX_REPLAYED = 500
# Shards of the stream are read at different times: an event can be sent so much (ms) later than one
# that happened after it. A client drops those that it has.
_OVERLAP_MS = 10_000
# Types of events that belong to a change of a job.
_OF_JOBS = ("job.", "dead_letter.")


@record(frozen=True)
class _OfSubscribers(EventFilter):
    """The events of the log that any of some subscribers receives."""

    subscribers: tuple[Subscriber, ...] = ()

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event matches."""
        return super().matches(event) and any(_receives(each, event) for each in self.subscribers)


class EventReplay:
    """Sends the events of the log again, from a time on."""

    def __init__(self, events: Events, event_sender: EventSender, clock: Clock) -> None:
        self._events = events
        self._sender = event_sender
        self._clock = clock

    def send(self, subscribers: Sequence[Subscriber], after_ms: int) -> int:
        """Send the events since a time to subscribers of one connection, in order.

        If there are too many, or some are deleted, each subscriber receives `system.gap`.

        Returns:
            The number of events.
        """
        now_ms = self._clock.now_ms()
        since_ms = after_ms - _OVERLAP_MS
        found: Sequence[Mapping[str, Any]] = ()
        missed = since_ms < now_ms - RETAIN_MS
        if subscribers and not missed:
            wanted = _OfSubscribers(since_ms=since_ms, subscribers=tuple(subscribers))
            page = self._events.list_since(wanted, limit=MAX_REPLAYED)
            found, missed = page.events, page.has_more
        sent = [
            (each, [make_gap(each.channel, after_ms, now_ms)] if missed else _of(each, found))
            for each in subscribers
        ]
        self._sender.send([one for one in sent if one[1]], single=MAX_REPLAYED)
        return 0 if missed else sum(find_type(event["type"]) is not None for event in found)


def _receives(subscriber: Subscriber, event: Mapping[str, Any]) -> bool:
    """Return whether a subscriber receives an event: alone, or with `detail` in another one."""
    kind, data = find_type(event["type"]), event["data"]
    if subscriber.detail and event["type"].startswith(_OF_JOBS):
        kind = STATE_CHANGED
    if kind is None or (subscriber.event_types and kind not in subscriber.event_types):
        return False
    channels = (ALL, f"queue:{data['queue']}", f"job:{event['subject']}")
    return subscriber.channel in channels and subscriber.principal.reaches(data["queue"])


def _of(subscriber: Subscriber, found: Sequence[Mapping[str, Any]]) -> list[LiveEvent]:
    """Return the events of a subscriber in the order of the log."""
    by_subject: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for event in found:
        if _receives(subscriber, event):
            by_subject[event["subject"]].append(_bare(event))
    places = {event["id"]: place for place, event in enumerate(found)}
    live = (each for envelopes in by_subject.values() for each in from_log(envelopes))
    return sorted(live, key=lambda each: places[each.id])


def _bare(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an event without the result of the job."""
    data = {name: value for name, value in event["data"].items() if name != "result"}
    return {**event, "data": data}
