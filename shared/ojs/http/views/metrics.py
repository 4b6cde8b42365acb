"""Metrics, as Prometheus text and as JSON.

The names are those of ojs-observability section 8 and of the extensions. Counters and histograms
start again at midnight UTC; `rate` and `increase` of Prometheus handle such resets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from ojs.domain import jsontext, times
from ojs.domain.errors import InvalidRequest
from ojs.domain.job.states import State
from ojs.domain.stats import (
    BY_TYPE,
    DURATION_BUCKETS_S,
    QUEUE_TIME_BUCKETS_S,
    LimitMetrics,
    MetricsSnapshot,
    PoolMetrics,
    QueueMetrics,
)
from ojs.http.contract.operations import METRIC_FORMATS

if TYPE_CHECKING:
    from ojs.http.contract import answers

# Exactly this text, without a charset: the specification's scrapers look for it.
TEXT_TYPE = "text/plain"
# Lambda sends at most 6 MB, counted after the body is quoted as a JSON text: that hardly lengthens
# text, and at most doubles JSON. Queues that do not fit are left out.
MAX_TEXT_BYTES = 4_000_000
MAX_JSON_BYTES = 2_500_000
# Reserved for the heads of all metrics, and for those of all queues together.
_HEAD_BYTES = 10_000


@dataclass(frozen=True)
class Family:
    """A metric: its name in the specification and in Prometheus, its kind, unit and help text."""

    name: str
    exported: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    help: str


def _job_counter(counter: str, meaning: str) -> Family:
    name = f"ojs.job.{counter}"
    return Family(
        name, f"ojs_job_{counter}_total", "counter", "jobs", f"Jobs that {meaning}, since midnight"
    )


_COUNTERS = {
    "enqueued": _job_counter("enqueued", "became available"),
    "completed": _job_counter("completed", "were completed"),
    "failed": _job_counter("failed", "were discarded"),
    "retried": _job_counter("retried", "are to be tried again"),
    "cancelled": _job_counter("cancelled", "were cancelled"),
    "expired": _job_counter("expired", "were not started in time"),
}
_DURATION = Family(
    "ojs.job.duration", "ojs_job_duration_seconds", "histogram", "seconds",
    "How long attempts ran, since midnight",
)  # fmt: skip
_QUEUE_TIME = Family(
    "ojs.job.queue_time", "ojs_job_queue_time_seconds", "histogram", "seconds",
    "How long jobs waited in line, since midnight",
)  # fmt: skip
_DEPTH = Family("ojs.queue.depth", "ojs_queue_depth", "gauge", "jobs", "Jobs by queue and state")
_OLDEST = Family(
    "ojs.queue.oldest_age", "ojs_queue_oldest_age_seconds", "gauge", "seconds",
    "For how long the oldest available job has been so; 0 when there is none",
)  # fmt: skip
_DEAD = Family(
    "ojs.dead_letter.total", "ojs_dead_letter_total", "gauge", "jobs", "Dead letters by queue"
)
_DEAD_ADDED = Family(
    "ojs.dead_letter.added_total", "ojs_dead_letter_added_total", "counter", "jobs",
    "Jobs that entered dead letter, since midnight",
)  # fmt: skip
_DEAD_RETRIED = Family(
    "ojs.dead_letter.retried_total", "ojs_dead_letter_retried_total", "counter", "jobs",
    "Dead letters that were retried by hand, since midnight",
)  # fmt: skip
_DEAD_PRUNED = Family(
    "ojs.dead_letter.pruned_total", "ojs_dead_letter_pruned_total", "counter", "jobs",
    "Dead letters that were pruned, since midnight",
)  # fmt: skip
_BUSY = Family("ojs.workers.busy", "ojs_workers_busy", "gauge", "jobs", "Jobs being executed")
_MAX_SIZE = Family(
    "ojs.queue.max_size", "ojs_queue_max_size", "gauge", "jobs", "Jobs a bounded queue may hold"
)  # fmt: skip
_UTILIZATION = Family(
    "ojs.queue.utilization", "ojs_queue_utilization_ratio", "gauge", "1",
    "Jobs in a bounded queue as a fraction of those it may hold",
)  # fmt: skip
_PRESSURE = Family(
    "ojs.backpressure.pressure", "ojs_backpressure_pressure_ratio", "gauge", "1",
    "How full a bounded queue is, in jobs or in bytes, whichever is nearer its bound",
)  # fmt: skip
_REJECTED = Family(
    "ojs.backpressure.rejected_total", "ojs_backpressure_rejected_total", "counter", "jobs",
    "Jobs refused by a full queue, since midnight",
)  # fmt: skip
_DROPPED = Family(
    "ojs.backpressure.dropped_total", "ojs_backpressure_dropped_total", "counter", "jobs",
    "Jobs discarded to make room for others, since midnight",
)  # fmt: skip
_OVERFLOW = Family(
    "ojs.queue.overflow.count", "ojs_queue_overflow_total", "counter", "jobs",
    "Jobs refused or discarded for want of room, by policy, since midnight",
)  # fmt: skip
_ACTIVE = Family(
    "ojs.workers.active", "ojs_workers_active", "gauge", "workers", "Workers that take jobs"
)
_QUEUES = Family("ojs.queues", "ojs_queues", "gauge", "queues", "Queues there are")
_LISTED = Family(
    "ojs.metrics.queues", "ojs_metrics_queues", "gauge", "queues",
    "Queues that these metrics tell of; fewer than ojs_queues when there are too many",
)  # fmt: skip
_LIMIT_ACTIVE = Family(
    "ojs.rate_limit.active", "ojs_rate_limit_active", "gauge", "jobs",
    "Active jobs of a key, where its jobs have a concurrency limit",
)  # fmt: skip
_LIMIT_WAITING = Family(
    "ojs.rate_limit.waiting", "ojs_rate_limit_waiting", "gauge", "jobs",
    "Jobs that wait for a key's limit, as counted in the last minute",
)  # fmt: skip
_LIMIT_EXCEEDED = Family(
    "ojs.rate_limit.exceeded_total", "ojs_rate_limit_exceeded_total", "counter", "times",
    "How often a limit began to hold jobs back; of queues, since midnight",
)  # fmt: skip
_LIMIT_WAIT = Family(
    "ojs.rate_limit.wait_duration", "ojs_rate_limit_wait_duration_seconds", "histogram", "seconds",
    "For how long a key held jobs back",
)  # fmt: skip
_DISPATCHED = Family(
    "ojs.scheduling.dispatch_total", "ojs_scheduling_dispatch_total", "counter", "jobs",
    "Jobs handed out to a worker pool, since midnight",
)  # fmt: skip
_RATIO = Family(
    "ojs.scheduling.dispatch_ratio", "ojs_scheduling_dispatch_ratio", "gauge", "1",
    "A queue's part of what the queues of its worker pool were given in the last minute",
)  # fmt: skip
_QUEUE_WAIT = Family(
    "ojs.scheduling.queue_wait_duration", "ojs_scheduling_queue_wait_duration_seconds",
    "histogram", "seconds",
    "How long jobs of queues in worker pools waited in line, since midnight",
)  # fmt: skip
_POOL_UTILIZATION = Family(
    "ojs.scheduling.pool_utilization", "ojs_scheduling_pool_utilization_ratio", "gauge", "1",
    "Active jobs of a worker pool as a fraction of those it may run",
)  # fmt: skip
_STARVED = Family(
    "ojs.scheduling.starvation_events", "ojs_scheduling_starvation_events_total", "counter",
    "times", "How often a queue was found starved, since midnight",
)  # fmt: skip
FAMILIES = (
    *_COUNTERS.values(), _DURATION, _QUEUE_TIME, _DEPTH, _OLDEST, _DEAD, _DEAD_ADDED,
    _DEAD_RETRIED, _DEAD_PRUNED, _BUSY, _MAX_SIZE,
    _UTILIZATION, _PRESSURE, _REJECTED, _DROPPED, _OVERFLOW, _LIMIT_ACTIVE, _LIMIT_WAITING,
    _LIMIT_EXCEEDED, _LIMIT_WAIT, _DISPATCHED, _RATIO, _QUEUE_WAIT, _POOL_UTILIZATION, _STARVED,
    _ACTIVE, _QUEUES, _LISTED,
)  # fmt: skip


@dataclass(frozen=True)
class Histogram:
    """Cumulative counts of observations up to each bound; the last count is of all."""

    counts: Sequence[int]
    bounds: Sequence[float]
    total: float

    @classmethod
    def of(cls, buckets: Sequence[int], bounds: Sequence[float], sum_ms: int) -> Histogram:
        """Build it from the number of observations in each bucket, and their sum in ms."""
        return cls(list(accumulate(buckets)), bounds, sum_ms / 1_000)


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    family: Family
    labels: Mapping[str, str]
    value: float | Histogram


def _of_queue(queue: QueueMetrics, now_ms: int) -> Iterator[Sample]:
    named = {"queue": queue.name}
    for counter in BY_TYPE:
        for job_type, count in sorted(queue.today.by_type.get(counter, {}).items()):
            yield Sample(_COUNTERS[counter], {**named, "type": job_type}, count)
    activity = queue.today.activity
    durations = Histogram.of(queue.today.durations, DURATION_BUCKETS_S, activity.run_ms)
    waits = Histogram.of(queue.today.queue_times, QUEUE_TIME_BUCKETS_S, activity.wait_ms)
    yield Sample(_DURATION, named, durations)
    yield Sample(_QUEUE_TIME, named, waits)
    for state in State:
        yield Sample(_DEPTH, {**named, "state": state.value}, queue.levels.of(state))
    since = queue.oldest_available_ms
    yield Sample(_OLDEST, named, 0 if since is None else max(0, now_ms - since) / 1_000)
    yield Sample(_DEAD, named, queue.levels.dead)
    for job_type, count in sorted(queue.today.dead_added.items()):
        yield Sample(_DEAD_ADDED, {**named, "type": job_type}, count)
    yield Sample(_DEAD_RETRIED, named, queue.today.dead_retried)
    yield Sample(_DEAD_PRUNED, named, queue.today.dead_pruned)
    yield Sample(_BUSY, named, queue.levels.of(State.ACTIVE))
    yield from _bounds(queue, named)
    if queue.pooled or queue.today.dispatched:
        for pool, count in sorted(queue.today.dispatched.items()):
            yield Sample(_DISPATCHED, {**named, "pool": pool}, count)
        yield Sample(_QUEUE_WAIT, named, waits)
        yield Sample(_STARVED, named, queue.today.starved)


def _bounds(queue: QueueMetrics, named: Mapping[str, str]) -> Iterator[Sample]:
    """The metrics of queues that have bounds or limits, or had some today."""
    filling, today = queue.filling, queue.today
    if filling is not None:
        if filling.max_size is not None and filling.utilization is not None:
            yield Sample(_MAX_SIZE, named, filling.max_size)
            yield Sample(_UTILIZATION, named, filling.utilization)
        yield Sample(_PRESSURE, named, filling.pressure)
    if filling is not None or today.rejected or today.dropped:
        yield Sample(_REJECTED, named, today.rejected)
        yield Sample(_DROPPED, named, today.dropped)
    for policy, count in sorted(today.overflow.items()):
        yield Sample(_OVERFLOW, {**named, "policy": policy}, count)
    for strategy, count in sorted(today.exceeded.items()):
        yield Sample(_LIMIT_EXCEEDED, {**named, "strategy": strategy}, count)


def _of_key(limit: LimitMetrics) -> Iterator[Sample]:
    named = {"key": limit.key}
    if limit.active is not None:
        yield Sample(_LIMIT_ACTIVE, named, limit.active)
    yield Sample(_LIMIT_WAITING, named, limit.waiting)
    if limit.exceeded:
        for strategy, count in sorted(limit.exceeded.items()):
            yield Sample(_LIMIT_EXCEEDED, {**named, "strategy": strategy}, count)
        waits = Histogram.of(limit.waits, QUEUE_TIME_BUCKETS_S, limit.waited_ms)
        yield Sample(_LIMIT_WAIT, named, waits)


def _of_pool(pool: PoolMetrics) -> Iterator[Sample]:
    if pool.utilization is not None:
        yield Sample(_POOL_UTILIZATION, {"pool": pool.name}, pool.utilization)
    for queue, ratio in pool.ratios.items():
        yield Sample(_RATIO, {"queue": queue}, ratio)


def _of_keys_and_pools(found: MetricsSnapshot) -> Iterator[Sample]:
    for limit in found.limits:
        yield from _of_key(limit)
    for pool in found.pools:
        yield from _of_pool(pool)


def _of_all(found: MetricsSnapshot, listed: int) -> Iterator[Sample]:
    yield Sample(_ACTIVE, {}, found.totals.workers.running)
    # The sweep may not have counted the latest queues yet.
    yield Sample(_QUEUES, {}, max(listed, found.totals.queues))
    yield Sample(_LISTED, {}, listed)


def wanted_format(query: Mapping[str, str]) -> str:
    """Read the format from a query, one of METRIC_FORMATS. Raises InvalidRequest."""
    text = query.get("format") or METRIC_FORMATS[0]
    if text not in METRIC_FORMATS:
        rule = f"must be one of {', '.join(METRIC_FORMATS)}"
        raise InvalidRequest("format", rule, value=text)
    return text


# --- Prometheus text ------------------------------------------------------------------------------


def text(found: MetricsSnapshot) -> str:
    """Metrics in Prometheus' text format; queues beyond MAX_TEXT_BYTES are left out."""
    lines: dict[Family, list[str]] = {family: [] for family in FAMILIES}
    room = MAX_TEXT_BYTES - _HEAD_BYTES
    for one in _of_keys_and_pools(found):
        lines[one.family] += (added := _lines(one))
        room -= sum(len(line) + 1 for line in added)
    listed = 0
    for queue in found.queues:
        of_queue = [
            (one.family, line) for one in _of_queue(queue, found.now_ms) for line in _lines(one)
        ]
        room -= sum(len(line) + 1 for _, line in of_queue)
        if room < 0:
            break
        listed += 1
        for family, line in of_queue:
            lines[family].append(line)
    for one in _of_all(found, listed):
        lines[one.family] += _lines(one)
    parts = []
    for family, of_family in lines.items():
        parts.append(f"# HELP {family.exported} {family.help}.")
        parts.append(f"# TYPE {family.exported} {family.kind}")
        parts += of_family
    return "\n".join([*parts, ""])


def _lines(sample: Sample) -> list[str]:
    name, labels, value = sample.family.exported, sample.labels, sample.value
    if not isinstance(value, Histogram):
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


def body(found: MetricsSnapshot) -> answers.MetricsAnswer:
    """Metrics as JSON; queues beyond MAX_JSON_BYTES are left out."""
    samples: dict[Family, list[answers.MetricSample]] = {family: [] for family in FAMILIES}
    room = MAX_JSON_BYTES - _HEAD_BYTES
    for one in _of_keys_and_pools(found):
        samples[one.family].append(shown := _shown(one))
        room -= jsontext.size_of(shown) + 1
    listed = 0
    for queue in found.queues:
        of_queue = [(one.family, _shown(one)) for one in _of_queue(queue, found.now_ms)]
        room -= sum(jsontext.size_of(shown) + 1 for _, shown in of_queue)
        if room < 0:
            break
        listed += 1
        for family, shown in of_queue:
            samples[family].append(shown)
    for one in _of_all(found, listed):
        samples[one.family].append(_shown(one))
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


def _shown(sample: Sample) -> answers.MetricSample:
    value = sample.value
    if not isinstance(value, Histogram):
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
