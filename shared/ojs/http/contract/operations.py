"""Every operation that is served: the one table behind routes, dispatch and the OpenAPI document.

A function's handler binds one implementation to each of its operations
(`ojs.http.binding.application`). Everything else is answered 404, or 405 when only the method is
wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from ojs.domain.dead_letter.filter import MAX_ARGS_CHARACTERS
from ojs.domain.events.query import SOURCE_PATTERN as EVENT_SOURCE_PATTERN
from ojs.domain.events.query import TYPE_PATTERN as EVENT_TYPE_PATTERN
from ojs.domain.job.envelope import MAX_NAME_BYTES, QUEUE_PATTERN, TYPE_PATTERN, JobRequest
from ojs.domain.job.failure import MAX_NAME_CHARACTERS
from ojs.domain.pool.pool import MAX_POOL_BYTES, POOL_PATTERN, PoolRequest
from ojs.domain.queue.queue import DeletionStrategy
from ojs.domain.rate_limit.limiter import OverrideRequest
from ojs.domain.stats import Period
from ojs.http.contract import models

if TYPE_CHECKING:
    from pydantic import BaseModel

BASE = "/ojs/v1"
JOBS = "jobs"
WORKERS = "workers"
ADMIN = "admin"
HTTP_FUNCTIONS = (JOBS, WORKERS, ADMIN)

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
# Skipping costs reading what is skipped; cursors have no such bound.
MAX_OFFSET = 1_000
# Queues are shown with counts: two items each.
MAX_QUEUES_LIMIT = 100
DEFAULT_EVENTS = 100
MAX_EVENTS = 1_000
# Entries of a list in a query parameter.
MAX_FILTER_NAMES = 50
# API Gateway ends a request after 30 s.
MAX_RESULT_WAIT_S = 25
# The longest wait that a client may ask for without an error; it waits less.
MAX_TIMEOUT_S = 86_400
# Longest wait for room in a queue, and characters of a producer's name.
MAX_BLOCK_S = 25
MAX_PRODUCER = MAX_NAME_BYTES

Subject = Literal["job", "worker", "queue", "rate limit", "operation", "pool", "key"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of the query or a header of the request, and its JSON schema."""

    name: str
    schema: Mapping[str, Any]
    description: str


@dataclass(frozen=True)
class Success:
    """One successful answer. `shape` is a type of `ojs.http.contract.answers`; None has no body."""

    shape: str | None
    description: str
    headers: tuple[str, ...] = ()
    # Headers that it does not always have.
    sometimes: tuple[str, ...] = ()
    # Whether the body may be plain text; without a shape it always is.
    text: bool = False


@dataclass(frozen=True)
class Operation:
    """One method on one path; `subject` is the kind of thing that the path's parameter names."""

    id: str
    method: str
    path: str
    function: str
    tag: str
    summary: str
    answers: Mapping[int, Success]
    # Statuses of error answers, besides those that any operation may give.
    errors: tuple[int, ...] = ()
    request: type[BaseModel] | None = None
    body_required: bool = True
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    subject: Subject | None = None
    # Whether the answer is made from projections. In the cloud these lag by the stream's delay; the
    # local server projects everything written before it answers.
    derived: bool = False

    @property
    def path_parameter(self) -> str | None:
        """The name in braces in the path."""
        found = _PARAMETER.search(self.path)
        return found[1] if found else None


_PARAMETER = re.compile(r"\{(\w+)\}")

# For a wrong request, a wrong version, or a store that fails.
COMMON_ERRORS = (400, 422, 500, 503, 504)

