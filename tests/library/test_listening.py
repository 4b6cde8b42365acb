"""When a worker with a connection fetches, and what it does without one."""

from __future__ import annotations

import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from ojs_aws import Job, Worker
from ojs_aws.client import link
from ojs_aws.worker import listening
from ojs_aws.worker.listening import Listening
from tests.library.socket_stub import SocketStub, sockets
from tests.library.stub import StubServer, made, until, working

FETCH = "workers/fetch"
LISTED: dict[str, Any] = {"listen": {"listed": True}, "next_ms": 300_000}


class FakeTime:
    """The clock of `listening`."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 5_000


class Listener:
    """A worker's listening without a worker, by hand."""

    def __init__(self, clock: FakeTime, **settings: Any) -> None:
        self.clock = clock
        self.calls: list[str] = []
        options: dict[str, Any] = {"queues": ["q"], **settings}
        self.inner = Listening(
            Worker(**options).settings, lambda _call: None,
            lambda: self.calls.append("wake"), lambda: self.calls.append("beat"),
        )  # fmt: skip

    def hear(self, **message: Any) -> None:
        with pytest.raises(StopIteration):
            self.inner.heard(message).send(None)

    def fetch(self, jobs: int = 0, *, full: bool = False, **answer: Any) -> float | None:
        self.asked = self.inner.asks()
        found = [Job("j", "t", attempt=1)] * jobs
        return self.inner.answered(self.asked, answer, found, full=full)

    @property
    def due_s(self) -> float:
        return self.inner.due() - self.clock.now

    def settle(self) -> None:
        """Connect, and let the time pass in which it polls."""
        self.hear(type="hello", connection="c1")
        self.fetch(**LISTED)
        self.clock.now += 20
        self.fetch(**LISTED)
        self.clock.now += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    found = FakeTime()
    monkeypatch.setattr(listening, "time", found)
    return found


@pytest.fixture
def idle(clock: FakeTime) -> Listener:
    found = Listener(clock)
    found.settle()
    return found


def test_a_new_connection_is_listed_at_once(clock: FakeTime) -> None:
    worker = Listener(clock)
    assert worker.inner.asks() == {}
    assert worker.due_s == math.inf
    worker.hear(type="hello", connection="c1")
    assert worker.due_s <= 0
    assert worker.calls == ["wake"]
    # At first it polls too: containers of the server don't know of it yet.
    assert worker.fetch(**LISTED) == 4
    assert worker.asked == {"listen": {"connection": "c1", "listed": False}}
    clock.now += 14
    assert worker.fetch(listen={"listed": True}, next_ms=500) == 0.5
    assert worker.asked == {"listen": {"connection": "c1", "listed": True}}
    assert worker.inner.idle_s() == 0
    clock.now += 1.1
    assert worker.fetch(**LISTED) == 300
    assert worker.inner.idle_s() == 300


@pytest.mark.parametrize("listed", [True, False, None])
def test_what_the_server_tells_is_sent_with_the_next_fetch(
    idle: Listener, listed: bool | None
) -> None:
    idle.fetch(2, full=True, listen={"listed": listed})
    idle.fetch(**LISTED)
    assert idle.asked["listen"] == {"connection": "c1", "listed": listed}


def test_after_a_failure_it_does_not_know(idle: Listener, clock: FakeTime) -> None:
    idle.hear(type="ring", queue="q")
    assert idle.inner.asks()["rung"] == ["q"]
    idle.inner.failed()
    # It must get jobs even if the server fails to list it.
    idle.fetch()
    assert idle.asked == {}
    idle.hear(type="ring", queue="q")
    clock.now += 1
    assert idle.inner.asks() == {"listen": {"connection": "c1", "listed": None}, "rung": ["q"]}


def test_rings_lead_to_one_fetch_and_one_after_it(idle: Listener, clock: FakeTime) -> None:
    for _ in range(50):
        idle.hear(type="ring", queue="q")
    assert idle.due_s <= 0
    asked = idle.inner.asks()
    assert asked["rung"] == ["q"]
    for _ in range(50):
        idle.hear(type="ring", queue="q")
    assert idle.inner.answered(asked, LISTED, [Job("j", "t")], full=False) == 300
    assert idle.due_s == pytest.approx(0.1)
    clock.now += 0.1
    assert idle.fetch(1, **LISTED) == 300
    assert idle.due_s == math.inf


