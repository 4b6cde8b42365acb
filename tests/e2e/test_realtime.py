"""The WebSocket API of a deployment on the emulated cloud: tickets, events, and rings.

The emulator checks tickets and roles, and sends messages, as API Gateway does. It does not repeat
the subprotocol, and has no throttles, and no end of idle connections.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from infra.local_cloud import LocalCloud, deploy, free_port, terminated_like_interrupted
from tests.e2e.cloud import WITHIN_S, Api

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.whole]


class Live:
    """The deployment, over HTTP and over WebSocket."""

    def __init__(self, cloud: LocalCloud, api: Api) -> None:
        self._cloud = cloud
        self.api = api

    def ticket(self) -> str:
        answer = self.api("POST", "/ojs/v1/realtime/tickets", {})
        assert answer.status == 201, answer
        # The address has a name that this machine may not resolve.
        parts = urlsplit(answer.body["url"])
        api_id = str(parts.hostname).split(".", maxsplit=1)[0]
        place = f"{self._cloud.url.replace('http', 'ws', 1)}/_aws/execute-api/{api_id}{parts.path}"
        return f"{place}?ticket={answer.body['ticket']}"

    def connect(self, url: str | None = None) -> ClientConnection:
        return connect(url or self.ticket(), open_timeout=WITHIN_S, compression=None)


def ask(connection: ClientConnection, message: dict[str, Any], kind: str) -> dict[str, Any]:
    """The answer to a message: the next of this type."""
    connection.send(json.dumps(message))
    return heard(connection, kind)


def heard(connection: ClientConnection, kind: str) -> dict[str, Any]:
    """The next message of this type; fails when that takes too long."""
    deadline = time.monotonic() + WITHIN_S
    while (left_s := deadline - time.monotonic()) > 0:
        found: dict[str, Any] = json.loads(connection.recv(timeout=left_s))
        if found["type"] == kind:
            return found
        assert found["type"] != "error", found
    raise AssertionError(f"no {kind} came")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with (
        terminated_like_interrupted(),
        LocalCloud(free_port(), tmp_path_factory.mktemp("live") / "cloud") as cloud,
    ):
        made = deploy(cloud.port, {"realtime": "all"}, quiet=True)
        yield Live(cloud, Api(made.direct_url, made.key))


def test_a_ticket_opens_one_connection(live: Live) -> None:
    manifest = live.api("GET", "/ojs/manifest").body
    assert manifest["extensions"]["realtime"]["websocket"].startswith("ws://")
    url = live.ticket()
    with live.connect(url) as connection:
        told = ask(connection, {"action": "hello"}, "hello")
        assert told["connection"]
        assert ask(connection, {"action": "ping"}, "pong")
        connection.send("no JSON")
        assert json.loads(connection.recv(timeout=WITHIN_S))["type"] == "error"
    for wrong, status in ((url, 403), (url[:-4] + "AAAA", 403), (url.split("?")[0], 401)):
        with pytest.raises(InvalidStatus) as refused:
            live.connect(wrong)
        assert refused.value.response.status_code == status


def test_a_page_of_the_dashboard_can_connect_to_it(live: Live) -> None:
    manifest = live.api("GET", "/ojs/manifest").body
    with urlopen(f"{live.api.url}/ojs/admin/") as page:
        policy = page.headers["content-security-policy"]
    address = manifest["extensions"]["realtime"]["websocket"]
    assert f"; connect-src 'self' {address}; " in policy
    with urlopen(f"{live.api.url}/ojs/admin/served.json") as served:
        assert json.load(served)["realtime"] is True


def test_what_happens_to_a_job_comes_to_who_subscribed(live: Live) -> None:
    job_id = live.api.push(queue="watched")["id"]
    with live.connect() as connection:
        told = ask(connection, {"action": "subscribe", "channel": f"job:{job_id}"}, "subscribed")
        assert told["state"] == "available"
        assert ask(connection, {"action": "subscribe", "channel": "queue:watched"}, "subscribed")
        live.api.fetch("watched")
        # That it was pushed can come, too: the stream is read at any time.
        happened: dict[str, dict[str, Any]] = {}
        while len(happened) < 2:
            event = heard(connection, "event")
            if event["data"]["to"] == "active":
                happened[event["channel"]] = event
        assert set(happened) == {f"job:{job_id}", "queue:watched"}
        for each in happened.values():
            assert each["event"] == "job.state_changed"
            assert (each["data"]["from"], each["data"]["to"]) == ("available", "active")
            assert "args" not in each["data"]
        assert len({each["id"] for each in happened.values()}) == 1


def test_an_idle_worker_is_rung(live: Live) -> None:
    with live.connect() as connection:
        name = ask(connection, {"action": "hello"}, "hello")["connection"]
        request: dict[str, Any] = {
            "queues": ["rung"],
            "worker_id": "w1",
            "listen": {"connection": name, "listed": False},
        }
        answer = live.api("POST", "/ojs/v1/workers/fetch", request)
        assert (answer.status, answer.body["jobs"]) == (200, []), answer
        assert answer.body["listen"] == {"listed": True}
        assert answer.body["next_ms"] > 0
        # A container reads who listens every ten seconds.
        deadline, rung = time.monotonic() + WITHIN_S, None
        while rung is None and time.monotonic() < deadline:
            job_id = live.api.push(queue="rung")["id"]
            try:
                rung = json.loads(connection.recv(timeout=1))
            except TimeoutError:
                continue
        assert rung == {"type": "ring", "queue": "rung"}
        request |= {"rung": ["rung"], "listen": {"connection": name, "listed": True}, "count": 100}
        answer = live.api("POST", "/ojs/v1/workers/fetch", request)
        assert answer.status == 200, answer
        assert job_id in [job["id"] for job in answer.body["jobs"]]
