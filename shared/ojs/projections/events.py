"""What happened, as events (ojs-events sections 3 and 4; dead-letter seed section 11.1;
queue-config and backpressure seeds, section 10.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ojs.domain import times
from ojs.domain.events import event as events
from ojs.domain.events.event import Event
from ojs.domain.job import failure as failures
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import MISSING, Job
from ojs.domain.job.states import State
from ojs.domain.pool.worker import Worker
from ojs.domain.queue.queue import Queue, QueueState
from ojs.projections.transitions import (
    OVERFLOW_ERROR,
    RATE_ERROR,
    Happened,
    TransitionKind,
    gave_up,
    made_room,
    replayed,
)
from ojs.store.derived.projection import ErrorKey, error_key

# Of an error an event tells so many characters: a page holds hundreds of events, a bus entry may
# have 256 KB. The job's own error history has all of it.
MAX_MESSAGE = 1_000
MAX_STACK = 2_000
# Failures the backend saw by itself.
_OBSERVED = frozenset({"visibility_timeout", "timeout"})
ANONYMOUS = "anonymous"
_DROPPED = frozenset({OVERFLOW_ERROR, RATE_ERROR})
_WITH_ERROR = frozenset(
    {
        TransitionKind.FAILED,
        TransitionKind.RETRYING,
        TransitionKind.DISCARDED,
        TransitionKind.DEAD_ADDED,
    }
)


def error_key_of(what: Happened) -> ErrorKey | None:
    """Where the error is that an event tells of; None when it needs none, or none was stored."""
    if what.kind not in _WITH_ERROR or what.before is None or _stalled(what):
        return None
    return error_key(what.before, what.job.attempt)


def explained(what: Iterable[Happened], errors: Mapping[ErrorKey, Failure]) -> Iterator[Happened]:
    """The same with what only the errors tell: which jobs were dropped, and why."""
    told = list(what)
    dropped = [(one, why) for one in told if (why := _why_dropped(one, errors)) is not None]
    # Its deadline may be over as well; that is not why it went.
    gone = {one.job.id for one, _ in dropped}
    yield from (
        one for one in told if one.kind is not TransitionKind.EXPIRED or one.job.id not in gone
    )
    for one, why in dropped:
        if why == OVERFLOW_ERROR:
            yield from made_room(one)
        else:
            yield gave_up(one)


def _why_dropped(what: Happened, errors: Mapping[ErrorKey, Failure]) -> str | None:
    """Why a job in line was discarded: for want of room, or since its rate limit was reached; None
    for any other reason.
    """
    key = error_key_of(what) if what.kind is TransitionKind.DISCARDED and not _ran(what) else None
    stored = errors.get(key) if key is not None else None
    return stored.type if stored is not None and stored.type in _DROPPED else None


def of_job(what: Happened, service: str, errors: Mapping[ErrorKey, Failure]) -> Event:
    """The event of something that happened to a job."""
    key = error_key_of(what)
    failure = _failure(what, errors.get(key) if key else None)
    job = what.job
    return Event(
        id=events.event_id(what.at_ms, job.id, job.op or "", what.kind.value),
        type=what.kind.value,
        source=_source(what, failure, service),
        time_ms=what.at_ms,
        subject=job.queue if what.kind is TransitionKind.OVERFLOW else job.id,
        data={"job_type": job.type, "queue": job.queue} | _data(what, failure),
    )


def _data(what: Happened, failure: Failure) -> dict[str, Any]:
    job, kind = what.job, what.kind
    if kind in _WITH_ERROR:
        return _failed(what, failure)
    match kind:
        case TransitionKind.ENQUEUED:
            return _enqueued(job)
        case TransitionKind.DROPPED | TransitionKind.OVERFLOW:
            return {"job_id": job.id}
        case TransitionKind.RATE_DROPPED:
            key = {"key": job.limit.key_in(job.queue)} if job.limit is not None else {}
            return {"job_id": job.id, **key}
        case TransitionKind.SCHEDULED:
            return {"scheduled_at": times.format_ms(job.scheduled_ms or 0)}
        case TransitionKind.STARTED:
            return {"worker_id": job.worker_id or ANONYMOUS, "attempt": job.attempt}
        case TransitionKind.HEARTBEAT:
            until_ms = job.lease.until_ms if job.lease else what.at_ms
            return {
                "worker_id": job.worker_id or ANONYMOUS,
                "attempt": job.attempt,
                "visible_until": times.format_ms(until_ms),
            }
        case TransitionKind.COMPLETED:
            result = {} if job.result is MISSING else {"result": job.result}
            return {"duration_ms": what.length_ms or 0, "attempt": job.attempt, **result}
        case TransitionKind.EXPIRED:
            ends_ms = what.before.expires_ms if what.before else None
            return {
                "created_at": times.format_ms(job.created_ms),
                "expired_at": times.format_ms(what.at_ms),
                "ttl_ms": max(0, (ends_ms or job.created_ms) - job.created_ms),
            }
        case _:
            return {}


def _failed(what: Happened, failure: Failure) -> dict[str, Any]:
    job = what.job
    match what.kind:
        case TransitionKind.FAILED:
            ran = {} if what.length_ms is None else {"duration_ms": what.length_ms}
            return {"attempt": job.attempt, "error": _error(failure, stack=True), **ran}
        case TransitionKind.RETRYING:
            return {
                "attempt": job.attempt,
                "max_attempts": job.max_attempts,
                "next_retry_at": times.format_ms(job.retry_at_ms or 0),
                "error": _error(failure),
            }
        case _:
            return {"total_attempts": job.attempt, "last_error": _error(failure)}


def _enqueued(job: Job) -> dict[str, Any]:
    data: dict[str, Any] = {"priority": job.priority}
    if job.scheduled_ms is not None:
        data["scheduled_at"] = times.format_ms(job.scheduled_ms)
    if job.unique_key is not None:
        data["unique_key"] = job.unique_key
    return data


def _stalled(what: Happened) -> bool:
    """Whether a lease ran out and the job goes on: the entry of it may be another's (nack)."""
    return (
        what.kind is TransitionKind.FAILED
        and not what.job.state.terminal
        and what.length_ms is None
    )


