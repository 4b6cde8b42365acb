"""What two functions serve: listings of jobs, and acts on one job or on many."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ojs import runtime
from ojs.domain.bulk.operation import Action, JobIds
from ojs.http.binding.application import Answer, Application
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.views import backpressure, job_bulk, job_listing
from ojs.http.views import jobs as views

if TYPE_CHECKING:
    from ojs.domain.filters.jobs import JobFilter
    from ojs.http.contract import answers
    from ojs.services.bulk.run import BulkRun

# The rest of a bulk operation is left to the sweep when the request has less time than this.
_BULK_SPARE_MS = 8_000


def bind(app: Application, prefix: str = "") -> None:
    """Bind these operations, whose ids begin with `prefix`."""
    app.operation(f"{prefix}list_jobs", strict_query=True)(_list_jobs)
    app.operation(f"{prefix}retry_job")(_retry_job)
    app.operation(f"{prefix}run_job")(_run_job)
    app.operation(f"{prefix}change_job")(_change_job)
    for action in (Action.RETRY_JOBS, Action.CANCEL_JOBS, Action.DELETE_JOBS):
        app.operation(f"{prefix}{action.value}")(partial(_many, action))


def _list_jobs(request: Request) -> Answer:
    """A page of jobs in all states."""
    current = runtime.current()
    asked = job_listing.read(request.query, now_ms=current.clock.now_ms())
    found = current.listing.page(
        asked.wanted,
        limit=asked.window.limit,
        skip=asked.window.offset,
        cursor=asked.window.cursor,
        sort=asked.sort,
        descending=asked.descending,
        contents=asked.contents,
    )
    return Answer(job_listing.page(asked, found, found.total, found.unsearched))


def _retry_job(request: Request) -> Answer:
    """Make a dead letter or a retryable job available."""
    job = runtime.current().acts.retry(request.named, reaches=request.principal.reaches)
    return Answer(views.detail(job))


def _run_job(request: Request) -> Answer:
    """Make a scheduled or retryable job available now."""
    return Answer(views.detail(runtime.current().acts.run_now(request.named)))


def _change_job(request: Request) -> Answer:
    """Change the priority or the queue of a job that waits."""
    body = request.parsed(models.ChangeJobRequest)
    if body.queue is not None:
        request.moves_to(body.queue)
    job = runtime.current().acts.change(
        request.named,
        priority=body.priority,
        queue=body.queue,
        caller=backpressure.producer(request.headers, request.principal),
    )
    return Answer(views.detail(job))


def _many(action: Action, request: Request) -> Answer:
    """Retry, cancel or delete many jobs."""
    current = runtime.current()
    confirmed = request.operation.request is models.ConfirmedJobsRequest
    body = request.parsed(models.ConfirmedJobsRequest if confirmed else models.ManyJobsRequest)
    wanted = job_bulk.wanted(body, action, now_ms=current.clock.now_ms())
    return Answer(many(request, action, wanted, dry_run=bool(body.dry_run)))


def many(
    request: Request, action: Action, wanted: JobFilter | JobIds, *, dry_run: bool
) -> answers.ManyJobsAnswer:
    """Begin a bulk operation on jobs that the caller reaches, and say what was done at once."""
    current = runtime.current()
    if isinstance(wanted, JobIds):
        if request.principal.limited:
            request.touches(*current.jobs.queues_of(wanted.ids))
    else:
        request.touches(wanted.queue)
    done = begun(request, action, wanted, dry_run=dry_run)
    return job_bulk.done(done.operation, done.job_ids, done.errors, current.settings.recovery_days)


def begun(
    request: Request, action: Action, wanted: JobFilter | JobIds, *, dry_run: bool
) -> BulkRun:
    """Begin a bulk operation on jobs, and do as much of it as there is time."""
    return runtime.current().bulk.begin(
        action,
        wanted,
        dry_run=dry_run,
        go_on=lambda: request.remaining_ms() > _BULK_SPARE_MS,
    )
