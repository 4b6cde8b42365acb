"""Converts errors to HTTP responses: the status of each error code, and the error body.

`catalogue` is the number of an error in the OJS error catalog (ojs-error-catalog).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ojs.domain.errors import (
    CapacityExceeded,
    NotStored,
    OjsError,
    QueueFull,
    TooManyJobs,
    Unauthenticated,
    any_of,
    without_retry,
)
from ojs.records import record

_CATALOGUE = "https://openjobspec.org/spec/v1/error-catalog"
_CHAPTERS = {
    "1": "41-ojs-1xxx-client-errors",
    "2": "42-ojs-2xxx-server-errors",
    "3": "43-ojs-3xxx-job-lifecycle-errors",
    "5": "45-ojs-5xxx-authentication--authorization-errors",
    "6": "46-ojs-6xxx-rate-limiting--backpressure-errors",
    "7": "47-ojs-7xxx-extension-errors",
}


@record(frozen=True)
class ErrorKind:
    """The response to an error code: status, catalog number, and a hint for the caller."""

    status: int
    catalogue: str
    hint: str

    @property
    def docs_url(self) -> str:
        """The URL of the page that describes the error."""
        return f"{_CATALOGUE}#{_CHAPTERS[self.catalogue[4]]}"


# One row for each code. The formatter would split the rows.
# fmt: off
KINDS: dict[str, ErrorKind] = {
    "invalid_payload": ErrorKind(400, "OJS-1000", "Send one JSON object, encoded as UTF-8."),
    "invalid_request": ErrorKind(400, "OJS-1000",
        "Correct the field that details.field names and send the request again."),
    "invalid_workflow": ErrorKind(400, "OJS-1000",
        "Correct the faults in details.validation_errors and send the request again."),
    "validation_error": ErrorKind(422, "OJS-1006",
        "Correct the policy field that details.field names and send the request again."),
    "unsupported": ErrorKind(422, "OJS-7000",
        "See /ojs/manifest and /ojs/v1/openapi.json for the supported features."),
    "not_implemented": ErrorKind(501, "OJS-7000",
        "Omit the parameter that details.field names, or filter by other parameters."),
    "not_found": ErrorKind(404, "OJS-3000",
        "Check the id or path. Finished jobs are deleted after their retention."),
    "queue_not_found": ErrorKind(404, "OJS-3000",
        "Create the queue first: POST /ojs/v1/queues. This server is in strict mode."),
    "too_many_steps": ErrorKind(422, "OJS-1001",
        "Store fewer or smaller results, or continue in another job."),
    "lease_token_required": ErrorKind(422, "OJS-1000",
        "Send the lease_token of the job from the fetch response."),
    "waiting_for_signal": ErrorKind(409, "OJS-1005",
        "Send the signal: POST /ojs/v1/jobs/{id}/signals/{signal}. Or cancel the job."),
    "too_many_queues": ErrorKind(422, "OJS-1001",
        "Use an existing queue, or ask an operator to create one: POST /ojs/v1/queues."),
    "JOB_TYPE_NOT_ALLOWED": ErrorKind(422, "OJS-1001",
        "Use a queue that allows this job type, or ask an operator to allow it."),
    "unauthenticated": ErrorKind(401, "OJS-5000",
        "Ask an operator for a key, or for a new one if yours has expired."),
    "permission_denied": ErrorKind(403, "OJS-5001",
        "Ask an operator for a key with this permission, or to add you to the producers."),
    "method_not_allowed": ErrorKind(405, "OJS-1000", "Use one of the methods in the Allow header."),
    "conflict": ErrorKind(409, "OJS-1005",
        "Read the job or queue again. Another client might have changed it."),
    "precondition_failed": ErrorKind(412, "OJS-1005",
        "Read it again, compare, and send the change with the new ETag in If-Match."),
    "limit_reached": ErrorKind(409, "OJS-1005",
        "Delete an entry that is not used, then send the request again."),
    "queue_draining": ErrorKind(409, "OJS-1005",
        "If the response has Retry-After, send the request again after it. Otherwise use another "
        "queue, or wait until this one is deleted: the next job creates it again."),
    "duplicate": ErrorKind(409, "OJS-3001",
        "Use the existing job that details names."),
    "payload_too_large": ErrorKind(413, "OJS-1009",
        "Store large data elsewhere and send a reference."),
    "RESULT_TOO_LARGE": ErrorKind(413, "OJS-1009",
        "The job is still active. Store the result elsewhere and acknowledge with a reference."),
    "RESULT_PRUNED": ErrorKind(410, "OJS-3000",
        "Read results before they expire, or enqueue jobs with a larger result_ttl."),
    "BATCH_SIZE_EXCEEDED": ErrorKind(413, "OJS-1009",
        "Send the jobs in several requests of at most details.limit."),
    "jobs_refused": ErrorKind(422, "OJS-1000",
        "Nothing was stored. If retryable is true, send the same request after Retry-After. "
        "Otherwise correct the jobs that `items` names and send the request again."),
    "not_stored": ErrorKind(422, "OJS-1000",
        "Correct the jobs that have a different error and send all jobs again."),
    "metadata_too_large": ErrorKind(413, "OJS-1010",
        "Put large values into args, and only small values into meta."),
    "rate_limited": ErrorKind(429, "OJS-6000",
        "Send fewer requests, or ask an operator for a key with a higher max_requests_per_s."),
    "QUEUE_FULL": ErrorKind(429, "OJS-6001",
        "Nothing was stored. Retry after the time in Retry-After. Without it, send fewer jobs."),
    "TENANT_LIMIT_EXCEEDED": ErrorKind(429, "OJS-6001",
        "Nothing was stored. Retry after the time in Retry-After, or ask an operator for a higher "
        "limit."),
    "tenant_suspended": ErrorKind(403, "OJS-5001", "Ask an operator to activate the tenant."),
    "middleware_refused": ErrorKind(422, "OJS-1000",
        "The message names a rule of this deployment. Correct the job and send it again."),
    "middleware_error": ErrorKind(500, "OJS-7003",
        "Nothing was stored. Retry. If the error persists, report it with the request id."),
    "middleware_timeout": ErrorKind(504, "OJS-7004",
        "Nothing was stored. Retry. If the error persists, report it with the request id."),
    "backend_error": ErrorKind(500, "OJS-2000",
        "Retry. If the error persists, report it with the request id."),
    "backend_unavailable": ErrorKind(503, "OJS-2001", "Retry after the time in Retry-After."),
    "backend_timeout": ErrorKind(504, "OJS-2002",
        "The outcome is unknown. Read the job before you retry."),
}
# fmt: on

_DEFAULT_RETRY_AFTER_S = 1


class MethodNotAllowed(OjsError):
    """The path exists, but not with this method."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        super().__init__(
            f"This path doesn't support the method {method[:20]}. Use {any_of(allowed)}.",
            details={"allowed": list(allowed)},
        )
        self.allowed = tuple(allowed)


