"""Bulk operations on dead letters: all of them, each once, at a cost that stays the same."""

from __future__ import annotations

import threading
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.dead_letter.bulk import MAX_ERRORS, Action, BulkOperation, Phase, Refusal
from ojs.domain.errors import BackendUnavailable, Conflict, NotFound
from ojs.domain.filters import dead_letters as dead_letter_filter
from ojs.domain.filters.conditions import ArgsMatch
from ojs.domain.filters.dead_letters import EVERYTHING, DeadLetterFilter
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.times import MAX_MS, format_ms
from ojs.services.dead_letter import bulk
from ojs.store.dead_letter.bulk import KEPT_S, OPERATION, _item
from ojs.store.jobs import items
from ojs.store.table import keys, values
from tests.store.bounded import bound, counter_value
from tests.store.dead_letter_queues import die
from tests.store.faults import attempt, faults
from tests.store.spending import spending

if TYPE_CHECKING:
    from ojs.runtime import Runtime
    from tests.store.conftest import World

SECOND = 1_000
DAY = 86_400_000
LARGE = "x" * 5_000


def letters(world: World, count: int, queue: str = "mail", size: int = 10) -> list[str]:
    """So many dead letters, each as a death would have left it, one a millisecond."""
    world.push(queue=queue, kind="never.done")
    began_ms = world.clock.now_ms()
    records = []
    for number in range(count):
        job = Job(
            id=f"019539a4-{len(queue):04x}-7000-8000-{number:012x}",
            type="test.job",
            queue=queue,
            state=State.DISCARDED,
            created_ms=began_ms,
            content={"args": ["x" * size, number]},
            attempt=3,
            discarded_ms=began_ms + number,
            completed_ms=began_ms + number,
            dead_letter=True,
            error_type="Boom",
            op=f"op{number}",
        )
        records.append(items.record_of(job))
    with ThreadPoolExecutor(2) as pool:
        parts = [records[at : at + 250] for at in range(0, count, 250)]
        list(pool.map(lambda part: world.run.table.write_many(puts=part), parts))
    world.clock.advance(count)
    return [keys.job_id(str(record["pk"])) for record in records]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the jobs for a request and for a slice: as many slices, in a tenth of the time."""
    monkeypatch.setattr(bulk, "REQUEST_JOBS", bulk.REQUEST_JOBS // 10)
    monkeypatch.setattr(bulk, "SLICE", bulk.SLICE // 10)


def sweep(world: World, minutes: int = 1, limit: int = 5_000, run: Runtime | None = None) -> Any:
    """What the function does every minute."""
    counts: Counter[str] = Counter()
    for _ in range(minutes):
        world.clock.advance(60 * SECOND)
        counts.update((run or world.run).bulk.run_once(world.clock.now_ms(), limit))
    return counts


def states(world: World) -> Counter[str]:
    """How many jobs of each state there are, but for the one that only makes the queue."""
    records = [i for i in world.items() if i["pk"]["S"].startswith("J|") and i["sk"]["S"] == "@"]
    return Counter(i["state"]["S"] for i in records if i["type"]["S"] != "never.done")


def lives(world: World) -> Counter[str]:
    """How often jobs came back."""
    records = [i for i in world.items() if i["pk"]["S"].startswith("J|") and i["sk"]["S"] == "@"]
    return Counter(
        i.get("life", {"N": "0"})["N"] for i in records if i["type"]["S"] != "never.done"
    )


def found(world: World, operation: BulkOperation) -> BulkOperation:
    return world.run.bulk.get(operation.id)


# --- retry and purge ----------------------------------------------------------------------------


@pytest.mark.requirement("DL-14")
def test_all_that_match_come_back_and_no_others(world: World) -> None:
    mine = [die(world, n) for n in range(3)]
    others = [die(world, queue="other"), die(world, kind="other.kind")]
    done = world.run.bulk.begin(Action.RETRY, DeadLetterFilter(queue="mail", type="test.job"))
    assert done.job_ids == [job.id for job in mine]
    operation = done.operation
    assert (operation.phase, operation.matched, operation.succeeded) == (Phase.COMPLETED, 3, 3)
    assert found(world, operation) == operation
    assert [world.state(job) for job in others] == ["discarded"] * 2
    # In the order in which they died.
    assert [job.id for job in world.fetch("mail", 10)] == done.job_ids
    assert sweep(world, 2) == {}


@pytest.mark.parametrize("action", [Action.RETRY, Action.PURGE])
def test_a_filter_whose_field_matches_nothing_affects_no_job(world: World, action: Action) -> None:
    die(world, {"customer": 1})
    world.clock.advance(SECOND)
    failing = {
        "queue": "other", "type": "no.such", "error_type": "NoSuchError", "args": "nowhere",
        "since": format_ms(world.clock.now_ms()),
        **dict.fromkeys(("until", "before", "older_than"), "2001-01-01T00:00:00Z"),
    }  # fmt: skip
    assert {*failing} == {*dead_letter_filter.FIELDS}
    for name, value in failing.items():
        wanted = dead_letter_filter.parse({name: value}, now_ms=world.clock.now_ms())
        assert (name, world.run.bulk.begin(action, wanted).operation.matched) == (name, 0)


@pytest.mark.requirement("DL-14")
@pytest.mark.parametrize("queue", ["mail", None])
def test_every_part_of_the_filter_counts(world: World, queue: str | None) -> None:
    for number in range(4):
        die(world, LARGE, {"customer": number})
        world.clock.advance(SECOND)
    now_ms = world.clock.now_ms()
    wanted = DeadLetterFilter(
        queue=queue,
        type="test.job",
        error_type="SmtpError",
        since=now_ms - 3 * SECOND,
        until=now_ms,
        args=ArgsMatch.of("$[1].customer=3"),
    )
    for other in (
        wanted.but(type="other.kind"),
        wanted.but(error_type="Boom"),
        wanted.but(since=now_ms - SECOND // 2),
        wanted.but(until=now_ms - 2 * SECOND),
        wanted.but(args=ArgsMatch.of("$[1].customer=4")),
        wanted.but(queue="other"),
    ):
        assert world.run.bulk.begin(Action.RETRY, other).operation.matched == 0
    done = world.run.bulk.begin(Action.RETRY, wanted)
    assert done.operation.succeeded == 1
    (fetched,) = world.fetch("mail", 10)
    assert fetched.content is not None
    assert fetched.content["args"][1] == {"customer": 3}


@pytest.mark.requirement("DL-24")
def test_a_purge_leaves_nothing_of_its_jobs(world: World) -> None:
    gone, kept = [die(world, LARGE) for _ in range(3)], die(world, queue="other")
    done = world.run.bulk.begin(Action.PURGE, DeadLetterFilter(queue="mail"))
    assert sorted(done.job_ids) == sorted(job.id for job in gone)
    left = {i["pk"]["S"] for i in world.items() if i["pk"]["S"].startswith("J|")}
    assert left == {keys.job(kept.id)}


@pytest.mark.requirement("DL-14")
def test_what_cannot_come_back_is_counted_and_the_rest_goes_on(world: World) -> None:
    unique = {"keys": ["args"]}
    first = die(world, 1, unique=unique)
    second = die(world, 1, unique=unique)
    taken = die(world, queue="picky", kind="other.kind")
    draining = die(world, queue="ending")
    huge = die(world, LARGE, queue="narrow")
    last = die(world, 3)
    world.run.queues.configure("picky", {"allowed_job_types": ["test.*"]})
    world.run.queues.configure("narrow", {"max_size_bytes": 1_000})
    world.push(queue="ending")
    world.run.deletion.delete("ending", "drain")
    done = world.run.bulk.begin(Action.RETRY, EVERYTHING)
    assert done.operation.phase is Phase.COMPLETED
    assert done.job_ids == [first.id, last.id], done.errors
    assert [(error.job_id, error.code) for error in done.operation.errors] == [
        (second.id, "duplicate"),
        (taken.id, "JOB_TYPE_NOT_ALLOWED"),
        (draining.id, "queue_draining"),
        (huge.id, "payload_too_large"),
    ]
    assert (done.operation.matched, done.operation.failed) == (6, 4)
    assert done.errors == list(done.operation.errors)


@pytest.mark.requirement("DL-14")
def test_the_first_reasons_are_kept(world: World) -> None:
    letters(world, 150)
    world.run.queues.configure("mail", {"allowed_job_types": ["none.*"]})
    done = world.run.bulk.begin(Action.RETRY, EVERYTHING)
    assert (done.operation.failed, done.operation.succeeded) == (150, 0)
    assert len(done.operation.errors) == MAX_ERRORS
    assert found(world, done.operation) == done.operation


@pytest.mark.requirement("DL-14")
def test_a_queue_that_was_deleted_is_made_again_once(world: World) -> None:
    for number in range(3):
        die(world, number)
    world.run.deletion.delete("mail", "discard")
    assert world.run.bulk.begin(Action.RETRY, EVERYTHING).operation.succeeded == 3
    assert len(world.fetch("mail", 10)) == 3


@pytest.mark.requirement("DL-14")
def test_what_dies_again_is_not_taken_again(world: World) -> None:
    jobs = {die(world, n).id for n in range(3)}
    world.clock.advance(SECOND)
    run = world.another()
    bring_back = run.bulk._redrive.bring_back

    def failing(job: Job, **more: Any) -> Job:
        back = bring_back(job, **more)
        world.clock.advance(SECOND)
        world.fetch("mail", worker="w")
        world.run.finish.nack(job.id, error={"code": "DEAD_LETTER", "message": "again"})
        return back

    run.bulk._redrive.bring_back = failing  # type: ignore[method-assign, assignment]
    done = run.bulk.begin(Action.RETRY, EVERYTHING)
    assert done.errors == []
    assert (done.operation.phase, done.operation.succeeded) == (Phase.COMPLETED, 3)
    assert set(done.job_ids) == jobs
    assert states(world) == {"discarded": 3}


@pytest.mark.requirement("DL-14")
def test_no_waiting_job_gives_way(world: World) -> None:
    """A push into a full queue may drop the oldest; many jobs at once would drop each other."""
    bound(world, "mail", max_size=2, overflow_policy="drop_oldest")
    for number in range(4):
        die(world, number)
    done = world.run.bulk.begin(Action.RETRY, EVERYTHING)
    assert (done.operation.succeeded, done.operation.waiting_for_room) == (2, True)
    assert states(world) == {"available": 2, "discarded": 2}


# --- waiting for room ---------------------------------------------------------------------------


@pytest.mark.requirement("DL-14")
def test_an_operation_waits_for_room_and_goes_on(world: World) -> None:
    bound(world, "mail", max_size=2)
    for number in range(5):
        die(world, number)
    done = world.run.bulk.begin(Action.RETRY, EVERYTHING)
    operation = done.operation
    assert (operation.phase, operation.succeeded, operation.failed) == (Phase.RUNNING, 2, 0)
    assert operation.waiting_for_room
    # Not asked again at once.
    assert world.run.bulk.run_once(world.clock.now_ms(), 100) == {}
    assert sweep(world)["waiting"] == 1
    assert found(world, operation).waiting_for_room
    for _ in range(2):
        for job in world.fetch("mail", 10):
            world.run.finish.ack(job.id)
        sweep(world)
    assert found(world, operation).phase is Phase.COMPLETED
    assert not found(world, operation).waiting_for_room
    assert found(world, operation).succeeded == 5
    assert counter_value(world, "mail")[0] == 1


@pytest.mark.requirement("DL-14")
@pytest.mark.usefixtures("small")
def test_one_that_waits_holds_up_no_other(world: World) -> None:
    bound(world, "full", max_size=1)
    die(world, queue="full")
    world.push(queue="full")
    letters(world, 70)
    waits = world.run.bulk.begin(Action.RETRY, DeadLetterFilter(queue="full")).operation
    large = world.run.bulk.begin(Action.RETRY, DeadLetterFilter(queue="mail")).operation
    assert (large.phase, large.succeeded) == (Phase.RUNNING, bulk.REQUEST_JOBS)
    counts = sweep(world)
    assert (counts["retried"], counts["waiting"], counts["ended"]) == (20, 1, 1)
    assert found(world, waits).waiting_for_room
    assert found(world, large).succeeded == 70


@pytest.mark.requirement("DL-14")
def test_one_that_waits_for_a_week_ends(world: World) -> None:
    bound(world, "mail", max_size=1)
    die(world)
    world.push(queue="mail")
    operation = world.run.bulk.begin(Action.RETRY, EVERYTHING).operation
    world.clock.advance(bulk.LIFETIME_MS)
    assert sweep(world)["ended"] == 1
    assert found(world, operation).phase is Phase.STOPPED


# --- slices, requests and sweeps ----------------------------------------------------------------


@pytest.mark.requirement("DL-14")
@pytest.mark.usefixtures("small")
def test_the_sweep_goes_on_where_a_request_had_to_end(exact: World) -> None:
    letters(exact, 124)
    done = exact.run.bulk.begin(Action.RETRY, EVERYTHING)
    assert len(done.job_ids) == bulk.REQUEST_JOBS
    assert done.operation.phase is Phase.RUNNING
    counts = sweep(exact, limit=30)
    assert +counts == {"retried": 30, "more": 1}
    assert found(exact, done.operation).succeeded == 80
    # Until there is no time left: progress is kept up to the very job.
    left = iter([True] * 15)
    exact.clock.advance(60 * SECOND)
    exact.run.bulk.run_once(exact.clock.now_ms(), 5_000, lambda: next(left, False))
    assert 90 < found(exact, done.operation).succeeded < 95
    sweep(exact)
    assert found(exact, done.operation).phase is Phase.COMPLETED
    assert found(exact, done.operation).matched == 124
    assert lives(exact) == {"1": 124}


@pytest.mark.requirement("DL-14")
def test_a_request_without_time_leaves_all_to_the_sweep(world: World) -> None:
    letters(world, 5)
    done = world.run.bulk.begin(Action.RETRY, EVERYTHING, go_on=lambda: False)
    assert (done.operation.phase, done.operation.matched) == (Phase.RUNNING, 0)
    assert sweep(world)["retried"] == 5


@pytest.mark.requirement("DL-14")
def test_a_filter_that_matches_little_looks_a_bounded_way(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "REQUEST_JOBS", 20)
    letters(exact, bulk.REQUEST_JOBS * bulk.LOOKS_PER_JOB + 100)
    last = die(exact, queue="rare", kind="rare.kind")
    done = exact.run.bulk.begin(Action.RETRY, DeadLetterFilter(type="rare.kind"))
    assert (done.operation.phase, done.operation.matched) == (Phase.RUNNING, 0)
    assert sweep(exact)["retried"] == 1
    assert exact.state(last) == "available"


@pytest.mark.requirement("DL-14")
@pytest.mark.usefixtures("small")
def test_requests_and_sweeps_at_once_take_each_job_once(exact: World) -> None:
    letters(exact, 45)
    runs = [exact.another() for _ in range(6)]
    barrier = threading.Barrier(len(runs))

    def one(number: int) -> int:
        barrier.wait()
        if number < 2:
            return len(runs[number].bulk.begin(Action.RETRY, EVERYTHING).job_ids)
        retried = 0
        for _ in range(60):
            exact.clock.advance(SECOND // 10)
            retried += runs[number].bulk.run_once(exact.clock.now_ms(), 5_000).get("retried", 0)
        return retried

    with ThreadPoolExecutor(len(runs)) as pool:
        retried = sum(pool.map(one, range(len(runs))))
    retried += sweep(exact, 3)["retried"]
    assert retried == 45
    assert lives(exact) == {"1": 45}
    operations = exact.run.bulk.list().items
    assert {one.phase for one in operations} == {Phase.COMPLETED}
    assert sum(one.succeeded for one in operations) == 45


@pytest.mark.requirement("DL-14")
@pytest.mark.usefixtures("small")
def test_whoever_held_on_too_long_stops(exact: World) -> None:
    """Its hold ran out in the middle of a slice, and another went on."""
    letters(exact, 25)
    slow = exact.another()
    bring_back = slow.bulk._redrive.bring_back
    others: list[int] = []

    def late(job: Job, **more: Any) -> Job:
        if job.id.endswith(f"{13:012x}") and not others:
            exact.clock.advance(bulk.CLAIM_MS + SECOND)
            counts = exact.run.bulk.run_once(exact.clock.now_ms(), 5_000)
            others.append(counts["retried"])
        return bring_back(job, **more)

    slow.bulk._redrive.bring_back = late  # type: ignore[method-assign, assignment]
    done = slow.bulk.begin(Action.RETRY, EVERYTHING)
    # The rest of the slow one's slice was done by the other already.
    assert len(done.job_ids) + others[0] == 25
    assert lives(exact) == {"1": 25}
    assert found(exact, done.operation) == done.operation
    assert done.operation.phase is Phase.COMPLETED
    # Those of the slice that was never saved are not counted.
    assert done.operation.succeeded == 22


@pytest.mark.requirement("DL-14")
def test_trouble_with_the_store_ends_a_turn_and_not_the_operation(world: World) -> None:
    letters(world, 5)
    run = world.another()
    bring_back = run.bulk._redrive.bring_back
    calls = iter(range(10))

    def failing(job: Job, **more: Any) -> Job:
        if next(calls) == 2:
            raise BackendUnavailable("busy")
        return bring_back(job, **more)

    run.bulk._redrive.bring_back = failing  # type: ignore[method-assign, assignment]
    done = run.bulk.begin(Action.RETRY, EVERYTHING)
    assert (done.operation.phase, done.operation.succeeded) == (Phase.RUNNING, 2)
    assert sweep(world)["retried"] == 3


@pytest.mark.requirement("DL-14")
def test_a_dead_letter_whose_copy_is_made_meanwhile_is_taken_all_the_same(
    world: World,
) -> None:
    job = die(world)
    run = world.another()
    bring_back = run.bulk._redrive.bring_back

    def late(found_job: Job, **more: Any) -> Job:
        record = world.run.redrive._jobs.read_record(job.id)
        assert record is not None
        with suppress(StopIteration):
            next(once)
            world.run.redrive._jobs.replace(record, record)
        return bring_back(found_job, **more)

    once = iter([1])
    run.bulk._redrive.bring_back = late  # type: ignore[method-assign, assignment]
    assert run.bulk.begin(Action.RETRY, EVERYTHING).job_ids == [job.id]


@pytest.mark.requirement("DL-14")
def test_a_dead_letter_that_somebody_else_takes_is_not_counted(world: World) -> None:
    jobs = [die(world, n) for n in range(3)]
    run = world.another()
    bring_back = run.bulk._redrive.bring_back

    def late(job: Job, **more: Any) -> Job:
        if job.id == jobs[1].id:
            world.run.redrive.retry(job.id)
        if job.id == jobs[2].id:
            world.run.dead_letter.delete(job.id)
        return bring_back(job, **more)

    run.bulk._redrive.bring_back = late  # type: ignore[method-assign, assignment]
    done = run.bulk.begin(Action.RETRY, EVERYTHING)
    assert (done.operation.phase, done.operation.matched) == (Phase.COMPLETED, 1)
    assert lives(world) == {"1": 2}


# --- stopping, looking --------------------------------------------------------------------------


@pytest.mark.requirement("DL-14")
@pytest.mark.usefixtures("small")
def test_an_operation_is_stopped(world: World) -> None:
    letters(world, 70)
    done = world.run.bulk.begin(Action.RETRY, EVERYTHING)
    stopped = world.run.bulk.stop(done.operation.id)
    assert (stopped.phase, stopped.succeeded) == (Phase.STOPPED, bulk.REQUEST_JOBS)
    assert found(world, done.operation) == stopped
    assert sweep(world, 2) == {}
    with pytest.raises(Conflict) as refused:
        world.run.bulk.stop(done.operation.id)
    assert refused.value.details["current_state"] == "stopped"
    with pytest.raises(NotFound):
        world.run.bulk.stop("019539a4-0000-7000-8000-000000000000")
    over = world.run.bulk.begin(Action.RETRY, DeadLetterFilter(queue="none")).operation
    with pytest.raises(Conflict):
        world.run.bulk.stop(over.id)


@pytest.mark.requirement("DL-14")
@pytest.mark.usefixtures("small")
def test_one_that_is_stopped_while_at_work_ends_after_its_slice(world: World) -> None:
    letters(world, 45)
    run = world.another()
    bring_back = run.bulk._redrive.bring_back
    told: list[Phase] = []

    def stopping(job: Job, **more: Any) -> Job:
        if job.id.endswith(f"{15:012x}"):
            (operation,) = world.run.bulk.list().items
            told.append(world.run.bulk.stop(operation.id).phase)
            # Twice is once.
            told.append(world.run.bulk.stop(operation.id).phase)
        return bring_back(job, **more)

    run.bulk._redrive.bring_back = stopping  # type: ignore[method-assign, assignment]
    done = run.bulk.begin(Action.RETRY, EVERYTHING)
    assert told == [Phase.STOPPING, Phase.STOPPING]
    assert (done.operation.phase, done.operation.succeeded) == (Phase.STOPPED, 20)
    assert states(world) == {"available": 20, "discarded": 25}
    assert sweep(world, 2) == {}


@pytest.mark.requirement("DL-14")
def test_one_that_was_stopped_while_its_worker_died_is_ended_by_the_sweep(
    world: World,
) -> None:
    letters(world, 5)
    run = world.another()
    run.bulk._redrive.bring_back = _died  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run.bulk.begin(Action.RETRY, EVERYTHING)
    (operation,) = world.run.bulk.list().items
    assert world.run.bulk.stop(operation.id).phase is Phase.STOPPING
    assert sweep(world, 2)["ended"] == 1
    assert found(world, operation).phase is Phase.STOPPED
    assert states(world) == {"discarded": 5}


def _died(*_: Any, **__: Any) -> Job:
    raise KeyboardInterrupt


@pytest.mark.requirement("DL-14")
def test_operations_are_listed_latest_first_and_kept_for_a_week(world: World) -> None:
    begun = []
    for _ in range(5):
        done = world.run.bulk.begin(Action.PURGE, DeadLetterFilter(queue="none"))
        begun.append(done.operation.id)
        world.clock.advance(SECOND)
    begun.reverse()
    first = world.run.bulk.list(limit=2)
    assert [one.id for one in first.items] == begun[:2]
    rest = world.run.bulk.list(limit=10, cursor=first.next_cursor)
    assert [one.id for one in rest.items] == begun[2:]
    assert rest.next_cursor is None
    world.clock.advance(KEPT_S * SECOND - 3 * SECOND)
    assert [one.id for one in world.run.bulk.list().items] == begun[:2]
    with pytest.raises(NotFound):
        world.run.bulk.get(begun[4])


moments = st.none() | st.integers(-62_135_596_800_000, MAX_MS)


@given(
    st.builds(
        BulkOperation,
        id=st.just("019539a4-0000-7000-8000-000000000000"),
        action=st.sampled_from([Action.RETRY, Action.PURGE]),
        wanted=st.builds(
            DeadLetterFilter,
            queue=st.none() | st.just("q"),
            type=st.none() | st.just("a.b"),
            error_type=st.none() | st.text(min_size=1),
            since=moments,
            until=moments,
            args=st.none() | st.sampled_from(["x", "$[0].a=1", '$["a b"]=[1]']).map(ArgsMatch.of),
        ),
        started_ms=st.integers(0, MAX_MS),
        updated_ms=st.integers(0, MAX_MS),
        cursor=st.none() | st.text(min_size=1),
        succeeded=st.integers(0, 10**9),
        failed=st.integers(0, 10**9),
        errors=st.lists(st.builds(Refusal, st.text(), st.text(), st.text()), max_size=20).map(
            tuple
        ),
        waiting_for_room=st.booleans(),
    )
)
def test_an_operation_is_read_back_as_it_was_written(operation: BulkOperation) -> None:
    item = values.unpack(values.pack(_item(operation)))
    assert OPERATION.of(item) == operation
    wanted = operation.wanted.to_dict()
    assert operation.to_dict()["filter"] == wanted


def test_a_filter_with_all_of_it_is_read_back(world: World) -> None:
    raw = {
        "queue": "q", "type": "a.b", "error_type": "E", "since": "0001-01-01T00:00:00Z",
        "until": "2020-01-01T00:00:00+02:00", "older_than": "P1D", "args": "$.a=1",
    }  # fmt: skip
    wanted = dead_letter_filter.parse(raw, now_ms=world.clock.now_ms())
    done = world.run.bulk.begin(Action.RETRY, wanted)
    assert found(world, done.operation).wanted == wanted


# --- dying anywhere -----------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.requirement("DL-14")
@pytest.mark.parametrize(("action", "by"), [(Action.RETRY, "request"), (Action.PURGE, "sweep")])
def test_a_slice_that_dies_anywhere_loses_and_doubles_nothing(
    exact: World, by: str, action: Action
) -> None:
    bound(exact, "mail", max_size=100_000, max_size_bytes=10**9)
    everyone: set[str] = set()
    for run, client in faults(exact):
        jobs = {
            die(exact, LARGE, unique={"keys": ["type"], "states": ["pending"]}).id,
            die(exact, 2).id,
            die(exact, 3).id,
        }
        before = _jobs(exact, jobs)
        wanted = DeadLetterFilter(queue="mail")
        exact.clock.advance(SECOND)
        if by == "request":
            attempt(partial(run.bulk.begin, action, wanted))
        else:
            exact.run.bulk.begin(action, wanted, go_on=lambda: False)
            attempt(partial(run.bulk.run_once, exact.clock.now_ms(), 100))
        if not exact.run.bulk.list().items:
            # It was not stored: nothing was done, and the caller begins it again.
            assert {exact.state(job) for job in _jobs(exact, jobs)} == {"discarded"}
            exact.run.bulk.begin(action, wanted)
        sweep(exact, 3)
        operations = exact.run.bulk.list(limit=50).items
        assert not [one for one in operations if not one.phase.over], client._fault
        left = _jobs(exact, jobs)
        if action is Action.PURGE:
            assert left == []
            for job in before:
                # As the projection does for every job record that goes.
                exact.run.redrive._jobs.removal.remove_rest(job)
            assert not [i for i in exact.items() if i["pk"]["S"].startswith("J|")]
        else:
            # Each came back exactly once, whoever did it.
            assert [(job.state, job.life) for job in left] == [("available", 1)] * 3
            got = [job.id for job in exact.fetch("mail", 10)]
            assert sorted(got) == sorted(jobs)
            for job_id in got:
                exact.run.finish.ack(job_id)
        everyone |= jobs
        for one in operations:
            exact.run.table.delete(keys.operation(one.id), keys.RECORD)
    for _ in range(4):
        exact.clock.advance(700 * SECOND)
        exact.run.reconcile.run_once(exact.clock.now_ms(), 1_000)
    assert counter_value(exact, "mail") == (0, 0)


def _jobs(world: World, ids: set[str]) -> list[Job]:
    return list(world.run.redrive._jobs.read_records(sorted(ids)).values())


# --- what it costs ------------------------------------------------------------------------------


def _turn(world: World, limit: int) -> Any:
    world.clock.advance(60 * SECOND)
    with spending(world) as spent:
        counts = world.run.bulk.run_once(world.clock.now_ms(), limit)
    assert counts["retried"] == limit
    return spent


@pytest.mark.requirement("DL-14")
@pytest.mark.whole
def test_ten_thousand_come_back_at_a_constant_cost_and_in_bounded_memory(
    exact: World,
) -> None:
    letters(exact, 10_000)
    operation = exact.run.bulk.begin(Action.RETRY, EVERYTHING, go_on=lambda: False).operation
    first = _turn(exact, 500)
    # Tracing makes it slow: were the jobs dealt with held, a thousand of them would show.
    tracemalloc.start()
    sweep(exact, 1, limit=1_000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    later = _turn(exact, 500)
    assert (later.calls, later.writes, later.reads) == (first.calls, first.writes, first.reads)
    # One write for each job, and for each hundred a page of the line, their records, queues and
    # how far it is; the look for operations and the hold on this one.
    assert first.calls <= 500 + 5 * 4 + 3
    assert first.writes / 500 <= 4.1
    # Consistent reads of heads of up to 4 KB, and the index.
    assert first.reads / 500 <= 1.1
    assert most < 2_000_000
    sweep(exact, 1, limit=9_000)
    assert found(exact, operation).phase is Phase.COMPLETED
    assert found(exact, operation).succeeded == 10_000
    assert lives(exact) == {"1": 10_000}


@pytest.mark.requirement("DL-14")
def test_a_pass_without_operations_is_one_call(exact: World) -> None:
    letters(exact, 100)
    exact.run.bulk.begin(Action.RETRY, EVERYTHING)
    with spending(exact) as spent:
        assert exact.run.bulk.run_once(exact.clock.now_ms(), 1_000) == {}
    assert (spent.calls, spent.writes) == (1, 0)


@pytest.mark.requirement("DL-14")
def test_contents_that_are_looked_at_are_few_at_a_time(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_ARGS_BYTES", 20_000)
    for number in range(10):
        die(exact, LARGE, number)
    load = exact.run.bulk._jobs.with_contents
    loaded: list[int] = []

    def counting(jobs: Any) -> Any:
        loaded.append(len(jobs))
        return load(jobs)

    monkeypatch.setattr(exact.run.bulk._jobs, "with_contents", counting)
    done = exact.run.bulk.begin(Action.RETRY, DeadLetterFilter(args=ArgsMatch.of("$[1]=7")))
    assert done.operation.succeeded == 1
    assert loaded == [3, 3, 3, 1]


# --- the projections ----------------------------------------------------------------------------


def test_lifecycle_tells_of_each_job_that_came_back(exact: World) -> None:
    """What the stream sees of a bulk retry is what it sees of a single one."""
    job = die(exact)
    before = exact.run.redrive._jobs.read_record(job.id)
    exact.run.bulk.begin(Action.RETRY, EVERYTHING)
    after = exact.run.redrive._jobs.read_record(job.id)
    assert before is not None
    assert after is not None
    expected = lifecycle.revive(before, now_ms=exact.clock.now_ms(), order=after.order or "")
    assert replace(after, op=None) == replace(expected, op=None)
