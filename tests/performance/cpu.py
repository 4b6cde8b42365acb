"""Measure how much CPU a request takes, and what that means at several sizes of a function.

    PYTHONPATH=shared:. .venv/bin/python -m tests.performance.cpu

Prints the table of docs/performance.md under "Latency and memory". CPU is that of the handlers with
the SDK's real client; the engine is a separate process. A machine's CPU is not Lambda's: repeat it
on one like that before you rely on a number, and take the ratios from here.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from functions.jobs.handler import handler as jobs
from functions.stream.handler import handler as stream
from functions.workers.handler import handler as workers
from local import engines
from local.dynamodb import connect, connect_to_streams
from local.events import event_from_request
from local.http_server import Request
from local.lambda_context import LambdaContext
from local.stream import TableStream
from ojs import runtime
from ojs.settings import Settings
from ojs.store.jobs.blobs import MemoryBlobs
from ojs.store.table import schema
from tests.performance.measure import RESULT, RETRY, SMALL, Row, table

LIVES = 300
# A function has so many MB for each of its vCPUs (AWS: Lambda, "Configure memory").
MB_A_VCPU = 1_769
SIZES_MB = (256, 512, 1_024, 1_769)
# arm64 in us-east-1, $ for a GB-second; and how long DynamoDB takes to answer, assumed.
GB_SECOND = 0.0000133334
CALL_MS = 4.0
# Operation → calls one after another.
CALLS = {"push": 2, "fetch": 3, "ack": 1}
# Records in a batch → the row.
RECORDS = {1: "stream record, alone", 100: "stream record, of a hundred"}
HEADER = ("", "CPU ms", *(f"{size} MB" for size in SIZES_MB))


def request(handler: Callable[..., Any], path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request to a handler. Returns the body of its answer."""
    headers = [("content-type", "application/json")]
    sent = Request("POST", f"/ojs/v1/{path}", headers, json.dumps(body).encode(), "1.1", "::1")
    answer = handler(event_from_request(sent, "$default"), LambdaContext("measured"))
    if answer["statusCode"] >= 300:
        raise RuntimeError(answer["body"])
    found: dict[str, Any] = json.loads(answer["body"])
    return found


class Timer:
    """CPU seconds of this process, by what they went into."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = {}

    def run(self, what: str, call: Callable[[], Any]) -> Any:
        """Make a call; returns what it returns."""
        start_s = time.process_time()
        found = call()
        self.spent_s[what] = self.spent_s.get(what, 0) + time.process_time() - start_s
        return found


def lives(timer: Timer, count: int) -> None:
    """Whole lives of jobs, one request after another."""
    pushed = {"type": "email.send", "args": ["x" * SMALL], "options": {"retry": RETRY}}
    wanted = {"queues": ["default"], "worker_id": "worker-1"}
    for _ in range(count):
        timer.run("push", partial(request, jobs, "jobs", pushed))
        (job,) = timer.run("fetch", partial(request, workers, "workers/fetch", wanted))["jobs"]
        done = {"job_id": job["id"], "result": RESULT}
        timer.run("ack", partial(request, workers, "workers/ack", done))


def measured() -> dict[str, float]:
    """CPU in ms, to one decimal, by the rows of the table: of requests, and of stream records."""
    engine = engines.start("dynoxide")
    try:
        client, name = connect(engine.url), f"ojs-{uuid.uuid4().hex[:12]}"
        client.create_table(**schema.create_table_arguments(name, stream=True))
        runtime.use(runtime.build(Settings(table=name), client=client, blobs=MemoryBlobs()))
        changes = TableStream(connect_to_streams(engine.url), name)
        lives(Timer(), 20)
        timer = Timer()
        lives(timer, LIVES)
        found = {what: spent_s * 1_000 / LIVES for what, spent_s in timer.spent_s.items()}
        records = changes.read()
        for size, what in RECORDS.items():
            timer = Timer()
            batches = [
                records[at : at + size] for at in range(0, min(len(records), 50 * size), size)
            ]
            for batch in batches:
                event = {"Records": batch}
                timer.run("", partial(stream, event, LambdaContext("measured")))
            found[what] = timer.spent_s[""] * 1_000 / sum(map(len, batches))
        return {what: round(ms, 1) for what, ms in found.items()}
    finally:
        engine.stop()


def slowdown(size_mb: int) -> float:
    """How much longer CPU work takes in a function of this size than with a whole vCPU."""
    return max(1.0, MB_A_VCPU / size_mb)


def rows(cpu_ms: dict[str, float]) -> list[Row]:
    """How long each operation takes at each size; what the three of a job cost; and how many stream
    records a second one shard's function works off.
    """
    found: list[Row] = []
    for what, calls in CALLS.items():
        took = [cpu_ms[what] * slowdown(size) + calls * CALL_MS for size in SIZES_MB]
        found.append((what, f"{cpu_ms[what]:.1f}", *(f"{ms:.0f} ms" for ms in took)))
    all_ms = sum(cpu_ms[what] for what in CALLS)
    cost = [
        (all_ms * slowdown(size) + sum(CALLS.values()) * CALL_MS) * size / 1_024 * 1_000 * GB_SECOND
        for size in SIZES_MB
    ]
    found.append(
        ("a million jobs, Lambda's time", f"{all_ms:.1f}", *(f"${each:.2f}" for each in cost))
    )
    for what in RECORDS.values():
        shares = [f"{1_000 / (cpu_ms[what] * slowdown(size)):.0f}/s" for size in SIZES_MB]
        found.append((what, f"{cpu_ms[what]:.1f}", *shares))
    return found


def main() -> int:
    """Print the table."""
    # Region and credentials of the machine are none of this.
    os.environ |= {"POWERTOOLS_METRICS_DISABLED": "true"}
    sys.stdout.write(f"{table(HEADER, rows(measured()))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
