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


class QueueStatus(TypedDict):
    """Whether a queue's jobs are handed out."""

    name: str
    state: QueueStateName
    status: QueueStateName
    paused: bool


class JobCounts(TypedDict):
    """Jobs by state."""

    scheduled: Count
    available: Count
    pending: Count
    active: Count
    completed: Count
    retryable: Count
    cancelled: Count
    discarded: Count


class Throughput(TypedDict):
    """Jobs completed and discarded in the last minute."""

    processed_per_minute: Rate
    failed_per_minute: Rate


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


class Retention(TypedDict):
    """How long finished jobs are kept."""

    completed: str
    discarded: str
    cancelled: str


class BackpressureConfig(TypedDict):
    """Bounds as the backpressure extension names them."""

    max_depth: NotRequired[Bound]
    max_size_bytes: NotRequired[Bound]
    strategy: OverflowPolicy
    warning_threshold: Fraction


class RateLimit(TypedDict):
    """At most `limit` jobs are handed out in each period (ISO 8601)."""

    limit: Annotated[int, Field(ge=1)]
    period: str


class DeadLetterRetention(TypedDict):
    """Which dead letters are kept."""

    max_age: Annotated[str, Field(description="those older are pruned; ISO 8601")]
    max_count: Annotated[int, Field(ge=1, description="the oldest beyond so many are pruned")]


class DeadLetterConfig(TypedDict):
    """How dead letters are kept and pruned."""

    retention: DeadLetterRetention
    pruning_policy: PruningPolicy


class ReplayRule(TypedDict):
    """A rule by which dead letters are retried automatically."""

    name: str
    filter: Annotated[
        dict[str, str], Field(description="which: by `queue`, `type`, `error_type`, …")
    ]
    delay: Annotated[str, Field(description="how long after they were discarded; ISO 8601")]
    max_replays: Annotated[int, Field(ge=1, description="times that one job comes back by it")]
    enabled: bool


class TenantFairness(TypedDict):
    """How the tenants of a queue share its dispatches."""

    enabled: bool
    strategy: Literal["fair-share"]
    weights: Annotated[
        dict[str, Annotated[int, Field(ge=1)]],
        Field(description="by `tenant:` and the tenant's id"),
    ]
    default_weight: Annotated[int, Field(ge=1, description="of all others")]


class QueueConfig(TypedDict):
    """A queue's configuration. Timeouts in seconds, durations in ISO 8601."""

    max_size: NotRequired[Bound]
    max_size_bytes: NotRequired[Bound]
    overflow_policy: OverflowPolicy
    warning_threshold: Fraction
    backpressure: Annotated[
        BackpressureConfig, Field(description="the bounds, by their other names")
    ]
    concurrency: NotRequired[Annotated[int, Field(ge=1, description="most active jobs")]]
    rate_limit: NotRequired[RateLimit]
    visibility_timeout: Count
    default_timeout: Count
    default_retry: RetryDefaults
    retention: Retention
    dead_letter_queue: NotRequired[
        Annotated[str, Field(description="where copies of dead letters go")]
    ]
    dead_letter_max_size: NotRequired[Bound]
    dead_letter_ttl: NotRequired[str]
    dead_letter: DeadLetterConfig
    replay_rules: NotRequired[list[ReplayRule]]
    allowed_job_types: list[str]
    producers: list[str]
    lanes: Annotated[int, Field(ge=1, description="parallel lines")]
    require_lease_token: NotRequired[
        Annotated[bool, Field(description="whether an ack or nack must show the lease token")]
    ]
    tenant_fairness: NotRequired[TenantFairness]


class QueueDeletion(TypedDict):
    """The deletion of a queue in progress. The queue's depth shows how far it is."""

    strategy: DeletionStrategy
    target_queue: NotRequired[str]
    started_at: Moment


class QueueState(QueueStatus):
    """A queue's state."""

    deletion: NotRequired[QueueDeletion]
    created_at: NotRequired[Moment]
    configured_at: NotRequired[Moment]
    paused_at: NotRequired[Moment]
    resumed_at: NotRequired[Moment]


class OldestAvailable(TypedDict, total=False):
    """The oldest available job; nothing when there is none."""

    oldest_available_at: Moment
    oldest_available_age_seconds: Rate


class QueueSummary(QueueState, JobCounts, OldestAvailable):
    """A queue in a listing. Its oldest available job is that of the last sweep."""

    depth: Annotated[int, Field(ge=0, description="jobs that are not final")]
    throughput: Throughput
    config: QueueConfig


class QueuesAnswer(Paged):
    """A page of queues."""

    queues: list[QueueSummary]
    items: list[QueueSummary]


class Averages(TypedDict, total=False):
    """Averages; nothing for what did not happen."""

    avg_wait_ms: Milliseconds
    avg_duration_ms: Milliseconds


