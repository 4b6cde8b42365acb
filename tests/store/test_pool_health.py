"""The look at pools: who starves, who is overloaded, told once; bounded; twice at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.errors import BackendUnavailable
from ojs.domain.pool.pool import Pool
from ojs.domain.pool.statistics import PoolAlerts, Starved
from ojs.domain.stats import MINUTE_MS
from ojs.services.pools.health_sweep import PoolHealthReport, PoolHealthSweep
from ojs.store.derived import pool_health
from ojs.store.derived import statistics as stats_store
from ojs.store.derived.pool_health import PoolHealthStore
from ojs.store.permits.throttle_state import ThrottleStates
from ojs.store.table import keys
from ojs.store.table.table import Update
from tests.store import worker_pools

if TYPE_CHECKING:
    from tests.store.conftest import World

POOL = "general"


def look(world: World, limit: int = 100) -> PoolHealthReport:
    return world.run.pool_health_sweep.run_once(world.clock.now_ms(), limit)


def seen(world: World, pool: str = POOL) -> dict[str, Any]:
    return world.run.table.get(keys.pool(pool), keys.ALERTS) or {}


def starving(world: World, **more: Any) -> None:
    """A pool with a queue that waits for long, and one that does not."""
    worker_pools.make(world, POOL, ["critical", "low"], **more)
    worker_pools.counted(world, "critical", available=5, oldest_ago_ms=20_000)
    worker_pools.counted(world, "low", available=9, oldest_ago_ms=45_000)


@pytest.mark.requirement("FS-25")
def test_a_queue_that_is_given_nothing_is_starved(world: World) -> None:
    """Longer than the rotation interval, which is 30 s; written once until it is over."""
    starving(world)
    now_ms = world.clock.now_ms()
    assert look(world).counts == {"pools": 1, "starved": 1}
    found = seen(world)
    assert pool_health.alerts_from(found).starved == {"low": Starved(now_ms - 45_000, 9)}
    assert look(world).counts == {"pools": 1}
    assert seen(world) == found
    worker_pools.happened(world, "low", started=1)
    assert look(world).counts == {"pools": 1, "over": 1}
    assert seen(world) == {}


@pytest.mark.parametrize("interval", ["PT10S", "PT40S", "PT50S"])
@pytest.mark.parametrize("enabled", [True, False])
def test_the_interval_is_the_pool_s_whether_it_is_enforced_or_not(
    exact: World, interval: str, enabled: bool
) -> None:
    prevention = {"enabled": enabled, "rotation_interval": interval}
    starving(exact, starvation_prevention=prevention)
    starved = {"PT10S": 2, "PT40S": 1, "PT50S": 0}[interval]
    assert look(exact).counts.get("starved", 0) == starved


def test_a_queue_that_was_given_something_lately_is_not(exact: World) -> None:
    """Whenever that was within the interval, also when that is longer than what is read first."""
    starving(exact, starvation_prevention={"rotation_interval": "PT10M"})
    worker_pools.counted(exact, "low", available=9, oldest_ago_ms=3_600_000)
    worker_pools.happened(exact, "low", 8 * MINUTE_MS, started=1)
    assert "starved" not in look(exact).counts
    exact.clock.advance(2 * MINUTE_MS)
    assert "starved" not in look(exact).counts
    exact.clock.advance(MINUTE_MS)
    now_ms = exact.clock.now_ms()
    assert look(exact).counts["starved"] == 1
    # The minute in which it was given something last is over for so long.
    (found,) = pool_health.alerts_from(seen(exact)).starved.values()
    assert 600_000 < now_ms - found.since_ms <= 660_000


def test_a_queue_without_jobs_or_without_age_is_not(exact: World) -> None:
    starving(exact)
    worker_pools.counted(exact, "low", available=0, active=9, oldest_ago_ms=90_000)
    assert "starved" not in look(exact).counts
    worker_pools.counted(exact, "low", available=9)
    exact.run.table.delete(keys.stats("low"), keys.GAUGE)
    assert "starved" not in look(exact).counts


def test_a_queue_that_hands_out_nothing_is_not(exact: World) -> None:
    """Paused, being deleted, or full by its own limit: that is what somebody wanted."""
    starving(exact)
    exact.run.queues.pause("low")
    assert "starved" not in look(exact).counts
    exact.run.queues.resume("low")
    exact.run.queues.configure("low", {"concurrency": 3})
    worker_pools.counted(exact, "low", available=9, active=3, oldest_ago_ms=45_000)
    assert "starved" not in look(exact).counts
    worker_pools.counted(exact, "low", available=9, active=2, oldest_ago_ms=45_000)
    assert look(exact).counts["starved"] == 1
    # Being deleted: a pool's queue cannot be, but what was begun before the pool had it goes on.
    exact.run.table.update(Update(keys.queue("low"), keys.RECORD, set={"state": "draining"}))
    assert look(exact).counts == {"pools": 1, "over": 1}


def test_a_queue_that_its_rate_holds_back_is_not(exact: World) -> None:
    starving(exact)
    exact.run.queues.configure("low", {"rate_limit": {"limit": 1, "period": "PT1H"}})
    for number in range(2):
        exact.push(number, queue="low")
    assert len(exact.fetch("low")) == 1
    assert exact.fetch("low") == []
    worker_pools.counted(exact, "low", available=9, oldest_ago_ms=45_000)
    assert "starved" not in look(exact).counts
    exact.run.queues.configure("low", {"rate_limit": None})
    assert look(exact).counts["starved"] == 1


def test_a_queue_in_several_pools_is_told_of_under_one(exact: World) -> None:
    starving(exact)
    worker_pools.make(exact, "other", ["low"])
    worker_pools.make(exact, "another", ["low"])
    assert look(exact).counts == {"pools": 3, "starved": 1}
    assert seen(exact, "another")
    assert not seen(exact)
    # The parts of a queue are told of there, too.
    ratios = {pool.name: list(pool.ratios) for pool in look(exact).pools}
    assert ratios == {"another": ["low"], "general": ["critical"], "other": []}


@pytest.mark.requirement("FS-25")
def test_a_pool_that_runs_all_it_may_while_others_wait_is_overloaded(world: World) -> None:
    """By the places that running jobs take, which are exact."""
    worker_pools.make(world, POOL, ["critical", "low"], concurrency=20)
    slots = (keys.counter(f":{POOL}"), keys.SEMAPHORE)
    world.run.table.update(Update(*slots, set={"n": 19}))
    worker_pools.counted(world, "critical", available=3)
    worker_pools.counted(world, "low", available=2)
    assert look(world).counts == {"pools": 1}
    world.run.table.update(Update(*slots, set={"n": 20}))
    (pool,) = look(world).pools
    assert (pool.name, pool.utilization) == (POOL, 1.0)
    found = seen(world)
    assert (found["active"], found["waiting"]) == (20, 5)
    world.clock.advance(MINUTE_MS)
    assert look(world).counts == {"pools": 1}
    assert seen(world) == found
    # Nothing waits any more; what is paused does not wait.
    worker_pools.counted(world, "critical", available=0)
    world.run.queues.pause("low")
    assert look(world).counts == {"pools": 1, "over": 1}
    assert seen(world) == {}


def test_a_pool_without_a_limit_is_never_overloaded(exact: World) -> None:
    worker_pools.make(exact, POOL, ["critical"])
    worker_pools.counted(exact, "critical", available=3)
    exact.run.table.update(Update(keys.stats(f"@{POOL}"), keys.NOW, set={"active": 10_000}))
    assert look(exact).counts == {"pools": 1}
    (pool,) = look(exact).pools
    assert pool.utilization is None


def test_what_was_wrong_with_a_pool_that_is_gone_is_not_this_one_s(exact: World) -> None:
    starving(exact)
    look(exact)
    exact.run.pools.delete(POOL)
    exact.clock.advance(1_000)
    worker_pools.make(exact, POOL, ["critical", "low"])
    assert look(exact).counts["starved"] == 1


def test_what_goes_on_for_days_stays_known(exact: World) -> None:
    starving(exact)
    worker_pools.counted(exact, "critical", available=0)
    look(exact)
    before = seen(exact)
    exact.clock.advance(pool_health.KEPT_S * 1_000 // 2)
    assert look(exact).counts == {"pools": 1}
    after = seen(exact)
    assert after["ttl"] > before["ttl"]
    assert after["starved"] == before["starved"]


# --- bounded, and safe ------------------------------------------------------------------------


def test_two_looks_at_once_tell_once(exact: World) -> None:
    """Both saw the same, one writes; the other's word is dropped, and nothing is lost."""
    starving(exact)
    first, second = exact.run, exact.another()
    save = PoolHealthStore.save_alerts
    raced: list[PoolHealthReport] = []

    def meanwhile(self: PoolHealthStore, name: str, before: PoolAlerts, after: PoolAlerts) -> bool:
        if not raced:
            raced.append(PoolHealthReport({}))
            raced[0] = second.pool_health_sweep.run_once(exact.clock.now_ms(), 10)
        return save(self, name, before, after)

    with mock.patch.object(PoolHealthStore, "save_alerts", meanwhile):
        late = first.pool_health_sweep.run_once(exact.clock.now_ms(), 10)
    assert raced[0].counts == {"pools": 1, "starved": 1}
    assert late.counts == {"pools": 1, "raced": 1}
    # The same when it ends.
    worker_pools.happened(exact, "low", started=1)
    raced.clear()
    with mock.patch.object(PoolHealthStore, "save_alerts", meanwhile):
        late = first.pool_health_sweep.run_once(exact.clock.now_ms(), 10)
    assert (raced[0].counts, late.counts) == ({"pools": 1, "over": 1}, {"pools": 1, "raced": 1})
    assert seen(exact) == {}


