"""Lists of jobs, acts on one and on many, by HTTP, as the admin UI and the command line ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojs import runtime
from ojs.domain import times
from ojs.domain.cron.schedule import zone_data_version
from ojs.services.jobs.middleware import MiddlewareChain
from tests.unit.functions.client import Api as Client
from tests.unit.functions.keyed import Keyed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ojs.clock import ManualClock
    from ojs.runtime import Runtime
    from tests.unit.functions.client import Api

BASE = "/ojs/v1"
GONE = "019539a4-0000-7000-8000-000000000000"
LATER = "2999-01-01T00:00:00Z"


# --- lists --------------------------------------------------------------------------------------


@pytest.mark.requirement("ADM-3")
@pytest.mark.parametrize("path", ["jobs", "admin/jobs"])
def test_jobs_are_listed_under_both_names_that_clients_know(api: Api, path: str) -> None:
    mine = [api.push("mail", options={"priority": n}) for n in range(3)]
    api.push("other")
    reply = api.get(f"{BASE}/{path}", queue="mail", state="available")
    assert reply.status == 200
    assert [job["id"] for job in reply.json["items"]] == mine[::-1]
    assert reply.json["items"] == reply.json["jobs"]
    shown = reply.json["items"][0]
    assert (shown["type"], shown["queue"], shown["state"]) == ("test.echo", "mail", "available")
    assert (shown["priority"], shown["attempt"], shown["args"]) == (2, 0, [1])
    assert shown["created_at"]
    # As the admin UI asks for pages, and the command line for a limit.
    page = api.get(f"{BASE}/{path}", queue="mail", state="available", page="2", per_page="2")
    assert [job["id"] for job in page.json["items"]] == mine[:1]
    assert page.json["pagination"]["per_page"] == 2
    limited = api.get(f"{BASE}/{path}", queue="mail", state="available", limit="1")
    assert len(limited.json["jobs"]) == 1
    following = api.get(
        f"{BASE}/{path}",
        queue="mail",
        state="available",
        limit="1",
        cursor=limited.json["pagination"]["next_cursor"],
    )
    assert following.json["jobs"][0]["id"] == mine[1]


@pytest.mark.requirement("ADM-3")
def test_a_filter_may_name_several_states_a_prefix_and_an_order(api: Api) -> None:
    waiting = api.push("mail", type="mail.send")
    api.push("mail", type="report")
    later = api.push("mail", type="mail.drop", options={"scheduled_at": LATER})
    query = {"queue": "mail", "state": "available,scheduled", "type": "mail.*"}
    query |= {"sort": "created_at", "order": "asc"}
    found: list[str] = []
    cursor: str | None = None
    while cursor is not None or not found:
        following = {} if cursor is None else {"cursor": cursor}
        page = api.get(f"{BASE}/admin/jobs", **query, **following).json
        found += [job["id"] for job in page["items"]]
        cursor = page["pagination"].get("next_cursor")
    assert sorted(found) == sorted([waiting, later])


def test_a_page_has_a_total_that_leads_on(api: Api) -> None:
    """The admin UI goes by it; counters know none of a listing by type."""
    for _ in range(3):
        api.push("mail", type="mail.send")
    query = {"queue": "mail", "type": "mail.*", "state": "available", "per_page": "2"}
    first = api.get(f"{BASE}/admin/jobs", page="1", **query).json
    assert (first["pagination"]["total"], first["pagination"]["total_unknown"]) == (3, True)
    assert first["total"] == 3
    last = api.get(f"{BASE}/admin/jobs", page="2", **query).json
    assert (len(last["items"]), last["pagination"]["total"]) == (1, 3)
    cursor = first["pagination"]["next_cursor"]
    for more in ({}, {"cursor": cursor}):
        assert "total" in api.get(f"{BASE}/jobs", **query, **more).json
    known = api.get(f"{BASE}/admin/jobs", queue="mail", state="available", page="1").json
    assert "total_unknown" not in known["pagination"]


def test_what_runs_now_is_seen_with_args_worker_and_progress(api: Api) -> None:
    job_id = api.push("mail", args=["x" * 5_000, 7])
    api.push("mail")
    (job,) = api.fetch("mail", worker_id="w1", count=1)
    api("PUT", f"{BASE}/jobs/{job_id}/progress", {"progress": 0.25})
    api.fetch("mail", worker_id="w2")
    query = {"state": "active", "queue": "mail", "worker_id": "w1"}
    (plain,) = api.get(f"{BASE}/admin/jobs", **query).json["items"]
    assert ("args" not in plain, "args" in plain["omitted"]) == (True, True)
    (shown,) = api.get(f"{BASE}/admin/jobs", include="args", **query).json["items"]
    assert (shown["id"], shown["args"][1], shown["worker_id"]) == (job_id, 7, "w1")
    assert (shown["started_at"], shown["progress"]) == (job["started_at"], 0.25)


def test_a_cursor_is_good_for_its_own_list_only(api: Api) -> None:
    for _ in range(3):
        api.push()
    asked = {"queue": "default", "state": "available", "limit": "1"}
    cursor = api.get(f"{BASE}/jobs", **asked).json["pagination"]["next_cursor"]
    for other in ({"state": "active"}, {"queue": "other"}, {"type": "a"}, {"sort": "priority"}):
        reply = api.get(f"{BASE}/jobs", **{**asked, **other}, cursor=cursor)
        assert (reply.status, reply.error["details"]["field"]) == (400, "cursor")


# --- acts on one job ----------------------------------------------------------------------------


@pytest.mark.requirement("ADM-15")
@pytest.mark.parametrize("base", ["jobs", "admin/jobs"])
def test_one_job_is_retried_run_and_changed(api: Api, base: str) -> None:
    dead = api.dead("mail")
    reply = api.post(f"{BASE}/{base}/{dead}/retry")
    assert (reply.status, reply.json["state"], reply.json["job"]["attempt"]) == (
        200,
        "available",
        0,
    )
    later = api.push(options={"scheduled_at": LATER})
    assert api.post(f"{BASE}/{base}/{later}/run").json["state"] == "available"
    changed = api("PATCH", f"{BASE}/{base}/{later}", {"priority": 9, "queue": "other"})
    assert (changed.json["priority"], changed.json["queue"]) == (9, "other")
    for verb in ("retry", "run"):
        reply = api.post(f"{BASE}/{base}/{later}/{verb}")
        assert (reply.status, reply.error["code"]) == (409, "conflict")
        assert api.post(f"{BASE}/{base}/{GONE}/{verb}").status == 404
        assert api.post(f"{BASE}/{base}/{later}/{verb}", {"x": 1}).status == 400
    assert api("PATCH", f"{BASE}/{base}/{GONE}", {"priority": 1}).status == 404
    (running,) = api.fetch("other")
    reply = api("PATCH", f"{BASE}/{base}/{running['id']}", {"priority": 1})
    assert (reply.status, reply.error["details"]["current_state"]) == (409, "active")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "priority"),
        ({"priority": None}, "priority"),
        ({"priority": 101}, "priority"),
        ({"priority": "5"}, "priority"),
        ({"queue": ""}, "queue"),
        ({"queue": "NO"}, "queue"),
        ({"type": "x"}, "type"),
    ],
)
def test_a_change_says_what_is_changed(api: Api, body: dict[str, Any], field: str) -> None:
    job = api.push()
    reply = api("PATCH", f"{BASE}/jobs/{job}", body)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)


def test_operators_cancel_and_delete(api: Api) -> None:
    job = api.push()
    reply = api("DELETE", f"{BASE}/admin/jobs/{job}")
    assert (reply.status, reply.error["details"]["current_state"]) == (409, "available")
    assert api.post(f"{BASE}/admin/jobs/{job}/cancel").json["state"] == "cancelled"
    assert api.post(f"{BASE}/admin/jobs/{job}/cancel").status == 409
    assert api("DELETE", f"{BASE}/admin/jobs/{job}").json == {"deleted": True, "job_id": job}
    assert api("DELETE", f"{BASE}/admin/jobs/{job}").status == 404
    assert api.get(f"{BASE}/jobs/{job}").status == 404


def test_history_comes_in_pages(api: Api) -> None:
    job = api.dead()
    whole = api.get(f"{BASE}/jobs/{job}/history").json
    assert whole["approximate"] is True
    assert whole["total"] == len(whole["events"]) == 4
    first = api.get(f"{BASE}/jobs/{job}/history", limit="3").json
    rest = api.get(f"{BASE}/jobs/{job}/history", limit="3", cursor=first["next_cursor"]).json
    assert first["events"] + rest["events"] == whole["events"]
    assert "next_cursor" not in rest
    assert api.get(f"{BASE}/jobs/{GONE}/history").status == 404
    for bad in ("eA", "LTE", "%"):
        assert api.get(f"{BASE}/jobs/{job}/history", cursor=bad).error["details"]["field"] == (
            "cursor"
        )


# --- many ---------------------------------------------------------------------------------------


@pytest.mark.requirement("ADM-7", "ADM-8", "ADM-13")
def test_many_jobs_under_admin_want_a_confirmation(api: Api) -> None:
    job = api.dead("mail")
    path = f"{BASE}/admin/jobs/bulk/retry"
    wanted = {"filter": {"state": "discarded"}}
    for body in (wanted, {**wanted, "confirm": False}, {**wanted, "confirm": None}):
        reply = api.post(path, body)
        assert (reply.status, reply.error["details"]["field"]) == (400, "confirm")
    dry = api.post(path, {**wanted, "dry_run": True}).json
    assert (dry["matched"], dry["succeeded"], dry["operation"]["dry_run"]) == (1, 0, True)
    assert api.get(f"{BASE}/jobs/{job}").json["state"] == "discarded"
    done = api.post(path, {**wanted, "confirm": True}).json
    assert (done["action"], done["matched"], done["succeeded"], done["failed"]) == (
        "retry",
        1,
        1,
        0,
    )
    assert done["errors"] == []
    assert api.get(f"{BASE}/jobs/{job}").json["state"] == "available"


def test_the_command_line_names_jobs_or_a_state(api: Api) -> None:
    first, second = api.push("mail"), api.push("mail")
    reply = api.post(f"{BASE}/jobs/bulk/cancel", {"job_ids": [first, GONE]})
    assert reply.json["items"] == [
        {"index": 0, "job_id": first, "status": "cancelled"},
        {
            "index": 1,
            "job_id": GONE,
            "status": "skipped",
            "reason": f"Job '{GONE}' not found.",
        },
    ]
    assert (reply.json["cancelled"], reply.json["failed"], reply.json["skipped"]) == (1, 1, 1)
    assert reply.json["errors"][0]["error"] == f"Job '{GONE}' not found."
    body = {"filter": {"state": "available", "queue": "mail"}}
    assert api.post(f"{BASE}/jobs/bulk/cancel", body).json["cancelled"] == 1
    assert api.get(f"{BASE}/jobs/{second}").json["state"] == "cancelled"
    deleted = api.post(f"{BASE}/jobs/bulk/delete", {"job_ids": [first, second]})
    assert deleted.json["deleted"] == 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"filter": {"state": []}}, "filter.state"),
        ({"filter": {"state": "completed"}}, "filter.state"),
        ({"filter": {"state": ["available", "completed"]}}, "filter.state"),
        ({"filter": {"queue": "a", "older_than": "P7D", "state": "active"}}, "filter.older_than"),
        ({"ids": [GONE]}, "ids"),
        ({"job_ids": [GONE], "confirm": False}, "confirm"),
    ],
)
def test_what_a_bulk_request_lacks_is_named_and_nothing_is_done(
    api: Api, body: dict[str, Any], field: str
) -> None:
    job = api.push("a")
    reply = api.post(f"{BASE}/jobs/bulk/cancel", body)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert api.get(f"{BASE}/jobs/{job}").json["state"] == "available"
    assert api.get(f"{BASE}/admin/jobs/bulk/operations").json["items"] == []


@pytest.mark.parametrize(
    ("more", "field"), [({"atomicity": "atomic"}, "atomicity"), ({"idempotency_key": "k"}, None)]
)
def test_what_is_not_offered_is_refused(api: Api, more: dict[str, Any], field: str | None) -> None:
    reply = api.post(f"{BASE}/jobs/bulk/cancel", {"job_ids": [GONE], **more})
    assert (reply.status, reply.error["code"]) == (422, "unsupported")
    assert reply.error["details"]["field"] == (field or "idempotency_key")


def test_an_operation_is_read_listed_and_stopped(api: Api) -> None:
    api.push()
    begun = api.post(f"{BASE}/jobs/bulk/cancel", {"filter": {"queue": "default"}}).json
    operation = begun["operation"]
    path = f"{BASE}/admin/jobs/bulk/operations"
    assert api.get(f"{path}/{operation['id']}").json["operation"] == operation
    assert api.get(path).json["items"] == [operation]
    reply = api.post(f"{path}/{operation['id']}/stop")
    assert (reply.status, reply.error["details"]["current_state"]) == (409, "completed")
    # Those on dead letters are others.
    assert api.get(f"{BASE}/dead-letter/operations/{operation['id']}").status == 404
    assert api.get(f"{BASE}/dead-letter/operations").json["items"] == []
    assert api.get(f"{path}/{GONE}").status == 404


@pytest.mark.requirement("ADM-9")
def test_a_queue_is_purged_of_what_has_ended(api: Api) -> None:
    dead, waiting = api.dead("mail"), api.push("mail")
    path = f"{BASE}/admin/queues/mail/jobs"
    for body, field in (
        ({"states": ["discarded"]}, "confirm"),
        ({"states": [], "confirm": True}, "states"),
        ({"confirm": True}, "states"),
        ({"states": ["available"], "confirm": True}, "states[0]"),
        ({"states": ["discarded"], "older_than": "x", "confirm": True}, "older_than"),
    ):
        reply = api("DELETE", path, body)
        assert (reply.status, reply.error["details"]["field"]) == (400, field)
    kept = api("DELETE", path, {"states": ["discarded"], "older_than": "P1D", "confirm": True})
    assert kept.json["purged_count"] == 0
    reply = api("DELETE", path, {"states": ["discarded"], "confirm": True})
    assert (reply.json["purged_count"], reply.json["states"]) == (1, ["discarded"])
    assert api.get(f"{BASE}/jobs/{dead}").status == 404
    assert api.get(f"{BASE}/jobs/{waiting}").status == 200
    again = api.dead("mail2")
    assert api.post(f"{BASE}/queues/mail2/purge", {"states": ["discarded"]}).json["purged"] == 1
    assert api.get(f"{BASE}/jobs/{again}").status == 404


# --- one job, as the admin UI shows it ------------------------------------------------------------


@pytest.mark.requirement("ADM-4")
def test_a_job_is_shown_with_its_policy_its_errors_and_its_times(api: Api) -> None:
    job_id = api.push("mail", meta={"trace_id": "abc"}, options={"retry": {"max_attempts": 2}})
    new = api.get(f"{BASE}/admin/jobs/{job_id}").json
    assert (new["errors"], new["meta"], new["args"]) == ([], {"trace_id": "abc"}, [1])
    assert new["retry_policy"]["max_attempts"] == 2
    assert new["metadata"] == {name: new[name] for name in ("created_at", "enqueued_at")}
    api.fetch("mail", worker_id="w1")
    error = {"code": "Boom", "message": "no"}
    api.post(f"{BASE}/workers/nack", {"job_id": job_id, "error": error})
    failed = api.get(f"{BASE}/admin/jobs/{job_id}").json
    assert [(one["attempt"], one["message"]) for one in failed["errors"]] == [(1, "no")]
    assert failed["metadata"]["started_at"] == failed["started_at"]
    # A client's own `metadata` stands beside the times; the job itself has it as it was sent.
    own = {"type": "t.own", "args": [], "metadata": {"colour": "red", "created_at": "never"}}
    job_id = api.post(f"{BASE}/jobs", own).json["id"]
    shown = api.get(f"{BASE}/admin/jobs/{job_id}").json
    assert shown["metadata"]["colour"] == "red"
    assert shown["metadata"]["created_at"] == shown["created_at"]
    assert shown["job"]["metadata"] == own["metadata"]


def test_a_dashboard_finds_errors_and_meta_of_a_large_job(api: Api) -> None:
    job_id = api.push("mail", args=["x" * 300_000], meta={"a": 1})
    shown = api.get(f"{BASE}/admin/jobs/{job_id}").json
    assert (shown["errors"], shown["meta"]) == ([], {})
    assert {"args", "meta"} <= set(shown["omitted"])
    assert shown["job"]["meta"] == {"a": 1}


# --- the system ---------------------------------------------------------------------------------


@pytest.mark.requirement("ADM-18")
def test_the_configuration_shows_no_names_of_resources(
    make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    built = make_runtime(strict_queues=True, bus="secret-bus", bus_types=("job.failed",))
    runtime.use(built)
    api = Client(built, clock)
    for path in ("system/config", "config"):
        reply = api.get(f"{BASE}/admin/{path}")
        assert reply.json == {
            "version": "1.2.3",
            "service": "ojs-backend-aws",
            "authorizer": "none",
            "strict_queues": True,
            "event_bus": True,
            "bus_types": ["job.failed"],
            "time_zone_data": zone_data_version(),
        }
        assert api.get(f"{BASE}/admin/{path}", x="1").status == 400


def test_middleware_is_listed(api: Api) -> None:
    assert api.get(f"{BASE}/middleware").json == {"enqueue": [], "execution": []}

    names: list[Any] = ["hooks:check_args", lambda job, following: following(job)]
    names[1].__name__ = "add_trace_id"
    api.runtime.middleware = MiddlewareChain(names, timeout_ms=1, service="s")
    assert api.get(f"{BASE}/middleware").json["enqueue"] == [
        {"name": "hooks:check_args", "phase": "enqueue", "order": 1},
        {"name": "add_trace_id", "phase": "enqueue", "order": 2},
    ]


# --- access -------------------------------------------------------------------------------------


def test_a_key_for_some_queues_touches_no_others(
    make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    keyed = Keyed(make_runtime(authorizer="keys"), clock)
    full = keyed.holding(keyed.make("all", "jobs:read", "jobs:write", "admin:read", "admin:write"))
    mine = keyed.holding(
        keyed.make("mine", "jobs:read", "jobs:write", "admin:read", "admin:write", queues=("mine",))
    )
    body = {"type": "a", "args": [], "options": {"queue": "other"}}
    other = full("POST", f"{BASE}/jobs", body).json["job"]["id"]
    assert mine("GET", f"{BASE}/jobs").status == 403
    assert mine("GET", f"{BASE}/jobs", query={"queue": "other"}).status == 403
    assert mine("GET", f"{BASE}/jobs", query={"queue": "mine"}).status == 200
    for wanted in ({"job_ids": [other]}, {"filter": {"queue": "other"}}, {"filter": {"type": "a"}}):
        assert mine("POST", f"{BASE}/jobs/bulk/cancel", wanted).status == 403
    assert mine("POST", f"{BASE}/jobs/bulk/cancel", {"filter": {"queue": "mine"}}).status == 200
    own = full("POST", f"{BASE}/jobs", {**body, "options": {"queue": "mine"}}).json["job"]["id"]
    assert mine("PATCH", f"{BASE}/jobs/{own}", {"queue": "other"}).status == 403
    assert mine("PATCH", f"{BASE}/jobs/{own}", {"priority": 3}).status == 200
    assert mine("PATCH", f"{BASE}/jobs/{other}", {"priority": 3}).status == 403
    assert full("GET", f"{BASE}/jobs/{other}").json["state"] == "available"


# --- erasure ------------------------------------------------------------------------------------

ERASE = f"{BASE}/admin/jobs/bulk/erase"


def test_jobs_are_erased_by_meta(api: Api) -> None:
    mine = [api.push(queue=queue, meta={"who": "a", "n": n}) for n, queue in enumerate("xy")]
    other = api.push(queue="x", meta={"who": "b"})
    counted = api.post(ERASE, {"filter": {"meta": {"who": "a"}}, "dry_run": True}).json
    assert (counted["matched"], counted["erased"]) == (2, 0)
    assert "remains" not in counted["operation"]
    done = api.post(ERASE, {"filter": {"meta": {"who": "a", "n": 0}}, "confirm": True}).json
    assert (done["action"], done["erased"], done["operation"]["state"]) == ("erase", 1, "running")
    asked = {"meta": {"who": "a"}, "queue": "y"}
    done = api.post(ERASE, {"filter": {**asked, "type": "email.*"}, "confirm": True}).json
    assert done["erased"] == 0
    done = api.post(ERASE, {"filter": {**asked, "type": "test.*"}, "confirm": True}).json
    assert done["erased"] == 1
    assert [api.get(f"{BASE}/jobs/{job}").status for job in (*mine, other)] == [404, 404, 200]
    path = f"{BASE}/admin/jobs/bulk/operations/{done['operation']['id']}"
    for _ in range(3):
        api.clock.advance(61_000)
        api.runtime.bulk.run_once(api.clock.now_ms(), 100)
    operation = api.get(path).json["operation"]
    assert (operation["state"], operation["filter"]["meta"]) == ("completed", {"who": None})
    assert [each["where"] for each in operation["remains"]] == ["event_log"]
    assert api.get(f"{BASE}/admin/jobs/bulk/operations").json["items"][0] == operation


def test_what_is_kept_elsewhere_is_told(make_runtime: Callable[..., Runtime], api: Api) -> None:
    days = {"table_backups": 35, "nightly_backups": 0, "bucket_versions": 7}
    other = Client(make_runtime(recovery_days=days), api.clock)
    runtime.use(other.runtime)
    job = other.push()
    done = other.post(ERASE, {"job_ids": [job], "confirm": True}).json
    assert done["items"] == [{"index": 0, "job_id": job, "status": "erased"}]
    told = {each["where"]: each["until"] for each in done["operation"]["remains"]}
    day_ms = 86_400_000
    assert told == {
        "event_log": times.format_ms(api.clock.now_ms() + 8 * day_ms),
        "table_backups": times.format_ms(api.clock.now_ms() + 35 * day_ms),
        "bucket_versions": times.format_ms(api.clock.now_ms() + 7 * day_ms),
    }


_WHO = {"meta": {"who": "a"}}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "filter"),
        ({"confirm": True}, "filter"),
        ({"filter": None, "confirm": True}, "filter"),
        ({"filter": {}, "confirm": True}, "filter.meta"),
        ({"filter": {"queue": "a"}, "confirm": True}, "filter.meta"),
        ({"filter": {"meta": None}, "confirm": True}, "filter.meta"),
        ({"filter": {"meta": {}}, "confirm": True}, "filter.meta"),
        ({"filter": {"meta": []}, "confirm": True}, "filter.meta"),
        ({"filter": {"meta": "who"}, "confirm": True}, "filter.meta"),
        ({"filter": {"meta": {"who": None}}, "confirm": True}, "filter.meta.who"),
        ({"filter": {"meta": {"who": ""}}, "confirm": True}, "filter.meta.who"),
        ({"filter": {"meta": {"who": []}}, "confirm": True}, "filter.meta.who"),
        ({"filter": {"meta": {"who": {}}}, "confirm": True}, "filter.meta.who"),
        ({"filter": {"meta": {"a": 1, "who": None}}, "confirm": True}, "filter.meta.who"),
        ({"filter": {"meta": {str(n): 1 for n in range(21)}}, "confirm": True}, "filter.meta"),
        ({"filter": {**_WHO, "queue": ""}, "confirm": True}, "filter.queue"),
        ({"filter": {**_WHO, "queue": None}, "confirm": True}, "filter.queue"),
        ({"filter": {**_WHO, "type": "*"}, "confirm": True}, "filter.type"),
        ({"filter": {**_WHO, "state": "completed"}, "confirm": True}, "filter.state"),
        ({"filter": {**_WHO, "args": "a"}, "confirm": True}, "filter.args"),
        ({"filter": _WHO}, "confirm"),
        ({"filter": _WHO, "confirm": False}, "confirm"),
        ({"filter": _WHO, "confirm": "yes"}, "confirm"),
        ({"filter": _WHO, "dry_run": False}, "confirm"),
        ({"filter": _WHO, "job_ids": [GONE], "confirm": True}, "filter"),
        ({"job_ids": [], "confirm": True}, "job_ids"),
        ({"job_ids": None, "confirm": True}, "job_ids"),
        ({"job_ids": ["x"], "confirm": True}, "job_ids[0]"),
        ({"job_ids": [GONE] * 1_001, "confirm": True}, "job_ids"),
        ({**_WHO, "confirm": True}, "meta"),
    ],
)
def test_what_destroys_is_asked_for_by_name(api: Api, body: dict[str, Any], field: str) -> None:
    job = api.push("a", meta={"who": None})
    reply = api.post(ERASE, body)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert api.get(f"{BASE}/jobs/{job}").json["state"] == "available"
    assert api.get(f"{BASE}/admin/jobs/bulk/operations").json["operations"] == []
