"""From an API Gateway event to an answer: routing, errors, headers and the request log.

Routing is Powertools' `APIGatewayHttpResolver`. Its own validation is not used: bodies are read by
`ojs.domain.jsontext`, so that numbers keep their form.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from re import Pattern
from typing import TYPE_CHECKING, Any, cast

from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler.api_gateway import APIGatewayHttpResolver, Response
from aws_lambda_powertools.utilities.data_classes import APIGatewayProxyEventV2

from ojs.clock import Clock, SystemClock
from ojs.domain import jsontext
from ojs.domain.access import Principal
from ojs.domain.errors import BackendContended, NotFound, OjsError
from ojs.domain.ids import IdSource
from ojs.http.binding import client_quirks, errors, negotiation
from ojs.http.binding.access import Guard
from ojs.http.binding.request import Request
from ojs.http.contract import operations as contract
from ojs.http.contract.operations import Operation

if TYPE_CHECKING:
    from aws_lambda_powertools.event_handler.exceptions import NotFoundError

logger = Logger()

_GATEWAY_TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class Answer:
    """What an implementation returns. A body of None means no body.

    A text is sent as it is, with the type in `headers`.
    """

    body: Mapping[str, Any] | str | None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Implementation = Callable[[Request], Answer]


class _Resolver(APIGatewayHttpResolver):
    """Powertools' router, made safe for threads.

    Powertools keeps the event in a class attribute and the route's arguments in one dict. That is
    right in Lambda, where a process serves one request at a time; the local server runs handlers in
    threads. Here each thread has its own.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        super().__init__()

    @property
    def current_event(self) -> APIGatewayProxyEventV2:  # type: ignore[override]
        return cast("APIGatewayProxyEventV2", self._local.event)

    @property
    def context(self) -> dict[str, Any]:
        if not hasattr(self._local, "context"):
            self._local.context = {}
        return cast("dict[str, Any]", self._local.context)

    @context.setter
    def context(self, value: dict[str, Any]) -> None:
        self._local.context = value

    def resolve(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        self._local.event = APIGatewayProxyEventV2(dict(event))
        return super().resolve(event, context)

    @staticmethod
    def _compile_regex(rule: str, base_regex: str = "") -> Pattern[str]:
        # The same pattern for routes, for 405 and for dispatch.
        return contract.pattern(rule)


class Application:
    """One HTTP function: binds implementations to the operations of the contract."""

    def __init__(self, function: str, guard: Guard) -> None:
        self.function = function
        self._guard = guard
        # Not the runtime's clock: a request is answered, with an id, even if that cannot be built.
        self._clock: Clock = SystemClock()
        self._started_ms = self._clock.now_ms()
        self._ids = IdSource(self._clock)
        self._expected = {op.id: op for op in contract.operations_of(function)}
        self._bound: set[str] = set()
        self._resolver = _Resolver()
        self._resolver.not_found(self._no_route)
        self._resolver.exception_handler(OjsError)(self._refused)
        # Any other error is a defect: it is logged with its stack, and the caller still gets the
        # error body and headers.
        self._resolver.exception_handler(Exception)(self._failed)

    def uptime_s(self) -> int:
        """Seconds since this container (or the local server) started."""
        return (self._clock.now_ms() - self._started_ms) // 1_000

    def operation(
        self, *operation_ids: str, strict_query: bool = False
    ) -> Callable[[Implementation], Implementation]:
        """Bind an implementation. Raises ValueError for an operation unknown or bound already.

        `strict_query`: a query parameter that the operation does not have is refused.
        """

        def bind(implementation: Implementation) -> Implementation:
            for operation_id in operation_ids:
                if operation_id not in self._expected:
                    raise ValueError(f"{self.function} has no operation {operation_id}")
                if operation_id in self._bound:
                    raise ValueError(f"operation {operation_id} is bound twice")
                self._bound.add(operation_id)
                self._install(self._expected[operation_id], implementation, strict_query)
            return implementation

        return bind

    def complete(self) -> Application:
        """Raise ValueError unless every operation of the function is bound."""
        if missing := self._expected.keys() - self._bound:
            raise ValueError(f"not bound in {self.function}: {', '.join(sorted(missing))}")
        return self

    def __call__(self, event: Mapping[str, Any], context: object) -> dict[str, Any]:
        """Answer one API Gateway event."""
        headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
        request_id = negotiation.request_id(headers.get("x-request-id"))
        request_id = request_id or f"req_{self._ids.uuid7()}"
        http = event["requestContext"]["http"]
        method = http["method"].upper()
        self._resolver.context.update(
            headers=headers, request_id=request_id, method=method, lambda_context=context,
            closed=True,
        )  # fmt: skip
        if method == "HEAD" and "GET" in contract.at(event["rawPath"]):
            # Answered like GET: the server in front drops the body and keeps its Content-Length.
            request_context = {**event["requestContext"], "http": {**http, "method": "GET"}}
            event = {**event, "requestContext": request_context}
        return self._resolver.resolve(event, context)

    def _install(
        self, operation: Operation, implementation: Implementation, strict_query: bool
    ) -> None:
        def route(**path: str) -> Response[str]:
            context, event = self._resolver.context, self._resolver.current_event.raw_event
            context["operation"] = operation
            if operation not in contract.at(event["rawPath"]).values():
                # The router takes a fixed path (`/workers/fetch`) for a template (`/workers/{id}`).
                return self._no_route()
            principal = self._who(event)
            self._guard.permit(principal, operation)
            if operation.id != "manifest":  # clients read it before they choose a version
                negotiation.check_version(context["headers"].get("ojs-version"))
            request = Request(
                operation=operation,
                headers=context["headers"],
                query=event.get("queryStringParameters") or {},
                raw_query=event.get("rawQueryString") or "",
                path_value=next(iter(path.values()), None),
                raw_body=event.get("body"),
                base64_body=bool(event.get("isBase64Encoded")),
                remaining_ms=_remaining(context["lambda_context"]),
                principal=principal,
            )
            self._guard.admit(request)
            request.check_no_body()
            if strict_query:
                request.check_query()
            return self._respond(implementation(request))

        self._resolver.route(operation.path, operation.method)(route)

    def _who(self, event: Mapping[str, Any]) -> Principal:
        """Find the caller, before anything else is looked at. Raises Unauthenticated."""
        context = self._resolver.context
        context["closed"] = self._guard.closed
        context["principal"] = principal = self._guard.who(event)
        return principal

    def _no_route(self, _error: NotFoundError | None = None) -> Response[str]:
        method = self._resolver.context["method"]
        path = self._resolver.current_event.raw_path
        allowed = _methods(contract.at(path))
        self._resolver.context["closed"] = self._guard.closed
        if method != "OPTIONS" or not allowed:
            # Unauthenticated callers do not even learn which paths exist. A browser's preflight
            # request is excepted: it has no key.
            self._who(self._resolver.current_event.raw_event)
        if not allowed:
            error = NotFound("route", f"{method} {path}")
            if path.endswith("/stream"):
                error.message += " Event streams are not served; poll instead."
            raise error
        if method == "OPTIONS":
            return self._respond(Answer(None, 204, negotiation.preflight_headers(allowed)))
        raise errors.MethodNotAllowed(method, allowed)

    def _refused(self, error: OjsError) -> Response[str]:
        return self._error(error, cause=error)

    def _failed(self, error: Exception) -> Response[str]:
        return self._error(errors.internal(), cause=error)

    def _error(self, error: OjsError, cause: Exception) -> Response[str]:
        body = errors.body(error, self._resolver.context["request_id"])
        answer = Answer(body, errors.kind_of(error).status, errors.headers(error))
        return self._respond(answer, error.code, cause)

    def _respond(
        self, answer: Answer, code: str | None = None, cause: Exception | None = None
    ) -> Response[str]:
        self._log(answer.status, code, cause)
        context = self._resolver.context
        headers = negotiation.answer_headers(context["request_id"], closed=context["closed"])
        if answer.body is not None:
            requested = context["headers"]
            headers["Content-Type"] = client_quirks.media_type(
                requested.get("accept"), requested.get("user-agent")
            )
        headers |= answer.headers
        text = "" if answer.body is None else answer.body
        if not isinstance(text, str):
            text = jsontext.dumps(text)
        if answer.status >= 400:
            # An error may quote an unpaired surrogate, which UTF-8 cannot encode: it is escaped.
            text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        return Response(status_code=answer.status, body=text, headers=headers)

    def _log(self, status: int, code: str | None, cause: Exception | None) -> None:
        # Never the body, the query or values in the path: they may be confidential.
        context = self._resolver.context
        operation: Operation | None = context.get("operation")
        fields: dict[str, Any] = {
            "correlation_id": context["request_id"],
            "method": context["method"][:20],
            "operation": operation.id if operation else None,
            "status": status,
        }
        principal: Principal | None = context.get("principal")
        if principal is not None and principal.name is not None:
            fields |= {"principal": principal.name[:100], "key": principal.key}
        if code is not None:
            fields["code"] = code
        # Successes are logged at DEBUG only: storing a line for each request costs about as much as
        # serving it, and the API's access log has them.
        if isinstance(cause, BackendContended):
            # Others were quicker: no defect, and no stack that could tell anything.
            logger.warning("request contended", **fields)
        elif status >= 500:
            logger.error("request failed", exc_info=cause, **fields)
        elif code is not None:
            logger.info("request refused", **fields)
        else:
            logger.debug("request served", **fields)


def _remaining(lambda_context: object) -> Callable[[], int]:
    """A function that returns the ms until Lambda stops the function, or API Gateway's timeout."""
    found = getattr(lambda_context, "get_remaining_time_in_millis", None)
    return cast("Callable[[], int]", found) if callable(found) else lambda: _GATEWAY_TIMEOUT_MS


def _methods(operations: Mapping[str, Operation]) -> list[str]:
    """The methods of a path, for the Allow header."""
    if not operations:
        return []
    return sorted({*operations, "OPTIONS", *(["HEAD"] if "GET" in operations else [])})
