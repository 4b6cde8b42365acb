"""Request bodies, except the job itself (`ojs.domain.job.envelope.JobRequest`).

Rules for all request bodies:

- Types are strict: "5", 5.0, and true are not the integer 5. In an optional field, null means that
  the field is not set, because SDKs serialize unset options as null.
- All declared fields have an effect. A field that clients know but this server does not support is
  rejected with 422 `unsupported` (`not_offered`), never ignored.
- A configuration (`Configuration`) rejects unknown keys, because a misspelled limit would have no
  effect. Other requests ignore them: workers add facts about themselves (host, runtime version,
  trace IDs), and the specification can add optional request fields within a major version
  (ojs-http-binding section 3.3).
- A rule that types can't express is declared as JSON Schema next to the check (`described`). The
  OpenAPI document then rejects the same requests as the server, as far as JSON Schema allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from ojs.domain import access, ids, times
from ojs.domain.dead_letter.override import JobOverride, JobOverrideRequest
from ojs.domain.errors import InvalidRequest, Unsupported
from ojs.domain.fields import Duration
from ojs.domain.filters.dead_letters import EVERY, FIELDS, FilterRequest
from ojs.domain.filters.jobs import FIELDS as JOB_FIELDS
from ojs.domain.filters.jobs import EraseFilter, JobFilterRequest
from ojs.domain.job import envelope
from ojs.domain.job import failure as failures
from ojs.domain.job.durable import Resumption
from ojs.domain.job.envelope import (
    MAX_BATCH,
    MAX_NAME_BYTES,
    MAX_PRIORITY,
    MAX_VISIBILITY_MS,
    JobId,
    JobRequest,
    Options,
    QueueName,
)
from ojs.domain.job.idempotency import HEADER, MAX_KEY_CHARACTERS
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import PoolName, Weight
from ojs.domain.pool.worker import (
    MAX_FETCH,
    MAX_FETCH_QUEUES,
    MAX_ID_BYTES,
    MAX_NEXT_MS,
    Directive,
    check_new_worker_id,
    check_worker_id,
)
from ojs.domain.queue.config import MAX_CONCURRENCY as MAX_RUNNING
from ojs.domain.queue.config import MAX_RATE, QueueConfigRequest, QueueRateLimit
from ojs.domain.queue.queue import DeletionStrategy
from ojs.domain.requests import (
    MAX_SHOWN,
    NOT_KNOWN,
    After,
    Before,
    Field,
    Model,
    Unknown,
    nearest,
)
from ojs.domain.tenants import ID_PATTERN, check_tenant

MAX_ACTIVE_JOBS = 1_000
MAX_ACTIVE_COUNT = 1_000_000
# Maximum number of acks and nacks in one request. Each requires one or more calls, and the server
# processes 8 in parallel. All of them take a few of the 29 seconds of a request.
MAX_ENDINGS = 1_000
MAX_LABELS = 100
MAX_ATTEMPT = 1_000_000
# IDs of WebSocket connections, which API Gateway creates.
_CONNECTION = r"[A-Za-z0-9_=+/-]{1,128}"
MAX_PID = 2**32
MAX_CONCURRENCY = 100_000
MAX_PROGRESS_MESSAGE = 10_000
MAX_REASON = 1_000
CONFIRM = "must be true, because the operation affects many jobs and can't be undone"
_TRUE: dict[str, Any] = {"const": True}

# The states that a worker can report. The first three are also directives (ojs-worker-protocol).
# Clients with the graceful-shutdown extension report the others.
WorkerState = Literal[
    "running", "quiet", "terminate", "terminating", "drain", "draining", "shutting_down"
]
WorkflowKind = Literal["chain", "group", "batch", "dag"]
# Values of `StepTrigger` and `RetryMode`. A cold start without workflows skips their modules.
StepTriggerName = Literal["all_succeeded", "all_done", "any_failed"]
RetryModeName = Literal["all", "failed", "failed_and_following"]


def _check_connection(value: str) -> str:
    if re.fullmatch(_CONNECTION, value) is None:
        raise ValueError("must have 1 to 128 letters, digits, or any of - _ = + /")
    return value


WORKER_ID_SCHEMA: Mapping[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_ID_BYTES,
    # Excludes unprintable characters, as far as all JSON Schema validators can match them.
    "pattern": r"[^|\u0000-\u001f\u007f-\u00a0\u00ad\u2028\u2029]+",
    "description": f"printable characters other than '|', at most {MAX_ID_BYTES} bytes of UTF-8",
}
WorkerId = Annotated[
    str,
    After(check_worker_id),
    Field(json_schema_extra=dict(WORKER_ID_SCHEMA)),
]
NEW_WORKER_ID_SCHEMA: Mapping[str, Any] = {
    **WORKER_ID_SCHEMA,
    "pattern": r"[^|/%\u0000-\u001f\u007f-\u00a0\u00ad\u2028\u2029]+",
    "description": f"printable, without '|', '/' and '%', at most {MAX_ID_BYTES} bytes of UTF-8",
}
NewWorkerId = Annotated[
    str,
    After(check_new_worker_id),
    Field(json_schema_extra=dict(NEW_WORKER_ID_SCHEMA)),
]
ConnectionId = Annotated[
    str,
    After(_check_connection),
    Field(
        json_schema_extra={
            "type": "string",
            "pattern": _CONNECTION,
            "description": "ID in the response to `hello`",
        }
    ),
]
ShortText = Annotated[str, Field(max_length=MAX_NAME_BYTES)]
VisibilityMs = Annotated[
    int, Field(ge=1, le=MAX_VISIBILITY_MS, description="lease length in ms, at most 12 h")
]
Attempt = Annotated[
    int,
    Field(ge=1, le=MAX_ATTEMPT, description="refused when the job is on another attempt by now"),
]
LeaseToken = Annotated[
    str,
    Field(min_length=1, max_length=64, description="refused when the lease is another by now"),
]


class RequestModel(Model):
    """Base of all request bodies."""

    unknown: ClassVar[Unknown] = "ignored"
    # Field → reason why it is rejected.
    not_offered: ClassVar[Mapping[str, str]] = {}
    # JSON Schema keywords for rules that types can't express.
    described: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def refuse(cls, raw: Mapping[str, Any]) -> None:
        """Raise Unsupported for a field of an unsupported feature."""
        for name, reason in cls.not_offered.items():
            if raw.get(name) is not None:
                raise Unsupported(f"'{name}': {reason}", field=name)

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest for rules that types can't express. `prefix` precedes fields."""


