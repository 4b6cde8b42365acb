"""Unique locks: the job that holds a fingerprint.

A lock only refers to its holder. The job record of the holder determines whether the lock is still
valid.
"""

from __future__ import annotations

from collections.abc import Iterable

from ojs.domain.job.job import Job
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.record import Record
from ojs.store.table.table import Put, Table
from ojs.store.table.values import Value


@record(frozen=True)
class UniqueLock:
    """The lock of a fingerprint, with its holder.

    `until_ms` is the end of the uniqueness period, if there is one. `life` is the life of the job
    when it acquired the lock. A job's life increases when the job is retried as a dead letter.
    """

    digest: str
    job_id: str
    until_ms: int | None = None
    life: int = 0

    def held_by(self, job: Job | None, now_ms: int) -> bool:
        """Return whether this job holds the lock, and the lock's period has not ended."""
        # The job that acquired the lock might be deleted, and another job can have the same ID.
        held = job is not None and (job.id, job.unique_key) == (self.job_id, self.digest)
        return held and not self.over(now_ms)

    def over(self, now_ms: int) -> bool:
        """Return whether the uniqueness period has ended."""
        return self.until_ms is not None and self.until_ms <= now_ms


LOCK = Record(
    UniqueLock,
    "unique lock",
    {"job": "job_id", "until": "until_ms", "life": "life"},
    apart={"digest": lambda item: item["pk"].removeprefix(keys.unique(""))},
)


class UniqueLocks:
    """Reads and writes unique locks."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, digest: str) -> UniqueLock | None:
        """Read the lock of a fingerprint, strongly consistent.

        Its period can have ended (`over`).
        """
        item = self._table.get(keys.unique(digest), keys.RECORD)
        return None if item is None else LOCK.of(item)

    def get_many(self, digests: Iterable[str]) -> dict[str, UniqueLock]:
        """Return the locks of fingerprints, by fingerprint. The read is eventually consistent.

        Makes one call for each 100 items.
        """
        wanted = {(keys.unique(digest), keys.RECORD): digest for digest in digests}
        found = self._table.batch_get(wanted, consistent=False)
        return {wanted[key]: LOCK.of(item) for key, item in found.items()}

    @staticmethod
    def taking(lock: UniqueLock, seen: UniqueLock | None) -> Put:
        """Return the write that acquires a lock, for the transaction that stores its job."""
        # DynamoDB's garbage collection uses this attribute. Code compares `until`.
        ttl = None if lock.until_ms is None else lock.until_ms // 1000 + 86_400
        item = LOCK.item(lock, pk=keys.unique(lock.digest), sk=keys.RECORD, ttl=ttl)
        # Race: two equal enqueues at the same time, or the holder is retried as a dead letter while
        # another job acquires the lock. One transaction stores its job. The other fails as a whole,
        # reads the lock again, and finds the winner.
        if seen is None:
            return Put(item, condition="attribute_not_exists(pk)")
        values: dict[str, Value] = {":seen": seen.job_id}
        same = "attribute_not_exists(#life)"
        if seen.life:
            same, values[":life"] = "#life = :life", seen.life
        return Put(
            item,
            condition=f"attribute_not_exists(pk) OR (#job = :seen AND {same})",
            values=values,
        )
