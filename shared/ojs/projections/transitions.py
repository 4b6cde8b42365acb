"""Derives the events of a job from two images of its record, for counters and the event log.

    before → after              events
    nothing → available         enqueued
    nothing → scheduled         scheduled
    available → scheduled       scheduled
    waiting → available         enqueued
    available → active          started, or a heartbeat if its lost worker returns
    waiting → active            enqueued, started: a fetch claimed it directly when it was due
    active → active             heartbeat, if the lease ends later
    active → available          failed (the lease expired), or none (released); enqueued
    active → completed          completed
    active → retryable          failed, retrying
    active → discarded          failed, discarded
    other → discarded           expired, if its deadline has passed; discarded
    any other → cancelled       cancelled
    active, next checkpoint     checkpointed
    active → waiting on its own suspended, then scheduled or enqueued
    an outcome from outside     signalled
    discarded → available       dead letter retried, or replayed if a rule did it; enqueued
    dead letter → nothing       dead letter deleted if that was requested, otherwise pruned
    available → discarded       dropped and overflow, or dropped by its rate limit, if that is the
                                stored error; discarded

A job that becomes a dead letter also has the event that it was added.
"""

from __future__ import annotations

from collections.abc import Iterator

from ojs.domain.events.types import EventType
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.records import record


@record(frozen=True)
class JobEvent:
    """One event of a job. Times and durations are in milliseconds.

    `length_ms` is how long the job was available before it started, or how long its attempt ran.
    """

    kind: EventType
    at_ms: int
    before: Job | None
    job: Job
    length_ms: int | None = None


def happened(before: Job | None, after: Job | None, *, written_ms: int) -> list[JobEvent]:
    """Return the events of a change of a job, in order.

    Args:
        before: The job before the change, or None if it is new.
        after: The job after the change, or None if its record was removed.
        written_ms: Time of the write, to the second.
    """
    if after is None:
        if before is None or not before.dead_letter:
            return []
        kind = EventType.DEAD_LETTER_DELETED if before.deleting else EventType.DEAD_LETTER_PRUNED
        return [JobEvent(kind, written_ms, before, before)]
    return list(_steps(before, after, written_ms))


def replayed(before: Job, after: Job) -> bool:
    """Return whether a replay rule retried a dead letter.

    Each replay changes the field `replayed`.
    """
    return after.replayed is not None and after.replayed != before.replayed


def _steps(before: Job | None, after: Job, written_ms: int) -> Iterator[JobEvent]:
    if before is not None and after.durable is not before.durable:
        yield from _durable(before, after, written_ms)
    if after.state is State.ACTIVE and before is not None:
        yield from _active(before, after)
    elif before is None or before.state is not after.state:
        match after.state:
            case State.AVAILABLE:
                yield from _available(before, after)
            case State.SCHEDULED:
                yield JobEvent(
                    EventType.JOB_SCHEDULED, _scheduled_ms(before, after, written_ms), before, after
                )
            case State.COMPLETED:
                at_ms = after.completed_ms or after.created_ms
                yield JobEvent(EventType.JOB_COMPLETED, at_ms, before, after, _run_ms(after, at_ms))
            case State.RETRYABLE:
                at_ms = (after.retry_at_ms or after.created_ms) - (after.retry_delay_ms or 0)
                yield JobEvent(EventType.JOB_FAILED, at_ms, before, after, _run_ms(after, at_ms))
                yield JobEvent(EventType.JOB_RETRYING, at_ms, before, after)
            case State.DISCARDED:
                yield from _discarded(before, after)
            case State.CANCELLED:
                at_ms = after.cancelled_ms or after.created_ms
                yield JobEvent(EventType.JOB_CANCELLED, at_ms, before, after)
            case _:
                return


def _scheduled_ms(before: Job | None, after: Job, written_ms: int) -> int:
    """Return the time of the change, in milliseconds since the epoch."""
    if before is None:
        return after.created_ms
    # The record of a postponed job doesn't contain the time of that change.
    return _suspended_ms(after, written_ms) if before.state is State.ACTIVE else written_ms


def _suspended_ms(after: Job, written_ms: int) -> int:
    return after.enqueued_ms or written_ms


def _durable(before: Job, after: Job, written_ms: int) -> Iterator[JobEvent]:
    """Yield the events of durable code."""
    was, now = before.durable, after.durable
    if now.checkpoints > was.checkpoints:
        yield JobEvent(EventType.JOB_CHECKPOINTED, written_ms, before, after)
    saved = now.saves > was.saves
    if before.state is State.ACTIVE and after.state is not State.ACTIVE and saved:
        yield JobEvent(EventType.JOB_SUSPENDED, _suspended_ms(after, written_ms), before, after)
    if now.signals > was.signals or (saved and was.waits is not None):
        yield JobEvent(EventType.JOB_SIGNALLED, written_ms, before, after)


def _available(before: Job | None, after: Job) -> Iterator[JobEvent]:
    at_ms = after.enqueued_ms or after.created_ms
    # The attempt of a released job doesn't count. The attempt of an expired lease counts.
    ran = before is not None and before.state is State.ACTIVE
    if before is not None and ran and after.attempt >= before.attempt:
        yield JobEvent(EventType.JOB_FAILED, at_ms, before, after)
    if before is not None and before.dead_letter:
        kind = (
            EventType.DEAD_LETTER_REPLAYED
            if replayed(before, after)
            else EventType.DEAD_LETTER_RETRIED
        )
        yield JobEvent(kind, at_ms, before, after)
    yield JobEvent(EventType.JOB_ENQUEUED, at_ms, before, after)


def _discarded(before: Job | None, after: Job) -> Iterator[JobEvent]:
    at_ms = after.discarded_ms or after.created_ms
    if before is not None and before.state is State.ACTIVE:
        yield JobEvent(EventType.JOB_FAILED, at_ms, before, after, _run_ms(after, at_ms))
    elif before is not None and before.expires_ms is not None and before.expires_ms <= at_ms:
        yield JobEvent(EventType.JOB_EXPIRED, at_ms, before, after)
    yield JobEvent(EventType.JOB_DISCARDED, at_ms, before, after)
    if after.dead_letter:
        yield JobEvent(EventType.DEAD_LETTER_ADDED, at_ms, before, after)


def _active(before: Job, after: Job) -> Iterator[JobEvent]:
    """Yield the events of an active job: a start, a return of its worker, or a longer lease."""
    if before.state is not State.ACTIVE and after.attempt > before.attempt:
        at_ms = after.started_ms or after.created_ms
        if before.state is not State.AVAILABLE:
            yield JobEvent(EventType.JOB_ENQUEUED, after.enqueued_ms or at_ms, before, after)
        waited_ms = max(0, at_ms - (after.enqueued_ms or after.created_ms))
        yield JobEvent(EventType.JOB_STARTED, at_ms, before, after, waited_ms)
        return
    lease = after.lease
    if lease is None:
        return
    if before.lease is None or before.lease.until_ms < lease.until_ms:
        at_ms = max(lease.until_ms - lease.length_ms, after.started_ms or 0)
        yield JobEvent(EventType.JOB_HEARTBEAT, at_ms, before, after)


def _run_ms(job: Job, end_ms: int) -> int:
    """Return the duration of an attempt (ms).

    At least 0, because clocks of containers can differ.
    """
    return 0 if job.started_ms is None else max(0, end_ms - job.started_ms)
