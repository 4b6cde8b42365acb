"""The eight states and the one table of transitions.

Core seed, "States"; requirements section 2.
"""

from __future__ import annotations

from enum import StrEnum

from ojs.domain.errors import Conflict


class State(StrEnum):
    """Where a job is in its life."""

    SCHEDULED = "scheduled"
    AVAILABLE = "available"
    PENDING = "pending"
    ACTIVE = "active"
    COMPLETED = "completed"
    RETRYABLE = "retryable"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"

    @property
    def terminal(self) -> bool:
        """Final, but for a retry from dead letter."""
        return self in TERMINAL


TERMINAL = frozenset({State.COMPLETED, State.CANCELLED, State.DISCARDED})


class Trigger(StrEnum):
    """What moves a job from one state to another."""

    DUE = "due"
    ACTIVATE = "activate"
    CLAIM = "claim"
    ACK = "ack"
    FAIL = "fail"
    REQUEUE = "requeue"
    RESUME = "resume"
    STALL = "stall"
    TIME_OUT = "time_out"
    CANCEL = "cancel"
    EXPIRE = "expire"
    DROP = "drop"
    POSTPONE = "postpone"
    WITHDRAW = "withdraw"
    REVIVE = "revive"


S, T = State, Trigger

# (from, trigger) → where it may lead. What is not here is refused with 409.
TRANSITIONS: dict[tuple[State, Trigger], frozenset[State]] = {
    (S.SCHEDULED, T.DUE): frozenset({S.AVAILABLE}),
    (S.RETRYABLE, T.DUE): frozenset({S.AVAILABLE}),
    (S.PENDING, T.ACTIVATE): frozenset({S.AVAILABLE}),
    (S.AVAILABLE, T.CLAIM): frozenset({S.ACTIVE}),
    (S.ACTIVE, T.ACK): frozenset({S.COMPLETED}),
    (S.ACTIVE, T.FAIL): frozenset({S.RETRYABLE, S.DISCARDED}),
    (S.ACTIVE, T.REQUEUE): frozenset({S.AVAILABLE}),
    # A worker thought lost speaks up before anybody else was given its job.
    (S.AVAILABLE, T.RESUME): frozenset({S.ACTIVE}),
    # A lost worker gives the job back at once; the attempt it used up counts.
    (S.ACTIVE, T.STALL): frozenset({S.AVAILABLE, S.DISCARDED}),
    (S.ACTIVE, T.TIME_OUT): frozenset({S.RETRYABLE, S.DISCARDED}),
    (S.DISCARDED, T.REVIVE): frozenset({S.AVAILABLE}),
    **{
        (state, T.CANCEL): frozenset({S.CANCELLED})
        for state in (S.SCHEDULED, S.AVAILABLE, S.PENDING, S.RETRYABLE, S.ACTIVE)
    },
    # Its rate limit is reached, and it asked to be put off or dropped (ojs-rate-limiting, 6.2).
    (S.AVAILABLE, T.POSTPONE): frozenset({S.SCHEDULED}),
    # Also: the oldest job in line gives way to a new one (backpressure seed, section 5.3).
    (S.AVAILABLE, T.DROP): frozenset({S.DISCARDED}),
    **{
        (state, trigger): frozenset({S.DISCARDED})
        for state in (S.SCHEDULED, S.AVAILABLE, S.PENDING, S.RETRYABLE)
        # Its deadline passed, or its queue was deleted.
        for trigger in (T.EXPIRE, T.WITHDRAW)
    },
}


def sources(trigger: Trigger) -> frozenset[State]:
    """The states from which `trigger` may move a job."""
    return frozenset(state for state, what in TRANSITIONS if what is trigger)


def check(current: State, trigger: Trigger, job_id: str) -> None:
    """Raise Conflict unless `trigger` may happen to a job in state `current`."""
    if (current, trigger) not in TRANSITIONS:
        expected = sorted(sources(trigger))
        raise Conflict(
            f"Cannot {trigger.replace('_', ' ')} job in state '{current}'; "
            f"it must be {' or '.join(expected)}.",
            current_state=current,
            expected_states=expected,
            details={"job_id": job_id},
        )
