"""Cron jobs, under `/cron` and, as the admin UI asks for them, under `/crons`."""

from __future__ import annotations

from functions.admin.app import app
from ojs import runtime
from ojs.domain.cron import schedule
from ojs.domain.cron.definition import EXPRESSION_NAMES
from ojs.domain.errors import InvalidRequest
from ojs.http.binding import paging, query
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.contract.operations import BASE, DEFAULT_PREVIEW, MAX_PREVIEW
from ojs.http.views import backpressure
from ojs.http.views import crons as views


def _producer(request: Request) -> str | None:
    return backpressure.producer(request.headers, request.principal)


@app.operation("register_cron", "crons_register_cron", strict_query=True)
def register(request: Request) -> Answer:
    """Register a cron job, or replace its definition."""
    body = request.object()
    found = runtime.current().crons.register(body, request.principal, _producer(request))
    answer = views.detail(found.cron, found.warnings)
    if found.created:
        return Answer(answer, 201, {"Location": f"{BASE}/cron/{found.cron.name}"})
    return Answer(answer)


@app.operation("list_crons", "crons_list_crons", strict_query=True)
def list_crons(request: Request) -> Answer:
    """A page of cron jobs."""
    enabled = None
    if "enabled" in request.query:
        choice = query.choice(request.query, "enabled", ("true", "false"), default="true")
        enabled = choice == "true"
    listing = runtime.current().crons.list(request.principal, enabled=enabled)
    page, pagination = paging.read(request.query, listing)
    return Answer(views.page(page, pagination))


@app.operation("preview_cron", "crons_preview_cron", strict_query=True)
def preview(request: Request) -> Answer:
    """When an expression fires."""
    given = query.either(request.query, *EXPRESSION_NAMES)
    if given is None:
        raise InvalidRequest(EXPRESSION_NAMES[0], "is required")
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
    version = schedule.zone_data_version()
    return Answer(views.preview(expression, timezone, firings, version))


@app.operation("get_cron", "crons_get_cron", strict_query=True)
def get_cron(request: Request) -> Answer:
    """One cron job."""
    return Answer(views.detail(runtime.current().crons.get(request.named, request.principal)))


@app.operation("change_cron", "crons_change_cron", strict_query=True)
def change(request: Request) -> Answer:
    """Change some of a cron job."""
    name, body = request.named, request.object()
    found = runtime.current().crons.change(name, body, request.principal, _producer(request))
    return Answer(views.detail(found.cron, found.warnings))


@app.operation("delete_cron", "crons_delete_cron", strict_query=True)
def delete(request: Request) -> Answer:
    """Delete a cron job."""
    return Answer(views.deleted(runtime.current().crons.delete(request.named, request.principal)))


@app.operation("trigger_cron", "crons_trigger_cron", strict_query=True)
def trigger(request: Request) -> Answer:
    """Push a job of a cron job now."""
    pushed = runtime.current().crons.trigger(
        request.named, request.principal, _producer(request), request.trace
    )
    answer = views.triggered(pushed.job, deduplicated=pushed.deduplicated)
    if pushed.deduplicated:
        return Answer(answer)
    return Answer(answer, 201, {"Location": f"{BASE}/jobs/{pushed.job.id}"})


@app.operation("pause_cron", "crons_pause_cron", strict_query=True)
def pause(request: Request) -> Answer:
    """Let a cron job not fire."""
    return _enable(request, enabled=False)


@app.operation("resume_cron", "crons_resume_cron", strict_query=True)
def resume(request: Request) -> Answer:
    """Let a paused cron job fire again."""
    return _enable(request, enabled=True)


def _enable(request: Request, *, enabled: bool) -> Answer:
    crons = runtime.current().crons
    found = crons.enable(request.named, request.principal, enabled=enabled)
    return Answer(views.detail(found.cron, found.warnings))


@app.operation("cron_history", "crons_cron_history", strict_query=True)
def history(request: Request) -> Answer:
    """What became of a cron job's ticks."""
    window = paging.window(request.query)
    page = runtime.current().crons.history(
        request.named, request.principal, limit=window.limit, cursor=window.cursor
    )
    return Answer(views.history(page, paging.described(window, page)))
