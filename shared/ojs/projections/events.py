"""Events of jobs (ojs-events, sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ojs.domain import times
from ojs.domain.events import event as events
from ojs.domain.events.event import Event
from ojs.domain.events.types import EventType
from ojs.domain.job import failure as failures
from ojs.domain.job.failure import ErrorEntry, Failure
from ojs.domain.job.job import MISSING, SHOWN
from ojs.domain.job.states import State
from ojs.domain.tenants import get_tenant
from ojs.projections.transitions import JobEvent, replayed
from ojs.store.derived.projection import ErrorKey, error_key
from ojs.store.jobs import items

# Maximum characters of an error in an event. A page has hundreds of events, and an EventBridge
# entry has at most 256 KB. The job's error history has the complete error.
MAX_MESSAGE = 1_000
MAX_STACK = 2_000
# Failures that the backend detects without a report of the worker.
_OBSERVED = frozenset({"visibility_timeout", "timeout"})
ANONYMOUS = "anonymous"
# Error types of dropped jobs (`ojs.domain.job.lifecycle.drop`, `give_up`), and the additional event
# of each: the queue was at capacity, or the rate limit was reached.
_DROPPED = {
    "overflow": (EventType.BACKPRESSURE_DROPPED, EventType.QUEUE_OVERFLOW),
    "rate_limited": (EventType.RATE_LIMIT_DROPPED,),
}
# Event types that lists of finished jobs use.
ENDS = frozenset({EventType.JOB_COMPLETED, EventType.JOB_CANCELLED, EventType.JOB_DISCARDED})
# The types of those that several states lead to: these have the state before. A new job is pending.
_FROM_SEVERAL = frozenset(
    {
        EventType.JOB_ENQUEUED,
        EventType.JOB_SCHEDULED,
        EventType.JOB_DISCARDED,
        EventType.JOB_CANCELLED,
    }
)
_WITH_ERROR = frozenset(
    {
        EventType.JOB_FAILED,
        EventType.JOB_RETRYING,
        EventType.JOB_DISCARDED,
        EventType.DEAD_LETTER_ADDED,
    }
)


def error_key_of(what: JobEvent) -> ErrorKey | None:
    """Return the key of the event's error, or None if it has no stored error."""
    if what.kind not in _WITH_ERROR or what.before is None or _stalled(what):
        return None
    return error_key(what.before, what.job.attempt)


def to_read(what: Iterable[JobEvent]) -> set[ErrorKey]:
    """Return the keys of errors that must be read, because the job record contains only part of
    them.
    """
    return {
        key
        for one in what
        if (key := error_key_of(one)) is not None and key[1] not in items.final_keys(one.job)
    }


def failures_of(
    what: Iterable[JobEvent], read: Mapping[ErrorKey, ErrorEntry]
) -> dict[ErrorKey, Failure]:
    """Return the errors of events: those in `read`, and those in the job records."""
    entries = dict(read)
    for one in what:
        if (key := error_key_of(one)) is None:
            continue
        noted = next((each for each in one.job.noted if items.error_key(each) == key[1]), None)
        if noted is not None and (key not in entries or noted.replaces(entries[key])):
            entries[key] = noted
    return {key: entry.failure for key, entry in entries.items()}


def explained(what: Iterable[JobEvent], errors: Mapping[ErrorKey, Failure]) -> Iterator[JobEvent]:
    """Return the events with the additional events of dropped jobs.

    Only the errors of jobs show why they were dropped.
    """
    all_of_it = list(what)
    dropped = [(one, kinds) for one in all_of_it if (kinds := _dropped(one, errors))]
    # The job's deadline might have passed as well, but the job was discarded for another reason.
    dropped_ids = {one.job.id for one, _ in dropped}
    for one in all_of_it:
        if one.kind is not EventType.JOB_EXPIRED or one.job.id not in dropped_ids:
            yield one
    for one, kinds in dropped:
        yield from (replace(one, kind=kind) for kind in kinds)


def _dropped(what: JobEvent, errors: Mapping[ErrorKey, Failure]) -> tuple[EventType, ...]:
    """Return the additional events of a dropped job. Empty if it was not dropped."""
    key = error_key_of(what) if what.kind is EventType.JOB_DISCARDED and not _ran(what) else None
    stored = errors.get(key) if key is not None else None
    return () if stored is None else _DROPPED.get(stored.type, ())


