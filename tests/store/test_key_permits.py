"""The permits of rate limit keys: what they cost, limits that differ, what version 0.2 left."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from ojs.clock import ManualClock
from ojs.domain.ids import uuid7
from ojs.domain.job.permits import permit_name
from ojs.domain.rate_limit.limiter import (
    MAX_CONCURRENCY,
    LimitBounds,
    OverrideRequest,
    Rate,
    limiter_name,
)
from ojs.store.permits import semaphore
from ojs.store.permits.counter_items import ANY_VERSION
from ojs.store.permits.semaphore import GONE_MS, SHARD_PERMITS, ConcurrencySemaphore
from ojs.store.table import keys
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Value
from tests.simulation.memory import Memory
from tests.store.faults import Faulty, attempt, faults

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from tests.store.conftest import World

SECOND = 1_000
NAME = keys.limiter(limiter_name("k"))
MANY = MAX_CONCURRENCY


def limited(world: World, n: int = 0, **limit: Any) -> Job:
    options = {name: limit.pop(name) for name in ("priority", "queue") if name in limit}
    return world.push(n, rate_limit={"key": "k", **limit}, **options)


def fill(world: World, counts: dict[int, int]) -> None:
    """Permits of jobs that are not there, in these shards."""
    numbers = iter(range(10_000))
    puts: list[dict[str, Value]] = []
    for shard, count in counts.items():
        pk, sk = semaphore.key_of(NAME, shard)
        names = [permit_name(uuid7(1, next(numbers), 2), "lost") for _ in range(count)]
        # They are looked at some day.
        permits: dict[str, Value] = {f"h_{name}": world.clock.now_ms() + 10**9 for name in names}
        puts.append({"pk": pk, "sk": sk, "n": count, "at": 1, **permits})
    world.run.table.write_many(puts=puts)
    world.run.table.update(Update(NAME, keys.RECORD, set={"key": "k", "counted": 1, "most": MANY}))


def active(world: World) -> int:
    return world.run.limits.get("k").limiter.active


def limiter_item(world: World) -> dict[str, Any]:
    return dict(world.run.table.get(NAME, keys.RECORD) or {})


def spent(world: World) -> float:
    units = world.run.table.meter.write_units
    world.run.table.meter.reset()
    return units


# --- what it costs --------------------------------------------------------------------------------


def test_a_permit_of_a_thousand_costs_one_unit_to_take_and_one_to_give_back(exact: World) -> None:
    last = semaphore.shards(MANY) - 1
    fill(exact, dict.fromkeys(range(last), SHARD_PERMITS) | {0: 14, last: 16})
    assert active(exact) == 990
    exact.run.stores.semaphore._choose = lambda _n: 0
    # What the claim and the end of a job cost by themselves, with an entry in the index, as jobs
    # with permits have one.
    free = exact.push(priority=100, visibility_timeout_ms=1_000)
    spent(exact)
    assert [job.id for job in exact.fetch()] == [free.id]
    claim = spent(exact)
    exact.run.finish.ack(free.id)
    end = spent(exact)
    limited(exact, concurrency=MANY)
    spent(exact)
    (job,) = exact.fetch()
    assert active(exact) == 991
    assert spent(exact) - claim == 1
    exact.run.finish.ack(job.id)
    assert spent(exact) - end == 1
    assert active(exact) == 990


def test_the_permits_of_ten_jobs_are_taken_by_one_write_and_starts_are_not_counted(
    exact: World,
) -> None:
    # The first claim notes the line.
    limited(exact, concurrency=20)
    assert len(exact.fetch()) == 1
    for n in range(10):
        limited(exact, n, concurrency=20)
    before = limiter_item(exact)
    exact.run.table.meter.reset()
    assert len(exact.fetch(count=10)) == 10
    # Queues, the line, what the line is limited by, permits, ten claims.
    assert exact.run.table.meter.calls[2:] == ["BatchGetItem"] + ["UpdateItem"] * 11
    assert limiter_item(exact) == before
    limited(exact, priority=10, concurrency=20, rate={"limit": 9, "period": "PT1M"})
    exact.run.table.meter.reset()
    assert len(exact.fetch()) == 1
    assert exact.run.table.meter.calls[2:] == ["BatchGetItem"] + ["UpdateItem"] * 3


def test_many_keys_without_room_are_passed_by_reads_alone(exact: World) -> None:
    for n in range(20):
        for _ in range(2):
            exact.push(n, rate_limit={"key": f"customer-{n}", "concurrency": 1})
    assert len(exact.fetch(count=20)) == 20
    exact.fetch()
    exact.run.table.meter.reset()
    assert exact.fetch() == []
    assert "UpdateItem" not in exact.run.table.meter.calls
    # Three pages.
    assert len(exact.run.table.meter.calls) <= 6


class _Client:
    """The SDK's client, as far as the store calls it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._memory, name)
        return lambda **arguments: operation(arguments)


