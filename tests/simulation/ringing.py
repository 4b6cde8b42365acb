"""Workers that listen, under faults: requests die and lose their answers while connections come and
go, and messages are lost, come twice or too late.

In the end two things must hold. Whatever happens to messages, each job begins within the fallback.
And while nothing goes wrong, each begins at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ojs.domain.access import ANYBODY
from ojs.domain.job import envelope
from ojs.domain.job.job import Job
from ojs.domain.realtime import CONNECTION_MS, Connection, Posted
from ojs.services.jobs.empty_lines import FEW
from ojs.services.jobs.fetch import WorkerFetch
from ojs.services.realtime.listening import FALLBACK_MS, ListenerState
from ojs.store.table import keys
from tests.simulation.actors import Operator, Producer, Worker
from tests.simulation.acts import RETRY, some
from tests.simulation.faults import Died
from tests.simulation.invariants import Speech, broken
from tests.simulation.listeners import MOST_INDEX_MS, SECOND, Air, Listener, Timeline
from tests.simulation.memory import KEPT_WRITES
from tests.simulation.world import Acts, World

if TYPE_CHECKING:
    from ojs.runtime import Runtime

QUEUE = "default"
# Fetches of many queues pass over those that were empty.
_OTHERS = [f"q{number}" for number in range(FEW)]
# In which time a job begins while nothing goes wrong, and how long a short and a long one lasts.
_AT_ONCE_MS = 2 * SECOND
_SHORT_MS, _LONG_MS = 200, 30 * SECOND
# No worker looks later than this.
_FALLBACK_MS = round(12 * FALLBACK_MS * 1.9)
_RETRY_MS = 1 * SECOND
_RETRY = {"max_attempts": 3, "initial_interval": "PT1S", "jitter": False}
_MINUTE = 60 * SECOND


@dataclass
class Ringing:
    """The connections of a run: of its actors, and then those of the end."""

    world: World
    # What came for each connection of an actor, until it ends.
    inboxes: dict[str, list[str]] = field(default_factory=dict)
    air: Air | None = None

    def post(self, connection: str, text: str) -> Posted:
        """Send a message, as `ojs.domain.realtime.Connections` does."""
        if self.air is not None:
            return self.air.post(connection, text)
        world, odd = self.world, self.world.odd
        world.scheduler.step()
        if connection not in self.inboxes:
            return Posted.GONE
        if world.plan.on and odd.random() < 2 * world.plan.rate:
            world.plan.done["message"] += 1
            if world.plan.deaths and odd.random() < 0.3:
                raise Died
            return odd.choice((Posted.FAILED, Posted.POSTED))
        self.inboxes[connection] += [text] * odd.choice((1, 1, 2))
        return Posted.POSTED

    # --- the end ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Nobody sweeps: workers alone find what there is to do."""
        world = self.world
        world.watch.set.clear()
        world.run.queues.resume(QUEUE)
        flow = Flow(world, self)
        flow.storm()
        flow.calm()


