"""Statistics: jobs by state, and counters of transitions in a period.

Names and buckets: ojs-observability, section 8. Times in milliseconds since the epoch, durations in
milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from enum import StrEnum

from ojs.domain.job.states import TERMINAL, State
from ojs.domain.queue.queue import Queue
from ojs.records import record

# Upper bounds in seconds (ojs-observability, section 8.2). One more bucket is above the last bound.
DURATION_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
QUEUE_TIME_BUCKETS_S = (
    0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1_800.0, 3_600.0,
)  # fmt: skip

# The name under which job types are counted above the projection's maximum number of types.
OTHER_TYPES = "other"

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000


@record(frozen=True)
class Activity:
    """Number of transitions in a period.

    `failed` counts discarded jobs, and `failures` counts failed attempts. `wait_ms` is the total
    time that `waits` jobs were available before they started. `run_ms` is the total duration of
    `runs` attempts.
    """

    enqueued: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    failures: int = 0
    retried: int = 0
    cancelled: int = 0
    expired: int = 0
    wait_ms: int = 0
    waits: int = 0
    run_ms: int = 0
    runs: int = 0

    def __add__(self, other: Activity) -> Activity:
        return Activity(**{name: getattr(self, name) + getattr(other, name) for name in ACTIVITIES})

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in ACTIVITIES)

    @property
    def average_wait_ms(self) -> int | None:
        """Average time in ms that a job was available, rounded. None if no job was started."""
        return round(self.wait_ms / self.waits) if self.waits else None

    @property
    def average_run_ms(self) -> int | None:
        """Average duration of an attempt in ms, rounded. None if no attempt ended."""
        return round(self.run_ms / self.runs) if self.runs else None

    @property
    def error_rate(self) -> float | None:
        """Failed attempts as a fraction of ended attempts, 0 to 1. None if no attempt ended."""
        return min(1.0, self.failures / self.runs) if self.runs else None


ACTIVITIES = tuple(each.name for each in fields(Activity))


@record(frozen=True)
class Day:
    """One UTC day of a queue: activity, histograms (not cumulative), and other counters.

    `counts` contains counters of metrics (`ojs.domain.counters.definitions`) by attribute and by
    the value of the counter's label ("" without a label).
    """

    activity: Activity = Activity()
    durations: Sequence[int] = (0,) * (len(DURATION_BUCKETS_S) + 1)
    queue_times: Sequence[int] = (0,) * (len(QUEUE_TIME_BUCKETS_S) + 1)
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def of(self, attribute: str) -> Mapping[str, int]:
        """Return the counts of one counter."""
        return self.counts.get(attribute, {})

    def total(self, attribute: str) -> int:
        """Return the sum of the counts of one counter."""
        return sum(self.of(attribute).values())


@record(frozen=True)
class Rates:
    """Jobs per minute."""

    processed: float = 0.0
    failed: float = 0.0


def rates(current: Activity, previous: Activity, now_ms: int) -> Rates:
    """Estimate the rates of the last 60 s, assuming a constant rate in the previous minute.

    Args:
        current: Activity so far in the minute of `now_ms`.
        previous: Activity of the previous minute.
        now_ms: Current time in milliseconds since the epoch.
    """
    part = 1 - now_ms % MINUTE_MS / MINUTE_MS
    return Rates(
        processed=current.completed + previous.completed * part,
        failed=current.failed + previous.failed * part,
    )


@record(frozen=True)
class StateCounts:
    """Number of jobs by state. `dead` is the number of discarded jobs that are dead letters."""

    states: Mapping[State, int] = field(default_factory=dict)
    dead: int = 0

    def __add__(self, other: StateCounts) -> StateCounts:
        states = {
            state: self.of(state) + other.of(state) for state in {*self.states, *other.states}
        }
        return StateCounts(states, self.dead + other.dead)

    def of(self, state: State) -> int:
        """Return the number of jobs in a state."""
        return self.states.get(state, 0)

    @property
    def depth(self) -> int:
        """The number of jobs that are not in a final state (ojs-queue-config, section 3)."""
        return sum(count for state, count in self.states.items() if state not in TERMINAL)


@record(frozen=True)
class Filling:
    """Use of a queue's size limits, in jobs and in bytes. A limit of None means no limit."""

    depth: int = 0
    max_size: int | None = None
    size: int = 0
    max_size_bytes: int | None = None

    @property
    def utilization(self) -> float | None:
        """The number of jobs as a fraction of the limit, at most 1 (ojs-queue-config, section
        10.2).
        """
        return None if self.max_size is None else _fraction(self.depth, self.max_size)

    @property
    def pressure(self) -> float:
        """The larger fraction of both limits (ojs-backpressure, section 10.2)."""
        pairs = ((self.depth, self.max_size), (self.size, self.max_size_bytes))
        return max((_fraction(used, bound) for used, bound in pairs if bound), default=0.0)


