"""Lease notes: claims leave no entry in the index, and lost leases are found all the same."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.errors import BackendUnavailable, Conflict, OjsError
from ojs.domain.events.types import EventType
from ojs.domain.job.job import Job
from ojs.projections.transitions import happened
from ojs.services.jobs import lost_leases
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.sweeps import SweepCounts, always
from ojs.settings import Settings
from ojs.store.jobs.lease_notes import LOOK_MS, SHORT_MS, SLOTS, LeaseNotes
from ojs.store.jobs.records import JobStore
from ojs.store.table import keys
from tests.store.spending import RETRY, WORKER, incompressible, spending, warm

if TYPE_CHECKING:
    from tests.store.conftest import World

MINUTE = 60_000
HOUR = 60 * MINUTE
LEASE = 20_000


def entry(world: World, job: Job) -> str | None:
    """A job's sort key in the index, as its record has it."""
    found = world.run.table.get(keys.job(job.id), keys.RECORD) or {}
    key = found.get("wsk")
    return None if key is None else str(key)


def notes(world: World) -> list[dict[str, Any]]:
    return [item for item in world.items() if item["pk"]["S"].startswith("N|")]


def taken(world: World, lease_ms: int | None = LEASE, worker: str = "w", count: int = 1) -> Job:
    (job,) = world.run.fetch.fetch(["default"], count, worker, visibility_timeout_ms=lease_ms)
    return job


def look(world: World, run: runtime.Runtime | None = None) -> SweepCounts:
    """What the sweep does with lease notes."""
    counts, run = SweepCounts(), run or world.run
    leases = run.sweep._leases
    leases.look(run.clock.now_ms(), counts, always)
    return counts


# --- what it costs --------------------------------------------------------------------------------


def test_a_life_is_six_units(exact: World) -> None:
    warm(exact)
    with spending(exact) as spent:
        exact.push(incompressible(460), kind="email.send", retry=RETRY)
        (job,) = exact.fetch()
        exact.run.finish.ack(job.id, worker_id=WORKER, result={"ok": True})
    assert spent.writes <= 6
    assert (spent.calls, spent.reads) == (7, 3.5)


def test_in_tens_it_is_little_more_than_five(exact: World) -> None:
    warm(exact)
    with spending(exact) as spent:
        for _ in range(10):
            exact.push(incompressible(460), kind="email.send", retry=RETRY)
        for job in exact.fetch(count=10):
            exact.run.finish.ack(job.id, worker_id=WORKER, result={"ok": True})
    assert spent.writes / 10 <= 5.2


@pytest.mark.parametrize("busy", [False, True])
def test_a_retry_cycle_is_five_units(exact: World, busy: bool) -> None:
    """Nacked, due, and fetched again; also where the line is never empty."""
    warm(exact)
    exact.push(incompressible(460), retry={"max_attempts": 5, "initial_interval": "PT2S"})
    (job,) = exact.fetch()
    with spending(exact) as spent:
        exact.run.finish.nack(job.id, error={"code": "x", "message": "y"}, worker_id=WORKER)
    exact.clock.advance(10_000)
    for n in range(10 if busy else 0):
        exact.push(n)
    with spending(exact) as again:
        (found,) = exact.fetch()
    assert (found.id, found.attempt) == (job.id, 2)
    assert spent.writes + again.writes <= 5


def test_a_due_job_waits_behind_those_that_came_before(exact: World) -> None:
    """And is claimed where it is when its turn has come."""
    warm(exact)
    exact.push(scheduled_at="+PT2S")
    before = [exact.push(n) for n in range(3)]
    exact.clock.advance(3_000)
    after = exact.push()
    got = []
    with spending(exact) as spent:
        for _ in range(5):
            got += exact.fetch()
            exact.clock.advance(1_001)
    assert [job.id for job in got[:3]] == [job.id for job in before]
    assert got[4].id == after.id
    # Two for each claim, and one for the entry in the index of what was due.
    assert spent.writes == 5 * 3


