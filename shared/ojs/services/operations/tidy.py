"""Deletes orphans: stored payloads and definitions without a record, because the writer crashed."""

from __future__ import annotations

from collections.abc import Callable

from ojs.records import record
from ojs.store.jobs.orphans import OrphanCandidate, Orphans

# Time (s) between the two checks. A writer stores a part before the record that refers to it. The
# record might follow later, because a function runs for at most one minute.
WAIT_S = 120.0


@record(frozen=True)
class Tidied:
    """The number of checked parts, and of parts that were (or would be) deleted."""

    parts: int
    removed: int


class Tidy:
    """Finds and deletes orphans. Safe at any time, and safe to repeat."""

    def __init__(self, orphans: Orphans, sleep: Callable[[float], None]) -> None:
        self._orphans = orphans
        self._sleep = sleep

    def run(self, *, remove: bool = True) -> Tidied:
        """Check all parts, wait, check the unreferenced ones again, and delete them.

        Costs half a read unit per 4 KB of the table, and one read unit per record with parts. If
        `remove` is false, the parts are only counted.
        """
        parts, suspects = 0, list[OrphanCandidate]()
        for page in self._orphans.pages():
            parts += len(page)
            suspects += self._orphans.unreferenced(page)
        if not suspects:
            return Tidied(parts, 0)
        self._sleep(WAIT_S)
        # The writers of parts that are still unreferenced have crashed.
        left = self._orphans.unreferenced(suspects)
        if remove:
            self._orphans.remove(left)
        return Tidied(parts, len(left))
