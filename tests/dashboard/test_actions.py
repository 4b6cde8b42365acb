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
    shown.press("Make a queue")
    shown.answer("Make it", name="NOT A NAME")
    shown.page.locator("dialog .refused").wait_for()
    shown.answer("Make it", name="acts", max_size="ten")
    shown.page.locator("dialog .refused", has_text="whole number").wait_for()
    shown.answer("Make it", name="acts", max_size="10")
    shown.page.locator("h1", has_text="acts").wait_for()
    shown.settle()
    shown.press("Pause")
    shown.told("acts hands out no more jobs")
    assert call("GET", "/queues/acts")["paused"] is True
    shown.press("Resume")
    shown.told("acts hands out jobs again")
    # What the server refuses stands beside its field, and what else was typed is still there.
    form = shown.page.locator("form", has=shown.page.locator('[name="retention"]'))
    form.locator('[name="retention"]').fill('{"completed": "one week"}')
    form.locator('[name="concurrency"]').fill("7")
    form.get_by_role("button", name="Save").click()
    shown.page.locator(".refused", has_text="retention.completed").wait_for()
    assert not shown.barriers()
    form.locator('[name="retention"]').fill('{"completed": "P2D"}')
    form.get_by_role("button", name="Save").click()
    shown.told("Saved: concurrency, retention")
    config = call("GET", "/queues/acts/config")["config"]
    assert (config["concurrency"], config["retention"]["completed"]) == (7, "P2D")
    push(call, "acts", "t.wait")
    shown.go("queues/acts")
    shown.press("Delete …")
    shown.page.locator("dialog", has_text="1 job").wait_for()
    shown.answer("Delete the queue", strategy="reject")
    shown.page.locator("dialog [role=alert]").wait_for()
    shown.answer("Delete the queue", strategy="discard")
    shown.told("acts:")
    shown.go("audit")
    shown.page.locator("tr", has_text="delete queue").filter(has_text="first").first.wait_for()


def test_ended_jobs_of_a_queue_are_counted_before_they_go(shown: Screen, call: Caller) -> None:
    for job in dead(call, "purged", 3):
        assert state(call, job) == "discarded"
    shown.go("queues/purged")
    shown.press("Delete ended jobs …")
    shown.answer("Delete them", state="discarded")
    shown.page.locator("dialog h2", has_text="Delete 3 jobs?").wait_for()
    shown.answer("Delete for good")
    shown.told("3 jobs deleted")


def test_jobs_by_selection_by_keys_and_all_that_match(shown: Screen, call: Caller) -> None:
    ids = [push(call, "many", "t.wait", n) for n in range(4)]
    shown.go("jobs")
    shown.page.locator('.filters [name="queue"]').fill("many")
    shown.press("Find")
    shown.page.locator("tbody tr").nth(3).wait_for()
    # Those of other queues are gone: what was chosen among them would be, too.
    shown.page.locator("tbody tr").nth(4).wait_for(state="detached")
    assert "queue=many" in shown.page.url
    # By keys: down, select, open.
    shown.page.locator("h1").click()
    for pressed in ("j", "j", "x"):
        shown.page.keyboard.press(pressed)
    shown.page.get_by_text("1 job selected").wait_for()
    shown.page.get_by_role("button", name="Priority …").click()
    shown.answer("Change it", priority="9")
    shown.told("Priority changed: 1 of 1")
    assert sorted(call("GET", f"/jobs/{job}")["priority"] for job in ids) == [0, 0, 0, 9]
    shown.page.get_by_role("button", name="Cancel: all that match").click()
    shown.page.locator("dialog h2", has_text="Cancel 4 jobs?").wait_for()
    shown.press("No")
    assert {state(call, job) for job in ids} == {"available"}
    shown.page.get_by_label(f"Select {ids[0]}").check()
    shown.page.get_by_role("button", name="Cancel: 1 job").click()
    shown.answer("Cancel")
    shown.told("cancel: 1 done")
    shown.page.get_by_role("button", name="Cancel: all that match").click()
    shown.page.locator("dialog h2", has_text="Cancel 3 jobs?").wait_for()
    shown.answer("Cancel")
    shown.told("cancel: 3 done")
    assert {state(call, job) for job in ids} == {"cancelled"}
    shown.page.get_by_role("button", name="Delete: all that match").click()
    shown.answer("Delete")
    shown.told("delete: 4 done")
    shown.page.locator("main", has_text="No job fits").wait_for()


