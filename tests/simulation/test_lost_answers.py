"""Each operation, with each of its answers lost, while somebody else does something; and again.

What must hold then is what the simulation always looks at: nothing acknowledged is lost or changed,
no job comes without its content, counters are exact once all is quiet, and what an answer said is
so.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import pytest

from tests.simulation.actors import Operator, Producer, Worker
from tests.simulation.faults import Plan
from tests.simulation.scenarios import play
from tests.simulation.world import Acts, World
from tests.spread import spread

READS = ("get_item", "batch_get_item", "query", "scan", "get_object", "list_objects_v2")


class Losing(Plan):
    """One of the writes of the first actor gets no answer: that try, or all of its tries."""

    def __init__(self, world: World, nth: int, *, effect: bool, tries: int) -> None:
        super().__init__(world.chance)
        self.world, self.nth, self.effect, self.tries = world, nth, effect, tries
        self.writes = self.lost = 0

    def fault(self, operation: str, *, transaction: bool) -> str | None:
        self.calls += 1
        if not self.on or self.world.scheduler.current != 0 or operation in READS:
            return None
        if 0 < self.lost < self.tries:
            # What took effect is repeated; of what did not, no try does.
            self.lost += 1
            return "unheard"
        self.writes += 1
        if self.writes != self.nth:
            return None
        self.lost = 1
        kind = "lost" if self.effect else "unheard"
        self.done[kind] += 1
        return kind

    def choose(self, alive: Sequence[int], _: int) -> int:
        """The first actor, until an answer of it is lost; then the second, to its end."""
        return max(alive) if self.lost else min(alive)


class Scene:
    """A job that a worker runs, one that is dead, one that waits, and those who are there."""

    def __init__(self, world: World, *, bounds: bool) -> None:
        self.world = world
        if bounds:
            config = {"max_size": 9, "concurrency": 3}
            world.run.queues.configure("default", config)
        self.producer, self.other = Producer(world, "p"), Producer(world, "p2")
        self.worker, self.rival = Worker(world, "w"), Worker(world, "v")
        self.hand = Operator(world, "o")
        world.queues |= {"default", "there"}
        self.producer.push(large=False, retry={"max_attempts": 1})
        self.worker.fetch()
        self.worker.nack()
        (dead,) = world.pushes[-1].ids
        self.dead = dead
        self.producer.push(large=True, retry={"max_attempts": 2})
        self.worker.fetch()
        self.running = self.worker.held[0].id
        self.producer.push(large=True)

    def twice(self, act: Callable[[], object]) -> None:
        """Done, and done again if nobody knows how it ended."""
        act()
        for push in self.world.pushes:
            if push.unknown:
                self.world.ask(push, self.producer.run)
        if act in (self.worker.ack, self.worker.nack) and self.worker.held:
            act()

    @staticmethod
    def once(act: Callable[[], object]) -> None:
        """What somebody else does meanwhile."""
        act()

    def fetch_and_ack(self) -> None:
        self.rival.fetch(2)
        self.rival.ack()

    def end_of_the_lease(self) -> None:
        self.hand.wait(3_001)
        self.hand.sweep()
        self.rival.fetch()

    def much_later(self) -> None:
        self.hand.wait(20_000)
        self.hand.sweep()
        self.hand.reconcile()


OPERATIONS: dict[str, Callable[[Scene], Callable[[], object]]] = {
    "push": lambda scene: partial(scene.producer.push, large=True),
    "push without an id": lambda scene: partial(scene.producer.push, large=True, chosen=False),
    "push a few": lambda scene: partial(scene.producer.push, 2, large=True),
    "push many": lambda scene: partial(scene.producer.push, 5, large=True),
    "push many without ids": lambda scene: partial(
        scene.producer.push, 5, large=True, chosen=False
    ),
    "push a unique job": lambda scene: partial(
        scene.producer.push, large=True, unique={"keys": ["type"], "on_conflict": "replace"}
    ),
    "fetch": lambda scene: partial(scene.rival.fetch, 2),
    "ack": lambda scene: scene.worker.ack,
    "nack": lambda scene: scene.worker.nack,
    "hand back": lambda scene: scene.worker.hand_back,
    "heartbeat": lambda scene: scene.worker.beat,
    "progress": lambda scene: scene.worker.report,
    "cancel": lambda scene: partial(
        scene.hand.ask, "cancel", lambda: scene.hand.run.jobs.cancel(scene.running)
    ),
    "retry": lambda scene: partial(
        scene.hand.ask, "retry", lambda: scene.hand.run.redrive.retry(scene.dead)
    ),
    "pause": lambda scene: scene.hand.pause,
    "bound": lambda scene: partial(scene.hand.configure, {"max_size": 20, "concurrency": 2}),
    "discard a queue": lambda scene: partial(scene.hand.end, "default", "discard"),
    "move a queue": lambda scene: partial(scene.hand.end, "default", "move", "there"),
}
MEANWHILE: dict[str, Callable[[Scene], Callable[[], object]]] = {
    "others work": lambda scene: scene.fetch_and_ack,
    "the lease ends": lambda scene: scene.end_of_the_lease,
    "others push": lambda scene: partial(scene.other.push, 5, large=True, chosen=False),
    "an operator cancels": lambda scene: scene.hand.cancel,
    "an operator retries": lambda scene: partial(
        scene.hand.ask, "retry", lambda: scene.hand.run.redrive.retry(scene.dead)
    ),
    "the queue is discarded": lambda scene: partial(scene.hand.end, "default", "discard"),
    "the queue is moved": lambda scene: partial(scene.hand.end, "default", "move", "there"),
    "much later": lambda scene: scene.much_later,
}
# More than any of them makes.
MOST_WRITES = 40
CASES = list(product(OPERATIONS, MEANWHILE, (True, False), (1, 3), (False, True)))


@pytest.mark.parametrize(
    ("operation", "meanwhile", "effect", "tries", "bounds"), spread(CASES, 137, rest=11)
)
def test_an_answer_is_lost_while_somebody_acts(
    operation: str, meanwhile: str, effect: bool, tries: int, bounds: bool
) -> None:
    """`effect` says whether the write took effect whose first answer was lost, `tries` how many
    of its tries have no answer, `bounds` whether the queue is limited.
    """
    for nth in range(1, MOST_WRITES):
        world = World(nth)
        plan = world.plan = Losing(world, nth, effect=effect, tries=tries)

        def scenario(world: World) -> list[Acts]:
            scene = Scene(world, bounds=bounds)
            act = OPERATIONS[operation](scene)
            return [[partial(scene.twice, act)], [partial(scene.once, MEANWHILE[meanwhile](scene))]]

        random.seed(nth)
        try:
            play(world, scenario, plan.choose)
        except BaseException as error:
            error.add_note(f"the answer of write {nth} was lost")
            raise
        if not plan.lost:
            assert nth > 1, "it writes nothing"
            return
    raise AssertionError("it makes more writes than expected")
