"""Deliveries: jobs are pushed when they become available, and end as their outcomes say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain import times
from ojs.domain.access import ANYBODY
from ojs.domain.delivery.breaker import FAULTS, FIRST_OPEN_MS
from ojs.domain.delivery.delivery import DeliveryState, DisabledReason
from ojs.domain.delivery.outcome import SPREADING_MS
from ojs.domain.errors import BackendUnavailable, Conflict, NotFound
from ojs.domain.job import envelope
from ojs.domain.job.permits import permit_name
from ojs.domain.job.states import State
from ojs.store.deliveries.deliveries import DeliveryStore
from tests.store.pushing import (
    CRASHED,
    DONE,
    FAILED,
    FORBIDDEN,
    FUNCTION,
    GONE,
    REFUSED,
    THROTTLED,
    Pushing,
    settled,
)
from tests.store.workflow_runs import chain, create
from tests.store.workflow_runs import step as steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from ojs.domain.job.job import Job
    from tests.store.conftest import World


@pytest.fixture
def pushing(world: World) -> Pushing:
    return Pushing(world)


# --- wake-ups -------------------------------------------------------------------------------------


@pytest.mark.requirement("SL-2", "SL-3", "SL-12")
def test_a_push_wakes_and_the_outcome_ends_the_job(pushing: Pushing) -> None:
    pushing.put()
    pushing.wakes.waiting.clear()
    job = pushing.world.push("x")
    assert pushing.pump() == 1
    (push,) = pushing.target.flying
    assert (push.job.id, push.job.attempt, push.worker_id) == (job.id, 1, "push_worker_work")
    assert push.job.content is not None
    assert push.job.content["args"] == ["x"]
    assert push.job.lease is not None
    # Event age, timeout, and a minute.
    assert push.job.lease.length_ms == 60_000 + 30_000 + 60_000
    assert pushing.end() == 1
    done = pushing.world.run.jobs.get(job.id)
    assert (done.state, done.result) == (State.COMPLETED, {"ok": True})


@pytest.mark.requirement("SL-14")
def test_who_settles_dispatches_the_next_job(pushing: Pushing) -> None:
    pushing.put(concurrency=3)
    jobs = [pushing.world.push(n) for n in range(10)]
    pushing.pump()
    seen = []
    pushing.wakes.lost = True
    while pushing.target.flying:
        seen.append(len(pushing.target.flying))
        pushing.end()
    # Never more than three at a time, and three while there are jobs, without any other wake-up.
    assert seen == [3, 3, 3, 1]
    assert {pushing.world.state(job) for job in jobs} == {"completed"}


def test_a_settled_outcome_that_comes_again_still_finds_the_next_job(pushing: Pushing) -> None:
    """Whoever settled it died before it dispatched another."""
    pushing.put(concurrency=1)
    pushing.world.push(1)
    second = pushing.world.push(2)
    pushing.pump()
    (push,) = pushing.target.flying
    pushing.world.run.finish.ack(push.job.id, lease_token=push.token, worker_id=push.worker_id)
    report = pushing.settle((push, FAILED))
    assert report.stale == 1
    assert pushing.target.flying[-1].job.id == second.id


def test_lost_wakeups_cost_a_minute_and_no_job(pushing: Pushing) -> None:
    pushing.put()
    pushing.wakes.waiting.clear()
    pushing.wakes.lost = True
    job = pushing.world.push()
    pushing.wakes.lost = False
    assert pushing.pump() == 0
    pushing.world.clock.advance(60_000)
    pushing.minute()
    assert pushing.pump() == 1
    pushing.end()
    assert pushing.world.state(job) == "completed"


def test_many_pushes_wake_once_a_second(pushing: Pushing) -> None:
    pushing.put()
    pushing.world.clock.advance(20_000)
    pushing.wakes.sent.clear()
    for n in range(20):
        pushing.world.push(n)
    # At once, and when the second is over.
    assert len(pushing.wakes.sent) == 2


def test_containers_share_the_time_of_the_last_wake_up(pushing: Pushing) -> None:
    """Ten containers, ten jobs per second: about one wake-up per second, and none is missed."""
    pushing.put()
    world = pushing.world
    world.clock.advance(20_000)
    runs = [world.another() for _ in range(10)]
    pushing.wakes.sent.clear()
    for n in range(100):
        runs[n % 10].enqueue.push(envelope.parse({"type": "t", "args": []}))
        placed_ms = world.clock.now_ms()
        # Some wake-up arrives after each job.
        assert any(at_ms >= placed_ms for at_ms, _ in pushing.wakes.sent)
        world.clock.advance(100)
    assert len(pushing.wakes.sent) <= 0.3 * 100


@pytest.mark.parametrize("lost", ["last_wake", "record_wake"])
def test_a_wake_up_does_not_depend_on_the_stored_time(pushing: Pushing, lost: str) -> None:
    pushing.put()
    pushing.world.clock.advance(20_000)
    pushing.wakes.sent.clear()
    with mock.patch.object(DeliveryStore, lost, side_effect=BackendUnavailable("down")):
        for n in range(3):
            pushing.world.push(n)
    assert len(pushing.wakes.sent) == 2


def paused(pushing: Pushing) -> None:
    pushing.world.run.queues.pause("default")
    pushing.world.push()
    assert pushing.pump() == 0
    pushing.later()
    pushing.world.run.queues.resume("default")


def limited(pushing: Pushing) -> None:
    pushing.world.run.queues.configure("default", {"concurrency": 1})
    pushing.world.push()
    pushing.world.push()
    assert pushing.pump() == 1
    pushing.later()
    pushing.world.run.queues.configure("default", {"concurrency": 2})


def freed(pushing: Pushing) -> None:
    pushing.world.run.queues.configure("default", {"concurrency": 1})
    pushing.world.push()
    (job,) = pushing.world.fetch()
    pushing.world.push()
    assert pushing.pump() == 0
    pushing.later()
    pushing.world.run.finish.ack(job.id)


def requeued(pushing: Pushing) -> None:
    pushing.world.push()
    (job,) = pushing.world.fetch()
    assert pushing.pump() == 0
    pushing.later()
    pushing.world.run.finish.nack(job.id, error=None, requeue=True)


def lost_lease(pushing: Pushing) -> None:
    pushing.world.push(visibility_timeout_ms=30_000)
    pushing.world.fetch()
    assert pushing.pump() == 0
    pushing.later(60_000)
    pushing.world.sweep()
    pushing.world.clock.advance(60_000)
    pushing.world.sweep()


def batch(pushing: Pushing) -> None:
    requests = [envelope.parse({"type": "a.b", "args": [n]}) for n in range(9)]
    pushing.world.run.enqueue.push_batch(requests)


def raised(pushing: Pushing) -> None:
    pushing.put(concurrency=1)
    pushing.world.push()
    pushing.world.push()
    assert pushing.pump() == 1
    pushing.later()
    pushing.put(concurrency=2)


def resumed(pushing: Pushing) -> None:
    pushing.world.run.deliveries.pause("work")
    pushing.world.push()
    assert pushing.pump() == 0
    pushing.later()
    pushing.world.run.deliveries.resume("work")


def run_now(pushing: Pushing) -> None:
    job = pushing.world.push(delay_until=_at(pushing.world.clock.now_ms() + 3_600_000))
    assert pushing.pump() == 0
    pushing.later()
    pushing.world.run.acts.run_now(job.id)


def failed_elsewhere(pushing: Pushing) -> None:
    """A worker's job, which is to be tried again much later."""
    pushing.world.run.queues.configure("default", {"concurrency": 1})
    pushing.world.push(retry={"max_attempts": 3, "initial_interval": "PT1H", "jitter": False})
    (job,) = pushing.world.fetch()
    pushing.world.push()
    assert pushing.pump() == 0
    pushing.later()
    pushing.world.run.finish.nack(job.id, error={"code": "x", "message": "no"})


