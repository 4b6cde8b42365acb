"""Counters, events and metrics of pools from a real stream, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

from ojs.store.table import keys
from tests.store import worker_pools
from tests.store.streams import Projected, Stream, lambda_form

if TYPE_CHECKING:
    from tests.store.conftest import World
    from tests.store.streams import Record

Worlds = Callable[[], AbstractContextManager["World"]]
TOTAL, WAIT = "ojs.scheduling.dispatch_total", "ojs.scheduling.queue_wait_duration"


def records(world: World, *pools: str | None, jobs: int = 10, done: bool = True) -> list[Record]:
    """So many jobs each handed out to these pools, and done or not, of one queue."""
    stream = Stream(world.client, world.table)
    for pool in pools:
        for number in range(jobs):
            world.push(number, queue="mail")
        world.clock.advance(2_000)
        for job in worker_pools.claim(world, "mail", pool, jobs)[: jobs if done else 0]:
            world.run.finish.ack(job.id, worker_id=job.worker_id)
    found = stream.take()
    # Written in one second: each second of the engine's clock would have its own marks.
    for record in found:
        first = found[0]["dynamodb"]["ApproximateCreationDateTime"]
        record["dynamodb"]["ApproximateCreationDateTime"] = first
    return found


@pytest.mark.requirement("FS-26")
def test_each_dispatch_is_counted_once_whatever_comes_twice(streamed: Worlds) -> None:
    """By queue and pool; from records that come twice, split, and in both forms."""
    with streamed() as world:
        found = records(world, "general", "other", None)
        running = [world.push(queue="mail") for _ in range(3)]
        worker_pools.claim(world, "mail", "general", 3)
        found += Stream(world.client, world.table).take()[len(found) :]
        projected = Projected(world.client, world.table, world.clock)
        assert projected.run(found[:40]) == []
        assert projected.another().run([lambda_form(one) for one in found]) == []
        day = projected.stats("mail", keys.day("2026-05-28"))
        assert (day["s_general"], day["s_other"], day["started"]) == (13, 10, 33)
        assert projected.stats("@general") == {"active": len(running)}
        assert projected.stats("@other") == {}
        assert projected.metrics.sums[("queue", "mail"), ("pool", "general")][TOTAL] == 13
        assert projected.metrics.sums[("queue", "mail"), ("pool", "other")][TOTAL] == 10
        # 20 jobs that waited for two seconds, and three that did not.
        assert projected.metrics.sums[("queue", "mail"),][WAIT] == 40
        # What came and went in one batch leaves nothing to write.
        assert [name for name in names(projected) if name[0].startswith("@")] == [
            ("@general", keys.NOW)
        ]


def names(projected: Projected) -> list[tuple[str, str]]:
    stats = keys.stats("")
    return [
        (pk.removeprefix(stats), sk) for pk, sk in projected.everything() if pk.startswith(stats)
    ]


def cost(world: World, batch: list[Record]) -> tuple[int, float]:
    """Calls and write units of one batch."""
    projected = Projected(world.client, world.table, world.clock)
    projected.store.meter.reset()
    assert projected.run(batch) == []
    return len(projected.store.meter.calls), projected.store.meter.write_units


@pytest.mark.exhaustive
def test_a_pool_costs_one_item_more_in_a_batch_and_no_pool_none(streamed: Worlds) -> None:
    """A write for each pool in the batch, however many jobs, also if they are done again in it: the
    second half of the batch may come again alone.
    """
    spent = {}
    for name, pools in (
        ("none", (None, None)), ("one", ("general", "general")), ("two", ("general", "other")),
    ):  # fmt: skip
        for done in (True, False):
            with streamed() as world:
                spent[name, done] = cost(world, records(world, *pools, done=done))
    calls, units = spent["none", False]
    # The shard noted, read, the queue noted, and the type of job that is new today; the event page.
    assert (calls, units) == (5, 10)
    assert spent["one", False] == (calls + 1, units + 1)
    assert spent["two", False] == (calls + 2, units + 2)
    assert spent["none", True] == (calls, units)
    assert spent["one", True] == (calls + 1, units + 1)
    assert spent["two", True] == (calls + 2, units + 2)


@pytest.mark.requirement("FS-25")
def test_what_operators_and_the_sweep_write_becomes_events(streamed: Worlds) -> None:
    """Each of the three events, once, on the bus too."""
    with streamed() as world:
        stream = Stream(world.client, world.table)
        worker_pools.make(world, "general", ["critical", "low"], concurrency=2)
        world.clock.advance(1_000)
        worker_pools.make(world, "general", ["critical", "low"], concurrency=2, strategy="strict")
        world.clock.advance(1_000)
        worker_pools.counted(world, "low", oldest_ago_ms=45_000, available=9)
        world.run.table.write_many([{"pk": "G|:general", "sk": keys.SEMAPHORE, "n": 2}])
        for _ in range(3):
            world.run.pool_health_sweep.run_once(world.clock.now_ms(), 100)
            world.clock.advance(60_000)
        projected = Projected(world.client, world.table, world.clock)
        found = stream.take()
        assert projected.run(found) == []
        assert projected.another().run(found) == []
        told = [e for e in projected.events() if e["type"].startswith("scheduling.")]
        told.sort(key=lambda event: str(event["time"]))
        assert [(event["type"], event["data"]) for event in told] == [
            (
                "scheduling.rebalanced",
                {
                    "pool": "general", "previous_strategy": "round-robin",
                    "new_strategy": "strict",
                },
            ),
            (
                "scheduling.queue_starved",
                {
                    "queue": "low", "duration": "PT45S", "available_count": 9, "pool": "general",
                },
            ),
            (
                "scheduling.pool_overloaded",
                {"pool": "general", "active_jobs": 2, "waiting_jobs": 9},
            ),
        ]  # fmt: skip
        assert {each.type for each in projected.bus.taken} >= {each["type"] for each in told}
        assert projected.stats("low", keys.day("2026-05-28"))["starved"] == 1
        sums = projected.metrics.sums[("queue", "low"),]
        assert sums["ojs.scheduling.starvation_events"] == 1
