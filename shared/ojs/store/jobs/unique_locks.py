"""Unique locks: which job has a fingerprint. A lock only refers to the holder: whether it still
counts is decided by the holder's job record.
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
    """A fingerprint's holder. `until_ms` is the end of the uniqueness period, if it has one. `life`
    is that of the job when it took the lock: it goes up when the job returns from dead letter.
    """

    digest: str
    job_id: str
    until_ms: int | None = None
    life: int = 0

    def held_by(self, job: Job | None, now_ms: int) -> bool:
        """Return whether this job holds the lock, and its period has not passed."""
        # The job that acquired the lock might be deleted, and another one can have its id.
        held = job is not None and (job.id, job.unique_key) == (self.job_id, self.digest)
        return held and not self.over(now_ms)

    def over(self, now_ms: int) -> bool:
        """Return whether its period has passed."""
        return self.until_ms is not None and self.until_ms <= now_ms


LOCK = Record(
    UniqueLock,
    "unique lock",
    {"job": "job_id", "until": "until_ms", "life": "life"},
    apart={"digest": lambda item: item["pk"].removeprefix(keys.unique(""))},
)


class UniqueLocks:
    """The store of unique locks."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, digest: str) -> UniqueLock | None:
        """Read the lock of a fingerprint, strongly consistent. It can be `over`."""
        item = self._table.get(keys.unique(digest), keys.RECORD)
        return None if item is None else LOCK.of(item)

    def get_many(self, digests: Iterable[str]) -> dict[str, UniqueLock]:
        """Return the locks on fingerprints, by fingerprint. Eventually consistent. One call for
        each 100.
        """
        wanted = {(keys.unique(digest), keys.RECORD): digest for digest in digests}
        found = self._table.batch_get(wanted, consistent=False)
        return {wanted[key]: LOCK.of(item) for key, item in found.items()}

    @staticmethod
    def taking(lock: UniqueLock, seen: UniqueLock | None) -> Put:
        """Return the write that takes a fingerprint, for the transaction that stores its job."""
        # For garbage collection only: code compares `until`.
        ttl = None if lock.until_ms is None else lock.until_ms // 1000 + 86_400
        item = LOCK.item(lock, pk=keys.unique(lock.digest), sk=keys.RECORD, ttl=ttl)
        # Race: two equal pushes at once, or the holder returns from dead letter while another job
        # takes the lock. One transaction stores its job; the other fails as a whole, reads the
        # lock again and finds the winner.
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
