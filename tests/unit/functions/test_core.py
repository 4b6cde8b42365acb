"""What the core of the specification asks of a job's life, over HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ojs import runtime
from ojs.middleware import Refused
from tests.unit.functions.client import Api, MemoryBlobs

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from ojs.clock import ManualClock
    from ojs.middleware import Envelope, Next
    from ojs.runtime import Runtime

BASE = "/ojs/v1"
WORKERS = f"{BASE}/workers"


def job_of(api: Api, job_id: str) -> dict[str, Any]:
    reply = api.get(f"{BASE}/jobs/{job_id}")
    assert reply.status == 200, reply.text
    shown: dict[str, Any] = reply.json["job"]
    return shown


@pytest.mark.requirement("C-1", "C-2", "C-20")
def test_a_job_of_a_type_and_args_has_all_that_every_job_has(api: Api) -> None:
    job = api.post(f"{BASE}/jobs", {"type": "email.send", "args": ["a", {"b": None}]}).json["job"]
    assert (job["specversion"], job["type"], job["queue"]) == ("1.0", "email.send", "default")
    assert job["args"] == ["a", {"b": None}]
    made = uuid.UUID(job["id"])
    assert (made.version, str(made)) == (7, job["id"])
    assert (job["meta"], job["priority"]) == ({}, 0)
    assert job["max_attempts"] == 3
    assert not {"scheduled_at", "expires_at", "unique", "schema"} & job.keys()


@pytest.mark.requirement("C-4")
def test_what_a_producer_says_of_what_the_server_keeps_is_ignored(api: Api) -> None:
    forged = {
        "state": "completed", "attempt": 7, "created_at": "2001-01-01T00:00:00Z",
        "enqueued_at": "2001-01-01T00:00:00Z", "started_at": "2001-01-01T00:00:00Z",
        "completed_at": "2001-01-01T00:00:00Z", "error": {"message": "no"}, "result": 42,
    }  # fmt: skip
    reply = api.post(f"{BASE}/jobs", {"type": "email.send", "args": [], **forged})
    assert reply.status == 201
    job = reply.json["job"]
    assert (job["state"], job["attempt"]) == ("available", 0)
    assert job["created_at"] == job["enqueued_at"]
    assert not job["created_at"].startswith("2001")
    assert not {"started_at", "completed_at", "error", "result"} & job.keys()
    assert job_of(api, job["id"]) == job


@pytest.mark.requirement("C-14")
@pytest.mark.parametrize("ready", ["available", "scheduled", "active", "completed"])
def test_reading_a_job_shows_all_of_it_and_changes_nothing(
    api: Api, dynamodb: DynamoDBClient, ready: str
) -> None:
    options = {"delay_until": "+PT1H"} if ready == "scheduled" else {}
    job_id = api.push(meta={"trace": "t"}, x_own=[1], options=options)
    if ready in ("active", "completed"):
        assert [job["id"] for job in api.fetch(worker_id="w1")] == [job_id]
    if ready == "completed":
        api.post(f"{WORKERS}/ack", {"job_id": job_id, "worker_id": "w1", "result": {"n": 1}})
    stored = dynamodb.scan(TableName=api.runtime.settings.table)["Items"]
    first = api.get(f"{BASE}/jobs/{job_id}").json
    for _ in range(3):
        api.clock.advance(1_000)
        assert api.get(f"{BASE}/jobs/{job_id}").json == first
    assert dynamodb.scan(TableName=api.runtime.settings.table)["Items"] == stored
    shown = first["job"]
    assert (shown["state"], shown["meta"], shown["x_own"]) == (ready, {"trace": "t"}, [1])
    assert ("result" in shown) == (ready == "completed")


@pytest.mark.requirement("C-8", "C-16")
@pytest.mark.parametrize("batch", [False, True], ids=["one", "a batch"])
def test_middleware_changes_or_refuses_a_job_before_it_is_stored(
    make_runtime: Callable[..., Runtime],
    dynamodb: DynamoDBClient,
    clock: ManualClock,
    batch: bool,
) -> None:
    def traced(job: Envelope, following: Next) -> Envelope:
        job.meta["trace"] = "t"
        return following(job)

    def guarded(job: Envelope, following: Next) -> Envelope:
        if job.type == "forbidden.job":
            raise Refused("not welcome here", code="unwelcome", details={"field": "type"})
        return following(job)

    settings = make_runtime().settings
    built = runtime.build(
        settings, client=dynamodb, blobs=MemoryBlobs(), clock=clock, middleware=[traced, guarded]
    )
    runtime.use(built)
    api = Api(built, clock)

    def push(kind: str) -> Any:
        job = {"type": kind, "args": []}
        if batch:
            return api.post(f"{BASE}/jobs/batch", {"jobs": [{"type": "a", "args": []}, job]})
        return api.post(f"{BASE}/jobs", job)

    refused = push("forbidden.job")
    assert (refused.status, refused.error["code"]) == (422, "middleware_refused")
    why = {"field": "type", "middleware": "guarded", "reason": "unwelcome"}
    assert refused.error["details"] == why | ({"index": 1} if batch else {})
    assert dynamodb.scan(TableName=settings.table)["Count"] == 0
    assert push("welcome.job").status == 201
    assert {job["meta"]["trace"] for job in api.fetch(count=10)} == {"t"}


@pytest.mark.requirement("C-10", "C-11", "C-12", "C-20")
def test_a_client_needs_no_more_than_push_fetch_ack_fail_and_heartbeat(api: Api) -> None:
    job_id = api.push()
    (job,) = api.fetch(worker_id="w1")
    failed = {"job_id": job_id, "worker_id": "w1", "error": {"type": "Boom", "message": "no"}}
    reply = api.post(f"{WORKERS}/nack", failed).json
    assert (reply["state"], reply["attempt"], reply["max_attempts"]) == ("retryable", 1, 3)
    # The server keeps the delay, and takes the job back from a worker that is not heard of.
    assert api.fetch(worker_id="w1") == []
    api.clock.advance(reply["retry_delay_ms"])
    (job,) = api.fetch(worker_id="w1", visibility_timeout_ms=5_000)
    assert (job["id"], job["attempt"]) == (job_id, 2)
    api.clock.advance(4_000)
    beat = {"worker_id": "w1", "active_jobs": [job_id], "visibility_timeout_ms": 5_000}
    assert api.post(f"{WORKERS}/heartbeat", beat).json["jobs_extended"] == [job_id]
    api.clock.advance(4_000)
    assert job_of(api, job_id)["state"] == "active"
    api.clock.advance(1_000)
    (job,) = api.fetch(worker_id="w2")
    assert (job["id"], job["attempt"]) == (job_id, 3)
    assert api.post(f"{WORKERS}/ack", {"job_id": job_id, "worker_id": "w2"}).status == 200
    done = job_of(api, job_id)
    assert done["state"] == "completed"
    assert [error["attempt"] for error in done["errors"]] == [1, 2]


@pytest.mark.requirement("C-17")
@pytest.mark.parametrize("directive", ["quiet", "terminate"])
def test_a_worker_that_is_to_stop_finishes_what_it_has(api: Api, directive: str) -> None:
    running = api.active()
    api.push()
    api.post(f"{WORKERS}/register", {"worker_id": "w1"})
    told = {"worker_id": "w1", "directive": directive}
    assert api.post(f"{BASE}/admin/workers/directive", told).status == 200
    beat = api.post(f"{WORKERS}/heartbeat", {"worker_id": "w1", "active_jobs": [running]}).json
    assert (beat["state"], beat["directive"]) == (directive, directive)
    assert beat["jobs_extended"] == [running]
    assert api.fetch(worker_id="w1") == []
    assert len(api.fetch(worker_id="w2")) == 1
    assert api.post(f"{WORKERS}/ack", {"job_id": running, "worker_id": "w1"}).status == 200


@pytest.mark.requirement("C-18")
@pytest.mark.parametrize("state", ["available", "scheduled", "pending", "retryable"])
def test_a_job_that_was_not_started_in_time_is_discarded(api: Api, state: str) -> None:
    options: dict[str, Any] = {"expires_at": "+PT10S"}
    if state == "scheduled":
        options["delay_until"] = "+PT20S"
    if state == "pending":
        options["pending"] = True
    if state == "retryable":
        options["retry"] = {"initial_interval": "PT20S", "jitter": False}
    job_id = api.push(options=options)
    if state == "retryable":
        api.fetch(worker_id="w1")
        error = {"type": "Boom", "message": "no"}
        api.post(f"{WORKERS}/nack", {"job_id": job_id, "worker_id": "w1", "error": error})
    api.clock.advance(9_999)
    assert job_of(api, job_id)["state"] == state
    api.clock.advance(1)
    assert api.fetch() == []
    gone = job_of(api, job_id)
    assert (gone["state"], gone["error"]["type"]) == ("discarded", "expired")
    assert gone["discarded_at"]
    assert "completed_at" not in gone
    api.clock.advance(3_600_000)
    assert api.fetch() == []
    assert api.post(f"{BASE}/jobs/{job_id}/activate").status == 409
