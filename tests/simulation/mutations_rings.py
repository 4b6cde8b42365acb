"""Defects put into the code on purpose: of rings, and of who is listed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

from ojs.services.jobs.empty_lines import IndexReader
from ojs.services.realtime.listening import ListenerState, Listening
from ojs.services.realtime.rings import Rings
from tests.simulation.mutations_late import Mutation


def nothing(of: type, name: str) -> AbstractContextManager[Any]:
    """A method does nothing."""
    return mock.patch.object(of, name, return_value=None)


def timers_are_not_set() -> AbstractContextManager[Any]:
    """Jobs that are due soon ring nobody, and no fetch is told of them."""
    next_ms = Listening._next_ms

    def forgetful(self: Any, seen: Any, listeners: int, now_ms: int) -> int:
        seen.starts_ms = None
        return next_ms(self, seen, listeners, now_ms)

    return mock.patch.object(Listening, "_next_ms", forgetful)


def fallback_never_comes() -> AbstractContextManager[Any]:
    """A listed worker waits for a ring."""
    return mock.patch.object(Listening, "_fallback_ms", return_value=2**40)


def full_workers_stay_listed() -> AbstractContextManager[Any]:
    """A worker without a free slot is rung."""
    return mock.patch.object(Listening, "_delist", return_value=ListenerState(listed=False))


def no_look_after_listing() -> AbstractContextManager[Any]:
    """A job that came while a worker was not listed waits for the fallback."""
    return mock.patch("ojs.services.realtime.listening._AGAIN_MS", 2**40)


def rung_queues_are_passed_over() -> AbstractContextManager[Any]:
    """A fetch passes over queues that were empty, although it was rung for them."""

    def passes_over(self: Any, is_empty: Any, lane: Any) -> bool:
        return self._many and bool(is_empty(lane, self._lanes, self._due_lanes))

    return mock.patch.object(IndexReader, "_passes_over", passes_over)


def groups_are_forgotten() -> AbstractContextManager[Any]:
    """A group is not stored again while its workers stay listed."""
    listed = Listening._listed

    def once(self: Any, group: str, name: str, seen: Any, *more: Any) -> ListenerState:
        if seen.listed is not True:
            return listed(self, group, name, seen, *more)
        with mock.patch.object(self._directory, "note_group", return_value=False):
            return listed(self, group, name, seen, *more)

    return mock.patch.object(Listening, "_listed", once)


RINGS: dict[str, tuple[Mutation, str]] = {
    "nobody is rung": (partial(nothing, Rings, "flush"), "rings"),
    "a fetch that leaves jobs rings nobody": (
        partial(nothing, Rings, "note_more_in_line"),
        "rings",
    ),
    "a permit that comes free rings nobody": (partial(nothing, Rings, "note_released"), "rings"),
    "a queue that is resumed rings nobody": (partial(nothing, Rings, "note_queue"), "rings"),
    "timers are not set": (timers_are_not_set, "rings"),
    "the fallback never comes": (fallback_never_comes, "rings"),
    "full workers stay listed": (full_workers_stay_listed, "rings"),
    "no look after listing": (no_look_after_listing, "rings"),
    "rung queues are passed over": (rung_queues_are_passed_over, "rings"),
    "groups are forgotten": (groups_are_forgotten, "rings"),
}
