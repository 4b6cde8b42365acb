"""Job-level rate limits: never passed, whoever asks at once and wherever a fetch dies."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import Conflict
from ojs.domain.job import envelope
from ojs.domain.job.states import State
from ojs.domain.rate_limit.limiter import MAX_CONCURRENCY, OverrideRequest, limiter_name
from ojs.store.jobs import items
from ojs.store.permits.semaphore import GONE_MS, SETTLED_MS, key_of
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from tests.store.faults import attempt, faults
from tests.store.permits import STOPPABLE, stop

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from tests.store.conftest import World

SECOND = 1_000
ONE = {"key": "one", "concurrency": 1}


def limited(world: World, limit: dict[str, Any], n: int = 0, **options: Any) -> Job:
    return world.push(n, rate_limit=limit, **options)


def permits(world: World, key: str) -> int:
    return world.run.limits.get(key).limiter.active


def active(world: World) -> int:
    records = [item for item in world.items() if item["pk"]["S"].startswith(keys.job(""))]
    return sum(1 for item in records if item.get("state", {}).get("S") == State.ACTIVE)


# --- what is handed out ------------------------------------------------------------------------


def test_no_more_are_active_than_the_key_s_concurrency(world: World) -> None:
    jobs = [limited(world, {"key": "k", "concurrency": 2}, n) for n in range(3)]
    got = world.fetch(count=3)
    assert [job.id for job in got] == [job.id for job in jobs[:2]]
    assert world.fetch() == []
    assert world.state(jobs[2]) == "available"
    world.run.finish.ack(got[0].id)
    assert [job.id for job in world.fetch()] == [jobs[2].id]


def test_starts_are_limited_in_any_stretch_of_a_period(world: World) -> None:
    for n in range(4):
        limited(world, {"key": "k", "rate": {"limit": 2, "period": "PT10S"}}, n)
    assert len(world.fetch(count=4)) == 2
    world.clock.advance(9 * SECOND)
    assert world.fetch(count=4) == []
    # A window is kept in tenths: a tenth of the period later at the latest there is room.
    world.clock.advance(2 * SECOND)
    assert len(world.fetch(count=4)) == 2


def test_throttled_starts_are_spaced_evenly(world: World) -> None:
    for n in range(3):
        limited(world, {"key": "k", "throttle": {"limit": 10, "period": "PT10S"}}, n)
    assert len(world.fetch(count=3)) == 1
    world.clock.advance(999)
    assert world.fetch(count=3) == []
    world.clock.advance(1)
    assert len(world.fetch(count=3)) == 1


def test_all_limits_of_a_job_must_have_room(world: World) -> None:
    every = {
        "key": "k",
        "concurrency": 3,
        "rate": {"limit": 2, "period": "PT1M"},
        "throttle": {"limit": 1, "period": "PT1S"},
    }
    jobs = [limited(world, every, n) for n in range(4)]
    started = []
    for _ in range(4):
        started += world.fetch(count=4)
        world.clock.advance(SECOND)
    assert [job.id for job in started] == [job.id for job in jobs[:2]]


def test_a_limit_without_a_key_is_the_queue_s_own(world: World) -> None:
    for queue in ("a", "b"):
        for n in range(2):
            limited(world, {"max_per_second": 1}, n, queue=queue)
    assert len(world.fetch("a", 2)) == len(world.fetch("b", 2)) == 1
    assert world.fetch("a") == []
    world.clock.advance(1_100)
    assert len(world.fetch("a", 2)) == 1
    assert world.run.limits.get("queue:a").limiter.queues == ("a",)


def test_jobs_of_one_key_share_what_is_counted_over_queues(world: World) -> None:
    limited(world, ONE, queue="a")
    limited(world, ONE, queue="b")
    (first,) = world.fetch("a")
    assert world.fetch("b") == []
    world.run.finish.ack(first.id)
    assert len(world.fetch("b")) == 1


def test_room_that_was_taken_for_a_job_is_its_own_when_another_queue_finds_none(
    world: World,
) -> None:
    limit = {"key": "k", "rate": {"limit": 2, "period": "PT1M"}, "on_limit": "drop"}
    first, second = (world.push(n, queue="a", rate_limit=limit) for n in range(2))
    third = world.push(2, queue="b", rate_limit=limit)
    # They take turns: the queue a takes room for both of its jobs with its first turn.
    got = world.run.fetch.fetch(["a", "b"], 3, "w")
    assert {job.id for job in got} == {first.id, second.id}
    assert [world.state(job) for job in (first, second, third)] == ["active", "active", "discarded"]


def test_each_job_of_a_key_is_held_against_its_own_bounds(world: World) -> None:
    limited(world, {"key": "k", "concurrency": 1})
    wide = limited(world, {"key": "k", "concurrency": 2})
    strict = limited(world, {"key": "k", "concurrency": 1})
    assert len(world.fetch()) == 1
    assert [job.id for job in world.fetch(count=3)] == [wide.id]
    assert world.state(strict) == "available"


def test_an_active_job_without_that_bound_counts_under_a_key_that_has_it(world: World) -> None:
    limited(world, {"key": "k", "concurrency": 1}, scheduled_at="+PT1H")
    limited(world, {"key": "k", "rate": {"limit": 100, "period": "PT1M"}})
    (running,) = world.fetch()
    strict = limited(world, {"key": "k", "concurrency": 1})
    assert world.fetch() == []
    world.run.finish.ack(running.id)
    assert [job.id for job in world.fetch()] == [strict.id]


def test_a_limited_job_holds_up_no_other_whatever_its_priority(world: World) -> None:
    limited(world, ONE)
    world.fetch()
    stopped = limited(world, ONE, priority=50)
    other = limited(world, {"key": "other", "concurrency": 1}, priority=10)
    low = world.push(priority=-50)
    got = world.fetch(count=5)
    assert [job.id for job in got] == [other.id, low.id]
    assert world.state(stopped) == "available"


@pytest.mark.exhaustive
def test_many_that_must_wait_are_passed_in_bounded_steps(exact: World) -> None:
    limited(exact, ONE)
    exact.fetch()
    new_id = exact.run.ids.uuid7
    for _ in range(16):
        # Under ids of the client's: else a fetch would ask for each page whether it is committed.
        one = {"type": "a", "args": [], "rate_limit": ONE}
        exact.run.enqueue.push_batch([envelope.parse({**one, "id": new_id()}) for _ in range(100)])
    free = exact.push("behind")
    got: list[Job] = []
    calls = []
    while not got:
        exact.run.table.meter.reset()
        got = exact.fetch()
        calls.append(len(exact.run.table.meter.calls))
        assert len(calls) < 5
    assert [job.id for job in got] == [free.id]
    assert max(calls) <= 18
    # From now on it knows where to go on behind those that must wait.
    another = exact.push("behind too")
    exact.run.table.meter.reset()
    assert [job.id for job in exact.fetch()] == [another.id]
    assert len(exact.run.table.meter.calls) <= 9


def test_a_job_that_asks_is_put_off_to_when_there_is_room(world: World) -> None:
    limit = {"key": "k", "rate": {"limit": 1, "period": "PT10S"}, "on_limit": "reschedule"}
    limited(world, limit)
    later = limited(world, limit)
    assert len(world.fetch(count=2)) == 1
    found = world.run.jobs.get(later.id)
    assert found.state == "scheduled"
    assert 10 * SECOND <= (found.scheduled_ms or 0) - world.clock.now_ms() <= 11 * SECOND
    world.clock.advance(11 * SECOND)
    assert [job.id for job in world.fetch()] == [later.id]


def test_a_job_that_asks_is_dropped(world: World) -> None:
    limit = {**ONE, "on_limit": "drop"}
    limited(world, limit)
    late = limited(world, limit)
    assert len(world.fetch(count=2)) == 1
    found = world.run.jobs.get(late.id)
    assert (found.state, found.dead_letter, found.attempt) == ("discarded", False, 0)
    assert [error.type for error in found.errors or ()] == ["rate_limited"]


def test_one_fetch_ends_so_many_jobs_and_the_next_goes_on(exact: World) -> None:
    limit = {**ONE, "on_limit": "drop"}
    for n in range(26):
        limited(exact, limit, n)
    exact.fetch()
    gone = []
    for _ in range(3):
        exact.fetch()
        gone.append(sum(i.get("state", {}).get("S") == "discarded" for i in exact.items()))
    assert gone == [10, 20, 25]


def test_jobs_without_a_limit_cost_what_they_cost_before(exact: World) -> None:
    exact.push()
    (job,) = exact.fetch()
    exact.run.finish.ack(job.id)
    costs = []
    for _ in range(2):
        exact.run.table.meter.reset()
        exact.push()
        (job,) = exact.fetch()
        exact.run.finish.ack(job.id)
        costs.append((list(exact.run.table.meter.calls), exact.run.table.meter.write_units))
        limited(exact, ONE, queue="elsewhere")
    assert costs[0] == costs[1]
    assert [name for name in costs[0][0] if name == "UpdateItem"] == ["UpdateItem"] * 2


def test_what_a_limited_job_costs(exact: World) -> None:
    # Which shards are tried is chance: here always those that have room.
    exact.run.stores.semaphore._choose = random.Random(3).randrange
    limit = {"key": "k", "concurrency": 50, "rate": {"limit": 1_000, "period": "PT1H"}}
    limited(exact, limit)
    (job,) = exact.fetch()
    exact.run.finish.ack(job.id)
    meter = exact.run.table.meter
    spent: dict[str, Any] = {}
    meter.reset()
    limited(exact, limit)
    spent["push"] = (len(meter.calls), meter.write_units, meter.read_units)
    meter.reset()
    (job,) = exact.fetch()
    spent["fetch"] = (len(meter.calls), meter.write_units, meter.read_units)
    meter.reset()
    exact.run.finish.ack(job.id)
    spent["ack"] = (len(meter.calls), meter.write_units, meter.read_units)
    for n in range(10):
        limited(exact, limit, n)
    meter.reset()
    assert len(exact.fetch(count=10)) == 10
    spent["ten"] = (len(meter.calls), meter.write_units, meter.read_units)
    # One read for the headers: half a unit for the limiter, and for each shard of the permits. One
    # read under the limits, one write for the permit and one for the start; one write to let go.
    assert spent["push"] == (3, 2, 3), spent
    assert spent["fetch"][:2] == (6, 5), spent
    assert spent["ack"] == (2, 3, 0), spent
    # The limits of ten jobs are taken in one write each, and one more for a second shard.
    assert spent["ten"][0] <= 16, spent


# --- how permits are given back -----------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["ack", "fail", "requeue", "cancel", "stall", "time out", "discard"]
)
def test_a_permit_is_given_back_however_the_job_ends(world: World, how: str) -> None:
    attempts = 1 if how == "discard" else 3
    limited(world, ONE, **STOPPABLE, retry={"max_attempts": attempts, "initial_interval": "PT1H"})
    (job,) = world.fetch(worker="w")
    assert permits(world, "one") == 1
    stop(world, job, how, "w")
    assert permits(world, "one") == 0
    next_one = limited(world, ONE, priority=100)
    assert [job.id for job in world.fetch()] == [next_one.id]


def test_a_late_worker_gets_its_job_back_only_if_the_limit_has_room(world: World) -> None:
    limited(world, ONE, visibility_timeout_ms=1_000)
    (job,) = world.fetch(worker="w")
    world.clock.advance(1_000)
    world.sweep()
    other = limited(world, ONE, priority=10)
    assert [one.id for one in world.fetch(worker="v")] == [other.id]
    assert world.run.workers.beat("w", active_jobs=[job.id]).jobs_extended == []
    with pytest.raises(Conflict):
        world.run.finish.ack(job.id, worker_id="w")
    assert active(world) == 1
    world.run.finish.ack(other.id, worker_id="v")
    assert world.run.workers.beat("w", active_jobs=[job.id]).jobs_extended == [job.id]
    assert permits(world, "one") == 1
    assert world.run.finish.ack(job.id, worker_id="w").state == "completed"
    assert permits(world, "one") == 0


# --- pausing and overriding --------------------------------------------------------------------


def test_a_worker_s_rate_limit_until_pauses_the_key(world: World) -> None:
    limit = {"key": "api", "concurrency": 5}
    limited(world, limit)
    waiting = limited(world, limit)
    (job,) = world.fetch()
    error = {"type": "RateLimitExceeded", "message": "429", "rate_limit_until": "+PT1M"}
    world.run.finish.nack(job.id, error=error)
    assert world.fetch() == []
    free = world.push()
    assert [one.id for one in world.fetch()] == [free.id]
    # An earlier end that another worker was told does not shorten it.
    world.run.limits.pause(job, world.clock.now_ms() + 1, "429")
    world.clock.advance(59_999)
    assert world.state(waiting) == "available"
    started = {one.id for one in world.fetch(count=5)}
    assert waiting.id not in started
    world.clock.advance(1)
    assert waiting.id in {one.id for one in world.fetch(count=5)}


def test_an_override_holds_for_all_jobs_of_a_key_until_it_ends(world: World) -> None:
    limited(world, {"key": "k", "rate": {"limit": 5, "period": "PT1S"}})
    stop = OverrideRequest(concurrency=0).override(world.clock.now_ms() + 10 * SECOND)
    world.run.limits.override("k", stop)
    assert world.fetch() == []
    world.clock.advance(10 * SECOND)
    assert len(world.fetch()) == 1
    limited(world, {"key": "k", "rate": {"limit": 1, "period": "PT1S"}})
    world.run.limits.override("k", stop.__class__(stop.bounds, stop.named))
    assert world.fetch() == []
    world.run.limits.lift("k")
    world.clock.advance(1_100)
    assert len(world.fetch()) == 1


# --- many at once, and dying -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ({"key": "k", "concurrency": 3}, 3),
        ({"key": "k", "rate": {"limit": 7, "period": "PT1H"}}, 7),
        ({"key": "k", "throttle": {"limit": 1, "period": "PT1H"}}, 1),
    ],
)
def test_16_fetchers_at_once_never_pass_the_limit(
    exact: World, limit: dict[str, Any], most: int
) -> None:
    for n in range(20):
        limited(exact, limit, n)
    runs = [exact.another() for _ in range(16)]
    barrier = threading.Barrier(16)

    def fetch(number: int) -> list[Job]:
        barrier.wait()
        return runs[number].fetch.fetch(["default"], 1 + number % 3, f"w{number}")

    with ThreadPoolExecutor(16) as pool:
        got = [job for jobs in pool.map(fetch, range(16)) for job in jobs]
    # Losers of a race may have given back after others looked: so a little later the rest is had.
    assert len(got) <= most
    got += exact.fetch(count=20)
    assert len({job.id for job in got}) == len(got) == most
    assert active(exact) == most


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [1, 3])
def test_a_fetch_that_dies_anywhere_neither_passes_the_limit_nor_loses_a_permit(
    exact: World, count: int
) -> None:
    limit = {"key": "k", "concurrency": 2}
    for number, (run, _) in enumerate(faults(exact)):
        queue = "default"
        ids = {limited(exact, limit, n, queue=queue).id for n in range(3)}
        held = attempt(partial(run.fetch.fetch, [queue], count, "w")) or []
        exact.another().fetch.fetch([queue], 3, "v")
        assert active(exact) <= 2
        # What was taken and not claimed is free again a little later; leases run out.
        got: set[str] = set()
        for _ in range(3):
            exact.clock.advance(1_800_000)
            exact.sweep()
            for job in exact.another().fetch.fetch([queue], 3, "x"):
                assert active(exact) <= 2
                got.add(job.id)
                exact.run.finish.ack(job.id, worker_id="x")
        assert got == ids, (number, held)
        assert permits(exact, "k") == 0


@pytest.mark.exhaustive
def test_an_ack_that_dies_anywhere_leaves_room_for_the_next_a_little_later(exact: World) -> None:
    for run, _ in faults(exact):
        first, second = limited(exact, ONE), limited(exact, ONE)
        (job,) = exact.fetch(worker="w")
        assert job.id == first.id
        if attempt(partial(run.finish.ack, job.id, worker_id="w")) is None:
            exact.run.finish.ack(job.id, worker_id="w")
        exact.clock.advance(SETTLED_MS)
        (job,) = exact.another().fetch.fetch(["default"], 1, "v")
        assert job.id == second.id
        exact.run.finish.ack(job.id, worker_id="v")


def test_what_a_dead_fetch_took_is_free_again_when_it_cannot_be_at_it_any_more(
    exact: World,
) -> None:
    job = limited(exact, ONE)
    run = exact.another()
    run.fetch._jobs.claim = lambda *_a, **_k: (_ for _ in ()).throw(SystemExit)  # type: ignore[method-assign]
    run.fetch._permits.close = lambda *_a: None  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        run.fetch.fetch(["default"], 1, "w")
    assert permits(exact, "one") == 1
    # Perhaps it is only slow.
    exact.clock.advance(GONE_MS)
    assert exact.fetch() == []
    exact.clock.advance(SETTLED_MS)
    assert [one.id for one in exact.another().fetch.fetch(["default"], 1, "v")] == [job.id]
    assert permits(exact, "one") == 1


@pytest.mark.parametrize("then", ["cancelled", "completed", "gone"])
def test_a_permit_that_no_job_takes_is_found_by_whoever_finds_no_room(
    exact: World, then: str
) -> None:
    job = limited(exact, ONE)
    (held,) = exact.fetch()
    key = key_of(keys.limiter(limiter_name("one")))
    before = exact.run.table.get(*key) or {}
    if then == "gone":
        exact.run.table.delete(keys.job(job.id), keys.RECORD)
    else:
        (exact.run.finish.ack if then == "completed" else exact.run.jobs.cancel)(held.id)
        assert permits(exact, "one") == 0
        # The call that would have given it back was lost.
        exact.run.table.write_many(puts=[before])
    waiting = limited(exact, ONE)
    assert exact.fetch() == []
    exact.clock.advance(SETTLED_MS)
    assert [one.id for one in exact.fetch()] == [waiting.id]


@pytest.mark.exhaustive
def test_a_key_with_as_many_permits_as_there_can_be_stays_within_an_item(exact: World) -> None:
    limit = {"key": "k", "concurrency": MAX_CONCURRENCY}
    for _ in range(10):
        exact.run.enqueue.push_batch(
            [envelope.parse({"type": "a", "args": [], "rate_limit": limit}) for _ in range(100)]
        )
    got: list[Job] = []
    while more := exact.fetch(count=100):
        got += more
    assert len(got) == permits(exact, "k") == MAX_CONCURRENCY


@pytest.mark.parametrize("limit", ["of the job", "of the queue"])
def test_what_started_and_was_ended_before_the_answer_came_counts(
    limit: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim goes through, its answer is lost, and an operator cancels the job before the SDK asks
    again, which then finds it done.
    """
    rate = {"limit": 2, "period": "PT10S"}
    if limit == "of the queue":
        world.run.queues.configure("default", {"rate_limit": rate})
        for n in range(4):
            world.push(n)
    else:
        for n in range(4):
            limited(world, {"key": "k", "rate": rate}, n)
    jobs = world.run.fetch._jobs
    claim, ended = jobs.claim, list[str]()

    def lossy(job_id: str, *given: Any, **named: Any) -> Job:
        job = claim(job_id, *given, **named)
        if ended:
            return job
        ended.append(job_id)
        done = world.run.jobs.cancel(job_id)
        raise LostRace([items.record_of(done)], repeated=True)

    monkeypatch.setattr(jobs, "claim", lossy)
    # Two may start, and one of them has.
    assert len(world.fetch(count=3)) == 1
    assert world.fetch(count=3) == []
    world.clock.advance(11 * SECOND)
    assert len(world.fetch(count=3)) == 2
