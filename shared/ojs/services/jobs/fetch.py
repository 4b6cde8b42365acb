"""FETCH: hand out jobs (core seed, "FETCH"; design section 5, "Fetch").

The index says where jobs may be; the conditional claim decides. A stale entry costs a lost race,
never a second dispatch.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ojs.clock import Clock
from ojs.domain.errors import BackendUnavailable, OjsError
from ojs.domain.job.job import Job, expired
from ojs.domain.job.states import State
from ojs.domain.pool.dispatch import LEAST_LOADED, ROUND_ROBIN, STRICT
from ojs.domain.queue.queue import Queue
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.permits.queue_limits import QueueLimits, QueueLimitUse
from ojs.services.permits.rate_limits import FetchRateLimits, FetchRateLimitState
from ojs.services.pools.dispatch import PAGE, DispatchPlan, DispatchPlanner
from ojs.services.pools.membership import FetchContext, Membership
from ojs.store.jobs import items
from ojs.store.jobs.records import JobStore, winner
from ojs.store.table.errors import LostRace
from ojs.store.table.keys import Position

# Asked for beyond what is wanted, so that a few lost races need no second query.
_SPARE = 5
_MAX_PAGES = 12
# Pages that hold nothing but jobs of batches still being stored are passed over; so many at most.
_MAX_STAGED_PAGES = 30
# Claims that find the job gone or past its deadline, beyond this many, end a fetch: what is stale
# or expired is left to the next one and the sweep, and a fetch answers in time.
_LOST_CLAIMS = 20
# While the ready line is long enough, the due line is looked at this often by each container, so
# that what became due takes its place by priority.
_DUE_EVERY_MS = 1_000
# A Lambda answers with at most 6 MB, in which the body is a JSON text inside a JSON text: quotes
# and backslashes count twice. What would not fit is not claimed.
_MAX_ANSWER_KIB = 2_900
_SMALL_JOB_KIB = 2
# How long a place in line behind jobs that wait for their limits is gone back to.
_PASSED_OVER_MS = 10_000
_REMEMBERED = 20_000
_MAX_ROTATIONS = 1_000

# A job's id, its place in line, and that as the index has it.
_Entry = tuple[str, Position, str]


class _Memory:
    """Bounded set of strings: the oldest are forgotten first. Safe to share between threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        return key in self._seen

    def add(self, key: str) -> None:
        with self._lock:
            self._seen[key] = None
            while len(self._seen) > self._size:
                self._seen.popitem(last=False)


@dataclass
class _Take:
    """One fetch under way."""

    course: DispatchPlan
    count: int
    worker_id: str | None
    visibility_ms: int | None
    go_on: Callable[[], bool] = lambda: True
    quotas: dict[str, QueueLimitUse] = field(default_factory=dict)
    limits: FetchRateLimitState = field(default_factory=FetchRateLimitState)
    jobs: list[Job] = field(default_factory=list)
    kib: int = 0
    lost: int = 0
    # Whether the last claim was lost to somebody else, and not to the job's own deadline.
    contended: bool = False

    @property
    def wanted(self) -> int:
        """How many more jobs to claim; none after too many lost claims, or when time runs out."""
        if self.lost > _LOST_CLAIMS + 2 * self.count or not self.go_on():
            return 0
        return self.count - len(self.jobs)

    def has_room(self, position: Position) -> bool:
        """Whether the answer stays within what a Lambda may send."""
        return not self.jobs or self.kib + _kib(position) <= _MAX_ANSWER_KIB


def _kib(position: Position) -> int:
    """What a job takes in the answer. A copy of a dead letter shows the error in it twice."""
    return position.size_kib * (2 if position.copy else 1) + _SMALL_JOB_KIB


# What a queue has for a fetch: how many jobs are there, or the next one, claimed.
_Told = int | Job


class _Source:
    """The jobs of one queue, claimed one by one. Nothing is read before it is asked for."""

    def __init__(self, parts: Sequence[Iterator[_Told]]) -> None:
        # Each tells how many there are before it claims one, and claims when it is asked again.
        self._parts = list(parts)
        self._there = 0

    def peek(self) -> int:
        """How many jobs are there to be claimed, as far as is known; 0: none."""
        while not self._there and self._parts:
            told = next(self._parts[0], None)
            if told is None:
                self._parts.pop(0)
            elif isinstance(told, int):
                self._there = told
        return self._there

    def claim(self) -> bool:
        """Claim the next; False when there is none any more."""
        while self.peek():
            self._there = 0
            told = next(self._parts[0], None)
            if isinstance(told, Job):
                return True
            if told is None:
                self._parts.pop(0)
            else:
                self._there = told
        return False

    def then(self, parts: Sequence[Iterator[_Told]]) -> None:
        """Go on with these."""
        self._parts += parts


