"""Durable code: workers store steps, fall asleep and wait for signals, while others send them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ojs.domain.errors import Conflict, Duplicate
from ojs.domain.job.durable import DurableOutcome, OutcomeKind, Suspension
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.store.table import keys
from tests.simulation.actors import Actor, Operator, Producer, Worker
from tests.simulation.acts import some
from tests.simulation.invariants import broken
from tests.simulation.memory import Change, Item
from tests.simulation.world import Acts, World

MOST = 2
RETRY = {"max_attempts": MOST, "initial_interval": "PT1S", "jitter": False}
NAMES = ("a", "b", "c/1")
SIGNALS = ("ok", "go")
_JOB, _OF_STEP = keys.job(""), keys.step(0, "", "")[:-1]


class Resumption:
    """What is promised of durable code, watched at every write."""

    def __init__(self, world: World) -> None:
        self.world = world
        # By job and name: the first outcome that anybody was told of.
        self.told: dict[tuple[str, str, str], Any] = {}
        world.memory.watchers.append(self)
        world.promises.append(self)

    def __call__(self, changes: list[Change]) -> None:
        for (pk, sk), before, after in changes:
            if not pk.startswith(_JOB):
                continue
            if sk.startswith(keys.STEP) and before is not None and after is not None:
                raise broken("one outcome a name and epoch", job=pk, name=sk)
            if sk.startswith(keys.UNTIL) and before is not None and after is not None:
                self._ended(pk, sk, before, after)
            if sk == keys.CHECKPOINT and before is not None and after is not None:
                numbers = [int(item["seq"]["N"]) for item in (before, after)]
                if numbers[1] <= numbers[0]:
                    raise broken("no former owner changes a checkpoint", job=pk, numbers=numbers)
            if sk == keys.RECORD and before is not None and after is not None:
                self._record(pk, before, after)
            if sk == keys.RECORD or sk.startswith(keys.STEP):
                self._woken(pk)

    def _ended(self, pk: str, sk: str, before: Item, after: Item) -> None:
        hastens = self.world.watch.speech[self.world.scheduler.current].hastens
        if before["ms"] != after["ms"] and not hastens:
            raise broken("the first time of a sleep counts", job=pk, name=sk)

    def _woken(self, pk: str) -> None:
        """No job stays scheduled with what it waits for stored."""
        for kind, name, _ in _waits(self.world.memory.items.get((pk, keys.RECORD))):
            letter = {"signal": "g", "job": "j"}.get(kind)
            if letter and (pk, keys.step(0, letter, name)) in self.world.memory.items:
                raise broken("no wake-up is lost", job=pk, name=name)

    def _record(self, pk: str, before: Item, after: Item) -> None:
        was, now = before["state"]["S"], after["state"]["S"]
        tried = _number(before, "attempt") - _number(before, "fg")
        if was == State.ACTIVE.value and now == State.RETRYABLE.value and tried >= MOST:
            raise broken("attempts count from the last step", job=pk, tried=tried)
        if was == State.ACTIVE.value and now == State.DISCARDED.value and tried < MOST:
            raise broken("a step forgives earlier attempts", job=pk, tried=tried)
        waits = _waits(before)
        if not waits or now in (State.SCHEDULED.value, State.CANCELLED.value):
            return
        until_ms = min(ms for *_, ms in waits)
        early = until_ms > self.world.clock.now_ms() + self.world.skew_ms
        speech = self.world.watch.speech[self.world.scheduler.current]
        signalled = any(
            (pk, keys.step(0, "g", name)) in self.world.memory.items for _, name, _ in waits
        )
        if early and not signalled and not speech.hastens:
            raise broken("nothing is awake before its time", job=pk, until=until_ms)

    def hears(self, job_id: str, kind: str, name: str, value: Any) -> None:
        """Somebody was told of an outcome. It is the same for everybody."""
        first = self.told.setdefault((job_id, kind, name), value)
        if first != value:
            raise broken("one outcome a name and epoch", job=job_id, name=name, now=value)

    def ask_again(self) -> None:
        """Nobody does."""

    def look_after(self) -> None:
        """Nothing runs for it."""

    def check(self) -> None:
        """What was told is there."""
        for (job_id, kind, name), value in self.told.items():
            if (keys.job(job_id), keys.RECORD) not in self.world.memory.items:
                continue
            _, page = self.world.run.steps.page(job_id)
            found = {(one.kind.value, one.name): one.value for one in page.outcomes}
            if found.get((kind, name)) != value:
                raise broken("a told outcome is kept", job=job_id, name=name, there=found)

    def check_end(self) -> None:
        """The same as when all is quiet."""
        self.check()


def _number(item: Item, name: str) -> int:
    return int(item.get(name, {"N": "0"})["N"])


def _waits(item: Item | None) -> list[tuple[str, str, int]]:
    if item is None or "waits" not in item or item["state"]["S"] != State.SCHEDULED.value:
        return []
    return [
        (wait.kind, wait.name, wait.until_ms) for wait in Suspension.of(item["waits"]["S"]).waits
    ]


class DurableWorker(Worker):
    """A worker whose jobs store steps, wait, and save checkpoints."""

    def __init__(self, world: World, name: str, kept: Resumption) -> None:
        super().__init__(world, name)
        self.kept = kept

    def _about(self, kind: str, act: Callable[[Job, str], Any], *, ends: bool = False) -> Any:
        """Ask for something under the lease of one of its jobs."""
        if not self.held:
            return None
        job = self.chance.choice(self.held)
        token = job.lease.token if job.lease else ""

        def speak() -> Any:
            self._speak(job.id, lease=token, worker=self.name, extends=not ends)
            return self._flushed(lambda: act(job, token))

        answer, refused = self.world.request(kind, speak)
        if (ends and answer is not None) or refused is not None:
            self.held.remove(job)
        return None if answer is None else (job, answer)

    def step(self) -> None:
        """Run a step, and store its outcome, which differs from that of every other run."""
        name = self.chance.choice(NAMES)
        mine = f"{self.name} {self.chance.getrandbits(40)}"
        outcome = DurableOutcome(name, OutcomeKind.STEP, ok=True, value=mine, save=mine)
        told = self._about(
            "step",
            lambda job, token: self.run.steps.save(job.id, [outcome], lease_token=token),
        )
        if told is not None:
            job, saved = told
            (first,) = saved.first
            self.kept.hears(job.id, "step", name, mine if first is None else first.value)

    def load(self) -> None:
        """Read the outcomes, as an attempt does that goes on."""
        if not self.held:
            return
        job = self.chance.choice(self.held)
        answer = self.ask("load", lambda: self.run.steps.page(job.id))
        for one in answer[1].outcomes if answer is not None else ():
            self.kept.hears(job.id, one.kind.value, one.name, one.value)

    def save(self) -> None:
        self._about(
            "checkpoint",
            lambda job, token: self.run.checkpoints.save(
                job.id, {"by": self.name}, lease_token=token
            ),
        )

    def suspend(self) -> None:
        """Fall asleep, or wait for a signal, or both."""
        length = self.chance.choice(("PT2S", "PT5S", "PT20S"))
        waits = [
            {"kind": "sleep", "name": "nap", "for": length},
            {"kind": "signal", "name": self.chance.choice(SIGNALS), "for": "PT30S"},
            {"kind": "time", "name": "until-now", "for": "PT0S"},
        ]
        chosen = self.chance.choice((waits[:1], waits[1:2], waits[:2], waits[2:]))
        self._about(
            "suspend",
            lambda job, token: self.run.finish.nack(
                job.id, error=None, lease_token=token, suspend={"waits": chosen}
            ),
            ends=True,
        )

    def goes_on(self) -> None:
        """One of all that its code does."""
        acts: Acts = [self.step, self.step, self.step, self.load, self.save, self.suspend]
        acts += [self.suspend, self.nack, self.nack, self.ack, self.beat, self.forget]
        if not self.held:
            # Until its container looks into lines again that were empty.
            self.world.pass_time(self.chance.choice((1_001, 2_001, 5_001)))
        if not self.held or self.chance.random() < 0.1:
            self.fetch(self.chance.randint(1, 3), self.chance.choice((3_000, 20_000)))
        else:
            self.chance.choice(acts)()


class Signaller(Actor):
    """Sends signals, again where it had no answer."""

    def __init__(self, world: World, name: str, kept: Resumption) -> None:
        super().__init__(world, name)
        self.kept = kept

    def send(self) -> None:
        ids = [job_id for push in self.world.pushes for job_id in push.ids]
        items = self.world.memory.items
        awaited = [
            (job_id, name)
            for job_id in ids
            for kind, name, _ in _waits(items.get((keys.job(job_id), keys.RECORD)))
            if kind == "signal"
        ]
        job_id, name = self.chance.choice(ids), self.chance.choice(SIGNALS)
        if awaited and self.chance.random() < 0.7:
            job_id, name = self.chance.choice(awaited)
        mine = f"{self.name} {self.chance.getrandbits(40)}"

        def act() -> Any:
            try:
                return self.run.signals.send(job_id, name, mine, key=mine)
            except (Conflict, Duplicate):
                return None

        for _ in range(2):
            sent = self.ask("signal", act)
            if sent is not None:
                self.kept.hears(job_id, "signal", name, sent.outcome.value)
                return


def durable(world: World) -> list[Acts]:
    """Durable jobs, whose workers die, speak up late, and whose signals come before and after."""
    kept = Resumption(world)
    producer, hand = Producer(world, "p"), Operator(world, "o")
    for _ in range(8):
        producer.push(retry=RETRY, large=False)
    made: list[Acts] = []
    for name in ("w1", "w2"):
        worker = DurableWorker(world, name, kept)
        take: Callable[[], None] = partial(worker.fetch, 3, 20_000)
        made.append([worker.does(act) for act in [take, *[worker.goes_on] * 12]])
    signaller = Signaller(world, "s", kept)
    acts: Acts = [partial(hand.wait, 3_001), partial(hand.wait, 5_001), hand.wait, hand.sweep]
    acts += [hand.look, hand.bring_back, hand.cancel]
    return [
        *made,
        [signaller.does(signaller.send) for _ in range(5)],
        [hand.does(act) for act in some(world.chance, acts, 8)],
    ]
