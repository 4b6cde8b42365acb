"""WebSocket connections: the hub and the HTTP server, with a function that echoes."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from wsproto.events import (
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    TextMessage,
)

from local.gateway import refusal
from local.http_server import HttpServer, Limits, listen
from local.sockets import Hub, SocketLimits
from ojs.domain.access import Principal
from ojs.domain.realtime import Posted
from tests.local.websocket import Rejected, WebSocket

LIMITS = SocketLimits(
    sockets=3, message_bytes=2_000, ping_s=60, pong_s=0.2, send_s=0.2, close_s=0.3
)
OWNER = Principal("owner", key="k1")


class Function:
    """Echoes messages; notes the beginning and the end of connections."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.seen: list[dict[str, Any]] = []
        self.ended = threading.Condition()

    def __call__(self, event: dict[str, Any], _context: object) -> dict[str, Any]:
        self.seen.append(event)
        asked = event["requestContext"]
        connection = asked["connectionId"]
        if asked["routeKey"] == "$connect":
            if event["headers"].get("x-reject"):
                return {"statusCode": 401}
            self.open.add(connection)
            offered = event["headers"].get("sec-websocket-protocol", "")
            echoed = {"Sec-WebSocket-Protocol": "ojs.v1"} if "ojs.v1" in offered else {}
            return {"statusCode": 200, "headers": echoed}
        if asked["routeKey"] == "$disconnect":
            with self.ended:
                self.open.discard(connection)
                self.ended.notify_all()
            return {"statusCode": 200}
        body = event["body"]
        if event["isBase64Encoded"]:
            body = f"binary {base64.b64decode(body)!r}"
        return {"statusCode": 200, "body": connection if body == "who" else body}

    def none_left(self) -> bool:
        with self.ended:
            return self.ended.wait_for(lambda: not self.open, 30)


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms


class Live:
    """A server with a hub."""

    def __init__(self, limits: SocketLimits) -> None:
        self.function, self.clock = Function(), Clock()
        self.tickets = {"t1", "t2", "t3", "t4", "t5"}
        self.clients: list[WebSocket] = []
        self.hub = Hub(self.function, self._redeem, self.clock, limits)
        http = Limits(idle_s=5, header_s=5, body_s=5, send_s=5, body_bytes=100, connections=20)
        self.server = HttpServer(
            listen("127.0.0.1", 0),
            self.hub.open,
            refuse=refusal,
            limits=http,
            hang_up=self.hub.stop,
        )
        self.server.start()

    def _redeem(self, ticket: str) -> Principal | None:
        if ticket not in self.tickets:
            return None
        self.tickets.discard(ticket)
        return OWNER

    def connect(self, ticket: str | None = None, **options: Any) -> WebSocket:
        query = f"?ticket={ticket or next(iter(self.tickets))}"
        self.clients.append(WebSocket(f"{self.server.url}/ojs/v1/ws{query}", **options))
        return self.clients[-1]

    def end(self) -> None:
        for client in self.clients:
            client.close()
        self.server.stop(grace_s=5)

    def name(self, client: WebSocket) -> str:
        client.send("who")
        return client.text()


@pytest.fixture
def make() -> Iterator[Callable[..., Live]]:
    made: list[Live] = []

    def new(**limits: Any) -> Live:
        made.append(Live(replace(LIMITS, **limits)))
        return made[-1]

    yield new
    for each in made:
        each.end()


@pytest.fixture
def live(make: Callable[..., Live]) -> Live:
    return make()


def raw(live: Live, **changed: str | None) -> tuple[bytes, dict[str, Any]]:
    """The status and the error of a handshake with changed headers."""
    headers: dict[str, str | None] = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    }
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    method = headers.pop("method", None) or "GET"
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    head = "\r\n".join([f"{method} /ojs/v1/ws?ticket=t1 HTTP/1.1", *lines, "", ""])
    with socket.create_connection((live.server.host, live.server.port), timeout=60) as client:
        client.sendall(head.encode())
        client.shutdown(socket.SHUT_WR)
        received = b""
        while part := client.recv(65536):
            received += part
    head_bytes, _, body = received.partition(b"\r\n\r\n")
    status = head_bytes.split(b"\r\n")[0]
    if status.startswith(b"HTTP/1.1 426 "):
        assert b"sec-websocket-version: 13" in head_bytes
        assert b"upgrade: websocket" in head_bytes
    return status, json.loads(body)["error"] if body.startswith(b"{") else {}


