"""Response objects with the configuration of queues."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from ojs.domain.job.retention import PruningPolicy
from ojs.domain.queue import config
from ojs.domain.queue.config import Layers, OverflowPolicy
from ojs.domain.requests import Field
from ojs.http.answer import AsIs, absent, derived
from ojs.http.answers import Bound, Count, Fraction, RetryDefaults

ConfigSource = Literal["queue", "_default", "system"]
ConfigSources = Annotated[
    dict[str, ConfigSource],
    Field(description="where each field comes from: set here, in the policy, or nowhere"),
]


class Retention(AsIs):
    """How long finished jobs are kept."""

    completed: str
    discarded: str
    cancelled: str


class BackpressureConfig(AsIs):
    """Bounds as the backpressure extension names them."""

    max_depth: Bound = absent()
    max_size_bytes: Bound = absent()
    strategy: OverflowPolicy
    warning_threshold: Fraction


class RateLimit(AsIs):
    """Maximum number of jobs that are dispatched in each period (ISO 8601)."""

    limit: Annotated[int, Field(ge=1)]
    period: str


class DeadLetterRetention(AsIs):
    """Which dead letters are kept."""

    max_age: Annotated[str, Field(description="older dead letters are pruned; ISO 8601")]
    max_count: Annotated[
        int, Field(ge=1, description="the oldest dead letters above this number are pruned")
    ]


class DeadLetterConfig(AsIs):
    """How dead letters are kept and pruned."""

    retention: DeadLetterRetention
    pruning_policy: PruningPolicy


class ReplayRule(AsIs):
    """A rule by which dead letters are retried automatically."""

    name: str
    filter: Annotated[
        dict[str, str], Field(description="which: by `queue`, `type`, `error_type`, …")
    ]
    delay: Annotated[str, Field(description="time after the discard; ISO 8601")]
    max_replays: Annotated[int, Field(ge=1, description="maximum number of replays of one job")]
    enabled: bool


class TenantFairness(AsIs):
    """How the tenants of a queue share its dispatches."""

    enabled: bool
    strategy: Literal["fair-share"]
    weights: Annotated[
        dict[str, Annotated[int, Field(ge=1)]],
        Field(description="by `tenant:` and the tenant's id"),
    ]
    default_weight: Annotated[int, Field(ge=1, description="of all others")]


class QueueConfig(AsIs):
    """A queue's configuration. Timeouts in seconds, durations in ISO 8601."""

    max_size: Bound = absent()
    max_size_bytes: Bound = absent()
    overflow_policy: OverflowPolicy
    warning_threshold: Fraction
    backpressure: Annotated[
        BackpressureConfig, Field(description="the bounds, by their other names")
    ]
    concurrency: Annotated[int, Field(ge=1, description="most active jobs")] = absent()
    rate_limit: RateLimit = absent()
    visibility_timeout: Count
    default_timeout: Count
    default_retry: RetryDefaults
    retention: Retention
    dead_letter_queue: Annotated[str, Field(description="where copies of dead letters go")] = (
        absent()
    )
    dead_letter_max_size: Bound = absent()
    dead_letter_ttl: str = absent()
    dead_letter: DeadLetterConfig
    replay_rules: list[ReplayRule] = absent()
    allowed_job_types: list[str]
    producers: list[str]
    lanes: Annotated[int, Field(ge=1, description="parallel lines")]
    require_lease_token: Annotated[
        bool, Field(description="whether an ack or nack must show the lease token")
    ] = absent()
    tenant_fairness: TenantFairness = absent()


@derived
def in_force(layers: Layers) -> QueueConfig:
    """Return the effective configuration, including defaults."""
    return cast("QueueConfig", config.shown(layers))


@derived
def sources(layers: Layers) -> ConfigSources:
    """Return the source of each field of the configuration."""
    return cast("ConfigSources", config.sources(layers))
