"""Passes jobs through the deployment's middleware before they are stored (ADR 40).

Middleware is code of the deployment and can fail. It therefore runs in a thread with a deadline,
and its result is validated like the request of a client. This module is loaded only if the
deployment has middleware.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import field, fields
from typing import Any, cast

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from ojs.domain import jsontext
from ojs.domain.errors import (
    InvalidPayload,
    MiddlewareError,
    MiddlewareRefusal,
    MiddlewareTimeout,
    OjsError,
    PayloadTooLarge,
    shorten,
)
from ojs.domain.job import envelope
from ojs.domain.job.envelope import JobRequest, Specification
from ojs.middleware import Envelope, Middleware, Refused
from ojs.records import record

logger = Logger()

# Maximum number of threads per container that still run after their deadline. If this number is
# reached, no further call starts.
MAX_OVERDUE = 8
MAX_REASON_CHARACTERS = 1_000
FAILED = "ojs.middleware.failed"
_NAMESPACE = "OJS"
# Fields of an envelope that requests can also have with other names, in `options` or next to it.
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "timeout_ms": ("timeout",),
    "scheduled_at": ("delay_until",),
    "retry": ("max_attempts",),
}
_FIELDS = tuple(each.name for each in fields(Envelope))
_RULE = "must return an Envelope: `return following(job)`"


class _Link:
    """A middleware by its name, `module:name`. It is imported on first use."""

    def __init__(self, named: str | Middleware) -> None:
        self.name = named if isinstance(named, str) else getattr(named, "__name__", repr(named))
        self._function = None if isinstance(named, str) else named

    def function(self) -> Middleware:
        """Return the function. Raises the errors of its import. The next call imports it again."""
        if self._function is None:
            module, _, name = self.name.partition(":")
            found = getattr(importlib.import_module(module), name)
            if not callable(found):
                raise TypeError(f"{self.name} is not a function")
            self._function = cast("Middleware", found)
        return self._function


@record
class _MiddlewareRun:
    """One call of the middleware, for the jobs of one request."""

    links: Sequence[_Link]
    jobs: Sequence[Envelope]
    changes: list[Mapping[str, Any]] = field(default_factory=list)
    error: BaseException | None = None
    # Each error and the name of the middleware that raised it, innermost first.
    _raised: list[tuple[BaseException, str]] = field(default_factory=list)

    def run(self) -> None:
        """Pass the jobs through the middleware, until one is rejected or fails."""
        try:
            for job in self.jobs:
                self.changes.append(self._changes(job))
        except BaseException as error:  # noqa: BLE001 - even a SystemExit of the middleware must
            # be reported: otherwise the client assumes that its job is stored.
            self.error = error

    @property
    def culprit(self) -> str | None:
        """The name of the middleware that raised the error, if one did."""
        return next((name for error, name in self._raised if error is self.error), None)

    def _changes(self, job: Envelope) -> Mapping[str, Any]:
        """Return the changes of the middleware to a job, by field. Raises its errors."""
        sent = _json(job)
        # A copy, so that changes after the deadline have no effect.
        came = _json(self._step(0, Envelope(**jsontext.stored(sent))))
        if came == sent:
            return {}
        # Parsed like a client's request: with its limits, and without objects of the middleware.
        before, after = jsontext.stored(sent), jsontext.loads(came)
        # Compared by `repr`, because 1 == True in Python.
        changes = {name: after[name] for name in after if repr(after[name]) != repr(before[name])}
        if "id" in changes:
            raise ValueError("must not change the id")
        return changes

    def _step(self, at: int, job: Envelope) -> Envelope:
        if at == len(self.links):
            return job
        link = self.links[at]

        def following(next_job: Envelope, /) -> Envelope:
            return self._step(at + 1, _checked(next_job, "following() requires an Envelope"))

        try:
            return _checked(link.function()(job, following), _RULE)
        except BaseException as error:
            self._raised.append((error, link.name))
            raise


def _checked(value: object, rule: str) -> Envelope:
    if not isinstance(value, Envelope):
        raise TypeError(f"{rule}, not {type(value).__name__}")
    return value


def _json(job: Envelope) -> str:
    values = {name: getattr(job, name) for name in _FIELDS}
    try:
        return _text("the job", values)
    except ValueError:
        for name, value in values.items():
            _text(name, value)
        raise


def _text(name: str, value: object) -> str:
    try:
        text = jsontext.dumps(value)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from error
    return text


class MiddlewareChain:
    """The deployment's middleware, in order."""

    def __init__(
        self, middleware: Sequence[str | Middleware], *, timeout_ms: int, service: str
    ) -> None:
        """Create the chain.

        Args:
            middleware: Functions, or their names as `module:name`.
            timeout_ms: Maximum duration for all jobs of one request in ms.
            service: Dimension of the failure metric.
        """
        self._links = [_Link(each) for each in middleware]
        self.timeout_ms = timeout_ms
        self._service = service
        self._lock = threading.Lock()
        self._overdue: list[threading.Thread] = []

    @property
    def names(self) -> list[str]:
        """The names of the middleware, in order."""
        return [link.name for link in self._links]

    def load(self) -> None:
        """Import all middleware. Raises the errors of the import."""
        for link in self._links:
            link.function()

    def changed(
        self,
        resolved: Sequence[tuple[JobRequest, Specification]],
        *,
        now_ms: int,
        batch: bool = False,
    ) -> list[tuple[JobRequest, Specification]]:
        """Return valid requests and their specifications after the middleware.

        Args:
            resolved: Valid requests with their specifications.
            now_ms: Current time in ms since the epoch.
            batch: Whether errors include the index of the job.

        Returns:
            The requests with their specifications, changed by the middleware.

        Raises:
            MiddlewareRefusal: The middleware rejected a job.
            MiddlewareError: The middleware failed, timed out, or returned an invalid job.
            PayloadTooLarge: The middleware made a job too large.
        """
        sent = [of_request(*each) for each in resolved]
        changes = self.run(sent, batch=batch)
        made = []
        for index, ((request, specification), changed) in enumerate(
            zip(resolved, changes, strict=True)
        ):
            if not changed:
                made.append((request, specification))
                continue
            try:
                after = _request(request, changed)
                made.append((after, envelope.resolve(after, now_ms=now_ms)))
            except PayloadTooLarge as error:
                raise _at(error, index, batch) from None
            except (OjsError, ValueError) as error:
                raise _at(self.failed(error, sent[index]), index, batch) from None
        return made

    def run(self, jobs: Sequence[Envelope], *, batch: bool = False) -> list[Mapping[str, Any]]:
        """Return the changes of the middleware to each job, by field, as JSON values.

        Raises:
            MiddlewareRefusal: The middleware rejected a job.
            MiddlewareError: The middleware failed or timed out.
        """
        with self._lock:
            self._overdue = [thread for thread in self._overdue if thread.is_alive()]
            if len(self._overdue) >= MAX_OVERDUE:
                reason = f"{MAX_OVERDUE} earlier calls have not returned"
                raise self._late(reason, jobs[0])
        called = _MiddlewareRun(self._links, jobs)
        # The context contains values such as the log keys of the request.
        thread = threading.Thread(
            target=copy_context().run, args=(called.run,), name="middleware", daemon=True
        )
        thread.start()
        thread.join(self.timeout_ms / 1_000)
        if thread.is_alive():
            # A thread can't be stopped from outside. It continues, but its result is not used.
            with self._lock:
                self._overdue.append(thread)
            at = min(len(called.changes), len(jobs) - 1)
            raise self._late(f"no response within {self.timeout_ms} ms", jobs[at])
        if called.error is None:
            return called.changes
        index = len(called.changes)
        error, name = called.error, called.culprit
        if isinstance(error, Refused):
            try:
                refusal = _refusal(error, name)
            except (ValueError, InvalidPayload) as wrong:
                error = wrong
            else:
                raise _at(refusal, index, batch)
        raise _at(self.failed(error, jobs[index], name), index, batch) from None

    def failed(self, cause: BaseException, job: Envelope, name: str | None = None) -> OjsError:
        """Log and count a failure.

        Args:
            cause: The failure.
            job: The job as sent.
            name: Name of the middleware, if known.

        Returns:
            The error for the client.
        """
        self._tell(str(cause), job, name, cause)
        return MiddlewareError(name)

    def _late(self, reason: str, job: Envelope) -> MiddlewareTimeout:
        self._tell(reason, job)
        return MiddlewareTimeout()

    def _tell(
        self,
        reason: str,
        job: Envelope,
        name: str | None = None,
        cause: BaseException | None = None,
    ) -> None:
        # The failure is also logged, because a cron job that fires has no client.
        logger.error(
            "Middleware failed",
            middleware=name or ",".join(self.names),
            reason=shorten(reason, MAX_REASON_CHARACTERS),
            job_type=job.type,
            queue=job.queue,
            # The text of a validation error can quote confidential values, and its stack trace is
            # not useful.
            exc_info=None if isinstance(cause, OjsError) else cause,
        )
        namespace = EphemeralMetrics().namespace or _NAMESPACE
        metrics = EphemeralMetrics(namespace=namespace, service=self._service)
        metrics.add_metric(FAILED, MetricUnit.Count, 1)
        metrics.flush_metrics()


