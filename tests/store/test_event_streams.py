"""Server-sent events in bounded answers: what each has, where the next begins, what it costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.access import everything
from ojs.domain.errors import NotFound
from ojs.domain.events.event import event_id
from ojs.domain.events.query import RETAIN_MS
from ojs.services.realtime.event_streams import MAX_EVENTS, EventStreams
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from tests.store.conftest import World

OTHER = "01968f2a-0000-7000-8000-000000000000"
Worlds = Callable[[], AbstractContextManager["World"]]


@pytest.fixture
def world(streamed: Worlds) -> Iterator[World]:
    with streamed() as found:
        yield found


class Source:
    """An EventSource: it keeps the last ID, and returns the events that it dispatches."""

    def __init__(self, ask: Callable[[str | None], str | None]) -> None:
        self.ask = ask
        self.last_id: str | None = None
        self.retry_ms = 0

    def events(self) -> list[tuple[str, Any]] | None:
        """Events of one more answer: type and data. None: the server has ended the stream."""
        text = self.ask(self.last_id)
        if text is None:
            return None
        assert text.endswith("\n\n")
        found = []
        for block in text.removesuffix("\n\n").split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            self.retry_ms = int(fields.pop("retry", self.retry_ms))
            self.last_id = fields.pop("id", self.last_id)
            if fields:
                found.append((fields["event"], json.loads(fields["data"])))
        return found


def states(events: list[tuple[str, Any]] | None) -> list[tuple[str, str]]:
    assert events is not None
    return [(data["from"], data["to"]) for _, data in events]


# --- a job ----------------------------------------------------------------------------------------


def test_a_job_from_beginning_to_end(world: World) -> None:
    job = world.push(queue="mail", kind="email.send")
    streams = EventStreams(world.run.events, world.run.stores.jobs, world.clock)
    source = Source(lambda last_id: streams.read_job(job.id, last_id, ()))
    meter = world.run.table.meter
    meter.reset()
    ((kind, data),) = source.events() or []
    assert meter.calls == ["BatchGetItem"]
    assert meter.read_units <= 2.0
    assert (kind, source.retry_ms) == ("job.state_changed", 1_000)
    assert data == {
        "job_id": job.id,
        "queue": "mail",
        "type": "email.send",
        "from": "pending",
        "to": "available",
        "timestamp": data["timestamp"],
    }
    assert source.events() == []
    (claimed,) = world.fetch("mail")
    world.run.jobs.report_progress(
        job.id, progress=0.29, worker_id=claimed.worker_id, message="x", data={"secret": 1}
    )
    changed, (kind, progress) = source.events() or []
    assert states([changed]) == [("available", "active")]
    assert kind == "job.progress"
    assert progress == {
        "job_id": job.id,
        "progress": 29,
        "message": "x",
        "timestamp": progress["timestamp"],
    }
    assert source.events() == []
    world.clock.advance(1_000)
    world.run.jobs.report_progress(job.id, progress=0.5, worker_id=claimed.worker_id)
    ((kind, progress),) = source.events() or []
    assert (kind, progress["progress"]) == ("job.progress", 50)
    world.run.finish.ack(job.id, worker_id=claimed.worker_id, result={"secret": 2})
    assert states(source.events()) == [("active", "completed")]
    for _ in range(2):
        assert source.events() is None
    # Who comes now gets the final state once.
    late = Source(lambda last_id: streams.read_job(job.id, last_id, ()))
    assert [kind for kind, _ in late.events() or []] == ["job.state_changed", "job.progress"]
    assert late.events() is None


def test_steps_between_two_answers_are_skipped(world: World) -> None:
    job = world.push(queue="mail", retry={"max_attempts": 3, "initial_interval": "PT1S"})
    streams = EventStreams(world.run.events, world.run.stores.jobs, world.clock)
    source = Source(lambda last_id: streams.read_job(job.id, last_id, ()))
    source.events()
    (claimed,) = world.fetch("mail")
    world.run.finish.nack(job.id, error={"code": "x"}, worker_id=claimed.worker_id)
    assert states(source.events()) == [("available", "retryable")]
    world.clock.advance(10_000)
    (claimed,) = world.fetch("mail")
    world.run.finish.nack(job.id, error={"code": "x"}, worker_id=claimed.worker_id)
    # Another attempt has failed.
    assert states(source.events()) == [("retryable", "retryable")]


def test_types_of_a_job(world: World) -> None:
    job = world.push(queue="mail")
    streams = EventStreams(world.run.events, world.run.stores.jobs, world.clock)
    source = Source(lambda last_id: streams.read_job(job.id, last_id, ("job.progress",)))
    assert source.events() == []
    assert source.last_id is not None
    (claimed,) = world.fetch("mail")
    world.run.jobs.report_progress(job.id, progress=1, worker_id=claimed.worker_id)
    assert [kind for kind, _ in source.events() or []] == ["job.progress"]
    world.run.finish.ack(job.id, worker_id=claimed.worker_id)
    assert source.events() == []
    assert source.events() is None


@pytest.mark.parametrize("last_id", ["", "x", "completed", "0", "e" * 8_192, "\x00", "9" * 300])
def test_an_id_that_no_job_gave(world: World, last_id: str) -> None:
    job = world.push(queue="mail")
    streams = EventStreams(world.run.events, world.run.stores.jobs, world.clock)
    assert "available" in (streams.read_job(job.id, last_id, ()) or "")
    with pytest.raises(NotFound):
        streams.read_job(OTHER, last_id, ())


# --- queues ---------------------------------------------------------------------------------------


class Log:
    """The log behind streams."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.streams = EventStreams(world.run.events, world.run.stores.jobs, world.clock)
        self.stream = Stream(world.client, world.table)
        self.projected = Projected(world.client, world.table, world.clock)

    def catch_up(self) -> None:
        assert self.projected.run(self.stream.take()) == []

    def source(self, queue: str | None, *types: str, reaches: Any = everything) -> Source:
        return Source(lambda last_id: self.streams.read_log(queue, last_id, types, reaches))


