"""Other ways in than an HTTP API: each operation answers alike through each of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from functions.api.handler import handler
from functions.dashboard.files import Dashboard
from infra import ROOT
from ojs.api import operations as contract
from ojs.clock import ManualClock
from ojs.domain.access import ALL_SCOPES, ANYBODY
from ojs.domain.errors import BackendUnavailable
from ojs.http.binding import payload
from ojs.http.endpoint import Operation
from ojs.runtime import Runtime
from ojs.services.operations.authentication import PrincipalLookup
from tests.unit.functions.client import Reply, event_of
from tests.unit.functions.keyed import JOB, Keyed, about

ROLE = "arn:aws:sts::123456789012:assumed-role/shop/session"
# Their answers tell the time, or what a container has done so far.
TELLING_TIME = {"stats", "admin_stats"}


def by_rest_api(event: dict[str, Any], arn: str | None = None) -> dict[str, Any]:
    """The same request in payload format 1.0, as a REST API with a proxy integration sends it."""
    http = event["requestContext"]["http"]
    query = event.get("queryStringParameters")
    headers = {name.title(): value for name, value in event["headers"].items()}
    return {
        "resource": "/{proxy+}",
        "path": event["rawPath"],
        "httpMethod": http["method"],
        "headers": headers,
        "multiValueHeaders": {name: [value] for name, value in headers.items()},
        "queryStringParameters": query,
        "multiValueQueryStringParameters": query
        and {name: value.split(",") for name, value in query.items()},
        "pathParameters": {"proxy": event["rawPath"].strip("/")},
        "stageVariables": None,
        "requestContext": {
            "resourcePath": "/{proxy+}",
            "httpMethod": http["method"],
            "path": f"/jobs{event['rawPath']}",
            "protocol": "HTTP/1.1",
            "stage": "jobs",
            "requestId": "gateway",
            "identity": {"sourceIp": "10.0.0.7", "userArn": arn, "userAgent": "test"},
        },
        "body": event.get("body"),
        "isBase64Encoded": event["isBase64Encoded"],
    }


class Entered(Keyed):
    """An API whose function looks up keys itself: through a function URL, or a REST API."""

    private = False
    arn: str | None = None

    def holding(self, key: str | None) -> Entered:
        """The same API, asked with another key."""
        other = Entered(self.runtime, self.clock, key)
        other.private = self.private
        return other

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        told: dict[str, Any] | None = None,
    ) -> Reply:
        sent = dict(headers or {})
        if self.key is not None:
            sent["authorization"] = f"Bearer {self.key}"
        raw = None if body is None else json.dumps(body)
        event = event_of(method, path, raw, headers=sent, query=query)
        if self.private:
            event = by_rest_api(event, self.arn)
        answer = handler(event, None)
        return Reply(answer["statusCode"], answer["headers"], answer["body"] or "")


@pytest.fixture(params=["function_url", "private_api"])
def entered(
    request: pytest.FixtureRequest, make_runtime: Callable[..., Runtime], clock: ManualClock
) -> Entered:
    """An API with keys, of which the first may do everything."""
    made = Entered(make_runtime(authorizer="keys", entry=request.param), clock)
    made.private = request.param == "private_api"
    made.key = made.make("all", *ALL_SCOPES)
    return made


def test_a_job_from_push_to_ack(entered: Entered) -> None:
    pushed = {"type": "mail", "args": [{"é": 1.0}], "options": {"queue": "mail"}}
    job = entered("POST", "/ojs/v1/jobs", pushed).json["job"]
    assert job["producer"] == "all"
    listed = entered("GET", "/ojs/v1/jobs", query={"queue": "mail", "state": "available"})
    assert [each["id"] for each in listed.json["jobs"]] == [job["id"]]
    fetched = entered("POST", "/ojs/v1/workers/fetch", {"queues": ["mail"], "worker_id": "w"})
    assert fetched.json["jobs"][0]["args"] == [{"é": 1.0}]
    assert "1.0" in fetched.text
    ended = {"job_id": job["id"], "worker_id": "w", "result": {"sent": True}}
    assert entered("POST", "/ojs/v1/workers/ack", ended).status == 200
    assert entered("GET", f"/ojs/v1/jobs/{job['id']}").json["job"]["state"] == "completed"


PAGE = '<script type="module" src="/ojs/admin/assets/main-1.js"></script>'


@pytest.mark.parametrize("path", ["/ojs/admin", "/ojs/admin/", "/ojs/admin/queues/mail"])
def test_the_dashboard_needs_no_key(
    entered: Entered, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.html").write_text(PAGE)
    monkeypatch.setattr("functions.api.handler.dashboard", Dashboard(tmp_path, "keys"))
    reply = entered.holding(None)("GET", path)
    # A REST API hands on no encoded answers, and its addresses begin with the stage.
    page = reply.text if entered.private else base64.b64decode(reply.text).decode()
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page == (PAGE.replace('"/ojs', '"/jobs/ojs') if entered.private else PAGE)
    assert entered.holding(None)("GET", "/ojs/administration").status == 401


def test_the_dashboard_names_no_address_without_its_prefix() -> None:
    """What a page asks for begins with the stage of its own address."""
    named = [
        line.strip()
        for file in (ROOT / "dashboard" / "src").rglob("*.ts*")
        for line in file.read_text().splitlines()
        if "/ojs/" in line and not line.startswith("//")
    ]
    others = [line for line in named if "PREFIX" not in line]
    assert others == ['const below = (path: string) => path.replace("/ojs/v1", "");']


@pytest.mark.exhaustive
@pytest.mark.parametrize("operation", contract.OPERATIONS, ids=lambda each: each.id)
@pytest.mark.parametrize("private", [False, True], ids=["function_url", "private_api"])
def test_each_operation_answers_as_through_an_http_api(
    make_runtime: Callable[..., Runtime], clock: ManualClock, operation: Operation, private: bool
) -> None:
    """Status and shape of the answer to a request for what is not there, or for something new."""
    path, body, query = about(operation, "mine", JOB)
    usual = Keyed(make_runtime(authorizer="keys"), clock)
    usual.key = usual.make("all", *ALL_SCOPES)
    expected = usual(operation.method, path, body, query=query)
    made = Entered(make_runtime(authorizer="keys", entry="function_url"), clock)
    made.private = private
    made.key = made.make("all", *ALL_SCOPES)
    reply = made(operation.method, path, body, query=query)
    assert reply.status == expected.status, (reply.text, expected.text)
    assert reply.headers.keys() == expected.headers.keys()
    if operation.id not in TELLING_TIME and reply.text.startswith("{"):
        assert reply.json.keys() == expected.json.keys()


@pytest.mark.parametrize("key", [None, "nonsense", "ojs_0123456789abcdef_" + "0" * 64])
def test_without_a_valid_key_it_is_a_401(entered: Entered, key: str | None) -> None:
    for path in ("/ojs/v1/jobs", "/ojs/v1/queues", "/ojs/v1/nothing"):
        reply = entered.holding(key)("GET", path)
        assert reply.status == 401, reply.text
        assert reply.error["code"] == "unauthenticated"


def test_what_a_client_says_of_itself_is_not_believed(entered: Entered) -> None:
    """An authorizer's context belongs to an HTTP API; here it could only be invented."""
    event = event_of("GET", "/ojs/v1/queues")
    event["requestContext"]["authorizer"] = {"lambda": {"principal": "all", "scopes": "admin:read"}}
    assert handler(event, None)["statusCode"] == 401


