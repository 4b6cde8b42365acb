from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ojs.domain.errors import Conflict
from ojs.domain.ids import is_uuid7
from ojs.domain.job import failure as failures
from ojs.domain.job import lifecycle
from ojs.domain.job.copies import CopyTarget
from ojs.domain.job.durable import Suspension, Wait
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import Job, Lease
from ojs.domain.job.retry import OnExhaustion, RetryPolicy
from ojs.domain.job.states import TERMINAL, TRANSITIONS, State, Trigger
from tests.spread import examples
from tests.unit.domain.arbitrary import (
    NOW_MS,
    instants,
    jobs,
    lengths,
    plain_failures,
    policies,
)

LATER_MS = NOW_MS + 5_000
ORDER = "00019e0000000aa"
LATER_ORDER = "00019e0000000ab"
chances = st.floats(0, 1, exclude_max=True)
waiting_states = (State.SCHEDULED, State.AVAILABLE, State.PENDING, State.RETRYABLE)
RUNNING = jobs([State.ACTIVE])


def _failure(
    code: str = "handler_error", *, retryable: bool = True, kind: str | None = None
) -> Failure:
    return Failure(1, code, kind or code, "no", NOW_MS, retryable=retryable)


NAP = Suspension((Wait("sleep", "nap", LATER_MS + 1),))
# Every trigger by the function that carries it out.
FUNCTIONS: dict[Trigger, Callable[[Job], Job]] = {
    Trigger.DUE: lambda job: lifecycle.promote(job, now_ms=LATER_MS, order=LATER_ORDER),
    Trigger.ACTIVATE: lambda job: lifecycle.activate(job, now_ms=LATER_MS, order=LATER_ORDER),
    Trigger.CLAIM: lambda job: lifecycle.claim(
        job, token="lease001", now_ms=LATER_MS, lease_ms=30_000, worker_id="w"
    ),
    Trigger.ACK: lambda job: lifecycle.complete(job, now_ms=LATER_MS),
    Trigger.FAIL: lambda job: lifecycle.fail(job, _failure(), now_ms=LATER_MS, chance=0.5),
    Trigger.REQUEUE: lambda job: lifecycle.requeue(job, now_ms=LATER_MS, order=LATER_ORDER),
    Trigger.RESUME: lambda job: lifecycle.resume(job, now_ms=LATER_MS),
    Trigger.STALL: lambda job: lifecycle.stall(job, now_ms=LATER_MS, order=LATER_ORDER)[0],
    Trigger.TIME_OUT: lambda job: lifecycle.time_out(job, now_ms=LATER_MS, chance=0.5)[0],
    Trigger.CANCEL: lambda job: lifecycle.cancel(job, now_ms=LATER_MS),
    Trigger.EXPIRE: lambda job: lifecycle.expire(job, now_ms=LATER_MS)[0],
    Trigger.POSTPONE: lambda job: lifecycle.postpone(job, until_ms=LATER_MS),
    Trigger.WITHDRAW: lambda job: lifecycle.withdraw(job, now_ms=LATER_MS)[0],
    Trigger.DROP: lambda job: lifecycle.drop(job, now_ms=LATER_MS)[0],
    Trigger.REVIVE: lambda job: lifecycle.revive(job, now_ms=LATER_MS, order=LATER_ORDER),
    Trigger.SUSPEND: lambda job: lifecycle.suspend(job, NAP, now_ms=LATER_MS, order=LATER_ORDER),
}
forbidden = [pair for pair in itertools.product(State, Trigger) if pair not in TRANSITIONS]

# What no transition may touch.
LASTING = (
    "id", "type", "queue", "created_ms", "lane", "priority", "content", "scheduled_ms",
    "timeout_ms", "visibility_ms", "policy", "unique_key", "content_bytes", "content_ref", "op",
)  # fmt: skip


def test_every_trigger_has_a_function() -> None:
    assert FUNCTIONS.keys() == set(Trigger)


@pytest.mark.requirement("C-5")
@pytest.mark.parametrize(("state", "trigger"), forbidden)
@settings(max_examples=5)
@given(st.data())
def test_a_transition_outside_the_table_is_refused(
    state: State, trigger: Trigger, data: st.DataObject
) -> None:
    job = data.draw(jobs([state]))
    with pytest.raises(Conflict) as caught:
        FUNCTIONS[trigger](job)
    assert caught.value.details["current_state"] == state.value


