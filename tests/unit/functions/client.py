"""The three HTTP functions over a table, called with the events API Gateway would send.

Every answer is held against the OpenAPI document: status, headers and body must be described there.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from jsonschema import Draft202012Validator

from functions.admin.handler import handler as admin
from functions.jobs.handler import handler as jobs
from functions.workers.handler import handler as workers
from ojs.api import openapi
from ojs.api import operations as contract
from ojs.clock import ManualClock
from ojs.http import endpoint
from ojs.http.binding.access import Authorizer
from ojs.runtime import Runtime
from ojs.settings import Settings

HANDLERS = {"jobs": jobs, "workers": workers, "admin": admin}
OJS = "application/openjobspec+json"
EVERYWHERE = (
    "OJS-Version", "X-OJS-Version", "X-OJS-Media-Type", "X-Request-Id", "X-Content-Type-Options",
    "Cache-Control",
)  # fmt: skip


class MemoryBlobs:
    """Large payloads in a dict."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def put(self, key: str, data: bytes, *, content_type: str = "") -> None:
        self.held[key] = data

    def get(self, key: str) -> bytes:
        return self.held[key]

    def delete(self, key: str) -> None:
        self.held.pop(key, None)

    def names(self, prefix: str, *, after: str, limit: int) -> list[str]:
        return sorted(key for key in self.held if key.startswith(prefix) and key > after)[:limit]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> Any:
        return self.json["error"]


@cache
def _validator(ref: str) -> Draft202012Validator:
    document = openapi.document("test")
    closed = _closed(document["components"]["schemas"])
    return Draft202012Validator(
        {"$ref": ref, "components": {"schemas": closed}},
        format_checker=Draft202012Validator.FORMAT_CHECKER,
    )


def _closed(part: Any) -> Any:
    """Schemas that refuse keys they do not describe, so that no answer has a secret field."""
    if isinstance(part, list):
        return [_closed(one) for one in part]
    if not isinstance(part, dict):
        return part
    closed = {key: _closed(value) for key, value in part.items()}
    if "properties" in closed and part.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def check_described(method: str, path: str, reply: Reply) -> None:
    """Fail unless the OpenAPI document describes this answer to this request."""
    operation = contract.at(path).get(method)
    if operation is None:
        ref: str | None = "#/components/schemas/ErrorAnswer"
        described: dict[str, Any] = {}
    else:
        document = openapi.document("test")
        described = document["paths"][operation.path][method.lower()]["responses"]
        assert str(reply.status) in described, f"{method} {path} answered {reply.status}"
        described = described[str(reply.status)]
        if "$ref" in described:
            described = document["components"]["responses"][described["$ref"].split("/")[-1]]
        for name, header in described["headers"].items():
            # A reference is to a header that is always there.
            needed = header.get("required", True)
            assert name in reply.headers or not needed, f"{method} {path} must answer with {name}"
        if reply.headers.get("Content-Type") == "text/plain":
            assert described["content"]["text/plain"] == {"schema": {"type": "string"}}
            return
        ref = described.get("content", {}).get(OJS, {}).get("schema", {}).get("$ref")
    if ref is None or method == "HEAD":
        assert not reply.text
        return
    problems = [
        f"{error.json_path}: {error.message}" for error in _validator(ref).iter_errors(reply.json)
    ]
    assert not problems, f"{method} {path} {reply.status}: {problems[:5]}"


@dataclass
class Api:
    """A client that speaks events."""

    runtime: Runtime
    clock: ManualClock
    context: Any = None

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: str | bytes | None = None,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        encoded: bool = False,
    ) -> Reply:
        if body is not None:
            raw = json.dumps(body)
        event = event_of(method, path, raw, headers=headers, query=query, encoded=encoded)
        answer = HANDLERS[endpoint.function_for(path)](event, self.context)
        reply = Reply(answer["statusCode"], answer["headers"], answer["body"] or "")
        for name in EVERYWHERE:
            assert name in reply.headers, f"{method} {path} must answer with {name}"
        if method not in ("OPTIONS", "HEAD"):
            check_described(method, path, reply)
        if reply.status >= 400 and method != "HEAD":
            error = reply.json.get("error")
            if error is not None:
                assert error["request_id"] == reply.headers["X-Request-Id"]
        return reply

    def get(self, path: str, **query: str) -> Reply:
        return self("GET", path, query=query)

    def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return self("POST", path, {} if body is None else body, headers=headers)

    def push(self, queue: str = "default", **more: Any) -> str:
        """Enqueue a job; its id."""
        options = {"queue": queue, **more.pop("options", {})}
        reply = self.post(
            "/ojs/v1/jobs", {"type": "test.echo", "args": [1], "options": options, **more}
        )
        assert reply.status == 201, reply.text
        return str(reply.json["job"]["id"])

    def fetch(self, queue: str = "default", **more: Any) -> list[dict[str, Any]]:
        """Claim jobs."""
        reply = self.post("/ojs/v1/workers/fetch", {"queues": [queue], **more})
        assert reply.status == 200, reply.text
        return list(reply.json["jobs"])

    def active(self, queue: str = "default", **more: Any) -> str:
        """The id of a job that is running."""
        job_id = self.push(queue, **more)
        assert [job["id"] for job in self.fetch(queue, worker_id="w1")] == [job_id]
        return job_id

    def dead(self, queue: str = "default") -> str:
        """The id of a dead letter."""
        job_id = self.active(queue)
        error = {"type": "Boom", "message": "no", "retryable": False}
        reply = self.post("/ojs/v1/workers/nack", {"job_id": job_id, "error": error})
        assert reply.json["state"] == "discarded"
        return job_id


def event_of(
    method: str,
    path: str,
    raw: str | bytes | None = None,
    *,
    headers: dict[str, str] | None = None,
    query: dict[str, str] | None = None,
    encoded: bool = False,
) -> dict[str, Any]:
    """The event of a request; bytes go in base64, `encoded` says that a text is base64 already."""
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {"host": "test", "content-type": OJS, **(headers or {})},
        "requestContext": {
            "http": {"method": method, "path": path, "protocol": "HTTP/1.1"},
            "requestId": "gateway",
            "routeKey": "$default",
            "stage": "$default",
        },
        "isBase64Encoded": encoded,
    }
    if query:
        event["queryStringParameters"] = query
    if isinstance(raw, bytes):
        event |= {"body": base64.b64encode(raw).decode("ascii"), "isBase64Encoded": True}
    elif raw is not None:
        event["body"] = raw
    return event


class _Open:
    """A runtime of which only the settings are looked at."""

    settings = Settings(table="none")
    origin = None


# For applications of a test's own, without a table.
OPEN = Authorizer(cast("Callable[[], Runtime]", _Open))