class Configuration(RequestModel):
    """Base of requests that reject unknown fields, which would have no effect."""

    unknown = "refused"


Body = TypeVar("Body", bound=RequestModel)


def parse(model: type[Body], raw: Mapping[str, Any], prefix: str = "") -> Body:
    """Read a request body and check its rules.

    Args:
        model: Type of the request.
        raw: The JSON object.
        prefix: Precedes the names of fields in errors.

    Raises:
        InvalidRequest: A field is invalid.
        Unsupported: A field requests a feature that this server does not support.
    """
    model.refuse(raw)
    body = model.model_validate(raw, prefix)
    body.check(prefix)
    return body


_STRATEGY = Field(
    None,
    description="order over several queues, unless a pool decides; round-robin when not given, "
    "weighted when there are weights",
)
_WEIGHTS = Field(None, max_length=MAX_FETCH_QUEUES, description="by queue; for weighted")
_POOL = Field(
    None,
    description="the worker pool that the worker belongs to; 409 when it is in another. Without "
    "one it is in the pool `default`",
)


def _check_strategy(
    queues: Sequence[str] | None,
    strategy: str | None,
    weights: Mapping[str, int] | None,
    prefix: str,
) -> None:
    """Raise InvalidRequest for weights that the strategy requires or doesn't use."""
    for name in weights or ():
        if queues is not None and name not in queues:
            raise InvalidRequest(
                f"{prefix}weights.{name}", "names a queue that is missing in queues", value=name
            )
    if strategy == DispatchStrategy.WEIGHTED:
        for name in queues or ():
            if name not in (weights or {}):
                rule = "is required, because each queue must have a weight with strategy weighted"
                raise InvalidRequest(f"{prefix}weights.{name}", rule)
        if not weights:
            raise InvalidRequest(f"{prefix}weights", "is required with strategy weighted")
    elif strategy is not None and weights:
        rule = f"can't be combined with strategy {strategy}. Use strategy weighted"
        raise InvalidRequest(f"{prefix}weights", rule)


class Listen(RequestModel):
    """The connection of a worker, which is rung for new jobs while the worker has a free slot."""

    connection: ConnectionId
    listed: bool | None = Field(
        None, description="as the last fetch returned it; null when its answer was lost"
    )


