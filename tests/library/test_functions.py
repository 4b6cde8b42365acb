"""A worker as a Lambda function: events as this server makes them, and as AWS documents them."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ojs.domain.delivery import forms, outcome, signing
from ojs.domain.delivery.delivery import Form
from ojs.domain.delivery.outcome import Outcome, Verdict
from ojs.domain.job.envelope import MAX_JOB_BYTES
from ojs.targets.guard import place
from ojs_aws import JobContext, JobFailed, Worker, lambda_handler
from tests.library.pages import WORKERS_ON_LAMBDA, files
from tests.library.stub import StubServer, made
from tests.unit.domain.delivery.pushes import NOW_MS, job_id, push

SECRET = "whsec_of_today"
ARN = "arn:aws:sqs:eu-central-1:123456789012:thumbs"


class Context:
    """Lambda's context, as far as it is looked at."""

    def __init__(self, left_ms: int = 30_000) -> None:
        self.left_ms = left_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.left_ms


@pytest.fixture
def worker() -> Worker:
    worker = Worker(queues=["images"])

    @worker.handler("image.resize")
    def resize(job: JobContext) -> dict[str, Any]:
        (arg,) = job.args
        if arg == "refuse":
            raise JobFailed("no such picture", code="not_found", retryable=False)
        if arg == "break":
            raise KeyError("size")
        if arg == "sleep":
            job.sleep(60)
        return {"got": arg, "attempt": job.attempt}

    return worker


def event(*args: Any, form: Form = Form.DIRECT) -> dict[str, Any]:
    """The event of jobs with these arguments, one each, as this server sends it."""
    pushes = [push(number, args=[arg]) for number, arg in enumerate(args, start=1)]
    found = list(forms.events(pushes, form, source=ARN, batch_size=10, now_ms=NOW_MS))
    assert len(found) == 1
    made: dict[str, Any] = json.loads(found[0].text)
    return made


def read(answer: Mapping[str, Any]) -> Outcome:
    """What this server makes of an answer that went through JSON."""
    return outcome.of_text(json.dumps(answer), job_id=job_id(1))


@pytest.mark.parametrize("form", [Form.DIRECT, Form.PUSH])
def test_a_job_is_done_and_its_result_told(worker: Worker, form: Form) -> None:
    answer = lambda_handler(worker)(event("a.png", form=form), Context())
    assert answer["job_id"] == job_id(1)
    found = read(answer)
    assert (found.verdict, found.result) == (Verdict.COMPLETED, {"got": "a.png", "attempt": 1})


@pytest.mark.parametrize(
    ("arg", "code", "retryable"),
    [("refuse", "not_found", False), ("break", "handler_error", True)],
)
def test_a_failure_says_why(worker: Worker, arg: str, code: str, retryable: bool) -> None:
    found = read(lambda_handler(worker)(event(arg), Context()))
    assert found.verdict is Verdict.FAILED
    assert found.error is not None
    assert (found.error["code"], found.error["retryable"]) == (code, retryable)


def test_coroutines_run_as_well(worker: Worker) -> None:
    @worker.handler("later")
    async def later(job: JobContext) -> str:
        await asyncio.sleep(0)
        return str(job.args[0]).upper()

    answer = lambda_handler(worker)({"id": job_id(1), "type": "later", "args": ["a"]}, Context())
    assert answer == {"status": "completed", "job_id": job_id(1), "result": "A"}


