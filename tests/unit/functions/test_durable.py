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


# --- steps ----------------------------------------------------------------------------------------


def running(api: Api, **more: Any) -> tuple[str, str]:
    """The id of a job that is running, and its lease token."""
    job_id = api.active(**more)
    return job_id, api.get(f"{BASE}/jobs/{job_id}").json["lease_token"]


def test_steps_by_http(api: Api) -> None:
    job_id, token = running(api)
    path = f"{BASE}/jobs/{job_id}/steps"
    began = "2026-11-21T09:30:00.000Z"
    steps: list[dict[str, Any]] = [
        {"name": "charge", "save": "s1", "result": {"id": 1}, "started_at": began},
        {"name": "item/a b", "save": "s1", "error": {"type": "No"}, "duration_ms": 5},
        {"name": "ok", "save": "s1", "kind": "signal"},
    ]
    body = {"lease_token": token, "version": 2, "steps": steps}
    saved = api.post(path, body)
    assert saved.status == 200, saved.text
    assert [each["stored"] for each in saved.json["steps"]] == [True] * 3
    assert api.post(path, body).json["steps"] == saved.json["steps"]
    other = {**body, "version": 3, "steps": [{"name": "charge", "save": "s2", "result": 2}]}
    assert api.post(path, other).json["steps"] == [
        {"name": "charge", "stored": False, "result": {"id": 1}}
    ]
    found = api.get(path).json
    assert (found["version"], found["epoch"], found["pagination"]) == (2, 0, {"has_more": False})
    shown = {each["name"]: each for each in found["steps"]}
    assert shown["charge"] == {
        "name": "charge", "kind": "step", "status": "completed", "result": {"id": 1},
        "attempt": 1, "started_at": began, "stored_at": shown["charge"]["stored_at"],
    }  # fmt: skip
    assert (shown["item/a b"]["status"], shown["item/a b"]["error"]) == ("failed", {"type": "No"})
    assert shown["ok"]["kind"] == "signal"
    short = api("GET", path, query={"results": "false"}).json["steps"]
    assert not [each for each in short if {"result", "error"} & each.keys()]
    job = api.get(f"{BASE}/jobs/{job_id}").json
    assert job["durable"] == {"steps": 7, "version": 2, "epoch": 0, "forgiven_attempts": 0}
    assert api("DELETE", f"{path}/charge").status == 409
    api.post(f"{BASE}/workers/nack", {"job_id": job_id, "requeue": True})
    for name in ("charge", "item%2Fa%20b"):
        assert api("DELETE", f"{path}/{name}").status == 200
        assert api("DELETE", f"{path}/{name}").status == 404
    assert [each["name"] for each in api.get(path).json["steps"]] == ["ok"]
    logged = api.get(f"{BASE}/admin/actions").json["actions"]
    assert {each["operation"] for each in logged} == {"delete_step"}


