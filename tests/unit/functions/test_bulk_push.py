"""POST /jobs/bulk: each job for itself, or all or none; what is answered, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.functions.client import Api

BULK = "/ojs/v1/jobs/bulk"
ONE: dict[str, Any] = {"type": "a", "args": [1]}
CHOSEN = "01968f2a-0000-7000-8000-000000000001"
ATOMICITY = pytest.mark.parametrize("atomicity", ["partial", "atomic"])


def bulk(api: Api, *jobs: Any, **more: Any) -> Any:
    headers = more.pop("headers", {})
    return api.post(BULK, {"jobs": list(jobs), **more}, **headers)


def unique(on_conflict: str = "ignore", **more: Any) -> dict[str, Any]:
    policy = {"unique": {"keys": ["type", "args"], "on_conflict": on_conflict}}
    return {**ONE, "options": policy, **more}


def statuses(reply: Any) -> list[str]:
    return [item["status"] for item in reply.json["items"]]


def codes(reply: Any) -> list[str | None]:
    return [item.get("error", {}).get("code") for item in reply.json["items"]]


def waiting(api: Api, queue: str = "default") -> int:
    return len(api.post("/ojs/v1/workers/fetch", {"queues": [queue], "count": 100}).json["jobs"])


@ATOMICITY
@pytest.mark.parametrize("count", [1, 4, 5, 100])
def test_all_are_stored(api: Api, atomicity: str, count: int) -> None:
    reply = bulk(api, *({"type": "a", "args": [n]} for n in range(count)), atomicity=atomicity)
    assert (reply.status, reply.headers["X-OJS-Batch-Size"]) == (201, str(count))
    assert (reply.json["total"], reply.json["succeeded"], reply.json["failed"]) == (count, count, 0)
    assert [item["index"] for item in reply.json["items"]] == list(range(count))
    assert statuses(reply) == ["created"] * count
    for item in reply.json["items"][:3]:
        job = api.get(f"/ojs/v1/jobs/{item['job']['id']}").json["job"]
        assert job["args"] == [item["index"]]
        assert item["job"].items() <= job.items()
    assert waiting(api) == count


@pytest.fixture
def latest_first(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls that are made side by side the last one is served first."""

    def backwards(act: Any, each: Any) -> list[Any]:
        return [act(one) for one in reversed(each)][::-1]

    monkeypatch.setattr(api.runtime.bulk_push, "_for_each", backwards)


@pytest.mark.usefixtures("latest_first")
def test_unique_jobs_are_dispatched_in_their_order(api: Api) -> None:
    reply = bulk(api, *(unique(args=[n]) for n in range(20)))
    assert (reply.status, reply.json["succeeded"]) == (201, 20)
    assert [job["args"] for job in api.fetch("default", count=20)] == [[n] for n in range(20)]


@pytest.mark.usefixtures("latest_first")
@pytest.mark.parametrize("tied", [True, False])
def test_a_queue_with_space_for_ten_admits_the_first_ten(api: Api, tied: bool) -> None:
    api("PUT", "/ojs/v1/queues/default/config", {"max_size": 12, "overflow_policy": "reject"})
    held = [api.post("/ojs/v1/jobs", unique(args=[n])).json["job"]["id"] for n in (5, 6)]
    jobs = [unique(args=[n]) if tied else {**ONE, "args": [n]} for n in range(20)]
    reply = bulk(api, *jobs)
    admitted = [item["index"] for item in reply.json["items"] if "job" in item]
    # Duplicates take no space.
    assert admitted == list(range(12 if tied else 10))
    assert codes(reply)[12:] == ["QUEUE_FULL"] * 8
    if tied:
        assert [reply.json["items"][n]["job"]["id"] for n in (5, 6)] == held


