"""Jobs: enqueue, read, and change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ojs import runtime
from ojs.api import backpressure
from ojs.api import job_answers as views
from ojs.domain import times
from ojs.domain.access import Scope
from ojs.domain.errors import (
    BackendError,
    InvalidRequest,
    KeyTaken,
    MiddlewareError,
    NotFound,
    NotStored,
    OjsError,
    PermissionDenied,
    ResultPruned,
    TooManyJobs,
)
from ojs.domain.job import envelope, idempotency
from ojs.domain.job.durable import NOT_DURABLE
from ojs.domain.job.envelope import JobRequest
from ojs.domain.job.foreign import MAX_WARNINGS
from ojs.domain.job.idempotency import IdempotencyKey
from ojs.domain.job.job import DEFAULT_QUEUE
from ojs.domain.job.job import Job as StoredJob
from ojs.domain.job.states import State
from ojs.domain.job.trace import TRACEPARENT, TRACESTATE
from ojs.domain.requests import Field
from ojs.http import models
from ojs.http.answer import AsIs, absent, present
from ojs.http.answers import (
    ClientMoment,
    Count,
    ErrorAnswer,
    ErrorsOmitted,
    Id,
    Job,
    JobAnswer,
    JobDetailAnswer,
    JobError,
    Moment,
    OutcomeError,
    ProgressAnswer,
    RetryDefaults,
    Warnings,
)
from ojs.http.binding import paging
from ojs.http.binding.errors import JobsRefused
from ojs.http.binding.request import Request
from ojs.http.endpoint import BASE, Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.models import NoOptions
from ojs.http.parameters import (
    DEFAULT_LIMIT,
    LIMIT,
    MAX_BLOCK_S,
    MAX_LIMIT,
    PRODUCER,
    SEALED,
    whole,
)

if TYPE_CHECKING:
    from ojs.services.jobs.bulk_push import PushOutcome
    from ojs.services.jobs.enqueue import Pushed

# API Gateway ends a request after 30 s.
MAX_RESULT_WAIT_S = 25
# Maximum wait that a request can specify. The actual wait is at most `MAX_RESULT_WAIT_S`.
MAX_TIMEOUT_S = 86_400
# Interval at which a waiting request reads the state. It consumes one read unit per second.
_POLL_EVERY_MS = 500
# Time reserved to build and send the response before Lambda stops the function.
_SPARE_MS = 2_000
sleep = time.sleep
# Maximum number of jobs of a batch that are checked for options without effect. Later jobs are
# usually similar.
_WARNED_JOBS = 100


class AdminJobAnswer(JobDetailAnswer):
    """A job in the admin API, with its retry policy and its times at the top level.

    `errors` and `meta` are always present. They are empty if `omitted` lists them.
    """

    retry_policy: dict[str, Any]


class JobMadeAnswer(JobDetailAnswer):
    """A job that was pushed."""

    warnings: Warnings = absent()


class DeduplicatedAnswer(JobMadeAnswer):
    """The existing job, returned for a duplicate request."""

    deduplicated: Literal[True]


class BatchAnswer(AsIs):
    """The jobs of a batch."""

    jobs: list[Job]
    count: Count
    enqueued: Count
    failed: Literal[0]
    warnings: Warnings = absent()


class BulkJob(AsIs):
    """A job in short."""

    id: Id
    type: str
    queue: str
    state: State
    created_at: Moment
    scheduled_at: ClientMoment = absent()


class BulkItem(AsIs):
    """The result for one of several jobs: the stored job, or the error."""

    index: Count = present("position in the request, from 0")
    status: Literal["created", "duplicate", "failed"]
    job: BulkJob = absent()
    error: OutcomeError = absent()


class JobsPushedAnswer(AsIs):
    """The outcome of each job of a request."""

    total: Count
    succeeded: Count
    failed: Count
    items: list[BulkItem]
    warnings: Warnings = absent()


class ResultAnswer(AsIs):
    """The result of a job."""

    job_id: Id
    state: State
    result: Any
    error: JobError = absent()


class JobResult(AsIs):
    """The result or the error of a final job."""

    state: State
    result: Any
    error: JobError = absent()


class ResultsAnswer(AsIs):
    """The results of several jobs.

    Null: the job is not final, its result has expired, or no job with this ID is in reach.
    """

    results: dict[str, JobResult | None]
    omitted: list[Id] = absent("not read, because the response is full; ask again for these")


class RetriesAnswer(AsIs):
    """A job's error history."""

    job_id: Id
    state: State
    attempt: Count
    max_attempts: Count
    policy: RetryDefaults
    retries: list[JobError]
    errors_omitted: ErrorsOmitted = absent()


