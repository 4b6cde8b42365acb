"""All errors that a client can receive, each with its code (ojs-http-binding, section 16.3).

`ojs.http.binding.errors` maps codes to HTTP statuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, ClassVar, TypeVar

_RETRY = re.compile(r" Retry after (\d+) s\.$")


class OjsError(Exception):
    """Base class of all errors that are returned to the client."""

    code: ClassVar[str] = "backend_error"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        if retry_after_s is not None:
            message = f"{without_retry(message)} Retry after {retry_after_s} s."
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
        self.retry_after_s = retry_after_s


class StoredError(OjsError):
    """An error of an earlier request that was stored and is returned again."""

    def __init__(
        self, code: str, message: str, *, retryable: bool, details: Mapping[str, Any]
    ) -> None:
        waits = _RETRY.search(message) if retryable else None
        super().__init__(message, details=details, retry_after_s=waits and int(waits[1]))
        self.code = code  # type: ignore[misc]
        self.retryable = retryable  # type: ignore[misc]


class InvalidPayload(OjsError):
    """The body of the request is not valid JSON or exceeds a limit of the JSON parser."""

    code = "invalid_payload"


class InvalidRequest(OjsError):
    """A field is missing or invalid. `field` is its path, `reason` the rule that it breaks."""

    code = "invalid_request"

    def __init__(
        self,
        field: str,
        reason: str,
        *,
        value: Any = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        rule = {"field": field, "reason": reason}
        shown = {} if value is None else {"value": shorten(value)}
        super().__init__(
            f"'{field}': {with_end(reason)}", details=rule | shown | dict(details or {})
        )
        self.field = field
        self.reason = reason


# The reason for an invalid cursor of a listing.
BAD_CURSOR = "is not a valid cursor. Use next_cursor from the previous response"


@contextmanager
def naming_field(field: str, value: object, rule: str | None = None) -> Iterator[None]:
    """Convert a ValueError in the block to an InvalidRequest that names the field.

    Args:
        field: Path of the field.
        value: Value of the field, for the error.
        rule: Rule that the value breaks. Default: the text of the ValueError.
    """
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(field, rule or str(error), value=value) from None


class ValidationFailed(InvalidRequest):
    """The request is well-formed but breaks a rule of a policy (HTTP 422)."""

    code = "validation_error"


class Unsupported(OjsError):
    """The request uses a feature that this server does not support."""

    code = "unsupported"

    def __init__(
        self, message: str, *, field: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, details=({"field": field} if field else {}) | dict(details or {}))


class SchemaMismatch(ValidationFailed):
    """The arguments of a job don't match the schema of its type, in mode `strict`.

    `field` is the prefix of the field, `index` that of the job. `version` is the version of the
    schema.
    """

    def __init__(
        self, prefix: str, job_type: str, version: str, errors: list[str], index: int
    ) -> None:
        super().__init__(
            f"{prefix}args",
            f"must match the schema of {job_type}@{version}. See details.validation_errors",
            details={"validation_errors": errors, "job_type": job_type, "version": version},
        )
        self.index = index


class NotImplementedFeature(Unsupported):
    """The request uses an optional part of an operation that this server doesn't have."""

    code = "not_implemented"


class PayloadTooLarge(OjsError):
    """The job, the result, or the request is larger than allowed. Sizes in bytes."""

    code = "payload_too_large"

    def __init__(self, what: str, *, size: int, limit: int, queue: str | None = None) -> None:
        """If `queue` is set, `limit` is the total of all jobs of that queue."""
        rule = f"'{what}' has {size} bytes. At most {limit} bytes are allowed."
        if queue is not None:
            rule = f"'{what}' has {size} bytes. Queue '{queue}' allows {limit} bytes in total."
        super().__init__(
            rule,
            details={"field": what, "size": size, "limit": limit}
            | ({} if queue is None else {"queue": queue}),
        )


class ResultTooLarge(PayloadTooLarge):
    """The result of a job is larger than allowed. The job is still active."""

    code = "RESULT_TOO_LARGE"


