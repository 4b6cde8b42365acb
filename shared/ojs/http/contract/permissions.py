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


def _table() -> Iterable[tuple[Scope | None, Reach, Iterable[str]]]:
    yield None, Reach.NONE, ("openapi",)


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
