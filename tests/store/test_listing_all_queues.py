"""A page of jobs of all queues is full where enough jobs match, whatever the other queues hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain import times
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job import envelope
from ojs.domain.job.states import State
from ojs.services.for_each import in_threads, one_by_one
from ojs.services.listing import jobs as listing
from ojs.services.listing.jobs import ALL_CALLS, ALL_UNITS
from tests.store.spending import spending
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.store.conftest import World

DAY_MS = 86_400_000


@pytest.fixture
def seen(streamed: Callable[[], AbstractContextManager[World]]) -> Iterator[World]:
    """A world whose stream can be projected."""
    with streamed() as world:
        yield world


def project(world: World) -> None:
    """What the stream function does with all that was written, from the beginning."""
    projected = Projected(world.client, world.table, world.clock)
    assert not projected.run(Stream(world.client, world.table).take())


def one_page(world: World, limit: int = 50, **wanted: object) -> list[str]:
    """The ids of a first page of all queues, whose cost is checked."""
    with spending(world) as spent:
        page = world.run.listing.page(JobFilter(**wanted), limit=limit)  # type: ignore[arg-type]
    assert spent.calls <= ALL_CALLS
    assert spent.reads <= ALL_UNITS
    assert not spent.writes
    return sorted(job.id for job in page.items)


def batch(world: World, queue: str, count: int) -> set[str]:
    """Jobs that one request enqueued."""
    specs = [{"type": "t", "args": [n], "options": {"queue": queue}} for n in range(count)]
    pushed = world.run.enqueue.push_batch([envelope.parse(spec) for spec in specs])
    return {one.job.id for one in pushed}


@pytest.mark.parametrize("projected", [True, False])
def test_jobs_of_a_batch_are_on_the_first_page(seen: World, projected: bool) -> None:
    pushed = batch(seen, "a", 3)
    if projected:
        project(seen)
    assert set(one_page(seen, state=(State.AVAILABLE,))) == pushed


def test_a_first_page_among_fifty_queues_has_every_job(seen: World) -> None:
    for number in range(50):
        seen.run.queues.create(f"q-{number:02}", {})
    later = times.format_ms(seen.clock.now_ms() + DAY_MS)
    scheduled = {seen.push(queue=f"q-{n:02}", scheduled_at=later).id for n in range(5, 50, 5)}
    unique = {
        seen.push(n, queue=f"q-{n:02}", unique={"keys": ["args"]}).id for n in range(20, 30, 3)
    }
    seen.clock.advance(11 * 60_000)
    project(seen)
    assert set(one_page(seen, state=(State.SCHEDULED,))) == scheduled
    assert len(one_page(seen, limit=5, state=(State.SCHEDULED,))) == 5
    locks = seen.run.unique_locks.page(JobFilter(), limit=50).items
    assert {held.job.id for held in locks} == unique


def test_pages_have_numbers_over_all_queues(seen: World) -> None:
    pushed = {seen.push(queue=f"q-{number:02}").id for number in range(30)}
    project(seen)
    wanted, found = JobFilter(state=(State.AVAILABLE,)), set[str]()
    for page in range(3):
        shown = seen.run.listing.page(wanted, limit=10, skip=10 * page)
        found |= {job.id for job in shown.items}
        assert (len(shown.items), shown.total is not None) == (10, True)
    assert found == pushed


def test_a_job_is_listed_though_its_queue_counts_none_yet(seen: World) -> None:
    seen.run.queues.create("old", {})
    seen.clock.advance(3_600_000)
    project(seen)
    job = seen.push(queue="old")
    assert one_page(seen, state=(State.AVAILABLE,)) == [job.id]


def busy(world: World, count: int) -> dict[State, set[str]]:
    """Jobs in so many queues that do not rest: of each state those that there are."""
    ids: dict[State, set[str]] = {state: set() for state in State}
    later = times.format_ms(world.clock.now_ms() + DAY_MS)
    for number in range(count):
        queue = f"q-{number:03}"
        if number % 7 == 6:
            world.push(queue=queue)
            (job,) = world.fetch(queue)
            ids[State.ACTIVE].add(job.id)
        if number % 5 == 4:
            ids[State.SCHEDULED].add(world.push(queue=queue, scheduled_at=later).id)
        if number % 9 == 8:
            ended = world.run.jobs.cancel(world.push(queue=queue).id)
            ids[State.CANCELLED].add(ended.id)
        ids[State.AVAILABLE].add(world.push(number, queue=queue).id)
    return ids


# Of so many queues the counters are read, or what the last sweep has counted.
@pytest.mark.parametrize(
    ("count", "swept"),
    [
        (50, False),
        pytest.param(69, False, marks=pytest.mark.exhaustive),
        pytest.param(130, True, marks=[pytest.mark.exhaustive, pytest.mark.whole]),
    ],
)
def test_a_first_page_among_busy_queues_is_full(seen: World, count: int, swept: bool) -> None:
    ids = busy(seen, count)
    project(seen)
    if swept:
        seen.clock.advance(61_000)
        seen.run.metrics_sweep.run_once(seen.clock.now_ms(), 1_000)
    for state, there in ids.items():
        page = one_page(seen, state=(state,))
        assert set(page) <= there
        assert len(page) == min(50, len(there)), state
        if swept or state is State.AVAILABLE:
            assert seen.run.listing.page(JobFilter(state=(state,)), limit=5).total == len(there)


def test_a_job_that_no_sweep_has_counted_is_listed(
    seen: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many queues a list reads what the last sweep has counted first."""
    monkeypatch.setattr(listing, "_SURVEY_UNITS", 0)
    later = times.format_ms(seen.clock.now_ms() + DAY_MS)
    scheduled = {seen.push(queue=queue, scheduled_at=later).id for queue in "ab"}
    seen.push(queue="c")
    project(seen)
    seen.run.metrics_sweep.run_once(seen.clock.now_ms(), 1_000)
    scheduled.add(seen.push(queue="c", scheduled_at=later).id)
    project(seen)
    assert set(one_page(seen, state=(State.SCHEDULED,))) == scheduled
    seen.run.queues.configure("d", {"lanes": 3})
    lanes = [seen.push(n, queue="d") for n in range(9)]
    assert len({job.lane for job in lanes}) > 1
    project(seen)
    seen.run.metrics_sweep.run_once(seen.clock.now_ms(), 1_000)
    assert {job.id for job in lanes} < set(one_page(seen, state=(State.AVAILABLE,)))


def test_queues_are_read_side_by_side(seen: World) -> None:
    for number in range(20):
        seen.push(queue=f"q-{number:02}")
    project(seen)
    rounds: list[int] = []

    def each(act: Callable[[Any], Any], of: Sequence[Any]) -> list[Any]:
        rounds.append(len(of))
        return one_by_one(act, of)

    seen.run.listing._for_each = each
    assert len(one_page(seen, state=(State.AVAILABLE,))) == 20
    assert rounds == [8, 8, 4]
    assert len(one_page(seen, limit=5, state=(State.AVAILABLE,))) == 5
    assert rounds[3:] == [6]
    seen.run.listing._for_each = in_threads
    shown = seen.run.listing.page(JobFilter(state=(State.AVAILABLE,)), limit=50).items
    assert [job.queue for job in shown] == [f"q-{number:02}" for number in range(20)]
