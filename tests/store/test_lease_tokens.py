"""Queues that demand the lease token, and what holds for workers that send none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import Conflict, InvalidRequest

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from tests.store.conftest import World

HOUR = 3_600_000


def demanding(world: World, queue: str = "q") -> None:
    world.push(queue=queue)
    world.run.jobs.cancel(world.fetch(queue, worker="first")[0].id)
    world.run.queues.configure(queue, {"require_lease_token": True})


def lost_to_another(world: World) -> tuple[Job, Job]:
    """A job as its first worker has it, and as the next one has it."""
    world.push(queue="q")
    (first,) = world.fetch("q", worker="a")
    world.clock.advance(HOUR)
    world.sweep()
    (second,) = world.fetch("q", worker="b")
    assert second.id == first.id
    return first, second


def test_a_nameless_report_ends_the_run_of_another_unless_the_queue_forbids_it(
    world: World,
) -> None:
    world.push(queue="q")
    world.run.jobs.cancel(world.fetch("q")[0].id)
    first, _ = lost_to_another(world)
    assert world.run.finish.ack(first.id).state == "completed"
    demanding(world)
    first, second = lost_to_another(world)
    for _ in range(2):
        with pytest.raises(InvalidRequest) as refused:
            world.run.finish.ack(first.id, result=1)
        assert refused.value.field == "lease_token"
        with pytest.raises(InvalidRequest) as refused:
            world.run.finish.nack(first.id, error={"message": "late"})
        assert refused.value.field == "lease_token"
    there = world.run.jobs.get(first.id)
    assert (there.state, there.lease, there.errors) == ("active", second.lease, there.errors)
    assert first.lease is not None
    assert second.lease is not None
    with pytest.raises(Conflict):
        world.run.finish.ack(first.id, lease_token=first.lease.token)
    done = world.run.finish.ack(second.id, lease_token=second.lease.token)
    assert done.state == "completed"


def test_a_worker_id_or_an_attempt_is_no_token(world: World) -> None:
    demanding(world)
    world.push(queue="q")
    (job,) = world.fetch("q", worker="a")
    with pytest.raises(InvalidRequest):
        world.run.finish.ack(job.id, worker_id="a", attempt=1)
    with pytest.raises(InvalidRequest):
        world.run.finish.nack(job.id, worker_id="a", error={"message": "no"}, requeue=True)
    assert world.state(job) == "active"


def test_a_lease_that_ended_is_not_taken_up_again_without_the_token(world: World) -> None:
    demanding(world)
    world.push(queue="q")
    (job,) = world.fetch("q", worker="a")
    world.clock.advance(HOUR)
    world.sweep()
    assert world.state(job) == "available"
    with pytest.raises(InvalidRequest):
        world.run.finish.ack(job.id, worker_id="a")
    assert job.lease is not None
    assert world.run.finish.ack(job.id, lease_token=job.lease.token).state == "completed"


def test_only_who_says_who_it_is_extends_a_lease(world: World) -> None:
    demanding(world)
    world.push(queue="q")
    (job,) = world.fetch("q", worker="a")
    world.clock.advance(60_000)
    world.run.jobs.report_progress(job.id, progress=0.5)
    assert world.run.jobs.get(job.id).lease == job.lease
    assert world.run.jobs.progress(job.id).progress is None
    world.run.jobs.report_progress(job.id, progress=0.5, worker_id="a")
    assert world.run.jobs.progress(job.id).progress == 0.5
    assert world.run.workers.beat("a", active_jobs=[job.id]).jobs_extended == [job.id]


def test_the_demand_ends_with_the_setting_for_jobs_fetched_later(world: World) -> None:
    demanding(world)
    world.push(queue="q", retry={"initial_interval": "PT1S", "jitter": False})
    (job,) = world.fetch("q", worker="a")
    assert job.lease is not None
    world.run.finish.nack(job.id, lease_token=job.lease.token, error={"message": "no"})
    world.run.queues.configure("q", {"require_lease_token": None})
    world.clock.advance(2_000)
    (job,) = world.fetch("q", worker="a")
    assert world.run.finish.ack(job.id).state == "completed"


class Slow:
    """A client whose writes take two seconds each."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            answer = getattr(self._world.client, name)(**arguments)
            if name == "update_item":
                self._world.clock.advance(2_000)
            return answer

        return call


def test_a_lease_that_ends_in_its_own_fetch_is_not_handed_out_beside_the_next(
    world: World,
) -> None:
    """Found by clients side by side: one answer had the same job twice, with two tokens."""
    pushed = world.push()
    slow = world.another(Slow(world))
    assert slow.fetch.fetch(["default"], 3, "w", visibility_timeout_ms=1_000) == []
    (job,) = world.fetch(worker="w")
    assert (job.id, job.attempt) == (pushed.id, 2)
    assert job.lease is not None
    assert world.run.finish.ack(job.id, lease_token=job.lease.token).state == "completed"