class Flow:
    """Workers of a fleet, on a clock that goes on to what happens next."""

    def __init__(self, world: World, ringing: Ringing) -> None:
        self.world, self.chance = world, world.odd
        self.timeline = Timeline(world.clock)
        ringing.air = self.air = Air(self.timeline, self.chance)
        self._late_index()
        self.runs = [world.container() for _ in range(2)]
        # By when each job is to have begun; and whether it is to fail once.
        self.until: dict[str, int] = {}
        self.failing: set[str] = set()
        self.limit_ms: int | None = None
        self.number = self.chance.choice((1, 3, 6))
        # They may all take jobs of this queue.
        queues = self.chance.choice([[[QUEUE]], [[QUEUE]], [[QUEUE], [QUEUE, *_OTHERS]]])
        for name in queues[-1][1:]:
            world.run.queues.create(name, {})
        self.fleet = [
            Listener(
                f"l{number}", self.air, self.runs, self.chance.choice(queues),
                job_ms=_SHORT_MS, end=self._end, claimed=self._claimed,
            )
            for number in range(self.number)
        ]  # fmt: skip
        for listener in self.fleet:
            self.timeline.after(self.chance.randint(0, 5 * SECOND), listener.connect)

    def _late_index(self) -> None:
        """The index answers from some ms ago, and from no longer ago."""
        written: deque[int] = deque(maxlen=KEPT_WRITES)
        clock = self.world.clock
        self.world.memory.watchers.append(
            lambda changes: written.extend([clock.now_ms()] * len(changes))
        )

        def writes_ago() -> int:
            seen_ms = clock.now_ms() - self.chance.randint(0, MOST_INDEX_MS)
            return sum(at_ms > seen_ms for at_ms in written)

        plan: Any = self.world.plan
        plan.on, plan.rate, plan.delayed, plan.writes_ago = True, 0.0, 0.0, writes_ago

    # --- what happens -----------------------------------------------------------------------------

    def push(self, jobs: int = 1, *, fails: bool = False, **options: Any) -> list[Job]:
        """One request."""
        entry = {"type": "t", "args": [1], "options": {"queue": QUEUE, "retry": _RETRY, **options}}
        run = self.chance.choice(self.runs)
        requests = [envelope.parse(entry) for _ in range(jobs)]
        pushed = [each.job for each in run.enqueue.push_batch(requests)]
        run.flush()
        for job in pushed:
            self._expect(job, job.due_ms if options.get("scheduled_at") else self._now_ms)
            self.failing |= {job.id} if fails else set()
        return pushed

    @property
    def _now_ms(self) -> int:
        return self.world.clock.now_ms()

    def _expect(self, job: Job, at_ms: int) -> None:
        """A job can begin from now on: the next worker that looks when the index shows it takes it,
        and while nothing goes wrong another one before.
        """
        if self.limit_ms is not None:
            until_ms = at_ms + self.limit_ms
        else:
            looks = [each.looks_ms for each in self.fleet]
            shown_ms = at_ms + MOST_INDEX_MS
            until_ms = min((ms for ms in looks if ms > shown_ms), default=at_ms + _FALLBACK_MS)
        self.until[job.id] = until_ms + _AT_ONCE_MS

    def _claimed(self, job: Job) -> None:
        until_ms = self.until.pop(job.id, None)
        if until_ms is not None and self._now_ms > until_ms:
            raise broken("a job begins in time", job=job.id, late_ms=self._now_ms - until_ms)

    def _end(self, run: Runtime, job: Job) -> None:
        token = job.lease.token if job.lease else None
        self.world.watch.speech[None] = Speech({keys.job(job.id)}, token, job.worker_id or "")
        shown: Any = {"worker_id": job.worker_id, "lease_token": token}
        if job.id in self.failing:
            self.failing.remove(job.id)
            run.finish.nack(job.id, error={"type": "E", "message": "m"}, **shown)
            self._expect(job, self._now_ms + _RETRY_MS)
        elif run.jobs.get(job.id).state.value == "active":
            run.finish.ack(job.id, **shown)

    def _all_began(self) -> None:
        if self.until:
            raise broken("a job begins in time", jobs=list(self.until))

    # --- both parts -------------------------------------------------------------------------------

    def storm(self) -> None:
        """Messages are lost, and connections end, unnoticed for a while."""
        air = self.air
        air.failing, air.lost, air.doubled, air.ending = 0.1, 0.4, 0.1, 0.1
        self.timeline.go_on(20 * SECOND)
        for _ in range(4):
            self.push(self.chance.randint(1, 2), fails=self.chance.random() < 0.3)
            self.timeline.go_on(self.chance.randint(1, 90) * SECOND)
        self.push(scheduled_at=self.chance.choice(("+PT5S", "+PT2M", "+PT6M")))
        while self.until and self._now_ms < max(self.until.values()):
            self.timeline.go_on(10 * SECOND)
        self._all_began()

    def calm(self) -> None:
        """Nothing goes wrong: every kind of job begins at once."""
        self.air.failing = self.air.lost = self.air.ending = 0.0
        # Those whose connection has ended have a new one, and all containers know them.
        self.timeline.go_on(2 * _MINUTE)
        self.limit_ms = 0
        for _ in range(4):
            self.chance.choice(_CALM)(self)
            self._all_began()
            self.timeline.go_on(self.chance.randint(1, 20) * SECOND)

    def _one(self) -> None:
        self.push(fails=self.chance.random() < 0.5)
        self.timeline.go_on(5 * SECOND)

    def _for_each(self) -> None:
        """As many long jobs as there are workers; then one more comes as one of them ends."""
        for listener in self.fleet:
            listener.job_ms = _LONG_MS
        self.push(self.number)
        self.timeline.go_on(_AT_ONCE_MS)
        self._all_began()
        for listener in self.fleet:
            listener.job_ms = _SHORT_MS
        self.timeline.go_on(_LONG_MS)

    def _some_are_busy(self) -> None:
        """Half of the workers have long jobs; others come one by one."""
        for listener in self.fleet:
            listener.job_ms = _LONG_MS
        if self.number > 1:
            self.push(self.number // 2)
        self.timeline.go_on(_AT_ONCE_MS)
        for listener in self.fleet:
            listener.job_ms = _SHORT_MS
        for _ in range(5):
            self.push()
            self.timeline.go_on(3 * SECOND)
        self.timeline.go_on(_LONG_MS)

    def _as_one_ends(self) -> None:
        """A job comes in the moment in which a worker looks, and is not listed yet."""
        for _ in range(8):
            self.push(self.number)
            self.timeline.go_on(_SHORT_MS + self.chance.randint(0, 120))
            self.push()
            self.timeline.go_on(5 * SECOND)

    def _soon(self) -> None:
        self.push(scheduled_at="+PT20S")
        self.timeline.go_on(25 * SECOND)

    def _later(self) -> None:
        """Further ahead than a timer is set."""
        self.push(scheduled_at="+PT8M")
        self.timeline.go_on(8 * _MINUTE + 5 * SECOND)

    def _after_a_pause(self) -> None:
        run = self.chance.choice(self.runs)
        run.queues.pause(QUEUE)
        run.flush()
        jobs = self.push(1)
        self.timeline.go_on(_MINUTE)
        run.queues.resume(QUEUE)
        run.flush()
        for job in jobs:
            self._expect(job, self._now_ms)
        self.timeline.go_on(5 * SECOND)

    def _after_a_cancellation(self) -> None:
        """One of a queue may run at a time, and it is cancelled."""
        run = self.chance.choice(self.runs)
        run.queues.configure(QUEUE, {"concurrency": 1})
        run.flush()
        self.timeline.go_on(_MINUTE)
        for listener in self.fleet:
            listener.job_ms = 2 * _MINUTE
        first, second = self.push(2)
        self.timeline.go_on(_MINUTE)
        waiting = first if first.id in self.until else second
        running = second if waiting is first else first
        self.world.watch.speech[None] = Speech()
        run.jobs.cancel(running.id)
        run.flush()
        self._expect(waiting, self._now_ms)
        if self.number == 1:
            # Its only worker goes on with the cancelled job.
            self.until.clear()
        self.timeline.go_on(5 * SECOND)
        run.queues.configure(QUEUE, {"concurrency": None})
        run.flush()
        for listener in self.fleet:
            listener.job_ms = _SHORT_MS
        self.timeline.go_on(3 * _MINUTE)

    def _after_a_long_time(self) -> None:
        self.timeline.go_on(25 * _MINUTE)
        self._one()


_CALM: Sequence[Callable[[Flow], None]] = (
    Flow._one,
    Flow._for_each,
    Flow._some_are_busy,
    Flow._as_one_ends,
    Flow._soon,
    Flow._later,
    Flow._after_a_pause,
    Flow._after_a_cancellation,
    Flow._after_a_long_time,
)


class ListeningWorker(Worker):
    """A worker whose fetches list its connection."""

    def __init__(self, world: World, name: str, ringing: Ringing) -> None:
        super().__init__(world, name)
        self._ringing = ringing
        self._numbers = 0
        self.connection = ""
        self.listed: bool | None = False
        self._connect()

    def _connect(self) -> None:
        self._numbers += 1
        self.connection, self.listed = f"{self.name}-{self._numbers}", False
        connection = Connection(self.connection, ANYBODY, self.world.clock.now_ms() + CONNECTION_MS)
        if self.ask("connect", lambda: self._store(connection)):
            self._ringing.inboxes[self.connection] = []

    def _store(self, connection: Connection) -> bool:
        self.run.stores.connections.add(connection)
        return True

    def reconnect(self) -> None:
        """Its connection has ended, and $disconnect may not come."""
        self._ringing.inboxes.pop(self.connection, None)
        self._connect()

    def fetch(self, count: int = 1, lease_ms: int | None = None) -> None:
        lease_ms = lease_ms or self.world.odd.choice((3_000, 20_000, 90_000))
        inbox = self._ringing.inboxes.get(self.connection, [])
        rung = frozenset([QUEUE]) if inbox else frozenset[str]()
        inbox.clear()
        seen = WorkerFetch(rung, self.connection, self.listed)

        def act() -> tuple[list[Job], ListenerState | None]:
            got = self.run.fetch.fetch(
                self.queues, count, self.called, visibility_timeout_ms=lease_ms, seen=seen
            )
            listening = self.run.listening
            assert listening is not None
            heard = listening.update(seen, worker_id=self.called)
            self.run.flush()
            self.world.watch.handed_out(got)
            return got, heard

        self.listed = None
        answer = self.ask("fetch", act)
        if answer is not None:
            got, heard = answer
            self.listed = None if heard is None else heard.listed
            self._take(got)


def rings(world: World) -> list[Acts]:
    """Workers that listen, one of which loses its connection again and again."""
    world.ringing = ringing = Ringing(world)
    world.run = world.container()
    world.queues.add(QUEUE)
    producer, hand = Producer(world, "p"), Operator(world, "o")
    pushing: Acts = [
        partial(producer.push, retry=RETRY, large=False),
        partial(producer.push, 2, retry=RETRY, large=False),
        partial(producer.push, retry=RETRY, scheduled_at="+PT2S", large=False),
    ]
    acts: Acts = [*pushing, hand.sweep, hand.wait, hand.wait, hand.pause, hand.resume, hand.cancel]
    made: list[Acts] = []
    for name in ("w1", "w2"):
        worker = ListeningWorker(world, name, ringing)
        does: Acts = [worker.any, worker.any, worker.fetch, worker.fetch, worker.reconnect]
        made.append([worker.does(act) for act in [worker.fetch, *some(world.chance, does, 6)]])
    return [*made, [producer.does(act) for act in some(world.chance, acts, 7)]]