def test_a_pool_that_cannot_be_written_does_not_hold_up_the_others(exact: World) -> None:
    for name in ("a", "b"):
        worker_pools.make(exact, name, [f"{name}-low"])
        worker_pools.counted(exact, f"{name}-low", available=1, oldest_ago_ms=45_000)
    save = PoolHealthStore.save_alerts

    def fails(self: PoolHealthStore, name: str, before: PoolAlerts, after: PoolAlerts) -> bool:
        if name == "a":
            raise BackendUnavailable("busy")
        return save(self, name, before, after)

    with mock.patch.object(PoolHealthStore, "save_alerts", fails):
        assert look(exact).counts == {"pools": 2, "starved": 1, "failed": 1}
    assert look(exact).counts == {"pools": 2, "starved": 1}


def calls(world: World) -> int:
    world.run.table.meter.reset()
    look(world)
    return len(world.run.table.meter.calls)


@pytest.mark.parametrize("jobs", [10, 10_000_000])
def test_it_costs_the_same_however_many_jobs_there_are(exact: World, jobs: int) -> None:
    """The names of the pools, the pools, five items of each queue (a hundred a call), and how the
    pools stand; then a write where something begins. No unit more for more jobs.
    """
    queues = [f"q{number:02d}" for number in range(48)]
    worker_pools.make(exact, POOL, queues, concurrency=5)
    for queue in queues:
        worker_pools.counted(exact, queue, available=jobs, active=jobs, oldest_ago_ms=45_000)
        worker_pools.happened(exact, queue, started=jobs)
    exact.run.table.update(Update(keys.counter(f":{POOL}"), keys.SEMAPHORE, set={"n": 5}))
    assert calls(exact) == 1 + 1 + 3 + 1 + 1
    assert calls(exact) == 1 + 1 + 3 + 1
    assert exact.run.table.meter.read_units <= 5 * 48
    assert exact.run.table.meter.write_units == 0


