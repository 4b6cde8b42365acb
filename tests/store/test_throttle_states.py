"""Events and metrics of rate limits (ojs-rate-limiting section 11; RL-006): once each change."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain import times
from ojs.domain.rate_limit.limiter import OverrideRequest
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.table import keys
from tests.store.doubles import Projecting
from tests.store.faults import attempt, faults

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from tests.store.conftest import World

Worlds = Callable[[], AbstractContextManager["World"]]
SECOND = 1_000
ONE = {"key": "one", "concurrency": 1}
KINDS = ("rate_limit.exceeded", "rate_limit.released")


@dataclass
class Told:
    """A world whose stream is projected when events are asked for."""

    world: World

    def __post_init__(self) -> None:
        self.projecting = Projecting(self.world)
        self.seen = 0

    def new(self) -> list[dict[str, Any]]:
        """Events of limits since the last time."""
        self.projecting.catch_up()
        found = [
            event
            for event in self.projecting.projected.events()
            if event["type"].startswith("rate_limit.")
        ]
        fresh, self.seen = found[self.seen :], len(found)
        return fresh

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.new()]


@pytest.fixture
def told(streamed: Worlds) -> Iterator[Told]:
    with streamed() as world:
        yield Told(world)


def limited(world: World, limit: dict[str, Any], n: int = 0, **options: Any) -> Job:
    return world.push(n, rate_limit=limit, **options)


def ack(world: World, jobs: list[Job]) -> None:
    for job in jobs:
        world.run.finish.ack(job.id)


# --- keys of jobs ---------------------------------------------------------------------------------


def test_a_key_that_holds_jobs_back_is_told_once_and_so_is_its_release(told: Told) -> None:
    world = told.world
    first, second = limited(world, ONE), limited(world, ONE)
    got = world.fetch()
    assert told.new() == []
    for _ in range(5):
        assert world.another().fetch.fetch(["default"], 1, "w") == []
    (exceeded,) = told.new()
    assert exceeded["type"] == "rate_limit.exceeded"
    assert exceeded["subject"] == "one"
    assert exceeded["source"] == "ojs://ojs-backend-aws/rate-limits/one"
    assert exceeded["data"] == {
        "key": "one", "strategy": "concurrency", "limit": 1, "current": 1, "job_id": second.id,
    }  # fmt: skip
    assert [job.id for job in got] == [first.id]
    world.clock.advance(2 * SECOND)
    ack(world, got)
    assert [job.id for job in world.fetch()] == [second.id]
    (released,) = told.new()
    assert released["type"] == "rate_limit.released"
    assert released["data"] == {
        "key": "one", "strategy": "concurrency", "job_id": second.id, "held_ms": 2 * SECOND,
    }  # fmt: skip
    assert world.fetch() == []
    assert told.new() == []


@pytest.mark.parametrize(
    ("limit", "strategy", "bound"),
    [
        ({"key": "k", "concurrency": 2}, "concurrency", 2),
        ({"key": "k", "rate": {"limit": 2, "period": "PT10S"}}, "rate", 2),
        ({"key": "k", "throttle": {"limit": 1, "period": "PT5S"}}, "throttle", 1),
        ({"max_per_second": 2}, "rate", 2),
    ],
)
def test_each_strategy_is_named(
    told: Told, limit: dict[str, Any], strategy: str, bound: int
) -> None:
    world = told.world
    for n in range(4):
        limited(world, limit, n)
    running = world.fetch(count=4)
    (event,) = told.new()
    key = limit.get("key", "queue:default")
    found = {name: event["data"][name] for name in ("key", "strategy", "limit")}
    assert found == {"key": key, "strategy": strategy, "limit": bound}
    # With others still waiting, what starts one by one is no release.
    for _ in range(4):
        world.clock.advance(11 * SECOND)
        ack(world, running)
        running = world.fetch()
        if len(running) and running[0].content == {"args": [3]}:
            break
    assert told.kinds() == ["rate_limit.released"]


def test_a_backlog_that_is_worked_off_job_by_job_begins_and_ends_once(told: Told) -> None:
    world = told.world
    for n in range(20):
        limited(world, ONE, n)
    done = 0
    while done < 20:
        running = world.fetch()
        assert world.fetch() == []
        done += len(running)
        ack(world, running)
    assert Counter(told.kinds()) == {"rate_limit.exceeded": 1, "rate_limit.released": 1}


def test_a_pause_and_an_override_hold_back_too(told: Told) -> None:
    world = told.world
    limited(world, {"key": "api", "concurrency": 9})
    waiting = limited(world, {"key": "api", "concurrency": 9})
    (job,) = world.fetch(worker="w")
    until_ms = world.clock.now_ms() + 60 * SECOND
    error = {
        "type": "Limited",
        "message": "429 from the bank",
        "rate_limit_until": times.format_ms(until_ms),
    }
    world.run.finish.nack(job.id, error=error, worker_id="w")
    (adjusted,) = told.new()
    assert adjusted["type"] == "rate_limit.dynamic_adjusted"
    assert adjusted["data"] == {
        "key": "api", "until": times.format_ms(until_ms), "reason": "429 from the bank",
        "job_id": job.id,
    }  # fmt: skip
    # An earlier end changes nothing.
    world.run.limits.pause(job, until_ms - 1, "again")
    assert world.fetch() == []
    (event,) = told.new()
    assert (event["type"], event["data"]["strategy"]) == (KINDS[0], "pause")
    world.clock.advance(60 * SECOND)
    assert waiting.id in {one.id for one in world.fetch(count=2)}
    assert told.kinds() == ["rate_limit.released"]
    stop = OverrideRequest(concurrency=0).override(None)
    world.run.limits.override("api", stop)
    limited(world, {"key": "api", "concurrency": 9})
    assert world.fetch() == []
    (event,) = told.new()
    assert (event["data"]["strategy"], event["data"]["limit"]) == ("concurrency", 0)


def test_a_job_that_is_dropped_is_told_with_its_key(told: Told) -> None:
    world = told.world
    limit = {**ONE, "on_limit": "drop"}
    limited(world, limit)
    late = limited(world, limit)
    world.fetch(count=2)
    events = {event["type"]: event for event in told.new()}
    assert set(events) == {"rate_limit.exceeded", "rate_limit.dropped"}
    dropped = events["rate_limit.dropped"]
    assert dropped["subject"] == late.id
    assert dropped["data"] == {
        "job_type": "test.job", "queue": "default", "job_id": late.id, "key": "one",
    }  # fmt: skip


def test_what_no_fetch_notices_the_sweep_tells(told: Told) -> None:
    """The jobs that waited are gone: nobody will be let pass."""
    world = told.world
    limited(world, ONE)
    waiting = [limited(world, ONE, n) for n in range(3)]
    (running,) = world.fetch()
    assert world.fetch() == []
    assert told.kinds() == ["rate_limit.exceeded"]
    for job in waiting[1:]:
        world.run.jobs.cancel(job.id)
    assert world.run.throttle_sweep.run_once(world.clock.now_ms(), 10) == {"holding": 1}
    (limit,) = world.run.stats.metrics().limits
    assert (limit.key, limit.waiting, limit.exceeded) == ("one", 1, {"concurrency": 1})
    world.run.jobs.cancel(waiting[0].id)
    world.clock.advance(30 * SECOND)
    done = world.run.throttle_sweep.run_once(world.clock.now_ms(), 10)
    assert done == {"holding": 1, "released": 1}
    (released,) = told.new()
    assert released["data"]["held_ms"] == 30 * SECOND
    assert world.run.throttle_sweep.run_once(world.clock.now_ms(), 10) == {}
    # And all begins anew.
    limited(world, ONE)
    assert world.fetch() == []
    assert told.kinds() == ["rate_limit.exceeded"]
    ack(world, [running])
    # Nobody fetches, but somebody could.
    assert world.run.throttle_sweep.run_once(world.clock.now_ms(), 10)["released"] == 1
    assert told.kinds() == ["rate_limit.released"]


# --- queues ---------------------------------------------------------------------------------------


@pytest.mark.requirement("QC-24", "QC-25")
@pytest.mark.parametrize(
    ("config", "strategy", "counts"),
    [
        ({"concurrency": 2}, "concurrency", keys.SEMAPHORE),
        ({"rate_limit": {"limit": 2, "period": "PT10S"}}, "rate", keys.RATE),
    ],
)
def test_a_queue_s_own_limits_tell_too(
    told: Told, config: dict[str, Any], strategy: str, counts: str
) -> None:
    world = told.world
    world.run.queues.configure("default", config)
    jobs = [world.push(n) for n in range(3)]
    running = world.fetch(count=2)
    assert told.new() == []
    for _ in range(4):
        assert world.another().fetch.fetch(["default"], 5, "w") == []
    (event,) = told.new()
    assert (event["type"], event["subject"]) == (KINDS[0], "queue:default")
    assert event["source"] == "ojs://ojs-backend-aws/queues/default"
    assert event["data"] == {
        "key": "queue:default", "strategy": strategy, "limit": 2, "current": 2,
        "job_id": jobs[2].id, "queue": "default",
    }  # fmt: skip
    world.clock.advance(12 * SECOND)
    ack(world, running)
    assert [job.id for job in world.fetch(count=5)] == [jobs[2].id]
    (event,) = told.new()
    assert event["type"] == "rate_limit.released"
    assert event["data"] == {
        "key": "queue:default", "strategy": strategy, "job_id": jobs[2].id, "queue": "default",
        "held_ms": 12 * SECOND,
    }  # fmt: skip
    limiter = LimitName.of_queue("default", counts)
    (state,) = ThrottleStates(world.run.table).get_many([limiter])
    assert (state.throttled, state.exceeded) == (False, {strategy: 1})
    (queue,) = world.run.stats.metrics().queues
    assert queue.today.of("x_") == {strategy: 1}


def test_a_backlog_of_a_queue_begins_and_ends_once(told: Told) -> None:
    world = told.world
    world.run.queues.configure("default", {"concurrency": 1})
    for n in range(12):
        world.push(n)
    done = 0
    while done < 12:
        running = world.fetch()
        assert world.fetch() == []
        done += len(running)
        ack(world, running)
    assert told.kinds() == ["rate_limit.exceeded", "rate_limit.released"]


@pytest.mark.parametrize("how", ["removed", "raised", "emptied"])
def test_a_queue_s_limit_that_holds_nothing_back_any_more(told: Told, how: str) -> None:
    world = told.world
    world.run.queues.configure("default", {"concurrency": 1})
    jobs = [world.push(n) for n in range(2)]
    world.fetch()
    assert world.fetch() == []
    assert world.run.throttle_sweep.run_once(world.clock.now_ms(), 10) == {"holding": 1}
    match how:
        case "removed":
            world.run.queues.configure("default", {"concurrency": None})
        case "raised":
            world.run.queues.configure("default", {"concurrency": 2})
        case _:
            world.run.jobs.cancel(jobs[1].id)
    assert world.run.throttle_sweep.run_once(world.clock.now_ms(), 10)["released"] == 1
    assert told.kinds() == list(KINDS)


# --- cost, many at once, dying --------------------------------------------------------------------


def test_between_beginning_and_end_nothing_is_written(exact: World) -> None:
    """The same calls whether a key is told to hold jobs back or not; others pay nothing."""
    limited(exact, ONE)
    limited(exact, ONE)
    exact.fetch()
    costs = []
    for _ in range(3):
        exact.run.table.meter.reset()
        assert exact.fetch() == []
        meter = exact.run.table.meter
        costs.append((len(meter.calls), meter.write_units))
    assert costs[0][1] >= 2
    assert costs[1] == costs[2]
    assert costs[1][1] == 0
    exact.run.queues.configure("slow", {"concurrency": 1})
    exact.push(queue="slow")
    exact.push(queue="slow")
    exact.fetch("slow")
    exact.fetch("slow")
    exact.run.table.meter.reset()
    assert exact.fetch("slow") == []
    # Where nothing is granted nothing is written but the attempt.
    assert [name for name in exact.run.table.meter.calls if name == "UpdateItem"] == ["UpdateItem"]


def test_16_fetchers_at_once_tell_of_a_beginning_once(told: Told) -> None:
    world = told.world
    for n in range(40):
        limited(world, {"key": "k", "concurrency": 2}, n)
    runs = [world.another() for _ in range(16)]
    barrier = threading.Barrier(16)

    def fetch(number: int) -> list[Job]:
        barrier.wait()
        return [
            job for _ in range(4) for job in runs[number].fetch.fetch(["default"], 2, f"w{number}")
        ]

    with ThreadPoolExecutor(16) as pool:
        got = [job for jobs in pool.map(fetch, range(16)) for job in jobs]
    assert len(got) == 2
    assert told.kinds() == ["rate_limit.exceeded"]


@pytest.mark.exhaustive
def test_beginnings_and_ends_take_turns_whatever_happens_at_once(told: Told) -> None:
    """Exceeded and released alternate, and the last one is true."""
    world = told.world
    for n in range(48):
        limited(world, {"key": "k", "concurrency": 2}, n)
    done = Counter[str]()

    def work(number: int) -> None:
        run = world.another()
        while done.total() < 48:
            for job in run.fetch.fetch(["default"], 1, f"w{number}"):
                run.finish.ack(job.id, worker_id=f"w{number}")
                done[job.id] += 1

    with ThreadPoolExecutor(8) as pool:
        for one in [pool.submit(work, number) for number in range(8)]:
            one.result(timeout=120)
    world.clock.advance(SECOND)
    world.run.throttle_sweep.run_once(world.clock.now_ms(), 10)
    kinds = told.kinds()
    assert kinds == [KINDS[at % 2] for at in range(len(kinds))]
    assert kinds[-1] == "rate_limit.released"
    assert len(kinds) < 24


@pytest.mark.exhaustive
def test_a_fetch_that_dies_anywhere_loses_no_event(told: Told) -> None:
    world = told.world
    for run, _ in faults(world):
        first, second = limited(world, ONE), limited(world, ONE)
        (running,) = world.fetch(worker="w")
        assert running.id == first.id
        attempt(partial(run.fetch.fetch, ["default"], 1, "v"))
        assert world.fetch() == []
        world.run.finish.ack(running.id, worker_id="w")
        attempt(partial(run.fetch.fetch, ["default"], 1, "v"))
        for _ in range(2):
            # What nobody knows whether it was claimed is claimed anew when its lease is over.
            world.clock.advance(1_800 * SECOND)
            world.sweep()
            for job in world.another().fetch.fetch(["default"], 1, "x"):
                world.run.finish.ack(job.id, worker_id="x")
        world.run.throttle_sweep.run_once(world.clock.now_ms(), 10)
        assert world.run.jobs.get(second.id).state == "completed"
        kinds = told.kinds()
        assert kinds == [KINDS[at % 2] for at in range(len(kinds))]
        assert kinds
        assert kinds[-1] == KINDS[1]


def test_metrics_of_keys(told: Told) -> None:
    world = told.world
    limited(world, ONE)
    limited(world, ONE)
    got = world.fetch()
    world.fetch()
    world.clock.advance(3 * SECOND)
    ack(world, got)
    world.fetch()
    (limit,) = world.run.stats.metrics().limits
    assert (limit.active, limit.waiting) == (1, 0)
    assert limit.exceeded == {"concurrency": 1}
    assert (sum(limit.waits), limit.waited_ms) == (1, 3 * SECOND)
