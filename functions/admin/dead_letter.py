"""Dead letters, and bulk operations on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from functions.admin.app import app
from ojs import runtime
from ojs.domain.access import Scope
from ojs.domain.bulk.operation import Action
from ojs.domain.dead_letter.override import JobOverride
from ojs.domain.errors import InvalidRequest
from ojs.domain.filters import dead_letters as dead_letter_filter
from ojs.domain.filters.dead_letters import DeadLetterFilter
from ojs.domain.job.states import State
from ojs.http.binding import paging
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.views import backpressure
from ojs.http.views import bulk as bulk_views
from ojs.http.views import jobs as views
from ojs.http.views import statistics as stats_views

if TYPE_CHECKING:
    from ojs.services.bulk.run import BulkRun

# The rest of a bulk operation is left to the sweep when the request has less time than this.
_BULK_SPARE_MS = 8_000


@app.operation("list_dead_letters", "admin_list_dead_letters", strict_query=True)
def list_dead_letters(request: Request) -> Answer:
    """A page of dead letters."""
    current = runtime.current()
    window = paging.window(request.query)
    if (state := request.query.get("state")) not in (None, "", State.DISCARDED):
        raise InvalidRequest("state", f"must be {State.DISCARDED}", value=state)
    wanted = dead_letter_filter.from_query(request.query, now_ms=current.clock.now_ms())
    # Not by paging.collect: it would load the jobs that are skipped.
    page = current.dead_letter.list(
        wanted, limit=window.limit, cursor=window.cursor, skip=window.offset
    )
    total = None
    if wanted.everything and (page.next_cursor is not None or window.cursor is not None):
        seen = window.offset + len(page.items) + (page.next_cursor is not None)
        total = current.dead_letter_stats.total(wanted.queue, least=seen)
    return Answer(views.jobs_page(window, page, total))


@app.operation("dead_letter_stats", "admin_dead_letter_stats", strict_query=True)
def dead_letter_stats(request: Request) -> Answer:
    """How many dead letters there are, of what, and since when."""
    return Answer(stats_views.dead_letters(runtime.current().dead_letter_stats.read()))


@app.operation("get_dead_letter", "admin_get_dead_letter", strict_query=True)
def get_dead_letter(request: Request) -> Answer:
    """One dead letter with its history."""
    return Answer(views.detail(runtime.current().dead_letter.get(request.named)))


@app.operation("retry_dead_letter", "admin_retry_dead_letter")
def retry_dead_letter(request: Request) -> Answer:
    """Make a dead letter available again."""
    override = request.parsed(models.RetryDeadLetterRequest).changes()
    if override != JobOverride():
        # It decides what is to run, as who pushes a job does.
        request.needs(Scope.JOBS_WRITE)
    if override.queue is not None:
        request.moves_to(override.queue)
    job = runtime.current().redrive.retry(
        request.named,
        override,
        caller=backpressure.producer(request.headers, request.principal),
        reaches=request.principal.reaches,
    )
    return Answer(views.wrapped(job))


@app.operation("delete_dead_letter", "admin_delete_dead_letter")
def delete_dead_letter(request: Request) -> Answer:
    """Delete a dead letter for good. The admin API's answer has no body."""
    runtime.current().dead_letter.delete(request.named)
    if request.operation.id == "admin_delete_dead_letter":
        return Answer(None, 204)
    return Answer(views.dead_letter_deleted(request.named))


@app.operation("retry_dead_letters", "admin_retry_dead_letters", strict_query=True)
def retry_dead_letters(request: Request) -> Answer:
    """Make many dead letters available again."""
    wanted = bulk_views.to_retry(request, now_ms=runtime.current().clock.now_ms())
    request.touches(wanted.queue)
    done = _begun(request, Action.RETRY, wanted)
    return Answer(bulk_views.retried(done.operation, done.job_ids, done.errors))


@app.operation("purge_dead_letters", "admin_purge_dead_letters", strict_query=True)
def purge_dead_letters(request: Request) -> Answer:
    """Delete many dead letters for good."""
    wanted = bulk_views.to_purge(request, now_ms=runtime.current().clock.now_ms())
    request.touches(wanted.queue)
    done = _begun(request, Action.PURGE, wanted)
    return Answer(bulk_views.purged(done.operation, done.job_ids))


@app.operation("purge_old_dead_letters", "admin_purge_old_dead_letters", strict_query=True)
def purge_old_dead_letters(request: Request) -> Answer:
    """Delete dead letters that were discarded before a time."""
    wanted = bulk_views.older(request, now_ms=runtime.current().clock.now_ms())
    done = _begun(request, Action.PURGE, wanted)
    return Answer(bulk_views.purged(done.operation, done.job_ids))


def _begun(request: Request, action: Action, wanted: DeadLetterFilter) -> BulkRun:
    return runtime.current().bulk.begin(
        action, wanted, go_on=lambda: request.remaining_ms() > _BULK_SPARE_MS
    )


@app.operation(
    "list_dead_letter_operations", "admin_list_dead_letter_operations", strict_query=True
)
def list_dead_letter_operations(request: Request) -> Answer:
    """A page of bulk operations."""
    return Answer(bulk_views.page(*paging.read(request.query, runtime.current().bulk.list)))


@app.operation("get_dead_letter_operation", "admin_get_dead_letter_operation", strict_query=True)
def get_dead_letter_operation(request: Request) -> Answer:
    """One bulk operation."""
    return Answer(bulk_views.wrapped(runtime.current().bulk.get(request.named, of_jobs=False)))


@app.operation("stop_dead_letter_operation", "admin_stop_dead_letter_operation")
def stop_dead_letter_operation(request: Request) -> Answer:
    """Stop a bulk operation."""
    return Answer(bulk_views.wrapped(runtime.current().bulk.stop(request.named, of_jobs=False)))
