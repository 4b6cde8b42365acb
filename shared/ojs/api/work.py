"""Requests of workers: fetch, ack, nack, heartbeat, and progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ojs import runtime
from ojs.api import job_answers as views
from ojs.domain.access import Scope
from ojs.domain.errors import BackendError, InvalidRequest, NotFound, OjsError, PermissionDenied
from ojs.domain.job.states import State
from ojs.domain.pool.worker import Directive
from ojs.domain.requests import Field
from ojs.http import models
from ojs.http.answer import Answer, AsIs, absent, present, source
from ojs.http.answers import Count, Id, Job, Moment, OutcomeError, ProgressAnswer
from ojs.http.binding import errors
from ojs.http.binding.request import Request
from ojs.http.endpoint import Permission, QueueScope, Reply, Resource, Success

if TYPE_CHECKING:
    from ojs.domain.job.job import Job as StoredJob
    from ojs.services.jobs.batch_finish import BatchOutcome
    from ojs.services.jobs.fetch import WorkerFetch
    from ojs.services.realtime.listening import Listening
    from ojs.services.workers.workers import HeartbeatAnswer as Beat

# With less time than this, no further job is claimed or finished. The slowest of them, and reading
# payloads, must fit into this time.
_SPARE_MS = 10_000

_b: Beat = source()


class Outcome(AsIs):
    """The result of one of several acks or nacks: the new state of the job, or the error."""

    job_id: Id
    status: Annotated[int, Field(ge=200, le=599)] = present(
        "of the answer, had it been the only one"
    )
    state: State = absent()
    attempt: Count = absent()
    max_attempts: Count = absent()
    retry_delay_ms: Count = absent()
    next_attempt_at: Moment = absent()
    completed_at: Moment = absent()
    discarded_at: Moment = absent()
    error: OutcomeError = absent()


class AcksAnswer(AsIs):
    """The outcomes of batched acks."""

    acks: list[Outcome]


class NacksAnswer(AsIs):
    """The outcomes of batched nacks."""

    nacks: list[Outcome]


class ListenAnswer(AsIs):
    """Whether the worker is listed, and so rung for new jobs."""

    listed: bool | None = present("null: unknown. The worker sends it with its next fetch")


class FetchAnswer(AsIs):
    """The claimed jobs, and the outcomes of the acks and nacks in the same request."""

    jobs: list[Job]
    acks: list[Outcome] = absent()
    nacks: list[Outcome] = absent()
    fetch_error: OutcomeError = absent("the error, if the fetch failed")
    listen: ListenAnswer = absent("if the request has `listen`")
    next_ms: Count = absent("maximum time to the next fetch; absent: poll")


class AckAnswer(AsIs):
    """A completed job."""

    acknowledged: Literal[True]
    id: Id
    job_id: Id
    state: State
    completed_at: Moment
    job: Job


class NackAnswer(AsIs):
    """The result of a nack."""

    id: Id
    job_id: Id
    state: State
    attempt: Count
    max_attempts: Count
    job: Job
    retry_delay_ms: Count = absent()
    next_attempt_at: Moment = absent()
    next_retry_at: Moment = absent()
    discarded_at: Moment = absent()
    completed_at: Moment = absent()


class HeartbeatAnswer(Answer["Beat"]):
    """The response to a heartbeat: the directive for the worker."""

    state: Directive = _b.state
    directive: Directive = state
    jobs_extended: list[Id] = _b.jobs_extended
    cancelled_jobs: list[Id] = _b.cancelled_jobs
    server_time: Moment = _b.server_time
    heartbeat_interval_ms: Count = _b.heartbeat_interval_ms


class BeatAnswer(AsIs):
    """The response to a worker that announces draining."""

    acknowledged: Literal[True]
    worker_id: str
    state: str


# --- endpoints ------------------------------------------------------------------------------------

_WORKS = Permission(Scope.WORK, QueueScope.NAMED)
_OF_JOB = Permission(Scope.WORK, QueueScope.JOB)
_JOB_ID = "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"
_ACKED = Success(AckAnswer, "The job is completed.")
_NACKED = Success(NackAnswer, "The state after the failure.")
_EACH = "The result of each ack or nack, in the order of the request."
workers = Resource("workers", "workers", lenient=True)
jobs = Resource("jobs", "jobs", lenient=True)


@workers.endpoint(
    "POST /fetch",
    _WORKS,
    FetchAnswer,
    errors=(403, 409),
    request=models.FetchRequest,
    example={"queues": ["email", "default"], "count": 5, "worker_id": "worker-1"},
)
def fetch_jobs(request: Request) -> Reply:
    """Claim jobs."""
    body = request.parsed(models.FetchRequest)
    # A request without queues means the queues of the worker's pool, which can be any. If the queue
    # scope of the caller is limited, the request must list its queues.
    request.touches(*(body.queues or (None,)))
    request.about(queue=body.queues[0] if body.queues and len(body.queues) == 1 else None)
    acks, nacks = body.endings()
    acked, nacked = _end(request, acks, nacks)
    told: dict[str, Any] = {
        name: views.outcomes(outcomes)
        for name, given, outcomes in (("acks", body.acks, acked), ("nacks", body.nacks, nacked))
        if given is not None
    }
    failed = _failed(acked, nacked)
    current = runtime.current()
    listening = current.listening
    seen = None if listening is None else _seen(body)
    try:
        jobs = current.fetch.fetch(
            body.queues or None,
            count=body.count or 1,
            worker_id=body.worker_id,
            visibility_timeout_ms=body.visibility_timeout_ms,
            strategy=body.order(),
            weights=body.weights,
            pool=body.pool,
            caller=request.principal,
            go_on=lambda: request.remaining_ms() > _SPARE_MS,
            seen=seen,
        )
        if listening is not None and seen is not None:
            told |= _listened(request, body, listening, seen, must_answer=bool(jobs))
        elif body.listen is not None:
            told |= {"listen": {"listed": False}}
    except OjsError as error:
        if not (acks or nacks):
            raise
        # The response must contain the outcomes, because another fetch wouldn't repeat them.
        return Reply(views.fetched([]) | told | {"fetch_error": errors.brief(error)}, failed=error)
    return Reply(views.fetched(jobs) | told, failed=failed)


def _seen(body: models.FetchRequest) -> WorkerFetch:
    """How the fetch of a request reads."""
    from ojs.services.jobs.fetch import WorkerFetch

    listen = body.listen
    if listen is None:
        return WorkerFetch(frozenset(body.rung))
    return WorkerFetch(frozenset(body.rung), listen.connection, listen.listed)


def _listened(
    request: Request,
    body: models.FetchRequest,
    listening: Listening,
    seen: WorkerFetch,
    *,
    must_answer: bool,
) -> dict[str, Any]:
    """List or delist the connection of the request. Return the fields of the response for it.

    Raises PermissionDenied for a foreign connection, unless the worker `must_answer` for jobs.
    """
    try:
        heard = listening.update(seen, worker_id=body.worker_id, caller=request.principal)
    except PermissionDenied:
        if not must_answer:
            raise
        heard = None
    if body.listen is None:
        return {}
    if heard is None:
        return {"listen": {"listed": False}}
    next_ms = {} if heard.next_ms is None else {"next_ms": heard.next_ms}
    return {"listen": {"listed": heard.listed}} | next_ms


def _end(
    request: Request, acks: Sequence[models.Ending], nacks: Sequence[models.Ending] = ()
) -> tuple[list[BatchOutcome], list[BatchOutcome]]:
    """Process acks and nacks independently. Reject those outside the caller's queue scope."""
    principal = request.principal
    ended = runtime.current().batch_finish.end(
        acks,
        nacks,
        reaches=principal.reaches if principal.limited else None,
        by_token=principal.tenant is not None,
        go_on=lambda: request.remaining_ms() > _SPARE_MS,
    )
    if principal.tenant is None:
        return ended
    # A lease token is checked by the write. Only the queues of jobs that it didn't end are read.
    failed = [
        each.job_id
        for outcomes in ended
        for each in outcomes
        if isinstance(each.result, OjsError) and not isinstance(each.result, NotFound)
    ]
    queues = runtime.current().jobs.queues_of(failed) if failed else {}

    def with_own_names(outcome: BatchOutcome) -> BatchOutcome:
        result = outcome.result
        queue = queues.get(outcome.job_id) if isinstance(result, OjsError) else result.queue
        if queue is None or principal.reaches(queue):
            return outcome
        return replace(outcome, result=NotFound("job", outcome.job_id))

    acked, nacked = ([with_own_names(each) for each in outcomes] for outcomes in ended)
    return acked, nacked


