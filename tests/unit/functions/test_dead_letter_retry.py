"""Retrying and purging dead letters through the handler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from functions.admin.handler import handler as admin
from local.events import event_from_request
from local.http_server import Request
from ojs.domain.errors import BackendUnavailable
from ojs.domain.filters.dead_letters import FIELDS
from ojs.domain.requests import FILLED
from ojs.services.bulk import runner as bulk
from tests.spread import spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.unit.functions.client import Api

UNKNOWN = "019539a4-0000-7000-8000-000000000000"
BASES = ("/ojs/v1/dead-letter", "/ojs/v1/admin/dead-letter")
AT_BOTH = pytest.mark.parametrize("base", BASES)


def numbered(cases: Sequence[Any]) -> list[str]:
    """Each case's number, for one base after the other."""
    return [f"{number}-{base}" for number in range(len(cases)) for base in BASES]


class Context:
    """A Lambda context with so much time left."""

    def __init__(self, left_ms: int) -> None:
        self.left_ms = left_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.left_ms


# --- one ----------------------------------------------------------------------------------------


@pytest.mark.requirement("DL-15")
@AT_BOTH
def test_a_retry_with_modifications(api: Api, base: str) -> None:
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


@pytest.mark.requirement("DL-13", "DL-24")
@AT_BOTH
@pytest.mark.parametrize("body", [{}, {"override": None}, {"override": {}}])
def test_a_retry_as_it_is(api: Api, base: str, body: dict[str, Any]) -> None:
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


