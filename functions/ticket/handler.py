"""The Lambda authorizer of the WebSocket API: finds the caller that a ticket was issued to.

A connection waits for this to start, so it imports nothing that it does not need.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ojs import access_runtime


def handler(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Answer the WebSocket API, which asks at `$connect` whether a ticket is valid.

    The ticket is used by this. The client gets a 403 for one that is unknown, used, or too old; API
    Gateway itself answers 401 for a connection without one.
    """
    given = (event.get("queryStringParameters") or {}).get("ticket") or ""
    principal = access_runtime.tickets().redeem(given)
    statement = {
        "Action": "execute-api:Invoke",
        "Effect": "Deny" if principal is None else "Allow",
        "Resource": event["methodArn"],
    }
    return {
        "principalId": "anybody" if principal is None else principal.name or "anybody",
        "policyDocument": {"Version": "2012-10-17", "Statement": [statement]},
        "context": {} if principal is None else principal.context(),
    }


# Early, while the container starts.
with suppress(Exception):
    access_runtime.tickets()
