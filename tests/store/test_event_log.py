"""The event log on a real table: order, days, bounds, and from the projection to the listing."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ojs.domain import jsontext, times
from ojs.domain.events.event import Event, event_id
from ojs.domain.events.query import RETAIN_MS, EventFilter
from ojs.services.operations import events as module
from ojs.services.operations.events import HOLD_BACK_MS
from ojs.store.derived.event_log import (
    MAX_BYTES,
    MAX_QUERIES,
    Budget,
    EventLog,
    just_after,
    just_before,
)
from ojs.store.table import keys
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ojs.store.table.values import Value
    from tests.store.conftest import World

ALL = EventFilter()
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def page(ms: int, *numbers: int, token: str | None = None, text: str = "") -> dict[str, Value]:
    told = [
        Event(
            id=event_id(ms, str(number)),
            type="job.enqueued",
            source="ojs://test/api",
            time_ms=ms,
            subject=str(number),
            data={"queue": "q", "job_type": "a", "n": number, "text": text},
        ).to_dict()
        for number in numbers
    ]
    return {
        "pk": keys.events(times.format_ms(ms)[:10]),
        "sk": keys.event_page(ms, token or f"tok{numbers[0]:05d}"),
        "zip": zlib.compress(jsontext.dumps(told).encode()),
        "n": len(told),
        "ttl": ms // 1_000 + 8 * 86_400,
    }


def numbers_of(events: list[dict[str, Any]]) -> list[int]:
    return [event["data"]["n"] for event in events]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_pages_are_read_in_order_over_days(exact: World, data: st.DataObject) -> None:
    start = exact.clock.now_ms()
    base = start - start % DAY_MS + data.draw(st.integers(0, 2_000)) * 10 * DAY_MS
    places = st.tuples(st.integers(-2 * DAY_MS, 2 * DAY_MS), st.integers(0, 99_999))
    drawn = data.draw(st.lists(places, max_size=40, unique=True))
    written = [page(base + ms, n, token=f"t{n:07d}") for ms, n in drawn]
    exact.run.table.write_many(written)
    in_order = sorted(str(item["sk"]) for item in written)
    log = EventLog(exact.run.table)
    bounds = [keys.instant(base - 2 * DAY_MS), keys.upto(base + 2 * DAY_MS), *in_order]
    first, last = sorted((data.draw(st.sampled_from(bounds)), data.draw(st.sampled_from(bounds))))
    expected = [key for key in in_order if first <= key <= last]
    assert [found.key for found in log.forward(first, last, Budget())] == expected
    assert [found.key for found in log.backward(last, first, Budget())] == expected[::-1]
    for key in in_order:
        after = [found.key for found in log.forward(just_after(key), bounds[1], Budget())]
        assert after == in_order[in_order.index(key) + 1 :]
        older = [found.key for found in log.backward(just_before(key), bounds[0], Budget())]
        assert older == in_order[: in_order.index(key)][::-1]


def test_few_and_many_small_pages_take_few_calls(exact: World) -> None:
    now_ms = exact.clock.now_ms()
    exact.run.table.write_many(page(now_ms - 60_000 - 10 * n, n) for n in range(400))
    exact.run.table.meter.reset()
    found = exact.run.events.list(ALL, limit=100)
    assert len(found.events) == 100
    # One for what is young, then 8, 16, 32, 64 pages.
    assert len(exact.run.table.meter.calls) <= 5
    exact.run.table.meter.reset()
    assert len(exact.run.events.list(ALL, limit=1_000).events) == 400
    assert len(exact.run.table.meter.calls) <= MAX_QUERIES


def test_an_empty_log_takes_a_call_a_day(exact: World) -> None:
    exact.run.table.meter.reset()
    assert exact.run.events.list(ALL, limit=100).events == []
    assert len(exact.run.table.meter.calls) <= 10
    assert exact.run.table.meter.read_units <= 20


@pytest.mark.exhaustive
def test_what_a_request_reads_is_bounded(exact: World) -> None:
    now_ms = exact.clock.now_ms()
    noise = random.Random(1).randbytes(130_000).hex()  # packs to about half
    size = len(page(now_ms, 0, text=noise)["zip"])  # type: ignore[arg-type]
    count = MAX_BYTES // size * 2
    for start in range(0, count, 10):
        exact.run.table.write_many(
            page(now_ms - 60_000 - n * 100, n, text=noise) for n in range(start, start + 10)
        )
    rare = EventFilter(types=("queue.paused",))
    exact.run.table.meter.reset()
    found = exact.run.events.list(rare, limit=10)
    assert found.events == []
    older = found.older
    assert older is not None
    calls, units = len(exact.run.table.meter.calls), exact.run.table.meter.read_units
    assert calls <= MAX_QUERIES
    # A query reads at most 1 MB beyond the bound; a consistent read unit is 4 KB.
    assert units <= (MAX_BYTES + 1_100_000) / 4_096 + MAX_QUERIES
    requests = 1
    while older is not None:
        older = exact.run.events.list(rare, limit=10, cursor=older).older
        requests += 1
    assert requests <= 4
    # Forward, too: from the oldest on.
    forward = exact.run.events.list(rare, limit=10, after=event_id(now_ms - DAY_MS, "no"))
    requests = 1
    while forward.has_more:
        forward = exact.run.events.list(rare, limit=10, after=forward.cursor)
        requests += 1
    assert requests <= 6


def test_following_over_midnight(exact: World) -> None:
    now_ms = exact.clock.now_ms()
    exact.clock.advance(DAY_MS - now_ms % DAY_MS - 3_000)
    cursor = exact.run.events.list(ALL, limit=10).cursor
    seen, written = [], []
    for number in range(20):
        ms = exact.clock.now_ms() - (number % 4) * 1_500
        exact.run.table.write_many([page(ms, number)])
        written.append(number)
        found = exact.run.events.list(ALL, limit=2, after=cursor)
        seen += numbers_of(found.events)
        cursor = found.cursor
        exact.clock.advance(500)
    exact.clock.advance(HOLD_BACK_MS)
    more = True
    while more:
        found = exact.run.events.list(ALL, limit=2, after=cursor)
        seen += numbers_of(found.events)
        cursor, more = found.cursor, found.has_more
    assert sorted(seen) == written


def test_seven_days_are_kept(exact: World) -> None:
    now_ms = exact.clock.now_ms()
    ages = [0, DAY_MS, 6 * DAY_MS + 23 * HOUR_MS, RETAIN_MS - 1, RETAIN_MS + 1, 8 * DAY_MS]
    exact.run.table.write_many(page(now_ms - age, n) for n, age in enumerate(ages))
    assert numbers_of(exact.run.events.list(ALL, limit=100).events) == [3, 2, 1, 0]
    after = exact.run.events.list(ALL, limit=100, after=event_id(0, "no"))
    assert numbers_of(after.events) == [3, 2, 1, 0]
    exact.clock.advance(2 * DAY_MS)
    assert numbers_of(exact.run.events.list(ALL, limit=100).events) == [1, 0]


def test_a_cursor_that_was_kept_for_long_goes_on_from_what_is_left(exact: World) -> None:
    cursor = exact.run.events.list(ALL, limit=1).cursor
    start_ms = exact.clock.now_ms()
    exact.run.table.write_many(page(start_ms + n * DAY_MS, n) for n in range(10))
    exact.clock.advance(9 * DAY_MS)
    found = exact.run.events.list(ALL, limit=100, after=cursor)
    assert numbers_of(found.events) == list(range(2, 10))


# --- with the projection ----------------------------------------------------------------------


def test_a_job_s_events_are_listed_in_order(
    streamed: Callable[[], AbstractContextManager[World]],
) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        start = world.run.events.list(ALL, limit=1).cursor
        job = world.push("secret", queue="email", retry={"initial_interval": "PT1S"})
        world.push(queue="other")
        world.clock.advance(1_000)
        world.fetch("email")
        world.run.finish.nack(job.id, error={"code": "boom", "message": "no"}, worker_id=None)
        world.clock.advance(10_000)
        world.fetch("email")
        world.clock.advance(50)
        world.run.finish.ack(job.id, result={"sent": 3.10})
        world.run.queues.pause("email")
        assert projected.run(stream.take()) == []
        wanted = EventFilter(queues=("email",))
        latest = world.run.events.list(wanted, limit=100)
        assert [event["type"] for event in latest.events] == [
            "job.enqueued", "job.started", "job.failed", "job.retrying", "job.enqueued",
            "job.started", "job.completed", "queue.paused",
        ]  # fmt: skip
        assert latest.events[-2]["data"]["duration_ms"] == 50
        assert "secret" not in jsontext.dumps(latest.events)
        followed = world.run.events.list(wanted, limit=100, after=start)
        assert followed.events == latest.events
        third = latest.events[2]["id"]
        rest = world.run.events.list(wanted, limit=100, after=third)
        assert rest.events == latest.events[3:]
        jobs = world.run.events.list(EventFilter(types=("job.completed",)), limit=100)
        assert [event["subject"] for event in jobs.events] == [job.id]


def test_queues_that_operators_make_and_the_policy_are_told(
    streamed: Callable[[], AbstractContextManager[World]],
) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        world.run.queues.set_policy({"max_size": 9})
        world.run.queues.set_policy({"max_size": 9})
        world.run.queues.set_policy({"max_size": 8, "lanes": 2})
        world.run.queues.configure("configured", {"concurrency": 5})
        world.run.queues.pause("paused")
        world.push(queue="pushed")
        assert projected.run(stream.take()) == []
        found = world.run.events.list(ALL, limit=100).events
        # In no order: the clock stands still.
        assert sorted(
            (event["data"]["queue"], event["type"], event["data"].get("changed"))
            for event in found
            if event["type"].startswith("queue.")
        ) == [
            ("_default", "queue.config_updated", ["lanes", "max_size"]),
            ("_default", "queue.config_updated", ["max_size"]),
            ("configured", "queue.config_updated", ["concurrency"]),
            ("configured", "queue.created", None),
            ("paused", "queue.created", None),
            ("paused", "queue.paused", None),
        ]


def test_many_events_of_one_batch_are_one_page(
    streamed: Callable[[], AbstractContextManager[World]],
) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        for _ in range(100):
            world.push()
        assert projected.run(stream.take()) == []
        world.clock.advance(HOLD_BACK_MS + 1)
        world.run.table.meter.reset()
        found = world.run.events.list(ALL, limit=40)
        assert len(found.events) == 40
        assert len(world.run.table.meter.calls) <= 3
        assert world.run.table.meter.read_units <= 8
        seen = numbers = len(found.events)
        while found.older is not None:
            found = world.run.events.list(ALL, limit=40, cursor=found.older)
            seen += len(found.events)
        assert (numbers, seen) == (40, 100)


@pytest.mark.parametrize("containers", [1, 3])
def test_a_follower_of_the_projection_misses_nothing(
    streamed: Callable[[], AbstractContextManager[World]], containers: int
) -> None:
    """Several containers write, in any order, at clocks that differ by seconds."""
    chance = random.Random(containers)
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        projectors = [projected.another() for _ in range(containers)]
        cursor = world.run.events.list(ALL, limit=1).cursor
        seen: list[str] = []
        waiting: list[list[Any]] = []
        for _ in range(12):
            for _ in range(chance.randint(1, 6)):
                world.push()
            if batch := stream.take():
                waiting.append(batch)
            chance.shuffle(waiting)
            while waiting and chance.random() < 0.7:
                assert chance.choice(projectors).run(waiting.pop()) == []
            world.clock.advance(chance.choice([0, 20, 3_000, 12_000]))
            found = world.run.events.list(ALL, limit=chance.randint(1, 9), after=cursor)
            seen += [event["id"] for event in found.events]
            cursor = found.cursor
        for batch in waiting:
            assert projected.run(batch) == []
        more = True
        while more:
            found = world.run.events.list(ALL, limit=5, after=cursor)
            seen += [event["id"] for event in found.events]
            cursor, more = found.cursor, found.has_more
        assert len(seen) == len(set(seen))
        assert set(seen) == {event["id"] for event in projected.events()}


def test_the_answer_fits_into_a_function_s_answer() -> None:
    # Shown twice, and quoted once more: at worst each character is two.
    assert 2 * 2 * module.MAX_ANSWER_BYTES < 6_000_000
