"""The HTTP server alone, with an application that echoes, over raw sockets and real clients."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h11
import pytest

from local.http_server import _COMPLAINTS, HttpServer, Limits, Request, Response, listen

LIMITS = Limits(idle_s=5, header_s=0.3, body_s=0.3, send_s=5, body_bytes=1000, connections=128)


class Application:
    """Echoes requests; holds those to /slow until released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()
        self.seen: list[Request] = []

    def __call__(self, request: Request) -> Response:
        self.seen.append(request)
        if request.target == "/slow":
            self.entered.set()
            assert self.release.wait(60)
        if request.target == "/empty":
            return Response(204, [("Content-Type", "text/plain")])
        shown = {
            "method": request.method,
            "target": request.target,
            "headers": request.headers,
            "body": request.body.decode("latin-1"),
        }
        return Response(200, [("Content-Type", "application/json")], json.dumps(shown).encode())


def refuse(status: int, message: str, details: Mapping[str, int]) -> Response:
    body = json.dumps({"refused": message, **details}).encode()
    return Response(status, [("content-type", "application/json")], body)


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
def server(application: Application) -> Iterator[HttpServer]:
    running = HttpServer(listen("127.0.0.1", 0), application, refuse=refuse, limits=LIMITS)
    running.start()
    yield running
    application.release.set()
    if not running.stopping:
        running.stop(grace_s=5)


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=120)


def exchange(server: HttpServer, raw: bytes) -> bytes:
    """Everything the server sends for these bytes until it hangs up."""
    with connect(server) as client:
        client.sendall(raw)
        return everything(client)


def everything(client: socket.socket) -> bytes:
    received = b""
    while part := client.recv(65536):
        received += part
    return received


def until(client: socket.socket, end: bytes) -> bytes:
    received = b""
    while end not in received:
        part = client.recv(65536)
        assert part, f"closed after {received!r}"
        received += part
    return received


def test_keeps_a_connection_for_many_requests(server: HttpServer) -> None:
    client = http.client.HTTPConnection(server.host, server.port, timeout=120)
    for number in range(3):
        client.request("POST", f"/{number}", body=b"x" * number)
        answer = json.loads(client.getresponse().read())
        assert (answer["target"], answer["body"]) == (f"/{number}", "x" * number)
        local = client.sock.getsockname()
        assert local == client.sock.getsockname()
    client.close()


def test_http_1_0_and_connection_close_end_the_connection(server: HttpServer) -> None:
    for raw in (
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ):
        answer = exchange(server, raw)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"connection: close" in answer.lower()


def test_pipelined_requests_are_answered_in_order(server: HttpServer) -> None:
    one = b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
    two = b"GET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = exchange(server, one + two)
    assert answer.index(b'"/1"') < answer.index(b'"/2"')


def test_chunked_body(server: HttpServer) -> None:
    answer = exchange(
        server,
        b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    )
    assert b'"body": "abcde"' in answer


def test_expect_100_continue(server: HttpServer) -> None:
    with connect(server) as client:
        client.sendall(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
            b"Connection: close\r\nExpect: 100-continue\r\n\r\n"
        )
        assert until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        client.sendall(b"ok")
        assert b'"body": "ok"' in everything(client)


def test_a_refused_body_is_not_asked_for(server: HttpServer, application: Application) -> None:
    answer = exchange(
        server,
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in answer
    assert application.seen == []


def test_head_has_the_length_and_no_body(server: HttpServer) -> None:
    answer = exchange(server, b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b""
    (length,) = re.findall(rb"\r\ncontent-length: (\d+)", head)
    whole = exchange(server, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    # Its own method is in the body, and one letter longer.
    assert int(length) == len(whole.partition(b"\r\n\r\n")[2]) + 1


def test_no_content_has_no_body_no_length_and_no_type(server: HttpServer) -> None:
    answer = exchange(server, b"GET /empty HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 204 ")
    assert b"content-length" not in answer
    assert b"content-type" not in answer


@pytest.mark.parametrize("method", ["OPTIONS", "PATCH", "DELETE", "PUT", "BREW"])
def test_any_method_reaches_the_application(server: HttpServer, method: str) -> None:
    answer = exchange(
        server, f"{method} /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    )
    assert f'"method": "{method}"'.encode() in answer


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"rubbish\r\n\r\n", "the request line must be METHOD TARGET HTTP/1.1"),
        (b"GET / HTTP/1.1\r\n\r\n", "the Host header is missing"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "Host header is duplicated"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", "must be NAME: VALUE"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n{%r at at}\r\n\r\n", "must be NAME: VALUE"),
        (b"GET / HTTP/1.1\r\n folded: x\r\n\r\n", "start with a continuation line"),
        (b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", "the request line must be"),
        (b"G@T / HTTP/1.1\r\nHost: x\r\n\r\n", "the request line must be"),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
            "Content-Length must be a number of bytes",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "Content-Length headers contradict each other",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "a chunk must start with its length",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabcd\r\n",
            "a chunk is longer than its length",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
            "closed before the request was complete",
        ),
        # A TLS client.
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "the request line must be"),
    ],
)
def test_malformed_http_is_answered_400_in_plain_words(
    server: HttpServer, application: Application, raw: bytes, complaint: str
) -> None:
    with connect(server) as client:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    message = json.loads(answer.partition(b"\r\n\r\n")[2])["refused"]
    assert complaint in message
    assert message.startswith("Invalid HTTP: ")
    for python in ("bytearray", "b'", "%r", "{", "\\x"):
        assert python not in message
    assert application.seen == []


