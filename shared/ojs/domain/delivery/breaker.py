"""The circuit breaker of a delivery: pauses pushes to a target that fails repeatedly.

    closed       The delivery pushes jobs. `FAULTS` consecutive faults open the breaker.
    open         The delivery pushes no jobs until `until_ms`. If a job that was pushed earlier
                 ends with a fault now, its attempt is not counted.
    half_open    The delivery pushes one job as a trial. Success closes the breaker. A fault opens
                 it for twice as long.

A fault is a failure that doesn't depend on the job: a crash, a timeout, a 5xx response, or a failed
connection.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from ojs.records import record

# Consecutive faults that open the breaker.
FAULTS = 5
FIRST_OPEN_MS = 60_000
MOST_OPEN_MS = 300_000


class BreakerState(StrEnum):
    """State of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@record(frozen=True)
class Breaker:
    """A breaker as stored. Times in milliseconds since the epoch.

    `faults` counts consecutive faults. `until_ms` is the end of the open period, or None while the
    breaker is closed, and `open_ms` is the length of that period. Until `trial_ms`, the breaker
    waits for the outcome of a trial.
    """

    faults: int = 0
    until_ms: int | None = None
    open_ms: int = 0
    trial_ms: int | None = None

    def state(self, now_ms: int) -> BreakerState:
        """Return the state at `now_ms`."""
        if self.until_ms is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_ms < self.until_ms else BreakerState.HALF_OPEN

    def may_try(self, now_ms: int) -> bool:
        """Return whether a trial can start: the breaker is half open and no
        other trial is running.
        """
        half_open = self.state(now_ms) is BreakerState.HALF_OPEN
        return half_open and (self.trial_ms is None or self.trial_ms <= now_ms)

    def free_ms(self, now_ms: int) -> int | None:
        """Return the time (ms) to check the breaker again, or None if it allows a push now."""
        if self.until_ms is None or self.may_try(now_ms):
            return None
        return self.until_ms if now_ms < self.until_ms else self.trial_ms

    def trying(self, until_ms: int) -> Breaker:
        """Return the breaker with a trial whose outcome is expected by `until_ms`."""
        return replace(self, trial_ms=until_ms)

    def after_fault(self, now_ms: int) -> Breaker:
        """Return the breaker after a fault of the target.

        An open breaker does not change: the fault belongs to a push from before it opened.
        """
        state = self.state(now_ms)
        if state is BreakerState.OPEN:
            return self
        faults = self.faults + 1
        if state is BreakerState.CLOSED and faults < FAULTS:
            return replace(self, faults=faults)
        open_ms = min(MOST_OPEN_MS, 2 * self.open_ms) or FIRST_OPEN_MS
        return Breaker(faults, now_ms + open_ms, open_ms)

    def with_success(self) -> Breaker:
        """Return the closed breaker, after an outcome that shows that the target is healthy."""
        return Breaker()
