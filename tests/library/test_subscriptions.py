"""Subscriptions and waiting, against a WebSocket server that loses, repeats and refuses."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ojs_aws import (
    AsyncClient,
    Client,
    Event,
    NotFound,
    PermissionDenied,
    RetryPolicy,
    Unreachable,
    Unsupported,
    WaitTimeout,
)
from ojs_aws.client import link, subscription
from tests.library.socket_stub import SocketStub, changed, sockets
from tests.library.stub import URL, StubServer, until

TYPES = ["job.state_changed", "job.progress"]
REFUSALS = [
    ("not_found", NotFound), ("permission_denied", PermissionDenied), ("unsupported", Unsupported)
]  # fmt: skip


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[SocketStub]:
    monkeypatch.setattr(link, "_PAUSES_S", (0.01, 0.02))
    monkeypatch.setattr(subscription, "_AGAIN_S", 0.2)
    with sockets() as found:
        yield found


@pytest.fixture
def http(stub: SocketStub) -> StubServer:
    found = StubServer()
    found.socket_url = stub.url
    return found


@pytest.fixture
def client(http: StubServer) -> Client:
    return http.client()


def ids(events: list[Event | None]) -> list[str | None]:
    return [event.id if event else None for event in events]


def test_events_are_typed_and_come_alone_or_in_batches(client: Client, stub: SocketStub) -> None:
    progress = {
        "type": "event", "channel": "queue:q", "event": "job.progress", "id": "evt_2",
        "data": {"job_id": "j", "progress": 75, "timestamp": "2026-11-28T09:00:01.000Z"},
    }  # fmt: skip
    with client.subscribe("queue:q", types=TYPES, detail=True) as events:
        stub.send(changed(1, events=[{"id": "evt_1"}]))
        stub.send({"type": "events", "events": [progress, changed(3, "discarded")]})
        first, second, third = next(events), events.get(10), events.get(10)
    assert second is not None
    assert third is not None
    assert (first.type, first.channel, first.job_id) == ("job.state_changed", "queue:q", "j")
    assert (first.from_, first.to, first.queue, first.job_type) == ("available", "active", "q", "t")
    assert first.timestamp == "2026-11-28T09:00:00.000Z"
    assert first.envelopes == [{"id": "evt_1"}]
    assert (third.to, third.envelopes) == ("discarded", [])
    assert (second.progress, second.timestamp) == (75, "2026-11-28T09:00:01.000Z")
    assert stub.to("subscribe") == [
        {"action": "subscribe", "channel": "queue:q", "batch": True, "detail": True,
         "event_types": ["job.progress", "job.state_changed"]}
    ]  # fmt: skip
    assert list(events) == []
    until(lambda: not stub.open)


def test_completed_and_failed_are_types_as_well(client: Client, stub: SocketStub) -> None:
    with client.subscribe("all", types=["job.completed", "job.failed"]) as events:
        stub.send(*(changed(n, to) for n, to in enumerate(["active", "completed", "retryable"])))
        seen = [next(events), next(events)]
    assert [(event.type, event.to) for event in seen] == [
        ("job.completed", "completed"), ("job.failed", "retryable"),
    ]  # fmt: skip
    assert stub.to("subscribe")[0]["event_types"] == ["job.state_changed"]


def test_after_a_loss_it_resumes_and_no_event_comes_twice(client: Client, stub: SocketStub) -> None:
    with client.subscribe("queue:q") as events:
        stub.send(changed(1), changed(2))
        assert ids([next(events), next(events)]) == ["evt_1", "evt_2"]
        # 2 was lost with its successors, and the log has 3 at once, 4 only later.
        late = [[changed(2), changed(3)], [changed(2), changed(3), changed(4)]]
        stub.answers = lambda message: late.pop(0) if message["action"] == "resume" else []
        stub.drop()
        assert ids([next(events), next(events)]) == ["evt_3", "evt_4"]
        stub.send(changed(4), changed(5))
        assert next(events).id == "evt_5"
    assert [each["last_event_id"] for each in stub.to("resume")] == ["evt_2", "evt_2"]
    assert len(stub.to("subscribe")) == 2
    assert len(set(stub.tickets)) == 2


def test_a_second_loss_before_the_log_has_caught_up_keeps_the_first_position(
    client: Client, stub: SocketStub
) -> None:
    with client.subscribe("queue:q") as events:
        stub.send(changed(1))
        assert next(events).id == "evt_1"
        stub.drop()
        until(lambda: stub.to("resume"))
        stub.send(changed(9))
        assert next(events).id == "evt_9"
        stub.drop()
        until(lambda: len(stub.to("subscribe")) == 3 and len(stub.to("resume")) >= 3)
    assert {each["last_event_id"] for each in stub.to("resume")} == {"evt_1"}


@pytest.mark.parametrize(
    "drops",
    [
        10,
        pytest.param(50, marks=pytest.mark.exhaustive),
        pytest.param(1_000, marks=pytest.mark.whole),
    ],
)
def test_no_event_is_lost_however_often_the_connection_is(
    client: Client, stub: SocketStub, monkeypatch: pytest.MonkeyPatch, drops: int
) -> None:
    """The log has an event some time later, and shards tell of events out of order."""
    monkeypatch.setattr(subscription, "_SETTLED_S", 0.2)
    log: list[tuple[float, int]] = []
    stub.more_of_subscribed = {"last_event_id": "evt_-1"}

    def replay(message: dict[str, Any]) -> list[dict[str, Any]]:
        if message["action"] != "resume":
            return []
        after, seen = int(message["last_event_id"][4:]) - 10, time.monotonic() - 0.1
        return [changed(number) for at, number in log if number > after and at < seen]

    stub.answers = replay

    def produce() -> None:
        for number in range(4 * drops):
            # Neighbours change places.
            log.append((time.monotonic(), number ^ 1))
            stub.tell_all(changed(number ^ 1))
            if number % 4 == 3:
                before = len(stub.to("subscribe"))
                stub.drop()
                until(lambda: len(stub.to("subscribe")) > before)  # noqa: B023

    seen: Counter[str | None] = Counter()
    with client.subscribe("queue:q") as events:
        producer = threading.Thread(target=produce, daemon=True)
        producer.start()
        while len(seen) < 4 * drops:
            event = events.get(30)
            assert event is not None
            seen[event.id] += 1
        # It waits for the connection that follows the last lost one.
        producer.join(30)
        assert not producer.is_alive()
    assert set(seen.values()) == {1}
    assert set(seen) == {f"evt_{number}" for number in range(4 * drops)}


@pytest.mark.parametrize("known", [True, False])
def test_what_cannot_be_resumed_is_a_gap(client: Client, stub: SocketStub, known: bool) -> None:
    unknown = {"type": "error", "code": "unknown_event_id", "message": "-"}
    stub.answers = lambda message: [unknown] if message["action"] == "resume" else []
    with client.subscribe("queue:q") as events:
        if known:
            stub.send(changed(1))
            next(events)
        stub.drop()
        gap = next(events)
        assert (gap.type, gap.channel) == ("system.gap", "queue:q")
        assert gap.timestamp is not None


def test_dropped_events_are_read_from_the_log_later(client: Client, stub: SocketStub) -> None:
    stub.answers = lambda message: [changed(2)] if message["action"] == "resume" else []
    dropped = {"type": "event", "event": "system.events_dropped", "id": "evt_2", "data": {}}
    with client.subscribe("queue:q") as events:
        stub.send(changed(1), {"type": "warning", "code": "events_dropped"}, dropped)
        seen = [next(events), next(events), next(events)]
    assert [event.type for event in seen][1] == "system.events_dropped"
    assert ids([seen[0], seen[2]]) == ["evt_1", "evt_2"]


def test_a_slow_reader_gets_a_gap_and_the_latest(
    client: Client, stub: SocketStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_MOST_WAITING", 3)
    with client.subscribe("queue:q") as events:
        stub.send({"type": "events", "events": [changed(n) for n in range(4)]})
        assert [next(events).type, next(events).id] == ["system.gap", "evt_3"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("not_found", NotFound),
        ("permission_denied", PermissionDenied),
        ("unsupported", Unsupported),
    ],
)
def test_a_refused_subscription_raises(
    client: Client, stub: SocketStub, code: str, kind: type[Exception]
) -> None:
    refusal = {"type": "error", "code": code, "message": "No."}
    stub.answers = lambda _message: None
    events = client.subscribe("queue:q")

    def refuse() -> None:
        until(lambda: stub.got)
        stub.send(refusal)

    threading.Thread(target=refuse, daemon=True).start()
    with pytest.raises(kind):
        events.open()


def test_a_subscription_that_is_refused_later_raises(client: Client, stub: SocketStub) -> None:
    """As after the end of a key, or of the queue."""
    with client.subscribe("queue:q") as events:
        stub.answers = lambda _message: [{"type": "error", "code": "not_found", "message": "-"}]
        stub.open[-1].send("{no json")
        stub.send({"type": "?"}, {"type": "error", "code": "not_found", "message": "-"})
        with pytest.raises(NotFound):
            next(events)
        with pytest.raises(NotFound):
            events.get()


def test_any_other_error_connects_again(client: Client, stub: SocketStub) -> None:
    with client.subscribe("queue:q") as events:
        stub.send({"type": "error", "code": "connection_ended", "message": "-"})
        until(lambda: len(stub.to("subscribe")) == 2)
        until(lambda: len(stub.open) == 1)
        stub.send(changed(1))
        assert next(events).type == "system.gap"
        assert next(events).id == "evt_1"


def test_without_realtime_it_says_so(client: Client, http: StubServer) -> None:
    http.socket_url = None
    with pytest.raises(Unsupported), client.subscribe("all"):
        pass
    http.socket_url = "ws://127.0.0.1:9/"
    with pytest.raises(Unreachable), client.subscribe("all"):
        pass
    http.fail("realtime/tickets", lambda _request: httpx.Response(200, json={"ticket": 7}))
    with pytest.raises(Unreachable), client.subscribe("all"):
        pass


def test_a_connection_is_replaced_before_it_ends(
    client: Client, stub: SocketStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_RENEWED_S", (0.1, 0.1))
    with client.subscribe("queue:q") as events:
        for number in range(300):
            until(lambda number=number: len(stub.names) > number // 60)  # type: ignore[misc]
            stub.tell_all(changed(number))
        seen = [next(events).id for _ in range(300)]
    # The order at the change is not certain: nothing is lost, and nothing comes twice.
    assert sorted(map(str, seen)) == sorted(f"evt_{number}" for number in range(300))
    assert not stub.to("resume")


def test_an_idle_connection_pings(
    client: Client, stub: SocketStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_PING_S", 0.05)
    with client.subscribe("queue:q"):
        until(lambda: len(stub.to("ping")) >= 2)


def test_callbacks(client: Client, stub: SocketStub) -> None:
    seen: list[Event] = []

    def note(event: Event) -> None:
        seen.append(event)
        if event.id == "evt_1":
            raise ValueError("the next one comes all the same")

    one, two = client.subscribe_job("j", note), client.subscribe_queue("q", note)
    assert [each["channel"] for each in stub.to("subscribe")] == ["job:j", "queue:q"]
    stub.send(changed(1), changed(2))
    until(lambda: len(seen) == 2)
    one.unsubscribe()
    two.unsubscribe()
    until(lambda: not stub.open)
    assert two.get() is None


# --- waiting ------------------------------------------------------------------------------------


def states(http: StubServer, *told: str) -> list[httpx.Request]:
    """Let the job be in these states, one at each read; then in the last one."""
    left, asked = list(told), []

    def read(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        state = left.pop(0) if len(left) > 1 else left[0]
        job = {"id": "j", "type": "t", "args": [], "state": state}
        return httpx.Response(200, json={"job": job})

    http.always = lambda path: read if path == "jobs/j" else None
    return asked


def test_waiting_ends_with_the_event(client: Client, http: StubServer, stub: SocketStub) -> None:
    asked = states(http, "available", "available", "discarded")

    def tell() -> None:
        until(lambda: stub.to("subscribe") and len(asked) == 2)
        stub.send(changed(1, "discarded"))

    threading.Thread(target=tell, daemon=True).start()
    job = client.wait_for("j", 30)
    assert (job.state, len(asked)) == ("discarded", 3)
    until(lambda: not stub.open)


def test_a_job_that_ends_before_the_subscription_is_seen(client: Client, http: StubServer) -> None:
    asked = states(http, "available", "completed")
    assert client.wait_for("j").state == "completed"
    assert len(asked) == 2


def test_a_final_job_needs_no_connection(client: Client, http: StubServer) -> None:
    states(http, "cancelled")
    assert client.wait_for("j").state == "cancelled"


@pytest.mark.parametrize("url", [None, "ws://127.0.0.1:9/"])
def test_without_a_connection_it_reads_the_job_again_and_again(
    client: Client, http: StubServer, monkeypatch: pytest.MonkeyPatch, url: str | None
) -> None:
    monkeypatch.setattr(subscription, "_POLL_S", (0.01, 0.02))
    http.socket_url = url
    states(http, *["active"] * 5, "completed")
    assert client.wait_for("j").state == "completed"


def test_a_server_without_events_is_asked_for_them_once(
    client: Client, http: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_POLL_S", (0.01, 0.02))
    http.socket_url = None
    for _ in range(3):
        states(http, *["active"] * 20, "completed")
        client.wait_for("j")
    assert len(http.to("realtime/tickets")) == 1


def test_it_waits_as_long_as_it_may(client: Client, http: StubServer, stub: SocketStub) -> None:
    states(http, "active")
    with pytest.raises(WaitTimeout, match="Job j is active") as raised:
        client.wait_for("j", 0.2)
    assert raised.value.job.state == "active"
    http.always = lambda path: (
        (lambda _r: httpx.Response(404, json={})) if path == "jobs/j" else None
    )
    with pytest.raises(NotFound):
        client.wait_for("j")
    until(lambda: not stub.open)


def test_a_server_that_fails_for_some_time_does_not_end_the_wait(
    http: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_POLL_S", (0.01, 0.02))
    http.socket_url = None
    told = [200, 503, 500, 429, 200]

    def read(_request: httpx.Request) -> httpx.Response:
        status = told.pop(0)
        job = {"id": "j", "type": "t", "args": [], "state": "active" if told else "completed"}
        return httpx.Response(status, json={"job": job} if status == 200 else {})

    http.always = lambda path: read if path == "jobs/j" else None
    client = Client(URL, transport=httpx.MockTransport(http), retry=RetryPolicy(tries=1))
    assert client.wait_for("j").state == "completed"


# --- asyncio ------------------------------------------------------------------------------------


def test_the_same_on_asyncio(http: StubServer, stub: SocketStub) -> None:
    async def main() -> list[Any]:
        seen: list[Any] = []

        async def note(event: Event) -> None:
            seen.append(event.id)

        transport = httpx.MockTransport(http)
        async with AsyncClient(URL, transport=transport) as client:
            async with client.subscribe("queue:q") as events:
                stub.send(changed(1))
                stub.drop()
                seen.append((await anext(events)).id)
                stub.answers = lambda message: [changed(2)] if message["action"] == "resume" else []
                async for event in events:
                    seen.append(event.id)
                    break
            called = await client.subscribe_job("j", note)
            stub.answers = lambda _message: []
            stub.send(changed(3))
            while len(seen) < 3:
                await asyncio.sleep(0.01)
            await called.unsubscribe()
            other = await client.subscribe_queue("q", seen.append)
            await other.unsubscribe()
            states(http, "active", "completed")
            assert [each async for each in other] == []
            return [*seen, (await client.wait_for("j")).state]

    assert asyncio.run(main()) == ["evt_1", "evt_2", "evt_3", "completed"]
    until(lambda: not stub.open)
