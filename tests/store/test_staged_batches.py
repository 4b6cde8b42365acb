"""Staged batches in slots of the index: who finds those that were left, and what that costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.job import envelope
from ojs.runtime import Runtime
from ojs.services.sweeps import REPLACED_MS, SweepPlan, SweepQueues
from ojs.store.derived.recount import Recount
from ojs.store.jobs.staged_batches import STAGING_GRACE_MS, UNDONE_AGAIN_MS
from ojs.store.queues.due_notes import BUCKET_MS, SETTLED_MS
from ojs.store.table import keys
from ojs.store.table.table import Update
from tests.store.faults import Died, attempt, faults
from tests.store.spending import spending, warm

if TYPE_CHECKING:
    from tests.store.conftest import World


def left(world: World, *, jobs: int = 5, queue: str = "default") -> str:
    """A batch whose request died before the commit; returns its token."""
    run = world.another()
    tokens: list[str] = []

    def dies(token: str, *_: Any) -> None:
        tokens.append(token)
        raise Died

    run.stores.jobs.batches._commit = dies  # type: ignore[method-assign]
    with pytest.raises(Died):
        push(run, jobs, queue)
    return tokens[0]


def push(run: Runtime, jobs: int, queue: str = "default") -> None:
    body = {"type": "t", "args": [], "options": {"queue": queue}}
    run.enqueue.push_batch([envelope.parse(body)] * jobs)


def batches(world: World) -> list[dict[str, Any]]:
    """The items of batches that are not undone."""
    return [item for item in world.items() if item["pk"]["S"].startswith("B|")]


def unfinished(world: World) -> list[dict[str, Any]]:
    """The items of batches that a sweep must read again."""
    items = world.client.scan(TableName=world.table)["Items"]
    return [item for item in items if item["pk"]["S"].startswith("B|") and "wpk" in item]


def move(world: World, token: str, line: str) -> None:
    """Put a batch into another partition of the index; the writer of a slot notes it before."""
    if line != keys.STAGED_WITHOUT_SLOT:
        world.run.stores.due_notes.note([(line, world.clock.now_ms() + STAGING_GRACE_MS)])
    world.run.table.update(Update(keys.batch(token), keys.RECORD, set={"wpk": line}))


def test_batches_are_spread_over_sixteen_partitions(exact: World) -> None:
    for _ in range(64):
        left(exact)
    lines = Counter(item["wpk"]["S"] for item in batches(exact))
    assert set(lines) <= {f"B|{slot:02d}" for slot in range(16)}
    assert len(lines) > 8


def only_what_is_noted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps read the lines that are noted, and no others in turn or because they were away."""
    read = SweepQueues.plan

    def plan(self: SweepQueues) -> SweepPlan:
        found = read(self)
        noted = [line for line in found.due.lines if keys.is_staged(line)]
        return replace(found, staged=noted)

    world.sweep()
    monkeypatch.setattr(SweepQueues, "plan", plan)


