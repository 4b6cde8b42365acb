"""When the local server takes the gauges of all queues: depths, ages, totals, points of history.

In the cloud a sweep takes them once a minute. Here a request that shows them finds them fresh, as
whoever tries something out expects; where there are so many queues that each request would wait
for seconds, they are taken beside the requests, and are some seconds old.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ojs.clock import Clock

# Up to so many queues that do not rest, requests wait for gauges.
FEW = 200
# Where nothing has been written, gauges change only by the time that passes.
GOOD_MS = 1_000
# As often as in the cloud: the points of the history are of minutes.
INTERVAL_MS = 60_000
# Beside the requests: how often it is looked whether they are due, and of how much time taking
# them may be a part.
LOOK_S, _PART = 1.0, 10


class Gauges:
    """Takes the gauges when they are due. For several threads."""

    def __init__(self, take: Callable[[int], int], clock: Clock) -> None:
        """`take` takes them as of a time (ms), and returns how many queues it has read."""
        self._take = take
        self._clock = clock
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Nothing is known: of a table that was made anew."""
        self._delivered, self._taken_ms, self._took_ms, self._queues = -1, 0, 0, 0

    def for_request(self, delivered: int) -> None:
        """Have fresh ones, unless that takes long. `delivered` is how many stream records there
        have been: where there is no other, nothing has changed.
        """
        if self._queues <= FEW:
            with self._lock:
                if delivered != self._delivered or self._age_ms() >= GOOD_MS:
                    self._run(delivered)

    def beside(self, delivered: int) -> None:
        """Have them taken, as far as no request does; called now and then."""
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