@pytest.mark.requirement("DL-15")
@pytest.mark.parametrize(("body", "status", "field"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused_changes_nothing(api: Api, body: Any, status: int, field: str) -> None:
    path = "/ojs/v1/queues/picky/config"
    assert api("PUT", path, {"allowed_job_types": ["other.*"]}).status == 200
    job_id = api.dead()
    before = api.get(f"/ojs/v1/dead-letter/{job_id}").json
    refused = api.post(f"/ojs/v1/dead-letter/{job_id}/retry", body)
    assert (refused.status, refused.error["details"]["field"]) == (status, field)
    assert len(refused.text) < 5_000
    assert api.get(f"/ojs/v1/dead-letter/{job_id}").json == before


@pytest.mark.requirement("DL-13")
def test_a_queue_that_is_full_or_ending_refuses(api: Api) -> None:
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


@pytest.mark.requirement("DL-13")
def test_another_job_of_its_key_refuses(api: Api) -> None:
    unique = {"options": {"queue": "a", "unique": {"keys": ["type"]}}}
    job_id = api.active("a", options=unique["options"])
    error = {"type": "Boom", "message": "no", "retryable": False}
    api.post("/ojs/v1/workers/nack", {"job_id": job_id, "error": error})
    other = api.push("a", options=unique["options"])
    refused = api.post(f"/ojs/v1/dead-letter/{job_id}/retry")
    assert (refused.status, refused.error["code"]) == (409, "duplicate")
    assert refused.error["details"]["existing_job_id"] == other


# --- many ---------------------------------------------------------------------------------------


@pytest.mark.requirement("DL-14", "DL-24")
@AT_BOTH
def test_many_are_retried(api: Api, base: str) -> None:
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


@pytest.mark.requirement("DL-24")
@AT_BOTH
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
def test_many_are_purged(api: Api, base: str, how: dict[str, Any]) -> None:
    for _ in range(3):
        api.dead("billing")
    other = api.dead("other")
    told = api("DELETE", base, **how).json
    assert (told["deleted"], told["purged"]) == (3, 3)
    assert (told["operation"]["action"], told["operation"]["state"]) == ("purge", "completed")
    assert [job["id"] for job in api.get(base).json["jobs"]] == [other]


@pytest.mark.requirement("DL-24")
@AT_BOTH
@pytest.mark.parametrize(
    "how",
    [
        {"body": {"all": True, "confirm": True}},
        {"query": {"all": "true", "confirm": "true"}},
        {"body": {"all": True}, "query": {"confirm": "true"}},
        {"body": {"confirm": True}, "query": {"all": "true"}},
        {"body": {"all": True, "confirm": True}, "query": {"all": "true", "confirm": "true"}},
    ],
)
def test_all_are_purged_when_that_is_said_and_confirmed(
    api: Api, base: str, how: dict[str, Any]
) -> None:
    for queue in ("a", "b"):
        api.dead(queue)
    assert api("DELETE", base, **how).json["deleted"] == 2
    assert api.get(base).json["jobs"] == []


@pytest.mark.requirement("DL-14")
@AT_BOTH
def test_all_are_retried_when_that_is_said_and_confirmed(api: Api, base: str) -> None:
    dead = [api.dead(queue) for queue in ("a", "b")]
    told = api.post(f"{base}/retry", {"all": True, "confirm": True}).json
    assert (told["job_ids"], told["operation"]["filter"]) == (dead, {})


@pytest.mark.requirement("DL-24")
@AT_BOTH
def test_old_ones_are_purged(api: Api, base: str) -> None:
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


NOT_TRUE: tuple[Any, ...] = (False, None, "", "true", "yes", 1, 0, [], {})
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
    # Nothing says what is meant.
    ("POST", "/retry", {"confirm": True}, {}, "filter"),
    ("POST", "/retry", {"filter": None, "confirm": True}, {}, "filter"),
    ("POST", "/retry", {"filter": {}, "confirm": True}, {}, "filter"),
    ("DELETE", "", None, {"confirm": "true"}, "filter"),
    ("DELETE", "", {"confirm": True}, {}, "filter"),
    ("DELETE", "", {"filter": None, "confirm": True}, {}, "filter"),
    ("DELETE", "", {"filter": {}, "confirm": True}, {}, "filter"),
    ("DELETE", "", {"filter": {}, "queue": "default", "confirm": True}, {}, "filter"),
    ("DELETE", "", {"filter": {}}, {"confirm": "true", "queue": "default"}, "queue"),
    ("DELETE", "", {"queue": "default"}, {"confirm": "true", "queue": "a"}, "queue"),
    ("DELETE", "", {"queue": "default", "confirm": True}, {"confirm": "false"}, "confirm"),
    # The word for everything, and another.
    *(
        ("POST", "/retry", {"all": wrong, "confirm": True}, {}, "all")
        for wrong in NOT_TRUE
    ),
    *(
        ("DELETE", "", {"all": wrong, "confirm": True}, {}, "all")
        for wrong in NOT_TRUE
    ),
    *(
        ("DELETE", "", None, {"all": wrong, "confirm": "true"}, "all")
        for wrong in ("", "false", "True", "1", "yes", " true", "true,true", "true,false")
    ),
    ("DELETE", "", {"all": False}, {"all": "true", "confirm": "true"}, "all"),
    ("DELETE", "", {"all": True}, {"all": "", "confirm": "true"}, "all"),
    ("POST", "/retry", {"all": True, "filter": {"queue": "default"}, "confirm": True}, {}, "all"),
    ("POST", "/retry", {"all": True, "filter": {}, "confirm": True}, {}, "all"),
    ("DELETE", "", {"all": True, "filter": {"queue": "default"}, "confirm": True}, {}, "all"),
    ("DELETE", "", {"all": True, "filter": {}, "confirm": True}, {}, "all"),
    ("DELETE", "", {"all": True, "queue": "default", "confirm": True}, {}, "all"),
    ("DELETE", "", {"all": True, "confirm": True}, {"queue": "default"}, "all"),
    ("DELETE", "", {"filter": {"queue": "default"}}, {"all": "true", "confirm": "true"}, "all"),
    ("DELETE", "", None, {"all": "true", "queue": "default", "confirm": "true"}, "all"),
    # What a request does not read, it does not take.
    ("POST", "/retry", {"all": True, "confirm": True}, {"queue": "default"}, "queue"),
    ("POST", "/retry", {"all": True, "confirm": True}, {"queue": ""}, "queue"),
    ("POST", "/retry", {"confirm": True}, {"all": "true"}, "all"),
    ("POST", "/purge", None, {"older_than": "PT0S", "all": "true"}, "all"),
    ("POST", "/purge", {"type": "a.b"}, {"older_than": "PT0S"}, "body"),
    ("POST", "/purge", {"filter": {"type": "a.b"}}, {"older_than": "PT0S"}, "body"),
    # A confirmation that is none.
    ("DELETE", "", {"all": True}, {"confirm": ""}, "confirm"),
    ("DELETE", "", {"all": True, "confirm": True}, {"confirm": ""}, "confirm"),
    ("DELETE", "", {"all": True, "confirm": None}, {"confirm": "true"}, "confirm"),
    ("DELETE", "", {"all": True, "confirm": ""}, {"confirm": "true"}, "confirm"),
    ("POST", "/retry", {"all": True, "confirm": None}, {}, "confirm"),
    # Twice the same, as API Gateway hands it on.
    ("DELETE", "", {"all": True}, {"confirm": "true,true"}, "confirm"),
    ("DELETE", "", None, {"queue": "default,default", "confirm": "true"}, "queue"),
    ("DELETE", "", None, {"type": "test.echo,test.echo", "confirm": "true"}, "type"),
    ("DELETE", "", None, {"older_than": "PT0S,PT0S", "confirm": "true"}, "older_than"),
]  # fmt: skip


@pytest.mark.requirement("DL-14")
@pytest.mark.parametrize(
    ("base", "method", "path", "body", "query", "field"),
    spread(((base, *case) for case in WRONG for base in BASES), 3, ids=numbered(WRONG)),
)
def test_what_is_not_confirmed_or_not_clear_changes_nothing(
    api: Api, base: str, method: str, path: str, body: Any, query: dict[str, str], field: str
) -> None:
    job_id = api.dead()
    refused = api(method, f"{base}{path}", body, query=query)
    assert (refused.status, refused.error["details"]["field"]) == (400, field)
    assert api.get(f"{base}/{job_id}").status == 200
    assert api.get(f"{base}/operations").json["operations"] == []


def empty_filters() -> Iterator[tuple[str, str, Any, dict[str, str], str]]:
    """Every field without a value, alone and beside another one, wherever it may stand."""
    for name in FIELDS:
        other = {"type": "test.echo"} if name == "queue" else {"queue": "default"}
        for beside in ({}, other):
            yield "DELETE", "", None, {**beside, name: "", "confirm": "true"}, name
            yield "POST", "/purge", None, {"older_than": "PT0S", **beside, name: ""}, name
            for empty in ("", None):
                given = {**beside, name: empty}
                yield "POST", "/retry", {"filter": given}, {}, f"filter.{name}"
                yield "DELETE", "", {"filter": given}, {}, f"filter.{name}"
                yield "DELETE", "", given, {}, name


EMPTY = list(empty_filters())


@pytest.mark.requirement("DL-14")
@pytest.mark.parametrize(
    ("base", "method", "path", "body", "query", "field"),
    spread(((base, *case) for case in EMPTY for base in BASES), 9, ids=numbered(EMPTY)),
)
def test_a_filter_that_is_empty_means_nothing(
    api: Api, base: str, method: str, path: str, body: Any, query: dict[str, str], field: str
) -> None:
    job_id = api.dead()
    api.clock.advance(1_000)
    confirmed = None if body is None else {**body, "confirm": True}
    refused = api(method, f"{base}{path}", confirmed, query=query)
    details = refused.error["details"]
    assert (refused.status, details["field"]) == (400, field)
    assert details["reason"] == FILLED or details["reason"].startswith("is required. Send a dur")
    assert api.get(f"{base}/{job_id}").status == 200
    assert api.get(f"{base}/operations").json["operations"] == []


@pytest.mark.requirement("DL-14")
@AT_BOTH
@pytest.mark.parametrize(
    ("method", "target", "field"),
    [
        ("DELETE", "?args=&args=&confirm=true", "args"),
        ("DELETE", "?args=1&args=2&confirm=true", "args"),
        ("DELETE", "?error_type=Boom&error_type=&confirm=true", "error_type"),
        ("DELETE", "?queue=default&queue=other&confirm=true", "queue"),
        ("DELETE", "?queue=default&%71ueue=default&confirm=true", "queue"),
        ("DELETE", "?queue=default&confirm=true&confirm=", "confirm"),
        ("DELETE", "?all=true&all=true&confirm=true", "all"),
        ("POST", "/purge?older_than=PT0S&args=&args=", "args"),
        ("POST", "/purge?older_than=PT0S&older_than=P30D", "older_than"),
    ],
)
def test_a_parameter_that_is_there_twice_is_refused(
    api: Api, base: str, method: str, target: str, field: str
) -> None:
    job_id = api.dead()
    api.clock.advance(1_000)
    request = Request(method, base + target, [], b"", "HTTP/1.1", "127.0.0.1")
    answer = admin(event_from_request(request, "$default"), None)
    details = json.loads(answer["body"])["error"]["details"]
    assert (answer["statusCode"], details["field"]) == (400, field)
    assert api.get(f"{base}/{job_id}").status == 200
    assert api.get(f"{base}/operations").json["operations"] == []


def test_listings_refuse_an_empty_parameter(api: Api) -> None:
    api.dead()
    for name in FIELDS:
        reply = api.get("/ojs/v1/dead-letter", **{name: ""})
        assert (reply.status, reply.error["details"]["field"]) == (400, name)


@pytest.mark.requirement("DL-14")
@AT_BOTH
def test_what_does_not_fit_into_a_request_goes_on(api: Api, base: str) -> None:
    for _ in range(3):
        api.dead()
    api.context = Context(8_000)
    told = api.post(f"{base}/retry", {"all": True, "confirm": True}).json
    assert (told["matched"], told["job_ids"], told["operation"]["state"]) == (0, [], "running")
    api.context = None
    api.clock.advance(1_000)
    counts = api.runtime.bulk.run_once(api.clock.now_ms(), 100)
    assert counts["retried"] == 3
    shown = api.get(f"{base}/operations/{told['operation']['id']}").json["operation"]
    assert (shown["state"], shown["succeeded"]) == ("completed", 3)


@pytest.mark.requirement("DL-14")
@AT_BOTH
def test_reasons_are_told(api: Api, base: str) -> None:
    dead = [api.dead() for _ in range(25)]
    api("PUT", "/ojs/v1/queues/default/config", {"allowed_job_types": ["other.*"]})
    told = api.post(f"{base}/retry", {"all": True, "confirm": True}).json
    assert (told["matched"], told["succeeded"], told["failed"]) == (25, 0, 25)
    assert len(told["errors"]) == len(told["operation"]["errors"]) == 20
    assert told["errors"][0]["job_id"] == dead[0]
    assert told["errors"][0]["code"] == "JOB_TYPE_NOT_ALLOWED"


@pytest.mark.requirement("DL-14")
@AT_BOTH
def test_a_full_queue_is_told_of(api: Api, base: str) -> None:
    for _ in range(3):
        api.dead()
    api("PUT", "/ojs/v1/queues/default/config", {"max_size": 1})
    told = api.post(f"{base}/retry", {"all": True, "confirm": True}).json
    assert (told["succeeded"], told["failed"]) == (1, 0)
    assert told["operation"]["waiting_for_room"] is True
    assert told["operation"]["state"] == "running"


@pytest.mark.requirement("DL-14")
@AT_BOTH
def test_operations_are_listed_and_stopped(api: Api, base: str) -> None:
    begun = []
    for _ in range(4):
        api.dead()
        api.context = Context(1_000)
        begun.append(
            api.post(f"{base}/retry", {"all": True, "confirm": True}).json["operation"]["id"]
        )
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


@pytest.mark.requirement("DL-14")
def test_a_store_in_trouble_does_not_lose_the_operation(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.dead()

    def busy(*_: Any, **__: Any) -> None:
        raise BackendUnavailable("busy")

    with monkeypatch.context() as patch:
        patch.setattr(api.runtime.bulk._redrive, "bring_back", busy)
        told = api.post("/ojs/v1/dead-letter/retry", {"all": True, "confirm": True}).json
    assert (told["matched"], told["operation"]["state"]) == (0, "running")
    api.clock.advance(bulk.CLAIM_MS)
    assert api.runtime.bulk.run_once(api.clock.now_ms(), 10)["retried"] == 1
