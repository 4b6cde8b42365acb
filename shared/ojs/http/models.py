"""Request bodies, except the job itself (`ojs.domain.job.envelope.JobRequest`).

Rules for all of them:

- Types are strict: "5", 5.0 and true are not the integer 5. Null stands for "not given" wherever a
  field is optional, since SDKs serialise unset options that way.
- A field that is listed works. A field that clients may know and this server does not offer is
  refused with 422 `unsupported` (`not_offered`), never ignored.
- What configures something (`Configuration`) refuses an unknown key: a misspelt limit would limit
  nothing. Elsewhere it is ignored: workers add facts about themselves (host, runtime version, trace
  ids), and new optional request fields may come within a major version (ojs-http-binding, section
  3.3).
- Rules that types do not express are written as JSON Schema beside the check (`described`), so that
  the OpenAPI document refuses what the server refuses, as far as JSON Schema can.
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

MAX_ACTIVE_JOBS = 1_000
MAX_ACTIVE_COUNT = 1_000_000
# Acks and nacks in one request. Each is a call or a few, eight at a time: they take seconds of the
# 29 that a request has.
MAX_ENDINGS = 1_000
MAX_LABELS = 100
MAX_ATTEMPT = 1_000_000
# IDs of WebSocket connections, which API Gateway creates.
_CONNECTION = r"[A-Za-z0-9_=+/-]{1,128}"
MAX_PID = 2**32
MAX_CONCURRENCY = 100_000
MAX_PROGRESS_MESSAGE = 10_000
MAX_REASON = 1_000
CONFIRM = "must be true: this is for many jobs at once, and cannot be taken back"
_TRUE: dict[str, Any] = {"const": True}

# The states that a worker may report. The first three are directives too (ojs-worker-protocol); the
# others are those of graceful-shutdown clients.
WorkerState = Literal[
    "running", "quiet", "terminate", "terminating", "drain", "draining", "shutting_down"
]
WorkflowKind = Literal["chain", "group", "batch", "dag"]
# Those of `StepTrigger` and `RetryMode`, whose modules a cold start without workflows leaves alone.
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
    # The unprintable characters that regular expressions of all JSON Schema validators can name.
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
    # Field → reason why it is refused.
    not_offered: ClassVar[Mapping[str, str]] = {}
    # JSON Schema keywords for rules that types do not express.
    described: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def refuse(cls, raw: Mapping[str, Any]) -> None:
        """Raise Unsupported for a field that this server knows but does not offer."""
        for name, reason in cls.not_offered.items():
            if raw.get(name) is not None:
                raise Unsupported(f"'{name}': {reason}", field=name)

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest for rules that types cannot express; `prefix` goes before paths."""


class Configuration(RequestModel):
    """Base of requests in which an unknown field is refused, since it would not count."""

    unknown = "refused"


Body = TypeVar("Body", bound=RequestModel)


def parse(model: type[Body], raw: Mapping[str, Any], prefix: str = "") -> Body:
    """Read `raw` as `model`. Raises InvalidRequest or Unsupported naming the field."""
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
    """Raise InvalidRequest for weights that a strategy lacks or does not use."""
    for name in weights or ():
        if queues is not None and name not in queues:
            raise InvalidRequest(
                f"{prefix}weights.{name}", "is not one of the queues of this request", value=name
            )
    if strategy == DispatchStrategy.WEIGHTED:
        for name in queues or ():
            if name not in (weights or {}):
                rule = "is required: with the strategy weighted each queue needs a weight"
                raise InvalidRequest(f"{prefix}weights.{name}", rule)
        if not weights:
            raise InvalidRequest(f"{prefix}weights", "is required with the strategy weighted")
    elif strategy is not None and weights:
        rule = f"has no effect with the strategy {strategy}; use weighted"
        raise InvalidRequest(f"{prefix}weights", rule)


class Listen(RequestModel):
    """The connection of a worker, which is rung for new jobs while the worker has a free slot."""

    connection: ConnectionId
    listed: bool | None = Field(
        None, description="as the last fetch returned it; null when its answer was lost"
    )


