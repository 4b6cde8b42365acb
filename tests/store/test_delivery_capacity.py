"""What deliveries cost, in DynamoDB calls and capacity units: bounds that must not creep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ojs.store.deliveries.deliveries import REMEMBERED_MS
from tests.store.pushing import DONE, Pushing, settled
from tests.store.spending import WORKER, spending, warm

if TYPE_CHECKING:
    from tests.store.conftest import World


def pulled(world: World) -> tuple[float, float]:
    """Write and read units of a job under a limit on running jobs that a worker fetches and acks,
    as the steady state has it: the request that ends one fetches the next.
    """
    world.run.queues.create("pulled", {"concurrency": 10})
    for n in range(22):
        world.push(n, queue="pulled")
    (job,) = world.fetch("pulled", worker=WORKER)
    with spending(world) as spent:
        for _ in range(20):
            world.run.finish.ack(job.id, lease_token=job.lease.token if job.lease else None)
            (job,) = world.fetch("pulled", worker=WORKER)
    return spent.writes / 20, spent.reads / 20


def test_a_pushed_job_costs_no_more_than_a_pulled_one_with_the_same_limit(exact: World) -> None:
    warm(exact)
    writes, reads = pulled(exact)
    pushing = Pushing(exact)
    pushing.put(queues=["pushed"], concurrency=10)
    for n in range(40):
        exact.push(n, queue="pushed")
    pushing.pump()
    with spending(exact) as spent:
        for _ in range(20):
            (push, *pushing.target.flying) = pushing.target.flying
            exact.run.dispatch.settle([settled(push, DONE)])
    assert len(pushing.target.flying) == 10
    # A claim takes two, its note one, the ack one; the permit is released and acquired.
    assert spent.writes / 20 <= min(writes + 1, 6)
    # The delivery is read with each outcome, and by whoever dispatches.
    assert spent.reads / 20 <= reads + 2


def test_an_outcome_of_a_delivery_with_room_is_followed_by_nothing(exact: World) -> None:
    """The ack and the release; the delivery is read slightly behind."""
    warm(exact)
    pushing = Pushing(exact)
    pushing.put(queues=["pushed"], concurrency=10)
    for n in range(5):
        exact.push(n, queue="pushed")
    with spending(exact) as claimed:
        pushing.pump()
    assert len(pushing.target.flying) == 5
    # Two for each claim, one for their note and one for all permits; and that there are notes,
    # which is said once an hour.
    assert claimed.writes == 5 * 2 + 2 + 1
    with spending(exact) as spent:
        for push in pushing.target.flying:
            exact.run.dispatch.settle([settled(push, DONE)])
    assert (spent.calls, spent.writes, spent.reads) == (15, 10, 2.5)


def test_permits_of_outcomes_that_come_together_are_released_by_one_write(exact: World) -> None:
    warm(exact)
    pushing = Pushing(exact)
    pushing.put(queues=["pushed"], concurrency=20)
    for n in range(10):
        exact.push(n, queue="pushed")
    pushing.pump()
    with spending(exact) as spent:
        exact.run.dispatch.settle([settled(push, DONE) for push in pushing.target.flying])
    assert (spent.calls, spent.writes, spent.reads) == (12, 11, 0.5)


def test_a_push_of_a_job_costs_no_unit_more_where_jobs_are_pushed(exact: World) -> None:
    """Only the first two within a second do: they wake the delivery, now and a second later."""
    warm(exact)
    with spending(exact) as before:
        exact.push("x", queue="default")
    pushing = Pushing(exact)
    pushing.put(queues=["pushed"])
    exact.push("x", queue="pushed")
    with spending(exact) as delayed:
        exact.push("x", queue="pushed")
    assert (delayed.calls - before.calls, delayed.writes - before.writes) == (2, 1)
    assert delayed.reads - before.reads == 0.5
    exact.push("x", queue="default")
    for queue in ("default", "pushed"):
        with spending(exact) as spent:
            exact.push("x", queue=queue)
        assert (spent.calls, spent.writes, spent.reads) == (
            before.calls, before.writes, before.reads,
        )  # fmt: skip
    # The directory is read once in REMEMBERED_MS, whatever the container does meanwhile.
    exact.clock.advance(REMEMBERED_MS)
    with spending(exact) as anew:
        for _ in range(10):
            exact.push("x", queue="default")
    assert anew.calls == 10 * before.calls + 1
    assert anew.reads == 10 * before.reads + 0.5


def test_a_queue_without_a_delivery_costs_what_it_did(exact: World) -> None:
    """Not a unit, and not a call; nothing of deliveries is even loaded."""
    warm(exact)
    with spending(exact) as spent:
        exact.push("x")
        (job,) = exact.fetch(worker=WORKER)
        exact.run.finish.ack(job.id, worker_id=WORKER)
    assert (spent.calls, spent.writes) == (7, 6)
    assert exact.run.wake is None
    assert "deliveries" not in vars(exact.run.stores)


def test_a_wake_up_for_nothing_costs_reads_alone(exact: World) -> None:
    warm(exact)
    pushing = Pushing(exact)
    pushing.put(queues=["pushed"])
    exact.push("x", queue="pushed")
    pushing.pump()
    pushing.end()
    with spending(exact) as spent:
        exact.run.dispatch.run("work")
    assert spent.writes == 0
    assert spent.calls <= 4
    assert spent.reads <= 4


def test_a_full_delivery_is_asked_at_one_unit(exact: World) -> None:
    warm(exact)
    pushing = Pushing(exact)
    pushing.put(queues=["pushed"], concurrency=3)
    for n in range(10):
        exact.push(n, queue="pushed")
    pushing.pump()
    with spending(exact) as spent:
        assert exact.run.dispatch.run("work").pushed == 0
    assert spent.writes <= 2


def test_a_sweep_without_deliveries_is_one_read(exact: World) -> None:
    pushing = Pushing(exact)
    sweep = pushing.world.run.delivery_sweep
    assert sweep is not None
    with spending(exact) as spent:
        sweep.run_once(exact.clock.now_ms(), 100)
    assert (spent.calls, spent.writes, spent.reads) == (1, 0, 0.5)


def test_idle_queues_of_deliveries_cost_a_sweep_nothing_more(exact: World) -> None:
    """Those that rest are not looked at, however many they are."""
    pushing = Pushing(exact)

    def swept() -> float:
        sweep = exact.run.delivery_sweep
        assert sweep is not None
        with exact.run.sweep_queues.shared():
            exact.run.sweep_queues.plan()
            with spending(exact) as spent:
                report = sweep.run_once(exact.clock.now_ms(), 1_000)
        assert not report.failures
        return spent.reads + spent.writes

    for at in range(12):
        pushing.put(f"d{at}", queues=[f"q{at}-{n}" for n in range(4)])
    busy = swept()
    exact.clock.advance(11 * 60_000)
    for _ in range(2):
        exact.run.sweep.run_once(exact.clock.now_ms(), 1_000)
        exact.run.rest.run_once(exact.clock.now_ms(), 1_000)
        exact.clock.advance(60_000)
    assert swept() <= busy / 4
