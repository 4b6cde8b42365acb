"""Messages to connections. They are hints: one that is lost costs time, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from ojs.clock import Clock
from ojs.domain.realtime import Connections, Posted
from ojs.services.for_each import ForEach

# After this many failures in a row a container sends nothing for `_PAUSE_MS`.
_FAILURES = 3
_PAUSE_MS = 10_000


class Posts:
    """Sends messages, several at the same time. One instance per container."""

    def __init__(self, connections: Connections, clock: Clock, for_each: ForEach) -> None:
        self._connections = connections
        self._clock = clock
        self._for_each = for_each
        self._failures = 0
        self._paused_until_ms = 0

    @property
    def paused(self) -> bool:
        """Whether nothing is sent now, because the last messages failed."""
        return self._clock.now_ms() < self._paused_until_ms

    def send(self, messages: Sequence[tuple[str, str]]) -> list[Posted]:
        """Send a text to each connection: (connection, text). Returns the outcomes in order."""
        if self.paused:
            return [Posted.FAILED] * len(messages)
        outcomes = self._for_each(lambda message: self._connections.post(*message), messages)
        for outcome in outcomes:
            self._failures = self._failures + 1 if outcome is Posted.FAILED else 0
        if self._failures >= _FAILURES:
            self._failures = 0
            self._paused_until_ms = self._clock.now_ms() + _PAUSE_MS
        return outcomes
