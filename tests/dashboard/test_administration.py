"""Webhooks, tenants, schemas, and changes of configurations: each action, look, and lesser key."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.dashboard.conftest import DESKTOP, PHONE, Opener
from tests.dashboard.world import Caller

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

HOOK = "http://127.0.0.1:9/hook?" + "h" * 150


def test_webhooks(screen: Opener, call: Caller, world: dict[str, str]) -> None:
    shown = screen().open("webhooks")
    shown.press("Create webhook")
    shown.answer("Create", url="nowhere", timeout_s="soon")
    shown.page.locator("dialog .refused", has_text="90s, 5m").wait_for()
    shown.answer("Create", url="nowhere", timeout_s="10s")
    shown.page.locator("dialog .refused", has_text="url").wait_for()
    shown.answer("Create", url=HOOK, queues="mail")
    shown.told("Webhook created")
    secret = shown.page.locator(".notice code").inner_text()
    assert secret.startswith("whsec_")
    [hook] = call("GET", "/webhooks/subscriptions")["items"]
    assert (hook["timeout_s"], hook["filter"]["queues"]) == (10, ["mail"])
    shown.press("Done")
    assert secret not in shown.page.content()
    shown.page.get_by_role("button", name="Test: ").click()
    shown.told("Test event failed")
    shown.page.get_by_role("button", name="Pause: ").click()
    shown.told("Webhook paused")
    shown.page.get_by_role("button", name="Enable: ").click()
    shown.told("Webhook enabled")
    shown.page.get_by_role("button", name="Replace secret: ").click()
    shown.answer("Replace secret")
    shown.told("Secret replaced")
    assert shown.page.locator(".notice code").inner_text() != secret
    shown.page.get_by_role("button", name="Deliveries: ").click()
    shown.page.get_by_text("No deliveries").wait_for()
    reader = call("POST", "/admin/keys", {"name": "hooks", "scopes": ["admin:read"]})["secret"]
    looks: list[dict[str, Any]] = [
        {"scheme": "dark", "size": DESKTOP},
        {"size": PHONE},
        {"signed_in": reader},
    ]
    for look in looks:
        other = screen(**look).open("webhooks")
        other.page.locator("td", has_text="127.0.0.1").wait_for()
        assert not other.barriers(), look
        width = other.page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth")
        assert width <= 0, look
    assert other.page.get_by_role("button", name="Delete: ").is_disabled()
    shown.page.get_by_role("button", name="Delete: ").click()
    shown.answer("Delete webhook")
    shown.told("Webhook deleted")
    shown.page.get_by_text("No webhooks").wait_for()


TENANT = {
    "tenant_id": "acme", "id": "acme", "name": "Acme", "state": "active", "priority_boost": 10,
    "limits": {"max_concurrency": 20, "max_enqueue_rate": {"limit": 1000, "period": "PT1M"}},
    "fairness_weight": 1, "created_at": "2026-11-01T10:00:00Z",
    "stats": {"jobs": {"available": 3, "active": 5, "scheduled": 0}},
}  # fmt: skip


def test_tenants(screen: Opener) -> None:
    """The server's answers are replaced: the page must also be shown by one without tenants."""
    saved: list[Any] = []

    def answer(route: Any) -> None:
        if route.request.method == "GET":
            route.fulfill(json={"items": [TENANT], "total": 1, "pagination": {"has_more": False}})
            return
        saved.append((route.request.method, route.request.url, route.request.post_data_json))
        route.fulfill(json=TENANT)

    looks: list[dict[str, Any]] = [{"scheme": "dark", "size": DESKTOP}, {"size": PHONE}, {}]
    for look in looks:
        shown = screen(**look)
        shown.page.route("**/ojs/v1/admin/tenants**", answer)
        shown.open("tenants")
        shown.page.locator("tr", has_text="acme").filter(has_text="1,000 per 1m").wait_for()
        assert not shown.barriers(), look
    shown.page.get_by_role("button", name="Edit: acme").click()
    shown.answer("Save", max_queue_depth="500", max_concurrency="", max_enqueue_rate="7 per 30s")
    shown.told("Tenant acme saved")
    limits = {"max_queue_depth": 500, "max_enqueue_rate": {"limit": 7, "period": "PT30S"}}
    method, url, body = saved.pop()
    assert method == "PUT"
    assert url.endswith("/admin/tenants/acme")
    assert body == {"name": "Acme", "state": "active", "limits": limits, "priority_boost": 10}
    shown.page.get_by_role("button", name="Delete: acme").click()
    shown.answer("Delete tenant")
    shown.told("Tenant acme deleted")
    assert saved.pop()[0] == "DELETE"


