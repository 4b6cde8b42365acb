"""Deliveries: the queues whose jobs are pushed, the target, and the options of the push.

A delivery acts as a worker. It claims jobs with the worker ID `push_worker_{name}`. The lease of
each job covers the maximum age of its event, the timeout of the target, and 1 minute.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

from ojs.domain.delivery.breaker import Breaker
from ojs.domain.errors import InvalidRequest, ValidationFailed
from ojs.domain.fields import NumberRange
from ojs.domain.job.envelope import JobType, QueueName
from ojs.domain.pool.pool import PoolName
from ojs.domain.requests import After, Field, Model
from ojs.records import record

DELIVERY_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._\-]*"
MAX_DELIVERY_BYTES = 64
MAX_DELIVERIES = 100
# ID of a webhook subscription.
SUBSCRIPTION_ID = re.compile(r"sub_[0-9a-f]{16}")
# Maximum number of queues of one delivery. It is also the maximum of one fetch.
MAX_DELIVERY_QUEUES = 50
MAX_DELIVERY_TYPES = 100
MAX_CONCURRENCY = 1_000
DEFAULT_CONCURRENCY = 10
MAX_BATCH_SIZE = 10
DEFAULT_TIMEOUT_MS = 30_000
MAX_TIMEOUT_MS = 900_000
# Maximum age of the event of an asynchronous invocation (ms), as set in the function's
# configuration, and time for its outcome to arrive.
EVENT_AGE_MS = 60_000
GRACE_MS = 60_000
MAX_URL_BYTES = 2_048
MAX_SECRETS = 2
MAX_SECRET_BYTES = 256
# Minimum length of new secrets. Stored secrets can be shorter.
MIN_SECRET_BYTES = 24

_PREFIX = "push_worker_"
_DELIVERY = re.compile(DELIVERY_PATTERN)
_FUNCTION = re.compile(
    r"(arn:aws[a-z-]*:lambda:[a-z0-9-]+:\d{12}:function:[A-Za-z0-9_-]{1,64})(:[A-Za-z0-9$_-]{1,128})?"
)
_HANDLER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
# Fields of a response that are not configuration. Requests can include them, so that a client can
# send back a delivery that it has read.
SHOWN_BACK = frozenset(
    {
        "name", "state", "disabled_reason", "disabled_at", "backoff_until", "breaker", "statistics",
        "signing_secrets_count", "etag", "created_at", "updated_at", "created_by",
    }
)  # fmt: skip


class Form(StrEnum):
    """The event format that a target receives."""

    DIRECT = "direct"
    PUSH = "push"
    SQS = "sqs"


class DeliveryState(StrEnum):
    """State of a delivery. Operators pause it; a missing or forbidden target disables it."""

    ACTIVE = "active"
    PAUSED = "paused"
    DISABLED = "disabled"


class DisabledReason(StrEnum):
    """The reason why a delivery is disabled.

    The target does not exist or denies access, the deployment does not allow the target, or the
    access key that configured the delivery is revoked.
    """

    GONE = "gone"
    FORBIDDEN = "forbidden"
    ENDPOINT_NOT_ALLOWED = "endpoint_not_allowed"
    FUNCTION_NOT_ALLOWED = "function_not_allowed"
    KEY_ENDED = "key_ended"


# Reasons to disable a delivery that don't depend on its target.
OF_DEPLOYMENT = frozenset(DisabledReason) - {DisabledReason.GONE, DisabledReason.FORBIDDEN}


@record(frozen=True)
class Disabled:
    """The reason why a delivery is disabled, since when (ms), and the target's error message."""

    reason: DisabledReason
    since_ms: int
    message: str = ""


@record(frozen=True)
class DeliveryCounts:
    """Numbers of jobs that a delivery has sent to its target since it was created, by outcome."""

    pushed: int = 0
    completed: int = 0
    failed: int = 0
    faults: int = 0
    throttled: int = 0


