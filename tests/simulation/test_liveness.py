"""With 5 % of all tries failing, work goes on at half the speed or more; a minute after the last of
them it is as fast as before. With 20 % nothing leaks. `python -m tests.performance.faults work`
has the table.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from tests.simulation.liveness import KINDS, LEAST_DURING, MINUTE_MS, measure

SEED, PHASE_MS = 2, 10_000
MANY = 0.2
# Those that are left to `make test-all`, as they take long.
WHOLE = (
    *(f"bounded {size}" for size in (100, 1000, 10000)),
    "limited",
    "rated",
    "keyed",
    "pooled",
    "pushed",
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.whole) if k in WHOLE else k for k in KINDS]
)
def test_work_goes_on_while_tries_fail(kind: str) -> None:
    told = measure(kind, SEED, phase_ms=PHASE_MS)
    assert told.healthy > 60
    assert told.kept, told


@pytest.mark.whole
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hot"])
def test_nothing_leaks_while_a_fifth_of_all_tries_fails(kind: str) -> None:
    """What a try of a new container left is found by the sweep, within four minutes."""
    told = measure(kind, SEED, MANY, phase_ms=PHASE_MS, settle_ms=4 * MINUTE_MS)
    assert told.kept, told


@pytest.mark.exhaustive
def test_a_queue_in_trouble_that_stops_the_others_is_found() -> None:
    def stopping(source: Any) -> Any:
        return next(source._parts[0], []) or source._parts.clear() or []

    with mock.patch("ojs.services.jobs.fetch._CandidateSource._resume", stopping):
        told = measure("hot", SEED, phase_ms=PHASE_MS)
    assert told.during <= LEAST_DURING * told.healthy


@pytest.mark.exhaustive
def test_a_bound_whose_writes_are_not_repeated_is_found() -> None:
    """As it was with more than 64: a release without an answer was given up."""
    with mock.patch("ojs.store.bounds.depth_counter._VIEWS", 0):
        assert not measure("bounded 8", SEED, phase_ms=PHASE_MS).kept
