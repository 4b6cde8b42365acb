"""Replicas of a queue's record: alike after whatever happens, and read in its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from ojs.domain.errors import (
    BackendContended,
    BackendUnavailable,
    Conflict,
    NotFound,
    QueueDraining,
)
from ojs.domain.job import envelope
from ojs.domain.queue.queue import Deletion, DeletionStrategy, QueueState
from ojs.runtime import Runtime
from ojs.services.sweeps import REPLACED_MS
from ojs.store.deployment.notes import DeploymentStore
from ojs.store.queues.replicas import MAX_COPIES, QueueRecords, replicas_for
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.schema import TABLE
from ojs.store.table.table import Table
from ojs.store.table.values import pack
from tests.store.faults import attempt, faults
from tests.store.spending import WORKER, Spent, spending, warm

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from tests.store.conftest import World

WIDE = "wide"
REPLICAS = MAX_COPIES - 1


def wide(world: World, name: str = WIDE, lanes: int = 16) -> None:
    world.run.queues.configure(name, {"lanes": lanes})


def replicas(world: World, name: str = WIDE) -> int:
    """How many replicas the record of a queue has; all of them are as the record is."""
    found = {(item["pk"]["S"], item["sk"]["S"]): item for item in world.items()}
    record = found.get((keys.queue(name), keys.RECORD), {})
    copies = {key: item for key, item in found.items() if key[0].startswith(keys.queue(f"{name}|"))}
    number = int(record.get("replicas", {"N": "0"})["N"])
    assert copies == {
        (pk := keys.replica(name, n), keys.REPLICA): {
            **record,
            "pk": {"S": pk},
            "sk": {"S": keys.REPLICA},
        }
        for n in range(1, number + 1)
    }
    return number


def test_a_sweep_that_saw_fewer_lanes_makes_no_replicas(exact: World) -> None:
    """It would leave some that the record does not know of, and that no change reaches."""
    wide(exact, lanes=3)
    seen = exact.run.stores.queues.get(WIDE)
    assert seen is not None
    wide(exact, lanes=4)
    replicate(exact.run)
    assert replicas(exact) == 3
    exact.run.stores.queues.replicate(seen)
    assert replicas(exact) == 3


def reading(run: Runtime, copy: int) -> Runtime:
    """A container that reads the record (0) or this replica once it knows of them."""
    run.stores.queues._records._choose = lambda _: copy
    run.stores.queues.current(WIDE)
    return run


def on_each_copy(world: World) -> list[Runtime]:
    return [reading(world.another(), copy) for copy in range(MAX_COPIES)]


@pytest.mark.parametrize(("lanes", "wanted"), [(1, 0), (2, 1), (8, 7), (64, 7)])
def test_the_sweep_makes_replicas_of_queues_with_lanes(
    exact: World, lanes: int, wanted: int
) -> None:
    wide(exact, lanes=lanes)
    assert replicas(exact) == 0
    exact.sweep()
    assert replicas(exact) == wanted == replicas_for(lanes)


def test_more_lanes_have_more_replicas(exact: World) -> None:
    wide(exact, lanes=3)
    exact.sweep()
    (run, *_) = on_each_copy(exact)
    wide(exact, lanes=16)
    assert replicas(exact) == 2
    assert reading(run, 2).stores.queues.current(WIDE).lanes == 16  # type: ignore[union-attr]
    exact.sweep()
    assert replicas(exact) == REPLICAS


def test_a_sweep_that_finds_them_does_nothing(exact: World) -> None:
    wide(exact)
    exact.sweep()
    exact.sweep()
    with spending(exact) as spent:
        exact.sweep()
    assert spent.writes == 0


def test_none_are_made_while_an_older_version_may_write(exact: World) -> None:
    """It would write the record alone."""
    wide(exact)
    DeploymentStore(exact.run.table).note(version="0", now_ms=exact.clock.now_ms())
    exact.sweep()
    exact.clock.advance(REPLACED_MS - 1)
    exact.sweep()
    assert replicas(exact) == 0
    exact.clock.advance(1)
    exact.sweep()
    assert replicas(exact) == REPLICAS


def test_replicas_are_not_projected() -> None:
    assert not TABLE.projects(keys.replica(WIDE, 1), keys.REPLICA)


# --- writes ---------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Runtime], object]] = {
    "pause": lambda run: run.queues.pause(WIDE),
    "resume": lambda run: run.queues.resume(WIDE),
    "configure": lambda run: run.queues.configure(WIDE, {"default_timeout": 9}),
    "bound": lambda run: run.queues.configure(WIDE, {"max_size": 5}),
    "limit": lambda run: run.queues.configure(WIDE, {"concurrency": 2}),
    "share": lambda run: run.queues.configure(WIDE, {"tenant_fairness": {"enabled": True}}),
    "put in a pool": lambda run: run.pools.put("p", {"queues": [WIDE]}),
    "isolate": lambda run: run.pools.put("p", {"queues": [WIDE], "isolated": True}),
    "take out of the pool": lambda run: run.pools.put("p", {"queues": ["other"]}),
    "put back": lambda run: run.pools.put("p", {"queues": ["other", WIDE]}),
    "delete the pool": lambda run: run.pools.delete("p"),
    "widen": lambda run: run.queues.configure(WIDE, {"lanes": 32}),
}


def test_every_change_is_made_to_all(world: World) -> None:
    wide(world)
    wide(world, "other", lanes=2)
    world.sweep()
    before = None
    for what, act in OPERATIONS.items():
        act(world.run)
        world.clock.advance(1)
        assert replicas(world) == REPLICAS, what
        after = world.run.stores.queues.get(WIDE)
        assert after != before, what
        before = after
    assert before is not None
    world.run.backfill.run_once(world.clock.now_ms(), 100)
    assert replicas(world) == REPLICAS


def test_a_deletion_takes_all_and_a_restored_queue_gets_them_again(exact: World) -> None:
    wide(exact)
    exact.sweep()
    exact.push(queue=WIDE)
    exact.run.deletion.delete(WIDE, "drain")
    assert replicas(exact) == REPLICAS
    for run in on_each_copy(exact):
        request = envelope.parse({"type": "a", "args": [], "options": {"queue": WIDE}})
        with pytest.raises(QueueDraining):
            run.enqueue.push(request)
    (job,) = exact.fetch(WIDE)
    exact.run.finish.ack(job.id, worker_id=WORKER)
    knowing = on_each_copy(exact)
    exact.sweep()
    assert exact.run.stores.queues.get(WIDE) is None
    assert replicas(exact) == 0
    (gone,) = exact.run.stores.queues.tombstones(limit=1)
    for run in knowing:
        assert run.stores.queues.current(WIDE) is None
    exact.run.stores.queues.restore(gone)
    exact.sweep()
    assert replicas(exact) == REPLICAS


def test_a_deletion_that_is_refused_leaves_them_alike(exact: World) -> None:
    wide(exact)
    exact.sweep()
    exact.push(queue=WIDE)
    with pytest.raises(Conflict):
        exact.run.deletion.delete(WIDE, "reject")
    assert replicas(exact) == REPLICAS
    assert all(run.stores.queues.current(WIDE).hands_out for run in on_each_copy(exact))  # type: ignore[union-attr]


def finish(run: Runtime) -> None:
    queue = run.stores.queues.get(WIDE)
    if queue is not None:
        deletion = Deletion(DeletionStrategy.DISCARD)
        if queue.deletion is None:
            queue = run.stores.queues.begin_deletion(queue, deletion, now_ms=7)
        run.stores.queues.finish_deletion(queue, deletion, now_ms=run.clock.now_ms())


def replicate(run: Runtime) -> None:
    queue = run.stores.queues.get(WIDE)
    assert queue is not None
    run.stores.queues.replicate(queue)


@pytest.mark.parametrize(
    ("act", "wanted"),
    [
        (OPERATIONS["pause"], 2),
        pytest.param(OPERATIONS["configure"], 2, marks=pytest.mark.exhaustive),
        pytest.param(OPERATIONS["isolate"], 2, marks=pytest.mark.exhaustive),
        (replicate, 2),
        pytest.param(finish, 0, marks=pytest.mark.exhaustive),
    ],
)
def test_they_are_alike_after_a_crash_at_each_call(
    exact: World, act: Callable[[Runtime], object], wanted: int
) -> None:
    done = 0
    for run, _ in faults(exact):
        with suppress(NotFound):
            exact.run.pools.delete("p")
        finish(exact.run)
        exact.clock.advance(1)
        exact.run.stores.queues.create(WIDE, {"lanes": 3}, now_ms=exact.clock.now_ms())
        if act is not replicate:
            replicate(exact.run)
        attempt(partial(act, run))
        assert replicas(exact) in {0, 2}
        act(exact.run)
        assert replicas(exact) == wanted
        done += 1
    assert done > 5


def test_operators_and_sweeps_at_once_leave_them_alike(exact: World) -> None:
    """Each operator sets a field of its own; both are set in the end."""
    wide(exact)
    own = {"default_timeout": 9}, {"lanes": 32}

    def act(config: dict[str, int]) -> None:
        run = exact.another()
        for _ in range(4):
            until_done(lambda: run.sweep.run_once(exact.clock.now_ms(), 100))
            until_done(lambda: run.queues.pause(WIDE))
            until_done(lambda: run.queues.configure(WIDE, config))
            until_done(lambda: run.queues.resume(WIDE))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(act, own))
    exact.sweep()
    assert replicas(exact) == REPLICAS
    queue = exact.run.stores.queues.get(WIDE)
    assert queue is not None
    assert queue.layers.own == own[0] | own[1]
    assert queue.state == "active"


def until_done(act: Callable[[], object]) -> None:
    """A request that others are in the way of is made again."""
    for _ in range(50):
        with suppress(BackendUnavailable, BackendContended):
            act()
            return
    raise AssertionError("never done")


def test_a_queue_that_is_deleted_while_it_is_changed_stays_so(exact: World) -> None:
    """Between the transaction and the look at what it wrote."""
    wide(exact)
    exact.sweep()
    queues = exact.run.stores.queues

    class Gone(Table):
        def transact(self, writes: Any) -> None:
            super().transact(writes)
            finish(exact.another())

    queues._records._table = Gone(exact.client, exact.table)
    with pytest.raises(LostRace):
        queues.set_state(WIDE, QueueState.PAUSED, now_ms=7)
    assert replicas(exact) == 0
    assert queues.get(WIDE) is None


def test_a_change_while_replicas_are_made_is_not_lost(exact: World) -> None:
    """Between the sweep's read of the record and its copies of it."""
    wide(exact)
    records = exact.run.stores.queues._records
    transact = records._table.transact

    class Paused(Table):
        def transact(self, writes: Any) -> None:
            exact.another().queues.pause(WIDE)
            transact(writes)

    records._table = Paused(exact.client, exact.table)
    records.replicate(WIDE, REPLICAS)
    assert replicas(exact) == 0
    exact.another().sweep.run_once(exact.clock.now_ms(), 10)
    assert replicas(exact) == REPLICAS
    for run in on_each_copy(exact):
        assert not run.stores.queues.current(WIDE).hands_out  # type: ignore[union-attr]