def test_work_on_many_jobs_shows_how_far_it_is(shown: Screen, call: Caller) -> None:
    jobs = [{"type": "t.bulk", "args": [n], "options": {"queue": "bulk"}} for n in range(520)]
    call("POST", "/jobs/batch", {"jobs": jobs})
    shown.go("jobs?queue=bulk")
    shown.page.get_by_role("button", name="Cancel: all that match").click()
    shown.page.locator("dialog h2", has_text="Cancel").wait_for()
    shown.answer("Cancel")
    shown.page.locator(".notice, .told p", has_text="cancel").first.wait_for()
    shown.told("cancel: 520 done")


def test_one_job(shown: Screen, call: Caller, world: dict[str, str]) -> None:
    later = push(call, "one", "t.later", {"deep": {"er": [1]}}, delay_until="+PT1H")
    shown.go(f"jobs/{later}")
    shown.press("Change …")
    shown.answer("Change it", priority="4")
    shown.told("Changed")
    shown.press("Run now")
    shown.told("It is available now")
    assert (state(call, later), call("GET", f"/jobs/{later}")["priority"]) == ("available", 4)
    curl = shown.page.locator("pre", has_text="$OJS_KEY")
    curl.filter(has_text="t.later").wait_for()
    shown.page.locator("section", has_text="Args").get_by_role("button", name="Copy").first.click()
    shown.page.wait_for_function(
        "async () => (await navigator.clipboard.readText()).includes('deep')"
    )
    copied = shown.page.evaluate("() => navigator.clipboard.readText()")
    assert json.loads(copied) == [{"deep": {"er": [1]}}]
    shown.press("Cancel …")
    shown.answer("Cancel the job")
    shown.told("Cancelled")
    shown.press("Delete …")
    shown.answer("Delete for good")
    shown.page.locator("main", has_text="There is no such job").wait_for()
    # Its errors, with their backtraces folded.
    shown.go(f"jobs/{world['dead']}")
    trace = shown.page.locator(".failure details")
    trace.locator("summary").wait_for()
    trace.locator("pre").wait_for(state="hidden")
    trace.locator("summary").click()
    trace.locator("pre", has_text="cardexpired.py:142").wait_for()
    # By its id from anywhere.
    shown.page.get_by_label("Open a job by its id").fill(world["done"])
    shown.page.keyboard.press("Enter")
    shown.page.locator("main", has_text="delivered").wait_for()


def test_dead_letters(shown: Screen, call: Caller) -> None:
    one, other, *rest = dead(call, "grave", 5, "Collapsed")
    shown.go("dead-letters?queue=grave")
    shown.page.get_by_role("button", name=f"Retry: {one}").click()
    shown.told("It is available again")
    assert state(call, one) == "available"
    shown.page.get_by_role("button", name=f"Change …: {other}").click()
    shown.answer("Retry", args="{not json")
    shown.page.locator("dialog .refused", has_text="JSON").wait_for()
    shown.answer("Retry", args='["new"]', max_attempts="2")
    shown.answered()
    changed = call("GET", f"/admin/jobs/{other}")
    assert (changed["args"], changed["max_attempts"]) == (["new"], 2)
    assert changed["changed_by"] == "first"
    shown.press("Add a rule …")
    shown.answer("Add it", name="again", delay="an hour")
    shown.page.locator("dialog .refused", has_text="delay").wait_for()
    shown.answer("Add it", name="again", delay="PT2H", error_type="Collapsed")
    shown.told("Rule again is there")
    rule = call("GET", "/queues/grave/config")["config"]["replay_rules"][0]
    assert (rule["delay"], rule["filter"]) == ("PT2H", {"error_type": "Collapsed"})
    shown.page.get_by_role("button", name="Turn off: again").click()
    shown.page.get_by_role("button", name="Turn on: again").wait_for()
    shown.page.get_by_role("button", name="Remove: again").click()
    shown.page.get_by_text("None: dead letters wait").wait_for()
    shown.press("Retry all …")
    shown.page.locator("dialog h2", has_text="Retry 3 dead letters?").wait_for()
    shown.answer("Retry")
    shown.told("Retry of dead letters: 3 done")
    assert {state(call, job) for job in rest} == {"available"}
    dead(call, "grave", 2)
    shown.go("audit")
    shown.go("dead-letters?queue=grave")
    shown.press("Delete all …")
    shown.answer("Delete")
    shown.told("Deletion of dead letters")
    shown.page.locator("main", has_text="None fits").wait_for()


