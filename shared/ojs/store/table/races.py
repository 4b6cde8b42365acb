"""Reading and writing again after a lost race."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ojs.domain.errors import BackendUnavailable
from ojs.store.table.errors import LostRace

T = TypeVar("T")


def retry_on_race(
    attempt: Callable[[], T],
    *,
    tries: int = 5,
    busy: str = "Others are changing this job; try again.",
) -> T:
    """The answer of the first attempt that loses no race, of so many tries.

    Each attempt must read afresh what it decides on. Raises BackendUnavailable, which says `busy`,
    when all of them lost.
    """
    for _ in range(tries):
        try:
            return attempt()
        except LostRace:
            continue
    raise BackendUnavailable(busy)