@pytest.mark.parametrize(("state", "trigger"), list(TRANSITIONS))
@settings(max_examples=examples(30))
@given(st.data())
def test_a_transition_leads_to_a_state_of_the_table_and_keeps_what_the_client_gave(
    state: State, trigger: Trigger, data: st.DataObject
) -> None:
    job = data.draw(jobs([state]))
    after = FUNCTIONS[trigger](job)
    assert after.state in TRANSITIONS[state, trigger]
    for name in LASTING:
        if (trigger, name) == (Trigger.POSTPONE, "scheduled_ms"):
            assert after.scheduled_ms == LATER_MS
        elif (trigger, name) == (Trigger.SUSPEND, "scheduled_ms"):
            assert after.scheduled_ms == LATER_MS + 1
        else:
            assert getattr(after, name) == getattr(job, name), name


@pytest.mark.parametrize(("state", "trigger"), list(TRANSITIONS))
@settings(max_examples=examples(20))
@given(st.data())
def test_after_a_transition_just_what_the_new_state_calls_for_is_set(
    state: State, trigger: Trigger, data: st.DataObject
) -> None:
    _assert_fits_its_state(FUNCTIONS[trigger](data.draw(jobs([state]))))


def _assert_fits_its_state(job: Job) -> None:
    assert (job.lease is not None) == (job.state is State.ACTIVE)
    assert (job.retry_at_ms is not None) == (job.state is State.RETRYABLE)
    assert (job.cancelled_ms is not None) == (job.state is State.CANCELLED)
    assert (job.discarded_ms is not None) == (job.state is State.DISCARDED)
    # Dead letters stay until they are pruned.
    assert (job.ttl_s is not None) == (job.state.terminal and not job.dead_letter)
    if job.completed_ms is not None:
        assert job.state in {State.COMPLETED, State.DISCARDED}
    if job.state is State.COMPLETED:
        assert job.completed_ms is not None
    if job.state is State.AVAILABLE:
        assert job.order is not None
        assert job.enqueued_ms is not None
    if job.state.terminal:
        assert job.expires_ms is None
    if job.state in {State.CANCELLED, State.DISCARDED}:
        assert job.order is None
    if job.dead_letter:
        assert job.state is State.DISCARDED
    if job.stalled is not None:
        assert job.state is State.AVAILABLE
    assert job.attempt <= max(1, job.max_attempts)


# --- a whole life -------------------------------------------------------------------------------

moves = st.tuples(st.sampled_from(list(Trigger)), st.integers(0, 10**6), chances, plain_failures)


def _moved(job: Job, trigger: Trigger, now_ms: int, chance: float, failure: Failure) -> Job:
    match trigger:
        case Trigger.FAIL:
            return lifecycle.fail(job, failure, now_ms=now_ms, chance=chance)
        case Trigger.TIME_OUT:
            return lifecycle.time_out(job, now_ms=now_ms, chance=chance)[0]
        case _:
            return FUNCTIONS[trigger](job)


@settings(max_examples=examples(150))
@given(
    jobs([State.SCHEDULED, State.AVAILABLE, State.PENDING]),
    st.lists(moves, min_size=5, max_size=40),
)
def test_no_life_uses_more_attempts_than_the_policy_allows_or_leaves_the_table(
    job: Job, events: list[tuple[Trigger, int, float, Failure]]
) -> None:
    tries, now_ms = job.attempt, NOW_MS
    for trigger, elapsed_ms, chance, failure in events:
        now_ms += elapsed_ms
        if (job.state, trigger) not in TRANSITIONS:
            with pytest.raises(Conflict):
                _moved(job, trigger, now_ms, chance, failure)
            continue
        if trigger is Trigger.RESUME and job.stalled is None:
            continue  # its caller asks `resumable` first
        before, job = job, _moved(job, trigger, now_ms, chance, failure)
        match trigger:
            case Trigger.CLAIM:
                tries += 1
            case Trigger.REQUEUE:
                tries -= 1
            case Trigger.REVIVE:
                tries = 0
        assert job.state in TRANSITIONS[before.state, trigger]
        assert job.attempt == tries
        _assert_fits_its_state(job)


