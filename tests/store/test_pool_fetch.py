"""Worker pools: which queue a fetch is served from, and who may be served at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import Conflict, InvalidRequest
from ojs.domain.job import envelope
from ojs.domain.pool.pool import parse, worker_semaphore
from ojs.services.permits.kinds import WORKER_KEPT_S
from ojs.store.table import keys
from ojs.store.table.table import Put
from tests.store.permits import taken as taken_of
from tests.store.worker_pools import ABC, SECOND, fill, pool, prevent, taken

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from ojs.runtime import Runtime
    from tests.store.conftest import World


def fetch(
    world: World,
    count: int = 1,
    *,
    by: Runtime | None = None,
    of: str | None = "p",
    queues: Sequence[str] | None = ABC,
    worker: str = "w",
    **wishes: Any,
) -> list[Job]:
    """Fetch as a worker of a pool."""
    return (by or world.run).fetch.fetch(queues, count, worker, pool=of, **wishes)


def served(world: World, turns: int, **how: Any) -> str:
    """The queues that fetches of one job are served from, in order."""
    return "".join(job.queue for _ in range(turns) for job in fetch(world, **how))


@pytest.mark.requirement("FS-8", "FS-13", "FS-27")
def test_round_robin_takes_one_of_each_in_turn(world: World) -> None:
    """Round-robin is the default; one from each queue in each cycle, however deep."""
    pool(world)
    for queue, count in zip(ABC, (30, 2, 9), strict=True):
        fill(world, queue, count)
    assert served(world, 6) == "abcabc"
    # b is empty from here on: its turns go to the others, as evenly.
    assert Counter(served(world, 12)) == {"a": 6, "c": 6}


@pytest.mark.requirement("FS-13")
def test_a_batch_has_as_many_turns_as_jobs(world: World) -> None:
    """The same by many jobs at once, and over a number that is no multiple of the queues."""
    pool(world)
    for queue in ABC:
        fill(world, queue, 20)
    first = [job.queue for job in fetch(world, 4)]
    assert first == ["a", "b", "c", "a"]
    assert [job.queue for job in fetch(world, 5)] == ["b", "c", "a", "b", "c"]


@pytest.mark.requirement("FS-4")
def test_containers_keep_the_order_together(world: World) -> None:
    """Whose turn it is does not depend on who is asked."""
    pool(world)
    for queue in ABC:
        fill(world, queue, 10)
    others = [world.another() for _ in range(4)]
    assert "".join(fetch(world, by=other)[0].queue for other in others) == "abca"
    assert [job.queue for job in fetch(world, 3)] == ["b", "c", "a"]


@pytest.mark.requirement("FS-15", "FS-16", "FS-28")
def test_weights_are_kept(world: World) -> None:
    """In proportion, as evenly as can be, and each queue soon."""
    pool(world, strategy="weighted", weights={"a": 3, "b": 2, "c": 1})
    for queue in ABC:
        fill(world, queue, 40)
    order = served(world, 12) + "".join(job.queue for job in fetch(world, 12))
    for start in range(0, 24, 6):
        assert Counter(order[start : start + 6]) == {"a": 3, "b": 2, "c": 1}
    assert "aaa" not in order
    assert "bb" not in order


@pytest.mark.requirement("FS-23")
def test_weights_may_stand_with_the_queues(world: World) -> None:
    """The suite's form of a pool."""
    pool(world, queues={"a": {"weight": 1}, "b": {"weight": 4}})
    fill(world, "a", 10)
    fill(world, "b", 20)
    assert Counter(served(world, 15, queues=None)) == {"a": 3, "b": 12}


@pytest.mark.requirement("FS-7", "FS-8")
def test_strict_empties_the_first_before_the_next(world: World) -> None:
    """Also what is due in it comes before anything of the next."""
    pool(world, strategy="strict")
    fill(world, "a", 2)
    fill(world, "b", 3)
    world.run.enqueue.push(
        envelope.parse(
            {"type": "test.job", "args": [], "options": {"queue": "a", "delay_until": "+PT1S"}}
        )
    )
    world.clock.advance(2 * SECOND)
    assert served(world, 6) == "aaabbb"


@pytest.mark.requirement("FS-13")
def test_paused_and_empty_queues_are_passed_over(world: World) -> None:
    """And have their turn again as soon as there is something, with no credit for before."""
    pool(world)
    fill(world, "a", 40)
    fill(world, "b", 40)
    world.run.queues.pause("b")
    assert set(served(world, 8)) == {"a"}
    world.run.queues.resume("b")
    fill(world, "c", 10)
    order = served(world, 9)
    assert Counter(order) == {"a": 3, "b": 3, "c": 3}
    assert "bbb" not in order


