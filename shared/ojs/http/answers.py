"""Types for the responses of several resources."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from ojs.domain.ids import UUID7
from ojs.domain.job.states import State
from ojs.domain.requests import Field
from ojs.http.answer import AsIs, absent, present

T = TypeVar("T")

Moment = Annotated[
    str,
    Field(
        json_schema_extra={
            "format": "date-time",
            "pattern": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z",
            "title": "Moment",
        }
    ),
]
Id = Annotated[str, Field(json_schema_extra={"format": "uuid", "pattern": UUID7.pattern})]
Count = Annotated[int, Field(ge=0)]
Etag = Annotated[str, Field(description="version of the configuration, for If-Match")]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0)]
Bound = Annotated[int, Field(ge=1, description="absent when there is none")]
Fraction = Annotated[float, Field(ge=0, le=1)]
Omitted = Annotated[
    list[str],
    Field(
        min_length=1,
        description="fields omitted because the response would be too large; `*` means the "
        "client's own fields. The stored job has all fields",
        json_schema_extra={"uniqueItems": True},
    ),
]
Warnings = Annotated[
    list[str], Field(min_length=1, description="fields of the request without effect")
]
CreatedBy = Annotated[str, Field(description="ID of the key that changed it last")]
ClientMoment = Annotated[str, Field(description="as the client sent it")]
ErrorsOmitted = Annotated[int, Field(ge=1, description="oldest errors left out of a long history")]


class JobError(AsIs, kept=True):
    """One failure of a job."""

    attempt: Count
    code: str
    type: str
    message: str
    retryable: bool
    backtrace: list[str] = absent()
    details: dict[str, Any] = absent()
    occurred_at: Moment


class DeadLetterMetadata(AsIs, kept=True):
    """The times of a dead letter."""

    created_at: Moment
    discarded_at: Moment


class JobDurable(AsIs):
    """What a job stores about durable code."""

    steps: Count = present("stored outcomes of steps, waits, and signals, and suspensions")
    version: Count = absent("of the code, from its first step")
    epoch: Count = present("incremented when a dead letter starts over")
    forgiven_attempts: Count = present("attempts before the last stored step")


class JobParent(AsIs):
    """The job that started a child job, and the name under which it waits for it."""

    job_id: Id
    name: str


class JobWait(AsIs):
    """What a suspended job waits for."""

    kind: str
    name: str
    until: Moment


class JobCheckpoint(AsIs):
    """The latest checkpoint of a job."""

    state: Any
    sequence: Count


class Job(AsIs, kept=True):
    """A job. Also has the keys that the client added.

    In an answer too large to send, args, meta and what else may be large are left out of some jobs;
    `omitted` names them. A listing of dead letters shows the latest error of each job.
    """

    specversion: str
    id: Id
    type: str
    queue: str
    args: list[Any] = absent()
    meta: dict[str, Any] = absent()
    priority: int
    state: State
    attempt: Count = present("0 before the first fetch")
    max_attempts: Count = present("tries in all, the first included")
    created_at: Moment
    enqueued_at: Moment = absent()
    activated_at: Moment = absent()
    started_at: Moment = absent()
    completed_at: Moment = absent()
    cancelled_at: Moment = absent()
    discarded_at: Moment = absent()
    scheduled_at: ClientMoment = absent()
    expires_at: ClientMoment = absent()
    timeout: int = absent("seconds")
    timeout_ms: int = absent()
    visibility_timeout_ms: int = absent()
    retry: dict[str, Any] = absent()
    unique: dict[str, Any] = absent()
    rate_limit: dict[str, Any] = absent()
    schema: str = absent()
    tags: list[str] = absent()
    options: dict[str, Any] = absent("options kept unread")
    worker_id: str = absent()
    producer: str = absent("name of the key that pushed it, if known")
    changed_by: str = absent("name of the key that changed or moved it, if known")
    lease_token: str = absent("token of the lease of this attempt")
    lease_expires_at: Moment = absent()
    retry_delay_ms: Count = absent()
    next_attempt_at: Moment = absent()
    next_retry_at: Moment = absent()
    error: JobError = absent()
    errors: list[JobError] = absent()
    errors_omitted: ErrorsOmitted = absent()
    omitted: Omitted = absent()
    result: Any = absent()
    result_ttl: Count = absent("seconds for which the result is shown; 0: not stored")
    result_stored_at: Moment = absent()
    result_expires_at: Moment = absent("until when the result is shown")
    result_size_bytes: Count = absent()
    progress: float = absent()
    previous_state: State = absent()
    dead_letter: bool = absent()
    dead_letter_job_id: Id = absent("a dead letter's copy, in its queue's `dead_letter_queue`")
    durable: JobDurable = absent("if its code stores outcomes of steps")
    parent: JobParent = absent("the job that waits for this one")
    parent_id: Id = absent("the job that enqueued it")
    root_id: Id = absent("the first job of its line of descent")
    waiting: list[JobWait] = absent("what a suspended job waits for")
    checkpoint: JobCheckpoint = absent("of a fetched or pushed job")
    last_checkpoint: Any = absent("its state, up to 256 KiB")
    workflow_id: Id = absent()
    step: str = absent("of its workflow: as the client named it, or its number")
    parent_results: Any = absent("what the steps before it gave, or where to read that")
    parent_errors: list[Any] = absent("at the same places")
    parent_results_by_step: dict[str, Any] = absent()
    metadata: DeadLetterMetadata | Any = absent("times of a dead letter, and the client's own keys")


class JobAnswer(AsIs):
    """A job."""

    job: Job


class JobDetailAnswer(Job):
    """A job under `job`, with its fields repeated at the top level, except large ones."""

    job: Job


class OutcomeError(AsIs):
    """Why something was refused, in short: code and details are those of an error answer."""

    code: str
    message: str
    retryable: bool
    details: dict[str, Any]


class ErrorDetail(AsIs):
    """What went wrong and what to do about it."""

    code: str = present("machine-readable; see the error catalogue")
    type: str = present("the same as code")
    message: str
    retryable: bool = present("whether the same request may succeed later")
    details: dict[str, Any] = present(
        "such as field, reason, value, errors, current_state, existing_job_id"
    )
    hint: str
    docs_url: str
    request_id: str
    catalog_code: Annotated[str, Field(json_schema_extra={"pattern": "OJS-\\d{4}"})]
    queue: str = absent("QUEUE_FULL only, as the next three")
    depth: Count = absent()
    bound: Count = absent()
    strategy: Literal["reject", "block", "drop_oldest"] = absent()
    tenant_id: str = absent("TENANT_LIMIT_EXCEEDED only, as the next three")
    limit: str = absent()
    current: Count = absent()
    maximum: Count = absent()
    max_batch_size: Count = absent("BATCH_SIZE_EXCEEDED only")


class ErrorAnswer(AsIs):
    """An error."""

    error: ErrorDetail


class ProgressAnswer(AsIs):
    """How far a job is."""

    job_id: Id
    state: State
    progress: Annotated[float, Field(ge=0, le=1)] | None
    message: str | None
    data: dict[str, Any] | None
    updated_at: Moment | None
    warnings: Warnings = absent()


class RetryDefaults(AsIs):
    """A retry policy: a queue's, for jobs that bring none, or a job's own."""

    max_attempts: Count
    initial_interval: str
    backoff_coefficient: float
    max_interval: str
    jitter: bool
    backoff_strategy: str
    non_retryable_errors: list[str] = absent()
    on_exhaustion: str
