"""Events to subscribers, from the stream of a table: who receives what, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.access import Principal
from ojs.domain.realtime import MAX_SENT, Posted
from tests.store.realtime import Audience
from tests.store.streams import Projected, Stream, lambda_form

if TYPE_CHECKING:
    from tests.store.conftest import World

OTHER = "01968f2a-0000-7000-8000-000000000000"
Worlds = Callable[[], AbstractContextManager["World"]]


@pytest.fixture
def world(streamed: Worlds) -> Iterator[World]:
    with streamed() as found:
        yield found


@pytest.fixture
def audience(world: World) -> Audience:
    return Audience(world)


@pytest.fixture
def stream(world: World) -> Stream:
    return Stream(world.client, world.table)


def told(messages: list[Any]) -> list[tuple[str, str, str]]:
    """Type, and states before and after, of events."""
    return [
        (each["event"], each["data"].get("from", ""), each["data"].get("to", ""))
        for each in messages
    ]


def change(before: str, after: str) -> tuple[str, str, str]:
    return ("job.state_changed", before, after)


def test_nobody_listens(world: World, audience: Audience, stream: Stream) -> None:
    """One query in two seconds, whatever happens."""
    world.push(queue="mail")
    records = stream.take()
    for _ in range(5):
        assert audience.notify.run(records) == 0
    assert audience.table.meter.calls == ["Query"]
    assert audience.table.meter.read_units <= 0.5
    world.clock.advance(2_000)
    audience.notify.run(records)
    assert audience.table.meter.calls == ["Query", "Query"]
    assert audience.connections.tried == []


def test_a_job_from_beginning_to_end(world: World, audience: Audience, stream: Stream) -> None:
    job = world.push(queue="mail", kind="email.send")
    audience.subscribe("one", f"job:{job.id}")
    audience.subscribe("two", "queue:mail")
    audience.subscribe("three", "all")
    audience.subscribe("four", "queue:other")
    audience.subscribe("five", f"job:{OTHER}")
    world.push(queue="mail")
    world.clock.advance(1_500)
    (claimed,) = world.fetch("mail")
    assert claimed.id == job.id
    world.run.jobs.report_progress(
        job.id, progress=0.756, worker_id=claimed.worker_id, message="Half", data={"secret": 1}
    )
    world.run.jobs.report_progress(job.id, progress=None, data={"secret": 2})
    world.clock.advance(2_000)
    world.run.finish.ack(job.id, worker_id=claimed.worker_id, result={"secret": 3})
    records = stream.take()
    audience.notify.run(list(map(lambda_form, records)))
    watched = audience.connections.take("one")
    assert told(watched) == [
        change("pending", "available"),
        change("available", "active"),
        ("job.progress", "", ""),
        change("active", "completed"),
    ]
    assert {each["channel"] for each in watched} == {f"job:{job.id}"}
    assert watched[1] == {
        "type": "event",
        "channel": f"job:{job.id}",
        "event": "job.state_changed",
        "data": {
            "job_id": job.id,
            "queue": "mail",
            "type": "email.send",
            "from": "available",
            "to": "active",
            "timestamp": watched[1]["timestamp"],
        },
        "id": watched[1]["id"],
        "timestamp": watched[1]["timestamp"],
    }
    assert watched[2]["data"] == {
        "job_id": job.id,
        "progress": 75,
        "message": "Half",
        "timestamp": watched[2]["timestamp"],
    }
    for name, channel in (("two", "queue:mail"), ("three", "all")):
        others = audience.connections.take(name)
        mine = [each for each in others if each["data"]["job_id"] == job.id]
        assert mine == [each | {"channel": channel} for each in watched]
        assert len(others) == 5
    assert audience.connections.posted == {}
    assert "secret" not in json.dumps(audience.connections.tried)
    # The ids are those of the log.
    projected = Projected(world.client, world.table, world.clock)
    assert projected.run(records) == []
    log = {event["id"]: event for event in projected.events()}
    for each in watched:
        if each["event"] != "job.progress":
            event = log[each["id"]]
            assert (event["subject"], event["time"]) == (job.id, each["timestamp"])
            assert event["data"].get("from", each["data"]["from"]) == each["data"]["from"]
    # The same records once more: the same events.
    audience.notify.run(records)
    assert audience.connections.take("one") == watched


def test_every_state(world: World, audience: Audience, stream: Stream) -> None:
    audience.subscribe("one", "queue:mail", event_types=("job.state_changed",))
    later = world.push(queue="mail", scheduled_at="+PT10S")
    failing = world.push(queue="mail", retry={"max_attempts": 2, "initial_interval": "PT1S"})
    for _ in range(2):
        (claimed,) = world.fetch("mail")
        assert claimed.id == failing.id
        world.run.finish.nack(failing.id, error={"code": "x"}, worker_id=claimed.worker_id)
        world.clock.advance(5_000)
    world.run.jobs.cancel(later.id)
    audience.notify.run(stream.take())
    by_job: dict[str, list[Any]] = {}
    for each in audience.connections.take("one"):
        by_job.setdefault(each["data"]["job_id"], []).append(each)
    assert told(by_job[later.id])[0] == change("pending", "scheduled")
    assert told(by_job[later.id])[-1][2] == "cancelled"
    assert told(by_job[failing.id]) == [
        change("pending", "available"),
        change("available", "active"),
        change("active", "retryable"),
        change("retryable", "available"),
        change("available", "active"),
        change("active", "discarded"),
    ]


def test_queues_that_are_paused(world: World, audience: Audience, stream: Stream) -> None:
    world.push(queue="mail")
    audience.subscribe("one", "queue:mail", event_types=("queue.paused", "queue.resumed"))
    audience.subscribe("two", "queue:mail", event_types=("job.progress",))
    world.run.queues.pause("mail")
    world.run.queues.resume("mail")
    audience.notify.run(stream.take())
    found = audience.connections.take("one")
    assert [each["event"] for each in found] == ["queue.paused", "queue.resumed"]
    assert found[0]["data"] == {"queue": "mail", "timestamp": found[0]["timestamp"]}
    assert audience.connections.posted == {}


def test_a_staged_batch_is_told(world: World, audience: Audience, stream: Stream) -> None:
    """Jobs of a large batch begin with its commit."""
    audience.subscribe("one", "queue:mail", batch=True)
    api = world.run.enqueue
    from ojs.domain.job import envelope

    jobs = [
        envelope.parse({"type": "t", "args": [n], "options": {"queue": "mail"}}) for n in range(120)
    ]
    api.push_batch(jobs)
    audience.notify.run(stream.take())
    events = [each for part in audience.connections.take("one") for each in part["events"]]
    assert len({each["data"]["job_id"] for each in events}) == 120
    assert set(told(events)) == {change("pending", "available")}


def test_options(world: World, audience: Audience, stream: Stream) -> None:
    audience.subscribe("plain", "all")
    audience.subscribe("batch", "all", batch=True)
    audience.subscribe("detail", "all", batch=True, detail=True)
    audience.subscribe("digest", "all", digest=True)
    for number in range(60):
        world.push("x" * 300, queue=f"q{number % 3}", unique=None)
    records = stream.take()
    audience.notify.run(records)
    single = audience.connections.take("plain")
    assert len(single) == 60
    batches = audience.connections.take("batch")
    assert [each["type"] for each in batches] == ["events"] * len(batches)
    assert [event for part in batches for event in part["events"]] == single
    detail = audience.connections.take("detail")
    for part in (*batches, *detail):
        assert len(json.dumps(part, separators=(",", ":")).encode()) <= MAX_SENT
    assert len(detail) > len(batches) - 1
    (first, *_) = detail[0]["events"]
    (envelope,) = first["data"].pop("events")
    assert first == single[0]
    assert (envelope["type"], envelope["id"]) == ("job.enqueued", first["id"])
    assert envelope["specversion"] == "1.0"
    digest = {"type": "changed", "queues": ["q0", "q1", "q2"]}
    assert audience.connections.take("digest") == [digest]
    # Not more than one in a second: the next one names what was left out.
    world.push(queue="other")
    audience.notify.run(stream.take())
    assert audience.connections.take("digest") == []
    world.clock.advance(1_000)
    world.push(queue="q1")
    audience.notify.run(stream.take())
    digest = {"type": "changed", "queues": ["other", "q1"]}
    assert audience.connections.take("digest") == [digest]


# --- who receives nothing -------------------------------------------------------------------------


@pytest.mark.parametrize("channel", ["job", "queue:mail", "all"])
@pytest.mark.parametrize("queues", [("other",), ("mail.x",), ("mai",), ()])
def test_who_does_not_reach_the_queue(
    world: World, audience: Audience, stream: Stream, channel: str, queues: tuple[str, ...]
) -> None:
    """Also of a job that was moved out of reach after a connection had subscribed to it."""
    job = world.push(queue="mail")
    name = f"job:{job.id}" if channel == "job" else channel
    foreign = Principal("foreign", frozenset({"jobs:read", "admin:read"}), queues)
    for number, options in enumerate(({}, {"batch": True}, {"digest": True})):
        audience.subscribe(f"foreign{number}", name, foreign, **options)
    near = Principal("near", frozenset({"jobs:read", "admin:read"}), ("mail*",))
    audience.subscribe("near", name, near)
    world.fetch("mail")
    world.run.queues.pause("mail")
    audience.notify.run(stream.take())
    assert audience.connections.take("near")
    assert audience.connections.posted == {}


def test_a_revoked_key(world: World, audience: Audience, stream: Stream) -> None:
    """Events end within two seconds."""
    audience.subscribe("one", "all", Principal("k", frozenset({"admin:read"}), None, "0" * 16))
    audience.subscribe("two", "all")
    for _ in range(2):
        world.push(queue="mail")
        audience.notify.run(stream.take())
        assert len(audience.connections.take("one")) == 1
        world.clock.advance(100)
    world.run.stores.realtime_directory.revoke("0" * 16)
    world.clock.advance(1_900)
    world.push(queue="mail")
    audience.notify.run(stream.take())
    assert audience.connections.take("one") == []
    assert len(audience.connections.take("two")) == 3


def test_a_connection_that_has_ended(world: World, audience: Audience, stream: Stream) -> None:
    job = world.push(queue="mail")
    until_ms = world.clock.now_ms() + 60_000
    for channel in ("all", "queue:mail", f"job:{job.id}"):
        audience.subscribe(channel, channel, until_ms=until_ms)
    world.clock.advance(60_000)
    world.fetch("mail")
    assert audience.notify.run(stream.take()) == 0
    assert audience.connections.tried == []


# --- posts that fail ------------------------------------------------------------------------------


def test_a_connection_that_is_gone(world: World, audience: Audience, stream: Stream) -> None:
    job = world.push(queue="mail")
    channels = ("all", "queue:mail", f"job:{job.id}")
    for channel in channels:
        audience.subscribe("gone", channel)
    audience.subscribe("there", "all")
    audience.connections.outcome = lambda connection, _: (
        Posted.GONE if connection == "gone" else Posted.POSTED
    )
    world.fetch("mail")
    audience.notify.run(stream.take())
    assert [name for name, _ in audience.connections.tried].count("gone") == 1
    store, now_ms = world.run.stores.subscribers, world.clock.now_ms()
    assert [each.connection for each in store.list_of("all", now_ms=now_ms)] == ["there"]
    assert store.list_of("queue:mail", now_ms=now_ms) == []
    assert store.list_watching([job.id], now_ms=now_ms) == {}
    assert len(audience.connections.take("there")) == 2


def test_a_post_that_fails_once(world: World, audience: Audience, stream: Stream) -> None:
    audience.subscribe("one", "all")
    fails = iter([True, False])
    audience.connections.outcome = lambda *_: Posted.FAILED if next(fails, False) else Posted.POSTED
    world.push(queue="mail")
    audience.notify.run(stream.take())
    assert len(audience.connections.tried) == 2
    assert told(audience.connections.take("one")) == [change("pending", "available")]


@pytest.mark.parametrize("batch", [False, True])
def test_a_post_that_fails_for_a_while(
    world: World, audience: Audience, stream: Stream, *, batch: bool
) -> None:
    audience.subscribe("one", "all", batch=batch)
    fails = iter([True, True])
    audience.connections.outcome = lambda *_: Posted.FAILED if next(fails, False) else Posted.POSTED
    for _ in range(5):
        world.push(queue="mail")
    audience.notify.run(stream.take())
    warning, notice, newest = audience.connections.take("one")
    assert (warning["type"], warning["code"], warning["count"]) == ("warning", "events_dropped", 4)
    assert (notice["event"], notice["data"]["dropped_count"]) == ("system.events_dropped", 4)
    for name in ("oldest_dropped_id", "newest_dropped_id"):
        assert warning[name] == notice["data"][name]
    assert warning["channel"] == notice["channel"] == notice["data"]["channel"] == "all"
    last = newest["events"][0] if batch else newest
    assert told([last]) == [change("pending", "available")]


def test_posts_that_all_fail(world: World, audience: Audience, stream: Stream) -> None:
    """A batch ends in a bounded number of posts; the other connections have theirs."""
    audience.subscribe("bad", "all")
    audience.subscribe("good", "all")
    audience.connections.outcome = lambda connection, _: (
        Posted.FAILED if connection == "bad" else Posted.POSTED
    )
    for _ in range(50):
        world.push(queue="mail")
    audience.notify.run(stream.take())
    assert [name for name, _ in audience.connections.tried].count("bad") == 3
    assert len(audience.connections.take("good")) == 50


def test_too_many_events(world: World, audience: Audience, stream: Stream) -> None:
    audience.subscribe("one", "all")
    audience.subscribe("two", "all", batch=True)
    jobs = [world.push(queue="mail") for _ in range(130)]
    audience.notify.run(stream.take())
    warning, notice, *rest = audience.connections.take("one")
    assert warning["count"] == notice["data"]["dropped_count"] == 30
    assert [each["data"]["job_id"] for each in rest] == [job.id for job in jobs[30:]]
    batches = [each for part in audience.connections.take("two") for each in part["events"]]
    assert [each["data"]["job_id"] for each in batches] == [job.id for job in jobs]


# --- what it costs --------------------------------------------------------------------------------


def test_what_a_batch_costs(world: World, audience: Audience, stream: Stream) -> None:
    """A query for each channel in use, in two seconds; one call for the watchers of all jobs."""
    jobs = [world.push(queue=f"q{n % 4}") for n in range(80)]
    records = stream.take()
    audience.subscribe("one", "queue:q1")
    audience.subscribe("two", "all")
    notify, meter = audience.another(), audience.table.meter
    notify.run(records)
    # The directory, two channels.
    assert meter.calls == ["Query"] * 3
    assert meter.read_units <= 3.0
    meter.reset()
    notify.run(records)
    assert meter.calls == []
    audience.subscribe("three", f"job:{jobs[3].id}")
    world.clock.advance(2_000)
    meter.reset()
    notify.run(records)
    assert sorted(meter.calls) == ["BatchGetItem"] + ["Query"] * 3
    # 1 RU for each job.
    assert meter.read_units <= 83.0
    assert len(audience.connections.take("three")) == 1


def test_records_that_cannot_be_read(world: World, audience: Audience, stream: Stream) -> None:
    audience.subscribe("one", "all")
    world.push(queue="mail")
    (record, *others) = stream.take()
    broken = json.loads(json.dumps(lambda_form(record)))
    broken["dynamodb"]["NewImage"]["state"] = {"S": "unheard"}
    audience.notify.run([broken, record, *others])
    assert told(audience.connections.take("one")) == [change("pending", "available")]
