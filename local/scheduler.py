"""Runs tasks periodically like EventBridge, shares runs between callers, and prioritizes
requests.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Scheduler:
    """Calls `task` every `interval_s` seconds in a separate thread until it is stopped.

    A failed task is reported, and called again at the next interval.
    """

    def __init__(self, task: Callable[[], object], interval_s: float) -> None:
        self._task = task
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        # Locked while the task runs. Lock it to keep the task from running.
        self.pause = threading.Lock()

    def start(self) -> None:
        """Start. The first call is immediate, to process what became due while stopped."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after a running call has ended."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            with self.pause:
                try:
                    self._task()
                except Exception:  # noqa: BLE001 - the next run must start
                    print("Sweep failed; the next one starts on schedule", file=sys.stderr)
                    traceback.print_exc(file=sys.stderr)
            self._stop.wait(self._interval_s)


class Rounds:
    """Runs `action`, one at a time, for callers who need a run that started after their call."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._begun = 0
        self._done = 0
        # Locked while the action runs. Lock it to keep the action from running.
        self.pause = threading.Lock()

    def run(self) -> None:
        """Wait for a run that started after this call. Raises the error of that run."""
        seen = self._begun
        with self.pause:
            # A run that was already active may have started too early. The next run serves all
            # waiters.
            if self._done > seen:
                return
            self._begun += 1
            self._action()
            self._done = self._begun


class Precedence:
    """Gives requests priority over sweeps, which share their process. Thread-safe.

    With 1,000 queues, sweeps have work at all times.
    """

    def __init__(self, time_s: Callable[[], float] = time.monotonic) -> None:
        self._time_s = time_s
        self._requests = 0
        self._none = threading.Condition()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Enter this context while a request is processed."""
        with self._none:
            self._requests += 1
        try:
            yield
        finally:
            with self._none:
                self._requests -= 1
                if not self._requests:
                    self._none.notify_all()

    def giving_way(self) -> Callable[[], bool]:
        """Return a function that other work calls regularly, to wait for running requests.

        It waits until no request is running, or the work has waited for as long as it has run. So
        continuous requests can double the duration of the work at most. It always returns True.
        """
        began_s = self._time_s()
        waited_s = 0.0

        def wait() -> bool:
            nonlocal waited_s
            # Read without the lock, because this is called often. A missed request waits next time.
            if self._requests:
                at_s = self._time_s()
                most_s = at_s - began_s - 2 * waited_s
                if most_s > 0:
                    with self._none:
                        self._none.wait_for(lambda: not self._requests, most_s)
                    waited_s += self._time_s() - at_s
            return True

        return wait
