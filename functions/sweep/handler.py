"""Runs the sweeps once a minute.

Time transitions run first, then bulk operations and other unfinished work, then corrections of
counters, and metrics last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from aws_lambda_powertools import Logger

from functions.sweep import metrics
from ojs import runtime
from ojs.domain.errors import OjsError
from ojs.records import record
from ojs.runtime import Runtime
from ojs.services.sweeps import (
    GoOn,
    Sweep,
    SweepCounts,
    SweepFailure,
    SweepLimit,
    SweepReport,
    counting_failures,
)

if TYPE_CHECKING:
    from ojs.services.dead_letter.replay import ReplayReport
    from ojs.services.operations.metrics_sweep import MetricsReport
    from ojs.services.pools.health_sweep import PoolHealthReport

logger = Logger()

# Jobs moved by one pass of the job sweep. Each pass reads the clock again.
PASS_LIMIT = 1_000
MAX_PASSES = 50
# A sweep ends when less than this time (ms) remains before Lambda stops the function. So the later
# sweeps still run, however much work one of them has. Alarms watch the metrics, which run last.
SPARE_MS = 20_000
BULK_SPARE_MS = 16_000
RECONCILE_SPARE_MS = 12_000
DEAD_LETTERS_SPARE_MS = 8_000
GAUGES_SPARE_MS = 5_000
RECOUNTS = 50
PROBES = 1_000
_DEFAULT_MS = 55_000
_WHOLE = "the whole sweep"
_USUAL_COUNTS = frozenset({"unbounded", "bounded", "counted", "slotted"})
_warned: WeakSet[Runtime] = WeakSet()


@record(frozen=True)
class SweepConfig:
    """Parameters of one sweep: its limit, the time for later sweeps, and its log message."""

    # Maximum per run. The next minute continues with other queues, pools, or jobs.
    limit: int
    spare_ms: int
    # Logged with the counts, unless only `usual` counts are above zero.
    message: str = ""
    usual: frozenset[str] = frozenset()
    passes: int = 1


PARTS = {
    "jobs": SweepConfig(PASS_LIMIT, SPARE_MS, passes=MAX_PASSES),
    # Workflows to check.
    "workflows": SweepConfig(200, BULK_SPARE_MS, "Workflows checked"),
    # Queues of deliveries.
    "deliveries": SweepConfig(2_000, BULK_SPARE_MS),
    # Deliveries of each webhook.
    "webhooks": SweepConfig(500, BULK_SPARE_MS),
    # Dead letters that bulk operations retry or purge.
    "bulk": SweepConfig(10_000, BULK_SPARE_MS, "Bulk operations continued", frozenset({"more"})),
    # Jobs that get start tags.
    "fairness_backfill": SweepConfig(
        10_000, BULK_SPARE_MS, "Start tags set", frozenset({"tagging", "passes"})
    ),
    # Queues whose jobs are recounted.
    "reconcile": SweepConfig(
        RECOUNTS, RECONCILE_SPARE_MS, "Queue counters reconciled", _USUAL_COUNTS
    ),
    # Workers whose permits are counted.
    "pool_permits": SweepConfig(2_000, RECONCILE_SPARE_MS, "Pool permits repaired", _USUAL_COUNTS),
    # Limits that throttle.
    "throttle": SweepConfig(100, RECONCILE_SPARE_MS, "Rate limits checked", frozenset({"holding"})),
    # Cron jobs to recompute after the rules of time zones have changed.
    "zones": SweepConfig(5_000, DEAD_LETTERS_SPARE_MS, "Cron jobs rescheduled"),
    # Dead letters that replay rules check, and that are pruned.
    "replay": SweepConfig(
        10_000, DEAD_LETTERS_SPARE_MS, "Dead letters replayed", frozenset({"looked"})
    ),
    "prune": SweepConfig(10_000, DEAD_LETTERS_SPARE_MS, "Dead letters pruned"),
    # Worker pools.
    "pool_health": SweepConfig(
        100, DEAD_LETTERS_SPARE_MS, "Worker pools checked", frozenset({"pools"})
    ),
    # Queues that are checked before they become idle.
    "rest": SweepConfig(500, DEAD_LETTERS_SPARE_MS),
    # Reads to find the oldest jobs.
    "metrics": SweepConfig(PROBES, GAUGES_SPARE_MS),
}


class SweepFailed(Exception):
    """A part of this minute's sweeps failed. The rest is done, and each failure is logged."""