_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
PAGING = (
    Parameter("limit", _LIMIT, "most items of one page"),
    Parameter(
        "cursor",
        {"type": "string", "pattern": "[A-Za-z0-9_-]*={0,2}"},
        "`next_cursor` of the page before; not together with offset or page",
    ),
    Parameter(
        "offset",
        {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET, "default": 0},
        "items to skip; a cursor has no such bound",
    ),
    Parameter(
        "page",
        {"type": "integer", "minimum": 1, "maximum": MAX_OFFSET + 1, "default": 1},
        f"page number; the pages before it may have {MAX_OFFSET} items in all",
    ),
    Parameter("per_page", _LIMIT, "the same as limit"),
)
QUEUE_SCHEMA: Mapping[str, Any] = {
    "type": "string",
    "pattern": QUEUE_PATTERN,
    "maxLength": MAX_NAME_BYTES,
}
_TYPE_SCHEMA: Mapping[str, Any] = {
    "type": "string",
    "pattern": TYPE_PATTERN,
    "maxLength": MAX_NAME_BYTES,
}
_MOMENT_SCHEMA: Mapping[str, Any] = {"type": "string", "format": "date-time"}
_FILTERS = (
    Parameter("queue", QUEUE_SCHEMA, "only jobs of this queue"),
    Parameter("type", _TYPE_SCHEMA, "only jobs of this type"),
    Parameter(
        "error_type",
        {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARACTERS},
        "only jobs whose latest error is of this type; `Unknown` where there is none",
    ),
    Parameter("since", _MOMENT_SCHEMA, "only jobs discarded at this time or later"),
    Parameter("until", _MOMENT_SCHEMA, "only jobs discarded before this time"),
    Parameter("before", _MOMENT_SCHEMA, "the same as until"),
    Parameter(
        "older_than",
        {"type": "string", "minLength": 1},
        "only jobs discarded before this time, or so long ago: `P30D`, `72h`",
    ),
    Parameter(
        "args",
        {"type": "string", "minLength": 1, "maxLength": MAX_ARGS_CHARACTERS},
        "only jobs whose args, as compact JSON, contain this text; or, beginning with `$`, whose "
        "args have what this JSON path leads to, with `=` and a value if it is to be that",
    ),
    Parameter("state", {"type": "string", "enum": ["discarded"]}, "dead letters have no other"),
)
_BULK_FILTERS = tuple(each for each in _FILTERS if each.name != "state")
_CONFIRM = Parameter("confirm", {"type": "string", "enum": ["true"]}, "needed, here or in the body")
_ALL = Parameter(
    "all",
    {"type": "string", "enum": ["true"]},
    "all dead letters; needed, here or in the body, where there is no filter, and refused with one",
)
POOL_SCHEMA: Mapping[str, Any] = {
    "type": "string",
    "pattern": POOL_PATTERN,
    "maxLength": MAX_POOL_BYTES,
}
_POOL = Parameter("pool", POOL_SCHEMA, "only queues of this worker pool")
_QUEUES_LIMIT = {**_LIMIT, "maximum": MAX_QUEUES_LIMIT}
_QUEUES_PAGING = tuple(
    replace(each, schema=_QUEUES_LIMIT) if each.schema is _LIMIT else each for each in PAGING
)
_HISTORY = (
    Parameter(
        "period",
        {"type": "string", "enum": [*Period], "default": Period.FIVE_MINUTES},
        "length of one point",
    ),
    Parameter(
        "since",
        _MOMENT_SCHEMA,
        "the first point is that of this time; when not given an hour, a day (`1h`) or 30 days "
        "(`1d`) before the end",
    ),
    Parameter("until", _MOMENT_SCHEMA, "points begin before this time; now when not given"),
    Parameter("queue", QUEUE_SCHEMA, "this queue instead of all"),
)


def _listed(*names: str, pattern: str, what: str) -> Iterable[Parameter]:
    schema = {"type": "string", "pattern": f"{pattern}(,{pattern}){{0,{MAX_FILTER_NAMES - 1}}}"}
    yield Parameter(names[0], schema, what)
    for name in names[1:]:
        yield Parameter(name, schema, f"the same as {names[0]}")


_PLACE: Mapping[str, Any] = {"type": "string", "pattern": "[A-Za-z0-9_-]+={0,2}"}
_EVENTS_LIMIT = {
    "type": "integer", "minimum": 1, "maximum": MAX_EVENTS, "default": DEFAULT_EVENTS,
}  # fmt: skip
_EVENTS = (
    *_listed(
        "types", "type", pattern=EVENT_TYPE_PATTERN,
        what="types of event, separated by commas; each may end in `*`",
    ),
    *_listed("queues", "queue", pattern=f"({QUEUE_PATTERN})", what="only events of these queues"),
    *_listed(
        "job_types", "job_type", pattern=f"({TYPE_PATTERN})",
        what="only events of jobs of these types",
    ),
    *_listed(
        "sources", "source", pattern=EVENT_SOURCE_PATTERN,
        what="only events from these sources; each may end in `*`",
    ),
    Parameter("since", _MOMENT_SCHEMA, "only events of this time or later"),
    Parameter("until", _MOMENT_SCHEMA, "only events before this time"),
    Parameter(
        "after",
        _PLACE,
        "go forward from here: `cursor` of an answer, or an event's id; without it the answer has "
        "the latest events",
    ),
    Parameter("cursor", _PLACE, "`pagination.next_cursor` of an answer; not together with after"),
    Parameter("limit", _EVENTS_LIMIT, "most events of one answer"),
    Parameter("per_page", _EVENTS_LIMIT, "the same as limit"),
    Parameter(
        "page",
        {"type": "integer", "minimum": 1, "maximum": MAX_OFFSET + 1, "default": 1},
        f"page number, from the latest events back; the pages before it may have {MAX_OFFSET} "
        "events in all",
    ),
)  # fmt: skip
METRIC_FORMATS = ("json", "prometheus")
_FORMAT = (
    Parameter(
        "format",
        {"type": "string", "enum": [*METRIC_FORMATS], "default": METRIC_FORMATS[0]},
        "JSON, or Prometheus text",
    ),
)
_WAIT = (
    Parameter("wait", {"type": "boolean", "default": False}, "wait until the job is done"),
    Parameter(
        "timeout",
        {"type": "integer", "minimum": 0, "maximum": MAX_TIMEOUT_S, "default": MAX_RESULT_WAIT_S},
        f"longest wait in seconds; never more than {MAX_RESULT_WAIT_S}",
    ),
)

