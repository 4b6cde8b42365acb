"""Realtime on a whole local server: WebSocket connections, rings, and server-sent events."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx
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


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers with the same data, one after the other."""
    started: list[RunningServer] = []

    def start(*arguments: str) -> RunningServer:
        started.append(RunningServer(tmp_path / "data", tmp_path / "printed", *arguments))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.end()


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
        "last_event_id": ANY,
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


def test_a_subscription_counts_at_once(
    server: RunningServer, connect: Callable[..., WebSocket]
) -> None:
    """Also a second one of a channel, which a container on AWS learns of within 2 s."""
    server.enqueue(options={"queue": "twice"})
    clients = []
    for number in range(1, 4):
        clients.append(connect())
        channel = {"action": "subscribe", "channel": "queue:twice"}
        assert clients[-1].ask(channel)["type"] == "subscribed"
        job = server.enqueue(options={"queue": "twice"})["id"]
        for client in clients:
            while client.message()["data"]["job_id"] != job:
                assert number == 1  # the job that is older than the first subscription


def test_events_come_soon(server: RunningServer, connect: Callable[..., WebSocket]) -> None:
    client = connect()
    client.ask({"action": "subscribe", "channel": "all"})

    def one_s() -> float:
        started = time.monotonic()
        job = server.enqueue(options={"queue": "soon"})
        while client.message()["data"]["job_id"] != job["id"]:
            pass  # events of earlier tests
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


def test_a_reset_ends_connections(start: Callable[..., RunningServer]) -> None:
    """And a shutdown is announced to the next one."""
    server = start()
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


def test_a_clock_that_is_moved_ends_old_connections(start: Callable[..., RunningServer]) -> None:
    """As API Gateway does after two hours. A client connects again."""
    server = start("--test-clock")
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


def test_keys(start: Callable[..., RunningServer], tmp_path: Path) -> None:
    """Who connects is who asked for the ticket."""
    server = start("--keys")
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


def test_an_end_of_the_client(server: RunningServer, connect: Callable[..., WebSocket]) -> None:
    client = connect()
    client.send_event(Ping(payload=b"x"))
    assert client.event() is not None
    client.send_event(CloseConnection(code=1000, reason="done"))
    closing = client.event()
    assert isinstance(closing, CloseConnection)
    assert closing.code == 1000
    assert server.call("GET", "/ojs/v1/health")[0] == 200


# --- workers --------------------------------------------------------------------------------------


def listening(server: RunningServer, client: WebSocket, queue: str) -> Callable[..., Any]:
    """A fetch of a worker that listens; the first two list it."""
    connection = client.ask({"action": "hello"})["connection"]

    def fetch(listed: bool | None = True, **more: Any) -> Any:
        body = {"queues": [queue], "count": 1, "worker_id": f"w-{connection}", **more}
        body["listen"] = {"connection": connection, "listed": listed}
        status, answer = server.call("POST", "/ojs/v1/workers/fetch", body)
        assert status == 200, answer
        return answer

    assert fetch(listed=False)["listen"] == {"listed": True}
    assert fetch()["next_ms"] > 10_000
    return fetch


def rung(client: WebSocket) -> str:
    """The queue of the ring that comes next."""
    ring = client.message()
    assert ring["type"] == "ring"
    return str(ring["queue"])


def test_an_idle_worker_is_rung(server: RunningServer, connect: Callable[..., WebSocket]) -> None:
    client = connect()
    fetch = listening(server, client, "rung")
    job = server.enqueue(options={"queue": "rung"})["id"]
    # It was posted before the answer to the push.
    assert rung(client) == "rung"
    answer = fetch(rung=["rung"])
    assert [each["id"] for each in answer["jobs"]] == [job]
    assert answer["listen"] == {"listed": False}


def test_a_worker_that_left_is_passed_over(
    server: RunningServer, connect: Callable[..., WebSocket]
) -> None:
    gone, there = connect(), connect()
    listening(server, gone, "left")
    listening(server, there, "left")
    gone.close()
    for _ in range(3):
        server.enqueue(options={"queue": "left"})
        assert rung(there) == "left"


def test_moving_the_clock_rings(start: Callable[..., RunningServer]) -> None:
    """No test waits for a worker's next look, also after hours of its clock."""
    server = start("--test-clock")
    client = WebSocket(address(server))
    fetch = listening(server, client, "due")
    for hours in (0.5, 0.7):
        now_ms = server.call("POST", "/ojs/v1/admin/clock", {"advance_ms": 0})[1]["now_ms"]
        due = datetime.fromtimestamp(now_ms / 1_000 + hours * 3_600, UTC).isoformat()
        job = server.enqueue(options={"queue": "due", "scheduled_at": due})
        assert job["state"] == "scheduled"
        server.call("POST", "/ojs/v1/admin/clock", {"advance_ms": round(hours * 3_600_000) + 10})
        assert rung(client) == "due"
        assert [each["id"] for each in fetch(rung=["due"])["jobs"]] == [job["id"]]
        server.call("POST", "/ojs/v1/workers/ack", {"job_id": job["id"]})
        assert fetch(listed=False)["listen"] == {"listed": True}
    client.close()


