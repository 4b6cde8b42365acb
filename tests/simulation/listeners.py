"""Workers that listen, as the library's do, on a clock that goes on to the next thing that happens.

A worker fetches when it is rung, when a job ends, and at the time that its last fetch was told. The
index answers from a while ago. Messages are late, and may be lost, come twice, or find that the
connection has ended.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, cast

from ojs.clock import ManualClock
from ojs.domain.access import ANYBODY
from ojs.domain.job.job import Job
from ojs.domain.realtime import CONNECTION_MS, Connection, Posted, group_of
from ojs.domain.realtime import Listener as ListenerRecord
from ojs.runtime import Runtime
from ojs.services.jobs.fetch import WorkerFetch
from ojs.services.realtime.listening import ListenerState
from tests.simulation.memory import Change, Memory

SECOND = 1_000
# How long a request is on its way to the table and back, and a message to its worker (ms).
WAY_MS = 15
POST_MS = 20
# An entry of the index appears so long after the write, on average and at most (ms).
_INDEX_MS = 15
MOST_INDEX_MS = 75
# When a rung fetch that found nothing asks again (ms).
_AGAIN_MS = (75, 225)
_APART_MS = 100
# As a worker polls that is not listed, and each one for the first time of its connection.
POLL_MS = 4 * SECOND
SETTLED_MS = 15 * SECOND


class Timeline:
    """What happens, and when."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, ms: float, act: Callable[[], None]) -> None:
        """Have this happen so much later."""
        heappush(self._due, (self.clock.now_ms() + round(ms), next(self._numbers), act))

    def go_on(self, ms: int) -> None:
        """Let what happens in this time happen."""
        until_ms = self.clock.now_ms() + ms
        while self._due and self._due[0][0] <= until_ms:
            at_ms, _, act = heappop(self._due)
            self.clock.advance(max(0, at_ms - self.clock.now_ms()))
            act()
        self.clock.advance(until_ms - self.clock.now_ms())


class LateIndex:
    """The SDK's client of a table in memory, whose index answers from up to `MOST_INDEX_MS` ago."""

    def __init__(self, memory: Memory, clock: ManualClock, chance: random.Random) -> None:
        self._memory, self._clock, self._chance = memory, clock, chance
        self._written: deque[int] = deque()
        memory._log = deque(memory._log, maxlen=5_000)
        memory.watchers.append(self._wrote)

    def _wrote(self, changes: Sequence[Change]) -> None:
        self._written.extend([self._clock.now_ms()] * len(changes))

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._memory, name)

        def call(**arguments: Any) -> Any:
            if "IndexName" not in arguments:
                return operation(arguments)
            while self._written and self._written[0] <= self._clock.now_ms() - MOST_INDEX_MS:
                self._written.popleft()
            late_ms = min(MOST_INDEX_MS, self._chance.expovariate(1 / _INDEX_MS))
            seen_ms = self._clock.now_ms() - late_ms
            return operation(arguments, sum(at_ms > seen_ms for at_ms in self._written))

        return call


@dataclass
class Air:
    """The connections of a deployment, and how many of their messages go wrong."""

    timeline: Timeline
    chance: random.Random
    listeners: dict[str, Listener] = field(default_factory=dict)
    # Parts of the messages that fail, that are lost unnoticed, and that come twice; and of those
    # whose connection ends before.
    failing: float = 0.0
    lost: float = 0.0
    doubled: float = 0.0
    ending: float = 0.0
    posted: int = 0

    def post(self, connection: str, text: str) -> Posted:
        self.posted += 1
        listener = self.listeners.get(connection)
        if listener is not None and self.chance.random() < self.ending:
            listener.disconnect()
            listener = None
        if listener is None:
            return Posted.GONE
        if self.chance.random() < self.failing:
            return Posted.FAILED
        times = 2 if self.chance.random() < self.doubled else 1
        if self.chance.random() >= self.lost:
            for _ in range(times):
                late_ms = POST_MS * self.chance.uniform(0.5, 1.5)
                self.timeline.after(late_ms, partial(listener.hear, connection, json.loads(text)))
        return Posted.POSTED


