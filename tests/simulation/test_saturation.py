"""A limited queue is kept busy by many clients while claims are throttled."""

from __future__ import annotations

import pytest

from tests.simulation.saturation import LIMIT, run


@pytest.mark.parametrize("seconds", [8, pytest.param(20, marks=pytest.mark.whole)])
def test_a_limited_queue_is_kept_busy_while_claims_are_throttled(seconds: int) -> None:
    """On average 95 % of what may run does run, though a claim is refused in every try with a
    chance of 5 %, while the client that lost a permit by it waits and asks again.
    """
    running, refused = run(seconds, 0.05, seed=2)
    assert running.most == LIMIT
    assert refused >= 0.02
    assert running.used >= 0.95
