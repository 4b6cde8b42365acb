"""Make the data of a released version, for tests that later versions work on them.

Run with the code of that version, against its local server with an empty data folder:

    git worktree add ../released v0.1.0
    (cd ../released && make run PORT=8099 DATA=.upgrade)
    python tests/upgrade/make_data.py http://127.0.0.1:8099 ../released/.upgrade 0.1.0

It has a job in every state that there is, and queues, limits, pools and tenants of every kind.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import boto3

_FOLDER = Path(__file__).resolve().parent / "data"
# Larger than what fits a job record, and than what fits an item.
_APART, _IN_BUCKET = "x" * 5_000, "y" * 400_000


class Maker:
    """Talks to the server, and notes what it was told of each job."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.jobs: dict[str, dict[str, Any]] = {}

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self._url}/ojs/v1{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{method} {path}: {error.read().decode()}") from None

    def push(self, queue: str, args: list[Any] | None = None, **more: Any) -> str:
        options = {"queue": queue, **more.pop("options", {})}
        job = {"type": "t", "args": args or [queue], "options": options, **more}
        return str(self.ask("POST", "/jobs", job)["job"]["id"])

    def fetch(self, queue: str, count: int = 1, **more: Any) -> list[dict[str, Any]]:
        asked = {"queues": [queue], "count": count, "worker_id": "w1", **more}
        jobs: list[dict[str, Any]] = self.ask("POST", "/workers/fetch", asked)["jobs"]
        return jobs

    def nack(self, job_id: str, *, retryable: bool) -> None:
        error = {"type": "Boom", "message": "no", "retryable": retryable}
        self.ask("POST", "/workers/nack", {"job_id": job_id, "error": error, "worker_id": "w1"})


def fill(make: Maker) -> None:
    """Everything there is."""
    for queue, config in (
        ("bounded", {"max_size": 5}),
        ("slots", {"concurrency": 2}),
        ("lanes", {"lanes": 3}),
        ("fair", {"tenant_fairness": {"enabled": True}}),
        ("copied", {"dead_letter_queue": "copies"}),
        ("rated", {"rate_limit": {"limit": 1_000, "period": "PT1M"}}),
        ("strictly", {"allowed_job_types": ["t"], "producers": ["*"]}),
    ):
        make.ask("PUT", f"/queues/{queue}/config", config)
    make.ask("PUT", "/admin/pools/p", {
        "queues": {"pa": {"weight": 3}, "pb": {"weight": 1}}, "strategy": "weighted",
        "concurrency": 4,
    })  # fmt: skip
    rule = {"name": "again", "filter": {"error_type": "Boom"}, "delay": "PT1H", "max_replays": 1}
    make.ask("PUT", "/queues/replayed/config", {"replay_rules": [rule]})
    make.ask("POST", "/workers/register", {"worker_id": "w1"})

    make.push("plain")
    make.push("plain", options={"priority": 10})
    make.push("plain", [_APART])
    make.push("plain", [_IN_BUCKET])
    make.push("plain", options={"scheduled_at": "+PT1H"})
    make.push("plain", options={"expires_at": "+PT2H"})
    make.push("plain", options={"pending": True})
    for number in range(3):
        make.push("lanes", [number])
    for number in range(4):
        make.push("bounded", [number])
    make.push("uniquely", unique={"keys": ["type", "queue"]})
    for tenant in ("x", "y", "x"):
        make.push("fair", meta={"tenant_id": tenant})
    for queue in ("pa", "pb", "pa", "pb"):
        make.push(queue)
    for _ in range(3):
        make.push("limited", rate_limit={"key": "k", "concurrency": 1})
        make.push("slots")
        make.push("rated")
    make.fetch("slots")
    make.fetch("limited")
    make.fetch("bounded")
    make.fetch("pa", pool="p", worker_id="w2")

    make.push("done", ["small"])
    make.push("done", ["large"])
    small, large = make.fetch("done", 2)
    make.ask("POST", "/workers/ack", {"job_id": small["id"], "result": {"ok": True}})
    make.ask("POST", "/workers/ack", {"job_id": large["id"], "result": _APART})
    make.ask("DELETE", f"/jobs/{make.push('done', options={'scheduled_at': '+PT1H'})}")
    for queue in ("running", "stalling", "failing", "dead", "copied", "replayed"):
        make.push(queue, options={"visibility_timeout_ms": 3_600_000})
    for queue in ("failing", "dead", "copied", "replayed"):
        (job,) = make.fetch(queue)
        make.nack(job["id"], retryable=queue == "failing")
    (job,) = make.fetch("running")
    make.ask("PUT", f"/jobs/{job['id']}/progress", {"progress": 0.5, "message": "half"})
    make.fetch("stalling", visibility_timeout_ms=1_000)
    many = [{"type": "t", "args": [n], "options": {"queue": "staged"}} for n in range(150)]
    make.ask("POST", "/jobs/batch", {"jobs": many})
    make.push("paused")
    make.ask("POST", "/queues/paused/pause", {})
    make.push("ending")
    make.ask("DELETE", "/queues/ending", {"strategy": "drain"})


def main() -> None:
    """Fill the server and write down what its table holds."""
    url, folder, version = sys.argv[1:4]
    make = Maker(url)
    fill(make)
    # What follows from the stream is in the table once statistics were asked for.
    make.ask("GET", "/admin/stats")
    port = _engine_port(Path(folder).resolve())
    client = boto3.client(
        "dynamodb", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1",
        aws_access_key_id="local", aws_secret_access_key="local",
    )  # fmt: skip
    items: list[Any] = []
    for page in client.get_paginator("scan").paginate(TableName="ojs"):
        items += page["Items"]
    payloads = Path(folder) / "payloads"
    blobs = {
        str(path.relative_to(payloads)): base64.b64encode(path.read_bytes()).decode()
        for path in payloads.rglob("*")
        if path.is_file()
    }
    data = {
        "version": version, "at_ms": time.time_ns() // 1_000_000, "items": items, "blobs": blobs,
    }  # fmt: skip
    _FOLDER.mkdir(exist_ok=True)
    text = json.dumps(data, default=lambda raw: {"b64": base64.b64encode(raw).decode()})
    (_FOLDER / f"{version}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def _engine_port(folder: Path) -> str:
    listed = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True)
    found = re.findall(rf"--port (\d+) --db-path {re.escape(str(folder))}", listed.stdout)
    return str(found[-1])


if __name__ == "__main__":
    main()
