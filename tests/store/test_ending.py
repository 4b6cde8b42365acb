"""Queues that are deleted: their jobs are kept, discarded or moved; none is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain import envelope
from ojs.domain.errors import Conflict, InvalidRequest, NotFound, QueueDraining
from tests.store.test_bounds import BIG, bound, level
from tests.store.test_crashes import attempt, faults

if TYPE_CHECKING:
    from ojs.domain.queue import Queue
    from tests.store.conftest import World

SECOND = 1_000


def names(world: World) -> list[str]:
    found, _ = world.run.sweep._queues.names(limit=100, consistent=True)
    return found


def one_of_each(world: World, queue: str = "old") -> dict[str, Any]:
    """Jobs in every state that is not terminal."""
    slow = {"initial_interval": "PT1H", "jitter": False}
    jobs = {"retryable": world.push(BIG, queue=queue, retry=slow)}
    world.fetch(queue, worker="w")
    world.run.finish.nack(jobs["retryable"].id, worker_id="w", error={"message": "no"})
    jobs["active"] = world.push(queue=queue)
    world.fetch(queue, worker="w")
    jobs["available"] = world.push(queue=queue, priority=3, expires_at="+PT2H")
    jobs["scheduled"] = world.push(queue=queue, scheduled_at="+PT1H")
    jobs["pending"] = world.push(queue=queue, pending=True)
    assert {name: world.state(job) for name, job in jobs.items()} == {name: name for name in jobs}
    return jobs


@pytest.mark.parametrize("state", ["retryable", "active", "available", "scheduled", "pending"])
def test_reject_refuses_a_queue_that_holds_any_job_and_leaves_it_as_it_was(
    world: World, state: str
) -> None:
    """QC-15."""
    jobs = one_of_each(world)
    for name, job in jobs.items():
        if name != state:
            world.run.jobs.cancel(job.id)
    with pytest.raises(Conflict):
        world.run.ending.delete("old", "reject")
    assert names(world) == ["old"]
    world.push(queue="old")
    world.run.queues.pause("old")
    with pytest.raises(Conflict):
        world.run.ending.delete("old", "reject")
    assert world.run.queues.get("old").paused


def test_an_empty_queue_is_gone_at_once_and_a_push_makes_it_anew(world: World) -> None:
    """QC-11, QC-54."""
    world.push(queue="old")
    (job,) = world.fetch("old", worker="w")
    world.run.finish.ack(job.id, worker_id="w")
    bound(world, "old", max_size=5)
    ending, deleted = world.run.ending.delete("old", "reject")
    assert (ending.affected, deleted) == (0, True)
    assert names(world) == []
    with pytest.raises(NotFound):
        world.run.queues.get("old")
    assert world.state(job) == "completed"
    again = world.push(queue="old")
    assert world.run.queues.get("old").config.max_size is None
    world.clock.advance(700 * SECOND)
    world.sweep()
    assert [found.id for found in world.fetch("old")] == [again.id]
    assert world.run.sweep._queues.gone(limit=10) == []


def test_discard_ends_what_waits_and_lets_what_runs_go_on(world: World) -> None:
    """QC-16, QC-10, QC-47."""
    bound(world, "old", max_size=50)
    jobs = one_of_each(world)
    ending, deleted = world.run.ending.delete("old", "discard")
    assert (ending.affected, deleted) == (5, False)
    assert world.run.queues.get("old").state == "draining"
    with pytest.raises(QueueDraining):
        world.push(queue="old")
    with pytest.raises(Conflict):
        world.run.queues.pause("old")
    world.clock.advance(1)
    with pytest.raises(Conflict):
        world.run.ending.delete("old", "discard")
    states = {name: world.state(job) for name, job in jobs.items()}
    assert states == dict.fromkeys(jobs, "discarded") | {"active": "active"}
    errors = world.run.jobs.get(jobs["scheduled"].id).errors or ()
    assert [error.type for error in errors] == ["queue_deleted"]
    world.run.finish.nack(jobs["active"].id, worker_id="w", error={"message": "no"})
    assert world.sweep()["queues_deleted"] == 1
    assert world.state(jobs["active"]) == "discarded"
    assert names(world) == []
    assert level(world, "old") == (0, 0)


def test_move_takes_what_waits_along_and_what_runs_when_it_fails(world: World) -> None:
    """QC-17, QC-48."""
    bound(world, "old", max_size=50)
    bound(world, "new", max_size=50)
    jobs = one_of_each(world)
    ending, deleted = world.run.ending.delete("old", "move", "new")
    assert (ending.affected, ending.target, deleted) == (5, "new", False)
    found = {name: world.run.jobs.get(job.id) for name, job in jobs.items()}
    assert {name: job.state.value for name, job in found.items()} == {n: n for n in jobs}
    queues = {name: job.queue for name, job in found.items()}
    assert queues == dict.fromkeys(jobs, "new") | {"active": "old"}
    world.run.finish.nack(jobs["active"].id, worker_id="w", error={"message": "no"})
    assert world.sweep()["queues_deleted"] == 1
    assert names(world) == ["new"]
    assert (level(world, "old")[0], level(world, "new")[0]) == (0, 5)
    # All of them can be worked off in their new queue.
    world.clock.advance(3_700 * SECOND)
    world.run.jobs.activate(jobs["pending"].id)
    world.sweep()
    got = world.fetch("new", 10, worker="v")
    assert {job.id for job in got} == {job.id for job in jobs.values()}
    assert {job.content["args"][0] for job in got if job.content and job.content["args"]} == {BIG}
    for job in got:
        world.run.finish.ack(job.id, worker_id="v")
    assert level(world, "new") == (0, 0)


def test_no_place_in_line_is_taken_for_a_running_job(world: World) -> None:
    """Places in line end in any digit, and so may that of a job that waits."""
    for n in range(40):
        world.push(n, queue="old", priority=n % 3)
        world.push(n, queue="old", pending=True)
    ending, deleted = world.run.ending.delete("old", "discard")
    assert (ending.affected, deleted) == (80, True)


def test_a_stale_fetch_of_the_old_queue_cannot_claim_a_moved_job(world: World) -> None:
    job = world.push(queue="old")
    store = world.run.fetch._jobs
    ((job_id, key),), _ = store.ready("old", 0, limit=5)
    world.run.ending.delete("old", "move", "new")
    from ojs.store.errors import LostRace
    from ojs.store.keys import Position

    with pytest.raises(LostRace):
        store.claim(
            job_id, Position.parse(key), queue="old", lane=0,
            now_ms=world.clock.now_ms(), lease_ms=1_000, worker_id="w",
        )  # fmt: skip
    assert [found.id for found in world.fetch("new")] == [job.id]


def test_a_full_target_takes_the_rest_when_it_has_room(world: World) -> None:
    for n in range(5):
        world.push(n, queue="old")
    bound(world, "new", max_size=2)
    _, deleted = world.run.ending.delete("old", "move", "new")
    assert not deleted
    assert level(world, "new")[0] == 2
    done = 0
    for _ in range(5):
        for job in world.fetch("new", 5, worker="w"):
            world.run.finish.ack(job.id, worker_id="w")
            done += 1
        world.sweep()
    assert done == 5
    assert names(world) == ["new"]


def test_the_sweep_carries_on_what_one_request_cannot(exact: World) -> None:
    for start in range(0, 700, 100):
        exact.run.enqueue.push_batch(
            [
                envelope.parse({"type": "a", "args": [start + n], "options": {"queue": "old"}})
                for n in range(100)
            ]
        )
    ending, deleted = exact.run.ending.delete("old", "discard")
    assert not deleted
    assert ending.affected > 500
    assert exact.sweep()["ended"] == 200
    assert names(exact) == []


@pytest.mark.parametrize("strategy", ["reject", "discard", "move"])
def test_a_push_that_was_under_way_is_not_lost(world: World, strategy: str) -> None:
    """It read the queue before the end began, and is stored after."""
    world.push(queue="old")
    (first,) = world.fetch("old", worker="w")
    world.run.finish.ack(first.id, worker_id="w")
    late = world.another()
    queues = late.enqueue._queues
    seen = queues.get("old")
    world.run.ending.delete("old", strategy, "new" if strategy == "move" else None)
    late.enqueue._queues.get = lambda _name: seen  # type: ignore[assignment,method-assign]
    request = envelope.parse({"type": "a", "args": [], "options": {"queue": "old"}})
    job = late.enqueue.push(request).job
    world.sweep()
    found = world.run.jobs.get(job.id)
    if strategy == "discard":
        assert found.state == "discarded"
    else:
        queue = "old" if strategy == "reject" else "new"
        assert (found.state, found.queue) == ("available", queue)
        assert [one.id for one in world.fetch(queue)] == [job.id]


@pytest.mark.parametrize(
    ("strategy", "target", "field"),
    [
        (None, None, "strategy"),
        ("burn", None, "strategy"),
        (5, None, "strategy"),
        ("move", None, "target_queue"),
        ("move", "old", "target_queue"),
        ("move", "No Queue", "target_queue"),
        ("move", 7, "target_queue"),
        ("move", "_default", "target_queue"),
        ("discard", "new", "target_queue"),
    ],
)
def test_a_wrong_deletion_is_refused_and_its_field_named(
    world: World, strategy: Any, target: Any, field: str
) -> None:
    """QC-14."""
    job = world.push(queue="old")
    with pytest.raises(InvalidRequest) as refused:
        world.run.ending.delete("old", strategy, target)
    assert refused.value.field == field
    assert world.state(job) == "available"
    assert world.run.queues.get("old").state == "active"


def test_a_queue_that_is_not_there_cannot_be_deleted(world: World) -> None:
    with pytest.raises(NotFound):
        world.run.ending.delete("nowhere", "discard")


@pytest.mark.parametrize("strategy", ["reject", "discard", "move"])
def test_a_deletion_that_dies_anywhere_is_carried_on(exact: World, strategy: str) -> None:
    for run, _ in faults(exact):
        exact.push(queue="new")
        jobs = []
        if strategy == "reject":
            exact.run.queues.configure("old", {})
        else:
            bound(exact, "old", max_size=10)
            jobs = [exact.push(queue="old")]
        target = "new" if strategy == "move" else None
        answered = attempt(lambda: run.ending.delete("old", strategy, target))  # noqa: B023
        for _ in range(3):
            exact.sweep()
        if answered is None and "old" in names(exact):
            queue = exact.run.queues.get("old")
            # It did not begin, or a rejection stopped between its look and its end.
            if queue.state == "active":
                exact.run.ending.delete("old", strategy, target)
            exact.sweep()
        expected = "discarded" if strategy == "discard" else "available"
        assert {exact.state(job) for job in jobs} <= {expected}
        if strategy == "move":
            assert {exact.run.jobs.get(job.id).queue for job in jobs} == {"new"}
        assert "old" not in names(exact)
        exact.clock.advance(700 * SECOND)
        exact.sweep()
        assert level(exact, "old")[0] == 0
        for job in exact.run.fetch.fetch(["new"], 100, "drain"):
            exact.run.finish.ack(job.id, worker_id="drain")


@pytest.mark.parametrize("sweeps", [False, True])
def test_the_end_of_a_queue_that_was_made_anew_is_its_own(exact: World, sweeps: bool) -> None:
    """It was discarded, came again, and is to be moved before a sweep has looked: nothing is
    discarded, and the queue stays as long as it has jobs.
    """
    exact.push(queue="old")
    exact.run.ending.delete("old", "discard")
    job = exact.push(queue="old")
    exact.fetch("old")
    if sweeps:
        exact.sweep()
    exact.clock.advance(1_000)
    exact.run.ending.delete("old", "move", "new")
    for _ in range(2):
        exact.sweep()
        assert (exact.state(job), exact.run.queues.get("old").state) == ("active", "draining")
    exact.run.finish.nack(job.id, error={"code": "x"})
    exact.sweep()
    assert exact.run.jobs.get(job.id).queue == "new"
    assert exact.state(job) == "retryable"
    assert "old" not in names(exact)


@pytest.mark.parametrize("paused", [False, True])
def test_who_rejects_and_the_sweep_that_finds_the_same_do_not_meet(
    exact: World, paused: bool
) -> None:
    """The sweep takes the end back before who began it does; the queue is as it was."""
    exact.push(queue="old")
    if paused:
        exact.run.queues.pause("old")
    occupied = exact.run.ending._occupied

    def meanwhile(queue: Queue) -> bool:
        with mock.patch.object(exact.run.ending, "_occupied", occupied):
            exact.another().sweep.run_once(exact.clock.now_ms(), 1_000)
        return occupied(queue)

    with (
        mock.patch.object(exact.run.ending, "_occupied", meanwhile),
        pytest.raises(Conflict, match="still holds jobs"),
    ):
        exact.run.ending.delete("old", "reject")
    assert exact.run.queues.get("old").state == ("paused" if paused else "active")


def test_an_end_that_others_began_is_not_taken_back(exact: World) -> None:
    exact.push(queue="old")
    exact.fetch("old")
    occupied = exact.run.ending._occupied

    def meanwhile(queue: Queue) -> bool:
        exact.another().sweep.run_once(exact.clock.now_ms(), 1_000)
        exact.another().ending.delete("old", "discard")
        return occupied(queue)

    with (
        mock.patch.object(exact.run.ending, "_occupied", meanwhile),
        pytest.raises(Conflict, match="still holds jobs"),
    ):
        exact.run.ending.delete("old", "reject")
    ending = exact.run.queues.get("old").ending
    assert ending is not None
    assert ending.strategy == "discard"
