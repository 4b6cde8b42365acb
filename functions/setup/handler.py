"""CloudFormation's custom resource: runs once in each deployment of a version, before the other
functions are changed. If it fails, they are not changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import urllib3
from aws_lambda_powertools import Logger

from ojs import access_runtime

logger = Logger()
_http = urllib3.PoolManager()
_PHYSICAL_ID = "ojs-setup"
_TIMEOUT_S = 10


def handler(event: Mapping[str, Any], _context: object) -> None:
    """Run the request, and always report the outcome to CloudFormation."""
    try:
        data = run(event)
    except Exception as error:
        # Any error is reported: without an answer CloudFormation waits for an hour.
        logger.exception("setup failed")
        _answer(event, "FAILED", f"{type(error).__name__}: {error}", {})
        return
    _answer(event, "SUCCESS", "", data)


def run(event: Mapping[str, Any]) -> dict[str, str]:
    """Run one request. Returns attributes for the template; the key itself is not among them."""
    if event["RequestType"] == "Delete":
        # The table may be retained, and the keys with it.
        return {}
    setup, secret = access_runtime.setup(), access_runtime.first_key()
    setup.check_table()
    return {} if secret is None else {"FirstKeyId": setup.leave_first_key(secret)}


def _answer(event: Mapping[str, Any], status: str, reason: str, data: Mapping[str, str]) -> None:
    body = {
        "Status": status,
        "Reason": reason[:1_000],
        "PhysicalResourceId": event.get("PhysicalResourceId") or _PHYSICAL_ID,
        "StackId": event["StackId"],
        "RequestId": event["RequestId"],
        "LogicalResourceId": event["LogicalResourceId"],
        "Data": dict(data),
    }
    answer = _http.request(
        "PUT",
        event["ResponseURL"],
        body=json.dumps(body).encode(),
        # The URL is signed without a content type.
        headers={"content-type": ""},
        timeout=_TIMEOUT_S,
        retries=3,
    )
    if answer.status >= 400:
        logger.error("CloudFormation did not take the answer", status=answer.status)
