"""Available copies of dead letters: counts them, and discards copies beyond the limit.

The projection counts copies with the other statistics of their queue
(`ojs.store.derived.projection`). A discard decreases the count in the same transaction. The count
is therefore too high only for copies that workers have just claimed. Two containers can't discard
two copies if only one is above the limit.
"""

from __future__ import annotations

from dataclasses import replace

from ojs.domain.job.failure import Failure
from ojs.domain.job.job import Job
from ojs.store.derived.projection import COPIES
from ojs.store.jobs.records import JobStore
from ojs.store.table import keys
from ojs.store.table.races import losing_as
from ojs.store.table.table import Put, Table, Update


class NothingToTrim(Exception):
    """The number of available copies is not above the limit. Nothing is discarded."""


class WaitingCopies:
    """Reads and changes the number of available copies."""

    def __init__(self, table: Table, jobs: JobStore) -> None:
        self._table = table
        self._jobs = jobs

    def waiting(self, queue: str) -> int:
        """Return the number of available copies of a queue."""
        item = self._table.get(keys.stats(queue), keys.NOW) or {}
        return int(item.get(COPIES, 0))

    def drop(self, copy: Job, after: Job, failure: Failure, *, most: int) -> None:
        """Discard an available copy, if more than `most` are counted.

        Args:
            copy: The copy as read.
            after: The discarded copy.
            failure: Error that is stored.
            most: Maximum number of available copies.

        Raises:
            NothingToTrim: At most `most` copies are counted.
            LostRace: The copy has changed.
        """
        # Race: another projection discards a copy for the same excess. The loser gets
        # NothingToTrim.
        counted = Update(
            keys.stats(copy.queue),
            keys.NOW,
            add={COPIES: -1},
            condition="#copies > :most",
            values={":most": most},
        )
        # The copy must be discarded in the same transaction: a copy that was claimed since it was
        # read must not get this error.
        after, apart = self._jobs.noting(copy, replace(after, trimmed=True), failure)
        errors = [] if apart is None else [Put(apart.item)]
        with losing_as(lambda lost: NothingToTrim() if lost.item is None else lost):
            self._jobs.replace_all([(copy, after)], [counted, *errors])
