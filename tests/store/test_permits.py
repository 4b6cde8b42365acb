"""A queue's limit on running jobs: exact whatever is changed while they run and whoever dies."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.errors import BackendUnavailable, Conflict
from ojs.domain.job import envelope
from ojs.domain.rate_limit.window import RateWindow
from ojs.services.permits import repair as permit_repair
from ojs.store.derived.recount import Recount
from ojs.store.permits.semaphore import GONE_MS, SETTLED_MS, ConcurrencySemaphore
from ojs.store.table import keys, values
from tests.store.doubles import Projecting
from tests.store.faults import FAULTS, Died, attempt, faults
from tests.store.permits import STOPPABLE, reconcile, reconcile_at_rest, stop, taken
from tests.store.spending import reading_notes
from tests.store.streams import Stream

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from ojs.runtime import Runtime
    from tests.store.conftest import World

Worlds = Callable[[], AbstractContextManager["World"]]
SECOND = 1_000
QUEUE = "default"
MANY = 1_000_000


def configure(world: World, **config: Any) -> None:
    world.run.queues.configure(QUEUE, config)


def value_of(world: World) -> int:
    return taken(world.run, QUEUE)


def active(world: World) -> int:
    job_records = [item for item in world.items() if item["pk"]["S"].startswith(keys.job(""))]
    return sum(1 for item in job_records if item.get("state", {}).get("S") == "active")


def push(world: World, count: int, **options: Any) -> None:
    for n in range(count):
        world.push(n, **options)


def end(world: World, jobs: list[Job], count: int = 1) -> None:
    for _ in range(count):
        job = jobs.pop()
        world.run.finish.ack(job.id, worker_id=job.worker_id)


# --- a configuration that changes while jobs run --------------------------------------------------


@pytest.mark.requirement("QC-6", "QC-24")
def test_a_limit_counts_jobs_that_ran_before_it(world: World) -> None:
    """Nothing is handed out until fewer run than may."""
    push(world, 20)
    running = world.fetch(count=5, worker="w")
    configure(world, concurrency=3)
    for left in (5, 4, 3):
        assert len(running) == left
        assert world.fetch(count=5, worker="v") == []
        end(world, running)
    running += world.fetch(count=5, worker="v")
    assert len(running) == active(world) == value_of(world) == 3


@pytest.mark.parametrize("how", ["ack", "nack", "requeue", "cancel", "stall", "time out"])
def test_a_job_that_ran_before_the_limit_gives_its_permit_back_however_it_ends(
    world: World, how: str
) -> None:
    world.push(**STOPPABLE, retry={"max_attempts": 1})
    (job,) = world.fetch(worker="w")
    configure(world, concurrency=1)
    world.push(priority=100)
    assert world.fetch(worker="v") == []
    stop(world, job, how, "w")
    assert value_of(world) == 0
    assert len(world.fetch(worker="v")) == 1


@pytest.mark.requirement("QC-6", "QC-24")
def test_a_limit_that_is_raised_lowered_removed_and_set_again(world: World) -> None:
    push(world, 60)
    configure(world, concurrency=2)
    running = world.fetch(count=9)
    assert len(running) == 2
    configure(world, concurrency=5)
    running += world.fetch(count=9)
    assert len(running) == 5
    # Below what runs.
    configure(world, concurrency=3)
    assert world.fetch(count=9) == []
    end(world, running, 2)
    assert world.fetch(count=9) == []
    end(world, running)
    running += world.fetch(count=9)
    assert len(running) == 3
    # Those handed out without a limit count as soon as there is one again.
    configure(world, concurrency=None)
    running += world.fetch(count=4)
    assert len(running) == 7
    end(world, running)
    configure(world, concurrency=6)
    assert world.fetch(count=9) == []
    end(world, running, 2)
    running += world.fetch(count=9)
    assert len(running) == active(world) == value_of(world) == 6
    end(world, running, 6)
    assert value_of(world) == 0


def test_other_changes_leave_a_limit_as_it_is(world: World) -> None:
    push(world, 9)
    configure(world, concurrency=2)
    world.fetch(count=9)
    configure(world, retention={"completed": "P1D"})
    assert world.fetch() == []
    assert value_of(world) == 2


def test_a_queue_that_is_made_with_a_limit_waits_for_nobody(world: World) -> None:
    waited: list[float] = []
    world.sleep = waited.append
    world.run = world.another()
    configure(world, concurrency=1)
    world.run.queues.create("other", {"concurrency": 1})
    assert waited == []
    push(world, 2)
    assert len(world.fetch(count=2)) == 1
    configure(world, concurrency=None)
    assert waited == []
    configure(world, concurrency=2)
    configure(world, concurrency=3)
    assert waited == [permit_repair.GRACE_S]
    configure(world, concurrency=2)
    assert waited == [permit_repair.GRACE_S] * 2


def test_a_fetch_under_way_heeds_a_limit_that_was_lowered(world: World) -> None:
    """It read the queue before the change, and asks for permits after it."""
    push(world, 9)
    configure(world, concurrency=9)
    run, take = world.another(), ConcurrencySemaphore.acquire

    def late(self: ConcurrencySemaphore, *arguments: Any, **more: Any) -> Any:
        with mock.patch.object(ConcurrencySemaphore, "acquire", take):
            configure(world, concurrency=2)
        return take(self, *arguments, **more)

    with mock.patch.object(ConcurrencySemaphore, "acquire", late):
        got = run.fetch.fetch([QUEUE], 9, "w")
    assert len(got) == active(world) == 2


def test_a_fetch_that_began_while_jobs_were_counted_heeds_the_limit(world: World) -> None:
    push(world, 9)
    run, take = world.another(), ConcurrencySemaphore.acquire
    found = world.run.stores.queues.get(QUEUE)
    assert found is not None
    world.run.stores.queues.count(found, depth=False, permits=True)

    def late(self: ConcurrencySemaphore, *arguments: Any, **more: Any) -> Any:
        with mock.patch.object(ConcurrencySemaphore, "acquire", take):
            configure(world, concurrency=2)
        return take(self, *arguments, **more)

    with mock.patch.object(ConcurrencySemaphore, "acquire", late):
        got = run.fetch.fetch([QUEUE], 9, "w")
    assert len(got) == active(world) == 2


def test_a_fetch_that_was_slower_than_any_counts_a_minute_later(exact: World) -> None:
    """It read the queue when there was no limit, and claims after one was set."""
    push(exact, 9)
    run = exact.another()
    claim = run.fetch._jobs.claim

    def late(*arguments: Any, **more: Any) -> Job:
        if not exact.run.queues.get(QUEUE).limits_concurrency:
            configure(exact, concurrency=3)
        return claim(*arguments, **more)

    run.fetch._jobs.claim = late  # type: ignore[method-assign]
    (job,) = run.fetch.fetch([QUEUE], 1, "w")
    assert value_of(exact) == 0
    exact.clock.advance(SETTLED_MS)
    assert reconcile(exact)["slots_taken"] == 1
    assert len(exact.fetch(count=9)) == 2
    exact.run.finish.ack(job.id)
    assert value_of(exact) == 2


def test_more_jobs_than_one_request_can_count_are_counted_by_several(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permit_repair, "MOST_TAKEN", 4)
    push(exact, 20)
    exact.fetch(count=10)
    for counted in (4, 8):
        with pytest.raises(BackendUnavailable):
            configure(exact, concurrency=11)
        assert value_of(exact) == counted
        assert exact.run.queues.get(QUEUE).config.concurrency is None
    configure(exact, concurrency=11)
    assert len(exact.fetch(count=9)) == 1


def test_two_operators_who_set_a_limit_at_once_leave_it_exact(world: World) -> None:
    """The one's change ends the count that the other began: then it begins anew."""
    push(world, 9)
    world.fetch(count=3)
    run = world.another()
    recount = Recount.running

    def disturbed(self: Recount, *arguments: Any, **more: Any) -> Any:
        found = list(recount(self, *arguments, **more))
        with mock.patch.object(Recount, "running", recount):
            # Nothing changes by it but that jobs take no permits meanwhile.
            configure(world, concurrency=None)
            world.fetch()
        disturb.stop()
        return found

    disturb = mock.patch.object(Recount, "running", disturbed)
    disturb.start()
    run.queues.configure(QUEUE, {"concurrency": 5})
    assert len(world.fetch(count=9)) == 1
    assert active(world) == value_of(world) == 5


