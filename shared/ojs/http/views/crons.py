"""Cron jobs as answers show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ojs.domain import times
from ojs.domain.cron.cron import Cron, CronRun
from ojs.domain.cron.definition import TEMPLATE
from ojs.domain.cron.schedule import Firing
from ojs.domain.job.job import Job
from ojs.domain.page import Page
from ojs.http.binding import paging
from ojs.http.views import jobs as job_views
from ojs.http.views.jobs import MAX_ANSWER_BYTES, sent_bytes

if TYPE_CHECKING:
    from ojs.http.contract import answers

# The largest template that is shown at each place of an answer about one cron job, and in a list:
# it stands in an answer up to six times, and a list has up to two hundred cron jobs.
_MAX_COPY_BYTES = 400_000
_MAX_LISTED_BYTES = 4_000
_AROUND_BYTES = 50_000
_PARTS = ("args", "meta", "options")


def shown(cron: Cron, *, most: int = _MAX_COPY_BYTES) -> answers.Cron:
    """A cron job; without its template, if that takes more than `most` bytes."""
    definition = cron.definition
    # It has no next tick if `ends_at` comes before it.
    status = "paused" if not cron.enabled else "active" if cron.tick_ms is not None else "ended"
    template = {"args": [], "meta": {}, "options": {}, **definition.template}
    fields: dict[str, Any] = {
        "name": cron.name,
        "id": cron.name,
        "expression": definition.expression,
        "cron": definition.expression,
        "schedule": definition.expression,
        "timezone": definition.timezone,
        "type": template["type"],
        "queue": definition.queue,
    }
    if sent_bytes(template) > most:
        fields["omitted"] = [*_PARTS, TEMPLATE]
    else:
        fields |= {name: template[name] for name in _PARTS} | {TEMPLATE: template}
    fields |= {
        "overlap_policy": definition.overlap.value,
        "enabled": cron.enabled,
        "status": status,
        "description": definition.description,
        "pause_on_failure": definition.pause_on_failure,
        "last_run_at": _moment(cron.last_ms),
        "next_run_at": _moment(cron.tick_ms),
        "last_job_id": cron.last_job_id,
        "run_count": cron.runs,
        "created_at": times.format_ms(cron.created_ms),
        "updated_at": times.format_ms(cron.updated_ms),
    }
    if cron.line:
        fields["created_by"] = cron.line[-1]
    lengths = (("catchup_window", definition.catchup_ms), ("jitter", definition.jitter_ms))
    moments = (("starts_at", definition.starts_ms), ("ends_at", definition.ends_ms))
    fields |= {name: times.round_duration(ms) for name, ms in lengths if ms}
    fields |= {name: times.format_ms(ms) for name, ms in moments if ms is not None}
    return cast("answers.Cron", fields)


def _moment(ms: int | None) -> str | None:
    return None if ms is None else times.format_ms(ms)


def detail(cron: Cron, warnings: Sequence[str] = ()) -> answers.CronSetAnswer:
    """One cron job, at the top level and wrapped under both names."""
    shown_ = shown(cron)
    whole = shown_
    if "omitted" in shown_ and sent_bytes(cron.definition.template) < MAX_ANSWER_BYTES // 2:
        # Once, then.
        template = cast("answers.CronTemplate", dict(cron.definition.template))
        whole = {**shown_, "job_template": template, "omitted": list(_PARTS)}
    top = {**shown_, "cron": shown_, "cron_job": whole}
    return cast("answers.CronSetAnswer", top | ({"warnings": list(warnings)} if warnings else {}))


def deleted(cron: Cron) -> answers.CronDeletedAnswer:
    """A cron job that was deleted, as it was."""
    was = shown(cron)
    return {"deleted": True, "name": cron.name, "cron": was, "cron_job": was}


def page(found: Page[Cron], pagination: answers.Pagination) -> answers.CronsAnswer:
    """A page of cron jobs, under all names that clients know."""
    items = [shown(cron, most=_MAX_LISTED_BYTES) for cron in found.items]
    return {
        "items": items,
        "crons": items,
        "cron_jobs": items,
        "count": len(items),
        **paging.with_total(pagination),
    }


def triggered(job: Job, *, deduplicated: bool) -> answers.CronTriggeredAnswer:
    """The job of a firing by hand."""
    answer: answers.CronTriggeredAnswer = {
        "job_id": job.id,
        "job": job_views.wrapped(job)["job"],
    }
    if deduplicated:
        answer["deduplicated"] = True
    return answer


def history(
    found: Page[tuple[CronRun, Job | None]], cursor: answers.Pagination
) -> answers.CronHistoryAnswer:
    """A page of a run log."""
    return {"executions": [_execution(*one) for one in found.items], "pagination": cursor}


def _execution(run: CronRun, job: Job | None) -> answers.CronExecution:
    told: dict[str, Any] = {
        "status": "triggered" if run.reason is None else "skipped",
        "job_id": run.job_id,
        "state": job and job.state.value,
        "manual": run.manual,
        "scheduled_at": times.format_ms(
            run.at_ms if run.scheduled_ms is None else run.scheduled_ms
        ),
        "triggered_at": times.format_ms(run.at_ms),
        "started_at": None if job is None else _moment(job.started_ms),
        "completed_at": None if job is None else _moment(job.ended_ms),
        "skipped_reason": run.reason and run.reason.value,
        "active_job_id": run.active_job_id,
        "error": run.error,
    }
    kept = {name: value for name, value in told.items() if value is not None}
    return cast("answers.CronExecution", kept)


def preview(
    expression: str, timezone: str, firings: Sequence[Firing], version: str
) -> answers.CronPreviewAnswer:
    """When an expression fires; `version` is that of the rules of time zones."""
    return {
        "expression": expression,
        "timezone": timezone,
        "time_zone_data": version,
        "firings": [_firing(firing) for firing in firings],
        "next_runs": [times.format_ms(firing.tick.at_ms) for firing in firings],
    }


def _firing(firing: Firing) -> answers.CronFiring:
    found: answers.CronFiring = {
        "at": times.format_ms(firing.tick.at_ms),
        "local": firing.local,
    }
    if firing.tick.skipped:
        found["skipped"] = [skipped.local for skipped in firing.tick.skipped]
    return found
