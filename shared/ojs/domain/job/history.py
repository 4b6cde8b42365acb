"""Derives the history of a job from its items, oldest event first (ojs-execution-history).

No events are stored for it, so the history is approximate. It has the end of each failed attempt,
and the start of the most recent attempt only. It doesn't have lease renewals or the times between
attempts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ojs.domain import times
from ojs.domain.ids import derived_uuid7
from ojs.domain.job.job import Job
from ojs.domain.job.states import State

_SYSTEM = "system"


def history(job: Job) -> list[dict[str, Any]]:
    """Return the events of a job. The job must be loaded with its errors."""
    found = sorted(_events(job), key=lambda event: event[0])
    return [
        {
            "id": derived_uuid7(at_ms, f"{job.id}|{kind}|{number}"),
            "job_id": job.id,
            "event_type": kind,
            "timestamp": times.format_ms(at_ms),
            "actor": actor,
            "data": data,
        }
        for number, (at_ms, kind, actor, data) in enumerate(found)
    ]


def _events(job: Job) -> Iterator[tuple[int, str, dict[str, str], dict[str, Any]]]:
    system, worker = {"type": _SYSTEM, "id": "backend"}, _worker(job)
    pushed_by = {"type": "client", "id": job.producer} if job.producer else system
    yield job.created_ms, "job.created", pushed_by, {"type": job.type, "queue": job.queue}
    if job.activated_ms is not None:
        moved = {"from": State.PENDING.value, "to": State.AVAILABLE.value}
        yield job.activated_ms, "job.state_changed", system, moved
    for failure in job.errors or ():
        data = {
            "attempt": failure.attempt,
            "error": {"type": failure.type, "message": failure.message},
        }
        yield failure.occurred_ms, "job.attempt_failed", worker, data
    if job.started_ms is not None:
        yield job.started_ms, "job.attempt_started", worker, {"attempt": job.attempt}
    if job.state is State.COMPLETED and job.completed_ms is not None:
        yield job.completed_ms, "job.attempt_completed", worker, {"attempt": job.attempt}
    yield from _of_durable_code(job, worker)
    since_ms = {
        State.AVAILABLE: job.enqueued_ms,
        State.ACTIVE: job.started_ms,
        State.RETRYABLE: job.failed_ms,
    }.get(job.state, job.ended_ms)
    if since_ms is not None:
        yield since_ms, "job.state_changed", system, {"to": job.state.value}


def _of_durable_code(
    job: Job, worker: dict[str, str]
) -> Iterator[tuple[int, str, dict[str, str], dict[str, Any]]]:
    """Yield the events of stored outcomes and of the checkpoint."""
    for outcome in job.outcomes or ():
        data = {
            "name": outcome.name,
            "kind": outcome.kind.value,
            "status": "completed" if outcome.ok else "failed",
            "attempt": outcome.attempt,
        }
        yield outcome.stored_ms, "job.step_completed", worker, data
    if job.checkpoint is not None:
        data = {"sequence": job.checkpoint.sequence, "size_bytes": job.checkpoint.bytes}
        yield job.checkpoint.created_ms, "job.checkpoint_saved", worker, data


def _worker(job: Job) -> dict[str, str]:
    return {"type": "worker", "id": job.worker_id or "unknown"}