_PUSHING = (
    Parameter(
        "X-OJS-Producer",
        # Unprintable characters that JSON Schema's regular expressions can name everywhere.
        {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_PRODUCER,
            "pattern": r"[^\u0000-\u001f\u007f-\u00a0\u00ad\u2028\u2029]+",
        },
        "who enqueues, for queues that take jobs of some producers only",
    ),
    Parameter(
        "OJS-Block-Timeout",
        {"type": "string", "pattern": r"[0-9]+(\.[0-9]+)?", "default": "0"},
        "seconds to wait for room, when a queue is full and its overflow_policy is `block`; never "
        f"more than {MAX_BLOCK_S}",
    ),
)
# On the answer to a push, when a queue is filled beyond its warning threshold.
_RATE_LIMIT = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
_PRESSURE = ("X-OJS-Queue-Depth", "X-OJS-Queue-Bound", "X-OJS-Queue-Pressure")


def _jobs() -> Iterable[Operation]:
    shown = {200: Success("JobAnswer", "The job.")}
    yield Operation(
        "enqueue_job", "POST", f"{BASE}/jobs", JOBS, "jobs", "Enqueue a job",
        {
            201: Success("JobAnswer", "The job is durably stored.", ("Location",), _PRESSURE),
            200: Success("DeduplicatedAnswer", "A unique job with this key exists; here it is."),
        },
        (403, 404, 409, 413, 429), JobRequest, headers=_PUSHING,
    )  # fmt: skip
    yield Operation(
        "enqueue_batch", "POST", f"{BASE}/jobs/batch", JOBS, "jobs", "Enqueue many jobs, or none",
        {
            201: Success(
                "BatchAnswer", "All jobs are stored, in the order of the request.",
                sometimes=(*_PRESSURE, *_RATE_LIMIT),
            ),
        },
        (403, 404, 409, 413, 429), models.BatchRequest, headers=_PUSHING,
    )  # fmt: skip
    one = f"{BASE}/jobs/{{id}}"
    yield Operation(
        "get_job", "GET", one, JOBS, "jobs", "Read a job",
        {200: Success("JobDetailAnswer", "The job, wrapped and at the top level.")},
        (404,), subject="job",
    )  # fmt: skip
    for name, method, path in (
        ("cancel_job", "DELETE", one),
        ("cancel_job_by_post", "POST", f"{one}/cancel"),
    ):
        yield Operation(
            name, method, path, JOBS, "jobs", "Cancel a job that is not final", shown,
            (404, 409), models.NoOptions if method == "POST" else None, body_required=False,
            subject="job",
        )  # fmt: skip
    yield Operation(
        "activate_job", "POST", f"{one}/activate", JOBS, "jobs", "Make a pending job available",
        shown, (404, 409), models.NoOptions, body_required=False, subject="job",
    )  # fmt: skip
    yield Operation(
        "ack_job_by_path", "POST", f"{one}/ack", JOBS, "jobs", "Acknowledge a job as done",
        {200: Success("AckAnswer", "The job is completed.")},
        (404, 409, 413), models.AckOptions, body_required=False, subject="job",
    )  # fmt: skip
    yield Operation(
        "nack_job_by_path", "POST", f"{one}/nack", JOBS, "jobs", "Report a job as failed",
        {200: Success("NackAnswer", "What the failure led to.")},
        (404, 409), models.NackOptions, subject="job",
    )  # fmt: skip
    yield Operation(
        "get_result", "GET", f"{one}/result", JOBS, "jobs", "Read, or wait for, a job's result",
        {
            200: Success("ResultAnswer", "The job is final."),
            202: Success("ResultAnswer", "The job is not done yet.", ("Retry-After",)),
        },
        (404,), query=_WAIT, subject="job",
    )  # fmt: skip
    yield Operation(
        "list_retries", "GET", f"{one}/retries", JOBS, "jobs", "Read a job's error history",
        {200: Success("RetriesAnswer", "The failures so far, oldest first.")},
        (404,), subject="job",
    )  # fmt: skip
    yield Operation(
        "get_progress", "GET", f"{one}/progress", JOBS, "jobs", "Read how far a job is",
        {200: Success("ProgressAnswer", "The last report; nulls when there was none.")},
        (404,), subject="job",
    )  # fmt: skip
    yield Operation(
        "report_progress", "PUT", f"{one}/progress", JOBS, "jobs", "Report how far a job is",
        {200: Success("ProgressAnswer", "The progress as it stands now.")},
        (404, 413), models.ProgressRequest, subject="job",
    )  # fmt: skip


