"""Changes of depth counters (`ojs.store.permits.depth_counter`), and the events that follow.

Each image of a counter is below its warning threshold, above it, or full. Each step between two
images leads to an event, so that a warning is cleared before there is another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ojs.domain.events import event as events
from ojs.domain.events.event import Event
from ojs.domain.events.types import EventType


@dataclass(frozen=True)
class Measure:
    """How much of one unit is used, and its bound and warning threshold as of the last push."""

    unit: str
    used: int
    bound: int | None
    warn: int | None

    @property
    def warned(self) -> bool:
        """Whether it is at its warning threshold or above."""
        return self.warn is not None and self.used >= self.warn

    @property
    def full(self) -> bool:
        """Whether the bound is reached."""
        return self.bound is not None and self.used >= self.bound


@dataclass(frozen=True)
class Depth:
    """How full a queue is, in jobs and in bytes."""

    jobs: Measure
    bytes: Measure
    at_ms: int

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Depth:
        """What the item holds."""
        return cls(
            Measure("jobs", item.get("n", 0), item.get("bound"), item.get("warn")),
            Measure("bytes", item.get("b", 0), item.get("bound_b"), item.get("warn_b")),
            item.get("at", 0),
        )

    @property
    def warned(self) -> Measure | None:
        """What is at its warning threshold or above: jobs before bytes."""
        return next((each for each in (self.jobs, self.bytes) if each.warned), None)

    @property
    def full(self) -> Measure | None:
        """What has reached its bound: jobs before bytes."""
        return next((each for each in (self.jobs, self.bytes) if each.full), None)


@dataclass(frozen=True)
class Refused:
    """How many jobs were refused so far, and what the last refused push found."""

    count: int
    depth: int
    bound: int
    job_type: str
    policy: str
    at_ms: int

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Refused:
        """What the item holds. Raises KeyError."""
        return cls(
            count=item["n"],
            depth=item["depth"],
            bound=item["bound"],
            job_type=item["type"],
            policy=item.get("policy", "reject"),
            at_ms=item["at"],
        )


@dataclass(frozen=True)
class DepthChange:
    """A depth counter before and after."""

    queue: str
    before: Depth | None
    after: Depth

    def kinds(self) -> Iterator[tuple[str, Measure]]:
        """The types of the events that follow, in order, each with its measure."""
        warned = self.before.warned if self.before is not None else None
        full = self.before.full if self.before is not None else None
        if self.after.warned and not warned:
            yield EventType.BACKPRESSURE_WARNING, self.after.warned
        if self.after.full and not full:
            yield EventType.QUEUE_FULL, self.after.full
        if warned and not self.after.warned:
            # As it is now; if the bound was lifted, with the bound before.
            now = self.after.jobs if warned.unit == "jobs" else self.after.bytes
            yield (
                EventType.BACKPRESSURE_CLEARED,
                replace(now, bound=warned.bound if now.bound is None else now.bound),
            )


@dataclass(frozen=True)
class PushRefusal:
    """A push that was refused, of `count` jobs."""

    queue: str
    count: int
    what: Refused


def of_depth(
    change: DepthChange, service: str, *, identity: bytes, written_ms: int
) -> Iterator[Event]:
    """The events of a warning, a full queue, and a warning that is cleared. `identity` is the
    change's.
    """
    after = change.after
    # A repair by a sweep does not change the time of the last push or completion.
    at_ms = max(after.at_ms, written_ms)
    for kind, what in change.kinds():
        data: dict[str, Any] = {"queue": change.queue, "depth": what.used, "bound": what.bound}
        if what.unit != "jobs":
            data["unit"] = what.unit
        yield _event(kind, at_ms, change.queue, service, identity, data)


def of_refusal(refusal: PushRefusal, service: str, *, identity: bytes) -> Iterator[Event]:
    """The event of a refused push, one for all its jobs."""
    what = refusal.what
    data = {
        "queue": refusal.queue,
        "depth": what.depth,
        "bound": what.bound,
        "job_type": what.job_type,
    }
    kind = EventType.BACKPRESSURE_REJECTED
    yield _event(kind, what.at_ms, refusal.queue, service, identity, data)


def _event(
    kind: str, at_ms: int, queue: str, service: str, identity: bytes, data: Mapping[str, Any]
) -> Event:
    return Event(
        id=events.event_id(at_ms, queue, identity.hex(), kind),
        type=kind,
        source=events.source(service, "queues", queue),
        time_ms=at_ms,
        subject=queue,
        data=data,
    )
