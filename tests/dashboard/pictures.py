"""Takes the pictures of docs/dashboard.md anew: `make pictures`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.dashboard.conftest import DESKTOP, FLAGS, INSTALLED, ROOT, Screen
from tests.dashboard.world import Caller, done, fail, fetch, make, push
from tests.local.conftest import RunningServer

FOLDER = ROOT / "docs" / "pictures"


def main() -> None:
    """Start a server, fill it, and take them."""
    sys.path.append(str(INSTALLED / "python"))
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = RunningServer(Path(folder) / "data", Path(folder) / "log")
        call = Caller(server.url)
        ids = make(call)
        for number in range(60):
            push(call, "images", "image.resize", {"file": f"cat-{number}.png", "width": 640})
        for number, job in enumerate(fetch(call, "images", 40, "resizer-1")):
            if number % 8:
                done(call, job, None)
            else:
                fail(call, job, "OutOfMemory", "the picture is too large")
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        for name, path, scheme in (
            ("overview", "overview", "light"),
            ("jobs", "jobs?queue=mail", "light"),
            ("job", f"jobs/{ids['dead']}", "dark"),
        ):
            context = browser.new_context(
                color_scheme=scheme,
                viewport={**DESKTOP, "width": 1120, "height": 660},
                reduced_motion="reduce",
                locale="en-GB",
            )
            shown = Screen(context, server.url).open(path)
            shown.quiet()
            shown.page.screenshot(path=FOLDER / f"dashboard-{name}.png")
            context.close()
        browser.close()
        server.end()


if __name__ == "__main__":
    main()