def test_a_rung_fetch_that_finds_nothing_is_repeated_twice(idle: Listener, clock: FakeTime) -> None:
    idle.hear(type="ring", queue="q")
    for pause_s in (0.1, 0.3):
        idle.fetch(**LISTED)
        assert idle.asked["rung"] == ["q"]
        assert idle.due_s == pytest.approx(pause_s)  # 75 ms, and 100 ms after the one before
        clock.now += idle.due_s
    idle.fetch(**LISTED)
    assert idle.asked["rung"] == ["q"]
    assert idle.due_s == math.inf


def test_a_fetch_for_a_job_in_the_index_is_not_repeated(idle: Listener) -> None:
    idle.hear(type="ring", queue="q", indexed=True)
    idle.fetch(**LISTED)
    assert idle.asked["rung"] == ["q"]
    assert idle.due_s == math.inf


def test_a_ring_for_later_sets_a_timer(idle: Listener, clock: FakeTime) -> None:
    at_ms = round((clock.time() + 30) * 1_000)
    idle.hear(type="ring", queue="q", at_ms=at_ms)
    idle.hear(type="ring", queue="q", at_ms=at_ms + 60_000)
    assert idle.due_s == pytest.approx(30)
    idle.fetch(**LISTED)
    assert "rung" not in idle.asked
    clock.now += 30.001
    assert idle.due_s <= 0
    idle.fetch(**LISTED)
    assert idle.asked["rung"] == ["q"]
    # It is not repeated: another worker may have taken the job.
    assert idle.due_s == pytest.approx(60, abs=0.1)
    # A time that the clocks cannot agree on is not waited for.
    other = Listener(clock)
    other.hear(type="ring", queue="q", at_ms=1e300)
    assert other.due_s == pytest.approx(600)


def test_a_timer_in_the_past_is_a_ring(idle: Listener) -> None:
    idle.hear(type="ring", queue="q", at_ms=1)
    assert idle.due_s <= 0


@pytest.mark.parametrize("next_ms", [None, -1, "soon", True, [], math.nan])
def test_without_a_time_it_polls(idle: Listener, next_ms: object) -> None:
    assert idle.fetch(listen={"listed": True}, next_ms=next_ms) is None
    assert idle.inner.idle_s() == 0
    assert idle.fetch(listen=[], next_ms=next_ms) is None
    assert idle.fetch() is None


@pytest.mark.parametrize(
    "message",
    [{"type": "ring"}, {"type": "ring", "queue": 7}, {"type": "ring", "queue": "q", "at_ms": "x"},
     {"type": "hello"}, {"type": "?"}, {}],
)  # fmt: skip
def test_messages_that_make_no_sense_are_ignored(idle: Listener, message: dict[str, Any]) -> None:
    idle.hear(**message)
    assert idle.due_s == math.inf


def test_only_its_own_queues_are_named(idle: Listener, clock: FakeTime) -> None:
    idle.hear(type="ring", queue="other")
    assert "rung" not in idle.inner.asks()
    pool = Listener(clock, queues=None, pool="p")
    pool.settle()
    pool.hear(type="ring", queue="other")
    assert pool.inner.asks()["rung"] == ["other"]


def test_many_rings_take_no_more_room(idle: Listener) -> None:
    for number in range(2_000):
        idle.hear(type="ring", queue=f"q{number}")
    assert len(idle.inner._rings) == 1_000


def test_a_beat_is_asked_for(idle: Listener) -> None:
    idle.hear(type="beat")
    assert idle.calls[-1] == "beat"


def test_where_rings_are_missing_it_polls_for_ten_minutes(idle: Listener, clock: FakeTime) -> None:
    for number in range(3):
        clock.now += 300
        assert idle.fetch(1, **LISTED) == (4 if number == 2 else 300)
    clock.now += 599
    assert idle.fetch(**LISTED) == 4
    clock.now += 1.1
    assert idle.fetch(**LISTED) == 300


def test_rings_that_come_and_jobs_that_were_due_are_not_missing(
    idle: Listener, clock: FakeTime
) -> None:
    for _ in range(5):
        for _ in range(2):
            clock.now += 300
            assert idle.fetch(1, **LISTED) == 300
        idle.hear(type="ring", queue="q")
        assert idle.fetch(1, **LISTED) == 300
    for job in (
        Job("j", "t", attempt=1, scheduled_at="2026-11-28T09:00:00Z"),
        Job("j", "t", attempt=2),
    ):
        for _ in range(4):
            clock.now += 300
            asked = idle.inner.asks()
            assert idle.inner.answered(asked, LISTED, [job], full=False) == 300
    for _ in range(4):
        clock.now += 10  # a fetch with a report, before the fallback
        assert idle.fetch(1, **LISTED) == 300


