"""Whatever comes in: a 4xx with a code, and the field where there is one; nothing changes."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ojs.api import operations as contract
from ojs.http import models
from ojs.http.endpoint import Operation
from tests.spread import examples, spread
from tests.unit.functions.bad_input import (
    ANYTHING,
    EXAMPLES,
    REFUSED,
    SPREAD,
    UNKNOWN,
    WITH_BODY,
    WORDS,
    nearly_right,
    places,
    put,
    wrong_texts,
    wrong_values,
)
from tests.unit.functions.client import Api

if TYPE_CHECKING:
    from tests.unit.functions.client import Reply

NAMES = {
    "job": UNKNOWN, "worker": "w1", "queue": "default", "rate limit": "api", "operation": UNKNOWN,
    "action": UNKNOWN,
    "pool": "general", "delivery": "d", "subscription": "sub_0123456789abcdef",
    "tenant": "acme", "schema": "email.send",
    "key": "0123456789abcdef", "cron job": "daily-report",
    "workflow": UNKNOWN, None: "",
}  # fmt: skip
BODIES = pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.id)


def path_of(operation: Operation) -> str:
    path = operation.path.replace("{schema}", "urn:ojs:a").replace("{version}", "1")
    path = path.replace(f"{{{operation.path_parameter}}}", NAMES[operation.subject])
    return _with_name(path)


def _with_name(path: str) -> str:
    """The path with a name for its second parameter."""
    return path.replace("{step}", "a").replace("{signal}", "a")


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


@pytest.mark.parametrize(
    ("raw", "operation"),
    spread(
        product(UNREADABLE.values(), WITH_BODY),
        9,
        ids=[f"{kind}-{operation.id}" for kind in UNREADABLE for operation in WITH_BODY],
        rest=3,
    ),
)
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
        # Without a WebSocket API there are no tickets.
        allowed = {"delete_queue": (400,), "create_ticket": (422,)}.get(operation.id, (200, 404))
        assert reply.status in allowed


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


def dead_and_waiting(api: Api) -> tuple[str, str]:
    """Ids of a job in dead letter, which a purge by age would delete, and of one that waits."""
    found = api.dead(), api.push("other")
    api.clock.advance(3_600_000)
    return found


def aimed(operation: Operation, dead: str, waiting: str) -> tuple[str, dict[str, str]]:
    """Path and query of a request that would do something to one of these jobs, if it can."""
    job_id = dead if "dead_letter" in operation.id else waiting
    query = {"older_than": "PT1M"} if "purge_old" in operation.id else {}
    if operation.id.endswith("preview_cron"):
        query = {"expression": "@daily"}
    if operation.id == "workflow_results":
        query = {"step": "1"}
    path = operation.path.replace("{id}", job_id) if operation.subject == "job" else None
    return _with_name(path or path_of(operation)), query


@pytest.mark.parametrize(
    "operation",
    spread(WITHOUT_BODY, 4, ids=[operation.id for operation in WITHOUT_BODY]),
)
def test_a_body_that_is_not_read_is_refused(api: Api, operation: Operation) -> None:
    dead, waiting = dead_and_waiting(api)
    path, query = aimed(operation, dead, waiting)
    for kind, raw in UNREAD.items():
        reply = api(operation.method, path, raw=raw, query=query)
        details = refused(reply, "invalid_request")
        assert (reply.status, details["field"]) == (400, "body"), kind
        assert "this operation has no body" in details["reason"]
    for broken in ("%%%", "YQ", "e30=e30=", "\u00fc"):
        reply = api(operation.method, path, raw=broken, query=query, encoded=True)
        assert refused(reply, "invalid_request")["field"] == "body"
    if operation.method == "GET":
        assert api("HEAD", path, raw='{"a": 1}', query=query).status == 400
    assert api.get(f"/ojs/v1/dead-letter/{dead}").status == 200
    assert api.get(f"/ojs/v1/jobs/{waiting}").json["state"] == "available"
    assert api.get("/ojs/v1/dead-letter/operations").json["operations"] == []


@pytest.mark.parametrize(
    ("raw", "operation"),
    spread(
        product(NOTHING.values(), WITHOUT_BODY),
        9,
        ids=[f"{kind}-{operation.id}" for kind in NOTHING for operation in WITHOUT_BODY],
        rest=7,
    ),
)
def test_a_body_that_says_nothing_is_taken(api: Api, operation: Operation, raw: Any) -> None:
    path, query = aimed(operation, *dead_and_waiting(api))
    # Taken, as without a body: a job that is not over is not deleted.
    taken = {409} if operation.id == "admin_delete_job" else {200, 202, 204, 404}
    assert api(operation.method, path, raw=raw, query=query).status in taken


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
    # Some are refused for the state of the job; tickets, where there is no WebSocket API.
    assert api(operation.method, path, {}).status in (200, 404, 409, 422)


def test_bodies_that_arrive_in_base64(api: Api) -> None:
    reply = api("POST", "/ojs/v1/jobs", raw='{"type":"a","args":["ü€😀"]}'.encode())
    assert reply.status == 201
    assert reply.json["job"]["args"] == ["ü€😀"]


def test_a_key_given_twice_is_refused(api: Api) -> None:
    raw = '{"type": "a", "args": [], "args": [1]}'
    reply = api("POST", "/ojs/v1/jobs", raw=raw)
    assert (reply.status, reply.error["details"]["key"]) == (400, "args")


# --- field by field ---------------------------------------------------------------------------


def named(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in path).lstrip(".")


# Of a bulk request each job is refused for itself.
AS_A_WHOLE = [operation for operation in WITH_BODY if operation.id != "enqueue_bulk"]


@pytest.mark.parametrize("operation", spread(AS_A_WHOLE, 4, [each.id for each in AS_A_WHOLE]))
def test_what_is_described_as_wrong_is_refused_and_named(api: Api, operation: Operation) -> None:
    example = EXAMPLES[operation.id]
    for path in places(example):
        for wrong in wrong_values(operation.id, path):
            reply = send(api, operation, json.dumps(put(example, path, wrong)))
            if reply.status == 404:
                # What it is about is not there, and that is looked at first.
                continue
            where = f"{operation.id} {named(path)} {str(wrong)[:40]}"
            assert reply.status in (400, 413, 422), f"{where}: {reply.text[:300]}"
            details = reply.error["details"]
            if reply.error["code"] == "unsupported" and "field" not in details:
                # Not offered by this deployment, whatever the request says.
                continue
            # Paths of a workflow begin with `$.`.
            place, told = named(path), details["field"].removeprefix("$.")
            parent = place.rpartition(".")[0] or place
            # Or it does not agree with another name of the same field, and both are named.
            both = named(path) in reply.error["message"]
            assert told.startswith(parent) or place.startswith(told) or both, (where, told)
            assert len(reply.text) < 20_000


@pytest.mark.parametrize(
    ("operation_id", "place", "wrong", "status", "field"),
    spread(REFUSED, 2, ids=[f"{row[0]}-{row[1]}-{n}" for n, row in enumerate(REFUSED)]),
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
        assert details["field"] == field
        assert details["reason"].partition(",")[0].partition(".")[0] == "is required"


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
    spread(
        (
            (operation.id, ".".join(map(str, path)))
            for operation in WITH_BODY
            for path in places(EXAMPLES[operation.id])
            if all(isinstance(part, str) for part in path)
        ),
        5,
        rest=2,
    ),
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


def check_any(api: Api, operation: Operation, raw: str) -> None:
    reply = send(api, operation, raw)
    assert reply.status < 500, f"{raw[:500]} → {reply.text[:500]}"
    if reply.status >= 400:
        assert reply.error.keys() >= {"code", "message", "retryable", "details", "request_id"}


@SPREAD
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.dictionaries(WORDS, ANYTHING, max_size=8) | ANYTHING)
def test_any_json_is_answered(api: Api, operation: Operation, body: Any) -> None:
    check_any(api, operation, json.dumps(body))


@SPREAD
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nearly_right_json_is_answered(api: Api, operation: Operation, data: st.DataObject) -> None:
    check_any(api, operation, json.dumps(data.draw(nearly_right(operation.id))))


@SPREAD
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.text(max_size=40))
def test_any_text_is_answered(api: Api, operation: Operation, raw: str) -> None:
    check_any(api, operation, raw)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
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


PARAMETERS = pytest.mark.parametrize(
    ("operation", "name"),
    [(each, one.name) for each in contract.OPERATIONS for one in each.query],
    ids=lambda value: value if isinstance(value, str) else value.id,
)


@PARAMETERS
def test_a_parameter_that_is_described_as_wrong_is_named(
    api: Api, operation: Operation, name: str
) -> None:
    path, query = aimed(operation, UNKNOWN, UNKNOWN)
    for text in wrong_texts(operation, name):
        reply = api(operation.method, path, query={**query, name: text})
        assert (reply.status, reply.error["code"]) == (400, "invalid_request"), text[:40]
        # Of several values it is told which one.
        assert reply.error["details"]["field"].partition("[")[0] == name, text[:40]
        assert reply.error["details"]["reason"]
        assert len(reply.text.encode("utf-8")) < 5_000


@PARAMETERS
def test_no_parameter_may_be_empty(api: Api, operation: Operation, name: str) -> None:
    """A variable that is not set must not widen what is asked for, or acted on."""
    reply = api(operation.method, path_of(operation), query={name: ""})
    assert (reply.status, reply.error["details"]["field"]) == (400, name)


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        pytest.param(each, parameter.name, id=f"{each.id}-{parameter.name}")
        for each in contract.OPERATIONS
        for parameter in each.in_body_too
    ],
)
def test_a_field_that_differs_between_body_and_query(
    api: Api, operation: Operation, name: str
) -> None:
    sent = api(operation.method, path_of(operation), {name: "one"}, query={name: "other"})
    assert refused(sent, "invalid_request")["field"] == name
    assert "body" in sent.error["message"]


def test_operations_that_read_body_and_query_are_found() -> None:
    found = {each.id for each in contract.OPERATIONS if each.in_body_too}
    assert found == {"delete_queue", "purge_dead_letters", "admin_purge_dead_letters"}


# Load balancers, browsers, and scrapers read these, and can add parameters of their own.
_OPEN = {"health", "manifest", "openapi", "ready", "root_health", "root_metrics", "root_ready"}


@pytest.mark.parametrize(
    "operation",
    [one for one in contract.OPERATIONS if one.method == "GET" and one.id not in _OPEN],
    ids=lambda operation: operation.id,
)
def test_every_read_refuses_a_parameter_that_it_does_not_have(
    api: Api, operation: Operation
) -> None:
    reply = api("GET", path_of(operation), query={"inclde": "args"})
    assert (reply.status, reply.error["details"]["field"]) == (400, "inclde")
