"""Statistics of scheduling: how pools stand and what queues were given; what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import InvalidRequest, NotFound
from ojs.domain.pool.statistics import MAX_COUNTED_WORKERS, PoolStatus, QueueShare, SchedulingStats
from ojs.domain.pool.worker import DEAD_AFTER_MS
from ojs.domain.stats import MINUTE_MS
from ojs.services.operations import statistics as stats_service
from ojs.store.queues import workers as worker_store
from ojs.store.table import keys
from ojs.store.table.table import Update
from tests.store import worker_pools

if TYPE_CHECKING:
    from tests.store.conftest import World

POOL = "general"


def shares(world: World, **asked: Any) -> dict[str, QueueShare]:
    return {each.name: each for each in stats(world, **asked).queues}


def stats(world: World, **asked: Any) -> SchedulingStats:
    return world.run.scheduling.stats(**{"limit": 100, **asked})


def three(world: World) -> None:
    """A pool whose queues were given 90, 45 and 15 jobs in the last minute, and a queue beside."""
    world.clock.advance(MINUTE_MS - world.clock.now_ms() % MINUTE_MS + 30_000)
    worker_pools.make(world, POOL, ["critical", "default", "low"], weights={
        "critical": 5, "default": 3, "low": 1,
    })  # fmt: skip
    world.run.queues.resume("aside")
    for queue, count in (("critical", 90), ("default", 45), ("low", 15), ("aside", 150)):
        third = count // 3
        worker_pools.counted(world, queue, active=third, t_started=10 * count)
        # Half of the minute before is within the last 60 s.
        worker_pools.happened(world, queue, started=third, waits=third, wait_ms=third * 40)
        worker_pools.happened(
            world, queue, MINUTE_MS, started=4 * third, waits=4 * third, wait_ms=4 * third * 10
        )


@pytest.mark.requirement("FS-24")
def test_what_the_queues_of_a_pool_were_given(world: World) -> None:
    """In the last minute, of all that the pool's queues were given; weights are its own."""
    three(world)
    found = stats(world, pool=POOL)
    assert found.strategy == "weighted"
    assert found.next_cursor is None
    assert list(found.queues) == [
        QueueShare("critical", 90, 0.6, 20, 30, 5, 900, False, POOL),
        QueueShare("default", 45, 0.3, 20, 15, 3, 450, False, POOL),
        QueueShare("low", 15, 0.1, 20, 5, 1, 150, False, POOL),
    ]


@pytest.mark.requirement("FS-24")
def test_what_all_queues_were_given(world: World) -> None:
    """Of all that is on the page; a queue in no pool has the weight 1 and no pool."""
    three(world)
    found = shares(world)
    assert found["aside"] == QueueShare("aside", 150, 0.5, 20, 50, 1, 1_500, False, None)
    assert (found["critical"].ratio, found["critical"].weight) == (0.3, 5)
    assert sum(each.ratio for each in found.values()) == pytest.approx(1)


def test_nothing_was_given(world: World) -> None:
    worker_pools.make(world, POOL, ["critical"])
    assert stats(world).queues == [QueueShare("critical", 0, 0.0, 0, 0, 1, 0, False, POOL)]


def test_the_strategy_is_that_of_the_only_pool(exact: World) -> None:
    assert stats(exact).strategy == "round-robin"
    worker_pools.make(exact, POOL, ["critical"], strategy="strict")
    assert stats(exact).strategy == "strict"
    worker_pools.make(exact, "other", ["critical"], strategy="least-loaded")
    assert stats(exact).strategy == "round-robin"
    assert stats(exact, pool="other").strategy == "least-loaded"


def test_a_starved_queue_is_shown_as_such(exact: World) -> None:
    """As the sweep found it, also when another pool is asked for that has the queue, too."""
    worker_pools.make(exact, POOL, ["critical", "low"])
    worker_pools.make(exact, "other", ["low"])
    worker_pools.counted(exact, "low", available=9, oldest_ago_ms=45_000)
    exact.run.pool_health_sweep.run_once(exact.clock.now_ms(), 10)
    for asked in ({}, {"pool": POOL}, {"pool": "other"}):
        found = shares(exact, **asked)
        assert {name for name, each in found.items() if each.starved} == {"low"}
    worker_pools.happened(exact, "low", started=1)
    exact.run.pool_health_sweep.run_once(exact.clock.now_ms(), 10)
    assert not shares(exact)["low"].starved


