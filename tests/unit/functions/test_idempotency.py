"""`Idempotency-Key` over HTTP: what is answered, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ojs import runtime
from ojs.api import openapi
from ojs.http.binding import negotiation
from tests.unit.functions.client import Api

BASE = "/ojs/v1"
ONE: dict[str, Any] = {"type": "a", "args": [1, {"b": 2, "c": "x"}]}
MANY: dict[str, Any] = {"jobs": [ONE, ONE]}
PUSHES = pytest.mark.parametrize(("path", "body"), [("jobs", ONE), ("jobs/batch", MANY)])


def push(api: Api, path: str, body: Any, key: str = "k", **more: str) -> Any:
    return api.post(f"{BASE}/{path}", body, **{"idempotency-key": key, **more})


def ids(reply: Any) -> list[str]:
    return [job["id"] for job in reply.json.get("jobs", [reply.json.get("job")])]


@PUSHES
def test_the_same_request_has_the_same_answer(api: Api, path: str, body: dict[str, Any]) -> None:
    first, second = push(api, path, body), push(api, path, body)
    assert (second.status, second.json) == (first.status, first.json)
    assert second.status == 201
    assert second.headers.get("Location") == first.headers.get("Location")
    assert ids(push(api, path, body, key="another")) != ids(first)


@PUSHES
def test_how_a_body_is_written_does_not_count(api: Api, path: str, body: dict[str, Any]) -> None:
    first = push(api, path, body)
    text = '{"args": [1, {"c": "x",\n"b": 2}], "type": "a"}'
    raw = text if path == "jobs" else f'{{"jobs": [{text}, {text}]}}'
    again = api("POST", f"{BASE}/{path}", raw=raw, headers={"idempotency-key": " k "})
    assert ids(again) == ids(first)


def test_a_duplicate_stays_one(api: Api) -> None:
    body = {**ONE, "options": {"unique": {"keys": ["type"], "on_conflict": "ignore"}}}
    (there,) = ids(api.post(f"{BASE}/jobs", body))
    for _ in range(2):
        reply = push(api, "jobs", body)
        assert (reply.status, reply.json["deduplicated"], ids(reply)) == (200, True, [there])


@PUSHES
def test_another_body_is_refused(api: Api, path: str, body: dict[str, Any]) -> None:
    first = push(api, path, body)
    other = {**ONE, "args": [1, {"b": 2.5, "c": "x"}]}
    for more in ({**ONE, "priority": 1}, {**ONE, "x": 1}, other):
        reply = push(api, path, more if path == "jobs" else {"jobs": [ONE, more]})
        assert (reply.status, reply.error["code"]) == (409, "conflict")
        assert reply.error["details"]["field"] == "Idempotency-Key"
        assert "different request" in reply.error["details"]["reason"]
        assert reply.error["retryable"] is False
    assert ids(push(api, path, body)) == ids(first)


def test_another_route_is_refused(api: Api) -> None:
    push(api, "jobs", ONE)
    reply = push(api, "jobs/batch", {"jobs": [ONE]})
    assert (reply.status, reply.error["code"]) == (409, "conflict")


@pytest.mark.parametrize("key", ["", " ", "a" * 257, "ä", "a\tb", "a\x7f", "a\x00b", "\u2028"])
@PUSHES
def test_a_bad_key_is_refused(api: Api, path: str, body: dict[str, Any], key: str) -> None:
    reply = push(api, path, body, key=key)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    assert reply.error["details"]["field"] == "Idempotency-Key"
    assert reply.error["details"]["reason"] == "must have 1 to 256 printable ASCII characters"
    assert api.get(f"{BASE}/queues").json["queues"] == []


@pytest.mark.parametrize("key", ["a" * 256, '"8e03978e-40d5-43dd-bc93-6894a57f9324"', "a b~!", "|"])
def test_a_good_key_is_taken(api: Api, key: str) -> None:
    assert ids(push(api, "jobs", ONE, key=key)) == ids(push(api, "jobs", ONE, key=key))


@pytest.mark.parametrize(
    "body", [{"type": "A B"}, {**ONE, "options": {"nope": 1}}, {**ONE, "meta": {"m": "x" * 70_000}}]
)
def test_what_is_wrong_with_a_request_binds_no_key(api: Api, body: dict[str, Any]) -> None:
    assert 400 <= push(api, "jobs", body).status < 500
    assert push(api, "jobs", ONE).status == 201


def test_a_queue_that_refuses_binds_no_key(api: Api) -> None:
    api("PUT", f"{BASE}/queues/q/config", {"allowed_job_types": ["b"]})
    body = {**ONE, "options": {"queue": "q"}}
    assert push(api, "jobs", body).status == 422
    assert push(api, "jobs", {**body, "type": "b"}).status == 201


def test_a_push_that_waited_finds_what_another_try_of_it_stored(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tries of one request wait for space; one of them gets it."""
    config = {"max_size": 1, "overflow_policy": "block"}
    assert api("PUT", f"{BASE}/queues/q/config", config).status == 200
    body = {**ONE, "options": {"queue": "q"}}
    held = api.post(f"{BASE}/jobs", body).json["job"]["id"]
    others: list[Any] = []
    waits = {"ojs-block-timeout": "2"}
    monkeypatch.setattr(api.runtime.key_turn, "_sleep", lambda _s: None)

    def while_it_waits(_s: float) -> None:
        if not others:
            others.append(None)
            assert api("DELETE", f"{BASE}/jobs/{held}").status == 200
            others[0] = push(api, "jobs", body, **waits)
        api.clock.advance(1_000)

    monkeypatch.setattr(api.runtime.bounds, "_sleep", while_it_waits)
    reply = push(api, "jobs", body, **waits)
    assert (reply.status, ids(reply)) == (201, ids(others[0]))


