"""The types of all answers. The OpenAPI document is made from them; `ojs.http.views` returns them.

At run time only the document imports them: making these classes would delay each cold start. A key
that may be missing is `NotRequired`: a field that is not set is absent, not null.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from ojs.domain.ids import UUID7

_WARNINGS = "what was sent and has no effect"
_MOMENT = r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z"

Moment = Annotated[
    str, Field(json_schema_extra={"format": "date-time", "pattern": _MOMENT}, title="Moment")
]
Id = Annotated[str, Field(json_schema_extra={"format": "uuid", "pattern": UUID7.pattern})]
Count = Annotated[int, Field(ge=0)]
OperationState = Literal["running", "stopping", "stopped", "completed"]
Directive = Literal["running", "quiet", "terminate"]
QueueStateName = Literal["active", "paused", "draining"]
CronState = Literal["active", "paused", "ended"]
CronOverlap = Literal["skip", "allow", "cancel_previous", "enqueue"]
AuthorizerName = Literal["keys", "jwt", "iam", "none"]
DeletionStrategy = Literal["reject", "discard", "move", "drain"]
DispatchStrategy = Literal["strict", "round-robin", "weighted", "least-loaded"]
OverflowPolicy = Literal["reject", "block", "drop_oldest"]
PruningPolicy = Literal["delete", "archive"]
ConfigSource = Literal["queue", "_default", "system"]
Rate = Annotated[float, Field(ge=0)]
Milliseconds = Annotated[int, Field(ge=0, description="ms")]
Bound = Annotated[int, Field(ge=1, description="absent when there is none")]
Fraction = Annotated[float, Field(ge=0, le=1)]
ConfigSources = Annotated[
    dict[str, ConfigSource],
    Field(description="where each field comes from: set here, in the policy, or nowhere"),
]


class Position(TypedDict):
    """How to go on in the direction of the listing."""

    has_more: bool
    next_cursor: NotRequired[Annotated[str, Field(min_length=1)]]
    limit: int
    offset: int
    page: int
    per_page: int


class Pagination(Position):
    """Where a page stands in its listing."""

    total: NotRequired[Annotated[int, Field(ge=0, description="only where it is known")]]
    total_unknown: NotRequired[
        Annotated[
            Literal[True],
            Field(
                description="the total is not known: `total` leads to the next page if there is one"
            ),
        ]
    ]


class Paged(TypedDict):
    """What every answer with a page has, and its total where that is known."""

    total: NotRequired[Count]
    pagination: Pagination


class DeadLetterRetentionStats(TypedDict):
    """Which dead letters are kept, unless their queue is configured otherwise."""

    max_age: Annotated[str, Field(description="ISO 8601")]
    max_count: Annotated[int, Field(ge=1)]
    next_prune_at: Moment


class DeadLetterStatsAnswer(TypedDict):
    """All dead letters. The counts are behind by up to a minute."""

    total: Count
    by_queue: Annotated[
        dict[str, Count],
        Field(description="the queues with the most; under `_other` what the others have"),
    ]
    by_error_type: Annotated[
        dict[str, Count], Field(description="by the latest error; `Unknown` without, `other` rare")
    ]
    by_type: Annotated[dict[str, Count], Field(description="by type of job; `other` rare ones")]
    oldest_at: NotRequired[Moment]
    newest_at: NotRequired[Moment]
    retention: DeadLetterRetentionStats
    computed_at: NotRequired[Annotated[Moment, Field(description="when they were counted")]]


class DeadLetterDeletedAnswer(TypedDict):
    """A dead letter is gone."""

    deleted: Literal[True]
    job_id: Id


class BulkError(TypedDict):
    """Why one job could not be dealt with."""

    job_id: Id
    code: str
    message: str


class BulkFilter(TypedDict):
    """The dead letters that are meant, lengths of time as times."""

    queue: NotRequired[str]
    type: NotRequired[str]
    error_type: NotRequired[str]
    since: NotRequired[Moment]
    until: NotRequired[Moment]
    args: NotRequired[str]


class BulkOperation(TypedDict):
    """A bulk operation on dead letters, and how far it is."""

    id: Id
    action: Literal["retry", "purge"]
    state: Annotated[
        OperationState,
        Field(description="`stopping` ends after the slice of at most 100 jobs it is in"),
    ]
    filter: BulkFilter
    matched: Annotated[int, Field(ge=0, description="dead letters found so far")]
    succeeded: Count
    failed: Annotated[int, Field(ge=0, description="that cannot come back; they stay")]
    waiting_for_room: Annotated[bool, Field(description="a queue is full; it is tried again")]
    errors: Annotated[list[BulkError], Field(max_length=20, description="the first of `failed`")]
    started_at: Moment
    updated_at: Moment
    finished_at: NotRequired[Moment]


class DeadLettersRetriedAnswer(TypedDict):
    """What this request did. As long as the operation is running, the rest is done without it."""

    action: Literal["retry"]
    matched: Count
    succeeded: Count
    failed: Count
    retried: Annotated[int, Field(ge=0, description="the same as succeeded")]
    job_ids: Annotated[list[Id], Field(max_length=500, description="that are available again")]
    errors: Annotated[list[BulkError], Field(max_length=20, description="the first of `failed`")]
    operation: BulkOperation


class DeadLettersPurgedAnswer(TypedDict):
    """What this request did. As long as the operation is running, the rest is done without it."""

    deleted: Count
    purged: Annotated[int, Field(ge=0, description="the same as deleted")]
    operation: BulkOperation


class BulkOperationAnswer(TypedDict):
    """A bulk operation."""

    operation: BulkOperation


class BulkOperationsAnswer(Paged):
    """A page of bulk operations."""

    operations: list[BulkOperation]
    items: list[BulkOperation]


class RegisterAnswer(TypedDict):
    """What a starting worker needs to know. Times in seconds."""

    ok: Literal[True]
    worker_id: str
    server_time: Moment
    heartbeat_interval: int
    heartbeat_timeout: int
    visibility_timeout_default: int


class Worker(TypedDict):
    """A worker: what it reported at registration, and its state."""

    id: str
    worker_id: str
    state: Annotated[str, Field(description="running, stale, or how it is stopping")]
    directive: Directive
    active_jobs: Count
    first_seen_at: Moment
    last_heartbeat: Moment
    last_heartbeat_at: Moment
    hostname: NotRequired[str]
    pid: NotRequired[int]
    queues: Annotated[list[str], Field(description="empty when it did not say")]
    concurrency: NotRequired[int]
    labels: NotRequired[list[str] | dict[str, str]]
    started_at: NotRequired[str]
    version: NotRequired[str]
    pool: NotRequired[str]
    strategy: NotRequired[str]
    weights: NotRequired[dict[str, int]]


class WorkerAnswer(Worker):
    """A worker, at the top level and wrapped."""

    worker: Worker


class WorkerRemovedAnswer(TypedDict):
    """A worker is no longer listed."""

    deleted: Literal[True]
    worker_id: str


class WorkerHealthAnswer(TypedDict):
    """Whether a worker takes jobs."""

    worker_id: str
    state: str
    accepting_jobs: bool
    active_jobs: Count
    last_heartbeat: Moment


class WorkersSummary(TypedDict):
    """Workers by state."""

    total: Count
    running: Count
    quiet: Count
    stale: Count


class WorkersAnswer(Paged):
    """A page of workers."""

    items: list[Worker]
    workers: list[Worker]
    summary: NotRequired[Annotated[WorkersSummary, Field(description="when all are here")]]


class OpenApiAnswer(TypedDict):
    """An OpenAPI document."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]
