"""Dying at every call of the paths that have no such test of their own, and the minute after it.

A row of the table is a situation, a call, and what must hold when the caller has tried again as an
SDK would, the sweeps have run as the scheduler runs them, and workers have done what is there. The
other paths: `tests.store.test_crashes` (push, fetch, ack, nack, cancel, …), and the modules of
bounds, permits, pools, rate limits, queues' ends, tenants, tags, dead letters and the projection.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from functions.sweep import metrics
from functions.sweep.handler import SweepFailed
from functions.sweep.handler import handler as minute
from ojs import runtime
from ojs.domain.errors import Conflict, Duplicate, NotFound, QueueFull
from ojs.domain.job import envelope
from ojs.domain.pool.pool import pool_semaphore
from ojs.runtime import Runtime
from ojs.store.table import keys, values
from ojs.store.table.values import number
from tests.store.conftest import make_world
from tests.store.faults import Faulty, attempt, orphans
from tests.store.permits import lost_permit

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine
    from ojs.domain.job.job import Job
    from tests.store.conftest import World

SECOND = 1_000
EVENT = json.loads(
    (Path(__file__).parents[2] / "events" / "sweep" / "schedule.json").read_text("utf-8")
)
MOST_CALLS = 120
READS = ("get_item", "batch_get_item", "query", "scan")
# Who dies before a call has done what one has that dies after the call before it, and after a call
# that only reads what one has that died after the write before. The last two are left out where a
# situation takes long to make and to bring to rest, unless CRASH_FAULTS=all.
FAULTS = ("died after", "timed out", "answer lost", "ThrottlingException")
FEW = FAULTS if os.environ.get("CRASH_FAULTS") == "all" else FAULTS[:2]


@dataclass
class Scene:
    """One fault in one situation."""

    world: World
    # The container that goes wrong.
    run: Runtime
    fault: str
    # Jobs that somebody was told are stored, or that may be, by whether they must be.
    jobs: dict[str, bool] = field(default_factory=dict)
    told: Any = None
    found: dict[str, Any] = field(default_factory=dict)
    queue: str = "q"
    pool: str = "p"
    worker: str = "w"

    @property
    def well(self) -> Runtime:
        """A container with which nothing is wrong."""
        return self.world.run

    def push(self, count: int = 1, **options: Any) -> list[str]:
        """Jobs that are acknowledged."""
        found = []
        for _ in range(count):
            meta = options.pop("meta", None)
            raw: dict[str, Any] = {"type": "t", "args": [], "options": {"queue": self.queue}}
            raw["options"] |= options
            if meta:
                raw["meta"] = meta
            found.append(self.well.enqueue.push(envelope.parse(raw)).job.id)
        self.jobs |= dict.fromkeys(found, True)
        return found

    def make_pool(self, **more: Any) -> None:
        self.well.pools.put(self.pool, {"queues": [self.queue, "r"], **more})

    def fetch(self, count: int = 1, run: Runtime | None = None) -> list[Job]:
        """As a worker of the pool, which there may be."""
        run = run or self.well
        return run.fetch.fetch([self.queue], count, self.worker, pool=self.pool)

    def minutes(self, count: int = 1, ms: int = 61 * SECOND) -> None:
        """As the scheduler runs the sweeps."""
        runtime.use(self.well)
        for _ in range(count):
            self.world.clock.advance(ms)
            with mock.patch.object(metrics, "_put"):
                minute(EVENT, None)


@dataclass(frozen=True)
class Row:
    """A line of the table. `again`: whether a caller that had no answer asks again."""

    name: str
    before: Callable[[Scene], Any]
    act: Callable[[Scene, Runtime], Any]
    after: Callable[[Scene], None] = lambda _: None
    again: bool = True
    faults: tuple[str, ...] = FEW


class Writing(Faulty):
    """A faulty client whose writes alone count."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name) if name in READS else super().__getattr__(name)