def cancelled_elsewhere(pushing: Pushing) -> None:
    pushing.world.run.queues.configure("default", {"concurrency": 1})
    pushing.world.push()
    (job,) = pushing.world.fetch()
    pushing.world.push()
    assert pushing.pump() == 0
    pushing.later()
    pushing.world.run.jobs.cancel(job.id)


def key_free(pushing: Pushing) -> None:
    """A job of another queue, which nobody pushes, had the only permit of the key."""
    limit = {"key": "k", "concurrency": 1}
    pushing.world.push(queue="other", rate_limit=limit)
    (job,) = pushing.world.fetch("other")
    pushing.world.push(rate_limit=limit)
    assert pushing.pump() == 0
    pushing.world.run.finish.ack(job.id)
    pushing.world.clock.advance(7_000)


def key_starts(pushing: Pushing) -> None:
    """The next job of a key may start 20 s after the first."""
    limit = {"key": "k", "rate": {"limit": 1, "period": "PT20S"}}
    pushing.world.push(rate_limit=limit)
    pushing.world.push(rate_limit=limit)
    assert pushing.pump() == 1
    pushing.end()
    pushing.world.clock.advance(15_000)
    assert pushing.pump() == 0
    pushing.world.clock.advance(7_000)


def retried_by_hand(pushing: Pushing) -> None:
    pushing.world.push(retry={"max_attempts": 1})
    (job,) = pushing.world.fetch()
    pushing.world.run.finish.nack(job.id, error={"code": "x", "message": "no"})
    pushing.later()
    pushing.world.run.acts.retry(job.id)


