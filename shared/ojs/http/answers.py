"""Types that answers of several resources have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from ojs.domain.ids import UUID7
from ojs.domain.requests import Field
from ojs.http.answer import Answer, absent

T = TypeVar("T")

Moment = Annotated[
    str,
    Field(
        json_schema_extra={
            "format": "date-time",
            "pattern": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z",
            "title": "Moment",
        }
    ),
]
Id = Annotated[str, Field(json_schema_extra={"format": "uuid", "pattern": UUID7.pattern})]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0)]
Bound = Annotated[int, Field(ge=1, description="absent when there is none")]
Fraction = Annotated[float, Field(ge=0, le=1)]
Omitted = Annotated[
    list[str],
    Field(
        min_length=1,
        description="fields not shown because the answer would be too large; `*` stands for the "
        "client's own fields. The job itself has them all",
        json_schema_extra={"uniqueItems": True},
    ),
]
Warnings = Annotated[list[str], Field(min_length=1, description="what was sent and has no effect")]
CreatedBy = Annotated[str, Field(description="id of the key that set it last")]


class RetryDefaults(Answer[Mapping[str, Any]], as_is=True):
    """A retry policy: a queue's, for jobs that bring none, or a job's own."""

    max_attempts: Count
    initial_interval: str
    backoff_coefficient: float
    max_interval: str
    jitter: bool
    backoff_strategy: str
    non_retryable_errors: list[str] = absent()
    on_exhaustion: str
