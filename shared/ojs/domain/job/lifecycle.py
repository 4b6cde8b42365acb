"""State transitions: one pure function per trigger, checked against `states.TRANSITIONS`.

Requests, time transitions and sweeps all call these functions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from ojs.domain.errors import Conflict, any_of
from ojs.domain.ids import derived_uuid7
from ojs.domain.job import failure as failures
from ojs.domain.job.durable import Durable, Suspension
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import DEFAULT_VISIBILITY_MS, Job, Lease, expired
from ojs.domain.job.retry import MAX_ATTEMPTS, OnExhaustion
from ojs.domain.job.states import WAITING, State, Trigger, check


def claim(job: Job, *, token: str, now_ms: int, lease_ms: int, worker_id: str | None) -> Job:
    """Start an attempt with a new lease: `available` to `active`.

    Args:
        job: The job.
        token: Token of the lease.
        now_ms: Current time in milliseconds since the epoch.
        lease_ms: Duration of the lease in milliseconds.
        worker_id: ID of the worker, or None.

    Raises:
        Conflict: The job is not `available`.
    """
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
    """Complete a job: `active` to `completed`. The worker ID is kept."""
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
    """Process a reported failure: `active` to `retryable` or `discarded`.

    The error code, `retryable`, and the retry policy determine the new state.

    Args:
        job: The job.
        failure: Failure of the attempt.
        now_ms: Current time in milliseconds since the epoch.
        chance: Random number in [0, 1) for the jitter of the retry delay.

    Raises:
        Conflict: The job is not `active`.
    """
    check(job.state, Trigger.FAIL, job.id)
    return _after_failure(job, failure, now_ms=now_ms, chance=chance)


def time_out(job: Job, *, now_ms: int, chance: float) -> tuple[Job, Failure]:
    """Fail an attempt that exceeded its timeout, with the error type `timeout`.

    Args:
        job: The job.
        now_ms: Current time in milliseconds since the epoch.
        chance: Random number in [0, 1) for the jitter of the retry delay.

    Returns:
        The job and its failure.

    Raises:
        Conflict: The job is not `active`.
    """
    check(job.state, Trigger.TIME_OUT, job.id)
    failure = _observed(
        job, "timeout", f"The job ran longer than its timeout of {job.timeout_ms} ms.", now_ms
    )
    return _after_failure(job, failure, now_ms=now_ms, chance=chance), failure


def stall(job: Job, *, now_ms: int, order: str) -> tuple[Job, Failure]:
    """Process an expired lease: `active` to `available`, or `discarded` after the last attempt.

    Args:
        job: The job.
        now_ms: Current time in milliseconds since the epoch.
        order: New order key, used if the job returns to `available`.

    Returns:
        The job and its failure, with the error type `visibility_timeout`.

    Raises:
        Conflict: The job is not `active`.
    """
    check(job.state, Trigger.STALL, job.id)
    failure = _observed(
        job,
        "visibility_timeout",
        "The worker neither finished the job nor extended its lease in time.",
        now_ms,
    )
    if job.counted_attempts < job.max_attempts and job.attempt < MAX_ATTEMPTS:
        back = _available(job, now_ms=now_ms, order=order)
        return replace(back, stalled=job.lease.token if job.lease else None), failure
    return _exhausted(job, failure, now_ms=now_ms), failure


def resumable(
    job: Job, *, worker_id: str | None, attempt: int | None = None, lease_token: str | None = None
) -> bool:
    """Return whether a worker can still report on a job after its lease expired.

    That is possible until the job is claimed again. The worker ID or the lease token must match the
    expired lease.

    Args:
        job: The job.
        worker_id: ID of the worker, or None.
        attempt: Attempt in the report. Default: not checked.
        lease_token: Lease token in the report. Default: not checked.
    """
    return (
        job.state is State.AVAILABLE
        and job.stalled is not None
        and (job.worker_id == worker_id or lease_token == job.stalled)
        and attempt in (None, job.attempt)
        and lease_token in (None, job.stalled)
    )


def resume(job: Job, *, now_ms: int, lease_ms: int | None = None) -> Job:
    """Continue an attempt after its lease expired: `available` to `active`.

    Args:
        job: The job.
        now_ms: Current time in milliseconds since the epoch.
        lease_ms: Duration of the new lease in milliseconds. Default: the visibility timeout of the
            job.

    Raises:
        Conflict: The job is not `available`.
    """
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
    """Release an unprocessed job: `active` to `available`. The attempt is not counted.

    Args:
        job: The job.
        now_ms: Current time in milliseconds since the epoch.
        order: New order key.

    Raises:
        Conflict: The job is not `active`.
    """
    check(job.state, Trigger.REQUEUE, job.id)
    back = _available(job, now_ms=now_ms, order=order)
    return replace(back, attempt=max(0, job.attempt - 1))


def suspend(job: Job, waits: Suspension, *, now_ms: int, order: str) -> Job:
    """Release a job whose code waits: `active` to `scheduled`. The attempt is not counted.

    If the wait has ended, the job is `available`. Its deadline to start no longer has an effect.

    Args:
        job: The job.
        waits: The waits of its code.
        now_ms: Current time in milliseconds since the epoch.
        order: New order key, used if the job is available.

    Raises:
        Conflict: The job is not `active`.
    """
    check(job.state, Trigger.SUSPEND, job.id)
    saves = job.durable.saves + 1
    stopped = saves if waits.stops else job.durable.stopped
    durable = replace(job.durable, saves=saves, stopped=stopped)
    back = replace(
        _available(job, now_ms=now_ms, order=order),
        attempt=max(0, job.attempt - 1),
        expires_ms=None,
        durable=durable,
    )
    if waits.until_ms <= now_ms:
        return back
    return replace(
        back,
        state=State.SCHEDULED,
        scheduled_ms=waits.until_ms,
        order=None,
        durable=replace(durable, waits=waits),
    )


def _awake(job: Job) -> Durable:
    """Return the durable part of a job that no longer waits."""
    return job.durable if job.durable.waits is None else replace(job.durable, waits=None)


def promote(job: Job, *, now_ms: int, order: str) -> Job:
    """Make a due job available: `scheduled` or `retryable` to `available`.

    Args:
        job: The job.
        now_ms: Current time in milliseconds since the epoch.
        order: New order key.

    Raises:
        Conflict: The job is in another state.
    """
    check(job.state, Trigger.DUE, job.id)
    return _available(job, now_ms=now_ms, order=order)


def activate(job: Job, *, now_ms: int, order: str) -> Job:
    """Activate a job at a client's request: `pending` to `available`.

    Args:
        job: The job.
        now_ms: Current time in milliseconds since the epoch.
        order: New order key.

    Raises:
        Conflict: The job is not `pending`.
    """
    check(job.state, Trigger.ACTIVATE, job.id)
    ready = replace(_available(job, now_ms=now_ms, order=order), activated_ms=now_ms)
    return replace(ready, previous_state=job.state)


def hasten(job: Job, *, now_ms: int, order: str) -> Job:
    """Make a job available before it is due, at an operator's request.

    Args:
        job: The job, `scheduled` or `retryable`.
        now_ms: Current time in milliseconds since the epoch.
        order: New order key.

    Raises:
        Conflict: The job is in another state.
    """
    return replace(promote(job, now_ms=now_ms, order=order), previous_state=job.state)


def reprioritize(job: Job, *, priority: int, order: str) -> Job:
    """Change the priority of a job that is not active or final.

    An available job gets a new index entry, so a fetch that read the old one can't claim the job.
    Among jobs of equal priority, the order of arrival is kept.

    Args:
        job: The job.
        priority: New priority.
        order: New order key, used if the job is available and has a tenant's share.

    Raises:
        Conflict: The job is active or in a final state.
    """
    check_waiting(job)
    if job.state is State.AVAILABLE and job.share is not None:
        # The tenant tag in its order key belongs to the old priority, so it needs a new order key.
        return replace(job, priority=priority, order=order, batch=None)
    return replace(job, priority=priority, batch=None)


def check_waiting(job: Job) -> None:
    """Raise Conflict if the job is active or final: its priority and queue can't be changed."""
    if job.state not in WAITING:
        raise Conflict(
            f"Can't change the priority or queue of a job in state '{job.state}'. "
            f"The state must be {any_of(sorted(WAITING))}.",
            current_state=job.state,
            expected_states=sorted(WAITING),
            details={"job_id": job.id},
        )


