"""Rate limits of keys and of queues."""

from __future__ import annotations

from functions.admin.app import app
from ojs import runtime
from ojs.domain.errors import InvalidRequest, ValidationFailed
from ojs.http.binding import paging
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.views import rate_limits as limits_views


@app.operation("list_rate_limits", strict_query=True)
def list_rate_limits(request: Request) -> Answer:
    """A page of keys."""
    return Answer(limits_views.page(*paging.read(request.query, runtime.current().limits.list)))


@app.operation("get_rate_limit", strict_query=True)
def get_rate_limit(request: Request) -> Answer:
    """A key's limits and how much of them is used."""
    return Answer(limits_views.shown(runtime.current().limits.get(request.named)))


@app.operation("put_rate_limit", "put_rate_limit_override")
def override_rate_limit(request: Request) -> Answer:
    """Override the limits of a key's jobs."""
    current = runtime.current()
    override = limits_views.override(request.object(), now_ms=current.clock.now_ms())
    return Answer(limits_views.shown(current.limits.override(request.named, override)))


@app.operation("delete_rate_limit", "delete_rate_limit_override")
def lift_rate_limit(request: Request) -> Answer:
    """Remove the override of a key's limits."""
    return Answer(limits_views.shown(runtime.current().limits.lift(request.named)))


@app.operation("set_queue_limits", strict_query=True)
def set_queue_limits(request: Request) -> Answer:
    """Change a queue's own limits; creates the queue if it is new."""
    current, name = runtime.current(), request.named
    try:
        config = request.parsed(models.QueueLimitsRequest).config()
    except ValidationFailed as error:
        # 400 as in the rest of a queue's configuration; 422 is for the policies of jobs.
        raise InvalidRequest(error.field, error.reason, details=error.details) from None
    queue = current.queues.configure(name, config)
    return Answer(limits_views.of_queue(current.queues.usage(queue)))
