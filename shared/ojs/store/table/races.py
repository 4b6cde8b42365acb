"""Handles lost races: retry with new data, use the winner's result, or reject the request."""

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
    busy: str = "Concurrent requests changed this job.",
    pause: Callable[[int], None] = lambda _: None,
) -> T:
    """Call `attempt` until it loses no race, and return its result.

    Args:
        attempt: Makes one attempt. It must read its data again each time.
        tries: Maximum number of attempts.
        busy: Message of the error if all attempts lose.
        pause: Called between two attempts with the number of attempts made.

    Raises:
        BackendContended: All attempts lost.
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
    busy: str = "Concurrent requests changed this job.",
) -> T:
    """Call `attempt` until it loses no race. The caller has read the data for the first attempt.

    Args:
        attempt: Makes one attempt with the data that it receives.
        seen: Data of the first attempt.
        found: Returns the data of the next attempt from the lost race.
        tries: Maximum number of attempts.
        busy: Message of the error if all attempts lose.

    Raises:
        BackendContended: All attempts lost.
    """
    for _ in range(tries):
        try:
            return attempt(seen)
        except LostRace as lost:
            seen = found(lost)
    raise BackendContended(busy)


def lost_race(write: Callable[[], object]) -> LostRace | None:
    """Make a write. Return its LostRace if another write came first, otherwise None."""
    try:
        write()
    except LostRace as lost:
        return lost
    return None


def won_or(write: Callable[[], T], found: Callable[[LostRace], S]) -> T | S:
    """Make a write and return its result. If it lost a race, return the result of `found`."""
    try:
        return write()
    except LostRace as lost:
        return found(lost)


def unless_lost(write: Callable[[], T]) -> T | None:
    """Make a write and return its result. If it lost a race, return None."""
    return won_or(write, lambda _: None)


def wins(write: Callable[[], object]) -> bool:
    """Make a write. Return false if it lost a race."""
    return lost_race(write) is None


@contextmanager
def losing_as(error: Callable[[LostRace], Exception]) -> Iterator[None]:
    """Raise the error that `error` creates, if a write in the block loses a race."""
    try:
        yield
    except LostRace as lost:
        raise error(lost) from None
