"""Active jobs and the permits they take: how they stop, and the sweep that counts them again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ojs.domain.ids import uuid7
from ojs.domain.job.permits import permit_name
from ojs.store.permits import semaphore
from ojs.store.permits.semaphore import GONE_MS

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from ojs.runtime import Runtime
    from tests.store.conftest import World

# What `stop` needs of a job.
STOPPABLE: dict[str, Any] = {"visibility_timeout_ms": 60_000, "timeout_ms": 90_000}


def stop(world: World, job: Job, how: str, worker: str) -> None:
    """End a worker's attempt in one of all ways: it succeeds, or fails if nothing else is said."""
    match how:
        case "ack":
            world.run.finish.ack(job.id)
        case "cancel":
            world.run.jobs.cancel(job.id)
        case "stall":
            world.clock.advance(60_000)
            world.sweep()
        case "time out":
            world.run.workers.beat(worker, active_jobs=[job.id], visibility_timeout_ms=600_000)
            world.clock.advance(90_000)
            world.sweep()
        case _:
            world.run.finish.nack(job.id, error={"code": "x"}, requeue=how == "requeue")


def taken(run: Runtime, name: str) -> int:
    """Permits of a semaphore that are taken."""
    return semaphore.taken(item for _, item in run.stores.semaphore.read_all(name))


def lost_permit(run: Runtime, name: str, *, now_ms: int, limit: int | None = None) -> None:
    """Acquire a permit for a job that will never run with it."""
    nobody = permit_name(uuid7(now_ms, 1, 2), "lost")
    run.stores.semaphore.acquire(name, [nobody], limit=limit, version=2**53, now_ms=now_ms)


def reconcile(world: World) -> Counter[str]:
    """One run of the reconciliation."""
    return Counter(world.run.reconcile.run_once(world.clock.now_ms(), 100))


def reconcile_at_rest(world: World, rounds: int = 3) -> Counter[str]:
    """So many minutes in which nobody does anything but the reconciliation."""
    done: Counter[str] = Counter()
    for _ in range(rounds):
        world.clock.advance(2 * GONE_MS)
        done += reconcile(world)
    return done
