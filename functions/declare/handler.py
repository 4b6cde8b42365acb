"""CloudFormation's custom resource for each thing that a CDK app declares.

It asks the admin function's own application, in this process, as an operator would by HTTP: the
same checks hold, and what they refuse is the reason of the failed deployment. What is not declared
stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from functions.admin.handler import app
from functions.custom_resource import Outcome, report

# What is taken back may be gone, or in use by others.
_NOTHING_TO_TAKE_BACK = (404, 409)
# Of what could not be made. CloudFormation has it deleted; somebody else's of that name must stay.
_UNMADE = "ojs-nothing"


class Refused(Exception):
    """The server refused what is declared; the message says why."""


def handler(event: Mapping[str, Any], context: object) -> None:
    """Run the request, and always report the outcome to CloudFormation."""
    report(event, lambda found: run(found, context), unmade=_UNMADE)


def run(event: Mapping[str, Any], context: object) -> Outcome:
    """Set what is declared, or take it back. Raises Refused.

    Its name is the physical id: under another name it is another thing, and CloudFormation has the
    former one deleted.
    """
    wanted = event["ResourceProperties"]
    name = str(wanted["Name"])
    if event["RequestType"] != "Delete":
        _ask(wanted["Set"], wanted["Caller"], context)
    elif "TakeBack" in wanted and event["PhysicalResourceId"] != _UNMADE:
        _ask(wanted["TakeBack"], wanted["Caller"], context, but=_NOTHING_TO_TAKE_BACK)
    return Outcome(name)


def _ask(
    asked: Mapping[str, Any], caller: str, context: object, *, but: tuple[int, ...] = ()
) -> None:
    answer = app(
        {
            "rawPath": asked["Path"],
            # No key: CloudFormation alone calls this function. Who asks is the app.
            "headers": {"content-type": "application/json", "x-ojs-producer": caller},
            # A text: CloudFormation makes texts of numbers.
            "body": asked.get("Body"),
            "requestContext": {"http": {"method": asked["Method"]}},
        },
        context,
    )
    status = int(answer["statusCode"])
    if status >= 400 and status not in but:
        error = json.loads(answer["body"])["error"]
        raise Refused(f"{asked['Method']} {asked['Path']}: {status} {error['message']}")