class FetchRequest(RequestModel):
    """Claim jobs from one or more queues; without `queues`, from those of the worker's pool."""

    queues: list[QueueName] = Field(
        (),
        min_length=1,
        max_length=MAX_FETCH_QUEUES,
        description="all of the worker's pool when not given",
    )
    count: Annotated[int, Field(ge=1, le=MAX_FETCH)] | None = Field(
        None, description="most jobs to hand out; 1 when not given"
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
        "types": "fetching by job type is not offered by this server.",
        "job_types": "fetching by job type is not offered by this server.",
        "tags": "fetching by tag is not offered by this server.",
        "wait": "blocking fetch is not offered by this server; poll instead.",
    }
    described: ClassVar[Mapping[str, Any]] = {
        "anyOf": [{"required": [name]} for name in ("queues", "pool", "worker_id")]
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest where strategy and weights do not go together, for a nack without an
        error, and for too many acks and nacks.
        """
        if not (self.queues or self.pool or self.worker_id):
            raise InvalidRequest(f"{prefix}queues", "is required")
        _check_strategy(self.queues or None, self.strategy, self.weights, prefix)
        for index, queue in enumerate(self.rung):
            if self.queues and queue not in self.queues:
                rule = "must be one of the queues of the fetch"
                raise InvalidRequest(f"{prefix}rung[{index}]", rule, value=queue)
        _check_nacks(self.nacks or (), prefix)
        if len(self.acks or ()) + len(self.nacks or ()) > MAX_ENDINGS:
            rule = f"must have at most {MAX_ENDINGS} items, those of acks included"
            raise InvalidRequest(f"{prefix}nacks", rule)

    def order(self) -> str | None:
        """The strategy requested, if any."""
        return self.strategy or (DispatchStrategy.WEIGHTED.value if self.weights else None)

    def endings(self) -> tuple[list[Ending], list[Ending]]:
        """The acks and the nacks that it brings."""
        return _endings(self.acks or (), self.worker_id), _endings(self.nacks or (), self.worker_id)


class _Lease(RequestModel):
    """What shows that a job is still the worker's."""

    worker_id: WorkerId | None = None
    attempt: Attempt | None = None
    lease_token: LeaseToken | None = None

    def _holder(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _Lease.model_fields}


class AckOptions(_Lease):
    """A job is done; the job is named by the path."""

    result: Any = Field(None, description="any JSON value; null counts as a value")

    def outcome(self) -> dict[str, Any]:
        """The arguments of the use case beside the job. A result of null is a result."""
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
    raise ValueError("must be an array of strings, or a string")


def _queue_pattern(value: str) -> str:
    stem = value.removesuffix("*")
    # The text before the star is the beginning of a name; a star alone matches any name.
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
    """JSON Schema for: at least one of these (name, JSON type) is given."""
    return {
        "anyOf": [
            {"required": [name], "properties": {name: {"type": kind}}} for name, kind in fields
        ]
    }


class NackOptions(_Lease):
    """A job failed; the job is named by the path."""

    error: ErrorReport | None = Field(None, description="required unless requeue is true")
    requeue: bool | None = Field(
        None, description="hand the job back unprocessed: available at once"
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
        ]
    }

    def outcome(self) -> dict[str, Any]:
        """The arguments of the use case beside the job. Raises InvalidRequest without an error."""
        if self.error is None and not self.requeue:
            raise InvalidRequest("error", "is required unless requeue is true")
        error = None if self.error is None else self.error.model_dump(exclude_unset=True)
        return self._holder() | {"error": error, "requeue": bool(self.requeue)}


class NackRequest(NackOptions):
    """A job failed."""

    job_id: JobId


# A job's id, and the arguments of the use case beside it.
Ending = tuple[str, dict[str, Any]]


