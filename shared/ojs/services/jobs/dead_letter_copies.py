"""Copies dead letters into the `dead_letter_queue` that their queue names.

The write that discards a job also records that a copy is due. The writer then creates the copy. The
projection checks every discarded job and creates the copy if the writer crashed. One transaction
stores the copy and records its creation. The copy is therefore created once, never for a dead
letter that was retried, and not again after the copy finished and was deleted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ojs.clock import Clock
from ojs.domain import jsontext, times
from ojs.domain.errors import (
    BackendUnavailable,
    Duplicate,
    OjsError,
    PayloadTooLarge,
    QueueFull,
)
from ojs.domain.ids import IdSource
from ojs.domain.job import copies as domain
from ojs.domain.job import lifecycle
from ojs.domain.job.copies import CopyTarget, Origin
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Queue, QueueState
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.permits.backpressure import QueueBounds
from ojs.services.permits.lifecycle import Permits
from ojs.store.bounds.depth_counter import period_of
from ojs.store.dead_letter import copies as store
from ojs.store.jobs.new_jobs import JobIdTaken
from ojs.store.jobs.records import JobStore
from ojs.store.queues.queues import QueueStore
from ojs.store.table.errors import LostRace

_TRIES = 5
# Maximum copies that one call drops. The next call drops the others.
MAX_DROPS = 100
# Options of the job that don't apply to its copy. The settings of the target queue apply instead.
_OF_ONE_LIFE = frozenset(
    {
        "retry", "unique", "rate_limit", "visibility_timeout_ms", "timeout", "timeout_ms",
        "scheduled_at", "expires_at",
    }
)  # fmt: skip


class DeadLetterCopies:
    """Creates copies of dead letters, and drops copies above the configured number."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        permits: Permits,
        queues: QueueStore,
        bounds: QueueBounds,
        waiting_copies: store.WaitingCopies,
        clock: Clock,
        ids: IdSource,
        placement: FairQueuePlacement,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._jobs = jobs
        self._permits = permits
        self._queues = queues
        self._bounds = bounds
        self._waiting = waiting_copies
        self._placement = placement
        self._clock = clock
        self._ids = ids
        self._choose = choose

    def follow(self, record: Job) -> Job:
        """Call `make` after a write that discarded a job. On errors, the projection retries."""
        try:
            return self.make(record)
        except OjsError:
            return record

    def make(self, record: Job) -> Job:
        """Enqueue the copy that is due by a job record, and return the resulting job.

        Does nothing if no copy is due. If the target queue is being deleted, or is full and has no
        waiting copy to drop, no copy is created, and the job record is updated accordingly. Safe to
        repeat and to run twice at the same time.

        Raises:
            OjsError: The copy could not be stored. It is still due.
        """
        for _ in range(_TRIES):
            if not record.copy_due or record.copies_to is None:
                return record
            try:
                return self._make(record, record.copies_to)
            except (LostRace, Duplicate) as lost:
                found = self._jobs.read_record(record.id)
                if found is None:
                    return record
                if isinstance(lost, Duplicate) and found.copy_due and found.op == record.op:
                    # A client used the ID of this copy for another job, so it can't be stored.
                    return self._without(found)
                record = found
        raise BackendUnavailable("Concurrent requests changed this job.")

    def _make(self, record: Job, target: CopyTarget) -> Job:
        now_ms = self._clock.now_ms()
        queue = self._queues.get(target.queue)
        if queue is None:
            queue = self._queues.ensure(target.queue, now_ms=now_ms)
        if queue.state is QueueState.DRAINING and not queue.may_stay:
            return self._without(record)
        (whole,) = self._jobs.with_errors(self._jobs.with_contents([record]), latest=1)
        if whole.content is None:
            # Deleted since it was read, or discarded because its payload is missing: nothing to
            # copy.
            return self._without(record)
        copy = _copy(
            whole,
            target,
            queue,
            now_ms=now_ms,
            lane=queue.choose_lane(self._choose),
            order=self._ids.order(),
        )
        copy = self._placement.with_share(copy, queue)
        # Races: another container creates the same copy, or the dead letter is retried or deleted.
        # Each of these changes the job record. The loser stores no copy and reads the record again.
        made, recording = self._jobs.replacing(record, replace(record, copy_due=False))
        try:
            with self._bounds.room([copy], {queue.name: queue}, copies=True) as reservation:
                copy = self._placement.assign_position(copy)
                try:
                    stored = self._jobs.create(copy, [recording])
                except JobIdTaken:
                    raise Duplicate(f"A job with the id '{copy.id}' already exists.") from None
                reservation.keep([stored])
        except (QueueFull, PayloadTooLarge):
            return self._without(record)
        return made

    def _without(self, record: Job) -> Job:
        """Record that no copy of the dead letter will be created. Raises LostRace."""
        return self._jobs.replace(record, replace(record, copy_id=None, copy_due=False))

    def trim(self, queue: str, most: int) -> bool:
        """Drop the oldest available copies of a queue above `most`. Return false if some are left.

        The projection counts the copies, and must have counted the new ones before this call. It
        might still count copies that were just claimed. If there are more than MAX_DROPS copies, a
        few might therefore be dropped too early. Safe to repeat and to run twice at the same time.
        Raises OjsError.
        """
        over = self._waiting.waiting(queue) - most
        if over <= 0:
            return True
        there = self._queues.get(queue)
        lanes = 1 if there is None else there.lanes
        found = self._jobs.index.oldest(queue, lanes, limit=MAX_DROPS, copies=True)
        if len(found) < MAX_DROPS:
            # The page contains all available copies, so its length is more exact than the counter.
            over = min(over, len(found) - most)
        dropped = found[: max(0, over)]
        records = self._jobs.read_records(dropped)
        for copy in (records[job_id] for job_id in dropped if job_id in records):
            if copy.queue != queue or not copy.waiting_copy:
                continue
            after, failure = lifecycle.drop(copy, now_ms=self._clock.now_ms())
            try:
                self._waiting.drop(copy, after, failure, most=most)
                self._permits.release_unused(copy, after)
            except store.NothingToTrim:
                return True
            except LostRace:
                # The copy was claimed or cancelled, so there is one available copy less.
                continue
        return over <= len(dropped)


