"""Stores the results of bulk enqueues, for their events: one item each, written once.

    BP|{request}  @   the number of jobs in the request, and the number of stored jobs

No code reads the items: their stream records have the same content, and the items expire soon.
"""

from __future__ import annotations

from ojs.domain.ids import IdSource
from ojs.store.table import keys
from ojs.store.table.table import Put, Table

_KEPT_S = 3_600


class BulkPushStore:
    """Writes the results of bulk enqueues."""

    def __init__(self, table: Table, ids: IdSource) -> None:
        self._table = table
        self._ids = ids

    def add(self, *, total: int, succeeded: int, atomicity: str, now_ms: int) -> None:
        """Store that a bulk enqueue completed. The item's stream record becomes the event.

        A retried write changes nothing and creates no second stream record.

        Args:
            total: Number of jobs in the request.
            succeeded: Number of stored jobs.
            atomicity: Atomicity of the request.
            now_ms: Current time in milliseconds since the epoch.

        Raises:
            OjsError: The write failed.
        """
        self._table.put(
            Put(
                {
                    "pk": keys.bulk_push(self._ids.uuid7()),
                    "sk": keys.RECORD,
                    "total": total,
                    "succeeded": succeeded,
                    "atomicity": atomicity,
                    "at": now_ms,
                    "ttl": now_ms // 1_000 + _KEPT_S,
                }
            )
        )
