"""Jobs that die, and what the dead letter queue says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ojs.domain.job.job import Job
from ojs.store.table import keys
from ojs.store.table.values import Item
from tests.store.spending import WORKER
from tests.store.streams import Projected

if TYPE_CHECKING:
    from tests.store.conftest import World

Worlds = Callable[[], AbstractContextManager["World"]]


def die(
    world: World, queue: str = "default", kind: str = "test.job", error: str = "Boom", *args: Any
) -> Job:
    """A job that fails for good."""
    job = world.push(*args, kind=kind, queue=queue)
    world.run.fetch.fetch([queue], 1, WORKER)
    said = {"code": "DEAD_LETTER", "type": error, "message": "no"}
    return world.run.finish.nack(job.id, error=said, worker_id=WORKER)


def told(projected: Projected, prefix: str = "dead_letter.") -> list[tuple[str, str]]:
    found = [event for event in projected.events() if event["type"].startswith(prefix)]
    return [(event["type"].removeprefix(prefix), event["subject"]) for event in found]


def dead(world: World, *queues: str) -> list[str]:
    """Ids of dead letters, in order of their deaths."""
    found = [
        (item["wsk"]["S"], item["pk"]["S"].removeprefix("J|"))
        for item in world.items()
        if "dead" in item and item["pk"]["S"].startswith("J|")
        if not queues or item["queue"]["S"] in queues
    ]
    return [job_id for _, job_id in sorted(found)]


def dying(world: World, number: int, queue: str = "mail", *args: Any) -> list[str]:
    """So many, a second apart."""
    found = []
    for _ in range(number):
        found.append(die(world, queue, "test.job", "Boom", *args).id)
        world.clock.advance(1_000)
    return found


def letters(world: World, size: int, queue: str = "mail") -> None:
    """So many dead letters of a queue, a millisecond apart, quickly."""
    (job_id,) = dying(world, 1, queue)
    record = world.run.table.get(keys.job(job_id), keys.RECORD) or {}
    died_ms = int(record["discarded"])

    def some(at: int) -> Iterator[Item]:
        for number in range(at + 1, size, 20):
            made = f"019539a4-0000-7000-8000-{number:012x}"
            place = keys.dead_at(died_ms + number, made)
            yield {
                **record, "pk": keys.job(made), "discarded": died_ms + number,
                "wsk": place, "esk": place,
            }  # fmt: skip

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: world.run.table.write_many(some(at)), range(20)))
    world.clock.advance(size)