def scenes(engine: DynamoDBClient, row: Row) -> Iterator[Scene]:
    """One for each call and each way in which it goes wrong."""
    for fault in row.faults:
        for at in range(1, MOST_CALLS):
            # A table of its own: a sweep goes over all that the others left.
            world = make_world(engine)
            of_writes = fault in ("died after", "answer lost")
            client = (Writing if of_writes else Faulty)(engine, at, fault)
            scene = Scene(world, world.another(client), f"{fault} at call {at}")
            row.before(scene)
            yield scene
            assert orphans(world) == []
            engine.delete_table(TableName=world.table)
            if client.calls < at:
                break
        else:
            pytest.fail(f"{row.name}: a path of {MOST_CALLS} calls")


# --- situations -----------------------------------------------------------------------------------


def nothing(_: Scene) -> None:
    pass


def running(scene: Scene, count: int = 1, **more: Any) -> None:
    """A worker has jobs, and something is left in line."""
    scene.push(count + 1, visibility_timeout_ms=30_000, retry={"max_attempts": 3})
    scene.found["held"] = [job.id for job in scene.fetch(count)]
    assert len(scene.found["held"]) == count


def pooled(scene: Scene, **more: Any) -> None:
    scene.make_pool(**more)
    info = {"concurrency": 5}
    scene.well.workers.register(scene.worker, info, scene.pool)


def running_in_pool(scene: Scene) -> None:
    """A pool with places; one is taken."""
    pooled(scene, concurrency=2)
    running(scene)


def loaded(scene: Scene) -> None:
    """A pool that counts by worker, and in all."""
    pooled(scene, concurrency=3, strategy="least-loaded")
    running(scene)


def late(scene: Scene) -> None:
    """A worker of a pool whose lease ran out, of a queue with a limit of its own."""
    pooled(scene, concurrency=2)
    scene.well.queues.configure(scene.queue, {"concurrency": 2})
    running(scene)
    scene.world.clock.advance(31 * SECOND)
    scene.well.sweep.run_once(scene.world.clock.now_ms(), 1_000)


def bounded(scene: Scene, policy: str = "reject") -> None:
    """A queue with room for one more."""
    told = {"max_size": 2, "overflow_policy": policy}
    scene.well.queues.configure(scene.queue, told)
    scene.push(1, visibility_timeout_ms=30_000)


def full(scene: Scene) -> None:
    bounded(scene, "drop_oldest")
    scene.push(1)
    for job_id in scene.jobs:
        # Each may give way, as its queue says.
        scene.jobs[job_id] = False


def fair(scene: Scene) -> None:
    scene.well.queues.configure(scene.queue, {"tenant_fairness": {"enabled": True}})
    for tenant in "aab":
        scene.push(meta={"tenant_id": tenant}, visibility_timeout_ms=30_000)


def fair_and_dead(scene: Scene) -> None:
    fair(scene)
    (job,) = scene.fetch()
    scene.well.finish.nack(job.id, error={"code": "DEAD_LETTER"}, worker_id=scene.worker)
    scene.found["dead"] = job.id


def unique(scene: Scene) -> None:
    (scene.found["first"],) = scene.push(unique={"key": "u", "on_conflict": "reject"})


def paused_and_full(scene: Scene) -> None:
    scene.push(2)
    scene.well.queues.pause(scene.queue)


def due(scene: Scene) -> None:
    """Something of everything that the minute has to do."""
    pooled(scene, concurrency=2, starvation_prevention={"rotation_interval": "PT1S"})
    scene.well.queues.configure(scene.queue, {"max_size": 20, "concurrency": 2})
    running(scene)
    scene.push(scheduled_at="+PT5S")
    (late,) = scene.push(pending=True, expires_at="+PT5S")
    scene.jobs[late] = False
    lost_permit(scene.well, pool_semaphore(scene.pool), now_ms=scene.world.clock.now_ms())
    scene.world.clock.advance(31 * SECOND)