def test_a_nack_loses_no_permit_that_is_noted_meanwhile(world: World) -> None:
    push(world, 3)
    (job,) = world.fetch(worker="w")
    run = world.another()
    job_record = run.finish._jobs.read_record

    def late(job_id: str) -> Job | None:
        found = job_record(job_id)
        run.finish._jobs.read_record = job_record  # type: ignore[method-assign]
        configure(world, concurrency=1)
        return found

    run.finish._jobs.read_record = late  # type: ignore[method-assign]
    run.finish.nack(job.id, error={"code": "x"}, worker_id="w")
    assert value_of(world) == 0
    assert len(world.fetch(count=3)) == 1


@pytest.mark.requirement("QC-24")
def test_a_late_worker_gets_its_job_back_only_if_a_permit_is_free(world: World) -> None:
    """Also a job that goes on after its lease ran out is one that runs."""
    configure(world, concurrency=1)
    late = world.push(visibility_timeout_ms=1_000)
    world.fetch(worker="w")
    world.clock.advance(1_000)
    world.sweep()
    other = world.push(priority=10)
    assert [one.id for one in world.fetch(worker="v")] == [other.id]
    assert world.run.workers.beat("w", active_jobs=[late.id]).jobs_extended == []
    with pytest.raises(Conflict):
        world.run.finish.ack(late.id, worker_id="w")
    assert active(world) == value_of(world) == 1
    world.run.finish.ack(other.id, worker_id="v")
    assert world.run.workers.beat("w", active_jobs=[late.id]).jobs_extended == [late.id]
    assert value_of(world) == 1
    assert world.run.finish.ack(late.id, worker_id="w").state == "completed"
    assert value_of(world) == 0


