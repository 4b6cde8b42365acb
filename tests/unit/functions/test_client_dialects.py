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
        "fair_scheduling", "rate_limiting", "unique_jobs", "events", "dead_letter", "workflows",
        "cron", "multi_tenancy",
    }  # fmt: skip
    # This deployment has no queue for webhooks.
    assert not offered & {"webhooks", "job_versioning"}


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
        ({"limit": 4, "period": "32d"}, "period"),
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


def test_ui_the_page_of_cron_jobs(api: Api) -> None:
    body = {"name": "nightly", "cron": "0 3 * * *", "type": "a.b", "args": [1]}
    assert sent(api, "POST", "/cron", {**body, "options": {"queue": "q"}}).status == 201
    (shown,) = sent(api, "GET", "/crons", page="1", per_page="25").json["items"]
    read = ("id", "name", "type", "queue", "schedule", "enabled")
    assert [shown[name] for name in read] == [
        "nightly", "nightly", "a.b", "q", "0 3 * * *", True
    ]  # fmt: skip
    assert shown["created_at"] < shown["next_run_at"]
    assert sent(api, "PATCH", "/crons/nightly", {"enabled": False}).json["enabled"] is False
    assert sent(api, "GET", "/crons/nightly").json["args"] == [1]
    assert sent(api, "DELETE", "/crons/nightly").status == 200


def test_ui_a_workflow_is_built_and_shown(api: Api) -> None:
    """It cuts the id of each step to a length, also where a step was given none."""
    jobs = [{"type": "a.b", "args": []}, {"type": "a.c", "args": [1]}]
    done = {"type": "callback", "args": []}
    told: dict[str, list[str]] = {}
    for body in (
        {"type": "chain", "steps": jobs},
        {"type": "group", "tasks": jobs},
        {"type": "batch", "tasks": jobs, "on_complete": done},
    ):
        made = sent(api, "POST", "/workflows", body)
        assert made.status == 201
        shown = sent(api, "GET", f"/workflows/{made.json['id']}").json
        told[shown["type"]] = [step["id"] for step in shown["steps"]]
        assert shown["steps_total"] == len(shown["steps"])
        progress = sent(api, "GET", f"/workflows/{made.json['id']}/progress").json
        assert [step["id"] for step in progress["steps"]] == told[shown["type"]]
    assert told == {"chain": ["0", "1"], "group": ["0", "1"], "batch": ["0", "1", "2"]}
    assert [step.get("callback") for step in shown["steps"]] == [None, None, "on_complete"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"type": "group", "tasks": []}, "$.jobs"),
        ({"type": "group", "tasks": [{"type": "A", "args": []}]}, "$.jobs[0].type"),
        ({"type": "batch", "tasks": [{"type": "a", "args": []}]}, "$.callbacks"),
        ({"type": "group", "tasks": [{"type": "a", "args": []}], "on_failure": {}}, "$.on_failure"),
        ({"type": "chain", "tasks": [{"type": "a", "args": []}]}, "$.tasks"),
        ({"type": "group", "tasks": [], "jobs": [{"type": "a", "args": []}]}, "$.tasks"),
    ],
)
def test_a_workflow_of_the_ui_that_is_wrong(api: Api, body: dict[str, Any], field: str) -> None:
    reply = sent(api, "POST", "/workflows", body)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert sent(api, "GET", "/workflows").json["items"] == []


def test_ui_workflows_by_the_names_that_it_has_for_states(api: Api) -> None:
    """It calls those active that run, and knows some that wait: here there are none."""
    body = {"type": "chain", "steps": [{"type": "a", "args": []}]}
    made = sent(api, "POST", "/workflows", body).json["id"]

    def listed(state: str) -> list[str]:
        answer = sent(api, "GET", "/workflows", state=state, page="1", per_page="25").json
        assert answer["pagination"]["total"] == len(answer["items"])
        return [each["id"] for each in answer["items"]]

    found = {state: listed(state) for state in ("active", "running", "pending", "failed")}
    assert found == {"active": [made], "running": [made], "pending": [], "failed": []}
    refused = sent(api, "GET", "/workflows", state="waiting")
    assert (refused.status, refused.error["details"]["field"]) == (400, "state")


