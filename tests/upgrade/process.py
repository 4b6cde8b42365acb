"""One version as a process: its functions behind HTTP, on an engine that other versions share.

    PYTHONPATH=ROOT:ROOT/shared python process.py ENGINE_URL START_MS SPEED PAYLOADS

It prints its URL. The archive of a released version has a copy of this file, which fits it. Time
runs `SPEED` times as fast as the machine's from `START_MS` on, for all processes alike.
"""

# ruff: noqa: E402, T201  # the environment is cleared before the functions are imported
from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

for _name in [name for name in os.environ if name.startswith(("AWS_", "OJS_"))]:
    del os.environ[_name]
os.environ |= {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1,localhost,::1",
    "POWERTOOLS_METRICS_DISABLED": "true",
    "POWERTOOLS_SERVICE_NAME": "ojs",
    "POWERTOOLS_LOG_LEVEL": "CRITICAL",
}

from functions.stream.handler import handler as project
from local.blobs import FolderBlobs
from local.dynamodb import connect
from local.gateway import Gateway, load_handlers, refusal
from local.http_server import HttpServer, Limits, listen
from local.lambda_context import LambdaContext
from ojs import runtime
from ojs.settings import Settings

MAX_BODY_BYTES = 64 * 1024 * 1024


class FastClock:
    """The machine's clock, some times as fast from a given time on."""

    def __init__(self, start_ms: int, speed: int) -> None:
        self._start_ms, self._speed = start_ms, speed

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._start_ms + (time.time_ns() // 1_000_000 - self._start_ms) * self._speed


def main() -> None:
    """Answer requests until killed."""
    engine, start_ms, speed, payloads = sys.argv[1:5]
    clock = FastClock(int(start_ms), int(speed))
    built = runtime.build(
        Settings(table="ojs", authorizer="none"),
        client=connect(engine),
        blobs=FolderBlobs(Path(payloads)),
        clock=clock,
    )
    runtime.use(built)
    sweeping = threading.Lock()

    def sweep(_body: bytes) -> Any:
        failures = []
        with sweeping:
            for each in built.sweeps():
                report = each.run_once(clock.now_ms(), 1_000, lambda: True)
                failures += [f"{each.name}: {one.what}: {one.error}" for one in report.failures]
        return {"failures": failures}

    def stream(body: bytes) -> Any:
        return project(json.loads(body), LambdaContext("stream", timeout_s=60.0))

    gateway = Gateway(load_handlers())
    gateway.hook("POST", "/test/sweep", sweep)
    gateway.hook("POST", "/test/stream", stream)
    server = HttpServer(
        listen("127.0.0.1", 0), gateway, refuse=refusal, limits=Limits(body_bytes=MAX_BODY_BYTES)
    )
    server.start()
    print(server.url, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
