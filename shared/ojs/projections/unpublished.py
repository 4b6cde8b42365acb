"""Publishes events that EventBridge rejected earlier. The sweep does this once a minute.

The events are in marked pages of the event log. All events of a page that the deployment selects
are published again, with the same IDs.
"""

from __future__ import annotations

from collections.abc import Callable

from ojs.domain.events.event import Event, matches
from ojs.projections.outlets import Bus
from ojs.store.derived.projection import ProjectionStore

# Maximum pages per run. The next run continues.
LIMIT = 100


def publish(
    store: ProjectionStore, bus: Bus, types: tuple[str, ...], go_on: Callable[[], bool]
) -> int:
    """Publish marked pages, oldest first, until EventBridge rejects an event.

    The call is safe to repeat and to run concurrently. Without marked pages, it is one call.

    Args:
        store: Store with the event pages.
        bus: Bus to publish on.
        types: Event types that the deployment selects.
        go_on: Returns false when the time is up. Called before each page.

    Returns:
        Number of published pages.

    Raises:
        OjsError: A read or write of the table failed.
    """
    done = 0
    for key in store.unpublished(LIMIT):
        if not go_on():
            break
        told = (Event.of(each) for each in store.page_events(key))
        if bus.publish([event for event in told if matches(event.type, types)]):
            break
        store.published(key)
        done += 1
    return done
