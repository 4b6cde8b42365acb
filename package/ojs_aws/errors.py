"""What can go wrong with a request, as a tree: by status, and by code where that says more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class OjsError(Exception):
    """A request did not succeed."""


class Unreachable(OjsError):
    """No clear answer, however often it was asked for: if `sent`, the request may have been carried
    out.
    """

    sent: bool = True


class ApiError(OjsError):
    """The server refused a request.

    `code` is the error's name (`not_found`, `conflict` …), `details` says more. `repeated` says
    that an earlier try of the same request had no clear answer: it may have been carried out, and
    then a `conflict` only means that it was.
    """

    # Seconds that the server asks to wait, if it does.
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
        # The state that pickle adds has the rest.
        return (type(self), (self.status, {}), self.__dict__ | {"args": self.args})


class BadRequest(ApiError):
    """400 or 405: the request is not what the server takes; `details["field"]` names the field."""


class Unauthenticated(ApiError):
    """401: there is no key, or it has ended."""


class PermissionDenied(ApiError):
    """403: the key does not allow it."""


class NotFound(ApiError):
    """404: there is no such thing, or not any more."""


class Conflict(ApiError):
    """409: the job, queue or worker is in a state that does not go with it."""


class Duplicate(Conflict):
    """409 `duplicate`: a job with this id, or with the same unique key, exists."""


class PayloadTooLarge(ApiError):
    """413."""


class Unprocessable(ApiError):
    """422: a policy in the request breaks a rule."""


class Unsupported(Unprocessable):
    """422 `unsupported`: the server knows the feature and does not offer it."""


class TooManyRequests(ApiError):
    """429: not now."""


class QueueFull(TooManyRequests):
    """429 `QUEUE_FULL`: the queue takes no more jobs for now."""


class ServerError(ApiError):
    """5xx: the server could not do it. The outcome may be unknown."""


class Unavailable(ServerError):
    """502, 503 or 504: try again later."""


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
    413: PayloadTooLarge,
    422: Unprocessable,
    429: TooManyRequests,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def refusal(status: int, body: object, *, repeated: bool = False) -> ApiError:
    """The error for an answer with this status and JSON body."""
    error = body.get("error", body) if isinstance(body, Mapping) else {}
    if not isinstance(error, Mapping):
        error = {"message": str(error)}
    fallback = ServerError if status >= 500 else ApiError
    kind = _BY_CODE.get(str(error.get("code")), _BY_STATUS.get(status, fallback))
    return kind(status, error, repeated=repeated)
