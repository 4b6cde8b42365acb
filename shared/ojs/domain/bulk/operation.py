"""Bulk operations: retry or purge many dead letters; retry, cancel, delete or erase many jobs.

An operation runs in slices until it ends. While it runs, it can be read and stopped. It covers the
jobs that existed when it started and have not changed since. A job that is retried and discarded
again is not covered.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Any

from ojs.domain import times
from ojs.domain.errors import OjsError
from ojs.domain.filters.dead_letters import DeadLetterFilter
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job.job import Job
from ojs.domain.job.states import TERMINAL, State
from ojs.records import record

# Maximum number of errors that an operation stores: those of the first jobs that failed.
MAX_ERRORS = 20
_MESSAGE = 200
# Maximum difference between the clocks of two servers.
CLOCKS_MS = 5_000


class Action(StrEnum):
    """The action of an operation on each dead letter or job.

    Actions on jobs have separate names, so that a version without support for them skips them.
    """

    RETRY = "retry"
    PURGE = "purge"
    RETRY_JOBS = "retry_jobs"
    CANCEL_JOBS = "cancel_jobs"
    DELETE_JOBS = "delete_jobs"
    # Cancels jobs that are not in a final state, deletes all jobs, and deletes archived jobs as
    # well.
    ERASE_JOBS = "erase_jobs"

    @property
    def of_jobs(self) -> bool:
        """Whether the action applies to jobs instead of dead letters."""
        return self in _OF_STATES

    @property
    def shown(self) -> str:
        """The name of the action in requests and responses."""
        return self.value.removesuffix("_jobs")

    @property
    def states(self) -> frozenset[State]:
        """The states of the jobs that an action on jobs applies to."""
        return _OF_STATES[self]


_OF_STATES = {
    Action.RETRY_JOBS: frozenset({State.RETRYABLE, State.DISCARDED}),
    Action.CANCEL_JOBS: frozenset(State) - TERMINAL,
    Action.DELETE_JOBS: TERMINAL,
    Action.ERASE_JOBS: frozenset(State),
}


COMPLETED_WITH_FAILURES = "completed_with_failures"


class Phase(StrEnum):
    """The state of an operation."""

    RUNNING = "running"
    # A stop was requested. The container that runs the operation stops after its slice.
    STOPPING = "stopping"
    STOPPED = "stopped"
    COMPLETED = "completed"

    @property
    def over(self) -> bool:
        """Whether the operation has ended."""
        return self in (Phase.STOPPED, Phase.COMPLETED)


@record(frozen=True)
class Refusal:
    """The reason why the action failed for one job."""

    job_id: str
    code: str
    message: str

    @classmethod
    def of(cls, job_id: str, error: OjsError) -> Refusal:
        """Create the entry of a job from an error."""
        return cls(job_id, error.code, error.message[:_MESSAGE])

    def to_dict(self) -> dict[str, str]:
        """Return the JSON object in responses."""
        return {"job_id": self.job_id, "code": self.code, "message": self.message}


@record(frozen=True)
class JobIds:
    """The jobs of an operation that lists them by ID."""

    ids: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object in responses: only the number of IDs."""
        return {"job_ids": len(self.ids)}


@record(frozen=True)
class BulkOperation:
    """An operation as stored. Times in milliseconds since the epoch.

    `cursor` is the position at which the next slice continues: the index key of the last dead
    letter read, the cursor of a job listing, or the number of listed IDs processed. A dry run only
    counts.
    """

    id: str
    action: Action
    wanted: DeadLetterFilter | JobFilter | JobIds
    started_ms: int
    updated_ms: int
    phase: Phase = Phase.RUNNING
    finished_ms: int | None = None
    cursor: str | None = None
    succeeded: int = 0
    failed: int = 0
    errors: tuple[Refusal, ...] = ()
    # A queue is at capacity. The operation retries until the queue has capacity.
    waiting_for_room: bool = False
    dry_run: bool = False
    # An erasure repeats until a round finds no job. `before_round` is the number of jobs that were
    # erased before this round.
    round: int = 1
    before_round: int = 0
    # What the code of retried dead letters continues without: `steps`, `checkpoint`.
    clears: tuple[str, ...] = ()

    def covers(self, job: Job) -> bool:
        """Return whether the operation applies to a job.

        The job must have existed when the operation started, and must not have finished or failed
        since. Cancellations and erasures check the creation time only. An erasure allows
        `CLOCKS_MS` more, because the clock of the server that stored the job might be ahead.
        """
        since_ms = job.created_ms
        if self.action is Action.ERASE_JOBS:
            return since_ms <= self.started_ms + CLOCKS_MS
        if self.action is not Action.CANCEL_JOBS:
            since_ms = job.ended_ms or job.failed_ms or since_ms
        return since_ms <= self.started_ms

    @property
    def matched(self) -> int:
        """Number of matching jobs so far."""
        return self.succeeded + self.failed

    def passed(self, cursor: str) -> BulkOperation:
        """Return the operation after it processed one more index entry, up to a new cursor."""
        return replace(self, cursor=cursor)

    def done(self) -> BulkOperation:
        """Return the operation after it processed one more job successfully."""
        return replace(self, succeeded=self.succeeded + 1)

    def refused(self, refusal: Refusal) -> BulkOperation:
        """Return the operation after it failed for one more job."""
        errors = (*self.errors, refusal)[:MAX_ERRORS]
        return replace(self, failed=self.failed + 1, errors=errors)

    @property
    def needs_second_pass(self) -> bool:
        """Whether an erasure needs another round after it reaches the end.

        A round can miss a job that changes its state, and the event log doesn't contain a job that
        has just finished.
        """
        if self.action is not Action.ERASE_JOBS or self.dry_run or isinstance(self.wanted, JobIds):
            return False
        return self.round == 1 or self.succeeded > self.before_round

    def next_round(self) -> BulkOperation:
        """Return the operation at the start of its next round."""
        number = self.round + 1
        return replace(self, cursor=None, round=number, before_round=self.succeeded)

    def ended(self, phase: Phase, *, now_ms: int) -> BulkOperation:
        """Return the finished operation.

        An erasure deletes its filter, which contains personal data.
        """
        over = replace(self, phase=phase, finished_ms=now_ms, waiting_for_room=False)
        if self.action is Action.ERASE_JOBS and isinstance(self.wanted, JobFilter):
            over = replace(over, wanted=self.wanted.forgotten(), cursor=None)
        return over

    @property
    def _shown_phase(self) -> str:
        """The state in responses. If an erasure failed for a job, the job's data still exists."""
        incomplete = self.action is Action.ERASE_JOBS and self.failed > 0
        if self.phase is Phase.COMPLETED and incomplete:
            return COMPLETED_WITH_FAILURES
        return self.phase.value

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object in responses."""
        shown: dict[str, Any] = {
            "id": self.id,
            "action": self.action.shown,
            "state": self._shown_phase,
            "filter": self.wanted.to_dict(),
            "matched": self.matched,
            "succeeded": 0 if self.dry_run else self.succeeded,
            "failed": self.failed,
            "waiting_for_room": self.waiting_for_room,
            "errors": [error.to_dict() for error in self.errors],
            "started_at": times.format_ms(self.started_ms),
            "updated_at": times.format_ms(self.updated_ms),
        }
        if self.dry_run:
            shown["dry_run"] = True
        if self.finished_ms is not None:
            shown["finished_at"] = times.format_ms(self.finished_ms)
        return shown
