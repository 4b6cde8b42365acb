"""ACK and FAIL: a worker ends an attempt (ojs-http-binding, sections 10.2 and 10.3)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    ResultTooLarge,
)
from ojs.domain.ids import IdSource
from ojs.domain.job import failure as failures
from ojs.domain.job import lifecycle, states
from ojs.domain.job.durable import NO_PROGRESS
from ojs.domain.job.envelope import MAX_JOB_BYTES
from ojs.domain.job.job import MISSING, Job
from ojs.domain.job.states import State, Trigger
from ojs.services.jobs.dead_letter_copies import DeadLetterCopies
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.jobs.transitions import JobChanges
from ojs.services.permits.rate_limits import RateLimits
from ojs.store.jobs.records import JobStore, winner
from ojs.store.table.errors import LostRace
from ojs.store.table.races import retry_on_race, won_or

if TYPE_CHECKING:
    from ojs.services.jobs.suspensions import Suspensions


class JobFinisher:
    """Ends attempts at a worker's request."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        changes: JobChanges,
        transitions: TimeTransitions,
        copies: DeadLetterCopies,
        limits: RateLimits,
        clock: Clock,
        ids: IdSource,
        placement: FairQueuePlacement,
        suspensions: Callable[[], Suspensions],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._jobs = jobs
        self._changes = changes
        self._transitions = transitions
        self._copies = copies
        self._limits = limits
        self._placement = placement
        self._suspensions = suspensions
        self._clock = clock
        self._ids = ids
        self._chance = chance

    def ack(
        self,
        job_id: str,
        *,
        worker_id: str | None = None,
        attempt: int | None = None,
        lease_token: str | None = None,
        result: Any = MISSING,
        stopped: list[Job] | None = None,
    ) -> Job:
        """Complete a job that its worker has finished.

        An expired lease is accepted if the job was not claimed again. If a worker repeats its ack
        of the same attempt after a lost response, it receives the same response.

        Args:
            job_id: ID of the job.
            worker_id: ID of the worker. None: not checked.
            attempt: Number of the reported attempt. None: not checked.
            lease_token: Lease token of the run. None: not checked, unless the queue requires it.
            result: Result of the job, a JSON value. Default: no result.
            stopped: See `JobChanges.ack`.

        Returns:
            The completed job.

        Raises:
            NotFound: The job doesn't exist.
            InvalidRequest: The queue requires the lease token.
            Conflict: The job isn't active, or isn't under the caller's lease.
            ResultTooLarge: The result is too large. The job stays active.
        """
        if result is not MISSING and (size := jsontext.size_of(result)) > MAX_JOB_BYTES:
            raise ResultTooLarge("result", size=size, limit=MAX_JOB_BYTES)
        done = won_or(
            lambda: self._changes.ack(
                job_id,
                now_ms=self._clock.now_ms(),
                worker_id=worker_id,
                attempt=attempt,
                lease_token=lease_token,
                result=result,
                stopped=stopped,
            ),
            lambda lost: lost,
        )
        if not isinstance(done, LostRace):
            return done
        there = winner(done)
        if there is None:
            raise NotFound("job", job_id)
        check_token(there, lease_token)
        owned = there.lease is not None and _owns_lease(there, worker_id, attempt, lease_token)
        # The write stores no result of a job with `result_ttl` 0.
        dropped = owned and there.result_ttl_s == 0 and result is not MISSING
        if dropped or self._resumed(there, worker_id, attempt, lease_token):
            return self.ack(
                job_id,
                worker_id=worker_id,
                attempt=attempt,
                lease_token=lease_token,
                result=MISSING if dropped else result,
                stopped=stopped,
            )
        if (
            there.state is State.COMPLETED
            and worker_id is not None
            and there.worker_id == worker_id
            and attempt in (None, there.attempt)
        ):
            (there,) = self._jobs.with_contents([there])
            return there
        raise self._refusal(there, Trigger.ACK, worker_id, attempt, lease_token)

    def nack(
        self,
        job_id: str,
        *,
        error: Mapping[str, Any] | None,
        worker_id: str | None = None,
        attempt: int | None = None,
        lease_token: str | None = None,
        requeue: bool = False,
        suspend: object = None,
        stopped: list[Job] | None = None,
    ) -> Job:
        """Retry, dead-letter, or discard a job whose attempt failed, as its retry policy specifies.

        An error with `rate_limit_until` pauses the key of the job's rate limit (ojs-rate-limiting,
        section 9.1).

        Args:
            job_id: ID of the job.
            error: The error, as reported.
            worker_id: See `ack`.
            attempt: See `ack`.
            lease_token: See `ack`.
            requeue: Whether the job returns to `available` immediately. The attempt does not
                count.
            suspend: Instead of an error: what the code of the job waits for, as sent.
            stopped: See `JobChanges.ack`.

        Returns:
            The job after the change.

        Raises:
            NotFound: The job doesn't exist.
            InvalidRequest: The error or the suspension is malformed, or the queue requires the
                lease token.
            Conflict: The job isn't active, or isn't under the caller's lease.
        """
        waits = None if suspend is None else self._suspensions().read(suspend)

        def end() -> Job:
            job = self._jobs.read_record(job_id)
            if job is None:
                raise NotFound("job", job_id)
            check_token(job, lease_token)
            if self._resumed(job, worker_id, attempt, lease_token):
                raise LostRace([])
            owned = job.lease is not None and _owns_lease(job, worker_id, attempt, lease_token)
            if job.state is not State.ACTIVE or not owned:
                ends = Trigger.FAIL if waits is None else Trigger.SUSPEND
                raise self._refusal(job, ends, worker_id, attempt, lease_token)
            now_ms = self._clock.now_ms()
            failure, told = None, error or {}
            if waits is not None:
                suspended = self._suspensions().apply(job, waits, stopped)
                if suspended is not None:
                    return suspended
                told = NO_PROGRESS
            if requeue:
                back = lifecycle.requeue(job, now_ms=now_ms, order=self._ids.order())
                after = self._placement.assign_position(back)
            else:
                failure = failures.reported(told, attempt=job.attempt, now_ms=now_ms)
                pause_ms = failures.limited_until(told, now_ms=now_ms)
                if pause_ms is not None:
                    # The key is paused before the job finishes, so that no other job of the key
                    # starts in between.
                    self._limits.pause(job, pause_ms, failure.message)
                after = lifecycle.fail(job, failure, now_ms=now_ms, chance=self._chance())
            stored = self._changes.replace(
                job, after, failure=failure, reported=True, guard="lease", stopped=stopped
            )
            if stored.copy_due:
                stored = replace(stored, copy_id=self._copies.follow(stored).copy_id)
            return stored if failure is None else replace(stored, errors=(failure,))

        return retry_on_race(end)

    def _resumed(
        self, job: Job, worker_id: str | None, attempt: int | None, lease_token: str | None
    ) -> bool:
        """Restore the expired lease of a worker, if no other worker has claimed the job in the
        meantime.
        """
        return self._changes.resume(
            job,
            worker_id=worker_id,
            attempt=attempt,
            lease_token=lease_token,
            now_ms=self._clock.now_ms(),
        )

    @staticmethod
    def _refusal(
        job: Job,
        trigger: Trigger,
        worker_id: str | None,
        attempt: int | None,
        lease_token: str | None,
    ) -> Conflict:
        """Return the error for a worker that can't finish this job."""
        try:
            states.check(job.state, trigger, job.id)
        except Conflict as conflict:
            return conflict
        return not_held(
            job, f"{trigger.replace('_', ' ')} the job", worker_id, attempt, lease_token
        )