def _copy(
    record: Job, target: CopyTarget, queue: Queue, *, now_ms: int, lane: int, order: str
) -> Job:
    """Return a new job with the same type and args, and the settings of the target queue."""
    config = queue.config
    expires_ms = min((record.discarded_ms or now_ms) + target.ttl_ms, times.MAX_MS)
    content = _content(record, expires_ms)
    return Job(
        id=record.copy_id or "",
        type=record.type,
        queue=queue.name,
        state=State.AVAILABLE,
        created_ms=now_ms,
        lane=lane,
        priority=record.priority,
        content=content,
        enqueued_ms=now_ms,
        expires_ms=expires_ms,
        timeout_ms=config.timeout_ms,
        policy=config.retry,
        retention=config.retention.with_minimum(record.result_ttl_s),
        result_ttl_s=record.result_ttl_s,
        order=order,
        reserved_bytes=jsontext.size_of(content) if queue.tracks_depth else None,
        reserved_in=period_of(now_ms) if queue.tracks_depth else None,
        copy_of=Origin(record.id, target.max_size),
        chosen_id=True,
    )


def _content(record: Job, expires_ms: int) -> dict[str, Any]:
    content = record.content or {}
    kept = {name: value for name, value in content.items() if name not in _OF_ONE_LIFE}
    meta = kept.get("meta")
    origin: dict[str, Any] = {"source_job_id": record.id, "source_queue": record.queue}
    if record.errors:
        origin["error"] = record.errors[-1].to_dict()
    kept["meta"] = {**(meta if isinstance(meta, Mapping) else {}), domain.META: origin}
    return {**kept, "expires_at": times.format_ms(expires_ms)}
