"""A queue shared by tenants, and every way in which a job becomes available in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.dead_letter.override import JobOverride
from ojs.domain.errors import BackendUnavailable
from ojs.domain.job import envelope
from ojs.store.jobs import items
from ojs.store.table import keys, values

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from ojs.runtime import Runtime
    from tests.store.conftest import World

QUEUE = "default"
BIG = "x" * 5_000
DEAD = {"code": "DEAD_LETTER", "type": "Boom", "message": "no"}


def fair(world: World, queue: str = QUEUE, **told: Any) -> None:
    world.run.queues.configure(queue, {"tenant_fairness": {"enabled": True, **told}})


def request(tenant: Any, *args: Any, **options: Any) -> envelope.JobRequest:
    body = {"type": "test.job", "args": list(args), "options": options}
    if tenant is not None:
        body["meta"] = {"tenant_id": tenant}
    return envelope.parse(body)


def push(world: World, tenant: Any, *args: Any, run: Runtime | None = None, **options: Any) -> Job:
    return (run or world.run).enqueue.push(request(tenant, *args, **options)).job


def push_all(world: World, wanted: Iterable[envelope.JobRequest], size: int = 1_000) -> None:
    wanted = list(wanted)
    for at in range(0, len(wanted), size):
        world.run.enqueue.push_batch(wanted[at : at + size])


def flood(world: World, tenant: Any, count: int, **options: Any) -> None:
    push_all(world, (request(tenant, n, **options) for n in range(count)))


def whose(jobs: Iterable[Job]) -> list[Any]:
    return [((job.content or {}).get("meta") or {}).get("tenant_id") for job in jobs]


def served(world: World, count: int, queue: str = QUEUE) -> list[Any]:
    """Whose jobs are handed out, in order."""
    got: list[Any] = []
    while len(got) < count and (jobs := world.fetch(queue, count=min(100, count - len(got)))):
        got += whose(jobs)
    return got


def places(world: World, queue: str = QUEUE) -> list[keys.Position]:
    """The line as the index has it."""
    found = [
        item["wsk"]["S"]
        for item in world.items()
        if item.get("wpk", {}).get("S", "").startswith(f"R|{queue}|")
    ]
    return [keys.Position.parse(key) for key in sorted(found)]


def job_records(world: World, queue: str = QUEUE) -> list[Job]:
    found = [
        items.job_of(values.unpack(item))
        for item in world.items()
        if item["pk"]["S"].startswith("J|") and item["sk"]["S"] == "@"
    ]
    return [job for job in found if job.queue == queue]


def claimed(world: World, tenant: str = "a", queue: str = QUEUE, **options: Any) -> Job:
    push(world, tenant, queue=queue, **options)
    (job,) = world.run.fetch.fetch([queue], 1, "w")
    return job


def died(world: World, tenant: str = "a", queue: str = QUEUE, *args: Any) -> Job:
    job = push(world, tenant, *args, queue=queue, retry={"max_attempts": 1})
    world.run.fetch.fetch([queue], 1, "w")
    return world.run.finish.nack(job.id, error=DEAD, worker_id="w")


def late(world: World) -> None:
    world.clock.advance(3_600_000)
    world.sweep()


def scheduled(world: World) -> None:
    push(world, "a", scheduled_at="+PT10S")
    late(world)


def due_by_fetch(world: World) -> None:
    push(world, "a", scheduled_at="+PT10S")
    world.clock.advance(10_000)
    store = type(world.run.fetch._jobs)
    with (
        mock.patch.object(store, "claim", side_effect=BackendUnavailable("busy")),
        pytest.raises(BackendUnavailable),
    ):
        world.fetch()


def read(world: World) -> None:
    job = push(world, "a", scheduled_at="+PT10S")
    world.clock.advance(10_000)
    assert world.state(job) == "available"


def pending(world: World) -> None:
    job = world.run.enqueue.push(
        envelope.parse({"type": "a", "args": [], "meta": {"tenant_id": "a"}, "pending": True})
    ).job
    world.run.jobs.activate(job.id)


def retried(world: World) -> None:
    job = claimed(world)
    world.run.finish.nack(job.id, error={"code": "x", "message": "x"})
    late(world)


def lost(world: World) -> None:
    claimed(world, visibility_timeout_ms=1_000)
    late(world)


def timed_out(world: World) -> None:
    job = claimed(world, timeout_ms=2_000)
    world.run.workers.beat("w", active_jobs=[job.id], visibility_timeout_ms=9_000_000)
    late(world)
    late(world)


def handed_back(world: World) -> None:
    world.run.finish.nack(claimed(world).id, error=None, requeue=True)


def given_back(world: World) -> None:
    push(world, "a", BIG)
    store = world.run.fetch._jobs
    with (
        mock.patch.object(store, "with_contents", side_effect=BackendUnavailable("no")),
        pytest.raises(BackendUnavailable),
    ):
        world.fetch()


def postponed(world: World) -> None:
    limit = {"key": "k", "rate": {"limit": 1, "period": "PT10S"}, "on_limit": "reschedule"}
    push(world, "a", rate_limit=limit)
    push(world, "a", rate_limit=limit)
    world.fetch(count=2)
    assert "scheduled" in {job.state.value for job in job_records(world)}
    late(world)


def brought_back(world: World) -> None:
    world.run.redrive.retry(died(world, "a", QUEUE, BIG).id)


def brought_back_elsewhere(world: World) -> None:
    override = JobOverride(queue=QUEUE)
    world.run.redrive.retry(died(world, "a", "plain", BIG).id, override)


def replayed(world: World) -> None:
    rule = {"name": "all", "filter": {}, "delay": "PT1M", "max_replays": 1}
    world.run.queues.configure(QUEUE, {"replay_rules": [rule]})
    died(world)
    world.clock.advance(120_000)
    assert world.run.replay.run_once(world.clock.now_ms(), 100).counts["replayed"] == 1


def copied(world: World) -> None:
    world.run.queues.configure("plain", {"dead_letter_queue": QUEUE})
    died(world, "a", "plain", BIG)


def moved(world: World) -> None:
    push(world, "a", BIG, queue="plain")
    push(world, "a", queue="plain", scheduled_at="+PT10S")
    world.run.deletion.delete("plain", "move", QUEUE)
    late(world)


def replaced(world: World) -> None:
    unique = {"keys": ["type"], "on_conflict": "replace"}
    push(world, "a", unique=unique)
    push(world, "b", unique=unique)


def in_a_batch(world: World) -> None:
    push_all(world, [request("ab"[n % 2], n) for n in range(5)])


def in_a_unique_batch(world: World) -> None:
    push_all(world, [request("a", n, unique={"keys": ["args"]}) for n in range(5)])


def in_a_large_batch(world: World) -> None:
    flood(world, "a", 101)


WAYS: Sequence[Callable[[World], None]] = (
    scheduled, due_by_fetch, read, pending, retried, lost, timed_out, handed_back, given_back,
    postponed, brought_back, brought_back_elsewhere, replayed, copied, moved, replaced, in_a_batch,
    in_a_unique_batch, in_a_large_batch,
)  # fmt: skip