def test_cron_jobs(shown: Screen, call: Caller) -> None:
    shown.go("cron")
    shown.press("Make a cron job …")
    shown.answer("Make it", name="nightly", expression="0 0 31 2 *", type="t.cron")
    shown.page.locator("dialog .refused", has_text="never fires").wait_for()
    shown.answer("Make it", expression="0 3 * * *", timezone="Asia/Tokyo")
    shown.page.locator("h1", has_text="nightly").wait_for()
    shown.page.locator(".rank li", has_text="03:00:00+09:00").nth(3).wait_for()
    shown.page.get_by_role("button", name="Run now: nightly").click()
    shown.told("nightly has pushed a job")
    assert call("GET", "/cron/nightly")["run_count"] == 1
    shown.page.locator("section", has_text="History").locator("td a").first.wait_for()
    shown.page.get_by_role("button", name="Pause: nightly").click()
    shown.page.get_by_role("button", name="Resume: nightly").click()
    shown.page.get_by_role("button", name="Pause: nightly").wait_for()
    shown.page.get_by_role("button", name="Delete …: nightly").click()
    shown.answer("Delete it")
    shown.told("Deleted")


def test_workflows(shown: Screen, call: Caller) -> None:
    steps = [{"type": "t.a", "args": []}, {"type": "t.b", "args": []}]
    made = call("POST", "/workflows", {"type": "chain", "name": "flow", "steps": steps})["id"]
    shown.go(f"workflows/{made}")
    shown.page.locator(".graph rect").nth(1).wait_for()
    shown.page.locator(".graph rect").nth(2).wait_for(state="detached")
    shown.page.locator(".graph path").nth(0).wait_for(state="attached")
    shown.page.locator(".graph path").nth(1).wait_for(state="detached")
    shown.press("Cancel …")
    shown.answer("Cancel the workflow")
    shown.told("Cancelled")
    shown.press("Retry …")
    shown.answer("Retry")
    shown.told("It runs again")
    assert call("GET", f"/workflows/{made}")["state"] == "running"


def test_pools_workers_and_limits(shown: Screen, call: Caller) -> None:
    shown.go("pools")
    shown.press("Make a pool …")
    shown.answer("Make it", name="shop", queues="mail=2\nimages=1", strategy="weighted")
    shown.page.locator("h2", has_text="shop").wait_for()
    shown.page.get_by_role("button", name="Change …: shop").click()
    shown.answer("Change it", concurrency="5")
    shown.told("Saved")
    # What was told may be that it was made.
    shown.until(lambda: "concurrency" in call("GET", "/admin/pools/shop"))
    pool = call("GET", "/admin/pools/shop")
    assert (pool["concurrency"], pool["weights"]) == (5, {"mail": 2, "images": 1})
    shown.page.get_by_role("button", name="Remove …: shop").click()
    shown.answer("Remove it")
    shown.told("Removed")
    call("POST", "/workers/register", {"worker_id": "told", "queues": ["mail"]})
    shown.go("workers")
    shown.page.get_by_role("button", name="Quiet: told").click()
    shown.told("told goes quiet")
    assert call("GET", "/admin/workers/told")["directive"] == "quiet"
    shown.page.get_by_role("button", name="Terminate …: told").click()
    shown.answer("Terminate it")
    shown.told("told terminates")
    shown.go("limits")
    shown.page.get_by_role("button", name="Override …: example.org").click()
    shown.answer("Override it", concurrency="", rate="many")
    shown.page.locator("dialog .refused").wait_for()
    shown.answer("Override it", concurrency="1", rate="")
    shown.told("It holds from now on")
    assert call("GET", "/rate-limits/example.org")["concurrency"]["limit"] == 1
    shown.page.get_by_role("button", name="Take back: example.org").click()
    shown.told("As its jobs have it")


