"""Durable code: the counts in a job record, checkpoints, steps, and waits. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from ojs.domain.errors import Conflict, OjsError
from ojs.records import record

# A larger state is shown once in a job, so that the largest job and state fit into a response.
MAX_REPEATED_BYTES = 262_144
# The name of a step, and a key after a slash that distinguishes the steps of a loop.
NAME = re.compile(r"(?!\.\.?(?:/|$))[A-Za-z0-9_.:-]{1,64}")
STEP_NAME = re.compile(rf"{NAME.pattern}(/[^|\x00-\x1f]{{1,100}})?")
NAME_RULE = (
    "must be 1 to 64 letters, digits, or _.:- and, for steps, optionally a slash and a key of 1 to "
    "100 characters without |"
)
MAX_RESULT_BYTES = 262_144
MAX_STEPS, MAX_STEP_BYTES = 1_000, 8 * 1_048_576
MAX_SIGNALS = 100
# The error of an attempt that suspends itself without progress since the last time.
NO_PROGRESS: Mapping[str, Any] = {
    "code": "no_progress",
    "type": "no_progress",
    "message": "The job was suspended for time twice without storing a step in between.",
}


class OutcomeKind(StrEnum):
    """What an outcome is of: a step, a signal, or a child job."""

    STEP = "step"
    SIGNAL = "signal"
    JOB = "job"


class Resumption(StrEnum):
    """Whether a retried dead letter keeps what its code has stored."""

    KEEP = "keep"
    CLEAR = "clear"


# By their letters in sort keys.
KINDS: Mapping[str, OutcomeKind] = {
    "s": OutcomeKind.STEP, "g": OutcomeKind.SIGNAL, "j": OutcomeKind.JOB,
}  # fmt: skip
LETTERS: Mapping[str, str] = {kind: letter for letter, kind in KINDS.items()}


class TooManySteps(OjsError):
    """The job has stored the maximum number or size of outcomes."""

    code = "too_many_steps"

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"The job can store at most {MAX_STEPS} outcomes of steps and waits, of "
            f"{MAX_STEP_BYTES} bytes in total, and {MAX_SIGNALS} signals that it doesn't wait for. "
            "Split it into several jobs.",
            details={"job_id": job_id, "limit": MAX_STEPS, "max_bytes": MAX_STEP_BYTES},
        )


class LeaseTokenRequired(OjsError):
    """The request changes a running job, and has no lease token."""

    code = "lease_token_required"

    def __init__(self, job_id: str) -> None:
        super().__init__(
            "'lease_token': is required. Send the lease_token of the job from the fetch response.",
            details={"field": "lease_token", "job_id": job_id},
        )


class WaitingForSignal(Conflict):
    """The job waits for a signal or a child job, which a retry can't replace."""

    code = "waiting_for_signal"


@record(frozen=True)
class Checkpoint:
    """A stored checkpoint of a job.

    `more` has the other fields that an SDK stored with the state. `bytes` is the size of all of it.
    """

    state: Any
    sequence: int
    created_ms: int
    more: Mapping[str, Any]
    bytes: int

    @property
    def repeated(self) -> bool:
        """Whether a job shows the state a second time, in `last_checkpoint`."""
        return self.bytes <= MAX_REPEATED_BYTES

    @property
    def shown_bytes(self) -> int:
        """The size of the fields that a job has for it, in bytes."""
        return self.bytes * (2 if self.repeated else 1)


@record(frozen=True)
class Wait:
    """What a suspended job waits for: a sleep, a signal, a child job, or a time.

    `until_ms` is when the wait ends without it (ms since the epoch).
    """

    kind: str
    name: str
    until_ms: int


@record(frozen=True)
class Suspension:
    """Why a job is suspended. If `all`, each of the waits must end before it continues."""

    waits: tuple[Wait, ...]
    all: bool = False

    def compact(self) -> str:
        """Return the stored form. Names don't contain `|`."""
        parts = [f"{wait.kind}|{wait.name}|{wait.until_ms}" for wait in self.waits]
        return "|".join(["all" if self.all else "any", *parts])

    @classmethod
    def of(cls, text: str) -> Suspension:
        """Read the result of `compact`. Raises ValueError."""
        mode, *parts = text.split("|")
        waits = [
            Wait(kind, name, int(until))
            for kind, name, until in zip(*[iter(parts)] * 3, strict=True)
        ]
        return cls(tuple(waits), mode == "all")

    @property
    def until_ms(self) -> int:
        """When the first of the waits ends without a signal (ms since the epoch)."""
        return min(wait.until_ms for wait in self.waits)

    @property
    def stops(self) -> bool:
        """Whether the code has stopped for time only, to continue at once."""
        return any(wait.kind == "time" for wait in self.waits)

    def includes(self, kind: str, name: str) -> bool:
        """Return whether the job waits for this outcome."""
        return any((wait.kind, wait.name) == (kind, name) for wait in self.waits)

    def without(self, kind: str, name: str) -> Suspension | None:
        """Return what the job still waits for after an outcome, or None if it continues."""
        left = tuple(wait for wait in self.waits if (wait.kind, wait.name) != (kind, name))
        return Suspension(left, all=True) if self.all and left else None


@record(frozen=True)
class Parent:
    """The job that waits for a child job, its epoch, and the name of its step."""

    job_id: str
    epoch: int
    name: str

    def compact(self) -> str:
        """Return the stored form. Names don't contain `|`."""
        return f"{self.job_id}|{self.epoch}|{self.name}"

    @classmethod
    def of(cls, text: str) -> Parent:
        """Read the result of `compact`. Raises ValueError."""
        job_id, epoch, name = text.split("|", 2)
        return cls(job_id, int(epoch), name)


@record(frozen=True)
class Durable:
    """What the job record stores about durable code.

    Attributes:
        checkpoints: Number of the latest checkpoint.
        cleared: Number of the latest checkpoint that was cleared when the job was retried.
        saves: Number of stored outcomes and suspensions.
        bytes: Size of these outcomes in bytes.
        forgiven: Number of attempts before the one that last stored a step. They don't count.
        version: Version of the code, from the first step.
        epoch: Incremented when a dead letter is retried from the beginning.
        signals: Number of signals that were stored before the job waited for them.
        waits: What a scheduled job waits for.
        parent: The job, its epoch, and the name under which it started this job.
        stopped: The value of `saves` after the last suspension for time.
    """

    checkpoints: int = 0
    cleared: int = 0
    saves: int = 0
    bytes: int = 0
    forgiven: int = 0
    version: int | None = None
    epoch: int = 0
    signals: int = 0
    waits: Suspension | None = None
    stopped: int | None = None
    parent: Parent | None = None

    @property
    def resumable(self) -> bool:
        """Whether a checkpoint can be stored that was not cleared."""
        return self.checkpoints > self.cleared

    @property
    def used(self) -> bool:
        """Whether the job has stored outcomes of steps or waits."""
        return bool(self.saves or self.signals or self.epoch)


NOT_DURABLE = Durable()


@record(frozen=True)
class DurableOutcome:
    """The outcome of a step, a signal, or a child job. Times in milliseconds.

    `save` identifies the request that stored it. `value` is the result, or the error if not `ok`.
    `woken` is whether it made the job available.
    """

    name: str
    kind: OutcomeKind
    ok: bool
    value: Any
    save: str
    attempt: int = 0
    started_ms: int | None = None
    duration_ms: int | None = None
    stored_ms: int = 0
    woken: bool = False