def test_copies_of_a_queue_that_was_deleted_and_restored_meanwhile_are_not_made(
    exact: World,
) -> None:
    wide(exact)
    queues = exact.run.stores.queues
    records = queues._records
    transact = records._table.transact

    class Late(Table):
        def transact(self, writes: Any) -> None:
            other = exact.another()
            exact.clock.advance(1)
            other.deletion.delete(WIDE, "reject")
            (gone,) = other.stores.queues.tombstones(limit=1)
            other.stores.queues.restore(gone)
            transact(writes)

    records._table = Late(exact.client, exact.table)
    records.replicate(WIDE, REPLICAS)
    assert replicas(exact) == 0
    assert queues.get(WIDE) is not None


def test_a_missing_replica_is_no_hindrance(exact: World) -> None:
    """A restored table may lack one: what is written then removes the others."""
    wide(exact)
    exact.sweep()
    runs = on_each_copy(exact)
    exact.run.table.delete(keys.replica(WIDE, 3), keys.REPLICA)
    assert all(run.stores.queues.current(WIDE) for run in runs)
    exact.run.queues.pause(WIDE)
    assert replicas(exact) == 0
    assert not any(run.stores.queues.current(WIDE).hands_out for run in runs)  # type: ignore[union-attr]
    exact.sweep()
    assert replicas(exact) == REPLICAS


