"""Typed jobs on a server: the fixture's `run`, results, policies, and workflows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from ojs_aws import (
    AsyncJobContext,
    Duplicate,
    JobContext,
    JobError,
    Jobs,
    RateLimit,
    Retry,
    Unique,
    Worker,
    batch,
    chain,
    dag,
    group,
    injected,
)
from ojs_aws.testing.server import OjsServer

pytestmark = pytest.mark.e2e


@dataclass
class Order:
    id: int
    items: list[str]


jobs = Jobs(queue="shop")
worker = Worker(queues=["shop"])
worker.include(jobs)
closed: list[str] = []


@worker.lifespan
async def resources() -> AsyncIterator[dict[str, Any]]:
    yield {"database": "db"}


@worker.provide
def session(*, database: str) -> Iterator[str]:
    yield f"session of {database}"
    closed.append(database)


@jobs.job("order.charge", retry=Retry(initial_interval=timedelta(hours=1), jitter=False))
def charge(job: JobContext, order: Order, *, session: str = injected()) -> Order:
    if order.id < 0 and job.attempt == 1:
        raise ValueError("no such order")
    return Order(order.id + 1, [session])


@jobs.job("order.ship")
async def ship(job: AsyncJobContext) -> str:
    return f"shipped {job.parents[charge].id}"


@jobs.job("order.report")
def report(job: JobContext) -> list[Any]:
    return [job.parents[n] for n in range(len(job.parents))]


@jobs.job(
    "order.once",
    unique=Unique(keys=("args",), period="PT1H"),
    rate_limit=RateLimit(key=lambda tags: f"tags:{len(tags)}", rate=1, period="PT1M"),
    priority=3,
    timeout_s=5,
)
def once(tags: set[str]) -> int:
    return len(tags)


def test_a_job_is_run_by_reference(ojs_server: OjsServer) -> None:
    closed.clear()
    assert ojs_server.run(charge, Order(1, ["a"])) == Order(2, ["session of db"])
    assert closed == ["db"]
    with pytest.raises(JobError, match="is retryable: no such order") as caught:
        ojs_server.run(charge, Order(-1, []))
    assert caught.value.error["code"] == "handler_error"
    ojs_server.advance(hours=1)
    (done,) = ojs_server.drain(worker)
    assert (done.ok, done.result) == (True, {"id": 0, "items": ["session of db"]})


def test_a_job_that_its_worker_does_not_get(ojs_server: OjsServer) -> None:
    expected = "order.charge is {} in the queue {}. Its worker fetches available jobs of shop"
    with pytest.raises(AssertionError, match=expected.format("available", "other")):
        ojs_server.run(charge.options(queue="other"), Order(1, []))
    with pytest.raises(AssertionError, match=expected.format("scheduled", "shop")):
        ojs_server.run(charge.options(delay_s=60), Order(1, []))
    with pytest.raises(TypeError, match=r"advance\(5\): pass a timedelta, or a unit"):
        ojs_server.advance(5)  # type: ignore[arg-type]


def test_jobs_without_a_worker_are_run(ojs_server: OjsServer) -> None:
    apart = Jobs()

    @apart.job("double")
    async def double(n: int) -> int:
        return 2 * n

    assert ojs_server.run(double, n=4) == 8
    assert apart.workers == []


def test_the_policies_are_those_of_the_server(ojs_server: OjsServer) -> None:
    handle = once.enqueue({"b", "a"})
    stored = ojs_server.client.admin_get_job(handle.id)
    assert stored["args"] == [["a", "b"]]
    assert (stored["priority"], stored["queue"], stored["timeout_ms"]) == (3, "shop", 5_000)
    with pytest.raises(Duplicate):
        once.enqueue({"a", "b"})
    (done,) = ojs_server.drain(worker)
    assert done.ok
    assert handle.result(wait_s=1) == 2
    ojs_server.advance(hours=2)
    assert once.enqueue({"a", "b"}).id != handle.id


def test_many_jobs_are_mapped(ojs_server: OjsServer) -> None:
    handles = charge.map([Order(n, []) for n in range(20)])
    assert len(ojs_server.drain(worker)) == 20
    assert asyncio.run(handles[7].aresult(1)) == Order(8, ["session of db"])


@pytest.mark.parametrize(
    ("workflow", "results"),
    [
        (chain(charge.job(Order(1, [])), ship.job()), ["shipped 2"]),
        (
            dag({"c": charge.job(Order(1, [])), "s": ship.job().after("c"),
                 "r": report.job().after("s", "c")}),
            ["shipped 2", ["shipped 2", {"id": 2, "items": ["session of db"]}]],
        ),
        (batch(charge.job(Order(1, [])), on_success=ship.job()), ["shipped 2"]),
        (
            chain(group(once.job(set()), once.job({"x"})), report.job()),
            [1, [[0, 1]]],
        ),
    ],
)  # fmt: skip
def test_a_workflow_by_reference(ojs_server: OjsServer, workflow: Any, results: list[Any]) -> None:
    handle = workflow.enqueue(name="order")
    ran = ojs_server.drain(worker)
    assert all(each.ok for each in ran), ran
    assert [each.result for each in ran][1:] == results
    done = ojs_server.client.get_workflow(handle.id)
    assert (done["state"], done["name"]) == ("completed", "order")
