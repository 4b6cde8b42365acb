"""What the dashboard needs of the server: its files, who asks, what operators did; its cost."""

from __future__ import annotations

import base64
import importlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from functions.dashboard import handler
from functions.dashboard.files import Dashboard
from ojs import runtime
from ojs.api import operations as contract
from ojs.clock import ManualClock
from ojs.domain.actions import KEPT_MS, PERIOD_MS
from ojs.domain.dead_letter.statistics import together
from ojs.domain.errors import BackendUnavailable
from ojs.domain.stats import MINUTE_MS, Activity, Point
from ojs.http import endpoint
from ojs.http.binding.actions import audited
from ojs.runtime import Runtime
from tests.dashboard.minute import OVERVIEW_HOUR, OVERVIEW_MINUTE
from tests.unit.functions.client import Api
from tests.unit.functions.keyed import Keyed

SOCKET = "wss://a1b2.execute-api.eu-central-1.amazonaws.com/ojs"

# --- its files ------------------------------------------------------------------------------------


@pytest.fixture
def built(tmp_path: Path) -> Path:
    assets = tmp_path / "built" / "assets"
    assets.mkdir(parents=True)
    (assets.parent / "index.html").write_text("<!doctype html>")
    (assets / "main-1.js").write_text("plain")
    (assets / "main-1.js.gz").write_text("as gzip")
    (assets / "main-1.js.br").write_text("as brotli")
    (tmp_path / "secret.js").write_text("beside the folder")
    return assets.parent


def ask(
    folder: Path, path: str, method: str = "GET", socket: str | None = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    dashboard = Dashboard(folder, "keys", socket_url=socket)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    event = {"rawPath": path, "headers": sent, "requestContext": {"http": {"method": method}}}
    answer = dashboard(event)
    return answer["statusCode"], base64.b64decode(answer["body"]).decode(), answer["headers"]


@pytest.mark.parametrize(
    "path",
    [
        "/ojs/admin", "/ojs/admin/", "/ojs/admin/queues/mail", "/ojs/admin/a.js",
        "/ojs/admin/%2e%2e/x",
    ],
)  # fmt: skip
def test_each_path_of_a_reader_is_the_page(built: Path, path: str) -> None:
    status, body, headers = ask(built, path)
    assert (status, body) == (200, "<!doctype html>")
    assert headers["cache-control"] == "no-cache"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("accepted", "body"),
    [
        ("", "plain"), ("gzip", "as gzip"), ("gzip, deflate, br;q=0.5", "as brotli"),
        ("br;q=0, gzip", "as gzip"), ("zstd", "plain"),
    ],
)  # fmt: skip
def test_assets_are_compressed_and_kept(built: Path, accepted: str, body: str) -> None:
    status, found, headers = ask(built, "/ojs/admin/assets/main-1.js", accept_encoding=accepted)
    assert (status, found) == (200, body)
    assert "immutable" in headers["cache-control"]
    assert headers["vary"] == "accept-encoding"
    again = ask(
        built,
        "/ojs/admin/assets/main-1.js",
        accept_encoding=accepted,
        if_none_match=headers["etag"],
    )
    assert again[:2] == (304, "")


@pytest.mark.parametrize(
    "path",
    [
        "assets/none.js",
        "assets/../../secret.js",
        "assets/..",
        "assets/main-1.js.gz",
        "assets/",
        "assets/\0.js",
    ],
)
def test_no_other_file_is_served(built: Path, path: str) -> None:
    status, body, _ = ask(built, f"/ojs/admin/{path}")
    assert status == 404
    assert "beside" not in body


@pytest.mark.parametrize("socket", [None, SOCKET])
def test_it_says_how_callers_are_known_and_whether_events_are_sent(
    built: Path, socket: str | None
) -> None:
    status, body, headers = ask(built, "/ojs/admin/served.json", socket=socket)
    told = {"authorizer": "keys", "realtime": socket is not None}
    assert (status, json.loads(body)) == (200, told)
    assert headers["cache-control"] == "no-store"