@pytest.fixture
def log(world: World) -> Log:
    return Log(world)


def test_the_stream_of_a_queue(world: World, log: Log) -> None:
    world.push(queue="mail")
    log.catch_up()
    world.clock.advance(60_000)
    mail, every = log.source("mail"), log.source(None)
    paused, progress = log.source("mail", "queue.paused"), log.source(None, "job.progress")
    near = log.source(None, reaches=lambda queue: queue == "mail")
    for each in (mail, every, paused, progress, near):
        # It begins now.
        assert each.events() == []
        assert (each.retry_ms, each.last_id is None) == (3_000, False)
    world.fetch("mail")
    world.push(queue="other")
    world.run.queues.pause("mail")
    world.run.queues.pause("other")
    log.catch_up()
    found = mail.events() or []
    assert states(found[:1]) == [("available", "active")]
    assert found[1] == ("queue.paused", {"queue": "mail", "timestamp": found[1][1]["timestamp"]})
    assert [data["queue"] for _, data in every.events() or []] == ["mail", "other", "mail", "other"]
    assert [data["queue"] for _, data in near.events() or []] == ["mail", "mail"]
    assert [kind for kind, _ in paused.events() or []] == ["queue.paused"]
    assert progress.events() == []
    for each in (mail, every, paused, near):
        assert each.events() == []
    world.clock.advance(20_000)
    for each in (mail, every, paused, near):
        assert each.events() == []
    # From the ID of an event, as a client has it that was cut off within an answer.
    (first, *_) = log.projected.events()
    cut = log.source("mail")
    cut.last_id = first["id"]
    assert cut.events() == found


def test_many_events_come_in_parts(world: World, log: Log) -> None:
    source = log.source("mail")
    source.events()
    seen = []
    for _ in range(3):
        jobs = [world.push(queue="mail") for _ in range(90)]
        seen += [job.id for job in jobs]
        log.catch_up()
    found: list[Any] = []
    while part := source.events():
        assert len(part) <= MAX_EVENTS
        assert source.retry_ms == (100 if len(part) == MAX_EVENTS else 3_000)
        found += part
    assert sorted(data["job_id"] for _, data in found) == sorted(seen)


@pytest.mark.parametrize(
    "last_id", ["", "x", "evt_", "evt_0042", "e" * 8_192, "old", "future", "f9"]
)
def test_ids_that_cannot_be_followed(world: World, log: Log, last_id: str) -> None:
    """A gap, and from now on; no error."""
    now_ms = world.clock.now_ms() + 60_000
    at_ms = {"old": now_ms - RETAIN_MS - 1, "future": now_ms + 61_000}.get(last_id)
    world.push(queue="mail")
    log.catch_up()
    world.clock.advance(60_000)
    source = log.source("mail")
    source.last_id = last_id if at_ms is None else event_id(at_ms, "any")
    ((kind, data),) = source.events() or []
    assert kind == "system.gap"
    assert data["channel"] == "queue:mail"
    assert data["gap_start"] < data["gap_end"]
    assert source.events() == []
    world.fetch("mail")
    log.catch_up()
    assert states(source.events()) == [("available", "active")]


def test_what_an_answer_costs(world: World, log: Log) -> None:
    world.push(queue="mail")
    log.catch_up()
    world.clock.advance(60_000)
    source = log.source("mail")
    meter = world.run.table.meter
    meter.reset()
    source.events()
    assert meter.calls == ["Query"]
    assert meter.read_units <= 1.0
    meter.reset()
    source.events()
    assert meter.calls == ["Query"]
    assert meter.read_units <= 1.0
