"""The clock. All code receives a clock as a parameter, so that tests can set the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Returns the current time."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch, UTC."""
        ...


class SystemClock:
    """A clock that returns the time of the operating system."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch, UTC."""
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that changes only when a test or a simulation advances it."""

    def __init__(self, now_ms: int = 1_780_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return the time of this clock in milliseconds since the epoch."""
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Advance the clock by `ms` milliseconds."""
        self._now_ms += ms
