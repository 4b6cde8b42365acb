"""The clock, injected everywhere so that tests move time by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is moved: for tests and simulation."""

    def __init__(self, now_ms: int = 1_780_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """The time it was last set to, in ms since the epoch."""
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Move on by `ms` milliseconds."""
        self._now_ms += ms
