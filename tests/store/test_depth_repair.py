"""Depth counters while jobs come and go: parts by period, and what a crash left, subtracted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.errors import BackendContended, QueueFull
from ojs.domain.job.job import Job
from ojs.services.jobs import enqueue
from ojs.services.permits import reconcile as sweeping
from ojs.store.bounds.depth_counter import KEPT_PERIODS, PERIOD_MS, CapacityUse, period_of
from ojs.store.jobs import staged_batches
from ojs.store.table import keys, values
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put
from tests.store.bounded import DONE, QUEUE, Worlds, request, value_of
from tests.store.doubles import Projecting
from tests.store.faults import Killed
from tests.store.permits import reconcile
from tests.store.spending import reading_notes, spending

if TYPE_CHECKING:
    from ojs.runtime import Runtime
    from tests.store.conftest import World

MINUTE_MS = 60_000


def configure(world: World, queue: str = QUEUE, **config: Any) -> None:
    world.run.queues.configure(queue, config)


def there(world: World, queue: str = QUEUE) -> CapacityUse:
    """The tracked jobs of a queue by their records, and their periods."""
    records = [values.unpack(item) for item in world.items()]
    return CapacityUse.sum(
        (int(record.get("held_in", 0)), 1, int(record["held"]))
        for record in records
        if record["sk"] == keys.RECORD and "held" in record and record.get("queue") == queue
        if record["state"] not in DONE
    )


def check_parts(world: World, queue: str = QUEUE) -> None:
    """What the counter has up to each period is what the jobs of these periods are."""
    value, jobs = value_of(world, queue), there(world, queue)
    now = period_of(world.clock.now_ms())
    for period in range(now - KEPT_PERIODS, now + 1):
        found = jobs.until(period)
        assert value.until(period) == (found.count, found.size), (period - now, value)


@contextmanager
def dying_pusher(world: World) -> Iterator[Runtime]:
    """A container that dies between reserving room and storing the job."""
    run = world.another()
    with mock.patch.object(run.enqueue._jobs, "create", side_effect=Killed):
        yield run


@contextmanager
def dying_worker(world: World) -> Iterator[Runtime]:
    """A container that dies between the end of a job and releasing its room."""
    run = world.another()
    with mock.patch.object(run.finish._changes._permits, "release", side_effect=Killed):
        yield run


def leak(world: World, count: int = 1) -> None:
    with dying_pusher(world) as run:
        for number in range(count):
            with pytest.raises(Killed):
                run.enqueue.push(request(number))


# --- healing under traffic ------------------------------------------------------------------------


@dataclass
class Traffic:
    """Pushes and acks, of which some die between their two writes, with a sweep each minute."""

    world: World
    chance: random.Random
    dying: float = 0.0
    # Jobs that are stored and not done.
    live: set[str] = field(default_factory=set)
    killed: int = 0
    refused: int = 0
    # Whether the projection is a minute late at each sweep.
    late: bool = True

    def __post_init__(self) -> None:
        self.projecting = Projecting(self.world)
        self.swept_ms = self.world.clock.now_ms()

    def step(self, pusher: Runtime, worker: Runtime) -> None:
        """Four seconds: a push, and a few jobs worked off."""
        world = self.world
        world.clock.advance(4_000)
        try:
            if self.chance.random() < self.dying:
                with pytest.raises(Killed):
                    pusher.enqueue.push(request())
                self.killed += 1
            else:
                self.live.add(world.run.enqueue.push(request()).job.id)
        except QueueFull:
            self.refused += 1
        self.check()
        for job in world.run.fetch.fetch([QUEUE], self.chance.choice([0, 1, 1, 2]), "w"):
            self.live.discard(job.id)
            if self.chance.random() < self.dying:
                with pytest.raises(Killed):
                    worker.finish.ack(job.id, worker_id="w")
                self.killed += 1
            else:
                world.run.finish.ack(job.id, worker_id="w")
            self.check()
        now_ms = world.clock.now_ms()
        if now_ms - self.swept_ms >= MINUTE_MS:
            self.swept_ms = now_ms
            if not self.late:
                self.projecting.catch_up()
            reconcile(world)
            self.projecting.catch_up()
            self.check()

    def check(self) -> None:
        """Never fewer than there are, and never more than the bound."""
        counted = value_of(self.world).count
        assert len(self.live) <= counted <= 100, (len(self.live), counted)

    @property
    def too_many(self) -> int:
        return value_of(self.world).count - len(self.live)


@pytest.mark.exhaustive
@pytest.mark.parametrize("waiting", [pytest.param(0, marks=pytest.mark.whole), 40])
def test_what_crashes_left_is_subtracted_while_traffic_goes_on(
    streamed: Worlds, waiting: int
) -> None:
    """3 % of pushes and acks die for ten minutes: four minutes later nothing is left of them."""
    with streamed() as world:
        configure(world, max_size=100)
        traffic = Traffic(world, random.Random(17), dying=0.03)
        for number in range(waiting):
            later = request(number, delay_until="2026-06-28T00:00:00Z")
            traffic.live.add(world.run.enqueue.push(later).job.id)
        with dying_pusher(world) as pusher, dying_worker(world) as worker:
            for _ in range(150):
                traffic.step(pusher, worker)
            assert traffic.killed >= 5
            traffic.dying, stopped_ms = 0.0, world.clock.now_ms()
            assert traffic.too_many > 0
            while traffic.too_many > 0:
                assert world.clock.now_ms() - stopped_ms <= 4 * MINUTE_MS
                traffic.step(pusher, worker)
            for _ in range(30):
                traffic.step(pusher, worker)
                assert traffic.too_many == 0
        assert traffic.refused == 0
        assert len(traffic.live) > waiting
        check_parts(world)


@pytest.mark.exhaustive
def test_each_leak_is_gone_in_four_minutes_wherever_it_falls(exact: World) -> None:
    """In any second of a minute, with a push and an ack each four seconds."""
    configure(exact, max_size=100)
    for second in range(0, 60, 16):
        leaked_ms = exact.clock.now_ms()
        leak(exact)
        steps = 0
        while value_of(exact).count > 0:
            assert exact.clock.now_ms() - leaked_ms <= 4 * MINUTE_MS
            steps += 1
            exact.clock.advance(4_000)
            job = exact.run.enqueue.push(request()).job
            exact.run.fetch.fetch([QUEUE], 1, "w")
            exact.run.finish.ack(job.id, worker_id="w")
            if steps % 15 == second // 4:
                reconcile(exact)
        assert exact.clock.now_ms() - leaked_ms >= sweeping.SETTLED_MS


def test_sweeps_that_are_far_apart_heal_a_queue_at_rest(exact: World) -> None:
    """The second look comes after all periods of the first are out of their parts."""
    configure(exact, max_size=100)
    leak(exact)
    for _ in range(2):
        exact.clock.advance(KEPT_PERIODS * PERIOD_MS + MINUTE_MS)
        reconcile(exact)
    assert value_of(exact).count == 0


@pytest.mark.exhaustive
def test_a_line_that_moves_on_all_the_time_hides_no_leak_for_long(exact: World) -> None:
    """The old jobs end one by one, so that what is left of them never rests."""
    configure(exact, max_size=100)
    ids = [exact.run.enqueue.push(request(n)).job.id for n in range(50)]
    leak(exact, 10)
    for _ in range(5):
        exact.clock.advance(MINUTE_MS)
        reconcile(exact)
        for _ in range(4):
            (job,) = exact.run.fetch.fetch([QUEUE], 1, "w")
            exact.run.finish.ack(job.id, worker_id="w")
            ids.remove(job.id)
            ids.append(exact.run.enqueue.push(request()).job.id)
        assert value_of(exact).count >= len(ids)
    # As many as end in a minute are not told from those that are about to be subtracted.
    assert value_of(exact).count - len(ids) <= 4


def test_a_job_that_ends_slowly_between_two_looks_is_subtracted_once(exact: World) -> None:
    configure(exact, max_size=100)
    for n in range(3):
        exact.run.enqueue.push(request(n))
    slow = exact.another()
    (job,) = slow.fetch.fetch([QUEUE], 1, "w")
    exact.clock.advance(sweeping.SETTLED_MS + PERIOD_MS)
    release = slow.finish._changes._permits.release

    def slowly(*arguments: Any, **more: Any) -> None:
        assert reconcile(exact)["suspected"] == 1
        exact.clock.advance(29_000)
        reconcile(exact)
        assert value_of(exact).count == 3
        release(*arguments, **more)

    with mock.patch.object(slow.finish._changes._permits, "release", slowly):
        slow.finish.ack(job.id, worker_id="w")
    for _ in range(5):
        exact.clock.advance(MINUTE_MS)
        reconcile(exact)
        assert value_of(exact).count == there(exact).count == 2


def test_a_job_that_is_stored_slowly_and_ends_slowly_is_subtracted_once(exact: World) -> None:
    """The sweep looks before the one and before the other."""
    configure(exact, max_size=100)
    leak(exact)
    exact.clock.advance(sweeping.SETTLED_MS + PERIOD_MS)
    slow = exact.another()
    create, release = slow.enqueue._jobs.create, slow.finish._changes._permits.release

    def stored(*arguments: Any) -> Job:
        exact.clock.advance(28_000)
        assert reconcile(exact)["suspected"] == 1
        return create(*arguments)

    def released(*arguments: Any, **more: Any) -> None:
        assert reconcile(exact)["healed"] == 1
        assert value_of(exact).count == 1
        release(*arguments, **more)

    with mock.patch.object(slow.enqueue._jobs, "create", stored):
        job = slow.enqueue.push(request()).job
    exact.clock.advance(sweeping.SETTLED_MS)
    slow.fetch.fetch([QUEUE], 1, "w")
    with mock.patch.object(slow.finish._changes._permits, "release", released):
        slow.finish.ack(job.id, worker_id="w")
    assert value_of(exact).count == 0


@pytest.mark.exhaustive
def test_jobs_that_the_index_misses_are_not_subtracted(streamed: Worlds) -> None:
    """The stream has them, and new ones come and go."""
    with streamed() as world:
        configure(world, max_size=100)
        traffic = Traffic(world, random.Random(3), late=False)
        for number in range(20):
            later = request(number, delay_until="2026-06-28T00:00:00Z")
            traffic.live.add(world.run.enqueue.push(later).job.id)
        with mock.patch.object(type(world.run.reconcile._recount), "_line", return_value=()):
            for _ in range(75):
                traffic.step(world.run, world.run)
        assert traffic.too_many == 0


# --- each way into a queue and out of it ----------------------------------------------------------


def test_jobs_keep_the_period_they_came_in(exact: World) -> None:
    """Pushes, batches, retries, ends: in every period of the last minutes the parts are exact."""
    configure(exact, max_size=100)
    kept = []
    for number in range(2 * KEPT_PERIODS):
        kept.append(exact.run.enqueue.push(request(number)).job)
        exact.run.enqueue.push_batch([request(n) for n in range(3)])
        if number % 3 == 0:
            (job,) = exact.run.fetch.fetch([QUEUE], 1, "w")
            exact.run.finish.nack(job.id, error={"code": "x"}, requeue=True)
        exact.run.jobs.cancel(kept[number // 2].id) if number % 2 == 0 else None
        check_parts(exact)
        exact.clock.advance(PERIOD_MS)
    assert there(exact).count == value_of(exact).count > 50


@contextmanager
def staged() -> Iterator[None]:
    """Batches of more than ten jobs are staged."""
    with (
        mock.patch.object(enqueue, "MAX_TRANSACTION", 10),
        mock.patch.object(staged_batches, "MAX_TRANSACTION", 10),
    ):
        yield


@pytest.mark.parametrize("version", ["this", "0.2"])
def test_a_batch_that_is_undone_leaves_the_period_it_came_in(exact: World, version: str) -> None:
    configure(exact, max_size=50)
    run = exact.another()
    with staged(), mock.patch.object(run.enqueue._jobs.batches, "_commit", side_effect=Killed):
        with pytest.raises(Killed):
            run.enqueue.push_batch([request(n) for n in range(20)])
        if version == "0.2":
            (batch,) = [i for i in map(values.unpack, exact.items()) if i.get("state") == "staging"]
            exact.run.table.put(Put({n: v for n, v in batch.items() if n != "held_in"}))
        # The sweep looks, and finds fewer jobs of old periods, though none of them leaked.
        for _ in range(4):
            exact.clock.advance(MINUTE_MS)
            exact.run.enqueue.push(request())
            reconcile(exact)
            assert value_of(exact).count == there(exact).count >= 20
        exact.clock.advance(2 * MINUTE_MS)
        exact.sweep()
    assert there(exact).count == value_of(exact).count == 4
    check_parts(exact)


def test_a_moved_job_counts_in_the_period_of_the_move(exact: World) -> None:
    for queue in (QUEUE, "other"):
        configure(exact, queue, max_size=50)
    for n in range(3):
        exact.run.enqueue.push(request(n))
    exact.clock.advance(3 * PERIOD_MS)
    exact.run.deletion.delete(QUEUE, strategy="move", target="other")
    for _ in range(4):
        exact.sweep()
    check_parts(exact, "other")
    assert there(exact, "other").parts.keys() == {period_of(exact.clock.now_ms())}


def test_a_dead_letter_that_comes_back_counts_in_the_period_of_its_return(exact: World) -> None:
    configure(exact, max_size=50)
    job = exact.run.enqueue.push(request(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"}))
    exact.run.enqueue.push(request())
    (taken,) = exact.run.fetch.fetch([QUEUE], 1, "w")
    exact.run.finish.nack(taken.id, error={"code": "x"})
    check_parts(exact)
    exact.clock.advance(3 * PERIOD_MS)
    exact.run.redrive.retry(job.job.id)
    check_parts(exact)
    assert len(there(exact).parts) == 2


def test_jobs_that_drop_others_count_in_their_own_period(exact: World) -> None:
    """Also those that drop what was there before the bound."""
    for n in range(4):
        exact.run.enqueue.push(request(n))
    configure(exact, max_size=10, overflow_policy="drop_oldest")
    for number in range(30):
        exact.run.enqueue.push(request(number, priority=number % 3))
        check_parts(exact)
        exact.clock.advance(PERIOD_MS // 4)
    exact.run.enqueue.push_batch([request(n) for n in range(8)])
    check_parts(exact)
    assert there(exact).count == value_of(exact).count == 10


@pytest.mark.parametrize("behind_ms", [0, 2 * PERIOD_MS], ids=["in time", "by a slower clock"])
def test_a_unique_job_that_replaces_another_counts_in_its_own_period(
    exact: World, behind_ms: int
) -> None:
    configure(exact, max_size=10)
    unique = {"keys": ["type"], "on_conflict": "replace"}
    exact.run.enqueue.push(request(unique=unique))
    exact.clock.advance(3 * PERIOD_MS)
    for size in (1, 10_000, 7):
        exact.run.enqueue.push(request(size, unique=unique))
        check_parts(exact)
        exact.clock.advance(PERIOD_MS)
    # One that loses its race, and one that dies between its two writes.
    exact.clock.advance(-behind_ms)
    period = period_of(exact.clock.now_ms())
    with mock.patch.object(
        exact.run.enqueue._jobs, "create", side_effect=[LostRace([None]), LostRace([None]), Killed]
    ) as tried:
        with pytest.raises(Killed):
            exact.run.enqueue.push(request(8, unique=unique))
        assert tried.call_count == 3
    assert value_of(exact).count == 1
    exact.clock.advance(behind_ms)
    # A look when the period of the new job is over, and no later one.
    while sweeping._last_closed_period(exact.clock.now_ms()) < period:
        exact.clock.advance(1_000)
    for _ in range(5):
        reconcile(exact)
        assert value_of(exact).count == 1
        exact.clock.advance(MINUTE_MS)
    assert (value_of(exact).count, value_of(exact).size) == (1, there(exact).size)


# --- 0.2 beside this version ----------------------------------------------------------------------


@contextmanager
def functions_of_02(run: Runtime) -> Iterator[None]:
    """The functions of a container know of no periods."""

    def sums(self: CapacityUse, _: int) -> dict[str, int]:
        return {"n": self.count, "b": self.size}

    record = enqueue.JobEnqueuer._job

    def job(*arguments: Any) -> Job:
        return replace(record(*arguments), reserved_in=None)

    with (
        mock.patch.object(CapacityUse, "added", sums),
        mock.patch.object(run.enqueue, "_job", job.__get__(run.enqueue)),
    ):
        yield


@pytest.mark.exhaustive
def test_functions_of_02_push_and_finish_beside_this_version(exact: World) -> None:
    """For as long as it takes, and the counter is never too low; what died is found after it."""
    configure(exact, max_size=50)
    chance = random.Random(5)
    old = exact.another()
    leak(exact, 3)
    live = set()
    for step in range(120):
        exact.clock.advance(6_000)
        with functions_of_02(old):
            live.add(old.enqueue.push(request()).job.id)
        live.add(exact.run.enqueue.push(request()).job.id)
        for job in exact.run.fetch.fetch([QUEUE], chance.choice([1, 2, 3]), "w"):
            live.remove(job.id)
            if chance.random() < 0.5:
                with functions_of_02(old):
                    old.finish.ack(job.id, worker_id="w")
            else:
                exact.run.finish.ack(job.id, worker_id="w")
            assert value_of(exact).count >= len(live)
        if step % 10 == 0:
            reconcile(exact)
            assert value_of(exact).count >= len(live)
    for _ in range(5):
        exact.clock.advance(MINUTE_MS)
        exact.run.enqueue.push(request())
        reconcile(exact)
        assert value_of(exact).count >= there(exact).count
    assert value_of(exact).count == there(exact).count


def test_room_that_functions_of_02_left_is_subtracted_too(exact: World) -> None:
    configure(exact, max_size=50)
    with functions_of_02(exact.run):
        exact.run.enqueue.push(request())
        leak(exact, 2)
    for _ in range(5):
        exact.clock.advance(MINUTE_MS)
        exact.run.enqueue.push(request())
        reconcile(exact)
    assert value_of(exact).count == there(exact).count == 6


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_the_item_stays_within_a_unit_and_old_parts_go_with_few_writes(exact: World) -> None:
    """In a queue with a long name, for half an hour without a sweep."""
    queue = "q" * 100
    configure(exact, queue, max_size=100_000, max_size_bytes=10**9)
    exact.run.enqueue.push(request(queue=queue))
    calls = writes = most = 0
    for number in range(90):
        exact.clock.advance(PERIOD_MS)
        with spending(exact) as spent:
            for _ in range(3):
                exact.run.enqueue.push(request(number, queue))
        calls, writes = calls + spent.calls, writes + int(spent.writes)
        item = exact.run.table.get(keys.counter(queue), keys.DEPTH) or {}
        most = max(most, values.size(item))
        assert len(value_of(exact, queue).parts.parts) <= KEPT_PERIODS + 10
    assert most <= 1_024
    # Three calls each, and three units: the counter's is one of them. Old parts: once in eight
    # periods.
    assert calls - 3 * 3 * 90 <= 90 // 8
    assert writes - 3 * 3 * 90 <= 90 // 8


def test_a_long_line_is_not_counted_each_minute(streamed: Worlds) -> None:
    """A tenth of a second's pause for each job, so that what is read in a minute is bounded."""
    with streamed() as world, mock.patch.object(sweeping, "_PAUSE_MS", 2_000):
        configure(world, max_size=1_000)
        world.clock.advance(3_600_000)
        world.run.enqueue.push_batch([request(n) for n in range(90)])
        projecting, counted = Projecting(world), []
        for _ in range(12):
            world.clock.advance(MINUTE_MS)
            projecting.catch_up()
            # The projection is late: the counter looks wrong each time.
            world.run.enqueue.push(request())
            counted.append(reconcile(world)["counted"])
        assert sum(counted) in (3, 4)
        noted = reading_notes(world)
        with spending(world) as spent:
            assert reconcile(world)["counted"] == 0
        # The counters that each shard of the stream may have are two units of it, and that the
        # deployment's begin is read is one.
        assert spent.reads - noted.reads <= 8.5


