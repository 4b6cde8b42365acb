"""Bulk operations on jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from ojs import runtime
from ojs.domain import times
from ojs.domain.access import Scope
from ojs.domain.bulk.operation import MAX_ERRORS, Action, BulkOperation, JobIds, Refusal
from ojs.domain.errors import InvalidRequest
from ojs.domain.filters import jobs as job_filter
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job.states import State
from ojs.domain.requests import Field
from ojs.domain.stats import DAY_MS
from ojs.http import models
from ojs.http.answer import Answer, AsIs, absent, derived, made, present, source
from ojs.http.answers import Count, Id, Moment, Positive
from ojs.http.binding import paging
from ojs.http.binding.paging import Listed, Paged
from ojs.http.binding.request import Request
from ojs.http.endpoint import Implementation, Permission, QueueScope, Reply, Resource, Success
from ojs.http.models import NoOptions
from ojs.http.parameters import PAGING

if TYPE_CHECKING:
    from ojs.services.bulk.run import BulkRun

# The event log shows events for 7 days. They are deleted one day later.
LOG_DAYS = 8
# With less time than this, the request stops. The sweep continues the bulk operation.
_SPARE_MS = 8_000
_DONE = {
    Action.RETRY_JOBS: "retried",
    Action.CANCEL_JOBS: "cancelled",
    Action.DELETE_JOBS: "deleted",
    Action.ERASE_JOBS: "erased",
}
FinalState = Literal["completed", "cancelled", "discarded"]
JobAction = Literal["retry", "cancel", "delete", "erase"]
OperationState = Literal["running", "stopping", "stopped", "completed"]


def wanted(body: models.JobsRequest, action: Action, *, now_ms: int) -> JobFilter | JobIds:
    """Return the jobs that a request selects.

    Args:
        body: The request.
        action: The action of the bulk operation.
        now_ms: Current time in milliseconds since the epoch.

    Returns:
        The filter, limited to the states that the action allows, or the job IDs without duplicates.

    Raises:
        InvalidRequest: The filter is malformed, or selects a state that the action doesn't allow.
    """
    if body.job_ids is not None:
        return JobIds(tuple(dict.fromkeys(body.job_ids)))
    found = job_filter.parse(body.wanted(), now_ms=now_ms)
    return limited(found, action, "filter.state")


def to_erase(body: models.EraseRequest, *, now_ms: int) -> JobFilter | JobIds:
    """Return the jobs that a request erases. Raise InvalidRequest if its filter is malformed."""
    if body.job_ids is not None:
        return JobIds(tuple(dict.fromkeys(body.job_ids)))
    assert body.filter is not None
    return job_filter.parse(body.filter.model_dump(exclude_unset=True), now_ms=now_ms)


def to_purge(body: models.PurgeRequest, queue: str, *, now_ms: int) -> JobFilter:
    """Return the finished jobs of a queue that a request deletes.

    Args:
        body: The request.
        queue: Name of the queue.
        now_ms: Current time in milliseconds since the epoch.

    Raises:
        InvalidRequest: `states` or `older_than` is malformed.
    """
    fields: dict[str, Any] = {"queue": queue, "state": body.states}
    if body.older_than is not None:
        fields["older_than"] = body.older_than
    return job_filter.parse(fields, now_ms=now_ms, prefix="")


def limited(found: JobFilter, action: Action, field: str) -> JobFilter:
    """Limit a filter to the states that an action allows.

    Args:
        found: The filter as requested.
        action: The action of the bulk operation.
        field: Field of the request that lists states, for the error.

    Raises:
        InvalidRequest: The filter selects a state that the action doesn't allow.
    """
    for state in found.states:
        if state not in action.states:
            states = ", ".join(sorted(action.states))
            rule = f"must be one of {states}. Jobs in other states can't be {_DONE[action]}"
            raise InvalidRequest(field, rule, value=state)
    return job_filter.limited(found, action.states)


@derived
def _shown(operation: BulkOperation) -> JobOperation:
    """Return the response object of an operation. An erasure lists where copies remain."""
    found: dict[str, Any] = operation.to_dict()
    if operation.action is Action.ERASE_JOBS and not operation.dry_run:
        end_ms = operation.finished_ms or operation.updated_ms
        # Location → days for which it retains copies of erased jobs.
        kept = {"event_log": LOG_DAYS, **runtime.current().settings.recovery_days}
        found["remains"] = [
            {"where": where, "until": times.format_ms(end_ms + days * DAY_MS)}
            for where, days in kept.items()
            if days
        ]
    return cast("JobOperation", found)


_o: BulkOperation = source()
_l: Listed[BulkOperation] = source()
_r: Refusal = source()


class BulkError(Answer[Refusal]):
    """Why one job could not be dealt with."""

    job_id: Id = _r.job_id
    code: str = _r.code
    message: str = _r.message


class JobsFilter(AsIs):
    """The jobs that are meant, lengths of time as times."""

    queue: str = absent()
    state: list[State] = absent()
    type: str = absent()
    tag: str = absent()
    since: Moment = absent()
    until: Moment = absent()
    producer: str = absent()
    enqueued_after: Moment = absent()
    enqueued_before: Moment = absent()
    older_than: Moment = absent()
    priority: int = absent()
    meta: dict[str, Any] = absent()
    args: str = absent()
    job_ids: Positive = absent("how many jobs were named")


class Remainder(AsIs):
    """Where a copy of erased data can remain, and until when."""

    where: Literal["event_log", "table_backups", "nightly_backups", "bucket_versions"]
    until: Moment


class JobOperation(AsIs):
    """A bulk operation on jobs, and how far it is."""

    id: Id
    action: JobAction
    state: OperationState | Literal["completed_with_failures"] = present(
        "`stopping` ends after the slice of at most 100 jobs it is in; "
        "`completed_with_failures`: an erasure could not erase `failed` jobs"
    )
    filter: JobsFilter
    matched: Count = present("jobs found so far")
    succeeded: Count
    failed: Count = present("jobs that could not be processed")
    waiting_for_room: bool = present("a queue is full; the operation retries it")
    errors: Annotated[list[BulkError], Field(max_length=20)] = present("the first of `failed`")
    dry_run: Literal[True] = absent("jobs are counted only")
    remains: list[Remainder] = absent("of an erasure: copies that are kept longer")
    started_at: Moment
    updated_at: Moment
    finished_at: Moment = absent()


class ManyJobsError(BulkError):
    """Why one job could not be dealt with."""

    error: str = BulkError.message


class ManyJobsItem(AsIs):
    """The result for one of the named jobs."""

    index: Count
    job_id: Id
    status: Literal["retried", "cancelled", "deleted", "erased", "matched", "skipped", "pending"]
    reason: str = absent("why it was skipped")


class ManyJobsAnswer(AsIs):
    """The result of this request. While the operation is running, the sweep continues it."""

    action: JobAction
    matched: Count
    total_matched: Count = present("the same as matched")
    succeeded: Count
    failed: Count
    skipped: Count = present("the same as failed")
    retried: Count = absent("the same as succeeded")
    cancelled: Count = absent("the same as succeeded")
    deleted: Count = absent("the same as succeeded")
    erased: Count = absent("the same as succeeded")
    errors: Annotated[list[ManyJobsError], Field(max_length=20)] = present("the first of `failed`")
    items: list[ManyJobsItem] = absent("of each job that was named, in order")
    operation: JobOperation


class QueuePurgedAnswer(AsIs):
    """The result of this request. While the operation is running, the sweep continues it."""

    purged_count: Count
    purged: Count = present("the same as purged_count")
    deleted: Count = present("the same as purged_count")
    states: list[FinalState]
    operation: JobOperation


class JobOperationAnswer(Answer[BulkOperation]):
    """A bulk operation on jobs."""

    operation: JobOperation = _shown(_o)


class JobOperationsAnswer(Paged[BulkOperation]):
    """A page of bulk operations on jobs."""

    operations: list[JobOperation] = made(lambda found: [_shown(each) for each in found], _l.items)
    items: list[JobOperation] = operations


def _done(run: BulkRun) -> Mapping[str, Any]:
    """Return the part of the operation that the request has processed. The sweep does the rest."""
    operation, job_ids, errors = run.operation, run.job_ids, run.errors
    succeeded = 0 if operation.dry_run else len(job_ids)
    matched = len(job_ids) + len(errors)
    answer: dict[str, Any] = {
        "action": operation.action.shown,
        "matched": matched,
        "total_matched": matched,
        "succeeded": succeeded,
        "failed": len(errors),
        "skipped": len(errors),
        _DONE[operation.action]: succeeded,
        "errors": ManyJobsError.each(errors[:MAX_ERRORS]),
        "operation": _shown(operation),
    }
    if isinstance(operation.wanted, JobIds):
        answer["items"] = _items(operation, operation.wanted.ids, job_ids, errors)
    return answer


def _items(
    operation: BulkOperation,
    ids: Sequence[str],
    job_ids: Sequence[str],
    errors: Sequence[Refusal],
) -> list[dict[str, Any]]:
    """Return the outcome of each job that the request lists by ID."""
    told = "matched" if operation.dry_run else _DONE[operation.action]
    reasons = {each.job_id: each.message for each in errors}
    handled = set(job_ids)
    items = []
    for number, job_id in enumerate(ids):
        item: dict[str, Any] = {"index": number, "job_id": job_id, "status": "pending"}
        if job_id in handled:
            item["status"] = told
        elif job_id in reasons:
            item |= {"status": "skipped", "reason": reasons[job_id]}
        items.append(item)
    return items


# --- endpoints ------------------------------------------------------------------------------------

_LOOK = Permission(Scope.ADMIN_READ, QueueScope.ALL)
_MANAGE = Permission(Scope.ADMIN_WRITE, QueueScope.NAMED)
_PURGES = Permission(Scope.ADMIN_WRITE, QueueScope.PATH)
_MANY = Success(ManyJobsAnswer, "The processed jobs, and the operation that continues.")
_ONE = Success(JobOperationAnswer, "The operation.")
_PURGED = Success(QueuePurgedAnswer, "The deleted jobs, and the operation that continues.")
jobs = Resource("jobs/bulk", "jobs", lenient=True)
admin_jobs = Resource("admin/jobs/bulk", "admin", form="admin_{}", lenient=True)
operations = Resource("admin/jobs/bulk/operations", "admin", lenient=True)
queues = Resource("queues", "queues", lenient=True)
admin_queues = Resource("admin/queues", "admin", form="admin_{}", lenient=True)


def _verb(verb: str, example: Mapping[str, Any]) -> Callable[[Implementation], Implementation]:
    """Declare a bulk operation on jobs twice: for producers and for operators."""
    here = jobs.endpoint(
        f"POST /{verb}",
        Permission(Scope.JOBS_WRITE, QueueScope.NAMED),
        _MANY,
        request=models.ManyJobsRequest,
        example=example,
    )
    admin = admin_jobs.endpoint(
        f"POST /{verb}",
        _MANAGE,
        _MANY,
        request=models.ConfirmedJobsRequest,
        example={"filter": {"queue": "email", "type": "email.*"}, "confirm": True},
    )
    return lambda implementation: admin(here(implementation))


@_verb("retry", {"job_ids": ["019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"]})
def retry_jobs(request: Request) -> Reply:
    """Make many dead letters and retryable jobs available."""
    return _many(request, Action.RETRY_JOBS)


@_verb("cancel", {"filter": {"queue": "email", "state": ["available", "scheduled"]}})
def cancel_jobs(request: Request) -> Reply:
    """Cancel many jobs that are not final."""
    return _many(request, Action.CANCEL_JOBS)


@_verb("delete", {"filter": {"state": "completed", "older_than": "P7D"}, "dry_run": True})
def delete_jobs(request: Request) -> Reply:
    """Delete many final jobs permanently."""
    return _many(request, Action.DELETE_JOBS)


def _many(request: Request, action: Action) -> Reply:
    confirmed = request.operation.request is models.ConfirmedJobsRequest
    body = request.parsed(models.ConfirmedJobsRequest if confirmed else models.ManyJobsRequest)
    now_ms = runtime.current().clock.now_ms()
    return _reaching(request, action, wanted(body, action, now_ms=now_ms), body.dry_run)


@admin_jobs.endpoint(
    "POST /erase",
    _MANAGE,
    _MANY,
    request=models.EraseRequest,
    example={"filter": {"meta": {"customer": "c-1042"}}, "confirm": True},
)
def erase_jobs(request: Request) -> Reply:
    """Erase jobs in any state, and from the archive of dead letters."""
    body = request.parsed(models.EraseRequest)
    now_ms = runtime.current().clock.now_ms()
    return _reaching(request, Action.ERASE_JOBS, to_erase(body, now_ms=now_ms), body.dry_run)


def _reaching(
    request: Request, action: Action, found: JobFilter | JobIds, dry_run: bool | None
) -> Reply:
    """Start a bulk operation if the queue scope of the caller allows it."""
    if not isinstance(found, JobIds):
        request.touches(found.queue)
    elif request.principal.limited:
        for job_id, queue in runtime.current().jobs.queues_of(found.ids).items():
            request.check_job_reach(queue, job_id)
    return Reply(_done(_begun(request, action, found, dry_run)))


def _begun(
    request: Request, action: Action, found: JobFilter | JobIds, dry_run: bool | None
) -> BulkRun:
    """Start a bulk operation and process jobs until the time of the request runs out."""
    return runtime.current().bulk.begin(
        action,
        found,
        dry_run=bool(dry_run),
        go_on=lambda: request.remaining_ms() > _SPARE_MS,
    )


@operations.endpoint("GET", _LOOK, JobOperationsAnswer, query=PAGING)
def list_job_operations(request: Request) -> Reply:
    """List bulk operations on jobs.

    One page of operations, latest first.
    """
    listing = partial(runtime.current().bulk.list, of_jobs=True)
    return Reply(JobOperationsAnswer.of(paging.asked(request.query, listing)))


@operations.endpoint("GET /{id}", _LOOK, _ONE, errors=(404,))
def get_job_operation(request: Request) -> Reply:
    """Read a bulk operation on jobs."""
    found = runtime.current().bulk.get(request.named, of_jobs=True)
    return Reply(JobOperationAnswer.of(found))


@operations.endpoint(
    "POST /{id}/stop",
    Permission(Scope.ADMIN_WRITE, QueueScope.ALL),
    _ONE,
    errors=(404, 409),
    request=NoOptions,
)
def stop_job_operation(request: Request) -> Reply:
    """Stop a bulk operation on jobs."""
    found = runtime.current().bulk.stop(request.named, of_jobs=True)
    return Reply(JobOperationAnswer.of(found))


@queues.endpoint(
    "POST /{name}/purge",
    _PURGES,
    _PURGED,
    request=models.PurgeQueueRequest,
    example={"states": ["completed"]},
)
@admin_queues.endpoint(
    "DELETE /{name}/jobs",
    _PURGES,
    _PURGED,
    request=models.ConfirmedPurgeRequest,
    example={"states": ["completed"], "older_than": "P7D", "confirm": True},
)
def purge_queue_jobs(request: Request) -> Reply:
    """Delete jobs of a queue that have ended."""
    confirmed = request.operation.request is models.ConfirmedPurgeRequest
    body = request.parsed(models.ConfirmedPurgeRequest if confirmed else models.PurgeQueueRequest)
    found = to_purge(body, request.named, now_ms=runtime.current().clock.now_ms())
    run = _begun(request, Action.DELETE_JOBS, found, body.dry_run)
    count = 0 if run.operation.dry_run else len(run.job_ids)
    return Reply(
        {
            "purged_count": count,
            "purged": count,
            "deleted": count,
            "states": list(dict.fromkeys(body.states)),
            "operation": run.operation.to_dict(),
        }
    )
