"""Pages that the server tells of changes: what they read, and what they do when it is gone."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.conftest import Opener, Screen
from tests.dashboard.minute import OVERVIEW_HOUR, OVERVIEW_MINUTE
from tests.dashboard.world import Caller, push
from tests.local.conftest import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

TICKETS = "/ojs/v1/realtime/tickets"
QUEUE = "/ojs/v1/queues/mail"
NO_EVENTS = {"authorizer": "keys", "realtime": False}
HIDE = """hidden => { Object.defineProperty(document, "hidden", {value: hidden,
    configurable: true}); document.dispatchEvent(new Event("visibilitychange")); }"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("realtime")
    running = RunningServer(folder / "data", folder / "log", "--keys")
    push(Caller(running.url, (running.data / "first-key").read_text().strip()), "mail", "t.wait")
    yield running
    running.end()


@pytest.fixture(scope="module")
def key(server: RunningServer) -> str:
    return (server.data / "first-key").read_text().strip()


@pytest.fixture(scope="module")
def call(server: RunningServer, key: str) -> Caller:
    return Caller(server.url, key)


def counted(shown: Screen) -> Counter[str]:
    """What was asked of the API, by path."""
    paths = (path.partition("?")[0] for _, path in shown.asked)
    return Counter(path for path in paths if path.startswith("/ojs/v1/"))


def available(shown: Screen, number: int) -> None:
    value = shown.page.locator("a.number", has_text="available").locator(".value")
    value.filter(has_text=f"{number}").wait_for()


