"""Depth counters: each write takes effect once, whatever happens to its answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from ojs.clock import ManualClock
from ojs.domain.errors import OjsError
from ojs.domain.ids import IdSource
from ojs.store.bounds import depth_counter
from ojs.store.bounds.depth_counter import SLOTS, BoundReached, CapacityUse, DepthCounter
from ojs.store.table.table import Table
from tests.simulation.memory import Memory

NOW_MS = 1_780_000_000_000
QUEUE = "q"
ONE = CapacityUse({NOW_MS // 20_000: (1, 10)})


class Client:
    """A client to whose writes something happens, as `fault` says before each."""

    def __init__(self, memory: Memory, fault: Callable[[], str | None]) -> None:
        self._memory, self._fault = memory, fault
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        operation: Callable[[Any], Any] = getattr(self._memory, name)

        def call(**arguments: Any) -> Any:
            self.calls += 1
            fault = self._fault() if name == "update_item" else None
            if fault == "refused":
                raise ClientError({"Error": {"Code": "ThrottlingException"}}, name)
            if fault == "unheard":
                raise ReadTimeoutError(endpoint_url="")
            if fault == "lost":
                with suppress(ClientError):
                    operation(arguments)
                raise ReadTimeoutError(endpoint_url="")
            return operation(arguments)

        return call


def counter(client: Client, seed: int = 0, clock: ManualClock | None = None) -> DepthCounter:
    table = Table(client, "t", sleep=lambda _: None)  # type: ignore[arg-type]
    chance = random.Random(seed)
    return DepthCounter(table, IdSource(clock or ManualClock(NOW_MS), chance.randbytes))


def reserve(one: DepthCounter, bound: int = 8) -> None:
    one.reserve(QUEUE, ONE, max_count=bound, max_size=None, warn_at=0.8, now_ms=NOW_MS)


def release(one: DepthCounter) -> None:
    one.release(QUEUE, ONE, now_ms=NOW_MS)


@pytest.mark.parametrize("faults", [["lost"], ["unheard"], ["lost", "lost"], ["refused", "lost"]])
def test_a_lost_answer_counts_once(faults: list[str]) -> None:
    left: list[str] = []
    one = counter(Client(Memory(), lambda: left.pop(0) if left else None))
    reserve(one)
    left[:] = faults
    reserve(one)
    assert one.value(QUEUE).count == 2
    left[:] = faults
    release(one)
    assert one.value(QUEUE).count == 1


@pytest.mark.parametrize("kind", ["lost", "unheard", "refused"])
def test_a_release_that_failed_is_made_with_the_next_write(kind: str) -> None:
    left: list[str] = []
    one = counter(Client(Memory(), lambda: left.pop(0) if left else None))
    for _ in range(4):
        reserve(one)
    left[:] = [kind] * 20
    release(one)
    left.clear()
    release(one)
    assert one.value(QUEUE).count == 2


def test_a_full_queue_is_told_at_once() -> None:
    client = Client(Memory(), lambda: None)
    one = counter(client)
    for _ in range(8):
        reserve(one)
    before = client.calls
    with pytest.raises(BoundReached):
        reserve(one)
    assert client.calls - before == 1


def marks(memory: Memory) -> set[str]:
    (item,) = memory.items.values()
    return item.keys() & set(SLOTS)


@pytest.mark.parametrize("bound", [8, 65, 10_000])
def test_a_write_of_any_queue_is_made_once_and_keeps_its_slot(bound: int) -> None:
    memory, left = Memory(), ["lost"]
    client = Client(memory, lambda: left.pop(0) if left else None)
    one = counter(client)
    for _ in range(5):
        reserve(one, bound)
    assert client.calls == 6
    assert one.value(QUEUE).count == 5
    assert len(marks(memory)) == 1


def test_containers_do_not_stop_each_other() -> None:
    """Each has a slot of its own after its first write."""
    memory = Memory()
    client = Client(memory, lambda: None)
    all_of = [counter(client, n) for n in range(48)]
    for one in all_of:
        reserve(one, 1_000)
    before = client.calls
    for one in all_of:
        release(one)
    assert client.calls - before == 48
    assert len(marks(memory)) == 48


def test_more_containers_than_slots_take_turns() -> None:
    memory = Memory()
    client = Client(memory, lambda: None)
    all_of = [counter(client, n) for n in range(100)]
    for _ in range(3):
        for one in all_of:
            reserve(one, 1_000)
    assert one.value(QUEUE).count == 300
    assert client.calls < 1 + 300 * 2.5
    assert marks(memory) == set(SLOTS)


@pytest.mark.parametrize("seed", range(40))
def test_many_containers_count_exactly(seed: int) -> None:
    """With answers lost all the time. A write with an unknown outcome counts, until the sweep."""
    chance = random.Random(seed)
    rate = 0.0

    def fault() -> str | None:
        return chance.choice(["lost", "unheard", "refused"]) if chance.random() < rate else None

    memory = Memory()
    all_of = [counter(Client(memory, fault), n) for n in range(3)]
    for one in all_of:
        reserve(one)
    there, unknown = len(all_of), 0
    rate = 0.3
    for _ in range(150):
        one = chance.choice(all_of)
        if chance.random() < 0.5 and there:
            release(one)
            there -= 1
            continue
        try:
            reserve(one)
        except BoundReached:
            continue
        except OjsError:
            unknown += 1
        else:
            there += 1
        assert one.value(QUEUE).count >= there
    rate = 0.0
    for one in all_of:
        if there:
            release(one)
            there -= 1
    left = one.value(QUEUE).count
    assert there <= left <= there + unknown


@pytest.mark.parametrize("fault", ["lost", "unheard"])
@pytest.mark.parametrize(("passed_ms", "released"), [(10_000, 1), (2_000, 0)])
def test_a_slot_taken_over_before_a_write_shows_that_no_try_took_effect(
    fault: str, passed_ms: int, released: int
) -> None:
    """Where clocks could be apart by as much it is unknown, and the counter never shows too few."""
    left: list[str] = []
    client, clock = Client(Memory(), lambda: left.pop(0) if left else None), ManualClock(NOW_MS)
    one, other = counter(client, 1, clock), counter(client, 2, clock)
    with mock.patch.multiple(depth_counter, SLOTS=SLOTS[:1], _CHOICE=1):
        reserve(one)
        clock.advance(10_000)
        reserve(other)
        clock.advance(passed_ms)
        left[:] = [fault]
        release(one)
    assert one.value(QUEUE).count == 2 - released