# --- server-sent events ---------------------------------------------------------------------------


@contextlib.contextmanager
def stream(server: RunningServer, path: str, **headers: str) -> Iterator[Iterator[Any]]:
    """The events of a stream, read as the official Python SDK reads them: ID, type, data.

    It and the JavaScript SDK send this request alone, with a channel.
    """
    sent = {"Accept": "text/event-stream", "Cache-Control": "no-cache", **headers}
    with (
        httpx.Client(timeout=60, trust_env=False) as client,
        client.stream("GET", f"{server.url}{path}", headers=sent) as response,
    ):
        response.raise_for_status()
        yield _events(response.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[Any]:
    kind, event_id, data = "", "", ""
    for line in lines:
        if line == "":
            if data:
                yield event_id, kind or "message", json.loads(data)
            kind, event_id, data = "", "", ""
        elif line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("id: "):
            event_id = line[4:]
        elif line.startswith("data: "):
            data = line[6:]


@pytest.mark.parametrize("colon", [":", "%3A"])
def test_the_sdks_follow_a_job(server: RunningServer, colon: str) -> None:
    job = server.enqueue(options={"queue": f"sdk{len(colon)}"})["id"]
    path = f"/ojs/v1/events/stream?channel=job{colon}{job}"
    with stream(server, path) as events:
        found = [next(events)]
        server.fetch(f"sdk{len(colon)}")
        found.append(next(events))
        server.call("POST", "/ojs/v1/workers/ack", {"job_id": job})
        # The final state ends the stream, and so the loop of a client that does not reconnect.
        found += list(events)
    assert [(kind, data["job_id"], data["to"]) for _, kind, data in found] == [
        ("job.state_changed", job, state) for state in ("available", "active", "completed")
    ]
    # A client that comes back all the same is told to stop.
    last = {"Last-Event-ID": found[-1][0]}
    assert httpx.get(f"{server.url}{path}", headers=last, trust_env=False).status_code == 204


@pytest.mark.parametrize("colon", [":", "%3A"])
def test_the_sdks_follow_a_queue(server: RunningServer, colon: str) -> None:
    queue = f"followed{len(colon)}"
    server.enqueue(options={"queue": queue})
    path = f"/ojs/v1/events/stream?channel=queue{colon}{queue}"
    with stream(server, path) as events:
        other = server.enqueue(options={"queue": "not-followed"})["id"]
        jobs = [server.enqueue(options={"queue": queue})["id"] for _ in range(3)]
        found = [next(events) for _ in jobs]
    assert [data["job_id"] for _, _, data in found] == jobs
    assert other not in jobs
    # Back with the ID of the first: nothing is lost, nothing twice.
    more = server.enqueue(options={"queue": queue})["id"]
    with stream(server, path, **{"Last-Event-ID": found[0][0]}) as events:
        again = [next(events) for _ in range(3)]
    assert [data["job_id"] for _, _, data in again] == [*jobs[1:], more]


def test_streams_that_are_refused(server: RunningServer) -> None:
    for path, status in (
        ("/ojs/v1/queues/never-made/events", 404),
        ("/ojs/v1/jobs/01968f2a-0000-7000-8000-000000000000/events", 404),
        ("/ojs/v1/events/stream?channel=x", 400),
    ):
        answer = httpx.get(f"{server.url}{path}", trust_env=False)
        assert answer.status_code == status
        assert answer.headers["content-type"].startswith("application/")


def test_a_revoked_key_ends_a_stream(start: Callable[..., RunningServer], tmp_path: Path) -> None:
    server = start("--keys")
    first = (tmp_path / "data" / "first-key").read_text().strip()
    owner = {"Authorization": f"Bearer {first}"}
    with httpx.Client(base_url=server.url, headers=owner, timeout=60, trust_env=False) as api:
        key = {"name": "reader", "scopes": ["admin:read"]}
        made = api.post("/ojs/v1/admin/keys", json=key).json()
        reader = {"Authorization": f"Bearer {made['secret']}"}
        api.post("/ojs/v1/jobs", json={"type": "t", "args": []})
        with stream(server, "/ojs/v1/events/stream", **reader) as events:
            api.post("/ojs/v1/jobs", json={"type": "t", "args": []})
            next(events)
            api.delete(f"/ojs/v1/admin/keys/{made['key']['id']}")
            assert list(events) == []


def test_a_shutdown_ends_streams(start: Callable[..., RunningServer]) -> None:
    server = start()
    with stream(server, "/ojs/v1/events/stream") as events:
        server.enqueue()
        event_id, _, _ = next(events)
        server.process.terminate()
        last_id, kind, data = next(events)
        assert kind == "server.shutdown"
        assert data["grace_period_ms"] == 0
        assert list(events) == []
    assert server.process.wait(30) == 0
    # It comes back with the ID of the cursor, and sees what came after.
    server = start()
    job = server.enqueue()["id"]
    with stream(server, "/ojs/v1/events/stream", **{"Last-Event-ID": last_id}) as events:
        assert next(events)[2]["job_id"] == job
    with stream(server, "/ojs/v1/events/stream", **{"Last-Event-ID": event_id}) as events:
        assert next(events)[2]["job_id"] == job