@given(jobs([State.AVAILABLE]), st.lists(st.booleans(), min_size=20, max_size=20))
def test_a_job_whose_worker_dies_each_time_ends_after_its_last_attempt(
    job: Job, lost: list[bool]
) -> None:
    job = replace(job, attempt=0, policy=replace(job.policy, non_retryable=()))
    for worker_lost in lost:
        job = FUNCTIONS[Trigger.CLAIM](job)
        job = FUNCTIONS[Trigger.STALL if worker_lost else Trigger.TIME_OUT](job)
        if job.state is State.RETRYABLE:
            job = FUNCTIONS[Trigger.DUE](job)
        if job.state.terminal:
            break
    assert job.state is State.DISCARDED
    assert job.attempt == max(1, job.max_attempts)


# --- copies of dead letters ---------------------------------------------------------------------

TARGET = CopyTarget("dead", 5, 1_000)


@pytest.mark.requirement("QC-32")
@given(RUNNING)
def test_a_job_that_dies_names_the_one_copy_of_that_death(job: Job) -> None:
    """Whoever repeats it with the same job record and time names the same."""
    job = replace(job, queue="mail", copies_to=TARGET, copy_of=None)
    failure = replace(_failure(), code="DEAD_LETTER")
    dead = lifecycle.fail(job, failure, now_ms=LATER_MS, chance=0.5)
    assert dead.dead_letter
    assert dead.copy_due
    assert is_uuid7(dead.copy_id)
    assert lifecycle.fail(job, failure, now_ms=LATER_MS, chance=0.1).copy_id == dead.copy_id
    for other in (replace(job, life=job.life + 1), replace(job, attempt=job.attempt + 1)):
        assert lifecycle.fail(other, failure, now_ms=LATER_MS, chance=0).copy_id != dead.copy_id
    assert lifecycle.fail(job, failure, now_ms=LATER_MS + 1, chance=0).copy_id != dead.copy_id
    back = lifecycle.revive(dead, now_ms=LATER_MS, order=LATER_ORDER)
    assert (back.copy_id, back.copy_due, back.copies_to) == (None, False, TARGET)


@given(RUNNING)
def test_no_copy_of_what_is_no_dead_letter_or_has_nowhere_to_go(job: Job) -> None:
    dropped = replace(_failure(), code="DISCARD")
    dying = replace(_failure(), code="DEAD_LETTER")
    job = replace(job, queue="mail")
    for nowhere in (None, CopyTarget("mail")):
        gone = replace(job, copies_to=nowhere)
        dead = lifecycle.fail(gone, dying, now_ms=LATER_MS, chance=0)
        assert (dead.dead_letter, dead.copy_id, dead.copy_due) == (True, None, False)
    gone = lifecycle.fail(replace(job, copies_to=TARGET), dropped, now_ms=LATER_MS, chance=0)
    assert (gone.dead_letter, gone.copy_id, gone.copy_due) == (False, None, False)


# --- a late worker ------------------------------------------------------------------------------


def _stalled(job: Job) -> Job:
    roomy = replace(job, policy=replace(job.policy, max_attempts=job.attempt + 1), worker_id="w")
    return lifecycle.stall(roomy, now_ms=LATER_MS, order=LATER_ORDER)[0]


@given(RUNNING)
def test_a_worker_whose_lease_ran_out_takes_the_same_attempt_up_again(job: Job) -> None:
    back = _stalled(job)
    assert lifecycle.resumable(back, worker_id="w")
    again = lifecycle.resume(back, now_ms=LATER_MS + 7)
    assert (again.state, again.attempt, again.worker_id) == (State.ACTIVE, job.attempt, "w")
    assert again.lease is not None
    assert job.lease is not None
    assert again.lease.token == job.lease.token
    assert again.lease.until_ms > LATER_MS + 7


@given(RUNNING)
def test_nobody_but_its_former_worker_takes_a_stalled_job_back(job: Job) -> None:
    back = _stalled(job)
    assert not lifecycle.resumable(back, worker_id="another")
    assert not lifecycle.resumable(back, worker_id=None)
    assert not lifecycle.resumable(back, worker_id="w", attempt=back.attempt + 1)
    assert not lifecycle.resumable(back, worker_id="w", lease_token="another")
    assert lifecycle.resumable(back, worker_id=None, lease_token=back.stalled)
    taken = FUNCTIONS[Trigger.CLAIM](back)
    assert not lifecycle.resumable(taken, worker_id="w")
    handed_back = lifecycle.requeue(taken, now_ms=LATER_MS, order=LATER_ORDER)
    assert not lifecycle.resumable(handed_back, worker_id="w")


