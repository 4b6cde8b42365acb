"""`/ojs/v1/jobs…`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from functions import job_acts
from ojs import runtime
from ojs.domain.errors import (
    BackendError,
    InvalidRequest,
    KeyTaken,
    MiddlewareError,
    NotStored,
    OjsError,
    TooManyJobs,
)
from ojs.domain.job import envelope, idempotency
from ojs.domain.job.envelope import JobRequest
from ojs.domain.job.foreign import MAX_WARNINGS
from ojs.domain.job.idempotency import IdempotencyKey
from ojs.domain.job.job import DEFAULT_QUEUE, Job
from ojs.http.binding import paging
from ojs.http.binding.access import Guard
from ojs.http.binding.application import Answer, Application
from ojs.http.binding.errors import JobsRefused
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.contract.operations import MAX_RESULT_WAIT_S, MAX_TIMEOUT_S
from ojs.http.endpoint import BASE
from ojs.http.parameters import DEFAULT_LIMIT, MAX_LIMIT
from ojs.http.views import backpressure
from ojs.http.views import jobs as views

if TYPE_CHECKING:
    from ojs.services.jobs.bulk_push import PushOutcome
    from ojs.services.jobs.enqueue import Pushed

app = Application("jobs", Guard(runtime.current))

# How often a waiting request reads the state: each half second costs one read unit a second.
_POLL_EVERY_MS = 500
# Time reserved to build and send the answer before the function is stopped.
_SPARE_MS = 2_000
sleep = time.sleep
# Of a batch, the first so many jobs are looked at for what has no effect: others will be like them.
_WARNED_JOBS = 100


@app.operation("enqueue_job")
def enqueue_job(request: Request) -> Answer:
    """Enqueue one job (PUSH)."""
    body = request.object()
    wanted = envelope.parse(body)
    (pushed,) = _push(request, body, [wanted], batch=False)
    request.about(job_id=pushed.job.id, queue=pushed.job.queue)
    warnings = [*_absent([pushed]), *envelope.warnings(wanted)]
    if pushed.deduplicated:
        return Answer(views.deduplicated(pushed.job, warnings))
    headers = {
        "Location": f"{BASE}/jobs/{pushed.job.id}",
        **backpressure.pressure_headers([pushed]),
        **backpressure.limit_headers(pushed.limit_status),
    }
    return Answer(views.detail(pushed.job, warnings), 201, headers)


@app.operation("enqueue_batch")
def enqueue_batch(request: Request) -> Answer:
    """Enqueue many jobs, all or none (PUSH)."""
    body = request.object()
    raw = body.get("jobs")
    if raw is None:
        raise InvalidRequest("jobs", "is required")
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
    warned = list(islice(chain(_absent(pushed), warnings), MAX_WARNINGS))
    return Answer(views.batch([one.job for one in pushed], warned), 201, headers)


@app.operation("enqueue_bulk")
def enqueue_bulk(request: Request) -> Answer:
    """Enqueue many jobs, each for itself, or all or none if the request says so."""
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
    answer = views.bulk_pushed(outcomes, list(islice(_absent(pushed), MAX_WARNINGS)))
    if not pushed:
        raise JobsRefused([one for one in outcomes if isinstance(one, OjsError)], answer)
    headers = {"X-OJS-Batch-Size": str(len(outcomes)), **backpressure.pressure_headers(pushed)}
    return Answer(answer, 201 if len(pushed) == len(outcomes) else 207, headers)


def _parsed(job: Any) -> JobRequest | OjsError:
    try:
        return envelope.parse(job)
    except OjsError as error:
        return error


def _all_or_none(
    request: Request, wanted: Sequence[JobRequest | OjsError], key: IdempotencyKey | None
) -> list[PushOutcome]:
    """Store all jobs of a request or none. Then each has its own error, or is told of another's."""
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
    """The error of a batch by the jobs that it is about: one, those of a queue, or all."""
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
    """Enqueue the job or the `batch` of a request, once for each idempotency key."""
    queues = {job.value_of("queue") or DEFAULT_QUEUE for job in jobs}
    request.about(
        queue=queues.pop() if len(queues) == 1 else None,
        job_id=jobs[0].id if not batch else None,
    )
    return _store(request, jobs, _key(request, body), batch=batch)


