"""Rate limits over HTTP: what a push is told, and what an operator reads and overrides."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.functions.client import Api

BASE = "/ojs/v1/rate-limits"
FULL = {
    "key": "api",
    "concurrency": 5,
    "rate": {"limit": 2, "period": "PT1M"},
    "throttle": {"limit": 10, "period": "PT10S"},
}


def push(api: Api, limit: dict[str, Any], queue: str = "q") -> Any:
    options = {"queue": queue, "rate_limit": limit}
    reply = api.post("/ojs/v1/jobs", {"type": "a", "args": [], "options": options})
    assert reply.status == 201, reply.text
    return reply


def test_a_key_is_shown_with_all_that_is_limited(api: Api) -> None:
    push(api, FULL)
    push(api, FULL)
    api.fetch("q")
    shown = api.get(f"{BASE}/api").json
    assert shown["concurrency"] == {"limit": 5, "active": 1, "available": 4}
    assert shown["rate"] | {"window_resets_at": ""} == {
        "limit": 2, "period": "PT1M", "current_count": 1, "window_resets_at": "",
    }  # fmt: skip
    assert (shown["throttle"]["period"], shown["waiting_count"]) == ("PT10S", 1)
    assert shown["rate"]["window_resets_at"] < shown["throttle"]["next_allowed_at"]


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ({"key": "k", "concurrency": 3}, ("3", "2")),
        ({"key": "k", "rate": 2, "period": "hour"}, ("2", "1")),
        ({"key": "k", "throttle": {"limit": 1, "period": "PT1M"}}, ("1", "0")),
        ({"max_per_second": 1}, ("1", "0")),
    ],
)
def test_a_push_is_told_how_its_limit_stands(
    api: Api, limit: dict[str, Any], told: tuple[str, str]
) -> None:
    push(api, limit)
    api.fetch("q")
    headers = push(api, limit).headers
    assert (headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"]) == told
    reset = int(headers["X-RateLimit-Reset"]) * 1_000
    assert (reset > api.clock.now_ms()) == (told[1] == "0")


def test_a_push_without_a_limit_is_told_nothing(api: Api) -> None:
    reply = api.post("/ojs/v1/jobs", {"type": "a", "args": []})
    assert not [name for name in reply.headers if name.startswith("X-RateLimit")]
    reply = push(api, {"key": "only-a-key"})
    assert not [name for name in reply.headers if name.startswith("X-RateLimit")]


def test_all_keys_are_listed_in_pages(api: Api) -> None:
    keys = [f"key-{n}" for n in range(5)]
    for key in reversed(keys):
        push(api, {"key": key, "concurrency": 1})
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = api.get(BASE, limit="2", **cursor).json
        found += [item["key"] for item in page["items"]]
        if not page["pagination"]["has_more"]:
            break
        cursor = {"cursor": page["pagination"]["next_cursor"]}
    assert found == keys
    assert api.get(BASE, key="x").status == 400


def test_an_override_is_shown_holds_and_is_taken_back(api: Api) -> None:
    push(api, {"key": "api", "concurrency": 5})
    laid = api("PUT", f"{BASE}/api/override", {"concurrency": 0}).json
    assert laid["override"] == {"concurrency": 0}
    assert laid["concurrency"]["limit"] == 0
    assert api.fetch("q") == []
    assert "override" not in api("DELETE", f"{BASE}/api/override").json
    assert len(api.fetch("q")) == 1


def test_an_override_ends_by_itself(api: Api) -> None:
    push(api, {"key": "api", "concurrency": 5})
    api("PUT", f"{BASE}/api", {"concurrency": 0, "expires_at": "+PT10S"})
    assert api.fetch("q") == []
    api.clock.advance(10_000)
    assert "override" not in api.get(f"{BASE}/api").json
    assert len(api.fetch("q")) == 1


def test_an_override_that_is_over_before_it_begins_is_refused(api: Api) -> None:
    body = {"concurrency": 0, "expires_at": "2000-01-01T00:00:00Z"}
    reply = api("PUT", f"{BASE}/api/override", body)
    assert (reply.status, reply.error["details"]["field"]) == (400, "expires_at")
    assert api.get(f"{BASE}/api").status == 404


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_key_that_nobody_used_is_not_found(api: Api, method: str) -> None:
    assert api(method, f"{BASE}/nobody").status == 404
    # The key of a tenant, and a name of no tenant.
    assert api(method, f"{BASE}/a%7Cb").status == 404
    reply = api(method, f"{BASE}/a%20b%7Cc")
    assert (reply.status, reply.error["details"]["field"]) == (400, "key")


def test_a_queue_s_own_limit_is_read_under_the_longest_name_a_queue_may_have(api: Api) -> None:
    queue = "q" * 255
    push(api, {"max_per_second": 1}, queue)
    assert api.get(f"{BASE}/queue:{queue}").json["rate"]["limit"] == 1


def test_a_nack_pauses_its_key(api: Api) -> None:
    push(api, {"key": "api", "concurrency": 5})
    (job,) = api.fetch("q")
    error = {"message": "429", "rate_limit_until": "+PT1M"}
    assert api.post("/ojs/v1/workers/nack", {"job_id": job["id"], "error": error}).status == 200
    push(api, {"key": "api", "concurrency": 5})
    assert "paused_until" in api.get(f"{BASE}/api").json
    assert api.fetch("q") == []
    api.clock.advance(60_000)
    assert api.fetch("q")


def test_a_job_that_was_put_off_says_until_when(api: Api) -> None:
    limit = {"key": "api", "rate": {"limit": 1, "period": "PT1H"}, "on_limit": "reschedule"}
    push(api, limit)
    later = push(api, limit).json["job"]["id"]
    assert len(api.fetch("q", count=5)) == 1
    job = api.get(f"/ojs/v1/admin/jobs/{later}").json
    assert job["state"] == "scheduled"
    assert job["scheduled_at"] > job["created_at"]


# --- a queue's own limits -------------------------------------------------------------------------

QUEUE = "/ojs/v1/admin/queues/q/rate-limit"


@pytest.mark.requirement("QC-25")
@pytest.mark.parametrize(
    "body",
    [
        {"limit": 2, "period": "PT1M"},
        {"rate_limit": {"limit": 2, "period": "PT1M"}},
        {"rate": {"limit": 2, "period": "PT1M"}},
    ],
)
def test_the_rate_of_a_queue_is_set_shown_and_taken_back(api: Api, body: dict[str, Any]) -> None:
    """The one configuration that PUT …/config changes, too."""
    api("PUT", "/ojs/v1/queues/q/config", {"concurrency": 5})
    reply = api("PUT", QUEUE, body)
    assert reply.status == 200, reply.text
    rate = reply.json["rate"]
    assert rate | {"window_resets_at": ""} == {
        "limit": 2, "period": "PT1M", "current_count": 0, "window_resets_at": "",
    }  # fmt: skip
    assert reply.json["rate_limit"] == {"limit": 2, "period": "PT1M"}
    assert (reply.json["queue"], reply.json["key"]) == ("q", "queue:q")
    # What is not named stays.
    assert reply.json["concurrency"] == {"limit": 5, "active": 0, "available": 5}
    config = api.get("/ojs/v1/queues/q/config").json["config"]
    assert (config["rate_limit"], config["concurrency"]) == ({"limit": 2, "period": "PT1M"}, 5)
    for _ in range(3):
        api.post("/ojs/v1/jobs", {"type": "a", "args": [], "options": {"queue": "q"}})
    assert len(api.fetch("q", count=3)) == 2
    shown = api("PUT", QUEUE, {"concurrency": 6}).json
    assert shown["rate"]["current_count"] == 2
    assert shown["rate"]["window_resets_at"] > "2026-05-28T20:27"
    assert shown["concurrency"] == {"limit": 6, "active": 2, "available": 4}
    gone = api("PUT", QUEUE, {"rate_limit": None}).json
    assert (gone["rate_limit"], "rate" in gone) == (None, False)
    assert len(api.fetch("q", count=3)) == 1
    assert "rate_limit" not in api.get("/ojs/v1/queues/q/config").json["config"]


def test_limits_as_the_extension_has_them_make_a_queue(api: Api) -> None:
    """ojs-rate-limiting section 7.2."""
    body = {"concurrency": 20, "rate": {"limit": 1000, "period": "PT1H"}}
    shown = api("PUT", QUEUE, body).json
    assert shown["concurrency"]["limit"] == 20
    assert (shown["rate"]["limit"], shown["rate"]["period"]) == (1000, "PT1H")
    assert api.get("/ojs/v1/queues/q").status == 200
    cleared = api("PUT", QUEUE, {"concurrency": None, "rate": None}).json
    etag = api.get("/ojs/v1/queues/q/config").json["etag"]
    assert cleared == {"queue": "q", "key": "queue:q", "rate_limit": None, "etag": etag}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "rate_limit"),
        ({"limit": 5}, "period"),
        ({"limit": None, "period": "PT1S"}, "limit"),
        ({"rate_limit": {"limit": 5}}, "rate_limit.period"),
        ({"rate": None, "rate_limit": None}, "rate_limit"),
        ({"limit": 5, "period": "PT1S", "rate": {"limit": 5, "period": "PT1S"}}, "rate"),
    ],
)
def test_limits_of_a_queue_that_cannot_be(api: Api, body: dict[str, Any], field: str) -> None:
    reply = api("PUT", QUEUE, body)
    assert reply.status == 400, reply.text
    assert reply.error["details"]["field"] == field
    assert api.get("/ojs/v1/queues/q").status == 404


def test_a_queue_has_no_throttle(api: Api) -> None:
    reply = api("PUT", QUEUE, {"throttle": {"limit": 1, "period": "PT1S"}})
    assert (reply.status, reply.error["details"]["field"]) == (422, "throttle")