@pytest.mark.requirement("FS-6")
@pytest.mark.parametrize("strategy", ["round-robin", "strict", "weighted", "least-loaded"])
def test_a_pool_overrides_what_a_worker_wishes(world: World, strategy: str) -> None:
    """Strategy, weights and order are the pool's."""
    pool(world, strategy="strict", queues="ba")
    fill(world, "a", 4)
    fill(world, "b", 4)
    weights = {"a": 9, "b": 1} if strategy == "weighted" else None
    order = served(world, 8, queues=["a", "b"], strategy=strategy, weights=weights)
    assert order == "bbbbaaaa"


@pytest.mark.requirement("FS-6")
def test_a_worker_may_narrow_its_pool_and_not_widen_it(world: World) -> None:
    """What it does not ask for it does not get; what the pool has not, neither."""
    pool(world, queues="ab")
    for queue in ABC:
        fill(world, queue, 2)
    assert served(world, 3, queues=["a"]) == "aa"
    assert fetch(world, queues=["c"]) == []
    assert served(world, 3, queues=["c", "b"]) == "bb"


@pytest.mark.requirement("FS-6")
def test_without_queues_all_of_the_pool(world: World) -> None:
    """A worker of a pool need not know which queues that has."""
    pool(world)
    fill(world, "c", 1)
    assert [job.queue for job in fetch(world, queues=None)] == ["c"]
    with pytest.raises(InvalidRequest) as refused:
        fetch(world, queues=None, of="unknown", worker="other")
    assert refused.value.field == "queues"


@pytest.mark.requirement("FS-5")
def test_wishes_hold_where_no_pool_is_configured(world: World) -> None:
    """Strategy and weights of a fetch, or of the worker's registration."""
    for queue in ABC:
        fill(world, queue, 60)
    weights = {"a": 5, "b": 2, "c": 1}
    order = served(world, 8, of=None, strategy="weighted", weights=weights)
    assert Counter(order) == weights
    assert served(world, 3, of=None, strategy="strict") == "aaa"
    world.run.workers.register("r", {"strategy": "weighted", "weights": weights})
    assert Counter(served(world, 8, of=None, worker="r")) == weights
    fill(world, "b", 60)
    assert served(world, 2, of=None, strategy="least-loaded") == "bb"


# --- membership -----------------------------------------------------------------------------------


@pytest.mark.requirement("FS-9", "FS-10")
def test_a_worker_belongs_to_one_pool(world: World) -> None:
    """Said at registration, by a fetch or a beat; a second one is a conflict."""
    pool(world)
    pool(world, "q", ["b"])
    fill(world, "a", 3)
    fill(world, "b", 3)
    workers = world.run.workers
    workers.register("w", {}, "p")
    for say in (
        lambda: fetch(world, of="q"),
        lambda: workers.beat("w", pool="q"),
        lambda: workers.drain("w", state="quiet", pool="q"),
        lambda: workers.register("w", {}, "q"),
    ):
        with pytest.raises(Conflict) as refused:
            say()
        assert refused.value.details["field"] == "pool"
        assert refused.value.details["pool"] == "p"
    assert workers.get("w").pool == "p"
    assert workers.get("w").may_fetch
    # It need not say so again.
    assert served(world, 2, of=None, queues=["a", "b", "x"]) == "ab"
    # Another container, which has not heard of it, sees the same.
    assert [job.queue for job in fetch(world, by=world.another(), of=None)] == ["a"]


@pytest.mark.requirement("FS-9")
def test_a_fetch_or_a_beat_may_say_it_first(world: World) -> None:
    """A worker that never registered is known from then on."""
    pool(world)
    pool(world, "q", ["b"])
    fetch(world, worker="f")
    world.run.workers.beat("h", pool="q")
    assert world.run.workers.get("f").pool == "p"
    with pytest.raises(Conflict):
        fetch(world, worker="f", of="q", by=world.another())
    with pytest.raises(Conflict):
        fetch(world, worker="h", of="p", by=world.another())


@pytest.mark.requirement("FS-10")
def test_a_worker_that_was_not_heard_of_lately_may_come_back_in_another_pool(world: World) -> None:
    """A process with a fixed name that was moved; or at once, when it signed off."""
    pool(world)
    pool(world, "q", ["b"])
    world.run.workers.register("w", {}, "p")
    world.clock.advance(31 * SECOND)
    assert world.run.workers.register("w", {}, "q").pool == "q"
    world.run.workers.remove("w")
    assert world.run.workers.register("w", {}, "p").pool == "p"


