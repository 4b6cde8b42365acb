"""Cron jobs: registered, fired at the fetch that asks or else by the sweep, once for each tick."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from functions.sweep.handler import PASS_LIMIT
from ojs import runtime
from ojs.domain import times
from ojs.domain.access import ANYBODY, Principal
from ojs.domain.cron import zones
from ojs.domain.errors import NotFound, PermissionDenied, QueueNotFound
from ojs.services.crons import zone_sweep
from ojs.services.for_each import in_threads
from ojs.settings import Settings
from ojs.store.deployment.notes import DeploymentStore
from ojs.store.table import keys, values
from ojs.store.table.schema import NEEDED_VERSION
from tests.store.bounded import bound
from tests.store.spending import Spent, reading_notes, spending

if TYPE_CHECKING:
    from ojs.domain.cron.cron import Cron, CronRun
    from tests.store.conftest import World

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


def at(text: str) -> int:
    return times.timestamp_ms(text, now_ms=0)


def register(world: World, name: str = "c", cron: str = "* * * * *", **more: Any) -> Cron:
    template = {"type": "t", "args": [1], "options": {"queue": "q", **more.pop("options", {})}}
    template |= more.pop("template", {})
    raw = {"name": name, "expression": cron, "job_template": template, **more}
    return world.run.crons.register(raw, ANYBODY, None).cron


def now(world: World, name: str = "c") -> Cron:
    return world.run.crons.get(name, ANYBODY)


def runs(world: World, name: str = "c") -> list[CronRun]:
    found = world.run.crons.history(name, ANYBODY, limit=100)
    return [run for run, _ in found.items][::-1]


def go_to(world: World, text: str) -> None:
    world.clock.advance(at(text) - world.clock.now_ms())


def next_minute(world: World) -> None:
    world.clock.advance(MINUTE - world.clock.now_ms() % MINUTE)


def outcome(run: CronRun) -> tuple[str, str | None]:
    return times.format_ms(run.scheduled_ms or 0)[11:16], run.reason and run.reason.value


@pytest.mark.requirement("CRON-22", "CRON-24")
def test_it_fires_at_the_fetch_that_asks(world: World) -> None:
    cron = register(world)
    assert world.fetch("q") == []
    next_minute(world)
    assert cron.tick_ms == world.clock.now_ms()
    (job,) = world.fetch("q")
    assert (job.type, job.state, job.queue) == ("t", "active", "q")
    assert job.content is not None
    assert job.content["args"] == [1]
    shown = times.format_ms(cron.tick_ms)
    assert job.content["meta"] == {"cron_name": "c", "cron_triggered_at": shown}
    after = now(world)
    assert (after.runs, after.last_job_id) == (1, job.id)
    assert after.tick_ms == cron.tick_ms + MINUTE
    assert world.fetch("q") == []


@pytest.mark.requirement("CRON-35")
def test_it_fires_in_the_sweep_where_nobody_fetches(world: World) -> None:
    register(world)
    assert "crons" not in world.sweep()
    next_minute(world)
    assert world.sweep()["crons"] == 1
    assert "crons" not in world.sweep()
    (job,) = world.fetch("q")
    assert job.id == now(world).last_job_id


@pytest.mark.requirement("CRON-7", "CRON-25")
def test_after_an_outage_one_fires_and_the_next_is_in_the_future(world: World) -> None:
    cron = register(world, overlap_policy="allow")
    world.clock.advance(3 * HOUR)
    assert len(world.fetch("q", 10)) == 1
    assert now(world).runs == 1
    assert [run.scheduled_ms for run in runs(world)] == [cron.tick_ms]
    assert (now(world).tick_ms or 0) > world.clock.now_ms()


@pytest.mark.requirement("CRON-18")
@pytest.mark.parametrize(("policy", "jobs"), [("skip", 1), ("allow", 2), ("cancel_previous", 2)])
def test_overlap(world: World, policy: str, jobs: int) -> None:
    register(world, overlap_policy=policy)
    next_minute(world)
    (first,) = world.fetch("q")
    next_minute(world)
    second = world.fetch("q")
    assert 1 + len(second) == jobs
    assert world.state(first) == ("cancelled" if policy == "cancel_previous" else "active")
    reasons = [run.reason for run in runs(world)]
    assert reasons == [None, "overlap_skip" if policy == "skip" else None]
    if policy == "skip":
        assert runs(world)[1].active_job_id == first.id
        world.run.finish.ack(first.id)
        next_minute(world)
        assert len(world.fetch("q")) == 1


def test_a_job_that_waits_overlaps_too(world: World) -> None:
    register(world)
    for _ in range(3):
        next_minute(world)
        world.sweep()
    assert [run.reason for run in runs(world)] == [None, "overlap_skip", "overlap_skip"]


@pytest.mark.requirement("CRON-34")
def test_enqueue_lets_jobs_wait_for_each_other(world: World) -> None:
    register(world, overlap_policy="enqueue")
    for _ in range(4):
        next_minute(world)
        world.sweep()
    assert [run.waiting for run in runs(world)] == [0, 1, 2, 3]
    done = []
    for _ in range(4):
        (job,) = world.fetch("q", 10)
        assert world.fetch("q", 10) == []
        world.run.finish.ack(job.id)
        done.append(job.id)
    assert done == [run.job_id for run in runs(world)]


def test_by_hand_it_fires_whatever_runs_and_the_tick_stays(world: World) -> None:
    cron = register(world)
    pushed = world.run.crons.trigger("c", ANYBODY, "me").job
    again = world.run.crons.trigger("c", ANYBODY, "me").job
    after = now(world)
    assert (after.tick_ms, after.due_ms, after.runs) == (cron.tick_ms, cron.due_ms, 2)
    assert [run.manual for run in runs(world)] == [True, True]
    assert {job.id for job in world.fetch("q", 10)} == {pushed.id, again.id}
    # Both keep the next one away.
    world.run.finish.ack(again.id)
    next_minute(world)
    assert world.fetch("q") == []
    assert runs(world)[-1].active_job_id == pushed.id


def test_a_full_queue_puts_the_tick_off(world: World) -> None:
    bound(world, "q", max_size=1)
    register(world, cron="0 * * * *")
    other = world.push(queue="q")
    go = HOUR - world.clock.now_ms() % HOUR
    world.clock.advance(go)
    tick_ms = world.clock.now_ms()
    for _ in range(3):
        world.sweep()
        world.clock.advance(21 * SECOND)
    assert [outcome(run)[1] for run in runs(world)] == ["queue_full"]
    world.run.jobs.cancel(other.id)
    world.sweep()
    assert [run.scheduled_ms for run in runs(world)] == [tick_ms, tick_ms]
    assert runs(world)[-1].job_id is not None
    assert now(world).tick_ms == tick_ms + HOUR


def test_cancel_previous_leaves_its_room_to_the_next(world: World) -> None:
    bound(world, "q", max_size=1)
    register(world, overlap_policy="cancel_previous")
    for _ in range(3):
        next_minute(world)
        world.sweep()
    assert [run.reason for run in runs(world)] == [None] * 3
    assert len(world.fetch("q", 10)) == 1


def test_a_queue_that_drains_takes_none(world: World) -> None:
    register(world)
    world.push(queue="q")
    world.fetch("q")
    world.run.deletion.delete("q", "drain")
    next_minute(world)
    world.sweep()
    assert [run.reason for run in runs(world)] == ["queue_draining"]
    assert now(world).enabled


def test_a_deleted_queue_is_made_again_by_the_next_tick(world: World) -> None:
    register(world)
    assert world.run.deletion.delete("q", "reject")[1]
    next_minute(world)
    world.sweep()
    (job,) = world.fetch("q")
    assert job.id == now(world).last_job_id
    # Also long after: the tombstone stays while a cron job stands in its lanes.
    register(world, "rare", "0 0 * * *", options={"queue": "old"})
    assert world.run.deletion.delete("old", "discard")[1]
    for _ in range(30):
        world.clock.advance(HOUR)
        world.sweep()
    assert len(world.fetch("old")) == 1


def test_in_strict_mode_a_deleted_queue_skips(world: World) -> None:
    world.run.queues.create("q", {})
    register(world)
    world.run = runtime.build(
        Settings(table=world.table, strict_queues=True), client=world.client, clock=world.clock
    )
    with pytest.raises(QueueNotFound):
        register(world, "d", options={"queue": "none"})
    assert world.run.deletion.delete("q", "reject")[1]
    for _ in range(2):
        next_minute(world)
        world.sweep()
    assert [run.reason for run in runs(world)] == ["queue_not_found"] * 2
    world.run.queues.create("q", {})
    next_minute(world)
    assert len(world.fetch("q")) == 1


def test_unique_templates(world: World) -> None:
    unique = {"keys": ["type"], "on_conflict": "reject"}
    register(world, overlap_policy="allow", options={"unique": unique})
    holder = world.push(queue="q", kind="t", unique=unique)
    next_minute(world)
    world.sweep()
    assert [(run.reason, run.active_job_id) for run in runs(world)] == [
        ("unique_conflict", holder.id)
    ]
    unique["on_conflict"] = "ignore"
    register(world, overlap_policy="allow", options={"unique": unique})
    next_minute(world)
    world.sweep()
    assert runs(world)[-1].reason == "unique_conflict"
    # The previous job is cancelled, and its unique key is not looked at (EI-011).
    register(world, overlap_policy="cancel_previous", options={"unique": unique})
    next_minute(world)
    world.sweep()
    assert runs(world)[-1].reason is None


def test_catchup_window(world: World) -> None:
    register(world, cron="0 * * * *", catchup_window="10m", overlap_policy="allow")
    world.clock.advance(HOUR - world.clock.now_ms() % HOUR + 11 * MINUTE)
    world.sweep()
    assert [run.reason for run in runs(world)] == ["missed"]
    world.clock.advance(2 * HOUR - 2 * MINUTE)
    world.sweep()
    latest = runs(world)[-1]
    assert latest.reason is None
    # Of the two that were missed, the one that is not too old.
    assert world.clock.now_ms() - (latest.scheduled_ms or 0) == 9 * MINUTE


def test_start_end_and_jitter(world: World) -> None:
    start = times.format_ms(world.clock.now_ms() + DAY)
    end = times.format_ms(world.clock.now_ms() + DAY + 90 * MINUTE)
    cron = register(world, cron="@hourly", starts_at=start, ends_at=end, jitter="10m")
    assert (cron.tick_ms or 0) >= at(start)
    late_ms = (cron.due_ms or 0) - (cron.tick_ms or 0)
    assert 0 <= late_ms <= 10 * MINUTE
    world.clock.advance((cron.due_ms or 0) - world.clock.now_ms() - 1)
    assert "crons" not in world.sweep()
    world.clock.advance(1)
    assert world.sweep()["crons"] == 1
    world.clock.advance(DAY)
    world.sweep()
    after = now(world)
    assert (after.tick_ms, after.due_ms, after.enabled) == (None, None, True)
    assert after.runs <= 2


def test_it_pauses_when_a_job_has_failed_for_good(world: World) -> None:
    register(world, pause_on_failure=True, options={"retry": {"max_attempts": 1}})
    next_minute(world)
    (job,) = world.fetch("q")
    world.run.finish.nack(job.id, error={"message": "no"})
    next_minute(world)
    world.sweep()
    assert (runs(world)[-1].reason, runs(world)[-1].active_job_id) == ("paused_on_failure", job.id)
    assert not now(world).enabled
    # When it goes on, that failure is over.
    world.run.crons.enable("c", ANYBODY, enabled=True)
    next_minute(world)
    world.sweep()
    assert runs(world)[-1].reason is None


def test_a_local_time_that_is_skipped_is_told_when_the_clocks_jump(world: World) -> None:
    go_to(world, "2026-03-07T12:00:00Z")
    cron = register(world, cron="30 2 * * *", timezone="America/New_York")
    assert times.format_ms(cron.tick_ms or 0) == "2026-03-09T06:30:00.000Z"
    assert times.format_ms(cron.due_ms or 0) == "2026-03-08T07:00:00.000Z"
    go_to(world, "2026-03-08T07:00:00Z")
    world.sweep()
    (run,) = runs(world)
    assert (run.reason, run.local, run.count) == ("dst_skip", "2026-03-08T02:30:00", 1)
    assert (now(world).runs, now(world).tick_ms) == (0, cron.tick_ms)
    go_to(world, "2026-03-09T06:30:00Z")
    world.sweep()
    assert [run.reason for run in runs(world)] == ["dst_skip", None]


def test_after_an_outage_over_the_jump_both_are_told(world: World) -> None:
    go_to(world, "2027-03-13T12:00:00Z")
    register(world, cron="30 2 * * *", timezone="America/New_York")
    go_to(world, "2027-03-16T12:00:00Z")
    world.sweep()
    assert [run.reason for run in runs(world)] == ["dst_skip", None]


def test_every_counts_from_the_last_tick_and_does_not_drift(world: World) -> None:
    start = world.clock.now_ms()
    cron = register(world, cron="@every 5m", overlap_policy="allow")
    assert cron.tick_ms == start + 5 * MINUTE
    world.clock.advance(5 * MINUTE + 20 * SECOND)
    world.sweep()
    assert now(world).tick_ms == start + 10 * MINUTE
    world.clock.advance(HOUR)
    world.sweep()
    assert now(world).tick_ms == world.clock.now_ms() + 5 * MINUTE


@pytest.mark.requirement("CRON-1", "CRON-26")
def test_registering_again_updates(world: World) -> None:
    first = register(world, cron="0 9 * * *")
    before = world.items()
    assert register(world, cron="0 9 * * *") == first
    assert world.items() == before
    world.clock.advance(MINUTE)
    changed = register(world, cron="0 9 * * *", description="daily")
    assert (changed.created_ms, changed.tick_ms) == (first.created_ms, first.tick_ms)
    assert register(world, cron="0 10 * * *").tick_ms != first.tick_ms
    assert world.run.crons.list(ANYBODY)(limit=10, cursor=None).items == [now(world)]


def test_changes_are_merged(world: World) -> None:
    register(world, options={"priority": 3}, template={"meta": {"a": 1}})
    change = {"job_template": {"args": [2], "options": {"timeout": 9}}, "timezone": "Asia/Tokyo"}
    after = world.run.crons.change("c", change, ANYBODY, None).cron
    assert after.definition.template == {
        "type": "t",
        "args": [2],
        "meta": {"a": 1},
        "options": {"queue": "q", "priority": 3, "timeout": 9},
    }
    assert (after.definition.timezone, after.definition.expression) == ("Asia/Tokyo", "* * * * *")
    moved = world.run.crons.change("c", {"queue": "r"}, ANYBODY, None).cron
    assert moved.definition.queue == "r"


def test_what_is_paused_does_not_fire(world: World) -> None:
    register(world)
    paused = world.run.crons.enable("c", ANYBODY, enabled=False).cron
    assert (paused.enabled, paused.tick_ms) == (False, None)
    world.clock.advance(HOUR)
    world.sweep()
    assert runs(world) == []
    resumed = world.run.crons.enable("c", ANYBODY, enabled=True).cron
    assert (resumed.tick_ms or 0) > world.clock.now_ms()


def test_what_is_deleted_does_not_fire_and_leaves_its_jobs(world: World) -> None:
    register(world)
    next_minute(world)
    (job,) = world.fetch("q")
    world.run.crons.delete("c", ANYBODY)
    with pytest.raises(NotFound):
        world.run.crons.delete("c", ANYBODY)
    next_minute(world)
    world.sweep()
    assert world.fetch("q") == []
    assert world.state(job) == "active"
    # Its run log is not that of a later one with its name.
    register(world)
    assert runs(world) == []


def test_a_large_template_stands_apart_and_goes_with_it(world: World) -> None:
    text = "x" * 400_000
    register(world, template={"args": [text]})
    assert register(world, template={"args": [text]}) == now(world)
    next_minute(world)
    (job,) = world.fetch("q")
    assert job.content is not None
    assert job.content["args"] == [text]
    register(world, template={"args": ["y" * 5_000]})
    assert now(world).definition.template["args"] == ["y" * 5_000]
    world.run.crons.delete("c", ANYBODY)
    assert not [i for i in world.items() if i["pk"]["S"].startswith("C|")]
    assert not [name for name in world.blobs.objects if name.startswith("def/")]


def test_a_key_reaches_the_cron_jobs_of_its_queues(world: World) -> None:
    register(world)
    other = Principal("k", queues=("other*",))
    for act in (
        lambda: world.run.crons.get("c", other),
        lambda: world.run.crons.delete("c", other),
        lambda: world.run.crons.trigger("c", other, None),
        lambda: world.run.crons.enable("c", other, enabled=False),
        lambda: world.run.crons.register(
            {"name": "c", "cron": "@daily", "type": "t", "queue": "other"}, other, None
        ),
        lambda: world.run.crons.register(
            {"name": "d", "cron": "@daily", "type": "t", "queue": "q"}, other, None
        ),
    ):
        with pytest.raises(PermissionDenied):
            act()
    assert world.run.crons.list(other)(limit=10, cursor=None).items == []


def test_a_cron_job_does_not_keep_jobs_back(world: World) -> None:
    """Neither one that cannot be read, nor many that are due."""
    for number in range(12):
        register(world, f"c{number}", overlap_policy="allow", options={"queue": "q"})
    job = world.push(queue="q", scheduled_at="+PT2M")
    world.client.put_item(
        TableName=world.table,
        Item={
            "pk": {"S": "C|broken"}, "sk": {"S": "@"},
            "wpk": {"S": "D|q|0"}, "wsk": {"S": f"{1:015d}c"},
        },
    )  # fmt: skip
    world.clock.advance(3 * MINUTE)
    found = {one.id for _ in range(14) for one in world.fetch("q")}
    assert job.id in found
    assert len(found) == 13
    world.clock.advance(MINUTE)
    assert world.sweep()["failed"] == 1


@pytest.mark.requirement("CRON-21", "CRON-23")
def test_a_tick_fires_once_whoever_evaluates(exact: World) -> None:
    names = [f"c{number}" for number in range(5)]
    for name in names:
        register(exact, name, overlap_policy="allow")
    for _ in range(3):
        next_minute(exact)
        containers = [exact.another() for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda run: [run.fire(name) for name in names], containers))
    assert [now(exact, name).runs for name in names] == [3] * 5
    assert len(exact.fetch("q", 100)) == 15


# --- what it costs --------------------------------------------------------------------------------


def in_steady_operation(world: World) -> None:
    """The queue exists and is noted, the worker is known."""
    world.push(queue="q")
    (job,) = world.fetch("q")
    world.run.finish.ack(job.id)


@pytest.mark.parametrize("policy", ["skip", "allow", "cancel_previous"])
def test_a_firing_costs_nine_units_with_its_job(exact: World, policy: str) -> None:
    in_steady_operation(exact)
    register(exact, "nightly-report", overlap_policy=policy)
    for looks_back in (False, policy != "allow"):
        next_minute(exact)
        with spending(exact) as fired:
            job = exact.run.fire("nightly-report")
        assert job is not None
        # The cron job and its entry in the due line, its run log, the job and its entry in line.
        assert fired.writes == 9
        # The cron job, the one before, the queue; then the transaction.
        assert (fired.calls, fired.reads) == (3 + looks_back, 2 + looks_back)
        exact.fetch("q")
        exact.run.finish.ack(job.id)


def test_a_firing_at_a_fetch_costs_the_same_and_the_claim(exact: World) -> None:
    in_steady_operation(exact)
    register(exact)
    with spending(exact) as nothing:
        assert exact.fetch("q") == []
    exact.run.crons.delete("c", ANYBODY)
    with spending(exact) as without:
        assert exact.fetch("q") == []
    # A fetch on a queue with cron jobs reads nothing more.
    assert nothing == without
    register(exact)
    next_minute(exact)
    with spending(exact) as fired:
        assert len(exact.fetch("q")) == 1
    assert fired.writes == 9 + 3


def test_a_firing_whose_definition_stands_apart_costs_the_same(exact: World) -> None:
    in_steady_operation(exact)
    register(exact, template={"args": ["z" * 700], "meta": {"m": "y" * 600}})
    next_minute(exact)
    with spending(exact) as fired:
        exact.run.fire("c")
    # The job's content is offloaded, which each push of such a job pays.
    assert fired.writes <= 9 + 2
    assert fired.reads <= 3


def test_a_skip_costs_six(exact: World) -> None:
    in_steady_operation(exact)
    register(exact)
    next_minute(exact)
    exact.run.fire("c")
    next_minute(exact)
    with spending(exact) as skipped:
        exact.run.fire("c")
    assert (skipped.writes, skipped.calls) == (6, 3)


@pytest.mark.parametrize("size", [10, 900])
def test_what_registering_costs(exact: World, size: int) -> None:
    in_steady_operation(exact)
    template = {"type": "t", "args": ["x" * size], "options": {"queue": "q"}}
    raw = {"name": "c", "expression": "0 9 * * *", "job_template": template}

    def asked(**more: Any) -> Spent:
        with spending(exact) as spent:
            exact.run.crons.register({**raw, **more}, ANYBODY, None)
        return spent

    first, again = asked(), asked()
    assert first.writes <= 4
    assert first.reads <= 3
    assert again.writes == 0
    assert again.reads <= 3
    assert asked(expression="0 10 * * *").writes <= 5


def test_the_item_stays_below_a_kilobyte(exact: World) -> None:
    """Whatever its name, its queue and its template, with all that it gains."""
    name, queue = "n" * 255, "q" * 255
    for size in (10, 300, 500, 5_000):
        register(
            exact, name, overlap_policy="allow", pause_on_failure=True, options={"queue": queue},
            template={"args": ["x" * size]}, jitter="10s", ends_at="2099-01-01T00:00:00Z",
        )  # fmt: skip
        for _ in range(7):
            next_minute(exact)
            exact.clock.advance(11 * SECOND)
            exact.sweep()
        (item,) = [i for i in exact.items() if i["pk"]["S"] == f"C|{name}" and i["sk"]["S"] == "@"]
        assert values.size(values.unpack(item)) <= 1_024
    assert now(exact, name).runs == 28


@pytest.mark.exhaustive
def test_many_at_one_minute_fire_in_one_pass(exact: World) -> None:
    """Several at the same time, with as many calls each as one alone (`tests.performance.crons`
    has the number for five thousand).
    """
    exact.for_each = in_threads
    exact.run = exact.another()
    for number in range(150):
        register(exact, f"c{number}", "0 0 * * *")
    exact.clock.advance(DAY - exact.clock.now_ms() % DAY)
    noted = reading_notes(exact)
    with spending(exact) as spent:
        counts = exact.run.sweep.run_once(exact.clock.now_ms(), PASS_LIMIT)
    assert counts["crons"] == 150
    assert not counts.get("failed")
    # The search for running jobs without a lease note reads twice every ten minutes.
    assert spent.calls - noted.calls <= 3 * 150 + 20
    assert spent.writes <= 9 * 150 + 1


def test_no_tick_comes_twice_for_a_clock_that_is_behind(exact: World) -> None:
    """The simulation found it: fired early by a clock ahead, then changed by one behind."""
    cron = register(exact, overlap_policy="allow")
    next_minute(exact)
    assert exact.run.fire("c") is not None
    exact.clock.advance(-500)
    exact.run.crons.enable("c", ANYBODY, enabled=False)
    after = exact.run.crons.enable("c", ANYBODY, enabled=True).cron
    assert after.tick_ms == (cron.tick_ms or 0) + MINUTE
    assert register(exact, cron="0/1 * * * *", overlap_policy="allow").tick_ms == after.tick_ms


# --- new rules of time zones ----------------------------------------------------------------------


def test_new_zone_data_move_the_next_ticks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are not due, either way; once for each version, in any number of runs."""
    berlin = register(world, "berlin", "0 9 * * *", timezone="Europe/Berlin")
    utc = register(world, "utc", "0 9 * * *")
    every = register(world, "every", "@every 90m", timezone="Europe/Berlin")
    world.clock.advance(MINUTE)
    assert world.run.zone_sweep.run_once(world.clock.now_ms(), 100)["looked"] == 3
    assert not world.run.zone_sweep.run_once(world.clock.now_ms(), 100)
    world.run = world.another()
    assert not world.run.zone_sweep.run_once(world.clock.now_ms(), 100)

    # The clocks of Berlin show what those of London do from now on.
    data = zones.bundled()
    london, original = data.zone("Europe/London"), data.zone
    moved = {"Europe/Berlin": london}
    monkeypatch.setattr(data, "zone", lambda name: moved.get(name) or original(name))
    monkeypatch.setattr(zone_sweep, "zone_data_version", lambda: "2099z")
    monkeypatch.setattr(zone_sweep, "_PAGE", 2)
    world.run = world.another()
    looked = aimed = 0
    for _ in range(2):
        report = world.run.zone_sweep.run_once(world.clock.now_ms(), 2)
        looked, aimed = looked + report["looked"], aimed + report.get("aimed", 0)
    assert (looked, aimed) == (3, 1)
    assert now(world, "berlin").tick_ms == (berlin.tick_ms or 0) + HOUR
    assert now(world, "berlin").due_ms == now(world, "berlin").tick_ms
    assert (now(world, "utc"), now(world, "every")) == (utc, every)
    assert not world.another().zone_sweep.run_once(world.clock.now_ms(), 100)


