"""Maintenance mode: no job is handed out, and nothing starts by time, until an operator ends it."""

from __future__ import annotations

from ojs.records import record

# How long a container relies on what it has read of the mode (ms).
NOTICED_MS = 5_000
# So long after the request that begins it all containers know: the write takes a moment, too (ms).
EFFECTIVE_MS = 2 * NOTICED_MS


@record(frozen=True)
class Maintenance:
    """Maintenance under way: since when, why, and how long it should take (ms)."""

    since_ms: int
    reason: str | None = None
    duration_ms: int | None = None

    @property
    def effective_ms(self) -> int:
        """From when on (ms) no container hands out a job."""
        return self.since_ms + EFFECTIVE_MS

    @property
    def until_ms(self) -> int | None:
        """When it should be over (ms). Nothing happens then by itself."""
        return None if self.duration_ms is None else self.since_ms + self.duration_ms
