"""Bulk operations that retry or purge many dead letters.

An operation runs in slices until it is over, and can be read and stopped meanwhile. It covers the
dead letters that existed when it began: a job that is retried and discarded again is not covered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ojs.domain import times
from ojs.domain.dead_letter.filter import DeadLetterFilter
from ojs.domain.errors import OjsError

# Reasons kept of jobs that could not be handled: those of the first ones.
MAX_ERRORS = 20
_MESSAGE = 200


class Action(StrEnum):
    """What an operation does to each dead letter."""

    RETRY = "retry"
    PURGE = "purge"


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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class BulkOperation:
    """An operation as stored. Times in ms since the epoch.

    `cursor` is the index key of the last dead letter that was looked at.
    """

    id: str
    action: Action
    wanted: DeadLetterFilter
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

    @property
    def until_ms(self) -> int:
        """Dead letters discarded at this time (ms) or later are not covered."""
        end_ms = self.started_ms + 1
        return end_ms if self.wanted.until_ms is None else min(end_ms, self.wanted.until_ms)

    @property
    def matched(self) -> int:
        """How many dead letters have matched so far."""
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

    def ended(self, phase: Phase, *, now_ms: int) -> BulkOperation:
        """The operation at its end."""
        return replace(self, phase=phase, finished_ms=now_ms, waiting_for_room=False)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form in answers."""
        shown: dict[str, Any] = {
            "id": self.id,
            "action": self.action.value,
            "state": self.phase.value,
            "filter": self.wanted.to_dict(),
            "matched": self.matched,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "waiting_for_room": self.waiting_for_room,
            "errors": [error.to_dict() for error in self.errors],
            "started_at": times.format_ms(self.started_ms),
            "updated_at": times.format_ms(self.updated_ms),
        }
        if self.finished_ms is not None:
            shown["finished_at"] = times.format_ms(self.finished_ms)
        return shown
