"""Bulk operations on dead letters: reading requests and building answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl

from ojs.domain.bulk.operation import MAX_ERRORS, BulkOperation, Refusal
from ojs.domain.errors import InvalidRequest, shorten
from ojs.domain.filters import dead_letters as dead_letter_filter
from ojs.domain.filters.dead_letters import FIELDS, DeadLetterFilter
from ojs.domain.page import Page
from ojs.http.binding import paging
from ojs.http.binding.request import Request
from ojs.http.contract import models

if TYPE_CHECKING:
    from ojs.http.contract import answers


def to_retry(request: Request, *, now_ms: int) -> DeadLetterFilter:
    """Read from the body which dead letters to retry. Raises InvalidPayload, InvalidRequest."""
    body = request.parsed(models.RetryDeadLettersRequest)
    return dead_letter_filter.parse_bulk(body.filters(), body.all, now_ms=now_ms)


def to_purge(request: Request, *, now_ms: int) -> DeadLetterFilter:
    """Read from the body or the query which dead letters to purge. The query can't add to a filter
    in the body.

    Raises InvalidPayload, InvalidRequest.
    """
    _check_once(request)
    body = request.parsed(models.PurgeDeadLettersRequest)
    if body.confirm is None:
        raise InvalidRequest("confirm", models.CONFIRM)
    sent = request.object()
    added = [name for name in FIELDS if name in request.query and name not in sent]
    if added and any(name in sent for name in ("filter", *FIELDS)):
        raise InvalidRequest(added[0], "can't be combined with a filter in the body")
    return dead_letter_filter.parse_bulk(body.filters(), body.all, now_ms=now_ms)


def older(request: Request, *, now_ms: int) -> DeadLetterFilter:
    """Read from the query from which age on dead letters are purged. Raises InvalidRequest."""
    _check_once(request)
    if not request.query.get("older_than"):
        raise InvalidRequest("older_than", "is required: a duration such as P30D, or a time")
    return dead_letter_filter.parse_bulk({"": _filter_of(request.query)}, None, now_ms=now_ms)


def _filter_of(query: Mapping[str, str]) -> dict[str, str]:
    return {name: query[name] for name in FIELDS if name in query}


def _check_once(request: Request) -> None:
    """Refuse a parameter that appears twice: API Gateway joins the values by a comma."""
    seen = set()
    for name, _ in parse_qsl(request.raw_query, keep_blank_values=True):
        if name in seen:
            raise InvalidRequest(shorten(name), "must appear only once")
        seen.add(name)


def shown(operation: BulkOperation) -> answers.BulkOperation:
    """An operation and how far it is."""
    return cast("answers.BulkOperation", operation.to_dict())


def retried(
    operation: BulkOperation, job_ids: Sequence[str], errors: Sequence[Refusal]
) -> answers.DeadLettersRetriedAnswer:
    """What one request retried itself; the sweep does the rest of the operation."""
    return {
        "action": "retry",
        "matched": len(job_ids) + len(errors),
        "succeeded": len(job_ids),
        "failed": len(errors),
        "retried": len(job_ids),
        "job_ids": list(job_ids),
        "errors": [cast("answers.BulkError", error.to_dict()) for error in errors[:MAX_ERRORS]],
        "operation": shown(operation),
    }


def purged(operation: BulkOperation, job_ids: Sequence[str]) -> answers.DeadLettersPurgedAnswer:
    """What one request purged itself; the sweep does the rest of the operation."""
    return {"deleted": len(job_ids), "purged": len(job_ids), "operation": shown(operation)}


def wrapped(operation: BulkOperation) -> answers.BulkOperationAnswer:
    """One operation."""
    return {"operation": shown(operation)}


def page(
    found: Page[BulkOperation], pagination: answers.Pagination
) -> answers.BulkOperationsAnswer:
    """A page of operations, under both names that clients know."""
    items = [shown(operation) for operation in found.items]
    return {"operations": items, "items": items, **paging.with_total(pagination)}
