"""What a fetch does about jobs that are due, expired, staged or gone; and that it ends in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.job import envelope
from ojs.services.jobs.empty_lines import IndexReader
from ojs.store.table import keys

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from tests.store.conftest import World

SECOND = 1_000


def test_what_became_due_takes_its_place_by_priority_before_what_waits(world: World) -> None:
    waiting = [world.push(n) for n in range(3)]
    urgent = world.push(priority=10, scheduled_at="+PT10S")
    assert [job.id for job in world.fetch()] == [waiting[0].id]
    world.clock.advance(11 * SECOND)
    assert [job.id for job in world.fetch()] == [urgent.id]
    assert [job.id for job in world.fetch()] == [waiting[1].id]


def test_looking_for_what_is_due_is_paid_once_a_second_not_for_each_fetch(exact: World) -> None:
    for n in range(12):
        exact.push(n)
    exact.fetch(worker="w")
    costs = []
    for _ in range(10):
        exact.run.table.meter.reset()
        exact.fetch(worker="w")
        costs.append(len(exact.run.table.meter.calls))
        exact.clock.advance(150)
    assert costs.count(4) >= 8
    assert sum(costs) <= 10 * 4 + 1


def test_strict_takes_what_is_due_in_the_first_queue_before_the_second(world: World) -> None:
    due = world.push(queue="first", scheduled_at="+PT10S")
    ready = world.push(queue="second")
    world.clock.advance(11 * SECOND)
    got = world.run.fetch.fetch(["first", "second"], 1, "w", strategy="strict")
    assert [job.id for job in got] == [due.id]
    got = world.run.fetch.fetch(["first", "second"], 1, "w", strategy="strict")
    assert [job.id for job in got] == [ready.id]


@pytest.mark.parametrize("promoted", ["before", "after"])
def test_a_due_job_that_another_container_promotes_meanwhile_stays_visible(
    world: World, promoted: str
) -> None:
    other, ready = world.another(), IndexReader.ready
    # From the second fetch of a lane on, due jobs join the ready ones.
    world.push()
    assert len(world.fetch()) == 1
    job = world.push(scheduled_at="+PT10S")
    world.clock.advance(11 * SECOND)

    def promote(reader: IndexReader, *given: Any, **named: Any) -> Any:
        page = ready(reader, *given, **named) if promoted == "after" else None
        other.sweep.run_once(world.clock.now_ms(), 10_000)
        return page or ready(reader, *given, **named)

    # As after a lost claim: the fetch continues with the next entry.
    world.run.fetch._lost("default", 0)
    with mock.patch.object(IndexReader, "ready", promote):
        got = world.fetch()
    world.clock.advance(SECOND)
    assert [each.id for each in [*got, *world.fetch()]] == [job.id]


@pytest.mark.exhaustive
def test_a_fetch_over_many_expired_jobs_ends_and_the_next_goes_on(exact: World) -> None:
    requests = [
        envelope.parse({"type": "a", "args": [n], "options": {"expires_at": "+PT1S"}})
        for n in range(100)
    ]
    exact.run.enqueue.push_batch(requests)
    exact.run.enqueue.push_batch(requests)
    good = exact.push("good")
    exact.clock.advance(2 * SECOND)
    got: list[Job] = []
    fetches = most = 0
    while not got:
        exact.run.table.meter.reset()
        got = exact.fetch()
        most = max(most, len(exact.run.table.meter.calls))
        fetches += 1
    assert [job.id for job in got] == [good.id]
    assert most <= 90
    assert fetches <= 12


def test_no_job_is_claimed_once_time_is_running_out(world: World) -> None:
    for n in range(10):
        world.push(n)
    left = iter([True] * 6 + [False] * 1_000)
    got = world.run.fetch.fetch(["default"], 10, "w", go_on=lambda: next(left))
    assert 0 < len(got) < 10
    assert len(world.fetch(count=10)) == 10 - len(got)


@pytest.mark.exhaustive
def test_jobs_behind_two_batches_still_being_stored_are_found(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = exact.another()
    monkeypatch.setattr(staged.enqueue._jobs.batches, "_commit", lambda _token: None)
    for _ in range(2):
        staged.enqueue.push_batch(
            [envelope.parse({"type": "a", "args": [n]}) for n in range(1_000)]
        )
    job = exact.push("behind")
    assert [found.id for found in exact.fetch()] == [job.id]


def test_entries_of_the_ready_line_that_lead_nowhere_end_a_fetch(exact: World) -> None:
    """Index entries may outlive their jobs for a while: here they do for good."""
    items = [
        {"pk": keys.job(exact.run.ids.uuid7()), "sk": "ghost", "wpk": keys.ready("default", 0),
         "wsk": keys.Position(0, exact.run.ids.order()).key()}
        for _ in range(300)
    ]  # fmt: skip
    exact.run.table.write_many(puts=items)
    exact.push("behind")
    exact.run.table.meter.reset()
    exact.fetch()
    assert len(exact.run.table.meter.calls) <= 60
