"""CloudFormation's custom resource for the resources that a CDK app declares.

It calls the admin function's application in this process, as an operator calls it over HTTP. So the
same checks apply, and a rejection is the reason of the failed deployment. Undeclared resources stay
unchanged.
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

# A resource that is removed can be deleted already, or in use by other resources.
_NOTHING_TO_TAKE_BACK = (404, 409)
# The ID of a resource that could not be created. CloudFormation deletes it, and must not delete an
# existing resource with the same name.
_UNMADE = "ojs-nothing"


class Refused(Exception):
    """The server rejected a declared resource. The message has the reason."""


def handler(event: Mapping[str, Any], context: object) -> Mapping[str, str] | None:
    """Run the request, and always report the outcome to CloudFormation or Terraform."""
    return report(event, lambda found: run(found, context), unmade=_UNMADE, made=_made)


def _made(properties: Mapping[str, Any]) -> str:
    """Return the physical ID: the name, or the ARN of a role."""
    role = properties.get("Role")
    return str(properties["Name"] if role is None else json.loads(role)["role"])


def run(event: Mapping[str, Any], context: object) -> Outcome:
    """Create, update, or remove a declared resource. Raise Refused if the server rejects it.

    The name is the physical ID. If it changes, CloudFormation deletes the previous resource.
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
    """Replace or remove the record of an IAM role. Raise OjsError if a call fails.

    No API operation does this: it revokes the role's record, and creates another one. The role is
    the physical ID. If it changes, CloudFormation deletes the previous record.
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
    """Return the request body as text, because CloudFormation changes numbers to texts.

    The template has only the ARNs of secrets. Raise Refused if a secret has no value.
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
            # Without a key: only CloudFormation calls this function. The caller is the app.
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
