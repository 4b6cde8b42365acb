"""What workflows cost, in DynamoDB calls and capacity units: bounds that must not creep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.store.spending import spending, warm
from tests.store.workflow_runs import WORKER, ack, chain, create, group, now, step, sweep, work

if TYPE_CHECKING:
    from tests.store.conftest import World


def warmed(world: World) -> None:
    """A container that has seen its queue, and a job of it."""
    warm(world)
    create(world.run, chain(step("a"), step("a")))
    work(world)


def test_a_step_of_a_chain(exact: World) -> None:
    """Its start with its root, its fetch, its ack: as much as a job by itself, and three units."""
    warmed(exact)
    create(exact.run, chain(*[step("a", "x" * 200)] * 4))
    (job,) = exact.fetch(worker=WORKER)
    with spending(exact) as start:
        exact.run.finish.ack(job.id, worker_id=WORKER)
    with spending(exact) as fetch:
        (job,) = exact.fetch(worker=WORKER)
    with spending(exact) as whole:
        exact.run.finish.ack(job.id, worker_id=WORKER)
        exact.fetch(worker=WORKER)
    # Of the start: 1 for the ack of the step before, 5 for the root and the job in one transaction.
    assert (start.writes, start.calls) == (6, 5)
    assert fetch.writes <= 4  # with the note of its lease, which a fetch shares among its jobs
    assert whole.writes <= 10
    # One of them for the root, which a fetch reads after its claims.
    assert whole.reads <= 7.5


def test_a_fetch_reads_the_root_of_a_workflow_once(exact: World) -> None:
    """One call and one unit for 50 jobs: whether their workflow is cancelled."""
    warmed(exact)
    create(exact.run, group(*[step("a", "x" * 100)] * 60))
    steps = exact.fetch(count=50, worker=WORKER)
    with spending(exact) as spent:
        assert exact.run.stores.workflows.stopped(steps) == []
    assert (len(steps), spent.calls, spent.reads, spent.writes) == (50, 1, 1, 0)


def test_a_kept_result_costs_one_unit_more(exact: World) -> None:
    warmed(exact)
    create(exact.run, chain(*[step("a")] * 3))
    (job,) = exact.fetch(worker=WORKER)
    with spending(exact) as spent:
        exact.run.finish.ack(job.id, worker_id=WORKER, result={"ok": True})
    assert (spent.writes, spent.calls) == (7, 6)


def test_a_member_of_a_group(exact: World) -> None:
    """Two units to store it, three for its fetch and its ack, and one for its mark."""
    warmed(exact)
    size = 200
    with spending(exact) as created:
        create(exact.run, group(*[step("a", "x" * 100)] * size))
    jobs = exact.fetch(count=100, worker=WORKER)
    with spending(exact) as acked:
        for job in jobs:
            ack(exact.run, job)
    with spending(exact) as fetched:
        exact.fetch(count=100, worker=WORKER)
    assert created.writes <= 2.1 * size + 20
    # One for the ack, and one for the mark, however full the shard is.
    assert acked.writes == 2 * len(jobs)
    assert acked.calls == 2 * len(jobs)
    assert fetched.writes / 100 <= 3.1
    assert (created.writes / size) + (fetched.writes / 100) + (acked.writes / len(jobs)) <= 9


def test_a_member_of_a_group_that_starts_later(exact: World) -> None:
    """Others may start it at the same time: each job is one write with a condition."""
    warmed(exact)
    size = 300
    create(exact.run, chain(step("first"), group(*[step("a")] * size)))
    (job,) = exact.fetch(worker=WORKER)
    with spending(exact) as started:
        ack(exact.run, job)
    assert started.writes <= 2.1 * size + 20
    assert (started.writes / size) + 3.1 + 2 <= 8


def test_the_stream_reads_and_writes_nothing_where_all_was_done(exact: World) -> None:
    warmed(exact)
    for body in (chain(step("a"), step("b")), group(*[step("a")] * 30)):
        create(exact.run, body)
        (job, *_) = exact.fetch(count=10, worker=WORKER)
        done = exact.run.finish.ack(job.id, worker_id=WORKER, result=1)
        with spending(exact) as spent:
            exact.run.workflow_advance.repeat(done)
        assert (spent.calls, spent.writes) == (1, 0)
        assert spent.reads <= 1


def test_a_job_outside_of_workflows_costs_nothing_more(exact: World) -> None:
    warm(exact)
    with spending(exact) as spent:
        exact.push("x")
        (job,) = exact.fetch(worker=WORKER)
        exact.run.finish.ack(job.id, worker_id=WORKER)
    assert (spent.calls, spent.writes) == (7, 6)
    assert "workflow_advance" not in vars(exact.run)


def test_a_sweep_without_anything_to_do_is_one_query(exact: World) -> None:
    record = create(exact.run, chain(step("a")))
    with spending(exact) as spent:
        sweep(exact)
    assert (spent.calls, spent.writes) == (1, 0)
    exact.clock.advance(300_000)
    with spending(exact) as checked:
        sweep(exact)
    # The root twice, as it may change in between, its job, and its next check in the index.
    assert (checked.calls, checked.writes) == (5, 3)
    assert (now(exact, record).check_ms or 0) > exact.clock.now_ms()


def test_creating_a_chain(exact: World) -> None:
    warmed(exact)
    with spending(exact) as spent:
        create(exact.run, chain(*[step("a", at) for at in range(20)]))
    # Definition 1; root 2, its two entries in indexes; the first job 2, and its entry.
    assert spent.writes <= 10
    assert spent.calls <= 4
