"""An event of a subscription."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STATE_CHANGED = "job.state_changed"
# States of a job by the type of event that represents them (ojs-realtime section 9.4).
DERIVED = {"job.completed": {"completed"}, "job.failed": {"retryable", "discarded"}}


@dataclass(frozen=True)
class Event:
    """An event of a subscription.

    Attributes:
        type: Type of the event, for example `job.state_changed`, `job.progress`, or `queue.paused`.
            `system.gap` and `system.events_dropped`: events were missed.
        channel: Channel of the subscription.
        id: ID of the event, as in the event log. None for events about the connection.
        timestamp: Time of the event, as RFC 3339 string in UTC.
        data: All fields of the event.
    """

    type: str
    channel: str
    id: str | None = None
    timestamp: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def job_id(self) -> str | None:
        """ID of the job, or None."""
        return self.data.get("job_id")

    @property
    def queue(self) -> str | None:
        """Queue of the event, or None."""
        return self.data.get("queue")

    @property
    def job_type(self) -> str | None:
        """Type of the job, or None."""
        return self.data.get("type")

    @property
    def from_(self) -> str | None:
        """Earlier state of the job, or None."""
        return self.data.get("from")

    @property
    def to(self) -> str | None:
        """New state of the job, or None."""
        return self.data.get("to")

    @property
    def progress(self) -> float | None:
        """Progress of the job, or None."""
        return self.data.get("progress")

    @property
    def envelopes(self) -> list[dict[str, Any]]:
        """Events of the event log that belong to this event, with the option `detail`."""
        found = self.data.get("events")
        return found if isinstance(found, list) else []

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Event:
        """Parse a message of the server.

        Args:
            message: The JSON object of the message.

        Returns:
            The event.
        """
        data = message.get("data")
        data = data if isinstance(data, Mapping) else {}
        at = message.get("timestamp") or data.get("timestamp")
        kind, channel = str(message.get("event")), str(message.get("channel"))
        return cls(kind, channel, message.get("id"), at, data)
