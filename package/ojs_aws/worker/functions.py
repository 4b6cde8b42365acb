"""Makes a Lambda function from a worker's handlers, for push delivery.

The function accepts the three event formats of a delivery, messages of an SQS queue, and HTTP
requests of a delivery through a function URL or an API.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from ojs_aws import tracing
from ojs_aws.client.call import Call, json_object, place
from ojs_aws.client.exchange import RetryPolicy
from ojs_aws.client.job import Job
from ojs_aws.errors import ApiError, OjsError
from ojs_aws.worker.context import JobContext
from ojs_aws.worker.handlers import Ending, failure

if TYPE_CHECKING:
    from ojs_aws.worker.worker import Worker

logger = logging.getLogger("ojs_aws")

Answer = dict[str, Any]
# Time in seconds before Lambda's timeout at which a handler is stopped, so that it can respond.
_SPARE_S = 1.0
# Maximum difference in seconds between the clocks of the signer and this function.
_FRESH_S = 300
_MOST_SIGNATURES = 32
_PREFIX = "sha256="
_BOUND = "x-ojs-signature-v2"
_PROGRESS_S = 1.0


def lambda_handler(
    worker: Worker,
    *,
    signing_secrets: Sequence[str] | str | None = None,
    url: str | None = None,
    reserve_s: float = 30.0,
    clock: Callable[[], float] = time.time,
) -> Callable[[Any, Any], Answer]:
    """Create a Lambda function from the handlers of a worker.

    HTTP requests must be signed with one of `signing_secrets`. Direct invocations are not signed:
    IAM decides which principal may invoke the function.

    Args:
        worker: Worker with the handlers. It doesn't have to run.
        signing_secrets: One or more secrets. Default: `OJS_SIGNING_SECRET`. Without a secret, the
            function rejects HTTP requests.
        url: Endpoint URL of the delivery, which the signature covers. Set it if a proxy in front of
            the function changes the host or the path. Default: `OJS_ENDPOINT_URL`, otherwise the
            URL of the request.
        reserve_s: Durable code starts a step only if this time in seconds is left before Lambda's
            timeout. Otherwise the job continues in another invocation. Set it to the duration of
            the longest step. If the invocation is shorter, half of it counts. Default: 30.
        clock: Current time in seconds since the epoch, for tests.

    Returns:
        The handler function of a Lambda function.

    Raises:
        ValueError: `url` is not an HTTP or HTTPS URL.
    """
    if signing_secrets is None:
        signing_secrets = os.environ.get("OJS_SIGNING_SECRET", "")
    given = [signing_secrets] if isinstance(signing_secrets, str) else list(signing_secrets)
    url = os.environ.get("OJS_ENDPOINT_URL") if url is None else url
    place = _place(url) if url else None
    secrets = [each for each in given if each]
    return _LambdaFunction(worker, secrets, place, clock, reserve_s)


class _Malformed(ValueError):
    """An event contains no valid job."""


class _LambdaFunction:
    def __init__(
        self, worker: Worker, secrets: list[str], url: str | None, clock: Callable[[], float],
        reserve_s: float,
    ) -> None:  # fmt: skip
        self._worker = worker
        self._secrets = secrets
        self._url = url
        self._clock = clock
        self._reserve_s = reserve_s
        self._whole_s = 0.0
        # True until the first event of this process is processed, which Lambda started it for.
        self._cold = True

    def __call__(self, event: Any, context: Any = None) -> Answer:
        """Process an event. Returns the response in the format of the sender."""
        self._whole_s = _left_s(context) or 0.0
        try:
            return self._answered(event, context)
        finally:
            self._cold = False

    def _answered(self, event: Any, context: Any) -> Answer:
        if not isinstance(event, Mapping):
            return _answer("", _refusal("The event must be a JSON object."))
        if isinstance(event.get("Records"), list):
            return self._batch(event["Records"], context)
        if "requestContext" in event:
            return self._request(event, context)
        return self._pushed(event, context)

    # --- forms -----------------------------------------------------------------------------------

    def _pushed(self, event: Mapping[str, Any], context: Any) -> Answer:
        """Process an event with one job, either the job itself or `{"job": …}`.

        The event can have `worker_id` and `delivery_id`.
        """
        shown = event.get("job", event)
        try:
            job = _job(shown)
        except _Malformed as error:
            name = shown.get("id") if isinstance(shown, Mapping) else None
            return _answer(name if isinstance(name, str) else "", _refusal(str(error)))
        return _answer(job.id, self._done(job, str(event.get("worker_id") or ""), context))

    def _batch(self, records: list[Any], context: Any) -> Answer:
        """Process SQS messages with one job each. Returns the IDs of failed messages."""
        failed = []
        for record in records:
            name = record.get("messageId") if isinstance(record, Mapping) else None
            try:
                shown = json.loads(record["body"])
                job = _job(shown)
            except (KeyError, TypeError, ValueError) as error:
                logger.warning("Message rejected: %s has no valid job: %s", name, error)
                failed.append(name)
                continue
            worker_id = str(shown.get("worker_id") or "")
            ending = self._done(job, worker_id, context)
            if "suspend" in ending.entry:
                ending = self._suspended(job, worker_id, ending)
            if ending.how != "acks":
                failed.append(name)
        return {"batchItemFailures": [{"itemIdentifier": name} for name in failed]}

    def _request(self, event: Mapping[str, Any], context: Any) -> Answer:
        """Process the HTTP request of a delivery, from a function URL or from API Gateway."""
        told = event["requestContext"]
        http = told.get("http") if isinstance(told, Mapping) else None
        method = http.get("method") if isinstance(http, Mapping) else event.get("httpMethod")
        if str(method).upper() != "POST":
            return _reply(405, _refusal("The method must be POST."))
        if not self._secrets:
            logger.error("Request rejected: OJS_SIGNING_SECRET is not set")
            return _reply(503, failure("authentication_unavailable", "No signing secret is set."))
        try:
            body = _body(event)
        except ValueError:
            return _reply(400, _refusal("The body is not valid base64."))
        headers = {str(name).lower(): str(it) for name, it in (event.get("headers") or {}).items()}
        if not self._signed(headers, body, self._url or _url(event, headers)):
            return _reply(401, failure("authentication_failed", "The signature is not valid."))
        try:
            shown = json.loads(body)
            job = _job(shown.get("job") if isinstance(shown, Mapping) else None)
        except ValueError as error:
            return _reply(400, _refusal(f"The body contains no valid job: {error}."))
        ending = self._done(job, str(shown.get("worker_id") or ""), context)
        return _reply(200, ending, job.id)

    def _signed(self, headers: Mapping[str, str], body: bytes, url: str) -> bool:
        """Return whether a request's signature is valid for one of the secrets and at most 300 s
        old.

        Version 2 signatures also cover the delivery and the URL. If the request has them, version 1
        signatures are ignored.
        """
        timestamp = headers.get("x-ojs-timestamp", "")
        if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 32):
            return False
        if abs(self._clock() - int(timestamp)) > _FRESH_S:
            return False
        bound = headers.get(_BOUND)
        told = headers.get("x-ojs-signature", "") if bound is None else bound
        prefix, signed = _PREFIX, timestamp.encode() + b"." + body
        if bound is not None:
            digest = hashlib.sha256(body).hexdigest()
            delivery_id = headers.get("x-ojs-delivery-id", "")
            prefix, signed = "v2=", f"{timestamp}.{delivery_id}.POST.{url}.{digest}".encode()
        each_told = told.split(",")[:_MOST_SIGNATURES]
        given = [each.strip().removeprefix(prefix).encode() for each in each_told]
        valid = False
        for secret in self._secrets:
            made = hmac.new(secret.encode(), signed, hashlib.sha256)
            for each in given:
                # Compare all signatures, so that the duration doesn't reveal which one matches.
                valid |= hmac.compare_digest(made.hexdigest().encode(), each)
        return valid

    # --- jobs ------------------------------------------------------------------------------------

    def _done(self, job: Job, worker_id: str, context: Any) -> Ending:
        """Run the handler of a job. Returns its outcome."""
        within_s = _left_s(context)
        began = time.monotonic()
        if within_s is not None and within_s <= 0:
            # The earlier jobs of the batch used all of the available time.
            ending = failure("timeout", "The invocation had no time left.", kind="TimeoutError")
        else:
            tell = _Progress(self._worker, job.id, worker_id)
            shown = JobContext(job, tell)
            if within_s is not None:
                fits = self._reserve_s < self._whole_s
                reserve_s = self._reserve_s if fits else self._whole_s / 2
                shown.start_until = began + within_s - reserve_s
            ending = self._worker.perform(shown, within_s=within_s)
        _log(job, ending, time.monotonic() - began, cold_start=self._cold)
        return ending

    def _suspended(self, job: Job, worker_id: str, ending: Ending) -> Ending:
        """Suspend a job of an SQS message, whose response can't do that. Return its outcome.

        The message succeeds then: its ack is late, so the server ignores it.
        """
        named = {"job_id": job.id, "lease_token": job.lease_token, "worker_id": worker_id}
        body = {name: value for name, value in named.items() if value} | ending.entry
        try:
            if (server := self._worker.server) is None:
                return ending
            server.run(Call("POST", "workers/nack", json_object, body))
        except OjsError as error:
            if not (isinstance(error, ApiError) and error.status in (404, 409)):
                logger.warning("Suspension failed: %s %s: %s", job.type, job.id, error)
                return ending
        return Ending("acks")


def _left_s(context: Any) -> float | None:
    """Return the time in seconds for handlers before Lambda's timeout, or None without one."""
    left = getattr(context, "get_remaining_time_in_millis", None)
    return None if left is None else left() / 1_000 - _SPARE_S