def of_job(
    what: JobEvent, service: str, errors: Mapping[ErrorKey, Failure], *, results: bool = True
) -> Event:
    """Create the event of a change of a job.

    Args:
        what: The change.
        service: Name of the deployment.
        errors: Errors of the jobs, by key.
        results: Whether the event of a completed job contains the result.
    """
    key = error_key_of(what)
    failure = _failure(what, errors.get(key) if key else None)
    job, (data, component) = what.job, ROWS[what.kind]
    told = {"job_type": job.type, "queue": job.queue} | data(what, failure)
    if (tenant := get_tenant(job.queue)) is not None:
        told["tenant_id"] = tenant
    if what.kind in _FROM_SEVERAL:
        told["from"] = State.PENDING.value if what.before is None else what.before.state.value
    if not results:
        told.pop("result", None)
    token = job.op or ""
    if what.kind is EventType.JOB_CHECKPOINTED:
        # After a lost response, one write can number two checkpoints.
        token += f"|{job.durable.checkpoints}"
    return Event(
        id=events.event_id(what.at_ms, job.id, token, what.kind.value),
        type=what.kind.value,
        source=events.source(service, *component(what, failure)),
        time_ms=what.at_ms,
        subject=job.queue if what.kind is EventType.QUEUE_OVERFLOW else job.id,
        data=told,
    )


def bare(event: Event) -> Event:
    """Remove fields that lists of finished jobs don't need, so that no personal data remains."""
    kept = {name: event.data[name] for name in ("job_type", "queue")}
    return replace(event, data=kept)


def _stalled(what: JobEvent) -> bool:
    """Return whether an attempt ended with an expired lease and the job continues.

    The stored error can be that of a nack.
    """
    return (
        what.kind is EventType.JOB_FAILED and not what.job.state.terminal and what.length_ms is None
    )


def _failure(what: JobEvent, stored: Failure | None) -> Failure:
    """Return the stored error. If none is stored, derive the error from the change."""
    if stored is not None and stored.occurred_ms >= what.job.created_ms:
        return stored
    if _stalled(what):
        kind, message = "visibility_timeout", "The lease of the worker expired."
    else:
        kind, message = "unknown", "The error was not found."
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


def _ran(what: JobEvent) -> bool:
    return what.before is not None and what.before.state is State.ACTIVE


# --- one row for each event type ------------------------------------------------------------

_Data = Callable[[JobEvent, Failure], dict[str, Any]]
# Component and instance of the event's source.
_Component = Callable[[JobEvent, Failure], tuple[str, ...]]


def _none(_what: JobEvent, _failure: Failure) -> dict[str, Any]:
    return {}


def _enqueued(what: JobEvent, _failure: Failure) -> dict[str, Any]:
    job = what.job
    data: dict[str, Any] = {"priority": job.priority}
    if job.scheduled_ms is not None:
        data["scheduled_at"] = times.format_ms(job.scheduled_ms)
    if job.unique_key is not None:
        data["unique_key"] = job.unique_key
    return data


def _scheduled(what: JobEvent, _failure: Failure) -> dict[str, Any]:
    return {"scheduled_at": times.format_ms(what.job.scheduled_ms or 0)}


def _run(what: JobEvent, _failure: Failure) -> dict[str, Any]:
    return {"worker_id": what.job.worker_id or ANONYMOUS, "attempt": what.job.attempt}


def _heartbeat(what: JobEvent, failure: Failure) -> dict[str, Any]:
    until_ms = what.job.lease.until_ms if what.job.lease else what.at_ms
    return {**_run(what, failure), "visible_until": times.format_ms(until_ms)}


def _completed(what: JobEvent, _failure: Failure) -> dict[str, Any]:
    result = {} if what.job.result is MISSING else {"result": what.job.result}
    return {"duration_ms": what.length_ms or 0, "attempt": what.job.attempt, **result}


def _failed(what: JobEvent, failure: Failure) -> dict[str, Any]:
    ran = {} if what.length_ms is None else {"duration_ms": what.length_ms}
    return {"attempt": what.job.attempt, "error": _error(failure, stack=True), **ran}


def _retrying(what: JobEvent, failure: Failure) -> dict[str, Any]:
    return {
        "attempt": what.job.attempt,
        "max_attempts": what.job.max_attempts,
        "next_retry_at": times.format_ms(what.job.retry_at_ms or 0),
        "error": _error(failure),
    }


