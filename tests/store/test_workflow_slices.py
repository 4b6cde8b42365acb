"""Starts of many jobs in slices: what they cost, and what may happen during them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import OjsError
from ojs.domain.workflow.advance import WorkflowState
from ojs.store.workflows.workflows import WorkflowRecord
from tests.store.conftest import make_world
from tests.store.faults import FAULTS, Faulty, attempt, orphans
from tests.store.spending import spending, warm
from tests.store.workflow_runs import (
    WORKER,
    ack,
    chain,
    create,
    group,
    jobs_of,
    now,
    running,
    step,
    sweep,
    work,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine
    from tests.store.conftest import World

# With these sizes, a start of MEMBERS jobs has three slices, each a staged batch.
SLICE, MEMBERS = 6, 16
KINDS = [("died after",), pytest.param(FAULTS, marks=pytest.mark.whole)]
MAX_UNITS = 2.15


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of six jobs, in parts of four; fan-ins from three jobs on, in shards of four."""
    monkeypatch.setattr("ojs.services.workflows.starts.MAX_BATCH", SLICE)
    monkeypatch.setattr("ojs.services.workflows.advance._STARTED_AT_ONCE", 3)
    monkeypatch.setattr("ojs.services.jobs.enqueue.MAX_TRANSACTION", 4)
    monkeypatch.setattr("ojs.store.jobs.staged_batches.MAX_TRANSACTION", 4)
    monkeypatch.setattr("ojs.services.workflows.starts.MIN_SLOTS", 3)
    monkeypatch.setattr("ojs.store.workflows.fan_ins.SHARD_SLOTS", 4)


class Before:
    """A client that does something else before the call of one number."""

    def __init__(self, client: Any, number: int, does: Callable[[], Any]) -> None:
        self._client, self._number, self._does = client, number, does
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            self.calls += 1
            if self.calls == self._number:
                self._does()
            return method(**arguments)

        return call


def before_each_call(
    engine: DynamoDBClient,
    start: Callable[[World], Callable[[Any], Any]],
    does: Callable[[World], Any],
) -> Iterator[tuple[World, Any, str]]:
    """For each call of what `start` returns for a world: `does` happens before this call."""
    for number in range(1, 150):
        world = make_world(engine)
        act = start(world)
        client = Before(world.client, number, partial(does, world))
        told = attempt(lambda: act(world.another(client)))  # noqa: B023
        yield world, told, f"before call {number}"
        engine.delete_table(TableName=world.table)
        if client.calls < number:
            return
    pytest.fail("a path with 150 calls")


def finish(world: World, record: WorkflowRecord | str) -> Counter[str]:
    """The workflow is worked off; how many jobs there were of each type."""
    workflow_id = record if isinstance(record, str) else record.id
    for _ in range(8):
        work(world)
        found = world.run.stores.workflows.get(workflow_id)
        if found is not None and found.state.final and not running(world):
            break
        world.clock.advance(61_000)
        sweep(world)
    world.clock.advance(400_000)
    world.sweep()
    return Counter(item["type"]["S"] for item in jobs_of(world))


def later(world: World) -> WorkflowRecord:
    """A workflow whose group starts when its first step ends, which runs."""
    return create(world.run, chain(step("first"), group(*[step("m")] * MEMBERS), step("last")))


LATER = Counter({"first": 1, "m": MEMBERS, "last": 1})


# --- units and calls ------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [100, 1_000, pytest.param(10_000, marks=pytest.mark.whole)])
def test_a_member_costs_two_units_to_start_with_its_workflow(exact: World, size: int) -> None:
    warm(exact)
    create(exact.run, chain(step("a"), step("a")))
    with spending(exact) as spent:
        record = create(exact.run, group(*[step("a", "x" * 100)] * size))
        while now(exact, record).starting:
            exact.clock.advance(61_000)
            sweep(exact)
    assert spent.writes <= MAX_UNITS * size
    assert spent.calls <= size
    assert len(jobs_of(exact)) >= size


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1_000, 2_500])
def test_a_member_costs_two_units_to_start_later(exact: World, size: int) -> None:
    warm(exact)
    create(exact.run, chain(step("first"), group(*[step("a", "x" * 100)] * size)))
    (job,) = exact.fetch(worker=WORKER)
    with spending(exact) as spent:
        ack(exact.run, job)
        # The stream repeats it, and finds it done.
        exact.run.workflow_advance.repeat(exact.run.jobs.get(job.id))
    assert spent.writes <= MAX_UNITS * size
    assert spent.calls <= 1.1 * size


