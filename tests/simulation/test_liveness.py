"""With 5 % of all calls refused or without an answer, work goes on at half the speed or more; a
minute after the last of them it is as fast as before.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from tests.simulation.liveness import KINDS, measure

SEED = 2


# Those that are left to `make test-all`: their permits are released as those of a queue.
WHOLE = ("pooled", "least-loaded")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.whole) if k in WHOLE else k for k in KINDS]
)
def test_work_goes_on_while_calls_fail(kind: str) -> None:
    told = measure(kind, SEED)
    assert told.healthy > 60
    assert told.kept, told


@pytest.mark.exhaustive
def test_a_small_queue_forgets_room_that_no_job_has() -> None:
    """In this run four of its eight places belong to pushes and acks without an answer."""
    told = measure("bounded", 4)
    assert told.kept, told


@pytest.mark.exhaustive
def test_a_queue_in_trouble_that_stops_the_others_is_found() -> None:
    def stopping(source: Any) -> Any:
        return next(source._parts[0], []) or source._parts.clear() or []

    with mock.patch("ojs.services.jobs.fetch._Source._resume", stopping):
        assert not measure("hot", SEED).kept
