"""Server-sent events without an end, made of bounded responses."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from local.event_streams import EventStreams
from local.gateway import refusal
from local.http_server import HttpServer, Limits, Request, Response, listen

SSE = [("content-type", "text/event-stream; charset=utf-8")]


class Log:
    """A bounded operation: the events after the last ID, and then a line of its own."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.asked: list[str | None] = []
        self.status = 200
        self.changes = 0

    def add(self, text: str) -> None:
        self.events.append(text)
        self.changes += 1

    def end(self, status: int) -> None:
        self.status = status
        self.changes += 1

    def __call__(self, request: Request) -> Response:
        last = dict(request.headers).get("last-event-id")
        self.asked.append(last)
        if request.target == "/json":
            return Response(200, [("content-type", "application/json")], b"{}")
        if self.status != 200:
            return Response(self.status, [("content-type", "application/json")], b"{}")
        after = int(last) if last else len(self.events)
        found = [f"id: {n + 1}\ndata: {self.events[n]}\n\n" for n in range(after, len(self.events))]
        cursor = "" if last and found else f"id: {after}\n\n"
        return Response(200, SSE, ("retry: 3000\n" + "".join(found) + cursor).encode())


class Time:
    """Waits that end at once; then the server stops."""

    def __init__(self, waits: int) -> None:
        self.left = waits
        self.now_s = 0.0
        self.steps: list[Callable[[], None]] = []

    def wait(self, seconds: float) -> bool:
        assert seconds == 0.2
        self.now_s += seconds
        self.left -= 1
        if self.steps:
            self.steps.pop(0)()
        return self.left < 0


def request(target: str = "/stream", *headers: tuple[str, str]) -> Request:
    return Request("GET", target, list(headers), b"", "1.1", "127.0.0.1")


def parts_of(response: Response) -> list[str]:
    assert response.parts is not None
    assert response.body == b""
    return [part.decode() for part in response.parts]


def test_what_is_new_is_sent_once() -> None:
    log, waits = Log(), Time(5)
    log.add("old")
    waits.steps = [lambda: None, lambda: log.add("a"), lambda: None, lambda: log.add("b")]
    streams = EventStreams(log, waits.wait, lambda: log.changes)
    found = parts_of(streams(request()))
    assert found == [
        "retry: 3000\nid: 1\n\n",
        "",
        "retry: 3000\nid: 2\ndata: a\n\n",
        "",
        "retry: 3000\nid: 3\ndata: b\n\n",
        "",
        'id: 3\nevent: server.shutdown\ndata: {"reason": "shutdown", "grace_period_ms": 0}\n\n',
    ]
    # The first request has no ID, each other one the last. Without writes there is none.
    assert log.asked == [None, "1", "1", "2"]


def test_a_client_that_comes_back() -> None:
    log, waits = Log(), Time(2)
    for text in ("a", "b", "c"):
        log.add(text)
    waits.steps = [lambda: log.add("d")]
    streams = EventStreams(log, waits.wait, lambda: log.changes)
    response = streams(request("/stream", ("host", "x"), ("last-event-id", "1")))
    assert parts_of(response)[:2] == [
        "retry: 3000\nid: 2\ndata: b\n\nid: 3\ndata: c\n\n",
        "retry: 3000\nid: 4\ndata: d\n\n",
    ]
    assert log.asked[:2] == ["1", "3"]


def test_a_heartbeat_each_15_seconds_of_silence() -> None:
    log, waits = Log(), Time(220)
    waits.steps = [*[lambda: None] * 50, lambda: log.add("a")]
    found = parts_of(
        EventStreams(log, waits.wait, lambda: log.changes, lambda: waits.now_s)(request())
    )
    beats = [at for at, part in enumerate(found) if part == ":heartbeat\n\n"]
    (event,) = [at for at, part in enumerate(found) if "data: a" in part]
    assert event == 51
    # 75 steps; one more where the sum of the steps is less.
    assert [at - event in (75, 76, 150, 151, 152) for at in beats] == [True, True]


