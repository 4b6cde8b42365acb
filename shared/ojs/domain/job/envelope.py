"""The request to enqueue a job: its fields, limits, and defaults (ojs-core, section 5).

Two formats are accepted: the `options` object of the HTTP binding and the flat envelope of
ojs-core. If a field is in both, `options` takes precedence. Unknown top-level fields are stored and
returned, with a warning unless they start with a prefix of custom fields. Unknown options are
rejected. System-managed fields are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, cast

from ojs.domain import ids, jsontext, tenants, times
from ojs.domain.errors import (
    InvalidRequest,
    MetadataTooLarge,
    OjsError,
    PayloadTooLarge,
    Unsupported,
    ValidationFailed,
)
from ojs.domain.job import foreign
from ojs.domain.job import retry as retries
from ojs.domain.job.durable import NAME_RULE, STEP_NAME, Parent
from ojs.domain.job.job import DEFAULT_QUEUE, SHOWN, SPECVERSION
from ojs.domain.job.retry import BackoffStrategy, OnExhaustion, RetryPolicy
from ojs.domain.job.states import State
from ojs.domain.rate_limit.limiter import RateLimit, RateLimitRequest
from ojs.domain.requests import After, Field, Model
from ojs.records import record

MAX_BATCH = 1_000
MAX_JOB_BYTES = 1_048_576
MAX_META_BYTES = 65_536
MAX_NAME_BYTES = 255
# Maximum bytes of all non-retryable errors of a job. Each write of its record contains them.
MAX_NAMES_BYTES = 2_048
MAX_PRIORITY = 100
MAX_TAGS = 100
MAX_UNIQUE_KEYS = 50
MAX_TIMEOUT_MS = 365 * 86_400_000
MAX_VISIBILITY_MS = 43_200_000
MAX_URI = 2_048
# 400 days, in seconds.
MAX_RESULT_TTL_S = 34_560_000

TYPE_PATTERN = r"[a-z][a-z0-9_\-]*(\.[a-z][a-z0-9_\-]*)*"
# The name, after the ID of its tenant if it has one.
QUEUE_PATTERN = rf"({tenants.ID_PATTERN}:)?[a-z0-9][a-z0-9\-\.]*"
_TYPE = re.compile(TYPE_PATTERN)
_QUEUE = re.compile(QUEUE_PATTERN)
VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,2}")
_SPECVERSION = re.compile(r"1(\.0(\.[0-9]{1,3})?(-rc\.[0-9]{1,3})?)?")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:\S+")

# Fields with the results of earlier workflow steps (`ojs.domain.workflow.results`).
PARENT_FIELDS = ("parent_results", "parent_errors", "parent_results_by_step")

# Fields that the backend sets and that are ignored in requests (ojs-core, section 5.3): the fields
# of responses, except those that clients can also send, and fields of other backends.
SYSTEM_FIELDS = frozenset(SHOWN) - {
    "max_attempts", "metadata", "parent", "priority", "producer", "result_ttl", "scheduled_at",
} | {"errors_omitted", "omitted", *PARENT_FIELDS}  # fmt: skip


def check_step_name(value: str) -> str:
    """Return `value` if it is a valid name of a step. Raises ValueError with the rule."""
    if not STEP_NAME.fullmatch(value):
        raise ValueError(NAME_RULE)
    return value


def check_type(value: str) -> str:
    """Return `value` if it is a valid job type.

    Raises ValueError with the violated rule if it is invalid.
    """
    if len(value) > MAX_NAME_BYTES:
        raise ValueError(f"must have at most {MAX_NAME_BYTES} characters")
    if not _TYPE.fullmatch(value):
        raise ValueError(
            "must be lowercase segments separated by dots. Each segment must start with a letter "
            "and contain only letters, digits, '_', and '-'"
        )
    return value


def check_queue(value: str) -> str:
    """Return `value` if it is a valid queue name.

    Raises ValueError with the violated rule if it is invalid.
    """
    if len(value) > MAX_NAME_BYTES:
        raise ValueError(f"must have at most {MAX_NAME_BYTES} characters")
    if not _QUEUE.fullmatch(value):
        raise ValueError(
            "must start with a lowercase letter or digit and contain only lowercase letters, "
            "digits, '-', and '.'"
        )
    return value


def check_job_id(value: str) -> str:
    """Return `value` if it is a valid job ID.

    Raises ValueError with the violated rule if it is invalid.
    """
    if not ids.is_uuid7(value):
        raise ValueError("must be a lowercase UUIDv7")
    return value


JobType = Annotated[
    str,
    After(check_type),
    Field(json_schema_extra={"pattern": TYPE_PATTERN, "maxLength": MAX_NAME_BYTES}),
]
QueueName = Annotated[
    str,
    After(check_queue),
    Field(json_schema_extra={"pattern": QUEUE_PATTERN, "maxLength": MAX_NAME_BYTES}),
]
JobId = Annotated[str, After(check_job_id), Field(json_schema_extra={"pattern": ids.UUID7.pattern})]


Backoff = Literal["exponential", "linear", "polynomial", "constant", "none"]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES)]
# Setting of a retry policy → its aliases. Names from examples of the specification come last.
RETRY_ALIASES: Mapping[str, tuple[str, ...]] = {
    "initial_interval": ("initial_interval_ms", "base_delay_ms", "initial_delay_ms"),
    "max_interval": ("max_interval_ms",),
    "backoff_strategy": ("backoff_type", "backoff", "strategy"),
}
_IntervalMs = Annotated[int, Field(ge=1, le=times.MAX_DURATION_MS)]


class RetryRequest(Model):
    """A retry policy in a request; absent fields take the queue's or the system's value."""

    max_attempts: int | None = Field(None, ge=0, le=retries.MAX_ATTEMPTS)
    initial_interval: str | None = Field(None, description="ISO 8601 or `5s`, above zero")
    initial_interval_ms: _IntervalMs | None = None
    base_delay_ms: _IntervalMs | None = Field(None, description="the same")
    initial_delay_ms: _IntervalMs | None = Field(None, description="the same")
    backoff_coefficient: float | None = Field(None, ge=1.0, le=1_000.0)
    max_interval: str | None = Field(None, description="ISO 8601 or `5m`")
    max_interval_ms: _IntervalMs | None = None
    jitter: bool | None = None
    backoff_strategy: Backoff | None = None
    backoff_type: Backoff | None = Field(None, description="the same as backoff_strategy")
    backoff: Backoff | None = Field(None, description="the same as backoff_strategy")
    strategy: Backoff | None = Field(None, description="the same as backoff_strategy")
    non_retryable_errors: list[Name] | None = Field(None, max_length=100)
    on_exhaustion: Literal["discard", "dead_letter"] | None = None

    def check_aliases(self, field: str, refusal: type[InvalidRequest] = InvalidRequest) -> None:
        """Raise `refusal` if two aliases of one setting have different values."""
        for setting, aliases in RETRY_ALIASES.items():
            given = {name: self._plain(name) for name in (setting, *aliases)}
            given = {name: value for name, value in given.items() if value is not None}
            last = next(reversed(given), "")
            for name, value in given.items():
                if value != given[last]:
                    same = f"{field}.{last}"
                    rule = f"conflicts with {same}: both set the same value. Send only one of them"
                    raise refusal(f"{field}.{name}", rule)

    def _plain(self, name: str) -> int | str | None:
        """Return the value of a field, with durations in ms, or None if it is missing or invalid.

        `over` reports invalid values.
        """
        value: int | str | None = getattr(self, name)
        if isinstance(value, str) and name.endswith("_interval"):
            try:
                return times.short_duration_ms(value)
            except ValueError:
                return None
        return value

    def _provided(self, setting: str) -> Any:
        """Return the value of a setting, under any of its names."""
        names = (setting, *RETRY_ALIASES[setting])
        return next(filter(None, (getattr(self, name) for name in names)), None)

    def over(self, base: RetryPolicy, field: str = "retry") -> RetryPolicy:
        """Return the policy `base` with the fields of this request. Raises ValidationFailed.

        `field` is the path of the policy in the request, for errors.
        """

        def interval(name: str, default: int) -> int:
            text = getattr(self, name)
            if text is None:
                return default if (ms := self._provided(name)) is None else int(ms)
            try:
                found = times.short_duration_ms(text)
            except ValueError as error:
                raise ValidationFailed(f"{field}.{name}", str(error), value=text) from None
            if found <= 0:
                raise ValidationFailed(f"{field}.{name}", "must be greater than zero", value=text)
            return found

        def chosen(value: Any, default: Any) -> Any:
            return default if value is None else value

        initial = interval("initial_interval", base.initial_ms)
        longest = interval("max_interval", base.max_ms)
        if longest < initial:
            if self.max_interval is not None or self.max_interval_ms is not None:
                raise ValidationFailed(f"{field}.max_interval", "must be at least initial_interval")
            longest = initial
        names = self.non_retryable_errors or ()
        if sum(len(name.encode("utf-8", "replace")) for name in names) > MAX_NAMES_BYTES:
            raise ValidationFailed(
                f"{field}.non_retryable_errors",
                f"must have at most {MAX_NAMES_BYTES} bytes in total",
            )
        strategy = chosen(self._provided("backoff_strategy"), base.strategy)
        return RetryPolicy(
            max_attempts=chosen(self.max_attempts, base.max_attempts),
            initial_ms=initial,
            coefficient=chosen(self.backoff_coefficient, base.coefficient),
            max_ms=longest,
            jitter=chosen(self.jitter, base.jitter),
            strategy=BackoffStrategy("constant" if strategy == "none" else strategy),
            non_retryable=tuple(chosen(self.non_retryable_errors, base.non_retryable)),
            on_exhaustion=OnExhaustion(self.on_exhaustion or base.on_exhaustion),
        )


Dimension = Literal["type", "queue", "args", "meta"]
KeyNames = Annotated[list[Name], Field(min_length=1, max_length=MAX_UNIQUE_KEYS)]


# A list has the meaning of `keys`. A string is the unique key itself, per job type.
UniqueKey = Name | Annotated[list[Dimension], Field(min_length=1, max_length=4)]


class UniqueRequest(Model):
    """A uniqueness policy in a request (ojs-unique-jobs)."""

    keys: list[Dimension] | None = Field(None, min_length=1, max_length=4)
    key: UniqueKey | None = None
    args_keys: KeyNames | None = None
    meta_keys: KeyNames | None = None
    period: str | None = Field(None, description="ISO 8601 duration from creation, or `1h30m`")
    within: str | None = Field(None, description="the same as period")
    period_ms: int | None = Field(None, ge=1, le=times.MAX_DURATION_MS, description="the same")
    states: list[State] | None = Field(None, min_length=1, max_length=8)
    on_conflict: OnConflict | None = None


class Timing(Model):
    """Fields that both formats of the request share."""

    priority: int | None = Field(None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    timeout: int | None = Field(None, ge=1, le=MAX_TIMEOUT_MS // 1000, description="seconds")
    timeout_ms: int | None = Field(None, ge=1, le=MAX_TIMEOUT_MS)
    scheduled_at: str | None = None
    delay_until: str | None = None
    expires_at: str | None = None
    visibility_timeout_ms: int | None = Field(None, ge=1, le=MAX_VISIBILITY_MS)
    pending: bool | None = None
    tags: list[Name] | None = Field(None, max_length=MAX_TAGS)
    max_attempts: int | None = Field(None, ge=0, le=retries.MAX_ATTEMPTS)
    retry: RetryRequest | None = None
    unique: UniqueRequest | None = None
    rate_limit: RateLimitRequest | None = None
    queue: QueueName | None = None
    result_ttl: int | None = Field(
        None,
        ge=0,
        le=MAX_RESULT_TTL_S,
        description="seconds for which the result is shown; 0: it is not stored",
    )


class Options(Timing):
    """`options` of the HTTP binding. An unknown field is refused: it would have no effect."""

    metadata: dict[str, Any] | None = None

    @classmethod
    def unknown_rule(cls, name: str) -> str:
        """Return the error text for an unknown option, with a suggestion if one exists."""
        return foreign.rule(name, cls._readers)


class ParentRequest(Model):
    """The active job that starts a child job and waits for it."""

    job_id: JobId
    name: Annotated[
        str, After(check_step_name), Field(json_schema_extra={"pattern": STEP_NAME.pattern})
    ]
    lease_token: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="lease token of the parent"
    )


class JobRequest(Timing):
    """One job to enqueue. Unknown fields are stored and shown at the top level."""

    unknown = "kept"

    type: JobType
    args: list[Any]
    specversion: str | None = None
    id: JobId | None = None
    meta: dict[str, Any] | None = None
    schema_: str | None = Field(None, alias="schema")
    parent_id: JobId | None = Field(None, description="the job that enqueues this one")
    root_id: JobId | None = Field(None, description="the first job of its line of descent")
    parent: ParentRequest | None = Field(
        None, description="the result of this job is stored for its parent, and wakes it"
    )
    options: Options | None = None

    def choose(self, name: str) -> tuple[Any, str]:
        """Return the value of a shared field and its path.

        A value in `options` takes precedence.
        """
        if self.options is not None and getattr(self.options, name) is not None:
            return getattr(self.options, name), f"options.{name}"
        return getattr(self, name), name

    def value_of(self, name: str) -> Any:
        """Return the value of a shared field. A value in `options` takes precedence."""
        return self.choose(name)[0]


def parse(raw: object, prefix: str = "") -> JobRequest:
    """Parse a request from decoded JSON.

    Raises InvalidRequest or ValidationFailed that names the first invalid field, with `prefix`
    before its path. `details.errors` lists all invalid fields.
    """
    if not isinstance(raw, Mapping):
        raise InvalidRequest(prefix.rstrip(".") or "body", "must be a JSON object", value=raw)
    known = {key: value for key, value in raw.items() if key not in SYSTEM_FIELDS}
    if isinstance(named := known.get("type"), str) and "@" in named:
        known["type"], _, version = named.partition("@")
        if not VERSION.fullmatch(version):
            rule = "must have one to three numbers after '@', for example email.send@2.0"
            raise InvalidRequest(f"{prefix}type", rule, value=named)
        if str(known.setdefault("version", version)) != version:
            raise InvalidRequest(f"{prefix}version", f"must be {version}, as in type")
    for holder, path in ((known, ""), (known.get("options"), "options.")):
        if isinstance(holder, Mapping) and holder.get("result_ttl") == -1:
            field = f"{prefix}{path}result_ttl"
            rule = f"must be at most {MAX_RESULT_TTL_S}. Results are not stored forever"
            raise Unsupported(f"'{field}': {rule}.", field=field)
    return JobRequest.model_validate(known, prefix)


def warnings(request: JobRequest, prefix: str = "") -> list[str]:
    """Warnings about unknown top-level fields of a request."""
    if not request.model_extra:
        return []
    known = (field.alias or name for name, field in JobRequest.model_fields.items())
    return foreign.warnings(request.model_extra, known, prefix)


class OnConflict(StrEnum):
    """The action if another job has the unique key of a new job."""

    REJECT = "reject"
    REPLACE = "replace"
    REPLACE_EXCEPT_SCHEDULE = "replace_except_schedule"
    IGNORE = "ignore"


@record(frozen=True)
class Unique:
    """A uniqueness policy with its defaults. If `period_ms` is None, the period has no end.

    `path` is its path in the request.
    """

    keys: frozenset[str]
    args_keys: tuple[str, ...] | None
    meta_keys: tuple[str, ...] | None
    period_ms: int | None
    states: frozenset[str]
    on_conflict: OnConflict
    # The unique key that the client chose. It applies per job type.
    custom: str | None = None
    path: str = "unique"


@record(frozen=True)
class Specification:
    """A valid request with resolved defaults and times. Times in milliseconds."""

    id: str | None
    type: str
    queue: str
    priority: int
    pending: bool
    scheduled_ms: int | None
    expires_ms: int | None
    timeout_ms: int | None
    visibility_ms: int | None
    policy: RetryPolicy
    unique: Unique | None
    content: dict[str, Any]
    limit: RateLimit | None = None
    parent: Parent | None = None
    result_ttl_s: int | None = None


def resolve(
    request: JobRequest, *, now_ms: int, base: RetryPolicy = retries.DEFAULT, prefix: str = ""
) -> Specification:
    """Resolve the defaults and the times of a request.

    Args:
        request: Parsed request.
        now_ms: Current time in milliseconds since the epoch.
        base: Retry policy for absent fields. Default: the system's.
        prefix: Prefix of field names in errors. Default: none.

    Raises:
        InvalidRequest: A time or a reference is invalid, or two fields conflict.
        ValidationFailed: A field breaks a rule of a policy.
        PayloadTooLarge: The payload is larger than `MAX_JOB_BYTES`.
        MetadataTooLarge: `meta` is larger than `MAX_META_BYTES`.
    """
    _check_references(request, prefix)
    content = _content(request)
    policy = _policy(request, base, prefix)
    timeout_ms = _timeout(request, content)
    scheduled_ms = _moment(request, ("delay_until", "scheduled_at"), content, now_ms, prefix)
    expires_ms = _moment(request, ("expires_at",), content, now_ms, prefix)
    in_future = scheduled_ms is not None and scheduled_ms > now_ms
    pending, pending_path = request.choose("pending")
    if pending and in_future:
        raise InvalidRequest(
            prefix + pending_path, "can't be combined with a start time in the future"
        )
    for key, value in request.model_extra.items():
        content.setdefault(key, value)
    _check_sizes(content, request.meta, prefix)
    limit: RateLimitRequest | None = request.value_of("rate_limit")
    queue = request.value_of("queue") or DEFAULT_QUEUE
    tenant = tenants.get_tenant(queue)
    if tenant is not None:
        content["meta"] = _tenant_meta(request.meta or {}, tenant, prefix)
    return Specification(
        id=request.id,
        type=request.type,
        queue=queue,
        priority=request.value_of("priority") or 0,
        pending=bool(pending),
        scheduled_ms=scheduled_ms if in_future else None,
        expires_ms=expires_ms,
        timeout_ms=timeout_ms,
        visibility_ms=request.value_of("visibility_timeout_ms"),
        policy=policy,
        unique=_unique(request, prefix),
        content=content,
        limit=None if limit is None else limit.limit(tenant),
        parent=_parent(request, prefix),
        result_ttl_s=request.value_of("result_ttl"),
    )


def _tenant_meta(meta: Mapping[str, Any], tenant: str, prefix: str) -> dict[str, Any]:
    """Return the `meta` of a tenant's job. Raises InvalidRequest if it names another tenant."""
    given = meta.get("tenant_id", tenant)
    if given != tenant:
        rule = f"must be '{tenant}', the tenant of the job's queue, or absent"
        raise InvalidRequest(f"{prefix}meta.tenant_id", rule, value=given)
    return {**meta, "tenant_id": tenant}