@pytest.mark.requirement("FS-10")
def test_an_extended_job_is_not_extended_for_the_wrong_pool(world: World) -> None:
    """What is refused does nothing."""
    pool(world)
    fill(world, "a", 1)
    (job,) = fetch(world)
    world.clock.advance(SECOND)
    with pytest.raises(Conflict):
        world.run.workers.beat("w", active_jobs=[job.id], pool="q")
    after = world.run.jobs.get(job.id)
    assert after.lease is not None
    assert job.lease is not None
    assert after.lease.until_ms == job.lease.until_ms


@pytest.mark.requirement("FS-10")
def test_workers_without_a_pool_are_of_the_default_one(world: World) -> None:
    """Which is configured like any other."""
    pool(world, "default", "ba", strategy="strict")
    for queue in ABC:
        fill(world, queue, 2)
    assert served(world, 5, of=None, queues=ABC) == "bbaa"
    assert served(world, 2, of=None, queues=["c"]) == "cc"
    fill(world, "a", 1)
    assert served(world, 2, of="default", queues=None, worker="d") == "a"


# --- isolation ------------------------------------------------------------------------------------


@pytest.mark.requirement("FS-11", "FS-12", "FS-28")
def test_isolated_queues_are_for_their_pool_alone(world: World) -> None:
    """Nobody outside gets anything of them; of others anybody may."""
    pool(world, "gpu", ["g"], isolated=True)
    pool(world, "p", ["a"])
    fill(world, "g", 3)
    fill(world, "a", 3)
    assert fetch(world, of=None, queues=["g"], worker="x") == []
    assert served(world, 2, of=None, queues=["g", "a"], worker="x") == "aa"
    assert fetch(world, of="p", queues=["g"], worker="y") == []
    assert fetch(world, of="unknown", queues=["g"], worker="z") == []
    assert served(world, 3, of="gpu", queues=None, worker="v") == "ggg"
    fill(world, "g", 1)
    world.run.pools.delete("gpu")
    assert served(world, 1, of=None, queues=["g"], worker="x") == "g"


@pytest.mark.requirement("FS-11")
def test_a_queue_is_isolated_by_one_pool(world: World) -> None:
    """And is then in no other; nothing is stored of what is refused."""
    pool(world, "gpu", ["g"], isolated=True)
    for config in ({"queues": ["a", "g"]}, {"queues": ["a", "g"], "isolated": True}):
        with pytest.raises(Conflict) as refused:
            world.run.pools.put("other", config)
        assert refused.value.details["field"] == "queues[1]"
        assert refused.value.details["pools"] == ["gpu"]
    pool(world, "p", ["a"])
    with pytest.raises(Conflict) as refused:
        world.run.pools.put("q", {"queues": ["a"], "isolated": True})
    assert refused.value.details["field"] == "queues[0]"
    assert [each.name for each in world.run.pools.list(limit=10).items] == ["gpu", "p"]


@pytest.mark.requirement("FS-11")
def test_a_queue_of_a_pool_cannot_be_deleted(world: World) -> None:
    """What a pool serves is there; taken out of it, the queue may go."""
    pool(world)
    with pytest.raises(Conflict) as refused:
        world.run.deletion.delete("a", "reject")
    assert refused.value.details["pools"] == ["p"]
    pool(world, queues="bc")
    world.run.deletion.delete("a", "reject")


# --- least-loaded ---------------------------------------------------------------------------------


@pytest.mark.requirement("FS-14")
def test_least_loaded_takes_from_the_deepest_backlog(world: World) -> None:
    """One job at a time or many, it levels the queues."""
    pool(world, strategy="least-loaded")
    for queue, count in zip(ABC, (3, 7, 5), strict=True):
        fill(world, queue, count)
    assert served(world, 3) == "bbb"
    assert Counter(job.queue for job in fetch(world, 6)) == {"a": 1, "b": 2, "c": 3}


