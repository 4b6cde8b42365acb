"""PUSH: one job or many (core seed, "PUSH"; ojs-http-binding sections 9.1 and 9.2)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from ojs.clock import Clock
from ojs.domain import jsontext, times
from ojs.domain.access import Reaches, everything
from ojs.domain.errors import (
    BackendError,
    BackendUnavailable,
    Duplicate,
    InvalidRequest,
    OjsError,
    QueueNotFound,
    Unsupported,
    forbidden,
)
from ojs.domain.ids import IdSource
from ojs.domain.job import envelope, lifecycle, retry
from ojs.domain.job.envelope import MAX_BATCH, JobRequest, Specification, Unique
from ojs.domain.job.job import DEFAULT_TIMEOUT_MS, Job
from ojs.domain.job.states import State
from ojs.domain.job.unique import fingerprint
from ojs.domain.queue import admission
from ojs.domain.queue.queue import Queue
from ojs.services.jobs import middleware
from ojs.services.jobs.middleware import Middleware
from ojs.services.jobs.placement import FairQueuePlacement, FinishTags
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.permits.backpressure import QueueBounds, QueuePressure, Reservation
from ojs.services.permits.rate_limits import RateLimits, RateLimitStatus, registered
from ojs.store.jobs.records import JobIdTaken, JobStore
from ojs.store.jobs.unique_locks import UniqueLock, UniqueLocks
from ojs.store.queues.queues import QueueStore
from ojs.store.table.errors import LostRace
from ojs.store.table.table import MAX_TRANSACTION, Put, Update

_TRIES = 6
# Gives jobs their places in line.
Placed = Callable[[Sequence[Job]], list[Job]]


@dataclass(frozen=True)
class Pushed:
    """The job that now stands for the request; `deduplicated` when it was there before.

    `pressure` is set when its queue is bounded and filled beyond its warning threshold, `standing`
    says how its rate limit stands if it has one.
    """

    job: Job
    deduplicated: bool = False
    pressure: QueuePressure | None = None
    standing: RateLimitStatus | None = None


@dataclass(frozen=True)
class _Push:
    """A push as it was asked for, worked out once: requests after the middleware, what they mean at
    the time they came (`came_ms`), and the ids of their jobs. `batch` is whether errors name one.
    """

    requests: Sequence[JobRequest]
    specifications: Sequence[Specification]
    ids: Sequence[str]
    came_ms: int
    producer: str | None
    reaches: Reaches
    batch: bool = False


@dataclass(frozen=True)
class _Look:
    """A push on one look at its queues: the jobs as they would be stored now, their specifications
    under the queues' defaults, the queues, and where tenants' jobs end in them.
    """

    jobs: Sequence[Job]
    specifications: Sequence[Specification]
    queues: Mapping[str, Queue]
    ends: FinishTags
    now_ms: int


@dataclass(frozen=True)
class _Plan:
    """How one request will be stored: a new job with its lock writes, or an existing one."""

    job: Job
    also: tuple[Put | Update, ...] = ()
    existing: bool = False
    replaces: Job | None = None


class _There(Exception):
    """The unique job exists, and its push is content with that."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.id)
        self.job = job


