"""EventBridge's part: calls a task again and again; rounds, for which many ask at once; and who has
to wait where one process does it all.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Scheduler:
    """Calls `task` every `interval_s` seconds in a thread of its own until stopped.

    A task that fails is reported and called again next time, as a schedule in the cloud would.
    """

    def __init__(self, task: Callable[[], object], interval_s: float) -> None:
        self._task = task
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        # Held while the task runs; holding it keeps the task from running.
        self.pause = threading.Lock()

    def start(self) -> None:
        """Begin; the first call comes at once, to catch up with what fell due while stopped."""
        self._thread.start()

    def stop(self) -> None:
        """End after the call that is running, if any."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            with self.pause:
                try:
                    self._task()
                except Exception:  # noqa: BLE001 - the next run must come whatever this one did
                    print("sweep failed; it runs again", file=sys.stderr)
                    traceback.print_exc(file=sys.stderr)
            self._stop.wait(self._interval_s)


class Rounds:
    """Runs `action`, one run at a time, for callers who need a run that began after their call."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._begun = 0
        self._done = 0
        # Held while the action runs; holding it keeps the action from running.
        self.pause = threading.Lock()

    def run(self) -> None:
        """Return when a run is over that began after this call; raises what its own run raised."""
        seen = self._begun
        with self.pause:
            # The one that was under way may have begun too early; the next is for all who waited.
            if self._done > seen:
                return
            self._begun += 1
            self._action()
            self._done = self._begun


class Precedence:
    """Lets requests go first: they are answered in the process in which the sweeps run, and with a
    thousand queues these have something to do all the time. For several threads.
    """

    def __init__(self, time_s: Callable[[], float] = time.monotonic) -> None:
        self._time_s = time_s
        self._requests = 0
        self._none = threading.Condition()

    @contextmanager
    def request(self) -> Iterator[None]:
        """While a request is answered."""
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
        """For one run of other work: to be called now and then, it returns when no request is being
        answered, or the run has waited for as long as it has worked, so that requests that do not
        end hold it up for no longer than that. Always True: there is time left.
        """
        began_s = self._time_s()
        waited_s = 0.0

        def wait() -> bool:
            nonlocal waited_s
            # Read without the lock, as this is called often; what it misses waits for next time.
            if self._requests:
                at_s = self._time_s()
                most_s = at_s - began_s - 2 * waited_s
                if most_s > 0:
                    with self._none:
                        self._none.wait_for(lambda: not self._requests, most_s)
                    waited_s += self._time_s() - at_s
            return True

        return wait