# --- many at once ---------------------------------------------------------------------------------


def most_running(records: list[Any], marks: int) -> Counter[int]:
    """By how many marks were set, how many jobs ran at the most after one was started. None may be
    started beyond the limit that the last mark tells.
    """
    running, limit, most, seen = 0, 0, Counter[int](), 0
    for record in records:
        told = record["dynamodb"]
        old, new = (
            values.unpack(told[name]) if name in told else {} for name in ("OldImage", "NewImage")
        )
        pk = told["Keys"]["pk"]["S"]
        if pk == "MARK":
            limit, seen = int(new["limit"]), seen + 1
        if not pk.startswith(keys.job("")):
            continue
        step = (new.get("state") == "active") - (old.get("state") == "active")
        running += step
        if step > 0 and limit:
            assert running <= limit, (seen, running, limit)
            most[seen] = max(most[seen], running)
    assert seen == marks
    return most


@pytest.mark.exhaustive
@pytest.mark.requirement("QC-6", "QC-24")
def test_a_limit_holds_from_the_answer_on_whatever_is_set_under_load(streamed: Worlds) -> None:
    """12 workers at full speed, limits set, lowered, raised, removed and set again.

    The stream has every write in order; a write of the operator's marks each answer.
    """
    with streamed() as world:
        world.sleep = time.sleep
        world.run = world.another()
        requests = [envelope.parse({"type": "a", "args": []}) for _ in range(100)]
        for _ in range(20):
            world.run.enqueue.push_batch(requests)
        stream = Stream(world.client, world.table)
        done, fetched = threading.Event(), list[int]()

        def work(number: int) -> None:
            run, mine = world.another(), []
            while not done.is_set():
                got = run.fetch.fetch([QUEUE], 1 + number % 4, f"w{number}")
                fetched.append(len(got))
                mine += got
                keep = min(2, len(mine) - 1)
                while len(mine) > max(0, keep):
                    run.finish.ack(mine.pop(0).id, worker_id=f"w{number}")

        limits = [3, 8, 2, None, 5]
        with ThreadPoolExecutor(12) as pool:
            workers = [pool.submit(work, number) for number in range(12)]
            for at, limit in enumerate(limits):
                mark: Any = {"pk": "MARK", "sk": str(at), "limit": limit or 0}
                # What allows more does so before there is an answer.
                allows_more = limit is None or limit > (limits[at - 1] or MANY if at else MANY)
                if allows_more:
                    world.run.table.write_many(puts=[mark])
                configure(world, concurrency=limit)
                if not allows_more:
                    world.run.table.write_many(puts=[mark])
                before, deadline = sum(fetched), time.monotonic() + 60
                time.sleep(0.6)
                while sum(fetched) < before + 20 and time.monotonic() < deadline:
                    time.sleep(0.05)
            done.set()
            for worker in workers:
                worker.result(timeout=60)
        most = most_running(stream.take(), len(limits))
        # And it was of use.
        assert all(most[at + 1] for at, limit in enumerate(limits) if limit)
        assert value_of(world) == active(world)