def _ended(
    request: Request, job_id: str, lease_token: str | None, end: Callable[[], StoredJob]
) -> StoredJob:
    """End a job that the caller can touch. A tenant's worker proves that by the lease token."""
    if request.principal.tenant is None or lease_token is None:
        _touch_jobs(request, [job_id])
        return end()
    try:
        job = end()
    except OjsError:
        _touch_jobs(request, [job_id])
        raise
    # A repeated ack is answered without a check of the token.
    request.check_job_reach(job.queue, job_id)
    return job


def _failed(*ended: Sequence[BatchOutcome]) -> OjsError | None:
    """Return the first outcome that is a failure of the backend, or None."""
    results = (outcome.result for outcomes in ended for outcome in outcomes)
    return next((result for result in results if isinstance(result, BackendError)), None)


def _touch_jobs(request: Request, job_ids: Sequence[str]) -> None:
    """Raise PermissionDenied, or NotFound, for a job outside the caller's queue scope.

    Skip missing jobs.
    """
    # Costs one read, only for a caller with a limited queue scope.
    if request.principal.limited and job_ids:
        for job_id, queue in sorted(runtime.current().jobs.queues_of(job_ids).items()):
            request.check_job_reach(queue, job_id)


def _own_jobs(request: Request, job_ids: Sequence[str]) -> Sequence[str]:
    """Return the jobs of a heartbeat. For a tenant's caller, skip other jobs like missing ones.

    Raises PermissionDenied for a job outside the queue scope of another caller.
    """
    if request.principal.tenant is None or not job_ids:
        _touch_jobs(request, job_ids)
        return job_ids
    queues = runtime.current().jobs.queues_of(job_ids)
    return [each for each in job_ids if request.principal.reaches(queues.get(each, ""))]