def test_a_round_trip(live: Live) -> None:
    client = live.connect("t1", subprotocols=["other", "ojs.v1"])
    assert client.subprotocol == "ojs.v1"
    connection = live.name(client)
    connected = live.function.seen[0]
    assert connected["requestContext"] == {
        "routeKey": "$connect",
        "connectionId": connection,
        "authorizer": OWNER.context(),
    }
    assert [client.ask({"number": n}) for n in range(3)] == [{"number": n} for n in range(3)]
    assert live.hub.post(connection, '{"posted":1}') is Posted.POSTED
    assert client.message() == {"posted": 1}
    client.send_event(CloseConnection(code=1000))
    assert isinstance(client.event(), CloseConnection)
    assert live.function.none_left()
    assert live.function.seen[-1]["requestContext"]["routeKey"] == "$disconnect"
    assert live.hub.post(connection, "x") is Posted.GONE
    assert live.hub.post("foreign", "x") is Posted.GONE


def test_the_first_message_can_come_with_the_request(live: Live) -> None:
    """A client that doesn't wait for the answer to its handshake."""
    client = socket.create_connection((live.server.host, live.server.port), timeout=60)
    key = base64.b64encode(bytes(16)).decode()
    head = (
        "GET /ojs/v1/ws?ticket=t1 HTTP/1.1\r\nHost: x\r\nUpgrade: WebSocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    client.sendall(head.encode() + b"\x81\x82\x00\x00\x00\x00hi")
    received = b""
    while not received.endswith(b"\x81\x02hi"):
        part = client.recv(100)
        assert part, received
        received += part
    assert received.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"sec-websocket-extensions" not in received.lower()
    client.close()


def test_a_message_in_fragments(live: Live) -> None:
    client = live.connect()
    client.send_event(TextMessage(data='{"a', message_finished=False))
    client.send_event(Ping(payload=b"between"))
    client.send_event(TextMessage(data='":1}'))
    assert client.event() == Pong(payload=b"between")
    assert client.message() == {"a": 1}


@pytest.mark.parametrize(
    ("changed", "status", "field"),
    [
        ({"Upgrade": None}, 426, "Upgrade"),
        ({"Upgrade": "h2c"}, 426, "Upgrade"),
        ({"Connection": "keep-alive"}, 426, "Connection"),
        (
            {"Sec_WebSocket_Version": "8", "Sec-WebSocket-Version": None},
            426,
            "Sec-WebSocket-Version",
        ),
        ({"Sec_WebSocket_Version": None}, 426, "Sec-WebSocket-Version"),
        ({"Sec_WebSocket_Key": None}, 426, "Sec-WebSocket-Key"),
        ({"Sec_WebSocket_Key": "short"}, 426, "Sec-WebSocket-Key"),
        ({"Sec_WebSocket_Key": "é" * 24}, 426, "Sec-WebSocket-Key"),
        ({"method": "POST", "Content_Length": "0"}, 426, "method"),
    ],
)
def test_no_handshake(live: Live, changed: dict[str, str | None], status: int, field: str) -> None:
    line, error = raw(live, **changed)
    assert line.startswith(f"HTTP/1.1 {status} ".encode())
    assert error["details"]["field"] == field
    # Nothing was used for it.
    assert "t1" in live.tickets
    assert live.function.seen == []


def test_tickets(live: Live) -> None:
    live.connect("t1")
    for query, status in (("?ticket=t1", 403), ("?ticket=", 401), ("", 401), ("?x=t2", 401)):
        with pytest.raises(Rejected) as rejected:
            WebSocket(f"{live.server.url}/ojs/v1/ws{query}")
        assert rejected.value.status == status
        assert b"POST /ojs/v1/realtime/tickets" in rejected.value.body
    # What is rejected takes no place of others.
    for _ in range(LIMITS.sockets - 1):
        live.connect()


def test_the_function_can_reject(live: Live) -> None:
    for _ in range(LIMITS.sockets + 1):
        with pytest.raises(Rejected) as rejected:
            live.connect(headers={"x-reject": "1"})
        assert rejected.value.status == 403


def test_too_many(live: Live) -> None:
    clients = [live.connect() for _ in range(LIMITS.sockets)]
    with pytest.raises(Rejected) as rejected:
        live.connect()
    assert rejected.value.status == 503
    assert b"3 WebSocket connections" in rejected.value.body
    assert len(live.tickets) == 2  # the ticket was not used
    for client in clients:
        client.close()
    assert live.function.none_left()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            live.connect()
        except Rejected:
            continue
        break
    else:
        raise AssertionError


def test_binary_messages_reach_the_function_as_such(live: Live) -> None:
    client = live.connect()
    client.send_event(BytesMessage(data=b"\x00a", message_finished=False))
    client.send_event(BytesMessage(data=b"b"))
    assert client.text() == "binary b'\\x00ab'"
    assert client.ask({"a": 1}) == {"a": 1}


@pytest.mark.parametrize("size", [2_001, 129 * 1_024])
@pytest.mark.parametrize("fragments", [1, 10])
def test_large_messages(live: Live, size: int, fragments: int) -> None:
    client = live.connect()
    client.send("x" * 2_000)
    assert client.text() == "x" * 2_000
    for number in range(1, fragments + 1):
        part = "x" * (size // fragments + size % fragments * (number == fragments))
        client.send_event(TextMessage(data=part, message_finished=number == fragments))
    assert client.closed() == 1009
    assert live.function.none_left()
    bodies = [event["body"] for event in live.function.seen if "body" in event]
    assert bodies == ["x" * 2_000]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x81\x02hi", 1002),  # not masked
        (b"\x83\x80\x00\x00\x00\x00", 1002),  # reserved
        (b"\xc1\x80\x00\x00\x00\x00", 1002),  # compressed, which was not agreed on
        (b"\x81\x82\x00\x00\x00\x00\xff\xfe", 1007),  # no UTF-8
    ],
)
def test_invalid_frames_end_the_connection(live: Live, frame: bytes, code: int) -> None:
    client = live.connect()
    client.socket.sendall(frame)
    assert client.closed() == code
    assert live.function.none_left()


