"""Many at once, on an engine that is atomic as DynamoDB is."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ojs.domain.errors import Conflict, Duplicate
from ojs.domain.job import envelope

if TYPE_CHECKING:
    from tests.store.conftest import World


@pytest.mark.requirement("FS-1", "FS-2", "FS-27")
@pytest.mark.parametrize(
    ("workers", "count"), [(8, 150), pytest.param(32, 600, marks=pytest.mark.exhaustive)]
)
def test_workers_drain_a_queue_each_job_dispatched_once(
    exact: World, workers: int, count: int
) -> None:
    pushed: set[str] = set()
    for start in (0, count // 2):
        requests = [
            envelope.parse({"type": "a", "args": [n], "queue": "busy"})
            for n in range(start, start + count // 2)
        ]
        pushed |= {item.job.id for item in exact.run.enqueue.push_batch(requests)}
    dispatched: Counter[str] = Counter()
    acked: Counter[str] = Counter()
    lock = threading.Lock()

    def work(number: int) -> None:
        # A container of its own, as Lambda would have it: nothing is shared but the table.
        run = exact.another()
        worker, idle = f"worker-{number}", 0
        while idle < 2:
            jobs = run.fetch.fetch(["busy"], 1 + number % 4, worker)
            idle = 0 if jobs else idle + 1
            for job in jobs:
                with lock:
                    dispatched[job.id] += 1
                run.finish.ack(job.id, worker_id=worker)
                with lock:
                    acked[job.id] += 1

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work, number) for number in range(workers)]:
            done.result()
    assert set(dispatched) == pushed
    assert set(dispatched.values()) == {1}
    assert acked == dispatched


@pytest.mark.requirement("C-7", "FS-2")
@pytest.mark.parametrize("operation", ["claim", "ack", "retry", "push", "unique", "cancel"])
def test_of_many_who_want_the_same_exactly_one_wins(exact: World, operation: str) -> None:
    exact.push(queue="other")
    pushed = exact.push(retry={"max_attempts": 1})
    chosen = "019539a4-aaaa-7000-8000-111111111111"
    if operation in ("ack", "retry"):
        exact.fetch()
    if operation == "retry":
        exact.run.finish.nack(pushed.id, error={"code": "x", "message": "y"})
    runs = [exact.another() for _ in range(16)]
    barrier = threading.Barrier(16)
    unique = {"type": "u", "args": [], "unique": {"keys": ["type"]}}

    def attempt(number: int) -> bool:
        run = runs[number]
        barrier.wait()
        try:
            match operation:
                case "claim":
                    return bool(run.fetch.fetch(["default"], 1, f"w{number}"))
                case "ack":
                    run.finish.ack(pushed.id)
                case "retry":
                    run.redrive.retry(pushed.id)
                case "push":
                    raw = {"type": "p", "args": [number], "id": chosen}
                    run.enqueue.push(envelope.parse(raw))
                case "unique":
                    run.enqueue.push(envelope.parse(unique))
                case _:
                    run.jobs.cancel(pushed.id)
        except (Conflict, Duplicate):
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(attempt, range(16)))
    assert won.count(True) == 1


def test_sweeps_side_by_side_count_a_lost_lease_once(exact: World) -> None:
    jobs = [exact.push(n, visibility_timeout_ms=1_000) for n in range(20)]
    exact.fetch(count=20)
    exact.clock.advance(1_000)
    barrier = threading.Barrier(8)

    def sweep(_: int) -> int:
        run = exact.another()
        barrier.wait()
        return run.sweep.run_once(exact.clock.now_ms(), 1_000).get("stalled_or_timed_out", 0)

    with ThreadPoolExecutor(8) as pool:
        moved: int = sum(pool.map(sweep, range(8)))
    assert moved >= 20
    for job in jobs:
        found = exact.run.jobs.get(job.id)
        assert (found.state, found.attempt, len(found.errors or ())) == ("available", 1, 1)


@pytest.mark.parametrize(
    "strategy", ["discard", pytest.param("move", marks=pytest.mark.exhaustive)]
)
def test_a_paused_queue_that_is_discarded_or_moved_hands_out_nothing(
    exact: World, strategy: str
) -> None:
    jobs = [exact.push(n, queue="busy") for n in range(40)]
    exact.run.queues.pause("busy")
    barrier, over = threading.Barrier(5), threading.Event()
    handed_out: list[str] = []

    def fetch() -> None:
        run = exact.another()
        barrier.wait()
        while not over.is_set():
            handed_out.extend(job.id for job in run.fetch.fetch(["busy"], 5, "w"))

    with ThreadPoolExecutor(4) as pool:
        busy = [pool.submit(fetch) for _ in range(4)]
        barrier.wait()
        try:
            target = "new" if strategy == "move" else None
            ending, deleted = exact.run.deletion.delete("busy", strategy, target)
        finally:
            over.set()
        for one in busy:
            one.result()
    assert (handed_out, ending.affected, deleted) == ([], 40, True)
    expected = "available" if strategy == "move" else "discarded"
    assert {exact.state(job) for job in jobs} == {expected}


def test_ack_and_lease_expiry_at_once_leave_one_outcome(exact: World) -> None:
    for _ in range(20):
        pushed = exact.push(visibility_timeout_ms=1_000)
        exact.fetch(worker="w")
        exact.clock.advance(1_000)
        barrier = threading.Barrier(2)
        sweeper = exact.another()

        def ack(job_id: str = pushed.id, start: threading.Barrier = barrier) -> bool:
            start.wait()
            try:
                exact.run.finish.ack(job_id, worker_id="w")
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(1) as pool:
            acked = pool.submit(ack)
            barrier.wait()
            sweeper.sweep.run_once(exact.clock.now_ms(), 100)
            outcome = acked.result()
        assert exact.state(pushed) == ("completed" if outcome else "available")
        if not outcome:
            exact.run.jobs.cancel(pushed.id)
