from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ojs.domain.events.types import EventType
from ojs.domain.job import failure as failures
from ojs.domain.job import lifecycle
from ojs.domain.job.durable import Suspension, Wait
from ojs.domain.job.job import Job
from ojs.domain.job.retry import OnExhaustion, RetryPolicy
from ojs.domain.job.states import TRANSITIONS, State, Trigger
from ojs.projections.transitions import happened
from tests.unit.domain.arbitrary import NOW_MS, jobs

LATER_MS = NOW_MS + 5_000
ORDER = "0" * 15
NEW = Job(
    "019539a4-b68c-7def-8000-1a2b3c4d5e6f", "email.send", "mail", State.AVAILABLE, NOW_MS,
    enqueued_ms=NOW_MS, order=ORDER, policy=RetryPolicy(max_attempts=2, jitter=False),
)  # fmt: skip
BOOM = failures.observed("boom", "no", attempt=1, now_ms=LATER_MS)


def kinds(before: Job | None, after: Job | None, **more: bool) -> list[EventType]:
    return [one.kind for one in happened(before, after, written_ms=LATER_MS, **more)]


def started(job: Job = NEW, now_ms: int = NOW_MS + 1_000) -> Job:
    return lifecycle.claim(job, token="t", now_ms=now_ms, lease_ms=2_000, worker_id="w")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State.AVAILABLE, [EventType.JOB_ENQUEUED]),
        (State.SCHEDULED, [EventType.JOB_SCHEDULED]),
        (State.PENDING, []),
    ],
)
def test_a_new_job(state: State, expected: list[EventType]) -> None:
    assert kinds(None, replace(NEW, state=state)) == expected


def test_a_claim_tells_how_long_the_job_waited() -> None:
    (found,) = happened(NEW, started(), written_ms=0)
    assert (found.kind, found.at_ms, found.length_ms) == (
        EventType.JOB_STARTED,
        NOW_MS + 1_000,
        1_000,
    )
    # Of two containers' clocks one may be behind.
    (early,) = happened(NEW, started(now_ms=NOW_MS - 5), written_ms=0)
    assert early.length_ms == 0


def test_the_end_of_a_run_tells_how_long_it_was() -> None:
    job = started()
    (done,) = happened(job, lifecycle.complete(job, now_ms=LATER_MS), written_ms=0)
    assert (done.kind, done.at_ms, done.length_ms) == (EventType.JOB_COMPLETED, LATER_MS, 4_000)
    retried = lifecycle.fail(job, BOOM, now_ms=LATER_MS, chance=0.5)
    failed, retrying = happened(job, retried, written_ms=0)
    assert (failed.kind, failed.at_ms, failed.length_ms) == (EventType.JOB_FAILED, LATER_MS, 4_000)
    assert (retrying.kind, retrying.at_ms, retrying.length_ms) == (
        EventType.JOB_RETRYING,
        LATER_MS,
        None,
    )
    last = replace(job, attempt=2)
    given_up = lifecycle.fail(last, BOOM, now_ms=LATER_MS, chance=0.5)
    assert kinds(last, given_up) == [
        EventType.JOB_FAILED,
        EventType.JOB_DISCARDED,
        EventType.DEAD_LETTER_ADDED,
    ]
    (first, *_) = happened(last, given_up, written_ms=0)
    assert first.length_ms == 4_000
    plain = replace(last, policy=RetryPolicy(max_attempts=1, on_exhaustion=OnExhaustion.DISCARD))
    assert kinds(plain, lifecycle.fail(plain, BOOM, now_ms=LATER_MS, chance=0.5)) == [
        EventType.JOB_FAILED, EventType.JOB_DISCARDED,
    ]  # fmt: skip


