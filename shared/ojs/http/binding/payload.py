"""Converts the payload formats of API Gateway and function URLs to one format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode


def version_2(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request in payload format 2.0.

    HTTP APIs and function URLs send format 2.0. REST APIs send format 1.0, which is converted. Its
    `path` has no stage. The identity of the caller moves to the place where an HTTP API writes it.
    """
    if event.get("version") == "2.0":
        return dict(event)
    context = event["requestContext"]
    identity = context.get("identity") or {}
    headers = {name.lower(): ",".join(values) for name, values in _many(event, "Headers").items()}
    query = _many(event, "QueryStringParameters")
    path, method = event["path"], event["httpMethod"]
    request: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": urlencode(query, doseq=True),
        "headers": headers,
        "requestContext": {
            "http": {
                "method": method,
                "path": path,
                "protocol": context.get("protocol", "HTTP/1.1"),
                "sourceIp": identity.get("sourceIp", ""),
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": context.get("requestId", ""),
            "routeKey": "$default",
            "stage": context.get("stage", "$default"),
        },
        "isBase64Encoded": bool(event.get("isBase64Encoded")),
    }
    if identity.get("userArn"):
        request["requestContext"]["authorizer"] = {"iam": {"userArn": identity["userArn"]}}
    if query:
        request["queryStringParameters"] = {name: ",".join(given) for name, given in query.items()}
    if event.get("body") is not None:
        request["body"] = event["body"]
    return request


def _many(event: Mapping[str, Any], what: str) -> dict[str, Sequence[str]]:
    """Return the values of each header or parameter."""
    many = event.get(f"multiValue{what}")
    if many:
        return dict(many)
    one = event.get(what[0].lower() + what[1:]) or {}
    return {name: [value] for name, value in one.items()}
