"""The Lambda authorizer: looks up the access key. API Gateway caches the result.

For an invalid key, the response is "authorized, with an empty context", not a rejection, because an
HTTP API changes a rejection to 403. The function behind it then returns 401 with the usual error
body (ADR 19).

The first request with a key waits for this function to start, so it imports only the modules that
it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojs import access_runtime


def handler(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Answer API Gateway's request (payload format 2.0) with a simple response.

    Errors of the table are raised: the client receives a 500, which API Gateway does not cache.
    """
    headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
    principal = access_runtime.authentication().who(headers.get("authorization"))
    return {"isAuthorized": True, "context": principal.context() if principal else {}}


access_runtime.prepare()
