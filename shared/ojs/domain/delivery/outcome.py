"""Reads the outcome of a push from a target's response or from a Lambda destination record.

Implements the matrix of ojs-serverless, section 7.1. No response of a target raises an error: a
response that can't be parsed is an outcome, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from ojs.domain import jsontext
from ojs.domain.delivery.delivery import Delivery, delivery_of
from ojs.domain.errors import InvalidPayload, InvalidRequest
from ojs.domain.job import failure
from ojs.domain.job.envelope import MAX_JOB_BYTES
from ojs.domain.job.job import MISSING
from ojs.records import record

# Prefix of a delivery ID. The lease token of the attempt follows.
ID_PREFIX = "del_"

DELIVERY_ERROR = "delivery_error"
# Maximum delay in ms before the next push to a throttling target. A longer `Retry-After` is reduced
# to it.
MAX_RETRY_AFTER_MS = 3_600_000
# IAM propagation delay in ms: for this long after the last change of a delivery, an error about
# missing permissions might be temporary. Usually a permission takes effect within seconds, rarely
# within minutes.
SPREADING_MS = 300_000
# Maximum characters of a response that an error quotes.
_QUOTED = 300


class Verdict(StrEnum):
    """How the server processes an outcome."""

    COMPLETED = "completed"
    # The code of the job waits. The job is suspended.
    SUSPENDED = "suspended"
    # The function reported a failure. The job is nacked.
    FAILED = "failed"
    # A timeout, a crash, a 5xx response, a failed connection, or a response that can't be parsed.
    # The job is nacked and can be retried. The breaker counts this fault.
    FAULT = "fault"
    # The target will never accept the job. The job is nacked and not retried.
    REFUSED = "refused"
    # The target did not run. The job returns to `available`, and the attempt is not counted.
    THROTTLED = "throttled"
    # The target does not exist or denies access. Like THROTTLED, and the delivery is disabled.
    GONE = "gone"
    FORBIDDEN = "forbidden"


@record(frozen=True)
class Outcome:
    """Outcome of a push. `error` has the format of a nack's error."""

    verdict: Verdict
    result: Any = MISSING
    error: Mapping[str, Any] | None = None
    retry_after_ms: int | None = None
    suspend: Any = None


@record(frozen=True)
class Settled:
    """An outcome that arrived in a destination record, and the push that it belongs to."""

    job_id: str
    lease_token: str
    delivery: str
    outcome: Outcome

    @property
    def push(self) -> tuple[str, str]:
        """The key of the push.

        A job can have outcomes of several pushes, but only one of them counts.
        """
        return self.job_id, self.lease_token


class MalformedRecord(ValueError):
    """The record does not describe a push."""


def trouble(
    verdict: Verdict, code: str, message: str, details: Mapping[str, Any] | None = None
) -> Outcome:
    """Create the outcome of a delivery error, as opposed to an error that a function reported.

    `details.error_class` marks it as a delivery error (ojs-serverless, section 7.2).

    Args:
        verdict: How the outcome is processed. `REFUSED` makes the error non-retryable.
        code: Error code, also used as its type.
        message: Text of the error.
        details: Additional details of the error.
    """
    error = {
        "code": code,
        "type": code,
        "message": message,
        "retryable": verdict is not Verdict.REFUSED,
        "details": {"error_class": DELIVERY_ERROR, **(details or {})},
    }
    return Outcome(verdict, error=error)


def throttled(message: str, retry_after_ms: int | None = None) -> Outcome:
    """Create the outcome of a push that the target rejected because it was at capacity."""
    error = {"code": "throttled", "type": "throttled", "message": message, "retryable": True}
    return Outcome(Verdict.THROTTLED, error=error, retry_after_ms=retry_after_ms)