def test_queues_that_begin_to_starve_cost_a_call_each(exact: World) -> None:
    queues = [f"q{number:02d}" for number in range(48)]
    worker_pools.make(exact, POOL, queues)
    for queue in queues:
        worker_pools.counted(exact, queue, available=1, oldest_ago_ms=45_000)
    # The minutes of each: what shards have of them, and the queue's own. And one call to see that
    # there is no maintenance.
    assert calls(exact) == 6 + 2 * 48 + 1 + 1
    assert calls(exact) == 6


def test_small_pools_are_looked_at_together(exact: World) -> None:
    for number in range(20):
        worker_pools.make(exact, f"pool-{number:02d}", [f"a{number}", f"b{number}"])
    assert calls(exact) == 1 + 1 + 3 + 1


def test_a_run_looks_at_so_many_pools_and_the_next_at_others(exact: World) -> None:
    for number in range(5):
        worker_pools.make(exact, f"pool-{number}", [f"q{number}"])
    starts = iter((0, 3))
    table = exact.run.table
    alerts = PoolHealthSweep(
        sweep_queues=exact.run.sweep_queues,
        pools=exact.run.stores.pools,
        pool_health=PoolHealthStore(table),
        statistics=stats_store.StatisticsStore(table),
        throttle_states=ThrottleStates(table),
        maintenance=exact.run.maintenance,
        choose=lambda _: next(starts),
    )
    names = [[pool.name for pool in alerts.run_once(1, 3).pools] for _ in range(2)]
    assert names == [["pool-0", "pool-1", "pool-2"], ["pool-0", "pool-3", "pool-4"]]


def test_it_ends_when_time_is_up(exact: World) -> None:
    starving(exact)
    found = exact.run.pool_health_sweep.run_once(exact.clock.now_ms(), 10, lambda: False)
    assert (found.counts, found.pools) == ({"more": 1}, [])
    assert seen(exact) == {}


def test_without_pools_it_is_one_call(exact: World) -> None:
    exact.push()
    assert calls(exact) == 1
    assert look(exact).counts == {}


def test_a_watch_is_read_as_it_was_written(exact: World) -> None:
    pool = Pool(POOL, ("a",), created_ms=7)
    store = PoolHealthStore(exact.run.table)
    alerts = PoolAlerts(7, {"a": Starved(1, 2)}, None, at_ms=9)
    assert store.save_alerts(POOL, PoolAlerts(7), alerts)
    assert store.read([pool])[POOL].alerts == PoolAlerts(
        7, {"a": Starved(1, 2)}, None, at_ms=9, rev=1
    )
    assert not store.save_alerts(POOL, PoolAlerts(7), alerts)
    assert not store.save_alerts(POOL, PoolAlerts(7, rev=5), PoolAlerts(7))
