"""Bulk operations: retry or purge many dead letters; retry, cancel, delete or erase many jobs.

An operation runs in slices until it is over, and can be read and stopped meanwhile. It covers the
jobs that existed when it began, as they were: a job that is retried and discarded again is not
covered.
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

# Reasons kept of jobs that could not be handled: those of the first ones.
MAX_ERRORS = 20
_MESSAGE = 200
# How far clocks may be apart.
CLOCKS_MS = 5_000


class Action(StrEnum):
    """What an operation does to each dead letter, or to each job.

    Those for jobs have names of their own: a version that does not know them leaves them alone.
    """

    RETRY = "retry"
    PURGE = "purge"
    RETRY_JOBS = "retry_jobs"
    CANCEL_JOBS = "cancel_jobs"
    DELETE_JOBS = "delete_jobs"
    # Those that are not final are cancelled and deleted, and archived ones go, too.
    ERASE_JOBS = "erase_jobs"

    @property
    def of_jobs(self) -> bool:
        """Whether it is for jobs in any state."""
        return self in _OF_STATES

    @property
    def shown(self) -> str:
        """Its name in requests and answers."""
        return self.value.removesuffix("_jobs")

    @property
    def states(self) -> frozenset[State]:
        """The states of the jobs that it is for."""
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
    # To be stopped: the container at work ends after its slice.
    STOPPING = "stopping"
    STOPPED = "stopped"
    COMPLETED = "completed"

    @property
    def over(self) -> bool:
        """Whether the operation does nothing more."""
        return self in (Phase.STOPPED, Phase.COMPLETED)


@record(frozen=True)
class Refusal:
    """Why one job could not be handled."""

    job_id: str
    code: str
    message: str

    @classmethod
    def of(cls, job_id: str, error: OjsError) -> Refusal:
        """The refusal of a job by an error."""
        return cls(job_id, error.code, error.message[:_MESSAGE])

    def to_dict(self) -> dict[str, str]:
        """The JSON form in answers."""
        return {"job_id": self.job_id, "code": self.code, "message": self.message}


@record(frozen=True)
class JobIds:
    """The jobs of an operation, where it names them."""

    ids: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """How many there are: the request named them."""
        return {"job_ids": len(self.ids)}


@record(frozen=True)
class BulkOperation:
    """An operation as stored. Times in ms since the epoch.

    `cursor` says where it goes on: it is the index key of the last dead letter that was looked at,
    the cursor of a listing of jobs, or how many of the named jobs were looked at. A dry run counts
    and does nothing.
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
    # A queue was full; it is tried again until it has room.
    waiting_for_room: bool = False
    dry_run: bool = False
    # An erasure goes over everything again until a round has found nothing: `before_round` jobs had
    # been erased when this round began.
    round: int = 1
    before_round: int = 0

    def covers(self, job: Job) -> bool:
        """Whether a job was there when it began, as it is now.

        Of an erasure that holds of what came a moment later, too: whoever stored a job before it
        began may have had a clock that is ahead.
        """
        since_ms = job.created_ms
        if self.action is Action.ERASE_JOBS:
            return since_ms <= self.started_ms + CLOCKS_MS
        if self.action is not Action.CANCEL_JOBS:
            since_ms = job.ended_ms or job.failed_ms or since_ms
        return since_ms <= self.started_ms

    @property
    def matched(self) -> int:
        """How many jobs have matched so far."""
        return self.succeeded + self.failed

    def passed(self, cursor: str) -> BulkOperation:
        """The operation after one more index entry."""
        return replace(self, cursor=cursor)

    def done(self) -> BulkOperation:
        """The operation after one more job was handled."""
        return replace(self, succeeded=self.succeeded + 1)

    def refused(self, refusal: Refusal) -> BulkOperation:
        """The operation after one more job could not be handled."""
        errors = (*self.errors, refusal)[:MAX_ERRORS]
        return replace(self, failed=self.failed + 1, errors=errors)

    @property
    def needs_second_pass(self) -> bool:
        """Whether it is to look at everything once more when it comes to the end.

        A job that moves may be passed over, and one that has just ended is not in the log yet.
        """
        if self.action is not Action.ERASE_JOBS or self.dry_run or isinstance(self.wanted, JobIds):
            return False
        return self.round == 1 or self.succeeded > self.before_round

    def next_round(self) -> BulkOperation:
        """The operation at the begin of its next round."""
        number = self.round + 1
        return replace(self, cursor=None, round=number, before_round=self.succeeded)

    def ended(self, phase: Phase, *, now_ms: int) -> BulkOperation:
        """The operation at its end. An erasure forgets whose data it erased."""
        over = replace(self, phase=phase, finished_ms=now_ms, waiting_for_room=False)
        if self.action is Action.ERASE_JOBS and isinstance(self.wanted, JobFilter):
            over = replace(over, wanted=self.wanted.forgotten(), cursor=None)
        return over

    @property
    def _shown_phase(self) -> str:
        """The state in responses. Data of a job that an erasure could not handle still exists."""
        incomplete = self.action is Action.ERASE_JOBS and self.failed > 0
        if self.phase is Phase.COMPLETED and incomplete:
            return COMPLETED_WITH_FAILURES
        return self.phase.value

    def to_dict(self) -> dict[str, Any]:
        """The JSON form in answers."""
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
