"""Cancelling workflows and retrying them."""

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

# Jobs that are looked at together: one read, and one write of the root.
_SLICE = 100
_TRIES = 5


@record(frozen=True)
class CancelledWorkflow:
    """What a cancellation found and did, by jobs: those that had completed, those that never run
    now, and those that run and may finish.
    """

    record: WorkflowRecord
    already_completed: int
    cancelled: int
    running: int


class WorkflowControl:
    """Cancels workflows and retries them."""

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
        """Cancel a workflow: nothing starts any more. Jobs that wait are cancelled, as far as there
        is time, the others by the sweep; those that run may finish.

        Raises NotFound, Conflict if it is over, and BackendError.
        """

        def cancelled(definition: StoredDefinition, record: WorkflowRecord) -> WorkflowRecord:
            record = self._advance.with_marks(definition, record)
            # What was to start and is not stored never does.
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
        # Those that were started and have not completed since, nor run.
        stopped = started - running - (now.completed - record.completed) - ended
        return CancelledWorkflow(now, record.completed, never + stopped, running)

    def _running(self, definition: StoredDefinition, record: WorkflowRecord) -> tuple[int, int]:
        """How many jobs of a cancelled workflow run, and how many have completed that it leaves.

        Jobs that it leaves are read: those that wait are never claimed (`JobFetcher`).
        """
        running = bits(record.graph_state.running(definition.graph))
        left = [record.job_id(node) for node in numbers(running & record.leaving)]
        states = Counter(job.state for job in self._jobs.read_records(left).values())
        known = (running & ~record.leaving).bit_count()
        return known + states[State.ACTIVE], states[State.COMPLETED]

    def leave(self, record: WorkflowRecord) -> WorkflowRecord:
        """Cancel the jobs of a cancelled workflow that wait, while there is time. Safe to repeat.

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
        """A workflow after some of the jobs that it leaves were looked at."""
        after = self._advance.after(definition, record, endings)
        return replace(after, leaving=after.leaving & ~looked_at)

    def _cancel_jobs(self, record: WorkflowRecord, nodes: list[int]) -> list[Ending]:
        """Cancel those of these jobs that wait; returns those that have ended, however."""
        found = self._jobs.read_records(record.job_id(node) for node in nodes)
        there = [found.get(record.job_id(node)) for node in nodes]
        ended = self._for_each(self._cancel_job, there)
        return [
            (node, state, record.graph_state.generation_of(node))
            for node, state in zip(nodes, ended, strict=True)
            if state is not None
        ]

    def _cancel_job(self, job: Job | None) -> StepState | None:
        """How a job has ended, if it has: one that waits is cancelled, one that is gone failed."""
        for _ in range(_TRIES):
            if job is None:
                return StepState.FAILED
            if job.state is State.ACTIVE:
                return None
            if job.state.terminal:
                return outcome(job)
            after = lifecycle.cancel(job, now_ms=self._clock.now_ms())
            # Race: a fetch claims it. Then it may finish.
            try:
                self._changes.replace(job, replace(after, batch=None), tells=False)
            except LostRace:
                job = self._jobs.read_record(job.id)
            else:
                return StepState.FAILED
        return None

    def forget(self, workflow_id: str) -> None:
        """Remove a workflow that is over, with what it keeps of its jobs. Safe to repeat.

        Raises Conflict while it, or a job of it, goes on: an end would be noted where nobody looks.
        Raises LostRace when it has changed since.
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
        """Run a workflow that is over again, in a new generation.

        Raises NotFound, Conflict if it is not over, if jobs of it still run or nothing failed, and
        BackendError.
        """
        # What has ended is told before it may go back.
        self._advance.change(workflow_id, self._advance.with_marks)
        seen: list[int] = []

        def retried(definition: StoredDefinition, record: WorkflowRecord) -> WorkflowRecord:
            seen.append(record.graph_state.generation)
            if seen[-1] == seen[0] + 1:
                # It has begun, by a write whose answer was lost, or by another request meanwhile.
                return record
            decision = rules.retry(definition.graph, record.graph_state, mode)
            # Late marks of the generation before count nowhere.
            over = replace(record, fan_ins=(), leaving=0, fault=None, check_ms=None, ended_ms=None)
            return self._advance.decided(definition, over, decision)

        return self._advance.change(workflow_id, retried)
