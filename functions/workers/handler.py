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

app = Application("workers", Guard(runtime.current))

# No more jobs are claimed when less than this is left: the slowest claim, and reading the contents,
# must still fit.
_SPARE_MS = 10_000


@app.operation("fetch_jobs")
def fetch_jobs(request: Request) -> Answer:
    """FETCH."""
    given = request.parsed(models.FetchRequest)
    # Without queues it is those of its pool, which it may have named before: a limited key has to
    # say which.
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
    """Raise PermissionDenied unless whoever asks may touch the queues of these jobs.

    Costs a limited key one read; jobs that are not there are the operation's own business.
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
    """BEAT."""
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
    return Answer(
        {
            "state": beat.state.value,
            "directive": beat.state.value,
            "jobs_extended": beat.jobs_extended,
            "cancelled_jobs": beat.cancelled_jobs,
            "server_time": beat.server_time,
        }
    )


@app.operation("beat")
def beat(request: Request) -> Answer:
    """A worker announces that it drains."""
    given = request.parsed(models.BeatRequest)
    runtime.current().workers.drain(
        given.worker_id,
        state=given.state,
        active_jobs=len(given.job_ids()) if given.count() is None else given.count(),
        info=given.info(),
        pool=given.pool,
    )
    return Answer({"acknowledged": True, "worker_id": given.worker_id, "state": given.state})


@app.operation("report_worker_progress")
def report_progress(request: Request) -> Answer:
    """A worker says how far a job is, in percent."""
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
    return Answer(progress.to_dict())


@app.operation("register_worker")
def register_worker(request: Request) -> Answer:
    """A worker introduces itself."""
    raw, prefix = models.registration(request.object())
    given = models.parse(models.RegisterRequest, raw, prefix)
    current = runtime.current()
    current.workers.register(given.worker_id, given.info(), given.pool)
    return Answer(views.registered(given.worker_id, current.clock.now_ms()))


@app.operation("remove_worker")
def remove_worker(request: Request) -> Answer:
    """A worker signs off."""
    runtime.current().workers.remove(request.named)
    return Answer({"deleted": True, "worker_id": request.named})


@app.operation("worker_health")
def worker_health(request: Request) -> Answer:
    """Whether a worker takes jobs. Reading it succeeds whatever the answer is."""
    current = runtime.current()
    worker = current.workers.get(request.named)
    shown = worker.to_dict(current.clock.now_ms())
    return Answer(
        {
            "worker_id": worker.id,
            "state": shown["state"],
            "accepting_jobs": worker.may_fetch,
            "active_jobs": worker.active_jobs,
            "last_heartbeat": shown["last_heartbeat"],
        }
    )


@app.operation("list_workers")
def list_workers(request: Request) -> Answer:
    """A page of workers."""
    current = runtime.current()
    asked = paging.window(request.query)
    page = paging.collect(
        asked, lambda limit, cursor: current.workers.list(limit=limit, cursor=cursor)
    )
    return Answer(views.workers_page(asked, page, current.clock.now_ms()))


handler = app.complete()
