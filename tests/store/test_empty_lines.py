"""Fetches from many lanes and queues: what an empty one costs, how soon what arrives is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest

from ojs.domain.errors import BackendUnavailable
from ojs.domain.job import envelope
from ojs.domain.job.job import Job
from ojs.runtime import Runtime
from ojs.services.for_each import THREADS, in_threads, one_by_one
from ojs.services.jobs import empty_lines
from ojs.store.table import keys
from ojs.store.table.table import Update
from tests.simulation.memory import Memory
from tests.store.conftest import WORKER, World
from tests.store.doubles import Throttled

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

MINUTE_S = 60
MANY = [f"q{number:02}" for number in range(50)]
WIDE = ["wide"]


class Client:
    """The SDK's client of a table in memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._memory, name)
        return lambda **arguments: operation(arguments)


@pytest.fixture
def quick() -> World:
    """A world whose table is in memory: these tests make thousands of calls."""
    return World(cast("DynamoDBClient", Client(Memory())), "memory")


def prepared(world: World, queues: Sequence[str], lanes: int = 64) -> None:
    for name in queues:
        world.run.queues.create(name, {"lanes": lanes} if name == "wide" else {})


def poll(world: World, run: Runtime, queues: Sequence[str], **how: Any) -> list[Job]:
    return run.fetch.fetch(queues, 1, WORKER, **how)


def arrives(world: World, queues: Sequence[str], runs: Sequence[Runtime], each_ms: int) -> int:
    """How long a job that is pushed now waits until one of these containers hands it out, in ms."""
    pushed = world.push(queue=random.choice(queues))
    began_ms = world.clock.now_ms()
    for _ in range(100):
        world.clock.advance(each_ms)
        if any(pushed.id in [job.id for job in poll(world, run, queues)] for run in runs):
            return world.clock.now_ms() - began_ms
    raise AssertionError("it was never handed out")


@pytest.mark.parametrize(("queues", "lanes"), [(WIDE, 64), (MANY, 1), (WIDE, 32), (WIDE, 9)])
def test_an_empty_fetch_costs_20_calls_averaged_over_a_minute(
    quick: World, queues: Sequence[str], lanes: int
) -> None:
    """Polled once a second, from a container that knows nothing yet."""
    prepared(quick, queues, lanes)
    run = quick.another()
    for _ in range(MINUTE_S):
        assert poll(quick, run, queues) == []
        quick.clock.advance(1_000)
    assert len(run.table.meter.calls) <= 20 * MINUTE_S


@pytest.mark.parametrize("containers", [1, 3])
@pytest.mark.parametrize(("queues", "lanes"), [(WIDE, 64), (MANY, 1), (WIDE, 9)])
def test_what_arrives_in_an_empty_line_is_handed_out_within_4_s(
    quick: World, queues: Sequence[str], lanes: int, containers: int
) -> None:
    """By somebody: each container that polls has seen all lines empty, at times of its own."""
    random.seed(containers)
    prepared(quick, queues, lanes)
    runs = [quick.another() for _ in range(containers)]
    for run in runs:
        for _ in range(5):
            poll(quick, run, queues)
            quick.clock.advance(random.randint(200, 1_000))
    waited = [arrives(quick, queues, runs, 1_000) for _ in range(12)]
    assert max(waited) <= 4_000
    assert min(waited) >= 1_000


@pytest.mark.parametrize("how", ["few", "strict", "starving"])
def test_lines_are_not_passed_over(quick: World, how: str) -> None:
    """Up to 8 of them never; nor where what arrives must come before all that is elsewhere, or a
    queue that starves is served at once.
    """
    queues = MANY[: empty_lines.FEW] if how == "few" else MANY[:9]
    prepared(quick, queues)
    more: dict[str, Any] = {"strategy": "strict"} if how == "strict" else {}
    if how == "starving":
        prevention = {"enabled": True, "rotation_interval": "PT30S", "min_dispatch_ratio": 0.1}
        told = {"queues": {name: {"weight": 1} for name in queues}, "strategy": "weighted"}
        quick.run.pools.put("p", {**told, "starvation_prevention": prevention})
        more = {"pool": "p"}
    assert poll(quick, quick.run, queues, **more) == []
    pushed = [quick.push(queue=queues[at]).id for at in (-1, 0)]
    got = [job.id for _ in pushed for job in poll(quick, quick.run, queues, **more)]
    assert got == pushed[::-1] if how == "strict" else sorted(got) == sorted(pushed)


