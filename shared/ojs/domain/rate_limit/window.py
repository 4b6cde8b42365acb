"""A sliding rate window, divided into steps. Decides how many jobs can start now. Pure.

At most `limit` jobs start in any interval of one period. Starts are counted per step, and a step is
removed when all of it is older than one period. Therefore a job can wait up to one step longer than
necessary, but never too short.
"""

from __future__ import annotations

from collections.abc import Sequence

from ojs.records import record

STEPS = 10


@record(frozen=True)
class RateWindow:
    """Recent starts: pairs of step number and number of starts, oldest first."""

    passed: tuple[tuple[int, int], ...] = ()

    @property
    def used(self) -> int:
        """The number of counted starts."""
        return sum(count for _, count in self.passed)

    def recent(self, now_ms: int, period_ms: int) -> RateWindow:
        """Return the window without starts that are older than one period."""
        step = _step(now_ms, period_ms)
        return RateWindow(tuple(pair for pair in self.passed if pair[0] >= step - STEPS))

    def room(self, now_ms: int, *, limit: int, period_ms: int) -> int:
        """Return the number of jobs that can start now.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Maximum starts per period.
            period_ms: Period in milliseconds.
        """
        return max(0, limit - self.recent(now_ms, period_ms).used)

    def with_starts(self, count: int, now_ms: int, period_ms: int) -> RateWindow:
        """Count starts.

        Args:
            count: Number of starts. A negative number removes starts that did not happen.
            now_ms: Time of the starts in milliseconds since the epoch.
            period_ms: Period in milliseconds.

        Returns:
            The new window.
        """
        step = _step(now_ms, period_ms)
        steps = dict(self.recent(now_ms, period_ms).passed)
        # The clock of another container might be ahead. Its steps are kept.
        steps[step] = max(0, steps.get(step, 0) + count)
        return RateWindow(tuple(sorted((at, n) for at, n in steps.items() if n)))

    def in_period(self, counted_ms: int, period_ms: int, now_ms: int) -> RateWindow:
        """Convert the starts to the steps of another period.

        All starts of a step are assumed at its end, but at most `now_ms`, so none is removed early.

        Args:
            counted_ms: Current period in milliseconds.
            period_ms: New period in milliseconds.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            The new window.
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
        """Return the stored form."""
        return [list(pair) for pair in self.passed]


def find_step_end(now_ms: int, period_ms: int) -> int:
    """Return the end (ms) of the step of a time."""
    return (_step(now_ms, period_ms) + 1) * period_ms // STEPS


def _step(now_ms: int, period_ms: int) -> int:
    return now_ms * STEPS // max(period_ms, 1)