@pytest.mark.parametrize("value", [b"gzip", b"chunked, gzip"])
def test_another_transfer_coding_is_not_understood(server: HttpServer, value: bytes) -> None:
    answer = exchange(
        server, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " + value + b"\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 501 ")
    assert b"Transfer-Encoding must be chunked" in answer


def test_every_complaint_of_the_protocol_has_words() -> None:
    # What h11 may say of a request, as far as it is written in its source.
    sources = "".join(
        (Path(h11.__file__).parent / f"{name}.py").read_text("utf-8")
        for name in ("_readers", "_headers", "_events", "_connection")
    )
    for start in _COMPLAINTS:
        assert start in sources.lower(), start


def test_is_no_proxy(server: HttpServer, application: Application) -> None:
    answer = exchange(server, b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert application.seen == []


def test_too_many_header_bytes(server: HttpServer) -> None:
    answer = exchange(server, b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"the headers exceed 65536 bytes" in answer


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_too_large_a_body(server: HttpServer, application: Application, framing: str) -> None:
    size = 200_000
    if framing == "length":
        raw = b"Content-Length: %d\r\n\r\n" % size + b"x" * size
    else:
        raw = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size + b"x" * size + b"\r\n0\r\n\r\n"
    answer = exchange(server, b"POST / HTTP/1.1\r\nHost: x\r\n" + raw)
    assert answer.startswith(b"HTTP/1.1 413 ")
    refusal = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert refusal["refused"] == "The request body exceeds 1000 bytes."
    assert refusal["limit"] == 1_000
    # How large a body of chunks would have become, nobody knows.
    assert refusal["size"] == size if framing == "length" else 1_000 < refusal["size"] <= size
    assert application.seen == []


def test_a_slow_header_is_given_up(server: HttpServer) -> None:
    with connect(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHo")
        assert everything(client).startswith(b"HTTP/1.1 408 ")


def test_a_slow_body_is_given_up(server: HttpServer, application: Application) -> None:
    with connect(server) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
        assert everything(client).startswith(b"HTTP/1.1 408 ")
    assert application.seen == []


def test_a_client_that_leaves_hurts_nobody(server: HttpServer, application: Application) -> None:
    leaving = connect(server)
    leaving.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
    leaving.close()
    waiting = connect(server)
    waiting.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    assert application.entered.wait(60)
    waiting.close()
    application.release.set()
    assert exchange(server, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_64_connections_at_once(server: HttpServer) -> None:
    together = threading.Barrier(64)

    def work(number: int) -> list[str]:
        client = http.client.HTTPConnection(server.host, server.port, timeout=120)
        client.connect()
        together.wait(60)
        targets = []
        for turn in range(5):
            client.request("GET", f"/{number}/{turn}")
            targets.append(json.loads(client.getresponse().read())["target"])
        client.close()
        return targets

    with ThreadPoolExecutor(64) as pool:
        done = list(pool.map(work, range(64)))
    assert done == [[f"/{number}/{turn}" for turn in range(5)] for number in range(64)]


def test_nagle_is_off(server: HttpServer) -> None:
    def twenty_s() -> float:
        started = time.monotonic()
        client = http.client.HTTPConnection(server.host, server.port, timeout=120)
        for _ in range(20):
            client.request("POST", "/", body=b"x" * 100)
            client.getresponse().read()
        client.close()
        return time.monotonic() - started

    # Nagle's algorithm and delayed acknowledgements together would cost 40 ms a request, each time;
    # what else this machine does may do so in some of them.
    assert any(twenty_s() < 0.4 for _ in range(20))


def test_stop_lets_a_running_request_finish(server: HttpServer, application: Application) -> None:
    with connect(server) as idle, connect(server) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert application.entered.wait(60)
        with ThreadPoolExecutor(1) as pool:
            stopped = pool.submit(server.stop, 5)
            assert idle.recv(1) == b""  # hung up at once
            application.release.set()
            answer = everything(client)
            assert stopped.result(60) is True
    assert b'"target": "/slow"' in answer
    assert b"connection: close" in answer
    with pytest.raises(ConnectionRefusedError):
        connect(server)


def test_a_port_that_is_taken(server: HttpServer) -> None:
    with pytest.raises(OSError, match="in use"):
        listen(server.host, server.port)


def test_a_defect_in_the_application_ends_only_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)

    def application(request: Request) -> Response:
        if request.target == "/bad":
            raise RuntimeError("defect")
        return Response(200)

    server = HttpServer(listen("127.0.0.1", 0), application, refuse=refuse, limits=LIMITS)
    server.start()
    try:
        assert exchange(server, b"GET /bad HTTP/1.0\r\n\r\n") == b""
        assert exchange(server, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    finally:
        server.stop()
    assert [failure.exc_type for failure in failures] == [RuntimeError]
