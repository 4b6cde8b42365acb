"""Routes requests to functions and converts their results, like API Gateway."""

from __future__ import annotations

import importlib
import json
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from functions.dashboard.files import ROOT as DASHBOARD_PATH
from local.events import InvalidAnswer, event_from_request, response_from_answer, split_target
from local.http_server import Request, Response
from local.lambda_context import LambdaContext
from ojs.api import operations
from ojs.domain.errors import BackendUnavailable, InvalidPayload, OjsError, Unauthenticated
from ojs.http import endpoint
from ojs.http.binding import errors, negotiation

if TYPE_CHECKING:
    from local.access import Access, SignedAccess

Handler = Callable[[dict[str, Any], Any], Any]
Hook = Callable[[bytes], Any]

BASE_PATH = endpoint.BASE
# Path prefixes and their functions, as in the deployed API. All others go to $default.
ROUTES = {f"{BASE_PATH}/{name}": name for name in (endpoint.JOBS, endpoint.WORKERS)}
DEFAULT_FUNCTION = endpoint.ADMIN
# Public routes, with or without keys.
DASHBOARD = "dashboard"
# Address of the WebSocket API. A deployed one has another host name.
SOCKET_PATH = f"{BASE_PATH}/ws"

GATEWAY_BYTES = 10 * 1024 * 1024
# Lambda's size limit for the event and the response of a synchronous invocation.
FUNCTION_BYTES = 6 * 1024 * 1024
# Size of a body above which the whole event is measured.
_SURELY_SMALL_BYTES = FUNCTION_BYTES // 8


class Route(NamedTuple):
    """The function and the route key of a request."""

    function: str
    key: str
    parameters: Mapping[str, str] = MappingProxyType({})


def route(path: str) -> Route:
    """Return the route of a decoded path."""
    for prefix, function in ROUTES.items():
        if path == prefix:
            return Route(function, f"ANY {prefix}")
        if path.startswith(f"{prefix}/"):
            rest = path.removeprefix(f"{prefix}/")
            return Route(function, f"ANY {prefix}/{{proxy+}}", {"proxy": rest})
    if path == DASHBOARD_PATH:
        return Route(DASHBOARD, f"ANY {DASHBOARD_PATH}")
    if path.startswith(f"{DASHBOARD_PATH}/"):
        rest = path.removeprefix(f"{DASHBOARD_PATH}/")
        return Route(DASHBOARD, f"ANY {DASHBOARD_PATH}/{{proxy+}}", {"proxy": rest})
    return Route(DEFAULT_FUNCTION, "$default")


def load_handlers() -> dict[str, Handler]:
    """Return the handlers of the deployed functions by name. The server adds the dashboard."""
    names = sorted({*ROUTES.values(), DEFAULT_FUNCTION})
    return {name: importlib.import_module(f"functions.{name}.handler").handler for name in names}


