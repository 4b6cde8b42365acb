"""What clients are promised, in plain data and in memory: jobs one by one, no table, no index.

It is told of each call and says what may come of it. Where several answers are right (who of those
that became due at the same time stands first, how far a sweep of a queue that ends has come) it
allows each of them, and goes on from the one that it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

WAITING = ("scheduled", "available", "pending", "retryable")
DONE = ("completed", "cancelled", "discarded")
FOR_EVER = 10**18
LEASE_MS = 20_000


class Refused(Exception):
    """The model says that a call is to be refused, and with what status."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(statuses)
        self.statuses = statuses


@dataclass(frozen=True)
class Job:
    """A job. `place` is when it came into line: the number of the step, and its place among those
    that came with the same call; equal ones may stand in any order.
    """

    id: str
    queue: str
    state: str
    priority: int = 0
    place: tuple[int, int] = (0, 0)
    attempt: int = 0
    max_attempts: int = 3
    keeps: bool = True
    lease_ms: int = LEASE_MS
    timeout_ms: int = 60_000
    start_ms: int = 0
    retry_ms: int = 0
    expires_ms: int = FOR_EVER
    started_ms: int = 0
    lease_until: int = 0
    worker: str | None = None
    # Its lease ran out, and nobody was given it since.
    stalled: bool = False
    dead: bool = False
    lives: int = 0
    pool: str | None = None
    key: str | None = None
    came: int = 0

    @property
    def done(self) -> bool:
        """Whether it is final."""
        return self.state in DONE

    @property
    def line(self) -> tuple[int, tuple[int, int]]:
        """Sorts by priority, then by who came first."""
        return -self.priority, self.place

    @property
    def view(self) -> tuple[object, ...]:
        """What a client could see of it."""
        running = self.state == "active"
        return (
            self.state,
            self.queue,
            self.attempt,
            self.dead,
            self.worker if running else None,
            self.lease_until if running else None,
            self.retry_ms if self.state == "retryable" else None,
        )

    def by_time(self, now_ms: int) -> Job | None:
        """What time alone makes of it next; None while it stays."""
        if self.state in WAITING and self.expires_ms <= now_ms:
            return self.ended("discarded")
        if (self.state == "scheduled" and self.start_ms <= now_ms) or (
            self.state == "retryable" and self.retry_ms <= now_ms
        ):
            return self.available()
        out_ms = self.started_ms + self.timeout_ms
        if self.state != "active" or min(self.lease_until, out_ms) > now_ms:
            return None
        if self.lease_until > out_ms:
            return self.failed(now_ms)
        if self.attempt < self.max_attempts:
            return replace(self.available(), stalled=True)
        return self.exhausted()

    def after(self, now_ms: int) -> Iterator[Job]:
        """The job as it is, and all that time makes of it, one after another."""
        job: Job | None = self
        while job is not None:
            yield job
            job = job.by_time(now_ms)

    def settled(self, now_ms: int) -> Job:
        """The job after all that time has decided."""
        return list(self.after(now_ms))[-1]

    def available(self) -> Job:
        """In line; where, is noted by whoever sees it there first."""
        return replace(self, state="available", stalled=False)

    def ended(self, state: str, *, dead: bool = False) -> Job:
        """Final."""
        return replace(self, state=state, dead=dead, expires_ms=FOR_EVER, stalled=False)

    def exhausted(self) -> Job:
        """Discarded after its last attempt."""
        return self.ended("discarded", dead=self.keeps)

    def failed(self, now_ms: int, *, code: str = "boom", retryable: bool = True) -> Job:
        """What a failed attempt makes of it."""
        if code in ("DISCARD", "DEAD_LETTER"):
            return self.ended("discarded", dead=code == "DEAD_LETTER")
        if not retryable or self.attempt >= self.max_attempts:
            return self.exhausted()
        wait_ms = 1_000 * 2 ** (self.attempt - 1)
        return replace(self, state="retryable", retry_ms=now_ms + wait_ms)

    def claimed(self, worker: str, now_ms: int, pool: str | None) -> Job:
        """Handed out."""
        return replace(
            self,
            state="active",
            attempt=self.attempt + 1,
            worker=worker,
            started_ms=now_ms,
            lease_until=now_ms + self.lease_ms,
            stalled=False,
            pool=pool,
        )

    def resumed(self, now_ms: int) -> Job:
        """With the worker that was thought lost."""
        return replace(self, state="active", lease_until=now_ms + self.lease_ms, stalled=False)


@dataclass
class Queue:
    """A queue and its configuration."""

    name: str
    paused: bool = False
    bound: int | None = None
    limit: int | None = None
    # When the bound was set: jobs that came before it count as one look a minute finds them.
    bounded: int = 0
    # What it may hold: its bound, or what it held beyond that when it was set, as long as it does.
    most: int = 0
    ending: str | None = None
    target: str | None = None

    @property
    def open(self) -> bool:
        """Whether workers are given jobs from it."""
        return not self.paused


