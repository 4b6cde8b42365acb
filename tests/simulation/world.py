"""A table with faults, the containers on it, those who use them, and what they were promised."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from ojs import projections, runtime
from ojs.clock import ManualClock
from ojs.domain import envelope
from ojs.domain.bulk import Action
from ojs.domain.dead_letter_filter import DeadLetterFilter
from ojs.domain.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    Duplicate,
    OjsError,
)
from ojs.domain.ids import IdSource
from ojs.domain.job import Job
from ojs.domain.states import State
from ojs.settings import Settings
from ojs.store import keys
from ojs.store.blobs import MemoryBlobs
from ojs.store.table import Table
from tests.simulation import invariants
from tests.simulation.faults import Client, Died, Plan
from tests.simulation.invariants import Watch, broken
from tests.simulation.memory import Memory
from tests.simulation.scheduler import Scheduler
from tests.store.streams import FakeMetrics, made_record, recount, scattered

T = TypeVar("T")
SECOND = 1_000
# A request is answered, or given up, within 29 s; more time than this never passes in one.
REQUEST_MS = 25_000
# Longer than the grace of a staged batch and the note of a deleted queue.
LONG_MS = 700_000
MINUTE_MS = 61_000
BIG = "x" * 1_500
ERROR = {"code": "E", "message": "told by the worker"}
_DRAINED = 60


@dataclass
class Push:
    """A push as whoever asked for it knows of it: the jobs' ids, and whether it was answered."""

    ids: list[str]
    act: Callable[[runtime.Runtime], Any]
    acknowledged: bool = False
    # Nobody knows: it may be stored, in whole or not at all.
    unknown: bool = False


