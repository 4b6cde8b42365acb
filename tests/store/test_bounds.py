"""Bounded queues: who gets in, who gives way, and that every way out gives the room back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.errors import (
    BackendError,
    Duplicate,
    JobTypeNotAllowed,
    NotFound,
    OjsError,
    PayloadTooLarge,
    PermissionDenied,
    QueueDraining,
    QueueFull,
    QueueMayStay,
    QueueNotFound,
)
from ojs.domain.job import envelope
from ojs.domain.queue.queue import Deletion, DeletionStrategy
from ojs.services.jobs.middleware import MiddlewareChain
from ojs.store.table import keys
from tests.store.bounded import BIG, bound, counter_value
from tests.store.faults import attempt, faults

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from ojs.middleware import Envelope, Next
    from ojs.runtime import Runtime
    from ojs.services.jobs.enqueue import Pushed
    from tests.store.conftest import World

SECOND = 1_000


def batch(world: World, count: int, **options: Any) -> list[Any]:
    requests = [
        envelope.parse({"type": "a", "args": [n], "options": options}) for n in range(count)
    ]
    return world.run.enqueue.push_batch(requests)


def records(world: World) -> int:
    return sum(i["pk"]["S"].startswith("J|") and i["sk"]["S"] == "@" for i in world.items())


# --- reject -------------------------------------------------------------------------------------


def _done(world: World, job: Job) -> None:
    world.fetch(worker="w")
    world.run.finish.ack(job.id, worker_id="w")


def _discarded(world: World, job: Job) -> None:
    world.fetch(worker="w")
    world.run.finish.nack(job.id, worker_id="w", error={"message": "no", "retryable": False})


def _cancelled_while_active(world: World, job: Job) -> None:
    world.fetch(worker="w")
    world.run.jobs.cancel(job.id)


def _expired(world: World, job: Job) -> None:
    world.clock.advance(3_601 * SECOND)
    assert world.state(job) == "discarded"


def _stalled_out(world: World, job: Job) -> None:
    world.fetch(worker="w")
    world.clock.advance(1_801 * SECOND)
    world.sweep()


ENDS: dict[str, tuple[dict[str, Any], Callable[[World, Job], Any]]] = {
    "ack": ({}, _done),
    "discard": ({}, _discarded),
    "cancel": ({}, lambda world, job: world.run.jobs.cancel(job.id)),
    "cancel active": ({}, _cancelled_while_active),
    "expire": ({"expires_at": "+PT1H"}, _expired),
    "stall": ({"retry": {"max_attempts": 1}}, _stalled_out),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("size", ["small", BIG])
def test_every_end_of_a_job_gives_its_room_back_once(world: World, end: str, size: str) -> None:
    options, act = ENDS[end]
    bound(world, max_size=1, max_size_bytes=100_000)
    for _ in range(2):
        job = world.push(size, **options)
        assert counter_value(world)[0] == 1
        assert counter_value(world)[1] > len(size)
        with pytest.raises(QueueFull):
            world.push()
        act(world, job)
        assert counter_value(world) == (0, 0)


def test_a_retry_takes_no_second_place(world: World) -> None:
    bound(world, max_size=1)
    job = world.push(retry={"initial_interval": "PT1S", "jitter": False})
    for _ in range(2):
        world.fetch(worker="w")
        world.run.finish.nack(job.id, worker_id="w", error={"message": "no"})
        world.clock.advance(2 * SECOND)
    assert counter_value(world)[0] == 1
    world.fetch(worker="w")
    world.run.finish.ack(job.id, worker_id="w")
    assert counter_value(world)[0] == 0


def test_a_unique_job_that_replaces_another_leaves_one_place_taken(world: World) -> None:
    bound(world, max_size=5)
    for _ in range(3):
        world.push(unique={"keys": ["type"], "on_conflict": "replace"})
        assert counter_value(world)[0] == 1
    world.push(unique={"keys": ["type"], "on_conflict": "ignore"})
    assert counter_value(world)[0] == 1


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", ["ours", "theirs"])
def test_a_staged_batch_that_fails_gives_its_room_back_once(exact: World, ids: str) -> None:
    bound(exact, max_size=1_000)
    taken = exact.push()
    raw: list[dict[str, Any]] = [{"type": "a", "args": [n]} for n in range(150)]
    if ids == "theirs":
        for one in raw:
            one["id"] = exact.run.ids.uuid7()
        raw[120]["id"] = taken.id
        with pytest.raises(Duplicate):
            exact.run.enqueue.push_batch([envelope.parse(one) for one in raw])
    else:
        from tests.store.doubles import Broken

        client = Broken(exact.client, "batch_write_item", first=3)
        with pytest.raises(BackendError):
            exact.another(client).enqueue.push_batch([envelope.parse(one) for one in raw])
        exact.clock.advance(400 * SECOND)
        exact.sweep()
        exact.sweep()
    assert counter_value(exact)[0] == 1
    assert records(exact) == 1


# --- block --------------------------------------------------------------------------------------


def test_a_push_that_waits_in_vain_is_refused_when_its_time_is_over(world: World) -> None:
    bound(world, max_size=1, overflow_policy="block")
    world.push()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        world.clock.advance(round(seconds * 1_000) + 1)

    world.run.enqueue._bounds._sleep = sleep
    began = world.clock.now_ms()
    with pytest.raises(QueueFull):
        world.run.enqueue.push(envelope.parse({"type": "a", "args": []}), wait_ms=10_000)
    assert 10_000 <= world.clock.now_ms() - began < 10_200
    assert slept[0] < 0.2
    assert len(slept) < 30
    refusals = world.run.table.get(keys.counter("default"), keys.REFUSED) or {}
    assert refusals["n"] == 1, "a refusal is counted once, and not at each look"


# --- block: each look goes by what is there then ------------------------------------------------


@dataclass
class Waiting:
    """A container whose pushes wait without taking time: each wait moves the clock, and something
    may happen in the third.
    """

    world: World
    run: Runtime
    waits: list[float] = field(default_factory=list)
    meanwhile: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        self.run.enqueue._bounds._sleep = self.sleep

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        assert len(self.waits) < 1_000
        self.world.clock.advance(max(1, round(seconds * 1_000)))
        if self.meanwhile is not None and len(self.waits) == 3:
            self.meanwhile()

    def push(self, raw: dict[str, Any] | None = None, **asks: Any) -> Pushed:
        """Push a job into `default`, and wait for room for up to ten seconds."""
        request = envelope.parse({"type": "mail.send", "args": []} | (raw or {}))
        return self.run.enqueue.push(request, wait_ms=10_000, **asks)


@pytest.fixture
def waiting(world: World) -> Waiting:
    """The queue `default` is full with one job, and makes pushes wait."""
    bound(world, max_size=1, overflow_policy="block")
    world.push()
    return Waiting(world, world.another())


@pytest.mark.parametrize(
    ("config", "admitted"),
    [
        ({"max_size": 2}, True),
        ({"max_size": 3}, True),
        ({"max_size": None}, True),
        ({"overflow_policy": "drop_oldest"}, True),
        ({"default_timeout": 7}, False),
    ],
)
def test_what_is_configured_while_a_push_waits_holds_for_it(
    waiting: Waiting, config: dict[str, Any], admitted: bool
) -> None:
    """The bound is raised or removed, or the policy is changed: it is let in at the next look."""
    waiting.meanwhile = lambda: bound(waiting.world, **config)
    if not admitted:
        with pytest.raises(QueueFull):
            waiting.push()
        assert sum(waiting.waits) == pytest.approx(10, abs=0.2)
        return
    pushed = waiting.push()
    assert len(waiting.waits) == 3
    assert waiting.world.state(pushed.job) == "available"
    there = 1 if config.get("overflow_policy") == "drop_oldest" else 2
    assert len(waiting.world.fetch(count=5)) == there


def _narrowed(world: World) -> None:
    bound(world, allowed_job_types=["report.*"])


def _of_others(world: World) -> None:
    bound(world, producers=["billing"])


def _refusing(world: World) -> None:
    bound(world, overflow_policy="reject")


def _too_small(world: World) -> None:
    bound(world, max_size=None, max_size_bytes=1)


def _draining(world: World) -> None:
    world.run.deletion.delete("default", "drain")


def _discarded_slowly(world: World) -> None:
    world.fetch()
    world.run.deletion.delete("default", "discard")


def _about_to_be_rejected(world: World) -> None:
    store = world.run.deletion._queues
    queue = store.get("default")
    assert queue is not None
    store.begin_deletion(queue, Deletion(DeletionStrategy.REJECT), now_ms=world.clock.now_ms())


def _gone_in_strict_mode(world: World) -> None:
    assert world.run.deletion.delete("default", "discard")[1]


CHANGES: dict[str, tuple[Callable[[World], None], type[OjsError]]] = {
    "job types are narrowed": (_narrowed, JobTypeNotAllowed),
    "the producer is taken off the list": (_of_others, PermissionDenied),
    "the policy is reject now": (_refusing, QueueFull),
    "it could never fit any more": (_too_small, PayloadTooLarge),
    "the queue is drained": (_draining, QueueDraining),
    "the queue is being discarded": (_discarded_slowly, QueueDraining),
    "the queue is being deleted if empty": (_about_to_be_rejected, QueueMayStay),
    "the queue is gone, in strict mode": (_gone_in_strict_mode, QueueNotFound),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("batched", [False, True])
def test_a_push_that_waits_is_refused_as_any_push_at_that_moment(
    waiting: Waiting, change: str, batched: bool
) -> None:
    act, refusal = CHANGES[change]
    waiting.meanwhile = lambda: act(waiting.world)
    waiting.run.new_queues._strict = "strict" in change
    request = envelope.parse({"type": "mail.send", "args": []})
    other = envelope.parse({"type": "mail.send", "args": [], "options": {"queue": "another"}})
    if "strict" in change:
        waiting.world.push(queue="another")
    enqueue = waiting.run.enqueue
    push: Callable[..., object] = partial(enqueue.push, request)
    if batched:
        push = partial(enqueue.push_batch, [other, request])
    with pytest.raises(refusal) as refused:
        push(producer="shop", wait_ms=10_000)
    assert len(waiting.waits) == 3
    if batched and not isinstance(refused.value, QueueFull | QueueNotFound):
        assert refused.value.details["index"] == 1
    if isinstance(refused.value, QueueFull):
        config = waiting.world.run.queues.get("default").config
        assert refused.value.queue["strategy"] == config.overflow_policy
    types = [i["type"]["S"] for i in waiting.world.items() if "type" in i and "state" in i]
    assert "mail.send" not in types


def test_a_push_that_waits_makes_a_queue_that_is_gone_anew(waiting: Waiting) -> None:
    """The old queue was discarded; what is let in is in the new one, and stays."""
    waiting.meanwhile = lambda: waiting.world.run.deletion.delete("default", "discard")
    job = waiting.push().job
    assert len(waiting.waits) == 3
    for _ in range(2):
        waiting.world.sweep()
    waiting.world.clock.advance(700 * SECOND)
    waiting.world.sweep()
    assert waiting.world.run.queues.get("default").config.max_size is None
    assert [found.id for found in waiting.world.fetch()] == [job.id]


def test_a_push_that_waits_goes_into_a_queue_that_was_paused(waiting: Waiting) -> None:
    def meanwhile() -> None:
        (job,) = waiting.world.fetch(worker="w")
        waiting.world.run.queues.pause("default")
        waiting.world.run.finish.ack(job.id, worker_id="w")

    waiting.meanwhile = meanwhile
    job = waiting.push().job
    assert len(waiting.waits) == 3
    assert waiting.world.state(job) == "available"
    assert waiting.world.fetch() == []


def test_a_push_into_a_queue_that_blocks_from_now_on_waits(world: World) -> None:
    bound(world, max_size=1)
    world.push()
    waiting = Waiting(world, world.another())
    with pytest.raises(QueueFull):
        waiting.push()
    assert waiting.waits == []
    bound(world, overflow_policy="block")
    waiting.meanwhile = lambda: bound(world, max_size=2)
    waiting.push()
    assert len(waiting.waits) == 3


def test_defaults_of_the_moment_of_admission_stay_with_the_job(waiting: Waiting) -> None:
    """Retries, timeout, retention, lanes, tenants, and whether its room is reserved."""
    waiting.meanwhile = lambda: bound(
        waiting.world,
        max_size=2,
        default_timeout=7,
        default_retry={"max_attempts": 9},
        retention={"completed": "PT1H"},
        lanes=3,
        tenant_fairness={"enabled": True},
    )
    job = waiting.push({"meta": {"tenant_id": "x"}}).job
    config = waiting.world.run.queues.get("default").config
    assert (job.timeout_ms, job.policy.max_attempts) == (7_000, 9)
    assert job.retention == config.retention
    assert job.share is not None
    assert job.reserved_bytes is not None
    waiting.meanwhile, waiting.waits = lambda: bound(waiting.world, max_size=None), []
    later = waiting.push().job
    assert len(waiting.waits) == 3
    assert later.reserved_bytes is None


def test_times_of_a_push_that_waited(waiting: Waiting) -> None:
    """It stands in line since it was let in; what it says itself counts from the request."""
    began_ms = waiting.world.clock.now_ms()
    waiting.meanwhile = lambda: bound(waiting.world, max_size=3)
    first = waiting.world.run.ids.order()
    job = waiting.push({"options": {"expires_at": "+PT1H"}}).job
    let_in_ms = waiting.world.clock.now_ms()
    assert let_in_ms > began_ms
    assert (job.created_ms, job.enqueued_ms) == (let_in_ms, let_in_ms)
    assert job.expires_ms == began_ms + 3_600 * SECOND
    assert job.order is not None
    assert job.order > first
    waiting.waits, began_ms = [], let_in_ms
    waiting.meanwhile = lambda: bound(waiting.world, max_size=4)
    bound(waiting.world, max_size=2)
    later = waiting.push({"options": {"delay_until": "+PT5M"}}).job
    assert later.scheduled_ms == began_ms + 300 * SECOND
    assert later.created_ms > began_ms


def test_a_push_that_waits_is_one_request(world: World) -> None:
    """The middleware sees it once, its key is made known once, and its job has one id."""
    bound(world, max_size=1, overflow_policy="block")
    world.push()
    waiting = Waiting(world, world.another())
    seen: list[str] = []
    limits = waiting.run.enqueue._limits._store

    def link(job: Envelope, following: Next) -> Envelope:
        seen.append("middleware")
        return following(job)

    waiting.run.enqueue._chain = MiddlewareChain([link], timeout_ms=10_000, service="s")
    ids = waiting.run.enqueue._ids
    with (
        mock.patch.object(limits, "register", wraps=limits.register) as register,
        mock.patch.object(ids, "uuid7", wraps=ids.uuid7) as chosen,
    ):
        waiting.meanwhile = lambda: bound(world, max_size=2)
        waiting.push({"options": {"rate_limit": {"key": "k", "concurrency": 1}}})
    assert len(waiting.waits) == 3
    assert (len(seen), register.call_count, chosen.call_count) == (1, 1, 1)


@pytest.mark.parametrize("how", ["id", "unique", "unique, ignored"])
def test_what_came_while_a_push_waited_is_seen(waiting: Waiting, how: str) -> None:
    raw: dict[str, Any] = {"type": "a", "args": [1]}
    if how == "id":
        raw["id"] = waiting.run.ids.uuid7()
    else:
        conflict = "ignore" if "ignored" in how else "reject"
        raw["unique"] = {"keys": ["type", "args"], "on_conflict": conflict}
    there: list[Job] = []

    def meanwhile() -> None:
        bound(waiting.world, max_size=5)
        there.append(waiting.world.run.enqueue.push(envelope.parse(raw)).job)

    waiting.meanwhile = meanwhile
    if "ignored" in how:
        pushed = waiting.push(raw)
        assert pushed.deduplicated
        assert pushed.job.id == there[0].id
    else:
        with pytest.raises(Duplicate):
            waiting.push(raw)
    assert len(waiting.waits) == 3
    assert counter_value(waiting.world)[0] == 2


def test_a_wait_that_ends_tells_the_numbers_of_that_moment(waiting: Waiting) -> None:
    def meanwhile() -> None:
        bound(waiting.world, max_size=9)
        for n in range(8):
            waiting.world.push(n)
        bound(waiting.world, max_size=5)

    waiting.meanwhile = meanwhile
    with pytest.raises(QueueFull) as refused:
        waiting.push()
    assert refused.value.queue == {
        "queue": "default", "depth": 9, "bound": 5, "strategy": "block",
    }  # fmt: skip


def test_a_batch_that_waits_holds_no_room_and_goes_by_what_is_there_then(world: World) -> None:
    """Room that was reserved in the first queue is given back before each pause."""
    bound(world, "a", max_size=5)
    bound(world, "b", max_size=1, overflow_policy="block")
    world.push(queue="b")
    waiting = Waiting(world, world.another())
    levels: list[tuple[int, int]] = []

    def meanwhile() -> None:
        levels.append(counter_value(world, "a"))
        bound(world, "a", default_timeout=7)
        bound(world, "b", max_size=2)

    waiting.meanwhile = meanwhile
    pushed = waiting.run.enqueue.push_batch(
        [envelope.parse({"type": "t", "args": [], "options": {"queue": q}}) for q in "ab"],
        wait_ms=10_000,
    )
    assert levels == [(0, 0)]
    assert len(waiting.waits) == 3
    assert [one.job.timeout_ms for one in pushed] == [7_000, 1_800_000]
    assert (counter_value(world, "a")[0], counter_value(world, "b")[0]) == (1, 2)


def test_a_look_of_a_push_that_waits_costs_one_read_and_one_refused_write(exact: World) -> None:
    bound(exact, max_size=1, overflow_policy="block")
    exact.push()
    waiting = Waiting(exact, exact.another())
    meter = waiting.run.table.meter
    calls: list[tuple[list[str], float, float]] = []

    def look() -> None:
        calls.append((list(meter.calls), meter.read_units, meter.write_units))
        meter.reset()

    def sleep(seconds: float) -> None:
        look()
        waiting.sleep(seconds)

    # A new container does not know which slots of the counter are in use: its first write may meet
    # one, and repeats with another.
    with pytest.raises(QueueFull):
        waiting.push()
    waiting.run.enqueue._bounds._sleep = sleep
    meter.reset()
    with pytest.raises(QueueFull):
        waiting.push()
    assert len(calls) > 10
    # The refused write is not in DynamoDB's answer: it is one unit.
    assert {(tuple(names), reads, writes) for names, reads, writes in calls} == {
        (("GetItem", "UpdateItem"), 1.0, 0.0)
    }
    look()
    assert calls[-1][0] == ["GetItem", "UpdateItem", "UpdateItem"]


def test_as_many_of_those_that_wait_get_in_as_fit_when_they_do(exact: World) -> None:
    """The bound is lowered from ten to two while six wait, and nine of the ten jobs are done."""
    bound(exact, max_size=10, overflow_policy="block")
    for n in range(10):
        exact.push(n)
    all_wait, go_on = threading.Semaphore(0), threading.Event()
    refusals: list[tuple[object, object]] = []

    def push(number: int) -> bool:
        run = exact.another()
        paused: list[float] = []

        def sleep(seconds: float) -> None:
            paused.append(seconds)
            if len(paused) == 1:
                all_wait.release()
                assert go_on.wait(60)
            exact.clock.advance(round(seconds * 1_000) + 1)

        run.enqueue._bounds._sleep = sleep
        try:
            run.enqueue.push(envelope.parse({"type": "a", "args": [number]}), wait_ms=2_000)
        except QueueFull as full:
            refusals.append((full.queue["depth"], full.queue["bound"]))
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        pushes = [pool.submit(push, n) for n in range(6)]
        for _ in pushes:
            assert all_wait.acquire(timeout=60)
        bound(exact, max_size=2)
        for job in exact.fetch(count=9, worker="w"):
            exact.run.finish.ack(job.id, worker_id="w")
        assert counter_value(exact)[0] == 1
        go_on.set()
        admitted = [one.result() for one in pushes]
    assert admitted.count(True) == 1
    assert refusals == [(2, 2)] * 5
    assert counter_value(exact)[0] == 2


# --- drop_oldest --------------------------------------------------------------------------------


@pytest.mark.requirement("BP-u")
def test_the_oldest_in_line_gives_way_whatever_its_priority(world: World) -> None:
    bound(world, max_size=3, overflow_policy="drop_oldest")
    oldest = world.push(priority=50)
    world.clock.advance(1)
    middle = world.push(priority=-50)
    world.push(scheduled_at="+PT1H")
    newest = world.push(priority=0)
    assert world.state(oldest) == "discarded"
    assert [e.type for e in world.run.jobs.get(oldest.id).errors or ()] == ["overflow"]
    assert world.state(middle) == world.state(newest) == "available"
    assert counter_value(world)[0] == 3


def test_bytes_make_the_oldest_give_way_too(world: World) -> None:
    bound(world, max_size_bytes=12_000, overflow_policy="drop_oldest")
    first, second = world.push(BIG), world.push(BIG)
    world.push(BIG)
    assert (world.state(first), world.state(second)) == ("discarded", "available")


def test_nobody_gives_way_for_what_is_refused_in_the_end(world: World) -> None:
    bound(world, max_size=3, overflow_policy="drop_oldest")
    jobs = [world.push(n) for n in range(3)]
    world.fetch(worker="w")
    with pytest.raises(QueueFull):
        batch(world, 3)
    assert sorted(world.state(job) for job in jobs) == ["active", "available", "available"]
    assert counter_value(world)[0] == 3


@pytest.mark.parametrize("policy", ["reject", "drop_oldest"])
@pytest.mark.parametrize("other", ["a", "z"])
def test_nobody_gives_way_where_another_queue_of_the_batch_has_no_room(
    world: World, policy: str, other: str
) -> None:
    bound(world, max_size=1, overflow_policy="drop_oldest")
    job = world.push()
    bound(world, other, max_size=1, overflow_policy=policy)
    world.push(queue=other)
    world.fetch(other, worker="w")
    raw = [{"type": "a", "args": [], "options": {"queue": queue}} for queue in ("default", other)]
    with pytest.raises(QueueFull) as refused:
        world.run.enqueue.push_batch([envelope.parse(one) for one in raw])
    assert refused.value.queue["queue"] == other
    assert world.state(job) == "available"
    assert counter_value(world)[0] == counter_value(world, other)[0] == 1


def test_many_small_jobs_give_way_to_a_large_one_or_none_does(world: World) -> None:
    bound(world, max_size_bytes=9_000, overflow_policy="drop_oldest")
    size = len(BIG) + 100
    small = [world.push("x" * 400) for _ in range(12)]
    large = [world.push("x" * 3_000)]
    world.push(BIG)
    assert 8 < sum(world.state(job) == "discarded" for job in small) <= 12
    assert world.state(large[0]) == "available"
    world.fetch(worker="w", count=20)
    before = counter_value(world)
    with pytest.raises(QueueFull):
        world.push(BIG)
    assert counter_value(world) == before
    assert size < before[1] <= 9_000


@pytest.mark.parametrize("bounds", [{"max_size": 5}, {"max_size_bytes": 5_200}])
def test_what_was_there_before_the_bound_gives_way_one_by_one_too(
    world: World, bounds: dict[str, Any]
) -> None:
    jobs = [world.push("x" * 1_000) for _ in range(5)]
    bound(world, overflow_policy="drop_oldest", **bounds)
    for gone in range(1, 3):
        jobs.append(world.push("x" * 1_000))
        left = [world.state(job) for job in jobs]
        assert left == ["discarded"] * gone + ["available"] * 5
        assert counter_value(world)[0] == 5
    world.clock.advance(400 * SECOND)
    world.sweep()
    assert counter_value(world)[0] == 5


def test_a_staged_batch_makes_hundreds_give_way(exact: World) -> None:
    bound(exact, max_size=250, overflow_policy="drop_oldest")
    batch(exact, 250, priority=3)
    batch(exact, 240)
    states = Counter(i["state"]["S"] for i in exact.items() if i["sk"]["S"] == "@" and "state" in i)
    assert (states["available"], states["discarded"]) == (250, 240)
    assert counter_value(exact)[0] == 250


def test_a_drop_costs_no_more_than_it_must(exact: World) -> None:
    bound(exact, max_size=3, overflow_policy="drop_oldest")
    for n in range(3):
        exact.push(n)
    exact.run.table.meter.reset()
    exact.push()
    # The queue, the depth counter twice; the line, its end, a record; the error, the job that went
    # and the one that came.
    assert len(exact.run.table.meter.calls) <= 9


# --- configuration ------------------------------------------------------------------------------


@pytest.mark.requirement("QC-5", "QC-6")
def test_lowering_a_bound_drops_nothing_and_raising_it_lets_in_at_once(world: World) -> None:
    bound(world, max_size=3)
    for n in range(3):
        world.push(n)
    bound(world, max_size=1)
    assert records(world) == 3
    with pytest.raises(QueueFull):
        world.push()
    bound(world, max_size=4)
    world.push()
    bound(world, max_size=None)
    for n in range(3):
        world.push(n)
    assert records(world) == 7


def test_an_unbounded_queue_pays_nothing_and_a_bounded_one_a_call_and_a_unit(
    exact: World,
) -> None:
    def cost(queue: str) -> list[tuple[int, float]]:
        spent = []
        meter = exact.run.table.meter
        for act in (
            lambda: exact.push(1, queue=queue),
            lambda: exact.fetch(queue, worker="w"),
            lambda: exact.run.finish.ack(job_of(exact, queue), worker_id="w"),
        ):
            meter.reset()
            act()
            spent.append((len(meter.calls), meter.write_units))
        return spent

    exact.run.queues.configure("plain", {})
    bound(exact, "bounded", max_size=100)
    # What a container does once an hour, and the due notes of an interval.
    cost("plain")
    cost("bounded")
    plain, bounded = cost("plain"), cost("bounded")
    more = [(b[0] - p[0], b[1] - p[1]) for p, b in zip(plain, bounded, strict=True)]
    # A claim there has no note, and leaves an entry in the index, which the ack removes.
    assert more == [(1, 1.0), (-1, 0.0), (1, 2.0)]
    bound(exact, "bounded", max_size=1)
    exact.push(queue="bounded")
    exact.run.table.meter.reset()
    with pytest.raises(QueueFull):
        exact.push(queue="bounded")
    assert len(exact.run.table.meter.calls) <= 3


def job_of(world: World, queue: str) -> str:
    (job_id,) = (
        str(i["pk"]["S"]).removeprefix("J|")
        for i in world.items()
        if i.get("queue", {}).get("S") == queue and i.get("state", {}).get("S") == "active"
    )
    return job_id


def test_a_job_that_a_worker_took_before_it_could_be_dropped_tells_no_such_error(
    exact: World,
) -> None:
    bound(exact, max_size=1, overflow_policy="drop_oldest")
    first = exact.push()
    store = exact.run.enqueue._bounds._jobs
    replace = store.replace

    def late(before: Job, after: Job, **more: Any) -> Job:
        exact.fetch(worker="w")
        return replace(before, after, **more)

    store.replace = late  # type: ignore[method-assign]
    with pytest.raises(QueueFull):
        exact.push()
    found = exact.run.jobs.get(first.id)
    assert (found.state, found.errors) == ("active", ())


# --- a bound on a queue that has jobs ------------------------------------------------------------


@pytest.mark.requirement("QC-5", "QC-6")
def test_jobs_that_were_there_count_under_a_new_bound_at_once(world: World) -> None:
    """None of them is dropped, none more gets in."""
    ids = {world.push(n).id for n in range(5)}
    world.push(scheduled_at="+PT1H")
    world.push(pending=True)
    (running,) = world.fetch(worker="w")
    bound(world, max_size=7, max_size_bytes=1_000)
    assert counter_value(world)[0] == 7
    with pytest.raises(QueueFull):
        world.push()
    bound(world, max_size=8)
    world.push()
    with pytest.raises(QueueFull):
        world.push()
    bound(world, max_size=3)
    with pytest.raises(QueueFull) as refused:
        world.push()
    assert (refused.value.queue["depth"], refused.value.queue["bound"]) == (8, 3)
    assert {job.id for job in world.fetch(count=10)} | {running.id} >= ids
    bound(world, max_size=None, max_size_bytes=None)
    for _ in range(9):
        world.push()
    # Those of the time without a bound are counted when there is one again.
    bound(world, max_size=10)
    with pytest.raises(QueueFull):
        world.push()


def test_a_push_that_could_not_know_of_a_new_bound_counts_all_the_same(exact: World) -> None:
    """It read the queue before the bound was set, and is stored after the jobs were counted."""
    for n in range(3):
        exact.push(n)
    late = exact.another()
    queues = late.stores.queues
    seen = queues.get("default")
    late.stores.queues.current = lambda _name: seen  # type: ignore[assignment,method-assign]

    def meanwhile(_seconds: float) -> None:
        late.enqueue.push(envelope.parse({"type": "a", "args": [4]}))

    exact.run.queues._sleep = meanwhile
    bound(exact, max_size=5)
    exact.push()
    with pytest.raises(QueueFull):
        exact.push()
    assert counter_value(exact)[0] == records(exact) == 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("before", [None, 4])
def test_a_configuration_that_fails_half_way_never_lets_too_many_in(
    exact: World, before: int | None
) -> None:
    for number, (run, _) in enumerate(faults(exact)):
        queue = f"q{number}"
        if before is not None:
            bound(exact, queue, max_size=before, default_timeout=60)
        jobs = [exact.push(n, queue=queue) for n in range(4)]
        if before is not None:
            bound(exact, queue, max_size=None)
        attempt(partial(run.queues.configure, queue, {"max_size": 5}))
        found = exact.run.queues.get(queue)
        if found.config.max_size is None:
            # It did not take effect, and what goes in now counts all the same when it does.
            jobs.append(exact.push(queue=queue))
            bound(exact, queue, max_size=5)
        else:
            jobs.append(exact.push(queue=queue))
        with pytest.raises(QueueFull):
            exact.push(queue=queue)
        assert counter_value(exact, queue)[0] == len(jobs) == 5
        assert not exact.run.queues.get(queue).tracking


@pytest.mark.requirement("BP-q")
def test_a_batch_that_could_never_fit_does_not_wait(world: World) -> None:
    """With `block` too."""
    bound(world, max_size=3, overflow_policy="block")
    waited: list[float] = []
    world.run.enqueue._bounds._sleep = waited.append
    requests = [envelope.parse({"type": "a", "args": [n]}) for n in range(4)]
    with pytest.raises(QueueFull) as refused:
        world.run.enqueue.push_batch(requests, wait_ms=5_000)
    assert (refused.value.retryable, refused.value.retry_after_s) == (False, None)
    assert waited == []
    assert records(world) == 0


@pytest.mark.parametrize("bounds", [{"max_size": 2}, {"max_size_bytes": 100}])
def test_what_could_never_fit_drops_nothing_and_is_no_refusal_of_a_full_queue(
    world: World, bounds: dict[str, Any]
) -> None:
    bound(world, overflow_policy="drop_oldest", **bounds)
    jobs = [world.push(n) for n in range(2)]
    before = counter_value(world)
    with pytest.raises((QueueFull, PayloadTooLarge)) as refused:
        batch(world, 20)
    assert not refused.value.retryable
    assert [world.state(job) for job in jobs] == ["available"] * 2
    assert counter_value(world) == before
    assert world.run.table.get(keys.counter("default"), keys.REFUSED) is None


# --- duplicates and full queues -------------------------------------------------------------------


def unique(conflict: str, number: int = 0, **more: Any) -> envelope.JobRequest:
    options = {"unique": {"keys": ["type"], "on_conflict": conflict}, **more}
    return envelope.parse({"type": "u", "args": [number], "options": options})


@pytest.mark.parametrize("policy", ["reject", "block", "drop_oldest"])
@pytest.mark.parametrize("batched", [False, True])
def test_a_full_queue_answers_a_duplicate_with_the_job_that_is_there(
    world: World, policy: str, batched: bool
) -> None:
    bound(world, max_size=2, overflow_policy=policy)
    oldest = world.push()
    there = world.run.enqueue.push(unique("ignore")).job
    before = counter_value(world)
    if batched:
        (pushed,) = world.run.enqueue.push_batch([unique("ignore")])
    else:
        pushed = world.run.enqueue.push(unique("ignore"))
    assert (pushed.job.id, pushed.deduplicated) == (there.id, True)
    with pytest.raises(Duplicate):
        world.run.enqueue.push(unique("reject"))
    with pytest.raises(Duplicate):
        world.run.enqueue.push(envelope.parse({"type": "b", "args": [], "id": there.id}))
    assert world.state(oldest) == "available"
    assert counter_value(world) == before
    assert world.run.table.get(keys.counter("default"), keys.REFUSED) is None


@pytest.mark.parametrize("policy", ["reject", "drop_oldest"])
@pytest.mark.parametrize("batched", [False, True])
def test_a_job_that_replaces_another_takes_over_its_place(
    world: World, policy: str, batched: bool
) -> None:
    bound(world, max_size=2, max_size_bytes=6_000, overflow_policy=policy)
    oldest = world.push()
    job = world.run.enqueue.push(unique("replace")).job
    for content in (1, BIG, 2, 2):
        request = unique("replace", content)  # type: ignore[arg-type]
        if batched:
            ((after,), before) = ([o.job for o in world.run.enqueue.push_batch([request])], job)
        else:
            after, before = world.run.enqueue.push(request).job, job
        assert (world.state(before), world.state(after)) == ("cancelled", "available")
        assert world.state(oldest) == "available"
        sizes = (oldest.reserved_bytes or 0) + (after.reserved_bytes or 0)
        assert counter_value(world) == (2, sizes)
        job = after
    if policy == "reject":
        # No more bytes than the bound has.
        bound(world, max_size_bytes=1_000)
        with pytest.raises(PayloadTooLarge):
            world.run.enqueue.push(unique("replace", BIG))  # type: ignore[arg-type]
        bound(world, max_size_bytes=None)
        assert world.state(job) == "available"


def test_a_job_that_replaces_one_of_another_queue_needs_room_in_its_own(world: World) -> None:
    bound(world, max_size=1)
    bound(world, "other", max_size=1)
    there = world.run.enqueue.push(unique("replace")).job
    filler = world.push(queue="other")
    with pytest.raises(QueueFull):
        world.run.enqueue.push(unique("replace", queue="other"))
    assert world.state(there) == "available"
    world.run.jobs.cancel(filler.id)
    world.run.enqueue.push(unique("replace", queue="other"))
    assert world.state(there) == "cancelled"
    assert (counter_value(world)[0], counter_value(world, "other")[0]) == (0, 1)


@pytest.mark.parametrize("how", ["ignore", "reject", "replace", "id"])
def test_a_duplicate_takes_no_room_while_it_is_looked_at(world: World, how: str) -> None:
    """Whoever comes meanwhile finds the room that there is."""
    bound(world, max_size=2)
    there = world.run.enqueue.push(unique("ignore")).job
    late = world.another()
    counts: list[int] = []
    looked = late.stores.jobs.read_records, late.enqueue._locks.get

    def read(ids: Any) -> Any:
        counts.append(counter_value(world)[0])
        return looked[0](ids)

    def get(digest: str) -> Any:
        counts.append(counter_value(world)[0])
        return looked[1](digest)

    taken = envelope.parse({"type": "b", "args": [], "id": there.id})
    request = taken if how == "id" else unique(how)
    with (
        mock.patch.object(late.enqueue._jobs, "read_records", read),
        mock.patch.object(late.enqueue._locks, "get", get),
        suppress(Duplicate),
    ):
        late.enqueue.push(request)
    assert set(counts) == {1}
    assert counter_value(world)[0] == 1


@pytest.mark.parametrize("batched", [False, True])
def test_a_unique_job_that_came_while_room_was_made_is_the_answer(
    exact: World, batched: bool
) -> None:
    """And a batch of one is answered as a single push is."""
    bound(exact, max_size=2, overflow_policy="drop_oldest")
    for n in range(2):
        exact.push(n)
    late = exact.another()
    bounds = late.enqueue._bounds
    there: list[Job] = []
    drop = bounds._jobs.replace

    def slow(*args: Any, **more: Any) -> Job:
        if not there:
            # All that could be dropped is taken, and the same unique job comes.
            there.append(exact.run.enqueue.push(unique("ignore")).job)
        return drop(*args, **more)

    with mock.patch.object(bounds._jobs, "replace", slow):
        if batched:
            (pushed,) = late.enqueue.push_batch([unique("ignore")])
        else:
            pushed = late.enqueue.push(unique("ignore"))
    assert (pushed.job.id, pushed.deduplicated) == (there[0].id, True)
    left = Counter(i["state"]["S"] for i in exact.items() if "state" in i and "type" in i)
    assert left == {"available": 2, "discarded": 1}
    assert counter_value(exact)[0] == 2


# --- limits on what is handed out ---------------------------------------------------------------


@pytest.mark.requirement("QC-24")
def test_no_more_jobs_run_at_once_than_the_queue_allows(world: World) -> None:
    bound(world, concurrency=3)
    for n in range(10):
        world.push(n)
    running = world.fetch(count=10, worker="w")
    assert len(running) == 3
    assert world.fetch(count=10, worker="v") == []
    world.run.finish.ack(running[0].id, worker_id="w")
    world.run.finish.nack(running[1].id, worker_id="w", error={"message": "no"})
    assert len(world.fetch(count=10, worker="v")) == 2
    world.run.finish.nack(running[2].id, worker_id="w", error=None, requeue=True)
    assert len(world.fetch(count=10, worker="v")) == 1
    assert world.fetch(worker="v") == []


def test_a_place_is_free_again_however_its_job_ends(world: World) -> None:
    def let_the_lease_end(_job: Job) -> None:
        world.clock.advance(1_801 * SECOND)
        world.sweep()

    bound(world, concurrency=1)
    for act in (
        lambda job: world.run.jobs.cancel(job.id),
        let_the_lease_end,
        lambda job: world.run.finish.ack(job.id, worker_id="w"),
    ):
        world.push(retry={"max_attempts": 1})
        (job,) = world.fetch(worker="w")
        world.push()
        assert world.fetch(worker="v") == []
        act(job)
        (other,) = world.fetch(worker="v")
        world.run.finish.ack(other.id, worker_id="v")


def test_a_limited_queue_does_not_hold_up_others(world: World) -> None:
    bound(world, "limited", concurrency=1)
    for n in range(3):
        world.push(n, queue="limited")
        world.push(n, queue="free")
    got = world.run.fetch.fetch(["limited", "free"], 6, "w")
    assert sorted(job.queue for job in got) == ["free"] * 3 + ["limited"]


def test_what_is_granted_and_not_used_is_given_back(world: World) -> None:
    bound(world, concurrency=5, rate_limit={"limit": 5, "period": "PT10S"})
    world.push()
    assert len(world.fetch(count=5, worker="w")) == 1
    for n in range(6):
        world.push(n)
    assert len(world.fetch(count=6, worker="w")) == 4


@pytest.mark.requirement("QC-25")
def test_no_more_jobs_are_handed_out_in_a_period_than_the_queue_allows(world: World) -> None:
    bound(world, rate_limit={"limit": 2, "period": "PT1S"})
    for n in range(8):
        world.push(n)
    times: list[int] = []
    for _ in range(60):
        times += [world.clock.now_ms()] * len(world.fetch(count=5, worker="w"))
        world.clock.advance(100)
    assert len(times) == 8
    for start in times:
        assert sum(start <= at < start + 1_000 for at in times) <= 2
    assert times[-1] - times[0] <= 3 * 1_200


# --- what is resolved at enqueue ----------------------------------------------------------------


@pytest.mark.requirement("QC-30", "QC-31")
@pytest.mark.parametrize("end", ["completed", "cancelled", "discarded"])
def test_done_jobs_are_kept_as_long_as_their_queue_said_then(world: World, end: str) -> None:
    bound(world, retention={end: "PT1H"})
    job = world.push(retry={"on_exhaustion": "discard"})
    bound(world, retention={end: "P90D"})
    if end == "completed":
        _done(world, job)
    elif end == "cancelled":
        world.run.jobs.cancel(job.id)
    else:
        _discarded(world, job)
    world.clock.advance(3_599 * SECOND)
    assert world.state(job) == end
    world.clock.advance(2 * SECOND)
    with pytest.raises(NotFound):
        world.run.jobs.get(job.id)
    # The table's own removal is told the same time.
    pk = keys.job(job.id)
    (record,) = (i for i in world.items() if (i["pk"]["S"], i["sk"]["S"]) == (pk, keys.RECORD))
    assert int(record["ttl"]["N"]) * 1_000 <= world.clock.now_ms()


def test_two_operators_change_different_fields_and_both_are_kept(world: World) -> None:
    bound(world, max_size=3)
    other = world.another()
    seen = other.queues._queues.get("default")
    reads = iter([seen])
    get = other.queues._queues.get
    other.queues._queues.get = lambda name: next(reads, None) or get(name)  # type: ignore[method-assign]
    bound(world, concurrency=4)
    other.queues.configure("default", {"default_timeout": 9})
    config = world.run.queues.get("default").config
    assert (config.max_size, config.concurrency, config.timeout_ms) == (3, 4, 9_000)


@pytest.mark.parametrize("how", ["id", "reject", "ignore", "batch id", "batch reject"])
def test_nobody_gives_way_to_what_is_there_already(world: World, how: str) -> None:
    bound(world, max_size=2, overflow_policy="drop_oldest")
    unique = {"keys": ["type"], "on_conflict": "ignore" if how == "ignore" else "reject"}

    def parsed(job_id: str | None = None) -> envelope.JobRequest:
        more = {"id": job_id} if job_id else {"unique": unique}
        return envelope.parse({"type": "t", "args": [], **more})

    oldest = world.push()
    there = world.run.enqueue.push(parsed()).job
    again = parsed(there.id if "id" in how else None)
    if how == "ignore":
        pushed = world.run.enqueue.push(again)
        assert (pushed.job.id, pushed.deduplicated) == (there.id, True)
    elif how.startswith("batch"):
        with pytest.raises(Duplicate):
            world.run.enqueue.push_batch([again, envelope.parse({"type": "other", "args": []})])
    else:
        with pytest.raises(Duplicate):
            world.run.enqueue.push(again)
    assert world.state(oldest) == world.state(there) == "available"
    assert world.run.stores.depth.value("default").count == 2
