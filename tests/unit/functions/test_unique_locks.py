"""`GET /unique-jobs`: unique keys, and the jobs that hold them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.functions.client import Api

PATH = "/ojs/v1/unique-jobs"


def push(api: Api, number: int, queue: str = "q", **unique: Any) -> Any:
    policy = {"keys": ["type", "args"], **unique}
    body = {"type": "mail.send", "args": [number], "options": {"queue": queue, "unique": policy}}
    return api.post("/ojs/v1/jobs", body)


def shown(api: Api, queue: str = "q", **query: str) -> list[dict[str, Any]]:
    """All locks of a queue, page by page."""
    found: list[dict[str, Any]] = []
    query["queue"] = queue
    for _ in range(60):
        page = api.get(PATH, **query).json
        found += page["items"]
        if not page["pagination"]["has_more"]:
            return found
        query["cursor"] = page["pagination"]["next_cursor"]
    raise AssertionError("no end")


def ids(found: list[dict[str, Any]]) -> set[str]:
    return {each["job_id"] for each in found}


def test_a_lock_is_shown_as_the_admin_ui_reads_it(api: Api) -> None:
    job = push(api, 1, period="PT1H").json["job"]
    (lock,) = shown(api)
    digest = lock.pop("key")
    assert lock == {
        "job_id": job["id"], "type": "mail.send", "queue": "q", "state": "available",
        "locked_until": "2026-05-28T21:26:40.000Z",
    }  # fmt: skip
    refusal = push(api, 1)
    assert refusal.error["details"]["unique_key"] == digest
    page = api.get(PATH, page="1", per_page="25").json
    assert [each["key"] for each in page["items"]] == [digest]
    assert page["pagination"]["per_page"] == 25
    # Without a period there is no end.
    push(api, 2)
    assert sorted("locked_until" in each for each in shown(api)) == [False, True]


def test_all_that_wait_or_run_are_listed_and_no_other(api: Api) -> None:
    def other(**options: Any) -> str:
        job = {"type": "other", "args": [], "options": {"queue": "q", **options}}
        return str(api.post("/ojs/v1/jobs", job).json["job"]["id"])

    done, runs = (push(api, number).json["job"]["id"] for number in (1, 2))
    fetched = api.post("/ojs/v1/workers/fetch", {"queues": ["q"], "count": 2, "worker_id": "w"})
    assert len(fetched.json["jobs"]) == 2
    api.post("/ojs/v1/workers/ack", {"job_id": done})
    waiting = push(api, 3).json["job"]["id"]
    scheduled = other(delay_until="+PT1H", unique={"keys": ["type"]})
    pending = other(pending=True, unique={"key": "own"})
    other()
    gone = push(api, 5).json["job"]["id"]
    api.post(f"/ojs/v1/jobs/{gone}/cancel")
    elsewhere = push(api, 6, "r").json["job"]["id"]
    assert ids(shown(api)) == {waiting, scheduled, pending, runs}
    for limit in ("1", "2", "100"):
        assert ids(shown(api, limit=limit)) == {waiting, scheduled, pending, runs}
    assert ids(shown(api, state="active,pending")) == {runs, pending}
    assert ids(shown(api, type="mail.*")) == {waiting, runs}
    assert ids(shown(api, "r")) == {elsewhere}
    assert ids(shown(api, "nobody")) == set()


def test_who_does_not_hold_the_key_any_more_is_not_listed(api: Api) -> None:
    """Its period is over, or another job took the key while it ran."""
    over = push(api, 1, period="PT1M").json["job"]["id"]
    runs = push(api, 2, states=["available"], on_conflict="reject").json["job"]["id"]
    fetched = api.post("/ojs/v1/workers/fetch", {"queues": ["q"], "count": 2, "worker_id": "w"})
    assert len(fetched.json["jobs"]) == 2
    taker = push(api, 2, states=["available"]).json["job"]["id"]
    assert ids(shown(api, state="active")) == {over}
    assert ids(shown(api)) == {over, taker}
    assert runs not in ids(shown(api))
    api.clock.advance(60_000)
    assert ids(shown(api)) == {taker}


def test_a_key_leads_to_its_job_in_any_state(api: Api) -> None:
    job = push(api, 1).json["job"]["id"]
    push(api, 2)
    (lock,) = [each for each in shown(api) if each["job_id"] == job]
    key = lock["key"]
    assert shown(api, key=key) == [lock]
    assert api.get(PATH, key=key).json["items"] == [lock]
    assert shown(api, "other", key=key) == []
    assert shown(api, key="0" * 64) == []
    api.post(f"/ojs/v1/jobs/{job}/cancel")
    assert shown(api, key=key) == [{**lock, "state": "cancelled"}]
    assert shown(api, key=key, state="available") == []
    api("DELETE", f"/ojs/v1/admin/jobs/{job}")
    assert shown(api, key=key) == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"key": "0" * 64, "state": "x"}, "state[0]"), ({"key": "0" * 64, "cursor": "x"}, "cursor"),
        ({"cursor": "x"}, "cursor"), ({"cursor": "A" * 5_000}, "cursor"),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_named(api: Api, query: dict[str, str], field: str) -> None:
    reply = api.get(PATH, **query)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert reply.error["details"]["reason"]


def test_a_cursor_of_a_list_of_jobs_is_refused(api: Api) -> None:
    for number in range(3):
        push(api, number)
    states = "active,available,pending,retryable,scheduled"
    page = api.get("/ojs/v1/admin/jobs", limit="1", state=states).json
    reply = api.get(PATH, cursor=page["pagination"]["next_cursor"])
    assert (reply.status, reply.error["details"]["field"]) == (400, "cursor")