# --- calls ----------------------------------------------------------------------------------------


def push(scene: Scene, run: Runtime, **options: Any) -> Any:
    chosen = scene.found.setdefault("chosen", scene.well.ids.uuid7())
    scene.jobs.setdefault(chosen, False)
    raw = {"type": "t", "id": chosen, "args": [], "options": {"queue": scene.queue, **options}}
    run.enqueue.push(envelope.parse(raw))
    scene.jobs[chosen] = True
    return True


def push_unique(scene: Scene, run: Runtime) -> Any:
    scene.jobs[scene.found["first"]] = False
    return push(scene, run, unique={"key": "u", "on_conflict": "replace"})


def push_uniques(scene: Scene, run: Runtime) -> Any:
    """A batch in which one replaces another job, one is new, one has no key."""
    chosen = scene.found.setdefault("chosen", [scene.well.ids.uuid7() for _ in range(3)])
    scene.jobs |= {one: scene.jobs.get(one, False) for one in chosen}
    scene.jobs[scene.found["first"]] = False
    keyed = [{"key": "u", "on_conflict": "replace"}, {"key": "x"}, None]
    raw = [
        {
            "type": "t",
            "id": one,
            "args": [],
            "options": {"queue": scene.queue, **({"unique": key} if key else {})},
        }
        for one, key in zip(chosen, keyed, strict=True)
    ]
    run.enqueue.push_batch([envelope.parse(one) for one in raw])
    scene.jobs |= dict.fromkeys(chosen, True)
    return True


def fetch(scene: Scene, run: Runtime) -> Any:
    return scene.fetch(2, run)


def ack(scene: Scene, run: Runtime) -> Any:
    return run.finish.ack(scene.found["held"][0], worker_id=scene.worker)


def fail(scene: Scene, run: Runtime) -> Any:
    error = {"code": "x"}
    return run.finish.nack(scene.found["held"][0], error=error, worker_id=scene.worker)


def hand_back(scene: Scene, run: Runtime) -> Any:
    held = scene.found["held"][0]
    return run.finish.nack(held, error=None, worker_id=scene.worker, requeue=True)


def cancel(scene: Scene, run: Runtime) -> Any:
    one = next(iter(scene.jobs))
    # It is not to be done any more; whether it was cancelled already is told by its state.
    scene.jobs[one] = False
    return run.jobs.cancel(one)


def beat(scene: Scene, run: Runtime) -> Any:
    return run.workers.beat(scene.worker, active_jobs=scene.found["held"], pool=scene.pool)


def report(scene: Scene, run: Runtime) -> Any:
    held = scene.found["held"][0]
    return run.jobs.report_progress(held, progress=0.5, worker_id=scene.worker)


def revive(scene: Scene, run: Runtime) -> Any:
    return run.redrive.retry(scene.found["dead"])


def put_pool(scene: Scene, run: Runtime, **more: Any) -> Any:
    run.pools.put(scene.pool, {"queues": [scene.queue], **more})
    return True


def drop_pool(scene: Scene, run: Runtime) -> Any:
    run.pools.delete(scene.pool)
    return True


def register(scene: Scene, run: Runtime) -> Any:
    return run.workers.register(scene.worker, {"concurrency": 2}, scene.pool)


def sign_off(scene: Scene, run: Runtime) -> Any:
    # It is gone, whoever is told that it was not there.
    with suppress(NotFound):
        run.workers.remove(scene.worker)
    return True


def pause(scene: Scene, run: Runtime) -> Any:
    return run.queues.pause(scene.queue)


def create(scene: Scene, run: Runtime) -> Any:
    with suppress(Conflict):
        run.queues.create(scene.queue, {"max_size": 5})
    return True


def reject(scene: Scene, run: Runtime) -> Any:
    with suppress(Conflict):
        run.deletion.delete(scene.queue, "reject")
    return True


