"""Tells API Gateway who asks, for it to remember and to hand on.

A key that is not good is answered with nobody, and not with a refusal: an HTTP API makes a 403 of
that, and a 401 only of a failure, which it does not remember. The function behind answers 401, with
the body that clients know (ADR 19). Nobody is what a function is told unless told otherwise.

Every first request waits for this to start: nothing is imported that is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojs import access_runtime


def handler(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """API Gateway's question (payload format 2.0), answered simply.

    What the table does not answer is raised: that is a 500, which nobody remembers.
    """
    headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
    principal = access_runtime.authentication().who(headers.get("authorization"))
    return {"isAuthorized": True, "context": principal.context() if principal else {}}