def _parent(request: JobRequest, prefix: str) -> Parent | None:
    """Return the parent that was checked before (`ojs.services.jobs.children`)."""
    checked: object = request.parent
    if checked is None or isinstance(checked, Parent):
        return checked
    rule = "is only supported for jobs that are enqueued with POST /jobs or POST /jobs/batch"
    raise InvalidRequest(f"{prefix}parent", rule)


def _check_references(request: JobRequest, prefix: str) -> None:
    version = request.specversion
    if version is not None and not _SPECVERSION.fullmatch(version):
        raise InvalidRequest(
            f"{prefix}specversion", "must be 1.0 or a compatible version", value=version
        )
    schema = request.schema_
    if schema is not None and not (len(schema) <= MAX_URI and _URI.fullmatch(schema)):
        raise InvalidRequest(f"{prefix}schema", "must be a URI", value=schema)


def _content(request: JobRequest) -> dict[str, Any]:
    """Return the payload: the fields that are only stored and returned."""
    content: dict[str, Any] = {"args": request.args}
    if request.specversion not in (None, SPECVERSION):
        content["specversion"] = request.specversion
    if request.meta:
        content["meta"] = request.meta
    if request.schema_ is not None:
        content["schema"] = request.schema_
    for name in ("parent_id", "root_id"):
        if (job_id := getattr(request, name)) is not None:
            content[name] = job_id
    for name in ("tags", "retry", "unique", "rate_limit", "visibility_timeout_ms"):
        if (value := request.value_of(name)) is not None:
            shown = value.model_dump(exclude_none=True) if isinstance(value, Model) else value
            content[name] = shown
    if request.options is not None and request.options.metadata is not None:
        content["options"] = {"metadata": request.options.metadata}
    return content


