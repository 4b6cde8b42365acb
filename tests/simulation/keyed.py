"""Pushes of many jobs each for itself, pushes under idempotency keys, and staged batches of jobs
with a start, with faults: repeated after a crash, at the same time, with another body.

What a key promises is looked at in the end: a request that came with it is stored once, whoever
repeated it and however often, each answer named the same jobs, and of two requests with one key at
most one is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ojs.domain.access import everything
from ojs.domain.errors import InvalidRequest, KeyTaken, OjsError
from ojs.domain.job import envelope
from ojs.domain.job.envelope import JobRequest
from ojs.domain.job.idempotency import IdempotencyKey
from ojs.runtime import Runtime
from ojs.services.jobs.bulk_push import PushOutcome
from ojs.services.jobs.enqueue import Pushed
from tests.simulation import quiet
from tests.simulation.actors import Operator, Producer, Worker
from tests.simulation.acts import RETRY, some
from tests.simulation.faults import Died
from tests.simulation.invariants import broken
from tests.simulation.world import Acts, Push, World

# Of a batch that is staged.
_MANY = 5


@dataclass
class KeyedRequest:
    """A request under an idempotency key, whose jobs have a type of their own."""

    key: IdempotencyKey
    type: str
    act: Callable[[Runtime], list[Any]]
    unknown: bool = False
    # The ids of its jobs by index, once it was answered; None where each answer refused a job.
    ids: list[str | None] | None = None
    taken: bool = False

    def tell(self, ids: list[str | None]) -> None:
        """It was answered with these. Of two tries at the same time one may find a queue full in
        which the other has had room.
        """
        pairs = list(zip(self.ids or ids, ids, strict=True))
        if any(None is not before != now is not None for before, now in pairs):
            raise broken("a key names the same jobs", before=self.ids, now=ids)
        self.ids = [before or now for before, now in pairs]


class Keyed:
    """Requests under idempotency keys, and what was answered."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.requests: list[KeyedRequest] = []

    def ask(self, request: KeyedRequest, run: Runtime) -> None:
        """Ask for it, perhaps again."""
        request.unknown = True
        answer, refused = self._world.request("keyed push", lambda: request.act(run))
        request.unknown = answer is None and refused is None
        if answer is not None:
            ids = [None if isinstance(one, OjsError) else one.job.id for one in answer]
            request.tell(ids)
        elif isinstance(refused, KeyTaken):
            request.taken = True

    def ask_again(self) -> None:
        """Whoever does not know how a request ended."""
        for request in self.requests:
            if request.unknown:
                self.ask(request, self._world.run)

    def look_after(self) -> None:
        """Nothing runs each minute for keys."""

    def check(self) -> None:
        """What keys promise, once all is quiet."""
        jobs = quiet.job_records(quiet.everything(self._world.memory)).values()
        stored = {
            request.type: sorted(job.id for job in jobs if job.type == request.type)
            for request in self.requests
        }
        for request in self.requests:
            mine = stored[request.type]
            told = sorted(each for each in request.ids or () if each is not None)
            if request.ids is not None and mine != told:
                raise broken("a key is pushed once", of=request.type, stored=mine, told=told)
            others = [one for one in self.requests if one.key.name == request.key.name]
            if sum(bool(stored[one.type]) for one in others) > 1:
                raise broken("a key stands for one request", key=request.key.name)
            if request.taken and request.ids is not None:
                raise broken("a key stays with its request", key=request.key.name)

    check_end = check


class KeyedProducer(Producer):
    """Pushes under keys, each of which stands for a request and now and then comes with another."""

    def __init__(self, world: World, name: str, keyed: Keyed) -> None:
        super().__init__(world, name)
        self._keyed = keyed

    def push_once(self, name: str, count: int, *, each: bool = False, other: bool = False) -> None:
        """Push so many jobs with this key; `each` for itself, `other` with another body."""
        kind = f"{name}{'x' if other else ''}"
        known = [one for one in self._keyed.requests if one.type == kind]
        request = known[0] if known else self._new(name, kind, count, each)
        if not known:
            self._keyed.requests.append(request)
        self._keyed.ask(request, self.run)

    def _new(self, name: str, kind: str, count: int, each: bool) -> KeyedRequest:
        key = IdempotencyKey(name, kind.encode())
        requests = self._requests(kind, count)

        def act(run: Runtime) -> list[Any]:
            if not each:
                return run.idempotent_push.push(key, requests, batch=count > 1)
            sent: list[JobRequest | OjsError] = [*requests, InvalidRequest("type", "is wrong")]
            outcomes = run.bulk_push.push(sent, key=key, producer=None, reaches=everything)
            run.bulk_push.note(outcomes, "partial")
            return list(outcomes)

        return KeyedRequest(key, kind, act)

    def _requests(self, kind: str, count: int, **more: Any) -> list[JobRequest]:
        self.world.queues.add("default")
        entry: Mapping[str, Any] = {"type": kind, "options": {"retry": RETRY, **more}}
        return [envelope.parse({**entry, "args": [number]}) for number in range(1, count + 1)]

    def push_each(self, count: int) -> None:
        """Push so many jobs, each for itself, without a key; what was told as stored is there."""
        requests = self._requests("bulk", count)

        def act() -> list[PushOutcome]:
            outcomes = self.run.bulk_push.push(requests, producer=None, reaches=everything)
            self.run.bulk_push.note(outcomes, "partial")
            return outcomes

        answer = self.ask("bulk push", act)
        for one in answer or ():
            if isinstance(one, Pushed):
                self.world.told.add(one.job.id)

    def push_and_die(self, count: int, **options: Any) -> None:
        """Stage a batch, and die before its commit."""
        requests = self._requests(f"tag{self.name}{len(self.world.pushes)}", count, **options)

        def die() -> None:
            raise Died

        push = self.run.enqueue.prepare(requests, None, everything, batch=True)
        kind = requests[0].type
        self.world.pushes.append(Push([], lambda _: None, tag=kind, count=count))
        self.ask("push batch", lambda: self.run.enqueue.store(replace(push, before_commit=die), 0))


