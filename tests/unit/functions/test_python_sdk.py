"""The official Python SDK as it is, without a setting: what it sends, and how it reads answers.

It sends its own media type with httpx's User-Agent, and takes an answer for JSON only when the
Content-Type contains `application/json`.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from local.events import event_from_request
from local.http_server import Request
from ojs.http import endpoint
from tests.unit.functions.client import HANDLERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.functions.client import Api

OJS = "application/openjobspec+json"
UNKNOWN = "019539a4-0000-7000-8000-000000000000"
STATES = {
    "scheduled", "available", "pending", "active", "completed", "retryable", "cancelled",
    "discarded",
}  # fmt: skip
FETCH = {"queues": ["default"], "count": 1, "visibility_timeout_ms": 30_000, "worker_id": "w1"}


class SdkError(Exception):
    """What the SDK raises for an error answer."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        self.status = status
        self.code: str = error["code"]
        assert isinstance(error["retryable"], bool)
        assert isinstance(error["details"], dict)
        assert isinstance(error["request_id"], str)


class Sdk:
    """The SDK's transport, over the functions; API Gateway's part is the local server's."""

    def __init__(self, **headers: str) -> None:
        self.headers = {
            "host": "localhost:8080",
            "accept": OJS,
            "accept-encoding": "gzip, deflate",
            "connection": "keep-alive",
            "user-agent": "python-httpx/0.28.1",
            "content-type": OJS,
            "ojs-version": "1.0",
            "x-request-id": "8c2a5f3e-0d55-4d0c-9d4f-0a3f4b0c8a11",
            **headers,
        }

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        raw = b"" if body is None else json.dumps(body).encode()
        target = path if path.startswith("/ojs/") else f"/ojs/v1{path}"
        headers = list(self.headers.items())
        request = Request(method, target, headers, raw, "HTTP/1.1", "127.0.0.1")
        event = event_from_request(request, "$default")
        answer = HANDLERS[endpoint.function_for(event["rawPath"])](event, None)
        content_type = answer["headers"].get("Content-Type", "")
        if answer["statusCode"] >= 400:
            assert content_type == "application/json"
            raise SdkError(answer["statusCode"], json.loads(answer["body"])["error"])
        if answer["statusCode"] == 204:
            return {}
        if "application/json" not in content_type:
            return {"_raw": answer["body"], "_content_type": content_type}
        return json.loads(answer["body"])


