"""Workflows over HTTP: all dialects, what is refused, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ojs import runtime
from ojs.api import workflows
from ojs.api.workflows import MAX_WORKFLOW_BYTES
from ojs.clock import ManualClock
from ojs.domain.access import ALL_SCOPES
from ojs.domain.workflow.request import MAX_DEPTH, MAX_STEPS
from ojs.runtime import Runtime
from tests.unit.functions.client import Api
from tests.unit.functions.keyed import Keyed

BASE = "/ojs/v1/workflows"
ID = "019539a4-0000-7000-8000-00000000abcd"
Json = dict[str, Any]


def job(kind: str = "t", *args: Any, **options: Any) -> Json:
    return {"type": kind, "args": list(args), **({"options": options} if options else {})}


def at(name: str, *needs: Any, **fields: Any) -> Json:
    """A step of a graph."""
    return {"id": name, "depends_on": list(needs), **job(f"step.{name}"), **fields}


def create(api: Api, body: Json) -> Any:
    reply = api.post(BASE, body)
    assert reply.status == 201, reply.text
    workflow = reply.json["workflow"]
    assert reply.headers["Location"] == f"{BASE}/{workflow['id']}"
    assert {name: reply.json[name] for name in workflow} == workflow
    return workflow


def read(api: Api, workflow_id: str, **query: str) -> Any:
    reply = api.get(f"{BASE}/{workflow_id}", **query)
    assert reply.status == 200, reply.text
    return reply.json["workflow"]


def done(api: Api, result: Any = None, *, queue: str = "default", count: int = 1) -> list[Any]:
    """Fetch jobs and ack them; as they were fetched."""
    fetched = []
    for _ in range(count):
        (found,) = api.fetch(queue)
        reply = api.post("/ojs/v1/workers/ack", {"job_id": found["id"], "result": result})
        assert reply.status == 200, reply.text
        fetched.append(found)
    return fetched


def lost(api: Api, queue: str = "default") -> Any:
    """Fetch a job and have it fail for good."""
    (found,) = api.fetch(queue)
    error = {"type": "Boom", "message": "no such file", "retryable": False}
    reply = api.post("/ojs/v1/workers/nack", {"job_id": found["id"], "error": error})
    assert reply.json["state"] == "discarded", reply.text
    return found


def states(workflow: Json) -> list[str]:
    return [step["state"] for step in workflow["steps"]]


# --- the three forms ------------------------------------------------------------------------------


@pytest.mark.requirement("WF-1", "WF-3", "WF-8", "WF-12", "WF-23")
def test_a_chain_from_end_to_end(api: Api) -> None:
    body = {"type": "chain", "name": "etl", "steps": [job("a"), job("b"), job("c")]}
    made = create(api, body)
    assert (made["type"], made["name"], made["state"]) == ("chain", "etl", "running")
    assert (made["steps_total"], made["steps_completed"], made["jobs_total"]) == (3, 0, 3)
    assert states(made) == ["pending", "waiting", "waiting"]
    assert [step["job_id"] is None for step in made["steps"]] == [False, True, True]
    assert [(step["index"], step["type"]) for step in made["steps"]] == [
        (0, "a"), (1, "b"), (2, "c"),
    ]  # fmt: skip
    (first,) = api.fetch()
    assert (first["id"], first["workflow_id"]) == (made["steps"][0]["job_id"], made["id"])
    assert states(read(api, made["id"])) == ["active", "waiting", "waiting"]
    ack = {"job_id": first["id"], "result": {"rows": 7}}
    assert api.post("/ojs/v1/workers/ack", ack).status == 200
    (second,) = done(api, [1])
    assert (second["type"], second["parent_results"]) == ("b", [{"rows": 7}])
    (third,) = done(api)
    assert third["parent_results"] == [{"rows": 7}, [1]]
    over = read(api, made["id"])
    assert (over["state"], over["steps_completed"], over["jobs_completed"]) == ("completed", 3, 3)
    assert states(over) == ["completed"] * 3
    assert over["steps"][0]["result"] == {"rows": 7}
    assert over["metadata"]["completed_count"] == over["metadata"]["job_count"] == 3
    assert over["completed_at"] == over["metadata"]["completed_at"] >= over["created_at"]
    assert over["started_at"] == over["metadata"]["started_at"]
    assert api.fetch() == []


@pytest.mark.requirement("WF-14")
def test_retries_of_a_job_come_first(api: Api) -> None:
    retry = {"max_attempts": 2, "initial_interval": "PT1S", "jitter": False}
    made = create(api, {"type": "chain", "steps": [job("a", retry=retry), job("b")]})
    (found,) = api.fetch()
    error = {"type": "Boom", "message": "no"}
    api.post("/ojs/v1/workers/nack", {"job_id": found["id"], "error": error})
    shown = read(api, made["id"])
    assert (shown["state"], states(shown)) == ("running", ["pending", "waiting"])
    assert shown["steps"][0]["job_state"] == "retryable"
    api.clock.advance(2_000)
    lost(api)
    assert states(read(api, made["id"])) == ["failed", "cancelled"]


@pytest.mark.requirement("WF-2", "WF-15", "WF-18")
def test_a_chain_whose_step_fails(api: Api) -> None:
    made = create(api, {"type": "chain", "steps": [job("a"), job("b"), job("c")]})
    done(api)
    failed = lost(api)
    over = read(api, made["id"])
    assert (over["state"], states(over)) == ("failed", ["completed", "failed", "cancelled"])
    metadata = over["metadata"]
    assert (metadata["failed_step_index"], metadata["failed_job_ids"]) == (1, [failed["id"]])
    assert (metadata["failed_count"], metadata["cancelled_count"]) == (1, 1)
    (error,) = metadata["errors"]
    assert (error["job_id"], error["message"], error["attempt"]) == (
        failed["id"], "no such file", 1,
    )  # fmt: skip
    assert over["steps"][1]["error"]["message"] == "no such file"
    assert api.fetch() == []


@pytest.mark.requirement("WF-4", "WF-16")
def test_a_group(api: Api) -> None:
    made = create(api, {"type": "group", "jobs": [job("a"), job("b"), job("c")]})
    assert states(made) == ["pending"] * 3
    assert [found["type"] for found in done(api, count=2)] == ["a", "b"]
    half = read(api, made["id"])
    assert (half["state"], half["jobs_total"], half["jobs_completed"]) == ("running", 3, 2)
    lost(api)
    over = read(api, made["id"])
    assert (over["state"], over["jobs_completed"]) == ("failed", 2)
    assert "failed_step_index" not in over["metadata"]


@pytest.mark.requirement("WF-6", "WF-10")
def test_a_batch_and_its_callbacks(api: Api) -> None:
    callbacks = {name: job(name) for name in ("on_complete", "on_success", "on_failure")}
    body = {"type": "batch", "jobs": [job("a"), job("b")], "callbacks": callbacks}
    made = create(api, body)
    assert (made["type"], made["jobs_total"], made["metadata"]["job_count"]) == ("batch", 2, 5)
    assert [step.get("callback") for step in made["steps"]] == [None, None, *callbacks]
    done(api, {"n": 1})
    lost(api)
    assert read(api, made["id"])["state"] == "running"
    ran = [api.fetch()[0] for _ in range(2)]
    assert {each["type"] for each in ran} == {"on_complete", "on_failure"}
    for each in ran:
        assert each["parent_results"] == [{"n": 1}, None]
        assert each["parent_errors"][0] is None
        assert each["parent_errors"][1]["message"] == "no such file"
        api.post("/ojs/v1/workers/ack", {"job_id": each["id"]})
    assert api.fetch() == []
    over = read(api, made["id"])
    assert (over["state"], over["jobs_completed"]) == ("completed", 1)
    assert states(over) == ["completed", "failed", "completed", "cancelled", "completed"]


@pytest.mark.requirement("WF-13", "WF-17")
def test_a_callback_that_fails(api: Api) -> None:
    body = {"type": "batch", "jobs": [job("a")], "callbacks": {"on_success": job("b")}}
    made = create(api, body)
    done(api)
    lost(api)
    over = read(api, made["id"])
    assert (over["state"], over["metadata"]["failed_callbacks"]) == ("failed", ["on_success"])


@pytest.mark.requirement("WF-9", "WF-19", "WF-21")
def test_workflows_inside_of_each_other(api: Api) -> None:
    inner = {"type": "group", "name": "formats", "jobs": [job("csv"), job("pdf")]}
    body = {"type": "chain", "steps": [job("load"), inner, job("send")]}
    made = create(api, body)
    assert [step["type"] for step in made["steps"]] == ["load", "group", "send"]
    group = made["steps"][1]
    assert (group["name"], group["job_id"], group["state"]) == ("formats", None, "waiting")
    assert [step["state"] for step in group["steps"]] == ["waiting"] * 2
    done(api, 1)
    assert [found["parent_results"] for found in done(api, 2, count=2)] == [[1], [1]]
    assert states(read(api, made["id"])) == ["completed", "completed", "pending"]
    (last,) = done(api)
    assert last["parent_results"] == [1, [2, 2]]
    assert read(api, made["id"])["steps_completed"] == made["steps_total"] == 4


# --- dialects -------------------------------------------------------------------------------------


def test_the_dialect_of_the_python_sdk(api: Api) -> None:
    """Steps in a list, with ids; callbacks by an option; it reads `workflow.steps`."""
    steps = [
        {"id": "job-0", "type": "a", "args": [1], "depends_on": [], "options": {}},
        {"id": "job-1", "type": "b", "args": [], "depends_on": []},
        {
            "id": "done", "type": "c", "args": [], "depends_on": ["job-0", "job-1"],
            "options": {"callback_type": "on_failure"},
        },
    ]  # fmt: skip
    made = create(api, {"name": "py", "steps": steps, "options": {"queue": "py"}})
    assert made["type"] == "batch"
    assert [step["id"] for step in made["steps"]] == ["job-0", "job-1", "done"]
    assert made["steps"][2]["depends_on"] == ["job-0", "job-1"]
    assert made["steps"][2]["callback"] == "on_failure"
    done(api, queue="py", count=2)
    assert api.fetch("py") == []
    assert read(api, made["id"])["state"] == "completed"


def test_the_dialect_of_the_javascript_sdk(api: Api) -> None:
    """Typed bodies; it reads the top level."""
    reply = api.post(BASE, {"type": "chain", "name": "js", "steps": [job("a"), job("b")]})
    read_there = ("id", "type", "state", "metadata")
    top = {name: reply.json[name] for name in read_there}
    assert (top["type"], top["state"]) == ("chain", "running")
    counts = {"job_count": 2, "completed_count": 0, "failed_count": 0}
    assert counts.items() <= top["metadata"].items()


def test_the_dialect_of_the_go_sdk(api: Api) -> None:
    """Callbacks only by their ids: `on-failure` must not run after success."""
    steps = [
        {"id": "job-0", "type": "a", "args": []},
        {"id": "job-1", "type": "b", "args": []},
        *(
            {"id": f"on-{when}", "type": when, "args": [], "depends_on": ["job-0", "job-1"]}
            for when in ("complete", "success", "failure")
        ),
    ]
    made = create(api, {"name": "go", "steps": steps})
    assert made["type"] == "batch"
    done(api, count=2)
    assert {found["type"] for found in done(api, count=2)} == {"complete", "success"}
    assert api.fetch() == []
    assert read(api, made["id"])["state"] == "completed"


def test_a_graph_with_triggers(api: Api) -> None:
    steps = [
        at("a"), at("b"),
        at("both", "a", "b"),
        at("either_way", "a", "b", trigger="all_done"),
        at("repair", "a", "b", trigger="any_failed"),
        at("tolerant", {"id": "a", "ignore_failed": True}, "b"),
    ]  # fmt: skip
    made = create(api, {"steps": steps})
    assert made["type"] == "dag"
    assert made["steps"][2]["depends_on"] == ["a", "b"]
    assert [step.get("trigger") for step in made["steps"][3:]] == ["all_done", "any_failed", None]
    lost(api)
    done(api)
    ran = {found["type"] for found in done(api, count=3)}
    assert ran == {"step.either_way", "step.repair", "step.tolerant"}
    over = read(api, made["id"])
    assert (over["state"], states(over)[2]) == ("failed", "cancelled")


# --- what is refused ------------------------------------------------------------------------------

ONE = [job()]
# Of each kind one; tests/unit/domain/workflow has them all.
WRONG: list[tuple[Any, str]] = [
    ({}, "$.steps"),
    ({"type": "batch", "jobs": ONE}, "$.callbacks"),
    ({"type": "group", "jobs": [job(priority="x")]}, "$.jobs[0].options.priority"),
    ({"type": "group", "jobs": [job(unique={"on_conflict": "replace"})]},
     "$.jobs[0].options.unique.on_conflict"),
    ({"steps": [at("a", "b"), at("b", "a")]}, "$.steps"),
    ({"type": "group", "jobs": [{"type": "t", "args": [], "meta": {"tenant_id": "a"}},
                                {"type": "t", "args": [], "meta": {"tenant_id": "b"}}]},
     "$.jobs[1].meta.tenant_id"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "path"), WRONG, ids=range(len(WRONG)))
@pytest.mark.requirement("WF-5")
def test_what_is_wrong_is_named_and_nothing_is_stored(api: Api, body: Any, path: str) -> None:
    reply = api.post(BASE, body)
    assert (reply.status, reply.error["code"]) == (400, "invalid_workflow"), reply.text
    details = reply.error["details"]
    errors = {each["path"]: each["message"] for each in details["validation_errors"]}
    assert path in errors
    assert all(errors.values())
    assert details["field"] == details["validation_errors"][0]["path"]
    assert api.get(BASE).json["workflows"] == []
    assert api.fetch() == []


@pytest.mark.requirement("WF-22")
def test_all_errors_are_told_at_once(api: Api) -> None:
    body = {"type": "chain", "steps": [job("A"), 5, job(priority=1_000)], "nam": "x"}
    reply = api.post(BASE, body)
    paths = [each["path"] for each in reply.error["details"]["validation_errors"]]
    assert paths == ["$.nam", "$.steps[0].type", "$.steps[1]", "$.steps[2].options.priority"]


@pytest.mark.requirement("WF-20")
def test_too_many_too_deep_too_large(api: Api) -> None:
    many = {"type": "group", "jobs": [job()] * (MAX_STEPS + 1)}
    reply = api.post(BASE, many)
    assert (reply.status, reply.error["code"]) == (400, "invalid_workflow")
    assert f"at most {MAX_STEPS} jobs" in reply.text
    deep: Json = job()
    for _ in range(MAX_DEPTH + 1):
        deep = {"type": "chain", "steps": [deep]}
    reply = api.post(BASE, deep)
    assert (reply.status, reply.error["code"]) == (400, "invalid_workflow")
    large = json.dumps(
        {"type": "chain", "steps": [job()], "name": "x" * workflows.MAX_WORKFLOW_BYTES}
    )
    for raw in (large, large.encode()):
        reply = api("POST", BASE, raw=raw)
        assert (reply.status, reply.error["code"]) == (413, "payload_too_large")
        assert reply.error["details"]["limit"] == MAX_WORKFLOW_BYTES
    assert api.get(BASE).json["workflows"] == []


def test_an_idempotency_key_is_refused_and_an_id_does_the_same(api: Api) -> None:
    body = {"id": ID, "type": "group", "jobs": [job()]}
    refused = api.post(BASE, body, **{"idempotency-key": "k"})
    assert (refused.status, refused.error["details"]["field"]) == (422, "Idempotency-Key")
    assert create(api, body)["id"] == ID
    again = api.post(BASE, body)
    assert (again.status, again.error["code"]) == (409, "duplicate")
    assert len(api.get(BASE).json["workflows"]) == 1
    assert len(api.fetch(count=10)) == 1


@pytest.mark.parametrize(
    ("method", "below", "query", "field"),
    [
        ("GET", "", {"cursor": "YQ"}, "cursor"),
        ("GET", "/wf_1", {}, "id"),
        ("GET", f"/{ID}", {"cursor": "YQ"}, "cursor"),
        ("GET", f"/{ID}/results", {}, "step"),
        ("GET", f"/{ID}/results", {"step": "99"}, "step"),
        ("GET", f"/{ID}/results", {"step": "1", "cursor": "YQ"}, "cursor"),
    ],
)
def test_wrong_parameters(
    api: Api, method: str, below: str, query: dict[str, str], field: str
) -> None:
    create(api, {"id": ID, "type": "group", "jobs": [job()]})
    reply = api(method, BASE + below, query=query)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)


def test_what_is_not_there(api: Api) -> None:
    for method, below in (
        ("GET", ""), ("GET", "/progress"), ("GET", "/results"), ("DELETE", ""), ("POST", "/cancel"),
        ("POST", "/retry"),
    ):  # fmt: skip
        query = {"step": "1"} if below == "/results" else None
        reply = api(method, f"{BASE}/{ID}{below}", query=query)
        assert (reply.status, reply.error["code"]) == (404, "not_found"), below
        assert reply.error["details"]["resource"] == "workflow"


# --- reading --------------------------------------------------------------------------------------


def test_lists_by_state_and_name_in_pages(api: Api) -> None:
    made = []
    for number in range(5):
        api.clock.advance(1_000)
        body = {"type": "group", "name": f"n{number % 2}", "jobs": [job()]}
        made.append(create(api, body)["id"])
    done(api)
    everything = api.get(BASE).json
    assert [each["id"] for each in everything["workflows"]] == made[::-1]
    assert everything["items"] == everything["workflows"]
    assert everything["total"] == 5
    assert "steps" not in everything["workflows"][0]
    over = api.get(BASE, state="completed").json["workflows"]
    assert [(each["id"], each["steps_total"], each["steps_completed"]) for each in over] == [
        (made[0], 1, 1)
    ]
    assert len(api.get(BASE, name="n0").json["workflows"]) == 3
    assert api.get(BASE, name="n2", state="running").json["workflows"] == []
    seen, cursor = [], ""
    for _ in range(3):
        page = api.get(BASE, limit="2", **({"cursor": cursor} if cursor else {})).json
        seen += [each["id"] for each in page["workflows"]]
        cursor = page["pagination"].get("next_cursor", "")
    assert (seen, cursor) == (made[::-1], "")


def test_a_workflow_that_is_over_is_kept_as_long_as_its_jobs(api: Api) -> None:
    made = create(api, {"type": "group", "jobs": [job()]})
    done(api)
    api.clock.advance(6 * 86_400_000)
    assert read(api, made["id"])["state"] == "completed"
    assert len(api.get(BASE).json["workflows"]) == 1
    api.clock.advance(86_400_000 + 1_000)
    assert api.get(f"{BASE}/{made['id']}").status == 404
    assert api.get(BASE).json["workflows"] == []


def test_steps_of_a_large_workflow_come_in_pages(api: Api) -> None:
    inner = {"type": "chain", "steps": [job(f"c{at}") for at in range(3)]}
    body = {"type": "group", "jobs": [job("a"), inner, inner, job("b")]}
    made = create(api, body)
    seen, query = [], {"limit": "3"}
    pages = 0
    while True:
        page = read(api, made["id"], **query)
        pages += 1
        for step in page["steps"]:
            seen += [(step["index"], each["type"]) for each in step.get("steps", [step])]
        if "next_cursor" not in page:
            break
        query["cursor"] = page["next_cursor"]
    assert pages == 3
    assert seen == [
        (0, "a"), *((at, f"c{n}") for at in (1, 2) for n in range(3)), (3, "b")
    ]  # fmt: skip


def test_a_page_of_steps_ends_where_it_would_be_too_large(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = workflows._AROUND_BYTES + 12_000
    monkeypatch.setattr(workflows, "MAX_ANSWER_BYTES", most)
    monkeypatch.setattr(workflows, "MAX_COPY_BYTES", 10_000)
    jobs = [job("t", "\\" * 100, number) for number in range(50)]
    made = create(api, {"type": "group", "jobs": jobs})
    assert len(made["steps"]) == 50
    pages: list[list[int]] = []
    query: dict[str, str] = {}
    while len(pages) < 9:
        reply = api.get(f"{BASE}/{made['id']}", **query)
        assert len(json.dumps(reply.text)) < most
        page = reply.json["workflow"]
        pages.append([step["index"] for step in page["steps"]])
        assert [len(step["args"][0]) for step in page["steps"]] == [100] * len(page["steps"])
        if "next_cursor" not in page:
            break
        assert reply.json["omitted"] == ["steps"]
        assert "steps" not in reply.json
        query["cursor"] = page["next_cursor"]
    assert len(pages) > 2
    assert [index for page in pages for index in page] == [*range(50)]


@pytest.mark.requirement("WF-11")
def test_what_is_large_stands_with_its_job_alone(api: Api) -> None:
    made = create(api, {"type": "group", "jobs": [job("t", "x" * 500)]})
    done(api, "y" * 70_000)
    (step,) = read(api, made["id"])["steps"]
    assert "result" not in step
    assert api.get(f"/ojs/v1/jobs/{step['job_id']}/result").json["result"] == "y" * 70_000


def test_progress(api: Api) -> None:
    inner = {"type": "group", "jobs": [job("x"), job("y")]}
    steps = [at("a"), {"id": "b", "depends_on": ["a"], **inner}]
    made = create(api, {"name": "p", "steps": steps})
    path = f"{BASE}/{made['id']}/progress"
    begun = api.get(path).json
    assert (begun["workflow_id"], begun["name"], begun["progress"]) == (made["id"], "p", 0)
    (first,) = api.fetch()
    api("PUT", f"/ojs/v1/jobs/{first['id']}/progress", {"progress": 0.6})
    told = api.get(path).json
    assert (told["progress"], told["state"]) == (0.2, "running")
    assert [(step["id"], step["progress"], step["state"]) for step in told["steps"]] == [
        ("a", 0.6, "active"), ("b", 0, "waiting"),
    ]  # fmt: skip
    api.post("/ojs/v1/workers/ack", {"job_id": first["id"]})
    done(api)
    told = api.get(path).json
    assert (told["progress"], told["steps_completed"], told["steps_total"]) == (0.6667, 2, 3)
    assert [step["progress"] for step in told["steps"]] == [1, 0.5]
    done(api)
    told = api.get(path).json
    assert (told["progress"], told["state"]) == (1, "completed")


def test_results_of_a_step_in_pages(api: Api) -> None:
    body = {
        "type": "batch", "jobs": [job(f"j{at}") for at in range(5)],
        "callbacks": {"on_complete": job("sum")},
    }  # fmt: skip
    made = create(api, body)
    for number in range(4):
        done(api, number)
    lost(api)
    path = f"{BASE}/{made['id']}/results"
    query = {"step": str(made["steps"][-1]["node"]), "limit": "2"}
    seen = []
    for _ in range(3):
        page = api.get(path, **query).json
        assert (page["workflow_id"], page["count"]) == (made["id"], 5)
        seen += page["results"]
        query["cursor"] = page["pagination"].get("next_cursor", "")
    assert not query["cursor"]
    assert [each.get("result") for each in seen] == [0, 1, 2, 3, None]
    assert seen[4]["error"]["message"] == "no such file"


# --- cancel and retry -----------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "below"), [("DELETE", ""), ("POST", "/cancel")])
@pytest.mark.requirement("WF-24")
def test_cancel(api: Api, method: str, below: str) -> None:
    inner = {"type": "group", "jobs": [job("x"), job("y"), job("z")]}
    made = create(api, {"type": "chain", "steps": [job("a"), inner, job("b")]})
    done(api)
    (running,) = api.fetch()
    reply = api(method, f"{BASE}/{made['id']}{below}")
    assert reply.status == 200
    told = reply.json
    assert told["workflow"] == {name: told[name] for name in told["workflow"]}
    assert (told["id"], told["state"]) == (made["id"], "cancelled")
    # y and z waited for a worker, and b for these.
    assert told["steps_cancelled"] == told["cancelled_steps"] == 3
    assert (told["steps_already_completed"], told["steps_running"]) == (1, 1)
    assert told["cancelled_at"] == told["metadata"]["cancelled_at"]
    assert api.fetch() == []
    # What runs may end; nothing follows.
    assert api.post("/ojs/v1/workers/ack", {"job_id": running["id"]}).status == 200
    assert api.fetch() == []
    over = read(api, made["id"])
    assert (over["state"], over["steps"][1]["steps"][0]["state"]) == ("cancelled", "completed")
    again = api(method, f"{BASE}/{made['id']}{below}")
    assert (again.status, again.error["code"]) == (409, "conflict")
    assert again.error["details"]["current_state"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "ran"),
    [
        ({}, ["b", "c"]),
        ({"mode": "failed"}, ["b", "c"]),
        ({"mode": "failed_and_following"}, ["b", "c"]),
        ({"mode": "all"}, ["a", "b", "c"]),
    ],
)
def test_retry(api: Api, body: Json, ran: list[str]) -> None:
    made = create(api, {"type": "chain", "steps": [job("a"), job("b"), job("c")]})
    path = f"{BASE}/{made['id']}/retry"
    early = api.post(path, body)
    assert (early.status, early.error["code"]) == (409, "conflict")
    done(api, 1)
    first = lost(api)
    reply = api.post(path, body)
    assert reply.status == 200, reply.text
    assert (reply.json["state"], reply.json["metadata"]["generation"]) == ("running", 1)
    found = [each for _ in ran for each in done(api, 1)]
    assert [each["type"] for each in found] == ran
    assert first["id"] not in [each["id"] for each in found]
    assert read(api, made["id"])["state"] == "completed"
    # Nothing has failed; all of it may run again.
    nothing = api.post(path, {"mode": "failed"})
    assert (nothing.status, nothing.error["code"]) == (409, "conflict")
    assert api.post(path, {"mode": "all"}).status == 200


@pytest.mark.parametrize(
    ("body", "field"), [({"mode": "some"}, "mode"), ({"mode": 5}, "mode"), ({"mod": "all"}, "mod")]
)
def test_a_retry_of_another_kind(api: Api, body: Json, field: str) -> None:
    made = create(api, {"type": "group", "jobs": [job()]})
    lost(api)
    reply = api.post(f"{BASE}/{made['id']}/retry", body)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert read(api, made["id"])["state"] == "failed"


def test_maintenance_mode_starts_nothing_and_loses_nothing(api: Api) -> None:
    made = create(api, {"type": "chain", "steps": [job("a"), job("b")]})
    (first,) = api.fetch()
    api.post("/ojs/v1/admin/system/maintenance", {"enabled": True})
    api.clock.advance(60_000)
    assert create(api, {"type": "group", "jobs": [job("late")]})["state"] == "running"
    assert api.post("/ojs/v1/workers/ack", {"job_id": first["id"]}).status == 200
    assert api.fetch() == []
    api.post("/ojs/v1/admin/system/maintenance", {"enabled": False})
    api.clock.advance(60_000)
    assert {found["type"] for found in done(api, count=2)} == {"late", "b"}
    assert read(api, made["id"])["state"] == "completed"


# --- who may, and what it costs -------------------------------------------------------------------


@pytest.fixture
def keyed(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Keyed:
    return Keyed(make_runtime(authorizer="keys"), clock)


def test_a_limited_key_sees_the_workflows_whose_queues_it_may_touch(keyed: Keyed) -> None:
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    ids = []
    for queues in (["mine"], ["mine", "theirs"], ["theirs"], ["mine", "my.own"]):
        jobs = [job(queue=queue) for queue in queues[:1]]
        # The queue of a callback counts, too.
        callbacks = {"on_success": job(queue=queues[-1])}
        made = owner("POST", BASE, {"type": "batch", "jobs": jobs, "callbacks": callbacks})
        ids.append(made.json["id"])
    limited = keyed.holding(keyed.make("limited", *ALL_SCOPES, queues=["mine", "my.*"]))
    listed = {each["id"] for each in limited("GET", BASE).json["workflows"]}
    assert listed == {ids[0], ids[3]}
    for workflow_id in ids:
        for method, below, query in (
            ("GET", "", None), ("GET", "/progress", None), ("GET", "/results", {"step": "3"}),
            ("DELETE", "", None), ("POST", "/retry", None),
        ):  # fmt: skip
            reply = limited(method, f"{BASE}/{workflow_id}{below}", query=query)
            assert (reply.status == 403) == (workflow_id not in listed), (below, reply.text)
    reader = keyed.holding(keyed.make("reader", "jobs:read"))
    assert reader("DELETE", f"{BASE}/{ids[0]}").status == 403
    assert reader("GET", f"{BASE}/{ids[1]}").json["state"] == "running"


def spent(api: Api, path: str, **query: str) -> tuple[list[str], float]:
    """The calls of a request that reads, and their units."""
    meter = api.runtime.table.meter
    api.runtime.table.measure = True
    meter.reset()
    assert api.get(path, **query).status == 200
    assert meter.write_units == 0
    return list(meter.calls), meter.read_units


def test_what_is_read_costs_what_it_shows(api: Api) -> None:
    for number in range(20):
        made = create(api, {"type": "chain", "name": f"n{number}", "steps": [job()] * 30})
    calls, few = spent(api, BASE, limit="2")
    assert calls == ["Query", "BatchGetItem"]
    _, many = spent(api, BASE, limit="20")
    assert few <= 2.5
    assert many <= 11.5
    path = f"{BASE}/{made['id']}"
    # The root, and one job that was started; the graph is known to the container.
    assert spent(api, path) == (["GetItem", "BatchGetItem"], 2.0)
    group = create(api, {"type": "group", "jobs": [job()] * 15})
    calls, units = spent(api, f"{BASE}/{group['id']}")
    assert calls == ["GetItem", "BatchGetItem"]
    assert units == 16.0
    calls, units = spent(api, f"{BASE}/{group['id']}", limit="5")
    assert units == 6.0


# --- with what else queues do: docs/workflows.md --------------------------------------------------


def configure(api: Api, **config: Any) -> None:
    assert api("PUT", "/ojs/v1/queues/default/config", config).status == 200


def sweep(api: Api, after_ms: int = 0) -> None:
    """What runs each minute."""
    api.clock.advance(after_ms)
    for each in (api.runtime.sweep, api.runtime.workflow_sweep):
        each.run_once(api.clock.now_ms(), 100)


def test_times_of_a_step_count_from_its_start(api: Api) -> None:
    options = {"delay_until": "+PT1H", "expires_at": "+PT2H"}
    made = create(api, {"type": "chain", "steps": [job("a"), job("b", **options)]})
    api.clock.advance(3 * 3_600_000)
    done(api)
    shown = read(api, made["id"])["steps"][1]
    assert (shown["state"], shown["job_state"]) == ("pending", "scheduled")
    assert api.fetch() == []
    api.clock.advance(3_600_000)
    (second,) = done(api)
    assert second["type"] == "b"


def test_a_step_that_expires_has_failed(api: Api) -> None:
    body = {"type": "chain", "steps": [job("a", expires_at="+PT1M"), job("b")]}
    made = create(api, body)
    sweep(api, 120_000)
    over = read(api, made["id"])
    assert (over["state"], states(over)) == ("failed", ["failed", "cancelled"])


def test_a_step_whose_unique_key_is_taken_fails(api: Api) -> None:
    unique = {"keys": ["type"], "on_conflict": "reject"}
    api.push(type="b", options={"queue": "other", "unique": unique})
    steps = [job("a"), job("b", queue="other", unique=unique), job("c")]
    made = create(api, {"type": "chain", "steps": steps})
    done(api)
    over = read(api, made["id"])
    assert (over["state"], states(over)) == ("failed", ["completed", "failed", "cancelled"])
    failed = over["metadata"]["failed_step"]
    assert (failed["step"], failed["type"]) == ("1", "b")
    assert "unique" in failed["message"]
    # A first step is no exception.
    group = create(api, {"type": "group", "jobs": [steps[1], job("d")]})
    assert states(group) == ["failed", "pending"]
    for step in (over["steps"][1], read(api, group["id"])["steps"][0]):
        assert (step["error"]["code"], "unique" in step["error"]["message"]) == ("duplicate", True)


def test_all_jobs_have_the_tenant_that_is_named(api: Api) -> None:
    steps = [job("a"), {**job("b"), "meta": {"tenant_id": "acme"}}]
    create(api, {"type": "chain", "steps": steps})
    assert [found["meta"]["tenant_id"] for found in done(api, count=2)] == ["acme", "acme"]


def test_a_workflow_that_does_not_fit_is_refused_as_a_whole(api: Api) -> None:
    configure(api, max_size=2)
    reply = api.post(BASE, {"type": "group", "jobs": [job()] * 3})
    assert (reply.status, reply.error["code"]) == (429, "QUEUE_FULL")
    assert api.get(BASE).json["workflows"] == []
    assert api.fetch(count=5) == []


def test_a_step_that_does_not_fit_starts_when_there_is_room(api: Api) -> None:
    configure(api, max_size=1)
    made = create(api, {"type": "chain", "steps": [job("a", queue="other"), job("b")]})
    api.push()
    done(api, queue="other")
    assert read(api, made["id"])["steps"][1]["state"] == "pending"
    sweep(api, 25_000)
    done(api)
    sweep(api, 25_000)
    (found,) = done(api)
    assert found["type"] == "b"
    assert read(api, made["id"])["state"] == "completed"


def test_a_job_that_is_dropped_has_failed(api: Api) -> None:
    configure(api, max_size=2, overflow_policy="drop_oldest")
    made = create(api, {"type": "group", "jobs": [job("a"), job("b")]})
    api.push()
    done(api, count=2)
    over = read(api, made["id"])
    assert (over["state"], states(over)) == ("failed", ["failed", "completed"])


def test_a_job_whose_queue_is_deleted_has_failed(api: Api) -> None:
    made = create(api, {"type": "chain", "steps": [job("a"), job("b")]})
    assert api("DELETE", "/ojs/v1/queues/default", {"strategy": "discard"}).status == 202
    sweep(api, 61_000)
    over = read(api, made["id"])
    assert (over["state"], states(over)) == ("failed", ["failed", "cancelled"])


def test_a_job_that_is_cancelled_by_hand_has_failed(api: Api) -> None:
    steps = [at("a"), at("b", "a"), at("c", "a", trigger="any_failed")]
    made = create(api, {"steps": steps})
    assert api("DELETE", f"/ojs/v1/jobs/{made['steps'][0]['job_id']}").status == 200
    done(api)
    over = read(api, made["id"])
    assert (over["state"], states(over)) == ("failed", ["failed", "cancelled", "completed"])
    assert over["metadata"]["errors"][0]["code"] == "cancelled"


def test_a_dead_letter_runs_again_outside_of_its_workflow(api: Api) -> None:
    made = create(api, {"type": "chain", "steps": [job("a"), job("b")]})
    failed = lost(api)
    assert api.post(f"/ojs/v1/dead-letter/{failed['id']}/retry").status == 200
    done(api)
    over = read(api, made["id"])
    assert (over["state"], states(over)) == ("failed", ["failed", "cancelled"])
    assert api.fetch() == []


def test_a_pool_hands_out_steps_as_other_jobs(api: Api) -> None:
    assert (
        api("PUT", "/ojs/v1/admin/pools/p", {"queues": ["default"], "concurrency": 1}).status == 201
    )
    create(api, {"type": "group", "jobs": [job("a"), job("b")]})
    fetch = {"pool": "p", "worker_id": "w", "count": 5}
    (first,) = api.post("/ojs/v1/workers/fetch", fetch).json["jobs"]
    api.post("/ojs/v1/workers/ack", {"job_id": first["id"]})
    assert len(api.post("/ojs/v1/workers/fetch", fetch).json["jobs"]) == 1


def test_strict_mode_asks_for_all_queues(
    make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    strict = make_runtime(strict_queues=True)
    runtime.use(strict)
    api = Api(strict, clock)
    api.post("/ojs/v1/queues", {"name": "there"})
    body = {"type": "chain", "steps": [job(queue="there"), job(queue="missing")]}
    reply = api.post(BASE, body)
    assert (reply.status, reply.error["code"]) == (404, "queue_not_found")
    assert api.get(BASE).json["workflows"] == []
    assert api.fetch("there") == []


def test_what_clients_send_of_workflows_with_a_job_is_not_believed(api: Api) -> None:
    job_id = api.push(workflow_id=ID, step="1", parent_results=[1], parent_errors=[2])
    shown = api.get(f"/ojs/v1/jobs/{job_id}").json["job"]
    assert not {"workflow_id", "step", "parent_results", "parent_errors"} & shown.keys()


def test_the_trace_of_the_request_is_with_each_job(api: Api) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = {"type": "chain", "steps": [job("a"), job("b")]}
    for sent, origin in ((trace, trace), ("nonsense", None)):
        api.post(BASE, body, traceparent=sent)
        for found in done(api, count=2):
            assert found["meta"].get("ojs.workflow.trace_origin") == origin
