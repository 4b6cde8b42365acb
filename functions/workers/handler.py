"""`/ojs/v1/workers…`."""

from __future__ import annotations

from collections.abc import Sequence

from ojs import runtime
from ojs.domain.errors import InvalidRequest
from ojs.http.binding import paging
from ojs.http.binding.access import Guard
from ojs.http.binding.application import Answer, Application
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.views import jobs as views
from ojs.http.views import workers as worker_views

app = Application("workers", Guard(runtime.current))

# With less time left, no more jobs are claimed: the slowest claim and reading payloads must fit.
_SPARE_MS = 10_000


@app.operation("fetch_jobs")
def fetch_jobs(request: Request) -> Answer:
    """FETCH: claim jobs for a worker."""
    given = request.parsed(models.FetchRequest)
    # Without queues, those of the worker's pool are meant, which may be any: a key that is limited
    # to queues has to name them.
    request.touches(*(given.queues or (None,)))
    jobs = runtime.current().fetch.fetch(
        given.queues or None,
        count=given.count or 1,
        worker_id=given.worker_id,
        visibility_timeout_ms=given.visibility_timeout_ms,
        strategy=given.order(),
        weights=given.weights,
        pool=given.pool,
        go_on=lambda: request.remaining_ms() > _SPARE_MS,
    )
    return Answer(views.fetched(jobs))


def _touch_jobs(request: Request, job_ids: Sequence[str]) -> None:
    """Raise PermissionDenied unless the caller may touch the queues of these jobs.

    For a key that is limited to queues this costs one read. Jobs that do not exist are left to the
    operation.
    """
    if request.principal.limited and job_ids:
        request.touches(*sorted(runtime.current().jobs.queues_of(job_ids)))


@app.operation("ack_job")
def ack_job(request: Request) -> Answer:
    """ACK."""
    given = request.parsed(models.AckRequest)
    _touch_jobs(request, [given.job_id])
    job = runtime.current().finish.ack(given.job_id, **given.outcome())
    return Answer(views.acknowledged(job))


@app.operation("nack_job")
def nack_job(request: Request) -> Answer:
    """FAIL."""
    given = request.parsed(models.NackRequest)
    _touch_jobs(request, [given.job_id])
    job = runtime.current().finish.nack(given.job_id, **given.outcome())
    return Answer(views.failed(job))


@app.operation("heartbeat")
def heartbeat(request: Request) -> Answer:
    """BEAT: a worker's heartbeat."""
    given = request.parsed(models.HeartbeatRequest)
    _touch_jobs(request, given.job_ids() or [])
    beat = runtime.current().workers.beat(
        given.worker_id,
        active_jobs=given.job_ids(),
        active_count=given.count(),
        visibility_timeout_ms=given.visibility_timeout_ms,
        state=given.state,
        info=given.info(),
        pool=given.pool,
    )
    return Answer(worker_views.heartbeat(beat))


@app.operation("beat")
def beat(request: Request) -> Answer:
    """A worker announces that it stops."""
    given = request.parsed(models.BeatRequest)
    runtime.current().workers.drain(
        given.worker_id,
        state=given.state,
        active_jobs=len(given.job_ids()) if given.count() is None else given.count(),
        info=given.info(),
        pool=given.pool,
    )
    return Answer(worker_views.drained(given.worker_id, given.state))


@app.operation("report_worker_progress")
def report_progress(request: Request) -> Answer:
    """A worker reports the progress of its job, in percent."""
    given = request.parsed(models.WorkerProgressRequest)
    if given.percentage is None and given.data is None:
        raise InvalidRequest("percentage", "is required unless data is given")
    _touch_jobs(request, [given.job_id])
    progress = runtime.current().jobs.report_progress(
        given.job_id,
        progress=None if given.percentage is None else given.percentage / 100,
        worker_id=given.worker_id,
        message=given.message,
        data=given.data,
    )
    return Answer(views.progress(progress))


@app.operation("register_worker")
def register_worker(request: Request) -> Answer:
    """A worker registers itself."""
    raw, prefix = models.registration(request.object())
    given = models.parse(models.RegisterRequest, raw, prefix)
    current = runtime.current()
    current.workers.register(given.worker_id, given.info(), given.pool)
    return Answer(worker_views.registered(given.worker_id, current.clock.now_ms()))


@app.operation("remove_worker")
def remove_worker(request: Request) -> Answer:
    """A worker removes itself."""
    runtime.current().workers.remove(request.named)
    return Answer(worker_views.removed(request.named))


@app.operation("worker_health")
def worker_health(request: Request) -> Answer:
    """Whether a worker takes jobs."""
    current = runtime.current()
    worker = current.workers.get(request.named)
    return Answer(worker_views.health(worker, current.clock.now_ms()))


@app.operation("list_workers")
def list_workers(request: Request) -> Answer:
    """A page of workers."""
    current = runtime.current()
    asked = paging.window(request.query)
    page = paging.collect(
        asked, lambda limit, cursor: current.workers.list(limit=limit, cursor=cursor)
    )
    return Answer(worker_views.page(asked, page, current.clock.now_ms()))


handler = app.complete()
