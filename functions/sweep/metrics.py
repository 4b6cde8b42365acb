"""Gauges for CloudWatch (ojs-observability section 8.3), in the embedded metric format.

    level        dimensions       metrics
    alarms       service          ojs.queue.oldest_age (the largest of all queues), from a third of
                                  the threshold of its alarm on
    alarms       service          ojs.workflow.stalled, if there are stalled workflows
    alarms       service, group   of scaled groups of workers: ojs.workers.backlog, jobs per worker;
                                  ojs.workers.missing, 1 while jobs wait and no worker runs
    deployment   service          ojs.queue.oldest_age, ojs.dead_letter.total, ojs.workers.active
    deployment   service, state   ojs.queue.depth
    deployment   service, pool    of worker pools with a limit: ojs.scheduling.pool_utilization
    queues       … and queue      ojs.queue.depth; ojs.queue.oldest_age, ojs.dead_letter.total,
                                  ojs.workers.busy; of queues with a size limit
                                  ojs.queue.max_size, ojs.queue.utilization and
                                  ojs.backpressure.pressure
    queues       service, queue   of queues in worker pools: ojs.scheduling.dispatch_ratio

A level includes those above it. `metric_queues` names queues whose oldest job and dead letters are
written at each level, also zeros. `*` means the total of all queues.

CloudWatch charges for each metric and hour in which it is written. The metrics of a deployment as a
whole are therefore not written while they are zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from ojs.domain.counters import definitions as rows
from ojs.domain.job.states import TERMINAL, State
from ojs.domain.stats import PoolMetrics, QueueGauges, StateCounts
from ojs.services.operations.metrics_sweep import MetricsReport
from ojs.settings import Settings

NAMESPACE = "OJS"
# CloudWatch charges for each metric.
MAX_POOLS = 100

_UNITS = {"seconds": MetricUnit.Seconds, "1": MetricUnit.NoUnit}
# Gauges of a queue that its counters contain.
_OF_QUEUE = [row for row in rows.ROWS if row.kind == "gauge" and row.by is None]


def write(seen: MetricsReport, settings: Settings) -> None:
    """Write the gauges of a metrics sweep to standard output, which CloudWatch reads.

    Args:
        seen: What the sweep measured.
        settings: The level, the named queues, and how many other queues have gauges.
    """
    service, always = settings.service, settings.metric_queues
    if seen.totals is not None:
        ages = (rows.OLDEST_AGE.value(gauges, seen.at_ms) for gauges in seen.queues)
        whole: dict[rows.Metric, float] = {
            rows.OLDEST_AGE: max(ages, default=0),
            rows.DEAD_LETTERS: seen.totals.levels.dead,
            rows.ACTIVE_WORKERS: seen.totals.workers.running,
        }
        named = _named(whole) if "*" in always else {}
        least: dict[rows.Metric, float] = {}
        if settings.metrics == "alarms":
            whole = {rows.OLDEST_AGE: whole[rows.OLDEST_AGE]}
            least[rows.OLDEST_AGE] = settings.alarm_oldest_job_s * rows.NEAR_ALARM
        _put(service, {}, _from(whole, least) | named)
        if settings.metrics != "alarms":
            for state, depth in _depths(seen.totals.levels).items():
                _put(service, {"state": state.value}, _from({rows.DEPTH: depth}))
    for backlog in seen.backlogs:
        group = {"group": backlog.group}
        if backlog.per_worker is not None:
            _put(service, group, {rows.BACKLOG: backlog.per_worker})
        elif backlog.stranded:
            _put(service, group, {rows.MISSING: 1})
    metered = settings.metrics == "queues"
    for gauges in _chosen(seen.queues, settings.metered_queues, always):
        queue = {"queue": gauges.queue.name}
        found = {row: row.value(gauges, seen.at_ms) for row in _OF_QUEUE}
        found = {row: value for row, value in found.items() if value is not None}
        _put(service, queue, found if metered else _named(found))
        for state, depth in _depths(gauges.levels).items() if metered else ():
            _put(service, {**queue, "state": state.value}, {rows.DEPTH: depth})


def write_pools(pools: Sequence[PoolMetrics], settings: Settings) -> None:
    """Write the metrics of the first worker pools by name, and of the first of their queues."""
    if settings.metrics == "alarms":
        return
    for pool in pools[:MAX_POOLS]:
        if pool.utilization is not None:
            _put(settings.service, {"pool": pool.name}, {rows.POOL_UTILIZATION: pool.utilization})
    ratios = {name: ratio for pool in pools for name, ratio in pool.ratios.items()}
    for name in list(ratios)[: settings.metered_queues]:
        _put(settings.service, {"queue": name}, {rows.DISPATCH_RATIO: ratios[name]})


def write_stalled(workflows: int, *, service: str) -> None:
    """Write the number of stalled workflows."""
    _put(service, {}, {rows.STALLED: workflows})


def _chosen(
    queues: Sequence[QueueGauges], most: int | None, always: Sequence[str]
) -> list[QueueGauges]:
    """Return the largest queues by jobs, dead letters included, and those in `always`, by name."""

    def size(gauges: QueueGauges) -> int:
        return gauges.levels.depth + gauges.levels.dead

    named = [gauges for gauges in queues if gauges.queue.name in always]
    others = [gauges for gauges in queues if gauges.queue.name not in always]
    fullest = sorted(others, key=size, reverse=True)[:most]
    return sorted([*named, *fullest], key=lambda gauges: gauges.queue.name)


def _depths(levels: StateCounts) -> dict[State, int]:
    # Write zeros, because a count can have been higher before. Final states at zero are left out.
    depths = {state: levels.of(state) for state in State}
    return {state: depth for state, depth in depths.items() if depth or state not in TERMINAL}


def _from(
    values: Mapping[rows.Metric, float], least: Mapping[rows.Metric, float] | None = None
) -> dict[rows.Metric, float]:
    """Return the values that are above zero, and at least as large as `least` requires."""
    least = least or {}
    return {row: value for row, value in values.items() if value and value >= least.get(row, 0)}


def _named(values: Mapping[rows.Metric, float]) -> dict[rows.Metric, float]:
    return {row: values[row] for row in (rows.OLDEST_AGE, rows.DEAD_LETTERS)}


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