class Gateway:
    """Calls the function of a request in this process, in the request's thread."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        catch_up: Callable[[], None] = lambda: None,
        access: Access | SignedAccess | None = None,
        stopping: Callable[[], bool] = lambda: False,
        sockets: Callable[[Request], Response] | None = None,
    ) -> None:
        """Create the gateway.

        `catch_up` is called before an operation that shows derived data. `access` authenticates
        requests, or is None. `stopping` returns whether the server stops. `sockets` accepts
        WebSocket connections.
        """
        self._sockets = sockets
        self._handlers = handlers
        self._catch_up = catch_up
        self._access = access
        self._stopping = stopping
        self._hooks: dict[tuple[str, str], Hook] = {}
        self._log_lock = threading.Lock()

    def hook(self, method: str, path: str, action: Hook) -> None:
        """Register a test hook: respond to `method path` with the JSON of `action(body)`.

        An OjsError becomes a 400 response.
        """
        self._hooks[method, path] = action

    def __call__(self, request: Request) -> Response:
        """Process one request."""
        path, _ = split_target(request.target)
        chosen = route(path)
        event = event_from_request(request, chosen.key, chosen.parameters)
        if action := self._hooks.get((request.method, path)):
            if self._access is not None and not self._access.may_reset(event):
                return refused(Unauthenticated(), 401)
            try:
                return _json_response(200, action(request.body))
            except OjsError as error:
                return refused(error, 400)
        methods = sorted(method for method, hooked in self._hooks if hooked == path)
        if request.method == "OPTIONS" and methods:
            # A browser sends this request first, without a key.
            headers = negotiation.answer_headers(str(uuid.uuid4()), closed=False)
            headers |= negotiation.preflight_headers([*methods, "OPTIONS"])
            return Response(204, list(headers.items()))
        if path == SOCKET_PATH and self._sockets is not None:
            return self._sockets(request)
        if len(request.body) > _SURELY_SMALL_BYTES and (size := _size(event)) > FUNCTION_BYTES:
            return refusal(
                413,
                f"The request is too large: its event has {size} bytes. Limit: "
                f"{FUNCTION_BYTES} bytes.",
                {"limit": FUNCTION_BYTES, "size": size},
            )
        # Update derived data from the table's stream first.
        method = "GET" if request.method == "HEAD" else request.method
        if (operation := operations.at(path).get(method)) and operation.derived:
            self._catch_up()
        return self._call(chosen.function, event)

    def _call(self, function: str, event: dict[str, Any]) -> Response:
        request_id = event["requestContext"]["requestId"]
        try:
            if self._access is not None and function != DASHBOARD:
                event["requestContext"]["authorizer"] = self._access.context(event)
            context = LambdaContext(function, stopping=self._stopping)
            answer = self._handlers[function](event, context)
            return _checked(answer, response_from_answer(answer, request_id))
        except Exception:  # noqa: BLE001 - Lambda catches all exceptions of a handler
            http = event["requestContext"]["http"]
            with self._log_lock:
                print(f"{http['method']} {http['path']}: {function} failed", file=sys.stderr)
                traceback.print_exc(file=sys.stderr)
            # The response of API Gateway for a failed function.
            return _json_response(500, {"message": "Internal Server Error"})


_HEALTH = frozenset({"health", "root_health", "ready", "root_ready"})


class DiskCheck:
    """Reports a full disk. The engine's own error looks temporary, and health checks only read."""

    def __init__(
        self, answer: Callable[[Request], Response], full: Callable[[], bool], folder: str
    ) -> None:
        self._answer = answer
        self._full = full
        self._folder = folder

    def __call__(self, request: Request) -> Response:
        """Process one request."""
        response = self._answer(request)
        operation = operations.at(split_target(request.target)[0]).get("GET")
        health = response.status == 200 and operation is not None and operation.id in _HEALTH
        if not (health or response.status >= 500) or not self._full():
            return response
        error = f"The disk of the data folder {self._folder} is full. Free some space."
        return refused(BackendUnavailable(error), 503)


def _checked(answer: Any, response: Response) -> Response:
    if len(response.body) > _SURELY_SMALL_BYTES and _size(answer) > FUNCTION_BYTES:
        raise InvalidAnswer("the response exceeds the size limit of a function")
    return response


def _size(value: Any) -> int:
    """Return the size of a value in bytes, as Lambda measures it: as JSON."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _json_response(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
    sent = {**(headers or {}), "content-type": "application/json"}
    return Response(status, list(sent.items()), json.dumps(value).encode())


def refusal(status: int, message: str, details: Mapping[str, int]) -> Response:
    """Return a response of the gateway itself to a request that it can't forward."""
    return refused(
        (_TooLarge if status == 413 else InvalidPayload)(message, details=details), status
    )


def refused(error: OjsError, status: int) -> Response:
    """Return an error of the gateway in the format of the API."""
    request_id = str(uuid.uuid4())
    headers = negotiation.answer_headers(request_id, closed=False)
    return _json_response(status, errors.body(error, request_id), headers)


class _TooLarge(OjsError):
    """The request is larger than the gateway or a function accepts."""

    code = "payload_too_large"
