"""Retries dead letters: manually, by bulk operations, and by replay rules.

The conditions are those of a push: the queue must allow the job and have capacity, and the job's
unique key must not be in use. One transaction changes the job record, acquires the unique lock, and
cancels the copy in a dead-letter queue. If a condition fails, nothing changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ojs.clock import Clock
from ojs.domain.access import Reaches, everything
from ojs.domain.dead_letter.override import JobOverride, JobOverrideRequest
from ojs.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    ValidationFailed,
    forbidden,
)
from ojs.domain.ids import IdSource
from ojs.domain.job import envelope, lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.job.unique import fingerprint, held
from ojs.domain.queue.queue import Queue
from ojs.services.jobs.new_queues import NewQueues
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.jobs.transitions import JobChanges
from ojs.services.permits.backpressure import QueueBounds
from ojs.services.permits.rate_limits import RateLimits, registered
from ojs.store.bounds.depth_counter import period_of
from ojs.store.jobs.payload_change import PayloadChange
from ojs.store.jobs.records import JobStore
from ojs.store.jobs.unique_locks import UniqueLock, UniqueLocks
from ojs.store.queues.queues import QueueStore
from ojs.store.table.errors import LostRace
from ojs.store.table.races import retry_on_race
from ojs.store.table.table import Put

if TYPE_CHECKING:
    from ojs.services.jobs.middleware import MiddlewareChain

_AS_IT_IS = JobOverride()


class DeadLetterRetrier:
    """Retries dead letters."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        changes: JobChanges,
        payload_change: PayloadChange,
        queues: QueueStore,
        unique_locks: UniqueLocks,
        transitions: TimeTransitions,
        bounds: QueueBounds,
        limits: RateLimits,
        placement: FairQueuePlacement,
        clock: Clock,
        ids: IdSource,
        new_queues: NewQueues,
        middleware: MiddlewareChain | None = None,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._jobs = jobs
        self._changes = changes
        self._contents = payload_change
        self._queues = queues
        self._locks = unique_locks
        self._transitions = transitions
        self._bounds = bounds
        self._limits = limits
        self._placement = placement
        self._clock = clock
        self._ids = ids
        self._chain = middleware
        self._new_queues = new_queues
        self._choose = choose

    def retry(
        self,
        job_id: str,
        override: JobOverride = _AS_IT_IS,
        *,
        caller: str | None = None,
        reaches: Reaches = everything,
        clears: Collection[str] = (),
    ) -> Job:
        """Make a dead letter available, with attempts reset to 0.

        ID, policy, and error history are kept. Of concurrent retries, exactly one succeeds.

        Args:
            job_id: ID of the job.
            override: Changes to the job.
            caller: Name of the caller. With an override, the queue must allow it as a producer.
            reaches: Whether the caller can use a queue.
            clears: See `bring_back`.

        Returns:
            The stored job with its errors.

        Raises:
            NotFound: The job does not exist or is not a dead letter.
            Conflict: The dead letter was already retried.
            OjsError: Any error of `bring_back`.
        """

        def attempt() -> Job:
            job = self._jobs.read_record(job_id)
            if job is not None and job.dead_letter:
                return self.bring_back(job, override, caller=caller, reaches=reaches, clears=clears)
            if job is not None and job.life and job.state is not State.DISCARDED:
                raise Conflict(
                    f"The dead letter was already retried and is in state '{job.state}'. The state "
                    f"must be '{State.DISCARDED}'.",
                    current_state=job.state,
                    expected_states=[State.DISCARDED],
                    details={"job_id": job_id},
                )
            raise NotFound("dead_letter_job", job_id)

        back = retry_on_race(attempt)
        # A worker can have changed the job by now. The response is the job that was stored here.
        now = self._jobs.load(job_id)
        errors = () if now is None else now.errors
        content = now.content if now is not None and back.content is None else back.content
        return replace(back, errors=errors, content=content)

    def bring_back(
        self,
        job: Job,
        override: JobOverride = _AS_IT_IS,
        *,
        drops: bool = True,
        known: MutableMapping[str, Queue] | None = None,
        replayed: str | None = None,
        caller: str | None = None,
        reaches: Reaches = everything,
        clears: Collection[str] = (),
    ) -> Job:
        """Make a dead letter available, on the condition that it is unchanged since it was read.

        Its copy in a dead-letter queue is cancelled, unless a worker has claimed it.

        Args:
            job: The dead letter, as read.
            override: Changes to the job.
            drops: Whether another job can be discarded if the queue is full.
            known: Queues that were just read. Queues that are read here are added.
            replayed: Record of a replay by a rule (`ojs.domain.job.replay`).
            caller: Name of the caller. With an override, it is stored, and the queue must allow it
                as a producer.
            reaches: Whether the caller can use a queue.
            clears: What its code continues without: `steps`, `checkpoint`. Default: it continues
                with both.

        Returns:
            The available job.

        Raises:
            LostRace: The job has changed.
            QueueDraining, QueueNotFound, JobTypeNotAllowed: The queue doesn't allow the job.
            QueueFull: The queue is full.
            Duplicate: Another job holds the unique key.
            PermissionDenied, ValidationFailed, PayloadTooLarge, MetadataTooLarge: The override is
                not allowed.
            MiddlewareRefusal, MiddlewareError: The middleware rejected the changes or failed.
        """
        chain = None if override == _AS_IT_IS else self._chain
        if job.content is None and (override.of_content or job.unique_key is not None or chain):
            (job,) = self._jobs.with_contents([job])
            if job.content is None:
                # It was changed or deleted since its record was read.
                raise LostRace([None])
        if chain is not None:
            override = self._after_middleware(chain, job, override)
            if override.queue is not None and not reaches(override.queue):
                raise forbidden()
        wanted = override.applied(job)
        queue = self.queue(wanted.queue, {} if known is None else known)
        if override == _AS_IT_IS:
            queue.check_type(job.type)
        else:
            queue.check_job(job.type, caller)
            wanted = replace(wanted, changed_by=caller)
        now_ms = self._clock.now_ms()
        after = lifecycle.revive(
            wanted,
            now_ms=now_ms,
            order=self._ids.order(),
            clears_steps="steps" in clears,
            clears_checkpoint="checkpoint" in clears,
        )
        after = replace(
            after,
            # The queue can have been created again with fewer lanes since the job was enqueued.
            lane=queue.choose_lane(self._choose),
            reserved_bytes=wanted.size if queue.tracks_depth else None,
            reserved_in=period_of(now_ms) if queue.tracks_depth else None,
            replayed=replayed or job.replayed,
        )
        after, lock = self._locked(job, after, reaches)
        after = self._placement.with_share(after, queue)
        copy = self._waiting_copy(job)
        if after.queue != job.queue:
            self._limits.register(registered([after]))
            self._bounds.note_leaving(job)
        with self._bounds.room([after], {queue.name: queue}, drops=drops) as reservation:
            after = self._placement.assign_position(after)
            if override.of_content:
                with self._contents.changed(job, after) as placed:
                    stored = self._swap(job, placed, lock, copy)
            else:
                stored = self._swap(job, after, lock, copy)
            reservation.keep([stored])
        return stored

    def _after_middleware(
        self, chain: MiddlewareChain, job: Job, override: JobOverride
    ) -> JobOverride:
        """Pass the changed job through the middleware, and return the resulting override.

        Raises MiddlewareRefusal, MiddlewareError, and the errors of `JobOverride.applied`.
        """
        from ojs.services.jobs.middleware import of_request

        wanted = override.applied(job)
        raw = {"id": job.id, "type": job.type, "queue": wanted.queue, "priority": job.priority}
        request = envelope.parse({**(wanted.content or {}), **raw})
        now_ms = self._clock.now_ms()
        sent = of_request(request, envelope.resolve(request, now_ms=now_ms))
        (changes,) = chain.run([sent])
        for name, value in changes.items():
            if name not in JobOverrideRequest.model_fields or value is None:
                raise chain.failed(
                    ValueError(f"must not set {name} to this value in a retry"), sent
                )
        if isinstance(meta := changes.get("meta"), dict):
            # It is merged into the job's meta, so names that the middleware deleted become None.
            changes = {**changes, "meta": dict.fromkeys((job.content or {}).get("meta", {})) | meta}
        try:
            new = JobOverrideRequest.model_validate(changes).override()
            new = replace(override, **{name: getattr(new, name) for name in changes})
            new.applied(job)
        except PayloadTooLarge:
            raise
        except InvalidRequest as error:
            raise chain.failed(error, sent) from None
        return new

    def queue(self, name: str, known: MutableMapping[str, Queue]) -> Queue:
        """Return a queue from `known`, or read and add it. Creates the queue if it does not exist.

        Raises:
            QueueNotFound: The queue doesn't exist, and the server is in strict mode.
            TooManyQueues: The server has the maximum number of queues.
        """
        if name not in known:
            found = self._queues.get(name)
            # The queue was deleted since the job was discarded.
            known[name] = found or self._new_queues.make({name})[name]
        return known[name]

    def _locked(self, job: Job, after: Job, reaches: Reaches) -> tuple[Job, Put | None]:
        """Return the job with its current unique key, and the write that acquires the lock.

        Raises:
            Duplicate: Another job holds the key, in a state that the job's policy includes.
        """
        if job.unique_key is None:
            return after, None
        policy = envelope.kept_unique(after.content or {})
        digest = job.unique_key
        if (after.queue, after.content) != (job.queue, job.content):
            digest = _fingerprint(after, policy)
        seen = self._locks.get(digest)
        now_ms = self._clock.now_ms()
        if seen is not None and seen.job_id != job.id:
            holder = self._transitions.holder_of(seen, now_ms)
            if holder is not None and holder.state in policy.states:
                raise held(holder, digest, reaches, job_id=job.id)
        # As in a push, the uniqueness period starts now.
        until_ms = None if policy.period_ms is None else now_ms + policy.period_ms
        lock = UniqueLock(digest, job.id, until_ms, after.life)
        return replace(after, unique_key=digest), UniqueLocks.taking(lock, seen)

    def _waiting_copy(self, job: Job) -> Job | None:
        """Return the copy of the dead letter, unless a worker has claimed it."""
        if job.copy_id is None or job.copy_due:
            return None
        copy = self._jobs.read_record(job.copy_id)
        if copy is None or copy.copy_of is None or copy.copy_of.job_id != job.id:
            return None
        return None if copy.state is State.ACTIVE or copy.state.terminal else copy

    def _swap(self, job: Job, after: Job, lock: Put | None, copy: Job | None) -> Job:
        """Store the job, acquire its lock, and cancel its copy: all or nothing. Raises LostRace."""
        # Races: a worker claims the copy; another request retries or deletes the job, or acquires
        # the unique key; another container creates the copy, which changes the job record, too. The
        # loser reads again and decides by the new records.
        if copy is None and lock is None:
            return self._changes.replace(job, after)
        changes = [(job, after)]
        if copy is not None:
            changes.append((copy, lifecycle.cancel(copy, now_ms=self._clock.now_ms())))
        return self._changes.replace_all(changes, [] if lock is None else [lock])[0]


def _fingerprint(after: Job, policy: envelope.Unique) -> str:
    """Return the unique key of a changed job. Raises ValidationFailed with the changed field."""
    try:
        return fingerprint(after, policy)
    except ValidationFailed as error:
        part = "args" if error.field.endswith("args_keys") else "meta"
        rule = "must have the keys in the job's unique policy"
        raise ValidationFailed(f"override.{part}", rule, value=error.details.get("value")) from None
