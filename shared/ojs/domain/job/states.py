"""The eight states of a job and the table of transitions (ojs-core, section 6.1)."""

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
        """Whether the state is final. Only a dead letter can leave a final state."""
        return self in TERMINAL


TERMINAL = frozenset({State.COMPLETED, State.CANCELLED, State.DISCARDED})
WAITING = frozenset(State) - TERMINAL - {State.ACTIVE}


class Trigger(StrEnum):
    """An event that changes the state of a job."""

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
    SUSPEND = "suspend"


S, T = State, Trigger

# (state, trigger) → possible next states. All other triggers are rejected with 409.
TRANSITIONS: dict[tuple[State, Trigger], frozenset[State]] = {
    (S.SCHEDULED, T.DUE): frozenset({S.AVAILABLE}),
    (S.RETRYABLE, T.DUE): frozenset({S.AVAILABLE}),
    (S.PENDING, T.ACTIVATE): frozenset({S.AVAILABLE}),
    (S.AVAILABLE, T.CLAIM): frozenset({S.ACTIVE}),
    (S.ACTIVE, T.ACK): frozenset({S.COMPLETED}),
    (S.ACTIVE, T.FAIL): frozenset({S.RETRYABLE, S.DISCARDED}),
    (S.ACTIVE, T.REQUEUE): frozenset({S.AVAILABLE}),
    # The code of the job waits, without a worker.
    (S.ACTIVE, T.SUSPEND): frozenset({S.SCHEDULED, S.AVAILABLE}),
    # A worker reports after its lease expired and before the job is claimed again.
    (S.AVAILABLE, T.RESUME): frozenset({S.ACTIVE}),
    # A job with an expired lease is immediately available. Its attempt counts.
    (S.ACTIVE, T.STALL): frozenset({S.AVAILABLE, S.DISCARDED}),
    (S.ACTIVE, T.TIME_OUT): frozenset({S.RETRYABLE, S.DISCARDED}),
    (S.DISCARDED, T.REVIVE): frozenset({S.AVAILABLE}),
    **{
        (state, T.CANCEL): frozenset({S.CANCELLED})
        for state in (S.SCHEDULED, S.AVAILABLE, S.PENDING, S.RETRYABLE, S.ACTIVE)
    },
    # Its rate limit is reached and its `on_limit` is `reschedule` or `drop` (ojs-rate-limiting,
    # 6.2).
    (S.AVAILABLE, T.POSTPONE): frozenset({S.SCHEDULED}),
    # Also for `drop_oldest`: the oldest available job is discarded for a new one.
    (S.AVAILABLE, T.DROP): frozenset({S.DISCARDED}),
    **{
        (state, trigger): frozenset({S.DISCARDED})
        for state in (S.SCHEDULED, S.AVAILABLE, S.PENDING, S.RETRYABLE)
        # Its deadline has passed, or its queue was deleted.
        for trigger in (T.EXPIRE, T.WITHDRAW)
    },
}


def sources(trigger: Trigger) -> frozenset[State]:
    """Return the states in which `trigger` is allowed."""
    return frozenset(state for state, what in TRANSITIONS if what is trigger)


def check(current: State, trigger: Trigger, job_id: str) -> None:
    """Check that a trigger is allowed in a state.

    Args:
        current: State of the job.
        trigger: Event to apply.
        job_id: ID of the job, for the error.

    Raises:
        Conflict: The trigger is not allowed in this state.
    """
    if (current, trigger) not in TRANSITIONS:
        expected = sorted(sources(trigger))
        raise Conflict(
            f"Can't {trigger.replace('_', ' ')} a job in state '{current}'. "
            f"The state must be {any_of(expected)}.",
            current_state=current,
            expected_states=expected,
            details={"job_id": job_id},
        )
