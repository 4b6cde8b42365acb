"""How many queues jobs may make (`max_queues`): what it refuses, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pytest

from ojs import runtime
from ojs.domain.dead_letter.override import JobOverride
from ojs.domain.errors import TooManyQueues
from ojs.domain.job import envelope
from ojs.services.for_each import one_by_one
from ojs.services.queues.new_queues import COUNTED_MS
from ojs.settings import Settings
from tests.store.spending import spending, warm

if TYPE_CHECKING:
    from tests.store.conftest import World

Limited = Callable[[int], runtime.Runtime]


@pytest.fixture
def limited(world: World) -> Limited:
    """Containers of a deployment that is to have so many queues at most."""

    def container(most: int) -> runtime.Runtime:
        return runtime.build(
            Settings(table=world.table, max_queues=most),
            client=world.client,
            blobs=world.blobs,
            clock=world.clock,
            measure=True,
            sleep=world.sleep,
            for_each=one_by_one,
        )

    return container


def push(run: runtime.Runtime, *queues: str) -> str:
    requests = [
        envelope.parse({"type": "t", "args": [], "options": {"queue": queue}}) for queue in queues
    ]
    return run.enqueue.push_batch(requests)[0].job.id


def named(prefix: str, count: int) -> Iterable[str]:
    return (f"{prefix}{number}" for number in range(count))


def queues_of(run: runtime.Runtime) -> list[str]:
    return run.stores.queues.all_names()


def test_a_batch_makes_all_its_queues_or_none(limited: Limited) -> None:
    run = limited(5)
    push(run, *named("a", 3))
    with pytest.raises(TooManyQueues):
        push(run, *named("b", 3))
    assert len(queues_of(run)) == 3
    push(run, *named("b", 2))
    assert len(queues_of(run)) == 5


def test_a_queue_that_goes_makes_room_within_a_minute(world: World, limited: Limited) -> None:
    run = limited(2)
    push(run, "a")
    push(run, "b")
    run.stores.registry.remove("b", before_ms=world.clock.now_ms())
    with pytest.raises(TooManyQueues):
        push(run, "c")
    world.clock.advance(COUNTED_MS)
    push(run, "c")


def test_neither_retries_nor_moves_make_a_queue(world: World, limited: Limited) -> None:
    run = limited(1)
    job_id = push(run, "a")
    with pytest.raises(TooManyQueues):
        run.acts.change(job_id, priority=None, queue="b")
    run.fetch.fetch(["a"], 1, "w")
    run.finish.nack(job_id, worker_id="w", error={"code": "DEAD_LETTER", "message": "no"})
    with pytest.raises(TooManyQueues):
        run.redrive.retry(job_id, JobOverride(queue="b"))
    assert queues_of(run) == ["a"]


@pytest.mark.exhaustive
def test_containers_keep_to_the_limit_together(limited: Limited) -> None:
    """Each counts before it makes more than its part, and with few left each time."""
    containers = [limited(150) for _ in range(5)]
    made = 0
    for number in range(200):
        try:
            push(containers[number % 5], f"q{number}")
        except TooManyQueues:
            continue
        made += 1
    assert made == len(queues_of(containers[0])) == 150


def test_without_a_limit_nothing_is_counted(limited: Limited) -> None:
    run = limited(0)
    run.table.meter.reset()
    push(run, *named("a", 10))
    assert "Query" not in run.table.meter.calls


def test_what_a_limit_costs(exact: World) -> None:
    """A query for a new queue; nothing for one that is there, or for the next within a minute."""
    warm(exact)
    exact.clock.advance(COUNTED_MS)
    calls = []
    for queue in ("first", "second", "second"):
        with spending(exact) as spent:
            exact.push(queue=queue)
        calls.append(exact.run.table.meter.calls.count("Query"))
    assert calls == [1, 0, 0]
    assert spent.reads <= 1
    for later_ms, queries in ((COUNTED_MS - 1, 0), (1, 1)):
        exact.clock.advance(later_ms)
        exact.run.table.meter.reset()
        exact.push(queue=f"later-{later_ms}")
        assert exact.run.table.meter.calls.count("Query") == queries


def test_refusals_do_not_count_again(limited: Limited) -> None:
    """A flood of new names reads the registry once a minute."""
    run = limited(20)
    push(run, *named("a", 20))
    run.table.meter.reset()
    for number in range(30):
        with pytest.raises(TooManyQueues):
            push(run, *named(f"b{number}-", 1 + number))
    assert run.table.meter.calls.count("Query") == 0


def test_a_count_reads_a_thousand_queues_at_a_time(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ojs.store.queues.registry.QUEUES_A_CALL", 3)
    registry = exact.run.stores.registry
    for number in range(7):
        registry.register(f"q{number}")
    for most, count, queries in ((0, 0, 0), (2, 2, 1), (7, 7, 3), (100, 7, 3)):
        exact.run.table.meter.reset()
        assert (registry.count(most), len(exact.run.table.meter.calls)) == (count, queries)
