"""Metrics, as Prometheus text and as JSON.

ojs-observability section 8 and the extensions define the names. Counters and histograms are reset
at midnight UTC. `rate` and `increase` of Prometheus handle such resets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from ojs import runtime
from ojs.domain import jsontext, times
from ojs.domain.access import Scope
from ojs.domain.counters import definitions as rows
from ojs.domain.stats import (
    QUEUE_TIME_BUCKETS_S,
    LimitMetrics,
    MetricsSnapshot,
    PoolMetrics,
    QueueMetrics,
)
from ojs.domain.tenants import get_tenant
from ojs.http.answer import AsIs, absent
from ojs.http.answers import Count, Moment, Rate
from ojs.http.binding import query
from ojs.http.binding.request import Request
from ojs.http.endpoint import Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.parameters import one_of
from ojs.records import record

S = TypeVar("S")

# Without a charset, because the specification's scrapers look for exactly this text.
TEXT_TYPE = "text/plain"
# Lambda sends at most 6 MB, counted after the body is quoted as a JSON string. Quoting at
# most doubles JSON, and adds little to Prometheus text. Queues that don't fit are omitted.
MAX_TEXT_BYTES = 4_000_000
MAX_JSON_BYTES = 2_500_000
# Reserved for the headings of all metrics, and for the totals across queues.
_HEAD_BYTES = 10_000


@record(frozen=True)
class Sample:
    """One value of a metric."""

    metric: rows.Metric
    labels: Mapping[str, str]
    value: float | rows.Histogram


def _of_queue(found: QueueMetrics, now_ms: int) -> Iterator[Sample]:
    named = {"queue": found.queue.name}
    if (tenant := get_tenant(found.queue.name)) is not None:
        named["tenant_id"] = tenant
    for metric in rows.METRICS:
        for labels, value in metric.samples(found, now_ms):
            yield Sample(metric, {**named, **labels}, value)


def _of_key(limit: LimitMetrics) -> Iterator[Sample]:
    named = {"key": limit.key}
    if limit.active is not None:
        yield Sample(rows.LIMIT_ACTIVE, named, limit.active)
    yield Sample(rows.LIMIT_WAITING, named, limit.waiting)
    if limit.exceeded:
        for strategy, count in sorted(limit.exceeded.items()):
            yield Sample(rows.EXCEEDED, {**named, "strategy": strategy}, count)
        waits = rows.Histogram.of(limit.waits, QUEUE_TIME_BUCKETS_S, limit.waited_ms)
        yield Sample(rows.LIMIT_WAIT, named, waits)


def _of_pool(pool: PoolMetrics) -> Iterator[Sample]:
    if pool.utilization is not None:
        yield Sample(rows.POOL_UTILIZATION, {"pool": pool.name}, pool.utilization)
    for queue, ratio in pool.ratios.items():
        yield Sample(rows.DISPATCH_RATIO, {"queue": queue}, ratio)


def _of_keys_and_pools(found: MetricsSnapshot) -> Iterator[Sample]:
    for limit in found.limits:
        yield from _of_key(limit)
    for pool in found.pools:
        yield from _of_pool(pool)


def _of_all(found: MetricsSnapshot, listed: int) -> Iterator[Sample]:
    yield Sample(rows.ACTIVE_WORKERS, {}, found.totals.workers.running)
    # The sweep might not have counted the most recent queues yet.
    yield Sample(rows.QUEUES, {}, max(listed, found.totals.queues))
    yield Sample(rows.LISTED, {}, listed)


def _fitting(
    found: MetricsSnapshot, shown: Callable[[Sample], list[S]], size: Callable[[S], int], most: int
) -> dict[rows.Metric, list[S]]:
    """Collect all samples by metric. Queues that don't fit into `most` bytes are omitted.

    Args:
        found: The metrics to show.
        shown: Converts a sample to its parts in the response.
        size: Returns the size of a part in bytes, without the separator.
        most: Maximum size of the response in bytes.
    """
    by_family: dict[rows.Metric, list[S]] = {metric: [] for metric in rows.METRICS}
    room = most - _HEAD_BYTES

    def add(samples: Iterable[Sample], *, whole: bool) -> bool:
        nonlocal room
        added = [(sample.metric, one) for sample in samples for one in shown(sample)]
        room -= sum(size(one) + 1 for _, one in added)
        if room < 0 and not whole:
            return False
        for family, one in added:
            by_family[family].append(one)
        return True

    add(_of_keys_and_pools(found), whole=True)
    listed = 0
    for queue in found.queues:
        if not add(_of_queue(queue, found.now_ms), whole=False):
            break
        listed += 1
    add(_of_all(found, listed), whole=True)
    return by_family


# --- Prometheus text ------------------------------------------------------------------------------


def text(found: MetricsSnapshot) -> str:
    """Write metrics in the text format of Prometheus. Queues beyond MAX_TEXT_BYTES are omitted."""
    parts = []
    for family, lines in _fitting(found, _lines, len, MAX_TEXT_BYTES).items():
        parts.append(f"# HELP {family.exported} {family.help}.")
        parts.append(f"# TYPE {family.exported} {family.kind}")
        parts += lines
    return "\n".join([*parts, ""])


def _lines(sample: Sample) -> list[str]:
    name, labels, value = sample.metric.exported, sample.labels, sample.value
    if not isinstance(value, rows.Histogram):
        return [f"{name}{_braced(labels)} {_number(value)}"]
    bounds = [_number(bound) for bound in value.bounds]
    lines = [
        f"{name}_bucket{_braced({**labels, 'le': bound})} {count}"
        for bound, count in zip([*bounds, "+Inf"], value.counts, strict=True)
    ]
    lines.append(f"{name}_sum{_braced(labels)} {_number(value.total)}")
    lines.append(f"{name}_count{_braced(labels)} {value.counts[-1]}")
    return lines


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _braced(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items()) + "}"


def _quoted(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# --- JSON -----------------------------------------------------------------------------------------


class HistogramBucket(AsIs):
    """How many observations are not above a bound."""

    le: float
    count: Count


class MetricSample(AsIs):
    """One value of a metric, or one histogram."""

    labels: dict[str, str]
    value: Rate = absent()
    count: Count = absent()
    sum: Rate = absent()
    buckets: list[HistogramBucket] = absent()


class Metric(AsIs):
    """A metric and its values. Counters and histograms count from midnight UTC."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str
    samples: list[MetricSample]