def test_a_job_that_is_refused_takes_no_other_along(api: Api) -> None:
    api("PUT", "/ojs/v1/queues/strict/config", {"allowed_job_types": ["b"]})
    refused = {**ONE, "options": {"queue": "strict"}}
    there = api.post("/ojs/v1/jobs", unique("reject")).json["job"]["id"]
    taken = api.post("/ojs/v1/jobs", {"type": "c", "args": []}).json["job"]["id"]
    jobs = [
        ONE, {"type": ""}, unique(), refused, unique("reject"), {**ONE, "id": taken}, 7,
        *[ONE] * 5, {**ONE, "id": CHOSEN}, {**ONE, "id": CHOSEN},
    ]  # fmt: skip
    reply = bulk(api, *jobs)
    assert reply.status == 207
    assert codes(reply) == [
        None, "invalid_request", None, "JOB_TYPE_NOT_ALLOWED", "duplicate", "duplicate",
        "invalid_request", *[None] * 5, None, "invalid_request",
    ]  # fmt: skip
    items = reply.json["items"]
    assert (items[2]["status"], items[2]["job"]["id"]) == ("duplicate", there)
    assert items[1]["error"]["details"]["field"] == "type"
    assert items[13]["error"]["details"]["reason"] == "is a duplicate of jobs[12].id"
    assert (reply.json["total"], reply.json["succeeded"], reply.json["failed"]) == (14, 8, 6)
    # Two were there before.
    assert waiting(api) == 7 + 2
    assert waiting(api, "strict") == 0


def test_a_full_queue_takes_what_fits(api: Api) -> None:
    api("PUT", "/ojs/v1/queues/small/config", {"max_size": 3, "overflow_policy": "reject"})
    small = {**ONE, "options": {"queue": "small"}}
    reply = bulk(api, *[small] * 6, *[ONE] * 2)
    assert (reply.status, reply.json["succeeded"]) == (207, 5)
    assert codes(reply).count("QUEUE_FULL") == 3
    assert (waiting(api, "small"), waiting(api)) == (3, 2)


@ATOMICITY
def test_a_request_that_only_full_queues_refuse_is_retryable(api: Api, atomicity: str) -> None:
    api("PUT", "/ojs/v1/queues/small/config", {"max_size": 2, "overflow_policy": "reject"})
    small = {**ONE, "options": {"queue": "small"}}
    assert bulk(api, small, small).status == 201
    reply = bulk(api, small, small, atomicity=atomicity)
    assert (reply.status, reply.error["code"]) == (422, "jobs_refused")
    assert [item["error"]["retryable"] for item in reply.json["items"]] == [True, True]
    assert reply.error["retryable"] is True
    assert reply.headers["Retry-After"] == "5"
    assert reply.headers["X-OJS-Queue-Bound"] == "2"


def test_a_request_with_an_invalid_job_is_not_retryable(api: Api) -> None:
    api("PUT", "/ojs/v1/queues/small/config", {"max_size": 1, "overflow_policy": "reject"})
    small = {**ONE, "options": {"queue": "small"}}
    assert bulk(api, small).status == 201
    reply = bulk(api, small, {"type": ""})
    assert (reply.status, reply.error["retryable"]) == (422, False)
    assert "Retry-After" not in reply.headers


@pytest.mark.parametrize("count", [1, 7])
@ATOMICITY
def test_none_is_stored(api: Api, count: int, atomicity: str) -> None:
    api("PUT", "/ojs/v1/queues/q/config", {"allowed_job_types": ["b"]})
    reply = bulk(api, *[{**ONE, "options": {"queue": "q"}}] * count, atomicity=atomicity)
    assert (reply.status, reply.error["code"]) == (422, "jobs_refused")
    assert (reply.json["succeeded"], reply.json["failed"]) == (0, count)
    assert codes(reply)[0] == "JOB_TYPE_NOT_ALLOWED"
    details = reply.error["details"]
    assert (details["index"], details["field"]) == (0, "jobs[0].type")
    assert details["code"] == "JOB_TYPE_NOT_ALLOWED"


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"type": ""}, "invalid_request"),
        ({"type": "z", "args": [], "options": {"queue": "q"}}, "JOB_TYPE_NOT_ALLOWED"),
        (unique("reject"), "duplicate"),
    ],
)
def test_atomic_stores_all_or_none(api: Api, bad: Any, code: str) -> None:
    api("PUT", "/ojs/v1/queues/q/config", {"allowed_job_types": ["b"]})
    api.post("/ojs/v1/jobs", unique())
    reply = bulk(api, ONE, bad, ONE, atomicity="atomic")
    assert (reply.status, reply.error["code"]) == (422, "jobs_refused")
    assert codes(reply) == ["not_stored", code, "not_stored"]
    assert waiting(api) == 1


