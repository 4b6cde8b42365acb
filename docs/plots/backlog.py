"""The same backlog worked off under each strategy, on a local server, over HTTP.

Needs nothing but Python; the server runs with the interpreter it is given.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[2]
# Of each queue so many jobs; not as many of each, or some strategies would look alike.
JOBS = {"critical": 200, "default": 400, "low": 300}
QUEUES = tuple(JOBS)
# One request of so many jobs is one transaction.
_BATCH = 100
_WORKER = "worker-1"
_POOL = "general"
_URL = re.compile(r"^\s*URL\s+(http://\S+?)/ojs/v1\s*$")

Send = Callable[[str, str, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Setting:
    """A pool to be shown: how it is called in the picture, and how it is configured."""

    title: str
    pool: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """What is sent to make the pool."""
        return {"queues": list(QUEUES), **self.pool}


SETTINGS = (
    Setting("strict", {"strategy": "strict"}),
    Setting(
        "strict, each queue sure of 10 %",
        {
            "strategy": "strict",
            "starvation_prevention": {
                "enabled": True,
                # By the part alone: how long a run takes must not show.
                "rotation_interval": "PT24H",
                "min_dispatch_ratio": 0.1,
            },
        },
    ),
    Setting("round-robin", {"strategy": "round-robin"}),
    Setting(
        "weighted 5 : 3 : 1",
        {"strategy": "weighted", "weights": {"critical": 5, "default": 3, "low": 1}},
    ),
    Setting("least-loaded", {"strategy": "least-loaded"}),
)


@contextmanager
def server(python: str) -> Iterator[Send]:
    """A local server on data of its own, and how to talk to it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "local", "--port", "0", "--data", f"{folder}/data"]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT}/shared:{ROOT}", "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            text=True,
        ) as running:
            try:
                yield _sender(_url(running))
            finally:
                running.terminate()
                running.communicate()


def _url(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    for line in running.stdout:
        if found := _URL.match(line):
            return f"{found[1]}/ojs/v1"
    raise SystemExit("the local server did not start")


def _sender(base: str) -> Send:
    def send(method: str, path: str, body: Mapping[str, Any]) -> Any:
        request = Request(
            f"{base}{path}",
            data=json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with urlopen(request) as answer:
            return json.load(answer)

    return send


def worked_off(send: Send, setting: Setting, jobs: Mapping[str, int] = JOBS) -> list[str]:
    """The queues in the order in which their jobs were handed out, one at a time."""
    send("POST", "/admin/reset", {})
    send("PUT", f"/admin/pools/{_POOL}", setting.body())
    for queue, left in jobs.items():
        for start in range(0, left, _BATCH):
            count = min(_BATCH, left - start)
            job = {"type": "shown", "args": [], "options": {"queue": queue}}
            send("POST", "/jobs/batch", {"jobs": [job] * count})
    worker = {"worker_id": _WORKER, "pool": _POOL, "queues": list(QUEUES), "concurrency": 1}
    send("POST", "/workers/register", worker)
    order: list[str] = []
    while len(order) < sum(jobs.values()):
        wanted = {"worker_id": _WORKER, "pool": _POOL, "queues": list(QUEUES), "count": 1}
        fetched = send("POST", "/workers/fetch", wanted)["jobs"]
        if not fetched:
            raise SystemExit(f"{setting.title}: nothing more came after {len(order)} jobs")
        for job in fetched:
            send("POST", "/workers/ack", {"job_id": job["id"], "worker_id": _WORKER})
            order.append(job["queue"])
    return order


def cumulated(order: Sequence[str]) -> dict[str, list[int]]:
    """Of each queue, how many jobs were handed out by then: before the first, after each."""
    counts = {queue: [0] for queue in QUEUES}
    for given in order:
        for queue, so_far in counts.items():
            so_far.append(so_far[-1] + (queue == given))
    return counts
