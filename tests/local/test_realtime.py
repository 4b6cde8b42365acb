"""Realtime on a whole local server: WebSocket connections, and what clients may send."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from tests.local.conftest import RunningServer
from tests.local.websocket import Rejected, WebSocket

pytestmark = pytest.mark.e2e

TICKETS = "/ojs/v1/realtime/tickets"


def address(server: RunningServer) -> str:
    """The address to connect to, with a new ticket."""
    status, answer = server.call("POST", TICKETS, {})
    assert status == 201, answer
    assert answer["url"] == f"ws{server.url.removeprefix('http')}/ojs/v1/ws"
    return f"{answer['url']}?ticket={answer['ticket']}"


@pytest.fixture
def connect(server: RunningServer) -> Iterator[Callable[..., WebSocket]]:
    opened: list[WebSocket] = []

    def connect(**options: Any) -> WebSocket:
        opened.append(WebSocket(address(server), **options))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def test_the_manifest_has_the_address(server: RunningServer) -> None:
    _, manifest = server.call("GET", "/ojs/manifest")
    websocket = f"ws{server.url.removeprefix('http')}/ojs/v1/ws"
    assert manifest["extensions"]["realtime"] == {"sse": True, "websocket": websocket}


def test_events_of_a_job(server: RunningServer, connect: Callable[..., WebSocket]) -> None:
    client = connect(subprotocols=["ojs.v1"])
    assert client.subprotocol == "ojs.v1"
    hello = client.ask({"action": "hello"})
    assert hello["type"] == "hello"
    job = server.enqueue(options={"queue": "live"})["id"]
    other = server.enqueue(options={"queue": "other"})["id"]
    channel = f"job:{job}"
    assert client.ask({"action": "subscribe", "channel": channel}) == {
        "type": "subscribed",
        "channel": channel,
        "state": "available",
    }
    assert {each["id"] for each in server.fetch("other") + server.fetch("live")} == {job, other}
    message = client.message()
    if message["data"]["from"] == "pending":
        # What happened just before the subscription may come after it.
        message = client.message()
    assert (message["type"], message["channel"]) == ("event", channel)
    assert message["event"] == "job.state_changed"
    data = message["data"]
    assert (data["job_id"], data["from"], data["to"]) == (job, "available", "active")
    # The ID is that of the event in the log.
    _, log = server.call("GET", "/ojs/v1/events?queue=live")
    assert message["id"] in [each["id"] for each in log["events"]]
    server.call("POST", "/ojs/v1/workers/ack", {"job_id": job})
    assert client.message()["data"]["to"] == "completed"


def test_events_come_soon(server: RunningServer, connect: Callable[..., WebSocket]) -> None:
    client = connect()
    client.ask({"action": "subscribe", "channel": "all"})

    def one_s() -> float:
        started = time.monotonic()
        job = server.enqueue(options={"queue": "soon"})
        assert client.message()["data"]["job_id"] == job["id"]
        return time.monotonic() - started

    # The stream is read each 0.1 s; what else this machine does delays some of them.
    assert min(one_s() for _ in range(10)) < 0.4


def test_a_ticket_is_used_once(server: RunningServer) -> None:
    url = address(server)
    WebSocket(url).close()
    for again in (url, url + "x", url.partition("?")[0]):
        with pytest.raises(Rejected) as rejected:
            WebSocket(again)
        error = json.loads(rejected.value.body)["error"]
        code = (401, "unauthenticated") if "?" not in again else (403, "permission_denied")
        assert (rejected.value.status, error["code"]) == code


@pytest.mark.parametrize(
    ("origin", "accepted"),
    [("own", True), ("https://evil.example.com", False), ("null", False), (None, True)],
)
def test_pages_of_other_sites(server: RunningServer, origin: str | None, accepted: bool) -> None:
    headers = {} if origin is None else {"origin": origin if origin != "own" else server.url}
    url = address(server)
    if accepted:
        client = WebSocket(url, headers=headers)
        assert client.ask({"action": "ping"}) == {"type": "pong"}
        client.close()
        return
    with pytest.raises(Rejected) as rejected:
        WebSocket(url, headers=headers)
    assert rejected.value.status == 403
    # The ticket is still there for whom it was made.
    WebSocket(url).close()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("no JSON", "invalid_payload"),
        ("[" * 1_000 + "]" * 1_000, "invalid_payload"),
        ('{"a":' * 1_000 + "1" + "}" * 1_000, "payload_too_large"),
        ("{}", "invalid_request"),
        ('{"action":"subscribe","channel":"job:x"}', "invalid_request"),
        (json.dumps({"action": "ping", "more": "x" * 5_000}), "payload_too_large"),
    ],
)
def test_bad_messages_are_answered(connect: Callable[..., WebSocket], text: str, code: str) -> None:
    client = connect()
    answer = client.ask(text)
    assert (answer["type"], answer["code"]) == ("error", code)
    assert client.ask({"action": "ping"}) == {"type": "pong"}


def test_a_binary_message_is_answered(connect: Callable[..., WebSocket]) -> None:
    client = connect()
    client.send_event(BytesMessage(data=b'{"action":"ping"}'))
    assert client.message()["code"] == "invalid_payload"


def test_129_kb_end_the_connection(connect: Callable[..., WebSocket]) -> None:
    client = connect()
    client.send_event(TextMessage(data=json.dumps({"action": "x" * 129 * 1_024})))
    assert client.closed() == 1009


def test_a_plain_request(server: RunningServer) -> None:
    client = http.client.HTTPConnection(server.address, timeout=60)
    client.request("GET", "/ojs/v1/ws?ticket=x")
    answer = client.getresponse()
    error = json.loads(answer.read())["error"]
    assert (answer.status, answer.headers["Upgrade"]) == (426, "websocket")
    assert error["details"]["field"] == "Upgrade"
    client.close()


def test_a_reset_ends_connections(tmp_path: Path) -> None:
    """And a shutdown is announced to the next one."""
    server = RunningServer(tmp_path / "data", tmp_path / "printed")
    client = WebSocket(address(server))
    client.ask({"action": "ping"})
    stale = address(server)
    assert server.call("POST", "/ojs/v1/admin/reset")[0] == 200
    assert client.closed() == 1012
    with pytest.raises(Rejected):
        WebSocket(stale)
    client = WebSocket(address(server))
    assert client.ask({"action": "ping"}) == {"type": "pong"}
    server.process.terminate()
    assert client.message()["event"] == "server.shutdown"
    assert client.closed() == 1001
    assert server.process.wait(30) == 0
    assert "Traceback" not in server.printed


def test_a_clock_that_is_moved_ends_old_connections(tmp_path: Path) -> None:
    """As API Gateway does after two hours. A client connects again."""
    server = RunningServer(tmp_path / "data", tmp_path / "printed", "--test-clock")
    client = WebSocket(address(server))
    client.ask({"action": "ping"})
    late = address(server)
    clock = "/ojs/v1/admin/clock"
    assert server.call("POST", clock, {"advance_ms": 3_600_000})[0] == 200
    with pytest.raises(Rejected):
        WebSocket(late)
    assert client.ask({"action": "ping"}) == {"type": "pong"}
    assert server.call("POST", clock, {"advance_ms": 3_600_000})[0] == 200
    assert client.closed() == 1001
    server.end()


def test_keys(tmp_path: Path) -> None:
    """Who connects is who asked for the ticket."""
    server = RunningServer(tmp_path / "data", tmp_path / "printed", "--keys")
    assert server.call("POST", TICKETS, {})[0] == 401
    first = (tmp_path / "data" / "first-key").read_text().strip()

    def call(method: str, path: str, body: Any, key: str) -> Any:
        client = http.client.HTTPConnection(server.address, timeout=60)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        client.request(method, path, json.dumps(body), headers)
        answer = json.loads(client.getresponse().read())
        client.close()
        return answer

    key = {"name": "worker", "scopes": ["work", "jobs:read"], "queues": ["mail"]}
    secret = call("POST", "/ojs/v1/admin/keys", key, first)["secret"]
    jobs = {
        queue: call(
            "POST", "/ojs/v1/jobs", {"type": "t", "args": [], "options": {"queue": queue}}, first
        )["job"]["id"]
        for queue in ("mail", "other")
    }
    ticket = call("POST", TICKETS, {}, secret)
    client = WebSocket(f"{ticket['url']}?ticket={ticket['ticket']}")
    answers = {
        channel: client.ask({"action": "subscribe", "channel": channel})
        for channel in (f"job:{jobs['mail']}", f"job:{jobs['other']}", "queue:mail", "all")
    }
    codes = [answer.get("code", answer["type"]) for answer in answers.values()]
    assert codes == ["subscribed", "not_found", "permission_denied", "permission_denied"]
    client.close()
    server.end()


def test_an_end_of_the_client(server: RunningServer, connect: Callable[..., WebSocket]) -> None:
    client = connect()
    client.send_event(Ping(payload=b"x"))
    assert client.event() is not None
    client.send_event(CloseConnection(code=1000, reason="done"))
    closing = client.event()
    assert isinstance(closing, CloseConnection)
    assert closing.code == 1000
    assert server.call("GET", "/ojs/v1/health")[0] == 200