def test_what_its_container_put_there_is_found_at_its_time(quick: World) -> None:
    """A retry when it is due, and what is handed back at once, in lines that were seen empty."""
    prepared(quick, WIDE)
    retry = {"initial_interval": "PT2S", "jitter": False}
    quick.push(queue="wide", retry=retry)
    (job,) = poll(quick, quick.run, WIDE)
    assert poll(quick, quick.run, WIDE) == []
    quick.run.finish.nack(job.id, error={"code": "x"})
    quick.clock.advance(1_999)
    assert poll(quick, quick.run, WIDE) == []
    quick.clock.advance(1)
    (again,) = poll(quick, quick.run, WIDE)
    assert again.attempt == 2
    assert poll(quick, quick.run, WIDE) == []
    quick.run.finish.nack(job.id, error=None, requeue=True)
    assert len(poll(quick, quick.run, WIDE)) == 1


@pytest.mark.parametrize("batch", [False, True])
def test_what_its_container_pushed_is_found_at_once(quick: World, batch: bool) -> None:
    prepared(quick, WIDE)
    assert poll(quick, quick.run, WIDE) == []
    jobs = [
        {"type": "t", "args": [], "options": {"queue": "wide", **more}}
        for more in ({}, {"scheduled_at": "+PT2S"})
    ]
    if batch:
        quick.run.enqueue.push_batch([envelope.parse(job) for job in jobs])
    else:
        for job in jobs:
            quick.run.enqueue.push(envelope.parse(job))
    assert len(poll(quick, quick.run, WIDE)) == 1
    assert poll(quick, quick.run, WIDE) == []
    quick.clock.advance(2_000)
    assert len(poll(quick, quick.run, WIDE)) == 1


def test_what_was_seen_is_taken_when_it_is_due(quick: World) -> None:
    """Others have scheduled it: a look tells when it is due, and then the line is looked at."""
    prepared(quick, WIDE)
    quick.push(queue="wide", scheduled_at="+PT10S")
    run = quick.another()
    for _ in range(10):
        assert poll(quick, run, WIDE) == []
        quick.clock.advance(1_000)
    assert len(poll(quick, run, WIDE)) == 1


@pytest.mark.parametrize(("queues", "lanes"), [(WIDE, 64), (WIDE, 32), (WIDE, 9), (MANY[:31], 1)])
@pytest.mark.parametrize("how", ["scheduled", "retried"])
def test_what_others_make_due_is_handed_out_within_4_s(
    quick: World, queues: Sequence[str], lanes: int, how: str
) -> None:
    """By the one container that polls, which saw all lines empty, at whatever time before."""
    prepared(quick, queues, lanes)
    run = quick.another()
    for began in range(8):
        while poll(quick, run, queues):
            pass
        for _ in range(began):
            quick.clock.advance(700)
            assert poll(quick, run, queues) == []
        queue, at = random.choice(queues), {"scheduled_at": "+PT1S"}
        if how == "scheduled":
            job = quick.push(queue=queue, **at)
        else:
            quick.push(queue=queue, retry={"initial_interval": "PT1S", "jitter": False})
            (job,) = quick.run.fetch.fetch([queue], 1, "other")
            quick.run.finish.nack(job.id, error={"code": "x"})
        due_ms = quick.clock.now_ms() + 1_000
        while not (got := poll(quick, run, queues)):
            quick.clock.advance(1_000)
        assert [each.id for each in got] == [job.id]
        assert quick.clock.now_ms() - due_ms <= 4_000


def test_what_others_make_due_in_many_queues_is_found_in_time(quick: World) -> None:
    prepared(quick, MANY)
    run = quick.another()
    assert poll(quick, run, MANY) == []
    quick.push(queue=MANY[-1], scheduled_at="+PT1S")
    began_ms = quick.clock.now_ms()
    while not poll(quick, run, MANY):
        quick.clock.advance(1_000)
        assert quick.clock.now_ms() - began_ms <= 14_000


