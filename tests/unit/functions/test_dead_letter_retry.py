"""Retrying and purging dead letters through the handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import BackendUnavailable
from ojs.services import bulk

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

UNKNOWN = "019539a4-0000-7000-8000-000000000000"
BASES = pytest.mark.parametrize("base", ["/ojs/v1/dead-letter", "/ojs/v1/admin/dead-letter"])


class Context:
    """A Lambda context with so much time left."""

    def __init__(self, left_ms: int) -> None:
        self.left_ms = left_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.left_ms


# --- DL-15 --------------------------------------------------------------------------------------


@BASES
def test_dl_15_a_retry_with_modifications(api: Api, base: str) -> None:
    job_id = api.dead("billing")
    override = {
        "queue": "billing-retry",
        "args": [{"amount": 1.50}],
        "meta": {"retry_source": "manual_dlq_retry"},
        "retry": {"max_attempts": 1},
    }
    job = api.post(f"{base}/{job_id}/retry", {"override": override}).json["job"]
    assert (job["id"], job["queue"], job["state"]) == (job_id, "billing-retry", "available")
    assert (job["args"], job["meta"]) == ([{"amount": 1.5}], override["meta"])
    assert (job["max_attempts"], job["attempt"], job["retry"]) == (1, 0, {"max_attempts": 1})
    assert job["errors"][0]["message"] == "no"
    (fetched,) = api.fetch("billing-retry")
    assert (fetched["id"], fetched["args"]) == (job_id, job["args"])
    assert api.fetch("billing") == []


@BASES
@pytest.mark.parametrize("body", [{}, {"override": None}, {"override": {}}, {"note": "by hand"}])
def test_dl_13_a_retry_as_it_is(api: Api, base: str, body: dict[str, Any]) -> None:
    job_id = api.dead()
    before = api.get(f"{base}/{job_id}").json
    api.clock.advance(1_000)
    job = api.post(f"{base}/{job_id}/retry", body).json["job"]
    kept = ("id", "type", "queue", "args", "meta", "max_attempts", "created_at", "errors")
    assert {name: job[name] for name in kept} == {name: before[name] for name in kept}
    assert (job["state"], job["attempt"]) == ("available", 0)
    assert job["enqueued_at"] > before["enqueued_at"]
    refused = api.post(f"{base}/{job_id}/retry", body)
    assert (refused.status, refused.error["code"]) == (409, "conflict")
    assert api.get(f"{base}/{job_id}").status == 404


REFUSED: list[tuple[Any, int, str]] = [
    ({"override": {"retry": {"max_attempts": -1}}}, 422, "override.retry.max_attempts"),
    ({"override": {"retry": {"max_interval": "PT0.1S"}}}, 422, "override.retry.max_interval"),
    ({"override": {"args": ["x" * 1_048_576]}}, 413, "override.args"),
    ({"override": {"meta": {"a": "x" * 70_000}}}, 413, "override.meta"),
    ({"override": {"state": "active"}}, 400, "override.state"),
    ({"override": {"x" * 5_000: 1}}, 400, "override." + "x" * 100),
    ({"override": {"queue": "picky"}}, 422, "type"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "field"), REFUSED, ids=range(len(REFUSED)))
def test_dl_15_what_is_refused_changes_nothing(
    api: Api, body: Any, status: int, field: str
) -> None:
    path = "/ojs/v1/queues/picky/config"
    assert api("PUT", path, {"allowed_job_types": ["other.*"]}).status == 200
    job_id = api.dead()
    before = api.get(f"/ojs/v1/dead-letter/{job_id}").json
    refused = api.post(f"/ojs/v1/dead-letter/{job_id}/retry", body)
    assert (refused.status, refused.error["details"]["field"]) == (status, field)
    assert len(refused.text) < 5_000
    assert api.get(f"/ojs/v1/dead-letter/{job_id}").json == before


def test_dl_13_a_queue_that_is_full_or_ending_refuses(api: Api) -> None:
    job_id = api.dead("a")
    api("PUT", "/ojs/v1/queues/a/config", {"max_size": 1})
    api.push("a")
    refused = api.post(f"/ojs/v1/dead-letter/{job_id}/retry")
    assert (refused.status, refused.error["code"]) == (429, "QUEUE_FULL")
    assert (refused.error["depth"], refused.headers["Retry-After"]) == (1, "5")
    api("DELETE", "/ojs/v1/queues/a", {"strategy": "drain"})
    refused = api.post(f"/ojs/v1/dead-letter/{job_id}/retry")
    assert (refused.status, refused.error["code"]) == (409, "queue_draining")
    assert api.get(f"/ojs/v1/dead-letter/{job_id}").status == 200


def test_dl_13_another_job_of_its_key_refuses(api: Api) -> None:
    unique = {"options": {"queue": "a", "unique": {"keys": ["type"]}}}
    job_id = api.active("a", options=unique["options"])
    error = {"type": "Boom", "message": "no", "retryable": False}
    api.post("/ojs/v1/workers/nack", {"job_id": job_id, "error": error})
    other = api.push("a", options=unique["options"])
    refused = api.post(f"/ojs/v1/dead-letter/{job_id}/retry")
    assert (refused.status, refused.error["code"]) == (409, "duplicate")
    assert refused.error["details"]["existing_job_id"] == other


# --- DL-14 --------------------------------------------------------------------------------------


@BASES
def test_dl_14_many_are_retried(api: Api, base: str) -> None:
    mine = [api.dead("billing") for _ in range(3)]
    other = api.dead("other")
    body = {
        "filter": {"queue": "billing", "type": "test.echo", "error_type": "Boom"},
        "confirm": True,
    }
    told = api.post(f"{base}/retry", body).json
    operation = told.pop("operation")
    assert told == {
        "action": "retry", "matched": 3, "succeeded": 3, "failed": 0, "retried": 3,
        "job_ids": mine, "errors": [],
    }  # fmt: skip
    assert operation["state"] == "completed"
    assert operation["filter"] == body["filter"]
    assert operation["finished_at"] >= operation["started_at"]
    shown = api.get(f"{base}/operations/{operation['id']}").json["operation"]
    assert shown == operation
    assert [job["id"] for job in api.fetch("billing", count=10)] == mine
    assert [job["id"] for job in api.get(base).json["jobs"]] == [other]


@BASES
@pytest.mark.parametrize(
    "how",
    [
        {"body": {"filter": {"queue": "billing"}, "confirm": True}},
        {"body": {"queue": "billing", "confirm": True}},
        {"body": {"filter": {"queue": "billing"}}, "query": {"confirm": "true"}},
        {"body": {"confirm": True}, "query": {"queue": "billing"}},
        {"query": {"queue": "billing", "confirm": "true"}},
        {"body": {}, "query": {"queue": "billing", "confirm": "true"}},
    ],
)
def test_dl_24_many_are_purged(api: Api, base: str, how: dict[str, Any]) -> None:
    for _ in range(3):
        api.dead("billing")
    other = api.dead("other")
    told = api("DELETE", base, **how).json
    assert (told["deleted"], told["purged"]) == (3, 3)
    assert (told["operation"]["action"], told["operation"]["state"]) == ("purge", "completed")
    assert [job["id"] for job in api.get(base).json["jobs"]] == [other]


@BASES
def test_dl_24_all_are_purged_when_that_is_confirmed(api: Api, base: str) -> None:
    for queue in ("a", "b"):
        api.dead(queue)
    assert api("DELETE", base, query={"confirm": "true"}).json["deleted"] == 2
    assert api.get(base).json["jobs"] == []


@BASES
def test_dl_24_old_ones_are_purged(api: Api, base: str) -> None:
    """As the command line does."""
    old = [api.dead() for _ in range(2)]
    api.clock.advance(31 * 86_400_000)
    new = api.dead()
    told = api("POST", f"{base}/purge", query={"older_than": "P30D"}).json
    assert (told["deleted"], told["purged"]) == (len(old), len(old))
    assert [job["id"] for job in api.get(base).json["jobs"]] == [new]
    for wrong in ({}, {"older_than": ""}, {"older_than": "old"}):
        refused = api("POST", f"{base}/purge", query=wrong)
        assert (refused.status, refused.error["details"]["field"]) == (400, "older_than")
    refused = api("POST", f"{base}/purge", query={"older_than": "1h", "confirmed": "true"})
    assert (refused.status, refused.error["details"]["field"]) == (400, "confirmed")


WRONG: list[tuple[str, str, Any, dict[str, str], str]] = [
    ("POST", "/retry", {}, {}, "confirm"),
    ("POST", "/retry", {"filter": {"queue": "default"}}, {}, "confirm"),
    ("POST", "/retry", {"filter": {}, "confirm": False}, {}, "confirm"),
    ("POST", "/retry", {"filter": {"priority": 1}, "confirm": True}, {}, "filter.priority"),
    ("POST", "/retry", {"filter": {"limit": 1}, "confirm": True}, {}, "filter.limit"),
    ("POST", "/retry", {"filters": {"queue": "a"}, "confirm": True}, {}, "filters"),
    ("POST", "/retry", {"override": {}, "confirm": True}, {}, "override"),
    (
        "POST", "/retry",
        {
            "filter": {"since": "2020-01-02T00:00:00Z", "until": "2020-01-01T00:00:00Z"},
            "confirm": True,
        },
        {}, "filter.since",
    ),
    ("DELETE", "", None, {}, "confirm"),
    ("DELETE", "", {}, {}, "confirm"),
    ("DELETE", "", {"queue": "default"}, {}, "confirm"),
    ("DELETE", "", None, {"queue": "default"}, "confirm"),
    ("DELETE", "", None, {"confirm": "yes"}, "confirm"),
    ("DELETE", "", {"confirm": False}, {"confirm": "true"}, "confirm"),
    ("DELETE", "", None, {"confirm": "true", "state": "discarded"}, "state"),
    ("DELETE", "", None, {"confirm": "true", "queue": "No"}, "queue"),
    ("DELETE", "", None, {"confirm": "true", "older_than": "x"}, "older_than"),
    ("DELETE", "", {"queue": "a"}, {"confirm": "true", "type": "a"}, "type"),
    ("DELETE", "", {"filter": {"queue": "a"}, "type": "a"}, {"confirm": "true"}, "filter"),
]  # fmt: skip


@BASES
@pytest.mark.parametrize(("method", "path", "body", "query", "field"), WRONG, ids=range(len(WRONG)))
def test_dl_14_what_is_not_confirmed_or_not_clear_changes_nothing(
    api: Api, base: str, method: str, path: str, body: Any, query: dict[str, str], field: str
) -> None:
    job_id = api.dead()
    refused = api(method, f"{base}{path}", body, query=query)
    assert (refused.status, refused.error["details"]["field"]) == (400, field)
    assert api.get(f"{base}/{job_id}").status == 200
    assert api.get(f"{base}/operations").json["operations"] == []


@BASES
def test_dl_14_what_does_not_fit_into_a_request_goes_on(api: Api, base: str) -> None:
    for _ in range(3):
        api.dead()
    api.context = Context(8_000)
    told = api.post(f"{base}/retry", {"confirm": True}).json
    assert (told["matched"], told["job_ids"], told["operation"]["state"]) == (0, [], "running")
    api.context = None
    api.clock.advance(1_000)
    counts = api.runtime.bulk.run_once(api.clock.now_ms(), 100)
    assert counts["retried"] == 3
    shown = api.get(f"{base}/operations/{told['operation']['id']}").json["operation"]
    assert (shown["state"], shown["succeeded"]) == ("completed", 3)


@BASES
def test_dl_14_reasons_are_told(api: Api, base: str) -> None:
    dead = [api.dead() for _ in range(25)]
    api("PUT", "/ojs/v1/queues/default/config", {"allowed_job_types": ["other.*"]})
    told = api.post(f"{base}/retry", {"confirm": True}).json
    assert (told["matched"], told["succeeded"], told["failed"]) == (25, 0, 25)
    assert len(told["errors"]) == len(told["operation"]["errors"]) == 20
    assert told["errors"][0]["job_id"] == dead[0]
    assert told["errors"][0]["code"] == "JOB_TYPE_NOT_ALLOWED"


@BASES
def test_dl_14_a_full_queue_is_told_of(api: Api, base: str) -> None:
    for _ in range(3):
        api.dead()
    api("PUT", "/ojs/v1/queues/default/config", {"max_size": 1})
    told = api.post(f"{base}/retry", {"confirm": True}).json
    assert (told["succeeded"], told["failed"]) == (1, 0)
    assert told["operation"]["waiting_for_room"] is True
    assert told["operation"]["state"] == "running"


@BASES
def test_dl_14_operations_are_listed_and_stopped(api: Api, base: str) -> None:
    begun = []
    for _ in range(4):
        api.dead()
        api.context = Context(1_000)
        begun.append(api.post(f"{base}/retry", {"confirm": True}).json["operation"]["id"])
        api.context = None
        api.clock.advance(1_000)
    begun.reverse()
    first = api.get(f"{base}/operations", limit="3").json
    assert [one["id"] for one in first["operations"]] == begun[:3]
    assert first["items"] == first["operations"]
    second = api.get(f"{base}/operations", cursor=first["pagination"]["next_cursor"]).json
    assert [one["id"] for one in second["operations"]] == begun[3:]
    by_number = api.get(f"{base}/operations", page="2", per_page="2").json
    assert [one["id"] for one in by_number["operations"]] == begun[2:]
    assert by_number["total"] == 4
    stopped = api.post(f"{base}/operations/{begun[0]}/stop").json["operation"]
    assert stopped["state"] == "stopped"
    refused = api.post(f"{base}/operations/{begun[0]}/stop")
    assert (refused.status, refused.error["code"]) == (409, "conflict")
    assert refused.error["details"]["current_state"] == "stopped"
    assert api.get(f"{base}/operations/{UNKNOWN}").status == 404
    assert api.post(f"{base}/operations/{UNKNOWN}/stop").status == 404
    for path in (f"{base}/operations/one", f"{base}/operations/one/stop"):
        refused = api("POST" if path.endswith("stop") else "GET", path)
        assert (refused.status, refused.error["details"]["field"]) == (400, "id")
    for wrong in ({"cursor": "YQ"}, {"limit": "0"}, {"state": "running"}):
        refused = api.get(f"{base}/operations", **wrong)
        assert (refused.status, refused.error["details"]["field"]) == (400, next(iter(wrong)))


def test_dl_14_a_store_in_trouble_does_not_lose_the_operation(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.dead()

    def busy(*_: Any, **__: Any) -> None:
        raise BackendUnavailable("busy")

    with monkeypatch.context() as patch:
        patch.setattr(api.runtime.bulk._redrive, "bring_back", busy)
        told = api.post("/ojs/v1/dead-letter/retry", {"confirm": True}).json
    assert (told["matched"], told["operation"]["state"]) == (0, "running")
    api.clock.advance(bulk.HOLD_MS)
    assert api.runtime.bulk.run_once(api.clock.now_ms(), 10)["retried"] == 1
