"""Enqueues jobs once per idempotency key, even if the request is repeated (ADR 31).

The first attempt records its key before it stores any job, and its completion afterwards. The job
IDs are derived from this record. A later or concurrent attempt therefore has the same job IDs and
finds the stored jobs.

A staged batch is written without conditions, so each attempt has separate job IDs. Of two attempts,
the later one takes over the key, and the earlier one detects that before its commit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ojs.domain.access import Reaches, everything
from ojs.domain.errors import (
    BackendContended,
    BackendError,
    CapacityExceeded,
    Duplicate,
    KeyTaken,
    MiddlewareError,
    MiddlewareRefusal,
    NotFound,
    OjsError,
)
from ojs.domain.job.envelope import JobRequest
from ojs.domain.job.idempotency import HEADER, IdempotencyKey
from ojs.domain.job.job import Job
from ojs.services.jobs.enqueue import JobEnqueuer, Pushed, PushRequest
from ojs.services.jobs.manage import JobManagement
from ojs.store.jobs.idempotency_keys import IdempotencyKeys, IdempotencyRecord
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import LostRace
from ojs.store.table.races import losing_as, retry_on_race

if TYPE_CHECKING:
    from ojs.domain.job.trace import TraceContext

BUSY = "A request with the same idempotency key is in progress."
# Maximum number of times that a request reads the record of a key that another request uses. With
# the pauses in between, this takes 3 s. After that, the request starts its own attempt.
_LOOKS = 12
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.025, 0.4
# No function runs longer than this (ms). A request that started earlier has ended.
_OVER_MS = 30_000


class KeyTurn:
    """Coordinates requests with the same idempotency key: one stores the jobs, the others wait."""

    def __init__(
        self, idempotency_keys: IdempotencyKeys, *, sleep: Callable[[float], None]
    ) -> None:
        """Create the coordinator. `sleep` takes seconds."""
        self._keys = idempotency_keys
        self._sleep = sleep

    def begin(self, key: IdempotencyKey, *, now_ms: int) -> tuple[IdempotencyRecord, bool]:
        """Call `IdempotencyKeys.begin`, and wait for a concurrent request with the key.

        Waits at most 3 s, until the other request is completed or rejected.

        Raises:
            OjsError: The record could not be read or written.
        """
        record, first = self._keys.begin(key, now_ms=now_ms)
        if first or record.request != key.request or now_ms - record.at_ms >= _OVER_MS:
            return record, first
        for look in range(_LOOKS):
            if record.done:
                break
            self.pause(look)
            found = self._keys.read(key, now_ms=now_ms)
            if found is None:
                # The other request was rejected, so the key is available.
                return self._keys.begin(key, now_ms=now_ms)
            record = found
        return record, False

    def pause(self, tried: int) -> None:
        """Wait before the next read: exponential backoff with jitter."""
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**tried)
        self._sleep(longest * random.uniform(0.5, 1))  # noqa: S311 - jitter


class IdempotentPush:
    """Enqueues jobs once for each idempotency key."""

    def __init__(
        self,
        *,
        enqueue: JobEnqueuer,
        management: JobManagement,
        jobs: JobStore,
        idempotency_keys: IdempotencyKeys,
        key_turn: KeyTurn,
    ) -> None:
        self._turn = key_turn
        self._enqueue = enqueue
        self._management = management
        self._jobs = jobs
        self._keys = idempotency_keys

    def push(
        self,
        key: IdempotencyKey,
        requests: Sequence[JobRequest],
        *,
        batch: bool,
        producer: str | None = None,
        reaches: Reaches = everything,
        wait_ms: int = 0,
        trace: TraceContext | None = None,
    ) -> list[Pushed]:
        """Store jobs with `JobEnqueuer.push` or, for a `batch`, `push_batch`, once per key.

        Args:
            key: Idempotency key of the request.
            requests: The jobs; one, unless `batch` is set.
            batch: Whether the request is a batch.
            producer: Name of the producer.
            reaches: Whether the caller can use a queue.
            wait_ms: Maximum time in ms to wait for capacity of a full queue.
            trace: Trace context of the request.

        Returns:
            The stored jobs. If an earlier attempt stored them, their current records. A job that
            was deleted, or whose queue the caller can't use, is `absent` and has its original
            values.

        Raises:
            KeyTaken: The key was used for a different request.
            BackendContended: A concurrent attempt took over the staged batch.
            OjsError: Any error of `JobEnqueuer.push`. The key is released unless the backend
                failed.
        """
        try:
            push = self._enqueue.prepare(requests, producer, reaches, batch=batch, trace=trace)
        except (MiddlewareRefusal, MiddlewareError):
            # If the jobs were stored before, this request enqueues nothing, and an error of the
            # middleware is ignored.
            push = self._enqueue.prepare(requests, producer, reaches, batch=batch, as_sent=True)
            if (pushed := self._stored_already(key, push)) is None:
                raise
            return pushed
        return retry_on_race(
            lambda: self._attempt(key, push, wait_ms), busy=BUSY, pause=self._turn.pause
        )

    def _stored_already(self, key: IdempotencyKey, push: PushRequest) -> list[Pushed] | None:
        """Return the current jobs of a request that an earlier attempt stored, or None."""
        record = self._keys.read(key, now_ms=push.came_ms)
        if record is None or record.request != key.request:
            return None
        if record.done:
            # It is unknown whether the jobs were staged, because that depends on the earlier result
            # of the middleware. Without a staged batch, the commit does nothing.
            there = self._jobs.batches.commit(record.seed)
        else:
            derived = self._derived(key, push, record)
            there = not push.staged and len(self._stored_before(derived, record)) == len(push.ids)
        return self._done_before(key, push, record) if there else None

    def _attempt(self, key: IdempotencyKey, push: PushRequest, wait_ms: int) -> list[Pushed]:
        """Run one attempt. Raises LostRace if a concurrent attempt changed the key."""
        record, first = self._turn.begin(key, now_ms=push.came_ms)
        if record.request != key.request:
            raise KeyTaken(HEADER)
        if record.done and (not push.staged or self._jobs.batches.commit(record.seed)):
            return self._done_before(key, push, record)
        if not first:
            left = record.seed
            record = self._keys.join(record, anew=push.staged)
            if push.staged:
                # The earlier batch can no longer be committed, so its capacity and its IDs are
                # released immediately.
                self._jobs.batches.undo(left, now_ms=push.came_ms)
        push = self._derived(key, push, record)
        if not first and not push.staged:
            push = replace(push, stored=self._stored_before(push, record))
            if len(push.stored) == len(push.ids):
                self._keys.finish(record)
                return self._done_before(key, push, record, again=False)
        pushed = self._store(push, record, wait_ms)
        # The record of a staged batch was completed before its commit.
        if not push.staged:
            existing = [one.job.id if one.deduplicated else None for one in pushed]
            self._keys.finish(record, existing)
        return pushed

    def _derived(
        self, key: IdempotencyKey, push: PushRequest, record: IdempotencyRecord
    ) -> PushRequest:
        """Return the push with job IDs derived from its key and the time of its first attempt."""
        if push.came_ms != record.at_ms:
            push = self._enqueue.with_start_time(push, record.at_ms)
        ids = [
            specification.id or key.job_id(record.seed, record.at_ms, index)
            for index, specification in enumerate(push.specifications)
        ]

        def before_commit() -> None:
            with losing_as(lambda _: BackendContended(BUSY)):
                self._keys.finish(record)

        return replace(push, ids=ids, seed=record.seed, before_commit=before_commit)

    def _store(self, push: PushRequest, record: IdempotencyRecord, wait_ms: int) -> list[Pushed]:
        try:
            pushed = self._enqueue.store(push, wait_ms)
        except OjsError as error:
            if isinstance(error, Duplicate | CapacityExceeded) and self._stored(push, record):
                # A concurrent attempt stored the jobs first, and might have used the last space.
                # The next attempt finds its jobs.
                raise LostRace([]) from None
            if record.untouched() and not isinstance(error, BackendError):
                free(self._keys, record)
            raise
        return [
            replace(one, deduplicated=one.deduplicated and one.job.id != job_id)
            for one, job_id in zip(pushed, push.ids, strict=True)
        ]

    def _stored_before(self, push: PushRequest, record: IdempotencyRecord) -> dict[str, Job]:
        """Return the jobs that an earlier attempt stored, by ID.

        An attempt stores all jobs or none. If some are missing, they were deleted, unless they have
        a unique key that another job might have held.
        """
        stored = self._stored(push, record)
        if not stored:
            return {}
        gone = {
            job_id: self._enqueue.to_job(push, index)
            for index, job_id in enumerate(push.ids)
            if push.specifications[index].unique is None
        }
        return gone | stored

    def _stored(self, push: PushRequest, record: IdempotencyRecord) -> dict[str, Job]:
        """Return the stored jobs of a push, by ID."""
        found = self._jobs.read_records(push.ids)
        return {
            job_id: found[job_id]
            for job_id, specification in zip(push.ids, push.specifications, strict=True)
            if job_id in found and made_under(found[job_id], push.mark(specification))
        }

    def _done_before(
        self,
        key: IdempotencyKey,
        push: PushRequest,
        record: IdempotencyRecord,
        *,
        again: bool = True,
    ) -> list[Pushed]:
        """Return the current jobs of a completed request.

        `again` is False if an earlier attempt stored the jobs but did not complete the request.
        """
        push = self._derived(key, push, record)
        existing = record.existing or [None] * len(push.ids)
        push = replace(
            push, ids=[there or own for there, own in zip(existing, push.ids, strict=True)]
        )
        found = self._found(push)
        pushed = []
        for index, specification in enumerate(push.specifications):
            job, there = found.get(push.ids[index]), existing[index] is not None
            marks = push.mark(specification), record.seed
            known = job is not None and (there or any(made_under(job, mark) for mark in marks))
            if job is None or not known or not push.reaches(job.queue):
                job = self._enqueue.to_job(push, index)
                pushed.append(Pushed(job, deduplicated=there, absent=True, again=again))
            else:
                pushed.append(Pushed(job, deduplicated=there, again=again))
        return pushed

    def _found(self, push: PushRequest) -> dict[str, Job]:
        if push.batch:
            records = list(self._jobs.read_records(push.ids).values())
            return {job.id: job for job in self._jobs.with_contents(records)}
        with suppress(NotFound):
            return {push.ids[0]: self._management.get(push.ids[0])}
        return {}


def free(keys: IdempotencyKeys, record: IdempotencyRecord) -> None:
    """Release the key of a rejected request.

    Raises:
        BackendContended: A concurrent attempt uses the key. It might have stored the jobs that
            caused the rejection.
    """
    # After any other error, the key stays reserved for the same request.
    with losing_as(lambda _: BackendContended(BUSY)), suppress(OjsError):
        keys.forget(record)


def made_under(job: Job, mark: str | None) -> bool:
    """Return whether a push with this mark created the job, not another job with the same ID."""
    if mark is None or job.made_by is None:
        return mark is None and job.made_by is None
    return job.made_by.startswith(mark)
