"""Events of webhook subscriptions, and the outlets of the projection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ojs.domain.events.event import Event, matches
from ojs.domain.events.types import EventType
from ojs.domain.webhooks import Subscription
from ojs.projections.changes import NewEvent, TableChange
from ojs.projections.outlets import Bus
from ojs.records import record
from ojs.store.table.values import Item
from ojs.store.webhooks.webhooks import SUBSCRIPTION


class Outlets:
    """Several outlets as one bus. Each receives the event types that it selects."""

    def __init__(self, *outlets: tuple[Bus, Sequence[str]]) -> None:
        self._outlets = outlets

    def publish(self, events: Sequence[Event]) -> set[str]:
        """Publish events on each outlet. Return the IDs that one of them rejected.

        A rejected event is published on all outlets again, with the same ID.
        """
        refused: set[str] = set()
        for bus, types in self._outlets:
            if wanted := [event for event in events if matches(event.type, types)]:
                refused |= bus.publish(wanted)
        return refused


@record(frozen=True)
class HookChange(TableChange):
    """A change of a subscription."""

    before: Subscription | None
    after: Subscription | None

    @classmethod
    def of(cls, old: Item | None, new: Item | None) -> HookChange:
        """Read the images of a stream record."""
        return cls(*(None if item is None else SUBSCRIPTION.of(item) for item in (old, new)))

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Yield the events of a created, deleted, or disabled subscription, and of dead ones."""
        before, after = self.before, self.after
        if after is None:
            if before is not None:
                yield _event(before, EventType.WEBHOOK_SUBSCRIPTION_DELETED, written_ms)
            return
        if before is None:
            yield _event(after, EventType.WEBHOOK_SUBSCRIPTION_CREATED, after.created_ms)
            return
        if after.dead > before.dead:
            more: dict[str, Any] = {"count": after.dead - before.dead, "delivery": after.dead_id}
            yield _event(after, EventType.WEBHOOK_DEAD, after.updated_ms, **more)
        if after.disabled is not None and before.disabled is None:
            kind, reason = EventType.WEBHOOK_SUBSCRIPTION_DISABLED, after.disabled.value
            yield _event(after, kind, after.updated_ms, reason=reason)


def _event(it: Subscription, kind: EventType, at_ms: int, **more: Any) -> NewEvent:
    # Not the URL: its path or query can contain a secret.
    data = {"subscription": it.id, "host": it.target.host, **more}
    return NewEvent(kind, at_ms, it.id, ("webhooks", it.id), data)
