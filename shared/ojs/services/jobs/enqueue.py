"""PUSH: enqueues one job or many (ojs-http-binding, sections 9.1 and 9.2).

A push is one request.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, assert_never

from ojs.clock import Clock
from ojs.domain import jsontext, times
from ojs.domain.access import Reaches, everything
from ojs.domain.errors import (
    BackendError,
    Duplicate,
    InvalidRequest,
    OjsError,
    PayloadTooLarge,
    SchemaMismatch,
    Unsupported,
    forbidden,
)
from ojs.domain.ids import IdSource
from ojs.domain.job import envelope, lifecycle, retry
from ojs.domain.job.durable import NOT_DURABLE, Durable
from ojs.domain.job.envelope import MAX_BATCH, JobRequest, OnConflict, Specification
from ojs.domain.job.job import DEFAULT_TIMEOUT_MS, Job
from ojs.domain.job.states import State
from ojs.domain.job.unique import fingerprint, held
from ojs.domain.job.workflow_step import WorkflowStep
from ojs.domain.queue.queue import Queue
from ojs.records import record
from ojs.services.for_each import ForEach
from ojs.services.jobs.empty_lines import EmptyIndexCache
from ojs.services.jobs.new_queues import NewQueues
from ojs.services.jobs.placement import FairQueuePlacement, FinishTags
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.jobs.transitions import JobEnded, ends_nothing
from ojs.services.permits.backpressure import (
    QueueBounds,
    QueuePressure,
    Reservation,
    check_size,
)
from ojs.services.permits.lifecycle import Permits
from ojs.services.permits.rate_limits import RateLimits, RateLimitStatus, registered
from ojs.store.bounds.depth_counter import period_of
from ojs.store.jobs.new_jobs import JobIdTaken
from ojs.store.jobs.records import JobStore
from ojs.store.jobs.staged_batches import Again, never_again
from ojs.store.jobs.unique_locks import UniqueLock, UniqueLocks
from ojs.store.table.errors import LostRace, WriteNotApplied
from ojs.store.table.races import losing_as, retry_on_race
from ojs.store.table.table import MAX_TRANSACTION, Put, Update

if TYPE_CHECKING:
    from ojs.domain.job.trace import TraceContext
    from ojs.services.jobs.middleware import MiddlewareChain
    from ojs.services.schemas.validate import SchemaValidation
    from ojs.services.tenants.quotas import TenantLimiter
    from ojs.store.deliveries.deliveries import DeliveryDirectory

# Attempts of a push after concurrent updates. With the pauses in between, about 4 seconds.
_TRIES = 16
# A batch of at least this size is staged, if no client chose IDs. A transaction consumes one more
# unit per job, and staging consumes 4 more units per batch (ADR 3).
STAGED_FROM = 5


@record(frozen=True)
class Pushed:
    """The job of a push.

    Attributes:
        job: The job.
        deduplicated: Whether the unique job existed before.
        pressure: Set if the queue has a size limit and is filled beyond its warning threshold.
        limit_status: Status of the rate limit of the job, if it has one.
        absent: Whether an earlier attempt stored the job and its record can't be returned. `job`
            then has its original values.
        again: Whether an earlier attempt completed the whole request.
        warnings: How the arguments differ from the schema of the type, in mode `warn`.
    """

    job: Job
    deduplicated: bool = False
    pressure: QueuePressure | None = None
    limit_status: RateLimitStatus | None = None
    absent: bool = False
    again: bool = False
    warnings: Sequence[str] = ()


@record(frozen=True)
class TransactionExtras:
    """Additional changes in the transaction of a push.

    Attributes:
        writes: Additional writes.
        cancels: Jobs to cancel.
        bypasses_unique: Whether unique keys are ignored.
        steps: The workflow steps of the jobs, if they belong to a workflow.
        templates: All jobs of the workflow that is created, whose arguments must match their
            schemas. The jobs of an existing workflow were checked when it was created.
        again: If the condition of an additional write failed: returns the writes with current
            conditions, for another commit of the same staged jobs, or None.
    """

    writes: Sequence[Put | Update]
    cancels: tuple[Job, ...] = ()
    bypasses_unique: bool = False
    steps: Sequence[WorkflowStep] = ()
    templates: Sequence[Mapping[str, Any]] = ()
    again: Again = never_again


class StaleRead(Exception):
    """An additional write of a push failed, because it was based on an outdated read.

    Nothing is stored.
    """


@record(frozen=True)
class PushRequest:
    """A prepared push.

    Attributes:
        requests: The requests after the middleware.
        specifications: Their specifications, resolved at `came_ms`.
        ids: The IDs of the jobs.
        came_ms: When the request was received (ms).
        producer: Name of the producer.
        reaches: Whether the caller can use a queue.
        batch: Whether it is a batch. Errors then include the index of the job.
        seed: With an idempotency key: seed of the IDs (`ojs.services.jobs.idempotent_push`).
        stored: With an idempotency key: jobs that an earlier attempt stored, by ID.
        before_commit: Called before the commit of a staged batch.
        alongside: Additional changes in the same transaction.
    """

    requests: Sequence[JobRequest]
    specifications: Sequence[Specification]
    ids: Sequence[str]
    came_ms: int
    producer: str | None
    reaches: Reaches
    batch: bool = False
    seed: str | None = None
    stored: Mapping[str, Job] = field(default_factory=dict)
    before_commit: Callable[[], None] = lambda: None
    alongside: TransactionExtras | None = None
    # Sort key in the ready index, for a push of one job. Default: derived from the time of the
    # write.
    position: str | None = None
    # Minimum retention in seconds of a queue, if its finished jobs identify repeated pushes.
    kept_s: int = 0
    # The tenants whose limits have counted this push, so that it is counted once if it waits.
    counted: set[str] = field(default_factory=set)

    @cached_property
    def staged(self) -> bool:
        """Whether the jobs are stored as a staged batch, and not in one transaction."""
        count = len(self.specifications)
        if any(specification.unique for specification in self.specifications):
            return False
        chosen = any(specification.id is not None for specification in self.specifications)
        also = 0 if self.alongside is None else len(self.alongside.writes)
        return count + also > MAX_TRANSACTION or (count >= STAGED_FROM and not chosen)

    def mark(self, specification: Specification) -> str | None:
        """Return the prefix of the job's `made_by`.

        The prefix distinguishes the job from another job with the same ID. The IDs of a staged
        batch are used by one attempt only, so its jobs have no prefix.
        """
        if self.seed is None or (self.staged and specification.id is None):
            return None
        return self.seed


@record(frozen=True)
class _ResolvedPush:
    """A push with the current configuration of its queues.

    It has the jobs to store, their specifications with the defaults of the queues, the queues, and
    the finish tags of their tenants.
    """

    push: PushRequest
    jobs: Sequence[Job]
    specifications: Sequence[Specification]
    queues: Mapping[str, Queue]
    finish_tags: FinishTags
    now_ms: int


@record(frozen=True)
class _Plan:
    """The plan for one request: a new job with its unique lock, or an existing job."""

    job: Job
    also: tuple[Put | Update, ...] = ()
    existing: bool = False
    replaces: tuple[Job, ...] = ()

    @property
    def seen(self) -> list[Mapping[str, Any]]:
        """The values that this plan is based on, which the conditions of the writes check."""
        return [write.values for write in self.also]


class JobEnqueuer:
    """Enqueues jobs."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        permits: Permits,
        unique_locks: UniqueLocks,
        transitions: TimeTransitions,
        bounds: QueueBounds,
        clock: Clock,
        ids: IdSource,
        limits: RateLimits,
        placement: FairQueuePlacement,
        empty_lines: EmptyIndexCache,
        new_queues: NewQueues,
        for_each: ForEach,
        quotas: Callable[[], TenantLimiter],
        directory: Callable[[], DeliveryDirectory],
        schema_mode: str | None,
        schema_validation: Callable[[], SchemaValidation],
        middleware: MiddlewareChain | None = None,
        choose: Callable[[int], int] = random.randrange,
        ended: JobEnded = ends_nothing,
    ) -> None:
        """Create the service.

        `ended` is called with each job that a push has cancelled, and `quotas` when a tenant has a
        record.
        """
        self._quotas = quotas
        self._jobs = jobs
        self._ended = ended
        self._permits = permits
        self._locks = unique_locks
        self._transitions = transitions
        self._bounds = bounds
        self._limits = limits
        self._placement = placement
        self._empty_lines = empty_lines
        self._clock = clock
        self._ids = ids
        self._chain = middleware
        self._new_queues = new_queues
        self._for_each = for_each
        self._directory = directory
        self._checks_args = schema_mode is not None
        self._validation = schema_validation
        self._choose = choose

    def push(
        self,
        request: JobRequest,
        *,
        producer: str | None = None,
        reaches: Reaches = everything,
        wait_ms: int = 0,
        trace: TraceContext | None = None,
        alongside: TransactionExtras | None = None,
    ) -> Pushed:
        """Store one job durably, with its additional changes: all of them, or nothing.

        A push that waited uses the configuration of the queue at the end of the wait, and its job
        is created then. Relative times count from the request.

        Args:
            request: The job.
            producer: Name of the caller, for queues that allow only certain producers.
            reaches: Whether the caller can use a queue.
            wait_ms: Maximum time in ms to wait for capacity of a full queue with the policy
                `block`.
            trace: Trace context. It is added to the job's `meta`, unless that has one.
            alongside: Additional changes in the same transaction.

        Returns:
            The stored job.

        Raises:
            InvalidRequest, ValidationFailed, Unsupported, PayloadTooLarge: The request is invalid.
            MiddlewareRefusal: The middleware rejected the job.
            MiddlewareError: The middleware failed.
            JobTypeNotAllowed, PermissionDenied: The queue doesn't allow the job.
            QueueNotFound: The queue doesn't exist, and the server is in strict mode.
            TooManyQueues: The server has the maximum number of queues.
            QueueFull: The queue is full.
            Duplicate: The ID or the unique key is in use.
            StaleRead: A condition of an additional change failed.
            BackendUnavailable: DynamoDB rejected a request.
        """
        push = self.prepare([request], producer, reaches, trace=trace)
        (pushed,) = self.store(replace(push, alongside=alongside), wait_ms)
        return pushed

    def store(self, push: PushRequest, wait_ms: int) -> list[Pushed]:
        """Store a prepared push. Raises what `push` and `push_batch` raise."""
        warnings = self._check_args(push)
        attempt = self._push_all if push.batch else self._push
        stored = self._bounds.wait(lambda: attempt(push), wait_ms)
        for index, found in warnings.items():
            stored[index] = replace(stored[index], warnings=found)
        return stored

    def _push(self, push: PushRequest) -> list[Pushed]:
        """Store the single job of a push, with the current configuration of its queue.

        Raises CapacityPending, and what `push` raises.
        """
        resolved = self._resolve(push)
        self._check_ids_free(resolved)
        pushed = self._store(resolved)
        self._empty_lines.note(pushed.job)
        return [replace(pushed, limit_status=self._limit_status(pushed.job))]

    def check(
        self, request: JobRequest, *, producer: str | None = None, reaches: Reaches = everything
    ) -> None:
        """Check one request like `push`, regardless of other jobs. Stores no job.

        Creates the queue if it does not exist.

        Args:
            request: The job.
            producer: Name of the caller, for queues that allow only certain producers.
            reaches: Whether the caller can use a queue.

        Raises:
            OjsError: The errors of `push` for an invalid or rejected request.
        """
        push = self.prepare([request], producer, reaches)
        self._check_args(push)
        resolved = self._resolve(push)
        for specification in resolved.specifications:
            if specification.unique is not None:
                fingerprint(specification, specification.unique)

    def _limit_status(self, job: Job) -> RateLimitStatus | None:
        """Return the status of the job's rate limit for the response; None after an error."""
        if job.limit is None:
            return None
        try:
            return self._limits.status(job.limit, job.queue)
        except OjsError:
            return None

    def _store(self, resolved: _ResolvedPush) -> Pushed:
        (job,) = resolved.jobs

        def attempt() -> Pushed:
            nonlocal job
            # The unique key is checked first, because a duplicate uses no capacity.
            plan = self._plan(resolved, 0)
            if plan.existing:
                (existing,) = self._jobs.with_contents([plan.job])
                return Pushed(existing, deduplicated=True)
            alongside = self._alongside(resolved)
            plan = replace(plan, replaces=(*plan.replaces, *_cancelled(resolved)))
            entering = plan.job
            own = 1 + len(plan.also)
            with (
                losing_as(lambda lost: _overtaken(lost, own)),
                self._room(resolved, [plan]) as reservation,
            ):
                if entering.order is not None:
                    # The sort key is determined only once. After a lost race, the job keeps it.
                    (job,) = self._with_positions(resolved, reservation, [job])
                    entering = replace(entering, order=job.order)
                try:
                    stored = self._jobs.create(entering, (*plan.also, *alongside))
                except JobIdTaken:
                    raise _taken(job.id) from None
                reservation.keep([stored], _replaced([plan]))
            self._release([plan], resolved.now_ms)
            return Pushed(stored, pressure=reservation.pressure(stored.queue))

        busy = "Concurrent requests enqueued jobs with the same unique key."
        return retry_on_race(attempt, tries=_TRIES, busy=busy, pause=self._bounds.pause)

    def _alongside(self, resolved: _ResolvedPush) -> list[Put | Update]:
        """Return the additional writes of a push, and those that cancel other jobs."""
        if resolved.push.alongside is None:
            return []
        # Race: a job to cancel finishes, or its worker reports. The loser stores nothing, and the
        # caller of `push` reads the job again.
        cancelling = [
            self._jobs.replacing(job, lifecycle.cancel(job, now_ms=resolved.now_ms))[1]
            for job in _cancelled(resolved)
        ]
        return [*cancelling, *resolved.push.alongside.writes]

    def _room(
        self, resolved: _ResolvedPush, plans: Sequence[_Plan]
    ) -> AbstractContextManager[Reservation]:
        """Reserve capacity for the new jobs of a push. They reuse that of the replaced jobs.

        Raises:
            LostRace: The plans are outdated.
        """
        new = [plan for plan in plans if not plan.existing]
        return self._bounds.room(
            [plan.job for plan in new],
            resolved.queues,
            replaced=_replaced(new),
            waits=True,
            may_enter=partial(self._check_new, resolved, plans),
        )

    def _release(self, plans: Iterable[_Plan], now_ms: int) -> None:
        """Release the permits of replaced jobs.

        New jobs already use the capacity of the replaced jobs.
        """
        for job in _replaced(plans):
            self._permits.release(replace(job, reserved_bytes=None), ended_ms=now_ms)
            self._ended(lifecycle.cancel(job, now_ms=now_ms))

    def push_batch(
        self,
        requests: Sequence[JobRequest],
        *,
        producer: str | None = None,
        reaches: Reaches = everything,
        wait_ms: int = 0,
        trace: TraceContext | None = None,
    ) -> list[Pushed]:
        """Store up to 1,000 jobs, all or none, in array order.

        Args:
            requests: The jobs.
            producer: See `push`.
            reaches: See `push`.
            wait_ms: See `push`.
            trace: See `push`.

        Returns:
            The stored jobs, in the same order.

        Raises:
            OjsError: The errors of `push`, with the index of the job in `details.index`. Nothing
                is stored.
        """
        if not requests:
            raise InvalidRequest("jobs", "must have at least 1 job")
        if len(requests) > MAX_BATCH:
            raise InvalidRequest(
                "jobs",
                f"must have at most {MAX_BATCH} jobs, but has {len(requests)}. Split the request",
            )
        push = self.prepare(requests, producer, reaches, batch=True, trace=trace)
        return self.store(push, wait_ms)

    def prepare(
        self,
        requests: Sequence[JobRequest],
        producer: str | None,
        reaches: Reaches,
        *,
        batch: bool = False,
        trace: TraceContext | None = None,
        as_sent: bool = False,
    ) -> PushRequest:
        """Prepare a push: resolve the requests and pass them through the middleware.

        Args:
            requests: The jobs.
            producer: See `push`.
            reaches: See `push`.
            batch: Whether errors contain the index of the job.
            trace: See `push`.
            as_sent: Whether to skip the middleware.

        Returns:
            The prepared push, for `store`.

        Raises:
            OjsError: The errors of `push` for invalid or rejected requests.
        """
        now_ms = self._clock.now_ms()
        resolved = []
        for index, request in enumerate(requests):
            with _naming_job(index) if batch else nullcontext():
                prefix = _at(index) if batch else ""
                resolved.append(_resolved(request, trace, now_ms=now_ms, prefix=prefix))
                _check_reach(resolved[-1][1].queue, reaches)
        specifications = [specification for _, specification in resolved]
        _check_ids(specifications)
        ids = [specification.id or self._ids.uuid7() for specification in specifications]
        push = PushRequest(
            [request for request, _ in resolved],
            specifications,
            ids,
            now_ms,
            producer,
            reaches,
            batch,
        )
        return push if as_sent else self.changed(push)

    def changed(self, push: PushRequest) -> PushRequest:
        """Return the push after the middleware. Raises the errors of `push`."""
        if self._chain is None:
            return push
        sent = list(zip(push.requests, push.specifications, strict=True))
        resolved = self._chain.changed(sent, now_ms=push.came_ms, batch=push.batch)
        for index, (_, specification) in enumerate(resolved):
            with _naming_job(index) if push.batch else nullcontext():
                # The middleware can choose another queue, if the caller could choose it, too.
                _check_reach(specification.queue, push.reaches)
        return replace(
            push,
            requests=[request for request, _ in resolved],
            specifications=[specification for _, specification in resolved],
        )

    def with_start_time(self, push: PushRequest, came_ms: int) -> PushRequest:
        """Return the push with relative times that count from another time (ms)."""
        return replace(
            push,
            came_ms=came_ms,
            specifications=[
                envelope.resolve(request, now_ms=came_ms, prefix=_at(index) if push.batch else "")
                for index, request in enumerate(push.requests)
            ],
        )

    def positioned(self, push: PushRequest) -> PushRequest:
        """Return the push of one job, with a sort key before those of later jobs.

        The sort key doesn't depend on the time when the job is stored.
        """
        return replace(push, position=self._ids.order())

    def space(self, name: str) -> int | None:
        """Return the number of jobs that still fit into a queue, or None
        if unlimited or unknown.
        """
        try:
            found, _ = self._placement.read([(name, None, {})])
            return None if name not in found else self._bounds.space(found[name])
        except OjsError:
            return None

    def to_job(self, push: PushRequest, index: int) -> Job:
        """Return a job of a push with its original values, for a queue with default settings."""
        specification = push.specifications[index]
        queue = Queue(specification.queue)
        return self._job(push.ids[index], specification, queue, push.came_ms, push.producer)

    def _push_all(self, push: PushRequest) -> list[Pushed]:
        """Store a batch, with the current configuration of its queues.

        Raises CapacityPending, and what `push_batch` raises.
        """
        resolved = self._resolve(push)
        self._check_ids_free(resolved)
        unique = any(specification.unique for specification in push.specifications)
        store = self._store_unique_batch if unique else self._store_batch
        stored = store(resolved)
        for pushed in stored:
            self._empty_lines.note(pushed.job)
        return stored

    def _resolve(self, push: PushRequest) -> _ResolvedPush:
        """Read the queues of a push, and resolve its jobs under their configuration.

        Creates queues that do not exist.

        Raises:
            QueueNotFound: A queue doesn't exist, and the server is in strict mode.
            TooManyQueues: The server has the maximum number of queues.
            QueueDraining: A queue is being deleted.
            JobTypeNotAllowed, PermissionDenied: A queue doesn't allow a job.
            TenantSuspended, TenantLimitExceeded: A tenant doesn't allow the jobs.
        """
        now_ms = self._clock.now_ms()
        queues, finish_tags = self._known_queues(push.specifications)
        jobs, specifications = [], []
        steps = iter(() if push.alongside is None else push.alongside.steps)
        for index, resolved in enumerate(push.specifications):
            queue = queues[resolved.queue]
            with _naming_job(index) if push.batch else nullcontext():
                queue.check_job(resolved.type, push.producer)
                if push.kept_s:
                    queue.check_kept(push.kept_s)
                under = _with_queue_defaults(
                    queue,
                    resolved,
                    push.requests[index],
                    now_ms=push.came_ms,
                    prefix=_at(index) if push.batch else "",
                )
                job = self._job(push.ids[index], under, queue, now_ms, push.producer)
                job = replace(job, made_by=push.mark(resolved), workflow=next(steps, None))
                if push.position is not None and job.order is not None:
                    job = replace(job, order=push.position)
                field = f"{_at(index)}body" if push.batch else "body"
                check_size(queue, job.reserved_bytes or 0, field)
            specifications.append(under)
            jobs.append(job)
        tenants = {each.tenant.id: each.tenant for each in queues.values() if each.tenant}
        if tenants:
            self._quotas().check(tenants, jobs, push.counted)
        # If the keys were registered recently, this call writes nothing, because it is cached.
        self._limits.register(registered(jobs))
        return _ResolvedPush(push, jobs, specifications, queues, finish_tags, now_ms)

    def _check_args(self, push: PushRequest) -> Mapping[int, Sequence[str]]:
        """Check the arguments of the jobs of a push. Return warnings by index.

        Does nothing if no schema exists, or this function doesn't check. Raises SchemaMismatch, and
        what the read of a schema does.
        """
        if not self._checks_args or not self._directory().schemas_exist():
            return {}
        alongside = push.alongside
        if alongside is not None and alongside.steps:
            contents = [(str(each["type"]), each) for each in alongside.templates]
        else:
            contents = [(each.type, each.content) for each in push.specifications]
        try:
            prefix = "jobs[{}]." if push.batch else ""
            return self._validation().check(contents, prefix)
        except SchemaMismatch as error:
            if push.batch:
                envelope.at_index(error, error.index)
            raise

    def _check_ids_free(self, resolved: _ResolvedPush) -> None:
        """Check the IDs that the client chose, before capacity is reserved.

        The write checks the IDs again, so nothing is read if nothing is reserved.

        Raises:
            Duplicate: An ID is in use.
            BackendUnavailable: A batch with the ID is not committed yet.
        """
        jobs = resolved.jobs
        chosen = [job.id for job in jobs if job.chosen_id and job.reserved_bytes is not None]
        for found in self._jobs.read_records(chosen).values() if chosen else ():
            error = self._jobs.batches.id_in_use(found.id, found.batch)
            if not isinstance(error, JobIdTaken):
                raise error
            raise _taken(found.id) if len(jobs) == 1 else _taken_in_batch(found.id, jobs)

    def _check_new(self, resolved: _ResolvedPush, plans: Sequence[_Plan]) -> None:
        """Check IDs and unique keys again, before the push is rejected or displaces other jobs.

        The write checks them once again, because they can change in between.

        Raises:
            Duplicate: An ID or a unique key is in use.
            LostRace: The holder of a unique key has changed since the plans were made.
        """
        self._check_ids_free(resolved)
        for index, plan in enumerate(plans):
            with nullcontext() if len(plans) == 1 else _naming_job(index):
                now = self._plan(resolved, index)
            if now.existing != plan.existing or now.seen != plan.seen:
                raise LostRace([])

    def _store_batch(self, resolved: _ResolvedPush) -> list[Pushed]:
        # Only the conditions of the additional writes can fail because of concurrent requests.
        with losing_as(lambda _: StaleRead()):
            return self._store_all(resolved)

    def _store_all(self, resolved: _ResolvedPush) -> list[Pushed]:
        also = self._alongside(resolved)
        with self._room(resolved, [_Plan(job) for job in resolved.jobs]) as reservation:
            jobs = self._with_positions(resolved, reservation, resolved.jobs)
            try:
                if not resolved.push.staged:
                    stored = self._jobs.create_all(jobs, also)
                else:
                    # From now on, undoing the batch releases the capacity, which is recorded in the
                    # batch's item.
                    reservation.keep(jobs)
                    alongside = resolved.push.alongside
                    stored = self._jobs.batches.create(
                        jobs,
                        now_ms=resolved.now_ms,
                        chosen_ids=any(job.chosen_id for job in jobs),
                        token=resolved.push.seed,
                        before_commit=resolved.push.before_commit,
                        also=also,
                        again=never_again if alongside is None else alongside.again,
                        each=self._for_each if alongside and alongside.steps else None,
                    )
            except JobIdTaken as taken:
                raise _taken_in_batch(taken.job_id, jobs) from None
            reservation.keep(stored)
        return [Pushed(job, pressure=reservation.pressure(job.queue)) for job in stored]

    def _store_unique_batch(self, resolved: _ResolvedPush) -> list[Pushed]:
        jobs = resolved.jobs
        if 2 * len(jobs) > MAX_TRANSACTION:
            raise Unsupported(
                f"The batch has unique jobs and can have at most {MAX_TRANSACTION // 2} jobs. "
                "Split it.",
                field="jobs",
            )
        _check_fingerprints(resolved.specifications)

        def attempt() -> list[Pushed]:
            plans = []
            for index in range(len(jobs)):
                with _naming_job(index):
                    plans.append(self._plan(resolved, index))
            new = [plan for plan in plans if not plan.existing]
            _check_replaced(new, jobs)
            also = [write for plan in new for write in plan.also]
            if len(new) + len(also) > MAX_TRANSACTION:
                raise Unsupported(
                    "The batch replaces too many jobs for one transaction. Split it.", field="jobs"
                )
            with self._room(resolved, plans) as reservation:
                entering = self._with_positions(resolved, reservation, [plan.job for plan in new])
                try:
                    created = self._jobs.create_all(entering, also) if new else []
                except JobIdTaken as taken:
                    raise _taken_in_batch(taken.job_id, jobs) from None
                reservation.keep(created, _replaced(new))
            self._release(new, resolved.now_ms)
            stored = iter(created)
            return [
                Pushed(self._jobs.with_contents([plan.job])[0], deduplicated=True)
                if plan.existing
                else Pushed(job := next(stored), pressure=reservation.pressure(job.queue))
                for plan in plans
            ]

        busy = "Concurrent requests enqueued jobs with the same unique keys."
        return retry_on_race(attempt, tries=_TRIES, busy=busy, pause=self._bounds.pause)

    def _with_positions(
        self, resolved: _ResolvedPush, reservation: Reservation, jobs: Sequence[Job]
    ) -> list[Job]:
        """Return the jobs with their sort keys. Raises OjsError after releasing the capacity."""
        try:
            return self._placement.assign_positions(jobs, resolved.finish_tags)
        except WriteNotApplied:
            raise  # `room` releases it
        except BackendError:
            # Nothing is stored yet, so the capacity is not used.
            self._bounds.leave(reservation)
            raise

    def _plan(self, resolved: _ResolvedPush, index: int) -> _Plan:
        """Return the plan for a job. For a unique job, it depends on the holder of the unique key.

        Raises Duplicate.
        """
        job, specification = resolved.jobs[index], resolved.specifications[index]
        policy, now_ms = specification.unique, resolved.now_ms
        if (stored := resolved.push.stored.get(job.id)) is not None:
            return _Plan(stored, existing=True)
        alongside = resolved.push.alongside
        if policy is None or (alongside is not None and alongside.bypasses_unique):
            return _Plan(job)
        digest = fingerprint(specification, policy)
        seen = self._locks.get(digest)
        holder = self._transitions.holder_of(seen, now_ms)
        until_ms = None if policy.period_ms is None else now_ms + policy.period_ms
        job = replace(job, unique_key=digest)
        lock = UniqueLocks.taking(UniqueLock(digest, job.id, until_ms), seen)
        if holder is None or holder.state not in policy.states:
            return _Plan(job, (lock,))
        taken = held(holder, digest, resolved.push.reaches)
        _check_reach(holder.queue, resolved.push.reaches, taken)
        if policy.on_conflict is OnConflict.IGNORE:
            return _Plan(holder, existing=True)
        if policy.on_conflict is OnConflict.REJECT or holder.state.terminal:
            raise taken
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
        return _Plan(job, (lock, cancelling), replaces=(holder,))

    def _scheduled_as(self, holder: Job, job: Job) -> Job:
        """Return the job with the start time of the job that it replaces."""
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
        self, specifications: Sequence[Specification]
    ) -> tuple[dict[str, Queue], FinishTags]:
        """Return the queues of a push, and the finish tags of tenants in fair queues."""
        coming = [
            (s.queue, s.priority if _first_state(s) is State.AVAILABLE else None, s.content)
            for s in specifications
        ]
        found, finish_tags = self._placement.read(coming)
        # A missing queue is created by its first job.
        made = self._new_queues.make({s.queue for s in specifications} - found.keys())
        return {**found, **made}, finish_tags

    def _job(
        self,
        job_id: str,
        specification: Specification,
        queue: Queue,
        now_ms: int,
        producer: str | None,
    ) -> Job:
        state = _first_state(specification)
        ready = state is State.AVAILABLE
        fairness = queue.fairness
        return Job(
            id=job_id,
            type=specification.type,
            queue=queue.name,
            state=state,
            created_ms=now_ms,
            lane=queue.choose_lane(self._choose),
            priority=specification.priority,
            content=specification.content,
            enqueued_ms=now_ms if ready else None,
            scheduled_ms=specification.scheduled_ms,
            expires_ms=specification.expires_ms,
            timeout_ms=specification.timeout_ms or DEFAULT_TIMEOUT_MS,
            visibility_ms=specification.visibility_ms,
            policy=specification.policy,
            retention=queue.config.retention.with_minimum(specification.result_ttl_s),
            result_ttl_s=specification.result_ttl_s,
            copies_to=queue.config.copies_to,
            order=self._ids.order() if ready else None,
            share=None if fairness is None else fairness.share(specification.content),
            reserved_bytes=jsontext.size_of(specification.content) if queue.tracks_depth else None,
            reserved_in=period_of(now_ms) if queue.tracks_depth else None,
            limit=specification.limit,
            producer=producer,
            chosen_id=specification.id is not None,
            durable=(
                NOT_DURABLE
                if specification.parent is None
                else Durable(parent=specification.parent)
            ),
        )


