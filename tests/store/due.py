"""Jobs that wait for a time, and those for which it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ojs.domain.job import envelope
from ojs.runtime import Runtime
from ojs.store.table import keys

if TYPE_CHECKING:
    from tests.store.conftest import World


def overdue(world: World) -> list[str]:
    """Jobs that something is due for. The sweep has just run."""
    now = keys.upto(world.clock.now_ms())
    return [
        item["pk"]["S"]
        for item in world.items()
        for line, at in (("wpk", "wsk"), ("epk", "esk"))
        if item.get(line, {"S": ""})["S"][:2] in ("D|", "T|") and item[at]["S"] <= now
    ]


def push(run: Runtime, count: int = 1, **options: Any) -> list[str]:
    request = {"type": "t", "args": [1], "options": options}
    if count == 1:
        return [run.enqueue.push(envelope.parse(request)).job.id]
    requests = [envelope.parse(request) for _ in range(count)]
    return [pushed.job.id for pushed in run.enqueue.push_batch(requests)]


def unnoted(world: World) -> Runtime:
    """A container that notes nothing, as one of version 0.2."""
    run = world.another()
    run.stores.registry.note = lambda name, changes=False: None  # type: ignore[method-assign, misc]
    run.stores.due_notes.note = lambda entries: None  # type: ignore[method-assign]
    return run
