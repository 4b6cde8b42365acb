"""Processes an API Gateway event: routing, errors, headers, and the request log.

`ojs.domain.jsontext` parses the bodies, so that numbers keep their notation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from aws_lambda_powertools import Logger

from ojs.clock import Clock, SystemClock
from ojs.domain import jsontext
from ojs.domain.access import Principal
from ojs.domain.errors import BackendContended, BackendError, NotFound, OjsError, Unsupported
from ojs.domain.ids import IdSource
from ojs.domain.job.trace import TraceContext
from ojs.http.binding import client_quirks, errors, negotiation
from ojs.http.binding.access import Authorizer
from ojs.http.binding.actions import ActionLog
from ojs.http.binding.request import Request
from ojs.http.binding.routes import Routes
from ojs.http.endpoint import ADMIN, Operation, Reply, declared
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.edits import Edit

logger = Logger()

_GATEWAY_TIMEOUT_MS = 30_000


@record
class _Call:
    """The state of one request. Later fields are set during processing."""

    event: Mapping[str, Any]
    headers: Mapping[str, str]
    request_id: str
    method: str
    trace: TraceContext | None
    operation: Operation | None = None
    principal: Principal | None = None
    # Whether callers must authenticate.
    closed: bool = True


class Application:
    """One HTTP function, which serves the operations of several resources."""

    def __init__(
        self,
        function: str,
        guard: Authorizer,
        actions: ActionLog | None = None,
        *,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the application of a function.

        Args:
            function: Name of the function.
            guard: Checks each request.
            actions: Records audited actions. Required if the function has some.
            after: Called after each operation, also one that failed, before the response.
        """
        self.function = function
        self._after = after
        self._guard = guard
        self._actions = actions
        # Not the runtime's clock: a request gets a response with an ID even if the runtime fails.
        self._clock: Clock = SystemClock()
        self._started_ms = self._clock.now_ms()
        self._ids = IdSource(self._clock)
        self._bound: dict[str, Operation] = {}

    def uptime_s(self) -> int:
        """Return the seconds since this container (or the local server) started."""
        return (self._clock.now_ms() - self._started_ms) // 1_000

    def serve(self, *modules: ModuleType) -> Application:
        """Add the operations in these modules that belong to this function."""
        for operation in declared(*modules):
            if operation.function == self.function:
                self._bound[operation.id] = operation
        return self

    @cached_property
    def _routes(self) -> Routes:
        return Routes(self._bound.values())

    def __call__(self, event: Mapping[str, Any], context: object) -> dict[str, Any]:
        """Process one API Gateway event and return the response."""
        headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
        request_id = negotiation.request_id(headers.get("x-request-id"))
        request_id = request_id or f"req_{self._ids.uuid7()}"
        method = event["requestContext"]["http"]["method"].upper()
        call = _Call(event, headers, request_id, method, TraceContext.of(headers))
        # Each later log message contains these keys. `Request.about` adds the job and the queue.
        logger.thread_safe_append_keys(correlation_id=request_id)
        if call.trace is not None:
            logger.thread_safe_append_keys(trace_id=call.trace.trace_id)
        try:
            answer = self._answer(call, context)
            return self._respond(call, answer, cause=answer.failed)
        except OjsError as error:
            return self._error(call, error, cause=error)
        except Exception as error:  # noqa: BLE001 - a defect: it is logged with its stack
            # The caller still gets the error body and headers.
            return self._error(call, errors.internal(), cause=error)
        finally:
            logger.thread_safe_clear_keys()

    def _answer(self, call: _Call, context: object) -> Reply:
        self._guard.let_in(call.headers)
        event, path = call.event, call.event["rawPath"]
        there = self._routes.at(path)
        # HEAD is processed like GET. The HTTP server removes the body and keeps its length.
        operation = there.get(call.method, there.get("GET") if call.method == "HEAD" else None)
        if operation is None or operation.implementation is None:
            return self._no_route(call, there)
        call.operation = operation
        principal = self._who(call)
        self._guard.permit(principal, operation)
        if operation.id != "manifest":  # clients read it before they choose a version
            negotiation.check_version(call.headers.get("ojs-version"))
        # The first parameter is one segment of any content, except a URI of a schema.
        before, parameter, name = operation.path.partition("{")
        rest = path[len(before) :]
        first = rest if name == "schema}" else rest.partition("/")[0]
        value = first if parameter else None
        query = event.get("queryStringParameters") or {}
        if principal.tenant is not None:
            from ojs.http.binding import tenancy

            value, query = tenancy.read_address(operation, value, query, principal.tenant)
        request = Request(
            operation=operation,
            headers=call.headers,
            query=query,
            raw_query=event.get("rawQueryString") or "",
            path_value=value,
            raw_body=event.get("body"),
            base64_body=bool(event.get("isBase64Encoded")),
            remaining_ms=_remaining(context),
            principal=principal,
            uptime_s=self.uptime_s(),
            trace=call.trace,
            path_rest=rest.split("/", 2)[-1] if parameter else "",
            edit=self._edit(call, operation),
        )
        call.principal = self._guard.with_tenant_of(request)
        if call.principal is not principal:
            request = replace(request, principal=call.principal)
        self._guard.admit(request)
        request.check_no_body()
        request.check_filled()
        if operation.strict_query:
            request.check_query()
        try:
            if self._actions is None:
                return operation.implementation(request)
            answer = self._actions.run(request, path, operation.implementation)
        finally:
            self._after()
        if operation.versioned and isinstance(answer.body, Mapping) and "etag" in answer.body:
            tagged = {**answer.headers, "ETag": f'"{answer.body["etag"]}"'}
            return replace(answer, headers=tagged)
        return answer

    def _edit(self, call: _Call, operation: Operation) -> Edit | None:
        """Return the edit of a request. Raise InvalidRequest for a wrong precondition."""
        if self.function != ADMIN or operation.method == "GET":
            return None
        from ojs.http.binding.preconditions import read_edit

        return read_edit(operation, call.headers)

    def _who(self, call: _Call) -> Principal:
        """Authenticate the caller before other checks. Raise Unauthenticated if that fails."""
        call.closed = self._guard.closed
        call.principal = self._guard.who(call.event)
        call.principal = self._guard.with_tenant_of_headers(call.principal, call.headers)
        return call.principal

    def _no_route(self, call: _Call, there: Mapping[str, Operation]) -> Reply:
        method, path = call.method, call.event["rawPath"]
        allowed = _methods(there)
        call.closed = self._guard.closed
        if method != "OPTIONS" or not allowed:
            # An unauthenticated caller can't learn which paths exist. A browser's preflight
            # request is exempt, because it has no key.
            self._who(call)
        if method != "OPTIONS" and (feature := self._routes.find_missing(method, path)) is not None:
            raise Unsupported(feature.message, details={"feature": feature.name})
        if not allowed:
            raise NotFound("route", f"{method} {path}")
        if method == "OPTIONS":
            return Reply(None, 204, negotiation.preflight_headers(allowed))
        raise errors.MethodNotAllowed(method, allowed)

    def _error(self, call: _Call, error: OjsError, cause: Exception) -> dict[str, Any]:
        body = errors.body(error, call.request_id)
        answer = Reply(body, errors.kind_of(error).status, errors.headers(error))
        return self._respond(call, answer, error.code, cause)

    def _respond(
        self, call: _Call, answer: Reply, code: str | None = None, cause: Exception | None = None
    ) -> dict[str, Any]:
        self._log(call, answer.status, code, cause)
        headers = negotiation.answer_headers(call.request_id, closed=call.closed)
        if answer.body is not None:
            headers["Content-Type"] = client_quirks.media_type(
                call.headers.get("accept"), call.headers.get("user-agent")
            )
        if call.principal is not None and call.principal.tenant is not None:
            answer = self._local(answer, call.operation, call.principal.tenant)
        text = "" if answer.body is None else answer.body
        if not isinstance(text, str):
            text = jsontext.dumps(text)
        if answer.status >= 400:
            # An error may quote an unpaired surrogate, which UTF-8 cannot encode: it is escaped.
            text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        return {
            "statusCode": answer.status,
            "headers": {**headers, **answer.headers},
            "body": text,
            "isBase64Encoded": False,
        }

    def _local(self, answer: Reply, operation: Operation | None, tenant: str) -> Reply:
        """Return the response to a tenant's caller, with local names."""
        from ojs.domain import tenant_names
        from ojs.http.binding import tenancy

        body = tenancy.render_answer(answer.body, operation, tenant)
        headers = {
            name: tenant_names.render_text(value, tenant) for name, value in answer.headers.items()
        }
        return Reply(body, answer.status, headers, answer.failed)

    def _log(self, call: _Call, status: int, code: str | None, cause: Exception | None) -> None:
        # Never the body, the query or values in the path: they may be confidential.
        fields: dict[str, Any] = {
            "correlation_id": call.request_id,
            "method": call.method[:20],
            "operation": call.operation.id if call.operation else None,
            "status": status,
        }
        principal = call.principal
        if principal is not None and principal.name is not None:
            fields |= {"principal": principal.name[:100], "key": principal.key}
        if principal is not None and principal.tenant is not None:
            fields["tenant"] = principal.tenant
        if code is not None:
            fields["code"] = code
        # Successes are logged at DEBUG only: storing a line for each request costs about as much as
        # serving it, and the API's access log has them.
        if isinstance(cause, BackendContended):
            # Concurrent writes caused this. It is not a defect, so the stack isn't useful.
            logger.warning("Request rejected after contention", **fields)
        elif status >= 500:
            logger.error("Request failed", exc_info=cause, **fields)
        elif isinstance(cause, BackendError) and code is None:
            logger.error("Part of a request failed", exc_info=cause, **fields)
        elif code is not None:
            logger.info("Request rejected", **fields)
        else:
            logger.debug("Request processed", **fields)


def _remaining(lambda_context: object) -> Callable[[], int]:
    """Return a function for the ms until Lambda stops the function, or API Gateway's timeout."""
    found = getattr(lambda_context, "get_remaining_time_in_millis", None)
    return cast("Callable[[], int]", found) if callable(found) else lambda: _GATEWAY_TIMEOUT_MS


def _methods(operations: Mapping[str, Operation]) -> list[str]:
    """Return the methods of a path, for the Allow header."""
    if not operations:
        return []
    return sorted({*operations, "OPTIONS", *(["HEAD"] if "GET" in operations else [])})