def test_a_lost_connection_means_polling_within_four_seconds(idle: Listener) -> None:
    idle.inner.lost(OSError())
    assert 0 <= idle.due_s <= 4
    assert idle.inner.idle_s() == 0
    assert idle.fetch() is None
    assert idle.asked == {}
    # What was sent on the earlier connection says nothing about the new one.
    idle.hear(type="hello", connection="c2")
    asked = idle.inner.asks()
    idle.hear(type="hello", connection="c3")
    assert idle.inner.answered(asked, LISTED, [], full=False) is None
    assert idle.inner.asks()["listen"] == {"connection": "c3", "listed": False}
    assert idle.fetch(**LISTED) == 300  # its group is known still


# --- with a worker and a server -----------------------------------------------------------------


@pytest.fixture
def socket(monkeypatch: pytest.MonkeyPatch) -> Iterator[SocketStub]:
    monkeypatch.setattr(link, "_PAUSES_S", (0.01, 0.02))
    monkeypatch.setattr(listening, "_SETTLING_S", 0.0)
    with sockets() as found:
        yield found


@pytest.fixture
def stub(socket: SocketStub) -> StubServer:
    found = StubServer()
    found.socket_url = socket.url
    found.more_of_fetch = lambda body: LISTED if "listen" in body else {}
    return found


def run(stub: StubServer, **options: Any) -> tuple[Worker, list[str]]:
    worker, done = made(stub, **options), []
    worker.handler("t")(lambda job: done.append(job.id))
    return worker, done


def wait_until_listed(stub: StubServer, connection: str = "c0") -> None:
    until(lambda: any(
        body["listen"]["connection"] == connection for body in stub.to(FETCH) if "listen" in body
    ))  # fmt: skip


def test_a_ring_starts_a_job_and_an_idle_worker_asks_no_more(
    stub: StubServer, socket: SocketStub
) -> None:
    worker, done = run(stub)
    with working(worker, stub):
        wait_until_listed(stub)
        before = len(stub.to(FETCH))
        for number in range(20):
            job_id = stub.push("t")
            socket.send({"type": "ring", "queue": "q"})
            until(lambda number=number: len(stub.acked) > number)  # type: ignore[misc]
            assert done[-1] == job_id
        # One for each job. The acks need none.
        assert len(stub.to(FETCH)) - before == 20
    assert socket.to("hello")
    until(lambda: not socket.open)


def test_the_outcome_of_a_job_that_ran_alone_does_not_wait_for_others(
    stub: StubServer, socket: SocketStub
) -> None:
    worker, _ = run(stub, report_s=600)
    with working(worker, stub):
        wait_until_listed(stub)
        stub.push("t")
        socket.send({"type": "ring", "queue": "q"})
        until(lambda: stub.acked)


def test_it_starts_within_milliseconds(stub: StubServer, socket: SocketStub) -> None:
    """On a busy machine in the time of five messages and their answers."""
    took: list[float] = []
    bare: list[float] = []
    pushed = 0.0

    def note(_job: object) -> None:
        took.append(time.monotonic() - pushed)

    worker = made(stub)
    worker.handler("t")(note)
    with working(worker, stub):
        wait_until_listed(stub)
        ringing = socket.open[0]
        with connect(f"{socket.url}?ticket=x", subprotocols=[Subprotocol("ojs.v1")]) as other:
            for number in range(50):
                asked = time.monotonic()
                other.send('{"action": "ping"}')
                other.recv()
                bare.append(time.monotonic() - asked)
                stub.push("t")
                pushed = time.monotonic()
                ringing.send('{"type": "ring", "queue": "q"}')
                until(lambda number=number: len(stub.acked) > number)  # type: ignore[misc]
                # The next ring is not within 100 ms of this one.
                assert worker._session is not None
                listens = worker._session._listening
                until(lambda: listens._apart_until < time.monotonic())  # noqa: B023
    assert statistics.median(took) < max(0.05, 5 * statistics.median(bare))


def test_without_the_setting_it_makes_no_connection(stub: StubServer, socket: SocketStub) -> None:
    worker, _ = run(stub, realtime=False)
    with working(worker, stub):
        until(lambda: len(stub.to(FETCH)) > 5)
    assert not socket.tickets
    assert not any(path == "realtime/tickets" for path, _ in stub.asked)
    assert not any("listen" in body for body in stub.to(FETCH))


