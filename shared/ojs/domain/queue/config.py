"""The configuration of a queue: its fields, limits, defaults, and layers (ojs-queue-config).

A configuration is stored as a *layer*: only the fields that were set, in the format of responses.
The configuration in force is computed from three layers, field by field:

    system defaults  <  `_default` when the queue was created  <  the queue's own layer

A request can be flat (ojs-queue-config, section 6) or have a nested `backpressure` object
(ojs-backpressure, section 6.2). These are two names for the same settings.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, assert_never

from ojs.domain import jsontext, times
from ojs.domain.dead_letter import replay_rules
from ojs.domain.dead_letter.replay_rules import MAX_RULES, ReplayRuleRequest
from ojs.domain.errors import InvalidRequest, known, naming_field
from ojs.domain.fair_queue import tags as tenants
from ojs.domain.fair_queue.tags import Fairness, TenantFairnessRequest
from ojs.domain.fields import Duration, NumberRange, Printable
from ojs.domain.job import envelope
from ojs.domain.job.copies import TTL_MS, CopyTarget
from ojs.domain.job.envelope import MAX_NAME_BYTES, MAX_TIMEOUT_MS, MAX_VISIBILITY_MS
from ojs.domain.job.job import DEFAULT_TIMEOUT_MS, DEFAULT_VISIBILITY_MS
from ojs.domain.job.retention import (
    DEAD_LETTERS,
    RETENTION,
    DeadLetterRetention,
    PruningPolicy,
    Retention,
)
from ojs.domain.job.retry import DEFAULT, RetryPolicy
from ojs.domain.requests import After, Field, Model
from ojs.domain.tenants import get_local_name, get_tenant, qualified
from ojs.records import record

# The reserved name of the policy for new queues. It is not a valid queue name.
DEFAULT_QUEUE_POLICY: Final = "_default"

MAX_BOUND = 1_000_000_000
MAX_BOUND_BYTES = 2**53 - 1
# Pruning reads all retained dead letters.
MAX_DEAD_LETTERS = 1_000_000
MAX_CONCURRENCY = 1_000_000
MAX_RATE = 1_000_000
MAX_NAMES = 100
MAX_LANES = 64
MAX_LAYER_BYTES = 3_000

Layer = Mapping[str, Any]


class OverflowPolicy(StrEnum):
    """The action on a new job if its queue is at capacity.

    The job is rejected, waits for capacity, or displaces the oldest available job.
    """

    REJECT = "reject"
    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"

    def allows(self, *, waiting: bool = False, dropping: bool = False) -> bool:
        """Return whether the policy can provide capacity for a new job.

        `waiting` is whether the caller can wait, and `dropping` whether jobs can be discarded.
        """
        match self:
            case OverflowPolicy.REJECT:
                return False
            case OverflowPolicy.BLOCK:
                return waiting
            case OverflowPolicy.DROP_OLDEST:
                return dropping
            case _:
                assert_never(self)


_TYPE_WITH_WILDCARDS = re.compile(r"[a-z0-9_\-.*]+")


def _pattern(value: str) -> str:
    if not _TYPE_WITH_WILDCARDS.fullmatch(value):
        raise ValueError("must be a job type. '*' in it matches any characters")
    return value


Bound = Annotated[int, NumberRange(0, MAX_BOUND)]
BoundBytes = Annotated[int, NumberRange(0, MAX_BOUND_BYTES)]
Threshold = Annotated[float, Field(ge=0.0, le=1.0)]
JobTypePattern = Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES), After(_pattern)]


def _producer(value: str) -> str:
    if "*" in value and value != "*":
        raise ValueError("must be a full producer name, or '*' for all producers")
    return value


Producer = Annotated[Printable, Field(min_length=1, max_length=MAX_NAME_BYTES), After(_producer)]


class QueueRateLimit(Model):
    """Maximum number of jobs that are dispatched in each `period`."""

    limit: Annotated[int, NumberRange(1, MAX_RATE)]
    period: Duration


class RetentionRequest(Model):
    """How long finished jobs are kept."""

    completed: Duration | None = None
    discarded: Duration | None = None
    cancelled: Duration | None = None


class DeadLetterRetentionRequest(Model):
    """Retention of dead letters: older ones, and those above the maximum number, are pruned."""

    max_age: Duration | None = None
    max_count: Annotated[int, NumberRange(1, MAX_DEAD_LETTERS)] | None = None


class DeadLetterRequest(Model):
    """How long dead letters are kept (ojs-dead-letter, sections 5 and 8)."""

    retention: DeadLetterRetentionRequest | None = None
    pruning_policy: PruningPolicy | None = None


class Backpressure(Model):
    """The bounds, by their names in ojs-backpressure (section 6.2)."""

    max_depth: Bound | None = None
    max_size_bytes: BoundBytes | None = None
    strategy: OverflowPolicy | None = None
    warning_threshold: Threshold | None = None


class QueueConfigRequest(Model):
    """A configuration in a request. Null resets a field to the layer below.

    Unknown fields are rejected, because a misspelled limit would have no effect.
    """

    max_size: Bound | None = None
    max_depth: Bound | None = None
    max_size_bytes: BoundBytes | None = None
    overflow_policy: OverflowPolicy | None = None
    strategy: OverflowPolicy | None = None
    warning_threshold: Threshold | None = None
    backpressure: Backpressure | None = None
    concurrency: Annotated[int, NumberRange(1, MAX_CONCURRENCY)] | None = None
    rate_limit: QueueRateLimit | None = None
    visibility_timeout: Annotated[int, NumberRange(1, MAX_VISIBILITY_MS // 1000)] | None = None
    default_timeout: Annotated[int, NumberRange(1, MAX_TIMEOUT_MS // 1000)] | None = None
    default_retry: envelope.RetryRequest | None = None
    retention: RetentionRequest | None = None
    dead_letter_queue: envelope.QueueName | None = None
    dead_letter_max_size: Bound | None = None
    dead_letter_ttl: Duration | None = None
    dead_letter: DeadLetterRequest | None = None
    replay_rules: list[ReplayRuleRequest] | None = Field(None, max_length=MAX_RULES)
    allowed_job_types: list[JobTypePattern] | None = Field(None, min_length=1, max_length=MAX_NAMES)
    producers: list[Producer] | None = Field(None, min_length=1, max_length=MAX_NAMES)
    lanes: Annotated[int, NumberRange(1, MAX_LANES)] | None = None
    require_lease_token: bool | None = None
    tenant_fairness: TenantFairnessRequest | None = None


# Field of a request → field of the layer, if the names differ.
_ALIASES = {"max_depth": "max_size", "strategy": "overflow_policy"}
_NESTED = ("retention", "default_retry", "dead_letter", "tenant_fairness")
_UNLIMITED_AT_ZERO = ("max_size", "max_size_bytes", "dead_letter_max_size")
_RETRY_ALIASES = {alias for aliases in envelope.RETRY_ALIASES.values() for alias in aliases}
# The names of one setting in a request.
_SAME = (
    ("max_size", "max_depth", "backpressure.max_depth"),
    ("max_size_bytes", "backpressure.max_size_bytes"),
    ("overflow_policy", "strategy", "backpressure.strategy"),
    ("warning_threshold", "backpressure.warning_threshold"),
)


@record(frozen=True)
class QueueConfig:
    """The configuration in force for a queue. Durations in milliseconds. None means no limit."""

    max_size: int | None = None
    max_size_bytes: int | None = None
    overflow_policy: OverflowPolicy = OverflowPolicy.REJECT
    warning_threshold: float = 0.8
    concurrency: int | None = None
    rate_limit: int | None = None
    rate_period_ms: int = 0
    visibility_ms: int = DEFAULT_VISIBILITY_MS
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    retry: RetryPolicy = DEFAULT
    retention: Retention = RETENTION
    dead_letter_queue: str | None = None
    dead_letter_max_size: int | None = None
    dead_letter_ttl_ms: int = TTL_MS
    dead_letter: DeadLetterRetention = DEAD_LETTERS
    replay_rules: Sequence[Layer] | None = None
    allowed_job_types: tuple[str, ...] = ("*",)
    producers: tuple[str, ...] = ("*",)
    lanes: int = 1
    # Whether an ack or nack must include the lease token.
    require_lease_token: bool | None = None
    tenant_fairness: Fairness | None = None

    @property
    def bounded(self) -> bool:
        """Whether the queue has a size limit, in jobs or in bytes."""
        return self.max_size is not None or self.max_size_bytes is not None

    @property
    def copies_to(self) -> CopyTarget | None:
        """The target of copies of the queue's dead letters, or None."""
        if self.dead_letter_queue is None:
            return None
        return CopyTarget(
            self.dead_letter_queue, self.dead_letter_max_size, self.dead_letter_ttl_ms
        )

    @property
    def limited(self) -> bool:
        """Whether the queue has a concurrency limit or a rate limit."""
        return self.concurrency is not None or self.rate_limit is not None

    @property
    def start_every_ms(self) -> int | None:
        """Average time (ms) between two starts at the rate limit. None: without one."""
        return None if self.rate_limit is None else -(-self.rate_period_ms // self.rate_limit)

    def allows_type(self, job_type: str) -> bool:
        """Return whether the queue accepts jobs of this type."""
        return any(fnmatch.fnmatchcase(job_type, wanted) for wanted in self.allowed_job_types)

    def allows_producer(self, producer: str | None) -> bool:
        """Return whether a producer can enqueue jobs.

        An unknown producer (None) can if all producers can.
        """
        return "*" in self.producers or (producer is not None and producer in self.producers)


@record(frozen=True)
class Layers:
    """The queue's own layer, and the policy for new queues at the time of its creation."""

    own: Layer = field(default_factory=dict)
    inherited: Layer = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """All fields that are set. The queue's own fields override the inherited ones."""
        return _merged(self.own, self.inherited)

    @property
    def full(self) -> dict[str, Any]:
        """All fields that are set, merged over the system defaults."""
        return _merged(self.document, SYSTEM)

    @property
    def max_age(self) -> str:
        """The maximum age of dead letters. In a layer, it overrides its alias `dead_letter_ttl`."""
        for layer in (self.own, self.inherited):
            named = layer.get("dead_letter", {}).get("retention", {}).get("max_age")
            if found := named or layer.get("dead_letter_ttl"):
                return str(found)
        return str(SYSTEM["dead_letter"]["retention"]["max_age"])

    @property
    def replay_rules(self) -> Sequence[Layer]:
        """The replay rules, in the format of responses. A layer replaces all rules below it."""
        rules: Sequence[Layer] = self.document.get("replay_rules", ())
        return rules

    @property
    def own_max_age(self) -> bool:
        """Whether the queue's own layer sets the maximum age of dead letters."""
        named = self.own.get("dead_letter", {}).get("retention", {})
        return "max_age" in named or "dead_letter_ttl" in self.own

    @property
    def own_max_count(self) -> bool:
        """Whether the queue's own layer sets the maximum number of dead letters."""
        return "max_count" in self.own.get("dead_letter", {}).get("retention", {})

    def in_force(self) -> QueueConfig:
        """Return the configuration in force."""
        return self._config

    @cached_property
    def _config(self) -> QueueConfig:
        return _in_force(self)


# Default of `dead_letter_ttl` for queues with a dead-letter queue.
_DEAD_LETTER_TTL = "P30D"

SYSTEM: dict[str, Any] = {
    "overflow_policy": OverflowPolicy.REJECT.value,
    "warning_threshold": 0.8,
    "visibility_timeout": DEFAULT_VISIBILITY_MS // 1000,
    "default_timeout": DEFAULT_TIMEOUT_MS // 1000,
    "default_retry": {
        "max_attempts": DEFAULT.max_attempts,
        "initial_interval": "PT1S",
        "backoff_coefficient": DEFAULT.coefficient,
        "max_interval": "PT5M",
        "jitter": DEFAULT.jitter,
        "backoff_strategy": DEFAULT.strategy.value,
        "on_exhaustion": DEFAULT.on_exhaustion.value,
    },
    "retention": {"completed": "P7D", "discarded": "P30D", "cancelled": "P7D"},
    "dead_letter": {
        "retention": {"max_age": "P180D", "max_count": DEAD_LETTERS.max_count},
        "pruning_policy": DEAD_LETTERS.pruning_policy.value,
    },
    "allowed_job_types": ["*"],
    "producers": ["*"],
    "lanes": 1,
}


def parse(raw: object, *, prefix: str = "", policy: bool = False) -> dict[str, Any]:
    """Parse a request.

    Args:
        raw: Request body, decoded.
        prefix: Prefix of field names in errors. Default: none.
        policy: Whether the request is for `_default`. That policy can't use `drop_oldest`, which
            must be chosen for each queue (ojs-backpressure, section 5.3).

    Returns:
        The changes: field of the layer → value, or None to reset the field.

    Raises:
        InvalidRequest: A field is invalid. The error names it.
    """
    if not isinstance(raw, Mapping):
        raise InvalidRequest(prefix.rstrip(".") or "body", "must be a JSON object", value=raw)
    try:
        request = QueueConfigRequest.model_validate(raw, prefix)
    except InvalidRequest as invalid:
        # A plain InvalidRequest (400), also within `default_retry`.
        raise InvalidRequest(invalid.field, invalid.reason, details=invalid.details) from None
    _check_aliases(request, prefix)
    changes = _changes(request, prefix)
    if request.replay_rules is not None:
        changes["replay_rules"] = replay_rules.stored_form(request.replay_rules, prefix)
    whole(Layers(merge({}, changes, prefix=prefix)), prefix=prefix)
    if policy and changes.get("overflow_policy") == OverflowPolicy.DROP_OLDEST:
        flat = (name for name in ("overflow_policy", "strategy") if raw.get(name) == "drop_oldest")
        raise InvalidRequest(
            prefix + next(flat, "backpressure.strategy"),
            "can't be drop_oldest as the default. Set it for each queue",
            value=OverflowPolicy.DROP_OLDEST.value,
        )
    return changes


def _check_aliases(request: QueueConfigRequest, prefix: str) -> None:
    """Raise InvalidRequest if two aliases of a setting have different values. Null is a value."""
    given = {name: getattr(request, name) for name in request.model_fields_set}
    for name in request.backpressure.model_fields_set if request.backpressure is not None else ():
        given[f"backpressure.{name}"] = getattr(request.backpressure, name)
    for names in _SAME:
        first, *others = [name for name in names if name in given] or [""]
        for name in others:
            if given[name] != given[first]:
                other = f"{prefix}{first}"
                rule = f"conflicts with {other}: both set the same value. Send only one of them"
                raise InvalidRequest(prefix + name, rule)
    if request.default_retry is not None:
        request.default_retry.check_aliases(f"{prefix}default_retry")


def _changes(request: QueueConfigRequest, prefix: str) -> dict[str, Any]:
    """Return the fields that a request sets, by their names in the layer."""
    changes: dict[str, Any] = {}
    # Nested fields first, then top-level fields. A later one replaces an earlier one.
    for part in filter(None, (request.backpressure, request)):
        # If both names of a top-level field are set, the layer's own name takes precedence.
        sent = part.model_fields_set - {"backpressure"}
        for name in sorted(sent, key=lambda name: name not in _ALIASES):
            value = getattr(part, name)
            if isinstance(value, Model):
                value = value.model_dump(exclude_unset=True)
            if name == "default_retry" and value is not None:
                value = _retry_by_one_name(value, prefix)
            changes[_ALIASES.get(name, name)] = value
    return changes


def _retry_by_one_name(sent: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return a retry policy with the field names of responses, so that an
    alias replaces the field.
    """
    named = {name: value for name, value in sent.items() if name not in _RETRY_ALIASES}
    for name, aliases in envelope.RETRY_ALIASES.items():
        given = [sent[each] for each in (name, *aliases) if each in sent]
        if not given:
            continue
        value = named[name] = next((each for each in given if each is not None), None)
        if isinstance(value, int):
            named[name] = times.format_duration(value)
        elif value is not None and name.endswith("_interval"):
            with naming_field(f"{prefix}default_retry.{name}", value):
                named[name] = times.iso_duration(value)
    return named


def merge(layer: Layer, changes: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Apply changes to a layer. Values are replaced, objects are merged, and None resets a field.

    Args:
        layer: Layer before the changes.
        changes: Field of the layer → value, or None.
        prefix: Prefix of field names in errors. Default: none.

    Returns:
        The new layer.

    Raises:
        InvalidRequest: The layer becomes too large, or names too many tenants.
    """
    merged = dict(layer)
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        elif name in _NESTED:
            merged[name] = _without_nulls(_merged(value, merged.get(name, {})))
            if not merged[name]:
                del merged[name]
        else:
            merged[name] = value
    named = merged.get("tenant_fairness", {}).get("weights", {})
    if len(named) > tenants.MAX_WEIGHTS:
        rule = f"must have at most {tenants.MAX_WEIGHTS} tenants, including those set earlier"
        raise InvalidRequest(f"{prefix}tenant_fairness.weights", rule)
    if len(jsontext.dumps(merged).encode("utf-8")) > MAX_LAYER_BYTES:
        # Each enqueue request reads the layers.
        largest = max(changes, key=lambda name: len(jsontext.dumps(merged.get(name))))
        raise InvalidRequest(
            prefix + largest,
            f"is too large: a queue's settings must be at most {MAX_LAYER_BYTES} bytes",
        )
    return merged


def _merged(above: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two layers field by field. Fields of `above` take precedence."""
    merged = dict(below)
    for name, value in above.items():
        there = merged.get(name)
        both = isinstance(value, Mapping) and isinstance(there, Mapping)
        merged[name] = _merged(value, there) if both and there is not None else value
    return merged


def _without_nulls(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layer without null fields and without empty objects."""
    left = {
        name: _without_nulls(value) if isinstance(value, Mapping) else value
        for name, value in layer.items()
    }
    return {name: value for name, value in left.items() if value is not None and value != {}}


def whole(layers: Layers, *, prefix: str = "") -> QueueConfig:
    """Return the configuration in force.

    Raises InvalidRequest if the layers contradict each other. If such layers were stored, each
    enqueue request would fail.
    """
    try:
        return layers.in_force()
    except InvalidRequest as error:
        raise InvalidRequest(prefix + error.field, error.reason) from None


def check(before: Layers, own: Layer) -> None:
    """Raise InvalidRequest if a change contradicts the other layers or would lose jobs."""
    lanes = whole(Layers(own, before.inherited)).lanes
    if lanes < before.in_force().lanes:
        rule = f"can't be reduced below {before.in_force().lanes}, because lanes can contain jobs"
        raise InvalidRequest("lanes", rule, value=lanes)


def shown(layers: Layers) -> dict[str, Any]:
    """Return the merged configuration as in responses. A limit that is not set is absent."""
    full = _merged({"dead_letter": {"retention": {"max_age": layers.max_age}}}, layers.full)
    if "tenant_fairness" in full:
        full["tenant_fairness"] = tenants.shown(full["tenant_fairness"])
    full = {name: value for name, value in full.items() if value or name not in _UNLIMITED_AT_ZERO}
    if "dead_letter_queue" in full:
        full.setdefault("dead_letter_ttl", _DEAD_LETTER_TTL)
    named = ((name, _ALIASES.get(name, name)) for name in Backpressure.model_fields)
    full["backpressure"] = {name: full[field] for name, field in named if field in full}
    return full


def check_name(name: str, changes: Mapping[str, Any], *, prefix: str = "") -> None:
    """Check settings that depend on the name of the queue.

    Args:
        name: Name of the queue, or `_default`.
        changes: Field of the layer → value, or None.
        prefix: Prefix of field names in errors. Default: none.

    Raises:
        InvalidRequest: The queue is its own dead-letter queue, or a replay rule is for another
            queue.
    """
    if changes.get("dead_letter_queue") == name:
        raise InvalidRequest(f"{prefix}dead_letter_queue", "must be a different queue", value=name)
    if name != DEFAULT_QUEUE_POLICY:
        replay_rules.check_queue(changes.get("replay_rules") or (), name, prefix)


def inherited(policy: Layer, name: str) -> Layer:
    """Return the layer that a new queue with this name inherits from the policy for new queues."""
    target = policy.get("dead_letter_queue")
    if not isinstance(target, str):
        return policy
    # The dead letters of a tenant stay in its own queues.
    target = qualified(get_tenant(name), get_local_name(target))
    rest = {key: value for key, value in policy.items() if key != "dead_letter_queue"}
    # The default dead-letter queue can't be its own dead-letter queue.
    return rest if target == name else {**rest, "dead_letter_queue": target}


def sources(layers: Layers) -> dict[str, str]:
    """Return the layer that each field in force comes from: `queue`, `_default`, or `system`."""
    found = {name: "system" for name in shown(layers) if name != "backpressure"}
    # `dead_letter_ttl` is another name for a field of `dead_letter`.
    inherited, own = (
        {*layer, *(["dead_letter"] if "dead_letter_ttl" in layer else ())}
        for layer in (layers.inherited, layers.own)
    )
    found |= {name: DEFAULT_QUEUE_POLICY for name in inherited if name in found}
    return found | {name: "queue" for name in own if name in found}


def _in_force(layers: Layers) -> QueueConfig:
    full, retry = layers.full, layers.document.get("default_retry")
    seconds = {name: times.duration_ms(text) // 1000 for name, text in full["retention"].items()}
    rate = full.get("rate_limit")
    dead_letter = full["dead_letter"]
    if retry:
        retry = envelope.RetryRequest.model_validate(dict(retry)).over(DEFAULT, "default_retry")
    return QueueConfig(
        max_size=full.get("max_size") or None,
        max_size_bytes=full.get("max_size_bytes") or None,
        # If only a newer version supports a stored value, use a value that loses no jobs.
        overflow_policy=known(
            OverflowPolicy, full["overflow_policy"], "", otherwise=OverflowPolicy.REJECT
        ),
        warning_threshold=float(full["warning_threshold"]),
        concurrency=full.get("concurrency"),
        rate_limit=rate["limit"] if rate else None,
        rate_period_ms=times.duration_ms(rate["period"]) if rate else 0,
        visibility_ms=full["visibility_timeout"] * 1000,
        timeout_ms=full["default_timeout"] * 1000,
        retry=retry or DEFAULT,
        retention=Retention(**{f"{state}_s": kept_s for state, kept_s in seconds.items()}),
        dead_letter_queue=full.get("dead_letter_queue"),
        dead_letter_max_size=full.get("dead_letter_max_size") or None,
        dead_letter_ttl_ms=times.duration_ms(full.get("dead_letter_ttl", _DEAD_LETTER_TTL)),
        dead_letter=DeadLetterRetention(
            max_age_ms=times.duration_ms(layers.max_age),
            max_count=dead_letter["retention"]["max_count"],
            pruning_policy=known(
                PruningPolicy, dead_letter["pruning_policy"], "", otherwise=PruningPolicy.ARCHIVE
            ),
        ),
        replay_rules=full.get("replay_rules"),
        allowed_job_types=tuple(full["allowed_job_types"]),
        producers=tuple(full["producers"]),
        lanes=full["lanes"],
        require_lease_token=full.get("require_lease_token"),
        tenant_fairness=tenants.in_force(full.get("tenant_fairness", {})),
    )
