"""A request from API Gateway (payload format 2.0). Its parts are validated when they are read."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from aws_lambda_powertools import Logger

from ojs.domain import jsontext
from ojs.domain.access import KEY_ID, Principal, Scope
from ojs.domain.delivery.delivery import check_delivery, check_subscription
from ojs.domain.errors import InvalidPayload, InvalidRequest, NotFound, forbidden, shorten
from ojs.domain.job import envelope
from ojs.domain.job.durable import NAME, STEP_NAME
from ojs.domain.job.trace import TraceContext
from ojs.domain.pool.pool import check_pool
from ojs.domain.pool.worker import check_worker_id
from ojs.domain.queue.config import DEFAULT_QUEUE_POLICY
from ojs.domain.rate_limit import limiter as limits
from ojs.domain.requests import FILLED
from ojs.domain.tenants import check_tenant
from ojs.http import models
from ojs.http.binding import negotiation
from ojs.http.binding.query import checked
from ojs.http.endpoint import PARAMETER, Operation
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.edits import Edit

logger = Logger()

Body = TypeVar("Body", bound=models.RequestModel)


def _check_key_id(value: str) -> str:
    if not KEY_ID.fullmatch(value):
        raise ValueError("must be the 16 hex digits of a key id, not the key itself")
    return value


def _check_queue(value: str) -> str:
    if value == DEFAULT_QUEUE_POLICY:
        raise ValueError("is the policy for new queues, not a queue. Use its path /config")
    return envelope.check_queue(value)


def _check_schema(value: str) -> str:
    if ":" not in value:
        return envelope.check_type(value)
    if not value.isprintable() or " " in value or len(value) > envelope.MAX_URI:
        raise ValueError("must be a job type or a URI")
    return value


_CHECKS: Mapping[str, Callable[[str], str]] = {
    "job": envelope.check_job_id,
    "worker": check_worker_id,
    "queue": _check_queue,
    "rate limit": limits.check_any_key,
    "operation": envelope.check_job_id,
    "action": envelope.check_job_id,
    "pool": check_pool,
    "delivery": check_delivery,
    "subscription": check_subscription,
    "schema": _check_schema,
    "key": _check_key_id,
    "cron job": envelope.check_queue,
    "workflow": envelope.check_job_id,
    "tenant": check_tenant,
}


# Kind of object in a path → its key in all later log messages.
_LOGGED: Mapping[str, str] = {"job": "job_id", "queue": "queue"}

# RFC 8259, section 2.
_WHITE_SPACE = b" \t\r\n"


@record(frozen=True)
class Request:
    """A request to an operation."""

    operation: Operation
    headers: Mapping[str, str]
    # Parameters by name. API Gateway joins the values of a repeated parameter with commas.
    query: Mapping[str, str]
    # The query in its original form.
    raw_query: str
    path_value: str | None
    raw_body: str | None
    base64_body: bool
    # Returns the milliseconds until Lambda stops the function.
    remaining_ms: Callable[[], int]
    principal: Principal
    # Seconds since this container (or the local server) started.
    uptime_s: int
    trace: TraceContext | None
    # The last segment of a path with two parameters.
    path_rest: str = ""
    # The change that the request makes, with its precondition. None for requests that only read.
    edit: Edit | None = None

    def about(self, **ids: str | None) -> None:
        """Add the job (`job_id`) or the `queue` to all later log messages of this request.

        Pass only validated values. Logs must not contain any other part of a request.
        """
        known = {name: value for name, value in ids.items() if isinstance(value, str)}
        if known:
            logger.thread_safe_append_keys(**known)

    def touches(self, *queues: str | None) -> None:
        """Raise PermissionDenied for a queue outside the caller's queue scope. None: all queues."""
        for queue in queues:
            if self.principal.limited and (queue is None or not self.principal.reaches(queue)):
                raise forbidden()

    def check_job_reach(self, queue: str, job_id: str) -> None:
        """Raise PermissionDenied for a job outside the caller's queue scope.

        For a tenant's caller, raise NotFound, as for an unknown job.
        """
        if self.principal.tenant is not None and not self.principal.reaches(queue):
            raise NotFound("job", job_id)
        self.touches(queue)

    def needs(self, scope: Scope) -> None:
        """Raise PermissionDenied if the caller doesn't have this additional scope."""
        if scope not in self.principal.scopes:
            raise forbidden()

    def moves_to(self, queue: str) -> None:
        """Raise PermissionDenied if the caller can't move jobs to this queue.

        The requirements are those of an enqueue. `Queue.check_job` checks the rules of the queue.
        """
        self.needs(Scope.JOBS_WRITE)
        self.touches(queue)

    @property
    def named(self) -> str:
        """The ID or name in the path. Reading it raises InvalidRequest if it is malformed."""
        parameter, subject = self.operation.path_parameter, self.operation.subject
        if parameter is None or subject is None or self.path_value is None:
            raise TypeError(f"{self.operation.id} has no path parameter")
        try:
            # API Gateway decodes the path, but other servers don't. No name contains '%', so
            # decoding a path twice has no effect.
            value = unquote(self.path_value, errors="strict")
        except UnicodeDecodeError:
            raise InvalidRequest(
                parameter, "must be percent-encoded UTF-8", value=self.path_value
            ) from None
        name = checked(parameter, _CHECKS[subject], value)
        if subject in _LOGGED:
            self.about(**{_LOGGED[subject]: name})
        return name

    @property
    def body_bytes(self) -> int:
        """The size of the body in bytes. A base64 body can be up to 2 bytes smaller."""
        if self.base64_body:
            return len(self.raw_body or "") * 3 // 4
        return len((self.raw_body or "").encode("utf-8", "surrogatepass"))

    @property
    def second_named(self) -> str:
        """The second parameter in the path. Reading it raises InvalidRequest if it is malformed."""
        _, parameter = PARAMETER.findall(self.operation.path)
        pattern = STEP_NAME if parameter == "step" else NAME
        try:
            value = unquote(self.path_rest, errors="strict")
        except UnicodeDecodeError:
            value = ""
        if not pattern.fullmatch(value):
            rule = "must be a name of 1 to 64 letters, digits, or _.:-"
            raise InvalidRequest(parameter, rule, value=value)
        return value

    def object(self) -> dict[str, Any]:
        """Read the body as a JSON object. An empty optional body is `{}`.

        Raises:
            InvalidRequest: The content type is not supported.
            InvalidPayload: The body is not a JSON object.
        """
        if not self.raw_body and not self.operation.body_required:
            return {}
        if self.raw_body:
            negotiation.check_content_type(self.headers.get("content-type"))
        value: Any = jsontext.loads(self._bytes())
        if not isinstance(value, dict):
            raise InvalidPayload(
                "The body must be a JSON object.", details={"reason": "must be a JSON object"}
            )
        if self.principal.tenant is not None:
            from ojs.http.binding import tenancy

            value = tenancy.read_body_names(value, self.operation, self.principal.tenant)
        found: dict[str, Any] = value
        return found

    def parsed(self, model: type[Body]) -> Body:
        """Read the body as `model`, the declared request model of this operation.

        Fields that are query parameters too are also read from the query.

        Raises:
            InvalidPayload: The body is not a JSON object.
            InvalidRequest: A field is invalid, or has different values in the body and the query.
            Unsupported: A field requests a feature that this server does not support.
        """
        if self.operation.request is not model:
            raise TypeError(f"{self.operation.id} takes no {model.__name__}")
        body = models.parse(model, self._with_query(self.object()))
        self.about(**{name: getattr(body, name, None) for name in _LOGGED.values()})
        return body

    def _with_query(self, body: dict[str, Any]) -> dict[str, Any]:
        """Add the fields in the query to the body. Raise InvalidRequest if the values differ."""
        for parameter in self.operation.in_body_too:
            name = parameter.name
            if name not in self.query:
                continue
            value: str | bool = self.query[name]
            if value == "true" and parameter.schema.get("enum") == ["true"]:
                value = True
            if body.setdefault(name, value) != value:
                rule = "must have the same value in the body and in the query. Send only one"
                raise InvalidRequest(name, rule, value=value)
        return body

    def check_filled(self) -> None:
        """Raise InvalidRequest for an empty parameter, which can result from an unset variable."""
        for parameter in self.operation.query:
            if self.query.get(parameter.name) == "":
                raise InvalidRequest(parameter.name, FILLED)

    def check_query(self) -> None:
        """Raise InvalidRequest for an unknown parameter, which can be a typing error."""
        known = [parameter.name for parameter in self.operation.query]
        for name in self.query:
            if name not in known:
                rule = "is unknown. This operation has no parameters"
                if known:
                    rule = f"is unknown. The parameters are {', '.join(known)}"
                raise InvalidRequest(shorten(name), rule)

    def check_no_body(self) -> None:
        """Raise InvalidRequest if the operation has no body, but the request has one.

        White space and `{}` are allowed, because some clients send them with each request.
        """
        if self.operation.request is models.NoOptions:
            self.parsed(models.NoOptions)
        if self.operation.request is not None or not self.raw_body:
            return
        try:
            body = self._bytes().strip(_WHITE_SPACE)
        except InvalidPayload:
            empty = False
        else:
            inside = body[1:-1] if body[:1] + body[-1:] == b"{}" else body
            empty = not inside.strip(_WHITE_SPACE)
        if not empty:
            raise InvalidRequest("body", "must be empty or {}, because this operation has no body")

    def _bytes(self) -> bytes:
        text = self.raw_body or ""
        try:
            if self.base64_body:
                return base64.b64decode(text, validate=True)
            return text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidPayload(
                "The body is not valid UTF-8. Send one JSON object, encoded as UTF-8.",
                details={"position": error.start},
            ) from None
        except ValueError:  # binascii.Error, or non-ASCII characters
            raise InvalidPayload(
                "The body is not valid base64. Send one JSON object, encoded as UTF-8."
            ) from None
