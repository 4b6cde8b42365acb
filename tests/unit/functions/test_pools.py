"""Worker pools and statistics of scheduling over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from ojs.api import system as manifest
from ojs.store.table import keys
from ojs.store.table.table import Update
from tests.unit.functions.client import Api

BASE = "/ojs/v1/admin/pools"
STATS = "/ojs/v1/admin/scheduling/stats"
WEIGHTED = {
    "queues": ["critical", "default", "low"],
    "concurrency": 50,
    "strategy": "weighted",
    "weights": {"critical": 5, "default": 3, "low": 1},
}


def put(api: Api, name: str = "general", **body: Any) -> Any:
    reply = api("PUT", f"{BASE}/{name}", body or WEIGHTED)
    assert reply.status in (200, 201), reply.text
    return reply


@pytest.mark.requirement("FS-23")
def test_a_pool_is_made_changed_read_and_removed(api: Api) -> None:
    """201 when it is new, 200 when it replaces what was; the twin operations."""
    made = put(api)
    assert made.status == 201
    assert made.headers["Location"] == f"{BASE}/general"
    pool = made.json["pool"]
    times = {"created_at": pool["created_at"], "configured_at": pool["configured_at"]}
    assert pool == {
        "name": "general", "id": "general", "etag": pool["etag"], **WEIGHTED, **times,
        "isolated": False,
        "active_workers": 0, "workers": 0, "active_jobs": 0,
    }  # fmt: skip
    assert made.json == {**pool, "pool": pool}
    api.clock.advance(1_000)
    # Whatever is not named is as it is by default.
    changed = put(api, queues=["critical"])
    assert changed.status == 200
    assert changed.json["strategy"] == "round-robin"
    assert not {"weights", "concurrency", "starvation_prevention"} & changed.json.keys()
    assert changed.json["created_at"] == pool["created_at"] < changed.json["configured_at"]
    assert api.get(f"{BASE}/general").json == changed.json
    removed = api("DELETE", f"{BASE}/general")
    assert (removed.status, removed.json) == (200, {"deleted": True, "name": "general"})
    for method in ("GET", "DELETE"):
        reply = api(method, f"{BASE}/general")
        assert (reply.status, reply.error["code"]) == (404, "not_found")
        assert reply.error["details"]["resource"] == "pool"
        assert reply.error["details"]["id"] == "general"


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize(
    "body",
    [
        {"pool": {**WEIGHTED, "name": "general"}},
        {
            "queues": {"critical": {"weight": 5}, "default": {"weight": 3}, "low": {"weight": 1}},
            "concurrency": 50,
        },
    ],
)
def test_the_forms_of_a_pool_that_clients_send(api: Api, body: dict[str, Any]) -> None:
    """Wrapped, or with the weights beside the names of the queues."""
    shown = put(api, **body).json
    assert {name: shown[name] for name in WEIGHTED} == WEIGHTED


@pytest.mark.requirement("FS-8", "FS-17")
def test_what_prevents_starvation_is_shown_as_it_was_told(api: Api) -> None:
    """Numbers as numbers."""
    told = {"enabled": True, "rotation_interval": "PT10S", "min_dispatch_ratio": 0.1}
    put(api, queues=["a", "b"], strategy="strict", isolated=True, starvation_prevention=told)
    shown = api.get(f"{BASE}/general")
    assert shown.json["starvation_prevention"] == told
    assert '"min_dispatch_ratio":0.1' in shown.text
    assert shown.json["isolated"] is True


@pytest.mark.requirement("FS-22", "FS-27")
def test_pools_are_listed_with_workers_and_jobs(api: Api) -> None:
    """Under `items` and `pools`, in order of name, in pages."""
    for number in range(5):
        put(api, f"pool-{number}", queues=["critical"], concurrency=number + 1)
    api.runtime.table.update(
        Update(keys.counter(":pool-3"), keys.SEMAPHORE, set={"n": 2}),
    )
    first = api.get(BASE, limit="3").json
    assert first["items"] == first["pools"]
    found = list(first["pools"])
    cursor = first["pagination"]["next_cursor"]
    found += api.get(BASE, limit="3", cursor=cursor).json["pools"]
    assert [pool["name"] for pool in found] == [f"pool-{n}" for n in range(5)]
    assert [pool["active_jobs"] for pool in found] == [0, 0, 0, 2, 0]
    whole = api.get(BASE).json
    assert whole["items"] == found
    assert whole["total"] == whole["pagination"]["total"] == 5
    assert api.get(BASE, page="2", per_page="2").json["items"] == found[2:4]
    assert api.get(BASE, offset="4").json["items"] == found[4:]


@pytest.mark.requirement("FS-22")
def test_there_may_be_none(api: Api) -> None:
    """An empty page."""
    assert api.get(BASE).json["items"] == api.get(BASE).json["pools"] == []


def test_what_is_refused_stores_nothing(api: Api) -> None:
    """A pool, a queue that it names, nor what a queue knows of it."""
    for body in (
        {**WEIGHTED, "weights": {"critical": 5}},
        {**WEIGHTED, "concurrency": 0},
        {**WEIGHTED, "queues": ["critical", "critical"]},
        {"pool": {}, "queues": ["critical"]},
    ):
        reply = api("PUT", f"{BASE}/general", body)
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
        assert reply.error["details"]["reason"]
    for name in ("a%7Cb", "-a", "x" * 65, "%ff", "a%20b"):
        reply = api("PUT", f"{BASE}/{name}", WEIGHTED)
        assert (reply.status, reply.error["details"]["field"]) == (400, "name")
    assert api.get(BASE).json["pools"] == []
    assert api.get("/ojs/v1/queues").json["queues"] == []


def test_a_method_takes_no_parameter_that_it_does_not_know(api: Api) -> None:
    put(api)
    for method in ("GET", "PUT", "DELETE"):
        body = WEIGHTED if method == "PUT" else None
        reply = api(method, f"{BASE}/general", body, query={"strategy": "strict"})
        assert (reply.status, reply.error["details"]["field"]) == (400, "strategy")
    assert api.get(f"{BASE}/general").json["strategy"] == "weighted"


# --- statistics -------------------------------------------------------------------------------


def counted(api: Api, queue: str, **now: int) -> None:
    update = Update(keys.stats(queue), keys.NOW, set=now)
    api.runtime.table.update(update)


@pytest.mark.requirement("FS-24", "FS-28")
def test_the_shape_of_the_statistics(api: Api) -> None:
    """Those of the seed, of the suites and of the UI in one answer."""
    put(api)
    counted(api, "critical", active=8, t_started=142)
    shown = api.get(STATS).json
    assert shown.keys() == {"queues", "window", "strategy", "stats", "pagination"}
    assert shown["queues"][0] == {
        "name": "critical", "dispatch_count_1m": 0, "dispatch_ratio_1m": 0.0, "avg_wait_ms": 0,
        "active_jobs": 8, "weight": 5, "dispatched": 142, "starved": False, "pool": "general",
    }  # fmt: skip
    assert shown["stats"] == {"queues": shown["queues"], "window": "PT1M"}
    assert (shown["window"], shown["strategy"]) == ("PT1M", "weighted")
    assert api.get(STATS, pool="general").json["queues"] == shown["queues"]
    missing = api.get(STATS, pool="nobody")
    assert (missing.status, missing.error["details"]["resource"]) == (404, "pool")


@pytest.mark.requirement("FS-24")
def test_a_queue_in_no_pool_is_shown_too(api: Api) -> None:
    """Whether there are pools or not; of what was fetched the counters tell."""
    api.push("email")
    api.push("news")
    shown = api.get(STATS, limit="1").json
    assert [queue["name"] for queue in shown["queues"]] == ["email"]
    assert "pool" not in shown["queues"][0]
    assert (shown["queues"][0]["weight"], shown["strategy"]) == (1, "round-robin")
    cursor = shown["pagination"]["next_cursor"]
    following = api.get(STATS, cursor=cursor).json
    assert [queue["name"] for queue in following["queues"]] == ["news"]
    assert following["pagination"]["has_more"] is False


# --- metrics ----------------------------------------------------------------------------------


def values(text: str) -> dict[str, str]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("ojs_scheduling")]
    return {name.removeprefix("ojs_scheduling_"): value for name, value in lines}


@pytest.mark.requirement("FS-26")
def test_what_a_scrape_tells_of_pools(api: Api) -> None:
    """Five metrics, by their names and labels."""
    put(api, queues=["critical", "low"], concurrency=4)
    api.push("beside")
    api.runtime.table.update(Update(keys.counter(":general"), keys.SEMAPHORE, set={"n": 3}))
    day = {"s_general": 7, "s_gone": 2, "started": 9, "starved": 1, "bw3": 9, "wait_ms": 900}
    minute = {"started": 3, "waits": 3, "wait_ms": 30}
    table = api.runtime.table
    table.update(Update(keys.stats("critical"), keys.day("2026-05-28"), set=day))
    table.update(Update(keys.stats("critical"), keys.minute("2026-05-28T20:26"), set=minute))
    table.update(
        Update(keys.stats("low"), keys.minute("2026-05-28T20:26"), set={"started": 1}),
    )
    found = values(api.get("/metrics").text)
    wait = "queue_wait_duration_seconds"
    shown = {name: value for name, value in found.items() if not name.startswith(f"{wait}_bucket")}
    assert shown == {
        'dispatch_total{queue="critical",pool="general"}': "7",
        'dispatch_total{queue="critical",pool="gone"}': "2",
        'dispatch_ratio{queue="critical"}': "0.75",
        'dispatch_ratio{queue="low"}': "0.25",
        f'{wait}_sum{{queue="critical"}}': "0.9",
        f'{wait}_count{{queue="critical"}}': "9",
        f'{wait}_sum{{queue="low"}}': "0",
        f'{wait}_count{{queue="low"}}': "0",
        'pool_utilization_ratio{pool="general"}': "0.75",
        'starvation_events_total{queue="critical"}': "1",
        'starvation_events_total{queue="low"}': "0",
    }
    assert "beside" not in "".join(found)
    told = {each["name"]: each["samples"] for each in api.get("/ojs/v1/metrics").json["metrics"]}
    assert told["ojs.scheduling.pool_utilization"] == [
        {"labels": {"pool": "general"}, "value": 0.75}
    ]


def test_without_pools_there_is_none_of_it(api: Api) -> None:
    api.push("email")
    assert values(api.get("/metrics").text) == {}


def test_the_manifest_names_the_extension(api: Api) -> None:
    """The extension is declared."""
    found = api.get("/ojs/manifest").json["extensions"]["official"]
    assert {
        "name": "fair-scheduling", "uri": "urn:ojs:ext:fair-scheduling", "version": "1.0.0-rc.1",
    } in found  # fmt: skip
    assert list(manifest.EXTENSIONS) == sorted(manifest.EXTENSIONS)
