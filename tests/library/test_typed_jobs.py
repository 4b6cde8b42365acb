"""Jobs as functions: what is sent, what the function gets, and what is refused."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Literal, Optional
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

import ojs_aws
from ojs_aws import (
    AsyncJobContext,
    Client,
    InvalidArguments,
    Job,
    JobContext,
    JobError,
    Jobs,
    JobType,
    RateLimit,
    Retry,
    Throttle,
    Unique,
    WaitTimeout,
    Worker,
    declare,
    injected,
    lambda_handler,
)
from ojs_aws.hints import REPLACED
from ojs_aws.ids import uuid7
from ojs_aws.typed import clients as clients_module
from ojs_aws.typed import plain, signature
from ojs_aws.typed.clients import DEFAULT, Clients
from ojs_aws.typed.options import CallOptions
from tests.library.jobs_api import JobsApi
from tests.library.stub import StubServer, made, until, working


def named(each: Any) -> str | None:
    """The id of a parameter, alike in all processes: without sets and addresses."""
    shown = str(each)
    return None if " at 0x" in shown or "{" in shown else shown[:30]


NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
ID = UUID("019e1a2b-0000-7000-8000-000000000001")


@pytest.fixture
def api() -> JobsApi:
    return JobsApi()


@pytest.fixture
def worker(api: JobsApi) -> Worker:
    return Worker(queues=["q"], client=api.client())


@pytest.fixture(params=["pydantic", "plain"])
def conversion(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(signature, "_converters", lambda: plain.converter)
    return str(request.param)


@pytest.fixture
def without_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "_converters", lambda: plain.converter)


def job_of(kind: str, *args: Any, **fields: Any) -> Job:
    return Job(uuid7(), kind, "q", list(args), attempt=1, raw=fields, meta=fields.pop("meta", {}))


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal = Decimal("1.10")


@dataclass
class Order:
    id: UUID
    lines: list[Line] = field(default_factory=list)
    parent: Order | None = None


# --- what is sent --------------------------------------------------------------------------------


def test_a_job_is_enqueued_by_reference(worker: Worker, api: JobsApi) -> None:
    @worker.job("mail.send", queue="mail")
    def send(job: JobContext, to: str, template: str = "welcome") -> str:
        return f"{job.id} {to} {template}"

    handle = send.enqueue(to="a@b.org")
    send.delay("c@d.org", template="x")
    sent, other = api.bodies("jobs")
    assert sent["type"] == "mail.send"
    assert sent["args"] == ["a@b.org", "welcome"]  # defaults are filled in
    assert sent["options"] == {"queue": "mail"}
    assert handle.id == sent["id"]
    assert other["args"] == ["c@d.org", "x"]


def test_options_of_a_call_precede_those_of_the_job_and_of_its_jobs(api: JobsApi) -> None:
    jobs = Jobs(queue="a", priority=1, tags=["jobs"])

    @jobs.job("t", queue="b", priority=2, retry=Retry(max_attempts=5, initial_interval="PT10S"))
    def task(n: int) -> None: ...

    Worker(queues=["q"], client=api.client()).include(jobs)
    task.options(queue="c", delay_s=60, idempotency_key="k").options(meta={"x": 1}).enqueue(1)
    task.enqueue(1)
    (_, first, headers), (_, second, _) = api.sent
    assert first["options"] == {
        "queue": "c", "priority": 2, "tags": ["jobs"], "scheduled_at": "+PT60.000S",
        "retry": {"max_attempts": 5, "initial_interval": "PT10S"},
    }  # fmt: skip
    assert first["meta"] == {"x": 1}
    assert headers["idempotency-key"] == "k"
    assert "id" not in first
    assert second["options"]["queue"] == "b"


def test_policies_have_the_names_of_the_api(worker: Worker, api: JobsApi) -> None:
    @worker.job(
        "t",
        retry=Retry(max_interval=timedelta(hours=1), non_retryable_errors=("KeyError",)),
        unique=Unique(keys=("args",), period="PT1H", states=["active"]),
        rate_limit=RateLimit(key=lambda to, **_: to.hex, rate=5, period="PT1M"),
        options={"visibility_timeout_ms": 5_000},
    )
    def task(to: UUID, n: int = 1) -> None: ...

    task.enqueue(ID)
    assert api.bodies("jobs")[0]["options"] == {
        "retry": {"max_interval": "PT3600S", "non_retryable_errors": ["KeyError"]},
        "unique": {"keys": ["args"], "period": "PT1H", "states": ["active"]},
        "rate_limit": {"key": ID.hex, "rate": 5, "period": "PT1M"},
        "visibility_timeout_ms": 5_000,
    }


def test_map_sends_atomic_batches_of_1000(worker: Worker, api: JobsApi) -> None:
    @worker.job("t")
    def task(n: int, text: str = "x") -> int:
        return n

    handles = task.map(range(2_001))
    assert [len(body["jobs"]) for body in api.bodies("jobs/batch")] == [1_000, 1_000, 1]
    assert handles[2_000].job.args == [2_000, "x"]
    assert len({handle.id for handle in handles}) == 2_001
    api.sent.clear()
    task.options(idempotency_key="k").map(range(1_001), ["y"] * 1_001)
    assert [headers["idempotency-key"] for _, _, headers in api.sent] == ["k/0", "k/1000"]
    assert task.map([]) == []


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ((range(10_001),), "at most 10,000 items"),
        (([1, 2], ["x"]), "the same length"),
        (("abc",), "pass a list for each argument"),
        ((), "pass a list for each argument"),
        ((["x"],), "n"),
    ],
)
def test_map_refuses_before_it_sends(
    worker: Worker, api: JobsApi, columns: tuple[Any, ...], problem: str
) -> None:
    @worker.job("t")
    def task(n: int, text: str = "x") -> None: ...

    with pytest.raises(InvalidArguments, match=problem):
        task.map(*columns)
    with pytest.raises(TypeError, match="one id"):
        task.options(id=str(ID)).map([1])
    assert api.sent == []


def test_jobs_are_declared_without_their_code(
    api: JobsApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DEFAULT, "_bound", None)

    class Model(BaseModel):
        at: datetime = NOW
        to: str

    class Sent(BaseModel):
        id: UUID

    send = declare("mail.send", Model, result=Sent, queue="mail")
    order = declare("order.place", Order)
    send.jobs.bind(api.client())  # of all jobs without a URL
    api.results = [{"state": "completed", "result": {"id": str(ID)}}]
    assert send.enqueue(to="a").result() == Sent(id=ID)
    order.enqueue(ID)
    first, second = api.bodies("jobs")
    assert first["args"] == ["2026-11-28T12:00:00Z", "a"]
    assert first["options"] == {"queue": "mail"}
    assert second["args"] == [str(ID), [], None]


# --- conversion ----------------------------------------------------------------------------------

VALUES: list[tuple[Any, Any, Any]] = [
    (None, None, None),
    (bool, True, True),
    (int, 2**60, 2**60),
    (float, 1.5, 1.5),
    (str, "ä", "ä"),
    (UUID, ID, str(ID)),
    (date, NOW.date(), "2026-11-28"),
    (Decimal, Decimal("1.10"), "1.10"),
    (Colour, Colour.RED, "red"),
    (Literal["a", 1], "a", "a"),
    (int | None, None, None),
    (UUID | None, ID, str(ID)),
    (Optional[int], 3, 3),  # noqa: UP045 - the older form
    (list[UUID], [ID], [str(ID)]),
    (set[int], {1}, [1]),
    (frozenset[str], frozenset("cbdea"), ["a", "b", "c", "d", "e"]),
    (dict[str, list[set[str]]], {"x": [set("cbdea")]}, {"x": [["a", "b", "c", "d", "e"]]}),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (tuple[int, ...], (1, 2), [1, 2]),
    (tuple[()], (), []),
    (dict[str, Decimal], {"a": Decimal(2)}, {"a": "2"}),
    (dict, {"a": [1]}, {"a": [1]}),
    (Any, {"a": [None]}, {"a": [None]}),
    (Line, Line("s"), {"sku": "s", "price": "1.10"}),
    (
        Order,
        Order(ID, [Line("s")], Order(ID)),
        {
            "id": str(ID), "lines": [{"sku": "s", "price": "1.10"}],
            "parent": {"id": str(ID), "lines": [], "parent": None},
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "value", "wire"), VALUES, ids=named)
def test_values_go_round(conversion: str, hint: Any, value: Any, wire: Any) -> None:
    convert = signature._converters()(hint)
    assert convert(value, True) == wire
    found = convert(wire, False)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "value", [NOW, NOW.astimezone(timezone(timedelta(hours=2))), timedelta(days=800, seconds=1.5),
              timedelta(0), -timedelta(minutes=3, microseconds=1)],
)  # fmt: skip
def test_times_of_both_conversions_are_read_by_both(value: Any) -> None:
    kinds: list[Any] = [plain.converter(type(value))]
    from ojs_aws.typed import validated

    kinds.append(validated.converter(type(value)))
    for writes in kinds:
        for reads in kinds:
            assert reads(writes(value, True), False) == value


BAD: list[tuple[Any, Any]] = [
    (int, "x"),
    (int, 1.5),
    (str, 1),
    (UUID, "x"),
    (datetime, datetime(2026, 1, 1)),  # noqa: DTZ001 - refused
    (list[datetime], [datetime(2026, 1, 1)]),  # noqa: DTZ001
    (float, math.nan),
    (float, math.inf),
    (Decimal, Decimal("NaN")),
    (list[float], [math.nan]),
    (Any, b"x"),
    (Any, math.nan),
    (dict[str, Any], {"a": object()}),
    (Colour, "blue"),
    (Literal[1], 2),
    (tuple[int, str], (1,)),
    (Line, {"sku": 1}),
    (Order, Line("s")),
]


@pytest.mark.parametrize(("hint", "value"), BAD, ids=named)
def test_bad_values_are_refused(conversion: str, hint: Any, value: Any) -> None:
    with pytest.raises(plain.Refused):
        signature._converters()(hint)(value, True)


@pytest.mark.parametrize(
    ("hint", "wire"),
    [
        (int, "x"),
        (bool, "yes please"),
        (datetime, "2026-01-01T00:00:00"),
        (datetime, 5.5e300),
        (timedelta, "P"),
        (timedelta, "PT"),
        (Decimal, "Infinity"),
        (list[int], {"a": 1}),
        (Line, {"sku": "s", "price": "x"}),
        (Line, {"price": "1"}),
        (Line, "s"),
        (Colour, ["red"]),
        (dict[str, int], [1]),
    ],
    ids=named,
)
def test_bad_json_is_refused(conversion: str, hint: Any, wire: Any) -> None:
    with pytest.raises(plain.Refused):
        signature._converters()(hint)(wire, False)


@pytest.mark.parametrize("version", ["1.10.21", "2.9.2", None])
def test_an_older_pydantic_is_as_none(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.delitem(sys.modules, "ojs_aws.typed.validated", raising=False)
    if version is None:
        monkeypatch.setitem(sys.modules, "pydantic", None)
    else:
        monkeypatch.setattr("pydantic.VERSION", version)
    assert signature._converters.__wrapped__() is plain.converter
    monkeypatch.undo()
    assert signature._converters.__wrapped__() is not plain.converter


def test_strict_types_without_pydantic(without_pydantic: None) -> None:
    def refused(hint: Any, value: Any, *, out: bool) -> str:
        with pytest.raises(plain.Refused) as caught:
            plain.converter(hint)(value, out)
        return str(caught.value)

    assert refused(int, True, out=True) == "must be int, but is True"
    assert "must be date" in refused(date, NOW, out=True)
    assert "must be str" in refused(str, Colour.RED, out=True)
    assert "must not have the field 'x' of Line" in refused(Line, {"sku": "", "x": 1}, out=False)
    assert refused(dict[str, int], {1: 1}, out=True) == "must be str, but is 1"
    wrong = Order(ID, [Line("a"), Line("b", 5)])  # type: ignore[arg-type]
    assert refused(Order, wrong, out=True) == ".lines[1].price must be Decimal, but is 5"
    assert plain.converter(float)(1, True) == 1.0
    assert plain.converter(set[str])(set("cab"), True) == ["a", "b", "c"]


class Tuned(BaseModel):
    price: Decimal = Field(gt=0, alias="p")
    at: datetime | None = None


def test_models_are_validated_before_they_are_sent(worker: Worker, api: JobsApi) -> None:
    @worker.job("t")
    def task(tuned: Tuned, n: int = 1) -> Tuned:
        assert isinstance(tuned, Tuned)
        return tuned

    task.enqueue(Tuned(p=Decimal("1.5")))
    (sent,) = api.bodies("jobs")
    assert sent["args"] == [{"p": "1.5", "at": None}, 1]
    ending = worker.perform(job_of("t", *sent["args"]))
    assert ending.entry == {"result": {"p": "1.5", "at": None}}
    naive = Tuned(p=Decimal(1), at=datetime(2026, 1, 1))  # noqa: DTZ001 - refused
    unchecked = Tuned.model_construct(price=Decimal(-1))
    for bad in (naive, unchecked, 3):
        with pytest.raises(InvalidArguments, match=r"t\.enqueue\(\): tuned"):
            task.enqueue(bad)  # type: ignore[arg-type]
    assert len(api.sent) == 1


# --- in the worker -------------------------------------------------------------------------------


def test_the_function_gets_values_and_its_result_is_json(conversion: str) -> None:
    stub = StubServer()
    worker = made(stub)

    @worker.job("sync")
    def function(job: JobContext, order: Order, extra: int = 3) -> Order:
        assert job.attempt == 1
        return Order(order.id, [Line(str(extra))])

    @worker.job("async")
    async def coroutine(job: AsyncJobContext, of: UUID) -> list[UUID]:
        await job.sleep(0)
        assert job.attempt == 1
        return [of]

    @worker.job("plain")
    async def alone(n: int) -> int:
        return n + 1

    ids = [
        stub.push("sync", {"id": str(ID)}), stub.push("async", str(ID)), stub.push("plain", 1),
        stub.push("sync"), stub.push("plain", 1, 2), stub.push("async", "x"),
    ]  # fmt: skip
    with working(worker, stub):
        until(lambda: len(stub.done) == 3 and len(stub.failed) == 3)
    price = {"sku": "3", "price": "1.10"}
    assert stub.done[ids[0]] == {"id": str(ID), "lines": [price], "parent": None}
    assert [stub.done[each] for each in ids[1:3]] == [[str(ID)], 2]
    for each in ids[3:]:
        error = stub.failed[each]
        assert (error["code"], error["retryable"]) == ("invalid_arguments", False)
        assert error["type"] == "InvalidArguments"


def test_a_result_of_a_wrong_type_is_not_retried(worker: Worker, conversion: str) -> None:
    @worker.job("t")
    def task() -> int:
        return "x"  # type: ignore[return-value]

    error = worker.perform(job_of("t")).entry["error"]
    assert (error["code"], error["retryable"]) == ("result_not_json", False)
    assert "the result" in error["message"]


def test_the_function_stays_a_function(worker: Worker) -> None:
    @worker.job("t")
    def task(job: JobContext, to: str, *, smtp: str = injected()) -> str:
        """Say it."""
        return f"{job.id} {to} {smtp}"

    job = JobContext(job_of("t"))
    assert task(job, "a", smtp="fake") == f"{job.id} a fake"
    assert task.__doc__ == "Say it."
    assert getattr(task, "__name__", "") == "task"
    assert repr(task) == "<JobType t(to: str)>"


def test_the_same_module_runs_on_lambda(worker: Worker) -> None:
    @worker.job("t")
    async def task(n: int) -> Order:
        return Order(UUID(int=n))

    handler = lambda_handler(worker)
    event = {"id": uuid7(), "type": "t", "args": [1]}
    answer = handler({"job": event}, None)
    assert answer["result"]["id"] == str(UUID(int=1))
    assert handler({"job": event | {"args": ["x"]}}, None)["error"]["code"] == "invalid_arguments"


# --- the handle ----------------------------------------------------------------------------------


def test_a_handle_waits_for_the_result(worker: Worker, api: JobsApi) -> None:
    @worker.job("t")
    def task(n: int) -> Order:
        raise NotImplementedError

    api.results = [{"state": "active"}, {"state": "completed", "result": {"id": str(ID)}}]
    handle = task.enqueue(1)
    assert handle.result(wait_s=20) == Order(ID)
    error = {"code": "handler_error", "type": "KeyError", "message": "no"}
    api.results = [{"state": "discarded", "error": error}]
    with pytest.raises(JobError, match="discarded: no") as caught:
        handle.result()
    assert pickle.loads(pickle.dumps(caught.value)).error == error
    with pytest.raises(WaitTimeout, match="is available"):
        handle.result(wait_s=0)
    api.results = [{"state": "completed", "result": 3}]
    with pytest.raises(ValueError, match="the result"):
        handle.result()


@pytest.mark.parametrize("own", [True, False])
def test_the_same_is_awaited(own: bool) -> None:
    api = JobsApi()
    worker = Worker(queues=["q"])
    worker.handlers.by_type.clear()
    worker._key = "k"  # clients of its own
    worker.bind(api.asynchronous() if own else api.client())

    @worker.job("t")
    def task(n: int) -> int:
        raise NotImplementedError

    async def go() -> tuple[int, int]:
        handle = await task.aenqueue(1)
        many = await task.amap([1, 2])
        return await handle.aresult(), len(many)

    api.results = [{"state": "completed", "result": 7}]
    assert asyncio.run(go()) == (7, 2)


# --- clients -------------------------------------------------------------------------------------


def test_clients_are_made_once_a_process_and_once_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Made:
        def __init__(self, url: str | None, *, key: str | None) -> None:
            made.append((type(self).__name__, url, key))

        def run(self, call: Any) -> Any:
            return "job"

    class MadeAsync(Made):
        async def run(self, call: Any) -> Any:
            return "job"

        async def aclose(self) -> None:
            made.append("closed")

    monkeypatch.setattr(clients_module, "Client", type("Client", (Made,), {}))
    monkeypatch.setattr(clients_module, "AsyncClient", type("AsyncClient", (MadeAsync,), {}))
    clients: Any = Clients("http://x", "k")
    assert [clients.run(None), clients.run(None)] == ["job", "job"]

    async def twice() -> None:
        await clients.arun(None)
        await clients.arun(None)
        await clients.aclose()

    asyncio.run(twice())
    asyncio.run(twice())
    client, awaited = ("Client", "http://x", "k"), ("AsyncClient", "http://x", "k")
    assert made == [client, awaited, "closed", awaited, "closed"]
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)  # as in a fork
    clients.run(None)
    assert made[-1] == client


def test_the_url_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OJS_URL", raising=False)

    @Jobs().job("t")
    def task() -> None: ...

    with pytest.raises(ValueError, match="OJS_URL"):
        task.enqueue()


# --- misuse --------------------------------------------------------------------------------------


def _star(*args: int) -> None: ...
def _kwargs(**args: int) -> None: ...
def _unannotated(job: JobContext, to) -> None: ...  # type: ignore[no-untyped-def]
def _keyword(*, smtp: str) -> None: ...
def _keyword_default(*, smtp: str = "x") -> None: ...
def _positional(smtp: str = injected()) -> None: ...
def _bytes(data: list[bytes]) -> None: ...
def _default(n: int = "x") -> None: ...  # type: ignore[assignment]
def _naive(at: datetime = datetime(2026, 1, 1)) -> None: ...  # noqa: DTZ001
def _generator() -> Any:
    yield 1


async def _asynchronous_generator() -> Any:
    yield 1


def _context(job: AsyncJobContext) -> None: ...
def _unknown(order: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_star, r"_star: the parameter \*args: ?'?int'? is not supported"),
        (_kwargs, r"_kwargs: the parameter \*\*args"),
        (_unannotated, "_unannotated: the parameter to must have an annotation"),
        (_keyword, r"_keyword: the parameter smtp.* must be injected\(\)"),
        (_keyword_default, r"must be injected\(\)"),
        (_positional, "must be keyword-only"),
        (_bytes, "the parameter data.* must not contain bytes"),
        (_default, "the parameter n.* has an invalid default"),
        (_naive, "the parameter at.* has an invalid default"),
        (_generator, "_generator must return its result. It is a generator"),
        (_asynchronous_generator, "must return its result"),
        (_context, "only `async def` functions get an AsyncJobContext"),
        (_unknown, "_unknown: the annotations must be defined"),
        (lambda: None, "must be a function that is defined with def"),
        (partial(_star), "must be a function that is defined with def"),
        (Line, "must be a function that is defined with def"),
    ],
)
def test_a_function_that_can_not_be_a_job(
    worker: Worker, conversion: str, function: Any, problem: str
) -> None:
    with pytest.raises(TypeError, match=problem):
        worker.job("t")(function)
    assert worker.handlers.by_type == {}


class Custom:
    pass


def test_an_annotation_needs_pydantic(worker: Worker, without_pydantic: None) -> None:
    for hint in (Custom, list[Custom], dict[int, str], int | str, Tuned, Custom | None):

        def task(job: JobContext, order: Any) -> None: ...

        task.__annotations__["order"] = hint
        with pytest.raises(TypeError) as caught:
            worker.job("t")(task)
        message = str(caught.value)
        assert "task: the parameter order" in message
        assert "Supported are None, bool, int" in message
        assert "ojs-backend-aws[pydantic]" in message

    def result() -> Custom:
        return Custom()

    with pytest.raises(TypeError, match="result: the result:"):
        worker.job("t")(result)


@dataclass
class Unfinished:
    inner: "Missing"  # type: ignore[name-defined]  # noqa: F821, UP037


def test_annotations_must_be_defined(worker: Worker, conversion: str) -> None:
    def task(order: Unfinished) -> None: ...

    with pytest.raises(TypeError, match=r"task: the parameter order.* can't be converted"):
        worker.job("t")(task)


def test_names_are_unique_and_valid(worker: Worker) -> None:
    def task() -> None: ...

    with pytest.raises(ValueError, match=r"lowercase segments.*Pass a name"):
        worker.job()(task)  # defined in a function
    with pytest.raises(ValueError, match="lowercase segments"):
        worker.job("Mail.Send")(task)
    with pytest.raises(ValueError, match=r"declare\(\): 'Mail' must be lowercase"):
        declare("Mail", Line)
    assert worker.job("t")(task).name == "t"
    with pytest.raises(ValueError, match=r"job\('t'\): .* can't have the job type of"):
        worker.job("t")(task)
    worker.handler("h")(task)
    with pytest.raises(ValueError, match="'h' already has a handler"):
        worker.job("h")(task)
    jobs = Jobs()
    jobs.job("h")(task)
    with pytest.raises(ValueError, match="'h' already has a handler"):
        worker.include(jobs)
    with pytest.raises(TypeError, match="needs parentheses"):
        worker.job(task)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retries": 3}, "unknown option 'retries'. Did you mean 'retry'. Options are .*retry"),
        ({"delay_s": 3}, "unknown option 'delay_s'"),
        ({"retry": {"max_attempts": 3}}, "retry must be Retry"),
        ({"unique": True}, "unique must be Unique"),
        ({"rate_limit": "x"}, "rate_limit must be RateLimit"),
    ],
)
def test_options_are_checked(worker: Worker, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError, match=rf"job\('t'\): {problem}"):
        worker.job("t", **options)
    with pytest.raises(TypeError, match=rf"Jobs\(\): {problem}"):
        Jobs(**options)
    with pytest.raises(TypeError, match=rf"declare\('t'\): {problem}"):
        declare("t", Line, **options)


@pytest.mark.parametrize(
    ("made", "given", "problem"),
    [
        (Retry, {"initial_interval": 10}, r'must be a timedelta or an ISO.* "PT10S", but is 10$'),
        (Retry, {"max_interval": "10s"}, "max_interval must be a timedelta or .* but is '10s'"),
        (Retry, {"max_interval": timedelta(seconds=-1)}, "max_interval must be a timedelta"),
        (Retry, {"max_attempts": "5"}, "max_attempts must be int, but is '5'"),
        (Retry, {"max_attempts": True}, "max_attempts must be int, but is True"),
        (Retry, {"max_attempts": -1}, "max_attempts must be 0 or more, but is -1"),
        (Retry, {"backoff_coefficient": math.nan}, "backoff_coefficient must be a number"),
        (Retry, {"backoff_strategy": "fast"}, "must be one of 'exponential', .*but is 'fast'"),
        (Retry, {"jitter": 1}, "jitter must be bool"),
        (Retry, {"non_retryable_errors": "KeyError"}, "must be a list with only str"),
        (Unique, {"keys": ["arg"]}, "list with only one of 'type', .*but is"),
        (Unique, {"period": 60}, r"Unique\(\): period must be a timedelta"),
        (RateLimit, {"key": 5}, "key must be str or Callable, but is 5"),
        (RateLimit, {"rate": 5, "period": "week"}, "period must be .* or one of 'second'"),
        (RateLimit, {"rate": 5}, "rate and period must be given together"),
        (RateLimit, {"throttle": {"limit": 1}}, r"throttle must be Throttle\(…\)"),
        (Throttle, {"limit": 1, "period": 1}, r"Throttle\(\): period must be a timedelta"),
    ],
)
def test_values_of_policies_are_checked(
    made: Callable[..., Any], given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TypeError, match=problem):
        made(**given)


def test_a_throttle_is_sent_as_the_api_expects_it(worker: Worker, api: JobsApi) -> None:
    @worker.job("t", rate_limit=RateLimit("k", throttle=Throttle(10, timedelta(seconds=1))))
    def task() -> None: ...

    task.enqueue()
    task.options(rate_limit=RateLimit(rate=1, period="minute")).enqueue()
    assert [body["options"]["rate_limit"] for body in api.bodies("jobs")] == [
        {"key": "k", "throttle": {"limit": 10, "period": "PT1S"}},
        {"rate": 1, "period": "minute"},
    ]


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("apply_async", r" Use options\(…\).enqueue"), ("s", r" Use job\(…\)"), ("other", "$"),
        ("retry", " Use raise: any exception retries"), ("enque", r" Did you mean 'enqueue'\?$"),
    ],
)  # fmt: skip
def test_names_of_other_libraries_lead_to_ours(worker: Worker, name: str, use: str) -> None:
    @worker.job("mail.send")
    def send(to: str) -> None: ...

    with pytest.raises(AttributeError, match=f"send is a job type without '{name}'\\.{use}"):
        getattr(send, name)
    assert not hasattr(send, "__fspath__")


@pytest.mark.parametrize(
    ("owner", "name", "use"),
    [
        ("Worker", "task", r"has no 'task'\. Use job\(…\)\.$"),
        ("Worker", "send_task", r"Use declare\(name, Arguments\)\.enqueue\(…\)"),
        ("Worker", "other", "'Worker' object has no attribute 'other'"),
        ("JobContext", "retry", r"has no 'retry'\. Use raise: any exception retries the job"),
        ("AsyncJobContext", "retry", r"AsyncJobContext has no 'retry'\. Use raise"),
        ("JobContext", "request", "Use id, attempt, args, or meta"),
        ("JobContext", "other", "'JobContext' object has no attribute 'other'"),
        ("JobContext", "attempt", "'str' object has no attribute 'attempt'"),  # of a property
    ],
)
def test_workers_and_contexts_name_the_replacement(
    worker: Worker, owner: str, name: str, use: str
) -> None:
    context = JobContext("no job" if name == "attempt" else job_of("t"))  # type: ignore[arg-type]
    owners = {
        "Worker": worker, "JobContext": context, "AsyncJobContext": AsyncJobContext.of(context)
    }  # fmt: skip
    with pytest.raises(AttributeError, match=use):
        getattr(owners[owner], name)


def test_each_replaced_name_is_no_name_of_ours() -> None:
    owners: dict[str, Any] = {
        "JobType": dir(JobType), "Worker": dir(Worker), "JobContext": dir(JobContext),
        "options": CallOptions.__annotations__, "Retry": Retry.__dataclass_fields__,
    }  # fmt: skip
    assert owners.keys() == REPLACED.keys()
    for owner, names in REPLACED.items():
        assert not names.keys() & set(owners[owner])
        words = {use.partition("=" if owner == "options" else "(")[0] for use in names.values()}
        others = {use for use in words if " " in use or use == "declare"}
        assert words - others <= set(owners[owner])


UNTYPED: Any = ojs_aws  # type checkers would report these calls


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda send: send.enqueue("a", m=2), r"argument 'm'\. Expected is mail.send\(to"),
        (lambda send: send.enqueue(template="x", too="a"), r"'too'\. Did you mean 'to'\? Expected"),
        (
            lambda send: send.delay("a", smtp="x"),
            "'smtp'. The worker fills this resource",
        ),
        (
            lambda send: send.enqueue("a", countdown=5),
            r"'countdown'\. Use \.options\(delay_s=…\)\.",
        ),
        (lambda send: send.job("a", queue="x"), r"\.job\(\): .*'queue'. Use \.options\(queue=…\)"),
        (lambda send: send.delay("a", max_retries=3), r"options\(retry=Retry\(max_attempts=…\)\)"),
        (lambda send: send.options(countdown=5), r"option 'countdown'\. Use delay_s\."),
        (lambda send: send.options(queu="x"), r"'queu'\. Did you mean 'queue'\? Options are"),
        (lambda send: send.options(bind=True), "Use a first parameter `job: JobContext`"),
        (
            lambda _: UNTYPED.Jobs(countdown=5),
            r"'countdown'\. Use \.options\(delay_s=…\)\. Options",
        ),
        (lambda _: UNTYPED.Jobs(eta=NOW), r"'eta'\. Use \.options\(scheduled_at=…\)\. Options"),
        (lambda _: UNTYPED.Jobs(time_limit=5), r"'time_limit'\. Use timeout_s\. Options"),
        (
            lambda _: UNTYPED.Retry(max_retries=5),
            r"Retry\(\): unknown .*'max_retries'\. Use max_attempts\.",
        ),
        (lambda _: UNTYPED.Retry(initial="PT1S"), r"Did you mean 'initial_interval'\?"),
        (
            lambda _: UNTYPED.Unique(key=["args"]),
            r"Unique\(\): unknown option 'key'\. Did you mean 'keys'",
        ),
    ],
)
def test_unknown_names_lead_to_the_near_one(
    worker: Worker, api: JobsApi, call: Callable[[Any], Any], problem: str
) -> None:
    @worker.job("mail.send")
    def send(to: str, template: str = "welcome", *, smtp: str = injected()) -> None: ...

    with pytest.raises((InvalidArguments, TypeError), match=problem):
        call(send)
    assert api.sent == []


def test_a_direct_call_needs_its_resources(worker: Worker) -> None:
    @worker.job("mail.send")
    def send(to: str, *, smtp: str = injected(), db: str = injected()) -> str:
        return to + smtp + db

    @worker.job("mail.later")
    async def later(*, smtp: str = injected()) -> str:
        return smtp

    expected = r"mail.send\(\) is called directly, so pass its resources: smtp=…\. A worker"
    with pytest.raises(TypeError, match=expected):
        send("a", db="c")
    with pytest.raises(TypeError, match="smtp=…, db=…"):
        send("a")
    with pytest.raises(TypeError, match="smtp=…"):
        later()
    assert send("a", smtp="b", db="c") == "abc"


def test_wrong_calls_name_what_was_called(worker: Worker, api: JobsApi) -> None:
    @worker.job("mail.send")
    def send(job: JobContext, to: str, n: int = 1, *, smtp: str = injected()) -> None: ...

    untyped: Any = send
    expected = r"Expected is mail.send\(to: str, n: int = 1\)"
    for args, kwargs in (((), {}), (("a", 1, 2), {}), (("a",), {"tto": 1}), (("a",), {"smtp": 1})):
        with pytest.raises(InvalidArguments, match=rf"mail.send.enqueue\(\): .*{expected}"):
            untyped.enqueue(*args, **kwargs)
    with pytest.raises(TypeError, match=r"mail.send.options\(\): unknown option 'dealy_s'"):
        untyped.options(dealy_s=1)
    with pytest.raises(TypeError, match=r"Client.enqueue\(\): .*'foo'. Its parameters are type, "):
        api.client().enqueue("t", foo=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Client.delete_job\(\): .*'job_id'"):
        api.client().delete_job()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="args must be a list"):
        api.client().enqueue("t", "x")
    assert api.sent == []


# --- modules -------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"shop_{os.getpid()}_{id(tmp_path)}"
    inner = tmp_path / name / "mail"
    inner.mkdir(parents=True)
    (tmp_path / name / "__init__.py").touch()
    (inner / "__init__.py").touch()
    (inner / "jobs.py").write_text(
        textwrap.dedent("""
            from ojs_aws import Jobs

            jobs = Jobs(queue="mail")

            @jobs.job()
            def send(to: str) -> str:
                return to
        """)
    )
    (inner / "other.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for each in [each for each in sys.modules if each.startswith(name)]:
        del sys.modules[each]


def test_modules_named_jobs_are_found(worker: Worker, package: str) -> None:
    worker.autodiscover(package)
    worker.autodiscover(package)
    assert list(worker.handlers.by_type) == [f"{package}.mail.jobs.send"]
    found: JobType[..., Any] = sys.modules[f"{package}.mail.jobs"].send
    assert pickle.loads(pickle.dumps(found)) is found
    with pytest.raises(ImportError, match="no module named jobs"):
        worker.autodiscover("json")


def test_jobs_declared_after_include_are_known(worker: Worker) -> None:
    jobs = Jobs()
    worker.include(jobs)

    @jobs.job("late")
    def late() -> int:
        return 1

    assert worker.perform(job_of("late")).entry == {"result": 1}
    assert isinstance(jobs.types["late"], JobType)
    assert isinstance(Client("http://x"), Client)
