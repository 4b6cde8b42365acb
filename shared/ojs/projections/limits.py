"""Limits as the items beside them tell (`ojs.store.permits.throttle_state`, `ojs.store.permits.key_limits`), and the events that
follow (ojs-rate-limiting section 11.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ojs.domain import times
from ojs.domain.events import event as events
from ojs.domain.events.event import Event

# Of what a worker said an event tells so many characters.
MAX_REASON = 1_000


@dataclass(frozen=True)
class ThrottleEvent:
    """That a limit holds jobs back, or does not: as of its last edge."""

    held: bool
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
            held=bool(item["held"]),
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
    """An edge before and after; `queue` is that whose own limit it is."""

    queue: str | None
    before: ThrottleEvent | None
    after: ThrottleEvent

    @property
    def exceeded(self) -> bool:
        """Whether it began to hold jobs back."""
        return self.after.held and (self.before is None or not self.before.held)

    @property
    def released(self) -> bool:
        """Whether it ceased to."""
        return not self.after.held and self.before is not None and self.before.held

    @property
    def held_ms(self) -> int:
        """For how long it held jobs back."""
        return max(0, self.after.at_ms - self.after.since_ms)


@dataclass(frozen=True)
class Adjustment:
    """A worker was told to wait, and its key with it."""

    key: str
    until_ms: int
    reason: str
    job_id: str
    at_ms: int

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Adjustment:
        """What the item holds. Raises KeyError."""
        return cls(item["key"], item["until"], item["reason"], item["job"], item["at"])


def of_edge(change: ThrottleChange, service: str, *, identity: bytes) -> Iterator[Event]:
    """Exceeded and released. `identity` is the change's."""
    after = change.after
    job = {} if after.job_id is None else {"job_id": after.job_id}
    data: dict[str, Any] = {"key": after.key, "strategy": after.strategy, **job}
    if change.exceeded:
        kind = "rate_limit.exceeded"
        data |= {"limit": after.limit, "current": after.current}
    elif change.released:
        kind = "rate_limit.released"
        data |= {"held_ms": change.held_ms}
    else:
        return
    if change.queue is not None:
        data |= {"queue": change.queue}
    yield _event(kind, after.at_ms, after.key, change.queue, service, identity, data)


def of_adjustment(what: Adjustment, service: str, *, identity: bytes) -> Event:
    """A key that waits since something else said so."""
    data = {
        "key": what.key,
        "until": times.format_ms(what.until_ms),
        "reason": what.reason[:MAX_REASON],
        "job_id": what.job_id,
    }
    kind = "rate_limit.dynamic_adjusted"
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
