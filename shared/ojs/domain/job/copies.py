"""Copies of dead letters: the target of a copy, and the origin of one.

A discarded job stays where it is, as a dead letter. If its queue names a `dead_letter_queue`, a
copy of it is enqueued there as well.
"""

from __future__ import annotations

from ojs.records import record

# The name in the `meta` of a copy under which its origin is shown.
META = "ojs.dead_letter"
TTL_MS = 30 * 86_400_000


@record(frozen=True)
class CopyTarget:
    """Where copies go, how many of them may wait there, and how long each may (ms)."""

    queue: str
    max_size: int | None = None
    ttl_ms: int = TTL_MS

    def compact(self) -> str:
        """The stored form in a job record; defaults at the end are left out."""
        parts = (
            self.queue,
            "" if self.max_size is None else str(self.max_size),
            "" if self.ttl_ms == TTL_MS else str(self.ttl_ms),
        )
        return "|".join(parts).rstrip("|")

    @classmethod
    def of(cls, text: str) -> CopyTarget:
        """Read back what `compact` wrote. Raises ValueError."""
        queue, max_size, ttl_ms = (*text.split("|"), "", "")[:3]
        return cls(queue, int(max_size) if max_size else None, int(ttl_ms) if ttl_ms else TTL_MS)


@record(frozen=True)
class Origin:
    """The dead letter that a copy was made of, and how many copies may wait beside it."""

    job_id: str
    max_size: int | None = None

    def compact(self) -> str:
        """The stored form in the record of a copy."""
        return self.job_id if self.max_size is None else f"{self.job_id}|{self.max_size}"

    @classmethod
    def of(cls, text: str) -> Origin:
        """Read back what `compact` wrote. Raises ValueError."""
        job_id, _, max_size = text.partition("|")
        return cls(job_id, int(max_size) if max_size else None)
