"""What actors do one after the other, as scenarios put it together."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from tests.simulation.actors import Operator, Worker
from tests.simulation.world import Acts, World

RETRY = {"max_attempts": 2}


def some(chance: random.Random, acts: Sequence[Callable[[], None]], count: int) -> Acts:
    """So many of these, by chance."""
    return [chance.choice(acts) for _ in range(count)]


def fetched(world: World, more: Acts) -> list[Acts]:
    """Two workers take what is there, while somebody sees to it."""
    made: list[Acts] = []
    for name in ("w1", "w2"):
        worker = Worker(world, name)
        acts: Acts = [partial(worker.fetch, 2), worker.fetch, worker.ack, worker.any, worker.any]
        made.append([worker.does(act) for act in some(world.chance, acts, 6)])
    hand = Operator(world, "o")
    acts = [hand.wait, hand.wait, hand.sweep, hand.reconcile, hand.cancel, hand.look, *more]
    return [*made, [hand.does(act) for act in some(world.chance, acts, 6)]]
