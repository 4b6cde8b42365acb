"""A worker's handlers as a Lambda function that a server pushes jobs to.

It takes the three forms of a delivery's events, messages of an SQS queue, and what a delivery posts
to an endpoint: the URL of a function, or an API in front of it.
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
from ojs_aws.errors import OjsError
from ojs_aws.worker.context import JobContext
from ojs_aws.worker.handlers import Ending, failure

if TYPE_CHECKING:
    from ojs_aws.worker.worker import Worker

logger = logging.getLogger("ojs_aws")

Answer = dict[str, Any]
# A handler is told to stop before Lambda ends it, so that it can still answer.
_SPARE_S = 1.0
# How far the clock of who signed may be off.
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
    clock: Callable[[], float] = time.time,
) -> Callable[[Any, Any], Answer]:
    """Make a Lambda function of the handlers of a worker.

    What comes by HTTP must be signed with one of `signing_secrets` (OJS_SIGNING_SECRET of the
    environment when not given). Invocations need none: who may make them IAM decides.

    A signature holds for the URL that the server posts to. If a proxy in front of the function
    changes the host or the path, `url` (or OJS_ENDPOINT_URL) is the endpoint of the delivery.
    Raises ValueError for an `url` that is none.
    """
    if signing_secrets is None:
        signing_secrets = os.environ.get("OJS_SIGNING_SECRET", "")
    given = [signing_secrets] if isinstance(signing_secrets, str) else list(signing_secrets)
    url = os.environ.get("OJS_ENDPOINT_URL") if url is None else url
    place = _place(url) if url else None
    return _LambdaFunction(worker, [each for each in given if each], place, clock)


class _Malformed(ValueError):
    """An event has no job that can be read."""


class _LambdaFunction:
    def __init__(
        self, worker: Worker, secrets: list[str], url: str | None, clock: Callable[[], float]
    ) -> None:
        self._worker = worker
        self._secrets = secrets
        self._url = url
        self._clock = clock
        # Until its first event is done: Lambda started this process for that.
        self._cold = True

    def __call__(self, event: Any, context: Any = None) -> Answer:
        """The answer to an event, in the form that who sent it reads."""
        try:
            return self._answered(event, context)
        finally:
            self._cold = False

    def _answered(self, event: Any, context: Any) -> Answer:
        if not isinstance(event, Mapping):
            return _answer("", _refusal("the event is no JSON object"))
        if isinstance(event.get("Records"), list):
            return self._batch(event["Records"], context)
        if "requestContext" in event:
            return self._request(event, context)
        return self._pushed(event, context)

    # --- forms -----------------------------------------------------------------------------------

    def _pushed(self, event: Mapping[str, Any], context: Any) -> Answer:
        """The job itself, or `{"job": …}`, each with `worker_id` and `delivery_id`."""
        shown = event.get("job", event)
        try:
            job = _job(shown)
        except _Malformed as error:
            name = shown.get("id") if isinstance(shown, Mapping) else None
            return _answer(name if isinstance(name, str) else "", _refusal(str(error)))
        return _answer(job.id, self._done(job, str(event.get("worker_id") or ""), context))

    def _batch(self, records: list[Any], context: Any) -> Answer:
        """Messages with a job each; those that failed are named."""
        failed = []
        for record in records:
            name = record.get("messageId") if isinstance(record, Mapping) else None
            try:
                shown = json.loads(record["body"])
                job = _job(shown)
            except (KeyError, TypeError, ValueError) as error:
                logger.warning("message %s has no job that can be read: %s", name, error)
                failed.append(name)
                continue
            if self._done(job, str(shown.get("worker_id") or ""), context).how != "acks":
                failed.append(name)
        return {"batchItemFailures": [{"itemIdentifier": name} for name in failed]}

    def _request(self, event: Mapping[str, Any], context: Any) -> Answer:
        """A POST of a delivery to an endpoint, as a function's URL or API Gateway brings it."""
        told = event["requestContext"]
        http = told.get("http") if isinstance(told, Mapping) else None
        method = http.get("method") if isinstance(http, Mapping) else event.get("httpMethod")
        if str(method).upper() != "POST":
            return _reply(405, _refusal("a job is posted"))
        if not self._secrets:
            logger.error("a request cannot be checked: there is no signing secret")
            return _reply(503, failure("authentication_unavailable", "no signing secret is set"))
        try:
            body = _body(event)
        except ValueError:
            return _reply(400, _refusal("the body cannot be decoded"))
        headers = {str(name).lower(): str(it) for name, it in (event.get("headers") or {}).items()}
        if not self._signed(headers, body, self._url or _url(event, headers)):
            return _reply(401, failure("authentication_failed", "the signature is not valid"))
        try:
            shown = json.loads(body)
            job = _job(shown.get("job") if isinstance(shown, Mapping) else None)
        except ValueError as error:
            return _reply(400, _refusal(f"the body has no job that can be read: {error}"))
        ending = self._done(job, str(shown.get("worker_id") or ""), context)
        return _reply(200, ending, job.id)

    def _signed(self, headers: Mapping[str, str], body: bytes, url: str) -> bool:
        """Whether one of the signatures is that of one of the secrets, and fresh. Signatures of the
        second version, if there are any, must be those of this delivery and URL.
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
                # All are compared, so that the time it takes tells nothing.
                valid |= hmac.compare_digest(made.hexdigest().encode(), each)
        return valid

    # --- jobs ------------------------------------------------------------------------------------

    def _done(self, job: Job, worker_id: str, context: Any) -> Ending:
        """Run the job's handler; how it ended."""
        left = getattr(context, "get_remaining_time_in_millis", None)
        within_s = None if left is None else left() / 1_000 - _SPARE_S
        began = time.monotonic()
        if within_s is not None and within_s <= 0:
            # Of a batch whose jobs before took it all.
            ending = failure("timeout", "the invocation had no time left", kind="TimeoutError")
        else:
            tell = _Progress(self._worker, job.id, worker_id)
            ending = self._worker.perform(JobContext(job, tell), within_s=within_s)
        _log(job, ending, time.monotonic() - began, cold_start=self._cold)
        return ending


