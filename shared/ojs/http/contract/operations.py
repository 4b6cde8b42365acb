"""Every operation that is served: the one table behind routes, dispatch and the OpenAPI document.

A function's handler binds one implementation to each of its operations
(`ojs.http.binding.application`). Everything else is answered 404, 405 when only the method is
wrong, or 422 for a feature that is known and not offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ojs.domain.filters.conditions import MAX_ARGS_CHARACTERS
from ojs.domain.job.envelope import MAX_NAME_BYTES, TYPE_PATTERN
from ojs.domain.job.failure import MAX_NAME_CHARACTERS
from ojs.domain.pool.pool import MAX_POOL_BYTES, POOL_PATTERN
from ojs.http.answers import JobAnswer, JobDetailAnswer
from ojs.http.contract import models
from ojs.http.contract.permissions import permissions
from ojs.http.endpoint import BASE, Operation, Parameter, Success
from ojs.http.parameters import (
    MOMENT_SCHEMA,
    PAGING,
    QUEUE_SCHEMA,
    one_of,
    text,
)
from ojs.http.views.jobs import JobsPageAnswer

if TYPE_CHECKING:
    from ojs.domain.requests import Model


# For a wrong request, a wrong version, or a store that fails.
COMMON_ERRORS = (400, 422, 500, 503, 504)


# The tables below have a row for each parameter or operation: the formatter would split each row.
# fmt: off
POOL_SCHEMA = text(POOL_PATTERN, MAX_POOL_BYTES)
_FILTERS = (
    Parameter("queue", QUEUE_SCHEMA, "only jobs of this queue"),
    Parameter("type", text(TYPE_PATTERN, MAX_NAME_BYTES), "only jobs of this type"),
    Parameter("error_type", {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARACTERS},
        "only jobs whose latest error is of this type; `Unknown` where there is none"),
    Parameter("since", MOMENT_SCHEMA, "only jobs discarded at this time or later"),
    Parameter("until", MOMENT_SCHEMA, "only jobs discarded before this time"),
    Parameter("before", MOMENT_SCHEMA, "the same as until"),
    Parameter("older_than", {"type": "string", "minLength": 1},
        "only jobs discarded before this time, or so long ago: `P30D`, `72h`"),
    Parameter("args", {"type": "string", "minLength": 1, "maxLength": MAX_ARGS_CHARACTERS},
        "only jobs whose args, as compact JSON, contain this text; or, beginning with `$`, whose "
        "args have what this JSON path leads to, with `=` and a value if it is to be that"),
)
_STATE = Parameter("state", one_of("discarded"), "dead letters have no other")
_CONFIRM = Parameter("confirm", one_of("true"), "needed, here or in the body")
_ALL = Parameter("all", one_of("true"),
    "all dead letters; needed, here or in the body, where there is no filter, and refused with one")
# fmt: on


def _row(
    route: str,
    name: str,
    summary: str,
    answers: Success | str | Mapping[int, Success],
    *errors: int,
    tag: str | None = None,
    request: type[Model] | None = None,
    body_required: bool = True,
    query: tuple[Parameter, ...] = (),
    headers: tuple[Parameter, ...] = (),
    derived: bool = False,
) -> Operation:
    """One operation. `route` is its method and its path below BASE, or from the root with a slash.

    The tag is the first part of the path, unless another is given. An answer that is only named is
    described by the summary.
    """
    if isinstance(answers, str):
        answers = Success(answers, f"{summary}.")
    method, path = route.split()
    return Operation(
        name,
        method,
        path if path.startswith("/") else f"{BASE}/{path}",
        tag or path.split("/")[0],
        summary,
        permissions()[name],
        {200: answers} if isinstance(answers, Success) else answers,
        errors,
        request,
        body_required and request is not models.NoOptions,
        query,
        headers,
        derived,
    )


def _under_admin(operation: Operation) -> Operation:
    """The same operation where the admin API has it."""
    name, path = f"admin_{operation.id}", operation.path.replace(BASE, f"{BASE}/admin", 1)
    return replace(operation, id=name, path=path, tag="admin", permission=permissions()[name])


# fmt: off
_WORKER_REMOVED = Success("WorkerRemovedAnswer", "The worker is no longer listed.")
_WORKERS = (
    _row("POST workers/register", "register_worker", "Introduce a worker", "RegisterAnswer",
        409, 413, request=models.RegisterRequest),
    _row("DELETE workers/{id}", "remove_worker", "Sign a worker off", _WORKER_REMOVED, 404),
    _row("GET workers/{id}/health", "worker_health", "Read whether a worker takes jobs",
        Success("WorkerHealthAnswer", "The worker's state."), 404),
    _row("GET workers", "list_workers", "List workers",
        Success("WorkersAnswer", "One page of workers."), query=PAGING),
)
_BULK_OPERATION = Success("BulkOperationAnswer", "The operation.")
_PURGED = Success("DeadLettersPurgedAnswer", "What was done, and what goes on.")
_DEAD_LETTERS = (
    _row("GET dead-letter", "list_dead_letters", "List dead letters",
        Success(JobsPageAnswer, "One page of dead letters, latest first."),
        query=(*_FILTERS, _STATE, *PAGING)),
    _row("GET dead-letter/stats", "dead_letter_stats", "Read statistics of dead letters",
        Success("DeadLetterStatsAnswer", "All queues together."), derived=True),
    _row("GET dead-letter/{id}", "get_dead_letter", "Read a dead letter",
        Success(JobDetailAnswer, "The job with its whole error history."), 404),
    _row("POST dead-letter/{id}/retry", "retry_dead_letter", "Make a dead letter available again",
        Success(JobAnswer, "The job, with attempt 0 and its errors kept."), 404, 409, 413, 429,
        request=models.RetryDeadLetterRequest, body_required=False),
    _row("DELETE dead-letter/{id}", "delete_dead_letter", "Delete a dead letter for good",
        Success("DeadLetterDeletedAnswer", "It is gone."), 404),
    _row("POST dead-letter/retry", "retry_dead_letters", "Make many dead letters available again",
        Success("DeadLettersRetriedAnswer", "What was done, and what goes on."),
        request=models.RetryDeadLettersRequest),
    _row("DELETE dead-letter", "purge_dead_letters", "Delete many dead letters for good", _PURGED,
        request=models.PurgeDeadLettersRequest, body_required=False,
        query=(*_FILTERS, _ALL, _CONFIRM)),
    _row("POST dead-letter/purge", "purge_old_dead_letters",
        "Delete dead letters of an age for good", _PURGED, query=_FILTERS),
    _row("GET dead-letter/operations", "list_dead_letter_operations",
        "List bulk operations on dead letters",
        Success("BulkOperationsAnswer", "One page of operations, latest first."), query=PAGING),
    _row("GET dead-letter/operations/{id}", "get_dead_letter_operation",
        "Read a bulk operation on dead letters", _BULK_OPERATION, 404),
    _row("POST dead-letter/operations/{id}/stop", "stop_dead_letter_operation",
        "Stop a bulk operation on dead letters", _BULK_OPERATION, 404, 409,
        request=models.NoOptions),
)
_WORKER = Success("WorkerAnswer", "The worker.")
_ADMIN_WORKERS = (
    _row("GET admin/workers", "admin_list_workers", "List workers",
        Success("WorkersAnswer", "One page of workers."), query=PAGING),
    _row("POST admin/workers/directive", "direct_worker",
        "Tell a worker to run, go quiet or terminate", _WORKER, 404,
        request=models.DirectiveRequest),
    _row("GET admin/workers/{id}", "get_worker", "Read a worker", _WORKER, 404),
    _row("POST admin/workers/{id}/quiet", "quiet_worker", "Tell a worker to go quiet", _WORKER,
        404, request=models.NoOptions),
    _row("DELETE admin/workers/{id}", "admin_remove_worker", "Remove a worker's record",
        _WORKER_REMOVED, 404),
)
_OPENAPI = _row("GET openapi.json", "openapi", "Read this description",
    Success("OpenApiAnswer", "The OpenAPI 3.1 document."), tag="system")
# fmt: on


def _dead_letters_under_admin() -> Iterable[Operation]:
    for operation in map(_under_admin, _DEAD_LETTERS):
        if operation.id == "admin_delete_dead_letter":
            yield replace(operation, answers={204: Success(None, "It is gone.")})
        else:
            yield operation


OPERATIONS: tuple[Operation, ...] = (
    *_WORKERS, *_DEAD_LETTERS, *_dead_letters_under_admin(),
    *_ADMIN_WORKERS,
    _OPENAPI,
)  # fmt: skip
