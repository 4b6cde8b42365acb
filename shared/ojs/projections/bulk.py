"""Events of finished bulk operations and bulk enqueues (ojs-bulk-operations, section 12.1).

They are derived from the items of `ojs.store.bulk.operations` and `ojs.store.jobs.bulk_pushes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ojs.domain.bulk.operation import Action, Phase
from ojs.domain.events.types import EventType
from ojs.projections.changes import NewEvent, TableChange
from ojs.records import record
from ojs.store.table import keys

# Event types by action, and the event field with the number of changed jobs. Other actions have no
# event of the operation: each changed dead letter has its own event, and an erasure must leave no
# trace.
_TOLD = {
    Action.CANCEL_JOBS.value: (EventType.BULK_CANCEL_COMPLETED, "cancelled"),
    Action.RETRY_JOBS.value: (EventType.BULK_RETRY_COMPLETED, "retried"),
    Action.DELETE_JOBS.value: (EventType.BULK_DELETE_COMPLETED, "deleted"),
}


_Image = Mapping[str, Any] | None


@record(frozen=True)
class OperationChange(TableChange):
    """A change by which a bulk operation on jobs finished."""

    operation_id: str
    action: str
    succeeded: int
    failed: int
    at_ms: int

    @classmethod
    def of(
        cls, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
    ) -> OperationChange | None:
        """Return the change between two images of the operation's item.

        Returns:
            The change, or None for a stopped operation (it was not completed) and for a dry run
            (it changes nothing).

        Raises:
            KeyError: An attribute of the item is missing.
        """
        if new is None or new["action"] not in _TOLD or "dry" in new:
            return None
        states = (None if old is None else old["state"], new["state"])
        if states[1] != Phase.COMPLETED or states[0] == Phase.COMPLETED:
            return None
        return cls(
            operation_id=keys.operation_id(new["pk"]),
            action=new["action"],
            succeeded=new["succeeded"],
            failed=new["failed"],
            at_ms=new["finished"],
        )

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Return the event of a completed operation."""
        kind, done = _TOLD[self.action]
        data = {
            "total": self.succeeded + self.failed,
            done: self.succeeded,
            "skipped": self.failed,
        }
        yield NewEvent(kind, self.at_ms, self.operation_id, ("api",), data)


@record(frozen=True)
class BulkPushChange(TableChange):
    """A change by which the result of a bulk enqueue was stored."""

    request_id: str
    total: int
    succeeded: int
    atomicity: str
    at_ms: int

    @classmethod
    def of(cls, old: _Image, new: _Image) -> BulkPushChange | None:
        """Return the change between two images of the result's item, which is written once.

        Returns None if the item was removed. Raises KeyError if an attribute is missing.
        """
        if old is not None or new is None:
            return None
        return cls(
            request_id=keys.bulk_push_id(new["pk"]),
            total=new["total"],
            succeeded=new["succeeded"],
            atomicity=new["atomicity"],
            at_ms=new["at"],
        )

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Return the event of a bulk enqueue: one event for all its jobs."""
        data = {
            "total": self.total,
            "succeeded": self.succeeded,
            "failed": self.total - self.succeeded,
            "atomicity": self.atomicity,
        }
        kind = EventType.BULK_ENQUEUE_COMPLETED
        yield NewEvent(kind, self.at_ms, self.request_id, ("api",), data)
