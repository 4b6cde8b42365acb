"""Results of bulk enqueues, for their events: one item each, written once.

    BP|{request}  @   the number of jobs in the request, and the number of stored jobs

Nothing reads the items: the stream has their content, and they expire soon.
"""

from __future__ import annotations

from ojs.domain.ids import IdSource
from ojs.store.table import keys
from ojs.store.table.table import Put, Table

_KEPT_S = 3_600


class BulkPushStore:
    """The store of the results of bulk enqueues."""

    def __init__(self, table: Table, ids: IdSource) -> None:
        self._table = table
        self._ids = ids

    def add(self, *, total: int, succeeded: int, atomicity: str, now_ms: int) -> None:
        """Store that a request was carried out: the stream record becomes the event. Raises
        OjsError.

        A write that is repeated changes nothing, and leaves no second record.
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
