"""docs/performance.md: its tables are measured again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.performance.measure import TABLES, table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "performance.md").read_text("utf-8")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.exhaustive if name == "life" else ()) for name in TABLES],
)
def test_the_table_is_what_is_measured(
    name: str, dynoxide: Engine, dynamodb: DynamoDBClient
) -> None:
    header, measure = TABLES[name]
    shown = PAGE.partition(f"<!-- {name} -->\n\n")[2].partition("\n\n")[0]
    assert shown == table(header, measure(dynamodb))
