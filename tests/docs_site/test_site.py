"""The documentation site: built strictly, and opened in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.dashboard.conftest import DESKTOP, PHONE
from tests.docs_site.conftest import Built

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

MAX_BUILD_S, MAX_INDEX_BYTES = 10, 1_500_000
PAGES = (
    "", "quickstart/", "docs/queues/", "docs/architecture/", "docs/reference/python/",
    "docs/reference/api-jobs/", "docs/reference/settings/", "docs/site/redoc.html",
)  # fmt: skip


@pytest.fixture
def opened(built: Built, chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page. What it complains about, and what it loads from elsewhere, fails the test."""
    complaints: list[str] = []
    contexts = []

    def heard(path: str, message: Any) -> None:
        if message.type == "error":
            complaints.append(f"{path}: {message.text}")

    def requested(request: Any) -> None:
        if not request.url.startswith((built.url, "data:", "blob:")):
            complaints.append(request.url)

    def open_page(path: str, **options: Any) -> Any:
        context = chromium.new_context(**({"viewport": DESKTOP} | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: complaints.append(f"{path}: {error}"))
        page.on("console", lambda message: heard(path, message))
        page.on("request", requested)
        page.goto(f"{built.url}/{path}", wait_until="networkidle")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


# The CPU time of one build differs by half on shared processors: `make test-all` compares it.
@pytest.mark.whole
def test_it_is_built_in_time(built: Built) -> None:
    assert built.cpu_s <= MAX_BUILD_S


def test_it_is_built_without_a_warning(built: Built) -> None:
    assert "No issues found" in built.printed
    assert (built.folder / "latest" / "search.json").stat().st_size <= MAX_INDEX_BYTES


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_without_errors_and_from_here_alone(
    path: str, opened: Callable[..., Any]
) -> None:
    page = opened(f"latest/{path}")
    page.locator("h1").first.wait_for()


def test_the_tabs_are_those_of_the_navigation(opened: Callable[..., Any]) -> None:
    tabs = opened("latest/").locator(".md-tabs__link").all_inner_texts()
    assert tabs == ["Home", "Tutorials", "Guides", "Reference", "How it works"]


def test_the_search_finds_retry(opened: Callable[..., Any]) -> None:
    page = opened("latest/docs/queues/")
    field = page.locator("input:visible").last
    for _ in range(30):
        # The page listens to keys some time after it was loaded.
        page.keyboard.press("Control+k")
        page.wait_for_timeout(1_000)
        if field.is_visible():
            break
    field.fill("retry")
    found = page.get_by_text(re.compile(r"^[0-9]+ results$"))
    found.wait_for()
    assert int(found.inner_text().split()[0]) > 10


def test_a_phone_shows_pages_without_scrolling_sideways(opened: Callable[..., Any]) -> None:
    for path in PAGES[:7]:
        page = opened(f"latest/{path}", viewport=PHONE)
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, path


def test_dark_mode_follows_the_system(opened: Callable[..., Any]) -> None:
    colors = [
        opened("latest/docs/queues/", color_scheme=scheme).evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for scheme in ("light", "dark")
    ]
    light, dark = (sum(map(int, color.strip("rgba()").split(",")[:3])) for color in colors)
    assert light > 600
    assert dark < 200


def test_diagrams_are_drawn(opened: Callable[..., Any]) -> None:
    page = opened("latest/docs/architecture/")
    diagram = page.locator(".mermaid").first
    diagram.wait_for()
    assert diagram.bounding_box()["height"] > 100


def test_an_old_version_leads_to_the_latest(opened: Callable[..., Any]) -> None:
    page = opened("0.1.0/docs/queues/")
    banner = page.get_by_text("This page describes an earlier version.")
    banner.wait_for()
    page.get_by_role("link", name="Go to the latest version.").click()
    page.wait_for_url("**/latest/")
    page.wait_for_load_state("networkidle")
    assert not page.get_by_text("This page describes an earlier version.").is_visible()
    assert page.locator(".md-version__link").all_text_contents() == ["0.2.0", "0.1.0"]
