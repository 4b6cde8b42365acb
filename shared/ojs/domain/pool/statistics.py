"""How worker pools fare: who serves them, what their queues were given lately, and what is wrong
(fair-scheduling seed, sections 10 and 11). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ojs.domain.job.states import State
from ojs.domain.pool.dispatch import ROUND_ROBIN
from ojs.domain.pool.pool import DEFAULT_ROTATION, Pool, Prevention
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import MINUTE_MS, Activity, Levels, PoolMetrics

# What statistics of scheduling look at (section 10.2).
WINDOW = "PT1M"
# Up to here workers are counted one by one; of more the sweep's count is told.
MAX_COUNTED_WORKERS = 1_000
# How long a queue with jobs may be given nothing, in a pool that does not say.
_PATIENCE = Prevention(DEFAULT_ROTATION)


def home_of(queue: Queue) -> str | None:
    """The pool under which a queue is told of: the one that has it for itself, else the first of
    its pools by name; None when it is in none.
    """
    return queue.isolated_by or min(queue.pools, default=None)


def patience_ms(pool: Pool) -> int:
    """For how long a queue of the pool may be given nothing before it counts as starved: its
    rotation interval, whether that is enforced or not.
    """
    told = pool.told.get("rotation_interval")
    return (_PATIENCE if told is None else Prevention(str(told))).interval_ms


@dataclass(frozen=True)
class PoolStatus:
    """A pool, how many workers it has that were heard of lately, and how many jobs they run."""

    pool: Pool
    active_workers: int
    active_jobs: int


@dataclass(frozen=True)
class QueueSnapshot:
    """A queue and its counters. `minute` is the current one so far; `dispatched` are all jobs ever
    started from it.
    """

    queue: Queue
    levels: Levels = field(default_factory=Levels)
    dispatched: int = 0
    oldest_ms: int | None = None
    minute: Activity = field(default_factory=Activity)
    minute_before: Activity = field(default_factory=Activity)

    @property
    def waiting(self) -> int:
        """Jobs that a fetch might be given; none of a queue that hands out nothing."""
        if not self.queue.hands_out:
            return 0
        return self.levels.of(State.AVAILABLE)

    @property
    def full(self) -> bool:
        """Whether as many of its jobs run as the queue's own limit allows."""
        most = self.queue.config.concurrency
        return most is not None and self.levels.of(State.ACTIVE) >= most

    def dispatches(self, now_ms: int) -> float:
        """Jobs started in the last 60 s, if the minute before this one was even."""
        return self.minute.started + self.minute_before.started * _part(now_ms)

    def average_wait_ms(self, now_ms: int) -> int:
        """How long they had waited, on average; 0 when there were none."""
        part = _part(now_ms)
        waits = self.minute.waits + self.minute_before.waits * part
        waited_ms = self.minute.wait_ms + self.minute_before.wait_ms * part
        return round(waited_ms / waits) if waits else 0


def _part(now_ms: int) -> float:
    """How much of the minute before this one is within the last 60 s."""
    return 1 - now_ms % MINUTE_MS / MINUTE_MS


def ratios(sights: Iterable[QueueSnapshot], now_ms: int) -> dict[str, float]:
    """Each queue's part of all that was started from these in the last 60 s; 0 when nothing was."""
    counts = {sight.queue.name: sight.dispatches(now_ms) for sight in sights}
    total = sum(counts.values())
    return {name: count / total if total else 0.0 for name, count in counts.items()}


@dataclass(frozen=True)
class Starved:
    """A queue that waits: since when it was given nothing, and how many jobs it had, when that was
    noticed.
    """

    since_ms: int
    available: int


@dataclass(frozen=True)
class Overload:
    """A pool that runs as many jobs as it may while others wait: since when, and how many, as they
    were then.
    """

    since_ms: int
    active: int
    waiting: int


@dataclass(frozen=True)
class PoolAlerts:
    """What is wrong with a pool, since it was noticed last. `pool_ms` is when the pool was made: a
    pool of the same name that is gone is another. `rev` counts writes, 0 for none; times in ms.
    """

    pool_ms: int
    starved: Mapping[str, Starved] = field(default_factory=dict)
    overload: Overload | None = None
    at_ms: int = 0
    rev: int = 0

    def __bool__(self) -> bool:
        return bool(self.starved) or self.overload is not None

    def of(self, pool_ms: int) -> PoolAlerts:
        """The same if it is of the pool made then; else nothing is wrong with it yet."""
        return (
            self if self.pool_ms == pool_ms else PoolAlerts(pool_ms, at_ms=self.at_ms, rev=self.rev)
        )


@dataclass(frozen=True)
class QueueShare:
    """A queue in the statistics of scheduling. `ratio` is its part of what was started lately,
    `pool` the one it is told of under.
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


@dataclass(frozen=True)
class SchedulingStats:
    """Statistics of scheduling: some queues, and by which strategy they are served."""

    queues: Sequence[QueueShare]
    strategy: str = ROUND_ROBIN
    next_cursor: str | None = None


def metrics_of(
    pool: Pool, active: int, sights: Sequence[QueueSnapshot], now_ms: int
) -> PoolMetrics:
    """A pool's metrics; `sights` are those of all its queues."""
    shares = ratios(sights, now_ms)
    mine = {sight.queue.name for sight in sights if home_of(sight.queue) == pool.name}
    return PoolMetrics(
        name=pool.name,
        utilization=None if pool.concurrency is None else active / pool.concurrency,
        ratios={name: share for name, share in shares.items() if name in mine},
    )


def share_of(
    sight: QueueSnapshot, ratio: float, home: Pool | None, watch: PoolAlerts | None, now_ms: int
) -> QueueShare:
    """A queue as the statistics tell of it; `watch` is what is wrong with its pool."""
    name = sight.queue.name
    return QueueShare(
        name=name,
        dispatches=round(sight.dispatches(now_ms)),
        ratio=ratio,
        average_wait_ms=sight.average_wait_ms(now_ms),
        active_jobs=sight.levels.of(State.ACTIVE),
        weight=1 if home is None else home.weights.get(name, 1),
        dispatched=sight.dispatched,
        starved=watch is not None and name in watch.starved,
        pool=None if home is None else home.name,
    )
