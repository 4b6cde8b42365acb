"""Copies of dead letters in line: how many there are, and which went because there were too many.

They are counted with the other statistics of their queue, by the projection (see
`ojs.store.derived.projection`) and, for those that are dropped, by whoever drops them, in one transaction.
So the count is behind only by what workers have just taken: it never misses a drop, and nobody
drops twice for one excess.
"""

from __future__ import annotations

from dataclasses import replace

from ojs.domain.job.failure import Failure
from ojs.domain.job.job import Job
from ojs.store.derived.projection import COPIES
from ojs.store.jobs import items
from ojs.store.jobs.records import JobStore
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put, Table, Update


class NothingToTrim(Exception):
    """No more than may wait are counted: nothing is to be dropped."""


class WaitingCopies:
    """The store of what is known of waiting copies."""

    def __init__(self, table: Table, jobs: JobStore) -> None:
        self._table = table
        self._jobs = jobs

    def waiting(self, queue: str) -> int:
        """How many copies are counted as waiting in a queue."""
        item = self._table.get(keys.stats(queue), keys.NOW) or {}
        return int(item.get(COPIES, 0))

    def drop(self, copy: Job, after: Job, failure: Failure, *, most: int) -> None:
        """Discard a waiting copy, as long as more than `most` are counted.

        Raises Enough, LostRace when the copy has moved on.
        """
        # Race: another projection drops for the same excess. The loser finds the count right.
        counted = Update(
            keys.stats(copy.queue),
            keys.NOW,
            add={COPIES: -1},
            condition="#copies > :most",
            values={":most": most},
        )
        # With the rest, not before: a copy that was taken meanwhile has no error that tells of it.
        told = Put(items.error(copy, failure))
        try:
            self._jobs.replace_all([(copy, replace(after, trimmed=True))], [counted, told])
        except LostRace as lost:
            if lost.item is None:
                raise NothingToTrim from None
            raise
