"""Shared code of CloudFormation's custom resources: the outcome is always reported.

Terraform calls the same functions (`aws_lambda_invocation` with `lifecycle_scope = "CRUD"`). Its
input has the properties of the resource, and below `tf` the action and the previous input.
"""

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
    event: Mapping[str, Any],
    run: Callable[[Mapping[str, Any]], Outcome],
    *,
    unmade: str,
    made: Callable[[Mapping[str, Any]], str | None],
) -> Mapping[str, str] | None:
    """Run the request, and report the outcome to CloudFormation.

    Args:
        event: Event from CloudFormation or Terraform.
        run: Runs the request.
        unmade: Physical ID of a resource that could not be created.
        made: Returns the physical ID of the resource with these properties. None: there is none.

    Returns:
        With Terraform, the physical ID and the attributes. A failed request raises its error.
    """
    if "tf" in event:
        return _of_terraform(event, run, made)
    known = str(event.get("PhysicalResourceId") or unmade)
    try:
        outcome = run(event)
    except Exception as error:
        # Report any error: without a response, CloudFormation waits for an hour.
        logger.exception("Custom resource failed", resource=event.get("LogicalResourceId"))
        _answer(event, "FAILED", f"{type(error).__name__}: {error}", Outcome(known))
        return None
    _answer(event, "SUCCESS", "", outcome)
    return None


def _of_terraform(
    event: Mapping[str, Any],
    run: Callable[[Mapping[str, Any]], Outcome],
    made: Callable[[Mapping[str, Any]], str | None],
) -> Mapping[str, str]:
    """Run a request of Terraform as CloudFormation would send it.

    Like CloudFormation, delete the previous resource if another one replaces it. Terraform repeats
    a call whose answer was lost, so the first call can have created a resource, too.
    """
    action = str(event["tf"]["action"])
    wanted = {name: value for name, value in event.items() if name != "tf"}
    former = event["tf"].get("prev_input") or wanted

    def request(kind: str, properties: Mapping[str, Any], physical_id: str | None) -> Outcome:
        more = {} if physical_id is None else {"PhysicalResourceId": physical_id}
        kind_ = {"RequestType": kind, "ResourceType": properties.get("ResourceType")}
        return run({**kind_, "ResourceProperties": properties, **more})

    known = made(former)
    if action == "delete":
        return {} if known is None else {"Id": request("Delete", former, known).physical_id}
    outcome = request(action.capitalize(), wanted, known)
    if known not in (None, outcome.physical_id):
        request("Delete", former, known)
    return {"Id": outcome.physical_id, **outcome.data}


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