@pytest.mark.requirement("FS-14")
def test_least_loaded_knows_deep_backlogs_by_what_is_projected(world: World) -> None:
    """Lines are looked at as far as a page goes; of longer ones the projection tells."""
    pool(world, strategy="least-loaded")
    for queue, count in zip(ABC, (130, 150, 160), strict=True):
        fill(world, queue, count)
        world.run.table.put(Put({"pk": keys.stats(queue), "sk": keys.NOW, "available": count}))
    assert Counter(job.queue for job in fetch(world, 16)) == {"b": 3, "c": 13}
    # As deep as they are by now, and as the index shows once they are not deep any more.
    for queue, count in zip(ABC, (130, 147, 147), strict=True):
        world.run.table.put(Put({"pk": keys.stats(queue), "sk": keys.NOW, "available": count}))
    assert Counter(job.queue for job in fetch(world, 34)) == {"b": 17, "c": 17}


@pytest.mark.requirement("FS-14")
def test_least_loaded_gives_a_worker_no_more_than_it_can_take(world: World) -> None:
    """By what it said of itself; others get the rest."""
    pool(world, strategy="least-loaded")
    fill(world, "a", 10)
    world.run.workers.register("w", {"concurrency": 3}, "p")
    world.run.workers.register("v", {"concurrency": 2}, "p")
    mine = fetch(world, 2)
    assert len(mine) == 2
    assert len(fetch(world, 5)) == 1
    assert fetch(world, by=world.another()) == []
    assert len(fetch(world, 5, worker="v")) == 2
    world.run.finish.ack(mine[0].id, worker_id="w")
    world.run.finish.nack(mine[1].id, worker_id="w", error={"type": "x", "message": "y"})
    assert len(fetch(world, 5)) == 2
    semaphores = [worker_semaphore("p", "w"), worker_semaphore("p", "v")]
    assert [taken_of(world.run, each) for each in semaphores] == [3, 2]
    item = world.run.table.get(keys.counter(semaphores[0]), keys.SEMAPHORE)
    # Names of workers come and go: what is counted for them goes some time after.
    assert item
    assert item["ttl"] == world.clock.now_ms() // 1000 + WORKER_KEPT_S


# --- tenants ------------------------------------------------------------------------------------


def tenants(world: World, queue: str, **counts: int) -> None:
    """So many jobs of each tenant, one tenant after the other."""
    for tenant, count in counts.items():
        request = {
            "type": "test.job",
            "args": [],
            "meta": {"tenant_id": tenant},
            "options": {"queue": queue},
        }
        world.run.enqueue.push_batch([envelope.parse(request)] * count)


def order_of_tenants(jobs: Sequence[Job]) -> str:
    """Whose jobs these are."""
    return "".join((job.content or {})["meta"]["tenant_id"] for job in jobs)


@pytest.mark.requirement("FS-19", "FS-20", "FS-28")
def test_a_pool_has_tenants_share_its_queues(world: World) -> None:
    """Also of jobs that were there before, and until another says otherwise."""
    tenants(world, "a", x=6, y=3)
    pool(world, tenant_fairness={"enabled": True, "weights": {"tenant:z": 2}})
    assert order_of_tenants(fetch(world, 4)) == "xyxy"
    tenants(world, "b", x=4, z=4)
    assert order_of_tenants(fetch(world, 6, queues=["b"])).count("z") == 4
    assert world.run.pools.get("p").tenants["weights"] == {"tenant:z": 2}
    # What a queue says itself counts.
    world.run.queues.configure("c", {"tenant_fairness": {"enabled": False}})
    tenants(world, "c", x=3, y=3)
    assert order_of_tenants(fetch(world, 6, queues=["c"])) == "xxxyyy"
    # Without the pool none of it holds any more.
    pool(world, queues="bc")
    world.clock.advance(SECOND)
    tenants(world, "a", u=3, v=3)
    outside = fetch(world, 99, of=None, queues=["a"], worker="outside")
    assert order_of_tenants(outside).endswith("uuuvvv")


@pytest.mark.requirement("FS-20")
def test_two_pools_cannot_have_tenants_share_a_queue_in_two_ways(world: World) -> None:
    """Of which one would not count."""
    fair = {"enabled": True, "default_weight": 2}
    pool(world, tenant_fairness=fair)
    pool(world, "q", "cd", tenant_fairness=fair)
    with pytest.raises(Conflict) as refused:
        pool(world, "q", "dc", tenant_fairness={"enabled": True})
    assert refused.value.details["field"] == "queues[1]"
    pool(world, "q", "cd")