def test_scopes_and_queues_of_a_key_hold(entered: Entered) -> None:
    limited = entered.holding(entered.make("shop", "jobs:write", queues=["mail"]))
    pushed = {"type": "t", "args": [], "options": {"queue": "mail"}}
    assert limited("POST", "/ojs/v1/jobs", pushed).status == 201
    pushed["options"] = {"queue": "other"}
    assert limited("POST", "/ojs/v1/jobs", pushed).status == 403
    assert limited("GET", "/ojs/v1/queues").status == 403


def test_a_key_is_looked_up_once_a_minute_and_refused_after_that(entered: Entered) -> None:
    shop = entered.holding(entered.make("shop", "jobs:write"))
    pushed = {"type": "t", "args": []}
    shop("POST", "/ojs/v1/jobs", pushed)
    calls = entered.runtime.table.meter.calls
    calls.clear()
    shop("POST", "/ojs/v1/jobs", pushed)
    # Its queue and its record, and not the key.
    assert calls == ["GetItem", "PutItem"]
    credential = str(shop.key)
    entered.runtime.access_keys.revoke(ANYBODY, credential.split("_")[1])
    assert shop("POST", "/ojs/v1/jobs", pushed).status == 201
    entered.clock.advance(60_000)
    assert shop("POST", "/ojs/v1/jobs", pushed).status == 401


def test_a_table_in_trouble_is_no_wrong_key(
    entered: Entered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: PrincipalLookup, _header: str | None) -> None:
        raise BackendUnavailable("The table is busy.")

    monkeypatch.setattr(PrincipalLookup, "who", fail)
    reply = entered("GET", "/ojs/v1/queues")
    assert reply.status == 503
    assert reply.error["retryable"] is True


def test_with_iam_the_caller_is_who_signed(
    make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    made = Entered(make_runtime(authorizer="iam", entry="private_api"), clock)
    made.private, made.arn = True, ROLE
    pushed = {"type": "t", "args": []}
    assert made("POST", "/ojs/v1/jobs", pushed).json["job"]["producer"] == ROLE
    made.arn = None
    assert made("POST", "/ojs/v1/jobs", pushed).status == 401


def test_repeated_parameters_are_joined_by_commas() -> None:
    event = by_rest_api(event_of("GET", "/ojs/v1/jobs", query={"state": "available,pending"}))
    assert event["multiValueQueryStringParameters"] == {"state": ["available", "pending"]}
    request = payload.version_2(event)
    assert request["queryStringParameters"] == {"state": "available,pending"}
    assert request["rawQueryString"] == "state=available&state=pending"
    # One that has no lists of values, as some emulators send it.
    del event["multiValueQueryStringParameters"], event["multiValueHeaders"]
    assert payload.version_2(event)["queryStringParameters"] == {"state": "available,pending"}
    assert payload.version_2(event)["headers"]["host"] == "test"


def test_a_request_of_format_2_stays_as_it_is() -> None:
    event = event_of("GET", "/ojs/v1/jobs")
    assert payload.version_2(event) == event
