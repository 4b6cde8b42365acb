"""Whatever comes in: a 4xx with a code, and the field where there is one; nothing changes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ojs.http.contract import models, openapi
from ojs.http.contract import operations as contract
from ojs.http.contract.operations import Operation
from tests.unit.functions.client import Api

if TYPE_CHECKING:
    from tests.unit.functions.client import Reply

UNKNOWN = "019539a4-0000-7000-8000-000000000000"
NAMES = {
    "job": UNKNOWN, "worker": "w1", "queue": "default", "rate limit": "api", "operation": UNKNOWN,
    "pool": "general", "key": "0123456789abcdef", None: "",
}  # fmt: skip
WITH_BODY = [operation for operation in contract.OPERATIONS if operation.request is not None]
BODIES = pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.id)


def path_of(operation: Operation) -> str:
    return operation.path.replace(f"{{{operation.path_parameter}}}", NAMES[operation.subject])


def send(api: Api, operation: Operation, raw: str | bytes, **more: Any) -> Reply:
    return api(operation.method, path_of(operation), raw=raw, **more)


def refused(reply: Reply, code: str) -> Any:
    assert reply.status in (400, 413, 422)
    assert reply.error["code"] == code
    assert reply.error["retryable"] is False
    return reply.error["details"]


# --- the body as a whole ----------------------------------------------------------------------

DEEP = "[" * 5_000 + "]" * 5_000
UNREADABLE: dict[str, str | bytes] = {
    "malformed": '{"type": ',
    "trailing": "{} {}",
    "comma": '{"a":1,}',
    "bare": "type=a",
    "array": "[]",
    "string": '"text"',
    "number": "12",
    "null": "null",
    "true": "true",
    "nan": '{"a":NaN}',
    "infinity": '{"a":-Infinity}',
    "beyond a double": '{"a":1e400}',
    "below a double": '{"a":1e-4000}',
    "exponent": '{"a":1e999999999999}',
    "too many digits": '{"a":' + "1" * 5_000 + "}",
    "deep": '{"a":' + DEEP + "}",
    "deep object": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "unclosed": "[" * 5_000,
    "surrogate": '{"a":"\\ud800"}',
    "surrogate key": '{"\\udfff":1}',
    "raw surrogate": '{"a":"\ud800"}',
    "control": '{"a":"\x00"}',
    "bytes": b'{"a":"\xff\xfe"}',
    "utf-16": '{"a":1}'.encode("utf-16"),
    "overlong": b'{"a":"\xc0\xaf"}',
    "single quotes": "{'a':1}",
    "comment": '{"a":1} // no',
    "blank": "  \n ",
}


@BODIES
@pytest.mark.parametrize("raw", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_unreadable_body(api: Api, operation: Operation, raw: str | bytes) -> None:
    refused(send(api, operation, raw), "invalid_payload")


@BODIES
def test_an_empty_body(api: Api, operation: Operation) -> None:
    reply = send(api, operation, "")
    if operation.body_required:
        refused(reply, "invalid_payload")
    elif operation.method == "DELETE":
        assert refused(reply, "invalid_request")["field"] in ("confirm", "strategy")
    else:
        # What becomes of a queue's jobs may stand in the query, but must be said.
        assert reply.status in ((400,) if operation.id == "delete_queue" else (200, 404))


@BODIES
def test_base64_that_is_broken(api: Api, operation: Operation) -> None:
    for raw in ("%%%", "YQ", "e30=e30=", "\u00fc"):
        refused(send(api, operation, raw, encoded=True), "invalid_payload")


@BODIES
def test_another_content_type(api: Api, operation: Operation) -> None:
    for given_type in ("text/plain", "application/xml", "multipart/form-data", "json", ";", "*/*"):
        reply = send(api, operation, "{}", headers={"content-type": given_type})
        assert refused(reply, "invalid_request")["field"] == "Content-Type"


@pytest.mark.parametrize(
    "given_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/OpenJobSpec+JSON ; charset=UTF-8",
        "",
    ],
)
def test_content_types_that_are_read(api: Api, given_type: str) -> None:
    reply = api(
        "POST", "/ojs/v1/jobs", {"type": "a", "args": []}, headers={"content-type": given_type}
    )
    assert reply.status == 201


# --- where no body is taken -------------------------------------------------------------------

WITHOUT_BODY = [operation for operation in contract.OPERATIONS if operation.request is None]
UNREAD: dict[str, str | bytes] = {
    **{kind: raw for kind, raw in UNREADABLE.items() if kind != "blank"},
    "object": '{"filter": {"type": "a"}}',
    "empty key": '{"": null}',
    "nested": "{{}}",
    "two objects": "{}{}",
    "half an object": "{",
    "other space": "{}\u00a0",
    "bytes of an object": b'{"confirm": true}',
    "huge": "x" * 1_000_000,
    "huge object": '{"a": "' + "x" * 1_000_000 + '"}',
    "huge space": " " * 1_000_000 + "x",
}
NOTHING = {
    "none": None, "empty": "", "no bytes": b"", "blank": " \n\t\r ", "object": "{}",
    "wide object": " {\r\n } ", "bytes": b"{}", "huge": "{" + " " * 1_000_000 + "}",
}  # fmt: skip
NO_BODY = pytest.mark.parametrize("operation", WITHOUT_BODY, ids=lambda operation: operation.id)


def dead_and_waiting(api: Api) -> tuple[str, str]:
    """Ids of a job in dead letter, which a purge by age would delete, and of one that waits."""
    found = api.dead(), api.push("other")
    api.clock.advance(3_600_000)
    return found


def aimed(operation: Operation, dead: str, waiting: str) -> tuple[str, dict[str, str]]:
    """Path and query of a request that would do something to one of these jobs, if it can."""
    job_id = dead if "dead_letter" in operation.id else waiting
    query = {"older_than": "PT1M"} if "purge_old" in operation.id else {}
    path = operation.path.replace("{id}", job_id) if operation.subject == "job" else None
    return path or path_of(operation), query


@NO_BODY
def test_a_body_that_is_not_read_is_refused(api: Api, operation: Operation) -> None:
    dead, waiting = dead_and_waiting(api)
    path, query = aimed(operation, dead, waiting)
    for kind, raw in UNREAD.items():
        reply = api(operation.method, path, raw=raw, query=query)
        details = refused(reply, "invalid_request")
        assert (reply.status, details["field"]) == (400, "body"), kind
        assert "takes no body" in details["reason"]
    for broken in ("%%%", "YQ", "e30=e30=", "\u00fc"):
        reply = api(operation.method, path, raw=broken, query=query, encoded=True)
        assert refused(reply, "invalid_request")["field"] == "body"
    if operation.method == "GET":
        assert api("HEAD", path, raw='{"a": 1}', query=query).status == 400
    assert api.get(f"/ojs/v1/dead-letter/{dead}").status == 200
    assert api.get(f"/ojs/v1/jobs/{waiting}").json["state"] == "available"
    assert api.get("/ojs/v1/dead-letter/operations").json["operations"] == []


@NO_BODY
@pytest.mark.parametrize("raw", NOTHING.values(), ids=NOTHING.keys())
def test_a_body_that_says_nothing_is_taken(api: Api, operation: Operation, raw: Any) -> None:
    path, query = aimed(operation, *dead_and_waiting(api))
    assert api(operation.method, path, raw=raw, query=query).status in (200, 202, 204, 404)


@pytest.mark.parametrize(
    "operation",
    [operation for operation in WITH_BODY if operation.request is models.NoOptions],
    ids=lambda operation: operation.id,
)
def test_an_option_where_there_are_none_is_refused(api: Api, operation: Operation) -> None:
    waiting = api.push(pending=True)
    path = operation.path.replace("{id}", waiting) if operation.subject == "job" else None
    path = path or path_of(operation)
    bodies: tuple[dict[str, Any], ...] = (
        {"reason": "maintenance"}, {"force": None}, {"": {}}, {"a": "x" * 1_000_000},
    )  # fmt: skip
    for body in bodies:
        reply = api(operation.method, path, body)
        details = refused(reply, "invalid_request")
        assert (reply.status, details["field"]) == (400, next(iter(body)) or "body")
        assert len(reply.text) < 5_000
    refused(api(operation.method, path, raw="null"), "invalid_payload")
    assert api.get(f"/ojs/v1/jobs/{waiting}").json["state"] == "pending"
    assert api.get("/ojs/v1/queues/default").json["paused"] is False
    assert api(operation.method, path, {}).status in (200, 404)


def test_bodies_that_arrive_in_base64(api: Api) -> None:
    reply = api("POST", "/ojs/v1/jobs", raw='{"type":"a","args":["ü€😀"]}'.encode())
    assert reply.status == 201
    assert reply.json["job"]["args"] == ["ü€😀"]


def test_of_a_key_given_twice_the_last_counts(api: Api) -> None:
    reply = api("POST", "/ojs/v1/jobs", raw='{"type":"X","args":1,"type":"a","args":[2]}')
    assert (reply.status, reply.json["job"]["args"]) == (201, [2])


# --- field by field ---------------------------------------------------------------------------

LONG = "x" * 1_048_576
WRONG: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "negative": -1,
    "fraction": 1.5,
    "whole fraction": 1.0,
    "huge": 10**400,
    "large": 2**63,
    "empty string": "",
    "string": "No Such: Thing|",
    "control": "a\x00b",
    "long": "x" * 5_000,
    "array": [],
    "array of nulls": [None],
    "array of arrays": [[[]]],
    "object": {},
    "object of nulls": {"a": None},
}


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a JSON value, but for what belongs to the client alone."""
    if path:
        yield path
    if path and path[-1] in ("args", "meta", "data", "details", "result"):
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def put(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    changed = copy.deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return changed


def named(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in path).lstrip(".")


EVERY_OPTION = {
    **openapi.EXAMPLES["enqueue_job"],
    "id": UNKNOWN,
    "specversion": "1.0",
    "schema": "urn:ojs:schema:email.send:v1",
    "options": {
        "queue": "email",
        "priority": 1,
        "timeout": 5,
        "timeout_ms": 5_000,
        "delay_until": "2020-01-01T00:00:00Z",
        "scheduled_at": "+PT1S",
        "expires_at": "2099-01-01T00:00:00Z",
        "visibility_timeout_ms": 1_000,
        "pending": False,
        "tags": ["a"],
        "max_attempts": 3,
        "metadata": {"a": 1},
        "retry": {
            "max_attempts": 5,
            "initial_interval": "PT1S",
            "backoff_coefficient": 2.0,
            "max_interval": "PT5M",
            "jitter": True,
            "backoff_strategy": "linear",
            "non_retryable_errors": ["Auth.*"],
            "on_exhaustion": "discard",
        },
        "unique": {
            "keys": ["type", "args"],
            "period": "PT1H",
            "states": ["available"],
            "on_conflict": "reject",
        },
    },
}
EVERY_FIELD = {
    "max_size": 10,
    "max_size_bytes": 10_000,
    "overflow_policy": "block",
    "warning_threshold": 0.5,
    "concurrency": 3,
    "rate_limit": {"limit": 5, "period": "PT1M"},
    "visibility_timeout": 60,
    "default_timeout": 60,
    "default_retry": EVERY_OPTION["options"]["retry"],
    "retention": {"completed": "P1D", "discarded": "P2D", "cancelled": "PT1H"},
    "allowed_job_types": ["payment.*", "test.echo"],
    "producers": ["billing", "*"],
    "lanes": 2,
    "dead_letter": {
        "retention": {"max_age": "P365D", "max_count": 50_000},
        "pruning_policy": "archive",
    },
}
EXAMPLES = {
    **openapi.EXAMPLES,
    "create_queue": {"name": "payments", "config": EVERY_FIELD},
    "configure_queue": {
        **EVERY_FIELD,
        "max_depth": 10,
        "strategy": "block",
        "backpressure": openapi.EXAMPLES["admin_configure_queue"]["backpressure"],
    },
    "set_queue_policy": EVERY_FIELD,
    "enqueue_job": EVERY_OPTION,
    "enqueue_batch": {"jobs": [{"type": "a", "args": []}, EVERY_OPTION]},
    "fetch_jobs": {
        **openapi.EXAMPLES["fetch_jobs"],
        "visibility_timeout_ms": 1_000,
        "strategy": "strict",
    },
    "heartbeat": {
        **openapi.EXAMPLES["register_worker"],
        **openapi.EXAMPLES["heartbeat"],
        "active_job_ids": [UNKNOWN],
        "visibility_timeout_ms": 1_000,
        "started_at": "2026-01-01T00:00:00Z",
        "version": "1",
    },
    "ack_job": {**openapi.EXAMPLES["ack_job"], "attempt": 1, "lease_token": "AAAAAAAA"},
    "nack_job": {
        **openapi.EXAMPLES["nack_job"],
        "attempt": 1,
        "lease_token": "AAAAAAAA",
        "requeue": False,
    },
}


@BODIES
def test_every_field_with_every_wrong_value(api: Api, operation: Operation) -> None:
    example = EXAMPLES[operation.id]
    for path in places(example):
        for kind, wrong in WRONG.items():
            reply = send(api, operation, json.dumps(put(example, path, wrong)))
            assert reply.status < 500, f"{operation.id} {named(path)} {kind}: {reply.text[:300]}"
            if reply.status in (400, 422):
                details = reply.error["details"]
                place, told = named(path), details["field"]
                parent = place.rpartition(".")[0] or place
                assert told.startswith(parent) or place.startswith(told), (place, kind, told)
                assert len(reply.text) < 20_000


# Operation, place, wrong value → field. What the general test cannot know: that it is refused.
REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("enqueue_job", "type", "Email.Send", 400, "type"),
    ("enqueue_job", "type", LONG, 400, "type"),
    ("enqueue_job", "type", None, 400, "type"),
    ("enqueue_job", "args", {}, 400, "args"),
    ("enqueue_job", "args", None, 400, "args"),
    ("enqueue_job", "id", UNKNOWN.upper(), 400, "id"),
    ("enqueue_job", "id", "0" * 36, 400, "id"),
    ("enqueue_job", "id", "019539a4-0000-4000-8000-000000000000", 400, "id"),
    ("enqueue_job", "meta", [], 400, "meta"),
    ("enqueue_job", "meta", {"a": "x" * 70_000}, 413, "meta"),
    ("enqueue_job", "args", [LONG], 413, "args"),
    ("enqueue_job", "specversion", "2.0", 400, "specversion"),
    ("enqueue_job", "schema", "no uri", 400, "schema"),
    ("enqueue_job", "options", [], 400, "options"),
    ("enqueue_job", "options.queue", "_default", 400, "options.queue"),
    ("enqueue_job", "options.queue", "a|b", 400, "options.queue"),
    ("enqueue_job", "options.queue", LONG, 400, "options.queue"),
    ("enqueue_job", "options.priority", 101, 400, "options.priority"),
    ("enqueue_job", "options.priority", 10**400, 400, "options.priority"),
    ("enqueue_job", "options.priority", 1.0, 400, "options.priority"),
    ("enqueue_job", "options.priority", "1", 400, "options.priority"),
    ("enqueue_job", "options.priority", True, 400, "options.priority"),
    ("enqueue_job", "options.timeout_ms", 0, 400, "options.timeout_ms"),
    ("enqueue_job", "options.expires_at", "tomorrow", 400, "options.expires_at"),
    ("enqueue_job", "options.delay_until", "2026-13-01T00:00:00Z", 400, "options.delay_until"),
    ("enqueue_job", "options.retry.max_attempts", -1, 422, "options.retry.max_attempts"),
    ("enqueue_job", "options.retry.max_attempts", 10**400, 422, "options.retry.max_attempts"),
    (
        "enqueue_job", "options.retry.backoff_coefficient", 0.5, 422,
        "options.retry.backoff_coefficient",
    ),
    ("enqueue_job", "options.retry.nonsense", 1, 422, "options.retry.nonsense"),
    ("enqueue_job", "options.unique.keys", ["colour"], 422, "options.unique.keys[0]"),
    ("enqueue_job", "options.rate_limit", {}, 422, "options.rate_limit"),
    ("enqueue_job", "options.rate_limit", 5, 422, "options.rate_limit"),
    ("enqueue_job", "options.rate_limit", {"key": "a|b"}, 422, "options.rate_limit.key"),
    ("enqueue_job", "options.rate_limit", {"key": LONG}, 422, "options.rate_limit.key"),
    (
        "enqueue_job", "options.rate_limit", {"key": "a", "concurrency": 1_001}, 422,
        "options.rate_limit.concurrency",
    ),
    (
        "enqueue_job", "options.rate_limit", {"rate": {"limit": 1, "period": "P1Y"}}, 422,
        "options.rate_limit.rate.period",
    ),
    ("enqueue_job", "options.rate_limit", {"rate": 1}, 422, "options.rate_limit"),
    ("put_rate_limit", "concurrency", -1, 400, "concurrency"),
    ("put_rate_limit", "concurrency", 1.5, 400, "concurrency"),
    ("put_rate_limit", "expires_at", "soon", 400, "expires_at"),
    ("put_rate_limit_override", "rate.limit", 0, 400, "rate.limit"),
    ("put_rate_limit_override", "nonsense", 1, 400, "nonsense"),
    ("set_queue_limits", "concurrency", 0, 400, "concurrency"),
    ("set_queue_limits", "concurrency", 1_000_001, 400, "concurrency"),
    ("set_queue_limits", "rate", 5, 400, "rate"),
    ("set_queue_limits", "rate.limit", 0, 400, "rate.limit"),
    ("set_queue_limits", "rate.period", 5, 400, "rate.period"),
    ("set_queue_limits", "limit", 5, 400, "period"),
    ("set_queue_limits", "rate_limit", {"limit": 1, "period": "PT1S"}, 400, "rate_limit"),
    ("set_queue_limits", "throttle", {"limit": 1, "period": "PT1S"}, 422, "throttle"),
    ("put_pool", "queues", None, 400, "queues"),
    ("put_pool", "queues", [], 400, "queues"),
    ("put_pool", "queues", "default", 400, "queues"),
    ("put_pool", "queues", ["default", "No"], 400, "queues[1]"),
    ("put_pool", "queues", ["default", 5], 400, "queues[1]"),
    ("put_pool", "queues", ["default", "default"], 400, "queues[1]"),
    ("put_pool", "queues", [f"q{n}" for n in range(49)], 400, "queues"),
    ("put_pool", "queues", {"default": {"weight": 0}}, 400, "queues.default.weight"),
    ("put_pool", "queues", {"default": 1}, 400, "queues.default"),
    ("put_pool", "concurrency", 0, 400, "concurrency"),
    ("put_pool", "concurrency", -1, 400, "concurrency"),
    ("put_pool", "concurrency", 2.5, 400, "concurrency"),
    ("put_pool", "concurrency", 10.0, 400, "concurrency"),
    ("put_pool", "concurrency", True, 400, "concurrency"),
    ("put_pool", "concurrency", "10", 400, "concurrency"),
    ("put_pool", "concurrency", 1_000_001, 400, "concurrency"),
    ("put_pool", "strategy", "random", 400, "strategy"),
    ("put_pool", "strategy", ["strict"], 400, "strategy"),
    ("put_pool", "weights", [5, 3, 1], 400, "weights"),
    ("put_pool", "weights.default", 0, 400, "weights.default"),
    ("put_pool", "weights.default", -3, 400, "weights.default"),
    ("put_pool", "weights.default", 0.5, 400, "weights.default"),
    ("put_pool", "weights.default", 3.0, 400, "weights.default"),
    ("put_pool", "weights.default", "3", 400, "weights.default"),
    ("put_pool", "weights.default", True, 400, "weights.default"),
    ("put_pool", "weights.default", 1_001, 400, "weights.default"),
    ("put_pool", "isolated", "yes", 400, "isolated"),
    ("put_pool", "starvation_prevention", True, 400, "starvation_prevention"),
    (
        "put_pool", "starvation_prevention.enabled", 1, 400, "starvation_prevention.enabled",
    ),
    (
        "put_pool", "starvation_prevention.rotation_interval", "30s", 400,
        "starvation_prevention.rotation_interval",
    ),
    (
        "put_pool", "starvation_prevention.min_dispatch_ratio", 1.5, 400,
        "starvation_prevention.min_dispatch_ratio",
    ),
    (
        "put_pool", "starvation_prevention.min_dispatch_ratio", -0.1, 400,
        "starvation_prevention.min_dispatch_ratio",
    ),
    ("enqueue_batch", "jobs", None, 400, "jobs"),
    ("enqueue_batch", "jobs", [], 400, "jobs"),
    ("enqueue_batch", "jobs", {}, 400, "jobs"),
    ("enqueue_batch", "jobs", [{}] * 1_001, 400, "jobs"),
    ("fetch_jobs", "queues", None, 400, "queues"),
    ("fetch_jobs", "queues", [], 400, "queues"),
    ("fetch_jobs", "queues", "default", 400, "queues"),
    ("fetch_jobs", "queues", ["a"] * 51, 400, "queues"),
    ("fetch_jobs", "queues", ["a", "B"], 400, "queues[1]"),
    ("fetch_jobs", "queues", ["a", None], 400, "queues[1]"),
    ("fetch_jobs", "count", 0, 400, "count"),
    ("fetch_jobs", "count", 101, 400, "count"),
    ("fetch_jobs", "count", 5.0, 400, "count"),
    ("fetch_jobs", "count", True, 400, "count"),
    ("fetch_jobs", "count", "5", 400, "count"),
    ("fetch_jobs", "count", 10**400, 400, "count"),
    ("fetch_jobs", "worker_id", "", 400, "worker_id"),
    ("fetch_jobs", "worker_id", "a|b", 400, "worker_id"),
    ("fetch_jobs", "worker_id", "a\nb", 400, "worker_id"),
    ("fetch_jobs", "worker_id", "ü" * 128, 400, "worker_id"),
    ("fetch_jobs", "worker_id", LONG, 400, "worker_id"),
    ("fetch_jobs", "worker_id", 7, 400, "worker_id"),
    ("fetch_jobs", "visibility_timeout_ms", 0, 400, "visibility_timeout_ms"),
    ("fetch_jobs", "visibility_timeout_ms", 43_200_001, 400, "visibility_timeout_ms"),
    ("fetch_jobs", "visibility_timeout_ms", 10**400, 400, "visibility_timeout_ms"),
    ("fetch_jobs", "strategy", "random", 400, "strategy"),
    ("fetch_jobs", "strategy", ["strict"], 400, "strategy"),
    ("fetch_jobs", "weights", {"email": 0}, 400, "weights.email"),
    ("fetch_jobs", "weights", {"email": -1}, 400, "weights.email"),
    ("fetch_jobs", "weights", {"email": 1.5}, 400, "weights.email"),
    ("fetch_jobs", "weights", {"email": True}, 400, "weights.email"),
    ("fetch_jobs", "weights", {"email": "1"}, 400, "weights.email"),
    ("fetch_jobs", "weights", {"email": 1_001}, 400, "weights.email"),
    ("fetch_jobs", "weights", [1], 400, "weights"),
    ("fetch_jobs", "weights", {"other": 1}, 400, "weights.other"),
    ("fetch_jobs", "pool", "", 400, "pool"),
    ("fetch_jobs", "pool", "a b", 400, "pool"),
    ("fetch_jobs", "pool", "a|b", 400, "pool"),
    ("fetch_jobs", "pool", ["a", "b"], 400, "pool"),
    ("fetch_jobs", "pool", "x" * 65, 400, "pool"),
    ("register_worker", "pool", ["a", "b"], 400, "pool"),
    ("register_worker", "strategy", "fast", 400, "strategy"),
    ("register_worker", "strategy", "weighted", 400, "weights.email"),
    ("register_worker", "weights", {"other": 1}, 400, "weights.other"),
    ("heartbeat", "pool", 5, 400, "pool"),
    ("ack_job", "job_id", None, 400, "job_id"),
    ("ack_job", "job_id", UNKNOWN.upper(), 400, "job_id"),
    ("ack_job", "job_id", "job_1", 400, "job_id"),
    ("ack_job", "attempt", 0, 400, "attempt"),
    ("ack_job", "attempt", 10**400, 400, "attempt"),
    ("ack_job", "lease_token", "", 400, "lease_token"),
    ("nack_job", "error", None, 400, "error"),
    ("nack_job", "error", "boom", 400, "error"),
    ("nack_job", "error.message", 5, 400, "error.message"),
    ("nack_job", "error.retryable", "no", 400, "error.retryable"),
    ("nack_job", "error.backtrace", [1], 400, "error.backtrace"),
    ("nack_job", "error.details", [], 400, "error.details"),
    ("nack_job", "error.rate_limit_until", "soon", 400, "error.rate_limit_until"),
    ("nack_job", "requeue", "yes", 400, "requeue"),
    ("heartbeat", "worker_id", None, 400, "worker_id"),
    ("heartbeat", "state", "bananas", 400, "state"),
    ("heartbeat", "active_jobs", "1", 400, "active_jobs"),
    ("heartbeat", "active_jobs", -1, 400, "active_jobs"),
    ("heartbeat", "active_jobs", True, 400, "active_jobs"),
    ("heartbeat", "active_jobs", [1], 400, "active_jobs[0]"),
    ("heartbeat", "active_jobs", 10**400, 400, "active_jobs"),
    ("heartbeat", "pid", -1, 400, "pid"),
    ("heartbeat", "labels", [1], 400, "labels"),
    ("heartbeat", "labels", ["x"] * 101, 400, "labels"),
    ("heartbeat", "labels", {"x" * 300: "a"}, 400, "labels"),
    ("heartbeat", "labels", [f"{n:0>250}" for n in range(50)], 413, "worker"),
    ("register_worker", "labels", {str(n): "x" * 250 for n in range(50)}, 413, "worker"),
    ("beat", "labels", ["x" * 250] * 50, 413, "worker"),
    ("beat", "state", None, 400, "state"),
    ("beat", "state", "asleep", 400, "state"),
    ("report_worker_progress", "percentage", "47%", 400, "percentage"),
    ("report_worker_progress", "percentage", 10**400, 400, "percentage"),
    ("report_progress", "progress", True, 400, "progress"),
    ("report_progress", "progress", 10**400, 400, "progress"),
    ("report_progress", "data", [1], 400, "data"),
    ("report_progress", "data", {"a": "x" * 5_000}, 413, "data"),
    ("report_progress", "message", 5, 400, "message"),
    ("direct_worker", "directive", "stop", 400, "directive"),
    ("direct_worker", "directive", None, 400, "directive"),
    ("retry_dead_letter", "override", [], 400, "override"),
    ("retry_dead_letter", "override", "queue", 400, "override"),
    ("retry_dead_letter", "override.priority", 1, 400, "override.priority"),
    ("retry_dead_letter", "override.unique", {}, 400, "override.unique"),
    ("retry_dead_letter", "override.max_attempts", 1, 400, "override.max_attempts"),
    ("retry_dead_letter", "override.queue", "_default", 400, "override.queue"),
    ("retry_dead_letter", "override.queue", 5, 400, "override.queue"),
    ("retry_dead_letter", "override.args", {}, 400, "override.args"),
    ("retry_dead_letter", "override.args", "[]", 400, "override.args"),
    ("retry_dead_letter", "override.meta", [], 400, "override.meta"),
    ("retry_dead_letter", "override.meta", 5, 400, "override.meta"),
    ("retry_dead_letter", "override.retry", 3, 422, "override.retry"),
    ("retry_dead_letter", "override.retry.max_attempts", -1, 422, "override.retry.max_attempts"),
    ("retry_dead_letter", "override.retry.tries", 3, 422, "override.retry.tries"),
    *(
        (operation_id, *row)
        for operation_id in ("retry_dead_letters", "purge_dead_letters")
        for row in (
            ("confirm", False, 400, "confirm"),
            ("confirm", "true", 400, "confirm"),
            ("confirm", 1, 400, "confirm"),
            ("filter", [], 400, "filter"),
            ("filter", "billing", 400, "filter"),
            ("filter.queue", "No", 400, "filter.queue"),
            ("filter.queue", ["billing"], 400, "filter.queue"),
            ("filter.type", "No Such", 400, "filter.type"),
            ("filter.error_type", "", 400, "filter.error_type"),
            ("filter.error_type", "x" * 256, 400, "filter.error_type"),
            ("filter.since", "yesterday", 400, "filter.since"),
            ("filter.since", "+PT1H", 400, "filter.since"),
            ("filter.since", "2999-01-01T00:00:00Z", 400, "filter.since"),
            ("filter.until", 5, 400, "filter.until"),
            ("filter.before", "2026-13-01T00:00:00Z", 400, "filter.before"),
            ("filter.older_than", "90 days", 400, "filter.older_than"),
            ("filter.args", "$..a", 400, "filter.args"),
            ("filter.args", {"a": 1}, 400, "filter.args"),
            ("filter.state", "discarded", 400, "filter.state"),
            ("filter.queue", None, 400, "filter.queue"),
            ("filter.queue", "", 400, "filter.queue"),
            ("filter", {}, 400, "filter"),
            ("filter", None, 400, "filter"),
            ("all", True, 400, "all"),
            ("all", False, 400, "all"),
            ("all", None, 400, "all"),
            ("all", "true", 400, "all"),
            ("filters", {}, 400, "filters"),
            ("job_ids", [], 400, "job_ids"),
        )
    ),
    ("retry_dead_letters", "confirm", None, 400, "confirm"),
    ("admin_purge_dead_letters", "queue", "No", 400, "queue"),
    ("admin_purge_dead_letters", "older_than", "90 days", 400, "older_than"),
    ("admin_purge_dead_letters", "filter", {"queue": "a"}, 400, "filter"),
    ("create_queue", "name", None, 400, "name"),
    ("create_queue", "name", 5, 400, "name"),
    ("create_queue", "name", "", 400, "name"),
    ("create_queue", "name", "_default", 400, "name"),
    ("create_queue", "name", "Payments", 400, "name"),
    ("create_queue", "name", "a|b", 400, "name"),
    ("create_queue", "name", LONG, 400, "name"),
    ("create_queue", "config", [], 400, "config"),
    ("create_queue", "config", "max_size=5", 400, "config"),
    ("create_queue", "max_size", 5, 400, "max_size"),
    ("create_queue", "dead_letter_queue", "dlq", 400, "dead_letter_queue"),
    ("create_queue", "config.max_size", -1, 400, "config.max_size"),
    ("create_queue", "config.dead_letter_queue", "Dlq", 400, "config.dead_letter_queue"),
    ("create_queue", "config.dead_letter", [], 400, "config.dead_letter"),
    ("create_queue", "config.replay_rules", {}, 400, "config.replay_rules"),
    ("create_queue", "config.replay_rules", [{}], 400, "config.replay_rules[0].name"),
    *(
        row
        for operation_id in ("configure_queue", "set_queue_policy")
        for row in (
            (operation_id, "max_size", -1, 400, "max_size"),
            (operation_id, "max_size", 1.5, 400, "max_size"),
            (operation_id, "max_size", 10.0, 400, "max_size"),
            (operation_id, "max_size", "10", 400, "max_size"),
            (operation_id, "max_size", True, 400, "max_size"),
            (operation_id, "max_size", 10**400, 400, "max_size"),
            (operation_id, "max_depth", -1, 400, "max_depth"),
            (operation_id, "max_size_bytes", 0.5, 400, "max_size_bytes"),
            (operation_id, "max_size_bytes", 2**53, 400, "max_size_bytes"),
            (operation_id, "overflow_policy", "drop_newest", 400, "overflow_policy"),
            (operation_id, "overflow_policy", ["reject"], 400, "overflow_policy"),
            (operation_id, "strategy", "wait", 400, "strategy"),
            (operation_id, "warning_threshold", 1.01, 400, "warning_threshold"),
            (operation_id, "warning_threshold", -0.1, 400, "warning_threshold"),
            (operation_id, "warning_threshold", "80%", 400, "warning_threshold"),
            (operation_id, "concurrency", 0, 400, "concurrency"),
            (operation_id, "concurrency", 2.5, 400, "concurrency"),
            (operation_id, "rate_limit", 5, 400, "rate_limit"),
            (operation_id, "rate_limit", {"limit": 5}, 400, "rate_limit.period"),
            (operation_id, "rate_limit", {"period": "PT1S"}, 400, "rate_limit.limit"),
            (operation_id, "rate_limit.limit", 0, 400, "rate_limit.limit"),
            (operation_id, "rate_limit.period", "1m", 400, "rate_limit.period"),
            (operation_id, "visibility_timeout", 0, 400, "visibility_timeout"),
            (operation_id, "visibility_timeout", 43_201, 400, "visibility_timeout"),
            (operation_id, "default_timeout", "PT1M", 400, "default_timeout"),
            (operation_id, "default_retry", 3, 400, "default_retry"),
            (operation_id, "default_retry.max_attempts", -1, 400, "default_retry.max_attempts"),
            (operation_id, "default_retry.tries", 3, 400, "default_retry.tries"),
            (
                operation_id, "default_retry.initial_interval", "soon", 400,
                "default_retry.initial_interval",
            ),
            (operation_id, "retention", "P7D", 400, "retention"),
            (operation_id, "retention.completed", "7 days", 400, "retention.completed"),
            (operation_id, "retention.completed", "P1Y", 400, "retention.completed"),
            (operation_id, "retention.completed", 7, 400, "retention.completed"),
            (operation_id, "retention.discarded", "P", 400, "retention.discarded"),
            (operation_id, "allowed_job_types", [], 400, "allowed_job_types"),
            (operation_id, "allowed_job_types", ["a"] * 101, 400, "allowed_job_types"),
            (operation_id, "allowed_job_types", ["a", "B"], 400, "allowed_job_types[1]"),
            (operation_id, "allowed_job_types", "payment.*", 400, "allowed_job_types"),
            (operation_id, "producers", [], 400, "producers"),
            (operation_id, "producers", ["a\nb"], 400, "producers[0]"),
            (operation_id, "producers", ["x" * 256], 400, "producers[0]"),
            (operation_id, "lanes", 0, 400, "lanes"),
            (operation_id, "lanes", 65, 400, "lanes"),
            (operation_id, "dead_letter_queue", "_default", 400, "dead_letter_queue"),
            (operation_id, "dead_letter_queue", ["dlq"], 400, "dead_letter_queue"),
            (operation_id, "dead_letter_queue", LONG, 400, "dead_letter_queue"),
            (operation_id, "dead_letter_max_size", -1, 400, "dead_letter_max_size"),
            (operation_id, "dead_letter_max_size", 0.5, 400, "dead_letter_max_size"),
            (operation_id, "dead_letter_ttl", "P1Y", 400, "dead_letter_ttl"),
            (operation_id, "dead_letter_ttl", "30 days", 400, "dead_letter_ttl"),
            (operation_id, "dead_letter_ttl", 30, 400, "dead_letter_ttl"),
            (operation_id, "dead_letter", "P1D", 400, "dead_letter"),
            (
                operation_id,
                "dead_letter.retention.max_age",
                "180 days",
                400,
                "dead_letter.retention.max_age",
            ),
            (
                operation_id,
                "dead_letter.retention.max_count",
                0,
                400,
                "dead_letter.retention.max_count",
            ),
            (
                operation_id,
                "dead_letter.pruning_policy",
                "keep",
                400,
                "dead_letter.pruning_policy",
            ),
            (operation_id, "replay_rules", {}, 400, "replay_rules"),
            (operation_id, "replay_rules", ["a"], 400, "replay_rules[0]"),
        )
    ),
    ("configure_queue", "backpressure", 5, 400, "backpressure"),
    ("configure_queue", "backpressure.max_depth", -1, 400, "backpressure.max_depth"),
    ("configure_queue", "backpressure.max_depth", 0.5, 400, "backpressure.max_depth"),
    ("configure_queue", "backpressure.max_size_bytes", -5, 400, "backpressure.max_size_bytes"),
    ("configure_queue", "backpressure.strategy", "drop", 400, "backpressure.strategy"),
    (
        "configure_queue", "backpressure.warning_threshold", 80, 400,
        "backpressure.warning_threshold",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operation_id", "place", "wrong", "status", "field"),
    REFUSED,
    ids=[f"{row[0]}-{row[1]}-{n}" for n, row in enumerate(REFUSED)],
)
def test_a_wrong_field_is_named(
    api: Api, operation_id: str, place: str, wrong: Any, status: int, field: str
) -> None:
    operation = contract.get(operation_id)
    example = EXAMPLES[operation_id]
    if operation.subject == "job":
        # The rule must hold for a job that is there, too.
        path = operation.path.replace("{id}", api.active("q"))
    else:
        path = path_of(operation)
    reply = api(operation.method, path, put(example, tuple(place.split(".")), wrong))
    assert reply.status == status, reply.text[:300]
    assert reply.error["details"]["field"] == field
    if status == 413:
        assert reply.error["details"]["size"] > reply.error["details"]["limit"] > 0
    assert len(reply.text) < 5_000
    assert api.fetch("email", count=100) == []


def test_fields_that_are_missing(api: Api) -> None:
    for operation_id, body, field in (
        ("enqueue_job", {"args": []}, "type"),
        ("enqueue_job", {"type": "a"}, "args"),
        ("enqueue_batch", {}, "jobs"),
        ("fetch_jobs", {}, "queues"),
        ("ack_job", {}, "job_id"),
        ("nack_job", {"error": {"message": "m"}}, "job_id"),
        ("heartbeat", {}, "worker_id"),
        ("beat", {"worker_id": "w"}, "state"),
        ("report_worker_progress", {"percentage": 1}, "job_id"),
        ("register_worker", {}, "worker_id"),
        ("direct_worker", {"worker_id": "w"}, "directive"),
        ("create_queue", {"config": {}}, "name"),
    ):
        operation = contract.get(operation_id)
        details = refused(api.post(operation.path, body), "invalid_request")
        assert (details["field"], details["reason"]) == (field, "is required")


def test_all_findings_are_told_at_once(api: Api) -> None:
    body = {"type": "X", "args": 1, "options": {"priority": 500}}
    details = refused(api.post("/ojs/v1/jobs", body), "invalid_request")
    found = {error["field"] for error in details["errors"]}
    assert found == {"type", "args", "options.priority"}


@pytest.mark.parametrize(
    "job_id",
    ["1", "batch-1", UNKNOWN.upper(), UNKNOWN + "0", "019539a4-0000-4000-8000-000000000000",
     "%00", "ü", "..", "a|b", "\udcff", UNKNOWN + "\n", '"', "x" * 9_000],
)  # fmt: skip
def test_a_malformed_id_in_the_path_is_named(api: Api, job_id: str) -> None:
    for operation in contract.OPERATIONS:
        if operation.subject == "job":
            path = operation.path.replace("{id}", job_id)
            body = EXAMPLES.get(operation.id)
            reply = api(operation.method, path, body)
            details = refused(reply, "invalid_request")
            assert details["field"] == "id"


def test_a_malformed_worker_in_the_path_is_named(api: Api) -> None:
    for worker_id in ("a|b", "x" * 256, "%0a", "\udcff", "\x7f", "%ff"):
        for operation in contract.OPERATIONS:
            if operation.subject == "worker":
                path = operation.path.replace("{id}", worker_id)
                reply = api(operation.method, path)
                assert refused(reply, "invalid_request")["field"] == "id"


def test_ids_of_other_things_change_nothing(api: Api) -> None:
    mine, other = api.active("a"), api.push("b")
    for path, body in (
        ("ack", {"job_id": other}),
        ("nack", {"job_id": other, "error": {"message": "m"}}),
        ("ack", {"job_id": mine, "worker_id": "thief"}),
        ("nack", {"job_id": mine, "worker_id": "thief", "error": {"message": "m"}}),
    ):
        reply = api.post(f"/ojs/v1/workers/{path}", body)
        assert (reply.status, reply.error["code"]) == (409, "conflict")
    assert api.get(f"/ojs/v1/jobs/{mine}").json["state"] == "active"
    assert api.get(f"/ojs/v1/jobs/{other}").json["state"] == "available"


# --- halves of characters ---------------------------------------------------------------------

HALF = "\ud800"


@pytest.mark.parametrize(
    ("operation_id", "place"),
    [
        (operation.id, ".".join(map(str, path)))
        for operation in WITH_BODY
        for path in places(EXAMPLES[operation.id])
        if all(isinstance(part, str) for part in path)
    ],
)
@pytest.mark.parametrize("escaped", [True, False], ids=["escaped", "raw"])
def test_half_a_character_in_a_body_is_refused(
    api: Api, operation_id: str, place: str, escaped: bool
) -> None:
    operation = contract.get(operation_id)
    body = put(EXAMPLES[operation_id], tuple(place.split(".")), f"a{HALF}b")
    reply = send(api, operation, json.dumps(body, ensure_ascii=escaped))
    refused(reply, "invalid_payload")
    reply.text.encode("utf-8")


def test_half_a_character_elsewhere_is_named(api: Api) -> None:
    for half in (HALF, f"a{HALF}", "%ED%A0%80", "\udfff"):
        for path, field in (
            ("/ojs/v1/workers/{}/health", "id"),
            ("/ojs/v1/admin/workers/{}", "id"),
            ("/ojs/v1/jobs/{}", "id"),
            ("/ojs/v1/dead-letter/{}", "id"),
            ("/ojs/v1/queues/{}/pause", "name"),
            ("/ojs/v1/admin/queues/{}/resume", "name"),
        ):
            operation = next(iter(contract.at(path.format("x")).values()))
            reply = api(operation.method, path.format(half))
            assert refused(reply, "invalid_request")["field"] == field
            reply.text.encode("utf-8")
    for path in ("/ojs/v1/dead-letter", "/ojs/v1/workers", "/ojs/v1/admin/workers"):
        # The last one is base64 of the same half.
        for cursor in (HALF, f"YQ{HALF}", "7aCA"):
            reply = api.get(path, cursor=cursor)
            assert refused(reply, "invalid_request")["field"] == "cursor"
            reply.text.encode("utf-8")
    for field in ("queue", "type", "limit", "offset"):
        reply = api.get("/ojs/v1/dead-letter", **{field: HALF})
        assert refused(reply, "invalid_request")["field"] == field
    for name in ("accept", "x-request-id"):
        assert api("GET", "/health", headers={name: HALF}).status == 200
    assert api("GET", "/health", headers={"ojs-version": HALF}).status == 422


# --- anything at all --------------------------------------------------------------------------

WORDS = st.sampled_from(
    sorted(
        {
            key
            for example in EXAMPLES.values()
            for path in places(example)
            for key in path
            if isinstance(key, str)
        }
        | {"worker", "override", "checkpoint", "pool", "weights", "wait", "schema", "key"}
    )
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(
        [UNKNOWN, "default", "a.b", "w1", "PT1S", "+PT1S", "running", "type", 10**400]
    )
    | st.datetimes().map(lambda moment: moment.isoformat() + "Z")
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(WORDS | st.text(), inner, max_size=6)
    ),
    max_leaves=25,
)


