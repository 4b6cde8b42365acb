"""Rings: who is told of new jobs, and what that costs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ojs.domain.realtime import Listener, group_of
from ojs.services.realtime import rings
from ojs.store.realtime.listeners import MOST_COUNTED
from tests.store.conftest import World
from tests.store.doubles import Broken
from tests.store.ringing import QUEUE, Hub, in_memory, listens
from tests.store.spending import Spent, spending

OTHERS = ("mail", "sms")


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def world(hub: Hub) -> World:
    made = in_memory(hub)
    made.push(queue=QUEUE)
    made.run.flush()
    return made


@pytest.fixture
def counted(exact: World, hub: Hub) -> World:
    """The same on a table whose units are DynamoDB's."""
    exact.connections = hub
    exact.run = exact.another()
    exact.push(queue=QUEUE)
    exact.run.flush()
    return exact


def pushed(world: World, count: int = 1, queue: str = QUEUE, **options: Any) -> Spent:
    """What the rings of a push cost."""
    for _ in range(count):
        world.push(queue=queue, **options)
    with spending(world) as spent:
        world.run.flush()
    return spent


def test_without_realtime_nothing_is_noted() -> None:
    world = in_memory(None)
    world.push(queue=QUEUE)
    assert world.run.rings is None
    with spending(world) as spent:
        world.run.flush()
    assert spent == Spent()


def test_a_push_costs_nothing_more_while_nobody_listens(counted: World, hub: Hub) -> None:
    """But one query of the directory in ten seconds."""
    counted.clock.advance(rings.REMEMBERED_MS)
    assert pushed(counted) == Spent(calls=1, reads=0.5)
    for _ in range(9):
        counted.clock.advance(1_000)
        assert pushed(counted) == Spent()
    assert hub.tried == 0


def test_a_ring_costs_one_call_and_one_message(counted: World, hub: Hub) -> None:
    listens(counted, "c1", "c2", "c3")
    pushed(counted)
    hub.sent.clear()
    assert pushed(counted) == Spent(calls=1, reads=1.0)
    assert [text for _, text in hub.sent] == [{"type": "ring", "queue": QUEUE}]


def test_a_ring_of_a_large_group_costs_as_much(counted: World, hub: Hub) -> None:
    listens(counted, *(f"{n:02x}c" for n in range(256)))
    for _ in range(3):
        pushed(counted)
    spent = [pushed(counted) for _ in range(100)]
    # The end of the partition is met seldom.
    assert Counter(each.calls for each in spent)[1] >= 90
    assert max(each.reads for each in spent) <= 2.0
    # Nobody is preferred.
    assert len(set(hub.rung())) > 60


def test_a_group_that_shrinks_is_rung_to_the_last(world: World, hub: Hub) -> None:
    names = [f"{n:02x}c" for n in range(2 * MOST_COUNTED)]
    listens(world, *names)
    pushed(world)
    for name in names[1:]:
        world.run.stores.listeners.remove(group_of([QUEUE]), name)
    for _ in range(20):
        hub.sent.clear()
        pushed(world)
        assert hub.rung() == [names[0]]


@pytest.mark.parametrize(("jobs", "rung"), [(1, 1), (3, 3), (4, 4), (50, 4)])
def test_as_many_are_rung_as_there_are_jobs_up_to_four(
    world: World, hub: Hub, jobs: int, rung: int
) -> None:
    listens(world, *"abcdefgh")
    pushed(world, jobs)
    assert len(hub.rung()) == len(set(hub.rung())) == rung


def test_those_whose_connections_ended_are_no_longer_rung(world: World, hub: Hub) -> None:
    listens(world, "a", "b", "c")
    hub.gone = {"a", "b"}
    for _ in range(8):
        pushed(world)
    assert set(hub.rung()) == {"c"}
    left = world.run.stores.listeners.select(group_of([QUEUE]), 9, now_ms=0)
    assert [listener.connection for listener in left] == ["c"]


def test_at_most_three_ended_connections_are_met(world: World, hub: Hub) -> None:
    listens(world, *"abcdef")
    hub.gone = set("abcdef")
    pushed(world)
    assert (hub.tried, hub.sent) == (4, [])


def test_a_connection_past_its_end_is_not_rung(world: World, hub: Hub) -> None:
    world.run.stores.listeners.add(
        group_of([QUEUE]), Listener("old", None, world.clock.now_ms() + 1_000)
    )
    listens(world)
    world.clock.advance(1_000)
    pushed(world)
    assert hub.tried == 0


def test_after_three_failures_a_container_pauses(world: World, hub: Hub) -> None:
    listens(world, "a")
    hub.failing = True
    for _ in range(3):
        pushed(world)
    assert hub.tried == 3
    hub.failing = False
    assert pushed(world) == Spent()
    world.clock.advance(9_999)
    assert pushed(world) == Spent()
    world.clock.advance(1)
    pushed(world)
    assert hub.rung() == ["a"]


def test_failures_between_successes_pause_nothing(world: World, hub: Hub) -> None:
    listens(world, "a")
    for failing in (True, True, False, True, True, False):
        hub.failing = failing
        pushed(world)
    assert hub.rung() == ["a", "a"]


def test_workers_of_several_queues_are_rung_for_each(world: World, hub: Hub) -> None:
    listens(world, "one")
    listens(world, "both", queues=OTHERS)
    pushed(world, queue="sms")
    assert hub.sent == [("both", {"type": "ring", "queue": "sms"})]
    hub.sent.clear()
    pushed(world, 2)
    assert sorted(hub.rung()) == ["both", "one"]


def test_a_group_without_listeners_hides_no_other(world: World, hub: Hub) -> None:
    """All workers of the first group are busy."""
    listens(world)
    listens(world, "both", queues=OTHERS)
    for _ in range(10):
        pushed(world)
    assert hub.rung() == ["both"] * 10


def test_a_job_that_is_due_soon_sets_a_timer(world: World, hub: Hub) -> None:
    listens(world, "a")
    at_ms = world.clock.now_ms() + 60_000
    pushed(world, scheduled_at="+PT60S")
    assert hub.sent == [("a", {"type": "ring", "queue": QUEUE, "indexed": True, "at_ms": at_ms})]
    hub.sent.clear()
    assert pushed(world, scheduled_at="+PT6M") == Spent()
    assert hub.sent == []


def test_a_failed_query_fails_no_request(world: World, hub: Hub) -> None:
    listens(world, "a")
    world.push(queue=QUEUE)
    client: Any = Broken(world.client, "query", 1)
    world.run.table.client = client
    world.run.flush()
    assert hub.tried == 0


@pytest.mark.parametrize("act", ["resume", "retry", "sweep", "permit"])
def test_whatever_makes_a_job_available_rings(world: World, hub: Hub, act: str) -> None:
    run = world.run
    if act == "permit":
        run.queues.configure(QUEUE, {"concurrency": 1})
    if act == "sweep":
        world.push(queue=QUEUE, scheduled_at="+PT10M")
    world.push(queue=QUEUE)
    (job,) = world.fetch(QUEUE)
    if act == "resume":
        run.queues.pause(QUEUE)
    run.flush()
    listens(world, "a")
    match act:
        case "resume":
            run.queues.resume(QUEUE)
        case "retry":
            run.finish.nack(job.id, error={"type": "E", "message": "m"})
        case "sweep":
            world.clock.advance(600_000)
            world.sweep()
            hub.sent.clear()
            listens(world, "a")
        case _:
            run.finish.ack(job.id)
    run.flush()
    assert hub.rung()[:1] == ["a"]
