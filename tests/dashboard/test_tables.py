"""Tables with names of any length: nothing is cut without a sign, and all of a name can be read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboard.conftest import DESKTOP, PHONE, Opener, Screen
from tests.dashboard.world import Caller, push

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

# The first queue by name, whatever queues other tests have created.
LONG = "0-queue-with-a-long-name." + "b" * 170
TYPE = "type.with.a.long.name." + "c" * 170


@pytest.fixture(scope="module")
def long(call: Caller, world: dict[str, str]) -> str:
    return push(call, LONG, TYPE, {"to": "d" * 200})


def cut(shown: Screen) -> list[Any]:
    """Texts of cells that end outside of their table, or are cut without an ellipsis."""
    return list(shown.page.evaluate(
        """() => [...document.querySelectorAll("td *")].filter(each => {
            if (each.closest("svg, .full") || !each.textContent) return false;
            const style = getComputedStyle(each), table = each.closest(".table");
            const cut = each.scrollWidth > each.clientWidth + 1 && style.overflow === "hidden";
            if (cut) return style.textOverflow !== "ellipsis";
            const [a, b] = [each, table].map(of => of.getBoundingClientRect().right);
            return a > b + 1 && table.scrollWidth <= table.clientWidth;
        }).map(each => each.outerHTML.slice(0, 200))"""
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("size", "scheme"), [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light")]
)
def test_a_long_name_leaves_the_other_columns_their_place(
    screen: Opener, long: str, size: dict[str, int], scheme: str
) -> None:
    shown = screen(size=size, scheme=scheme).open("overview")
    for path in ("queues", f"jobs?queue={LONG}", "dead-letters", "workers", "keys", "cron"):
        shown.go(path)
        shown.page.locator("td").first.wait_for()
        assert not cut(shown), path
        width = shown.page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth")
        assert width <= 0, path
        assert not shown.barriers(["color-contrast", "target-size", "empty-table-header"]), path
        shown.shoot(f"long_{path[:12].replace('?', '_')}-{size['width']}-{scheme}", whole=False)
    shown.go("queues")
    row = shown.page.locator("tr", has_text=LONG)
    for name in ("Available", "Depth", "Completed/min"):
        box = row.locator(f'td[data-name="{name}"]').bounding_box()
        assert box, name
        assert box["x"] + box["width"] <= size["width"], name


def test_the_full_name_shows_with_the_pointer_and_the_focus(screen: Opener, long: str) -> None:
    shown = screen().open(f"jobs?queue={LONG}")
    # Chromium sends events of the focus to the page in front only.
    shown.page.bring_to_front()
    full = shown.page.get_by_role("tooltip")
    row = shown.page.locator("tbody tr", has_text=TYPE)
    row.locator(".text").hover()
    full.filter(has_text=TYPE).wait_for()
    # It stays while the pointer is on it, and Escape hides it.
    full.hover()
    full.wait_for()
    shown.page.keyboard.press("Escape")
    full.wait_for(state="detached")
    shown.page.mouse.move(0, 0)
    row.get_by_role("link", name=LONG).focus()
    full.filter(has_text=LONG).wait_for()
    shown.page.keyboard.press("Shift+Tab")
    full.filter(has_text=TYPE).wait_for()
    row.locator("a.id").focus()
    full.filter(has_text=long).wait_for()
    assert not shown.barriers()
    # A short name has nothing more to show.
    shown.go("cron")
    shown.page.get_by_role("link", name="cleanup").focus()
    full.wait_for(state="detached")


def test_on_a_phone_a_row_is_a_card_that_can_be_sorted(screen: Opener, long: str) -> None:
    shown = screen(size=PHONE).open("jobs?queue=mail")
    cards = shown.page.locator("tbody").first.locator("tr")
    cards.nth(5).wait_for()
    first = cards.first.bounding_box()
    assert first
    assert first["width"] <= PHONE["width"]
    assert cards.first.locator('td[data-name="Type"]').evaluate(
        "cell => getComputedStyle(cell, '::before').content"
    )
    for order in ("Type", "State"):
        shown.page.get_by_label("Sort by").first.select_option(order)
        texts = cards.locator(f'td[data-name="{order}"]').all_inner_texts()
        assert texts == sorted(texts), order
