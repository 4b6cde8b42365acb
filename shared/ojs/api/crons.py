"""Cron jobs, under `/cron` and, for the admin UI, under `/crons`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from ojs import runtime
from ojs.api import backpressure
from ojs.api import job_answers as job_views
from ojs.api.job_answers import MAX_ANSWER_BYTES, sent_bytes
from ojs.domain.access import Scope
from ojs.domain.cron import schedule
from ojs.domain.cron.definition import EXPRESSION_NAMES, TEMPLATE, CronRequest, OverlapPolicy
from ojs.domain.edits import make_version
from ojs.domain.errors import InvalidRequest
from ojs.domain.job.states import State
from ojs.http.answer import (
    Answer,
    if_true,
    length,
    made,
    maybe,
    moment,
    shown,
    source,
    unless_empty,
)
from ojs.http.answers import Count, CreatedBy, Etag, Id, Job, Moment, Omitted, Warnings
from ojs.http.binding import paging, query
from ojs.http.binding.paging import Listed, Paged, Pagination
from ojs.http.binding.request import Request
from ojs.http.endpoint import BASE, Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.models import NoOptions
from ojs.http.parameters import LIMIT, MOMENT_SCHEMA, PAGING, SEALED, one_of, whole
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.cron.cron import Cron as CronJob
    from ojs.domain.cron.cron import CronRun
    from ojs.domain.cron.schedule import Firing
    from ojs.domain.job.job import Job as StoredJob
    from ojs.services.crons.manage import RegisteredCron
    from ojs.services.jobs.enqueue import Pushed

CronState = Literal["active", "paused", "ended"]
MAX_PREVIEW = 100
DEFAULT_PREVIEW = 5
# Maximum size of a template that each copy in a response contains. A response with one cron job has
# up to 6 copies. A list has up to 200 cron jobs.
_MAX_COPY_BYTES = 400_000
_MAX_LISTED_BYTES = 4_000
_PARTS = ("args", "meta", "options")


@record(frozen=True)
class _Seen:
    """A cron job in a response.

    A template of more than `most` bytes is omitted. With `once`, only `job_template` contains it.
    """

    cron: CronJob
    warnings: list[str] | None = None
    most: int = _MAX_COPY_BYTES
    once: bool = False

    @cached_property
    def template(self) -> Mapping[str, Any]:
        return {"args": [], "meta": {}, "options": {}, **self.cron.definition.template}

    @cached_property
    def large(self) -> bool:
        return sent_bytes(self.template) > self.most

    def part(self, name: str) -> Any:
        return None if self.large else self.template[name]

    @property
    def job_template(self) -> Mapping[str, Any] | None:
        if not self.large:
            return self.template
        return self.cron.definition.template if self.once else None

    @property
    def omitted(self) -> list[str] | None:
        return [*_PARTS, *(() if self.once else (TEMPLATE,))] if self.large else None

    @property
    def wrapped(self) -> _Seen:
        """The cron job under `cron_job`. It has a large template if that fits into the response."""
        fits = sent_bytes(self.cron.definition.template) < MAX_ANSWER_BYTES // 2
        return replace(self, once=True) if self.large and fits else self


@record(frozen=True)
class _Preview:
    """The next firings of an expression. `version` is the version of the time zone database."""

    expression: str
    timezone: str
    version: str
    firings: Sequence[Firing]


def _status(cron: CronJob) -> CronState:
    if not cron.enabled:
        return "paused"
    # A cron job has no next tick if `ends_at` is earlier.
    return "active" if cron.tick_ms is not None else "ended"


_s: _Seen = source()
_c = _s.cron
_d = _c.definition
_t: Mapping[str, Any] = source()
_l: Listed[CronJob] = source()
_p: Pushed = source()
_e: tuple[CronRun, StoredJob | None] = source()
_r, _j = _e[0], maybe(_e[1])
_h: Listed[tuple[CronRun, StoredJob | None]] = source()
_f: Firing = source()
_v: _Preview = source()


class CronTemplate(Answer[Mapping[str, Any]], kept=True):
    """The request of the jobs of a cron job. Also has the keys that the client added."""

    type: str = _t["type"]
    args: list[Any] = shown(_t.get("args"), absent=True)
    meta: dict[str, Any] = shown(_t.get("meta"), absent=True)
    options: dict[str, Any] = shown(_t.get("options"), absent=True)


class Cron(Answer[_Seen]):
    """A cron job, under all names that clients know."""

    name: str = _c.name
    id: str = name
    expression: str = _d.expression
    cron: str = expression
    schedule: str = expression
    timezone: str = _d.timezone
    type: str = _s.template["type"]
    queue: str = _d.queue
    args: list[Any] = shown(_s.part("args"), absent=True)
    meta: dict[str, Any] = shown(_s.part("meta"), absent=True)
    options: dict[str, Any] = shown(_s.part("options"), absent=True)
    job_template: CronTemplate = shown(CronTemplate.of(_s.job_template), absent=True)
    omitted: Omitted = shown(_s.omitted, absent=True)
    overlap_policy: OverlapPolicy = _d.overlap
    enabled: bool = _c.enabled
    status: CronState = made(_status, _c)
    description: str | None = _d.description
    starts_at: Moment = shown(moment(_d.starts_ms), absent=True)
    ends_at: Moment = shown(moment(_d.ends_ms), absent=True)
    catchup_window: str = shown(length(unless_empty(_d.catchup_ms)), absent=True)
    jitter: str = shown(length(unless_empty(_d.jitter_ms)), absent=True)
    pause_on_failure: bool = _d.pause_on_failure
    last_run_at: Moment | None = moment(_c.last_ms)
    next_run_at: Moment | None = shown(
        moment(_c.tick_ms),
        says="the next tick; null while it is paused, and when it fires no more",
    )
    last_job_id: Id | None = _c.last_job_id
    run_count: Count = _c.runs
    etag: Etag = made(lambda cron: make_version(cron.configuration), _c)
    created_at: Moment = moment(_c.created_ms)
    updated_at: Moment = moment(_c.updated_ms)
    created_by: CreatedBy = shown(
        made(lambda line: line[-1] if line else None, _c.line), absent=True
    )


class CronAnswer(Answer[_Seen]):
    """A cron job, at the top level and wrapped."""

    cron: Cron = Cron.of(_s)
    _top: Cron = cron
    cron_job: Cron = Cron.of(_s.wrapped)


class CronSetAnswer(CronAnswer):
    """The current cron job, and warnings about its definition."""

    warnings: Warnings = shown(_s.warnings, absent=True)


class CronsAnswer(Paged["CronJob"]):
    """A page of cron jobs."""

    items: list[Cron] = Cron.each(
        made(lambda items: [_Seen(each, most=_MAX_LISTED_BYTES) for each in items], _l.items)
    )
    crons: list[Cron] = items
    cron_jobs: list[Cron] = items
    count: Count = made(len, _l.items)


class CronDeletedAnswer(Answer[_Seen]):
    """The cron job that was deleted."""

    deleted: Literal[True] = True
    name: str = _c.name
    cron: Cron = Cron.of(_s)
    cron_job: Cron = cron


class CronTriggeredAnswer(Answer["Pushed"]):
    """The job of a manual firing."""

    job_id: Id = _p.job.id
    job: Job = made(lambda job: job_views.wrapped(job)["job"], _p.job)
    deduplicated: Literal[True] = shown(if_true(_p.deduplicated), absent=True)


class CronExecution(Answer["tuple[CronRun, StoredJob | None]"]):
    """One entry of a run log: a job, or why a tick has none."""

    status: Literal["triggered", "skipped"] = made(
        lambda reason: "triggered" if reason is None else "skipped", _r.reason
    )
    job_id: Id = shown(_r.job_id, absent=True)
    state: State = shown(_j.state, absent=True)
    manual: bool = _r.manual
    scheduled_at: Moment = moment(_r.tick_ms)
    triggered_at: Moment = moment(_r.at_ms)
    started_at: Moment = shown(moment(_j.started_ms), absent=True)
    completed_at: Moment = shown(moment(_j.ended_ms), absent=True)
    skipped_reason: str = shown(_r.reason, absent=True)
    active_job_id: Id = shown(_r.active_job_id, absent=True)
    error: str = shown(_r.error, absent=True)


class CronHistoryAnswer(Answer["Listed[tuple[CronRun, StoredJob | None]]"]):
    """A page of a run log."""

    executions: list[CronExecution] = CronExecution.each(_h.items)
    pagination: Pagination = Pagination.of(_h)


class CronFiring(Answer["Firing"]):
    """A time at which an expression fires."""

    at: Moment = moment(_f.tick.at_ms)
    local: str = shown(_f.local, says="the same in its time zone, with the offset")
    skipped: list[str] = shown(
        made(lambda skipped: [each.local for each in skipped] or None, _f.tick.skipped),
        absent=True,
        says="local times before it that do not exist, as the clocks jump",
    )


class CronPreviewAnswer(Answer[_Preview]):
    """When an expression fires."""

    expression: str = _v.expression
    timezone: str = _v.timezone
    time_zone_data: str = shown(_v.version, says="the version of the zones' rules")
    firings: list[CronFiring] = CronFiring.each(_v.firings)
    next_runs: list[Moment] = shown(
        made(lambda found: [moment(each.tick.at_ms) for each in found], _v.firings),
        says="the times of the firings",
    )


# --- endpoints ------------------------------------------------------------------------------------

_EXPRESSION = {"type": "string", "minLength": 1}
_PREVIEW = (
    Parameter("expression", _EXPRESSION, "when it fires; needed, by one of its names"),
    Parameter("cron", _EXPRESSION, "the same as expression"),
    Parameter("schedule", _EXPRESSION, "the same as expression"),
    Parameter("timezone", {"type": "string", "minLength": 1, "default": "UTC"}, "IANA name"),
    Parameter("after", MOMENT_SCHEMA, "the first firing is later than this; now when not given"),
    Parameter("count", whole(1, MAX_PREVIEW, DEFAULT_PREVIEW), "how many firings to show"),
)
_HISTORY = (
    Parameter("limit", LIMIT, "most events of one answer"),
    Parameter("cursor", SEALED, "`next_cursor` of the answer before"),
)
_CHANGED = Success(CronSetAnswer, "The updated cron job.")

_READS = Permission(Scope.JOBS_READ, QueueScope.CRON)
_WRITES = Permission(Scope.JOBS_WRITE, QueueScope.CRON)
crons = Resource("cron", "cron", also={"crons_{}": "crons"})


def _producer(request: Request) -> str | None:
    return backpressure.producer(request.headers, request.principal)


def _set(found: RegisteredCron) -> CronSetAnswer:
    return CronSetAnswer.of(_Seen(found.cron, [*found.warnings] or None))


@crons.endpoint(
    "POST",
    _WRITES,
    {
        201: Success(CronSetAnswer, "The cron job is registered.", ("Location",)),
        200: Success(CronSetAnswer, "The existing cron job of this name, updated."),
    },
    errors=(403, 404, 409),
    request=CronRequest,
    example={
        "name": "daily-report",
        "expression": "0 9 * * MON-FRI",
        "timezone": "America/New_York",
        "job_template": {
            "type": "report.generate",
            "args": ["daily_summary"],
            "options": {"queue": "reports"},
        },
        "overlap_policy": "skip",
    },
    versioned=True,
)
def register_cron(request: Request) -> Reply:
    """Register a cron job, or replace its definition."""
    body = request.object()
    found = runtime.current().crons.register(
        body, request.principal, _producer(request), request.edit
    )
    if found.created:
        return Reply(_set(found), 201, {"Location": f"{BASE}/cron/{found.cron.name}"})
    return Reply(_set(found))


@crons.endpoint(
    "GET",
    _READS,
    CronsAnswer,
    query=(
        Parameter("enabled", one_of("true", "false"), "only cron jobs that fire, or do not"),
        *PAGING,
    ),
)
def list_crons(request: Request) -> Reply:
    """List cron jobs.

    One page of cron jobs, in order of name.
    """
    enabled = None
    if "enabled" in request.query:
        choice = query.choice(request.query, "enabled", ("true", "false"), default="true")
        enabled = choice == "true"
    listing = runtime.current().crons.list(request.principal, enabled=enabled)
    return Reply(CronsAnswer.of(paging.asked(request.query, listing)))


@crons.endpoint(
    "GET /preview", Permission(Scope.JOBS_READ, QueueScope.NONE), CronPreviewAnswer, query=_PREVIEW
)
def preview_cron(request: Request) -> Reply:
    """Show when an expression fires.

    The next firings.
    """
    given = query.either(request.query, *EXPRESSION_NAMES)
    if given is None:
        raise InvalidRequest(EXPRESSION_NAMES[0], "is required, for example 0 9 * * 1-5")
    field, expression = given
    timezone = request.query.get("timezone") or "UTC"
    now_ms = runtime.current().clock.now_ms()
    after_ms = query.moment(request.query, "after", now_ms=now_ms)
    count = paging.integer(
        request.query, "count", default=DEFAULT_PREVIEW, least=1, most=MAX_PREVIEW
    )
    firings = schedule.preview(
        expression, timezone, now_ms if after_ms is None else after_ms, count, field=field
    )
    found = _Preview(expression, timezone, schedule.zone_data_version(), firings)
    return Reply(CronPreviewAnswer.of(found))


@crons.endpoint("GET /{name}", _READS, CronAnswer, errors=(404,), versioned=True)
def get_cron(request: Request) -> Reply:
    """Read a cron job.

    The cron job, at the top level and wrapped.
    """
    found = runtime.current().crons.get(request.named, request.principal)
    return Reply(CronAnswer.of(_Seen(found)))


@crons.endpoint(
    "PATCH /{name}",
    _WRITES,
    _CHANGED,
    errors=(403, 404, 409),
    request=CronRequest,
    example={"expression": "30 9 * * MON-FRI", "enabled": True},
    versioned=True,
)
def change_cron(request: Request) -> Reply:
    """Change some of a cron job."""
    name, body = request.named, request.object()
    change = runtime.current().crons.change
    return Reply(_set(change(name, body, request.principal, _producer(request), request.edit)))


@crons.endpoint("DELETE /{name}", _WRITES, CronDeletedAnswer, errors=(404,), versioned=True)
def delete_cron(request: Request) -> Reply:
    """Delete a cron job; its jobs stay.

    Returns the deleted cron job.
    """
    found = runtime.current().crons.delete(request.named, request.principal, request.edit)
    return Reply(CronDeletedAnswer.of(_Seen(found)))


@crons.endpoint(
    "POST /{name}/trigger",
    _WRITES,
    {
        201: Success(CronTriggeredAnswer, "The job; the next tick stays.", ("Location",)),
        200: Success(CronTriggeredAnswer, "A unique job with its key exists; here it is."),
    },
    errors=(403, 404, 409, 413, 429),
    request=NoOptions,
)
def trigger_cron(request: Request) -> Reply:
    """Push a job of a cron job now."""
    pushed = runtime.current().crons.trigger(
        request.named, request.principal, _producer(request), request.trace
    )
    answer = CronTriggeredAnswer.of(pushed)
    if pushed.deduplicated:
        return Reply(answer)
    return Reply(answer, 201, {"Location": f"{BASE}/jobs/{pushed.job.id}"})


@crons.endpoint("POST /{name}/pause", _WRITES, _CHANGED, errors=(404,), request=NoOptions)
def pause_cron(request: Request) -> Reply:
    """Pause a cron job."""
    return _enable(request, enabled=False)


@crons.endpoint("POST /{name}/resume", _WRITES, _CHANGED, errors=(404,), request=NoOptions)
def resume_cron(request: Request) -> Reply:
    """Resume a cron job."""
    return _enable(request, enabled=True)


def _enable(request: Request, *, enabled: bool) -> Reply:
    enable = runtime.current().crons.enable
    found = enable(request.named, request.principal, enabled=enabled, edit=request.edit)
    return Reply(_set(found))


@crons.endpoint("GET /{name}/history", _READS, CronHistoryAnswer, errors=(404,), query=_HISTORY)
def cron_history(request: Request) -> Reply:
    """Read the run history of a cron job.

    The run log of thirty days, latest first.
    """
    window = paging.window(request.query)
    page = runtime.current().crons.history(
        request.named, request.principal, limit=window.limit, cursor=window.cursor
    )
    return Reply(CronHistoryAnswer.of(paging.listed(window, page)))