def _endings(entries: Sequence[AckRequest | NackRequest], worker_id: str | None) -> list[Ending]:
    """Acks or nacks; those that name no worker are of the one that the request names."""
    found = [(entry.job_id, entry.outcome()) for entry in entries]
    return [
        (job_id, told if told["worker_id"] is not None else told | {"worker_id": worker_id})
        for job_id, told in found
    ]


def _check_nacks(nacks: Sequence[NackRequest], prefix: str) -> None:
    """Raise InvalidRequest for the first nack whose error is missing or says nothing."""
    for at, nack in enumerate(nacks):
        try:
            told = nack.outcome()
            if not told["requeue"]:
                failures.reported(told["error"], attempt=1, now_ms=0)
        except InvalidRequest as error:
            raise InvalidRequest(f"{prefix}nacks[{at}].{error.field}", error.reason) from None


def _inside(one: type[Model]) -> dict[str, str]:
    """The fields of a request for one job that stand inside the list of one for many, and why."""
    return dict.fromkeys(
        sorted(one.model_fields.keys() - {"worker_id"}),
        "cannot be combined with a list: it belongs into each of its items",
    )


def _none_of(names: Iterable[str]) -> dict[str, Any]:
    return {"not": {"anyOf": [{"required": [name]} for name in names]}}


