"""Fairness switched on for a queue that has jobs: all of them come to take turns by tenant."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.errors import BackendUnavailable
from ojs.domain.fair_queue.tags import Fairness, Share, arrival, tagged, ticks_of, with_tag
from ojs.domain.job import envelope
from ojs.domain.queue.config import DEFAULT_QUEUE_POLICY
from ojs.domain.queue.queue import Queue
from ojs.services.queues import fairness_backfill
from ojs.services.queues.fairness_backfill import SETTLED_MS
from ojs.store.jobs.fair_queue import BackfillCursor, BackfillCursors
from ojs.store.jobs.records import JobStore
from ojs.store.table import keys
from ojs.store.table.schema import TABLE
from ojs.store.table.table import Update
from tests.store.doubles import Meddled
from tests.store.faults import Died, attempt, drain, faults
from tests.store.streams import Projected, Stream
from tests.store.tenants import (
    BIG,
    QUEUE,
    WAYS,
    due_by_fetch,
    fair,
    flood,
    job_records,
    places,
    push,
    push_all,
    request,
    served,
    whose,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ojs.domain.job.job import Job
    from ojs.runtime import Runtime
    from tests.store.conftest import World

    Worlds = Callable[[], AbstractContextManager[World]]

MINUTE_MS = 60_000


def sweep(world: World, limit: int = 10_000, run: Runtime | None = None) -> Counter[str]:
    """What the next minute brings."""
    world.clock.advance(MINUTE_MS)
    return Counter((run or world.run).backfill.run_once(world.clock.now_ms(), limit))


def sweep_to_the_end(world: World) -> Counter[str]:
    """Minutes until the mark is gone, the first of them when nobody can be about to push."""
    done: Counter[str] = Counter()
    world.clock.advance(SETTLED_MS)
    for _ in range(5):
        if not marked(world):
            return done
        done += sweep(world)
    pytest.fail("it never ends")


def unknowing() -> Any:
    """Whoever reads a queue takes it for one that is not fair."""
    return mock.patch.object(Queue, "fairness", None)


def marked(world: World, queue: str = QUEUE) -> bool:
    found = world.run.queues.get(queue)
    return found.backfill_since_ms is not None


def off(world: World) -> None:
    world.run.queues.configure(QUEUE, {"tenant_fairness": {"enabled": False}})


def everywhere(world: World, each: int = 10) -> None:
    """Jobs of three tenants in every state there is, small ones and such as are kept apart."""
    for tenant in ("a", "b", "c"):
        push_all(
            world,
            [
                request(tenant, n, BIG if n % 3 == 0 else "", retry={"max_attempts": 9})
                for n in range(2 * each)
            ],
        )
        got = world.fetch(count=2 * each)
        for job in got[:each]:
            world.run.finish.nack(job.id, error={"code": "x", "message": "x"})
        for _ in range(each):
            push(world, tenant, BIG, scheduled_at="+PT2H")
        bodies = [
            {"type": "a", "args": [n], "meta": {"tenant_id": tenant}, "pending": True}
            for n in range(each)
        ]
        world.run.enqueue.push_batch([envelope.parse(body) for body in bodies])
        world.clock.advance(10)
    for tenant in ("a", "b", "c"):
        push_all(world, [request(tenant, n, BIG if n % 5 == 0 else "") for n in range(6 * each)])
        world.clock.advance(10)


def untagged(world: World) -> list[keys.Position]:
    return [place for place in places(world) if not tagged(place.order)]


def unshared(world: World) -> list[Job]:
    return [job for job in job_records(world) if job.share is None and not job.state.terminal]


def all_done(world: World) -> bool:
    return not untagged(world) and not unshared(world)


# --- the request ----------------------------------------------------------------------------------


@pytest.mark.requirement("QC-6", "FS-19")
def test_jobs_that_wait_take_turns_from_the_answer_on(world: World) -> None:
    """One change of the configuration, no push after it."""
    flood(world, "a", 150)
    world.clock.advance(60_000)
    flood(world, "b", 20)
    world.clock.advance(60_000)
    push(world, "c", BIG)
    fair(world)
    assert served(world, 45) == ["a", "b", "c"] + ["a", "b"] * 19 + ["a"] * 4


def test_jobs_of_each_priority_and_lane_take_turns_by_themselves(exact: World) -> None:
    exact.run.queues.configure(QUEUE, {"lanes": 2})
    for priority in (5, -5):
        flood(exact, "a", 30, priority=priority)
        exact.clock.advance(1_000)
        flood(exact, "b", 30, priority=priority)
        exact.clock.advance(1_000)
    before = {place.order for place in places(exact)}
    fair(exact)
    line = places(exact)
    assert {arrival(place.order) for place in line} == before
    for lane in (0, 1):
        for priority in (5, -5):
            there = [
                job for job in job_records(exact) if (job.lane, job.priority) == (lane, priority)
            ]
            there.sort(key=lambda job: job.order or "")
            turns = whose(exact.run.enqueue._jobs.with_contents(there))
            shorter = min(turns.count("a"), turns.count("b"))
            assert turns[: 2 * shorter] == ["a", "b"] * shorter


def test_each_tenant_keeps_its_order_and_each_job_its_age(world: World) -> None:
    for n in range(6):
        push(world, "ab"[n % 2], n)
        world.clock.advance(1_000)
    before = {job.id: job.order for job in job_records(world)}
    fair(world)
    assert {job.id: arrival(job.order or "") for job in job_records(world)} == before
    assert [(job.content or {})["args"] for job in world.fetch(count=6)] == [[n] for n in range(6)]


def test_what_waits_for_something_else_gets_a_share_and_pays_when_it_comes(exact: World) -> None:
    everywhere(exact, each=3)
    fair(exact)
    assert unshared(exact) == []
    assert {job.state.value for job in job_records(exact)} == {
        "available", "active", "retryable", "scheduled", "pending",
    }  # fmt: skip
    # However they come into line by and by, they do with a tag.
    for job in job_records(exact):
        if job.state.value == "pending":
            exact.run.jobs.activate(job.id)
    exact.clock.advance(9_000_000)
    exact.sweep()
    assert len(places(exact)) == len(job_records(exact)) == 3 * 3 * 10
    assert untagged(exact) == []


def test_more_than_a_request_sees_to_is_left_to_the_sweep(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairness_backfill, "AT_ONCE", 50)
    monkeypatch.setattr(fairness_backfill, "_PAGE", 10)
    flood(exact, "a", 100)
    exact.clock.advance(1_000)
    flood(exact, "b", 5)
    fair(exact)
    assert len(untagged(exact)) == 55
    assert sweep(exact, limit=20)["tagged"] == 20
    assert len(untagged(exact)) == 35
    assert sweep(exact)["tagged"] == 35
    assert untagged(exact) == []
    assert served(exact, 12) == ["a", "b"] * 5 + ["a"] * 2


def test_a_request_reads_so_many_pages_at_most(exact: World) -> None:
    """Switched off and on again where all jobs have tags: nothing is to be done, at length."""
    fair(exact)
    flood(exact, "a", 400)
    off(exact)
    with mock.patch.object(fairness_backfill, "_REQUEST_PAGES", 3):
        fair(exact)
    under_way = BackfillCursors(exact.run.table).get(QUEUE)
    assert under_way is not None
    assert (under_way.line, under_way.after is not None, under_way.found) == (0, True, False)


def test_a_request_that_cannot_go_on_has_switched_it_on_all_the_same(exact: World) -> None:
    flood(exact, "a", 5)
    busy = BackendUnavailable("busy")
    with mock.patch.object(JobStore, "read_records", side_effect=busy):
        fair(exact)
    assert len(untagged(exact)) == 5
    assert marked(exact)
    with mock.patch.object(JobStore, "read_records", side_effect=busy):
        assert sweep(exact)["failed"] == 1
    assert sweep(exact)["tagged"] == 5


# --- the mark -------------------------------------------------------------------------------------


def test_the_mark_goes_when_a_pass_that_began_late_enough_found_nothing(world: World) -> None:
    flood(world, "a", 3)
    fair(world)
    assert marked(world)
    assert sweep(world) == {"tagging": 1, "passes": 1}
    # A push that read the queue before the change, and stores its job now.
    with unknowing():
        push(world, "b", run=world.another())
    assert len(untagged(world)) == 1
    assert sweep(world) == {"tagging": 1, "passes": 1, "tagged": 1}
    assert sweep(world) == {"tagging": 1, "passes": 1}
    assert sweep(world) == {"tagging": 1, "passes": 1, "settled": 1}
    assert not marked(world)
    assert BackfillCursors(world.run.table).get(QUEUE) is None
    assert sweep(world) == {}


def test_a_pass_that_found_something_is_followed_by_another(exact: World) -> None:
    fair(exact)
    exact.clock.advance(SETTLED_MS)
    with unknowing():
        push(exact, "a", run=exact.another())
    assert sweep(exact) == {"tagging": 1, "passes": 1, "tagged": 1}
    assert sweep(exact)["settled"] == 1


def test_switching_it_off_ends_the_passes_and_on_again_begins_anew(world: World) -> None:
    flood(world, "a", 3)
    fair(world)
    off(world)
    assert not marked(world)
    flood(world, "b", 2)
    assert sweep(world) == {}
    fair(world)
    assert untagged(world) == []
    assert sweep_to_the_end(world)["settled"] == 1


def test_a_pass_of_an_earlier_marking_does_not_count(exact: World) -> None:
    fair(exact)
    off(exact)
    exact.clock.advance(1_000)
    fair(exact)
    found = exact.run.queues.get(QUEUE)
    assert found.backfill_since_ms is not None
    old = BackfillCursor(
        found.backfill_since_ms - 1_000, found.backfill_since_ms + 10 * SETTLED_MS, line=2
    )
    BackfillCursors(exact.run.table).save(QUEUE, old, now_ms=exact.clock.now_ms())
    assert sweep(exact) == {"tagging": 1, "passes": 1}
    assert marked(exact)


def test_only_the_mark_that_was_read_is_taken_away(exact: World) -> None:
    fair(exact)
    before = exact.run.queues.get(QUEUE)
    exact.clock.advance(1_000)
    off(exact)
    fair(exact)
    store = exact.run.stores.queues
    store.end_backfill(before)
    assert marked(exact)
    store.end_backfill(exact.run.queues.get(QUEUE))
    assert not marked(exact)


def test_other_changes_and_queues_that_are_made_fair_need_no_pass(world: World) -> None:
    fair(world)
    sweep_to_the_end(world)
    world.run.queues.configure(QUEUE, {"max_size": 10})
    fair(world, weights={"tenant:a": 2})
    assert not marked(world)
    world.run.queues.create("other", {"tenant_fairness": {"enabled": True}})
    world.run.queues.set_policy({"tenant_fairness": {"enabled": True}})
    push(world, "a", queue="third")
    assert not marked(world, "other")
    assert not marked(world, "third")
    assert world.run.queues.get("third").fairness is not None
    assert all(tagged(place.order) for place in places(world, "third"))
    assert DEFAULT_QUEUE_POLICY not in world.run.stores.queues.all_names()


def test_a_queue_may_be_marked_for_another_reason_than_its_own_configuration(exact: World) -> None:
    flood(exact, "a", 3)
    store = exact.run.stores.queues
    mark = {"tagging": exact.clock.now_ms()}
    store._table.update(Update(keys.queue(QUEUE), keys.RECORD, set=mark))
    with mock.patch.object(Queue, "fairness", Fairness()):
        assert sweep(exact) == {"tagging": 1, "passes": 1, "tagged": 3}
    # When nobody says that it is fair any more, nothing is left to do.
    push(exact, "a")
    assert sweep(exact) == {"tagging": 1}
    assert not marked(exact)
    assert len(untagged(exact)) == 1


def test_a_queue_that_is_being_deleted_is_passed_over(exact: World) -> None:
    push(exact, "a")
    fair(exact)
    exact.fetch()
    exact.run.deletion.delete(QUEUE, "drain")
    assert sweep(exact) == {}


# --- others at the same time ----------------------------------------------------------------------


@pytest.mark.parametrize("what", ["claim", "cancel", "move on"])
def test_whoever_comes_first_has_the_job(exact: World, what: str) -> None:
    job = push(exact, "a")
    rest = push(exact, "b")
    tag = JobStore.tag

    def late(self: JobStore, *arguments: Any) -> bool:
        with mock.patch.object(JobStore, "tag", tag):
            match what:
                case "claim":
                    exact.fetch()
                case "cancel":
                    exact.run.jobs.cancel(job.id)
                case _:
                    exact.run.finish.nack(exact.fetch()[0].id, error=None, requeue=True)
        return tag(self, *arguments)

    with mock.patch.object(JobStore, "tag", late):
        run = exact.another()
        run.queues.configure(QUEUE, {"tenant_fairness": {"enabled": True}})
    states = {"claim": "active", "cancel": "cancelled", "move on": "available"}
    assert exact.state(job) == states[what]
    sweep_to_the_end(exact)
    assert all_done(exact)
    assert rest.id in {found.id for found in job_records(exact)}


def test_a_tag_whose_answer_was_lost_is_given(exact: World) -> None:
    push(exact, "a")
    (job,) = job_records(exact)
    order = with_tag(5, job.order or "")
    client = Meddled(exact.client, "update_item", lambda: None)
    store = exact.another(client).enqueue._jobs
    assert store.tag(job, Share("a" * 12), order)
    assert client.happened
    assert places(exact)[0].order == order
    # Another's is not.
    assert not store.tag(job, Share("a" * 12), with_tag(6, job.order or ""))


def test_a_push_whose_answer_was_lost_finds_its_job_though_it_has_a_tag_by_now(
    exact: World,
) -> None:
    exact.push(queue=QUEUE)
    exact.fetch()
    late = exact.another()
    client = Meddled(exact.client, "put_item", lambda: fair(exact))
    run = exact.another(client)
    pushed = push(exact, "a", run=run)
    assert client.happened
    assert [place.order for place in places(exact)] != [pushed.order]
    assert untagged(exact) == []
    assert late.jobs.get(pushed.id).state.value == "available"


def test_of_several_runs_at_once_one_works_and_all_stay_in_order(exact: World) -> None:
    for tenant in ("a", "b", "c"):
        flood(exact, tenant, 30)
        exact.clock.advance(1_000)
    with mock.patch.object(fairness_backfill.FairnessBackfill, "begin"):
        fair(exact)
    exact.clock.advance(MINUTE_MS)
    runs = [exact.another() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        counts = list(
            pool.map(lambda run: run.backfill.run_once(exact.clock.now_ms(), 1_000), runs)
        )
    assert sum(count.get("tagged", 0) for count in counts) == 90
    assert untagged(exact) == []
    got = exact.fetch(count=100) + exact.fetch(count=100)
    for tenant in ("a", "b", "c"):
        mine = [(job.content or {})["args"][0] for job in got if whose([job]) == [tenant]]
        assert mine == list(range(30))


@pytest.mark.exhaustive
@pytest.mark.parametrize("each", [3, pytest.param(10, marks=pytest.mark.whole)])
def test_jobs_in_all_states_with_others_at_work(exact: World, each: int) -> None:
    """Claims, pushes and retries between the steps of every pass."""
    everywhere(exact, each)
    assert len(job_records(exact)) == 30 * each
    with mock.patch.object(fairness_backfill, "AT_ONCE", 10 * each):
        fair(exact)
    slow = exact.another()
    for n in range(4 * each):
        for job in exact.fetch(count=2, worker="w"):
            exact.run.finish.nack(job.id, error={"code": "x", "message": "x"}, requeue=n % 2 == 0)
        push(exact, "abc"[n % 3], n)
        if n < each:
            with unknowing():
                push(exact, "c", n, run=slow)
        exact.run.backfill.run_once(exact.clock.now_ms(), 2 * each)
        exact.clock.advance(5_000)
    sweep_to_the_end(exact)
    assert all_done(exact)
    assert len(job_records(exact)) == 35 * each
    exact.clock.advance(9_000_000)
    for job in job_records(exact):
        if job.state.value == "pending":
            exact.run.jobs.activate(job.id)
    assert len(drain(exact)) == 35 * each


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", ["request", "sweep"])
def test_dying_at_any_call_leaves_work_for_the_next_minute_and_nothing_else(
    exact: World, part: str
) -> None:
    for run, _ in faults(exact):
        off(exact)
        exact.clock.advance(1_000)
        push_all(exact, [request("ab"[n % 2], BIG if n == 1 else "") for n in range(3)])
        push(exact, "a", scheduled_at="+PT10M")
        if part == "request":
            told = {"tenant_fairness": {"enabled": True}}
            attempt(partial(run.queues.configure, QUEUE, told))
            fair(exact)
        else:
            with mock.patch.object(fairness_backfill.FairnessBackfill, "begin"):
                fair(exact)
            attempt(partial(run.backfill.run_once, exact.clock.now_ms(), 1_000))
        sweep_to_the_end(exact)
        assert all_done(exact)
        assert Counter(whose(drain(exact))) == {"a": 3, "b": 1}


@pytest.mark.exhaustive
def test_killed_at_every_call_of_a_pass_it_is_carried_on(exact: World) -> None:
    """Each run dies one call later than the one before; together they come to the end."""
    push_all(exact, [request("abc"[n % 3], n, BIG if n % 7 == 0 else "") for n in range(120)])
    with mock.patch.object(fairness_backfill.FairnessBackfill, "begin"):
        fair(exact)
    exact.clock.advance(SETTLED_MS)
    died = 0
    for number in range(1, 400):
        client = Dying(exact.client, number)
        try:
            exact.another(client).backfill.run_once(exact.clock.now_ms(), 1_000)
        except Died:
            died += 1
        exact.clock.advance(fairness_backfill.ALONE_MS)
        if not marked(exact):
            break
    assert died > 5
    assert all_done(exact)
    got = exact.fetch(count=100) + exact.fetch(count=100)
    assert Counter(whose(got)) == {"a": 40, "b": 40, "c": 40}


class Dying:
    """A client whose process dies before the call of one number, and does nothing after."""

    def __init__(self, client: Any, at: int) -> None:
        self._client, self._left = client, at

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise Died
            return method(**arguments)

        return call


# In a queue that is not fair, what is due is not put in line first.
@pytest.mark.parametrize(
    "way", [way for way in WAYS if way is not due_by_fetch], ids=lambda way: way.__name__
)
def test_however_jobs_came_before_it_was_on(exact: World, way: Any) -> None:
    way(exact)
    assert untagged(exact)
    fair(exact)
    assert all_done(exact)


# --- what follows ---------------------------------------------------------------------------------


def test_the_stream_tells_of_nothing(streamed: Worlds) -> None:
    """No counter moves and no event is told of because of a tag."""
    with streamed() as world:
        stream = Stream(world.client, world.table)
        derived = Projected(world.client, world.table, world.clock)
        everywhere(world, each=2)
        derived.run(stream.take())
        before, told = derived.stats(QUEUE), len(derived.events())
        assert before["available"] == 36
        fair(world)
        sweep_to_the_end(world)
        derived.run(stream.take())
        assert derived.stats(QUEUE) == before
        assert [event["type"] for event in derived.events()[told:]] == ["queue.config_updated"]


def test_what_is_noted_of_tenants_and_passes_is_not_in_the_stream() -> None:
    assert not TABLE.projects(keys.tenant(QUEUE, 0, 0, "x" * 12), keys.RECORD)
    assert not TABLE.projects(keys.backfill(QUEUE), keys.RECORD)


def test_tags_are_where_the_line_was(world: World) -> None:
    """A job that comes while passes are under way stands by its tenant's turn, not behind all."""
    flood(world, "a", 30)
    world.clock.advance(3_600_000)
    first = ticks_of(places(world)[0].order)
    with mock.patch.object(fairness_backfill.FairnessBackfill, "begin"):
        fair(world)
    push(world, "b")
    assert min(ticks_of(place.order) for place in places(world)) == first
    assert sorted(served(world, 2)) == ["a", "b"]
