"""`/ojs/v1/jobs…` through the handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojs.api import jobs as module

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

UNKNOWN = "019539a4-0000-7000-8000-000000000000"


@pytest.mark.requirement("C-8")
def test_a_job_is_created_with_its_location(api: Api) -> None:
    reply = api.post("/ojs/v1/jobs", {"type": "email.send", "args": ["a"], "meta": {"n": 1}})
    job = reply.json["job"]
    assert reply.status == 201
    assert reply.headers["Location"] == f"/ojs/v1/jobs/{job['id']}"
    assert job["state"] == "available"
    assert job["meta"] == {"n": 1}
    assert not {"started_at", "completed_at", "error", "result"} & job.keys()


def test_numbers_keep_their_form(api: Api) -> None:
    body = '{"type":"a","args":[3.10,1,1.0,12345678901234567890,1e2],"x_rate":0.10}'
    created = api("POST", "/ojs/v1/jobs", raw=body)
    assert '"args":[3.10,1,1.0,12345678901234567890,1E+2]' in created.text
    assert '"x_rate":0.10' in created.text
    read = api.get(f"/ojs/v1/jobs/{created.json['job']['id']}")
    assert '"args":[3.10,1,1.0,12345678901234567890,1E+2]' in read.text


def test_a_duplicate_that_is_ignored_answers_200(api: Api) -> None:
    body = {"type": "a", "args": [], "options": {"unique": {"on_conflict": "ignore"}}}
    first = api.post("/ojs/v1/jobs", body)
    second = api.post("/ojs/v1/jobs", body)
    assert (first.status, second.status) == (201, 200)
    assert second.json["deduplicated"] is True
    assert second.json["job"]["id"] == first.json["job"]["id"]
    assert "Location" not in second.headers


def test_a_taken_id_conflicts(api: Api) -> None:
    job_id = api.push()
    reply = api.post("/ojs/v1/jobs", {"type": "a", "args": [], "id": job_id})
    assert (reply.status, reply.error["code"]) == (409, "duplicate")
    assert reply.error["details"]["existing_job_id"] == job_id
    assert reply.error["catalog_code"] == "OJS-3001"


@pytest.mark.requirement("C-8")
def test_a_batch_answers_in_order(api: Api) -> None:
    reply = api.post(
        "/ojs/v1/jobs/batch", {"jobs": [{"type": f"a.b{n}", "args": [n]} for n in range(5)]}
    )
    assert reply.status == 201
    assert [job["type"] for job in reply.json["jobs"]] == [f"a.b{n}" for n in range(5)]
    assert (reply.json["count"], reply.json["enqueued"], reply.json["failed"]) == (5, 5, 0)


@pytest.mark.requirement("C-8")
def test_a_batch_with_one_bad_member_stores_nothing(api: Api) -> None:
    good = {"type": "a", "args": []}
    bad_retry = {**good, "options": {"retry": {"max_attempts": -1}}}
    for bad, status, field in (
        ({"args": []}, 400, "jobs[1].type"),
        (bad_retry, 422, "jobs[1].options.retry.max_attempts"),
        ({**good, "options": {"queue": "No"}}, 400, "jobs[1].options.queue"),
        ({**good, "options": {"delay_until": "soon"}}, 400, "jobs[1].options.delay_until"),
        (7, 400, "jobs[1]"),
    ):
        reply = api.post("/ojs/v1/jobs/batch", {"jobs": [good, bad]})
        assert reply.status == status
        assert reply.error["details"]["field"] == field
        assert reply.error["details"]["index"] == 1
    assert api.fetch(count=10) == []


def test_a_job_is_read_wrapped_and_at_the_top_level(api: Api) -> None:
    job_id = api.push(x_own="kept", job="mine")
    read = api.get(f"/ojs/v1/jobs/{job_id}").json
    assert read["id"] == read["job"]["id"] == job_id
    assert read["x_own"] == read["job"]["x_own"] == "kept"
    assert read["job"]["job"] == "mine"


def test_a_large_job_is_not_sent_twice(api: Api) -> None:
    job_id = api.push(args=["x" * 300_000])
    reply = api.get(f"/ojs/v1/jobs/{job_id}")
    assert len(reply.text) < 310_000
    assert reply.json["id"] == job_id
    assert "args" not in reply.json
    assert len(reply.json["job"]["args"][0]) == 300_000


def test_an_unknown_job_is_explained(api: Api) -> None:
    for reply in (
        api.get(f"/ojs/v1/jobs/{UNKNOWN}"),
        api("DELETE", f"/ojs/v1/jobs/{UNKNOWN}"),
        api.post(f"/ojs/v1/jobs/{UNKNOWN}/cancel"),
        api.post(f"/ojs/v1/jobs/{UNKNOWN}/activate"),
        api.post(f"/ojs/v1/jobs/{UNKNOWN}/ack"),
        api.post(f"/ojs/v1/jobs/{UNKNOWN}/nack", {"error": {"message": "m"}}),
        api.get(f"/ojs/v1/jobs/{UNKNOWN}/result"),
        api.get(f"/ojs/v1/jobs/{UNKNOWN}/retries"),
        api.get(f"/ojs/v1/jobs/{UNKNOWN}/progress"),
        api("PUT", f"/ojs/v1/jobs/{UNKNOWN}/progress", {"progress": 1}),
    ):
        assert (reply.status, reply.error["code"]) == (404, "not_found")
        assert reply.error["retryable"] is False
        assert reply.error["details"]["id"] == UNKNOWN
        assert reply.error["hint"]
        assert reply.error["docs_url"].startswith("https://")


@pytest.mark.requirement("C-13")
@pytest.mark.parametrize("by_post", [False, True])
def test_cancel_tells_the_state_before_and_works_once(api: Api, by_post: bool) -> None:
    path = f"/ojs/v1/jobs/{api.push()}"
    method, path = ("POST", f"{path}/cancel") if by_post else ("DELETE", path)
    first = api(method, path)
    assert first.status == 200
    assert first.json["job"]["state"] == "cancelled"
    assert first.json["job"]["previous_state"] == "available"
    assert "cancelled_at" in first.json["job"]
    again = api(method, path)
    assert (again.status, again.error["code"]) == (409, "conflict")
    assert again.error["details"]["current_state"] == "cancelled"


@pytest.mark.requirement("C-19")
def test_activate_releases_a_pending_job_once(api: Api) -> None:
    job_id = api.push(options={"pending": True})
    assert api.fetch() == []
    job = api("POST", f"/ojs/v1/jobs/{job_id}/activate").json["job"]
    assert (job["state"], job["previous_state"]) == ("available", "pending")
    assert "activated_at" in job
    assert api.post(f"/ojs/v1/jobs/{job_id}/activate").status == 409


def test_ack_and_nack_by_path(api: Api) -> None:
    job_id = api.active()
    acked = api.post(f"/ojs/v1/jobs/{job_id}/ack", {"worker_id": "w1", "result": [1]})
    assert acked.json["job"]["state"] == acked.json["state"] == "completed"
    job_id = api.active()
    nacked = api.post(f"/ojs/v1/jobs/{job_id}/nack", {"error": {"message": "no"}})
    assert nacked.json["job"]["state"] == nacked.json["state"] == "retryable"
    job_id = api.active("other")
    assert api("POST", f"/ojs/v1/jobs/{job_id}/ack").status == 200


def test_a_result_is_202_until_it_is_there(api: Api) -> None:
    job_id = api.active()
    waiting = api.get(f"/ojs/v1/jobs/{job_id}/result")
    assert waiting.status == 202
    assert waiting.json == {"job_id": job_id, "state": "active", "result": None}
    api.post("/ojs/v1/workers/ack", {"job_id": job_id, "result": {"n": 1}})
    done = api.get(f"/ojs/v1/jobs/{job_id}/result")
    assert (done.status, done.json["state"], done.json["result"]) == (200, "completed", {"n": 1})


def test_the_result_of_a_failed_job_is_its_error(api: Api) -> None:
    reply = api.get(f"/ojs/v1/jobs/{api.dead()}/result")
    assert (reply.status, reply.json["result"]) == (200, None)
    assert reply.json["error"]["type"] == "Boom"


def test_waiting_for_a_result_ends_with_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = api.active()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            api.post("/ojs/v1/workers/ack", {"job_id": job_id, "result": 7})

    monkeypatch.setattr(module, "sleep", sleep)
    reply = api.get(f"/ojs/v1/jobs/{job_id}/result", wait="true", timeout="10")
    assert (reply.status, reply.json["result"], len(slept)) == (200, 7, 3)


@pytest.mark.parametrize(
    ("timeout", "remaining_ms", "seconds"),
    [("2", 29_000, 2.0), ("9999", 29_000, 25.0), ("20", 5_000, 3.0), ("0", 29_000, 0.0)],
)
def test_waiting_for_a_result_is_bounded(
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
    timeout: str,
    remaining_ms: int,
    seconds: float,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(module, "sleep", slept.append)

    class Context:
        @staticmethod
        def get_remaining_time_in_millis() -> int:
            return remaining_ms - round(sum(slept) * 1_000)

    api.context = Context()
    reply = api.get(f"/ojs/v1/jobs/{api.push()}/result", wait="true", timeout=timeout)
    assert reply.status == 202
    assert sum(slept) == seconds


@pytest.mark.parametrize("query", [{"wait": "maybe"}, {"timeout": "-1"}, {"timeout": "9" * 400}])
def test_a_malformed_wait_is_refused(api: Api, query: dict[str, str]) -> None:
    reply = api.get(f"/ojs/v1/jobs/{api.push()}/result", **query)
    assert (reply.status, reply.error["details"]["field"]) == (400, next(iter(query)))


def test_retries_are_the_error_history(api: Api) -> None:
    job_id = api.active()
    api.post("/ojs/v1/workers/nack", {"job_id": job_id, "error": {"message": "first"}})
    reply = api.get(f"/ojs/v1/jobs/{job_id}/retries").json
    assert [failure["message"] for failure in reply["retries"]] == ["first"]
    assert (reply["attempt"], reply["max_attempts"]) == (1, 3)


@pytest.mark.parametrize(
    ("given", "shown"), [(0.5, 0.5), (1.5, 1.0), (-3, 0.0), (1, 1.0), (1e300, 1.0)]
)
def test_progress_is_clamped_and_read_back(api: Api, given: float, shown: float) -> None:
    path = f"/ojs/v1/jobs/{api.active()}/progress"
    assert api.get(path).json["progress"] is None
    body: dict[str, Any] = {"progress": given, "message": "on it", "data": {"rows": 3}}
    assert api("PUT", path, body).json["progress"] == shown
    read = api.get(path).json
    assert (read["progress"], read["message"], read["data"]) == (shown, "on it", {"rows": 3})


@pytest.mark.parametrize("by_worker", [False, True])
def test_a_report_of_a_job_that_is_not_active_is_ignored_and_says_so(
    api: Api, by_worker: bool
) -> None:
    """PRG-007: not an error."""
    job_id = api.push()
    method, path = "PUT", f"/ojs/v1/jobs/{job_id}/progress"
    body: dict[str, Any] = {"progress": 0.5}
    if by_worker:
        method, path = "POST", "/ojs/v1/workers/progress"
        body = {"job_id": job_id, "percentage": 50}
    reply = api(method, path, body)
    told = ["The report was ignored, because the state of the job is 'available', not 'active'."]
    assert (reply.status, reply.json["progress"], reply.json["warnings"]) == (200, None, told)
    assert "warnings" not in api.get(f"/ojs/v1/jobs/{job_id}/progress").json


def test_a_checkpoint_in_a_progress_report_is_saved(api: Api) -> None:
    job_id = api.active()
    path = f"/ojs/v1/jobs/{job_id}/progress"
    report = {"job_id": job_id, "percentage": 20, "checkpoint": {"row": 2}}
    for value, method, at, body in (
        (0.1, "PUT", path, {"progress": 0.1, "checkpoint": {"row": 1}}),
        (0.2, "POST", "/ojs/v1/workers/progress", report),
    ):
        reply = api(method, at, body)
        assert (reply.status, reply.json["progress"]) == (200, value)
        assert "warnings" not in reply.json
        read = api.get(f"/ojs/v1/jobs/{job_id}/checkpoint").json
        assert read["state"] == body["checkpoint"]
    for value, more in ((0.5, {}), (0.6, {"checkpoint": None})):
        assert "warnings" not in api("PUT", path, {"progress": value, **more}).json
    for checkpoint in ("row 1", [1], 1):
        reply = api("PUT", path, {"progress": 0.9, "checkpoint": checkpoint})
        assert (reply.status, reply.error["details"]["field"]) == (400, "checkpoint")
    assert api.get(path).json["progress"] == 0.6
    late = {"progress": 0.7, "checkpoint": {"row": 3}, "lease_token": "0" * 16}
    reply = api("PUT", path, late)
    assert reply.status == 200
    assert "'checkpoint' was not saved." in reply.json["warnings"][0]
    assert api.get(f"/ojs/v1/jobs/{job_id}/checkpoint").json["sequence"] == 2
    reply = api("PUT", path, {"progress": 0.9, "checkpoint": {"x": "x" * 1_048_576}})
    assert (reply.status, reply.error["details"]["field"]) == (413, "state")
