"""Those who use the table: workers, producers, operators, and who reads the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from ojs.domain.bulk.operation import Action, JobIds
from ojs.domain.errors import BackendError, BackendTimeout, BackendUnavailable, OjsError
from ojs.domain.filters.dead_letters import DeadLetterFilter
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.maintenance import EFFECTIVE_MS
from ojs.domain.pool.pool import Pool
from ojs.services.jobs.batch_finish import BatchOutcome, Ending
from ojs.services.sweeps import SweepReport
from ojs.store.table import keys
from tests.simulation.faults import Died
from tests.simulation.invariants import OF_WORKER, broken
from tests.simulation.world import BIG, HUGE, Acts, Set, World
from tests.store.streams import SHARD

T = TypeVar("T")
# What a worker says of itself with an ack, a nack or a progress report.
Shown = dict[str, Any]
# Nobody knows what became of it.
UNKNOWN = (BackendUnavailable, BackendTimeout)
ERROR = {"code": OF_WORKER, "message": "told by the worker"}
# More than a job record has room for.
LARGE = {**ERROR, "backtrace": ["f" * 199] * 10}


def _error(job: Job) -> Mapping[str, Any]:
    """Of every other attempt it is a large one."""
    return LARGE if (int(job.id[-1], 16) + job.attempt) % 2 else ERROR


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
                self.world.freeze(self.run)
                try:
                    act()
                except Died:
                    self.run = self.world.container()

        return go

    def ask(self, kind: str, act: Callable[[], T]) -> T | None:
        """An answer, None if it was refused or is not known."""
        return self.world.request(kind, partial(self._flushed, act))[0]

    def _flushed(self, act: Callable[[], T]) -> T:
        """A request, and the rings before its answer; none, if the process dies."""
        try:
            answer = act()
        except OjsError:
            self.run.flush()
            raise
        self.run.flush()
        return answer


class Worker(Actor):
    """Takes jobs, and ends them as a worker does: it shows its name, the attempt and the lease that
    it was given, its name alone, or nothing at all, as clients do that send the job's id alone.
    """

    def __init__(
        self,
        world: World,
        name: str,
        queues: list[str] | None = None,
        pool: str | None = None,
        shows: Literal["lease", "name", "nothing"] = "lease",
    ) -> None:
        super().__init__(world, name)
        self.shows = shows
        # Under which name it fetches, and what it calls itself when it ends a job.
        self.called = None if shows == "nothing" and world.odd.random() < 0.5 else name
        self.speaks_as = None if shows == "nothing" else name
        self.queues = queues or ["default"]
        self.pool = pool or world.pool
        self.held: list[Job] = []

    def fetch(self, count: int = 1, lease_ms: int | None = None) -> None:
        """Under a lease that leaves an entry in the index, or one that a note alone tells of."""
        lease_ms = lease_ms or self.world.odd.choice((3_000, 20_000, 90_000))
        self._take(self.ask("fetch", lambda: self._fetched(count, lease_ms)))

    def _fetched(self, count: int, lease_ms: int | None) -> list[Job]:
        queues = None if self.pool is not None and self.pool == self.world.pool else self.queues
        got = self.run.fetch.fetch(
            queues, count, self.called, visibility_timeout_ms=lease_ms, pool=self.pool
        )
        self.world.watch.handed_out(got)
        return got

    def _take(self, got: Sequence[Job] | None) -> None:
        for job in got or ():
            if not (job.content or {}).get("args"):
                raise broken("a job comes with its content", job=job.id)
            self.held.append(job)

    def _one(
        self, kind: str, act: Callable[[Job, Shown], Any], *, ends: bool = True
    ) -> tuple[Job, Any] | None:
        """Speak of one of its jobs; the job, and the answer, None if there was none."""
        if not self.held:
            return None
        job = self.held[self.chance.randrange(len(self.held))]
        # A progress report has no place for attempt and lease.
        lease, shown = self._shown(job) if ends else (None, {"worker_id": self.speaks_as})

        def speak() -> Any:
            self._speak(job.id, lease=lease, worker=self.speaks_as, extends=not ends)
            return self._flushed(lambda: act(job, shown))

        answer, refused = self.world.request(kind, speak)
        if ends and (answer is not None or refused is not None):
            self.held.remove(job)
        if ends and answer is not None and lease is None and self.world.demands_token(job.id):
            raise broken("a queue that demands the token refuses who has none", job=job.id)
        return None if answer is None else (job, answer)

    def _shown(self, job: Job) -> tuple[str | None, Shown]:
        """The lease that it shows with the end of a job, and all that it shows."""
        if self.shows != "lease":
            return None, {"worker_id": self.speaks_as}
        lease = job.lease.token if job.lease else None
        shown = {"worker_id": self.speaks_as, "attempt": job.attempt, "lease_token": lease}
        return lease, shown

    def end_many(self, *, fetches: int = 0) -> None:
        """Ack and nack some of its jobs in one request, one of them perhaps twice; with a fetch of
        so many, whose failure does not hide the outcomes.
        """
        chosen = self.chance.sample(self.held, self.chance.randint(0, len(self.held)))
        # It may have lost a job and got it again since.
        some = list({job.id: job for job in chosen}.values())
        leases = {keys.job(job.id): self._shown(job)[0] for job in some}
        acks, nacks = self._ends(some)
        if some and self.chance.random() < 0.5:
            job = self.chance.choice(some)
            nacks.append((job.id, {**self._shown(job)[1], "error": ERROR}))
        mine = self.world.watch.speech[self.world.scheduler.current]

        def act() -> tuple[list[BatchOutcome], list[Job]]:
            self._speak(*(job.id for job in some), worker=self.speaks_as, leases=leases)
            ended = [each for part in self.run.batch_finish.end(acks, nacks) for each in part]
            if any(isinstance(each.result, UNKNOWN) for each in ended):
                self.world.watch.left |= mine.texts
            try:
                return ended, self._fetched(fetches, 3_000) if fetches else []
            except UNKNOWN:
                return ended, []

        answer = self.ask("fetch and end many" if fetches else "end many", act)
        if answer is None:
            return
        outcomes, got = answer
        told = [*acks, *nacks]
        if [one.job_id for one in outcomes] != [job_id for job_id, _ in told]:
            raise broken("each ack and nack has its own outcome, in order")
        if any(isinstance(one.result, Job) for one in outcomes[len(some) :]):
            raise broken("what a request names twice is settled once", job=outcomes[-1].job_id)
        for (job_id, what), one in zip(told[: len(some)], outcomes, strict=False):
            self._settled(job_id, what, one.result)
        self._take(got)

    def _ends(self, some: Sequence[Job]) -> tuple[list[Ending], list[Ending]]:
        """Acks of some of these jobs, and nacks of the others."""
        acks: list[Ending] = []
        nacks: list[Ending] = []
        for job in some:
            shown = self._shown(job)[1]
            if self.chance.random() < 0.6:
                large = self.chance.random() < 0.3
                acks.append((job.id, {**shown, "result": BIG if large else 1}))
            else:
                back = self.chance.random() < 0.3
                nacks.append((job.id, {**shown, "error": ERROR, "requeue": back}))
        return acks, nacks

    def _settled(self, job_id: str, what: Mapping[str, Any], result: Job | OjsError) -> None:
        """One of many was settled, or refused, or nobody knows."""
        if isinstance(result, UNKNOWN):
            return
        if isinstance(result, BackendError):
            raise broken("no request fails by a defect of ours", error=result) from result
        self.held = [job for job in self.held if job.id != job_id]
        if isinstance(result, OjsError):
            return
        if not what.get("lease_token") and self.world.demands_token(job_id):
            raise broken("a queue that demands the token refuses who has none", job=job_id)
        if "result" in what:
            there = self.world.memory.items.get((keys.job(job_id), keys.RECORD), {})
            if there.get("state") != {"S": State.COMPLETED.value}:
                raise broken("what was acked is done", job=job_id, state=there.get("state"))
            self.world.acked.add(job_id)
        elif not what["requeue"]:
            self.world.check_error(result)

    def _speak(self, *job_ids: str, **shown: Any) -> None:
        """Say of which jobs it speaks, and what it shows of itself."""
        speech = self.world.watch.speech[self.world.scheduler.current]
        speech.about = {keys.job(job_id) for job_id in job_ids}
        for name, value in shown.items():
            setattr(speech, name, value)

    def ack(self, large: str = BIG) -> None:
        result = large if self.chance.random() < 0.3 else 1
        done = self._one(
            "ack", lambda job, shown: self.run.finish.ack(job.id, result=result, **shown)
        )
        if done is not None:
            self.world.acked.add(done[0].id)

    def nack(self, *, requeue: bool = False) -> None:
        told = self._one(
            "hand back" if requeue else "nack",
            lambda job, shown: self.run.finish.nack(
                job.id, error=_error(job), requeue=requeue, **shown
            ),
        )
        if told is not None and not requeue:
            self.world.check_error(told[1])

    def hand_back(self) -> None:
        self.nack(requeue=True)

    def beat(self) -> None:
        held = [job.id for job in self.held]
        lease_ms = self.world.odd.choice((1_000, 3_000, 5_000))

        def act() -> Any:
            self._speak(*held, worker=self.name, extends=True)
            return self.run.workers.beat(
                self.name,
                active_jobs=held,
                visibility_timeout_ms=lease_ms,
                pool=self.pool,
            )

        self.ask("heartbeat", act)

    def register(self, concurrency: int = 2) -> None:
        info = {"queues": self.queues, "concurrency": concurrency}
        self.ask("register", lambda: self.run.workers.register(self.name, info, self.pool))

    def stop(self) -> None:
        self.ask("stop", lambda: self.run.workers.drain(self.name, state="drain", pool=self.pool))

    def leave(self) -> None:
        self.ask("leave", lambda: self.run.workers.remove(self.name))

    def report(self) -> None:
        part = self.world.odd.choice((0.2, 0.5, 0.9))
        self._one(
            "progress",
            lambda job, shown: self.run.jobs.report_progress(
                job.id, progress=part, message="so far", **shown
            ),
            ends=False,
        )

    def forget(self) -> None:
        self.held.clear()

    def any(self) -> None:
        """One of all that it can do."""
        acts: Acts = [
            self.ack,
            self.ack,
            self.nack,
            self.hand_back,
            self.beat,
            self.report,
            self.forget,
        ]
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
        text = HUGE if options.pop("huge", False) else BIG
        wait_ms = options.pop("wait_ms", 0)
        chosen = options.pop("chosen", True)
        entries: list[dict[str, Any]] = []
        for number in range(count):
            is_large = self.chance.random() < 0.3 if large is None else large
            args: list[Any] = [text] if is_large else [number + 1]
            entries.append(
                {"type": "t", "args": args, "options": {"queue": queue, **options}, **more}
            )
        push = self.world.push(self.run, entries, wait_ms=wait_ms, chosen=chosen)
        if push.unknown and self.chance.random() < 0.5:
            self.world.ask(push, self.run)


class Operator(Actor):
    """Does things by hand, and is the sweeps and the clock."""

    def sweep(self) -> None:
        self.ask("sweep", lambda: self.run.sweep.run_once(self.run.clock.now_ms(), 1_000))

    def rest(self) -> None:
        self.ask("rest", lambda: self.run.rest.run_once(self.run.clock.now_ms(), 100))

    def reconcile(self) -> None:
        self.ask("reconcile", lambda: self.run.reconcile.run_once(self.run.clock.now_ms(), 100))

    def sweep_pool_permits(self) -> None:
        self.ask(
            "seating", lambda: self.run.pool_permit_sweep.run_once(self.run.clock.now_ms(), 2_000)
        )

    def wait(self, ms: int | None = None) -> None:
        if ms is None:
            ms = self.chance.choice((1, 900, 3_000, 3_001, 5_000, 10_000, 20_001))
        while not self.world.pass_time(ms) and self.world.still:
            self.world.scheduler.step()
        self.world.scheduler.step()

    def tidy(self) -> None:
        """Not a request: it lasts as long as it takes."""

        def sleep(seconds: float) -> None:
            until_ms = self.world.clock.now_ms() + round(seconds * 1_000)
            while self.world.clock.now_ms() < until_ms:
                self.world.pass_time(5_000)
                self.world.scheduler.step()

        with suppress(OjsError, ClientError, BotoCoreError):
            self.world.tidy(self.run, sleep)

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
        self.world.change(
            "pause",
            f"state of {queue}",
            lambda: self.run.queues.pause(queue),
            lambda _: {("paused", queue): True},
        )

    def resume(self, queue: str = "default") -> None:
        self.world.change(
            "resume", f"state of {queue}", lambda: self.run.queues.resume(queue), lambda _: {}
        )

    def configure(self, config: dict[str, Any], queue: str = "default") -> None:
        self.world.change(
            "configure",
            f"configuration of {queue}",
            lambda: self.run.queues.configure(queue, config),
            lambda made: {
                ("bound", queue): made.config.max_size,
                ("limit", queue): made.config.concurrency,
                ("token", queue): made.config.require_lease_token,
            },
        )

    def put_pool(self, name: str, body: dict[str, Any]) -> None:
        def set_(made: tuple[Pool, bool]) -> dict[Set, Any]:
            pool = made[0]
            alone = {("isolated", queue): pool.name for queue in pool.queues if pool.isolated}
            return {("limit", pool.semaphore): pool.concurrency, **alone}

        self.world.pools[name] = body
        self.world.change("put pool", "pools", lambda: self.run.pools.put(name, body), set_)

    def delete_pool(self, name: str) -> None:
        def act() -> bool:
            self.run.pools.delete(name)
            return True

        self.world.change("delete pool", "pools", act, lambda _: {})

    def tag(self) -> None:
        self.ask("tagging", lambda: self.run.backfill.run_once(self.run.clock.now_ms(), 100))

    def replay(self) -> None:
        self.ask("replay", lambda: self.run.replay.run_once(self.run.clock.now_ms(), 100))

    def begin_bulk(self) -> None:
        action = self.chance.choice((Action.RETRY, Action.PURGE))
        wanted = DeadLetterFilter(queue="default")
        self.ask("bulk operation", lambda: self.run.bulk.begin(action, wanted))

    # --- acts on jobs in any state ----------------------------------------------------------------

    def _hastens(self, kind: str, act: Callable[[str], Any]) -> None:
        """An act that may start a job before its time, or in maintenance mode."""

        def hasten(job_id: str) -> Any:
            self.world.watch.speech[self.world.scheduler.current].hastens = True
            return act(job_id)

        self._job(kind, hasten)

    def bring_back(self) -> None:
        self._hastens("bring back", self.run.acts.retry)

    def run_now(self) -> None:
        self._hastens("run now", self.run.acts.run_now)

    def change(self) -> None:
        priority = self.world.odd.choice((None, -5, 5))
        queue = "there" if priority is None or self.world.odd.random() < 0.3 else None
        self._job("change", lambda job: self.run.acts.change(job, priority=priority, queue=queue))

    def erase(self) -> None:
        self._job("erase", self.run.acts.delete)

    def begin_job_bulk(self) -> None:
        """Many jobs by a filter, as a purge is, or by their ids."""
        action = self.world.odd.choice((Action.RETRY_JOBS, Action.CANCEL_JOBS, Action.DELETE_JOBS))
        ids = tuple(job_id for push in self.world.pushes for job_id in push.ids)
        wanted: JobFilter | JobIds = JobFilter(self.world.odd.choice(("default", "there")))
        if ids and self.world.odd.random() < 0.4:
            wanted = JobIds(ids)
        dry_run = self.world.odd.random() < 0.1

        def act() -> Any:
            self.world.watch.speech[self.world.scheduler.current].hastens = True
            return self.run.bulk.begin(action, wanted, dry_run=dry_run)

        self.ask("bulk of jobs", act)

    def stop_work(self) -> None:
        """Maintenance begins, and is told of when it holds everywhere."""
        self.world.maintained = True

        def act() -> bool:
            self.run.maintenance.begin("a reason", None, now_ms=self.run.clock.now_ms())
            # Others may be in the middle of something for as long as any request lasts.
            for _ in range(200):
                if self.world.pass_time(EFFECTIVE_MS):
                    return True
                self.world.scheduler.step()
            return False

        def then(held: bool) -> dict[Set, Any]:
            return {("maintenance", ""): True} if held else {}

        self.world.change("maintenance", "maintenance", act, then)

    def go_on_with_work(self) -> None:
        def act() -> bool:
            self.run.maintenance.end()
            return True

        self.world.change("end of maintenance", "maintenance", act, lambda _: {})

    def go_on_with_bulk(self) -> None:
        def act() -> SweepReport:
            self.world.watch.speech[self.world.scheduler.current].hastens = True
            return self.run.bulk.run_once(self.run.clock.now_ms(), 100)

        self.ask("bulk sweep", act)

    def prune(self) -> None:
        self.ask("prune", lambda: self.run.prune.run_once(self.run.clock.now_ms(), 100))

    def hold(self) -> None:
        self.ask("holding", lambda: self.run.throttle_sweep.run_once(self.run.clock.now_ms(), 100))

    def end(self, queue: str, strategy: str, target: str | None = None) -> None:
        self.ask("delete queue", lambda: self.run.deletion.delete(queue, strategy, target))


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
        failed = self.ask("stream", lambda: self.world.projector(self.run).run(records, SHARD))
        # What failed comes again, and what came with it.
        if failed == []:
            self._at = last
