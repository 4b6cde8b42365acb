"""CloudWatch metrics derived from events (ojs-observability, sections 8.1 and 8.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from ojs.clock import Clock
from ojs.domain.counters import definitions as rows
from ojs.domain.events.types import EventType
from ojs.domain.stats import OTHER_TYPES
from ojs.projections.counters import Tally
from ojs.projections.crons import CronRunChange
from ojs.projections.limits import ThrottleChange
from ojs.projections.transitions import JobEvent
from ojs.records import record

NAMESPACE = "OJS"
# By attribute of the dimensions, or its prefix: the metrics of a job event.
_OF_DAYS = {
    row.attribute: row for row in rows.COUNTERS if row.name and row.by in (None, "policy", "reason")
}
_SECONDS = {row.name for row in rows.ROWS if row.unit == "seconds"}


class MetricsOutlet(Protocol):
    """Receives measurements."""

    def put(self, dimensions: Mapping[str, str], values: Mapping[str, Sequence[float]]) -> None:
        """Record values by metric: durations in seconds, or counts."""
        ...


# Value of the queue dimension for all queues without separate metrics. No queue has this name.
OTHERS = "(others)"
# Maximum number of job types with separate metrics per queue and hour. The others are `other`.
MAX_TYPES = 10
_HOUR_MS = 3_600_000


@record
class MeteredQueues:
    """Selects the queues with separate metrics, because CloudWatch charges per metric and hour.

    A key that can enqueue jobs can create any number of queues. The first `most` queues of each
    hour in this container have separate metrics. If `most` is None, all queues have them. If it is
    0, metrics have no dimension for queue, type, or pool.
    """

    most: int | None
    clock: Clock
    _hour: int = 0
    _types: dict[str, set[str]] = field(default_factory=dict)

    def shown(self, dimensions: Mapping[str, str]) -> Mapping[str, str]:
        """Return the dimensions of a measurement, without those of queues that have no separate
        metrics.
        """
        queue = dimensions.get("queue")
        if self.most is None or queue is None:
            return dimensions
        if self.most == 0:
            hidden = ("queue", "type", "pool")
            return {name: text for name, text in dimensions.items() if name not in hidden}
        hour = self.clock.now_ms() // _HOUR_MS
        if hour != self._hour:
            self._hour, self._types = hour, {}
        if queue not in self._types and len(self._types) >= self.most:
            queue = OTHERS
        types = self._types.setdefault(queue, set()) if queue != OTHERS else set[str]()
        shown = {**dimensions, "queue": queue}
        kind = dimensions.get("type")
        if kind is not None and kind not in types:
            if queue == OTHERS or len(types) >= MAX_TYPES:
                shown["type"] = OTHER_TYPES
            else:
                types.add(kind)
        return shown


class EmbeddedMetrics:
    """Writes metrics in the embedded metric format to standard output, which CloudWatch Logs reads.

    Each metric has the dimension `service` and the given dimensions of `metered` queues. The number
    of added dead letters is also written without dimensions, for its alarm.
    """

    def __init__(
        self,
        service: str,
        namespace: str = NAMESPACE,
        metered: MeteredQueues | None = None,
        watched: Mapping[str, float] | None = None,
    ) -> None:
        """Create an outlet.

        Args:
            service: Name of the deployment.
            namespace: CloudWatch namespace.
            metered: Queues with separate metrics. Default: all.
            watched: The only metrics to write, without dimensions, each with its lowest value.
                Default: all metrics are written.
        """
        self._service = service
        self._namespace = namespace
        self._metered = metered
        self._watched = watched

    def put(self, dimensions: Mapping[str, str], values: Mapping[str, Sequence[float]]) -> None:
        """Write the values, one JSON object for each 100 values."""
        if self._metered is not None:
            dimensions = self._metered.shown(dimensions)
        added = rows.DEAD_ADDED.name
        if dimensions and added in values:
            self._write({}, {added: values[added]})
        if self._watched is None:
            self._write(dimensions, values)
        elif not dimensions:
            self._write({}, {
                name: [value for value in numbers if value >= self._watched[name]]
                for name, numbers in values.items() if name in self._watched
            })  # fmt: skip

    def _write(self, dimensions: Mapping[str, str], values: Mapping[str, Sequence[float]]) -> None:
        written = EphemeralMetrics(namespace=self._namespace, service=self._service)
        for name, value in dimensions.items():
            written.add_dimension(name, value)
        for name, numbers in values.items():
            unit = MetricUnit.Seconds if name in _SECONDS else MetricUnit.Count
            for number in numbers:
                written.add_metric(name, unit, number)
        if written.metric_set:
            written.flush_metrics()


# Dimensions, name of the metric, and value: a duration in seconds, or a count.
Measurement = tuple[Mapping[str, str], str, float]


def write(to: MetricsOutlet, measurements: Iterable[Measurement]) -> None:
    """Write durations and sums of counts to `to`, with one call for each set of dimensions."""
    values: dict[tuple[tuple[str, str], ...], defaultdict[str, list[float]]] = {}
    for dimensions, name, value in measurements:
        found = values.setdefault(tuple(dimensions.items()), defaultdict(list))[name]
        if name in _SECONDS or not found:
            found.append(value)
        else:
            found[0] += value
    for names, by_name in values.items():
        to.put(dict(names), by_name)


def of_jobs(what: Iterable[tuple[JobEvent, str]]) -> Iterator[Measurement]:
    """Yield the measurements of job events.

    Each event has the job type under which it is counted.
    """
    for one, kind in what:
        dimensions = {"queue": one.job.queue, "type": kind}
        if one.kind in rows.BY_TYPE:
            yield dimensions, rows.BY_TYPE[one.kind].name, 1
        if one.length_ms is not None:
            metric = rows.QUEUE_TIME if one.kind is EventType.JOB_STARTED else rows.DURATION
            yield dimensions, metric.name, one.length_ms / 1_000


def of_pools(what: Iterable[JobEvent]) -> Iterator[Measurement]:
    """Yield the measurements of jobs that were dispatched to worker pools."""
    for one in what:
        if one.kind is EventType.JOB_STARTED and one.job.pool is not None:
            queue = {"queue": one.job.queue}
            yield {**queue, "pool": one.job.pool}, rows.DISPATCHED.name, 1
            yield queue, rows.QUEUE_WAIT.name, (one.length_ms or 0) / 1_000


def of_days(tallies: Iterable[Tally]) -> Iterator[Measurement]:
    """Yield the measurements of daily counts, for example created or deleted queues, and rejected
    jobs.
    """
    for tally in tallies:
        for (queue, _), counts in tally.counts.items():
            for name, count in counts.items():
                row = _OF_DAYS.get(name, _OF_DAYS.get(name[:2]))
                if row in (rows.CREATED, rows.DELETED):
                    # Without a queue dimension: a queue is created once, and each queue would be a
                    # separate metric.
                    yield {}, row.name, count
                elif row is not None:
                    label = {} if row.by is None else {row.by: name.removeprefix(row.prefix)}
                    yield {"queue": queue, **label}, row.name, count


def of_limits(changes: Iterable[ThrottleChange]) -> Iterator[Measurement]:
    """Yield how often limits started to throttle and, when throttling ended, how long it lasted.

    The key of a limit is not a dimension: each customer can have one, and each would cost.
    """
    for change in changes:
        queue = {} if change.queue is None else {"queue": change.queue}
        dimensions = {**queue, "strategy": change.strategy}
        if change.exceeded:
            yield dimensions, rows.EXCEEDED.name, 1
        elif change.released:
            yield dimensions, rows.LIMIT_WAIT.name, change.throttled_ms / 1_000


def of_crons(changes: Iterable[CronRunChange]) -> Iterator[Measurement]:
    """Yield the delays of cron ticks, in total for the alarm, and by queue."""
    for change in changes:
        if not change.run.manual:
            for dimensions in ({}, {"queue": change.run.queue}):
                yield dimensions, rows.LATENESS.name, change.run.late_ms / 1_000
