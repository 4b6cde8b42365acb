"""How many jobs a rate limit lets pass now: a sliding window of small steps (pure).

At most `limit` pass in any stretch of time as long as the period: what passed is remembered by the
step it passed in, and forgotten when the whole step is a period ago. So up to a step's worth of
the period is waited longer than need be; never shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STEPS = 10


@dataclass(frozen=True)
class RateWindow:
    """What passed lately: pairs of a step's number and how many passed in it, oldest first."""

    passed: tuple[tuple[int, int], ...] = ()

    @property
    def used(self) -> int:
        """How many passed, as far as it is remembered."""
        return sum(count for _, count in self.passed)

    def recent(self, now_ms: int, period_ms: int) -> RateWindow:
        """Without what is longer ago than a period."""
        step = _step(now_ms, period_ms)
        return RateWindow(tuple(pair for pair in self.passed if pair[0] >= step - STEPS))

    def room(self, now_ms: int, *, limit: int, period_ms: int) -> int:
        """How many may pass now."""
        return max(0, limit - self.recent(now_ms, period_ms).used)

    def taking(self, count: int, now_ms: int, period_ms: int) -> RateWindow:
        """After `count` passed now; a negative number gives back what was not used."""
        step = _step(now_ms, period_ms)
        steps = dict(self.recent(now_ms, period_ms).passed)
        # The clock of another container may be ahead: what it noted stays.
        steps[step] = max(0, steps.get(step, 0) + count)
        return RateWindow(tuple(sorted((at, n) for at, n in steps.items() if n)))

    def in_period(self, counted_ms: int, period_ms: int, now_ms: int) -> RateWindow:
        """The same in steps of another period than it was counted in; what passed in a step counts
        at its end, or now, so that nothing is forgotten early.
        """
        if counted_ms == period_ms:
            return self
        steps: dict[int, int] = {}
        for at, count in self.passed:
            end_ms = -(-(at + 1) * counted_ms // STEPS) - 1
            step = _step(min(now_ms, end_ms), period_ms)
            steps[step] = steps.get(step, 0) + count
        return RateWindow(tuple(sorted(steps.items())))

    def pairs(self) -> list[Sequence[int]]:
        """For storing."""
        return [list(pair) for pair in self.passed]


def _step(now_ms: int, period_ms: int) -> int:
    return now_ms * STEPS // max(period_ms, 1)
