"""Measure how much CPU a request takes, and what that means at several sizes of a function.

    PYTHONPATH=shared:. .venv/bin/python -m tests.performance.cpu [--lives 300]

Prints the table of docs/performance.md under "Latency and memory". CPU is that of the handlers with
the SDK's real client; the engine is a separate process. A machine's CPU is not Lambda's: repeat it
on one like that before you rely on a number, and take the ratios from here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
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
from tests.store.streams import SHARD

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
    """CPU seconds of this process, and requests to DynamoDB, by what they went into."""

    def __init__(self, client: Any) -> None:
        """Listen to the client's requests."""
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._what = ""
        client.meta.events.register("before-send.dynamodb", self._sent)

    def _sent(self, **_: Any) -> None:
        self.calls[self._what] += 1

    def run(self, what: str, call: Callable[[], Any]) -> Any:
        """Make a call; returns what it returns."""
        self._what = what
        start_s = time.process_time()
        found = call()
        self.spent_s[what] += time.process_time() - start_s
        return found

    def ms(self, what: str, divided_by: int) -> float:
        """CPU in ms of what was run.

        Raises:
            RuntimeError: It sent no request to DynamoDB, so it did not do its work.
        """
        if not self.calls[what]:
            raise RuntimeError(f"{what}: 0 calls of DynamoDB. Nothing was measured.")
        return self.spent_s[what] * 1_000 / divided_by


def lives(timer: Timer, count: int) -> None:
    """Whole lives of jobs, one request after another."""
    pushed = {"type": "email.send", "args": ["x" * SMALL], "options": {"retry": RETRY}}
    wanted = {"queues": ["default"], "worker_id": "worker-1"}
    for _ in range(count):
        timer.run("push", partial(request, jobs, "jobs", pushed))
        (job,) = timer.run("fetch", partial(request, workers, "workers/fetch", wanted))["jobs"]
        done = {"job_id": job["id"], "result": RESULT}
        timer.run("ack", partial(request, workers, "workers/ack", done))


def consume(records: Sequence[Any]) -> dict[str, Any]:
    """Send a batch to the stream's consumer, as Lambda does. Returns its answer.

    Raises:
        RuntimeError: It returned records for retry.
    """
    event = {"Records": list(records), "shardId": SHARD, "state": {}}
    answer: dict[str, Any] = stream(event, LambdaContext("measured"))
    if answer["batchItemFailures"]:
        raise RuntimeError(f"{len(records)} records: {answer}")
    return answer


def measured(count: int = LIVES) -> dict[str, float]:
    """CPU in ms, to one decimal, by the rows of the table: of requests, and of stream records.

    Args:
        count: Number of jobs.
    """
    engine = engines.start("dynoxide")
    try:
        client, name = connect(engine.url), f"ojs-{uuid.uuid4().hex[:12]}"
        client.create_table(**schema.create_table_arguments(name, stream=True))
        runtime.use(runtime.build(Settings(table=name), client=client, blobs=MemoryBlobs()))
        changes = TableStream(connect_to_streams(engine.url), name)
        lives(Timer(client), min(20, count))
        timer = Timer(client)
        lives(timer, count)
        found = {what: timer.ms(what, count) for what in CALLS}
        records = changes.read()
        consume(records[:1])
        records = records[1:]
        for size, what in RECORDS.items():
            # Not more than half, so that the next row has records, too.
            most = min(50 * size, len(records) // 2 if size == 1 else len(records))
            batches = [records[at : at + size] for at in range(0, most, size)]
            for batch in batches:
                timer.run(what, partial(consume, batch))
            done = sum(map(len, batches))
            found[what] = timer.ms(what, done)
            # Records that were counted take less the second time.
            records = records[done:]
        return {what: max(0.1, round(ms, 1)) for what, ms in found.items()}
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


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure the CPU of requests and stream records.")
    parser.add_argument("--lives", type=int, default=LIVES, help="how many jobs are measured")
    options = parser.parse_args(arguments)
    # Region and credentials of the machine are none of this.
    os.environ |= {"POWERTOOLS_METRICS_DISABLED": "true"}
    sys.stdout.write(f"{table(HEADER, rows(measured(options.lives)))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