# --- crashes --------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("by", ["ack", "sweep"])
def test_a_start_goes_on_wherever_it_ended(
    small: None, dynoxide: Engine, dynamodb: DynamoDBClient, kinds: tuple[str, ...], by: str
) -> None:
    """Each member starts once, in the next two minutes."""
    for fault in kinds:
        for number in range(1, 150):
            world = make_world(dynamodb)
            client = Faulty(world.client, number, fault)
            where = f"{fault} at call {number}"
            record = later(world)
            (job,) = world.fetch(worker=WORKER)
            broken = world.another(client)
            if by == "ack":
                attempt(partial(ack, broken, job))
            else:
                # The ack dies after it has written that the group starts, and a sweep goes on.
                dies = world.another()
                dies.workflow_starts.push = lambda *_: (_ for _ in ()).throw(SystemExit)  # type: ignore[method-assign]
                with pytest.raises(SystemExit):
                    ack(dies, job)
                world.clock.advance(61_000)
                attempt(partial(sweep, world, broken))
            client._fail_at = 0
            # Nobody acks: only the sweep goes on.
            found = world.run.jobs.get(job.id)
            if found.state.terminal:
                world.run.workflow_advance.repeat(found)
            else:
                ack(world.run, job)
            for _ in range(2):
                world.clock.advance(61_000)
                sweep(world)
            assert now(world, record).starting == 0, where
            assert finish(world, record) == LATER, where
            assert now(world, record).state is WorkflowState.COMPLETED, where
            assert orphans(world) == [], where
            dynamodb.delete_table(TableName=world.table)
            if client.calls < number:
                break
        else:
            pytest.fail("a path with 150 calls")


# --- several at once ------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("waited_ms", [0, pytest.param(21_000, marks=pytest.mark.whole)])
def test_two_that_start_the_same_group_start_each_member_once(
    small: None, dynoxide: Engine, dynamodb: DynamoDBClient, waited_ms: int
) -> None:
    """An ack, and before each of its calls the stream and a sweep; also after its time is over."""

    def start(world: World) -> Callable[[Any], Any]:
        later(world)
        (job,) = world.fetch(worker=WORKER)
        return lambda run: ack(run, job)

    def other(world: World) -> None:
        run = world.another()
        world.clock.advance(waited_ms)
        for item in jobs_of(world):
            job = run.stores.jobs.read_record(item["pk"]["S"].removeprefix("J|"))
            if job is not None and job.state.terminal:
                with suppress(OjsError):
                    run.workflow_advance.repeat(job)
        sweep(world, run)

    for world, _, where in before_each_call(dynamodb, start, other):
        (workflow_id,) = {
            item["pk"]["S"].removeprefix("W|")
            for item in world.items()
            if item["pk"]["S"].startswith("W|") and item["sk"]["S"] == "@"
        }
        # The claim of the lease that ran out: the first step runs again.
        world.clock.advance(61_000)
        sweep(world)
        assert finish(world, workflow_id) == LATER, where
        record = world.run.stores.workflows.get(workflow_id)
        assert record is not None
        assert record.state is WorkflowState.COMPLETED, where
        assert orphans(world) == [], where


def test_others_leave_a_start_to_the_request_that_does_it(small: None, exact: World) -> None:
    """An ack of another step during a start writes its own end and no member: nobody waits."""
    pairs = [chain(step("p"), step("q"))] * MEMBERS
    spent: list[Any] = []

    def acks() -> None:
        (job,) = exact.run.fetch.fetch(["default"], 1, WORKER)
        with spending(exact) as one:
            ack(exact.run, job)
        spent.append(one)

    # Before the commit of the second slice: its jobs are staged.
    counting = Before(exact.client, 0, lambda: None)
    other = exact.another(counting)
    create(other, group(*pairs))
    first = counting.calls
    work(exact)
    number = first * 2 // 3
    record = create(exact.another(Before(exact.client, number, acks)), group(*pairs))
    assert len(spent) == 1
    # The job, the root with the next step of its chain, and their reads.
    assert spent[0].calls <= 8
    assert now(exact, record).starting == 0
    counts = Counter(item["type"]["S"] for item in jobs_of(exact))
    assert counts["p"] == 2 * MEMBERS