STEP = {"name": "a", "save": "s"}
NAMES = ("", "x" * 65, "a|b", "../x", "a b", "a/", "a/" + "k" * 101, "a/b|c", 1, None)
BAD_STEPS: list[tuple[Any, int]] = [
    *(({"steps": [{**STEP, "name": name}]}, 400) for name in NAMES),
    ({"steps": []}, 400), ({}, 400), ({"steps": [STEP] * 2}, 400), ({"steps": {}}, 400),
    ({"steps": [{**STEP, "name": f"s{n}"} for n in range(26)]}, 400),
    ({"steps": [{"name": "a"}]}, 400), ({"steps": [{**STEP, "save": ""}]}, 400),
    ({"steps": [{**STEP, "result": 1, "error": {}}]}, 400),
    ({"steps": [{**STEP, "error": "text"}]}, 400), ({"steps": [{**STEP, "kind": "nap"}]}, 400),
    ({"steps": [{**STEP, "started_at": "yesterday"}]}, 400),
    ({"steps": [{**STEP, "duration_ms": -1}]}, 400), ({"steps": [{**STEP, "resul": 1}]}, 400),
    ({"steps": [STEP], "version": -1}, 400), ({"steps": [STEP], "version": "2"}, 400),
    ({"steps": [STEP], "versoin": 2}, 400),
    ({"steps": [{**STEP, "result": "x" * 262_143}]}, 413),
    ({"steps": [STEP], "lease_token": "0" * 8}, 409), ({"steps": [STEP], "lease_token": None}, 422),
    ('{"steps": [{"name": "a", "save": "s", "result": NaN}]}', 400),
    ('{"steps": [{"name": "a", "save": "s", "result": "\\udc00"}]}', 400),
    ('{"steps": [{"name": "a", "save": "s", "result": ' + "[" * 1_000 + "]" * 1_000 + "}]}", 400),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status"), BAD_STEPS)
def test_bad_steps(api: Api, body: Any, status: int) -> None:
    job_id, token = running(api)
    if isinstance(body, dict):
        body = {"lease_token": token, **body}
    reply = api.post(f"{BASE}/jobs/{job_id}/steps", body)
    assert reply.status == status, reply.text
    assert api.get(f"{BASE}/jobs/{job_id}/steps").json["steps"] == []


def test_steps_of_other_jobs_and_former_leases(api: Api) -> None:
    first, token = running(api)
    second, other = running(api)
    body = {"steps": [STEP]}
    for job_id, given in ((ID, token), (first, other), (second, token)):
        reply = api.post(f"{BASE}/jobs/{job_id}/steps", {**body, "lease_token": given})
        assert reply.status == (404 if job_id == ID else 409)
    api.post(f"{BASE}/workers/nack", {"job_id": first, "requeue": True})
    (job,) = api.post(f"{BASE}/workers/fetch", {"queues": ["default"]}).json["jobs"]
    former = {**body, "lease_token": token}
    assert api.post(f"{BASE}/jobs/{first}/steps", former).status == 409
    api("DELETE", f"{BASE}/jobs/{first}")
    latest = {**body, "lease_token": job["lease_token"]}
    assert api.post(f"{BASE}/jobs/{first}/steps", latest).status == 409
    assert api.get(f"{BASE}/jobs/{ID}/steps").status == 404
    assert api("GET", f"{BASE}/jobs/{second}/steps", query={"cursor": "QA"}).status == 400
    assert api("GET", f"{BASE}/jobs/{second}/steps", query={"results": "no"}).status == 400
    for bad in ("a|b", "..", "x" * 65):
        assert api("DELETE", f"{BASE}/jobs/{second}/steps/{bad}").status in (400, 404)


# --- sleeps and signals ---------------------------------------------------------------------------

NAP = {"kind": "sleep", "name": "nap", "for": "P3D"}


@pytest.mark.parametrize("by", ["nack", "path", "fetch"])
def test_a_job_falls_asleep(api: Api, by: str) -> None:
    job_id, token = running(api)
    body: dict[str, Any] = {"lease_token": token, "suspend": {"waits": [NAP]}}
    if by == "path":
        reply = api.post(f"{BASE}/jobs/{job_id}/nack", body)
    elif by == "nack":
        reply = api.post(f"{BASE}/workers/nack", {**body, "job_id": job_id})
    else:
        nacks = [{**body, "job_id": job_id}]
        reply = api.post(f"{BASE}/workers/fetch", {"queues": ["default"], "nacks": nacks})
        assert reply.json["nacks"][0]["state"] == "scheduled"
    assert reply.status == 200
    job = api.get(f"{BASE}/jobs/{job_id}").json
    assert (job["state"], job["attempt"], job["durable"]["steps"]) == ("scheduled", 0, 1)
    ((wait,), until) = (job["waiting"], job["waiting"][0]["until"])
    assert (wait["kind"], wait["name"]) == ("sleep", "nap")
    assert job["scheduled_at"] == until
    assert api.get(f"{BASE}/jobs/{job_id}/steps").json["waits"] == [
        {"name": "nap", "kind": "sleep", "until": until, "over": False}
    ]
    woken = api.post(f"{BASE}/jobs/{job_id}/retry").json
    assert (woken["state"], "waiting" in woken) == ("available", False)
    assert api.get(f"{BASE}/jobs/{job_id}/steps").json["waits"][0]["over"] is True


def wait(**more: Any) -> dict[str, Any]:
    return {"waits": [{**NAP, **more}]}


@pytest.mark.parametrize(
    "suspend",
    [
        {}, {"waits": []}, {"waits": [NAP] * 2}, {"waits": "nap"}, {"waits": [1]},
        {"waits": [{**NAP, "name": f"n{n}"} for n in range(51)]}, {"waits": [NAP], "mode": "some"},
        wait(kind="nap"), wait(kind=None), *(wait(name=name) for name in NAMES), wait(until="x"),
        wait(**{"for": None}), wait(**{"for": None, "until": "1970-01-01T00:00:00Z"}),
        wait(**{"for": None, "until": "2026-11-21T09:30:00"}), wait(**{"for": "P367D"}),
        wait(**{"for": "P1M"}), wait(**{"for": 5}), wait(**{"for": None, "until": "+PT5S"}),
        {"waits": [NAP], "mod": "all"}, {"waits": [NAP], "mode": None},
        wait(**{"for": None, "until": "9999-01-01T00:00:00Z"}), wait(untill="x"),
        wait(kind="signal", name="a/b"), [], "nap", {"waits": [NAP], "mdoe": "all"},
    ],
)  # fmt: skip
def test_bad_suspensions(api: Api, suspend: Any) -> None:
    job_id, token = running(api)
    body = {"job_id": job_id, "lease_token": token, "suspend": suspend}
    reply = api.post(f"{BASE}/workers/nack", body)
    assert reply.status == 400, reply.text
    assert reply.error["details"]["field"].startswith("suspend")
    nacks = {"queues": ["other"], "nacks": [body]}
    reply = api.post(f"{BASE}/workers/fetch", nacks)
    assert reply.status == 400 or reply.json["nacks"][0]["status"] == 400
    for both in ({"error": {"message": "no"}}, {"requeue": True}):
        whole = {**body, "suspend": {"waits": [NAP]}, **both}
        reply = api.post(f"{BASE}/workers/nack", whole)
        assert (reply.status, reply.error["details"]["field"]) == (400, "suspend")
    assert api.get(f"{BASE}/jobs/{job_id}").json["state"] == "active"


def test_signals_by_http(api: Api) -> None:
    job_id, token = running(api)
    path = f"{BASE}/jobs/{job_id}/signals"
    body = {"job_id": job_id, "lease_token": token}
    waits = {"waits": [{"kind": "signal", "name": "ok", "for": "P7D"}]}
    api.post(f"{BASE}/workers/nack", {**body, "suspend": waits})
    reply = api.post(f"{BASE}/jobs/{job_id}/retry")
    assert (reply.status, reply.error["code"]) == (409, "waiting_for_signal")
    key = {"idempotency-key": "k1"}
    sent = api("POST", f"{path}/ok", {"data": {"by": "alice"}}, headers=key)
    assert (sent.status, sent.json["woken"], sent.json["name"]) == (202, True, "ok")
    again = api("POST", f"{path}/ok", {"data": {"by": "alice"}}, headers=key)
    assert (again.status, again.json) == (202, sent.json)
    for headers in (None, key, {"idempotency-key": "k2"}):
        reply = api("POST", f"{path}/ok", {"data": 2}, headers=headers)
        assert (reply.status, reply.error["code"]) == (409, "duplicate")
    assert api.post(f"{path}/empty").status == 202
    for name in ("a|b", "..", "x" * 65, "a/b"):
        assert api.post(f"{path}/{name}", {}).status in (400, 404)
    assert api.post(f"{path}/big", {"datta": 1}).status == 400
    assert api.post(f"{path}/big", {"data": "x" * 65_535}).status == 413
    assert api.post(f"{path}/big", {"data": "x" * 65_534}).status == 202
    assert api.post(f"{BASE}/jobs/{ID}/signals/ok", {}).status == 404
    api("DELETE", f"{BASE}/jobs/{job_id}")
    assert api.post(f"{path}/late", {}).status == 409


@pytest.mark.parametrize("path", ["steps", "checkpoint", "signals/ok", "steps/a", "nack"])
def test_a_limited_key_reaches_no_other_queue(keyed: Keyed, path: str) -> None:
    raw = {"type": "t", "args": [], "options": {"queue": "theirs"}}
    job_id = keyed("POST", f"{BASE}/jobs", raw, told={"lambda": _all(keyed)}).json["id"]
    api = keyed.holding(keyed.make("k", *Scope, queues=["mine"]))
    method = "DELETE" if path == "steps/a" else "POST"
    reply = api(method, f"{BASE}/jobs/{job_id}/{path}", {} if method == "POST" else None)
    assert reply.status == 403


def test_a_limited_key_starts_no_child_of_a_job_in_another_queue(keyed: Keyed) -> None:
    raw: dict[str, Any] = {"type": "t", "args": [], "options": {"queue": "theirs"}}
    told = {"lambda": _all(keyed)}
    job_id = keyed("POST", f"{BASE}/jobs", raw, told=told).json["id"]
    (job,) = keyed("POST", f"{BASE}/workers/fetch", {"queues": ["theirs"]}, told=told).json["jobs"]
    parent = {"job_id": job_id, "name": "a", "lease_token": job["lease_token"]}
    child = {"type": "t", "args": [], "options": {"queue": "mine"}, "parent": parent}
    one, both = ["mine"], ["mine", "theirs"]
    for queues, status in ((one, 403), (both, 201)):
        api = keyed.holding(keyed.make("k", Scope.JOBS_WRITE, queues=queues))
        assert api("POST", f"{BASE}/jobs", child).status == status


def _all(keyed: Keyed) -> dict[str, Any]:
    return keyed.told(f"Bearer {keyed.make('all', *Scope)}")


def test_the_history_has_steps_and_the_checkpoint(api: Api) -> None:
    job_id, token = running(api)
    path = f"{BASE}/jobs/{job_id}"
    before = api.get(f"{path}/history").json["total"]
    body = {"lease_token": token, "steps": [{"name": "a", "save": "s", "result": "secret"}]}
    api.post(f"{path}/steps", body)
    api.post(f"{path}/checkpoint", {"state": {"row": 1}})
    history = api.get(f"{path}/history").json
    assert history["total"] == before + 2
    told = {each["event_type"]: each["data"] for each in history["events"]}
    assert told["job.step_completed"] == {
        "name": "a", "kind": "step", "status": "completed", "attempt": 1,
    }  # fmt: skip
    assert told["job.checkpoint_saved"] == {"sequence": 1, "size_bytes": 19}
    assert "secret" not in str(history)


def test_children_by_http(api: Api) -> None:
    job_id, token = running(api)
    parent = {"job_id": job_id, "name": "ship", "lease_token": token}
    raw = {"type": "child", "args": [], "options": {"queue": "children"}, "parent": parent}
    made = api.post(f"{BASE}/jobs", raw)
    assert made.status == 201, made.text
    assert made.json["parent"] == {"job_id": job_id, "name": "ship"}
    again = api.post(f"{BASE}/jobs", raw)
    assert (again.status, again.error["code"]) == (409, "duplicate")
    many = [{**raw, "parent": {**parent, "name": f"c/{n}"}} for n in range(2)]
    assert api.post(f"{BASE}/jobs/batch", {"jobs": many}).status == 201
    for bad, status in (
        ({"parent": {**parent, "name": "a|b"}}, 400), ({"parent": {"job_id": job_id}}, 400),
        ({"parent": "x"}, 400), ({"parent": {**parent, "lease_token": "x"}}, 409),
        ({"parent": {**parent, "job_id": ID}}, 404), ({"id": job_id}, 400),
    ):  # fmt: skip
        assert api.post(f"{BASE}/jobs", {**raw, **bad}).status == status, bad
        assert api.post(f"{BASE}/jobs/batch", {"jobs": [{**raw, **bad}]}).status == status
    reply = api.post(f"{BASE}/jobs/bulk", {"jobs": [raw]})
    assert reply.json["items"][0]["error"]["details"]["field"] == "parent"
    for job in api.fetch("children", count=3):
        api.post(f"{BASE}/workers/ack", {"job_id": job["id"], "result": job["parent"]["name"]})
    found = {each["name"]: each for each in api.get(f"{BASE}/jobs/{job_id}/steps").json["steps"]}
    assert {name: (each["kind"], each["result"]) for name, each in found.items()} == {
        name: ("job", name) for name in ("ship", "c/0", "c/1")
    }


@pytest.mark.parametrize("field", ["steps", "checkpoint"])
def test_a_dead_letter_starts_over(api: Api, field: str) -> None:
    job_id, token = running(api)
    api.post(f"{BASE}/jobs/{job_id}/checkpoint", {"state": 1})
    api.post(f"{BASE}/jobs/{job_id}/steps", {"lease_token": token, "steps": [STEP]})
    api.post(f"{BASE}/workers/nack", {"job_id": job_id, "error": {"code": "DEAD_LETTER"}})
    path = f"{BASE}/dead-letter/{job_id}/retry"
    for bad in ("keeps", 1, True):
        assert api.post(path, {field: bad}).status == 400
    assert api.post(path, {field: "clear"}).status == 200
    (job,) = api.fetch("default")
    steps = api.get(f"{BASE}/jobs/{job_id}/steps").json
    assert (len(steps["steps"]), steps["epoch"]) == ((0, 1) if field == "steps" else (1, 0))
    assert ("checkpoint" in job) == (field == "steps")


def test_many_dead_letters_start_over(api: Api) -> None:
    for _ in range(2):
        job_id, token = running(api)
        api.post(f"{BASE}/jobs/{job_id}/checkpoint", {"state": 1})
        api.post(f"{BASE}/jobs/{job_id}/steps", {"lease_token": token, "steps": [STEP]})
        api.post(f"{BASE}/workers/nack", {"job_id": job_id, "error": {"code": "DEAD_LETTER"}})
    body = {"all": True, "confirm": True, "steps": "clear", "checkpoint": "clear"}
    assert api.post(f"{BASE}/dead-letter/retry", {**body, "steps": "no"}).status == 400
    assert api.post(f"{BASE}/dead-letter/retry", body).json["retried"] == 2
    for job in api.fetch("default", count=2):
        assert "checkpoint" not in job
        steps = api.get(f"{BASE}/jobs/{job['id']}/steps").json
        assert (steps["steps"], steps["epoch"]) == ([], 1)
