"""A server for workers, in memory: hands out jobs, keeps leases by token, fails when told to."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx

from ojs_aws import Client, Worker
from ojs_aws.ids import uuid7

URL = "http://stub"
Fault = Callable[[httpx.Request], httpx.Response]


class StubServer:
    """What it was asked, in order, is in `asked`: path below /ojs/v1 and body."""

    def __init__(self) -> None:
        self.waiting: deque[dict[str, Any]] = deque()
        self.leased: dict[str, dict[str, Any]] = {}
        self.done: dict[str, Any] = {}  # id → result
        self.failed: dict[str, dict[str, Any]] = {}  # id → error
        self.given_back: list[str] = []
        self.acked: Counter[str] = Counter()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.lost: set[str] = set()
        self.cancelled: set[str] = set()
        # What a heartbeat's response has in addition.
        self.more_of_heartbeat: dict[str, Any] = {}
        self.directive = "running"
        self.progress: list[dict[str, Any]] = []
        # The next requests to a path get this instead of an answer.
        self.faults: dict[str, deque[Fault]] = {}
        self.always: Callable[[str], Fault | None] = lambda _path: None
        # Refuses an entry for itself: status by job id.
        self.statuses: dict[str, int] = {}
        # Address for WebSocket connections, and what a fetch's response has in addition.
        self.socket_url: str | None = None
        self.more_of_fetch: Callable[[dict[str, Any]], dict[str, Any]] = lambda _body: {}
        self._lock = threading.Lock()

    def client(self) -> Client:
        return Client(URL, transport=httpx.MockTransport(self), sleep=lambda _s: None)

    def push(self, kind: str, *args: Any, **fields: Any) -> str:
        job_id = uuid7()
        job = {
            "id": job_id,
            "type": kind,
            "args": list(args),
            "queue": "q",
            "meta": {},
            "attempt": 0,
        }
        self.waiting.append(job | fields)
        return job_id

    def fail(self, path: str, *faults: Fault) -> None:
        self.faults.setdefault(path, deque()).extend(faults)

    def to(self, path: str) -> list[dict[str, Any]]:
        """The bodies of requests to a path."""
        return [body for asked, body in list(self.asked) if asked == path]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/ojs/v1/")
        body = json.loads(request.content) if request.content else {}
        self.asked.append((path, body))
        if self.faults.get(path):
            return self.faults[path].popleft()(request)
        if (fault := self.always(path)) is not None:
            return fault(request)
        with self._lock:
            return self._answer(path, body)

    def _answer(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if path == "workers/fetch":
            told = {
                how: [self._settle(how, e) for e in body[how]] for how in ENDINGS if how in body
            }
            jobs = self._claim(body["count"])
            return httpx.Response(200, json={"jobs": jobs, **told, **self.more_of_fetch(body)})
        if path in ("workers/ack", "workers/nack"):
            how = f"{path.removeprefix('workers/')}s"
            if how in body:
                told = {how: [self._settle(how, entry) for entry in body[how]]}
                return httpx.Response(207, json=told)
            outcome = self._settle(how, body)
            return httpx.Response(outcome["status"], json=outcome)
        if path == "workers/heartbeat":
            mine = set(body["active_jobs"]) & self.leased.keys()
            return httpx.Response(200, json={
                "state": self.directive, "jobs_extended": sorted(mine - self.lost - self.cancelled),
                "cancelled_jobs": sorted(mine & self.cancelled), **self.more_of_heartbeat,
            })  # fmt: skip
        if path == "realtime/tickets":
            if self.socket_url is None:
                return httpx.Response(422, json={"error": {"code": "unsupported", "message": "-"}})
            ticket = {"ticket": uuid7(), "url": self.socket_url, "expires_in": 60}
            return httpx.Response(201, json=ticket)
        if path.endswith("/progress"):
            self.progress.append(body)
        return httpx.Response(200, json={"ok": True})

    def _claim(self, count: int) -> list[dict[str, Any]]:
        claimed: list[dict[str, Any]] = []
        while self.waiting and len(claimed) < count:
            job = self.waiting.popleft()
            job = job | {"attempt": job["attempt"] + 1, "state": "active", "lease_token": uuid7()}
            self.leased[job["id"]] = job
            claimed.append(job)
        return claimed

    def _settle(self, how: str, entry: dict[str, Any]) -> dict[str, Any]:
        job_id = entry["job_id"]
        if status := self.statuses.get(job_id):
            return {"job_id": job_id, "status": status, "error": {"message": "no"}}
        job = self.leased.get(job_id)
        if job is None or job["lease_token"] != entry["lease_token"]:
            return {"job_id": job_id, "status": 409, "error": {"message": "not yours"}}
        del self.leased[job_id]
        if how == "acks":
            self.acked[job_id] += 1
            self.done[job_id] = entry.get("result")
        elif entry.get("requeue"):
            self.given_back.append(job_id)
        else:
            self.failed[job_id] = entry["error"]
        return {"job_id": job_id, "status": 200}


ENDINGS = ("acks", "nacks")


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def made(stub: StubServer, **options: Any) -> Worker:
    """A worker of the stub that waits for nothing longer than it must."""
    quick = {
        name: options.pop(name)
        for name in ("first_poll_s", "gather_s", "report_s", "stop_s", "settle_s", "request_s",
                     "idle_heartbeat_s")
        if name in options
    }  # fmt: skip
    worker = Worker(**{"queues": ["q"], "client": stub.client(), **options})
    defaults: dict[str, Any] = {
        "first_poll_s": 0.01, "gather_s": 0.005, "report_s": 0.02, "stop_s": 0.05, "settle_s": 1.0
    }  # fmt: skip
    worker.settings = replace(worker.settings, **(defaults | quick))
    return worker


@contextmanager
def working(worker: Worker, stub: StubServer) -> Iterator[threading.Thread]:
    """The worker at work; it is told to stop at the end, and must."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        until(lambda: stub.asked or raised)
        yield thread
    finally:
        worker.stop()
        thread.join(60)
    assert not thread.is_alive()
    if raised:
        raise raised[0]
