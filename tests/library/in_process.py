"""The server in this process, with a clock by hand, as a transport of the library's client.

Each request of durable code can be lost, answered in vain, or be the last one of its process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

from ojs_aws import Client, Job, Worker
from ojs_aws.client.exchange import RetryPolicy
from ojs_aws.worker.handlers import Ending
from tests.unit.functions.client import Api

BASE = "/ojs/v1"
FAULTS = ("refused", "lost", "crash before", "crash after")


class Crash(BaseException):
    """The process of the worker ends here."""


class Server:
    """What durable code asked is in `asked`. `faults` has a fault by number of the request."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.asked: list[str] = []
        self.bodies: list[Any] = []
        self.faults: dict[int, str] = {}
        self.crashed = False
        # Called before each request.
        self.before: Callable[[str], object] = lambda _asked: None
        self.client = Client(
            "http://server", key="k", transport=httpx.MockTransport(self), sleep=lambda _s: None,
            retry=RetryPolicy(tries=3),
        )  # fmt: skip

    def __call__(self, request: httpx.Request) -> httpx.Response:
        fault = self.faults.get(len(self.asked))
        asked = f"{request.method} {request.url.path.removeprefix(f'{BASE}/')}"
        self.before(asked)
        self.asked.append(asked)
        self.bodies.append(json.loads(request.content) if request.content else None)
        if fault == "refused":
            raise httpx.ConnectError("refused")
        if fault == "crash before":
            self._crash()
        reply = self.api(
            request.method, request.url.path, raw=request.content.decode() or None,
            query=dict(request.url.params),
        )  # fmt: skip
        if fault == "lost":
            raise httpx.ReadTimeout("lost")
        if fault == "crash after":
            self._crash()
        return httpx.Response(reply.status, text=reply.text)

    def _crash(self) -> None:
        self.crashed = True
        raise Crash

    def paths(self) -> list[str]:
        """What was asked, with `ID` for each ID of a job."""
        return ["/".join("ID" if len(part) == 36 else part for part in path.split("/"))
                for path in self.asked]  # fmt: skip

    def push(self, kind: str, *args: Any, **options: Any) -> str:
        """Enqueue a job. Returns its ID."""
        return self.api.push("q", type=kind, args=list(args), options=options)

    def job(self, job_id: str) -> Any:
        return self.api.get(f"{BASE}/jobs/{job_id}").json

    def steps(self, job_id: str) -> dict[str, Any]:
        """The stored outcomes of a job by name."""
        found = self.api.get(f"{BASE}/jobs/{job_id}/steps").json["steps"]
        return {each["name"]: each for each in found}

    def fetch(self, count: int = 1) -> list[Job]:
        return [Job.of(each) for each in self.api.fetch("q", count=count)]

    def report(self, job: Job, ending: Ending) -> Any:
        """Send the outcome of an attempt. Returns the job."""
        if ending.how:
            body = {"job_id": job.id, "lease_token": job.lease_token, **ending.entry}
            reply = self.api.post(f"{BASE}/workers/{ending.how[:-1]}", body)
            assert reply.status == 200, reply.text
        return self.job(job.id)

    def attempt(self, worker: Worker) -> Ending:
        """Fetch a job, run it, and report its outcome, unless the process crashed."""
        (job,) = self.fetch()
        self.crashed = False
        ending = worker.perform(job)
        if not self.crashed:
            self.report(job, ending)
        return ending

    def later(self, **parts: float) -> None:
        """Let time pass, with its sweeps."""
        ms = {"seconds": 1_000, "minutes": 60_000, "hours": 3_600_000, "days": 86_400_000}
        self.api.clock.advance(round(sum(ms[unit] * n for unit, n in parts.items())))
        self.api.runtime.sweep.run_once(self.api.clock.now_ms(), 1_000)

    def finish(self, worker: Worker, job_id: str, signals: dict[str, Any] | None = None) -> Any:
        """Run jobs, and let time pass, until a job has finished. Returns it."""
        for _ in range(100):
            shown = self.job(job_id)
            if shown["state"] in ("completed", "discarded", "cancelled"):
                return shown
            waiting = shown.get("waiting", [])
            for wait in waiting:
                if wait["kind"] == "signal" and wait["name"] in (signals or {}):
                    data = {"data": (signals or {})[wait["name"]]}
                    self.api.post(f"{BASE}/jobs/{job_id}/signals/{wait['name']}", data)
            jobs = self.fetch()
            if not jobs:
                self.later(hours=12 if waiting else 0.1)
            for job in jobs:
                self.crashed = False
                ending = worker.perform(job)
                if self.crashed:
                    self.later(minutes=40)  # until its lease ends
                else:
                    self.report(job, ending)
        raise AssertionError(f"the job has not finished: {self.job(job_id)}")
