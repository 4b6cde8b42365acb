"""Worker pools under many fetchers at once, and under death: on dynoxide, whose writes are atomic.

No job is given out twice, and what is promised of pools holds when fetchers come together. Shares
over 10 000 dispatches are measured for docs/performance.md.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.job import envelope
from ojs.domain.pool.pool import pool_semaphore, worker_semaphore
from ojs.store.jobs import items
from ojs.store.permits.semaphore import GONE_MS
from ojs.store.table import keys
from ojs.store.table.table import MAX_BATCH_WRITE
from tests.spread import spread
from tests.store.faults import attempt, faults
from tests.store.permits import taken as taken_of
from tests.store.worker_pools import SECOND, fill, pool, prevent, taken

if TYPE_CHECKING:
    from tests.store.conftest import World

FETCHERS = 16
SHARES = {"a": 5, "b": 3, "c": 1}


def stock(world: World, queue: str, count: int) -> None:
    """So many available jobs, written as a push writes them but many at a time."""
    (pushed,) = world.run.enqueue.push_batch(
        [envelope.parse({"type": "test.job", "args": [], "options": {"queue": queue}})]
    )
    record = items.record_of(pushed.job)
    records = []
    for _ in range(count - 1):
        position = keys.Position(0, world.run.ids.order()).key()
        records.append({**record, "pk": keys.job(world.run.ids.uuid7()), "wsk": position})
    assert len(records) >= MAX_BATCH_WRITE
    world.run.table.write_many(puts=records)


def together(world: World, dispatches: int, *, count: int = 1) -> list[tuple[int, str]]:
    """Have 16 containers fetch so many jobs in all: the turn it was and the queue, in the order in
    which the turns were drawn.
    """
    served: list[tuple[int, str]] = []
    seen: set[str] = set()
    left = [dispatches]
    lock = threading.Lock()

    def work(number: int) -> None:
        mine = world.another()
        while True:
            with lock:
                wanted = min(count, left[0])
                left[0] -= wanted
            if not wanted:
                return
            jobs = mine.fetch.fetch(None, wanted, f"w{number}", pool="p")
            with lock:
                # A fetch that lost many claims to others ends with what it has.
                left[0] += wanted - len(jobs)
                served.extend((len(served), job.queue) for job in jobs)
                # The backend alone decides, and no job is given out twice.
                assert seen.isdisjoint(job.id for job in jobs)
                seen.update(job.id for job in jobs)

    with ThreadPoolExecutor(FETCHERS) as threads:
        for done in [threads.submit(work, number) for number in range(FETCHERS)]:
            done.result()
    return served


@pytest.mark.requirement("FS-15")
@pytest.mark.parametrize(
    ("count", "dispatches"), spread([(1, 270), (1, 900), (10, 1_800)], 3, rest=2)
)
def test_weights_are_kept_by_many_together(exact: World, count: int, dispatches: int) -> None:
    """Every share is within 2 % of its nominal one, or two jobs, for single and batched fetches.

    Ten thousand dispatches are measured for docs/performance.md (`tests/performance/measure.py`).
    """
    pool(exact, strategy="weighted", weights=SHARES)
    for queue, weight in SHARES.items():
        stock(exact, queue, dispatches * weight // 9 + 200)
    found = Counter(queue for _, queue in together(exact, dispatches, count=count))
    for queue, weight in SHARES.items():
        nominal = dispatches * weight / 9
        assert abs(found[queue] - nominal) <= max(2, 0.02 * nominal), found


@pytest.mark.requirement("FS-1", "FS-2", "FS-3", "FS-13")
def test_round_robin_by_many_is_exact(exact: World) -> None:
    """After any number of whole cycles every queue was served equally often."""
    pool(exact)
    for queue in SHARES:
        stock(exact, queue, 100)
    found = Counter(queue for _, queue in together(exact, 90))
    assert max(found.values()) - min(found.values()) <= 1, found


@pytest.mark.exhaustive
@pytest.mark.requirement("FS-18")
def test_no_window_is_below_the_guaranteed_part(exact: World) -> None:
    """Under strict with two queues that would starve, whoever fetches, one or ten at once.

    Fetchers under way at one time end in another order than they had their turns: that is what the
    margin of a frame is for.
    """
    pool(exact, strategy="strict", **prevent(0.1))
    stock(exact, "a", 1_300)
    stock(exact, "b", 300)
    stock(exact, "c", 300)
    order = [queue for _, queue in together(exact, 1_200)]
    for width in (400, 800, 1_200):
        for start in range(0, len(order) - width + 1, 7):
            window = Counter(order[start : start + width])
            assert min(window[queue] for queue in SHARES) >= int(width * 0.1), (start, window)
    assert Counter(order)["a"] >= 800


@pytest.mark.requirement("FS-8")
def test_a_pools_limit_holds_for_all_fetchers_together(exact: World) -> None:
    """16 containers that want more than there are permits never run more than there are."""
    pool(exact, concurrency=25)
    for queue in SHARES:
        stock(exact, queue, 200)
    running: set[str] = set()
    most = [0]
    lock = threading.Lock()

    def work(number: int) -> None:
        mine = exact.another()
        for _ in range(2):
            jobs = mine.fetch.fetch(None, 4, f"w{number}", pool="p")
            with lock:
                running.update(job.id for job in jobs)
                most[0] = max(most[0], len(running))
            for job in jobs:
                with lock:
                    running.discard(job.id)
                mine.finish.ack(job.id, worker_id=f"w{number}")

    with ThreadPoolExecutor(FETCHERS) as threads:
        for done in [threads.submit(work, number) for number in range(FETCHERS)]:
            done.result()
    assert 0 < most[0] <= 25
    assert taken(exact) == 0


@pytest.mark.requirement("FS-14")
def test_a_worker_is_given_no_more_than_it_can_take_however_it_asks(exact: World) -> None:
    """Ten fetches of one worker at once."""
    pool(exact, strategy="least-loaded")
    exact.run.workers.register("w", {"concurrency": 7}, "p")
    for queue in SHARES:
        stock(exact, queue, 50)
    with ThreadPoolExecutor(10) as threads:
        asked = [
            threads.submit(exact.another().fetch.fetch, None, 3, "w", pool="p") for _ in range(10)
        ]
        assert sum(len(each.result()) for each in asked) == 7


# --- death ----------------------------------------------------------------------------------


def sweep(world: World) -> Counter[str]:
    """Two looks at the pools' permits, each after all that was under way is over."""
    counts: Counter[str] = Counter()
    for _ in range(3):
        world.clock.advance(2 * GONE_MS + SECOND)
        counts.update(world.run.pool_permit_sweep.run_once(world.clock.now_ms(), 2_000))
    return counts


