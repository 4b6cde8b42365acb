"""Worker pools: the queues that their workers serve, the order, and the number of active jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any

from ojs.domain import times
from ojs.domain.errors import InvalidRequest
from ojs.domain.fair_queue.tags import Fairness, TenantFairnessRequest, in_force
from ojs.domain.fields import NumberRange
from ojs.domain.job import envelope
from ojs.domain.job.envelope import QueueName
from ojs.domain.pool.dispatch import DispatchSequence, DispatchStrategy
from ojs.domain.requests import MAX_SHOWN, After, Before, Field, Model, not_known
from ojs.records import record

# Fields of a response that are not configuration. UIs and the conformance suite send them back.
SHOWN_BACK = frozenset(
    {
        "name", "id", "etag", "created_at", "configured_at", "active_workers", "workers",
        "active_jobs",
    }
)  # fmt: skip
# The pool of workers that don't name one.
DEFAULT_POOL = "default"
POOL_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._\-]*"
MAX_POOL_BYTES = 64
# Maximum number of queues of a pool. A change writes each queue that is or was in the pool, in one
# transaction.
MAX_POOL_QUEUES = 48
# Maximum number of pools of a queue. The queue's item lists them, and each enqueue request reads
# it.
MAX_POOLS_OF_QUEUE = 16
MAX_POOL_CONCURRENCY = 1_000_000
MAX_WEIGHT = 1_000
MAX_WEIGHTS = 10_000
DEFAULT_ROTATION = "PT30S"
DEFAULT_RATIO = 0.05
MAX_ROTATION_MS = 86_400_000

_POOL = re.compile(POOL_PATTERN)


def check_pool(value: str) -> str:
    """Return `value` if it is a valid pool name.

    Raises ValueError with the violated rule if it is invalid.
    """
    if not _POOL.fullmatch(value):
        raise ValueError(
            "must start with a letter or digit and contain only letters, digits, '-', '_', and '.'"
        )
    if len(value) > MAX_POOL_BYTES:
        raise ValueError(f"must have at most {MAX_POOL_BYTES} characters")
    return value


def _interval(value: object) -> str:
    if not 1_000 <= times.short_duration_ms(value) <= MAX_ROTATION_MS:
        raise ValueError("must be an ISO 8601 duration from PT1S to PT24H")
    return times.iso_duration(value)


PoolName = Annotated[
    str,
    After(check_pool),
    Field(json_schema_extra={"pattern": POOL_PATTERN, "maxLength": MAX_POOL_BYTES}),
]
Weight = Annotated[int, NumberRange(1, MAX_WEIGHT)]


class QueueOfPool(Model):
    """The settings of a queue where `queues` is an object."""

    weight: Weight | None = None


class StarvationPreventionRequest(Model):
    """What each queue of a pool is guaranteed."""

    enabled: bool = False
    rotation_interval: Annotated[str, Before(_interval)] = Field(
        DEFAULT_ROTATION, description="how often each queue is served whatever the strategy says"
    )
    min_dispatch_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        DEFAULT_RATIO, description="part of all dispatches that each queue with jobs has at least"
    )


class PoolRequest(Model):
    """A worker pool. Replaces the whole configuration: omitted fields get their defaults."""

    queues: (
        Annotated[list[QueueName], Field(min_length=1, max_length=MAX_POOL_QUEUES)]
        | Annotated[dict[QueueName, QueueOfPool], Field(min_length=1, max_length=MAX_POOL_QUEUES)]
    )
    concurrency: Annotated[int, NumberRange(1, MAX_POOL_CONCURRENCY)] | None = Field(
        None, description="maximum number of jobs that all workers of the pool run at a time"
    )
    strategy: DispatchStrategy | None = Field(
        None, description="default: weighted if there are weights, otherwise round-robin"
    )
    weights: dict[str, Weight] | None = None
    isolated: bool | None = Field(
        None, description="whether workers outside the pool get no jobs of its queues"
    )
    starvation_prevention: StarvationPreventionRequest | None = None
    tenant_fairness: TenantFairnessRequest | None = Field(
        None,
        description="how tenants share its queues; default for queues without their own setting",
    )


@record(frozen=True)
class StarvationPrevention:
    """Guarantees of each queue of a pool: one dispatch per interval, and a
    share of all dispatches.
    """

    interval: str = DEFAULT_ROTATION
    ratio: float = DEFAULT_RATIO

    @property
    def interval_ms(self) -> int:
        """The rotation interval in ms."""
        return times.duration_ms(self.interval)


@record(frozen=True)
class Pool:
    """A worker pool as configured. Times in milliseconds since the epoch.

    `prevention_config` is the configuration of starvation prevention, and `tenants` is the
    configuration of tenant fairness.
    """

    name: str
    queues: tuple[str, ...]
    strategy: DispatchStrategy = DispatchStrategy.ROUND_ROBIN
    weights: Mapping[str, int] = field(default_factory=dict)
    concurrency: int | None = None
    isolated: bool = False
    prevention_config: Mapping[str, Any] = field(default_factory=dict)
    tenants: Mapping[str, Any] = field(default_factory=dict)
    created_ms: int = 0
    configured_ms: int = 0
    # Number of changes.
    changes: int = 0
    # Whether active jobs acquire permits although no limit applies yet, because a limit is being
    # set.
    limiting: bool = False

    @property
    def prevention(self) -> StarvationPrevention | None:
        """The starvation prevention in force, or None if it is not enabled."""
        given = self.prevention_config
        if not given.get("enabled"):
            return None
        return StarvationPrevention(given["rotation_interval"], float(given["min_dispatch_ratio"]))

    @property
    def limits_concurrency(self) -> bool:
        """Whether active jobs of the pool acquire permits of the pool's semaphore."""
        return self.limiting or self.concurrency is not None

    @property
    def by_load(self) -> bool:
        """Whether the pool's strategy is least-loaded. Each worker then has a limit."""
        return self.strategy == DispatchStrategy.LEAST_LOADED

    @property
    def version(self) -> int:
        """A number that increases with each change, even if the pool is
        deleted and created again.
        """
        return self.created_ms + self.changes

    @cached_property
    def fairness(self) -> Fairness | None:
        """The tenant fairness of the pool's queues, or None if it is not
        configured or not enabled.
        """
        return in_force(self.tenants) if self.tenants else None

    @property
    def configuration(self) -> dict[str, Any]:
        """The request that configures the pool like this."""
        optional = {
            "concurrency": self.concurrency,
            "weights": dict(self.weights),
            "starvation_prevention": dict(self.prevention_config),
            "tenant_fairness": dict(self.tenants),
        }
        always = {"queues": [*self.queues], "strategy": self.strategy, "isolated": self.isolated}
        return always | {name: value for name, value in optional.items() if value}

    @property
    def semaphore(self) -> str:
        """The name of the pool's semaphore. No queue can have this name."""
        return pool_semaphore(self.name)

    @cached_property
    def sequence(self) -> DispatchSequence:
        """The order in which the pool's queues are served."""
        ratio = self.prevention.ratio if self.prevention is not None else 0.0
        return DispatchSequence.of(self.queues, self.strategy, self.weights, ratio)


