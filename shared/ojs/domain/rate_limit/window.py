"""A sliding rate window, divided into steps: how many jobs may start now. Pure.

At most `limit` jobs start in any stretch of time as long as the period. Starts are counted by step
and forgotten when the whole step is a period ago. So a job may wait up to one step longer than
necessary, never shorter.
"""

from __future__ import annotations

from collections.abc import Sequence

from ojs.records import record

STEPS = 10


@record(frozen=True)
class RateWindow:
    """Recent starts: pairs of a step's number and the starts in it, oldest first."""

    passed: tuple[tuple[int, int], ...] = ()

    @property
    def used(self) -> int:
        """The number of remembered starts."""
        return sum(count for _, count in self.passed)

    def recent(self, now_ms: int, period_ms: int) -> RateWindow:
        """The window without starts before the last period."""
        step = _step(now_ms, period_ms)
        return RateWindow(tuple(pair for pair in self.passed if pair[0] >= step - STEPS))

    def room(self, now_ms: int, *, limit: int, period_ms: int) -> int:
        """How many jobs may start now."""
        return max(0, limit - self.recent(now_ms, period_ms).used)

    def with_starts(self, count: int, now_ms: int, period_ms: int) -> RateWindow:
        """The window after `count` starts now; a negative number gives back unused ones."""
        step = _step(now_ms, period_ms)
        steps = dict(self.recent(now_ms, period_ms).passed)
        # Another container's clock may be ahead: the steps that it counted are kept.
        steps[step] = max(0, steps.get(step, 0) + count)
        return RateWindow(tuple(sorted((at, n) for at, n in steps.items() if n)))

    def in_period(self, counted_ms: int, period_ms: int, now_ms: int) -> RateWindow:
        """The same starts in steps of another period. Those of a step count at its end, or now, so
        that none is forgotten early.
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
        """As stored."""
        return [list(pair) for pair in self.passed]


def _step(now_ms: int, period_ms: int) -> int:
    return now_ms * STEPS // max(period_ms, 1)
