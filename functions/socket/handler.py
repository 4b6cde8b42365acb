"""The WebSocket API: connections, their ends, and the messages of clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aws_lambda_powertools import Logger

from ojs import runtime
from ojs.domain import jsontext
from ojs.domain.access import Principal, build_anybody
from ojs.domain.realtime import SUBPROTOCOL

logger = Logger()

_PROTOCOLS = "sec-websocket-protocol"
_BINARY = {
    "type": "error",
    "code": "invalid_payload",
    "message": "The message is binary. Send JSON as text.",
}
_FAILED = {
    "type": "error",
    "code": "backend_error",
    "message": "The server could not process the message. Send it again.",
}


def handler(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Answer an event of API Gateway's WebSocket API. The body of an answer goes to the client."""
    asked = event["requestContext"]
    connection = str(asked["connectionId"])
    match asked["routeKey"]:
        case "$connect":
            return _connect(connection, event)
        case "$disconnect":
            runtime.current().sockets.remove_connection(connection)
            return {"statusCode": 200}
        case _:
            return {"statusCode": 200, "body": _answer(connection, event)}


def _connect(connection: str, event: Mapping[str, Any]) -> dict[str, Any]:
    headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
    current = runtime.current()
    if not current.settings.is_allowed_origin(headers.get("origin")):
        logger.info("Connection of a foreign origin rejected")
        return {"statusCode": 403}
    context = event["requestContext"].get("authorizer") or {}
    principal = Principal.of(context)
    if principal is None:
        # The ticket authorizer names the caller, unless the server needs no keys.
        if current.settings.authorizer != "none":
            return {"statusCode": 401}
        principal = build_anybody(context)
    current.sockets.add_connection(connection, principal)
    offered = [each.strip() for each in headers.get(_PROTOCOLS, "").split(",")]
    answer: dict[str, Any] = {"statusCode": 200}
    if SUBPROTOCOL in offered:
        answer["headers"] = {"Sec-WebSocket-Protocol": SUBPROTOCOL}
    return answer


def _answer(connection: str, event: Mapping[str, Any]) -> str:
    if event.get("isBase64Encoded"):
        return jsontext.dumps(_BINARY)
    try:
        return runtime.current().sockets.handle(connection, event.get("body") or "")
    except Exception:  # a defect: the client still gets an answer
        logger.exception("Message failed")
        return jsontext.dumps(_FAILED)


runtime.prepare("sockets")