class _Progress:
    """Tells the server of progress, if the worker knows one; at most once a second."""

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
            logger.info("no progress reported: %s", error)  # the job is what matters


def _job(shown: object) -> Job:
    """The job of an event. Raises _Malformed."""
    if not isinstance(shown, Mapping) or not shown.get("id") or not shown.get("type"):
        raise _Malformed("there is no job with an id and a type")
    try:
        return Job.of({"args": [], **shown})
    except ValueError as error:
        raise _Malformed(str(error)) from None


def _place(url: str) -> str:
    """The host and the path with its query of an endpoint, as the server signs them."""
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.fragment:
        raise ValueError(
            f"url must be the delivery's endpoint, as https://a.example/x, not {url!r}"
        )
    usual = ":443" if parts.scheme == "https" else ":80"
    host = parts.netloc.lower().removesuffix(usual)
    host = host if host.isascii() else host.encode("idna").decode()
    return f"{host}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")


def _url(event: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """The host and the path with its query, as the sender called them."""
    context = event["requestContext"]
    found = context if isinstance(context, Mapping) else {}
    query = event.get("rawQueryString")
    # The path of a REST API's event lacks the stage, which the context's path has.
    path = event.get("rawPath") or found.get("path") or event.get("path") or "/"
    if query is None:
        query = urlencode(event.get("multiValueQueryStringParameters") or {}, doseq=True)
    return f"{headers.get('host', '')}{path}" + (f"?{query}" if query else "")


def _body(event: Mapping[str, Any]) -> bytes:
    """The bytes that were posted. Raises ValueError."""
    body = event.get("body") or ""
    if not isinstance(body, str):
        raise ValueError("the body is no text")  # noqa: TRY004
    if not event.get("isBase64Encoded"):
        return body.encode()
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _refusal(message: str) -> Ending:
    """Of an event that says the same the next time."""
    logger.warning("an event was refused: %s", message)
    return failure("invalid_request", message, retryable=False)


def _answer(job_id: str, ending: Ending) -> Answer:
    """An ending as a delivery reads it."""
    named = {"job_id": job_id} if job_id else {}
    if ending.how == "acks":
        return {"status": "completed", **named, **ending.entry}
    error = ending.entry.get("error")
    if error is None:
        error = failure("job_cancelled", "the handler was told to stop").entry["error"]
    return {"status": "failed", **named, "error": error}


def _reply(status: int, ending: Ending, job_id: str = "") -> Answer:
    """The same as an answer to a request."""
    return {
        "statusCode": status,
        "headers": {"Content-Type": "application/json"},
        "body": json.dumps(_answer(job_id, ending), allow_nan=False),
    }


def _log(job: Job, ending: Ending, lasted_s: float, *, cold_start: bool) -> None:
    """One line in the log for each job. `cold_start`: of the first event of this process."""
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
        logger.info("job %s %s is done", job.type, job.id, extra=extra)
    else:
        error = ending.entry.get("error", {})
        extra = facts | {"error_code": error.get("code")}
        logger.warning(
            "job %s %s failed: %s: %s", job.type, job.id, error.get("type"), error.get("message"),
            extra=extra,
        )  # fmt: skip
