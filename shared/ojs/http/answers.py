"""What answers look like: the types from which the OpenAPI document is made.

Imported only for that document; the answers themselves are built by `ojs.http.views`. A key that
may be missing is `NotRequired`: fields not set are absent, not null.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from ojs.domain.ids import UUID7

_MOMENT = r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z"

Moment = Annotated[
    str, Field(json_schema_extra={"format": "date-time", "pattern": _MOMENT}, title="Moment")
]
ClientMoment = Annotated[str, Field(description="as the client sent it")]
Id = Annotated[str, Field(json_schema_extra={"format": "uuid", "pattern": UUID7.pattern})]
Count = Annotated[int, Field(ge=0)]
Omitted = Annotated[int, Field(ge=1, description="oldest errors left out of a long history")]
JobState = Literal[
    "scheduled", "available", "pending", "active", "completed", "retryable", "cancelled",
    "discarded",
]  # fmt: skip
Directive = Literal["running", "quiet", "terminate"]


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
    """When a dead letter came to be."""

    created_at: Moment
    discarded_at: Moment


class Job(TypedDict):
    """A job. Keys that the client added are kept beside these.

    In listings too large to send, args, meta, result and errors are left out.
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
    schema: NotRequired[str]
    tags: NotRequired[list[str]]
    options: NotRequired[Annotated[dict[str, Any], Field(description="options kept unread")]]
    worker_id: NotRequired[str]
    lease_token: NotRequired[Annotated[str, Field(description="names this attempt's lease")]]
    lease_expires_at: NotRequired[Moment]
    retry_delay_ms: NotRequired[Count]
    next_attempt_at: NotRequired[Moment]
    next_retry_at: NotRequired[Moment]
    error: NotRequired[JobError]
    errors: NotRequired[list[JobError]]
    errors_omitted: NotRequired[Omitted]
    result: NotRequired[Any]
    progress: NotRequired[float]
    previous_state: NotRequired[JobState]
    dead_letter: NotRequired[bool]
    metadata: NotRequired[DeadLetterMetadata]


class Pagination(TypedDict):
    """Where a page stands in its listing."""

    total: NotRequired[Annotated[int, Field(ge=0, description="only where it is known")]]
    has_more: bool
    next_cursor: NotRequired[Annotated[str, Field(min_length=1)]]
    limit: int
    offset: int
    page: int
    per_page: int


class JobAnswer(TypedDict):
    """A job."""

    job: Job


class DeduplicatedAnswer(TypedDict):
    """The job that stands for a duplicate request."""

    job: Job
    deduplicated: Literal[True]


class JobDetailAnswer(Job):
    """A job, and its fields once more at the top level (but for large ones)."""

    job: Job


class BatchAnswer(TypedDict):
    """The jobs of a batch."""

    jobs: list[Job]
    count: Count
    enqueued: Count
    failed: Literal[0]


class FetchAnswer(TypedDict):
    """Jobs that are now this worker's."""

    jobs: list[Job]


class AckAnswer(TypedDict):
    """A completed job."""

    acknowledged: Literal[True]
    id: Id
    job_id: Id
    state: JobState
    completed_at: Moment
    job: Job


class NackAnswer(TypedDict):
    """What a failure led to."""

    id: Id
    job_id: Id
    state: JobState
    attempt: Count
    max_attempts: Count
    retry_delay_ms: NotRequired[Count]
    next_attempt_at: NotRequired[Moment]
    next_retry_at: NotRequired[Moment]
    discarded_at: NotRequired[Moment]
    completed_at: NotRequired[Moment]
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
    retries: list[JobError]
    errors_omitted: NotRequired[Omitted]


class ProgressAnswer(TypedDict):
    """How far a job is."""

    job_id: Id
    state: JobState
    progress: Annotated[float, Field(ge=0, le=1)] | None
    message: str | None
    data: dict[str, Any] | None
    updated_at: Moment | None


class JobsPageAnswer(TypedDict):
    """A page of jobs."""

    jobs: list[Job]
    items: list[Job]
    total: NotRequired[Count]
    pagination: Pagination


class DeadLetterDeletedAnswer(TypedDict):
    """A dead letter is gone."""

    deleted: Literal[True]
    job_id: Id


class HeartbeatAnswer(TypedDict):
    """What a worker is told."""

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
    """A worker: what it said of itself, and what is known of it."""

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
    queues: NotRequired[list[str]]
    concurrency: NotRequired[int]
    labels: NotRequired[list[str] | dict[str, str]]
    started_at: NotRequired[str]
    version: NotRequired[str]


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


class WorkersAnswer(TypedDict):
    """A page of workers."""

    items: list[Worker]
    workers: list[Worker]
    total: NotRequired[Count]
    summary: NotRequired[Annotated[WorkersSummary, Field(description="when all are here")]]
    pagination: Pagination


class Queue(TypedDict):
    """A queue's state."""

    name: str
    state: Literal["active", "paused"]
    status: Literal["active", "paused"]
    paused: bool
    created_at: Moment
    paused_at: NotRequired[Moment]
    resumed_at: NotRequired[Moment]


class QueueAnswer(Queue):
    """A queue, at the top level and wrapped."""

    queue: Queue


class Backend(TypedDict):
    """The store behind the server."""

    type: str
    status: Literal["ok", "unhealthy"]
    latency_ms: NotRequired[Count]
    error: NotRequired[str]


class HealthAnswer(TypedDict):
    """Whether server and store work."""

    status: Literal["ok", "degraded"]
    version: Annotated[str, Field(description="of the specification")]
    server_version: str
    uptime_seconds: Count
    backend: Backend


class ReadyAnswer(TypedDict):
    """Whether requests can be served."""

    status: Literal["ready", "unavailable"]


class Implementation(TypedDict):
    """Which software this is."""

    name: str
    version: str
    language: str


class Extensions(TypedDict):
    """Extensions that are offered as a whole."""

    official: list[dict[str, str]]
    experimental: list[dict[str, str]]


class ManifestAnswer(TypedDict):
    """The conformance manifest."""

    specversion: str
    ojs_version: str
    implementation: Implementation
    conformance_level: Annotated[int, Field(ge=0, le=4)]
    protocols: list[str]
    backend: str
    capabilities: dict[str, bool]
    extensions: Extensions
    unique_job_strength: str
    endpoints: dict[str, str]


class OpenApiAnswer(TypedDict):
    """An OpenAPI document."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


class ErrorDetail(TypedDict):
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
