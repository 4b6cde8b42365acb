"""Schedules the gauges of all queues: depths, ages, totals, and points of the history.

On AWS a sweep measures them once per minute. Here a request that shows gauges first measures them.
With many queues that would take seconds, so gauges are then measured in the background, and are a
few seconds old.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ojs.clock import Clock

# Maximum number of active queues for which requests wait for gauges.
FEW = 200
# Without writes, gauges change only with time.
GOOD_MS = 1_000
# The same interval as on AWS: the points of the history are one minute apart.
INTERVAL_MS = 60_000
# In the background: interval of the check whether gauges are due, and maximum share of the time
# that measuring may take.
LOOK_S, _PART = 1.0, 10


class Gauges:
    """Measures gauges when they are due. Thread-safe."""

    def __init__(self, take: Callable[[int], int], clock: Clock) -> None:
        """`take` measures gauges as of a time (ms), and returns the number of queues read."""
        self._take = take
        self._clock = clock
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Forget the last measurement, after the table was recreated."""
        self._delivered, self._taken_ms, self._took_ms, self._queues = -1, 0, 0, 0

    def for_request(self, delivered: int) -> None:
        """Measure gauges, unless that takes long.

        `delivered` is the number of stream records so far. If it is unchanged, nothing has changed.
        """
        if self._queues <= FEW:
            with self._lock:
                if delivered != self._delivered or self._age_ms() >= GOOD_MS:
                    self._run(delivered)

    def beside(self, delivered: int) -> None:
        """Measure gauges in the background, if they are due. Call it regularly."""
        with self._lock:
            age_ms = self._age_ms()
            due_ms = INTERVAL_MS
            if self._queues > FEW and delivered != self._delivered:
                due_ms = min(due_ms, max(GOOD_MS, _PART * self._took_ms))
            if age_ms >= due_ms:
                self._run(delivered)

    def _age_ms(self) -> int:
        return self._clock.now_ms() - self._taken_ms

    def _run(self, delivered: int) -> None:
        now_ms = self._clock.now_ms()
        self._queues = self._take(now_ms)
        self._took_ms = self._clock.now_ms() - now_ms
        self._delivered, self._taken_ms = delivered, now_ms