@pytest.mark.exhaustive
@pytest.mark.requirement("FS-1", "FS-8")
@pytest.mark.parametrize("config", [{"concurrency": 3}, {"strategy": "least-loaded"}])
def test_whoever_dies_in_a_fetch_loses_no_job_and_no_permit_for_good(
    exact: World, config: dict[str, Any]
) -> None:
    """At each call, before it and after it took effect; permits come back."""
    for number, (run, _) in enumerate(faults(exact)):
        name, queue, worker = f"p{number}", f"q{number}", f"w{number}"
        pool(exact, name, [queue, f"{queue}x"], **config)
        exact.run.workers.register(worker, {"concurrency": 3}, name)
        fill(exact, queue, 2)
        attempt(partial(run.fetch.fetch, None, 2, worker, pool=name))
        # What it had claimed comes back when its lease is over, and what it had taken with it.
        exact.clock.advance(2_000 * SECOND)
        exact.sweep()
        sweep(exact)
        semaphores = [pool_semaphore(name), worker_semaphore(name, worker)]
        assert [taken_of(exact.run, each) for each in semaphores] == [0, 0]
        jobs = exact.run.fetch.fetch(None, 3, worker, pool=name)
        assert len(jobs) == 2
        for job in jobs:
            exact.run.finish.ack(job.id, worker_id=worker)
        assert [taken_of(exact.run, each) for each in semaphores] == [0, 0]
        exact.run.pools.delete(name)


@pytest.mark.exhaustive
@pytest.mark.requirement("FS-11", "FS-23")
def test_whoever_dies_changing_a_pool_leaves_it_as_it_was_or_is_to_be(exact: World) -> None:
    """What a pool says of its queues and they of it is the same at any time."""
    for number, (run, _) in enumerate(faults(exact)):
        name, queues = f"p{number}", [f"a{number}", f"b{number}", f"c{number}"]
        pool(exact, name, queues[:2])
        fill(exact, queues[0], 1)
        exact.run.fetch.fetch(None, 1, f"w{number}", pool=name)
        for act in (
            partial(
                run.pools.put, name, {"queues": queues[1:], "isolated": True, "concurrency": 1}
            ),
            partial(run.pools.delete, name),
        ):
            attempt(act)
            there = {each.name: each for each in exact.run.pools.list(limit=200).items}
            found, _ = exact.run.stores.queues.get_many(queues)
            listed = set(there[name].queues) if name in there else set()
            assert {each for each, queue in found.items() if name in queue.pools} == listed
            isolated = name in there and there[name].isolated
            assert all(
                (q.isolated_by == name) == (isolated and n in listed) for n, q in found.items()
            )
        if name in there:
            exact.run.pools.delete(name)


@pytest.mark.requirement("FS-8")
def test_a_limit_set_while_fetches_are_under_way_holds(exact: World) -> None:
    """Whoever read the pool as it was before claims beyond the limit for a moment at most;
    what it claims counts.
    """
    pool(exact, queues=["a"])
    fill(exact, "a", 9)
    run = exact.another()
    draws = []

    def meanwhile(seconds: float) -> None:
        # In the time that the operator's request waits.
        draws.append(seconds)

    late = run.fetch._membership
    read = late.read(None, "w", "p")
    exact.run.sleep = meanwhile
    with mock.patch.object(late, "read", return_value=read):
        operator = threading.Thread(
            target=pool, args=(exact,), kwargs={"queues": ["a"], "concurrency": 2}
        )
        operator.start()
        assert len(run.fetch.fetch(None, 3, "w", pool="p")) == 3
        operator.join()
    sweep(exact)
    exact.clock.advance(-3 * (2 * GONE_MS + SECOND))
    assert taken(exact) == 3
    assert run.fetch.fetch(None, 3, "w", pool="p") == []