@dataclass
class Listener:
    """A worker process."""

    name: str
    air: Air
    # The containers that answer its requests.
    runs: Sequence[Runtime]
    queues: Sequence[str] = ("mail",)
    slots: int = 1
    job_ms: int = 2 * SECOND
    # What a job becomes, with the run that ends it.
    end: Callable[[Runtime, Job], Any] = lambda run, job: run.finish.ack(job.id)
    # Told of each job that it claims.
    claimed: Callable[[Job], None] = lambda _: None
    connection: str | None = None
    listed: bool | None = False
    fetches: int = 0
    running: int = 0
    # When it looks for jobs at the latest, if it does not wait for one to end.
    looks_ms: int = 0
    _since_ms: int = 0
    _fetching: bool = False
    _again: bool = False
    _rung: set[str] = field(default_factory=set)
    _looks: int = 0
    _timer: int = 0
    _rung_ms: int = 0
    _connections: int = 0

    @property
    def free(self) -> int:
        return self.slots - self.running

    @property
    def _now_ms(self) -> int:
        return self.air.timeline.clock.now_ms()

    def connect(self, *, listed: bool = False) -> None:
        """A ticket, and a connection; with `listed` as it is after its first fetches."""
        self._connections += 1
        self.connection = f"{self.name}-{self._connections}"
        self.listed, self._since_ms = False, self._now_ms
        self.air.listeners[self.connection] = self
        until_ms = self._now_ms + CONNECTION_MS
        stores, group = self._run().stores, group_of(self.queues)
        stores.connections.add(Connection(self.connection, ANYBODY, until_ms))
        if not listed:
            self.fetch()
            return
        self.listed = True
        stores.listeners.add(group, ListenerRecord(self.connection, self.name, until_ms))
        stores.realtime_directory.note_group(group, self.queues)
        self._wait(self.air.chance.uniform(SETTLED_MS, 300 * SECOND))

    def disconnect(self) -> None:
        """The connection ends; $disconnect may come or not. The worker polls meanwhile."""
        if self.connection is not None:
            del self.air.listeners[self.connection]
            self.connection, self.listed = None, False
            self._wait(POLL_MS)
            self.air.timeline.after(self.air.chance.randint(1, 60) * SECOND, self.connect)

    def hear(self, connection: str, message: dict[str, Any]) -> None:
        """A message."""
        if connection != self.connection or message["type"] != "ring":
            return
        ring = partial(self._ring, message["queue"], again="indexed" not in message)
        wait_ms = message.get("at_ms", self._now_ms) - self._now_ms
        if wait_ms > 0:
            self.air.timeline.after(wait_ms, ring)
        else:
            ring()

    def _ring(self, queue: str, *, again: bool) -> None:
        self._rung.add(queue)
        self._looks = 0 if again else len(_AGAIN_MS)
        early_ms = self._rung_ms + _APART_MS - self._now_ms
        if early_ms > 0:
            self.air.timeline.after(early_ms, self.fetch)
        else:
            self._rung_ms = self._now_ms
            self.fetch()

    def fetch(self) -> None:
        """Ask for as many jobs as there are free slots; one request at a time."""
        if self._fetching:
            self._again = True
        elif self.free:
            self._fetching, self._again, self._timer = True, False, self._timer + 1
            rung, self._rung = self._rung, set()
            self.air.timeline.after(WAY_MS, partial(self._serve, rung, self.free))

    def _run(self) -> Runtime:
        return self.air.chance.choice(self.runs)

    def _serve(self, rung: set[str], wanted: int) -> None:
        run = self._run()
        self.fetches += 1
        seen = WorkerFetch(frozenset(rung), self.connection, self.listed)
        jobs = run.fetch.fetch(self.queues, wanted, self.name, seen=seen)
        listening = run.listening
        assert listening is not None
        heard = listening.update(seen, worker_id=self.name)
        run.flush()
        for job in jobs:
            self.claimed(job)
        self.air.timeline.after(WAY_MS, partial(self._answered, seen, jobs, heard, wanted))

    def _answered(
        self, seen: WorkerFetch, jobs: Sequence[Job], heard: ListenerState | None, wanted: int
    ) -> None:
        self._fetching = False
        self.running += len(jobs)
        for job in jobs:
            self.air.timeline.after(self.job_ms, partial(self._end, job))
        if seen.connection == self.connection and heard is not None:
            self.listed = heard.listed
        if self._again or self._rung:
            self.fetch()
        elif len(jobs) < wanted:
            self._wait(self._next_ms(seen, jobs, heard))

    def _next_ms(
        self, seen: WorkerFetch, jobs: Sequence[Job], heard: ListenerState | None
    ) -> float:
        if seen.rung and not jobs and self._looks < len(_AGAIN_MS):
            self._rung |= set(seen.rung)
            self._looks += 1
            return _AGAIN_MS[self._looks - 1]
        next_ms = None if heard is None else heard.next_ms
        early = self._now_ms - self._since_ms < SETTLED_MS
        return POLL_MS if next_ms is None else min(next_ms, POLL_MS) if early else next_ms

    def _wait(self, ms: float) -> None:
        self._timer, self.looks_ms = self._timer + 1, self._now_ms + round(ms)
        self.air.timeline.after(ms, partial(self._wake, self._timer))

    def _wake(self, timer: int) -> None:
        if timer == self._timer:
            self.fetch()

    def _end(self, job: Job) -> None:
        run = self._run()
        self.end(run, job)
        run.flush()
        self.running -= 1
        self.fetch()


def fetches(listeners: Sequence[Listener]) -> int:
    """How many fetches there were."""
    return sum(listener.fetches for listener in listeners)


def client(memory: Memory, clock: ManualClock, chance: random.Random) -> Any:
    """A client with a late index."""
    return cast("Any", LateIndex(memory, clock, chance))