def test_a_client_that_answers_pings_stays(make: Callable[..., Live]) -> None:
    live = make(ping_s=0.02, pong_s=30)
    client = live.connect()
    for _ in range(5):
        ping = client.event()
        assert isinstance(ping, Ping)
        client.send_event(ping.response())
    assert live.name(client) in live.function.open


def test_a_half_open_connection_ends(make: Callable[..., Live]) -> None:
    live = make(ping_s=0.05, pong_s=0.1)
    client = live.connect()
    assert isinstance(client.event(), Ping)
    assert client.event() is None
    assert live.function.none_left()


def test_a_client_that_does_not_read(make: Callable[..., Live]) -> None:
    live = make(send_s=0.1)
    other, client = live.connect(), live.connect()
    connection = live.name(client)
    text = json.dumps({"x": "x" * 32_000})
    outcomes = {live.hub.post(connection, text) for _ in range(1_000)}
    # Not sent; or sent in part, which ends the connection.
    assert Posted.POSTED in outcomes
    assert outcomes & {Posted.FAILED, Posted.GONE}
    assert other.ask({"a": 1}) == {"a": 1}
    if Posted.GONE not in outcomes:
        assert client.message() == json.loads(text)


def test_old_connections_end(live: Live) -> None:
    first = live.connect()
    live.name(first)
    live.clock.ms += 3_600_000
    second = live.connect()
    live.name(second)
    live.hub.close_old()
    live.clock.ms += 3_600_000
    live.hub.close_old()
    assert first.closed() == 1001
    assert second.ask({"a": 1}) == {"a": 1}


def test_all_are_closed_and_can_come_back(live: Live) -> None:
    client, silent = live.connect(), live.connect()
    live.name(client)
    live.name(silent)
    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(live.hub.close_all)
        assert client.closed() == 1012
        closed.result(30)
    # The one that does not answer is hung up.
    assert live.function.none_left()
    assert live.connect().ask({"a": 1}) == {"a": 1}


def test_a_shutdown_is_announced(live: Live) -> None:
    client = live.connect()
    live.name(client)
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(live.server.stop)
        message = client.message()
        assert message["type"] == "event"
        assert message["event"] == "server.shutdown"
        assert message["data"]["grace_period_ms"] == 300
        assert client.closed() == 1001
        assert stopped.result(30) is True
    assert live.function.none_left()


def test_a_silent_client_does_not_delay_the_shutdown(live: Live) -> None:
    client = live.connect()
    live.name(client)
    assert live.server.stop(grace_s=30) is True
    assert live.function.none_left()


def test_messages_of_many_threads(live: Live) -> None:
    client = live.connect()
    connection = live.name(client)
    texts = [json.dumps({"n": n, "x": "x" * (n % 7) * 1_000}) for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        posting = [pool.submit(live.hub.post, connection, text) for text in texts]
        found = sorted(client.message()["n"] for _ in texts)
    assert found == list(range(200))
    assert {each.result() for each in posting} == {Posted.POSTED}