def cancel(job: Job, *, now_ms: int) -> Job:
    """Cancel a job: any state that is not final to `cancelled`. `completed_at` stays unset."""
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
        durable=_awake(job),
        ttl_s=now_ms // 1000 + job.retention.cancelled_s,
    )


def expire(job: Job, *, now_ms: int) -> tuple[Job, Failure]:
    """Discard a job that was not started before `expires_at`. `completed_at` stays unset."""
    check(job.state, Trigger.EXPIRE, job.id)
    failure = _observed(
        job, "expired", "The job was not started before its deadline (expires_at).", now_ms
    )
    return _discarded(job, now_ms=now_ms, dead_letter=False), failure


def drop(job: Job, *, now_ms: int) -> tuple[Job, Failure]:
    """Discard a job to free capacity for a new job in a queue with a size limit."""
    check(job.state, Trigger.DROP, job.id)
    return _dropped(job, now_ms), _observed(
        job,
        "overflow",
        "The queue was at capacity. The overflow policy drop_oldest discarded its oldest job.",
        now_ms,
    )


def withdraw(job: Job, *, now_ms: int) -> tuple[Job, Failure]:
    """Discard a job because its queue was deleted."""
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
    """Move a job to another queue, without a state change.

    An available job gets a new index entry, so a fetch that read the old one can't claim the job.

    Args:
        job: The job.
        queue: Name of the target queue.
        lane: Lane of the target queue.
        order: New order key, used if the job is available.
        reserved_bytes: Bytes reserved in the target queue, or None if it has no size limit.
        reserved_in: Period of that reservation, or None.
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
    """Reschedule a job because its rate limit is reached (ojs-rate-limiting, 6.2)."""
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
    """Discard a job because its rate limit is reached (ojs-rate-limiting, section 6.2)."""
    check(job.state, Trigger.DROP, job.id)
    key = job.limit.key_in(job.queue) if job.limit else ""
    return _dropped(job, now_ms), _observed(
        job,
        "rate_limited",
        f"The rate limit '{key}' was exceeded. The job has on_limit drop.",
        now_ms,
    )


def revive(
    job: Job,
    *,
    now_ms: int,
    order: str,
    clears_steps: bool = False,
    clears_checkpoint: bool = False,
) -> Job:
    """Retry a dead letter: `discarded` to `available`.

    The attempts are reset to 0. The ID and the error history are kept.

    Args:
        job: The dead letter.
        now_ms: Current time in milliseconds since the epoch.
        order: New order key.
        clears_steps: Whether its code runs from the beginning, without the outcomes of its steps.
        clears_checkpoint: Whether it has no checkpoint.

    Raises:
        Conflict: The job is not `discarded`.
    """
    check(job.state, Trigger.REVIVE, job.id)
    durable = job.durable
    if durable.forgiven:
        durable = replace(durable, forgiven=0)
    if clears_steps:
        durable = Durable(
            durable.checkpoints,
            durable.cleared,
            epoch=durable.epoch + 1,
            parent=durable.parent,
        )
    if clears_checkpoint and durable.resumable:
        durable = replace(durable, cleared=durable.checkpoints)
    fresh = replace(
        job,
        durable=durable,
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
    """Apply the transition that is due, if any: start, retry, expiry, lease, or timeout.

    A retryable job after its deadline is either promoted or expired, never both.

    Args:
        job: The job.
        now_ms: Current time in milliseconds since the epoch.
        order: New order key, used if the job becomes available.
        chance: Random number in [0, 1) for the jitter of the retry delay.

    Returns:
        The job, unchanged if no transition is due, and its failure or None.
    """
    match job.state:
        case State.SCHEDULED | State.RETRYABLE | State.AVAILABLE | State.PENDING:
            if expired(job, now_ms):
                return expire(job, now_ms=now_ms)
            if job.state in (State.SCHEDULED, State.RETRYABLE) and job.due_ms <= now_ms:
                return promote(job, now_ms=now_ms, order=order), None
        case State.ACTIVE if job.lease is not None and job.due_ms <= now_ms:
            # If lease and timeout end at the same time, the lease takes precedence: a healthy
            # worker would have renewed it.
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
    if final or job.counted_attempts >= job.max_attempts or job.attempt >= MAX_ATTEMPTS:
        return _exhausted(job, failure, now_ms=now_ms)
    delay_ms = job.policy.delay_ms(job.counted_attempts, chance)
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
    """Return the job as discarded before it ran. The state of its batch no longer matters."""
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
        durable=_awake(job),
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
    # A discarded job that ran also has `completed_at`.
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
        durable=_awake(job),
        # A sweep prunes dead letters and records an event. The table's TTL doesn't delete them.
        ttl_s=None if dead_letter else now_ms // 1000 + job.retention.discarded_s,
    )


def _copy_id(job: Job, now_ms: int) -> str | None:
    """Derive the ID of the copy of a new dead letter. The same arguments give the same ID."""
    # The job might have been moved to the target queue of its copies.
    if job.copies_to is None or job.copies_to.queue == job.queue:
        return None
    return derived_uuid7(now_ms, f"{job.id}|{job.life}|{job.attempt}")