@pytest.mark.parametrize(
    "fault",
    [
        lambda _request: httpx.Response(422, json={"error": {"code": "unsupported"}}),
        lambda _request: httpx.Response(404, json={}),
        lambda _request: httpx.Response(500),
        lambda _request: httpx.Response(200, json={"url": "ws://127.0.0.1:9/", "ticket": "x"}),
        lambda _request: httpx.Response(200, json={"url": "nonsense", "ticket": "x"}),
        lambda _request: httpx.Response(200, json={}),
    ],
)
def test_without_a_connection_it_polls_as_before(
    stub: StubServer, fault: Callable[[httpx.Request], httpx.Response]
) -> None:
    stub.always = lambda path: fault if path == "realtime/tickets" else None
    worker, done = run(stub)
    with working(worker, stub):
        until(lambda: any(path == "realtime/tickets" for path, _ in stub.asked))
        job_id = stub.push("t")
        until(lambda: done == [job_id])


def test_it_connects_again_and_lists_itself(stub: StubServer, socket: SocketStub) -> None:
    worker, done = run(stub)
    with working(worker, stub):
        for number in range(6):
            wait_until_listed(stub, f"c{number}")
            if number < 5:
                socket.drop()
        stub.push("t")
        socket.send({"type": "ring", "queue": "q"})
        until(lambda: done)


@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_refused_connection_does_not_stop_the_worker(
    stub: StubServer, socket: SocketStub, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    refused = {"error": {"code": "permission_denied", "message": "-"}}

    def refuse(request: httpx.Request) -> httpx.Response:
        if "listen" in (body := json.loads(request.content)):
            return httpx.Response(status, json=refused)
        stub.asked.append(("plain", body))
        return stub._answer(FETCH, body)

    stub.always = lambda path: refuse if path == FETCH else None
    worker, done = run(stub)
    with caplog.at_level(logging.WARNING), working(worker, stub):
        until(lambda: len(socket.names) >= 3)
        stub.push("t")
        until(lambda: done)
    assert not caplog.records


def test_a_server_that_cannot_list_it_gives_it_jobs(stub: StubServer, socket: SocketStub) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        if "listen" in (body := json.loads(request.content)):
            return httpx.Response(500, json={})
        return stub._answer(FETCH, body)

    stub.always = lambda path: fail if path == FETCH else None
    worker, done = run(stub)
    with working(worker, stub):
        until(lambda: any("listen" in body for body in stub.to(FETCH)))
        for _ in range(3):
            stub.push("t")
            until(lambda: len(done) == len(stub.done) + len(stub.leased) and not stub.waiting)
    assert len(done) == 3


def test_a_connection_that_the_server_does_not_know_is_replaced_once(
    stub: StubServer, socket: SocketStub
) -> None:
    stub.more_of_fetch = lambda body: {"listen": {"listed": False}} if "listen" in body else {}
    worker, done = run(stub, poll_s=0.02)
    with working(worker, stub):
        until(lambda: len([body for body in stub.to(FETCH) if "listen" in body]) > 20)
        stub.push("t")
        until(lambda: done)
    assert len(socket.names) == 2


def test_a_quiet_worker_has_no_connection(stub: StubServer, socket: SocketStub) -> None:
    worker, done = run(stub, idle_heartbeat_s=0.05)
    with working(worker, stub):
        wait_until_listed(stub)
        stub.directive = "quiet"
        socket.send({"type": "beat"})
        until(lambda: not socket.open)
        stub.directive = "running"
        wait_until_listed(stub, "c1")
        stub.push("t")
        socket.send({"type": "ring", "queue": "q"})
        until(lambda: done)


def test_a_beat_brings_a_directive_at_once(stub: StubServer, socket: SocketStub) -> None:
    worker, _ = run(stub, idle_heartbeat_s=600)
    with working(worker, stub) as thread:
        wait_until_listed(stub)
        stub.directive = "terminate"
        socket.send({"type": "beat"})
        until(lambda: not thread.is_alive())


def test_idle_heartbeats_follow_the_fetches(stub: StubServer, socket: SocketStub) -> None:
    worker, _ = run(stub, idle_heartbeat_s=0.05)
    with working(worker, stub):
        until(lambda: any(body.get("next_ms") == 600_000 for body in stub.to("workers/heartbeat")))
        before = len(stub.to("workers/heartbeat"))
        socket.send({"type": "beat"})
        until(lambda: len(stub.to("workers/heartbeat")) > before)
        assert len(stub.to("workers/heartbeat")) == before + 1
        # Without the connection, they come as before.
        stub.socket_url = None
        socket.drop()
        until(lambda: len(stub.to("workers/heartbeat")) > before + 3)
        assert "next_ms" not in stub.to("workers/heartbeat")[-1]
