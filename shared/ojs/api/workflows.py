"""Workflows: create, read, cancel, and retry.

Responses list steps as clients send them: the jobs and the callbacks of a batch in one list.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from ojs import runtime
from ojs.api import backpressure
from ojs.api.job_answers import MAX_ANSWER_BYTES, MAX_COPY_BYTES, sent_bytes
from ojs.domain import jsontext, times
from ojs.domain.access import Scope
from ojs.domain.errors import InvalidRequest, PayloadTooLarge
from ojs.domain.job import idempotency
from ojs.domain.job.envelope import MAX_NAME_BYTES
from ojs.domain.job.job import MISSING
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.domain.requests import Field
from ojs.domain.workflow import request as workflow_request
from ojs.domain.workflow.advance import RetryMode, WorkflowState
from ojs.domain.workflow.graph import (
    Callback,
    Graph,
    Step,
    StepKind,
    StepTrigger,
    needs_of,
)
from ojs.domain.workflow.graph import StepState as StoredState
from ojs.http.answer import Answer, AsIs, absent, made, maybe, moment, shown, source
from ojs.http.answers import Count, Fraction, Id, JobError, Moment, Omitted
from ojs.http.binding import negotiation, paging, query
from ojs.http.binding.paging import Listed, Paged, Position
from ojs.http.binding.request import Request
from ojs.http.endpoint import BASE, Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.models import (
    NoOptions,
    RetryWorkflowRequest,
    WorkflowKind,
    WorkflowRequest,
)
from ojs.http.parameters import PAGING, PRODUCER, SEALED, one_of, whole
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from ojs.services.workflows.control import CancelledWorkflow
    from ojs.services.workflows.reading import WorkflowPart
    from ojs.services.workflows.results import StepResultsPart
    from ojs.store.workflows.workflows import WorkflowRecord

# Steps and results in one response. Each job that was started consumes half a read unit.
MAX_SHOWN_STEPS = 1_000
DEFAULT_RESULTS, MAX_RESULTS = 100, 1_000
# More than the number of nodes in any workflow.
MAX_NODE = 1_000_000
MAX_WORKFLOW_BYTES = 5_000_000
# Reserved for the parts that are not steps: the workflow twice, names, and errors.
_AROUND_BYTES = 500_000
# A larger field of a step is omitted and listed under `omitted`.
_MAX_FIELD_BYTES = 65_536
# A callback waits for all steps of its batch. If there are more, its `depends_on` is absent.
_MAX_NAMED = 1_000
# Characters of an error in a workflow. The job has the full error.
_MAX_MESSAGE = 200
_LARGE = ("depends_on", "args", "result", "error")
StepState = Literal["waiting", "pending", "active", "completed", "failed", "cancelled"]
_OF_JOB: dict[State, StepState] = {
    State.ACTIVE: "active",
    State.COMPLETED: "completed",
    State.CANCELLED: "failed",
    State.DISCARDED: "failed",
}
_OF_STEP: dict[StoredState, StepState] = {
    StoredState.WAITING: "waiting",
    StoredState.COMPLETED: "completed",
    StoredState.FAILED: "failed",
    StoredState.CANCELLED: "cancelled",
    StoredState.SKIPPED: "cancelled",
}


def _outer(graph: Graph, opening: int) -> Sequence[int]:
    """Return the steps of a composite as the client sent them."""
    children = graph.children[opening]
    if graph.step(opening).kind is StepKind.BATCH:
        return (*graph.children[children[0]], *children[1:])
    return children


@record(frozen=True)
class StepPlace:
    """A step and its index in the composite that contains it."""

    view: WorkflowPart
    index: int
    node: int

    @property
    def step(self) -> Step:
        return self.view.graph.step(self.node)

    @property
    def id(self) -> str:
        # The admin UI and the Python SDK require an ID for each step.
        return self.step.id or str(self.index)

    @property
    def type(self) -> str:
        return self.step.type or self.step.kind.value

    @property
    def state(self) -> StepState:
        """The state of the step. If it was started, its job determines the state."""
        view, node = self.view, self.node
        found = view.record.graph_state.state_of(view.graph, node)
        if found is not StoredState.STARTED:
            return _OF_STEP[found]
        if not view.graph.is_job(node):
            return "active"
        job = view.jobs.get(node)
        return "pending" if job is None else _OF_JOB.get(job.state, "pending")

    @property
    def progress(self) -> float:
        return _done(self.view, self.node)


def _done(view: WorkflowPart, node: int) -> float:
    """Return the fraction of finished jobs of a step. Running jobs add their reported progress."""
    graph, ended = view.graph, view.record.graph_state.ended
    first, last = (bisect_left(graph.jobs, at) for at in (node, graph.exits[node] + 1))
    done = 0.0
    for job_node in graph.jobs[first:last]:
        if ended >> job_node & 1:
            done += 1
        elif (job := view.jobs.get(job_node)) is not None:
            reported = (job.progress or {}).get("progress")
            done += 1 if job.state.terminal else float(reported or 0)
    return round(done / (last - first), 4)


def _why(job: Job) -> dict[str, Any]:
    if job.state is State.DISCARDED and job.noted:
        failure = job.noted[-1].failure
        code, message = failure.code, failure.message[:_MAX_MESSAGE]
    else:
        code, message = job.state.value, f"The job was {job.state.value}."
    return {"job_id": job.id, "code": code, "message": message, "attempt": job.attempt}


class _Tree:
    """The steps of a part of a workflow, up to the size limit of a response."""

    def __init__(self, view: WorkflowPart, room: int) -> None:
        self._view = view
        self._graph = view.graph
        self._room = room
        # The first job that is not shown, or None if the last job is shown.
        self.after_last = view.after_last
        self.shown = self._steps(0)

    @property
    def next_cursor(self) -> str | None:
        """The cursor of the first job that is not shown."""
        return None if self.after_last is None else paging.sealed(str(self.after_last))

    def _steps(self, opening: int) -> list[WorkflowStep]:
        """Build the visible steps of a composite and the steps inside them."""
        outer = _outer(self._graph, opening)
        return [
            self._step(node, index, outer)
            for index, node in enumerate(outer)
            if self._visible(node)
        ]

    def _visible(self, node: int) -> bool:
        """Return whether a step is or contains a job to show."""
        jobs = self._graph.jobs
        at = bisect_left(jobs, max(node, self._view.first))
        if at == len(jobs) or jobs[at] > self._graph.exits[node]:
            return False
        return self.after_last is None or jobs[at] < self.after_last

    def _step(self, node: int, index: int, outer: Sequence[int]) -> WorkflowStep:
        view, graph, place = self._view, self._graph, StepPlace(self._view, index, node)
        step, job = place.step, view.jobs.get(node)
        told: dict[str, Any] = {
            "index": index,
            "node": node,
            "id": place.id,
            "name": step.name,
            "type": place.type,
            "state": place.state,
            "job_state": job and job.state.value,
            "callback": step.callback and step.callback.value,
            "depends_on": _depends_on(graph, node, outer),
            **({"error": view.refused.get(node)} if job is None else _of_job(job)),
        }
        if step.callback is None and step.trigger is not StepTrigger.ALL_SUCCEEDED:
            told["trigger"] = step.trigger.value
        # A null result is kept, because it is a result.
        shown = {name: each for name, each in told.items() if each is not None or name == "result"}
        shown["job_id"] = view.job_id(node)
        large = [
            name for name in _LARGE if name in shown and sent_bytes(shown[name]) > _MAX_FIELD_BYTES
        ]
        for name in large:
            del shown[name]
        if large:
            shown["omitted"] = large
        self._spend(sent_bytes(shown) + 1, node)
        if not graph.is_job(node):
            shown["steps"] = self._steps(node)
        return cast("WorkflowStep", shown)

    def _spend(self, size: int, node: int) -> None:
        """Subtract the size of a step. If no space is left, the step is the last one."""
        self._room -= size
        if self._room < 0 and self._graph.is_job(node):
            jobs = self._graph.jobs
            at = bisect_left(jobs, node + 1)
            if at < len(jobs) and (self.after_last is None or jobs[at] < self.after_last):
                self.after_last = jobs[at]


def _of_job(job: Job) -> dict[str, Any]:
    """Build the fields of a step that its job record contains."""
    told: dict[str, Any] = {"args": None if job.content is None else job.content.get("args")}
    if job.started_ms is not None:
        told["started_at"] = times.format_ms(job.started_ms)
    if job.ended_ms is not None:
        told["completed_at"] = times.format_ms(job.ended_ms)
    if job.result_ttl_s is not None:
        job = job.without_expired_result(runtime.current().clock.now_ms())
    if job.state is State.COMPLETED and job.result is not MISSING:
        told["result"] = job.result
    if job.state is not State.COMPLETED and job.noted:
        told["error"] = job.noted[-1].failure.to_dict()
    return told


def _depends_on(graph: Graph, node: int, outer: Sequence[int]) -> list[str] | None:
    """Return the IDs of the steps that a step waits for. Steps without an ID are omitted."""
    if graph.step(node).callback is not None:
        before = [each for each in outer if graph.step(each).callback is None]
        before = before if len(before) <= _MAX_NAMED else []
    else:
        parent = graph.parents[node]
        needs = needs_of(graph.step(parent), graph.positions[node])
        before = [graph.children[parent][at] for at in needs]
    names = (graph.step(each).id for each in before)
    return [name for name in names if name is not None] or None


@record(frozen=True)
class _Stage:
    """A workflow, and optionally its steps or the result of its cancellation."""

    record: WorkflowRecord
    view: WorkflowPart | None = None
    done: CancelledWorkflow | None = None

    @property
    def completed_ms(self) -> int | None:
        return None if self.record.state is WorkflowState.CANCELLED else self.record.ended_ms

    @property
    def cancelled_ms(self) -> int | None:
        return self.record.ended_ms if self.record.state is WorkflowState.CANCELLED else None

    @property
    def started_ms(self) -> int | None:
        """The start of the first job, or None unless the response starts with the first step."""
        if self.view is None or self.view.first:
            return None
        jobs = self.view.jobs.values()
        return min((job.started_ms for job in jobs if job.started_ms is not None), default=None)

    @cached_property
    def tree(self) -> _Tree:
        assert self.view is not None
        return _Tree(self.view, MAX_ANSWER_BYTES - _AROUND_BYTES)

    @cached_property
    def whole(self) -> WorkflowDetail:
        return WorkflowDetail.of(self)

    @property
    def small(self) -> WorkflowDetail:
        """The same, without the steps if they are larger than `MAX_COPY_BYTES`."""
        if sent_bytes(self.whole) <= MAX_COPY_BYTES:
            return self.whole
        shown = {**cast("dict[str, Any]", self.whole), "omitted": ["steps"]}
        del shown["steps"]
        return cast("WorkflowDetail", shown)


@record(frozen=True)
class Results:
    """The results that a step receives."""

    workflow_id: str
    node: int
    found: StepResultsPart
    limit: int

    @property
    def listed(self) -> Listed[Any]:
        at = self.found.next_position
        return Listed((), paging.PageWindow(self.limit), None if at is None else str(at))


def _counted(view: WorkflowPart) -> list[int]:
    """Return the jobs that are not callbacks."""
    return [node for node in view.graph.jobs if view.graph.step(node).callback is None]


def _counted_completed(view: WorkflowPart) -> int:
    return sum(view.record.graph_state.completed >> node & 1 for node in _counted(view))


def _failed(view: WorkflowPart) -> list[tuple[int, Step]]:
    """Return the outer steps that failed, with their indexes."""
    graph, failed = view.graph, view.record.graph_state.failed
    outer = enumerate(_outer(graph, 0))
    return [(at, graph.step(node)) for at, node in outer if failed >> graph.exits[node] & 1]


def _failed_index(view: WorkflowPart) -> int | None:
    failed = _failed(view) if view.graph.root.kind is StepKind.CHAIN else ()
    return failed[0][0] if failed else None


def _failed_callbacks(view: WorkflowPart) -> list[Callback] | None:
    return [step.callback for _, step in _failed(view) if step.callback is not None] or None


def _failed_jobs(view: WorkflowPart) -> list[str] | None:
    return [cast("str", view.job_id(node)) for node in view.failed] or None


def _errors(view: WorkflowPart) -> list[WorkflowError] | None:
    found = [_why(view.jobs[node]) for node in view.failed if node in view.jobs]
    return cast("list[WorkflowError]", found) if view.failed else None


def _places(view: WorkflowPart) -> list[StepPlace]:
    outer = _outer(view.graph, 0)[:MAX_SHOWN_STEPS]
    return [StepPlace(view, index, node) for index, node in enumerate(outer)]


_s: _Stage = source()
_r = _s.record
_c = maybe(_s.done)
_v: WorkflowPart = source()
_p: StepPlace = source()
_l: Listed[_Stage] = source()
_e: Results = source()


class WorkflowError(AsIs):
    """Why a job of a workflow failed."""

    job_id: Id
    code: str
    message: str
    attempt: Count


class FailedStep(AsIs):
    """The first step that failed, as the client named it, or its number; the type of its job."""

    step: str
    type: str
    message: str = absent()


class _Failures(Answer["WorkflowPart"]):
    failed_step_index: Count = shown(
        made(_failed_index, _v), absent=True, says="of a chain: the step that failed"
    )
    failed_callbacks: list[Callback] = shown(made(_failed_callbacks, _v), absent=True)
    failed_job_ids: list[Id] = shown(made(_failed_jobs, _v), absent=True, says="the first of them")
    errors: list[WorkflowError] = shown(made(_errors, _v), absent=True, says="of these jobs")


class WorkflowMetadata(Answer[_Stage]):
    """Times of a workflow, and counts of its jobs: how they have ended."""

    created_at: Moment = moment(_r.created_ms)
    started_at: Moment = shown(moment(_s.started_ms), absent=True)
    completed_at: Moment = shown(moment(_s.completed_ms), absent=True, says="when it was over")
    cancelled_at: Moment = shown(moment(_s.cancelled_ms), absent=True)
    job_count: Count = shown(_r.jobs, says="with inner ones and callbacks")
    completed_count: Count = _r.completed
    failed_count: Count = _r.failed
    cancelled_count: Count = shown(
        made(lambda record: record.cancelled + record.skipped, _r), says="jobs that never start"
    )
    generation: Count = shown(_r.graph_state.generation, says="how many times it was retried")
    failed_step: FailedStep = shown(
        made(lambda fault: None if fault is None else jsontext.stored(fault), _r.fault), absent=True
    )
    _failures: _Failures = shown(_Failures.of(_s.view), absent=True)


class Workflow(Answer[_Stage]):
    """A workflow without its steps."""

    id: Id = _r.id
    type: WorkflowKind = cast("WorkflowKind", _r.kind)
    name: str | None = _r.name
    state: WorkflowState = _r.state
    steps_total: Count = shown(_r.jobs, says="jobs; callbacks and inner ones, too")
    steps_completed: Count = _r.completed
    step_count: Count = steps_total
    created_at: Moment = moment(_r.created_ms)
    updated_at: Moment = moment(_r.updated_ms)
    started_at: Moment = shown(moment(_s.started_ms), absent=True)
    completed_at: Moment = shown(moment(_s.completed_ms), absent=True)
    cancelled_at: Moment = shown(moment(_s.cancelled_ms), absent=True)
    metadata: WorkflowMetadata = WorkflowMetadata.of(_s)


class WorkflowStep(AsIs):
    """A job of a workflow, or a workflow in it, whose `type` is its form."""

    index: Annotated[Count, Field(description="its position in its list of steps")]
    node: Annotated[Count, Field(description="its number in the workflow")]
    id: Annotated[str, Field(description="as the client named it, or else its `index`")]
    name: str = absent()
    type: str
    state: StepState
    job_id: Annotated[Id | None, Field(description="null until it starts")]
    job_state: State = absent()
    callback: Callback = absent()
    depends_on: Annotated[list[str], Field(description="IDs of steps of the same list")] = absent()
    trigger: StepTrigger = absent()
    args: list[Any] = absent()
    result: Any = absent()
    error: JobError = absent()
    started_at: Moment = absent()
    completed_at: Moment = absent()
    steps: list[WorkflowStep] = absent()
    omitted: Omitted = absent()


class WorkflowDetail(Workflow):
    """A workflow with its steps; a large one has more of them after `next_cursor`."""

    jobs_total: Count = shown(
        made(lambda view: len(_counted(view)), maybe(_s.view)), says="jobs, without callbacks"
    )
    jobs_completed: Count = shown(made(_counted_completed, maybe(_s.view)), says="of these")
    steps: list[WorkflowStep] = shown(_s.tree.shown, absent=True)
    next_cursor: str = shown(_s.tree.next_cursor, absent=True)
    omitted: Omitted = shown(cast("list[str] | None", None), absent=True)


class WorkflowAnswer(Answer[_Stage]):
    """A workflow, wrapped and at the top level. The top level omits large steps."""

    workflow: WorkflowDetail = _s.whole
    _top: WorkflowDetail = _s.small


class WorkflowsAnswer(Paged[_Stage]):
    """A page of workflows."""

    workflows: list[Workflow] = Workflow.each(_l.items)
    items: list[Workflow] = workflows


class WorkflowCancelled(Workflow):
    """A workflow that was cancelled."""

    steps_cancelled: Count = shown(_c.cancelled, says="jobs that were cancelled")
    cancelled_steps: Count = steps_cancelled
    steps_already_completed: Count = _c.already_completed
    steps_running: Count = shown(_c.running, says="jobs that run, and may end")


class WorkflowCancelledAnswer(Answer[_Stage]):
    """A workflow that was cancelled, wrapped and at the top level."""

    workflow: WorkflowCancelled = WorkflowCancelled.of(_s)
    _top: WorkflowCancelled = workflow


class StepProgress(Answer[StepPlace]):
    """How far a step of a workflow is."""

    id: str = shown(_p.id, says="as the client named it, or its place")
    index: Count = _p.index
    type: str = _p.type
    state: StepState = _p.state
    progress: Fraction = _p.progress


class WorkflowProgressAnswer(Answer["WorkflowPart"]):
    """The progress of a workflow. For a large workflow, it lists only the first steps."""

    workflow_id: Id = _v.record.id
    type: WorkflowKind = cast("WorkflowKind", _v.record.kind)
    name: str | None = _v.record.name
    state: WorkflowState = _v.record.state
    progress: Fraction = made(lambda view: _done(view, 0), _v)
    steps_total: Count = _v.record.jobs
    steps_completed: Count = _v.record.completed
    steps: list[StepProgress] = StepProgress.each(made(_places, _v))
    updated_at: Moment = moment(_v.record.updated_ms)


class StepResult(AsIs):
    """What a job gave to a later step: its result or its error, if it has one."""

    step: Annotated[str, Field(description="as the client named it, or its number")]
    result: Any = absent()
    error: dict[str, Any] = absent()


class WorkflowResultsAnswer(Answer[Results]):
    """A page of the results that a step receives."""

    workflow_id: Id = _e.workflow_id
    node: Count = _e.node
    results: list[StepResult] = StepResult.each(_e.found.entries)
    count: Count = shown(_e.found.count, says="of all pages")
    pagination: Position = Position.of(_e.listed)


# --- endpoints ------------------------------------------------------------------------------------

_CURSOR_OF = Parameter("cursor", SEALED, "`next_cursor` of the answer before")
# The admin UI's names for a running workflow, and for one that is not started. The second doesn't
# exist here.
_ALSO_RUNNING, _NEVER = "active", "pending"
_STATES = (*WorkflowState, _ALSO_RUNNING, _NEVER)
_LISTED = (
    Parameter(
        "state",
        one_of(*_STATES),
        "only workflows in this state; active is the same as running, and none is pending",
    ),
    Parameter(
        "name",
        {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES},
        "only workflows of this name",
    ),
    *PAGING,
)
_STEPS = (
    Parameter("limit", whole(1, MAX_SHOWN_STEPS, MAX_SHOWN_STEPS), "most jobs of one answer"),
    _CURSOR_OF,
)
_RESULTS = (
    Parameter(
        "step",
        {"type": "integer", "minimum": 0, "maximum": MAX_NODE},
        "the step that is given the results, by its `node`; needed",
    ),
    Parameter(
        "limit",
        whole(1, MAX_RESULTS, DEFAULT_RESULTS),
        "most results of one answer, which has fewer where they are large",
    ),
    _CURSOR_OF,
)
_READS = Permission(Scope.JOBS_READ, QueueScope.WORKFLOW)
_WRITES = Permission(Scope.JOBS_WRITE, QueueScope.WORKFLOW)
_WORKFLOW = Success(WorkflowAnswer, "The workflow, wrapped and at the top level.")
_NO_KEY = "is not supported for workflows. Send an id in the body, which prevents a second workflow"
workflows = Resource("workflows", "workflows")


def _shown(view: WorkflowPart) -> WorkflowAnswer:
    return WorkflowAnswer.of(_Stage(view.record, view))


@workflows.endpoint(
    "POST",
    _WRITES,
    {
        201: Success(
            WorkflowAnswer, "It is stored, and its first jobs wait for workers.", ("Location",)
        )
    },
    errors=(403, 404, 409, 413, 429),
    request=WorkflowRequest,
    example={
        "type": "batch",
        "name": "bulk-email-send",
        "jobs": [
            {"type": "email.send", "args": ["alice@example.com", "welcome"]},
            {"type": "email.send", "args": ["bob@example.com", "welcome"]},
        ],
        "callbacks": {"on_complete": {"type": "email.report", "args": []}},
        "options": {"queue": "email"},
    },
    headers=(PRODUCER,),
)
def create_workflow(request: Request) -> Reply:
    """Create a workflow, and start it."""
    negotiation.refuse_header(request.headers, idempotency.HEADER, _NO_KEY)
    if (size := request.body_bytes) > MAX_WORKFLOW_BYTES:
        raise PayloadTooLarge("body", size=size, limit=MAX_WORKFLOW_BYTES)
    current = runtime.current()
    definition = workflow_request.parse(request.object(), now_ms=current.clock.now_ms())
    found = current.workflow_creation.create(
        definition,
        producer=backpressure.producer(request.headers, request.principal),
        reaches=request.principal.reaches,
        trace=None if request.trace is None else request.trace.traceparent,
    )
    view = current.workflow_reading.outline(found, limit=MAX_SHOWN_STEPS)
    return Reply(_shown(view), 201, {"Location": f"{BASE}/workflows/{found.id}"})


@workflows.endpoint("GET", _READS, WorkflowsAnswer, query=_LISTED)
def list_workflows(request: Request) -> Reply:
    """List workflows.

    One page of workflows without their steps, latest first.
    """
    state = None
    if "state" in request.query:
        told = query.choice(request.query, "state", _STATES, default="")
        if told == _NEVER:
            return Reply(WorkflowsAnswer.of(paging.asked(request.query, _nothing)))
        state = WorkflowState.RUNNING if told == _ALSO_RUNNING else WorkflowState(told)
    name = query.single(request.query, "name", _named)
    listing = runtime.current().workflow_reading.listing(request.principal, state=state, name=name)
    found = paging.asked(request.query, listing)
    return Reply(WorkflowsAnswer.of(found.of([_Stage(each) for each in found.items])))


def _named(name: str) -> str:
    if len(name) > MAX_NAME_BYTES:
        raise ValueError(f"must have at most {MAX_NAME_BYTES} characters")
    return name


def _nothing(*, limit: int, cursor: str | None) -> Page[_Stage]:
    del limit, cursor
    return Page([], None)


@workflows.endpoint("GET /{id}", _READS, _WORKFLOW, errors=(404,), query=_STEPS)
def get_workflow(request: Request) -> Reply:
    """Read a workflow and its steps."""
    limit = paging.limit(request.query, default=MAX_SHOWN_STEPS, most=MAX_SHOWN_STEPS)
    read = runtime.current().workflow_reading.view
    return Reply(
        _shown(read(request.named, request.principal, limit=limit, cursor=_cursor(request)))
    )


@workflows.endpoint("GET /{id}/progress", _READS, WorkflowProgressAnswer, errors=(404,))
def workflow_progress(request: Request) -> Reply:
    """Read the progress of a workflow.

    The workflow, and each of its outer steps.
    """
    view = runtime.current().workflow_reading.view(
        request.named, request.principal, limit=MAX_SHOWN_STEPS, progress=True
    )
    return Reply(WorkflowProgressAnswer.of(view))


@workflows.endpoint(
    "GET /{id}/results", _READS, WorkflowResultsAnswer, errors=(404,), query=_RESULTS
)
def workflow_results(request: Request) -> Reply:
    """Read the results that a step is given.

    One page of results, in their order.
    """
    current, workflow_id = runtime.current(), request.named
    current.workflow_reading.check_reach(workflow_id, request.principal)
    limit = paging.limit(request.query, default=DEFAULT_RESULTS, most=MAX_RESULTS)
    cursor = _cursor(request)
    if not request.query.get("step"):
        raise InvalidRequest("step", "is required. Send the node of the step that receives them")
    node = paging.integer(request.query, "step", default=0, least=0, most=MAX_NODE)
    after = current.workflow_reading.position(workflow_id, node, cursor)
    found = current.workflow_results.page(workflow_id, node, limit=limit, after=after)
    return Reply(WorkflowResultsAnswer.of(Results(workflow_id, node, found, limit)))


@workflows.endpoint("DELETE /{id}", _WRITES, WorkflowCancelledAnswer, errors=(404, 409))
@workflows.endpoint(
    "POST /{id}/cancel",
    _WRITES,
    WorkflowCancelledAnswer,
    errors=(404, 409),
    request=NoOptions,
    name="cancel_workflow_by_post",
)
def cancel_workflow(request: Request) -> Reply:
    """Cancel a workflow that is not over.

    It is cancelled; jobs that run may end.
    """
    current, workflow_id = runtime.current(), request.named
    current.workflow_reading.check_reach(workflow_id, request.principal)
    done = current.workflow_control.cancel(workflow_id)
    return Reply(WorkflowCancelledAnswer.of(_Stage(done.record, done=done)))


@workflows.endpoint(
    "POST /{id}/retry",
    _WRITES,
    _WORKFLOW,
    errors=(404, 409, 429),
    request=RetryWorkflowRequest,
    body_required=False,
    example={"mode": "failed_and_following"},
)
def retry_workflow(request: Request) -> Reply:
    """Run a workflow that has ended again."""
    current, workflow_id = runtime.current(), request.named
    mode = RetryMode(request.parsed(RetryWorkflowRequest).mode or RetryMode.FAILED)
    current.workflow_reading.check_reach(workflow_id, request.principal)
    found = current.workflow_control.retry(workflow_id, mode)
    return Reply(_shown(current.workflow_reading.outline(found, limit=MAX_SHOWN_STEPS)))


def _cursor(request: Request) -> str | None:
    cursor = request.query.get("cursor")
    return paging.opened(cursor) if cursor else None