@dataclass
class World:
    """One run of the simulation."""

    seed: int
    rate: float = 0.0
    stale: float = 0.0
    stay: float = 0.5
    # The engine, for one that is not of this process.
    memory: Memory = field(default_factory=Memory)
    scheduler: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed}")
        # What the code under test decides by chance comes from the module's own generator.
        random.seed(self.seed)
        self.clock = ManualClock()
        self.blobs = MemoryBlobs()
        self.plan = Plan(self.chance, self.rate, self.stale)
        self.pushes: list[Push] = []
        self.acked: set[str] = set()
        self.queues: set[str] = set()
        self.pool: str | None = None
        self.began: dict[int | None, int] = {}
        self.operations: Counter[str] = Counter()
        self._projected = 0
        # Texts that nobody will ever find: whoever wrote them died before their head.
        self.leaked = 0

    def start(self, scheduler: Scheduler) -> None:
        """Begin, with who decides who goes next."""
        self.scheduler = scheduler
        self.watch = Watch(self.memory, self.clock, scheduler)
        self.run = self.container()

    def container(self) -> runtime.Runtime:
        """A container, with nothing in its memory."""
        client, once = (
            cast("Any", Client(self.memory, self.plan, self.scheduler, once=once))
            for once in (False, True)
        )
        made = runtime.build(
            Settings(table="simulated"),
            client=client,
            once=once,
            blobs=self.blobs,
            clock=self.clock,
            ids=IdSource(self.clock, self.chance.randbytes),
            sleep=self.sleep,
        )
        for table in (made.table, made.gates._table):
            table._sleep = self.sleep
        made.enqueue._bounds._sleep = self.sleep
        return made

    def note(self, what: str) -> None:
        """A line of the timeline, if somebody wants it."""
        if self.plan.timeline is not None:
            who = self.scheduler.current
            self.plan.timeline.append(f"{'-' if who is None else who}   {what}")

    # --- time -------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Time passes for all, and others may go on."""
        self.pass_time(round(seconds * 1_000))
        self.scheduler.step()

    def pass_time(self, ms: int) -> bool:
        """Time goes on; not if a request would last longer than any does."""
        me, now_ms = self.scheduler.current, self.clock.now_ms()
        others = [began for actor, began in self.began.items() if actor != me]
        if any(now_ms + ms - began > REQUEST_MS for began in others):
            return False
        self.clock.advance(ms)
        self.note(f"{ms} ms pass")
        return True

    # --- what users do ----------------------------------------------------------------------------

    def request(self, kind: str, act: Callable[[], T]) -> tuple[T | None, OjsError | None]:
        """One request: its answer; why it was refused; neither when nobody knows how it ended.

        Raises Died when whoever served it is gone.
        """
        me = self.scheduler.current
        self.operations[kind] += 1
        self.note(f"{kind} begins")
        self.began[me] = self.clock.now_ms()
        speech = self.watch.speech[me]
        known = True
        try:
            answer = act()
            self.note(f"{kind} is answered")
        except Died:
            known = False
            raise
        except (BackendUnavailable, BackendTimeout):
            known = False
            return None, None
        except BackendError as error:
            raise broken("no request fails by a defect of ours", kind=kind, error=error) from error
        except OjsError as error:
            self.note(f"{kind} is refused: {error}")
            return None, error
        else:
            return answer, None
        finally:
            if not known:
                self.watch.left |= speech.texts
            self.began.pop(me, None)
            self.watch.speech.pop(me, None)

    def push(self, run: runtime.Runtime, entries: list[dict[str, Any]]) -> Push:
        """A push of some jobs, each under an id that the client chose, so that it can ask again."""
        for entry in entries:
            entry.setdefault("id", run.ids.uuid7())
            self.queues.add(entry.get("options", {}).get("queue", "default"))
        requests = [envelope.parse(entry) for entry in entries]

        def act(by: runtime.Runtime) -> Any:
            if len(requests) == 1:
                return by.enqueue.push(requests[0])
            return by.enqueue.push_batch(requests)

        push = Push([str(entry["id"]) for entry in entries], act)
        self.pushes.append(push)
        self.ask(push, run)
        return push

    def ask(self, push: Push, run: runtime.Runtime) -> None:
        """Ask for a push, perhaps again."""
        kind = "push" if len(push.ids) == 1 else "push batch"
        again, push.unknown = push.unknown, True
        answer, refused = self.request(kind, lambda: push.act(run))
        if answer is not None:
            pushed = answer if isinstance(answer, list) else [answer]
            push.ids = [one.job.id for one in pushed]
        taken = None
        if again and isinstance(refused, Duplicate):
            # What was asked for before went through.
            taken = refused.details.get("existing_job_id")
        if answer is not None or taken in push.ids:
            push.acknowledged = True
        push.unknown = answer is None and refused is None

    # --- the end ----------------------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing goes wrong any more: callers ask again, time passes, the sweeps run."""
        self.plan.on = False
        self.note("nothing goes wrong any more")
        self.began.clear()
        self.run = self.container()
        for push in self.pushes:
            if push.unknown:
                # What was left half stored may stand in the way for a while.
                self.ask(push, self.run)
        for ms in (LONG_MS, MINUTE_MS, MINUTE_MS, MINUTE_MS):
            self.clock.advance(ms)
            self.look_after()

    def look_after(self) -> None:
        """What runs each minute."""
        now_ms = self.clock.now_ms()
        self.project()
        self.run.sweep.run_once(now_ms, 10_000)
        self.run.reconcile.run_once(now_ms, 10_000)
        if self.pool is not None:
            self.run.seating.run_once(now_ms)
        self.run.holding.run_once(now_ms, 1_000)
        self.project()

    def projector(self, run: runtime.Runtime) -> projections.Projector:
        """What reads the stream, in the container of `run`."""
        return projections.build(
            Settings(table="simulated"),
            Table(run.table.client, "simulated", sleep=self.sleep, chance=lambda: 0.5),
            self.clock,
            ids=IdSource(self.clock, self.chance.randbytes),
            blobs=self.blobs,
            metrics=FakeMetrics(),
            copies=run.copies,
            sleep=self.sleep,
            chance=lambda: 0.5,
        )

    def records(self, first: int, last: int | None = None) -> list[Any]:
        """Those records of the stream."""
        return [
            made_record(first + at, old, new, second=second)
            for at, (old, new, second) in enumerate(self.watch.stream[first:last], 1)
        ]

    def project(self) -> None:
        """The stream is read to its end, some of it twice, in any order and company."""
        while self._projected < len(self.watch.stream):
            records = self.records(self._projected)
            self._projected = len(self.watch.stream)
            projector = self.projector(self.run)
            for batch in scattered(records, self.chance):
                if failed := projector.run(batch):
                    raise broken("the stream is projected", failed=len(failed))

    def check_unhealed(self) -> None:
        """Without faults there is nothing to heal: what was taken is given back by who took it."""
        if set(self.plan.done) <= {"stale"}:
            invariants.gates_are_exact(invariants.everything(self.memory), self.watch)

    def check_quiet(self) -> None:
        """What must hold when nobody does anything and the sweeps have run."""
        found = invariants.everything(self.memory)
        invariants.gates_are_exact(found, self.watch)
        invariants.counters_are_exact(found, recount(found.values()))
        jobs = invariants.heads(found)
        for push in self.pushes:
            there = [job_id for job_id in push.ids if job_id in jobs]
            gone = [i for i in push.ids if i not in jobs and keys.job(i) not in self.watch.deleted]
            if push.acknowledged and gone:
                raise broken("no acknowledged job is lost", jobs=gone)
            if len(push.ids) > 1 and there and gone:
                raise broken("a batch is stored whole or not at all", there=there, gone=gone)
        for job_id in self.acked:
            if job_id in jobs and jobs[job_id].state is not State.COMPLETED:
                raise broken("what was acked is done", job=job_id, state=jobs[job_id].state.value)
        over_ms = self.clock.now_ms() - MINUTE_MS
        running = [job for job in jobs.values() if job.state is State.ACTIVE]
        if late := [job.id for job in running if job.due_ms <= over_ms]:
            raise broken("no lease outlives its time", jobs=late)

    def drain(self) -> None:
        """A worker does all that there is to do."""
        for name in sorted(self.queues):
            if (keys.queue(name), keys.HEAD) in self.memory.items:
                # One that is being deleted cannot be resumed, and need not be.
                with suppress(OjsError):
                    self.run.queues.resume(name)
        for _ in range(_DRAINED):
            done = sum(self._work_off(queue) for queue in sorted(self.queues))
            left = self._unfinished()
            if not left:
                return
            if done:
                continue
            for job in left:
                if job.state is State.PENDING:
                    self.run.jobs.activate(job.id)
            self.clock.advance(3_600_000)
            self.look_after()
        raise broken("every job has a way forward", jobs=[job.id for job in self._unfinished()])

    def _work_off(self, queue: str) -> int:
        done = 0
        while jobs := self._take(queue):
            for job in jobs:
                self.watch.speech[None].lease = job.lease.token if job.lease else None
                self.run.finish.ack(job.id, worker_id="drainer")
                done += 1
        return done

    def _take(self, queue: str) -> list[Job]:
        if self.pool is not None:
            return self.run.fetch.fetch(None, 10, "drainer", pool=self.pool)
        return self.run.fetch.fetch([queue], 10, "drainer")

    def _unfinished(self) -> list[Job]:
        jobs = invariants.heads(invariants.everything(self.memory))
        return [job for job in jobs.values() if not job.state.terminal]

    def check_end(self) -> None:
        """What must hold when all is done."""
        for ms in (MINUTE_MS, MINUTE_MS, MINUTE_MS):
            self.clock.advance(ms)
            self.look_after()
        self.check_quiet()
        found = invariants.everything(self.memory)
        self.leaked = invariants.no_orphans(found, self.watch.left)


