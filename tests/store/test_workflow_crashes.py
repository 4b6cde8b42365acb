"""Dying, losing answers and being throttled at every call of the paths of workflows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import Conflict, Duplicate
from ojs.domain.workflow.advance import RetryMode, WorkflowState
from tests.spread import spread
from tests.store.conftest import make_world
from tests.store.faults import FAULTS, Faulty, attempt, orphans
from tests.store.workflow_runs import (
    WORKER,
    ack,
    batch,
    chain,
    create,
    group,
    jobs_of,
    nack,
    now,
    running,
    step,
    sweep,
    work,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine
    from ojs.runtime import Runtime
    from tests.store.conftest import World

ID = "019414d4-aaaa-7000-8000-000000000001"
KINDS = [
    ("died after",),
    pytest.param(FAULTS, marks=pytest.mark.whole),
]
SMALL = chain(step("a"), step("b"), step("c"))
WIDE = chain(step("a"), group(*[step("b")] * 4), step("c"))
UNIQUE = chain(step("a"), group(step("b", options={"unique": {"key": "k"}}), step("b")), step("c"))
CAUGHT = batch([step("a"), step("b")], on_failure=step("f"), on_success=step("s"))


@pytest.fixture(autouse=True)
def _small_fan_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four jobs have a fan-in of two shards, and ten jobs start together."""
    monkeypatch.setattr("ojs.services.workflows.starts.MAX_BATCH", 10)
    monkeypatch.setattr("ojs.services.workflows.starts.MIN_SLOTS", 3)
    monkeypatch.setattr("ojs.store.workflows.fan_ins.SHARD_SLOTS", 2)


def each_fault(engine: DynamoDBClient, kinds: tuple[str, ...]) -> Iterator[Any]:
    for fault in kinds:
        for number in range(1, 80):
            world = make_world(engine)
            client = Faulty(world.client, number, fault)
            yield world, client, f"{fault} at call {number}"
            engine.delete_table(TableName=world.table)
            if client.calls < number:
                break
        else:
            pytest.fail("a path with eighty calls")


def repeat_ends(world: World, run: Runtime) -> None:
    """The stream tells of all jobs that have ended."""
    for item in jobs_of(world):
        job = run.stores.jobs.read_record(item["pk"]["S"].removeprefix("J|"))
        if job is not None and job.state.terminal:
            run.workflow_advance.repeat(job)


def look(world: World) -> None:
    """The sweep of some minutes later."""
    world.clock.advance(301_000)
    sweep(world)


def finish(world: World, workflow_id: str, fails: tuple[str, ...] = ()) -> Counter[str]:
    """The workflow is worked off; how many jobs there were of each type."""

    def does(job: Any) -> str:
        if job.type in fails:
            raise ValueError
        return str(job.type)

    for _ in range(6):
        work(world, does)
        record = world.run.stores.workflows.get(workflow_id)
        if record is not None and record.state.final and not running(world):
            break
        world.clock.advance(2_000_000)
        world.sweep()
        sweep(world)
    return Counter(item["type"]["S"] for item in jobs_of(world))


# A group of five is a staged batch.
CREATED: list[tuple[str, dict[str, Any], Counter[str]]] = [
    ("group", group(*[step("b")] * 5), Counter("b" * 5)),
    ("chain", SMALL, Counter("abc")),
    ("slices", group(*[step("b")] * 25), Counter("b" * 25)),
    ("pair", group(step("a"), step("b")), Counter("ab")),
    ("unique", group(step("a", options={"unique": {"key": "k"}}), step("b")), Counter("ab")),
]


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("row", spread([(row,) for row in CREATED], 5, [row[0] for row in CREATED]))
def test_a_workflow_is_created_whole_or_not_at_all(
    dynoxide: Engine, dynamodb: DynamoDBClient, row: Any, kinds: tuple[str, ...]
) -> None:
    """A client that gets no answer sends the same id again: there is one workflow then."""
    _, body, jobs = row
    body = {**body, "id": ID}
    for world, client, where in each_fault(dynamodb, kinds):
        broken = world.another(client)
        with suppress(Duplicate):
            attempt(partial(create, broken, body))
        client._fail_at = 0
        there = world.run.stores.workflows.get(ID)
        if there is None:
            # What a staged batch left is undone after its grace.
            world.clock.advance(400_000)
            world.sweep()
            assert world.fetch(count=100) == [], where
            create(world.run, body)
        look(world)
        assert finish(world, ID) == jobs, where
        record = world.run.stores.workflows.get(ID)
        assert record is not None
        assert record.state is WorkflowState.COMPLETED, where
        assert orphans(world) == [], where


