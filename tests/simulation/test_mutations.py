"""The simulation can fail: each defect put into the code on purpose is found by some seed."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import cover
from tests.simulation.seeds import FOUND
from tests.spread import spread

SEEDS = 90
# Those that were in the code once show with the seed that found them, and seldom else.
_RARE = {
    "a claim does not name its line": 374,
    "the end of a queue is taken back once": 68,
    "nobody looks at what runs in a queue that is gone": 919,
    "a repetition is a lost race": 10148,
    "room is given back after a repetition": 448,
    "a start is taken back after a repetition": 70320,
    "a pool made anew forgets what runs": 28,
    "a pool forgets queues that it had": 61,
    "each try of a transaction is another": 164,
    "a job is handed out without its content": 476,
}


@pytest.mark.parametrize("name", spread(MUTATIONS, 3))
def test_a_defect_is_found(name: str) -> None:
    mutation, scenario = MUTATIONS[name]
    seeds = [_RARE[name]] if name in _RARE else range(SEEDS)
    with mutation():
        assert any(cover([(scenario, seed)]).failures for seed in seeds)


def test_what_was_found_is_among_them() -> None:
    assert {seed for _, seed in FOUND} == set(_RARE.values())
