"""The erasure of a person's data beside pushes, fetches and retries, with faults.

What was stored of the person before the erasure began is nowhere in the end: not in the table, not
in the bucket. What is of others is all there.
"""

from __future__ import annotations

import gzip
import zlib
from functools import partial
from typing import Any

from ojs.domain.dead_letter.bulk import Action
from ojs.domain.filters.jobs import JobFilter
from tests.simulation import quiet
from tests.simulation.actors import Operator, Producer, Stream, Worker
from tests.simulation.acts import RETRY, some
from tests.simulation.invariants import broken
from tests.simulation.world import BIG, Acts, Push, World

PERSON, OTHER = {"customer": "alice"}, {"customer": "bob"}


class Erasing:
    """What is known of a person's jobs, and of others'."""

    def __init__(self, world: World) -> None:
        self._world = world
        # By what their args have.
        self.of_person: dict[str, Push] = {}
        self.of_others: list[Push] = []
        # What was stored for certain when the erasure began.
        self.erased: set[str] | None = None

    def begin(self, run: Any) -> None:
        """Have the person's data erased; once it was answered, it is on its way."""
        stored = {text for text, push in self.of_person.items() if push.acknowledged}
        wanted = JobFilter(meta=PERSON)
        answer, _ = self._world.request("erase", lambda: run.bulk.begin(Action.ERASE_JOBS, wanted))
        if answer is not None and self.erased is None:
            self.erased = stored

    def ask_again(self) -> None:
        """If nobody was told that it began."""
        if self.erased is None:
            self.begin(self._world.run)

    def look_after(self) -> None:
        """The sweep goes on with it."""
        world = self._world
        world.check_swept(world.run.bulk.run_once(world.run.clock.now_ms(), 1_000))

    def check(self) -> None:
        """What is of others is there."""
        jobs = quiet.job_records(quiet.everything(self._world.memory))
        for push in self.of_others:
            if push.acknowledged and (gone := [one for one in push.ids if one not in jobs]):
                raise broken("an erasure takes nothing of others", jobs=gone)

    def check_end(self) -> None:
        """Nothing of the person is left."""
        self.check()
        found = quiet.everything(self._world.memory)
        places = [
            (f"{pk} {sk} {name}", _texts(value))
            for (pk, sk), item in found.items()
            for name, value in item.items()
        ]
        places += [(name, _texts(body)) for name, body in self._world.objects.items()]
        for text in self.erased or ():
            left = [place for place, told in places if any(text.encode() in one for one in told)]
            if left:
                raise broken("nothing is left of who is forgotten", of=text, at=left)


def _texts(value: Any) -> list[bytes]:
    """A value as it is, and as what is compressed in it."""
    if isinstance(value, str):
        return [value.encode()]
    if not isinstance(value, bytes | bytearray):
        return [str(value).encode()]
    body = bytes(value)
    found = [body]
    for unpack in (zlib.decompress, gzip.decompress):
        try:
            found.append(unpack(body))
        except (zlib.error, OSError, EOFError):
            continue
    return found


class Customer(Producer):
    """Pushes jobs of the person, and of others."""

    def __init__(self, world: World, name: str, erasing: Erasing) -> None:
        super().__init__(world, name)
        self._erasing = erasing

    def push_of(self, meta: dict[str, str], count: int = 1, **options: Any) -> None:
        """Push jobs whose args have a text that nothing else has."""
        number = len(self.world.pushes)
        text = f"secret-of-{meta['customer']}-{number}."
        large = self.world.odd.random() < 0.3
        entry = {
            "type": "t",
            "args": [f"{text}{BIG if large else ''}"],
            "meta": meta,
            "options": {"retry": RETRY, "visibility_timeout_ms": 2_000, **options},
        }
        push = self.world.push(self.run, [dict(entry) for _ in range(count)])
        if meta is PERSON:
            self._erasing.of_person[text] = push
        else:
            self._erasing.of_others.append(push)


class Eraser(Operator):
    """Begins erasures, and goes on with them."""

    def __init__(self, world: World, name: str, erasing: Erasing) -> None:
        super().__init__(world, name)
        self._erasing = erasing

    def begin(self) -> None:
        self._erasing.begin(self.run)


def erasing(world: World) -> list[Acts]:
    """A person's jobs, in every state, are erased while jobs of others and of the person are
    pushed, fetched, ended and retried, and the stream is read.
    """
    erasure = Erasing(world)
    world.promises.append(erasure)
    world.watch.erased = True
    config = world.chance.choice(({}, {}, {"max_size": 9}, {"concurrency": 2}))
    world.run.queues.create("default", config)
    producer, worker, stream = Customer(world, "p", erasure), Worker(world, "w"), Stream(world)
    producer.push_of(PERSON, retry={"max_attempts": 1})
    producer.push_of(OTHER, retry={"max_attempts": 1})
    worker.fetch(2)
    worker.nack()
    producer.push_of(PERSON)
    producer.push_of(PERSON, scheduled_at="+PT2S")
    producer.push_of(OTHER)
    world.project()
    world.clock.advance(6_000)
    made: list[Acts] = []
    for name in ("o1", "o2"):
        hand = Eraser(world, name, erasure)
        acts: Acts = [hand.go_on_with_bulk] * 3 + [partial(hand.wait, 20_001)] * 2
        acts += [hand.sweep, hand.retry, hand.begin]
        made.append([hand.does(act) for act in [hand.begin, *some(world.chance, acts, 5)]])
    acts = [partial(producer.push_of, OTHER), partial(producer.push_of, PERSON)]
    acts += [partial(producer.push_of, OTHER, 2), stream.read, stream.read]
    made.append([producer.does(act) for act in some(world.chance, acts, 4)])
    acts = [worker.fetch, worker.any, worker.any, worker.ack]
    return [*made, [worker.does(act) for act in some(world.chance, acts, 5)]]
