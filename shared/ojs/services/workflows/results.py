"""Results of steps for later steps: stored when a job finishes, passed on when a step starts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from ojs.domain import jsontext
from ojs.domain.errors import NotFound
from ojs.domain.job.envelope import MAX_JOB_BYTES
from ojs.domain.job.job import MISSING, Job
from ojs.domain.job.states import State
from ojs.domain.job.workflow_step import WorkflowStep
from ojs.domain.workflow import results
from ojs.domain.workflow.advance import GraphState
from ojs.domain.workflow.graph import Graph
from ojs.records import record
from ojs.store.jobs.records import JobStore
from ojs.store.workflows.workflows import WorkflowRecord, WorkflowStore

# Maximum length of the message of a stored error. The worker's message can be longer.
MAX_MESSAGE = 1_000


@record(frozen=True)
class StepResultsPart:
    """A page of the results for a step, in order, and the position of the next page.

    Each entry has `step`, which is the client's name of the step. It also has `result` or `error`,
    or neither of them.
    """

    entries: list[dict[str, Any]]
    count: int
    next_position: int | None = None


class StepResults:
    """Stores results and errors of jobs that later steps require, and reads them."""

    def __init__(self, workflows: WorkflowStore, jobs: JobStore) -> None:
        self._workflows = workflows
        self._jobs = jobs

    def keep(self, job: Job, step: WorkflowStep) -> None:
        """Store the result or error of a finished job, if a later step uses it. Safe to repeat."""
        if not step.kept:
            return
        told: dict[str, Any]
        if job.state is State.COMPLETED:
            if job.result is MISSING and job.result_ref is not None:
                (job,) = self._jobs.with_contents([job])
            if job.result is MISSING:
                return
            told = {"result": job.result}
        else:
            told = {"error": self.error_of(job)}
        self._workflows.keep(step.workflow_id, step.node, step.generation, told)

    def error_of(self, job: Job) -> dict[str, Any]:
        """Return why a job failed, was cancelled, or expired."""
        if job.state is State.CANCELLED:
            return {"code": "cancelled", "type": "cancelled", "message": "The job was cancelled."}
        if job.noted:
            failure = job.noted[-1].failure
        else:
            (read,) = self._jobs.with_errors([job], latest=1)
            if not read.errors:
                return {"code": "failed", "type": "failed", "message": "The job failed."}
            failure = read.errors[-1]
        shown = {"code": failure.code, "type": failure.type, "attempt": failure.attempt}
        return shown | {"message": failure.message[:MAX_MESSAGE]}

    def refuse(self, record: WorkflowRecord, node: int, error: Mapping[str, Any]) -> None:
        """Store why the job of a step could not be stored. No job record has this error.

        Args:
            record: The workflow.
            node: Node of the step.
            error: The error.
        """
        generation = record.graph_state.generation_of(node)
        self._workflows.keep(record.id, node, generation, {"error": error})

    def fields(
        self, record: WorkflowRecord, graph: Graph, node: int, *, room: int
    ) -> dict[str, Any]:
        """Return the fields for the job of a step that contain the results of earlier steps.

        Args:
            record: The workflow.
            graph: Its graph.
            node: Node of the step.
            room: Maximum size of the fields in bytes.

        Returns:
            `parent_results` and other fields. If they are larger than `room`, `parent_results` is
            a reference to the results.

        Raises:
            OjsError: A read failed.
        """
        jobs = list(results.wanted_jobs(graph, node))
        if not jobs:
            return {}
        kept = self._workflows.kept(record.id, _ended(record.graph_state, jobs), most=room)
        if kept is not None:
            found = {each: told["result"] for each, told in kept.items() if "result" in told}
            errors = {each: told["error"] for each, told in kept.items() if "error" in told}
            fields = results.parent_fields(graph, node, found, errors)
            if jsontext.size_of(fields) <= room:
                return fields
        ref = f"/ojs/v1/workflows/{record.id}/results?step={node}"
        return {"parent_results": {"$ref": ref, "count": len(jobs)}}

    def page(self, workflow_id: str, node: int, *, limit: int, after: int = 0) -> StepResultsPart:
        """Return a page of the results for a step. Its size is limited like the size of a job.

        Args:
            workflow_id: ID of the workflow.
            node: Node of the step.
            limit: Maximum number of results.
            after: Position of the first result, from 0.

        Returns:
            The page.

        Raises:
            NotFound: The workflow or the step does not exist.
        """
        record = self._workflows.get(workflow_id)
        if record is None:
            raise NotFound("workflow", workflow_id)
        graph = self._workflows.definition(record).graph
        if not (0 <= node < len(graph.steps)) or not graph.is_job(node):
            raise NotFound("workflow_step", f"{workflow_id}/{node}")
        jobs = list(results.wanted_jobs(graph, node))
        part = jobs[after : after + limit]
        kept = None
        while kept is None:
            kept = self._workflows.kept(
                workflow_id, _ended(record.graph_state, part), most=4 * MAX_JOB_BYTES
            )
            if kept is None:
                # A single result is never too large.
                part = part[: max(1, len(part) // 2)]
        entries = [{"step": step_name(graph, each), **kept.get(each, {})} for each in part]
        following = after + len(part)
        return StepResultsPart(entries, len(jobs), following if following < len(jobs) else None)


def step_name(graph: Graph, node: int) -> str:
    """Return the client's name of the step of a job, or the number of the job if it has none."""
    return graph.step(node).id or str(bisect_left(graph.jobs, node))


def _ended(state: GraphState, jobs: Iterable[int]) -> dict[int, int]:
    """Return the jobs that ran and have finished, with their generations."""
    ran = state.completed | state.failed
    return {each: state.generation_of(each) for each in jobs if ran >> each & 1}
