"""A bounded part of the simulation, for every change. `make simulate` runs more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.simulation import scenarios
from tests.simulation.actors import Operator, Producer, Worker
from tests.simulation.run import cover, main, replay
from tests.simulation.scenarios import SCENARIOS, play
from tests.simulation.scheduler import all_ways
from tests.simulation.seeds import FOUND, FOUND_BEFORE
from tests.simulation.world import Acts, World
from tests.spread import spread

SEEDS = 30
# Of those, as many as `make test` runs.
_SEEDS_AT_FIRST = 3
_FIRST = 1_000_000


@pytest.mark.parametrize(
    "seeds", [_SEEDS_AT_FIRST, pytest.param(SEEDS, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_promise_is_broken(scenario: str, seeds: int) -> None:
    covered = cover((scenario, _FIRST + at) for at in range(seeds))
    told = [f"{what}\n    {replay(scenario, seed)}" for _, seed, what in covered.failures]
    assert not told, "\n".join(told)
    # It would be no proof if nothing went wrong, or always in the same order.
    if seeds == SEEDS:
        assert covered.faults.total() > seeds
        assert len(covered.interleavings) > seeds * 0.9


@pytest.mark.parametrize(("scenario", "seed"), [*FOUND, *FOUND_BEFORE])
def test_what_was_found_stays_mended(scenario: str, seed: int) -> None:
    scenarios.run(scenario, seed)


@pytest.mark.parametrize("scenario", spread(SCENARIOS, 4))
def test_a_seed_is_the_same_each_time(scenario: str) -> None:
    timelines: list[list[str]] = [[], []]
    outcomes = [scenarios.run(scenario, 7, timeline) for timeline in timelines]
    assert timelines[0] == timelines[1]
    assert outcomes[0] == outcomes[1]


def test_a_broken_promise_is_told_with_the_command_that_shows_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def life(_: World) -> list[Acts]:
        raise AssertionError("not kept")

    monkeypatch.setitem(SCENARIOS, "life", life)
    assert main(["--scenario", "life", "--seed", "3"]) == 1
    assert capsys.readouterr().out.endswith(
        "python -m tests.simulation.run --scenario life --seed 3\n"
    )


# --- few steps, in every order there is -----------------------------------------------------------


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


SMALL: dict[str, Callable[[World], list[Acts]]] = {
    "two fetches": two_fetches,
    "an ack and the end of its lease": an_ack_and_the_end_of_its_lease,
    "an ack and a fetch after its lease": an_ack_and_a_fetch_after_its_lease,
    "two fetches of the last seat": two_fetches_of_the_last_seat,
    "two pushes for the last room": two_pushes_for_the_last_room,
    "two pushes of one key": two_pushes_of_one_key,
    "two retries of a dead letter": two_retries_of_a_dead_letter,
    "a cancel and a fetch": a_cancel_and_a_fetch,
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
    "a push and the end of its queue, move": 4,
}
# Those of seconds.
LONG = {
    "two pushes for the last room",
    *SWITCHES,
    "two retries of a dead letter",
    "an ack and the end of its lease",
    "two fetches",
    "two pushes of one key",
    "a push and the end of its queue, discard",
    "a push and the end of its queue, reject",
}


@pytest.mark.parametrize(
    "small",
    [pytest.param(name, marks=pytest.mark.exhaustive) if name in LONG else name for name in SMALL],
)
def test_every_order_of_a_few_steps(small: str) -> None:
    def once(choose: Any) -> None:
        world = World(1)
        # So short that a commit and the sweep can meet, which is the one thing the mark is for.
        play(world, SMALL[small], choose, staging_grace_ms=2_000)

    ways = [tuple(way) for way in all_ways(once, most=MOST, switches=SWITCHES.get(small))]
    assert len(set(ways)) == len(ways) > 1