def _given_up(what: JobEvent, failure: Failure) -> dict[str, Any]:
    return {"total_attempts": what.job.attempt, "last_error": _error(failure)}


def _expired(what: JobEvent, _failure: Failure) -> dict[str, Any]:
    created_ms, ends_ms = what.job.created_ms, what.before.expires_ms if what.before else None
    return {
        "created_at": times.format_ms(created_ms),
        "expired_at": times.format_ms(what.at_ms),
        "ttl_ms": max(0, (ends_ms or created_ms) - created_ms),
    }


def _suspended(what: JobEvent, _failure: Failure) -> dict[str, Any]:
    return {"waiting": SHOWN["waiting"](what.job) or []}


def _dropped_by_limit(what: JobEvent, _failure: Failure) -> dict[str, Any]:
    job = what.job
    return {"job_id": job.id} | ({"key": job.limit.key_in(job.queue)} if job.limit else {})


def _api(_what: JobEvent, _failure: Failure) -> tuple[str, ...]:
    return ("api",)


def _scheduler(_what: JobEvent, _failure: Failure) -> tuple[str, ...]:
    return ("scheduler",)


def _worker(what: JobEvent, _failure: Failure) -> tuple[str, ...]:
    return "workers", what.job.worker_id or ANONYMOUS


def _queue(what: JobEvent, _failure: Failure) -> tuple[str, ...]:
    return "queues", what.job.queue


def _detector(what: JobEvent, failure: Failure) -> tuple[str, ...]:
    observed = not _ran(what) or failure.code in _OBSERVED
    return ("scheduler",) if observed else _worker(what, failure)


def _enqueuer(what: JobEvent, _failure: Failure) -> tuple[str, ...]:
    before = what.before
    if before is None and what.job.copy_of is not None:
        return ("scheduler",)
    if before is not None and before.dead_letter and replayed(before, what.job):
        return ("scheduler",)
    if before is None or before.state in (State.PENDING, State.DISCARDED):
        return ("api",)
    if before.state is State.ACTIVE and what.job.attempt < before.attempt:
        return "workers", before.worker_id or ANONYMOUS
    return ("scheduler",)


# Functions that return the event's source, and its data in addition to the job's type and queue.
ROWS: Mapping[EventType, tuple[_Data, _Component]] = {
    EventType.JOB_ENQUEUED: (_enqueued, _enqueuer),
    EventType.JOB_SCHEDULED: (_scheduled, _scheduler),
    EventType.JOB_STARTED: (_run, _worker),
    EventType.JOB_HEARTBEAT: (_heartbeat, _worker),
    EventType.JOB_COMPLETED: (_completed, _worker),
    EventType.JOB_FAILED: (_failed, _detector),
    EventType.JOB_RETRYING: (_retrying, _detector),
    EventType.JOB_DISCARDED: (_given_up, _detector),
    EventType.JOB_EXPIRED: (_expired, _scheduler),
    EventType.JOB_CANCELLED: (_none, _api),
    EventType.JOB_CHECKPOINTED: (
        lambda what, _: {"sequence": what.job.durable.checkpoints},
        _worker,
    ),
    EventType.JOB_SUSPENDED: (_suspended, _worker),
    EventType.JOB_SIGNALLED: (_none, _api),
    EventType.DEAD_LETTER_ADDED: (_given_up, _detector),
    EventType.DEAD_LETTER_RETRIED: (_none, _api),
    EventType.DEAD_LETTER_REPLAYED: (_none, _scheduler),
    EventType.DEAD_LETTER_DELETED: (_none, _api),
    EventType.BACKPRESSURE_DROPPED: (lambda what, _: {"job_id": what.job.id}, _queue),
    EventType.QUEUE_OVERFLOW: (lambda what, _: {"job_id": what.job.id}, _queue),
    EventType.RATE_LIMIT_DROPPED: (_dropped_by_limit, _worker),
}
# Dead letters that are pruned together have one event (`ojs.projections.dead_letters`).
_OF_JOBS = {kind for kind in EventType if kind.startswith(("job.", "dead_letter."))}
if left := _OF_JOBS - ROWS.keys() - {EventType.DEAD_LETTER_PRUNED}:
    raise TypeError(f"No row for {left}.")
