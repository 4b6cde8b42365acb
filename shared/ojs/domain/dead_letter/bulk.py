"""Bulk operations on dead letters: many are retried or purged (dead-letter seed, 6.2 and 10).

However many there are, an operation goes on in slices until it is over, and can be looked at and
stopped meanwhile. It means the dead letters there were when it began: one that comes back and dies
again is not taken again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ojs.domain import times
from ojs.domain.dead_letter.filter import DeadLetterFilter
from ojs.domain.errors import OjsError

# Reasons that are kept of jobs that could not be dealt with: those of the first.
MAX_ERRORS = 20
_MESSAGE = 200


class Action(StrEnum):
    """What is done to each dead letter."""

    RETRY = "retry"
    PURGE = "purge"


class Phase(StrEnum):
    """How far an operation is."""

    RUNNING = "running"
    # Asked to stop; whoever is at work ends after the slice it is in.
    STOPPING = "stopping"
    STOPPED = "stopped"
    COMPLETED = "completed"

    @property
    def over(self) -> bool:
        """Whether nothing more is done."""
        return self in (Phase.STOPPED, Phase.COMPLETED)


@dataclass(frozen=True)
class Refusal:
    """Why one job could not be dealt with."""

    job_id: str
    code: str
    message: str

    @classmethod
    def of(cls, job_id: str, error: OjsError) -> Refusal:
        """What an error says."""
        return cls(job_id, error.code, error.message[:_MESSAGE])

    def to_dict(self) -> dict[str, str]:
        """As the binding shows it."""
        return {"job_id": self.job_id, "code": self.code, "message": self.message}


@dataclass(frozen=True)
class BulkOperation:
    """An operation as the store holds it. Times in ms since the epoch.

    `cursor` is the place, in the line of dead letters, of the last that was looked at.
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
    # A queue was full; it is tried again until there is room.
    waiting_for_room: bool = False

    @property
    def until_ms(self) -> int:
        """Dead letters of this time or later are not meant."""
        end_ms = self.started_ms + 1
        return end_ms if self.wanted.until_ms is None else min(end_ms, self.wanted.until_ms)

    @property
    def matched(self) -> int:
        """How many dead letters were found so far."""
        return self.succeeded + self.failed

    def passed(self, cursor: str) -> BulkOperation:
        """One entry of the line further."""
        return replace(self, cursor=cursor)

    def done(self) -> BulkOperation:
        """One more was dealt with."""
        return replace(self, succeeded=self.succeeded + 1)

    def refused(self, refusal: Refusal) -> BulkOperation:
        """One more cannot be dealt with."""
        errors = (*self.errors, refusal)[:MAX_ERRORS]
        return replace(self, failed=self.failed + 1, errors=errors)

    def ended(self, phase: Phase, *, now_ms: int) -> BulkOperation:
        """It is over."""
        return replace(self, phase=phase, finished_ms=now_ms, waiting_for_room=False)

    def to_dict(self) -> dict[str, Any]:
        """As the binding shows it."""
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