class Fetch:
    """Hands out jobs."""

    def __init__(
        self,
        jobs: JobStore,
        membership: Membership,
        courses: DispatchPlanner,
        due: TimeTransitions,
        quotas: QueueLimits,
        limits: FetchRateLimits,
        *,
        clock: Clock,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._jobs = jobs
        self._membership = membership
        self._courses = courses
        self._due = due
        self._quotas = quotas
        self._limits = limits
        self._clock = clock
        self._choose = choose
        # What this container has seen claimed: the index may still list it for a moment.
        self._claimed = _Memory(_REMEMBERED)
        self._committed = _Memory(_MAX_ROTATIONS)
        self._due_seen: OrderedDict[tuple[str, int], int] = OrderedDict()
        # Where a line was read up to in which only jobs stand that must wait for their limits.
        self._passed_over: OrderedDict[tuple[str, int], tuple[int, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def fetch(
        self,
        queues: Sequence[str] | None,
        count: int = 1,
        worker_id: str | None = None,
        visibility_timeout_ms: int | None = None,
        strategy: str | None = None,
        go_on: Callable[[], bool] = lambda: True,
        *,
        weights: Mapping[str, int] | None = None,
        pool: str | None = None,
    ) -> list[Job]:
        """Claim up to `count` jobs: by priority, then first in first out, inside each queue.

        Over several queues they take turns: by the worker's pool if it is configured, otherwise by
        `strategy` and `weights` of this call, of the worker's registration, or round-robin
        (fair-scheduling seed, sections 5.2 and 7). Without `queues` all of the pool's are meant.
        Each job is under a lease of `visibility_timeout_ms`, or the job's own, or 30 minutes.
        Returns an empty list when there is nothing, or when the worker was told to stop. No more
        are claimed once `go_on` says that time is running out. Raises Conflict when the worker
        belongs to another pool, InvalidRequest without any queues, BackendUnavailable.
        """
        read = self._membership.read(queues, worker_id, pool)
        if read.worker is not None and not read.worker.may_fetch:
            return []
        course = self._course(read, strategy, weights)
        take = _Take(course, count, worker_id, visibility_timeout_ms, go_on)
        try:
            self._claim_all(take, read.queues)
        except OjsError:
            # What is claimed already must reach the worker; otherwise it waits out its lease.
            if not take.jobs:
                raise
        finally:
            self._quotas.settle(take.quotas)
            self._limits.settle(take.limits)
            self._courses.settle(course)
        return self._with_contents(take)

    # --- order ------------------------------------------------------------------------------

    def _course(
        self, read: FetchContext, strategy: str | None, weights: Mapping[str, int] | None
    ) -> DispatchPlan:
        """How the queues have their turn: server-side configuration first (section 5.2)."""
        if read.pool is not None:
            return self._courses.of_pool(read.pool, read.ledger, read.worker)
        names = [queue.name for queue in read.queues]
        said = read.worker.info if read.worker is not None else {}
        if strategy is None:
            strategy, weights = said.get("strategy"), said.get("weights")
        return self._courses.of_wishes(names, strategy or ROUND_ROBIN, weights or {})

    def _claim_all(self, take: _Take, queues: Sequence[Queue]) -> None:
        plain = len(queues) == 1 and not take.course.seats
        if plain or take.course.plain:
            for queue in queues:
                source = _Source(self._whole(take, queue))
                while take.wanted and source.claim():
                    pass
            return
        strict = take.course.strategy == STRICT
        sources = {queue.name: _Source([]) for queue in queues}
        # Of a pool whose places are all taken only what is due is looked at: leases that are over
        # give places back.
        if not take.course.full:
            for queue in queues:
                # Where the first listed comes first, what is due in it comes before anything of
                # the next.
                lines = self._whole(take, queue) if strict else self._in_line(take, queue)
                sources[queue.name].then(lines)
            self._courses.serve(take.course, sources, lambda: take.wanted)
            if strict or not take.wanted:
                return
        for queue in queues:
            due = [self._take_due(take, queue, lane) for lane in range(queue.lanes)]
            sources[queue.name].then(due)
        self._courses.serve(take.course, sources, lambda: take.wanted)

    def _in_line(self, take: _Take, queue: Queue) -> list[Iterator[_Told]]:
        """What stands in a queue's lines."""
        return [self._candidates(take, queue, lane) for lane in self._lanes(queue)]

    def _whole(self, take: _Take, queue: Queue) -> list[Iterator[_Told]]:
        """All that a queue has: of each lane what stands in line, then what is due."""
        return [
            part
            for lane in self._lanes(queue)
            for part in (self._candidates(take, queue, lane), self._take_due(take, queue, lane))
        ]

    def _lanes(self, queue: Queue) -> list[int]:
        """All lanes of a queue, from a random one on, so that fetchers spread over them."""
        if queue.lanes == 1:
            return [0]
        start = self._choose(queue.lanes)
        return [(start + step) % queue.lanes for step in range(queue.lanes)]

    # --- claim ------------------------------------------------------------------------------

    def _candidates(self, take: _Take, queue: Queue, lane: int) -> Iterator[_Told]:
        """Claims jobs of one line, in order, as long as they are asked for."""
        after: Any = None
        # The deepest of several lines is known when each was looked at for as far as a page goes.
        deep = take.course.strategy == LEAST_LOADED
        limit = PAGE if deep else min(take.wanted + _SPARE, PAGE)
        crowded = False
        # What was due joins the line here: the index may not list it yet.
        joining = self._now_due(take, queue.name, lane)
        pages = staged_pages = 0
        while pages < _MAX_PAGES and staged_pages < _MAX_STAGED_PAGES:
            found, following = self._jobs.ready(queue.name, lane, limit=limit, after=after)
            waiting, staged = self._page(take, found, joining)
            joining = []
            staged_pages, pages = staged_pages + staged, pages + (not staged)
            after, limit = following, PAGE
            # Whether all of the page must wait for their rate limits.
            passed_over = bool(waiting)
            lost = False
            while waiting and not lost:
                yield len(waiting)
                entry = self._next(take, queue, waiting, crowded=crowded)
                if entry is None:
                    break
                passed_over = False
                job_id, position, key = entry
                job = self._claim(take, queue, lane, job_id, position)
                self._claimed.add(job_id + key)
                if job is not None:
                    yield job
                elif take.contended and not crowded:
                    crowded, after, lost = True, None, True
            if lost:
                continue
            if waiting:
                return
            if following is None:
                self._passed_over.pop((queue.name, lane), None)
                return
            if passed_over:
                after = self._pass_over(queue.name, lane, following, first=pages == 1)

    def _page(
        self, take: _Take, found: list[tuple[str, str]], joining: list[tuple[str, str]]
    ) -> tuple[list[_Entry], bool]:
        """What of a page may be claimed, and whether all of it is still being stored."""
        entries = sorted({*found, *joining}, key=lambda entry: entry[1]) if joining else found
        unclaimed = [
            (job_id, Position.parse(key), key)
            for job_id, key in entries
            if job_id + key not in self._claimed
        ]
        waiting = self._committed_only(unclaimed)
        self._limits.look(take.limits, (position for _, position, _ in waiting))
        return waiting, bool(unclaimed) and not waiting

    def _next(
        self, take: _Take, queue: Queue, waiting: list[_Entry], *, crowded: bool
    ) -> _Entry | None:
        """The next to claim; None when there is none, or, with some left, when it is enough."""
        while waiting:
            # In order while races are won. After a lost one: a random place in a wider page,
            # instead of fighting the others for the head of the line.
            at = self._choose(len(waiting)) if crowded else 0
            job_id, position, _ = waiting[at]
            if not take.wanted or not take.has_room(position):
                return None
            if not self._limits.shut(take.limits, job_id, position):
                if not self._quotas.allow(
                    take.quotas,
                    queue,
                    job_id,
                    wanted=min(take.wanted, len(waiting)),
                    waiting=len(waiting),
                ):
                    return None
                entry = waiting.pop(at)
                if self._allowed(take, queue, job_id, position, waiting):
                    return entry
            else:
                waiting.pop(at)
        return None

    def _pass_over(self, queue: str, lane: int, following: Any, *, first: bool) -> Any:
        """Where to go on in a line after a page of jobs that must all wait for their limits.

        The head of the line is always looked at. From there it goes on where this container was
        before, so that a fetch, which reads so many pages at most, gets past any number of them.
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            at_ms, there = self._passed_over.get((queue, lane), (0, None))
            if first and there is not None and now_ms - at_ms < _PASSED_OVER_MS:
                return there
            if first:
                return following
            self._passed_over[queue, lane] = (now_ms, following)
            self._passed_over.move_to_end((queue, lane))
            while len(self._passed_over) > _MAX_ROTATIONS:
                self._passed_over.popitem(last=False)
        return following

    def _allowed(
        self,
        take: _Take,
        queue: Queue,
        job_id: str,
        position: Position,
        following: Sequence[_Entry] = (),
    ) -> bool:
        """Whether a job's own rate limit lets it start; always for one without."""
        if position.limit is None:
            return True
        taken = self._limits.allow(
            take.limits,
            (job_id, position),
            [(other, where) for other, where, _ in following],
            wanted=take.wanted,
            lease=lambda where: self._lease_ms(take, queue, where),
        )
        return taken is not None

    @staticmethod
    def _lease_ms(take: _Take, queue: Queue, position: Position) -> int:
        return take.visibility_ms or position.visibility_ms or queue.config.visibility_ms

    def _now_due(self, take: _Take, queue: str, lane: int) -> list[tuple[str, str]]:
        """Entries of the ready line that what was due now gets; looked for now and then."""
        now_ms = self._clock.now_ms()
        with self._lock:
            last_ms = self._due_seen.get((queue, lane))
            if last_ms is not None and now_ms - last_ms < _DUE_EVERY_MS:
                return []
            self._due_seen[queue, lane] = now_ms
            self._due_seen.move_to_end((queue, lane))
            while len(self._due_seen) > _MAX_ROTATIONS:
                self._due_seen.popitem(last=False)
        if last_ms is None:
            return []
        promoted = self._promote(take, queue, lane)
        return [(job.id, items.position(job).key()) for job in promoted]

    def _committed_only(self, entries: list[_Entry]) -> list[_Entry]:
        """Without the jobs of batches that are still being stored: they do not exist yet."""
        unknown = {
            position.batch
            for _, position, _ in entries
            if position.batch is not None and position.batch not in self._committed
        }
        if not unknown:
            return entries
        staged = self._jobs.staged(unknown)
        for token in unknown - staged:
            self._committed.add(token)
        return [entry for entry in entries if entry[1].batch not in staged]

    def _claim(
        self, take: _Take, queue: Queue, lane: int, job_id: str, position: Position
    ) -> Job | None:
        lease_ms = self._lease_ms(take, queue, position)
        limited = self._limits.use(take.limits, job_id, position)
        # A limited job starts when its start was counted.
        now_ms = self._clock.now_ms() if limited is None else limited.now_ms
        self._quotas.use(take.quotas, queue, job_id)
        take.course.used += 1
        pool = take.course.pool
        try:
            job = self._jobs.claim(
                job_id,
                position,
                queue=queue.name,
                lane=lane,
                now_ms=now_ms,
                lease_ms=lease_ms,
                worker_id=take.worker_id,
                slot=queue.slotted,
                place=None if limited is None else limited.place(job_id, position.order),
                pool=pool.name if pool is not None else None,
                seats=take.course.seats,
            )
        except LostRace as lost:
            take.lost += 1
            there = winner(lost)
            self._limits.lost(limited, job_id, position, there, started=lost.repeated)
            if lost.repeated and (queue.slotted or take.course.seats):
                # An earlier try may have claimed it, and whoever ended it since have given back the
                # places that it took: as when no answer comes at all, unknown means taken.
                raise BackendUnavailable("Nobody knows whether a job was claimed.") from None
            take.course.used -= 1
            if not lost.repeated:
                # Race: an earlier try claimed it, its answer was lost, and somebody ended the job
                # before the SDK asked again. Then it was a start, and counts.
                self._quotas.lost(take.quotas, queue)
            over = there is not None and there.state is State.AVAILABLE and expired(there, now_ms)
            take.contended = not over
            if over:
                self._due.settle(there)
            return None
        take.jobs.append(job)
        take.kib += _kib(position)
        return job

    def _take_due(self, take: _Take, queue: Queue, lane: int) -> Iterator[_Told]:
        """Apply what time has decided in one line, and claim what became available by it."""
        promoted = self._promote(take, queue.name, lane)
        for job in sorted(promoted, key=lambda job: items.position(job).key()):
            position = items.position(job)
            if self._limits.shut(take.limits, job.id, position):
                continue
            yield 1
            if not take.wanted or not take.has_room(position):
                return
            if not self._quotas.allow(take.quotas, queue, job.id, wanted=1, waiting=1):
                return
            self._limits.look(take.limits, [position])
            if not self._allowed(take, queue, job.id, position):
                continue
            claimed = self._claim(take, queue, lane, job.id, position)
            if claimed is not None:
                yield claimed

    def _promote(self, take: _Take, queue: str, lane: int) -> list[Job]:
        """Apply time to as many jobs as are wanted; those that are available now."""
        ids = self._jobs.due(queue, lane, now_ms=self._clock.now_ms(), limit=take.wanted + _SPARE)
        if not ids:
            return []
        heads = self._jobs.heads(ids)
        promoted = []
        for job_id in ids:
            if not take.go_on():
                break
            head = heads.get(job_id)
            settled = self._due.check(head) if head is not None else None
            if settled is not None and settled.state is State.AVAILABLE:
                promoted.append(settled)
        return promoted

    def _with_contents(self, take: _Take) -> list[Job]:
        """The claimed jobs with their contents; one without content is never handed out."""
        try:
            jobs = self._jobs.with_contents(take.jobs)
        except OjsError:
            # The worker will never hear of these jobs: give them back rather than let them wait
            # out their leases. Should this fail too, the leases do run out.
            for job in take.jobs:
                self._due.give_back(job)
            raise
        missing = [job for job in jobs if job.content is None]
        for job in missing:
            self._due.end_without_content(job)
        return [job for job in jobs if job.content is not None] if missing else jobs