def _workers() -> Iterable[Operation]:
    base = f"{BASE}/workers"

    def post(
        name: str,
        path: str,
        summary: str,
        shape: str,
        request: type[BaseModel],
        *errors: int,
    ) -> Operation:
        return Operation(
            name, "POST", f"{base}/{path}", WORKERS, "workers", summary,
            {200: Success(shape, summary + ".")}, errors, request,
        )  # fmt: skip

    yield post("fetch_jobs", "fetch", "Claim jobs", "FetchAnswer", models.FetchRequest, 409)
    yield post(
        "ack_job", "ack", "Acknowledge a job as done", "AckAnswer", models.AckRequest,
        404, 409, 413,
    )  # fmt: skip
    yield post(
        "nack_job", "nack", "Report a job as failed", "NackAnswer", models.NackRequest,
        404, 409,
    )  # fmt: skip
    yield post(
        "heartbeat", "heartbeat", "Extend leases, take directives", "HeartbeatAnswer",
        models.HeartbeatRequest, 409, 413,
    )  # fmt: skip
    yield post("beat", "beat", "Announce draining", "BeatAnswer", models.BeatRequest, 409, 413)
    yield post(
        "report_worker_progress", "progress", "Report how far a job is", "ProgressAnswer",
        models.WorkerProgressRequest, 404, 413,
    )  # fmt: skip
    yield post(
        "register_worker", "register", "Introduce a worker", "RegisterAnswer",
        models.RegisterRequest, 409, 413,
    )  # fmt: skip
    yield Operation(
        "remove_worker", "DELETE", f"{base}/{{id}}", WORKERS, "workers", "Sign a worker off",
        {200: Success("WorkerRemovedAnswer", "The worker is no longer listed.")},
        (404,), subject="worker",
    )  # fmt: skip
    yield Operation(
        "worker_health", "GET", f"{base}/{{id}}/health", WORKERS, "workers",
        "Read whether a worker takes jobs",
        {200: Success("WorkerHealthAnswer", "The worker's state.")},
        (404,), subject="worker",
    )  # fmt: skip
    yield Operation(
        "list_workers", "GET", base, WORKERS, "workers", "List workers",
        {200: Success("WorkersAnswer", "One page of workers.")}, query=PAGING,
    )  # fmt: skip


def _admin_workers() -> Iterable[Operation]:
    base = f"{BASE}/admin/workers"
    one = f"{base}/{{id}}"
    shown = {200: Success("WorkerAnswer", "The worker.")}
    yield Operation(
        "admin_list_workers", "GET", base, ADMIN, "admin", "List workers",
        {200: Success("WorkersAnswer", "One page of workers.")}, query=PAGING,
    )  # fmt: skip
    yield Operation(
        "direct_worker", "POST", f"{base}/directive", ADMIN, "admin",
        "Tell a worker to run, go quiet or terminate", shown, (404,), models.DirectiveRequest,
    )  # fmt: skip
    yield Operation(
        "get_worker", "GET", one, ADMIN, "admin", "Read a worker", shown, (404,),
        subject="worker",
    )  # fmt: skip
    yield Operation(
        "quiet_worker", "POST", f"{one}/quiet", ADMIN, "admin", "Tell a worker to go quiet",
        shown, (404,), models.NoOptions, body_required=False, subject="worker",
    )  # fmt: skip
    yield Operation(
        "admin_remove_worker", "DELETE", one, ADMIN, "admin", "Remove a worker's record",
        {200: Success("WorkerRemovedAnswer", "The worker is no longer listed.")},
        (404,), subject="worker",
    )  # fmt: skip