@pytest.mark.requirement("FS-20")
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ([], "tenant_fairness"),
        ({"enabled": 1}, "tenant_fairness.enabled"),
        ({"strategy": "fifo"}, "tenant_fairness.strategy"),
        ({"weights": {"x": 1}}, "tenant_fairness.weights.x"),
        ({"weights": {"tenant:x": 0}}, "tenant_fairness.weights.tenant:x"),
        ({"default_weight": 1.5}, "tenant_fairness.default_weight"),
    ],
)
def test_wrong_tenant_fairness_of_a_pool_is_refused(given: Any, field: str) -> None:
    """Naming the field."""
    with pytest.raises(InvalidRequest) as refused:
        parse("p", {"queues": ["a"], "tenant_fairness": given})
    assert refused.value.field == field


# --- starvation prevention ------------------------------------------------------------------------


@pytest.mark.requirement("FS-17", "FS-18", "FS-28")
@pytest.mark.parametrize("strategy", ["strict", "weighted", "least-loaded"])
def test_every_queue_has_its_part_of_any_window(world: World, strategy: str) -> None:
    """Of any number of dispatches in a row."""
    weights: Any = {"weights": {"a": 50, "b": 1, "c": 1}} if strategy == "weighted" else {}
    pool(world, strategy=strategy, **weights, **prevent(0.1))
    for queue, count in zip(ABC, (150, 60, 60), strict=True):
        fill(world, queue, count)
    order = "".join(job.queue for _ in range(20) for job in fetch(world, 6))
    for width in (10, 25, 60):
        for start in range(len(order) - width + 1):
            window = Counter(order[start : start + width])
            assert all(window[queue] >= int(width * 0.1) for queue in ABC), (start, window)
    if strategy == "strict":
        assert Counter(order)["a"] > 80


@pytest.mark.requirement("FS-17")
def test_strict_starves_without_prevention(world: World) -> None:
    """What the guarantee is against."""
    pool(world, strategy="strict")
    fill(world, "a", 40)
    fill(world, "b", 5)
    assert Counter(job.queue for job in fetch(world, 30)) == {"a": 30}


@pytest.mark.requirement("FS-17")
def test_each_interval_every_queue_is_served_once(world: World) -> None:
    """However few fetches there are, and though the ratio would not come to it yet."""
    pool(world, strategy="strict", **prevent(0.01, "PT10S"))
    fill(world, "a", 60)
    fill(world, "b", 9)
    # The first of each frame is a's own turn, the next is b's: past them all turns are free.
    fetch(world, 50)
    world.clock.advance(10 * SECOND)
    assert Counter(served(world, 4)) == {"a": 3, "b": 1}
    others = [world.another() for _ in range(3)]
    world.clock.advance(10 * SECOND)
    assert Counter(fetch(world, by=other)[0].queue for other in others) == {"a": 2, "b": 1}
    world.clock.advance(5 * SECOND)
    assert served(world, 1) == "a"


@pytest.mark.requirement("FS-17")
def test_each_interval_every_queue_is_served_once_without_a_ratio(world: World) -> None:
    """Nothing else needs a number there: no ratio, no limit."""
    pool(world, strategy="strict", **prevent(0, "PT10S"))
    fill(world, "a", 60)
    fill(world, "b", 9)
    assert Counter(served(world, 8)) == {"a": 8}
    for _ in range(2):
        world.clock.advance(10 * SECOND)
        assert Counter(served(world, 4)) == {"a": 3, "b": 1}
    others = [world.another() for _ in range(3)]
    world.clock.advance(10 * SECOND)
    assert Counter(fetch(world, by=other)[0].queue for other in others) == {"a": 2, "b": 1}


# --- the limit on running jobs --------------------------------------------------------------------


@pytest.mark.requirement("FS-8", "FS-28")
def test_a_pool_runs_no_more_than_its_concurrency(world: World) -> None:
    """Over all its workers and queues; a job that ends gives its permit to the next."""
    pool(world, concurrency=4)
    for queue in ABC:
        fill(world, queue, 6)
    jobs = [*fetch(world, 3), *fetch(world, 3, worker="v")]
    assert len(jobs) == 4
    assert fetch(world) == []
    assert fetch(world, of=None, worker="outside") != []
    finish = world.run.finish
    finish.ack(jobs[0].id, worker_id="w")
    finish.nack(jobs[1].id, worker_id="w", error={"type": "x", "message": "y"})
    world.run.jobs.cancel(jobs[2].id)
    finish.nack(jobs[3].id, worker_id="v", error=None, requeue=True)
    assert taken(world) == 0
    assert len(fetch(world, 10)) == 4
    world.clock.advance(3_600 * SECOND)
    world.sweep()
    assert taken(world) == 0


