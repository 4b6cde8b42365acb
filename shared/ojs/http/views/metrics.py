"""Metrics, as Prometheus text and as JSON.

The names are those of ojs-observability section 8 and of the extensions. Counters and histograms
start again at midnight UTC; `rate` and `increase` of Prometheus handle such resets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, TypeVar

from ojs.domain import jsontext, times
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
from ojs.records import record

if TYPE_CHECKING:
    from ojs.http.contract import answers

S = TypeVar("S")

# Exactly this text, without a charset: the specification's scrapers look for it.
TEXT_TYPE = "text/plain"
# Lambda sends at most 6 MB, counted after the body is quoted as a JSON text: that hardly lengthens
# text, and at most doubles JSON. Queues that do not fit are left out.
MAX_TEXT_BYTES = 4_000_000
MAX_JSON_BYTES = 2_500_000
# Reserved for the heads of all metrics, and for those of all queues together.
_HEAD_BYTES = 10_000

_SUFFIXES = {"jobs": "", "workers": "", "queues": "", "seconds": "_seconds", "1": "_ratio"}


@record(frozen=True)
class Family:
    """A metric: its name in the specification, its kind, unit and help text."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    help: str

    @property
    def exported(self) -> str:
        """Its name in Prometheus, whose suffix says what is counted or measured."""
        suffix = "_total" if self.kind == "counter" else _SUFFIXES[self.unit]
        name = self.name.replace(".", "_").removesuffix("_count").removesuffix(suffix)
        return f"{name}{suffix}"


def _counter(name: str, help_text: str, unit: str = "jobs") -> Family:
    return Family(name, "counter", unit, f"{help_text}, since midnight")


def _gauge(name: str, unit: str, help_text: str) -> Family:
    return Family(name, "gauge", unit, help_text)


def _histogram(name: str, help_text: str) -> Family:
    return Family(name, "histogram", "seconds", help_text)


# fmt: off
_COUNTERS = {
    "enqueued": _counter("ojs.job.enqueued", "Jobs that became available"),
    "completed": _counter("ojs.job.completed", "Jobs that were completed"),
    "failed": _counter("ojs.job.failed", "Jobs that were discarded"),
    "retried": _counter("ojs.job.retried", "Jobs that are to be tried again"),
    "cancelled": _counter("ojs.job.cancelled", "Jobs that were cancelled"),
    "expired": _counter("ojs.job.expired", "Jobs that were not started in time"),
}
_DURATION = _histogram("ojs.job.duration", "How long attempts ran, since midnight")
_QUEUE_TIME = _histogram("ojs.job.queue_time", "How long jobs waited in line, since midnight")
_DEPTH = _gauge("ojs.queue.depth", "jobs", "Jobs by queue and state")
_OLDEST = _gauge("ojs.queue.oldest_age", "seconds",
    "For how long the oldest available job has been so; 0 when there is none")
_DEAD = _gauge("ojs.dead_letter.total", "jobs", "Dead letters by queue")
_DEAD_ADDED = _counter("ojs.dead_letter.added_total", "Jobs that entered dead letter")
_DEAD_RETRIED = _counter("ojs.dead_letter.retried_total", "Dead letters that were retried by hand")
_DEAD_PRUNED = _counter("ojs.dead_letter.pruned_total", "Dead letters that were pruned")
_BUSY = _gauge("ojs.workers.busy", "jobs", "Jobs being executed")
_MAX_SIZE = _gauge("ojs.queue.max_size", "jobs", "Jobs a bounded queue may hold")
_UTILIZATION = _gauge("ojs.queue.utilization", "1",
    "Jobs in a bounded queue as a fraction of those it may hold")
_PRESSURE = _gauge("ojs.backpressure.pressure", "1",
    "How full a bounded queue is, in jobs or in bytes, whichever is nearer its bound")
_REJECTED = _counter("ojs.backpressure.rejected_total", "Jobs refused by a full queue")
_DROPPED = _counter("ojs.backpressure.dropped_total", "Jobs discarded to make room for others")
_OVERFLOW = _counter("ojs.queue.overflow.count",
    "Jobs refused or discarded for want of room, by policy")
_LIMIT_ACTIVE = _gauge("ojs.rate_limit.active", "jobs",
    "Active jobs of a key, where its jobs have a concurrency limit")
_LIMIT_WAITING = _gauge("ojs.rate_limit.waiting", "jobs",
    "Jobs that wait for a key's limit, as counted in the last minute")
_LIMIT_EXCEEDED = _counter("ojs.rate_limit.exceeded_total",
    "How often a limit began to hold jobs back; of queues", "times")
_LIMIT_WAIT = _histogram("ojs.rate_limit.wait_duration", "For how long a key held jobs back")
_DISPATCHED = _counter("ojs.scheduling.dispatch_total", "Jobs handed out to a worker pool")
_RATIO = _gauge("ojs.scheduling.dispatch_ratio", "1",
    "A queue's part of what the queues of its worker pool were given in the last minute")
