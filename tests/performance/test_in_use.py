"""What a minute's sweeps cost with queues in use: the bounds of `docs/cost.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.performance.counted import Counting, in_use, sweeps

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine


@pytest.mark.parametrize(
    ("queues", "calls", "reads"),
    [
        (1, 37, 24),
        (50, 60, 100),
        pytest.param(200, 120, 250, marks=pytest.mark.exhaustive),
        pytest.param(1_000, 150, 320, marks=pytest.mark.whole),
    ],
)
def test_in_use(
    dynoxide: Engine, dynamodb: DynamoDBClient, queues: int, calls: float, reads: float
) -> None:
    spent = in_use(Counting(dynamodb), queues)
    assert (spent["calls"] <= calls, spent["read"] <= reads) == (True, True), spent


def test_at_rest(dynoxide: Engine, dynamodb: DynamoDBClient) -> None:
    spent = sweeps(Counting(dynamodb), 1, 10)
    assert (spent["calls"] <= 20, spent["read"] <= 14) == (True, True), spent


@pytest.mark.parametrize("queues", [50, pytest.param(1_000, marks=pytest.mark.whole)])
def test_queues_of_tenants_in_use(dynoxide: Engine, dynamodb: DynamoDBClient, queues: int) -> None:
    """A queue of each of so many tenants costs the sweeps what a queue without a tenant costs."""
    plain = in_use(Counting(dynamodb), queues)
    spent = in_use(Counting(dynamodb), queues, form="tenant-{:04d}:mail")
    most = {name: 1.1 * plain[name] for name in ("calls", "read", "write")}
    assert all(spent[name] <= most[name] for name in most), (plain, spent)
