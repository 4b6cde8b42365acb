"""Lists that are asked for wrongly: each is refused by its field and rule, and nothing is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

BASE = "/ojs/v1"
LONG = "x" * 10_240
UNICODE = "\u00fc\U0001f984\u202e"
GONE = "01968f2a-0000-7000-8000-000000000000"
EARLIER, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"

# What the OpenAPI document does not say; the rest is in `test_bad_input.py`.
JOBS: list[tuple[dict[str, str], str]] = [
    ({"state": "available,"}, "state"),
    ({"limit": "5", "per_page": "6"}, "per_page"),
    ({"offset": "5", "page": "3"}, "page"),
    ({"page": "2", "cursor": "eA"}, "page"),
    ({"since": LATER, "until": EARLIER}, "since"),
    *[({"since": text}, "since") for text in ("2026-01-01T00:00:00", "2026-01-01", "2h", LONG)],
    ({"since": "2099-01-01T00:00:00Z"}, "since"),
    *[({"cursor": text}, "cursor") for text in ("AAAA", LONG)],
]
LISTS = (
    "unique-jobs", "dead-letter", "workers", "cron", "workflows", "queues", "rate-limits",
    "events", "admin/pools", "admin/jobs/bulk/operations", "admin/dead-letter/operations",
    "admin/workers", "admin/queues",
)  # fmt: skip


@pytest.mark.parametrize(("query", "field"), JOBS)
def test_jobs(api: Api, query: dict[str, str], field: str) -> None:
    for path in ("jobs", "admin/jobs"):
        reply = api.get(f"{BASE}/{path}", **query)
        # Of several, as of states, it is told which one.
        told = reply.error["details"]["field"].partition("[")[0]
        assert (reply.status, told) == (400, field)
        assert reply.error["details"]["reason"]


def test_a_cursor_is_of_one_list_alone(api: Api) -> None:
    for _ in range(3):
        api.push("q")
    asked = {"queue": "q", "state": "available"}
    page = api.get(f"{BASE}/jobs", **asked, limit="1").json["pagination"]
    cursor = page["next_cursor"]
    assert api.get(f"{BASE}/jobs", **asked, limit="1", cursor=cursor).status == 200
    altered = cursor[:-4] + ("AAAA" if cursor[-4:] != "AAAA" else "BBBB")
    for query in (
        {**asked, "cursor": altered},
        {"queue": "other", "state": "available", "cursor": cursor},
        {**asked, "sort": "priority", "cursor": cursor},
        {**asked, "page": "2", "cursor": cursor},
    ):
        reply = api.get(f"{BASE}/jobs", **query)
        assert reply.status == 400
        assert reply.error["details"]["field"] in ("cursor", "page")
    for path in LISTS:
        reply = api.get(f"{BASE}/{path}", cursor=cursor)
        assert (reply.status, reply.error["details"]["field"]) == (400, "cursor"), path


MANY: list[tuple[Any, str]] = [
    ({}, "filter"),
    ({"filter": {}, "confirm": True}, "filter"),
    ({"filter": None, "confirm": True}, "filter"),
    ({"job_ids": [], "confirm": True}, "job_ids"),
    ({"job_ids": ["nope"], "confirm": True}, "job_ids[0]"),
    ({"job_ids": [GONE] * 1_001, "confirm": True}, "job_ids"),
    ({"job_ids": [GONE], "filter": {"queue": "q"}, "confirm": True}, "filter"),
    ({"filter": {"queue": ""}, "confirm": True}, "filter.queue"),
    ({"filter": {"queue": "q", "since": LATER, "until": EARLIER}, "confirm": True}, "filter.since"),
    ({"filter": {"queue": "q", "since": "2026-01-01"}, "confirm": True}, "filter.since"),
    ({"filter": {"queue": "q", "older_than": "x"}, "confirm": True}, "filter.older_than"),
    ({"filter": {"queue": "q", "args": ""}, "confirm": True}, "filter.args"),
    ({"filter": {"queue": "q", "meta": {}}, "confirm": True}, "filter.meta"),
    ({"filter": {"queue": "q"}, "confirm": False}, "confirm"),
]


@pytest.mark.parametrize(("body", "field"), MANY)
def test_work_on_many_jobs(api: Api, body: Any, field: str) -> None:
    job_id = api.push("q")
    for path in ("jobs/bulk", "admin/jobs/bulk"):
        for verb in ("cancel", "retry", "delete"):
            reply = api.post(f"{BASE}/{path}/{verb}", body)
            assert (reply.status, reply.error["details"]["field"]) == (400, field), (path, verb)
            assert reply.error["details"]["reason"]
    assert api.get(f"{BASE}/jobs/{job_id}").json["state"] == "available"
    assert api.get(f"{BASE}/admin/jobs/bulk/operations").json["operations"] == []


def test_jobs_that_are_gone_are_told_one_by_one(api: Api) -> None:
    job_id = api.push("q")
    told = api.post(f"{BASE}/jobs/bulk/cancel", {"job_ids": [GONE, job_id, GONE]}).json
    assert told["cancelled"] == 1
    assert {each["job_id"] for each in told["errors"]} == {GONE}


def test_an_idempotency_key_stands_for_one_request(api: Api) -> None:
    body = {"type": "a.b", "args": [1], "options": {"queue": "q"}}
    path = f"{BASE}/jobs"
    made = api.post(path, body, **{"idempotency-key": "k"})
    assert made.status == 201
    for other in ({**body, "args": [2]}, {"type": "a.b", "args": [1]}):
        reply = api.post(path, other, **{"idempotency-key": "k"})
        assert (reply.status, reply.error["details"]["field"]) == (409, "Idempotency-Key")
    for key in ("", LONG, UNICODE):
        reply = api.post(path, body, **{"idempotency-key": key})
        assert (reply.status, reply.error["details"]["field"]) == (400, "Idempotency-Key")
    again = api.post(path, body, **{"idempotency-key": "k"})
    assert (again.status, again.json["id"]) == (made.status, made.json["id"])
    assert len(api.get(path, queue="q").json["jobs"]) == 1