def test_a_page_can_connect_to_its_own_origin_and_to_the_socket_alone(built: Path) -> None:
    def connects(socket: str | None) -> tuple[str, str]:
        _, _, headers = ask(built, "/ojs/admin/", socket=socket)
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert {name for name, value in policy.items() if value == "'self'"} >= {"script-src"}
        assert policy["default-src"] == "'none'"
        assert SOCKET not in "".join(policy[name] for name in policy if name != "connect-src")
        return policy["connect-src"], headers["etag"]

    own, with_socket = connects(None), connects(SOCKET)
    assert (own[0], with_socket[0]) == ("'self'", f"'self' {SOCKET}")
    # A browser would keep the policy of the page that it has.
    assert own[1] != with_socket[1]
    assert SOCKET not in json.dumps(ask(built, "/ojs/admin/assets/none.js", socket=SOCKET)[2])


@pytest.mark.parametrize(
    ("level", "expected"), [("all", SOCKET), ("wake", None), ("off", None), (None, None)]
)
def test_only_a_deployment_that_sends_events_lets_pages_connect(
    monkeypatch: pytest.MonkeyPatch, level: str | None, expected: str | None
) -> None:
    """The function `api` has the address for its other operations."""
    monkeypatch.setenv("OJS_SOCKET_URL", SOCKET)
    if level is not None:
        monkeypatch.setenv("OJS_REALTIME", level)
    page = importlib.reload(handler).handler
    event = {"rawPath": "/ojs/admin/served.json", "requestContext": {"http": {"method": "GET"}}}
    told = json.loads(base64.b64decode(page(event)["body"]))
    assert told["realtime"] is (expected is not None)
    monkeypatch.undo()
    importlib.reload(handler)


def test_nothing_can_be_sent_to_it(built: Path) -> None:
    status, _, headers = ask(built, "/ojs/admin/", "POST")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_without_a_build_it_says_so(tmp_path: Path) -> None:
    status, body, _ = ask(tmp_path, "/ojs/admin/overview")
    assert status == 503
    assert "make dashboard" in body


# --- who asks -------------------------------------------------------------------------------------


