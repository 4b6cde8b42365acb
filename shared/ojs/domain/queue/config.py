"""The configuration of a queue: its fields, limits, defaults and layers (ojs-queue-config).

A configuration is stored as a *layer*: only the fields that were set, in the form they are shown.
The configuration in force is computed from three layers, field by field:

    system defaults  <  `_default` when the queue was created  <  the queue's own

Requests may be flat (ojs-queue-config, section 6) or have a nested `backpressure` object
(ojs-backpressure, section 6.2): two names for the same settings.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ojs.domain import jsontext, times
from ojs.domain.dead_letter import replay_rules
from ojs.domain.dead_letter.copies import TTL_MS, Target
from ojs.domain.dead_letter.replay_rules import MAX_RULES, ReplayRuleRequest
from ojs.domain.errors import InvalidRequest
from ojs.domain.fair_queue import tags as tenants
from ojs.domain.fair_queue.tags import Fairness, TenantFairnessRequest
from ojs.domain.job import envelope
from ojs.domain.job.envelope import MAX_NAME_BYTES, MAX_TIMEOUT_MS, MAX_VISIBILITY_MS, Number
from ojs.domain.job.job import DEFAULT_TIMEOUT_MS, DEFAULT_VISIBILITY_MS
from ojs.domain.job.retention import (
    DEAD_LETTERS,
    RETENTION,
    DeadLetterRetention,
    PruningPolicy,
    Retention,
)
from ojs.domain.job.retry import DEFAULT, RetryPolicy
from ojs.domain.numbers import whole_number

# The reserved name of the policy for new queues, which is not a valid queue name.
DEFAULT_QUEUE_POLICY: Final = "_default"

MAX_BOUND = 1_000_000_000
MAX_BOUND_BYTES = 2**53 - 1
# The pruning reads all dead letters that are kept.
MAX_DEAD_LETTERS = 1_000_000
MAX_CONCURRENCY = 1_000_000
MAX_RATE = 1_000_000
MAX_NAMES = 100
MAX_LANES = 64
MAX_LAYER_BYTES = 3_000

Strategy = Literal["reject", "block", "drop_oldest"]
Layer = Mapping[str, Any]


class OverflowPolicy(StrEnum):
    """What a queue at its bound does with a push: refuse it, let it wait for room, or discard the
    oldest job to make room.
    """

    REJECT = "reject"
    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"


_TYPE_WITH_WILDCARDS = re.compile(r"[a-z0-9_\-.*]+")
_PRODUCER = re.compile(r"[^\x00-\x1f\x7f]+")


def _duration(value: object) -> str:
    if times.duration_ms(value) <= 0:
        raise ValueError("must be above zero")
    return str(value)


def _pattern(value: str) -> str:
    if not _TYPE_WITH_WILDCARDS.fullmatch(value):
        raise ValueError("must be a job type, in which '*' stands for any characters")
    return value


def _producer(value: str) -> str:
    if not _PRODUCER.fullmatch(value) or not value.isprintable():
        raise ValueError("must hold printable characters only")
    return value


Duration = Annotated[str, BeforeValidator(_duration)]
Bound = Annotated[int, Field(ge=0, le=MAX_BOUND), BeforeValidator(whole_number)]
JobTypePattern = Annotated[
    str, Field(min_length=1, max_length=MAX_NAME_BYTES), AfterValidator(_pattern)
]
Producer = Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES), AfterValidator(_producer)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, defer_build=True)


class QueueRateLimit(_Model):
    """At most `limit` jobs handed out in each `period`."""

    limit: Annotated[int, Field(ge=1, le=MAX_RATE), BeforeValidator(whole_number)]
    period: Duration


class RetentionRequest(_Model):
    """How long finished jobs are kept."""

    completed: Duration | None = None
    discarded: Duration | None = None
    cancelled: Duration | None = None


class DeadLetterRetentionRequest(_Model):
    """Which dead letters are kept: older ones, or more than the latest so many, are pruned."""

    max_age: Duration | None = None
    max_count: (
        Annotated[int, Field(ge=1, le=MAX_DEAD_LETTERS), BeforeValidator(whole_number)] | None
    ) = None


class DeadLetterRequest(_Model):
    """How long dead letters are kept (ojs-dead-letter, sections 5 and 8)."""

    retention: DeadLetterRetentionRequest | None = None
    pruning_policy: Literal["delete", "archive"] | None = None


class Backpressure(_Model):
    """The bounds, by their names in ojs-backpressure (section 6.2)."""

    max_depth: Bound | None = None
    max_size_bytes: (
        Annotated[int, Field(ge=0, le=MAX_BOUND_BYTES), BeforeValidator(whole_number)] | None
    ) = None
    strategy: Strategy | None = None
    warning_threshold: Annotated[Number, Field(ge=0.0, le=1.0)] | None = None


class QueueConfigRequest(_Model):
    """A configuration in a request. Null resets a field to the layer below; unknown fields are
    ignored.
    """

    max_size: Bound | None = None
    max_depth: Bound | None = None
    max_size_bytes: (
        Annotated[int, Field(ge=0, le=MAX_BOUND_BYTES), BeforeValidator(whole_number)] | None
    ) = None
    overflow_policy: Strategy | None = None
    strategy: Strategy | None = None
    warning_threshold: Annotated[Number, Field(ge=0.0, le=1.0)] | None = None
    backpressure: Backpressure | None = None
    concurrency: (
        Annotated[int, Field(ge=1, le=MAX_CONCURRENCY), BeforeValidator(whole_number)] | None
    ) = None
    rate_limit: QueueRateLimit | None = None
    visibility_timeout: (
        Annotated[int, Field(ge=1, le=MAX_VISIBILITY_MS // 1000), BeforeValidator(whole_number)]
        | None
    ) = None
    default_timeout: (
        Annotated[int, Field(ge=1, le=MAX_TIMEOUT_MS // 1000), BeforeValidator(whole_number)] | None
    ) = None
    default_retry: envelope.RetryRequest | None = None
    retention: RetentionRequest | None = None
    dead_letter_queue: envelope.QueueName | None = None
    dead_letter_max_size: Bound | None = None
    dead_letter_ttl: Duration | None = None
    dead_letter: DeadLetterRequest | None = None
    replay_rules: list[ReplayRuleRequest] | None = Field(None, max_length=MAX_RULES)
    allowed_job_types: list[JobTypePattern] | None = Field(None, min_length=1, max_length=MAX_NAMES)
    producers: list[Producer] | None = Field(None, min_length=1, max_length=MAX_NAMES)
    lanes: Annotated[int, Field(ge=1, le=MAX_LANES), BeforeValidator(whole_number)] | None = None
    tenant_fairness: TenantFairnessRequest | None = None


# Field of a request → field of the layer, where the names differ.
_ALIASES = {"max_depth": "max_size", "strategy": "overflow_policy"}
_NESTED = ("retention", "default_retry", "dead_letter", "tenant_fairness")
_RETRY_ALIASES = {
    "initial_interval_ms": "initial_interval",
    "max_interval_ms": "max_interval",
    "backoff_type": "backoff_strategy",
}


@dataclass(frozen=True)
class QueueConfig:
    """The configuration in force for a queue. Lengths in ms; None means no limit."""

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
    tenant_fairness: Fairness | None = None

    @property
    def bounded(self) -> bool:
        """Whether the queue has a bound on its jobs, in number or in bytes."""
        return self.max_size is not None or self.max_size_bytes is not None

    @property
    def copies_to(self) -> Target | None:
        """Where copies of its dead letters go, if anywhere."""
        if self.dead_letter_queue is None:
            return None
        return Target(self.dead_letter_queue, self.dead_letter_max_size, self.dead_letter_ttl_ms)

    @property
    def limited(self) -> bool:
        """Whether the queue has a concurrency limit or a rate limit."""
        return self.concurrency is not None or self.rate_limit is not None

    def allows_type(self, job_type: str) -> bool:
        """Whether jobs of this type may be pushed."""
        return any(fnmatch.fnmatchcase(job_type, wanted) for wanted in self.allowed_job_types)

    def allows_producer(self, producer: str | None) -> bool:
        """Whether this producer may push. An unknown one (None) may if all producers may."""
        return "*" in self.producers or (producer is not None and producer in self.producers)


@dataclass(frozen=True)
class Layers:
    """The queue's own layer, and the policy for new queues when it was created."""

    own: Layer = field(default_factory=dict)
    inherited: Layer = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """All fields that are set: the queue's own over the inherited ones."""
        return _over(self.own, self.inherited)

    @property
    def max_age(self) -> str:
        """How long dead letters are kept. `dead_letter_ttl` is another name for it; if a layer has
        both, `max_age` counts.
        """
        for layer in (self.own, self.inherited):
            named = layer.get("dead_letter", {}).get("retention", {}).get("max_age")
            if found := named or layer.get("dead_letter_ttl"):
                return str(found)
        return str(SYSTEM["dead_letter"]["retention"]["max_age"])

    @property
    def replay_rules(self) -> Sequence[Layer]:
        """The rules of automatic replay, as shown; a layer replaces all rules of the one below."""
        rules: Sequence[Layer] = self.document.get("replay_rules", ())
        return rules

    @property
    def own_max_age(self) -> bool:
        """Whether the queue's own layer sets how long its dead letters are kept."""
        named = self.own.get("dead_letter", {}).get("retention", {})
        return "max_age" in named or "dead_letter_ttl" in self.own

    @property
    def own_max_count(self) -> bool:
        """Whether the queue's own layer sets how many dead letters it keeps."""
        return "max_count" in self.own.get("dead_letter", {}).get("retention", {})

    def in_force(self) -> QueueConfig:
        """The configuration in force."""
        return _in_force(self.document, self.max_age)


