"""Queues with a bound: how to make one, and what its depth counter says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ojs.domain.job import envelope
from ojs.store.table import keys

if TYPE_CHECKING:
    from ojs.store.bounds.depth_counter import DepthValue
    from tests.store.conftest import World

Worlds = Callable[[], AbstractContextManager["World"]]
BIG = "x" * 5_000
QUEUE = "bounded"
DONE = ("completed", "cancelled", "discarded")


def request(number: int = 0, queue: str = QUEUE, **options: Any) -> envelope.JobRequest:
    raw = {"type": "email.send", "args": [number], "queue": queue, "options": options}
    return envelope.parse(raw)


def value_of(world: World, queue: str = QUEUE) -> DepthValue:
    return world.run.stores.depth.value(queue)


def counter_value(world: World, queue: str = "default") -> tuple[int, int]:
    found = world.run.table.get(keys.counter(queue), keys.DEPTH) or {}
    return int(found.get("n", 0)), int(found.get("b", 0))


def bound(world: World, queue: str = "default", **config: Any) -> None:
    world.run.queues.configure(queue, config)