class Enqueue:
    """Accepts jobs."""

    def __init__(
        self,
        jobs: JobStore,
        queues: QueueStore,
        locks: UniqueLocks,
        due: TimeTransitions,
        bounds: QueueBounds,
        clock: Clock,
        ids: IdSource,
        *,
        limits: RateLimits,
        lines: FairQueuePlacement,
        chain: Sequence[Middleware] = (),
        strict: bool = False,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._jobs = jobs
        self._queues = queues
        self._locks = locks
        self._due = due
        self._bounds = bounds
        self._limits = limits
        self._lines = lines
        self._clock = clock
        self._ids = ids
        self._chain = chain
        self._strict = strict
        self._choose = choose

    def push(
        self,
        request: JobRequest,
        *,
        producer: str | None = None,
        reaches: Reaches = everything,
        wait_ms: int = 0,
    ) -> Pushed:
        """Store one job durably. `producer` is who asks, where queues admit only some; `reaches`
        tells which queues they may touch at all; `wait_ms` is how long it waits for room in a full
        queue whose strategy is `block`. A push that waited comes under the configuration of the
        moment of its admission, and its job is created then; relative times in the request count
        from the request.

        Raises InvalidRequest, ValidationFailed, Unsupported, PayloadTooLarge for what is asked,
        JobTypeNotAllowed and PermissionDenied for what the queue does not take, QueueNotFound in
        strict mode, QueueFull, Duplicate when the id or the unique key is taken,
        BackendUnavailable.
        """
        now_ms = self._clock.now_ms()
        request = middleware.run(self._chain, request)
        specification = envelope.resolve(request, now_ms=now_ms)
        _check_reach(specification.queue, reaches)
        ids = [specification.id or self._ids.uuid7()]
        push = _Push([request], [specification], ids, now_ms, producer, reaches)
        return self._bounds.wait(lambda: self._push(push), wait_ms)

    def _push(self, push: _Push) -> Pushed:
        """Store the one job of a push, as its queue has it now. Raises NoRoomYet, and as `push`."""
        look = self._look(push)
        (job,), (specification,) = look.jobs, look.specifications
        now_ms, reaches = look.now_ms, push.reaches
        may_enter = partial(self._check_new, look, reaches)
        try:
            with self._bounds.room([job], look.queues, waits=True, may_enter=may_enter) as entry:
                pushed = self._store(
                    job, specification, now_ms, partial(self._placed, look.ends, entry), reaches
                )
                entry.keep([] if pushed.deduplicated else [pushed.job])
        except _There as there:
            (existing,) = self._jobs.with_contents([there.job])
            return Pushed(existing, deduplicated=True, standing=self._standing(existing))
        pressure = entry.pressure(job.queue)
        return replace(pushed, pressure=pressure, standing=self._standing(pushed.job))

    def _standing(self, job: Job) -> RateLimitStatus | None:
        """How the job's rate limit stands, for telling; the job is stored whatever comes of it."""
        if job.limit is None:
            return None
        try:
            return self._limits.standing(job.limit, job.queue)
        except OjsError:
            return None

    def _store(
        self,
        job: Job,
        specification: Specification,
        now_ms: int,
        placed: Placed,
        reaches: Reaches,
    ) -> Pushed:
        if specification.unique is None:
            (job,) = placed([job])
            try:
                return Pushed(self._jobs.create(job))
            except JobIdTaken:
                raise _taken(job.id) from None
        for _ in range(_TRIES):
            plan = self._plan(job, specification, specification.unique, now_ms, reaches)
            if plan.existing:
                (existing,) = self._jobs.with_contents([plan.job])
                return Pushed(existing, deduplicated=True)
            if plan.job.order is not None:
                # Once: a place that was taken for it keeps, however often others come in between.
                (job,) = placed([job])
            entering = plan.job if plan.job.order is None else replace(plan.job, order=job.order)
            try:
                stored = self._jobs.create(entering, plan.also)
            except JobIdTaken:
                raise _taken(job.id) from None
            except LostRace:
                continue
            if plan.replaces is not None:
                self._jobs.let_go(plan.replaces, now_ms=now_ms)
            return Pushed(stored)
        raise BackendUnavailable("Others are pushing the same unique job; try again.")

    def push_batch(
        self,
        requests: Sequence[JobRequest],
        *,
        producer: str | None = None,
        reaches: Reaches = everything,
        wait_ms: int = 0,
    ) -> list[Pushed]:
        """Store up to 1 000 jobs, all or none, in array order.

        Raises as `push` does, with `details.index` naming the job; nothing is stored then.
        """
        if not requests:
            raise InvalidRequest("jobs", "must hold at least one job")
        if len(requests) > MAX_BATCH:
            raise InvalidRequest("jobs", f"must hold at most {MAX_BATCH} jobs")
        now_ms = self._clock.now_ms()
        asked, specifications = [], []
        for index, request in enumerate(requests):
            with _naming(index):
                asked.append(middleware.run(self._chain, request))
                resolved = envelope.resolve(asked[-1], now_ms=now_ms, prefix=_at(index))
                _check_reach(resolved.queue, reaches)
            specifications.append(resolved)
        _check_ids(specifications)
        ids = [given.id or self._ids.uuid7() for given in specifications]
        push = _Push(asked, specifications, ids, now_ms, producer, reaches, batch=True)
        return self._bounds.wait(lambda: self._push_all(push), wait_ms)

    def _push_all(self, push: _Push) -> list[Pushed]:
        """Store a batch, as its queues have it now. Raises NoRoomYet, and as `push_batch`."""
        look = self._look(push)
        jobs, specifications, now_ms = look.jobs, look.specifications, look.now_ms
        may_enter = partial(self._check_new, look, push.reaches)
        with self._bounds.room(jobs, look.queues, waits=True, may_enter=may_enter) as entry:
            if any(s.unique for s in specifications):
                placed = partial(self._placed, look.ends, entry)
                pushed = self._push_unique_batch(jobs, specifications, now_ms, placed, push.reaches)
            else:
                chosen = any(s.id for s in specifications)
                entering = self._placed(look.ends, entry, jobs)
                pushed = self._store_batch(entering, entry, now_ms, chosen=chosen)
            entry.keep([one.job for one in pushed if not one.deduplicated])
        return [replace(one, pressure=entry.pressure(one.job.queue)) for one in pushed]

    def _look(self, push: _Push) -> _Look:
        """What a push comes to now: its queues are read, and all that they decide is decided.

        Makes queues that are not there. Raises QueueNotFound in strict mode, QueueDraining,
        JobTypeNotAllowed and PermissionDenied where a queue takes no such job.
        """
        now_ms = self._clock.now_ms()
        queues, ends = self._known_queues(push.specifications, now_ms)
        jobs, specifications = [], []
        for index, resolved in enumerate(push.specifications):
            queue = queues[resolved.queue]
            with _naming(index) if push.batch else nullcontext():
                admission.check(queue, resolved.type, push.producer)
                under = _under(
                    queue,
                    resolved,
                    push.requests[index],
                    now_ms=push.came_ms,
                    prefix=_at(index) if push.batch else "",
                )
            specifications.append(under)
            jobs.append(self._job(push.ids[index], under, queue, now_ms, push.producer))
        # Costs nothing on later looks: the keys are known then.
        self._limits.register(registered(jobs))
        return _Look(jobs, specifications, queues, ends, now_ms)

    def _check_new(self, look: _Look, reaches: Reaches) -> None:
        """Raise Duplicate for a push that is refused for its id or its unique key: asked before
        others give way to it, who would do so for nothing. What comes about after that, the write
        itself decides.
        """
        jobs, specifications, now_ms = look.jobs, look.specifications, look.now_ms
        chosen = [job.id for job, given in zip(jobs, specifications, strict=True) if given.id]
        for job_id in self._jobs.heads(chosen) if chosen else ():
            raise _taken(job_id) if len(jobs) == 1 else _taken_in_batch(job_id, jobs)
        for index, (job, given) in enumerate(zip(jobs, specifications, strict=True)):
            if given.unique is None:
                continue
            alone = len(jobs) == 1
            with nullcontext() if alone else _naming(index):
                plan = self._plan(job, given, given.unique, now_ms, reaches)
            if alone and plan.existing:
                raise _There(plan.job)

    def _store_batch(
        self, jobs: Sequence[Job], entry: Reservation, now_ms: int, *, chosen: bool
    ) -> list[Pushed]:
        try:
            if len(jobs) <= MAX_TRANSACTION:
                stored = self._jobs.create_all(jobs)
            else:
                # From here on the batch's item says what room it took: undoing it gives it back.
                entry.keep(jobs)
                stored = self._jobs.create_staged(jobs, now_ms=now_ms, chosen_ids=chosen)
        except JobIdTaken as taken:
            raise _taken_in_batch(taken.job_id, jobs) from None
        return [Pushed(job) for job in stored]

    def _push_unique_batch(
        self,
        jobs: Sequence[Job],
        specifications: Sequence[Specification],
        now_ms: int,
        placed: Placed,
        reaches: Reaches,
    ) -> list[Pushed]:
        if 2 * len(jobs) > MAX_TRANSACTION:
            raise Unsupported(
                f"A batch with unique jobs may hold at most {MAX_TRANSACTION // 2} jobs.",
                field="jobs",
            )
        _check_fingerprints(specifications)
        for _ in range(_TRIES):
            plans = []
            for index, (job, specification) in enumerate(zip(jobs, specifications, strict=True)):
                if specification.unique is None:
                    plans.append(_Plan(job))
                    continue
                with _naming(index):
                    plan = self._plan(job, specification, specification.unique, now_ms, reaches)
                plans.append(plan)
            new = [plan for plan in plans if not plan.existing]
            _check_replaced(new, jobs)
            also = [write for plan in new for write in plan.also]
            if len(new) + len(also) > MAX_TRANSACTION:
                raise Unsupported(
                    "The batch replaces more jobs than one transaction can.", field="jobs"
                )
            entering = placed([plan.job for plan in new])
            try:
                stored = self._jobs.create_all(entering, also) if new else []
            except JobIdTaken as taken:
                raise _taken_in_batch(taken.job_id, jobs) from None
            except LostRace:
                continue
            for plan in new:
                if plan.replaces is not None:
                    self._jobs.let_go(plan.replaces, now_ms=now_ms)
            fresh = iter(stored)
            return [
                Pushed(self._jobs.with_contents([plan.job])[0], deduplicated=True)
                if plan.existing
                else Pushed(next(fresh))
                for plan in plans
            ]
        raise BackendUnavailable("Others are pushing the same unique jobs; try again.")

    def _placed(self, ends: FinishTags, entry: Reservation, jobs: Sequence[Job]) -> list[Job]:
        """Jobs with their places in line. Raises OjsError: the room for them is given back then."""
        try:
            return self._lines.enter_all(jobs, ends)
        except BackendError:
            # Nothing is stored yet, so there is no doubt whether the room is needed.
            self._bounds.leave(entry)
            raise

    def _plan(
        self,
        job: Job,
        specification: Specification,
        policy: Unique,
        now_ms: int,
        reaches: Reaches,
    ) -> _Plan:
        """What the job's fingerprint allows, as things stand. Raises Duplicate, and
        PermissionDenied when another job has it that is none of theirs.
        """
        digest = fingerprint(specification, policy)
        seen = self._locks.get(digest)
        holder = None
        if seen is not None and not seen.over(now_ms):
            holder = self._due.settle(self._jobs.head(seen.job_id))
            if holder is not None and holder.unique_key != digest:
                # The job the lock was made for is gone; another has its id.
                holder = None
        until_ms = None if policy.period_ms is None else now_ms + policy.period_ms
        job = replace(job, unique_key=digest)
        lock = UniqueLocks.taking(UniqueLock(digest, job.id, until_ms), seen)
        if holder is None or holder.state not in policy.states:
            return _Plan(job, (lock,))
        # It would be shown, named or cancelled.
        _check_reach(holder.queue, reaches)
        if policy.on_conflict == "ignore":
            return _Plan(holder, existing=True)
        if policy.on_conflict == "reject" or holder.state.terminal:
            raise Duplicate(
                "A job with the same unique key exists already.",
                details={
                    "existing_job_id": holder.id,
                    "existing_state": holder.state.value,
                    "existing_job_state": holder.state.value,
                    "unique_key": digest,
                    "uniqueness_key": digest,
                },
            )
        if holder.id == job.id:
            raise _taken(job.id)
        if policy.on_conflict == "replace_except_schedule" and holder.state is State.SCHEDULED:
            (held,) = self._jobs.with_contents([holder])
            shown = (held.content or {}).get("scheduled_at")
            job = replace(
                job,
                state=State.SCHEDULED,
                scheduled_ms=holder.scheduled_ms,
                content={
                    **(job.content or {}),
                    "scheduled_at": shown or times.format_ms(holder.scheduled_ms or 0),
                },
                enqueued_ms=None,
                order=None,
            )
        _, cancelling = self._jobs.replacing(holder, lifecycle.cancel(holder, now_ms=now_ms))
        return _Plan(job, (lock, cancelling), replaces=holder)

    def _known_queues(
        self, specifications: Sequence[Specification], now_ms: int
    ) -> tuple[dict[str, Queue], FinishTags]:
        """Queues that are pushed to, and where tenants' jobs end in those that are fair."""
        coming = [
            (s.queue, s.priority if _is_ready(s) else None, s.content) for s in specifications
        ]
        found, ends = self._lines.read(coming)
        for name in sorted({s.queue for s in specifications} - found.keys()):
            found[name] = self._made(name, now_ms)
        return found, ends

    def _made(self, name: str, now_ms: int) -> Queue:
        # The first push to a queue makes it (queue-config seed, section 5.2), but in strict mode.
        if self._strict:
            raise QueueNotFound(name)
        return self._queues.ensure(name, now_ms=now_ms)

    def _job(
        self,
        job_id: str,
        specification: Specification,
        queue: Queue,
        now_ms: int,
        producer: str | None,
    ) -> Job:
        state = State.AVAILABLE
        if specification.pending:
            state = State.PENDING
        elif specification.scheduled_ms is not None:
            state = State.SCHEDULED
        ready = state is State.AVAILABLE
        fairness = queue.fairness
        return Job(
            id=job_id,
            type=specification.type,
            queue=queue.name,
            state=state,
            created_ms=now_ms,
            lane=self._choose(queue.lanes) if queue.lanes > 1 else 0,
            priority=specification.priority,
            content=specification.content,
            enqueued_ms=now_ms if ready else None,
            scheduled_ms=specification.scheduled_ms,
            expires_ms=specification.expires_ms,
            timeout_ms=specification.timeout_ms or DEFAULT_TIMEOUT_MS,
            visibility_ms=specification.visibility_ms,
            policy=specification.policy,
            retention=queue.config.retention,
            copies_to=queue.config.copies_to,
            order=self._ids.order() if ready else None,
            share=None if fairness is None else fairness.share(specification.content),
            held=jsontext.size_of(specification.content) if queue.charged else None,
            limit=specification.limit,
            producer=producer,
            chosen_id=specification.id is not None,
        )


def _check_reach(queue: str, reaches: Reaches) -> None:
    """Raise PermissionDenied for a queue that who asks may not touch."""
    if not reaches(queue):
        raise forbidden()


def _is_ready(specification: Specification) -> bool:
    """Whether a job stands in line from the start."""
    return not specification.pending and specification.scheduled_ms is None


def _under(
    queue: Queue,
    resolved: Specification,
    request: JobRequest,
    *,
    now_ms: int,
    prefix: str = "",
) -> Specification:
    """A request under its queue's defaults; what is resolved now stays with the job (QC 4.4)."""
    config = queue.config
    if config.retry != retry.DEFAULT:
        resolved = envelope.resolve(request, now_ms=now_ms, base=config.retry, prefix=prefix)
    if resolved.timeout_ms is None:
        resolved = replace(resolved, timeout_ms=config.timeout_ms)
    return resolved


@contextmanager
def _naming(index: int) -> Iterator[None]:
    """Errors say which job of a batch they are about."""
    try:
        yield
    except OjsError as error:
        raise envelope.at_index(error, index) from None


def _at(index: int) -> str:
    return f"jobs[{index}]."


def _check_ids(specifications: Sequence[Specification]) -> None:
    seen: dict[str, int] = {}
    for index, specification in enumerate(specifications):
        if specification.id is not None and specification.id in seen:
            raise InvalidRequest(
                f"jobs[{index}].id",
                f"is the id of jobs[{seen[specification.id]}] too",
                value=specification.id,
                details={"index": index},
            )
        if specification.id is not None:
            seen[specification.id] = index


def _check_fingerprints(specifications: Sequence[Specification]) -> None:
    seen: dict[str, int] = {}
    for index, specification in enumerate(specifications):
        if specification.unique is None:
            continue
        with _naming(index):
            digest = fingerprint(specification, specification.unique)
        if digest in seen:
            raise InvalidRequest(
                f"jobs[{index}]",
                f"has the same unique key as jobs[{seen[digest]}]",
                details={"index": index},
            )
        seen[digest] = index


def _check_replaced(new: Sequence[_Plan], jobs: Sequence[Job]) -> None:
    """No job of a batch may have the id of one that the batch replaces."""
    replaced = {plan.replaces.id for plan in new if plan.replaces is not None}
    for plan in new:
        if plan.job.id in replaced:
            raise _taken_in_batch(plan.job.id, jobs)


def _taken(job_id: str) -> Duplicate:
    return Duplicate(
        f"A job with the id '{job_id}' exists already.", details={"existing_job_id": job_id}
    )


def _taken_in_batch(job_id: str, jobs: Sequence[Job]) -> OjsError:
    index = next((i for i, job in enumerate(jobs) if job.id == job_id), 0)
    return envelope.at_index(_taken(job_id), index)