@pytest.mark.parametrize("seed", [1, 2])
def test_two_tries_use_nine_tenths_of_a_thousand_permits_under_load(seed: int) -> None:
    """More jobs wait than there are permits. In each round two of a hundred jobs end, and for each
    two fetches ask.
    """
    chance, clock = random.Random(seed), ManualClock()
    table = Table(cast("Any", _Client(Memory())), "table")
    store = ConcurrencySemaphore(table, choose=chance.randrange)
    held: dict[str, int] = {}
    numbers = iter(range(100_000))

    def ask() -> None:
        name = permit_name(uuid7(1, next(numbers), 2), "run1")
        now_ms = clock.now_ms()
        got = store.acquire(NAME, [name], limit=MANY, version=ANY_VERSION, now_ms=now_ms)
        held.update(got.permits)

    shares = [min(SHARD_PERMITS, MANY - at * SHARD_PERMITS) for at in range(semaphore.shards(MANY))]
    for shard, share in enumerate(shares):
        names = [permit_name(uuid7(1, next(numbers), 2), "run1") for _ in range(share)]
        permits = {f"h_{name}": clock.now_ms() + 10**9 for name in names}
        pk, sk = semaphore.key_of(NAME, shard)
        table.write_many(puts=[{"pk": pk, "sk": sk, "n": share, **permits}])
        held.update(dict.fromkeys(names, shard))
    assert len(held) == MANY
    levels = []
    for _ in range(40):
        for name in chance.sample(sorted(held), len(held) // 50):
            store.release(NAME, held.pop(name), [name], now_ms=clock.now_ms())
        for _ in range(MANY // 25):
            ask()
        assert len(held) <= MANY
        levels.append(len(held))
    assert store.counts({NAME: MANY}) == {NAME: len(held)}
    assert min(levels) >= 0.9 * MANY, levels


# --- limits that differ ---------------------------------------------------------------------------


def test_jobs_of_one_limit_of_several_shards_use_all_of_it_and_no_more(exact: World) -> None:
    for n in range(60):
        limited(exact, n, concurrency=50)
    running: list[Job] = []
    for _ in range(30):
        running += exact.fetch(count=9)
        assert len(running) == active(exact) <= 50
    assert len(running) == 50
    for job in running:
        exact.run.finish.ack(job.id)
    assert active(exact) == 0
    assert len(exact.fetch(count=100)) == 10


def test_no_job_is_dropped_while_its_key_has_a_permit_left(exact: World) -> None:
    """Also where the shards that are tried first have none."""
    last = semaphore.shards(MANY) - 1
    fill(exact, dict.fromkeys(range(last), SHARD_PERMITS) | {9: 23, last: 16})
    exact.run.stores.semaphore._choose = lambda _n: 0
    for n in range(2):
        limited(exact, n, concurrency=MANY, on_limit="drop")
    exact.run.table.meter.reset()
    (job,) = exact.fetch(count=2)
    assert job.permits is not None
    assert job.permits.shards == {"k": 9}
    # Two tries, a look at all shards, one more.
    assert exact.run.table.meter.calls[2:7] == [
        "BatchGetItem", "UpdateItem", "UpdateItem", "BatchGetItem", "UpdateItem",
    ]  # fmt: skip
    assert active(exact) == MANY
    assert sum(i.get("state", {}).get("S") == "discarded" for i in exact.items()) == 1


def test_while_a_large_limit_throttles_fetches_write_nothing(exact: World) -> None:
    last = semaphore.shards(MANY) - 1
    fill(exact, dict.fromkeys(range(last), SHARD_PERMITS) | {last: 16})
    job = limited(exact, concurrency=MANY)
    assert exact.fetch() == []
    exact.run.table.meter.reset()
    assert exact.fetch() == []
    # Queues, the line, its limits, all shards, what is due.
    assert exact.run.table.meter.calls == [
        "BatchGetItem", "Query", "BatchGetItem", "BatchGetItem", "Query",
    ]  # fmt: skip
    fill(exact, {3: 0})
    got = [found.id for _ in range(2) for found in exact.fetch()]
    assert got == [job.id]


def test_a_limit_of_one_lets_one_run_whatever_others_of_its_key_allow(exact: World) -> None:
    wide = [limited(exact, n, concurrency=MANY) for n in range(3)]
    running = exact.fetch(count=3)
    assert {job.id for job in running} == {job.id for job in wide}
    alone = limited(exact, 9, concurrency=1)
    for job in running:
        # Whatever shards their permits are of.
        assert exact.fetch() == []
        exact.run.finish.ack(job.id)
    assert [job.id for job in exact.fetch()] == [alone.id]
    other = limited(exact, 10, concurrency=1)
    assert exact.fetch() == []
    exact.run.finish.ack(alone.id)
    assert [job.id for job in exact.fetch()] == [other.id]


@pytest.mark.parametrize(("larger", "smaller"), [(30, 20), (48, 30), (100, 50)])
def test_a_job_with_a_smaller_limit_counts_what_runs_under_a_larger_one(
    exact: World, larger: int, smaller: int
) -> None:
    for n in range(larger):
        limited(exact, n, concurrency=larger)
    running: list[Job] = []
    for _ in range(30):
        running += exact.fetch(count=40)
    assert len(running) == larger
    later = limited(exact, 1_000, concurrency=smaller)
    while len(running) >= smaller:
        assert exact.fetch() == []
        exact.run.finish.ack(running.pop().id)
    # Of its shards two are tried at a time.
    got = [job.id for _ in range(9) for job in exact.fetch()]
    assert got == [later.id]


def test_a_larger_limit_is_noted_once_and_before_its_first_permit(exact: World) -> None:
    limited(exact, concurrency=SHARD_PERMITS)
    (first,) = exact.fetch()
    assert "most" not in limiter_item(exact)
    for n in range(2):
        limited(exact, n, concurrency=30)
    exact.run.table.meter.reset()
    (second,) = exact.fetch()
    calls = list(exact.run.table.meter.calls)
    assert limiter_item(exact)["most"] == 30
    exact.run.table.meter.reset()
    assert len(exact.fetch()) == 1
    assert len(exact.run.table.meter.calls) == len(calls) - 1
    # A smaller one by an operator takes nothing back.
    exact.run.limits.override("k", OverrideRequest(concurrency=2).override(None))
    limited(exact, concurrency=30)
    assert exact.fetch() == []
    assert limiter_item(exact)["most"] == 30
    for job in (first, second):
        exact.run.finish.ack(job.id)
    assert len(exact.fetch(count=3)) == 1


def test_what_is_lost_in_a_shard_that_no_fetch_tries_is_found_by_the_sweep(exact: World) -> None:
    """A job with a limit of one waits for permits in all shards, which no job runs with."""
    limited(exact, concurrency=1)
    fill(exact, {7: 1, 11: 1, 30: 1})
    assert exact.fetch() == []
    exact.clock.advance(10**9)
    exact.run.throttle_sweep.run_once(exact.clock.now_ms(), 10)
    assert active(exact) == 0
    assert len(exact.fetch()) == 1


# --- lost answers, and dying ---------------------------------------------------------------------


def test_a_write_whose_answer_was_lost_counts_its_permits_once(exact: World) -> None:
    jobs = [limited(exact, n, concurrency=10) for n in range(2)]
    # Queues, the line, its limits, permits.
    run = exact.another(Faulty(exact.client, 4, "answer lost"))
    got = run.fetch.fetch(["default"], 2, "w")
    assert [job.id for job in got] == [job.id for job in jobs]
    assert active(exact) == 2
    for job in got:
        exact.run.finish.ack(job.id)
    assert active(exact) == 0


@pytest.mark.parametrize("on_limit", ["wait", "drop"])
def test_the_permit_of_a_lost_race_serves_the_next_job(exact: World, on_limit: str) -> None:
    """Also one with another limit."""
    first, second = limited(exact, concurrency=1), limited(exact, concurrency=2, on_limit=on_limit)
    run = exact.another()
    claim = run.fetch._jobs.claim

    def late(job_id: str, *given: Any, **named: Any) -> Job:
        if job_id == first.id:
            exact.run.jobs.cancel(job_id)
        return claim(job_id, *given, **named)

    run.fetch._jobs.claim = late  # type: ignore[method-assign]
    exact.run.limits.override("k", OverrideRequest(concurrency=1).override(None))
    assert [job.id for job in run.fetch.fetch(["default"], 2, "w")] == [second.id]
    assert active(exact) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "limit",
    [{"concurrency": 25}, {"concurrency": 2, "rate": {"limit": 9, "period": "PT1M"}}],
    ids=["several shards", "starts counted"],
)
def test_a_fetch_that_dies_anywhere_passes_no_limit_and_loses_no_permit(
    exact: World, limit: dict[str, Any]
) -> None:
    most = limit["concurrency"]
    for number, (run, _) in enumerate(faults(exact)):
        # The first permits under a larger limit than any before.
        exact.run.table.update(Update(NAME, keys.RECORD, set={"at": 1}, remove=["most"]))
        ids = {limited(exact, n, **limit).id for n in range(most + 1)}
        attempt(partial(run.fetch.fetch, ["default"], 3, "w"))
        for _ in range(4):
            exact.another().fetch.fetch(["default"], most, "v")
        assert active(exact) <= most
        got: set[str] = set()
        for _ in range(4):
            exact.clock.advance(1_800_000)
            exact.sweep()
            running = [
                job for _ in range(4) for job in exact.another().fetch.fetch(["default"], 40, "x")
            ]
            assert len(running) <= active(exact) <= most
            for job in running:
                got.add(job.id)
                exact.run.finish.ack(job.id, worker_id="x")
        assert got == ids, number
        assert active(exact) == 0


# --- starts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("noted", ["by this version", "by version 0.2"])
def test_starts_are_noted_of_all_jobs_of_a_key_once_one_has_a_throttle(
    exact: World, noted: str
) -> None:
    """From its push on: also of those that start before it."""
    limited(exact, concurrency=5)
    assert len(exact.fetch()) == 1
    assert "op" not in limiter_item(exact)
    paced = limited(exact, priority=-10, throttle={"limit": 1, "period": "PT10S"})
    if noted == "by version 0.2":
        exact.run.table.update(Update(NAME, keys.RECORD, remove=["timed"]))
    limited(exact, concurrency=5)
    assert len(exact.fetch()) == 1
    exact.clock.advance(10 * SECOND - 1)
    assert exact.fetch() == []
    exact.clock.advance(1)
    assert [job.id for job in exact.fetch()] == [paced.id]


def test_starts_of_jobs_without_a_rate_count_for_those_with_one(exact: World) -> None:
    rated: dict[str, Any] = {"rate": {"limit": 2, "period": "PT10S"}}
    limited(exact, **rated)
    assert len(exact.fetch()) == 1
    limited(exact, concurrency=5)
    assert len(exact.fetch()) == 1
    limited(exact, **rated)
    assert exact.fetch() == []
    exact.clock.advance(11 * SECOND)
    assert len(exact.fetch()) == 1


def test_a_permit_is_given_back_at_once_where_starts_leave_no_room(exact: World) -> None:
    limit: dict[str, Any] = {"concurrency": 2, "rate": {"limit": 2, "period": "PT1M"}}
    jobs = [limited(exact, n, **limit) for n in range(2)]
    jobs.append(limited(exact, concurrency=2, on_limit="drop"))
    store = exact.run.stores.key_limits
    read = store._read

    def late(*given: Any) -> Any:
        """Another fetch counts a start after this one has read how many there were."""
        found = read(*given)
        ((name, seen),) = found.items()
        bounds = LimitBounds(rate=Rate(2, 60 * SECOND))
        store.count_starts(name, bounds, 1, now_ms=exact.clock.now_ms(), seen=seen)
        return found

    store._read = late  # type: ignore[assignment, method-assign]
    assert [job.id for job in exact.fetch(count=3)] == [jobs[0].id, jobs[2].id]
    store._read = read  # type: ignore[method-assign]
    assert active(exact) == 2


# --- what version 0.2 left ------------------------------------------------------------------------


def as_of_0_2(world: World, job: Job) -> None:
    """A running job whose permit is kept in the limiter."""
    assert job.permits is not None
    place = f"{job.order}_{job.id[-12:]}"
    shard = job.permits.shards["k"]
    name = permit_name(job.id, job.permits.run)
    world.run.stores.semaphore.release(NAME, shard, [name], now_ms=world.clock.now_ms())
    table, now_ms = world.run.table, world.clock.now_ms()
    value = f"{job.id}|{now_ms + 1_800_000}|{now_ms}"
    table.update(Update(NAME, keys.RECORD, set={f"h_{place}": value}))
    table.update(Update(keys.job(job.id), keys.RECORD, set={"place": place}, remove=["permits"]))


@pytest.mark.parametrize("limit", [3, 30])
def test_permits_of_version_0_2_count_until_their_jobs_end(exact: World, limit: int) -> None:
    for n in range(limit + 3):
        limited(exact, n, concurrency=limit)
    old = exact.fetch(count=2)
    for job in old:
        as_of_0_2(exact, job)
    assert active(exact) == 2
    running: list[Job] = []
    for _ in range(20):
        running += exact.fetch(count=9)
    assert len(running) == limit - 2
    assert active(exact) == limit
    exact.run.finish.ack(old[0].id)
    assert active(exact) == limit - 1
    # The shards have one more each time, so it may take several tries.
    assert len([job for _ in range(9) for job in exact.fetch()]) == 1
    assert active(exact) == limit


def test_permits_of_version_0_2_that_no_job_runs_with_are_found_out(exact: World) -> None:
    one = {"concurrency": 1}
    limited(exact, **one)
    (old,) = exact.fetch()
    as_of_0_2(exact, old)
    item = limiter_item(exact)
    exact.run.finish.ack(old.id)
    # The call that gave it back was lost.
    exact.run.table.write_many(puts=[item])
    waiting = limited(exact, **one)
    assert exact.fetch() == []
    exact.clock.advance(GONE_MS - 1)
    exact.run.throttle_sweep.run_once(exact.clock.now_ms(), 10)
    assert exact.fetch() == []
    exact.clock.advance(1)
    exact.run.throttle_sweep.run_once(exact.clock.now_ms(), 10)
    assert [job.id for job in exact.fetch()] == [waiting.id]


def test_a_late_worker_s_permit_of_version_0_2_becomes_one_with_a_name(exact: World) -> None:
    exact.push(rate_limit={"key": "k", "concurrency": 1}, visibility_timeout_ms=1_000)
    (job,) = exact.fetch(worker="w")
    as_of_0_2(exact, job)
    exact.clock.advance(SECOND)
    exact.sweep()
    assert active(exact) == 0
    assert exact.run.workers.beat("w", active_jobs=[job.id]).jobs_extended == [job.id]
    found = exact.run.jobs.get(job.id)
    assert (found.key_permit, active(exact)) == (None, 1)
    assert found.permits is not None
    exact.run.finish.ack(job.id, worker_id="w")
    assert active(exact) == 0