def test_a_lost_lease_is_a_failure_and_a_job_handed_back_is_none() -> None:
    job = started()
    back, _ = lifecycle.stall(job, now_ms=LATER_MS, order=ORDER)
    failed, enqueued = happened(job, back, written_ms=0)
    assert (failed.kind, failed.at_ms, failed.length_ms) == (EventType.JOB_FAILED, LATER_MS, None)
    assert (enqueued.kind, enqueued.at_ms) == (EventType.JOB_ENQUEUED, LATER_MS)
    handed_back = lifecycle.requeue(job, now_ms=LATER_MS, order=ORDER)
    assert kinds(job, handed_back) == [EventType.JOB_ENQUEUED]
    # The worker thought lost goes on with the same attempt: it has not started anew.
    resumed = lifecycle.resume(back, now_ms=LATER_MS + 1, lease_ms=500)
    (found,) = happened(back, resumed, written_ms=0)
    assert (found.kind, found.at_ms) == (EventType.JOB_HEARTBEAT, LATER_MS + 1)
    # The next worker starts the next attempt.
    assert kinds(back, started(back)) == [EventType.JOB_STARTED]


def test_a_heartbeat_is_a_lease_that_ends_later() -> None:
    job = started()
    assert job.lease is not None
    extended = replace(job, lease=replace(job.lease, until_ms=job.lease.until_ms + 700), op="x")
    (found,) = happened(job, extended, written_ms=0)
    assert (found.kind, found.at_ms) == (EventType.JOB_HEARTBEAT, NOW_MS + 1_700)
    assert kinds(extended, replace(extended, op="refiled")) == []


def test_a_deadline_that_passed_is_told_before_the_discard() -> None:
    job = replace(NEW, expires_ms=NOW_MS + 100)
    gone, _ = lifecycle.expire(job, now_ms=LATER_MS)
    assert kinds(job, gone) == [EventType.JOB_EXPIRED, EventType.JOB_DISCARDED]
    # Discarded while it waited, for another reason.
    assert kinds(NEW, gone) == [EventType.JOB_DISCARDED]
    assert kinds(replace(NEW, expires_ms=LATER_MS + 1), gone) == [EventType.JOB_DISCARDED]


def test_a_dead_letter_comes_back_or_goes_for_good() -> None:
    dead = replace(NEW, state=State.DISCARDED, dead_letter=True, discarded_ms=NOW_MS)
    alive = lifecycle.revive(dead, now_ms=LATER_MS, order=ORDER)
    assert kinds(dead, alive) == [EventType.DEAD_LETTER_RETRIED, EventType.JOB_ENQUEUED]
    replayed = replace(alive, replayed="1|rule")
    assert kinds(dead, replayed) == [EventType.DEAD_LETTER_REPLAYED, EventType.JOB_ENQUEUED]
    assert kinds(replace(dead, replayed="1|rule"), replayed) == [
        EventType.DEAD_LETTER_RETRIED,
        EventType.JOB_ENQUEUED,
    ]
    assert kinds(replace(dead, deleting=True), None) == [EventType.DEAD_LETTER_DELETED]
    assert kinds(dead, None) == [EventType.DEAD_LETTER_PRUNED]
    assert kinds(dead, replace(dead, deleting=True)) == []
    assert kinds(replace(dead, dead_letter=False), None) == []


@pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING, State.RETRYABLE])
def test_what_waits_becomes_available(state: State) -> None:
    waiting = replace(NEW, state=state, enqueued_ms=None, attempt=1)
    (found,) = happened(waiting, replace(waiting, state=State.AVAILABLE, enqueued_ms=LATER_MS),
                        written_ms=0)  # fmt: skip
    assert (found.kind, found.at_ms) == (EventType.JOB_ENQUEUED, LATER_MS)