def pool_semaphore(pool: str) -> str:
    """Return the name of a pool's semaphore."""
    return f":{pool}"


def worker_semaphore(pool: str, worker_id: str) -> str:
    """Return the name of the semaphore of one worker of a pool."""
    return f":{pool}:{worker_id}"


def parse(name: str, raw: object) -> Pool:
    """Parse a request body. Raises InvalidRequest that names the field."""
    try:
        check_pool(name)
    except ValueError as error:
        raise InvalidRequest("name", str(error), value=name) from None
    if not isinstance(raw, Mapping):
        raise InvalidRequest("body", "must be a JSON object", value=raw)
    inner, prefix = (raw["pool"], "pool.") if isinstance(raw.get("pool"), Mapping) else (raw, "")
    for same in ("name", "id"):
        if inner.get(same) not in (None, name):
            raise InvalidRequest(
                f"{prefix}{same}", "must equal the name in the path", value=inner[same]
            )
    if inner is not raw:
        _check_beside(raw, inner)
    _check_queues(inner, prefix)
    try:
        wanted = {name: value for name, value in inner.items() if name not in SHOWN_BACK}
        given = PoolRequest.model_validate(wanted, prefix)
    except InvalidRequest as error:
        # A plain InvalidRequest (400) for each field.
        raise InvalidRequest(error.field, error.reason, details=error.details) from None
    return _pool(name, given, prefix)