def _dead_letter() -> Iterable[Operation]:
    for prefix, base in (("", f"{BASE}/dead-letter"), ("admin_", f"{BASE}/admin/dead-letter")):
        one = f"{base}/{{id}}"
        tag = "admin" if prefix else "dead-letter"
        yield Operation(
            f"{prefix}list_dead_letters", "GET", base, ADMIN, tag, "List dead letters",
            {200: Success("JobsPageAnswer", "One page of dead letters, latest first.")},
            query=(*_FILTERS, *PAGING),
        )  # fmt: skip
        yield Operation(
            f"{prefix}dead_letter_stats", "GET", f"{base}/stats", ADMIN, tag,
            "Read statistics of dead letters",
            {200: Success("DeadLetterStatsAnswer", "All queues together.")}, derived=True,
        )  # fmt: skip
        yield Operation(
            f"{prefix}get_dead_letter", "GET", one, ADMIN, tag, "Read a dead letter",
            {200: Success("JobDetailAnswer", "The job with its whole error history.")},
            (404,), subject="job",
        )  # fmt: skip
        yield Operation(
            f"{prefix}retry_dead_letter", "POST", f"{one}/retry", ADMIN, tag,
            "Make a dead letter available again",
            {200: Success("JobAnswer", "The job, with attempt 0 and its errors kept.")},
            (404, 409, 413, 429), models.RetryDeadLetterRequest, body_required=False,
            subject="job",
        )  # fmt: skip
        yield Operation(
            f"{prefix}delete_dead_letter", "DELETE", one, ADMIN, tag,
            "Delete a dead letter for good",
            {204: Success(None, "It is gone.")} if prefix
            else {200: Success("DeadLetterDeletedAnswer", "It is gone.")},
            (404,), subject="job",
        )  # fmt: skip
        yield from _bulk(prefix, base, tag)


def _bulk(prefix: str, base: str, tag: str) -> Iterable[Operation]:
    """Many dead letters at a time."""
    purged = {200: Success("DeadLettersPurgedAnswer", "What was done, and what goes on.")}
    yield Operation(
        f"{prefix}retry_dead_letters", "POST", f"{base}/retry", ADMIN, tag,
        "Make many dead letters available again",
        {200: Success("DeadLettersRetriedAnswer", "What was done, and what goes on.")},
        (), models.RetryDeadLettersRequest,
    )  # fmt: skip
    yield Operation(
        f"{prefix}purge_dead_letters", "DELETE", base, ADMIN, tag,
        "Delete many dead letters for good", purged, (), models.PurgeDeadLettersRequest,
        body_required=False, query=(*_BULK_FILTERS, _ALL, _CONFIRM),
    )  # fmt: skip
    yield Operation(
        f"{prefix}purge_old_dead_letters", "POST", f"{base}/purge", ADMIN, tag,
        "Delete dead letters of an age for good", purged, query=_BULK_FILTERS,
    )  # fmt: skip
    operations = f"{base}/operations"
    one = {200: Success("BulkOperationAnswer", "The operation.")}
    yield Operation(
        f"{prefix}list_dead_letter_operations", "GET", operations, ADMIN, tag,
        "List bulk operations on dead letters",
        {200: Success("BulkOperationsAnswer", "One page of operations, latest first.")},
        query=PAGING,
    )  # fmt: skip
    yield Operation(
        f"{prefix}get_dead_letter_operation", "GET", f"{operations}/{{id}}", ADMIN, tag,
        "Read a bulk operation on dead letters", one, (404,), subject="operation",
    )  # fmt: skip
    yield Operation(
        f"{prefix}stop_dead_letter_operation", "POST", f"{operations}/{{id}}/stop", ADMIN, tag,
        "Stop a bulk operation on dead letters", one, (404, 409), models.NoOptions,
        body_required=False, subject="operation",
    )  # fmt: skip


# For clients that send no body with DELETE. What the body says counts.
_DELETING = (
    Parameter(
        "strategy",
        {"type": "string", "enum": list(DeletionStrategy)},
        "what becomes of its jobs; needed, here or in the body",
    ),
    Parameter("target_queue", {"type": "string"}, "with `move`, the queue they go to"),
)


