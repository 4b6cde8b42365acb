"""Declares operations. A resource has endpoints, each with the function that serves it.

These declarations define the routes, permissions, request validation, and the OpenAPI document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from inspect import cleandoc
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from ojs.domain.access import Scope
from ojs.domain.errors import OjsError
from ojs.http.models import NoOptions
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.requests import Model
    from ojs.http.answer import Answer

BASE = "/ojs/v1"
JOBS = "jobs"
WORKERS = "workers"
ADMIN = "admin"
HTTP_FUNCTIONS = (JOBS, WORKERS, ADMIN)

Subject = Literal[
    "job", "worker", "queue", "rate limit", "operation", "pool", "key", "cron job", "workflow",
    "delivery", "subscription", "action", "tenant", "schema",
]  # fmt: skip
PARAMETER = re.compile(r"\{(\w+)\}")
# Segment before a parameter in a path → kind of object that the parameter identifies.
_SUBJECTS: Mapping[str, Subject] = {
    "jobs": "job", "dead-letter": "job", "operations": "operation", "workers": "worker",
    "queues": "queue", "rate-limits": "rate limit", "pools": "pool", "keys": "key",
    "cron": "cron job", "crons": "cron job", "workflows": "workflow", "deliveries": "delivery",
    "checkpoints": "job", "subscriptions": "subscription", "tenants": "tenant",
    "actions": "action", "schemas": "schema",
}  # fmt: skip


class QueueScope(StrEnum):
    """Which queues an operation touches; a key that is limited to some queues must reach them."""

    NONE = "none"
    """The operation touches no queue."""
    PATH = "the queue in the path"
    JOB = "the job's queue"
    """Costs a limited key one read, of the job record."""
    NAMED = "the queues in the body"
    """The operation itself calls `Request.touches`."""
    CRON = "the cron job's queue"
    """The operation itself compares it; a list has those within reach."""
    WORKFLOW = "the queues of the workflow's jobs"
    """The operation itself compares all of them; a list has the workflows within reach."""
    FILTER = "the queues it asks for"
    """A limited key has to name them in the query."""
    TENANT = "the queues it asks for, or all queues of its tenant"
    """A limited key without a tenant has to name them in the query."""
    ALL = "all queues"
    """Not for limited keys."""


@record(frozen=True)
class Permission:
    """The scope that an operation requires (None: any valid key), and the queues it affects.

    Each scope in `others` is sufficient, too.
    """

    scope: Scope | None
    reach: QueueScope
    others: tuple[Scope, ...] = ()


@record(frozen=True)
class Reply:
    """The result of an implementation.

    None as the body means no body. A string is sent unchanged, with the content type in `headers`.
    `failed` is the error of one of several parts of the request. The body reports it, and it is
    logged if it is a defect.
    """

    body: Mapping[str, Any] | Answer[Any] | str | None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    failed: OjsError | None = None


# Its argument is a `Request`, which contains its operation.
Implementation = Callable[[Any], Reply]


@record(frozen=True)
class Parameter:
    """A query parameter or a request header, and its JSON schema."""

    name: str
    schema: Mapping[str, Any]
    description: str


@record(frozen=True)
class Success:
    """One successful response. `shape` is its type, or None if it has no body."""

    shape: type[Answer[Any]] | None
    description: str
    headers: tuple[str, ...] = ()
    # Optional headers.
    sometimes: tuple[str, ...] = ()
    # Whether the body can be text of this type. Without a shape, it always is.
    text: bool = False
    text_type: str = "text/plain"


_PRECONDITIONS = (
    Parameter(
        "If-Match",
        {"type": "string", "minLength": 1},
        "ETag of the configuration as you read it, or `*`; another one is 412",
    ),
    Parameter(
        "If-None-Match", {"type": "string", "pattern": r"^\*$"}, "`*`: 412 if there is one already"
    ),
)


@record(frozen=True)
class Operation:
    """An operation of the API: one method on one path."""

    id: str
    method: str
    path: str
    tag: str
    summary: str
    permission: Permission
    answers: Mapping[int, Success]
    # Statuses of error responses, in addition to those of all operations.
    errors: tuple[int, ...] = ()
    request: type[Model] | None = None
    body_required: bool = True
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    # Whether the response is read from projections. On AWS, they lag by the delay of the stream.
    # The local server projects all writes before it responds.
    derived: bool = False
    # Whether unknown parameters are rejected, because they can be typing errors.
    strict_query: bool = True
    # Example of a request.
    example: Mapping[str, Any] | None = None
    implementation: Implementation | None = None
    # Whether responses have the ETag of a configuration, and changes of it check If-Match.
    versioned: bool = False

    @property
    def path_parameter(self) -> str | None:
        """The name of the path parameter, or None."""
        found = PARAMETER.search(self.path)
        return found[1] if found else None

    @property
    def subject(self) -> Subject | None:
        """The kind of object that the path parameter identifies, or None."""
        before, brace, _ = self.path.partition("/{")
        return _SUBJECTS[before.rpartition("/")[2]] if brace else None

    @property
    def in_body_too(self) -> tuple[Parameter, ...]:
        """The query parameters that are also fields of the body."""
        fields = {} if self.request is None else self.request.model_fields
        return tuple(each for each in self.query if each.name in fields)

    @property
    def function(self) -> str:
        """The name of the function that serves the operation."""
        return function_for(self.path)


def function_for(path: str) -> str:
    """Return the function that serves `path`, even an unknown path: jobs, workers, or admin."""
    for name in (JOBS, WORKERS):
        if path == f"{BASE}/{name}" or path.startswith(f"{BASE}/{name}/"):
            return name
    return ADMIN


class Resource:
    """The operations under one path."""

    def __init__(
        self,
        path: str,
        tag: str,
        also: Mapping[str, str] | None = None,
        *,
        form: str = "{}",
        lenient: bool = False,
    ) -> None:
        """Create a resource without operations.

        Args:
            path: Path below `BASE`, or an absolute path that starts with a slash.
            tag: Tag of the operations in the OpenAPI document.
            also: Other places of the same operations: format of their IDs (`crons_{}`) → path.
            form: Format of the operation IDs. Its value is the name of the function.
            lenient: Whether only GET requests with unknown parameters are rejected.
        """
        self._lenient = lenient
        self._places = {form: path, **(also or {})}
        self._tag = tag
        self.operations: list[Operation] = []

    def endpoint(
        self,
        route: str,
        permission: Permission,
        answers: type[Answer[Any]] | Success | Mapping[int, Success],
        *,
        errors: tuple[int, ...] = (),
        request: type[Model] | None = None,
        example: Mapping[str, Any] | None = None,
        admin_example: Mapping[str, Any] | None = None,
        name: str | None = None,
        body_required: bool = True,
        query: tuple[Parameter, ...] = (),
        headers: tuple[Parameter, ...] = (),
        derived: bool = False,
        strict_query: bool = True,
        admin: Permission | None = None,
        versioned: bool = False,
    ) -> Callable[[Implementation], Implementation]:
        """Declare the operation that the decorated function serves.

        The first paragraph of the function's docstring is the summary of the operation. If
        `answers` is a type, the rest describes the response.

        Args:
            route: Method, and optionally the path below the path of the resource: `GET /{name}`.
            permission: Required permission.
            answers: Type of the response, the response with status 200, or responses by status.
            errors: Statuses of error responses, in addition to those of all operations.
            request: Type of the body, or None if the operation has no body.
            example: Example of the body. Required if the operation has a body with options.
            admin_example: Example for the operation under `/admin`. Default: `example`.
            name: Operation ID. Default: the name of the function.
            body_required: Whether the body is required.
            query: Query parameters.
            headers: Request headers that are specific to the operation.
            derived: Whether the response is read from projections.
            strict_query: Whether unknown query parameters are rejected.
            admin: Permission for the operation under `/admin`. Default: `permission`.
            versioned: Whether the operation reads or changes a configuration with an ETag. Its
                responses have the field `etag`, and a change checks If-Match.

        Returns:
            The decorator, which returns the function unchanged.

        Raises:
            TypeError: The operation has a body without an example, or an example without a body.
        """
        if request is NoOptions:
            example, body_required = {}, False
        if (request is None) != (example is None):
            raise TypeError(f"{route}: a request has an example")
        method, _, below = route.partition(" ")
        if versioned and method != "GET":
            creates = method in ("PUT", "POST")
            headers = (*headers, *(_PRECONDITIONS if creates else _PRECONDITIONS[:1]))
            errors = (*errors, 412)

        def declare(implementation: Implementation) -> Implementation:
            summary, _, told = cleandoc(implementation.__doc__ or "").partition("\n\n")
            found = answers
            if isinstance(found, type):
                found = Success(found, " ".join(told.split()) or summary)
            for form, path in self._places.items():
                whole = path.rstrip("/") + below
                tag = "admin" if form == "admin_{}" else self._tag
                self.operations.append(
                    Operation(
                        form.format(name or implementation.__name__),
                        method,
                        whole if path.startswith("/") else f"{BASE}/{whole.lstrip('/')}",
                        tag,
                        summary.rstrip("."),
                        admin if admin and form == "admin_{}" else permission,
                        {200: found} if isinstance(found, Success) else found,
                        errors,
                        request,
                        body_required,
                        query,
                        headers,
                        derived,
                        strict_query and (method == "GET" or not self._lenient),
                        example if admin_example is None or tag != "admin" else admin_example,
                        implementation,
                        versioned,
                    )
                )
            return implementation

        return declare


def declared(*modules: ModuleType) -> Iterator[Operation]:
    """Yield the operations of the resources in these modules."""
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Resource):
                yield from value.operations