class MaxDepth(TypedDict, total=False):
    """A queue's bound; nothing when it has none."""

    max_depth: Bound


class NamedQueue(TypedDict, total=False):
    """The queue's name, where it does not stand beside the statistics."""

    queue: str


class Statistics(NamedQueue, JobCounts, MaxDepth, Averages, OldestAvailable):
    """A queue's statistics. Days are those of UTC; averages are today's."""

    depth: Count
    dead_letter: Annotated[int, Field(ge=0, description="of the discarded ones")]
    dead: Annotated[int, Field(ge=0, description="another name of `dead_letter`")]
    enqueued_today: Count
    completed_today: Count
    failed_today: Annotated[int, Field(ge=0, description="jobs that were discarded")]
    completed_last_hour: Annotated[
        int, Field(ge=0, description="in this minute and the 59 before it")
    ]
    failed_last_hour: Annotated[int, Field(ge=0, description="jobs that were discarded")]
    throughput: Throughput
    throughput_per_second: Annotated[
        float, Field(ge=0, description="jobs completed: the last minute's, divided by 60")
    ]


class LastUpdate(TypedDict, total=False):
    """When a queue was changed last; nothing for one without an item."""

    updated_at: Moment


class QueueDetailAnswer(QueueState, LastUpdate):
    """A queue, its configuration and statistics."""

    depth: Count
    running: Annotated[int, Field(ge=0, description="active jobs")]
    config: QueueConfig
    config_sources: ConfigSources
    stats: Statistics
    queue: QueueState


class QueueCounts(QueueStatus, JobCounts):
    """A queue's counts and state."""

    depth: Count


class QueueStatsAnswer(QueueCounts):
    """A queue's statistics: counts at the top level and in `queue`, all of them in `stats`."""

    queue: QueueCounts
    stats: Statistics
    computed_at: Moment


class PriorityCount(TypedDict):
    """Available jobs of one priority."""

    priority: int
    count: Count


class PriorityStatsAnswer(TypedDict):
    """Available jobs by priority."""

    queue: str
    distribution: list[PriorityCount]
    computed_at: Moment


class AdminQueue(QueueState, OldestAvailable):
    """A queue, its counts and throughput. In a listing its oldest available job is that of the last
    sweep.
    """

    counts: JobCounts
    throughput: Throughput
    configuration: QueueConfig


class AdminQueuesAnswer(Paged):
    """A page of queues."""

    items: list[AdminQueue]


class AdminQueueAnswer(AdminQueue):
    """A queue, its counts and throughput."""

    computed_at: Moment


class ErrorRate(TypedDict, total=False):
    """How many attempts fail; nothing where none ended."""

    error_rate: Annotated[
        float, Field(ge=0, le=1, description="failed attempts, of those that ended")
    ]


class QueueDay(Averages, ErrorRate):
    """A queue, and what happened there today."""

    name: str
    depth: Annotated[int, Field(ge=0, description="jobs that are not final")]
    active: Count


class StatsAnswer(TypedDict):
    """All queues and workers together; with `detail` each of a page of queues."""

    queues: Annotated[
        int | list[QueueDay], Field(description="how many; with `detail` what each of them does")
    ]
    queue_count: NotRequired[Count]
    pagination: NotRequired[Pagination]
    workers: Annotated[int, Field(ge=0, description="those that were heard of lately")]
    jobs: JobCounts
    dead_letter: Count
    throughput: Throughput
    uptime_seconds: Count
    computed_at: NotRequired[Annotated[Moment, Field(description="by a sweep, each minute")]]
    oldest_available_at: NotRequired[
        Annotated[Moment, Field(description="since when the oldest available job of all waits")]
    ]


class HistoryPoint(Averages):
    """What happened in the period that begins at `timestamp`."""

    timestamp: Moment
    processed: Annotated[int, Field(ge=0, description="jobs that were completed")]
    completed: Annotated[int, Field(ge=0, description="another name of `processed`")]
    failed: Annotated[int, Field(ge=0, description="jobs that were discarded")]
    enqueued: Count


class StatsHistoryAnswer(TypedDict):
    """Points in time, oldest first."""

    period: Literal["1m", "5m", "1h", "1d"]
    data: list[HistoryPoint]
    data_points: list[HistoryPoint]


class HistogramBucket(TypedDict):
    """How many observations are not above a bound."""

    le: float
    count: Count


class MetricSample(TypedDict):
    """One value of a metric, or one histogram."""

    labels: dict[str, str]
    value: NotRequired[Rate]
    count: NotRequired[Count]
    sum: NotRequired[Rate]
    buckets: NotRequired[list[HistogramBucket]]


