"""Jobs as an operator reads them, and acts on them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from functions import job_acts
from functions.admin.app import app
from ojs import runtime
from ojs.domain.bulk.operation import Action
from ojs.domain.filters import jobs as job_filter
from ojs.http.binding import paging
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.views import job_bulk, unique_locks
from ojs.http.views import jobs as views

job_acts.bind(app, "admin_")


@app.operation("admin_get_job", strict_query=True)
def admin_get_job(request: Request) -> Answer:
    """One job, as an operator reads it."""
    return Answer(views.for_operators(runtime.current().jobs.get(request.named)))


@app.operation("admin_cancel_job")
def admin_cancel_job(request: Request) -> Answer:
    """Cancel a job."""
    return Answer(views.detail(runtime.current().jobs.cancel(request.named)))


@app.operation("admin_delete_job")
def admin_delete_job(request: Request) -> Answer:
    """Delete a final job for good."""
    runtime.current().acts.delete(request.named)
    return Answer(views.deleted(request.named))


@app.operation("admin_erase_jobs")
def erase_jobs(request: Request) -> Answer:
    """Erase jobs in any state, and what the archive has of them."""
    current = runtime.current()
    body = request.parsed(models.EraseRequest)
    wanted = job_bulk.to_erase(body, now_ms=current.clock.now_ms())
    done = job_acts.many(request, Action.ERASE_JOBS, wanted, dry_run=bool(body.dry_run))
    return Answer(done)


@app.operation("list_unique_jobs", strict_query=True)
def list_unique_jobs(request: Request) -> Answer:
    """A page of unique keys and the jobs that hold them, or one of them."""
    current = runtime.current()
    key = unique_locks.key(request.query)
    wanted = job_filter.from_query(request.query, now_ms=current.clock.now_ms())
    window = unique_locks.window(request.query)
    if key is not None:
        found = current.unique_locks.find(key, wanted)
    else:
        found = current.unique_locks.page(
            wanted, limit=window.limit, skip=window.offset, cursor=window.cursor
        )
    return Answer(unique_locks.page(found, paging.described(window, found, always=True)))


@app.operation("list_job_operations", strict_query=True)
def list_job_operations(request: Request) -> Answer:
    """A page of bulk operations on jobs."""
    listing = partial(runtime.current().bulk.list, of_jobs=True)
    return Answer(job_bulk.page(*paging.read(request.query, listing), _kept()))


@app.operation("get_job_operation", strict_query=True)
def get_job_operation(request: Request) -> Answer:
    """One bulk operation on jobs."""
    return Answer(
        job_bulk.wrapped(runtime.current().bulk.get(request.named, of_jobs=True), _kept())
    )


@app.operation("stop_job_operation")
def stop_job_operation(request: Request) -> Answer:
    """Stop a bulk operation on jobs."""
    return Answer(
        job_bulk.wrapped(runtime.current().bulk.stop(request.named, of_jobs=True), _kept())
    )


@app.operation("purge_queue_jobs", "admin_purge_queue_jobs")
def purge_queue(request: Request) -> Answer:
    """Delete jobs of a queue that have ended."""
    confirmed = request.operation.request is models.ConfirmedPurgeRequest
    body = request.parsed(models.ConfirmedPurgeRequest if confirmed else models.PurgeQueueRequest)
    wanted = job_bulk.to_purge(body, request.named, now_ms=runtime.current().clock.now_ms())
    done = job_acts.begun(request, Action.DELETE_JOBS, wanted, dry_run=bool(body.dry_run))
    return Answer(job_bulk.purged(done.operation, done.job_ids, body.states))


def _kept() -> Mapping[str, int]:
    """For how many days copies of what was erased are kept, by where."""
    return runtime.current().settings.recovery_days
