"""The limit of requests of an access key, in one container and in many."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from ojs.clock import ManualClock
from ojs.domain.access import Principal
from ojs.domain.errors import BackendUnavailable, TooManyRequests
from ojs.services.operations.key_rates import KeyRates
from ojs.store.deployment.access_keys import AccessKeyStore

LIMIT = 100
CALLER = Principal("n", key="k", max_requests_per_s=LIMIT)


class Totals:
    """The total of each key."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.calls = 0
        self.failing = False

    def count_requests(self, key_id: str, count: int, *, now_ms: int) -> int:
        self.calls += 1
        if self.failing:
            raise BackendUnavailable("no")
        self.totals[key_id] = self.totals.get(key_id, 0) + count
        return self.totals[key_id]


def containers(number: int, clock: ManualClock, totals: Totals) -> list[KeyRates]:
    return [KeyRates(cast("AccessKeyStore", totals), clock) for _ in range(number)]


def allowed(rates: KeyRates, caller: Principal = CALLER) -> bool:
    try:
        rates.check(caller)
    except TooManyRequests:
        return False
    return True


def seconds(
    clock: ManualClock,
    spread: Callable[[], KeyRates],
    *,
    per_s: int,
    count: int,
) -> list[int]:
    """The allowed requests of each second, if `per_s` come in each."""
    found = []
    for _ in range(count):
        admitted = 0
        for at in range(per_s):
            admitted += allowed(spread())
            clock.advance(1_000 * (at + 1) // per_s - 1_000 * at // per_s)
        found.append(admitted)
    return found


@pytest.mark.parametrize(("per_s", "least"), [(75, 1), (100, 0.9)])
def test_requests_below_the_limit_pass(clock: ManualClock, per_s: int, least: float) -> None:
    totals = Totals()
    all_of = containers(20, clock, totals)
    chance = random.Random(1)
    found = seconds(clock, lambda: chance.choice(all_of), per_s=per_s, count=10)
    assert sum(found) >= least * per_s * 10, found


@pytest.mark.parametrize("number", [1, 2, 20])
@pytest.mark.parametrize("times", [2, 2.5])
def test_the_mean_of_ten_seconds(clock: ManualClock, number: int, times: float) -> None:
    totals = Totals()
    all_of = containers(number, clock, totals)
    chance = random.Random(2)
    found = seconds(clock, lambda: chance.choice(all_of), per_s=int(times * LIMIT), count=11)
    assert 0.8 * LIMIT * 10 <= sum(found[:10]) <= 1.2 * LIMIT * 10, found
    # After the first second, the limit holds in each.
    assert max(found[2:]) <= 1.3 * LIMIT, found
    assert min(found[2:]) >= 0.7 * LIMIT, found
    assert totals.calls <= 11 * number


def test_bursts_do_not_save_up(clock: ManualClock) -> None:
    (rates,) = containers(1, clock, Totals())
    for _ in range(5):
        assert sum(allowed(rates) for _ in range(5 * LIMIT)) <= LIMIT
        clock.advance(10_000)


def test_a_container_that_is_asked_rarely_counts_the_others_as_spread(clock: ManualClock) -> None:
    totals = Totals()
    (rates,) = containers(1, clock, totals)
    for _ in range(5):
        assert allowed(rates)
        totals.totals["k"] = totals.totals.get("k", 0) + 50 * 10
        clock.advance(10_000)


def test_a_limit_that_cannot_be_checked_rejects_nothing(clock: ManualClock) -> None:
    totals = Totals()
    (rates,) = containers(1, clock, totals)
    totals.failing = True
    assert seconds(clock, lambda: rates, per_s=LIMIT, count=3) == [LIMIT] * 3
    assert totals.calls <= 3


def test_other_keys_take_no_call(clock: ManualClock) -> None:
    totals = Totals()
    (rates,) = containers(1, clock, totals)
    unlimited: Any
    for unlimited in (Principal(None), Principal("n", key="k")):
        for _ in range(3):
            assert allowed(rates, unlimited)
            clock.advance(1_000)
    assert totals.calls == 0
