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
ClientMoment = Annotated[str, Field(description="as the client sent it")]
Id = Annotated[str, Field(json_schema_extra={"format": "uuid", "pattern": UUID7.pattern})]
Count = Annotated[int, Field(ge=0)]
ErrorsOmitted = Annotated[int, Field(ge=1, description="oldest errors left out of a long history")]
Omitted = Annotated[
    list[str],
    Field(
        min_length=1,
        description="fields not shown because the answer would be too large; `*` stands for the "
        "client's own fields. The job itself has them all",
        json_schema_extra={"uniqueItems": True},
    ),
]
JobState = Literal[
    "scheduled", "available", "pending", "active", "completed", "retryable", "cancelled",
    "discarded",
]  # fmt: skip
FinalState = Literal["completed", "cancelled", "discarded"]
JobAction = Literal["retry", "cancel", "delete", "erase"]
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


class JobError(TypedDict):
    """One failure of a job."""

    attempt: Count
    code: str
    type: str
    message: str
    retryable: bool
    backtrace: NotRequired[list[str]]
    details: NotRequired[dict[str, Any]]
    occurred_at: Moment


class DeadLetterMetadata(TypedDict):
    """The times of a dead letter."""

    created_at: Moment
    discarded_at: Moment


class Job(TypedDict):
    """A job. Keys that the client added are kept beside these.

    In an answer too large to send, args, meta and what else may be large are left out of some jobs;
    `omitted` names them. A listing of dead letters shows the latest error of each job.
    """

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    specversion: str
    id: Id
    type: str
    queue: str
    args: NotRequired[list[Any]]
    meta: NotRequired[dict[str, Any]]
    priority: int
    state: JobState
    attempt: Annotated[int, Field(ge=0, description="0 before the first fetch")]
    max_attempts: Annotated[int, Field(ge=0, description="tries in all, the first included")]
    created_at: Moment
    enqueued_at: NotRequired[Moment]
    activated_at: NotRequired[Moment]
    started_at: NotRequired[Moment]
    completed_at: NotRequired[Moment]
    cancelled_at: NotRequired[Moment]
    discarded_at: NotRequired[Moment]
    scheduled_at: NotRequired[ClientMoment]
    expires_at: NotRequired[ClientMoment]
    timeout: NotRequired[Annotated[int, Field(description="seconds")]]
    timeout_ms: NotRequired[int]
    visibility_timeout_ms: NotRequired[int]
    retry: NotRequired[dict[str, Any]]
    unique: NotRequired[dict[str, Any]]
    rate_limit: NotRequired[dict[str, Any]]
    schema: NotRequired[str]
    tags: NotRequired[list[str]]
    options: NotRequired[Annotated[dict[str, Any], Field(description="options kept unread")]]
    worker_id: NotRequired[str]
    producer: NotRequired[
        Annotated[str, Field(description="who pushed it: the name of their key, as far as known")]
    ]
    changed_by: NotRequired[
        Annotated[str, Field(description="who overrode what it is, or moved it, as far as known")]
    ]
    lease_token: NotRequired[Annotated[str, Field(description="names this attempt's lease")]]
    lease_expires_at: NotRequired[Moment]
    retry_delay_ms: NotRequired[Count]
    next_attempt_at: NotRequired[Moment]
    next_retry_at: NotRequired[Moment]
    error: NotRequired[JobError]
    errors: NotRequired[list[JobError]]
    errors_omitted: NotRequired[ErrorsOmitted]
    omitted: NotRequired[Omitted]
    result: NotRequired[Any]
    progress: NotRequired[float]
    previous_state: NotRequired[JobState]
    dead_letter: NotRequired[bool]
    dead_letter_job_id: NotRequired[
        Annotated[Id, Field(description="a dead letter's copy, in its queue's `dead_letter_queue`")]
    ]
    workflow_id: NotRequired[Id]
    step: NotRequired[
        Annotated[str, Field(description="of its workflow: as the client named it, or its number")]
    ]
    parent_results: NotRequired[
        Annotated[Any, Field(description="what the steps before it gave, or where to read that")]
    ]
    parent_errors: NotRequired[Annotated[list[Any], Field(description="at the same places")]]
    parent_results_by_step: NotRequired[dict[str, Any]]
    metadata: NotRequired[
        Annotated[
            DeadLetterMetadata | Any,
            Field(description="a dead letter's times, beside a client's own keys of that name"),
        ]
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


class JobAnswer(TypedDict):
    """A job."""

    job: Job


class JobDetailAnswer(Job):
    """A job, and its fields once more at the top level (but for large ones)."""

    job: Job


class AdminJobAnswer(JobDetailAnswer):
    """A job as operators read it: at the top level with its policy and its times.

    Errors and meta are always there; they are empty where `omitted` names them.
    """

    retry_policy: dict[str, Any]


class Warned(TypedDict, total=False):
    """What was sent and has no effect; nothing if there is no such thing."""

    warnings: Annotated[list[str], Field(min_length=1, description=_WARNINGS)]


class JobMadeAnswer(JobDetailAnswer, Warned):
    """A job that was pushed."""


class DeduplicatedAnswer(JobMadeAnswer):
    """The job that stands for a duplicate request."""

    deduplicated: Literal[True]


class BatchAnswer(Warned):
    """The jobs of a batch."""

    jobs: list[Job]
    count: Count
    enqueued: Count
    failed: Literal[0]


class OutcomeError(TypedDict):
    """Why something was refused, in short: code and details are those of an error answer."""

    code: str
    message: str
    retryable: bool
    details: dict[str, Any]


class BulkJob(TypedDict):
    """A job in short."""

    id: Id
    type: str
    queue: str
    state: JobState
    created_at: Moment
    scheduled_at: NotRequired[Moment]


class BulkItem(TypedDict):
    """What became of one job of many: the job that there is, or why it was refused."""

    index: Annotated[Count, Field(description="where it stands in the request")]
    status: Literal["created", "duplicate", "failed"]
    job: NotRequired[BulkJob]
    error: NotRequired[OutcomeError]


class JobsPushedAnswer(Warned):
    """What became of each job of a request."""

    total: Count
    succeeded: Count
    failed: Count
    items: list[BulkItem]


class Outcome(TypedDict):
    """What became of one ack or nack of many: the job's new state, or the error."""

    job_id: Id
    status: Annotated[
        int, Field(ge=200, le=599, description="of the answer, had it been the only one")
    ]
    state: NotRequired[JobState]
    attempt: NotRequired[Count]
    max_attempts: NotRequired[Count]
    retry_delay_ms: NotRequired[Count]
    next_attempt_at: NotRequired[Moment]
    completed_at: NotRequired[Moment]
    discarded_at: NotRequired[Moment]
    error: NotRequired[OutcomeError]


class AcksAnswer(TypedDict):
    """What became of many acks."""

    acks: list[Outcome]


class NacksAnswer(TypedDict):
    """What became of many nacks."""

    nacks: list[Outcome]


class FetchAnswer(TypedDict):
    """Jobs that are now this worker's; and what became of the acks and nacks that came with it."""

    jobs: list[Job]
    acks: NotRequired[list[Outcome]]
    nacks: NotRequired[list[Outcome]]
    fetch_error: NotRequired[
        Annotated[OutcomeError, Field(description="why there are no jobs, if the fetch failed")]
    ]


class AckAnswer(TypedDict):
    """A completed job."""

    acknowledged: Literal[True]
    id: Id
    job_id: Id
    state: JobState
    completed_at: Moment
    job: Job


class NackTimes(TypedDict, total=False):
    """When a failed job is tried again, or when it ended."""

    retry_delay_ms: Count
    next_attempt_at: Moment
    next_retry_at: Moment
    discarded_at: Moment
    completed_at: Moment


class NackAnswer(NackTimes):
    """What a failure led to."""

    id: Id
    job_id: Id
    state: JobState
    attempt: Count
    max_attempts: Count
    job: Job


class ResultAnswer(TypedDict):
    """How a job ended."""

    job_id: Id
    state: JobState
    result: Any
    error: NotRequired[JobError]


class RetriesAnswer(TypedDict):
    """A job's error history."""

    job_id: Id
    state: JobState
    attempt: Count
    max_attempts: Count
    policy: RetryDefaults
    retries: list[JobError]
    errors_omitted: NotRequired[ErrorsOmitted]


class ProgressAnswer(Warned):
    """How far a job is."""

    job_id: Id
    state: JobState
    progress: Annotated[float, Field(ge=0, le=1)] | None
    message: str | None
    data: dict[str, Any] | None
    updated_at: Moment | None


class JobsPageAnswer(Paged):
    """A page of jobs."""

    jobs: list[Job]
    items: list[Job]


class JobsListAnswer(JobsPageAnswer):
    """A page of jobs in all states."""

    unsearched: NotRequired[
        Annotated[
            int,
            Field(
                ge=1,
                description="jobs passed over: what the filter asks for is offloaded, and not read",
            ),
        ]
    ]


class UniqueLock(TypedDict):
    """A unique key that a job holds."""

    key: Annotated[str, Field(pattern="[0-9a-f]{64}", description="the fingerprint")]
    job_id: Id
    type: str
    queue: str
    state: JobState
    locked_until: NotRequired[Annotated[Moment, Field(description="if it has a period")]]


class UniqueLocksAnswer(Paged):
    """A page of unique keys."""

    items: list[UniqueLock]


class JobDeletedAnswer(TypedDict):
    """A job is gone."""

    deleted: Literal[True]
    job_id: Id


class HistoryActor(TypedDict):
    """Who did something to a job."""

    type: Literal["client", "worker", "system"]
    id: str


class HistoryEvent(TypedDict):
    """Something that happened to a job."""

    id: Id
    job_id: Id
    event_type: Literal[
        "job.created", "job.state_changed", "job.attempt_started", "job.attempt_completed",
        "job.attempt_failed",
    ]  # fmt: skip
    timestamp: Moment
    actor: HistoryActor
    data: dict[str, Any]


class JobHistoryAnswer(TypedDict):
    """What a job's own items tell of its life."""

    events: list[HistoryEvent]
    total: Count
    next_cursor: NotRequired[Annotated[str, Field(min_length=1)]]
    approximate: Annotated[
        Literal[True],
        Field(description="of earlier attempts only the failures are known"),
    ]


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


class JobsFilter(TypedDict):
    """The jobs that are meant, lengths of time as times."""

    queue: NotRequired[str]
    state: NotRequired[list[JobState]]
    type: NotRequired[str]
    tag: NotRequired[str]
    since: NotRequired[Moment]
    until: NotRequired[Moment]
    producer: NotRequired[str]
    enqueued_after: NotRequired[Moment]
    enqueued_before: NotRequired[Moment]
    older_than: NotRequired[Moment]
    priority: NotRequired[int]
    meta: NotRequired[dict[str, Any]]
    args: NotRequired[str]
    job_ids: NotRequired[Annotated[int, Field(ge=1, description="how many jobs were named")]]


class Remainder(TypedDict):
    """Where a copy of what was erased may be, and until when."""

    where: Literal["event_log", "table_backups", "nightly_backups", "bucket_versions"]
    until: Moment


class JobOperation(TypedDict):
    """A bulk operation on jobs, and how far it is."""

    id: Id
    action: JobAction
    state: Annotated[
        OperationState | Literal["completed_with_failures"],
        Field(
            description="`stopping` ends after the slice of at most 100 jobs it is in; "
            "`completed_with_failures`: an erasure could not erase `failed` jobs"
        ),
    ]
    filter: JobsFilter
    matched: Annotated[int, Field(ge=0, description="jobs found so far")]
    succeeded: Count
    failed: Annotated[int, Field(ge=0, description="that could not be dealt with")]
    waiting_for_room: Annotated[bool, Field(description="a queue is full; it is tried again")]
    errors: Annotated[list[BulkError], Field(max_length=20, description="the first of `failed`")]
    dry_run: NotRequired[Annotated[Literal[True], Field(description="jobs are counted only")]]
    remains: NotRequired[
        Annotated[list[Remainder], Field(description="of an erasure: what is kept for longer")]
    ]
    started_at: Moment
    updated_at: Moment
    finished_at: NotRequired[Moment]


class ManyJobsError(BulkError):
    """Why one job could not be dealt with."""

    error: Annotated[str, Field(description="the same as message")]


class ManyJobsItem(TypedDict):
    """What became of one of the jobs that were named."""

    index: Count
    job_id: Id
    status: Literal["retried", "cancelled", "deleted", "erased", "matched", "skipped", "pending"]
    reason: NotRequired[Annotated[str, Field(description="why it was skipped")]]


class ManyJobsAnswer(TypedDict):
    """What this request did. As long as the operation is running, the rest is done without it."""

    action: JobAction
    matched: Count
    total_matched: Annotated[int, Field(ge=0, description="the same as matched")]
    succeeded: Count
    failed: Count
    skipped: Annotated[int, Field(ge=0, description="the same as failed")]
    retried: NotRequired[Annotated[int, Field(ge=0, description="the same as succeeded")]]
    cancelled: NotRequired[Annotated[int, Field(ge=0, description="the same as succeeded")]]
    deleted: NotRequired[Annotated[int, Field(ge=0, description="the same as succeeded")]]
    erased: NotRequired[Annotated[int, Field(ge=0, description="the same as succeeded")]]
    errors: Annotated[
        list[ManyJobsError], Field(max_length=20, description="the first of `failed`")
    ]
    items: NotRequired[
        Annotated[list[ManyJobsItem], Field(description="of each job that was named, in order")]
    ]
    operation: JobOperation


class QueuePurgedAnswer(TypedDict):
    """What this request did. As long as the operation is running, the rest is done without it."""

    purged_count: Count
    purged: Annotated[int, Field(ge=0, description="the same as purged_count")]
    deleted: Annotated[int, Field(ge=0, description="the same as purged_count")]
    states: list[FinalState]
    operation: JobOperation


class JobOperationAnswer(TypedDict):
    """A bulk operation on jobs."""

    operation: JobOperation


class JobOperationsAnswer(Paged):
    """A page of bulk operations on jobs."""

    operations: list[JobOperation]
    items: list[JobOperation]


class HeartbeatAnswer(TypedDict):
    """The answer to a heartbeat: what the worker must do."""

    state: Directive
    directive: Directive
    jobs_extended: list[Id]
    cancelled_jobs: list[Id]
    server_time: Moment


class BeatAnswer(TypedDict):
    """A worker was heard."""

    acknowledged: Literal[True]
    worker_id: str
    state: str


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


class RetryDefaults(TypedDict):
    """A retry policy: a queue's, for jobs that bring none, or a job's own."""

    max_attempts: Count
    initial_interval: str
    backoff_coefficient: float
    max_interval: str
    jitter: bool
    backoff_strategy: str
    non_retryable_errors: NotRequired[list[str]]
    on_exhaustion: str


class OpenApiAnswer(TypedDict):
    """An OpenAPI document."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


class FullQueue(TypedDict, total=False):
    """The queue that is full; nothing in other errors."""

    queue: Annotated[str, Field(description="QUEUE_FULL only, as the next three")]
    depth: Count
    bound: Count
    strategy: OverflowPolicy


class BatchLimit(TypedDict, total=False):
    """How many jobs one request may have; nothing in other errors."""

    max_batch_size: Annotated[Count, Field(description="BATCH_SIZE_EXCEEDED only")]


class ErrorDetail(FullQueue, BatchLimit):
    """What went wrong and what to do about it."""

    code: Annotated[str, Field(description="machine-readable; see the error catalogue")]
    type: Annotated[str, Field(description="the same as code")]
    message: str
    retryable: Annotated[bool, Field(description="whether the same request may succeed later")]
    details: Annotated[
        dict[str, Any],
        Field(description="such as field, reason, value, errors, current_state, existing_job_id"),
    ]
    hint: str
    docs_url: str
    request_id: str
    catalog_code: Annotated[str, Field(json_schema_extra={"pattern": r"OJS-\d{4}"})]


class ErrorAnswer(TypedDict):
    """An error."""

    error: ErrorDetail


class JobsRefusedAnswer(ErrorAnswer, total=False):
    """An error; if no job of a request was stored, with what was wrong with each."""

    total: Count
    succeeded: Count
    failed: Count
    items: list[BulkItem]
