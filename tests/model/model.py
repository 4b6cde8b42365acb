"""What clients are promised, in plain data and in memory: jobs one by one, no table, no index.

It is told of each call and says what may come of it. Where several answers are right (who of those
that became due at the same time stands first, how far a sweep of a queue that ends has come) it
allows each of them, and goes on from the one that it is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

WAITING = ("scheduled", "available", "pending", "retryable")
DONE = ("completed", "cancelled", "discarded")
FOR_EVER = 10**18
LEASE_MS = 20_000
ROTATION_MS = 30_000
# A turn of weight 1, in ms.
TURN = Fraction(1, 16)
# The clock of turns is no finer than a thousandth of this, and their lengths are rounded by it.
GRAIN = Fraction(1, 1 << 10)
Place = tuple[Fraction, int, int]


@dataclass(frozen=True)
class Limit:
    """A rate limit that jobs may be under: so many at a time, or so many starts in a period."""

    concurrency: int | None = None
    starts: int | None = None
    period_ms: int = 0
    on_limit: str = "wait"


LIMITS = {
    "one": Limit(concurrency=1),
    "two": Limit(starts=2, period_ms=10_000),
    "drop": Limit(concurrency=1, on_limit="drop"),
    "later": Limit(starts=1, period_ms=10_000, on_limit="reschedule"),
}


class Refused(Exception):
    """The model says that a call is to be refused, and with what status."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(statuses)
        self.statuses = statuses


@dataclass(frozen=True)
class Job:
    """A job. `place` is where it stands in line: when it came, or, where tenants take turns, its
    turn; then the number of the step, and its place among those that came with the same call. Equal
    ones may stand in any order.
    """

    id: str
    queue: str
    state: str
    priority: int = 0
    place: Place = (Fraction(0), 0, 0)
    lane: int = 0
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
    # Whose turn it takes, and what that is worth, where its queue was fair when it came.
    tenant: str = ""
    weight: int | None = None
    # The rate limit it is under, by name.
    limit: str | None = None
    # Where a copy of it goes when it dies; the copy that it left, and whose copy it is itself.
    copies_to: str | None = None
    copy: str | None = None
    copy_of: str | None = None
    died_ms: int = 0
    died: int = 0
    replays: int = 0

    @property
    def done(self) -> bool:
        """Whether it is final."""
        return self.state in DONE

    @property
    def line(self) -> tuple[int, Place]:
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

    def by_time(self, now_ms: int, *, still: bool = False) -> Job | None:
        """What time alone makes of it next; None while it stays, as all starts and retries do when
        they stand `still`.
        """
        if self.state in WAITING and self.expires_ms <= now_ms:
            return self.ended("discarded")
        if still and self.state in ("scheduled", "retryable"):
            return None
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

    def after(self, now_ms: int, *, still: bool = False) -> Iterator[Job]:
        """The job as it is, and all that time makes of it, one after another."""
        job: Job | None = self
        while job is not None:
            yield job
            job = job.by_time(now_ms, still=still)

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
            lease_ms=LEASE_MS,
            lease_until=now_ms + LEASE_MS,
            stalled=False,
            pool=pool,
        )

    def back(self) -> Job:
        """Available again, from dead letter."""
        return replace(
            self.available(), attempt=0, dead=False, worker=None, pool=None, copy=None,
            lives=self.lives + 1,
        )  # fmt: skip

    @property
    def step(self) -> Fraction:
        """How much later its tenant's next job stands."""
        return TURN / (self.weight or 1)

    def resumed(self, now_ms: int) -> Job:
        """With the worker that was thought lost: for as long as the job itself says, or 30 minutes,
        and not what its queue says.
        """
        lease_ms = 1_800_000 if self.stalled and self.copy_of else self.lease_ms
        return replace(
            self, state="active", lease_ms=lease_ms, lease_until=now_ms + lease_ms, stalled=False
        )


