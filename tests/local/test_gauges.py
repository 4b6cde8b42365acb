"""When the gauges of all queues are taken on the local server."""

from __future__ import annotations

import pytest

from local.gauges import FEW, GOOD_MS, INTERVAL_MS, Gauges
from ojs.clock import ManualClock


class Taken:
    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.queues, self.took_ms, self.times = 0, 0, 0
        self.gauges = Gauges(self._take, self.clock)

    def _take(self, now_ms: int) -> int:
        assert now_ms == self.clock.now_ms()
        self.clock.advance(self.took_ms)
        self.times += 1
        return self.queues


@pytest.fixture
def taken() -> Taken:
    return Taken()


def test_a_request_finds_fresh_ones(taken: Taken) -> None:
    taken.queues = FEW
    for delivered in (0, 1, 1, 2):
        taken.gauges.for_request(delivered)
    assert taken.times == 3
    taken.clock.advance(GOOD_MS)
    taken.gauges.for_request(2)
    assert taken.times == 4
    taken.gauges.beside(3)
    assert taken.times == 4


def test_no_request_waits_for_those_of_many_queues(taken: Taken) -> None:
    taken.queues, taken.took_ms = FEW + 1, 5_000
    taken.gauges.for_request(0)
    for delivered in range(1, 9):
        taken.gauges.for_request(delivered)
    assert taken.times == 1
    # They are taken beside the requests, a tenth of the time.
    taken.clock.advance(9 * 5_000 - 1)
    taken.gauges.beside(9)
    assert taken.times == 1
    taken.clock.advance(1)
    taken.gauges.beside(9)
    assert taken.times == 2
    # Nothing has happened since: they are good for a minute.
    taken.clock.advance(INTERVAL_MS - 5_000 - 1)
    taken.gauges.beside(9)
    assert taken.times == 2
    taken.clock.advance(1)
    taken.queues = 3
    taken.gauges.beside(9)
    assert taken.times == 3
    # Most of the queues rest now.
    taken.gauges.for_request(10)
    assert taken.times == 4


def test_they_are_taken_without_requests(taken: Taken) -> None:
    taken.gauges.beside(0)
    assert taken.times == 1
    taken.clock.advance(INTERVAL_MS)
    taken.gauges.beside(0)
    assert taken.times == 2
    taken.gauges.forget()
    taken.gauges.for_request(0)
    assert taken.times == 3