@pytest.mark.parametrize("status", [204, 401, 404, 500])
def test_the_end(status: int) -> None:
    log, waits = Log(), Time(100)
    waits.steps = [lambda: None, lambda: log.end(status)]
    assert parts_of(EventStreams(log, waits.wait, lambda: log.changes)(request()))[1:] == [""]


def test_other_responses_are_unchanged() -> None:
    log = Log()
    streams = EventStreams(log, lambda _: False, lambda: 0)
    assert streams(request("/json")).body == b"{}"
    log.end(404)
    assert streams(request()).status == 404
    assert streams(request()).parts is None


def test_too_many_clients_get_bounded_responses() -> None:
    log = Log()
    streams = EventStreams(log, lambda _: False, lambda: 0, most=2)
    first, second, third = (streams(request()) for _ in range(3))
    assert first.parts is not None
    assert second.parts is not None
    assert third.parts is None
    assert third.body.startswith(b"retry: 3000\n")
    first.parts.close()
    assert streams(request()).parts is not None
    # Also without a part that was sent.
    second.parts.close()
    assert streams(request()).parts is not None


# --- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def server(log: Log) -> Iterator[HttpServer]:
    limits = Limits(idle_s=5, header_s=5, body_s=5, send_s=5, body_bytes=100, connections=20)
    running = HttpServer(listen("127.0.0.1", 0), log, refuse=refusal, limits=limits)
    running.application = EventStreams(log, running.wait, lambda: log.changes, most=1)
    running.start()
    yield running
    running.stop(grace_s=5)


@contextlib.contextmanager
def following(server: HttpServer, version: str = "1.1") -> Iterator[socket.socket]:
    with socket.create_connection((server.host, server.port), timeout=60) as client:
        client.sendall(f"GET /stream HTTP/{version}\r\nHost: x\r\n\r\n".encode())
        yield client


def until(client: socket.socket, end: bytes) -> bytes:
    received = b""
    while end not in received:
        part = client.recv(65536)
        assert part, f"closed after {received!r}"
        received += part
    return received


def test_a_stream_over_http(server: HttpServer, log: Log) -> None:
    with following(server) as client:
        head = until(client, b"id: 0\n\n")
        assert b"transfer-encoding: chunked" in head.lower()
        assert b"content-length" not in head.lower()
        log.add("a")
        assert b"id: 1\ndata: a\n\n" in until(client, b"data: a\n\n")
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        rest = until(client, b"0\r\n\r\n")
        assert b"id: 1\nevent: server.shutdown\n" in rest
        stopping.join(30)
        assert client.recv(1) == b""


def test_an_old_client_reads_until_the_end(server: HttpServer, log: Log) -> None:
    with following(server, "1.0") as client:
        head = until(client, b"id: 0\n\n")
        assert b"transfer-encoding" not in head.lower()
        log.end(204)
        assert client.recv(100) == b""


def test_a_connection_can_go_on_after_a_stream(server: HttpServer, log: Log) -> None:
    with following(server) as client:
        until(client, b"id: 0\n\n")
        log.end(204)
        until(client, b"0\r\n\r\n")
        client.sendall(b"GET /json HTTP/1.1\r\nHost: x\r\n\r\n")
        assert until(client, b"{}").startswith(b"HTTP/1.1 200 ")


def test_a_client_that_leaves_frees_its_place(server: HttpServer) -> None:
    """Also one that leaves before there are events: not only a failed send tells that."""
    with following(server) as client:
        until(client, b"id: 0\n\n")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with following(server) as client:
            if b"transfer-encoding" in until(client, b"id: 0\n\n").lower():
                return
    raise AssertionError


def test_an_event_is_json(log: Log) -> None:
    """The last event names the end as ojs-realtime 4.6 does."""
    shutdown = parts_of(EventStreams(log, lambda _: True, lambda: 0)(request()))[-1]
    fields = dict(line.split(": ", 1) for line in shutdown.strip().splitlines())
    assert fields["event"] == "server.shutdown"
    assert json.loads(fields["data"]) == {"reason": "shutdown", "grace_period_ms": 0}
