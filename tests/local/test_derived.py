"""What is derived from jobs, over the local server: at once, and the same after a restart."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from botocore.exceptions import ClientError

from local import engines
from local.blobs import FolderBlobs
from local.dynamodb import connect, create_table
from local.folder import DataFolder
from local.http_server import listen
from local.server import TABLE_NAME, LocalServer
from ojs import runtime
from ojs.clock import SystemClock
from ojs.domain.job import envelope
from ojs.settings import Settings
from ojs.store.jobs import staged_batches
from ojs.store.table.schema import create_table_arguments

pytestmark = pytest.mark.e2e

# MiniStack takes longest to start: `make test` has it once.
ENGINES = ("dynoxide", pytest.param("ministack", marks=pytest.mark.exhaustive))


class Server:
    """A local server in this process, and how to talk to it."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.local = LocalServer(
            listen("127.0.0.1", 0), DataFolder(folder), engine=engine, sweep_interval_s=30
        )

    def stop(self) -> None:
        self.local.stop()
        self.local.folder.close()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        client = http.client.HTTPConnection(self.local.url.removeprefix("http://"), timeout=120)
        with contextlib.closing(client):
            sent = None if body is None else json.dumps(body)
            client.request(method, f"/ojs/v1/{path}", sent, {"Content-Type": "application/json"})
            answer = client.getresponse()
            assert answer.status < 300, answer.read()
            return json.loads(answer.read())

    def push(self, count: int = 1, **job: Any) -> list[str]:
        jobs = [{"type": "t", "args": [], **job}] * count
        return [made["id"] for made in self.call("POST", "jobs/batch", {"jobs": jobs})["jobs"]]

    def work(self, queue: str = "default", count: int = 1) -> None:
        """Fetch and acknowledge."""
        request = {"queues": [queue], "count": count, "worker_id": "w"}
        for job in self.call("POST", "workers/fetch", request)["jobs"]:
            self.call("POST", "workers/ack", {"job_id": job["id"], "worker_id": "w"})

    def stats(self, queue: str = "default") -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"queues/{queue}/stats")["stats"]
        return found

    def events(self) -> Counter[str]:
        """How many of each type are listed."""
        listed = self.call("GET", "events?limit=1000")["events"]
        assert len({event["id"] for event in listed}) == len(listed)
        return Counter(event["type"] for event in listed)


@pytest.fixture
def running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[..., contextlib.AbstractContextManager[Server]]:
    """Starts servers on one folder, one after the other."""
    monkeypatch.setattr(runtime, "_current", None)
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")

    @contextlib.contextmanager
    def start(engine: str = "dynoxide") -> Iterator[Server]:
        if engine == "dynoxide":
            request.getfixturevalue("dynoxide")
        server = Server(tmp_path, engine)
        try:
            yield server
        finally:
            server.stop()

    return start


@pytest.mark.parametrize("kind", ENGINES)
def test_a_change_shows_in_the_next_answer(running: Any, kind: str) -> None:
    with running(kind) as server:
        for number in range(1, 4):
            server.push()
            assert server.stats()["enqueued_today"] == number
            assert server.events()["job.enqueued"] == number
            assert server.call("GET", "admin/stats")["jobs"]["available"] == number
        server.work()
        shown = server.stats()
        assert (shown["available"], shown["completed"], shown["completed_today"]) == (2, 1, 1)
        assert server.events() == {"job.enqueued": 3, "job.started": 1, "job.completed": 1}
        assert server.call("GET", "queues")["queues"][0]["completed"] == 1


@pytest.mark.parametrize("kind", ENGINES)
def test_nothing_is_lost_or_counted_twice_by_a_restart(running: Any, kind: str) -> None:
    with running(kind) as server:
        server.push(150)
        server.push(1, queue="other", priority=5)
        server.work(count=20)
        # Stopped at once: nobody has asked for what follows from it.
    for _ in range(2):
        with running(kind) as server:
            shown = server.stats()
            assert (shown["available"], shown["completed"]) == (130, 20)
            assert (shown["enqueued_today"], shown["completed_today"]) == (150, 20)
            assert server.events()["job.completed"] == 20
            assert server.events()["job.enqueued"] == 151
            totals = server.call("GET", "admin/stats")
            assert (totals["queues"], totals["jobs"]["available"]) == (2, 131)


