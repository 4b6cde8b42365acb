"""Queues whose dead letters go to another queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ojs.store.jobs import items
from ojs.store.table import values

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from tests.store.conftest import World

ERROR = {"code": "DEAD_LETTER", "type": "SmtpError", "message": "no such user"}


def goes_to(world: World, target: str = "dead", queue: str = "mail", **config: Any) -> None:
    world.run.queues.configure(queue, {"dead_letter_queue": target, **config})


def die(world: World, *args: Any, queue: str = "mail", **options: Any) -> Job:
    """A job that died at its worker's word, as the nack answered it."""
    pushed = world.push(*args, queue=queue, **options)
    world.run.fetch.fetch([queue], 1, "w")
    return world.run.finish.nack(pushed.id, worker_id="w", error=ERROR)


def job_records(world: World, queue: str = "dead") -> list[Job]:
    """All jobs of a queue, oldest first, as their records have them."""
    found = [
        items.job_of(values.unpack(item))
        for item in world.items()
        if item["pk"]["S"].startswith("J|") and item["sk"]["S"] == "@"
    ]
    return sorted((job for job in found if job.queue == queue), key=lambda job: job.created_ms)


def waiting(world: World, queue: str = "dead") -> list[Any]:
    """Arguments of the jobs that stand in line, oldest first."""
    found = [job for job in job_records(world, queue) if job.state.value == "available"]
    return [world.run.jobs.get(job.id).content["args"][0] for job in found]  # type: ignore[index]