def sweep(scene: Scene, run: Runtime) -> Any:
    """The whole minute, as it is run."""
    runtime.use(run)
    try:
        with mock.patch.object(metrics, "_put"):
            minute(EVENT, None)
    finally:
        runtime.use(scene.well)
    return True


# --- what must hold -------------------------------------------------------------------------------


def is_paused(scene: Scene) -> None:
    assert scene.well.queues.get(scene.queue).paused
    scene.well.queues.resume(scene.queue)


def is_full_at_most(scene: Scene) -> None:
    depth = sum(not scene.well.jobs.get(one).state.terminal for one in exist(scene))
    assert depth <= 2


def dropped_no_more_than_two(scene: Scene) -> None:
    """One for the job, and one for the room that was taken by who died."""
    is_full_at_most(scene)
    states = Counter(scene.well.jobs.get(one).state.value for one in exist(scene))
    assert states["discarded"] <= 2


def exist(scene: Scene) -> list[str]:
    found = []
    for one in scene.jobs:
        with suppress(NotFound):
            found.append(scene.well.jobs.get(one).id)
    return found


def has_its_bound(scene: Scene) -> None:
    assert scene.well.queues.get(scene.queue).config.max_size == 5


def is_unknown(scene: Scene) -> None:
    with pytest.raises(NotFound):
        scene.well.workers.get(scene.worker)


def one_holds_the_key(scene: Scene) -> None:
    chosen = scene.found["chosen"]
    mine = chosen if isinstance(chosen, str) else chosen[0]
    states = [scene.well.jobs.get(one).state.value for one in (mine, scene.found["first"])]
    assert states == ["available", "cancelled"]


def knows_its_pool(scene: Scene) -> None:
    assert scene.well.workers.get(scene.worker).pool == scene.pool


def attempts_count_once(scene: Scene) -> None:
    assert scene.well.jobs.get(scene.found["held"][0]).attempt == 1


def is_fair(scene: Scene) -> None:
    """The pool and its queue say the same, and the limit holds."""
    assert scene.well.pools.get(scene.pool).fairness is not None
    assert scene.well.queues.get(scene.queue).fairness is not None
    got = scene.well.fetch.fetch(None, 9, scene.worker, pool=scene.pool)
    assert len(got) + len(scene.found["held"]) <= 2


def is_no_pool(scene: Scene) -> None:
    assert scene.well.queues.get(scene.queue).pools == {}
    with pytest.raises(NotFound):
        scene.well.pools.get(scene.pool)


limited_and_fair = partial(put_pool, concurrency=2, tenant_fairness={"enabled": True})
pending_pool = partial(pooled, strategy="round-robin")