def _fraction(used: int, bound: int) -> float:
    return min(1.0, max(0, used) / bound)


@record(frozen=True)
class QueueSummary:
    """A queue at `now_ms`. `queue` is None if it does not exist.

    `oldest_available_ms` is the time at which its oldest available job became available, or None if
    that is unknown. In a listing, the value is from the last sweep.
    """

    name: str
    queue: Queue | None
    levels: StateCounts
    now_ms: int
    rates: Rates
    oldest_available_ms: int | None


@record(frozen=True)
class QueueDay:
    """The jobs of a queue, and its activity today (UTC)."""

    name: str
    levels: StateCounts
    today: Activity


@record(frozen=True)
class QueueStats(QueueSummary):
    """A queue and its statistics."""

    today: Activity
    # Priority → available jobs. Priorities without jobs are omitted.
    priorities: Mapping[int, int]
    # Activity of the current minute and the 59 minutes before it, if requested.
    last_hour: Activity = Activity()


@record(frozen=True)
class WorkerCounts:
    """Number of workers by state. `stale` workers have not sent a heartbeat for 30 s."""

    running: int = 0
    quiet: int = 0
    stale: int = 0


@record(frozen=True)
class Totals:
    """Totals of all queues, computed by the metrics sweep at `at_ms` (None: not yet).

    `oldest_ms` is the time at which the oldest available job became available, from the sweep
    before. `orders` names the most recently stored queue orders.
    """

    at_ms: int | None = None
    queues: int = 0
    levels: StateCounts = StateCounts()
    workers: WorkerCounts = WorkerCounts()
    rates: Rates = Rates()
    oldest_ms: int | None = None
    orders: str = ""


@record(frozen=True)
class QueueGauges:
    """Current values of a queue, from the projection. They were last updated at `changed_ms`.

    `oldest_ms` is the time at which the oldest available job became available, from the last sweep.
    `filling` is None if the queue has no size limit.
    """

    queue: Queue
    levels: StateCounts
    changed_ms: int = 0
    oldest_ms: int | None = None
    filling: Filling | None = None

    @property
    def oldest_available_ms(self) -> int | None:
        """The value of `oldest_ms`, or None if the queue was emptied since the last sweep."""
        return self.oldest_ms if self.levels.of(State.AVAILABLE) else None


@record(frozen=True)
class QueueMetrics(QueueGauges):
    """The metrics of a queue."""

    today: Day = Day()


@record(frozen=True)
class LimitMetrics:
    """The metrics of a rate limit key (ojs-rate-limiting, section 11.2).

    `active` is None if active jobs are not counted. `exceeded` is how often the key started to
    throttle, by kind of limit. `waits` is the histogram of the delays (`QUEUE_TIME_BUCKETS_S`).
    """

    key: str
    active: int | None
    waiting: int
    exceeded: Mapping[str, int]
    waits: Sequence[int]
    waited_ms: int


@record(frozen=True)
class PoolMetrics:
    """The metrics of a worker pool (ojs-fair-scheduling, section 11.2).

    `utilization` is its active jobs as a fraction of its concurrency limit (None without a limit).
    `ratios` is each listed queue's share of the jobs that were dispatched from the pool's queues in
    the last 60 s.
    """

    name: str
    utilization: float | None
    ratios: Mapping[str, float]


@record(frozen=True)
class MetricsSnapshot:
    """All metrics at `now_ms`. `queues` can be iterated only once, because it is read on demand."""

    now_ms: int
    queues: Iterable[QueueMetrics]
    totals: Totals
    limits: Sequence[LimitMetrics] = ()
    pools: Sequence[PoolMetrics] = ()


class Period(StrEnum):
    """The length of one point of a history (ojs-admin-api, section 10.2)."""

    MINUTE = "1m"
    FIVE_MINUTES = "5m"
    HOUR = "1h"
    DAY = "1d"

    @property
    def ms(self) -> int:
        """The length of the period in milliseconds."""
        return _LENGTHS_MS[self]


_LENGTHS_MS = {
    Period.MINUTE: MINUTE_MS,
    Period.FIVE_MINUTES: 5 * MINUTE_MS,
    Period.HOUR: HOUR_MS,
    Period.DAY: DAY_MS,
}


@record(frozen=True)
class Point:
    """The activity in the period that starts at `start_ms`."""

    start_ms: int
    activity: Activity