@workers.endpoint(
    "POST /ack",
    _WORKS,
    {200: _ACKED, 207: Success(AcksAnswer, _EACH)},
    errors=(404, 409, 413),
    request=models.AckRequest,
    example={"job_id": _JOB_ID, "worker_id": "worker-1", "result": {"delivered": True}},
)
def ack_job(request: Request) -> Reply:
    """Acknowledge a job, or many, as done."""
    raw = request.object()
    if raw.get("acks") is not None:
        outcomes, _ = _end(request, models.parse(models.AcksRequest, raw).endings())
        return Reply({"acks": views.outcomes(outcomes)}, 207, failed=_failed(outcomes))
    body = models.parse(models.AckRequest, raw)
    request.about(job_id=body.job_id)
    end = partial(runtime.current().finish.ack, body.job_id, **body.outcome())
    job = _ended(request, body.job_id, body.lease_token, end)
    return Reply(views.acknowledged(job))


@workers.endpoint(
    "POST /nack",
    _WORKS,
    {200: _NACKED, 207: Success(NacksAnswer, _EACH)},
    errors=(404, 409),
    request=models.NackRequest,
    example={
        "job_id": _JOB_ID,
        "worker_id": "worker-1",
        "error": {
            "type": "SmtpError",
            "message": "connection refused",
            "retryable": True,
            "backtrace": ["at send (mail.py:42)"],
        },
    },
)
def nack_job(request: Request) -> Reply:
    """Report a job, or many, as failed."""
    raw = request.object()
    if raw.get("nacks") is not None:
        _, outcomes = _end(request, (), models.parse(models.NacksRequest, raw).endings())
        return Reply({"nacks": views.outcomes(outcomes)}, 207, failed=_failed(outcomes))
    body = models.parse(models.NackRequest, raw)
    request.about(job_id=body.job_id)
    end = partial(runtime.current().finish.nack, body.job_id, **body.outcome())
    job = _ended(request, body.job_id, body.lease_token, end)
    return Reply(views.failed(job))


