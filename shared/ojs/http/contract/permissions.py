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
    work = Scope.WORK
    look, manage = Scope.ADMIN_READ, Scope.ADMIN_WRITE
    yield None, Reach.NONE, ("openapi",)
    yield work, Reach.NONE, ("register_worker", "remove_worker", "worker_health")
    yield look, Reach.FILTER, (
        *_both("list_dead_letters"),
    )  # fmt: skip
    yield look, Reach.JOB, (*_both("get_dead_letter"),)
    yield look, Reach.ALL, (
        *_both(
            "list_workers", "dead_letter_stats", "list_dead_letter_operations",
            "get_dead_letter_operation",
        ),
        "get_worker",
    )  # fmt: skip
    yield manage, Reach.JOB, (
        *_both("retry_dead_letter", "delete_dead_letter"),
    )  # fmt: skip
    yield manage, Reach.NAMED, (
        *_both("retry_dead_letters", "purge_dead_letters"),
    )  # fmt: skip
    yield manage, Reach.FILTER, _both("purge_old_dead_letters")
    yield manage, Reach.ALL, (
        *_both("stop_dead_letter_operation"), "direct_worker", "quiet_worker",
        "admin_remove_worker",
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
