"""The shapes of answers (requirements sections 1.2 to 1.5 and 1.8), built from domain objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ojs.domain import job as jobs
from ojs.domain import jsontext, queue, times, worker
from ojs.domain.job import DEFAULT_VISIBILITY_MS, Job
from ojs.domain.page import Page
from ojs.domain.queue import Queue
from ojs.domain.states import State
from ojs.domain.worker import Worker
from ojs.http import paging

# A Lambda answers with at most 6 MB, counted after the body was quoted once more, which in the
# worst case doubles it. These bounds keep every answer below that.
_MAX_COPY_BYTES = 262_144
_MAX_LIST_BYTES = 2_500_000
_MAX_ERRORS_BYTES = 750_000
_FEW_ERRORS = 10
_LARGE_FIELDS = frozenset({"args", "meta", "result", "errors", "error", "options"})


def whole(job: Job) -> dict[str, Any]:
    """A job; of a very long error history the latest part, and how many are left out."""
    shown = jobs.to_dict(job)
    if len(shown.get("errors", ())) > _FEW_ERRORS:
        shown["errors"], omitted = _latest(shown["errors"])
        if omitted:
            shown["errors_omitted"] = omitted
    return shown


def _latest(errors: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], int]:
    kept: list[Mapping[str, Any]] = []
    room = _MAX_ERRORS_BYTES
    for error in reversed(errors):
        room -= jsontext.size_of(error)
        if room < 0:
            break
        kept.append(error)
    return kept[::-1], len(errors) - len(kept)


def _slim(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if name not in _LARGE_FIELDS}


def _listed(found: Sequence[Job], room: int) -> list[dict[str, Any]]:
    """Jobs of a listing; those beyond `room` bytes without what makes them large."""
    listed = []
    for job in found:
        shown = whole(job)
        room -= jsontext.size_of(shown)
        listed.append(shown if room >= 0 else _slim(shown))
    return listed


def detail(job: Job) -> dict[str, Any]:
    """A job wrapped, and its fields at the top level for clients that read them there.

    A large job's args, meta, result and errors stand in `job` only.
    """
    shown = whole(job)
    small = jsontext.size_of(shown) <= _MAX_COPY_BYTES
    return {**(shown if small else _slim(shown)), "job": shown}


def wrapped(job: Job) -> dict[str, Any]:
    """`{job}`."""
    return {"job": whole(job)}


def batch(stored: Sequence[Job]) -> dict[str, Any]:
    """The answer to a batch, in the order of the request."""
    return {
        "jobs": _listed(stored, _MAX_LIST_BYTES),
        "count": len(stored),
        "enqueued": len(stored),
        "failed": 0,
    }


def acknowledged(job: Job) -> dict[str, Any]:
    """The answer to an ack."""
    shown = whole(job)
    return {
        "acknowledged": True,
        "id": job.id,
        "job_id": job.id,
        "state": shown["state"],
        "completed_at": shown["completed_at"],
        "job": shown,
    }


def failed(job: Job) -> dict[str, Any]:
    """The answer to a nack: what became of the job, and when it is tried again."""
    shown = whole(job)
    answer = {
        "id": job.id,
        "job_id": job.id,
        "state": shown["state"],
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
    }
    told = (
        ("retry_delay_ms", "next_attempt_at", "next_retry_at")
        if job.state is State.RETRYABLE
        else ("discarded_at", "completed_at")
    )
    answer |= {name: shown[name] for name in told if name in shown}
    return answer | {"job": shown}


def result(job: Job) -> dict[str, Any]:
    """How a job ended; `result` is null when there is none (yet)."""
    shown = jobs.to_dict(job)
    answer = {"job_id": job.id, "state": shown["state"], "result": shown.get("result")}
    if "error" in shown and job.state.terminal:
        answer["error"] = shown["error"]
    return answer


def retries(job: Job) -> dict[str, Any]:
    """A job's error history."""
    errors, omitted = _latest([failure.to_dict() for failure in job.errors or ()])
    answer = {
        "job_id": job.id,
        "state": job.state.value,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "retries": errors,
    }
    return answer | ({"errors_omitted": omitted} if omitted else {})


def jobs_page(asked: paging.Window, page: Page[Job]) -> dict[str, Any]:
    """A page of whole jobs, under both names that clients know."""
    shown = _listed(page.items, _MAX_LIST_BYTES // 2)
    pagination = paging.described(asked, page)
    answer: dict[str, Any] = {"jobs": shown, "items": shown, "pagination": pagination}
    if "total" in pagination:
        answer["total"] = pagination["total"]
    return answer


def queue_state(changed: Queue) -> dict[str, Any]:
    """A queue after pause or resume, wrapped and at the top level."""
    shown = queue.to_dict(changed)
    return {**shown, "queue": shown}


def registered(worker_id: str, now_ms: int) -> dict[str, Any]:
    """What a worker needs to know when it starts (ojs-worker-protocol section 3.3)."""
    return {
        "ok": True,
        "worker_id": worker_id,
        "server_time": times.format_ms(now_ms),
        "heartbeat_interval": worker.HEARTBEAT_INTERVAL_S,
        "heartbeat_timeout": worker.DEAD_AFTER_MS // 1_000,
        "visibility_timeout_default": DEFAULT_VISIBILITY_MS // 1_000,
    }


def worker_detail(known: Worker, now_ms: int) -> dict[str, Any]:
    """A worker, at the top level and wrapped."""
    shown = known.to_dict(now_ms)
    return {**shown, "worker": shown}


def workers_page(asked: paging.Window, page: Page[Worker], now_ms: int) -> dict[str, Any]:
    """A page of workers; a summary only when the page holds them all."""
    shown = [known.to_dict(now_ms) for known in page.items]
    pagination = paging.described(asked, page)
    answer: dict[str, Any] = {"items": shown, "workers": shown, "pagination": pagination}
    if "total" in pagination:
        answer["total"] = pagination["total"]
        if not asked.offset:
            answer["summary"] = _summary(shown)
    return answer


def _summary(shown: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    states = [known["state"] for known in shown]
    return {
        "total": len(states),
        "running": states.count("running"),
        "quiet": sum(state not in ("running", "stale") for state in states),
        "stale": states.count("stale"),
    }
