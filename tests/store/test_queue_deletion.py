"""Queues that are deleted: their jobs are kept, discarded or moved; none is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.bulk.operation import Action
from ojs.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    OjsError,
    PermissionDenied,
    QueueDraining,
    QueueMayStay,
    QueueNotFound,
)
from ojs.domain.filters.dead_letters import DeadLetterFilter
from ojs.domain.job import envelope
from ojs.domain.job.job import JobPermits
from ojs.domain.queue.queue import Deletion, DeletionStrategy, QueueState
from ojs.services.queues import deletion
from ojs.store.table import keys
from tests.store.bounded import BIG, bound, counter_value
from tests.store.faults import attempt, faults
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ojs.domain.queue.queue import Queue
    from ojs.store.table.values import Item
    from tests.store.conftest import World

SECOND = 1_000


def names(world: World) -> list[str]:
    found, _ = world.run.stores.queues.names(limit=100, consistent=True)
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


@pytest.mark.requirement("QC-15")
@pytest.mark.parametrize("state", ["retryable", "active", "available", "scheduled", "pending"])
def test_reject_refuses_a_queue_that_holds_any_job_and_leaves_it_as_it_was(
    world: World, state: str
) -> None:
    jobs = one_of_each(world)
    for name, job in jobs.items():
        if name != state:
            world.run.jobs.cancel(job.id)
    with pytest.raises(Conflict):
        world.run.deletion.delete("old", "reject")
    assert names(world) == ["old"]
    world.push(queue="old")
    world.run.queues.pause("old")
    with pytest.raises(Conflict):
        world.run.deletion.delete("old", "reject")
    assert world.run.queues.get("old").paused


@pytest.mark.requirement("QC-10", "QC-16", "QC-47")
def test_discard_ends_what_waits_and_lets_what_runs_go_on(world: World) -> None:
    bound(world, "old", max_size=50)
    jobs = one_of_each(world)
    ending, deleted = world.run.deletion.delete("old", "discard")
    assert (ending.affected, deleted) == (5, False)
    assert world.run.queues.get("old").state == "draining"
    with pytest.raises(QueueDraining):
        world.push(queue="old")
    with pytest.raises(Conflict):
        world.run.queues.pause("old")
    world.clock.advance(1)
    with pytest.raises(Conflict):
        world.run.deletion.delete("old", "discard")
    states = {name: world.state(job) for name, job in jobs.items()}
    assert states == dict.fromkeys(jobs, "discarded") | {"active": "active"}
    errors = world.run.jobs.get(jobs["scheduled"].id).errors or ()
    assert [error.type for error in errors] == ["queue_deleted"]
    world.run.finish.nack(jobs["active"].id, worker_id="w", error={"message": "no"})
    assert world.sweep()["queues_deleted"] == 1
    assert world.state(jobs["active"]) == "discarded"
    assert names(world) == []
    assert counter_value(world, "old") == (0, 0)


@pytest.mark.requirement("QC-17", "QC-48", "QC-55")
def test_move_takes_what_waits_along_and_what_runs_when_it_fails(world: World) -> None:
    bound(world, "old", max_size=50)
    bound(world, "new", max_size=50)
    jobs = one_of_each(world)
    ending, deleted = world.run.deletion.delete("old", "move", "new")
    assert (ending.affected, ending.target, deleted) == (5, "new", False)
    found = {name: world.run.jobs.get(job.id) for name, job in jobs.items()}
    assert {name: job.state.value for name, job in found.items()} == {n: n for n in jobs}
    queues = {name: job.queue for name, job in found.items()}
    assert queues == dict.fromkeys(jobs, "new") | {"active": "old"}
    world.run.finish.nack(jobs["active"].id, worker_id="w", error={"message": "no"})
    assert world.sweep()["queues_deleted"] == 1
    assert names(world) == ["new"]
    assert (counter_value(world, "old")[0], counter_value(world, "new")[0]) == (0, 5)
    # All of them can be worked off in their new queue.
    world.clock.advance(3_700 * SECOND)
    world.run.jobs.activate(jobs["pending"].id)
    world.sweep()
    got = world.fetch("new", 10, worker="v")
    assert {job.id for job in got} == {job.id for job in jobs.values()}
    assert {job.content["args"][0] for job in got if job.content and job.content["args"]} == {BIG}
    for job in got:
        world.run.finish.ack(job.id, worker_id="v")
    assert counter_value(world, "new") == (0, 0)


def test_no_place_in_line_is_taken_for_a_running_job(world: World) -> None:
    """Places in line end in any digit, and so may that of a job that waits."""
    for n in range(40):
        world.push(n, queue="old", priority=n % 3)
        world.push(n, queue="old", pending=True)
    ending, deleted = world.run.deletion.delete("old", "discard")
    assert (ending.affected, deleted) == (80, True)


def test_a_stale_fetch_of_the_old_queue_cannot_claim_a_moved_job(world: World) -> None:
    job = world.push(queue="old")
    store = world.run.fetch._jobs
    ((job_id, key),), _ = store.index.ready("old", 0, limit=5)
    world.run.deletion.delete("old", "move", "new")
    from ojs.store.table.errors import LostRace
    from ojs.store.table.keys import Position

    with pytest.raises(LostRace):
        store.claim(
            job_id, Position.parse(key), queue="old", lane=0,
            now_ms=world.clock.now_ms(), lease_ms=1_000, worker_id="w",
            permits=JobPermits(),
        )  # fmt: skip
    assert [found.id for found in world.fetch("new")] == [job.id]


def test_a_full_target_takes_the_rest_when_it_has_room(world: World) -> None:
    for n in range(5):
        world.push(n, queue="old")
    bound(world, "new", max_size=2)
    _, deleted = world.run.deletion.delete("old", "move", "new")
    assert not deleted
    assert counter_value(world, "new")[0] == 2
    done = 0
    for _ in range(5):
        for job in world.fetch("new", 5, worker="w"):
            world.run.finish.ack(job.id, worker_id="w")
            done += 1
        world.sweep()
    assert done == 5
    assert names(world) == ["new"]


def test_jobs_of_a_type_that_the_target_does_not_allow_stay(world: World) -> None:
    world.run.queues.configure("new", {"allowed_job_types": ["other"]})
    stays = world.push(queue="old")
    world.push(queue="old", kind="other")
    ending, deleted = world.run.deletion.delete("old", "move", "new")
    assert (deleted, ending.refused) == (False, 1)
    world.sweep()
    assert names(world) == ["new", "old"]
    assert world.run.jobs.get(stays.id).queue == "old"
    world.run.queues.configure("new", {"allowed_job_types": ["*"]})
    world.sweep()
    assert names(world) == ["new"]
    assert world.run.jobs.get(stays.id).queue == "new"


@pytest.mark.parametrize("known", [True, False])
def test_a_target_that_does_not_admit_the_producer_changes_nothing(
    world: World, known: bool
) -> None:
    job = world.push(queue="old")
    if known:
        world.run.queues.configure("new", {"producers": ["billing"]})
    else:
        world.run.queues.set_policy({"producers": ["billing"]})
    before = names(world)
    with pytest.raises(PermissionDenied):
        world.run.deletion.delete("old", "move", "new", producer="ops")
    assert names(world) == before
    assert world.run.queues.get("old").state == "active"
    world.run.deletion.delete("old", "move", "new", producer="billing")
    assert world.run.jobs.get(job.id).queue == "new"


@pytest.mark.exhaustive
def test_the_sweep_carries_on_what_one_request_cannot(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "_REQUEST_JOBS", 100)
    for start in range(0, 300, 100):
        exact.run.enqueue.push_batch(
            [
                envelope.parse({"type": "a", "args": [start + n], "options": {"queue": "old"}})
                for n in range(100)
            ]
        )
    ending, deleted = exact.run.deletion.delete("old", "discard")
    assert not deleted
    assert ending.affected > 100
    assert exact.sweep()["ended"] == 200
    assert names(exact) == []


@pytest.mark.parametrize("strategy", ["reject", "discard", "move"])
def test_a_push_that_was_under_way_is_not_lost(world: World, strategy: str) -> None:
    """It read the queue before the end began, and is stored after."""
    world.push(queue="old")
    (first,) = world.fetch("old", worker="w")
    world.run.finish.ack(first.id, worker_id="w")
    late = world.another()
    queues = late.stores.queues
    seen = queues.get("old")
    world.run.deletion.delete("old", strategy, "new" if strategy == "move" else None)
    late.stores.queues.current = lambda _name: seen  # type: ignore[assignment,method-assign]
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


@pytest.mark.exhaustive
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
        answered = attempt(lambda: run.deletion.delete("old", strategy, target))  # noqa: B023
        for _ in range(3):
            exact.sweep()
        if answered is None and "old" in names(exact):
            queue = exact.run.queues.get("old")
            # It did not begin, or a rejection stopped between its look and its end.
            if queue.state == "active":
                exact.run.deletion.delete("old", strategy, target)
            exact.sweep()
        expected = "discarded" if strategy == "discard" else "available"
        assert {exact.state(job) for job in jobs} <= {expected}
        if strategy == "move":
            assert {exact.run.jobs.get(job.id).queue for job in jobs} == {"new"}
        assert "old" not in names(exact)
        exact.clock.advance(700 * SECOND)
        exact.sweep()
        assert counter_value(exact, "old")[0] == 0
        for job in exact.run.fetch.fetch(["new"], 100, "drain"):
            exact.run.finish.ack(job.id, worker_id="drain")


@pytest.mark.parametrize("sweeps", [False, True])
def test_the_end_of_a_queue_that_was_made_anew_is_its_own(exact: World, sweeps: bool) -> None:
    """It was discarded, came again, and is to be moved before a sweep has looked: nothing is
    discarded, and the queue stays as long as it has jobs.
    """
    exact.push(queue="old")
    exact.run.deletion.delete("old", "discard")
    job = exact.push(queue="old")
    exact.fetch("old")
    if sweeps:
        exact.sweep()
    exact.clock.advance(1_000)
    exact.run.deletion.delete("old", "move", "new")
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
    occupied = exact.run.deletion._occupied

    def meanwhile(queue: Queue) -> bool:
        with mock.patch.object(exact.run.deletion, "_occupied", occupied):
            exact.another().sweep.run_once(exact.clock.now_ms(), 1_000)
        return occupied(queue)

    with (
        mock.patch.object(exact.run.deletion, "_occupied", meanwhile),
        pytest.raises(Conflict, match="it contains jobs"),
    ):
        exact.run.deletion.delete("old", "reject")
    assert exact.run.queues.get("old").state == ("paused" if paused else "active")


def test_an_end_that_others_began_is_not_taken_back(exact: World) -> None:
    exact.push(queue="old")
    exact.fetch("old")
    occupied = exact.run.deletion._occupied

    def meanwhile(queue: Queue) -> bool:
        exact.another().sweep.run_once(exact.clock.now_ms(), 1_000)
        exact.another().deletion.delete("old", "discard")
        return occupied(queue)

    with (
        mock.patch.object(exact.run.deletion, "_occupied", meanwhile),
        pytest.raises(Conflict, match="it contains jobs"),
    ):
        exact.run.deletion.delete("old", "reject")
    ending = exact.run.queues.get("old").deletion
    assert ending is not None
    assert ending.strategy == "discard"


# --- a deletion that is refused -----------------------------------------------------------------


def item(world: World, queue: str = "old") -> Item | None:
    """The queue's item as it is stored."""
    return world.run.table.get(keys.queue(queue), keys.RECORD)


