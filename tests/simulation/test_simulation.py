"""A bounded part of the simulation, for every change. `make simulate` runs more."""

from __future__ import annotations

import pytest

from tests.simulation import scenarios
from tests.simulation.run import cover, main, replay
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.seeds import FOUND, FOUND_BEFORE
from tests.simulation.small import LONG, SMALL, every_order
from tests.simulation.world import Acts, World

SEEDS = 12
# Of those, as many as `make test` runs.
_SEEDS_AT_FIRST = 2
_FIRST = 1_000_000


@pytest.mark.parametrize(
    "seeds",
    [
        range(_SEEDS_AT_FIRST),
        pytest.param(range(_SEEDS_AT_FIRST, SEEDS), marks=pytest.mark.exhaustive),
    ],
    ids=["first", "others"],
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_promise_is_broken(scenario: str, seeds: range) -> None:
    covered = cover((scenario, _FIRST + at) for at in seeds)
    told = [f"{what}\n    {replay(scenario, seed)}" for _, seed, what in covered.failures]
    assert not told, "\n".join(told)
    # It would be no proof if nothing went wrong, or always in the same order.
    if len(seeds) > _SEEDS_AT_FIRST:
        assert covered.faults.total() > len(seeds)
        assert len(covered.interleavings) > len(seeds) * 0.9


@pytest.mark.parametrize(("scenario", "seed"), [*FOUND, *FOUND_BEFORE])
def test_what_was_found_stays_mended(scenario: str, seed: int) -> None:
    scenarios.run(scenario, seed)


@pytest.mark.requirement("WF-7")
def test_workflows_advance_exactly() -> None:
    told = cover(("workflows", _FIRST + SEEDS + at) for at in range(5)).failures
    assert not told


@pytest.mark.parametrize("scenario", [*SCENARIOS][::4])
def test_a_seed_is_the_same_each_time(scenario: str) -> None:
    timelines: list[list[str]] = [[], []]
    outcomes = [scenarios.run(scenario, 7, timeline) for timeline in timelines]
    assert timelines[0] == timelines[1]
    assert outcomes[0] == outcomes[1]


def test_a_broken_promise_is_told_with_the_command_that_shows_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def life(_: World) -> list[Acts]:
        raise AssertionError("not kept")

    monkeypatch.setitem(SCENARIOS, "life", life)
    assert main(["--scenario", "life", "--seed", "3"]) == 1
    assert capsys.readouterr().out.endswith(
        "python -m tests.simulation.run --scenario life --seed 3\n"
    )


# Those of the long ones that CI has time for.
_KEPT_LONG = {"two retries of a dead letter"}
LONG_ONES = [
    pytest.param(name, marks=pytest.mark.exhaustive if name in _KEPT_LONG else pytest.mark.whole)
    for name in sorted(LONG)
]


@pytest.mark.parametrize(
    "small",
    [*(name for name in SMALL if name not in LONG), *LONG_ONES],
)
def test_every_order_of_a_few_steps(small: str) -> None:
    ways = every_order(small)
    assert len(set(ways)) == len(ways) > 1
