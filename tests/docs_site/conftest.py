"""The built documentation site with two versions, and a browser that opens it.

`make test-exhaustive` installs what builds the site and what drives the browser.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from docs.site import build, publish
from tests.dashboard.conftest import FLAGS


class Built(NamedTuple):
    """What the build printed, how much CPU time (s) it took, and where its versions are served."""

    printed: str
    cpu_s: float
    folder: Path
    url: str


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    build.copy()
    build.add_assets()
    shutil.rmtree(build.TARGET, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [build.TOOLS / "bin" / "zensical", "build", "--clean", "--strict"], cwd=build.ROOT,
        text=True, timeout=300, check=False, env=os.environ | {"OJS_DOCS_VERSIONS": "mike"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert done.returncode == 0, printed
    folder = tmp_path_factory.mktemp("published")
    for version in ("0.1.0", "0.2.0"):
        publish.publish(build.TARGET, folder, version)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    yield Built(printed, cpu_s, folder, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        yield browser
        browser.close()