class _Progress:
    """Reports progress if the worker has a server URL. At most one report per second."""

    def __init__(self, worker: Worker, job_id: str, worker_id: str) -> None:
        self._worker = worker
        self._job_id = job_id
        self._worker_id = worker_id
        self._told = float("-inf")

    def __call__(self, report: dict[str, Any]) -> None:
        now = time.monotonic()
        server = self._worker.server
        if server is None or (now - self._told < _PROGRESS_S and report.get("progress") != 1):
            return
        self._told = now
        body = {"worker_id": self._worker_id, **report}
        path = place("jobs/{}/progress", self._job_id)
        try:
            server.try_call(Call("PUT", path, json_object, body), RetryPolicy(tries=1), 2.0)
        except (OjsError, TypeError, ValueError) as error:
            logger.info("Progress report failed: %s", error)  # the job continues without it


def _job(shown: object) -> Job:
    """Return the job of an event. Raises _Malformed."""
    if not isinstance(shown, Mapping) or not shown.get("id") or not shown.get("type"):
        raise _Malformed("a job must have an id and a type")
    try:
        return Job.of({"args": [], **shown})
    except ValueError as error:
        raise _Malformed(str(error)) from None


def _place(url: str) -> str:
    """Return host, path, and query of an endpoint, as the server signs them."""
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.fragment:
        raise ValueError(
            f"url must be the HTTP or HTTPS URL of the delivery's endpoint, but is {url!r}"
        )
    usual = ":443" if parts.scheme == "https" else ":80"
    host = parts.netloc.lower().removesuffix(usual)
    host = host if host.isascii() else host.encode("idna").decode()
    return f"{host}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")


