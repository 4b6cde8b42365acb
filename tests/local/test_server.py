"""The local server as a process: what a newcomer sees of it, and what must outlive it."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from local.__main__ import StartError, _load_middleware, _middleware
from tests.local.conftest import ROOT, RunningServer
from tests.spread import spread

pytestmark = pytest.mark.e2e

ENGINES = pytest.mark.parametrize(
    "kind", ["dynoxide", pytest.param("ministack", marks=pytest.mark.exhaustive)]
)


def start_fails(*arguments: str) -> tuple[int, str]:
    """Exit status and error output of a server that cannot start."""
    done = subprocess.run(
        [sys.executable, "-m", "local", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def eventually(holds: Callable[[], bool], within_s: float = 60) -> bool:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in listed.split()]


def threads(server: RunningServer, after_s: float = 0) -> int:
    time.sleep(after_s)
    return len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def raw(server: RunningServer, sent: bytes) -> tuple[bytes, dict[bytes, bytes], bytes]:
    """Status line, headers and body of the answer to these bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        received = b""
        while part := client.recv(65536):
            received += part
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in lines)
    return status, headers, body


def test_speaks_http_as_it_should(server: RunningServer) -> None:
    path = b" /ojs/manifest HTTP/1.1\r\nHost: localhost\r\n\r\n"
    _, shown, body = raw(server, b"GET" + path)
    status, headers, nothing = raw(server, b"HEAD" + path)
    assert (status, nothing) == (b"HTTP/1.1 200 OK", b"")
    assert headers[b"content-length"] == shown[b"content-length"] == str(len(body)).encode()
    status, headers, nothing = raw(server, b"OPTIONS" + path)
    assert (status, nothing) == (b"HTTP/1.1 204 No Content", b"")
    assert not {b"content-type", b"content-length"} & headers.keys()
    status, _, body = raw(server, b"POST /ojs/v1/jobs HTTP/1.1\r\nHost: x\r\n{%r at at}\r\n\r\n")
    assert status == b"HTTP/1.1 400 Bad Request"
    assert b"Invalid HTTP: a header line must be NAME: VALUE" in body


def test_prints_what_a_newcomer_needs(server: RunningServer) -> None:
    printed = server.printed
    assert f"URL     {server.url}/ojs/v1" in printed
    assert "engine  " in printed
    assert str(server.data) in printed
    commands = [line.strip() for line in printed.splitlines() if "curl " in line]
    assert len(commands) == 2
    answers = [
        subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout
        for command in commands
    ]
    assert '"type":"hello"' in answers[0]
    assert '"state":"active"' in answers[1]


@pytest.mark.exhaustive
def test_queues_without_a_bound_are_told_at_the_start(tmp_path: Path) -> None:
    first = RunningServer(tmp_path / "data", tmp_path / "printed")
    assert "  queues  " not in first.printed
    first.enqueue(queue="a")
    first.enqueue(queue="b")
    first.call("PUT", "/ojs/v1/queues/c/config", {"max_size": 5})
    assert first.end() == 0
    again = RunningServer(tmp_path / "data", tmp_path / "again")
    assert "queues  2 without a size limit" in again.printed
    assert again.end() == 0


def test_every_function_is_reached(server: RunningServer) -> None:
    assert server.call("GET", "/ojs/v1/health")[0] == 200
    assert server.call("GET", "/ojs/manifest")[0] == 200
    assert server.call("POST", "/ojs/v1/workers/fetch", {"queues": ["nothing"]})[0] == 200
    assert server.call("GET", "/no/such/path")[0] == 404
    assert server.call("PATCH", "/ojs/v1/workers/fetch", {})[0] == 405


def test_bad_requests_are_answered_in_json(server: RunningServer) -> None:
    for body in (b"{", b"\xff\xfe", b"[" * 100_000, b""):
        status, answer = server.call("POST", "/ojs/v1/jobs", body)
        assert status == 400, body[:20]
        assert answer["error"]["code"] == "invalid_payload"
    status, answer = server.call("POST", "/ojs/v1/jobs", b" " * (7 * 1024 * 1024))
    assert (status, answer["error"]["code"]) == (413, "payload_too_large")
    status, answer = server.call("POST", "/ojs/v1/jobs", b" " * (11 * 1024 * 1024))
    assert (status, answer["error"]["code"]) == (413, "payload_too_large")