@dataclass(frozen=True)
class Shown:
    """A job as it is seen: what a client sees, and where it stands."""

    view: tuple[object, ...]
    place: Fraction | None = None
    lane: int = 0
    died_ms: int = 0
    start_ms: int = 0
    replays: int = 0


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
    policy: str = "reject"
    ending: str | None = None
    target: str | None = None
    # Starts in a period, since when that holds, and when jobs of it were started.
    starts: int | None = None
    period_ms: int = 0
    started: list[int] = field(default_factory=list)
    limited: int = 0
    # Weights of tenants; None where they do not take turns.
    weights: dict[str, int] | None = None
    lanes: int = 1
    copies_to: str | None = None
    # After how long its dead letters come back by a rule, and how often.
    rule: tuple[int, int] | None = None
    # How long its dead letters stay, and how many.
    keeps_ms: int = FOR_EVER
    keeps: int = 10**9

    @property
    def open(self) -> bool:
        """Whether workers are given jobs from it: none of those that are discarded or moved, and
        all of those that are to be worked off.
        """
        if self.ending is not None:
            return self.ending == "drain"
        return not self.paused


@dataclass
class Pool:
    """A worker pool."""

    name: str
    queues: tuple[str, ...]
    strategy: str
    limit: int | None = None
    isolated: bool = False
    weights: tuple[int, ...] = ()
    # The part of dispatches that each queue has at least.
    ratio: Fraction | None = None
    # Queues that were served one after the other while each of them could be.
    runs: list[str] = field(default_factory=list)
    # When there was a pool of this name first.
    since_ms: int = 0

    def check_turns(self, now_ms: int) -> None:
        """Each queue had its part of what was handed out while all had jobs."""
        n, size = len(self.queues), len(self.runs)
        if self.ratio is not None:
            most = -(-self.ratio.denominator // self.ratio.numerator)
            if now_ms - self.since_ms >= ROTATION_MS:
                # Each of the others may be given a turn of this one, by time.
                most *= n
            for end in range(most, size + 1):
                missed = set(self.queues) - set(self.runs[end - most : end])
                assert not missed, f"{missed} had no turn in {most}: {self.runs}"
        elif self.strategy == "round-robin":
            for end in range(n, size + 1):
                assert len(set(self.runs[end - n : end])) == n, f"not in turn: {self.runs}"
        elif self.strategy == "weighted":
            for name, weight in zip(self.queues, self.weights, strict=True):
                for first in range(size):
                    had = self.runs[first:].count(name)
                    part = Fraction((size - first) * weight, sum(self.weights))
                    assert abs(had - part) < 2, (
                        f"{name} has {weight} of {self.weights}: {self.runs}"
                    )


@dataclass
class Operation:
    """A bulk operation on dead letters: those that are meant and were not dealt with, each by its
    death.
    """

    id: str
    action: str
    left: dict[str, int]
    matched: int
    state: str = "running"
    done: int = 0
    refused: int = 0
    # Others may have dealt with some of them.
    shared: bool = False


@dataclass
class Model:
    """All that there is."""

    jobs: dict[str, Job] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)
    # Jobs that left a queue which were in it before its bound was set, since the last recount.
    unseen: dict[str, int] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    # By line (queue and priority) and tenant: where its next job stands at the earliest.
    ends: dict[tuple[str, int, str], Fraction] = field(default_factory=dict)
    # By rate limit: when jobs were started, and until when none is.
    started: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    waits: dict[str, int] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    # When dead letters were pruned last, and queues that said how many stay and are gone.
    pruned_ms: int = 0
    pruning: bool = False
    swept: int = 0
    graves: dict[str, Queue] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    # By line and tenant: where the next job stands is not known, for some came and went unseen; and
    # how it was before this step.
    vague: set[tuple[str, int, str]] = field(default_factory=set)
    cleared: set[tuple[str, int, str]] = field(default_factory=set)
    first: dict[tuple[str, int, str], Fraction] = field(default_factory=dict)
    # Those that stood in line when their queue became fair.
    turned: set[str] = field(default_factory=set)
    # What the step is that is under way: fetch, sweep, end (of queues).
    doing: set[str] = field(default_factory=set)
    # Copies whose dead letters came back in this step.
    revived: set[str | None] = field(default_factory=set)
    # Running jobs of a pool that was deleted; whether one of the same name counts them is open.
    forsaken: set[str] = field(default_factory=set)
    step: int = 0
    now_ms: int = 0
    # Maintenance mode: nothing is handed out, no start or retry comes by time.
    still: bool = False

    def after(self, job: Job) -> Iterator[Job]:
        """A job as it is, and all that time makes of it now."""
        return job.after(self.now_ms, still=self.still)

    def applied(self, job: Job) -> Job:
        """A job after all that time has decided."""
        return list(self.after(job))[-1]

    def begin(self, now_ms: int, doing: Iterable[str]) -> None:
        """One more step."""
        self.now_ms, self.step, self.doing = now_ms, self.step + 1, set(doing)
        self.vague -= self.cleared
        self.revived, self.cleared, self.first = set(), set(), dict(self.ends)

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

    def permit_holders(self, pool: str) -> list[Job]:
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
            if job.state != "available" and self.applied(job).state == "available"
        ]

    def pools_of(self, queue: str) -> list[Pool]:
        """The pools that a queue is in."""
        return [pool for pool in self.pools.values() if queue in pool.queues]

    # --- pushing --------------------------------------------------------------------------------

    def push(self, jobs: Sequence[Job]) -> None:
        """All of them come, or Refused says why none. `dropped` are those that give way."""
        self.dropped = []
        # A queue that is named is there from then on, whatever becomes of the jobs.
        if any(queue.ending for queue in [self.make(job.queue) for job in jobs]):
            raise Refused(409)
        for name in sorted({job.queue for job in jobs}):
            more = sum(job.queue == name for job in jobs)
            try:
                self.check_bound(name, more - self.give_way(name, more))
            except Refused:
                # Nobody gives way for what is refused, in whichever queue.
                self.dropped = []
                raise

    def make(self, queue: str) -> Queue:
        """The queue, which is there from now on."""
        return self.queues.setdefault(queue, Queue(queue))

    def give_way(self, name: str, more: int) -> int:
        """The oldest jobs in line give way where a queue says so, if that makes room for all."""
        queue = self.queues[name]
        if queue.policy != "drop_oldest" or queue.bound is None or more > queue.bound:
            return 0
        over = len(self.of(name)) + more - queue.bound
        line = [job for job in self.of(name) if job.state == "available"]
        if over <= 0 or over > len(line):
            return 0
        oldest = sorted(line, key=lambda job: job.place[1:])[:over]
        self.dropped += [job.id for job in oldest]
        return over

    def check_bound(self, name: str, more: int) -> None:
        """Refused when there is no room; whether there is may be unknown to the depth counter for a
        while, and then a refusal is right, too, but not one too few.
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
        found = (j for j in self.jobs.values() if j.key == key and not self.applied(j).done)
        return next(found, None) if key is not None else None

    # --- places in line -------------------------------------------------------------------------

    def entering(self, jobs: Sequence[Job]) -> list[Job]:
        """Jobs that one call makes available, with their places."""
        begins: dict[tuple[str, int], Fraction] = {}
        placed = []
        for sub, job in enumerate(jobs):
            if job.state != "available":
                placed.append(job)
                continue
            at = Fraction(self.now_ms)
            if job.weight is not None:
                line = (job.queue, job.priority)
                if line not in begins:
                    begins[line] = self.virtual(*line)
                at = max(begins[line], self.ends.get((*line, job.tenant), at * 0))
                self.ends[(*line, job.tenant)] = at + job.step
            placed.append(replace(job, place=(at, self.step, sub)))
        return placed

    def virtual(self, queue: str, priority: int) -> Fraction:
        """Where a line has come to: its first job that no rate limit holds back, or now."""
        waiting = [job for job in self.of(queue) if job.state == "available"]
        line = sorted((job for job in waiting if job.priority == priority), key=lambda j: j.line)
        if not line:
            return Fraction(self.now_ms)
        return next((job.place[0] for job in line if job.limit is None), line[-1].place[0])

    def settle_place(self, job: Job, shown: Fraction, *, pushed: bool) -> None:
        """A job came into line in this step: it stands where it should, or, where that depends on
        what came before it, where it is seen.
        """
        line = (job.queue, job.priority, job.tenant)
        if pushed and line not in self.vague:
            off = shown - job.place[0]
            assert abs(off) <= GRAIN, f"{job.id} stands {float(off)} ms off"
        elif line in self.first:
            assert shown >= self.first[line] - GRAIN, f"{job.id} stands before its tenant's"
        end = shown + job.step
        known = line not in self.vague or line in self.cleared
        self.ends[line] = max(end, self.ends.get(line, end)) if known else end
        self.cleared.add(line)
        self.jobs[job.id] = replace(job, place=(shown, self.step, job.place[2]))

    def turn(self) -> None:
        """Those that take their turns from now on stay in order, each tenant's."""
        there = sorted((self.jobs[job_id] for job_id in self.turned), key=lambda j: j.place[1:])
        last: dict[tuple[str, int, str], Job] = {}
        for job in there:
            line = (job.queue, job.priority, job.tenant)
            before = last.get(line)
            if before is not None and before.place[1:] < job.place[1:]:
                assert before.place[0] < job.place[0], f"{before.id} and {job.id} changed places"
            last[line] = job
        self.turned.clear()

    # --- limits ---------------------------------------------------------------------------------

    def room_under(self, name: str) -> tuple[int, int]:
        """How many jobs may start under a rate limit: surely, and at most."""
        limit, low, high = LIMITS[name], FOR_EVER, FOR_EVER
        if self.waits.get(name, 0) > self.now_ms or name in self.closed:
            return 0, 0
        if limit.concurrency is not None:
            running = [j for j in self.jobs.values() if j.state == "active" and j.limit == name]
            low = max(0, limit.concurrency - len(running))
            high = max(0, limit.concurrency - len(self.sure(running)))
        if limit.starts is not None:
            some = starts(self.started[name], limit.starts, limit.period_ms, self.now_ms)
            low, high = min(low, some[0]), min(high, some[1])
        return low, high

    def sure(self, running: Sequence[Job]) -> list[Job]:
        """Those whose places time has not given back."""
        return [job for job in running if self.applied(job).state == "active"]

    # --- seeing ---------------------------------------------------------------------------------

    def options(self, job: Job) -> Iterator[Job]:
        """All that may have become of a job that nobody asked for: by time; in a fetch, by a rate
        limit that asks for it; in a sweep, by the end of its queue, a rule or a bulk operation.
        """
        for option in self.after(job):
            yield option
            if option.state == "available" and option.limit and "fetch" in self.doing:
                on_limit = LIMITS[option.limit].on_limit
                if on_limit == "drop":
                    yield option.ended("discarded")
                elif on_limit == "reschedule":
                    yield replace(option, state="scheduled", stalled=False)
            if option.state in WAITING and "end" in self.doing:
                yield from self.by_end(option)
            if option.state in WAITING and option.id in self.revived:
                yield option.ended("cancelled")
        if job.dead and "sweep" in self.doing and (self.by_rule(job) or self.by_operation(job)):
            yield self.returned(job)

    def by_end(self, job: Job) -> Iterator[Job]:
        """What the end of its queue may make of it."""
        queue = self.queues.get(job.queue)
        if queue is not None and queue.ending == "discard":
            yield job.ended("discarded")
        elif queue is not None and queue.ending == "move" and queue.target is not None:
            moved = replace(job, queue=queue.target, weight=self.weight(queue.target, job.tenant))
            yield moved
            yield from (one for one in self.after(moved) if one is not moved)

    def by_rule(self, job: Job) -> bool:
        """Whether a rule may bring a dead letter back."""
        queue = self.queues.get(job.queue)
        if queue is None or queue.rule is None or queue.ending or self.still:
            return False
        delay_ms, most = queue.rule
        return job.died_ms + delay_ms <= self.now_ms and job.replays < most

    def by_operation(self, job: Job, action: str = "retry") -> bool:
        """Whether a bulk operation means it."""
        return any(
            op.action == action and op.left.get(job.id) == job.lives and op.state == "running"
            for op in self.operations.values()
        )

    def may_go(self, job: Job) -> bool:
        """Whether a dead letter may have been purged or pruned by a sweep."""
        dead = next((option for option in self.options(job) if option.dead), None)
        if dead is None or "sweep" not in self.doing:
            return False
        return self.by_operation(job, "purge") or (self.pruning and self.too_many(job))

    def too_many(self, job: Job, among: Iterable[Job] | None = None) -> bool:
        """Whether a dead letter is too old, or not among the latest of its queue."""
        queue = self.queues.get(job.queue) or self.graves.get(job.queue)
        if queue is None:
            return False
        others = self.jobs.values() if among is None else among
        others = [j for j in others if j.queue == job.queue and j is not job]
        later = [j for j in others if any(o.dead for o in self.options(j))]
        later = [j for j in later if not j.dead or j.died_ms >= job.died_ms]
        died_ms = job.died_ms if job.dead else self.now_ms
        return died_ms < self.now_ms - queue.keeps_ms or len(later) >= queue.keeps

    def weight(self, queue: str, tenant: str) -> int | None:
        """What a turn of a tenant is worth in a queue, as it is configured."""
        weights = self.queues[queue].weights if queue in self.queues else None
        return None if weights is None else weights.get(tenant, 1)

    def returned(self, job: Job) -> Job:
        """A dead letter that comes back, under what its queue says now."""
        return replace(job.back(), weight=self.weight(job.queue, job.tenant), came=self.step)

    def see(self, job_id: str, shown: Shown) -> None:
        """Go on from what is there, if it is one of those that may be."""
        job = self.jobs[job_id]
        options = list(self.options(job))
        found = next((option for option in options if option.view == shown.view), None)
        allowed = [option.view for option in options]
        assert found is not None, f"{job_id} is {shown.view}, and not one of {allowed}"
        if found.dead and not job.dead:
            assert 0 < shown.died_ms <= self.now_ms
            found = replace(found, died_ms=shown.died_ms, died=self.step)
        # It may have been put off by its rate limit, and have been due before that.
        off = found.limit is not None and LIMITS[found.limit].on_limit == "reschedule"
        if found.state == "scheduled" and off and shown.start_ms != job.start_ms:
            assert self.now_ms < shown.start_ms <= self.now_ms + 11_001, "put off for too long"
            found = replace(found, start_ms=shown.start_ms)
        if job.dead and found.state == "available":
            found = self.bring(job, found, shown.replays)
        if found.state == "available" and found is not job:
            found = replace(found, place=(Fraction(self.now_ms), self.step, 0))
        if job.weight is not None and job.state != "available" and found.state != "available":
            times = [one.state for one in self.after(job)]
            if "available" in times and found is not job:
                # It was in line in between.
                self.vague.add((job.queue, job.priority, job.tenant))
        self.put(replace(found, lane=shown.lane))
        if found.state != "available" or found.weight is None or shown.place is None:
            return
        if job_id in self.turned:
            line = (found.queue, found.priority, found.tenant)
            self.jobs[job_id] = replace(self.jobs[job_id], place=(shown.place, *job.place[1:]))
            self.ends[line] = max(shown.place + found.step, self.ends.get(line, shown.place))
        elif found is not job or job.place[1] == self.step:
            self.settle_place(self.jobs[job_id], shown.place, pushed=found is job)

    def bring(self, job: Job, found: Job, replays: int) -> Job:
        """A sweep brought back a dead letter: by an operation, or by a rule, which counts it."""
        self.revived.add(job.copy)
        ruled, meant = self.by_rule(job), False
        for operation in self.operations.values():
            if operation.left.get(job.id) == job.lives:
                del operation.left[job.id]
                operation.done += 1
                operation.shared = operation.shared or ruled
                meant = True
                if not ruled:
                    break
        right = {job.replays + 1} if ruled else {job.replays}
        assert replays in right | ({job.replays} if meant else set()), f"{replays} replays"
        return replace(found, replays=replays)

    def gone(self, job: Job) -> None:
        """A sweep removed a dead letter."""
        for operation in self.operations.values():
            if operation.action == "purge" and operation.left.get(job.id) == job.lives:
                del operation.left[job.id]
                operation.done += 1
                operation.shared = operation.shared or self.pruning
        del self.jobs[job.id]

    def put(self, job: Job) -> None:
        """A job as it is now."""
        before = self.jobs.get(job.id)
        self.jobs[job.id] = job
        if before is None or before.done or (job.queue == before.queue and not job.done):
            return
        queue = self.queues.get(before.queue)
        if queue is not None and before.came <= queue.bounded:
            self.unseen[queue.name] = self.unseen.get(queue.name, 0) + 1


def starts(times: Sequence[int], most: int, period_ms: int, now_ms: int) -> tuple[int, int]:
    """How many more may start: surely, and at most. Starts are forgotten a tenth of the period at a
    time.
    """
    late = sum(at > now_ms - period_ms for at in times)
    counted = sum(at > now_ms - period_ms * 11 // 10 - 1 for at in times)
    return max(0, most - counted), max(0, most - late)
