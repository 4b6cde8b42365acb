"""The event log read forward and back: nothing lost, nothing twice, however pages come in."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.clock import ManualClock
from ojs.domain import times
from ojs.domain.errors import InvalidRequest
from ojs.domain.events.event import event_id
from ojs.domain.events.query import RETAIN_MS, EventFilter, EventPage
from ojs.services.operations import events as module
from ojs.services.operations.events import HOLD_BACK_MS, MAX_NAMED, Events
from ojs.store.derived.event_log import MAX_QUERIES, Budget, EventLog, StoredPage
from ojs.store.table import keys

ALL = EventFilter()
START_MS = 1_780_000_000_000


def make_event(
    number: int, time_ms: int = START_MS, kind: str = "job.enqueued", **data: Any
) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": event_id(time_ms, str(number)),
        "type": kind,
        "source": "ojs://test/api",
        "time": times.format_ms(time_ms),
        "subject": f"job-{number}",
        "data": {"job_type": "a.b", "queue": "q", "n": number, **data},
    }


class FakeLog(EventLog):
    """Pages in memory, of which a query brings `size`."""

    def __init__(self, size: int = 8) -> None:
        self.pages: dict[str, bytes] = {}
        self.size = size
        self.queries = 0

    def write(self, ms: int, token: str, events: list[dict[str, Any]]) -> None:
        self.pages[keys.event_page(ms, token)] = zlib.compress(json.dumps(events).encode())

    def forward(self, first: str, last: str, budget: Budget) -> Iterator[StoredPage]:
        return self._read(sorted(key for key in self.pages if first <= key <= last), budget)

    def backward(self, last: str, first: str, budget: Budget) -> Iterator[StoredPage]:
        found = sorted(key for key in self.pages if first <= key <= last)
        return self._read(found[::-1], budget)

    def _read(self, found: list[str], budget: Budget) -> Iterator[StoredPage]:
        for at, key in enumerate(found):
            if not budget.allows():
                return
            if at % self.size == 0:
                budget.queries -= 1
                self.queries += 1
            page = StoredPage(key, self.pages[key])
            budget.bytes -= len(page.packed)
            yield page


class World:
    """A log, its reader, and a clock."""

    def __init__(self, size: int = 8) -> None:
        self.clock = ManualClock(START_MS)
        self.log = FakeLog(size)
        self.events = Events(self.log, self.clock)
        self.written: list[int] = []

    def write(self, count: int, *, behind_ms: int = 0, **data: Any) -> None:
        """A page whose key is `behind_ms` old by the time it is there."""
        now_ms = self.clock.now_ms()
        numbers = range(len(self.written), len(self.written) + count)
        self.written += numbers
        page = [make_event(number, now_ms - behind_ms, **data) for number in numbers]
        self.log.write(now_ms - behind_ms, f"tok-{numbers.start:04d}", page)

    def list(self, wanted: EventFilter = ALL, limit: int = 100, **place: Any) -> EventPage:
        return self.events.list(wanted, limit=limit, **place)


def numbers_of(page: EventPage) -> list[int]:
    return [event["data"]["n"] for event in page.events]


# --- following --------------------------------------------------------------------------------


@given(st.data())
def test_a_follower_sees_each_event_once_however_pages_come_in(data: st.DataObject) -> None:
    world = World(size=data.draw(st.integers(1, 10)))
    filtered = data.draw(st.booleans())
    wanted = EventFilter(types=("job.completed",)) if filtered else ALL
    for _ in range(data.draw(st.integers(0, 3))):
        world.write(data.draw(st.integers(1, 5)), kind="job.completed")
    first = world.list(wanted, limit=1_000)
    seen, cursor = numbers_of(first), first.cursor
    meant = set(world.written)
    for _ in range(data.draw(st.integers(1, 25))):
        world.clock.advance(data.draw(st.sampled_from([0, 1, 300, 5_000, HOLD_BACK_MS, 60_000])))
        for _ in range(data.draw(st.integers(0, 3))):
            kind = data.draw(st.sampled_from(["job.completed", "job.started"]))
            # Writers do not wait for each other: a key may be behind by less than HOLD_BACK_MS.
            behind_ms = data.draw(st.integers(0, HOLD_BACK_MS - 1))
            before = len(world.written)
            world.write(data.draw(st.integers(1, 6)), behind_ms=behind_ms, kind=kind)
            if kind == "job.completed" or not filtered:
                meant |= set(world.written[before:])
        page = world.list(wanted, limit=data.draw(st.integers(1, 8)), after=cursor)
        seen += numbers_of(page)
        cursor = page.cursor
    more = True
    while more:
        page = world.list(wanted, limit=3, after=cursor)
        seen += numbers_of(page)
        cursor, more = page.cursor, page.has_more
    assert sorted(seen) == sorted(set(seen)), "an event came twice"
    assert set(seen) == meant, "an event was lost"


@given(st.data())
def test_back_and_forward_together_show_each_event_once(data: st.DataObject) -> None:
    world = World(size=data.draw(st.integers(1, 10)))
    for _ in range(data.draw(st.integers(1, 12))):
        world.clock.advance(data.draw(st.sampled_from([1, 2_000, HOLD_BACK_MS])))
        world.write(
            data.draw(st.integers(1, 5)), behind_ms=data.draw(st.integers(0, HOLD_BACK_MS - 1))
        )
    limit = data.draw(st.integers(1, 7))
    page = first = world.list(limit=limit)
    shown = [numbers_of(page)]
    while page.older is not None:
        if data.draw(st.booleans()):
            # What comes while somebody pages back is for those who go forward.
            world.clock.advance(data.draw(st.sampled_from([0, 500, HOLD_BACK_MS])))
            world.write(1, behind_ms=data.draw(st.integers(0, HOLD_BACK_MS - 1)))
        page = world.list(limit=limit, cursor=page.older)
        assert page.cursor == first.cursor
        shown.append(numbers_of(page))
    back = [number for numbers in reversed(shown) for number in numbers]
    cursor, forward, more = first.cursor, [], True
    while more:
        page = world.list(limit=limit, after=cursor)
        forward += numbers_of(page)
        cursor, more = page.cursor, page.has_more
    assert sorted(back + forward) == world.written
    in_order = [number for number in back if number not in forward]
    by_key = sorted(world.log.pages, key=str)
    told = [
        event["data"]["n"]
        for key in by_key
        for event in json.loads(zlib.decompress(world.log.pages[key]))
    ]
    assert in_order == [number for number in told if number in in_order]


def test_the_latest_come_first_and_each_answer_is_in_order() -> None:
    world = World()
    for _ in range(5):
        world.clock.advance(60_000)
        world.write(2)
    page = world.list(limit=3)
    assert numbers_of(page) == [7, 8, 9]
    assert not page.has_more
    page = world.list(limit=3, cursor=page.older)
    assert numbers_of(page) == [4, 5, 6]
    assert numbers_of(world.list(limit=3, cursor=page.older)) == [1, 2, 3]
    assert numbers_of(world.list(limit=3, skip=3)) == [4, 5, 6]
    last = world.list(limit=100)
    assert (numbers_of(last), last.older) == (list(range(10)), None)


@pytest.mark.parametrize("age_ms", [HOLD_BACK_MS - 1, HOLD_BACK_MS, HOLD_BACK_MS + 1])
def test_a_page_between_young_and_old_is_shown_once(age_ms: int) -> None:
    world = World()
    world.write(1)
    world.clock.advance(age_ms)
    page = world.list()
    assert numbers_of(page) == [0]
    assert world.list(after=page.cursor).events == []


def test_an_empty_log() -> None:
    world = World()
    page = world.list()
    assert (page.events, page.has_more, page.older) == ([], False, None)
    world.write(1)
    assert numbers_of(world.list(after=page.cursor)) == [0]


def test_what_is_too_much_to_be_named_waits() -> None:
    world = World(size=200)
    cursor = world.list().cursor
    for _ in range(3 * MAX_NAMED):
        world.clock.advance(10)
        world.write(1)
    page = world.list(limit=1_000, after=cursor)
    assert numbers_of(page) == list(range(MAX_NAMED))
    assert not page.has_more, "there is nothing to be had at once"
    again = world.list(limit=1_000, after=page.cursor)
    assert again.events == []
    seen = numbers_of(page)
    # The latest ones are held back from a listing too, so that it can be followed.
    latest = world.list(limit=1_000)
    assert numbers_of(latest) == list(range(MAX_NAMED))
    world.clock.advance(HOLD_BACK_MS)
    seen += numbers_of(world.list(limit=1_000, after=again.cursor))
    assert seen == world.written
    assert numbers_of(world.list(limit=1_000, after=latest.cursor)) == seen[MAX_NAMED:]


# --- after an event ---------------------------------------------------------------------------


def test_after_an_event() -> None:
    world = World()
    for _ in range(4):
        world.clock.advance(60_000)
        world.write(3)
    events = world.list(limit=100).events
    for at, event in enumerate(events):
        page = world.list(limit=2, after=event["id"])
        assert numbers_of(page) == list(range(at + 1, min(at + 3, 12)))
        rest = world.list(limit=100, after=page.cursor)
        assert numbers_of(page) + numbers_of(rest) == list(range(at + 1, 12))


def test_after_an_event_that_was_recorded_late() -> None:
    world = World()
    world.write(1)
    late = make_event(100, START_MS - 600_000)
    world.log.write(START_MS + 5, "late-one", [late, make_event(101)])
    world.clock.advance(10)
    assert numbers_of(world.list(after=late["id"])) == [101]


def test_after_an_event_that_is_not_there_goes_on_from_its_time() -> None:
    world = World()
    world.write(1)
    world.clock.advance(120_000)
    world.write(1)
    world.clock.advance(1)
    assert numbers_of(world.list(after=event_id(START_MS + 60_000, "nothing"))) == [1]
    assert numbers_of(world.list(after=event_id(START_MS - 60_000, "nothing"))) == [0, 1]
    assert numbers_of(world.list(after=event_id(0, "nothing"))) == [0, 1]
    page = world.list(after=event_id(2**48 - 1, "nothing"))
    assert (page.events, page.has_more) == ([], False)


# --- filters ----------------------------------------------------------------------------------


def test_filters_are_combined() -> None:
    event = make_event(1, START_MS, "job.completed", worker_id="w")
    fitting = (
        EventFilter(),
        EventFilter(types=("job.completed",)),
        EventFilter(types=("queue.paused", "job.*")),
        EventFilter(types=("*",)),
        EventFilter(queues=("other", "q")),
        EventFilter(job_types=("a.b",)),
        EventFilter(sources=("ojs://test/*",)),
        EventFilter(sources=("ojs://test/api",)),
        EventFilter(since_ms=START_MS),
        EventFilter(until_ms=START_MS + 1),
        EventFilter(types=("job.*",), queues=("q",), since_ms=START_MS, until_ms=START_MS + 1),
    )
    assert all(wanted.matches(event) for wanted in fitting)
    other = (
        EventFilter(types=("job.complete",)),
        EventFilter(types=("queue.*",)),
        EventFilter(queues=("other",)),
        EventFilter(job_types=("a",)),
        EventFilter(sources=("ojs://test",)),
        EventFilter(since_ms=START_MS + 1),
        EventFilter(until_ms=START_MS),
        EventFilter(types=("job.*",), queues=("other",)),
    )
    assert not any(wanted.matches(event) for wanted in other)
    of_worker = {**event, "type": "worker.started", "data": {"worker_id": "w"}}
    assert not EventFilter(queues=("q",)).matches(of_worker)


def test_a_span_of_time_reads_only_what_may_be_in_it() -> None:
    world = World(size=1)
    for _ in range(48):
        world.clock.advance(3_600_000)
        world.write(1)
    from_ms = START_MS + 10 * 3_600_000
    wanted = EventFilter(since_ms=from_ms, until_ms=from_ms + 3 * 3_600_000)
    page = world.list(wanted)
    assert numbers_of(page) == [9, 10, 11]
    assert page.older is None
    assert world.log.queries <= 6
    forward = world.list(wanted, after=event_id(START_MS, "nothing"))
    assert (numbers_of(forward), forward.has_more) == ([9, 10, 11], False)


def test_events_older_than_seven_days_are_not_shown() -> None:
    world = World()
    world.write(1)
    world.clock.advance(RETAIN_MS)
    world.write(1)
    assert numbers_of(world.list()) == [0, 1]
    world.clock.advance(1)
    assert numbers_of(world.list()) == [1]
    assert numbers_of(world.list(after=event_id(START_MS, "nothing"))) == [1]


# --- bounds -----------------------------------------------------------------------------------


def test_a_filter_that_fits_little_is_bounded_and_makes_progress() -> None:
    world = World(size=2)
    for number in range(200):
        world.clock.advance(60_000)
        world.write(1, kind="job.failed" if number % 90 == 0 else "job.started")
    wanted = EventFilter(types=("job.failed",))
    found: list[int] = []
    page, requests = world.list(wanted), 1
    found = numbers_of(page)
    while page.older is not None:
        before = world.log.queries
        page, requests = world.list(wanted, cursor=page.older), requests + 1
        assert world.log.queries - before <= MAX_QUERIES
        found = numbers_of(page) + found
    assert found == [0, 90, 180]
    assert requests > 3
    cursor, more, forward = event_id(START_MS, "nothing"), True, []
    while more:
        page = world.list(wanted, after=cursor)
        cursor, more = page.cursor, page.has_more
        forward += numbers_of(page)
    assert forward == found


def test_pages_that_name_no_queue_that_is_asked_for_are_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    start = world.list().cursor
    for number in range(40):
        world.clock.advance(60_000)
        world.write(3, queue="rare" if number == 7 else "often", job_type="a.b")
    read: list[str] = []
    events = StoredPage.events

    def noted(page: StoredPage) -> list[dict[str, Any]]:
        read.append(page.key)
        return events(page)

    monkeypatch.setattr(StoredPage, "events", noted)
    for wanted, pages in (
        (EventFilter(queues=("rare",)), 1),
        (EventFilter(queues=("rare", "none"), job_types=("a.b",)), 1),
        (EventFilter(queues=("rare",), job_types=("a",)), 0),
        (EventFilter(queues=("none",)), 0),
    ):
        read.clear()
        back = world.list(wanted)
        ahead = world.list(wanted, after=start)
        found = [21, 22, 23] if wanted.matches(make_event(0, queue="rare")) else []
        assert (numbers_of(back), back.older) == (found, None)
        assert (numbers_of(ahead), ahead.has_more) == (found, False)
        assert read == pages * 2 * [keys.event_page(START_MS + 8 * 60_000, "tok-0021")]


def test_a_name_is_found_however_it_is_written() -> None:
    world = World()
    for name in ("é", 'quo"ted', "line\nbreak"):
        world.write(1, job_type=name)
        assert numbers_of(world.list(EventFilter(job_types=(name,)))) == [len(world.written) - 1]


def test_an_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 1_000)
    world = World()
    world.write(20, text="x" * 200)
    world.clock.advance(60_000)
    found: list[int] = []
    page = first = world.list(limit=1_000)
    found = numbers_of(page)
    assert 0 < len(found) < 20
    while page.older is not None:
        page = world.list(limit=1_000, cursor=page.older)
        found = numbers_of(page) + found
    assert found == world.written
    world.write(20, text="x" * 200)
    found, cursor, more = [], first.cursor, True
    while more:
        page = world.list(limit=1_000, after=cursor)
        cursor, more = page.cursor, page.has_more
        assert len(page.events) < 20
        found += numbers_of(page)
    assert found == list(range(20, 40))


def test_one_large_event_is_shown_alone() -> None:
    world = World()
    world.write(3, text="x" * module.MAX_ANSWER_BYTES)
    world.clock.advance(60_000)
    assert numbers_of(world.list()) == [2]


# --- cursors that cannot be -------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f",
        "x",
        "f123",
        f"f{START_MS:015d},",
        f"f{START_MS:015d},a b",
        f"f{START_MS:015d},tok:x",
        f"f{START_MS:015d}\n",
        f"f{START_MS + 3_600_000:015d}",
        "f999999999999999",
        "f" + "٣" * 15,
        f"f{START_MS:015d}" + ",tok" * 1_000,
        f"b{START_MS:015d}|tok:1",
        f"b{START_MS:015d};f{START_MS:015d}",
        f"b{START_MS:015d}|tok:1;f",
        f"b{START_MS:015d}|tok:1;b{START_MS:015d}|tok:1;f{START_MS:015d}",
        f"b{START_MS + 3_600_000:015d}|tok:1;f{START_MS:015d}",
        "b\ud800",
    ],
)
def test_a_cursor_that_is_not_ours(text: str) -> None:
    world = World()
    world.write(1)
    with pytest.raises(InvalidRequest) as raised:
        world.list(cursor=text)
    assert raised.value.field == "cursor"
    if not text.startswith("b"):
        with pytest.raises(InvalidRequest) as raised:
            world.list(after=text)
        assert raised.value.field == "after"


@given(st.text(max_size=60).map(lambda text: f"f{START_MS:015d}{text}"))
def test_any_cursor_is_read_or_refused(text: str) -> None:
    world = World()
    world.write(2)
    refused, page = None, None
    try:
        page = world.list(cursor=text)
    except InvalidRequest as error:
        refused = error.field
    assert refused == "cursor" or (page is not None and len(page.events) <= 2)


def test_an_id_that_is_none() -> None:
    world = World()
    for text in ("evt_", "evt_1", "evt_019539a4-0000-4000-8000-000000000000", "evt_\ud800"):
        with pytest.raises(InvalidRequest) as raised:
            world.list(after=text)
        assert raised.value.field == "after"