class ResultPruned(OjsError):
    """The time to live of the job's result has ended."""

    code = "RESULT_PRUNED"

    def __init__(self, expired_at: str) -> None:
        """Create the error. `expired_at` is when the result expired (RFC 3339)."""
        super().__init__(
            f"The result of the job expired at {expired_at}.", details={"expired_at": expired_at}
        )


class TooManyJobs(OjsError):
    """A request contains too many jobs (ojs-bulk-operations, section 9.1)."""

    code = "BATCH_SIZE_EXCEEDED"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"The request has {size} jobs. At most {limit} are allowed. Split the request.",
            details={"field": "jobs", "size": size, "limit": limit},
        )
        self.limit = limit


class MetadataTooLarge(PayloadTooLarge):
    """`meta` is larger than allowed."""

    code = "metadata_too_large"


class NotFound(OjsError):
    """The job, queue, worker, or other resource does not exist."""

    code = "not_found"

    def __init__(self, resource: str, identifier: str) -> None:
        super().__init__(
            f"{resource.capitalize().replace('_', ' ')} '{shorten(identifier)}' not found.",
            details={
                "resource": resource,
                "id": shorten(identifier),
                "resource_type": resource,
                "resource_id": shorten(identifier),
            },
        )


class QueueNotFound(NotFound):
    """The queue does not exist. Strict mode requires that it is created before its first job."""

    code = "queue_not_found"

    def __init__(self, name: str) -> None:
        super().__init__("queue", name)
        self.details["queue"] = shorten(name)


class TooManyQueues(OjsError):
    """The job's queue does not exist, and the maximum number of queues (`limit`) is reached."""

    code = "too_many_queues"

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(
            f"Queue '{shorten(name)}' doesn't exist and can't be created, because the deployment "
            f"has reached its limit of {limit} queues (setting max_queues). Use an existing queue.",
            details={"field": "queue", "queue": shorten(name), "limit": limit},
        )


class LimitReached(OjsError):
    """The maximum number of a resource (`limit`) is reached. `field` names the rejected one."""

    code = "limit_reached"

    def __init__(self, field: str, message: str, limit: int) -> None:
        super().__init__(message, details={"field": field, "limit": limit})


class JobTypeNotAllowed(OjsError):
    """The queue does not accept jobs of this type (ojs-queue-config, section 6.5)."""

    code = "JOB_TYPE_NOT_ALLOWED"

    def __init__(self, queue: str, job_type: str, allowed: Iterable[str]) -> None:
        super().__init__(
            f"Queue '{queue}' doesn't accept jobs of type '{shorten(job_type)}'. Use a type that "
            "matches details.allowed_job_types.",
            details={
                "field": "type",
                "queue": queue,
                "job_type": shorten(job_type),
                "allowed_job_types": list(allowed),
            },
        )


class Unauthenticated(OjsError):
    """The request has no valid access key. The message does not reveal the reason."""

    code = "unauthenticated"

    def __init__(self) -> None:
        super().__init__(
            "A valid access key is required. Send the header `Authorization: Bearer <key>`."
        )


class PermissionDenied(OjsError):
    """The caller does not have permission."""

    code = "permission_denied"


def forbidden() -> PermissionDenied:
    """Create the error. The message does not reveal whether the scope or the queue is missing."""
    return PermissionDenied("You don't have permission for this operation.")


class Conflict(OjsError):
    """The state of the resource does not allow the operation. Nothing was changed."""

    code = "conflict"

    def __init__(
        self,
        message: str,
        *,
        current_state: str | None = None,
        expected_states: Iterable[str] = (),
        details: Mapping[str, Any] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message, details=details, retry_after_s=retry_after_s)
        if current_state:
            self.details["current_state"] = current_state
        if expected := list(expected_states):
            self.details["expected_states"] = expected


