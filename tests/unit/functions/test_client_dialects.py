"""What the admin UI, the `ojs` command line and the Go SDK send as they are, and the fields that
they read of the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain import times
from ojs.store.table import keys
from ojs.store.table.table import Put

if TYPE_CHECKING:
    from tests.unit.functions.client import Api, Reply

BASE = "/ojs/v1"
JSON = {"content-type": "application/json", "accept": "*/*"}


def sent(api: Api, method: str, path: str, body: Any = None, **query: str) -> Reply:
    """A request of a browser or of Go's net/http."""
    return api(method, f"{BASE}{path}", body, headers=JSON, query=query)


# --- admin UI ---------------------------------------------------------------------------------


def test_ui_the_page_of_workers(api: Api) -> None:
    """It joins the names of the queues of each worker, also of those that did not register."""
    api.post(f"{BASE}/workers/heartbeat", {"worker_id": "quiet"})
    api.post(f"{BASE}/workers/register", {"worker_id": "told", "queues": ["a", "b"]})
    found = sent(api, "GET", "/admin/workers", page="1", per_page="50").json["items"]
    assert {worker["id"]: ", ".join(worker["queues"]) for worker in found} == {
        "quiet": "",
        "told": "a, b",
    }
    assert all(worker["last_heartbeat_at"] and worker["active_jobs"] == 0 for worker in found)


def test_ui_the_page_of_pools(api: Api) -> None:
    pool = {"queues": ["a", "b"], "concurrency": 5}
    api("PUT", f"{BASE}/admin/pools/general", pool)
    api.post(f"{BASE}/workers/register", {"worker_id": "w", "pool": "general"})
    (shown,) = sent(api, "GET", "/admin/pools").json["pools"]
    read = {"id", "name", "queues", "workers", "active_jobs", "concurrency", "strategy"}
    assert {name: shown[name] for name in read} == {
        "id": "general", "name": "general", "queues": ["a", "b"], "workers": 1, "active_jobs": 0,
        "concurrency": 5, "strategy": "round-robin",
    }  # fmt: skip
    # As with every other field, what is shown may be sent back, and another id is refused.
    path = "/admin/pools/general"
    assert sent(api, "PUT", path, shown).status == 200
    reply = sent(api, "PUT", path, {**pool, "id": "other"})
    assert (reply.status, reply.error["details"]["field"]) == (400, "id")


def test_ui_the_menu(api: Api) -> None:
    """It shows a page if the manifest has a capability, or an extension, of this name."""
    manifest = api.get("/ojs/manifest").json
    offered = {name for name, there in manifest["capabilities"].items() if there}
    assert offered >= {
        "fair_scheduling", "rate_limiting", "unique_jobs", "events", "dead_letter", "workflows"
    }  # fmt: skip
    missing = {"cron", "webhooks", "multi_tenancy", "job_versioning"}
    assert not offered & missing


def test_ui_the_table_of_rate_limits_and_its_override(api: Api) -> None:
    limit = {"key": "acme", "rate": {"limit": 10, "period": "PT1M"}, "concurrency": 3}
    api.active("q", options={"rate_limit": limit})
    (shown,) = sent(api, "GET", "/rate-limits", page="1", per_page="25").json["items"]
    read = {name: shown[name] for name in ("key", "limit", "period", "active")}
    assert read == {"key": "acme", "limit": 10, "period": "PT1M", "active": 1}
    assert sent(api, "GET", "/rate-limits/acme").json["waiting"] == 0
    changed = sent(api, "PUT", "/rate-limits/acme", {"limit": 4, "period": "10s"})
    assert changed.status == 200
    (shown,) = sent(api, "GET", "/rate-limits").json["items"]
    assert (shown["limit"], shown["period"]) == (4, "PT10S")
    assert (shown["override"]["limit"], shown["override"]["period"]) == (4, "PT10S")
    assert shown["override"]["rate"] == {"limit": 4, "period": "PT10S"}
    assert shown["concurrency"]["limit"] == 3
    lifted = sent(api, "DELETE", "/rate-limits/acme/override").json
    assert (lifted["limit"], "override" in lifted) == (10, False)


