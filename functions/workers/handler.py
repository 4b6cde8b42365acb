"""`/ojs/v1/workers…`."""

from __future__ import annotations

from collections.abc import Sequence

from ojs import runtime
from ojs.api import workers
from ojs.api.workers import touch_jobs
from ojs.domain.errors import BackendError, InvalidRequest, OjsError
from ojs.http.binding import errors
from ojs.http.binding.access import Guard
from ojs.http.binding.application import Answer, Application
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.views import jobs as views
from ojs.services.jobs.batch_finish import BatchOutcome

app = Application("workers", Guard(runtime.current))

# With less time left, no more jobs are claimed or ended: the slowest one, and reading payloads,
# must fit.
_SPARE_MS = 10_000


@app.operation("fetch_jobs")
def fetch_jobs(request: Request) -> Answer:
    """Claim jobs for a worker (FETCH), after the acks and nacks that come with the request."""
    body = request.parsed(models.FetchRequest)
    # Without queues, those of the worker's pool are meant, which may be any: a key that is limited
    # to queues has to name them.
    request.touches(*(body.queues or (None,)))
    request.about(queue=body.queues[0] if body.queues and len(body.queues) == 1 else None)
    acks, nacks = body.endings()
    acked, nacked = _end(request, acks, nacks)
    told = {
        name: views.outcomes(outcomes)
        for name, given, outcomes in (("acks", body.acks, acked), ("nacks", body.nacks, nacked))
        if given is not None
    }
    failed = _failed(acked, nacked)
    try:
        jobs = runtime.current().fetch.fetch(
            body.queues or None,
            count=body.count or 1,
            worker_id=body.worker_id,
            visibility_timeout_ms=body.visibility_timeout_ms,
            strategy=body.order(),
            weights=body.weights,
            pool=body.pool,
            caller=request.principal,
            go_on=lambda: request.remaining_ms() > _SPARE_MS,
        )
    except OjsError as error:
        if not (acks or nacks):
            raise
        # The outcomes must be told: another fetch would not tell them.
        return Answer(views.fetched([]) | told | {"fetch_error": errors.brief(error)}, failed=error)
    return Answer(views.fetched(jobs) | told, failed=failed)


def _end(
    request: Request, acks: Sequence[models.Ending], nacks: Sequence[models.Ending] = ()
) -> tuple[list[BatchOutcome], list[BatchOutcome]]:
    """Settle acks and nacks, each for itself; those in queues that the caller may not touch are
    refused.
    """
    principal = request.principal
    return runtime.current().batch_finish.end(
        acks,
        nacks,
        reaches=principal.reaches if principal.limited else None,
        go_on=lambda: request.remaining_ms() > _SPARE_MS,
    )


def _failed(*ended: Sequence[BatchOutcome]) -> OjsError | None:
    """The first outcome that is a defect, if there is one."""
    results = (outcome.result for outcomes in ended for outcome in outcomes)
    return next((result for result in results if isinstance(result, BackendError)), None)


@app.operation("ack_job")
def ack_job(request: Request) -> Answer:
    """Complete a job, or many (ACK)."""
    raw = request.object()
    if raw.get("acks") is not None:
        outcomes, _ = _end(request, models.parse(models.AcksRequest, raw).endings())
        return Answer({"acks": views.outcomes(outcomes)}, 207, failed=_failed(outcomes))
    body = models.parse(models.AckRequest, raw)
    request.about(job_id=body.job_id)
    touch_jobs(request, [body.job_id])
    job = runtime.current().finish.ack(body.job_id, **body.outcome())
    return Answer(views.acknowledged(job))


@app.operation("nack_job")
def nack_job(request: Request) -> Answer:
    """Report that a job, or many, failed (FAIL)."""
    raw = request.object()
    if raw.get("nacks") is not None:
        _, outcomes = _end(request, (), models.parse(models.NacksRequest, raw).endings())
        return Answer({"nacks": views.outcomes(outcomes)}, 207, failed=_failed(outcomes))
    body = models.parse(models.NackRequest, raw)
    request.about(job_id=body.job_id)
    touch_jobs(request, [body.job_id])
    job = runtime.current().finish.nack(body.job_id, **body.outcome())
    return Answer(views.failed(job))


@app.operation("report_worker_progress")
def report_progress(request: Request) -> Answer:
    """A worker reports the progress of its job, in percent."""
    body = request.parsed(models.WorkerProgressRequest)
    if body.percentage is None and body.data is None:
        raise InvalidRequest("percentage", "is required unless data is given")
    touch_jobs(request, [body.job_id])
    progress = runtime.current().jobs.report_progress(
        body.job_id,
        progress=None if body.percentage is None else body.percentage / 100,
        worker_id=body.worker_id,
        message=body.message,
        data=body.data,
    )
    return Answer(views.progress(progress, body.warnings(), report=True))


handler = app.serve(workers).complete()
runtime.prepare("fetch", "batch_finish", "jobs", "workers")
