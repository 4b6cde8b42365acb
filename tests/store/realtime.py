"""Connections of a test: what was posted to each, and how posts fail."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ojs.domain.access import ALL_SCOPES, Principal
from ojs.domain.realtime import CONNECTION_MS, Connection, Posted, Subscriber
from ojs.projections.notify import EventNotifier
from ojs.services.for_each import one_by_one
from ojs.services.realtime.event_replay import EventReplay
from ojs.services.realtime.event_sender import EventSender
from ojs.services.realtime.sockets import Sockets

if TYPE_CHECKING:
    from ojs.runtime import Runtime
    from tests.store.conftest import World


@dataclass
class FakeConnections:
    """Takes messages. `outcome` says what becomes of one: connection, text."""

    outcome: Callable[[str, str], Posted] = lambda _connection, _text: Posted.POSTED
    tried: list[tuple[str, Any]] = field(default_factory=list)
    posted: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def post(self, connection: str, text: str) -> Posted:
        self.tried.append((connection, json.loads(text)))
        outcome = self.outcome(connection, text)
        if outcome is Posted.POSTED:
            self.posted[connection].append(json.loads(text))
        return outcome

    def take(self, connection: str) -> list[Any]:
        return self.posted.pop(connection, [])


def sockets_of(run: Runtime, event_replay: EventReplay | None = None) -> Sockets:
    """What serves the messages of clients in a container."""
    stores = run.stores
    return Sockets(
        connections=stores.connections,
        listeners=stores.listeners,
        subscribers=stores.subscribers,
        realtime_directory=stores.realtime_directory,
        jobs=stores.jobs,
        queues=stores.queues,
        event_replay=event_replay,
        clock=run.clock,
        realtime="all",
    )


class Audience:
    """Subscribers on a world's table, and what sends them events."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connections = FakeConnections()
        self.sender = EventSender(self.connections, one_by_one)
        self.notify = self.another()

    def another(self) -> EventNotifier:
        """One more container, with nothing in its memory."""
        run = self.world.another()
        self.table = run.table
        return EventNotifier(
            directory=run.stores.realtime_directory,
            subscribers=run.stores.subscribers,
            jobs=run.stores.jobs,
            sender=self.sender,
            clock=run.clock,
            service="ojs-backend-aws",
        )

    def subscribe(
        self, connection: str, channel: str, principal: Principal | None = None, **options: Any
    ) -> Subscriber:
        """Subscribe a connection, as a message of it does."""
        stores, now_ms = self.world.run.stores, self.world.clock.now_ms()
        who = principal or Principal("reader", ALL_SCOPES)
        until_ms = options.pop("until_ms", now_ms + CONNECTION_MS)
        found = stores.connections.get(connection, now_ms=now_ms)
        if found is None:
            found = Connection(connection, who, until_ms)
            stores.connections.add(found)
        assert stores.connections.add_channel(connection, channel)
        subscriber = Subscriber(connection, channel, who, until_ms, **options)
        assert stores.subscribers.add(subscriber, now_ms=now_ms)
        stores.realtime_directory.note_channel(channel)
        return subscriber
