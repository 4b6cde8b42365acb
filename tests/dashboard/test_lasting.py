"""A page that stays open: its key ends, the server goes and comes back, the tab is hidden; and an
example worker that is watched at work.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.dashboard.conftest import ROOT, Opener
from tests.dashboard.world import Caller, push
from tests.local.conftest import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

SAMPLE = ROOT / "examples" / "index_folder" / "sample"
SCOPES = ["admin:read", "jobs:read"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lasting")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    running = RunningServer(folder / "data", folder / "log", "--keys")
    yield running
    running.end()


@pytest.fixture(scope="module")
def key(server: RunningServer) -> str:
    return (server.data / "first-key").read_text().strip()


@pytest.fixture(scope="module")
def call(server: RunningServer, key: str) -> Caller:
    return Caller(server.url, key)


def made(call: Caller, **fields: object) -> tuple[str, str]:
    """A key that reads: its id and its secret."""
    answer = call("POST", "/admin/keys", {"name": "guest", "scopes": SCOPES, **fields})
    return answer["key"]["id"], answer["secret"]


@pytest.mark.parametrize("path", ["overview", "events"])
def test_a_key_that_is_revoked_while_a_page_is_open(
    screen: Opener, call: Caller, key: str, path: str
) -> None:
    """The next reading says so, and what was read is gone; a new one goes on where it was."""
    ident, secret = made(call)
    shown = screen(signed_in=secret)
    shown.page.clock.install()
    shown.open(path)
    shown.quiet()
    call("DELETE", f"/admin/keys/{ident}")
    said = shown.page.locator("[role=alert]", has_text="was revoked, or has expired")

    def refused() -> bool:
        # A reading that began before the key was revoked can end, and plan the next one, after the
        # clock has run.
        shown.page.clock.run_for(61_000)
        return bool(said.is_visible())

    shown.until(refused)
    shown.page.locator("nav").wait_for(state="detached")
    assert shown.page.evaluate("() => sessionStorage.length") == 0
    shown.asked.clear()
    shown.page.clock.run_for(300_000)
    shown.quiet()
    assert not shown.asked
    shown.page.locator('[name="key"]').fill(key)
    shown.press("Sign in")
    shown.page.locator("nav .who", has_text="first").wait_for()
    shown.page.locator(f'main[data-at="/{path}"]').wait_for()
    shown.page.locator("[role=alert]").wait_for(state="detached")


def test_a_key_that_ends_while_a_page_is_open(screen: Opener, call: Caller) -> None:
    _, secret = made(call, expires_at="+PT5S")
    shown = screen(signed_in=secret).open("events")
    shown.page.set_default_timeout(90_000)
    # It reads at least once a minute.
    shown.page.locator("[role=alert]", has_text="has expired").wait_for()
    shown.page.locator('[name="key"]').wait_for()


@pytest.mark.parametrize("path", ["overview", "jobs", "events"])
def test_a_hidden_tab_reads_nothing(screen: Opener, call: Caller, path: str) -> None:
    shown = screen()
    shown.page.clock.install()
    shown.open(path)
    shown.quiet()
    shown.page.evaluate(
        """() => { Object.defineProperty(document, "hidden", {value: true});
        document.dispatchEvent(new Event("visibilitychange")); }"""
    )
    shown.quiet()
    shown.asked.clear()
    shown.page.clock.run_for(600_000)
    shown.quiet()
    assert not shown.asked


def test_a_server_that_starts_anew_while_a_page_is_open(
    screen: Opener, folder: Path, tmp_path: Path
) -> None:
    """The page says that it is gone, keeps what it has, and goes on by itself."""
    first = RunningServer(tmp_path / "data", tmp_path / "log")
    shown = screen(signed_in="")
    shown.url = first.url
    try:
        push(Caller(first.url), "mail", "t.wait")
        shown.open("queues/mail")
        shown.page.locator("a.number", has_text="available").filter(has_text="1").wait_for()
    finally:
        first.end()
    shown.page.locator("[role=alert]", has_text="Can't reach the server").first.wait_for()
    shown.page.locator("a.number", has_text="available").filter(has_text="1").wait_for()
    second = RunningServer(tmp_path / "data", tmp_path / "log", "--port", str(first.port))
    try:
        push(Caller(second.url), "mail", "t.wait")
        shown.page.locator("[role=alert]").first.wait_for(state="detached")
        shown.page.locator("a.number", has_text="available").filter(has_text="2").wait_for()
    finally:
        shown.page.close()
        second.end()
    shown.complaints.clear()


@pytest.mark.whole
def test_an_example_worker_is_watched_at_work(screen: Opener, tmp_path: Path) -> None:
    """The overview counts what waits, what runs and what is done, while the worker of
    examples/index_folder works it off.
    """
    server = RunningServer(tmp_path / "data", tmp_path / "log")
    call = Caller(server.url)
    shown = screen(signed_in="")
    shown.url = server.url
    shown.page.set_default_timeout(120_000)

    def counts(label: str, value: str) -> None:
        number = shown.page.locator(".number", has_text=label).locator(".value")
        number.filter(has_text=re.compile(f"^{value}$")).wait_for()

    files = sorted(path.name for path in SAMPLE.glob("*.txt"))[:4]
    try:
        shown.open("overview")
        counts("Available", "[^1-9]")
        for name in files * 2:
            push(call, "files", "file.index", name)
        counts("Available", str(2 * len(files)))
        # It takes its time, so that there is time to look.
        with worker(server.url, "--slow", "600", "--grace", "0"):
            counts("Active", "2")
            counts("Available", str(2 * len(files) - 2))
        counts("Active", "0")
        with worker(server.url):
            counts("Available", "0")
            counts("Completed/min", r"[1-9]\S*")
            shown.page.locator("figure.chart[aria-label*='Completed: 8']").wait_for()
        assert call("GET", "/admin/stats")["jobs"]["completed"] == 2 * len(files)
    finally:
        shown.page.close()
        server.end()
    shown.complaints.clear()


@contextmanager
def worker(url: str, *options: str) -> Iterator[None]:
    """The example's worker, until it is told to stop."""
    command = [sys.executable, str(SAMPLE.parent / "worker.py"), str(SAMPLE), "--url", url]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "package")}
    running = subprocess.Popen([*command, *options], env=environment)
    try:
        yield
    finally:
        running.terminate()
        running.wait(60)
