"""All errors that a client can see, each with its code (ojs-http-binding, section 16.3).

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
    """Root of all errors that are meant for the client."""

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
    """An error that was told once, and is told again."""

    def __init__(
        self, code: str, message: str, *, retryable: bool, details: Mapping[str, Any]
    ) -> None:
        waits = _RETRY.search(message) if retryable else None
        super().__init__(message, details=details, retry_after_s=waits and int(waits[1]))
        self.code = code  # type: ignore[misc]
        self.retryable = retryable  # type: ignore[misc]


class InvalidPayload(OjsError):
    """The request's body is not acceptable JSON."""

    code = "invalid_payload"


class InvalidRequest(OjsError):
    """A field is missing or wrong. `field` is its path, `reason` the rule it breaks."""

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


# The rule that a bad cursor of a listing breaks.
BAD_CURSOR = "is not a valid cursor. Use next_cursor from the previous response"


@contextmanager
def naming_field(field: str, value: object, rule: str | None = None) -> Iterator[None]:
    """Turn a ValueError about a value into the InvalidRequest that names its field.

    The rule that the value breaks is `rule`, or else the text of the error.
    """
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(field, rule or str(error), value=value) from None


class ValidationFailed(InvalidRequest):
    """The request is well-formed, but breaks a rule of a policy (HTTP 422)."""

    code = "validation_error"


class Unsupported(OjsError):
    """The request asks for something this server does not offer."""

    code = "unsupported"

    def __init__(
        self, message: str, *, field: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, details=({"field": field} if field else {}) | dict(details or {}))


class PayloadTooLarge(OjsError):
    """The job, the result or the request is larger than allowed. Sizes in bytes."""

    code = "payload_too_large"

    def __init__(self, what: str, *, size: int, limit: int, queue: str | None = None) -> None:
        """`limit` is that of a `queue`, if one is given: in all of its jobs together."""
        rule = f"'{what}' has {size} bytes. At most {limit} bytes are allowed."
        if queue is not None:
            rule = f"'{what}' has {size} bytes. Queue '{queue}' allows {limit} bytes in total."
        super().__init__(
            rule,
            details={"field": what, "size": size, "limit": limit}
            | ({} if queue is None else {"queue": queue}),
        )


class TooManyJobs(OjsError):
    """A request has more jobs than one may have (ojs-bulk-operations, section 9.1)."""

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
    """No such job, queue or worker."""

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
    """In strict mode: the queue must be created before its first job."""

    code = "queue_not_found"

    def __init__(self, name: str) -> None:
        super().__init__("queue", name)
        self.details["queue"] = shorten(name)


class TooManyQueues(OjsError):
    """A job is for a queue that is not there, and there are as many as there may be (`limit`)."""

    code = "too_many_queues"

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(
            f"Queue '{shorten(name)}' doesn't exist and can't be created, because the deployment "
            f"has reached its limit of {limit} queues (setting max_queues). Use an existing queue.",
            details={"field": "queue", "queue": shorten(name), "limit": limit},
        )


class LimitReached(OjsError):
    """There are as many things as there can be (`limit`); `field` names the one that is refused."""

    code = "limit_reached"

    def __init__(self, field: str, message: str, limit: int) -> None:
        super().__init__(message, details={"field": field, "limit": limit})


class JobTypeNotAllowed(OjsError):
    """The queue does not admit jobs of this type (ojs-queue-config, section 6.5)."""

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
    """No valid key. The message does not reveal what is wrong with it."""

    code = "unauthenticated"

    def __init__(self) -> None:
        super().__init__(
            "A valid access key is required. Send the header `Authorization: Bearer <key>`."
        )


class PermissionDenied(OjsError):
    """The caller may not do this."""

    code = "permission_denied"


def forbidden() -> PermissionDenied:
    """The caller lacks permission. The message does not reveal whether scope or queue failed."""
    return PermissionDenied("You don't have permission for this operation.")


class Conflict(OjsError):
    """The resource is not in a state that allows the operation; nothing was changed."""

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


class KeyTaken(Conflict):
    """An idempotency key (`field`) came with another request before."""

    def __init__(self, field: str) -> None:
        rule = "was used for a different request. Use a new key"
        super().__init__(f"'{field}': {rule}.", details={"field": field, "reason": rule})


