"""Advancing workflows: what follows when one of their jobs has ended (ADR 36).

The request that ends a job does it, and the stream repeats it. Each change of a workflow is one
write of its root, on the condition that it is as it was read, in one transaction with the jobs that
start. So each step starts once, or not at all if the workflow was cancelled in between. If more
start than one transaction takes, the root notes them, and they follow in slices.
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
_BUSY = "Others are changing this workflow; try again."
# When somebody looks at a workflow, however it fares: a twelfth of an hour after its creation, then
# as much later as it is old, and at least once an hour.
FIRST_CHECK_MS, LAST_CHECK_MS = 300_000, 3_600_000
# When somebody looks at one with something under way: what a crash left, or a full queue refused.
SOON_MS = 20_000
# How long a request starts or cancels slices of jobs.
SLICES_MS = 8_000
# Jobs that one check reads.
_CHECKED = 1_000
# Ends of jobs that follow from an advance itself, as a queue drops them: the rest is the stream's.
_MOST_DEFERRED = 100
_MAX_MESSAGE = 200
# Ends that one write tells of: those that a fan-in counts have events as jobs.
_MOST_TOLD = 10
_RETENTION_S = {
    WorkflowState.COMPLETED: RETENTION.completed_s,
    WorkflowState.CANCELLED: RETENTION.cancelled_s,
    WorkflowState.FAILED: RETENTION.discarded_s,
}


@record(frozen=True)
class _Reported:
    """What is known of the end of one job: why it failed, and by its node how long it ran (ms)."""

    message: str | None = None
    lengths: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, node: int) -> _Reported:
        """What the record of a job says."""
        said = job.noted[-1].failure.message if job.noted else f"The job is {job.state}."
        lengths = {}
        if job.started_ms is not None and job.ended_ms is not None:
            lengths[node] = job.ended_ms - job.started_ms
        return cls(said[:_MAX_MESSAGE], lengths)

    def fault(self, graph: Graph, before: GraphState, after: GraphState) -> str | None:
        """What a root says of the first step that failed."""
        first = next(numbers(after.failed & ~before.failed & graph.job_bits), None)
        if first is None:
            return None
        told = {"step": step_name(graph, first), "type": graph.step(first).type}
        return jsontext.dumps(told | ({"message": self.message} if self.message else {}))


@record
class _WorkflowTransition:
    """A workflow while its jobs are started: as it is stored, and as it is to be.

    `passed_over` are jobs, as bits, that cannot be started now, and `full` the queues in which none
    can; `singly`: the next ones are started one by one. `stored` says that some were.
    """

    definition: StoredDefinition
    before: WorkflowRecord | None
    after: WorkflowRecord
    passed_over: int = 0
    full: set[str] = field(default_factory=set)
    singly: bool = False
    stored: bool = False

    def overtaken(self) -> bool:
        """Others have changed the workflow. What is stored stays, and they go on from there.

        Raises LostRace if nothing is stored yet: then all is to be decided anew.
        """
        if not self.stored or self.before is None:
            raise LostRace([])
        self.after = self.before
        return False


# From a workflow as it was read to what it becomes.
Decide = Callable[[StoredDefinition, WorkflowRecord], WorkflowRecord]


class _Deferred(threading.local):
    """Jobs whose ends were met while a workflow was advanced; None outside of that."""

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
        """Do what follows from the end of a job, if it is a step of a workflow.

        Raises nothing: the job has ended, whatever becomes of the rest, which the stream repeats.
        """
        if job.workflow is None or not job.state.terminal:
            return
        if self._deferred.jobs is not None:
            # A start has dropped it from a full queue: one after the other, not one inside of each
            # other.
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
            self.change(step.workflow_id, lambda d, r: self._ended(d, r, job, step))
        elif self._workflows.fan_ins.mark(step.workflow_id, step.fan_in, step.slot, ended):
            self._close(step)

    def repeat(self, job: Job) -> None:
        """As `job_ended`, for the stream: reads whether all of it was done, and does what is
        missing. A job that was removed before its end counts as failed.

        Raises OjsError: then it is to be repeated again.
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
        """Remove what belongs to a workflow that was removed. Raises OjsError."""
        self._workflows.remove_rest(record)

    def _close(self, step: WorkflowStep) -> None:
        """All jobs of a fan-in have ended: tell the root."""

        def closed(definition: StoredDefinition, record: WorkflowRecord) -> WorkflowRecord:
            fan_ins = [each for each in record.fan_ins if each.token == step.fan_in]
            ends = self._workflows.fan_ins.ends(record.id, fan_ins)
            return self.after(definition, record, self._endings(record, ends))

        with suppress(NotFound):
            self.change(step.workflow_id, closed)

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
        """A workflow after some of its jobs have ended; the same object if all of it was known."""
        decision = rules.advance_all(definition.graph, record.graph_state, endings)
        if decision.state == record.graph_state:
            return record
        return self.decided(definition, record, decision, reported)

    # --- a change of a workflow -------------------------------------------------------------------

    def current(self, workflow_id: str) -> tuple[StoredDefinition, WorkflowRecord]:
        """A workflow with all that is known of its jobs by now: for who looks at it.

        Raises NotFound.
        """
        record = self._workflows.get(workflow_id)
        if record is None or record.gone(self._clock.now_ms()):
            raise NotFound("workflow", workflow_id)
        definition = self._workflows.definition(record)
        return definition, self.with_marks(definition, record)

    def with_marks(self, definition: StoredDefinition, record: WorkflowRecord) -> WorkflowRecord:
        """A workflow with the marks of its open fan-ins."""
        if not record.fan_ins:
            return record
        ends = self._endings(record, self._workflows.fan_ins.ends(record.id, record.fan_ins))
        return self.after(definition, record, ends)

    def change(self, workflow_id: str, decide: Decide) -> WorkflowRecord:
        """Change a workflow, and start what is to start then. `decide` may be asked several times,
        and returns the record that it was given if nothing changes.

        Raises NotFound, what `decide` raises, and BackendError.
        """

        def attempt() -> WorkflowRecord:
            before = self._workflows.get(workflow_id)
            if before is None:
                raise NotFound("workflow", workflow_id)
            definition = self._workflows.definition(before)
            after = decide(definition, before)
            return before if after is before else self.resume(definition, before, after)

        return retry_on_race(attempt, tries=_TRIES, busy=_BUSY, pause=self._pause)

    def decided(
        self,
        definition: StoredDefinition,
        record: WorkflowRecord,
        decision: Decision,
        reported: _Reported | None = None,
    ) -> WorkflowRecord:
        """A workflow after a decision. `reported` says more of the one job whose end led to it."""
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
    ) -> WorkflowRecord:
        """Write a workflow, and start the jobs that are to start, as far as there is time.

        What cannot be started now is noted, and tried again soon; a step that can never start
        fails. Of a new workflow (`before` is None) nothing is stored if its first jobs are refused.
        Raises LostRace, BackendError, and of a new workflow what refuses its jobs.
        """
        until_ms = self._clock.now_ms() + SLICES_MS
        course = _WorkflowTransition(definition, before, after)
        while self._clock.now_ms() < until_ms and self._start_some(course):
            pass
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

    def _start_some(self, course: _WorkflowTransition) -> bool:
        """Start a slice of jobs; False if there is none, or if others go on from here."""
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
            # It may be stored all the same: then the root has changed, and the next write of it
            # fails. If that succeeds, the write of the jobs comes too late.
            course.passed_over |= bits(list(part))
        except OjsError as error:
            return self._take_refusal(course, part, error)
        return True

    def _written(self, course: _WorkflowTransition, after: WorkflowRecord) -> WorkflowRecord:
        """A workflow as it is to be written: with its next check, and what the write tells."""
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
            check_ms=self._check_ms(after),
            told=jsontext.dumps(told) if told else None,
            lengths={},
        )

    def _take_refusal(
        self, course: _WorkflowTransition, part: Mapping[int, Mapping[str, Any]], error: OjsError
    ) -> bool:
        """A slice was refused: try its jobs one by one, or one job later, or its step has failed.

        False if others have started it. Of a new workflow raises the error, but for a duplicate.
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
            # What else is to start there need not be tried.
            course.full.add(queue_of(template))
        else:
            course.after = self._refused(course.definition, course.after, node, error)
        return True

    def _is_started(self, course: _WorkflowTransition, node: int, error: OjsError) -> bool:
        """Whether the id of a job is taken as somebody else has started the step."""
        taken = error.details.get("existing_job_id") == course.after.job_id(node)
        if course.before is None or not taken:
            return False
        now = self._workflows.get(course.before.id)
        return now is None or now.op != course.before.op

    def _refused(
        self, definition: StoredDefinition, record: WorkflowRecord, node: int, error: OjsError
    ) -> WorkflowRecord:
        """A workflow of which a step can never start."""
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
        """When somebody is to look at a workflow. An earlier time stays: moving it costs more."""
        now_ms = self._clock.now_ms()
        if record.starting or record.leaving:
            return min(record.check_ms or now_ms + SOON_MS, now_ms + SOON_MS)
        if record.state.final:
            return None
        return record.check_ms or now_ms + FIRST_CHECK_MS

    # --- what an end was missed of ----------------------------------------------------------------

    def check(self, workflow_id: str) -> WorkflowRecord:
        """Look at the jobs of a workflow that were started: an end that was missed counts now, and
        what was left of starts is carried on. One that is gone counts as failed.

        Raises NotFound, BackendError.
        """
        missed = self._missed(workflow_id)

        def checked(definition: StoredDefinition, record: WorkflowRecord) -> WorkflowRecord:
            now_ms = self._clock.now_ms()
            after = self.after(definition, record, missed) if missed else record
            age_ms = max(FIRST_CHECK_MS, min(LAST_CHECK_MS, now_ms - record.created_ms))
            return replace(after, check_ms=now_ms + age_ms)

        return self.change(workflow_id, checked)

    def _missed(self, workflow_id: str) -> list[Ending]:
        """Jobs that have ended while the root says that they run."""
        record = self._workflows.get(workflow_id)
        if record is None:
            raise NotFound("workflow", workflow_id)
        definition = self._workflows.definition(record)
        marked = self._endings(record, self._workflows.fan_ins.ends(record.id, record.fan_ins))
        state = self.after(definition, record, marked).graph_state
        # What starts with these marks is not stored yet.
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
    """How the step of a job that has ended did."""
    return StepState.COMPLETED if job.state is State.COMPLETED else StepState.FAILED
