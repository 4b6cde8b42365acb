"""Maintenance mode. Until an operator disables it, no job is dispatched or started by time."""

from __future__ import annotations

from ojs.records import record

# Time (ms) for which a container caches the mode.
NOTICED_MS = 5_000
# Time (ms) from the request that enables the mode until all containers know it, including the time
# for the write.
EFFECTIVE_MS = 2 * NOTICED_MS


@record(frozen=True)
class Maintenance:
    """Maintenance mode that is enabled: its start, reason, and planned duration (ms)."""

    since_ms: int
    reason: str | None = None
    duration_ms: int | None = None

    @property
    def effective_ms(self) -> int:
        """The time (ms) from which no container dispatches jobs."""
        return self.since_ms + EFFECTIVE_MS

    @property
    def until_ms(self) -> int | None:
        """The planned end (ms), or None. The mode isn't disabled automatically at this time."""
        return None if self.duration_ms is None else self.since_ms + self.duration_ms
