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
from typing import TypeVar

import pytest

from ojs.domain.access import ANYBODY
from ojs.domain.bulk.operation import Action, JobIds
from ojs.domain.errors import NotFound, OjsError
from ojs.runtime import Runtime
from ojs.store.table import keys
from tests.simulation.actors import Operator, Producer, Worker
from tests.simulation.faults import Plan
from tests.simulation.keyed import Keyed, KeyedProducer
from tests.simulation.pushed import Deliveries
from tests.simulation.scenarios import play
from tests.simulation.world import Acts, World
from tests.spread import spread
from tests.store.pushing import FUNCTION

T = TypeVar("T")

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


class KeysAndErasures(Keyed):
    """What keys promise, and that what was to be erased is gone."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.world = world
        self.erased: set[str] = set()

    def look_after(self) -> None:
        run = self.world.run
        self.world.check_swept(run.bulk.run_once(run.clock.now_ms(), 1_000))

    def check_end(self) -> None:
        self.check()
        left = [
            job for job in self.erased if (keys.job(job), keys.RECORD) in self.world.memory.items
        ]
        assert not left


class Scene:
    """A job that a worker runs, one that is dead, one that waits, and those who are there."""

    def __init__(self, world: World, *, bounds: bool) -> None:
        self.world = world
        if bounds:
            config = {"max_size": 9, "concurrency": 3}
            world.run.queues.configure("default", config)
        self.producer, self.other = Producer(world, "p"), Producer(world, "p2")
        self.worker, self.rival = Worker(world, "w"), Worker(world, "v")
        world.pushing = Deliveries(world).parts()
        self.hand = Operator(world, "o")
        self.keyed = KeysAndErasures(world)
        world.promises.append(self.keyed)
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

    # --- what came later --------------------------------------------------------------------------

    def asked(self, kind: str, act: Callable[[Runtime], T]) -> tuple[T | None, OjsError | None]:
        """An answer, or why it was refused; asked for again if nobody knows how it ended."""
        run = self.hand.run
        answer, refused = self.world.request(kind, lambda: act(run))
        if answer is None and refused is None:
            answer, refused = self.world.request(kind, lambda: act(run))
        return answer, refused

    def put_delivery(self) -> None:
        body = {"queues": ["there"], "target": {"function": FUNCTION}}
        made, refused = self.asked("put delivery", lambda run: run.deliveries.put("d", body))
        assert made is not None, refused
        assert self.deliveries() == ["d"]

    def with_delivery(self, act: Callable[[], None]) -> Callable[[], None]:
        """It, where there is a delivery."""
        target = {"function": FUNCTION}
        self.hand.run.deliveries.put("e", {"queues": ["there"], "target": target})
        return act

    def pause_delivery(self) -> None:
        paused, _ = self.asked("pause delivery", lambda run: run.deliveries.pause("e"))
        assert paused is not None
        assert self.hand.run.deliveries.get("e").paused

    def delete_delivery(self) -> None:
        def act(run: Runtime) -> bool:
            run.deliveries.delete("e")
            return True

        _, refused = self.asked("delete delivery", act)
        # An earlier try of it may have removed it, and its answer have been lost.
        assert refused is None or isinstance(refused, NotFound)
        assert self.deliveries() == []

    def deliveries(self) -> list[str]:
        return [each.name for each in self.hand.run.deliveries.list(limit=9).items]

    def push_each(self) -> None:
        KeyedProducer(self.world, "k", self.keyed).push_each(6)

    def push_with_key(self, count: int, *, each: bool = False) -> None:
        producer = KeyedProducer(self.world, "k", self.keyed)
        for _ in range(2):
            producer.push_once("key", count, each=each)

    def erase(self) -> None:
        self.world.watch.erased = self.world.watch.purged = True
        ids = (self.dead, self.running)
        begun, refused = self.asked(
            "erase", lambda run: run.bulk.begin(Action.ERASE_JOBS, JobIds(ids))
        )
        assert begun is not None, refused
        self.keyed.erased |= {*ids}

    def write_action_down(self) -> None:
        def act(run: Runtime) -> bool:
            run.actions.add(ANYBODY, "pauseQueue", "POST", "/p", 200)
            return True

        before = len(self.hand.run.actions.list(limit=9).items)
        done, _ = self.asked("note action", act)
        # What cannot be written is told in the log of the API, and the request goes on.
        assert done
        assert len(self.hand.run.actions.list(limit=9).items) in (before, before + 1)

    def make_a_key(self) -> None:
        made, refused = self.asked(
            "create key", lambda run: run.access_keys.create(ANYBODY, "k", ["jobs:read"])
        )
        assert made is not None, refused
        who = self.hand.run.access_keys.get(made[0].id)
        assert who.revoked_ms is None

    def key(self) -> str:
        return self.hand.run.access_keys.create(ANYBODY, "k", ["jobs:read"])[0].id

    def revoke_a_key(self, key: str) -> None:
        revoked, refused = self.asked(
            "revoke key", lambda run: run.access_keys.revoke(ANYBODY, key)
        )
        assert revoked is not None, refused
        assert self.hand.run.access_keys.get(key).revoked_ms is not None

    def stop_work(self) -> None:
        self.world.maintained = True
        now_ms = self.world.clock.now_ms()
        begun, refused = self.asked(
            "maintenance", lambda run: run.maintenance.begin("why", None, now_ms=now_ms)
        )
        assert begun is not None, refused
        assert begun.since_ms == now_ms

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
    "push each for itself": lambda scene: scene.push_each,
    "push with a key": lambda scene: partial(scene.push_with_key, 1),
    "push a few with a key": lambda scene: partial(scene.push_with_key, 2),
    "push many with a key": lambda scene: partial(scene.push_with_key, 5),
    "push each with a key": lambda scene: partial(scene.push_with_key, 5, each=True),
    "erase": lambda scene: scene.erase,
    "put a delivery": lambda scene: scene.put_delivery,
    "pause a delivery": lambda scene: scene.with_delivery(scene.pause_delivery),
    "delete a delivery": lambda scene: scene.with_delivery(scene.delete_delivery),
    "note an action": lambda scene: scene.write_action_down,
    "make a key": lambda scene: scene.make_a_key,
    "revoke a key": lambda scene: partial(scene.revoke_a_key, scene.key()),
    "begin maintenance": lambda scene: scene.stop_work,
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
    ("operation", "meanwhile", "effect", "tries", "bounds"), spread(CASES, 137, rest=29)
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
