"""Whose turn it is: shares, bounds on waiting, guaranteed parts, and turns of idle queues."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.pool.dispatch import DispatchSequence, DispatchStrategy

NAMES = [f"q{n}" for n in range(8)]
WEIGHTS = st.lists(st.integers(1, 40), min_size=2, max_size=8)


def weighted(weights: list[int], ratio: float = 0.0) -> DispatchSequence:
    names = NAMES[: len(weights)]
    return DispatchSequence.of(
        names, DispatchStrategy.WEIGHTED, dict(zip(names, weights, strict=True)), ratio
    )


def given_to(turns: DispatchSequence, count: int, first: int = 0) -> list[str | None]:
    return [turns.at(turn) for turn in range(first, first + count)]


@pytest.mark.requirement("FS-13")
def test_round_robin_gives_each_queue_one_turn_a_cycle() -> None:
    """In the order in which they are listed, cycle for cycle."""
    turns = DispatchSequence.of(["a", "b", "c"], DispatchStrategy.ROUND_ROBIN)
    assert given_to(turns, 7) == ["a", "b", "c", "a", "b", "c", "a"]


@pytest.mark.requirement("FS-15")
def test_the_turns_of_the_seed_s_example() -> None:
    """Of six turns three are for A, two for B, one for C, none of them in a row if it can
    be helped.
    """
    turns = DispatchSequence.of(
        ["A", "B", "C"], DispatchStrategy.WEIGHTED, {"A": 3, "B": 2, "C": 1}
    )
    assert given_to(turns, 6) == ["A", "B", "A", "B", "A", "C"]


@pytest.mark.requirement("FS-15")
@given(weights=WEIGHTS, rounds=st.integers(1, 3))
def test_no_queue_is_a_turn_ahead_or_behind(weights: list[int], rounds: int) -> None:
    """Wherever one stops, each queue has had its part, to less than one turn."""
    turns = weighted(weights)
    had: Counter[str | None] = Counter()
    for count in range(1, rounds * sum(weights) + 1):
        had[turns.at(count - 1)] += 1
        for name, weight in zip(turns.queues, weights, strict=True):
            part = Fraction(count * weight, sum(weights))
            assert abs(had[name] - part) < 1


@pytest.mark.requirement("FS-15")
def test_a_heavy_queue_leaves_the_light_ones_apart() -> None:
    """Forty light queues do not all have their turn at once."""
    names = ["heavy", *(f"light-{n}" for n in range(40))]
    turns = DispatchSequence.of(names, DispatchStrategy.WEIGHTED, {"heavy": 1_000})
    places = [at for at, name in enumerate(given_to(turns, 1_040)) if name != "heavy"]
    assert len(places) == 40
    assert min(after - before for before, after in pairwise(places)) > 20


@pytest.mark.requirement("FS-16")
@given(weights=WEIGHTS, first=st.integers(0, 10**12))
def test_every_queue_has_its_turn_within_the_sum_of_weights(weights: list[int], first: int) -> None:
    """From any turn on, as often as its weight says."""
    turns = weighted(weights)
    had = Counter(given_to(turns, sum(weights), first))
    assert had == dict(zip(turns.queues, weights, strict=True))


RATIOS = st.floats(0.001, 1.0)


@pytest.mark.requirement("FS-18")
@given(
    count=st.integers(1, 8),
    ratio=RATIOS,
    strategy=st.sampled_from(DispatchStrategy),
    first=st.integers(0, 10**6),
    window=st.integers(1, 400),
)
def test_every_window_holds_the_part_that_each_queue_is_sure_of(
    count: int, ratio: float, strategy: DispatchStrategy, first: int, window: int
) -> None:
    """Whatever the strategy, and wherever the window begins."""
    ratio = min(ratio, 1 / count)
    turns = DispatchSequence.of(NAMES[:count], strategy, dict.fromkeys(NAMES[:count], 2), ratio)
    had = Counter(given_to(turns, window, first))
    for name in turns.queues:
        # Of free turns the worst is thought: none of them is for this queue.
        assert had[name] >= int(window * ratio + 1e-9)


@pytest.mark.requirement("FS-18")
@pytest.mark.parametrize("strategy", DispatchStrategy)
def test_when_the_parts_are_all_there_is_every_turn_is_somebody_s(
    strategy: DispatchStrategy,
) -> None:
    """With 4 queues and a quarter for each, nothing is left for the strategy."""
    turns = DispatchSequence.of(NAMES[:4], strategy, {NAMES[0]: 9}, 0.25)
    assert turns.frame == 4
    assert given_to(turns, 8) == [*NAMES[:4], *NAMES[:4]]


@pytest.mark.requirement("FS-18")
def test_the_rest_goes_by_the_strategy() -> None:
    """Of a weighted pool what is not guaranteed is shared by weight."""
    turns = weighted([8, 1], ratio=0.1)
    frames = 9 * turns.frame
    had = Counter(given_to(turns, frames))
    rest = frames - 2 * 9
    assert had["q1"] - 9 == pytest.approx(rest / 9, abs=1)


@pytest.mark.parametrize("strategy", [DispatchStrategy.STRICT, DispatchStrategy.LEAST_LOADED])
def test_turns_of_these_strategies_are_free(strategy: DispatchStrategy) -> None:
    turns = DispatchSequence.of(["a", "b"], strategy)
    assert given_to(turns, 3) == [None] * 3
    assert not turns.counted
    assert turns.instead(7, {"b"}) == "b"
    assert turns.instead(7, {"b", "a"}) == "a"
    assert DispatchSequence.of(["a", "b"], strategy, ratio=0.1).counted


@pytest.mark.parametrize("strategy", DispatchStrategy)
def test_one_queue_needs_no_numbers(strategy: DispatchStrategy) -> None:
    assert not DispatchSequence.of(["a"], strategy, ratio=0.5).counted


@given(
    weights=WEIGHTS,
    idle=st.sets(st.integers(0, 7), min_size=1),
    ratio=st.sampled_from([0.0, 0.0, 0.03, 0.1]),
    count=st.integers(1, 300),
)
def test_turns_of_idle_queues_are_shared_by_weight(
    weights: list[int], idle: set[int], ratio: float, count: int
) -> None:
    """No turn is lost, nor given to a queue without jobs; and of those that none of the others had
    each has its part, to less than one turn.
    """
    turns = weighted(weights, ratio)
    busy = {name for at, name in enumerate(turns.queues) if at not in idle} or {"q0"}
    by_name = dict(zip(turns.queues, weights, strict=True))
    had: Counter[str] = Counter()
    for turn in range(count):
        if turns.at(turn) not in busy:
            name = turns.instead(turn, busy)
            assert name in busy
            assert turns.instead(turn, frozenset(busy)) == name
            had[name] += 1
    total = sum(by_name[name] for name in busy)
    for name in busy:
        assert abs(had[name] - Fraction(had.total() * by_name[name], total)) < 1


@pytest.mark.requirement("FS-3")
@given(weights=WEIGHTS, first=st.integers(0, 10**12))
def test_a_number_means_the_same_to_everybody(weights: list[int], first: int) -> None:
    """Fetchers that never heard of each other agree, at whatever number they come in."""
    one, other = weighted(weights, 0.05), weighted(weights, 0.05)
    assert given_to(one, 50, first) == [other.at(turn) for turn in range(first, first + 50)]
    assert list(accumulate(weights))[-1] == sum(weights)