def of_request(request: JobRequest, specification: Specification) -> Envelope:
    """Return the envelope of a valid request."""
    content = specification.content
    retry = content.get("retry")
    if request.value_of("max_attempts") is not None:
        retry = {**(retry or {}), "max_attempts": specification.policy.max_attempts}
    return Envelope(
        type=specification.type,
        args=content["args"],
        id=specification.id,
        queue=specification.queue,
        meta=content.get("meta", {}),
        priority=specification.priority,
        tags=content.get("tags"),
        timeout_ms=specification.timeout_ms,
        visibility_timeout_ms=specification.visibility_ms,
        scheduled_at=content.get("scheduled_at"),
        expires_at=content.get("expires_at"),
        pending=specification.pending,
        retry=retry,
        unique=content.get("unique"),
        rate_limit=content.get("rate_limit"),
        metadata=content.get("options", {}).get("metadata"),
        schema=request.schema_,
        specversion=request.specversion,
        extra={
            name: request.model_extra[name]
            for name in request.model_extra.keys() - _of_the_step(request)
        },
    )


def _request(request: JobRequest, changes: Mapping[str, Any]) -> JobRequest:
    """Return a changed request. Raises InvalidRequest, or ValueError for `extra`."""
    if isinstance(extra := changes.get("extra", {}), dict):
        if taken := sorted(set(extra) & _KNOWN):
            raise ValueError(f"extra must not have {taken[0]!r}, a field of the response")
    else:
        raise ValueError("extra must be an object")  # noqa: TRY004 - as other rules
    raw = request.model_dump(exclude_none=True)
    options = raw.pop("options", {})
    raw["schema"] = raw.pop("schema_", None)
    for name, value in changes.items():
        if name == "extra":
            for unknown in request.model_extra:
                raw.pop(unknown, None)
            raw |= value
        elif name == "metadata":
            options["metadata"] = value
        else:
            for each in (name, *_OTHER_NAMES.get(name, ())):
                raw.pop(each, None)
                options.pop(each, None)
            raw[name] = value
    made = envelope.parse(raw | ({"options": options} if options else {}))
    made.model_extra = {**made.model_extra, **_of_the_step(request)}
    return made


def _of_the_step(request: JobRequest) -> dict[str, Any]:
    """Return the fields that the backend adds to a workflow step. Middleware can't access them."""
    return {
        name: value for name, value in request.model_extra.items() if name in envelope.SYSTEM_FIELDS
    }


def _known() -> Iterator[str]:
    yield from envelope.SYSTEM_FIELDS
    for name, each in JobRequest.model_fields.items():
        yield each.alias or name


_KNOWN = frozenset(_known())


def _refusal(refused: Refused, name: str | None) -> MiddlewareRefusal:
    """Return the error for the client.

    Raises:
        ValueError: The message or the code is not a string, or the details are not JSON.
        InvalidPayload: The details are not allowed as JSON values of a request.
    """
    if not all(isinstance(each, str) for each in (refused.message, refused.code)):
        raise ValueError("message and code of Refused must be strings")
    details = jsontext.loads(_text("details", refused.details))
    return MiddlewareRefusal(
        shorten(refused.message, MAX_REASON_CHARACTERS),
        details={**details, "middleware": name, "reason": shorten(refused.code)},
    )


def _at(error: OjsError, index: int, batch: bool) -> OjsError:
    return envelope.at_index(error, index) if batch else error
