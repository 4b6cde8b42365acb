"""Filters of the event log, and its pages (ojs-events sections 6 and 9.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ojs.domain import times
from ojs.domain.events.event import matches
from ojs.records import record

RETAIN_MS = 7 * 86_400_000
EVENT_PREFIX = "evt_"

TYPE_PATTERN = r"(?:[a-z][a-z_]{0,99}(?:\.[a-z_]{1,100}){0,4}(?:\.?\*)?|\*)"
SOURCE_PATTERN = r"ojs://[^,\s]{1,500}"
_TYPE = re.compile(TYPE_PATTERN)
_SOURCE = re.compile(SOURCE_PATTERN)


def check_type(value: str) -> str:
    """Return an event type, or a prefix of one with `*`. Raises ValueError with the rule."""
    if not _TYPE.fullmatch(value):
        raise ValueError("must be an event type such as job.completed, or a prefix such as job.*")
    return value


def check_source(value: str) -> str:
    """Return an event source, or a prefix of one with `*`. Raises ValueError with the rule."""
    if not _SOURCE.fullmatch(value) or not value.isprintable():
        raise ValueError(
            "must be a URI of at most 506 characters that starts with ojs:// and can end in *"
        )
    return value


@record(frozen=True)
class EventFilter:
    """A filter of events; all conditions that are set must hold.

    `types` and `sources` may end in `*`. Times are those of the events: from `since_ms` on, and
    before `until_ms`.
    """

    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Whether an event matches."""
        data = event.get("data", {})
        # Times have one format, so they compare as texts.
        time = event["time"]
        return (
            (not self.types or matches(event["type"], self.types))
            and (not self.queues or data.get("queue") in self.queues)
            and (not self.job_types or data.get("job_type") in self.job_types)
            and (not self.sources or matches(event["source"], self.sources))
            and (self.since_ms is None or time >= times.format_ms(self.since_ms))
            and (self.until_ms is None or time < times.format_ms(self.until_ms))
        )


@record(frozen=True)
class EventPage:
    """Events in the order in which they were recorded.

    `cursor` continues after the newest event of the listing, and `has_more` says whether there are
    more now. `older` continues with older events; None if none are kept, or the listing goes
    forward.
    """

    events: list[dict[str, Any]]
    cursor: str
    has_more: bool
    older: str | None = None
