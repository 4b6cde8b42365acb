"""Connections that note what is sent to them, and workers that listen."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ojs.domain.access import ANYBODY, Principal
from ojs.domain.realtime import CONNECTION_MS, Connection, Listener, Posted, group_of
from tests.simulation.memory import Memory
from tests.store.conftest import World

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

QUEUE = "mail"


@dataclass
class Hub:
    """The connections of a deployment: some have ended, and some messages fail."""

    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    failing: bool = False
    tried: int = 0

    def post(self, connection: str, text: str) -> Posted:
        self.tried += 1
        if connection in self.gone:
            return Posted.GONE
        if self.failing:
            return Posted.FAILED
        self.sent.append((connection, json.loads(text)))
        return Posted.POSTED

    def rung(self) -> list[str]:
        """The connections that were rung, in order."""
        return [connection for connection, _ in self.sent]


class Client:
    """The SDK's client of a table in memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._memory, name)
        return lambda **arguments: operation(arguments)


def in_memory(hub: Hub | None) -> World:
    """A world whose table is in memory, with these connections."""
    client = cast("DynamoDBClient", Client(Memory()))
    return World(client, "memory", connections=hub)


def connect(world: World, name: str, caller: Principal = ANYBODY) -> str:
    """A connection as `$connect` stores it."""
    until_ms = world.clock.now_ms() + CONNECTION_MS
    world.run.stores.connections.add(Connection(name, caller, until_ms))
    return name


def listens(world: World, *names: str, queues: tuple[str, ...] = (QUEUE,)) -> None:
    """Have connections listed as idle workers of these queues."""
    group = group_of(queues)
    for name in names:
        until_ms = world.clock.now_ms() + CONNECTION_MS
        world.run.stores.listeners.add(group, Listener(name, name, until_ms))
    world.run.stores.realtime_directory.note_group(group, queues)
    world.run.stores.realtime_directory.forget()
