"""Deliveries under faults: dispatched and settled by several containers at once, by messages that
are lost and come twice; targets that throttle, crash, vanish and answer late; meanwhile deliveries
are changed, paused and deleted, and a worker fetches from the same queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

from ojs.domain.delivery.delivery import worker_of
from ojs.domain.delivery.outcome import Outcome, Settled, Verdict
from ojs.domain.errors import BackendUnavailable, NotFound
from ojs.domain.job.job import Job
from ojs.domain.job.permits import DELIVERY_PERMIT
from ojs.domain.job.states import State
from ojs.services.deliveries.parts import AllowedTargets, DeliveryDependencies
from ojs.store.table import keys
from tests.simulation import quiet
from tests.simulation.actors import Operator, Producer, Worker
from tests.simulation.acts import some
from tests.simulation.faults import Died
from tests.simulation.invariants import Speech, broken, permits_of
from tests.simulation.world import Acts, World
from tests.store.pushing import (
    CRASHED,
    DONE,
    FAILED,
    FORBIDDEN,
    FUNCTION,
    GONE,
    REFUSED,
    THROTTLED,
    settled,
)

if TYPE_CHECKING:
    from ojs.domain.delivery.delivery import Delivery
    from ojs.domain.delivery.push import Push

NAME = "d"
# The most that any delivery of a run has at a time, and how many requests may settle late outcomes
# at a time: each goes on with its job although others run.
_MOST, _LATE = 2, 2
_RETRY = {"max_attempts": 3, "initial_interval": "PT1S", "jitter": False}
_ROUNDS = 80
# Seconds in which all is done that waits for room.
_FLOWS = 4


@dataclass
class Deliveries:
    """Queues and target of a run, which all containers share."""

    world: World
    messages: list[tuple[int, str]] = field(default_factory=list)
    flying: list[Push] = field(default_factory=list)
    # Outcomes on their way, which come again if whoever settles one dies.
    outcomes: list[Settled] = field(default_factory=list)
    # The same once more, for later.
    twice: list[Settled] = field(default_factory=list)
    # Whether all is well with target and messages.
    healed: bool = False

    def parts(self) -> DeliveryDependencies:
        """What each container gets."""
        return DeliveryDependencies(
            wakes=self, target=lambda _: self, allowed=AllowedTargets([FUNCTION], ["*"]), sends=None
        )

    def _trouble(self) -> bool:
        """By chance this call dies before it is made; or its answer never comes."""
        plan = self.world.plan
        if not plan.on or self.world.odd.random() >= 2 * plan.rate:
            return False
        plan.done["message"] += 1
        if plan.deaths and self.world.odd.random() < 0.5:
            raise Died
        return True

    def wake(self, names: Iterable[str], *, delay_s: int = 0) -> None:
        """A queue of wake-ups, which loses some."""
        self.world.scheduler.step()
        if self._trouble():
            raise BackendUnavailable("the queue does not answer")
        at_ms = self.world.clock.now_ms() + 1_000 * delay_s
        self.messages += [(at_ms, name) for name in names]

    def waits_for(self, push: Push, *, delivery: Delivery) -> bool:
        """Never."""
        return False

    def send(
        self, pushes: Sequence[Push], *, delivery: Delivery, wait: bool = False
    ) -> Sequence[Outcome | None]:
        """The target: it takes pushes, throttles, or is gone."""
        return [self._one(push) for push in pushes]

    def _one(self, push: Push) -> Outcome | None:
        self.world.scheduler.step()
        self._check_room()
        refused = self._trouble()
        chosen: Outcome | None = None
        if not self.healed:
            (chosen,) = self.world.odd.choices([None, THROTTLED, GONE, DONE], [20, 2, 1, 2])
        if chosen is None:
            self.flying.append(push)
        if refused and self.world.odd.random() < 0.3:
            # The function has it, and whoever sent it is gone.
            raise Died
        return chosen

    def _check_room(self) -> None:
        running = sum(
            item.get("worker", {}).get("S") == worker_of(NAME)
            for (pk, sk), item in self.world.memory.items.items()
            if sk == keys.RECORD
            and pk.startswith(keys.job(""))
            and item["state"]["S"] == State.ACTIVE.value
        )
        if running > _MOST + _LATE:
            raise broken("a delivery has no more under way than it may", running=running)

    def end_one(self, *, well: bool = False) -> None:
        """A function ends: its outcome is on its way, twice, or lost."""
        if not self.flying:
            return
        push = self.flying.pop(self.world.odd.randrange(len(self.flying)))
        what: list[Outcome | None] = [DONE, FAILED, CRASHED, REFUSED, THROTTLED, FORBIDDEN, None]
        (outcome,) = self.world.odd.choices(what, [10, 4, 4, 1, 2, 1, 2])
        if well:
            outcome = DONE
        if outcome is not None:
            self.outcomes.append(settled(push, outcome))
            if not well and self.world.odd.random() < 0.4:
                self.twice.append(settled(push, outcome))

    # --- in the end -------------------------------------------------------------------------------

    def settle(self) -> None:
        """With a target that works, every job is pushed and ends; without any worker."""
        self.healed = True
        world = self.world
        world.watch.set.clear()
        world.run.queues.resume("default")
        # What was on its way arrives, whatever it does to the delivery.
        self._pump()
        put(world.run.deliveries.put, _MOST)
        world.run.deliveries.resume(NAME)
        # Lost, all of them: the sweep is the net.
        self.messages.clear()
        for _ in range(_ROUNDS):
            self._pump()
            if not quiet_jobs(world):
                self.flow()
                return
            world.clock.advance(61_000)
            world.look_after()
            sweep = world.run.delivery_sweep
            assert sweep is not None
            world.check_swept(sweep.run_once(world.run.clock.now_ms(), 100))
        left = [(job.id, job.state.value) for job in quiet_jobs(world)]
        raise broken("every job is pushed in the end", left=left)

    def flow(self) -> None:
        """Without faults, sweeps and the stream, jobs that wait are pushed while there is room:
        they are done within seconds. Permits are in one shard or in several, and some jobs are
        cancelled while they run, or fetched by a worker.
        """
        world, chance = self.world, self.world.odd
        with mock.patch("ojs.store.permits.semaphore.SHARD_PERMITS", chance.choice((1, 24, 24))):
            put(world.run.deliveries.put, chance.choice((1, 2, 3, 4, 4)))
            self._pump()
            producer, worker = Producer(world, "p"), Worker(world, "w")
            hands = [Functions(world, name, self) for name in ("f1", "f2", "f3")]
            acts: list[Callable[[], None]] = [hand.flow for hand in hands]
            if chance.random() < 0.5:
                acts.append(worker.does(worker.fetch, worker.ack))
            if chance.random() < 0.5:
                acts.append(DeliveryHand(world, "o").cancel)
            producer.push(chance.randint(6, 12), retry=_RETRY, large=False)
            # One wake-up must do: a backlog has no others.
            self.messages = [(world.clock.now_ms(), NAME)]
            for _ in range(_FLOWS):
                world.scheduler.run(acts)
                if not quiet_jobs(world):
                    return
                acts = [hand.flow for hand in hands]
                acts += [worker.does(worker.ack)] * bool(worker.held)
                world.clock.advance(1_000)
        left = [(job.id, job.state.value) for job in quiet_jobs(world)]
        raise broken("room is used while jobs wait", left=left)

    def _pump(self) -> None:
        world = self.world
        for _ in range(1_000):
            if self.flying:
                self.end_one(well=True)
            if self.outcomes:
                outcome = self.outcomes.pop()
                speak(world, [outcome])
                report = world.run.dispatch.settle([outcome])
                if report.failed:
                    raise broken("what is right is settled", why=report.failed)
                continue
            due = [each for each in self.messages if each[0] <= world.clock.now_ms()]
            if not due:
                return
            self.messages.remove(due[0])
            world.run.dispatch.run(due[0][1])
        raise broken("wake-ups come to an end")


def quiet_jobs(world: World) -> list[Job]:
    """The jobs that are not over."""
    found = quiet.job_records(quiet.everything(world.memory))
    return [job for job in found.values() if not job.state.terminal]


def put(act: Callable[[str, Any], Any], concurrency: int) -> Any:
    """Set the delivery."""
    body = {
        "target": {"function": FUNCTION},
        "queues": ["default"],
        "concurrency": concurrency,
        "timeout_ms": 5_000,
    }
    return act(NAME, body)


def speak(world: World, outcomes: Sequence[Settled]) -> None:
    """Say of which jobs a request settles the outcomes, and by which leases; of several of one job
    by that which the job has: others are of attempts from before, and change nothing.
    """
    leases: dict[str, str | None] = {}
    for one in outcomes:
        pk = keys.job(one.job_id)
        record = world.memory.items.get((pk, keys.RECORD), {})
        if pk not in leases or record.get("lease", {}).get("S") == one.lease_token:
            leases[pk] = one.lease_token
    world.watch.speech[world.scheduler.current] = Speech(
        set(leases), worker=worker_of(NAME), leases=leases
    )


class Functions(Operator):
    """The functions of the deployment, one at a time: dispatch, outcomes, sweep."""

    def __init__(self, world: World, name: str, deliveries: Deliveries) -> None:
        super().__init__(world, name)
        self._of = deliveries

    def dispatch(self) -> None:
        """A message wakes a delivery; it comes again if whoever took it dies."""
        now_ms = self.world.clock.now_ms()
        due = [each for each in self._of.messages if each[0] <= now_ms]
        if not due:
            return
        message = self.chance.choice(due)
        self._of.messages.remove(message)
        try:
            if self.ask("dispatch", lambda: self.run.dispatch.run(NAME)) is None:
                self._of.messages.append(message)
        except Died:
            self._of.messages.append(message)
            raise

    def end_some(self) -> None:
        self._of.end_one()
        self._of.end_one()

    def settle(self) -> None:
        """A few outcomes in one message batch."""
        count = min(len(self._of.outcomes), self.chance.randint(1, 3))
        taken = [
            self._of.outcomes.pop(self.chance.randrange(len(self._of.outcomes)))
            for _ in range(count)
        ]
        # Of a job that was pushed again one at a time, as it is said who speaks by which lease.
        first = {one.job_id: one for one in reversed(taken)}
        self._of.outcomes += [one for one in taken if first[one.job_id] is not one]
        taken = list(first.values())
        if not taken:
            return

        def act() -> Any:
            speak(self.world, taken)
            return self.run.dispatch.settle(taken)

        try:
            report = self.ask("settle", act)
        except Died:
            self._of.outcomes += taken
            raise
        if report is None:
            self._of.outcomes += taken
            return
        self._of.outcomes += [one for one in taken if one.push in report.failed]
        if report.stale:
            return
        for one in taken:
            if one.outcome.verdict is Verdict.COMPLETED and one.push not in report.failed:
                record = self.world.memory.items[keys.job(one.job_id), keys.RECORD]
                if record["state"]["S"] != State.COMPLETED.value:
                    raise broken("what is told as settled is stored", job=one.job_id)
                self.world.acked.add(one.job_id)

    def any(self) -> None:
        """What there is to do."""
        now_ms = self.world.clock.now_ms()
        acts = [self.settle] * (2 * bool(self._of.outcomes)) + [self.end_some] * bool(
            self._of.flying
        )
        acts += [self.dispatch] * any(at_ms <= now_ms for at_ms, _ in self._of.messages)
        if self._of.twice and self.chance.random() < 0.15:
            self._of.outcomes.append(self._of.twice.pop(0))
        self.chance.choice(acts or [self.wait])()

    def flow(self) -> None:
        """All that there is to do now; every push ends, some of them badly."""
        while True:
            now_ms = self.world.clock.now_ms()
            acts = [self.settle] * bool(self._of.outcomes)
            acts += [partial(self._of.end_one, well=True)] * bool(self._of.flying)
            acts += [self.dispatch] * any(at_ms <= now_ms for at_ms, _ in self._of.messages)
            if not acts:
                return
            self.chance.choice(acts)()

    def sweep_deliveries(self) -> None:
        sweep, now_ms = self.run.delivery_sweep, self.run.clock.now_ms()
        assert sweep is not None
        self.ask("delivery sweep", lambda: sweep.run_once(now_ms, 100))


class DeliveryHand(Operator):
    """An operator of deliveries."""

    def put(self) -> None:
        concurrency = self.chance.choice((1, 2))
        self.ask("put delivery", lambda: put(self.run.deliveries.put, concurrency))

    def pause_delivery(self) -> None:
        self.ask("pause delivery", lambda: self.run.deliveries.pause(NAME))

    def resume_delivery(self) -> None:
        self.ask("resume delivery", lambda: self.run.deliveries.resume(NAME))

    def delete_delivery(self) -> None:
        self.ask("delete delivery", lambda: self.run.deliveries.delete(NAME))


def push(world: World) -> list[Acts]:
    """A delivery, its target, and all that goes wrong with either."""
    world.queues.add("default")
    world.delivered = deliveries = Deliveries(world)
    world.pushing = deliveries.parts()
    # Limits are changed while jobs run.
    world.watch.changes = True
    world.run = world.container()
    world.run.queues.create("default", world.chance.choice(({}, {}, {"concurrency": 2})))
    put(world.run.deliveries.put, _MOST)
    producer, worker = Producer(world, "p"), Worker(world, "w")
    one, other = (Functions(world, name, deliveries) for name in ("f1", "f2"))
    hand = DeliveryHand(world, "o")
    pushing: Acts = [
        partial(producer.push, retry=_RETRY, large=False),
        partial(producer.push, retry=_RETRY, large=False, scheduled_at="+PT2S"),
        partial(producer.push, 3, retry=_RETRY, large=False),
    ]
    producer.push(4, retry=_RETRY, large=False)
    for act in some(world.chance, pushing, 3):
        act()
    others: Acts = [*[other.any] * 4, other.sweep, other.sweep_deliveries]
    others += [partial(other.wait, 1_000), partial(other.wait, 61_000)]
    by_hand: Acts = [hand.put, hand.pause_delivery, hand.resume_delivery, hand.delete_delivery]
    by_hand += [hand.wait, hand.wait, hand.sweep, partial(hand.wait, 61_000), hand.cancel]
    return [
        [one.does(act) for act in [one.any] * 20],
        [other.does(act) for act in some(world.chance, others, 12)],
        [hand.does(act) for act in some(world.chance, by_hand, 5)],
        [producer.does(act) for act in some(world.chance, pushing, 2)]
        + [worker.does(act) for act in [worker.fetch, worker.any, worker.any]],
    ]


def deliveries_are_exact(found: Mapping[tuple[str, str], Any], world: World) -> None:
    """No job is where nobody pushes it, and none has a permit that it does not run with."""
    if world.delivered is None:
        return
    for key, item in found.items():
        if key[1] != keys.RECORD or not key[0].startswith(keys.job("")):
            continue
        if item["state"] != "active" and DELIVERY_PERMIT in permits_of(item):
            ended = item["state"] in ("completed", "discarded", "cancelled")
            if not ended:
                raise broken("a job that does not run has no permit", job=key[0])
    try:
        counts = world.run.deliveries.get(NAME).counts
    except NotFound:
        return
    if min(counts.pushed, counts.faults, counts.throttled) < 0:
        raise broken("what is counted is not less than nothing", counts=counts)
