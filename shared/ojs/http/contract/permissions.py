"""The permission that each operation needs.

docs/access.md shows the same table, and tests try every entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache

from ojs.domain.access import Scope
from ojs.records import record


class Reach(StrEnum):
    """Which queues an operation touches; a key that is limited to some queues must reach them."""

    NONE = "none"
    """The operation touches no queue."""
    PATH = "the queue in the path"
    JOB = "the job's queue"
    """Costs a limited key one read, of the job record."""
    NAMED = "the queues in the body"
    """The operation itself calls `Request.touches`."""
    CRON = "the cron job's queue"
    """The operation itself compares it; a list has those within reach."""
    WORKFLOW = "the queues of the workflow's jobs"
    """The operation itself compares all of them; a list has the workflows within reach."""
    FILTER = "the queues it asks for"
    """A limited key has to name them in the query."""
    ALL = "all queues"
    """Not for limited keys."""


@record(frozen=True)
class Permission:
    """What an operation needs: a scope (None: any valid key), and the queues it touches."""

    scope: Scope | None
    reach: Reach


def _both(*names: str) -> Iterable[str]:
    """Operations that exist under `/admin` too."""
    for name in names:
        yield from (name, f"admin_{name}")


def _table() -> Iterable[tuple[Scope | None, Reach, Iterable[str]]]:
    write, read = Scope.JOBS_WRITE, Scope.JOBS_READ
    work = Scope.WORK
    look, manage = Scope.ADMIN_READ, Scope.ADMIN_WRITE
    yield None, Reach.NONE, ("openapi",)
    yield write, Reach.NAMED, ("enqueue_job", "enqueue_batch", "enqueue_bulk")
    yield write, Reach.JOB, (
        "cancel_job", "cancel_job_by_post", "activate_job", "retry_job", "run_job", "change_job",
    )  # fmt: skip
    yield read, Reach.JOB, ("job_history", "get_job", "get_result", "list_retries", "get_progress")
    yield write, Reach.NAMED, ("retry_jobs", "cancel_jobs", "delete_jobs")
    yield read, Reach.FILTER, ("list_jobs",)
    yield work, Reach.NAMED, (
        "fetch_jobs", "ack_job", "nack_job", "heartbeat", "beat", "report_worker_progress",
    )  # fmt: skip
    yield work, Reach.JOB, ("ack_job_by_path", "nack_job_by_path", "report_progress")
    yield work, Reach.NONE, ("register_worker", "remove_worker", "worker_health")
    yield look, Reach.FILTER, (
        *_both("list_dead_letters"),
        "admin_list_jobs", "list_unique_jobs",
    )  # fmt: skip
    yield look, Reach.JOB, (*_both("get_dead_letter"), "admin_get_job")
    yield look, Reach.ALL, (
        *_both(
            "list_workers", "dead_letter_stats", "list_dead_letter_operations",
            "get_dead_letter_operation",
        ),
        "get_worker",
        "list_job_operations", "get_job_operation",

    )  # fmt: skip
    yield manage, Reach.JOB, (
        *_both("retry_dead_letter", "delete_dead_letter"), "admin_retry_job", "admin_run_job",
        "admin_change_job", "admin_cancel_job", "admin_delete_job",
    )  # fmt: skip
    yield manage, Reach.NAMED, (
        *_both("retry_dead_letters", "purge_dead_letters"),
        "admin_retry_jobs", "admin_cancel_jobs", "admin_delete_jobs", "admin_erase_jobs",
    )  # fmt: skip
    yield manage, Reach.FILTER, _both("purge_old_dead_letters")
    yield manage, Reach.PATH, (
        "purge_queue_jobs", "admin_purge_queue_jobs",
    )  # fmt: skip
    yield manage, Reach.ALL, (
        *_both("stop_dead_letter_operation"), "direct_worker", "quiet_worker",
        "admin_remove_worker", "stop_job_operation",
    )  # fmt: skip


@cache
def permissions() -> Mapping[str, Permission]:
    """Operation id → permission. Operations missing here are denied to everyone."""
    found: dict[str, Permission] = {}
    for scope, reach, names in _table():
        for name in names:
            if name in found:
                raise ValueError(f"{name} is here twice")
            found[name] = Permission(scope, reach)
    return found