def test_many_due_jobs_make_way_for_an_urgent_one(exact: World) -> None:
    """In a queue with a long line, where a fetch sees the first few of what is due."""
    warm(exact)
    for n in range(30):
        exact.push(n)
    for _ in range(12):
        exact.push(scheduled_at="+PT2S")
    urgent = exact.push(scheduled_at="+PT3S", priority=5)
    exact.clock.advance(4_000)
    got = []
    for _ in range(4):
        got += exact.fetch()
        exact.clock.advance(1_001)
    assert urgent.id in {job.id for job in got}


@pytest.mark.parametrize("config", [{"tenant_fairness": {"enabled": True}}, {}])
def test_where_order_or_a_limit_matters_a_due_job_is_put_in_line(
    exact: World, config: dict[str, Any]
) -> None:
    exact.run.queues.configure("default", config)
    limit: dict[str, Any] = {} if config else {"rate_limit": {"key": "k", "concurrency": 1}}
    job = exact.push(scheduled_at="+PT2S", **limit)
    exact.clock.advance(3_000)
    promoted: list[str] = []
    apply = TimeTransitions.apply

    def seen(self: TimeTransitions, found: Job | None) -> Job | None:
        promoted.append("" if found is None else found.state.value)
        return apply(self, found)

    with mock.patch.object(TimeTransitions, "apply", seen):
        assert [found.id for found in exact.fetch()] == [job.id]
    assert promoted == ["scheduled"]


def test_what_a_due_job_was_is_told(exact: World) -> None:
    """It was available for a moment: two events of one write."""
    job = exact.push(scheduled_at="+PT2S")
    before = exact.run.stores.jobs.read_record(job.id)
    exact.clock.advance(3_000)
    (after,) = exact.fetch()
    told = happened(before, after, written_ms=exact.clock.now_ms())
    assert [one.kind for one in told] == [EventType.JOB_ENQUEUED, EventType.JOB_STARTED]
    assert {one.at_ms for one in told} == {exact.clock.now_ms()}


def test_a_due_job_that_changed_is_not_claimed(exact: World) -> None:
    job = exact.push(scheduled_at="+PT2S")
    exact.clock.advance(3_000)
    claim = JobStore.claim

    def late(self: JobStore, *args: Any, **how: Any) -> Job:
        exact.run.jobs.cancel(job.id)
        return claim(self, *args, **how)

    with mock.patch.object(JobStore, "claim", late):
        assert exact.fetch() == []
    assert exact.state(job) == "cancelled"


def test_a_scheduled_life_is_seven_units(exact: World) -> None:
    warm(exact)
    with spending(exact) as spent:
        exact.push(incompressible(460), scheduled_at="+PT10S")
        exact.clock.advance(11_000)
        (job,) = exact.fetch()
        exact.run.finish.ack(job.id, worker_id=WORKER)
    assert spent.writes <= 7


def test_a_container_says_once_an_hour_which_slot_it_uses(exact: World) -> None:
    exact.push()
    with spending(exact) as first:
        exact.fetch()
    exact.clock.advance(30 * MINUTE)
    exact.push()
    with spending(exact) as second:
        exact.fetch()
    assert first.writes == second.writes + 1


def test_where_nothing_is_claimed_the_sweep_reads_one_item(exact: World) -> None:
    with spending(exact) as spent:
        look(exact)
    assert (spent.calls, spent.writes, spent.reads) == (1, 0, 1)
    exact.push()
    exact.run.finish.ack(exact.fetch()[0].id)
    for _ in range(4):
        exact.clock.advance(HOUR)
        look(exact)
    with spending(exact) as spent:
        look(exact)
    assert (spent.calls, spent.writes, spent.reads) == (1, 0, 1)


def test_sixteen_idle_slots_cost_as_many_reads(exact: World) -> None:
    for slot in range(SLOTS):
        exact.run.stores.jobs.notes._use(slot, exact.clock.now_ms())
    with spending(exact) as spent:
        look(exact)
    assert (spent.calls, spent.writes) == (1 + SLOTS, 0)
    assert spent.reads <= 1 + SLOTS


# --- what is found --------------------------------------------------------------------------------


def test_a_lost_lease_is_found_when_it_has_ended(world: World) -> None:
    world.push(retry=RETRY)
    job = taken(world)
    assert entry(world, job) is None
    world.clock.advance(LEASE - 1)
    assert world.sweep().get("stalled_or_timed_out", 0) == 0
    world.clock.advance(1)
    assert world.sweep()["stalled_or_timed_out"] == 1
    (again,) = world.fetch()
    assert (again.id, again.attempt) == (job.id, 2)


