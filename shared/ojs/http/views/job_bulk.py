"""Bulk operations on jobs: reading requests and building answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ojs.domain import times
from ojs.domain.bulk.operation import MAX_ERRORS, Action, BulkOperation, JobIds, Refusal
from ojs.domain.errors import InvalidRequest
from ojs.domain.filters import jobs as job_filter
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.page import Page
from ojs.domain.stats import DAY_MS
from ojs.http.binding import paging
from ojs.http.contract import models

if TYPE_CHECKING:
    from ojs.http.contract import answers

# Events are shown for seven days, and deleted a day later.
LOG_DAYS = 8
_DONE = {
    Action.RETRY_JOBS: "retried",
    Action.CANCEL_JOBS: "cancelled",
    Action.DELETE_JOBS: "deleted",
    Action.ERASE_JOBS: "erased",
}


def wanted(body: models.JobsRequest, action: Action, *, now_ms: int) -> JobFilter | JobIds:
    """The jobs that a request is for. Raises InvalidRequest, also for states in which jobs cannot
    be dealt with so.
    """
    if body.job_ids is not None:
        return JobIds(tuple(dict.fromkeys(body.job_ids)))
    found = job_filter.parse(body.wanted(), now_ms=now_ms)
    return limited(found, action, "filter.state")


def to_erase(body: models.EraseRequest, *, now_ms: int) -> JobFilter | JobIds:
    """The jobs that are to be erased. Raises InvalidRequest."""
    if body.job_ids is not None:
        return JobIds(tuple(dict.fromkeys(body.job_ids)))
    assert body.filter is not None
    return job_filter.parse(body.filter.model_dump(exclude_unset=True), now_ms=now_ms)


def to_purge(body: models.PurgeRequest, queue: str, *, now_ms: int) -> JobFilter:
    """The jobs of a queue that are to be deleted. Raises InvalidRequest."""
    fields: dict[str, Any] = {"queue": queue, "state": body.states}
    if body.older_than is not None:
        fields["older_than"] = body.older_than
    return job_filter.parse(fields, now_ms=now_ms, prefix="")


def limited(found: JobFilter, action: Action, field: str) -> JobFilter:
    """The filter for the states that an action is for. Raises InvalidRequest for others."""
    for state in found.states:
        if state not in action.states:
            states = ", ".join(sorted(action.states))
            rule = f"must be of {states}: no other job can be {_DONE[action]}"
            raise InvalidRequest(field, rule, value=state)
    return job_filter.limited(found, action.states)


def done(
    operation: BulkOperation,
    job_ids: Sequence[str],
    errors: Sequence[Refusal],
    recovery_days: Mapping[str, int],
) -> answers.ManyJobsAnswer:
    """What one request did itself; the sweep does the rest of the operation."""
    succeeded = 0 if operation.dry_run else len(job_ids)
    matched = len(job_ids) + len(errors)
    answer: dict[str, Any] = {
        "action": operation.action.shown,
        "matched": matched,
        "total_matched": matched,
        "succeeded": succeeded,
        "failed": len(errors),
        "skipped": len(errors),
        _DONE[operation.action]: succeeded,
        "errors": [each.to_dict() | {"error": each.message} for each in errors[:MAX_ERRORS]],
        "operation": shown(operation, recovery_days),
    }
    if isinstance(operation.wanted, JobIds):
        answer["items"] = _items(operation, operation.wanted.ids, job_ids, errors)
    return cast("answers.ManyJobsAnswer", answer)


def _items(
    operation: BulkOperation,
    ids: Sequence[str],
    job_ids: Sequence[str],
    errors: Sequence[Refusal],
) -> list[dict[str, Any]]:
    """What became of each job that was named."""
    told = "matched" if operation.dry_run else _DONE[operation.action]
    reasons = {each.job_id: each.message for each in errors}
    handled = set(job_ids)
    items = []
    for number, job_id in enumerate(ids):
        item: dict[str, Any] = {"index": number, "job_id": job_id, "status": "pending"}
        if job_id in handled:
            item["status"] = told
        elif job_id in reasons:
            item |= {"status": "skipped", "reason": reasons[job_id]}
        items.append(item)
    return items


def purged(
    operation: BulkOperation, job_ids: Sequence[str], states: Sequence[str]
) -> answers.QueuePurgedAnswer:
    """What one request deleted itself; the sweep does the rest of the operation."""
    count = 0 if operation.dry_run else len(job_ids)
    return {
        "purged_count": count,
        "purged": count,
        "deleted": count,
        "states": cast("Any", list(dict.fromkeys(states))),
        "operation": cast("answers.JobOperation", operation.to_dict()),
    }


def shown(operation: BulkOperation, recovery_days: Mapping[str, int]) -> answers.JobOperation:
    """One operation; of an erasure also where copies are kept, and until when."""
    found = cast("answers.JobOperation", operation.to_dict())
    if operation.action is Action.ERASE_JOBS and not operation.dry_run:
        end_ms = operation.finished_ms or operation.updated_ms
        kept = {"event_log": LOG_DAYS, **recovery_days}
        found["remains"] = [
            {"where": cast("Any", where), "until": times.format_ms(end_ms + days * DAY_MS)}
            for where, days in kept.items()
            if days
        ]
    return found


def wrapped(
    operation: BulkOperation, recovery_days: Mapping[str, int]
) -> answers.JobOperationAnswer:
    """One operation."""
    return {"operation": shown(operation, recovery_days)}


def page(
    found: Page[BulkOperation],
    pagination: answers.Pagination,
    recovery_days: Mapping[str, int],
) -> answers.JobOperationsAnswer:
    """A page of operations, under both names that clients know."""
    items = [shown(each, recovery_days) for each in found.items]
    return {"operations": items, "items": items, **paging.with_total(pagination)}
