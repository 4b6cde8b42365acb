"""The sweep reads the lines that are noted as due: what is due is found, whatever fails and whoever
is late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ojs.clock import Clock
from ojs.domain.errors import BackendUnavailable
from ojs.runtime import Runtime
from ojs.services.sweeping import jobs as job_sweep
from ojs.store.queues.due_notes import AHEAD_MS, BUCKET_MS, LATE_MS, SETTLED_MS
from ojs.store.table import keys
from tests.store.due import overdue, push, unnoted
from tests.store.faults import attempt, faults
from tests.store.spending import spending

if TYPE_CHECKING:
    from tests.store.conftest import World

MINUTE_MS = 60_000
LINE = keys.due("default", 0)


def sweep(world: World, *, ms: int = MINUTE_MS) -> int:
    """Time passes, and the job sweep runs; how many queries it made."""
    world.clock.advance(ms)
    with spending(world):
        assert not world.run.sweep.run_once(world.clock.now_ms(), 1_000).failures
        return world.run.table.meter.calls.count("Query")


@pytest.fixture
def swept(exact: World) -> World:
    """The sweep runs, and it is not this minute that reads all lines of the queue."""
    exact.run.queues.create("default", {})
    exact.clock.advance(BUCKET_MS - exact.clock.now_ms() % BUCKET_MS)
    sweep(exact, ms=0)
    sweep(exact, ms=0)
    while exact.run.sweep_queues.plan().turn:
        sweep(exact)
    return exact


def lines(world: World) -> list[str]:
    return world.run.stores.due_notes.lines().lines


def until_read_anyway_ms(world: World) -> int:
    """How long it takes until all lines of the queue are read."""
    began_ms = world.clock.now_ms()
    while not world.run.sweep_queues.plan().turn:
        world.clock.advance(MINUTE_MS)
    found = world.clock.now_ms() - began_ms
    world.clock.advance(-found)
    return found


def test_lines_that_are_not_noted_cost_nothing(swept: World) -> None:
    idle = max(sweep(swept) for _ in range(10))
    for hours in (1, 2):
        push(swept.run, scheduled_at=f"+PT{hours}H")
    assert max(sweep(swept) for _ in range(10)) <= idle
    push(swept.run, scheduled_at="+PT1S")
    assert sweep(swept) <= idle + 1
    assert not overdue(swept)


@pytest.mark.parametrize("what", ["scheduled_at", "expires_at"])
def test_it_is_found_in_its_minute_however_far_it_is(swept: World, what: str) -> None:
    """Nobody notes what is due later than the hourly look is ahead."""
    for minutes in (1, 129, 131, 200, 400):
        at: dict[str, Any] = {what: f"+PT{minutes}M30S"}
        push(swept.run, **at)
    for _ in range(402):
        sweep(swept)
        assert not overdue(swept)


@pytest.mark.parametrize("away_ms", [0, SETTLED_MS + 2 * MINUTE_MS, LATE_MS + SETTLED_MS])
def test_nothing_is_lost_wherever_a_sweep_dies(swept: World, away_ms: int) -> None:
    """Also one that makes up for an outage."""
    for run, _ in faults(swept):
        push(swept.run, scheduled_at="+PT30S")
        push(swept.run, expires_at="+PT40S")
        swept.clock.advance(MINUTE_MS + away_ms)
        attempt(lambda run=run: run.sweep.run_once(swept.clock.now_ms(), 1_000))  # type: ignore[misc]
        sweep(swept)
        assert not overdue(swept)
        for job in swept.fetch("default", 100):
            swept.run.finish.ack(job.id)


def test_an_outage_of_a_day_is_made_up_for_by_one_sweep(swept: World) -> None:
    for hours in range(1, 25):
        push(swept.run, scheduled_at=f"+PT{hours}H")
    assert sweep(swept, ms=25 * 3_600_000) <= 32
    assert not overdue(swept)
    # And then it reads what is noted.
    assert not swept.run.sweep_queues.plan().due.late


def test_threads_that_note_a_line_at_once_write_one_item_twice(
    swept: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One unit more, which the meter counts, and no more work for the sweep."""
    notes, table = swept.run.stores.due_notes, swept.run.table
    entry = (LINE, swept.clock.now_ms() + 3 * BUCKET_MS)
    write, others = table.write_many, [entry]

    def meanwhile(*args: Any, **options: Any) -> Any:
        if others:
            notes.note([others.pop()])
        return write(*args, **options)

    monkeypatch.setattr(table, "write_many", meanwhile)
    with spending(swept) as spent:
        for _ in range(2):
            notes.note([entry])
    assert (spent.calls, spent.writes) == (2, 2)
    assert notes.noted(entry[1] // BUCKET_MS) == [LINE]


def test_what_is_left_of_a_long_line_is_found_later(
    swept: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep reads a page of a line, however many are due; here it runs once in five minutes."""
    monkeypatch.setattr(job_sweep, "_PAGE", 5)
    monkeypatch.setattr(job_sweep, "_FEW", 2)
    for _ in range(22):
        push(swept.run, scheduled_at="+PT10S")
    for left in (17, 12, 7, 2, 0):
        sweep(swept, ms=BUCKET_MS)
        assert len(overdue(swept)) == left


def test_a_line_that_fails_is_read_until_it_does_not(
    swept: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = swept.run.stores.jobs.index
    push(swept.run, scheduled_at="+PT10S")

    def throttled(*_: Any, **__: Any) -> Any:
        raise BackendUnavailable("The store is busy.")

    with monkeypatch.context() as failing:
        failing.setattr(index, "due_until", throttled)
        for _ in range(5):
            swept.clock.advance(BUCKET_MS)
            report = swept.run.sweep.run_once(swept.clock.now_ms(), 1_000)
            assert len(report.failures) == 1
    assert overdue(swept)
    sweep(swept)
    assert not overdue(swept)


def test_a_late_write_is_found_when_its_interval_settles(swept: World) -> None:
    """The note of a slow request is of an interval that ended, and was read since."""
    push(swept.run, scheduled_at="+PT10S")
    sweep(swept, ms=BUCKET_MS)
    sweep(swept)
    assert not lines(swept)
    push(unnoted(swept), scheduled_at="+PT1S")
    waited = 0
    while overdue(swept) or not waited:
        waited += 1
        sweep(swept)
    assert waited * MINUTE_MS <= min(SETTLED_MS, until_read_anyway_ms(swept) + SETTLED_MS)


class Skewed(Clock):
    """A clock that is wrong by some time."""

    def __init__(self, clock: Clock, off_ms: int) -> None:
        self._clock, self._off_ms = clock, off_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._off_ms


@pytest.mark.parametrize("off_ms", [-BUCKET_MS, BUCKET_MS])
def test_a_container_whose_clock_is_wrong_is_found_in_time(swept: World, off_ms: int) -> None:
    """Each entry, in the minute in which the sweep's clock reaches it, or the entry is there."""
    run = swept.another()
    run.stores.due_notes._clock = Skewed(swept.clock, off_ms)
    for _ in range(25):
        push(run, scheduled_at="+PT7M")
        sweep(swept)
        assert not overdue(swept)


def test_two_sweeps_at_once_store_what_both_have_read(swept: World) -> None:
    push(swept.run, scheduled_at="+PT10S")
    other = swept.another()
    slow = other.stores.due_notes.lines()
    sweep(swept, ms=BUCKET_MS + SETTLED_MS)
    done = swept.run.stores.due_notes.lines().done
    # The one that read earlier comes later.
    other.stores.due_notes.advance(slow)
    assert swept.run.stores.due_notes.lines().done == done


def test_a_note_that_fails_is_made_again(swept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = swept.run.stores.due_notes
    write = notes._table.write_many

    def fails(*_: Any, **__: Any) -> None:
        raise BackendUnavailable("The store is busy.")

    monkeypatch.setattr(notes._table, "write_many", fails)
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            push(swept.run, scheduled_at="+PT10S")
    monkeypatch.setattr(notes._table, "write_many", write)
    push(swept.run, scheduled_at="+PT10S")
    assert LINE in lines(swept)


def test_a_queue_that_is_deleted_and_created_again(swept: World) -> None:
    push(swept.run, scheduled_at="+PT2M")
    swept.run.deletion.delete("default", "discard")
    sweep(swept)
    swept.run.queues.create("default", {})
    push(swept.run, scheduled_at="+PT2M")
    for _ in range(4):
        sweep(swept)
        assert not overdue(swept)


def test_lines_of_a_deleted_queue_are_not_read(swept: World) -> None:
    idle = max(sweep(swept) for _ in range(10))
    swept.run.stores.due_notes.note([(keys.due("gone", 0), swept.clock.now_ms())])
    assert sweep(swept) <= idle
    assert lines(swept) == [keys.due("gone", 0)]


ENTRIES: dict[str, Callable[[Runtime], Any]] = {
    "after an upgrade": lambda run: push(run, scheduled_at="+PT61M"),
    "long after one": lambda run: push(run, scheduled_at="+PT5H"),
}


@pytest.mark.parametrize("what", ENTRIES)
def test_entries_of_a_version_without_notes_are_found_in_their_minute(
    swept: World, what: str
) -> None:
    """They are due later than an hour after the deployment."""
    ENTRIES[what](unnoted(swept))
    for _ in range(302):
        sweep(swept)
        assert not overdue(swept)


def test_an_entry_is_seen_twice_before_it_is_due() -> None:
    assert AHEAD_MS >= 2 * 60 * MINUTE_MS + 2 * BUCKET_MS