@jobs.endpoint(
    "POST /{id}/ack",
    _OF_JOB,
    _ACKED,
    errors=(404, 409, 413),
    request=models.AckOptions,
    body_required=False,
    example={"result": {"delivered": True}},
)
def ack_job_by_path(request: Request) -> Reply:
    """Acknowledge a job as done."""
    body = request.parsed(models.AckOptions)
    job = runtime.current().finish.ack(request.named, **body.outcome())
    return Reply(views.acknowledged(job))


@jobs.endpoint(
    "POST /{id}/nack",
    _OF_JOB,
    _NACKED,
    errors=(404, 409),
    request=models.NackOptions,
    example={"error": {"type": "SmtpError", "message": "connection refused"}},
)
def nack_job_by_path(request: Request) -> Reply:
    """Report a job as failed."""
    body = request.parsed(models.NackOptions)
    job = runtime.current().finish.nack(request.named, **body.outcome())
    return Reply(views.failed(job))


@workers.endpoint(
    "POST /heartbeat",
    _WORKS,
    HeartbeatAnswer,
    errors=(409, 413),
    request=models.HeartbeatRequest,
    example={"worker_id": "worker-1", "active_jobs": [_JOB_ID], "state": "running"},
)
def heartbeat(request: Request) -> Reply:
    """Extend leases, take directives."""
    body = request.parsed(models.HeartbeatRequest)
    active_jobs = _own_jobs(request, body.job_ids())
    beat = runtime.current().workers.beat(
        body.worker_id,
        active_jobs=active_jobs,
        active_count=body.count(),
        visibility_timeout_ms=body.visibility_timeout_ms,
        state=body.state,
        info=body.info(),
        pool=body.pool,
        caller=request.principal,
        next_ms=body.next_ms,
    )
    return Reply(HeartbeatAnswer.of(beat))


@workers.endpoint(
    "POST /beat",
    _WORKS,
    BeatAnswer,
    errors=(409, 413),
    request=models.BeatRequest,
    example={"worker_id": "worker-1", "state": "drain", "active_jobs": 2},
)
def beat(request: Request) -> Reply:
    """Announce draining."""
    body = request.parsed(models.BeatRequest)
    runtime.current().workers.drain(
        body.worker_id,
        state=body.state,
        active_jobs=len(body.job_ids()) if body.count() is None else body.count(),
        info=body.info(),
        pool=body.pool,
        caller=request.principal,
    )
    return Reply({"acknowledged": True, "worker_id": body.worker_id, "state": body.state})


@workers.endpoint(
    "POST /progress",
    _WORKS,
    ProgressAnswer,
    errors=(404, 413),
    request=models.WorkerProgressRequest,
    example={"job_id": _JOB_ID, "worker_id": "worker-1", "percentage": 47},
)
def report_worker_progress(request: Request) -> Reply:
    """Report how far a job is."""
    body = request.parsed(models.WorkerProgressRequest)
    if body.percentage is None and body.data is None:
        raise InvalidRequest("percentage", "is required unless data is given")
    _touch_jobs(request, [body.job_id])
    warnings: list[str] = []
    if body.checkpoint is not None:
        warnings = runtime.current().checkpoints.report(
            body.job_id, body.checkpoint, worker_id=body.worker_id, lease_token=body.lease_token
        )
    progress = runtime.current().jobs.report_progress(
        body.job_id,
        progress=None if body.percentage is None else body.percentage / 100,
        worker_id=body.worker_id,
        message=body.message,
        data=body.data,
        lease_token=body.lease_token,
    )
    return Reply(views.progress(progress, warnings, report=True))