class JobDeletedAnswer(AsIs):
    """The job that was deleted."""

    deleted: Literal[True]
    job_id: Id


class HistoryActor(AsIs):
    """Who did something to a job."""

    type: Literal["client", "worker", "system"]
    id: str


class HistoryEvent(AsIs):
    """Something that happened to a job."""

    id: Id
    job_id: Id
    event_type: Literal[
        "job.created",
        "job.state_changed",
        "job.attempt_started",
        "job.attempt_completed",
        "job.attempt_failed",
        "job.step_completed",
        "job.checkpoint_saved",
    ]
    timestamp: Moment
    actor: HistoryActor
    data: dict[str, Any]


class JobHistoryAnswer(AsIs):
    """The history of a job, derived from its stored items."""

    events: list[HistoryEvent]
    total: Count
    next_cursor: Annotated[str, Field(min_length=1)] = absent()
    approximate: Literal[True] = present("of earlier attempts only the failures are known")


class LineageChild(AsIs):
    """A job of a workflow that waits for this job."""

    job_id: Id


class LineageAnswer(AsIs):
    """The jobs that a job comes from, and the started jobs of its workflow that follow it."""

    job_id: Id
    parent_id: Id = absent("the job that enqueued it, or that waits for it")
    root_id: Id = absent("the first of its ancestors, as its producer named it")
    workflow_id: Id = absent()
    children: list[LineageChild]
    complete: Literal[False] = present("jobs that name it as parent_id are not listed")


class JobsRefusedAnswer(ErrorAnswer):
    """An error. If the request stored no job, it lists the error of each job."""

    total: Count = absent()
    succeeded: Count = absent()
    failed: Count = absent()
    items: list[BulkItem] = absent()


# --- endpoints ------------------------------------------------------------------------------------

# One row for each parameter. The formatter would split the rows.
# fmt: off
_HISTORY = (
    Parameter("limit", LIMIT, "most events of one answer"),
    Parameter("cursor", SEALED, "`next_cursor` of the answer before"),
)
_WAIT = (
    Parameter("wait", {"type": "boolean", "default": False}, "wait until the job is done"),
    Parameter("timeout", whole(0, MAX_TIMEOUT_S, MAX_RESULT_WAIT_S),
        f"longest wait in seconds; never more than {MAX_RESULT_WAIT_S}"),
)
_PUSHING = (
    PRODUCER,
    Parameter("OJS-Block-Timeout",
        {"type": "string", "pattern": r"[0-9]+(\.[0-9]+)?", "default": "0"},
        "seconds to wait for room, when a queue is full and its overflow_policy is `block`; never "
        f"more than {MAX_BLOCK_S}"),
    Parameter(idempotency.HEADER,
        {"type": "string", "minLength": 1, "maxLength": idempotency.MAX_KEY_CHARACTERS,
         "pattern": r"[\x20-\x7e]*"},
        "for 24 hours, a repeated request with the same key stores nothing and returns the "
        "same jobs in their current state"),
    Parameter(TRACEPARENT, {"type": "string"},
        "W3C trace context, which stays with the jobs in `meta` and comes to their workers; one "
        "that is invalid is ignored"),
    Parameter(TRACESTATE, {"type": "string"}, "the same, with a valid traceparent"),
)
# fmt: on
# Headers of the response to an enqueue. Those of `_PRESSURE` require a queue above its warning
# threshold.
_RATE_LIMIT = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
_PRESSURE = ("X-OJS-Queue-Depth", "X-OJS-Queue-Bound", "X-OJS-Queue-Pressure")
_COUNTED = ("X-OJS-Batch-Size",)
_PUSHES = Permission(Scope.JOBS_WRITE, QueueScope.NAMED)
_WRITES = Permission(Scope.JOBS_WRITE, QueueScope.JOB)
_READS = Permission(Scope.JOBS_READ, QueueScope.JOB)
_WORKS = Permission(Scope.WORK, QueueScope.JOB)
_MANAGE = Permission(Scope.ADMIN_WRITE, QueueScope.JOB)
_TWICE = Success(JobDetailAnswer, "The job, wrapped and at the top level.")
_MAIL = {"type": "email.send", "args": ["alice@example.com"], "options": {"queue": "email"}}
_MAILS = [_MAIL, {**_MAIL, "args": ["bob@example.com"]}]
jobs = Resource("jobs", "jobs", lenient=True)
admin_jobs = Resource("admin/jobs", "admin", form="admin_{}", lenient=True)
# Operations that the admin API has too.
both = Resource("jobs", "jobs", also={"admin_{}": "admin/jobs"}, lenient=True)