def _key(
    request: Request, body: Mapping[str, Any], named: str | None = None
) -> IdempotencyKey | None:
    """The idempotency key of a push: that of the header, or else the one `named` in the body."""
    header = request.headers.get(idempotency.HEADER.lower())
    text = named if header is None else header
    if text is None:
        return None
    return IdempotencyKey.of(
        text,
        caller=request.principal,
        operation=request.operation.id,
        # What the jobs are: how the key is sent does not count.
        body={name: body[name] for name in body if name != "idempotency_key"} if named else body,
        field=idempotency.HEADER if header is not None else "idempotency_key",
    )


def _pushing(request: Request) -> dict[str, Any]:
    """Who pushes, with what, and how long they wait for room."""
    current, principal = runtime.current(), request.principal
    # The middleware comes before the wait for room.
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
    """What is said of jobs that an earlier try of the request pushed, and that are not there."""
    for one in pushed:
        if one.absent:
            yield f"Job '{one.job.id}' is not there any more; this is what was pushed."


def _job_request(raw: Any, index: int) -> JobRequest:
    try:
        return envelope.parse(raw, prefix=f"jobs[{index}].")
    except OjsError as error:
        raise envelope.at_index(error, index) from None


@app.operation("get_job", strict_query=True)
def get_job(request: Request) -> Answer:
    """Show one job (INFO)."""
    return Answer(views.detail(runtime.current().jobs.get(request.named)))


@app.operation("cancel_job", "cancel_job_by_post")
def cancel_job(request: Request) -> Answer:
    """Cancel a job (CANCEL)."""
    return Answer(views.detail(runtime.current().jobs.cancel(request.named)))


@app.operation("activate_job")
def activate_job(request: Request) -> Answer:
    """Make a pending job available (ACTIVATE)."""
    return Answer(views.wrapped(runtime.current().jobs.activate(request.named)))


@app.operation("ack_job_by_path")
def ack_job(request: Request) -> Answer:
    """Complete the job in the path (ACK)."""
    body = request.parsed(models.AckOptions)
    job = runtime.current().finish.ack(request.named, **body.outcome())
    return Answer(views.acknowledged(job))


@app.operation("nack_job_by_path")
def nack_job(request: Request) -> Answer:
    """Report that the job in the path failed (FAIL)."""
    body = request.parsed(models.NackOptions)
    job = runtime.current().finish.nack(request.named, **body.outcome())
    return Answer(views.failed(job))


@app.operation("get_result", strict_query=True)
def get_result(request: Request) -> Answer:
    """A job's result, waiting for it if requested."""
    job_id, jobs = request.named, runtime.current().jobs
    wait_ms = _wait_ms(request)
    while wait_ms > 0 and not jobs.state(job_id).terminal:
        pause_ms = min(_POLL_EVERY_MS, wait_ms)
        sleep(pause_ms / 1_000)
        wait_ms = min(wait_ms - pause_ms, request.remaining_ms() - _SPARE_MS)
    return _result(jobs.get(job_id))


def _result(job: Job) -> Answer:
    if job.state.terminal:
        return Answer(views.result(job))
    return Answer(views.result(job), 202, {"Retry-After": "1"})


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


@app.operation("list_retries", strict_query=True)
def list_retries(request: Request) -> Answer:
    """A job's error history."""
    return Answer(views.retries(runtime.current().jobs.get(request.named)))


@app.operation("get_progress", strict_query=True)
def get_progress(request: Request) -> Answer:
    """The progress that a job's worker reported."""
    return Answer(views.progress(runtime.current().jobs.progress(request.named)))


@app.operation("report_progress")
def report_progress(request: Request) -> Answer:
    """A worker reports the progress of its job."""
    body = request.parsed(models.ProgressRequest)
    progress = runtime.current().jobs.report_progress(
        request.named,
        progress=body.progress,
        worker_id=body.worker_id,
        message=body.message,
        data=body.data,
    )
    return Answer(views.progress(progress, body.warnings(), report=True))


@app.operation("job_history", strict_query=True)
def job_history(request: Request) -> Answer:
    """What happened to a job."""
    limit = paging.limit(request.query, default=DEFAULT_LIMIT, most=MAX_LIMIT)
    cursor = request.query.get("cursor")
    opened = paging.opened(cursor) if cursor else None
    job = runtime.current().jobs.get(request.named)
    return Answer(views.history(job, limit=limit, cursor=opened))


job_acts.bind(app)

handler = app.complete()
runtime.prepare("enqueue", "batch_finish", "jobs")
