"""Cancels and retries workflows."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice

from ojs.clock import Clock
from ojs.domain.errors import Conflict, OjsError
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.workflow import advance as rules
from ojs.domain.workflow.advance import Ending, RetryMode
from ojs.domain.workflow.graph import StepState, bits, numbers
from ojs.records import record
from ojs.services.for_each import ForEach
from ojs.services.jobs.transitions import JobChanges
from ojs.services.workflows.advance import SLICES_MS, WorkflowAdvance, outcome
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import LostRace
from ojs.store.workflows.workflows import StoredDefinition, WorkflowRecord, WorkflowStore

# Number of jobs that are checked together, by one read and one write of the root item.
_SLICE = 100
_TRIES = 5


@record(frozen=True)
class CancelledWorkflow:
    """The result of a cancellation, in numbers of jobs.

    Jobs that had completed before, jobs that will never run, and active jobs, which may finish.
    """

    record: WorkflowRecord
    already_completed: int
    cancelled: int
    running: int


class WorkflowControl:
    """Cancels and retries workflows."""

    def __init__(
        self,
        *,
        workflows: WorkflowStore,
        workflow_advance: WorkflowAdvance,
        jobs: JobStore,
        changes: JobChanges,
        clock: Clock,
        for_each: ForEach,
    ) -> None:
        self._workflows = workflows
        self._advance = workflow_advance
        self._jobs = jobs
        self._changes = changes
        self._clock = clock
        self._for_each = for_each

    def cancel(self, workflow_id: str) -> CancelledWorkflow:
        """Cancel a workflow. No further step starts.

        Waiting jobs are cancelled for up to 8 seconds. The sweep cancels the rest. Active jobs may
        finish.

        Raises NotFound, Conflict if the workflow is in a final state, and BackendError.
        """

        def cancelled(definition: StoredDefinition, record: WorkflowRecord) -> WorkflowRecord:
            record = self._advance.with_marks(definition, record)
            # Pending starts that are not stored never happen.
            state = replace(
                record.graph_state, started=record.graph_state.started & ~record.starting
            )
            decision = rules.cancel(definition.graph, state)
            after = self._advance.decided(definition, record, decision)
            return replace(
                after, starting=0, leaving=bits(decision.state.running(definition.graph))
            )

        record = self._advance.change(workflow_id, cancelled)
        never, started = record.cancelled, record.leaving.bit_count()
        with suppress(OjsError):
            self.leave(record)
        definition, now = self._advance.current(workflow_id)
        running, ended = self._running(definition, now)
        # Number of started jobs that are neither active nor completed since the cancellation.
        stopped = started - running - (now.completed - record.completed) - ended
        return CancelledWorkflow(now, record.completed, never + stopped, running)

    def _running(self, definition: StoredDefinition, record: WorkflowRecord) -> tuple[int, int]:
        """Return how many jobs of a cancelled workflow are active, and how many completed.

        Reads the jobs that are to be cancelled. No fetch claims the waiting ones (`JobFetcher`).
        """
        running = bits(record.graph_state.running(definition.graph))
        left = [record.job_id(node) for node in numbers(running & record.leaving)]
        states = Counter(job.state for job in self._jobs.read_records(left).values())
        known = (running & ~record.leaving).bit_count()
        return known + states[State.ACTIVE], states[State.COMPLETED]

    def leave(self, record: WorkflowRecord) -> WorkflowRecord:
        """Cancel the waiting jobs of a cancelled workflow, for up to 8 seconds. Safe to repeat.

        Raises NotFound, BackendError.
        """
        until_ms = self._clock.now_ms() + SLICES_MS
        while record.leaving and self._clock.now_ms() < until_ms:
            part = list(islice(numbers(record.leaving), _SLICE))
            record = self._advance.change(
                record.id, partial(self._left, self._cancel_jobs(record, part), bits(part))
            )
        return record

    def _left(
        self,
        endings: list[Ending],
        looked_at: int,
        definition: StoredDefinition,
        record: WorkflowRecord,
    ) -> WorkflowRecord:
        """Return a workflow after some of its jobs to cancel were checked."""
        after = self._advance.after(definition, record, endings)
        return replace(after, leaving=after.leaving & ~looked_at)

    def _cancel_jobs(self, record: WorkflowRecord, nodes: list[int]) -> list[Ending]:
        """Cancel the waiting jobs among these. Return all that have finished, with any outcome."""
        found = self._jobs.read_records(record.job_id(node) for node in nodes)
        there = [found.get(record.job_id(node)) for node in nodes]
        ended = self._for_each(self._cancel_job, there)
        return [
            (node, state, record.graph_state.generation_of(node))
            for node, state in zip(nodes, ended, strict=True)
            if state is not None
        ]

    def _cancel_job(self, job: Job | None) -> StepState | None:
        """Cancel a waiting job, and return the outcome of a finished one. A deleted job failed."""
        for _ in range(_TRIES):
            if job is None:
                return StepState.FAILED
            if job.state is State.ACTIVE:
                return None
            if job.state.terminal:
                return outcome(job)
            after = lifecycle.cancel(job, now_ms=self._clock.now_ms())
            # Race: a fetch claims the job. It may then finish.
            try:
                self._changes.replace(job, replace(after, batch=None), tells=False)
            except LostRace:
                job = self._jobs.read_record(job.id)
            else:
                return StepState.FAILED
        return None

    def forget(self, workflow_id: str) -> None:
        """Delete a finished workflow with its stored results and errors. Safe to repeat.

        Raises Conflict while the workflow or one of its jobs is active: the end of the job would
        be recorded in a deleted workflow. Raises LostRace if the workflow has changed since it was
        read.
        """
        record = self._workflows.get(workflow_id)
        if record is None:
            return
        graph = self._workflows.definition(record).graph
        if record.ended_ms is None or record.leaving or any(record.graph_state.running(graph)):
            raise Conflict(
                "The job belongs to an active workflow. Cancel the workflow first.",
                current_state=record.state,
                details={"workflow_id": workflow_id},
            )
        self._workflows.remove(record)

    def retry(self, workflow_id: str, mode: RetryMode) -> WorkflowRecord:
        """Run a finished workflow again, in a new generation.

        Raises NotFound, BackendError, and Conflict if the workflow is not in a final state, a job
        of it is still active, or no step failed.
        """
        # Record the finished jobs before a step can return to its initial state.
        self._advance.change(workflow_id, self._advance.with_marks)
        seen: list[int] = []

        def retried(definition: StoredDefinition, record: WorkflowRecord) -> WorkflowRecord:
            seen.append(record.graph_state.generation)
            if seen[-1] == seen[0] + 1:
                # The retry has started: by an earlier write without a response, or by a concurrent
                # request.
                return record
            decision = rules.retry(definition.graph, record.graph_state, mode)
            # Late ends of the previous generation are ignored.
            over = replace(record, fan_ins=(), leaving=0, fault=None, check_ms=None, ended_ms=None)
            return self._advance.decided(definition, over, decision)

        return self._advance.change(workflow_id, retried)