class FetchRequest(RequestModel):
    """Claim jobs from one or more queues. Default: the queues of the worker's pool."""

    queues: list[QueueName] = Field(
        (),
        min_length=1,
        max_length=MAX_FETCH_QUEUES,
        description="all of the worker's pool when not given",
    )
    count: Annotated[int, Field(ge=1, le=MAX_FETCH)] | None = Field(
        None, description="maximum number of jobs; default 1"
    )
    worker_id: WorkerId | None = None
    visibility_timeout_ms: VisibilityMs | None = None
    strategy: DispatchStrategy | None = _STRATEGY
    weights: dict[str, Weight] | None = _WEIGHTS
    pool: PoolName | None = _POOL
    acks: Annotated[list[AckRequest], Field(max_length=MAX_ENDINGS)] | None = Field(
        None, description="jobs that are done; they are settled first, as by `/workers/ack`"
    )
    nacks: Annotated[list[NackRequest], Field(max_length=MAX_ENDINGS)] | None = Field(
        None, description=f"jobs that failed, after the acks; {MAX_ENDINGS} with these at most"
    )
    rung: list[QueueName] = Field(
        (),
        max_length=MAX_FETCH_QUEUES,
        description="queues of the fetch that the connection was rung for",
    )
    listen: Listen | None = None

    not_offered: ClassVar[Mapping[str, str]] = {
        "types": "is not supported. Use a separate queue for each job type.",
        "job_types": "is not supported. Use a separate queue for each job type.",
        "tags": "is not supported. Use a separate queue for each tag.",
        "wait": "is not supported, because a fetch does not block. Poll instead.",
    }
    described: ClassVar[Mapping[str, Any]] = {
        "anyOf": [{"required": [name]} for name in ("queues", "pool", "worker_id")]
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest for invalid weights, an invalid nack, or too many entries."""
        if not (self.queues or self.pool or self.worker_id):
            raise InvalidRequest(f"{prefix}queues", "is required, or pool or worker_id")
        _check_strategy(self.queues or None, self.strategy, self.weights, prefix)
        for index, queue in enumerate(self.rung):
            if self.queues and queue not in self.queues:
                rule = "must be one of the queues of the fetch"
                raise InvalidRequest(f"{prefix}rung[{index}]", rule, value=queue)
        _check_nacks(self.nacks or (), prefix)
        if len(self.acks or ()) + len(self.nacks or ()) > MAX_ENDINGS:
            rule = f"must have at most {MAX_ENDINGS} items, including the items of acks"
            raise InvalidRequest(f"{prefix}nacks", rule)

    def order(self) -> str | None:
        """Return the requested strategy, or None."""
        return self.strategy or (DispatchStrategy.WEIGHTED.value if self.weights else None)

    def endings(self) -> tuple[list[Ending], list[Ending]]:
        """Return the acks and the nacks in this request."""
        return _endings(self.acks or (), self.worker_id), _endings(self.nacks or (), self.worker_id)


class _Lease(RequestModel):
    """Fields that prove that the worker still has the lease of a job."""

    worker_id: WorkerId | None = None
    attempt: Attempt | None = None
    lease_token: LeaseToken | None = None

    def _holder(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _Lease.model_fields}


class AckOptions(_Lease):
    """Acknowledge the completed job in the path."""

    result: Any = Field(None, description="any JSON value; null counts as a value")

    def outcome(self) -> dict[str, Any]:
        """Return the arguments of the use case, without the job. A null result is a result."""
        result = {"result": self.result} if "result" in self.model_fields_set else {}
        return self._holder() | result


class AckRequest(AckOptions):
    """A job is done."""

    job_id: JobId


def _texts(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return value
    raise ValueError("must be a string or an array of strings")


def _queue_pattern(value: str) -> str:
    stem = value.removesuffix("*")
    # The text before the asterisk is the start of a name. A single asterisk matches all names.
    envelope.check_queue(stem if stem == value else f"{stem}a")
    return value


QueuePattern = Annotated[
    str,
    Field(max_length=MAX_NAME_BYTES),
    After(_queue_pattern),
    Field(description="a queue's name, or the beginning of some and '*'"),
]


def _moment(value: str) -> str:
    times.timestamp_ms(value, now_ms=0)
    return value


class ErrorReport(RequestModel):
    """What went wrong. Long texts are cut: 50 frames or 10 000 characters of backtrace."""

    unknown = "kept"

    code: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="free text; DISCARD and DEAD_LETTER decide the outcome"
    )
    type: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="class of the error, matched by non_retryable_errors"
    )
    message: str | None = None
    retryable: bool | None = Field(None, description="true when not given")
    rate_limit_until: (
        Annotated[
            str,
            After(_moment),
            Field(description="no job with the same rate limit key starts before this time"),
        ]
        | None
    ) = None
    details: dict[str, Any] | None = None
    backtrace: Annotated[
        Any,
        Before(_texts),
        Field(json_schema_extra={"type": ["array", "string", "null"], "items": {"type": "string"}}),
    ] = None


def _one_of(*fields: tuple[str, str]) -> dict[str, Any]:
    """Build a JSON Schema that requires at least one of these fields (name, JSON type)."""
    return {
        "anyOf": [
            {"required": [name], "properties": {name: {"type": kind}}} for name, kind in fields
        ]
    }


class NackOptions(_Lease):
    """Report the failure of the job in the path."""

    error: ErrorReport | None = Field(None, description="required unless requeue is true")
    requeue: bool | None = Field(
        None, description="hand the job back unprocessed: available at once"
    )
    suspend: dict[str, Any] | None = Field(
        None,
        description="what the code of the job waits for, instead of an error: mode (any, all) and "
        "waits: up to 50 of kind (sleep, signal, job, time), name, until or for",
    )

    described: ClassVar[Mapping[str, Any]] = {
        "anyOf": [
            {
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        **_one_of(("code", "string"), ("type", "string"), ("message", "string")),
                    }
                },
            },
            {"required": ["requeue"], "properties": {"requeue": {"const": True}}},
            {"required": ["suspend"], "properties": {"suspend": {"type": "object"}}},
        ]
    }

    def outcome(self) -> dict[str, Any]:
        """Return the arguments of the use case, without the job.

        Raises:
            InvalidRequest: The request has no error and doesn't return the job to its queue.
        """
        if self.suspend is not None:
            if self.error is not None or self.requeue:
                raise InvalidRequest("suspend", "can't be combined with error or requeue")
            return self._holder() | {"error": None, "suspend": self.suspend}
        if self.error is None and not self.requeue:
            raise InvalidRequest("error", "is required unless requeue is true or suspend is set")
        error = None if self.error is None else self.error.model_dump(exclude_unset=True)
        return self._holder() | {"error": error, "requeue": bool(self.requeue)}


class NackRequest(NackOptions):
    """A job failed."""

    job_id: JobId


# The ID of a job, and the other arguments of the use case.
Ending = tuple[str, dict[str, Any]]


def _endings(entries: Sequence[AckRequest | NackRequest], worker_id: str | None) -> list[Ending]:
    """Return acks or nacks. The default of their worker ID is that of the request."""
    found = [(entry.job_id, entry.outcome()) for entry in entries]
    return [
        (job_id, told if told["worker_id"] is not None else told | {"worker_id": worker_id})
        for job_id, told in found
    ]


def _check_nacks(nacks: Sequence[NackRequest], prefix: str) -> None:
    """Raise InvalidRequest for the first nack whose error is missing or empty."""
    for at, nack in enumerate(nacks):
        try:
            told = nack.outcome()
            if told["error"] is not None:
                failures.reported(told["error"], attempt=1, now_ms=0)
        except InvalidRequest as error:
            raise InvalidRequest(f"{prefix}nacks[{at}].{error.field}", error.reason) from None


def _inside(one: type[Model]) -> dict[str, str]:
    """Return the fields that belong to each entry of a batch, with the error for other places."""
    return dict.fromkeys(
        sorted(one.model_fields.keys() - {"worker_id"}),
        "can't be combined with the list. Set it in each item",
    )


def _none_of(names: Iterable[str]) -> dict[str, Any]:
    return {"not": {"anyOf": [{"required": [name]} for name in names]}}


class _Many(RequestModel):
    """Several acks or nacks in one request. Each entry contains the fields of its job."""

    worker_id: WorkerId | None = Field(None, description="whose they are, unless they say")

    misplaced: ClassVar[Mapping[str, str]]

    @classmethod
    def refuse(cls, raw: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for a field that belongs to an entry of the list."""
        super().refuse(raw)
        for name, rule in cls.misplaced.items():
            if name in raw:
                raise InvalidRequest(name, rule)


class AcksRequest(_Many):
    """Many jobs are done: each is settled, and answered, for itself."""

    acks: list[AckRequest] = Field(min_length=1, max_length=MAX_ENDINGS)

    misplaced = _inside(AckRequest)
    described: ClassVar[Mapping[str, Any]] = _none_of(misplaced)
    not_offered: ClassVar[Mapping[str, str]] = {
        "nacks": "can't be sent to this path. Use /workers/nack, or send both with the next fetch."
    }

    def endings(self) -> list[Ending]:
        """Return the entries of the request."""
        return _endings(self.acks, self.worker_id)


class NacksRequest(_Many):
    """Many jobs failed: each is settled, and answered, for itself."""

    nacks: list[NackRequest] = Field(min_length=1, max_length=MAX_ENDINGS)

    misplaced = _inside(NackRequest)
    described: ClassVar[Mapping[str, Any]] = _none_of(misplaced)
    not_offered: ClassVar[Mapping[str, str]] = {
        "acks": "can't be sent to this path. Use /workers/ack, or send both with the next fetch."
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest for the first nack whose error is missing or empty."""
        _check_nacks(self.nacks, prefix)

    def endings(self) -> list[Ending]:
        """Return the entries of the request."""
        return _endings(self.nacks, self.worker_id)


def _labels(value: Any) -> Any:
    if value is None:
        return None
    names, texts = (value, value.values()) if isinstance(value, dict) else ((), value)
    if not isinstance(value, list | dict) or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be an array of strings or an object with string values")
    if len(value) > MAX_LABELS or any(len(text) > MAX_NAME_BYTES for text in (*texts, *names)):
        raise ValueError(
            f"must have at most {MAX_LABELS} labels of at most {MAX_NAME_BYTES} characters"
        )
    return value


class WorkerInfo(RequestModel):
    """The properties that a worker reports."""

    hostname: ShortText | None = None
    pid: Annotated[int, Field(ge=0, le=MAX_PID)] | None = None
    queues: Annotated[list[QueueName], Field(max_length=MAX_FETCH_QUEUES)] | None = None
    concurrency: Annotated[int, Field(ge=0, le=MAX_CONCURRENCY)] | None = None
    labels: Annotated[
        Any,
        Before(_labels),
        Field(
            json_schema_extra={
                "type": ["array", "object", "null"],
                "items": {"type": "string", "maxLength": MAX_NAME_BYTES},
                "maxItems": MAX_LABELS,
                "additionalProperties": {"type": "string", "maxLength": MAX_NAME_BYTES},
                "propertyNames": {"maxLength": MAX_NAME_BYTES},
                "maxProperties": MAX_LABELS,
            }
        ),
    ] = None
    started_at: Annotated[str, Field(max_length=64)] | None = None
    version: ShortText | None = None
    strategy: DispatchStrategy | None = _STRATEGY
    weights: dict[str, Weight] | None = _WEIGHTS
    pool: PoolName | None = _POOL

    not_offered: ClassVar[Mapping[str, str]] = {
        "handlers": "is not supported, because jobs are not dispatched by type or version. Use a "
        "separate queue for each."
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest if the weights don't match the strategy or the queues."""
        _check_strategy(self.queues, self.strategy, self.weights, prefix)

    def info(self) -> dict[str, Any]:
        """Return the fields that are set, without the pool, for the record of the worker."""
        info = self.model_dump(include=set(WorkerInfo.model_fields) - {"pool"}, exclude_none=True)
        return {"strategy": DispatchStrategy.WEIGHTED.value, **info} if self.weights else info


def _active(value: Any) -> Any:
    if value is None or (isinstance(value, list) and len(value) <= MAX_ACTIVE_JOBS):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_ACTIVE_COUNT:
        return value
    raise ValueError(f"must be an array of at most {MAX_ACTIVE_JOBS} job ids or a number of jobs")


ActiveJobs = Annotated[
    Any,
    Before(_active),
    Field(
        json_schema_extra={
            "type": ["array", "integer", "null"],
            "items": {"type": "string", "pattern": ids.UUID7.pattern},
            "maxItems": MAX_ACTIVE_JOBS,
            "minimum": 0,
            "maximum": MAX_ACTIVE_COUNT,
        }
    ),
]


class _Busy(WorkerInfo):
    """The properties of a worker, with the IDs or the number of its active jobs."""

    worker_id: WorkerId
    active_jobs: ActiveJobs = None
    active_job_ids: Annotated[list[Any], Field(max_length=MAX_ACTIVE_JOBS)] | None = Field(
        None,
        json_schema_extra={"items": {"type": "string", "pattern": ids.UUID7.pattern}},
    )

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest for the first malformed ID, or for too many IDs."""
        for field in ("active_jobs", "active_job_ids"):
            listed = getattr(self, field)
            for index, value in enumerate(listed if isinstance(listed, list) else ()):
                if not ids.is_uuid7(value):
                    place = f"{prefix}{field}[{index}]"
                    raise InvalidRequest(place, "must be a lowercase UUIDv7", value=value)
        if len(self.job_ids()) > MAX_ACTIVE_JOBS:
            rule = f"must have at most {MAX_ACTIVE_JOBS} ids together with active_jobs"
            raise InvalidRequest(f"{prefix}active_job_ids", rule)

    def job_ids(self) -> list[str]:
        """Return the IDs of the active jobs, without duplicates."""
        listed = self.active_jobs if isinstance(self.active_jobs, list) else []
        return list(dict.fromkeys([*listed, *(self.active_job_ids or [])]))

    def count(self) -> int | None:
        """Return the number of active jobs if the request has a number, or None."""
        return self.active_jobs if isinstance(self.active_jobs, int) else None


class HeartbeatRequest(_Busy):
    """A worker is alive and continues its jobs."""

    state: WorkerState | None = None
    visibility_timeout_ms: VisibilityMs | None = None
    next_ms: Annotated[int, Field(ge=0, le=MAX_NEXT_MS)] | None = Field(
        None,
        description="time to the next heartbeat, of an idle worker that listens; the worker is "
        "not stale before",
    )


class BeatRequest(_Busy):
    """A worker announces that it drains (graceful-shutdown extension)."""

    state: WorkerState


class RegisterRequest(WorkerInfo):
    """The registration of a worker. `id` is used if `worker_id` is missing."""

    worker_id: NewWorkerId

    described: ClassVar[Mapping[str, Any]] = {
        **WorkerInfo.described,
        "required": [],
        "anyOf": [
            {"required": ["worker_id"]},
            {
                "not": {"required": ["worker_id"]},
                "required": ["id"],
                "properties": {"id": NEW_WORKER_ID_SCHEMA},
            },
        ],
    }


# Workers can add facts about themselves. A name that is at least this similar to that of a field is
# a typing error, such as `concurency`. `os_version` is less similar to `version`.
SLIP = 0.85
_REGISTERED = frozenset({"worker", "id", *RegisterRequest.model_fields})


def registration(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Read a registration, whose fields can be inside `worker`.

    Returns:
        The fields, and the prefix of their names in errors.

    Raises:
        InvalidRequest: `worker` is not an object, a name is nearly that of a field, or two places
            have different values.
    """
    prefix = ""
    _check_slips(raw, prefix)
    if "worker" in raw:
        inner, prefix = raw["worker"], "worker."
        if not isinstance(inner, Mapping):
            raise InvalidRequest("worker", "must be an object", value=inner)
        _check_slips(inner, prefix)
        for name in _REGISTERED & raw.keys() - {"worker"}:
            if raw[name] != inner.get(name):
                rule = f"conflicts with worker.{name}. Omit this field"
                raise InvalidRequest(name, rule)
        raw = inner
    if "id" in raw:
        worker_id = raw.get("worker_id", raw["id"])
        if worker_id != raw["id"]:
            rule = f"must have the same value as {prefix}worker_id. Send only one of them"
            raise InvalidRequest(f"{prefix}id", rule)
        raw = {**raw, "worker_id": worker_id}
    return raw, prefix


def _check_slips(raw: Mapping[str, Any], prefix: str) -> None:
    for name in raw:
        meant = None if name in _REGISTERED else nearest(name, _REGISTERED, least=SLIP)
        if meant is not None:
            rule = f"{NOT_KNOWN}. Did you mean '{meant}'?"
            raise InvalidRequest(prefix + name[:MAX_SHOWN], rule)


class _Report(RequestModel):
    message: Annotated[str, Field(max_length=MAX_PROGRESS_MESSAGE)] | None = None
    data: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = Field(
        None, description="saved as the checkpoint of the job, if the report isn't ignored"
    )
    lease_token: LeaseToken | None = None


class ProgressRequest(_Report):
    """The progress of a job: a number, data, or both, and optionally a message."""

    progress: float | None = Field(None, description="0 to 1; values outside are clamped")
    worker_id: WorkerId | None = None

    described = _one_of(("progress", "number"), ("data", "object"))


class WorkerProgressRequest(_Report):
    """The progress of a job in percent."""

    job_id: JobId
    worker_id: WorkerId | None = None
    percentage: float | None = Field(None, description="0 to 100; values outside are clamped")

    described = _one_of(("percentage", "number"), ("data", "object"))


class DirectiveRequest(RequestModel):
    """The directive that a worker receives with its next heartbeat."""

    worker_id: WorkerId
    directive: Directive


class _Retrying(Configuration):
    """Fields of requests that retry dead letters."""

    steps: Resumption | None = Field(
        None, description="clear: the code of the job runs from the beginning"
    )
    checkpoint: Resumption | None = Field(None, description="clear: the job has no checkpoint")

    def cleared(self) -> list[str]:
        """Return what a job continues without."""
        return [name for name in ("steps", "checkpoint") if getattr(self, name) is Resumption.CLEAR]


class RetryDeadLetterRequest(_Retrying):
    """Retry a dead letter, unchanged or with changes."""

    override: JobOverrideRequest | None = None

    @classmethod
    def refuse(cls, raw: Mapping[str, Any]) -> None:
        """Raise Unsupported for a field of an unsupported feature, also inside `override`."""
        super().refuse(raw)
        JobOverrideRequest.refuse(raw.get("override"))

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest if two names of one setting in `override` have different values."""
        if self.override is not None:
            self.override.check()

    def changes(self) -> JobOverride:
        """Return the changes to the job."""
        return JobOverride() if self.override is None else self.override.override()


class _BulkRequest(Configuration):
    """Base of bulk requests for dead letters.

    Unknown, empty, and null fields are rejected, because a misspelled filter would select more jobs
    than intended.
    """

    filled = True

    filter: FilterRequest | None = Field(
        None, description="which dead letters", json_schema_extra={"minProperties": 1}
    )
    all: bool | None = Field(
        None, description="all dead letters, instead of a filter", json_schema_extra=_TRUE
    )
    confirm: bool | None = Field(None, description="needed", json_schema_extra=_TRUE)

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest for a field that is false but can only be true."""
        if self.all is False:
            raise InvalidRequest(f"{prefix}all", EVERY, value=False)
        if self.confirm is False:
            raise InvalidRequest(f"{prefix}confirm", CONFIRM, value=False)

    def filters(self) -> dict[str, Mapping[str, Any]]:
        """Return the filters that are set, by the prefix of their field names."""
        return {} if self.filter is None else {"filter.": self.filter.model_dump(exclude_none=True)}


class RetryDeadLettersRequest(_BulkRequest, _Retrying):
    """Retry the dead letters that match a filter, or all dead letters."""

    # Either `filter` or `all`, and `confirm`.
    described: ClassVar[Mapping[str, Any]] = {
        "required": ["confirm"],
        "oneOf": [{"required": ["filter"]}, {"required": ["all"]}],
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest if the confirmation is missing."""
        super().check(prefix)
        if self.confirm is None:
            raise InvalidRequest(f"{prefix}confirm", CONFIRM)


class PurgeDeadLettersRequest(_BulkRequest, FilterRequest):
    """Purge the dead letters that match a filter, or all dead letters.

    The filter is under `filter`, at the top level, or in the query.
    """

    confirm: bool | None = Field(
        None, description="needed, here or in the query", json_schema_extra=_TRUE
    )

    described: ClassVar[Mapping[str, Any]] = {
        "not": {
            "anyOf": [
                *({"required": ["all", name]} for name in ("filter", *FIELDS)),
                *({"required": ["filter", name]} for name in FIELDS),
            ]
        },
    }

    def filters(self) -> dict[str, Mapping[str, Any]]:
        """Return the filters that are set, by the prefix of their field names."""
        own = self.model_dump(exclude_none=True, include=set(FIELDS))
        return super().filters() | ({"": own} if own else {})


class ConfigureQueueRequest(Configuration, QueueConfigRequest):
    """Fields of a queue's configuration. Omitted fields are unchanged; null resets a field.

    Described here; parsed by `ojs.domain.queue.config.parse`.
    """


class QueueLimitsRequest(Configuration):
    """A queue's own limits: the rate as `limit` and `period`, or under `rate_limit` or `rate`.
    Omitted fields are unchanged; null resets a field.
    """

    not_offered: ClassVar[Mapping[str, str]] = {
        "throttle": "is not supported for queues. Set throttle in the rate_limit of a job."
    }

    limit: Annotated[int, Field(ge=1, le=MAX_RATE)] | None = None
    period: Duration | None = Field(None, description="ISO 8601 duration")
    rate_limit: QueueRateLimit | None = None
    rate: QueueRateLimit | None = None
    concurrency: Annotated[int, Field(ge=1, le=MAX_RUNNING)] | None = None

    described: ClassVar[Mapping[str, Any]] = {
        "properties": {
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_RATE},
            "period": {"type": "string", "description": "ISO 8601 duration"},
        },
        "dependentRequired": {"limit": ["period"], "period": ["limit"]},
        "anyOf": [{"required": [name]} for name in ("limit", "rate_limit", "rate", "concurrency")],
        "not": {
            "anyOf": [
                {"required": list(pair)}
                for pair in (("limit", "rate_limit"), ("limit", "rate"), ("rate_limit", "rate"))
            ]
        },
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest if the rate is incomplete or specified in several ways."""
        named = self.model_fields_set
        flat = named & {"limit", "period"}
        if flat and (self.limit is None or self.period is None):
            missing, other = ("limit", "period") if self.limit is None else ("period", "limit")
            raise InvalidRequest(prefix + missing, f"is required with {other}")
        ways = [*(["limit"] if flat else []), *sorted(named & {"rate", "rate_limit"})]
        if len(ways) > 1:
            # The two could have different values.
            raise InvalidRequest(prefix + ways[1], f"can't be combined with {ways[0]}")
        if not ways and "concurrency" not in named:
            raise InvalidRequest(
                f"{prefix}rate_limit", "is required, or limit and period, or concurrency"
            )

    def config(self) -> dict[str, Any]:
        """Return the changes to the configuration of the queue."""
        named = self.model_fields_set
        changes: dict[str, Any] = {}
        if "concurrency" in named:
            changes["concurrency"] = self.concurrency
        if named & {"limit", "period"}:
            changes["rate_limit"] = {"limit": self.limit, "period": self.period}
        elif named & {"rate", "rate_limit"}:
            rate = self.rate if "rate" in named else self.rate_limit
            changes["rate_limit"] = None if rate is None else rate.model_dump()
        return changes


QUEUE_FIELDS = tuple(QueueConfigRequest.model_fields)


class CreateQueueRequest(RequestModel):
    """Create a queue. Its configuration is under `config`, or at the same level as the name.

    `ojs.domain.queue.config.parse` parses the configuration.
    """

    name: QueueName


class DeleteQueueRequest(Configuration):
    """What happens to the jobs of a queue; here or in the query."""

    strategy: DeletionStrategy | None = Field(
        None, description="there must be none; they are discarded, moved, or worked off first"
    )
    target_queue: QueueName | None = Field(None, description="with `move`, where to")


def _key_name(value: str) -> str:
    # The name is compared with the producers of queues, and logs contain it.
    if not value.isprintable() or value != value.strip():
        raise ValueError("must have only printable characters and no space at its start or end")
    if '"' in value or "\\" in value:
        # API Gateway writes the name to the access log without escaping.
        raise ValueError('must not contain " or \\')
    return value


def _scopes(value: list[str]) -> list[str]:
    if len(set(value)) != len(value):
        raise ValueError("must not contain a scope twice")
    return value


class CreateKeyRequest(Configuration):
    """Create an access key.

    Unknown fields are rejected, because a misspelled restriction would allow more than intended.
    """

    name: Annotated[
        str,
        Field(min_length=1, max_length=access.MAX_NAME_CHARACTERS),
        After(_key_name),
    ] = Field(description="name of its holder, as in `producers` of a queue and in jobs")
    scopes: Annotated[
        list[access.Scope],
        Field(min_length=1, max_length=len(access.Scope)),
        After(_scopes),
    ] = Field(description="permissions; see docs/access.md")
    queues: (
        Annotated[list[QueuePattern], Field(min_length=1, max_length=access.MAX_QUEUES)] | None
    ) = Field(None, description="the only queues it may touch; all when not given")
    expires_at: Annotated[str, After(_moment)] | None = Field(
        None, description="when it ends: RFC 3339, or '+' and an ISO 8601 duration; never without"
    )
    max_requests_per_s: int | None = Field(
        None, ge=1, le=access.MAX_RATE, description="429 above it; no limit when not given"
    )
    tenant: (
        Annotated[str, After(check_tenant), Field(json_schema_extra={"pattern": ID_PATTERN})] | None
    ) = Field(None, description="tenant that it acts for; `queues` are then local names")

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest if the key has a tenant, and `queues` names another one."""
        for at, queue in enumerate(self.queues or () if self.tenant is not None else ()):
            if ":" in queue:
                rule = "must be a local name, because the key has a tenant"
                raise InvalidRequest(f"{prefix}queues[{at}]", rule, value=queue)


def _role(value: str) -> str:
    found = access.role_arn(value)
    if found is None:
        raise ValueError(
            "must be the ARN of an IAM role or user, for example "
            "arn:aws:iam::123456789012:role/mailer"
        )
    return found


class CreateRoleRequest(CreateKeyRequest):
    """Define the permissions of a role, with the fields of a key. Unknown fields are rejected."""

    role: Annotated[str, Field(max_length=access.MAX_ARN_CHARACTERS), After(_role)] = Field(
        description="ARN of an IAM role or user; its path, and the name of a session, do not count"
    )


class NoOptions(Configuration):
    """The body of an operation without options: `{}` or no body."""


class ChangeJobRequest(Configuration):
    """Change the priority, the queue, or both of a job that is neither active nor final."""

    filled = True

    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    queue: QueueName | None = Field(None, description="the queue that it moves to")

    described: ClassVar[Mapping[str, Any]] = {"minProperties": 1}

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest if the request changes nothing."""
        if self.priority is None and self.queue is None:
            raise InvalidRequest(f"{prefix}priority", "is required, or queue, or both")


_NOT_ATOMIC = "must be partial, because the server processes each job separately."


MAX_RESULTS = 100


class ResultsRequest(Configuration):
    """Read the results of several jobs."""

    ids: Annotated[list[JobId], Field(min_length=1, max_length=MAX_RESULTS)] = Field(
        description="each job once"
    )


class JobsRequest(Configuration):
    """Base of bulk requests for jobs. Empty and null fields are rejected."""

    filled = True

    job_ids: Annotated[list[JobId], Field(min_length=1, max_length=MAX_BATCH)] | None = Field(
        None, description="these jobs, instead of a filter"
    )
    filter: JobFilterRequest | None = Field(
        None, description="which jobs", json_schema_extra={"minProperties": 1}
    )
    dry_run: bool | None = Field(None, description="count them, and do nothing")
    confirm: bool | None = Field(None, description="that they are meant", json_schema_extra=_TRUE)
    atomicity: Literal["partial"] | None = None

    not_offered: ClassVar[Mapping[str, str]] = {
        "idempotency_key": "is not supported for this operation. Omit it.",
    }
    described: ClassVar[Mapping[str, Any]] = {
        "oneOf": [{"required": ["job_ids"]}, {"required": ["filter"]}]
    }

    @classmethod
    def refuse(cls, raw: Mapping[str, Any]) -> None:
        """Raise Unsupported for a field or value of an unsupported feature."""
        super().refuse(raw)
        if raw.get("atomicity") == "atomic":
            raise Unsupported(f"'atomicity': {_NOT_ATOMIC}", field="atomicity")

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest unless the request has either IDs or a filter that isn't empty."""
        if self.confirm is False:
            raise InvalidRequest(f"{prefix}confirm", CONFIRM, value=False)
        if self.job_ids is not None and self.filter is not None:
            raise InvalidRequest(f"{prefix}filter", "can't be combined with job_ids")
        if self.job_ids is None and self.filter is None:
            raise InvalidRequest(f"{prefix}filter", "is required, or job_ids")
        if self.filter is not None and not self.filter.model_fields_set:
            rule = f"must have at least one of {', '.join(JOB_FIELDS)}"
            raise InvalidRequest(f"{prefix}filter", rule)

    def wanted(self) -> dict[str, Any] | None:
        """Return the filter as sent, or None if the request lists job IDs."""
        return None if self.filter is None else self.filter.model_dump(exclude_unset=True)


class ManyJobsRequest(JobsRequest):
    """Retry, cancel, or delete several jobs."""


_CONFIRMED_OR_DRY: list[Mapping[str, Any]] = [
    {"required": ["confirm"]},
    {"required": ["dry_run"], "properties": {"dry_run": {"const": True}}},
]


def _check_confirmed(request: JobsRequest | PurgeRequest, prefix: str) -> None:
    if request.confirm is None and not request.dry_run:
        raise InvalidRequest(f"{prefix}confirm", CONFIRM)


class ConfirmedJobsRequest(JobsRequest):
    """Retry, cancel, or delete several jobs with a confirmation, or count them in a dry run."""

    described: ClassVar[Mapping[str, Any]] = {
        "oneOf": [{"required": ["job_ids"]}, {"required": ["filter"]}],
        "anyOf": _CONFIRMED_OR_DRY,
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest for an invalid selection of jobs or a missing confirmation."""
        super().check(prefix)
        _check_confirmed(self, prefix)


class EraseRequest(Configuration):
    """Erase jobs in any state with a confirmation, or count them in a dry run."""

    filled = True

    job_ids: Annotated[list[JobId], Field(min_length=1, max_length=MAX_BATCH)] | None = Field(
        None, description="these jobs, instead of a filter"
    )
    filter: EraseFilter | None = Field(None, description="whose jobs")
    dry_run: bool | None = Field(None, description="count them, and do nothing")
    confirm: bool | None = Field(None, description="that they are meant", json_schema_extra=_TRUE)

    described: ClassVar[Mapping[str, Any]] = {
        "oneOf": [{"required": ["job_ids"]}, {"required": ["filter"]}],
        "anyOf": _CONFIRMED_OR_DRY,
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest for an invalid selection, or without a confirmation or dry run."""
        if self.confirm is False:
            raise InvalidRequest(f"{prefix}confirm", CONFIRM, value=False)
        if self.job_ids is not None and self.filter is not None:
            raise InvalidRequest(f"{prefix}filter", "can't be combined with job_ids")
        if self.job_ids is None and self.filter is None:
            raise InvalidRequest(f"{prefix}filter", "is required, or job_ids")
        for name, value in ({} if self.filter is None else self.filter.meta).items():
            # An unset variable in a client must not erase all jobs that have no value.
            if value is None or value in ("", [], {}):
                rule = "must not be empty or null, because an erasure requires a value"
                raise InvalidRequest(f"{prefix}filter.meta.{name}", rule, value=value)
        if self.confirm is None and not self.dry_run:
            raise InvalidRequest(f"{prefix}confirm", CONFIRM)


class PurgeRequest(Configuration):
    """Delete jobs of a queue that have ended."""

    filled = True

    states: Annotated[
        list[Literal["completed", "cancelled", "discarded"]], Field(min_length=1, max_length=3)
    ]
    older_than: str | None = Field(
        None, description="ended before; RFC 3339, or how long ago: `P30D`, `72h`"
    )
    dry_run: bool | None = Field(None, description="count them, and do nothing")
    confirm: bool | None = Field(None, description="that they are meant", json_schema_extra=_TRUE)

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest if `confirm` is false, because it can only be true."""
        if self.confirm is False:
            raise InvalidRequest(f"{prefix}confirm", CONFIRM, value=False)


class PurgeQueueRequest(PurgeRequest):
    """Delete jobs of a queue that have ended."""


class ConfirmedPurgeRequest(PurgeRequest):
    """Delete finished jobs of a queue with a confirmation, or count them in a dry run."""

    described: ClassVar[Mapping[str, Any]] = {
        "anyOf": _CONFIRMED_OR_DRY,
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest for an invalid selection of jobs or a missing confirmation."""
        super().check(prefix)
        _check_confirmed(self, prefix)


class BatchRequest(RequestModel):
    """Several jobs: all are enqueued, or none. They are parsed one by one, so errors name a job."""

    jobs: Annotated[list[JobRequest], Field(min_length=1, max_length=MAX_BATCH)]


class BulkOptions(Configuration):
    """Several jobs, and whether one rejected job rejects all of them.

    Each job is parsed separately, because one of them can be invalid.
    """

    jobs: Annotated[list[Any], Field(min_length=1)]
    atomicity: Literal["partial", "atomic"] = Field(
        "partial", description="whether a job that is refused has all others refused"
    )
    idempotency_key: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_KEY_CHARACTERS,
        description=f"as the header {HEADER}, which counts if both are sent",
    )


class BulkPushRequest(BulkOptions):
    """Several jobs that are enqueued independently, or all or none of them."""

    jobs: Annotated[list[JobRequest], Field(min_length=1, max_length=MAX_BATCH)]


class WorkflowDependencyRequest(Model):
    """A step that another one waits for, and whether its failure is ignored."""

    id: Annotated[str, Field(min_length=1)]
    ignore_failed: bool = False


class WorkflowCallbacksRequest(Model):
    """The callbacks of a batch: jobs as POST /jobs takes them. One of them at least is there."""

    on_complete: Any = Field(None, description="runs when all jobs have ended")
    on_success: Any = Field(None, description="runs if all jobs succeeded")
    on_failure: Any = Field(None, description="runs if a job failed")


class WorkflowStepRequest(Model):
    """A step: a job as POST /jobs takes it; or, with steps, jobs or callbacks, a workflow."""

    unknown = "kept"

    type: str | None = Field(None, description="of the job; or chain, group, batch or dag")
    id: str | None = Field(None, description="ID, unique in its list of steps")
    name: Any = Field(None, description="of a workflow")
    args: Any = Field(None, description="of the job; needed there")
    meta: Any = None
    options: dict[str, Any] | None = Field(
        None, description="of the job, or what holds for all jobs of the workflow"
    )
    depends_on: list[str | WorkflowDependencyRequest] | None = Field(
        None, description="in a graph: the IDs of the steps that it waits for"
    )
    trigger: StepTriggerName | None = Field(
        None, description="in a graph: how these must have ended; all_succeeded when not given"
    )
    steps: list[WorkflowStepRequest] | None = None
    jobs: list[WorkflowStepRequest] | None = None
    callbacks: WorkflowCallbacksRequest | None = None


class WorkflowRequest(Configuration):
    """Create a workflow. See docs/workflows.md.

    `ojs.domain.workflow.request` parses it and reports all errors at once, each with its path.
    """

    type: WorkflowKind | None = Field(
        None, description="its form; without it steps are a graph, by their depends_on"
    )
    id: JobId | None = Field(None, description="for requests that are safe to repeat")
    name: ShortText | None = None
    options: Options | None = Field(
        None, description="for all its jobs, where they have no own ones"
    )
    steps: Annotated[list[WorkflowStepRequest], Field(min_length=1)] | None = Field(
        None, description="of a chain or a graph"
    )
    jobs: Annotated[list[WorkflowStepRequest], Field(min_length=1)] | None = Field(
        None, description="of a group or a batch"
    )
    callbacks: WorkflowCallbacksRequest | None = Field(None, description="of a batch")


class RetryWorkflowRequest(Configuration):
    """Run a workflow that has ended again."""

    mode: RetryModeName | None = Field(
        None, description="which steps run again; default: those that failed or never ran"
    )