def not_held(
    job: Job,
    what: str,
    worker_id: str | None,
    attempt: int | None = None,
    lease_token: str | None = None,
) -> Conflict:
    """Return the error for a worker that doesn't have the lease of an active job.

    Args:
        job: The job.
        what: What the worker can't do, for the message.
        worker_id: ID of the worker, or None.
        attempt: Attempt in the request, or None.
        lease_token: Lease token in the request, or None.
    """
    if worker_id is not None and job.worker_id not in (None, worker_id):
        reason, field = "another worker has its lease", "worker_id"
    elif attempt not in (None, job.attempt):
        reason, field = f"its current attempt is {job.attempt}", "attempt"
    elif lease_token is not None:
        reason, field = "its lease has a different token", "lease_token"
    else:
        reason, field = "it was changed by a concurrent request", "job_id"
    return Conflict(
        f"Can't {what}, because {reason}.",
        current_state=job.state,
        expected_states=[State.ACTIVE],
        details={"job_id": job.id, "field": field, "reason": reason},
    )


def check_token(job: Job, lease_token: str | None) -> None:
    """Reject a report without the lease token that the job's queue requires."""
    if job.fenced and lease_token is None:
        raise InvalidRequest(
            "lease_token",
            f"is required, because queue '{job.queue}' has require_lease_token. Send the "
            "lease_token of the job from the fetch response",
            details={"job_id": job.id, "queue": job.queue},
        )


def _owns_lease(
    job: Job, worker_id: str | None, attempt: int | None, lease_token: str | None
) -> bool:
    return (
        (worker_id is None or job.worker_id in (None, worker_id))
        and attempt in (None, job.attempt)
        and (lease_token is None or (job.lease is not None and job.lease.token == lease_token))
    )
