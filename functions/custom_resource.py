"""Shared code of CloudFormation's custom resources: the outcome is always reported."""

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
    """The outcome of a request. If the ID changes, CloudFormation deletes the previous resource.

    `data` are attributes for the template. Anyone with read access to the template sees them.
    """

    physical_id: str
    data: Mapping[str, str] = field(default_factory=dict)


def report(
    event: Mapping[str, Any], run: Callable[[Mapping[str, Any]], Outcome], *, unmade: str
) -> None:
    """Run the request, and report the outcome to CloudFormation.

    Args:
        event: Event from CloudFormation.
        run: Runs the request.
        unmade: Physical ID of a resource that could not be created.
    """
    known = str(event.get("PhysicalResourceId") or unmade)
    try:
        outcome = run(event)
    except Exception as error:
        # Report any error: without a response, CloudFormation waits for an hour.
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
