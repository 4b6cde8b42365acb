"""Changes of worker pools and their health (`ojs.store.queues.pools`,
`ojs.store.queues.pool_health`), and the events that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ojs.domain import times
from ojs.domain.events import event as events
from ojs.domain.events.event import Event
from ojs.domain.events.types import EventType
from ojs.domain.pool.pool import Pool
from ojs.domain.pool.statistics import Overload, PoolAlerts, Starved


@dataclass(frozen=True)
class PoolChange:
    """A pool before and after an operator changed it."""

    before: Pool
    after: Pool

    @property
    def rebalanced(self) -> bool:
        """Whether its strategy or weights changed."""
        before, after = self.before, self.after
        return (before.strategy, before.weights) != (after.strategy, after.weights)


@dataclass(frozen=True)
class AlertsChange:
    """The alerts of a pool before and after; None if it had none."""

    pool: str
    before: PoolAlerts | None
    after: PoolAlerts

    @property
    def starved(self) -> Mapping[str, Starved]:
        """Queues that are starving since this change."""
        before = {} if self._before is None else self._before.starved
        return {name: what for name, what in self.after.starved.items() if name not in before}

    @property
    def overloaded(self) -> Overload | None:
        """The overload, if it began with this change."""
        if self._before is not None and self._before.overload is not None:
            return None
        return self.after.overload

    @property
    def _before(self) -> PoolAlerts | None:
        """The alerts before; None if they are of an earlier pool of the same name."""
        return None if self.before is None else self.before.of(self.after.pool_ms)


def of_pool(change: PoolChange, service: str, *, identity: bytes) -> Iterator[Event]:
    """The event of a pool whose strategy or weights changed. `identity` is the change's."""
    if not change.rebalanced:
        return
    pool, kind = change.after, EventType.SCHEDULING_REBALANCED
    yield Event(
        id=events.event_id(pool.configured_ms, pool.name, identity.hex(), kind),
        type=kind,
        source=events.source(service, "api"),
        time_ms=pool.configured_ms,
        subject=pool.name,
        data={
            "pool": pool.name,
            "previous_strategy": change.before.strategy.value,
            "new_strategy": pool.strategy.value,
        },
    )


def of_alerts(change: AlertsChange, service: str, *, identity: bytes) -> Iterator[Event]:
    """The events of queues that begin to starve, and of a pool that becomes overloaded."""
    at_ms = change.after.at_ms
    for name, what in change.starved.items():
        kind = EventType.SCHEDULING_QUEUE_STARVED
        yield Event(
            id=events.event_id(at_ms, name, identity.hex(), kind),
            type=kind,
            source=events.source(service, "queues", name),
            time_ms=at_ms,
            subject=name,
            data={
                "queue": name,
                "duration": times.format_duration(max(0, at_ms - what.since_ms)),
                "available_count": what.available,
                "pool": change.pool,
            },
        )
    if change.overloaded is not None:
        kind = EventType.SCHEDULING_POOL_OVERLOADED
        yield Event(
            id=events.event_id(at_ms, change.pool, identity.hex(), kind),
            type=kind,
            source=events.source(service, "pools", change.pool),
            time_ms=at_ms,
            subject=change.pool,
            data={
                "pool": change.pool,
                "active_jobs": change.overloaded.active,
                "waiting_jobs": change.overloaded.waiting,
            },
        )
