"""Events of workflows (ojs-events, section 4.4), and finished jobs that must advance a workflow.

The request that finished a job might have failed to advance its workflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from ojs.domain import jsontext
from ojs.domain.events.types import EventType
from ojs.domain.job.durable import NOT_DURABLE
from ojs.domain.job.job import Job
from ojs.domain.workflow.advance import WorkflowState
from ojs.domain.workflow.graph import StepState
from ojs.projections.changes import NewEvent, TableChange
from ojs.records import record
from ojs.store.workflows.workflows import WorkflowRecord

_ENDS = {
    WorkflowState.COMPLETED: EventType.WORKFLOW_COMPLETED,
    WorkflowState.FAILED: EventType.WORKFLOW_FAILED,
    WorkflowState.CANCELLED: EventType.WORKFLOW_CANCELLED,
}


class WorkflowStream(Protocol):
    """Advances workflows and removes their items (`ojs.services.workflows.advance`)."""

    def repeat(self, job: Job) -> None:
        """Advance the workflow of a finished job, unless it was already advanced.

        Raises OjsError.
        """
        ...

    def clear(self, record: WorkflowRecord) -> None:
        """Remove the items of a removed workflow. Raise OjsError."""
        ...


class DurableStream(Protocol):
    """Processes the ends of jobs with durable code (`ojs.services.jobs.durable_ends`)."""

    def repeat(self, job: Job) -> None:
        """Process the end of a job, unless that was done before. Raises OjsError."""
        ...


def durably_ended(jobs: Iterable[tuple[Job | None, Job | None]]) -> Iterator[Job]:
    """Yield the jobs with durable code that a change finished."""
    for before, job in jobs:
        over = before is not None and before.state.terminal
        if job is not None and job.durable is not NOT_DURABLE and job.state.terminal and not over:
            yield job


def ended(jobs: Iterable[tuple[Job | None, Job | None]]) -> Iterator[Job]:
    """Yield the jobs of workflows that a change finished, or removed before they finished."""
    for before, after in jobs:
        over = before is not None and before.state.terminal
        job = after or before
        if job is None or job.workflow is None or over:
            continue
        if after is None or after.state.terminal:
            yield job


@record(frozen=True)
class WorkflowChange(TableChange):
    """A change of a workflow's root item."""

    before: WorkflowRecord | None
    after: WorkflowRecord | None

    @property
    def removed(self) -> WorkflowRecord | None:
        """The workflow whose root item was removed by this change, or None."""
        return self.before if self.after is None else None

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Yield the events of the workflow and its steps, in order."""
        before, after = self.before, self.after
        if after is None:
            return
        # A restarted workflow finishes immediately if all its jobs finished before this write.
        again = before is not None and before.state.final and _generation(before, after)
        if before is None:
            kind = {"workflow_type": after.kind.value}
            yield _event(after, EventType.WORKFLOW_CREATED, after.created_ms, kind)
            yield _event(after, EventType.WORKFLOW_STARTED, after.created_ms, {})
        elif again:
            yield _event(after, EventType.WORKFLOW_STARTED, after.updated_ms, {"generation": again})
        if after.told is not None and (before is None or before.told != after.told):
            yield from _steps(after, after.told)
        if after.state.final and (before is None or not before.state.final or again):
            yield _end(after)


def _generation(before: WorkflowRecord, after: WorkflowRecord) -> int:
    """Return the generation that started with this change, or 0 if none did."""
    generation = after.graph_state.generation
    return generation if generation != before.graph_state.generation else 0


def _steps(record: WorkflowRecord, told: str) -> Iterator[NewEvent]:
    ended = record.completed + record.failed + record.cancelled + record.skipped
    for node, step, kind, state, length_ms in jsontext.stored(told):
        event = EventType.WORKFLOW_STEP_COMPLETED
        if state == StepState.FAILED:
            event = EventType.WORKFLOW_STEP_FAILED
        data = {"step_id": step, "step_type": kind, "steps_remaining": record.jobs - ended}
        data |= {} if length_ms is None else {"duration_ms": length_ms}
        yield _event(record, event, record.updated_ms, data, str(node))


def _end(record: WorkflowRecord) -> NewEvent:
    at_ms = record.ended_ms or record.updated_ms
    data: dict[str, Any] = {"duration_ms": at_ms - record.created_ms}
    if record.state is WorkflowState.FAILED and record.fault is not None:
        fault = jsontext.stored(record.fault)
        data |= {"failed_step_id": fault["step"], "failed_step_type": fault["type"]}
        data["error"] = {"code": "step_failed", "message": fault.get("message", "")}
    return _event(record, _ENDS[record.state], at_ms, data)


def _event(
    record: WorkflowRecord, kind: EventType, at_ms: int, more: dict[str, Any], part: str = ""
) -> NewEvent:
    data = {
        "workflow_id": record.id,
        "workflow_name": record.name or "",
        "total_steps": record.jobs,
    }
    return NewEvent(kind, at_ms, record.id, ("workflows",), data | more, part)
