"""Advances a workflow after one of its jobs has finished (ADR 36).

The request that finishes a job advances the workflow. The stream consumer repeats this if the
request failed to do so. Each change of a workflow is one write of its root item, on the condition
that the item hasn't changed since it was read. The jobs that start are stored in the same
transaction. So each step starts once, or not at all if the workflow was cancelled in between. If
more jobs start than one transaction can store, the root item lists them, and they are stored in
slices.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, replace
from itertools import islice
from typing import Any

from ojs.clock import Clock
from ojs.domain import jsontext, times
from ojs.domain.errors import BackendError, Duplicate, NotFound, OjsError
from ojs.domain.job.job import Job
from ojs.domain.job.retention import RETENTION
from ojs.domain.job.states import State
from ojs.domain.job.workflow_step import WorkflowStep
from ojs.domain.workflow import advance as rules
from ojs.domain.workflow.advance import Decision, Ending, GraphState, WorkflowState
from ojs.domain.workflow.graph import Graph, StepState, bits, numbers
from ojs.records import record
from ojs.services.sweeps import rotated
from ojs.services.workflows.results import StepResults, step_name
from ojs.services.workflows.starts import StepStarts, queue_of
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import LostRace
from ojs.store.table.races import retry_on_race
from ojs.store.workflows.workflows import StoredDefinition, WorkflowRecord, WorkflowStore

_TRIES = 16
_BUSY = "Concurrent requests changed this workflow."
# Times of the regular checks of a workflow: the first one 5 minutes after its creation, later ones
# after an interval that equals its age, up to one hour.
FIRST_CHECK_MS, LAST_CHECK_MS = 300_000, 3_600_000
# Delay (ms) of the next check if starts or cancellations are pending, after a crash or because of a
# full queue.
SOON_MS = 20_000
# Time (ms) for which one request starts or cancels slices of jobs. A request that finishes a job
# starts slices for a shorter time, because a worker waits for it.
SLICES_MS = 8_000
_SLICES_AT_END_MS = 2_000
# If more jobs than this start, the root item with `starter_ms` is written before the jobs.
_STARTED_AT_ONCE = 99
# Maximum number of jobs that one check reads.
_CHECKED = 1_000
# Maximum number of jobs that an advance itself processes because a full queue dropped them. The
# stream consumer processes the others.
_MOST_DEFERRED = 100
_MAX_MESSAGE = 200
# Maximum number of finished jobs in the event of one write. The jobs of a fan-in have separate job
# events.
_MOST_TOLD = 10
_RETENTION_S = {
    WorkflowState.COMPLETED: RETENTION.completed_s,
    WorkflowState.CANCELLED: RETENTION.cancelled_s,
    WorkflowState.FAILED: RETENTION.discarded_s,
}


@record(frozen=True)
class _Reported:
    """The reported end of one job: its error message, and its duration in ms by node."""

    message: str | None = None
    lengths: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, node: int) -> _Reported:
        """Return the outcome of a job, the step with number `node`, from its record."""
        said = job.noted[-1].failure.message if job.noted else f"The job is {job.state}."
        lengths = {}
        if job.started_ms is not None and job.ended_ms is not None:
            lengths[node] = job.ended_ms - job.started_ms
        return cls(said[:_MAX_MESSAGE], lengths)

    def fault(self, graph: Graph, before: GraphState, after: GraphState) -> str | None:
        """Return the error of the first step that failed, for the root record."""
        first = next(numbers(after.failed & ~before.failed & graph.job_bits), None)
        if first is None:
            return None
        told = {"step": step_name(graph, first), "type": graph.step(first).type}
        return jsontext.dumps(told | ({"message": self.message} if self.message else {}))


@record
class _WorkflowTransition:
    """The progress of one change while its jobs are started: the stored and the intended root.

    Attributes:
        definition: Definition of the workflow.
        before: The root as stored. None for a new workflow.
        after: The root to write.
        passed_over: Bits of the jobs that can't be started now.
        full: Queues in which no job can be started now.
        singly: Whether the next jobs are started one by one.
        stored: Whether this change has stored jobs, or the root without them.
        starter_ms: Written to the root while jobs are left to start. None if this request doesn't
            start slices.
    """

    definition: StoredDefinition
    before: WorkflowRecord | None
    after: WorkflowRecord
    passed_over: int = 0
    full: set[str] = field(default_factory=set)
    singly: bool = False
    stored: bool = False
    starter_ms: int | None = None

    def overtaken(self) -> bool:
        """Handle a change by another request, which then starts the remaining jobs.

        The jobs that are stored stay. Raises LostRace if nothing is stored yet: the whole change
        is then decided again.
        """
        if not self.stored or self.before is None:
            raise LostRace([])
        self.after = self.before
        return False


# Function that returns the root item to write, from the root item that was read.
Decide = Callable[[StoredDefinition, WorkflowRecord], WorkflowRecord]


class _Deferred(threading.local):
    """Jobs that finished while a workflow was being advanced. None if no advance is in progress."""

    jobs: deque[Job] | None = None


class WorkflowAdvance:
    """Advances workflows."""

    def __init__(
        self,
        *,
        workflows: WorkflowStore,
        jobs: JobStore,
        workflow_starts: StepStarts,
        workflow_results: StepResults,
        clock: Clock,
        pause: Callable[[int], None] = lambda _: None,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._workflows = workflows
        self._jobs = jobs
        self._starts = workflow_starts
        self._results = workflow_results
        self._clock = clock
        self._pause = pause
        self._choose = choose
        self._deferred = _Deferred()

    # --- the end of a job -------------------------------------------------------------------------

    def job_ended(self, job: Job) -> None:
        """Advance the workflow of a finished job, if the job is a step.

        Suppresses store errors: the job has finished regardless of the workflow, and the
        stream repeats the advance.
        """
        if job.workflow is None or not job.state.terminal:
            return
        if self._deferred.jobs is not None:
            # The start of another step has dropped this job from a full queue. It is processed
            # after the current job, without recursion.
            if len(self._deferred.jobs) < _MOST_DEFERRED:
                self._deferred.jobs.append(job)
            return
        self._deferred.jobs = deque([job])
        try:
            while self._deferred.jobs:
                following = self._deferred.jobs.popleft()
                with suppress(OjsError):
                    self._end(following)
        finally:
            self._deferred.jobs = None

    def _end(self, job: Job) -> None:
        step = _step_of(job)
        self._results.keep(job, step)
        ended = outcome(job)
        if step.fan_in is None:
            self.change(
                step.workflow_id,
                lambda d, r: self._ended(d, r, job, step),
                slices_ms=_SLICES_AT_END_MS,
            )
        elif self._workflows.fan_ins.mark(step.workflow_id, step.fan_in, step.slot, ended):
            self._close(step)

    def repeat(self, job: Job) -> None:
        """Advance the workflow of a finished job as far as `job_ended` did not.

        The stream consumer calls this.

        A job that was deleted before it finished counts as failed. If this raises OjsError, call it
        again.
        """
        step = _step_of(job)
        if step.fan_in is not None:
            whole = self._workflows.fan_ins.repeat(
                step.workflow_id,
                step.fan_in,
                step.slot,
                outcome(job),
                lambda: self._results.keep(job, step),
            )
            if whole:
                self._close(step)
            return
        record = self._workflows.get(step.workflow_id)
        if record is None or record.graph_state.ended >> step.node & 1:
            return
        with suppress(NotFound):
            self._end(job)

    def clear(self, record: WorkflowRecord) -> None:
        """Delete the remaining items of a deleted workflow. Raises OjsError."""
        self._workflows.remove_rest(record)

    def _close(self, step: WorkflowStep) -> None:
        """Record in the root that all jobs of a fan-in have finished."""

        def closed(definition: StoredDefinition, record: WorkflowRecord) -> WorkflowRecord:
            fan_ins = [each for each in record.fan_ins if each.token == step.fan_in]
            ends = self._workflows.fan_ins.ends(record.id, fan_ins)
            return self.after(definition, record, self._endings(record, ends))

        with suppress(NotFound):
            self.change(step.workflow_id, closed, slices_ms=_SLICES_AT_END_MS)

    def _ended(
        self, definition: StoredDefinition, record: WorkflowRecord, job: Job, step: WorkflowStep
    ) -> WorkflowRecord:
        ending = (step.node, outcome(job), step.generation)
        return self.after(definition, record, [ending], _Reported.of(job, step.node))

    @staticmethod
    def _endings(record: WorkflowRecord, ends: Iterable[tuple[int, StepState]]) -> list[Ending]:
        state = record.graph_state
        return [(node, ended, state.generation_of(node)) for node, ended in ends]

    def after(
        self,
        definition: StoredDefinition,
        record: WorkflowRecord,
        endings: Iterable[Ending],
        reported: _Reported | None = None,
    ) -> WorkflowRecord:
        """Return a workflow after some of its jobs have finished.

        Args:
            definition: Definition of the workflow.
            record: The workflow as read.
            endings: Node, outcome, and generation of each finished job.
            reported: The error message and duration of the job, if one job was reported.

        Returns:
            The new workflow. The same object if all ends were recorded before.
        """
        decision = rules.advance_all(definition.graph, record.graph_state, endings)
        if decision.state == record.graph_state:
            return record
        return self.decided(definition, record, decision, reported)

    # --- a change of a workflow -------------------------------------------------------------------

    def current(self, workflow_id: str) -> tuple[StoredDefinition, WorkflowRecord]:
        """Return a workflow for reading, with all recorded ends of its jobs. Raises NotFound."""
        record = self._workflows.get(workflow_id)
        if record is None or record.gone(self._clock.now_ms()):
            raise NotFound("workflow", workflow_id)
        definition = self._workflows.definition(record)
        return definition, self.with_marks(definition, record)

    def with_marks(self, definition: StoredDefinition, record: WorkflowRecord) -> WorkflowRecord:
        """Return a workflow with the recorded ends of its open fan-ins."""
        if not record.fan_ins:
            return record
        ends = self._endings(record, self._workflows.fan_ins.ends(record.id, record.fan_ins))
        return self.after(definition, record, ends)

    def change(
        self, workflow_id: str, decide: Decide, *, slices_ms: int = SLICES_MS
    ) -> WorkflowRecord:
        """Change a workflow, and start the jobs that must start then.

        No new slice of jobs is started after `slices_ms` milliseconds.

        `decide` can be called several times. To change nothing, it returns the record it received.

        Raises NotFound, BackendError, and the errors of `decide`.
        """

        def attempt() -> WorkflowRecord:
            before = self._workflows.get(workflow_id)
            if before is None:
                raise NotFound("workflow", workflow_id)
            definition = self._workflows.definition(before)
            after = decide(definition, before)
            if after is before:
                return before
            return self.resume(definition, before, after, slices_ms=slices_ms)

        return retry_on_race(attempt, tries=_TRIES, busy=_BUSY, pause=self._pause)

    def decided(
        self,
        definition: StoredDefinition,
        record: WorkflowRecord,
        decision: Decision,
        reported: _Reported | None = None,
    ) -> WorkflowRecord:
        """Return a workflow after a decision.

        Args:
            definition: Definition of the workflow.
            record: The workflow as read.
            decision: New state of the graph, and the jobs to start.
            reported: The error message and duration of the job that led to the decision.

        Returns:
            The new workflow. It is not written yet.
        """
        graph, state, now_ms = definition.graph, decision.state, self._clock.now_ms()
        final = decision.workflow.final
        ended_ms = (record.ended_ms or now_ms) if final else None
        kept_s = _RETENTION_S.get(decision.workflow, 0)
        reported = reported or _Reported()
        return replace(
            record,
            graph_state=state,
            state=decision.workflow,
            starting=(record.starting | bits(decision.starts)) & ~state.ended,
            leaving=record.leaving & ~state.ended,
            fan_ins=tuple(each for each in record.fan_ins if each.nodes & ~state.ended),
            completed=state.count(graph, StepState.COMPLETED),
            failed=state.count(graph, StepState.FAILED),
            cancelled=state.count(graph, StepState.CANCELLED),
            skipped=state.count(graph, StepState.SKIPPED),
            updated_ms=now_ms,
            ended_ms=ended_ms,
            ttl_s=None if ended_ms is None else ended_ms // 1_000 + kept_s,
            fault=record.fault or reported.fault(graph, record.graph_state, state),
            lengths={**record.lengths, **reported.lengths},
        )

    def resume(
        self,
        definition: StoredDefinition,
        before: WorkflowRecord | None,
        after: WorkflowRecord,
        *,
        slices_ms: int = SLICES_MS,
    ) -> WorkflowRecord:
        """Write a workflow and start its pending jobs.

        Jobs that can't be started now stay pending and are started soon. A step that can never
        start fails. If the first jobs of a new workflow are rejected, nothing is stored.

        Args:
            definition: Definition of the workflow.
            before: The workflow as stored. None for a new one.
            after: The workflow to write.
            slices_ms: No new slice of jobs is started after this time (ms).

        Returns:
            The workflow as stored.

        Raises:
            LostRace: Another request changed the workflow first.
            BackendError: DynamoDB rejected a write, or didn't respond.
            OjsError: The first jobs of a new workflow were rejected.
        """
        until_ms = self._clock.now_ms() + slices_ms
        course = _WorkflowTransition(definition, before, after)
        self._share(course)
        while self._clock.now_ms() < until_ms and self._start_some(course):
            pass
        if course.starter_ms is not None and course.after.starting:
            # The next request, or the sweep, starts the others.
            course.after, course.starter_ms = replace(course.after, starter_ms=None), None
        if course.after is not course.before:
            try:
                written = self._written(course, course.after)
                course.after = self._workflows.write(course.before, written)
            except LostRace:
                if not course.stored:
                    raise
        open_before = () if before is None else before.fan_ins
        if gone := [each for each in open_before if each not in course.after.fan_ins]:
            with suppress(OjsError):
                self._workflows.fan_ins.remove(after.id, gone)
        return course.after

    def _share(self, course: _WorkflowTransition) -> None:
        """Reserve the slices of a start for this request, if no other request has reserved them.

        Raises LostRace: another request changed the workflow first.
        """
        before, now_ms = course.before, self._clock.now_ms()
        if before is None:
            course.starter_ms = now_ms + SOON_MS
        elif (before.starter_ms or 0) > now_ms:
            course.passed_over = before.starting
        elif course.after.starting.bit_count() > _STARTED_AT_ONCE:
            # The root is written before the jobs, because each slice takes about a second. The
            # stream repeats the end of a job in the meantime, and then finds nothing to do.
            course.starter_ms = now_ms + SOON_MS
            written = self._written(course, course.after)
            course.before = course.after = self._workflows.write(before, written)
            course.stored = True

    def _start_some(self, course: _WorkflowTransition) -> bool:
        """Start a slice of jobs. Return false if none is left, or if another request continues."""
        part = self._starts.next_slice(
            course.after, course.passed_over, course.full, singly=course.singly
        )
        if not part:
            return False
        rest = replace(course.after, starting=course.after.starting & ~bits(list(part)))
        written = self._written(course, rest)
        try:
            stored = self._starts.push(course.definition, course.before, written, part)
            course.before = course.after = stored
            course.stored = True
        except LostRace:
            return course.overtaken()
        except BackendError:
            if course.before is None:
                raise
            # The slice may be stored anyway. The root has then changed, and its next write fails.
            # If that write succeeds, the write of the jobs fails.
            course.passed_over |= bits(list(part))
        except OjsError as error:
            return self._take_refusal(course, part, error)
        return True

    def _written(self, course: _WorkflowTransition, after: WorkflowRecord) -> WorkflowRecord:
        """Return the workflow to write, with its next check and the ends for the event."""
        graph, state = course.definition.graph, after.graph_state
        ended = 0 if course.before is None else course.before.graph_state.ended
        told = [
            [
                node,
                step_name(graph, node),
                graph.step(node).type,
                state.state_of(graph, node),
                after.lengths.get(node),
            ]
            for node in islice(
                numbers((state.completed | state.failed) & ~ended & graph.job_bits), _MOST_TOLD
            )
        ]
        return replace(
            after,
            starter_ms=(course.starter_ms or after.starter_ms) if after.starting else None,
            check_ms=self._check_ms(after),
            told=jsontext.dumps(told) if told else None,
            lengths={},
        )

    def _take_refusal(
        self, course: _WorkflowTransition, part: Mapping[int, Mapping[str, Any]], error: OjsError
    ) -> bool:
        """Handle a rejected slice: retry its jobs singly or later, or fail the step.

        Returns false if another request has started the job. Raises the error for a new workflow,
        except for a duplicate.
        """
        if len(part) > 1 and course.before is not None:
            course.singly = True
            return True
        ((node, template), *_) = part.items()
        duplicate = isinstance(error, Duplicate)
        if course.before is None and (len(part) > 1 or not duplicate):
            raise error
        if duplicate and self._is_started(course, node, error):
            return course.overtaken()
        if error.retryable:
            # No other jobs of this queue are tried.
            course.full.add(queue_of(template))
        else:
            course.after = self._refused(course.definition, course.after, node, error)
        return True

    def _is_started(self, course: _WorkflowTransition, node: int, error: OjsError) -> bool:
        """Return whether the job ID exists because another request has started the step."""
        taken = error.details.get("existing_job_id") == course.after.job_id(node)
        if course.before is None or not taken:
            return False
        now = self._workflows.get(course.before.id)
        return now is None or now.op != course.before.op

    def _refused(
        self, definition: StoredDefinition, record: WorkflowRecord, node: int, error: OjsError
    ) -> WorkflowRecord:
        """Return the workflow after a step that can never start."""
        told = {
            "code": error.code,
            "type": error.code,
            "message": error.message[:_MAX_MESSAGE],
            "attempt": 0,
            "retryable": False,
            "occurred_at": times.format_ms(self._clock.now_ms()),
        }
        self._results.refuse(record, node, told)
        ending = (node, StepState.FAILED, record.graph_state.generation_of(node))
        return self.after(definition, record, [ending], _Reported(error.message[:_MAX_MESSAGE]))

    def _check_ms(self, record: WorkflowRecord) -> int | None:
        """Return the time of the next check. Keeps an earlier time, which saves an index write."""
        now_ms = self._clock.now_ms()
        if record.starting or record.leaving:
            return min(record.check_ms or now_ms + SOON_MS, now_ms + SOON_MS)
        if record.state.final:
            return None
        return record.check_ms or now_ms + FIRST_CHECK_MS

    # --- finished jobs that were missed -----------------------------------------------------------

    def check(self, workflow_id: str) -> WorkflowRecord:
        """Process missed ends of a workflow's jobs, and continue pending starts.

        A job that was deleted counts as failed. Raises NotFound and BackendError.
        """
        missed = self._missed(workflow_id)

        def checked(definition: StoredDefinition, record: WorkflowRecord) -> WorkflowRecord:
            now_ms = self._clock.now_ms()
            after = self.after(definition, record, missed) if missed else record
            age_ms = max(FIRST_CHECK_MS, min(LAST_CHECK_MS, now_ms - record.created_ms))
            return replace(after, check_ms=now_ms + age_ms)

        return self.change(workflow_id, checked)

    def _missed(self, workflow_id: str) -> list[Ending]:
        """Return the jobs that have finished although the root item lists them as active."""
        record = self._workflows.get(workflow_id)
        if record is None:
            raise NotFound("workflow", workflow_id)
        definition = self._workflows.definition(record)
        marked = self._endings(record, self._workflows.fan_ins.ends(record.id, record.fan_ins))
        state = self.after(definition, record, marked).graph_state
        # Jobs that start because of these recorded ends are not stored yet.
        started = record.graph_state.started & definition.graph.job_bits
        stored = started & ~state.ended & ~record.starting
        running = rotated(list(numbers(stored)), self._choose)[:_CHECKED]
        ids = {node: record.job_id(node) for node in running}
        found = self._jobs.read_records(ids.values())
        missed: list[Ending] = []
        for node, job_id in ids.items():
            job = found.get(job_id)
            if job is not None and job.workflow is not None and job.state.terminal:
                self._results.keep(job, job.workflow)
            if job is None or job.state.terminal:
                ended = StepState.FAILED if job is None else outcome(job)
                missed.append((node, ended, state.generation_of(node)))
        return [*missed, *marked]


def _step_of(job: Job) -> WorkflowStep:
    assert job.workflow is not None
    return job.workflow


def outcome(job: Job) -> StepState:
    """Return the outcome of the step of a finished job."""
    return StepState.COMPLETED if job.state is State.COMPLETED else StepState.FAILED