def test_a_key_shows_the_first_of_its_limits_in_one_line(api: Api) -> None:
    throttle = {"limit": 1, "period": "PT1H"}
    api.active("q", options={"rate_limit": {"key": "running", "concurrency": 3}})
    api.active("r", options={"rate_limit": {"key": "spaced", "throttle": throttle}})
    running, spaced = sent(api, "GET", "/rate-limits").json["items"]
    assert {"limit": 3, "active": 1, "available": 2}.items() <= running.items()
    assert "period" not in running
    assert {**throttle, "active": 1, "available": 0}.items() <= spaced.items()
    api.clock.advance(3_600_000)
    assert sent(api, "GET", "/rate-limits/spaced").json["available"] == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"limit": 4}, "period"),
        ({"period": "1m"}, "limit"),
        ({"limit": None, "period": "1m"}, "limit"),
        ({"limit": 4, "period": "1 m"}, "period"),
        ({"limit": 4, "period": "32d"}, "period"),
        ({"limit": 0, "period": "1m"}, "limit"),
        ({"limit": 4, "period": "1m", "rate": {"limit": 4, "period": "PT1M"}}, "limit"),
        ({"limit": 4, "period": "1m", "rate": None}, "limit"),
    ],
)
def test_half_an_override_is_refused(api: Api, body: dict[str, Any], field: str) -> None:
    reply = sent(api, "PUT", "/rate-limits/acme", body)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert sent(api, "GET", "/rate-limits/acme").status == 404


def test_ui_the_configuration_of_a_queue_has_short_durations(api: Api) -> None:
    config = {
        "concurrency": 3,
        "rate_limit": {"limit": 5, "period": "1m"},
        "retention": {"completed": "24h", "discarded": "7d"},
    }
    shown = sent(api, "PUT", "/admin/queues/q/config", config).json["config"]
    assert shown["rate_limit"] == {"limit": 5, "period": "PT1M"}
    assert (shown["retention"]["completed"], shown["retention"]["discarded"]) == ("P1D", "P7D")


def test_short_durations_of_a_default_retry_are_kept_as_iso_8601(api: Api) -> None:
    for retry, shown in (
        ({"initial_interval": "5s", "max_interval": "1h"}, ("PT5S", "PT1H", "exponential")),
        ({"base_delay_ms": 250, "backoff": "linear"}, ("PT0.25S", "PT1H", "linear")),
    ):
        path = "/admin/queues/q/config"
        found = sent(api, "PUT", path, {"default_retry": retry}).json["config"]["default_retry"]
        names = ("initial_interval", "max_interval", "backoff_strategy")
        assert tuple(found[name] for name in names) == shown
    reply = sent(api, "PUT", "/queues/q/config", {"default_retry": {"max_interval": "1 h"}})
    assert (reply.status, reply.error["details"]["field"]) == (400, "default_retry.max_interval")


# --- command line -----------------------------------------------------------------------------


def test_cli_rate_limits_are_listed_by_their_running_jobs(api: Api) -> None:
    rate = {"limit": 10, "period": "PT1M"}
    api.active("q", options={"rate_limit": {"key": "acme", "concurrency": 3, "rate": rate}})
    api.push("q", options={"rate_limit": {"key": "rate", "rate": rate}})
    listed = sent(api, "GET", "/rate-limits").json["rate_limits"]
    assert listed == [
        {"key": "acme", "concurrency": 3, "active": 1, "available": 2},
        {"key": "rate", "active": 0},
    ]


def test_cli_prints_what_stands_at_the_top_level(api: Api) -> None:
    """`ojs enqueue` and `ojs cancel` print id, type, queue and state of the answer."""
    body = {"type": "mail.send", "args": [1], "options": {"queue": "mail", "max_attempts": 2}}
    made = sent(api, "POST", "/jobs", body)
    assert made.status == 201
    told = {"type": "mail.send", "queue": "mail", "state": "available"}
    assert {"id": made.json["job"]["id"], **told}.items() <= made.json.items()
    path = f"/jobs/{made.json['id']}"
    assert sent(api, "DELETE", path).json["state"] == "cancelled"
    assert sent(api, "DELETE", path).status == 409
    again = sent(api, "POST", "/jobs", body).json
    assert sent(api, "POST", f"/jobs/{again['id']}/cancel", {}).json["state"] == "cancelled"


def test_a_clients_own_field_is_not_taken_for_one_of_the_answer(api: Api) -> None:
    own = {"type": "a", "args": [], "job": "x", "deduplicated": True, "warnings": ["x"]}
    made = sent(api, "POST", "/jobs", own).json
    assert made["job"]["deduplicated"] is True
    assert made["job"]["warnings"] == ["x"]
    assert "deduplicated" not in made