def test_a_pool_of_many_wide_queues_does_without_them_for_a_minute(exact: World) -> None:
    """A transaction has a hundred writes."""
    queues = [f"w{n}" for n in range(13)]
    for name in queues:
        exact.run.queues.create(name, {"lanes": 8})
    exact.run.queues.create("narrow", {})
    exact.sweep()
    exact.run.pools.put("few", {"queues": queues[:12]})
    assert {replicas(exact, name) for name in queues} == {REPLICAS}
    exact.run.pools.put("p", {"queues": [*queues, "narrow"]})
    assert {replicas(exact, name) for name in queues} == {0}
    stored, _ = exact.run.stores.queues.get_many([*queues, "narrow"])
    assert all("p" in queue.pools for queue in stored.values())
    exact.sweep()
    assert {replicas(exact, name) for name in queues} == {REPLICAS}
    exact.run.pools.delete("p")
    assert {replicas(exact, name) for name in queues} == {0}


# --- reads ----------------------------------------------------------------------------------------


def test_a_pause_holds_from_the_next_fetch_on_whatever_is_read(exact: World) -> None:
    wide(exact)
    exact.sweep()
    for _ in range(MAX_COPIES):
        exact.push(queue=WIDE)
    runs = on_each_copy(exact)
    exact.run.queues.pause(WIDE)
    assert [run.fetch.fetch([WIDE], 1, WORKER) for run in runs] == [[]] * MAX_COPIES
    exact.run.queues.resume(WIDE)
    assert [len(run.fetch.fetch([WIDE], 1, WORKER)) for run in runs] == [1] * MAX_COPIES