def handler(event: Mapping[str, Any], context: object) -> dict[str, int]:
    """Run every sweep.

    Returns:
        The counts of the job sweep, with `more` if it could not finish.

    Raises:
        SweepFailed: A part failed. Raised after all sweeps, so that the alarm detects it.
    """
    current = runtime.current()
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    end_ms = current.clock.now_ms() + _DEFAULT_MS

    def more_than(spare_ms: int) -> GoOn:
        def left_ms() -> float:
            left_ms = remaining() if callable(remaining) else end_ms - current.clock.now_ms()
            return float(left_ms) - spare_ms

        return SweepLimit(left_ms)

    reports: dict[str, SweepReport] = {}
    failed: list[str] = []
    # The ID of EventBridge's event. It is in all log lines below this call.
    logger.thread_safe_append_keys(correlation_id=event.get("id"))
    try:
        with current.sweep_queues.shared():
            for sweep in current.sweeps():
                part = PARTS[sweep.name]
                report = _run(current, sweep, part, more_than(part.spare_ms))
                current.flush()
                problems = SweepCounts()
                problems.failures += report.failures
                if (reporter := _REPORTERS.get(sweep.name)) and not _broke_off(report):
                    with counting_failures(problems, "the report"):
                        reporter(current, report)
                if part.message and report.has_news(part.usual):
                    logger.info(part.message, extra={"counts": dict(report)})
                reports[sweep.name] = report
                if problems.failures:
                    failed.append(sweep.name)
                    _tell_of(sweep.name, problems.failures)
        late = SweepCounts()
        with counting_failures(late, "the event bus"):
            _publish_later(current, more_than(GAUGES_SPARE_MS))
        if late.failures:
            failed.append("bus")
            _tell_of("bus", late.failures)
    finally:
        logger.thread_safe_remove_keys(["correlation_id"])
    if failed:
        raise SweepFailed(f"These steps of the sweep failed: {', '.join(failed)}.")
    return dict(reports["jobs"])


def _publish_later(current: Runtime, go_on: GoOn) -> None:
    """Publish events that the bus rejected earlier."""
    from ojs import projections

    pages = projections.publish_later(
        current.settings, current.table, go_on, hooks=current.webhook_matcher, sleep=current.sleep
    )
    if pages:
        logger.info("Delayed events published", extra={"pages": pages})


def _tell_of(sweep: str, failures: Iterable[SweepFailure]) -> None:
    """Log each failure in one line, with a stack trace if it is unexpected."""
    for failure in failures:
        error = failure.error
        logger.error(
            "Part of a sweep failed",
            extra={
                "sweep": sweep,
                "what": failure.what,
                "error": type(error).__name__,
                "reason": str(error),
            },
            exc_info=None if isinstance(error, OjsError) else error,
        )


def _broke_off(report: SweepReport) -> bool:
    """Return whether the sweep failed without a report."""
    return any(failure.what == _WHOLE for failure in report.failures) and report.counts.keys() <= {
        "failed"
    }


def _run(current: Runtime, sweep: Sweep, part: SweepConfig, go_on: GoOn) -> SweepReport:
    """Run a sweep. One with several passes runs until it is done, only fails, or its time is up.

    An error is returned in the report, because a failing sweep must not stop later ones.
    """
    counts = SweepCounts()
    reports: list[SweepReport] = []
    if part.passes == 1:
        with counting_failures(counts, _WHOLE):
            reports.append(sweep.run_once(current.clock.now_ms(), part.limit, go_on))
        return reports[0] if reports else SweepReport(counts, failures=counts.failures)
    more = True
    failures: list[SweepFailure] = []
    for _ in range(part.passes):
        if not (more and go_on()):
            break
        report = SweepReport()
        with counting_failures(counts, _WHOLE):
            report = sweep.run_once(current.clock.now_ms(), part.limit, go_on)
        more = report.more
        failures += [one for one in report.failures if one.what not in {f.what for f in failures}]
        done = {name: count for name, count in report.items() if name != "more"}
        counts.update(done)
        # Jobs that can't be moved now would be found again in each pass. The next minute retries
        # them.
        if done and done.keys() <= {"failed"}:
            break
    result = {name: count for name, count in counts.items() if count}
    return SweepReport(
        result | ({"more": 1} if more else {}), failures=[*failures, *counts.failures]
    )


# --- reports in addition to the counts -----------------------------------------------------------


def _swept(_: Runtime, report: SweepReport) -> None:
    if result := {name: count for name, count in report.items() if name != "more"}:
        logger.info("Sweep completed", extra={"counts": result, "more": report.more})


def _reconciled(current: Runtime, report: SweepReport) -> None:
    """Warn operators of queues without a size limit, once per container."""
    if report.get("unbounded") and current not in _warned:
        _warned.add(current)
        logger.warning("Queues without a size limit found", extra={"count": report["unbounded"]})


def _checked_workflows(current: Runtime, report: SweepReport) -> None:
    """Warn operators of stalled workflows, once an hour for each workflow."""
    if stalled := report.get("stalled"):
        logger.warning("Stalled workflows found", extra={"count": stalled})
        metrics.write_stalled(stalled, service=current.settings.service)


def _replayed(_: Runtime, report: ReplayReport) -> None:
    for skipped in report.skipped:
        # For example, it is a duplicate, or its queue no longer allows its type.
        logger.warning("Replaying a dead letter failed", extra=asdict(skipped))


def _checked_pools(current: Runtime, report: PoolHealthReport) -> None:
    metrics.write_pools(report.pools, current.settings)


def _measured(current: Runtime, report: MetricsReport) -> None:
    logger.debug("Metrics measured", extra={"counts": dict(report)})
    metrics.write(report, current.settings)


_REPORTERS: Mapping[str, Any] = {
    "jobs": _swept,
    "workflows": _checked_workflows,
    "reconcile": _reconciled,
    "replay": _replayed,
    "pool_health": _checked_pools,
    "metrics": _measured,
}


runtime.prepare("sweep")