# --- dying ----------------------------------------------------------------------------------------


def let_all_end(world: World) -> None:
    """Leases run out, the sweeps set all right."""
    world.clock.advance(1_800 * SECOND)
    world.sweep()
    reconcile_at_rest(world)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [1, 3])
def test_a_fetch_that_dies_anywhere_passes_no_limit_and_loses_no_permit(
    exact: World, count: int
) -> None:
    configure(exact, concurrency=2)
    for run, _ in faults(exact):
        push(exact, 3)
        attempt(partial(run.fetch.fetch, [QUEUE], count, "w"))
        exact.another().fetch.fetch([QUEUE], 3, "v")
        assert active(exact) <= min(2, value_of(exact))
        let_all_end(exact)
        assert value_of(exact) == active(exact) == 0
        while got := exact.another().fetch.fetch([QUEUE], 9, "x"):
            assert len(got) == min(2, active(exact))
            for job in got:
                exact.run.finish.ack(job.id, worker_id="x")


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["ack", "fail", "requeue", "cancel", "late"])
def test_the_end_of_a_job_that_dies_anywhere_loses_no_permit(exact: World, how: str) -> None:
    configure(exact, concurrency=2)
    for run, _ in faults(exact):
        push(exact, 1, retry={"max_attempts": 2}, visibility_timeout_ms=60_000)
        (job,) = exact.another().fetch.fetch([QUEUE], 1, "w")
        if how == "late":
            exact.clock.advance(60_000)
            exact.sweep()

        def act(run: Runtime, job_id: str = job.id) -> Any:
            match how:
                case "ack" | "late":
                    return run.finish.ack(job_id, worker_id="w")
                case "cancel":
                    return run.jobs.cancel(job_id)
                case _:
                    error = {"code": "x"}
                    return run.finish.nack(
                        job_id, error=error, worker_id="w", requeue=how == "requeue"
                    )

        if attempt(partial(act, run)) is None:
            with suppress(Conflict):
                act(exact.run)
        assert value_of(exact) >= active(exact)
        let_all_end(exact)
        push(exact, 3)
        got = exact.another().fetch.fetch([QUEUE], 9, "x")
        assert len(got) == value_of(exact) == active(exact) == 2
        while got:
            for job in got:
                exact.run.finish.ack(job.id, worker_id="x")
            got = exact.another().fetch.fetch([QUEUE], 9, "x")


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_setting_a_limit_that_dies_anywhere_and_is_asked_again_is_exact(
    exact: World, fault: str
) -> None:
    for run, _ in faults(exact, [fault]):
        push(exact, 6)
        running = exact.fetch(count=3)
        if attempt(partial(run.queues.configure, QUEUE, {"concurrency": 4})) is None:
            exact.run.queues.configure(QUEUE, {"concurrency": 4})
        assert value_of(exact) >= 3
        running += exact.another().fetch.fetch([QUEUE], 9, "v")
        assert active(exact) <= 4
        reconcile_at_rest(exact)
        running += exact.another().fetch.fetch([QUEUE], 9, "v")
        assert active(exact) == value_of(exact) == 4
        configure(exact, concurrency=None)
        running += exact.another().fetch.fetch([QUEUE], 9, "v")
        for job in running:
            exact.run.finish.ack(job.id)
        assert value_of(exact) == 0