# The default for queues that have a dead-letter queue.
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
    """The changes in a request: field of the layer → value, or None to reset it.

    `policy` is for `_default`, which may not be `drop_oldest`: it must be chosen for each queue
    (ojs-backpressure, section 5.3). Raises InvalidRequest naming the field.
    """
    if not isinstance(raw, Mapping):
        raise InvalidRequest(prefix.rstrip(".") or "body", "must be a JSON object", value=raw)
    try:
        given = QueueConfigRequest.model_validate(raw)
    except ValidationError as error:
        raise _plain(envelope.from_pydantic(error, prefix)) from None
    changes = _changes(given)
    if given.replay_rules is not None:
        changes["replay_rules"] = replay_rules.stored_form(given.replay_rules, prefix)
    whole(Layers(merge({}, changes, prefix=prefix)), prefix=prefix)
    if policy and changes.get("overflow_policy") == OverflowPolicy.DROP_OLDEST:
        raise InvalidRequest(
            prefix + _strategy_as_sent(raw),
            "must not be drop_oldest for all queues; choose it for each queue",
            value=OverflowPolicy.DROP_OLDEST.value,
        )
    return changes


def _strategy_as_sent(raw: Mapping[str, Any]) -> str:
    return next(
        (
            name
            for name in ("overflow_policy", "strategy")
            if raw.get(name) == OverflowPolicy.DROP_OLDEST
        ),
        "backpressure.strategy",
    )


