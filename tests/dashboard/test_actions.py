"""What operators do in a browser: each action, what it asks first, and what became of it.

What is done is looked up with the API, and stands in the list of actions with the key's name.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.dashboard.conftest import Opener, Screen
from tests.dashboard.world import Caller, fail, fetch, push
from tests.local.conftest import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]


@pytest.fixture
def shown(screen: Opener, world: dict[str, str]) -> Screen:
    return screen().open("settings")


def state(call: Caller, job: str) -> str:
    return str(call("GET", f"/admin/jobs/{job}")["state"])


def dead(call: Caller, queue: str, count: int = 1, error: str = "Broken") -> list[str]:
    ids = [push(call, queue, "t.die", n, retry={"max_attempts": 1}) for n in range(count)]
    for job in fetch(call, queue, count, "w"):
        fail(call, job, error, "it broke")
    return ids


def test_queues(shown: Screen, call: Caller) -> None:
    shown.go("queues")
    shown.press("Create queue")
    shown.answer("Create", name="NOT A NAME")
    shown.page.locator("dialog .refused").wait_for()
    shown.answer("Create", name="acts", max_size="ten")
    shown.page.locator("dialog .refused", has_text="whole number").wait_for()
    shown.answer("Create", name="acts", max_size="10")
    shown.page.locator("h1", has_text="acts").wait_for()
    shown.settle()
    shown.press("Pause")
    shown.told("acts paused")
    assert call("GET", "/queues/acts")["paused"] is True
    shown.press("Resume")
    shown.told("acts resumed")
    # What the server refuses stands beside its field, and what else was typed is still there.
    form = shown.page.locator("form", has=shown.page.locator('[name="retention.completed"]'))
    form.locator('[name="retention.completed"]').fill("one week")
    form.locator('[name="concurrency"]').fill("7")
    form.get_by_role("button", name="Save").click()
    shown.page.locator(".refused", has_text="retention.completed").wait_for()
    assert not shown.barriers()
    form.locator('[name="retention.completed"]').fill("2d")
    form.get_by_role("button", name="Save").click()
    shown.told("Saved: concurrency, retention")
    config = call("GET", "/queues/acts/config")["config"]
    assert (config["concurrency"], config["retention"]["completed"]) == (7, "P2D")
    push(call, "acts", "t.wait")
    shown.go("queues/acts")
    shown.page.locator("summary", has_text="More actions").click()
    shown.press("Delete queue")
    shown.page.locator("dialog", has_text="1 unfinished job").wait_for()
    shown.answer("Delete queue", strategy="reject")
    shown.page.locator("dialog [role=alert]").wait_for()
    shown.answer("Delete queue", strategy="discard")
    shown.told("acts:")
    shown.go("audit")
    shown.page.locator("tr", has_text="delete queue").filter(has_text="first").first.wait_for()


def test_ended_jobs_of_a_queue_are_counted_before_they_go(shown: Screen, call: Caller) -> None:
    for job in dead(call, "purged", 3):
        assert state(call, job) == "discarded"
    shown.go("queues/purged")
    shown.page.locator("summary", has_text="More actions").click()
    shown.press("Purge finished jobs")
    shown.answer("Count jobs", state="discarded")
    shown.page.locator("dialog h2", has_text="Delete 3 jobs?").wait_for()
    shown.answer("Delete jobs")
    shown.told("3 jobs deleted")


def test_jobs_by_selection_by_keys_and_all_that_match(shown: Screen, call: Caller) -> None:
    ids = [push(call, "many", "t.wait", n) for n in range(4)]
    shown.go("jobs")
    shown.page.locator('.filters [name="queue"]').fill("many")
    shown.press("Search")
    shown.page.locator("tbody tr").nth(3).wait_for()
    # Those of other queues are gone: what was chosen among them would be, too.
    shown.page.locator("tbody tr").nth(4).wait_for(state="detached")
    assert "queue=many" in shown.page.url
    # By keys: down, select, open.
    shown.page.locator("h1").click()
    for pressed in ("j", "j", "x"):
        shown.page.keyboard.press(pressed)
    shown.page.get_by_text("1 job selected").wait_for()
    shown.page.get_by_role("button", name="Set priority").click()
    shown.answer("Set priority", priority="9")
    shown.told("1 of 1 job updated")
    assert sorted(call("GET", f"/jobs/{job}")["priority"] for job in ids) == [0, 0, 0, 9]
    # Without a selection nothing can be deleted or cancelled, only selected.
    for name in ("Retry", "Cancel", "Delete", "Run now", "Set priority"):
        button = shown.page.get_by_role("button", name=name, exact=True)
        assert button.is_disabled(), name
    shown.press("Select all 4 matching")
    shown.page.get_by_text("All 4 matching selected").wait_for()
    assert shown.page.locator("tbody [type=checkbox]:checked").count() == 4
    shown.page.get_by_role("button", name="Cancel: all matching").click()
    shown.page.locator("dialog h2", has_text="Cancel 4 jobs?").wait_for()
    shown.press("Close")
    assert {state(call, job) for job in ids} == {"available"}
    # A row that is deselected ends the selection of all.
    for job in ids[1:]:
        shown.page.get_by_label(f"Select {job}").uncheck()
    shown.page.get_by_text("1 job selected").wait_for()
    shown.page.get_by_role("button", name="Cancel: 1 job").click()
    shown.answer("Cancel job")
    shown.told("1 job cancelled")
    shown.page.get_by_text("No selection").wait_for()
    shown.press("Select all 4 matching")
    shown.page.get_by_role("button", name="Cancel: all matching").click()
    shown.page.locator("dialog h2", has_text="Cancel 3 jobs?").wait_for()
    shown.answer("Cancel jobs")
    shown.told("3 jobs cancelled")
    assert {state(call, job) for job in ids} == {"cancelled"}
    shown.page.get_by_text("No selection").wait_for()
    shown.press("Select all 4 matching")
    shown.page.get_by_role("button", name="Delete: all matching").click()
    shown.answer("Delete jobs")
    shown.told("4 jobs deleted")
    shown.page.locator("main", has_text="No matching jobs").wait_for()


def test_work_on_many_jobs_shows_how_far_it_is(shown: Screen, call: Caller) -> None:
    jobs = [{"type": "t.bulk", "args": [n], "options": {"queue": "bulk"}} for n in range(520)]
    call("POST", "/jobs/batch", {"jobs": jobs})
    shown.go("jobs?queue=bulk")
    shown.page.get_by_role("button", name="Select all").click()
    shown.page.get_by_role("button", name="Cancel: all matching").click()
    shown.page.locator("dialog h2", has_text="Cancel").wait_for()
    shown.answer("Cancel jobs")
    shown.page.locator(".notice, .told p", has_text="cancel").first.wait_for()
    shown.told("520 jobs cancelled")


def test_one_job(shown: Screen, call: Caller, world: dict[str, str]) -> None:
    later = push(call, "one", "t.later", {"deep": {"er": [1]}}, delay_until="+PT1H")
    shown.go(f"jobs/{later}")
    shown.press("Edit")
    shown.answer("Save", priority="4")
    shown.told("Job updated")
    shown.press("Run now")
    shown.told("Job is available")
    assert (state(call, later), call("GET", f"/jobs/{later}")["priority"]) == ("available", 4)
    curl = shown.page.locator("pre", has_text="$OJS_KEY")
    curl.filter(has_text="t.later").wait_for()
    shown.page.locator("section", has_text="Arguments").get_by_role(
        "button", name="Copy"
    ).first.click()
    shown.page.wait_for_function(
        "async () => (await navigator.clipboard.readText()).includes('deep')"
    )
    copied = shown.page.evaluate("() => navigator.clipboard.readText()")
    assert json.loads(copied) == [{"deep": {"er": [1]}}]
    shown.press("Cancel")
    shown.answer("Cancel job")
    shown.told("Job cancelled")
    shown.press("Delete")
    shown.answer("Delete job")
    shown.page.locator("main", has_text="Job not found").wait_for()
    # Its errors, with their backtraces folded.
    shown.go(f"jobs/{world['dead']}")
    trace = shown.page.locator(".failure details")
    trace.locator("summary").wait_for()
    trace.locator("pre").wait_for(state="hidden")
    trace.locator("summary").click()
    trace.locator("pre", has_text="cardexpired.py:142").wait_for()
    # By its id from anywhere.
    shown.page.get_by_label("Find job by ID").fill(world["done"])
    shown.page.keyboard.press("Enter")
    shown.page.locator("main", has_text="delivered").wait_for()


def test_dead_letters(shown: Screen, call: Caller) -> None:
    one, other, *rest = dead(call, "grave", 5, "Collapsed")
    shown.go("dead-letters?queue=grave")
    shown.page.get_by_role("button", name=f"Retry: {one}", exact=True).click()
    shown.told("Job retried")
    assert state(call, one) == "available"
    shown.page.get_by_role("button", name=f"Edit and retry: {other}").click()
    shown.answer("Retry", args="{not json")
    shown.page.locator("dialog .refused", has_text="JSON").wait_for()
    shown.answer("Retry", args='["new"]', max_attempts="2")
    shown.answered()
    changed = call("GET", f"/admin/jobs/{other}")
    assert (changed["args"], changed["max_attempts"]) == (["new"], 2)
    assert changed["changed_by"] == "first"
    shown.press("Add rule")
    shown.answer("Add rule", name="again", delay="an hour")
    shown.page.locator("dialog .refused", has_text="delay").wait_for()
    shown.answer("Add rule", name="again", delay="PT2H", error_type="Collapsed")
    shown.told("Rule again created")
    rule = call("GET", "/queues/grave/config")["config"]["replay_rules"][0]
    assert (rule["delay"], rule["filter"]) == ("PT2H", {"error_type": "Collapsed"})
    shown.page.get_by_role("button", name="Disable: again").click()
    shown.page.get_by_role("button", name="Enable: again").wait_for()
    shown.page.get_by_role("button", name="Remove: again").click()
    shown.page.get_by_text("No replay rules").wait_for()
    bulk = shown.page.get_by_role("group", name="Actions")
    for name in ("Retry", "Delete"):
        assert bulk.get_by_role("button", name=name, exact=True).is_disabled(), name
    bulk.get_by_role("button", name="Select all").click()
    shown.press("Retry all")
    shown.page.locator("dialog h2", has_text="Retry 3 dead letters?").wait_for()
    shown.answer("Retry")
    shown.told("3 dead letters retried")
    assert {state(call, job) for job in rest} == {"available"}
    dead(call, "grave", 2)
    shown.go("audit")
    shown.go("dead-letters?queue=grave")
    bulk.get_by_role("button", name="Select all").click()
    shown.press("Delete all")
    shown.answer("Delete")
    shown.told("deleted")
    shown.page.locator("main", has_text="No matches").wait_for()


def test_cron_jobs(shown: Screen, call: Caller) -> None:
    shown.go("cron")
    shown.press("Create cron job")
    shown.answer("Create", name="nightly", expression="0 0 31 2 *", type="t.cron")
    shown.page.locator("dialog .refused", has_text="has no run in the next eight years").wait_for()
    shown.answer("Create", expression="0 3 * * *", timezone="Asia/Tokyo")
    shown.page.locator("h1", has_text="nightly").wait_for()
    shown.page.locator("dd", has_text="Daily at 03:00").wait_for()
    shown.page.locator(".rank li", has_text="03:00:00+09:00").nth(3).wait_for()
    shown.page.get_by_role("button", name="Run now: nightly").click()
    shown.told("nightly: job enqueued")
    assert call("GET", "/cron/nightly")["run_count"] == 1
    shown.page.locator("section", has_text="History").locator("td a").first.wait_for()
    shown.page.get_by_role("button", name="Pause: nightly").click()
    shown.page.get_by_role("button", name="Resume: nightly").click()
    shown.page.get_by_role("button", name="Pause: nightly").wait_for()
    shown.page.get_by_role("button", name="Delete: nightly").click()
    shown.answer("Delete cron job")
    shown.told("nightly deleted")


def test_workflows(shown: Screen, call: Caller) -> None:
    steps = [{"type": "t.a", "args": []}, {"type": "t.b", "args": []}]
    made = call("POST", "/workflows", {"type": "chain", "name": "flow", "steps": steps})["id"]
    shown.go(f"workflows/{made}")
    shown.page.locator(".graph rect").nth(1).wait_for()
    shown.page.locator(".graph rect").nth(2).wait_for(state="detached")
    shown.page.locator(".graph path").nth(0).wait_for(state="attached")
    shown.page.locator(".graph path").nth(1).wait_for(state="detached")
    shown.press("Cancel")
    shown.answer("Cancel workflow")
    shown.told("Workflow cancelled")
    shown.press("Retry")
    shown.answer("Retry")
    shown.told("Workflow retried")
    assert call("GET", f"/workflows/{made}")["state"] == "running"


def test_pools_workers_and_limits(shown: Screen, call: Caller) -> None:
    shown.go("pools")
    shown.press("Create pool")
    shown.answer("Create", name="shop", queues="mail=2\nimages=1", strategy="weighted")
    shown.page.locator("h2", has_text="shop").wait_for()
    shown.page.get_by_role("button", name="Edit: shop").click()
    shown.answer("Save", concurrency="5")
    shown.told("Pool shop saved")
    # What was told may be that it was made.
    shown.until(lambda: "concurrency" in call("GET", "/admin/pools/shop"))
    pool = call("GET", "/admin/pools/shop")
    assert (pool["concurrency"], pool["weights"]) == (5, {"mail": 2, "images": 1})
    shown.quiet()
    shown.page.get_by_role("button", name="Delete: shop").click()
    shown.answer("Delete pool")
    shown.told("Pool shop deleted")
    call("POST", "/workers/register", {"worker_id": "told", "queues": ["mail"]})
    shown.go("workers")
    shown.page.get_by_role("button", name="Quiet: told").click()
    shown.told("told stops fetching")
    assert call("GET", "/admin/workers/told")["directive"] == "quiet"
    shown.page.get_by_role("button", name="Terminate: told").click()
    shown.answer("Terminate worker")
    shown.told("told terminates")
    shown.go("limits")
    shown.page.get_by_role("button", name="Set override: example.org").click()
    shown.answer("Set override", concurrency="", rate="many")
    shown.page.locator("dialog .refused").wait_for()
    shown.answer("Set override", concurrency="1", rate="")
    shown.told("Override active")
    assert call("GET", "/rate-limits/example.org")["concurrency"]["limit"] == 1
    shown.quiet()
    shown.page.get_by_role("button", name="Remove override: example.org").click()
    shown.told("Override removed")


def test_keys_and_maintenance(shown: Screen, call: Caller, server: RunningServer) -> None:
    shown.go("keys")
    shown.press("Create key")
    shown.answer("Create", name="looker")
    shown.page.locator("dialog [role=alert], dialog .refused").first.wait_for()
    shown.answer("Create", max_requests_per_s="many")
    shown.page.locator("dialog .refused", has_text="whole number").wait_for()
    shown.answer(
        "Create", admin__read="on", jobs__read="on", queues="mail*", max_requests_per_s="50"
    )
    secret = shown.page.locator(".notice code").inner_text()
    found = Caller(server.url, secret)("GET", "/me")
    assert found["name"] == "looker"
    assert (found["scopes"], found["queues"]) == (["admin:read", "jobs:read"], ["mail*"])
    shown.press("Done")
    assert secret not in shown.page.content()
    read = call("GET", f"/admin/keys/{found['key']}")
    assert read["key"]["max_requests_per_s"] == 50
    shown.press("Create key")
    shown.answer("Create", name="acme's", work="on", tenant="acme")
    shown.press("Done")
    shown.page.locator("tr", has_text="acme's").get_by_text("acme", exact=True).wait_for()
    shown.page.get_by_role("button", name=f"Revoke: looker, {found['key']}").click()
    shown.answer("Revoke key")
    shown.told("Key looker revoked")
    shown.page.locator("tr", has_text="looker").get_by_text("revoked").wait_for()
    shown.go("settings")
    shown.press("Enable")
    shown.answer("Enable maintenance mode", reason="moving house", estimated_duration="10m")
    shown.told("Maintenance mode enabled")
    shown.go("overview")
    shown.page.locator(".notice.warn", has_text="moving house").wait_for()
    shown.go("settings")
    shown.press("Disable")
    shown.told("Maintenance mode disabled")
    assert call("GET", "/admin/maintenance")["enabled"] is False


def test_deliveries(shown: Screen, call: Caller) -> None:
    """The server was started with one of its own, to the handlers of tests/local/pushed.py."""
    push(call, "pushed", "t.push", "do")
    push(call, "pushed", "t.push", "raise", retry={"max_attempts": 1})

    def counted() -> bool:
        of = call("GET", "/admin/deliveries/pushed")["statistics"]
        return bool(of["completed"] >= 1 and of["failed"] >= 1)

    shown.until(counted)
    shown.go("deliveries")
    row = shown.page.locator("tr", has_text="pushed:handler")
    row.locator(".state", has_text="active").wait_for()
    row.locator("td.right").nth(1).filter(has_text="1").wait_for()
    shown.page.get_by_role("button", name="Test: pushed").click()
    shown.answer("Send test event", args="{not json")
    shown.page.locator("dialog .refused", has_text="JSON").wait_for()
    shown.answer("Send test event", args='["do", "<img src=x onerror=window.hacked=1>"]')
    shown.told('["<img src=x onerror=window.hacked=1>"]')
    shown.page.get_by_role("button", name="Test: pushed").click()
    shown.answer("Send test event", args='["raise"]')
    shown.told("KeyError")
    shown.page.get_by_role("button", name="Pause: pushed").click()
    shown.told("pushed paused")
    assert call("GET", "/admin/deliveries/pushed")["state"] == "paused"
    shown.page.get_by_role("button", name="Resume: pushed").click()
    shown.told("pushed resumed")
    # One more, made, refused, changed and deleted.
    shown.press("Create delivery")
    shown.answer("Create", name="hooks", target="http://127.0.0.1:9/x", queues="hooked")
    shown.page.locator("dialog .refused", has_text="signing_secret").wait_for()
    shown.answer("Create", signing_secret="s" * 32, pool="office")
    shown.page.locator("dialog .refused", has_text="pool").wait_for()
    shown.answer("Create", pool="", concurrency="two")
    shown.page.locator("dialog .refused", has_text="whole number").wait_for()
    shown.answer("Create", concurrency="2")
    shown.told("hooks saved")
    shown.page.get_by_role("button", name="hooks", exact=True).click()
    shown.page.locator("section", has=shown.page.locator("h2", has_text="hooks")).locator(
        ".json", has_text="signing_secrets_count"
    ).first.wait_for()
    assert not shown.barriers()
    shown.page.get_by_role("button", name="Edit: hooks").click()
    shown.answer("Save", job_types="t.hook\nt.other", timeout_ms="5s")
    shown.answered()
    changed = call("GET", "/admin/deliveries/hooks")
    assert (changed["job_types"], changed["timeout_ms"], changed["concurrency"]) == (
        ["t.hook", "t.other"], 5_000, 2,
    )  # fmt: skip
    assert (changed["signing_secrets_count"], changed["queues"]) == (1, ["hooked"])
    shown.page.get_by_role("button", name="Test: hooks").click()
    shown.answer("Send test event")
    shown.told("hooks: fault after")
    shown.page.get_by_role("button", name="Delete: hooks").click()
    shown.answer("Delete delivery")
    shown.told("hooks deleted")
    shown.page.get_by_role("button", name="Delete: hooks").wait_for(state="detached")


def test_queues_in_order_of_what_is_in_them(shown: Screen, call: Caller) -> None:
    """Of all queues, not only of those that are loaded."""
    for number in range(40):
        call("POST", "/queues", {"name": f"a-{number:02}"})
    for _ in range(30):
        push(call, "zz-deepest", "t.wait")
    shown.go("queues")
    shown.page.locator("td", has_text="a-00").wait_for()
    shown.page.locator("td", has_text="zz-deepest").wait_for(state="detached")
    shown.press("Depth")
    shown.page.locator("tbody tr").first.filter(has_text="zz-deepest").wait_for()
    shown.page.locator("th[aria-sort=descending]", has_text="Depth").wait_for()
    assert shown.page.url.endswith("/queues?sort=depth")
    shown.page.locator("td", has_text="a-00").wait_for(state="detached")
    shown.press("Queue")
    shown.page.locator("tbody tr").first.filter(has_text="a-00").wait_for()


def test_events_are_followed(shown: Screen, call: Caller) -> None:
    shown.go("events?types=queue.*")
    call("POST", "/queues", {"name": "heard"})
    shown.page.locator("tr", has_text="queue.created").get_by_text("heard").first.wait_for()
    shown.page.locator('.filters [name="types"]').fill("nonsense.*")
    shown.press("Stream")
    shown.page.locator("main", has_text="No matching events").wait_for()


# --- who gets in ----------------------------------------------------------------------------------


def test_signing_in_and_out(screen: Opener, key: str, world: dict[str, str]) -> None:
    shown = screen(signed_in="")
    shown.open("queues")
    assert not shown.barriers()
    field = shown.page.locator('[name="key"]')
    field.fill("ojs_nonsense")
    shown.press("Sign in")
    shown.page.locator("[role=alert]").first.wait_for()
    field.fill(key)
    shown.press("Sign in")
    shown.page.locator("nav .who", has_text="first").wait_for()
    shown.page.locator("h1", has_text="Queues").wait_for()
    # For this tab, and nowhere else.
    assert shown.page.evaluate("() => [sessionStorage['ojs-key'], localStorage.length]") == [key, 0]
    assert not shown.context.cookies()
    assert not [path for _, path in shown.asked if key in path]
    shown.page.reload()
    shown.page.locator("nav .who", has_text="first").wait_for()
    shown.press("Sign out")
    shown.page.locator('[name="key"]').wait_for()
    assert shown.page.evaluate("() => sessionStorage.length") == 0


def test_a_key_that_only_reads(screen: Opener, call: Caller, world: dict[str, str]) -> None:
    body = {"name": "reader", "scopes": ["admin:read", "jobs:read"]}
    made = call("POST", "/admin/keys", body)
    shown = screen(signed_in=made["secret"]).open("overview")
    shown.page.locator("nav .who", has_text="Read-only").wait_for()
    paths = [
        *("queues/mail", "jobs?queue=mail", f"jobs/{world['dead']}", "dead-letters", "cron"),
        *(f"workflows/{world['workflow']}", "pools", "workers", "limits", "keys", "settings"),
    ]
    for path in paths:
        shown.go(path)
        buttons = shown.page.locator("main button[title^='Missing scope']")
        buttons.first.wait_for()
        for button in buttons.all():
            assert button.is_disabled(), f"{path}: {button.inner_text()}"
            assert "(key reader)" in str(button.get_attribute("title"))
    # A ticket of a connection that tells of changes.
    changed = {path for method, path in shown.asked if method != "GET"}
    assert changed <= {"/ojs/v1/realtime/tickets"}
    call("DELETE", f"/admin/keys/{made['key']['id']}")
    shown.go("queues")
    shown.page.locator("[role=alert]", has_text="was revoked").wait_for()


def test_a_key_that_is_limited_to_queues(
    screen: Opener, call: Caller, world: dict[str, str]
) -> None:
    scopes = ["admin:read", "admin:write", "jobs:read"]
    made = call("POST", "/admin/keys", {"name": "mailer", "scopes": scopes, "queues": ["mail"]})
    shown = screen(signed_in=made["secret"]).open("overview")
    shown.page.locator("main a", has_text="mail").click()
    shown.settle()
    shown.press("Pause")
    shown.told("mail paused")
    shown.press("Resume")
    shown.told("mail resumed")
    shown.go("jobs")
    shown.page.locator("main", has_text="Enter one of them").wait_for()
    shown.go("jobs?queue=mail")
    shown.page.locator("td", has_text="email.send").first.wait_for()
    shown.go("queues/billing")
    shown.page.locator("[role=alert]", has_text="Access denied").first.wait_for()


@pytest.mark.parametrize(
    ("authorizer", "text"), [("iam", "signed with AWS credentials"), ("jwt", "Access token")]
)
def test_other_authorizers_say_what_to_do(screen: Opener, authorizer: str, text: str) -> None:
    shown = screen(signed_in="")

    def served(route: Any) -> None:
        route.fulfill(json={"authorizer": authorizer})

    shown.page.route("**/served.json", served)
    shown.open("overview")
    shown.page.locator("main", has_text=text).wait_for()
    assert not shown.barriers()
