"""Staged batches in slots of the index: who finds those that were left, and what that costs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.job import envelope
from ojs.runtime import Runtime
from ojs.store.derived.recount import Recount
from ojs.store.jobs.staged_batches import STAGING_GRACE_MS
from ojs.store.table import keys
from ojs.store.table.table import Update
from tests.store.faults import Died
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


def move(world: World, token: str, line: str) -> None:
    """Put a batch into another partition of the index."""
    world.run.table.update(Update(keys.batch(token), keys.RECORD, set={"wpk": line}))


def test_batches_are_spread_over_sixteen_partitions(exact: World) -> None:
    for _ in range(64):
        left(exact)
    lines = Counter(item["wpk"]["S"] for item in batches(exact))
    assert set(lines) <= {f"B|{slot:02d}" for slot in range(16)}
    assert len(lines) > 8


@pytest.mark.parametrize("first", range(4))
def test_four_sweeps_in_a_row_undo_a_batch_of_any_slot(exact: World, first: int) -> None:
    for slot in range(keys.STAGED_SLOTS):
        move(exact, left(exact), keys.staged_slot(slot))
    exact.clock.advance(STAGING_GRACE_MS + first * 60_000)
    undone = []
    for _ in range(4):
        undone.append(exact.sweep()["batches_undone"])
        exact.clock.advance(60_000)
    assert undone == [4, 4, 4, 4]
    assert batches(exact) == []


def test_containers_that_sweep_once_each_undo_all_in_four_minutes(exact: World) -> None:
    for slot in range(keys.STAGED_SLOTS):
        move(exact, left(exact), keys.staged_slot(slot))
    exact.clock.advance(STAGING_GRACE_MS)
    for _ in range(4):
        exact.another().sweep.run_once(exact.clock.now_ms(), 1_000)
        exact.clock.advance(60_000)
    assert batches(exact) == []


def test_a_batch_of_an_earlier_version_is_undone_by_the_next_sweep(exact: World) -> None:
    """Version 0.2.1 has all batches in one partition, also while both versions run."""
    tokens = [left(exact) for _ in range(3)]
    for token in tokens[:2]:
        move(exact, token, "B")
    exact.clock.advance(STAGING_GRACE_MS)
    assert exact.sweep()["batches_undone"] >= 2
    # Its second undoing is found there, too.
    exact.sweep()
    exact.clock.advance(3_600_000)
    exact.sweep()
    items = exact.client.scan(TableName=exact.table)["Items"]
    notes = [item for item in items if item["pk"]["S"].startswith("B|")]
    assert len(notes) == 3
    assert all("wpk" not in note for note in notes)


def test_the_longest_due_batches_come_first(exact: World) -> None:
    tokens = []
    for _ in range(30):
        tokens.append(left(exact))
        exact.clock.advance(1)
    exact.clock.advance(STAGING_GRACE_MS)
    batches_ = exact.run.stores.jobs.batches
    now_ms = exact.clock.now_ms()
    all_of_them = [
        token for turn in range(4) for token in batches_.stale(now_ms=now_ms, limit=30, turn=turn)
    ]
    assert sorted(all_of_them) == sorted(tokens)
    for turn in range(4):
        found = batches_.stale(now_ms=now_ms, limit=3, turn=turn)
        theirs = [t for t in tokens if t in batches_.stale(now_ms=now_ms, limit=30, turn=turn)]
        assert found == theirs[:3]


def test_what_a_sweep_spends_on_batches(exact: World) -> None:
    """Five queries, half a unit each; four of them are for the slots."""
    found = exact.run.stores.jobs.batches
    with spending(exact) as spent:
        assert found.stale(now_ms=exact.clock.now_ms(), limit=10, turn=0) == []
    assert (spent.calls, spent.reads, spent.writes) == (5, 2.5, 0)


def test_a_staged_batch_costs_what_it_cost_in_one_partition(exact: World) -> None:
    warm(exact)
    with spending(exact) as spent:
        push(exact.run, 5)
    assert (spent.calls, spent.writes) == (4, 14)


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
