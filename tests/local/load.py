"""Clients that do everything at once to a server that may be killed, and what they were told."""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LEASE_S = 5.0
# Of the text that a job is pushed with, in characters: some are too large for the job record, few
# too large for the table.
_LARGEST = 600_000
_SIZES = (*(0, 10, 300) * 12, *(3_000,) * 12, _LARGEST)
# It can hardly be compressed.
_TEXT = base64.b64encode(random.Random(0).randbytes(_LARGEST)).decode()
# A batch of more than 100 is staged.
_STAGED = 104
_HELD = 6

# What the queues are configured with at the beginning; the bounds are the largest they ever have.
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "lanes": {"lanes": 2},
    "reject": {"max_size": 30, "overflow_policy": "reject"},
    "block": {"max_size": 20, "overflow_policy": "block"},
    "drop": {"max_size": 20, "overflow_policy": "drop_oldest"},
    "limited": {"concurrency": 6},
    "rated": {"rate_limit": {"limit": 20, "period": "PT1S"}},
    "fair": {"tenant_fairness": {"enabled": True}},
    "failing": {
        "dead_letter_queue": "copies",
        "replay_rules": [{"name": "again", "filter": {}, "delay": "PT1M", "max_replays": 1}],
    },
    "pool-a": {},
    "pool-b": {},
}
POOL: dict[str, Any] = {"queues": ["pool-a", "pool-b"], "concurrency": 6, "strategy": "round-robin"}
KEY_LIMIT = 3
# Deleted, each in its way, and made anew by the next push.
ENDING = {
    "end-reject": {"strategy": "reject"},
    "end-discard": {"strategy": "discard"},
    "end-move": {"strategy": "move", "target_queue": "plain"},
    "end-drain": {"strategy": "drain"},
}
_PUSHED = (*QUEUES, *ENDING)
FETCHED = (*(name for name in _PUSHED if not name.startswith("pool-")), "copies")
# Jobs of this type may be deleted as dead letters, many at once.
PURGED = "purged.job"

# All kinds of requests.
KINDS = {
    *("push", "push a batch", "push a staged batch", "cancel", "look"),
    *("fetch", "ack", "nack", "heartbeat", "progress"),
    *("pause", "resume", "configure", "delete a queue"),
    *("list dead letters", "retry a dead letter", "delete a dead letter"),
    *("retry many dead letters", "delete many dead letters"),
}


class Place:
    """Where the server is; it has another address after each start."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.address = ""
        self.over = False

    def moved(self, address: str) -> None:
        with self._changed:
            self.address = address
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def after(self, address: str) -> None:
        """Wait until the server is elsewhere, or for a second: it may have been something else."""
        with self._changed:
            self._changed.wait_for(lambda: self.over or self.address != address, 1.0)


@dataclass(frozen=True)
class Handed:
    """One time that a job was handed out, on the clock of the clients in seconds."""

    job: str
    token: str
    asked_s: float
    told_s: float


@dataclass
class Told:
    """What all clients were told, and what they asked for without knowing how it ended."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    refused: dict[tuple[str, int], Any] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    stored: set[str] = field(default_factory=set)
    # The jobs of one request: all of them are there, or none.
    batches: list[list[str]] = field(default_factory=list)
    completed: Counter[str] = field(default_factory=Counter)
    cancelled: set[str] = field(default_factory=set)
    # Jobs of the type that may be deleted many at once.
    purgeable: set[str] = field(default_factory=set)
    # Dead letters that somebody asked to be deleted.
    deleted: set[str] = field(default_factory=set)
    handed: list[Handed] = field(default_factory=list)
    # When somebody asked for the end of an attempt, in any way, by job.
    ended: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    # What must never be: contents that are not those that were pushed.
    wrong: list[Any] = field(default_factory=list)

    def again_too_early(self) -> list[tuple[Handed, Handed]]:
        """Pairs of one job that was handed out twice under leases that lived at the same time."""
        by_job = defaultdict(list)
        for one in sorted(self.handed, key=lambda handed: handed.told_s):
            by_job[one.job].append(one)
        return [
            (first, second)
            for times in by_job.values()
            for first, second in itertools.pairwise(times)
            # A lease begins after it was asked for, and the next one before its answer came.
            if second.told_s < first.asked_s + LEASE_S
            and not any(first.told_s <= at < second.told_s for at in self.ended[first.job])
        ]