def _policy(request: JobRequest, base: RetryPolicy, prefix: str) -> RetryPolicy:
    requested, path = request.choose("retry")
    attempts, attempts_path = request.choose("max_attempts")
    retry: RetryRequest = requested or RetryRequest()
    retry.check_aliases(prefix + path, ValidationFailed)
    # `retry.max_attempts` takes precedence over `max_attempts`, except if only the latter is in
    # `options`.
    outranked = attempts_path.startswith("options.") and not path.startswith("options.")
    if attempts is not None and (retry.max_attempts is None or outranked):
        retry = retry.model_copy(update={"max_attempts": attempts})
    return retry.over(base, prefix + path)


def _timeout(request: JobRequest, content: dict[str, Any]) -> int | None:
    for holder in (request.options, request):
        if holder is None:
            continue
        if holder.timeout_ms is not None:
            content["timeout_ms"] = holder.timeout_ms
            return holder.timeout_ms
        if holder.timeout is not None:
            content["timeout"] = holder.timeout
            content["timeout_ms"] = holder.timeout * 1000
            return holder.timeout * 1000
    return None


def _moment(
    request: JobRequest,
    names: tuple[str, ...],
    content: dict[str, Any],
    now_ms: int,
    prefix: str,
) -> int | None:
    """Return the first of `names` that is set, in ms.

    A relative time is stored as an absolute one.
    """
    present = [(name, *request.choose(name)) for name in names]
    present = [one for one in present if one[1] is not None]
    if not present:
        return None
    # A value in `options` takes precedence over all top-level values.
    present.sort(key=lambda one: not one[2].startswith("options."))
    name, requested, path = present[0]
    try:
        ms = times.timestamp_ms(requested, now_ms=now_ms)
    except ValueError as error:
        raise InvalidRequest(prefix + path, str(error), value=requested) from None
    shown = "scheduled_at" if name == "delay_until" else name
    content[shown] = times.format_ms(ms) if requested.startswith("+") else requested
    return ms


