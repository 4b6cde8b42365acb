"""The page of a job with durable code: its steps, what it waits for, and what operators do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboard.conftest import PHONE, Opener, Screen
from tests.dashboard.world import HOSTILE, Caller, fail, fetch, push

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

LONG = f"{'n' * 64}/{'k' * 100}"


def started(call: Caller, queue: str, **options: object) -> dict[str, Any]:
    """A job that is running."""
    push(call, queue, "order.place", 1042, **options)
    (job,) = fetch(call, queue, 1, "w-durable")
    return job


def save(call: Caller, job: dict[str, Any], *steps: dict[str, Any], version: int = 2) -> None:
    body = {
        "lease_token": job["lease_token"], "version": version,
        "steps": [{"save": "s1", **step} for step in steps],
    }  # fmt: skip
    call("POST", f"/jobs/{job['id']}/steps", body)


def suspend(call: Caller, job: dict[str, Any], *waits: tuple[str, str], mode: str = "any") -> None:
    told = [{"kind": kind, "name": name, "for": "P3D"} for kind, name in waits]
    body = {"lease_token": job["lease_token"], "suspend": {"mode": mode, "waits": told}}
    assert call("POST", f"/jobs/{job['id']}/nack", body)["state"] == "scheduled"


def state(call: Caller, job: dict[str, Any]) -> str:
    return str(call("GET", f"/jobs/{job['id']}")["state"])


def row(shown: Screen, text: str) -> Any:
    return shown.page.locator("tr", has_text=text)


def test_the_steps_of_a_job(screen: Opener, call: Caller) -> None:
    job = started(call, "durable-shown")
    shown_text = HOSTILE.replace("\u0000", "")
    save(
        call, job,
        {"name": "charge", "result": {"charge": "ch_1"}, "duration_ms": 410,
         "started_at": "2026-11-21T09:30:00Z"},
        {"name": "reserve", "error": {"type": "SoldOut", "message": shown_text}},
        {"name": LONG, "result": "x" * 20_000},
        {"name": "nothing"},
        {"name": f"hostile/{shown_text[:90].replace('|', '')}", "result": {shown_text: shown_text}},
    )  # fmt: skip
    child = push(call, "durable-children", "ship")
    suspend(call, job, ("signal", "approved"), ("sleep", LONG), mode="all")
    for look in ({}, {"scheme": "dark"}, {"size": PHONE}):
        shown = screen(**look).open(f"jobs/{job['id']}")
        row(shown, "charge").first.wait_for()
        assert not shown.barriers()
        width = shown.page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth")
        assert width <= 0, f"{width} px too wide"
        shown.shoot(f"durable-{'-'.join(map(str, look)) or 'light'}")
    shown = screen().open(f"jobs/{job['id']}")
    charge = row(shown, "charge").first
    for text in ("Step", "Completed", "410 ms", "17"):
        charge.get_by_text(text, exact=True).first.wait_for()
    assert charge.locator("td").nth(3).inner_text() == "1"
    charge.locator("summary").click()
    charge.get_by_text("ch_1").wait_for()
    row(shown, "SoldOut").get_by_text("Failed").wait_for()
    run = shown.page.locator("ol.run").inner_text()
    assert "Attempt 1" in run
    assert "Waits for signal, sleep" in run
    assert row(shown, "nothing").locator("td").nth(7).inner_text() == "null"
    shown.page.locator(".waiting li", has_text="Waits for signal approved").wait_for()
    shown.page.locator(".waiting li", has_text="Waits for sleep nnn").wait_for()
    for fact in ("Code version", "History"):
        shown.page.get_by_text(fact, exact=True).first.wait_for()
    shown.page.locator(".timeline li", has_text="Attempt 1 step completed charge").wait_for()
    # Without durable code, nothing is asked and shown.
    shown.go(f"jobs/{child}")
    assert not [path for _, path in shown.asked if f"{child}/steps" in path]
    assert shown.page.get_by_role("heading", name="Steps").count() == 0


def test_a_signal_wakes_the_job(screen: Opener, call: Caller) -> None:
    job = started(call, "durable-signals")
    suspend(call, job, ("signal", "approved"))
    shown = screen().open(f"jobs/{job['id']}")
    shown.page.locator(".waiting li").wait_for()
    # What waits for a signal can't be woken without it.
    for name in ("Run now", "End sleep"):
        assert shown.page.get_by_role("button", name=name, exact=True).count() == 0
    shown.press("Send signal")
    shown.answer("Send", data="{no json")
    shown.page.locator("dialog .refused", has_text="JSON").wait_for()
    assert not shown.barriers()
    shown.answer("Send", signal="a|b", data='{"by": "ann"}')
    shown.page.locator("dialog [role=alert], dialog .refused").first.wait_for()
    shown.answer("Send", signal="approved")
    shown.told("Signal sent: the job is available")
    assert state(call, job) == "available"
    row(shown, "approved").first.locator("summary").click()
    row(shown, "approved").get_by_text("ann").wait_for()
    shown.page.locator(".waiting").wait_for(state="detached")
    shown.press("Send signal")
    shown.answer("Send", signal="approved", data="1")
    shown.page.locator("dialog [role=alert]", has_text="exists").wait_for()


def test_a_sleep_ends_and_a_step_is_forgotten(screen: Opener, call: Caller) -> None:
    job = started(call, "durable-sleeps", retry={"max_attempts": 1})
    save(call, job, {"name": "charge/a b", "result": 1}, {"name": "kept", "result": 2})
    shown = screen().open(f"jobs/{job['id']}")
    forget = shown.page.get_by_role("button", name="Forget: charge/a b")
    assert forget.is_disabled()
    assert "active" in str(forget.get_attribute("title"))
    suspend(call, job, ("sleep", "cool-off"))
    shown.page.locator(".waiting li", has_text="cool-off").wait_for()
    forget.click()
    shown.answer("Forget")
    shown.told("Step forgotten")
    row(shown, "charge/a b").wait_for(state="detached")
    assert [step["name"] for step in call("GET", f"/jobs/{job['id']}/steps")["steps"]] == ["kept"]
    shown.press("End sleep")
    shown.told("Job is available")
    assert state(call, job) == "available"
    # A finished job shows its steps, and receives no signals.
    (job,) = fetch(call, "durable-sleeps", 1, "w-durable")
    fail(call, job, "Broken", "it broke")
    shown.open(f"jobs/{job['id']}")
    row(shown, "kept").wait_for()
    assert shown.page.get_by_role("button", name="Send signal").count() == 0
    assert shown.page.get_by_role("button", name="Forget: kept").is_enabled()


def test_many_steps_come_in_pages(screen: Opener, call: Caller) -> None:
    job = started(call, "durable-large")
    for number in range(6):
        save(call, job, {"name": f"part/{number}", "result": "x" * 250_000})
    shown = screen().open(f"jobs/{job['id']}")
    shown.page.get_by_text("5 steps loaded").wait_for()
    shown.press("Show more")
    row(shown, "part/5").wait_for()


@pytest.mark.parametrize("scopes", [["admin:read", "jobs:read"], ["admin:read"], ["jobs:read"]])
def test_a_key_that_only_reads(screen: Opener, call: Caller, scopes: list[str]) -> None:
    queue = f"durable-{'-'.join(scopes).replace(':', '-')}"
    job = started(call, queue)
    save(call, job, {"name": "charge", "result": "secret-result"})
    suspend(call, job, ("sleep", "nap"))
    made = call("POST", "/admin/keys", {"name": "reader", "scopes": scopes, "queues": [queue]})
    shown = screen(signed_in=made["secret"]).open(f"jobs/{job['id']}")
    shown.page.locator(".waiting li", has_text="nap").wait_for()
    if "jobs:read" in scopes:
        row(shown, "secret-result").wait_for()
    else:
        shown.page.get_by_text("Stored steps require the scope jobs:read.").wait_for()
        assert not [path for _, path in shown.asked if path.endswith("/steps")]
    for button in shown.page.get_by_role("button", name="Send signal").all():
        assert button.is_disabled()
    for name in ("End sleep", "Forget: charge"):
        for button in shown.page.get_by_role("button", name=name).all():
            assert button.is_disabled()
    assert not shown.barriers()
    changed = {path for method, path in shown.asked if method != "GET"}
    assert changed <= {"/ojs/v1/realtime/tickets"}
    call("DELETE", f"/admin/keys/{made['key']['id']}")