def _queues() -> Iterable[Operation]:
    yield Operation(
        "create_queue", "POST", f"{BASE}/queues", ADMIN, "queues", "Make a queue",
        {201: Success("QueueConfigAnswer", "The queue and its configuration.", ("Location",))},
        (409,), models.CreateQueueRequest,
    )  # fmt: skip
    for prefix, base in (("", f"{BASE}/queues"), ("admin_", f"{BASE}/admin/queues")):
        path, tag = f"{base}/{{name}}/config", "admin" if prefix else "queues"
        yield Operation(
            f"{prefix}get_queue_config", "GET", path, ADMIN, tag, "Read a queue's configuration",
            {200: Success("QueueConfigAnswer", "What is in force, and where it comes from.")},
            (404,), subject="queue",
        )  # fmt: skip
        yield Operation(
            f"{prefix}configure_queue", "PUT", path, ADMIN, tag, "Change a queue's configuration",
            {200: Success("QueueConfigAnswer", "What is in force now. Makes an unknown queue.")},
            (), models.ConfigureQueueRequest, subject="queue",
        )  # fmt: skip
    yield Operation(
        "delete_queue", "DELETE", f"{BASE}/queues/{{name}}", ADMIN, "queues",
        "Delete a queue and see to its jobs",
        {202: Success("QueueDeletedAnswer", "It is gone, or ends once its jobs are seen to.")},
        (404, 409), models.DeleteQueueRequest, body_required=False, query=_DELETING,
        subject="queue",
    )  # fmt: skip
    path = f"{BASE}/queues/_default/config"
    yield Operation(
        "get_queue_policy", "GET", path, ADMIN, "queues", "Read the policy for new queues",
        {200: Success("QueuePolicyAnswer", "What holds for queues made from now on.")},
    )  # fmt: skip
    yield Operation(
        "set_queue_policy", "PUT", path, ADMIN, "queues", "Change the policy for new queues",
        {200: Success("QueuePolicyAnswer", "What holds for queues made from now on.")},
        (), models.ConfigureQueueRequest,
    )  # fmt: skip
    for prefix, base in (("", f"{BASE}/queues"), ("admin_", f"{BASE}/admin/queues")):
        for verb, summary in (
            ("pause", "Hand out no more jobs of a queue"),
            ("resume", "Hand out jobs of a queue again"),
        ):
            yield Operation(
                f"{prefix}{verb}_queue", "POST", f"{base}/{{name}}/{verb}", ADMIN,
                "admin" if prefix else "queues", summary,
                {200: Success("QueueAnswer", "The queue's state.")},
                (409,), models.NoOptions, body_required=False, subject="queue",
            )  # fmt: skip


def _statistics() -> Iterable[Operation]:
    def read(
        name: str,
        path: str,
        tag: str,
        summary: str,
        success: Success,
        query: tuple[Parameter, ...] = (),
        *,
        root: bool = False,
    ) -> Operation:
        of_queue = "{name}" in path
        return Operation(
            name, "GET", path if root else f"{BASE}/{path}", ADMIN, tag, summary, {200: success},
            (404,) if name.endswith("get_queue") else (), query=query,
            subject="queue" if of_queue else None, derived=True,
        )  # fmt: skip

    yield read(
        "list_queues", "queues", "queues", "List queues with their counts",
        Success("QueuesAnswer", "One page of queues, in order of name."), _QUEUES_PAGING,
    )  # fmt: skip
    yield read(
        "get_queue", "queues/{name}", "queues", "Read a queue, its configuration and statistics",
        Success("QueueDetailAnswer", "The queue."),
    )  # fmt: skip
    yield read(
        "queue_stats", "queues/{name}/stats", "queues", "Read a queue's statistics",
        Success("QueueStatsAnswer", "Zeros for a queue that does not exist."),
    )  # fmt: skip
    yield read(
        "priority_stats", "queues/{name}/priority-stats", "queues",
        "Count a queue's available jobs by priority",
        Success("PriorityStatsAnswer", "The priorities in use, the highest first."),
    )  # fmt: skip
    yield read(
        "admin_list_queues", "admin/queues", "admin", "List queues with their counts",
        Success("AdminQueuesAnswer", "One page of queues, in order of name."), _QUEUES_PAGING,
    )  # fmt: skip
    yield read(
        "admin_get_queue", "admin/queues/{name}", "admin", "Read a queue and its counts",
        Success("AdminQueueAnswer", "The queue."),
    )  # fmt: skip
    yield read(
        "admin_stats", "admin/stats", "admin", "Read the totals of all queues",
        Success("StatsAnswer", "All queues and workers together."),
    )  # fmt: skip
    yield read(
        "admin_stats_history", "admin/stats/history", "admin", "Read what happened when",
        Success("StatsHistoryAnswer", "Points in time, oldest first."), _HISTORY,
    )  # fmt: skip
    yield read(
        "list_events", "events", "events", "List lifecycle events",
        Success("EventsAnswer", "Events in the order in which they were recorded."), _EVENTS,
    )  # fmt: skip
    yield read(
        "metrics", "metrics", "system", "Read metrics",
        Success("MetricsAnswer", "Metrics as JSON, or as Prometheus text.", text=True), _FORMAT,
    )  # fmt: skip
    yield read(
        "root_metrics", "/metrics", "system", "Read metrics as Prometheus scrapes them",
        Success(None, "Metrics in the text exposition format.", text=True), root=True,
    )  # fmt: skip