@record(frozen=True)
class Delivery:
    """A delivery as stored. Times in milliseconds since the epoch.

    The target is exactly one of `function` (ARN), `endpoint` (URL), and `handler`
    (`module:function`, local server only). The delivery serves either `queues` or the queues of a
    `pool`.
    """

    name: str
    function: str | None = None
    endpoint: str | None = None
    handler: str | None = None
    queues: tuple[str, ...] = ()
    pool: str | None = None
    # Empty means all types.
    job_types: tuple[str, ...] = ()
    concurrency: int = DEFAULT_CONCURRENCY
    batch_size: int = 1
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    form: Form = Form.DIRECT
    # Each secret signs each push to an endpoint.
    signing_secrets: tuple[str, ...] = field(default=(), repr=False)
    # IDs of the access key that changed the delivery most recently, and before it the keys from
    # which that key descends. Empty if the change was made without a key.
    line: tuple[str, ...] = ()
    paused: bool = False
    disabled: Disabled | None = None
    breaker: Breaker = field(default_factory=Breaker)
    # End of the backoff after the target throttled, and the number of consecutive throttles.
    backoff_until_ms: int | None = None
    throttles: int = 0
    counts: DeliveryCounts = field(default_factory=DeliveryCounts)
    created_ms: int = 0
    updated_ms: int = 0
    # Number of configuration changes, and of all changes.
    changes: int = 0
    turn: int = 0
    # The sweep has scheduled wake-up messages for the delivery's jobs that are due before this
    # time.
    armed_ms: int = 0

    @property
    def worker_id(self) -> str:
        """The worker ID with which its jobs are claimed."""
        return worker_of(self.name)

    @property
    def lease_ms(self) -> int:
        """Duration of the lease of one push in milliseconds."""
        return EVENT_AGE_MS + self.timeout_ms + GRACE_MS

    @property
    def state(self) -> DeliveryState:
        """The state of the delivery. `paused` takes precedence over `disabled`."""
        if self.paused:
            return DeliveryState.PAUSED
        return DeliveryState.ACTIVE if self.disabled is None else DeliveryState.DISABLED

    @property
    def target(self) -> Mapping[str, str]:
        """The target in the format of a request: one of `function`, `endpoint`, and `handler`."""
        named = {"function": self.function, "endpoint": self.endpoint, "handler": self.handler}
        return {kind: name for kind, name in named.items() if name is not None}

    @property
    def host(self) -> str | None:
        """The host name of the delivery's endpoint."""
        return None if self.endpoint is None else urlsplit(self.endpoint).hostname

    @property
    def receiver(self) -> tuple[object, ...]:
        """A value that identifies the receiver.

        If it changes, the delivery needs new signing secrets.
        """
        parts = urlsplit(self.endpoint or "")
        return (self.unqualified_function, self.handler, parts.scheme, parts.hostname, parts.port)

    @property
    def unqualified_function(self) -> str | None:
        """The ARN of its function without alias or version."""
        return None if self.function is None else unqualified(self.function)

    @property
    def version(self) -> int:
        """A number that increases with each change, even if the delivery is deleted and created
        again.
        """
        return self.created_ms + self.changes

    @property
    def configuration(self) -> dict[str, Any]:
        """The request that configures the delivery like this, without its secrets."""
        served = {"pool": self.pool} if self.pool else {"queues": [*self.queues]}
        optional = {"job_types": [*self.job_types], "paused": self.paused}
        return {
            "target": dict(self.target),
            **served,
            "concurrency": self.concurrency,
            "batch_size": self.batch_size,
            "timeout_ms": self.timeout_ms,
            "form": self.form,
            **{name: value for name, value in optional.items() if value},
        }

    @property
    def etag(self) -> str:
        """The version of the configuration. Also changes with a secret."""
        from ojs.domain.edits import make_version  # only requests of operators need it

        return make_version(self.configuration, self.version)

    @property
    def semaphore(self) -> str:
        """The name of the delivery's semaphore. No queue or pool can have this name."""
        return delivery_semaphore(self.name)


def check_subscription(value: str) -> str:
    """Return `value` if it is the ID of a webhook subscription. Raises ValueError if not."""
    if not SUBSCRIPTION_ID.fullmatch(value):
        raise ValueError("must be sub_ and 16 hex digits")
    return value


def worker_of(name: str) -> str:
    """Return the worker ID of a delivery."""
    return f"{_PREFIX}{name}"


def delivery_of(worker_id: str | None) -> str | None:
    """Return the name of the delivery with this worker ID, or None for other workers."""
    if worker_id is None or not worker_id.startswith(_PREFIX):
        return None
    return worker_id.removeprefix(_PREFIX)


def delivery_semaphore(name: str) -> str:
    """Return the name of a delivery's semaphore."""
    return f":>{name}"


def unqualified(arn: str) -> str:
    """Return the ARN of a function without its alias or version."""
    match = _FUNCTION.fullmatch(arn)
    return arn if match is None else match[1]


def check_delivery(value: str) -> str:
    """Return `value` if it is a valid delivery name.

    Raises ValueError with the violated rule if it is invalid.
    """
    if not _DELIVERY.fullmatch(value):
        raise ValueError(
            "must start with a letter or digit and contain only letters, digits, '-', '_', and '.'"
        )
    if len(value) > MAX_DELIVERY_BYTES:
        raise ValueError(f"must have at most {MAX_DELIVERY_BYTES} characters")
    return value