class QueueDraining(Conflict):
    """The queue is being deleted and takes no more jobs."""

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
    """The queue is being deleted if it is empty. It may stay: the client may retry soon."""

    retryable = True

    def __init__(self, queue: str) -> None:
        super().__init__(
            queue,
            f"Queue '{queue}' doesn't accept jobs until a request to delete it is finished. "
            "A queue with jobs is not deleted.",
            retry_after_s=1,
        )


class Duplicate(OjsError):
    """A job with this id or unique key exists already."""

    code = "duplicate"


class NotStored(OjsError):
    """A job of a request that is stored whole or not at all: another one was refused."""

    code = "not_stored"

    def __init__(self) -> None:
        super().__init__(
            "This job was not stored, because another job of the request was rejected."
        )


class QueueFull(OjsError):
    """The queue has no room (ojs-backpressure, section 7.1); nothing was stored.

    `unit` says what is bounded: `jobs` or `bytes`.
    """

    code = "QUEUE_FULL"
    retryable = True

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
        super().__init__(
            message
            or f"Queue '{queue}' doesn't have enough capacity: it contains {depth} of at most "
            f"{bound} {unit}.",
            details={**self.queue, "unit": unit},
            retry_after_s=retry_after_s,
        )


class BatchTooLarge(QueueFull):
    """A batch has more jobs for a queue than it may ever hold; nothing was stored.

    A refusal of a bounded queue, as ojs-backpressure section 9.3 has it, but no reason to try
    again.
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
    """The deployment's middleware refuses the job; nothing was stored."""

    code = "middleware_refused"


class MiddlewareError(OjsError):
    """The deployment's middleware failed (ojs-error-catalog, 4.7); nothing was stored."""

    code = "middleware_error"
    retryable = True

    def __init__(self, name: str | None = None, *, what: str = "failed") -> None:
        super().__init__(
            f"The middleware of this deployment {what}. Nothing was stored. Retry the request.",
            details={} if name is None else {"middleware": name},
        )


class MiddlewareTimeout(MiddlewareError):
    """The deployment's middleware took too long; nothing was stored, and it will not be."""

    code = "middleware_timeout"

    def __init__(self) -> None:
        super().__init__(what="timed out")


class BackendError(OjsError):
    """The store failed in a way that the client cannot correct."""

    retryable = True


class BackendUnavailable(BackendError):
    """Throttled, contended or unreachable; the client may retry after `retry_after_s` seconds."""

    code = "backend_unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class UnknownForm(BackendUnavailable):
    """What is stored has a form that only a newer version knows; nothing was changed."""

    def __init__(self, what: str, value: object) -> None:
        super().__init__(
            f"The stored data requires a newer server version: {what} '{shorten(str(value))}'.",
            retry_after_s=60,
        )


K = TypeVar("K", bound=Enum)


def known(kind: type[K], stored: object, what: str, otherwise: K | None = None) -> K:
    """A stored member of a closed set, to which newer versions may have added members.

    One that is unknown is read as `otherwise`; without that, UnknownForm is raised.
    """
    try:
        return kind(stored)
    except ValueError:
        if otherwise is None:
            raise UnknownForm(what, stored) from None
        return otherwise


class BackendContended(BackendUnavailable):
    """Others changed the same items first, each time; nothing is wrong with the store."""


class BackendTimeout(BackendError):
    """No answer in time: the outcome is unknown."""

    code = "backend_timeout"


def without_retry(message: str) -> str:
    """A message without `Retry after N s.` at its end."""
    return _RETRY.sub("", message)


def with_end(text: str) -> str:
    """A text that ends with one period or question mark."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def any_of(names: Iterable[str], word: str = "or") -> str:
    """List names as a text: `a`, `a or b`, or `a, b, or c`."""
    *some, last = names
    if len(some) < 2:
        return f" {word} ".join((*some, last))
    return f"{', '.join(some)}, {word} {last}"


def shorten(value: Any, limit: int = 100) -> Any:
    """A value small enough for an error body: long texts are cut, containers named by type."""
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
