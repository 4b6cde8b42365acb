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
from ojs import access_runtime, runtime
from ojs.domain.access import ANYBODY
from ojs.http import models

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
    if "Role" in wanted:
        return _role(event)
    name = str(wanted["Name"])
    if event["RequestType"] != "Delete":
        _ask(wanted["Set"], wanted["Caller"], context)
    elif "TakeBack" in wanted and event["PhysicalResourceId"] != _UNMADE:
        _ask(wanted["TakeBack"], wanted["Caller"], context, but=_NOTHING_TO_TAKE_BACK)
    return Outcome(name)


def _role(event: Mapping[str, Any]) -> Outcome:
    """Give an IAM role what is declared in place of what it had, or nothing any more.

    There is no request for that: a role's record is revoked, and another one made. The role is the
    physical id, so the record of one that was replaced is revoked afterwards. Raises OjsError.
    """
    body = models.CreateRoleRequest.model_validate(json.loads(event["ResourceProperties"]["Role"]))
    if event["RequestType"] != "Delete" or event["PhysicalResourceId"] != _UNMADE:
        access_keys = runtime.current().access_keys
        if (former := access_keys.of_role(body.role)) is not None:
            access_keys.revoke(ANYBODY, former.id)
        if event["RequestType"] != "Delete":
            access_keys.name_role(ANYBODY, body.role, body.name, body.scopes, queues=body.queues)
    return Outcome(body.role)


def _body(asked: Mapping[str, Any]) -> str | None:
    """A text: CloudFormation makes texts of numbers. What is secret is not in the template, but
    where it is kept. Raises Refused for a secret without a value.
    """
    text: str | None = asked.get("Body")
    if text is None or "Secrets" not in asked:
        return text
    found = {name: access_runtime.secret(arn).read() for name, arn in asked["Secrets"].items()}
    if empty := [name for name, value in found.items() if not value]:
        raise Refused(f"{', '.join(empty)}: the secret must have a value")
    return json.dumps(json.loads(text) | found)


def _ask(
    asked: Mapping[str, Any], caller: str, context: object, *, but: tuple[int, ...] = ()
) -> None:
    answer = app(
        {
            "rawPath": asked["Path"],
            # No key: CloudFormation alone calls this function. Who asks is the app.
            "headers": {"content-type": "application/json", "x-ojs-producer": caller},
            "body": _body(asked),
            "requestContext": {"http": {"method": asked["Method"]}},
        },
        context,
    )
    status = int(answer["statusCode"])
    if status >= 400 and status not in but:
        error = json.loads(answer["body"])["error"]
        raise Refused(f"{asked['Method']} {asked['Path']}: {status} {error['message']}")
