"""Whether work goes on while faults do: many clients in simulated time.

Each request is done at once, at its moment; pauses between its tries put off what its client does
next. A healthy phase tells how much is done in a minute. Then a part of all tries fails, all the
time: a third of these are throttled, a third time out, a third take effect and the answer is lost.
As much as half of the healthy throughput must be done still, and all of it from a minute after the
last fault on. Then each permit is that of a running job, and each place in a bounded queue a job's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Any

from ojs import runtime
from ojs.domain.delivery.delivery import Delivery, worker_of
from ojs.domain.delivery.outcome import Outcome
from ojs.domain.delivery.push import Push
from ojs.domain.errors import BackendUnavailable, Conflict, OjsError, QueueFull
from ojs.domain.job import envelope
from ojs.domain.job.job import Job
from ojs.domain.job.states import TERMINAL, State
from ojs.services.deliveries.parts import AllowedTargets, DeliveryDependencies
from ojs.store.table import keys
from tests.simulation import quiet
from tests.simulation.invariants import Speech
from tests.simulation.scheduler import Scheduler
from tests.simulation.world import World
from tests.store.pushing import DONE, FUNCTION, settled
from tests.store.streams import SHARD

CLIENTS, RATE = 64, 0.05
MINUTE_MS = 60_000
LEAST_DURING, LEAST_AFTER = 0.5, 0.95
# What can go wrong with a try.
TRIES = ("refused", "unheard", "lost")
_WARM_MS, _POLL_MS, _PUSH_MS, _READ_MS = 15_000, 1_000, 500, 2_000
_WORK_MS, _LEASE_MS = 5_000, 12_000
_PRODUCERS, _WAITING, _AT_ONCE = 4, 24, 500
_ACKS, _RECORDS = 3, 100
_FUNCTIONS, _FUNCTIONS_MS = 8, 100
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
    # The containers that clients and producers come to.
    runs: list[runtime.Runtime] = field(default_factory=list)
    # Wake-ups of a delivery, and what its target does: until when, and which push.
    wakes: list[tuple[int, str]] = field(default_factory=list)
    flying: list[tuple[int, Push]] = field(default_factory=list)

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

    def project(self) -> None:
        """In order, each record once."""
        while records := self.records(self._projected, self._projected + _RECORDS):
            self._projected += len(records)
            assert not self.projector(self.run).run(records, SHARD)

    def look_after_it(self) -> int:
        """What runs each minute, with its own troubles."""
        now_ms = self.clock.now_ms()
        run = self.container()
        sweeps: list[Any] = [run.sweep, run.reconcile, run.pool_permit_sweep, run.throttle_sweep]
        sweeps += [run.delivery_sweep] if run.delivery_sweep is not None else []
        for sweep in sweeps:
            self.attempt(partial(sweep.run_once, now_ms, 2_000))
        return MINUTE_MS

    def held_by_nobody(self) -> int:
        """Permits that no running job has, and places in bounded queues that no job has."""
        found = quiet.everything(self.memory)
        counters = (keys.SEMAPHORE, keys.DEPTH)
        taken: int = sum(
            item.get("n", 0) for (_, sk), item in found.items() if sk.startswith(counters)
        )
        for job in quiet.job_records(found).values():
            if job.permits is not None and job.state is State.ACTIVE:
                taken -= len(job.permits.shards)
            taken -= job.reserved_bytes is not None and job.state not in TERMINAL
        return taken

    # --- a delivery and its target ----------------------------------------------------------------

    def wake(self, names: Iterable[str], *, delay_s: int = 0) -> None:
        """A queue of wake-ups."""
        self.wakes += [(self.clock.now_ms() + 1_000 * delay_s, name) for name in names]

    def waits_for(self, push: Push, *, delivery: Delivery) -> bool:
        """Never: functions tell later."""
        return False

    def send(
        self, pushes: Sequence[Push], *, delivery: Delivery, wait: bool = False
    ) -> Sequence[Outcome | None]:
        """Functions take as long as clients."""
        self.flying += [(self.clock.now_ms() + _WORK_MS, push) for push in pushes]
        return [None] * len(pushes)

    def attempt(self, act: Callable[[], Any]) -> Any:
        """An answer; None if it was refused or is not known."""
        self.watch.speech.pop(None, None)
        try:
            return act()
        except QueueFull:
            raise
        except OjsError:
            return None


class Client:
    """A worker that does one job after the other, each in the same time."""

    def __init__(self, flow: Flow, name: str, queues: list[str] | None, pool: str | None) -> None:
        self._flow, self._name, self._queues, self._pool = flow, name, queues, pool
        self._run = flow.runs[int(name[1:])]
        self._job: Job | None = None
        self._tried = 0
        self.work_ms = _WORK_MS

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


def _producer(flow: Flow, options: list[dict[str, Any]], most: int | None) -> Callable[[], int]:
    """Pushes as long as less than so much waits, or as the queue takes."""

    def push() -> int:
        for _ in range(_AT_ONCE if most is None else most - _waiting(flow)):
            entry = {"type": "t", "args": [1], "options": options[flow.pushed % len(options)]}
            flow.pushed += 1
            run = flow.runs[flow.pushed % len(flow.runs)]
            try:
                flow.attempt(partial(run.enqueue.push, envelope.parse(entry)))
            except QueueFull:
                break
        return _PUSH_MS

    return push


def _waiting(flow: Flow) -> int:
    return sum(
        item["state"]["S"] == "available"
        for (pk, sk), item in flow.memory.items.items()
        if sk == keys.RECORD and pk.startswith(keys.job(""))
    )


def plain(flow: Flow) -> None:
    """A queue without limits."""
    _people(flow, [{}])


def limited(flow: Flow) -> None:
    """A queue that runs half as many jobs at once as there are clients."""
    flow.run.queues.configure("default", {"concurrency": CLIENTS // 2})
    _people(flow, [{}])


def rated(flow: Flow) -> None:
    """A queue that starts half as many jobs in a second as the clients could do."""
    flow.run.queues.configure("default", {"rate_limit": {"limit": 6, "period": "PT1S"}})
    _people(flow, [{}])


def bounded(flow: Flow, size: int) -> None:
    """A queue that takes so many jobs, running ones among them, and is kept full."""
    flow.run.queues.configure("default", {"max_size": size})
    for first in range(0, size, _AT_ONCE):
        raw = {"type": "t", "args": [1]}
        flow.run.enqueue.push_batch([envelope.parse(raw)] * min(size - first, _AT_ONCE))
    _people(flow, [{}], most=None)


def keyed(flow: Flow) -> None:
    """Jobs of sixteen keys, of each of which two run at a time."""
    options = [{"rate_limit": {"key": f"k{n}", "concurrency": 2}} for n in range(16)]
    _people(flow, options, most=96)


def pooled(flow: Flow) -> None:
    """A pool of two queues that runs half as many jobs at once as there are clients."""
    flow.run.pools.put("p", {"queues": ["a", "b"], "concurrency": CLIENTS // 2})
    _people(flow, [{"queue": "a"}, {"queue": "b"}], pool="p")


def pushed(flow: Flow) -> None:
    """A delivery that runs as many jobs at once as there are clients."""
    flow.pushing = DeliveryDependencies(
        wakes=flow, target=lambda _: flow, allowed=AllowedTargets([FUNCTION], ["*"])
    )
    flow.run = flow.container()
    body = {"target": {"function": FUNCTION}, "queues": ["default"], "concurrency": CLIENTS}
    flow.run.deliveries.put("d", body)
    _people(flow, [{}], workers=0)
    for number in range(_FUNCTIONS):
        flow.every(10 + 37 * number, Functions(flow, number))


def least_loaded(flow: Flow) -> None:
    """A pool whose workers get what they can run."""
    flow.run.pools.put("p", {"queues": ["a", "b"], "strategy": "least-loaded"})
    for number in range(8):
        flow.run.workers.register(f"w{number}", {"queues": ["a", "b"], "concurrency": 1}, "p")
    _people(flow, [{"queue": "a"}, {"queue": "b"}], workers=8, pool="p")


def hot(flow: Flow) -> None:
    """Two queues, one of which cannot be read while the faults go on."""
    _people(flow, [{"queue": "a"}, {"queue": "b"}], workers=8, queues=["a", "b"])


KINDS: dict[str, Callable[[Flow], None]] = {
    "plain": plain,
    "limited": limited,
    "rated": rated,
    "keyed": keyed,
    "pooled": pooled,
    "pushed": pushed,
    **{f"bounded {size}": partial(bounded, size=size) for size in (8, 100, 1_000, 10_000)},
    "least-loaded": least_loaded,
    "hot": hot,
}


class Functions:
    """Dispatches what is woken, and settles what functions ended; what fails comes again."""

    def __init__(self, flow: Flow, number: int) -> None:
        self._flow, self._run = flow, flow.runs[number]

    def __call__(self) -> int:
        flow, now_ms = self._flow, self._flow.clock.now_ms()
        ended = [one for one in flow.flying if one[0] <= now_ms][:1]
        if ended:
            flow.flying.remove(ended[0])
            self._settle(ended[0][1])
        for wake in [one for one in flow.wakes if one[0] <= now_ms][:1]:
            flow.wakes.remove(wake)
            if flow.attempt(partial(self._run.dispatch.run, wake[1])) is None:
                flow.wakes.append((now_ms + 1_000, wake[1]))
        return _FUNCTIONS_MS

    def _settle(self, push: Push) -> None:
        flow, pk = self._flow, keys.job(push.job.id)
        flow.watch.speech[None] = Speech({pk}, worker=worker_of("d"), leases={pk: push.token})
        report = self._run.dispatch.settle([settled(push, DONE)])
        if report.failed:
            flow.flying.append((flow.clock.now_ms() + 1_000, push))
        elif not report.stale:
            flow.done.append(flow.clock.now_ms())


def _people(
    flow: Flow,
    options: list[dict[str, Any]],
    *,
    workers: int = CLIENTS,
    queues: list[str] | None = None,
    pool: str | None = None,
    most: int | None = _WAITING,
) -> None:
    named = queues or (None if pool else ["default"])
    flow.runs = [flow.container() for _ in range(CLIENTS)]
    for number in range(_PRODUCERS):
        flow.every(number * _PUSH_MS // _PRODUCERS, _producer(flow, options, most))
    for number in range(workers):
        flow.every(10 + 37 * number, Client(flow, f"w{number}", named, pool))
    flow.every(1_000, flow.read)
    flow.every(17_000, flow.look_after_it)


@dataclass(frozen=True)
class Throughput:
    """Jobs a minute: healthy, with faults, and from a while after them on."""

    healthy: float
    during: float
    after: float
    # How many permits and places no job has: with the last fault, and that while after.
    leaked: tuple[int, int]

    @property
    def kept(self) -> bool:
        """Whether enough was done in each phase, and nothing leaked."""
        return (
            self.during >= LEAST_DURING * self.healthy
            and self.after >= LEAST_AFTER * self.healthy
            and not self.leaked[1]
        )


def measure(
    kind: str,
    seed: int,
    rate: float = RATE,
    *,
    phase_ms: int = MINUTE_MS,
    settle_ms: int = MINUTE_MS,
    **faults: Any,
) -> Throughput:
    """One run, with phases of so long, twice as long with faults, and so long after the last of
    them. Raises what it finds wrong.
    """
    flow = Flow(seed)
    flow.start(Scheduler(lambda alive, _: alive[0]))
    flow.plan.on = False
    flow.plan.deaths, flow.plan.rate = False, rate
    for name, value in ({"kinds": TRIES} | faults).items():
        setattr(flow.plan, name, value)
    KINDS[kind](flow)
    minutes = MINUTE_MS / phase_ms
    flow.go_on(_WARM_MS)
    healthy = flow.go_on(phase_ms) * minutes
    flow.plan.on, flow.plan.hot = True, keys.ready("a", 0) if kind == "hot" else ""
    during = flow.go_on(2 * phase_ms) * minutes / 2
    flow.plan.on = False
    leaked = flow.held_by_nobody()
    flow.go_on(settle_ms)
    left = flow.held_by_nobody()
    return Throughput(healthy, during, flow.go_on(phase_ms) * minutes, (leaked, left))
