"""Events for clients that were disconnected: from the log, in order, or a gap."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.access import Principal
from ojs.domain.events.event import event_id
from ojs.domain.events.query import RETAIN_MS
from ojs.domain.realtime_events import read_time
from ojs.services.realtime.event_replay import MAX_REPLAYED, EventReplay
from tests.store.realtime import Audience, sockets_of
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from tests.store.conftest import World

Worlds = Callable[[], AbstractContextManager["World"]]


@pytest.fixture
def world(streamed: Worlds) -> Iterator[World]:
    with streamed() as found:
        yield found


class Line:
    """A client and its connections, one after the other, and the log behind."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.audience = Audience(world)
        self.stream = Stream(world.client, world.table)
        self.projected = Projected(world.client, world.table, world.clock)
        run = world.run
        self.replay = EventReplay(run.events, self.audience.sender, run.clock)
        self.sockets = sockets_of(run, self.replay)

    def log(self) -> None:
        """Have the log catch up."""
        assert self.projected.run(self.stream.take()) == []

    def resume(self, connection: str, last_event_id: str) -> Any:
        from ojs.domain import jsontext

        message = {"action": "resume", "last_event_id": last_event_id}
        return jsontext.loads(self.sockets.handle(connection, jsontext.dumps(message)))

    def received(self, connection: str) -> list[Any]:
        return self.audience.connections.take(connection)


@pytest.fixture
def line(world: World) -> Line:
    return Line(world)


def ids(events: list[Any]) -> list[str]:
    return [each["id"] for each in events]


def test_what_was_missed(world: World, line: Line) -> None:
    first = world.push(queue="mail")
    line.log()
    for channel in (f"job:{first.id}", "queue:mail"):
        line.audience.subscribe("new", channel)
    line.audience.subscribe("new", "all", batch=True, detail=True)
    world.clock.advance(30_000)
    (claimed,) = world.fetch("mail")
    world.run.finish.ack(claimed.id, worker_id=claimed.worker_id, result={"secret": 1})
    world.push(queue="other")
    line.log()
    last = event_id(world.clock.now_ms() - 30_000, "any")
    answer = line.resume("new", last)
    # The one before the ID again: shards are read at different times.
    assert answer == {"type": "resumed", "events": 4}
    found = line.received("new")
    by_channel: dict[str, list[Any]] = {}
    for each in found:
        for event in each.get("events", [each]):
            by_channel.setdefault(event["channel"], []).append(event)
    changes = [(e["data"]["from"], e["data"]["to"]) for e in by_channel["queue:mail"]]
    assert changes == [("pending", "available"), ("available", "active"), ("active", "completed")]
    assert ids(by_channel[f"job:{first.id}"]) == ids(by_channel["queue:mail"])
    assert len(by_channel["all"]) == 4
    assert "secret" not in str(found)
    (log,) = by_channel["all"][-2]["data"]["events"]
    assert log["type"] == "job.completed"


