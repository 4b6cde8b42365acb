"""Publishes what the bus refused when it came: a sweep, once a minute.

The events are in the pages of the event log, which are marked. All events of a page that belong on
the bus are published again, under the same ids.
"""

from __future__ import annotations

from collections.abc import Callable

from ojs.domain.events.event import Event, matches
from ojs.projections.outlets import Bus
from ojs.store.derived.projection import ProjectionStore

# Pages that one run publishes; the next run goes on.
LIMIT = 100


def publish(
    store: ProjectionStore, bus: Bus, types: tuple[str, ...], go_on: Callable[[], bool]
) -> int:
    """Publish marked pages, oldest first, until the bus refuses; how many were published.

    One call when there are none. Safe to repeat, and to run twice at once. Raises OjsError.
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