def _failure(what: Happened, stored: Failure | None) -> Failure:
    """The error as stored, or what is known of it without."""
    if stored is not None and stored.occurred_ms >= what.job.created_ms:
        return stored
    if _stalled(what):
        kind, message = "visibility_timeout", "The worker's lease ran out."
    else:
        kind, message = "unknown", "The error is not on record any more."
    return failures.observed(kind, message, attempt=what.job.attempt, now_ms=what.at_ms)


def _error(failure: Failure, *, stack: bool = False) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "code": failure.code,
        "type": failure.type,
        "message": failure.message[:MAX_MESSAGE],
        "retryable": failure.retryable,
    }
    if stack and failure.backtrace:
        shown["stack_trace"] = "\n".join(failure.backtrace)[:MAX_STACK]
    return shown


def _source(what: Happened, failure: Failure, service: str) -> str:
    """Who brought it about, as far as the head tells."""
    match what.kind:
        case TransitionKind.ENQUEUED:
            return _enqueuer(what, service)
        case TransitionKind.SCHEDULED | TransitionKind.EXPIRED | TransitionKind.DEAD_REPLAYED:
            return events.source(service, "scheduler")
        case TransitionKind.CANCELLED | TransitionKind.DEAD_RETRIED | TransitionKind.DEAD_DELETED:
            return events.source(service, "api")
        case TransitionKind.DROPPED | TransitionKind.OVERFLOW:
            return events.source(service, "queues", what.job.queue)
        case _ if what.kind in _WITH_ERROR and _observed(what, failure):
            return events.source(service, "scheduler")
        case _:
            return events.source(service, "workers", what.job.worker_id or ANONYMOUS)


def _observed(what: Happened, failure: Failure) -> bool:
    """Whether the backend, not a worker, brought a failure about."""
    return not _ran(what) or failure.code in _OBSERVED


