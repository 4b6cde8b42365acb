"""A field of a filter that nothing applies is an error at import, and each field excludes jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ojs.domain import times
from ojs.domain.dead_letter import filter as dead_letter_filter
from ojs.domain.dead_letter.filter import FilterRequest, all_applied
from ojs.domain.job import filter as job_filter
from ojs.domain.job.filter import EraseFilter, JobFilterRequest
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.requests import Model

NOW_MS = 1_800_000_000_000
EARLIER = times.format_ms(NOW_MS - 86_400_000)
LATER = times.format_ms(NOW_MS - 1)
FAILING: dict[str, Any] = {
    "queue": "other",
    "state": "pending",
    "type": "no.such",
    "tag": "blue",
    "worker_id": "w-none",
    "producer": "another",
    "since": LATER,
    "until": EARLIER,
    "enqueued_after": LATER,
    "enqueued_before": EARLIER,
    "older_than": EARLIER,
    "before": EARLIER,
    "priority": 99,
    "meta": {"user": "else"},
    "args": "nowhere",
    "error_type": "NoSuchError",
}


class Extended(JobFilterRequest):
    """A request with a field that nothing applies."""

    attempts: int | None = None


class ExtendedErase(EraseFilter):
    """The same of an erasure."""

    attempts: int | None = None


class ExtendedDead(FilterRequest):
    """The same of dead letters."""

    attempts: int | None = None


@pytest.mark.parametrize(
    ("request_model", "conditions"),
    [
        (Extended, job_filter.CONDITIONS),
        (ExtendedErase, dict.fromkeys(EraseFilter.model_fields, 1)),
        (ExtendedDead, dead_letter_filter.CONDITIONS),
    ],
)
def test_a_field_that_nothing_applies_is_an_error(
    request_model: type[Model], conditions: dict[str, object]
) -> None:
    with pytest.raises(TypeError, match="attempts"):
        all_applied(request_model, conditions)


def job(**changes: Any) -> Job:
    made_ms = NOW_MS - 3_600_000
    return replace(
        Job(
            id="019e7044-8800-7000-8d4e-9e664397b54d",
            type="mail.send",
            queue="default",
            state=State.DISCARDED,
            created_ms=made_ms,
            content={"args": ["x"], "tags": ["red"], "meta": {"user": "u"}},
        ),
        enqueued_ms=made_ms,
        **changes,
    )


@pytest.mark.parametrize("name", JobFilterRequest.model_fields)
def test_each_field_excludes_a_job_that_it_does_not_match(name: str) -> None:
    wanted = job_filter.parse({name: FAILING[name]}, now_ms=NOW_MS)
    ended = job(discarded_ms=NOW_MS - 1_000)
    assert not (wanted.matches_record(ended) and wanted.matches_content(ended))
    assert job_filter.parse(wanted.to_dict(), now_ms=NOW_MS) == wanted


@pytest.mark.parametrize("name", FilterRequest.model_fields)
def test_each_field_excludes_a_dead_letter_that_it_does_not_match(name: str) -> None:
    value = times.format_ms(NOW_MS - 1) if name == "since" else FAILING[name]
    wanted = dead_letter_filter.parse({name: value}, now_ms=NOW_MS)
    assert not wanted.matches(job(dead_letter=True, discarded_ms=NOW_MS - 1_000))