# --- claim, complete, requeue -------------------------------------------------------------------


@given(jobs([State.AVAILABLE]), lengths)
def test_a_claim_counts_an_attempt_and_starts_it_under_a_lease(job: Job, lease_ms: int) -> None:
    claimed = lifecycle.claim(
        job, token="lease001", now_ms=LATER_MS, lease_ms=lease_ms, worker_id="w"
    )
    assert claimed.attempt == job.attempt + 1
    assert claimed.started_ms == LATER_MS
    assert claimed.lease == Lease("lease001", LATER_MS + lease_ms, lease_ms, "w")
    assert claimed.worker_id == "w"
    assert claimed.batch is None


@given(RUNNING)
def test_a_completed_job_keeps_its_worker_and_attempt_and_the_hour_it_ended(job: Job) -> None:
    done = lifecycle.complete(job, now_ms=LATER_MS)
    assert (done.worker_id, done.attempt) == (job.worker_id, job.attempt)
    assert done.completed_ms == LATER_MS
    assert done.ttl_s == LATER_MS // 1000 + 7 * 86_400


@given(RUNNING)
def test_a_requeued_job_is_available_at_once_and_the_attempt_is_given_back(job: Job) -> None:
    back = lifecycle.requeue(job, now_ms=LATER_MS, order=LATER_ORDER)
    assert back.state is State.AVAILABLE
    assert back.attempt == job.attempt - 1
    assert (back.enqueued_ms, back.order) == (LATER_MS, LATER_ORDER)


# --- failure ------------------------------------------------------------------------------------


def _running(policy: RetryPolicy, attempt: int = 1) -> Job:
    return Job(
        id="019539a4-b68c-7def-8000-1a2b3c4d5e6f",
        type="a.b",
        queue="default",
        state=State.ACTIVE,
        created_ms=NOW_MS - 10,
        enqueued_ms=NOW_MS - 10,
        started_ms=NOW_MS,
        attempt=attempt,
        policy=policy,
        lease=Lease("lease000", NOW_MS + 30_000, 30_000, "w"),
        worker_id="w",
    )


@given(policies, st.integers(1, 12), chances)
def test_a_failure_with_attempts_left_waits_for_the_delay_of_the_policy(
    policy: RetryPolicy, attempt: int, chance: float
) -> None:
    policy = replace(policy, max_attempts=attempt + 1, non_retryable=())
    after = lifecycle.fail(_running(policy, attempt), _failure(), now_ms=LATER_MS, chance=chance)
    assert after.state is State.RETRYABLE
    assert after.retry_delay_ms == policy.delay_ms(attempt, chance)
    assert after.retry_at_ms == LATER_MS + policy.delay_ms(attempt, chance)
    assert after.attempt == attempt


@pytest.mark.parametrize("max_attempts", [0, 1])
def test_with_no_or_one_attempt_the_first_failure_is_the_last(max_attempts: int) -> None:
    job = _running(RetryPolicy(max_attempts=max_attempts))
    assert lifecycle.fail(job, _failure(), now_ms=LATER_MS, chance=0).state is State.DISCARDED


@pytest.mark.parametrize("on_exhaustion", OnExhaustion)
@pytest.mark.parametrize(
    ("failure", "attempt"),
    [
        (_failure(), 3),
        (_failure(retryable=False), 1),
        (_failure(kind="Auth.TokenExpired"), 1),
        (_failure("FAIL"), 3),
        (_failure("RETRY"), 3),
    ],
)
def test_a_final_failure_goes_where_the_policy_says(
    on_exhaustion: OnExhaustion, failure: Failure, attempt: int
) -> None:
    policy = RetryPolicy(non_retryable=("Auth.*",), on_exhaustion=on_exhaustion)
    after = lifecycle.fail(_running(policy, attempt), failure, now_ms=LATER_MS, chance=0)
    assert after.state is State.DISCARDED
    assert after.dead_letter is (on_exhaustion == "dead_letter")
    assert after.discarded_ms == after.completed_ms == LATER_MS


@pytest.mark.parametrize("code", ["FAIL", "RETRY", "timeout", "discard"])
def test_other_codes_take_the_normal_way(code: str) -> None:
    after = lifecycle.fail(_running(RetryPolicy()), _failure(code), now_ms=LATER_MS, chance=0)
    assert after.state is State.RETRYABLE


