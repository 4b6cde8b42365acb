"""Pools, and what queues know of them, whoever else is at it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import Conflict
from ojs.domain.pool import pool as domain
from ojs.domain.pool.pool import Pool
from ojs.domain.queue.queue import PoolMark, Queue
from ojs.store.queues import queues as queue_store
from ojs.store.queues.pools import PoolStore
from ojs.store.table import keys
from ojs.store.table.errors import LostRace

if TYPE_CHECKING:
    from ojs.store.table.values import Value
    from tests.store.conftest import World

FULL: dict[str, Any] = {
    "queues": ["critical", "default"],
    "concurrency": 20,
    "weights": {"critical": 5, "default": 3},
    "isolated": True,
    "starvation_prevention": {
        "enabled": True, "rotation_interval": "PT10S", "min_dispatch_ratio": 0.1,
    },
}  # fmt: skip


def store(world: World) -> PoolStore:
    return PoolStore(world.run.table, world.run.stores.registry)


def queue(world: World, name: str) -> Queue:
    """A queue as it is now, made if need be."""
    queues = queue_store.QueueStore(world.run.table, world.run.stores.registry)
    found = queues.get(name)
    return found or queues.ensure(name, now_ms=world.clock.now_ms())


def wanted(world: World, name: str = "general", **more: Any) -> Pool:
    body = {"queues": ["critical", "default"], **more}
    return replace(domain.parse(name, body), configured_ms=world.clock.now_ms())


def save(world: World, pool: Pool, before: Pool | None = None) -> Pool:
    names = dict.fromkeys((*pool.queues, *(before.queues if before else ())))
    return store(world).save(before, pool, [queue(world, name) for name in names])


def marks(world: World, *names: str) -> list[dict[str, bool]]:
    return [
        {pool: mark.isolated for pool, mark in queue(world, name).pools.items()} for name in names
    ]


@pytest.mark.requirement("FS-8")
def test_a_pool_is_read_as_it_was_stored(world: World) -> None:
    """With everything that can be told of it, and with nothing."""
    for name, body in (("full", FULL), ("bare", {"queues": ["low"]})):
        stored = save(world, wanted(world, name, **body))
        assert store(world).get(name) == stored
        assert (stored.created_ms, stored.changes) == (world.clock.now_ms(), 0)
    assert store(world).get("nobody") is None
    found = store(world).get_many(["nobody", "full", "bare"])
    assert [pool.name for pool in found] == ["full", "bare"]


@pytest.mark.requirement("FS-23")
def test_a_change_is_told_to_all_queues_that_were_or_are_in_it(world: World) -> None:
    """Those that came, those that went, and those that stay."""
    first = save(world, wanted(world))
    assert marks(world, "critical", "default", "low") == [
        {"general": False}, {"general": False}, {},
    ]  # fmt: skip
    world.clock.advance(1_000)
    second = save(world, wanted(world, queues=["default", "low"], isolated=True), first)
    assert marks(world, "critical", "default", "low") == [{}, {"general": True}, {"general": True}]
    assert (second.created_ms, second.changes) == (first.created_ms, 1)
    assert second.configured_ms == first.created_ms + 1_000
    assert second.version == first.version + 1
    assert queue(world, "low").isolated_by == "general"


def test_a_pool_that_goes_is_forgotten_by_its_queues(world: World) -> None:
    first = save(world, wanted(world, queues=["critical", "default"]))
    save(world, wanted(world, "other", queues=["default"]))
    store(world).remove(first, [queue(world, name) for name in first.queues])
    assert store(world).get("general") is None
    assert store(world).names(limit=10) == (["other"], None)
    assert marks(world, "critical", "default") == [{}, {"other": False}]


def test_pools_are_listed_in_order_of_name(world: World) -> None:
    names = [f"pool-{n}" for n in range(7)]
    for name in reversed(names):
        save(world, wanted(world, name, queues=["default"]))
    found: list[str] = []
    after: str | None = None
    while True:
        page, after = store(world).names(limit=3, after=after)
        found += page
        if after is None:
            break
    assert found == names


# --- races ------------------------------------------------------------------------------------


def test_of_two_operators_one_changes_the_pool(world: World) -> None:
    """The other is told, and has changed nothing: neither the pool nor a queue."""
    first = save(world, wanted(world))
    save(world, wanted(world, strategy="strict"), first)
    with pytest.raises(LostRace):
        save(world, wanted(world, queues=["low"], isolated=True), first)
    with pytest.raises(LostRace):
        save(world, wanted(world))
    found = store(world).get("general")
    assert found is not None
    assert (found.strategy, found.queues) == ("strict", ("critical", "default"))
    assert marks(world, "critical", "low") == [{"general": False}, {}]
    with pytest.raises(LostRace):
        store(world).remove(first, [queue(world, name) for name in first.queues])
    with pytest.raises(LostRace):
        store(world).begin_limit(first)


def test_a_pool_of_the_same_name_made_anew_is_another(world: World) -> None:
    first = save(world, wanted(world))
    store(world).remove(first, [queue(world, name) for name in first.queues])
    world.clock.advance(1)
    second = save(world, wanted(world))
    with pytest.raises(LostRace):
        save(world, wanted(world, strategy="strict"), first)
    # It counts on: what is known of the limit of the first one is older.
    assert second.version > first.version


@pytest.mark.requirement("FS-11")
def test_two_pools_that_take_a_queue_for_themselves_at_once(world: World) -> None:
    """Whoever is second sees that it was taken since it was read."""
    seen = queue(world, "payments")
    one = wanted(world, "one", queues=["payments"], isolated=True)
    other = wanted(world, "other", queues=["payments"], isolated=True)
    store(world).save(None, one, [seen])
    with pytest.raises(LostRace):
        store(world).save(None, other, [seen])
    assert store(world).get("other") is None
    assert store(world).names(limit=10) == (["one"], None)
    assert marks(world, "payments") == [{"one": True}]


@pytest.mark.parametrize("how", ["gone", "draining"])
def test_a_queue_that_is_deleted_meanwhile_is_in_no_pool(world: World, how: str) -> None:
    seen = [queue(world, name) for name in ("critical", "default")]
    if how == "draining":
        world.push(queue="default")
        world.fetch("default")
    world.run.deletion.delete("default", "drain" if how == "draining" else "discard", None)
    with pytest.raises(LostRace):
        store(world).save(None, wanted(world), seen)
    assert store(world).get("general") is None
    assert marks(world, "critical") == [{}]


def test_a_queue_that_is_in_a_pool_is_not_deleted(world: World) -> None:
    """Or else fetches of the pool would bring it back, as a queue of nobody."""
    save(world, wanted(world))
    with pytest.raises((Conflict, LostRace)):
        world.run.deletion.delete("default", "discard", None)
    assert marks(world, "default") == [{"general": False}]
    assert world.run.queues.get("default").state.value == "active"


class Lost:
    """A client on which an answer is lost: the transaction is asked for again, as a new one."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.lost = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name != "transact_write_items" or self.lost:
            return method

        def twice(**arguments: Any) -> Any:
            self.lost = True
            method(**arguments)
            return method(**{k: v for k, v in arguments.items() if k != "ClientRequestToken"})

        return twice


