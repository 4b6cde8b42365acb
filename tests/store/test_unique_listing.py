"""Lists of unique locks, against all jobs there are, and what an answer reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job import envelope
from ojs.services.jobs.listing import ALL_CALLS, ALL_UNITS, CALLS, UNITS
from tests.store.spending import spending
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.store.conftest import World

DAY_MS = 86_400_000


def job(queue: str, number: int) -> dict[str, Any]:
    """Each second one is unique."""
    options: dict[str, Any] = {"queue": queue}
    if number % 2:
        options["unique"] = {"keys": ["type", "args"]}
    return {"type": queue, "args": [number], "options": options}


def listed(world: World, wanted: JobFilter) -> list[str]:
    """The jobs of all pages, each within what an answer may read."""
    found: list[str] = []
    cursor = None
    for _ in range(100):
        with spending(world) as spent:
            page = world.run.unique_locks.page(wanted, limit=50, cursor=cursor)
        assert spent.calls <= (CALLS if wanted.queue else ALL_CALLS)
        assert spent.reads <= (UNITS if wanted.queue else ALL_UNITS)
        assert spent.writes == 0
        found += [each.job.id for each in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise AssertionError("no end")


@pytest.mark.parametrize("days", [0, 8])
def test_all_locks_are_listed_by_four_calls_a_page(
    streamed: Callable[[], AbstractContextManager[World]], days: int
) -> None:
    """Of what happened lately the event log tells; what is older stands in the lines."""
    with streamed() as world:
        unique: dict[str, set[str]] = {}
        for queue in ("a", "b", "c"):
            requests = [envelope.parse(job(queue, number)) for number in range(50)]
            pushed = world.run.enqueue.push_batch(requests)
            unique[queue] = {one.job.id for one in pushed[1::2]}
        projected = Projected(world.client, world.table, world.clock)
        assert not projected.run(Stream(world.client, world.table).take())
        if not days:
            first = world.run.unique_locks.page(JobFilter(), limit=25)
            assert len(first.items) == 25
        world.clock.advance(days * DAY_MS)
        everything = listed(world, JobFilter())
        assert sorted(everything) == sorted(set().union(*unique.values()))
        for queue, expected in unique.items():
            found = listed(world, JobFilter(queue=queue))
            assert (len(found), set(found)) == (25, expected)


def test_a_lock_is_found_by_two_calls(exact: World) -> None:
    pushed = exact.run.enqueue.push(envelope.parse(job("q", 1)))
    exact.push()
    assert pushed.job.unique_key is not None
    with spending(exact) as spent:
        (found,) = exact.run.unique_locks.find(pushed.job.unique_key, JobFilter()).items
    assert found.job.id == pushed.job.id
    assert (spent.calls, spent.reads, spent.writes) == (2, 2, 0)
