"""A local server with keys, some of everything in it, and a browser that looks at it.

`make test-exhaustive` installs what drives the browser below build/browser; the browser is the
machine's Chromium.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.world import Caller, make, make_hostile
from tests.local.conftest import RunningServer

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / "build" / "browser"
SHOTS = ROOT / "build" / "screenshots"
sys.path.append(str(INSTALLED / "python"))

# As a machine without a screen, a GPU or anything to talk to but the server needs it.
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}
# Keeps what the page says.
HEARD = """
    window.told = [];
    new MutationObserver(changes => {
        for (const change of changes)
            for (const node of change.addedNodes)
                if (node.parentElement?.matches?.(".told")) window.told.push(node.textContent);
    }).observe(document, {childList: true, subtree: true});
"""
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("dashboard")
    running = RunningServer(
        folder / "data", folder / "log", "--keys", "--allow-loopback-endpoints",
        "--deliver", "pushed=pushed:handler", "--deliver-folder", str(ROOT / "tests" / "local"),
    )  # fmt: skip
    yield running
    assert running.end() == 0


@pytest.fixture(scope="session")
def key(server: RunningServer) -> str:
    return (server.data / "first-key").read_text().strip()


@pytest.fixture(scope="session")
def call(server: RunningServer, key: str) -> Caller:
    return Caller(server.url, key)


@pytest.fixture(scope="session")
def world(call: Caller) -> dict[str, str]:
    """Ids of jobs by what they are for; a hostile one among them."""
    return {**make(call), "hostile": make_hostile(call)}


# While it drives a browser an event loop stands still in this thread, in which other tests could
# run none: it ends with each file.
@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        yield browser
        browser.close()


class Screen:
    """A page of the browser, and what it complains about."""

    def __init__(self, context: Any, url: str) -> None:
        self.url = url
        self.context = context
        self.page = context.new_page()
        self.page.set_default_timeout(30_000)
        self.complaints: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", self._asked)
        self.page.on("response", self._answered)
        self.under_way: set[Any] = set()
        self.page.on("requestfinished", self._over)
        self.page.on("requestfailed", self._over)

    def _heard(self, message: Any) -> None:
        # What the API refuses the browser tells as well; what it is, is looked at below.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.complaints.append(f"asks elsewhere: {request.url}")
        self.asked.append((request.method, request.url.removeprefix(self.url)))
        self.under_way.add(request)

    def _over(self, request: Any) -> None:
        self.under_way.discard(request)

    def _answered(self, response: Any) -> None:
        static = "/ojs/v1/" not in response.url
        if response.status >= 500 or (static and response.status >= 400):
            self.complaints.append(f"{response.status}: {response.url}")

    def open(self, path: str) -> Screen:
        """Go to a page, until what it shows has been read."""
        self.page.goto(f"{self.url}/ojs/admin/{path}")
        return self.settle()

    def go(self, path: str) -> Screen:
        """The same from another page, as a link within the pages does it."""
        self.page.evaluate(
            """path => { const a = document.createElement("a"); a.href = path;
            document.querySelector("main").append(a); a.click(); a.remove(); }""",
            f"/ojs/admin/{path}",
        )
        self.page.wait_for_function(
            "path => document.querySelector('main')?.dataset.at === path", arg=f"/{path}"
        )
        return self.settle()

    def settle(self) -> Screen:
        self.page.wait_for_selector("main h1")
        self.page.wait_for_function(
            """() => ![...document.querySelectorAll("[role=status]")]
            .some(each => each.textContent === "Loading…")"""
        )
        return self

    def until(self, holds: Callable[[], object]) -> Screen:
        """Wait until something holds that the page itself does not show, half a minute at most."""
        for _ in range(600):
            # The browser is heard of while this waits.
            self.page.wait_for_timeout(50)
            if holds():
                return self
        raise AssertionError("it did not come to be")

    def quiet(self) -> Screen:
        """Wait until all that was asked is answered."""
        return self.until(lambda: not self.under_way)

    def press(self, name: str, **how: Any) -> None:
        """Press a button by its name."""
        self.page.get_by_role("button", name=name, exact=True, **how).first.click()

    def told(self, text: str) -> None:
        """Wait until the page says so, or has said so since the last that was waited for: what it
        says goes away after some seconds.
        """
        self.page.wait_for_function(
            """text => {
                const at = window.told.findIndex(each => each.includes(text));
                return at >= 0 && window.told.splice(0, at + 1).length > 0;
            }""",
            arg=text,
        )

    def answer(self, button: str, **fields: str) -> None:
        """Fill in the dialog and send it."""
        dialog = self.page.locator("dialog[open]")
        for name, value in fields.items():
            field = dialog.locator(f'[name="{name.replace("__", ":")}"]')
            if value == "on":
                field.check()
            elif field.evaluate("field => field.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        dialog.get_by_role("button", name=button, exact=True).click()

    def answered(self) -> None:
        """Wait until the dialog is over."""
        self.page.locator("dialog").wait_for(state="detached")

    def barriers(self, rules: list[str] | None = None) -> list[str]:
        """What axe finds, of levels A and AA; by these rules alone, if any are named."""
        if not self.page.evaluate("() => 'axe' in window"):
            axe = INSTALLED / "node_modules" / "axe-core" / "axe.min.js"
            self.page.evaluate(axe.read_text("utf-8") + ";0")
        found = self.page.evaluate(
            "only => axe.run(document, {runOnly: only, resultTypes: ['violations']})",
            rules or LEVELS,
        )
        return [
            f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for each in found["violations"]
            for node in each["nodes"]
        ]

    def shoot(self, name: str, *, whole: bool = True) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=whole)


Opener = Callable[..., Screen]


@pytest.fixture
def screen(chromium: Any, server: RunningServer, key: str) -> Iterator[Opener]:
    """Opens screens, signed in with the first key unless another one, or none (""), is named."""
    opened: list[Screen] = []

    def make_screen(
        *, signed_in: str | None = None, scheme: str = "light", size: dict[str, int] = DESKTOP
    ) -> Screen:
        context = chromium.new_context(
            color_scheme=scheme, viewport=size, reduced_motion="reduce", locale="en-GB",
            timezone_id="Europe/Berlin",
        )  # fmt: skip
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.url)
        with_key = key if signed_in is None else signed_in
        context.add_init_script(HEARD)
        if with_key:
            context.add_init_script(f"sessionStorage.setItem('ojs-key', '{with_key}')")
        opened.append(Screen(context, server.url))
        return opened[-1]

    yield make_screen
    complaints = [complaint for each in opened for complaint in each.complaints]
    hacked = []
    for each in opened:
        with suppress(Exception):
            hacked.append(each.page.evaluate("() => window.hacked"))
        each.context.close()
    assert not complaints
    assert not any(hacked)