def test_what_was_written_while_nobody_looked_is_made_up_for(running: Any, tmp_path: Path) -> None:
    with backend(tmp_path, stream=True) as without_server:
        without_server.enqueue.push_batch([parsed() for _ in range(12)])
        without_server.fetch.fetch(["default"], 2, "w")
    with running() as server:
        shown = server.stats()
        assert (shown["available"], shown["active"], shown["enqueued_today"]) == (10, 2, 12)
        assert server.events()["job.started"] == 2


def test_a_folder_of_a_version_without_a_stream_is_counted(running: Any, tmp_path: Path) -> None:
    with backend(tmp_path, stream=False) as old:
        old.enqueue.push_batch([parsed(priority=number % 2) for number in range(6)])
        old.enqueue.push(parsed(pending=True))
        for job in old.fetch.fetch(["default"], 2, "w")[1:]:
            fatal = {"code": "DEAD_LETTER", "message": "no"}
            old.finish.nack(job.id, worker_id="w", error=fatal)
        with patch.object(staged_batches.StagedBatches, "_commit"):
            old.enqueue.push_batch([parsed() for _ in range(101)])  # never committed
    for _ in range(2):
        with running() as server:
            shown = server.stats()
            counted = ("available", "active", "discarded", "dead_letter", "pending", "completed")
            assert [shown[name] for name in counted] == [4, 1, 1, 1, 1, 0]
            totals = server.call("GET", "admin/stats")
            assert (totals["jobs"]["available"], totals["dead_letter"]) == (4, 1)
    with running() as server:
        server.work(count=10)
        shown = server.stats()
        assert [shown[name] for name in counted] == [0, 1, 1, 1, 1, 4]
        assert server.call("GET", "admin/stats")["jobs"]["available"] == 0


@pytest.mark.parametrize("kind", ENGINES)
def test_a_reset_forgets_what_was_derived_too(running: Any, kind: str) -> None:
    with running(kind) as server:
        server.push(10)
        server.call("POST", "admin/reset")
        assert server.events() == {}
        server.push(2)
        assert server.stats()["enqueued_today"] == 2
    with running(kind) as server:
        assert server.stats()["enqueued_today"] == 2
        assert server.events() == {"job.enqueued": 2}


@pytest.mark.exhaustive
def test_many_readers_and_writers_at_once(running: Any) -> None:
    with running() as server, ThreadPoolExecutor(16) as pool:

        def push_and_look(_: int) -> bool:
            job_id = server.push()[0]
            listed = server.call("GET", "events?types=job.enqueued&limit=1000")["events"]
            return job_id in {event["subject"] for event in listed}

        assert all(pool.map(push_and_look, range(32)))
        assert server.stats()["enqueued_today"] == 32


