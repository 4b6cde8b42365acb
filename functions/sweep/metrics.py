"""Gauges for CloudWatch (ojs-observability section 8.3), in the embedded metric format.

    dimensions       metrics
    service          ojs.queue.oldest_age (of all queues the oldest), ojs.dead_letter.total,
                     ojs.workers.active
    service, state   ojs.queue.depth
    … and queue      ojs.queue.depth; ojs.queue.oldest_age, ojs.dead_letter.total, ojs.workers.busy;
                     of bounded queues ojs.queue.max_size, ojs.queue.utilization and
                     ojs.backpressure.pressure
    service, queue   of queues in worker pools ojs.scheduling.dispatch_ratio
    service, pool    of worker pools with a limit ojs.scheduling.pool_utilization
    service          ojs.workflow.stalled, where workflows were looked at that stand still
    service, group   of groups of workers that are scaled ojs.workers.backlog, jobs that wait or run
                     for each worker, while there is one; ojs.workers.missing, 1 while jobs wait
                     and there is none

Alarms use those without a queue, because an alarm cannot cover queues that do not exist yet.

CloudWatch charges for each metric and hour in which it is written. Of those without a queue a zero
is not written: what is missing is zero, and a deployment in which nothing happens pays for one
metric, the dead letters. An alarm looks at how many more these are, which takes a number to begin
with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from ojs.domain.counters import definitions as rows
from ojs.domain.job.states import TERMINAL, State
from ojs.domain.stats import Levels, PoolMetrics, QueueGauges
from ojs.services.operations.metrics_sweep import MetricsReport

NAMESPACE = "OJS"
# CloudWatch charges for each metric.
MAX_POOLS = 100

_UNITS = {"seconds": MetricUnit.Seconds, "1": MetricUnit.NoUnit}
# Of each queue: the gauges that its counters say.
_OF_QUEUE = [row for row in rows.ROWS if row.kind == "gauge" and row.by is None]


def write(
    seen: MetricsReport, *, service: str, most: int | None, always: Sequence[str] = ()
) -> None:
    """Write the gauges of a metrics sweep to standard output, which CloudWatch reads: of the `most`
    queues with the most jobs, or of all, and of the queues in `always`.
    """
    if seen.totals is not None:
        ages = (rows.OLDEST_AGE.value(gauges, seen.at_ms) for gauges in seen.queues)
        values = {
            rows.OLDEST_AGE: max(ages, default=0),
            rows.ACTIVE_WORKERS: seen.totals.workers.running,
        }
        _put(service, {}, {rows.DEAD_LETTERS: seen.totals.levels.dead, **_above_zero(values)})
        for state, depth in _depths(seen.totals.levels).items():
            _put(service, {"state": state.value}, _above_zero({rows.DEPTH: depth}))
    for backlog in seen.backlogs:
        group = {"group": backlog.group}
        if backlog.per_worker is not None:
            _put(service, group, {rows.BACKLOG: backlog.per_worker})
        elif backlog.stranded:
            _put(service, group, {rows.MISSING: 1})
    for gauges in _fullest(seen.queues, most, always):
        queue = {"queue": gauges.queue.name}
        found = {row: row.value(gauges, seen.at_ms) for row in _OF_QUEUE}
        _put(service, queue, {row: value for row, value in found.items() if value is not None})
        for state, depth in _depths(gauges.levels).items():
            _put(service, {**queue, "state": state.value}, {rows.DEPTH: depth})


def write_pools(pools: Sequence[PoolMetrics], *, service: str, most: int | None) -> None:
    """Write the metrics of the first worker pools by name, and of the first `most` of their queues,
    or of all.
    """
    for pool in pools[:MAX_POOLS]:
        if pool.utilization is not None:
            _put(service, {"pool": pool.name}, {rows.POOL_UTILIZATION: pool.utilization})
    ratios = {name: ratio for pool in pools for name, ratio in pool.ratios.items()}
    for name in list(ratios)[:most]:
        _put(service, {"queue": name}, {rows.DISPATCH_RATIO: ratios[name]})


def write_stalled(workflows: int, *, service: str) -> None:
    """Write how many workflows were looked at in which nothing happens."""
    _put(service, {}, {rows.STALLED: workflows})


def _fullest(
    queues: Sequence[QueueGauges], most: int | None, always: Sequence[str]
) -> list[QueueGauges]:
    """The queues with the most jobs, dead letters included, and those in `always`, by name."""

    def size(gauges: QueueGauges) -> int:
        return gauges.levels.depth + gauges.levels.dead

    named = [gauges for gauges in queues if gauges.queue.name in always]
    others = [gauges for gauges in queues if gauges.queue.name not in always]
    fullest = sorted(others, key=size, reverse=True)[:most]
    return sorted([*named, *fullest], key=lambda gauges: gauges.queue.name)


def _depths(levels: Levels) -> dict[State, int]:
    # Zeros matter, since a count may have been higher before. Final states are left out at zero.
    depths = {state: levels.of(state) for state in State}
    return {state: depth for state, depth in depths.items() if depth or state not in TERMINAL}


def _above_zero(values: Mapping[rows.Metric, float]) -> dict[rows.Metric, float]:
    return {metric: value for metric, value in values.items() if value}


def _put(service: str, dimensions: Mapping[str, str], values: Mapping[rows.Metric, float]) -> None:
    if not values:
        return
    # A namespace set in the environment takes precedence.
    namespace = EphemeralMetrics().namespace or NAMESPACE
    metrics = EphemeralMetrics(namespace=namespace, service=service)
    for name, text in dimensions.items():
        metrics.add_dimension(name, text)
    for metric, value in values.items():
        metrics.add_metric(metric.name, _UNITS.get(metric.unit, MetricUnit.Count), value)
    metrics.flush_metrics()