def test_a_job_that_runs_on_gets_its_entry_after_a_minute(world: World) -> None:
    world.push(retry=RETRY)
    job = taken(world, None)
    world.clock.advance(LOOK_MS - 1)
    assert world.sweep().get("filed", 0) == 0
    world.clock.advance(1)
    assert world.sweep()["filed"] == 1
    held = world.run.jobs.get(job.id)
    assert held.lease is not None
    assert entry(world, job) == keys.due_at(held.due_ms, keys.LEASE_END)
    assert world.sweep().get("filed", 0) == 0
    world.run.finish.ack(job.id, worker_id="w")
    assert entry(world, job) is None


def test_a_heartbeat_before_the_look_counts(world: World) -> None:
    world.push(retry=RETRY)
    job = taken(world)
    world.clock.advance(LEASE - 1_000)
    world.run.workers.beat("w", active_jobs=[job.id])
    world.clock.advance(2_000)
    assert world.sweep()["filed"] == 1
    # And one after it.
    world.clock.advance(LEASE - 2_000)
    world.run.workers.beat("w", active_jobs=[job.id])
    world.clock.advance(2_000)
    assert world.sweep()["refiled"] == 1
    assert world.state(job) == "active"
    world.clock.advance(LEASE)
    assert world.sweep()["stalled_or_timed_out"] == 1


def test_a_heartbeat_while_the_sweep_looks_takes_no_entry_away(world: World) -> None:
    world.push(retry=RETRY)
    job = taken(world, 40_000)
    world.clock.advance(30_000)
    world.run.workers.beat("w", active_jobs=[job.id])
    world.clock.advance(10_000)
    file_running = JobStore.file_running

    def late(self: JobStore, found: Job) -> None:
        world.clock.advance(1)
        world.run.workers.beat("w", active_jobs=[job.id])
        file_running(self, found)

    with mock.patch.object(JobStore, "file_running", late):
        assert world.sweep()["filed"] == 1
    assert entry(world, job) is not None


@pytest.mark.parametrize("lease_ms", [1_000, SHORT_MS - 1])
def test_a_short_lease_is_in_the_index_at_once(world: World, lease_ms: int) -> None:
    world.push(retry=RETRY)
    job = taken(world, lease_ms)
    assert entry(world, job) is not None
    assert notes(world) == []
    world.clock.advance(lease_ms)
    assert [again.id for again in world.fetch()] == [job.id]


def test_a_short_timeout_is_in_the_index_at_once(world: World) -> None:
    world.push(retry=RETRY, timeout_ms=2_000)
    assert entry(world, taken(world, None)) is not None


def test_a_run_that_began_since_is_left_alone(world: World) -> None:
    """Handed back and fetched again: the first note says nothing of the second run."""
    world.push(retry=RETRY)
    first = taken(world)
    world.clock.advance(15_000)
    world.run.finish.nack(first.id, error=None, requeue=True, worker_id="w")
    second = taken(world, worker="other")
    world.clock.advance(LEASE - 15_000)
    world.sweep()
    assert world.run.jobs.get(first.id).lease == second.lease
    world.clock.advance(15_000)
    assert world.sweep()["stalled_or_timed_out"] == 1
    (third,) = world.fetch()
    assert third.id == first.id


def test_hours_without_a_sweep_lose_nothing(exact: World) -> None:
    jobs = []
    for minute in range(5):
        for _ in range(3):
            exact.push(minute, retry=RETRY)
        run = exact.another()
        jobs += run.fetch.fetch(["default"], 3, "w", visibility_timeout_ms=LEASE)
        exact.clock.advance(MINUTE)
    exact.clock.advance(5 * HOUR)
    with mock.patch.object(lost_leases, "_NOTES", 2):
        assert exact.sweep()["stalled_or_timed_out"] == 15
    assert {exact.state(job) for job in jobs} == {"available"}


def test_a_slot_whose_look_failed_is_looked_at_next_time(exact: World) -> None:
    exact.push(retry=RETRY)
    job = taken(exact)
    exact.clock.advance(MINUTE)
    with mock.patch.object(LeaseNotes, "records", side_effect=BackendUnavailable("busy")):
        assert exact.sweep()["failed"] == 1
    exact.clock.advance(MINUTE)
    assert exact.sweep()["stalled_or_timed_out"] == 1
    assert exact.state(job) == "available"