def lose(world: World, kind: str = "before the claim") -> None:
    """One permit that nobody will ever give back."""
    run = world.another()
    if kind == "before the claim":
        run.fetch._jobs.claim = mock.Mock(side_effect=Died)  # type: ignore[method-assign]
        run.fetch._permits.close = mock.Mock()  # type: ignore[method-assign]
        with pytest.raises(Died):
            run.fetch.fetch([QUEUE], 1, "w")
    else:
        (job,) = run.fetch.fetch([QUEUE], 1, "w")
        run.finish._changes._permits.release = mock.Mock(side_effect=Died)  # type: ignore[method-assign]
        with pytest.raises(Died):
            run.finish.ack(job.id, worker_id="w")


@pytest.mark.parametrize("kind", ["before the claim", "after the end"])
def test_a_lost_permit_is_free_again_while_others_are_taken_and_given_back(
    exact: World, kind: str
) -> None:
    """Nothing waits until the semaphore is at rest: whoever is refused finds it out, at the latest
    when no fetch can be about to claim the job.
    """
    configure(exact, concurrency=3)
    push(exact, 99)
    lose(exact, kind)
    running = exact.fetch(count=9)
    assert (active(exact), value_of(exact)) == (2, 3)
    started_ms = exact.clock.now_ms()
    # It looks at most every five seconds.
    while exact.clock.now_ms() - started_ms < SETTLED_MS + GONE_MS + SETTLED_MS:
        assert len(running) >= 2
        end(exact, running)
        running += exact.fetch(count=9)
        assert active(exact) <= value_of(exact) == 3
        exact.clock.advance(SECOND)
    assert active(exact) == 3


@pytest.mark.parametrize("kind", ["before the claim", "after the end"])
def test_the_sweep_finds_a_lost_permit_where_nobody_fetches(exact: World, kind: str) -> None:
    configure(exact, concurrency=4)
    push(exact, 9)
    exact.fetch(count=2)
    lose(exact, kind)
    assert (active(exact), value_of(exact)) == (2, 3)
    assert reconcile(exact)["slots_freed"] == 0
    assert reconcile_at_rest(exact, 1)["slots_freed"] == 1
    assert value_of(exact) == active(exact) == 2
    assert reconcile_at_rest(exact)["slots_freed"] == 0


def test_a_claim_long_after_its_permit_was_taken_passes_no_limit(exact: World) -> None:
    """The slowest request there can be, 29 s, of a semaphore that was at rest for long before."""
    configure(exact, concurrency=2)
    push(exact, 9)
    exact.fetch()
    exact.clock.advance(10 * SETTLED_MS)
    run = exact.another()
    claim = run.fetch._jobs.claim

    def slowly(*arguments: Any, **more: Any) -> Job:
        for _ in range(29):
            exact.clock.advance(SECOND)
            assert reconcile(exact)["slots_freed"] == 0
        return claim(*arguments, **more)

    run.fetch._jobs.claim = slowly  # type: ignore[method-assign]
    run.fetch.fetch([QUEUE], 1, "w")
    assert active(exact) == value_of(exact) == 2
    assert exact.fetch() == []