def test_detail_has_all_events_of_a_change(world: World, line: Line) -> None:
    """As they are sent when it happens: each once, with the event that they led to."""
    audience = line.audience
    options: dict[str, Any] = {"batch": True, "detail": True}
    audience.subscribe("live", "queue:mail", **options)
    for queue in ("mail", "other"):
        world.push(queue=queue, retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    world.push(queue="mail")
    for claimed in world.fetch("mail", 2):
        world.run.finish.nack(claimed.id, error={"code": "x"}, worker_id=claimed.worker_id)
    records = line.stream.take()
    audience.notify.run(records)
    assert line.projected.run(records) == []
    audience.subscribe("back", "queue:mail", **options)
    audience.subscribe("typed", "queue:mail", event_types=("queue.paused",), **options)
    last = event_id(world.clock.now_ms(), "any")
    assert line.resume("back", last) == {"type": "resumed", "events": 6}
    assert line.resume("typed", last) == {"type": "resumed", "events": 0}

    def envelopes(connection: str) -> list[tuple[str, str]]:
        events = [event for part in line.received(connection) for event in part["events"]]
        return sorted((one["type"], one["id"]) for e in events for one in e["data"]["events"])

    live = envelopes("live")
    assert {"job.failed", "dead_letter.added"} < {kind for kind, _ in live}
    assert envelopes("back") == live


def test_only_what_a_subscriber_may_have(world: World, line: Line) -> None:
    world.push(queue="mail")
    world.push(queue="other")
    world.run.queues.pause("other")
    line.log()
    near = Principal("near", frozenset({"admin:read"}), ("mail",))
    line.audience.subscribe("near", "all", near)
    line.audience.subscribe("typed", "all", event_types=("queue.paused",))
    last = event_id(world.clock.now_ms(), "any")
    assert line.resume("near", last)["events"] == 1
    assert [each["data"]["queue"] for each in line.received("near")] == ["mail"]
    assert line.resume("typed", last)["events"] == 1
    assert [each["event"] for each in line.received("typed")] == ["queue.paused"]
    world.run.stores.realtime_directory.revoke("0" * 16)
    revoked = Principal("k", frozenset({"admin:read"}), None, "0" * 16)
    line.audience.subscribe("revoked", "all", revoked)
    world.clock.advance(10_000)
    assert line.resume("revoked", last)["code"] == "permission_denied"
    assert line.received("revoked") == []


@pytest.mark.parametrize(
    "last_event_id", ["", "evt_", "x", "evt_0042", "e" * 100, "evt_" + "0" * 36, "future"]
)
def test_ids_that_no_event_has(world: World, line: Line, last_event_id: str) -> None:
    line.audience.subscribe("one", "all")
    if last_event_id == "future":
        last_event_id = event_id(world.clock.now_ms() + 61_000, "any")
    assert line.resume("one", last_event_id)["code"] == "unknown_event_id"
    assert line.received("one") == []


def test_an_id_of_8_kb(line: Line) -> None:
    line.audience.subscribe("one", "all")
    assert line.resume("one", "e" * 8_192)["code"] == "payload_too_large"
    assert line.resume("one", "e" * 101)["code"] == "invalid_request"


def test_a_gap(world: World, line: Line) -> None:
    """More than are replayed, or older than what is kept."""
    line.audience.subscribe("one", "queue:mail")
    line.audience.subscribe("one", "queue:other", batch=True)
    line.audience.subscribe("two", "all", digest=True)
    world.run.enqueue.push(_request("mail"))
    world.run.enqueue.push(_request("other"))
    line.log()
    now_ms = world.clock.now_ms()
    old_ms = now_ms - RETAIN_MS
    assert line.resume("two", event_id(old_ms, "any")) == {"type": "resumed", "events": 0}
    (whole,) = line.received("two")
    assert (whole["type"], whole["event"], whole["channel"]) == ("event", "system.gap", "all")
    assert line.resume("two", event_id(now_ms, "any")) == {"type": "resumed", "events": 2}
    assert line.received("two") == [{"type": "changed", "queues": ["mail", "other"]}]
    assert line.resume("one", event_id(old_ms, "any")) == {"type": "resumed", "events": 0}
    single, batch = line.received("one")
    for event, channel in ((single, "queue:mail"), (batch["events"][0], "queue:other")):
        assert (event["event"], event["channel"]) == ("system.gap", channel)
        assert event["data"]["channel"] == channel
        assert event["data"]["gap_start"] < event["data"]["gap_end"] == event["timestamp"]
    assert read_time(single["id"], now_ms) == now_ms
    for _ in range(MAX_REPLAYED // 100):
        jobs = [
            _request("mail").model_copy(update={"id": world.run.ids.uuid7()}) for _ in range(100)
        ]
        world.run.enqueue.push_batch(jobs)
        line.log()
    assert line.resume("one", event_id(now_ms, "any"))["events"] == 0
    assert [each.get("event") for each in line.received("one")] == ["system.gap", None]


def test_no_channel(line: Line, world: World) -> None:
    line.audience.subscribe("one", "all")
    line.sockets.handle("one", '{"action":"unsubscribe","channel":"all"}')
    last = event_id(world.clock.now_ms(), "any")
    assert line.resume("one", last) == {"type": "resumed", "events": 0}
    assert line.resume("other", last)["code"] == "connection_ended"


class Client:
    """Subscribes to a queue, is cut off at any time, and resumes at once and once more later, when
    the log has what was sent meanwhile.
    """

    def __init__(self, line: Line) -> None:
        self.line = line
        self.number = 0
        self.there = False
        self.seen: set[str] = set()
        self.last = event_id(line.world.clock.now_ms(), "begin")
        # When to resume once more, and from which event on.
        self.waiting: list[tuple[int, str]] = []

    def connect(self) -> None:
        self.number += 1
        self.there = True
        self.line.audience.subscribe(f"c{self.number}", "queue:mail", batch=True)
        self.waiting.append((self.line.world.clock.now_ms() + 15_000, self.last))
        self.resume(self.last)

    def resume(self, last_event_id: str) -> None:
        self.line.resume(f"c{self.number}", last_event_id)
        self.take()

    def take(self) -> None:
        for part in self.line.received(f"c{self.number}"):
            assert {event["event"] for event in part["events"]} == {"job.state_changed"}
            self.seen |= set(ids(part["events"]))
            self.last = part["events"][-1]["id"]

    def look(self) -> None:
        now_ms = self.line.world.clock.now_ms()
        for due in [each for each in self.waiting if each[0] <= now_ms and self.there]:
            self.waiting.remove(due)
            self.resume(due[1])


def test_what_the_log_has_later(world: World, line: Line) -> None:
    """Why a client resumes once more: while it is cut off an event is sent, which the log does not
    have yet when it is back.
    """
    client = Client(line)
    world.push(queue="mail")
    records = line.stream.take()
    line.audience.notify.run(records)
    client.connect()
    assert client.seen == set()
    world.clock.advance(10_000)
    line.projected.run(records)
    client.look()
    assert client.seen == set()
    world.clock.advance(5_000)
    client.look()
    assert client.seen == set(ids(line.projected.events()))


def test_many_reconnects_lose_nothing(world: World, line: Line) -> None:
    chance = random.Random(7)
    client = Client(line)
    behind: list[Any] = []
    for _ in range(250):
        world.clock.advance(chance.randint(1, 400))
        world.push(queue="mail")
        records = line.stream.take()
        behind += records
        if client.there:
            line.audience.notify.run(records)
            client.take()
        client.look()
        if chance.random() < 0.2:
            # The projection writes what its window has gathered.
            line.projected.run(behind)
            behind = []
        if not client.there and chance.random() < 0.5:
            client.connect()
        elif chance.random() < 0.3:
            client.there = False
    line.projected.run(behind)
    client.connect()
    world.clock.advance(15_000)
    client.look()
    assert client.number > 30
    happened = set(ids(line.projected.events()))
    assert len(happened) == 250
    assert client.seen == happened


def _request(queue: str) -> Any:
    from ojs.domain.job import envelope

    return envelope.parse({"type": "t", "args": [], "options": {"queue": queue}})