def excused(outcome: Outcome, delivery: Delivery, *, now_ms: int) -> Outcome:
    """Treat FORBIDDEN as THROTTLED while a new permission might not have taken effect yet.

    Applies to functions, for `SPREADING_MS` after the last change of the delivery. An endpoint's
    response is final.

    Args:
        outcome: Outcome of a push.
        delivery: Delivery that the push belongs to.
        now_ms: Current time in milliseconds since the epoch.

    Returns:
        The outcome that applies to the delivery.
    """
    if outcome.verdict is not Verdict.FORBIDDEN or delivery.function is None:
        return outcome
    if now_ms - delivery.updated_ms >= SPREADING_MS:
        return outcome
    return replace(outcome, verdict=Verdict.THROTTLED)


def invalid(why: str, answer: object = None) -> Outcome:
    """Create the outcome of a response that can't be interpreted. The error quotes `answer`."""
    quoted = f": {_quoted(answer)}" if answer is not None else "."
    return trouble(Verdict.FAULT, "invalid_response", why + quoted)


def of_answer(answer: object, *, job_id: str) -> Outcome:
    """Read a parsed response `{"status": "completed"|"failed", "job_id"?, "result"?, "error"?}`."""
    if not isinstance(answer, Mapping):
        return invalid("The response is not a JSON object", answer)
    if answer.get("job_id") not in (None, job_id):
        return invalid("The response is about another job", answer.get("job_id"))
    if answer.get("status") == "completed":
        result = answer.get("result", MISSING)
        if result is not MISSING and (size := jsontext.size_of(result)) > MAX_JOB_BYTES:
            return _too_large(
                f"The result has {size} bytes. At most {MAX_JOB_BYTES} bytes are allowed."
            )
        return Outcome(Verdict.COMPLETED, result=result)
    if answer.get("status") == "suspended":
        return _suspended(answer.get("suspend"))
    if answer.get("status") != "failed":
        why = "The status in the response is neither completed, nor failed, nor suspended"
        return invalid(why, answer)
    error = answer.get("error")
    if error is None or error in ("", {}):
        error = "The target returned no error message."
    if isinstance(error, str):
        error = {"code": "handler_error", "message": error}
    return _failed(error)


def _suspended(raw: object) -> Outcome:
    from ojs.domain.job.suspending import suspension

    try:
        # The times are read again, and compared with the clock, when the job is suspended.
        suspension(raw, now_ms=0)
    except InvalidRequest as broken:
        if not broken.field.endswith(".until"):
            return invalid(f"The suspension is invalid: {broken.field} {broken.reason}", raw)
    return Outcome(Verdict.SUSPENDED, suspend=raw)


def _too_large(message: str) -> Outcome:
    """Return the outcome of a result that is too large.

    The outcome is not retryable: the target processed the job, and a retry would give the same
    result.
    """
    code = "result_too_large"
    error = {"code": code, "type": code, "message": message, "retryable": False}
    return Outcome(Verdict.FAILED, error=error)


def _failed(error: object) -> Outcome:
    if not isinstance(error, Mapping):
        return invalid("The error in the response is neither an object nor a string", error)
    try:
        failure.reported(error, attempt=1, now_ms=0)
    except InvalidRequest as broken:
        return invalid(
            f"The error in the response is invalid: {broken.field} {broken.reason}", error
        )
    return Outcome(Verdict.FAILED, error=error)


def of_text(text: bytes | str, *, job_id: str) -> Outcome:
    """Read the body of a response, like `of_answer`."""
    try:
        answer = jsontext.loads(text)
    except InvalidPayload as broken:
        shown = text.decode("utf-8", errors="replace") if isinstance(text, bytes) else text
        why = broken.message.rstrip(".").replace(" body", " response", 1)
        return invalid(why, shown)
    return of_answer(answer, job_id=job_id)