DEFAULT_UNIQUE_STATES = frozenset({"available", "active", "scheduled", "retryable", "pending"})


def _unique(request: JobRequest, prefix: str) -> Unique | None:
    requested, path = request.choose("unique")
    return (
        None if requested is None else _policy_of(cast("UniqueRequest", requested), prefix + path)
    )


def kept_unique(content: Mapping[str, Any]) -> Unique:
    """Return the uniqueness policy in the payload of a stored job. Raises ValidationFailed."""
    return _policy_of(UniqueRequest.model_validate(content.get("unique") or {}), "unique")


def _period_ms(unique: UniqueRequest, path: str) -> int | None:
    """Return the period of a uniqueness policy in ms, or None if the period has no end."""
    name = "period" if unique.within is None or unique.period is not None else "within"
    if (text := getattr(unique, name)) is None:
        return unique.period_ms
    try:
        ms = times.short_duration_ms(text)
    except ValueError as error:
        raise ValidationFailed(f"{path}.{name}", str(error), value=text) from None
    if ms <= 0:
        raise ValidationFailed(f"{path}.{name}", "must be greater than zero")
    if unique.period_ms not in (None, ms):
        rule = f"conflicts with {path}.{name}: both set the same value. Send only one of them"
        raise ValidationFailed(f"{path}.period_ms", rule)
    return ms