# What is created, what fails, how many end before the fault, which jobs there are in the end.
ADVANCED: list[tuple[str, dict[str, Any], tuple[str, ...], int, Counter[str], WorkflowState]] = [
    ("to the next", SMALL, (), 0, Counter("abc"), WorkflowState.COMPLETED),
    ("to the last", SMALL, (), 2, Counter("abc"), WorkflowState.COMPLETED),
    ("to a group", WIDE, (), 0, Counter("a" + "b" * 4 + "c"), WorkflowState.COMPLETED),
    ("at a fan-in", WIDE, (), 4, Counter("a" + "b" * 4 + "c"), WorkflowState.COMPLETED),
    ("to a unique one", UNIQUE, (), 0, Counter("abbc"), WorkflowState.COMPLETED),
    ("to a failure", CAUGHT, ("b",), 1, Counter("abf"), WorkflowState.COMPLETED),
    ("of a chain that fails", SMALL, ("b",), 1, Counter("ab"), WorkflowState.FAILED),
]


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize(
    ("row", "found_by"),
    spread(
        [(row, found_by) for row in ADVANCED for found_by in ("stream", "sweep")],
        5,
        [f"{row[0]} by the {found_by}" for row in ADVANCED for found_by in ("stream", "sweep")],
    ),
)
def test_each_step_starts_once_whatever_dies(
    dynoxide: Engine, dynamodb: DynamoDBClient, row: Any, kinds: tuple[str, ...], found_by: str
) -> None:
    """The request that ends a job dies, and the stream or the sweep does the rest."""
    _, body, fails, before, jobs, state = row

    def does(job: Any) -> str:
        if job.type in fails:
            raise ValueError
        return str(job.type)

    for world, client, where in each_fault(dynamodb, kinds):
        record = create(world.run, body)
        work(world, does, most=before)
        (job,) = world.fetch(worker=WORKER)
        broken = world.another(client)
        end = nack if job.type in fails else ack
        attempt(partial(end, broken, job))
        client._fail_at = 0
        if found_by == "stream":
            repeat_ends(world, world.another())
        else:
            look(world)
        assert finish(world, record.id, fails) == jobs, where
        assert now(world, record).state is state, where
        assert orphans(world) == [], where


@pytest.mark.exhaustive
@pytest.mark.parametrize("kinds", KINDS)
def test_the_repetition_itself_may_die(
    dynoxide: Engine, dynamodb: DynamoDBClient, kinds: tuple[str, ...]
) -> None:
    for world, client, where in each_fault(dynamodb, kinds):
        record = create(world.run, WIDE)
        work(world, most=4)
        (job,) = world.fetch(worker=WORKER)
        dies = world.another()
        dies.workflow_advance.job_ended = lambda job: None
        ack(dies, job, 1)
        attempt(partial(repeat_ends, world, world.another(client)))
        client._fail_at = 0
        repeat_ends(world, world.another())
        assert finish(world, record.id) == Counter("a" + "b" * 4 + "c"), where
        assert now(world, record).state is WorkflowState.COMPLETED, where
        assert now(world, record).fan_ins == (), where


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("body", [group(step("a"), step("b"), chain(step("c"), step("d")))])
def test_a_cancellation_is_whole_in_the_end(
    dynoxide: Engine, dynamodb: DynamoDBClient, body: dict[str, Any], kinds: tuple[str, ...]
) -> None:
    for world, client, where in each_fault(dynamodb, kinds):
        record = create(world.run, body)
        (running,) = world.fetch(worker=WORKER)
        broken = world.another(client)
        attempt(partial(broken.workflow_control.cancel, record.id))
        client._fail_at = 0
        with suppress(Conflict):
            world.run.workflow_control.cancel(record.id)
        ack(world.run, running)
        look(world)
        states = Counter(item["state"]["S"] for item in jobs_of(world))
        assert states == {"completed": 1, "cancelled": 2}, where
        after = now(world, record)
        assert (after.state, after.leaving, after.check_ms) == (
            WorkflowState.CANCELLED, 0, None,
        ), where  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("kinds", KINDS)
def test_a_retry_begins_once(
    dynoxide: Engine, dynamodb: DynamoDBClient, kinds: tuple[str, ...]
) -> None:
    for world, client, where in each_fault(dynamodb, kinds):
        record = create(world.run, WIDE)

        def does(job: Any) -> str:
            if job.type == "b":
                raise ValueError
            return "r"

        work(world, does)
        assert now(world, record).state is WorkflowState.FAILED
        broken = world.another(client)
        attempt(partial(broken.workflow_control.retry, record.id, RetryMode.FAILED))
        client._fail_at = 0
        with suppress(Conflict):
            world.run.workflow_control.retry(record.id, RetryMode.FAILED)
        look(world)
        assert finish(world, record.id) == Counter("a" + "b" * 8 + "c"), where
        after = now(world, record)
        assert (after.state, after.graph_state.generation) == (WorkflowState.COMPLETED, 1), where
