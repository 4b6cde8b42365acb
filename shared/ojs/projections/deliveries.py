"""Events of deliveries, and wake-up messages to deliveries whose jobs became available.

The request that made a job available might have failed to send the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from ojs.domain import times
from ojs.domain.delivery.delivery import Delivery
from ojs.domain.events.types import EventType
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.projections.changes import NewEvent, TableChange
from ojs.records import record


class DeliveryStream(Protocol):
    """Sends wake-up messages to deliveries (`ojs.services.deliveries.wake`)."""

    def repeat(self, jobs: Sequence[Job]) -> None:
        """Wake the deliveries of these jobs if the jobs are still available. Raises OjsError."""
        ...


def placed(jobs: Iterable[tuple[Job | None, Job | None]]) -> Iterator[Job]:
    """Yield the jobs that a change made available."""
    for before, after in jobs:
        if after is None or after.state is not State.AVAILABLE:
            continue
        if before is None or before.state is not State.AVAILABLE or before.queue != after.queue:
            yield after


@record(frozen=True)
class DeliveryChange(TableChange):
    """A change of a delivery.

    Each image is None if the delivery doesn't exist before or after it.
    """

    before: Delivery | None
    after: Delivery | None

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Yield the events of a disabled or enabled delivery, or an opened or closed breaker."""
        before, after = self.before, self.after
        if before is None or after is None:
            return
        if after.disabled is not None and before.disabled is None:
            disabled = after.disabled
            data: dict[str, Any] = {"reason": disabled.reason.value, "message": disabled.message}
            yield _event(after, EventType.DELIVERY_DISABLED, disabled.since_ms, data)
        elif before.disabled is not None and after.disabled is None:
            yield _event(after, EventType.DELIVERY_ENABLED, after.updated_ms, {})
        opened, was_open = after.breaker.until_ms, before.breaker.until_ms
        if opened is not None and opened != was_open:
            at_ms = opened - after.breaker.open_ms
            data = {
                "faults": after.breaker.faults,
                "open_until": times.format_ms(opened),
                "again": was_open is not None,
            }
            yield _event(after, EventType.DELIVERY_BREAKER_OPENED, at_ms, data)
        elif was_open is not None and opened is None:
            at_ms = max(written_ms, was_open)
            yield _event(after, EventType.DELIVERY_BREAKER_CLOSED, at_ms, {})


def _event(delivery: Delivery, kind: EventType, at_ms: int, more: dict[str, Any]) -> NewEvent:
    data = {"delivery": delivery.name, "target": dict(delivery.target), **more}
    return NewEvent(kind, at_ms, delivery.name, ("deliveries", delivery.name), data)
