"""Sleepers: many that are due at once cost as scheduled jobs do, and none is late."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain import times
from ojs.domain.job import envelope
from tests.store.durable_jobs import answer, done, save, sent, signal, suspend
from tests.store.pushing import Pushing
from tests.store.spending import Spent, spending, warm

if TYPE_CHECKING:
    from tests.store.conftest import World

HOUR = 3_600_000


def _push(world: World, count: int, **options: Any) -> None:
    job = {"type": "test.job", "args": [{"order": 1}], "options": options}
    for _ in range(count // 100):
        world.run.enqueue.push_batch([envelope.parse(job) for _ in range(100)])


def _sleepers(world: World, count: int, due_ms: int) -> None:
    """Jobs that have run, stored a step, and sleep until then."""
    until = {"kind": "sleep", "name": "nap", "until": times.format_ms(due_ms)}
    _push(world, count)
    for _ in range(count // 100):
        for job in world.fetch(count=100):
            save(world, job, done("charge", {"charge_id": "ch_1"}))
            suspend(world, job, until)


def _scheduled(world: World, count: int, due_ms: int) -> None:
    _push(world, count, scheduled_at=times.format_ms(due_ms))


def _by_fetches(world: World) -> int:
    found = 0
    while jobs := world.fetch(count=100):
        found += len(jobs)
    return found


def _by_the_sweep(world: World) -> int:
    found = 0
    while started := world.run.sweep.run_once(world.clock.now_ms(), 10_000)["promoted"]:
        found += started
    return found


def _end(world: World) -> None:
    """All of them, so that the next ones are alone."""
    world.clock.advance(24 * HOUR)
    world.sweep()
    while jobs := world.fetch(count=100):
        for job in jobs:
            world.run.finish.ack(job.id)


@pytest.mark.parametrize(("count", "starting"), [(1_000, _by_fetches), (200, _by_the_sweep)])
def test_a_thousand_sleepers_cost_as_scheduled_jobs(
    exact: World, count: int, starting: Callable[[World], int]
) -> None:
    """Within 5 %: those that fetches start, and those that the sweep starts."""
    costs: list[Spent] = []
    for put in (_scheduled, _sleepers):
        due_ms = exact.clock.now_ms() + HOUR
        put(exact, count, due_ms)
        exact.clock.advance(due_ms - exact.clock.now_ms() - 1)
        # The leases of their first runs are checked, as each minute.
        exact.sweep()
        warm(exact)
        exact.clock.advance(1)
        with spending(exact) as spent:
            assert starting(exact) == count
        costs.append(spent)
        _end(exact)
    scheduled, sleepers = costs
    for name in ("calls", "writes", "reads"):
        assert getattr(sleepers, name) == pytest.approx(getattr(scheduled, name), rel=0.05)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("wakes", ["its time", "a signal"])
def test_a_pulled_sleeper_starts_within_five_seconds(exact: World, lanes: int, wakes: str) -> None:
    """Its worker polls each 2 s; its container saw the lanes empty just before."""
    exact.run.queues.configure("default", {"lanes": lanes})
    for _ in range(4):
        exact.push()
    jobs = exact.fetch(count=4)
    polling = exact.another()

    def poll() -> bool:
        return bool(polling.fetch.fetch(["default"], 1, "w2"))

    begin_ms = exact.clock.now_ms()
    for at, job in enumerate(jobs):
        assert not poll()
        due_ms = exact.clock.now_ms() + 11_300
        if wakes == "its time":
            until = {"kind": "sleep", "name": "nap", "until": times.format_ms(due_ms)}
            suspend(exact, job, until)
        else:
            suspend(exact, job, signal(f"s{at}"))
        while not poll():
            if wakes == "a signal" and due_ms - 2_000 < exact.clock.now_ms() <= due_ms:
                exact.run.signals.send(job.id, f"s{at}", 1)
                due_ms = exact.clock.now_ms()
            assert exact.clock.now_ms() - due_ms <= 5_000
            exact.clock.advance(2_000)
        assert exact.clock.now_ms() >= due_ms
    assert exact.clock.now_ms() > begin_ms


@pytest.mark.parametrize("length_ms", [7_300, 300_000, 1_500_000])
def test_a_pushed_sleeper_starts_within_two_seconds(exact: World, length_ms: int) -> None:
    """By a timer of the request, or of the sweep where it sleeps for longer than 15 minutes."""
    pushing = Pushing(exact)
    pushing.put()
    exact.push(visibility_timeout_ms=60_000)
    (push,) = sent(pushing)
    due_ms = exact.clock.now_ms() + length_ms
    until = {"kind": "sleep", "name": "nap", "until": times.format_ms(due_ms)}
    pushing.settle((push, answer({"waits": [until]})))
    while exact.clock.now_ms() < due_ms - 60_000:
        exact.clock.advance(60_000)
        pushing.minute()
        pushing.pump()
    # From here on timers alone.
    while exact.clock.now_ms() < due_ms:
        assert sent(pushing) == []
        exact.clock.advance(500)
    while not sent(pushing):
        exact.clock.advance(500)
        assert exact.clock.now_ms() - due_ms <= 2_000


def test_a_pushed_job_continues_with_its_signal(exact: World) -> None:
    pushing = Pushing(exact)
    pushing.put()
    job = exact.push(visibility_timeout_ms=60_000)
    (push,) = sent(pushing)
    pushing.settle((push, answer({"waits": [signal()]})))
    exact.clock.advance(5_000)
    exact.run.signals.send(job.id, "ok", 1)
    (again,) = sent(pushing)
    assert again.job.id == job.id