def test_a_large_payload_goes_through_the_folder(server: RunningServer) -> None:
    text = "x" * 500_000
    job = server.enqueue(queue="large", args=[text])
    assert [found["args"] for found in server.fetch("large")] == [[text]]
    assert any((server.data / "payloads").iterdir())
    assert server.call("GET", f"/ojs/v1/jobs/{job['id']}")[1]["job"]["args"] == [text]


@pytest.mark.exhaustive
def test_concurrent_clients(server: RunningServer) -> None:
    def enqueue(number: int) -> str:
        job = server.enqueue(queue="many", meta={"number": number})
        return str(job["id"])

    with ThreadPoolExecutor(32) as pool:
        made = list(pool.map(enqueue, range(48)))
        fetched = list(pool.map(lambda _: server.fetch("many", count=6), range(16)))
    seen = [job["id"] for jobs in fetched for job in jobs]
    assert len(seen) == len(set(seen))
    rest = [job["id"] for job in server.fetch("many")]
    assert sorted(seen + rest) == sorted(made)


def test_steering_and_rejecting_hooks(server: RunningServer) -> None:
    server.enqueue(options={"queue": "steer", "metadata": {"test_directive": "quiet"}})
    server.enqueue(options={"queue": "steer"})
    assert len(server.fetch("steer", count=1, worker_id="steered")) == 1
    beat = {"worker_id": "steered", "active_jobs": []}
    assert server.call("POST", "/ojs/v1/workers/heartbeat", beat)[1]["state"] == "quiet"
    assert server.fetch("steer", worker_id="steered") == []
    for job, field in (
        ({"type": "t", "meta": {"reject": True}}, "meta.reject"),
        ({"type": "test.middleware.reject", "meta": {"ojs_validate": True}}, "type"),
    ):
        status, answer = server.call("POST", "/ojs/v1/jobs", {"args": [], **job})
        assert (status, answer["error"]["details"]["field"]) == (422, field)


@pytest.mark.exhaustive
def test_middleware_of_a_folder(tmp_path: Path) -> None:
    folder = str(ROOT / "examples" / "middleware")
    named = ("--middleware", "hooks:add_team,hooks:check_args", "--middleware-folder", folder)
    running = RunningServer(tmp_path / "data", tmp_path / "printed", *named)
    try:
        assert running.enqueue(type="invoice.print")["meta"] == {"team": "billing"}
        status, answer = running.call("POST", "/ojs/v1/jobs", {"type": "email.send", "args": []})
        assert (status, answer["error"]["details"]["reason"]) == (422, "no_address")
        _, listed = running.call("GET", "/ojs/v1/middleware")
        names = [each["name"] for each in listed["enqueue"]]
        assert names == ["hooks:add_team", "hooks:check_args", "reject_marked"]
    finally:
        running.end()


def test_middleware_that_is_not_there_keeps_it_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ROOT / "examples" / "middleware"
    arguments = ("--middleware", "no_such:add", "--middleware-folder", str(folder))
    status, error = start_fails("--port", "0", "--data", str(tmp_path), *arguments)
    assert (status, error.count("\n")) == (1, 1)
    assert "ModuleNotFoundError: No module named 'no_such'" in error
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(StartError, match="AttributeError"):
        _load_middleware(["hooks:no_such"], folder)
    sys.modules.pop("hooks")
    with pytest.raises(argparse.ArgumentTypeError, match="must be module:name, but is 'hooks'"):
        _middleware("hooks")


def test_reset_empties_everything_quickly(server: RunningServer) -> None:
    job = server.enqueue(queue="gone", args=["x" * 500_000])
    started = time.monotonic()
    assert server.call("POST", "/ojs/v1/admin/reset") == (200, {"reset": True})
    assert time.monotonic() - started < 10  # about 10 ms where nothing else runs
    assert server.call("GET", f"/ojs/v1/jobs/{job['id']}")[0] == 404
    assert server.fetch("gone") == []
    assert list((server.data / "payloads").iterdir()) == []


