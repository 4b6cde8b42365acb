"""PUSH: enqueues one job or many (ojs-http-binding, sections 9.1 and 9.2)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

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
from ojs.domain.job.envelope import MAX_BATCH, JobRequest, OnConflict, Specification, Unique
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
from ojs.store.jobs.new_jobs import JobIdTaken
from ojs.store.jobs.records import JobStore
from ojs.store.jobs.unique_locks import UniqueLock, UniqueLocks
from ojs.store.queues.queues import QueueStore
from ojs.store.table.errors import LostRace
from ojs.store.table.table import MAX_TRANSACTION, Put, Update

_TRIES = 6
# Assigns jobs their positions in line.
AssignPositions = Callable[[Sequence[Job]], list[Job]]


@dataclass(frozen=True)
class Pushed:
    """The job of a push; `deduplicated` when the unique job existed before.

    `pressure` is set when its queue is bounded and filled beyond its warning threshold, `standing`
    is the status of its rate limit, if it has one.
    """

    job: Job
    deduplicated: bool = False
    pressure: QueuePressure | None = None
    standing: RateLimitStatus | None = None


@dataclass(frozen=True)
class _Push:
    """A push as it was requested: requests after the middleware, their specifications as of the
    time they came (`came_ms`), and the ids of their jobs. In a `batch` errors name the job's index.
    """

    requests: Sequence[JobRequest]
    specifications: Sequence[Specification]
    ids: Sequence[str]
    came_ms: int
    producer: str | None
    reaches: Reaches
    batch: bool = False


@dataclass(frozen=True)
class _ResolvedPush:
    """A push resolved with its queues as just read: the jobs as they would be stored now, their
    specifications under the queues' defaults, the queues, and the tenants' finish tags in them.
    """

    jobs: Sequence[Job]
    specifications: Sequence[Specification]
    queues: Mapping[str, Queue]
    finish_tags: FinishTags
    now_ms: int


@dataclass(frozen=True)
class _Plan:
    """How one request is stored: a new job with its unique lock's writes, or an existing job."""

    job: Job
    also: tuple[Put | Update, ...] = ()
    existing: bool = False
    replaces: Job | None = None