def test_a_job_that_is_gone_is_told(api: Api) -> None:
    (job,) = ids(push(api, "jobs", ONE))
    batch = push(api, "jobs/batch", MANY, key="batch")
    api.post(f"{BASE}/jobs/{job}/cancel")
    api("DELETE", f"{BASE}/admin/jobs/{job}")
    api.post(f"{BASE}/jobs/{ids(batch)[1]}/cancel")
    api("DELETE", f"{BASE}/admin/jobs/{ids(batch)[1]}")
    reply = push(api, "jobs", ONE)
    assert (reply.status, ids(reply)) == (201, [job])
    said = "was deleted. The response has the enqueued job."
    assert reply.json["warnings"] == [f"Job '{job}' {said}"]
    assert reply.json["job"]["args"] == ONE["args"]
    again = push(api, "jobs/batch", MANY, key="batch")
    assert (again.status, ids(again)) == (201, ids(batch))
    assert again.json["warnings"] == [f"Job '{ids(batch)[1]}' {said}"]
    assert api.get(f"{BASE}/jobs/{job}").status == 404


def test_it_is_described_and_browsers_may_send_it(api: Api) -> None:
    paths = openapi.document("test")["paths"]
    for path in ("jobs", "jobs/batch"):
        parameters = paths[f"{BASE}/{path}"]["post"]["parameters"]
        (found,) = (each for each in parameters if each.get("name") == "Idempotency-Key")
        assert (found["in"], found["schema"]["maxLength"]) == ("header", 256)
    assert "Idempotency-Key" in negotiation.REQUEST_HEADERS


def test_who_sends_none_has_no_item(api: Api) -> None:
    api.post(f"{BASE}/jobs", ONE)
    assert not _keys()
    push(api, "jobs", ONE)
    assert len(_keys()) == 1


def _keys() -> list[str]:
    table = runtime.current().table
    found = table.client.scan(TableName=table.name)["Items"]
    return [item["pk"]["S"] for item in found if item["pk"]["S"].startswith("I|")]
