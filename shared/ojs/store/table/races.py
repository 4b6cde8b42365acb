"""What a caller does after a lost race: decide again, take what the winner left, or refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ojs.domain.errors import BackendContended
from ojs.store.table.errors import LostRace

S = TypeVar("S")
T = TypeVar("T")


def retry_on_race(
    attempt: Callable[[], T],
    *,
    tries: int = 5,
    busy: str = "Others are changing this job; try again.",
    pause: Callable[[int], None] = lambda _: None,
) -> T:
    """Return the result of the first attempt, of up to `tries`, that loses no race.

    Each attempt must read its data again. `pause` is called between two attempts, with the number
    of attempts made. Raises BackendContended with the message `busy` when all of them lost.
    """
    for tried in range(1, tries + 1):
        try:
            return attempt()
        except LostRace:
            if tried < tries:
                pause(tried)
    raise BackendContended(busy)


def retry_as_found(
    attempt: Callable[[S], T],
    seen: S,
    found: Callable[[LostRace], S],
    *,
    tries: int = 5,
    busy: str = "Others are changing this job; try again.",
) -> T:
    """As `retry_on_race`, for a caller that has read already: the first attempt decides on what was
    `seen`, and each later one on what was `found` after the lost race.

    Raises BackendContended, which says `busy`, when all of them lost.
    """
    for _ in range(tries):
        try:
            return attempt(seen)
        except LostRace as lost:
            seen = found(lost)
    raise BackendContended(busy)


def lost_race(write: Callable[[], object]) -> LostRace | None:
    """Make a write; the race that it lost, if it did."""
    try:
        write()
    except LostRace as lost:
        return lost
    return None


def won_or(write: Callable[[], T], found: Callable[[LostRace], S]) -> T | S:
    """The answer of a write, or what the loser makes of what it `found`."""
    try:
        return write()
    except LostRace as lost:
        return found(lost)


def unless_lost(write: Callable[[], T]) -> T | None:
    """The answer of a write; None if it lost its race."""
    return won_or(write, lambda _: None)


def wins(write: Callable[[], object]) -> bool:
    """Make a write; False if it lost its race."""
    return lost_race(write) is None


@contextmanager
def losing_as(error: Callable[[LostRace], Exception]) -> Iterator[None]:
    """Raise this error instead where a write of the block loses its race."""
    try:
        yield
    except LostRace as lost:
        raise error(lost) from None