def moved(pushing: Pushing) -> None:
    job = pushing.world.push(queue="other")
    pushing.later()
    pushing.world.run.acts.change(job.id, queue="default", priority=None)


def lost_push(pushing: Pushing) -> None:
    """The outcome never came; another job waits for the room."""
    pushing.put(concurrency=1)
    pushing.world.push(retry={"max_attempts": 1})
    pushing.world.push()
    assert pushing.pump() == 1
    pushing.later(200_000)
    pushing.world.sweep()


def cron(pushing: Pushing) -> None:
    body = {"name": "tick", "expression": "* * * * *", "type": "a.b", "args": []}
    pushing.world.run.crons.register(body, ANYBODY, None)
    pushing.world.run.crons.trigger("tick", ANYBODY, None)


def step(pushing: Pushing) -> None:
    create(pushing.world.run, chain(steps("a.b")))


CAUSES = (
    paused, limited, freed, requeued, lost_lease, batch, raised, resumed, run_now, cron, step,
    failed_elsewhere, cancelled_elsewhere, key_free, key_starts, retried_by_hand, moved, lost_push,
)  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_wakes(pushing: Pushing, cause: Callable[[Pushing], None]) -> None:
    pushing.put()
    pushing.pump()
    pushing.later()
    cause(pushing)
    assert pushing.pump() >= 1


# --- outcomes -------------------------------------------------------------------------------------

OUTCOMES = [
    (DONE, "completed", 1, DeliveryState.ACTIVE),
    (FAILED, "retryable", 1, DeliveryState.ACTIVE),
    (CRASHED, "retryable", 1, DeliveryState.ACTIVE),
    (REFUSED, "discarded", 1, DeliveryState.ACTIVE),
    (THROTTLED, "available", 0, DeliveryState.ACTIVE),
    (GONE, "available", 0, DeliveryState.DISABLED),
    (FORBIDDEN, "available", 0, DeliveryState.DISABLED),
]


@pytest.mark.requirement("SL-4", "SL-5", "SL-6")
@pytest.mark.parametrize(("outcome", "state", "attempt", "left"), OUTCOMES)
def test_a_job_ends_as_its_outcome_says(
    pushing: Pushing, outcome: Any, state: str, attempt: int, left: DeliveryState
) -> None:
    pushing.put()
    pushing.later(SPREADING_MS)
    job = pushing.world.push()
    pushing.pump()
    (push,) = pushing.target.flying
    report = pushing.settle((push, outcome))
    assert (report.settled["work"], report.stale) == (1, 0)
    after = pushing.world.run.jobs.get(job.id)
    assert (after.state.value, after.attempt) == (state, attempt)
    assert pushing.read().state is left
    # The second time it is too late, and nothing changes.
    again = pushing.settle((push, FAILED))
    assert again.stale == 1
    assert pushing.world.run.jobs.get(job.id).state.value in (state, "active")