def _check_reach(queue: str, reaches: Reaches, error: OjsError | None = None) -> None:
    """Raise `error` (default: PermissionDenied) if the caller can't use the queue."""
    if not reaches(queue):
        raise error or forbidden()


def _resolved(
    request: JobRequest, trace: TraceContext | None, *, now_ms: int, prefix: str
) -> tuple[JobRequest, Specification]:
    """Return a request with the trace context of its call, and its specification."""
    if trace is not None:
        traced = trace.into(request)
        # A job is not rejected because of a trace header that a library added.
        with suppress(PayloadTooLarge):
            return traced, envelope.resolve(traced, now_ms=now_ms, prefix=prefix)
    return request, envelope.resolve(request, now_ms=now_ms, prefix=prefix)


def _first_state(specification: Specification) -> State:
    if specification.pending:
        return State.PENDING
    return State.AVAILABLE if specification.scheduled_ms is None else State.SCHEDULED


def _with_queue_defaults(
    queue: Queue,
    resolved: Specification,
    request: JobRequest,
    *,
    now_ms: int,
    prefix: str = "",
) -> Specification:
    """Return a specification with the defaults of its queue. The job record stores these values."""
    config = queue.config
    if config.retry != retry.DEFAULT:
        resolved = envelope.resolve(request, now_ms=now_ms, base=config.retry, prefix=prefix)
    if resolved.timeout_ms is None:
        resolved = replace(resolved, timeout_ms=config.timeout_ms)
    if queue.tenant is not None:
        resolved = replace(resolved, priority=queue.tenant.find_priority(resolved.priority))
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
                f"is a duplicate of jobs[{seen[specification.id]}].id",
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
                f"has the same unique key as jobs[{seen[digest]}]. Send only one of them",
                details={"index": index},
            )
        seen[digest] = index


