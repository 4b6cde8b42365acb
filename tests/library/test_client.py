"""Both clients: what they send, when they ask again, and what errors mean."""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

import ojs_aws
from ojs.api import operations as contract
from ojs.http import endpoint
from ojs_aws import (
    ApiError,
    AsyncClient,
    Client,
    Conflict,
    Duplicate,
    JobRequest,
    NotFound,
    RetryPolicy,
    TooManyRequests,
    Unavailable,
    Unreachable,
)  # fmt: skip
from ojs_aws.client import operations
from ojs_aws.client.call import Call
from ojs_aws.client.method import Method
from ojs_aws.client.methods import Operations

URL = "http://stub"
JOB = {"id": "j", "type": "t", "args": [], "state": "available"}
BUSY = httpx.Response(503, json={"error": {"code": "backend_unavailable", "message": "busy"}})


class Script:
    """Gives prepared answers, one for each request; an exception is raised instead."""

    def __init__(self, *answers: httpx.Response | Exception | dict[str, Any]) -> None:
        self.answers: Iterator[Any] = iter(answers)
        self.seen: list[httpx.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, dict):
            return httpx.Response(200, json=answer)
        # A new one: an answer that was read by one client cannot be read by the other.
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.seen]


def blocking(script: Script, ask: Callable[[Any], Any], **options: Any) -> Any:
    transport = httpx.MockTransport(script)
    with Client(URL, transport=transport, sleep=script.pauses.append, **options) as client:
        return ask(client)


def awaiting(script: Script, ask: Callable[[Any], Any], **options: Any) -> Any:
    async def sleep(seconds: float) -> None:
        script.pauses.append(seconds)

    async def run() -> Any:
        transport = httpx.MockTransport(script)
        async with AsyncClient(URL, transport=transport, sleep=sleep, **options) as client:
            return await ask(client)

    return asyncio.run(run())


both = pytest.mark.parametrize("run", [blocking, awaiting])


@both
def test_a_job_is_enqueued(run: Any) -> None:
    script = Script(httpx.Response(201, json={"job": JOB | {"meta": {"a": 1}}}))
    job = run(script, lambda c: c.enqueue(
        "t", [1], queue="q", priority=3, delay_s=1.5, timeout_s=2, retry={"max_attempts": 1},
        tags=("x",), meta={"a": 1}, expires_at=datetime(2030, 1, 1, tzinfo=UTC),
        options={"visibility_timeout_ms": 5}, producer="me", block_s=3,
    ), key="secret")  # fmt: skip
    assert (job.id, job.meta, job.final) == ("j", {"a": 1}, False)
    (request,) = script.seen
    assert str(request.url) == f"{URL}/ojs/v1/jobs"
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["x-ojs-producer"] == "me"
    assert request.headers["ojs-block-timeout"] == "3"
    (body,) = script.bodies()
    assert body.pop("id")[14] == "7"
    assert body == {
        "type": "t", "args": [1], "meta": {"a": 1},
        "options": {
            "queue": "q", "priority": 3, "scheduled_at": "+PT1.500S", "timeout_ms": 2_000,
            "expires_at": "2030-01-01T00:00:00+00:00", "retry": {"max_attempts": 1},
            "tags": ["x"], "visibility_timeout_ms": 5,
        },
    }  # fmt: skip


@both
def test_asks_again_while_the_server_is_busy(run: Any) -> None:
    page = httpx.Response(502, content="<html>")
    script = Script(
        BUSY, httpx.ReadError("x"), page, httpx.Response(201, content="{"), {"job": JOB}
    )
    assert run(script, lambda c: c.enqueue("t")).id == "j"
    assert len({body["id"] for body in script.bodies()}) == 1
    bounds = zip(script.pauses, (0.1, 0.2, 0.4, 0.8), strict=True)
    assert all(0 < pause <= most for pause, most in bounds)


@both
def test_what_the_server_asks_to_wait_counts_up_to_a_bound(run: Any) -> None:
    later = [httpx.Response(429, headers={"Retry-After": text}) for text in ("7", "900", "soon")]
    script = Script(*later, {"job": JOB})
    run(script, lambda c: c.get_job("j"))
    assert script.pauses[0] == 7
    assert script.pauses[1] == 30
    assert script.pauses[2] < 1


