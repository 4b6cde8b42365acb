"""EventBridge's part: calls the sweep again and again."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable


class Scheduler:
    """Calls `task` every `interval_s` seconds in a thread of its own until stopped.

    A task that fails is reported and called again next time, as a schedule in the cloud would.
    """

    def __init__(self, task: Callable[[], object], interval_s: float) -> None:
        self._task = task
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._running = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def start(self) -> None:
        """Begin; the first call comes at once, to catch up with what fell due while stopped."""
        self._thread.start()

    def stop(self) -> None:
        """End after the call that is running, if any."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def pause(self) -> threading.Lock:
        """Held while the task runs; holding it keeps the task from running."""
        return self._running

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._running:
                try:
                    self._task()
                except Exception:  # noqa: BLE001 - the next run must come whatever this one did
                    print("sweep failed; it runs again", file=sys.stderr)
                    traceback.print_exc(file=sys.stderr)
            self._stop.wait(self._interval_s)