# --- command line -----------------------------------------------------------------------------


def test_cli_the_retries_of_a_job_and_their_policy(api: Api) -> None:
    retry = {"max_attempts": 2, "initial_interval": "PT5S", "backoff_strategy": "linear"}
    job_id = api.active("q", options={"retry": retry})
    error = {"code": "handler_error", "message": "boom"}
    sent(api, "POST", "/workers/nack", {"job_id": job_id, "error": error})
    told = sent(api, "GET", f"/jobs/{job_id}/retries").json
    assert told["retries"][0]["attempt"] == 1
    assert retry.items() <= told["policy"].items()


def test_cli_the_statistics_of_a_queue_and_of_the_past(api: Api) -> None:
    where = {"pk": keys.stats("q"), "sk": keys.NOW}
    api.runtime.table.put(Put({**where, "discarded": 3, "dead": 2}))
    minute = times.format_ms(api.clock.now_ms())[:16]
    item = {"pk": keys.stats(keys.ALL_QUEUES), "sk": keys.minute(minute)}
    api.runtime.table.put(Put({**item, "completed": 5, "failed": 1}))
    stats = sent(api, "GET", "/queues/q/stats").json["stats"]
    assert (stats["discarded"], stats["dead"]) == (3, 2)
    points = sent(api, "GET", "/admin/stats/history", period="5m").json["data_points"]
    assert (points[-1]["completed"], points[-1]["failed"]) == (5, 1)


def test_cli_a_cron_job_is_made_changed_and_shown(api: Api) -> None:
    """It sends no args, and of the template only what changes."""
    template = {"type": "a.b", "options": {"queue": "default"}}
    body = {"name": "nightly", "expression": "0 3 * * *", "job_template": template}
    assert sent(api, "POST", "/cron", body).status == 201
    for change in (
        {"expression": "0 4 * * *", "job_template": {"options": {"queue": "other"}}},
        {"job_template": {"type": "c.d"}},
    ):
        assert sent(api, "PATCH", "/cron/nightly", change).status == 200
    shown = sent(api, "GET", "/cron/nightly").json
    assert (shown["expression"], shown["run_count"]) == ("0 4 * * *", 0)
    assert shown["job_template"]["type"] == "c.d"
    assert shown["job_template"]["options"] == {"queue": "other"}
    assert sent(api, "POST", "/cron/nightly/trigger").json["job_id"]
    (listed,) = sent(api, "GET", "/cron", enabled="true").json["cron_jobs"]
    assert listed["enabled"] is True


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
    assert warning.startswith("'delay' is stored as data and has no effect. Use delay_until")
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
        assert "is not a known field. Use " in reply.error["details"]["reason"]
        reply = sent(api, "POST", "/jobs/batch", {"jobs": [body]})
        assert (reply.status, reply.error["details"]["field"]) == (400, f"jobs[0].options.{name}")
    assert sent(api, "GET", "/queues").json["queues"] == []


# --- Go SDK -----------------------------------------------------------------------------------


def test_go_the_meta_of_a_step_comes_to_its_worker(api: Api) -> None:
    """It sends what belongs to `meta` of a step in `options.metadata`, and no other meta."""
    options = {"queue": "wf", "metadata": {"ext_trace": {"id": 1}}, "priority": 0}
    body = {
        "type": "batch",
        "jobs": [{"type": "a.b", "args": [{"x": 1}], "options": options}],
        "callbacks": {"on_complete": {"type": "a.c", "args": [], "options": options}},
    }
    made = sent(api, "POST", "/workflows", body)
    assert made.status == 201
    (job,) = api.fetch("wf")
    assert job["meta"]["ext_trace"] == {"id": 1}
    # Of a step that has both, each stays what it is.
    both = {"type": "a.b", "args": [], "meta": {"a": 1}, "options": {**options, "queue": "both"}}
    assert sent(api, "POST", "/workflows", {"type": "chain", "steps": [both]}).status == 201
    (job,) = api.fetch("both")
    assert "ext_trace" not in job["meta"]


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
        ({"period": "1m", "period_ms": 60_001}, "period_ms"),
        ({"within": "1m", "period_ms": 60_001}, "period_ms"),
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


