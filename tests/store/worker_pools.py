"""Worker pools: how to make one, hand out jobs to it, and count what the projection counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ojs.domain.job import envelope
from ojs.domain.job.job import JobPermits
from ojs.domain.pool.pool import pool_semaphore
from ojs.domain.times import format_ms
from ojs.store.table import keys
from tests.store import permits

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from ojs.domain.pool.pool import Pool
    from tests.store.conftest import World


def make(world: World, name: str, queues: Any, **more: Any) -> Pool:
    """A pool of these queues."""
    return world.run.pools.put(name, {"queues": queues, **more})[0]


def claim(world: World, queue: str, pool: str | None, count: int = 1) -> list[Job]:
    """The first jobs of a queue, claimed for a worker of this pool."""
    run = world.run
    jobs = run.stores.jobs
    found, _ = jobs.index.ready(queue, 0, limit=count)
    return [
        jobs.claim(
            job_id, keys.Position.parse(key), queue=queue, lane=0, now_ms=world.clock.now_ms(),
            lease_ms=30_000, worker_id="w1", permits=JobPermits(pool=pool),
        )
        for job_id, key in found
    ]  # fmt: skip


def counted(world: World, queue: str, *, oldest_ago_ms: int | None = None, **now: int) -> None:
    """What the projection and the gauges sweep have of a queue."""
    items: list[dict[str, Any]] = [{"pk": keys.stats(queue), "sk": keys.NOW, **now}]
    if oldest_ago_ms is not None:
        oldest_ms = world.clock.now_ms() - oldest_ago_ms
        items.append({"pk": keys.stats(queue), "sk": keys.GAUGE, "oldest": oldest_ms})
    world.run.table.write_many(items)


def happened(world: World, queue: str, ago_ms: int = 0, **values: int) -> None:
    """What the projection has of a minute."""
    sk = keys.minute(format_ms(world.clock.now_ms() - ago_ms)[:16])
    world.run.table.write_many([{"pk": keys.stats(queue), "sk": sk, **values}])


SECOND = 1_000
ABC = ("a", "b", "c")


def fill(world: World, queue: str, count: int, **options: Any) -> None:
    """So many jobs in a queue."""
    request = {"type": "test.job", "args": [], "options": {"queue": queue, **options}}
    for start in range(0, count, 100):
        many = [envelope.parse(request)] * min(100, count - start)
        world.run.enqueue.push_batch(many)


def pool(world: World, name: str = "p", queues: Any = ABC, **config: Any) -> None:
    """Configure a pool."""
    world.run.pools.put(
        name, {"queues": queues if isinstance(queues, dict) else list(queues), **config}
    )


def prevent(ratio: float, interval: str = "PT30S") -> dict[str, Any]:
    """Configuration of starvation prevention."""
    return {
        "starvation_prevention": {
            "enabled": True,
            "rotation_interval": interval,
            "min_dispatch_ratio": ratio,
        }
    }


def taken(world: World, name: str = "p") -> int:
    """Permits that the pool's semaphore counts."""
    return permits.taken(world.run, pool_semaphore(name))