ROWS = (
    Row("push into the last place", bounded, push, is_full_at_most, faults=FAULTS),
    Row("push where another gives way", full, push, dropped_no_more_than_two),
    Row("push that replaces by its key", unique, push_unique, one_holds_the_key, faults=FAULTS),
    Row("batch that replaces by its key", unique, push_uniques, one_holds_the_key),
    Row("cancel in a bounded queue", bounded, cancel, is_full_at_most, faults=FAULTS),
    Row("fetch of a fair queue", fair, fetch, again=False),
    Row("retry into a fair queue", fair_and_dead, revive),
    Row("fetch that makes its worker known", pending_pool, fetch, again=False, faults=FAULTS),
    Row("ack of a pool's job", running_in_pool, ack, attempts_count_once),
    Row("ack by a worker that counts", loaded, ack, attempts_count_once),
    Row("failure of a pool's job", running_in_pool, fail, attempts_count_once),
    Row("hand back of a pool's job", loaded, hand_back),
    Row("cancel of a pool's job", running_in_pool, cancel),
    Row("ack by a late worker", late, ack, attempts_count_once),
    Row("failure by a late worker", late, fail, attempts_count_once),
    Row("heartbeat of a late worker", late, beat, attempts_count_once),
    Row("heartbeat", running_in_pool, beat, attempts_count_once, faults=FAULTS),
    Row("progress", running_in_pool, report, attempts_count_once),
    Row("make a pool fair and limited", running_in_pool, limited_and_fair, is_fair),
    Row("delete a pool", running_in_pool, drop_pool, is_no_pool, faults=FAULTS),
    Row("register a worker with a pool", pending_pool, register, knows_its_pool, faults=FAULTS),
    Row("forget a worker", running_in_pool, sign_off, is_unknown, faults=FAULTS),
    Row("pause", paused_and_full, pause, is_paused, faults=FAULTS),
    Row("create a queue", nothing, create, has_its_bound, faults=FAULTS),
    Row(
        "delete a paused queue that is not empty", paused_and_full, reject, is_paused, faults=FAULTS
    ),
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_nothing_that_was_promised_is_lost(
    dynoxide: Engine, dynamodb: DynamoDBClient, row: Row
) -> None:
    for scene in scenes(dynamodb, row):
        act = partial(row.act, scene)
        scene.told = attempt(partial(act, scene.run))
        # No two requests are made in the same millisecond by the same client.
        scene.world.clock.advance(SECOND)
        if scene.told is None and row.again:
            # What it had done already is refused, as it is to an SDK.
            with suppress(Conflict, Duplicate, NotFound, QueueFull):
                act(scene.well)
        if row.act is reject:
            scene.minutes()
        row.after(scene)
        comes_to_rest(scene)


@pytest.mark.exhaustive
def test_a_minute_that_dies_anywhere_is_made_up_for_by_the_next(
    dynoxide: Engine, dynamodb: DynamoDBClient
) -> None:
    row = Row("the minute", due, sweep, faults=FEW[-1:])
    for scene in scenes(dynamodb, row):
        # A part of it that fails is told at its end.
        with suppress(SweepFailed):
            attempt(partial(sweep, scene, scene.run))
        comes_to_rest(scene)


def comes_to_rest(scene: Scene) -> None:
    """Leases run out, the sweeps run; workers do what is there; all that counts is at nothing."""
    scene.minutes(1, 1_900 * SECOND)
    done: Counter[str] = Counter()
    for _ in range(5):
        while got := scene.well.fetch.fetch([scene.queue], 50, "z", pool=scene.pool):
            for job in got:
                done[job.id] += 1
                assert scene.well.finish.ack(job.id, worker_id="z").state == "completed"
        counts = counted(scene)
        if not any(counts.values()) and all(map(partial(over, scene), scene.jobs.items())):
            break
        scene.minutes()
    assert set(done.values()) <= {1}
    assert not any(counts.values()), f"permits or room that no job takes: {counts}"
    for one, must in scene.jobs.items():
        assert over(scene, (one, must)), shown(scene, one)


def counted(scene: Scene) -> dict[str, int]:
    """What depth counters and semaphores count."""
    found = {}
    for item in map(values.unpack, scene.world.items()):
        pk, sk = str(item["pk"]), str(item["sk"])
        if pk.startswith(keys.counter("")) and sk in (keys.DEPTH, keys.SEMAPHORE):
            found[f"{pk} {sk}"] = number(item, "n")
    return found


def shown(scene: Scene, job_id: str) -> str:
    try:
        job = scene.well.jobs.get(job_id)
    except NotFound:
        return f"{job_id} is lost"
    return f"{scene.fault}: {job_id} is {job.state} after {job.attempt} attempts: {job.errors}"


def over(scene: Scene, job: tuple[str, bool]) -> bool:
    """Whether a job is as it must be in the end."""
    job_id, must = job
    try:
        state = scene.well.jobs.get(job_id).state.value
    except NotFound:
        return not must
    return state == "completed" or (state in ("cancelled", "discarded") and not must)
