"""The eight states of a job, and the table of transitions (ojs-core, section 6.1)."""

from __future__ import annotations

from enum import StrEnum

from ojs.domain.errors import Conflict, any_of


class State(StrEnum):
    """The state of a job."""

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
        """Whether the job is finished. Only a dead letter can leave a terminal state."""
        return self in TERMINAL


TERMINAL = frozenset({State.COMPLETED, State.CANCELLED, State.DISCARDED})
WAITING = frozenset(State) - TERMINAL - {State.ACTIVE}


class Trigger(StrEnum):
    """What changes a job's state."""

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

# (state, trigger) → possible next states. All other triggers are refused with 409.
TRANSITIONS: dict[tuple[State, Trigger], frozenset[State]] = {
    (S.SCHEDULED, T.DUE): frozenset({S.AVAILABLE}),
    (S.RETRYABLE, T.DUE): frozenset({S.AVAILABLE}),
    (S.PENDING, T.ACTIVATE): frozenset({S.AVAILABLE}),
    (S.AVAILABLE, T.CLAIM): frozenset({S.ACTIVE}),
    (S.ACTIVE, T.ACK): frozenset({S.COMPLETED}),
    (S.ACTIVE, T.FAIL): frozenset({S.RETRYABLE, S.DISCARDED}),
    (S.ACTIVE, T.REQUEUE): frozenset({S.AVAILABLE}),
    # A worker whose lease ended reports before its job is claimed again.
    (S.AVAILABLE, T.RESUME): frozenset({S.ACTIVE}),
    # A job whose lease ended is available at once; its attempt counts.
    (S.ACTIVE, T.STALL): frozenset({S.AVAILABLE, S.DISCARDED}),
    (S.ACTIVE, T.TIME_OUT): frozenset({S.RETRYABLE, S.DISCARDED}),
    (S.DISCARDED, T.REVIVE): frozenset({S.AVAILABLE}),
    **{
        (state, T.CANCEL): frozenset({S.CANCELLED})
        for state in (S.SCHEDULED, S.AVAILABLE, S.PENDING, S.RETRYABLE, S.ACTIVE)
    },
    # Its rate limit is reached, and it asks to be rescheduled or dropped (ojs-rate-limiting, 6.2).
    (S.AVAILABLE, T.POSTPONE): frozenset({S.SCHEDULED}),
    # Also: the oldest available job is evicted for a new one.
    (S.AVAILABLE, T.DROP): frozenset({S.DISCARDED}),
    **{
        (state, trigger): frozenset({S.DISCARDED})
        for state in (S.SCHEDULED, S.AVAILABLE, S.PENDING, S.RETRYABLE)
        # Its deadline has passed, or its queue was deleted.
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
            f"Can't {trigger.replace('_', ' ')} a job in state '{current}'. "
            f"The state must be {any_of(expected)}.",
            current_state=current,
            expected_states=expected,
            details={"job_id": job_id},
        )
