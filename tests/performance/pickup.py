"""How soon an idle worker of a local server starts a job, compared with two bare requests.

    PYTHONPATH=shared:package:. .venv/bin/python -m tests.performance.pickup [pushes]

On a quiet machine: docs/numbers/assumed.toml has what it prints, as measured and not repeated.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from docs.numbers import ROOT
from ojs_aws import JobContext, Worker
from ojs_aws.client.operations import worker_call
from ojs_aws.testing.server import OjsServer, ServerProcess
from tests.library.stub import until

# A worker that polls only so often: what it does sooner, it was told.
RARELY_S = 60.0


class PickUps(NamedTuple):
    """Seconds from a push to its start, and of a push and a fetch by hand in between."""

    waited: list[float]
    bare: list[float]


@contextmanager
def running(
    server: OjsServer, handle: Callable[[JobContext], Any], **options: Any
) -> Iterator[Worker]:
    """A worker of the queue `q` that is idle, and listens."""
    worker = Worker(server.url, key=server.key, queues=["q"], poll_s=RARELY_S, **options)
    worker.handler("t")(handle)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        job = server.client.enqueue("t", queue="q")
        until(lambda: server.client.get_job(job.id).state == "completed")
        yield worker
    finally:
        worker.stop()
        thread.join(60)


def measure(
    server: OjsServer,
    pushes: int,
    settled: Callable[[], object] = lambda: True,
    done: Callable[[str], None] = lambda _job_id: None,
) -> PickUps:
    """Push jobs to an idle worker, one by one.

    Args:
        server: The server.
        pushes: How many.
        settled: Whether the worker is listed, and has looked for earlier jobs.
        done: Called after each job, with its ID.
    """
    client, begun = server.client, dict[str, float]()

    def note(job: JobContext) -> None:
        begun[job.id] = time.monotonic()

    fetch = worker_call("workers/fetch", {"queues": ["other"], "count": 1})
    found = PickUps([], [])
    with running(server, note):
        until(settled)
        for _ in range(pushes):
            start_s = time.monotonic()
            client.enqueue("t", queue="other")
            assert client.run(fetch)["jobs"]
            found.bare.append(time.monotonic() - start_s)
            start_s = time.monotonic()
            job = client.enqueue("t", queue="q")
            until(lambda: job.id in begun)  # noqa: B023 - called here
            found.waited.append(begun[job.id] - start_s)
            # It is idle again: not the fetch that brings the ack brings the next job.
            until(lambda: client.get_job(job.id).state == "completed")  # noqa: B023
            done(job.id)
    return found


def late(times: list[float]) -> float:
    """What 95 of 100 are below. A few times don't have it: it would be the longest one."""
    return statistics.quantiles(times, n=20)[18]


def main(arguments: list[str]) -> None:
    """Print the medians, and what 95 of 100 are below."""
    with tempfile.TemporaryDirectory() as folder:
        process = ServerProcess(ROOT, Path(folder), keys=False)
        try:
            server = OjsServer(process)
            found = measure(server, int(arguments[0]) if arguments else 200)
            server.close()
        finally:
            process.stop()
    for name, times in found._asdict().items():
        median_ms, late_ms = (1_000 * one(times) for one in (statistics.median, late))
        sys.stdout.write(f"{name}: p50 {median_ms:.1f} ms, p95 {late_ms:.1f} ms\n")


if __name__ == "__main__":
    main(sys.argv[1:])
