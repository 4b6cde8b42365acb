"""What enqueue middleware is written with: import this module, and nothing else of `ojs`.

    from ojs.middleware import Envelope, Next, Refused

    def check_args(job: Envelope, following: Next) -> Envelope:
        if job.type == "email.send" and not job.args:
            raise Refused("email.send wants an address", code="no_address")
        return following(job)

docs/middleware.md says how a deployment is given its middleware, and when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass
class Envelope:
    """A job before it is stored; all fields but `id` may be changed. Values are JSON.

    A field that the client did not send has its default. Of several names that a client may use
    for one setting there is one here: `options` are merged in, `timeout` is in `timeout_ms`,
    `delay_until` in `scheduled_at`, `max_attempts` in `retry`.
    """

    type: str
    args: list[Any]
    # None: the server chooses it after the middleware. Read only.
    id: str | None = None
    queue: str = "default"
    meta: dict[str, Any] = field(default_factory=dict)
    priority: int = 0
    tags: list[str] | None = None
    # How long a worker may take, and keep its lease without a heartbeat (ms).
    timeout_ms: int | None = None
    visibility_timeout_ms: int | None = None
    # RFC 3339; relative times that a client sends are absolute here.
    scheduled_at: str | None = None
    expires_at: str | None = None
    pending: bool = False
    # Objects, as a client may send them.
    retry: dict[str, Any] | None = None
    unique: dict[str, Any] | None = None
    rate_limit: dict[str, Any] | None = None
    # `options.metadata`.
    metadata: dict[str, Any] | None = None
    schema: str | None = None
    specversion: str | None = None
    # What the client sent beside the fields of the specification.
    extra: dict[str, Any] = field(default_factory=dict)


class Next(Protocol):
    """The rest of the middleware, which returns the job as it is after it."""

    def __call__(self, job: Envelope, /) -> Envelope: ...


class Middleware(Protocol):
    """A function that changes a job, or refuses it. It returns what `following(job)` returns, or
    leaves the rest of the middleware out and returns the job itself.

    Raises Refused. Whatever else it raises is its own fault: the client is told to try again.
    """

    def __call__(self, job: Envelope, following: Next, /) -> Envelope: ...


class Refused(Exception):
    """The job must not be stored. The client is told why, with HTTP status 422.

    `code` is for programs, in `error.details.reason`; `details`, of JSON values, stand beside it.
    """

    def __init__(
        self, message: str, *, code: str = "refused", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.details = dict(details or {})
