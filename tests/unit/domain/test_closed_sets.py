"""Requests accept the members of each enumeration, and nothing else."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, get_args, get_origin

import pytest

from ojs.domain.job.envelope import RetryRequest
from ojs.domain.job.retry import BackoffStrategy, OnExhaustion
from ojs.domain.workflow.advance import RetryMode
from ojs.domain.workflow.graph import StepTrigger
from ojs.http import models


def accepted(annotation: Any) -> set[str]:
    """The texts of all Literals in a type."""
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    return {text for each in get_args(annotation) for text in accepted(each)}


@pytest.mark.parametrize(
    ("annotation", "members"),
    [
        (RetryRequest.resolved()["on_exhaustion"].annotation, OnExhaustion),
        (models.StepTriggerName, StepTrigger),
        (models.RetryModeName, RetryMode),
    ],
)
def test_a_literal_has_the_members(annotation: Any, members: type[StrEnum]) -> None:
    """Others are declared with the enumeration as their type."""
    assert accepted(annotation) == set(members)


@pytest.mark.parametrize("field", ["backoff_strategy", "backoff_type", "backoff", "strategy"])
def test_a_backoff_strategy_may_also_be_none(field: str) -> None:
    """`none` is another name for `constant`."""
    found = accepted(RetryRequest.resolved()[field].annotation)
    assert found == {*BackoffStrategy, "none"}
