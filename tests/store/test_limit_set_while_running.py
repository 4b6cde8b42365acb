"""A limit that is set while jobs run counts these jobs from the response on, whatever the minute's
reconcile does meanwhile. Only lease notes tell of the jobs here: no stream is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.errors import QueueFull
from ojs.services.permits import reconcile
from ojs.store.bounds.depth_counter import DepthCounter
from tests.simulation import world as simulated
from tests.simulation.actors import Producer
from tests.simulation.mutations_leases import reconcile_passes_over_notes
from tests.simulation.scheduler import Choose, Scheduler, all_ways

if TYPE_CHECKING:
    from ojs.runtime import Runtime
    from tests.store.conftest import World

MINUTE = 60_000
RUNNING, LIMIT = 3, 4
QUEUE = "default"
LIMITS = ("max_size", "concurrency")


def counted(run: Runtime, limit: str) -> int:
    if limit == "max_size":
        return run.stores.depth.value(QUEUE).count
    return run.stores.semaphore.counts({QUEUE: LIMIT})[QUEUE]


def in_one_order(limit: str, choose: Choose) -> None:
    """A limit is set, and the reconcile runs; each has a container of its own."""
    world = simulated.World(1)
    scheduler = Scheduler(choose)
    world.start(scheduler)
    producer = Producer(world, "p")
    for _ in range(RUNNING):
        producer.push(large=False)
    world.run.fetch.fetch([QUEUE], RUNNING, "w", visibility_timeout_ms=5 * MINUTE)
    world.clock.advance(MINUTE)
    world.run.sweep.run_once(world.clock.now_ms(), 100)
    assert not any("wpk" in item for (pk, _), item in world.memory.items.items() if pk[:2] == "J|")
    hand, other = world.container(), world.container()
    # No order of the reads of due notes matters: nothing is due.
    due = other.stores.due_notes.lines()
    other.stores.due_notes.lines = lambda: due  # type: ignore[method-assign]
    seen: list[int] = []

    def set_limit() -> None:
        hand.queues.configure(QUEUE, {limit: LIMIT})
        seen.append(counted(world.run, limit))

    def look() -> None:
        other.reconcile.run_once(other.clock.now_ms(), 100)

    scheduler.run([set_limit, look])
    # Both may have given a permit to the same job for a moment.
    assert seen[0] >= RUNNING
    assert counted(world.run, limit) == RUNNING


def in_every_order(limit: str, switches: int) -> int:
    """In how many orders in which nobody is stopped more often."""
    ways = all_ways(lambda choose: in_one_order(limit, choose), most=1_000, switches=switches)
    return len(list(ways))


@pytest.mark.parametrize("switches", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_counts_what_runs_in_every_order_of_the_request_and_the_reconcile(
    limit: str, switches: int
) -> None:
    assert in_every_order(limit, switches) > 15


def test_a_reconcile_that_passes_over_lease_notes_is_found() -> None:
    """As it was: its count overtook that of the request."""
    with reconcile_passes_over_notes(), pytest.raises(AssertionError):
        in_every_order("max_size", 2)


@pytest.mark.parametrize("lost", range(1, reconcile._RECOUNTS))
def test_a_bound_counts_what_runs_though_counts_are_lost(exact: World, lost: int) -> None:
    """Before each of so many counts of the request another one is stored, which is too low."""
    for number in range(RUNNING):
        exact.push(number)
    exact.run.fetch.fetch([QUEUE], RUNNING, "w", visibility_timeout_ms=5 * MINUTE)
    recount = DepthCounter.recount
    left: list[int] = []

    def overtaken(self: DepthCounter, queue: str, seen: Any, **found: Any) -> bool:
        if left:
            wrong: Any = {"untracked": left.pop(), "untracked_bytes": 0, "drain": None}
            assert recount(self, queue, seen, **wrong)
        return recount(self, queue, seen, **found)

    def later(_: float) -> None:
        # The last count of the request is made after this pause.
        left[:] = [0, 1] * 2
        del left[lost:]

    exact.sleep = later
    with mock.patch.object(DepthCounter, "recount", overtaken):
        exact.another().queues.configure(QUEUE, {"max_size": LIMIT})
    assert not left
    assert exact.run.stores.depth.value(QUEUE).untracked == RUNNING
    exact.push()
    with pytest.raises(QueueFull):
        exact.push()