def test_a_damaged_job_holds_nothing_up_and_is_told_each_minute(exact: World) -> None:
    for _ in range(2):
        exact.push(retry=RETRY)
    bad, good = exact.run.fetch.fetch(["default"], 2, "w", visibility_timeout_ms=LEASE)
    exact.client.update_item(
        TableName=exact.table,
        Key={"pk": {"S": keys.job(bad.id)}, "sk": {"S": keys.RECORD}},
        UpdateExpression="SET retry = :bad",
        ExpressionAttributeValues={":bad": {"S": "{"}},
    )
    for minute in range(3):
        exact.clock.advance(MINUTE + LOOK_MS)
        counts = exact.sweep()
        assert counts["failed"] == 1
        assert counts.get("stalled_or_timed_out", 0) == (minute == 0)
    assert exact.state(good) == "available"
    exact.client.update_item(
        TableName=exact.table,
        Key={"pk": {"S": keys.job(bad.id)}, "sk": {"S": keys.RECORD}},
        UpdateExpression="REMOVE retry",
    )
    exact.clock.advance(MINUTE + LOOK_MS)
    assert exact.sweep()["stalled_or_timed_out"] == 1


def test_two_sweeps_at_once_do_it_once(exact: World) -> None:
    exact.push(retry=RETRY)
    job = taken(exact)
    exact.clock.advance(MINUTE)
    page = lost_leases.LostLeases._page
    other = exact.another()

    def meanwhile(self: Any, *args: Any) -> None:
        with mock.patch.object(lost_leases.LostLeases, "_page", page):
            assert look(exact, other)["stalled_or_timed_out"] == 1
        page(self, *args)

    with mock.patch.object(lost_leases.LostLeases, "_page", meanwhile):
        assert look(exact)["stalled_or_timed_out"] == 0
    found = exact.run.jobs.get(job.id)
    assert (found.state, found.attempt) == ("available", 1)
    assert len(exact.run.jobs.get(job.id).errors or ()) == 1


def test_a_fetch_that_dies_before_its_claim_leaves_the_job_in_line(exact: World) -> None:
    job = exact.push(retry=RETRY)
    with (
        mock.patch.object(JobStore, "claim", side_effect=KeyboardInterrupt),
        suppress(KeyboardInterrupt),
    ):
        exact.fetch()
    assert len(notes(exact)) == 1
    exact.clock.advance(MINUTE)
    assert exact.sweep().get("failed", 0) == 0
    assert [found.id for found in exact.fetch()] == [job.id]


def test_a_claim_that_takes_effect_after_the_look_is_found(exact: World) -> None:
    """Its answer was lost, and its fetch is gone: nobody knows the job to run but a note."""
    exact.push(retry=RETRY)
    claim = JobStore.claim
    kept: list[Any] = []

    def put_off(self: JobStore, *args: Any, **how: Any) -> Job:
        kept.append((args, how))
        raise BackendUnavailable("no answer")

    with mock.patch.object(JobStore, "claim", put_off), pytest.raises(OjsError):
        exact.run.fetch.fetch(["default"], 1, "w", visibility_timeout_ms=LEASE)
    exact.clock.advance(LEASE)
    assert exact.sweep().get("stalled_or_timed_out", 0) == 0
    ((args, how),) = kept
    job = claim(exact.run.stores.jobs, *args, **how)
    assert entry(exact, job) is None
    for _ in range(2):
        exact.clock.advance(MINUTE)
        exact.sweep()
    assert exact.state(job) == "available"
    assert exact.run.jobs.get(job.id).attempt == 1


def test_a_note_that_took_too_long_is_not_claimed_under(exact: World) -> None:
    exact.push(retry=RETRY)
    write = LeaseNotes.write

    def slow(self: LeaseNotes, *args: Any, **how: Any) -> None:
        write(self, *args, **how)
        exact.clock.advance(5_000)

    with mock.patch.object(LeaseNotes, "write", slow), pytest.raises(OjsError):
        exact.fetch()
    assert len(exact.fetch()) == 1


