"""A table with faults, the containers on it, those who use them, and what they were promised."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from botocore.exceptions import ClientError

from ojs import projections, runtime
from ojs.clock import ManualClock
from ojs.domain import times
from ojs.domain.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    Conflict,
    Duplicate,
    NotFound,
    OjsError,
)
from ojs.domain.ids import IdSource
from ojs.domain.job import envelope
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.services.for_each import one_by_one
from ojs.services.operations.tidy import Tidied, Tidy
from ojs.services.sweeps import SweepReport
from ojs.settings import Settings
from ojs.store.jobs.blobs import ARCHIVE, S3Blobs
from ojs.store.jobs.orphans import Orphans
from ojs.store.table import keys
from ojs.store.table.table import Table
from tests import request_rules
from tests.simulation import quiet
from tests.simulation.faults import Bucket, Client, Died, Plan
from tests.simulation.invariants import (
    BUCKET,
    OF_WORKER,
    REQUEST_MS,
    Answered,
    Speech,
    Watch,
    broken,
)
from tests.simulation.memory import Memory
from tests.simulation.recount import levels
from tests.simulation.scheduler import Scheduler
from tests.store.streams import SHARD, FakeMetrics, made_record, repeated

if TYPE_CHECKING:
    from ojs.services.deliveries.parts import DeliveryDependencies
    from ojs.services.webhooks.parts import WebhookDependencies
    from tests.simulation.in_workflows import AskedWorkflows
    from tests.simulation.pushed import Deliveries
    from tests.simulation.ringing import Ringing

# The table of the simulation rejects what DynamoDB rejects.
request_rules.install()

T = TypeVar("T")
Acts = list[Callable[[], None]]
# A kind of thing that is set, and of what.
Set = tuple[str, str]
SECOND = 1_000
# Longer than the grace of a staged batch and the note of a deleted queue.
LONG_MS = 700_000
MINUTE_MS = 61_000
BIG = "x" * 1_500
# Beyond what is kept in the table, as it is here (`scenarios.play`).
HUGE = "y" * 5_000
_DRAINED = 60


@dataclass
class Push:
    """A push as whoever asked for it knows of it: the jobs' ids, and whether it was answered."""

    ids: list[str]
    act: Callable[[runtime.Runtime], Any]
    acknowledged: bool = False
    # Nobody knows: it may be stored, in whole or not at all.
    unknown: bool = False
    # The type of its jobs, where their ids are not chosen; it cannot be asked for again.
    tag: str = ""
    count: int = 0


class Promise(Protocol):
    """Something that is promised, of which the world itself knows nothing."""

    def ask_again(self) -> None:
        """Callers who had no answer ask again."""

    def look_after(self) -> None:
        """What runs each minute for it."""

    def check(self) -> None:
        """What must hold when nobody does anything."""

    def check_end(self) -> None:
        """What must hold when all is done."""


@dataclass(frozen=True)
class ContainerClock:
    """The clock of one container, which is ahead of the others or behind them."""

    clock: ManualClock
    ahead_ms: int

    def now_ms(self) -> int:
        """What this container takes for the time, in ms."""
        return self.clock.now_ms() + self.ahead_ms


