"""Metrics of what happened, for CloudWatch (ojs-observability sections 8.1 and 8.2)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from ojs.domain.events.types import EventType
from ojs.domain.queue.config import OverflowPolicy
from ojs.projections import counters
from ojs.projections.counters import Tally
from ojs.projections.limits import ThrottleChange
from ojs.projections.transitions import Happened

NAMESPACE = "OJS"
DURATION = "ojs.job.duration"
QUEUE_TIME = "ojs.job.queue_time"
EXCEEDED = "ojs.rate_limit.exceeded_total"
WAIT_DURATION = "ojs.rate_limit.wait_duration"
DISPATCHED = "ojs.scheduling.dispatch_total"
QUEUE_WAIT = "ojs.scheduling.queue_wait_duration"
_SECONDS = frozenset({DURATION, QUEUE_TIME, WAIT_DURATION, QUEUE_WAIT})
COUNTERS = {
    EventType.JOB_ENQUEUED: "ojs.job.enqueued",
    EventType.JOB_COMPLETED: "ojs.job.completed",
    EventType.JOB_DISCARDED: "ojs.job.failed",
    EventType.JOB_RETRYING: "ojs.job.retried",
    EventType.JOB_CANCELLED: "ojs.job.cancelled",
    EventType.JOB_EXPIRED: "ojs.job.expired",
    EventType.DEAD_LETTER_ADDED: "ojs.dead_letter.added_total",
}
# Daily counter → metric, and its dimensions beside the queue's name.
_BY_QUEUE: Mapping[str, tuple[str, Mapping[str, str]]] = {
    counters.REJECTED: ("ojs.backpressure.rejected_total", {}),
    counters.DROPPED: ("ojs.backpressure.dropped_total", {}),
    counters.DEAD_RETRIED: ("ojs.dead_letter.retried_total", {}),
    counters.DEAD_PRUNED: ("ojs.dead_letter.pruned_total", {}),
    counters.STARVED: ("ojs.scheduling.starvation_events", {}),
    **{
        counters.overflow(policy): ("ojs.queue.overflow.count", {"policy": policy})
        for policy in OverflowPolicy
    },
}
# Without dimensions: a queue is created once, and each would be a metric of its own.
_OF_ALL = {
    counters.CREATED: "ojs.queue.created.count",
    counters.DELETED: "ojs.queue.deleted.count",
}


class MetricsOutlet(Protocol):
    """Receives measurements."""

    def put(self, dimensions: Mapping[str, str], values: Mapping[str, Sequence[float]]) -> None:
        """Record values by metric: durations in seconds, all others counts."""
        ...


class EmbeddedMetrics:
    """Writes the embedded metric format to standard output, of which CloudWatch Logs makes metrics.

    Each metric has the given dimensions and `service`.
    """

    def __init__(self, service: str, namespace: str = NAMESPACE) -> None:
        self._service = service
        self._namespace = namespace

    def put(self, dimensions: Mapping[str, str], values: Mapping[str, Sequence[float]]) -> None:
        """Write one object for each hundred values."""
        written = EphemeralMetrics(namespace=self._namespace, service=self._service)
        for name, value in dimensions.items():
            written.add_dimension(name, value)
        for name, numbers in values.items():
            unit = MetricUnit.Seconds if name in _SECONDS else MetricUnit.Count
            for number in numbers:
                written.add_metric(name, unit, number)
        if written.metric_set:
            written.flush_metrics()


def write(to: MetricsOutlet, what: Iterable[tuple[Happened, str]]) -> None:
    """Record what happened, each with the job type it is counted under."""
    values: defaultdict[tuple[str, str], defaultdict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for one, kind in what:
        found = values[one.job.queue, kind]
        if one.kind in COUNTERS:
            name = COUNTERS[one.kind]
            found[name] = [found[name][0] + 1 if found[name] else 1]
        if one.length_ms is not None:
            name = QUEUE_TIME if one.kind is EventType.JOB_STARTED else DURATION
            found[name].append(one.length_ms / 1_000)
    for (queue, kind), by_name in values.items():
        if any(by_name.values()):
            to.put({"queue": queue, "type": kind}, by_name)


def write_pools(to: MetricsOutlet, what: Iterable[Happened]) -> None:
    """Record jobs that were handed out to worker pools."""
    started: Counter[tuple[str, str]] = Counter()
    waits: defaultdict[str, list[float]] = defaultdict(list)
    for one in what:
        if one.kind is EventType.JOB_STARTED and one.job.pool is not None:
            started[one.job.queue, one.job.pool] += 1
            waits[one.job.queue].append((one.length_ms or 0) / 1_000)
    for (queue, pool), count in started.items():
        to.put({"queue": queue, "pool": pool}, {DISPATCHED: [count]})
    for queue, seconds in waits.items():
        to.put({"queue": queue}, {QUEUE_WAIT: seconds})


def write_bounds(to: MetricsOutlet, tallies: Iterable[Tally]) -> None:
    """Record queues created and deleted, jobs that found no room, dead letters that were retried or
    pruned, and queues that starve.
    """
    by_queue: Counter[tuple[str, str]] = Counter()
    for tally in tallies:
        for (queue, _), counts in tally.counts.items():
            by_queue.update({(queue, name): n for name, n in counts.items() if name in _TOLD})
    of_all: Counter[str] = Counter()
    for (queue, name), count in by_queue.items():
        if name in _OF_ALL:
            of_all[_OF_ALL[name]] += count
        elif count:
            metric, dimensions = _BY_QUEUE[name]
            to.put({"queue": queue, **dimensions}, {metric: [count]})
    if of_all:
        to.put({}, {name: [count] for name, count in of_all.items()})


def write_limits(to: MetricsOutlet, changes: Iterable[ThrottleChange]) -> None:
    """Record how often limits throttled, and, when that is over, for how long.

    The key of a limit is no dimension: there may be one for each customer, and each would cost.
    """
    found: defaultdict[tuple[str | None, str], dict[str, list[float]]] = defaultdict(dict)
    for change in changes:
        values = found[change.queue, change.after.strategy]
        if change.exceeded:
            values.setdefault(EXCEEDED, [0])[0] += 1
        elif change.released:
            values.setdefault(WAIT_DURATION, []).append(change.throttled_ms / 1_000)
    for (queue, strategy), values in found.items():
        if values:
            named = {} if queue is None else {"queue": queue}
            to.put({**named, "strategy": strategy}, values)


_TOLD = frozenset({*_BY_QUEUE, *_OF_ALL})
