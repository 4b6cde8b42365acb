"""`/ojs/v1/jobs…`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from functions import job_acts
from ojs import runtime
from ojs.domain.errors import InvalidRequest, OjsError
from ojs.domain.job import envelope, idempotency
from ojs.domain.job.envelope import JobRequest
from ojs.domain.job.foreign import MAX_WARNINGS
from ojs.domain.job.job import DEFAULT_QUEUE, Job
from ojs.http.binding import paging
from ojs.http.binding.access import Guard
from ojs.http.binding.application import Answer, Application
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.contract.operations import (
    BASE,
    DEFAULT_LIMIT,
    MAX_LIMIT,
    MAX_RESULT_WAIT_S,
    MAX_TIMEOUT_S,
)
from ojs.http.views import backpressure
from ojs.http.views import jobs as views
from ojs.http.views import rate_limits as limits_views

if TYPE_CHECKING:
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
        **limits_views.headers(pushed.limit_status),
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


def _push(
    request: Request, body: Mapping[str, Any], jobs: Sequence[JobRequest], *, batch: bool
) -> list[Pushed]:
    """Enqueue the job or the `batch` of a request, once for each idempotency key."""
    queues = {job.value_of("queue") or DEFAULT_QUEUE for job in jobs}
    request.about(
        queue=queues.pop() if len(queues) == 1 else None,
        job_id=jobs[0].id if not batch else None,
    )
    current, principal = runtime.current(), request.principal
    # The middleware comes before the wait for room.
    spare_ms = 0 if current.middleware is None else current.middleware.timeout_ms
    options: dict[str, Any] = {
        "producer": backpressure.producer(request.headers, principal),
        "reaches": principal.reaches,
        "wait_ms": backpressure.wait_ms(request.headers, lambda: request.remaining_ms() - spare_ms),
        "trace": request.trace,
    }
    header = request.headers.get(idempotency.HEADER.lower())
    if header is not None:
        key = idempotency.IdempotencyKey.of(
            header, caller=principal, operation=request.operation.id, body=body
        )
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


@app.operation("get_job")
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


@app.operation("get_result")
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


@app.operation("list_retries")
def list_retries(request: Request) -> Answer:
    """A job's error history."""
    return Answer(views.retries(runtime.current().jobs.get(request.named)))


@app.operation("get_progress")
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
    return Answer(views.progress(progress, body.warnings()))


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
runtime.prepare()
