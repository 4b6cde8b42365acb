"""How operations are declared: a resource has endpoints, each beside the function that serves it.

Routes, permissions, checks of requests and the OpenAPI document are made from these declarations.
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
    "delivery",
]  # fmt: skip
PARAMETER = re.compile(r"\{(\w+)\}")
# What stands before a parameter in a path → what the parameter names.
_SUBJECTS: Mapping[str, Subject] = {
    "jobs": "job", "dead-letter": "job", "operations": "operation", "workers": "worker",
    "queues": "queue", "rate-limits": "rate limit", "pools": "pool", "keys": "key",
    "cron": "cron job", "crons": "cron job", "workflows": "workflow", "deliveries": "delivery",
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
    ALL = "all queues"
    """Not for limited keys."""


@record(frozen=True)
class Permission:
    """What an operation needs: a scope (None: any valid key), and the queues it touches."""

    scope: Scope | None
    reach: QueueScope


@record(frozen=True)
class Reply:
    """What an implementation returns. A body of None means no body.

    A text is sent as it is, with the type in `headers`. `failed` is an error of one of several
    parts of the request, which the body tells; a defect among them is logged.
    """

    body: Mapping[str, Any] | Answer[Any] | str | None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    failed: OjsError | None = None


# Takes a request, which knows its operation.
Implementation = Callable[[Any], Reply]


@record(frozen=True)
class Parameter:
    """A parameter of the query or a header of the request, and its JSON schema."""

    name: str
    schema: Mapping[str, Any]
    description: str


@record(frozen=True)
class Success:
    """One successful answer. `shape` is its type; None has no body."""

    shape: type[Answer[Any]] | None
    description: str
    headers: tuple[str, ...] = ()
    # Headers that it does not always have.
    sometimes: tuple[str, ...] = ()
    # Whether the body may be plain text; without a shape it always is.
    text: bool = False


@record(frozen=True)
class Operation:
    """One method on one path."""

    id: str
    method: str
    path: str
    tag: str
    summary: str
    permission: Permission
    answers: Mapping[int, Success]
    # Statuses of error answers, besides those that any operation may give.
    errors: tuple[int, ...] = ()
    request: type[Model] | None = None
    body_required: bool = True
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    # Whether the answer is made from projections. In the cloud these lag by the stream's delay; the
    # local server projects everything written before it answers.
    derived: bool = False
    # Whether a parameter that it does not have is refused: ignoring a mistyped one would mislead.
    strict_query: bool = True
    # Of a request.
    example: Mapping[str, Any] | None = None
    implementation: Implementation | None = None

    @property
    def path_parameter(self) -> str | None:
        """The name in braces in the path."""
        found = PARAMETER.search(self.path)
        return found[1] if found else None

    @property
    def subject(self) -> Subject | None:
        """The kind of thing that the path's parameter names."""
        before, brace, _ = self.path.partition("/{")
        return _SUBJECTS[before.rpartition("/")[2]] if brace else None

    @property
    def in_body_too(self) -> tuple[Parameter, ...]:
        """The parameters of the query that are fields of the body, too."""
        fields = {} if self.request is None else self.request.model_fields
        return tuple(each for each in self.query if each.name in fields)

    @property
    def function(self) -> str:
        """The function that serves it."""
        return function_for(self.path)


def function_for(path: str) -> str:
    """The function that answers requests to `path`, known or not: `jobs`, `workers`, `admin`."""
    for name in (JOBS, WORKERS):
        if path == f"{BASE}/{name}" or path.startswith(f"{BASE}/{name}/"):
            return name
    return ADMIN


class Resource:
    """The operations below one path."""

    def __init__(
        self,
        path: str,
        tag: str,
        also: Mapping[str, str] | None = None,
        *,
        form: str = "{}",
        lenient: bool = False,
    ) -> None:
        """`path` is below BASE, or begins with a slash. `form` is what its operations are called,
        by the names of functions. `also`: what the same operations are called elsewhere
        (`crons_{}`), and the path there. `lenient`: only GET refuses unknown parameters.
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
    ) -> Callable[[Implementation], Implementation]:
        """Declare the operation that a function serves: its name, unless another is given, is the
        operation's id. Its docstring begins with the summary; what follows describes an answer that
        is only named. `route` is the method, and the path below the resource's. `admin` is the
        permission that is needed under `/admin`, and `admin_example` the example there, if it is
        another. Raises TypeError for a request without an example.
        """
        if request is NoOptions:
            example, body_required = {}, False
        if (request is None) != (example is None):
            raise TypeError(f"{route}: a request has an example")
        method, _, below = route.partition(" ")

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
                    )
                )
            return implementation

        return declare


def declared(*modules: ModuleType) -> Iterator[Operation]:
    """The operations of the resources in these modules."""
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Resource):
                yield from value.operations
