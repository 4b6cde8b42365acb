"""Metrics of what happened, as CloudWatch takes them (ojs-observability sections 8.1 and 8.2;
queue-config and backpressure seeds, section 10.2; dead-letter seed, section 11.2).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from ojs.domain.queue.config import BLOCK, DROP_OLDEST, REJECT
from ojs.projections import counters
from ojs.projections.counters import Tally
from ojs.projections.limits import ThrottleChange
from ojs.projections.transitions import Happened, TransitionKind

NAMESPACE = "OJS"
DURATION = "ojs.job.duration"
QUEUE_TIME = "ojs.job.queue_time"
EXCEEDED = "ojs.rate_limit.exceeded_total"
WAIT_DURATION = "ojs.rate_limit.wait_duration"
DISPATCHED = "ojs.scheduling.dispatch_total"
QUEUE_WAIT = "ojs.scheduling.queue_wait_duration"
_SECONDS = frozenset({DURATION, QUEUE_TIME, WAIT_DURATION, QUEUE_WAIT})
COUNTERS = {
    TransitionKind.ENQUEUED: "ojs.job.enqueued",
    TransitionKind.COMPLETED: "ojs.job.completed",
    TransitionKind.DISCARDED: "ojs.job.failed",
    TransitionKind.RETRYING: "ojs.job.retried",
    TransitionKind.CANCELLED: "ojs.job.cancelled",
    TransitionKind.EXPIRED: "ojs.job.expired",
    TransitionKind.DEAD_ADDED: "ojs.dead_letter.added_total",
}
# Counter of a day → metric and the dimensions it has beside the queue's name.
_BY_QUEUE: Mapping[str, tuple[str, Mapping[str, str]]] = {
    counters.REJECTED: ("ojs.backpressure.rejected_total", {}),
    counters.DROPPED: ("ojs.backpressure.dropped_total", {}),
    counters.DEAD_RETRIED: ("ojs.dead_letter.retried_total", {}),
    counters.DEAD_PRUNED: ("ojs.dead_letter.pruned_total", {}),
    counters.STARVED: ("ojs.scheduling.starvation_events", {}),
    **{
        counters.overflow(policy): ("ojs.queue.overflow.count", {"policy": policy})
        for policy in (REJECT, BLOCK, DROP_OLDEST)
    },
}
# Those without: a queue is created once, and each would be a metric of its own.
_OF_ALL = {
    counters.CREATED: "ojs.queue.created.count",
    counters.DELETED: "ojs.queue.deleted.count",
}


class MetricsOutlet(Protocol):
    """Takes measurements."""

    def put(self, dimensions: Mapping[str, str], values: Mapping[str, Sequence[float]]) -> None:
        """Values by metric; lengths of time in seconds, all else counts."""
        ...


class EmbeddedMetrics:
    """Embedded metric format on standard output: CloudWatch Logs makes metrics of it, no calls.

    Each metric has the dimensions it is given and `service`.
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
    """Measurements of what happened, each with the type of job it is counted under."""
    values: defaultdict[tuple[str, str], defaultdict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for one, kind in what:
        found = values[one.job.queue, kind]
        if one.kind in COUNTERS:
            name = COUNTERS[one.kind]
            found[name] = [found[name][0] + 1 if found[name] else 1]
        if one.length_ms is not None:
            name = QUEUE_TIME if one.kind is TransitionKind.STARTED else DURATION
            found[name].append(one.length_ms / 1_000)
    for (queue, kind), by_name in values.items():
        if any(by_name.values()):
            to.put({"queue": queue, "type": kind}, by_name)


def write_pools(to: MetricsOutlet, what: Iterable[Happened]) -> None:
    """Measurements of jobs that were handed out to worker pools (fair-scheduling seed, 11.2)."""
    started: Counter[tuple[str, str]] = Counter()
    waits: defaultdict[str, list[float]] = defaultdict(list)
    for one in what:
        if one.kind is TransitionKind.STARTED and one.job.pool is not None:
            started[one.job.queue, one.job.pool] += 1
            waits[one.job.queue].append((one.length_ms or 0) / 1_000)
    for (queue, pool), count in started.items():
        to.put({"queue": queue, "pool": pool}, {DISPATCHED: [count]})
    for queue, seconds in waits.items():
        to.put({"queue": queue}, {QUEUE_WAIT: seconds})


def write_bounds(to: MetricsOutlet, tallies: Iterable[Tally]) -> None:
    """Measurements of queues made and deleted, of jobs that found no room, of dead letters that
    were retried or pruned, and of queues that were found starved.
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


def write_limits(to: MetricsOutlet, edges: Iterable[ThrottleChange]) -> None:
    """Measurements of limits that held jobs back: how often, and, when that is over, for how long.

    A key of jobs is no dimension: there may be one for each customer, and each would be paid for.
    """
    found: defaultdict[tuple[str | None, str], dict[str, list[float]]] = defaultdict(dict)
    for edge in edges:
        values = found[edge.queue, edge.after.strategy]
        if edge.exceeded:
            values.setdefault(EXCEEDED, [0])[0] += 1
        elif edge.released:
            values.setdefault(WAIT_DURATION, []).append(edge.held_ms / 1_000)
    for (queue, strategy), values in found.items():
        if values:
            named = {} if queue is None else {"queue": queue}
            to.put({**named, "strategy": strategy}, values)


_TOLD = frozenset({*_BY_QUEUE, *_OF_ALL})
