"""How sweeps read all queues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ojs.clock import ManualClock
from ojs.domain.errors import BackendUnavailable
from ojs.domain.queue.queue import Queue
from ojs.services.sweeps import SweepCounts, SweepQueues
from ojs.store.queues.due_notes import DueLines
from ojs.store.queues.registry import RegistryQueue

NAMES = [f"q{number:03d}" for number in range(250)]


class Store:
    """Queues of which every read is noted, and some fail."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, bool]] = []
        self.failing = False

    def all(self) -> list[RegistryQueue]:
        return [RegistryQueue(name) for name in (*NAMES, "gone")]

    def lines(self) -> DueLines:
        return DueLines(0, 0, [])

    def get_many(
        self, names: Iterable[str], *, consistent: bool, unreadable: Any
    ) -> tuple[dict[str, Queue], dict[Any, Any]]:
        wanted = list(names)
        self.reads.append((len(wanted), consistent))
        if self.failing:
            raise BackendUnavailable("DynamoDB throttled the request.")
        return {name: Queue(name) for name in wanted if name in NAMES}, {}


def made() -> tuple[Store, SweepQueues]:
    store: Any = Store()
    clock = ManualClock()
    return store, SweepQueues(
        store, store, store, store, clock=clock, deployed_ms=clock.now_ms, choose=lambda _: 7
    )


def found(queues: SweepQueues, *, anew: bool = False) -> tuple[list[str], int]:
    counts = SweepCounts()
    names = [queue.name for part in queues.parts(counts, anew=anew) for queue in part]
    return names, counts["failed"]


def test_all_from_a_random_one_on() -> None:
    store, queues = made()
    assert found(queues) == ([*NAMES[7:], *NAMES[:7]], 0)
    assert store.reads == [(100, False), (100, False), (51, False)]
    assert found(queues, anew=True)[1] == 0
    assert store.reads[3:] == [(100, True), (100, True), (51, True)]


def test_sweeps_of_one_minute_read_a_queue_once() -> None:
    store, queues = made()
    with queues.shared():
        found(queues, anew=True)
        store.reads.clear()
        assert found(queues) == ([*NAMES[7:], *NAMES[:7]], 0)
        # What was not there may be there now.
        assert store.reads == [(1, False)]
        found(queues, anew=True)
        assert [consistent for _, consistent in store.reads[1:]] == [True, True, True]
    store.reads.clear()
    found(queues)
    assert len(store.reads) == 3


def test_what_could_not_be_read_is_read_by_the_next_one() -> None:
    store, queues = made()
    with queues.shared():
        store.failing = True
        assert found(queues, anew=True) == ([], 3)
        store.failing = False
        assert found(queues) == ([*NAMES[7:], *NAMES[:7]], 0)


def test_a_queue_that_is_gone_is_forgotten() -> None:
    store, queues = made()
    with queues.shared():
        found(queues, anew=True)
        store.failing = True
        assert found(queues, anew=True) == ([], 3)
        # Nothing old stands in for what should have been read anew.
        assert found(queues)[0] == []
