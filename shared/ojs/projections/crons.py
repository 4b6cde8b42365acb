"""Events of cron jobs, derived from new entries of their run logs.

ojs-cron (section 9) and ojs-events (section 4.5) use different field names. Events have both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ojs.domain import times
from ojs.domain.counters.definitions import FIRED, SKIPPED
from ojs.domain.cron.cron import CronRun, SkipReason
from ojs.domain.events.types import EventType
from ojs.projections.changes import DayCount, NewEvent, TableChange
from ojs.records import record

# No queue has this name.
_UNCOUNTED = frozenset({SkipReason.QUEUE_NOT_FOUND})


@record(frozen=True)
class CronRunChange(TableChange):
    """A new entry of a cron job's run log."""

    run: CronRun

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Return the event of a tick that created a job or was skipped."""
        run = self.run
        scheduled = times.format_ms(run.at_ms if run.scheduled_ms is None else run.scheduled_ms)
        data: dict[str, Any] = {
            "cron_name": run.name,
            "cron_expression": run.expression,
            "cron_expr": run.expression,
            "timezone": run.timezone,
            "job_type": run.job_type,
            "queue": run.queue,
            "run_count": run.runs,
            "scheduled_time": scheduled,
            "scheduled_at": scheduled,
            "actual_time": times.format_ms(run.at_ms),
        }
        kind = EventType.CRON_TRIGGERED
        if run.reason is None:
            data |= {"job_id": run.job_id, "manual": run.manual}
            data |= {"waiting_jobs": run.waiting} if run.waiting else {}
        else:
            kind = EventType.CRON_SKIPPED
            data["reason"] = run.reason.value
            optional = {
                "active_job_id": run.active_job_id,
                "existing_job_id": run.active_job_id,
                "local_time": run.local,
                "skipped_count": run.count or None,
                "message": run.error,
            }
            data |= {name: value for name, value in optional.items() if value is not None}
        yield NewEvent(kind, run.at_ms, run.name, ("cron",), data)

    def counts(self, written_ms: int) -> Iterator[DayCount]:
        """Return the number of cron ticks of a queue by outcome.

        The count also marks the queue as active in the registry, so that the sweep reads it until
        the next tick (ADR 24).
        """
        run = self.run
        if run.reason not in _UNCOUNTED:
            name = FIRED.attribute if run.reason is None else SKIPPED.attribute + run.reason
            yield DayCount(run.queue, run.at_ms, name)
