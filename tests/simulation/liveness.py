"""Whether work goes on while faults do: many clients in simulated time.

Each request is done at once, at its moment; pauses between its tries put off what its client does
next. A healthy phase tells how much is done in a second. Then some of the calls are refused, or
their answers are lost, all the time, and as much as half of it must be done still; a minute after
the end of the faults it must be as much as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Any

from ojs import runtime
from ojs.domain.errors import BackendUnavailable, Conflict, OjsError
from ojs.domain.job import envelope
from ojs.domain.job.job import Job
from ojs.store.table import keys
from tests.simulation.invariants import Speech
from tests.simulation.scheduler import Scheduler
from tests.simulation.world import World

HEALTHY_MS, FAULTY_MS, MINUTE_MS = 30_000, 120_000, 60_000
RATE = 0.05
LEAST_DURING, LEAST_AFTER = 0.5, 0.9
_POLL_MS, _PUSH_MS, _READ_MS = 250, 500, 2_000
_LEASE_MS = 5_000
_ACKS = 3
_DONE = frozenset({"completed", "discarded", "cancelled"})
_APART = (keys.events(""), "M|")


@dataclass
class Flow(World):
    """A table, its clients and what they get done."""

    # What comes next: (when, in which order, who).
    _next: list[tuple[int, int, Callable[[], int]]] = field(default_factory=list)
    _asked: int = 0
    lag_ms: int = 0
    # When each job was done.
    done: list[int] = field(default_factory=list)
    pushed: int = 0

    def sleep(self, seconds: float) -> None:
        """The client that waits goes on later; the others do not."""
        self.lag_ms += round(seconds * 1_000)

    def every(self, first_ms: int, act: Callable[[], int]) -> None:
        """Have somebody act, again after as many ms as it answers, and those that it waited."""
        self._asked += 1
        heappush(self._next, (self.clock.now_ms() + first_ms, self._asked, act))

    def go_on(self, ms: int) -> int:
        """Let so much time pass; how many jobs were done in it."""
        until_ms, before = self.clock.now_ms() + ms, len(self.done)
        while self._next[0][0] <= until_ms:
            at_ms, _, act = heappop(self._next)
            self.clock.advance(max(0, at_ms - self.clock.now_ms()))
            self.lag_ms = 0
            again_ms = act()
            self.every(again_ms + self.lag_ms, act)
        self.clock.advance(until_ms - self.clock.now_ms())
        return len(self.done) - before

    def forget(self) -> None:
        """Remove jobs that are done, as their time to live does, and what was told of them."""
        items = self.memory.items
        over = {
            pk
            for (pk, sk), item in items.items()
            if sk == keys.RECORD and pk.startswith(keys.job("")) and item["state"]["S"] in _DONE
        }
        for pk, sk in list(items):
            if pk in over or pk.startswith(_APART):
                self.memory.remove((pk, sk))

    def read(self) -> int:
        """The stream is read."""
        on, self.plan.on = self.plan.on, False
        self.project()
        self.plan.on = on
        self.forget()
        return _READ_MS

    def look_after_it(self) -> int:
        """What runs each minute, with its own troubles."""
        now_ms = self.clock.now_ms()
        run = self.container()
        for sweep in (run.sweep, run.reconcile, run.pool_permit_sweep, run.throttle_sweep):
            self.attempt(partial(sweep.run_once, now_ms, 2_000))
        return MINUTE_MS

    def attempt(self, act: Callable[[], Any]) -> Any:
        """An answer; None if it was refused or is not known."""
        self.watch.speech.pop(None, None)
        try:
            return act()
        except OjsError:
            return None


class Client:
    """A worker that does one job after the other, each in the same time."""

    def __init__(self, flow: Flow, name: str, queues: list[str] | None, pool: str | None) -> None:
        self._flow, self._name, self._queues, self._pool = flow, name, queues, pool
        self._run: runtime.Runtime = flow.container()
        self._job: Job | None = None
        self._tried = 0
        self.work_ms = 1_000

    def __call__(self) -> int:
        if self._job is not None and not self._finish(self._job):
            return 100
        found = self._flow.attempt(
            lambda: self._run.fetch.fetch(
                self._queues, 1, self._name, visibility_timeout_ms=_LEASE_MS, pool=self._pool
            )
        )
        if not found:
            return _POLL_MS
        self._job, self._tried = found[0], 0
        return self.work_ms

    def _finish(self, job: Job) -> bool:
        """Whether there is no more to say of a job."""
        token = job.lease.token if job.lease else None
        self._flow.watch.speech[None] = Speech({keys.job(job.id)}, token, self._name)
        self._tried += 1
        try:
            self._run.finish.ack(job.id, worker_id=self._name, lease_token=token)
        except Conflict:
            self._job = None
            return True
        except BackendUnavailable:
            if self._tried == _ACKS:
                self._job = None
            return self._job is None
        self._flow.done.append(self._flow.clock.now_ms())
        self._job = None
        return True


def _producer(flow: Flow, options: list[dict[str, Any]], most: int) -> Callable[[], int]:
    """Pushes whenever there is little left to do."""
    run = flow.container()

    def push() -> int:
        for _ in range(most - _waiting(flow)):
            entry = {"type": "t", "args": [1], "options": options[flow.pushed % len(options)]}
            flow.pushed += 1
            flow.attempt(partial(run.enqueue.push, envelope.parse(entry)))
        return _PUSH_MS

    return push


def _waiting(flow: Flow) -> int:
    return sum(
        item["state"]["S"] == "available"
        for (pk, sk), item in flow.memory.items.items()
        if sk == keys.RECORD and pk.startswith(keys.job(""))
    )


def limited(flow: Flow) -> None:
    """A queue that runs four jobs at once, and twice as many workers."""
    flow.run.queues.configure("default", {"concurrency": 4})
    _people(flow, [{}], workers=8)


def bounded(flow: Flow) -> None:
    """A queue that takes eight jobs, running ones among them."""
    flow.run.queues.configure("default", {"max_size": 8})
    _people(flow, [{}], workers=4, most=16)


def keyed(flow: Flow) -> None:
    """Jobs of four keys, of each of which one runs at a time."""
    options = [{"rate_limit": {"key": f"k{n}", "concurrency": 1}} for n in range(4)]
    _people(flow, options, workers=6)


def pooled(flow: Flow) -> None:
    """A pool of two queues that runs four jobs at once."""
    flow.run.pools.put("p", {"queues": ["a", "b"], "concurrency": 4})
    _people(flow, [{"queue": "a"}, {"queue": "b"}], workers=8, pool="p")


def least_loaded(flow: Flow) -> None:
    """A pool whose workers get what they can run."""
    flow.run.pools.put("p", {"queues": ["a", "b"], "strategy": "least-loaded"})
    for number in range(4):
        flow.run.workers.register(f"w{number}", {"queues": ["a", "b"], "concurrency": 1}, "p")
    _people(flow, [{"queue": "a"}, {"queue": "b"}], workers=4, pool="p")


def hot(flow: Flow) -> None:
    """Two queues, one of which cannot be read while the faults go on."""
    _people(flow, [{"queue": "a"}, {"queue": "b"}], workers=4, queues=["a", "b"], most=24)


KINDS: dict[str, Callable[[Flow], None]] = {
    "limited": limited,
    "bounded": bounded,
    "keyed": keyed,
    "pooled": pooled,
    "least-loaded": least_loaded,
    "hot": hot,
}


def _people(
    flow: Flow,
    options: list[dict[str, Any]],
    *,
    workers: int,
    queues: list[str] | None = None,
    pool: str | None = None,
    most: int = 12,
) -> None:
    named = queues or (None if pool else ["default"])
    flow.every(0, _producer(flow, options, most))
    for number in range(workers):
        flow.every(10 + 37 * number, Client(flow, f"w{number}", named, pool))
    flow.every(1_000, flow.read)
    flow.every(17_000, flow.look_after_it)


@dataclass(frozen=True)
class Throughput:
    """Jobs a minute: healthy, with faults, and from a minute after them on."""

    healthy: float
    during: float
    after: float
    # Of each minute with faults, and after them.
    minutes: list[int]

    @property
    def kept(self) -> bool:
        """Whether enough was done in each phase."""
        return (
            self.during >= LEAST_DURING * self.healthy and self.after >= LEAST_AFTER * self.healthy
        )


def measure(kind: str, seed: int, rate: float = RATE) -> Throughput:
    """One run. Raises what it finds wrong."""
    flow = Flow(seed)
    flow.start(Scheduler(lambda alive, _: alive[0]))
    flow.plan.on = False
    flow.plan.deaths, flow.plan.rate, flow.plan.stubborn = False, rate, 0.5
    KINDS[kind](flow)
    flow.go_on(10_000)
    healthy = flow.go_on(HEALTHY_MS) * MINUTE_MS / HEALTHY_MS
    flow.plan.on, flow.plan.hot = True, keys.ready("a", 0) if kind == "hot" else ""
    minutes = [flow.go_on(MINUTE_MS) for _ in range(FAULTY_MS // MINUTE_MS)]
    flow.plan.on = False
    minutes.append(flow.go_on(MINUTE_MS))
    after = flow.go_on(MINUTE_MS)
    during = sum(minutes[:-1]) * MINUTE_MS / FAULTY_MS
    return Throughput(healthy, during, after, [*minutes, after])
