"""Workers as an operator sees them."""

from __future__ import annotations

from functions.admin.app import app
from ojs import runtime
from ojs.http.binding import paging
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.views import workers as worker_views


@app.operation("admin_list_workers", strict_query=True)
def list_workers(request: Request) -> Answer:
    """A page of workers."""
    current = runtime.current()
    page, pagination = paging.read(request.query, current.workers.list)
    return Answer(worker_views.page(page, pagination, current.clock.now_ms()))


@app.operation("get_worker", strict_query=True)
def get_worker(request: Request) -> Answer:
    """One worker."""
    current = runtime.current()
    worker = current.workers.get(request.named)
    return Answer(worker_views.detail(worker, current.clock.now_ms()))


@app.operation("quiet_worker")
def quiet_worker(request: Request) -> Answer:
    """Direct a worker to finish its jobs and fetch no more."""
    return _directed(request.named, "quiet")


@app.operation("direct_worker")
def direct_worker(request: Request) -> Answer:
    """Direct a worker to run, go quiet or terminate."""
    body = request.parsed(models.DirectiveRequest)
    return _directed(body.worker_id, body.directive)


def _directed(worker_id: str, directive: str) -> Answer:
    current = runtime.current()
    worker = current.workers.direct(worker_id, directive)
    return Answer(worker_views.detail(worker, current.clock.now_ms()))


@app.operation("admin_remove_worker")
def remove_worker(request: Request) -> Answer:
    """Remove a worker from the list."""
    runtime.current().workers.remove(request.named)
    return Answer(worker_views.removed(request.named))