@dataclass
class World:
    """One run of the simulation."""

    seed: int
    rate: float = 0.0
    stale: float = 0.0
    stay: float = 0.5
    # How far the clock of a container is ahead or behind, at most, in ms.
    skew_ms: int = 0
    # How often a container was frozen before it is asked for something.
    frozen: float = 0.0
    # The part of the writes without an effect that have one later.
    delayed: float = 0.0
    # The engine, for one that is not of this process.
    memory: Memory = field(default_factory=Memory)
    scheduler: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed}")
        # What the code under test decides by chance comes from the module's own generator.
        random.seed(self.seed)
        self.clock = ManualClock()
        # The bucket.
        self.objects: dict[str, bytes] = {}
        # Decides what came later to the simulation, so that what the seeds found before stays.
        self.odd = random.Random(f"odd {self.seed}")
        self.plan = Plan(
            self.chance,
            self.rate,
            self.stale,
            delayed=self.delayed,
            odd=self.odd,
            now_ms=self.clock.now_ms,
            later=self._later,
        )
        self.pushes: list[Push] = []
        self.acked: set[str] = set()
        self.queues: set[str] = set()
        self.pool: str | None = None
        # Pools that come and go, as they are in the end.
        self.pools: dict[str, dict[str, Any]] = {}
        # By owner of what is set: changes under way, and how many there were.
        self._changing: Counter[str] = Counter()
        self._changes: Counter[str] = Counter()
        # Workflows, if there are any (`tests.simulation.in_workflows`).
        self.workflows: AskedWorkflows | None = None
        # Deliveries, if there are any (`tests.simulation.pushed`), and what containers get.
        self.delivered: Deliveries | None = None
        self.pushing: DeliveryDependencies | None = None
        # What containers get for webhooks, if there are any (`tests.simulation.hooked`).
        self.hooking: WebhookDependencies | None = None
        # Connections of workers that listen, if there are any (`tests.simulation.ringing`).
        self.ringing: Ringing | None = None
        # What else was promised, and the jobs of pushes that were told as stored one by one.
        self.promises: list[Promise] = []
        self.told: set[str] = set()
        # Whether nobody asks for anything for a while in the end, and nobody reads the stream.
        self.alone = False
        # Whether there may be maintenance, which somebody ends when all heals.
        self.maintained = False
        # Whether time stands still as long as anybody asks for anything.
        self.still = False
        self.began: dict[int | None, int] = {}
        self.operations: Counter[str] = Counter()
        self._projected = 0
        # Texts that nobody will ever find: whoever wrote them died before their job record.
        self.leaked = 0
        # Pushes whose jobs have ids of the server's.
        self._tagged = 0

    def start(self, scheduler: Scheduler) -> None:
        """Begin, with who decides who goes next."""
        self.scheduler = scheduler
        self.watch = Watch(self.memory, self.clock, scheduler, spread_ms=2 * self.skew_ms)
        self.bucket: Any = Bucket(self.objects, self.plan, scheduler, self._wrote)
        self.blobs = S3Blobs(lambda: self.bucket, "simulated")
        self.run = self.container()

    def container(self) -> runtime.Runtime:
        """A container, with nothing in its memory, and a clock of its own."""
        clock = ContainerClock(self.clock, self.odd.randint(-self.skew_ms, self.skew_ms))
        made = runtime.build(
            Settings(table="simulated", realtime="off" if self.ringing is None else "wake"),
            client=cast("Any", Client(self.memory, self.plan, self.scheduler)),
            blobs=self.blobs,
            clock=clock,
            ids=IdSource(clock, self.chance.randbytes),
            sleep=self.sleep,
            # Whose turn it is must follow from the seed.
            for_each=one_by_one,
            push=self.pushing,
            hooks=None if self.hooking is None else lambda: cast("Any", self.hooking),
            realtime=None if self.ringing is None else lambda: cast("Any", self.ringing),
        )
        made.enqueue._bounds._sleep = self.sleep
        return made

    def freeze(self, run: runtime.Runtime) -> None:
        """By chance this container was frozen, and some of its connections died meanwhile."""
        if self.plan.on and self.odd.random() < self.frozen:
            client: Any = run.table.client
            client.dead = self.odd.randint(1, 2)

    def _later(self, act: Callable[[], Any]) -> Callable[[], None]:
        """A write that takes effect as whoever makes it now, if it still may."""
        speech = replace(self.watch.speech[self.scheduler.current])

        def late() -> None:
            me, speeches = self.scheduler.current, self.watch.speech
            before = speeches[me]
            speeches[me] = speech
            self.note("what comes late is tried")
            with suppress(ClientError):
                act()
            speeches[me] = before
            self.watch.left |= speech.texts

        return late

    def _wrote(self, name: str) -> None:
        if not name.startswith(ARCHIVE):
            self.watch.speech[self.scheduler.current].texts.add((BUCKET, name))

    def archived(self, job_id: str, died_ms: int) -> bool:
        """Whether a dead letter is in the archive as it died then."""
        told = (job_id, times.format_ms(died_ms))
        return any(
            told == (line["id"], line["discarded_at"])
            for name, packed in self.objects.items()
            if name.startswith(ARCHIVE)
            for line in map(json.loads, gzip.decompress(packed).splitlines())
        )

    def note(self, what: str) -> None:
        """A line of the timeline, if somebody wants it."""
        if self.plan.timeline is not None:
            who = self.scheduler.current
            self.plan.timeline.append(f"{'-' if who is None else who}   {what}")

    # --- time -------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Time passes for all, and others may go on."""
        if not self.still:
            self.pass_time(round(seconds * 1_000))
        self.scheduler.step()

    def pass_time(self, ms: int) -> bool:
        """Time goes on; not if a request would last longer than any does."""
        me, now_ms = self.scheduler.current, self.clock.now_ms()
        others = [began for actor, began in self.began.items() if actor != me]
        most_ms = 0 if self.still else REQUEST_MS
        if any(now_ms + ms - began > most_ms for began in others):
            return False
        self.plan.arrive(now_ms + ms)
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
        speech.began = self.watch.writes
        known = True
        try:
            answer = act()
            if isinstance(answer, SweepReport):
                self.check_swept(answer)
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

    def change(
        self, kind: str, owner: str, act: Callable[[], T], then: Callable[[T], dict[Set, Any]]
    ) -> None:
        """A request that sets something of `owner`: what was set before may hold no more from now
        on, and what it sets holds from its answer on, unless somebody else sets something of it at
        the same time. `then` tells what that is.
        """
        watch = self.watch
        for what in [what for what, set_ in watch.set.items() if set_.owner == owner]:
            del watch.set[what]
        alone = not self._changing[owner]
        self._changes[owner] += 1
        mine, began = self._changes[owner], watch.writes
        counting = watch.counting()
        self._changing[owner] += 1
        try:
            answer, _ = self.request(kind, act)
        finally:
            self._changing[owner] -= 1
        if answer is not None and alone and self._changes[owner] == mine:
            for what, value in then(answer).items():
                watch.set[what] = Answered(value, owner, watch.writes)
            if not self.stale:
                # What the index does not show is counted by the sweep.
                watch.counted(then(answer), counting, began)

    def push(
        self,
        run: runtime.Runtime,
        entries: list[dict[str, Any]],
        *,
        wait_ms: int = 0,
        chosen: bool = True,
    ) -> Push:
        """A push of some jobs, each under an id that the client chose, so that it can ask again;
        without `chosen` under ids that are seen in the table, and it cannot.
        """
        for entry in entries:
            if chosen:
                entry.setdefault("id", run.ids.uuid7())
            self.queues.add(entry.get("options", {}).get("queue", "default"))
        requests = [envelope.parse(entry) for entry in entries]

        def act(by: runtime.Runtime) -> Any:
            if len(requests) == 1:
                pushed: Any = by.enqueue.push(requests[0], wait_ms=wait_ms)
            else:
                pushed = by.enqueue.push_batch(requests, wait_ms=wait_ms)
            by.flush()
            return pushed

        ids = [str(entry["id"]) for entry in entries] if chosen else []
        push = Push(ids, act, count=len(entries))
        if not chosen:
            self._tagged += 1
            push.tag = f"tag{self._tagged}"
            requests[:] = [envelope.parse({**entry, "type": push.tag}) for entry in entries]
        self.pushes.append(push)
        self.ask(push, run)
        return push

    def ask(self, push: Push, run: runtime.Runtime) -> None:
        """Ask for a push, perhaps again; not one that might be stored twice then."""
        kind = "push" if push.count == 1 else "push batch"
        if push.tag and push.unknown:
            return
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
        self.plan.arrive()
        self.note("nothing goes wrong any more")
        self.began.clear()
        self.run = self.container()
        if self.maintained:
            self.watch.set.pop(("maintenance", ""), None)
            self.run.maintenance.end()
        if self.alone:
            self.leave_alone()
        # As long as jobs run.
        self.project()
        self.check_projected(quiet.everything(self.memory))
        for name, body in self.pools.items():
            # Wherever it is now: what its counter counts is repaired like others. Not where another
            # has its queues to itself.
            with suppress(Conflict):
                self.run.pools.put(name, body)
        for push in self.pushes:
            if push.unknown:
                # What was left half stored may stand in the way for a while.
                self.ask(push, self.run)
        for promise in self.promises:
            promise.ask_again()
        if self.workflows is not None:
            self.workflows.ask_again()
        for ms in (LONG_MS, MINUTE_MS, MINUTE_MS, MINUTE_MS):
            self.clock.advance(ms)
            self.look_after()

    def leave_alone(self) -> None:
        """For half an hour only the sweep looks for what is due."""
        for ms in (MINUTE_MS, LONG_MS, MINUTE_MS, LONG_MS, MINUTE_MS):
            self.clock.advance(ms)
            now_ms = self.run.clock.now_ms()
            self.check_swept(self.run.sweep.run_once(now_ms, 10_000))
            self.check_swept(self.run.rest.run_once(now_ms, 1_000))
            quiet.nothing_is_due(quiet.everything(self.memory), now_ms)

    def look_after(self) -> None:
        """What runs each minute."""
        now_ms = self.run.clock.now_ms()
        self.project()
        self.check_swept(self.run.sweep.run_once(now_ms, 10_000))
        self.check_swept(self.run.reconcile.run_once(now_ms, 10_000))
        if self.pool is not None or self.pools:
            self.check_swept(self.run.pool_permit_sweep.run_once(now_ms, 2_000))
        self.check_swept(self.run.throttle_sweep.run_once(now_ms, 1_000))
        self.check_swept(self.run.backfill.run_once(now_ms, 1_000))
        self.check_swept(self.run.replay.run_once(now_ms, 1_000))
        self.check_swept(self.run.rest.run_once(now_ms, 1_000))
        if self.workflows is not None:
            self.workflows.look_after()
        for promise in self.promises:
            promise.look_after()
        if self.watch.purged:
            self.check_swept(self.run.prune.run_once(now_ms, 1_000))
        self.project()

    def check_swept(self, report: SweepReport) -> None:
        """What a sweep counted as failed was the store's trouble, and none of ours."""
        for failure in report.failures:
            error = failure.error
            if not self.plan.on or not isinstance(error, BackendUnavailable | BackendTimeout):
                raise broken("no sweep fails by a defect of ours", what=failure.what) from error

    def demands_token(self, job_id: str) -> bool:
        """Whether a job was handed out from a queue that demands the lease token."""
        return "fenced" in self.memory.items.get((keys.job(job_id), keys.RECORD), {})

    def check_error(self, job: Job) -> None:
        """The error that a worker was told is stored is that of its attempt, if the job is there
        still. Of two runs with one number the clock tells which came later.
        """
        place = (keys.job(job.id), keys.error(job.life, job.attempt))
        there = (place[0], keys.RECORD) in self.memory.items
        if there and not self.skew_ms and self.watch.errors.get(place) != OF_WORKER:
            raise broken("the error that a worker reported is stored", job=job.id)

    def projector(self, run: runtime.Runtime) -> projections.Projector:
        """What reads the stream, in the container of `run`."""
        return projections.build(
            Settings(table="simulated"),
            Table(run.table.client, "simulated", sleep=self.sleep, chance=lambda: 0.5),
            run.clock,
            ids=IdSource(run.clock, self.chance.randbytes),
            blobs=self.blobs,
            metrics=FakeMetrics(),
            copies=run.copies,
            workflows=lambda: run.workflow_advance,
            durable=lambda: run.durable_ends,
            deliveries=run.wake,
            hooks=run.webhook_matcher,
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
            for batch in repeated(records, self.chance):
                if failed := projector.run(batch, SHARD):
                    raise broken("the stream is projected", failed=len(failed))

    def check_unhealed(self) -> None:
        """Without faults there is nothing to heal: what was taken is given back by who took it."""
        if set(self.plan.done) <= {"stale"}:
            quiet.gates_are_exact(quiet.everything(self.memory), self.watch)

    def check_projected(self, found: Mapping[tuple[str, str], dict[str, Any]]) -> None:
        """What follows from the stream, once it is read to its end."""
        quiet.counters_are_exact(found, levels(found.values()))
        quiet.dead_letters_are_exact(found)
        quiet.log_is_exact(found, self.watch)

    def check_measured(self, found: Mapping[tuple[str, str], dict[str, Any]]) -> None:
        """Gauges tell what is there, also those of queues that nobody looks at."""
        if not self.alone:
            return
        there = levels(found.values())
        for seen in self.run.metrics_sweep.run_once(self.run.clock.now_ms(), 1_000).queues:
            counted = {state: seen.levels.of(state) for state in State}
            expected = there.get(seen.queue.name, Counter[str]())
            if counted != {state: expected[state.value] for state in State}:
                raise broken("gauges are exact", queue=seen.queue.name, counted=counted)

    def check_quiet(self) -> None:
        """What must hold when nobody does anything and the sweeps have run."""
        found = quiet.everything(self.memory)
        quiet.gates_are_exact(found, self.watch)
        quiet.limits_count_all(found)
        quiet.plain_queues_need_nothing(found)
        quiet.untracked_are_counted(found)
        quiet.tenants_take_turns(found)
        self.check_projected(found)
        self.check_measured(found)
        jobs = quiet.job_records(found)
        for push in self.pushes:
            if push.tag and not push.ids:
                stored = [job.id for job in jobs.values() if job.type == push.tag]
                if len(stored) not in (0, push.count):
                    raise broken("a batch is stored whole or not at all", there=stored, of=push.tag)
                continue
            there = [job_id for job_id in push.ids if job_id in jobs]
            gone = [i for i in push.ids if i not in jobs and keys.job(i) not in self.watch.deleted]
            if push.acknowledged and gone:
                raise broken("no acknowledged job is lost", jobs=gone)
            if len(push.ids) > 1 and there and gone:
                raise broken("a batch is stored whole or not at all", there=there, gone=gone)
        self.check_promises(jobs)
        for job_id in self.acked:
            if job_id in jobs and jobs[job_id].state is not State.COMPLETED:
                raise broken("what was acked is done", job=job_id, state=jobs[job_id].state.value)
        over_ms = self.clock.now_ms() - MINUTE_MS
        running = [job for job in jobs.values() if job.state is State.ACTIVE]
        if late := [job.id for job in running if job.due_ms <= over_ms]:
            raise broken("no lease outlives its time", jobs=late)

    def check_promises(self, jobs: Mapping[str, Job]) -> None:
        """What the world itself knows nothing of."""
        lost = [i for i in self.told if i not in jobs and keys.job(i) not in self.watch.deleted]
        if lost:
            raise broken("no acknowledged job is lost", jobs=lost)
        for promise in self.promises:
            promise.check()

    def drain(self) -> None:
        """A worker does all that there is to do."""
        self.watch.set.clear()
        for name in self.pools:
            with suppress(NotFound):
                self.run.pools.delete(name)
        for name in sorted(self.queues):
            if (keys.queue(name), keys.RECORD) in self.memory.items:
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
                token = job.lease.token if job.lease else None
                self.watch.speech[None] = Speech({keys.job(job.id)}, token, "drainer")
                self.run.finish.ack(job.id, worker_id="drainer", lease_token=token)
                done += 1
        return done

    def _take(self, queue: str) -> list[Job]:
        if self.pool is not None:
            return self.run.fetch.fetch(None, 10, "drainer", pool=self.pool)
        return self.run.fetch.fetch([queue], 10, "drainer")

    def _unfinished(self) -> list[Job]:
        jobs = quiet.job_records(quiet.everything(self.memory))
        return [job for job in jobs.values() if not job.state.terminal]

    def check_end(self) -> None:
        """What must hold when all is done."""
        for ms in (MINUTE_MS, MINUTE_MS, MINUTE_MS):
            self.clock.advance(ms)
            self.look_after()
        self.check_quiet()
        found = quiet.everything(self.memory)
        self.leaked = quiet.no_orphans(found, self.objects, self.watch.left)
        # What writers left who died an operator removes, and nothing else.
        removed = self.tidy(self.run, self.sleep).removed
        if removed != self.leaked:
            raise broken("the pass removes what is left", removed=removed, left=self.leaked)
        quiet.no_orphans(quiet.everything(self.memory), self.objects, set())

    def tidy(self, run: runtime.Runtime, sleep: Callable[[float], None]) -> Tidied:
        """An operator's pass over everything, in the container of `run`."""
        return Tidy(Orphans(run.table, (self.bucket, "simulated")), sleep).run()