def test_a_taken_port_is_one_clear_line(server: RunningServer, tmp_path: Path) -> None:
    status, error = start_fails("--port", str(server.port), "--data", str(tmp_path))
    assert status == 1
    assert error.count("\n") == 1
    assert f"127.0.0.1:{server.port}: " in error
    assert "Address already in use" in error


def test_a_folder_in_use_is_refused(server: RunningServer) -> None:
    status, error = start_fails("--port", "0", "--data", str(server.data))
    assert status == 1
    assert error.count("\n") == 1
    assert f"process {server.process.pid}" in error
    assert server.url in error


@pytest.mark.parametrize("host", spread(["0.0.0.0", "192.0.2.1", "::"], 3))
def test_only_loopback(host: str, tmp_path: Path) -> None:
    status, error = start_fails("--host", host, "--data", str(tmp_path))
    assert status == 2
    assert "add --keys" in error


@ENGINES
def test_data_outlive_the_server(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "dynoxide":
        request.getfixturevalue("dynoxide")
    data = tmp_path / "data"
    first = RunningServer(data, tmp_path / "first", "--engine", kind)
    job = first.enqueue(args=["x" * 400_000])
    assert first.end() == 0
    second = RunningServer(data, tmp_path / "second", "--engine", kind)
    assert [found["id"] for found in second.fetch()] == [job["id"]]
    assert second.end() == 0


def one_line(ended: tuple[int, str], *parts: str) -> None:
    """Look at how a server refused to start."""
    status, error = ended
    assert status == 1
    assert error.startswith("error: ")
    assert error.count("\n") == 1, error
    for part in parts:
        assert part in error


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "asked"), [("dynoxide", "other"), ("ministack", "auto")])
def test_data_are_never_left_for_another_engine(
    tmp_path: Path, kind: str, asked: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("dynoxide")
    data = tmp_path / "data"
    first = RunningServer(data, tmp_path / "first", "--engine", kind)
    job = first.enqueue(args=["x" * 400_000])
    assert first.end() == 0
    other = "ministack" if kind == "dynoxide" else "dynoxide"
    refused = start_fails("--port", "0", "--data", str(data), "--engine", other)
    one_line(refused, f"only {kind} can read", f"{other} can't use it")
    again = RunningServer(data, tmp_path / "again")
    assert f"engine  {kind}" in again.printed
    assert again.call("GET", f"/ojs/v1/jobs/{job['id']}")[0] == 200
    assert again.end() == 0
    # The jobs are lost, and their payloads are not: no engine begins anew over these.
    kept = data / ("dynoxide.db" if kind == "dynoxide" else "ministack/dynamodb.json")
    kept.rename(tmp_path / "kept")
    engine = other if asked == "other" else asked
    refused = start_fails("--port", "0", "--data", str(data), "--engine", engine)
    one_line(refused, str(data / "payloads"), "the jobs are missing")
    (tmp_path / "kept").rename(kept)
    again = RunningServer(data, tmp_path / "restored")
    assert [found["id"] for found in again.fetch()] == [job["id"]]
    assert again.end() == 0


@pytest.mark.exhaustive
@pytest.mark.usefixtures("dynoxide")
@pytest.mark.parametrize(
    "table", spread(["ojs", "", "_config", "_tables", "_stream_records"], 5, rest=5)
)
def test_a_damaged_database_is_one_clear_line(tmp_path: Path, table: str) -> None:
    data = tmp_path / "data"
    first = RunningServer(data, tmp_path / "first")
    first.enqueue()
    assert first.end() == 0
    database = data / "dynoxide.db"
    with contextlib.closing(sqlite3.connect(database)) as opened:
        (page_bytes,) = opened.execute("PRAGMA page_size").fetchone()
        roots = dict(opened.execute("SELECT name, rootpage FROM sqlite_master"))
    good = database.read_bytes()
    # Of the file, of the engine's own tables, and of the jobs: some the engine meets when it is
    # started, some when it is asked first.
    start = (roots[table] - 1 if table else 0) * page_bytes
    database.write_bytes(good[:start] + b"\xa5" * page_bytes + good[start + page_bytes :])
    refused = start_fails("--port", "0", "--data", str(data))
    one_line(refused, str(data), "estore", f"mv {data} {data}.old")
    database.write_bytes(good)
    again = RunningServer(data, tmp_path / "restored")
    assert len(again.fetch()) == 1
    assert again.end() == 0


@pytest.mark.exhaustive
def test_state_that_ministack_cannot_read_is_not_replaced(tmp_path: Path) -> None:
    """MiniStack would begin empty, and write that over the file when it is stopped."""
    data = tmp_path / "data"
    first = RunningServer(data, tmp_path / "first", "--engine", "ministack")
    job = first.enqueue()
    assert first.end() == 0
    state = data / "ministack" / "dynamodb.json"
    good = state.read_bytes()
    for damaged in (good[: len(good) // 2], b""):
        state.write_bytes(damaged)
        one_line(start_fails("--port", "0", "--data", str(data)), str(data), "estore")
        assert state.read_bytes() == damaged
    state.write_bytes(good)
    again = RunningServer(data, tmp_path / "restored")
    assert [found["id"] for found in again.fetch()] == [job["id"]]
    assert again.end() == 0


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)]
)
def test_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    server = RunningServer(tmp_path / "data", tmp_path / "printed")
    (engine,) = children(server.process.pid)
    idle = socket.create_connection(("127.0.0.1", server.port))
    path = f"/ojs/v1/jobs/{server.enqueue()['id']}/result?wait=true"
    assert eventually(lambda: threads(server) == threads(server, after_s=0.3))
    before = threads(server)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(server.call, "GET", path)
        # It would be for 25 s. Its connection has a thread; the request came with it.
        assert eventually(lambda: threads(server) > before)
        time.sleep(1)
        started = time.monotonic()
        assert server.end(number) == 0
        # Not cut: it is told that there is no result yet.
        assert waits.result()[0] == 202
    assert time.monotonic() - started < 15
    idle.close()
    assert not runs(engine)
    assert server.printed.endswith("Stopped.\n")
    assert "Traceback" not in server.printed


