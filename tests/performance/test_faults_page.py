"""docs/reliability.md: what faults do, and until when, is measured again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.performance.faults import HEADER, ROWS, line

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine
    from tests.performance.measure import Row

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reliability.md").read_text("utf-8")
# Few calls; the others die at each call of a path.
QUICK = {"hot_line", "stale_index", "bus_is_down", "damaged", "skewed"}


@pytest.mark.parametrize(
    "measure",
    [
        pytest.param(row, marks=() if row.__name__ in QUICK else pytest.mark.exhaustive)
        for row in ROWS
    ],
    ids=[row.__name__ for row in ROWS],
)
def test_a_fault_does_what_the_page_says(
    measure: Callable[[DynamoDBClient], Row], dynoxide: Engine, dynamodb: DynamoDBClient
) -> None:
    assert line(measure(dynamodb)) in PAGE.splitlines()


def test_all_faults_are_on_the_page() -> None:
    shown = PAGE.partition("<!-- faults -->\n\n")[2].partition("\n\n")[0].splitlines()
    assert shown[0] == line(HEADER)
    # With the one for which `tests/local/test_load.py` is the measure.
    assert len(shown) == 2 + len(ROWS) + 1
