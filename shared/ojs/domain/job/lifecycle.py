"""State transitions: one pure function for each trigger, checked against `states.TRANSITIONS`.

Requests, time transitions and sweeps all call these functions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from ojs.domain.errors import Conflict, any_of
from ojs.domain.ids import derived_uuid7
from ojs.domain.job import failure as failures
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import DEFAULT_VISIBILITY_MS, Job, Lease, expired
from ojs.domain.job.retry import OnExhaustion
from ojs.domain.job.states import WAITING, State, Trigger, check


def claim(job: Job, *, token: str, now_ms: int, lease_ms: int, worker_id: str | None) -> Job:
    """Available to active: begins an attempt with a new lease of `lease_ms`."""
    check(job.state, Trigger.CLAIM, job.id)
    return replace(
        job,
        state=State.ACTIVE,
        attempt=job.attempt + 1,
        started_ms=now_ms,
        lease=Lease(token, now_ms + lease_ms, lease_ms, worker_id),
        worker_id=worker_id,
        batch=None,
        stalled=None,
        retry_at_ms=None,
    )


def complete(job: Job, *, now_ms: int) -> Job:
    """Active to completed. The worker's id is kept."""
    check(job.state, Trigger.ACK, job.id)
    return replace(
        job,
        state=State.COMPLETED,
        completed_ms=now_ms,
        lease=None,
        expires_ms=None,
        ttl_s=now_ms // 1000 + job.retention.completed_s,
    )


def fail(job: Job, failure: Failure, *, now_ms: int, chance: float) -> Job:
    """Active to retryable or discarded, by the error's code, the error and the retry policy.

    `chance` is a random number in [0, 1) for jitter.
    """
    check(job.state, Trigger.FAIL, job.id)
    return _after_failure(job, failure, now_ms=now_ms, chance=chance)


def time_out(job: Job, *, now_ms: int, chance: float) -> tuple[Job, Failure]:
    """The attempt ran longer than its timeout: it fails with the type `timeout`."""
    check(job.state, Trigger.TIME_OUT, job.id)
    failure = _observed(
        job, "timeout", f"The job ran longer than its timeout of {job.timeout_ms} ms.", now_ms
    )
    return _after_failure(job, failure, now_ms=now_ms, chance=chance), failure


def stall(job: Job, *, now_ms: int, order: str) -> tuple[Job, Failure]:
    """The lease ended: available again at once, or discarded after the last attempt."""
    check(job.state, Trigger.STALL, job.id)
    failure = _observed(
        job,
        "visibility_timeout",
        "The worker neither finished the job nor extended its lease in time.",
        now_ms,
    )
    if job.attempt < job.max_attempts:
        back = _available(job, now_ms=now_ms, order=order)
        return replace(back, stalled=job.lease.token if job.lease else None), failure
    return _exhausted(job, failure, now_ms=now_ms), failure


def resumable(
    job: Job, *, worker_id: str | None, attempt: int | None = None, lease_token: str | None = None
) -> bool:
    """Whether a worker whose lease ended may still report on the job.

    It may until the job is claimed again, and it must be the worker that had the lease: by its id,
    or by the lease's token.
    """
    return (
        job.state is State.AVAILABLE
        and job.stalled is not None
        and (job.worker_id == worker_id or lease_token == job.stalled)
        and attempt in (None, job.attempt)
        and lease_token in (None, job.stalled)
    )


def resume(job: Job, *, now_ms: int, lease_ms: int | None = None) -> Job:
    """Available to active again, for the worker whose lease ended: the same attempt continues."""
    check(job.state, Trigger.RESUME, job.id)
    length_ms = lease_ms or job.visibility_ms or DEFAULT_VISIBILITY_MS
    return replace(
        job,
        state=State.ACTIVE,
        lease=Lease(job.stalled or "", now_ms + length_ms, length_ms, job.worker_id),
        stalled=None,
        order=None,
        batch=None,
    )


def requeue(job: Job, *, now_ms: int, order: str) -> Job:
    """A worker gives the job back unprocessed: available at once; the attempt does not count."""
    check(job.state, Trigger.REQUEUE, job.id)
    back = _available(job, now_ms=now_ms, order=order)
    return replace(back, attempt=max(0, job.attempt - 1))


def promote(job: Job, *, now_ms: int, order: str) -> Job:
    """Scheduled or retryable to available, when it is due."""
    check(job.state, Trigger.DUE, job.id)
    return _available(job, now_ms=now_ms, order=order)


def activate(job: Job, *, now_ms: int, order: str) -> Job:
    """Pending to available, at a client's request."""
    check(job.state, Trigger.ACTIVATE, job.id)
    ready = replace(_available(job, now_ms=now_ms, order=order), activated_ms=now_ms)
    return replace(ready, previous_state=job.state)


