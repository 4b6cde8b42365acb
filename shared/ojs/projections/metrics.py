"""Metrics of what happened (ojs-observability sections 8.1 and 8.2), as CloudWatch takes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from ojs.projections.transitions import Happened, Kind

NAMESPACE = "OJS"
DURATION = "ojs.job.duration"
QUEUE_TIME = "ojs.job.queue_time"
COUNTERS = {
    Kind.ENQUEUED: "ojs.job.enqueued",
    Kind.COMPLETED: "ojs.job.completed",
    Kind.DISCARDED: "ojs.job.failed",
    Kind.RETRYING: "ojs.job.retried",
    Kind.CANCELLED: "ojs.job.cancelled",
    Kind.EXPIRED: "ojs.job.expired",
}


class Metrics(Protocol):
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
            unit = MetricUnit.Seconds if name in (DURATION, QUEUE_TIME) else MetricUnit.Count
            for number in numbers:
                written.add_metric(name, unit, number)
        if written.metric_set:
            written.flush_metrics()


def write(to: Metrics, what: Iterable[tuple[Happened, str]]) -> None:
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
            name = QUEUE_TIME if one.kind is Kind.STARTED else DURATION
            found[name].append(one.length_ms / 1_000)
    for (queue, kind), by_name in values.items():
        if any(by_name.values()):
            to.put({"queue": queue, "type": kind}, by_name)
