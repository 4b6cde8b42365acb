"""The example's modules, importable as they are for its scripts, and servers for the pages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ojs_aws.testing.plugin import ojs_server, ojs_server_path, ojs_server_processes

__all__ = ["ojs_server", "ojs_server_path", "ojs_server_processes", "server_url"]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "index_folder"
_URL = re.compile(r"^\s*URL\s+(http://\S+?)/ojs/v1\s*$")

sys.path.insert(0, str(EXAMPLE))


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A local server of its own on a free port."""
    folder = tmp_path_factory.mktemp("data")
    command = [sys.executable, "-m", "local", "--port", "0", "--data", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield _address(server)
        finally:
            server.terminate()
            server.communicate(timeout=120)


def _address(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if found := _URL.match(line):
            return found[1]
    raise AssertionError("the local server did not start")