def of_batch(answer: object, job_ids: Sequence[str]) -> Sequence[Outcome]:
    """Read the response to an event in the format `sqs`. Returns one outcome per job, in order.

    Follows the rules of Lambda: if the response is empty or has no `batchItemFailures`, all jobs
    are completed. If it names a message that was not in the event, all jobs fail.
    """
    failed = _failures(answer, set(job_ids))
    if isinstance(failed, Outcome):
        return [failed] * len(job_ids)
    error = {
        "code": "handler_error",
        "type": "BatchItemFailure",
        "message": "The function returned the message in batchItemFailures.",
    }
    return [
        Outcome(Verdict.FAILED, error=error) if job_id in failed else Outcome(Verdict.COMPLETED)
        for job_id in job_ids
    ]


def _failures(answer: object, known: set[str]) -> set[str] | Outcome:
    if answer is None:
        return set()
    if not isinstance(answer, Mapping):
        return invalid("The response is not a JSON object", answer)
    items = answer.get("batchItemFailures") or []
    if not isinstance(items, list) or not all(isinstance(each, Mapping) for each in items):
        return invalid("batchItemFailures is not an array of objects", answer)
    named = [each.get("itemIdentifier") for each in items]
    if not all(isinstance(each, str) and each in known for each in named):
        return invalid("batchItemFailures contains a message that was not sent", answer)
    return set(named)


# --- Endpoints -----------------------------------------------------------------------------------


def of_response(
    status: int, headers: Mapping[str, str], body: bytes, *, job_id: str, now_ms: int
) -> Outcome:
    """Read the response of an endpoint.

    Args:
        status: HTTP status.
        headers: Response headers by lowercase name.
        body: Response body.
        job_id: ID of the pushed job.
        now_ms: Current time in milliseconds since the epoch.

    Returns:
        The outcome of the push.
    """
    if 200 <= status < 300:
        return of_text(body, job_id=job_id)
    told = f"The endpoint returned HTTP {status}."
    match status:
        case 401 | 403:
            return trouble(Verdict.FORBIDDEN, "forbidden", told)
        case 404 | 410:
            return trouble(Verdict.GONE, "not_found", told)
        case 429:
            return throttled(told, retry_after_ms(headers.get("retry-after"), now_ms=now_ms))
    if status == 408 or not 400 <= status < 500:
        return trouble(Verdict.FAULT, DELIVERY_ERROR, told, details={"status": status})
    said = of_text(body, job_id=job_id)
    if said.verdict is Verdict.FAILED and said.error is not None:
        return Outcome(Verdict.REFUSED, error={**said.error, "retryable": False})
    return trouble(Verdict.REFUSED, "refused", told, details={"status": status})


def retry_after_ms(value: str | None, *, now_ms: int) -> int | None:
    """Parse a `Retry-After` header.

    Returns milliseconds, at most `MAX_RETRY_AFTER_MS`, or None if the value can't be parsed.
    """
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return min(int(value[:9]) * 1_000, MAX_RETRY_AFTER_MS)
    try:
        at_ms = round(parsedate_to_datetime(value).timestamp() * 1_000)
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(at_ms - now_ms, 0), MAX_RETRY_AFTER_MS)


# --- Functions -----------------------------------------------------------------------------------

