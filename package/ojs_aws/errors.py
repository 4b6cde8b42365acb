"""Errors of requests, by HTTP status and error code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class OjsError(Exception):
    """Base class: a request did not succeed."""


class Unreachable(OjsError):
    """No attempt got a valid response.

    Attributes:
        sent: Whether the request may have reached the server. If true, its outcome is unknown.
    """

    sent: bool = True


class WaitTimeout(OjsError):
    """The job was not in a final state in time.

    Attributes:
        job: The job, as last read.
    """

    def __init__(self, job: Any) -> None:
        self.job = job
        super().__init__(f"Job {job.id} is {job.state}: it was not in a final state in time.")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.job,))


class JobError(OjsError):
    """A job did not complete.

    Attributes:
        job_id: ID of the job.
        state: Its state, for example `discarded`.
        error: Its error with `code`, `type`, and `message`. {} if it was cancelled.
    """

    def __init__(self, job_id: str, state: str, error: Mapping[str, Any] | None) -> None:
        self.job_id = job_id
        self.state = state
        self.error = dict(error or {})
        reason = f": {self.error.get('message')}" if self.error else ""
        super().__init__(f"Job {job_id} is {state}{reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.job_id, self.state, self.error))


class ApiError(OjsError):
    """The server rejected a request.

    Attributes:
        status: HTTP status.
        code: Error code, for example `not_found` or `conflict`.
        message: Text of the error.
        details: More facts about the error, for example `field`.
        request_id: ID of the request in the server's log.
        repeated: Whether an earlier attempt has an unknown outcome. If true, a `conflict` can mean
            that the earlier attempt succeeded.
        retry_after_s: `Retry-After` in seconds. 0 without that header.
    """

    # `Retry-After` in seconds.
    retry_after_s: float = 0.0

    def __init__(self, status: int, error: Mapping[str, Any], *, repeated: bool = False) -> None:
        self.status = status
        self.code = str(error.get("code") or "")
        self.message = str(error.get("message") or "")
        details = error.get("details")
        self.details: dict[str, Any] = details if isinstance(details, dict) else {}
        self.request_id = error.get("request_id")
        self.repeated = repeated
        super().__init__(f"{status} {self.code}: {self.message}")

    def __reduce__(self) -> tuple[Any, ...]:
        # The pickled state contains all other attributes.
        return (type(self), (self.status, {}), self.__dict__ | {"args": self.args})


class BadRequest(ApiError):
    """400 or 405: the request is invalid. `details["field"]` names the field."""


class Unauthenticated(ApiError):
    """401: the access key is missing, unknown, or expired."""


class PermissionDenied(ApiError):
    """403: the access key doesn't have the required scope or queue."""


class NotFound(ApiError):
    """404: the resource doesn't exist, or was deleted."""


class Conflict(ApiError):
    """409: the state of the job, queue, or worker doesn't allow the request."""


class Duplicate(Conflict):
    """409 `duplicate`: a job with this ID or this unique key exists."""


class Gone(ApiError):
    """410: the result of the job has expired."""


class PayloadTooLarge(ApiError):
    """413: the payload is too large."""


class Unprocessable(ApiError):
    """422: a policy in the request is invalid."""


class Unsupported(Unprocessable):
    """422 `unsupported`: the server doesn't support this feature."""


class TooManyRequests(ApiError):
    """429: too many requests. Retry after `retry_after_s`."""


class QueueFull(TooManyRequests):
    """429 `QUEUE_FULL`: the queue is at capacity."""


class ServerError(ApiError):
    """5xx: the request failed on the server. The outcome can be unknown."""


class Unavailable(ServerError):
    """502, 503, or 504: the server is temporarily unavailable."""


_BY_CODE: dict[str, type[ApiError]] = {
    "duplicate": Duplicate,
    "unsupported": Unsupported,
    "QUEUE_FULL": QueueFull,
}
_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    405: BadRequest,
    409: Conflict,
    410: Gone,
    413: PayloadTooLarge,
    422: Unprocessable,
    429: TooManyRequests,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def refusal(status: int, body: object, *, repeated: bool = False) -> ApiError:
    """Convert an error response to an exception.

    Args:
        status: HTTP status, 300 or higher.
        body: JSON body of the response.
        repeated: Whether an earlier attempt has an unknown outcome.

    Returns:
        The exception. Its class depends on the error code, otherwise on the status.
    """
    error = body.get("error", body) if isinstance(body, Mapping) else {}
    if not isinstance(error, Mapping):
        error = {"message": str(error)}
    fallback = ServerError if status >= 500 else ApiError
    kind = _BY_CODE.get(str(error.get("code")), _BY_STATUS.get(status, fallback))
    return kind(status, error, repeated=repeated)
