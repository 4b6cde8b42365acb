"""Queues with a bound: how to make one, and what its depth counter says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ojs.store.table import keys

if TYPE_CHECKING:
    from tests.store.conftest import World

BIG = "x" * 5_000


def counter_value(world: World, queue: str = "default") -> tuple[int, int]:
    found = world.run.table.get(keys.counter(queue), keys.DEPTH) or {}
    return int(found.get("n", 0)), int(found.get("b", 0))


def bound(world: World, queue: str = "default", **config: Any) -> None:
    world.run.queues.configure(queue, config)