# Verdict for each error of the Invoke operation. In none of these cases the function ran.
_INVOKE_ERRORS: Mapping[Verdict, frozenset[str]] = {
    # The function does not exist or can never run.
    Verdict.GONE: frozenset({
        "CodeArtifactUserDeletedException", "InvalidRuntimeException",
        "InvalidSecurityGroupIDException", "InvalidSubnetIDException", "InvalidZipFileException",
        "ModeNotSupportedException", "NoPublishedVersionException", "ResourceNotFoundException",
        "RuntimeAliasDeletedException", "RuntimeVersionDeletedException",
    }),
    # The function exists, but the server or the function lacks a permission.
    Verdict.FORBIDDEN: frozenset({
        "AccessDeniedException", "EC2AccessDeniedException", "EFSMountFailureException",
        "KMSAccessDeniedException", "KMSDisabledException", "KMSInvalidStateException",
        "KMSNotFoundException", "S3FilesMountFailureException",
    }),
    # The function might run if the call is retried. The next call replaces expired credentials.
    Verdict.THROTTLED: frozenset({
        "CodeArtifactUserPendingException", "EC2ThrottledException", "ENILimitReachedException",
        "ENINotReadyException", "ExpiredTokenException", "ResourceConflictException",
        "ResourceNotReadyException", "ServiceQuotaExceededException", "SnapStartNotReadyException",
        "SubnetIPAddressLimitReachedException", "ThrottlingException", "TooManyRequestsException",
    }),
    # The function will never accept this event.
    Verdict.REFUSED: frozenset({
        "DurableExecutionAlreadyStartedException", "InvalidParameterValueException",
        "InvalidRequestContentException", "RecursiveInvocationException",
        "RequestTooLargeException", "SerializedRequestEntityTooLargeException",
        "UnsupportedMediaTypeException",
    }),
    # Lambda could not start the function.
    Verdict.FAULT: frozenset({
        "CodeArtifactUserFailedException", "EC2UnexpectedException", "EFSIOException",
        "EFSMountConnectivityException", "EFSMountTimeoutException",
        "S3FilesMountConnectivityException", "S3FilesMountTimeoutException", "ServiceException",
        "SnapStartException", "SnapStartRegenerationFailureException", "SnapStartTimeoutException",
    }),
}  # fmt: skip
_VERDICTS = {code: verdict for verdict, codes in _INVOKE_ERRORS.items() for code in codes}


def of_invoke_error(
    code: str, message: str, *, status: int, retry_after: str | None, now_ms: int
) -> Outcome:
    """Read an error of Lambda's Invoke operation. The function did not run.

    Args:
        code: Error code. If it is unknown, `status` determines the verdict.
        message: Error message.
        status: HTTP status.
        retry_after: Value of the header `Retry-After`, or None.
        now_ms: Current time in milliseconds since the epoch.

    Returns:
        The outcome of the push.
    """
    verdict = _VERDICTS.get(code)
    if verdict is None:
        verdict = {403: Verdict.FORBIDDEN, 404: Verdict.GONE, 429: Verdict.THROTTLED}.get(
            status, Verdict.REFUSED if 400 <= status < 500 else Verdict.FAULT
        )
    told = f"Lambda rejected the invocation: {code}: {message}"
    if verdict is Verdict.THROTTLED:
        return throttled(told, retry_after_ms(retry_after, now_ms=now_ms))
    return trouble(verdict, code or DELIVERY_ERROR, told)


# Error messages of a function that did not return a response. They have no error type.
_TIMED_OUT = re.compile(r"Task timed out after [\d.]+ seconds")
_CRASHED = re.compile(
    r"Process exited before completing request|Runtime exited (with|without)|"
    r"RequestId: \S+ Error: (Runtime|Extension|fork)"
)
_TOO_LARGE = "ResponseSizeTooLarge"


def of_function_error(payload: object) -> Outcome:
    """Read the error object that Lambda returns if a function fails, times out, or crashes."""
    told = payload if isinstance(payload, Mapping) else {}
    message, kind = str(told.get("errorMessage") or ""), str(told.get("errorType") or "")
    if not told:
        message = _quoted(payload) if payload else "The function failed without a message."
    if kind == "Sandbox.Timedout" or _TIMED_OUT.search(message):
        return trouble(Verdict.FAULT, "timeout", message or "The function timed out.")
    if _TOO_LARGE in kind:
        return _too_large(message)
    if kind.startswith(("Runtime.", "Sandbox.", "Extension.")) or _CRASHED.search(message):
        return trouble(Verdict.FAULT, "crash", message or kind, details={"error_type": kind})
    if not told:
        return trouble(Verdict.FAULT, "crash", message)
    trace = told.get("stackTrace", told.get("trace"))
    error: dict[str, Any] = {
        "code": "handler_error",
        "type": kind or "Unhandled",
        "message": message,
        "backtrace": [str(each) for each in trace] if isinstance(trace, list) else [],
    }
    return Outcome(Verdict.FAILED, error=error)