@jobs.endpoint(
    "POST",
    _PUSHES,
    {
        201: Success(JobMadeAnswer, "The job is durably stored.", ("Location",), _PRESSURE),
        200: Success(DeduplicatedAnswer, "A unique job with this key exists; here it is."),
    },
    errors=(403, 404, 409, 413, 429),
    request=JobRequest,
    example={
        "type": "email.send",
        "args": ["user@example.com", "welcome", {"locale": "en"}],
        "meta": {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"},
        "options": {
            "queue": "email",
            "priority": 10,
            "timeout_ms": 30_000,
            "retry": {"max_attempts": 5, "initial_interval": "PT1S"},
        },
    },
    headers=_PUSHING,
)
def enqueue_job(request: Request) -> Reply:
    """Enqueue a job."""
    body = request.object()
    wanted = envelope.parse(body)
    (pushed,) = _push(request, body, [wanted], batch=False)
    request.about(job_id=pushed.job.id, queue=pushed.job.queue)
    warnings = [*_absent([pushed]), *pushed.warnings, *envelope.warnings(wanted)]
    if pushed.deduplicated:
        return Reply(views.deduplicated(pushed.job, warnings))
    headers = {
        "Location": f"{BASE}/jobs/{pushed.job.id}",
        **backpressure.pressure_headers([pushed]),
        **backpressure.limit_headers(pushed.limit_status),
    }
    return Reply(views.detail(pushed.job, warnings), 201, headers)


@jobs.endpoint(
    "POST /batch",
    _PUSHES,
    {
        201: Success(
            BatchAnswer,
            "All jobs are stored, in the order of the request.",
            sometimes=(*_PRESSURE, *_RATE_LIMIT),
        ),
    },
    errors=(403, 404, 409, 413, 429),
    request=models.BatchRequest,
    example={"jobs": _MAILS},
    headers=_PUSHING,
)
def enqueue_batch(request: Request) -> Reply:
    """Enqueue many jobs, or none."""
    body = request.object()
    raw = body.get("jobs")
    if raw is None:
        raise InvalidRequest("jobs", f"is required. Send 1 to {envelope.MAX_BATCH} jobs")
    if not isinstance(raw, list) or not 1 <= len(raw) <= envelope.MAX_BATCH:
        rule = f"must be an array of 1 to {envelope.MAX_BATCH} jobs"
        raise InvalidRequest("jobs", rule, value=raw)
    requests = [_job_request(job, index) for index, job in enumerate(raw)]
    pushed = _push(request, body, requests, batch=True)
    headers = backpressure.pressure_headers(pushed)
    warnings = (
        told
        for index, wanted in enumerate(requests[:_WARNED_JOBS])
        for told in envelope.warnings(wanted, f"jobs[{index}].")
    )
    warned = list(islice(chain(_warnings(pushed), warnings), MAX_WARNINGS))
    return Reply(views.batch([one.job for one in pushed], warned), 201, headers)


@jobs.endpoint(
    "POST /bulk",
    _PUSHES,
    {
        201: Success(JobsPushedAnswer, "All jobs are stored.", _COUNTED, _PRESSURE),
        207: Success(
            JobsPushedAnswer, "Some jobs are stored, others are refused.", _COUNTED, _PRESSURE
        ),
        422: Success(
            JobsRefusedAnswer,
            "No job is stored.",
            sometimes=(*_COUNTED, "Retry-After", *_PRESSURE[:2]),
        ),
    },
    errors=(409, 413),
    request=models.BulkPushRequest,
    example={"jobs": _MAILS, "idempotency_key": "newsletter-17"},
    headers=_PUSHING,
)
def enqueue_bulk(request: Request) -> Reply:
    """Enqueue many jobs, each for itself."""
    body = request.object()
    options = models.BulkOptions.model_validate(body)
    if len(options.jobs) > envelope.MAX_BATCH:
        raise TooManyJobs(len(options.jobs), envelope.MAX_BATCH)
    wanted = [_parsed(job) for job in options.jobs]
    key = _key(request, body, options.idempotency_key)
    if options.atomicity == "atomic":
        outcomes = _all_or_none(request, wanted, key)
    else:
        outcomes = runtime.current().bulk_push.push(wanted, key=key, **_pushing(request))
    runtime.current().bulk_push.note(outcomes, options.atomicity)
    pushed = [one for one in outcomes if not isinstance(one, OjsError)]
    answer = views.bulk_pushed(outcomes, list(islice(_warnings(pushed), MAX_WARNINGS)))
    if not pushed:
        raise JobsRefused([one for one in outcomes if isinstance(one, OjsError)], answer)
    headers = {"X-OJS-Batch-Size": str(len(outcomes)), **backpressure.pressure_headers(pushed)}
    return Reply(answer, 201 if len(pushed) == len(outcomes) else 207, headers)


def _parsed(job: Any) -> JobRequest | OjsError:
    try:
        return envelope.parse(job)
    except OjsError as error:
        return error


def _all_or_none(
    request: Request, wanted: Sequence[JobRequest | OjsError], key: IdempotencyKey | None
) -> list[PushOutcome]:
    """Store all jobs of a request, or none.

    Args:
        request: The request to process.
        wanted: The jobs of the request, or the error of each invalid job.
        key: The idempotency key of the request, if it has one.

    Returns:
        The outcome of each job, in order. If no job is stored, a job without its own error has
        `NotStored`.

    Raises:
        BackendError: DynamoDB failed.
        MiddlewareError: The enqueue middleware failed.
        KeyTaken: The idempotency key was used for a different request.
    """
    refused = {index: one for index, one in enumerate(wanted) if isinstance(one, OjsError)}
    jobs = [one for one in wanted if not isinstance(one, OjsError)]
    if not refused:
        try:
            return list(_store(request, jobs, key, batch=True))
        except (BackendError, MiddlewareError, KeyTaken):
            raise
        except OjsError as error:
            refused = _whose(error, jobs)
    return [refused.get(index, NotStored()) for index in range(len(wanted))]


def _whose(error: OjsError, jobs: Sequence[JobRequest]) -> dict[int, OjsError]:
    """Assign the error of a batch to its jobs: to one job, the jobs of a queue, or all jobs."""
    if (index := error.details.pop("index", None)) is not None:
        return {index: error}
    queue = error.details.get("queue")
    whose = {
        index: error
        for index, job in enumerate(jobs)
        if queue in (None, job.value_of("queue") or DEFAULT_QUEUE)
    }
    return whose or dict.fromkeys(range(len(jobs)), error)


def _push(
    request: Request, body: Mapping[str, Any], jobs: Sequence[JobRequest], *, batch: bool
) -> list[Pushed]:
    """Enqueue the job or the `batch` of a request. A repeated idempotency key stores nothing."""
    if any(job.parent is not None for job in jobs):
        jobs = _adopted(request, jobs, batch=batch)
    queues = {job.value_of("queue") or DEFAULT_QUEUE for job in jobs}
    request.about(
        queue=queues.pop() if len(queues) == 1 else None,
        job_id=jobs[0].id if not batch else None,
    )
    return _store(request, jobs, _key(request, body), batch=batch)


def _adopted(request: Request, jobs: Sequence[JobRequest], *, batch: bool) -> list[JobRequest]:
    """Return the requests of child jobs. Another tenant's parent is rejected as an unknown one."""
    try:
        return runtime.current().children.adopted(
            jobs, batch=batch, reaches=request.principal.reaches
        )
    except PermissionDenied as error:
        parent = jobs[int(error.details.get("index", 0))].parent
        if request.principal.tenant is None or parent is None:
            raise
        unknown = NotFound("job", parent.job_id)
        unknown.details.update(error.details)
        raise unknown from None


def _key(
    request: Request, body: Mapping[str, Any], named: str | None = None
) -> IdempotencyKey | None:
    """Return the idempotency key from the header, or else the one `named` in the body."""
    header = request.headers.get(idempotency.HEADER.lower())
    text = named if header is None else header
    if text is None:
        return None
    return IdempotencyKey.of(
        text,
        caller=request.principal,
        operation=request.operation.id,
        # The jobs identify the request. The place of the key is irrelevant.
        body={name: body[name] for name in body if name != "idempotency_key"} if named else body,
        field=idempotency.HEADER if header is not None else "idempotency_key",
    )


def _pushing(request: Request) -> dict[str, Any]:
    """Return the producer, its queue scope, its wait for space, and its trace context."""
    current, principal = runtime.current(), request.principal
    # The middleware runs before the wait for space.
    spare_ms = 0 if current.middleware is None else current.middleware.timeout_ms
    return {
        "producer": backpressure.producer(request.headers, principal),
        "reaches": principal.reaches,
        "wait_ms": backpressure.wait_ms(request.headers, lambda: request.remaining_ms() - spare_ms),
        "trace": request.trace,
    }


def _store(
    request: Request, jobs: Sequence[JobRequest], key: IdempotencyKey | None, *, batch: bool
) -> list[Pushed]:
    current, options = runtime.current(), _pushing(request)
    if key is not None:
        return current.idempotent_push.push(key, jobs, batch=batch, **options)
    if batch:
        return current.enqueue.push_batch(jobs, **options)
    return [current.enqueue.push(jobs[0], **options)]


def _absent(pushed: Sequence[Pushed]) -> Iterator[str]:
    """Yield a warning for each job that an earlier attempt stored and that no longer exists."""
    for one in pushed:
        if one.absent:
            yield f"Job '{one.job.id}' was deleted. The response has the enqueued job."


def _warnings(pushed: Sequence[Pushed]) -> Iterator[str]:
    """Yield the warnings about the jobs of a batch."""
    yield from _absent(pushed)
    for one in pushed:
        yield from one.warnings


def _job_request(raw: Any, index: int) -> JobRequest:
    try:
        return envelope.parse(raw, prefix=f"jobs[{index}].")
    except OjsError as error:
        raise envelope.at_index(error, index) from None


@jobs.endpoint("GET /{id}", _READS, _TWICE, errors=(404,))
def get_job(request: Request) -> Reply:
    """Read a job."""
    return Reply(views.detail(runtime.current().jobs.get(request.named)))


@admin_jobs.endpoint(
    "GET /{id}",
    Permission(Scope.ADMIN_READ, QueueScope.JOB),
    AdminJobAnswer,
    errors=(404,),
    name="get_job",
)
def get_job_for_operators(request: Request) -> Reply:
    """Read a job.

    The job with its policy and times, and wrapped.
    """
    return Reply(views.for_operators(runtime.current().jobs.get(request.named)))


@jobs.endpoint("DELETE /{id}", _WRITES, _TWICE, errors=(404, 409))
@jobs.endpoint(
    "POST /{id}/cancel",
    _WRITES,
    _TWICE,
    errors=(404, 409),
    request=NoOptions,
    name="cancel_job_by_post",
)
@admin_jobs.endpoint("POST /{id}/cancel", _MANAGE, _TWICE, errors=(404, 409), request=NoOptions)
def cancel_job(request: Request) -> Reply:
    """Cancel a job that is not final."""
    return Reply(views.detail(runtime.current().jobs.cancel(request.named)))


@admin_jobs.endpoint("DELETE /{id}", _MANAGE, JobDeletedAnswer, errors=(404, 409))
def delete_job(request: Request) -> Reply:
    """Delete a job in a final state permanently.

    Cancels the job.
    """
    runtime.current().acts.delete(request.named)
    return Reply({"deleted": True, "job_id": request.named})


@both.endpoint(
    "POST /{id}/retry",
    _WRITES,
    _TWICE,
    admin=_MANAGE,
    errors=(404, 409, 429),
    request=NoOptions,
)
def retry_job(request: Request) -> Reply:
    """Make a dead letter or a retryable job available."""
    job = runtime.current().acts.retry(request.named, reaches=request.principal.reaches)
    return Reply(views.detail(job))


@both.endpoint(
    "POST /{id}/run", _WRITES, _TWICE, admin=_MANAGE, errors=(404, 409), request=NoOptions
)
def run_job(request: Request) -> Reply:
    """Run a scheduled or retryable job now."""
    return Reply(views.detail(runtime.current().acts.run_now(request.named)))


@both.endpoint(
    "PATCH /{id}",
    _WRITES,
    _TWICE,
    admin=_MANAGE,
    errors=(403, 404, 409, 429),
    request=models.ChangeJobRequest,
    example={"priority": 10},
)
def change_job(request: Request) -> Reply:
    """Change the priority or queue of a job that waits."""
    body = request.parsed(models.ChangeJobRequest)
    if body.queue is not None:
        request.moves_to(body.queue)
    job = runtime.current().acts.change(
        request.named,
        priority=body.priority,
        queue=body.queue,
        caller=backpressure.producer(request.headers, request.principal),
    )
    return Reply(views.detail(job))


@jobs.endpoint("POST /{id}/activate", _WRITES, JobAnswer, errors=(404, 409), request=NoOptions)
def activate_job(request: Request) -> Reply:
    """Make a pending job available.

    The job.
    """
    return Reply(views.wrapped(runtime.current().jobs.activate(request.named)))


@jobs.endpoint(
    "GET /{id}/result",
    _READS,
    {
        200: Success(ResultAnswer, "The job is final."),
        202: Success(ResultAnswer, "The job is not done yet.", ("Retry-After",)),
    },
    errors=(404, 410),
    query=_WAIT,
)
def get_result(request: Request) -> Reply:
    """Read, or wait for, a job's result."""
    job_id, jobs = request.named, runtime.current().jobs
    wait_ms = _wait_ms(request)
    while wait_ms > 0 and not (job := jobs.record(job_id)).state.terminal:
        if job.result_ttl_s == 0:
            rule = "can't be used, because the job's result_ttl is 0. Read the state of the job"
            raise InvalidRequest("wait", rule)
        pause_ms = min(_POLL_EVERY_MS, wait_ms)
        sleep(pause_ms / 1_000)
        wait_ms = min(wait_ms - pause_ms, request.remaining_ms() - _SPARE_MS)
    return _result(jobs.get(job_id))


@jobs.endpoint(
    "POST /results",
    Permission(Scope.JOBS_READ, QueueScope.NAMED),
    ResultsAnswer,
    request=models.ResultsRequest,
    example={"ids": ["019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"]},
    name="results",
)
def get_results(request: Request) -> Reply:
    """Read the results of several jobs."""
    ids = request.parsed(models.ResultsRequest).ids
    for at, job_id in enumerate(ids):
        if (first := ids.index(job_id)) < at:
            raise InvalidRequest(f"ids[{at}]", f"is a duplicate of ids[{first}]", value=job_id)
    reaches = request.principal.reaches
    found = runtime.current().jobs.list_final(ids, reaches, most=views.MAX_RESULTS_BYTES)
    return Reply(views.build_results(ids, found))


def _result(job: StoredJob) -> Reply:
    if job.result_ttl_s is not None and job.has_expired_result(runtime.current().clock.now_ms()):
        raise ResultPruned(times.format_ms(job.result_until_ms or 0))
    if job.state.terminal:
        return Reply(views.result(job))
    return Reply(views.result(job), 202, {"Retry-After": "1"})


def _wait_ms(request: Request) -> int:
    wait = request.query.get("wait", "false").lower()
    if wait not in ("true", "false"):
        raise InvalidRequest("wait", "must be true or false", value=wait)
    requested = paging.integer(
        request.query, "timeout", default=MAX_RESULT_WAIT_S, least=0, most=MAX_TIMEOUT_S
    )
    if wait == "false":
        return 0
    return min(requested * 1_000, MAX_RESULT_WAIT_S * 1_000, request.remaining_ms() - _SPARE_MS)


@jobs.endpoint("GET /{id}/retries", _READS, RetriesAnswer, errors=(404,))
def list_retries(request: Request) -> Reply:
    """Read a job's error history.

    The failures so far, oldest first.
    """
    return Reply(views.retries(runtime.current().jobs.get(request.named)))


@jobs.endpoint("GET /{id}/progress", _READS, ProgressAnswer, errors=(404,))
def get_progress(request: Request) -> Reply:
    """Read the progress of a job.

    The last report; nulls when there was none.
    """
    return Reply(views.progress(runtime.current().jobs.progress(request.named)))


@jobs.endpoint(
    "PUT /{id}/progress",
    _WORKS,
    ProgressAnswer,
    errors=(404, 413),
    request=models.ProgressRequest,
    example={"progress": 0.47, "message": "rows", "data": {"rows": 14_000}},
)
def report_progress(request: Request) -> Reply:
    """Report how far a job is.

    The progress as it stands now.
    """
    body = request.parsed(models.ProgressRequest)
    warnings: list[str] = []
    if body.checkpoint is not None:
        warnings = runtime.current().checkpoints.report(
            request.named, body.checkpoint, worker_id=body.worker_id, lease_token=body.lease_token
        )
    progress = runtime.current().jobs.report_progress(
        request.named,
        progress=body.progress,
        worker_id=body.worker_id,
        message=body.message,
        data=body.data,
        lease_token=body.lease_token,
    )
    return Reply(views.progress(progress, warnings, report=True))


@jobs.endpoint("GET /{id}/history", _READS, JobHistoryAnswer, errors=(404,), query=_HISTORY)
def job_history(request: Request) -> Reply:
    """Read what happened to a job.

    What the job's own items tell, oldest first.
    """
    limit = paging.limit(request.query, default=DEFAULT_LIMIT, most=MAX_LIMIT)
    cursor = request.query.get("cursor")
    opened = paging.opened(cursor) if cursor else None
    job = runtime.current().jobs.get(request.named)
    if job.durable is not NOT_DURABLE:
        job = runtime.current().steps.with_outcomes(job)
    return Reply(views.history(job, limit=limit, cursor=opened))


@jobs.endpoint("GET /{id}/lineage", _READS, LineageAnswer, errors=(404,))
def job_lineage(request: Request) -> Reply:
    """Read which jobs a job comes from, and which follow it.

    Its ancestors as it names them, and the jobs after it in its workflow.
    """
    current = runtime.current()
    job = current.jobs.get(request.named)
    content, parent = job.content or {}, job.durable.parent
    children: list[str] = []
    if job.workflow is not None:
        children = current.workflow_reading.list_following(job.workflow, request.principal)
    told = {
        "job_id": job.id,
        "parent_id": content.get("parent_id") or (parent and parent.job_id),
        "root_id": content.get("root_id"),
        "workflow_id": job.workflow and job.workflow.workflow_id,
        "children": [{"job_id": each} for each in children],
        "complete": False,
    }
    return Reply({name: value for name, value in told.items() if value is not None})
