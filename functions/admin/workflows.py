"""Workflows: created, read, cancelled and retried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from functions.admin.app import app
from ojs import runtime
from ojs.domain.errors import InvalidRequest, PayloadTooLarge
from ojs.domain.job import idempotency
from ojs.domain.page import Page
from ojs.domain.workflow import request as workflow_request
from ojs.domain.workflow.advance import RetryMode, WorkflowState
from ojs.http.binding import negotiation, paging, query
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.contract.operations import (
    ALSO_RUNNING,
    DEFAULT_RESULTS,
    MAX_NODE,
    MAX_RESULTS,
    MAX_SHOWN_STEPS,
    MAX_WORKFLOW_BYTES,
    NEVER,
    WORKFLOW_STATES,
)
from ojs.http.endpoint import BASE
from ojs.http.views import backpressure
from ojs.http.views import workflows as views

if TYPE_CHECKING:
    from ojs.store.workflows.workflows import WorkflowRecord

_NO_KEY = "not taken here; send an `id` in the body instead: of one id there is one workflow"


@app.operation("create_workflow", strict_query=True)
def create(request: Request) -> Answer:
    """Create a workflow, and start it."""
    negotiation.refuse_header(request.headers, idempotency.HEADER, _NO_KEY)
    if (size := request.body_bytes) > MAX_WORKFLOW_BYTES:
        raise PayloadTooLarge("body", size=size, limit=MAX_WORKFLOW_BYTES)
    current = runtime.current()
    definition = workflow_request.parse(request.object(), now_ms=current.clock.now_ms())
    record = current.workflow_creation.create(
        definition,
        producer=backpressure.producer(request.headers, request.principal),
        reaches=request.principal.reaches,
        trace=None if request.trace is None else request.trace.traceparent,
    )
    view = current.workflow_reading.outline(record, limit=MAX_SHOWN_STEPS)
    return Answer(views.detail(view), 201, {"Location": f"{BASE}/workflows/{record.id}"})


@app.operation("list_workflows", strict_query=True)
def list_workflows(request: Request) -> Answer:
    """A page of workflows."""
    state = None
    if "state" in request.query:
        told = query.choice(request.query, "state", WORKFLOW_STATES, default="")
        if told == NEVER:
            return Answer(views.page(*paging.read(request.query, _nothing)))
        state = WorkflowState.RUNNING if told == ALSO_RUNNING else WorkflowState(told)
    name = request.query.get("name")
    listing = runtime.current().workflow_reading.listing(request.principal, state=state, name=name)
    return Answer(views.page(*paging.read(request.query, listing)))


def _nothing(*, limit: int, cursor: str | None) -> Page[WorkflowRecord]:
    del limit, cursor
    return Page([], None)


@app.operation("get_workflow", strict_query=True)
def get_workflow(request: Request) -> Answer:
    """A workflow and its steps."""
    limit = paging.limit(request.query, default=MAX_SHOWN_STEPS, most=MAX_SHOWN_STEPS)
    view = runtime.current().workflow_reading.view(
        request.named, request.principal, limit=limit, cursor=_cursor(request)
    )
    return Answer(views.detail(view))


@app.operation("workflow_progress", strict_query=True)
def progress(request: Request) -> Answer:
    """How far a workflow is."""
    view = runtime.current().workflow_reading.view(
        request.named, request.principal, limit=MAX_SHOWN_STEPS, progress=True
    )
    return Answer(views.progress(view, MAX_SHOWN_STEPS))


@app.operation("workflow_results", strict_query=True)
def results(request: Request) -> Answer:
    """The results that a step is given."""
    current, workflow_id = runtime.current(), request.named
    current.workflow_reading.check_reach(workflow_id, request.principal)
    limit = paging.limit(request.query, default=DEFAULT_RESULTS, most=MAX_RESULTS)
    cursor = _cursor(request)
    if not request.query.get("step"):
        raise InvalidRequest("step", "is required: the `node` of the step that is given them")
    node = paging.integer(request.query, "step", default=0, least=0, most=MAX_NODE)
    after = current.workflow_reading.position(workflow_id, node, cursor)
    found = current.workflow_results.page(workflow_id, node, limit=limit, after=after)
    return Answer(views.results(workflow_id, node, found, limit))


@app.operation("cancel_workflow", "cancel_workflow_by_post", strict_query=True)
def cancel(request: Request) -> Answer:
    """Cancel a workflow that is not over."""
    current, workflow_id = runtime.current(), request.named
    current.workflow_reading.check_reach(workflow_id, request.principal)
    return Answer(views.cancelled(current.workflow_control.cancel(workflow_id)))


@app.operation("retry_workflow", strict_query=True)
def retry(request: Request) -> Answer:
    """Run a workflow that is over again."""
    current, workflow_id = runtime.current(), request.named
    mode = RetryMode(request.parsed(models.RetryWorkflowRequest).mode or RetryMode.FAILED)
    current.workflow_reading.check_reach(workflow_id, request.principal)
    record = current.workflow_control.retry(workflow_id, mode)
    return Answer(views.detail(current.workflow_reading.outline(record, limit=MAX_SHOWN_STEPS)))


def _cursor(request: Request) -> str | None:
    cursor = request.query.get("cursor")
    return paging.opened(cursor) if cursor else None
