"""What became of a push: answers of targets, and records of Lambda's destinations, read.

The matrix of ojs-serverless, section 7.1. Nothing here raises for what a target says, whatever that
is: an answer that cannot be read is an outcome, too.
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

# What the id of an attempt begins with, in front of the token of its lease.
ID_PREFIX = "del_"

DELIVERY_ERROR = "delivery_error"
# A target that is asked to wait longer is asked again after this.
MAX_RETRY_AFTER_MS = 3_600_000
# So long after an operator's last change of a delivery IAM may not have let its function be invoked
# everywhere: a permission that was given a moment ago spreads for some seconds, seldom minutes.
SPREADING_MS = 300_000
# Characters of an answer that an error quotes.
_QUOTED = 300


class Verdict(StrEnum):
    """What follows from an outcome."""

    COMPLETED = "completed"
    # The function says so: a nack.
    FAILED = "failed"
    # A timeout, a crash, a 5xx, no connection, an answer that cannot be read: a nack that may be
    # tried again, and the breaker counts it.
    FAULT = "fault"
    # The target will never take it: a nack that is not tried again.
    REFUSED = "refused"
    # The target did not run: the job goes back in line, and this was no attempt.
    THROTTLED = "throttled"
    # The same, and the delivery is disabled: there is no such target, or it lets nobody in.
    GONE = "gone"
    FORBIDDEN = "forbidden"


@record(frozen=True)
class Outcome:
    """What became of a push. `error` has the form of a nack's error."""

    verdict: Verdict
    result: Any = MISSING
    error: Mapping[str, Any] | None = None
    retry_after_ms: int | None = None


@record(frozen=True)
class Settled:
    """An outcome that came later, and whose it is."""

    job_id: str
    lease_token: str
    delivery: str
    outcome: Outcome

    @property
    def push(self) -> tuple[str, str]:
        """The push that it is of: a job may have outcomes of several, of which one counts."""
        return self.job_id, self.lease_token


class MalformedRecord(ValueError):
    """This is no record of a push."""


def trouble(
    verdict: Verdict, code: str, message: str, details: Mapping[str, Any] | None = None
) -> Outcome:
    """An outcome that the target did not word itself: an error of delivery, and none of a function
    (ojs-serverless, section 7.2), which its details say.
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
    """The target had no room."""
    error = {"code": "throttled", "type": "throttled", "message": message, "retryable": True}
    return Outcome(Verdict.THROTTLED, error=error, retry_after_ms=retry_after_ms)


def excused(outcome: Outcome, delivery: Delivery, *, now_ms: int) -> Outcome:
    """What an outcome tells of the delivery's target: the permission to invoke a function that was
    named a moment ago may still spread, so what forbids it is a throttle for a while. What an
    endpoint answers is its word.
    """
    if outcome.verdict is not Verdict.FORBIDDEN or delivery.function is None:
        return outcome
    if now_ms - delivery.updated_ms >= SPREADING_MS:
        return outcome
    return replace(outcome, verdict=Verdict.THROTTLED)


def invalid(why: str, answer: object = None) -> Outcome:
    """The target answered, but nobody can say what."""
    quoted = f": {_quoted(answer)}" if answer is not None else "."
    return trouble(Verdict.FAULT, "invalid_response", why + quoted)


def of_answer(answer: object, *, job_id: str) -> Outcome:
    """Read `{"status": "completed"|"failed", "job_id"?, "result"?, "error"?}`, given as JSON."""
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
    if answer.get("status") != "failed":
        return invalid("The status in the response is neither completed nor failed", answer)
    error = answer.get("error")
    if error is None or error in ("", {}):
        error = "The target returned no error message."
    if isinstance(error, str):
        error = {"code": "handler_error", "message": error}
    return _failed(error)


def _too_large(message: str) -> Outcome:
    """The target did its work: to do that again would give the same result."""
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
    """The same of an answer's text."""
    try:
        answer = jsontext.loads(text)
    except InvalidPayload as broken:
        shown = text.decode("utf-8", errors="replace") if isinstance(text, bytes) else text
        why = broken.message.rstrip(".").replace(" body", " response", 1)
        return invalid(why, shown)
    return of_answer(answer, job_id=job_id)