@pytest.mark.requirement("FS-8")
def test_a_limit_counts_jobs_that_run_already(world: World) -> None:
    """Set, lowered and lifted while jobs run."""
    pool(world)
    for queue in ABC:
        fill(world, queue, 6)
    jobs = fetch(world, 5)
    pool(world, concurrency=6)
    assert taken(world) == 5
    assert len(fetch(world, 5)) == 1
    pool(world, concurrency=2)
    for job in jobs:
        world.run.finish.ack(job.id, worker_id="w")
    assert taken(world) == 1
    assert len(fetch(world, 5)) == 1
    pool(world)
    assert len(fetch(world, 5)) == 5


@pytest.mark.requirement("FS-8")
def test_a_late_worker_takes_its_permit_again(world: World) -> None:
    """A lease that ran out gave it back; a job that goes on needs one."""
    pool(world, concurrency=1)
    fill(world, "a", 2)
    (job,) = fetch(world, visibility_timeout_ms=SECOND)
    world.clock.advance(2 * SECOND)
    assert world.state(job) == "available"
    assert taken(world) == 0
    beats: Any = {"active_jobs": [job.id], "visibility_timeout_ms": SECOND}
    assert world.run.workers.beat("w", **beats).jobs_extended == [job.id]
    assert taken(world) == 1
    world.clock.advance(2 * SECOND)
    assert world.state(job) == "available"
    (other,) = fetch(world, worker="v")
    # Its permit is another's now.
    if other.id != job.id:
        assert world.run.workers.beat("w", **beats).jobs_extended == []
    assert taken(world) == 1


# --- what it costs --------------------------------------------------------------------------------


def spent(world: World, **how: Any) -> tuple[list[str], float]:
    """Calls and write units of one fetch that hands out a job."""
    world.run.table.meter.reset()
    assert len(fetch(world, how.pop("count", 1), **how)) >= 1
    return list(world.run.table.meter.calls), world.run.table.meter.write_units


@pytest.mark.requirement("FS-6")
def test_a_pool_is_one_write_more(exact: World) -> None:
    """Nothing without a pool, one write call with one, however many
    jobs are fetched; none where there is nothing to keep count of.
    """
    for queue in ABC:
        fill(exact, queue, 100)
    # One from each queue: a container asks once whether a batch is committed.
    fetch(exact, 3, of=None, worker="x")
    without = spent(exact, of=None, worker="x")
    for config, more in (
        ({}, 1),
        ({"strategy": "weighted", "weights": {"a": 5, "b": 3, "c": 1}}, 1),
        ({"concurrency": 300}, 2),
        ({"strategy": "strict"}, 0),
        ({"strategy": "strict", **prevent(0.05)}, 1),
        ({"strategy": "strict", "concurrency": 300}, 1),
    ):
        pool(exact, **config)
        # One from each queue: the first claim with a permit notes the queue's line.
        fetch(exact, 3)
        calls, units = spent(exact)
        # A claim with a permit has no lease note, and leaves an entry in the index for as much.
        noted = "concurrency" not in config
        assert len(calls) == len(without[0]) - 1 + noted + more, (config, calls)
        assert units == without[1] + more
        many, units = spent(exact, count=10)
        # A shard may have fewer than ten permits left: then it is asked again, and another one.
        again = 2 if "concurrency" in config else 0
        assert 0 <= many.count("UpdateItem") - (10 + more) <= again, (config, many)


@pytest.mark.requirement("FS-8")
def test_a_full_pool_writes_nothing(exact: World) -> None:
    """A worker that polls while all permits are taken; leases that are over free them."""
    pool(exact, concurrency=2)
    fill(exact, "a", 5)
    assert len(fetch(exact, 2, visibility_timeout_ms=SECOND)) == 2
    exact.run.table.meter.reset()
    assert fetch(exact) == []
    assert exact.run.table.meter.write_units == 0
    assert len(exact.run.table.meter.calls) == 1 + len(ABC)
    exact.clock.advance(2 * SECOND)
    assert len(fetch(exact, 3)) == 2


@pytest.mark.requirement("FS-6")
def test_an_idle_pool_writes_nothing(exact: World) -> None:
    """A worker that polls costs reads alone."""
    pool(exact, concurrency=5)
    fetch(exact)
    exact.run.table.meter.reset()
    assert fetch(exact) == []
    assert exact.run.table.meter.write_units == 0
    # A read of the queues, and each queue's two lines.
    assert len(exact.run.table.meter.calls) == 1 + 2 * len(ABC)
