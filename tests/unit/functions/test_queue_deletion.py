"""DELETE /queues/{name} (queue-config seed, sections 5.3 and 9.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.queue.queue import Deletion, DeletionStrategy
from ojs.services.queues import deletion

if TYPE_CHECKING:
    from tests.unit.functions.client import Api, Reply

BASE = "/ojs/v1"


def delete(api: Api, name: str, body: Any = None, **query: str) -> Reply:
    return api("DELETE", f"{BASE}/queues/{name}", body, query=query)


def state(api: Api, job_id: str) -> str:
    return str(api.get(f"{BASE}/jobs/{job_id}").json["job"]["state"])


@pytest.mark.requirement("QC-11", "QC-43", "QC-54")
def test_an_empty_queue_goes(api: Api) -> None:
    api("PUT", f"{BASE}/queues/q/config", {"max_size": 3})
    reply = delete(api, "q", {"strategy": "reject"})
    assert (reply.status, reply.json) == (
        202,
        {"queue": "q", "strategy": "reject", "jobs_affected": 0, "state": "deleted"},
    )
    assert api.get(f"{BASE}/queues/q").status == 404
    assert api.get(f"{BASE}/queues/q/config").status == 404
    assert api.get(f"{BASE}/queues").json["queues"] == []
    assert delete(api, "q", {"strategy": "reject"}).status == 404


@pytest.mark.requirement("QC-14")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        (None, "strategy"),
        ({}, "strategy"),
        ({"strategy": ""}, "strategy"),
        ({"strategy": "burn"}, "strategy"),
        ({"strategy": 5}, "strategy"),
        ({"strategy": "move"}, "target_queue"),
        ({"strategy": "move", "target_queue": "q"}, "target_queue"),
        ({"strategy": "move", "target_queue": "_default"}, "target_queue"),
        ({"strategy": "move", "target_queue": "A b"}, "target_queue"),
        ({"strategy": "move", "target_queue": 7}, "target_queue"),
        ({"strategy": "discard", "target_queue": "other"}, "target_queue"),
    ],
)
def test_what_becomes_of_the_jobs_must_be_said(api: Api, body: Any, field: str) -> None:
    job_id = api.push("q")
    reply = delete(api, "q", body)
    assert reply.status == 400
    assert reply.error["details"]["field"] == field
    assert api.get(f"{BASE}/queues/q").json["state"] == "active"
    assert state(api, job_id) == "available"
    assert [queue["name"] for queue in api.get(f"{BASE}/queues").json["queues"]] == ["q"]


@pytest.mark.parametrize(
    ("body", "query", "field"),
    [
        ({"strategy": "discard"}, {"strategy": "reject"}, "strategy"),
        ({"strategy": "discard"}, {"strategy": "bogus"}, "strategy"),
        ({"strategy": "discard"}, {"strategy": "discard,reject"}, "strategy"),
        ({"strategy": None}, {"strategy": "discard"}, "strategy"),
        ({"strategy": "discard"}, {"target_queue": "new"}, "target_queue"),
        ({"strategy": "move", "target_queue": "a"}, {"target_queue": "b"}, "target_queue"),
        (None, {"strategy": "bogus"}, "strategy"),
        (None, {"strategy": "move", "target_queue": "A b"}, "target_queue"),
    ],
)
def test_a_query_that_contradicts_the_body_deletes_nothing(
    api: Api, body: Any, query: dict[str, str], field: str
) -> None:
    job_id = api.push("q")
    reply = delete(api, "q", body, **query)
    assert reply.status == 400
    assert reply.error["details"]["field"] == field
    assert api.get(f"{BASE}/queues/q").json["state"] == "active"
    assert state(api, job_id) == "available"


def test_the_strategy_may_be_in_the_query(api: Api) -> None:
    job_id = api.push("q")
    assert delete(api, "q", strategy="reject").status == 409
    assert delete(api, "q", strategie="discard").status == 400
    reply = delete(api, "q", {"strategy": "move"}, strategy="move", target_queue="new")
    assert reply.status == 202
    assert (reply.json["strategy"], reply.json["target_queue"]) == ("move", "new")
    assert state(api, job_id) == "available"
    assert [job["id"] for job in api.fetch("new")] == [job_id]
    api.push("q")
    assert delete(api, "q", strategy="move", target_queue="new").json["jobs_affected"] == 1
    api.push("q")
    assert delete(api, "q", strategy="discard").json["state"] == "deleted"


@pytest.mark.requirement("QC-15")
def test_reject_refuses_while_a_job_is_there(api: Api) -> None:
    job_id = api.active("q")
    reply = delete(api, "q", {"strategy": "reject"})
    assert reply.status == 409
    assert reply.error["code"] == "conflict"
    assert api.get(f"{BASE}/queues/q").json["state"] == "active"
    api.post(f"{BASE}/workers/ack", {"job_id": job_id, "worker_id": "w1"})
    assert delete(api, "q", {"strategy": "reject"}).status == 202
    assert state(api, job_id) == "completed"


@pytest.mark.requirement("QC-10", "QC-16", "QC-47", "QC-55")
def test_a_queue_that_ends_says_how(api: Api) -> None:
    running = api.active("q")
    api.push("q")
    later = api.push("q", options={"delay_until": "+PT1H"})
    reply = delete(api, "q", {"strategy": "discard"})
    assert reply.status == 202
    assert reply.json == {
        "queue": "q", "strategy": "discard", "jobs_affected": 3, "state": "draining",
    }  # fmt: skip
    shown = api.get(f"{BASE}/queues/q").json
    assert (shown["state"], shown["status"]) == ("draining", "draining")
    assert shown["deletion"]["strategy"] == "discard"
    assert "resumed_at" not in shown
    found = api.get(f"{BASE}/jobs/{later}").json["job"]
    assert (found["state"], found["error"]["type"]) == ("discarded", "queue_deleted")
    # Nothing gets in; what runs goes on.
    refused = api.post(f"{BASE}/jobs", {"type": "a", "args": [], "options": {"queue": "q"}})
    assert (refused.status, refused.error["code"]) == (409, "queue_draining")
    assert refused.error["retryable"] is False
    for path in ("pause", "resume"):
        assert api.post(f"{BASE}/queues/q/{path}").status == 409
    api.post(f"{BASE}/workers/ack", {"job_id": running, "worker_id": "w1"})
    api.runtime.sweep.run_once(api.clock.now_ms(), 100)
    assert api.get(f"{BASE}/queues/q").status == 404
    assert state(api, running) == "completed"


def test_all_jobs_of_a_queue_that_one_request_cannot_end_are_counted(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "_REQUEST_JOBS", 50)
    jobs = [{"type": "a", "args": [], "options": {"queue": "q"}}] * 250
    assert api.post(f"{BASE}/jobs/batch", {"jobs": jobs}).status == 201
    reply = delete(api, "q", {"strategy": "discard"})
    assert (reply.json["jobs_affected"], reply.json["state"]) == (250, "draining")


@pytest.mark.requirement("QC-10", "QC-55")
def test_a_queue_may_be_worked_off_before_it_goes(api: Api) -> None:
    ids = [api.push("q") for _ in range(3)]
    reply = delete(api, "q", {"strategy": "drain"})
    assert (reply.json["jobs_affected"], reply.json["state"]) == (3, "draining")
    refused = api.post(f"{BASE}/jobs", {"type": "a", "args": [], "options": {"queue": "q"}})
    assert (refused.status, refused.error["code"]) == (409, "queue_draining")
    for job_id in ids:
        api.runtime.sweep.run_once(api.clock.now_ms(), 100)
        assert api.get(f"{BASE}/queues/q").json["state"] == "draining"
        assert [job["id"] for job in api.fetch("q", worker_id="w1")] == [job_id]
        api.post(f"{BASE}/workers/ack", {"job_id": job_id, "worker_id": "w1"})
    api.runtime.sweep.run_once(api.clock.now_ms(), 100)
    assert api.get(f"{BASE}/queues/q").status == 404


@pytest.mark.requirement("QC-15")
def test_a_refused_deletion_leaves_a_pause_as_it_is(api: Api) -> None:
    api.push("q")
    api.post(f"{BASE}/queues/q/pause")
    before = api.get(f"{BASE}/queues/q/config").json
    shown = api.get(f"{BASE}/queues/q").json
    api.clock.advance(5_000)
    for _ in range(3):
        assert delete(api, "q", {"strategy": "reject"}).status == 409
        assert api.fetch("q") == []
        api.push("q")
    again = api.get(f"{BASE}/queues/q").json
    assert (again["state"], again["paused_at"]) == ("paused", shown["paused_at"])
    assert api.get(f"{BASE}/queues/q/config").json == before


@pytest.mark.parametrize("path", ["jobs", "jobs/batch"])
def test_a_push_is_told_to_try_again_while_a_queue_may_stay(api: Api, path: str) -> None:
    api("PUT", f"{BASE}/queues/q/config", {})
    store = api.runtime.deletion._queues
    queue = store.get("q")
    assert queue is not None
    # The deletion that found the queue empty is about to look again.
    store.begin_deletion(queue, Deletion(DeletionStrategy.REJECT), now_ms=api.clock.now_ms())
    job = {"type": "a", "args": [], "options": {"queue": "q"}}
    refused = api.post(f"{BASE}/{path}", {"jobs": [job]} if path == "jobs/batch" else job)
    assert (refused.status, refused.error["code"]) == (409, "queue_draining")
    assert (refused.error["retryable"], refused.headers["Retry-After"]) == (True, "1")
    assert refused.error["details"]["queue"] == "q"
    delete(api, "q", {"strategy": "discard"})
    api.runtime.sweep.run_once(api.clock.now_ms(), 100)
    assert api.post(f"{BASE}/jobs", job).status == 201
    api.fetch("q")
    delete(api, "q", {"strategy": "discard"})
    final = api.post(f"{BASE}/jobs", job)
    assert (final.status, final.error["retryable"]) == (409, False)
    assert "Retry-After" not in final.headers


@pytest.mark.requirement("QC-14")
def test_a_refused_move_makes_no_target(api: Api) -> None:
    api.push("q")
    api("PUT", f"{BASE}/admin/pools/p", {"queues": ["q"]})
    reply = delete(api, "q", {"strategy": "move", "target_queue": "new"})
    assert (reply.status, reply.error["details"]["pools"]) == (409, ["p"])
    assert delete(api, "none", {"strategy": "move", "target_queue": "new"}).status == 404
    assert api.get(f"{BASE}/queues/new").status == 404


@pytest.mark.requirement("QC-17")
def test_a_target_that_ends_itself_takes_nothing(api: Api) -> None:
    job_id = api.push("q")
    api.active("end")
    assert delete(api, "end", {"strategy": "discard"}).json["state"] == "draining"
    reply = delete(api, "q", {"strategy": "move", "target_queue": "end"})
    assert reply.status == 409
    assert reply.error["details"]["field"] == "target_queue"
    assert state(api, job_id) == "available"
    assert api.get(f"{BASE}/queues/q").json["state"] == "active"


def test_deleting_what_is_not_there_or_no_queue(api: Api) -> None:
    assert delete(api, "none", {"strategy": "discard"}).status == 404
    for name in ("_default", "A b"):
        reply = delete(api, name, {"strategy": "discard"})
        assert (reply.status, reply.error["details"]["field"]) == (400, "name")