@pytest.mark.parametrize("how", [{}, {"concurrency": 5}, {"max_size": 50}])
def test_what_waits_in_the_line_of_another_lane_runs_in_its_own(
    quick: World, how: dict[str, int]
) -> None:
    """Claimed with a lease note, and with an entry in the index."""
    quick.run.queues.create("wide", {"lanes": 64, **how})
    pushed = {quick.push(queue="wide", scheduled_at="+PT1S").id for _ in range(20)}
    quick.clock.advance(2_000)
    got: list[Job] = []
    while jobs := quick.run.fetch.fetch(WIDE, 5, WORKER):
        got += jobs
        for job in jobs:
            item = quick.run.stores.jobs.read_records([job.id])[job.id]
            assert item.lane == job.lane
            stored = quick.run.table.get(keys.job(job.id), keys.RECORD) or {}
            assert stored.get("wpk") in (None, keys.due("wide", job.lane))
            quick.run.finish.ack(job.id)
    assert {job.id for job in got} == pushed
    assert len({job.lane for job in got}) > 8


def test_what_stands_in_the_lines_of_earlier_versions_is_found_by_the_sweep(quick: World) -> None:
    prepared(quick, WIDE)
    job = next(
        j for j in iter(lambda: quick.push(queue="wide", scheduled_at="+PT1S"), None) if j.lane > 8
    )
    quick.run.table.update(
        Update(keys.job(job.id), keys.RECORD, set={"wpk": keys.due("wide", job.lane)})
    )
    quick.clock.advance(60_000)
    quick.sweep()
    got = quick.run.fetch.fetch(WIDE, 100, WORKER)
    assert job.id in {each.id for each in got}


def test_few_lanes_take_turns_with_many(quick: World) -> None:
    """What a fetch of many lanes saw is nothing to one of few."""
    prepared(quick, MANY)
    run = quick.another()
    assert poll(quick, run, MANY) == []
    pushed = quick.push(queue="q07")
    assert poll(quick, run, MANY) == []
    assert [job.id for job in poll(quick, run, MANY[:8])] == [pushed.id]


# --- side by side -------------------------------------------------------------------------------


def counting(sizes: list[int]) -> Callable[..., list[Any]]:
    def for_each(act: Callable[[Any], Any], each: Sequence[Any], /) -> list[Any]:
        sizes.append(len(each))
        return one_by_one(act, each)

    return for_each


def test_lines_are_looked_at_side_by_side(quick: World) -> None:
    """Eight at a time once the first few were empty; up to 8 lanes one after the other."""
    prepared(quick, WIDE)
    sizes: list[int] = []
    quick.for_each = counting(sizes)
    assert poll(quick, quick.another(), WIDE) == []
    assert sum(sizes) == 64 + keys.DUE_LINES
    assert max(sizes) == THREADS
    assert len(sizes) <= 2 * 11
    sizes.clear()
    assert poll(quick, quick.another(), MANY[:8]) == []
    assert sizes == []


def test_a_busy_queue_is_looked_at_once(quick: World) -> None:
    prepared(quick, WIDE)
    for _ in range(400):
        quick.push(queue="wide")
    run = quick.another()
    # The first lease note in an hour says which slot it is in.
    run.stores.jobs.notes.write("wide", {}, lease_ms=30_000, now_ms=quick.clock.now_ms())
    run.table.meter.reset()
    assert len(poll(quick, run, WIDE)) == 1
    assert run.table.meter.calls == ["BatchGetItem", "Query", "PutItem", "UpdateItem"]


def test_threads_hand_out_each_job_once(exact: World) -> None:
    exact.for_each = in_threads
    prepared(exact, WIDE)
    pushed = {exact.push(queue="wide").id for _ in range(30)}
    run = exact.another()
    got: list[str] = []
    while jobs := run.fetch.fetch(WIDE, 10, WORKER):
        got += [job.id for job in jobs]
    assert sorted(got) == sorted(pushed)


def test_a_line_in_trouble_keeps_no_other_back(exact: World) -> None:
    exact.for_each = in_threads
    prepared(exact, MANY[:12])
    for name in MANY[:12]:
        exact.push(queue=name)
    run = exact.another(Throttled(exact.client, keys.ready("q03", 0)))
    got = run.fetch.fetch(MANY[:12], 12, WORKER)
    assert sorted(job.queue for job in got) == [name for name in MANY[:12] if name != "q03"]
    with pytest.raises(BackendUnavailable):
        run.fetch.fetch(MANY[:12], 12, WORKER)
