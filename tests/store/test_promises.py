"""Checks of what seeds of the simulation show seldom or never, and that each can fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from botocore.exceptions import ReadTimeoutError

from ojs.domain.access import ANYBODY
from ojs.services.jobs.fetch import JobFetcher
from ojs.store.bounds.depth_counter import CapacityUse, period_of
from ojs.store.derived import recount
from ojs.store.derived.recount import Occupancy, Recount
from tests.simulation.mutations_checked import CHECKED
from tests.store.permits import taken
from tests.store.pushing import THROTTLED, Pushing

if TYPE_CHECKING:
    from tests.store.conftest import World

MINUTE = 60_000
HOUR = 60 * MINUTE


def a_slot_in_use_stays(world: World) -> None:
    """The sweep has read a slot that was out of use; then a container uses it."""
    notes = world.run.stores.jobs.notes
    world.push()
    world.fetch()
    (slot,) = notes.slots()
    world.clock.advance(3 * HOUR)
    world.push()
    assert world.fetch()
    notes.retire(slot)
    assert [each.number for each in notes.slots()] == [slot.number]


def a_slow_fetch_loses_no_job(world: World) -> None:
    """More than a minute passes between two claims, and the sweep reads the lease note then."""
    world.push(1)
    world.push(2)
    noted, calls = JobFetcher._note, count()

    def slow(of: JobFetcher, *args: Any) -> bool:
        if next(calls) == 1:
            world.clock.advance(2 * MINUTE)
            world.sweep()
        return noted(of, *args)

    with mock.patch.object(JobFetcher, "_note", slow):
        jobs = world.run.fetch.fetch(["default"], 2, "w", visibility_timeout_ms=20_000)
    assert jobs
    for _ in range(10):
        world.clock.advance(MINUTE)
        world.sweep()
    # As it is stored: who reads a job whose lease has expired ends the attempt.
    records = world.run.stores.jobs.read_records(job.id for job in jobs)
    assert "active" not in {record.state.value for record in records.values()}


def a_retry_is_an_overlap(world: World) -> None:
    """The job of the first tick waits for its next attempt at the second."""
    options = {"queue": "q", "retry": {"initial_interval": "PT10M", "jitter": False}}
    template = {"type": "t", "args": [], "options": options}
    raw = {"name": "c", "expression": "* * * * *", "job_template": template}
    world.run.crons.register(raw, ANYBODY, None)
    world.clock.advance(MINUTE)
    (job,) = world.fetch("q")
    world.run.finish.nack(job.id, error={"code": "x"})
    assert world.state(job) == "retryable"
    world.clock.advance(MINUTE)
    assert world.fetch("q") == []
    assert world.run.crons.get("c", ANYBODY).runs == 1


def a_throttled_push_is_no_attempt(world: World) -> None:
    pushing = Pushing(world)
    pushing.put(concurrency=2)
    job = world.push()
    pushing.pump()
    pushing.end(THROTTLED)
    after = world.run.jobs.get(job.id)
    assert (after.state.value, after.attempt) == ("available", 0)


def a_permit_counts_once(world: World) -> None:
    """The write that acquires it is made again, as its answer is lost."""
    world.run.queues.configure("default", {"concurrency": 5})
    world.push()
    update, lost = world.client.update_item, [0]

    def once(**arguments: Any) -> Any:
        found = update(**arguments)
        if "h_" in arguments["UpdateExpression"] and not lost[0]:
            lost[0] = 1
            raise ReadTimeoutError(endpoint_url="dynamodb")
        return found

    with mock.patch.object(world.client, "update_item", once):
        assert len(world.another().fetch.fetch(["default"], 1, "w")) == 1
    assert lost == [1]
    assert taken(world.run, "default") == 1


def what_the_stream_has_stays_counted(world: World) -> None:
    """The index misses jobs, for as long as the reconcile looks; one place no job has."""
    world.run.queues.configure("default", {"max_size": 100})
    jobs = [world.push(number) for number in range(20)]
    size = sum(job.reserved_bytes or 0 for job in jobs)
    now_ms = world.clock.now_ms()
    room = CapacityUse().plus(1, 10, period_of(now_ms))
    world.run.stores.depth.reserve(
        "default", room, max_count=100, max_size=None, warn_at=1.0, now_ms=now_ms
    )
    there = Occupancy(len(jobs), size, 0, 0)
    with (
        mock.patch.object(Recount, "_line", return_value=()),
        mock.patch.object(recount, "_projected", return_value=there),
    ):
        for _ in range(6):
            world.clock.advance(MINUTE)
            assert not world.run.reconcile.run_once(world.clock.now_ms(), 100).failures
    assert world.run.stores.depth.value("default").count == len(jobs)


CHECKS: Mapping[str, Callable[[World], None]] = {
    "a slot is retired without its condition": a_slot_in_use_stays,
    "a lease note is valid for ever": a_slow_fetch_loses_no_job,
    "a retry is no overlap": a_retry_is_an_overlap,
    "a throttled push is an attempt": a_throttled_push_is_no_attempt,
    "a permit is counted at each try": a_permit_counts_once,
    "the reconcile does not ask the stream": what_the_stream_has_stays_counted,
}


def test_each_has_a_check() -> None:
    assert CHECKED.keys() == CHECKS.keys()


@pytest.mark.parametrize("name", CHECKS)
def test_it_holds(exact: World, name: str) -> None:
    CHECKS[name](exact)


@pytest.mark.parametrize("name", CHECKS)
def test_a_defect_is_found(exact: World, name: str) -> None:
    with CHECKED[name](), pytest.raises(AssertionError):
        CHECKS[name](exact)
