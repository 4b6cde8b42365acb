"""Media types, versions, request ids, CORS and methods, through the handlers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from ojs.api import operations as contract

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

OJS = "application/openjobspec+json"
UNKNOWN = "019539a4-0000-7000-8000-000000000000"


def test_every_answer_names_version_media_type_and_request(api: Api) -> None:
    replies = [
        api.get("/ojs/v1/health"),
        api.post("/ojs/v1/jobs", {"type": "a", "args": []}),
        api.post("/ojs/v1/jobs", {}),
        api.get(f"/ojs/v1/jobs/{UNKNOWN}"),
        api.get("/nowhere"),
        api("PATCH", "/ojs/v1/jobs"),
        api("OPTIONS", "/ojs/v1/jobs"),
        api("DELETE", f"/ojs/v1/admin/dead-letter/{api.dead('dlq')}"),
    ]
    assert [reply.status for reply in replies] == [200, 201, 400, 404, 404, 405, 204, 204]
    ids = [reply.headers["X-Request-Id"] for reply in replies]
    assert len(set(ids)) == len(ids)
    for reply in replies:
        assert reply.headers["OJS-Version"] == reply.headers["X-OJS-Version"] == "1.0"
        assert reply.headers["X-OJS-Media-Type"] == OJS
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Cache-Control"] == "no-store"
        # Which pages may read answers is for API Gateway, or the local server, to say.
        assert "Access-Control-Allow-Origin" not in reply.headers
        assert "Access-Control-Expose-Headers" not in reply.headers
        assert re.fullmatch(r"req_[0-9a-f-]{36}", reply.headers["X-Request-Id"])


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        ("", OJS),
        ("*/*", OJS),
        (OJS, OJS),
        ("text/html", OJS),
        ("application/json", "application/json"),
        ("application/json; charset=utf-8", "application/json"),
        (f"application/json, {OJS}", OJS),
        (f"application/json, {OJS};q=0.5", "application/json"),
        ("application/json;q=0", OJS),
    ],
)
def test_the_media_type_is_negotiated(api: Api, accept: str, answered: str) -> None:
    for path in ("/ojs/v1/health", f"/ojs/v1/jobs/{UNKNOWN}", "/nowhere"):
        assert api("GET", path, headers={"accept": accept}).headers["Content-Type"] == answered


@pytest.mark.parametrize("version", ["1", "1.0", "1.0.0", "1.0.7", "1.0.0-rc.1", " 1.0 "])
def test_versions_that_are_served(api: Api, version: str) -> None:
    assert api("GET", "/ojs/v1/health", headers={"ojs-version": version}).status == 200


@pytest.mark.parametrize("version", ["2", "2.0", "1.1", "0.9", "", "one", "1.0.0-beta", "9" * 999])
def test_versions_that_are_not(api: Api, version: str) -> None:
    reply = api("GET", "/ojs/v1/health", headers={"ojs-version": version})
    assert (reply.status, reply.error["code"]) == (422, "unsupported")
    assert reply.error["details"]["supported"] == ["1.0"]
    assert reply.headers["OJS-Version"] == "1.0"


@pytest.mark.parametrize("given", ["abc", "test-req-obs-12345", "a b", "x" * 128, "  padded  "])
def test_a_sane_request_id_is_echoed(api: Api, given: str) -> None:
    for path in ("/health", "/nowhere"):
        reply = api("GET", path, headers={"X-Request-ID": given})
        assert reply.headers["X-Request-Id"] == given.strip()


@pytest.mark.parametrize("given", ["", " ", "x" * 129, "a\nb", "a\x7f", "ü", "\udcff"])
def test_another_request_id_is_replaced(api: Api, given: str) -> None:
    reply = api("GET", "/health", headers={"X-Request-ID": given})
    assert reply.headers["X-Request-Id"].startswith("req_")


def test_wrong_methods_are_told_the_right_ones(api: Api) -> None:
    for path in {operation.path for operation in contract.OPERATIONS}:
        at = path.replace("{id}", UNKNOWN).replace("{name}", "default")
        right = set(contract.at(at))
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"} - right:
            if method == "DELETE" and path.endswith("/history"):
                continue  # `features.PURGE`
            reply = api(method, at)
            assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
            allowed = set(reply.headers["Allow"].split(", "))
            assert allowed == right | {"OPTIONS"} | ({"HEAD"} if "GET" in right else set())
            assert reply.error["details"]["allowed"] == sorted(allowed)


def test_preflight_requests_are_answered_for_known_paths(api: Api) -> None:
    for path in {operation.path for operation in contract.OPERATIONS}:
        at = path.replace("{id}", "anything").replace("{name}", "any")
        reply = api("OPTIONS", at, headers={"origin": "https://ui.example", "ojs-version": "9"})
        assert (reply.status, reply.text) == (204, "")
        methods = set(reply.headers["Access-Control-Allow-Methods"].split(", "))
        assert set(contract.at(at)) <= methods
        allowed = reply.headers["Access-Control-Allow-Headers"].split(", ")
        assert {"Content-Type", "Accept", "Authorization", "X-Request-Id", "OJS-Version"} <= set(
            allowed
        )
    assert api("OPTIONS", "/nowhere").status == 404


def test_head_is_answered_as_get(api: Api) -> None:
    # The gateway leaves the body away; from it, it knows the length.
    for path in ("/ojs/manifest", "/ojs/v1/workers", "/ready"):
        reply = api("HEAD", path)
        assert reply.status == 200
        assert reply.text == api.get(path).text
        assert reply.headers["Content-Type"] == OJS
    job_id = api.push()
    assert api("HEAD", f"/ojs/v1/jobs/{job_id}").status == 200
    assert api("HEAD", f"/ojs/v1/jobs/{UNKNOWN}").status == 404
    assert api("HEAD", f"/ojs/v1/jobs/{job_id}/cancel").status == 405
    assert api("HEAD", "/nowhere").status == 404