class MetricsAnswer(AsIs):
    """Metrics under the names of the specification."""

    computed_at: Moment
    metrics: list[Metric]


def body(found: MetricsSnapshot) -> Mapping[str, Any]:
    """Build the JSON response with metrics. Queues beyond MAX_JSON_BYTES are omitted."""
    samples = _fitting(found, lambda sample: [_shown(sample)], jsontext.size_of, MAX_JSON_BYTES)
    return {
        "computed_at": times.format_ms(found.now_ms),
        "metrics": [
            {
                "name": family.name,
                "type": family.kind,
                "unit": family.unit,
                "description": family.help,
                "samples": shown,
            }
            for family, shown in samples.items()
        ],
    }


def _shown(sample: Sample) -> Mapping[str, Any]:
    value = sample.value
    if not isinstance(value, rows.Histogram):
        return {"labels": dict(sample.labels), "value": value}
    return {
        "labels": dict(sample.labels),
        "count": value.counts[-1],
        "sum": value.total,
        "buckets": [
            {"le": bound, "count": count}
            for bound, count in zip(value.bounds, value.counts, strict=False)
        ],
    }


# --- endpoints ------------------------------------------------------------------------------------

FORMATS = ("json", "prometheus")
_LOOK = Permission(Scope.ADMIN_READ, QueueScope.ALL)

metrics = Resource("metrics", "system")
_scraped = Resource("/metrics", "system")


@metrics.endpoint(
    "GET",
    _LOOK,
    Success(MetricsAnswer, "Metrics as JSON, or as Prometheus text.", text=True),
    query=(Parameter("format", one_of(*FORMATS, default=FORMATS[0]), "JSON, or Prometheus text"),),
    derived=True,
    name="metrics",
)
def read_metrics(request: Request) -> Reply:
    """Read metrics."""
    if query.choice(request.query, "format", FORMATS, default=FORMATS[0]) == "prometheus":
        return root_metrics(request)
    return Reply(body(runtime.current().stats.metrics()))


@_scraped.endpoint(
    "GET",
    _LOOK,
    Success(None, "Metrics in the text exposition format.", text=True),
    derived=True,
    strict_query=False,
)
def root_metrics(_request: Request) -> Reply:
    """Read metrics as Prometheus scrapes them."""
    return Reply(text(runtime.current().stats.metrics()), headers={"Content-Type": TEXT_TYPE})