@st.composite
def nearly_right(draw: st.DrawFn, operation_id: str) -> Any:
    """An example with one to three places changed to anything."""
    example = copy.deepcopy(EXAMPLES[operation_id])
    for _ in range(draw(st.integers(1, 3))):
        every = list(places(example))
        if not every:
            return draw(ANYTHING)
        example = put(example, draw(st.sampled_from(every)), draw(ANYTHING))
    return example


def check_any(api: Api, operation: Operation, raw: str) -> None:
    reply = send(api, operation, raw)
    assert reply.status < 500, f"{raw[:500]} → {reply.text[:500]}"
    if reply.status >= 400:
        assert reply.error.keys() >= {"code", "message", "retryable", "details", "request_id"}


@BODIES
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.dictionaries(WORDS, ANYTHING, max_size=8) | ANYTHING)
def test_any_json_is_answered(api: Api, operation: Operation, body: Any) -> None:
    check_any(api, operation, json.dumps(body))


@BODIES
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nearly_right_json_is_answered(api: Api, operation: Operation, data: st.DataObject) -> None:
    check_any(api, operation, json.dumps(data.draw(nearly_right(operation.id))))


@BODIES
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.text(max_size=40))
def test_any_text_is_answered(api: Api, operation: Operation, raw: str) -> None:
    check_any(api, operation, raw)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
    path=st.lists(
        st.sampled_from(["ojs", "v1", "jobs", "workers", "admin", "dead-letter", "queues", UNKNOWN])
        | st.text(max_size=6),
        max_size=6,
    ).map(lambda parts: "/" + "/".join(parts)),
    headers=st.dictionaries(
        st.sampled_from(["accept", "ojs-version", "x-request-id", "content-type"]), st.text()
    ),
    query=st.dictionaries(
        st.sampled_from(["limit", "cursor", "page", "offset", "queue", "wait"]), st.text()
    ),
)
def test_any_request_is_answered(
    api: Api, method: str, path: str, headers: dict[str, str], query: dict[str, str]
) -> None:
    reply = api(method, path, headers=headers, query=query)
    assert reply.status < 500, reply.text[:500]
