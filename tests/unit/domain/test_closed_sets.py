"""Requests accept the members of each enumeration, and nothing else."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import pytest

from ojs.domain.job.envelope import OnConflict, RetryRequest, UniqueRequest
from ojs.domain.job.retention import PruningPolicy
from ojs.domain.job.retry import BackoffStrategy, OnExhaustion
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import PoolRequest
from ojs.domain.queue.config import (
    Backpressure,
    DeadLetterRequest,
    OverflowPolicy,
    QueueConfigRequest,
)
from ojs.domain.queue.queue import DeletionStrategy
from ojs.domain.rate_limit.limiter import OnLimit, RateLimitRequest
from ojs.http.contract.models import DeleteQueueRequest, FetchRequest, WorkerInfo

if TYPE_CHECKING:
    from ojs.domain.requests import Model


def accepted(annotation: Any) -> set[str]:
    """The texts of all Literals in a type."""
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    return {text for each in get_args(annotation) for text in accepted(each)}


@pytest.mark.parametrize(
    ("model", "field", "members"),
    [
        (RetryRequest, "on_exhaustion", OnExhaustion),
        (UniqueRequest, "on_conflict", OnConflict),
        (RateLimitRequest, "on_limit", OnLimit),
        (QueueConfigRequest, "overflow_policy", OverflowPolicy),
        (QueueConfigRequest, "strategy", OverflowPolicy),
        (Backpressure, "strategy", OverflowPolicy),
        (DeadLetterRequest, "pruning_policy", PruningPolicy),
        (PoolRequest, "strategy", DispatchStrategy),
        (FetchRequest, "strategy", DispatchStrategy),
        (WorkerInfo, "strategy", DispatchStrategy),
        (DeleteQueueRequest, "strategy", DeletionStrategy),
    ],
)
def test_a_field_accepts_the_members(
    model: type[Model], field: str, members: type[StrEnum]
) -> None:
    assert accepted(model.resolved()[field].annotation) == set(members)


@pytest.mark.parametrize("field", ["backoff_strategy", "backoff_type", "backoff", "strategy"])
def test_a_backoff_strategy_may_also_be_none(field: str) -> None:
    """`none` is another name for `constant`."""
    found = accepted(RetryRequest.resolved()[field].annotation)
    assert found == {*BackoffStrategy, "none"}