def test_the_answer_comes_even_if_the_stream_cannot_be_read(
    running: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with running() as server:
        server.push()
        failure = ClientError({"Error": {"Code": "InternalServerError"}}, "GetRecords")
        with patch.object(server.local._pump, "drain", side_effect=failure):
            assert "enqueued_today" in server.stats()
        assert "Statistics may be stale" in capfd.readouterr().err
        assert server.stats()["enqueued_today"] == 1


def test_a_request_during_a_reset_is_told_to_try_again(running: Any) -> None:
    with running() as server:
        create, told = server.local._create_table, list[str]()

        def ask_without_table() -> None:
            with pytest.raises(AssertionError) as refused:
                server.push()
            told.append(str(refused.value))
            create()

        with patch.object(server.local, "_create_table", ask_without_table):
            server.call("POST", "admin/reset")
        (answer,) = told
        assert "503" in answer
        assert "The server was reset" in answer
        server.push()


def parsed(**options: Any) -> envelope.JobRequest:
    return envelope.parse({"type": "t", "args": [], "options": options})


@contextlib.contextmanager
def backend(folder: Path, *, stream: bool) -> Iterator[runtime.Runtime]:
    """A backend on the folder's data, and nobody who reads the stream."""
    engine = engines.start("dynoxide", folder)
    try:
        client = connect(engine.url)
        if stream:
            create_table(client, TABLE_NAME, SystemClock(), forget=lambda: None)
        else:
            client.create_table(**create_table_arguments(TABLE_NAME))
        blobs = FolderBlobs(folder / "payloads")
        yield runtime.build(Settings(table=TABLE_NAME), client=client, blobs=blobs)
    finally:
        engine.stop()


def _seen(server: Server, *types: str) -> list[tuple[str, dict[str, Any]]]:
    listed = server.call("GET", f"events?types={','.join(types)}")["events"]
    return [(event["type"], event["data"]) for event in listed]


def _metric(server: Server, name: str, **labels: str) -> float:
    """A sample of the Prometheus text."""
    connection = http.client.HTTPConnection(server.local.url.removeprefix("http://"), timeout=120)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    wanted = {f'{label}="{value}"' for label, value in labels.items()}
    for line in text.splitlines():
        name_and_labels, _, value = line.rpartition(" ")
        found, _, pairs = name_and_labels.partition("{")
        if found == name and wanted <= set(pairs.rstrip("}").split(",")):
            return float(value)
    raise AssertionError(f"no {name} {labels}")


@pytest.mark.requirement("QC-22", "QC-49", "QC-50", "BP-r", "BP-s", "BP-t", "BP-u")
def test_what_a_bounded_queue_tells(running: Any) -> None:
    with running() as server:
        server.call("POST", "queues", {"name": "q", "config": {"max_size": 4}})
        server.call("PUT", "queues/q/config", {"warning_threshold": 0.5})
        first, *_ = server.push(4, queue="q")
        with pytest.raises(AssertionError, match="QUEUE_FULL"):
            server.push(2, queue="q", type="late.one")
        about = {"queue": "q", "bound": 4}
        kinds = ("queue.*", "backpressure.*")
        events = _seen(server, *kinds)
        assert len(events) == 5
        assert dict(events) == {
            "queue.created": {"queue": "q"},
            "queue.config_updated": {"queue": "q", "changed": ["warning_threshold"]},
            "backpressure.warning": {**about, "depth": 4},
            "queue.full": {**about, "depth": 4},
            "backpressure.rejected": {**about, "depth": 4, "job_type": "late.one"},
        }
        assert _metric(server, "ojs_queue_max_size", queue="q") == 4
        assert _metric(server, "ojs_queue_utilization_ratio", queue="q") == 1.0
        assert _metric(server, "ojs_backpressure_pressure_ratio", queue="q") == 1.0
        assert _metric(server, "ojs_backpressure_rejected_total", queue="q") == 2
        assert _metric(server, "ojs_queue_overflow_total", queue="q", policy="reject") == 2
        server.call("PUT", "queues/q/config", {"overflow_policy": "drop_oldest"})
        server.push(1, queue="q")
        dropped = {"queue": "q", "job_id": first, "job_type": "t"}
        events = _seen(server, "queue.overflow", "backpressure.dropped", "job.discarded")
        assert sorted(kind for kind, _ in events) == [
            "backpressure.dropped", "job.discarded", "queue.overflow",
        ]  # fmt: skip
        data = dict(events)
        assert data["backpressure.dropped"] == dropped
        assert data["job.discarded"]["last_error"]["type"] == "overflow"
        assert _metric(server, "ojs_backpressure_dropped_total", queue="q") == 1
        assert _metric(server, "ojs_queue_overflow_total", queue="q", policy="drop_oldest") == 1
        server.work("q", 4)
        levels = ["backpressure.warning", "backpressure.cleared"]
        assert [kind for kind, _ in _seen(server, *levels)] == levels
        assert _metric(server, "ojs_backpressure_pressure_ratio", queue="q") == 0.0
        server.push(1, queue="made-by-a-push")
        server.call("DELETE", "queues/q", {"strategy": "reject"})
        assert _seen(server, "queue.created", "queue.deleted") == [
            ("queue.created", {"queue": "q"}),
            ("queue.deleted", {"queue": "q"}),
        ]


@pytest.mark.requirement("QC-8", "QC-9", "QC-53")
def test_a_paused_queue_takes_jobs_and_gives_none(running: Any) -> None:
    with running() as server:
        (job_id,) = server.push(1, queue="q")
        request = {"queues": ["q"], "worker_id": "w"}
        (job,) = server.call("POST", "workers/fetch", request)["jobs"]
        assert server.call("POST", "queues/q/pause", {})["queue"]["state"] == "paused"
        server.push(1, queue="q")
        assert server.call("POST", "workers/fetch", request)["jobs"] == []
        # What runs goes on.
        server.call("POST", "workers/heartbeat", {"worker_id": "w", "active_jobs": [job_id]})
        server.call("POST", "workers/ack", {"job_id": job["id"], "worker_id": "w"})
        server.call("POST", "queues/q/resume", {})
        assert len(server.call("POST", "workers/fetch", request)["jobs"]) == 1
        assert [kind for kind, _ in _seen(server, "queue.*")] == ["queue.paused", "queue.resumed"]
