"""Bulk operations on dead letters: what a request asks for, and the shapes of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from ojs.domain.dead_letter import filter as dead_letter_filter
from ojs.domain.dead_letter.bulk import MAX_ERRORS, BulkOperation, Refusal
from ojs.domain.dead_letter.filter import FIELDS, DeadLetterFilter
from ojs.domain.errors import InvalidRequest, shorten
from ojs.domain.page import Page
from ojs.http.binding.request import Request
from ojs.http.contract import models

_OLDER_THAN = "older_than"
_CONFIRM = "confirm"
_ALL = "all"


def to_retry(request: Request, *, now_ms: int) -> DeadLetterFilter:
    """The dead letters to retry, as the body says. Raises InvalidPayload, InvalidRequest."""
    given = request.parsed(models.RetryDeadLettersRequest)
    return dead_letter_filter.parse_bulk(given.filters(), given.all, now_ms=now_ms)


def to_purge(request: Request, *, now_ms: int) -> DeadLetterFilter:
    """The dead letters to purge, as the body or the query says; not both, or only half would be
    what was meant. Raises InvalidPayload, InvalidRequest.
    """
    _check_once(request)
    given = request.parsed(models.PurgeDeadLettersRequest)
    told = request.query.get(_CONFIRM)
    if told != "true" and not (told is None and given.confirm):
        raise InvalidRequest(_CONFIRM, models.CONFIRM, value=told)
    found = given.filters()
    if in_query := _filter_of(request.query):
        if found:
            first = next(iter(in_query))
            raise InvalidRequest(first, "cannot be combined with a filter in the body")
        found = {"": in_query}
    every: object = given.all
    if (asked := request.query.get(_ALL)) is not None:
        every = True if asked == "true" else asked
    return dead_letter_filter.parse_bulk(found, every, now_ms=now_ms)


def older(request: Request, *, now_ms: int) -> DeadLetterFilter:
    """The dead letters to purge, which must be of some age. Raises InvalidRequest."""
    _check_once(request)
    if not request.query.get(_OLDER_THAN):
        raise InvalidRequest(_OLDER_THAN, "is required: a duration such as P30D, or a time")
    return dead_letter_filter.parse_bulk({"": _filter_of(request.query)}, None, now_ms=now_ms)


def _filter_of(query: Mapping[str, str]) -> dict[str, str]:
    return {name: query[name] for name in FIELDS if name in query}


def _check_once(request: Request) -> None:
    """Refuse a parameter that is there twice: joined, `args=&args=` would ask for a comma."""
    seen = set()
    for name, _ in parse_qsl(request.raw_query, keep_blank_values=True):
        if name in seen:
            raise InvalidRequest(shorten(name), "must be given once")
        seen.add(name)


def retried(
    operation: BulkOperation, job_ids: Sequence[str], errors: Sequence[Refusal]
) -> dict[str, Any]:
    """What a request retried by itself."""
    return {
        "action": operation.action.value,
        "matched": len(job_ids) + len(errors),
        "succeeded": len(job_ids),
        "failed": len(errors),
        "retried": len(job_ids),
        "job_ids": list(job_ids),
        "errors": [error.to_dict() for error in errors[:MAX_ERRORS]],
        "operation": operation.to_dict(),
    }


def purged(operation: BulkOperation, job_ids: Sequence[str]) -> dict[str, Any]:
    """What a request purged by itself."""
    return {"deleted": len(job_ids), "purged": len(job_ids), "operation": operation.to_dict()}


def wrapped(operation: BulkOperation) -> dict[str, Any]:
    """One operation."""
    return {"operation": operation.to_dict()}


def page(found: Page[BulkOperation], pagination: Mapping[str, Any]) -> dict[str, Any]:
    """A page of operations, under both names that clients know."""
    shown = [operation.to_dict() for operation in found.items]
    answer: dict[str, Any] = {"operations": shown, "items": shown, "pagination": pagination}
    if "total" in pagination:
        answer["total"] = pagination["total"]
    return answer
