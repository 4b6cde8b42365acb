"""Workers as answers show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ojs.domain import times
from ojs.domain.job.job import DEFAULT_VISIBILITY_MS
from ojs.domain.page import Page
from ojs.domain.pool.worker import DEAD_AFTER_MS, HEARTBEAT_INTERVAL_S, Worker

if TYPE_CHECKING:
    from ojs.http.contract import answers


def shown(known: Worker, now_ms: int) -> answers.Worker:
    """A worker: its registration, and its state at this time."""
    return cast("answers.Worker", known.to_dict(now_ms))


def registered(worker_id: str, now_ms: int) -> answers.RegisterAnswer:
    """What a worker needs to know when it starts (ojs-worker-protocol section 3.3)."""
    return {
        "ok": True,
        "worker_id": worker_id,
        "server_time": times.format_ms(now_ms),
        "heartbeat_interval": HEARTBEAT_INTERVAL_S,
        "heartbeat_timeout": DEAD_AFTER_MS // 1_000,
        "visibility_timeout_default": DEFAULT_VISIBILITY_MS // 1_000,
    }


def removed(worker_id: str) -> answers.WorkerRemovedAnswer:
    """A worker that is no longer listed."""
    return {"deleted": True, "worker_id": worker_id}


def health(known: Worker, now_ms: int) -> answers.WorkerHealthAnswer:
    """Whether a worker takes jobs."""
    worker = shown(known, now_ms)
    return {
        "worker_id": known.id,
        "state": worker["state"],
        "accepting_jobs": known.may_fetch,
        "active_jobs": known.active_jobs,
        "last_heartbeat": worker["last_heartbeat"],
    }


def detail(known: Worker, now_ms: int) -> answers.WorkerAnswer:
    """A worker, at the top level and wrapped."""
    worker = shown(known, now_ms)
    return {**worker, "worker": worker}


def page(found: Page[Worker], pagination: answers.Pagination, now_ms: int) -> answers.WorkersAnswer:
    """A page of workers; with a summary if the page holds them all."""
    workers = [shown(known, now_ms) for known in found.items]
    answer: answers.WorkersAnswer = {
        "items": workers, "workers": workers, "pagination": pagination,
    }  # fmt: skip
    if "total" in pagination:
        answer["total"] = pagination["total"]
        if not pagination["offset"]:
            answer["summary"] = _summary(workers)
    return answer


def _summary(workers: Sequence[answers.Worker]) -> answers.WorkersSummary:
    states = [worker["state"] for worker in workers]
    return {
        "total": len(states),
        "running": states.count("running"),
        "quiet": sum(state not in ("running", "stale") for state in states),
        "stale": states.count("stale"),
    }
