"""Dead letters, and bulk operations on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast
from urllib.parse import parse_qsl

from ojs import runtime
from ojs.api import backpressure
from ojs.api import job_answers as views
from ojs.api.bulk import BulkError
from ojs.domain.access import Scope
from ojs.domain.bulk import operation as domain
from ojs.domain.bulk.operation import MAX_ERRORS, Action, Phase, Refusal
from ojs.domain.dead_letter.override import JobOverride
from ojs.domain.dead_letter.statistics import DeadLetterStats
from ojs.domain.errors import InvalidRequest, shorten
from ojs.domain.filters import dead_letters as dead_letter_filter
from ojs.domain.filters.conditions import MAX_ARGS_CHARACTERS
from ojs.domain.filters.dead_letters import FIELDS, DeadLetterFilter
from ojs.domain.job.envelope import MAX_NAME_BYTES, TYPE_PATTERN
from ojs.domain.job.failure import MAX_NAME_CHARACTERS
from ojs.domain.job.states import State
from ojs.domain.requests import Field
from ojs.http import models
from ojs.http.answer import Answer, AsIs, absent, made, moment, shown, source
from ojs.http.answers import Count, Id, JobAnswer, JobDetailAnswer, Moment
from ojs.http.binding import paging
from ojs.http.binding.paging import Listed, Paged
from ojs.http.binding.request import Request
from ojs.http.endpoint import Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.parameters import MOMENT_SCHEMA, PAGING, QUEUE_SCHEMA, one_of, text
from ojs.records import record

if TYPE_CHECKING:
    from ojs.services.bulk.run import BulkRun

# With less time than this, the request stops. The sweep continues the bulk operation.
_BULK_SPARE_MS = 8_000


@record(frozen=True)
class _Done:
    """The part of an operation that one request has processed. The sweep does the rest."""

    operation: domain.BulkOperation
    job_ids: Sequence[str]
    errors: Sequence[Refusal]

    @classmethod
    def of(cls, run: BulkRun) -> _Done:
        return cls(run.operation, run.job_ids, run.errors)

    @property
    def matched(self) -> int:
        return len(self.job_ids) + len(self.errors)


_s: DeadLetterStats = source()
_c = _s.counts
_id: str = source()
_d: _Done = source()
_o: domain.BulkOperation = source()
_l: Listed[domain.BulkOperation] = source()


class DeadLetterRetentionStats(Answer[DeadLetterStats]):
    """Which dead letters are kept, unless their queue is configured otherwise."""

    max_age: str = shown(_s.max_age, says="ISO 8601")
    max_count: Annotated[int, Field(ge=1)] = _s.max_count
    next_prune_at: Moment = moment(_s.next_prune_ms)


class DeadLetterStatsAnswer(Answer[DeadLetterStats]):
    """Statistics of all dead letters. The counts are up to 1 minute old."""

    total: Count = _c.total
    by_queue: dict[str, Count] = shown(
        made(dict, _c.by_queue),
        says="the queues with the most; under `_other` what the others have",
    )
    by_error_type: dict[str, Count] = shown(
        made(dict, _c.by_error_type),
        says="by the latest error; `Unknown` without, `other` rare",
    )
    by_type: dict[str, Count] = shown(
        made(dict, _c.by_type), says="by type of job; `other` rare ones"
    )
    oldest_at: Moment = shown(moment(_s.oldest_ms), absent=True)
    newest_at: Moment = shown(moment(_s.newest_ms), absent=True)
    retention: DeadLetterRetentionStats = DeadLetterRetentionStats.of(_s)
    computed_at: Moment = shown(moment(_c.at_ms), absent=True, says="when they were counted")


class DeadLetterDeletedAnswer(Answer[str]):
    """The dead letter that was deleted."""

    deleted: Literal[True] = True
    job_id: Id = _id


class BulkFilter(AsIs):
    """The dead letters that are meant, lengths of time as times."""

    queue: str = absent()
    type: str = absent()
    error_type: str = absent()
    since: Moment = absent()
    until: Moment = absent()
    args: str = absent()


class BulkOperation(Answer[domain.BulkOperation]):
    """A bulk operation on dead letters, and how far it is."""

    id: Id = _o.id
    action: Literal["retry", "purge"] = cast("Any", _o.action.shown)
    state: Phase = shown(
        _o.phase, says="`stopping` ends after the slice of at most 100 jobs it is in"
    )
    filter: BulkFilter = BulkFilter.of(_o.wanted.to_dict())
    matched: Count = shown(_o.matched, says="dead letters found so far")
    succeeded: Count = _o.succeeded
    failed: Count = shown(_o.failed, says="dead letters that can't be retried; they are kept")
    waiting_for_room: bool = shown(
        _o.waiting_for_room, says="a queue is full; the operation retries it"
    )
    errors: Annotated[list[BulkError], Field(max_length=MAX_ERRORS)] = shown(
        BulkError.each(_o.errors), says="the first of `failed`"
    )
    started_at: Moment = moment(_o.started_ms)
    updated_at: Moment = moment(_o.updated_ms)
    finished_at: Moment = shown(moment(_o.finished_ms), absent=True)


class DeadLettersRetriedAnswer(Answer[_Done]):
    """The result of this request. While the operation is running, the sweep continues it."""

    action: Literal["retry"] = "retry"
    matched: Count = _d.matched
    succeeded: Count = made(len, _d.job_ids)
    failed: Count = made(len, _d.errors)
    retried: Count = succeeded
    job_ids: Annotated[list[Id], Field(max_length=500)] = shown(
        made(list, _d.job_ids), says="that are available again"
    )
    errors: Annotated[list[BulkError], Field(max_length=MAX_ERRORS)] = shown(
        BulkError.each(made(lambda errors: errors[:MAX_ERRORS], _d.errors)),
        says="the first of `failed`",
    )
    operation: BulkOperation = BulkOperation.of(_d.operation)


class DeadLettersPurgedAnswer(Answer[_Done]):
    """The result of this request. While the operation is running, the sweep continues it."""

    deleted: Count = made(len, _d.job_ids)
    purged: Count = deleted
    operation: BulkOperation = BulkOperation.of(_d.operation)


class BulkOperationAnswer(Answer[domain.BulkOperation]):
    """A bulk operation."""

    operation: BulkOperation = BulkOperation.of(_o)


class BulkOperationsAnswer(Paged[domain.BulkOperation]):
    """A page of bulk operations."""

    operations: list[BulkOperation] = BulkOperation.each(_l.items)
    items: list[BulkOperation] = operations


# --- endpoints ------------------------------------------------------------------------------------

_FILTERS = (
    Parameter("queue", QUEUE_SCHEMA, "only jobs of this queue"),
    Parameter("type", text(TYPE_PATTERN, MAX_NAME_BYTES), "only jobs of this type"),
    Parameter(
        "error_type",
        {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARACTERS},
        "only jobs whose latest error is of this type; `Unknown` where there is none",
    ),
    Parameter("since", MOMENT_SCHEMA, "only jobs discarded at this time or later"),
    Parameter("until", MOMENT_SCHEMA, "only jobs discarded before this time"),
    Parameter("before", MOMENT_SCHEMA, "the same as until"),
    Parameter(
        "older_than",
        {"type": "string", "minLength": 1},
        "only jobs discarded before this time, or at least this long ago: `P30D`, `72h`",
    ),
    Parameter(
        "args",
        {"type": "string", "minLength": 1, "maxLength": MAX_ARGS_CHARACTERS},
        "only jobs whose args, as compact JSON, contain this text; or, beginning with `$`, whose "
        "args have what this JSON path leads to, with `=` and a value if it is to be that",
    ),
)
_STATE = Parameter("state", one_of(State.DISCARDED), "dead letters have no other")
_CONFIRM = Parameter("confirm", one_of("true"), "needed, here or in the body")
_ALL = Parameter(
    "all",
    one_of("true"),
    "all dead letters; required, here or in the body, without a filter, and rejected with one",
)
_DONE = "The processed dead letters, and the operation that continues."
_LOOK = Permission(Scope.ADMIN_READ, QueueScope.ALL)
_ONE = Permission(Scope.ADMIN_WRITE, QueueScope.JOB)
_MANY = Permission(Scope.ADMIN_WRITE, QueueScope.NAMED)

both = Resource("dead-letter", "dead-letter", also={"admin_{}": "admin/dead-letter"})
dead_letters = Resource("dead-letter", "dead-letter")
for_operators = Resource("admin/dead-letter", "admin")


def _once(request: Request) -> None:
    """Reject a parameter that appears twice, because API Gateway joins its values with a comma."""
    seen = set()
    for name, _ in parse_qsl(request.raw_query, keep_blank_values=True):
        if name in seen:
            raise InvalidRequest(shorten(name), "must appear only once")
        seen.add(name)


def _begun(
    request: Request, action: Action, wanted: DeadLetterFilter, clears: Sequence[str] = ()
) -> _Done:
    run = runtime.current().bulk.begin(
        action,
        wanted,
        clears=clears,
        go_on=lambda: request.remaining_ms() > _BULK_SPARE_MS,
    )
    return _Done.of(run)


@both.endpoint(
    "GET",
    Permission(Scope.ADMIN_READ, QueueScope.TENANT),
    Success(views.JobsPageAnswer, "One page of dead letters, latest first."),
    query=(*_FILTERS, _STATE, *PAGING),
)
def list_dead_letters(request: Request) -> Reply:
    """List dead letters."""
    current = runtime.current()
    window = paging.window(request.query)
    if (state := request.query.get("state")) not in (None, "", State.DISCARDED):
        raise InvalidRequest("state", f"must be {State.DISCARDED}", value=state)
    wanted = dead_letter_filter.from_query(request.query, now_ms=current.clock.now_ms())
    wanted = wanted.but(tenant=request.principal.tenant)
    # Without paging.collect, which would load the skipped jobs.
    page = current.dead_letter.list(
        wanted, limit=window.limit, cursor=window.cursor, skip=window.offset
    )
    total = None
    if wanted.everything and (page.next_cursor is not None or window.cursor is not None):
        seen = window.offset + len(page.items) + (page.next_cursor is not None)
        total = current.dead_letter_stats.total(wanted.queue, least=seen)
    return Reply(views.JobsPageAnswer.of(paging.listed(window, page, total, always=True)))


@both.endpoint(
    "GET /stats",
    Permission(Scope.ADMIN_READ, QueueScope.TENANT),
    DeadLetterStatsAnswer,
    derived=True,
)
def dead_letter_stats(request: Request) -> Reply:
    """Read statistics of dead letters.

    All queues together, or all of the caller's tenant.
    """
    found = runtime.current().dead_letter_stats.read(request.principal.tenant)
    return Reply(DeadLetterStatsAnswer.of(found))


@both.endpoint(
    "GET /{id}",
    Permission(Scope.ADMIN_READ, QueueScope.JOB),
    Success(JobDetailAnswer, "The job with its whole error history."),
    errors=(404,),
)
def get_dead_letter(request: Request) -> Reply:
    """Read a dead letter."""
    return Reply(views.detail(runtime.current().dead_letter.get(request.named)))


@both.endpoint(
    "POST /{id}/retry",
    _ONE,
    Success(JobAnswer, "The job, with attempt 0 and its errors kept."),
    errors=(404, 409, 413, 429),
    request=models.RetryDeadLetterRequest,
    example={
        "override": {
            "queue": "billing-retry",
            "args": [{"customer_id": "cust_123", "amount": 9_999}],
            "meta": {"retry_source": "manual_dlq_retry"},
            "retry": {"max_attempts": 1},
        }
    },
    admin_example={},
    body_required=False,
    strict_query=False,
)
def retry_dead_letter(request: Request) -> Reply:
    """Make a dead letter available again."""
    body = request.parsed(models.RetryDeadLetterRequest)
    override = body.changes()
    if override != JobOverride():
        # The caller changes the job, so it needs the scope of a producer.
        request.needs(Scope.JOBS_WRITE)
    if override.queue is not None:
        request.moves_to(override.queue)
    job = runtime.current().redrive.retry(
        request.named,
        override,
        caller=backpressure.producer(request.headers, request.principal),
        reaches=request.principal.reaches,
        clears=body.cleared(),
    )
    return Reply(views.wrapped(job))


@dead_letters.endpoint(
    "DELETE /{id}", _ONE, DeadLetterDeletedAnswer, errors=(404,), strict_query=False
)
def delete_dead_letter(request: Request) -> Reply:
    """Delete a dead letter permanently.

    Deletes the dead letter.
    """
    runtime.current().dead_letter.delete(request.named)
    return Reply(DeadLetterDeletedAnswer.of(request.named))


@for_operators.endpoint(
    "DELETE /{id}",
    _ONE,
    {204: Success(None, "The dead letter is deleted.")},
    errors=(404,),
    strict_query=False,
)
def admin_delete_dead_letter(request: Request) -> Reply:
    """Delete a dead letter permanently."""
    runtime.current().dead_letter.delete(request.named)
    return Reply(None, 204)


@both.endpoint(
    "POST /retry",
    _MANY,
    Success(DeadLettersRetriedAnswer, _DONE),
    request=models.RetryDeadLettersRequest,
    example={
        "filter": {
            "queue": "billing",
            "type": "invoice.generate",
            "since": "2026-02-12T00:00:00Z",
            "error_type": "DatabaseConnectionError",
        },
        "confirm": True,
    },
    admin_example={"all": True, "confirm": True},
)
def retry_dead_letters(request: Request) -> Reply:
    """Make many dead letters available again."""
    body = request.parsed(models.RetryDeadLettersRequest)
    now_ms = runtime.current().clock.now_ms()
    wanted = dead_letter_filter.parse_bulk(body.filters(), body.all, now_ms=now_ms)
    request.touches(wanted.queue)
    return Reply(DeadLettersRetriedAnswer.of(_begun(request, Action.RETRY, wanted, body.cleared())))


@both.endpoint(
    "DELETE",
    _MANY,
    Success(DeadLettersPurgedAnswer, _DONE),
    request=models.PurgeDeadLettersRequest,
    example={"filter": {"queue": "billing", "older_than": "P90D"}, "confirm": True},
    admin_example={"queue": "billing", "older_than": "P90D", "confirm": True},
    body_required=False,
    query=(*_FILTERS, _ALL, _CONFIRM),
)
def purge_dead_letters(request: Request) -> Reply:
    """Delete many dead letters permanently.

    Body or query say which. The query cannot add to a filter in the body.
    """
    _once(request)
    body = request.parsed(models.PurgeDeadLettersRequest)
    if body.confirm is None:
        raise InvalidRequest("confirm", models.CONFIRM)
    sent = request.object()
    added = [name for name in FIELDS if name in request.query and name not in sent]
    if added and any(name in sent for name in ("filter", *FIELDS)):
        raise InvalidRequest(added[0], "can't be combined with a filter in the body")
    now_ms = runtime.current().clock.now_ms()
    wanted = dead_letter_filter.parse_bulk(body.filters(), body.all, now_ms=now_ms)
    request.touches(wanted.queue)
    return Reply(DeadLettersPurgedAnswer.of(_begun(request, Action.PURGE, wanted)))


@both.endpoint(
    "POST /purge",
    Permission(Scope.ADMIN_WRITE, QueueScope.FILTER),
    Success(DeadLettersPurgedAnswer, _DONE),
    query=_FILTERS,
)
def purge_old_dead_letters(request: Request) -> Reply:
    """Delete dead letters of an age permanently."""
    _once(request)
    if not request.query.get("older_than"):
        raise InvalidRequest(
            "older_than", "is required. Send a duration, for example P30D, or an RFC 3339 timestamp"
        )
    asked = {name: request.query[name] for name in FIELDS if name in request.query}
    now_ms = runtime.current().clock.now_ms()
    wanted = dead_letter_filter.parse_bulk({"": asked}, None, now_ms=now_ms)
    return Reply(DeadLettersPurgedAnswer.of(_begun(request, Action.PURGE, wanted)))


@both.endpoint("GET /operations", _LOOK, BulkOperationsAnswer, query=PAGING)
def list_dead_letter_operations(request: Request) -> Reply:
    """List bulk operations on dead letters.

    One page of operations, latest first.
    """
    return Reply(BulkOperationsAnswer.of(paging.asked(request.query, runtime.current().bulk.list)))


@both.endpoint("GET /operations/{id}", _LOOK, BulkOperationAnswer, errors=(404,))
def get_dead_letter_operation(request: Request) -> Reply:
    """Read a bulk operation on dead letters.

    The operation.
    """
    return Reply(BulkOperationAnswer.of(runtime.current().bulk.get(request.named, of_jobs=False)))


@both.endpoint(
    "POST /operations/{id}/stop",
    Permission(Scope.ADMIN_WRITE, QueueScope.ALL),
    BulkOperationAnswer,
    errors=(404, 409),
    request=models.NoOptions,
    strict_query=False,
)
def stop_dead_letter_operation(request: Request) -> Reply:
    """Stop a bulk operation on dead letters.

    The operation.
    """
    return Reply(BulkOperationAnswer.of(runtime.current().bulk.stop(request.named, of_jobs=False)))
