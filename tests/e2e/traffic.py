"""Clients at work while a deployment is updated, and what must hold afterwards."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from ojs_aws.client.outbox import outbox_item
from tests.e2e.cloud import Answer, Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUEUE = "traffic"
# Seconds between two jobs of a producer.
PACE_S = 0.3


class Traffic:
    """Producers and workers of one queue, and what each of them was answered."""

    def __init__(self, api: Api, place: Callable[[Any], str]) -> None:
        """`place` writes an item into an outbox, and returns the id of its job."""
        self._api, self._place = replace(api, timeout_s=30), place
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._pushing = threading.Event()
        self.answers: Counter[str] = Counter()
        self.broken: list[str] = []
        # Requests without an answer, because the emulator ended the function that it updated, or
        # because its table was slow: their effect is unknown.
        self.lost = 0
        self.written = 0
        # Jobs by ID: stored ones, how often each was handed out, and whose ack was answered.
        self.stored: set[str] = set()
        self.handed: Counter[str] = Counter()
        self.acked: Counter[str] = Counter()

    def ask(self, method: str, path: str, body: Any) -> Answer:
        """The answer; the request is repeated until there is one that is no failure."""
        for _ in range(100):
            try:
                answer = self._api(method, f"/ojs/v1{path}", body)
            except (OSError, HTTPException) as error:
                answer = Answer(0, {}, repr(error))
            told = f"{method} {path.rpartition('/')[2]} {answer.status}"
            with self._lock:
                self.answers[told] += 1
            if 0 < answer.status < 500:
                return answer
            slow = answer.status == 504 and answer.body["error"]["code"] == "backend_timeout"
            ended = answer.status == 502 and answer.body["errorMessage"] == "Worker process died"
            if slow or ended or not answer.status:
                self.lost += 1
            elif answer.status != 503 or "retry-after" not in answer.headers:
                self.broken.append(f"{told}: {answer.headers} {answer.body}")
            time.sleep(0.2)
        raise AssertionError(f"no answer to {method} {path}")

    def push(self) -> None:
        """Enqueue jobs one after the other; a repeated request finds its job."""
        while not self._pushing.wait(PACE_S):
            job_id = _uuid7()
            body = {"id": job_id, "type": "e2e.job", "args": [], "options": {"queue": QUEUE}}
            answer = self.ask("POST", "/jobs", body)
            assert answer.status in (201, 409), answer
            with self._lock:
                self.stored.add(job_id)

    def write(self) -> None:
        """Write items into the outbox."""
        while not self._pushing.wait(PACE_S):
            job_id = self._place(outbox_item("e2e.job", [], queue=QUEUE, table=""))
            with self._lock:
                self.stored.add(job_id)
                self.written += 1

    def work(self, worker: str) -> None:
        """Fetch jobs, and acknowledge each with its lease."""
        while not self._done.is_set():
            wanted = {"queues": [QUEUE], "count": 5, "worker_id": worker}
            body = {**wanted, "visibility_timeout_ms": 40_000}
            jobs = self.ask("POST", "/workers/fetch", body).body["jobs"]
            for job in jobs:
                with self._lock:
                    self.handed[job["id"]] += 1
                    if self.acked[job["id"]]:
                        self.broken.append(f"{job['id']} is handed out after its ack")
            for job in jobs:
                lease = {name: job[name] for name in ("lease_token", "attempt")}
                body = {"job_id": job["id"], "worker_id": worker, **lease, "result": worker}
                acked = self.ask("POST", "/workers/ack", body).status == 200
                # An ack whose answer was lost is a conflict when it is repeated.
                if acked or self._api.get(job["id"]).get("result") == worker:
                    with self._lock:
                        self.acked[job["id"]] += 1
            if not jobs:
                time.sleep(0.2)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Three producers and two workers in the block, and the workers until nothing is left."""
        acts: list[Callable[[], None]] = [self.push, self.push, self.write]
        acts += [lambda: self.work("w1"), lambda: self.work("w2")]
        threads = [threading.Thread(target=self._safely, args=(act,)) for act in acts]
        for each in threads:
            each.start()
        try:
            yield
            self._pushing.set()
            deadline = time.monotonic() + 240
            # Jobs of a lost fetch come back when their leases end, after 40 seconds.
            while len(self.acked) < len(self.stored) and time.monotonic() < deadline:
                time.sleep(0.2)
        finally:
            self._pushing.set()
            self._done.set()
            for each in threads:
                each.join()

    def _safely(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  # a failure of a thread is one of the test
            self.broken.append(repr(error))

    def check(self) -> None:
        """Nothing lost, nothing done twice, and no answer but those that clients know."""
        print(f"{self.written} items written, answers: {dict(self.answers)}")  # noqa: T201
        assert not self.broken, (self.broken[:5], self.answers)
        assert len(self.stored) > 20, self.answers
        assert self.lost <= self.answers.total() / 10, self.answers
        assert self.stored == set(self.acked), self.answers
        assert set(self.acked.values()) == {1}, self.answers
        for job_id in self.stored:
            job = self._api.get(job_id)
            assert job["state"] == "completed", job
            # A fetch whose answer was lost started an attempt, too.
            assert 0 <= job["attempt"] - self.handed[job_id] <= self.lost, job


def _uuid7() -> str:
    value = (time.time_ns() // 1_000_000 << 80) | (7 << 76) | (2 << 62)
    return str(uuid.UUID(int=value | (uuid.uuid4().int & ((0xFFF << 64) | ((1 << 62) - 1)))))
