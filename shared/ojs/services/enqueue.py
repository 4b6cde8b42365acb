"""PUSH: one job or many (core seed, "PUSH"; ojs-http-binding sections 9.1 and 9.2)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ojs.clock import Clock
from ojs.domain import envelope, lifecycle, times
from ojs.domain.envelope import MAX_BATCH, JobRequest, Specification, Unique
from ojs.domain.errors import (
    BackendUnavailable,
    Duplicate,
    InvalidRequest,
    OjsError,
    Unsupported,
)
from ojs.domain.ids import IdSource
from ojs.domain.job import DEFAULT_TIMEOUT_MS, Job
from ojs.domain.queue import Queue
from ojs.domain.states import State
from ojs.domain.unique import fingerprint
from ojs.services import middleware
from ojs.services.due import Due
from ojs.services.middleware import Middleware
from ojs.store.errors import LostRace
from ojs.store.jobs import Jobs, JobTaken
from ojs.store.locks import Lock, Locks
from ojs.store.queues import Queues
from ojs.store.table import MAX_TRANSACTION, Put, Update

_TRIES = 6


@dataclass(frozen=True)
class Pushed:
    """The job that now stands for the request; `deduplicated` when it was there before."""

    job: Job
    deduplicated: bool = False


@dataclass(frozen=True)
class _Plan:
    """How one request will be stored: a new job with its lock writes, or an existing one."""

    job: Job
    also: tuple[Put | Update, ...] = ()
    existing: bool = False
    replaces: str | None = None


class Enqueue:
    """Accepts jobs."""

    def __init__(
        self,
        jobs: Jobs,
        queues: Queues,
        locks: Locks,
        due: Due,
        clock: Clock,
        ids: IdSource,
        *,
        chain: Sequence[Middleware] = (),
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._jobs = jobs
        self._queues = queues
        self._locks = locks
        self._due = due
        self._clock = clock
        self._ids = ids
        self._chain = chain
        self._choose = choose

    def push(self, request: JobRequest) -> Pushed:
        """Store one job durably.

        Raises InvalidRequest, ValidationFailed, Unsupported, PayloadTooLarge for what is asked,
        Duplicate when the id or the unique key is taken, BackendUnavailable.
        """
        now_ms = self._clock.now_ms()
        specification = envelope.resolve(middleware.run(self._chain, request), now_ms=now_ms)
        queue = self._queue(specification.queue, now_ms)
        job = self._job(specification, queue, now_ms)
        if specification.unique is None:
            try:
                return Pushed(self._jobs.create(job))
            except JobTaken:
                raise _taken(job.id) from None
        for _ in range(_TRIES):
            plan = self._plan(job, specification, specification.unique, now_ms)
            if plan.existing:
                (existing,) = self._jobs.with_contents([plan.job])
                return Pushed(existing, deduplicated=True)
            try:
                return Pushed(self._jobs.create(plan.job, plan.also))
            except JobTaken:
                raise _taken(job.id) from None
            except LostRace:
                continue
        raise BackendUnavailable("Others are pushing the same unique job; try again.")

    def push_batch(self, requests: Sequence[JobRequest]) -> list[Pushed]:
        """Store up to 1 000 jobs, all or none, in array order.

        Raises as `push` does, with `details.index` naming the job; nothing is stored then.
        """
        if not requests:
            raise InvalidRequest("jobs", "must hold at least one job")
        if len(requests) > MAX_BATCH:
            raise InvalidRequest("jobs", f"must hold at most {MAX_BATCH} jobs")
        now_ms = self._clock.now_ms()
        specifications = []
        for index, request in enumerate(requests):
            try:
                specification = envelope.resolve(
                    middleware.run(self._chain, request), now_ms=now_ms, prefix=f"jobs[{index}]."
                )
            except OjsError as error:
                raise envelope.at_index(error, index) from None
            specifications.append(specification)
        _check_ids(specifications)
        queues = self._known_queues({s.queue for s in specifications}, now_ms)
        jobs = [self._job(s, queues[s.queue], now_ms) for s in specifications]
        if any(s.unique for s in specifications):
            return self._push_unique_batch(jobs, specifications, now_ms)
        try:
            if len(jobs) <= MAX_TRANSACTION:
                stored = self._jobs.create_all(jobs)
            else:
                chosen = any(s.id for s in specifications)
                stored = self._jobs.create_staged(jobs, now_ms=now_ms, chosen_ids=chosen)
        except JobTaken as taken:
            raise _taken_in_batch(taken.job_id, jobs) from None
        return [Pushed(job) for job in stored]

    def _push_unique_batch(
        self, jobs: Sequence[Job], specifications: Sequence[Specification], now_ms: int
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
                try:
                    plans.append(self._plan(job, specification, specification.unique, now_ms))
                except OjsError as error:
                    raise envelope.at_index(error, index) from None
            new = [plan for plan in plans if not plan.existing]
            _check_replaced(new, jobs)
            also = [write for plan in new for write in plan.also]
            if len(new) + len(also) > MAX_TRANSACTION:
                raise Unsupported(
                    "The batch replaces more jobs than one transaction can.", field="jobs"
                )
            try:
                stored = self._jobs.create_all([plan.job for plan in new], also) if new else []
            except JobTaken as taken:
                raise _taken_in_batch(taken.job_id, jobs) from None
            except LostRace:
                continue
            fresh = iter(stored)
            return [
                Pushed(self._jobs.with_contents([plan.job])[0], deduplicated=True)
                if plan.existing
                else Pushed(next(fresh))
                for plan in plans
            ]
        raise BackendUnavailable("Others are pushing the same unique jobs; try again.")

    def _plan(self, job: Job, specification: Specification, policy: Unique, now_ms: int) -> _Plan:
        """What the job's fingerprint allows, as things stand. Raises Duplicate."""
        digest = fingerprint(specification, policy)
        seen = self._locks.get(digest)
        holder = None
        if seen is not None and (seen.until_ms is None or seen.until_ms > now_ms):
            holder = self._due.settle(self._jobs.head(seen.job_id))
            if holder is not None and holder.unique_key != digest:
                # The job the lock was made for is gone; another has its id.
                holder = None
        until_ms = None if policy.period_ms is None else now_ms + policy.period_ms
        job = replace(job, unique_key=digest)
        lock = Locks.taking(Lock(digest, job.id, until_ms), seen)
        if holder is None or holder.state not in policy.states:
            return _Plan(job, (lock,))
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
        return _Plan(job, (lock, cancelling), replaces=holder.id)

    def _queue(self, name: str, now_ms: int) -> Queue:
        # The first push to a queue makes it (queue-config seed, section 4.1).
        return self._queues.get(name) or self._queues.ensure(name, now_ms=now_ms)

    def _known_queues(self, names: set[str], now_ms: int) -> dict[str, Queue]:
        found, _ = self._queues.get_many(sorted(names))
        for name in sorted(names - found.keys()):
            found[name] = self._queues.ensure(name, now_ms=now_ms)
        return found

    def _job(self, specification: Specification, queue: Queue, now_ms: int) -> Job:
        state = State.AVAILABLE
        if specification.pending:
            state = State.PENDING
        elif specification.scheduled_ms is not None:
            state = State.SCHEDULED
        ready = state is State.AVAILABLE
        return Job(
            id=specification.id or self._ids.uuid7(),
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
            order=self._ids.order() if ready else None,
        )


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
        try:
            digest = fingerprint(specification, specification.unique)
        except OjsError as error:
            raise envelope.at_index(error, index) from None
        if digest in seen:
            raise InvalidRequest(
                f"jobs[{index}]",
                f"has the same unique key as jobs[{seen[digest]}]",
                details={"index": index},
            )
        seen[digest] = index


def _check_replaced(new: Sequence[_Plan], jobs: Sequence[Job]) -> None:
    """No job of a batch may have the id of one that the batch replaces."""
    replaced = {plan.replaces for plan in new}
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