def _policy_of(unique: UniqueRequest, path: str) -> Unique:
    period_ms = _period_ms(unique, path)
    custom = unique.key if isinstance(unique.key, str) else None
    listed = unique.key if isinstance(unique.key, list) else None
    keys = frozenset(unique.keys or listed or ["type"])
    if "meta" in keys and unique.meta_keys is None:
        raise ValidationFailed(f"{path}.meta_keys", "is required if keys contains 'meta'")
    return Unique(
        keys=keys | {"type"},
        args_keys=tuple(unique.args_keys) if unique.args_keys is not None else None,
        meta_keys=tuple(unique.meta_keys) if unique.meta_keys is not None else None,
        period_ms=period_ms,
        states=frozenset(unique.states) if unique.states else DEFAULT_UNIQUE_STATES,
        on_conflict=unique.on_conflict or OnConflict.REJECT,
        custom=custom,
        path=path,
    )


def _check_sizes(content: Mapping[str, Any], meta: Mapping[str, Any] | None, prefix: str) -> None:
    if meta and (size := jsontext.size_of(meta)) > MAX_META_BYTES:
        raise MetadataTooLarge(f"{prefix}meta", size=size, limit=MAX_META_BYTES)
    if (size := jsontext.size_of(content)) > MAX_JOB_BYTES:
        what = f"{prefix}args" if jsontext.size_of(content["args"]) * 2 > size else f"{prefix}body"
        raise PayloadTooLarge(what, size=size, limit=MAX_JOB_BYTES)


def at_index(error: OjsError, index: int) -> OjsError:
    """Add the index of a job in its batch to an error."""
    error.details["index"] = index
    return error
