"""How busy many clients keep a limited queue while claims are throttled.

Clients and calls take time here, on a clock that goes on to whoever is next; nothing is left to the
speed of the machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from botocore.exceptions import ClientError

from ojs import runtime
from ojs.domain.errors import BackendUnavailable
from ojs.domain.ids import IdSource
from ojs.domain.job import envelope
from ojs.services.for_each import one_by_one
from ojs.settings import Settings
from ojs.store.jobs.blobs import MemoryBlobs
from ojs.store.table import keys
from tests.simulation.memory import Change, Memory
from tests.simulation.scheduler import Scheduler

QUEUE = "limited"
LIMIT = 10
CLIENTS = 64
JOB_MS = 1_000
# A call to the table lasts so long, with both ways; and so long a client with an empty answer waits
# until it asks again. In ms, from and to.
_CALL_MS = (3.0, 8.0)
_IDLE_MS = (200.0, 600.0)
# What is measured begins when all clients have asked once.
_FROM_MS = 2_000


class Timeline:
    """Time that goes on to the next thing that happens."""

    def __init__(self) -> None:
        self.now = 1_780_000_000_000.0
        self._wakes: dict[int, float] = {}
        self.scheduler = Scheduler(self._next)

    def now_ms(self) -> int:
        """As `ojs.clock.Clock` has it."""
        return int(self.now)

    def wait(self, ms: float) -> None:
        """Whoever asks goes on so much later; others do what they do until then."""
        me = self.scheduler.current
        if me is not None:
            self._wakes[me] = self.now + ms
            self.scheduler.step()
            self.now = max(self.now, self._wakes[me])

    def _next(self, alive: Sequence[int], _: int) -> int:
        return min(alive, key=lambda actor: self._wakes.get(actor, 0.0))


class Calls:
    """The client of one container: calls take time, and of claims a part is refused in all tries,
    before anything is done.
    """

    def __init__(self, memory: Memory, timeline: Timeline, throttled: float, seed: int) -> None:
        self._memory, self._timeline = memory, timeline
        self._throttled = throttled
        self._chance = random.Random(seed)
        self._refused: str | None = None
        self.claims = self.refusals = 0

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            self._timeline.wait(self._chance.uniform(*_CALL_MS) / 2)
            if self._refuses(name, arguments):
                raise ClientError({"Error": {"Code": "ThrottlingException"}}, name)
            answer = getattr(self._memory, name)(arguments)
            self._timeline.wait(self._chance.uniform(*_CALL_MS) / 2)
            return answer

        return call

    def _refuses(self, name: str, arguments: Any) -> bool:
        values = arguments.get("ExpressionAttributeValues", {}).values()
        of_job = str(arguments.get("Key", {}).get("pk", {}).get("S", "")).startswith(keys.job(""))
        states = [{"S": "available"}, {"S": "active"}]
        if name != "update_item" or not of_job or not all(state in values for state in states):
            return False
        if self._refused == (told := str(arguments)):
            return True
        self.claims += 1
        self._refused = told if self._chance.random() < self._throttled else None
        self.refusals += self._refused is not None
        return self._refused is not None


class Running:
    """How many jobs run, seen by each write; the most, and for how long how many."""

    def __init__(self, timeline: Timeline, end: float) -> None:
        self._timeline, self._end = timeline, end
        self._since = timeline.now + _FROM_MS
        self.now = self.most = 0
        self.lasted: dict[int, float] = {}

    def __call__(self, changes: list[Change]) -> None:
        for (pk, sk), before, after in changes:
            if pk.startswith(keys.job("")) and sk == keys.RECORD:
                self.note()
                self.now += _active(after) - _active(before)
                self.most = max(self.most, self.now)

    def note(self) -> None:
        """As many as now ran until now."""
        until = min(self._timeline.now, self._end)
        if until > self._since:
            self.lasted[self.now] = self.lasted.get(self.now, 0.0) + until - self._since
            self._since = until

    @property
    def used(self) -> float:
        """The part of the limit that was used, on average over time."""
        return sum(count * ms for count, ms in self.lasted.items()) / (
            LIMIT * sum(self.lasted.values())
        )


def _active(record: Any) -> bool:
    return record is not None and record["state"]["S"] == "active"


def run(seconds: int, throttled: float, seed: int) -> tuple[Running, float]:
    """So many seconds of work by all clients; what ran, and which part of claims was refused."""
    random.seed(seed)
    memory, timeline = Memory(), Timeline()
    chance = random.Random(seed)
    calls = [Calls(memory, timeline, throttled, seed * 1_000 + n) for n in range(CLIENTS)]
    containers = [
        runtime.build(
            Settings(table="simulated"),
            client=cast("Any", client),
            blobs=MemoryBlobs(),
            clock=timeline,
            ids=IdSource(timeline, chance.randbytes),
            sleep=lambda pause_s: timeline.wait(pause_s * 1_000),
            for_each=one_by_one,
        )
        for client in calls
    ]
    containers[0].queues.create(QUEUE, {"concurrency": LIMIT})
    for _ in range(seconds * LIMIT // 50 + 1):
        job = {"type": "t", "args": [], "options": {"queue": QUEUE}}
        containers[0].enqueue.push_batch([envelope.parse(job) for _ in range(50)])
    end = timeline.now + seconds * 1_000
    running = Running(timeline, end)
    memory.watchers.append(running)

    def work(number: int) -> None:
        container, name = containers[number], f"worker-{number}"
        timeline.wait(chance.uniform(0, _IDLE_MS[1]))
        while timeline.now < end:
            try:
                jobs = container.fetch.fetch([QUEUE], 1, name)
            except BackendUnavailable:
                # Asked again at once, as by most clients' first repetition.
                continue
            for job in jobs:
                timeline.wait(JOB_MS)
                container.finish.ack(job.id, worker_id=name)
            if not jobs:
                timeline.wait(chance.uniform(*_IDLE_MS))

    timeline.scheduler.run([partial(work, number) for number in range(CLIENTS)])
    running.note()
    claims = sum(client.claims for client in calls)
    return running, sum(client.refusals for client in calls) / claims