def test_a_full_queue_refuses_all_of_an_atomic_request(api: Api) -> None:
    api("PUT", "/ojs/v1/queues/q/config", {"max_size": 1, "overflow_policy": "reject"})
    reply = bulk(api, ONE, *[{**ONE, "options": {"queue": "q"}}] * 2, atomicity="atomic")
    assert (reply.status, codes(reply)) == (422, ["not_stored", "QUEUE_FULL", "QUEUE_FULL"])
    assert waiting(api) == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "jobs"),
        ({"jobs": []}, "jobs"),
        ({"jobs": None}, "jobs"),
        ({"jobs": {}}, "jobs"),
        ({"jobs": [ONE], "atomicity": "some"}, "atomicity"),
        ({"jobs": [ONE], "mode": "atomic"}, "mode"),
        ({"jobs": [ONE], "idempotency_key": ""}, "idempotency_key"),
        ({"jobs": [ONE], "idempotency_key": "x" * 257}, "idempotency_key"),
        ({"jobs": [ONE], "idempotency_key": "a\nb"}, "idempotency_key"),
        ({"jobs": [ONE], "idempotency_key": 1}, "idempotency_key"),
    ],
)
def test_a_bad_request_is_refused(api: Api, body: Any, field: str) -> None:
    reply = api.post(BULK, body)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert waiting(api) == 0


def test_too_many_are_refused(api: Api) -> None:
    reply = bulk(api, *[ONE] * 1_001)
    assert (reply.status, reply.error["code"]) == (413, "BATCH_SIZE_EXCEEDED")
    assert reply.error["max_batch_size"] == 1_000
    assert reply.headers["X-OJS-Max-Batch-Size"] == "1000"


# --- idempotency keys -----------------------------------------------------------------------


@ATOMICITY
@pytest.mark.parametrize("count", [2, 7])
def test_once_for_each_key(api: Api, atomicity: str, count: int) -> None:
    jobs = [{**ONE, "args": [n]} for n in range(count)]
    first = bulk(api, *jobs, atomicity=atomicity, idempotency_key="k")
    again = bulk(api, *jobs, atomicity=atomicity, idempotency_key="k")
    assert (again.status, again.json) == (first.status, first.json)
    other = bulk(api, *jobs, ONE, atomicity=atomicity, idempotency_key="k")
    assert (other.status, other.error["details"]["field"]) == (409, "Idempotency-Key")
    assert waiting(api) == count


def test_the_header_counts_before_the_body(api: Api) -> None:
    sent = bulk(api, ONE, headers={"idempotency-key": "h"}, idempotency_key="b")
    again = bulk(api, ONE, headers={"idempotency-key": "h"})
    assert again.json == sent.json
    assert bulk(api, ONE, idempotency_key="b").json != sent.json


def test_what_was_refused_stays_refused_beside_what_was_stored(api: Api) -> None:
    api("PUT", "/ojs/v1/queues/q/config", {"max_size": 2, "overflow_policy": "reject"})
    jobs = [*[{**ONE, "options": {"queue": "q"}}] * 6, {"type": ""}, unique(), unique()]
    first = bulk(api, *jobs, idempotency_key="k")
    assert (first.status, statuses(first).count("failed")) == (207, 5)
    assert statuses(first)[7:] == ["created", "duplicate"]
    api("PUT", "/ojs/v1/queues/q/config", {"max_size": 100})
    again = bulk(api, *jobs, idempotency_key="k")
    assert (again.status, again.json) == (first.status, first.json)


def test_a_refusal_of_all_is_not_kept(api: Api) -> None:
    api("PUT", "/ojs/v1/queues/q/config", {"allowed_job_types": ["b"]})
    jobs = [{**ONE, "options": {"queue": "q"}}] * 6
    assert bulk(api, *jobs, idempotency_key="k").status == 422
    api("PUT", "/ojs/v1/queues/q/config", {"allowed_job_types": ["a"]})
    assert bulk(api, *jobs, idempotency_key="k").status == 201
    assert waiting(api, "q") == 6


def test_jobs_that_are_gone_are_told(api: Api) -> None:
    first = bulk(api, ONE, ONE, idempotency_key="k")
    gone = first.json["items"][0]["job"]["id"]
    api.post(f"/ojs/v1/jobs/{gone}/cancel")
    api("DELETE", f"/ojs/v1/admin/jobs/{gone}")
    again = bulk(api, ONE, ONE, idempotency_key="k")
    assert (again.status, again.json["items"][0]["job"]["id"]) == (201, gone)
    assert again.json["warnings"] == [
        f"Job '{gone}' was deleted. The response has the enqueued job."
    ]