@both
def test_gives_up_in_the_end(run: Any) -> None:
    with pytest.raises(Unavailable, match="503 backend_unavailable: busy") as caught:
        run(Script(BUSY, BUSY), lambda c: c.get_job("j"), retry=RetryPolicy(tries=2))
    assert caught.value.status == 503
    script = Script(*[httpx.ConnectError("nobody")] * 2)
    with pytest.raises(Unreachable) as away:
        run(script, lambda c: c.get_job("j"), retry=RetryPolicy(tries=2))
    assert str(away.value) == f"No response from {URL}: nobody"
    assert not away.value.sent


@both
def test_a_push_that_was_stored_the_first_time_is_no_duplicate(run: Any) -> None:
    sent: list[str] = []

    def exists(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        sent.extend(each["id"] for each in body.get("jobs", [body]))
        error = {"code": "duplicate", "details": {"existing_job_id": sent[0]}}
        return httpx.Response(409, json={"error": error})

    class Stored(Script):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            return super().__call__(request) if not self.seen else exists(request)

    job = run(Stored(httpx.ReadTimeout("lost")), lambda c: c.enqueue("t", [1], queue="q"))
    assert (job.id, job.queue, job.args, job.state) == (sent[0], "q", [1], "unknown")
    sent.clear()
    two = [JobRequest("t", [1]), JobRequest("t", [2])]
    jobs = run(Stored(httpx.ReadTimeout("lost")), lambda c: c.enqueue_many(two))
    assert [job.id for job in jobs] == sent
    # One that another request stored is one.
    with pytest.raises(Duplicate):
        run(Stored(BUSY), lambda c: c.enqueue("t", id="mine"))
    other = {"error": {"code": "duplicate", "details": {"existing_job_id": "other"}}}
    script = Script(httpx.ReadError("x"), httpx.Response(409, json=other))
    with pytest.raises(Duplicate) as caught:
        run(script, lambda c: c.enqueue("t", unique={"keys": ["type"]}))
    assert caught.value.repeated


@both
def test_an_idempotency_key_goes_with_a_body_that_stays_the_same(run: Any) -> None:
    script = Script(*[httpx.Response(201, json={"job": JOB, "jobs": [JOB]})] * 4)
    for _ in range(2):
        transport = script

        async def awaited(c: Any) -> None:
            await c.enqueue("t", idempotency_key="k")
            await c.enqueue_many([JobRequest("t")], idempotency_key="k")

        def waited(c: Any) -> None:
            c.enqueue("t", idempotency_key="k")
            c.enqueue_many([JobRequest("t")], idempotency_key="k")

        run(transport, awaited if run is awaiting else waited)
    first, many, again, many_again = script.bodies()
    assert first == again == {"type": "t", "args": []}
    assert many == many_again == {"jobs": [first]}
    assert {request.headers["idempotency-key"] for request in script.seen} == {"k"}


@both
def test_what_may_have_been_done_is_not_done_again(run: Any) -> None:
    for ask in (
        lambda c: c.retry_job("j"), lambda c: c.create_key("n", ["work"]),
        lambda c: c.trigger_cron("n"), lambda c: c.cancel_job("j"),
    ):  # fmt: skip
        script = Script(httpx.ReadTimeout("lost"))
        with pytest.raises(Unreachable) as lost:
            run(script, ask)
        assert lost.value.sent
        # What did not arrive, or was turned away, is.
        turned_away = httpx.Response(429, json={})
        script = Script(httpx.ConnectError("x"), turned_away, {"job": JOB})
        run(script, ask)
        assert len(script.seen) == 3


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_request", "BadRequest"), (401, "", "Unauthenticated"),
        (403, "permission_denied", "PermissionDenied"), (404, "not_found", "NotFound"),
        (409, "conflict", "Conflict"), (409, "duplicate", "Duplicate"),
        (413, "payload_too_large", "PayloadTooLarge"), (418, "", "ApiError"),
        (422, "validation_error", "Unprocessable"), (422, "unsupported", "Unsupported"),
        (429, "QUEUE_FULL", "QueueFull"), (500, "backend_error", "ServerError"),
        (504, "backend_timeout", "Unavailable"),
    ],
)  # fmt: skip
def test_errors_are_a_tree(status: int, code: str, kind: str) -> None:
    error = {"code": code, "message": "m", "details": {"field": "f"}, "request_id": "r"}
    answer = httpx.Response(status, json={"error": error})
    with pytest.raises(ApiError) as caught:
        blocking(Script(answer), lambda c: c.get_job("j"), retry=RetryPolicy(tries=1))
    raised = caught.value
    assert type(raised) is getattr(ojs_aws, kind)
    assert (raised.status, raised.code, raised.details) == (status, code, {"field": "f"})
    assert (raised.request_id, raised.repeated) == ("r", False)
    copied = pickle.loads(pickle.dumps(raised))
    assert (str(copied), copied.details) == (str(raised), raised.details)


