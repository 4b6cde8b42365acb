"""Negotiates media types and versions, and defines the headers of all responses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ojs.domain.errors import InvalidRequest, Unsupported, shorten

VERSION = "1.0"
MEDIA_TYPE = "application/openjobspec+json"
JSON = "application/json"

_VERSION = re.compile(r"1(\.0(\.\d{1,3}(-rc\.\d{1,3})?)?)?")
_REQUEST_ID = re.compile(r"[\x20-\x7e]{1,128}")

REQUEST_HEADERS = (
    "Content-Type", "Accept", "Authorization", "X-Request-Id", "OJS-Version", "X-OJS-Producer",
    "OJS-Block-Timeout", "X-OJS-Tenant", "X-OJS-Tenant-ID", "Idempotency-Key", "Last-Event-ID",
    "If-Match", "If-None-Match", "traceparent", "tracestate",
)  # fmt: skip
EXPOSED_HEADERS = (
    "X-Request-Id", "OJS-Version", "X-OJS-Version", "X-OJS-Media-Type", "Location", "Retry-After",
    "Allow", "ETag", "X-OJS-Queue-Depth", "X-OJS-Queue-Bound", "X-OJS-Queue-Pressure",
    "X-OJS-Batch-Size", "X-OJS-Max-Batch-Size",
    "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "WWW-Authenticate",
)  # fmt: skip

_FIXED: Mapping[str, str] = {
    "OJS-Version": VERSION,
    "X-OJS-Version": VERSION,
    "X-OJS-Media-Type": MEDIA_TYPE,
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    # A response is data, so a browser must not run anything in it.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
# If callers must authenticate, the API is served over HTTPS. Browsers must not use HTTP.
_CLOSED: Mapping[str, str] = {"Strict-Transport-Security": "max-age=31536000"}

# An origin, as in browser requests and in the setting for allowed web pages. Must match fully.
ORIGIN = r"https?://[a-z0-9.-]+(:[0-9]{1,5})?"


def answer_headers(request_id: str, *, closed: bool) -> dict[str, str]:
    """Return the headers of all responses, including errors.

    API Gateway (`cors_origins`) or the local server adds CORS headers, both with `EXPOSED_HEADERS`.

    Args:
        request_id: ID of the request.
        closed: Whether callers must authenticate.
    """
    return {**_FIXED, **(_CLOSED if closed else {}), "X-Request-Id": request_id}


def preflight_headers(methods: Iterable[str]) -> dict[str, str]:
    """Return the headers of the response to a preflight request for a path with these methods."""
    allowed = ", ".join(methods)
    return {
        "Allow": allowed,
        "Access-Control-Allow-Methods": allowed,
        "Access-Control-Allow-Headers": ", ".join(REQUEST_HEADERS),
        "Access-Control-Max-Age": "86400",
        "Vary": "Access-Control-Request-Method, Access-Control-Request-Headers",
    }


def request_id(header: str | None) -> str | None:
    """Return the request ID of the client, or None if it is unsafe to return and log."""
    text = (header or "").strip()
    return text if _REQUEST_ID.fullmatch(text) else None


def media_type(accept: str | None) -> str:
    """Return the media type of the response.

    The body is the same for both types. The type is `application/json` only if Accept prefers it to
    the OJS type. Otherwise, it is the OJS type (ojs-http-binding section 4.3).
    """
    wanted = weights(accept)
    return JSON if wanted.get(JSON, 0.0) > wanted.get(MEDIA_TYPE, 0.0) else MEDIA_TYPE


def weights(accept: str | None) -> dict[str, float]:
    """Return the media types in Accept, in lower case, with their weights from 0 to 1.

    A repeated type has the highest of its weights.
    """
    found: dict[str, float] = {}
    for entry in (accept or "").lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        if name:
            found[name] = max(found.get(name, 0.0), _weight(parameters))
    return found


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0


def check_content_type(header: str | None) -> None:
    """Raise InvalidRequest for an unsupported content type. The header is optional."""
    if header is None or not header.strip():
        return
    name = header.partition(";")[0].strip().lower()
    if name not in (MEDIA_TYPE, JSON):
        raise InvalidRequest(
            "Content-Type",
            f"must be {MEDIA_TYPE} or {JSON}",
            value=header,
            details={"supported": [MEDIA_TYPE, JSON]},
        )


def refuse_header(headers: Mapping[str, str], name: str, reason: str) -> None:
    """Reject a request with a header that requests an unsupported feature.

    Args:
        headers: Headers of the request. Their names are in lower case.
        name: Name of the header.
        reason: Why the feature is not supported, for the error.

    Raises:
        Unsupported: The request has the header.
    """
    if headers.get(name.lower()):
        raise Unsupported(f"'{name}': {reason}.", field=name)


def check_version(requested: str | None) -> None:
    """Raise Unsupported if the requested version of the specification is not supported."""
    if requested is not None and not _VERSION.fullmatch(requested.strip()):
        raise Unsupported(
            f"The OJS version '{shorten(requested, 40)}' is not supported. "
            f"Send OJS-Version: {VERSION}, or omit the header.",
            field="OJS-Version",
            details={"requested": shorten(requested, 40), "supported": [VERSION]},
        )
