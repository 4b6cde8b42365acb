"""What a fetch may be answered, by the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.model.model import FOR_EVER, LIMITS, Job, Model, Pool, starts

DEEP = 80


def fetched(
    model: Model,
    got: Sequence[str],
    names: Sequence[str],
    count: int,
    worker: str,
    pool: Pool | None,
) -> None:
    """Take a fetch's answer, or fail with what is wrong about it."""
    if model.still:
        assert not got, f"{list(got)} were handed out in maintenance"
        return
    served = [n for n in names if n in model.queues and model.queues[n].open]
    others = {n for p in model.pools.values() if p.isolated and p is not pool for n in p.queues}
    served = [name for name in served if name not in others]
    possible = PossibleFetch(model, served, pool)
    assert len(set(got)) == len(got), "a job was handed out twice in one answer"
    low, high = possible.size(count)
    assert low <= len(got) <= high, f"{[i[-4:] for i in got]}, and not {low} to {high}: {possible}"
    plenty = possible.plenty(count)
    for job_id in got:
        possible.take(model.jobs[job_id])
        job = model.jobs[job_id]
        if job.state != "available" and job.weight is not None:
            model.vague.add((job.queue, job.priority, job.tenant))
        job = model.applied(job)
        model.jobs[job_id] = job.claimed(worker, model.now_ms, pool.name if pool else None)
        model.queues[job.queue].started.append(model.now_ms)
        if job.limit is not None:
            model.started[job.limit].append(model.now_ms)
    if pool is None:
        return
    if plenty and len(got) == count and set(served) == set(pool.queues):
        pool.runs += [model.jobs[job_id].queue for job_id in got]
        pool.check_turns(model.now_ms)
    elif got or not possible.quiet:
        pool.runs.clear()


