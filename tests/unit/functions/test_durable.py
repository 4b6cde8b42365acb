"""Durable code by HTTP: shapes, statuses, and who may do what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ojs.api import operations as contract
from ojs.clock import ManualClock
from ojs.domain.access import Scope
from ojs.runtime import Runtime
from tests.unit.functions.client import Api
from tests.unit.functions.keyed import Keyed

BASE = "/ojs/v1"
ID = "01968f2a-0000-7000-8000-000000000000"
MOST = "x" * 1_048_574


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_checkpoint_as_specified(api: Api, method: str) -> None:
    job_id = api.active()
    path = f"{BASE}/jobs/{job_id}/checkpoint"
    assert api.get(path).status == 404
    state = {"processed": 5_000, "cursor": "abc", "price": 3.10}
    saved = api(method, path, {"state": state})
    assert saved.status == 200
    short = {name: saved.json[name] for name in ("job_id", "sequence", "created_at")}
    assert (short["job_id"], short["sequence"]) == (job_id, 1)
    assert saved.json == {**short, "checkpoint": short}
    read = api.get(path)
    assert read.json == {**short, "state": state, "checkpoint": {**short, "state": state}}
    for _ in range(2):
        gone = api("DELETE", path)
        assert (gone.status, gone.json) == (200, {"deleted": True, "job_id": job_id})
    assert api.get(path).status == 404
    assert api(method, path, {"state": None}).json["sequence"] == 2
    assert api.get(path).json["state"] is None


def test_the_fetched_job_has_it(api: Api) -> None:
    job_id = api.active()
    assert "checkpoint" not in api.get(f"{BASE}/jobs/{job_id}").json
    api.post(f"{BASE}/jobs/{job_id}/checkpoint", {"state": {"row": 1}})
    api.post(f"{BASE}/workers/nack", {"job_id": job_id, "requeue": True})
    (job,) = api.post(f"{BASE}/workers/fetch", {"queues": ["default"]}).json["jobs"]
    assert job["checkpoint"] == {"state": {"row": 1}, "sequence": 1}
    assert job["last_checkpoint"] == {"row": 1}
    api.post(f"{BASE}/jobs/{job_id}/checkpoint", {"state": MOST})
    api.post(f"{BASE}/workers/nack", {"job_id": job_id, "requeue": True})
    (job,) = api.post(f"{BASE}/workers/fetch", {"queues": ["default"]}).json["jobs"]
    assert job["checkpoint"] == {"state": MOST, "sequence": 2}
    assert job["omitted"] == ["last_checkpoint"]


@pytest.mark.parametrize("base", [BASE, f"{BASE}{BASE}"])
def test_the_aliases_of_official_sdks(api: Api, base: str) -> None:
    job_id = api.active()
    path = f"{base}/checkpoints/{job_id}"
    assert api.get(f"{path}/resume").json == {"has_checkpoint": False}
    body = {"state": {"row": 1}, "step_index": 0, "metadata": {"step": "load"}}
    assert api.post(path, body).json["sequence"] == 1
    assert api.get(f"{path}/resume").json == {
        "has_checkpoint": True,
        "checkpoint": {**body, "sequence": 1},
    }
    assert api.get(f"{BASE}/jobs/{job_id}/checkpoint").json["state"] == {"row": 1}
    assert api("DELETE", path).json == {"deleted": True, "job_id": job_id}
    assert api.get(f"{path}/resume").json == {"has_checkpoint": False}
    for bad, field in (
        ({"state": 1, "step_index": -1}, "step_index"),
        ({"state": 1, "step_index": "1"}, "step_index"),
        ({"state": 1, "metadata": []}, "metadata"),
        ({"step_index": 1}, "state"),
    ):
        reply = api.post(path, bad)
        assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert api.post(path, {"state": MOST, "step_index": 1}).status == 413


def deep(levels: int) -> str:
    return '{"state": ' + "[" * levels + "]" * levels + "}"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400), ([], 400), ({"State": 1}, 400), ({"state": 1, "worker_id": 1}, 400),
        ({"state": 1, "lease_token": 1}, 400), ({"state": 1, "worker_id": "a|b"}, 400),
        ('{"state": NaN}', 400), (deep(1_000), 400), ('{"state": "\\ud800"}', 400),
        ('{"state": 1, "state": 2}', 400), ({"state": MOST + "x"}, 413),
        ({"state": 1, "worker_id": "someone-else"}, 409),
        ({"state": 1, "lease_token": "0" * 16}, 409),
    ],
)  # fmt: skip
def test_bad_checkpoints(api: Api, body: Any, status: int) -> None:
    job_id = api.active(worker_id="w")
    for method in ("POST", "PUT"):
        reply = api(method, f"{BASE}/jobs/{job_id}/checkpoint", body)
        assert reply.status == status, reply.text
    assert api.get(f"{BASE}/jobs/{job_id}/checkpoint").status == 404


@pytest.mark.parametrize("path", ["jobs/{}/checkpoint", "checkpoints/{}"])
def test_jobs_that_take_none(api: Api, path: str) -> None:
    waiting = api.push()
    for job_id, status in ((ID, 404), ("x", 400), (waiting, 409)):
        assert api.post(f"{BASE}/{path.format(job_id)}", {"state": 1}).status == status
    api.post(f"{BASE}/jobs/{waiting}/cancel")
    assert api.post(f"{BASE}/{path.format(waiting)}", {"state": 1}).status == 409
    assert api("DELETE", f"{BASE}/{path.format(ID)}").status == 404
    assert api.get(f"{BASE}/jobs/{ID}/checkpoint").status == 404
    assert api.get(f"{BASE}/checkpoints/{ID}/resume").status == 404


@pytest.fixture
def keyed(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Keyed:
    return Keyed(make_runtime(authorizer="keys"), clock)


OTHERS = [each for each in contract.OPERATIONS if each.permission.others]


@pytest.mark.parametrize("operation", OTHERS, ids=[each.id for each in OTHERS])
@pytest.mark.parametrize("scope", list(Scope))
def test_each_other_scope_is_enough(keyed: Keyed, operation: Any, scope: Scope) -> None:
    enough = {operation.permission.scope, *operation.permission.others}
    reply = keyed.holding(keyed.make("k", scope)).ask(operation)
    assert (reply.status == 403) is (scope not in enough)
