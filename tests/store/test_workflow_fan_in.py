"""Many jobs of a group that end at once: each end counts once, and what follows starts once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ojs.domain.workflow.advance import WorkflowState
from ojs.domain.workflow.graph import StepState
from ojs.store.workflows.fan_ins import SHARD_SLOTS, FanIn
from tests.store.spending import spending
from tests.store.workflow_runs import WORKER, chain, create, group, jobs_of, now, step

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from tests.store.conftest import World

THREADS = 16
# Minutes: `make test-all` has these.


@pytest.mark.parametrize("size", [250, pytest.param(10_000, marks=pytest.mark.whole)])
def test_marks_of_many_threads_each_sent_twice_count_once(exact: World, size: int) -> None:
    fan_ins = exact.run.stores.workflows.fan_ins
    workflow_id = exact.run.ids.uuid7()
    fan_in = FanIn("token", (1 << size) - 1)
    fan_ins.create(workflow_id, [fan_in], now_ms=exact.clock.now_ms())
    marks = [(slot, slot % 7 == 0) for slot in range(size)] * 2
    random.Random(1).shuffle(marks)

    def mark(each: tuple[int, bool]) -> bool:
        slot, bad = each
        state = StepState.FAILED if bad else StepState.COMPLETED
        return fan_ins.mark(workflow_id, "token", slot, state)

    with spending(exact) as spent, ThreadPoolExecutor(THREADS) as threads:
        whole = list(threads.map(mark, marks))
    assert any(whole)
    # A refused write of a repetition costs a unit, too; so does that of a shard at the top.
    assert spent.writes <= 2 * size + 3 * fan_in.shards + 2 * THREADS
    ends = dict(fan_ins.ends(workflow_id, [fan_in]))
    assert ends == {
        slot: StepState.FAILED if slot % 7 == 0 else StepState.COMPLETED for slot in range(size)
    }
    fan_ins.remove(workflow_id, [fan_in])
    assert not any(fan_ins.mark(workflow_id, "token", slot, StepState.FAILED) for slot in (0, 9))
    assert [item for item in exact.items() if item["sk"]["S"] == "fan"] == []


def test_a_mark_is_one_unit_however_full_its_shard_is(exact: World) -> None:
    fan_ins = exact.run.stores.workflows.fan_ins
    workflow_id = exact.run.ids.uuid7()
    fan_in = FanIn(exact.run.ids.token(), (1 << SHARD_SLOTS) - 1)
    fan_ins.create(workflow_id, [fan_in], now_ms=exact.clock.now_ms())
    with spending(exact) as spent:
        for slot in range(SHARD_SLOTS):
            last = fan_ins.mark(workflow_id, fan_in.token, slot, StepState.COMPLETED)
            assert last is (slot == SHARD_SLOTS - 1)
    assert (spent.writes, spent.calls) == (SHARD_SLOTS, SHARD_SLOTS)


@pytest.mark.parametrize("size", [50, pytest.param(2_000, marks=pytest.mark.whole)])
def test_a_group_that_ends_in_many_threads_is_followed_by_one_job(
    exact: World, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ojs.store.workflows.fan_ins.SHARD_SLOTS", min(SHARD_SLOTS, size // 2))
    record = create(exact.run, chain(group(*[step("a")] * size), step("b")))
    jobs: list[Job] = []
    while found := exact.fetch(count=100, worker=WORKER):
        jobs += found
    containers = [exact.another() for _ in range(4)]

    def end(at: int) -> None:
        run = containers[at % 4]
        done = run.finish.ack(jobs[at].id, worker_id=WORKER, result=at)
        # The stream, at the same time.
        containers[(at + 1) % 4].workflow_advance.repeat(done)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(end, range(size)))
    (last,) = exact.fetch(count=10, worker=WORKER)
    results = {job.workflow.node: at for at, job in enumerate(jobs) if job.workflow}
    told = (last.content or {})["parent_results"][0]
    assert told == [results[node] for node in sorted(results)]
    exact.run.finish.ack(last.id, worker_id=WORKER)
    after = now(exact, record)
    assert (after.state, after.completed) == (WorkflowState.COMPLETED, size + 1)
    assert len(jobs_of(exact)) == size + 1
    assert after.fan_ins == ()


def test_steps_that_end_at_once_without_a_fan_in_start_what_follows_once(exact: World) -> None:
    """A graph in which each step has several that wait for it: all ends are written to the root."""
    firsts = [{"id": f"f{at}", "type": "f", "args": []} for at in range(8)]
    lasts = [
        {"id": f"l{at}", "type": "l", "args": [], "depends_on": [f["id"] for f in firsts]}
        for at in range(5)
    ]
    record = create(exact.run, {"steps": [*firsts, *lasts]})
    jobs = exact.fetch(count=20, worker=WORKER)
    containers = [exact.another() for _ in jobs]

    def end(at: int) -> None:
        containers[at].finish.ack(jobs[at].id, worker_id=WORKER)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(end, range(len(jobs))))
    for job in jobs:
        ended = exact.run.jobs.get(job.id)
        exact.run.workflow_advance.repeat(ended)
    assert [job.type for job in exact.fetch(count=20, worker=WORKER)] == ["l"] * 5
    assert now(exact, record).completed == 8


@pytest.mark.whole
def test_ten_thousand_at_once(exact: World) -> None:
    record = create(exact.run, group(*[step("a")] * 10_000))
    assert now(exact, record).starting == 0
    count = 0
    while found := exact.fetch(count=100, worker=WORKER):
        for job in found:
            exact.run.finish.ack(job.id, worker_id=WORKER)
        count += len(found)
    assert count == 10_000
    after = now(exact, record)
    assert (after.state, after.completed) == (WorkflowState.COMPLETED, 10_000)
