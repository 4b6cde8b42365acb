"""Jobs that sleep or wait: their queues, limits, and locks, and what operators do to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.bulk.operation import Action
from ojs.domain.errors import Conflict, Duplicate, NotFound, QueueFull
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job import envelope
from tests.store.durable_jobs import active, done, save, signal, sleep, stored, suspend, token
from tests.store.slow import Slow
from tests.store.spending import incompressible

if TYPE_CHECKING:
    from tests.store.conftest import World

HOUR = 3_600_000


# --- queues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [sleep(), signal()])
def test_the_deletion_of_a_queue_ends_its_sleepers(world: World, wait: dict[str, str]) -> None:
    job, running = active(world), active(world)
    suspend(world, job, wait)
    with pytest.raises(Conflict):
        world.run.deletion.delete("default", "reject")
    world.run.deletion.delete("default", "discard")
    assert world.state(job) == "discarded"
    with pytest.raises(Conflict, match="in state 'discarded'"):
        world.run.signals.send(job.id, "ok", 1)
    # One that ran until then can't sleep on.
    suspend(world, running, wait)
    world.run.rest.run_once(world.clock.now_ms(), 100)
    world.sweep()
    assert world.state(running) == "discarded"
    with pytest.raises(NotFound):
        world.run.queues.get("default")


@pytest.mark.parametrize("by", ["change", "deletion"])
@pytest.mark.parametrize("wakes", ["its time", "a signal"])
def test_a_sleeper_wakes_in_the_queue_that_it_was_moved_to(
    world: World, by: str, wakes: str
) -> None:
    job = active(world)
    suspend(world, job, signal(), sleep(length="PT1H"))
    if by == "change":
        world.run.acts.change(job.id, priority=None, queue="there")
    else:
        world.push(queue="there")
        for other in world.fetch("there"):
            world.run.finish.ack(other.id)
        world.run.deletion.delete("default", "move", "there")
    assert world.run.jobs.get(job.id).durable.waits is not None
    if wakes == "a signal":
        assert world.run.signals.send(job.id, "ok", 1).woken
    else:
        world.clock.advance(HOUR - 1)
        assert world.fetch("there") == []
        world.clock.advance(1)
    assert world.fetch() == []
    (again,) = world.fetch("there")
    assert again.id == job.id
    save(world, again, done("a", 1))


# --- limits and locks -----------------------------------------------------------------------------


def test_a_sleeper_keeps_its_unique_key_and_its_place(world: World) -> None:
    world.run.queues.configure("default", {"max_size": 1})
    raw = {"type": "t", "args": [1], "unique": {"keys": ["type"]}}

    def push(**more: Any) -> Any:
        return world.run.enqueue.push(envelope.parse({**raw, **more})).job

    push()
    (job,) = world.fetch()
    suspend(world, job, sleep(length="PT1H"))
    with pytest.raises(Duplicate):
        push()
    with pytest.raises(QueueFull):
        push(type="other")
    world.clock.advance(HOUR)
    (job,) = world.fetch()
    world.run.finish.ack(job.id)
    assert push().id != job.id


def test_a_resumption_is_a_start_for_rate_limits(world: World) -> None:
    limit = {"key": "k", "rate": 1, "period": "PT1M"}
    job = active(world, rate_limit=limit)
    suspend(world, job, sleep(length="PT10S"))
    world.clock.advance(10_000)
    assert world.fetch() == []
    world.clock.advance(60_000)
    (again,) = world.fetch()
    assert (again.id, again.durable.waits) == (job.id, None)


@pytest.mark.parametrize("limited", ["key", "queue", "pool"])
def test_a_sleeper_has_no_permit(world: World, limited: str) -> None:
    options: dict[str, Any] = {}
    pool = "p" if limited == "pool" else None
    if limited == "key":
        options = {"rate_limit": {"key": "k", "concurrency": 1}}
    elif limited == "queue":
        world.run.queues.configure("default", {"concurrency": 1})
    else:
        world.push()
        (first,) = world.fetch()
        world.run.finish.ack(first.id)
        world.run.pools.put("p", {"queues": ["default"], "concurrency": 1})

    def fetch() -> list[Any]:
        queues = None if pool else ["default"]
        return world.run.fetch.fetch(queues, 1, "w", pool=pool)

    world.push(**options)
    (job,) = fetch()
    suspend(world, job, signal(), sleep(length="PT1H"))
    world.push(**options)
    (other,) = fetch()
    world.run.signals.send(job.id, "ok", 1)
    # Another job has the permit now.
    assert fetch() == []
    world.run.finish.ack(other.id)
    (again,) = fetch()
    assert again.id == job.id
    world.run.finish.ack(job.id)


def test_a_sleeper_of_a_tenant_takes_its_turn(world: World) -> None:
    world.run.queues.configure("default", {"tenant_fairness": {"enabled": True}})

    def push(tenant: str) -> str:
        raw = {"type": "t", "args": [], "meta": {"tenant_id": tenant}}
        return world.run.enqueue.push(envelope.parse(raw)).job.id

    push("a")
    (job,) = world.fetch()
    suspend(world, job, signal())
    ids = [push("b") for _ in range(3)]
    world.run.signals.send(job.id, "ok", 1)
    got = [one.id for one in world.fetch(count=4)]
    assert sorted(got) == sorted([*ids, job.id])
    assert got.index(job.id) < 3


# --- operators ------------------------------------------------------------------------------------


def test_an_erasure_takes_all_that_a_job_has_stored(world: World) -> None:
    job = active(world)
    save(world, job, done("a", "secret"))
    world.run.checkpoints.save(job.id, {"secret": incompressible(500_000)})
    world.run.signals.send(job.id, "early", "secret")
    suspend(world, job, signal("ok"), sleep())
    wanted = JobFilter("default")
    world.run.bulk.begin(Action.ERASE_JOBS, wanted)
    for _ in range(5):
        world.clock.advance(60_000)
        world.run.bulk.run_once(world.clock.now_ms(), 100)
    assert [item for item in world.items() if item["pk"]["S"] == f"J|{job.id}"] == []
    assert world.blobs.objects == {}


def test_many_sleepers_are_retried_and_those_that_wait_for_signals_are_refused(
    world: World,
) -> None:
    first, second = active(world), active(world)
    suspend(world, first, sleep())
    suspend(world, second, signal())
    for job in (first, second):
        if job is second:
            with pytest.raises(Conflict):
                world.run.acts.run_now(job.id)
        else:
            world.run.acts.run_now(job.id)
    assert (world.state(first), world.state(second)) == ("available", "scheduled")


def test_a_step_is_forgotten_before_the_job_is_claimed_or_not_at_all(exact: World) -> None:
    job = active(exact)
    save(exact, job, done("a", 1))
    suspend(exact, job, signal())
    client = Slow(
        exact.client,
        "transact_write_items",
        lambda: (exact.run.signals.send(job.id, "ok", 1), exact.fetch()),
    )
    with pytest.raises(Conflict, match="in state 'active'"):
        exact.another(client).steps.forget(job.id, "a")
    assert client.happened
    assert stored(exact, job) == {"ok": 1, "a": 1}


def test_an_epoch_has_its_own_signals_and_sleeps(world: World) -> None:
    job = active(world)
    world.run.signals.send(job.id, "ok", "first")
    suspend(world, job, sleep(length="PT1H"))
    world.clock.advance(HOUR)
    (job,) = world.fetch()
    world.clock.advance(1)
    world.run.finish.nack(job.id, error={"code": "DEAD_LETTER"}, lease_token=token(job))
    world.run.redrive.retry(job.id, clears=["steps"])
    (job,) = world.fetch()
    assert suspend(world, job, signal(), sleep(length="PT1H")).state == "scheduled"
    assert world.run.signals.send(job.id, "ok", "second").woken
    (job,) = world.fetch()
    assert stored(world, job) == {"ok": "second"}


def test_maintenance_keeps_sleepers_asleep(world: World) -> None:
    job = active(world)
    suspend(world, job, sleep(length="PT1M"))
    world.run.maintenance.begin("a reason", None, now_ms=world.clock.now_ms())
    world.clock.advance(60_000)
    world.sweep()
    assert world.fetch() == []
    assert world.run.jobs.get(job.id).state == "scheduled"
    world.run.maintenance.end()
    world.clock.advance(60_000)
    (again,) = world.fetch()
    assert again.id == job.id
