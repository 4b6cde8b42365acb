"""docs/numbers/counted.json: what is in it is counted again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from docs import numbers
from tests.performance.counted import PARTS, Counting
from tests.performance.pushed import Pushed

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine

_LONG = {"consumer", "sweeps", "sweeps in use", "lanes", "empty fetches", "running"}


def _marks(part: str) -> list[pytest.MarkDecorator]:
    long = [pytest.mark.exhaustive] if part in _LONG else []
    return [*long, pytest.mark.whole] if part == "sweeps" else long


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=_marks(part)) for part in PARTS],
)
def test_what_is_written_is_what_is_counted(
    part: str, dynoxide: Engine, dynamodb: DynamoDBClient
) -> None:
    """If not: `make numbers plots`, and look at what became dearer."""
    assert numbers.counted()[part] == PARTS[part](dynamodb)


@pytest.mark.parametrize(("rate", "jobs"), [(0.4, 10), (10, 100)])
def test_a_pushed_job_takes_the_same_however_long_it_lasts(
    rate: float, jobs: int, dynoxide: Engine, dynamodb: DynamoDBClient
) -> None:
    """The README has one price for 1 s, 60 s, and 5 min."""
    found = Pushed(Counting(dynamodb), rate, job_ms=(299_000, 301_000)).count(jobs)
    counted = numbers.counted()["pushed"][f"{rate:g}"]
    for name in ("write", "read", "records", "wakes", "dispatches", "settles"):
        assert found[name] == counted[name]


def test_nothing_else_is_written() -> None:
    assert set(numbers.counted()) == set(PARTS)