class PossibleFetch:
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
        # How many more may start under each rate limit: surely, and at most.
        self.room = {name: model.room_under(name) for name in LIMITS}
        # One whose deadline passed may take room until that is noticed; others find none meanwhile.
        for name in self.lost:
            for job in model.of(name):
                if job.state == "available" and job.expires_ms <= model.now_ms and job.limit:
                    low, high = self.room[job.limit]
                    self.room[job.limit] = max(0, low - 1), high
        # Only what is at the head of a long line that waits for its limits is looked at.
        self.deep = {
            n
            for n in self.names
            if sum(job.limit is not None for job in self.lines[n].values()) > 5
        }

    def __repr__(self) -> str:
        def told(jobs: Iterable[Job]) -> str:
            return ", ".join(f"{job.id[-4:]} {job.state} {job.limit or ''}" for job in jobs)

        lines = {name: told(line.values()) for name, line in self.lines.items()}
        dues = {name: told(due.values()) for name, due in self.dues.items()}
        places = {name: self.places(name) for name in self.names}
        return f"in line {lines}, due {dues}, places {places}, room {self.room}"

    @property
    def quiet(self) -> bool:
        """Whether nothing is there that turns may have been drawn for."""
        return not self.lost and not any(self.lines.values()) and not any(self.dues.values())

    def plenty(self, count: int) -> bool:
        """Whether each queue has enough for all of the answer, and nothing else is to be minded."""
        return not self.lost and all(
            len(self.lines[name]) >= count
            and all(job.limit is None for job in self.lines[name].values())
            and not self.dues[name]
            and not self.limited(name)
            for name in self.names
        )

    def limited(self, name: str) -> bool:
        """Whether the queue says itself how many run, or start."""
        queue = self.model.queues[name]
        return queue.limit is not None or queue.starts is not None

    def places(self, name: str) -> tuple[int, int]:
        """How many jobs of a queue may start, whatever it has: surely, and at most."""
        queue, low, high = self.model.queues[name], FOR_EVER, FOR_EVER
        if queue.limit is not None:
            running = self.model.running(name)
            low = max(0, queue.limit - len(running))
            high = max(0, queue.limit - len(self.model.sure(running)))
        if queue.starts is not None:
            period_ms, now_ms = queue.period_ms, self.model.now_ms
            low = min(low, starts(queue.started, queue.starts, period_ms, now_ms)[0])
            # What was handed out before there was a limit may count or not.
            since = [at for at in queue.started if at >= queue.limited]
            high = min(high, starts(since, queue.starts, period_ms, now_ms)[1])
        return low, high

    def size(self, count: int) -> tuple[int, int]:
        """How many jobs there may be in the answer: at least, and at most."""
        low = high = 0
        keyed = dict.fromkeys(LIMITS, 0)
        bound = False
        for name in self.names:
            line, dues = self.lines[name].values(), self.dues[name].values()
            # A fetch looks at five more than it wants of those that wait for a time.
            waiting = ("active", "scheduled", "retryable")
            listed = sum(job.state in waiting for job in self.model.of(name))
            # A lease that was lost is found by the sweep, unless an entry in the index tells of it.
            surely = [job for job in dues if job.state != "active"]
            sure = [*line, *(surely if listed <= 5 and not self.limited(name) else ())]
            places = self.places(name)
            bound = bound or places[0] < len(sure) or name in self.deep
            low += min(places[0], sum(job.limit is None for job in sure))
            for job in sure:
                if job.limit is not None:
                    keyed[job.limit] += 1
            high += min(places[1], self.most(name))
        if not bound:
            low += sum(min(n, self.room[limit][0]) for limit, n in keyed.items())
        if self.pool is not None and self.pool.limit is not None:
            holders = self.model.permit_holders(self.pool.name)
            sure = [job for job in self.model.sure(holders) if job.id not in self.model.forsaken]
            low = min(low, max(0, self.pool.limit - len(holders)))
            high = min(high, max(0, self.pool.limit - len(sure)))
        return min(count, low), min(count, high)

    def most(self, name: str) -> int:
        """How many jobs of a queue their rate limits let start at most."""
        there = [*self.lines[name].values(), *self.dues[name].values()]
        under = {limit: sum(job.limit == limit for job in there) for limit in LIMITS}
        plain = sum(job.limit is None for job in there)
        return plain + sum(min(n, self.room[limit][1]) for limit, n in under.items())

    def take(self, job: Job) -> None:
        """The next of the answer: is it one that may come next?"""
        assert job.queue in self.names, f"{job.id} is of {job.queue}, which is not served"
        line, due = self.lines[job.queue], self.dues[job.queue]
        assert job.id in line or job.id in due, f"{job.id} is {job.view}: not to be handed out"
        if job.limit is not None:
            low, high = self.room[job.limit]
            assert high > 0, f"{job.id} is beyond the limit {job.limit}"
            self.room[job.limit] = max(0, low - 1), high - 1
        if job.queue not in self.lost | self.deep and not self.limited(job.queue):
            self.check_order(job, line)
        self.check_queue(job)
        line.pop(job.id, None)
        due.pop(job.id, None)

    def check_queue(self, job: Job) -> None:
        """Whether it is the turn of the job's queue, where its pool says so."""
        if self.pool is None or self.pool.ratio is not None:
            return
        if self.pool.strategy == "strict":
            for name in self.names[: self.names.index(job.queue)]:
                left = name not in self.lost | self.deep and not self.limited(name)
                jobs = self.lines[name].values()
                left = left and any(self.may_start(other) for other in jobs)
                assert not left, f"{name} comes before {job.queue}, and has jobs"
        # Of several lanes a fetch looks at one, and takes that for the queue's depth.
        wide = any(self.model.queues[name].lanes > 1 for name in self.names)
        if self.pool.strategy == "least-loaded" and self.plenty(0) and not wide:
            depths = {name: len(line) for name, line in self.lines.items()}
            # Beyond so many they are not counted, but taken from the statistics.
            most = min(DEEP, max(depths.values()))
            assert depths[job.queue] >= most, f"{job.queue} of {depths}"

    def may_start(self, job: Job) -> bool:
        """Whether the job's rate limit surely has room, also for all others that are under it: it
        may be taken for any of them first.
        """
        if job.limit is None:
            return True
        there = [*self.lines.values(), *self.dues.values()]
        under = sum(other.limit == job.limit for some in there for other in some.values())
        return under <= self.room[job.limit][0]

    def check_order(self, job: Job, line: dict[str, Job]) -> None:
        """Priority first, then turns and who came first; each lane is a line of its own."""
        for other in line.values():
            if other.lane != job.lane or not self.may_start(other):
                continue
            if job.id in line:
                assert other.line >= job.line, f"{other.id} stands before {job.id}"
            elif self.model.queues[job.queue].weights is None and (
                self.pool is None or self.pool.limit is None
            ):
                # It joins the line behind all of its priority; one whose time to start has come is
                # where it would be had it come then.
                time_ms = {"scheduled": job.start_ms, "retryable": job.retry_ms}.get(job.state)
                later = time_ms is not None and other.place[0] >= time_ms
                behind = other.priority == job.priority and later
                assert other.priority < job.priority or behind, f"{other.id} before {job.id}"
