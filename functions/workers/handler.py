"""`/ojs/v1/workers…`."""

from __future__ import annotations

from ojs import runtime
from ojs.api import work
from ojs.http.binding import paging
from ojs.http.binding.access import Guard
from ojs.http.binding.application import Answer, Application
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.views import workers as worker_views

app = Application("workers", Guard(runtime.current))


@app.operation("register_worker")
def register_worker(request: Request) -> Answer:
    """A worker registers itself."""
    raw, prefix = models.registration(request.object())
    body = models.parse(models.RegisterRequest, raw, prefix)
    current = runtime.current()
    current.workers.register(body.worker_id, body.info(), body.pool, request.principal)
    return Answer(worker_views.registered(body.worker_id, current.clock.now_ms()))


@app.operation("remove_worker")
def remove_worker(request: Request) -> Answer:
    """A worker removes itself."""
    runtime.current().workers.remove(request.named, request.principal)
    return Answer(worker_views.removed(request.named))


@app.operation("worker_health", strict_query=True)
def worker_health(request: Request) -> Answer:
    """Whether a worker takes jobs."""
    current = runtime.current()
    worker = current.workers.get(request.named, request.principal)
    return Answer(worker_views.health(worker, current.clock.now_ms()))


@app.operation("list_workers", strict_query=True)
def list_workers(request: Request) -> Answer:
    """A page of workers."""
    current = runtime.current()
    page, pagination = paging.read(request.query, current.workers.list)
    return Answer(worker_views.page(page, pagination, current.clock.now_ms()))


handler = app.serve(work).complete()
runtime.prepare("fetch", "batch_finish", "jobs", "workers")