def test_a_pool_s_queues_come_in_pages_and_their_parts_are_of_all(exact: World) -> None:
    three(exact)
    first = stats(exact, pool=POOL, limit=2)
    assert [(each.name, each.ratio) for each in first.queues] == [
        ("critical", 0.6),
        ("default", 0.3),
    ]
    assert first.next_cursor == "default"
    second = stats(exact, pool=POOL, limit=2, cursor=first.next_cursor)
    assert [(each.name, each.ratio) for each in second.queues] == [("low", 0.1)]
    assert second.next_cursor is None
    assert [each.name for each in stats(exact, pool=POOL, limit=2, skip=1).queues] == [
        "default", "low",
    ]  # fmt: skip
    assert stats(exact, pool=POOL, limit=2, skip=5).queues == []


def test_all_queues_come_in_pages_that_join(exact: World) -> None:
    names = [f"q{number:02d}" for number in range(25)]
    for name in names:
        exact.run.queues.resume(name)
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = stats(exact, limit=10, cursor=cursor)
        found += [each.name for each in page.queues]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == names
    assert [each.name for each in stats(exact, limit=3, skip=5).queues] == names[5:8]


def test_what_cannot_be_asked_for(exact: World) -> None:
    with pytest.raises(NotFound):
        stats(exact, pool="nobody")
    for asked in ({"cursor": "No"}, {"cursor": "No", "pool": POOL}):
        with pytest.raises(InvalidRequest) as refused:
            stats(exact, **asked)
        assert refused.value.field == "cursor"


# --- pools ------------------------------------------------------------------------------------


