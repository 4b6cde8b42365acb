"""Events of worker pools, of their health alerts, and of workers.

The alerts are items of `ojs.store.derived.pool_health`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ojs.domain import times
from ojs.domain.counters.definitions import STARVED
from ojs.domain.events.types import EventType
from ojs.domain.pool.pool import Pool
from ojs.domain.pool.statistics import PoolAlerts, Starved
from ojs.domain.pool.worker import Worker
from ojs.projections.changes import DayCount, NewEvent, TableChange
from ojs.records import record


@record(frozen=True)
class PoolChange(TableChange):
    """A pool before and after a change by an operator."""

    before: Pool
    after: Pool

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Return the event of a pool whose strategy or weights changed."""
        before, pool = self.before, self.after
        if (before.strategy, before.weights) != (pool.strategy, pool.weights):
            data = {
                "pool": pool.name,
                "previous_strategy": before.strategy.value,
                "new_strategy": pool.strategy.value,
            }
            kind = EventType.SCHEDULING_REBALANCED
            yield NewEvent(kind, pool.configured_ms, pool.name, ("api",), data)


@record(frozen=True)
class AlertsChange(TableChange):
    """A change of a pool's alerts. Each image is None if the pool has no alerts."""

    pool: str
    before: PoolAlerts | None
    after: PoolAlerts

    @property
    def _before(self) -> PoolAlerts | None:
        """Alerts before the change. None if they belong to an earlier pool with the same name."""
        return None if self.before is None else self.before.of(self.after.pool_ms)

    @property
    def _starved(self) -> Mapping[str, Starved]:
        """Queues that started to starve with this change."""
        before = {} if self._before is None else self._before.starved
        return {name: what for name, what in self.after.starved.items() if name not in before}

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Return the events of queues that start to starve, or of an overloaded pool."""
        at_ms = self.after.at_ms
        for name, what in self._starved.items():
            data = {
                "queue": name,
                "duration": times.format_duration(max(0, at_ms - what.since_ms)),
                "available_count": what.available,
                "pool": self.pool,
            }
            kind = EventType.SCHEDULING_QUEUE_STARVED
            yield NewEvent(kind, at_ms, name, ("queues", name), data)
        overload = self.after.overload
        if overload is not None and (self._before is None or self._before.overload is None):
            data = {
                "pool": self.pool,
                "active_jobs": overload.active,
                "waiting_jobs": overload.waiting,
            }
            kind = EventType.SCHEDULING_POOL_OVERLOADED
            yield NewEvent(kind, at_ms, self.pool, ("pools", self.pool), data)

    def counts(self, written_ms: int) -> Iterator[DayCount]:
        """Return how often each queue started to starve."""
        for queue in self._starved:
            yield DayCount(queue, self.after.at_ms, STARVED.attribute)


@record(frozen=True)
class WorkerChange(TableChange):
    """A change of a worker. `pruned` is true if its record was deleted by its time to live."""

    before: Worker | None
    after: Worker | None
    pruned: bool = False

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Return the event of a worker that started, became quiet, or stopped."""
        before, after = self.before, self.after
        data: dict[str, object]
        if after is None:
            if before is None:
                return
            worker, kind = before, EventType.WORKER_STOPPED
            at_ms = max(written_ms, before.last_seen_ms)
            # A worker without a heartbeat for a day did not shut down properly.
            data = {
                "reason": "error" if self.pruned else "shutdown",
                "uptime_ms": max(0, at_ms - before.first_seen_ms),
            }
        elif before is None or before.first_seen_ms != after.first_seen_ms:
            worker, kind, at_ms = after, EventType.WORKER_STARTED, after.first_seen_ms
            data = {
                "queues": list(after.info.get("queues") or ()),
                "concurrency": after.info.get("concurrency") or 1,
            }
        elif before.may_fetch and not after.may_fetch:
            heard = after.last_seen_ms != before.last_seen_ms
            worker, kind = after, EventType.WORKER_QUIET
            at_ms = after.last_seen_ms if heard else max(written_ms, after.first_seen_ms)
            data = {"active_jobs": after.active_jobs}
        else:
            return
        data = {"worker_id": worker.id, **data}
        yield NewEvent(kind, at_ms, worker.id, ("workers", worker.id), data)