def _check_beside(raw: Mapping[str, Any], inner: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for an unknown field outside `pool`, or one with a different value."""
    known = {"pool", *PoolRequest.model_fields, *SHOWN_BACK}
    for name, value in raw.items():
        if name not in known:
            raise InvalidRequest(name[:MAX_SHOWN], not_known(name, known))
        if name in PoolRequest.model_fields and value != inner.get(name):
            raise InvalidRequest(name, "must equal the field inside pool. Send only that one")


def _check_queues(given: Mapping[str, Any], prefix: str) -> None:
    """Validate `queues` without the model, so that an error names the place of the queue."""
    queues = given.get("queues")
    field_name = f"{prefix}queues"
    if not isinstance(queues, (list, dict)):
        rule = "must be an array of queue names, or an object with queue names as keys"
        raise InvalidRequest(field_name, "is required" if queues is None else rule, value=queues)
    if not 1 <= len(queues) <= MAX_POOL_QUEUES:
        raise InvalidRequest(
            field_name, f"must have 1 to {MAX_POOL_QUEUES} queues, but has {len(queues)}"
        )
    for at, name in enumerate(queues):
        where = f"{field_name}[{at}]" if isinstance(queues, list) else field_name
        if not isinstance(name, str):
            raise InvalidRequest(where, "must be a string", value=name)
        try:
            envelope.check_queue(name)
        except ValueError as error:
            raise InvalidRequest(where, str(error), value=name) from None
        if isinstance(queues, list) and name in queues[:at]:
            raise InvalidRequest(where, "must not be a duplicate", value=name)
    if isinstance(queues, dict):
        for name, settings in queues.items():
            _check_queue(f"{field_name}.{name}", settings)


def _check_queue(where: str, settings: object) -> None:
    if not isinstance(settings, Mapping):
        raise InvalidRequest(where, "must be an object", value=settings)
    QueueOfPool.model_validate(settings, f"{where}.")


def _pool(name: str, given: PoolRequest, prefix: str) -> Pool:
    queues = tuple(given.queues)
    weights = _weights(given, prefix)
    usual = DispatchStrategy.WEIGHTED if weights else DispatchStrategy.ROUND_ROBIN
    strategy = given.strategy or usual
    _check_weights(queues, strategy, weights, prefix)
    prevention = given.starvation_prevention
    if prevention is not None and prevention.enabled:
        _check_prevention(prevention, queues, prefix)
    return Pool(
        name,
        queues,
        strategy=strategy,
        weights=weights,
        concurrency=given.concurrency,
        isolated=bool(given.isolated),
        prevention_config={} if prevention is None else prevention.model_dump(),
        tenants=_tenants(given.tenant_fairness),
    )


def _tenants(given: TenantFairnessRequest | None) -> dict[str, Any]:
    """Return the configuration of tenant fairness as stored, without null values."""
    if given is None:
        return {}
    stored = given.model_dump(exclude_none=True)
    if given.weights is not None:
        stored["weights"] = {name: w for name, w in given.weights.items() if w is not None}
    # A request without values is also stored, to record that fairness was configured.
    return {"enabled": False, **stored}


def _weights(given: PoolRequest, prefix: str) -> dict[str, int]:
    """Return the weights by queue, from `weights` and from `queues`."""
    weights = dict(given.weights or {})
    if isinstance(given.queues, dict):
        for name, queue in given.queues.items():
            if queue.weight is None:
                continue
            if weights.get(name, queue.weight) != queue.weight:
                raise InvalidRequest(
                    f"{prefix}weights.{name}",
                    "must equal the weight in queues. Send only one of them",
                )
            weights[name] = queue.weight
    return weights


def _check_weights(
    queues: tuple[str, ...], strategy: str, weights: Mapping[str, int], prefix: str
) -> None:
    for name in weights:
        if name not in queues:
            rule = "is not a queue of this pool"
            raise InvalidRequest(f"{prefix}weights.{name}", rule, value=name)
    if strategy == DispatchStrategy.WEIGHTED:
        for name in queues:
            if name not in weights:
                rule = "is required: with the strategy weighted, each queue must have a weight"
                raise InvalidRequest(f"{prefix}weights.{name}", rule)
        if sum(weights.values()) > MAX_WEIGHTS:
            raise InvalidRequest(f"{prefix}weights", f"must have a sum of at most {MAX_WEIGHTS}")
    elif len(set(weights.values())) > 1:
        rule = f"can't be combined with the strategy {strategy}. Use weighted"
        raise InvalidRequest(f"{prefix}weights", rule)


def _check_prevention(
    given: StarvationPreventionRequest, queues: tuple[str, ...], prefix: str
) -> None:
    # Floating point: 20 queues with 0.05 each don't add up to exactly 1.
    if given.min_dispatch_ratio * len(queues) > 1 + 1e-9:
        raise InvalidRequest(
            f"{prefix}starvation_prevention.min_dispatch_ratio",
            f"must be at most 1/{len(queues)}, because the pool has {len(queues)} queues",
            value=given.min_dispatch_ratio,
        )