@pytest.mark.exhaustive
def test_a_killed_server_leaves_no_engine_and_a_usable_folder(tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "data", tmp_path / "first")
    (engine,) = children(server.process.pid)
    job = server.enqueue()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    assert eventually(lambda: not runs(engine))
    again = RunningServer(tmp_path / "data", tmp_path / "second")
    assert [found["id"] for found in again.fetch()] == [job["id"]]
    assert again.end() == 0


@pytest.mark.exhaustive
def test_an_engine_that_dies_ends_the_server(tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "data", tmp_path / "printed")
    (engine,) = children(server.process.pid)
    os.kill(engine, signal.SIGKILL)
    assert server.process.wait(60) == 1
    assert "has ended" in server.printed


@pytest.mark.exhaustive
def test_a_strict_server_takes_jobs_only_for_queues_that_were_made(tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "data", tmp_path / "printed", "--strict-queues")
    try:
        # Once more after a reset: the setting is the server's, not the table's.
        for _ in range(2):
            body = {"type": "t", "args": [], "options": {"queue": "made"}}
            status, answer = server.call("POST", "/ojs/v1/jobs", body)
            assert (status, answer["error"]["code"]) == (404, "queue_not_found")
            assert server.call("POST", "/ojs/v1/queues", {"name": "made"})[0] == 201
            server.enqueue(options={"queue": "made"})
            server.call("POST", "/ojs/v1/admin/reset")
    finally:
        assert server.end() == 0


def test_the_clock_is_not_to_be_moved(server: RunningServer) -> None:
    """Only that of a server which was started with --test-clock."""
    status, answer = server.call("POST", "/ojs/v1/admin/clock", {"advance_ms": 1})
    assert (status, answer["error"]["code"]) == (404, "not_found")