@pytest.mark.parametrize("on_exhaustion", OnExhaustion)
@pytest.mark.parametrize("retryable", [True, False])
@pytest.mark.parametrize(("code", "dead_letter"), [("DISCARD", False), ("DEAD_LETTER", True)])
def test_a_handler_may_decide_the_end_itself_whatever_the_policy_says(
    code: str, dead_letter: bool, retryable: bool, on_exhaustion: OnExhaustion
) -> None:
    job = _running(RetryPolicy(on_exhaustion=on_exhaustion))
    after = lifecycle.fail(job, _failure(code, retryable=retryable), now_ms=LATER_MS, chance=0)
    assert after.state is State.DISCARDED
    assert after.dead_letter is dead_letter
    assert after.completed_ms == LATER_MS


@pytest.mark.requirement("DL-8")
def test_dead_letters_stay_until_they_are_pruned_and_other_discards_30_days() -> None:
    for code, ttl_s in (("DEAD_LETTER", None), ("DISCARD", LATER_MS // 1000 + 30 * 86_400)):
        after = lifecycle.fail(_running(RetryPolicy()), _failure(code), now_ms=LATER_MS, chance=0)
        assert after.ttl_s == ttl_s
        assert after.gone(LATER_MS + 10**12) is (ttl_s is not None)


@pytest.mark.requirement("DL-21")
def test_a_dead_letter_keeps_the_type_of_its_latest_error() -> None:
    """By every way into dead letter, and only there."""
    last = _running(RetryPolicy(max_attempts=1))
    long = replace(_failure("x"), type="ü" * 200)
    ways = {
        "exhausted": lifecycle.fail(last, long, now_ms=LATER_MS, chance=0),
        "code": lifecycle.fail(
            _running(RetryPolicy()),
            replace(_failure("DEAD_LETTER"), type="Boom"),
            now_ms=LATER_MS,
            chance=0,
        ),
        "not retryable": lifecycle.fail(
            _running(RetryPolicy(non_retryable=("Auth.*",))),
            replace(_failure("x"), type="Auth.Expired"),
            now_ms=LATER_MS,
            chance=0,
        ),
        "lost lease": lifecycle.stall(last, now_ms=LATER_MS, order=LATER_ORDER)[0],
        "timeout": lifecycle.time_out(last, now_ms=LATER_MS, chance=0)[0],
    }
    assert {way: job.error_type for way, job in ways.items()} == {
        "exhausted": "ü" * 127,
        "code": "Boom",
        "not retryable": "Auth.Expired",
        "lost lease": "visibility_timeout",
        "timeout": "timeout",
    }
    for job in ways.values():
        assert (job.state, job.dead_letter, job.discarded_ms) == (State.DISCARDED, True, LATER_MS)
        back = lifecycle.revive(replace(job, deleting=True), now_ms=LATER_MS, order=LATER_ORDER)
        assert (back.error_type, back.deleting) == (None, False)
    plain = lifecycle.fail(_running(RetryPolicy()), _failure("DISCARD"), now_ms=LATER_MS, chance=0)
    assert (plain.dead_letter, plain.error_type) == (False, None)


@given(RUNNING)
def test_a_lost_lease_gives_the_job_back_at_once_while_attempts_are_left(job: Job) -> None:
    after, failure = lifecycle.stall(job, now_ms=LATER_MS, order=LATER_ORDER)
    assert (failure.type, failure.attempt) == ("visibility_timeout", job.attempt)
    if job.attempt < job.max_attempts:
        assert after.state is State.AVAILABLE
        assert (after.order, after.enqueued_ms) == (LATER_ORDER, LATER_MS)
    else:
        assert after.state is State.DISCARDED
        assert after.dead_letter is (job.policy.on_exhaustion == "dead_letter")
        assert after.completed_ms == LATER_MS
    assert after.attempt == job.attempt


@given(RUNNING, chances)
def test_an_execution_timeout_is_a_failure_like_any_other(job: Job, chance: float) -> None:
    after, failure = lifecycle.time_out(job, now_ms=LATER_MS, chance=chance)
    assert (failure.type, failure.code, failure.attempt) == ("timeout", "timeout", job.attempt)
    assert after == lifecycle.fail(job, failure, now_ms=LATER_MS, chance=chance)


# --- cancel, expire, revive ---------------------------------------------------------------------


@given(jobs([*waiting_states, State.ACTIVE]))
def test_a_cancelled_job_remembers_where_it_was_and_has_no_completion(job: Job) -> None:
    after = lifecycle.cancel(job, now_ms=LATER_MS)
    assert after.state is State.CANCELLED
    assert after.previous_state is job.state
    assert after.cancelled_ms == LATER_MS
    assert after.completed_ms is None
    assert after.batch is None
    assert after.ttl_s == LATER_MS // 1000 + 7 * 86_400


@given(jobs(waiting_states))
def test_an_expired_job_is_discarded_without_completion_and_is_no_dead_letter(job: Job) -> None:
    after, failure = lifecycle.expire(job, now_ms=LATER_MS)
    assert after.state is State.DISCARDED
    assert after.discarded_ms == LATER_MS
    assert after.completed_ms is None
    assert after.dead_letter is False
    assert failure.type == "expired"


@given(jobs([State.DISCARDED]))
def test_a_revived_job_starts_anew_under_the_same_id(job: Job) -> None:
    after = lifecycle.revive(job, now_ms=LATER_MS, order=LATER_ORDER)
    assert (after.id, after.state, after.attempt) == (job.id, State.AVAILABLE, 0)
    assert after.life == job.life + 1
    assert (after.enqueued_ms, after.order) == (LATER_MS, LATER_ORDER)
    gone = ("started_ms", "completed_ms", "discarded_ms", "retry_at_ms", "retry_delay_ms",
            "expires_ms", "ttl_s", "worker_id", "lease")  # fmt: skip
    for name in gone:
        assert getattr(after, name) is None, name
    assert after.dead_letter is False
    assert after.errors == job.errors


# --- time ---------------------------------------------------------------------------------------


def _settled(job: Job, now_ms: int, chance: float) -> list[Job]:
    """The job and what time makes of it, step by step, until nothing is due."""
    path = [job]
    while True:
        after, failure = lifecycle.by_time(path[-1], now_ms=now_ms, order=ORDER, chance=chance)
        if after is path[-1]:
            assert failure is None
            return path
        path.append(after)
        assert len(path) <= 4


@settings(max_examples=examples(200))
@given(jobs(), instants, chances)
def test_time_comes_to_rest_within_three_steps_each_of_the_table(
    job: Job, now_ms: int, chance: float
) -> None:
    path = _settled(job, now_ms, chance)
    assert len(path) - 1 <= 3
    by_time = {Trigger.DUE, Trigger.STALL, Trigger.TIME_OUT, Trigger.EXPIRE}
    for before, after in itertools.pairwise(path):
        reachable = {
            target
            for (source, trigger), targets in TRANSITIONS.items()
            if source is before.state and trigger in by_time
            for target in targets
        }
        assert after.state in reachable
        _assert_fits_its_state(after)


@settings(max_examples=examples(200))
@given(jobs(), instants, chances, chances)
def test_time_applied_again_at_the_same_instant_changes_nothing(
    job: Job, now_ms: int, chance: float, other_chance: float
) -> None:
    rested = _settled(job, now_ms, chance)[-1]
    again, failure = lifecycle.by_time(
        rested, now_ms=now_ms, order=LATER_ORDER, chance=other_chance
    )
    assert again is rested
    assert failure is None


@settings(max_examples=examples(200))
@given(jobs(), instants, chances)
def test_what_is_at_rest_has_nothing_due(job: Job, now_ms: int, chance: float) -> None:
    rested = _settled(job, now_ms, chance)[-1]
    if rested.state in waiting_states:
        assert rested.expires_ms is None or rested.expires_ms > now_ms
    if rested.state in {State.SCHEDULED, State.RETRYABLE, State.ACTIVE}:
        assert rested.due_ms > now_ms


@given(jobs(tuple(TERMINAL)), st.integers(0, 10**15))
def test_time_does_nothing_to_a_terminal_job(job: Job, now_ms: int) -> None:
    assert lifecycle.by_time(job, now_ms=now_ms, order=ORDER, chance=0)[0] is job


@given(jobs([State.SCHEDULED, State.RETRYABLE]), chances)
def test_a_waiting_job_becomes_available_at_its_instant_and_not_before(
    job: Job, chance: float
) -> None:
    job = replace(job, expires_ms=None)
    early, _ = lifecycle.by_time(job, now_ms=job.due_ms - 1, order=ORDER, chance=chance)
    assert early is job
    due, failure = lifecycle.by_time(job, now_ms=job.due_ms, order=ORDER, chance=chance)
    assert due == lifecycle.promote(job, now_ms=job.due_ms, order=ORDER)
    assert failure is None


@given(jobs(waiting_states), instants)
def test_a_deadline_before_the_start_wins_over_the_start(job: Job, deadline_ms: int) -> None:
    job = replace(job, expires_ms=deadline_ms)
    after, failure = lifecycle.by_time(job, now_ms=deadline_ms, order=ORDER, chance=0)
    assert after.state is State.DISCARDED
    assert failure is not None
    assert failure.type == "expired"
    before, _ = lifecycle.by_time(job, now_ms=deadline_ms - 1, order=ORDER, chance=0)
    assert before.state is not State.DISCARDED


@given(RUNNING)
def test_a_running_job_does_not_expire(job: Job) -> None:
    job = replace(job, expires_ms=0)
    after, _ = lifecycle.by_time(job, now_ms=job.due_ms - 1, order=ORDER, chance=0)
    assert after is job


@pytest.mark.parametrize(
    ("lease_ms", "timeout_ms", "now_ms", "kind"),
    [
        (1_000, 5_000, 999, None),
        (1_000, 5_000, 1_000, "visibility_timeout"),
        (5_000, 1_000, 999, None),
        (5_000, 1_000, 1_000, "timeout"),
        (1_000, 1_000, 1_000, "visibility_timeout"),
        (5_000, 1_000, 9_000, "timeout"),
        (1_000, 5_000, 9_000, "visibility_timeout"),
    ],
)
def test_a_running_job_ends_by_whichever_comes_first_of_lease_and_timeout(
    lease_ms: int, timeout_ms: int, now_ms: int, kind: str | None
) -> None:
    job = replace(
        _running(RetryPolicy()),
        timeout_ms=timeout_ms,
        lease=Lease("lease000", NOW_MS + lease_ms, lease_ms, "w"),
    )
    _, failure = lifecycle.by_time(job, now_ms=NOW_MS + now_ms, order=ORDER, chance=0)
    assert (failure.type if failure else None) == kind


def test_an_extended_lease_is_what_counts() -> None:
    job = _running(RetryPolicy())
    extended = replace(job, lease=Lease("lease000", NOW_MS + 60_000, 30_000, "w"))
    after, _ = lifecycle.by_time(extended, now_ms=NOW_MS + 30_000, order=ORDER, chance=0)
    assert after is extended


def test_a_lost_lease_past_the_deadline_first_frees_and_then_expires_the_job() -> None:
    job = replace(_running(RetryPolicy()), expires_ms=NOW_MS + 1)
    path = _settled(job, NOW_MS + 30_000, 0.5)
    assert [step.state for step in path] == [State.ACTIVE, State.AVAILABLE, State.DISCARDED]
    assert path[-1].completed_ms is None


def test_a_retry_without_a_wait_is_available_in_the_same_instant() -> None:
    # Half of one millisecond is rounded to none.
    policy = RetryPolicy(initial_ms=1, max_ms=1)
    job = replace(_running(policy), timeout_ms=10)
    path = _settled(job, NOW_MS + 10, 0.0)
    assert [step.state for step in path] == [State.ACTIVE, State.RETRYABLE, State.AVAILABLE]


@given(jobs(), instants)
def test_no_transition_changes_the_job_it_was_given(job: Job, now_ms: int) -> None:
    before = {field.name: getattr(job, field.name) for field in fields(job)}
    lifecycle.by_time(job, now_ms=now_ms, order=ORDER, chance=0.5)
    for trigger, function in FUNCTIONS.items():
        if (job.state, trigger) in TRANSITIONS:
            function(job)
    assert before == {field.name: getattr(job, field.name) for field in fields(job)}


def test_a_reported_failure_and_its_outcome_agree_on_the_attempt() -> None:
    job = _running(RetryPolicy(), attempt=2)
    failure = failures.reported({"code": "c"}, attempt=job.attempt, now_ms=LATER_MS)
    after = lifecycle.fail(job, failure, now_ms=LATER_MS, chance=0)
    assert failure.attempt == after.attempt == 2