def read(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """A job, checked as the SDK checks it."""
    assert job["state"] in STATES
    for name, kind, default in (
        ("id", str, None), ("type", str, None), ("args", list, None), ("queue", str, None),
        ("meta", dict, {}), ("priority", int, 0), ("attempt", int, 0), ("max_attempts", int, 3),
        ("tags", list, []), ("errors", list, []), ("retry", dict, {}), ("unique", dict, {}),
    ):  # fmt: skip
        assert isinstance(job.get(name, default), kind), name
    assert all(isinstance(error, dict) for error in job.get("errors", []))
    for name in ("created_at", "enqueued_at", "started_at", "completed_at", "scheduled_at"):
        if name in job:
            datetime.fromisoformat(job[name])
    return job


def enqueue(sdk: Sdk, **more: Any) -> str:
    data = sdk("POST", "/jobs", {"type": "test.echo", "args": ["hello", "world"], **more})
    return str(read(data["job"])["id"])


def fetch(sdk: Sdk) -> Mapping[str, Any]:
    (job,) = sdk("POST", "/workers/fetch", FETCH).get("jobs", [])
    return read(job)


def dead(sdk: Sdk) -> str:
    enqueue(sdk)
    job_id = str(fetch(sdk)["id"])
    error = {"code": "unknown_job_type", "message": "No handler", "retryable": False}
    assert sdk("POST", "/workers/nack", {"job_id": job_id, "error": error})["state"] == "discarded"
    return job_id


@pytest.fixture
def sdk(api: Api) -> Sdk:
    """The SDK, before an empty table."""
    return Sdk()


def test_health_and_manifest(sdk: Sdk) -> None:
    assert sdk("GET", "/health")["status"] == "ok"
    manifest = sdk("GET", "/ojs/manifest")
    assert manifest["ojs_version"] == "1.0"
    assert manifest["capabilities"]["batch_enqueue"] is True


def test_enqueue_and_get(sdk: Sdk) -> None:
    job_id = enqueue(sdk, options={"queue": "test-integration"})
    job = read(sdk("GET", f"/jobs/{job_id}")["job"])
    assert (job["id"], job["args"]) == (job_id, ["hello", "world"])


def test_enqueue_with_policies(sdk: Sdk) -> None:
    retry = {
        "max_attempts": 5, "initial_interval": "PT2S", "backoff_coefficient": 3.0,
        "max_interval": "PT5M", "jitter": True,
    }  # fmt: skip
    unique = {
        "key": ["type", "queue", "args"], "states": ["available", "active", "scheduled"],
        "period": "PT1H", "on_conflict": "reject",
    }  # fmt: skip
    options = {"retry": retry, "unique": unique, "tags": ["a"], "priority": 5, "timeout_ms": 1_000}
    job = read(sdk("GET", f"/jobs/{enqueue(sdk, options=options)}")["job"])
    assert (job["max_attempts"], job["retry"]["initial_interval"]) == (5, "PT2S")
    with pytest.raises(SdkError) as refused:
        enqueue(sdk, options=options)
    assert (refused.value.status, refused.value.code) == (409, "duplicate")


def test_enqueue_batch(sdk: Sdk) -> None:
    jobs = [{"type": "test.echo", "args": [n], "options": {"queue": "b"}} for n in range(3)]
    answered = [read(job) for job in sdk("POST", "/jobs/batch", {"jobs": jobs})["jobs"]]
    assert [job["args"] for job in answered] == [[0], [1], [2]]


def test_cancel(sdk: Sdk) -> None:
    job_id = enqueue(sdk)
    assert read(sdk("DELETE", f"/jobs/{job_id}")["job"])["state"] == "cancelled"


def test_a_worker_that_succeeds(sdk: Sdk, api: Api) -> None:
    job_id = enqueue(sdk)
    job = fetch(sdk)
    assert (job["id"], job["state"], job["attempt"]) == (job_id, "active", 1)
    beat = {"worker_id": "w1", "active_jobs": [job_id], "visibility_timeout_ms": 30_000}
    api.clock.advance(1_000)
    told = sdk("POST", "/workers/heartbeat", beat)
    assert (told["jobs_extended"], told["state"]) == ([job_id], "running")
    report = {"job_id": job_id, "percentage": 50, "message": "half", "data": {"rows": 1}}
    assert sdk("POST", "/workers/progress", report)["message"] == "half"
    assert sdk("GET", f"/jobs/{job_id}/progress")["data"] == {"rows": 1}
    sdk("POST", "/workers/ack", {"job_id": job_id, "result": {"sum": 3}})
    job = read(sdk("GET", f"/jobs/{job_id}")["job"])
    assert (job["state"], job["result"]) == ("completed", {"sum": 3})
    assert sdk("POST", "/workers/fetch", FETCH)["jobs"] == []


def test_a_worker_whose_handler_raises_without_a_word(sdk: Sdk) -> None:
    enqueue(sdk)
    error = {"code": "handler_error", "message": "", "retryable": True}
    job_id = fetch(sdk)["id"]
    assert sdk("POST", "/workers/nack", {"job_id": job_id, "error": error})["state"] == "retryable"


def test_queues(sdk: Sdk) -> None:
    enqueue(sdk)
    (queue,) = sdk("GET", "/queues")["queues"]
    assert (queue["name"], queue["status"]) == ("default", "active")
    datetime.fromisoformat(queue["created_at"])
    assert sdk("POST", "/queues/default/pause")["status"] == "paused"
    assert sdk("POST", "/workers/fetch", FETCH)["jobs"] == []
    assert sdk("POST", "/queues/default/resume")["status"] == "active"
    stats = sdk("GET", "/queues/default/stats")
    datetime.fromisoformat(stats["computed_at"])
    for name in ("available", "active", "scheduled", "retryable", "discarded"):
        assert isinstance(stats["stats"][name], int)


def test_dead_letters(sdk: Sdk) -> None:
    first, second = dead(sdk), dead(sdk)
    listed = sdk("GET", "/dead-letter?limit=50&offset=0&queue=default")
    assert {read(job)["id"] for job in listed["jobs"]} == {first, second}
    assert listed["pagination"]["total"] == 2
    assert read(sdk("POST", f"/dead-letter/{first}/retry")["job"])["state"] == "available"
    sdk("DELETE", f"/dead-letter/{second}")
    assert sdk("GET", "/dead-letter?limit=50&offset=0")["jobs"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", f"/jobs/{UNKNOWN}", None, 404, "not_found"),
        ("GET", "/jobs/nonsense", None, 400, "invalid_request"),
        ("POST", "/jobs", {"type": "No Type", "args": []}, 400, "invalid_request"),
        ("POST", "/jobs", {"type": "a", "args": [], "retry": {"x": 1}}, 422, "validation_error"),
        ("POST", "/workers/ack", {"job_id": UNKNOWN}, 404, "not_found"),
        ("GET", "/nowhere", None, 404, "not_found"),
        ("PATCH", "/jobs", {}, 405, "method_not_allowed"),
    ],
)
def test_errors_are_read(
    sdk: Sdk, method: str, path: str, body: Any, status: int, code: str
) -> None:
    with pytest.raises(SdkError) as refused:
        sdk(method, path, body)
    assert (refused.value.status, refused.value.code) == (status, code)


def test_a_user_agent_of_ones_own_needs_an_accept_of_ones_own(sdk: Sdk) -> None:
    assert sdk("GET", "/health")["status"] == "ok"
    assert "_raw" in Sdk(**{"user-agent": "shop/1.0"})("GET", "/health")
    named = Sdk(**{"user-agent": "shop/1.0", "accept": "application/json"})
    assert named("GET", "/health")["status"] == "ok"