def test_bases_of_errors() -> None:
    assert issubclass(Duplicate, Conflict)
    assert issubclass(ojs_aws.QueueFull, TooManyRequests)
    assert issubclass(ApiError, ojs_aws.OjsError)
    assert issubclass(Unreachable, ojs_aws.OjsError)


def test_what_api_gateway_and_others_say_themselves() -> None:
    for body, text in (
        ({"json": {"message": "Unauthorized"}}, "401 : Unauthorized"),
        ({"content": "<p>"}, "401 : "),
        ({"json": [1]}, "401 : "), ({"json": {"error": "no"}}, "401 : no"),
    ):  # fmt: skip
        with pytest.raises(ojs_aws.Unauthenticated) as caught:
            blocking(Script(httpx.Response(401, **body)), lambda c: c.get_job("j"))
        assert str(caught.value) == text


@both
def test_every_page_of_a_listing(run: Any) -> None:
    pages: list[dict[str, Any]] = [
        {"items": [{"id": 1}], "pagination": {"next_cursor": "c"}},
        {"items": [], "pagination": {"next_cursor": "d"}},
        {"items": [{"id": 2}], "pagination": {}},
    ]
    script = Script(*pages)

    async def gather(c: Any) -> list[Any]:
        return [each async for each in c.each(c.list_jobs, queue="q", state=["active", "pending"])]

    listed = run(script, gather if run is awaiting else lambda c: list(
        c.each(c.list_jobs, queue="q", state=["active", "pending"])
    ))  # fmt: skip
    assert listed == [{"id": 1}, {"id": 2}]
    queries = [dict(request.url.params) for request in script.seen]
    wanted = {"queue": "q", "state": "active,pending"}
    assert queries == [wanted, wanted | {"cursor": "c"}, wanted | {"cursor": "d"}]


@both
def test_every_page_of_a_job_s_history(run: Any) -> None:
    """Its cursor is beside the events."""
    pages: list[dict[str, Any]] = [
        {"events": [{"id": 1}], "total": 2, "next_cursor": "1"}, {"events": [{"id": 2}], "total": 2}
    ]  # fmt: skip
    script = Script(*pages)

    async def gather(c: Any) -> list[Any]:
        return [each async for each in c.each(c.job_history, job_id="j")]

    events = run(script, gather if run is awaiting else lambda c: list(
        c.each(c.job_history, job_id="j")
    ))  # fmt: skip
    assert events == [{"id": 1}, {"id": 2}]
    assert [dict(request.url.params) for request in script.seen] == [{}, {"cursor": "1"}]


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_make_another_path_is_not_sent(name: str) -> None:
    """`jobs/../health` is `health`: the URL is shortened before it is sent."""
    script = Script()
    for ask in (lambda c: c.get_job(name), lambda c: c.stop_job_operation(name)):
        with pytest.raises(ValueError, match="must not be empty"):
            blocking(script, ask)
    assert script.seen == []


@pytest.mark.parametrize("suffix", ["", "/", "/ojs/v1", "/ojs/v1/"])
def test_takes_the_url_with_and_without_the_base_path(suffix: str) -> None:
    script = Script({})
    with Client(f"{URL}/stage{suffix}", transport=httpx.MockTransport(script)) as client:
        client.health()
    assert script.seen[0].url.path == "/stage/ojs/v1/health"


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://localhost", "http://"])
def test_refuses_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="must be an http"):
        Client(url)