def test_schemas(screen: Opener, call: Caller) -> None:
    shown = screen().open("schemas")
    shown.press("Register schema")
    shown.answer("Register", version="1.0.0")
    shown.page.locator("dialog .refused", has_text="is required").wait_for()
    shown.answer("Register", type="t.schema", schema="{")
    shown.page.locator("dialog .refused", has_text="must be JSON").wait_for()
    assert not shown.barriers()
    shown.answer("Register", schema='{"type": "object", "properties": {"to": {"type": "string"}}}')
    shown.told("t.schema 1.0.0 registered")
    shown.page.locator("h1", has_text="t.schema").wait_for()
    shown.press("Register version")
    changed = '{"type": "object", "properties": {"to": {"type": "integer"}}}'
    shown.answer("Register", version="1.1.0", schema=changed)
    shown.page.locator("dialog .refused", has_text="to").wait_for()
    shown.answer("Register", version="2.0.0")
    shown.told("t.schema 2.0.0 registered")
    shown.page.locator("section", has_text="Schema of version 2.0.0").wait_for()
    shown.page.get_by_role("link", name="1.0.0", exact=True).click()
    old = shown.page.locator("section", has_text="Schema of version 1.0.0")
    old.locator(".json", has_text='"string"').first.wait_for()
    shown.press("Set mode")
    shown.answer("Set mode", mode="strict")
    shown.told("t.schema: mode strict")
    shown.page.locator("header", has_text="mode strict").wait_for()
    versions = call("GET", "/admin/schemas/t.schema/versions")
    assert (versions["mode"], len(versions["versions"])) == ("strict", 2)
    reader = call("POST", "/admin/keys", {"name": "schemas", "scopes": ["admin:read"]})["secret"]
    looks: list[dict[str, Any]] = [{"scheme": "dark"}, {"size": PHONE}, {"signed_in": reader}]
    for look in looks:
        other = screen(**look).open("schemas")
        other.page.get_by_role("link", name="t.schema").click()
        other.page.locator("section", has_text="Schema of version 2.0.0").wait_for()
        assert not other.barriers(), look
        width = other.page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth")
        assert width <= 0, look
    for name in ("Register version", "Set mode", "Delete: 1.0.0"):
        assert other.page.get_by_role("button", name=name).is_disabled(), name
    for version in ("1.0.0", "2.0.0"):
        shown.page.get_by_role("button", name=f"Delete: {version}").click()
        shown.answer("Delete version")
        shown.told(f"t.schema {version} deleted")
    shown.page.get_by_text("No schemas").wait_for()


def test_actions_show_what_changed_and_are_undone(screen: Opener, call: Caller) -> None:
    def concurrency() -> object:
        return call("GET", "/queues/undone/config")["own"].get("concurrency")

    call("POST", "/queues", {"name": "undone", "concurrency": 3})
    call("PUT", "/admin/queues/undone/config", {"concurrency": 8})
    shown = screen().open("audit")
    button = shown.page.get_by_role("button", name="Changes: Configure queue undone")
    button.first.click()
    row = shown.page.locator("dialog tr", has_text="concurrency")
    assert row.locator("td").all_inner_texts() == ["concurrency", "3", "8"]
    assert not shown.barriers()
    shown.page.set_viewport_size(PHONE)
    assert not shown.barriers()
    shown.page.set_viewport_size(DESKTOP)
    shown.answer("Undo")
    shown.told("undone")
    assert concurrency() == 3
    # It has another version now than after the first action.
    call("PUT", "/admin/queues/undone/config", {"concurrency": 9})
    button.last.click()
    shown.answer("Undo")
    shown.page.locator("dialog [role=alert]", has_text="Another request changed").wait_for()
    assert concurrency() == 9
    shown.press("Reload")
    shown.answered()
    reader = call("POST", "/admin/keys", {"name": "audits", "scopes": ["admin:read"]})["secret"]
    other = screen(signed_in=reader).open("audit")
    other.page.get_by_role("button", name="Changes: Configure queue undone").first.click()
    other.page.locator("dialog", has_text="requires the scope admin:write").wait_for()
    assert not other.page.get_by_role("button", name="Undo", exact=True).count()
    other.press("Close")
    other.answered()


def test_the_settings_of_a_queue_are_not_overwritten(screen: Opener, call: Caller) -> None:
    call("POST", "/queues", {"name": "versions", "concurrency": 3})
    shown = screen().open("queues/versions")
    field = shown.page.locator('main [name="concurrency"]')
    field.fill("4")
    call("PUT", "/queues/versions/config", {"concurrency": 5})
    shown.press("Save")
    alert = shown.page.locator("main [role=alert]", has_text="Another request changed")
    alert.wait_for()
    assert not shown.barriers()
    assert call("GET", "/queues/versions/config")["config"]["concurrency"] == 5
    alert.get_by_role("button", name="Reload").press("Enter")
    alert.wait_for(state="detached")
    shown.until(lambda: field.input_value() == "5")
    assert shown.page.evaluate("() => document.activeElement.id") == "main"
    field.fill("6")
    shown.press("Save")
    shown.told("Saved: concurrency")
    assert call("GET", "/queues/versions/config")["config"]["concurrency"] == 6


