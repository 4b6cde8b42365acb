"""Workflows as answers show them.

Steps are shown as clients send them: the jobs of a batch and its callbacks stand beside each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ojs.domain import jsontext, times
from ojs.domain.job.job import MISSING, Job
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.domain.workflow.advance import WorkflowState
from ojs.domain.workflow.graph import Graph, Step, StepKind, StepState, StepTrigger, needs_of
from ojs.http.binding import paging
from ojs.http.views.jobs import MAX_ANSWER_BYTES, MAX_COPY_BYTES, sent_bytes

if TYPE_CHECKING:
    from ojs.http.contract import answers
    from ojs.services.workflows.control import CancelledWorkflow
    from ojs.services.workflows.reading import WorkflowPart
    from ojs.services.workflows.results import StepResultsPart
    from ojs.store.workflows.workflows import WorkflowRecord

# What an answer has for what is not a step: the workflow twice, names, errors.
_AROUND_BYTES = 500_000
# A field of a step that is larger is left out, and named under `omitted`.
_MAX_FIELD_BYTES = 65_536
# A callback waits for all steps beside it; where these are more, it names none.
_MAX_NAMED = 1_000
# Characters of an error that a workflow shows; the job has all of it.
_MAX_MESSAGE = 200
_LARGE = ("depends_on", "args", "result", "error")
_OF_JOB: dict[State, answers.StepState] = {
    State.ACTIVE: "active",
    State.COMPLETED: "completed",
    State.CANCELLED: "failed",
    State.DISCARDED: "failed",
}
_OF_STEP: dict[StepState, answers.StepState] = {
    StepState.WAITING: "waiting",
    StepState.COMPLETED: "completed",
    StepState.FAILED: "failed",
    StepState.CANCELLED: "cancelled",
    StepState.SKIPPED: "cancelled",
}


def _state(view: WorkflowPart, node: int) -> answers.StepState:
    """The state of a step; of one that was started its job says more."""
    found = view.record.graph_state.state_of(view.graph, node)
    if found is not StepState.STARTED:
        return _OF_STEP[found]
    if not view.graph.is_job(node):
        return "active"
    job = view.jobs.get(node)
    return "pending" if job is None else _OF_JOB.get(job.state, "pending")


# --- workflows ------------------------------------------------------------------------------------


def listed(record: WorkflowRecord) -> answers.Workflow:
    """A workflow without its steps."""
    shown: dict[str, Any] = {
        "id": record.id,
        "type": record.kind.value,
        "name": record.name,
        "state": record.state.value,
        "steps_total": record.jobs,
        "steps_completed": record.completed,
        "step_count": record.jobs,
        "created_at": times.format_ms(record.created_ms),
        "updated_at": times.format_ms(record.updated_ms),
        **_ended(record),
    }
    shown["metadata"] = {
        "created_at": shown["created_at"],
        **_ended(record),
        "job_count": record.jobs,
        "completed_count": record.completed,
        "failed_count": record.failed,
        "cancelled_count": record.cancelled + record.skipped,
        "generation": record.graph_state.generation,
    }
    if record.fault is not None:
        shown["metadata"]["failed_step"] = jsontext.stored(record.fault)
    return cast("answers.Workflow", shown)


def _ended(record: WorkflowRecord) -> dict[str, str]:
    if record.ended_ms is None:
        return {}
    cancelled = record.state is WorkflowState.CANCELLED
    return {"cancelled_at" if cancelled else "completed_at": times.format_ms(record.ended_ms)}


def page(found: Page[WorkflowRecord], pagination: answers.Pagination) -> answers.WorkflowsAnswer:
    """A page of workflows, under both names that clients know."""
    items = [listed(record) for record in found.items]
    return {"workflows": items, "items": items, **paging.with_total(pagination)}


def detail(view: WorkflowPart) -> answers.WorkflowAnswer:
    """A workflow, wrapped and at the top level; there without its steps if they are many."""
    graph, state = view.graph, view.record.graph_state
    whole: dict[str, Any] = dict(listed(view.record))
    counted = [node for node in graph.jobs if graph.step(node).callback is None]
    whole["jobs_total"] = len(counted)
    whole["jobs_completed"] = sum(state.completed >> node & 1 for node in counted)
    started = [job.started_ms for job in view.jobs.values() if job.started_ms is not None]
    if started and not view.first:
        whole["started_at"] = times.format_ms(min(started))
    began = {name: whole[name] for name in ("created_at", "started_at") if name in whole}
    whole["metadata"] = began | whole["metadata"] | _failures(view)
    tree = _Tree(view, MAX_ANSWER_BYTES - _AROUND_BYTES)
    small = dict(whole)
    whole["steps"] = tree.steps(0)
    if tree.after_last is not None:
        whole["next_cursor"] = small["next_cursor"] = paging.sealed(str(tree.after_last))
    if sent_bytes(whole) <= MAX_COPY_BYTES:
        small = whole
    else:
        small["omitted"] = ["steps"]
    return cast("answers.WorkflowAnswer", {**small, "workflow": whole})


def _failures(view: WorkflowPart) -> dict[str, Any]:
    """What the metadata say of failed steps."""
    graph, state = view.graph, view.record.graph_state
    found: dict[str, Any] = {}
    outer = _outer(graph, 0)
    failed = [at for at, node in enumerate(outer) if state.failed >> graph.exits[node] & 1]
    if failed and graph.root.kind is StepKind.CHAIN:
        found["failed_step_index"] = failed[0]
    steps = [graph.step(outer[at]) for at in failed]
    if callbacks := [step.callback.value for step in steps if step.callback is not None]:
        found["failed_callbacks"] = callbacks
    if view.failed:
        found["failed_job_ids"] = [view.job_id(node) for node in view.failed]
        jobs = [view.jobs[node] for node in view.failed if node in view.jobs]
        found["errors"] = [_why(job) for job in jobs]
    return found


def _why(job: Job) -> answers.WorkflowError:
    if job.state is State.DISCARDED and job.noted:
        failure = job.noted[-1].failure
        code, message = failure.code, failure.message[:_MAX_MESSAGE]
    else:
        code, message = job.state.value, f"The job was {job.state.value}."
    return {"job_id": job.id, "code": code, "message": message, "attempt": job.attempt}


# --- steps ----------------------------------------------------------------------------------------


def _outer(graph: Graph, opening: int) -> Sequence[int]:
    """The steps of a composite as its client sent them."""
    children = graph.children[opening]
    if graph.step(opening).kind is StepKind.BATCH:
        return (*graph.children[children[0]], *children[1:])
    return children


class _Tree:
    """The steps of a part of a workflow, as far as they fit into an answer."""

    def __init__(self, view: WorkflowPart, room: int) -> None:
        self._view = view
        self._graph = view.graph
        self._room = room
        # The first job that is not shown; None stands for the end.
        self.after_last = view.after_last

    def steps(self, opening: int) -> list[answers.WorkflowStep]:
        """The steps in a composite that are to be shown, and those in them."""
        outer = _outer(self._graph, opening)
        return [
            self._step(node, index, outer)
            for index, node in enumerate(outer)
            if self._visible(node)
        ]

    def _visible(self, node: int) -> bool:
        """Whether a step is, or has, a job that is to be shown."""
        jobs = self._graph.jobs
        at = bisect_left(jobs, max(node, self._view.first))
        if at == len(jobs) or jobs[at] > self._graph.exits[node]:
            return False
        return self.after_last is None or jobs[at] < self.after_last

    def _step(self, node: int, index: int, outer: Sequence[int]) -> answers.WorkflowStep:
        view, graph = self._view, self._graph
        step, job = graph.step(node), view.jobs.get(node)
        told: dict[str, Any] = {
            "index": index,
            "node": node,
            "id": _named(step, index),
            "name": step.name,
            "type": step.type or step.kind.value,
            "state": _state(view, node),
            "job_state": job and job.state.value,
            "callback": step.callback and step.callback.value,
            "depends_on": _depends_on(graph, node, outer),
            **({"error": view.refused.get(node)} if job is None else _of_job(job)),
        }
        if step.callback is None and step.trigger is not StepTrigger.ALL_SUCCEEDED:
            told["trigger"] = step.trigger.value
        # A result that is null is one.
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
            shown["steps"] = self.steps(node)
        return cast("answers.WorkflowStep", shown)

    def _spend(self, size: int, node: int) -> None:
        """Note the room that a step takes. Where there is none left, it is the last one."""
        self._room -= size
        if self._room < 0 and self._graph.is_job(node):
            jobs = self._graph.jobs
            at = bisect_left(jobs, node + 1)
            if at < len(jobs) and (self.after_last is None or jobs[at] < self.after_last):
                self.after_last = jobs[at]


def _of_job(job: Job) -> dict[str, Any]:
    """What a job's record says of its step: its args and result, if they are small."""
    told: dict[str, Any] = {"args": None if job.content is None else job.content.get("args")}
    if job.started_ms is not None:
        told["started_at"] = times.format_ms(job.started_ms)
    if job.ended_ms is not None:
        told["completed_at"] = times.format_ms(job.ended_ms)
    if job.state is State.COMPLETED and job.result is not MISSING:
        told["result"] = job.result
    if job.state is not State.COMPLETED and job.noted:
        told["error"] = job.noted[-1].failure.to_dict()
    return told


