"""Tenants that share a queue fairly: who is served when, and what that costs."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.errors import BackendError, BackendUnavailable, Duplicate
from ojs.domain.fair_queue.tags import STEP, Fairness, arrival, tagged, ticks_at, ticks_of
from ojs.domain.job import envelope
from ojs.store.derived import statistics as stats_store
from ojs.store.jobs.fair_queue import FRONT, FairLine, TenantFinishTags
from tests.store.doubles import Meddled
from tests.store.faults import Died, attempt, drain, faults, orphans
from tests.store.spending import RETRY, incompressible, spending, stage_once, warm
from tests.store.tenants import (
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
    from tests.store.conftest import World


def end(world: World, tenant: str, *, queue: str = QUEUE, priority: int = 0, lane: int = 0) -> int:
    """Where a tenant's jobs end."""
    key = FairLine(queue, lane, priority).key_of(
        Fairness().share({"meta": {"tenant_id": tenant}}).tenant
    )
    found = TenantFinishTags(world.run.table).finish_tags([key])[key]
    assert found is not None
    return found


# --- who is served when ---------------------------------------------------------------------------


@pytest.mark.requirement("FS-19")
def test_a_tenant_that_floods_a_queue_takes_turns_with_one_that_does_not(world: World) -> None:
    fair(world)
    flood(world, "a", 200)
    world.clock.advance(5_000)
    flood(world, "b", 20)
    assert served(world, 50) == ["a", "b"] * 20 + ["a"] * 10


def test_without_fairness_jobs_are_served_as_they_came(world: World) -> None:
    flood(world, "a", 20)
    flood(world, "b", 20)
    assert served(world, 40) == ["a"] * 20 + ["b"] * 20
    assert not any(tagged(place.order) for place in places(world))


@pytest.mark.exhaustive
@pytest.mark.requirement("FS-19")
def test_a_flood_of_2000_jobs_a_hundred_of_another_and_then_a_thousand_tenants(
    exact: World,
) -> None:
    """With 10 000: `tests.performance.measure --large`."""
    fair(exact)
    flood(exact, "a", 2_000)
    exact.clock.advance(1_000)
    flood(exact, "b", 100)
    assert served(exact, 100) == ["a", "b"] * 50
    exact.clock.advance(1_000)
    push_all(exact, (request(f"t{n}", n) for n in range(1_000)))
    # One round: each that waits has a turn, a and b among them; ties go to who came first.
    round_ = served(exact, 1_002)
    assert Counter(round_) == Counter({"a": 1, "b": 1} | {f"t{n}": 1 for n in range(1_000)})
    assert served(exact, 98) == ["a", "b"] * 49
    assert served(exact, 100) == ["a"] * 100


@pytest.mark.exhaustive
@pytest.mark.requirement("FS-20")
@pytest.mark.parametrize("lanes", [1, 3])
def test_shares_are_those_of_the_weights(exact: World, lanes: int) -> None:
    """Five to one, within 2 %."""
    exact.run.queues.configure(QUEUE, {"lanes": lanes})
    fair(exact, weights={"tenant:big": 5}, default_weight=1)
    flood(exact, "small", 600)
    flood(exact, "big", 900)
    # Of several lanes each is fair by itself; a fetch takes from them in turn.
    counted = Counter(served(exact, 600)) if lanes == 1 else Counter()
    for _ in range(0 if lanes == 1 else 60):
        counted += Counter(served(exact, 10))
    assert abs(counted["big"] / counted["small"] - 5) <= (0.1 if lanes == 1 else 1)


def test_a_weight_that_is_changed_counts_for_jobs_that_come_after(world: World) -> None:
    fair(world)
    flood(world, "a", 12)
    flood(world, "b", 12)
    fair(world, weights={"tenant:b": 2})
    flood(world, "b", 12)
    assert served(world, 24) == ["a", "b"] * 12
    assert served(world, 12) == ["b"] * 12
    world.clock.advance(1_000)
    flood(world, "a", 6)
    flood(world, "b", 12)
    assert Counter(served(world, 9)) == {"a": 3, "b": 6}


def test_who_was_idle_has_no_credit(world: World) -> None:
    fair(world)
    push(world, "idle")
    (job,) = world.fetch()
    world.run.finish.ack(job.id)
    world.clock.advance(3_600_000)
    flood(world, "busy", 60)
    assert served(world, 30) == ["busy"] * 30
    flood(world, "idle", 60)
    assert served(world, 60) == ["busy", "idle"] * 30


