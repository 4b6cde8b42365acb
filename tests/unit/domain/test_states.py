from __future__ import annotations

import itertools

import pytest

from ojs.domain.errors import Conflict
from ojs.domain.job.states import TERMINAL, TRANSITIONS, State, Trigger, check, sources

JOB_ID = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"

# The table of requirements section 2, written out once more by hand.
EDGES = {
    ("scheduled", "due", "available"),
    ("retryable", "due", "available"),
    ("pending", "activate", "available"),
    ("available", "claim", "active"),
    ("active", "ack", "completed"),
    ("active", "fail", "retryable"),
    ("active", "fail", "discarded"),
    ("active", "requeue", "available"),
    # Durable code: an attempt ends to wait, or its wait has ended already.
    ("active", "suspend", "scheduled"),
    ("active", "suspend", "available"),
    # Requirements section 12: the late word of a worker whose job nobody was given since.
    ("available", "resume", "active"),
    ("active", "stall", "available"),
    ("active", "stall", "discarded"),
    ("active", "time_out", "retryable"),
    ("active", "time_out", "discarded"),
    ("scheduled", "cancel", "cancelled"),
    ("available", "cancel", "cancelled"),
    ("pending", "cancel", "cancelled"),
    ("retryable", "cancel", "cancelled"),
    ("active", "cancel", "cancelled"),
    ("scheduled", "expire", "discarded"),
    ("available", "expire", "discarded"),
    ("pending", "expire", "discarded"),
    ("retryable", "expire", "discarded"),
    # Backpressure seed, section 5.3: drop_oldest.
    ("available", "drop", "discarded"),
    # Rate limiting, section 6.2: on_limit reschedule.
    ("available", "postpone", "scheduled"),
    # Queue-config seed, section 5.3: the queue is deleted with `discard`.
    ("scheduled", "withdraw", "discarded"),
    ("available", "withdraw", "discarded"),
    ("pending", "withdraw", "discarded"),
    ("retryable", "withdraw", "discarded"),
    ("discarded", "revive", "available"),
}

every_pair = list(itertools.product(State, Trigger))


@pytest.mark.requirement("C-5")
def test_there_are_exactly_eight_states_and_three_of_them_are_terminal() -> None:
    assert {state.value for state in State} == {
        "scheduled", "available", "pending", "active", "completed", "retryable", "cancelled",
        "discarded",
    }  # fmt: skip
    assert {state for state in State if state.terminal} == TERMINAL
    assert {state.value for state in TERMINAL} == {"completed", "cancelled", "discarded"}


@pytest.mark.requirement("C-6")
def test_the_transitions_are_those_of_the_specification() -> None:
    edges = {
        (source.value, trigger.value, target.value)
        for (source, trigger), targets in TRANSITIONS.items()
        for target in targets
    }
    assert edges == EDGES


@pytest.mark.requirement("C-7")
def test_terminal_is_final_but_for_the_revival_of_a_discarded_job() -> None:
    leaving = {(state, trigger) for state, trigger in TRANSITIONS if state.terminal}
    assert leaving == {(State.DISCARDED, Trigger.REVIVE)}


@pytest.mark.requirement("C-13")
def test_every_state_that_is_not_terminal_can_be_cancelled() -> None:
    assert sources(Trigger.CANCEL) == set(State) - TERMINAL


def test_a_running_job_cannot_expire() -> None:
    assert sources(Trigger.EXPIRE) == set(State) - TERMINAL - {State.ACTIVE}


@pytest.mark.parametrize("state", [state for state in State if not state.terminal])
def test_completion_can_be_reached_from_every_state_that_is_not_terminal(state: State) -> None:
    reached, fresh = {state}, {state}
    while fresh:
        fresh = {
            target
            for (source, _), targets in TRANSITIONS.items()
            if source in fresh
            for target in targets
        } - reached
        reached |= fresh
    assert State.COMPLETED in reached


@pytest.mark.parametrize(("state", "trigger"), every_pair)
def test_a_trigger_is_allowed_exactly_where_the_table_has_it(
    state: State, trigger: Trigger
) -> None:
    allowed = {(source, what) for source, what, _ in EDGES}
    if (state.value, trigger.value) in allowed:
        check(state, trigger, JOB_ID)
        return
    with pytest.raises(Conflict) as caught:
        check(state, trigger, JOB_ID)
    expected = sorted(source for source, what in allowed if what == trigger.value)
    assert caught.value.details == {
        "job_id": JOB_ID,
        "current_state": state.value,
        "expected_states": expected,
    }
    assert f"'{state.value}'" in caught.value.message


@pytest.mark.parametrize("trigger", list(Trigger))
def test_every_trigger_has_a_state_it_may_happen_in(trigger: Trigger) -> None:
    assert sources(trigger) == {State(source) for source, what, _ in EDGES if what == trigger.value}
