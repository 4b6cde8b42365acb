"""The circuit breaker of a delivery: a target that fails again and again is left alone for a while.

    closed       jobs are pushed; so many faults in a row open it
    open         nothing is pushed until its time is over; what still comes back from before costs
                 no job an attempt
    half_open    one job is pushed as a trial: it closes the breaker, or opens it for twice as long

A fault is what says nothing of the job: a crash, a time-out, an answer of 5xx, no connection.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from ojs.records import record

# Faults in a row that open it.
FAULTS = 5
FIRST_OPEN_MS = 60_000
MOST_OPEN_MS = 300_000


class BreakerState(StrEnum):
    """What a breaker lets through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@record(frozen=True)
class Breaker:
    """A breaker as stored. `faults` in a row; while it is not closed it is open until `until_ms`,
    for `open_ms`; and until `trial_ms` the outcome of a trial is waited for.
    """

    faults: int = 0
    until_ms: int | None = None
    open_ms: int = 0
    trial_ms: int | None = None

    def state(self, now_ms: int) -> BreakerState:
        """What it lets through now."""
        if self.until_ms is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_ms < self.until_ms else BreakerState.HALF_OPEN

    def may_try(self, now_ms: int) -> bool:
        """Whether a trial may begin: it is half open, and no other trial is under way."""
        half_open = self.state(now_ms) is BreakerState.HALF_OPEN
        return half_open and (self.trial_ms is None or self.trial_ms <= now_ms)

    def free_ms(self, now_ms: int) -> int | None:
        """When to ask it again (ms); None if it lets jobs through."""
        if self.until_ms is None or self.may_try(now_ms):
            return None
        return self.until_ms if now_ms < self.until_ms else self.trial_ms

    def trying(self, until_ms: int) -> Breaker:
        """With a trial whose outcome is there by `until_ms`."""
        return replace(self, trial_ms=until_ms)

    def after_fault(self, now_ms: int) -> Breaker:
        """After a fault of the target. One that is open stays as it is: the fault is of a push from
        before.
        """
        state = self.state(now_ms)
        if state is BreakerState.OPEN:
            return self
        faults = self.faults + 1
        if state is BreakerState.CLOSED and faults < FAULTS:
            return replace(self, faults=faults)
        open_ms = min(MOST_OPEN_MS, 2 * self.open_ms) or FIRST_OPEN_MS
        return Breaker(faults, now_ms + open_ms, open_ms)

    def after_success(self) -> Breaker:
        """After an outcome that shows that the target works."""
        return Breaker()
