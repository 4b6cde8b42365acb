"""Removes orphans: parts of jobs and cron jobs whose writers crashed before using them."""

from __future__ import annotations

from collections.abc import Callable

from ojs.records import record
from ojs.store.jobs.orphans import OrphanCandidate, Orphans

# A writer stores a part before the record that names it, and may still be about to write that: a
# function runs for a minute at most.
WAIT_S = 120.0


@record(frozen=True)
class Tidied:
    """How many parts were checked, and how many were removed, or would have been."""

    parts: int
    removed: int


class Tidy:
    """Finds and removes orphans. Safe at any time, and to repeat."""

    def __init__(self, orphans: Orphans, sleep: Callable[[float], None]) -> None:
        self._orphans = orphans
        self._sleep = sleep

    def run(self, *, remove: bool = True) -> Tidied:
        """Check all parts, wait, check again those that no record names, and remove them.

        Costs half a read unit for each 4 KB of the table, and one for each record that has parts.
        Without `remove` it only counts.
        """
        parts, suspects = 0, list[OrphanCandidate]()
        for page in self._orphans.pages():
            parts += len(page)
            suspects += self._orphans.unreferenced(page)
        if not suspects:
            return Tidied(parts, 0)
        self._sleep(WAIT_S)
        # The writers of parts that are still unnamed have crashed.
        left = self._orphans.unreferenced(suspects)
        if remove:
            self._orphans.remove(left)
        return Tidied(parts, len(left))
