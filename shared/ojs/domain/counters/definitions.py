"""Definitions of metrics and counters, one row for each.

The projection of the DynamoDB stream uses the rows to count. The CloudWatch metrics, the Prometheus
text, and the JSON metrics are built from them. A counter is an attribute of the item with the
statistics of one day of a queue. Names and buckets: ojs-observability, section 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from ojs.domain.events.types import EventType
from ojs.domain.job.states import State
from ojs.domain.stats import DURATION_BUCKETS_S, QUEUE_TIME_BUCKETS_S, Activity, QueueMetrics
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.stats import QueueGauges

_SUFFIXES = {"jobs": "", "workers": "", "queues": "", "seconds": "_seconds", "1": "_ratio"}


@record(frozen=True)
class Histogram:
    """Cumulative number of observations up to each bound. The last count is the total number."""

    counts: Sequence[int]
    bounds: Sequence[float]
    total: float

    @classmethod
    def of(cls, buckets: Sequence[int], bounds: Sequence[float], sum_ms: int) -> Histogram:
        """Build a histogram.

        Args:
            buckets: Number of observations in each bucket (not cumulative).
            bounds: Upper bounds of the buckets.
            sum_ms: Sum of all observations in milliseconds.
        """
        return cls(list(accumulate(buckets)), bounds, sum_ms / 1_000)


@record(frozen=True, eq=False)
class Metric:
    """A metric: its name in the specification, help text, kind, and unit.

    Without a help text (`says`), it is only a CloudWatch metric. Without a name, it is only a
    counter. `of_queue` reads the value from a queue's data at a time in ms: None if the queue has
    no value, or, with the label `by`, a value for each value of the label.

    The projection counts events of the type `event` in the `attribute` of the day's item, or, with
    `by`, in one attribute per value of the label. If `often`, it also counts them per minute and in
    total.
    """

    name: str = ""
    says: str = ""
    kind: Literal["counter", "gauge", "histogram"] = "counter"
    unit: str = "jobs"
    of_queue: Callable[[Any, int], Any] | None = None
    by: str | None = None
    attribute: str = ""
    event: EventType | None = None
    often: bool = False

    @property
    def help(self) -> str:
        """The help text, without a period."""
        return f"{self.says} since midnight UTC" if self.kind == "counter" else self.says

    @property
    def exported(self) -> str:
        """The Prometheus name, with the unit or `total` as its suffix."""
        suffix = "_total" if self.kind == "counter" else _SUFFIXES[self.unit]
        name = self.name.replace(".", "_").removesuffix("_count").removesuffix(suffix)
        return f"{name}{suffix}"

    @property
    def prefix(self) -> str:
        """The common prefix of its attribute names. Without a label, the whole name."""
        return f"{self.attribute}|" if self.by == "type" else self.attribute

    def value(self, found: QueueGauges, now_ms: int) -> Any:
        """Return the value of a queue: the result of `of_queue`, or the counts."""
        if self.of_queue is not None:
            return self.of_queue(found, now_ms)
        if not (self.attribute and isinstance(found, QueueMetrics)):
            return None
        counts = found.today.of(self.attribute)
        return counts if self.by else counts.get("", 0)

    def samples(
        self, found: QueueMetrics, now_ms: int
    ) -> Iterator[tuple[Mapping[str, str], float | Histogram]]:
        """Yield the values of a queue, each with its labels (without the label of the queue)."""
        value = self.value(found, now_ms)
        if self.by is not None and value is not None:
            yield from (({self.by: label}, each) for label, each in value.items())
        elif value is not None:
            yield {}, value


def _durations(found: QueueMetrics, _now_ms: int) -> Histogram:
    return Histogram.of(found.today.durations, DURATION_BUCKETS_S, found.today.activity.run_ms)


def _waits(found: QueueMetrics, _now_ms: int) -> Histogram:
    return Histogram.of(found.today.queue_times, QUEUE_TIME_BUCKETS_S, found.today.activity.wait_ms)


def _age_s(found: QueueGauges, now_ms: int) -> float:
    since_ms = found.oldest_available_ms
    return 0 if since_ms is None else max(0, now_ms - since_ms) / 1_000


def _in_pools(found: QueueMetrics) -> bool:
    return bool(found.queue.pools or found.today.of("s_"))


def _bounded(found: QueueMetrics, attribute: str) -> int | None:
    """Return the counter of a queue that has a size limit or rejected or dropped jobs today.

    Return None for other queues.
    """
    today = found.today
    shown = found.filling is not None or today.total("rejected") or today.total("dropped")
    return today.total(attribute) if shown else None


# In the order of the metrics page.
# fmt: off
ROWS = (
    Metric("ojs.job.enqueued", "Enqueued jobs",
        by="type", attribute="enqueued", event=EventType.JOB_ENQUEUED, often=True),
    # Rows without a name are for statistics only. `failures` are failed attempts.
    Metric(attribute="started", event=EventType.JOB_STARTED, often=True),
    Metric("ojs.job.completed", "Completed jobs",
        by="type", attribute="completed", event=EventType.JOB_COMPLETED, often=True),
    # Discarded jobs, as defined in ojs-observability, section 8.1.
    Metric("ojs.job.failed", "Discarded jobs",
        by="type", attribute="failed", event=EventType.JOB_DISCARDED, often=True),
    Metric(attribute="failures", event=EventType.JOB_FAILED, often=True),
    Metric("ojs.job.retried", "Jobs scheduled for retry",
        by="type", attribute="retried", event=EventType.JOB_RETRYING, often=True),
    Metric("ojs.job.cancelled", "Cancelled jobs",
        by="type", attribute="cancelled", event=EventType.JOB_CANCELLED, often=True),
    Metric("ojs.job.expired", "Expired jobs",
        by="type", attribute="expired", event=EventType.JOB_EXPIRED, often=True),
    DURATION := Metric("ojs.job.duration",
        "Duration of attempts in seconds since midnight UTC",
        "histogram", "seconds", _durations),
    QUEUE_TIME := Metric("ojs.job.queue_time",
        "Time in seconds that jobs were available before dispatch, since midnight UTC",
        "histogram", "seconds", _waits),
    DEPTH := Metric("ojs.queue.depth", "Jobs by queue and state", "gauge", "jobs",
        lambda found, _: {state.value: found.levels.of(state) for state in State}, "state"),
    OLDEST_AGE := Metric("ojs.queue.oldest_age",
        "Age of the oldest available job in seconds; 0 without one",
        "gauge", "seconds", _age_s),
    DEAD_LETTERS := Metric("ojs.dead_letter.total", "Dead letters by queue", "gauge", "jobs",
        lambda found, _: found.levels.dead),
    DEAD_ADDED := Metric("ojs.dead_letter.added_total", "Added dead letters",
        by="type", attribute="dead_added", event=EventType.DEAD_LETTER_ADDED),
    Metric("ojs.dead_letter.retried_total", "Manually retried dead letters",
        attribute="dead_retried", event=EventType.DEAD_LETTER_RETRIED),
    Metric("ojs.dead_letter.pruned_total", "Pruned dead letters",
        attribute="dead_pruned", event=EventType.DEAD_LETTER_PRUNED),
    Metric("ojs.workers.busy", "Active jobs", "gauge", "jobs",
        lambda found, _: found.levels.of(State.ACTIVE)),
    Metric("ojs.queue.max_size",
        "Maximum number of jobs in a queue with a size limit", "gauge", "jobs",
        lambda found, _: found.filling and found.filling.max_size),
    Metric("ojs.queue.utilization", "Jobs in a queue with a size limit, as a fraction of its limit",
        "gauge", "1", lambda found, _: found.filling and found.filling.utilization),
    Metric("ojs.backpressure.pressure",
        "Use of a queue's size limit as a fraction, of jobs or bytes, the larger one",
        "gauge", "1", lambda found, _: found.filling and found.filling.pressure),
    REJECTED := Metric("ojs.backpressure.rejected_total", "Jobs rejected by a queue at capacity",
        of_queue=lambda found, _: _bounded(found, "rejected"), attribute="rejected"),
    DROPPED := Metric("ojs.backpressure.dropped_total",
        "Jobs discarded by the overflow policy drop_oldest",
        of_queue=lambda found, _: _bounded(found, "dropped"),
        attribute="dropped", event=EventType.BACKPRESSURE_DROPPED),
    OVERFLOW := Metric("ojs.queue.overflow.count",
        "Jobs rejected or discarded at capacity, by overflow policy", by="policy", attribute="o_"),
    LIMIT_ACTIVE := Metric("ojs.rate_limit.active",
        "Active jobs of a key with a concurrency limit", "gauge"),
    LIMIT_WAITING := Metric("ojs.rate_limit.waiting",
        "Jobs that wait for a key's limit, counted once per minute", "gauge"),
    EXCEEDED := Metric("ojs.rate_limit.exceeded_total",
        "Times that a rate limit of a queue was exceeded",
        unit="times", by="strategy", attribute="x_"),
    LIMIT_WAIT := Metric("ojs.rate_limit.wait_duration",
        "Time in seconds that a key's limit delayed jobs",
        "histogram", "seconds"),
    DISPATCHED := Metric("ojs.scheduling.dispatch_total", "Jobs dispatched to a worker pool",
        by="pool", attribute="s_"),
    DISPATCH_RATIO := Metric("ojs.scheduling.dispatch_ratio",
        "A queue's share of the jobs dispatched to its worker pool in the last minute",
        "gauge", "1"),
    QUEUE_WAIT := Metric("ojs.scheduling.queue_wait_duration",
        "Time in seconds that worker pool jobs were available before dispatch, since midnight UTC",
        "histogram", "seconds",
        lambda found, now_ms: _waits(found, now_ms) if _in_pools(found) else None),
    POOL_UTILIZATION := Metric("ojs.scheduling.pool_utilization",
        "Active jobs of a worker pool, as a fraction of its concurrency limit", "gauge", "1"),
    STARVED := Metric("ojs.scheduling.starvation_events", "Times that a queue was starved",
        "counter", "times",
        lambda found, _: found.today.total("starved") if _in_pools(found) else None,
        attribute="starved"),
    ACTIVE_WORKERS := Metric("ojs.workers.active", "Workers that fetch jobs", "gauge", "workers"),
    QUEUES := Metric("ojs.queues", "Existing queues", "gauge", "queues"),
    LISTED := Metric("ojs.metrics.queues",
        "Queues included in these metrics; fewer than ojs_queues above a limit",
        "gauge", "queues"),
    CREATED := Metric("ojs.queue.created.count", attribute="created"),
    DELETED := Metric("ojs.queue.deleted.count", attribute="deleted"),
    FIRED := Metric("ojs.cron.triggered", attribute="cron_fired"),
    SKIPPED := Metric("ojs.cron.skipped", by="reason", attribute="c_"),
    LATENESS := Metric("ojs.cron.lateness", kind="gauge", unit="seconds"),
    STALLED := Metric("ojs.workflow.stalled", kind="gauge"),
    BACKLOG := Metric("ojs.workers.backlog", kind="gauge"),
    MISSING := Metric("ojs.workers.missing", kind="gauge"),
)
# fmt: on
# With the metrics level `alarms`, a gauge is written from this fraction of its alarm's threshold.
NEAR_ALARM = 1 / 3
COUNTERS = tuple(row for row in ROWS if row.attribute)
# Metrics that responses of the API contain.
METRICS = tuple(row for row in ROWS if row.says)
# Counters per minute and in total, by event type.
OFTEN = {row.event: row for row in COUNTERS if row.often}
# Counters per day only, by event type.
DAILY = {row.event: row for row in COUNTERS if row.event and not row.often and row.by is None}
# Counters that are also split by job type.
BY_TYPE = {row.event: row for row in COUNTERS if row.by == "type"}

if {row.attribute for row in OFTEN.values()} != {
    each.name for each in fields(Activity) if not each.name.endswith(("_ms", "waits", "runs"))
}:
    raise TypeError("Each frequent counter must have a row and a field of Activity.")
