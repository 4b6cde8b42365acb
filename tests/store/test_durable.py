"""Steps, sleeps, and signals: one outcome a name, no wake-up lost, costs, dying at each call."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import Conflict, Duplicate, InvalidRequest, NotFound
from ojs.domain.job import envelope
from ojs.domain.job.durable import (
    LeaseTokenRequired,
    TooManySteps,
    WaitingForSignal,
)
from ojs.store.table import keys
from tests.store.conftest import WORKER
from tests.store.durable_jobs import active, done, save, signal, sleep, stored, suspend, token
from tests.store.faults import attempt, faults
from tests.store.slow import Slow
from tests.store.spending import incompressible, spending, warm

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from ojs.runtime import Runtime
    from tests.store.conftest import World

DAY = 86_400_000
RETRY = {"max_attempts": 2, "initial_interval": "PT1S"}


# --- steps ----------------------------------------------------------------------------------------


def test_the_first_outcome_of_a_name_counts(world: World) -> None:
    job = active(world)
    assert save(world, job, done("a", {"id": 1})).first == [None]
    (first,) = save(world, job, done("a", "other", "s2")).first
    assert first is not None
    assert (first.value, first.save) == ({"id": 1}, "s1")
    # The same request again.
    (again,) = save(world, job, done("a", {"id": 1})).first
    assert again is not None
    assert again.save == "s1"
    save(world, job, done("b/1", [1]), done("b/2", None), done("b/2", 2, kind="signal"))
    _, page = world.run.steps.page(job.id)
    found = {(one.kind, one.name): one.value for one in page.outcomes}
    assert found == {
        ("step", "a"): {"id": 1}, ("step", "b/1"): [1], ("step", "b/2"): None, ("signal", "b/2"): 2,
    }  # fmt: skip


def test_a_step_needs_the_lease(world: World) -> None:
    job = active(world, worker="old", visibility_timeout_ms=1_000)
    with pytest.raises(LeaseTokenRequired):
        world.run.steps.save(job.id, [done("a")], lease_token=None)
    with pytest.raises(NotFound):
        world.run.steps.save(world.run.ids.uuid7(), [done("a")], lease_token="x")
    with pytest.raises(Conflict):
        world.run.steps.save(job.id, [done("a")], lease_token="x")
    world.clock.advance(2_000)
    world.sweep()
    # Nobody has claimed it since.
    save(world, job, done("a", 1))
    world.clock.advance(2_000)
    world.sweep()
    (again,) = world.fetch(worker="new")
    with pytest.raises(Conflict):
        save(world, job, done("b", 1))
    save(world, again, done("b", 2))
    world.run.jobs.cancel(job.id)
    with pytest.raises(Conflict):
        save(world, again, done("c", 2))
    assert stored(world, job) == {"a": 1, "b": 2}


def test_a_late_write_of_the_owner_before_counts_if_it_is_first(exact: World) -> None:
    job = active(exact, worker="old", visibility_timeout_ms=1_000)
    again: list[Job] = []

    def meanwhile() -> None:
        exact.clock.advance(2_000)
        exact.sweep()
        again.extend(exact.fetch(worker="new"))
        save(exact, again[0], done("a", "new", "n"))

    run = exact.another(Slow(exact.client, "put_item", meanwhile))
    (first,) = save(exact, job, done("a", "old", "o"), run=run).first
    assert first is not None
    assert first.value == "new"
    assert stored(exact, job) == {"a": "new"}


def test_bounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = active(world)
    monkeypatch.setattr("ojs.services.jobs.steps.MAX_STEPS", 3)
    monkeypatch.setattr("ojs.services.jobs.steps.MAX_STEP_BYTES", 300_000)
    save(world, job, done("a"), done("b"))
    with pytest.raises(TooManySteps):
        save(world, job, done("c"), done("d"))
    with pytest.raises(TooManySteps):
        save(world, job, done("c", "x" * 300_000))
    save(world, job, done("c"))
    with pytest.raises(TooManySteps):
        save(world, job, done("d"))
    assert list(stored(world, job)) == ["a", "b", "c"]


def test_a_step_forgives_earlier_attempts(world: World) -> None:
    job = active(world, retry=RETRY)
    for number in range(6):
        save(world, job, done(f"s{number}"))
        world.run.finish.nack(job.id, error={"message": "no"}, lease_token=token(job))
        assert world.state(job) == "retryable"
        world.clock.advance(2_000)
        (job,) = world.fetch()
        assert job.attempt == number + 2
    # The attempt in which the last step was stored counts, and this one.
    ended = world.run.finish.nack(job.id, error={"message": "no"}, lease_token=token(job))
    assert ended.state == "discarded"
    assert ended.dead_letter


def test_pages_and_results(world: World) -> None:
    job = active(world)
    large = {f"s{n}": incompressible(200_000 + n) for n in range(7)}
    for name, value in large.items():
        save(world, job, done(name, value))
    found, after = dict[str, Any](), None
    for _ in range(10):
        _, page = world.run.steps.page(job.id, after=after)
        assert len(page.outcomes) < 7
        found |= {one.name: one.value for one in page.outcomes}
        if (after := page.last) is None:
            break
    assert found == large
    _, page = world.run.steps.page(job.id, results=False)
    assert {one.value for one in page.outcomes} == {None}
    with pytest.raises(InvalidRequest):
        world.run.steps.page(job.id, after="@")


def test_a_deleted_step_runs_again(world: World) -> None:
    job = active(world)
    save(world, job, done("a", 1), done("b", 2))
    with pytest.raises(Conflict):
        world.run.steps.forget(job.id, "a")
    world.run.finish.nack(job.id, error=None, requeue=True, lease_token=token(job))
    world.run.steps.forget(job.id, "a")
    with pytest.raises(NotFound):
        world.run.steps.forget(job.id, "a")
    (job,) = world.fetch()
    save(world, job, done("a", 3))
    assert stored(world, job) == {"a": 3, "b": 2}


@pytest.mark.parametrize("clears", [(), ("steps",), ("checkpoint",), ("steps", "checkpoint")])
def test_a_dead_letter_resumes_or_starts_over(world: World, clears: tuple[str, ...]) -> None:
    job = active(world)
    world.run.steps.save(job.id, [done("a", 1)], lease_token=token(job), version=2)
    world.run.checkpoints.save(job.id, {"row": 1})
    world.run.finish.nack(job.id, error={"code": "DEAD_LETTER"})
    assert stored(world, job) == {"a": 1}
    world.run.redrive.retry(job.id, clears=clears)
    (again,) = world.fetch()
    kept = "steps" not in clears
    assert stored(world, job) == ({"a": 1} if kept else {})
    assert (again.durable.epoch, again.durable.version) == ((0, 2) if kept else (1, None))
    assert (again.checkpoint is None) is ("checkpoint" in clears)
    save(world, again, done("a", 2))
    assert stored(world, job) == {"a": 1 if kept else 2}
    assert world.run.checkpoints.save(job.id, {}).sequence == 2


def test_steps_go_with_their_job(world: World) -> None:
    job = active(world)
    save(world, job, done("a", 1))
    suspend(world, job, sleep())
    world.run.jobs.cancel(job.id)
    assert stored(world, job) == {"a": 1}
    world.run.acts.delete(job.id)
    assert [item for item in world.items() if item["pk"]["S"] == f"J|{job.id}"] == []


# --- sleeps ---------------------------------------------------------------------------------------


def test_a_sleep_holds_nothing_and_counts_no_attempt(world: World) -> None:
    world.run.queues.configure("default", {"concurrency": 1})
    world.push(expires_at="+PT1H", retry={"max_attempts": 1})
    (job,) = world.fetch()
    after = suspend(world, job, sleep())
    assert (after.state, after.attempt, after.lease) == ("scheduled", 0, None)
    other = active(world)
    world.run.finish.ack(other.id)
    world.clock.advance(3 * DAY - 1)
    world.sweep()
    assert world.fetch() == []
    world.clock.advance(1)
    (again,) = world.fetch()
    assert (again.attempt, again.durable.waits, again.durable.saves) == (1, None, 1)
    # The next attempt finds that it is over.
    _, page = world.run.steps.page(job.id)
    assert [(wait.kind, wait.name) for wait in page.waits] == [("sleep", "nap")]
    assert suspend(world, again, sleep()).state == "available"


def test_the_first_time_of_a_sleep_counts(world: World) -> None:
    job = active(world)
    first = suspend(world, job, sleep(length="PT1H"))
    world.clock.advance(3_600_000 - 1)
    world.run.acts.retry(job.id)
    (again,) = world.fetch()
    # An operator has ended it.
    assert suspend(world, again, sleep(length="PT1H")).state == "available"
    (again,) = world.fetch()
    later = suspend(world, again, sleep("other", "PT2H"), sleep("nap", "PT1H"))
    assert later.state == "available"
    assert first.scheduled_ms is not None


def test_a_sleep_and_a_wait_of_one_name_have_their_own_ends(world: World) -> None:
    job = active(world)
    until = {"kind": "time", "name": "nap", "for": "PT2H"}
    assert suspend(world, job, sleep(length="PT1H"), until).state == "scheduled"
    world.run.acts.retry(job.id)
    (job,) = world.fetch()
    after = suspend(world, job, signal("nap", "PT1H"))
    assert after.scheduled_ms == world.clock.now_ms() + 3_600_000
    _, page = world.run.steps.page(job.id)
    assert {(wait.kind, wait.name) for wait in page.waits} >= {("sleep", "nap"), ("signal", "nap")}
    world.run.steps.forget(job.id, "nap")
    _, page = world.run.steps.page(job.id)
    assert {wait.kind for wait in page.waits} <= {"time"}


def test_a_page_has_one_epoch(world: World) -> None:
    """A job starts over between the two reads of a page."""
    job = active(world)
    save(world, job, done("a", 1))
    seen = world.run.jobs.get(job.id)
    world.run.finish.nack(job.id, error={"code": "DEAD_LETTER"})
    world.run.redrive.retry(job.id, clears=["steps"])
    (again,) = world.fetch()
    save(world, again, done("b", 2))
    suspend(world, again, sleep())
    page = world.run.stores.steps.page(seen, results=True)
    assert ([one.name for one in page.outcomes], page.waits) == (["a"], [])


def test_what_is_until_now_needs_progress(world: World) -> None:
    job = active(world)
    now = {"kind": "time", "name": "lambda", "for": "PT0S"}
    assert suspend(world, job, now).state == "available"
    (job,) = world.fetch()
    ended = suspend(world, job, now)
    assert (ended.state, ended.errors and ended.errors[0].code) == ("retryable", "no_progress")
    world.clock.advance(60_000)
    (job,) = world.fetch()
    save(world, job, done("a"))
    assert suspend(world, job, now).state == "available"


# --- signals --------------------------------------------------------------------------------------


def test_a_signal_wakes_a_job_that_waits(world: World) -> None:
    job = active(world)
    assert suspend(world, job, signal()).state == "scheduled"
    with pytest.raises(WaitingForSignal):
        world.run.acts.retry(job.id)
    sent = world.run.signals.send(job.id, "ok", {"by": "alice"}, key="k")
    assert sent.woken
    again = world.run.signals.send(job.id, "ok", {"by": "alice"}, key="k")
    assert (again.value, again.stored_ms, again.woken) == (sent.value, sent.stored_ms, True)
    with pytest.raises(Duplicate):
        world.run.signals.send(job.id, "ok", {"by": "bob"}, key="other")
    (job,) = world.fetch()
    assert job.durable.used
    assert stored(world, job) == {"ok": {"by": "alice"}}
    # The answer was lost, and the job has finished since.
    world.run.finish.ack(job.id)
    assert world.run.signals.send(job.id, "ok", {"by": "alice"}, key="k").value == {"by": "alice"}
    with pytest.raises(Conflict, match="in state 'completed'"):
        world.run.signals.send(job.id, "ok", {"by": "alice"}, key="other")


@pytest.mark.parametrize("when", ["before the first attempt", "while it runs", "twice"])
def test_a_signal_before_the_wait_is_not_lost(world: World, when: str) -> None:
    pushed = world.push()
    if when == "before the first attempt":
        assert not world.run.signals.send(pushed.id, "ok", 1).woken
    (job,) = world.fetch()
    if when != "before the first attempt":
        assert not world.run.signals.send(job.id, "ok", 1).woken
    after = suspend(world, job, signal("ok"), sleep())
    assert after.state == "available"
    (job,) = world.fetch()
    assert stored(world, job) == {"ok": 1}


def test_a_wait_that_is_over_takes_no_signal(world: World) -> None:
    job = active(world)
    suspend(world, job, signal("ok", "PT1M"))
    world.clock.advance(60_000)
    (job,) = world.fetch()
    save(world, job, done("ok", {"code": "timeout"}, ok=False, kind="signal"))
    with pytest.raises(Conflict, match="wait for the signal has ended"):
        world.run.signals.send(job.id, "ok", 1)
    world.run.finish.ack(job.id)
    with pytest.raises(Conflict, match="in state 'completed'"):
        world.run.signals.send(job.id, "other", 1)
    with pytest.raises(NotFound):
        world.run.signals.send(world.run.ids.uuid7(), "ok", 1)


def test_signals_before_their_waits_are_bounded(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr("ojs.services.jobs.signals.MAX_SIGNALS", 2)
    job = world.push()
    for number in range(2):
        world.run.signals.send(job.id, f"s{number}", number, key=f"k{number}")
    with pytest.raises(TooManySteps):
        world.run.signals.send(job.id, "s2", 1, key="k2")
    assert world.run.signals.send(job.id, "s1", 1, key="k1").value == 1
    monkeypatch.setattr("ojs.services.jobs.signals.MAX_STEP_BYTES", 2_000)
    (job,) = world.fetch()
    suspend(world, job, signal())
    with pytest.raises(TooManySteps):
        world.run.signals.send(job.id, "ok", "x" * 2_000)
    assert world.run.signals.send(job.id, "ok", "x").woken


def test_a_signal_between_the_steps_of_a_suspension(exact: World) -> None:
    """The transaction finds it, and the job does not wait."""
    job = active(exact)
    client = Slow(
        exact.client, "transact_write_items", lambda: exact.run.signals.send(job.id, "ok", 1)
    )
    after = suspend(exact, job, signal(), run=exact.another(client))
    assert client.happened
    assert after.state == "available"


@pytest.mark.parametrize("waits", [True, False])
def test_two_signals_at_once_are_one(exact: World, waits: bool) -> None:
    job = active(exact)
    if waits:
        suspend(exact, job, signal())
    client = Slow(
        exact.client, "transact_write_items", lambda: exact.run.signals.send(job.id, "ok", 1)
    )
    with pytest.raises(Duplicate):
        exact.another(client).signals.send(job.id, "ok", 2)
    assert client.happened
    assert stored(exact, job) == {"ok": 1}


@pytest.mark.parametrize("meanwhile", ["cancelled", "awake"])
def test_a_signal_while_the_wait_ends(exact: World, meanwhile: str) -> None:
    """It is refused, or stored for the attempt that goes on; nothing in between."""
    job = active(exact)
    suspend(exact, job, signal("ok", "PT1M"))

    def change() -> None:
        if meanwhile == "cancelled":
            exact.run.jobs.cancel(job.id)
        else:
            exact.clock.advance(60_000)
            exact.fetch()

    run = exact.another(Slow(exact.client, "transact_write_items", change))
    if meanwhile == "cancelled":
        with pytest.raises(Conflict, match="in state 'cancelled'"):
            run.signals.send(job.id, "ok", 1)
        assert stored(exact, job) == {}
    else:
        assert not run.signals.send(job.id, "ok", 1).woken
        assert stored(exact, job) == {"ok": 1}


# --- costs ----------------------------------------------------------------------------------------


def test_costs_of_steps(exact: World) -> None:
    warm(exact)
    job = active(exact)
    with spending(exact) as one:
        save(exact, job, done("charge", {"charge_id": "ch_1", "amount": 100}))
    assert (one.calls, one.writes, one.reads) == (2, 2, 0)
    with spending(exact) as large:
        save(exact, job, done("order", incompressible(800)))
    assert (large.calls, large.writes) == (2, 2)
    with spending(exact) as ten:
        save(exact, job, *(done(f"item/{n}", {"n": n}) for n in range(10)))
    assert ten.writes <= 11


def test_costs_of_a_sleep(exact: World) -> None:
    """It falls asleep for 3 WU, and wakes for 3, as a scheduled job starts."""
    warm(exact)
    job = active(exact)
    save(exact, job, done("charge", {"charge_id": "ch_1"}))
    # The line is noted for these times, as where more than one job sleeps or runs.
    ends = [exact.clock.now_ms() + 1_800_000 * number for number in range(1, 6)]
    exact.run.stores.due_notes.note([(keys.due("default", 0), at) for at in ends])
    with spending(exact) as falls:
        suspend(exact, job, sleep(length="PT1H"))
    assert (falls.calls, falls.writes, falls.reads) == (3, 3, 1)
    exact.clock.advance(3_600_000)
    # A container registers its slot of claim intents once an hour, which is no part of a wake-up.
    warm(exact)
    with spending(exact) as wakes:
        (job,) = exact.fetch()
    with spending(exact) as loads:
        exact.run.steps.page(job.id)
    parts = (falls, wakes, loads)
    assert sum(each.writes for each in parts) <= 6
    assert sum(each.reads for each in parts) <= 8
    assert sum(each.calls for each in parts) <= 11
    exact.run.finish.ack(job.id)
    exact.push(scheduled_at="+PT1H")
    exact.clock.advance(3_600_000)
    warm(exact)
    with spending(exact) as starts:
        exact.fetch()
    assert (wakes.calls, wakes.writes, wakes.reads) == (starts.calls, starts.writes, starts.reads)


def test_costs_of_signals(exact: World) -> None:
    warm(exact)
    job = active(exact)
    with spending(exact) as before:
        exact.run.signals.send(job.id, "early", {"ok": True})
    assert (before.calls, before.writes) == (2, 4)
    with spending(exact) as waits:
        suspend(exact, job, signal())
    assert waits.writes <= 6 + 1
    with spending(exact) as wakes:
        exact.run.signals.send(job.id, "ok", {"ok": True})
    assert wakes.calls == 2
    assert wakes.writes <= 6


def test_a_thousand_steps_are_loaded_in_few_requests(exact: World) -> None:
    job = active(exact)
    for start in range(0, 1_000, 25):
        steps = [done(f"s{start + n}", incompressible(850)) for n in range(25)]
        save(exact, job, *steps)
    after, count, requests = None, 0, 0
    with spending(exact) as loads:
        while requests == 0 or after is not None:
            _, page = exact.run.steps.page(job.id, after=after)
            after, count, requests = page.last, count + len(page.outcomes), requests + 1
    assert count == 1_000
    assert requests <= 3
    assert loads.reads <= 260


# --- dying at each call ---------------------------------------------------------------------------


def test_dying_while_a_step_is_saved(exact: World) -> None:
    for run, _ in faults(exact):
        job = active(exact)
        attempt(partial(save, exact, job, done("a", 1, "mine"), run=run))
        (first,) = save(exact, job, done("a", 2, "again")).first
        assert stored(exact, job) == {"a": 2 if first is None else 1}
        exact.run.finish.ack(job.id)


def test_dying_while_a_job_falls_asleep(exact: World) -> None:
    for run, _ in faults(exact):
        job = active(exact, visibility_timeout_ms=30_000)
        attempt(partial(suspend, exact, job, signal("ok", "P1D"), sleep("nap", "PT1H"), run=run))
        exact.clock.advance(31_000)
        exact.sweep()
        for again in exact.fetch():
            # It had not fallen asleep; the time of the first try counts.
            assert suspend(exact, again, signal("ok", "P1D"), sleep("nap", "PT1H")).state == (
                "scheduled"
            )
        exact.clock.advance(3_600_000 - 31_000 - 1)
        assert exact.fetch() == []
        exact.clock.advance(31_001)
        (job,) = exact.fetch()
        exact.run.finish.ack(job.id)


@pytest.mark.parametrize("waits", [True, False])
def test_dying_while_a_signal_is_sent(exact: World, waits: bool) -> None:
    for run, _ in faults(exact):
        job = active(exact)
        if waits:
            suspend(exact, job, signal())
        attempt(partial(run.signals.send, job.id, "ok", 1, key="k"))
        exact.run.signals.send(job.id, "ok", 1, key="k")
        if not waits:
            assert suspend(exact, job, signal()).state == "available"
        assert stored(exact, job) == {"ok": 1}
        (job,) = exact.fetch()
        exact.run.finish.ack(job.id)


# --- child jobs -----------------------------------------------------------------------------------


def child_of(job: Job, name: str = "ship", **more: Any) -> dict[str, Any]:
    parent = {"job_id": job.id, "name": name, "lease_token": token(job)}
    return {"type": "child", "args": [], "options": {"queue": "children"}, "parent": parent, **more}


def start(world: World, *raw: dict[str, Any], run: Runtime | None = None) -> list[Job]:
    run = run or world.run
    adopted = run.children.adopted([envelope.parse(one) for one in raw], batch=True)
    return [one.job for one in run.enqueue.push_batch(adopted)]


def awaiting(world: World, job: Job, *names: str, mode: str = "all") -> Job:
    waits = [{"kind": "job", "name": name, "for": "PT1H"} for name in names]
    told = {"mode": mode, "waits": waits}
    return world.run.finish.nack(job.id, error=None, lease_token=token(job), suspend=told)


@pytest.mark.parametrize("first", ["the wait", "the child"])
def test_a_child_wakes_its_parent_with_its_result(world: World, first: str) -> None:
    job = active(world)
    (child,) = start(world, child_of(job))
    assert start(world, child_of(job, "other"))[0].id != child.id
    with pytest.raises(Duplicate):
        start(world, child_of(job))
    if first == "the wait":
        assert awaiting(world, job, "ship").state == "scheduled"
    for running in world.fetch("children", 2):
        world.run.finish.ack(running.id, result={"shipped": running.id == child.id})
    if first == "the child":
        assert awaiting(world, job, "ship").state == "available"
    (again,) = world.fetch()
    assert again.id == job.id
    assert stored(world, job)["ship"] == {"shipped": True}


def test_all_children_wake_their_parent(world: World) -> None:
    job = active(world)
    names = [f"c/{n}" for n in range(3)]
    start(world, *(child_of(job, name) for name in names))
    running = world.fetch("children", 3)
    world.run.finish.ack(running[0].id)
    assert awaiting(world, job, *names).state == "scheduled"
    world.run.jobs.cancel(running[1].id)
    assert world.state(job) == "scheduled"
    assert len(world.run.jobs.get(job.id).durable.waits.waits) == 1  # type: ignore[union-attr]
    error = {"code": "DEAD_LETTER", "message": "broken"}
    world.run.finish.nack(running[2].id, error=error)
    assert world.state(job) == "available"
    _, page = world.run.steps.page(job.id)
    assert sorted((one.ok, (one.value or {}).get("message")) for one in page.outcomes) == [
        (False, "The child job is cancelled."), (False, "broken"), (True, None),
    ]  # fmt: skip
    # Retried later, it changes nothing.
    world.run.redrive.retry(running[2].id)
    (late,) = world.fetch("children")
    world.run.finish.ack(late.id, result=1)
    assert len(stored(world, job)) == 3


def test_all_waits_last_as_long_as_what_is_left(world: World) -> None:
    job = active(world)
    start(world, child_of(job, "a"), child_of(job, "b"))
    waits = [
        {"kind": "job", "name": "a", "for": "PT1H"},
        {"kind": "job", "name": "b", "for": "P1D"},
    ]
    told = {"mode": "all", "waits": waits}
    world.run.finish.nack(job.id, error=None, lease_token=token(job), suspend=told)
    running = {
        one.durable.parent and one.durable.parent.name: one for one in world.fetch("children", 2)
    }
    world.run.finish.ack(running["a"].id)
    world.clock.advance(DAY - 1)
    assert world.state(job) == "scheduled"
    world.clock.advance(1)
    (again,) = world.fetch()
    assert again.id == job.id


def test_children_that_end_early_are_not_bounded_as_signals(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr("ojs.services.jobs.signals.MAX_SIGNALS", 1)
    job = active(world)
    start(world, *(child_of(job, f"c/{n}") for n in range(3)))
    for child in world.fetch("children", 3):
        world.run.finish.ack(child.id, result=1)
    assert stored(world, job) == {f"c/{n}": 1 for n in range(3)}
    with pytest.raises(TooManySteps):
        world.run.signals.send(job.id, "early", 1)


def test_a_dead_letter_gets_the_result_of_its_child(world: World) -> None:
    job = active(world)
    (child,) = start(world, child_of(job))
    world.run.finish.nack(job.id, error={"code": "DEAD_LETTER"})
    world.fetch("children")
    world.run.finish.ack(child.id, result=1)
    world.run.redrive.retry(job.id)
    (again,) = world.fetch()
    assert stored(world, again) == {"ship": 1}


def test_a_later_job_with_the_id_of_the_parent_gets_nothing(world: World) -> None:
    raw = world.run.ids.uuid7()

    def push() -> Job:
        world.run.enqueue.push(envelope.parse({"id": raw, "type": "t", "args": []}))
        (job,) = world.fetch()
        return job

    (child,) = start(world, child_of(push()))
    world.run.jobs.cancel(raw)
    world.run.acts.delete(raw)
    world.clock.advance(1_000)
    job = push()
    world.fetch("children")
    world.run.finish.ack(child.id, result=1)
    assert stored(world, job) == {}


def test_who_may_start_a_child(world: World) -> None:
    job = active(world)
    wrong = child_of(job)
    wrong["parent"]["lease_token"] = "x" * 8
    with pytest.raises(Conflict):
        start(world, wrong)
    with pytest.raises(InvalidRequest):
        start(world, child_of(job, id=job.id))
    wrong["parent"]["job_id"] = world.run.ids.uuid7()
    with pytest.raises(NotFound):
        start(world, wrong)
    with pytest.raises(InvalidRequest):
        world.run.enqueue.push(envelope.parse(child_of(job)))
    world.run.finish.ack(job.id)
    with pytest.raises(Conflict):
        start(world, child_of(job))


def test_a_cancelled_or_new_parent_is_left_alone(world: World) -> None:
    job = active(world)
    start(world, child_of(job))
    world.run.finish.nack(job.id, error={"code": "DEAD_LETTER"})
    world.run.redrive.retry(job.id, clears=["steps"])
    (child,) = world.fetch("children")
    world.run.finish.ack(child.id)
    assert stored(world, job) == {}
    (job,) = world.fetch()
    start(world, child_of(job))
    world.run.jobs.cancel(job.id)
    (child,) = world.fetch("children")
    world.run.finish.ack(child.id)
    assert stored(world, job) == {}


def test_dying_at_the_start_of_a_child(exact: World) -> None:
    """Whoever asks again starts it once."""
    for run, _ in faults(exact):
        job = active(exact)
        attempt(partial(start, exact, child_of(job), run=run))
        with suppress(Duplicate):
            start(exact, child_of(job))
        (child,) = exact.fetch("children", 2)
        exact.run.finish.ack(child.id, result=1)
        assert stored(exact, job) == {"ship": 1}
        exact.run.finish.ack(job.id)


def test_dying_at_the_end_of_a_child(exact: World) -> None:
    """The stream repeats it."""
    for run, _ in faults(exact):
        job = active(exact)
        (child,) = start(exact, child_of(job))
        awaiting(exact, job, "ship")
        exact.fetch("children")
        attempt(partial(run.finish.ack, child.id, result=1))
        attempt(partial(exact.run.finish.ack, child.id, result=1, worker_id=WORKER))
        record = exact.run.jobs.get(child.id)
        for _ in range(2):
            exact.run.durable_ends.repeat(record)
        assert stored(exact, job) == {"ship": 1}
        (job,) = exact.fetch()
        exact.run.finish.ack(job.id)
