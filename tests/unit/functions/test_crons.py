"""Cron jobs over HTTP, in the dialects of all clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.access import ALL_SCOPES
from ojs.domain.cron.definition import MAX_DESCRIPTION
from ojs.runtime import Runtime
from tests.unit.functions.client import Api
from tests.unit.functions.keyed import Keyed

BASE = "/ojs/v1/cron"
SUITE = {
    "name": "daily",
    "expression": "0 9 * * *",
    "job_template": {"type": "report", "args": [1], "options": {"queue": "reports"}},
}
SDK = {
    "name": "daily",
    "cron": "0 9 * * *",
    "type": "report",
    "args": [1],
    "options": {"queue": "reports"},
}
UI = {"name": "daily", "schedule": "0 9 * * *", "type": "report", "args": [1], "queue": "reports"}


def register(api: Api, **more: Any) -> Any:
    reply = api("POST", BASE, {**SUITE, **more})
    assert reply.status in (200, 201), reply.text
    return reply.json


@pytest.mark.requirement("CRON-7", "CRON-15", "CRON-19", "CRON-27")
@pytest.mark.parametrize("body", [SUITE, SDK, UI])
@pytest.mark.parametrize("base", [BASE, "/ojs/v1/crons"])
def test_each_dialect_registers_the_same(api: Api, body: dict[str, Any], base: str) -> None:
    made = api("POST", base, body)
    assert made.status == 201
    assert made.headers["Location"] == f"{BASE}/daily"
    template = {"type": "report", "args": [1], "meta": {}, "options": {"queue": "reports"}}
    cron = {
        "name": "daily", "id": "daily", "timezone": "UTC", "type": "report", "queue": "reports",
        **dict.fromkeys(("cron", "expression", "schedule"), "0 9 * * *"), "args": [1], "meta": {},
        "options": {"queue": "reports"}, "job_template": template, "overlap_policy": "skip",
        "enabled": True, "status": "active", "description": None, "pause_on_failure": False,
        "last_run_at": None, "last_job_id": None, "run_count": 0,
        "next_run_at": made.json["next_run_at"], "created_at": made.json["created_at"],
        "etag": made.json["etag"],
        "updated_at": made.json["created_at"],
    }  # fmt: skip
    assert cron["next_run_at"].endswith("T09:00:00.000Z")
    assert made.json == {**cron, "cron": cron, "cron_job": cron}
    assert api.get(f"{base}/daily").json == made.json
    # What was shown can be sent back, and changes nothing.
    again = api("POST", base, cron)
    assert (again.status, again.json["next_run_at"]) == (200, cron["next_run_at"])
    assert again.json["updated_at"] == cron["updated_at"]
    listed = api.get(base).json
    assert listed["crons"] == listed["cron_jobs"] == listed["items"] == [cron]
    assert (listed["count"], listed["total"]) == (1, 1)
    gone = api("DELETE", f"{base}/daily")
    assert gone.json == {"deleted": True, "name": "daily", "cron": cron, "cron_job": cron}
    for method in ("GET", "DELETE"):
        reply = api(method, f"{base}/daily")
        assert (reply.status, reply.error["code"]) == (404, "not_found")


def test_a_cron_that_has_no_further_tick_has_ended(api: Api) -> None:
    made = register(api, ends_at="2027-01-01T00:00:00Z")
    assert made["status"] == "active"
    over = api("PATCH", f"{BASE}/daily", {"ends_at": made["created_at"]}).json
    assert (over["status"], over["enabled"], over["next_run_at"]) == ("ended", True, None)
    api.post(f"{BASE}/daily/pause")
    assert api.get(f"{BASE}/daily").json["status"] == "paused"


@pytest.mark.requirement("CRON-6")
def test_what_the_server_sets_is_ignored(api: Api) -> None:
    job_id = "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"
    sent = {"next_run_at": "2040-01-01T00:00:00Z", "run_count": 7, "last_job_id": job_id}
    made = register(api, created_at="2020-01-01T00:00:00Z", **sent)
    assert (made["run_count"], made["last_job_id"]) == (0, None)
    assert made["next_run_at"] < "2040"
    assert made["created_at"] > "2020-01-02"
    assert "warnings" not in made


@pytest.mark.requirement("CRON-28", "CRON-36")
def test_pause_resume_and_filter(api: Api) -> None:
    register(api)
    paused = api("POST", f"{BASE}/daily/pause", {})
    assert (paused.json["enabled"], paused.json["status"]) == (False, "paused")
    assert paused.json["next_run_at"] is None
    assert api.get(BASE, enabled="true").json["count"] == 0
    assert api.get(BASE, enabled="false").json["count"] == 1
    assert api("PATCH", f"{BASE}/daily", {"enabled": True}).json["next_run_at"] is not None
    assert api("POST", f"{BASE}/daily/pause").status == 200
    assert api("POST", f"{BASE}/daily/resume").json["cron_job"]["enabled"]


@pytest.mark.requirement("CRON-20")
def test_trigger_and_history(api: Api) -> None:
    register(api)
    made = api("POST", f"{BASE}/daily/trigger")
    assert made.status == 201
    assert made.json["job"]["id"] == made.json["job_id"]
    assert made.json["job"]["meta"]["cron_name"] == "daily"
    (entry,) = api.get(f"{BASE}/daily/history").json["executions"]
    assert (entry["job_id"], entry["state"], entry["manual"]) == (
        made.json["job_id"], "available", True,
    )  # fmt: skip
    assert api.get(f"{BASE}/daily").json["last_job_id"] == made.json["job_id"]
    api("POST", f"{BASE}/daily/trigger")
    first = api.get(f"{BASE}/daily/history", limit="1").json
    cursor = first["pagination"]["next_cursor"]
    second = api.get(f"{BASE}/daily/history", limit="1", cursor=cursor).json
    assert second["executions"] == [entry]
    for path in ("trigger", "pause", "resume"):
        assert api("POST", f"{BASE}/none/{path}").status == 404
    assert api.get(f"{BASE}/none/history").status == 404


def test_preview(api: Api) -> None:
    asked = {"expression": "30 2 * * *", "timezone": "America/New_York", "count": "2"}
    reply = api.get(f"{BASE}/preview", **asked, after="2026-03-07T12:00:00Z")
    assert reply.json["next_runs"] == ["2026-03-09T06:30:00.000Z", "2026-03-10T06:30:00.000Z"]
    assert reply.json["firings"][0]["skipped"] == ["2026-03-08T02:30:00"]
    assert reply.json["firings"][0]["local"] == "2026-03-09T02:30:00-04:00"
    assert reply.json["time_zone_data"]
    wrong: list[tuple[dict[str, str], str]] = [
        ({}, "expression"), ({"cron": "61 * * * *"}, "cron"),
        ({"schedule": "@daily", "timezone": "EST"}, "timezone"),
        ({"schedule": "@daily", "count": "0"}, "count"),
        ({"schedule": "@daily", "after": "soon"}, "after"),
    ]  # fmt: skip
    for query, field in wrong:
        refused = api.get(f"{BASE}/preview", **query)
        assert (refused.status, refused.error["details"]["field"]) == (400, field)


def test_seconds_without_a_worker_that_polls_are_warned_of(api: Api) -> None:
    seconds = {"expression": "*/10 * * * * *"}
    (told,) = register(api, **seconds)["warnings"]
    assert "'reports'" in told
    api("POST", "/ojs/v1/workers/register", {"worker_id": "w", "queues": ["reports"]})
    assert "warnings" not in register(api, **seconds)
    api.clock.advance(61_000)
    assert "warnings" in register(api, **seconds)
    assert "warnings" not in register(api)


@pytest.mark.requirement("CRON-37")
@pytest.mark.parametrize(
    ("expression", "warned"),
    [("0 0 31 * *", True), ("0 0 30 1,2 *", True), ("0 0 L * *", False), ("0 0 31 1,3 *", False)],
)
def test_a_day_that_some_months_do_not_have_is_warned_of(
    api: Api, expression: str, warned: bool
) -> None:
    told = register(api, expression=expression).get("warnings", [])
    assert ["doesn't run on that day" in each for each in told] == [True] * warned
    changed = api("PATCH", f"{BASE}/daily", {"timezone": "Asia/Tokyo"}).json
    assert changed.get("warnings", []) == told


# Bad input, and the field that is named.
WRONG: list[tuple[dict[str, Any], str]] = [
    *(({"expression": text}, "expression") for text in (
        "", "not a valid cron", "0 0 0 0 0 0 0", "99 25 32 13 8", "*/0 * * * *", "5-1 * * * *",
        "0 0 31 2 *", "@every 10ms", "@sometimes", "* * *",
    )),
    ({"expression": None, "cron": "61 * * * *"}, "cron"),
    ({"expression": None}, "expression"),
    ({"cron": "@daily"}, "cron"),
    *(({"timezone": zone}, "timezone") for zone in ("EST", "+05:00", "Etc/GMT+5", "Mars/Base")),
    ({"name": "x" * 300}, "name"), ({"name": "A"}, "name"), ({"name": "preview"}, "name"),
    ({"name": None}, "name"), ({"name": 5}, "name"),
    ({"overlap_policy": "sometimes"}, "overlap_policy"),
    ({"enabled": "yes"}, "enabled"),
    ({"description": "x" * (MAX_DESCRIPTION + 1)}, "description"),
    ({"starts_at": "soon"}, "starts_at"), ({"starts_at": "+PT1H"}, "starts_at"),
    ({"starts_at": "2030-01-01T00:00:00Z", "ends_at": "2029-01-01T00:00:00Z"}, "ends_at"),
    ({"catchup_window": "0s"}, "catchup_window"), ({"jitter": "2h"}, "jitter"),
    ({"expression": "* * * * *", "jitter": "60s"}, "jitter"),
    ({"overlap": "skip"}, "overlap"),
    ({"type": "other"}, "type"), ({"queue": "other"}, "queue"),
]  # fmt: skip
TEMPLATES: list[tuple[Any, str]] = [
    ({}, "type"),
    ({"type": "t", "args": [], "id": "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"}, "id"),
    ({"type": "t", "args": [], "options": {"scheduled_at": "2030-01-01T00:00:00Z"}},
        "options.scheduled_at"),
    ({"type": "t", "args": [], "options": {"unique": {"keys": ["args"], "args_keys": ["a"]}}},
        "options.unique.args_keys"),
    ({"type": "t", "args": ["x" * 1_100_000]}, "args"),
]  # fmt: skip


@pytest.mark.requirement("CRON-2", "CRON-3", "CRON-11", "CRON-14")
@pytest.mark.parametrize(("wrong", "field"), WRONG)
def test_wrong_input_names_the_field_and_stores_nothing(
    api: Api, wrong: dict[str, Any], field: str
) -> None:
    reply = api("POST", BASE, {**SUITE, **wrong})
    assert (reply.status, reply.error["details"]["field"]) == (400, field), reply.text
    assert reply.error["code"] == "invalid_request"
    assert reply.error["details"]["reason"]
    assert api.get(BASE).json["count"] == 0
    register(api)
    # Names agree with what a change does not set, and what is null is not set.
    if not {"name", "type", "queue", "cron"} & wrong.keys() and None not in wrong.values():
        reply = api("PATCH", f"{BASE}/daily", wrong)
        assert (reply.status, reply.error["details"]["field"]) == (400, field), reply.text


@pytest.mark.requirement("CRON-4", "CRON-5")
@pytest.mark.parametrize(("template", "field"), TEMPLATES)
def test_a_template_that_a_push_would_refuse_is_refused(
    api: Api, template: Any, field: str
) -> None:
    reply = api("POST", BASE, {**SUITE, "job_template": template})
    assert (reply.status, reply.error["details"]["field"]) == (400, f"job_template.{field}")
    assert api.get(BASE).json["count"] == 0


def test_a_template_beside_its_own_limit_cannot_wait_for_itself(api: Api) -> None:
    template = {**SUITE["job_template"], "rate_limit": {"key": "k", "concurrency": 2}}  # type: ignore[dict-item]
    body = {**SUITE, "job_template": template, "overlap_policy": "queue"}
    reply = api("POST", BASE, body)
    assert (reply.status, reply.error["details"]["field"]) == (400, "job_template.rate_limit")


def test_what_its_queue_does_not_take_is_refused(api: Api) -> None:
    api("PUT", "/ojs/v1/queues/reports/config", {"allowed_job_types": ["other"]})
    reply = api("POST", BASE, SDK)
    assert (reply.status, reply.error["details"]["field"]) == (400, "type")


def test_a_change_names_what_does_not_change(api: Api) -> None:
    register(api)
    reply = api("PATCH", f"{BASE}/daily", {"name": "other"})
    assert (reply.status, reply.error["details"]["field"]) == (400, "name")
    assert api("PATCH", f"{BASE}/none", {"enabled": False}).status == 404


def test_a_large_template_is_shown_once_and_left_out_of_lists(api: Api) -> None:
    template = {"type": "t", "args": ["x" * 900_000]}
    made = register(api, job_template=template)
    assert made["cron_job"]["job_template"] == template | {"args": template["args"]}
    assert made["cron"]["omitted"] == ["args", "meta", "options", "job_template"]
    (listed,) = api.get(BASE).json["items"]
    assert "job_template" in listed["omitted"]


# --- limits ---------------------------------------------------------------------------------------


def test_no_more_cron_jobs_than_the_setting_allows(
    api: Api, make_runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.runtime = make_runtime(max_crons=3)
    runtime.use(api.runtime)
    for name in ("a", "b", "c"):
        register(api, name=name)
    # With the second limit as after an upgrade: there are more already.
    for most in (3, 2):
        monkeypatch.setattr(api.runtime.crons, "_most", most)
        refused = api("POST", BASE, {**SUITE, "name": "d"})
        assert (refused.status, refused.error["code"]) == (409, "limit_reached")
        assert refused.error["details"] == {"field": "name", "limit": most}
        assert (
            f"The server has 3 cron jobs, and its setting max_crons allows {most}" in refused.text
        )
        # Those that are there can be changed and fired.
        assert register(api, name="a", expression=f"{most} 9 * * *")["name"] == "a"
        assert api("POST", f"{BASE}/b/trigger").status == 201
    for most in (4, 0):
        monkeypatch.setattr(api.runtime.crons, "_most", most)
        assert api("POST", BASE, {**SUITE, "name": f"more-{most}"}).status == 201


def test_no_more_cron_jobs_than_one_key_can_set(
    make_runtime: Callable[..., Runtime], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ojs.services.crons.manage.MAX_BY_KEY", 2)
    keyed = Keyed(make_runtime(authorizer="keys"), clock)
    one, other = (keyed.holding(keyed.make(name, *ALL_SCOPES)) for name in ("one", "other"))
    for name in ("a", "b"):
        assert one("POST", BASE, {**SUITE, "name": name}).status == 201
    refused = one("POST", BASE, {**SUITE, "name": "c"})
    assert (refused.status, refused.error["code"]) == (409, "limit_reached")
    assert "This access key has created 2 cron jobs" in refused.text
    assert other("POST", BASE, {**SUITE, "name": "c"}).status == 201
    assert one("POST", BASE, {**SUITE, "name": "b", "expression": "1 9 * * *"}).status == 200
    one("DELETE", f"{BASE}/a")
    assert one("POST", BASE, {**SUITE, "name": "d"}).status == 201


@pytest.mark.parametrize(
    ("expression", "taken"),
    [
        ("*/5 * * * *", True), ("@every 300s", True), ("0 9 * * *", True), ("@every 299s", False),
        ("* * * * *", False), ("* * * * * *", False), ("0,4 0 1 1 *", False),
        ("1,58 * * * *", False),
    ],
)  # fmt: skip
def test_ticks_are_as_far_apart_as_the_setting_asks(
    api: Api,
    make_runtime: Callable[..., Runtime],
    monkeypatch: pytest.MonkeyPatch,
    expression: str,
    taken: bool,
) -> None:
    api.runtime = make_runtime(min_cron_interval_s=300)
    runtime.use(api.runtime)
    with monkeypatch.context() as before:
        before.setattr(api.runtime.crons, "_least_s", 1)
        register(api, expression="* * * * *")
    reply = api("POST", BASE, {**SUITE, "name": "new", "expression": expression})
    assert reply.status == (201 if taken else 400), reply.text
    changed = api("PATCH", f"{BASE}/daily", {"expression": expression})
    assert changed.status == (200 if taken else 400)
    if not taken:
        assert changed.error["details"]["field"] == "expression"
        assert (
            "must leave at least 300 s between two runs (setting min_cron_interval_s)"
            in changed.text
        )
        # What fires already goes on, and can be paused.
        assert api.get(f"{BASE}/daily").json["next_run_at"] is not None
        assert api("POST", f"{BASE}/daily/pause").status == 200
