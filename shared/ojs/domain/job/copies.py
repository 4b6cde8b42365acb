"""Copies of dead letters: their target and their origin.

A dead letter stays in its queue. If the queue has a `dead_letter_queue`, a copy of the job is also
enqueued there.
"""

from __future__ import annotations

from ojs.records import record

# The key in the `meta` of a copy that contains its origin.
META = "ojs.dead_letter"
TTL_MS = 30 * 86_400_000


@record(frozen=True)
class CopyTarget:
    """The target queue of copies, the maximum number of available copies,
    and their lifetime (ms).
    """

    queue: str
    max_size: int | None = None
    ttl_ms: int = TTL_MS

    def compact(self) -> str:
        """Return the stored form in a job record. Trailing defaults are omitted."""
        parts = (
            self.queue,
            "" if self.max_size is None else str(self.max_size),
            "" if self.ttl_ms == TTL_MS else str(self.ttl_ms),
        )
        return "|".join(parts).rstrip("|")

    @classmethod
    def of(cls, text: str) -> CopyTarget:
        """Read the result of `compact`. Raises ValueError."""
        queue, max_size, ttl_ms = (*text.split("|"), "", "")[:3]
        return cls(queue, int(max_size) if max_size else None, int(ttl_ms) if ttl_ms else TTL_MS)


@record(frozen=True)
class Origin:
    """The original dead letter of a copy, and the maximum number of available copies."""

    job_id: str
    max_size: int | None = None

    def compact(self) -> str:
        """Return the stored form in the record of a copy."""
        return self.job_id if self.max_size is None else f"{self.job_id}|{self.max_size}"

    @classmethod
    def of(cls, text: str) -> Origin:
        """Read the result of `compact`. Raises ValueError."""
        job_id, _, max_size = text.partition("|")
        return cls(job_id, int(max_size) if max_size else None)
