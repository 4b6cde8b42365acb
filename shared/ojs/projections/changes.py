"""What every change of an item, other than a job record, leads to: events, and counts of a day."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ojs.domain.events import event as events
from ojs.domain.events.event import Event
from ojs.domain.events.types import EventType
from ojs.records import record


@record(frozen=True)
class NewEvent:
    """An event before it has an id and a deployment. `source` is a component, and its instance;
    `part` tells it from others of its type that have the same cause.
    """

    type: EventType
    at_ms: int
    subject: str
    source: tuple[str] | tuple[str, str]
    data: Mapping[str, Any]
    part: str = ""

    def event(self, service: str, cause: str) -> Event:
        """The event. The same `cause` (what was projected) gives the same id each time."""
        return Event(
            id=events.event_id(self.at_ms, self.subject, f"{cause}{self.part}", self.type),
            type=self.type,
            source=events.source(service, *self.source),
            time_ms=self.at_ms,
            subject=self.subject,
            data=self.data,
        )


@record(frozen=True)
class DayCount:
    """An increment of one of a queue's counters of the day that `at_ms` is in."""

    queue: str
    at_ms: int
    name: str
    count: int = 1


class TableChange(ABC):
    """A change of an item. `written_ms` is when it was stored, to the second."""

    @abstractmethod
    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """The events that follow, in order."""

    def counts(self, written_ms: int) -> Iterable[DayCount]:
        """What is counted by day."""
        return ()
