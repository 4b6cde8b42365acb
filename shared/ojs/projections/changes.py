"""Base types for changes of items that are not job records, with their events and daily counts."""

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
    """An event that doesn't have an ID yet. Its source has the component and the instance.

    If two events have the same type and cause, `part` distinguishes them.
    """

    type: EventType
    at_ms: int
    subject: str
    source: tuple[str] | tuple[str, str]
    data: Mapping[str, Any]
    part: str = ""

    def event(self, service: str, cause: str) -> Event:
        """Return the event.

        The same `cause` (the identity of the change) always gives the same ID.
        """
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
    """An increment of one daily counter of a queue. `at_ms` determines the day."""

    queue: str
    at_ms: int
    name: str
    count: int = 1


class TableChange(ABC):
    """A change of an item. `written_ms` is the time of the write, to the second."""

    @abstractmethod
    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Return the events of the change, in order."""

    def counts(self, written_ms: int) -> Iterable[DayCount]:
        """Return the additions to daily counters."""
        return ()