def _rate_limits() -> Iterable[Operation]:
    base = f"{BASE}/rate-limits"
    one = f"{base}/{{key}}"
    yield Operation(
        "list_rate_limits", "GET", base, ADMIN, "rate limits", "List the keys of rate limits",
        {200: Success("RateLimitsAnswer", "One page of keys, in order.")}, query=PAGING,
    )  # fmt: skip
    yield Operation(
        "get_rate_limit", "GET", one, ADMIN, "rate limits", "Read how a key's rate limit stands",
        {200: Success("RateLimitAnswer", "What is limited, and how much of it is used.")},
        (404,), subject="rate limit",
    )  # fmt: skip
    for suffix in ("", "/override"):
        name = "rate_limit_override" if suffix else "rate_limit"
        yield Operation(
            f"put_{name}", "PUT", f"{one}{suffix}", ADMIN, "rate limits",
            "Override a key's rate limit",
            {200: Success("RateLimitAnswer", "The key under the override.")},
            (), OverrideRequest, subject="rate limit",
        )  # fmt: skip
        yield Operation(
            f"delete_{name}", "DELETE", f"{one}{suffix}", ADMIN, "rate limits",
            "Take back a key's override and pause",
            {200: Success("RateLimitAnswer", "The key as its jobs have it.")},
            (404,), subject="rate limit",
        )  # fmt: skip
    yield Operation(
        "set_queue_limits", "PUT", f"{BASE}/admin/queues/{{name}}/rate-limit", ADMIN, "rate limits",
        "Set a queue's own limits",
        {200: Success("QueueLimitsAnswer", "What holds for the queue, and how much is used.")},
        (), models.QueueLimitsRequest, subject="queue",
    )  # fmt: skip
    yield Operation(
        "admin_get_job", "GET", f"{BASE}/admin/jobs/{{id}}", ADMIN, "admin", "Read a job",
        {200: Success("JobDetailAnswer", "The job, wrapped and at the top level.")},
        (404,), subject="job",
    )  # fmt: skip


def _scheduling() -> Iterable[Operation]:
    base = f"{BASE}/admin/pools"
    one = f"{base}/{{name}}"
    yield Operation(
        "list_pools", "GET", base, ADMIN, "scheduling", "List worker pools",
        {200: Success("PoolsAnswer", "One page of pools, in order of name.")}, query=PAGING,
        derived=True,
    )  # fmt: skip
    yield Operation(
        "put_pool", "PUT", one, ADMIN, "scheduling", "Make or replace a worker pool",
        {
            200: Success("PoolAnswer", "The pool as it is now."),
            201: Success("PoolAnswer", "The pool, which is new.", ("Location",)),
        },
        (404, 409), PoolRequest, subject="pool",
    )  # fmt: skip
    yield Operation(
        "get_pool", "GET", one, ADMIN, "scheduling", "Read a worker pool",
        {200: Success("PoolAnswer", "The pool, and how many workers and jobs it has.")},
        (404,), subject="pool", derived=True,
    )  # fmt: skip
    yield Operation(
        "delete_pool", "DELETE", one, ADMIN, "scheduling", "Remove a worker pool",
        {200: Success("PoolDeletedAnswer", "It is gone; its queues and jobs stay.")},
        (404, 409), subject="pool",
    )  # fmt: skip
    yield Operation(
        "scheduling_stats", "GET", f"{BASE}/admin/scheduling/stats", ADMIN, "scheduling",
        "Read what queues were given in the last minute",
        {200: Success("SchedulingStatsAnswer", "One page of queues, in order of name.")},
        (404,), query=(_POOL, *_QUEUES_PAGING), derived=True,
    )  # fmt: skip


