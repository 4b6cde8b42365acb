"""Results: their time to live, many in one request; descent of jobs, and the history of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojs.api import job_answers
from ojs.domain.job.envelope import MAX_JOB_BYTES

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

UNKNOWN = "01968f2a-0000-7000-8000-000000000000"
SECOND_MS = 1_000


def done(api: Api, result: Any = "r", *, of: dict[str, Any] | None = None) -> str:
    """Complete a job with a result, and return the ID of the job."""
    job = api.post("/ojs/v1/jobs", {"type": "a.b", "args": [], **(of or {})}).json["job"]
    api.post("/ojs/v1/workers/fetch", {"queues": [job["queue"]], "worker_id": "w"})
    acked = api.post(f"/ojs/v1/jobs/{job['id']}/ack", {"worker_id": "w", "result": result})
    assert acked.status == 200, acked.text
    return str(job["id"])


def stored(api: Api, job_id: str) -> dict[str, Any]:
    (item,) = api.runtime.table.client.query(
        TableName=api.runtime.table.name,
        KeyConditionExpression="pk = :pk AND sk = :sk",
        ExpressionAttributeValues={":pk": {"S": f"J|{job_id}"}, ":sk": {"S": "@"}},
    )["Items"]
    return item


def test_a_result_tells_when_it_was_stored_and_when_it_expires(api: Api) -> None:
    job = api.get(f"/ojs/v1/jobs/{done(api, [1])}").json
    assert (job["result"], job["result_size_bytes"]) == ([1], 3)
    assert job["result_stored_at"] == job["completed_at"]
    assert "result_ttl" not in job
    job = api.get(f"/ojs/v1/jobs/{done(api, [1], of={'result_ttl': 1})}").json
    assert (job["result_ttl"], job["result_stored_at"]) == (1, job["completed_at"])
    assert job["result_expires_at"] > job["result_stored_at"]


@pytest.mark.parametrize("result", ["r", "x" * 500, "y" * 400_000])
def test_a_result_expires_to_the_millisecond(api: Api, result: str) -> None:
    job_id = done(api, result, of={"options": {"result_ttl": 60}})
    api.clock.advance(60 * SECOND_MS - 1)
    assert api.get(f"/ojs/v1/jobs/{job_id}/result").json["result"] == result
    assert api.get(f"/ojs/v1/jobs/{job_id}").json["job"]["result"] == result
    api.clock.advance(1)
    reply = api.get(f"/ojs/v1/jobs/{job_id}/result")
    assert (reply.status, reply.error["code"]) == (410, "RESULT_PRUNED")
    job = api.get(f"/ojs/v1/jobs/{job_id}").json
    assert job["state"] == "completed"
    assert not {"result", "result_stored_at", "result_expires_at"} & job.keys()


def test_a_job_is_kept_as_long_as_its_result(api: Api) -> None:
    job_id = done(api, of={"result_ttl": 10 * 86_400})
    api.clock.advance(10 * 86_400 * SECOND_MS - 1)
    assert api.get(f"/ojs/v1/jobs/{job_id}/result").json["result"] == "r"
    assert done(api, of={"result_ttl": 34_560_000})


@pytest.mark.parametrize("result", ["r", "x" * 500, "y" * 400_000])
def test_a_result_with_no_time_to_live_is_not_stored(api: Api, result: str) -> None:
    job_id = done(api, result, of={"result_ttl": 0})
    assert not {"result", "result_ref"} & stored(api, job_id).keys()
    assert api.runtime.blobs.held == {}  # type: ignore[attr-defined]
    assert api.get(f"/ojs/v1/jobs/{job_id}/result").status == 410
    assert api.get(f"/ojs/v1/jobs/{job_id}").json["state"] == "completed"


@pytest.mark.parametrize("count", [2, 30])
def test_the_time_to_live_of_jobs_in_a_batch(api: Api, count: int) -> None:
    job = {"type": "a.b", "args": [], "result_ttl": 5}
    assert api.post("/ojs/v1/jobs/batch", {"jobs": [job] * count}).status == 201
    (claimed, *_) = api.fetch(worker_id="w")
    assert claimed["result_ttl"] == 5
    api.post(f"/ojs/v1/jobs/{claimed['id']}/ack", {"worker_id": "w", "result": 1})
    assert api.get(f"/ojs/v1/jobs/{claimed['id']}/result").json["result"] == 1
    api.clock.advance(5 * SECOND_MS)
    assert api.get(f"/ojs/v1/jobs/{claimed['id']}/result").status == 410


def test_the_time_to_live_of_jobs_of_a_cron_job(api: Api) -> None:
    template = {"type": "a.b", "args": [], "options": {"result_ttl": 0}}
    cron = {"name": "c", "cron": "@daily", "job_template": template}
    assert api.post("/ojs/v1/cron", cron).status == 201
    assert api.post("/ojs/v1/cron/c/trigger").status in (200, 201)
    (claimed,) = api.fetch(worker_id="w")
    assert claimed["result_ttl"] == 0


def test_waiting_for_a_result_that_is_not_stored_is_refused(api: Api) -> None:
    job = api.post("/ojs/v1/jobs", {"type": "a.b", "args": [], "result_ttl": 0}).json["job"]
    reply = api.get(f"/ojs/v1/jobs/{job['id']}/result", wait="true")
    assert (reply.status, reply.error["details"]["field"]) == (400, "wait")


def test_a_later_step_gets_a_result_that_clients_do_not_see(api: Api) -> None:
    steps = [{"type": "a.b", "args": [], "options": {"result_ttl": 0}}, {"type": "c.d", "args": []}]
    made = api.post("/ojs/v1/workflows", {"type": "chain", "name": "w", "steps": steps})
    assert made.status == 201, made.text
    for expected in (None, {"n": 7}):
        (job,) = api.post("/ojs/v1/workers/fetch", {"queues": ["default"]}).json["jobs"]
        if expected is not None:
            assert expected in job["parent_results"]
        api.post(f"/ojs/v1/jobs/{job['id']}/ack", {"result": {"n": 7}})
        shown = api.get(f"/ojs/v1/jobs/{job['id']}").json
        assert ("result" in shown) is (expected is not None)


def test_a_result_that_is_too_large_leaves_the_job_active(api: Api) -> None:
    job = api.post("/ojs/v1/jobs", {"type": "a.b", "args": []}).json["job"]
    api.post("/ojs/v1/workers/fetch", {"queues": ["default"], "worker_id": "w"})
    large = {"worker_id": "w", "result": "x" * MAX_JOB_BYTES}
    reply = api.post(f"/ojs/v1/jobs/{job['id']}/ack", large)
    assert (reply.status, reply.error["code"]) == (413, "RESULT_TOO_LARGE")
    assert api.get(f"/ojs/v1/jobs/{job['id']}").json["state"] == "active"
    again = api.post(f"/ojs/v1/jobs/{job['id']}/ack", {"worker_id": "w", "result": "s3://r"})
    assert again.status == 200


# --- many results ---------------------------------------------------------------------------------


def test_the_results_of_many_jobs(api: Api) -> None:
    small, large, huge = done(api, None), done(api, "x" * 500), done(api, "y" * 400_000)
    dead, pruned, waiting = api.dead(), done(api, of={"result_ttl": 1}), api.push()
    api.clock.advance(SECOND_MS)
    ids = [small, large, huge, dead, pruned, waiting, UNKNOWN]
    reply = api.post("/ojs/v1/jobs/results", {"ids": ids})
    assert reply.status == 200
    found = reply.json["results"]
    assert list(found) == ids
    assert found[small] == {"state": "completed", "result": None}
    assert found[large]["result"] == "x" * 500
    assert found[huge]["result"] == "y" * 400_000
    assert (found[dead]["state"], found[dead]["result"]) == ("discarded", None)
    assert found[dead]["error"]["message"]
    assert [found[each] for each in (pruned, waiting, UNKNOWN)] == [None] * 3


def test_many_results_take_two_calls(api: Api) -> None:
    ids = [done(api, "x" * 500) for _ in range(3)]
    meter, api.runtime.table.measure = api.runtime.table.meter, True
    meter.reset()
    api.post("/ojs/v1/jobs/results", {"ids": ids})
    assert (list(meter.calls), meter.write_units) == (["BatchGetItem"] * 2, 0)


def test_a_time_to_live_costs_nothing(api: Api) -> None:
    """Except for a result that is not stored: its first write fails."""
    meter, api.runtime.table.measure = api.runtime.table.meter, True
    spent = {}
    done(api)  # creates the queue
    for ttl in (None, 60, 0):
        meter.reset()
        done(api, "x" * 200, of={} if ttl is None else {"result_ttl": ttl})
        spent[ttl] = meter.write_units
    assert spent[60] == spent[None]
    assert spent[0] <= spent[None] + 2


def test_results_that_do_not_fit_are_listed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [done(api, "x" * 900) for _ in range(3)]
    monkeypatch.setattr(job_answers, "MAX_RESULTS_BYTES", 2_000)
    reply = api.post("/ojs/v1/jobs/results", {"ids": ids})
    assert list(reply.json["results"]) == ids[:2]
    assert reply.json["omitted"] == ids[2:]


@pytest.mark.parametrize(
    ("ids", "field"),
    [
        ([], "ids"), ([UNKNOWN] * 2, "ids[1]"), (["x"], "ids[0]"), (None, "ids"), ("x", "ids"),
        ([f"01968f2a-0000-7000-8000-{n:012x}" for n in range(101)], "ids"),
    ],
)  # fmt: skip
def test_a_bad_list_of_jobs_is_refused(api: Api, ids: Any, field: str) -> None:
    reply = api.post("/ojs/v1/jobs/results", {"ids": ids})
    assert (reply.status, reply.error["details"]["field"]) == (400, field)


# --- descent --------------------------------------------------------------------------------------


def test_a_job_names_its_ancestors(api: Api) -> None:
    root = api.push()
    own = {"type": "a.b", "args": [], "parent_id": root, "root_id": root}
    made = api.post("/ojs/v1/jobs", own).json
    assert "warnings" not in made
    assert (made["job"]["parent_id"], made["job"]["root_id"]) == (root, root)
    assert api.get(f"/ojs/v1/jobs/{made['id']}/lineage").json == {
        "job_id": made["id"], "parent_id": root, "root_id": root, "children": [], "complete": False,
    }  # fmt: skip
    assert api.get(f"/ojs/v1/jobs/{UNKNOWN}/lineage").status == 404
    wrong = api.post("/ojs/v1/jobs", {**own, "parent_id": "x"})
    assert (wrong.status, wrong.error["details"]["field"]) == (400, "parent_id")


def test_the_jobs_that_follow_in_a_workflow(api: Api) -> None:
    group = {"type": "group", "jobs": [{"type": "b.b", "args": []}, {"type": "c.c", "args": []}]}
    steps = [{"type": "a.a", "args": []}, group, {"type": "d.d", "args": []}]
    made = api.post("/ojs/v1/workflows", {"type": "chain", "name": "w", "steps": steps}).json
    lines = {}
    for _ in range(4):
        (job,) = api.post("/ojs/v1/workers/fetch", {"queues": ["default"]}).json["jobs"]
        assert api.get(f"/ojs/v1/jobs/{job['id']}/lineage").json["children"] == []
        api.post(f"/ojs/v1/jobs/{job['id']}/ack", {})
        lines[job["type"]] = job["id"]
    for kind, after in (("a.a", ["b.b", "c.c"]), ("b.b", ["d.d"]), ("c.c", ["d.d"]), ("d.d", [])):
        line = api.get(f"/ojs/v1/jobs/{lines[kind]}/lineage").json
        assert line["workflow_id"] == (made.get("workflow") or made)["id"]
        assert [lines[each] for each in after] == [each["job_id"] for each in line["children"]]
