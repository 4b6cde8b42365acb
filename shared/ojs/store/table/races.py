"""Reading and writing again after a lost race."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ojs.domain.errors import BackendContended
from ojs.store.table.errors import LostRace

T = TypeVar("T")


def retry_on_race(
    attempt: Callable[[], T],
    *,
    tries: int = 5,
    busy: str = "Others are changing this job; try again.",
    pause: Callable[[int], None] = lambda _: None,
) -> T:
    """The answer of the first attempt that loses no race, of so many tries.

    Each attempt must read afresh what it decides on. `pause` is called between two of them, with
    how many were made. Raises BackendContended, which says `busy`, when all of them lost.
    """
    for tried in range(1, tries + 1):
        try:
            return attempt()
        except LostRace:
            if tried < tries:
                pause(tried)
    raise BackendContended(busy)
