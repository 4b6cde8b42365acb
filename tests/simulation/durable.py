"""Durable code: workers store steps, start children, fall asleep and wait for them and for signals,
while others end the children and send the signals.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ojs.domain.errors import Conflict, Duplicate
from ojs.domain.job import envelope
from ojs.domain.job.durable import LETTERS, DurableOutcome, OutcomeKind, Parent, Suspension
from ojs.domain.job.job import MISSING, Job
from ojs.domain.job.states import TERMINAL, State
from ojs.store.table import keys
from tests.simulation.actors import Actor, Operator, Producer, Stream, Worker
from tests.simulation.acts import some
from tests.simulation.invariants import broken
from tests.simulation.memory import Change, Item
from tests.simulation.world import Acts, World

MOST = 2
RETRY = {"max_attempts": MOST, "initial_interval": "PT1S", "jitter": False}
NAMES = ("a", "b", "c/1")
SIGNALS = ("ok", "go")
CHILDREN = ("k", "l/1", "l/2")
_JOB, _OF_STEP = keys.job(""), keys.step(0, "", "")[:-1]


class Resumption:
    """What is promised of durable code, watched at every write."""

    def __init__(self, world: World, most: int = MOST) -> None:
        """`most` attempts count of each job."""
        self.world = world
        self.most = most
        # By job and name: the first outcome that anybody was told of.
        self.told: dict[tuple[str, str, str], Any] = {}
        # By job: the names of the children that it was told of, and the latest checkpoint.
        self.children: dict[str, set[str]] = {}
        self.checkpoints: dict[str, int] = {}
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
            if sk == keys.CHECKPOINT and after is not None:
                self._checkpoint(pk, before, after)
            if sk == keys.RECORD and before is not None and after is not None:
                self._record(pk, before, after)
            if sk == keys.RECORD or sk.startswith(keys.STEP):
                self._woken(pk)

    def _ended(self, pk: str, sk: str, before: Item, after: Item) -> None:
        hastens = self.world.watch.speech[self.world.scheduler.current].hastens
        if before["ms"] != after["ms"] and not hastens:
            raise broken("the first time of a sleep counts", job=pk, name=sk)

    def _checkpoint(self, pk: str, before: Item | None, after: Item) -> None:
        """It is later than the one before, and than the last one that a worker was told of."""
        number = int(after["seq"]["N"])
        latest = 0 if before is None else int(before["seq"]["N"])
        # A deletion keeps the number.
        late = number < latest or (number == latest and "text" in after)
        if late or number < self.checkpoints.get(pk, 0):
            raise broken("no former owner changes a checkpoint", job=pk, number=number)

    def _stored(self, pk: str, kind: str, name: str) -> bool:
        """Whether what a job waits for has come."""
        letter = LETTERS.get(kind)
        return (pk, keys.step(0, letter, name)) in self.world.memory.items if letter else False

    def _woken(self, pk: str) -> None:
        """No job stays scheduled with what it waits for stored."""
        for kind, name, _ in _waits(self.world.memory.items.get((pk, keys.RECORD))):
            if self._stored(pk, kind, name):
                raise broken("no wake-up is lost", job=pk, name=name)

    def _record(self, pk: str, before: Item, after: Item) -> None:
        was, now = before["state"]["S"], after["state"]["S"]
        tried = _number(before, "attempt") - _number(before, "fg")
        if was == State.ACTIVE.value and now == State.RETRYABLE.value and tried >= self.most:
            raise broken("attempts count from the last step", job=pk, tried=tried)
        if was == State.ACTIVE.value and now == State.DISCARDED.value and tried < self.most:
            raise broken("a step forgives earlier attempts", job=pk, tried=tried)
        waits = _waits(before)
        if not waits or now in (State.SCHEDULED.value, State.CANCELLED.value):
            return
        until_ms = min(ms for *_, ms in waits)
        early = until_ms > self.world.clock.now_ms() + self.world.skew_ms
        speech = self.world.watch.speech[self.world.scheduler.current]
        come = [self._stored(pk, kind, name) for kind, name, _ in waits]
        signalled = all(come) if before["waits"]["S"].startswith("all") else any(come)
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
        for (pk, sk), item in list(self.world.memory.items.items()):
            if sk == keys.RECORD and "pa" in item and item["state"]["S"] in TERMINAL:
                self._ended_child(keys.job_id(pk), Parent.of(item["pa"]["S"]))

    def _ended_child(self, job_id: str, parent: Parent) -> None:
        """Its parent has its outcome, if it can still use it."""
        items = self.world.memory.items
        there = items.get((keys.job(parent.job_id), keys.RECORD), {"state": {"S": "completed"}})
        if there["state"]["S"] in TERMINAL and "dead" not in there:
            return
        _, page = self.world.run.steps.page(parent.job_id)
        found = {one.name: one for one in page.outcomes if one.kind is OutcomeKind.JOB}
        child = self.world.run.jobs.get(job_id)
        if parent.name not in found:
            raise broken("the outcome of a child is stored", job=parent.job_id, child=job_id)
        value = None if child.result is MISSING else child.result
        outcome = found[parent.name]
        if child.state is State.COMPLETED and outcome.ok and outcome.value != value:
            raise broken("the outcome of a child is its result", job=parent.job_id, child=job_id)
        if child.life == 0 and outcome.ok is not (child.state is State.COMPLETED):
            raise broken("the outcome of a child is its end", job=parent.job_id, child=job_id)

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
        told = self._about(
            "checkpoint",
            lambda job, token: self.run.checkpoints.save(
                job.id, {"by": self.name}, lease_token=token
            ),
        )
        if told is not None:
            job, saved = told
            pk = keys.job(job.id)
            latest = self.kept.checkpoints.get(pk, 0)
            self.kept.checkpoints[pk] = max(latest, saved.sequence)

    def clear(self) -> None:
        """Delete the checkpoint, which nobody brings back."""
        self._about("delete checkpoint", lambda job, _: self.run.checkpoints.delete(job.id))

    def start(self) -> None:
        """Start a child, or two at once; again where it had no answer."""
        names = self.chance.choice((CHILDREN[:1], CHILDREN[1:]))
        raw = {"type": "t", "args": [1], "options": {"queue": "children", "retry": RETRY}}

        def act(job: Job, token: str) -> list[str]:
            parents = [{"job_id": job.id, "name": each, "lease_token": token} for each in names]
            wanted = [envelope.parse({**raw, "parent": parent}) for parent in parents]
            adopted = self.run.children.adopted(wanted, batch=True)
            with suppress(Duplicate):
                self.run.enqueue.push_batch(adopted)
            return [str(each.id) for each in adopted]

        told = self._about("children", act)
        if told is not None:
            job, ids = told
            self.world.told |= set(ids)
            self.kept.children.setdefault(job.id, set()).update(names)

    def suspend(self) -> None:
        """Fall asleep, or wait for a signal, or both, or for children."""
        length = self.chance.choice(("PT2S", "PT5S", "PT20S"))
        waits = [
            {"kind": "sleep", "name": "nap", "for": length},
            {"kind": "signal", "name": self.chance.choice(SIGNALS), "for": "PT30S"},
            {"kind": "time", "name": "until-now", "for": "PT0S"},
        ]
        chosen = self.chance.choice((waits[:1], waits[1:2], waits[:2], waits[2:]))
        mode, family = self.chance.choice(("all", "any")), self.chance.random() < 0.7

        def act(job: Job, token: str) -> Job:
            mine = sorted(self.kept.children.get(job.id, ()))
            ends = zip(mine, ("PT20S", "PT30S", "PT40S"), strict=False)
            children = [{"kind": "job", "name": each, "for": length} for each, length in ends]
            told = {"waits": children, "mode": mode} if children and family else {"waits": chosen}
            return self.run.finish.nack(job.id, error=None, lease_token=token, suspend=told)

        self._about("suspend", act, ends=True)

    def goes_on(self) -> None:
        """One of all that its code does."""
        acts: Acts = [self.step, self.step, self.step, self.load, self.save, self.suspend]
        acts += [self.suspend, self.nack, self.nack, self.ack, self.beat, self.forget]
        acts += [self.start, self.start, self.suspend, self.save, self.clear]
        if not self.held:
            # Until its container looks into lines again that were empty.
            self.world.pass_time(self.chance.choice((1_001, 2_001, 5_001)))
        if not self.held or self.chance.random() < 0.1:
            self.fetch(self.chance.randint(1, 3), self.chance.choice((3_000, 20_000)))
        else:
            self.chance.choice(acts)()

    def stalls(self) -> None:
        """Until its leases have ended."""
        self.world.pass_time(2_001)

    def saves(self) -> None:
        """It works under a short lease, and does not see when it ends."""
        if len(self.held) < 2:
            self.fetch(2, 2_000)
        acts: Acts = [self.save, self.save, self.save, self.clear, self.nack, self.hand_back]
        acts += [self.stalls]
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
                self.kept.hears(job_id, "signal", name, sent.value)
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
    signaller, stream = Signaller(world, "s", kept), Stream(world)
    world.queues.add("children")
    child = Worker(world, "c", queues=["children"])
    ends: Acts = [child.ack, child.ack, child.nack, partial(child.fetch, 3, 20_000), child.forget]
    ends += [partial(hand.wait, 1_001), partial(child.fetch, 3, 20_000)]
    acts: Acts = [partial(hand.wait, 3_001), partial(hand.wait, 5_001), hand.wait, hand.sweep]
    acts += [hand.look, hand.bring_back, hand.cancel]
    return [
        *made,
        [signaller.does(signaller.send) for _ in range(5)],
        [child.does(act) for act in some(world.chance, ends, 8)],
        [stream.does(stream.read) for _ in range(3)],
        [hand.does(act) for act in some(world.chance, acts, 8)],
    ]


def checkpoints(world: World) -> list[Acts]:
    """Jobs of which several workers save checkpoints, some after their leases have ended."""
    kept = Resumption(world, most=20)
    producer, hand = Producer(world, "p"), Operator(world, "o")
    for _ in range(2):
        producer.push(retry={**RETRY, "max_attempts": 20}, large=False)
    workers = [DurableWorker(world, name, kept) for name in ("w1", "w2", "w3")]
    made: list[Acts] = [[each.does(each.saves) for _ in range(12)] for each in workers]
    acts: Acts = [partial(hand.wait, 2_001), hand.sweep, hand.look]
    return [*made, [hand.does(act) for act in some(world.chance, acts, 8)]]