def test_a_permit_given_back_long_after_its_job_ended_is_given_back_once(exact: World) -> None:
    configure(exact, concurrency=2)
    push(exact, 9)
    exact.fetch(count=2, worker="w")
    exact.clock.advance(10 * SETTLED_MS)
    run = exact.another()
    (first, *_) = [job for job in exact.items() if job.get("state", {}).get("S") == "active"]
    job_id = keys.job_id(first["pk"]["S"])
    exact.run.workers.beat("w", active_jobs=[job_id])
    release_all = run.finish._changes._permits.release

    def slowly(*arguments: Any, **more: Any) -> bool:
        for _ in range(29):
            exact.clock.advance(SECOND)
            reconcile(exact)
        return release_all(*arguments, **more)

    run.finish._changes._permits.release = slowly  # type: ignore[method-assign]
    run.finish.ack(job_id, worker_id="w")
    assert active(exact) == value_of(exact) == 1
    assert reconcile_at_rest(exact)["slots_freed"] == 0


def test_a_job_that_ends_while_the_sweep_looks_releases_its_permit_once(exact: World) -> None:
    configure(exact, concurrency=3)
    push(exact, 9)
    (job,) = exact.fetch(worker="w")
    lose(exact)
    exact.clock.advance(2 * GONE_MS)
    read = exact.run.table.batch_get

    def late(wanted: Any, **more: Any) -> Any:
        found = read(wanted, **more)
        if job.id in str(found):
            exact.another().finish.ack(job.id, worker_id="w")
        return found

    with mock.patch.object(exact.run.table, "batch_get", late):
        reconcile(exact)
    assert active(exact) == 0
    assert value_of(exact) in (0, 1)
    reconcile_at_rest(exact, 1)
    assert value_of(exact) == 0


# --- cost -----------------------------------------------------------------------------------------


def test_a_quiet_limited_queue_costs_the_sweep_two_calls(streamed: Worlds) -> None:
    with streamed() as world:
        projecting = Projecting(world)
        configure(world, concurrency=5)
        push(world, 9)
        world.fetch(count=4)
        projecting.catch_up()
        # What has run for a while is looked at once, and then not before its lease is over.
        world.clock.advance(600 * SECOND)
        reconcile(world)
        world.clock.advance(600 * SECOND)
        noted = reading_notes(world).calls
        world.run.table.meter.reset()
        counts = reconcile(world)
        assert (counts["slotted"], counts["failed"]) == (1, 0)
        # When the deployment began, names and queues, which the sweeps of one minute read once;
        # queue, semaphore and statistics; permits; running jobs as the projection has them.
        assert len(world.run.table.meter.calls) - noted == 6
        assert world.run.table.meter.write_units == 0


# --- the rate of a queue --------------------------------------------------------------------------


@pytest.mark.requirement("QC-6", "QC-25")
def test_a_rate_that_is_changed_holds_at_once(world: World) -> None:
    """What passed before counts, whatever the period was."""
    push(world, 30)
    configure(world, rate_limit={"limit": 5, "period": "PT1M"})
    assert len(world.fetch(count=9)) == 5
    configure(world, rate_limit={"limit": 7, "period": "PT1H"})
    assert len(world.fetch(count=9)) == 2
    configure(world, rate_limit={"limit": 7, "period": "PT1S"})
    assert world.fetch(count=9) == []
    world.clock.advance(1_200)
    assert len(world.fetch(count=9)) == 7
    configure(world, rate_limit={"limit": 8, "period": "PT1H"})
    assert len(world.fetch(count=9)) == 1
    world.clock.advance(3_600 * SECOND + 360 * SECOND)
    assert len(world.fetch(count=9)) == 8


def test_what_passed_is_never_forgotten_early_by_another_period() -> None:
    now_ms = 1_795_272_604_321
    window = RateWindow().with_starts(3, now_ms - 1_500, 1_000).with_starts(2, now_ms, 60_000)
    for period_ms in (1_000, 7_000, 60_000, 3_600_000):
        passed = (
            RateWindow().with_starts(4, now_ms - 500, 60_000).in_period(60_000, period_ms, now_ms)
        )
        assert passed.recent(now_ms, period_ms).used == 4
        assert not passed.recent(now_ms + 2 * period_ms, period_ms).used
    assert window.in_period(60_000, 60_000, now_ms) is window