def test_forms_do_not_overwrite_another_change(
    screen: Opener, call: Caller, world: dict[str, str]
) -> None:
    hook = call("POST", "/webhooks/subscriptions", {"url": HOOK, "events": ["job.completed"]})
    hook_path = f"/webhooks/subscriptions/{hook['id']}"
    weights = {"mail": {"weight": 3}, "reports": {"weight": 1}}
    shared = {"queues": weights, "strategy": "weighted"}
    # Page, its button and that of its form, a field, another operator's change, and its value.
    forms: list[tuple[str, str, str, str, tuple[str, str, Any], str]] = [
        ("pools", "Edit: office", "Save", "concurrency",
         ("PUT", "/admin/pools/office", {**shared, "concurrency": 7}), "7"),
        ("limits", "Set override: example.org", "Set override", "concurrency",
         ("PUT", "/rate-limits/example.org/override", {"concurrency": 7}), "7"),
        ("webhooks", f"Edit: {HOOK}", "Save", "timeout_s",
         ("PATCH", hook_path, {"timeout_s": 7}), "7s"),
    ]  # fmt: skip
    try:
        shown = screen().open("pools")
        for page, button, send, field, change, value in forms:
            shown.go(page)
            shown.press(button)
            call(*change)
            shown.answer(send, **{field: "9s" if value.endswith("s") else "9"})
            shown.page.locator("dialog [role=alert]", has_text="Another request changed").wait_for()
            with shown.page.expect_response(lambda answer: answer.request.method == "GET"):
                shown.press("Reload")
            shown.answered()
            shown.quiet().press(button)
            assert shown.page.locator(f'dialog [name="{field}"]').input_value() == value, page
            shown.answer(send)
            shown.answered()
    finally:
        call("DELETE", hook_path)
        call("DELETE", "/rate-limits/example.org/override")
        call("PUT", "/admin/pools/office", shared)


def test_what_another_operator_changed_is_not_deleted(
    screen: Opener, call: Caller, world: dict[str, str]
) -> None:
    hook = call("POST", "/webhooks/subscriptions", {"url": HOOK, "events": ["job.completed"]})
    hook_path = f"/webhooks/subscriptions/{hook['id']}"
    # Page, what the button names, that of the dialog, a path, and another operator's change.
    kinds: list[tuple[str, str, str, str, str, dict[str, Any]]] = [
        ("tenants", "aside", "Delete tenant", "/admin/tenants/aside", "PUT", {"name": "Other"}),
        ("webhooks", HOOK, "Delete webhook", hook_path, "PATCH", {"timeout_s": 7}),
    ]
    call("PUT", "/admin/tenants/aside", {"name": "Aside"})
    try:
        shown = screen().open("tenants")
        for page, name, button, path, method, change in kinds:
            shown.go(page)
            shown.press(f"Delete: {name}")
            call(method, path, change)
            shown.answer(button)
            shown.page.locator("dialog [role=alert]", has_text="Another request changed").wait_for()
            assert call("GET", path)["etag"], page
            with shown.page.expect_response(lambda answer: answer.request.method == "GET"):
                shown.press("Reload")
            shown.answered()
            shown.quiet().press(f"Delete: {name}")
            shown.answer(button)
            shown.answered()
            with pytest.raises(AssertionError, match="404"):
                call("GET", path)
    finally:
        for path in (hook_path, "/admin/tenants/aside"):
            with contextlib.suppress(AssertionError):
                call("DELETE", path)


def test_cron_jobs_are_edited(screen: Opener, call: Caller) -> None:
    call("POST", "/cron", {
        "name": "edited", "expression": "0 4 * * *", "timezone": "Asia/Tokyo", "type": "t.cron",
        "args": [1], "options": {"queue": "reports", "priority": 3}, "description": "kept",
    })  # fmt: skip
    shown = screen().open("cron/edited")
    shown.press("Edit: edited")
    preview = shown.page.locator("dialog .preview")
    preview.get_by_text("Daily at 04:00").wait_for()
    shown.answer("Save", expression="61 * * * *")
    shown.page.locator("dialog .refused", has_text="expression").wait_for()
    shown.page.locator('dialog [name="expression"]').fill("30 5 * * *")
    preview.get_by_text("Daily at 05:30").wait_for()
    preview.locator("li").nth(4).wait_for()
    assert not shown.barriers()
    call("PATCH", "/cron/edited", {"timezone": "UTC"})
    shown.answer("Save")
    shown.page.locator("dialog [role=alert]", has_text="Another request changed").wait_for()
    shown.press("Reload")
    shown.answered()
    shown.page.locator("dd", has_text="UTC").wait_for()
    shown.press("Edit: edited")
    shown.answer("Save", expression="30 5 * * *", queue="mail", args="[2]")
    shown.told("Cron job edited saved")
    shown.page.locator("dd", has_text="Daily at 05:30").wait_for()
    cron = call("GET", "/cron/edited")
    assert (cron["expression"], cron["timezone"], cron["args"]) == ("30 5 * * *", "UTC", [2])
    assert cron["options"] == {"queue": "mail", "priority": 3}
    assert cron["description"] == "kept"
    reader = call("POST", "/admin/keys", {"name": "crons", "scopes": ["admin:read", "jobs:read"]})
    other = screen(signed_in=reader["secret"]).open("cron/edited")
    assert other.page.get_by_role("button", name="Edit: edited").is_disabled()
    call("DELETE", "/cron/edited")
