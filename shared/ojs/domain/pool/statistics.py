"""Status and alerts of worker pools, and their queues' shares of recent dispatches. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final

from ojs.domain.job.states import State
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import DEFAULT_ROTATION, Pool, StarvationPrevention
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import MINUTE_MS, Activity, PoolMetrics, StateCounts
from ojs.records import record

# Length of the window of scheduling statistics (ms).
WINDOW: Final = "PT1M"
# Maximum number of workers that a request counts. If there are more, the count of the last sweep is
# used.
MAX_COUNTED_WORKERS = 1_000
# Time without a dispatch after which a queue is starved, in a pool without a rotation interval.
_PATIENCE = StarvationPrevention(DEFAULT_ROTATION)


def home_of(queue: Queue) -> str | None:
    """Return the pool under which a queue is reported, or None if the queue is in no pool.

    This is the pool that isolates the queue, or otherwise the first of its pools by name.
    """
    return queue.isolated_by or min(queue.pools, default=None)


def patience_ms(pool: Pool) -> int:
    """Return the time in ms without a dispatch after which a queue of the pool is starved.

    This is the rotation interval of the pool, even if starvation prevention is not enabled.
    """
    interval = pool.prevention_config.get("rotation_interval")
    return (_PATIENCE if interval is None else StarvationPrevention(str(interval))).interval_ms


@record(frozen=True)
class PoolStatus:
    """A pool with the number of its live workers and active jobs."""

    pool: Pool
    active_workers: int
    active_jobs: int


@record(frozen=True)
class QueueSnapshot:
    """A queue and its counters.

    `minute` is the current minute so far. `dispatched` is the number of jobs dispatched since the
    queue was created.
    """

    queue: Queue
    levels: StateCounts = field(default_factory=StateCounts)
    dispatched: int = 0
    oldest_ms: int | None = None
    minute: Activity = field(default_factory=Activity)
    minute_before: Activity = field(default_factory=Activity)

    @property
    def waiting(self) -> int:
        """The number of available jobs. 0 while no jobs are dispatched from the queue."""
        if not self.queue.hands_out:
            return 0
        return self.levels.of(State.AVAILABLE)

    @property
    def full(self) -> bool:
        """Whether the queue's concurrency limit is reached."""
        most = self.queue.config.concurrency
        return most is not None and self.levels.of(State.ACTIVE) >= most

    def dispatches(self, now_ms: int) -> float:
        """Return the jobs started in the last 60 s, assuming a constant rate in the previous
        minute.
        """
        return self.minute.started + self.minute_before.started * _part(now_ms)

    def average_wait_ms(self, now_ms: int) -> int:
        """Return the average time in ms that these jobs were available before dispatch.

        0 without jobs.
        """
        part = _part(now_ms)
        waits = self.minute.waits + self.minute_before.waits * part
        waited_ms = self.minute.wait_ms + self.minute_before.wait_ms * part
        return round(waited_ms / waits) if waits else 0


def _part(now_ms: int) -> float:
    """Return the fraction of the previous minute that is within the last 60 s."""
    return 1 - now_ms % MINUTE_MS / MINUTE_MS


def ratios(snapshots: Iterable[QueueSnapshot], now_ms: int) -> dict[str, float]:
    """Return each queue's share of the jobs started from these queues in the last 60 s.

    The share is 0 without started jobs.
    """
    counts = {snapshot.queue.name: snapshot.dispatches(now_ms) for snapshot in snapshots}
    total = sum(counts.values())
    return {name: count / total if total else 0.0 for name, count in counts.items()}


@record(frozen=True)
class Starved:
    """A starved queue: the time since which no job was started, and its jobs at detection."""

    since_ms: int
    available: int


@record(frozen=True)
class Overload:
    """A pool at its limit while jobs are available: start time, active and available jobs then."""

    since_ms: int
    active: int
    waiting: int


@record(frozen=True)
class PoolAlerts:
    """The alerts of a pool. Times in milliseconds since the epoch.

    `pool_ms` is the creation time of the pool, which distinguishes it from an earlier pool with the
    same name. `rev` is the number of writes of this record, 0 if it is not stored.
    """

    pool_ms: int
    starved: Mapping[str, Starved] = field(default_factory=dict)
    overload: Overload | None = None
    at_ms: int = 0
    rev: int = 0

    def __bool__(self) -> bool:
        return bool(self.starved) or self.overload is not None

    def of(self, pool_ms: int) -> PoolAlerts:
        """Return these alerts if they belong to the pool created at
        `pool_ms`, otherwise no alerts.
        """
        return (
            self if self.pool_ms == pool_ms else PoolAlerts(pool_ms, at_ms=self.at_ms, rev=self.rev)
        )


@record(frozen=True)
class QueueShare:
    """A queue in scheduling statistics.

    `ratio` is its share of the jobs started in the last 60 s. `pool` is the pool under which it is
    reported.
    """

    name: str
    dispatches: int
    ratio: float
    average_wait_ms: int
    active_jobs: int
    weight: int
    dispatched: int
    starved: bool
    pool: str | None = None


@record(frozen=True)
class SchedulingStats:
    """Scheduling statistics: one page of queues, and their dispatch strategy."""

    queues: Sequence[QueueShare]
    strategy: DispatchStrategy = DispatchStrategy.ROUND_ROBIN
    next_cursor: str | None = None


def metrics_of(
    pool: Pool, active: int, snapshots: Sequence[QueueSnapshot], now_ms: int
) -> PoolMetrics:
    """Compute the metrics of a pool.

    Args:
        pool: Pool.
        active: Number of its active jobs.
        snapshots: Snapshots of all its queues.
        now_ms: Current time in milliseconds since the epoch.
    """
    shares = ratios(snapshots, now_ms)
    mine = {snapshot.queue.name for snapshot in snapshots if home_of(snapshot.queue) == pool.name}
    return PoolMetrics(
        name=pool.name,
        utilization=None if pool.concurrency is None else active / pool.concurrency,
        ratios={name: share for name, share in shares.items() if name in mine},
    )


def share_of(
    snapshot: QueueSnapshot, ratio: float, home: Pool | None, alerts: PoolAlerts | None, now_ms: int
) -> QueueShare:
    """Build the statistics of a queue.

    Args:
        snapshot: Queue and its counters.
        ratio: Share of the queue, as computed by `ratios`.
        home: Pool under which the queue is reported, or None.
        alerts: Alerts of that pool, or None.
        now_ms: Current time in milliseconds since the epoch.
    """
    name = snapshot.queue.name
    return QueueShare(
        name=name,
        dispatches=round(snapshot.dispatches(now_ms)),
        ratio=ratio,
        average_wait_ms=snapshot.average_wait_ms(now_ms),
        active_jobs=snapshot.levels.of(State.ACTIVE),
        weight=1 if home is None else home.weights.get(name, 1),
        dispatched=snapshot.dispatched,
        starved=alerts is not None and name in alerts.starved,
        pool=None if home is None else home.name,
    )