def _function(value: str) -> str:
    if not _FUNCTION.fullmatch(value):
        raise ValueError(
            "must be the ARN of a Lambda function, optionally with an alias or version, for "
            "example arn:aws:lambda:eu-central-1:123456789012:function:resize"
        )
    return value


def _endpoint(value: str) -> str:
    if len(value.encode()) > MAX_URL_BYTES or not value.isprintable() or " " in value:
        raise ValueError(f"must be a URL of at most {MAX_URL_BYTES} bytes without spaces")
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("must be a valid URL") from None
    if parts.scheme not in ("https", "http") or not host:
        raise ValueError("must be an HTTPS URL")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("must not contain a user, a password, or a fragment")
    return value


def _handler(value: str) -> str:
    if not _HANDLER.fullmatch(value):
        raise ValueError("must be a function of a module, for example jobs.images:resize")
    return value


def _secret(value: str) -> str:
    if not (8 <= len(value.encode()) <= MAX_SECRET_BYTES and value.isprintable()):
        raise ValueError(
            f"must have 8 to {MAX_SECRET_BYTES} bytes and contain only printable characters"
        )
    return value


def check_secrets(before: Delivery | None, after: Delivery, raw: object) -> None:
    """Check the signing secrets of a changed delivery.

    Args:
        before: Stored delivery, or None for a new one.
        after: Delivery to store.
        raw: Request body, which determines the field that an error names.

    Raises:
        InvalidRequest: A new secret is too short, or the receiver changed and a secret was kept.
    """
    known = () if before is None else before.signing_secrets
    body = raw if isinstance(raw, Mapping) else {}
    config = body.get("config")
    field = "signing_secrets" if body.get("signing_secrets") is not None else "signing_secret"
    if isinstance(config, Mapping) and config.get("signing_secret") is not None:
        field = "config.signing_secret"
    for secret in set(after.signing_secrets) - set(known):
        if len(secret.encode()) < MIN_SECRET_BYTES:
            rule = f"must have at least {MIN_SECRET_BYTES} bytes. Use a longer random secret"
            raise InvalidRequest(field, rule)
    if before is None or before.receiver == after.receiver:
        return
    if set(known) & set(after.signing_secrets):
        rule = "must be new for another host or function. Send a secret that was not used before"
        raise InvalidRequest(field, rule)


DeliveryName = Annotated[
    str,
    After(check_delivery),
    Field(json_schema_extra={"pattern": DELIVERY_PATTERN, "maxLength": MAX_DELIVERY_BYTES}),
]
FunctionArn = Annotated[str, After(_function)]
Endpoint = Annotated[str, After(_endpoint)]
HandlerName = Annotated[str, After(_handler)]
Secret = Annotated[str, After(_secret)]
Concurrency = Annotated[int, NumberRange(1, MAX_CONCURRENCY)]
TimeoutMs = Annotated[int, NumberRange(1_000, MAX_TIMEOUT_MS)]


class TargetRequest(Model):
    """Where jobs are pushed: one of the three."""

    function: FunctionArn | None = Field(
        None, description="ARN of a Lambda function that the deployment allows, or of an alias"
    )
    endpoint: Endpoint | None = Field(None, description="https URL with public addresses")
    handler: HandlerName | None = Field(
        None, description="`module:function`, on the local server alone"
    )


class DeliveryConfig(Model):
    """The part `config` of the specification's registration."""

    max_concurrency: Concurrency | None = None
    timeout_ms: TimeoutMs | None = None
    signing_secret: Secret | None = None


class DeliveryRequest(Model):
    """A delivery. It replaces the whole configuration, and a missing field gets its default.

    Signing secrets are the exception: they are kept if neither `signing_secret` nor
    `signing_secrets` is set.
    """

    name: DeliveryName | None = None
    target: TargetRequest | None = None
    endpoint: Endpoint | None = Field(None, description="the same as target.endpoint")
    queues: (
        Annotated[list[QueueName], Field(min_length=1, max_length=MAX_DELIVERY_QUEUES)] | None
    ) = None
    pool: PoolName | None = None
    job_types: Annotated[list[JobType], Field(max_length=MAX_DELIVERY_TYPES)] | None = Field(
        None, description="none or empty: all types; others stay for workers that fetch"
    )
    concurrency: Concurrency | None = Field(None, description="most pushes at a time")
    batch_size: Annotated[int, NumberRange(1, MAX_BATCH_SIZE)] | None = Field(
        None, description="jobs of one event, with the form sqs alone"
    )
    timeout_ms: TimeoutMs | None = Field(None, description="how long the target may take")
    form: Form | None = None
    signing_secret: Secret | None = None
    signing_secrets: Annotated[list[Secret], Field(max_length=MAX_SECRETS)] | None = None
    paused: bool | None = None
    config: DeliveryConfig | None = None