def of_batch(answer: object, job_ids: Sequence[str]) -> Sequence[Outcome]:
    """Read the answer to an event of SQS's form: an outcome for each job.

    As Lambda reads it: nothing, or no `batchItemFailures`, is a success of all; one that names
    what was not in the event is a failure of all.
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
    """Read an endpoint's answer (`headers` by lower-case names)."""
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
    """A `Retry-After` in ms, at most MAX_RETRY_AFTER_MS; None for one that cannot be read."""
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

# What the errors of the Invoke operation mean: in none of these cases the function ran.
_INVOKE_ERRORS: Mapping[Verdict, frozenset[str]] = {
    # There is no such function, or none that could ever run.
    Verdict.GONE: frozenset({
        "CodeArtifactUserDeletedException", "InvalidRuntimeException",
        "InvalidSecurityGroupIDException", "InvalidSubnetIDException", "InvalidZipFileException",
        "ModeNotSupportedException", "NoPublishedVersionException", "ResourceNotFoundException",
        "RuntimeAliasDeletedException", "RuntimeVersionDeletedException",
    }),
    # It is there, and we, or it, may not do what is needed.
    Verdict.FORBIDDEN: frozenset({
        "AccessDeniedException", "EC2AccessDeniedException", "EFSMountFailureException",
        "KMSAccessDeniedException", "KMSDisabledException", "KMSInvalidStateException",
        "KMSNotFoundException", "S3FilesMountFailureException",
    }),
    # It may run a moment later. Credentials of ours that have ended the next call has anew.
    Verdict.THROTTLED: frozenset({
        "CodeArtifactUserPendingException", "EC2ThrottledException", "ENILimitReachedException",
        "ENINotReadyException", "ExpiredTokenException", "ResourceConflictException",
        "ResourceNotReadyException", "ServiceQuotaExceededException", "SnapStartNotReadyException",
        "SubnetIPAddressLimitReachedException", "ThrottlingException", "TooManyRequestsException",
    }),
    # This event it will never take.
    Verdict.REFUSED: frozenset({
        "DurableExecutionAlreadyStartedException", "InvalidParameterValueException",
        "InvalidRequestContentException", "RecursiveInvocationException",
        "RequestTooLargeException", "SerializedRequestEntityTooLargeException",
        "UnsupportedMediaTypeException",
    }),
    # It could not be started.
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
    """Read an error of Lambda's Invoke operation: the function did not run."""
    verdict = _VERDICTS.get(code)
    if verdict is None:
        verdict = {403: Verdict.FORBIDDEN, 404: Verdict.GONE, 429: Verdict.THROTTLED}.get(
            status, Verdict.REFUSED if 400 <= status < 500 else Verdict.FAULT
        )
    told = f"Lambda rejected the invocation: {code}: {message}"
    if verdict is Verdict.THROTTLED:
        return throttled(told, retry_after_ms(retry_after, now_ms=now_ms))
    return trouble(verdict, code or DELIVERY_ERROR, told)


# The function did not answer, and whatever it was doing has no error of its own.
_TIMED_OUT = re.compile(r"Task timed out after [\d.]+ seconds")
_CRASHED = re.compile(
    r"Process exited before completing request|Runtime exited (with|without)|"
    r"RequestId: \S+ Error: (Runtime|Extension|fork)"
)
_TOO_LARGE = "ResponseSizeTooLarge"


def of_function_error(payload: object) -> Outcome:
    """Read what Lambda gives in place of an answer when a function did not give one."""
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

    Raises MalformedRecord for one that is of no push.
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
    """The outcome of each job of a record."""
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
    """The job's id, the lease token and the delivery of each push that an event carries."""
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
