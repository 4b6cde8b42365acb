"""Filters and pages of the event log (ojs-events, sections 6 and 9.3)."""

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
    """Return `value` if it is an event type or a prefix with `*`. Raises ValueError if not."""
    if not _TYPE.fullmatch(value):
        raise ValueError("must be an event type such as job.completed, or a prefix such as job.*")
    return value


def check_source(value: str) -> str:
    """Return `value` if it is an event source or a prefix with `*`. Raises ValueError if not."""
    if not _SOURCE.fullmatch(value) or not value.isprintable():
        raise ValueError(
            "must be a URI of at most 506 characters that starts with ojs:// and can end in *"
        )
    return value


@record(frozen=True)
class EventFilter:
    """A filter of events. An event must match all conditions that are set.

    `types` and `sources` can end in `*`. The time of an event must be at or after `since_ms` and
    before `until_ms`.
    """

    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    # Only events of this tenant's queues, jobs, and cron jobs.
    tenant: str | None = None

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event matches the filter."""
        data = event.get("data", {})
        # All times have the same format, so they can be compared as strings.
        time = event["time"]
        return (
            (self.tenant is None or self.tenant == data.get("tenant_id"))
            and (not self.types or matches(event["type"], self.types))
            and (not self.queues or data.get("queue") in self.queues)
            and (not self.job_types or data.get("job_type") in self.job_types)
            and (not self.sources or matches(event["source"], self.sources))
            and (self.since_ms is None or time >= times.format_ms(self.since_ms))
            and (self.until_ms is None or time < times.format_ms(self.until_ms))
        )


@record(frozen=True)
class EventPage:
    """Events in the order in which they were recorded.

    `cursor` continues after the newest event of the listing. `has_more` is true if more events
    exist now. `older` continues with older events. It is None if no older events are stored, or if
    the listing is in forward order.
    """

    events: list[dict[str, Any]]
    cursor: str
    has_more: bool
    older: str | None = None