def _depends_on(graph: Graph, node: int, outer: Sequence[int]) -> list[str] | None:
    """The names of the steps that a step waits for, as far as they have any."""
    if graph.step(node).callback is not None:
        before = [each for each in outer if graph.step(each).callback is None]
        before = before if len(before) <= _MAX_NAMED else []
    else:
        parent = graph.parents[node]
        needs = needs_of(graph.step(parent), graph.positions[node])
        before = [graph.children[parent][at] for at in needs]
    names = (graph.step(each).id for each in before)
    return [name for name in names if name is not None] or None


def _named(step: Step, index: int) -> str:
    """The id of a step, for which its place stands where its client gave it none: the admin UI and
    the Python SDK read one of each step.
    """
    return step.id or str(index)


# --- what becomes of a workflow -------------------------------------------------------------------


def cancelled(done: CancelledWorkflow) -> answers.WorkflowCancelledAnswer:
    """A workflow that was cancelled, wrapped and at the top level."""
    shown = cast(
        "answers.WorkflowCancelled",
        {
            **listed(done.record),
            "steps_cancelled": done.cancelled,
            "cancelled_steps": done.cancelled,
            "steps_already_completed": done.already_completed,
            "steps_running": done.running,
        },
    )
    return {**shown, "workflow": shown}


