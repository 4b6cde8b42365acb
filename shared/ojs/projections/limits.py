"""Events of rate and concurrency limits (ojs-rate-limiting, section 11.1).

They are derived from the items of `ojs.store.permits.throttle_state` and
`ojs.store.permits.key_limits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ojs.domain import times
from ojs.domain.counters.definitions import EXCEEDED
from ojs.domain.events.types import EventType
from ojs.projections.changes import DayCount, NewEvent, TableChange
from ojs.records import record

# Maximum characters of a worker's message in the event.
MAX_REASON = 1_000


@record(frozen=True)
class ThrottleChange(TableChange):
    """A throttle state after a change, and whether it throttled before.

    Attributes:
        queue: The queue that has this limit. None for the limit of a key.
    """

    queue: str | None
    was_throttled: bool
    throttled: bool
    key: str
    strategy: str
    limit: int
    current: int
    job_id: str | None
    at_ms: int
    since_ms: int

    @classmethod
    def of(
        cls, queue: str | None, old: Mapping[str, Any] | None, new: Mapping[str, Any]
    ) -> ThrottleChange:
        """Return the change between two images of the item.

        Args:
            queue: The queue that has this limit. None for the limit of a key.
            old: The item before the change.
            new: The item after the change.

        Raises:
            KeyError: An attribute of the item is missing.
        """
        return cls(
            queue=queue,
            was_throttled=old is not None and bool(old["held"]),
            throttled=bool(new["held"]),
            key=new["key"],
            strategy=new["strategy"],
            limit=new["bound"],
            current=new["current"],
            job_id=new.get("job"),
            at_ms=new["at"],
            since_ms=new["since"],
        )

    @property
    def exceeded(self) -> bool:
        """Whether the limit starts to throttle."""
        return self.throttled and not self.was_throttled

    @property
    def released(self) -> bool:
        """Whether the limit stops throttling."""
        return self.was_throttled and not self.throttled

    @property
    def throttled_ms(self) -> int:
        """The duration of the throttling in milliseconds."""
        return max(0, self.at_ms - self.since_ms)

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Return the event of a limit that starts or stops throttling."""
        data: dict[str, Any] = {"key": self.key, "strategy": self.strategy}
        if self.job_id is not None:
            data["job_id"] = self.job_id
        if self.exceeded:
            kind = EventType.RATE_LIMIT_EXCEEDED
            data |= {"limit": self.limit, "current": self.current}
        elif self.released:
            kind = EventType.RATE_LIMIT_RELEASED
            data["held_ms"] = self.throttled_ms
        else:
            return
        source = ("rate-limits", self.key)
        if self.queue is not None:
            data["queue"] = self.queue
            source = ("queues", self.queue)
        yield NewEvent(kind, self.at_ms, self.key, source, data)

    def counts(self, written_ms: int) -> Iterator[DayCount]:
        """Return how often a queue's own limits started to throttle."""
        if self.exceeded and self.queue is not None:
            yield DayCount(self.queue, self.at_ms, EXCEEDED.attribute + self.strategy)


@record(frozen=True)
class Adjustment(TableChange):
    """A pause of a rate limit key that a worker requested."""

    key: str
    until_ms: int
    reason: str
    job_id: str
    at_ms: int

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Adjustment:
        """Return the pause from the limiter's item. Raises KeyError if an attribute is missing."""
        return cls(item["key"], item["until"], item["reason"], item["job"], item["at"])

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Return the event of the paused key."""
        data = {
            "key": self.key,
            "until": times.format_ms(self.until_ms),
            "reason": self.reason[:MAX_REASON],
            "job_id": self.job_id,
        }
        kind = EventType.RATE_LIMIT_DYNAMIC_ADJUSTED
        yield NewEvent(kind, self.at_ms, self.key, ("rate-limits", self.key), data)
