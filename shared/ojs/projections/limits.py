"""Changes of limits (`ojs.store.permits.throttle_state`, `ojs.store.permits.key_limits`), and the
events that follow (ojs-rate-limiting section 11.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ojs.domain import times
from ojs.domain.events import event as events
from ojs.domain.events.event import Event
from ojs.domain.events.types import EventType

# Characters of a worker's message that are part of the event.
MAX_REASON = 1_000


@dataclass(frozen=True)
class ThrottleEvent:
    """Whether a limit throttles, as of its last change."""

    throttled: bool
    key: str
    strategy: str
    limit: int
    current: int
    job_id: str | None
    at_ms: int
    since_ms: int

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> ThrottleEvent:
        """What the item holds. Raises KeyError."""
        return cls(
            throttled=bool(item["held"]),
            key=item["key"],
            strategy=item["strategy"],
            limit=item["bound"],
            current=item["current"],
            job_id=item.get("job"),
            at_ms=item["at"],
            since_ms=item["since"],
        )


@dataclass(frozen=True)
class ThrottleChange:
    """A throttle state before and after; `queue` is the queue whose own limit it is, if any."""

    queue: str | None
    before: ThrottleEvent | None
    after: ThrottleEvent

    @property
    def exceeded(self) -> bool:
        """Whether the limit starts to throttle."""
        return self.after.throttled and (self.before is None or not self.before.throttled)

    @property
    def released(self) -> bool:
        """Whether the limit stops throttling."""
        return not self.after.throttled and self.before is not None and self.before.throttled

    @property
    def throttled_ms(self) -> int:
        """For how long the limit throttled."""
        return max(0, self.after.at_ms - self.after.since_ms)


@dataclass(frozen=True)
class Adjustment:
    """A key was paused at the request of a worker."""

    key: str
    until_ms: int
    reason: str
    job_id: str
    at_ms: int

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Adjustment:
        """What the item holds. Raises KeyError."""
        return cls(item["key"], item["until"], item["reason"], item["job"], item["at"])


def of_throttle(change: ThrottleChange, service: str, *, identity: bytes) -> Iterator[Event]:
    """The event of a limit that starts or stops throttling. `identity` is the change's."""
    after = change.after
    job = {} if after.job_id is None else {"job_id": after.job_id}
    data: dict[str, Any] = {"key": after.key, "strategy": after.strategy, **job}
    if change.exceeded:
        kind = EventType.RATE_LIMIT_EXCEEDED
        data |= {"limit": after.limit, "current": after.current}
    elif change.released:
        kind = EventType.RATE_LIMIT_RELEASED
        data |= {"held_ms": change.throttled_ms}
    else:
        return
    if change.queue is not None:
        data |= {"queue": change.queue}
    yield _event(kind, after.at_ms, after.key, change.queue, service, identity, data)


def of_adjustment(what: Adjustment, service: str, *, identity: bytes) -> Event:
    """The event of a key that was paused."""
    data = {
        "key": what.key,
        "until": times.format_ms(what.until_ms),
        "reason": what.reason[:MAX_REASON],
        "job_id": what.job_id,
    }
    kind = EventType.RATE_LIMIT_DYNAMIC_ADJUSTED
    return _event(kind, what.at_ms, what.key, None, service, identity, data)


def _event(
    kind: str,
    at_ms: int,
    key: str,
    queue: str | None,
    service: str,
    identity: bytes,
    data: Mapping[str, Any],
) -> Event:
    of = ("rate-limits", key) if queue is None else ("queues", queue)
    return Event(
        id=events.event_id(at_ms, key, identity.hex(), kind),
        type=kind,
        source=events.source(service, *of),
        time_ms=at_ms,
        subject=key,
        data=data,
    )
