"""Removes what writers left who died before they could say that it was there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ojs.store.jobs.orphans import OrphanCandidate, Orphans

# Whoever wrote something that no head names may still be about to write the head: a function
# runs for a minute at most.
WAIT_S = 120.0


@dataclass(frozen=True)
class Tidied:
    """What was looked at and what was removed, or would have been."""

    parts: int
    removed: int


class Tidy:
    """One pass over everything. Safe at any time, and to do again."""

    def __init__(self, leftovers: Orphans, sleep: Callable[[float], None]) -> None:
        self._leftovers = leftovers
        self._sleep = sleep

    def run(self, *, remove: bool = True) -> Tidied:
        """Look at all parts of jobs, wait, look again at those that no job named, and remove them.

        Costs half a read unit for each 4 KB of the table, and one for each job that has parts.
        Without `remove` it only counts.
        """
        parts, suspects = 0, list[OrphanCandidate]()
        for page in self._leftovers.pages():
            parts += len(page)
            suspects += self._leftovers.unnamed(page)
        if not suspects:
            return Tidied(parts, 0)
        self._sleep(WAIT_S)
        # What is unnamed now was written by somebody who is gone.
        left = self._leftovers.unnamed(suspects)
        if remove:
            self._leftovers.remove(left)
        return Tidied(parts, len(left))
