"""CloudFormation's custom resource that runs once in each deployment of a version.

It runs before the other functions change. If it fails, they don't change.

It also creates the keys that a CDK app declares (`Custom::OjsKey`), each in a separate secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from functions.custom_resource import Outcome, report
from ojs import access_runtime

_PHYSICAL_ID = "ojs-setup"
_KEY = "Custom::OjsKey"


def handler(event: Mapping[str, Any], context: Any) -> Mapping[str, str] | None:
    """Run the request, and always report the outcome to CloudFormation or Terraform."""
    # A call of Terraform has no ID. A repeated call revokes the key of the first one.
    request = {"RequestId": context.aws_request_id} if "tf" in event else {}
    return report(event, lambda found: run({**request, **found}), unmade=_PHYSICAL_ID, made=_made)


def _made(properties: Mapping[str, Any]) -> str | None:
    """Return the ID of a declared key, from its secret.

    Revoke the key before it: an earlier call can have crashed between the new key and that.
    """
    secret = access_runtime.secret(str(properties["Secret"]))
    if secret.read() is None:
        return None
    setup = access_runtime.setup()
    current, *previous = map(setup.id_of, secret.values())
    if current is None:
        raise ValueError("The secret of a key must be empty, or contain a valid key.")
    for each in filter(None, previous):
        setup.take_back_key(each)
    return current


def run(event: Mapping[str, Any]) -> Outcome:
    """Run one request. The attributes for the template don't include keys."""
    if event.get("ResourceType") == _KEY:
        return _key(event)
    known = str(event.get("PhysicalResourceId") or _PHYSICAL_ID)
    if event["RequestType"] == "Delete":
        # The table can be retained, and the keys with it.
        return Outcome(known)
    setup, secret = access_runtime.setup(), access_runtime.first_key()
    # First, because the current functions stay in use if this fails.
    if former := str(event.get("OldResourceProperties", {}).get("Table", "")):
        replaced = str(event["ResourceProperties"].get("ReplaceTable", ""))
        setup.check_identity(former, access_runtime.table(), replaced)
    setup.check_deliveries(access_runtime.egress_hosts(), push=access_runtime.pushes())
    setup.prepare_keys()
    setup.check_table()
    return Outcome(known, {} if secret is None else {"FirstKeyId": setup.leave_first_key(secret)})


def _key(event: Mapping[str, Any]) -> Outcome:
    """Create or revoke a declared key.

    A key never changes. CloudFormation replaces it by another one, and then deletes it, which
    revokes it.
    """
    setup = access_runtime.setup()
    if event["RequestType"] == "Delete":
        key_id = str(event["PhysicalResourceId"])
        setup.take_back_key(key_id)
        return Outcome(key_id)
    wanted = event["ResourceProperties"]
    key_id = setup.leave_key(
        access_runtime.secret(str(wanted["Secret"])),
        # Lambda retries a failed call with the same request ID.
        token=str(event["RequestId"]),
        name=str(wanted["Name"]),
        scopes=wanted["Scopes"],
        queues=wanted.get("Queues"),
    )
    return Outcome(key_id)
