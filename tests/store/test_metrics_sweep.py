"""The metrics sweep: oldest jobs, totals, points; cut short, repeated, late, twice at once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ojs.domain.errors import BackendUnavailable
from ojs.domain.job.states import State
from ojs.domain.pool.backlog import Backlog
from ojs.domain.stats import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    Activity,
    Period,
    Point,
    StateCounts,
    Totals,
    WorkerCounts,
)
from ojs.domain.times import format_ms
from ojs.services.operations.metrics_sweep import LATE_MS, MetricsReport, MetricsSweep
from ojs.store.dead_letter.counters import DeadLetterCounters
from ojs.store.derived import statistics as stats_store
from ojs.store.derived.pool_health import PoolHealthStore
from ojs.store.queues import workers as worker_store
from ojs.store.queues.registry import QUIET_MS
from ojs.store.table import keys
from tests.spread import spread

if TYPE_CHECKING:
    from tests.store.conftest import World


def sweep(
    world: World, limit: int = 1_000, go_on: Callable[[], bool] = lambda: True
) -> MetricsReport:
    return world.run.metrics_sweep.run_once(world.clock.now_ms(), limit, go_on)


def count(world: World, queue: str, ago_ms: int = 0, **values: int) -> None:
    """What the projection writes when something happened `ago_ms` before."""
    now_ms = world.clock.now_ms()
    pk, sk = keys.stats(queue), keys.minute(format_ms(now_ms - ago_ms)[:16])
    before = world.run.table.get(pk, sk) or {}
    counted = {name: int(before.get(name, 0)) + value for name, value in values.items()}
    world.run.table.write_many(
        [{**before, "pk": pk, "sk": sk, **counted}, {"pk": pk, "sk": keys.NOW, "changed": now_ms}]
    )


def levels(world: World, queue: str, **values: int) -> None:
    world.run.table.write_many([{"pk": keys.stats(queue), "sk": keys.NOW, **values}])


def processed(world: World, period: Period, span_ms: int) -> list[int]:
    now_ms = world.clock.now_ms()
    points = world.run.stats.history(period, since_ms=now_ms - span_ms, until_ms=now_ms + 1)
    return [point.activity.completed for point in points]


def sums(world: World, period: Period) -> int:
    return sum(processed(world, period, 400 * DAY_MS))


# --- oldest jobs ------------------------------------------------------------------------------


def test_the_oldest_job_is_found_over_all_priorities(exact: World) -> None:
    start_ms = exact.clock.now_ms()
    for priority in (3, -7, 0, 100, -100, 0, 3):
        exact.clock.advance(1_000)
        exact.push(priority=priority)
    exact.run.queues.resume("empty")
    levels(exact, "default", available=7)
    swept = sweep(exact)
    by_name = {found.queue.name: found for found in swept.queues}
    assert by_name["default"].oldest_available_ms == start_ms + 1_000
    assert by_name["empty"].oldest_available_ms is None
    assert swept.counts == {"queues": 2, "oldest": 1}
    # Taken in order of priority: the oldest goes when its turn comes.
    for _ in range(3):
        exact.fetch()
    assert sweep(exact).queues[0].oldest_available_ms == start_ms + 2_000


def test_an_oldest_job_costs_a_call_a_priority(exact: World) -> None:
    for priority in (1, 2, 3):
        for _ in range(30):
            exact.push(priority=priority)
    store = stats_store.StatisticsStore(exact.run.table)
    queue = exact.run.stores.queues.get("default")
    assert queue is not None
    exact.run.table.meter.reset()
    found = store.oldest(queue, probes=100)
    assert (found.probes, found.sure) == (4, True)
    assert len(exact.run.table.meter.calls) == 4
    assert exact.run.table.meter.read_units <= 2
    short = store.oldest(queue, probes=3)
    assert (short.probes, short.sure) == (3, False)


def test_a_gauge_is_written_only_when_it_changes(exact: World) -> None:
    exact.push()
    levels(exact, "default", available=1)
    assert sweep(exact).counts["oldest"] == 1
    exact.clock.advance(MINUTE_MS)
    # What queues are put in order by has the oldest jobs of the sweep before, as the totals do.
    exact.run.table.meter.reset()
    sweep(exact)
    assert exact.run.table.meter.write_units == 2
    exact.clock.advance(MINUTE_MS)
    exact.run.table.meter.reset()
    swept = sweep(exact)
    assert "oldest" not in swept.counts
    assert swept.queues[0].oldest_available_ms == exact.clock.now_ms() - 2 * MINUTE_MS
    # The totals are the only write of a quiet minute.
    assert exact.run.table.meter.write_units == 1
    exact.fetch()
    levels(exact, "default", available=0, active=1)
    assert sweep(exact).counts["oldest"] == 1
    assert exact.run.table.get(keys.stats("default"), keys.GAUGE) is None
    assert sweep(exact).queues[0].oldest_available_ms is None


def test_probes_are_bounded_and_no_queue_starves(exact: World) -> None:
    names = [f"q{number}" for number in range(6)]
    for name in names:
        exact.push(queue=name)
        levels(exact, name, available=1)
    chosen = itertools.cycle(range(6))
    gauges = MetricsSweep(
        statistics=stats_store.StatisticsStore(exact.run.table),
        sweep_queues=exact.run.sweep_queues,
        queues=exact.run.stores.queues,
        workers=worker_store.WorkerStore(exact.run.table),
        dead_letters=DeadLetterCounters(exact.run.table),
        pool_health=PoolHealthStore(exact.run.table),
        maintenance=exact.run.maintenance,
        worker_groups={},
        choose=lambda _: next(chosen),
    )
    seen: Counter[str] = Counter()
    for _ in range(6):
        swept = gauges.run_once(exact.clock.now_ms(), 4)
        assert swept.counts["more"] == 1
        assert swept.totals is not None, "what costs no probes is whole"
        seen.update(q.queue.name for q in swept.queues if q.oldest_available_ms is not None)
    assert set(seen) == set(names)
    assert "more" not in gauges.run_once(exact.clock.now_ms(), 100).counts


def test_several_lanes_are_looked_at(exact: World) -> None:
    exact.run.table.write_many(
        [
            {"pk": keys.QUEUES, "sk": "wide"},
            {
                "pk": keys.queue("wide"),
                "sk": keys.RECORD,
                "state": "active",
                "config": '{"lanes":3}',
            },
        ]
    )
    levels(exact, "wide", available=3)
    for lane in range(3):
        position = keys.Position(0, f"{5_000 - lane:011x}{0:04x}")
        exact.run.table.write_many(
            [
                {
                    "pk": keys.job(f"j{lane}"), "sk": keys.RECORD,
                    "wpk": keys.ready("wide", lane), "wsk": position.key(),
                }
            ]
        )  # fmt: skip
    assert sweep(exact).queues[0].oldest_available_ms == 4_998


# --- totals -----------------------------------------------------------------------------------


def test_totals_are_the_sum_of_all_queues(exact: World) -> None:
    for number in range(40):
        exact.run.queues.resume(f"q{number:02d}")
        levels(exact, f"q{number:02d}", available=2, completed=number, discarded=1, dead=1)
    exact.run.workers.beat("gone")
    exact.clock.advance(60_000)
    for number in range(5):
        exact.run.workers.beat(f"w{number}")
    exact.run.workers.direct("w0", "quiet")
    exact.run.workers.drain("w1", state="draining")
    swept = sweep(exact)
    totals = swept.totals
    assert totals == exact.run.stats.totals()
    assert totals is not None
    assert totals.orders
    assert replace(totals, orders="") == Totals(
        at_ms=exact.clock.now_ms(),
        queues=40,
        levels=StateCounts(
            {
                State.AVAILABLE: 80, State.COMPLETED: 780, State.DISCARDED: 40, State.SCHEDULED: 0,
                State.PENDING: 0, State.ACTIVE: 0, State.RETRYABLE: 0, State.CANCELLED: 0,
            },
            40,
        ),
        workers=WorkerCounts(running=3, quiet=2, stale=1),
    )  # fmt: skip
    assert [found.queue.name for found in swept.queues] == [
        f"q{number:02d}" for number in range(40)
    ]


def test_rates_are_those_of_the_last_minute(exact: World) -> None:
    exact.clock.advance(-exact.clock.now_ms() % MINUTE_MS + 15_000)
    exact.run.queues.resume("q")
    count(exact, "q", completed=3, failed=1)
    count(exact, "q", MINUTE_MS, completed=40, failed=4)
    totals = sweep(exact).totals
    assert totals is not None
    assert (totals.rates.processed, totals.rates.failed) == (33.0, 4.0)
    assert exact.run.stats.totals().rates == totals.rates


def test_an_older_sweep_does_not_undo_a_later_one(exact: World) -> None:
    exact.run.queues.resume("q")
    levels(exact, "q", completed=5)
    count(exact, "q", completed=5)
    levels(exact, "q", completed=5, changed=exact.clock.now_ms())
    late_ms = exact.clock.now_ms() - 1_000
    sweep(exact)
    store = stats_store.StatisticsStore(exact.run.table)
    assert not store.save_totals(Totals(at_ms=late_ms), through_ms=0, now_ms=late_ms)
    point = Point(late_ms - late_ms % MINUTE_MS, Activity(completed=1))
    assert exact.run.stats.totals().levels.of(State.COMPLETED) == 5
    minute_ms = exact.clock.now_ms() - exact.clock.now_ms() % MINUTE_MS
    assert not store.save_point(MINUTE_MS, Point(minute_ms, point.activity), now_ms=late_ms)
    assert sums(exact, Period.MINUTE) == 5


# --- points -----------------------------------------------------------------------------------


def test_what_happened_is_added_up_by_minute_hour_and_day(exact: World) -> None:
    exact.clock.advance(-exact.clock.now_ms() % DAY_MS + HOUR_MS - 90_000)
    for name in ("one", "two"):
        exact.run.queues.resume(name)
        count(exact, name, completed=1, enqueued=2, wait_ms=30, waits=1)
    sweep(exact)
    exact.clock.advance(MINUTE_MS)
    count(exact, "one", completed=2)
    sweep(exact)
    exact.clock.advance(MINUTE_MS)  # over the full hour
    count(exact, "one", 40_000, completed=4)
    count(exact, "two", completed=8)
    count(exact, "two", MINUTE_MS, completed=16)
    sweep(exact)
    assert processed(exact, Period.MINUTE, 2 * MINUTE_MS) == [2, 22, 8]
    assert processed(exact, Period.HOUR, HOUR_MS) == [24, 8]
    assert processed(exact, Period.DAY, 0) == [32]
    exact.clock.advance(DAY_MS - HOUR_MS + MINUTE_MS)  # over midnight
    count(exact, "one", completed=64)
    sweep(exact)
    assert processed(exact, Period.DAY, DAY_MS) == [32, 64]


def test_a_sweep_again_writes_nothing_more(exact: World) -> None:
    exact.run.queues.resume("q")
    count(exact, "q", completed=3)
    assert sweep(exact).counts["points"] == 3
    for _ in range(2):
        exact.run.table.meter.reset()
        assert "points" not in sweep(exact).counts
        assert exact.run.table.meter.write_units == 1
    count(exact, "q", completed=1)
    assert sweep(exact).counts["points"] == 3
    assert (sums(exact, Period.MINUTE), sums(exact, Period.DAY)) == (4, 4)


def test_what_the_stream_brings_late_is_added(exact: World) -> None:
    exact.run.queues.resume("q")
    count(exact, "q", completed=3)
    sweep(exact)
    exact.clock.advance(LATE_MS - MINUTE_MS)
    sweep(exact)
    count(exact, "q", LATE_MS - MINUTE_MS, completed=5)
    sweep(exact)
    assert (sums(exact, Period.MINUTE), sums(exact, Period.HOUR)) == (8, 8)


def test_after_an_outage_it_catches_up(exact: World) -> None:
    exact.run.queues.resume("q")
    sweep(exact)
    for _ in range(10):
        exact.clock.advance(2 * HOUR_MS)
        count(exact, "q", completed=1)
    exact.run.table.meter.reset()
    sweep(exact)
    assert len(exact.run.table.meter.calls) < 120
    assert sums(exact, Period.MINUTE) == 10
    assert sums(exact, Period.HOUR) == 10
    assert sums(exact, Period.DAY) == 10


def test_the_first_sweep_takes_the_day_before(exact: World) -> None:
    exact.run.queues.resume("q")
    count(exact, "q", 23 * HOUR_MS, completed=1)
    count(exact, "q", 26 * HOUR_MS, completed=2)
    count(exact, "q", completed=4)
    sweep(exact)
    assert sums(exact, Period.MINUTE) == 5


@pytest.mark.parametrize("steps", spread(range(4), 3))
def test_a_sweep_that_is_cut_short_is_made_up_for(exact: World, steps: int) -> None:
    for number in range(40):
        exact.run.queues.resume(f"q{number:02d}")
        count(exact, f"q{number:02d}", completed=1)
        levels(exact, f"q{number:02d}", completed=1, changed=exact.clock.now_ms())
    left = itertools.count(steps, -1)
    swept = sweep(exact, go_on=lambda: next(left) > 0)
    assert swept.counts["more"] == 1
    if swept.totals is None:
        assert exact.run.stats.totals().at_ms is None
        assert sums(exact, Period.MINUTE) == 0
    sweep(exact)
    assert exact.run.stats.totals().levels.of(State.COMPLETED) == 40
    assert {sums(exact, period) for period in Period} == {40}


@pytest.mark.parametrize("saved", range(3))
@pytest.mark.parametrize("how", ["dies", "is overtaken"])
def test_a_sweep_that_ends_between_writes_is_made_up_for(
    exact: World, monkeypatch: pytest.MonkeyPatch, saved: int, how: str
) -> None:
    exact.run.queues.resume("q")
    count(exact, "q", completed=1)
    sweep(exact)
    count(exact, "q", completed=2)
    left = itertools.count(saved, -1)
    save = stats_store.StatisticsStore.save_point

    def failing(store: stats_store.StatisticsStore, *args: object, **options: object) -> bool:
        if next(left) > 0:
            return save(store, *args, **options)  # type: ignore[arg-type]
        if how == "dies":
            raise BackendUnavailable("DynamoDB throttled the request.")
        return False

    with monkeypatch.context() as patched:
        patched.setattr(stats_store.StatisticsStore, "save_point", failing)
        with suppress(BackendUnavailable):
            sweep(exact)
    assert sums(exact, Period.MINUTE) == 1
    exact.clock.advance(MINUTE_MS)
    sweep(exact)
    assert {sums(exact, period) for period in Period} == {3}


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_points_are_always_what_the_minutes_say(exact: World, data: st.DataObject) -> None:
    """Whenever sweeps come, by whatever clock: in the end all is added up."""
    exact.clock.advance(30 * DAY_MS)
    started_ms = exact.clock.now_ms()
    names = ("one", "two", "three")
    for name in names:
        exact.run.queues.resume(name)
    total = 0
    for _ in range(data.draw(st.integers(1, 12))):
        exact.clock.advance(data.draw(st.sampled_from([0, 999, MINUTE_MS, 40 * MINUTE_MS])))
        for _ in range(data.draw(st.integers(0, 3))):
            late_ms = data.draw(st.integers(0, LATE_MS - MINUTE_MS))
            number = data.draw(st.integers(1, 9))
            if exact.clock.now_ms() - late_ms >= started_ms:
                count(exact, data.draw(st.sampled_from(names)), late_ms, completed=number)
                total += number
        if data.draw(st.booleans()):
            stop = data.draw(st.integers(0, 6))
            left = itertools.count(stop, -1)
            skew_ms = data.draw(st.sampled_from([0, 0, -1_500, 700]))
            exact.run.metrics_sweep.run_once(
                exact.clock.now_ms() + skew_ms,
                1_000,
                lambda left=left: next(left) > 0,  # type: ignore[misc]
            )
    exact.clock.advance(1_000)
    sweep(exact)
    span_ms = exact.clock.now_ms() - started_ms
    for period in Period:
        assert sum(processed(exact, period, span_ms)) == total


# --- groups of workers that are scaled -----------------------------------------------------------


def measured(world: World, **groups: tuple[str, ...]) -> dict[str, Backlog]:
    """The backlog of each group, as a sweep of a deployment with these groups finds it."""
    run = world.run
    gauges = MetricsSweep(
        statistics=run.stores.statistics,
        sweep_queues=run.sweep_queues,
        queues=run.stores.queues,
        workers=run.stores.workers,
        dead_letters=run.stores.dead_letters,
        pool_health=run.stores.pool_health,
        maintenance=run.maintenance,
        worker_groups=groups,
    )
    found = gauges.run_once(world.clock.now_ms(), 1_000).backlogs
    return {each.group: each for each in found}


def test_the_backlog_is_what_waits_and_runs_for_each_worker(exact: World) -> None:
    for queue in ("mail", "reports", "images"):
        exact.push(queue=queue)
    levels(exact, "mail", available=7, active=2)
    levels(exact, "reports", available=3, retryable=4, scheduled=5, completed=6)
    levels(exact, "images", available=100)
    now_ms = exact.clock.now_ms()
    for name, info in {
        "both": {"queues": ["mail", "reports"]},
        "one": {"queues": ["reports"]},
        "other": {"queues": ["images"]},
        "silent": {},
    }.items():
        exact.run.stores.workers.register(name, now_ms=now_ms, info=info)
    found = measured(exact, mail=("mail", "reports"), images=("images",), none=("nothing",))
    assert found["mail"] == Backlog("mail", waiting=10, running=2, workers=2)
    assert found["mail"].per_worker == 6.0
    assert found["images"].per_worker == 100.0
    assert found["none"] == Backlog("none")
    assert found["none"].per_worker is None
    assert not found["none"].stranded


def test_workers_that_are_away_or_go_are_no_workers(exact: World) -> None:
    exact.push(queue="mail")
    levels(exact, "mail", available=1)
    now_ms = exact.clock.now_ms()
    workers = exact.run.stores.workers
    workers.register("dead", now_ms=now_ms - 60_000, info={"queues": ["mail"]})
    workers.register("going", now_ms=now_ms, info={"queues": ["mail"]})
    workers.touch("going", now_ms=now_ms, state="draining")
    found = measured(exact, mail=("mail",))["mail"]
    assert (found.workers, found.stranded, found.per_worker) == (0, True, None)


def test_jobs_that_more_workers_could_not_start_do_not_count(exact: World) -> None:
    for queue in ("paused", "narrow"):
        exact.push(queue=queue)
    levels(exact, "paused", available=50, active=1)
    levels(exact, "narrow", available=50, active=3)
    exact.run.queues.pause("paused")
    exact.run.queues.configure("narrow", {"concurrency": 5})
    assert measured(exact, all=("paused", "narrow"))["all"].waiting == 2
    assert measured(exact, all=("paused", "narrow"))["all"].running == 4
    exact.clock.advance(QUIET_MS + 60_000)
    exact.run.rest.run_once(exact.clock.now_ms(), 500)
    rested = measured(exact, all=("paused",))["all"]
    assert (rested.waiting, rested.stranded) == (0, False), "also once the queue rests"


def test_in_maintenance_mode_nothing_is_measured(exact: World) -> None:
    exact.push(queue="mail")
    levels(exact, "mail", available=9)
    assert measured(exact, mail=("mail",))["mail"].stranded
    exact.run.maintenance.begin(None, None, now_ms=exact.clock.now_ms())
    exact.clock.advance(60_000)
    assert measured(exact, mail=("mail",)) == {}


def test_groups_cost_at_most_two_calls(exact: World) -> None:
    exact.push(queue="mail")
    levels(exact, "mail", available=9)
    measured(exact)
    spent = []
    for groups in ({}, {"mail": ("mail",)}):
        exact.clock.advance(60_000)
        exact.run.table.meter.reset()
        measured(exact, **groups)
        spent.append(len(exact.run.table.meter.calls))
    assert spent[1] - spent[0] <= 2