def test_a_push_answers_with_what_had_no_effect(api: Api) -> None:
    """The job runs at once, though `delay` was meant to postpone it: the answer says so."""
    job = {"type": "a", "args": [], "delay": 5, "x_team": "core"}
    made = sent(api, "POST", "/jobs", job)
    assert (made.status, made.json["job"]["delay"]) == (201, 5)
    (warning,) = made.json["warnings"]
    assert warning.startswith("'delay' is kept as data and has no effect")
    assert "warnings" not in sent(api, "GET", f"/jobs/{made.json['id']}").json
    unique = {**job, "unique": {"key": "k", "on_conflict": "ignore"}}
    assert sent(api, "POST", "/jobs", unique).status == 201
    again = sent(api, "POST", "/jobs", unique)
    assert (again.status, len(again.json["warnings"])) == (200, 1)
    batch = sent(api, "POST", "/jobs/batch", {"jobs": [{"type": "a", "args": []}, job]})
    (warning,) = batch.json["warnings"]
    assert warning.startswith("'jobs[1].delay' ")
    many = sent(api, "POST", "/jobs/batch", {"jobs": [job] * 21})
    assert len(many.json["warnings"]) == 20
    assert "warnings" not in sent(api, "POST", "/jobs", {"type": "a", "args": []}).json


def test_an_option_that_means_something_elsewhere_stores_nothing(api: Api) -> None:
    for name in ("delay", "retries", "countdown", "cron", "depends_on", "dedup_id", "kwargs"):
        body = {"type": "a", "args": [], "options": {"queue": "q", name: 5}}
        reply = sent(api, "POST", "/jobs", body)
        assert (reply.status, reply.error["details"]["field"]) == (400, f"options.{name}")
        assert "here it is" in reply.error["details"]["reason"]
        reply = sent(api, "POST", "/jobs/batch", {"jobs": [body]})
        assert (reply.status, reply.error["details"]["field"]) == (400, f"jobs[0].options.{name}")
    assert sent(api, "GET", "/queues").json["queues"] == []


# --- Go SDK -----------------------------------------------------------------------------------


def test_go_a_unique_job_holds_for_a_period_in_ms(api: Api) -> None:
    unique = {"key": ["type", "args"], "period_ms": 60_000, "on_conflict": "ignore"}
    body = {"type": "a", "args": [{"to": "x"}], "options": {"queue": "q", "unique": unique}}
    first = sent(api, "POST", "/jobs", body)
    assert first.status == 201
    assert first.json["job"]["unique"]["period_ms"] == 60_000
    api.clock.advance(59_999)
    again = sent(api, "POST", "/jobs", body)
    assert (again.status, again.json["deduplicated"]) == (200, True)
    assert again.json["id"] == again.json["job"]["id"] == first.json["job"]["id"]
    api.clock.advance(1)
    assert sent(api, "POST", "/jobs", body).status == 201


@pytest.mark.parametrize(
    ("unique", "field"),
    [
        ({"period_ms": 0}, "period_ms"),
        ({"period_ms": "60000"}, "period_ms"),
        ({"period": "1m", "period_ms": 60_001}, "period_ms"),
        ({"within": "1m", "period_ms": 60_001}, "period_ms"),
        ({"period": "1 m"}, "period"),
    ],
)
def test_a_period_that_is_wrong(api: Api, unique: dict[str, Any], field: str) -> None:
    reply = sent(api, "POST", "/jobs", {"type": "a", "args": [], "options": {"unique": unique}})
    assert (reply.status, reply.error["details"]["field"]) == (422, f"options.unique.{field}")


def test_go_and_others_read_the_last_hour_of_a_queue(api: Api) -> None:
    """`completed_last_hour` is of this minute and the 59 before it, and no further back."""
    api.clock.advance(-api.clock.now_ms() % 3_600_000 + 30_000)
    for ago, completed, failed in ((0, 3, 1), (1, 60, 6), (59, 100, 10), (60, 1_000, 100)):
        minute = times.format_ms(api.clock.now_ms() - ago * 60_000)[:16]
        item = {"completed": completed, "failed": failed}
        where = {"pk": keys.stats("q"), "sk": keys.minute(minute)}
        api.runtime.table.put(Put({**where, **item}))
    stats = sent(api, "GET", "/queues/q/stats").json["stats"]
    assert (stats["completed_last_hour"], stats["failed_last_hour"]) == (163, 17)
    # Half of the minute before is within the last sixty seconds.
    assert stats["throughput"]["processed_per_minute"] == 33
    assert stats["throughput_per_second"] == 0.55