@pytest.fixture
def keyed(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Keyed:
    return Keyed(make_runtime(authorizer="keys"), clock)


def test_a_caller_learns_who_they_are(keyed: Keyed) -> None:
    key = keyed.make("ann", "admin:read", "work", queues=["mail*"])
    found = keyed.holding(key)("GET", "/ojs/v1/me").json
    assert found.pop("key") in key
    assert found == {
        "name": "ann", "scopes": ["admin:read", "work"], "queues": ["mail*"],
        "authorizer": "keys", "version": "1.2.3", "service": "ojs-backend-aws",
    }  # fmt: skip
    assert keyed("GET", "/ojs/v1/me").status == 401


def test_on_an_open_server_nobody_has_a_name(api: Api) -> None:
    found = api("GET", "/ojs/v1/me").json
    assert "name" not in found
    assert len(found["scopes"]) == 5


# --- what operators did ---------------------------------------------------------------------------


def actions(api: Api) -> list[dict[str, Any]]:
    return list(api.get("/ojs/v1/admin/actions").json["items"])


def test_an_action_stands_there_with_the_keys_name(keyed: Keyed) -> None:
    operator = keyed.holding(keyed.make("ann", "admin:read", "admin:write", "jobs:write"))
    assert operator("POST", "/ojs/v1/queues/mail/pause").status == 200
    assert operator("GET", "/ojs/v1/queues/mail").status == 200
    assert operator("PUT", "/ojs/v1/queues/mail/config", {"max_size": -1}).status == 400
    found = operator("GET", "/ojs/v1/admin/actions").json["actions"]
    assert [
        (each["actor"], each["operation"], each["method"], each["path"], each["status"])
        for each in found
    ] == [
        ("ann", "pause_queue", "POST", "/ojs/v1/queues/mail/pause", 200),
    ]
    assert all(each["key"] for each in found)


def test_what_is_refused_for_its_key_or_only_counts_is_no_action(keyed: Keyed, api: Api) -> None:
    reader = keyed.holding(keyed.make("eve", "admin:read"))
    assert reader("POST", "/ojs/v1/queues/mail/pause").status == 403
    assert reader("GET", "/ojs/v1/admin/actions").json["actions"] == []


def test_a_count_is_no_action(api: Api) -> None:
    body = {"filter": {"queue": "q"}, "dry_run": True}
    assert api("POST", "/ojs/v1/admin/jobs/bulk/cancel", body).status == 200
    assert actions(api) == []
    del body["dry_run"]
    assert api("POST", "/ojs/v1/admin/jobs/bulk/cancel", {**body, "confirm": True}).status == 200
    assert [each["operation"] for each in actions(api)] == ["admin_cancel_jobs"]


def test_cron_jobs_and_workflows_are_operated_too() -> None:
    for name in ("pause_cron", "crons_trigger_cron", "retry_workflow", "cancel_workflow"):
        assert audited(contract.get(name))
    for name in ("enqueue_job", "create_workflow", "cancel_job", "fetch_jobs", "list_crons"):
        assert not audited(contract.get(name))


def test_one_function_has_all_actions_but_one() -> None:
    """The function of a job's paths deletes steps, and writes that down, too."""
    functions = {each.id: each.function for each in contract.OPERATIONS if audited(each)}
    assert functions.pop("delete_step") == endpoint.JOBS
    assert set(functions.values()) == {endpoint.ADMIN}


def test_what_is_done_is_answered_though_it_cannot_be_written_down(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the function died in between: it is done, and only the log of the API has it."""

    def fail(*_given: object) -> None:
        raise BackendUnavailable("busy")

    monkeypatch.setattr("ojs.store.deployment.actions.ActionStore.add", fail)
    assert api("POST", "/ojs/v1/queues", {"name": "mail"}).status == 201
    assert api("GET", "/ojs/v1/queues/mail").status == 200
    assert actions(api) == []


def test_a_defect_is_an_answer_too(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("ojs.store.deployment.maintenance.MaintenanceStore.end", fail)
    assert api("POST", "/ojs/v1/admin/maintenance", {"enabled": False}).status == 500
    assert actions(api)[0]["status"] == 500


def test_actions_are_listed_page_by_page_across_periods(api: Api, clock: ManualClock) -> None:
    names = []
    for number in range(7):
        names.append(f"/ojs/v1/queues/q{number}/pause")
        assert api("POST", names[-1]).status == 200
        clock.advance(PERIOD_MS // 3)
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = api.get("/ojs/v1/admin/actions", limit="2", **cursor).json
        found += [each["path"] for each in page["items"]]
        assert len(page["items"]) <= 2
        if not page["pagination"]["has_more"]:
            break
        cursor = {"cursor": page["pagination"]["next_cursor"]}
    assert found == names[::-1]
    clock.advance(KEPT_MS - 7 * PERIOD_MS // 3 + 1)
    assert [each["path"] for each in actions(api)] == names[:0:-1]
    clock.advance(KEPT_MS)
    assert actions(api) == []
    assert api.get("/ojs/v1/admin/actions", cursor="bm9uc2Vuc2U").status == 400


def test_a_list_of_actions_costs_four_calls_at_most(api: Api) -> None:
    table = api.runtime.table
    table.measure = True
    table.meter.reset()
    assert actions(api) == []
    assert table.meter.calls == ["Query"] * 4


def test_an_action_costs_one_call_and_one_unit(api: Api) -> None:
    table = api.runtime.table
    table.measure = True
    api("POST", "/ojs/v1/admin/maintenance", {"enabled": True})
    api("POST", "/ojs/v1/admin/maintenance", {"enabled": False})
    table.meter.reset()
    # It is off already: nothing else is written.
    assert api("POST", "/ojs/v1/admin/maintenance", {"enabled": False}).status == 200
    assert table.meter.calls == ["GetItem", "PutItem"]
    assert table.meter.write_units == 1.0


# --- what an open overview costs ------------------------------------------------------------------

_BUSY = Activity(enqueued=100_000, started=100_000, completed=100_000, failed=10_000, runs=100_000)


@pytest.mark.parametrize(("asked", "most"), [(OVERVIEW_MINUTE, 60), (OVERVIEW_HOUR, 250)])
def test_what_an_open_overview_reads_at_most(
    make_runtime: Callable[..., Runtime], clock: ManualClock, asked: Counter[str], most: int
) -> None:
    """With a day of history, and dead letters of many errors in a thousand queues. What a browser
    really asks for, tests/dashboard holds against the same count.
    """
    built = make_runtime()
    store, now_ms = built.stores.statistics, clock.now_ms()
    for minutes in range(24 * 60):
        start_ms = now_ms - now_ms % MINUTE_MS - minutes * MINUTE_MS
        point = Point(start_ms, _BUSY)
        store.save_point(MINUTE_MS, point, now_ms=now_ms)
    counts = together(
        {f"some.queue.of.a.shop-{number}": 10 for number in range(1_000)},
        [{f"com.example.errors.SomeError{number}": 100 for number in range(100)}],
        [{f"com.example.jobs.SomeJob{number}": 100 for number in range(100)}],
    )
    built.stores.dead_letters.save(counts, now_ms=now_ms)
    runtime.use(built)
    api = Api(built, clock)
    built.table.measure = True
    built.table.meter.reset()
    for path, times in asked.items():
        query = {"period": "1m"} if path.endswith("history") else {}
        for _ in range(times):
            assert api.get(path, **query).status == 200
    assert 0 < built.table.meter.read_units <= most


# --- the page of a job with durable code ----------------------------------------------------------


def test_what_the_page_of_a_suspended_job_reads_and_sends(api: Api) -> None:
    job_id = api.active()
    token = api.get(f"/ojs/v1/jobs/{job_id}").json["lease_token"]
    steps = [{"name": "a/b c", "save": "s", "result": 1}]
    body = {"lease_token": token, "version": 2, "steps": steps}
    assert api.post(f"/ojs/v1/jobs/{job_id}/steps", body).status == 200
    waits = [{"kind": "sleep", "name": "nap", "for": "P3D"}]
    told = {"job_id": job_id, "suspend": {"waits": waits}}
    assert api.post("/ojs/v1/workers/nack", told).status == 200
    shown = api.get(f"/ojs/v1/admin/jobs/{job_id}").json
    for job in (shown, shown["job"]):
        assert job["durable"] == {"steps": 2, "version": 2, "epoch": 0, "forgiven_attempts": 0}
        assert [(each["kind"], each["name"]) for each in job["waiting"]] == [("sleep", "nap")]
        assert job["scheduled_at"] == job["waiting"][0]["until"]
    # "Forget" and "End sleep".
    assert api("DELETE", f"/ojs/v1/jobs/{job_id}/steps/a%2Fb%20c").status == 200
    assert api.post(f"/ojs/v1/admin/jobs/{job_id}/run", {}).json["job"]["state"] == "available"
    logged = api.get("/ojs/v1/admin/actions").json["actions"]
    assert [each["operation"] for each in logged] == ["admin_run_job", "delete_step"]


@pytest.mark.parametrize(
    ("scopes", "statuses"),
    [
        (("admin:read",), (403, 403, 403, 403)), (("jobs:read",), (200, 403, 403, 403)),
        (("work",), (200, 403, 403, 403)), (("jobs:write",), (403, 202, 403, 403)),
        (("admin:write",), (403, 403, 404, 409)),
    ],
)  # fmt: skip
def test_a_page_shows_and_does_what_its_key_may(
    keyed: Keyed, scopes: tuple[str, ...], statuses: tuple[int, ...]
) -> None:
    maker = keyed.holding(keyed.make("maker", "jobs:write"))
    body = {"type": "t", "args": [], "options": {"queue": "mine"}}
    path = f"/ojs/v1/jobs/{maker('POST', '/ojs/v1/jobs', body).json['id']}"
    page = keyed.holding(keyed.make("page", *scopes, queues=["mine"]))
    assert (
        page("GET", f"{path}/steps").status,
        page("POST", f"{path}/signals/ok", {"data": 1}).status,
        page("DELETE", f"{path}/steps/none").status,
        page("POST", path.replace("/jobs", "/admin/jobs") + "/run", {}).status,
    ) == statuses
