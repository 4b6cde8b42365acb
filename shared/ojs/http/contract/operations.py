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
from ojs.domain.filters.jobs import KIND_PATTERN
from ojs.domain.job import idempotency
from ojs.domain.job.envelope import MAX_NAME_BYTES, TYPE_PATTERN, JobRequest
from ojs.domain.job.failure import MAX_NAME_CHARACTERS
from ojs.domain.job.states import State
from ojs.domain.job.trace import TRACEPARENT, TRACESTATE
from ojs.domain.job.unique import KEY_PATTERN
from ojs.domain.pool.pool import MAX_POOL_BYTES, POOL_PATTERN
from ojs.domain.pool.worker import MAX_ID_BYTES
from ojs.http.contract import models
from ojs.http.contract.permissions import permissions
from ojs.http.endpoint import BASE, Operation, Parameter, Success
from ojs.http.parameters import (
    LIMIT,
    MAX_OFFSET,
    MOMENT_SCHEMA,
    PAGING,
    PRODUCER,
    QUEUE_SCHEMA,
    SEALED,
    one_of,
    paged,
    text,
    whole,
)

if TYPE_CHECKING:
    from ojs.domain.requests import Model

# Jobs of one page: each costs half a read unit.
DEFAULT_LISTED = 20
MAX_LISTED = 100
# Unique locks of one page: each takes half a unit beside its job's. A page of more has fewer.
MAX_LISTED_LOCKS = 50
SORTS = ("created_at", "scheduled_at", "priority")
INCLUDED = "args"
# API Gateway ends a request after 30 s.
MAX_RESULT_WAIT_S = 25
# The longest wait that a client may ask for without an error; it waits less.
MAX_TIMEOUT_S = 86_400
# Longest wait for room in a queue, and characters of a producer's name.
MAX_BLOCK_S = 25
MAX_PRODUCER = MAX_NAME_BYTES

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
_HISTORY_PAGING = (
    Parameter("limit", LIMIT, "most events of one answer"),
    Parameter("cursor", SEALED,
        "`next_cursor` of the answer before"),
)
_STATES = "|".join(state.value for state in State)
_LISTED_LIMIT = whole(1, MAX_LISTED, DEFAULT_LISTED)
_JOBS_PAGING = paged(_LISTED_LIMIT, MAX_OFFSET)
_LISTED_JOBS = (
    Parameter("queue", QUEUE_SCHEMA, "only jobs of this queue"),
    Parameter("state", {"type": "string", "pattern": f"({_STATES})(,({_STATES}))*"},
        "only jobs in this state, or in one of several, separated by commas"),
    Parameter("type", text(KIND_PATTERN, MAX_NAME_BYTES),
        "only jobs of this type, or of those that begin so, with `*` at the end"),
    Parameter("tag", {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES},
        "only jobs with this tag"),
    Parameter("worker_id", {"type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES},
        "only jobs that this worker runs, or ran last"),
    Parameter("producer", {"type": "string", "minLength": 1, "maxLength": 255},
        "Enqueued by this producer: the name on its key"),
    Parameter("since", MOMENT_SCHEMA, "only jobs created at this time or later"),
    Parameter("until", MOMENT_SCHEMA, "only jobs created before this time"),
    Parameter("args", {"type": "string", "minLength": 1, "maxLength": MAX_ARGS_CHARACTERS},
        "only jobs whose args contain this text, or have what this JSON path leads to, as for dead "
        "letters; of jobs whose args are in the job record"),
    Parameter("sort", one_of(*SORTS),
        "the order of each page; of all pages where one line of a queue has it: `priority` of "
        "available, `scheduled_at` of scheduled, `created_at` of pending jobs"),
    Parameter("order", one_of("asc", "desc") | {"default": "desc"},
        "from the smallest value up, or from the largest down; of `created_at` without `sort`"),
    Parameter("include", one_of(INCLUDED),
        "also args that are not in the job record, as far as an answer may read them"),
    *_JOBS_PAGING,
)
_UNIQUE_LOCKS = (
    Parameter("key", {"type": "string", "pattern": KEY_PATTERN},
        "this key, whatever the state of its job"),
    *(each for each in _LISTED_JOBS if each.name in ("queue", "type")),
    Parameter("state", {"type": "string", "pattern": f"({_STATES})(,({_STATES}))*"},
        "only keys of jobs in this state, or in one of several, separated by commas; of jobs that "
        "wait or run when not given"),
    *_JOBS_PAGING,
)
_STATE = Parameter("state", one_of("discarded"), "dead letters have no other")
_CONFIRM = Parameter("confirm", one_of("true"), "needed, here or in the body")
_ALL = Parameter("all", one_of("true"),
    "all dead letters; needed, here or in the body, where there is no filter, and refused with one")
_WAIT = (
    Parameter("wait", {"type": "boolean", "default": False}, "wait until the job is done"),
    Parameter("timeout", whole(0, MAX_TIMEOUT_S, MAX_RESULT_WAIT_S),
        f"longest wait in seconds; never more than {MAX_RESULT_WAIT_S}"),
)
_PUSHING = (
    PRODUCER,
    Parameter("OJS-Block-Timeout",
        {"type": "string", "pattern": r"[0-9]+(\.[0-9]+)?", "default": "0"},
        "seconds to wait for room, when a queue is full and its overflow_policy is `block`; never "
        f"more than {MAX_BLOCK_S}"),
    Parameter(idempotency.HEADER,
        {"type": "string", "minLength": 1, "maxLength": idempotency.MAX_KEY_CHARACTERS,
         "pattern": r"[\x20-\x7e]*"},
        "for 24 hours the same request with the same key pushes nothing, and is answered with the "
        "same jobs, as they are then"),
    Parameter(TRACEPARENT, {"type": "string"},
        "W3C trace context, which stays with the jobs in `meta` and comes to their workers; one "
        "that is invalid is ignored"),
    Parameter(TRACESTATE, {"type": "string"}, "the same, with a valid traceparent"),
)
# On the answer to a push, when a queue is filled beyond its warning threshold.
_RATE_LIMIT = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
_PRESSURE = ("X-OJS-Queue-Depth", "X-OJS-Queue-Bound", "X-OJS-Queue-Pressure")
_COUNTED = ("X-OJS-Batch-Size",)
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
_JOB = Success("JobAnswer", "The job.")
_JOB_TWICE = Success("JobDetailAnswer", "The job, wrapped and at the top level.")
_JOBS = (
    _row("POST jobs", "enqueue_job", "Enqueue a job", {
            201: Success("JobMadeAnswer", "The job is durably stored.", ("Location",), _PRESSURE),
            200: Success("DeduplicatedAnswer", "A unique job with this key exists; here it is."),
        }, 403, 404, 409, 413, 429, request=JobRequest, headers=_PUSHING),
    _row("POST jobs/batch", "enqueue_batch", "Enqueue many jobs, or none", {
            201: Success("BatchAnswer", "All jobs are stored, in the order of the request.",
                         sometimes=(*_PRESSURE, *_RATE_LIMIT)),
        }, 403, 404, 409, 413, 429, request=models.BatchRequest, headers=_PUSHING),
    _row("POST jobs/bulk", "enqueue_bulk", "Enqueue many jobs, each for itself", {
            201: Success("JobsPushedAnswer", "All jobs are stored.", _COUNTED, _PRESSURE),
            207: Success("JobsPushedAnswer", "Some jobs are stored, others are refused.",
                         _COUNTED, _PRESSURE),
            422: Success("JobsRefusedAnswer", "No job is stored.",
                         sometimes=(*_COUNTED, "Retry-After", *_PRESSURE[:2])),
        }, 409, 413, request=models.BulkPushRequest, headers=_PUSHING),
    _row("GET jobs/{id}", "get_job", "Read a job", _JOB_TWICE, 404),
    _row("DELETE jobs/{id}", "cancel_job", "Cancel a job that is not final", _JOB_TWICE,
        404, 409),
    _row("POST jobs/{id}/cancel", "cancel_job_by_post", "Cancel a job that is not final",
        _JOB_TWICE, 404, 409, request=models.NoOptions),
    _row("POST jobs/{id}/activate", "activate_job", "Make a pending job available", _JOB,
        404, 409, request=models.NoOptions),
    _row("POST jobs/{id}/ack", "ack_job_by_path", "Acknowledge a job as done",
        Success("AckAnswer", "The job is completed."), 404, 409, 413,
        request=models.AckOptions, body_required=False),
    _row("POST jobs/{id}/nack", "nack_job_by_path", "Report a job as failed",
        Success("NackAnswer", "What the failure led to."), 404, 409, request=models.NackOptions),
    _row("GET jobs/{id}/result", "get_result", "Read, or wait for, a job's result", {
            200: Success("ResultAnswer", "The job is final."),
            202: Success("ResultAnswer", "The job is not done yet.", ("Retry-After",)),
        }, 404, query=_WAIT),
    _row("GET jobs/{id}/retries", "list_retries", "Read a job's error history",
        Success("RetriesAnswer", "The failures so far, oldest first."), 404),
    _row("GET jobs/{id}/progress", "get_progress", "Read how far a job is",
        Success("ProgressAnswer", "The last report; nulls when there was none."), 404),
    _row("PUT jobs/{id}/progress", "report_progress", "Report how far a job is",
        Success("ProgressAnswer", "The progress as it stands now."), 404, 413,
        request=models.ProgressRequest),
)
_LISTED = _row("GET jobs", "list_jobs", "List jobs",
    Success("JobsListAnswer", "One page of jobs. It may be short, and have a cursor."),
    query=_LISTED_JOBS, derived=True)
_DETAIL = Success("JobDetailAnswer", "The job, wrapped and at the top level.")
_ACTS = (
    _LISTED,
    _row("POST jobs/{id}/retry", "retry_job",
        "Make a dead letter or a retryable job available", _DETAIL, 404, 409, 429,
        request=models.NoOptions),
    _row("POST jobs/{id}/run", "run_job", "Run a scheduled or retryable job now", _DETAIL, 404, 409,
        request=models.NoOptions),
    _row("PATCH jobs/{id}", "change_job", "Change the priority or queue of a job that waits",
        _DETAIL, 403, 404, 409, 429, request=models.ChangeJobRequest),
)
_MANY = Success("ManyJobsAnswer", "What was done, and what goes on.")
_JOB_OPERATION = Success("JobOperationAnswer", "The operation.")
_PURGED_QUEUE = Success("QueuePurgedAnswer", "What was deleted, and what goes on.")
_BULK_JOBS = (
    *(
        _row(f"POST {base}jobs/bulk/{verb}", f"{prefix}{verb}_jobs", summary, _MANY,
            request=model)
        for base, prefix, model in (
            ("", "", models.ManyJobsRequest),
            ("admin/", "admin_", models.ConfirmedJobsRequest),
        )
        for verb, summary in (
            ("retry", "Make many dead letters and retryable jobs available"),
            ("cancel", "Cancel many jobs that are not final"),
            ("delete", "Delete many final jobs for good"),
        )
    ),
    _row("POST admin/jobs/bulk/erase", "admin_erase_jobs",
        "Erase jobs in any state, and from the archive of dead letters", _MANY,
        request=models.EraseRequest),
    _row("GET admin/jobs/bulk/operations", "list_job_operations",
        "List bulk operations on jobs",
        Success("JobOperationsAnswer", "One page of operations, latest first."), query=PAGING),
    _row("GET admin/jobs/bulk/operations/{id}", "get_job_operation",
        "Read a bulk operation on jobs", _JOB_OPERATION, 404),
    _row("POST admin/jobs/bulk/operations/{id}/stop", "stop_job_operation",
        "Stop a bulk operation on jobs", _JOB_OPERATION, 404, 409, request=models.NoOptions),
    _row("DELETE admin/queues/{name}/jobs", "admin_purge_queue_jobs",
        "Delete jobs of a queue that have ended", _PURGED_QUEUE,
        request=models.ConfirmedPurgeRequest),
    _row("POST queues/{name}/purge", "purge_queue_jobs", "Delete jobs of a queue that have ended",
        _PURGED_QUEUE, request=models.PurgeQueueRequest),
)
_ADMIN_JOBS = (
    *_ACTS,
    *map(_under_admin, _ACTS),
    *_BULK_JOBS,
    _row("GET unique-jobs", "list_unique_jobs", "List unique keys, and the jobs that hold them",
        Success("UniqueLocksAnswer", "One page of keys. It may be short, and have a cursor."),
        tag="jobs", query=_UNIQUE_LOCKS, derived=True),
    _row("GET jobs/{id}/history", "job_history", "Read what happened to a job",
        Success("JobHistoryAnswer", "What the job's own items tell, oldest first."), 404,
        query=_HISTORY_PAGING),
    _row("POST admin/jobs/{id}/cancel", "admin_cancel_job", "Cancel a job that is not final",
        _DETAIL, 404, 409, request=models.NoOptions),
    _row("DELETE admin/jobs/{id}", "admin_delete_job", "Delete a final job for good",
        Success("JobDeletedAnswer", "It is gone."), 404, 409),
)
_WORKER_REMOVED = Success("WorkerRemovedAnswer", "The worker is no longer listed.")
_WORKERS = (
    _row("POST workers/fetch", "fetch_jobs", "Claim jobs", "FetchAnswer", 409,
        request=models.FetchRequest),
    _row("POST workers/ack", "ack_job", "Acknowledge a job, or many, as done", {
            200: Success("AckAnswer", "The job is completed."),
            207: Success("AcksAnswer", "What became of each of many, in their order."),
        }, 404, 409, 413, request=models.AckRequest),
    _row("POST workers/nack", "nack_job", "Report a job, or many, as failed", {
            200: Success("NackAnswer", "What the failure led to."),
            207: Success("NacksAnswer", "What became of each of many, in their order."),
        }, 404, 409, request=models.NackRequest),
    _row("POST workers/heartbeat", "heartbeat", "Extend leases, take directives",
        "HeartbeatAnswer", 409, 413, request=models.HeartbeatRequest),
    _row("POST workers/beat", "beat", "Announce draining", "BeatAnswer", 409, 413,
        request=models.BeatRequest),
    _row("POST workers/progress", "report_worker_progress", "Report how far a job is",
        "ProgressAnswer", 404, 413, request=models.WorkerProgressRequest),
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
        Success("JobsPageAnswer", "One page of dead letters, latest first."),
        query=(*_FILTERS, _STATE, *PAGING)),
    _row("GET dead-letter/stats", "dead_letter_stats", "Read statistics of dead letters",
        Success("DeadLetterStatsAnswer", "All queues together."), derived=True),
    _row("GET dead-letter/{id}", "get_dead_letter", "Read a dead letter",
        Success("JobDetailAnswer", "The job with its whole error history."), 404),
    _row("POST dead-letter/{id}/retry", "retry_dead_letter", "Make a dead letter available again",
        Success("JobAnswer", "The job, with attempt 0 and its errors kept."), 404, 409, 413, 429,
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
_JOB_FOR_OPERATORS = (
    _row("GET admin/jobs/{id}", "admin_get_job", "Read a job",
        Success("AdminJobAnswer", "The job with its policy and times, and wrapped."), 404),
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
    *_JOBS, *_ADMIN_JOBS, *_WORKERS, *_DEAD_LETTERS, *_dead_letters_under_admin(),
    *_ADMIN_WORKERS, *_JOB_FOR_OPERATORS,
    _OPENAPI,
)  # fmt: skip