def test_a_pool_isolates_it_from_the_next_fetch_on_whatever_is_read(exact: World) -> None:
    wide(exact)
    exact.sweep()
    exact.push(queue=WIDE)
    runs = on_each_copy(exact)
    exact.run.pools.put("p", {"queues": [WIDE], "isolated": True})
    assert [run.fetch.fetch([WIDE], 1, WORKER) for run in runs] == [[]] * MAX_COPIES


def one_life(world: World) -> tuple[Spent, list[str]]:
    """What the push, fetch and ack of one job spend, and their calls."""
    calls: list[str] = []
    with spending(world) as spent:
        world.push(queue=WIDE)
        calls += world.run.table.meter.calls
        (job,) = world.fetch(WIDE)
        world.run.finish.ack(job.id, worker_id=WORKER)
    return spent, calls


def test_replicas_cost_pushes_and_fetches_nothing(exact: World) -> None:
    """The same calls and units, and the keys of replicas in place of the record's."""
    wide(exact, lanes=2)
    exact.run.stores.queues._records._choose = lambda _: 1
    exact.run.fetch._choose = exact.run.enqueue._choose = lambda _: 0
    warm(exact)
    one_life(exact)
    before = one_life(exact)
    exact.sweep()
    exact.run.stores.queues.current(WIDE)
    exact.clock.advance(1)
    assert exact.run.stores.queues._records._any(WIDE)[0] == keys.replica(WIDE, 1)
    assert one_life(exact) == before


@pytest.mark.parametrize(("lanes", "calls", "writes", "reads"), [(1, 1, 1, 0), (16, 3, 16, 1)])
def test_a_change_of_a_queue_without_lanes_costs_what_it_did(
    exact: World, lanes: int, calls: int, writes: int, reads: int
) -> None:
    """With lanes: an update that finds replicas (AWS takes a unit, and tells nothing of it), a
    transaction of eight, and a look at it.
    """
    wide(exact, lanes=lanes)
    exact.sweep()
    with spending(exact) as spent:
        exact.run.stores.queues.set_state(WIDE, QueueState.PAUSED, now_ms=7)
    assert (spent.calls, spent.writes, spent.reads) == (calls, writes, reads)


def test_a_container_that_remembers_replicas_that_are_gone_reads_the_record(exact: World) -> None:
    wide(exact)
    exact.sweep()
    run = reading(exact.another(), 5)
    exact.run.stores.queues._records.drop(WIDE, REPLICAS)
    run.table.meter.reset()
    assert run.stores.queues.current(WIDE) is not None
    assert run.table.meter.calls == ["GetItem"] * 2
    run.table.meter.reset()
    found, _ = run.stores.queues.current_many([WIDE, "other"])
    assert (list(found), run.table.meter.calls) == ([WIDE], ["BatchGetItem"])


class Keys:
    """A client that counts the reads of each key."""

    def __init__(self, item: dict[str, Any]) -> None:
        self.read: Counter[str] = Counter()
        self._item = item

    def get_item(self, *, Key: Any, **_: Any) -> Any:  # noqa: N803
        self.read[Key["pk"]["S"]] += 1
        return {"Item": pack(self._item) | Key}

    def batch_get_item(self, *, RequestItems: Any, **_: Any) -> Any:  # noqa: N803
        ((table, wanted),) = RequestItems.items()
        items = [self.get_item(Key=key)["Item"] for key in wanted["Keys"]]
        return {"Responses": {table: items}}


@pytest.mark.parametrize("many", [False, True])
def test_3_000_reads_are_spread_over_all_copies(many: bool) -> None:
    client = Keys({"state": "active", "replicas": REPLICAS})
    records = QueueRecords(Table(cast("DynamoDBClient", client), "t"))
    for _ in range(3_000):
        if many:
            records.any_copies([WIDE])
        else:
            records.any_copy(WIDE)
    assert len(client.read) == MAX_COPIES
    assert max(client.read.values()) < 3_000 / MAX_COPIES * 1.5
