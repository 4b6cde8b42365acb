"""Time transitions of jobs: starts, retries, expired leases, timeouts, and deadlines.

Fetches, reads, and the sweep use this module, so they all change a job in the same way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace as changed

from ojs.clock import Clock
from ojs.domain.errors import OjsError
from ojs.domain.ids import IdSource
from ojs.domain.job import failure as failures
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State, Trigger, sources
from ojs.services.jobs.dead_letter_copies import DeadLetterCopies
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.transitions import JobChanges
from ojs.store.deployment.maintenance import MaintenanceStore
from ojs.store.jobs.records import JobStore
from ojs.store.jobs.unique_locks import UniqueLock
from ojs.store.table.errors import LostRace
from ojs.store.table.races import retry_as_found


class TimeTransitions:
    """Applies time transitions to jobs."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        changes: JobChanges,
        copies: DeadLetterCopies,
        placement: FairQueuePlacement,
        maintenance: MaintenanceStore,
        clock: Clock,
        ids: IdSource,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._jobs = jobs
        self._changes = changes
        self._copies = copies
        self._placement = placement
        self._maintenance = maintenance
        self._clock = clock
        self._ids = ids
        self._chance = chance

    def apply(self, job: Job | None) -> Job | None:
        """Apply all transitions of a job that are due.

        Return the job, or None if it no longer exists.

        `job` is a job record as read. Each step is one conditional write. After a lost race, the
        record is read again. A job of an uncommitted batch does not exist. In maintenance mode no
        job starts: scheduled and retryable jobs keep their state. Raises BackendUnavailable.
        """
        job_id = "" if job is None else job.id
        return retry_as_found(self._step, job, lambda _: self._jobs.read_record(job_id))

    def _step(self, job: Job | None) -> Job | None:
        """Apply due transitions until a lost race. Raises LostRace, BackendUnavailable."""
        while True:
            if job is None or (
                job.batch is not None and self._jobs.batches.uncommitted([job.batch])
            ):
                return None
            now_ms = self._clock.now_ms()
            if job.gone(now_ms):
                # Its retention has ended. DynamoDB deletes it later (time to live).
                return None
            after, failure = lifecycle.by_time(
                job, now_ms=now_ms, order=self._ids.order(), chance=self._chance()
            )
            if after is job or (
                after.state is State.AVAILABLE
                and job.state in sources(Trigger.DUE)
                and self._maintenance.on()
            ):
                return job
            if job.batch is not None:
                # The batch of the job is committed. No later reader must check this again.
                after = changed(after, batch=None)
            after = self._placement.assign_position(after)
            job = self._changes.replace(job, after, failure=failure)
            if job.copy_due:
                job = self._copies.follow(job)

    def holder_of(self, lock: UniqueLock | None, now_ms: int) -> Job | None:
        """Return the job that holds a unique lock, after due time transitions, or None."""
        if lock is None or lock.over(now_ms):
            return None
        holder = self.apply(self._jobs.read_record(lock.job_id))
        return holder if lock.held_by(holder, now_ms) else None

    def give_back(self, job: Job) -> None:
        """Requeue a claimed job that did not reach its worker. If that fails, its lease expires."""
        try:
            back = lifecycle.requeue(job, now_ms=self._clock.now_ms(), order=self._ids.order())
            self._changes.replace(job, self._placement.assign_position(back), guard="lease")
        except (LostRace, OjsError):
            return

    def end_without_content(self, claimed: Job) -> None:
        """Fail a job that was just claimed and whose content does not exist.

        Usually, the job finished and was deleted after the claim. If it still has the lease of the
        claim, its attempt fails with the non-retryable type `content_missing`, so that its policy
        applies and an operator finds it. If this write fails, the attempt ends when the lease
        expires.
        """
        with suppress(LostRace, OjsError):
            job = self._jobs.read_record(claimed.id)
            if job is None or job.lease is None or job.lease != claimed.lease:
                return
            now_ms = self._clock.now_ms()
            failure = failures.observed(
                "content_missing",
                "The payload of the job is missing in the storage.",
                attempt=job.attempt,
                now_ms=now_ms,
                retryable=False,
            )
            after = lifecycle.fail(job, failure, now_ms=now_ms, chance=self._chance())
            # Race: the job finished or its lease expired. The loser changes nothing.
            after = self._changes.replace(job, after, failure=failure, guard="lease")
            if after.copy_due:
                self._copies.follow(after)

    def apply_indexed(self, job: Job) -> Job | None:
        """Apply time transitions to a job found in the due index.

        Returns the same object if nothing was due. Its index entry is updated then.
        """
        after = self.apply(job)
        if after is job and job.lease is not None:
            # The index entry has the original end of the lease, which was renewed since.
            self._jobs.file_running(job)
        return after
