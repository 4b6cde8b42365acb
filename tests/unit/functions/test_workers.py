"""`/ojs/v1/workers…` through the handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

BASE = "/ojs/v1/workers"
UNKNOWN = "019539a4-0000-7000-8000-000000000000"


@pytest.mark.requirement("C-9")
def test_fetch_hands_out_the_whole_job(api: Api) -> None:
    job_id = api.push("email", meta={"trace_id": "t"}, x_own=1)
    (job,) = api.fetch("email", worker_id="w1")
    assert (job["id"], job["state"], job["attempt"]) == (job_id, "active", 1)
    assert (job["meta"], job["x_own"], job["worker_id"]) == ({"trace_id": "t"}, 1, "w1")
    assert job["started_at"]
    assert job["lease_token"]


def test_fetch_of_nothing_is_an_empty_list(api: Api) -> None:
    reply = api.post(f"{BASE}/fetch", {"queues": ["nothing-here"]})
    assert (reply.status, reply.json) == (200, {"jobs": []})


def test_fetch_takes_null_for_what_is_not_given(api: Api) -> None:
    api.push()
    body = {
        "queues": ["default"],
        "count": None,
        "worker_id": None,
        "visibility_timeout_ms": None,
        "strategy": None,
        "pool": None,
        "weights": None,
    }
    assert len(api.post(f"{BASE}/fetch", body).json["jobs"]) == 1


@pytest.mark.requirement("C-9", "FS-4")
def test_fetch_order_over_several_queues(api: Api) -> None:
    for queue in ("a", "b"):
        for _ in range(2):
            api.push(queue)
    fetched = api.post(f"{BASE}/fetch", {"queues": ["a", "b"], "count": 4}).json["jobs"]
    assert [job["queue"] for job in fetched] == ["a", "b", "a", "b"]
    for queue in ("c", "d"):
        for _ in range(2):
            api.push(queue)
    body = {"queues": ["d", "c"], "count": 4, "strategy": "strict", "pool": "default"}
    fetched = api.post(f"{BASE}/fetch", body).json["jobs"]
    assert [job["queue"] for job in fetched] == ["d", "d", "c", "c"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("types", ["a"]),
        ("wait", True),
    ],
)
def test_fetch_refuses_what_it_does_not_offer(api: Api, field: str, value: Any) -> None:
    job_id = api.push()
    reply = api.post(f"{BASE}/fetch", {"queues": ["default"], field: value})
    assert (reply.status, reply.error["code"]) == (422, "unsupported")
    assert reply.error["details"]["field"] == field
    assert api.get(f"/ojs/v1/jobs/{job_id}").json["state"] == "available"


@pytest.mark.requirement("FS-5")
def test_a_worker_says_what_order_it_wishes(api: Api) -> None:
    """Weights without a strategy are for the weighted one."""
    for queue in ("a", "b"):
        for _ in range(4):
            api.push(queue)
    body = {"queues": ["a", "b"], "count": 4, "weights": {"a": 1, "b": 3}}
    fetched = api.post(f"{BASE}/fetch", body).json["jobs"]
    assert sorted(job["queue"] for job in fetched) == ["a", "b", "b", "b"]


@pytest.mark.requirement("FS-9", "FS-10", "FS-29")
def test_a_worker_of_a_pool(api: Api) -> None:
    """Wrapped or flat; said once, it holds for fetches, too."""
    job_id = api.push("a")
    api.runtime.pools.put("general", {"queues": ["a"]})
    worker = {
        "id": "w1",
        "pool": "general",
        "queues": ["critical", "default", "low"],
        "strategy": "weighted",
        "weights": {"critical": 5, "default": 3, "low": 1},
        "concurrency": 10,
    }
    assert api.post(f"{BASE}/register", {"worker": worker}).status == 200
    (shown,) = api.get(BASE).json["workers"]
    assert {name: shown[name] for name in worker} == worker
    for path, body in (
        ("fetch", {"queues": ["a"], "worker_id": "w1"}),
        ("register", {"worker_id": "w1"}),
        ("heartbeat", {"worker_id": "w1"}),
        ("beat", {"worker_id": "w1", "state": "drain"}),
    ):
        reply = api.post(f"{BASE}/{path}", {**body, "pool": "other"})
        assert (reply.status, reply.error["code"]) == (409, "conflict")
        assert reply.error["details"]["field"] == "pool"
        assert reply.error["details"]["pool"] == "general"
    (job,) = api.post(f"{BASE}/fetch", {"worker_id": "w1"}).json["jobs"]
    assert job["id"] == job_id


@pytest.mark.requirement("FS-6")
def test_without_queues_there_must_be_a_pool(api: Api) -> None:
    """And one that is configured."""
    for body in ({}, {"worker_id": "w"}, {"pool": "p"}, {"worker_id": "w", "pool": "p"}):
        reply = api.post(f"{BASE}/fetch", body)
        assert (reply.status, reply.error["details"]["field"]) == (400, "queues")


@pytest.mark.requirement("C-10")
def test_ack_tells_what_is_done(api: Api) -> None:
    job_id = api.active()
    reply = api.post(f"{BASE}/ack", {"job_id": job_id, "worker_id": "w1", "result": {"a": 1}})
    assert reply.status == 200
    assert reply.json["acknowledged"] is True
    assert reply.json["id"] == reply.json["job_id"] == reply.json["job"]["id"] == job_id
    assert reply.json["completed_at"] == reply.json["job"]["completed_at"]
    assert reply.json["job"]["result"] == {"a": 1}


@pytest.mark.parametrize("result", [None, False, 0, "", [], {}, "text", 3.25, {"a": {"b": None}}])
def test_any_json_value_is_a_result(api: Api, result: Any) -> None:
    job_id = api.active()
    api.post(f"{BASE}/ack", {"job_id": job_id, "result": result})
    reply = api.get(f"/ojs/v1/jobs/{job_id}/result")
    assert reply.json["result"] == result


@pytest.mark.parametrize(
    "wrong", [{"worker_id": "w2"}, {"attempt": 2}, {"lease_token": "AAAAAAAA"}]
)
def test_ack_and_nack_of_another_lease_are_refused(api: Api, wrong: dict[str, Any]) -> None:
    job_id = api.active()
    for path, extra in (("ack", {}), ("nack", {"error": {"message": "m"}})):
        reply = api.post(f"{BASE}/{path}", {"job_id": job_id, **wrong, **extra})
        assert (reply.status, reply.error["code"]) == (409, "conflict")
        assert reply.error["details"]["field"] == next(iter(wrong))
    job = api.get(f"/ojs/v1/jobs/{job_id}").json
    assert job["state"] == "active"
    assert "errors" not in job


def test_ack_with_its_own_lease_token(api: Api) -> None:
    api.push()
    (job,) = api.fetch(worker_id="w1")
    body = {"job_id": job["id"], "lease_token": job["lease_token"], "attempt": 1}
    assert api.post(f"{BASE}/ack", body).status == 200


def test_a_repeated_ack_counts_once(api: Api) -> None:
    job_id = api.active()
    body = {"job_id": job_id, "worker_id": "w1", "result": 1}
    assert api.post(f"{BASE}/ack", body).status == 200
    assert api.post(f"{BASE}/ack", body).status == 200
    assert api.post(f"{BASE}/ack", {"job_id": job_id}).status == 409


@pytest.mark.requirement("C-11")
def test_nack_tells_when_it_is_tried_again(api: Api) -> None:
    job_id = api.active(options={"retry": {"initial_interval": "PT7S", "jitter": False}})
    error = {"code": "handler_error", "message": "no", "details": {"error_class": "Boom"}}
    reply = api.post(f"{BASE}/nack", {"job_id": job_id, "worker_id": "w1", "error": error}).json
    assert (reply["id"], reply["job_id"], reply["state"]) == (job_id, job_id, "retryable")
    assert (reply["attempt"], reply["max_attempts"], reply["retry_delay_ms"]) == (1, 3, 7_000)
    assert reply["next_attempt_at"] == reply["next_retry_at"]
    assert "discarded_at" not in reply
    assert reply["job"]["error"]["type"] == "Boom"


@pytest.mark.requirement("C-11")
def test_nack_of_the_last_attempt_discards(api: Api) -> None:
    job_id = api.active(options={"retry": {"max_attempts": 1}})
    reply = api.post(f"{BASE}/nack", {"job_id": job_id, "error": {"message": "no"}}).json
    assert reply["state"] == "discarded"
    assert reply["discarded_at"]
    assert reply["completed_at"]
    assert "next_attempt_at" not in reply


def test_requeue_gives_the_job_back(api: Api) -> None:
    for error in ({}, {"error": None}, {"error": {"code": "cancelled", "retryable": False}}):
        job_id = api.active("back")
        reply = api.post(f"{BASE}/nack", {"job_id": job_id, "requeue": True, **error})
        assert reply.json["state"] == reply.json["job"]["state"] == "available"
        api("DELETE", f"/ojs/v1/jobs/{job_id}")


def test_nack_needs_an_error(api: Api) -> None:
    job_id = api.active()
    for error, field in (
        ({}, "error"),
        ({"error": None}, "error"),
        ({"error": {}}, "error.message"),
        ({"error": {"code": None, "message": None}}, "error.message"),
    ):
        reply = api.post(f"{BASE}/nack", {"job_id": job_id, **error})
        assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert api.get(f"/ojs/v1/jobs/{job_id}").json["state"] == "active"


@pytest.mark.requirement("C-12", "C-13")
def test_heartbeat_extends_and_tells(api: Api) -> None:
    first, second = api.active("a"), api.active("b")
    api("DELETE", f"/ojs/v1/jobs/{second}")
    reply = api.post(
        f"{BASE}/heartbeat",
        {"worker_id": "w1", "active_jobs": [first, second], "visibility_timeout_ms": 60_000},
    ).json
    assert reply["state"] == reply["directive"] == "running"
    assert (reply["jobs_extended"], reply["cancelled_jobs"]) == ([first], [second])
    assert reply["server_time"].endswith("Z")


def test_the_next_heartbeat_is_due_after_a_third_of_the_shortest_own_lease(api: Api) -> None:
    ids = {}
    for worker, lease_ms in (("w", 60_000), ("w", 30_000), ("other", 1_000)):
        api.push(options={"visibility_timeout_ms": lease_ms})
        (job,) = api.post(
            "/ojs/v1/workers/fetch", {"queues": ["default"], "worker_id": worker}
        ).json["jobs"]
        ids[lease_ms] = job["id"]

    def interval_ms(*leases: int, **more: int) -> int:
        body = {"worker_id": "w", "active_jobs": [ids[each] for each in leases], **more}
        found: int = api.post("/ojs/v1/workers/heartbeat", body).json["heartbeat_interval_ms"]
        return found

    assert interval_ms() == interval_ms(60_000) == 20_000
    assert interval_ms(60_000, 30_000) == 10_000
    # A job of another worker does not count.
    assert interval_ms(60_000, 1_000) == 20_000
    assert interval_ms(60_000, visibility_timeout_ms=1) == 5_000
    assert interval_ms(60_000, visibility_timeout_ms=43_200_000) == 20_000


def test_heartbeat_takes_a_count_and_ids_apart(api: Api) -> None:
    job_id = api.active()
    reply = api.post(
        f"{BASE}/heartbeat",
        {
            "worker_id": "w1",
            "state": "running",
            "active_jobs": 3,
            "active_job_ids": [job_id],
            "hostname": "h",
            "pid": 1,
            "queues": ["default"],
            "concurrency": 5,
            "labels": {"zone": "a"},
            "started_at": "2026-01-01T00:00:00Z",
            "sdk": "any",
        },
    )
    assert reply.json["jobs_extended"] == [job_id]
    worker = api.get("/ojs/v1/admin/workers/w1").json
    assert (worker["active_jobs"], worker["hostname"], worker["labels"]) == (3, "h", {"zone": "a"})
    assert "sdk" not in worker


def test_a_malformed_id_in_a_heartbeat_is_named(api: Api) -> None:
    good = UNKNOWN
    for field in ("active_jobs", "active_job_ids"):
        body = {"worker_id": "w1", field: [good, good, good, "job_4"]}
        reply = api.post(f"{BASE}/heartbeat", body)
        assert (reply.status, reply.error["details"]["field"]) == (400, f"{field}[3]")
    too_many = {"worker_id": "w1", "active_jobs": [good] * 1_001}
    assert api.post(f"{BASE}/heartbeat", too_many).error["details"]["field"] == "active_jobs"


@pytest.mark.parametrize("path", ["heartbeat", "beat"])
@pytest.mark.parametrize("field", ["active_jobs", "active_job_ids"])
@pytest.mark.parametrize("wrong", [1, None, "", "job_4", UNKNOWN.upper(), {"id": UNKNOWN}, [[]]])
def test_every_id_of_a_running_job_is_checked(api: Api, path: str, field: str, wrong: Any) -> None:
    body = {"worker_id": "w1", "state": "drain", field: [UNKNOWN, UNKNOWN, UNKNOWN, wrong]}
    reply = api.post(f"{BASE}/{path}", body)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    assert reply.error["details"]["field"] == f"{field}[3]"
    # Nothing is known of a worker that was refused.
    assert api.get(f"{BASE}/w1/health").status == 404


@pytest.mark.parametrize("path", ["heartbeat", "beat"])
def test_the_number_of_running_jobs_has_a_bound(api: Api, path: str) -> None:
    many = [f"{UNKNOWN[:-4]}{n:04x}" for n in range(1_001)]
    body: dict[str, Any] = {"worker_id": "w1", "state": "drain"}
    for more, field in (
        ({"active_jobs": many}, "active_jobs"),
        ({"active_job_ids": many}, "active_job_ids"),
        ({"active_jobs": many[:600], "active_job_ids": many[500:]}, "active_job_ids"),
        ({"active_jobs": 1_000_001}, "active_jobs"),
    ):
        reply = api.post(f"{BASE}/{path}", {**body, **more})
        assert (reply.status, reply.error["details"]["field"]) == (400, field)
    twice = {"active_jobs": many[:1_000], "active_job_ids": many[:1_000]}
    assert api.post(f"{BASE}/{path}", {**body, **twice}).status == 200


def test_a_beat_may_name_its_jobs(api: Api) -> None:
    body = {"worker_id": "w1", "state": "drain", "active_jobs": [UNKNOWN, UNKNOWN]}
    assert api.post(f"{BASE}/beat", body).status == 200
    assert api.get(f"{BASE}/w1/health").json["active_jobs"] == 1


def test_a_draining_worker_gets_no_jobs(api: Api) -> None:
    api.push()
    body = {"worker_id": "w9", "state": "drain", "active_jobs": 2, "shutdown": True}
    beat = api.post(f"{BASE}/beat", body)
    assert (beat.status, beat.json["acknowledged"], beat.json["state"]) == (200, True, "drain")
    assert api.fetch(worker_id="w9") == []
    health = api.get(f"{BASE}/w9/health").json
    assert (health["state"], health["accepting_jobs"], health["active_jobs"]) == ("drain", False, 2)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_worker_registers_and_signs_off(api: Api, wrapped: bool) -> None:
    worker: dict[str, Any] = {"hostname": "h", "queues": ["a"], "labels": ["x"], "pool": "default"}
    body = {"worker": {"id": "w1", **worker}} if wrapped else {"worker_id": "w1", **worker}
    reply = api.post(f"{BASE}/register", body)
    assert reply.status == 200
    assert reply.json["ok"] is True
    assert reply.json["heartbeat_interval"] == 5
    assert reply.json["heartbeat_timeout"] == 30
    assert reply.json["visibility_timeout_default"] == 1800
    listed = api.get(BASE).json
    assert [one["id"] for one in listed["workers"]] == ["w1"]
    assert listed["summary"] == {"total": 1, "running": 1, "quiet": 0, "stale": 0}
    assert api("DELETE", f"{BASE}/w1").json == {"deleted": True, "worker_id": "w1"}
    assert api("DELETE", f"{BASE}/w1").status == 404
    assert api.get(f"{BASE}/w1/health").status == 404


def test_registration_names_fields_where_they_were(api: Api) -> None:
    for body, field in (
        ({"worker": {"id": "w", "pid": "1"}}, "worker.pid"),
        ({"worker": 5}, "worker"),
        ({"worker": {}}, "worker.worker_id"),
        ({"worker_id": "w", "queues": ["a", "B"]}, "queues[1]"),
        ({}, "worker_id"),
    ):
        reply = api.post(f"{BASE}/register", body)
        assert (reply.status, reply.error["details"]["field"]) == (400, field)


def test_progress_in_percent(api: Api) -> None:
    job_id = api.active()
    reply = api.post(f"{BASE}/progress", {"job_id": job_id, "worker_id": "w1", "percentage": 47})
    assert (reply.status, reply.json["progress"]) == (200, 0.47)
    reply = api.post(f"{BASE}/progress", {"job_id": job_id, "message": "only"})
    assert (reply.status, reply.error["details"]["field"]) == (400, "percentage")


def test_a_fixed_path_is_no_worker_id(api: Api) -> None:
    api.post(f"{BASE}/register", {"worker_id": "fetch"})
    reply = api("DELETE", f"{BASE}/fetch")
    assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
    assert reply.headers["Allow"] == "OPTIONS, POST"
    assert api.get("/ojs/v1/admin/workers/fetch").status == 200


def test_a_worker_id_with_spaces_is_reachable(api: Api) -> None:
    api.post(f"{BASE}/register", {"worker_id": "a bü"})
    # Decoded by the server in front, or not.
    assert api.get(f"{BASE}/a bü/health").status == 200
    assert api.get(f"{BASE}/a%20b%C3%BC/health").status == 200


@pytest.mark.parametrize("worker_id", ["a%b", "host/1", "a%20b"])
@pytest.mark.parametrize("name", ["worker_id", "id"])
def test_a_worker_that_no_path_could_name_is_refused(api: Api, worker_id: str, name: str) -> None:
    reply = api.post(f"{BASE}/register", {name: worker_id})
    assert (reply.status, reply.error["details"]["field"]) == (400, "worker_id")
    assert "must not contain '/' or '%'" in reply.error["message"]
    assert api.get(BASE).json["workers"] == []
