"""Many acks and nacks in one request: crashes, lost answers, races, and what they cost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import BackendUnavailable, Conflict
from ojs.domain.job.job import Job
from ojs.runtime import Runtime
from ojs.services.for_each import in_threads
from ojs.services.jobs.batch_finish import BatchOutcome, Ending
from tests.store.doubles import Throttled
from tests.store.faults import attempt, drain, faults
from tests.store.spending import WORKER, spending, warm

if TYPE_CHECKING:
    from tests.store.conftest import World

ERROR = {"code": "x", "message": "y"}
# The outcome of what nobody knows, or of what was certainly not done.
UNKNOWN = ("BackendUnavailable", "BackendTimeout", "WriteNotApplied")
RETRY = {"initial_interval": "PT1H", "jitter": False}


def leased(world: World, count: int, queue: str = "default") -> list[Job]:
    for _ in range(count):
        world.push(queue=queue, retry=RETRY)
    return world.fetch(queue, count)


def shown(job: Job, **more: Any) -> Ending:
    assert job.lease is not None
    told = {"worker_id": WORKER, "attempt": job.attempt, "lease_token": job.lease.token}
    return job.id, told | more


def end(run: Runtime, acks: list[Ending], nacks: list[Ending]) -> list[BatchOutcome]:
    acked, nacked = run.batch_finish.end(acks, nacks)
    return acked + nacked


def told(outcomes: list[BatchOutcome]) -> list[str]:
    """The states of the jobs, or the errors' names."""
    return [
        one.result.state.value if isinstance(one.result, Job) else type(one.result).__name__
        for one in outcomes
    ]


@pytest.mark.parametrize("ways", ["one after the other", "side by side"])
def test_it_costs_what_single_ones_cost(exact: World, ways: str) -> None:
    if ways == "side by side":
        exact.for_each = in_threads
        exact.run = exact.another()
    warm(exact)
    # The first retry notes the line for the interval in which it is due.
    exact.run.batch_finish.end([], [shown(job, error=ERROR) for job in leased(exact, 1)])
    jobs = leased(exact, 12)
    with spending(exact) as spent:
        exact.run.batch_finish.end([shown(job) for job in jobs[:10]])
    assert (spent.calls, spent.writes, spent.reads) == (10, 10, 0)
    with spending(exact) as spent:
        exact.run.batch_finish.end([], [shown(job, error=ERROR) for job in jobs[10:]])
    assert (spent.calls, spent.writes, spent.reads) == (2 * 2, 2 * 2, 2)


def test_knowing_whose_queues_they_are_costs_one_read_for_all(exact: World) -> None:
    jobs = leased(exact, 10)
    with spending(exact) as spent:
        exact.run.batch_finish.end([shown(job) for job in jobs], reaches=lambda _: True)
    assert (spent.calls, spent.writes, spent.reads) == (11, 10, 10)


def test_a_crash_and_the_same_request_again(exact: World) -> None:
    """After a fault at any call each job is where it was or where it was sent, and the request
    again sends the rest there: what is acked stays acked, and is told so.
    """
    for run, client in faults(exact):
        jobs = leased(exact, 3)
        acks = [shown(job, result={"n": at}) for at, job in enumerate(jobs[:2])]
        nacks = [shown(jobs[2], error=ERROR)]
        first = attempt(partial(end, run, acks, nacks))
        again = told(end(exact.run, acks, nacks))
        assert again[:2] == ["completed"] * 2
        # A nack whose first try went through is refused, as a single one is.
        assert again[2] == "retryable" or (again[2] == "Conflict" and client.calls > 2)
        if first is not None:
            assert set(told(first)) <= {"completed", "retryable", *UNKNOWN}
        states = [exact.run.jobs.get(job.id) for job in jobs]
        assert [job.state.value for job in states] == ["completed", "completed", "retryable"]
        assert [job.attempt for job in states] == [1, 1, 1]
        assert [job.result for job in states[:2]] == [{"n": 0}, {"n": 1}]
    assert {job.attempt for job in drain(exact)} <= {2}


def test_one_in_trouble_keeps_no_other_back(exact: World) -> None:
    jobs = leased(exact, 4)
    run = exact.another(Throttled(exact.client, jobs[1].id))
    outcomes = end(run, [shown(job) for job in jobs[:3]], [shown(jobs[3], error=ERROR)])
    assert isinstance(outcomes[1].result, BackendUnavailable)
    assert [*told(outcomes)[:1], *told(outcomes)[2:]] == ["completed", "completed", "retryable"]
    # It is settled when it is sent again, with the others beside it.
    again = end(exact.run, [shown(job) for job in jobs[:3]], [])
    assert told(again) == ["completed"] * 3


def test_two_containers_settle_each_job_once(exact: World) -> None:
    """The same acks twice at the same time, and nacks of the same jobs: one of them wins."""
    exact.for_each = in_threads
    jobs = leased(exact, 20)
    acks = [shown(job) for job in jobs]
    nacks = [shown(job, error=ERROR) for job in jobs]
    ways = [
        lambda: exact.another().batch_finish.end(acks)[0],
        lambda: exact.another().batch_finish.end(acks)[0],
        lambda: exact.another().batch_finish.end([], nacks)[1],
    ]
    with ThreadPoolExecutor(3) as pool:
        found = [asked.result() for asked in [pool.submit(way) for way in ways]]
    for job, *outcomes in zip(jobs, *map(told, found), strict=True):
        final = exact.state(job)
        assert outcomes == (
            ["completed", "completed", "Conflict"]
            if final == "completed"
            else ["Conflict", "Conflict", "retryable"]
        )


def test_a_job_that_went_on_is_not_settled_by_its_former_worker(exact: World) -> None:
    """Its lease ended and another worker has it: with the token, the attempt or the worker's id."""
    pushed = [exact.push(visibility_timeout_ms=1_000) for _ in range(3)]
    former = exact.fetch(count=3)
    exact.clock.advance(1_001)
    assert len(exact.fetch(count=3, worker="w2")) == 3
    entries: list[Ending] = [
        shown(former[0], worker_id=None, attempt=None),
        shown(former[1], worker_id=None, lease_token=None),
        shown(former[2], attempt=None, lease_token=None),
    ]
    outcomes = end(exact.run, entries, [])
    assert all(isinstance(one.result, Conflict) for one in outcomes)
    assert [exact.state(job) for job in pushed] == ["active"] * 3


def test_permits_and_room_are_given_back_for_each(exact: World) -> None:
    exact.for_each = in_threads
    exact.run = exact.another()
    exact.run.queues.configure("default", {"concurrency": 10, "max_size": 10})
    jobs = leased(exact, 10)
    acks = [shown(job) for job in jobs]
    exact.run.batch_finish.end([*acks, *acks])
    assert exact.run.stores.semaphore.counts({"default": None}) == {"default": 0}
    assert len(leased(exact, 10)) == 10
