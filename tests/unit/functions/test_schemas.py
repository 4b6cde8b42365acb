"""Schemas of job arguments over HTTP, in the forms of the suite, specification, and SDKs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ojs import runtime
from ojs.domain.access import Scope
from ojs.domain.errors import BackendUnavailable
from tests.unit.functions.client import Api
from tests.unit.functions.keyed import Keyed
from tests.unit.functions.terminal import bridge, runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from ojs.clock import ManualClock
    from ojs.runtime import Runtime

ADMIN = "/ojs/v1/admin/schemas"
BASE = "/ojs/v1/schemas"
URL = "/ojs/v1/jobs"
MAIL = {
    "type": "object",
    "required": ["to"],
    "properties": {"to": {"type": "string", "format": "email"}, "n": {"type": "integer"}},
    "additionalProperties": False,
}
GOOD, BAD = [{"to": "a@example.com"}], [{"to": "a@example.com", "n": "x"}]


def put(api: Api, schema: Any = MAIL, version: str = "1.0.0", **more: Any) -> Any:
    return api("PUT", f"{ADMIN}/email.send/{version}", {"schema": schema, **more})


@pytest.fixture
def api(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Api:
    """The API of functions that check arguments."""
    built = make_runtime(schema_mode="warn")
    runtime.use(built)
    return Api(built, clock)


def mode(api: Api, name: str) -> None:
    assert api("PATCH", f"{ADMIN}/email.send", {"mode": name}).json["mode"] == name


def push(api: Api, args: Any, **more: Any) -> Any:
    return api.post(URL, {"type": "email.send", "args": args, **more})


def test_suite_form(api: Api) -> None:
    reply = put(api, version="1")
    assert reply.status == 201
    assert reply.json["version"] == 1
    assert reply.json["schema"] == MAIL
    assert put(api, version="1").status == 201
    assert put(api, {"type": "array"}, "1.0").status == 409
    found = api.get(f"{ADMIN}/email.send/1").json
    assert (found["type"], found["mode"], found["is_latest"]) == ("email.send", "warn", True)
    assert put(api, version="2.0.0").status == 201
    assert api.get(f"{ADMIN}/email.send/1").json["is_latest"] is False
    assert api.get(f"{ADMIN}/email.send").json["version"] == "2.0.0"
    versions = api.get(f"{ADMIN}/email.send/versions").json["schemas"]
    assert [each["version"] for each in versions] == ["2.0.0", 1]
    assert [each["type"] for each in api.get(ADMIN).json["schemas"]] == ["email.send"]
    assert api("DELETE", f"{ADMIN}/email.send/2").json["deleted"] is True
    assert api.get(f"{ADMIN}/email.send").json["version"] == 1
    assert api("DELETE", f"{ADMIN}/email.send/1").status == 200
    assert api.get(f"{ADMIN}/email.send").status == 404
    assert api("DELETE", f"{ADMIN}/email.send/1").status == 404
    assert api.get(ADMIN).json["schemas"] == []


def test_forms_of_the_specification_and_of_sdks(api: Api) -> None:
    body = {"job_type": "email.send", "version": "1.0.0", "schema": MAIL}
    for _ in range(2):
        wrapped = api.post(BASE, body)
        assert wrapped.status == 201
        assert wrapped.json["schema"]["job_type"] == "email.send"
        assert wrapped.json["schema"]["schema"] == MAIL
    assert api.post(BASE, {**body, "schema": {}}).status == 409
    assert api.get(f"{BASE}/email.send").json["schema"]["version"] == "1.0.0"
    versions = api.get(f"{BASE}/email.send/versions").json["versions"]
    assert [each["is_latest"] for each in versions] == [True]
    uri = "https://example.com/mail/v2"
    named = {"uri": uri, "type": "email.send", "version": "2.0.0", "schema": MAIL}
    assert api.post(BASE, named).json["uri"] == uri
    assert api.post(BASE, {**named, "version": "3.0.0"}).status == 409
    for path in (uri, "https%3A%2F%2Fexample.com%2Fmail%2Fv2"):
        assert api.get(f"{BASE}/{path}").json["schema"] == MAIL
    assert api.get(f"{BASE}/urn:ojs:schema:email.send:1.0.0").json["version"] == "1.0.0"
    assert api("DELETE", f"{BASE}/{uri}").json["version"] == "2.0.0"
    assert api.get(f"{BASE}/{uri}").status == 404
    assert api("DELETE", f"{BASE}/email.send/1.0.0").status == 200


def test_modes(api: Api) -> None:
    put(api)
    assert "warnings" not in push(api, GOOD).json
    warned = push(api, BAD)
    assert warned.status == 201
    assert warned.json["warnings"] == [
        'Schema validation warning: args[0].n: value is not of type "integer"'
    ]
    mode(api, "strict")
    refused = push(api, BAD)
    assert refused.status == 422
    assert refused.error["code"] == "validation_error"
    assert refused.error["details"]["validation_errors"] == [
        'args[0].n: value is not of type "integer"'
    ]
    assert push(api, GOOD).status == 201
    assert push(api, [{"ojs_encoded": True, "data": "x"}]).status == 201
    assert push(api, ["x"], meta={"ojs.codec.nonce": "x"}).status == 201
    mode(api, "off")
    assert "warnings" not in push(api, BAD).json


def test_versions(api: Api) -> None:
    put(api, {"items": [{"type": "string"}]})  # an array, as in the suites
    put(api, {"items": {"type": "integer"}}, "2.0.0")
    mode(api, "strict")
    assert push(api, [1]).status == 201
    assert push(api, ["x"]).status == 422
    assert push(api, ["x"], version="1.0").status == 201
    old = api.post(URL, {"type": "email.send@1.0.0", "args": ["x"]})
    assert (old.status, old.json["type"], old.json["version"]) == (201, "email.send", "1.0.0")
    assert push(api, ["x"], version="7").error["details"]["validation_errors"] == [
        "version 7 of 'email.send' has no schema"
    ]
    assert api.post(URL, {"type": "email.send@1", "args": [], "version": "2"}).status == 400
    assert api.post(URL, {"type": "email.send@x", "args": []}).status == 400


def test_batches_crons_and_workflows(api: Api) -> None:
    put(api)
    jobs: list[dict[str, Any]] = [
        {"type": "other", "args": []}, {"type": "email.send", "args": BAD},
    ]  # fmt: skip
    assert "jobs[1].args[0].n" in api.post(f"{URL}/batch", {"jobs": jobs}).json["warnings"][0]
    mode(api, "strict")
    refused = api.post(f"{URL}/batch", {"jobs": jobs})
    assert (refused.status, refused.error["details"]["index"]) == (422, 1)
    each = api.post(f"{URL}/bulk", {"jobs": jobs})
    assert (each.status, each.json["succeeded"]) == (207, 1)
    cron = {"name": "nightly", "expression": "0 3 * * *", "type": "email.send", "args": BAD}
    reply = api.post("/ojs/v1/cron", cron)
    assert (reply.status, reply.error["code"]) == (422, "validation_error")
    assert api.post("/ojs/v1/cron", {**cron, "args": GOOD}).status == 201
    chain = {"type": "chain", "steps": jobs}
    reply = api.post("/ojs/v1/workflows", chain)
    assert (reply.status, reply.error["code"]) == (422, "validation_error")
    jobs[1]["args"] = GOOD
    assert api.post("/ojs/v1/workflows", chain).status == 201


@pytest.mark.parametrize(
    ("after", "change"),
    [
        ({**MAIL, "required": ["n", "to"]}, "Required field 'args.n' was added."),
        ({**MAIL, "properties": {"to": {}}}, "Field 'args.n' was removed."),
        ({**MAIL, "type": "array"}, "The type of 'args' was changed to array."),
        ({**MAIL, "maxProperties": 1}, "maxProperties of 'args' was narrowed to 1."),
    ],
)
def test_breaking_changes(api: Api, after: Any, change: str) -> None:
    put(api)
    refused = put(api, after, "1.1.0")
    assert refused.status == 422
    assert change in refused.error["details"]["breaking_changes"]
    assert put(api, after, "2.0.0").status == 201
    assert put(api, after, "3.0.0", compatible_with="1.0.0").status == 422
    assert put(api, {**MAIL, "properties": {**MAIL["properties"], "cc": {}}}, "1.1.0").status == 201  # type: ignore[dict-item]


def nested(levels: int) -> dict[str, Any]:
    both = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**both, f"d{levels}": {}}}


@pytest.mark.parametrize(
    "schema",
    [
        True, 7, [], {"type": "nope"}, {"$ref": "#"}, {"$ref": "http://127.0.0.1:9/x"},
        {"$ref": "#/nowhere"}, {"properties": {"a": {"$id": "http://127.0.0.1:9/", "$ref": "x"}}},
        {"pattern": "a" * 10_000}, {"pattern": "(?=a)b"}, {"pattern": "(a{1000}){1000}"},
        {"$schema": "http://json-schema.org/draft-07/schema#"}, {"$dynamicRef": "#a"}, nested(12),
        {"items": {"$ref": "#"}}, {"enum": ["x" * 70_000]}, {"multipleOf": 0}, {"$schema": 7},
    ],
)  # fmt: skip
def test_bad_schemas(api: Api, schema: Any) -> None:
    began = time.monotonic()
    assert put(api, schema).status == 400
    assert time.monotonic() - began < 1
    assert api.get(ADMIN).json["schemas"] == []


@pytest.mark.parametrize("version", ["1.x", "-1", "1.2.3.4", "1.", "v1", "9999999999"])
def test_bad_versions(api: Api, version: str) -> None:
    assert put(api, version=version).status == 400
    assert api.post(BASE, {"type": "a", "version": version, "schema": {}}).status == 400


def test_bad_requests(api: Api) -> None:
    assert put(api, {}).status == 201
    assert api("PUT", f"{ADMIN}/email.send/2", {}).status == 400
    assert api("PUT", f"{ADMIN}/email.send/2", {"schema": {}, "args_schema": MAIL}).status == 400
    assert put(api, version="2", compatible_with="9").status == 400
    assert api("PATCH", f"{ADMIN}/email.send", {"mode": "loud"}).status == 400
    assert api("PATCH", f"{ADMIN}/other", {"mode": "off"}).status == 404
    assert api("DELETE", f"{BASE}/email.send").status == 400
    body = {"type": "a", "version": 1, "schema": {}}
    for uri in ("none", "urn:ojs:schema:b:1", "urn:a b"):
        assert api.post(BASE, {**body, "uri": uri}).status == 400


def test_patterns_take_linear_time(api: Api) -> None:
    put(api, {"items": {"type": "string", "pattern": "^(a+)+$"}})
    mode(api, "strict")
    began = time.monotonic()
    assert push(api, ["a" * 500_000 + "!"]).status == 422
    assert len(push(api, [1] * 100_000).error["details"]["validation_errors"]) == 1
    assert time.monotonic() - began < 3


def test_scopes(make_runtime: Callable[..., Runtime], clock: ManualClock) -> None:
    keyed = Keyed(make_runtime(authorizer="keys"), clock)
    put_schema: tuple[str, str, Any] = ("PUT", f"{ADMIN}/a/1", {"schema": {}})
    limited = keyed.make("limited", Scope.ADMIN_WRITE, Scope.JOBS_READ, queues=["mail"])
    assert keyed.holding(limited)(*put_schema).status == 403
    assert keyed.holding(limited)("GET", BASE).status == 200
    assert keyed.holding(limited)("GET", ADMIN).status == 403
    assert keyed.holding(keyed.make("writer", Scope.JOBS_WRITE))(*put_schema).status == 403
    assert keyed.holding(keyed.make("admin", Scope.ADMIN_WRITE))(*put_schema).status == 201


def test_costs(api: Api, clock: ManualClock) -> None:
    table = api.runtime.table
    calls: list[str] = []
    original = table._call

    def counted(name: str, *args: Any, **more: Any) -> Any:
        calls.append(name)
        return original(name, *args, **more)

    table._call = counted  # type: ignore[method-assign, assignment]
    sys.modules.pop("ojs.services.schemas.validate", None)
    push(api, GOOD)
    without, calls[:] = list(calls), []
    assert "ojs.services.schemas.validate" not in sys.modules
    push(api, GOOD)
    again, calls[:] = list(calls), []
    clock.advance(10_000)
    push(api, GOOD)
    assert len(calls) == len(again) <= len(without)
    put(api)
    push(api, GOOD)
    calls.clear()
    push(api, GOOD)
    assert calls == again


def test_lost_answers(api: Api) -> None:
    table, original = api.runtime.table, api.runtime.table.transact

    def lost(writes: Any) -> None:
        original(writes)
        raise BackendUnavailable("The response was lost.")

    table.transact = lost  # type: ignore[method-assign]
    assert put(api).status == 503
    table.transact = original  # type: ignore[method-assign]
    assert put(api).status == 201
    table.transact = lost  # type: ignore[method-assign]
    assert api("DELETE", f"{ADMIN}/email.send/1").status == 503
    table.transact = original  # type: ignore[method-assign]
    assert api("DELETE", f"{ADMIN}/email.send/1").status == 404
    assert api.get(ADMIN).json["schemas"] == []


def test_two_at_once(api: Api) -> None:
    table, original = api.runtime.table, api.runtime.table.transact

    def late(writes: Any) -> None:
        table.transact = original  # type: ignore[method-assign]
        assert api("PUT", f"{ADMIN}/other/1", {"schema": {}}).status == 201
        original(writes)

    table.transact = late  # type: ignore[method-assign]
    assert put(api).status == 201
    assert len(api.get(ADMIN).json["schemas"]) == 2


def test_command(api: Api, monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    bridge(monkeypatch, api)
    ojs = runner(capsys)
    monkeypatch.setenv("OJS_URL", "http://test")
    file = tmp_path / "mail.json"
    file.write_text(json.dumps(MAIL))
    assert ojs("schemas", "put", "email.send", "1.0.0", str(file)).status == 0
    assert ojs("schemas", "mode", "email.send", "strict").status == 0
    assert json.loads(ojs("schemas", "show", "email.send").out) == MAIL
    assert ojs("schemas", "list").out.startswith("email.send  1.0.0  strict")
    names: dict[str, Any] = {}
    code = ojs("schemas", "generate", "--language", "python").out
    exec(compile(code, "generated", "exec"), names)
    fields = names["EmailSendArgs"]
    assert fields.__annotations__.keys() == {"to", "n"}
    sent: list[Any] = []
    client = SimpleNamespace(enqueue=lambda *args: sent.append(args))
    names["enqueue_email_send"](client, GOOD[0])
    assert sent == [("email.send@1.0.0", GOOD)]
    script = ojs("schemas", "generate", "--language", "typescript").out
    assert '  "to": string;\n  "n"?: number;' in script
    assert ojs("schemas", "delete", "email.send", "1.0.0").status == 0
    assert ojs("schemas", "show", "email.send").status != 0
