"""Ends of bulk operations (`ojs.store.bulk.operations`) and of bulk enqueues
(`ojs.store.jobs.bulk_pushes`), and the events that follow (ojs-bulk-operations section 12.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ojs.domain.bulk.operation import Action, Phase
from ojs.domain.events.types import EventType
from ojs.projections.changes import NewEvent, TableChange
from ojs.records import record
from ojs.store.table import keys

# The types of events, and under which name they tell how many jobs were dealt with. Of other
# actions none is told: dead letters have events of their own, and an erasure is to leave no trace.
_TOLD = {
    Action.CANCEL_JOBS.value: (EventType.BULK_CANCEL_COMPLETED, "cancelled"),
    Action.RETRY_JOBS.value: (EventType.BULK_RETRY_COMPLETED, "retried"),
    Action.DELETE_JOBS.value: (EventType.BULK_DELETE_COMPLETED, "deleted"),
}


_Image = Mapping[str, Any] | None


@record(frozen=True)
class OperationChange(TableChange):
    """The end of a bulk operation on jobs."""

    operation_id: str
    action: str
    succeeded: int
    failed: int
    at_ms: int

    @classmethod
    def of(
        cls, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
    ) -> OperationChange | None:
        """Read the end from two images of the item; None if it is none that is told: a stopped
        operation was not completed, and a dry run does nothing. Raises KeyError.
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
        """The event of an operation that is complete."""
        kind, done = _TOLD[self.action]
        data = {
            "total": self.succeeded + self.failed,
            done: self.succeeded,
            "skipped": self.failed,
        }
        yield NewEvent(kind, self.at_ms, self.operation_id, ("api",), data)


@record(frozen=True)
class BulkPushChange(TableChange):
    """What became of a bulk enqueue."""

    request_id: str
    total: int
    succeeded: int
    atomicity: str
    at_ms: int

    @classmethod
    def of(cls, old: _Image, new: _Image) -> BulkPushChange | None:
        """Read it from two images of the item, which is written once; None if it was removed.
        Raises KeyError.
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
        """The event of a request, one for all its jobs."""
        data = {
            "total": self.total,
            "succeeded": self.succeeded,
            "failed": self.total - self.succeeded,
            "atomicity": self.atomicity,
        }
        kind = EventType.BULK_ENQUEUE_COMPLETED
        yield NewEvent(kind, self.at_ms, self.request_id, ("api",), data)