@dataclass
class Pool:
    """A worker pool."""

    name: str
    queues: tuple[str, ...]
    strategy: str
    limit: int | None = None


@dataclass
class Model:
    """All that there is."""

    jobs: dict[str, Job] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    # Jobs that left a queue which were in it before its bound was set, since the last recount.
    unseen: dict[str, int] = field(default_factory=dict)
    # The queue that a round-robin pool served last, when others could have been served as well.
    last: dict[str, str] = field(default_factory=dict)
    # Running jobs of a pool that was deleted; whether one of the same name counts them is open.
    forsaken: set[str] = field(default_factory=set)
    step: int = 0
    now_ms: int = 0

    @property
    def quiet(self) -> bool:
        """Whether all jobs are done, and no queue is about to end."""
        ending = any(queue.ending for queue in self.queues.values())
        return not ending and all(job.done for job in self.jobs.values())

    @property
    def given(self) -> list[str]:
        """Jobs that some worker has, or had last and may not know that it has no more."""
        return [job.id for job in self.jobs.values() if job.worker and not job.done]

    # --- reading --------------------------------------------------------------------------------

    def of(self, queue: str) -> list[Job]:
        """The jobs of a queue that are not done."""
        return [job for job in self.jobs.values() if job.queue == queue and not job.done]

    def running(self, queue: str) -> list[Job]:
        """Those that are with a worker."""
        return [job for job in self.of(queue) if job.state == "active"]

    def seats(self, pool: str) -> list[Job]:
        """The running jobs that workers of a pool were given."""
        return [j for j in self.jobs.values() if j.state == "active" and j.pool == pool]

    def in_line(self, queue: str) -> list[Job]:
        """Those that can be handed out as they stand."""
        waiting = (job for job in self.of(queue) if job.state == "available")
        return [job for job in waiting if job.expires_ms > self.now_ms]

    def due(self, queue: str) -> list[Job]:
        """Those that can be handed out when time is applied to them."""
        return [
            job
            for job in self.of(queue)
            if job.state != "available" and job.settled(self.now_ms).state == "available"
        ]

    def pools_of(self, queue: str) -> list[Pool]:
        """The pools that a queue is in."""
        return [pool for pool in self.pools.values() if queue in pool.queues]

    # --- pushing --------------------------------------------------------------------------------

    def push(self, jobs: Sequence[Job]) -> None:
        """All of them come, or Refused says why none."""
        # A queue that is named is there from then on, whatever becomes of the jobs.
        if any(queue.ending for queue in [self.make(job.queue) for job in jobs]):
            raise Refused(409)
        for name in sorted({job.queue for job in jobs}):
            self.check_bound(name, sum(job.queue == name for job in jobs))

    def make(self, queue: str) -> Queue:
        """The queue, which is there from now on."""
        return self.queues.setdefault(queue, Queue(queue))

    def check_bound(self, name: str, more: int) -> None:
        """Refused when there is no room; whether there is may be unknown to the gate for a while,
        and then a refusal is right, too, but not one too few.
        """
        bound = self.queues[name].bound
        if bound is None:
            return
        depth = len(self.of(name)) + more
        if depth > bound:
            raise Refused(429)
        if depth + self.unseen.get(name, 0) > bound:
            raise Refused(0, 429)

    def holder(self, key: str | None) -> Job | None:
        """The job that has a unique key."""
        found = (j for j in self.jobs.values() if j.key == key and not j.settled(self.now_ms).done)
        return next(found, None) if key is not None else None

    # --- fetching -------------------------------------------------------------------------------

    def fetched(
        self, got: Sequence[str], names: Sequence[str], count: int, worker: str, pool: Pool | None
    ) -> None:
        """Take a fetch's answer, or fail with what is wrong about it."""
        served = [n for n in names if n in self.queues and self.queues[n].open]
        look = Look(self, served, pool)
        assert len(set(got)) == len(got), "a job was handed out twice in one answer"
        low, high = look.size(count)
        assert low <= len(got) <= high, f"{len(got)} jobs, and not {low} to {high}"
        for job_id in got:
            look.take(self.jobs[job_id])
            job = self.jobs[job_id].settled(self.now_ms)
            self.jobs[job_id] = job.claimed(worker, self.now_ms, pool.name if pool else None)
        if pool is None or pool.strategy != "round-robin":
            return
        if len(got) == 1 and look.all_servable:
            queue = self.jobs[got[0]].queue
            if len(served) == 2 and pool.name in self.last:
                assert queue != self.last[pool.name], "not the next queue's turn"
            self.last[pool.name] = queue
        elif got or look.messy:
            self.last.pop(pool.name, None)

    # --- seeing ---------------------------------------------------------------------------------

    def options(self, job: Job, *, ending: bool) -> Iterator[Job]:
        """All that may have become of a job that nobody asked for: by time, and, in a sweep, by the
        end of its queue.
        """
        for option in job.after(self.now_ms):
            yield option
            queue = self.queues.get(option.queue)
            if not ending or queue is None or option.state not in WAITING:
                continue
            if queue.ending == "discard":
                yield option.ended("discarded")
            elif queue.ending == "move" and queue.target is not None:
                moved = replace(option, queue=queue.target)
                yield moved
                yield from (one for one in moved.after(self.now_ms) if one is not moved)

    def see(self, job_id: str, view: tuple[object, ...] | None, *, ending: bool) -> None:
        """Go on from what is there, if it is one of those that may be."""
        job = self.jobs[job_id]
        options = list(self.options(job, ending=ending))
        found = next((option for option in options if option.view == view), None)
        allowed = [option.view for option in options]
        assert found is not None, f"{job_id} is {view}, and not one of {allowed}"
        if found.state == "available" and found is not job and job.place[0] != self.step:
            found = replace(found, place=(self.step, 0))
        self.put(found)

    def put(self, job: Job) -> None:
        """A job as it is now."""
        before = self.jobs.get(job.id)
        self.jobs[job.id] = job
        if before is None or before.done or (job.queue == before.queue and not job.done):
            return
        queue = self.queues.get(before.queue)
        if queue is not None and before.came <= queue.bounded:
            self.unseen[queue.name] = self.unseen.get(queue.name, 0) + 1