# --- Records of destinations ---------------------------------------------------------------------


def settled_by(record: object) -> Sequence[Settled]:
    """Read a record that Lambda sent to a function's destination (version 1.0).

    Returns one outcome per job of the event. Raises MalformedRecord if the record does not describe
    a push.
    """
    told = record if isinstance(record, Mapping) else {}
    request, context = told.get("requestPayload"), told.get("requestContext")
    if not isinstance(request, Mapping) or not isinstance(context, Mapping):
        raise MalformedRecord("The destination record lacks requestContext or requestPayload")
    batch = "Records" in request
    pushed = list(_pushed(request))
    if not pushed:
        raise MalformedRecord("The event of the destination record contains no jobs")
    outcomes = _outcomes(told, context, [job_id for job_id, *_ in pushed], batch=batch)
    return [
        Settled(job_id, token, delivery, outcome)
        for (job_id, token, delivery), outcome in zip(pushed, outcomes, strict=True)
    ]


def _outcomes(
    record: Mapping[str, Any], context: Mapping[str, Any], job_ids: Sequence[str], *, batch: bool
) -> Sequence[Outcome]:
    """Return the outcome of each job of a destination record."""
    condition, payload = context.get("condition"), record.get("responsePayload")
    response = record.get("responseContext")
    response = response if isinstance(response, Mapping) else {}
    if condition == "Success":
        if batch:
            return of_batch(payload, job_ids)
        return [of_answer(payload, job_id=job_ids[0])]
    if response.get("functionError"):
        return [of_function_error(payload)] * len(job_ids)
    status = response.get("statusCode")
    if condition == "EventAgeExceeded" or status == 429:
        return [throttled("The function was throttled until the event was too old.")] * len(job_ids)
    if condition == "ZeroReservedConcurrency":
        return [throttled("The reserved concurrency of the function is 0.")] * len(job_ids)
    if isinstance(status, int) and status >= 400:
        error = of_invoke_error("", str(condition), status=status, retry_after=None, now_ms=0)
        return [error] * len(job_ids)
    return [invalid("The destination record contains no outcome", {"condition": condition})] * len(
        job_ids
    )


def _pushed(event: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Return the job ID, the lease token, and the delivery of each push in an event."""
    records = event.get("Records")
    if records is None:
        job = event.get("job", event)
        if not isinstance(job, Mapping):
            raise MalformedRecord("The job of the event is not an object")
        yield _one(job.get("id"), event.get("delivery_id"), event.get("worker_id"))
        return
    for each in records if isinstance(records, list) else ():
        attributes = each.get("messageAttributes") if isinstance(each, Mapping) else None
        if not isinstance(attributes, Mapping):
            raise MalformedRecord("A message has no attributes")
        shown = {
            name: value.get("stringValue")
            for name, value in attributes.items()
            if isinstance(value, Mapping)
        }
        yield _one(each.get("messageId"), shown.get("delivery_id"), shown.get("worker_id"))


def _one(job_id: object, delivery_id: object, worker: object) -> tuple[str, str, str]:
    named = all(isinstance(each, str) for each in (job_id, delivery_id, worker))
    if named and str(delivery_id).startswith(ID_PREFIX):
        token, name = str(delivery_id).removeprefix(ID_PREFIX), delivery_of(str(worker))
        if job_id and token and name:
            return str(job_id), token, name
    raise MalformedRecord("The event lacks its job, delivery_id, or worker_id")


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else jsontext.dumps(value)
    return text if len(text) <= _QUOTED else text[:_QUOTED] + "…"
