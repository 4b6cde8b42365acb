"""Converts HTTP requests to Lambda events and back, like an API Gateway HTTP API (format 2.0).

Details that AWS doesn't document follow the observed behavior. Only the content types below reach a
function as text. All others, including application/openjobspec+json, are in base64. The path is
decoded, the query string is not. A missing body or query is omitted.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from local.http_server import Request, Response

_TEXT_TYPES = frozenset({"application/json", "application/javascript", "application/xml"})
_API_ID = "local"
_ACCOUNT_ID = "000000000000"


class InvalidAnswer(Exception):
    """A function returned a value that API Gateway can't convert to a response."""


def event_from_request(
    request: Request, route_key: str, path_parameters: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the event for a request on this route."""
    path, query = split_target(request.target)
    headers = _combined(request.headers)
    cookies = headers.pop("cookie", None)
    host = headers.setdefault("host", _API_ID)
    forwarded = [headers["x-forwarded-for"]] if "x-forwarded-for" in headers else []
    # The body is complete, so the function doesn't need headers about its transfer.
    headers.pop("transfer-encoding", None)
    headers.pop("expect", None)
    headers |= {
        "content-length": str(len(request.body)),
        "x-amzn-trace-id": f"Root=1-{int(time.time()):08x}-{uuid.uuid4().hex[:24]}",
        "x-forwarded-for": ", ".join([*forwarded, request.client]),
        "x-forwarded-port": host.rpartition(":")[2] if ":" in host else "80",
        "x-forwarded-proto": "http",
    }
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": route_key,
        "rawPath": path,
        "rawQueryString": query,
        "headers": headers,
        "requestContext": {
            "accountId": _ACCOUNT_ID,
            "apiId": _API_ID,
            "domainName": host.rpartition(":")[0] or host,
            "domainPrefix": _API_ID,
            "http": {
                "method": request.method,
                "path": path,
                "protocol": f"HTTP/{request.http_version}",
                "sourceIp": request.client,
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": str(uuid.uuid4()),
            "routeKey": route_key,
            "stage": "$default",
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime()),
            "timeEpoch": time.time_ns() // 1_000_000,
        },
        "isBase64Encoded": False,
    }
    if cookies is not None:
        event["cookies"] = [cookie.strip() for cookie in cookies.split(";")]
    if parameters := _combined(parse_qsl(query, keep_blank_values=True)):
        event["queryStringParameters"] = parameters
    if path_parameters:
        event["pathParameters"] = dict(path_parameters)
    if request.body:
        event["body"], event["isBase64Encoded"] = _event_body(
            request.body, headers.get("content-type", "")
        )
    return event


def split_target(target: str) -> tuple[str, str]:
    """Split a request target into the decoded path and the raw query string."""
    if target.startswith("/"):
        path, _, query = target.partition("#")[0].partition("?")
    else:  # absolute form, as sent to a proxy
        parts = urlsplit(target)
        path, query = parts.path or "/", parts.query
    return unquote(path), query


def _combined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return one value per name. Multiple values are joined with commas."""
    combined: dict[str, str] = {}
    for name, value in pairs:
        combined[name] = f"{combined[name]},{value}" if name in combined else value
    return combined


def _event_body(body: bytes, content_type: str) -> tuple[str, bool]:
    """Return the body as text, or in base64 with True."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type.startswith("text/") or media_type in _TEXT_TYPES:
        try:
            return body.decode("utf-8"), False
        except UnicodeDecodeError:
            pass  # passed unchanged in base64, so that the function can report the error
    return base64.b64encode(body).decode("ascii"), True


def response_from_answer(answer: Any, request_id: str) -> Response:
    """Convert the result of a function to a response. Raises InvalidAnswer."""
    if not isinstance(answer, dict) or "statusCode" not in answer:
        # In format 2.0 any other value is the body of a 200 response.
        body = answer if isinstance(answer, str) else json.dumps(answer)
        answer = {"statusCode": 200, "body": body, "headers": {"content-type": "application/json"}}
    try:
        status = int(answer["statusCode"])
    except (TypeError, ValueError) as error:
        raise InvalidAnswer(f"statusCode is {answer['statusCode']!r}") from error
    if not 200 <= status <= 599:
        raise InvalidAnswer(f"statusCode is {status}")
    headers = [(str(name).lower(), str(v)) for name, v in (answer.get("headers") or {}).items()]
    headers += [("set-cookie", str(cookie)) for cookie in answer.get("cookies") or []]
    if "content-type" not in dict(headers) and status != 204:
        headers.append(("content-type", "text/plain; charset=utf-8"))
    headers.append(("apigw-requestid", request_id))
    return Response(status, headers, _answer_body(answer))


def _answer_body(answer: Mapping[str, Any]) -> bytes:
    body = answer.get("body")
    if body is None:
        return b""
    if not isinstance(body, str):
        raise InvalidAnswer(f"body is of type {type(body).__name__}, not a string")
    if not answer.get("isBase64Encoded"):
        return body.encode("utf-8", "replace")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise InvalidAnswer("body is not base64") from error
