"""Health, manifest, dead letter, queues and workers through the handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from functions.admin import handler as module
from ojs.api import operations as contract
from ojs.api import system as manifest
from ojs.clock import ManualClock, SystemClock
from ojs.domain.access import Scope
from ojs.domain.errors import BackendContended, BackendUnavailable

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

UNKNOWN = "019539a4-0000-7000-8000-000000000000"
DEAD_LETTER = pytest.mark.parametrize("base", ["/ojs/v1/dead-letter", "/ojs/v1/admin/dead-letter"])
HEALTH = pytest.mark.parametrize("base", ["", "/ojs/v1"])


@HEALTH
def test_health_measures_the_store(api: Api, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(SystemClock().now_ms())
    monkeypatch.setattr(module.app, "_clock", clock)
    first = api.get(f"{base}/health").json
    clock.advance(90_000)
    reply = api.get(f"{base}/health")
    assert reply.status == 200
    assert reply.json["status"] == "ok"
    assert reply.json["server_version"] == "1.2.3"
    assert reply.json["uptime_seconds"] - first["uptime_seconds"] == 90
    assert reply.json["backend"] == {"type": "dynamodb", "status": "ok", "latency_ms": 0}
    assert reply.json["maintenance"] is False
    assert api.get(f"{base}/ready").json == {"status": "ready"}


@HEALTH
def test_health_says_when_the_store_is_down(
    api: Api, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: Any, **__: Any) -> None:
        raise BackendUnavailable("The storage service can't be reached.")

    monkeypatch.setattr(api.runtime.table, "get", down)
    reply = api.get(f"{base}/health")
    assert (reply.status, reply.json["status"]) == (503, "degraded")
    assert reply.json["backend"]["status"] == "unhealthy"
    assert int(reply.headers["Retry-After"]) > 0
    ready = api.get(f"{base}/ready")
    assert (ready.status, ready.json) == (503, {"status": "unavailable"})


def test_a_store_that_is_down_is_503_everywhere(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: Any, **__: Any) -> None:
        raise BackendUnavailable("DynamoDB throttled the request.", retry_after_s=7)

    monkeypatch.setattr(api.runtime.enqueue, "push", down)
    reply = api.post("/ojs/v1/jobs", {"type": "a", "args": []})
    assert (reply.status, reply.headers["Retry-After"]) == (503, "7")
    assert (reply.error["code"], reply.error["retryable"]) == ("backend_unavailable", True)


def test_a_defect_is_500_without_its_cause(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("secret-name")

    monkeypatch.setattr(api.runtime.enqueue, "push", broken)
    reply = api.post("/ojs/v1/jobs", {"type": "a", "args": ["private-argument"]})
    assert (reply.status, reply.error["code"], reply.error["retryable"]) == (
        500, "backend_error", True,
    )  # fmt: skip
    assert "secret-name" not in reply.text
    (record,) = caplog.records
    assert record.__dict__["correlation_id"] == reply.headers["X-Request-Id"]
    assert record.__dict__["operation"] == "enqueue_job"
    assert "secret-name" in caplog.text
    assert "private-argument" not in caplog.text


def test_others_that_are_quicker_are_a_warning_without_a_stack(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def contended(*_: Any, **__: Any) -> None:
        raise BackendContended("Concurrent requests enqueued the same unique job.")

    monkeypatch.setattr(api.runtime.enqueue, "push", contended)
    reply = api.post("/ojs/v1/jobs", {"type": "a", "args": []})
    assert (reply.status, reply.error["code"]) == (503, "backend_unavailable")
    assert reply.headers["Retry-After"] == "1"
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert record.__dict__["status"] == 503


def test_the_manifest_is_true(api: Api) -> None:
    shown = api.get("/ojs/manifest").json
    assert shown["specversion"] == shown["ojs_version"] == "1.0"
    assert shown["implementation"]["version"] == "1.2.3"
    assert shown["protocols"] == ["http"]
    paths = {operation.path for operation in contract.OPERATIONS}
    assert {shown["endpoints"][name] for name in ("manifest", "health", "openapi")} <= paths
    offered = shown["capabilities"]
    for capability, path in (
        ("batch_enqueue", "/ojs/v1/jobs/batch"),
        ("cron_jobs", "/ojs/v1/cron"),
        ("dead_letter", "/ojs/v1/dead-letter"),
        ("pause_resume", "/ojs/v1/queues/{name}/pause"),
        ("schema_validation", "/ojs/v1/schemas"),
        ("workflows", "/ojs/v1/workflows"),
    ):
        assert offered[capability] == (path in paths)
    limited = {"type": "a", "args": [], "options": {"rate_limit": {"max_per_second": 1}}}
    assert offered["rate_limiting"] == (api.post("/ojs/v1/jobs", limited).status == 201)
    unique = {"type": "a", "args": [], "options": {"unique": {}}}
    assert api.post("/ojs/v1/jobs", unique).status == 201
    assert offered["unique_jobs"] == (api.post("/ojs/v1/jobs", unique).status == 409)
    assert offered.keys() == manifest.CAPABILITIES.keys()


# What ojs-admin-api describes, sections 6 to 12; each is below /ojs/v1/admin/.
ADMIN_API = (
    "GET queues", "GET queues/{name}", "POST queues/{name}/pause", "POST queues/{name}/resume",
    "DELETE queues/{name}/jobs", "PUT queues/{name}/config", "GET jobs", "GET jobs/{id}",
    "POST jobs/{id}/cancel", "POST jobs/{id}/retry", "POST jobs/bulk/retry",
    "POST jobs/bulk/cancel", "POST jobs/bulk/delete", "GET workers", "GET workers/{id}",
    "POST workers/{id}/quiet", "DELETE workers/{id}", "GET stats", "GET stats/history",
    "GET dead-letter", "POST dead-letter/{id}/retry", "DELETE dead-letter",
    "POST system/maintenance", "GET system/config",
)  # fmt: skip


@pytest.mark.requirement("ADM-8")
def test_the_admin_api_is_there_where_the_manifest_names_it() -> None:
    assert "admin-api" in manifest.EXTENSIONS
    offered = {f"{each.method} {each.path}": each for each in contract.OPERATIONS}
    for row in ADMIN_API:
        method, path = row.split()
        operation = offered.get(f"{method} /ojs/v1/admin/{path}")
        assert operation, row
        scope = operation.permission.scope
        assert scope is (Scope.ADMIN_READ if method == "GET" else Scope.ADMIN_WRITE), row


def test_the_manifest_is_read_before_a_version_is_chosen(api: Api) -> None:
    assert api("GET", "/ojs/manifest", headers={"OJS-Version": "2.0"}).status == 200


def test_the_openapi_document_is_served(api: Api) -> None:
    reply = api.get("/ojs/v1/openapi.json")
    assert reply.status == 200
    assert reply.json["openapi"].startswith("3.1")
    for schema in reply.json["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@DEAD_LETTER
def test_dead_letters_are_listed_by_page(api: Api, base: str) -> None:
    dead = []
    for _ in range(5):
        dead.append(api.dead("q"))
        api.clock.advance(1_000)
    dead.reverse()
    api.dead("other")
    first = api.get(base, queue="q", limit="2")
    assert [job["id"] for job in first.json["jobs"]] == dead[:2]
    assert first.json["items"] == first.json["jobs"]
    assert first.json["pagination"]["has_more"] is True
    # What the projection counted, and no fewer than were seen.
    assert first.json["total"] == 3
    job = first.json["jobs"][0]
    assert job["errors"][0]["type"] == "Boom"
    assert job["metadata"].keys() == {"created_at", "discarded_at"}
    second = api.get(base, queue="q", limit="2", cursor=first.json["pagination"]["next_cursor"])
    assert [job["id"] for job in second.json["jobs"]] == dead[2:4]
    for query in ({"offset": "2"}, {"page": "2"}, {"page": "2", "per_page": "2"}):
        reply = api.get(base, queue="q", **{"limit": "2", **query})
        assert [job["id"] for job in reply.json["jobs"]] == dead[2:4]
        assert reply.json["pagination"]["page"] == 2
    last = api.get(base, queue="q", limit="2", page="3").json
    assert [job["id"] for job in last["jobs"]] == dead[4:]
    assert last["pagination"]["has_more"] is False
    assert last["total"] == last["pagination"]["total"] == 5
    assert api.get(base, queue="q", offset="900").json["jobs"] == []
    assert len(api.get(base).json["jobs"]) == 6
    assert api.get(base, type="no.such").json["jobs"] == []


@pytest.mark.requirement("ADM-17")
@DEAD_LETTER
def test_a_dead_letter_is_read_and_retried(api: Api, base: str) -> None:
    job_id = api.dead()
    detail = api.get(f"{base}/{job_id}").json
    assert detail["id"] == detail["job"]["id"] == job_id
    assert detail["errors"][0]["message"] == "no"
    job = api("POST", f"{base}/{job_id}/retry").json["job"]
    assert (job["id"], job["state"], job["attempt"]) == (job_id, "available", 0)
    assert job["errors"][0]["message"] == "no"
    assert api.post(f"{base}/{job_id}/retry").status == 409
    assert api.get(f"{base}/{job_id}").status == 404


@pytest.mark.requirement("DL-24")
def test_a_deleted_dead_letter_is_gone(api: Api) -> None:
    job_id = api.dead()
    reply = api("DELETE", f"/ojs/v1/dead-letter/{job_id}")
    assert (reply.status, reply.json) == (200, {"deleted": True, "job_id": job_id})
    assert api.get(f"/ojs/v1/jobs/{job_id}").status == 404
    job_id = api.dead()
    reply = api("DELETE", f"/ojs/v1/admin/dead-letter/{job_id}")
    assert (reply.status, reply.text) == (204, "")
    assert "Content-Type" not in reply.headers
    assert api("DELETE", f"/ojs/v1/admin/dead-letter/{job_id}").status == 404


@DEAD_LETTER
def test_only_dead_letters_are_dead_letters(api: Api, base: str) -> None:
    for job_id in (api.push(), UNKNOWN):
        for reply in (
            api.get(f"{base}/{job_id}"),
            api("DELETE", f"{base}/{job_id}"),
            api.post(f"{base}/{job_id}/retry"),
        ):
            assert (reply.status, reply.error["code"]) == (404, "not_found")


@pytest.mark.requirement("ADM-2")
@pytest.mark.parametrize("base", ["/ojs/v1/queues", "/ojs/v1/admin/queues"])
def test_a_queue_is_paused_and_resumed(api: Api, base: str) -> None:
    paused = api("POST", f"{base}/email/pause").json
    assert (paused["queue"]["name"], paused["queue"]["paused"]) == ("email", True)
    assert (paused["name"], paused["status"], paused["state"]) == ("email", "paused", "paused")
    assert paused["paused"] is True
    assert paused["paused_at"]
    api.push("email")
    assert api.fetch("email") == []
    resumed = api.post(f"{base}/email/resume").json
    assert (resumed["paused"], resumed["queue"]["paused"]) == (False, False)
    assert resumed["status"] == "active"
    assert resumed["resumed_at"]
    assert len(api.fetch("email")) == 1
    for name in ("_default", "No", "a|b", "ü", "x" * 256):
        reply = api.post(f"{base}/{name}/pause")
        assert (reply.status, reply.error["details"]["field"]) == (400, "name")


@pytest.mark.requirement("ADM-6", "ADM-11", "ADM-16")
def test_workers_are_listed_directed_and_removed(api: Api) -> None:
    for number in range(3):
        api.post("/ojs/v1/workers/register", {"worker_id": f"w{number}"})
    page = api.get("/ojs/v1/admin/workers", limit="2").json
    assert page["items"] == page["workers"]
    assert "summary" not in page
    rest = api.get(
        "/ojs/v1/admin/workers", limit="2", cursor=page["pagination"]["next_cursor"]
    ).json
    assert {worker["id"] for worker in page["items"] + rest["items"]} == {"w0", "w1", "w2"}
    quiet = api("POST", "/ojs/v1/admin/workers/w1/quiet").json
    assert (quiet["directive"], quiet["worker"]["directive"]) == ("quiet", "quiet")
    beat = api.post("/ojs/v1/workers/heartbeat", {"worker_id": "w1"}).json
    assert beat["state"] == "quiet"
    body = {"worker_id": "w2", "directive": "terminate"}
    assert api.post("/ojs/v1/admin/workers/directive", body).json["directive"] == "terminate"
    summary = api.get("/ojs/v1/admin/workers").json["summary"]
    assert summary == {"total": 3, "running": 1, "quiet": 2, "stale": 0}
    api.clock.advance(60_000)
    assert api.get("/ojs/v1/admin/workers").json["summary"]["stale"] == 3
    assert api("DELETE", "/ojs/v1/admin/workers/w1").status == 200
    for reply in (
        api("DELETE", "/ojs/v1/admin/workers/w1"),
        api.get("/ojs/v1/admin/workers/w1"),
        api("POST", "/ojs/v1/admin/workers/w1/quiet"),
        api.post("/ojs/v1/admin/workers/directive", {**body, "worker_id": "w1"}),
    ):
        assert (reply.status, reply.error["details"]["resource"]) == (404, "worker")


@pytest.mark.parametrize(
    "path", ["/", "/nothing", "/ojs/v1", "/ojs/v1/cronx", "/ojs/v2/jobs", "/ojs/v1/jobs/a/b/c",
             "/ojs/v1/jobs/", "/ojs/v1/workers/x/y/z", "/ojs/v1/jobsx", "/ojs/v1/jobs\n",
             "/ojs/v1/\udcff", "//ojs/v1/jobs", "/" + "x" * 9_000, ""],
)  # fmt: skip
def test_unknown_routes_answer_in_json(api: Api, path: str) -> None:
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"):
        reply = api(method, path)
        assert (reply.status, reply.error["code"]) == (404, "not_found")
        assert reply.error["details"]["resource"] == "route"
        reply.text.encode("utf-8")


def test_an_event_stream_is_not_served(api: Api) -> None:
    for path in (
        "/ojs/v1/events/stream",
        "/ojs/v1/admin/stats/stream",
        f"/ojs/v1/jobs/{UNKNOWN}/progress/stream",
    ):
        reply = api.get(path)
        assert (reply.status, reply.error["code"]) == (422, "unsupported")
        assert reply.error["details"] == {"feature": "event-streams"}
        assert "Poll" in reply.error["message"]
