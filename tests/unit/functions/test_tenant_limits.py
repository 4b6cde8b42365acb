"""Tenants over HTTP: their records, and what their limits refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cli.target import Exit
from ojs.clock import ManualClock
from ojs.domain import times
from ojs.domain.access import Scope
from ojs.projections.counters import Tally
from ojs.runtime import Runtime
from ojs.store.jobs import items
from ojs.store.table import keys, values
from ojs.store.table.table import Put
from tests.unit.functions.client import Api, Reply
from tests.unit.functions.keyed import Keyed
from tests.unit.functions.terminal import bridge, runner

BASE = "/ojs/v1/admin/tenants"
LIMITS = {
    "max_concurrency": 20,
    "max_enqueue_rate": {"limit": 1000, "period": "PT1M"},
    "max_queue_depth": 50000,
    "max_scheduled": 10,
    "max_queues": 3,
}


def put(api: Api, tenant: str = "acme", **body: Any) -> Any:
    reply = api("PUT", f"{BASE}/{tenant}", body)
    assert reply.status in (200, 201), reply.text
    return reply.json


def push(api: Api, queue: str = "acme:mail", **options: Any) -> Reply:
    body = {"type": "report.build", "args": [7], "options": {"queue": queue, **options}}
    return api("POST", "/ojs/v1/jobs", body)


def fetch(api: Api, *queues: str, count: int = 10) -> Reply:
    body = {"queues": [*queues] or ["acme:mail"], "count": count}
    return api("POST", "/ojs/v1/workers/fetch", body)


def ack(api: Api, job: Any) -> Reply:
    return api("POST", "/ojs/v1/workers/ack", {"job_id": job["id"]})


def project(api: Api) -> None:
    """Count the jobs of the tenant as they are now, as the projection does."""
    table, tally = api.runtime.table, Tally()
    for item in table.client.scan(TableName=table.name)["Items"]:
        if item["pk"]["S"].startswith(keys.job("")) and item["sk"]["S"] == keys.RECORD:
            tally.move(None, items.job_of(values.unpack(item)))
    pk, sk = keys.stats("%acme"), keys.NOW
    table.put(Put({"pk": pk, "sk": sk, **tally.counts["%acme", sk]}))


def refused(reply: Reply, limit: str, current: int, maximum: int) -> None:
    assert reply.status == 429, reply.text
    error = reply.error
    found = {name: error[name] for name in ("code", "tenant_id", "limit", "current", "maximum")}
    assert found == {
        "code": "TENANT_LIMIT_EXCEEDED", "tenant_id": "acme", "limit": limit, "current": current,
        "maximum": maximum,
    }  # fmt: skip
    assert error["retryable"]
    assert reply.headers["Retry-After"] == "30"


def test_a_tenant_is_made_changed_read_and_removed(api: Api) -> None:
    made = api("PUT", f"{BASE}/acme", {"name": "Acme", "limits": LIMITS, "priority_boost": 5})
    assert (made.status, made.headers["Location"]) == (201, f"{BASE}/acme")
    shown = made.json
    assert shown["limits"] == {**LIMITS, "max_concurrent_jobs": 20}
    assert {name: shown[name] for name in ("tenant_id", "id", "name", "state")} == {
        "tenant_id": "acme", "id": "acme", "name": "Acme", "state": "active",
    }  # fmt: skip
    assert (shown["priority_boost"], shown["fairness_weight"]) == (5, 1)
    assert shown["stats"]["queues"] == 0
    # As shown, it can be sent back.
    assert put(api, **shown) == shown
    api.clock.advance(1_000)
    changed = api("PUT", f"{BASE}/acme/limits", {"max_concurrent_jobs": 5, "max_scheduled": None})
    assert changed.status == 200
    assert changed.json["limits"]["max_concurrency"] == 5
    assert "max_scheduled" not in changed.json["limits"]
    assert changed.json["limits"]["max_queues"] == 3
    assert (changed.json["name"], changed.json["priority_boost"]) == ("Acme", 5)
    assert changed.json["created_at"] == shown["created_at"] < changed.json["configured_at"]
    assert api.get(f"{BASE}/acme").json == changed.json
    # A replacement leaves nothing.
    assert put(api, max_jobs_per_second=7)["limits"] == {
        "max_enqueue_rate": {"limit": 7, "period": "PT1S"}, "max_jobs_per_second": 7,
    }  # fmt: skip
    removed = api("DELETE", f"{BASE}/acme")
    assert (removed.status, removed.json) == (200, {"deleted": True, "id": "acme"})
    for method in ("GET", "DELETE"):
        assert api(method, f"{BASE}/acme").error["details"]["resource"] == "tenant"


def test_a_change_is_made_to_what_was_read(api: Api) -> None:
    etag = put(api)["etag"]

    def change(method: str, path: str, body: Any, **headers: str) -> Reply:
        return api(method, f"{BASE}/acme{path}", body, headers=headers)

    quoted = {"if-match": f'"{etag}"'}
    assert api.get(f"{BASE}/acme").headers["ETag"] == quoted["if-match"]
    assert change("PUT", "", {"max_queues": 3}, **quoted).status == 200
    for method, path, body in (
        ("PUT", "", {"max_queues": 4}), ("PUT", "/limits", {"max_queues": 4}), ("DELETE", "", None)
    ):  # fmt: skip
        reply = change(method, path, body, **quoted)
        assert (reply.status, reply.error["code"]) == (412, "precondition_failed")
    # Repeated, it is as requested.
    assert change("PUT", "", {"max_queues": 3}, **quoted).status == 200
    assert change("PUT", "", {}, **{"if-none-match": "*"}).status == 412
    assert api.get(f"{BASE}/acme").json["limits"] == {"max_queues": 3}


def test_limits_make_a_missing_tenant(api: Api) -> None:
    made = api("PUT", f"{BASE}/beta:eu/limits", {"max_queues": 1})
    assert (made.status, made.json["tenant_id"]) == (201, "beta:eu")


def test_tenants_are_listed_in_order(api: Api) -> None:
    for name in ("b", "a", "c"):
        put(api, name)
    page = api.get(BASE, per_page="2").json
    assert [each["id"] for each in page["tenants"]] == ["a", "b"]
    assert page["items"] == page["tenants"]
    rest = api.get(BASE, cursor=page["pagination"]["next_cursor"]).json
    assert [each["id"] for each in rest["items"]] == ["c"]
    assert api.get(BASE, page="2", per_page="2").json["items"] == rest["items"]
    assert api.get(BASE).json["total"] == 3


def test_a_suspended_tenant_pushes_and_fetches_nothing_and_acks_are_taken(api: Api) -> None:
    assert push(api).status == push(api).status == 201
    (job,) = fetch(api, count=1).json["jobs"]
    put(api, state="suspended")
    for reply in (push(api), push(api, "acme:other"), fetch(api)):
        assert (reply.status, reply.error["code"]) == (403, "tenant_suspended")
        assert reply.error["details"] == {"tenant_id": "acme"}
    assert api.get("/ojs/v1/queues/acme:other").status == 404
    assert ack(api, job).status == 200
    # Others are not affected, and a fetch of several tenants gets the jobs of the others.
    assert push(api, "beta:mail").status == push(api, "mail").status == 201
    found = fetch(api, "acme:mail", "beta:mail", "mail").json["jobs"]
    assert sorted(each["queue"] for each in found) == ["beta:mail", "mail"]
    put(api)
    assert len(fetch(api).json["jobs"]) == 1


def test_a_full_tenant_refuses_jobs_in_all_its_queues(api: Api) -> None:
    put(api, max_queue_depth=3, max_scheduled=1)
    assert push(api).status == push(api, "acme:other").status == 201
    assert push(api, delay_until="+PT1H").status == 201
    refused(push(api, "acme:third"), "max_queue_depth", 3, 3)
    # A container counts its own pushes until it reads the counts again.
    project(api)
    api.clock.advance(1_000)
    refused(push(api), "max_queue_depth", 3, 3)
    stats = api.get(f"{BASE}/acme/stats").json
    assert stats["limits"]["max_queue_depth"] == {"limit": 3, "current": 3}
    assert (stats["total_jobs"], stats["queues"]) == (3, 3)
    (job,) = fetch(api, count=1).json["jobs"]
    assert ack(api, job).status == 200
    project(api)
    api.clock.advance(1_000)
    refused(push(api, delay_until="+PT1H"), "max_scheduled", 1, 1)
    assert push(api).status == 201
    assert push(api, "beta:mail").status == 201


@pytest.mark.requirement("QC-42")
def test_the_configuration_of_a_queue_is_of_one_tenant(api: Api) -> None:
    bounded = api("PUT", "/ojs/v1/queues/acme:mail/config", {"max_size": 1})
    assert bounded.status == 200
    assert [push(api, "acme:mail").status for _ in range(2)] == [201, 429]
    assert [push(api, name).status for name in ("beta:mail", "mail") * 2] == [201] * 4


def test_a_batch_is_refused_as_a_whole(api: Api) -> None:
    put(api, max_queue_depth=3)
    job = {"type": "report.build", "args": [], "options": {"queue": "acme:mail"}}
    refused(api("POST", "/ojs/v1/jobs/batch", {"jobs": [job] * 4}), "max_queue_depth", 0, 3)
    assert api("POST", "/ojs/v1/jobs/batch", {"jobs": [job] * 3}).status == 201


def test_a_tenant_has_so_many_queues(api: Api) -> None:
    put(api, max_queues=2)
    put(api, "acme:eu", max_queues=1)
    assert push(api, "acme:a").status == push(api, "acme:b").status == 201
    refused(push(api, "acme:c"), "max_queues", 2, 2)
    assert api("POST", "/ojs/v1/queues", {"name": "acme:c"}).status == 429
    assert push(api, "acme:a").status == push(api, "acme:eu:a").status == 201


def test_a_tenant_runs_so_many_jobs_at_a_time(api: Api) -> None:
    """In all its queues together; what ran before the limit counts."""
    for queue in ("acme:a", "acme:a", "acme:b", "acme:b"):
        assert push(api, queue).status == 201
    running = fetch(api, "acme:a", count=1).json["jobs"]
    put(api, max_concurrency=2)
    running += fetch(api, "acme:a", "acme:b").json["jobs"]
    assert len(running) == 2
    assert fetch(api, "acme:b").json["jobs"] == []
    assert ack(api, running[0]).status == 200
    more = fetch(api, "acme:a", "acme:b").json["jobs"]
    assert len(more) == 1
    for job in (running[1], *more):
        assert ack(api, job).status == 200
    assert len(fetch(api, "acme:a", "acme:b").json["jobs"]) == 1


def test_a_tenant_pushes_so_many_jobs_a_period(api: Api) -> None:
    put(api, max_enqueue_rate={"limit": 3, "period": "PT1M"})
    for _ in range(3):
        assert push(api).status == 201
    refused(push(api), "max_enqueue_rate", 3, 3)
    api.clock.advance(67_000)
    assert push(api).status == 201


def test_the_boost_is_added_to_the_priority_of_new_jobs(api: Api) -> None:
    put(api, priority_boost=60)
    found = [push(api, priority=each).json["job"]["priority"] for each in (-100, 0, 50)]
    assert found == [-40, 60, 100]
    assert push(api, "beta:mail", priority=1).json["job"]["priority"] == 1


def test_statistics_of_an_unknown_tenant_are_zeros(api: Api) -> None:
    stats = api.get(f"{BASE}/nobody/stats").json
    assert (stats["tenant_id"], stats["total_jobs"], stats["limits"]) == ("nobody", 0, {})
    assert set(stats["jobs"].values()) == {0}


def test_statistics_count_the_last_day(api: Api) -> None:
    put(api)
    for _ in range(3):
        push(api)
    jobs = fetch(api, count=2).json["jobs"]
    ack(api, jobs[0])
    project(api)
    minute = keys.minute(times.format_ms(api.clock.now_ms())[:16])
    counted = {"enqueued": 3, "started": 2, "completed": 1}
    api.runtime.table.put(Put({"pk": keys.stats("%acme"), "sk": minute, **counted}))
    api.clock.advance(60_000)
    stats = api.get(f"{BASE}/acme/stats").json
    found = {name: n for name, n in stats["jobs"].items() if n}
    assert found == {"available": 1, "active": 1, "completed_24h": 1}
    assert stats["throughput"]["enqueued_per_minute"] == 3
    listed = api.get(BASE).json["items"][0]["stats"]["jobs"]
    assert {name: n for name, n in listed.items() if n} == {
        "available": 1, "active": 1, "completed": 1,
    }  # fmt: skip


def test_jobs_of_a_tenant_are_listed(api: Api) -> None:
    jobs = [push(api, queue).json["job"]["id"] for queue in ("acme:a", "acme:b", "beta:a", "a")]

    def listed(**query: str) -> list[str]:
        return sorted(each["id"] for each in api.get(f"{BASE}/acme/jobs", **query).json["jobs"])

    assert listed(queue="a") == listed(queue="acme:a") == jobs[:1]
    assert listed(queue="beta:a") == []


def test_a_key_of_a_tenant_does_not_manage_tenants_and_keeps_its_record(
    make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    keyed = Keyed(make_runtime(authorizer="keys"), clock)
    operator = keyed.holding(keyed.make("ops", *Scope))
    assert operator("PUT", f"{BASE}/acme", {}).status == 201
    made = operator(
        "POST", "/ojs/v1/admin/keys", {"name": "acme", "scopes": [*Scope], "tenant": "acme"}
    ).json
    acme = keyed.holding(made["secret"])
    for method, path in (
        ("GET", ""), ("GET", "/acme"), ("PUT", "/acme"), ("PUT", "/acme/limits"),
        ("DELETE", "/acme"), ("GET", "/acme/stats"), ("GET", "/acme/jobs"), ("GET", "/beta/jobs"),
    ):  # fmt: skip
        assert acme(method, f"{BASE}{path}", {} if method == "PUT" else None).status == 403, path
    reply = operator("DELETE", f"{BASE}/acme")
    assert (reply.status, reply.error["details"]["key"]) == (409, made["key"]["id"])
    assert operator("DELETE", f"/ojs/v1/admin/keys/{made['key']['id']}").status == 200
    assert operator("DELETE", f"{BASE}/acme").status == 200


def test_a_tenant_with_jobs_is_not_deleted(api: Api) -> None:
    put(api)
    job = push(api).json["job"]
    project(api)
    reply = api("DELETE", f"{BASE}/acme")
    assert (reply.status, reply.error["code"]) == (409, "conflict")
    assert api("DELETE", f"/ojs/v1/jobs/{job['id']}").status == 200
    project(api)
    assert api("DELETE", f"{BASE}/acme").status == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("acme", {"max_concurrency": 0}, 400, "max_concurrency"),
        ("acme", {"max_queue_depth": -1}, 400, "max_queue_depth"),
        ("acme", {"max_queues": "3"}, 400, "max_queues"),
        ("acme", {"max_jobs": 3}, 400, "max_jobs"),
        ("acme", {"limits": {"max_jobs": 3}}, 400, "limits.max_jobs"),
        ("acme", {"limits": {"max_scheduled": 0}}, 400, "limits.max_scheduled"),
        ("acme", {"limits": {"max_queues": 1}, "max_queues": 2}, 400, "max_queues"),
        ("acme", {"max_enqueue_rate": {"limit": 1}}, 400, "max_enqueue_rate.period"),
        ("acme", {"max_enqueue_rate": 7}, 400, "max_enqueue_rate"),
        ("acme", {"priority_boost": 101}, 400, "priority_boost"),
        ("acme", {"fairness_weight": 2}, 422, "fairness_weight"),
        ("acme", {"state": "paused"}, 400, "state"),
        ("acme", {"name": ""}, 400, "name"),
        ("acme", {"id": "beta"}, 400, "id"),
        ("acme/limits", {"name": "Acme"}, 400, "name"),
        ("acme/limits", {"fairness_weight": 0.5}, 422, "fairness_weight"),
        ("_default", {}, 400, "id"),
        ("a%20b", {}, 400, "id"),
        ("a%7Cb", {}, 400, "id"),
        (":x", {}, 400, "id"),
        ("x" * 65, {}, 400, "id"),
    ],
)
def test_a_bad_tenant_is_refused(api: Api, path: str, body: Any, status: int, field: str) -> None:
    reply = api("PUT", f"{BASE}/{path}", body)
    assert (reply.status, reply.error["details"].get("field")) == (status, field), reply.text


def test_the_commands(
    api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bridge(monkeypatch, api)
    ojs = runner(capsys)
    limits = ("--max-queue-depth", "5", "--max-enqueue-rate", "1000/PT1M", "--priority-boost", "3")
    shown = "max_queue_depth=5 max_enqueue_rate=1000/PT1M priority_boost=3"
    assert ojs("tenants", "set", "acme", *limits).out == f"acme is active  {shown}\n"
    assert ojs("tenants", "suspend", "acme").out == f"acme is suspended  {shown}\n"
    header, row = ojs("tenants", "list").out.splitlines()
    assert header.split() == ["TENANT", "STATE", "AVAILABLE", "ACTIVE", "SCHEDULED", "LIMITS"]
    assert row.split() == ["acme", "suspended", "0", "0", "0", *shown.split()]
    none = ("--max-queue-depth", "0", "--max-enqueue-rate", "0", "--priority-boost", "0")
    assert ojs("tenants", "set", "acme", *none).out == "acme is suspended\n"
    assert ojs("tenants", "activate", "acme").out == "acme is active\n"
    assert "available  0" in ojs("tenants", "show", "acme").out.splitlines()
    assert json.loads(ojs("tenants", "show", "acme", "--json").out)["stats"]["total_jobs"] == 0
    assert ojs("tenants", "delete", "acme").out == "acme is deleted\n"
    assert ojs("tenants", "delete", "acme").status == Exit.NOT_FOUND
    assert ojs("tenants", "set", "acme", "--max-enqueue-rate", "fast").status == Exit.USAGE


def test_twins_with_different_values_are_refused(api: Api) -> None:
    for body in (
        {"max_concurrency": 1, "max_concurrent_jobs": 2},
        {"max_enqueue_rate": {"limit": 1, "period": "PT1M"}, "max_jobs_per_second": 1},
    ):
        assert api("PUT", f"{BASE}/acme", body).status == 400
