"""The shapes of answers (requirements sections 1.2 to 1.5 and 1.8), built from domain objects.

An answer that is too large cannot be sent at all, so every answer with jobs in it is kept below
`MAX_ANSWER_BYTES`: what does not fit is left out of a job, and the job says so under `omitted`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ojs.domain import jsontext, times
from ojs.domain.job import job as jobs
from ojs.domain.job.job import DEFAULT_VISIBILITY_MS, Job
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.domain.pool import worker
from ojs.domain.pool.worker import Worker
from ojs.domain.queue import queue
from ojs.domain.queue.queue import Queue
from ojs.http.binding import paging

# A Lambda answers with at most 6 MB (6 291 556 bytes). The rest is for headers and the JSON around
# the body.
MAX_ANSWER_BYTES = 6_000_000
# Of that, kept free for what stands beside a job: its small fields at the top level, pagination.
_AROUND_BYTES = 20_000
# A job this large is not shown at the top level and once more under `job`.
MAX_COPY_BYTES = 262_144
# Errors of one job, when its contents and result must fit as well.
MAX_ERRORS_BYTES = 1_500_000

# The names under which a job says what is not shown of it. They are the server's: a client's own
# field of that name is not shown.
_OMITTED = "omitted"
_ERRORS_OMITTED = "errors_omitted"
# In `omitted`: whatever else the client gave.
REST = "*"

# What a job is cut down to. An allow-list, since a job also has every key its client thought of.
# All of these are written, or checked on the way in, by the server, and have at most a few hundred
# characters.
SMALL_FIELDS = frozenset(
    {
        "specversion", "id", "type", "queue", "priority", "state", "previous_state", "attempt",
        "max_attempts", "created_at", "enqueued_at", "activated_at", "started_at", "completed_at",
        "cancelled_at", "discarded_at", "scheduled_at", "expires_at", "timeout", "timeout_ms",
        "visibility_timeout_ms", "worker_id", "producer", "lease_token", "lease_expires_at",
        "retry_delay_ms",
        "next_attempt_at", "next_retry_at", "progress", "dead_letter", "dead_letter_job_id",
        "rate_limit",
    }
)  # fmt: skip
# Fields of a job that may be large; each is named when it is left out. Other keys are the client's
# own, as many and as long as it likes: together they are `REST`.
LARGE_FIELDS = (
    "args", "meta", "result", "error", "errors", "options", "retry", "unique", "tags", "schema",
    "metadata",
)  # fmt: skip


def sent_bytes(value: Any) -> int:
    """Bytes of `value` inside a Lambda's answer, at most.

    There the body is a JSON text inside a JSON text: quotes and backslashes count twice, and on
    Python 3.11 a character beyond ASCII counts 6 or 12 (later ones send it as it is).
    """
    return len(json.dumps(jsontext.dumps(value))) - 2


def fetched(claimed: Sequence[Job]) -> dict[str, Any]:
    """The answer to a fetch. Never cut: a worker needs all of a job, and FETCH minds the size."""
    return {"jobs": [_shown(job) for job in claimed]}


def whole(job: Job) -> dict[str, Any]:
    """A job; of a very long error history the latest part, and how many are left out.

    What does not fit into an answer even so can be read elsewhere: a result from `…/result`, errors
    from `…/retries`.
    """
    shown = _shown(job)
    if "errors" not in shown and "result" not in shown:
        return shown  # contents alone always fit (ojs.domain.job.envelope.MAX_JOB_BYTES)
    if "errors" in shown:
        shown["errors"], left_out = _latest(shown["errors"], MAX_ERRORS_BYTES)
        if left_out:
            shown[_ERRORS_OMITTED] = left_out
    for name in ("result", "errors"):
        if sent_bytes(shown) <= MAX_ANSWER_BYTES - _AROUND_BYTES:
            break
        if name in shown:
            del shown[name]
            shown[_OMITTED] = [*shown.get(_OMITTED, ()), name]
    return shown


def _shown(job: Job) -> dict[str, Any]:
    """All of a job that is loaded."""
    shown = jobs.to_dict(job)
    shown.pop(_OMITTED, None)
    shown.pop(_ERRORS_OMITTED, None)
    if job.content is None:
        # Kept apart from the head and not loaded; what else is in there is not known.
        shown[_OMITTED] = ["args", "meta", REST]
    return shown


def _latest(errors: Sequence[Mapping[str, Any]], room: int) -> tuple[list[Mapping[str, Any]], int]:
    """The latest errors that fit into `room` bytes, and how many older ones do not."""
    kept: list[Mapping[str, Any]] = []
    for error in reversed(errors):
        room -= sent_bytes(error) + 1
        if room < 0:
            break
        kept.append(error)
    return kept[::-1], len(errors) - len(kept)


def _slim(shown: Mapping[str, Any]) -> dict[str, Any]:
    """A job without what can be large, saying what that was."""
    kept = {name: value for name, value in shown.items() if name in SMALL_FIELDS}
    left_out = {name for name in shown if name not in kept} - {_OMITTED, _ERRORS_OMITTED}
    if shown.get("dead_letter") and isinstance(shown.get("metadata"), dict):
        # The seed's two times (DL section 9.2), without a client's own keys beside them.
        kept["metadata"] = {name: shown[name] for name in ("created_at", "discarded_at")}
        if kept["metadata"] == shown["metadata"]:
            left_out.discard("metadata")
    names = [name for name in LARGE_FIELDS if name in left_out]
    if left_out.difference(LARGE_FIELDS):
        names.append(REST)
    names += [name for name in shown.get(_OMITTED, ()) if name not in names]
    if names:
        kept[_OMITTED] = names
    return kept


def _listed(found: Iterable[Job], room: int) -> list[dict[str, Any]]:
    """Jobs in `room` bytes: in order, as many whole as fit, of the others the small fields."""
    listed = []
    for job in found:
        shown = whole(job)
        slim = _slim(shown)
        size = sent_bytes(slim) + 1
        listed.append((shown, slim, sent_bytes(shown) + 1 - size))
        room -= size
    chosen = []
    for shown, slim, more in listed:
        if more <= room:
            room -= max(0, more)
            chosen.append(shown)
        else:
            chosen.append(slim)
    return chosen


def detail(job: Job) -> dict[str, Any]:
    """A job wrapped, and its fields at the top level for clients that read them there.

    Of a large job the top level has only the small fields.
    """
    shown = whole(job)
    small = sent_bytes(shown) <= MAX_COPY_BYTES
    return {**(shown if small else _slim(shown)), "job": shown}


def wrapped(job: Job) -> dict[str, Any]:
    """`{job}`."""
    return {"job": whole(job)}


def batch(stored: Sequence[Job]) -> dict[str, Any]:
    """The answer to a batch, in the order of the request."""
    return {
        "jobs": _listed(stored, MAX_ANSWER_BYTES - _AROUND_BYTES),
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
    history = [failure.to_dict() for failure in job.errors or ()]
    errors, left_out = _latest(history, MAX_ANSWER_BYTES - _AROUND_BYTES)
    answer = {
        "job_id": job.id,
        "state": job.state.value,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "retries": errors,
    }
    return answer | ({_ERRORS_OMITTED: left_out} if left_out else {})


def jobs_page(
    asked: paging.PageWindow, page: Page[Job], total: int | None = None
) -> dict[str, Any]:
    """A page of jobs, under both names that clients know; whole as far as they fit."""
    shown = _listed(page.items, (MAX_ANSWER_BYTES - _AROUND_BYTES) // 2)
    pagination = paging.described(asked, page, total)
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


def workers_page(asked: paging.PageWindow, page: Page[Worker], now_ms: int) -> dict[str, Any]:
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