# --- full queues that are about to have something to drop -----------------------------------------


def other_push(world: World, *, stored: bool) -> Callable[[float], None]:
    """Reserve the room of one job; what is returned stores it, or dies."""
    run = world.another()
    jobs = run.enqueue._resolve(run.enqueue.prepare([request()], None, lambda _: True, batch=False))
    run.enqueue._bounds.enter(jobs.jobs, jobs.queues)

    def go_on(_: float) -> None:
        if stored and there(world).count == 0:
            run.enqueue._jobs.create(jobs.jobs[0])

    return go_on


def refusals(world: World) -> Any:
    return world.run.table.get(keys.counter(QUEUE), keys.REFUSED)


def test_a_push_waits_for_what_it_may_drop_then(exact: World) -> None:
    configure(exact, max_size=1, overflow_policy="drop_oldest")
    exact.run.enqueue._bounds._sleep = other_push(exact, stored=True)
    pushed = exact.run.enqueue.push(request()).job
    assert there(exact).count == value_of(exact).count == 1
    assert exact.state(pushed) == "available"
    check_parts(exact)


def test_a_push_that_waits_in_vain_is_told_to_try_again(exact: World) -> None:
    configure(exact, max_size=1, overflow_policy="drop_oldest")
    paused: list[float] = []
    other_push(exact, stored=False)
    exact.run.enqueue._bounds._sleep = paused.append
    with pytest.raises(BackendContended) as refused:
        exact.run.enqueue.push(request())
    assert refused.value.retryable
    assert len(paused) == 16
    assert refusals(exact) is None
    assert value_of(exact).count == 1


def test_a_queue_full_of_what_runs_is_full_at_once(exact: World) -> None:
    configure(exact, max_size=4, overflow_policy="drop_oldest")
    for n in range(4):
        exact.run.enqueue.push(request(n))
    exact.run.fetch.fetch([QUEUE], 3, "w")
    exact.run.enqueue._bounds._sleep = mock.Mock(side_effect=AssertionError)
    with spending(exact) as spent, pytest.raises(QueueFull):
        exact.run.enqueue.push_batch([request(n) for n in range(2)])
    # The queue, its counter, the line and its end, a job; four lines of the index; the refusal.
    assert (spent.calls, spent.writes) == (10, 1)
    assert refusals(exact)["n"] == 2