AT_MS = LATER_MS + 10**10  # after every time that a generated job has
NAP = Suspension((Wait("sleep", "nap", AT_MS + 1),))
FUNCTIONS: dict[Trigger, Callable[[Job], Job]] = {
    Trigger.DUE: lambda job: lifecycle.promote(job, now_ms=AT_MS, order=ORDER),
    Trigger.ACTIVATE: lambda job: lifecycle.activate(job, now_ms=AT_MS, order=ORDER),
    Trigger.CLAIM: lambda job: started(job, AT_MS),
    Trigger.ACK: lambda job: lifecycle.complete(job, now_ms=AT_MS),
    Trigger.FAIL: lambda job: lifecycle.fail(job, BOOM, now_ms=AT_MS, chance=0.5),
    Trigger.REQUEUE: lambda job: lifecycle.requeue(job, now_ms=AT_MS, order=ORDER),
    Trigger.RESUME: lambda job: lifecycle.resume(replace(job, stalled="t"), now_ms=AT_MS),
    Trigger.STALL: lambda job: lifecycle.stall(job, now_ms=AT_MS, order=ORDER)[0],
    Trigger.TIME_OUT: lambda job: lifecycle.time_out(job, now_ms=AT_MS, chance=0.5)[0],
    Trigger.CANCEL: lambda job: lifecycle.cancel(job, now_ms=AT_MS),
    Trigger.EXPIRE: lambda job: lifecycle.expire(job, now_ms=AT_MS)[0],
    Trigger.DROP: lambda job: lifecycle.drop(job, now_ms=AT_MS)[0],
    Trigger.WITHDRAW: lambda job: lifecycle.withdraw(job, now_ms=AT_MS)[0],
    Trigger.POSTPONE: lambda job: lifecycle.postpone(job, until_ms=AT_MS + 1),
    Trigger.REVIVE: lambda job: lifecycle.revive(job, now_ms=AT_MS, order=ORDER),
    Trigger.SUSPEND: lambda job: lifecycle.suspend(job, NAP, now_ms=AT_MS, order=ORDER),
}
TOLD = {
    State.AVAILABLE: EventType.JOB_ENQUEUED,
    State.COMPLETED: EventType.JOB_COMPLETED,
    State.RETRYABLE: EventType.JOB_RETRYING,
    State.CANCELLED: EventType.JOB_CANCELLED,
    State.DISCARDED: EventType.JOB_DISCARDED,
    State.SCHEDULED: EventType.JOB_SCHEDULED,
}


@pytest.mark.parametrize(("state", "trigger"), sorted(TRANSITIONS))
@settings(max_examples=30)
@given(st.data())
def test_every_transition_of_the_table_is_told(
    state: State, trigger: Trigger, data: st.DataObject
) -> None:
    job = data.draw(jobs([state]))
    if trigger is Trigger.EXPIRE:
        job = replace(job, expires_ms=NOW_MS)
    after = FUNCTIONS[trigger](job)
    if trigger in (Trigger.DROP, Trigger.WITHDRAW):
        job = replace(job, expires_ms=None)
    # The record of a postponed job doesn't contain the time of that change.
    written_ms = AT_MS if trigger is Trigger.POSTPONE else LATER_MS
    found = happened(job, after, written_ms=written_ms)
    told = [one.kind for one in found]
    active = EventType.JOB_STARTED if trigger is Trigger.CLAIM else EventType.JOB_HEARTBEAT
    assert TOLD.get(after.state, active) in told
    assert (EventType.JOB_FAILED in told) == (
        trigger in (Trigger.FAIL, Trigger.STALL, Trigger.TIME_OUT)
    )
    assert (EventType.JOB_SUSPENDED in told) == (trigger is Trigger.SUSPEND)
    assert (EventType.JOB_EXPIRED in told) == (trigger is Trigger.EXPIRE)
    assert (EventType.DEAD_LETTER_ADDED in told) == after.dead_letter
    assert (EventType.DEAD_LETTER_RETRIED in told) == (
        trigger is Trigger.REVIVE and job.dead_letter
    )
    assert {one.at_ms for one in found} == {AT_MS}
    assert happened(after, after, written_ms=LATER_MS) == []