@pytest.mark.parametrize("ahead_ms", [-2_000, 2_000])
def test_clocks_that_are_apart_lose_nothing(exact: World, ahead_ms: int) -> None:
    """Of the sweep, and of the fetch."""
    clock = ManualClock(exact.clock.now_ms() + ahead_ms)
    sweeper = runtime.build(
        Settings(table=exact.table), client=exact.client, clock=clock, sleep=lambda _: None
    )
    jobs = []
    for _ in range(12):
        exact.push(retry=RETRY)
        jobs.append(taken(exact, SHORT_MS))
        for _ in range(3):
            exact.clock.advance(2_000)
            clock.advance(2_000)
            look(exact, sweeper)
    exact.clock.advance(MINUTE)
    clock.advance(MINUTE)
    look(exact, sweeper)
    assert {exact.state(job) for job in jobs} == {"available"}


def test_several_queues_have_a_note_each(exact: World) -> None:
    for queue in ("a", "b", "c"):
        for n in range(4):
            exact.push(n, queue=queue)
    got = exact.run.fetch.fetch(["a", "b", "c"], 9, "w")
    assert len(got) == 9
    assert len(notes(exact)) == 3


# --- who looks for what runs ----------------------------------------------------------------------


@pytest.mark.parametrize("filed", [False, True])
def test_a_queue_does_not_end_under_a_running_job(world: World, filed: bool) -> None:
    world.push(retry=RETRY)
    job = taken(world, None)
    if filed:
        world.clock.advance(MINUTE)
        world.sweep()
    assert (entry(world, job) is not None) == filed
    with pytest.raises(Conflict):
        world.run.deletion.delete("default", "reject")
    deletion, gone = world.run.deletion.delete("default", "drain")
    assert (deletion.affected, gone) == (1, False)
    world.sweep()
    assert world.run.queues.get("default").deletion is not None
    world.run.finish.ack(job.id, worker_id="w")
    assert world.sweep()["queues_deleted"] == 1


@pytest.mark.parametrize("filed", [False, True])
def test_a_limit_counts_what_runs(world: World, filed: bool) -> None:
    for _ in range(3):
        world.push(retry=RETRY)
    running = taken(world, None)
    if filed:
        world.clock.advance(MINUTE)
        world.sweep()
    world.run.queues.configure("default", {"concurrency": 2})
    assert len(world.fetch(count=3)) == 1
    world.run.finish.ack(running.id, worker_id="w")
    assert len(world.fetch(count=3)) == 1


@pytest.mark.parametrize("filed", [False, True])
def test_a_bound_counts_what_runs(world: World, filed: bool) -> None:
    world.push(retry=RETRY)
    taken(world, None)
    if filed:
        world.clock.advance(MINUTE)
        world.sweep()
    world.run.queues.configure("default", {"max_size": 2})
    world.push()
    with pytest.raises(OjsError):
        world.push()


def test_a_claim_in_a_bounded_queue_is_in_the_index(world: World) -> None:
    world.run.queues.configure("default", {"max_size": 5})
    world.push(retry=RETRY)
    assert entry(world, taken(world, None)) is not None


def test_statistics_know_what_was_claimed_a_moment_ago(world: World) -> None:
    for _ in range(3):
        world.push(retry=RETRY)
    first = taken(world, None)
    taken(world, 1_000)
    for filed in (False, True):
        stats = world.run.stats.queue("default").levels
        assert (stats.of(first.state), stats.of(world.push().state)) == (2, 1 + filed)
        world.clock.advance(999)
    world.clock.advance(MINUTE)
    world.run.sweep._leases.look(world.clock.now_ms(), SweepCounts(), always)
    assert entry(world, first) is not None
    assert world.run.stats.queue("default").levels.of(first.state) == 2


def test_entries_of_an_earlier_version_are_worked_off(world: World) -> None:
    """A claim of 0.2 left a due entry, and no note."""
    world.push(retry=RETRY)
    with mock.patch("ojs.services.jobs.fetch.Fetch._note", return_value=False):
        job = taken(world)
    assert (entry(world, job) is None, notes(world)) == (False, [])
    world.clock.advance(LEASE)
    assert [again.id for again in world.fetch()] == [job.id]
