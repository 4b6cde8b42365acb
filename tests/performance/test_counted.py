"""docs/numbers/counted.json: what is in it is counted again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from docs import numbers
from tests.performance.counted import PARTS

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine

_LONG = {"consumer", "sweeps"}


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=pytest.mark.exhaustive if part in _LONG else ()) for part in PARTS],
)
def test_what_is_written_is_what_is_counted(
    part: str, dynoxide: Engine, dynamodb: DynamoDBClient
) -> None:
    """If not: `make numbers plots`, and look at what became dearer."""
    assert numbers.counted()[part] == PARTS[part](dynamodb)


def test_nothing_else_is_written() -> None:
    assert set(numbers.counted()) == set(PARTS)