def _keys() -> Iterable[Operation]:
    base = f"{BASE}/admin/keys"
    one = f"{base}/{{id}}"
    yield Operation(
        "create_key", "POST", base, ADMIN, "keys", "Make an access key",
        {201: Success("KeyMadeAnswer", "The key, and its secret, shown once.", ("Location",))},
        (403,), models.CreateKeyRequest,
    )  # fmt: skip
    yield Operation(
        "list_keys", "GET", base, ADMIN, "keys", "List access keys",
        {200: Success("KeysAnswer", "One page of keys, oldest first.")}, query=PAGING,
    )  # fmt: skip
    yield Operation(
        "get_key", "GET", one, ADMIN, "keys", "Read an access key",
        {200: Success("KeyAnswer", "The key without its secret.")}, (404,), subject="key",
    )  # fmt: skip
    yield Operation(
        "revoke_key", "DELETE", one, ADMIN, "keys", "Revoke an access key",
        {200: Success("KeyAnswer", "The key, which is of no use any more.")},
        (403, 404), subject="key",
    )  # fmt: skip


def _system() -> Iterable[Operation]:
    yield Operation(
        "manifest", "GET", "/ojs/manifest", ADMIN, "system", "Read what this server offers",
        {200: Success("ManifestAnswer", "The conformance manifest.")},
    )  # fmt: skip
    for prefix, base in (("", BASE), ("root_", "")):
        yield Operation(
            f"{prefix}health", "GET", f"{base}/health", ADMIN, "system",
            "Read whether the server and its store work",
            {
                200: Success("HealthAnswer", "Both work."),
                503: Success("HealthAnswer", "The store does not answer.", ("Retry-After",)),
            },
        )  # fmt: skip
        yield Operation(
            f"{prefix}ready", "GET", f"{base}/ready", ADMIN, "system",
            "Read whether requests can be served",
            {
                200: Success("ReadyAnswer", "They can."),
                503: Success("ReadyAnswer", "They cannot.", ("Retry-After",)),
            },
        )  # fmt: skip
    yield Operation(
        "openapi", "GET", f"{BASE}/openapi.json", ADMIN, "system", "Read this description",
        {200: Success("OpenApiAnswer", "The OpenAPI 3.1 document.")},
    )  # fmt: skip


OPERATIONS: tuple[Operation, ...] = (
    *_jobs(), *_workers(), *_dead_letter(), *_queues(), *_admin_workers(), *_statistics(),
    *_rate_limits(), *_scheduling(), *_keys(), *_system(),
)  # fmt: skip


def function_for(path: str) -> str:
    """The function that answers requests to `path`, known or not: `jobs`, `workers`, `admin`."""
    for name in (JOBS, WORKERS):
        if path == f"{BASE}/{name}" or path.startswith(f"{BASE}/{name}/"):
            return name
    return ADMIN


def operations_of(function: str) -> tuple[Operation, ...]:
    """The operations that a function serves."""
    return tuple(operation for operation in OPERATIONS if operation.function == function)


def get(operation_id: str) -> Operation:
    """The operation of that id; raises KeyError for another one."""
    return _by_id()[operation_id]


def pattern(template: str) -> re.Pattern[str]:
    """What paths of a template look like: a parameter is one segment, whatever it holds."""
    fixed = _PARAMETER.split(template)
    text = "".join(
        f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part) for index, part in enumerate(fixed)
    )
    return re.compile(rf"\A{text}\Z", re.DOTALL)


def at(path: str) -> dict[str, Operation]:
    """Method → operation for a path. A fixed path hides the templates that match it too."""
    fixed, templates = _by_path()
    if path in fixed:
        return fixed[path]
    for matcher, found in templates:
        if matcher.match(path):
            return found
    return {}


@cache
def _by_id() -> dict[str, Operation]:
    return {operation.id: operation for operation in OPERATIONS}


@cache
def _by_path() -> tuple[
    dict[str, dict[str, Operation]], list[tuple[re.Pattern[str], dict[str, Operation]]]
]:
    grouped: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        grouped.setdefault(operation.path, {})[operation.method] = operation
    fixed = {path: found for path, found in grouped.items() if not _PARAMETER.search(path)}
    templates = [(pattern(path), found) for path, found in grouped.items() if path not in fixed]
    return fixed, templates
