"""Pairs of operations of few steps, which are run in every order there is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ojs.store.queues.registry import QUIET_MS
from tests.simulation.actors import Operator, Producer, Worker
from tests.simulation.scenarios import play
from tests.simulation.scheduler import all_ways
from tests.simulation.world import Acts, World


def two_fetches(world: World) -> list[Acts]:
    """Of one job."""
    Producer(world, "p").push(large=False)
    workers = [Worker(world, name) for name in ("w1", "w2")]
    return [[worker.does(worker.fetch)] for worker in workers]


def an_ack_and_the_end_of_its_lease(world: World) -> list[Acts]:
    Producer(world, "p").push(large=False)
    worker, hand = Worker(world, "w"), Operator(world, "o")
    worker.fetch()
    world.clock.advance(3_000)
    return [[worker.does(worker.ack)], [hand.does(hand.sweep)]]


def an_ack_and_a_fetch_after_its_lease(world: World) -> list[Acts]:
    Producer(world, "p").push(large=False)
    worker, other = Worker(world, "w1"), Worker(world, "w2")
    worker.fetch()
    world.clock.advance(3_000)
    return [[worker.does(worker.ack)], [other.does(other.fetch)]]


def a_push_and_the_end_of_its_queue(world: World, strategy: str) -> list[Acts]:
    producer, hand = Producer(world, "p"), Operator(world, "o")
    world.run.queues.create("default", {})
    world.queues.add("there")
    target = "there" if strategy == "move" else None
    return [
        [producer.does(partial(producer.push, large=False))],
        [hand.does(partial(hand.end, "default", strategy, target))],
    ]


def two_fetches_of_the_last_seat(world: World) -> list[Acts]:
    world.run.pools.put("p", {"queues": ["a"], "concurrency": 1})
    world.pool = "p"
    producer = Producer(world, "p")
    for _ in range(2):
        producer.push(queue="a", large=False)
    workers = [Worker(world, name) for name in ("w1", "w2")]
    return [[worker.does(worker.fetch)] for worker in workers]


def two_pushes_for_the_last_room(world: World) -> list[Acts]:
    world.run.queues.configure("default", {"max_size": 1})
    producers = [Producer(world, name) for name in ("p1", "p2")]
    return [[producer.does(partial(producer.push, large=False))] for producer in producers]


def two_pushes_of_one_key(world: World) -> list[Acts]:
    producers = [Producer(world, name) for name in ("p1", "p2")]
    world.run.queues.create("default", {})
    unique = {"keys": ["type"], "on_conflict": "replace"}
    return [[one.does(partial(one.push, unique=unique, large=False))] for one in producers]


def two_retries_of_a_dead_letter(world: World) -> list[Acts]:
    Producer(world, "p").push(large=False, retry={"max_attempts": 1})
    worker = Worker(world, "w")
    worker.fetch()
    worker.nack()
    hands = [Operator(world, name) for name in ("o1", "o2")]
    return [[hand.does(hand.retry)] for hand in hands]


def a_cancel_and_a_fetch(world: World) -> list[Acts]:
    Producer(world, "p").push(large=False)
    worker, hand = Worker(world, "w"), Operator(world, "o")
    return [[worker.does(worker.fetch)], [hand.does(hand.cancel)]]


def a_commit_and_the_sweep_that_gives_its_batch_up(world: World) -> list[Acts]:
    world.run.queues.create("default", {})
    producer, hand = Producer(world, "p"), Operator(world, "o")

    def late() -> None:
        world.pass_time(2_000)
        hand.sweep()

    return [[producer.does(partial(producer.push, 4, large=False))], [hand.does(late)]]


def a_report_and_the_next_run(world: World) -> list[Acts]:
    """Of two workers; the first one's lease may end before its report is stored."""
    Producer(world, "p").push(large=False)
    worker, other = Worker(world, "w1"), Worker(world, "w2")
    worker.fetch(1, 1_000)

    def late() -> None:
        world.pass_time(1_001)
        other.fetch()
        other.report()

    return [[worker.does(worker.report)], [other.does(late)]]


def a_change_and_the_sweep_that_marks_its_queue(world: World) -> list[Acts]:
    """The sweep need not read the record of the queue any more, unless it changes."""
    world.run.queues.create("default", {})
    world.clock.advance(QUIET_MS)
    hand, sweep = Operator(world, "o"), Operator(world, "s")
    change = partial(hand.configure, {"concurrency": 1})
    return [[hand.does(change)], [sweep.does(sweep.rest)]]


SMALL: dict[str, Callable[[World], list[Acts]]] = {
    "two fetches": two_fetches,
    "an ack and the end of its lease": an_ack_and_the_end_of_its_lease,
    "an ack and a fetch after its lease": an_ack_and_a_fetch_after_its_lease,
    "two fetches of the last seat": two_fetches_of_the_last_seat,
    "two pushes for the last room": two_pushes_for_the_last_room,
    "two pushes of one key": two_pushes_of_one_key,
    "two retries of a dead letter": two_retries_of_a_dead_letter,
    "a cancel and a fetch": a_cancel_and_a_fetch,
    "a report and the next run": a_report_and_the_next_run,
    "a change and the mark of its queue": a_change_and_the_sweep_that_marks_its_queue,
    "a commit and the sweep": a_commit_and_the_sweep_that_gives_its_batch_up,
    "a push and the end of its queue, discard": partial(
        a_push_and_the_end_of_its_queue, strategy="discard"
    ),
    "a push and the end of its queue, move": partial(
        a_push_and_the_end_of_its_queue, strategy="move"
    ),
    "a push and the end of its queue, reject": partial(
        a_push_and_the_end_of_its_queue, strategy="reject"
    ),
}
MOST = 1_000
# Of those with too many steps for every order: the orders in which nobody is stopped more often.
SWITCHES = {
    "two fetches of the last seat": 3,
    "a commit and the sweep": 3,
    "a change and the mark of its queue": 2,
    "a push and the end of its queue, move": 4,
}
# Those of seconds.
LONG = {
    "a report and the next run",
    "two pushes for the last room",
    *SWITCHES,
    "two retries of a dead letter",
    "an ack and the end of its lease",
    "an ack and a fetch after its lease",
    "two fetches",
    "two pushes of one key",
    "a push and the end of its queue, discard",
    "a push and the end of its queue, reject",
}


def every_order(small: str) -> list[tuple[int, ...]]:
    """Run it in every order; which these were. Raises what a run finds wrong."""

    def once(choose: Any) -> None:
        world = World(1)
        # So short that a commit and the sweep can meet, which is the one thing the mark is for.
        play(world, SMALL[small], choose, staging_grace_ms=2_000)

    return [tuple(way) for way in all_ways(once, most=MOST, switches=SWITCHES.get(small))]
