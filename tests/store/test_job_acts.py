"""What operators do to single jobs: every state, races, and a fault at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain import times
from ojs.domain.errors import Conflict, JobTypeNotAllowed, NotFound, QueueFull
from ojs.domain.job.history import history
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.services.bulk.acts import JobActs
from tests.store.bounded import counter_value
from tests.store.faults import attempt, drain, faults, orphans
from tests.store.spending import spending
from tests.store.tenants import fair, push

if TYPE_CHECKING:
    from tests.store.conftest import World

HOUR_MS = 3_600_000
LARGE = "x" * 5_000


def in_state(world: World, state: State, queue: str = "default") -> Job:
    """A job in a state; a discarded one is a dead letter."""
    options: dict[str, Any] = {"queue": queue}
    match state:
        case State.SCHEDULED:
            options["scheduled_at"] = times.format_ms(world.clock.now_ms() + HOUR_MS)
        case State.PENDING:
            options["pending"] = True
        case State.DISCARDED:
            options["retry"] = {"max_attempts": 1}
        case _:
            pass
    job = world.push(LARGE, **options)
    if state is State.CANCELLED:
        world.run.jobs.cancel(job.id)
    if state in (State.ACTIVE, State.COMPLETED, State.RETRYABLE, State.DISCARDED):
        (got,) = world.fetch(queue)
        assert got.id == job.id
        if state is State.COMPLETED:
            world.run.finish.ack(job.id)
        elif state is not State.ACTIVE:
            world.run.finish.nack(job.id, error={"message": "no"})
    assert world.state(job) == state
    return job


ACTS: dict[str, tuple[Callable[[JobActs, str], object], set[State]]] = {
    "retry": (lambda acts, of: acts.retry(of), {State.RETRYABLE, State.DISCARDED}),
    "run_now": (lambda acts, of: acts.run_now(of), {State.SCHEDULED, State.RETRYABLE}),
    "priority": (
        lambda acts, of: acts.change(of, priority=7, queue=None),
        {State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.PENDING},
    ),
    "queue": (
        lambda acts, of: acts.change(of, priority=None, queue="other"),
        {State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.PENDING},
    ),
    "delete": (
        lambda acts, of: acts.delete(of),
        {State.COMPLETED, State.CANCELLED, State.DISCARDED},
    ),
}


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize(
    "state",
    [
        State.AVAILABLE,
        State.DISCARDED,
        *(
            pytest.param(state, marks=pytest.mark.exhaustive)
            for state in State
            if state not in (State.AVAILABLE, State.DISCARDED)
        ),
    ],
)
def test_an_act_is_done_in_some_states_and_refused_in_others(
    world: World, name: str, state: State
) -> None:
    act, allowed = ACTS[name]
    job = in_state(world, state)
    before = world.items()
    if state not in allowed:
        with pytest.raises(Conflict) as refused:
            act(world.run.acts, job.id)
        assert refused.value.details["current_state"] == state
        assert world.items() == before
        return
    act(world.run.acts, job.id)
    if name == "delete":
        with pytest.raises(NotFound):
            world.run.jobs.get(job.id)
        assert not [i for i in world.items() if i["pk"]["S"] == f"J|{job.id}"]
        return
    now = world.run.jobs.get(job.id)
    assert now.content == job.content
    match name:
        case "priority":
            assert (now.priority, now.state) == (7, state)
        case "queue":
            assert (now.queue, now.state) == ("other", state)
            assert world.fetch("default") == []
        case _:
            assert now.state is State.AVAILABLE
    if now.state is State.AVAILABLE:
        assert [got.id for got in world.fetch(now.queue, 5)] == [job.id]
        assert world.fetch(now.queue, 5) == []


@pytest.mark.parametrize("name", ACTS)
def test_an_unknown_job_is_not_found(world: World, name: str) -> None:
    with pytest.raises(NotFound):
        ACTS[name][0](world.run.acts, "019539a4-0000-7000-8000-000000000000")


def test_a_job_that_was_discarded_for_good_is_not_retried(world: World) -> None:
    job = world.push(retry={"max_attempts": 1, "on_exhaustion": "discard"})
    (got,) = world.fetch()
    world.run.finish.nack(got.id, error={"message": "no"})
    with pytest.raises(Conflict, match="not a dead letter"):
        world.run.acts.retry(job.id)


def test_a_new_priority_counts_in_line_and_arrival_among_equals(world: World) -> None:
    first, second, third = (world.push(number) for number in range(3))
    world.run.acts.change(third.id, priority=5, queue=None)
    world.run.acts.change(second.id, priority=5, queue=None)
    assert [job.id for job in world.fetch(count=3)] == [second.id, third.id, first.id]


def test_tenants_take_turns_after_a_change_of_priority(world: World) -> None:
    fair(world)
    jobs = [push(world, tenant) for tenant in ("a", "a", "a", "b")]
    for job in jobs:
        world.run.acts.change(job.id, priority=5, queue=None)
    # The other tenant's job is not behind all of the first one's.
    assert [job.id for job in world.fetch(count=4)] == [jobs[n].id for n in (0, 3, 1, 2)]


@pytest.mark.parametrize("state", [State.AVAILABLE, State.SCHEDULED])
def test_a_moved_job_takes_room_there_and_gives_it_back_here(world: World, state: State) -> None:
    for queue in ("here", "there"):
        world.run.queues.create(queue, {"max_size": 1})
    job = in_state(world, state, "here")
    world.run.acts.change(job.id, priority=3, queue="there")
    moved = world.run.jobs.get(job.id)
    assert (moved.queue, moved.priority) == ("there", 3)
    assert counter_value(world, "here") == (0, 0)
    assert counter_value(world, "there")[0] == 1
    other = in_state(world, state, "here")
    with pytest.raises(QueueFull):
        world.run.acts.change(other.id, priority=None, queue="there")
    assert world.run.jobs.get(other.id).queue == "here"
    assert counter_value(world, "here")[0] == 1


def test_the_other_queue_must_take_the_job(world: World) -> None:
    world.run.queues.create("picky", {"allowed_job_types": ["mail.send"]})
    job = world.push()
    with pytest.raises(JobTypeNotAllowed):
        world.run.acts.change(job.id, priority=None, queue="picky")
    assert world.run.jobs.get(job.id).queue == "default"


def test_an_act_is_one_read_and_one_write(world: World) -> None:
    for name in ("retry", "run_now", "priority"):
        job = in_state(world, State.RETRYABLE, f"q-{name.replace('_', '')}")
        with spending(world) as spent:
            ACTS[name][0](world.run.acts, job.id)
        # And the payload, for the answer.
        assert spent.calls == 3, name
        assert spent.writes <= 4, name


# --- faults and races ---------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("retry", State.RETRYABLE),
        ("retry", State.DISCARDED),
        ("run_now", State.SCHEDULED),
        ("priority", State.AVAILABLE),
        ("queue", State.AVAILABLE),
        ("delete", State.COMPLETED),
        ("delete", State.DISCARDED),
    ],
)
def test_a_fault_at_any_call_leaves_the_job_whole(exact: World, name: str, state: State) -> None:
    world, (act, _) = exact, ACTS[name]
    for run, client in faults(world):
        job = in_state(world, state)
        attempt(lambda: act(run.acts, job.id))  # noqa: B023
        if client.calls and name == "delete":
            _deleted_or_not(world, job)
            continue
        now = world.run.jobs.get(job.id)
        assert now.content == job.content
        assert now.state in (state, State.AVAILABLE)
        # Made again, it is done, or refused since it was done.
        try:
            act(world.run.acts, job.id)
        except Conflict:
            assert now.state is State.AVAILABLE
        if now.state is State.PENDING:
            world.run.jobs.activate(job.id)
        elif world.run.jobs.get(job.id).state is State.SCHEDULED:
            world.run.acts.run_now(job.id)
        got = [one.id for queue in ("default", "other") for one in drain(world, queue)]
        assert got == [job.id]
        assert not orphans(world)


def _deleted_or_not(world: World, job: Job) -> None:
    try:
        world.run.acts.delete(job.id)
    except NotFound:
        return
    with pytest.raises(NotFound):
        world.run.jobs.get(job.id)


def test_of_two_acts_at_once_one_is_done(world: World) -> None:
    """A fetch claims the job between the read and the write of a change."""
    job = world.push()
    read = world.run.stores.jobs.read_record

    def claimed_meanwhile(job_id: str) -> Job | None:
        found = read(job_id)
        world.run.stores.jobs.read_record = read  # type: ignore[method-assign]
        assert world.fetch()
        return found

    world.run.stores.jobs.read_record = claimed_meanwhile  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="active"):
        world.run.acts.change(job.id, priority=5, queue=None)
    assert world.run.jobs.get(job.id).priority == 0


# --- history ------------------------------------------------------------------------------------


def test_history_tells_what_the_items_of_a_job_say(world: World) -> None:
    job = world.push(retry={"max_attempts": 2, "initial_interval": "PT1S"})
    world.clock.advance(1_000)
    (got,) = world.fetch()
    world.clock.advance(1_000)
    world.run.finish.nack(got.id, error={"message": "no", "type": "Boom"})
    world.clock.advance(5_000)
    (got,) = world.fetch()
    world.clock.advance(1_000)
    world.run.finish.ack(got.id)
    told = history(world.run.jobs.get(job.id))
    assert [event["event_type"] for event in told] == [
        "job.created",
        "job.attempt_failed",
        "job.attempt_started",
        "job.attempt_completed",
        "job.state_changed",
    ]
    assert told[1]["data"] == {"attempt": 1, "error": {"type": "Boom", "message": "no"}}
    assert told[2]["data"] == {"attempt": 2}
    assert told[-1]["data"] == {"to": "completed"}
    times_told = [event["timestamp"] for event in told]
    assert times_told == sorted(times_told)
    assert len({event["id"] for event in told}) == len(told)
    assert told == history(world.run.jobs.get(job.id))


def test_history_of_other_jobs(world: World) -> None:
    pending = world.push(pending=True)
    world.run.jobs.activate(pending.id)
    kinds = [event["data"] for event in history(world.run.jobs.get(pending.id))]
    assert {"from": "pending", "to": "available"} in kinds
    for state in (State.RETRYABLE, State.CANCELLED, State.DISCARDED):
        job = in_state(world, state, state.value)
        last = history(world.run.jobs.get(job.id))[-1]
        assert last["data"] == {"to": state.value}