def keys(world: World) -> list[Acts]:
    """Two producers push with the same keys, at the same time, again and with other bodies, one
    job, a staged batch, or many jobs each for itself; the queue may be full.
    """
    keyed = Keyed(world)
    world.promises.append(keyed)
    if world.chance.random() < 0.4:
        world.run.queues.configure("default", {"max_size": world.chance.choice((4, 9))})
    made: list[Acts] = []
    for name in ("p1", "p2"):
        producer = KeyedProducer(world, name, keyed)
        acts: Acts = [
            partial(producer.push_once, "one", 1),
            partial(producer.push_once, "few", 2),
            partial(producer.push_once, "many", _MANY),
            partial(producer.push_once, "many", _MANY),
            partial(producer.push_once, "many", _MANY, other=True),
            partial(producer.push_once, "each", _MANY, each=True),
            partial(producer.push_once, "each", _MANY, each=True),
            partial(producer.push_once, "one", 1, other=True),
            partial(producer.push_each, _MANY),
        ]
        made.append([producer.does(act) for act in some(world.chance, acts, 4)])
    worker, hand = Worker(world, "w"), Operator(world, "o")
    acts = [worker.any, worker.any, hand.sweep, hand.wait, hand.cancel, hand.reconcile]
    return [*made, [worker.does(act) for act in some(world.chance, acts, 5)]]


def delayed(world: World) -> list[Acts]:
    """Staged batches of jobs with a start; who pushes them dies before their commit, now and then,
    and they come due before the sweep undoes them.
    """
    keyed = Keyed(world)
    if world.chance.random() < 0.3:
        world.run.queues.configure("default", {"max_size": 12})
    made: list[Acts] = []
    for name in ("p1", "p2"):
        producer = KeyedProducer(world, name, keyed)
        push = partial(producer.push, retry=RETRY, chosen=False, large=False)
        acts: Acts = [
            partial(push, _MANY, scheduled_at="+PT2S"),
            partial(push, _MANY),
            partial(producer.push_and_die, _MANY, scheduled_at="+PT2S"),
            partial(producer.push_and_die, _MANY, scheduled_at="+PT1S"),
        ]
        made.append([producer.does(act) for act in some(world.chance, acts, 2)])
    worker, hand = Worker(world, "w"), Operator(world, "o")
    acts = [worker.fetch, partial(worker.fetch, 3), worker.any, hand.sweep]
    acts += [partial(hand.wait, 2_001)] * 2
    return [*made, [worker.does(act) for act in some(world.chance, acts, 8)]]


def doubted(world: World) -> list[Acts]:
    """Pushes into a bounded queue of which nobody knows whether they are stored; what is stored, or
    comes late, is taken, cancelled and removed meanwhile.
    """
    world.plan.unanswered = 0.4
    world.watch.erased = True
    world.run.queues.configure("default", {"max_size": world.chance.choice((4, 70))})
    made: list[Acts] = []
    for name in ("p1", "p2"):
        producer, hand = Producer(world, name), Operator(world, f"{name}h")
        acts: Acts = [partial(producer.push, retry=RETRY)] * 2
        acts += [partial(producer.push, retry=RETRY, chosen=False, large=False)]
        acts += [partial(hand.wait, 15_001), partial(hand.wait, 20_001), hand.look]
        made.append([producer.does(act) for act in some(world.chance, acts, 7)])
    worker, hand = Worker(world, "w"), Operator(world, "o")
    acts = [worker.fetch, worker.any, hand.cancel, hand.cancel, hand.erase, hand.erase]
    acts += [hand.reconcile, hand.sweep, partial(hand.wait, 10_000)]
    return [*made, [worker.does(act) for act in some(world.chance, acts, 9)]]


KEYED: dict[str, Callable[[World], list[Acts]]] = {
    "keys": keys,
    "delayed": delayed,
    "doubted": doubted,
}