class _Many(RequestModel):
    """Several acks or nacks in one request. The fields of a job stand in its own entry."""

    worker_id: WorkerId | None = Field(None, description="whose they are, unless they say")

    misplaced: ClassVar[Mapping[str, str]]

    @classmethod
    def refuse(cls, raw: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for a field of the request for one job beside the list."""
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
        "nacks": "send them to /workers/nack, or both with the next fetch."
    }

    def endings(self) -> list[Ending]:
        """What it says of each job."""
        return _endings(self.acks, self.worker_id)


class NacksRequest(_Many):
    """Many jobs failed: each is settled, and answered, for itself."""

    nacks: list[NackRequest] = Field(min_length=1, max_length=MAX_ENDINGS)

    misplaced = _inside(NackRequest)
    described: ClassVar[Mapping[str, Any]] = _none_of(misplaced)
    not_offered: ClassVar[Mapping[str, str]] = {
        "acks": "send them to /workers/ack, or both with the next fetch."
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest for the first nack whose error is missing or says nothing."""
        _check_nacks(self.nacks, prefix)

    def endings(self) -> list[Ending]:
        """What it says of each job."""
        return _endings(self.nacks, self.worker_id)


def _labels(value: Any) -> Any:
    if value is None:
        return None
    names, texts = (value, value.values()) if isinstance(value, dict) else ((), value)
    if not isinstance(value, list | dict) or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be an array of strings, or an object of strings")
    if len(value) > MAX_LABELS or any(len(text) > MAX_NAME_BYTES for text in (*texts, *names)):
        raise ValueError(
            f"must have at most {MAX_LABELS} labels of at most {MAX_NAME_BYTES} characters"
        )
    return value


class WorkerInfo(RequestModel):
    """What a worker tells about itself."""

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
        "handlers": "handing out jobs by type and version is not offered by this server; use "
        "queues of their own."
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest where strategy and weights do not go together."""
        _check_strategy(self.queues, self.strategy, self.weights, prefix)

    def info(self) -> dict[str, Any]:
        """The fields that are set, for the worker's record, without the pool."""
        info = self.model_dump(include=set(WorkerInfo.model_fields) - {"pool"}, exclude_none=True)
        return {"strategy": DispatchStrategy.WEIGHTED.value, **info} if self.weights else info


def _active(value: Any) -> Any:
    if value is None or (isinstance(value, list) and len(value) <= MAX_ACTIVE_JOBS):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_ACTIVE_COUNT:
        return value
    raise ValueError(f"must be an array of at most {MAX_ACTIVE_JOBS} job ids, or a number of jobs")


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
    """A worker that says which jobs it runs, or how many."""

    worker_id: WorkerId
    active_jobs: ActiveJobs = None
    active_job_ids: Annotated[list[Any], Field(max_length=MAX_ACTIVE_JOBS)] | None = Field(
        None,
        json_schema_extra={"items": {"type": "string", "pattern": ids.UUID7.pattern}},
    )

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest for the first malformed id, or for too many ids."""
        for field in ("active_jobs", "active_job_ids"):
            listed = getattr(self, field)
            for index, value in enumerate(listed if isinstance(listed, list) else ()):
                if not ids.is_uuid7(value):
                    place = f"{prefix}{field}[{index}]"
                    raise InvalidRequest(place, "must be a lowercase UUIDv7", value=value)
        if len(self.job_ids()) > MAX_ACTIVE_JOBS:
            rule = f"must have at most {MAX_ACTIVE_JOBS} ids, those of active_jobs included"
            raise InvalidRequest(f"{prefix}active_job_ids", rule)

    def job_ids(self) -> list[str]:
        """The ids of the jobs it runs, each once."""
        listed = self.active_jobs if isinstance(self.active_jobs, list) else []
        return list(dict.fromkeys([*listed, *(self.active_job_ids or [])]))

    def count(self) -> int | None:
        """How many jobs it runs, if the request has a number."""
        return self.active_jobs if isinstance(self.active_jobs, int) else None


class HeartbeatRequest(_Busy):
    """A worker is alive and goes on with its jobs."""

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
    """A worker introduces itself. `id` stands for `worker_id` when that is not there."""

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


# Workers may add facts about themselves. What is as like as this to the name of a field is no fact,
# but a slip of the pen, as `concurency`; `os_version` is less like `version`.
SLIP = 0.85
_REGISTERED = frozenset({"worker", "id", *RegisterRequest.model_fields})


def registration(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """A registration's fields, taken out of `worker`, and the prefix of their paths.

    Raises InvalidRequest if `worker` is not an object, and for what is nearly the name of a field.
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
                raise InvalidRequest(name, "differs from that inside worker, which alone counts")
        raw = inner
    if "id" in raw:
        worker_id = raw.get("worker_id", raw["id"])
        if worker_id != raw["id"]:
            rule = f"differs from {prefix}worker_id, which is another name for it"
            raise InvalidRequest(f"{prefix}id", rule)
        raw = {**raw, "worker_id": worker_id}
    return raw, prefix


def _check_slips(raw: Mapping[str, Any], prefix: str) -> None:
    for name in raw:
        meant = None if name in _REGISTERED else nearest(name, _REGISTERED, least=SLIP)
        if meant is not None:
            rule = f"{NOT_KNOWN}; did you mean '{meant}'?"
            raise InvalidRequest(prefix + name[:MAX_SHOWN], rule)


class _Report(RequestModel):
    message: Annotated[str, Field(max_length=MAX_PROGRESS_MESSAGE)] | None = None
    data: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = Field(
        None, description="not kept: the answer says so, and the rest of the report counts"
    )

    def warnings(self) -> list[str]:
        """What the report has that is not kept."""
        if self.checkpoint is None:
            return []
        return ["'checkpoint' is not kept: this server has no checkpoints."]


class ProgressRequest(_Report):
    """How far a job is: progress, data or both, and a message if there is one."""

    progress: float | None = Field(None, description="0 to 1; values outside are clamped")
    worker_id: WorkerId | None = None

    described = _one_of(("progress", "number"), ("data", "object"))


class WorkerProgressRequest(_Report):
    """How far a job is, in percent."""

    job_id: JobId
    worker_id: WorkerId | None = None
    percentage: float | None = Field(None, description="0 to 100; values outside are clamped")

    described = _one_of(("percentage", "number"), ("data", "object"))


class DirectiveRequest(RequestModel):
    """What a worker is to be told with its next heartbeat."""

    worker_id: WorkerId
    directive: Directive


class RetryDeadLetterRequest(Configuration):
    """Retry a dead letter, as it is or with changes."""

    override: JobOverrideRequest | None = None

    @classmethod
    def refuse(cls, raw: Mapping[str, Any]) -> None:
        """Refuse unknown fields inside `override` too."""
        super().refuse(raw)
        JobOverrideRequest.refuse(raw.get("override"))

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest if two names of one setting in `override` disagree."""
        if self.override is not None:
            self.override.check()

    def changes(self) -> JobOverride:
        """The changes to the job."""
        return JobOverride() if self.override is None else self.override.override()


class _BulkRequest(Configuration):
    """What all requests for many dead letters have. An unknown field is refused, since a misspelt
    filter would mean more jobs than intended. So is a field that is empty or null.
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
        """Raise InvalidRequest for false in fields where only true has a meaning."""
        if self.all is False:
            raise InvalidRequest(f"{prefix}all", EVERY, value=False)
        if self.confirm is False:
            raise InvalidRequest(f"{prefix}confirm", CONFIRM, value=False)

    def filters(self) -> dict[str, Mapping[str, Any]]:
        """The filters that are set, by the prefix of their fields' paths."""
        return {} if self.filter is None else {"filter.": self.filter.model_dump(exclude_none=True)}


class RetryDeadLettersRequest(_BulkRequest):
    """Retry all dead letters that a filter matches, or all there are."""

    # One of `filter` and `all`, beside `confirm`.
    described: ClassVar[Mapping[str, Any]] = {
        "required": ["confirm"],
        "minProperties": 2,
        "maxProperties": 2,
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest without a confirmation."""
        super().check(prefix)
        if self.confirm is None:
            raise InvalidRequest(f"{prefix}confirm", CONFIRM)


class PurgeDeadLettersRequest(_BulkRequest, FilterRequest):
    """Purge all dead letters that a filter matches (under `filter`, beside it, or in the query), or
    all there are.
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
        """The filters that are set, by the prefix of their fields' paths."""
        own = self.model_dump(exclude_none=True, include=set(FIELDS))
        return super().filters() | ({"": own} if own else {})


class ConfigureQueueRequest(Configuration, QueueConfigRequest):
    """Fields of a queue's configuration. What is left out stays as it is; null takes it back.

    Described here; parsed by `ojs.domain.queue.config.parse`.
    """


class QueueLimitsRequest(Configuration):
    """A queue's own limits: the rate as `limit` and `period`, or under `rate_limit` or `rate`. What
    is left out stays as it is; null takes it back.
    """

    not_offered: ClassVar[Mapping[str, str]] = {
        "throttle": "queues have no throttle; jobs may have one."
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
        """One way of naming the rate, whole. Raises InvalidRequest."""
        named = self.model_fields_set
        flat = named & {"limit", "period"}
        if flat and (self.limit is None or self.period is None):
            missing, other = ("limit", "period") if self.limit is None else ("period", "limit")
            raise InvalidRequest(prefix + missing, f"is required together with {other}")
        ways = [*(["limit"] if flat else []), *sorted(named & {"rate", "rate_limit"})]
        if len(ways) > 1:
            # Which of them counts would be a guess.
            raise InvalidRequest(prefix + ways[1], f"cannot be combined with {ways[0]}")
        if not ways and "concurrency" not in named:
            raise InvalidRequest(
                f"{prefix}rate_limit", "is required, or limit and period, or concurrency"
            )

    def config(self) -> dict[str, Any]:
        """What it changes of the queue's configuration."""
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
    """A queue to make, with its configuration under `config`, or beside the name.

    The configuration is parsed by `ojs.domain.queue.config.parse`.
    """

    name: QueueName


class DeleteQueueRequest(Configuration):
    """What becomes of a queue's jobs; here or in the query."""

    strategy: DeletionStrategy | None = Field(
        None, description="there must be none; they are discarded, moved, or worked off first"
    )
    target_queue: QueueName | None = Field(None, description="with `move`, where to")


def _key_name(value: str) -> str:
    # It is compared with the producers of queues, and stands in logs.
    if not value.isprintable() or value != value.strip():
        raise ValueError("must be printable, without space around it")
    if '"' in value or "\\" in value:
        # API Gateway writes it into the access log as it is.
        raise ValueError("must hold no '\"' and no '\\'")
    return value


def _scopes(value: list[str]) -> list[str]:
    if len(set(value)) != len(value):
        raise ValueError("must name each scope once")
    return value


class CreateKeyRequest(Configuration):
    """A key to make. An unknown field is refused, since a misspelt restriction would allow more
    than intended.
    """

    name: Annotated[
        str,
        Field(min_length=1, max_length=access.MAX_NAME_CHARACTERS),
        After(_key_name),
    ] = Field(description="who holds it: what `producers` of a queue names, and jobs show")
    scopes: Annotated[
        list[access.Scope],
        Field(min_length=1, max_length=len(access.Scope)),
        After(_scopes),
    ] = Field(description="what it may do; docs/access.md says what each is")
    queues: (
        Annotated[list[QueuePattern], Field(min_length=1, max_length=access.MAX_QUEUES)] | None
    ) = Field(None, description="the only queues it may touch; all when not given")
    expires_at: Annotated[str, After(_moment)] | None = Field(
        None, description="when it ends: RFC 3339, or '+' and an ISO 8601 duration; never without"
    )


def _role(value: str) -> str:
    found = access.role_arn(value)
    if found is None:
        raise ValueError(
            "must be the ARN of an IAM role or user, as arn:aws:iam::123456789012:role/mailer"
        )
    return found


class CreateRoleRequest(CreateKeyRequest):
    """What a role may do, as with a key. An unknown field is refused as there."""

    role: Annotated[str, Field(max_length=access.MAX_ARN_CHARACTERS), After(_role)] = Field(
        description="ARN of an IAM role or user; its path, and the name of a session, do not count"
    )


class NoOptions(Configuration):
    """An operation without options: `{}` or no body at all."""


class ChangeJobRequest(Configuration):
    """Change a job that waits: its priority, its queue, or both."""

    filled = True

    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    queue: QueueName | None = Field(None, description="the queue that it moves to")

    described: ClassVar[Mapping[str, Any]] = {"minProperties": 1}

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest where nothing is to be changed."""
        if self.priority is None and self.queue is None:
            raise InvalidRequest(f"{prefix}priority", "is required, or 'queue', or both")


_NOT_ATOMIC = "many jobs are dealt with one by one: only 'partial' is offered by this server."


class JobsRequest(Configuration):
    """What all requests for many jobs have. A field that is empty or null is refused."""

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
        "idempotency_key": "repeated requests are not recognized by this server.",
    }
    described: ClassVar[Mapping[str, Any]] = {
        "oneOf": [{"required": ["job_ids"]}, {"required": ["filter"]}]
    }

    @classmethod
    def refuse(cls, raw: Mapping[str, Any]) -> None:
        """Raise Unsupported for what this server knows but does not offer."""
        super().refuse(raw)
        if raw.get("atomicity") == "atomic":
            raise Unsupported(f"'atomicity': {_NOT_ATOMIC}", field="atomicity")

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest unless there are either ids or a filter that says something."""
        if self.confirm is False:
            raise InvalidRequest(f"{prefix}confirm", CONFIRM, value=False)
        if self.job_ids is not None and self.filter is not None:
            raise InvalidRequest(f"{prefix}filter", "cannot be combined with job_ids")
        if self.job_ids is None and self.filter is None:
            raise InvalidRequest(f"{prefix}filter", "is required, or 'job_ids'")
        if self.filter is not None and not self.filter.model_fields_set:
            rule = f"must have one of {', '.join(JOB_FIELDS)}"
            raise InvalidRequest(f"{prefix}filter", rule)

    def wanted(self) -> dict[str, Any] | None:
        """The filter as sent; None if ids say which jobs are meant."""
        return None if self.filter is None else self.filter.model_dump(exclude_unset=True)


class ManyJobsRequest(JobsRequest):
    """Retry, cancel or delete many jobs."""


_CONFIRMED_OR_DRY: list[Mapping[str, Any]] = [
    {"required": ["confirm"]},
    {"required": ["dry_run"], "properties": {"dry_run": {"const": True}}},
]


def _check_confirmed(request: JobsRequest | PurgeRequest, prefix: str) -> None:
    if request.confirm is None and not request.dry_run:
        raise InvalidRequest(f"{prefix}confirm", CONFIRM)


class ConfirmedJobsRequest(JobsRequest):
    """Retry, cancel or delete many jobs, with a confirmation, or count them in a dry run."""

    described: ClassVar[Mapping[str, Any]] = {
        "oneOf": [{"required": ["job_ids"]}, {"required": ["filter"]}],
        "anyOf": _CONFIRMED_OR_DRY,
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest without a confirmation, too."""
        super().check(prefix)
        _check_confirmed(self, prefix)


class EraseRequest(Configuration):
    """Erase jobs in any state, with a confirmation, or count them in a dry run."""

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
        """Raise InvalidRequest unless there are either ids or a filter, and a confirmation."""
        if self.confirm is False:
            raise InvalidRequest(f"{prefix}confirm", CONFIRM, value=False)
        if self.job_ids is not None and self.filter is not None:
            raise InvalidRequest(f"{prefix}filter", "cannot be combined with job_ids")
        if self.job_ids is None and self.filter is None:
            raise InvalidRequest(f"{prefix}filter", "is required, or 'job_ids'")
        for name, value in ({} if self.filter is None else self.filter.meta).items():
            # A variable that was not set must not erase the jobs of all who have none.
            if value is None or value in ("", [], {}):
                rule = "must not be empty or null: what is erased is asked for by name"
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
        """Raise InvalidRequest for false where only true has a meaning."""
        if self.confirm is False:
            raise InvalidRequest(f"{prefix}confirm", CONFIRM, value=False)


class PurgeQueueRequest(PurgeRequest):
    """Delete jobs of a queue that have ended."""


class ConfirmedPurgeRequest(PurgeRequest):
    """Delete jobs of a queue that have ended, with a confirmation, or count them in a dry run."""

    described: ClassVar[Mapping[str, Any]] = {
        "anyOf": _CONFIRMED_OR_DRY,
    }

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest without a confirmation, too."""
        super().check(prefix)
        _check_confirmed(self, prefix)


class BatchRequest(RequestModel):
    """Several jobs, all enqueued or none. Parsed job by job, so that errors can name the job."""

    jobs: Annotated[list[JobRequest], Field(min_length=1, max_length=MAX_BATCH)]


class BulkOptions(Configuration):
    """Several jobs, and what is to become of them if some are refused. The jobs are parsed one by
    one, as one of them may be wrong.
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
    """Several jobs, each enqueued for itself, or all or none."""

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
    id: str | None = Field(None, description="its name among the steps beside it")
    name: Any = Field(None, description="of a workflow")
    args: Any = Field(None, description="of the job; needed there")
    meta: Any = None
    options: dict[str, Any] | None = Field(
        None, description="of the job, or what holds for all jobs of the workflow"
    )
    depends_on: list[str | WorkflowDependencyRequest] | None = Field(
        None, description="in a graph: the ids of the steps beside it that it waits for"
    )
    trigger: StepTriggerName | None = Field(
        None, description="in a graph: how these must have ended; all_succeeded when not given"
    )
    steps: list[WorkflowStepRequest] | None = None
    jobs: list[WorkflowStepRequest] | None = None
    callbacks: WorkflowCallbacksRequest | None = None


class WorkflowRequest(Configuration):
    """A workflow to create: docs/workflows.md. Parsed by `ojs.domain.workflow.request`, so that all
    errors are told at once, each with its path.
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
    """Run a workflow that is over again."""

    mode: RetryModeName | None = Field(
        None, description="what runs again; what has failed or never ran when not given"
    )
