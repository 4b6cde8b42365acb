"""Lease notes: claims leave no entry in the index, and lost leases are found all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.access import ANYBODY
from ojs.domain.errors import BackendUnavailable, Conflict, OjsError
from ojs.domain.events.types import EventType
from ojs.domain.job import envelope
from ojs.domain.job.job import Job
from ojs.projections.transitions import happened
from ojs.services.jobs import lost_leases
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.sweeps import SweepCounts, SweepLimit, always, third_of
from ojs.settings import Settings
from ojs.store.jobs.lease_notes import LOOK_MS, MOST_AHEAD_MS, SHORT_MS, SLOTS, ClaimIntents
from ojs.store.jobs.records import JobStore
from ojs.store.table import keys
from tests.store.spending import RETRY, WORKER, incompressible, reading_notes, spending, warm
from tests.store.streams import Projected, Stream
from tests.store.tenants import push_all

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


@pytest.mark.parametrize("lease_ms", [90_000, 20 * MINUTE])
def test_a_job_that_runs_on_gets_a_new_note_after_a_minute(world: World, lease_ms: int) -> None:
    world.push(retry=RETRY)
    job = taken(world, lease_ms)
    world.clock.advance(LOOK_MS - 1)
    assert world.sweep() == {}
    assert len(notes(world)) == 1
    world.clock.advance(1)
    assert world.sweep() == {}
    now_ms = world.clock.now_ms()
    last = max(str(item["sk"]["S"]) for item in notes(world))
    due_ms = world.run.jobs.get(job.id).due_ms
    assert keys.instant_of(last) == min(due_ms, now_ms + MOST_AHEAD_MS)
    assert entry(world, job) is None
    assert world.sweep() == {}
    assert len(notes(world)) == 2
    while world.clock.now_ms() < due_ms:
        assert world.state(job) == "active"
        world.clock.advance(min(MINUTE, due_ms - world.clock.now_ms()))
        counts = world.sweep()
    assert counts["stalled_or_timed_out"] == 1


def test_a_heartbeat_before_the_look_counts(world: World) -> None:
    world.push(retry=RETRY)
    job = taken(world)
    world.clock.advance(LEASE - 1_000)
    world.run.workers.beat("w", active_jobs=[job.id])
    world.clock.advance(2_000)
    assert world.sweep() == {}
    # And one after it.
    world.clock.advance(LEASE - 2_000)
    world.run.workers.beat("w", active_jobs=[job.id])
    world.clock.advance(2_000)
    assert world.sweep() == {}
    assert world.state(job) == "active"
    world.clock.advance(LEASE)
    assert world.sweep()["stalled_or_timed_out"] == 1


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
    with mock.patch.object(ClaimIntents, "records", side_effect=BackendUnavailable("busy")):
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

    def meanwhile(self: Any, *args: Any) -> int:
        with mock.patch.object(lost_leases.LostLeases, "_page", page):
            assert look(exact, other)["stalled_or_timed_out"] == 1
        return page(self, *args)

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
    write = ClaimIntents.write

    def slow(self: ClaimIntents, *args: Any, **how: Any) -> None:
        write(self, *args, **how)
        exact.clock.advance(5_000)

    with mock.patch.object(ClaimIntents, "write", slow), pytest.raises(OjsError):
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


@pytest.mark.parametrize("noted_again", [False, True])
def test_a_queue_does_not_end_under_a_running_job(world: World, noted_again: bool) -> None:
    world.push(retry=RETRY)
    job = taken(world, None)
    if noted_again:
        world.clock.advance(MINUTE)
        world.sweep()
    assert (len(notes(world)) == 2) == noted_again
    with pytest.raises(Conflict):
        world.run.deletion.delete("default", "reject")
    deletion, gone = world.run.deletion.delete("default", "drain")
    assert (deletion.affected, gone) == (1, False)
    world.sweep()
    assert world.run.queues.get("default").deletion is not None
    world.run.finish.ack(job.id, worker_id="w")
    assert world.sweep()["queues_deleted"] == 1


@pytest.mark.parametrize("noted_again", [False, True])
def test_a_limit_counts_what_runs(world: World, noted_again: bool) -> None:
    for _ in range(3):
        world.push(retry=RETRY)
    running = taken(world, None)
    if noted_again:
        world.clock.advance(MINUTE)
        world.sweep()
    world.run.queues.configure("default", {"concurrency": 2})
    assert len(world.fetch(count=3)) == 1
    world.run.finish.ack(running.id, worker_id="w")
    assert len(world.fetch(count=3)) == 1


@pytest.mark.parametrize("noted_again", [False, True])
def test_a_bound_counts_what_runs(world: World, noted_again: bool) -> None:
    world.push(retry=RETRY)
    taken(world, None)
    if noted_again:
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
    for later in (False, True):
        stats = world.run.stats.queue("default").levels
        assert (stats.of(first.state), stats.of(world.push().state)) == (2, 1 + later)
        world.clock.advance(999)
    world.clock.advance(MINUTE)
    world.run.sweep._leases.look(world.clock.now_ms(), SweepCounts(), always)
    assert len(notes(world)) == 2
    assert world.run.stats.queue("default").levels.of(first.state) == 2


def test_entries_of_an_earlier_version_are_worked_off(world: World) -> None:
    """A claim of 0.2 left a due entry, and no note."""
    world.push(retry=RETRY)
    with mock.patch("ojs.services.jobs.fetch.JobFetcher._note", return_value=False):
        job = taken(world)
    assert (entry(world, job) is None, notes(world)) == (False, [])
    world.clock.advance(LEASE)
    assert [again.id for again in world.fetch()] == [job.id]


# --- many running jobs ----------------------------------------------------------------------------


def running(world: World, count: int, *, at_once: int, lease_ms: int) -> list[Job]:
    """So many jobs that run, claimed a few at a time."""
    push_all(world, [envelope.parse({"type": "test.job", "args": [n]}) for n in range(count)])
    jobs: list[Job] = []
    while len(jobs) < count:
        jobs += world.run.fetch.fetch(["default"], at_once, "w", visibility_timeout_ms=lease_ms)
    return jobs


@pytest.mark.exhaustive
def test_a_thousand_running_jobs_cost_few_calls(exact: World) -> None:
    running(exact, 1_000, at_once=40, lease_ms=5 * MINUTE)
    exact.clock.advance(LOOK_MS)
    with spending(exact) as spent:
        look(exact)
    assert spent.calls <= 70
    assert spent.writes <= 30
    exact.clock.advance(4 * MINUTE)
    assert look(exact)["stalled_or_timed_out"] == 1_000


def test_running_jobs_share_notes(exact: World) -> None:
    jobs = running(exact, 90, at_once=10, lease_ms=5 * MINUTE)
    exact.clock.advance(LOOK_MS)
    with spending(exact) as spent:
        look(exact)
    # The slots, a page of notes, 90 jobs, three new notes, and how far the slot was processed.
    assert (spent.calls, spent.writes) == (7, 4)
    assert len(notes(exact)) == 9 + 3
    found = exact.run.stores.jobs.notes.not_done("default", exact.run.stores.jobs.notes.slots())
    assert len(list(found)) == len(jobs)


class Dying:
    """A client whose process dies at the n-th call: before it takes effect, or after."""

    def __init__(self, client: Any, at: int, *, late: bool) -> None:
        self._client, self._at, self._late = client, at, late

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            self._at -= 1
            if self._at == 0:
                if self._late:
                    method(**arguments)
                raise KeyboardInterrupt
            return method(**arguments)

        return call


class Ending:
    """A time limit that ends after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def __call__(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


def test_notes_are_left_when_the_time_is_up(exact: World) -> None:
    running(exact, 60, at_once=10, lease_ms=LEASE)
    exact.clock.advance(MINUTE)
    total = 0
    with mock.patch.object(lost_leases, "_JOBS", 20):
        for _ in range(2):
            counts = SweepCounts()
            exact.run.sweep._leases.look(exact.clock.now_ms(), counts, Ending(2))
            assert (counts["stalled_or_timed_out"], counts["more"]) == (20, 1)
            total += 20
        assert look(exact)["stalled_or_timed_out"] == 60 - total


def test_a_cron_job_fires_though_notes_take_all_the_time(exact: World) -> None:
    raw = {"name": "c", "cron": "* * * * *", "type": "tick", "args": []}
    exact.run.crons.register(raw, ANYBODY, None)
    running(exact, 20, at_once=10, lease_ms=LEASE)
    exact.clock.advance(MINUTE)
    left = [35_000.0]
    taken_ms = 20_000

    def slow(*args: Any, **how: Any) -> Any:
        left[0] -= taken_ms
        return records(*args, **how)

    records = ClaimIntents.records
    limit = SweepLimit(lambda: left[0])
    with (
        mock.patch.object(ClaimIntents, "records", slow),
        mock.patch.object(lost_leases, "_JOBS", 10),
    ):
        report = exact.run.sweep.run_once(exact.clock.now_ms(), 1_000, limit)
    assert (report["crons"], report["stalled_or_timed_out"], report["more"]) == (1, 10, 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("count", "calls"), [(3_000, 130), pytest.param(10_000, 400, marks=pytest.mark.whole)]
)
def test_jobs_of_five_minutes_delay_no_cron_job(exact: World, count: int, calls: int) -> None:
    """Each call takes 20 ms of the sweep's 35 s."""
    raw = {"name": "c", "cron": "* * * * *", "type": "tick", "args": []}
    exact.run.crons.register(raw, ANYBODY, None)
    jobs = running(exact, count, at_once=100, lease_ms=5 * MINUTE)
    meter = exact.run.table.meter
    limit = SweepLimit(lambda: 35_000 - 20 * len(meter.calls))
    for _ in range(3):
        exact.clock.advance(MINUTE)
        noted = reading_notes(exact)
        with spending(exact) as spent:
            report = exact.run.sweep.run_once(exact.clock.now_ms(), 1_000, limit)
        assert (report["crons"], report["stalled_or_timed_out"], report["more"]) == (1, 0, 0)
        assert spent.calls - noted.calls <= calls
    assert {exact.state(job) for job in jobs[:: count // 10]} == {"active"}


def test_no_part_takes_more_than_a_third() -> None:
    left = [30_000.0]
    limit = SweepLimit(lambda: left[0])
    part = third_of(limit)
    left[0] -= 9_999
    assert part()
    left[0] -= 1
    assert not part()
    assert limit()
    assert third_of(always) is always


@pytest.mark.parametrize("died", range(1, 8))
def test_a_sweep_that_dies_loses_no_running_job(exact: World, died: int) -> None:
    """After each call, once before it takes effect and once after."""
    for late in (False, True):
        jobs = running(exact, 12, at_once=4, lease_ms=2 * MINUTE)
        exact.clock.advance(LOOK_MS)
        dying = exact.another(Dying(exact.client, died, late=late))
        with suppress(KeyboardInterrupt):
            look(exact, dying)
        exact.clock.advance(MINUTE)
        look(exact)
        exact.clock.advance(MINUTE)
        look(exact)
        assert {exact.state(job) for job in jobs} <= {"available", "discarded"}
        for job in jobs:
            with suppress(OjsError):
                exact.run.jobs.cancel(job.id)


def test_a_slot_that_is_in_use_again_is_not_retired(exact: World) -> None:
    notes_ = exact.run.stores.jobs.notes
    notes_._use(3, exact.clock.now_ms())
    exact.clock.advance(3 * HOUR)
    (stale,) = notes_.slots()
    notes_._use(3, exact.clock.now_ms())
    notes_.retire(stale)
    assert [slot.number for slot in notes_.slots()] == [3]


def test_a_new_note_that_took_too_long_does_not_count(exact: World) -> None:
    """It could be stored behind the position of its slot: the earlier note is processed again."""
    running(exact, 1, at_once=1, lease_ms=90_000)
    exact.clock.advance(LOOK_MS)
    put = ClaimIntents._put

    def slow(self: ClaimIntents, note: Any) -> None:
        put(self, note)
        exact.clock.advance(5_000)

    with mock.patch.object(ClaimIntents, "_put", slow):
        assert look(exact)["failed"] == 1
    assert not exact.run.stores.jobs.notes.slots()[0].seen


# --- the second search ----------------------------------------------------------------------------


@pytest.fixture
def seen(streamed: Callable[[], AbstractContextManager[World]]) -> Iterator[World]:
    """A world whose stream can be projected."""
    with streamed() as world:
        yield world


def told(world: World) -> None:
    """What the stream function does with what happened so far."""
    projected = Projected(world.client, world.table, world.clock)
    assert not projected.run(Stream(world.client, world.table).take())


def hours(world: World, minutes: int = 60) -> int:
    """Sweep each minute; how many leases were found lost."""
    found = 0
    for _ in range(minutes):
        world.clock.advance(MINUTE)
        found += world.sweep().get("stalled_or_timed_out", 0)
    return found


def without_notes(world: World) -> None:
    for item in notes(world):
        world.run.table.delete(item["pk"]["S"], item["sk"]["S"])


def test_a_running_job_without_a_note_is_found_within_an_hour(seen: World) -> None:
    for _ in range(3):
        seen.push(retry=RETRY, timeout_ms=6 * HOUR)
    lost, done, lasts = (taken(seen, lease_ms) for lease_ms in (LEASE, LEASE, 80 * MINUTE))
    seen.run.finish.ack(done.id, worker_id="w")
    told(seen)
    without_notes(seen)
    assert hours(seen) == 1
    assert seen.state(lost) == "available"
    # One that still runs has a note from then on.
    assert seen.state(lasts) == "active"
    assert len(notes(seen)) > 0
    assert hours(seen, 22) == 1
    assert seen.state(lasts) == "available"


def test_the_search_costs_two_reads_where_all_is_noted(seen: World) -> None:
    seen.push(retry=RETRY, timeout_ms=6 * HOUR)
    job = taken(seen, 3 * HOUR)
    told(seen)
    hours(seen, 50)
    minute = seen.clock.now_ms() // MINUTE
    searched = seen.run.stores.jobs.notes.searched()
    assert searched
    before = len(notes(seen))
    seen.clock.advance((10 - minute % 10) * MINUTE)
    with spending(seen) as spent:
        seen.run.sweep._leases.search(seen.clock.now_ms(), SweepCounts(), always)
    assert (spent.calls, spent.writes) == (2, 0)
    assert len(notes(seen)) == before
    assert entry(seen, job) is None


def test_a_sweep_whose_clock_is_ahead_loses_no_job_for_more_than_an_hour(seen: World) -> None:
    """It passes the time of a note before the note is stored; the claim comes a minute late."""
    seen.push(retry=RETRY)
    claim = JobStore.claim

    def put_off(self: JobStore, *args: Any, **how: Any) -> Job:
        seen.clock.advance(MINUTE)
        seen.run.stores.jobs.notes.advance(
            self.notes._slot, keys.lease_note(seen.clock.now_ms() + 10_000, "x")
        )
        return claim(self, *args, **how)

    with mock.patch.object(JobStore, "claim", put_off):
        job = taken(seen)
    told(seen)
    assert hours(seen) == 1
    assert seen.state(job) == "available"


def test_a_bound_counts_what_runs_for_longer_than_ten_minutes(world: World) -> None:
    world.push(retry=RETRY)
    taken(world, HOUR)
    world.clock.advance(MINUTE)
    world.sweep()
    world.run.queues.configure("default", {"max_size": 2})
    for _ in range(20):
        world.clock.advance(MINUTE)
        world.sweep()
        world.run.reconcile.run_once(world.clock.now_ms(), 50)
    world.push()
    with pytest.raises(OjsError):
        world.push()


def test_many_new_notes_may_take_long_together(exact: World) -> None:
    """Each is stored before its time, whatever those before it took."""
    for queue in ("a", "b", "c"):
        exact.push(queue=queue, retry=RETRY)
    exact.run.fetch.fetch(["a", "b", "c"], 3, "w", visibility_timeout_ms=2 * MINUTE)
    exact.clock.advance(LOOK_MS)
    put = ClaimIntents._put

    def slow(self: ClaimIntents, note: Any) -> None:
        put(self, note)
        assert keys.instant_of(note.key) >= exact.clock.now_ms() + SHORT_MS
        exact.clock.advance(4_000)

    with mock.patch.object(ClaimIntents, "_put", slow):
        assert "failed" not in look(exact)
    assert len(notes(exact)) == 6