@pytest.mark.requirement("SL-19")
def test_jobs_of_a_cold_start_are_told_from_the_others(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ojs_aws")
    handler = lambda_handler(worker)
    # All of the first event, and none of the next ones, whatever became of it.
    handler(event("a", "break", form=Form.SQS), Context())
    handler(event("b"), Context())
    told = [vars(record) for record in caplog.records if "job_id" in vars(record)]
    assert [each["cold_start"] for each in told] == [True, True, False]
    assert all(each["duration_ms"] >= 0 for each in told)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_handler_is_told_to_stop_while_it_can_still_answer(asynchronous: bool) -> None:
    worker = Worker(queues=["q"])

    def waits(job: JobContext) -> None:
        job.sleep(60)

    async def awaits(_job: JobContext) -> None:
        await asyncio.sleep(60)

    worker.handler("image.resize")(awaits if asynchronous else waits)
    found = read(lambda_handler(worker)(event("x"), Context(left_ms=1_020)))
    assert found.error is not None
    assert (found.verdict, found.error["code"]) == (Verdict.FAILED, "timeout")


def test_a_batch_names_the_messages_whose_jobs_failed(worker: Worker) -> None:
    told = event("a", "break", "b", form=Form.SQS)
    answer = lambda_handler(worker)(told, Context())
    assert answer == {"batchItemFailures": [{"itemIdentifier": job_id(2)}]}
    ids = [job_id(number) for number in (1, 2, 3)]
    verdicts = [each.verdict for each in outcome.of_batch(answer, ids)]
    assert verdicts == [Verdict.COMPLETED, Verdict.FAILED, Verdict.COMPLETED]


def test_jobs_of_a_batch_for_which_no_time_is_left_are_not_begun(worker: Worker) -> None:
    answer = lambda_handler(worker)(event("a", "b", form=Form.SQS), Context(left_ms=900))
    assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == [
        job_id(1), job_id(2),
    ]  # fmt: skip


@pytest.mark.parametrize("body", ["", "x", "null", "[]", "{}", '{"id":1,"type":"t"}', None, 5])
def test_a_message_without_a_job_is_named_and_the_others_are_done(
    worker: Worker, body: object
) -> None:
    told = event("a", form=Form.SQS)
    told["Records"].insert(0, {"messageId": "broken", "body": body})
    answer = lambda_handler(worker)(told, Context())
    assert answer == {"batchItemFailures": [{"itemIdentifier": "broken"}]}


def test_what_is_no_message_is_no_end_of_the_others(worker: Worker) -> None:
    told = event("a", form=Form.SQS)
    told["Records"].append("x")
    answer = lambda_handler(worker)(told, Context())
    assert answer == {"batchItemFailures": [{"itemIdentifier": None}]}


@pytest.mark.parametrize(
    "broken",
    [
        {"requestContext": None}, {"requestContext": {"http": "x"}}, {"requestContext": {}},
    ],
)  # fmt: skip
def test_a_request_that_is_none_is_refused(worker: Worker, broken: Any) -> None:
    assert answered(worker, broken)[0] == 405


@pytest.mark.parametrize(
    "broken",
    [
        {}, {"id": "a"}, {"type": "t"}, {"job": None}, {"job": "x"}, {"job": {"id": "a"}}, None, [],
        {"id": "a", "type": "image.resize", "args": "x"}, {"id": 1, "type": "t", "args": []},
        {"id": "a", "type": "t", "meta": 5},
    ],
)  # fmt: skip
def test_an_event_without_a_job_is_refused_for_good(worker: Worker, broken: Any) -> None:
    answer = lambda_handler(worker)(broken, Context())
    assert (answer["status"], answer["error"]["code"]) == ("failed", "invalid_request")
    assert answer["error"]["retryable"] is False


def test_a_type_without_a_handler_fails(worker: Worker) -> None:
    answer = lambda_handler(worker)({"id": "a", "type": "other"}, Context())
    assert answer["error"]["code"] == "no_handler"


# --- By HTTP -------------------------------------------------------------------------------------


def request(
    body: bytes | None = None, *, secrets: tuple[str, ...] = (SECRET,), encoded: bool = False,
    now_ms: int = NOW_MS, method: str = "POST", headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A request of a delivery as the URL of a function brings it (payload format 2.0)."""
    text = json.dumps(event("a.png", form=Form.PUSH)).encode() if body is None else body
    signed = signing.signed(
        secrets, text, delivery_id="del_1", url="a.example/x?y=1", now_ms=now_ms
    )
    signed |= {"Host": "a.example", "X-OJS-Delivery-ID": "del_1"}
    shown = {name.lower(): value for name, value in signed.items()} | dict(headers or {})
    return {
        "version": "2.0",
        "rawPath": "/x",
        "rawQueryString": "y=1",
        "headers": {"content-type": "application/json", **shown},
        "requestContext": {"http": {"method": method, "path": "/"}},
        "body": base64.b64encode(text).decode() if encoded else text.decode(),
        "isBase64Encoded": encoded,
    }


def answered(worker: Worker, told: Mapping[str, Any], *secrets: str) -> tuple[int, dict[str, Any]]:
    handler = lambda_handler(
        worker, signing_secrets=secrets or (SECRET,), clock=lambda: NOW_MS / 1_000
    )
    reply = handler(told, Context())
    assert reply["headers"] == {"Content-Type": "application/json"}
    return reply["statusCode"], json.loads(reply["body"])


@pytest.mark.parametrize("encoded", [False, True])
def test_a_signed_request_is_done(worker: Worker, encoded: bool) -> None:
    status, body = answered(worker, request(encoded=encoded))
    assert status == 200
    assert body == {
        "status": "completed", "job_id": job_id(1), "result": {"got": "a.png", "attempt": 1},
    }  # fmt: skip


def test_a_request_of_api_gateways_first_version_is_done(worker: Worker) -> None:
    told = request()
    told["httpMethod"] = "POST"
    del told["rawPath"], told["rawQueryString"]
    told |= {"path": "/x", "multiValueQueryStringParameters": {"y": ["1"]}}
    told["requestContext"] = {"stage": "prod", "path": "/x"}
    told["headers"] = {name.title(): value for name, value in told["headers"].items()}
    assert answered(worker, told)[0] == 200


def test_while_secrets_change_one_of_them_is_enough(worker: Worker) -> None:
    both = request(secrets=("whsec_of_tomorrow", SECRET))
    assert answered(worker, both)[0] == 200
    assert answered(worker, both, "whsec_of_tomorrow")[0] == 200
    assert answered(worker, request(), "whsec_of_tomorrow", SECRET)[0] == 200


def test_what_is_not_signed_so_is_not_done(worker: Worker) -> None:
    altered = request()
    altered["body"] = altered["body"].replace("a.png", "b.png")
    for told in (
        altered,
        request(secrets=("whsec_of_another",)),
        request(secrets=()),
        request(now_ms=NOW_MS - 301_000),
        request(now_ms=NOW_MS + 301_000),
        request(headers={"x-ojs-timestamp": "soon"}),
        request(headers={"x-ojs-timestamp": "9" * 40}),
        request(headers={"x-ojs-timestamp": ""}),
        *(
            request(headers={"x-ojs-signature-v2": value})
            for value in ("", "v2=", "å" * 64, "," * 9_000)
        ),
        *(
            {**told, "headers": {n: v for n, v in told["headers"].items() if not n.endswith("v2")}}
            for value in ("sha256=", "å" * 64, "," * 9_000)
            for told in (request(headers={"x-ojs-signature": value}),)
        ),
    ):
        status, body = answered(worker, told)
        assert (status, body["error"]["code"]) == (401, "authentication_failed")
    # Within five minutes clocks may differ.
    assert answered(worker, request(now_ms=NOW_MS - 299_000))[0] == 200


@pytest.mark.parametrize(
    "change",
    [
        {"rawPath": "/other"},
        {"rawQueryString": ""},
        {"headers": {"host": "b.example"}},
        {"headers": {"x-ojs-delivery-id": "del_2"}},
    ],
)
def test_a_signature_of_the_second_version_holds_for_one_delivery_and_url(
    worker: Worker, change: dict[str, Any]
) -> None:
    told = request()
    moved = {**told, **change, "headers": {**told["headers"], **change.get("headers", {})}}
    assert answered(worker, moved)[0] == 401
    # A server of an earlier version sends the first signature only.
    del moved["headers"]["x-ojs-signature-v2"]
    assert answered(worker, moved)[0] == 200


@pytest.mark.parametrize("by", ["parameter", "environment"])
@pytest.mark.parametrize(
    "url",
    [
        "https://jobs.example/x?y=1",
        "https://Jobs.example:443",
        "https://jobs.example:8443/a%20b/?c",
        "https://m\u00fcller.example/x",
        "https://[2606:4700::1]:8443/x",
        "http://localhost:80/x",
    ],
)
def test_behind_a_proxy_the_endpoint_of_the_delivery_is_named(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, url: str, by: str
) -> None:
    to = place(url, loopback=True)
    signed = signing.signed(
        (SECRET,), request()["body"].encode(), delivery_id="del_1",
        url=f"{to.authority}{to.path}", now_ms=NOW_MS,
    )  # fmt: skip
    told = request(headers={name.lower(): value for name, value in signed.items()})
    assert answered(worker, told)[0] == 401
    named: dict[str, Any] = {"url": url}
    if by == "environment":
        monkeypatch.setenv("OJS_ENDPOINT_URL", named.pop("url"))
    handler = lambda_handler(worker, signing_secrets=SECRET, clock=lambda: NOW_MS / 1_000, **named)
    assert handler(told, Context())["statusCode"] == 200
    # It holds for this URL only.
    assert handler(request(), Context())["statusCode"] == 401


@pytest.mark.parametrize("url", ["jobs.example/x", "ftp://jobs.example/", "https:///x"])
def test_an_endpoint_that_is_no_url_is_refused(worker: Worker, url: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        lambda_handler(worker, signing_secrets=SECRET, url=url)


def test_without_a_secret_nothing_comes_in(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OJS_SIGNING_SECRET", raising=False)
    assert lambda_handler(worker)(request(), Context())["statusCode"] == 503
    monkeypatch.setenv("OJS_SIGNING_SECRET", SECRET)
    handler = lambda_handler(worker, clock=lambda: NOW_MS / 1_000)
    assert handler(request(), Context())["statusCode"] == 200


@pytest.mark.parametrize("body", [b"", b"x", b"null", b"[]", b"{}", b'{"job":5}', b'{"id":"a"}'])
def test_a_body_without_a_job_is_refused(worker: Worker, body: bytes) -> None:
    status, answer = answered(worker, request(body))
    assert (status, answer["error"]["retryable"]) == (400, False)


def test_what_is_no_post_or_no_base64_is_refused(worker: Worker) -> None:
    assert answered(worker, request(method="GET"))[0] == 405
    broken = request(encoded=True) | {"body": "***"}
    assert answered(worker, broken)[0] == 400


def test_progress_is_told_if_the_worker_knows_the_server() -> None:
    stub = StubServer()
    worker = made(stub)

    @worker.handler("image.resize")
    def resize(job: JobContext) -> None:
        job.progress(0.25)
        job.progress(0.5)  # too soon after the first
        job.progress(1.0, "all of it")

    assert lambda_handler(worker)(event("a"), Context())["status"] == "completed"
    told = [body for path, body in stub.asked if path.endswith("/progress")]
    assert told == [
        {"worker_id": "push_worker_thumbs", "progress": 0.25},
        {"worker_id": "push_worker_thumbs", "progress": 1.0, "message": "all of it"},
    ]


def test_a_worker_that_knows_no_server_does_its_jobs_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OJS_URL", raising=False)
    worker = Worker(queues=["q"])
    worker.handler("image.resize")(lambda job: job.progress(0.5))
    assert lambda_handler(worker)(event("a"), Context())["status"] == "completed"


def test_the_page_says_what_is_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of the page, and the line that has it answer requests."""
    (name, code), *_ = files(WORKERS_ON_LAMBDA).items()
    (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    handler = importlib.import_module("thumbs").handler
    done = handler({"id": "a", "type": "image.resize", "args": ["a.png", 200]}, Context())
    assert done == {"status": "completed", "job_id": "a", "result": {"key": "200/a.png"}}
    failed = handler({"id": "a", "type": "image.resize", "args": ["a.txt", 200]}, Context())
    assert failed["error"]["code"] == "no_picture"
    (_, by_url) = re.findall(r"^```python\n(.*?)^```$", WORKERS_ON_LAMBDA, re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = {}
    exec(by_url, found)
    assert found["handler"](request(), Context())["statusCode"] == 401
    kib, mib = forms.MAX_EVENT_BYTES // 1024, MAX_JOB_BYTES // 1024**2
    assert f"an event above {kib} KiB" in WORKERS_ON_LAMBDA
    assert f"a result above {mib} MiB" in WORKERS_ON_LAMBDA