class Metric(TypedDict):
    """A metric and its values. Counters and histograms count from midnight UTC."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str
    samples: list[MetricSample]


class MetricsAnswer(TypedDict):
    """Metrics by the names of the specification."""

    computed_at: Moment
    metrics: list[Metric]


class OpenApiAnswer(TypedDict):
    """An OpenAPI document."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


class Places(TypedDict):
    """Active jobs of a key; a limit of them if there is one."""

    limit: NotRequired[Count]
    active: Count
    available: NotRequired[Count]


class Starts(RateLimit):
    """So many starts in each period."""


class Window(Starts):
    """Starts in a sliding window."""

    current_count: Count
    window_resets_at: Annotated[Moment, Field(description="when one more may start")]


class Spacing(Starts):
    """Evenly spaced starts."""

    next_allowed_at: Moment


class RateLimitOverride(TypedDict):
    """The limits that hold instead of those of the jobs; null lifts a limit. `limit` and `period`
    are those of `rate`.
    """

    limit: NotRequired[int]
    period: NotRequired[str]
    concurrency: NotRequired[int | None]
    rate: NotRequired[Starts | None]
    throttle: NotRequired[Starts | None]
    expires_at: NotRequired[Moment]


class LimitSummary(TypedDict, total=False):
    """The limit that tables of one line for each key show: the rate, or else the concurrency, or
    else the throttle.
    """

    limit: Count
    period: Annotated[str, Field(description="ISO 8601; absent where it is the concurrency")]
    active: Annotated[int, Field(ge=0, description="starts in the period, or running jobs")]
    available: Annotated[int, Field(ge=0, description="what is left of the limit")]


class RunningOfKey(TypedDict):
    """The running jobs of a key; `concurrency` and `available` where they are limited."""

    key: str
    concurrency: NotRequired[Count]
    active: Count
    available: NotRequired[Count]


class RateLimitAnswer(LimitSummary):
    """A key's limits, by the job pushed last and the override, and how much of them is used."""

    key: str
    concurrency: NotRequired[Places]
    rate: NotRequired[Window]
    throttle: NotRequired[Spacing]
    waiting_count: NotRequired[
        Annotated[int, Field(ge=0, description="available jobs of the key; only of a single key")]
    ]
    waiting: NotRequired[Annotated[int, Field(ge=0, description="the same as waiting_count")]]
    waiting_count_exact: NotRequired[
        Annotated[Literal[False], Field(description="there may be more than were counted")]
    ]
    paused_until: NotRequired[Moment]
    override: NotRequired[RateLimitOverride]


class QueueLimitsAnswer(TypedDict):
    """A queue's own limits, and how much of them is used; what is not limited is absent."""

    queue: str
    key: Annotated[str, Field(description="the subject of its events: `queue:` and its name")]
    concurrency: NotRequired[Places]
    rate: NotRequired[Window]
    rate_limit: Annotated[Starts | None, Field(description="as it stands in the configuration")]


class RateLimitsAnswer(Paged):
    """A page of keys, and the same keys with their running jobs."""

    items: list[RateLimitAnswer]
    rate_limits: list[RunningOfKey]


class AccessKey(TypedDict):
    """An access key without its secret, or what an IAM role may do."""

    id: str
    name: str
    role: NotRequired[
        Annotated[str, Field(description="ARN of the IAM role or user; absent: a key")]
    ]
    scopes: list[str]
    queues: NotRequired[
        Annotated[list[str], Field(description="the only queues it may touch; absent: all")]
    ]
    state: Literal["active", "expired", "revoked"]
    created_at: Moment
    expires_at: NotRequired[Moment]
    revoked_at: NotRequired[Moment]
    last_used_at: NotRequired[
        Annotated[Moment, Field(description="to the length of time for which keys are remembered")]
    ]
    made_by: NotRequired[Annotated[str, Field(description="name of the key that made it")]]
    ancestors: NotRequired[
        Annotated[
            list[str],
            Field(description="ids of the keys that it descends from; the last of them made it"),
        ]
    ]


class KeyAnswer(TypedDict):
    """One access key."""

    key: AccessKey


class KeyMadeAnswer(KeyAnswer):
    """A new access key."""

    secret: Annotated[str, Field(description="what to send as bearer token; never shown again")]


class KeyCounts(TypedDict):
    """How many crons and deliveries of a key and its descendants a request paused."""

    crons: Count
    deliveries: Count


class KeyRevokedAnswer(KeyAnswer):
    """A revoked access key."""

    also_revoked: NotRequired[
        Annotated[list[str], Field(description="ids of its descendants that were revoked with it")]
    ]
    paused: NotRequired[KeyCounts]


class KeysAnswer(TypedDict):
    """A page of access keys."""

    items: list[AccessKey]
    keys: list[AccessKey]
    pagination: Pagination