def hasten(job: Job, *, now_ms: int, order: str) -> Job:
    """Scheduled or retryable to available before it is due, at an operator's request."""
    return replace(promote(job, now_ms=now_ms, order=order), previous_state=job.state)


def reprioritize(job: Job, *, priority: int, order: str) -> Job:
    """Another priority for a job that waits. In line it gets another position, so that a fetch that
    sees the old index entry cannot claim it; among equals its arrival still counts.
    """
    check_waiting(job)
    if job.state is State.AVAILABLE and job.share is not None:
        # Its tenant's tag is of the line of the old priority: it gets one in the new line.
        return replace(job, priority=priority, order=order, batch=None)
    return replace(job, priority=priority, batch=None)


def check_waiting(job: Job) -> None:
    """Raise Conflict unless the job waits: then its place in line can be changed."""
    if job.state not in WAITING:
        raise Conflict(
            f"Can't change the priority or queue of a job in state '{job.state}'. "
            f"The state must be {any_of(sorted(WAITING))}.",
            current_state=job.state,
            expected_states=sorted(WAITING),
            details={"job_id": job.id},
        )


def cancel(job: Job, *, now_ms: int) -> Job:
    """Any state that is not terminal to cancelled. `completed_at` stays unset."""
    check(job.state, Trigger.CANCEL, job.id)
    return replace(
        job,
        state=State.CANCELLED,
        cancelled_ms=now_ms,
        lease=None,
        stalled=None,
        expires_ms=None,
        order=None,
        retry_at_ms=None,
        batch=None,
        previous_state=job.state,
        ttl_s=now_ms // 1000 + job.retention.cancelled_s,
    )


def expire(job: Job, *, now_ms: int) -> tuple[Job, Failure]:
    """Not started before `expires_at`: discarded, without `completed_at`."""
    check(job.state, Trigger.EXPIRE, job.id)
    failure = _observed(
        job, "expired", "The job was not started before its deadline (expires_at).", now_ms
    )
    return _discarded(job, now_ms=now_ms, dead_letter=False), failure


def drop(job: Job, *, now_ms: int) -> tuple[Job, Failure]:
    """Discarded to make room for a new job in a bounded queue."""
    check(job.state, Trigger.DROP, job.id)
    return _dropped(job, now_ms), _observed(
        job,
        "overflow",
        "The queue was at capacity. The overflow policy drop_oldest discarded its oldest job.",
        now_ms,
    )


def withdraw(job: Job, *, now_ms: int) -> tuple[Job, Failure]:
    """Discarded because its queue was deleted."""
    check(job.state, Trigger.WITHDRAW, job.id)
    return _dropped(job, now_ms), _observed(
        job, "queue_deleted", f"Queue '{job.queue}' was deleted.", now_ms
    )


def move(
    job: Job,
    *,
    queue: str,
    lane: int,
    order: str,
    reserved_bytes: int | None,
    reserved_in: int | None,
) -> Job:
    """To another queue, in the same state.

    It gets a new position, so that a fetch that sees the old index entry cannot claim the job.
    """
    order_there = order if job.state is State.AVAILABLE else None
    return replace(
        job,
        queue=queue,
        lane=lane,
        order=order_there,
        reserved_bytes=reserved_bytes,
        reserved_in=reserved_in,
        batch=None,
    )


def postpone(job: Job, *, until_ms: int) -> Job:
    """Its rate limit is reached: rescheduled, as the job asks (ojs-rate-limiting, 6.2)."""
    check(job.state, Trigger.POSTPONE, job.id)
    return replace(
        job,
        state=State.SCHEDULED,
        scheduled_ms=until_ms,
        order=None,
        stalled=None,
        batch=None,
    )


def give_up(job: Job, *, now_ms: int) -> tuple[Job, Failure]:
    """Its rate limit is reached: discarded, as the job asks (ojs-rate-limiting, section 6.2)."""
    check(job.state, Trigger.DROP, job.id)
    key = job.limit.key_in(job.queue) if job.limit else ""
    return _dropped(job, now_ms), _observed(
        job,
        "rate_limited",
        f"The rate limit '{key}' was exceeded. The job has on_limit drop.",
        now_ms,
    )


