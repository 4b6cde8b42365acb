"""The local server in this process, to look behind its HTTP."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from local.dynamodb import connect
from local.folder import DataFolder
from local.http_server import listen
from local.scheduler import Precedence
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
    client = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
    job = {"type": "t", "args": [], "options": {"delay_until": "+PT0.5S"}}
    client.request("POST", "/ojs/v1/jobs", json.dumps(job), {"Content-Type": "application/json"})
    pushed = json.loads(client.getresponse().read())
    client.close()
    assert pushed["state"] == "scheduled"
    deadline = time.monotonic() + 60
    while states(server) != {"available"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_pools_are_looked_at_by_the_schedule(server: LocalServer) -> None:
    """What begins to be wrong with a pool is an event, as in the cloud."""
    client = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)

    def send(method: str, path: str, body: object = None) -> Any:
        text = None if body is None else json.dumps(body)
        client.request(method, f"/ojs/v1/{path}", text, {"Content-Type": "application/json"})
        return json.loads(client.getresponse().read())

    prevention = {"rotation_interval": "PT1S"}
    pool = {"queues": ["low"], "starvation_prevention": prevention}
    send("PUT", "admin/pools/general", pool)
    send("POST", "jobs", {"type": "t", "args": [], "options": {"queue": "low"}})
    deadline = time.monotonic() + 60
    while not (events := send("GET", "events?types=scheduling.*")["events"]):
        assert time.monotonic() < deadline
        # The schedule comes each minute; here it has come.
        server._sweep({"pool_health": 100})
        time.sleep(0.05)
    client.close()
    (event,) = events
    assert (event["type"], event["data"]["queue"]) == ("scheduling.queue_starved", "low")


def test_requests_go_first(server: LocalServer) -> None:
    """The job sweep asks for each line whether a request is being answered."""
    asked, answered = threading.Event(), threading.Event()

    class Noted(Precedence):
        def giving_way(self) -> Callable[[], bool]:
            go_on = super().giving_way()

            def giving_way() -> bool:
                asked.set()
                return go_on()

            return giving_way

        @contextmanager
        def request(self) -> Iterator[None]:
            with super().request():
                yield
            answered.set()

    server._precedence = Noted()
    client = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
    job = {"type": "t", "args": []}
    client.request("POST", "/ojs/v1/jobs", json.dumps(job), {"Content-Type": "application/json"})
    assert client.getresponse().status == 201
    client.close()
    assert answered.wait(60)
    assert asked.wait(60)