class DeliveryTestRequest(Model):
    """The job of a test push."""

    type: JobType | None = None
    args: list[Any] | None = None


def parse(name: str | None, raw: object) -> tuple[Delivery, bool]:
    """Parse a request body. Returns the delivery and whether the request sets its secrets.

    If neither the path (`name`) nor the body names the delivery, the name is derived from the
    target. Raises InvalidRequest.
    """
    if not isinstance(raw, Mapping):
        raise InvalidRequest("body", "must be a JSON object", value=raw)
    wanted = {key: value for key, value in raw.items() if key == "name" or key not in SHOWN_BACK}
    given = DeliveryRequest.model_validate(wanted)
    if name is not None:
        try:
            check_delivery(name)
        except ValueError as error:
            raise InvalidRequest("name", str(error), value=name) from None
        if given.name not in (None, name):
            raise InvalidRequest("name", "must equal the name in the path", value=given.name)
    target = given.target or TargetRequest(function=None, endpoint=None, handler=None)
    endpoint = _same("target.endpoint", target.endpoint, "endpoint", given.endpoint)
    config = given.config or DeliveryConfig(
        max_concurrency=None, timeout_ms=None, signing_secret=None
    )
    targets = [each for each in (target.function, endpoint, target.handler) if each is not None]
    if len(targets) != 1:
        raise InvalidRequest("target", "must have exactly one of function, endpoint, and handler")
    if bool(given.queues) == bool(given.pool):
        raise InvalidRequest("queues", "requires either queues or pool, not both")
    queues = tuple(given.queues or ())
    if len(set(queues)) < len(queues):
        raise InvalidRequest("queues", "must not contain duplicates")
    types = tuple(dict.fromkeys(given.job_types or ()))
    form = _form(given.form, is_function=endpoint is None)
    batch_size = given.batch_size or 1
    if batch_size > 1 and form is not Form.SQS:
        raise InvalidRequest("batch_size", "must be 1, unless form is sqs", value=batch_size)
    concurrency = _same(
        "concurrency", given.concurrency, "config.max_concurrency", config.max_concurrency
    )
    timeout_ms = _same("timeout_ms", given.timeout_ms, "config.timeout_ms", config.timeout_ms)
    secret = _same(
        "signing_secret", given.signing_secret, "config.signing_secret", config.signing_secret
    )
    if secret is not None and given.signing_secrets is not None:
        rule = "can't be combined with signing_secret. Send one of them"
        raise InvalidRequest("signing_secrets", rule)
    secrets = tuple(given.signing_secrets or ()) if secret is None else (secret,)
    delivery = Delivery(
        name=name or given.name or _name_of(targets[0]),
        function=target.function,
        endpoint=endpoint,
        handler=target.handler,
        queues=queues,
        pool=given.pool,
        job_types=types,
        concurrency=concurrency or DEFAULT_CONCURRENCY,
        batch_size=batch_size,
        timeout_ms=timeout_ms or DEFAULT_TIMEOUT_MS,
        form=form,
        signing_secrets=secrets,
        paused=bool(given.paused),
    )
    return delivery, secret is not None or given.signing_secrets is not None


def endpoint_field(raw: object) -> str:
    """Return the name of the field in which a request body sets the endpoint."""
    target = raw.get("target") if isinstance(raw, Mapping) else None
    return "endpoint" if target is None else "target.endpoint"


def _same(name: str, value: Any, other: str, another: Any) -> Any:
    """Return the value of two equivalent fields. Raises InvalidRequest if they differ."""
    if value is not None and another is not None and value != another:
        raise InvalidRequest(
            other,
            f"conflicts with {name}: both set the same value. Send only one of them",
            value=another,
        )
    return another if value is None else value


def _form(wanted: str | None, *, is_function: bool) -> Form:
    form = Form(wanted or (Form.DIRECT if is_function else Form.PUSH))
    if not is_function and form is not Form.PUSH:
        raise ValidationFailed("form", "must be push for an endpoint", value=wanted)
    return form


def _name_of(target: str) -> str:
    """Derive a delivery name from its target. The same target always gives the same name."""
    host = (urlsplit(target).hostname or target).replace(":", "-").strip("[]-._")
    digest = hashlib.sha256(target.encode()).hexdigest()[:8]
    return f"{host[: MAX_DELIVERY_BYTES - 9]}-{digest}"