class JobsRefused(OjsError):
    """No job of a request was stored. `told` contains the outcome of each job.

    The request is retryable if each error that is not `NotStored` is retryable.
    """

    code = "jobs_refused"

    def __init__(self, refused: Sequence[OjsError], told: Mapping[str, Any]) -> None:
        """Create the error from the errors of all jobs, in order."""
        own = [(at, error) for at, error in enumerate(refused) if not isinstance(error, NotStored)]
        own = own or list(enumerate(refused))
        index, first = own[0]
        field = first.details.get("field")
        named = {} if field is None else {"field": f"jobs[{index}].{field}"}
        retryable = all(error.retryable for _, error in own)
        waits = [error.retry_after_s or _DEFAULT_RETRY_AFTER_S for _, error in own]
        super().__init__(
            f"No job was stored. jobs[{index}]: {without_retry(first.message)}",
            details={**first.details, "index": index, "code": first.code, **named},
            retry_after_s=max(waits) if retryable else None,
        )
        self.told = told
        self.retryable = retryable  # type: ignore[misc]
        full = [error for _, error in own if isinstance(error, QueueFull)]
        # The queue for the headers of a full queue.
        self.full = full[0] if full else None


def kind_of(error: OjsError) -> ErrorKind:
    """Return the response to an error. A code that is missing in `KINDS` has the status 500."""
    return KINDS.get(error.code, KINDS["backend_error"])


def body(error: OjsError, request_id: str) -> dict[str, Any]:
    """Build the error body."""
    kind = kind_of(error)
    beside = error.told if isinstance(error, JobsRefused) else {}
    return {
        **beside,
        "error": {
            "code": error.code,
            "type": error.code,
            "message": error.message,
            # At the level of the code, not in `details` (ojs-backpressure section 7.1).
            **(error.shown if isinstance(error, CapacityExceeded) else {}),
            **({"max_batch_size": error.limit} if isinstance(error, TooManyJobs) else {}),
            "retryable": error.retryable,
            "details": error.details,
            "hint": kind.hint,
            "docs_url": kind.docs_url,
            "request_id": request_id,
            "catalog_code": kind.catalogue,
        },
    }


def brief(error: OjsError) -> dict[str, Any]:
    """Build the error of one part of a request."""
    return {
        "code": error.code,
        "message": error.message,
        "retryable": error.retryable,
        "details": error.details,
    }


def headers(error: OjsError) -> dict[str, str]:
    """Return the headers of an error, without those of all responses."""
    added: dict[str, str] = {}
    if isinstance(error, MethodNotAllowed):
        added["Allow"] = ", ".join(error.allowed)
    if isinstance(error, Unauthenticated):
        added["WWW-Authenticate"] = 'Bearer realm="ojs"'
    full = error.full if isinstance(error, JobsRefused) else error
    if isinstance(full, QueueFull):
        added["X-OJS-Queue-Depth"] = str(full.queue["depth"])
        added["X-OJS-Queue-Bound"] = str(full.queue["bound"])
    if isinstance(error, TooManyJobs):
        added["X-OJS-Max-Batch-Size"] = str(error.limit)
    waits = error.retryable and kind_of(error).status in (429, 503)
    if error.retry_after_s is not None or waits:
        added["Retry-After"] = str(error.retry_after_s or _DEFAULT_RETRY_AFTER_S)
    return added


def internal() -> OjsError:
    """Return the error for a defect of the server. It contains no details of the defect."""
    unexpected = OjsError(
        "The request failed because of an internal error. Report it with the request id."
    )
    unexpected.retryable = True  # type: ignore[misc]
    return unexpected