class PreconditionFailed(OjsError):
    """The configuration doesn't have the version in If-Match. Nothing was changed."""

    code = "precondition_failed"

    def __init__(self, kind: str, name: str, etag: str | None) -> None:
        """`etag` is the current version, or None if there is none."""
        state = "doesn't exist" if etag is None else "exists, or has changed since you read it"
        super().__init__(
            f"{kind.capitalize()} '{shorten(name)}' {state}. Nothing was changed.",
            details={"resource": kind, "id": shorten(name)} | ({"etag": etag} if etag else {}),
        )


class KeyTaken(Conflict):
    """The idempotency key in `field` was already used for a different request."""

    def __init__(self, field: str) -> None:
        rule = "was used for a different request. Use a new key"
        super().__init__(f"'{field}': {rule}.", details={"field": field, "reason": rule})


class QueueDraining(Conflict):
    """The queue is being deleted and rejects new jobs."""

    code = "queue_draining"

    def __init__(
        self, queue: str, message: str | None = None, *, retry_after_s: int | None = None
    ) -> None:
        super().__init__(
            message
            or f"Queue '{queue}' is being deleted (state draining) and doesn't accept jobs. "
            "Use another queue.",
            current_state="draining",
            details={"queue": queue},
            retry_after_s=retry_after_s,
        )


class QueueMayStay(QueueDraining):
    """The queue is being deleted if it is empty. It might be kept, so the client can retry soon."""

    retryable = True

    def __init__(self, queue: str) -> None:
        super().__init__(
            queue,
            f"Queue '{queue}' doesn't accept jobs until a request to delete it is finished. "
            "A queue with jobs is not deleted.",
            retry_after_s=1,
        )


class Duplicate(OjsError):
    """A job with this ID or unique key already exists."""

    code = "duplicate"


class NotStored(OjsError):
    """The job was not stored, because another job of the same atomic request was rejected."""

    code = "not_stored"

    def __init__(self) -> None:
        super().__init__(
            "This job was not stored, because another job of the request was rejected."
        )


class TooManyRequests(OjsError):
    """The access key exceeds its limit of requests."""

    code = "rate_limited"
    retryable = True

    def __init__(self, limit: int) -> None:
        """Create the error. `limit` is in requests a second."""
        super().__init__(
            f"The access key allows {limit} requests per second.",
            details={"limit": limit},
            retry_after_s=1,
        )


class CapacityExceeded(OjsError):
    """A limit of a queue or a tenant is reached. Nothing was stored.

    `shown` are the fields of the error at the level of the code, in addition to `details`.
    """

    retryable = True
    shown: Mapping[str, Any]


class QueueFull(CapacityExceeded):
    """The queue is at capacity (ojs-backpressure, section 7.1). Nothing was stored.

    `unit` is the unit of the limit: `jobs` or `bytes`.
    """

    code = "QUEUE_FULL"

    def __init__(
        self,
        queue: str,
        *,
        depth: int,
        bound: int,
        strategy: str,
        unit: str = "jobs",
        retry_after_s: int | None = 5,
        message: str | None = None,
    ) -> None:
        self.queue = {"queue": queue, "depth": depth, "bound": bound, "strategy": strategy}
        self.shown = self.queue
        super().__init__(
            message
            or f"Queue '{queue}' doesn't have enough capacity: it contains {depth} of at most "
            f"{bound} {unit}.",
            details={**self.queue, "unit": unit},
            retry_after_s=retry_after_s,
        )


class TenantSuspended(PermissionDenied):
    """An operator has suspended the tenant. Its jobs are neither pushed nor fetched."""

    code = "tenant_suspended"
    retryable = True

    def __init__(self, tenant: str) -> None:
        super().__init__(f"Tenant '{tenant}' is suspended.", details={"tenant_id": tenant})


class TenantLimitExceeded(CapacityExceeded):
    """A push exceeds a limit of its tenant (ojs-multi-tenancy, section 8.2). Nothing was stored."""

    code = "TENANT_LIMIT_EXCEEDED"

    def __init__(self, tenant: str, limit: str, *, current: int, maximum: int) -> None:
        """`limit` is the name of the limit, and `current` what the tenant has without the push."""
        self.shown = {
            "tenant_id": tenant, "limit": limit, "current": current, "maximum": maximum,
        }  # fmt: skip
        super().__init__(
            f"Tenant '{tenant}' has {current} of at most {maximum} ({limit}), so the request "
            "exceeds a limit.",
            details=self.shown,
            retry_after_s=30,
        )


