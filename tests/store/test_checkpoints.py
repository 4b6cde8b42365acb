"""Checkpoints: numbers, leases, sizes, costs, and dying at each call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import Conflict, InvalidRequest, NotFound, PayloadTooLarge
from ojs.domain.job import envelope
from ojs.services.jobs.checkpoints import MAX_CHECKPOINT_BYTES
from ojs.store.jobs.orphans import Orphans, _of_object
from tests.store.faults import attempt, faults
from tests.store.slow import Slow
from tests.store.spending import incompressible, spending, warm

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from tests.store.conftest import World

ROWS = {"rows": [{"id": n, "name": f"row {n}", "done": True} for n in range(24)]}


def active(world: World, worker: str = "w", **options: Any) -> Job:
    world.push(**options)
    (job,) = world.fetch(worker=worker)
    return job


def state_of(world: World, job: Job) -> Any:
    found = world.run.checkpoints.get(job.id)
    return None if found is None else (found.state, found.sequence)


@pytest.mark.parametrize("state", [{"row": 1}, [1], "text", 0, False, None, {}])
def test_the_latest_state_is_kept_and_numbered(world: World, state: Any) -> None:
    job = active(world)
    assert state_of(world, job) is None
    world.run.checkpoints.save(job.id, {"first": 1}, worker_id="w")
    assert world.run.checkpoints.save(job.id, state, worker_id="w").sequence == 2
    assert state_of(world, job) == (state, 2)
    world.run.checkpoints.delete(job.id)
    world.run.checkpoints.delete(job.id)
    assert state_of(world, job) is None
    assert world.run.checkpoints.save(job.id, state).sequence == 3


def test_a_job_that_runs_again_has_it(world: World) -> None:
    job = active(world, retry={"max_attempts": 3})
    assert job.checkpoint is None
    world.run.checkpoints.save(job.id, None, worker_id="w")
    world.run.finish.nack(job.id, worker_id="w", error={"message": "no"})
    world.clock.advance(60_000)
    (again,) = world.fetch()
    assert again.checkpoint is not None
    assert (again.checkpoint.state, again.checkpoint.sequence) == (None, 1)


@pytest.mark.parametrize("end", ["ack", "cancel", "discard"])
def test_it_goes_with_the_end_of_its_job(world: World, end: str) -> None:
    job = active(world)
    world.run.checkpoints.save(job.id, {"big": incompressible(500_000)}, worker_id="w")
    assert len(world.blobs.objects) == 1
    if end == "ack":
        world.run.finish.ack(job.id)
    elif end == "cancel":
        world.run.jobs.cancel(job.id)
    else:
        world.run.finish.nack(job.id, error={"code": "DISCARD"})
    assert state_of(world, job) is None
    assert not [item for item in world.items() if item["sk"]["S"] == "checkpoint"]
    assert world.blobs.objects == {}
    with pytest.raises(Conflict):
        world.run.checkpoints.save(job.id, {}, worker_id="w")
    world.run.checkpoints.delete(job.id)
    assert not [item for item in world.items() if item["sk"]["S"] == "checkpoint"]


def test_a_dead_letter_keeps_it_and_it_goes_with_the_dead_letter(world: World) -> None:
    job = active(world)
    world.run.checkpoints.save(job.id, {"big": incompressible(500_000)}, worker_id="w")
    world.run.finish.nack(job.id, error={"code": "DEAD_LETTER"})
    assert state_of(world, job) is not None
    world.run.redrive.retry(job.id)
    (again,) = world.fetch()
    assert again.checkpoint is not None
    assert again.checkpoint.sequence == 1
    world.run.finish.nack(job.id, error={"code": "DEAD_LETTER"})
    world.run.dead_letter.delete(job.id)
    assert [item for item in world.items() if item["pk"]["S"] == f"J|{job.id}"] == []
    assert world.blobs.objects == {}


def test_who_does_not_hold_the_job_saves_nothing(world: World) -> None:
    with pytest.raises(NotFound):
        world.run.checkpoints.save(world.run.ids.uuid7(), {})
    job = world.push()
    with pytest.raises(Conflict, match="in state 'available'"):
        world.run.checkpoints.save(job.id, {})
    (job,) = world.fetch(worker="w")
    assert job.lease is not None
    with pytest.raises(Conflict, match="another worker has its lease"):
        world.run.checkpoints.save(job.id, {}, worker_id="x")
    with pytest.raises(Conflict, match="different token"):
        world.run.checkpoints.save(job.id, {}, worker_id="w", lease_token="0" * 16)
    assert world.run.checkpoints.save(job.id, 1, lease_token=job.lease.token).sequence == 1


def test_a_queue_may_want_the_token(world: World) -> None:
    world.run.queues.configure("default", {"require_lease_token": True})
    job = active(world)
    assert job.lease is not None
    with pytest.raises(InvalidRequest) as refused:
        world.run.checkpoints.save(job.id, {}, worker_id="w")
    assert refused.value.field == "lease_token"
    world.run.checkpoints.save(job.id, {}, lease_token=job.lease.token)


def test_a_save_renews_the_lease_and_restores_one_that_ended(world: World) -> None:
    job = active(world, visibility_timeout_ms=30_000)
    for _ in range(3):
        world.clock.advance(20_000)
        world.run.checkpoints.save(job.id, {}, worker_id="w")
    world.clock.advance(31_000)
    world.sweep()
    assert world.state(job) == "available"
    assert world.run.checkpoints.save(job.id, {}, worker_id="w").sequence == 4
    assert world.state(job) == "active"


def test_the_owner_before_changes_nothing(exact: World) -> None:
    """It numbered its checkpoint while it had the lease, and wrote it long after."""
    job = active(exact, worker="old", visibility_timeout_ms=1_000)

    def meanwhile() -> None:
        exact.clock.advance(2_000)
        exact.sweep()
        (again,) = exact.fetch(worker="new")
        assert again.id == job.id
        exact.run.checkpoints.save(job.id, "new", worker_id="new")

    client = Slow(exact.client, "put_item", meanwhile)
    exact.another(client).checkpoints.save(job.id, "old", worker_id="old")
    assert client.happened
    assert state_of(exact, job) == ("new", 2)


def test_the_owner_before_changes_nothing_after_a_deletion(exact: World) -> None:
    job = active(exact, worker="old", visibility_timeout_ms=1_000)
    large = incompressible(500_000)

    def meanwhile() -> None:
        exact.clock.advance(2_000)
        exact.sweep()
        exact.fetch(worker="new")
        exact.run.checkpoints.save(job.id, large, worker_id="new")
        exact.run.checkpoints.delete(job.id)

    client = Slow(exact.client, "put_item", meanwhile)
    exact.another(client).checkpoints.save(job.id, "old", worker_id="old")
    assert client.happened
    assert state_of(exact, job) is None
    assert exact.blobs.objects == {}
    assert exact.run.checkpoints.save(job.id, "next", worker_id="new").sequence == 3
    assert state_of(exact, job) == ("next", 3)


def test_a_damaged_one_does_not_stop_the_others(world: World) -> None:
    """A later version might read it."""
    for _ in range(2):
        world.push()
    first, second = world.fetch(count=2)
    for job in (first, second):
        world.run.checkpoints.save(job.id, {"big": incompressible(500_000)})
        world.run.finish.nack(job.id, requeue=True, error=None)
    world.blobs.objects = {
        name: text for name, text in world.blobs.objects.items() if second.id in name
    }
    (got,) = world.fetch(count=2)
    assert (got.id, got.checkpoint is None) == (second.id, False)
    assert world.state(first) == "active"


def test_sizes(world: World) -> None:
    job = active(world)
    most = "x" * (MAX_CHECKPOINT_BYTES - 2)
    world.run.checkpoints.save(job.id, most)
    assert state_of(world, job) == (most, 1)
    with pytest.raises(PayloadTooLarge):
        world.run.checkpoints.save(job.id, most + "x")
    with pytest.raises(PayloadTooLarge):
        world.run.checkpoints.save(job.id, most, more={"step_index": 1})
    for number in range(2, 5):
        large = incompressible(500_000 + number)
        assert world.run.checkpoints.save(job.id, large).sequence == number
        assert state_of(world, job) == (large, number)
        assert len(world.blobs.objects) == 1
    world.run.checkpoints.save(job.id, "small")
    assert (state_of(world, job), world.blobs.objects) == (("small", 5), {})


def test_a_fetch_gives_back_the_jobs_whose_states_do_not_fit(world: World) -> None:
    for _ in range(4):
        world.push(retry={"max_attempts": 5})
    for job in world.fetch(count=4):
        world.run.checkpoints.save(job.id, "x" * (MAX_CHECKPOINT_BYTES - 2))
        world.run.finish.nack(job.id, requeue=True, error=None)
    first = world.fetch(count=4)
    assert len(first) == 2
    assert {job.attempt for job in first} == {1}
    assert len(world.fetch(count=4)) == 2


def test_costs(exact: World) -> None:
    warm(exact)
    job = active(exact)
    with spending(exact) as save:
        exact.run.checkpoints.save(job.id, ROWS, worker_id="w")
    assert (save.calls, save.writes, save.reads) == (2, 2, 0)
    exact.run.finish.nack(job.id, requeue=True, error=None)
    with spending(exact) as with_state:
        assert exact.fetch()[0].checkpoint is not None
    with spending(exact) as ack:
        exact.run.finish.ack(job.id)
    exact.push()
    with spending(exact) as without:
        (other,) = exact.fetch()
    with spending(exact) as plain:
        exact.run.finish.ack(other.id)
    assert (with_state.calls - without.calls, with_state.reads - without.reads) == (1, 1)
    assert (ack.calls - plain.calls, ack.writes - plain.writes) == (1, 1)


def test_dying_at_each_call(exact: World) -> None:
    """The number may skip one; what is stored is one of the two states, and the next is kept."""
    for run, _ in faults(exact):
        job = active(exact, worker="w")
        exact.run.checkpoints.save(job.id, "before", worker_id="w")
        attempt(partial(run.checkpoints.save, job.id, "x", worker_id="w"))
        found = state_of(exact, job)
        assert found in {("before", 1), ("x", 2), ("x", 3), ("x", 4)}
        assert exact.run.checkpoints.save(job.id, "after", worker_id="w").sequence > found[1]
        assert state_of(exact, job)[0] == "after"
        attempt(partial(run.checkpoints.delete, job.id))
        assert (state_of(exact, job) or ("after",))[0] == "after"
        exact.run.checkpoints.delete(job.id)
        assert state_of(exact, job) is None
        attempt(partial(run.finish.ack, job.id, worker_id="w"))
        exact.run.finish.ack(job.id, worker_id="w")
        assert state_of(exact, job) is None


def test_an_object_without_its_item_is_an_orphan(exact: World) -> None:
    job = active(exact)
    large = incompressible(500_000)
    for run, _ in faults(exact, ("died after", "died before")):
        attempt(partial(run.checkpoints.save, job.id, large, worker_id="w"))
    (item,) = [item for item in exact.items() if item["sk"]["S"] == "checkpoint"]
    orphans = Orphans(exact.run.table)
    found = [_of_object("checkpoint", name) for name in exact.blobs.objects]
    left = {part.blob for part in found} - {part.blob for part in orphans.unreferenced(found)}
    assert left == {f"checkpoint/{job.id}/{item['ref']['S'].removeprefix('s3:')}"}


def test_a_new_job_with_the_same_id_has_none(exact: World) -> None:
    raw = exact.run.ids.uuid7()

    def push() -> Job:
        return exact.run.enqueue.push(envelope.parse({"id": raw, "type": "t", "args": []})).job

    job = push()
    exact.fetch(worker="w")
    for _ in range(3):
        exact.run.checkpoints.save(job.id, "old", worker_id="w")
    exact.run.table.delete(f"J|{raw}", "@")
    exact.clock.advance(1_000)
    push()
    (again,) = exact.fetch(worker="w")
    assert again.checkpoint is None
    assert exact.run.checkpoints.save(raw, "new", worker_id="w").sequence == 1
    assert state_of(exact, again) == ("new", 1)