class Client(threading.Thread):
    """Does whatever comes to its mind, one request after the other, until all is over."""

    def __init__(self, number: int, place: Place, told: Told) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self._place, self._told = place, told
        self._chance = random.Random(number)
        self._worker = f"worker-{number}"
        self._pooled = f"pooled-{number}"
        self._held: list[tuple[str, str, str]] = []
        self._known: list[str] = []
        self._connection: http.client.HTTPConnection | None = None
        self._at = ""
        self.failed: BaseException | None = None
        acts: list[tuple[int, Callable[[], None]]] = [
            (14, self._push),
            (3, self._push_batch),
            (1, self._push_staged),
            (14, self._fetch),
            (4, self._fetch_pooled),
            (24, self._ack),
            (6, self._nack),
            (3, self._beat),
            (2, self._progress),
            (2, self._cancel),
            (2, self._pause),
            (2, self._configure),
            (1, self._delete_queue),
            (4, self._dead_letter),
            (1, self._many_dead_letters),
            (2, self._look),
        ]
        self._acts = [act for weight, act in acts for _ in range(weight)]

    def run(self) -> None:
        try:
            while not self._place.over:
                # Who holds much works it off.
                self._chance.choice(
                    (self._ack, self._nack) if len(self._held) > _HELD else self._acts
                )()
        except BaseException as error:  # noqa: BLE001 - the test tells it
            self.failed = error
        finally:
            self._close()

    # --- requests ---------------------------------------------------------------------------------

    def _ask(
        self, what: str, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int | None, Any]:
        """Status and answer of a request; no status when nobody knows what became of it."""
        text = None if body is None else json.dumps(body)
        try:
            if self._connection is None:
                self._at = self._place.address
                self._connection = http.client.HTTPConnection(self._at, timeout=30)
            kind = {"Content-Type": "application/json"}
            self._connection.request(method, f"/ojs/v1/{path}", text, {**kind, **headers})
            answer = self._connection.getresponse()
            status, read = answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self._close()
            self._told.unknown[what] += 1
            self._place.after(self._at)
            return None, None
        found = json.loads(read) if read else {}
        self._told.answers[what, status] += 1
        if status >= 400:
            self._told.refused[what, status] = found
        # Such an answer says as little about what was done.
        return (None if status in (503, 504) else status), found

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- pushes -----------------------------------------------------------------------------------

    def _job(self, queue: str) -> dict[str, Any]:
        size = self._chance.choice(_SIZES)
        options: dict[str, Any] = {
            "queue": queue,
            "priority": self._chance.choice((-1, 0, 0, 5)),
            # Also for who gets a job back after its lease has run out.
            "visibility_timeout_ms": round(LEASE_S * 1_000),
            "retry": {"max_attempts": self._chance.choice((1, 2, 4)), "initial_interval": "PT0.2S"},
        }
        match self._chance.randrange(12):
            case 0:
                options["delay_until"] = "+PT1S"
            case 1:
                options["rate_limit"] = {"key": "shared", "concurrency": KEY_LIMIT}
            case 2 | 3:
                policies = ("reject", "ignore", "replace", "replace_except_schedule")
                options["unique"] = {
                    "key": f"unique-{self._chance.randrange(8)}",
                    "on_conflict": self._chance.choice(policies),
                }
        return {
            "type": self._chance.choice(("a.job", "b.job", PURGED)),
            # What was pushed can be seen from what is handed out.
            "args": [size, _TEXT[:size]],
            "meta": {"tenant_id": self._chance.choice("abc")},
            "options": options,
        }

    def _jobs(self, count: int, queue: str) -> list[dict[str, Any]]:
        jobs = [self._job(queue) for _ in range(count)]
        for job in jobs:
            # Among so many some would have one key, and the batch be refused.
            job["options"].pop("unique", None)
            if job["args"][0] > 3_000:
                job["args"] = [0, ""]
        return jobs

    def _push(self) -> None:
        job = self._job(self._chance.choice(_PUSHED))
        chosen = self._chance.random() < 0.5
        if chosen:
            job["id"] = _uuid7(self._chance)
        waits = self._chance.choice(("0.2", "1"))
        for _ in range(3):
            status, answer = self._ask("push", "POST", "jobs", job, **{"OJS-Block-Timeout": waits})
            if status in (200, 201):
                self._stored([answer["job"]])
            elif chosen and status == 409 and _existing(answer) == job["id"]:
                # The first time went through.
                self._stored([job])
            if status is not None or not chosen:
                return

    def _push_batch(self) -> None:
        queue = self._chance.choice(_PUSHED)
        self._push_jobs("push a batch", self._jobs(self._chance.randint(2, 8), queue))

    def _push_staged(self) -> None:
        # Where few are wanted: every job is to be worked off.
        if self._chance.random() < 0.3:
            self._push_jobs("push a staged batch", self._jobs(_STAGED, "plain"))

    def _push_jobs(self, what: str, jobs: list[dict[str, Any]]) -> None:
        chosen = self._chance.random() < 0.5
        if chosen:
            for job in jobs:
                job["id"] = _uuid7(self._chance)
            self._batch(jobs)
        for _ in range(3):
            status, answer = self._ask(what, "POST", "jobs/batch", {"jobs": jobs})
            if status == 201:
                self._stored(answer["jobs"])
                if not chosen:
                    self._batch(answer["jobs"])
            if status is not None or not chosen:
                return

    def _stored(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        ids = [job["id"] for job in jobs]
        self._told.stored.update(ids)
        self._told.purgeable.update(job["id"] for job in jobs if job["type"] == PURGED)
        self._known = [*self._known, *ids][-20:]

    def _batch(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        self._told.purgeable.update(job["id"] for job in jobs if job["type"] == PURGED)
        self._told.batches.append([job["id"] for job in jobs])

    # --- workers ----------------------------------------------------------------------------------

    def _fetch(self) -> None:
        queues = self._chance.sample(FETCHED, self._chance.randint(1, 4))
        self._take(self._worker, {"queues": queues})

    def _fetch_pooled(self) -> None:
        self._take(self._pooled, {"pool": "general"})

    def _take(self, worker: str, body: dict[str, Any]) -> None:
        body |= {
            "worker_id": worker,
            "count": self._chance.randint(1, 5),
            "visibility_timeout_ms": round(LEASE_S * 1_000),
        }
        asked_s = time.monotonic()
        status, answer = self._ask("fetch", "POST", "workers/fetch", body)
        if status != 200:
            return
        for job in answer["jobs"]:
            size, text = job["args"]
            if text != _TEXT[:size]:
                self._told.wrong.append(job)
            handed = Handed(job["id"], job["lease_token"], asked_s, time.monotonic())
            self._told.handed.append(handed)
            self._held.append((job["id"], job["lease_token"], worker))

    def _let_go(self) -> tuple[str, str, str] | None:
        if not self._held:
            return None
        return self._held.pop(self._chance.randrange(len(self._held)))

    def _end(self, what: str, **more: Any) -> None:
        if (held := self._let_go()) is None:
            return
        job, token, _ = held
        self._told.ended[job].append(time.monotonic())
        # The token says enough: with the worker's id, the same ack twice has the same answer twice.
        body = {"job_id": job, "lease_token": token, **more}
        status, _ = self._ask(what, "POST", f"workers/{what}", body)
        if what == "ack" and status == 200:
            self._told.completed[job] += 1

    def _ack(self) -> None:
        result = self._chance.choice((None, {"done": True}, "r" * 2_000))
        self._end("ack", **({} if result is None else {"result": result}))

    def _nack(self) -> None:
        if self._chance.random() < 0.2:
            self._end("nack", requeue=True)
        else:
            code = self._chance.choice(("failed", "failed", "DEAD_LETTER"))
            self._end("nack", error={"code": code, "type": "Failed", "message": "no"})

    def _beat(self) -> None:
        held = [job for job, _, worker in self._held if worker == self._worker]
        lease_ms = round(LEASE_S * 1_000)
        body = {
            "worker_id": self._worker,
            "active_jobs": held,
            "visibility_timeout_ms": lease_ms,
        }
        self._ask("heartbeat", "POST", "workers/heartbeat", body)

    def _progress(self) -> None:
        if self._held:
            job, token, worker = self._chance.choice(self._held)
            body = {"job_id": job, "lease_token": token, "worker_id": worker, "percentage": 50}
            self._ask("progress", "POST", "workers/progress", body)

    # --- operators --------------------------------------------------------------------------------

    def _cancel(self) -> None:
        if not self._known:
            return
        job = self._chance.choice(self._known)
        self._told.ended[job].append(time.monotonic())
        status, _ = self._ask("cancel", "DELETE", f"jobs/{job}")
        if status == 200:
            self._told.cancelled.add(job)

    def _pause(self) -> None:
        queue = self._chance.choice([*QUEUES])
        self._ask("pause", "POST", f"queues/{queue}/pause")
        self._ask("resume", "POST", f"queues/{queue}/resume")

    def _configure(self) -> None:
        most = self._chance.randint(10, 20)
        queue, config = self._chance.choice(
            [
                ("reject", {"max_size": most + 10}),
                ("block", {"max_size": most}),
                ("drop", {"max_size": most}),
                ("limited", {"concurrency": self._chance.randint(3, 6)}),
                (
                    "rated",
                    {"rate_limit": {"limit": self._chance.randint(10, 20), "period": "PT1S"}},
                ),
                ("plain", {"retention": {"completed": "P2D"}}),
            ]
        )
        self._ask("configure", "PUT", f"queues/{queue}/config", config)

    def _delete_queue(self) -> None:
        queue = self._chance.choice([*ENDING])
        self._ask("delete a queue", "DELETE", f"queues/{queue}", ENDING[queue])

    def _dead_letter(self) -> None:
        status, answer = self._ask("list dead letters", "GET", "dead-letter?limit=10")
        if status != 200 or not answer["jobs"]:
            return
        job = self._chance.choice(answer["jobs"])["id"]
        if self._chance.random() < 0.5:
            self._told.ended[job].append(time.monotonic())
            self._ask("retry a dead letter", "POST", f"dead-letter/{job}/retry")
        else:
            self._told.deleted.add(job)
            self._ask("delete a dead letter", "DELETE", f"dead-letter/{job}")

    def _many_dead_letters(self) -> None:
        if self._chance.random() < 0.5:
            body = {"filter": {"type": "b.job"}, "confirm": True}
            self._ask("retry many dead letters", "POST", "dead-letter/retry", body)
        else:
            path = f"dead-letter?type={PURGED}&confirm=true"
            self._ask("delete many dead letters", "DELETE", path)

    def _look(self) -> None:
        path = self._chance.choice(
            ("queues", "admin/stats", "events?limit=5", "queues/limited", "rate-limits", "workers")
        )
        self._ask("look", "GET", path)


def _uuid7(chance: random.Random) -> str:
    made = (time.time_ns() // 1_000_000) << 80 | 7 << 76 | chance.getrandbits(76)
    # The variant.
    return str(uuid.UUID(int=made & ~(0xC << 60) | 8 << 60))


def _existing(answer: Any) -> Any:
    return answer["error"].get("details", {}).get("existing_job_id")