def _check_replaced(new: Sequence[_Plan], jobs: Sequence[Job]) -> None:
    """Raise Duplicate if a job of the batch has the ID of a job that the batch replaces."""
    replaced = {job.id for plan in new for job in plan.replaces}
    for plan in new:
        if plan.job.id in replaced:
            raise _taken_in_batch(plan.job.id, jobs)


def _replaced(plans: Iterable[_Plan]) -> list[Job]:
    return [job for plan in plans for job in plan.replaces]


def _cancelled(resolved: _ResolvedPush) -> tuple[Job, ...]:
    return () if resolved.push.alongside is None else resolved.push.alongside.cancels


def _overtaken(lost: LostRace, own: int) -> StaleRead | LostRace:
    """Return StaleRead if an additional write (after the first `own`) failed, else `lost`."""
    return StaleRead() if any(found is not None for found in lost.items[own:]) else lost


def _taken(job_id: str) -> Duplicate:
    return Duplicate(
        f"A job with the id '{job_id}' already exists.", details={"existing_job_id": job_id}
    )


def _taken_in_batch(job_id: str, jobs: Sequence[Job]) -> OjsError:
    index = next((i for i, job in enumerate(jobs) if job.id == job_id), 0)
    return envelope.at_index(_taken(job_id), index)