_QUEUE_WAIT = _histogram("ojs.scheduling.queue_wait_duration",
    "How long jobs of queues in worker pools waited in line, since midnight")
_POOL_UTILIZATION = _gauge("ojs.scheduling.pool_utilization", "1",
    "Active jobs of a worker pool as a fraction of those it may run")
_STARVED = _counter("ojs.scheduling.starvation_events",
    "How often a queue was found starved", "times")
_ACTIVE = _gauge("ojs.workers.active", "workers", "Workers that take jobs")
_QUEUES = _gauge("ojs.queues", "queues", "Queues there are")
_LISTED = _gauge("ojs.metrics.queues", "queues",
    "Queues that these metrics tell of; fewer than ojs_queues when there are too many")
FAMILIES = (
    *_COUNTERS.values(), _DURATION, _QUEUE_TIME, _DEPTH, _OLDEST, _DEAD, _DEAD_ADDED,
    _DEAD_RETRIED, _DEAD_PRUNED, _BUSY, _MAX_SIZE, _UTILIZATION, _PRESSURE, _REJECTED, _DROPPED,
    _OVERFLOW, _LIMIT_ACTIVE, _LIMIT_WAITING, _LIMIT_EXCEEDED, _LIMIT_WAIT, _DISPATCHED, _RATIO,
    _QUEUE_WAIT, _POOL_UTILIZATION, _STARVED, _ACTIVE, _QUEUES, _LISTED,
)
# fmt: on


@record(frozen=True)
class Histogram:
    """Cumulative counts of observations up to each bound; the last count is of all."""

    counts: Sequence[int]
    bounds: Sequence[float]
    total: float

    @classmethod
    def of(cls, buckets: Sequence[int], bounds: Sequence[float], sum_ms: int) -> Histogram:
        """Build it from the number of observations in each bucket, and their sum in ms."""
        return cls(list(accumulate(buckets)), bounds, sum_ms / 1_000)


@record(frozen=True)
class Sample:
    """One value of a metric."""

    family: Family
    labels: Mapping[str, str]
    value: float | Histogram


def _of_queue(found: QueueMetrics, now_ms: int) -> Iterator[Sample]:
    named = {"queue": found.queue.name}
    for counter in BY_TYPE:
        for job_type, count in sorted(found.today.by_type.get(counter, {}).items()):
            yield Sample(_COUNTERS[counter], {**named, "type": job_type}, count)
    activity = found.today.activity
    durations = Histogram.of(found.today.durations, DURATION_BUCKETS_S, activity.run_ms)
    waits = Histogram.of(found.today.queue_times, QUEUE_TIME_BUCKETS_S, activity.wait_ms)
    yield Sample(_DURATION, named, durations)
    yield Sample(_QUEUE_TIME, named, waits)
    for state in State:
        yield Sample(_DEPTH, {**named, "state": state.value}, found.levels.of(state))
    since = found.oldest_available_ms
    yield Sample(_OLDEST, named, 0 if since is None else max(0, now_ms - since) / 1_000)
    yield Sample(_DEAD, named, found.levels.dead)
    for job_type, count in sorted(found.today.dead_added.items()):
        yield Sample(_DEAD_ADDED, {**named, "type": job_type}, count)
    yield Sample(_DEAD_RETRIED, named, found.today.dead_retried)
    yield Sample(_DEAD_PRUNED, named, found.today.dead_pruned)
    yield Sample(_BUSY, named, found.levels.of(State.ACTIVE))
    yield from _bounds(found, named)
    if found.queue.pools or found.today.dispatched:
        for pool, count in sorted(found.today.dispatched.items()):
            yield Sample(_DISPATCHED, {**named, "pool": pool}, count)
        yield Sample(_QUEUE_WAIT, named, waits)
        yield Sample(_STARVED, named, found.today.starved)


def _bounds(found: QueueMetrics, named: Mapping[str, str]) -> Iterator[Sample]:
    """The metrics of queues that have bounds or limits, or had some today."""
    filling, today = found.filling, found.today
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


def _fitting(
    found: MetricsSnapshot, shown: Callable[[Sample], list[S]], size: Callable[[S], int], most: int
) -> dict[Family, list[S]]:
    """All samples by family, as `shown` has them; queues that do not fit into `most` are left out.

    `size` is in bytes, without what separates two samples.
    """
    by_family: dict[Family, list[S]] = {family: [] for family in FAMILIES}
    room = most - _HEAD_BYTES

    def add(samples: Iterable[Sample], *, whole: bool) -> bool:
        nonlocal room
        added = [(sample.family, one) for sample in samples for one in shown(sample)]
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
    """Metrics in Prometheus' text format; queues beyond MAX_TEXT_BYTES are left out."""
    parts = []
    for family, lines in _fitting(found, _lines, len, MAX_TEXT_BYTES).items():
        parts.append(f"# HELP {family.exported} {family.help}.")
        parts.append(f"# TYPE {family.exported} {family.kind}")
        parts += lines
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
