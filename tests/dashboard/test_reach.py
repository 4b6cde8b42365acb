"""Every page for keys of less, with the keyboard alone, and without motion."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboard.conftest import Opener
from tests.dashboard.world import PAGES, Caller

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

KEYS: dict[str, dict[str, Any]] = {
    "reads": {"scopes": ["admin:read", "jobs:read"]},
    "limited": {"scopes": ["admin:read", "jobs:read"], "queues": ["mail", "report*"]},
    "narrow": {"scopes": ["jobs:read"]},
}


@pytest.mark.parametrize("name", KEYS)
def test_every_page_with_a_key_of_less(
    screen: Opener, call: Caller, world: dict[str, str], name: str
) -> None:
    """No button for a change works, what the key lacks is named, and nothing fails."""
    secret = call("POST", "/admin/keys", {"name": name, **KEYS[name]})["secret"]
    shown = screen(signed_in=secret).open("overview")
    for path in (*PAGES, f"jobs/{world['dead']}", f"workflows/{world['workflow']}"):
        shown.go(path).quiet()
        for button in shown.page.locator("main button[title^='Missing scope']").all():
            assert button.is_disabled(), path
        for text in shown.page.locator("main [role=alert]").all_inner_texts():
            assert "Access denied" in text or "not found" in text, (path, text)
        if name == "reads":
            assert not shown.page.locator("main [role=alert]").count() or path == "tenants", path
        assert not shown.page.locator("main", has_text="undefined").count(), path
        assert not shown.barriers(), path


def test_with_the_keyboard_alone_and_without_motion(
    screen: Opener, call: Caller, world: dict[str, str]
) -> None:
    shown = screen().open("jobs?queue=mail")
    press = shown.page.keyboard.press
    press("Tab")
    assert shown.page.evaluate("() => document.activeElement.className") == "skip"
    press("Enter")

    def to(text: str) -> None:
        """Press Tab until the control of this name has the focus, and shows it."""
        for _ in range(120):
            press("Tab")
            focused = shown.page.evaluate(
                """() => { const at = document.activeElement, style = getComputedStyle(at);
                return [at.ariaLabel ?? at.textContent, style.outlineStyle]; }"""
            )
            if str(focused[0]).startswith(text):
                assert focused[1] != "none"
                return
        raise AssertionError(f"{text} was not reached")

    to("Enqueue job")
    press("Enter")
    shown.page.locator("dialog[open]").wait_for()
    shown.page.keyboard.type("keys.only")
    press("Escape")
    shown.page.locator("dialog").wait_for(state="detached")
    # A dialog gives the focus back.
    press("Enter")
    shown.page.locator("dialog[open]").wait_for()
    shown.page.keyboard.type("keys.only")
    press("Enter")
    shown.told("Job enqueued")
    shown.page.locator("h1", has_text="keys.only").wait_for()
    to("Cancel")
    moving = shown.page.evaluate("() => document.getAnimations().length")
    assert moving == 0
