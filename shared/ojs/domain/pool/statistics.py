"""Status and alerts of worker pools, and shares of their queues in recent dispatches. Pure."""

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

# The window of scheduling statistics.
WINDOW: Final = "PT1M"
# Up to so many workers are counted when asked for; if there are more, the sweep's count is used.
MAX_COUNTED_WORKERS = 1_000
# How long no job may be started from a queue with jobs, in a pool without a rotation interval.
_PATIENCE = StarvationPrevention(DEFAULT_ROTATION)


def home_of(queue: Queue) -> str | None:
    """The pool under which a queue is reported: the pool that isolates it, else the first of its
    pools by name; None if it is in none.
    """
    return queue.isolated_by or min(queue.pools, default=None)


def patience_ms(pool: Pool) -> int:
    """After how long (ms) without a start a queue of the pool counts as starved: the pool's
    rotation interval, whether it is enforced or not.
    """
    interval = pool.prevention_config.get("rotation_interval")
    return (_PATIENCE if interval is None else StarvationPrevention(str(interval))).interval_ms


@record(frozen=True)
class PoolStatus:
    """A pool, how many live workers it has, and how many jobs they run."""

    pool: Pool
    active_workers: int
    active_jobs: int


@record(frozen=True)
class QueueSnapshot:
    """A queue and its counters. `minute` is the current minute so far; `dispatched` counts all
    jobs ever started from the queue.
    """

    queue: Queue
    levels: StateCounts = field(default_factory=StateCounts)
    dispatched: int = 0
    oldest_ms: int | None = None
    minute: Activity = field(default_factory=Activity)
    minute_before: Activity = field(default_factory=Activity)

    @property
    def waiting(self) -> int:
        """The number of jobs that a fetch might claim; 0 for a queue that hands out nothing."""
        if not self.queue.hands_out:
            return 0
        return self.levels.of(State.AVAILABLE)

    @property
    def full(self) -> bool:
        """Whether the queue runs as many jobs as its own limit allows."""
        most = self.queue.config.concurrency
        return most is not None and self.levels.of(State.ACTIVE) >= most

    def dispatches(self, now_ms: int) -> float:
        """Jobs started in the last 60 s, assuming that the previous minute was even."""
        return self.minute.started + self.minute_before.started * _part(now_ms)

    def average_wait_ms(self, now_ms: int) -> int:
        """How long these jobs had waited on average (ms); 0 if there were none."""
        part = _part(now_ms)
        waits = self.minute.waits + self.minute_before.waits * part
        waited_ms = self.minute.wait_ms + self.minute_before.wait_ms * part
        return round(waited_ms / waits) if waits else 0


def _part(now_ms: int) -> float:
    """The part of the previous minute that is within the last 60 s."""
    return 1 - now_ms % MINUTE_MS / MINUTE_MS


def ratios(snapshots: Iterable[QueueSnapshot], now_ms: int) -> dict[str, float]:
    """Each queue's part of the jobs started from all of these in the last 60 s; 0 if none was."""
    counts = {snapshot.queue.name: snapshot.dispatches(now_ms) for snapshot in snapshots}
    total = sum(counts.values())
    return {name: count / total if total else 0.0 for name, count in counts.items()}


@record(frozen=True)
class Starved:
    """A starved queue: since when no job was started, and how many were available when this was
    noticed.
    """

    since_ms: int
    available: int


@record(frozen=True)
class Overload:
    """A pool at its limit while jobs wait: since when, and how many jobs ran and waited then."""

    since_ms: int
    active: int
    waiting: int


@record(frozen=True)
class PoolAlerts:
    """The conditions of a pool that are reported. `pool_ms` is when the pool was created, which
    tells it from an earlier one of the same name. `rev` counts writes, 0 for none; times in ms.
    """

    pool_ms: int
    starved: Mapping[str, Starved] = field(default_factory=dict)
    overload: Overload | None = None
    at_ms: int = 0
    rev: int = 0

    def __bool__(self) -> bool:
        return bool(self.starved) or self.overload is not None

    def of(self, pool_ms: int) -> PoolAlerts:
        """These alerts if they are of the pool created then, else none."""
        return (
            self if self.pool_ms == pool_ms else PoolAlerts(pool_ms, at_ms=self.at_ms, rev=self.rev)
        )


@record(frozen=True)
class QueueShare:
    """A queue in scheduling statistics. `ratio` is its part of the jobs started lately, `pool` the
    one under which it is reported.
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
    """Scheduling statistics: some queues, and the strategy by which they are served."""

    queues: Sequence[QueueShare]
    strategy: DispatchStrategy = DispatchStrategy.ROUND_ROBIN
    next_cursor: str | None = None


def metrics_of(
    pool: Pool, active: int, snapshots: Sequence[QueueSnapshot], now_ms: int
) -> PoolMetrics:
    """A pool's metrics; `snapshots` are those of all its queues."""
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
    """The share of a queue; `alerts` are those of its pool."""
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