def revive(job: Job, *, now_ms: int, order: str) -> Job:
    """From dead letter to available: attempts start anew; id and error history are kept."""
    check(job.state, Trigger.REVIVE, job.id)
    fresh = replace(
        job,
        attempt=0,
        life=job.life + 1,
        started_ms=None,
        completed_ms=None,
        discarded_ms=None,
        dead_letter=False,
        error_type=None,
        deleting=False,
        copy_id=None,
        copy_due=False,
        worker_id=None,
        retry_delay_ms=None,
        expires_ms=None,
        reserved_bytes=None,
        reserved_in=None,
        ttl_s=None,
    )
    return _available(fresh, now_ms=now_ms, order=order)


def by_time(job: Job, *, now_ms: int, order: str, chance: float) -> tuple[Job, Failure | None]:
    """Apply one due time transition. Returns the same job when none is due.

    A retryable job past its deadline is promoted or expired, never both.
    """
    match job.state:
        case State.SCHEDULED | State.RETRYABLE | State.AVAILABLE | State.PENDING:
            if expired(job, now_ms):
                return expire(job, now_ms=now_ms)
            if job.state in (State.SCHEDULED, State.RETRYABLE) and job.due_ms <= now_ms:
                return promote(job, now_ms=now_ms, order=order), None
        case State.ACTIVE if job.lease is not None and job.due_ms <= now_ms:
            # If lease and timeout end together the lease counts: a live worker would have extended
            # it.
            if job.lease.until_ms <= (job.timeout_at_ms or 0):
                return stall(job, now_ms=now_ms, order=order)
            return time_out(job, now_ms=now_ms, chance=chance)
        case _:
            pass
    return job, None


def _after_failure(job: Job, failure: Failure, *, now_ms: int, chance: float) -> Job:
    if failure.code == failures.CODE_DISCARD:
        return _finally(job, failure, now_ms=now_ms, dead_letter=False)
    if failure.code == failures.CODE_DEAD_LETTER:
        return _finally(job, failure, now_ms=now_ms, dead_letter=True)
    final = not failure.retryable or job.policy.gives_up_on(failure.names)
    if final or job.attempt >= job.max_attempts:
        return _exhausted(job, failure, now_ms=now_ms)
    delay_ms = job.policy.delay_ms(job.attempt, chance)
    return replace(
        job,
        state=State.RETRYABLE,
        lease=None,
        retry_delay_ms=delay_ms,
        retry_at_ms=now_ms + delay_ms,
    )


def _observed(job: Job, kind: str, message: str, now_ms: int) -> Failure:
    return failures.observed(kind, message, attempt=job.attempt, now_ms=now_ms)


def _dropped(job: Job, now_ms: int) -> Job:
    """Discarded without having run; whether its batch is committed no longer matters."""
    return replace(_discarded(job, now_ms=now_ms, dead_letter=False), batch=None)


def _available(job: Job, *, now_ms: int, order: str) -> Job:
    return replace(
        job,
        state=State.AVAILABLE,
        enqueued_ms=now_ms,
        order=order,
        lease=None,
        stalled=None,
        retry_at_ms=None,
    )


def _exhausted(job: Job, failure: Failure, *, now_ms: int) -> Job:
    match job.policy.on_exhaustion:
        case OnExhaustion.DEAD_LETTER:
            return _finally(job, failure, now_ms=now_ms, dead_letter=True)
        case OnExhaustion.DISCARD:
            return _finally(job, failure, now_ms=now_ms, dead_letter=False)
        case _:
            assert_never(job.policy.on_exhaustion)


def _finally(job: Job, failure: Failure, *, now_ms: int, dead_letter: bool) -> Job:
    # A job that ran has `completed_at`, too.
    gone = replace(_discarded(job, now_ms=now_ms, dead_letter=dead_letter), completed_ms=now_ms)
    # Dead letters are searched and counted by their error type.
    return replace(gone, error_type=failures.kept_type(failure.type)) if dead_letter else gone


def _discarded(job: Job, *, now_ms: int, dead_letter: bool) -> Job:
    copy_id = _copy_id(job, now_ms) if dead_letter else None
    return replace(
        job,
        state=State.DISCARDED,
        discarded_ms=now_ms,
        dead_letter=dead_letter,
        copy_id=copy_id,
        copy_due=copy_id is not None,
        lease=None,
        stalled=None,
        order=None,
        retry_at_ms=None,
        expires_ms=None,
        # Dead letters are pruned by a sweep, which records an event, and not by the table's TTL.
        ttl_s=None if dead_letter else now_ms // 1000 + job.retention.discarded_s,
    )


def _copy_id(job: Job, now_ms: int) -> str | None:
    """The id of the copy of a job that becomes a dead letter: the same each time it is computed."""
    # A job may have been moved to the queue that copies go to.
    if job.copies_to is None or job.copies_to.queue == job.queue:
        return None
    return derived_uuid7(now_ms, f"{job.id}|{job.life}|{job.attempt}")
