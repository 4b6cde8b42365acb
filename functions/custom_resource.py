"""What CloudFormation's custom resources have in common: the outcome is always reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import urllib3
from aws_lambda_powertools import Logger

from ojs.records import record

logger = Logger()
_http = urllib3.PoolManager()
_TIMEOUT_S = 10


@record(frozen=True)
class Outcome:
    """What a request led to. When the id changes, CloudFormation deletes what had the former one.

    `data` are attributes for the template, where everybody who may read it sees them.
    """

    physical_id: str
    data: Mapping[str, str] = field(default_factory=dict)


def report(
    event: Mapping[str, Any], run: Callable[[Mapping[str, Any]], Outcome], *, unmade: str
) -> None:
    """Run the request, and report the outcome. `unmade` is the id of what could not be made."""
    known = str(event.get("PhysicalResourceId") or unmade)
    try:
        outcome = run(event)
    except Exception as error:
        # Any error is reported: without an answer CloudFormation waits for an hour.
        logger.exception("Custom resource failed", resource=event.get("LogicalResourceId"))
        _answer(event, "FAILED", f"{type(error).__name__}: {error}", Outcome(known))
        return
    _answer(event, "SUCCESS", "", outcome)


def _answer(event: Mapping[str, Any], status: str, reason: str, outcome: Outcome) -> None:
    body = {
        "Status": status,
        "Reason": reason[:1_000],
        "PhysicalResourceId": outcome.physical_id,
        "StackId": event["StackId"],
        "RequestId": event["RequestId"],
        "LogicalResourceId": event["LogicalResourceId"],
        "Data": dict(outcome.data),
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
        logger.error("CloudFormation rejected the response", status=answer.status)