class Look:
    """A fetch as it might go: what each queue has, and how much of it may be handed out."""

    def __init__(self, model: Model, names: Iterable[str], pool: Pool | None) -> None:
        self.model, self.names, self.pool = model, list(names), pool
        self.lines = {n: {j.id: j for j in model.in_line(n)} for n in self.names}
        self.dues = {n: {j.id: j for j in model.due(n)} for n in self.names}
        # A deadline that passed in line is noticed by who loses a claim by it, and then jobs are
        # taken in any order.
        self.lost = {
            n
            for n in self.names
            if any(j.state == "available" and j.expires_ms <= model.now_ms for j in model.of(n))
        }

        # Whether each queue could be served, before this fetch took anything.
        self.all_servable = not self.lost and all(
            self.lines[n] and not self.dues[n] and not self.limited(n) for n in self.names
        )

    @property
    def messy(self) -> bool:
        """Whether turns may have been drawn for jobs that were gone."""
        return bool(self.lost)

    def limited(self, name: str) -> bool:
        """Whether the queue says itself how many run."""
        return self.model.queues[name].limit is not None

    def size(self, count: int) -> tuple[int, int]:
        """How many jobs there may be in the answer: at least, and at most."""
        low = high = 0
        for name in self.names:
            there, more = len(self.lines[name]), len(self.dues[name])
            limit = self.model.queues[name].limit
            if limit is None:
                # A fetch looks at five more than it wants of those that wait for a time.
                waiting = ("active", "scheduled", "retryable")
                listed = sum(job.state in waiting for job in self.model.of(name))
                low, high = low + there + (more if listed <= 5 else 0), high + there + more
                continue
            running = self.model.running(name)
            low += min(there, max(0, limit - len(running)))
            high += min(there + more, max(0, limit - len(self.sure(running))))
        if self.pool is not None and self.pool.limit is not None:
            seats = self.model.seats(self.pool.name)
            sure = [job for job in self.sure(seats) if job.id not in self.model.forsaken]
            low = min(low, max(0, self.pool.limit - len(seats)))
            high = min(high, max(0, self.pool.limit - len(sure)))
        return min(count, low), min(count, high)

    def sure(self, running: Sequence[Job]) -> list[Job]:
        """Those whose places time has not given back."""
        return [job for job in running if job.settled(self.model.now_ms).state == "active"]

    def take(self, job: Job) -> None:
        """The next of the answer: is it one that may come next?"""
        assert job.queue in self.names, f"{job.id} is of {job.queue}, which is not served"
        line, due = self.lines[job.queue], self.dues[job.queue]
        assert job.id in line or job.id in due, f"{job.id} is {job.view}: not to be handed out"
        if job.queue not in self.lost and not self.limited(job.queue):
            self.check_order(job, line)
        if self.pool is not None and self.pool.strategy == "strict":
            for name in self.names[: self.names.index(job.queue)]:
                served = self.limited(name) or name in self.lost or not self.lines[name]
                assert served, f"{name} comes before {job.queue}, and has jobs"
        line.pop(job.id, None)
        due.pop(job.id, None)

    def check_order(self, job: Job, line: dict[str, Job]) -> None:
        """Priority first, then who came first."""
        for other in line.values():
            if job.id in line:
                assert other.line >= job.line, f"{other.id} stands before {job.id}"
            elif self.pool is None or self.pool.limit is None:
                # It joins the line behind all of its priority.
                assert other.priority < job.priority, f"{other.id} stands before {job.id}"
