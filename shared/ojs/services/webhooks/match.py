"""Finds the subscriptions of events, and queues a message for each.

It is an outlet of the projection, like the event bus. Events that the queue rejects are marked in
their page, and the sweep repeats them with the same IDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aws_lambda_powertools import Logger

from ojs.domain.errors import OjsError
from ojs.domain.events.event import Event
from ojs.domain.webhooks import delivery_id, make_fit
from ojs.services.webhooks.parts import HookQueue
from ojs.store.webhooks.webhooks import WebhookDirectory

logger = Logger()


class WebhookMatcher:
    """Queues events for the subscriptions that receive them."""

    def __init__(self, *, webhook_directory: WebhookDirectory, queue: HookQueue) -> None:
        self._directory = webhook_directory
        self._queue = queue

    def publish(self, events: Sequence[Event]) -> set[str]:
        """Queue the messages of events. Return the IDs of the events that failed.

        Without subscriptions, makes one call in 10 seconds.
        """
        try:
            entries = self._directory.read_entries()
        except OjsError as error:
            logger.warning("Reading the directory of webhooks failed", extra={"reason": str(error)})
            return {event.id for event in events}
        messages: list[dict[str, Any]] = []
        for event in events:
            wanting = [name for name, it in entries.items() if it.matches(event.type, event.data)]
            if wanting:
                told = make_fit(event.to_dict())
                messages += ({"delivery": delivery_id(each, told), "event": told}
                             for each in wanting)  # fmt: skip
        refused = self._queue.put(messages) if messages else ()
        return {messages[at]["event"]["id"] for at in refused}