@contextmanager
def between_look_and_begin(world: World, act: Callable[[], object]) -> Iterator[None]:
    """Something happens after a deletion has looked for jobs, and before it begins; once."""
    store = world.run.deletion._queues
    begin = store.begin_deletion
    done: list[object] = []

    def late(*given: Any, **more: Any) -> Queue:
        if not done:
            done.append(act())
        return begin(*given, **more)

    with mock.patch.object(store, "begin_deletion", late):
        yield
    assert done


def _of_unknown_name(_: World) -> None:
    pass


def _with_job(world: World) -> None:
    world.push(queue="old")


def _paused_with_job(world: World) -> None:
    world.push(queue="old")
    world.run.queues.pause("old")


def _full(world: World) -> None:
    bound(world, "old", max_size=1)
    world.push(queue="old")


def _in_pool(world: World) -> None:
    world.push(queue="old")
    world.run.pools.put("p", {"queues": ["old"]})


def _ending(world: World) -> None:
    world.push(queue="old")
    world.fetch("old")
    world.run.deletion.delete("old", "discard")


def _with_ending_target(world: World) -> None:
    world.push(queue="old")
    world.push(queue="new")
    world.fetch("new")
    world.run.deletion.delete("new", "drain")


REFUSALS: dict[str, tuple[Callable[[World], None], tuple[Any, ...], type[OjsError]]] = {
    "a job is there": (_with_job, ("reject",), Conflict),
    "it is paused, and a job is there": (_paused_with_job, ("reject",), Conflict),
    "it is bounded, and a job is there": (_full, ("reject",), Conflict),
    "it is not there": (_of_unknown_name, ("move", "new"), NotFound),
    "it is not there, discard": (_of_unknown_name, ("discard",), NotFound),
    "in a pool, reject": (_in_pool, ("reject",), Conflict),
    "in a pool, discard": (_in_pool, ("discard",), Conflict),
    "in a pool, move to a queue that is not there": (_in_pool, ("move", "new"), Conflict),
    "ending already, reject": (_ending, ("reject",), Conflict),
    "ending already, move to a queue that is not there": (_ending, ("move", "new"), Conflict),
    "the target is ending": (_with_ending_target, ("move", "new"), Conflict),
    "no strategy": (_with_job, (None,), InvalidRequest),
    "no target": (_with_job, ("move",), InvalidRequest),
    "a target that is none": (_with_job, ("move", "No Queue"), InvalidRequest),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_deletion_that_is_refused_writes_nothing(exact: World, why: str) -> None:
    before, how, refusal = REFUSALS[why]
    before(exact)
    exact.clock.advance(1)
    there = exact.items()
    exact.run.table.meter.reset()
    for _ in range(2):
        with pytest.raises(refusal):
            exact.run.deletion.delete("old", *how)
    assert exact.items() == there
    assert exact.run.table.meter.write_units == 0
    assert set(exact.run.table.meter.calls) <= {"GetItem", "Query"}


def test_in_strict_mode_a_target_that_is_not_there_is_refused_and_nothing_written(
    exact: World,
) -> None:
    exact.push(queue="old")
    there = exact.items()
    with (
        mock.patch.object(exact.run.deletion, "_strict", True),
        pytest.raises(QueueNotFound),
    ):
        exact.run.deletion.delete("old", "move", "new")
    assert exact.items() == there


def test_a_queue_that_is_lost_to_a_pool_makes_no_target(exact: World) -> None:
    """The pool takes it between the look and the beginning."""
    exact.push(queue="old")
    pooled = lambda: exact.another().pools.put("p", {"queues": ["old"]})  # noqa: E731
    with between_look_and_begin(exact, pooled), pytest.raises(Conflict) as refused:
        exact.run.deletion.delete("old", "move", "new")
    assert refused.value.details["pools"] == ["p"]
    assert names(exact) == ["old"]


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("bounded", [False, True])
def test_an_end_that_is_taken_back_leaves_the_queue_exactly_as_it_was(
    world: World, paused: bool, bounded: bool
) -> None:
    """A job comes between the look and the beginning."""
    if bounded:
        bound(world, "old", max_size=5)
    else:
        world.run.queues.configure("old", {"default_timeout": 60})
    world.clock.advance(7)
    world.run.queues.pause("old")
    if not paused:
        world.run.queues.resume("old")
    before = item(world)
    world.clock.advance(7)
    with (
        between_look_and_begin(world, lambda: world.push(queue="old")),
        pytest.raises(Conflict, match="it contains jobs") as refused,
    ):
        world.run.deletion.delete("old", "reject")
    assert refused.value.details["current_state"] == ("paused" if paused else "active")
    after = item(world)
    # How often it was written.
    assert after is not None
    assert before is not None
    assert after.pop("rev") != before.pop("rev")
    assert after == before
    assert len(world.fetch("old")) == (0 if paused else 1)


@pytest.mark.parametrize("pauses", [True, False])
def test_a_pause_while_a_deletion_begins_is_not_lost_with_it(world: World, pauses: bool) -> None:
    """Paused, or resumed, after the deletion had read the queue; a job came as well."""
    queues = world.another().queues
    world.run.queues.configure("old", {})
    if not pauses:
        queues.pause("old")

    def meanwhile() -> None:
        world.push(queue="old")
        (queues.pause if pauses else queues.resume)("old")

    with between_look_and_begin(world, meanwhile), pytest.raises(Conflict, match="contains jobs"):
        world.run.deletion.delete("old", "reject")
    assert queues.get("old").paused is pauses


def test_a_job_that_the_index_does_not_show_yet_is_known_to_the_depth_counter(world: World) -> None:
    bound(world, "old", max_size=5)
    world.push(queue="old")
    before = item(world)
    with (
        mock.patch.object(world.run.deletion, "_occupied", return_value=False),
        pytest.raises(Conflict, match="it contains jobs"),
    ):
        world.run.deletion.delete("old", "reject")
    assert item(world) == before


def test_jobs_from_before_the_bound_that_are_done_do_not_keep_a_queue(world: World) -> None:
    """The depth counter counts them until the sweep looks."""
    world.push(queue="old")
    bound(world, "old", max_size=5)
    (job,) = world.fetch("old")
    world.run.finish.ack(job.id, worker_id=job.worker_id)
    assert counter_value(world, "old")[0] == 1
    assert world.run.deletion.delete("old", "reject")[1]


def test_nothing_is_told_of_an_end_that_was_taken_back(
    streamed: Callable[[], AbstractContextManager[World]],
) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        for queue in ("old", "other"):
            world.run.queues.create(queue, {})
        world.run.queues.pause("old")
        for queue in ("old", "other"):
            push = lambda queue=queue: world.push(queue=queue)  # noqa: E731
            with between_look_and_begin(world, push), pytest.raises(Conflict):
                world.run.deletion.delete(queue, "reject")
            with pytest.raises(Conflict):
                world.run.deletion.delete(queue, "reject")
        projected = Projected(world.client, world.table, world.clock)
        assert projected.run(stream.take()) == []
        told = [(event["type"], event["subject"]) for event in projected.events()]
        of_queues = [one for one in told if one[0].startswith("queue.")]
        assert sorted(of_queues) == [
            ("queue.created", "old"), ("queue.created", "other"), ("queue.paused", "old"),
        ]  # fmt: skip


def test_a_queue_that_comes_back_is_as_it_was(exact: World) -> None:
    """A push that was under way is stored after the queue went; the sweep brings the queue back."""
    exact.run.queues.configure("old", {"default_timeout": 60})
    exact.run.queues.configure("old", {"default_timeout": 70})
    exact.clock.advance(5)
    exact.run.queues.pause("old")
    before = exact.run.queues.get("old")
    late = exact.another()
    seen = late.stores.queues.get("old")
    exact.run.deletion.delete("old", "reject")
    late.stores.queues.current = lambda _name: seen  # type: ignore[assignment,method-assign]
    late.enqueue.push(envelope.parse({"type": "a", "args": [], "options": {"queue": "old"}}))
    exact.sweep()
    assert exact.run.queues.get("old") == before


def test_an_end_that_was_taken_back_and_begun_otherwise_is_not_finished(exact: World) -> None:
    """A deletion with `reject` finds the queue empty, and is slow to let it go."""
    exact.run.queues.configure("old", {})
    finish = exact.run.deletion._queues.finish_deletion

    def late(queue: Queue, deletion: Deletion, *, now_ms: int) -> None:
        other = exact.another()
        other.deletion._queues.cancel_deletion(queue, queue.deletion or deletion)
        exact.push(queue="old")
        exact.fetch("old", worker="w")
        exact.clock.advance(1)
        other.deletion.delete("old", "discard")
        finish(queue, deletion, now_ms=now_ms)

    with mock.patch.object(exact.run.deletion._queues, "finish_deletion", late):
        exact.run.deletion.delete("old", "reject")
    exact.sweep()
    found = exact.run.queues.get("old")
    assert found.deletion is not None
    assert (found.deletion.strategy, names(exact)) == (DeletionStrategy.DISCARD, ["old"])


@pytest.mark.parametrize("paused", [False, True])
def test_an_end_that_an_older_version_began_is_read_as_before(exact: World, paused: bool) -> None:
    """It wrote when, with what is undone."""
    exact.push(queue="old")
    exact.client.update_item(
        TableName=exact.table,
        Key={"pk": {"S": keys.queue("old")}, "sk": {"S": keys.RECORD}},
        UpdateExpression="SET #s = :s, ending = :e, changed = :c",
        ExpressionAttributeNames={"#s": "state"},
        ExpressionAttributeValues={
            ":s": {"S": "draining"},
            ":e": {"S": '["reject",null,5,1]' if paused else '["reject",null,5]'},
            ":c": {"N": "5"},
        },
    )
    assert len(exact.fetch("old")) == (0 if paused else 1)
    with pytest.raises(QueueMayStay):
        exact.push(queue="old")
    exact.sweep()
    assert exact.run.queues.get("old").state == ("paused" if paused else "active")


# --- what a queue hands out while it ends -------------------------------------------------------


def begun(world: World, strategy: str, target: str | None = None) -> None:
    """The end of a queue has begun, and nothing was dealt with yet."""
    store = world.run.deletion._queues
    queue = store.get("old")
    assert queue is not None
    store.begin_deletion(
        queue, Deletion(DeletionStrategy(strategy), target), now_ms=world.clock.now_ms()
    )


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize(
    ("strategy", "hands_out"),
    [("discard", False), ("move", False), ("reject", None), ("drain", True)],
)
def test_what_a_queue_hands_out_while_it_ends(
    world: World, strategy: str, hands_out: bool | None, paused: bool
) -> None:
    """What waits, and what is due: what a rejection may leave goes on as it was before."""
    world.push(queue="old")
    world.push(queue="old", scheduled_at="+PT1S")
    slow = {"initial_interval": "PT1S", "jitter": False}
    failing = world.push(queue="old", priority=9, retry=slow)
    world.fetch("old", worker="w")
    world.run.finish.nack(failing.id, worker_id="w", error={"message": "no"})
    if paused:
        world.run.queues.pause("old")
    begun(world, strategy, "new" if strategy == "move" else None)
    world.clock.advance(2_000)
    expected = 3 if hands_out or (hands_out is None and not paused) else 0
    assert len(world.fetch("old", 10)) == expected
    named = world.run.fetch.fetch(["other", "old"], 10, "v", strategy="strict")
    assert named == []


def test_what_runs_goes_on_while_its_queue_ends(world: World) -> None:
    acked, failed, beating = (world.push(n, queue="old") for n in range(3))
    assert len(world.fetch("old", 3, worker="w")) == 3
    world.push(queue="old")
    world.run.queues.pause("old")
    world.run.deletion.delete("old", "discard")
    world.run.finish.ack(acked.id, worker_id="w")
    world.run.finish.nack(failed.id, worker_id="w", error={"message": "no"})
    assert world.run.workers.beat("w", active_jobs=[beating.id]).jobs_extended == [beating.id]
    states = [world.state(job) for job in (acked, failed, beating)]
    assert states == ["completed", "retryable", "active"]


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("strategy", ["discard", "move"])
def test_nothing_is_handed_out_while_jobs_are_discarded_or_moved(
    exact: World, strategy: str, paused: bool
) -> None:
    """A fetch before each job that is dealt with."""
    for n in range(5):
        exact.push(n, queue="old")
    if paused:
        exact.run.queues.pause("old")
    end = exact.run.deletion._end
    worker, got = exact.another(), []

    def fetched(*given: Any) -> bool:
        got.extend(worker.fetch.fetch(["old"], 10, "w"))
        return end(*given)

    with mock.patch.object(exact.run.deletion, "_end", fetched):
        ending, deleted = exact.run.deletion.delete(
            "old", strategy, "new" if strategy == "move" else None
        )
    assert (got, ending.affected, deleted) == ([], 5, True)
    assert len(exact.fetch("new", 10)) == (5 if strategy == "move" else 0)


def test_a_paused_queue_that_is_drained_is_worked_off(world: World) -> None:
    job = world.push(queue="old")
    world.run.queues.pause("old")
    assert world.fetch("old") == []
    world.run.deletion.delete("old", "drain")
    assert [found.id for found in world.fetch("old", worker="w")] == [job.id]
    world.run.finish.ack(job.id, worker_id="w")
    world.sweep()
    assert names(world) == []


def test_a_dead_letter_leaves_its_copy_where_a_queue_may_stay(world: World) -> None:
    """The copy wins: it is not made later."""
    world.run.queues.configure("mail", {"dead_letter_queue": "old"})
    world.run.queues.configure("old", {})
    begun(world, "reject")
    job = world.push(queue="mail", retry={"max_attempts": 1})
    world.fetch("mail", worker="w")
    world.run.finish.nack(job.id, worker_id="w", error={"message": "no"})
    world.sweep()
    assert world.run.queues.get("old").state is QueueState.ACTIVE
    assert len(world.fetch("old")) == 1


def test_a_bulk_retry_waits_until_it_is_decided_whether_a_queue_stays(world: World) -> None:
    """None of its dead letters is given up for a deletion that may be refused."""
    job = world.push(queue="old", retry={"max_attempts": 1})
    world.fetch("old", worker="w")
    world.run.finish.nack(job.id, worker_id="w", error={"message": "no"})
    begun(world, "reject")
    world.clock.advance(1)
    done = world.run.bulk.begin(Action.RETRY, DeadLetterFilter(queue="old"))
    assert (done.errors, done.operation.phase.over) == ([], False)
    queue = world.run.queues.get("old")
    assert queue.deletion is not None
    world.run.deletion._queues.cancel_deletion(queue, queue.deletion)
    world.clock.advance(120_000)
    assert world.run.bulk.run_once(world.clock.now_ms(), 100)["retried"] == 1
    assert world.state(job) == "available"
