"""Workflows of typed jobs, and the results that their steps get."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from ojs_aws import (
    Client,
    InvalidArguments,
    Job,
    JobContext,
    JobError,
    Worker,
    batch,
    chain,
    dag,
    group,
)
from ojs_aws.ids import uuid7
from tests.library.jobs_api import JobsApi


@dataclass
class Receipt:
    id: int


@pytest.fixture
def api() -> JobsApi:
    return JobsApi()


@pytest.fixture
def worker(api: JobsApi) -> Worker:
    return Worker(queues=["q"], client=api.client())


@pytest.fixture
def charge(worker: Worker) -> Any:
    @worker.job("order.charge", queue="orders")
    def charge(n: int) -> Receipt:
        return Receipt(n)

    return charge


@pytest.fixture
def ship(worker: Worker) -> Any:
    @worker.job("order.ship")
    def ship() -> None: ...

    return ship


def ran(worker: Worker, meta: dict[str, Any] | None = None, **raw: Any) -> Any:
    """What a step makes of its parents."""
    found: list[Any] = []

    @worker.handler(f"step.{len(worker.handlers.by_type)}")
    def step(job: JobContext) -> None:
        found.append(job.parents)

    kind = list(worker.handlers.by_type)[-1]
    ending = worker.perform(Job(uuid7(), kind, "q", [], meta or {}, attempt=1, raw=raw))
    assert ending.how == "acks", ending
    return found[0]


def test_a_chain_names_its_steps_by_type(api: JobsApi, charge: Any, ship: Any) -> None:
    handle = chain(charge.job(1), charge.job(2), group(ship.job(), ship.job())).enqueue(name="o")
    (sent,) = api.bodies("workflows")
    assert handle.id == sent.pop("id")
    options = {"options": {"queue": "orders"}}
    assert sent == {
        "type": "chain", "name": "o", "steps": [
            {"id": "order.charge", "type": "order.charge", "args": [1], **options},
            {"id": "order.charge#2", "type": "order.charge", "args": [2], **options},
            {"id": "group", "type": "group", "jobs": [
                {"id": "order.ship", "type": "order.ship", "args": []},
                {"id": "order.ship#2", "type": "order.ship", "args": []},
            ]},
        ],
    }  # fmt: skip


def test_a_batch_has_callbacks(api: JobsApi, charge: Any, ship: Any) -> None:
    asyncio.run(batch(charge.job(1), on_success=ship.job()).aenqueue())
    (sent,) = api.bodies("workflows")
    assert sent["type"] == "batch"
    assert [each["id"] for each in sent["jobs"]] == ["order.charge"]
    assert sent["callbacks"] == {"on_success": {"type": "order.ship", "args": []}}


def test_a_graph_has_dependencies(api: JobsApi, charge: Any, ship: Any) -> None:
    late = ship.options(delay_s=5).job().after("b", ignore_failed=True).after("a")
    alert = ship.job().after("a", "b", trigger="any_failed")
    dag({"a": charge.job(1), "b": ship.job(), "c": late, "d": alert}).enqueue()
    (sent,) = api.bodies("workflows")
    _, _, third, fourth = sent["steps"]
    assert third == {
        "id": "c", "type": "order.ship", "args": [],
        "options": {"scheduled_at": "+PT5.000S"},
        "depends_on": [{"id": "b", "ignore_failed": True}, "a"],
        "meta": {"ojs_parents": {"order.ship": "b", "order.charge": "a"}},
    }  # fmt: skip
    assert fourth["trigger"] == "any_failed"


def test_misuse(charge: Any, ship: Any) -> None:
    for made in (chain, group, batch):
        with pytest.raises(TypeError, match=rf"{made.__name__}\(\) needs at least one step"):
            made()
        with pytest.raises(TypeError, match=r"takes calls such as send.job\(…\), but got"):
            made(charge)
        with pytest.raises(TypeError, match=r"only a step of dag\(\) can have after\(\)"):
            made(charge.job(1), ship.job().after("order.charge"))
    with pytest.raises(ValueError, match=r"dag\(\): 'a' is after 'x'. Steps are a, b"):
        dag({"a": ship.job().after("x"), "b": ship.job()})
    with pytest.raises(TypeError, match=r"order.ship.job\(\): a step can't have the option 'id'"):
        ship.options(id=uuid7()).job()
    with pytest.raises(InvalidArguments, match=r"order.charge.job\(\): n "):
        charge.job("x")


def test_results_of_parents_by_type_name_and_position(worker: Worker, charge: Any) -> None:
    parents = ran(
        worker, parent_results=[{"id": 1}, [None]],
        parent_results_by_step={"order.charge": {"id": 1}, "group": [None]},
    )  # fmt: skip
    assert parents[charge] == Receipt(1)
    assert parents["order.charge"] == parents[0] == {"id": 1}
    assert parents["group"] == parents[-1] == [None]
    assert len(parents) == 2


def test_names_of_a_graph_are_found_by_type(worker: Worker, charge: Any, ship: Any) -> None:
    meta = {"ojs_parents": {"order.charge": "a"}}
    named = {"a": {"id": 4}, "b": None}
    parents = ran(worker, meta, parent_results=list(named.values()), parent_results_by_step=named)
    assert parents[charge] == Receipt(4)
    for missing in (ship, "x", 2, -3):
        with pytest.raises(LookupError, match=r"the parents are \['a', 'b'\]"):
            parents[missing]


def test_a_failed_parent_raises(worker: Worker, charge: Any) -> None:
    error = {"code": "handler_error", "type": "KeyError", "message": "no"}
    parents = ran(
        worker, parent_results=[None], parent_errors=[error],
        parent_results_by_step={"order.charge": None},
    )  # fmt: skip
    with pytest.raises(JobError, match="discarded: no"):
        parents[charge]


def test_a_job_without_parents_has_none(worker: Worker, charge: Any) -> None:
    parents = ran(worker)
    assert len(parents) == 0
    with pytest.raises(LookupError, match="the parents are none"):
        parents[charge]


@pytest.mark.parametrize("kind", ["report", "later"])
def test_large_results_are_read_in_pages(charge: Any, kind: str) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        first = "cursor" not in request.url.params
        entries = (
            [{"step": "order.charge", "result": {"id": 9}}] if first
            else [{"step": "b", "error": {"message": "no"}}, {"step": "c"}]
        )  # fmt: skip
        paging = {"next_cursor": "n"} if first else {}
        return httpx.Response(200, json={"results": entries, "pagination": paging})

    client = Client("http://stub", transport=httpx.MockTransport(answer))
    worker = Worker(queues=["q"], client=client)
    seen: list[Any] = []

    @worker.job("report")
    def report(job: JobContext) -> None:
        seen.extend([job.parents[charge], job.parents["c"], len(job.parents)])
        with pytest.raises(JobError):
            job.parents["b"]

    @worker.job("later")
    async def later(job: JobContext) -> None:
        assert len(asked) == 2  # read before, apart from the event loop
        report(job)

    ref = {"$ref": "/ojs/v1/workflows/w/results?step=5", "count": 3}
    job = Job(uuid7(), kind, "q", [], attempt=1, raw={"parent_results": ref})
    assert worker.perform(job).how == "acks"
    assert seen == [Receipt(9), None, 3]
    path = "/ojs/v1/workflows/w/results?step=5"
    assert asked == [path, f"{path}&cursor=n"]