@pytest.mark.parametrize("again", ["new", "changed", "resumed"])
def test_a_permission_that_still_spreads_disables_nothing(pushing: Pushing, again: str) -> None:
    """The first invocations are refused, and the same function may be invoked a moment later."""
    pushing.put()
    if again != "new":
        pushing.later(SPREADING_MS)
    if again == "changed":
        pushing.put(target={"function": f"{FUNCTION}:live"})
    elif again == "resumed":
        pushing.world.run.deliveries.resume("work")
        pushing.world.run.deliveries.pause("work")
        pushing.world.run.deliveries.resume("work")
    job = pushing.world.push()
    pushing.target.answer = lambda _: FORBIDDEN
    began_ms, tried = pushing.world.clock.now_ms(), []
    while pushing.world.clock.now_ms() - began_ms < 31_000:
        before = len(pushing.target.pushes)
        pushing.pump()
        if len(pushing.target.pushes) > before:
            tried.append((pushing.world.clock.now_ms() - began_ms) // 1_000)
        pushing.world.clock.advance(1_000)
    # It goes on by itself, and leaves the function alone for 1, 2, 4, 8 s, and to the next second.
    assert 4 <= len(tried) <= 6, tried
    shown = pushing.read()
    assert (shown.state, shown.throttles) == (DeliveryState.ACTIVE, len(tried))
    assert shown.counts.throttled == len(tried)
    found = pushing.world.run.jobs.get(job.id)
    assert (found.state, found.attempt, found.noted) == (State.AVAILABLE, 0, ())
    pushing.target.answer = lambda _: DONE
    for _ in range(34):
        pushing.world.clock.advance(1_000)
        pushing.pump()
    assert pushing.world.state(job) == "completed"
    assert pushing.read().throttles == 0


def test_what_is_forbidden_for_longer_disables(pushing: Pushing) -> None:
    pushing.put()
    job = pushing.world.push()
    pushing.target.answer = lambda _: FORBIDDEN
    for second in range(400):
        pushing.pump()
        if second < SPREADING_MS // 1_000:
            assert pushing.read().disabled is None
        pushing.world.clock.advance(1_000)
    disabled = pushing.read().disabled
    assert disabled is not None
    assert disabled.reason is DisabledReason.FORBIDDEN
    # Some ten invocations in five minutes, and none any more.
    assert 9 <= len(pushing.target.pushes) <= 12
    assert pushing.world.run.jobs.get(job.id).attempt == 0


def test_an_endpoint_that_forbids_is_disabled_at_once(pushing: Pushing) -> None:
    """It is its word: whoever made it said whom it lets in."""
    pushing.put(
        target={"endpoint": "https://example.com/"},
        signing_secret="whsec_test_of_24_bytes_and_more",
    )
    pushing.world.push()
    pushing.target.answer = lambda _: FORBIDDEN
    pushing.pump()
    assert pushing.read().state is DeliveryState.DISABLED


def test_a_target_that_is_gone_keeps_its_jobs_until_an_operator_resumes(pushing: Pushing) -> None:
    pushing.put()
    jobs = [pushing.world.push(n) for n in range(3)]
    pushing.pump()
    pushing.end(GONE)
    disabled = pushing.read().disabled
    assert disabled is not None
    assert disabled.reason is DisabledReason.GONE
    for _ in range(3):
        pushing.world.clock.advance(60_000)
        pushing.minute()
        assert pushing.pump() == 0
    assert {pushing.world.state(job) for job in jobs} == {"available"}
    pushing.world.run.deliveries.resume("work")
    assert pushing.pump() == 3


@pytest.mark.requirement("SL-7")
def test_a_target_that_throttles_is_left_alone_for_a_while(pushing: Pushing) -> None:
    pushing.put(concurrency=2)
    jobs = [pushing.world.push(n) for n in range(4)]
    pushing.pump()
    backoffs = []
    for _ in range(3):
        pushing.end(THROTTLED)
        # Nothing goes out meanwhile, and the wake-up is armed for when it may again.
        assert pushing.target.flying == []
        until_ms = pushing.read().backoff_until_ms
        assert until_ms is not None
        backoffs.append(until_ms - pushing.world.clock.now_ms())
        pushing.world.clock.advance(until_ms - pushing.world.clock.now_ms() + 2_000)
        assert pushing.pump() >= 1
    assert backoffs == [1_000, 2_000, 4_000]
    while pushing.target.flying:
        pushing.end()
    assert {pushing.world.run.jobs.get(job.id).attempt for job in jobs} == {1}
    assert {pushing.world.state(job) for job in jobs} == {"completed"}
    assert pushing.read().backoff_until_ms is None
    assert pushing.read().counts.throttled == 6


def test_what_throttles_at_once_gives_the_rest_back(pushing: Pushing) -> None:
    """The invocation itself is refused with 429."""
    pushing.put(concurrency=5, form="sqs", batch_size=1)
    jobs = [pushing.world.push(n) for n in range(5)]
    pushing.target.answer = lambda _: THROTTLED
    pushing.pump()
    found = [pushing.world.run.jobs.get(job.id) for job in jobs]
    assert {(job.state.value, job.attempt) for job in found} == {("available", 0)}


@pytest.mark.requirement("SL-8")
def test_the_breaker_opens_tries_once_and_closes(pushing: Pushing) -> None:
    pushing.put(concurrency=FAULTS + 3)
    jobs = [pushing.world.push(n, retry={"max_attempts": 9}) for n in range(20)]
    pushing.pump()
    flying, pushing.target.flying = pushing.target.flying, []
    for push in flying:
        pushing.settle((push, CRASHED))
    opened = pushing.read()
    now_ms = pushing.world.clock.now_ms()
    assert opened.breaker.state(now_ms).value == "open"
    # What was under way when it opened cost no attempt. Jobs that were sent in place of the first
    # ones are still there.
    attempts = [pushing.world.run.jobs.get(push.job.id) for push in flying]
    assert sum(job.state is State.RETRYABLE for job in attempts) == FAULTS
    pushing.target.flying.clear()
    assert pushing.pump() == 0
    # Half open: one job alone, however often it is woken.
    pushing.world.clock.advance(FIRST_OPEN_MS + 1_000)
    pushing.pump()
    pushing.world.run.dispatch.run("work")
    assert len(pushing.target.flying) == 1
    pushing.end(CRASHED)
    again = pushing.read().breaker
    assert (again.open_ms, pushing.target.flying) == (2 * FIRST_OPEN_MS, [])
    pushing.world.clock.advance(2 * FIRST_OPEN_MS + 1_000)
    pushing.pump()
    assert len(pushing.target.flying) == 1
    pushing.end(DONE)
    # All the room there is, not only that of the trial.
    assert pushing.read().breaker.until_ms is None
    assert len(pushing.target.flying) > 1
    for _ in range(40):
        pushing.end(DONE)
        pushing.world.clock.advance(200_000)
        pushing.minute()
        pushing.pump()
    assert {pushing.world.state(job) for job in jobs} == {"completed"}


def test_a_trial_without_an_outcome_is_followed_by_another(pushing: Pushing) -> None:
    pushing.put(concurrency=FAULTS)
    for n in range(10):
        pushing.world.push(n)
    pushing.pump()
    for push in list(pushing.target.flying)[:FAULTS]:
        pushing.settle((push, CRASHED))
    pushing.target.flying.clear()
    pushing.world.clock.advance(FIRST_OPEN_MS + 1_000)
    pushing.pump()
    assert len(pushing.target.flying) == 1
    pushing.target.flying.clear()
    pushing.world.clock.advance(151_000)
    # What is lost keeps its permits until a sweep finds it.
    pushing.minute()
    pushing.pump()
    assert len(pushing.target.flying) == 1


def test_a_late_outcome_counts_while_the_job_was_not_claimed_again(pushing: Pushing) -> None:
    pushing.put()
    job = pushing.world.push()
    pushing.pump()
    (push,) = pushing.target.flying
    pushing.wakes.lost = True
    for _ in range(4):
        pushing.world.clock.advance(60_000)
        pushing.minute()
    assert pushing.world.state(job) in ("available", "retryable")
    assert pushing.settle((push, DONE)).stale == 0
    assert pushing.world.state(job) == "completed"


@pytest.mark.requirement("SL-10", "SL-11")
def test_a_lost_outcome_is_a_lost_lease(pushing: Pushing) -> None:
    pushing.put()
    job = pushing.world.push()
    pushing.pump()
    (first,) = pushing.target.flying
    pushing.target.flying.clear()
    for _ in range(5):
        pushing.world.clock.advance(60_000)
        pushing.minute()
        pushing.pump()
    (second,) = pushing.target.flying
    assert (second.job.id, second.job.attempt) == (job.id, 2)
    assert second.outcome_was_lost
    assert second.delivery_id != first.delivery_id
    # That of the first push comes too late.
    assert pushing.settle((first, FAILED)).stale == 1
    pushing.end()
    assert pushing.world.state(job) == "completed"


# --- timers ---------------------------------------------------------------------------------------


def test_a_retry_is_pushed_within_two_seconds_of_its_time(pushing: Pushing) -> None:
    pushing.put()
    retry = {"max_attempts": 3, "initial_interval": "PT7S", "jitter": False}
    pushing.world.push(retry=retry)
    pushing.pump()
    pushing.end(FAILED)
    pushing.world.clock.advance(6_900)
    assert pushing.pump() == 0
    pushing.world.clock.advance(2_100)
    assert pushing.pump() == 1


def test_scheduled_jobs_are_armed_in_the_request_once_a_second(pushing: Pushing) -> None:
    pushing.put()
    pushing.world.clock.advance(20_000)
    pushing.wakes.sent.clear()
    base_ms = pushing.world.clock.now_ms() // 1_000 * 1_000 + 300_000
    for n in range(10):
        pushing.world.push(n, scheduled_at=_at(base_ms + 50 * n))
    assert len(pushing.wakes.sent) == 1
    pushing.world.clock.advance(302_000)
    assert pushing.pump() == 10


def test_what_is_due_later_is_armed_by_the_sweep(pushing: Pushing) -> None:
    pushing.put()
    pushing.wakes.waiting.clear()
    due_ms = pushing.world.clock.now_ms() + 3_600_000
    pushing.world.push(scheduled_at=_at(due_ms))
    assert not [at for at, _ in pushing.wakes.waiting if at >= due_ms]
    pushed_ms = None
    while pushed_ms is None:
        pushing.world.clock.advance(1_000)
        if pushing.world.clock.now_ms() // 1_000 % 60 == 0 and _left(pushing, due_ms) > 10_000:
            pushing.minute()
        if pushing.pump():
            pushed_ms = pushing.world.clock.now_ms()
        assert _left(pushing, due_ms) > -5_000
    assert 0 <= pushed_ms - due_ms <= 2_000
    # Once: the cursor remembers it.
    assert len([at for at, _ in pushing.wakes.sent if abs(at - due_ms) < 2_500]) == 1


def _left(pushing: Pushing, at_ms: int) -> int:
    return at_ms - pushing.world.clock.now_ms()


def _at(ms: int) -> str:
    return times.format_ms(ms)


def test_a_queue_under_a_rate_limit_is_looked_at_when_the_next_job_may_start(
    pushing: Pushing,
) -> None:
    pushing.world.run.queues.configure("default", {"rate_limit": {"limit": 2, "period": "PT10S"}})
    pushing.put()
    jobs = [pushing.world.push(n) for n in range(6)]
    for _ in range(40):
        pushing.pump()
        pushing.end()
        pushing.world.clock.advance(1_000)
    assert {pushing.world.state(job) for job in jobs} == {"completed"}


# --- beside others --------------------------------------------------------------------------------


def test_pulling_workers_go_on_beside_it(pushing: Pushing) -> None:
    pushing.put(concurrency=1)
    for n in range(3):
        pushing.world.push(n)
    pushing.pump()
    assert len(pushing.world.fetch(count=5)) == 2


def test_other_types_stay_for_pulling_workers(pushing: Pushing) -> None:
    pushing.put(job_types=["a.b"])
    others = [pushing.world.push(n, kind="c.d") for n in range(130)]
    job = pushing.world.push(kind="a.b")
    later = pushing.world.push(kind="a.b", delay_until=_at(pushing.world.clock.now_ms() + 5_000))
    other = pushing.world.push(kind="c.d", delay_until=_at(pushing.world.clock.now_ms() + 5_000))
    pushing.pump()
    assert [push.job.id for push in pushing.target.flying] == [job.id]
    pushing.world.clock.advance(7_000)
    pushing.pump()
    assert [push.job.id for push in pushing.target.flying] == [job.id, later.id]
    fetched = pushing.world.fetch(count=100) + pushing.world.fetch(count=100)
    assert {each.id for each in fetched} == {each.id for each in (*others, other)}


def test_a_delivery_of_a_pool_takes_from_its_queues(pushing: Pushing) -> None:
    pushing.world.run.pools.put("both", {"queues": ["a", "b"], "concurrency": 2})
    pushing.put(pool="both", concurrency=5)
    pushing.wakes.waiting.clear()
    jobs = [pushing.world.push(queue=name) for name in ("a", "b", "a", "b")]
    pushing.pump()
    assert len(pushing.target.flying) == 2
    while pushing.target.flying:
        pushing.end()
    assert {pushing.world.state(job) for job in jobs} == {"completed"}


def test_leaked_permits_are_found_out(pushing: Pushing) -> None:
    """Dispatch died between its permits and its claims, as often as there are permits."""
    pushing.put(concurrency=2)
    store = pushing.world.run.stores.semaphore
    delivery = pushing.read()
    for n in range(2):
        name = permit_name(pushing.world.run.ids.uuid7(), f"ab{n}c")
        store.acquire(
            delivery.semaphore,
            [name],
            limit=2,
            version=delivery.version,
            now_ms=pushing.world.clock.now_ms(),
        )
    job = pushing.world.push()
    for _ in range(5):
        pushing.world.clock.advance(60_000)
        pushing.minute()
        pushing.pump()
    assert pushing.world.state(job) == "active"


def test_senders_wait_for_the_target(world: World) -> None:
    pushing = Pushing(world, sends=True)
    assert pushing.sends is not None
    pushing.target.waits = True
    pushing.put(concurrency=2)
    jobs = [world.push(n) for n in range(5)]
    pushing.pump()
    while pushing.sends.waiting:
        message = pushing.sends.waiting.pop(0)
        assert world.run.dispatch.send_one(*message)
        # A message that comes twice sends nothing twice.
        assert not world.run.dispatch.send_one(*message)
    assert {world.state(job) for job in jobs} == {"completed"}
    assert len(pushing.target.pushes) == 5


def test_a_message_that_waited_too_long_gives_its_job_back(world: World) -> None:
    pushing = Pushing(world, sends=True)
    assert pushing.sends is not None
    pushing.target.waits = True
    pushing.put()
    job = world.push()
    pushing.pump()
    (message,) = pushing.sends.waiting
    world.clock.advance(125_000)
    assert not world.run.dispatch.send_one(*message)
    found = world.run.jobs.get(job.id)
    assert (found.state, found.attempt) == (State.AVAILABLE, 0)


# --- management -----------------------------------------------------------------------------------


@pytest.mark.requirement("SL-13")
def test_a_queue_has_one_delivery(pushing: Pushing) -> None:
    pushing.put("one", queues=["a", "b"])
    with pytest.raises(Conflict) as refused:
        pushing.put("two", queues=["b"])
    assert refused.value.details["delivery"] == "one"
    pushing.world.run.pools.put("p", {"queues": ["b", "c"]})
    with pytest.raises(Conflict):
        pushing.put("three", pool="p")
    pushing.put("one", queues=["a"])
    pushing.put("two", queues=["b"])
    pushing.world.run.deliveries.delete("one")
    pushing.put("four", queues=["a"])
    found = pushing.world.run.deliveries.list(limit=10).items
    assert [each.name for each in found] == ["four", "two"]


def test_an_alias_of_an_allowed_function_is_allowed(pushing: Pushing) -> None:
    assert pushing.put(target={"function": f"{FUNCTION}:live"}).function == f"{FUNCTION}:live"


def test_secrets_are_never_shown_and_stay_unless_they_are_given(pushing: Pushing) -> None:
    stored = pushing.put(
        signing_secrets=["whsec_first_of_24_bytes_and_more", "whsec_second_of_24_bytes_and_more"]
    )
    assert "whsec" not in repr(stored)
    assert pushing.put(concurrency=4).signing_secrets == (
        "whsec_first_of_24_bytes_and_more",
        "whsec_second_of_24_bytes_and_more",
    )
    assert pushing.put(signing_secret="whsec_third_of_24_bytes_and_more").signing_secrets == (
        "whsec_third_of_24_bytes_and_more",
    )
    assert pushing.put(signing_secrets=[]).signing_secrets == ()


def test_a_limit_set_by_a_clock_that_is_behind_holds(pushing: Pushing) -> None:
    """The delivery was deleted and made again; its permits know the limit of the earlier one."""
    pushing.put(concurrency=4)
    run = pushing.world.run
    run.deliveries.delete("work")
    pushing.world.clock.advance(-2_000)
    pushing.put(concurrency=1)
    for number in range(6):
        pushing.world.push(number)
    pushing.pump()
    assert len(pushing.target.flying) == 1


def test_a_delivery_deleted_in_flight_loses_nothing(pushing: Pushing) -> None:
    pushing.put(concurrency=2)
    jobs = [pushing.world.push(n) for n in range(4)]
    pushing.pump()
    pushing.world.run.deliveries.delete("work")
    assert pushing.end() == 2
    assert pushing.target.flying == []
    assert sorted(pushing.world.state(job) for job in jobs) == [
        "available", "available", "completed", "completed",
    ]  # fmt: skip
    assert len(pushing.world.fetch(count=5)) == 2
    with pytest.raises(NotFound):
        pushing.read()


def test_a_delivery_changed_in_flight_doubles_nothing(pushing: Pushing) -> None:
    pushing.put(concurrency=2)
    jobs = [pushing.world.push(n) for n in range(6)]
    pushing.pump()
    pushing.put(concurrency=1, target={"function": f"{FUNCTION}:next"})
    pushing.world.clock.advance(2_000)
    pushing.pump()
    assert len(pushing.target.flying) == 2
    while pushing.target.flying:
        pushing.end()
    assert {pushing.world.state(job) for job in jobs} == {"completed"}
    ids = [push.job.id for push in pushing.target.pushes]
    assert len(ids) == len(set(ids)) == 6


def test_a_test_push_changes_nothing(pushing: Pushing) -> None:
    pushing.put()
    before = pushing.world.items()
    pushing.target.answer = lambda _: GONE
    outcome, _ = pushing.world.run.deliveries.test("work", {"type": "a.b", "args": [1]})
    assert outcome == GONE
    assert pushing.world.items() == before
    (push,) = pushing.target.pushes
    assert push.job.type == "a.b"


# --- room that may be waited for ---------------------------------------------------------------


def flying(pushing: Pushing, concurrency: int, jobs: int) -> None:
    """A delivery that is as full as it may be, without any wake-up on its way."""
    pushing.put(concurrency=concurrency)
    for n in range(jobs):
        pushing.world.push(n)
    while pushing.pump():
        pass
    pushing.wakes.waiting.clear()
    assert len(pushing.target.flying) == min(concurrency, jobs)


@pytest.mark.parametrize("concurrency", [1, 3, 24, 60])
def test_a_backlog_drains_at_the_concurrency_given(pushing: Pushing, concurrency: int) -> None:
    """Without wake-ups, timers, the stream and sweeps; permits of 60 are in three shards."""
    flying(pushing, concurrency, concurrency + 9)
    for left in range(9, 0, -3):
        some = pushing.target.flying[:3]
        del pushing.target.flying[:3]
        for push in some:
            pushing.settle((push, DONE))
        pushing.wakes.waiting.clear()
        waiting = left - len(some)
        assert len(pushing.target.flying) == min(concurrency, concurrency + waiting)
        if concurrency == 1:
            break


def test_who_finds_a_full_delivery_takes_all_the_room_there_is(pushing: Pushing) -> None:
    """The second release sees room, and leaves it to the first, who dispatches after both."""
    flying(pushing, 3, 6)
    dispatch = pushing.world.run.dispatch
    first, second = (
        dispatch._settle.settle([settled(push, DONE)]) for push in pushing.target.flying[:2]
    )
    assert (first.room, second.room) == ({"work": {0: 1}}, {})
    assert dispatch.run("work", room=first.room["work"]).pushed == 2


@pytest.mark.parametrize("which", [0, 30, 59])
def test_room_in_one_shard_is_found_where_the_others_are_full(pushing: Pushing, which: int) -> None:
    """Three shards have the permits of 60; a wake-up tries two of them."""
    flying(pushing, 60, 60)
    pushing.settle((pushing.target.flying[which], DONE))
    for _ in range(4):
        pushing.wakes.lost = True
        pushing.world.push()
        pushing.wakes.lost = False
        assert pushing.world.run.dispatch.run("work").pushed == 1
        pushing.settle((pushing.target.flying[-1], DONE))


def test_a_job_that_is_cancelled_while_it_runs_makes_room(pushing: Pushing) -> None:
    flying(pushing, 2, 3)
    pushing.later()
    pushing.world.run.jobs.cancel(pushing.target.flying[0].job.id)
    assert pushing.wakes.waiting
    pushing.world.clock.advance(2_000)
    assert pushing.pump() == 1


class Crowd:
    """Another container dispatches in vain, for a job that has just come, while a permit that no
    job took is about to be released; and a worker takes the first jobs, each a moment before it is
    claimed.
    """

    def __init__(self, pushing: Pushing, *, taken: int, came: int) -> None:
        self.pushing, self.taken, self.came = pushing, taken, came
        self.jobs: list[Job] = []
        self.other = pushing.world.another()
        self.puller = pushing.world.another()
        stores = pushing.world.run.stores
        self.claim, self.release = stores.jobs.claim, stores.semaphore.release

    def run(self) -> None:
        """Dispatch, with only what that itself wakes."""
        stores = self.pushing.world.run.stores
        self.pushing.later()
        with (
            mock.patch.object(stores.jobs, "claim", self.claims),
            mock.patch.object(stores.semaphore, "release", self.releases),
        ):
            self.pushing.world.run.dispatch.run("work")

    def claims(self, job_id: str, *args: Any, **named: Any) -> Job:
        if self.taken:
            self.taken -= 1
            assert [job.id for job in self.puller.fetch.fetch(["default"], 1, "w")] == [job_id]
        return self.claim(job_id, *args, **named)

    def releases(self, *args: Any, **named: Any) -> Any:
        if self.came:
            self.came -= 1
            self.pushing.wakes.lost = True
            self.jobs.append(self.pushing.world.push())
            self.pushing.wakes.lost = False
            assert self.other.dispatch.run("work").pushed == 0
        return self.release(*args, **named)


def test_who_frees_a_permit_that_no_job_took_looks_for_those_that_it_kept_out(
    pushing: Pushing,
) -> None:
    pushing.put(concurrency=1)
    pushing.world.push()
    crowd = Crowd(pushing, taken=1, came=1)
    crowd.run()
    assert [push.job.id for push in pushing.target.flying] == [crowd.jobs[0].id]


def test_who_keeps_others_out_twice_has_itself_woken(pushing: Pushing) -> None:
    pushing.put(concurrency=1)
    pushing.world.push()
    crowd = Crowd(pushing, taken=2, came=2)
    crowd.run()
    assert not pushing.target.flying
    assert pushing.wakes.waiting
    pushing.world.clock.advance(2_000)
    assert pushing.pump() == 1
    assert pushing.target.flying[0].job.id == crowd.jobs[1].id


def test_jobs_that_others_limits_hold_back_wake_nobody(pushing: Pushing) -> None:
    """Their permits of the delivery were the last, and are free again: it ends all the same."""
    pushing.world.run.queues.create("default", {"concurrency": 1})
    pushing.put(concurrency=1)
    pushing.world.push()
    pushing.world.fetch()
    pushing.world.push()
    pushing.wakes.waiting.clear()
    assert pushing.world.run.dispatch.run("work").pushed == 0
    assert not pushing.wakes.waiting


def test_an_outcome_that_comes_twice_dispatches(pushing: Pushing) -> None:
    """Whoever settled it first may have died before it did."""
    flying(pushing, 2, 3)
    ended = settled(pushing.target.flying[0], DONE)
    dispatch = pushing.world.run.dispatch
    assert dispatch._settle.settle([ended]).room
    assert dispatch.settle([ended]).room == {"work": {}}
    assert len(pushing.target.pushes) == 3


def test_jobs_with_other_permits_are_followed_by_others(pushing: Pushing) -> None:
    """A job of a limited queue may have held one back, whoever pushes that."""
    pushing.world.run.queues.create("default", {"concurrency": 2})
    pushing.put(concurrency=5)
    for n in range(4):
        pushing.world.push(n)
    pushing.pump()
    pushing.wakes.waiting.clear()
    assert pushing.end() == 2
    assert len(pushing.target.flying) == 2