class _AlreadyEnqueued(Exception):
    """The unique job exists already, and the push accepts that."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.id)
        self.job = job


class Enqueue:
    """Enqueues jobs."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        queues: QueueStore,
        locks: UniqueLocks,
        transitions: TimeTransitions,
        bounds: QueueBounds,
        clock: Clock,
        ids: IdSource,
        limits: RateLimits,
        placement: FairQueuePlacement,
        chain: Sequence[Middleware] = (),
        strict: bool = False,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._jobs = jobs
        self._queues = queues
        self._locks = locks
        self._transitions = transitions
        self._bounds = bounds
        self._limits = limits
        self._placement = placement
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
        """Store one job durably.

        `producer` is the caller's name, for queues that admit only some producers; `reaches` tells
        which queues the caller's key covers; `wait_ms` is how long to wait for room in a full queue
        whose overflow policy is `block`. A push that waited is resolved with the queue's
        configuration at the end of the wait, and its job is created then; relative times count from
        the request.

        Raises InvalidRequest, ValidationFailed, Unsupported or PayloadTooLarge for the request,
        JobTypeNotAllowed and PermissionDenied for jobs that the queue does not admit, QueueNotFound
        in strict mode, QueueFull, Duplicate when the id or the unique key is taken, and
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
        """Store the one job of a push, under its queue's present configuration.

        Raises NoRoomYet, and what `push` raises.
        """
        resolved = self._resolve(push)
        (job,), (specification,) = resolved.jobs, resolved.specifications
        now_ms, reaches = resolved.now_ms, push.reaches
        may_enter = partial(self._check_new, resolved, reaches)
        try:
            with self._bounds.room(
                [job], resolved.queues, waits=True, may_enter=may_enter
            ) as entry:
                pushed = self._store(
                    job,
                    specification,
                    now_ms,
                    partial(self._placed, resolved.finish_tags, entry),
                    reaches,
                )
                entry.keep([] if pushed.deduplicated else [pushed.job])
        except _AlreadyEnqueued as already:
            (existing,) = self._jobs.with_contents([already.job])
            return Pushed(existing, deduplicated=True, standing=self._standing(existing))
        pressure = entry.pressure(job.queue)
        return replace(pushed, pressure=pressure, standing=self._standing(pushed.job))

    def _standing(self, job: Job) -> RateLimitStatus | None:
        """The status of the job's rate limit, for the answer; None after an error."""
        if job.limit is None:
            return None
        try:
            return self._limits.status(job.limit, job.queue)
        except OjsError:
            return None

    def _store(
        self,
        job: Job,
        specification: Specification,
        now_ms: int,
        placed: AssignPositions,
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
                # Only once: after a lost race the job keeps the position it was assigned.
                (job,) = placed([job])
            entering = plan.job if plan.job.order is None else replace(plan.job, order=job.order)
            try:
                stored = self._jobs.create(entering, plan.also)
            except JobIdTaken:
                raise _taken(job.id) from None
            except LostRace:
                continue
            if plan.replaces is not None:
                self._jobs.permits.release_all(plan.replaces, now_ms=now_ms)
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

        Raises what `push` raises, with the job's index in `details.index`; nothing is stored then.
        """
        if not requests:
            raise InvalidRequest("jobs", "must hold at least one job")
        if len(requests) > MAX_BATCH:
            raise InvalidRequest("jobs", f"must hold at most {MAX_BATCH} jobs")
        now_ms = self._clock.now_ms()
        asked, specifications = [], []
        for index, request in enumerate(requests):
            with _naming_job(index):
                asked.append(middleware.run(self._chain, request))
                resolved = envelope.resolve(asked[-1], now_ms=now_ms, prefix=_at(index))
                _check_reach(resolved.queue, reaches)
            specifications.append(resolved)
        _check_ids(specifications)
        ids = [given.id or self._ids.uuid7() for given in specifications]
        push = _Push(asked, specifications, ids, now_ms, producer, reaches, batch=True)
        return self._bounds.wait(lambda: self._push_all(push), wait_ms)

    def _push_all(self, push: _Push) -> list[Pushed]:
        """Store a batch, under its queues' present configuration.

        Raises NoRoomYet, and what `push_batch` raises.
        """
        resolved = self._resolve(push)
        jobs, specifications = resolved.jobs, resolved.specifications
        now_ms = resolved.now_ms
        may_enter = partial(self._check_new, resolved, push.reaches)
        with self._bounds.room(jobs, resolved.queues, waits=True, may_enter=may_enter) as entry:
            if any(s.unique for s in specifications):
                placed = partial(self._placed, resolved.finish_tags, entry)
                pushed = self._push_unique_batch(jobs, specifications, now_ms, placed, push.reaches)
            else:
                chosen = any(s.id for s in specifications)
                entering = self._placed(resolved.finish_tags, entry, jobs)
                pushed = self._store_batch(entering, entry, now_ms, chosen=chosen)
            entry.keep([one.job for one in pushed if not one.deduplicated])
        return [replace(one, pressure=entry.pressure(one.job.queue)) for one in pushed]

    def _resolve(self, push: _Push) -> _ResolvedPush:
        """Read the queues of a push, and resolve its jobs under their configuration.

        Creates queues that do not exist. Raises QueueNotFound in strict mode, QueueDraining,
        JobTypeNotAllowed and PermissionDenied where a queue does not admit a job.
        """
        now_ms = self._clock.now_ms()
        queues, finish_tags = self._known_queues(push.specifications, now_ms)
        jobs, specifications = [], []
        for index, resolved in enumerate(push.specifications):
            queue = queues[resolved.queue]
            with _naming_job(index) if push.batch else nullcontext():
                admission.check(queue, resolved.type, push.producer)
                under = _with_queue_defaults(
                    queue,
                    resolved,
                    push.requests[index],
                    now_ms=push.came_ms,
                    prefix=_at(index) if push.batch else "",
                )
            specifications.append(under)
            jobs.append(self._job(push.ids[index], under, queue, now_ms, push.producer))
        # When it is repeated this writes nothing: the keys are remembered.
        self._limits.register(registered(jobs))
        return _ResolvedPush(jobs, specifications, queues, finish_tags, now_ms)

    def _check_new(self, resolved: _ResolvedPush, reaches: Reaches) -> None:
        """Raise Duplicate if an id or a unique key is taken, before jobs are evicted for the push.

        The write itself decides again: the answer may change in between.
        """
        jobs, specifications = resolved.jobs, resolved.specifications
        now_ms = resolved.now_ms
        chosen = [job.id for job, given in zip(jobs, specifications, strict=True) if given.id]
        for job_id in self._jobs.heads(chosen) if chosen else ():
            raise _taken(job_id) if len(jobs) == 1 else _taken_in_batch(job_id, jobs)
        for index, (job, given) in enumerate(zip(jobs, specifications, strict=True)):
            if given.unique is None:
                continue
            alone = len(jobs) == 1
            with nullcontext() if alone else _naming_job(index):
                plan = self._plan(job, given, given.unique, now_ms, reaches)
            if alone and plan.existing:
                raise _AlreadyEnqueued(plan.job)

    def _store_batch(
        self, jobs: Sequence[Job], entry: Reservation, now_ms: int, *, chosen: bool
    ) -> list[Pushed]:
        try:
            if len(jobs) <= MAX_TRANSACTION:
                stored = self._jobs.create_all(jobs)
            else:
                # From here on undoing the batch releases its room, which its item records.
                entry.keep(jobs)
                stored = self._jobs.batches.create(jobs, now_ms=now_ms, chosen_ids=chosen)
        except JobIdTaken as taken:
            raise _taken_in_batch(taken.job_id, jobs) from None
        return [Pushed(job) for job in stored]

    def _push_unique_batch(
        self,
        jobs: Sequence[Job],
        specifications: Sequence[Specification],
        now_ms: int,
        placed: AssignPositions,
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
                with _naming_job(index):
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
                    self._jobs.permits.release_all(plan.replaces, now_ms=now_ms)
            fresh = iter(stored)
            return [
                Pushed(self._jobs.with_contents([plan.job])[0], deduplicated=True)
                if plan.existing
                else Pushed(next(fresh))
                for plan in plans
            ]
        raise BackendUnavailable("Others are pushing the same unique jobs; try again.")

    def _placed(
        self, finish_tags: FinishTags, entry: Reservation, jobs: Sequence[Job]
    ) -> list[Job]:
        """Jobs with their positions in line. Raises OjsError after releasing the jobs' room."""
        try:
            return self._placement.assign_positions(jobs, finish_tags)
        except BackendError:
            # Nothing is stored yet, so the room is certainly not needed.
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
        """How to store a unique job, given the present holder of its fingerprint.

        Raises Duplicate, and PermissionDenied when the holder is in a queue out of reach.
        """
        digest = fingerprint(specification, policy)
        seen = self._locks.get(digest)
        holder = None
        if seen is not None and not seen.over(now_ms):
            holder = self._transitions.apply(self._jobs.head(seen.job_id))
            if holder is not None and holder.unique_key != digest:
                # The job that took the lock is gone, and another one has its id.
                holder = None
        until_ms = None if policy.period_ms is None else now_ms + policy.period_ms
        job = replace(job, unique_key=digest)
        lock = UniqueLocks.taking(UniqueLock(digest, job.id, until_ms), seen)
        if holder is None or holder.state not in policy.states:
            return _Plan(job, (lock,))
        # The holder is shown, named in an error, or cancelled below.
        _check_reach(holder.queue, reaches)
        if policy.on_conflict is OnConflict.IGNORE:
            return _Plan(holder, existing=True)
        if policy.on_conflict is OnConflict.REJECT or holder.state.terminal:
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
        match policy.on_conflict:
            case OnConflict.REPLACE:
                pass
            case OnConflict.REPLACE_EXCEPT_SCHEDULE:
                if holder.state is State.SCHEDULED:
                    job = self._scheduled_as(holder, job)
            case _:
                assert_never(policy.on_conflict)
        _, cancelling = self._jobs.replacing(holder, lifecycle.cancel(holder, now_ms=now_ms))
        return _Plan(job, (lock, cancelling), replaces=holder)

    def _scheduled_as(self, holder: Job, job: Job) -> Job:
        """A job with the start time of the one that it replaces."""
        (replaced,) = self._jobs.with_contents([holder])
        shown = (replaced.content or {}).get("scheduled_at")
        return replace(
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

    def _known_queues(
        self, specifications: Sequence[Specification], now_ms: int
    ) -> tuple[dict[str, Queue], FinishTags]:
        """The queues of a push, and the tenants' finish tags in those that are fair."""
        coming = [
            (s.queue, s.priority if _is_ready(s) else None, s.content) for s in specifications
        ]
        found, finish_tags = self._placement.read(coming)
        for name in sorted({s.queue for s in specifications} - found.keys()):
            found[name] = self._create_queue(name, now_ms)
        return found, finish_tags

    def _create_queue(self, name: str, now_ms: int) -> Queue:
        # The first push to a queue creates it, except in strict mode.
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
            reserved_bytes=jsontext.size_of(specification.content) if queue.charged else None,
            limit=specification.limit,
            producer=producer,
            chosen_id=specification.id is not None,
        )


def _check_reach(queue: str, reaches: Reaches) -> None:
    """Raise PermissionDenied for a queue that the caller may not touch."""
    if not reaches(queue):
        raise forbidden()


def _is_ready(specification: Specification) -> bool:
    """Whether the job is available at once."""
    return not specification.pending and specification.scheduled_ms is None


def _with_queue_defaults(
    queue: Queue,
    resolved: Specification,
    request: JobRequest,
    *,
    now_ms: int,
    prefix: str = "",
) -> Specification:
    """A specification with its queue's defaults, which the job keeps from now on."""
    config = queue.config
    if config.retry != retry.DEFAULT:
        resolved = envelope.resolve(request, now_ms=now_ms, base=config.retry, prefix=prefix)
    if resolved.timeout_ms is None:
        resolved = replace(resolved, timeout_ms=config.timeout_ms)
    return resolved


@contextmanager
def _naming_job(index: int) -> Iterator[None]:
    """Add the job's index in the batch to errors."""
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
        with _naming_job(index):
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
