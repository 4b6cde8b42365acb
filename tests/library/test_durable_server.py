"""Durable code on a server: steps, sleeps, signals, child jobs, and checkpoints."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from ojs_aws import (
    AsyncJobContext,
    Duplicate,
    JobContext,
    JobError,
    JobFailed,
    Jobs,
    Retry,
    StepFailed,
    Worker,
)
from ojs_aws.testing.server import OjsServer, Performed
from tests.library import process_handlers
from tests.library.stub import until

pytestmark = pytest.mark.e2e

QUICK = Retry(max_attempts=3, initial_interval="PT1S", jitter=False)


@dataclass
class Order:
    id: int


@dataclass
class Receipt:
    charge: str
    approved: bool


# What the steps did, in order.
calls: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    calls.clear()


def act(what: str) -> str:
    calls.append(what)
    return what


async def aact(what: str) -> str:
    return act(what)


jobs = Jobs(queue="orders", retry=QUICK)
worker = Worker(queues=["orders"])
worker.include(jobs)


@jobs.job("ship")
def ship(order_id: int) -> Order:
    if order_id < 0:
        raise JobFailed("no such order", code="unknown_order", retryable=False)
    return Order(order_id * 2)


def pay(order: Order, key: str) -> str:
    calls.append(key)
    return f"charge of {order.id}"


@jobs.job("order.place", version=2)
async def place(job: AsyncJobContext, order: Order) -> Receipt:
    charge = await job.step("charge", pay, order, job.idempotency_key("charge"))
    await asyncio.gather(job.step("reserve", act, "reserve"), job.step("mail", aact, "mail"))
    await job.sleep("P3D", name="cool-off")
    answer = await job.wait_for("approved", timeout="P7D")
    try:
        shipped = await job.run(ship.job(order.id), name="ship")
        calls.append(shipped)
    except StepFailed as failed:
        await job.step("refund", act, f"refund {charge}: {failed.error['code']}")
    return Receipt(charge=charge, approved=answer is not None)


@jobs.job("order.place.plain", version=2)
def place_plain(job: JobContext, order: Order) -> Receipt:
    charge = job.step("charge", pay, order, job.idempotency_key("charge"))
    job.step("reserve", act, "reserve")
    job.step("mail", act, "mail")
    job.sleep(timedelta(days=3), name="cool-off")
    answer = job.wait_for("approved", timeout="P7D")
    try:
        shipped = job.run(ship.job(order.id), name="ship")
        calls.append(shipped)
    except StepFailed as failed:
        job.step("refund", act, f"refund {charge}: {failed.error['code']}")
    return Receipt(charge=charge, approved=answer is not None)


def steps_of(server: OjsServer, job: Any) -> dict[str, dict[str, Any]]:
    """The outcomes of a job by name."""
    return {each["name"]: each for each in server.steps(job)}


def states(ran: list[Performed]) -> list[str]:
    return [each.state for each in ran]


@pytest.mark.parametrize("job", [place, place_plain])
@pytest.mark.parametrize("number", [1, -1])
@pytest.mark.parametrize("signalled", [True, False])
def test_an_order(ojs_server: OjsServer, job: Any, number: int, signalled: bool) -> None:
    handle = job.enqueue(Order(number))
    (slept,) = ojs_server.drain(worker)
    assert (slept.ok, slept.state, slept.error) == (False, "suspended", None)
    stored = ojs_server.client.get_job(handle.id)
    assert (stored.state, stored.attempt) == ("scheduled", 0)
    assert [each["name"] for each in stored.raw["waiting"]] == ["cool-off"]
    assert set(steps_of(ojs_server, handle)) == {"charge", "reserve", "mail"}
    ojs_server.advance(days=2)
    assert ojs_server.drain(worker) == []
    ojs_server.advance(days=1, seconds=1)
    assert states(ojs_server.drain(worker)) == ["suspended"]
    if signalled:
        assert ojs_server.signal(handle, "approved", {"by": "ada"}) is True
    else:
        ojs_server.advance(days=8)
    ran = ojs_server.drain(worker)
    assert states(ran) == ["suspended", "completed" if number > 0 else "failed", "completed"]
    assert ran[-1].result == {"charge": f"charge of {number}", "approved": signalled}
    end = Order(2) if number > 0 else "refund charge of -1: unknown_order"
    assert sorted(calls[1:3]) == ["mail", "reserve"]
    assert [calls[0], *calls[3:]] == [f"{handle.id}/0/charge", end]
    shown = ojs_server.client.get_job(handle.id).raw["durable"]
    assert (shown["version"], shown["epoch"]) == (2, 0)
    assert steps_of(ojs_server, handle)["approved"]["status"] == (
        "completed" if signalled else "failed"
    )


def test_what_the_fixture_tells_of_durable_jobs(ojs_server: OjsServer) -> None:
    handle = place.enqueue(Order(1))
    assert ojs_server.signal(handle.id, "approved", 1) is False
    with pytest.raises(Duplicate):
        ojs_server.signal(handle, "approved", 2)
    assert steps_of(ojs_server, handle.job)["approved"]["result"] == 1
    key = {"idempotency_key": "k"}
    sent = ojs_server.client.send_signal(handle.id, "more", **key)
    assert ojs_server.client.send_signal(handle.id, "more", **key) == sent
    with pytest.raises(JobError, match="is scheduled"):
        ojs_server.run(place_plain, Order(1))
    for n in range(5):
        assert ojs_server.client.send_signal(handle.id, f"s{n}", "x" * 60_000)
    # `run` has performed the available jobs of the worker, this one, too.
    assert {"charge", "more", "s4"} < steps_of(ojs_server, handle).keys()


@pytest.mark.parametrize("how", ["function", "coroutine", "processes"])
def test_a_worker_that_fetches(ojs_server: OjsServer, how: str, monkeypatch: Any) -> None:
    """With the requests of a running worker, and its processes."""
    monkeypatch.setenv("OJS_URL", ojs_server.url)
    running = Worker(
        ojs_server.url, queues=["durable"], poll_s=0.1, processes=how == "processes", realtime=False
    )
    running.include(process_handlers.durable_jobs)
    job = process_handlers.asteps if how == "coroutine" else process_handlers.steps
    handle = job.enqueue(3)
    thread = threading.Thread(target=running.run, kwargs={"signals": False})
    thread.start()
    try:
        until(lambda: ojs_server.client.get_job(handle.id).state == "scheduled")
        assert ojs_server.signal(handle, "go", "on") is True
        until(lambda: ojs_server.client.get_job(handle.id).final)
    finally:
        running.stop()
        thread.join(60)
    assert ojs_server.client.get_job(handle.id).result == ["6", "on"]
    assert {name: each["attempt"] for name, each in steps_of(ojs_server, handle).items()} == {
        "double": 1, "go": 0,
    }  # fmt: skip