def _plain(error: InvalidRequest) -> InvalidRequest:
    """The same error as InvalidRequest (400), also within `default_retry`."""
    return InvalidRequest(error.field, error.reason, details=error.details)


def _is_own_name(name: str) -> bool:
    return name not in _ALIASES


def _changes(given: QueueConfigRequest) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    nested = given.backpressure
    # Nested names first, then flat ones: a later one replaces an earlier one.
    for holder in (nested, given):
        if holder is None:
            continue
        # Of two flat names for one field the layer's own counts: it comes last.
        for name in sorted(holder.model_fields_set - {"backpressure"}, key=_is_own_name):
            value = getattr(holder, name)
            if isinstance(value, BaseModel):
                value = value.model_dump(exclude_unset=True)
            if name == "default_retry" and value is not None:
                value = _retry_by_one_name(value)
            changes[_ALIASES.get(name, name)] = value
    return changes


def _retry_by_one_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """A retry policy by the names that are shown, so that a field set by its alias replaces it."""
    named = {_RETRY_ALIASES.get(name, name): value for name, value in given.items()}
    for alias, name in _RETRY_ALIASES.items():
        if alias in given and given.get(name) is None:
            value = given[alias]
            named[name] = times.format_duration(value) if isinstance(value, int) else value
        elif name in given:
            named[name] = given[name]
    return named