# --- JavaScript SDK ---------------------------------------------------------------------------


def test_js_the_beats_of_a_worker(api: Api) -> None:
    """It tells its own state, and how many jobs it has beside which."""
    job_id = api.push("q")
    fetch = {"queues": ["q"], "count": 10, "worker_id": "w", "visibility_timeout_ms": 30_000}
    (job,) = sent(api, "POST", "/workers/fetch", fetch).json["jobs"]
    assert (job["id"], job["attempt"], job["type"]) == (job_id, 1, "test.echo")
    beat = {
        "worker_id": "w", "active_jobs": 1, "active_job_ids": [job_id], "hostname": "unknown",
        "pid": 1, "queues": ["q"], "concurrency": 10, "labels": [],
    }  # fmt: skip
    for state in ("running", "quiet", "terminate"):
        told = sent(api, "POST", "/workers/heartbeat", {**beat, "state": state})
        assert told.status == 200
        assert {"state", "server_time"} <= told.json.keys()
    report = {"job_id": job_id, "percentage": 50, "message": "m", "data": {"a": 1}}
    assert sent(api, "POST", "/workers/progress", report).status == 200
    assert sent(api, "GET", f"/jobs/{job_id}/progress").json["progress"] == 0.5
    assert sent(api, "POST", "/workers/ack", {"job_id": job_id, "result": {"a": 1}}).status == 200


def test_js_the_status_of_a_workflow(api: Api) -> None:
    inner = {"type": "chain", "steps": [{"type": "a.b", "args": []}]}
    body = {"type": "group", "jobs": [{"type": "a.b", "args": [1], "meta": {"a": 1}}, inner]}
    made = sent(api, "POST", "/workflows", body).json["workflow"]
    counts = {"job_count": 2, "completed_count": 0, "failed_count": 0}
    assert counts.items() <= made["metadata"].items()
    assert (made["type"], made["state"]) == ("group", "running")
    assert sent(api, "GET", f"/workflows/{made['id']}").json["workflow"]["id"] == made["id"]


def test_js_a_unique_job_by_parts_of_args_and_meta(api: Api) -> None:
    unique = {
        "keys": ["type", "args", "meta"], "args_keys": ["x"], "meta_keys": ["t"],
        "period": "P1DT1H", "states": ["available", "pending"],
        "on_conflict": "replace_except_schedule",
    }  # fmt: skip
    options = {"queue": "q", "unique": unique, "tags": ["t"], "visibility_timeout_ms": 1_000}
    body = {"type": "a.b", "args": [{"x": 1, "y": 2}], "meta": {"t": "acme"}, "options": options}
    first = sent(api, "POST", "/jobs", body).json["job"]["id"]
    second = sent(api, "POST", "/jobs", {**body, "args": [{"x": 1, "y": 3}]})
    assert second.status in (200, 201)
    assert sent(api, "GET", "/jobs", queue="q", state="available").json["total"] is not None
    other = sent(api, "POST", "/jobs", {**body, "meta": {"t": "other"}}).json["job"]["id"]
    assert other not in (first, second.json["job"]["id"])


# --- Python SDK, as it is now -------------------------------------------------------------------


def test_python_lists_by_offset(api: Api) -> None:
    api.dead("q")
    told = sent(api, "GET", "/dead-letter", limit="50", offset="0", queue="q").json
    assert len(told["jobs"]) == 1
    assert {"total": 1, "limit": 50, "offset": 0, "has_more": False}.items() <= told[
        "pagination"
    ].items()
    assert sent(api, "GET", "/cron", limit="50", offset="0").json["cron_jobs"] == []