def progress(view: WorkflowPart, most: int) -> answers.WorkflowProgressAnswer:
    """How far a workflow is, and the first `most` of its outer steps."""
    graph, record = view.graph, view.record
    shown = listed(record)
    return {
        "workflow_id": record.id,
        "type": shown["type"],
        "name": record.name,
        "state": shown["state"],
        "progress": _done(view, 0),
        "steps_total": record.jobs,
        "steps_completed": record.completed,
        "updated_at": shown["updated_at"],
        "steps": [
            {
                "id": _named(graph.step(node), index),
                "index": index,
                "type": graph.step(node).type or graph.step(node).kind.value,
                "state": _state(view, node),
                "progress": _done(view, node),
            }
            for index, node in enumerate(_outer(graph, 0)[:most])
        ],
    }


def _done(view: WorkflowPart, node: int) -> float:
    """The part of the jobs of a step that have ended, with what those that run have reported."""
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


def results(
    workflow_id: str, node: int, found: StepResultsPart, limit: int
) -> answers.WorkflowResultsAnswer:
    """A page of the results that a step is given."""
    after = None if found.next_position is None else str(found.next_position)
    return {
        "workflow_id": workflow_id,
        "node": node,
        "results": cast("list[answers.StepResult]", found.entries),
        "count": found.count,
        "pagination": paging.position(paging.PageWindow(limit), after),
    }