@pytest.mark.exhaustive
def test_a_slice_is_stored_once_though_the_workflow_changes_meanwhile(
    small: None, dynoxide: Engine, dynamodb: DynamoDBClient
) -> None:
    """Its commit is repeated with the root as it is then; nothing is undone."""
    pairs = [chain(step("p"), step("q"))] * MEMBERS

    def start(world: World) -> Callable[[Any], Any]:
        return lambda run: create(run, group(*pairs))

    def acks(world: World) -> None:
        for job in world.fetch(count=1, worker=WORKER):
            ack(world.run, job)

    for world, record, where in before_each_call(dynamodb, start, acks):
        assert record is not None, where
        assert now(world, record).starting == 0, where
        undone = [
            item
            for item in world.client.scan(TableName=world.table)["Items"]
            if item["pk"]["S"].startswith("B|")
        ]
        assert undone == [], where
        assert finish(world, record) == {"p": MEMBERS, "q": MEMBERS}, where


def test_members_run_while_others_are_started(small: None, exact: World) -> None:
    """The first slice can be fetched and completed before the second one is stored."""
    ran: list[str] = []
    client = Before(exact.client, 0, lambda: None)
    create(exact.another(client), group(*[step("m")] * MEMBERS))
    work(exact)
    middle = client.calls // 2
    record = create(
        exact.another(Before(exact.client, middle, lambda: ran.extend(work(exact)))),
        group(*[step("m")] * MEMBERS),
    )
    assert SLICE <= len(ran) < MEMBERS
    assert finish(exact, record)["m"] == 2 * MEMBERS
    assert now(exact, record).state is WorkflowState.COMPLETED


@pytest.mark.parametrize("by", ["sweep", "ack"])
def test_a_start_that_has_no_time_left_is_continued_by_others(
    small: None, exact: World, by: str
) -> None:
    """The request says that it has stopped; its last slice is whole."""
    create(exact.run, chain(step("x"), step("x")))
    (other,) = exact.fetch(worker=WORKER)
    client = Before(exact.client, 4, lambda: exact.clock.advance(9_000))
    record = create(exact.another(client), group(*[chain(step("m"), step("n"))] * MEMBERS))
    found = exact.run.stores.workflows.get(record.id)
    assert found is not None
    assert found.starter_ms is None
    assert found.starting.bit_count() == MEMBERS - SLICE
    assert len(jobs_of(exact)) == SLICE + 1
    if by == "sweep":
        exact.clock.advance(20_000)
        sweep(exact)
    else:
        (job,) = exact.fetch(worker=WORKER)
        ack(exact.run, job)
    assert now(exact, record).starting == 0
    ack(exact.run, other)
    assert finish(exact, record) == {"x": 2, "m": MEMBERS, "n": MEMBERS}


# --- cancellation ---------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_cancellation_during_a_start_ends_it(
    small: None, dynoxide: Engine, dynamodb: DynamoDBClient
) -> None:
    """What was stored is cancelled; what was staged is removed and never runs."""

    def start(world: World) -> Callable[[Any], Any]:
        later(world)
        (job,) = world.fetch(worker=WORKER)
        return lambda run: ack(run, job)

    def cancels(world: World) -> None:
        for item in world.items():
            if item["pk"]["S"].startswith("W|") and item["sk"]["S"] == "@":
                with suppress(OjsError):
                    world.another().workflow_control.cancel(item["pk"]["S"].removeprefix("W|"))

    for world, _, where in before_each_call(dynamodb, start, cancels):
        (root,) = [
            item
            for item in world.items()
            if item["pk"]["S"].startswith("W|") and item["sk"]["S"] == "@"
        ]
        record = world.run.stores.workflows.get(root["pk"]["S"].removeprefix("W|"))
        assert record is not None
        if record.state is WorkflowState.CANCELLED:
            assert record.starting == 0, where
            assert record.starter_ms is None, where
            for _ in range(2):
                world.clock.advance(301_000)
                sweep(world)
                world.sweep()
            states = Counter(item["state"]["S"] for item in jobs_of(world))
            assert set(states) <= {"completed", "cancelled"}, where
            assert orphans(world) == [], where
            assert world.fetch(count=100) == [], where
