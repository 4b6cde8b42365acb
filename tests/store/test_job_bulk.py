"""Bulk operations on jobs in any state: all that match, each once, whatever dies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain import times
from ojs.domain.dead_letter.bulk import Action, BulkOperation, JobIds, Phase
from ojs.domain.errors import Conflict, NotFound
from ojs.domain.filters import jobs as job_filter
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job.job import Job
from ojs.domain.job.states import TERMINAL, State
from ojs.services.dead_letter import bulk
from ojs.store.dead_letter.bulk import OPERATION, _item
from ojs.store.jobs import items
from ojs.store.table import values
from tests.store.faults import attempt, faults
from tests.store.spending import spending
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ojs.runtime import Runtime
    from tests.store.conftest import World

HOUR_MS = 3_600_000
RETRY, CANCEL, DELETE = Action.RETRY_JOBS, Action.CANCEL_JOBS, Action.DELETE_JOBS


def scheduled(world: World, **options: Any) -> Job:
    at = times.format_ms(world.clock.now_ms() + HOUR_MS)
    return world.push(scheduled_at=at, **options)


def dead(world: World, *args: Any, **options: Any) -> Job:
    job = world.push(*args, retry={"max_attempts": 1}, **options)
    (got,) = world.fetch(options.get("queue", "default"))
    world.run.finish.nack(got.id, error={"message": "no"})
    return job


def retryable(world: World, **options: Any) -> Job:
    job = world.push(retry={"initial_interval": "PT1M"}, **options)
    (got,) = world.fetch(options.get("queue", "default"))
    world.run.finish.nack(got.id, error={"message": "no"})
    return job


def sweep(world: World, minutes: int = 1, run: Runtime | None = None) -> Counter[str]:
    counts: Counter[str] = Counter()
    for _ in range(minutes):
        world.clock.advance(60_001)
        counts.update((run or world.run).bulk.run_once(world.clock.now_ms(), 5_000).counts)
    return counts


def states(world: World) -> Counter[str]:
    found = [i for i in world.items() if i["pk"]["S"].startswith("J|") and i["sk"]["S"] == "@"]
    return Counter(i["state"]["S"] for i in found)


# --- by filter ----------------------------------------------------------------------------------


FAILING: dict[str, Any] = {
    "queue": "other",
    "state": "pending",
    "type": "no.such",
    "tag": "blue",
    "worker_id": "w-none",
    "producer": "another",
    "priority": 99,
    "meta": {"user": "else"},
    "args": "nowhere",
    **dict.fromkeys(("until", "enqueued_before", "older_than"), "2001-01-01T00:00:00Z"),
}


@pytest.mark.parametrize("action", [*(RETRY, CANCEL, DELETE), Action.ERASE_JOBS])
def test_a_filter_whose_field_matches_nothing_affects_no_job(world: World, action: Action) -> None:
    world.push()
    dead(world)
    world.clock.advance(1_000)
    now = times.format_ms(world.clock.now_ms())
    failing = FAILING | {"since": now, "enqueued_after": now}
    assert {*failing} == {*job_filter.JobFilterRequest.model_fields}
    before = states(world)
    world.clock.advance(1_000)
    for name, value in failing.items():
        wanted = job_filter.parse({name: value}, now_ms=world.clock.now_ms())
        operation = world.run.bulk.begin(action, wanted).operation
        assert (name, operation.matched, operation.succeeded) == (name, 0, 0)
    assert states(world) == before


def test_all_that_match_are_cancelled_and_no_others(world: World) -> None:
    world.run.queues.create("mail", {"lanes": 2})
    mine = [world.push(queue="mail").id for _ in range(6)]
    mine += [scheduled(world, queue="mail").id, world.push(queue="mail", pending=True).id]
    others = [world.push(queue="other"), world.push(queue="mail", kind="other.kind")]
    wanted = job_filter.limited(JobFilter("mail", type="test.*"), CANCEL.states)
    done = world.run.bulk.begin(CANCEL, wanted)
    assert sorted(done.job_ids) == sorted(mine)
    operation = done.operation
    assert (operation.phase, operation.matched, operation.failed) == (Phase.COMPLETED, 8, 0)
    assert world.run.bulk.get(operation.id) == operation
    assert [world.state(job) for job in others] == ["available"] * 2
    assert {world.run.jobs.get(job_id).state for job_id in mine} == {State.CANCELLED}


def test_jobs_claimed_a_moment_ago_are_among_those_that_match(world: World) -> None:
    mine = [world.push(queue="mail").id for _ in range(3)]
    world.fetch("mail", 2)
    wanted = job_filter.limited(JobFilter("mail"), CANCEL.states)
    # One of them is back in line: it is in its line and in a lease note.
    world.run.finish.nack(mine[0], error=None, requeue=True)
    assert world.run.bulk.begin(CANCEL, wanted, dry_run=True).operation.matched == 3
    assert sorted(world.run.bulk.begin(CANCEL, wanted).job_ids) == sorted(mine)


def test_dead_letters_and_retryable_jobs_come_back(world: World) -> None:
    mine = [dead(world), retryable(world)]
    gone = world.push(retry={"max_attempts": 1, "on_exhaustion": "discard"})
    (got,) = world.fetch()
    world.run.finish.nack(got.id, error={"message": "no"})
    wanted = job_filter.limited(JobFilter("default"), RETRY.states)
    done = world.run.bulk.begin(RETRY, wanted)
    assert sorted(done.job_ids) == sorted(job.id for job in mine)
    assert done.errors == []
    assert {job.id for job in world.fetch(count=5)} == {job.id for job in mine}
    assert world.state(gone) == "discarded"


def test_final_jobs_are_deleted_with_all_that_belongs_to_them(
    streamed: Callable[[], AbstractContextManager[World]],
) -> None:
    with streamed() as world:
        dead(world, "x" * 5_000)
        jobs = [world.push("x" * 5_000) for _ in range(4)]
        world.run.jobs.cancel(jobs[0].id)
        for got in world.fetch(count=2):
            world.run.finish.ack(got.id, result="y" * 500)
        Projected(world.client, world.table, world.clock).run(
            Stream(world.client, world.table).take()
        )
        wanted = job_filter.limited(JobFilter("default"), TERMINAL)
        done = world.run.bulk.begin(DELETE, wanted)
        assert (len(done.job_ids), done.errors) == (4, [])
        assert states(world) == {"available": 1}
        records = {i["pk"]["S"] for i in world.items() if i["pk"]["S"].startswith("J|")}
        assert len(records) == 1


def test_a_filter_on_what_clients_sent_counts_also_where_it_is_offloaded(world: World) -> None:
    big = world.push("y" * 5_000, tags=["red"])
    world.push("z" * 5_000, tags=["blue"])
    small = world.push("small", tags=["red"])
    wanted = job_filter.limited(JobFilter("default", tag="red"), CANCEL.states)
    done = world.run.bulk.begin(CANCEL, wanted)
    assert sorted(done.job_ids) == sorted([big.id, small.id])


def test_only_jobs_that_were_there_when_it_began(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "REQUEST_JOBS", 1)
    first, second = world.push(), dead(world, queue="dead")
    other = dead(world, queue="dead")
    cancelling = world.run.bulk.begin(CANCEL, job_filter.limited(JobFilter(), CANCEL.states))
    retrying = world.run.bulk.begin(RETRY, job_filter.limited(JobFilter("dead"), RETRY.states))
    assert retrying.job_ids == [other.id]
    assert cancelling.job_ids == [first.id]
    world.clock.advance(1_000)
    # It fails again, and a new job comes: neither is meant.
    (got,) = world.fetch("dead")
    world.run.finish.nack(got.id, error={"message": "no"})
    new = world.push()
    sweep(world, 2)
    assert (world.state(other), world.state(new)) == ("discarded", "available")
    assert world.state(second) == "available"


def test_a_dry_run_counts_and_does_nothing(world: World) -> None:
    for number in range(7):
        world.push(number)
    before = states(world)
    wanted = job_filter.limited(JobFilter("default"), CANCEL.states)
    done = world.run.bulk.begin(CANCEL, wanted, dry_run=True)
    shown = done.operation.to_dict()
    assert (shown["matched"], shown["succeeded"], shown["dry_run"]) == (7, 0, True)
    assert states(world) == before
    assert world.run.bulk.get(done.operation.id).dry_run


# --- by ids -------------------------------------------------------------------------------------


def test_named_jobs_are_dealt_with_and_the_others_told_of(world: World) -> None:
    mine, running = world.push(), world.push(queue="busy")
    world.fetch("busy")
    final = world.push(queue="final")
    world.run.jobs.cancel(final.id)
    world.clock.advance(1)
    gone = "019539a4-0000-7000-8000-000000000000"
    done = world.run.bulk.begin(CANCEL, JobIds((mine.id, running.id, final.id, gone)))
    assert done.job_ids == [mine.id, running.id]
    assert [(error.job_id, error.code) for error in done.errors] == [
        (final.id, "conflict"),
        (gone, "not_found"),
    ]
    assert "must be" in done.errors[0].message
    assert done.operation.phase is Phase.COMPLETED


def test_named_jobs_that_cannot_come_back_are_refused(world: World) -> None:
    letter, waiting = dead(world), world.push(queue="other")
    done = world.run.bulk.begin(RETRY, JobIds((letter.id, waiting.id)))
    assert done.job_ids == [letter.id]
    assert [error.job_id for error in done.errors] == [waiting.id]
    done = world.run.bulk.begin(DELETE, JobIds((waiting.id,)))
    assert [error.code for error in done.errors] == ["conflict"]


# --- it goes on ---------------------------------------------------------------------------------


def test_the_sweep_carries_on_and_it_can_be_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "REQUEST_JOBS", 5)
    ids = [world.push(number).id for number in range(20)]
    begun = world.run.bulk.begin(CANCEL, job_filter.limited(JobFilter("default"), CANCEL.states))
    assert (len(begun.job_ids), begun.operation.phase) == (5, Phase.RUNNING)
    named = world.run.bulk.begin(CANCEL, JobIds(tuple(ids[10:])))
    assert named.operation.phase is Phase.RUNNING
    stopped = world.run.bulk.stop(named.operation.id, of_jobs=True)
    assert stopped.phase is Phase.STOPPED
    with pytest.raises(NotFound):
        world.run.bulk.stop(begun.operation.id, of_jobs=False)
    assert sweep(world)["cancelled"] == 10
    assert states(world) == {"cancelled": 20}
    after = world.run.bulk.get(begun.operation.id)
    assert (after.phase, after.succeeded) == (Phase.COMPLETED, 15)
    listed = world.run.bulk.list(of_jobs=True).items
    assert [operation.id for operation in listed] == [named.operation.id, begun.operation.id]
    assert world.run.bulk.list().items == []


def test_a_full_queue_is_waited_for(world: World) -> None:
    for _ in range(3):
        dead(world, queue="tight")
    world.run.queues.configure("tight", {"max_size": 1})
    done = world.run.bulk.begin(RETRY, job_filter.limited(JobFilter("tight"), RETRY.states))
    assert done.operation.waiting_for_room
    for _ in range(3):
        (got,) = world.fetch("tight")
        world.run.finish.ack(got.id)
        sweep(world)
    assert world.run.bulk.get(done.operation.id).phase is Phase.COMPLETED
    assert states(world) == {"completed": 3}


@pytest.mark.parametrize("action", [CANCEL, RETRY])
def test_an_operation_costs_little_more_than_its_acts(world: World, action: Action) -> None:
    count = 30
    ids = [(world.push() if action is CANCEL else retryable(world)).id for _ in range(count)]
    with spending(world) as one:
        act = world.run.acts
        job = world.run.stores.jobs.read_record(ids[0])
        assert job is not None
        _ = act.cancel(job) if action is CANCEL else act.bring_back(job)
    wanted = job_filter.limited(JobFilter("default"), action.states)
    with spending(world) as spent:
        done = world.run.bulk.begin(action, wanted)
    assert len(done.job_ids) == count - 1
    # Without the read that the act alone needs.
    assert spent.calls - (count - 1) * (one.calls - 1) <= 0.3 * count


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("action", [CANCEL, RETRY, DELETE])
def test_killed_at_any_call_nothing_is_lost_or_doubled(
    exact: World, action: Action, named: bool
) -> None:
    world = exact
    for number, (run, client) in enumerate(faults(world)):
        queue = f"q{number}"
        if action is CANCEL:
            jobs = [world.push(queue=queue), scheduled(world, queue=queue)]
        elif action is RETRY:
            jobs = [dead(world, queue=queue), retryable(world, queue=queue)]
        else:
            jobs = [dead(world, queue=queue), dead(world, queue=queue)]
        wanted: JobFilter | JobIds = job_filter.limited(JobFilter(queue), action.states)
        if named:
            wanted = JobIds(tuple(job.id for job in jobs))
        if action is DELETE and not named:
            wanted = JobFilter(queue, (State.DISCARDED,))
        began = client.calls
        done = attempt(lambda: run.bulk.begin(action, wanted))  # noqa: B023
        world.clock.advance(61_000)
        stored = world.run.bulk.list(of_jobs=True, limit=1).items
        begun = [one for one in stored if one.wanted == wanted]
        sweep(world, 3)
        assert client.calls > began
        if not begun:
            # It was not stored, and so the client has no answer.
            assert done is None
            assert len([job for job in jobs if _there(world, job)]) == 2
            continue
        assert world.run.bulk.get(begun[0].id).phase is Phase.COMPLETED
        _all_done(world, action, jobs, queue)


def _there(world: World, job: Job) -> bool:
    return world.run.stores.jobs.read_record(job.id) is not None


def _all_done(world: World, action: Action, jobs: list[Job], queue: str) -> None:
    if action is DELETE:
        assert not any(_there(world, job) for job in jobs)
    elif action is CANCEL:
        assert {world.state(job) for job in jobs} == {"cancelled"}
    else:
        got = [job.id for job in world.fetch(queue, 5)]
        assert sorted(got) == sorted(job.id for job in jobs)
        # Each came back once.
        assert {world.run.jobs.get(job_id).life for job_id in got} <= {0, 1}


# --- as stored ----------------------------------------------------------------------------------


def test_what_is_stored_is_read_again() -> None:
    wanted = job_filter.parse(
        {
            "queue": "a",
            "state": ["available", "scheduled"],
            "type": "mail.*",
            "tag": "red",
            "since": "2026-01-01T00:00:00Z",
            "until": "2026-01-02T00:00:00Z",
            "enqueued_after": "2026-01-01T00:00:00Z",
            "enqueued_before": "2026-01-02T00:00:00Z",
            "priority": 5,
            "meta": {"a": [1, "2"]},
            "args": "$[0]=1",
        },
        now_ms=1_800_000_000_000,
    )
    ids = ("019539a4-0000-7000-8000-000000000000", "019539a4-0000-7000-8000-00000000000f")
    ended = job_filter.parse({"older_than": "P7D"}, now_ms=1_800_000_000_000)
    for meant, dry in ((wanted, False), (JobIds(ids), True), (ended, False)):
        operation = BulkOperation(
            ids[0], CANCEL, meant, 1_800_000_000_000, 1_800_000_000_000, dry_run=dry
        )
        assert OPERATION.of(_item(operation)) == operation


def test_a_job_that_has_ended_is_not_cancelled_twice(world: World) -> None:
    job = world.push()
    world.run.bulk.begin(CANCEL, JobIds((job.id,)))
    done = world.run.bulk.begin(CANCEL, JobIds((job.id,)))
    # In the same millisecond: as if it had died after the first.
    assert done.job_ids == [job.id]
    world.clock.advance(1)
    again = world.run.bulk.begin(CANCEL, JobIds((job.id,)))
    assert [error.code for error in again.errors] == ["conflict"]
    stored = world.run.stores.jobs.read_record(job.id)
    assert stored is not None
    with pytest.raises(Conflict):
        world.run.acts.cancel(stored)


def test_a_record_that_cannot_be_read_is_told_of(world: World) -> None:
    job = world.push()
    record = items.record_of(job) | {"state": "available", "retry": "{"}
    world.client.put_item(TableName=world.table, Item=values.pack(record))
    done = world.run.bulk.begin(CANCEL, JobIds((job.id,)))
    assert [error.job_id for error in done.errors] == [job.id]