def test_who_floods_loses_its_excess_and_nothing_more(world: World) -> None:
    fair(world)
    flood(world, "a", 150)
    flood(world, "b", 3)
    # While others come it has its turn each time, and all of them when nobody does.
    assert served(world, 26) == ["a", "b"] * 3 + ["a"] * 20
    assert served(world, 200) == ["a"] * 127
    # The line was empty: no debt is left, by the time that its jobs took.
    world.clock.advance(150 // 16 + 1)
    flood(world, "b", 5)
    flood(world, "a", 5)
    assert served(world, 10) == ["b", "a"] * 5


@pytest.mark.requirement("FS-21")
def test_a_higher_priority_comes_first_whoever_has_it(world: World) -> None:
    fair(world)
    flood(world, "a", 5)
    flood(world, "b", 3)
    flood(world, "a", 4, priority=10)
    flood(world, "b", 1, priority=-10)
    flood(world, "b", 2, priority=10)
    assert served(world, 15) == ["a", "b"] * 2 + ["a"] * 2 + ["a", "b"] * 3 + ["a"] * 2 + ["b"]


def test_jobs_of_one_tenant_keep_their_order(world: World) -> None:
    fair(world)
    for n in range(4):
        push(world, "a", n)
        push_all(world, [request("ab"[m % 2], n, m) for m in range(6)])
        world.clock.advance(1)
    got = world.fetch(count=100)
    for tenant in ("a", "b"):
        asked = [(job.content or {})["args"] for job in got if whose([job]) == [tenant]]
        assert asked == sorted(asked)
    assert len(got) == 28


def test_jobs_that_name_no_tenant_share_one_turn(world: World) -> None:
    fair(world)
    push_all(world, [request(name) for name in (None, "", None, None)])
    push_all(world, [request(7), request("7"), request("a")])
    assert served(world, 7) == [None, 7, "a", "", "7", None, None]


def test_what_was_pushed_while_it_was_off_and_on_again_is_served(world: World) -> None:
    fair(world)
    flood(world, "a", 5)
    world.run.queues.configure(QUEUE, {"tenant_fairness": {"enabled": False}})
    world.clock.advance(1_000)
    flood(world, "b", 5)
    assert [tagged(place.order) for place in places(world)] == [True] * 5 + [False] * 5
    fair(world)
    flood(world, "c", 5)
    assert Counter(served(world, 100)) == {"a": 5, "b": 5, "c": 5}


def test_a_job_that_waits_for_its_limit_at_the_head_gives_nobody_credit(world: World) -> None:
    """The line goes on behind it: where it is, is told by those that may be handed out."""
    fair(world)
    limit = {"key": "k", "concurrency": 1}
    push(world, "stuck", rate_limit=limit)
    (running,) = world.fetch()
    push(world, "stuck", rate_limit=limit)
    flood(world, "a", 100)
    assert served(world, 80) == ["a"] * 80
    flood(world, "b", 30)
    assert served(world, 40) == ["a", "b"] * 20
    world.run.finish.ack(running.id)


def test_a_line_of_limited_jobs_has_come_to_the_last_that_is_read(world: World) -> None:
    fair(world)
    for n in range(FRONT + 10):
        push(world, "a", n, rate_limit={"key": str(n), "concurrency": 9})
    virtual = TenantFinishTags(world.run.table).virtual_time(FairLine(QUEUE, 0, 0))
    assert virtual == ticks_of(places(world)[FRONT - 1].order)


def test_many_limited_jobs_of_one_key_are_handed_out_together(exact: World) -> None:
    """By writes of so many permits as an expression of 4 KB can name."""
    fair(exact)
    limit = {"key": "k", "concurrency": 60}
    push_all(exact, [request("ab"[n % 2], n, rate_limit=limit) for n in range(60)])
    written = []
    client = exact.client

    class Watching:
        def __getattr__(self, name: str) -> Any:
            def call(**arguments: Any) -> Any:
                written.append(len(arguments.get("UpdateExpression", "")))
                return getattr(client, name)(**arguments)

            return call

    run = exact.another(Watching())
    got = run.fetch.fetch([QUEUE], 60, "w")
    assert len(got) == 60
    for job in got:
        run.finish.nack(job.id, error=None, requeue=True)
    assert 1_000 < max(written) < 4_096
    assert len(run.fetch.fetch([QUEUE], 60, "w")) == 60


@pytest.mark.parametrize("behind", [0, 10])
def test_an_index_that_is_late_gives_who_comes_the_turns_it_missed(
    exact: World, behind: int
) -> None:
    fair(exact)
    flood(exact, "a", 60)
    served(exact, 20 - behind)
    virtual = TenantFinishTags(exact.run.table).virtual_time(FairLine(QUEUE, 0, 0))
    served(exact, behind)
    with mock.patch.object(TenantFinishTags, "virtual_time", return_value=virtual):
        flood(exact, "b", 30)
    order = served(exact, 20 + behind)
    assert order[: behind + 2].count("b") >= behind
    assert order.count("b") == behind + 10


def test_an_index_that_does_not_show_a_line_yet_puts_who_comes_where_it_begins(
    exact: World,
) -> None:
    fair(exact)
    flood(exact, "a", 30)
    with mock.patch.object(TenantFinishTags, "virtual_time", return_value=None):
        flood(exact, "b", 30)
    assert served(exact, 40) == ["a", "b"] * 20


# --- what tells age -------------------------------------------------------------------------------


def test_what_is_oldest_is_told_by_arrival(world: World) -> None:
    fair(world, weights={"tenant:b": 1_000})
    flood(world, "a", 30)
    since_ms = world.clock.now_ms()
    served(world, 1)
    world.clock.advance(1_000)
    flood(world, "b", 30)
    # All of b's stand before a's, which have waited for longer.
    assert min(places(world)[:30], key=lambda p: p.order).order < places(world)[-1].order
    store = stats_store.StatisticsStore(world.run.table)
    queue = world.run.queues.get(QUEUE)
    found = store.oldest(queue, probes=10)
    assert (found.ms, found.sure) == (since_ms, True)
    assert store.oldest(queue, probes=1).sure is False
    oldest = world.run.enqueue._jobs.index.oldest(QUEUE, 1, limit=3)
    assert whose(world.run.jobs.get(job_id) for job_id in oldest) == ["a"] * 3
    stats = world.run.stats.queue(QUEUE)
    assert stats.oldest_available_ms == since_ms


def test_the_oldest_gives_way_in_a_full_queue(world: World) -> None:
    fair(world)
    world.run.queues.configure(QUEUE, {"max_size": 3, "overflow_policy": "drop_oldest"})
    flood(world, "a", 2)
    world.clock.advance(1_000)
    flood(world, "b", 1)
    flood(world, "c", 1)
    got = world.fetch(count=9)
    assert sorted((whose([job])[0], (job.content or {})["args"][0]) for job in got) == [
        ("a", 1), ("b", 0), ("c", 0),
    ]  # fmt: skip


# --- every way into the line ----------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_whatever_enters_a_fair_line_has_a_tag_and_a_share(exact: World, way: Any) -> None:
    fair(exact)
    way(exact)
    line = places(exact)
    assert line, "nothing came into the line"
    assert all(tagged(place.order) for place in line)
    assert all(job.share is not None for job in job_records(exact))
    # When it came is known all the same.
    for job in job_records(exact):
        if job.order is not None:
            assert int(arrival(job.order)[:11], 16) == job.enqueued_ms


# What is due is not put in line first there.
@pytest.mark.parametrize(
    "way", [way for way in WAYS if way is not due_by_fetch], ids=lambda way: way.__name__
)
def test_in_a_queue_that_is_not_fair_nothing_of_it_is_seen(exact: World, way: Any) -> None:
    fair(exact, queue="plain")
    way(exact)
    assert places(exact)
    assert not any(tagged(place.order) for place in places(exact))
    assert {job.share for job in job_records(exact)} == {None}


def test_a_retry_pays_for_its_turn(world: World) -> None:
    fair(world)
    flood(world, "a", 3)
    flood(world, "b", 3)
    job, *_ = world.fetch()
    before = end(world, "a")
    world.run.finish.nack(job.id, error=None, requeue=True)
    assert end(world, "a") == before + STEP
    assert served(world, 9) == ["b", "a", "b", "a", "b", "a"]


def test_a_job_that_nobody_takes_does_not_stand_before_all_others(world: World) -> None:
    fair(world)
    flood(world, "a", 1)
    flood(world, "b", 3)
    seen = []
    for _ in range(4):
        (job,) = world.fetch()
        seen += whose([job])
        if seen[-1] == "a":
            world.run.finish.nack(job.id, error=None, requeue=True)
    assert seen.count("b") >= 2


# --- many at once, and what dies ------------------------------------------------------------------


def test_two_containers_that_push_for_one_tenant_at_once_get_different_tags(exact: World) -> None:
    fair(exact)
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        run = exact.another()
        barrier.wait()
        for n in range(10):
            push(exact, "a", number, n, run=run)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result()
    tags = [ticks_of(place.order) for place in places(exact)]
    assert len(tags) == len(set(tags)) == 80
    # Each took one step, none twice.
    assert end(exact, "a") - min(tags) == 80 * STEP
    assert [tag - min(tags) for tag in tags] == [n * STEP for n in range(80)]


def test_many_tenants_at_once_are_served_in_turns(exact: World) -> None:
    fair(exact)
    flood(exact, "flood", 300)

    def work(number: int) -> None:
        run = exact.another()
        for n in range(5):
            push(exact, f"t{number}", n, run=run)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result()
    got = Counter(served(exact, 45))
    assert got == Counter({"flood": 5} | {f"t{number}": 5 for number in range(8)})


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", ["one", "batch"])
def test_a_push_that_dies_anywhere_loses_nothing_but_turns(exact: World, size: str) -> None:
    fair(exact)
    push(exact, "a")
    drain(exact)
    for run, _ in faults(exact):
        run.enqueue._placement._remember([exact.run.queues.get(QUEUE)])
        chosen = [exact.run.ids.uuid7() for _ in range(1 if size == "one" else 3)]
        bodies = [
            {"type": "a", "args": [], "id": one, "meta": {"tenant_id": "ab"[n % 2]}}
            for n, one in enumerate(chosen)
        ]
        requests = [envelope.parse(body) for body in bodies]
        act = partial(run.enqueue.push_batch, requests)
        if attempt(act) is None:
            with suppress(Duplicate):
                exact.run.enqueue.push_batch(requests)
        assert all(tagged(place.order) for place in places(exact))
        assert sorted(job.id for job in drain(exact)) == sorted(chosen)
    assert orphans(exact) == []


def test_a_push_that_dies_after_its_turn_was_taken_costs_its_tenant_that_turn(exact: World) -> None:
    fair(exact)
    push(exact, "a")
    before = end(exact, "a")
    with (
        mock.patch.object(type(exact.run.enqueue._jobs), "create", side_effect=Died),
        pytest.raises(Died),
    ):
        push(exact, "a")
    assert end(exact, "a") == before + STEP
    push(exact, "a")
    assert len(places(exact)) == 2
    assert ticks_of(places(exact)[1].order) == before + STEP


@pytest.mark.parametrize("seen", ["new", "known"])
def test_a_turn_whose_answer_was_lost_is_taken_once_more(exact: World, seen: str) -> None:
    fair(exact)
    if seen == "known":
        push(exact, "a")
    client = Meddled(exact.client, "update_item", lambda: None)
    job = push(exact, "a", run=exact.another(client))
    assert client.happened
    assert job.order is not None
    before = ticks_at(exact.clock.now_ms()) + (STEP if seen == "known" else 0)
    assert ticks_of(job.order) == before + STEP
    assert end(exact, "a") == before + 2 * STEP


def test_who_loses_the_first_write_of_a_tenant_comes_after_the_winner(exact: World) -> None:
    fair(exact)
    advance = TenantFinishTags.advance

    def late(self: TenantFinishTags, *arguments: Any, **more: Any) -> int:
        with mock.patch.object(TenantFinishTags, "advance", advance):
            push(exact, "a", "winner")
        return advance(self, *arguments, **more)

    run = exact.another()
    with mock.patch.object(TenantFinishTags, "advance", late):
        push(exact, "a", "loser", run=run)
    assert [(job.content or {})["args"] for job in exact.fetch(count=2)] == [["winner"], ["loser"]]


def test_a_tenant_that_is_forgotten_begins_where_the_line_is(exact: World) -> None:
    """What was read is gone when it is written: the table removed it meanwhile."""
    line, tenants = FairLine(QUEUE, 0, 0), TenantFinishTags(exact.run.table)
    key = line.key_of("a" * 12)
    assert tenants.advance(key, STEP, virtual=500, seen=900, now_ms=0) == 500
    assert tenants.advance(key, STEP, virtual=500, seen=500 + STEP, now_ms=0) == 500 + STEP
    # Nothing is taken for granted: what another left counts.
    assert tenants.advance(key, STEP, virtual=500, seen=None, now_ms=0) == 500 + 2 * STEP


def test_a_tenant_s_item_goes_a_month_after_its_last_job(exact: World) -> None:
    fair(exact)
    for _ in range(2):
        push(exact, "a")
        exact.clock.advance(86_400_000)
    (found,) = [item for item in exact.items() if item["pk"]["S"].startswith("F|default|")]
    assert int(found["ttl"]["N"]) == exact.clock.now_ms() // 1_000 + 29 * 86_400


# --- what it costs --------------------------------------------------------------------------------


def one(tenant: str, *, size: int = 460) -> envelope.JobRequest:
    return envelope.parse(
        {
            "type": "email.send",
            "args": [incompressible(size)],
            "meta": {"tenant_id": tenant},
            "options": {"retry": RETRY},
        }
    )


def test_a_push_costs_one_write_more_in_a_fair_queue(exact: World) -> None:
    warm(exact)
    with spending(exact) as plain:
        exact.run.enqueue.push(one("a"))
    fair(exact)
    # As in steady operation: the container knows the queue.
    exact.run.enqueue.push(one("a"))
    for tenant in ("a", "new"):
        with spending(exact) as spent:
            exact.run.enqueue.push(one(tenant))
        assert spent.writes == plain.writes + 1
        assert (plain.calls, spent.calls) == (2, 4)
        assert spent.reads <= plain.reads + 1.5
        assert exact.run.table.meter.calls == [
            "BatchGetItem", "Query", "UpdateItem", "PutItem",
        ]  # fmt: skip


def test_a_container_that_does_not_know_the_queue_reads_the_tenant_after_it(exact: World) -> None:
    fair(exact)
    push(exact, "a")
    run = exact.another()
    push(exact, "a", run=run)
    assert run.table.meter.calls == ["GetItem", "BatchGetItem", "Query", "UpdateItem", "PutItem"]


def test_fetch_and_ack_cost_what_they_do_elsewhere(exact: World) -> None:
    def a_life(world: World) -> list[tuple[int, float, float]]:
        steps = []
        with spending(world) as fetching:
            (job,) = world.fetch()
        with spending(world) as acking:
            world.run.finish.ack(job.id, worker_id=job.worker_id)
        steps += [(s.calls, s.writes, s.reads) for s in (fetching, acking)]
        return steps

    warm(exact)
    exact.run.enqueue.push(one("a"))
    plain = a_life(exact)
    fair(exact)
    exact.run.enqueue.push(one("a"))
    assert a_life(exact) == plain


def test_a_batch_costs_one_write_more_for_each_tenant(exact: World) -> None:
    warm(exact)
    stage_once(exact)
    batch = [one("abcd"[n % 4]) for n in range(40)]
    with spending(exact) as plain:
        exact.run.enqueue.push_batch(batch)
    fair(exact)
    exact.run.enqueue.push_batch(batch)
    with spending(exact) as spent:
        exact.run.enqueue.push_batch(batch)
    assert spent.writes == plain.writes + 4
    assert spent.calls == plain.calls + 5


def test_what_does_not_stand_in_line_costs_nothing_more(exact: World) -> None:
    warm(exact)
    # The first one notes the line for the interval in which it is due.
    exact.push(scheduled_at="+PT1H")
    with spending(exact) as plain:
        exact.push(scheduled_at="+PT1H")
    fair(exact)
    exact.push(scheduled_at="+PT1H")
    with spending(exact) as spent:
        exact.push(scheduled_at="+PT1H")
    assert (spent.calls, spent.writes, spent.reads) == (plain.calls, plain.writes, plain.reads)


def test_a_record_stays_within_a_write_unit_through_its_life(exact: World) -> None:
    """The largest content that is kept on the head of a limited job with a share."""
    limit = {"key": "k" * 20, "concurrency": 5}
    exact.run.queues.configure(QUEUE, {"default_retry": {"max_attempts": 9}})
    fair(exact, default_weight=777)
    for size in range(250, 620, 10):
        job = push(exact, "a", "x" * size, rate_limit=limit, retry=RETRY)
        whole = exact.run.jobs.get(job.id)
        if whole.content_ref is not None:
            break
        (got,) = exact.fetch()
        with spending(exact) as spent:
            exact.run.finish.nack(got.id, error={"code": "x", "message": "x"})
        # The error, the index entry that goes and the one that comes, and the job record: one unit.
        assert spent.writes <= 5, size
        exact.run.jobs.cancel(got.id)
    assert size > 260


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_a_push_whose_turn_cannot_be_taken_stores_nothing_and_takes_no_room(
    exact: World, count: int, unique: bool
) -> None:
    exact.run.queues.configure(QUEUE, {"max_size": 9})
    fair(exact)
    told = {"unique": {"keys": ["args"]}} if unique else {}
    requests = [request("a", n, **told) for n in range(count)]
    run = exact.run.enqueue
    with (
        mock.patch.object(TenantFinishTags, "advance", side_effect=BackendUnavailable("busy")),
        pytest.raises(BackendError),
    ):
        run.push(requests[0]) if count == 1 else run.push_batch(requests)
    assert places(exact) == []
    assert exact.run.stores.depth.value(QUEUE).count == 0
