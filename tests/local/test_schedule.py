"""The local server in this process, to look behind its HTTP."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.dynamodb import connect
from local.folder import DataFolder
from local.http_server import listen
from local.server import TABLE_NAME, LocalServer
from ojs import runtime

pytestmark = pytest.mark.e2e


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    monkeypatch.setattr(runtime, "_current", None)
    running = LocalServer(
        listen("127.0.0.1", 0), DataFolder(tmp_path), engine="auto", sweep_interval_s=0.1
    )
    yield running
    running.stop()
    running.folder.close()


def states(server: LocalServer) -> set[str]:
    """The states in the table, read past everything that could apply time to them."""
    items = connect(server.engine.url).scan(TableName=TABLE_NAME)["Items"]
    return {item["state"]["S"] for item in items if item["pk"]["S"].startswith("J|")}


def test_the_schedule_moves_jobs_that_nobody_asks_for(server: LocalServer) -> None:
    client = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    job = {"type": "t", "args": [], "options": {"delay_until": "+PT0.5S"}}
    client.request("POST", "/ojs/v1/jobs", json.dumps(job), {"Content-Type": "application/json"})
    assert client.getresponse().status == 201
    client.close()
    assert states(server) == {"scheduled"}
    deadline = time.monotonic() + 10
    while states(server) != {"available"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