@pytest.mark.parametrize(
    "ask",
    [
        lambda c: c.enqueue("t", "text"),
        lambda c: c.enqueue("t", {"a": 1}),
        lambda c: c.enqueue("t", [object()]),
        lambda c: c.enqueue("t", [float("nan")]),
        lambda c: c.enqueue("t", ["\ud800"]),
        lambda c: c.enqueue("t", delay_s=1, scheduled_at="2030-01-01T00:00:00Z"),
        lambda c: c.enqueue("t", scheduled_at=datetime(2030, 1, 1)),  # noqa: DTZ001 - that is it
        lambda c: c.enqueue("t", queue="q", options={"queue": "r"}),
        lambda c: c.get_job(""),
        lambda c: c.retry_dead_letters(),
        lambda c: c.purge_dead_letters(every=True, queue="q"),
        lambda c: c.cancel_jobs(["a"], queue="q"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(ask: Callable[[Client], Any]) -> None:
    script = Script()
    with pytest.raises((TypeError, ValueError)):
        blocking(script, ask)
    assert script.seen == []


def test_names_are_one_segment_of_the_path() -> None:
    script = Script({})
    blocking(script, lambda c: c.get_rate_limit("a/b %?"))
    assert script.seen[0].url.raw_path == b"/ojs/v1/rate-limits/a%2Fb%20%25%3F"


def test_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OJS_KEY", "theirs")
    script = Script({}, {})
    blocking(script, lambda c: c.health())
    blocking(script, lambda c: c.health(), key="mine")
    sent = [request.headers["authorization"] for request in script.seen]
    assert sent == ["Bearer theirs", "Bearer mine"]


# What an operation needs, where it is not a name.
NEEDED: dict[str, Any] = {"jobs": [JobRequest("t")], "scopes": ["work"], "enabled": True}


def build(function: Callable[..., Call[Any]]) -> Call[Any]:
    needed = {
        name: NEEDED.get(name, "x")
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    }
    if function.__name__ in ("retry_dead_letters", "purge_dead_letters"):
        needed = {"every": True}
    return function(**needed)


def test_every_operation_of_the_server_is_there_once() -> None:
    """But for those of a worker and of connections, and for other paths to the same."""
    found = {}
    for name, made in inspect.getmembers(Operations, lambda each: isinstance(each, Method)):
        call = build(made._build)
        path = call.path if call.path.startswith("/") else f"{endpoint.BASE}/{call.path}"
        found[name] = contract.at(path)[call.method]
    told = {operation.summary for operation in found.values()}
    left = {each.id for each in contract.OPERATIONS if each.summary not in told}
    assert left == {
        # A worker's own.
        "ack_job_by_path", "nack_job_by_path", "report_progress", "report_worker_progress",
        "fetch_jobs", "ack_job", "nack_job", "heartbeat", "beat", "register_worker",
        # Of realtime connections, and streams.
        "create_ticket", "stream_job_events", "stream_queue_events", "stream_events",
        # The same by another name.
        "purge_old_dead_letters", "admin_purge_old_dead_letters", "admin_get_queue", "quiet_worker",
        "admin_remove_worker", "root_metrics",
    }  # fmt: skip


def test_every_function_by_hand_is_a_method() -> None:
    by_hand = {
        made
        for name, made in inspect.getmembers(operations, inspect.isfunction)
        if made.__annotations__.get("return", "").startswith("Call[") and not name.startswith("_")
    }
    methods = {each._build for each in vars(Operations).values() if isinstance(each, Method)}
    assert methods == by_hand - {operations.worker_call}
    assert Client.enqueue.__doc__ == operations.enqueue_job.__doc__


def test_the_public_names_are_there() -> None:
    assert ojs_aws.__all__ == sorted(ojs_aws.__all__)
    assert all(hasattr(ojs_aws, name) for name in ojs_aws.__all__)


def test_a_job_that_is_gone() -> None:
    with pytest.raises(NotFound):
        blocking(Script(httpx.Response(404, json={})), lambda c: c.get_job("j"))


@pytest.mark.parametrize(("url", "needed"), [("http://a", False), ("https://a/ojs/v1", True)])
def test_certificates_are_looked_at_where_there_are_any(url: str, needed: bool) -> None:
    with Client(url) as client:
        pool = client._http._transport._pool  # type: ignore[attr-defined]
        assert (pool._ssl_context.verify_mode is ssl.CERT_REQUIRED) == needed
