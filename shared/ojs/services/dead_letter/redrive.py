"""Back from dead letter: a job that failed for good gets another life (dead-letter seed, 6).

It enters its queue as a push does: the queue must take it and have room, and the job's unique key
must be free. All that changes for it is one conditional write of its head, in one transaction with
its unique lock and with the copy that it left in a dead-letter queue: whoever loses that changes
nothing. By hand, many at a time and by rule, jobs come back through here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, MutableMapping
from dataclasses import replace

from ojs.clock import Clock
from ojs.domain.dead_letter.override import JobOverride
from ojs.domain.errors import (
    BackendUnavailable,
    Conflict,
    Duplicate,
    NotFound,
    QueueNotFound,
    ValidationFailed,
)
from ojs.domain.ids import IdSource
from ojs.domain.job import envelope, lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.job.unique import fingerprint
from ojs.domain.queue import admission
from ojs.domain.queue.queue import Queue
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.permits.backpressure import QueueBounds
from ojs.services.permits.rate_limits import RateLimits, registered
from ojs.store.jobs.payload_change import PayloadChange
from ojs.store.jobs.records import JobStore
from ojs.store.jobs.unique_locks import UniqueLock, UniqueLocks
from ojs.store.queues.queues import QueueStore
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put

_TRIES = 5
_AS_IT_IS = JobOverride()


class Redrive:
    """Brings dead letters back."""

    def __init__(
        self,
        jobs: JobStore,
        contents: PayloadChange,
        queues: QueueStore,
        locks: UniqueLocks,
        *,
        due: TimeTransitions,
        bounds: QueueBounds,
        limits: RateLimits,
        lines: FairQueuePlacement,
        clock: Clock,
        ids: IdSource,
        strict: bool = False,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._jobs = jobs
        self._contents = contents
        self._queues = queues
        self._locks = locks
        self._due = due
        self._bounds = bounds
        self._limits = limits
        self._lines = lines
        self._clock = clock
        self._ids = ids
        self._strict = strict
        self._choose = choose

    def retry(self, job_id: str, override: JobOverride = _AS_IT_IS) -> Job:
        """Make a dead letter available again: attempts anew, id, policy and error history kept, but
        for what is overridden (DL 6.1, 6.3). Returns it as it came back, with its errors.

        Of several retries at once exactly one dispatches; the others raise Conflict. Raises
        NotFound when there is no such dead letter, and else as `bring_back`.
        """
        for _ in range(_TRIES):
            job = self._jobs.head(job_id)
            if job is None:
                raise NotFound("dead_letter_job", job_id)
            if not job.dead_letter:
                if job.life and job.state is not State.DISCARDED:
                    raise Conflict(
                        "The job is not in dead letter any more.",
                        current_state=job.state,
                        expected_states=[State.DISCARDED],
                        details={"job_id": job_id},
                    )
                raise NotFound("dead_letter_job", job_id)
            try:
                back = self.bring_back(job, override)
            except LostRace:
                continue
            # It may be with a worker by now, or done: told is what this retry made of it.
            now = self._jobs.load(job_id)
            errors = () if now is None else now.errors
            content = now.content if now is not None and back.content is None else back.content
            return replace(back, errors=errors, content=content)
        raise BackendUnavailable("Others are changing this job; try again.")

    def bring_back(
        self,
        job: Job,
        override: JobOverride = _AS_IT_IS,
        *,
        drops: bool = True,
        known: MutableMapping[str, Queue] | None = None,
        replayed: str | None = None,
    ) -> Job:
        """Make a dead letter available again as long as it is the one that was read.

        A copy of it that waits in a dead-letter queue is cancelled; one that a worker has, or had,
        is left alone. Without `drops` no other job gives way to it. `known` are queues that were
        just read; those that are read here are added. `replayed` notes that a rule does so, and
        nobody by hand (`ojs.domain.dead_letter.replay`).

        Raises LostRace when it has moved on. Raises QueueDraining, QueueNotFound, JobTypeNotAllowed
        for its queue, QueueFull, Duplicate when another job holds its unique key, and for an
        override ValidationFailed, PayloadTooLarge, MetadataTooLarge; nothing is changed then.
        """
        if job.content is None and (override.of_content or job.unique_key is not None):
            (job,) = self._jobs.with_contents([job])
            if job.content is None:
                # It was changed or removed since its head was read.
                raise LostRace([None])
        wanted = override.applied(job)
        queue = self._queue(wanted.queue, {} if known is None else known)
        admission.check_type(queue, job.type)
        after = lifecycle.revive(wanted, now_ms=self._clock.now_ms(), order=self._ids.order())
        after = replace(
            after,
            # The queue may have fewer lanes than when the job was pushed: it was made anew.
            lane=self._choose(queue.lanes) if queue.lanes > 1 else 0,
            held=wanted.size if queue.charged else None,
            replayed=replayed or job.replayed,
        )
        after, lock = self._locked(job, after)
        after = self._lines.under(after, queue)
        copy = self._waiting_copy(job)
        if after.queue != job.queue:
            self._limits.register(registered([after]))
        with self._bounds.room([after], {queue.name: queue}, drops=drops) as entry:
            after = self._lines.enter(after)
            if override.of_content:
                with self._contents.changed(job, after) as placed:
                    stored = self._swap(job, placed, lock, copy)
            else:
                stored = self._swap(job, after, lock, copy)
            entry.keep([stored])
        return stored

    def _queue(self, name: str, known: MutableMapping[str, Queue]) -> Queue:
        if name not in known:
            found = self._queues.get(name)
            if found is None and self._strict:
                raise QueueNotFound(name)
            # It was deleted since the job died.
            known[name] = found or self._queues.ensure(name, now_ms=self._clock.now_ms())
        return known[name]

    def _locked(self, job: Job, after: Job) -> tuple[Job, Put | None]:
        """The job with its unique key as it is now, and the write that takes the key's lock anew.

        Raises Duplicate when another job holds it, in a state that the job's policy names.
        """
        if job.unique_key is None:
            return after, None
        policy = envelope.kept_unique(after.content or {})
        digest = job.unique_key
        if (after.queue, after.content) != (job.queue, job.content):
            digest = _fingerprint(after, policy)
        seen = self._locks.get(digest)
        now_ms = self._clock.now_ms()
        if seen is not None and seen.job_id != job.id and not seen.over(now_ms):
            holder = self._due.settle(self._jobs.head(seen.job_id))
            # The job that the lock was made for may be gone, and another have its id.
            if holder is not None and holder.unique_key == digest and holder.state in policy.states:
                raise Duplicate(
                    "Another job with the same unique key exists.",
                    details={
                        "existing_job_id": holder.id,
                        "existing_state": holder.state.value,
                        "unique_key": digest,
                        "job_id": job.id,
                    },
                )
        # As for a push: its period begins now.
        until_ms = None if policy.period_ms is None else now_ms + policy.period_ms
        lock = UniqueLock(digest, job.id, until_ms, after.life)
        return replace(after, unique_key=digest), UniqueLocks.taking(lock, seen)

    def _waiting_copy(self, job: Job) -> Job | None:
        """The copy that the dead letter left, as long as no worker has taken it."""
        if job.copy_id is None or job.copy_due:
            return None
        copy = self._jobs.head(job.copy_id)
        if copy is None or copy.copy_of is None or copy.copy_of.job_id != job.id:
            return None
        return None if copy.state is State.ACTIVE or copy.state.terminal else copy

    def _swap(self, job: Job, after: Job, lock: Put | None, copy: Job | None) -> Job:
        """The job comes back, its lock is taken, its copy goes: all or nothing. Raises LostRace."""
        # Races: a worker takes the copy; another retry, or a deletion; somebody takes the unique
        # key; whoever is about to make the copy, which changes the dead letter too. The loser looks
        # again: what stands there now decides.
        if copy is None and lock is None:
            return self._jobs.replace(job, after)
        changes = [(job, after)]
        if copy is not None:
            changes.append((copy, lifecycle.cancel(copy, now_ms=self._clock.now_ms())))
        return self._jobs.replace_all(changes, [] if lock is None else [lock])[0]


def _fingerprint(after: Job, policy: envelope.Unique) -> str:
    """The unique key of a job that was changed. Raises ValidationFailed naming what changed."""
    try:
        return fingerprint(after, policy)
    except ValidationFailed as error:
        part = "args" if error.field.endswith("args_keys") else "meta"
        rule = "must have the keys that the job's unique policy names"
        raise ValidationFailed(f"override.{part}", rule, value=error.details.get("value")) from None