def worker(world: World, worker_id: str, pool: str | None, *, ago_ms: int = 0) -> dict[str, Any]:
    pk, sk = worker_store.key_of(worker_id)
    seen = world.clock.now_ms() - ago_ms
    item = {"pk": pk, "sk": sk, "seen": seen, "first": seen, "ttl": seen // 1000 + 86_400}
    return item if pool is None else {**item, "pool": pool}


def workers(world: World, *found: dict[str, Any]) -> None:
    world.run.table.write_many(found)


def statuses(world: World, *names: str) -> list[PoolStatus]:
    return world.run.scheduling.statuses([world.run.pools.get(name) for name in names])


def active_workers(world: World, *names: str) -> list[int]:
    return [each.active_workers for each in statuses(world, *names)]


@pytest.mark.requirement("FS-22")
def test_workers_that_were_heard_of_lately_count(world: World) -> None:
    """Those whose record names the pool, or none for the pool `default`."""
    for name in (POOL, "default", "empty"):
        worker_pools.make(world, name, ["critical"])
    workers(
        world,
        worker(world, "a", POOL),
        worker(world, "b", POOL, ago_ms=DEAD_AFTER_MS),
        worker(world, "late", POOL, ago_ms=DEAD_AFTER_MS + 1),
        worker(world, "c", None),
        worker(world, "d", "unheard-of"),
    )
    assert active_workers(world, POOL, "default", "empty") == [2, 1, 0]
    assert world.run.scheduling.statuses([]) == []


@pytest.mark.requirement("FS-22")
def test_active_jobs_are_exact_where_there_is_a_limit(world: World) -> None:
    """As the semaphore counts them; else as the projection has them, never below 0."""
    worker_pools.make(world, POOL, ["critical"], concurrency=5)
    worker_pools.make(world, "free", ["critical"])
    world.run.table.update(Update(keys.counter(f":{POOL}"), keys.SEMAPHORE, set={"n": 3}))
    for name in (POOL, "free"):
        world.run.table.update(Update(keys.stats(f"@{name}"), keys.NOW, set={"active": 7}))
    assert [each.active_jobs for each in statuses(world, POOL, "free")] == [3, 7]
    world.run.table.update(Update(keys.stats("@free"), keys.NOW, set={"active": -2}))
    assert [each.active_jobs for each in statuses(world, "free")] == [0]


def calls(world: World, *names: str) -> int:
    pools = [world.run.pools.get(name) for name in names]
    world.run.table.meter.reset()
    world.run.scheduling.statuses(pools)
    return len(world.run.table.meter.calls)


@pytest.mark.exhaustive
@pytest.mark.requirement("FS-22")
def test_of_many_workers_the_sweep_s_count_is_told(exact: World) -> None:
    """Ten thousand of them cost fewer calls than a few, and show up in a minute."""
    for name in (POOL, "default", "other"):
        worker_pools.make(exact, name, ["critical"])
    workers(exact, *(worker(exact, f"w{n}", POOL) for n in range(40)))
    exact.run.metrics_sweep.run_once(exact.clock.now_ms(), 100)
    few = calls(exact, POOL, "default", "other")
    # How they stand, the totals, and at most one call for each partition of workers.
    assert few == 2 + worker_store.SHARDS
    assert exact.run.table.get(keys.stats(f"@{POOL}"), keys.GAUGE) is None

    more = [worker(exact, f"x{n}", POOL if n % 4 else "other") for n in range(9_960)]
    workers(exact, *more)
    # Before the sweep has seen them, reading ends all the same.
    assert calls(exact, POOL, "default", "other") <= few
    assert exact.run.table.meter.read_units < 400
    exact.run.metrics_sweep.run_once(exact.clock.now_ms(), 100)
    assert active_workers(exact, POOL, "default", "other") == [40 + 7_470, 0, 2_490]
    assert calls(exact, POOL, "default", "other") == 2
    # A pool whose workers are all gone is not shown with those it had.
    exact.clock.advance(MINUTE_MS)
    workers(exact, *(worker(exact, f"x{n}", POOL) for n in range(9_960)))
    exact.run.metrics_sweep.run_once(exact.clock.now_ms(), 100)
    assert active_workers(exact, POOL, "other") == [9_960, 0]


def test_a_thousand_and_one_are_too_many_to_be_counted(exact: World) -> None:
    worker_pools.make(exact, POOL, ["critical"])
    workers(exact, *(worker(exact, f"w{n}", POOL) for n in range(MAX_COUNTED_WORKERS)))
    assert active_workers(exact, POOL) == [MAX_COUNTED_WORKERS]
    exact.run.metrics_sweep.run_once(exact.clock.now_ms(), 100)
    assert exact.run.table.get(keys.stats(f"@{POOL}"), keys.GAUGE) is None
    workers(exact, worker(exact, "more", POOL))
    exact.run.metrics_sweep.run_once(exact.clock.now_ms(), 100)
    saved = exact.run.table.get(keys.stats(f"@{POOL}"), keys.GAUGE)
    assert saved is not None
    assert saved["workers"] == MAX_COUNTED_WORKERS + 1


# --- what it costs ----------------------------------------------------------------------------


def cost(world: World, **asked: Any) -> tuple[int, float]:
    meter = world.run.table.meter
    meter.reset()
    stats(world, **asked)
    assert meter.write_units == 0
    return len(meter.calls), meter.read_units


def test_a_thousand_queues_cost_no_more_than_a_page(exact: World) -> None:
    names = [f"q{number:04d}" for number in range(1_000)]
    exact.run.table.write_many(
        [
            *({"pk": keys.QUEUES, "sk": name} for name in names),
            *({"pk": keys.queue(name), "sk": keys.RECORD, "state": "active"} for name in names),
        ]
    )
    # The names, whether there is one pool alone, five items of each queue, and the list of shards.
    calls, units = cost(exact, limit=100)
    assert calls == 2 + 6
    assert units <= 5 * 100
    assert cost(exact, limit=50)[0] == 2 + 3
    worker_pools.make(exact, POOL, names[:48])
    # Two more for pools: what they are, and how they stand.
    assert cost(exact, limit=100)[0] == 2 + 6 + 2
    assert cost(exact, limit=100, pool=POOL)[0] == 1 + 3 + 1


@pytest.mark.parametrize("jobs", [1, 10_000_000])
def test_a_statistic_costs_the_same_however_many_jobs_there_are(exact: World, jobs: int) -> None:
    worker_pools.make(exact, POOL, ["critical"], concurrency=3)
    worker_pools.counted(exact, "critical", available=jobs, active=jobs, t_started=jobs)
    worker_pools.happened(exact, "critical", started=jobs, waits=jobs, wait_ms=jobs)
    calls, units = cost(exact, pool=POOL)
    assert calls == 3
    assert units <= 9


@pytest.mark.requirement("FS-26")
def test_metrics_of_pools(exact: World) -> None:
    """How much of its limit each uses, and how what was given was shared out."""
    three(exact)
    worker_pools.make(exact, "limited", ["aside"], concurrency=4)
    exact.run.table.update(Update(keys.counter(":limited"), keys.SEMAPHORE, set={"n": 1}))
    general, limited = exact.run.stats.metrics().pools
    assert (general.name, general.utilization) == (POOL, None)
    assert general.ratios == {"critical": 0.6, "default": 0.3, "low": 0.1}
    assert (limited.utilization, limited.ratios) == (0.25, {"aside": 1.0})
    exact.run.table.meter.reset()
    exact.run.stats.metrics()
    # Names of queues, totals, keys of limits, pools; then the pools, their queues, and how they
    # stand. The queues' own items are read as they are asked for.
    assert len(exact.run.table.meter.calls) == 4 + 3


@pytest.mark.exhaustive
def test_metrics_read_so_many_pools_and_queues(exact: World) -> None:
    for number in range(12):
        queues = [f"p{number:02d}-{n}" for n in range(48)]
        worker_pools.make(exact, f"pool-{number:02d}", queues)
    exact.run.table.meter.reset()
    found = exact.run.stats.metrics().pools
    assert len(found) == stats_service.MAX_METRIC_POOL_QUEUES // 48
    # 480 queues, of which five items each are read; and the list of shards.
    assert len(exact.run.table.meter.calls) == 4 + 2 + 25
