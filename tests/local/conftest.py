"""A whole local server as a process of its own, as `make run` starts it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
_START_S = 90.0


class RunningServer:
    """`python -m local`, and how to talk to it."""

    def __init__(self, data: Path, log: Path, *arguments: str) -> None:
        self.data = data
        self._log = log
        command = [sys.executable, "-m", "local", "--port", "0", "--data", str(data), *arguments]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        self.url = self._await_url()
        self.address = urlsplit(self.url).netloc

    @property
    def printed(self) -> str:
        return self._log.read_text()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def _await_url(self) -> str:
        deadline = time.monotonic() + _START_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if found := re.search(r"URL +(http://\S+)/ojs/v1\n(?s:.*)Ctrl-C", self.printed):
                return found[1]
            time.sleep(0.02)
        self.process.kill()
        self.process.wait()
        raise AssertionError(f"the server did not start:\n{self.printed}")

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request on a connection of its own: status, and the JSON of the answer."""
        client = http.client.HTTPConnection(self.address, timeout=120)
        try:
            raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            client.request(method, path, raw, {"Content-Type": "application/json"})
            answer = client.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            client.close()

    def enqueue(self, **job: Any) -> dict[str, Any]:
        status, answer = self.call("POST", "/ojs/v1/jobs", {"type": "t", "args": [], **job})
        assert status == 201, answer
        made: dict[str, Any] = answer["job"]
        return made

    def fetch(self, queue: str = "default", **options: Any) -> list[dict[str, Any]]:
        body = {"queues": [queue], "count": 100, **options}
        status, answer = self.call("POST", "/ojs/v1/workers/fetch", body)
        assert status == 200, answer
        jobs: list[dict[str, Any]] = answer["jobs"]
        return jobs

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for all tests of a module that do not stop it."""
    folder = tmp_path_factory.mktemp("server")
    running = RunningServer(folder / "data", folder / "printed", "--sweep-interval", "5")
    yield running
    running.end()