def _url(event: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """Return host, path, and query of a request, as the sender used them."""
    context = event["requestContext"]
    found = context if isinstance(context, Mapping) else {}
    query = event.get("rawQueryString")
    # In an event of a REST API, `path` has no stage. The path in the context includes it.
    path = event.get("rawPath") or found.get("path") or event.get("path") or "/"
    if query is None:
        query = urlencode(event.get("multiValueQueryStringParameters") or {}, doseq=True)
    return f"{headers.get('host', '')}{path}" + (f"?{query}" if query else "")


def _body(event: Mapping[str, Any]) -> bytes:
    """Return the bytes of the request body. Raises ValueError."""
    body = event.get("body") or ""
    if not isinstance(body, str):
        raise ValueError("the body must be a string")  # noqa: TRY004
    if not event.get("isBase64Encoded"):
        return body.encode()
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _refusal(message: str) -> Ending:
    """Reject an event. A retry would fail too, so the job is not retried."""
    logger.warning("Event rejected: %s", message)
    return failure("invalid_request", message, retryable=False)


def _answer(job_id: str, ending: Ending) -> Answer:
    """Convert an outcome to the response that a delivery expects."""
    named = {"job_id": job_id} if job_id else {}
    if ending.how == "acks":
        return {"status": "completed", **named, **ending.entry}
    if "suspend" in ending.entry:
        return {"status": "suspended", **named, **ending.entry}
    error = ending.entry.get("error")
    if error is None:
        error = failure("job_cancelled", "The handler was stopped.").entry["error"]
    return {"status": "failed", **named, "error": error}


def _reply(status: int, ending: Ending, job_id: str = "") -> Answer:
    """Convert an outcome to an HTTP response."""
    return {
        "statusCode": status,
        "headers": {"Content-Type": "application/json"},
        "body": json.dumps(_answer(job_id, ending), allow_nan=False),
    }


def _log(job: Job, ending: Ending, lasted_s: float, *, cold_start: bool) -> None:
    """Log one record for each job. `cold_start` is true for the first event of this process."""
    facts = {
        "job_id": job.id,
        "job_type": job.type,
        "queue": job.queue,
        "attempt": job.attempt,
        "trace_id": tracing.trace_id(job.meta),
        "duration_ms": round(lasted_s * 1_000),
        "cold_start": cold_start,
    }
    if ending.how == "acks":
        extra = facts | {"state": "completed"}
        logger.info("Job completed: %s %s", job.type, job.id, extra=extra)
    elif "suspend" in ending.entry:
        extra = facts | {"state": "suspended"}
        logger.info("Job suspended: %s %s", job.type, job.id, extra=extra)
    else:
        error = ending.entry.get("error", {})
        extra = facts | {"error_code": error.get("code")}
        logger.warning(
            "Job failed: %s %s: %s: %s", job.type, job.id, error.get("type"), error.get("message"),
            extra=extra,
        )  # fmt: skip
