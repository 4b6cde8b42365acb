"""Deliveries: where jobs of some queues are pushed."""

from __future__ import annotations

from functions.admin.app import app
from ojs import runtime
from ojs.domain.access import Scope
from ojs.http.binding import paging
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.endpoint import BASE
from ojs.http.views import deliveries as views


@app.operation("list_deliveries", strict_query=True)
def list_deliveries(request: Request) -> Answer:
    """A page of deliveries."""
    current = runtime.current()
    page, pagination = paging.read(request.query, current.deliveries.list)
    return Answer(views.page(page.items, pagination, current.clock.now_ms()))


@app.operation("create_delivery", strict_query=True)
def create_delivery(request: Request) -> Answer:
    """Make or replace a delivery, whose name is in the body or made of its target."""
    return _put(None, request)


@app.operation("put_delivery", strict_query=True)
def put_delivery(request: Request) -> Answer:
    """Make or replace a delivery."""
    return _put(request.named, request)


def _put(name: str | None, request: Request) -> Answer:
    # A delivery takes jobs and ends them, as a worker does.
    request.needs(Scope.WORK)
    current = runtime.current()
    delivery, created = current.deliveries.put(name, request.object(), request.principal)
    answer = views.shown(delivery, current.clock.now_ms())
    if created:
        return Answer(answer, 201, {"Location": f"{BASE}/admin/deliveries/{delivery.name}"})
    return Answer(answer)


@app.operation("get_delivery", strict_query=True)
def get_delivery(request: Request) -> Answer:
    """One delivery."""
    current = runtime.current()
    delivery = current.deliveries.get(request.named)
    return Answer(views.shown(delivery, current.clock.now_ms()))


@app.operation("delete_delivery", strict_query=True)
def delete_delivery(request: Request) -> Answer:
    """Remove a delivery."""
    runtime.current().deliveries.delete(request.named)
    return Answer(views.deleted(request.named))


@app.operation("pause_delivery", strict_query=True)
def pause_delivery(request: Request) -> Answer:
    """Push no more jobs for now."""
    current = runtime.current()
    delivery = current.deliveries.pause(request.named)
    return Answer(views.shown(delivery, current.clock.now_ms()))


@app.operation("resume_delivery", strict_query=True)
def resume_delivery(request: Request) -> Answer:
    """Push jobs again."""
    request.needs(Scope.WORK)
    current = runtime.current()
    delivery = current.deliveries.resume(request.named, request.principal)
    return Answer(views.shown(delivery, current.clock.now_ms()))


@app.operation("test_delivery", strict_query=True)
def test_delivery(request: Request) -> Answer:
    """Push once what no job stands for."""
    body = request.object()
    if body:
        # What is sent then looks like a job that the target runs.
        request.needs(Scope.JOBS_WRITE)
    outcome, length_ms = runtime.current().deliveries.test(request.named, body)
    return Answer(views.tested(outcome, length_ms))