def test_a_sweep_undoes_a_batch_in_any_slot_that_is_noted(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_what_is_noted(exact, monkeypatch)
    for _ in range(40):
        left(exact)
    exact.clock.advance(STAGING_GRACE_MS)
    # Ten of each slot.
    assert exact.sweep()["batches_undone"] == 40
    assert batches(exact) == []
    # Their second undoing is noted, too.
    exact.clock.advance(UNDONE_AGAIN_MS)
    exact.sweep()
    assert unfinished(exact) == []


@pytest.mark.parametrize("late_ms", [0, BUCKET_MS + SETTLED_MS])
def test_a_batch_is_undone_whatever_call_of_a_sweep_fails(
    exact: World, late_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the sweep is the last one that reads its interval."""
    only_what_is_noted(exact, monkeypatch)
    for run, _ in faults(exact):
        left(exact)
        exact.clock.advance(STAGING_GRACE_MS + late_ms)
        attempt(partial(run.sweep.run_once, exact.clock.now_ms(), 1_000))
        exact.clock.advance(60_000)
        exact.sweep()
        assert batches(exact) == []


def test_more_batches_than_a_sweep_undoes_are_left_to_the_next(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_what_is_noted(exact, monkeypatch)
    for _ in range(25):
        move(exact, left(exact), keys.staged_slot(3))
    # The interval settles with the first sweep.
    exact.clock.advance(STAGING_GRACE_MS + BUCKET_MS + SETTLED_MS)
    undone = []
    for _ in range(3):
        undone.append(exact.sweep()["batches_undone"])
        exact.clock.advance(60_000)
    assert undone == [10, 10, 5]


def test_each_slot_is_read_once_an_hour(exact: World) -> None:
    """A write of a batch can come after its interval is done; then no note tells of it."""
    exact.sweep()
    exact.clock.advance(REPLACED_MS)
    read: list[str] = []
    for _ in range(60):
        exact.clock.advance(60_000)
        exact.sweep()
        read += exact.run.sweep_queues.plan().staged
    assert sorted(read) == sorted(keys.staged_lines())


def test_after_a_deployment_all_slots_are_read(exact: World) -> None:
    """Version 0.2.1 reads no slot. What was left before it ran, and was replaced, is found."""
    exact.sweep()
    left(exact)
    # It reads only the partition without a slot.
    exact.clock.advance(24 * 3_600_000)
    assert len(batches(exact)) == 1
    exact.another().sweep.run_once(exact.clock.now_ms(), 1_000)
    assert batches(exact) == []


def test_a_batch_of_an_earlier_version_is_undone_by_the_next_sweep(exact: World) -> None:
    """Version 0.2.1 has all batches in one partition, also while both versions run."""
    tokens = [left(exact) for _ in range(3)]
    for token in tokens[:2]:
        move(exact, token, "B")
    exact.clock.advance(STAGING_GRACE_MS)
    assert exact.sweep()["batches_undone"] == 3
    # Its second undoing is found there, too.
    exact.clock.advance(UNDONE_AGAIN_MS)
    exact.sweep()
    assert unfinished(exact) == []


def test_the_longest_due_batches_come_first(exact: World) -> None:
    tokens = []
    for _ in range(5):
        tokens.append(left(exact))
        move(exact, tokens[-1], keys.staged_slot(0))
        exact.clock.advance(1)
    exact.clock.advance(STAGING_GRACE_MS)
    with spending(exact) as spent:
        found = exact.run.stores.jobs.batches.stale(
            keys.staged_slot(0), now_ms=exact.clock.now_ms(), limit=3
        )
    assert found == tokens[:3]
    assert (spent.calls, spent.reads, spent.writes) == (1, 0.5, 0)


def test_a_staged_batch_costs_what_it_cost_in_one_partition(exact: World) -> None:
    """But for the note of the container's slot, once in five minutes."""
    warm(exact)
    for noted in (1, 0):
        with spending(exact) as spent:
            push(exact.run, 5)
        assert (spent.calls, spent.writes) == (4 + noted, 14 + noted)


def test_all_slots_are_read_once_and_only_before_jobs_are_counted(exact: World) -> None:
    """Seventeen queries, for all queues together; none for queues whose counters look right."""
    for name in ("a", "b"):
        exact.run.queues.configure(name, {"max_size": 100})
    exact.run.reconcile.run_once(exact.clock.now_ms(), 1_000)
    exact.clock.advance(700_000)
    slots = exact.run.stores.recount.staged
    spied = mock.patch.object(Recount, "staged", autospec=True, side_effect=lambda _, at: slots(at))
    with spied as read:
        assert exact.run.reconcile.run_once(exact.clock.now_ms(), 1_000)["bounded"] == 2
        assert read.call_count == 0
        for name in ("a", "b"):
            exact.run.queues.configure(name, {"max_size": 90})
        report = exact.run.reconcile.run_once(exact.clock.now_ms(), 1_000)
        assert (report["counted"], read.call_count) == (2, 1)
    with spending(exact) as spent:
        assert slots(exact.clock.now_ms()) == set()
    assert (spent.calls, spent.reads, spent.writes) == (17, 8.5, 0)


def test_room_of_a_batch_in_any_slot_is_left_alone_until_it_is_undone(exact: World) -> None:
    exact.run.queues.configure("a", {"max_size": 100})
    recount = exact.run.stores.recount
    for slot in (0, 7, 15):
        move(exact, left(exact, queue="a"), keys.staged_slot(slot))
        assert recount.staged(exact.clock.now_ms() + 1) == {"a"}
        exact.clock.advance(STAGING_GRACE_MS)
        exact.sweep()
        assert recount.staged(exact.clock.now_ms() + 1) == set()