def test_keys_and_maintenance(shown: Screen, call: Caller, server: RunningServer) -> None:
    shown.go("keys")
    shown.press("Make a key …")
    shown.answer("Make it", name="looker")
    shown.page.locator("dialog [role=alert], dialog .refused").first.wait_for()
    shown.answer("Make it", admin__read="on", jobs__read="on", queues="mail*")
    secret = shown.page.locator(".notice code").inner_text()
    found = Caller(server.url, secret)("GET", "/me")
    assert found["name"] == "looker"
    assert (found["scopes"], found["queues"]) == (["admin:read", "jobs:read"], ["mail*"])
    shown.press("I have it")
    assert secret not in shown.page.content()
    shown.page.get_by_role("button", name=f"Revoke …: looker, {found['key']}").click()
    shown.answer("Revoke it")
    shown.told("Revoked")
    shown.page.locator("tr", has_text="looker").get_by_text("revoked").wait_for()
    shown.go("settings")
    shown.press("Begin …")
    shown.answer("Begin it", reason="moving house", estimated_duration="10m")
    shown.told("Maintenance has begun")
    shown.go("overview")
    shown.page.locator(".notice.warn", has_text="moving house").wait_for()
    shown.go("settings")
    shown.press("End it")
    shown.told("Jobs are handed out again")
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
    shown.page.get_by_role("button", name="Test …: pushed").click()
    shown.answer("Push it", args="{not json")
    shown.page.locator("dialog .refused", has_text="JSON").wait_for()
    shown.answer("Push it", args='["do", "<img src=x onerror=window.hacked=1>"]')
    shown.told('["<img src=x onerror=window.hacked=1>"]')
    shown.page.get_by_role("button", name="Test …: pushed").click()
    shown.answer("Push it", args='["raise"]')
    shown.told("KeyError")
    shown.page.get_by_role("button", name="Pause: pushed").click()
    shown.told("pushed: paused.")
    assert call("GET", "/admin/deliveries/pushed")["state"] == "paused"
    shown.page.get_by_role("button", name="Resume: pushed").click()
    shown.told("pushed: resumed.")
    # One more, made, refused, changed and deleted.
    shown.press("Make a delivery …")
    shown.answer("Make it", name="hooks", target="http://127.0.0.1:9/x", queues="hooked")
    shown.page.locator("dialog .refused", has_text="signing_secret").wait_for()
    shown.answer("Make it", signing_secret="s" * 32, pool="office")
    shown.page.locator("dialog .refused", has_text="pool").wait_for()
    shown.answer("Make it", pool="", concurrency="two")
    shown.page.locator("dialog .refused", has_text="whole number").wait_for()
    shown.answer("Make it", concurrency="2")
    shown.told("hooks: saved.")
    shown.page.get_by_role("button", name="hooks", exact=True).click()
    shown.page.locator("section", has=shown.page.locator("h2", has_text="hooks")).locator(
        ".json", has_text="signing_secrets_count"
    ).first.wait_for()
    assert not shown.barriers()
    shown.page.get_by_role("button", name="Change …: hooks").click()
    shown.answer("Change it", job_types="t.hook\nt.other", timeout_ms="5000")
    shown.answered()
    changed = call("GET", "/admin/deliveries/hooks")
    assert (changed["job_types"], changed["timeout_ms"], changed["concurrency"]) == (
        ["t.hook", "t.other"], 5_000, 2,
    )  # fmt: skip
    assert (changed["signing_secrets_count"], changed["queues"]) == (1, ["hooked"])
    shown.page.get_by_role("button", name="Test …: hooks").click()
    shown.answer("Push it")
    shown.told("hooks: fault after")
    shown.page.get_by_role("button", name="Delete …: hooks").click()
    shown.answer("Delete it")
    shown.told("Deleted.")
    shown.page.get_by_role("button", name="Delete …: hooks").wait_for(state="detached")


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
    shown.press("Follow")
    shown.page.locator("main", has_text="Nothing has happened that fits").wait_for()


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
    shown.page.locator("nav .who", has_text="read only").wait_for()
    paths = [
        *("queues/mail", "jobs?queue=mail", f"jobs/{world['dead']}", "dead-letters", "cron"),
        *(f"workflows/{world['workflow']}", "pools", "workers", "limits", "keys", "settings"),
    ]
    for path in paths:
        shown.go(path)
        buttons = shown.page.locator("main button[title^='Needs a key']")
        buttons.first.wait_for()
        for button in buttons.all():
            assert button.is_disabled(), f"{path}: {button.inner_text()}"
            assert "yours (reader) is without" in str(button.get_attribute("title"))
    assert all(method == "GET" for method, _ in shown.asked)
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
    shown.told("mail hands out no more jobs")
    shown.press("Resume")
    shown.told("mail hands out jobs again")
    shown.go("jobs")
    shown.page.locator("main", has_text="Name one of them").wait_for()
    shown.go("jobs?queue=mail")
    shown.page.locator("td", has_text="email.send").first.wait_for()
    shown.go("queues/billing")
    shown.page.locator("[role=alert]", has_text="may not read this").first.wait_for()


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