class BatchTooLarge(QueueFull):
    """A batch contains more jobs for a queue than its size limit. Nothing was stored.

    The error of a full queue (ojs-backpressure, section 9.3), but not retryable.
    """

    retryable = False

    def __init__(self, queue: str, *, count: int, depth: int, bound: int, strategy: str) -> None:
        super().__init__(
            queue,
            depth=depth,
            bound=bound,
            strategy=strategy,
            retry_after_s=None,
            message=f"The request has {count} jobs for queue '{queue}', which can hold at most "
            f"{bound}. Send smaller batches.",
        )
        self.details |= {"field": "jobs", "size": count, "limit": bound}


class MiddlewareRefusal(OjsError):
    """The middleware of the deployment rejected the job. Nothing was stored."""

    code = "middleware_refused"


class MiddlewareError(OjsError):
    """The middleware of the deployment failed (ojs-error-catalog, 4.7). Nothing was stored."""

    code = "middleware_error"
    retryable = True

    def __init__(self, name: str | None = None, *, what: str = "failed") -> None:
        super().__init__(
            f"The middleware of this deployment {what}. Nothing was stored. Retry the request.",
            details={} if name is None else {"middleware": name},
        )


class MiddlewareTimeout(MiddlewareError):
    """The middleware of the deployment timed out. Nothing was or will be stored."""

    code = "middleware_timeout"

    def __init__(self) -> None:
        super().__init__(what="timed out")


class BackendError(OjsError):
    """The store failed. The client can't correct the cause."""

    retryable = True


class BackendUnavailable(BackendError):
    """The store is throttled, contended, or unreachable. Retry after `retry_after_s` seconds."""

    code = "backend_unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class UnknownForm(BackendUnavailable):
    """A stored value has a format that only a newer version supports. Nothing was changed."""

    def __init__(self, what: str, value: object) -> None:
        super().__init__(
            f"The stored data requires a newer server version: {what} '{shorten(str(value))}'.",
            retry_after_s=60,
        )


K = TypeVar("K", bound=Enum)


def known(kind: type[K], stored: object, what: str, otherwise: K | None = None) -> K:
    """Read a stored enum value. Newer versions might have stored values that are unknown here.

    Args:
        kind: Enum class.
        stored: Stored value.
        what: Description of the value, for the error.
        otherwise: Result for an unknown value. Default: raise the error.

    Raises:
        UnknownForm: The value is unknown and `otherwise` is None.
    """
    try:
        return kind(stored)
    except ValueError:
        if otherwise is None:
            raise UnknownForm(what, stored) from None
        return otherwise


class BackendContended(BackendUnavailable):
    """Concurrent requests changed the same items in each attempt. The store itself is healthy."""


class BackendTimeout(BackendError):
    """The store did not respond in time. The outcome is unknown."""

    code = "backend_timeout"


def without_retry(message: str) -> str:
    """Return a message without `Retry after N s.` at its end."""
    return _RETRY.sub("", message)


def with_end(text: str) -> str:
    """Return a text that ends with one period or question mark."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def any_of(names: Iterable[str], word: str = "or") -> str:
    """List names as a text: `a`, `a or b`, or `a, b, or c`."""
    *some, last = names
    if len(some) < 2:
        return f" {word} ".join((*some, last))
    return f"{', '.join(some)}, {word} {last}"


def shorten(value: Any, limit: int = 100) -> Any:
    """Shorten a value for an error: long strings are cut, containers are replaced by their type."""
    if isinstance(value, str):
        return value if len(value) <= limit else value[:limit] + "…"
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else "a very large integer"
    if value is None:
        return None
    names = {"dict": "object", "list": "array", "Decimal": "number"}
    return names.get(type(value).__name__, type(value).__name__)
