"""Defects put into the code on purpose: of due notes, and of the sweep that follows them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from ojs.store.queues import due_notes, registry
from ojs.store.queues.due_notes import DueLines, DueNotes
from tests.simulation.mutations_late import Mutation


def line_is_not_noted() -> AbstractContextManager[Any]:
    """An entry is written, and its line is not noted."""
    return mock.patch.object(DueNotes, "note", return_value=None)


def one_of_many_is_noted() -> AbstractContextManager[Any]:
    """Of several lines that one request writes to, the first one is noted."""
    note = DueNotes.note

    def first(self: DueNotes, entries: Any) -> None:
        note(self, [*entries][:1])

    return mock.patch.object(DueNotes, "note", first)


def done_too_early() -> AbstractContextManager[Any]:
    """An interval is done when it ends, and not when all writes for it took effect."""
    return mock.patch.object(due_notes, "SETTLED_MS", -due_notes.BUCKET_MS)


def ended_intervals_are_passed_over() -> AbstractContextManager[Any]:
    """The sweep reads the lines of the present interval, and those of another when it settles."""
    lines = DueNotes.lines

    def present(self: DueNotes) -> DueLines:
        self._shown = self._clock.now_ms() // due_notes.BUCKET_MS
        return lines(self)

    return mock.patch.object(DueNotes, "lines", present)


def marks_stay() -> AbstractContextManager[Any]:
    """A change of a queue's record leaves the mark that sweeps need not read it."""
    noting = registry._noting

    def mutated(*args: Any, **how: Any) -> Any:
        made = noting(*args, **how)
        return replace(made, remove=[name for name in made.remove if name != "plain"])

    return mock.patch.object(registry, "_noting", mutated)


DUE_NOTES: Mapping[str, tuple[Mutation, str]] = {
    "a line is not noted": (line_is_not_noted, "due_notes"),
    "one of many lines is noted": (one_of_many_is_noted, "due_notes"),
    "an interval is done too early": (done_too_early, "due_notes"),
    "marks of queues stay": (marks_stay, "due_notes"),
    "ended intervals are passed over": (ended_intervals_are_passed_over, "due_notes"),
}
