"""What statistics cost to read, and that what is shallow is counted exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain import jsontext
from ojs.domain.errors import BackendUnavailable
from ojs.domain.events.query import EventFilter
from ojs.domain.job import envelope
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import ACTIVITIES, DAY_MS, MINUTE_MS, Period, StateCounts
from ojs.domain.times import format_ms
from ojs.http.parameters import MAX_QUEUES_OFFSET
from ojs.store.derived import statistics as stats_store
from ojs.store.derived.sharded import ShardCounters
from ojs.store.derived.statistics import MAX_SHALLOW
from ojs.store.jobs import staged_batches
from ojs.store.table import keys
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ojs.store.table.values import Value
    from tests.store.conftest import World

WORKER = "w"
LIVE = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.ACTIVE)


def backlog(world: World, queue: str, size: int) -> None:
    """A queue with so many jobs, in all the lines of the index, and counters that say so."""
    now_ms = world.clock.now_ms()

    def records() -> Iterator[dict[str, Value]]:
        for number in range(size):
            place = [
                (keys.ready(queue, 0), keys.Position(number % 3, f"{now_ms:011x}{0:04x}").key()),
                (keys.due(queue, 0), keys.due_at(now_ms + number, keys.START)),
                (keys.due(queue, 0), keys.due_at(now_ms + number, keys.LEASE_END)),
                (keys.pending(queue, 0), keys.instant(now_ms)),
            ][number % 4]
            yield {
                "pk": keys.job(f"{queue}-{number}"),
                "sk": keys.RECORD,
                "wpk": place[0],
                "wsk": place[1],
            }

    quarter = size // 4
    world.run.table.write_many(
        [
            {"pk": keys.QUEUES, "sk": queue},
            {"pk": keys.queue(queue), "sk": keys.RECORD, "state": "active", "created": now_ms},
            {
                "pk": keys.stats(queue), "sk": keys.NOW, "available": quarter, "active": quarter,
                "scheduled": quarter, "pending": quarter, "completed": size, "p0": quarter // 3,
                "p1": quarter // 3, "p2": quarter // 3, "changed": now_ms,
            },
        ]
    )  # fmt: skip
    whole = list(records())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(world.run.table.write_many, (whole[at::40] for at in range(40))))


def statistics(world: World, queue: str) -> dict[str, Callable[[], object]]:
    """Every statistic there is, by name."""
    stats = world.run.stats
    now_ms = world.clock.now_ms()

    def history(period: Period, of: str | None) -> Callable[[], object]:
        return lambda: stats.history(
            period, since_ms=now_ms - 30 * DAY_MS, until_ms=now_ms + 1, queue=of
        )

    return {
        "queue": lambda: stats.queue(queue),
        "queues": lambda: stats.list(limit=100),
        "queues, a page further in": lambda: stats.list(limit=100, skip=900),
        "totals": stats.totals,
        **{f"history {p}": history(p, None) for p in Period},
        **{f"history {p} of a queue": history(p, queue) for p in Period},
    }


def spent(world: World, read: Callable[[], object]) -> tuple[int, float]:
    meter = world.run.table.meter
    meter.reset()
    read()
    assert meter.write_units == 0
    return len(meter.calls), meter.read_units


@pytest.mark.exhaustive
@pytest.mark.parametrize("jobs", [8_000, pytest.param(100_000, marks=pytest.mark.whole)])
def test_a_statistic_costs_the_same_however_many_jobs_there_are(exact: World, jobs: int) -> None:
    backlog(exact, "small", 10)
    backlog(exact, "large", jobs)
    exact.run.metrics_sweep.run_once(exact.clock.now_ms(), 1_000)
    small, large = statistics(exact, "small"), statistics(exact, "large")
    costs = {name: (spent(exact, small[name]), spent(exact, large[name])) for name in small}
    for name, (of_small, of_large) in costs.items():
        assert of_small[0] <= 3, name
        assert of_large[0] == of_small[0], name
        # A page of the index and not a word more: 101 keys.
        assert of_large[1] <= of_small[1] + 5, name
    assert costs["queue"][1][0] == 3
    assert costs["queue"][1][1] <= 12
    shown = exact.run.stats.queue("large")
    assert {state: shown.levels.of(state) for state in State} == {
        State.AVAILABLE: jobs // 4, State.SCHEDULED: jobs // 4, State.ACTIVE: jobs // 4,
        State.PENDING: jobs // 4, State.COMPLETED: jobs, State.RETRYABLE: 0, State.CANCELLED: 0,
        State.DISCARDED: 0,
    }  # fmt: skip


def test_the_last_hour_of_a_queue_costs_a_call_more(exact: World) -> None:
    """61 minutes at the most, also of those that stand in an open shard still."""
    stats = exact.run.stats
    now_ms = exact.clock.now_ms()
    backlog(exact, "q", 10)
    starts = [now_ms - at * 60_000 for at in range(90)]
    exact.run.table.write_many(
        [
            {
                "pk": keys.stats("q"), "sk": keys.minute(format_ms(start)[:16]),
                **dict.fromkeys(ACTIVITIES, 1_000_000),
            }
            for start in starts
        ]
    )  # fmt: skip
    calls, units = spent(exact, lambda: stats.queue("q"))
    with_hour = spent(exact, lambda: stats.queue("q", hour=True))
    assert with_hour[0] == calls + 1 == 4
    assert units < with_hour[1] <= units + 4
    assert stats.queue("q", hour=True).last_hour.completed == 60_000_000


def test_metrics_cost_a_call_for_25_queues(exact: World) -> None:
    for number in range(51):
        exact.run.queues.resume(f"q{number:02d}")
    calls, units = spent(exact, lambda: list(exact.run.stats.metrics().queues))
    assert calls == 4 + 3
    assert units <= 4 * 51
    for number in range(3):
        exact.push(queue="q00", rate_limit={"key": f"k{number}", "concurrency": 1})
    calls, _ = spent(exact, lambda: list(exact.run.stats.metrics().queues))
    assert calls == 6 + 3


# --- exact where it is shallow ----------------------------------------------------------------


def counted(world: World, queue: str = "default") -> dict[str, int]:
    levels = world.run.stats.queue(queue).levels
    return {state.value: levels.of(state) for state in LIVE}


def test_just_written_jobs_are_counted_without_a_projection(exact: World) -> None:
    for priority in (0, 0, 7):
        exact.push(priority=priority)
        exact.clock.advance(1_000)
    exact.push(delay_until="+PT1H")
    exact.push(delay_until="+PT2H")
    assert counted(exact) == {"available": 3, "scheduled": 2, "retryable": 0, "active": 0}
    assert exact.run.stats.queue("default").priorities == {7: 1, 0: 2}
    (first,) = exact.fetch(worker=WORKER)
    assert counted(exact) == {"available": 2, "scheduled": 2, "retryable": 0, "active": 1}
    exact.run.workers.beat(WORKER, active_jobs=[first.id])
    assert counted(exact)["active"] == 1
    exact.run.finish.nack(first.id, error={"code": "boom", "message": "no"})
    assert counted(exact) == {"available": 2, "scheduled": 2, "retryable": 1, "active": 0}
    oldest = exact.run.stats.queue("default").oldest_available_ms
    assert oldest == exact.clock.now_ms() - 3_000


@pytest.mark.parametrize("size", [100, 101])
def test_claims_of_the_last_minute_are_counted_in_two_calls_or_not_at_all(
    exact: World, size: int
) -> None:
    for number in range(size):
        exact.push(number)
    taken = 0
    while taken < size:
        taken += len(exact.fetch(count=min(40, size - taken)))
    calls, units = spent(exact, lambda: exact.run.stats.queue("default"))
    read = size <= 100
    assert calls == 3 + 1 + read
    assert units <= 12 + 2 + 100 * read
    assert counted(exact)["active"] == (size if read else 0)


@pytest.mark.parametrize("size", [MAX_SHALLOW, MAX_SHALLOW + 1])
def test_shallow_ends_at_a_page(exact: World, size: int) -> None:
    for start in range(0, size, 100):
        requests = [
            envelope.parse({"type": "a", "args": []}) for _ in range(min(100, size - start))
        ]
        exact.run.enqueue.push_batch(requests)
    stats = exact.run.stats.queue("default")
    exact.run.table.write_many([
        {"pk": keys.stats("default"), "sk": keys.NOW, "available": 7_777, "p0": 7_777}
    ])  # fmt: skip
    deep = size > MAX_SHALLOW
    assert stats.levels.of(State.AVAILABLE) == (0 if deep else size)
    assert counted(exact)["available"] == (7_777 if deep else size)
    assert exact.run.stats.queue("default").priorities == {0: 7_777 if deep else size}


@pytest.mark.parametrize("size", [MAX_SHALLOW, MAX_SHALLOW + 1])
def test_jobs_that_wait_are_counted_up_to_a_page(exact: World, size: int) -> None:
    for _ in range(size):
        exact.push(delay_until="+PT1H")
    exact.run.table.write_many([
        {"pk": keys.stats("default"), "sk": keys.NOW, "scheduled": 5_000, "active": 3}
    ])  # fmt: skip
    if size > MAX_SHALLOW:
        expected = {"available": 0, "scheduled": 5_000, "retryable": 0, "active": 3}
    else:
        expected = {"available": 0, "scheduled": size, "retryable": 0, "active": 0}
    assert counted(exact) == expected


def test_jobs_of_a_batch_that_is_not_committed_do_not_count(exact: World) -> None:
    requests = [
        envelope.parse({"type": "a", "args": [], "options": {"queue": f"q{number % 3}"}})
        for number in range(120)
    ]
    exact.push(queue="q0")
    with (
        mock.patch.object(
            staged_batches.StagedBatches, "_commit", side_effect=BackendUnavailable("died")
        ),
        pytest.raises(BackendUnavailable),
    ):
        exact.run.enqueue.push_batch(requests)
    stats = exact.run.stats.queue("q0")
    assert stats.levels.of(State.AVAILABLE) == 1
    assert stats.priorities == {0: 1}
    calls, _ = spent(exact, lambda: exact.run.stats.queue("q0"))
    assert calls == 3
    exact.clock.advance(staged_batches.STAGING_GRACE_MS + 1)
    exact.sweep()
    exact.run.enqueue.push_batch(requests)
    assert counted(exact, "q0")["available"] == 41
    assert counted(exact, "q1")["available"] == 40


def test_a_queue_of_several_lanes_is_counted_by_the_projection(exact: World) -> None:
    exact.push()
    stats_pk = keys.stats("default")
    exact.run.table.write_many(
        [
            {
                "pk": keys.queue("default"),
                "sk": keys.RECORD,
                "state": "active",
                "config": '{"lanes":2}',
            },
            {"pk": stats_pk, "sk": keys.NOW, "available": 40, "active": 2, "p0": 40},
            {"pk": stats_pk, "sk": keys.GAUGE, "oldest": 17, "at": 18},
        ]
    )
    stats = exact.run.stats.queue("default")
    assert (stats.levels.of(State.AVAILABLE), stats.levels.of(State.ACTIVE)) == (40, 2)
    assert stats.oldest_available_ms == 17


def test_the_oldest_of_a_deep_queue(exact: World) -> None:
    first_ms = exact.clock.now_ms()
    exact.push(priority=-5)
    for _ in range(MAX_SHALLOW + 5):
        exact.clock.advance(10)
        exact.push()
    counters: dict[str, Value] = {
        "pk": keys.stats("default"), "sk": keys.NOW, "available": 106, "p0": 105,
    }  # fmt: skip
    exact.run.table.write_many([counters])
    # One priority in use, as far as the projection knows: the line is in order of age.
    assert exact.run.stats.queue("default").oldest_available_ms == first_ms + 10
    exact.run.table.write_many([counters | {"p-5": 1}])
    # Several, and no sweep has been: the oldest of those that are seen.
    assert exact.run.stats.queue("default").oldest_available_ms == first_ms + 10
    exact.run.metrics_sweep.run_once(exact.clock.now_ms(), 1_000)
    assert exact.run.stats.queue("default").oldest_available_ms == first_ms


# --- with the projection ----------------------------------------------------------------------


def test_counts_of_the_projection_are_what_is_shown(
    streamed: Callable[[], AbstractContextManager[World]],
) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        world.run.enqueue.push_batch(
            [envelope.parse({"type": "email.send", "args": []}) for _ in range(150)]
        )
        world.push(pending=True)
        world.push(delay_until="+PT1H")
        for job in world.fetch(count=100, worker=WORKER):
            world.clock.advance(10)
            world.run.finish.ack(job.id)
        for job in world.fetch(count=2, worker=WORKER):
            world.clock.advance(500)
            error = {"code": "DEAD_LETTER", "message": "no"}
            world.run.finish.nack(job.id, error=error)
        world.fetch(count=3, worker=WORKER)
        assert projected.run(stream.take()) == []
        stats = world.run.stats.queue("default")
        assert {state.value: count for state, count in stats.levels.states.items() if count} == {
            "available": 45, "active": 3, "completed": 100, "discarded": 2, "pending": 1,
            "scheduled": 1,
        }  # fmt: skip
        assert (stats.levels.depth, stats.levels.dead) == (50, 2)
        assert (stats.today.enqueued, stats.today.completed, stats.today.failed) == (150, 100, 2)
        # All were fetched at once and done one after another.
        assert stats.today.average_run_ms == round((sum(range(10, 1_010, 10)) + 1_500) / 102)
        assert stats.rates.processed == 100
        (listed,) = world.run.stats.list(limit=10).items
        assert listed.levels == stats.levels
        swept = world.run.metrics_sweep.run_once(world.clock.now_ms(), 1_000)
        assert swept.totals is not None
        assert swept.totals == world.run.stats.totals()
        assert swept.totals.levels == stats.levels
        assert (swept.totals.queues, swept.totals.rates) == (1, stats.rates)
        (metrics,) = world.run.stats.metrics().queues
        assert metrics.today.of("completed") == {"email.send": 100}
        assert sum(metrics.today.durations) == 102
        assert metrics.today.durations[-1] == 0
        assert sum(metrics.today.queue_times) == 105
        now_ms = world.clock.now_ms()
        for queue in (None, "default"):
            points = world.run.stats.history(
                Period.MINUTE, since_ms=now_ms - MINUTE_MS, until_ms=now_ms + 1, queue=queue
            )
            assert sum(point.activity.completed for point in points) == 100


def test_statistics_are_the_same_on_every_engine(world: World) -> None:
    for priority in (3, 0, 0):
        world.push(priority=priority)
        world.clock.advance(1_000)
    world.push(delay_until="+PT1H")
    (job,) = world.fetch(worker=WORKER)
    now_ms = world.clock.now_ms()
    world.run.table.write_many(
        [
            {
                "pk": keys.stats("default"), "sk": keys.NOW, "available": 2, "completed": 4,
                "changed": now_ms,
            },
            {
                "pk": keys.stats("default"), "sk": keys.minute(format_ms(now_ms)[:16]),
                "completed": 4, "waits": 1, "wait_ms": 9,
            },
        ]
    )  # fmt: skip
    assert counted(world) == {"available": 2, "scheduled": 1, "retryable": 0, "active": 1}
    swept = world.run.metrics_sweep.run_once(now_ms, 100)
    assert swept.totals == world.run.stats.totals()
    (gauges,) = swept.queues
    assert gauges.oldest_available_ms == now_ms - 2_000
    (listed,) = world.run.stats.list(limit=5).items
    assert listed.levels.of(State.COMPLETED) == 4
    for period in Period:
        points = world.run.stats.history(period, since_ms=now_ms, until_ms=now_ms + 1)
        assert [point.activity.wait_ms for point in points] == [9]
    assert world.run.events.list(EventFilter(), limit=5).events == []
    assert world.run.finish.ack(job.id).id == job.id


@pytest.mark.parametrize("shards", [0, 1, 4, 40])
def test_a_page_of_queues_takes_a_bounded_number_of_reads(exact: World, shards: int) -> None:
    """With all counters there; also of the last page that may be skipped to."""
    names = [f"a-queue-of-some-{number:04d}" for number in range(340)]
    now_ms = exact.clock.now_ms()
    texts = [format_ms(now_ms), format_ms(now_ms - MINUTE_MS)]
    kinds = [keys.NOW, keys.GAUGE, keys.day(texts[0][:10]), *(keys.minute(t[:16]) for t in texts)]
    rest = jsontext.dumps([now_ms] * 6 + [10_000] * 8)
    written: list[dict[str, Value]] = [
        {"pk": keys.QUEUES, "sk": name, "at": now_ms, "rest": rest} for name in names
    ]
    written += [
        {"pk": keys.stats(name), "sk": sk, "completed": 5, "available": 1, "oldest": 1}
        for name in (*names[:60], *names[300:])
        for sk in kinds
    ]
    exact.run.table.write_many(written)
    sharded = ShardCounters(exact.run.table)
    for number in range(shards):
        sharded.note(f"shardId-{number}", now_ms=now_ms)
    stats = exact.run.stats
    reads: dict[str, Callable[[], Page[Any]]] = {
        "first": lambda: stats.list(limit=stats.most_listed()),
        "farthest": lambda: stats.list(limit=stats.most_listed(), skip=MAX_QUEUES_OFFSET),
        "behind": lambda: stats.list(limit=stats.most_listed(), cursor=names[200]),
    }
    for name, read in reads.items():
        calls, units = spent(exact, read)
        assert calls <= 4, name
        assert units <= 60, name
        assert len(read().items) >= {0: 15, 1: 15, 4: 10, 40: 2}[shards]

    def detail() -> Page[Any]:
        stats.totals()
        return stats.days(limit=stats.most_listed(days=True))

    calls, units = spent(exact, detail)
    assert calls <= 4
    assert units <= 60
    assert len(detail().items) >= {0: 30, 1: 20, 4: 12, 40: 2}[shards]


def test_pages_of_queues_join(exact: World) -> None:
    names = [f"q{number:03d}" for number in range(25)]
    for name in names:
        exact.run.queues.resume(name)
    found: list[str] = []
    cursor = None
    while True:
        page: Page[Any] = exact.run.stats.list(limit=7, cursor=cursor)
        found += [summary.name for summary in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == names
    whole = exact.run.stats.list(limit=25)
    assert (len(whole.items), whole.next_cursor) == (25, None)
    assert [s.name for s in exact.run.stats.list(limit=3, skip=4).items] == names[4:7]
    assert exact.run.stats.list(limit=3, skip=30).items == []


def test_the_store_reads_what_it_wrote(exact: World) -> None:
    store = stats_store.StatisticsStore(exact.run.table)
    store.save_oldest("q", 5, now_ms=10)
    exact.run.queues.resume("q")
    (found,) = store.gauges(["q"])
    assert (found.queue.name, found.oldest_ms, found.levels) == ("q", 5, _levels())
    store.save_oldest("q", None, now_ms=10)
    (found,) = store.gauges(["q"])
    assert found.oldest_ms is None
    assert store.oldest(Queue("q"), probes=10).sure


def _levels() -> StateCounts:
    return StateCounts(dict.fromkeys(State, 0))