def merge(layer: Layer, changes: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """A layer after changes: values replace, objects are merged, None resets.

    Raises InvalidRequest when the layer becomes too large.
    """
    merged = dict(layer)
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        elif name in _NESTED:
            merged[name] = _given(_over(value, merged.get(name, {})))
            if not merged[name]:
                del merged[name]
        else:
            merged[name] = value
    named = merged.get("tenant_fairness", {}).get("weights", {})
    if len(named) > tenants.MAX_WEIGHTS:
        rule = f"must name at most {tenants.MAX_WEIGHTS} tenants, together with those named before"
        raise InvalidRequest(f"{prefix}tenant_fairness.weights", rule)
    if len(jsontext.dumps(merged).encode("utf-8")) > MAX_LAYER_BYTES:
        # Every push reads the layers.
        largest = max(changes, key=lambda name: len(jsontext.dumps(merged.get(name))))
        raise InvalidRequest(
            prefix + largest,
            f"is too large: all that is set may have {MAX_LAYER_BYTES} bytes together",
        )
    return merged


def _over(above: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of both; those of `above` count, objects are merged field by field."""
    merged = dict(below)
    for name, value in above.items():
        there = merged.get(name)
        both = isinstance(value, Mapping) and isinstance(there, Mapping)
        merged[name] = _over(value, there) if both and there is not None else value
    return merged


def _given(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The layer without null fields and without empty objects."""
    left = {
        name: _given(value) if isinstance(value, Mapping) else value
        for name, value in layer.items()
    }
    return {name: value for name, value in left.items() if value is not None and value != {}}


def whole(layers: Layers, *, prefix: str = "") -> QueueConfig:
    """The configuration in force. Raises InvalidRequest if layers contradict each other: stored,
    they would make every push fail.
    """
    try:
        return layers.in_force()
    except InvalidRequest as error:
        raise InvalidRequest(prefix + error.field, error.reason) from None


def check(before: Layers, own: Layer) -> None:
    """Raise InvalidRequest for a change that contradicts itself, or would lose jobs."""
    lanes = whole(Layers(own, before.inherited)).lanes
    if lanes < before.in_force().lanes:
        raise InvalidRequest("lanes", "must not become fewer: jobs may wait in them", value=lanes)


def shown(layers: Layers) -> dict[str, Any]:
    """The merged configuration as shown. A limit that is not set is absent."""
    document = layers.document
    full = {**SYSTEM, **document}
    for name in _NESTED:
        if name in SYSTEM:
            full[name] = _over(document.get(name, {}), SYSTEM[name])
    if "tenant_fairness" in full:
        full["tenant_fairness"] = tenants.shown(full["tenant_fairness"])
    kept = full["dead_letter"]["retention"] | {"max_age": layers.max_age}
    full["dead_letter"] = full["dead_letter"] | {"retention": kept}
    full = {name: value for name, value in full.items() if not _unlimited(name, value)}
    if "dead_letter_queue" in full:
        full.setdefault("dead_letter_ttl", _DEAD_LETTER_TTL)
    full["backpressure"] = {
        theirs: full[ours]
        for theirs, ours in (
            ("max_depth", "max_size"),
            ("max_size_bytes", "max_size_bytes"),
            ("strategy", "overflow_policy"),
            ("warning_threshold", "warning_threshold"),
        )
        if ours in full
    }
    return full


def check_name(name: str, changes: Mapping[str, Any], *, prefix: str = "") -> None:
    """Raise InvalidRequest for settings that a queue of this name cannot have."""
    if changes.get("dead_letter_queue") == name:
        raise InvalidRequest(f"{prefix}dead_letter_queue", "must be another queue", value=name)
    if name != DEFAULT_QUEUE_POLICY:
        replay_rules.check_queue(changes.get("replay_rules") or (), name, prefix)


def inherited(policy: Layer, name: str) -> Layer:
    """The layer that a new queue of this name inherits from the policy for new queues."""
    # The dead-letter queue of all queues cannot be its own dead-letter queue.
    own = policy.get("dead_letter_queue") == name
    return {key: value for key, value in policy.items() if not own or key != "dead_letter_queue"}


def sources(layers: Layers) -> dict[str, str]:
    """The layer that each field in force comes from: `queue`, `_default` or `system`."""
    found = {name: "system" for name in shown(layers) if name != "backpressure"}
    # `dead_letter_ttl` is another name for a field of `dead_letter`.
    inherited, own = (
        {*layer, *(["dead_letter"] if "dead_letter_ttl" in layer else ())}
        for layer in (layers.inherited, layers.own)
    )
    found |= {name: DEFAULT_QUEUE_POLICY for name in inherited if name in found}
    return found | {name: "queue" for name in own if name in found}


def _unlimited(name: str, value: Any) -> bool:
    return name in ("max_size", "max_size_bytes", "dead_letter_max_size") and value == 0


def _in_force(document: Mapping[str, Any], max_age: str) -> QueueConfig:
    retention = {**SYSTEM["retention"], **document.get("retention", {})}
    seconds = {name: times.duration_ms(text) // 1000 for name, text in retention.items()}
    rate = document.get("rate_limit")
    ttl_ms = times.duration_ms(document.get("dead_letter_ttl", _DEAD_LETTER_TTL))
    dead_letter = _over(document.get("dead_letter", {}), SYSTEM["dead_letter"])
    base = QueueConfig()
    return QueueConfig(
        max_size=document.get("max_size") or None,
        max_size_bytes=document.get("max_size_bytes") or None,
        overflow_policy=OverflowPolicy(document.get("overflow_policy", base.overflow_policy)),
        warning_threshold=float(document.get("warning_threshold", base.warning_threshold)),
        concurrency=document.get("concurrency"),
        rate_limit=rate["limit"] if rate else None,
        rate_period_ms=times.duration_ms(rate["period"]) if rate else 0,
        visibility_ms=document.get("visibility_timeout", base.visibility_ms // 1000) * 1000,
        timeout_ms=document.get("default_timeout", base.timeout_ms // 1000) * 1000,
        retry=_retry(document.get("default_retry")),
        retention=Retention(
            completed_s=seconds["completed"],
            cancelled_s=seconds["cancelled"],
            discarded_s=seconds["discarded"],
        ),
        dead_letter_queue=document.get("dead_letter_queue"),
        dead_letter_max_size=document.get("dead_letter_max_size") or None,
        dead_letter_ttl_ms=ttl_ms,
        dead_letter=DeadLetterRetention(
            max_age_ms=times.duration_ms(max_age),
            max_count=dead_letter["retention"]["max_count"],
            pruning_policy=PruningPolicy(dead_letter["pruning_policy"]),
        ),
        replay_rules=document.get("replay_rules"),
        allowed_job_types=tuple(document.get("allowed_job_types", base.allowed_job_types)),
        producers=tuple(document.get("producers", base.producers)),
        lanes=document.get("lanes", base.lanes),
        tenant_fairness=tenants.in_force(document.get("tenant_fairness", {})),
    )


def _retry(given: Mapping[str, Any] | None) -> RetryPolicy:
    if not given:
        return DEFAULT
    return envelope.RetryRequest.model_validate(dict(given)).over(DEFAULT, "default_retry")