class Actor:
    """Somebody who asks for things one after the other; where what served it dies another does."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.chance = world.chance
        self.run = world.container()

    def does(self, *acts: Callable[[], None]) -> Callable[[], None]:
        """These, one after the other."""

        def go() -> None:
            for act in acts:
                try:
                    act()
                except Died:
                    self.run = self.world.container()

        return go

    def ask(self, kind: str, act: Callable[[], T]) -> T | None:
        """An answer, None if it was refused or is not known."""
        return self.world.request(kind, act)[0]


class Worker(Actor):
    """Takes jobs, and ends them as a worker does: with the lease that it was given."""

    def __init__(self, world: World, name: str, queues: list[str] | None = None) -> None:
        super().__init__(world, name)
        self.queues = queues or ["default"]
        self.held: list[Job] = []

    def fetch(self, count: int = 1, lease_ms: int | None = 3_000) -> None:
        world = self.world
        queues = None if world.pool is not None else self.queues
        got = self.ask(
            "fetch",
            lambda: self.run.fetch.fetch(
                queues, count, self.name, visibility_timeout_ms=lease_ms, pool=world.pool
            ),
        )
        for job in got or ():
            if not (job.content or {}).get("args"):
                raise broken("a job comes with its content", job=job.id)
            self.held.append(job)

    def _one(self, kind: str, act: Callable[[Job], Any], *, keep: bool = False) -> Any:
        if not self.held:
            return None
        job = self.held[self.chance.randrange(len(self.held))]
        lease = job.lease.token if job.lease else None

        def speak() -> Any:
            self.world.watch.speech[self.world.scheduler.current].lease = lease
            return act(job)

        answer, refused = self.world.request(kind, speak)
        if not keep and (answer is not None or refused is not None):
            self.held.remove(job)
        return answer

    def ack(self) -> None:
        result = BIG if self.chance.random() < 0.3 else 1
        done = self._one(
            "ack",
            lambda job: self.run.finish.ack(
                job.id,
                worker_id=self.name,
                attempt=job.attempt,
                lease_token=job.lease.token if job.lease else None,
                result=result,
            ),
        )
        if done is not None:
            self.world.acked.add(done.id)

    def nack(self, *, requeue: bool = False) -> None:
        self._one(
            "hand back" if requeue else "nack",
            lambda job: self.run.finish.nack(
                job.id,
                error=ERROR,
                worker_id=self.name,
                attempt=job.attempt,
                lease_token=job.lease.token if job.lease else None,
                requeue=requeue,
            ),
        )

    def hand_back(self) -> None:
        self.nack(requeue=True)

    def beat(self) -> None:
        held = [job.id for job in self.held]
        self.ask(
            "heartbeat",
            lambda: self.run.workers.beat(
                self.name,
                active_jobs=held,
                visibility_timeout_ms=3_000,
                pool=self.world.pool,
            ),
        )

    def report(self) -> None:
        self._one(
            "progress",
            lambda job: self.run.jobs.report_progress(
                job.id, progress=0.5, worker_id=self.name, message="half"
            ),
            keep=True,
        )

    def forget(self) -> None:
        self.held.clear()

    def any(self) -> None:
        """One of all that it can do."""
        acts = [self.ack, self.ack, self.nack, self.hand_back, self.beat, self.report, self.forget]
        if not self.held or self.chance.random() < 0.3:
            self.fetch(self.chance.randint(1, 3))
        else:
            self.chance.choice(acts)()


class Producer(Actor):
    """Pushes jobs."""

    def push(self, count: int = 1, *, queue: str = "default", **options: Any) -> None:
        more: dict[str, Any] = {
            key: options.pop(key) for key in ("unique", "meta") if key in options
        }
        large = options.pop("large", None)
        entries: list[dict[str, Any]] = []
        for number in range(count):
            is_large = self.chance.random() < 0.3 if large is None else large
            args: list[Any] = [BIG] if is_large else [number + 1]
            entries.append(
                {"type": "t", "args": args, "options": {"queue": queue, **options}, **more}
            )
        push = self.world.push(self.run, entries)
        if push.unknown and self.chance.random() < 0.5:
            self.world.ask(push, self.run)


class Operator(Actor):
    """Does things by hand, and is the sweeps and the clock."""

    def sweep(self) -> None:
        self.ask("sweep", lambda: self.run.sweep.run_once(self.world.clock.now_ms(), 1_000))

    def reconcile(self) -> None:
        self.ask("reconcile", lambda: self.run.reconcile.run_once(self.world.clock.now_ms(), 100))

    def seat(self) -> None:
        self.ask("seating", lambda: self.run.seating.run_once(self.world.clock.now_ms()))

    def wait(self) -> None:
        self.world.pass_time(self.chance.choice((1, 900, 3_000, 3_001, 5_000, 10_000)))
        self.world.scheduler.step()

    def _some(self) -> str | None:
        ids = [job_id for push in self.world.pushes for job_id in push.ids]
        return self.chance.choice(ids) if ids else None

    def _job(self, kind: str, act: Callable[[str], Any]) -> None:
        job_id = self._some()
        if job_id is not None:
            self.ask(kind, lambda: act(job_id))

    def cancel(self) -> None:
        self._job("cancel", self.run.jobs.cancel)

    def look(self) -> None:
        self._job("get", self.run.jobs.get)

    def retry(self) -> None:
        self._job("retry", self.run.redrive.retry)

    def delete(self) -> None:
        job_id = self._some()
        if job_id is not None:
            self.world.watch.deleted.add(keys.job(job_id))
            self.ask("delete", lambda: self.run.dead_letter.delete(job_id))

    def activate(self) -> None:
        self._job("activate", self.run.jobs.activate)

    def pause(self, queue: str = "default") -> None:
        self.ask("pause", lambda: self.run.queues.pause(queue))

    def resume(self, queue: str = "default") -> None:
        self.ask("resume", lambda: self.run.queues.resume(queue))

    def begin_bulk(self) -> None:
        action = self.chance.choice((Action.RETRY, Action.PURGE))
        wanted = DeadLetterFilter(queue="default")
        self.ask("bulk operation", lambda: self.run.bulk.begin(action, wanted))

    def go_on_with_bulk(self) -> None:
        self.ask("bulk sweep", lambda: self.run.bulk.run_once(self.world.clock.now_ms(), 100))

    def prune(self) -> None:
        self.ask("prune", lambda: self.run.prune.run_once(self.world.clock.now_ms(), 100))

    def hold(self) -> None:
        self.ask("holding", lambda: self.run.holding.run_once(self.world.clock.now_ms(), 100))

    def end(self, queue: str, strategy: str, target: str | None = None) -> None:
        self.ask("delete queue", lambda: self.run.ending.delete(queue, strategy, target))


class Stream(Actor):
    """Reads the table's stream, as far as it gets; all of it comes again when nothing goes wrong
    any more.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world, "stream")
        self._at = 0

    def read(self) -> None:
        last = min(len(self.world.watch.stream), self._at + self.chance.randint(1, 12))
        records = self.world.records(self._at, last)
        if not records:
            self.world.scheduler.step()
            return
        failed = self.ask("stream", lambda: self.world.projector(self.run).run(records))
        # What failed comes again, and what came with it.
        if failed == []:
            self._at = last
