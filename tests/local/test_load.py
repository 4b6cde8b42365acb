"""Clients that do everything at once to a server that is killed again and again."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from local import engines
from local.dynamodb import connect
from local.folder import DataFolder
from local.http_server import listen
from local.server import SCHEDULED, TABLE_NAME, LocalServer
from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.job.states import TERMINAL, State
from ojs.services.operations.tidy import Tidy
from ojs.store.jobs.orphans import Orphans
from ojs.store.table import keys, values
from tests.local.conftest import RunningServer
from tests.local.load import FETCHED, KEY_LIMIT, KINDS, POOL, QUEUES, Client, Place, Told
from tests.simulation import quiet
from tests.simulation.invariants import BUCKET, found_by
from tests.simulation.recount import levels
from tests.store.streams import is_event_page, unpacked, whole

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

CLIENTS = 32
KILLS = 3
# Requests that are answered before the server is killed again, and how long that may take.
_ANSWERS = 300
_LONGEST_S = 180.0
_ARRIVES_MS = 4_000
_MINUTE_MS = 61_000
# What was left of a batch is given up after five minutes.
_GIVEN_UP_MS = 6 * 60_000

Item = dict[str, Any]
Found = dict[tuple[str, str], Item]


# --- the recount ----------------------------------------------------------------------------------


def everything(data: Path) -> Found:
    """All items of a folder that no server has."""
    folder = DataFolder(data)
    engine = engines.start("dynoxide", folder.path, keep_open=[folder.lock])
    try:
        return scanned(engine.url)
    finally:
        engine.stop()
        folder.close()


def scanned(url: str) -> Found:
    pages = connect(url).get_paginator("scan").paginate(TableName=TABLE_NAME, ConsistentRead=True)
    return {
        (str(item["pk"]), str(item["sk"])): dict(item)
        for page in pages
        for item in map(values.unpack, page["Items"])
    }


def job_records(found: Mapping[tuple[str, str], Item]) -> dict[str, Item]:
    """The job records by id; jobs of batches that are not committed do not exist."""
    return {
        keys.job_id(pk): item
        for (pk, sk), item in found.items()
        if pk.startswith(keys.job(""))
        and sk == keys.RECORD
        and ("batch" not in item or (keys.batch(str(item["batch"])), keys.RECORD) not in found)
    }


def recount(found: Found, told: Told) -> None:
    """What must hold at any moment, whoever was killed in the midst of what."""
    jobs = job_records(found)
    there = jobs.keys() | told.deleted | told.purgeable
    assert told.stored - there == set()
    for batch in told.batches:
        assert not jobs.keys() & batch or set(batch) <= there, batch
    states = {job: State(record["state"]) for job, record in jobs.items()}
    assert {job: states[job] for job in told.completed if states[job] != "completed"} == {}
    assert {job: states[job] for job in told.cancelled if states[job] != "cancelled"} == {}
    assert [job for job, times in told.completed.items() if times > 1] == []
    assert told.again_too_early() == []
    assert told.wrong == []
    live = {job: record for job, record in jobs.items() if states[job] not in TERMINAL}
    assert [job for job, record in live.items() if not found_by(record)] == []
    unique = Counter(record["unique"] for record in live.values() if "unique" in record)
    assert [key for key, holders in unique.items() if holders > 1] == []
    within_limits(live.values())


def within_limits(live: Any) -> None:
    """No queue holds more than its bound, and none runs more than its limit, nor pool nor key."""
    depth = Counter(record["queue"] for record in live)
    active = [record for record in live if record["state"] == "active"]
    runs = Counter(record["queue"] for record in active)
    for queue, config in QUEUES.items():
        assert depth[queue] <= config.get("max_size", depth[queue]), queue
        assert runs[queue] <= config.get("concurrency", runs[queue]), queue
    assert sum(record.get("pool") == "general" for record in active) <= POOL["concurrency"]
    assert sum("limit" in record for record in active) <= KEY_LIMIT


# --- the end: by a clock that is moved by hand ----------------------------------------------------


class Healing:
    """A server in this process after everything, and time that passes as it says."""

    def __init__(self, server: LocalServer, clock: ManualClock) -> None:
        self._server, self._clock = server, clock

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        client = http.client.HTTPConnection(self._server.url.removeprefix("http://"), timeout=60)
        with contextlib.closing(client):
            text = None if body is None else json.dumps(body)
            kind = {"Content-Type": "application/json"}
            client.request(method, f"/ojs/v1/{path}", text, kind)
            answer = client.getresponse()
            read = answer.read()
            return answer.status, json.loads(read) if read else {}

    def found(self) -> Found:
        return scanned(self._server.engine.url)

    def pass_time(self, ms: int) -> None:
        """Time passes, and everything runs that runs each minute."""
        self._clock.advance(ms)
        self._server._catch_up()
        self._server._sweep(dict.fromkeys(SCHEDULED - {"metrics"}, 10_000))
        self._server._catch_up()

    def queues(self) -> list[Any]:
        found: list[Any] = self.ask("GET", "queues?limit=100")[1]["queues"]
        return found

    def fetch(self) -> list[Any]:
        """What workers are given, of all queues."""
        fetches: list[dict[str, Any]] = [
            {"queues": [*FETCHED], "worker_id": "last"},
            {"pool": "general", "worker_id": "last-of-pool"},
        ]
        given = []
        for body in fetches:
            status, answer = self.ask("POST", "workers/fetch", {**body, "count": 100})
            assert status == 200, answer
            given += answer["jobs"]
        return given

    def work_off(self) -> None:
        """Do everything that there is to do."""
        for _ in range(60):
            while jobs := self.fetch():
                with ThreadPoolExecutor(8) as pool:
                    assert set(pool.map(self.ack, jobs)) == {200}
                # By their rate.
                self._clock.advance(1_000)
            left = [job for job in job_records(self.found()).values() if is_live(job)]
            if not left:
                return
            self.pass_time(5 * _MINUTE_MS)
        raise AssertionError(f"stuck: {left}")

    def ack(self, job: Mapping[str, Any]) -> int:
        body = {"job_id": job["id"], "lease_token": job["lease_token"]}
        return self.ask("POST", "workers/ack", body)[0]

    def push(self, queue: str, **options: Any) -> int:
        body = {"type": "t", "args": [0, ""], "options": {"queue": queue, **options}}
        return self.ask("POST", "jobs", body)[0]


def is_live(record: Item) -> bool:
    return State(record["state"]) not in TERMINAL


def limits_are_whole(healed: Healing) -> None:
    """Nothing that nobody has is taken: every queue takes as many as it may, and runs as many."""
    for queue, bound in (("reject", 30), ("block", 20), ("drop", 20)):
        config = {"max_size": bound, "overflow_policy": "reject"}
        assert healed.ask("PUT", f"queues/{queue}/config", config)[0] == 200
        statuses = [healed.push(queue) for _ in range(bound + 2)]
        assert statuses == [201] * bound + [429] * 2, queue
    healed.work_off()
    config = {"concurrency": QUEUES["limited"]["concurrency"]}
    assert healed.ask("PUT", "queues/limited/config", config)[0] == 200
    for _ in range(8):
        assert healed.push("limited") == healed.push("pool-a") == 201
        assert healed.push("plain", rate_limit={"key": "shared", "concurrency": KEY_LIMIT}) == 201
    # Lines that were empty a moment ago are left alone for less than that, where there are many.
    healed.pass_time(_ARRIVES_MS)
    given = Counter(job["queue"] for job in healed.fetch())
    assert given == {"limited": 6, "pool-a": POOL["concurrency"], "plain": KEY_LIMIT}


def what_follows_is_exact(found: Found) -> None:
    """Statistics and events, once the stream has been read."""
    # With what the shards of the stream have counted.
    found = whole(found)
    quiet.counters_are_exact(found, levels(found.values()))
    quiet.dead_letters_are_exact(found)
    pages = [page for key, page in found.items() if is_event_page(key)]
    events = [event for page in pages for event in unpacked(page)]
    assert len({event["id"] for event in events}) == len(events)
    done = Counter(event["subject"] for event in events if event["type"] == "job.completed")
    jobs = job_records(found)
    assert done == {job: 1 for job, record in jobs.items() if record["state"] == "completed"}


def nothing_is_left_over(healed: Healing, data: Path) -> None:
    """No batch is half done, and after a tidy nothing is there that no job names."""
    Tidy(Orphans(runtime.current().table), lambda _: None).run()
    objects = [unquote(path.name) for path in (data / "payloads").iterdir()]
    # The folder has no tidy: see docs/local.md.
    quiet.no_orphans(healed.found(), objects, {(BUCKET, name) for name in objects})


@contextlib.contextmanager
def healing(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Healing]:
    clock = ManualClock(time.time_ns() // 1_000_000)
    monkeypatch.setattr("local.server.SystemClock", lambda: clock)
    monkeypatch.setattr(runtime, "_current", None)
    folder = DataFolder(data)
    server = LocalServer(listen("127.0.0.1", 0), folder, engine="dynoxide", sweep_interval_s=600)
    try:
        yield Healing(server, clock)
    finally:
        server.stop()
        folder.close()


# --- the run --------------------------------------------------------------------------------------


def eventually(holds: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def at_least(counts: Counter[tuple[str, int]] | Counter[str], total: int) -> bool:
    return counts.total() >= total


def prepare(server: RunningServer) -> None:
    for queue, config in QUEUES.items():
        status, answer = server.call("PUT", f"/ojs/v1/queues/{queue}/config", config)
        assert status == 200, answer
    assert server.call("PUT", "/ojs/v1/admin/pools/general", POOL)[0] in (200, 201)


def clients_and_kills(folder: Path, told: Told) -> None:
    """All clients at once, and a server on `folder` / "data" that is killed and started again."""
    data, place = folder / "data", Place()
    clients = [Client(number, place, told) for number in range(CLIENTS)]
    with contextlib.ExitStack() as undo:
        undo.callback(place.end)
        for start in range(KILLS + 1):
            server = RunningServer(data, folder / f"printed-{start}", "--sweep-interval", "0.5")
            undo.callback(server.process.kill)
            if start == 0:
                prepare(server)
            place.moved(server.address)
            if start == 0:
                for client in clients:
                    client.start()
            enough, unknown = told.answers.total() + _ANSWERS, told.unknown.total()
            assert eventually(partial(at_least, told.answers, enough), _LONGEST_S)
            if start < KILLS:
                assert server.end(signal.SIGKILL) == -signal.SIGKILL
                # It was in the midst of requests.
                assert eventually(partial(at_least, told.unknown, unknown + 1), 10)
                recount(everything(data), told)
            assert "Traceback" not in server.printed
        place.end()
        for client in clients:
            client.join(60)
            assert client.failed is None
        assert server.end() == 0


# How requests may be answered. Of each kind some must have done what they ask for.
STATUSES = {200, 201, 202, 404, 409, 429, 503}
DONE = {200, 201, 202}


@pytest.mark.usefixtures("dynoxide")
def test_nothing_is_lost_while_the_server_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, told = tmp_path / "data", Told()
    clients_and_kills(tmp_path, told)
    found = everything(data)
    recount(found, told)
    # All that was answered has been projected, and a server that stops has finished the stream.
    what_follows_is_exact(found)
    assert [one for one in told.answers if one[1] not in STATUSES] == [], told.refused
    assert {what for what, status in told.answers if status in DONE} == KINDS
    with healing(data, monkeypatch) as healed:
        for queue in QUEUES:
            assert healed.ask("POST", f"queues/{queue}/resume")[0] == 200
        healed.ask("PUT", "queues/failing/config", {"replay_rules": None})
        healed.pass_time(_GIVEN_UP_MS)
        healed.work_off()
        # Counters are repaired when they have been at rest for two minutes.
        for _ in range(4):
            healed.pass_time(_MINUTE_MS)
        states = {queue["name"]: queue["state"] for queue in healed.queues()}
        assert set(states.values()) == {"active"}, states
        found = healed.found()
        recount(found, told)
        what_follows_is_exact(found)
        limits_are_whole(healed)
        healed.work_off()
        nothing_is_left_over(healed, data)