class Line:
    """The server's end of the connection, which tests hold in its place."""

    def __init__(self, shown: Screen, *, refuses: str = "", drops: bool = False) -> None:
        self.said: list[dict[str, Any]] = []
        self.opened = 0
        self.closed = 0
        self.socket: Any = None
        self._refuses = refuses
        self._drops = drops
        shown.page.route_web_socket("**/ojs/v1/ws?*", self._open)

    def _open(self, socket: Any) -> None:
        self.opened += 1
        if self._drops:
            socket.close(code=1011)
            return
        self.socket = socket
        socket.on_message(self._heard)
        socket.on_close(lambda *_: self._end(socket))

    def _end(self, socket: Any) -> None:
        """Answer the end of a connection, which is told of again then."""
        if socket is self.socket:
            self.socket = None
            self.closed += 1
            socket.close()

    def _heard(self, text: str) -> None:
        message = json.loads(text)
        self.said.append(message)
        if message["action"] != "subscribe":
            return
        channel = message["channel"]
        if self._refuses:
            self.tell(type="error", code=self._refuses, message="No.", channel=channel)
        else:
            self.tell(type="subscribed", channel=channel, last_event_id="evt_1")

    def tell(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def changed(self, *queues: str) -> None:
        self.tell(type="changed", queues=queues)

    @property
    def channels(self) -> list[str]:
        return [each["channel"] for each in self.said if each["action"] == "subscribe"]


def pause(shown: Screen) -> None:
    """Have the page's time pass as it is told to, and not by itself."""
    now_ms = shown.page.evaluate("() => Date.now()")
    shown.page.clock.pause_at(datetime.fromtimestamp(now_ms / 1_000 + 1, UTC))
    shown.quiet()
    shown.asked.clear()


def run(shown: Screen, seconds: int, step: int = 1) -> Counter[str]:
    """Let time pass, and return what the page asks for in it."""
    for _ in range(seconds // step):
        shown.page.clock.run_for(1_000 * step)
        shown.quiet()
    return counted(shown)


def held(shown: Screen, path: str, **how: Any) -> Line:
    """A page with a connection whose other end is here. What follows its opening is over."""
    line = Line(shown, **how)
    shown.page.clock.install()
    shown.open(path)
    shown.until(lambda: line.said or line.opened)
    pause(shown)
    run(shown, 13)
    shown.asked.clear()
    return line


# --- changes --------------------------------------------------------------------------------------


def test_a_new_job_is_shown_without_a_poll(screen: Opener, call: Caller) -> None:
    before = call("GET", "/queues/mail")["depth"]
    shown = screen()
    with shown.page.expect_websocket() as opened:
        shown.open("queues/mail")
    available(shown, before)
    # A subscription takes effect within two seconds.
    shown.page.wait_for_timeout(4_000)
    shown.page.set_default_timeout(6_000)
    push(call, "mail", "t.wait")
    available(shown, before + 1)
    assert counted(shown)[QUEUE] <= 3
    assert counted(shown)[TICKETS] == 1
    assert opened.value.url.startswith(f"ws{shown.url.removeprefix('http')}/ojs/v1/ws?ticket=")


def test_one_change_is_read_at_once_and_when_counters_have_followed(screen: Opener) -> None:
    line = held(shown := screen(), "queues/mail")
    assert line.said[0] == {"action": "subscribe", "channel": "all", "digest": True}
    line.changed("other")
    assert not run(shown, 20)
    line.changed("other", "mail")
    assert run(shown, 3)[QUEUE] == 1
    assert run(shown, 15)[QUEUE] == 2
    assert run(shown, 30)[QUEUE] == 2


def test_reads_are_bounded_while_changes_go_on(screen: Opener) -> None:
    line = held(shown := screen(), "queues/mail")
    for _ in range(120):
        line.changed("mail")
        line.changed("mail")
        run(shown, 1)
    # After 0, 2, 6, and 14 seconds, and then each 15 seconds, as without a connection.
    assert 8 <= counted(shown)[QUEUE] <= 12


def test_changes_of_a_hidden_tab_are_read_when_it_is_seen(screen: Opener) -> None:
    line = held(shown := screen(), "queues/mail")
    shown.page.evaluate(HIDE, True)
    for _ in range(5):
        line.changed("mail")
        assert not run(shown, 10)
    shown.page.evaluate(HIDE, False)
    assert run(shown, 1)[QUEUE] == 1
    # The connection of a tab that stays hidden ends, and is not opened until it is seen.
    shown.page.evaluate(HIDE, True)
    shown.asked.clear()
    assert not run(shown, 1_200, 60)
    assert (line.opened, line.closed) == (1, 1)
    shown.page.evaluate(HIDE, False)
    run(shown, 5)
    shown.until(lambda: line.opened == 2)


def test_a_page_of_a_job_follows_this_job(screen: Opener, call: Caller) -> None:
    ident = push(call, "mail", "t.wait")
    line = held(shown := screen(), f"jobs/{ident}")
    channel, path = f"job:{ident}", f"/ojs/v1/admin/jobs/{ident}"
    assert line.channels == [channel]
    assert "digest" not in line.said[0]
    line.changed("mail")
    assert not run(shown, 20)
    line.tell(type="event", channel=channel, event="job.state_changed", data={}, id="evt_2")
    assert run(shown, 2)[path] == 1
    shown.page.clock.resume()
    shown.go("queues/mail")
    shown.until(lambda: len(line.said) == 3)
    assert {"action": "unsubscribe", "channel": channel} in line.said
    assert line.channels == [channel, "all"]


def test_a_job_that_is_cancelled_elsewhere(screen: Opener, call: Caller) -> None:
    """With the events of the server."""
    ident = push(call, "mail", "t.wait")
    shown = screen()
    with shown.page.expect_websocket():
        shown.open(f"jobs/{ident}")
    shown.page.wait_for_timeout(2_500)
    shown.page.set_default_timeout(6_000)
    call("DELETE", f"/jobs/{ident}")
    shown.page.locator("dd .state", has_text="cancelled").or_(
        shown.page.locator('[data-state="cancelled"]')
    ).first.wait_for()


# --- who may read what ----------------------------------------------------------------------------


def test_a_key_that_reads_jobs_alone_follows_jobs_alone(screen: Opener, call: Caller) -> None:
    ident = push(call, "mail", "t.wait")
    secret = call("POST", "/admin/keys", {"name": "reader", "scopes": ["jobs:read"]})["secret"]
    shown = screen(signed_in=secret)
    line = Line(shown)
    shown.open("jobs").quiet()
    shown.page.wait_for_timeout(500)
    assert (line.opened, counted(shown)[TICKETS]) == (0, 0)
    shown.go(f"jobs/{ident}")
    shown.until(lambda: line.channels == [f"job:{ident}"])


@pytest.mark.parametrize("code", ["too_many", "permission_denied", "unsupported"])
def test_a_page_whose_channel_is_refused_polls(screen: Opener, code: str) -> None:
    line = held(shown := screen(), "queues/mail", refuses=code)
    asked = run(shown, 60)
    assert (asked[QUEUE], asked[TICKETS], line.opened) == (4, 0, 1)


def test_a_key_that_is_revoked_ends_the_connection(screen: Opener, call: Caller, key: str) -> None:
    made = call("POST", "/admin/keys", {"name": "guest", "scopes": ["admin:read", "jobs:read"]})
    shown = screen(signed_in=made["secret"])
    line = held(shown, "queues/mail")
    call("DELETE", f"/admin/keys/{made['key']['id']}")
    line.changed("mail")
    run(shown, 2)
    shown.page.locator('[name="key"]').wait_for()
    shown.until(lambda: line.closed == 1)
    shown.asked.clear()
    assert not run(shown, 3_600, 300)
    assert line.opened == 1
    shown.page.locator('[name="key"]').fill(key)
    shown.press("Sign in")
    run(shown, 5)
    shown.until(lambda: line.opened == 2)


def test_pause_ends_the_connection(screen: Opener) -> None:
    line = held(shown := screen(), "queues/mail")
    shown.press("Live")
    shown.until(lambda: line.closed == 1)
    run(shown, 1)
    shown.asked.clear()
    assert not run(shown, 600, 60)
    shown.press("Paused")
    run(shown, 5)
    shown.until(lambda: line.opened == 2)


# --- without events -------------------------------------------------------------------------------


def test_a_server_that_sends_no_events_is_not_asked_for_any(screen: Opener) -> None:
    """`realtime` is `wake` or `off`."""
    shown = screen()
    shown.page.route(
        "**/served.json",
        lambda route: route.fulfill(json={"authorizer": "keys", "realtime": False}),
    )
    line = Line(shown)
    shown.page.clock.install()
    shown.open("queues/mail").quiet()
    pause(shown)
    assert run(shown, 60)[QUEUE] == 4
    assert (line.opened, counted(shown)[TICKETS]) == (0, 0)


@pytest.mark.parametrize("status", [403, 422])
def test_a_ticket_that_is_refused_is_not_asked_for_again(screen: Opener, status: int) -> None:
    shown = screen()
    told = {"error": {"code": "unsupported", "message": "No."}}
    shown.page.route(f"**{TICKETS}", lambda route: route.fulfill(status=status, json=told))
    shown.page.clock.install()
    shown.open("queues/mail").quiet()
    assert counted(shown)[TICKETS] == 1
    pause(shown)
    assert run(shown, 600, 5)[TICKETS] == 0


@pytest.mark.whole
def test_a_socket_that_always_closes_is_asked_for_less_and_less(screen: Opener) -> None:
    """As behind a proxy that lets no WebSocket through, or that answers 401 or 403."""
    line = held(shown := screen(), "queues/mail", drops=True)
    asked = run(shown, 3_600, 15)
    assert 5 <= asked[TICKETS] <= 60
    assert line.opened <= asked[TICKETS] + 6
    # It polls meanwhile.
    assert 200 <= asked[QUEUE] <= 242


# --- what an open overview asks for ---------------------------------------------------------------


@pytest.mark.parametrize("connected", [pytest.param(False, marks=pytest.mark.whole), True])
def test_an_hour_of_an_idle_overview(screen: Opener, connected: bool) -> None:
    shown = screen()
    if not connected:
        shown.page.route("**/served.json", lambda route: route.fulfill(json=NO_EVENTS))
        shown.page.clock.install()
        shown.open("overview").quiet()
        pause(shown)
        run(shown, 60, 15)
        shown.asked.clear()
    else:
        held(shown, "overview")
    expected = OVERVIEW_HOUR if connected else {path: 60 * n for path, n in OVERVIEW_MINUTE.items()}
    asked = run(shown, 3_600, 15)
    assert asked.keys() == expected.keys()
    # A read takes some time, by which the next is later.
    for path, number in expected.items():
        assert number * 0.9 - 1 <= asked[path] <= number + 1, (path, asked)


# --- the server ends ------------------------------------------------------------------------------


def test_a_server_that_is_killed_and_starts_anew(screen: Opener, tmp_path: Path) -> None:
    """Three times, on the same data. The page shows new jobs after each, without a storm."""
    running = RunningServer(tmp_path / "data", tmp_path / "log")
    shown = screen(signed_in="")
    shown.url = running.url
    sockets: list[Any] = []
    shown.page.on("websocket", lambda socket: sockets.append(socket))  # noqa: PLW0108
    try:
        push(Caller(running.url), "mail", "t.wait")
        shown.open("queues/mail")
        available(shown, 1)
        for number in range(2, 5):
            shown.until(lambda: sockets and not sockets[-1].is_closed())
            port = str(running.port)
            running.end(signal.SIGKILL)
            shown.until(sockets[-1].is_closed)
            count, before = len(sockets), counted(shown)
            running = RunningServer(tmp_path / "data", tmp_path / "log", "--port", port)
            push(Caller(running.url), "mail", "t.wait")
            available(shown, number)
            shown.until(lambda: len(sockets) > count)  # noqa: B023 - called here
            asked = counted(shown) - before
            # Some seconds without a server, and then one ticket and two reads.
            assert asked[TICKETS] <= 8, asked
            assert asked[QUEUE] <= 10, asked
            assert asked.total() <= 40, asked
    finally:
        shown.page.close()
        running.end()
    shown.complaints.clear()
