"""Defects put into the code on purpose: of webhooks, from the log to the endpoint."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from ojs.projections import unpublished
from ojs.services.sweeps import SweepReport
from ojs.services.webhooks.match import WebhookMatcher
from ojs.services.webhooks.send import WebhookSender
from ojs.services.webhooks.sweep import WebhookSweep
from ojs.store.webhooks.webhooks import WebhookStore
from tests.simulation.mutations_late import Mutation


def refused_messages_are_forgotten() -> AbstractContextManager[Any]:
    """What the queue refuses is taken as sent."""
    publish = WebhookMatcher.publish

    def forgets(self: Any, events: Any) -> set[str]:
        publish(self, events)
        return set()

    return mock.patch.object(WebhookMatcher, "publish", forgets)


def marked_pages_are_forgotten() -> AbstractContextManager[Any]:
    """Nobody publishes again what was refused."""
    return mock.patch.object(unpublished, "publish", return_value=0)


def held_back_events_are_dropped() -> AbstractContextManager[Any]:
    """What comes while the breaker is open is not stored."""
    return mock.patch.object(WebhookSender, "_set_aside", return_value=None)


def failures_have_no_entry() -> AbstractContextManager[Any]:
    """A delivery that waits for its next attempt is not in the index."""
    put = WebhookStore.put

    def puts(self: Any, before: Any, after: Any, *, again_ms: int = 0) -> None:
        put(self, before, replace(after, next_ms=None), again_ms=0)

    return mock.patch.object(WebhookStore, "put", puts)


def the_sweep_sends_nothing() -> AbstractContextManager[Any]:
    """What waits longer than a message can is never sent."""
    return mock.patch.object(WebhookSweep, "run_once", return_value=SweepReport({}))


def the_directory_is_read_late() -> AbstractContextManager[Any]:
    """A container takes what a replica told it for the subscriptions that there are."""
    read = WebhookStore.read_directory

    def reads(self: Any, *, consistent: bool = True) -> Any:
        return read(self, consistent=False)

    return mock.patch.object(WebhookStore, "read_directory", reads)


HOOKS: dict[str, tuple[Mutation, str]] = {
    "refused messages are forgotten": (refused_messages_are_forgotten, "hooks"),
    "marked pages are forgotten": (marked_pages_are_forgotten, "hooks"),
    "held back events are dropped": (held_back_events_are_dropped, "hooks"),
    "failures have no entry": (failures_have_no_entry, "hooks"),
    "the directory is read late": (the_directory_is_read_late, "hooks"),
    "the sweep sends nothing": (the_sweep_sends_nothing, "hooks"),
}