def test_a_container_asks_once_for_the_version_of_the_rules(exact: World) -> None:
    exact.run.zone_sweep.run_once(exact.clock.now_ms(), 100)
    exact.run = exact.another()
    for calls in (1, 0):
        with spending(exact) as spent:
            exact.run.zone_sweep.run_once(exact.clock.now_ms(), 100)
        assert spent.calls == calls


# --- upgrades -------------------------------------------------------------------------------------


def test_code_that_cannot_read_due_lines_with_cron_jobs_is_refused(exact: World) -> None:
    """And so is some that can: it cannot read lease notes."""
    notes = DeploymentStore(exact.run.table)
    assert notes.note(version="new", now_ms=1)
    for schema in range(1, NEEDED_VERSION):
        assert not notes.note(version="0.2.0", now_ms=2, schema=schema)
    assert notes.note(version="new", now_ms=3)


def test_readers_of_schema_2_take_its_entry_for_no_job(exact: World) -> None:
    """What they read by, as `keys.is_job_entry` has it since then."""
    register(exact)
    (item,) = [i for i in exact.items() if i["pk"]["S"] == "C|c"]
    entry = values.unpack(item)
    assert not keys.is_job_entry(entry)
    assert not str(entry["pk"]).startswith(keys.job(""))


def test_what_a_newer_version_adds_to_a_cron_job_stays(exact: World) -> None:
    register(exact)
    (item,) = [i for i in exact.items() if i["pk"]["S"] == "C|c"]
    newer = item | {"future": {"S": "kept"}}
    exact.client.put_item(TableName=exact.table, Item=newer)
    next_minute(exact)
    assert len(exact.fetch("q")) == 1
    register(exact, description="changed")
    (item,) = [i for i in exact.items() if i["pk"]["S"] == "C|c"]
    assert item["future"] == {"S": "kept"}
