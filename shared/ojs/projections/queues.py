"""Events of queues and of their depth counters.

In each image, a depth counter (`ojs.store.bounds.depth_counter`) is below its warning threshold,
above it, or full. Each transition between two of these states has an event, so a warning is cleared
before the next one is emitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ojs.domain.counters.definitions import CREATED, DELETED, OVERFLOW, REJECTED
from ojs.domain.events.types import EventType
from ojs.domain.queue.queue import Queue, QueueState
from ojs.projections.changes import DayCount, NewEvent, TableChange
from ojs.records import record


@record(frozen=True)
class QueueChange(TableChange):
    """A change of a queue.

    Each image is None if the queue doesn't exist. `explicit` is true if a request created the
    queue, and false if its first job did.
    """

    before: Queue | None
    after: Queue | None
    explicit: bool = False

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Yield the events: created by request, paused, resumed, configured, or deleted."""
        queue = self.after or self.before
        if queue is None:
            return
        for kind, at_ms, data in self._steps(written_ms):
            yield NewEvent(kind, at_ms, queue.name, ("api",), {"queue": queue.name, **data})

    def _steps(self, written_ms: int) -> Iterator[tuple[EventType, int, Mapping[str, Any]]]:
        """Yield the event types, the time of each, and its data in addition to the queue."""
        before, after = self.before, self.after
        if after is None:
            yield EventType.QUEUE_DELETED, written_ms, {}
            return
        if before is None and self.explicit:
            yield EventType.QUEUE_CREATED, after.created_ms, {}
        if before is not None and before.layers.own != after.layers.own:
            was, own = before.layers.own, after.layers.own
            names = sorted(name for name in {*was, *own} if was.get(name) != own.get(name))
            at_ms = after.configured_ms or written_ms
            yield EventType.QUEUE_CONFIG_UPDATED, at_ms, {"changed": names}
        # While a queue is being deleted, it is neither paused nor active.
        state = QueueState.ACTIVE if before is None else before.state
        if (state, after.state) == (QueueState.ACTIVE, QueueState.PAUSED):
            yield EventType.QUEUE_PAUSED, after.changed_ms or 0, {}
        elif (state, after.state) == (QueueState.PAUSED, QueueState.ACTIVE):
            yield EventType.QUEUE_RESUMED, after.changed_ms or 0, {}

    def counts(self, written_ms: int) -> Iterator[DayCount]:
        """Return the number of queues that were created (also by their first job) or deleted."""
        if self.before is None and self.after is not None:
            yield DayCount(self.after.name, self.after.created_ms, CREATED.attribute)
        elif self.before is not None and self.after is None:
            yield DayCount(self.before.name, written_ms, DELETED.attribute)


@record(frozen=True)
class Depth:
    """The use of one unit (jobs or bytes), with the size limit and warning threshold at the last
    enqueue.
    """

    unit: str
    used: int
    bound: int | None
    threshold: int | None

    @property
    def warned(self) -> bool:
        """Whether the use is at the warning threshold or above it."""
        return self.threshold is not None and self.used >= self.threshold

    @property
    def full(self) -> bool:
        """Whether the queue is at capacity."""
        return self.bound is not None and self.used >= self.bound


def _depths(item: Mapping[str, Any]) -> tuple[Depth, Depth]:
    """Return the use of both units from a depth counter: jobs, then bytes."""
    return (
        Depth("jobs", item.get("n", 0), item.get("bound"), item.get("warn")),
        Depth("bytes", item.get("b", 0), item.get("bound_b"), item.get("warn_b")),
    )


@record(frozen=True)
class DepthChange(TableChange):
    """A change of a depth counter: its use before (empty if it is new) and after, jobs then bytes.

    `at_ms` is the time of the last enqueue or completion.
    """

    queue: str
    before: tuple[Depth, ...]
    after: tuple[Depth, Depth]
    at_ms: int

    @classmethod
    def of(cls, queue: str, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> DepthChange:
        """Return the change between two images of the item.

        Args:
            queue: Name of the queue.
            old: The item before the change, or None.
            new: The item after the change.
        """
        return cls(queue, _depths(old) if old is not None else (), _depths(new), new.get("at", 0))

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Yield the events of a warning, a full queue, and a cleared warning."""
        # A correction by a sweep doesn't change the time of the last enqueue or completion.
        at_ms = max(self.at_ms, written_ms)
        for kind, depth in self._steps():
            data: dict[str, Any] = {"queue": self.queue, "depth": depth.used, "bound": depth.bound}
            if depth.unit != "jobs":
                data["unit"] = depth.unit
            yield NewEvent(kind, at_ms, self.queue, ("queues", self.queue), data)

    def _steps(self) -> Iterator[tuple[EventType, Depth]]:
        """Yield the event types, in order, each with its unit. Jobs come before bytes."""
        warned_before, warned = (_first_warned(depths) for depths in (self.before, self.after))
        if warned is not None and warned_before is None:
            yield EventType.BACKPRESSURE_WARNING, warned
        full = next((depth for depth in self.after if depth.full), None)
        if full is not None and not any(depth.full for depth in self.before):
            yield EventType.QUEUE_FULL, full
        if warned is None and warned_before is not None:
            # The values after the change. If the size limit was removed, the previous limit.
            (now,) = (depth for depth in self.after if depth.unit == warned_before.unit)
            bound = warned_before.bound if now.bound is None else now.bound
            yield EventType.BACKPRESSURE_CLEARED, replace(now, bound=bound)


def _first_warned(depths: tuple[Depth, ...]) -> Depth | None:
    return next((depth for depth in depths if depth.warned), None)


@record(frozen=True)
class PushRefusal(TableChange):
    """A change by which `count` more jobs were rejected.

    The other attributes belong to the last rejected enqueue.
    """

    queue: str
    count: int
    depth: int
    bound: int
    job_type: str
    policy: str
    at_ms: int

    @classmethod
    def of(cls, queue: str, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> PushRefusal:
        """Return the rejection from two images of the item.

        Args:
            queue: Name of the queue.
            old: The item before the change, or None.
            new: The item after the change.

        Raises:
            KeyError: An attribute of the item is missing.
        """
        return cls(
            queue=queue,
            count=new["n"] - (0 if old is None else old["n"]),
            depth=new["depth"],
            bound=new["bound"],
            job_type=new["type"],
            policy=new.get("policy", "reject"),
            at_ms=new["at"],
        )

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Return the event of a rejected enqueue: one event for all its jobs."""
        data = {
            "queue": self.queue,
            "depth": self.depth,
            "bound": self.bound,
            "job_type": self.job_type,
        }
        kind, source = EventType.BACKPRESSURE_REJECTED, ("queues", self.queue)
        yield NewEvent(kind, self.at_ms, self.queue, source, data)

    def counts(self, written_ms: int) -> Iterator[DayCount]:
        """Return the number of rejected jobs, in total and by policy."""
        for name in (REJECTED.attribute, OVERFLOW.attribute + self.policy):
            yield DayCount(self.queue, self.at_ms, name, self.count)
