"""Types for enqueue middleware. Import this module and no other module of `ojs`.

    from ojs.middleware import Envelope, Next, Refused

    def check_args(job: Envelope, following: Next) -> Envelope:
        if job.type == "email.send" and not job.args:
            raise Refused("email.send requires an address.", code="no_address")
        return following(job)

docs/middleware.md describes how to add middleware to a deployment, and when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass
class Envelope:
    """A job before it is stored. Middleware can change all fields except `id`. Values are JSON.

    A field that the client didn't send has its default. If clients can use several names for one
    setting, the envelope has only one of them: `options` are merged in, `timeout` is in
    `timeout_ms`, `delay_until` in `scheduled_at`, and `max_attempts` in `retry`.
    """

    type: str
    args: list[Any]
    # None: the server chooses it after the middleware. Read only.
    id: str | None = None
    queue: str = "default"
    meta: dict[str, Any] = field(default_factory=dict)
    priority: int = 0
    tags: list[str] | None = None
    # Maximum duration of one attempt, and of its lease without a heartbeat (ms).
    timeout_ms: int | None = None
    visibility_timeout_ms: int | None = None
    # RFC 3339. Relative times from the client are converted to absolute times.
    scheduled_at: str | None = None
    expires_at: str | None = None
    pending: bool = False
    # Objects in the format of the API.
    retry: dict[str, Any] | None = None
    unique: dict[str, Any] | None = None
    rate_limit: dict[str, Any] | None = None
    # `options.metadata`.
    metadata: dict[str, Any] | None = None
    schema: str | None = None
    specversion: str | None = None
    # Fields from the client that are not in the specification.
    extra: dict[str, Any] = field(default_factory=dict)


class Next(Protocol):
    """The next middleware. Call it with the job. It returns the job with its changes."""

    def __call__(self, job: Envelope, /) -> Envelope: ...


class Middleware(Protocol):
    """A function that changes or rejects a job.

    It returns the result of `following(job)`. To skip the middleware that follows, it returns the
    job itself. To reject the job, it raises Refused. Any other error counts as a defect of the
    middleware, and the client receives a retryable error.
    """

    def __call__(self, job: Envelope, following: Next, /) -> Envelope: ...


class Refused(Exception):
    """Rejects the job. The client receives the message with HTTP status 422.

    `code` is for programs and is sent in `error.details.reason`. The entries of `details` are
    added to `error.details`.
    """

    def __init__(
        self, message: str, *, code: str = "refused", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.details = dict(details or {})
