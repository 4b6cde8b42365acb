"""The table's stream, read a second time: sends events to subscribers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from aws_lambda_powertools import Logger

from ojs import runtime
from ojs.projections.notify import EventNotifier
from ojs.runtime import Runtime

logger = Logger()


# The local server and tests replace the runtime.
@lru_cache(maxsize=1)
def _notify(current: Runtime) -> EventNotifier:
    stores, sender = current.stores, current.event_sender
    if sender is None:
        raise LookupError("The environment of this function names no WebSocket API.")
    return EventNotifier(
        directory=stores.realtime_directory,
        subscribers=stores.subscribers,
        jobs=stores.jobs,
        sender=sender,
        clock=current.clock,
        service=current.settings.service,
    )


def forget() -> None:
    """Read the directory and the subscribers at the next batch.

    The local server calls it after each message of a client, so that a subscription counts at once.
    """
    _notify.cache_clear()
    runtime.current().stores.realtime_directory.forget()


def handler(event: Mapping[str, Any], _context: object) -> None:
    """Send the events of a batch of stream records. An error brings the whole batch again."""
    _notify(runtime.current()).run(event.get("Records") or [])


runtime.prepare("event_sender")
