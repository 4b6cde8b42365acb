"""Depth counters of bounded queues: exact under load, and what each costs.

The stream of the table has every write in order. Replayed, it shows what stood at every moment: how
many jobs there were, and what the counter said.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.errors import BackendContended, BackendTimeout, QueueFull
from ojs.domain.job import envelope
from ojs.domain.job.job import Job
from ojs.services.jobs import enqueue
from ojs.store.bounds.depth_counter import PERIOD_MS, CapacityUse, period_of
from ojs.store.jobs import staged_batches
from ojs.store.table import keys, values
from ojs.store.table.errors import LostRace
from tests.spread import spread
from tests.store.bounded import DONE, QUEUE, Worlds, request, value_of
from tests.store.doubles import Projecting
from tests.store.faults import Killed
from tests.store.permits import reconcile, reconcile_at_rest
from tests.store.spending import Spent, reading_notes, spending, stage_once
from tests.store.streams import Projected, Record, Stream, recount_behind

if TYPE_CHECKING:
    from ojs.runtime import Runtime
    from tests.store.conftest import World

# From one sweep to the next.
SETTLED_MS = 60_000


def configure(world: World, queue: str = QUEUE, **config: Any) -> None:
    world.run.queues.configure(queue, config)


def counts(world: World, queue: str = QUEUE) -> tuple[int, int]:
    """Jobs and bytes as the counter has them."""
    found = value_of(world, queue)
    return found.count, found.size


def behind(world: World, queue: str = QUEUE) -> tuple[int, int]:
    """Jobs and bytes as the job records have them."""
    job_records = [dict(values.unpack(item)) for item in world.items()]
    found = recount_behind(job_records)[queue]
    return found["held"] + found["loose"], found["held_b"] + found["loose_b"]


def drain(run: Runtime, count: int = 10, queue: str = QUEUE) -> int:
    jobs = run.fetch.fetch([queue], count, "w")
    for job in jobs:
        run.finish.ack(job.id, worker_id="w")
    return len(jobs)


@dataclass
class History:
    """What stood at every moment."""

    most_jobs: int = 0
    most_counted: int = 0
    # Moments at which the counter said less than there was.
    too_few: int = 0
    jobs: int = 0
    counted: int = 0
    events: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, records: Iterable[Record], queue: str = QUEUE) -> History:
        found = cls()
        for record in records:
            stream = record["dynamodb"]
            key = tuple(stream["Keys"][name]["S"] for name in ("pk", "sk"))
            old, new = (
                values.unpack(stream[name]) if name in stream else None
                for name in ("OldImage", "NewImage")
            )
            if key[0].startswith(keys.job("")) and key[1] == keys.RECORD:
                found.jobs += _there(new, queue) - _there(old, queue)
            elif key == (keys.counter(queue), keys.DEPTH):
                found.counted = int(new["n"]) if new else 0
            found.most_jobs = max(found.most_jobs, found.jobs)
            found.most_counted = max(found.most_counted, found.counted)
            found.too_few += found.counted < found.jobs
        return found


def _there(item: Any, queue: str) -> bool:
    return item is not None and item["queue"] == queue and item["state"] not in DONE


def crowd(world: World, work: Sequence[Callable[[Runtime], None]]) -> None:
    """All of these at once, each in a container of its own."""
    runs = [world.another() for _ in work]
    barrier = threading.Barrier(len(work))

    def start(run: Runtime, what: Callable[[Runtime], None]) -> None:
        barrier.wait()
        what(run)

    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(start, *pair) for pair in zip(runs, work, strict=True)]:
            done.result()


def pushing(
    requests: Sequence[envelope.JobRequest], *, batch: bool = False
) -> Callable[[Runtime], None]:
    """Push them one by one, or in one batch."""

    def push(run: Runtime) -> None:
        if batch:
            run.enqueue.push_batch(requests)
            return
        for one in requests:
            run.enqueue.push(one)

    return push


def until_accepted(run: Runtime, requests: Sequence[envelope.JobRequest]) -> int:
    """Push them, working off others while there is no room; how often there was none."""
    refused = 0
    while True:
        try:
            if len(requests) == 1:
                run.enqueue.push(requests[0])
            else:
                run.enqueue.push_batch(requests)
        except QueueFull:
            refused += 1
            drain(run)
        else:
            return refused


# --- exact under load -----------------------------------------------------------------------------


class Traffic:
    """Producers that wait for room, and workers that make it, until all is produced."""

    def __init__(self, producers: int) -> None:
        self.room = threading.Condition()
        self.left = list(range(producers))
        self.refused: list[int] = []

    def produce(self, size: int, times: int) -> Callable[[Runtime], None]:
        """Push so many batches of so many jobs."""

        def producer(run: Runtime) -> None:
            for _ in range(times):
                self._push(run, [request(n) for n in range(size)])
            self.left.pop()

        return producer

    def _push(self, run: Runtime, requests: Sequence[envelope.JobRequest]) -> None:
        while True:
            try:
                run.enqueue.push_batch(requests)
            except QueueFull:
                with self.room:
                    self.refused.append(len(requests))
                    self.room.wait(20)
            else:
                return

    def work(self, run: Runtime) -> None:
        """Work off jobs as long as there are producers."""
        while self.left:
            drain(run, 20)
            with self.room:
                self.room.notify(3)


@pytest.mark.whole
@pytest.mark.parametrize("lanes", [1, 4])
def test_64_producers_never_get_past_the_bound(streamed: Worlds, lanes: int) -> None:
    """5 120 jobs, singly and in batches, worked off by four workers meanwhile."""
    bound, times = 500, 10
    with streamed() as world:
        configure(world, max_size=bound, lanes=lanes)
        traffic = Traffic(64)
        producers = [traffic.produce(1, times), traffic.produce(15, times)] * 32
        crowd(world, [*producers, *[traffic.work] * 4])
        assert len(traffic.refused) > 50
        while drain(world.run, 100):
            pass
        history = History.of(Stream(world.client, world.table).take())
        assert (history.most_jobs <= bound, history.too_few) == (True, 0)
        # Batches do not fill the last few places.
        assert bound - 15 < history.most_counted <= bound
        assert counts(world) == behind(world) == (0, 0)
        assert reconcile_at_rest(world)["healed"] == 0
        assert counts(world) == (0, 0)
        done = Counter(item["state"]["S"] for item in world.items() if "state" in item)
        assert done["completed"] == 32 * times * 16


@pytest.mark.parametrize("producers", [4, pytest.param(16, marks=pytest.mark.whole)])
def test_one_counter_serves_all_lanes(streamed: Worlds, producers: int) -> None:
    with streamed() as world:
        configure(world, max_size=40, lanes=4)

        def push(run: Runtime) -> None:
            for n in range(20):
                until_accepted(run, [request(n)])

        crowd(world, [push] * producers)
        stream = Stream(world.client, world.table)
        lanes = {
            item.get("lane", {}).get("N", "0")
            for item in world.items()
            if "priority" in item or "body" in item
        }
        assert lanes == {"0", "1", "2", "3"}
        while drain(world.run, 40):
            pass
        history = History.of(stream.take())
        assert (history.most_jobs, history.most_counted, history.too_few) == (40, 40, 0)
        assert counts(world) == behind(world) == (0, 0)


def test_a_batch_over_several_queues_takes_room_in_all_or_in_none(exact: World) -> None:
    for queue, bound in (("a", 10), ("b", 3)):
        configure(exact, queue, max_size=bound)
    with pytest.raises(QueueFull) as caught:
        exact.run.enqueue.push_batch([request(n, "ab"[n % 2]) for n in range(8)])
    assert caught.value.details["queue"] == "b"
    assert counts(exact, "a") == counts(exact, "b") == (0, 0)
    exact.run.enqueue.push_batch([request(n, "ab"[n % 2]) for n in range(6)])
    assert counts(exact, "a") == behind(exact, "a")
    assert counts(exact, "b")[0] == 3


def test_a_job_that_was_taken_spoils_no_transaction_of_others(exact: World) -> None:
    configure(exact, max_size=20, overflow_policy="drop_oldest")
    fill(exact, 20)
    store = exact.run.enqueue._bounds._jobs
    all_at_once = store.replace_all
    taken: list[Job] = []

    def late(*args: Any) -> list[Job]:
        if not taken:
            taken.extend(exact.run.fetch.fetch([QUEUE], 3, "w"))
        return all_at_once(*args)

    with mock.patch.object(store, "replace_all", late):
        exact.run.enqueue.push_batch([request(n) for n in range(10)])
    states = Counter(i["state"]["S"] for i in exact.items() if "state" in i and "type" in i)
    assert states == {"available": 17, "active": 3, "discarded": 10}
    assert all(not exact.run.jobs.get(job.id).errors for job in taken)
    assert counts(exact) == behind(exact)


def test_dropping_ends_when_the_time_is_over(exact: World) -> None:
    configure(exact, max_size=200, overflow_policy="drop_oldest")
    fill(exact, 200)
    store = exact.run.enqueue._bounds._jobs
    all_at_once = store.replace_all

    def slow(*args: Any) -> list[Job]:
        exact.clock.advance(15_000)
        return all_at_once(*args)

    with (
        mock.patch.object(store, "replace_all", slow),
        pytest.raises(BackendContended),
    ):
        exact.run.enqueue.push_batch([request(n) for n in range(200)])
    assert counts(exact) == behind(exact)
    assert counts(exact)[0] == 100


def test_others_that_are_always_quicker_are_no_full_queue(exact: World) -> None:
    """The pauses between the tries are at random, and ever longer."""
    configure(exact, max_size=5, overflow_policy="drop_oldest")
    fill(exact, 5)
    bounds = exact.run.enqueue._bounds
    paused: list[float] = []
    bounds._sleep, bounds._chance = paused.append, lambda: 1.0

    def lost(*_: Any, **__: Any) -> Job:
        raise LostRace([None])

    with mock.patch.object(bounds._jobs, "replace", lost), pytest.raises(BackendContended):
        exact.run.enqueue.push(request())
    assert paused[:3] == [0.02, 0.04, 0.08]
    assert len(paused) == 16
    assert paused == sorted(paused)
    assert sum(paused) < 6
    assert counts(exact)[0] == 5
    assert exact.run.table.get(keys.counter(QUEUE), keys.REFUSED) is None


UNIQUE = {"keys": ["type"], "on_conflict": "replace"}


@pytest.mark.parametrize("policy", ["reject", "drop_oldest"])
def test_all_that_replace_the_same_unique_job_get_in(exact: World, policy: str) -> None:
    configure(exact, max_size=2, overflow_policy=policy)
    other = exact.run.enqueue.push(request()).job
    other_type = envelope.parse({"type": "other", "args": [], "queue": QUEUE})
    exact.run.jobs.cancel(other.id)
    other = exact.run.enqueue.push(other_type).job
    exact.run.enqueue.push(request(unique=UNIQUE))
    crowd(exact, [pushing([request(unique=UNIQUE)] * 3)] * 4)
    states = Counter(i["state"]["S"] for i in exact.items() if "state" in i and "type" in i)
    assert states == {"available": 2, "cancelled": 13}
    assert exact.state(other) == "available"
    assert counts(exact) == behind(exact)
    assert counts(exact)[0] == 2


@pytest.mark.parametrize("quicker", [11, 99])
def test_a_unique_push_that_others_are_quicker_with_tries_again(exact: World, quicker: int) -> None:
    """Up to fifteen times, after pauses at random; then it is told to try again."""
    exact.run.enqueue.push(request(unique=UNIQUE))
    late = exact.another()
    paused: list[float] = []
    late.enqueue._bounds._sleep, late.enqueue._bounds._chance = paused.append, lambda: 0.0
    create = late.stores.jobs.create
    others: list[Job] = []

    def slow(*args: Any) -> Job:
        if len(others) < quicker:
            others.append(exact.run.enqueue.push(request(unique=UNIQUE)).job)
        return create(*args)

    with mock.patch.object(late.enqueue._jobs, "create", slow):
        if quicker == 11:
            pushed = late.enqueue.push(request(unique=UNIQUE)).job
            assert exact.state(pushed) == "available"
            assert exact.state(others[-1]) == "cancelled"
        else:
            with pytest.raises(BackendContended) as refused:
                late.enqueue.push(request(unique=UNIQUE))
            assert refused.value.retryable
            assert exact.state(others[-1]) == "available"
    assert len(paused) == min(quicker, 15)
    assert paused[:3] == [0.02, 0.04, 0.08]
    assert max(paused) == 0.2


def test_what_it_costs_to_replace_a_unique_job_of_a_bounded_queue(exact: World) -> None:
    """One write of the counter more than in an unbounded queue; a new unique job as any other."""
    configure(exact, max_size=10)
    spent = []
    for queue in ("plain", QUEUE):
        asked = request(queue=queue, unique={"keys": ["type", "queue"], "on_conflict": "replace"})
        exact.run.enqueue.push(request(queue=queue))
        for _ in range(2):
            with spending(exact) as one:
                exact.run.enqueue.push(asked)
            spent.append((one.calls, one.writes))
    (new, replaced), (new_bounded, replaced_bounded) = spent[:2], spent[2:]
    assert (new_bounded[0] - new[0], new_bounded[1] - new[1]) == (1, 1)
    assert (replaced_bounded[0] - replaced[0], replaced_bounded[1] - replaced[1]) == (1, 1)


# --- events, from the real stream -----------------------------------------------------------------


def test_what_a_bounded_queue_tells(streamed: Worlds) -> None:
    with streamed() as world:
        world.run.queues.create(QUEUE, {"max_size": 5, "warning_threshold": 0.6})
        world.run.queues.configure(QUEUE, {"max_size": 4})
        for n in range(4):
            world.run.enqueue.push(request(n))
        for size in (1, 3):
            requests = [request(n) for n in range(size)]
            with pytest.raises(QueueFull):
                world.run.enqueue.push_batch(requests)
        drain(world.run, 2)
        records = Stream(world.client, world.table).take()
        projected = Projected(world.client, world.table, world.clock)
        assert projected.run(records) == []
        assert projected.run(records) == []
        told = [
            (event["type"], event["data"])
            for event in projected.events()
            if not event["type"].startswith("job.")
        ]
        data = {"queue": QUEUE, "bound": 4}
        refused = ("backpressure.rejected", {**data, "depth": 4, "job_type": "email.send"})
        assert sorted(told, key=str) == sorted(
            [
                ("queue.created", {"queue": QUEUE}),
                ("queue.config_updated", {"queue": QUEUE, "changed": ["max_size"]}),
                ("backpressure.warning", {**data, "depth": 3}),
                ("queue.full", {**data, "depth": 4}),
                refused,
                refused,
                ("backpressure.cleared", {**data, "depth": 2}),
            ],
            key=str,
        )
        day = projected.stats(QUEUE, keys.day("2026-05-28"))
        assert (day["created"], day["rejected"], day["o_reject"]) == (1, 4, 4)
        sums = projected.metrics.sums
        assert sums[("queue", QUEUE),]["ojs.backpressure.rejected_total"] == 4
        overflow = sums[("queue", QUEUE), ("policy", "reject")]
        assert overflow == {"ojs.queue.overflow.count": 4}
        # All of it is what operators must hear of.
        assert {event.type for event in projected.bus.taken} == {kind for kind, _ in told}


# --- what stands for jobs that were there before the bound ----------------------------------------


def fill(world: World, count: int, start: int = 0) -> None:
    world.run.enqueue.push_batch([request(n) for n in range(start, start + count)])


@pytest.mark.parametrize("late", [False, True], ids=["projected", "projection stands still"])
def test_a_bound_on_a_queue_that_has_jobs_counts_them(streamed: Worlds, late: bool) -> None:
    with streamed() as world:
        projecting = Projecting(world)
        fill(world, 30)
        if not late:
            projecting.catch_up()
        configure(world, max_size=40)
        assert counts(world) == behind(world)
        fill(world, 10, 100)
        with pytest.raises(QueueFull):
            world.run.enqueue.push(request())
        # Jobs from before the bound are not counted when they are done; the sweep counts anew.
        drain(world.run, 25)
        if not late:
            projecting.catch_up()
        reconcile(world)
        assert counts(world)[0] >= behind(world)[0]
        projecting.catch_up()
        reconcile(world)
        assert counts(world) == behind(world)
        assert counts(world)[0] == 15
        while drain(world.run, 40):
            pass
        projecting.catch_up()
        reconcile_at_rest(world)
        assert counts(world) == behind(world) == (0, 0)
        assert value_of(world).untracked == 0


def test_a_bound_that_is_raised_lowered_removed_and_set_again(streamed: Worlds) -> None:
    with streamed() as world:
        projecting = Projecting(world)
        configure(world, max_size=10)
        fill(world, 10)
        for bound, room in ((15, 4), (12, 0), (16, 0)):
            configure(world, max_size=bound)
            for n in range(room):
                world.run.enqueue.push(request(n))
            if counts(world)[0] < bound:
                world.run.enqueue.push(request())
            with pytest.raises(QueueFull):
                world.run.enqueue.push(request())
            reconcile(world)
            assert counts(world) == behind(world)
        # Lowered below what is there: nothing gets in until enough has gone.
        configure(world, max_size=3)
        while counts(world)[0] >= 3:
            with pytest.raises(QueueFull):
                world.run.enqueue.push(request())
            drain(world.run, 1)
        world.run.enqueue.push(request())
        # Without a bound anything gets in and is counted when there is one again.
        configure(world, max_size=None)
        fill(world, 20)
        drain(world.run, 2)
        configure(world, max_size=30)
        assert counts(world) == behind(world)
        assert value_of(world).untracked == 20
        fill(world, 9)
        with pytest.raises(QueueFull):
            world.run.enqueue.push(request())
        history = History.of(projecting.catch_up())
        assert history.jobs == 30
        while drain(world.run, 40):
            pass
        projecting.catch_up()
        reconcile_at_rest(world)
        assert counts(world) == behind(world) == (0, 0)


@pytest.mark.exhaustive
def test_bounds_set_and_removed_under_load(streamed: Worlds) -> None:
    with streamed() as world:
        projecting = Projecting(world)
        configure(world, max_size=30)
        over = threading.Event()

        def push(run: Runtime) -> None:
            for n in range(25):
                until_accepted(run, [request(n)])

        def operate(run: Runtime) -> None:
            for bound in (20, 40, None, 30, None, 25, 60, 30):
                run.queues.configure(QUEUE, {"max_size": bound})
                run.reconcile.run_once(world.clock.now_ms(), 10)
            over.set()

        def sweep(run: Runtime) -> None:
            while not over.is_set():
                run.reconcile.run_once(world.clock.now_ms(), 10)

        crowd(world, [push] * 10 + [operate, sweep, sweep])
        projecting.catch_up()
        reconcile_at_rest(world)
        assert counts(world) == behind(world)
        assert counts(world)[0] > 0
        while drain(world.run, 40):
            pass
        projecting.catch_up()
        reconcile_at_rest(world)
        assert counts(world) == behind(world) == (0, 0)


@pytest.mark.exhaustive
def test_bytes_are_counted_as_jobs_are(streamed: Worlds) -> None:
    with streamed() as world:
        projecting = Projecting(world)
        world.push("x" * 3_000, queue=QUEUE)
        world.push("x" * 30, queue=QUEUE)
        fill(world, 120)  # staged, for its size
        projecting.catch_up()
        size = behind(world)[1]
        configure(world, max_size_bytes=size + 100)
        assert counts(world) == (122, size)
        with pytest.raises(QueueFull):
            world.push("x" * 100, queue=QUEUE)
        fill(world, 1)
        assert counts(world) == behind(world)
        gauges = world.run.metrics_sweep.run_once(world.clock.now_ms(), 10).queues
        projecting.catch_up()
        assert gauges[0].filling is not None
        for rounds in range(4):
            drain(world.run, 40)
            projecting.catch_up()
            reconcile(world)
            assert counts(world) == behind(world), rounds
        assert counts(world) == (0, 0)


# --- leaks ----------------------------------------------------------------------------------------


def leak(world: World, kind: str) -> None:
    """One reservation that nobody will ever release."""
    run = world.another()
    jobs = run.enqueue._jobs
    if kind == "died before it was stored":
        jobs.create = mock.Mock(side_effect=Killed)  # type: ignore[method-assign]
        with pytest.raises(Killed):
            run.enqueue.push(request())
    elif kind == "nobody knows whether it was stored":
        jobs.create = mock.Mock(side_effect=BackendTimeout("?"))  # type: ignore[method-assign]
        with pytest.raises(BackendTimeout):
            run.enqueue.push(request())
    else:
        world.run.enqueue.push(request())
        (job,) = run.fetch.fetch([QUEUE], 1, "w")
        run.finish._changes._permits.release = mock.Mock(side_effect=Killed)  # type: ignore[method-assign]
        with pytest.raises(Killed):
            run.finish.ack(job.id, worker_id="w")


LEAKS = (
    "died before it was stored",
    "nobody knows whether it was stored",
    "died before it was released",
)


@pytest.mark.parametrize(("kind", "stale"), spread(product(LEAKS, (False, True)), 5))
def test_a_leak_is_repaired_when_the_counter_is_at_rest(
    streamed: Worlds, kind: str, stale: bool
) -> None:
    with streamed() as world:
        projecting = Projecting(world)
        configure(world, max_size=10)
        leak(world, kind)
        for n in range(4):
            world.run.enqueue.push(request(n))
        if not stale:
            projecting.catch_up()
        there = behind(world)
        assert counts(world)[0] == there[0] + 1
        # Not at once: somebody may be about to store what it reserved room for.
        for _ in range(3):
            world.clock.advance(SETTLED_MS // 4)
            assert reconcile(world)["healed"] == 0
            assert counts(world)[0] == there[0] + 1
        done = reconcile_at_rest(world)
        assert (done["suspected"], done["healed"]) == (1, 1)
        assert counts(world) == behind(world) == there
        assert reconcile_at_rest(world)["healed"] == 0
        while drain(world.run, 10):
            pass
        projecting.catch_up()
        reconcile_at_rest(world)
        assert counts(world) == (0, 0)


def test_a_job_stored_long_after_its_reservation_counts(exact: World) -> None:
    """The slowest request there can be: 29 s."""
    configure(exact, max_size=10)
    run, create = exact.another(), exact.run.enqueue._jobs.create

    def slowly(*arguments: Any, **more: Any) -> Job:
        for _ in range(29):
            exact.clock.advance(1_000)
            assert reconcile(exact)["healed"] == 0
        return create(*arguments, **more)

    run.enqueue._jobs.create = slowly  # type: ignore[method-assign]
    run.enqueue.push(request())
    assert counts(exact) == behind(exact)
    assert counts(exact)[0] == 1


def test_a_job_released_long_after_it_was_done_is_released_once(exact: World) -> None:
    """However often the sweep looks between the end of a job and its release."""
    configure(exact, max_size=10)
    exact.run.enqueue.push(request())
    exact.run.enqueue.push(request())
    run = exact.another()
    (job,) = run.fetch.fetch([QUEUE], 1, "w")
    # The counter was at rest for long when the job is done.
    exact.clock.advance(10 * SETTLED_MS)
    exact.run.workers.beat("w", active_jobs=[job.id])
    release_all = run.finish._changes._permits.release

    def slowly(*arguments: Any, **more: Any) -> bool:
        for _ in range(29):
            exact.clock.advance(1_000)
            reconcile(exact)
            assert counts(exact)[0] >= 1
        return release_all(*arguments, **more)

    run.finish._changes._permits.release = slowly  # type: ignore[method-assign]
    run.finish.ack(job.id, worker_id="w")
    assert counts(exact) == behind(exact)
    assert reconcile_at_rest(exact)["healed"] == 0
    assert counts(exact)[0] == 1


def test_a_reservation_made_meanwhile_is_not_overwritten(exact: World) -> None:
    configure(exact, max_size=10)
    leak(exact, LEAKS[0])
    exact.clock.advance(SETTLED_MS + PERIOD_MS)
    assert reconcile(exact)["suspected"] == 1
    exact.clock.advance(SETTLED_MS)
    subtract = exact.run.stores.depth.subtract

    def late(*arguments: Any, **more: Any) -> bool:
        exact.run.enqueue.push(request())
        return subtract(*arguments, **more)

    with mock.patch.object(exact.run.stores.depth, "subtract", late):
        assert reconcile(exact)["healed"] == 1
    assert counts(exact) == behind(exact)
    assert counts(exact)[0] == 1


def test_two_sweeps_at_once_subtract_once(exact: World) -> None:
    configure(exact, max_size=10)
    leak(exact, LEAKS[0])
    exact.run.enqueue.push(request())
    exact.clock.advance(SETTLED_MS + PERIOD_MS)
    assert reconcile(exact)["suspected"] == 1
    exact.clock.advance(SETTLED_MS)
    subtract, others = exact.run.stores.depth.subtract, []

    def late(*arguments: Any, **more: Any) -> bool:
        others.append(exact.another().reconcile.run_once(exact.clock.now_ms(), 10)["healed"])
        return subtract(*arguments, **more)

    with mock.patch.object(exact.run.stores.depth, "subtract", late):
        assert reconcile(exact)["healed"] == 0
    assert others == [1]
    assert counts(exact) == behind(exact)
    assert counts(exact)[0] == 1


def test_jobs_that_the_index_does_not_show_yet_count(streamed: Worlds) -> None:
    """The larger of both ways of counting is taken."""
    with streamed() as world:
        projecting = Projecting(world)
        configure(world, max_size=10)
        leak(world, LEAKS[0])
        fill(world, 5)
        projecting.catch_up()
        with mock.patch.object(type(world.run.reconcile._recount), "_line", return_value=()):
            reconcile_at_rest(world)
        assert counts(world) == behind(world)
        assert counts(world)[0] == 5


def test_a_late_projection_is_no_reason_to_count_more(streamed: Worlds) -> None:
    with streamed() as world:
        projecting = Projecting(world)
        configure(world, max_size=10)
        fill(world, 8)
        projecting.catch_up()
        drain(world.run, 8)
        reconcile_at_rest(world)
        assert counts(world) == (0, 0)


def test_the_room_of_a_batch_that_is_yet_to_be_undone_is_not_repaired(exact: World) -> None:
    """Undoing gives back all of it, also what was never stored."""
    configure(exact, max_size=50)
    run = exact.another()
    with (
        mock.patch.object(enqueue, "MAX_TRANSACTION", 10),
        mock.patch.object(staged_batches, "MAX_TRANSACTION", 10),
    ):
        stage, calls = run.enqueue._jobs.batches._stage, iter(range(9))

        def dying(*arguments: Any, **more: Any) -> None:
            if next(calls) == 2:
                raise Killed
            stage(*arguments, **more)

        run.enqueue._jobs.batches._stage = dying  # type: ignore[method-assign]
        with pytest.raises(Killed):
            run.enqueue.push_batch([request(n) for n in range(40)])
    assert counts(exact)[0] == 40
    assert reconcile_at_rest(exact, 4)["healed"] == 0
    assert counts(exact)[0] == 40
    exact.clock.advance(staged_batches.STAGING_GRACE_MS)
    exact.sweep()
    assert counts(exact) == behind(exact) == (0, 0)
    reconcile_at_rest(exact)
    assert counts(exact) == (0, 0)


def test_a_counter_that_counts_too_few_is_raised_at_once(exact: World) -> None:
    configure(exact, max_size=10)
    for n in range(5):
        exact.run.enqueue.push(request(n))
    room = CapacityUse().plus(3, 3 * 10, period_of(exact.clock.now_ms()))
    exact.run.stores.depth.release(QUEUE, room, now_ms=exact.clock.now_ms())
    exact.clock.advance(SETTLED_MS)
    assert reconcile(exact)["healed"] == 1
    assert counts(exact)[0] == 5
    exact.run.stores.depth.remove(QUEUE, before_ms=exact.clock.now_ms() + 1)
    assert reconcile(exact)["healed"] == 1
    assert counts(exact) == behind(exact)


@pytest.mark.exhaustive
def test_a_crowd_with_crashes_ends_as_a_recount(streamed: Worlds) -> None:
    with streamed() as world:
        projecting = Projecting(world)
        configure(world, max_size=60)

        def push(run: Runtime) -> None:
            for n in range(15):
                until_accepted(run, [request(n)])

        def crash(_: Runtime) -> None:
            for kind in LEAKS[:2]:
                leak(world, kind)

        def sweep(run: Runtime) -> None:
            for _ in range(20):
                run.reconcile.run_once(world.clock.now_ms(), 10)

        crowd(world, [push] * 8 + [crash, crash, sweep, sweep])
        records = projecting.catch_up()
        history = History.of(records)
        assert (history.most_counted <= 60, history.too_few) == (True, 0)
        assert counts(world)[0] == behind(world)[0] + 4
        reconcile_at_rest(world)
        assert counts(world) == behind(world)
        while drain(world.run, 60):
            pass
        assert counts(world) == (0, 0)
        history = History.of([*records, *projecting.catch_up()])
        assert history.too_few == 0


def test_a_reconciliation_ends_in_time_and_goes_on_elsewhere(exact: World) -> None:
    for queue in ("a", "b", "c"):
        configure(exact, queue, max_size=5)
    exact.run.enqueue.push(request(queue="unbounded"))
    assert reconcile(exact) == {"unbounded": 1, "bounded": 3, "counted": 3}
    cut = dict(exact.run.reconcile.run_once(exact.clock.now_ms(), 2))
    # Where it begins is chance, and so whether it comes to the unbounded one before its end.
    cut.pop("unbounded", None)
    assert cut == {"bounded": 2, "counted": 2, "more": 1}
    late = dict(exact.run.reconcile.run_once(exact.clock.now_ms(), 9, lambda: False))
    late.pop("unbounded", None)
    assert late == {"more": 1}


def test_a_quiet_bounded_queue_costs_next_to_nothing(streamed: Worlds) -> None:
    with streamed() as world:
        projecting = Projecting(world)
        configure(world, max_size=500)
        fill(world, 100)
        projecting.catch_up()
        world.clock.advance(3_600_000)
        quiet = {"bounded": 1, "unbounded": 0}
        assert reconcile(world) == quiet
        noted = reading_notes(world)
        with spending(world) as spent:
            assert reconcile(world) == quiet
        # When the deployment began, names and queues, which the sweeps of one minute read once;
        # queue, depth counter and statistics; batches under way; completions, which a shard may
        # have, too.
        assert spent.calls - noted.calls <= 6
        assert spent.writes == 0
        assert spent.reads - noted.reads <= 8.5


# --- what it costs --------------------------------------------------------------------------------


def costs(world: World, queue: str) -> tuple[Spent, Spent, Spent]:
    with spending(world) as push:
        world.run.enqueue.push(request(queue=queue))
    with spending(world) as fetch:
        (job,) = world.run.fetch.fetch([queue], 1, "w")
    with spending(world) as ack:
        world.run.finish.ack(job.id, worker_id="w")
    return push, fetch, ack


def test_a_bound_costs_a_call_and_a_unit_for_entering_and_for_leaving(exact: World) -> None:
    configure(exact, max_size=100)
    exact.run.enqueue.push(request(queue="plain"))
    exact.run.enqueue.push(request())
    # What a container does once an hour, and the notes of both lines.
    costs(exact, "plain")
    costs(exact, QUEUE)
    plain, bounded = costs(exact, "plain"), costs(exact, QUEUE)
    assert [(one.calls, one.writes, one.reads) for one in plain] == [
        (2, 2, 1), (plain[1].calls, plain[1].writes, plain[1].reads), (1, 1, 0),
    ]  # fmt: skip
    extra = [
        (b.calls - p.calls, b.writes - p.writes, b.reads - p.reads)
        for p, b in zip(plain, bounded, strict=True)
    ]
    # A claim there has no note, and leaves an entry in the index, which the ack removes.
    assert extra == [(1, 1, 0), (-1, 0, 0), (1, 2, 0)]


def test_a_rejection_is_three_calls(exact: World) -> None:
    configure(exact, max_size=2)
    fill(exact, 2)
    for requests in ([request()], [request(n) for n in range(2)], [request(n) for n in range(9)]):
        with spending(exact) as spent, pytest.raises(QueueFull):
            exact.run.enqueue.push_batch(requests)
        assert spent.calls <= 3
        assert spent.writes <= 2
    with spending(exact) as spent, pytest.raises(QueueFull):
        exact.run.enqueue.push(request())
    assert (spent.calls, spent.reads) == (3, 1)


def test_a_batch_pays_its_depth_counter_once(exact: World) -> None:
    configure(exact, max_size=100)
    exact.run.enqueue.push(request(queue="plain"))
    stage_once(exact)
    spent = []
    for queue in ("plain", QUEUE):
        with spending(exact) as one:
            exact.run.enqueue.push_batch([request(n, queue) for n in range(40)])
        spent.append(one)
    plain, bounded = spent
    assert (bounded.calls - plain.calls, bounded.writes - plain.writes) == (1, 1)
