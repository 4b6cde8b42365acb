"""Work that many ask for at once and that is done once for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Rounds:
    """Runs `action`, one run at a time, for callers who need a run that began after their call."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._running = threading.Lock()
        self._begun = 0
        self._done = 0

    def run(self) -> None:
        """Return when a run is over that began after this call; raises what its own run raised."""
        seen = self._begun
        with self._running:
            # The one that was under way may have begun too early; the next is for all who waited.
            if self._done > seen:
                return
            self._begun += 1
            self._action()
            self._done = self._begun

    @property
    def pause(self) -> threading.Lock:
        """Held while the action runs; holding it keeps the action from running."""
        return self._running
