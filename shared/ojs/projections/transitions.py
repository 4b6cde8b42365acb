"""What happened to a job between two images of its head. Counters and events both follow from it.

    before → after              what happened
    nothing → available         enqueued
    nothing → scheduled         scheduled
    available → scheduled       scheduled
    waiting → available         enqueued
    available → active          started, or a heartbeat when a lost worker speaks up again
    active → active             heartbeat, when the lease ends later
    active → available          failed (the lease ran out), or nothing (handed back); enqueued
    active → completed          completed
    active → retryable          failed, retrying
    active → discarded          failed, discarded
    other → discarded           expired, when its deadline is over; discarded
    any other → cancelled       cancelled
    discarded → available       dead letter retried, or replayed if it says by what; enqueued
    dead letter → nothing       dead letter deleted, when it says that somebody does so; else pruned
    available → discarded       dropped and overflow, or dropped by its rate limit, when the error
                                says so; discarded

A job that enters dead letter was, besides, added to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from ojs.domain.job.job import Job
from ojs.domain.job.states import State


class TransitionKind(StrEnum):
    """The events of a job (ojs-events sections 3.1 and 3.2, dead-letter seed section 11.1,
    backpressure seed section 10.1, queue-config seed section 10.1, ojs-rate-limiting 11.1).
    """

    ENQUEUED = "job.enqueued"
    SCHEDULED = "job.scheduled"
    STARTED = "job.started"
    HEARTBEAT = "job.heartbeat"
    COMPLETED = "job.completed"
    FAILED = "job.failed"
    RETRYING = "job.retrying"
    DISCARDED = "job.discarded"
    EXPIRED = "job.expired"
    CANCELLED = "job.cancelled"
    DEAD_ADDED = "dead_letter.added"
    DEAD_RETRIED = "dead_letter.retried"
    DEAD_REPLAYED = "dead_letter.replayed"
    DEAD_DELETED = "dead_letter.deleted"
    # Told of with how many there were (`ojs.projections.dead_letters`).
    DEAD_PRUNED = "dead_letter.pruned"
    DROPPED = "backpressure.dropped"
    OVERFLOW = "queue.overflow"
    RATE_DROPPED = "rate_limit.dropped"


# The types of the errors of a job that made room for another, and of one that asked to be dropped
# when its rate limit is reached (`ojs.domain.job.lifecycle.drop`, `give_up`).
OVERFLOW_ERROR, RATE_ERROR = "overflow", "rate_limited"


@dataclass(frozen=True)
class Happened:
    """One thing that happened to a job. Times and lengths in ms.

    `length_ms` is how long the job had waited when it started, or had run when that ended.
    """

    kind: TransitionKind
    at_ms: int
    before: Job | None
    job: Job
    length_ms: int | None = None


def happened(before: Job | None, after: Job | None, *, written_ms: int) -> list[Happened]:
    """What happened, in order. `written_ms` is when the change was stored, to the second."""
    if after is None:
        if before is None or not before.dead_letter:
            return []
        kind = TransitionKind.DEAD_DELETED if before.deleting else TransitionKind.DEAD_PRUNED
        return [Happened(kind, written_ms, before, before)]
    return list(_steps(before, after, written_ms))


def replayed(before: Job, after: Job) -> bool:
    """Whether a rule, and nobody by hand, brought a dead letter back: each replay leaves another
    text.
    """
    return after.replayed is not None and after.replayed != before.replayed


def made_room(what: Happened) -> list[Happened]:
    """What more happened when a job was discarded for want of room: its error says so."""
    return [
        Happened(kind, what.at_ms, what.before, what.job)
        for kind in (TransitionKind.DROPPED, TransitionKind.OVERFLOW)
    ]


def gave_up(what: Happened) -> Happened:
    """What more happened when a job was discarded since its rate limit was reached."""
    return Happened(TransitionKind.RATE_DROPPED, what.at_ms, what.before, what.job)


def _steps(before: Job | None, after: Job, written_ms: int) -> Iterator[Happened]:
    if after.state is State.ACTIVE and before is not None:
        yield from _held(before, after)
    elif before is None or before.state is not after.state:
        match after.state:
            case State.AVAILABLE:
                yield from _available(before, after)
            case State.SCHEDULED:
                # A job that is put off does not tell since when.
                at_ms = after.created_ms if before is None else written_ms
                yield Happened(TransitionKind.SCHEDULED, at_ms, before, after)
            case State.COMPLETED:
                at_ms = after.completed_ms or after.created_ms
                yield Happened(
                    TransitionKind.COMPLETED, at_ms, before, after, _run_ms(after, at_ms)
                )
            case State.RETRYABLE:
                at_ms = (after.retry_at_ms or after.created_ms) - (after.retry_delay_ms or 0)
                yield Happened(TransitionKind.FAILED, at_ms, before, after, _run_ms(after, at_ms))
                yield Happened(TransitionKind.RETRYING, at_ms, before, after)
            case State.DISCARDED:
                yield from _discarded(before, after)
            case State.CANCELLED:
                at_ms = after.cancelled_ms or after.created_ms
                yield Happened(TransitionKind.CANCELLED, at_ms, before, after)
            case _:
                return


def _available(before: Job | None, after: Job) -> Iterator[Happened]:
    at_ms = after.enqueued_ms or after.created_ms
    # Handed back, the attempt does not count any more; after a lost lease it does.
    ran = before is not None and before.state is State.ACTIVE
    if before is not None and ran and after.attempt >= before.attempt:
        yield Happened(TransitionKind.FAILED, at_ms, before, after)
    if before is not None and before.dead_letter:
        kind = (
            TransitionKind.DEAD_REPLAYED if replayed(before, after) else TransitionKind.DEAD_RETRIED
        )
        yield Happened(kind, at_ms, before, after)
    yield Happened(TransitionKind.ENQUEUED, at_ms, before, after)


def _discarded(before: Job | None, after: Job) -> Iterator[Happened]:
    at_ms = after.discarded_ms or after.created_ms
    if before is not None and before.state is State.ACTIVE:
        yield Happened(TransitionKind.FAILED, at_ms, before, after, _run_ms(after, at_ms))
    elif before is not None and before.expires_ms is not None and before.expires_ms <= at_ms:
        yield Happened(TransitionKind.EXPIRED, at_ms, before, after)
    yield Happened(TransitionKind.DISCARDED, at_ms, before, after)
    if after.dead_letter:
        yield Happened(TransitionKind.DEAD_ADDED, at_ms, before, after)


def _held(before: Job, after: Job) -> Iterator[Happened]:
    """A job that is with a worker: since now, again, or for longer."""
    if before.state is not State.ACTIVE and after.attempt > before.attempt:
        at_ms = after.started_ms or after.created_ms
        waited_ms = max(0, at_ms - (after.enqueued_ms or after.created_ms))
        yield Happened(TransitionKind.STARTED, at_ms, before, after, waited_ms)
        return
    lease = after.lease
    if lease is None:
        return
    if before.lease is None or before.lease.until_ms < lease.until_ms:
        at_ms = max(lease.until_ms - lease.length_ms, after.started_ms or 0)
        yield Happened(TransitionKind.HEARTBEAT, at_ms, before, after)


def _run_ms(job: Job, end_ms: int) -> int:
    """How long an attempt ran. Two containers' clocks may differ: never less than nothing."""
    return 0 if job.started_ms is None else max(0, end_ms - job.started_ms)
