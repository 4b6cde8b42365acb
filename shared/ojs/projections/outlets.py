"""Destinations of the projection: EventBridge, and the queue for unreadable stream records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from ojs.domain import jsontext
from ojs.domain.events.event import Event
from ojs.store.table import clients

logger = Logger()

SOURCE = "ojs"
# EventBridge accepts 10 entries and 256 KB per call. An entry counts slightly more than its JSON.
MAX_ENTRIES = 10
MAX_BYTES = 240_000
_TRIES = 5
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class Bus(Protocol):
    """A destination for events."""

    def publish(self, events: Sequence[Event]) -> set[str]:
        """Publish each event at least once. Return the IDs of the events that failed."""
        ...


class EventBridge:
    """An EventBridge bus.

    `detail-type` is the event's type, `source` is `ojs`, `detail` the envelope.
    """

    def __init__(
        self,
        name: str,
        client: Any = None,
        *,
        sleep: Callable[[float], None],
        chance: Callable[[], float],
    ) -> None:
        self._name = name
        self._client = client
        self._sleep = sleep
        self._chance = chance
        self._in_trouble = False

    def publish(self, events: Sequence[Event]) -> set[str]:
        """Publish events. Rejected events are retried a few times, with increasing waits.

        After a failure, each call makes one attempt until the bus accepts all events again. The
        sweep publishes the events that are still missing.
        """
        waiting = list(events)
        for tried in range(1 if self._in_trouble else _TRIES):
            if tried:
                longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (tried - 1))
                self._sleep(longest * (0.5 + self._chance() / 2))
            waiting = [event for call in _calls(waiting) for event in self._refused(call)]
            if not waiting:
                break
        self._in_trouble = bool(waiting)
        return {event.id for event in waiting}

    def _refused(self, call: Sequence[tuple[Event, dict[str, Any]]]) -> list[Event]:
        """Publish the events of one call. Return the rejected events."""
        if self._client is None:
            self._client = clients.client("events")
        entries = [entry | {"EventBusName": self._name} for _, entry in call]
        try:
            answer = self._client.put_events(Entries=entries)
        except (BotoCoreError, ClientError) as error:
            logger.warning("EventBridge request failed", extra={"reason": type(error).__name__})
            return [event for event, _ in call]
        results = zip(call, answer["Entries"], strict=True)
        return [event for (event, _), result in results if "ErrorCode" in result]


def _calls(events: Sequence[Event]) -> Iterator[list[tuple[Event, dict[str, Any]]]]:
    """Yield the entries in order, in groups that fit into one call."""
    call: list[tuple[Event, dict[str, Any]]] = []
    size = 0
    for event in events:
        detail = jsontext.dumps(event.to_dict())
        length = len(detail.encode("utf-8")) + len(event.type) + len(SOURCE) + 14
        if call and (len(call) == MAX_ENTRIES or size + length > MAX_BYTES):
            yield call
            call, size = [], 0
        entry = {
            "Time": datetime.fromtimestamp(event.time_ms / 1_000, UTC),
            "Source": SOURCE,
            "DetailType": event.type,
            "Detail": detail,
        }
        call.append((event, entry))
        size += length
    if call:
        yield call


class FailureQueue(Protocol):
    """Stores entries for an operator."""

    def send(self, entry: Mapping[str, Any]) -> bool:
        """Store an entry. Return false if that failed."""
        ...


class SqsFailureQueue:
    """An SQS queue. Its depth raises an alarm."""

    def __init__(self, url: str, client: Any = None) -> None:
        self._url = url
        self._client = client

    def send(self, entry: Mapping[str, Any]) -> bool:
        if self._client is None:
            self._client = clients.client("sqs")
        try:
            self._client.send_message(QueueUrl=self._url, MessageBody=jsontext.dumps(entry))
        except (BotoCoreError, ClientError):
            return False
        return True
