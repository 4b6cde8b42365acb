"""Errors as HTTP answers: the one map from code to status, and the one error body.

Body: requirements section 3.1. Catalogue numbers: the OJS error catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ojs.domain.errors import OjsError, QueueFull, Unauthenticated

_CATALOGUE = "https://openjobspec.org/spec/v1/error-catalog"
_CHAPTERS = {
    "1": "41-ojs-1xxx-client-errors",
    "2": "42-ojs-2xxx-server-errors",
    "3": "43-ojs-3xxx-job-lifecycle-errors",
    "5": "45-ojs-5xxx-authentication--authorization-errors",
    "6": "46-ojs-6xxx-rate-limiting--backpressure-errors",
    "7": "47-ojs-7xxx-extension-errors",
}


@dataclass(frozen=True)
class ErrorKind:
    """How a code is answered: status, catalogue number, and what the caller may do."""

    status: int
    catalogue: str
    hint: str

    @property
    def docs_url(self) -> str:
        """Where the error is described."""
        return f"{_CATALOGUE}#{_CHAPTERS[self.catalogue[4]]}"


KINDS: dict[str, ErrorKind] = {
    "invalid_payload": ErrorKind(400, "OJS-1000", "Send one JSON object, encoded as UTF-8."),
    "invalid_request": ErrorKind(
        400, "OJS-1000", "Correct the field named in details and send again."
    ),
    "validation_error": ErrorKind(
        422, "OJS-1006", "Correct the policy field named in details and send again."
    ),
    "unsupported": ErrorKind(
        422, "OJS-7000", "See /ojs/manifest and /ojs/v1/openapi.json for what is offered."
    ),
    "not_found": ErrorKind(
        404, "OJS-3000", "Check the id or path; finished jobs are removed after their retention."
    ),
    "queue_not_found": ErrorKind(
        404, "OJS-3000", "Make the queue first: POST /ojs/v1/queues. This server is in strict mode."
    ),
    "JOB_TYPE_NOT_ALLOWED": ErrorKind(
        422, "OJS-1001", "Push to a queue that takes this type, or let an operator allow it."
    ),
    "unauthenticated": ErrorKind(
        401, "OJS-5000", "Ask an operator for a key, or for a new one if yours has ended."
    ),
    "permission_denied": ErrorKind(
        403, "OJS-5001", "Ask an operator for a key that allows it, or to add you to the producers."
    ),
    "method_not_allowed": ErrorKind(405, "OJS-1000", "Use one of the methods in the Allow header."),
    "conflict": ErrorKind(
        409, "OJS-1005", "Read the job or queue: somebody else may have changed it in the meantime."
    ),
    "queue_draining": ErrorKind(
        409,
        "OJS-1005",
        "Push again after Retry-After if there is one; otherwise to another queue, or when this "
        "one is gone: it is made anew.",
    ),
    "duplicate": ErrorKind(
        409, "OJS-3001", "The job named in details exists already; use that one."
    ),
    "payload_too_large": ErrorKind(
        413, "OJS-1009", "Store large data elsewhere and send a reference to it."
    ),
    "metadata_too_large": ErrorKind(413, "OJS-1010", "Keep meta for small facts about the job."),
    "QUEUE_FULL": ErrorKind(429, "OJS-6001", "Nothing was stored; try again after Retry-After."),
    "backend_error": ErrorKind(
        500, "OJS-2000", "Try again; report it with the request id if it stays."
    ),
    "backend_unavailable": ErrorKind(503, "OJS-2001", "Try again after the time in Retry-After."),
    "backend_timeout": ErrorKind(
        504, "OJS-2002", "The outcome is unknown: read the job before trying again."
    ),
}

_DEFAULT_RETRY_AFTER_S = 1


class MethodNotAllowed(OjsError):
    """The path exists, but not with this method."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        super().__init__(
            f"This path does not take {method[:20]}.", details={"allowed": list(allowed)}
        )
        self.allowed = tuple(allowed)


def kind_of(error: OjsError) -> ErrorKind:
    """How an error is answered. A code nobody listed here is a defect, and answers 500."""
    return KINDS.get(error.code, KINDS["backend_error"])


def body(error: OjsError, request_id: str) -> dict[str, Any]:
    """The error body."""
    kind = kind_of(error)
    # What the backpressure seed wants beside the code and not in `details` (section 7.1).
    beside = error.queue if isinstance(error, QueueFull) else {}
    return {
        "error": {
            "code": error.code,
            "type": error.code,
            "message": error.message,
            **beside,
            "retryable": error.retryable,
            "details": error.details,
            "hint": kind.hint,
            "docs_url": kind.docs_url,
            "request_id": request_id,
            "catalog_code": kind.catalogue,
        }
    }


def headers(error: OjsError) -> dict[str, str]:
    """Headers that an error adds to those of every answer."""
    added: dict[str, str] = {}
    if isinstance(error, MethodNotAllowed):
        added["Allow"] = ", ".join(error.allowed)
    if isinstance(error, Unauthenticated):
        added["WWW-Authenticate"] = 'Bearer realm="ojs"'
    if isinstance(error, QueueFull):
        added["X-OJS-Queue-Depth"] = str(error.queue["depth"])
        added["X-OJS-Queue-Bound"] = str(error.queue["bound"])
    if error.retry_after_s is not None or kind_of(error).status in (429, 503):
        added["Retry-After"] = str(error.retry_after_s or _DEFAULT_RETRY_AFTER_S)
    return added


def internal() -> OjsError:
    """What a caller learns of a defect: nothing but the request id to report."""
    unexpected = OjsError("The request could not be served because of an internal error.")
    unexpected.retryable = True  # type: ignore[misc]
    return unexpected
