"""Version 0.2.1 and this version on one table: each request goes to one of them at random.

The old version runs alone, then beside the new one, then the new one runs alone; and back. A
process of one of them is killed every now and then. At the end no job is lost, no job ran twice,
and the counters equal what the table holds.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from local import engines
from local.dynamodb import connect, connect_to_streams, create_table
from local.stream import Pump, TableStream
from ojs.clock import SystemClock
from ojs.domain.access import ANYBODY
from ojs.domain.realtime import Connection, Listener
from ojs.store.jobs import items
from ojs.store.realtime.connections import ConnectionStore
from ojs.store.realtime.listeners import ListenerStore
from ojs.store.table import keys, values
from ojs.store.table.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ojs.domain.job.job import Job

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = Path(__file__).parent / "data" / "0.2.1.tar.xz"
OLD, NEW = "0.2.1", "present"
# Times as fast as the machine's clock: a lease of 60 s ends after 3 s.
SPEED = 20
LEASE_MS = 60_000
CLIENTS = 6
# A stuck job is still there after so many seconds, 40 minutes by the processes' clock; a busy
# machine needs some of them.
FINISH_S = 120
RETRY = {"max_attempts": 1_000, "initial_interval": "PT1S", "max_interval": "PT2S"}
QUEUES = (
    "plain", "batched", "staged", "bulked", "bounded", "slots", "keyed", "retried", "unique",
    "flow", "durable",
)  # fmt: skip
# What version 0.2.1 doesn't have: jobs with steps, checkpoints, suspensions, signals, and children.
# Requests for it go to this version. Its jobs are claimed, promoted, and ended by both.
DURABLE = "durable"
FINAL = {"completed", "cancelled", "discarded"}


class Lost(Exception):
    """A request without a response: its effect is unknown."""


class Process:
    """One process of a version."""

    def __init__(self, code: Path, script: Path, arguments: list[str]) -> None:
        path = os.pathsep.join(str(code / each) for each in (".", "shared"))
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            cwd=code, env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.host = self.process.stdout.readline().strip().removeprefix("http://")
        assert self.host, "the process did not start"

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the body of the response. Raises Lost."""
        with contextlib.closing(http.client.HTTPConnection(self.host, timeout=30)) as client:
            try:
                sent = None if body is None else json.dumps(body)
                client.request(method, path, sent, {"Content-Type": "application/json"})
                answer = client.getresponse()
                return answer.status, json.loads(answer.read() or b"null")
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise Lost from error

    def kill(self) -> None:
        """SIGKILL: nothing is finished."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class World:
    """The table, its stream, and the processes."""

    def __init__(self, folder: Path, engine: engines.Engine, seed: int) -> None:
        self.random = random.Random(seed)
        self.start_ms = time.time_ns() // 1_000_000
        old = folder / "old"
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(old, filter="data")
        (folder / "payloads").mkdir()
        self.arguments = [engine.url, str(self.start_ms), str(SPEED), str(folder / "payloads")]
        self.code = {
            OLD: (old, old / "process.py"),
            NEW: (ROOT, Path(__file__).with_name("process.py")),
        }
        self.client = connect(engine.url)
        create_table(self.client, "ojs", SystemClock(), forget=lambda: None)
        self.pump = Pump(TableStream(connect_to_streams(engine.url), "ojs"), self.project)
        self.live: dict[str, Process] = {}

    def now_ms(self) -> int:
        """The time that all processes have."""
        return self.start_ms + (time.time_ns() // 1_000_000 - self.start_ms) * SPEED

    def start(self, version: str) -> None:
        self.live[version] = Process(*self.code[version], self.arguments)

    def stop(self, version: str) -> None:
        self.live.pop(version).kill()

    def any(self) -> Process:
        return self.random.choice(list(self.live.values()))

    def project(self, event: Any, _context: Any) -> Any:
        """The stream function, of one of the versions; of another process if one is killed."""
        while True:
            with contextlib.suppress(Lost):
                status, answer = self.any()("POST", "/test/stream", event)
                assert status == 200, answer
                return answer

    def sweep(self) -> None:
        with contextlib.suppress(Lost):
            status, answer = self.any()("POST", "/test/sweep", {})
            assert status == 200, answer


class Clients:
    """Producers and workers, and what they know of each job."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lock = threading.Lock()
        self.stored: set[str] = set()
        self.sent: set[str] = set()
        # Jobs of which a response says that they are completed.
        self.acked: set[str] = set()
        # Of each job with a known lease its end (ms), and its queue.
        self.leases: dict[str, tuple[int, str]] = {}
        self.workflows: list[str] = []
        # By job and step the outcome that a response says is stored. An unknown retry forgets it.
        self.steps: dict[str, dict[str, str]] = {}
        self.broken: list[str] = []
        self.counts: Counter[str] = Counter()

    def ask(
        self, method: str, path: str, body: Any = None, process: Process | None = None
    ) -> tuple[int, Any]:
        status, answer = (process or self.world.any())(method, f"/ojs/v1{path}", body)
        self.counts[f"{method} {path.split('/')[1]} {status}"] += 1
        if status == 504:
            raise Lost  # its effect is unknown
        if status >= 500 and status != 503:
            self.broken.append(f"{method} {path}: {status} {answer}")
        return status, answer

    def ask_new(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """As `ask`, of the version that has the operation. Raises Lost if it doesn't run."""
        process = self.world.live.get(NEW)
        if process is None:
            raise Lost
        return self.ask(method, path, body, process)

    def job(self, queue: str, **more: Any) -> dict[str, Any]:
        job = {
            "id": _uuid7(self.world.now_ms()), "type": "t", "args": [queue],
            "options": {"queue": queue, "retry": RETRY}, **more,
        }  # fmt: skip
        if job["id"] is None:
            del job["id"]  # the ID of a child is the server's
            return job
        with self.lock:
            self.sent.add(str(job["id"]))
        return job

    def push(self, dice: random.Random) -> None:
        """Enqueue in one of the ways there are."""
        way = dice.choice(QUEUES)
        with contextlib.suppress(Lost):
            if way in ("batched", "bulked"):
                jobs = [self.job(way) for _ in range(dice.choice((2, 5, 30)))]
                path = "/jobs/batch" if way == "batched" else "/jobs/bulk"
                status, answer = self.ask("POST", path, {"jobs": jobs})
                if status in (200, 201, 207):
                    self.note(answer, [job["id"] for job in jobs])
                return
            if way in ("staged", "flow"):
                (self.staged if way == "staged" else self.flow)(way, dice)
                return
            more: dict[str, Any] = {}
            if way == "keyed":
                more["rate_limit"] = {"key": "k", "concurrency": 1}
            elif way == "unique":
                more |= {"args": [dice.randrange(3)], "unique": {"keys": ["type", "args"]}}
            job = self.job(way, **more)
            status, answer = self.ask("POST", "/jobs", job)
            if status == 201:
                self.note(answer, [job["id"]])

    def staged(self, queue: str, _: random.Random) -> None:
        """Enqueue jobs with IDs of the server: the batch is committed by one delete."""
        job = {"type": "t", "args": [], "options": {"queue": queue, "retry": RETRY}}
        status, answer = self.ask("POST", "/jobs/batch", {"jobs": [job] * 7})
        if status == 201:
            self.note(answer, [each["id"] for each in answer["jobs"]])

    def flow(self, queue: str, dice: random.Random) -> None:
        """Create a workflow; in some, a group starts in a slice when the first step ends."""
        step = {"type": "t", "args": [], "options": {"queue": queue, "retry": RETRY}}
        large = [step, {"type": "group", "jobs": [step] * 105}]
        body = dice.choice(
            (
                {"type": "chain", "steps": large if dice.random() < 0.1 else [step] * 3},
                {"type": "group", "jobs": [step] * 3},
            )
        )
        status, answer = self.ask("POST", "/workflows", {**body, "name": "f"})
        assert status in (201, 503), answer
        if status == 201:
            self.workflows.append(answer["id"])

    def note(self, answer: Any, ids: list[str]) -> None:
        """Remember those of these jobs that the response says are stored."""
        text = answer.get("jobs") or answer.get("results") or [answer]
        stored = {(each.get("job") or each).get("id") for each in text if "error" not in each}
        with self.lock:
            self.stored |= stored & set(ids)

    def work(self, dice: random.Random) -> None:
        """Fetch, and end what was fetched in one of the ways there are."""
        queues = dice.sample([*QUEUES, "cron"], 4)
        if NEW not in self.world.live:
            queues = [queue for queue in queues if queue != DURABLE] or ["plain"]
        asked_ms = self.world.now_ms()
        body = {
            "queues": queues, "count": dice.choice((1, 3, 10)),
            "worker_id": f"w{dice.randrange(CLIENTS)}", "visibility_timeout_ms": LEASE_MS,
        }  # fmt: skip
        try:
            status, answer = self.ask("POST", "/workers/fetch", body)
        except Lost:
            return
        if status != 200:
            return
        self.leased(answer["jobs"], asked_ms)
        for job in answer["jobs"]:
            with contextlib.suppress(Lost):
                if job["queue"] != DURABLE or self.run_steps(job, str(body["worker_id"]), dice):
                    self.end(job, str(body["worker_id"]), dice)

    def run_steps(self, job: dict[str, Any], worker: str, dice: random.Random) -> bool:
        """Run what is left of the code of a durable job, and return whether it is done.

        Each step runs once: its outcome is the first one that was stored. Raises Lost.
        """
        path, token = f"/jobs/{job['id']}", job["lease_token"]
        status, answer = self.ask_new("GET", f"{path}/steps")
        if status != 200:
            return False
        found = {each["name"]: each.get("result") for each in answer["steps"]}
        known = self.steps.setdefault(job["id"], {})
        for name, value in known.items():
            if found.get(name) != value:
                self.broken.append(f"step {name} of {job['id']} is {found.get(name)}, not {value}")
        held = {"job_id": job["id"], "worker_id": worker, "lease_token": token}
        for name, waits in (
            ("a", [{"kind": "sleep", "name": "nap", "for": "PT10S"}]),
            ("b", [{"kind": "signal", "name": "go", "for": "PT30S"}]),
            ("c", [{"kind": "job", "name": "kid", "for": "PT60S"}]),
        ):
            if name in found:
                continue
            step = {"name": name, "save": uuid.uuid4().hex, "result": uuid.uuid4().hex}
            body = {"lease_token": token, "version": 1, "steps": [step]}
            status, answer = self.ask_new("POST", f"{path}/steps", body)
            if status != 200:
                return False
            known[name] = answer["steps"][0].get("result", step["result"])
            self.ask_new("PUT", f"{path}/checkpoint", {"state": known, "lease_token": token})
            if name == "b" and dice.random() < 0.2:
                self.clear(held, known)
                return False
            if name == "b":
                self.ask_new("POST", f"{path}/signals/go", {"data": 1})
            if name == "c":
                parent = {"job_id": job["id"], "name": "kid", "lease_token": token}
                self.ask_new("POST", "/jobs", {**self.job("plain", id=None), "parent": parent})
            with self.lock:
                self.leases.pop(job["id"], None)
            self.ask_new("POST", "/workers/nack", {**held, "suspend": {"waits": waits}})
            return False
        return True

    def clear(self, held: dict[str, Any], known: dict[str, str]) -> None:
        """Fail for good, and retry without the stored steps: a new epoch. Raises Lost."""
        with self.lock:
            self.leases.pop(held["job_id"], None)
        known.clear()
        error = {"type": "Boom", "message": "no", "retryable": False}
        self.ask("POST", "/workers/nack", {**held, "error": error})
        path = f"/dead-letter/{held['job_id']}/retry"
        self.ask_new("POST", path, {"steps": "clear", "checkpoint": "keep"})

    def leased(self, jobs: list[dict[str, Any]], asked_ms: int) -> None:
        """Check that no lease of these jobs is still valid."""
        with self.lock:
            for job in jobs:
                job_id, queue = job["id"], job["queue"]
                end_ms, _ = self.leases.get(job_id, (0, ""))
                # The earlier lease ended at this time or later: by the table's clock it is valid.
                if self.world.now_ms() < end_ms:
                    self.broken.append(f"{job_id} of {queue} is leased twice")
                if job_id in self.acked:
                    self.broken.append(f"{job_id} of {queue} is handed out after its ack")
                self.leases[job_id] = (asked_ms + LEASE_MS, queue)
            now_ms = self.world.now_ms()
            for queue, most in (("slots", 2), ("keyed", 1)):
                held = [1 for end_ms, name in self.leases.values() if name == queue]
                valid = [1 for end, name in self.leases.values() if name == queue and end > now_ms]
                if len(valid) > most:
                    self.broken.append(f"{queue} has {len(valid)} of {len(held)} leases")

    def end(self, job: dict[str, Any], worker: str, dice: random.Random) -> None:
        """Ack, nack, renew or forget one job. Raises Lost."""
        act = dice.random()
        lease = {"job_id": job["id"], "worker_id": worker, "lease_token": job["lease_token"]}
        if act < 0.05:
            return  # the worker died
        if act < 0.15:
            beat = {"worker_id": worker, "active_jobs": [job["id"]]}
            self.ask("POST", "/workers/heartbeat", beat)
        # From here on the job may be released at any time.
        with self.lock:
            self.leases.pop(job["id"], None)
        if act < 0.25:
            error = {"type": "Boom", "message": "no", "retryable": True}
            self.ask("POST", "/workers/nack", {**lease, "error": error})
            return
        status, _ = self.ask("POST", "/workers/ack", {**lease, "result": 1})
        if status == 200:
            with self.lock:
                self.acked.add(job["id"])

    def run(self, seed: int, until_s: float, *, pushing: bool) -> None:
        """Be a producer or a worker, at random, until a time (s)."""
        dice = random.Random(seed)
        while time.monotonic() < until_s:
            if pushing and dice.random() < 0.4:
                self.push(dice)
            else:
                self.work(dice)


def _uuid7(now_ms: int) -> str:
    value = (now_ms << 80) | (7 << 76) | (2 << 62)
    mask = (0xFFF << 64) | ((1 << 62) - 1)
    return str(uuid.UUID(int=value | (uuid.uuid4().int & mask)))


class Run:
    """Traffic in phases, and what must hold at the end."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.seed = world, seed
        self.clients = Clients(world)
        self.done = threading.Event()

    def prepare(self) -> None:
        """Configure the queues and the cron job."""
        self.world.start(OLD)
        for queue, config in (("bounded", {"max_size": 5}), ("slots", {"concurrency": 2})):
            status, answer = self.clients.ask("PUT", f"/queues/{queue}/config", config)
            assert status < 300, answer
        until_ms = self.world.now_ms() + 86_400_000
        self.listener = Listener("c", "w0", until_ms, "owner")
        self.connection = Connection("c", ANYBODY, until_ms, "g", ("jobs:x",))
        table = Table(self.world.client, "ojs")
        ListenerStore(table).add("g", self.listener)
        ConnectionStore(table).add(self.connection)
        ConnectionStore(table).add_channel("c", "jobs:x")
        cron = {
            "name": "c", "cron": "* * * * *", "overlap_policy": "allow",
            "job_template": {"type": "t", "args": [], "options": {"queue": "cron"}},
        }  # fmt: skip
        status, answer = self.clients.ask("POST", "/crons", cron)
        assert status == 201, answer

    def beside(self) -> None:
        """Sweeps and the stream, until the run is over."""
        while not self.done.wait(0.3):
            self.world.sweep()
            self.world.pump.try_to_drain()

    def phase(self, seconds: float, *, kills: int, pushing: bool = True) -> None:
        """Traffic for so long; that often a process is killed, and started again."""
        self.seed += CLIENTS
        began_s = time.monotonic()
        until_s = began_s + seconds
        with ThreadPoolExecutor(CLIENTS) as pool:
            running = [
                pool.submit(self.clients.run, self.seed + each, until_s, pushing=pushing)
                for each in range(CLIENTS)
            ]
            for kill in range(kills):
                at_s = began_s + seconds * (kill + 1) / (kills + 1)
                self.done.wait(max(0, at_s - time.monotonic()))
                version = self.world.random.choice(list(self.world.live))
                self.world.live[version].kill()
                self.world.start(version)
            for each in running:
                each.result()

    def finish(self) -> None:
        """Work until nothing is left.

        A process of 0.2.1 can ignore a due job that another process promotes while it fetches.
        """
        self.world.start(NEW)
        status, answer = self.world.any()("DELETE", "/ojs/v1/crons/c")
        assert status < 300, answer
        until_s = time.monotonic() + FINISH_S
        while (self.open() or self.staged()) and time.monotonic() < until_s:
            self.phase(1.0, kills=0, pushing=False)
        self.done.set()

    def jobs(self) -> dict[str, Job]:
        """Every job that the table holds; those of a batch once it is committed."""
        records, staged = [], set()
        pages = self.world.client.get_paginator("scan")
        for page in pages.paginate(TableName="ojs", ConsistentRead=True):
            for item in map(values.unpack, page["Items"]):
                if item["sk"] != keys.RECORD:
                    continue
                pk = str(item["pk"])
                if pk.startswith(keys.batch("")):
                    staged.add(pk.removeprefix(keys.batch("")))
                elif pk.startswith(keys.job("")):
                    records.append(items.job_of(item))
        return {job.id: job for job in records if job.batch not in staged}

    def staged(self) -> list[str]:
        """The batches of killed requests that no sweep has undone."""
        pages = self.world.client.get_paginator("scan").paginate(
            TableName="ojs", ConsistentRead=True,
            FilterExpression="begins_with(pk, :batch) AND #state = :staging",
            ExpressionAttributeNames={"#state": "state"},
            ExpressionAttributeValues=values.pack({":batch": "B|", ":staging": "staging"}),
        )  # fmt: skip
        return [item["pk"]["S"] for page in pages for item in page["Items"]]

    def open(self) -> list[Job]:
        """The jobs that are not in a final state."""
        return [job for job in self.jobs().values() if job.state.value not in FINAL]

    def check(self) -> None:
        """Nothing lost, nothing twice, counters right."""
        self.world.pump.drain()
        clients, jobs = self.clients, self.jobs()
        assert not clients.broken, clients.broken[:10]
        lost = clients.stored - set(jobs)
        assert not lost, f"{len(lost)} of {len(clients.stored)} jobs are lost"
        assert not self.staged()
        unfinished = self.open()
        assert not unfinished, f"{len(unfinished)} of {len(jobs)}, among them {unfinished[0]}"
        undone = {each for each in clients.acked if jobs[each].state.value != "completed"}
        assert not undone, f"{len(undone)} acknowledged jobs are not completed"
        for workflow in clients.workflows:
            _, answer = clients.ask("GET", f"/workflows/{workflow}")
            assert answer["state"] == "completed", answer
        for queue in (*QUEUES, "cron"):
            states = Counter(job.state.value for job in jobs.values() if job.queue == queue)
            _, stats = clients.ask("GET", f"/queues/{queue}/stats")
            counted = {state: stats[state] for state in ("available", "active", *FINAL)}
            assert counted == {state: states[state] for state in counted}, queue
        assert clients.counts["POST workers 200"] > 50, clients.counts
        assert len(clients.acked) > 50
        # It has run code, and what no operation of the old version knows is as it was.
        assert any(len(each) > 1 for each in clients.steps.values()), clients.counts
        now_ms = self.world.now_ms()
        table = Table(self.world.client, "ojs")
        assert ListenerStore(table).list_first("g", now_ms=now_ms) == [self.listener]
        assert ConnectionStore(table).get("c", now_ms=now_ms) == self.connection
        told = len(jobs), len(clients.acked), len(clients.steps), dict(clients.counts)
        print("jobs, acks, jobs with steps, answers:", *told)  # noqa: T201


@pytest.fixture
def world(tmp_path: Path, dynoxide: Any, request: pytest.FixtureRequest) -> Iterator[World]:
    engine = engines.start("dynoxide", tmp_path)
    world = World(tmp_path, engine, seed=33)
    try:
        yield world
    finally:
        for version in list(world.live):
            world.stop(version)
        engine.stop()


def mixed(world: World, seconds: float, kills: int) -> None:
    """The old version, both, the new one; both, the old one."""
    run = Run(world, seed=int(seconds))
    run.prepare()
    beside = threading.Thread(target=run.beside, daemon=True)
    beside.start()
    try:
        run.phase(seconds * 0.1, kills=0)
        world.start(NEW)
        run.phase(seconds * 0.3, kills=kills)
        world.stop(OLD)
        run.phase(seconds * 0.15, kills=0)
        world.start(OLD)
        run.phase(seconds * 0.3, kills=kills)
        world.stop(NEW)
        run.phase(seconds * 0.15, kills=0)
        run.finish()
    finally:
        run.done.set()
        beside.join()
    run.check()


def test_two_versions_share_a_table_for_a_few_seconds(world: World) -> None:
    mixed(world, 4, kills=1)


@pytest.mark.whole
def test_two_versions_share_a_table_for_a_minute(world: World) -> None:
    mixed(world, 50, kills=4)