def _ran(what: Happened) -> bool:
    return what.before is not None and what.before.state is State.ACTIVE


def _enqueuer(what: Happened, service: str) -> str:
    before = what.before
    if before is None and what.job.copy_of is not None:
        return events.source(service, "scheduler")
    if before is not None and before.dead_letter and replayed(before, what.job):
        return events.source(service, "scheduler")
    if before is None or before.state in (State.PENDING, State.DISCARDED):
        return events.source(service, "api")
    if before.state is State.ACTIVE and what.job.attempt < before.attempt:
        return events.source(service, "workers", before.worker_id or ANONYMOUS)
    return events.source(service, "scheduler")


def of_queue(
    before: Queue | None,
    after: Queue | None,
    service: str,
    *,
    identity: bytes,
    explicit: bool = False,
    written_ms: int = 0,
) -> Iterator[Event]:
    """Created by request, paused, resumed, configured, deleted.

    `identity` is the change's; `explicit` is whether somebody asked for the queue, and not just
    pushed to it.
    """
    queue = after or before
    if queue is None:
        return
    for kind, at_ms, told in _queue_news(before, after, explicit=explicit, written_ms=written_ms):
        yield Event(
            id=events.event_id(at_ms, queue.name, identity.hex(), kind),
            type=kind,
            source=events.source(service, "api"),
            time_ms=at_ms,
            subject=queue.name,
            data={"queue": queue.name, **told},
        )


def _queue_news(
    before: Queue | None, after: Queue | None, *, explicit: bool, written_ms: int
) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Types of events, when, and what they tell beside the queue."""
    if after is None:
        yield "queue.deleted", written_ms, {}
        return
    if before is None and explicit:
        yield "queue.created", after.created_ms, {}
    if before is not None and before.layers.own != after.layers.own:
        own = (before.layers.own, after.layers.own)
        names = sorted(name for name in {*own[0], *own[1]} if own[0].get(name) != own[1].get(name))
        yield "queue.config_updated", after.configured_ms or written_ms, {"changed": names}
    # A queue that is being deleted is neither; one whose deletion is taken back is as it was.
    was = QueueState.ACTIVE if before is None else before.state
    if (was, after.state) == (QueueState.ACTIVE, QueueState.PAUSED):
        yield "queue.paused", after.changed_ms or 0, {}
    elif (was, after.state) == (QueueState.PAUSED, QueueState.ACTIVE):
        yield "queue.resumed", after.changed_ms or 0, {}


def of_worker(
    before: Worker | None,
    after: Worker | None,
    service: str,
    *,
    identity: bytes,
    written_ms: int,
    pruned: bool,
) -> Iterator[Event]:
    """Started, going quiet, or stopped. A beat alone is none."""
    kind: str
    data: dict[str, Any]
    if after is None:
        if before is None:
            return
        worker, kind, at_ms = before, "worker.stopped", max(written_ms, before.last_seen_ms)
        # A worker that said nothing for a day was not shut down in order.
        data = {
            "reason": "error" if pruned else "shutdown",
            "uptime_ms": max(0, at_ms - before.first_seen_ms),
        }
    elif before is None or before.first_seen_ms != after.first_seen_ms:
        worker, kind, at_ms = after, "worker.started", after.first_seen_ms
        data = {
            "queues": list(after.info.get("queues") or ()),
            "concurrency": after.info.get("concurrency") or 1,
        }
    elif before.may_fetch and not after.may_fetch:
        heard = after.last_seen_ms != before.last_seen_ms
        worker, kind = after, "worker.quiet"
        at_ms = after.last_seen_ms if heard else max(written_ms, after.first_seen_ms)
        data = {"active_jobs": after.active_jobs}
    else:
        return
    yield Event(
        id=events.event_id(at_ms, worker.id, identity.hex(), kind),
        type=kind,
        source=events.source(service, "workers", worker.id),
        time_ms=at_ms,
        subject=worker.id,
        data={"worker_id": worker.id, **data},
    )