def test_a_change_whose_answer_was_lost_is_not_refused(exact: World) -> None:
    first = save(exact, wanted(exact))
    exact.clock.advance(1)
    client = Lost(exact.client)
    queues = [queue(exact, name) for name in ("critical", "default", "low")]
    after = wanted(exact, queues=["default", "low"], isolated=True)
    registry = exact.run.stores.registry
    again = PoolStore(exact.another(client).table, registry).save(first, after, queues)
    assert client.lost
    assert store(exact).get("general") == again
    assert again.changes == 1
    client = Lost(exact.client)
    new = wanted(exact, "new", queues=["low"])
    lost = PoolStore(exact.another(client).table, registry)
    assert lost.save(None, new, [queue(exact, "low")]).changes == 0
    assert marks(exact, "low") == [{"general": True, "new": False}]


def test_a_change_costs_two_units_for_each_item_it_touches(exact: World) -> None:
    queues = [f"q{n:02d}" for n in range(domain.MAX_POOL_QUEUES)]
    there = [queue(exact, name) for name in queues]
    meter = exact.run.table.meter
    meter.reset()
    stored = store(exact).save(None, wanted(exact, queues=queues), there)
    assert meter.calls == ["TransactWriteItems"]
    assert meter.write_units <= 2 * (2 + len(queues)) + 2
    # Nothing is written to queues that know already.
    there = [queue(exact, name) for name in queues]
    meter.reset()
    store(exact).save(stored, wanted(exact, queues=queues, strategy="strict"), there)
    assert meter.write_units <= 4


def test_what_a_queue_knows_is_read_back() -> None:
    for isolated in (True, False):
        assert PoolMark.of(PoolMark(isolated).compact()) == PoolMark(isolated)
    two = Queue("a", pools={"b": PoolMark(), "a": PoolMark(isolated=True)})
    assert two.isolated_by == "a"
    assert Queue("a", pools={"b": PoolMark()}).isolated_by is None


def test_the_sequencer_stays_when_a_pool_goes(exact: World) -> None:
    """Jobs that run give their permits back there."""
    first = save(exact, wanted(exact, concurrency=5))
    sequencer: dict[str, Value] = {
        "pk": keys.counter(first.semaphore),
        "sk": keys.SEMAPHORE,
        "n": 2,
        "turns": 7,
    }
    exact.run.table.write_many([sequencer])
    store(exact).remove(first, [queue(exact, name) for name in first.queues])
    assert exact.run.table.get(keys.counter(first.semaphore), keys.SEMAPHORE) == sequencer
