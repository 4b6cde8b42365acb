"""CloudFormation's custom resource: runs once in each deployment of a version, before the other
functions are changed. If it fails, they are not changed.

It also makes the keys that a CDK app declares (`Custom::OjsKey`): each goes to a secret of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from functions.custom_resource import Outcome, report
from ojs import access_runtime

_PHYSICAL_ID = "ojs-setup"
_KEY = "Custom::OjsKey"


def handler(event: Mapping[str, Any], _context: object) -> None:
    """Run the request, and always report the outcome to CloudFormation."""
    report(event, run, unmade=_PHYSICAL_ID)


def run(event: Mapping[str, Any]) -> Outcome:
    """Run one request. Keys themselves are not among the attributes for the template."""
    if event.get("ResourceType") == _KEY:
        return _key(event)
    known = str(event.get("PhysicalResourceId") or _PHYSICAL_ID)
    if event["RequestType"] == "Delete":
        # The table may be retained, and the keys with it.
        return Outcome(known)
    setup, secret = access_runtime.setup(), access_runtime.first_key()
    # First: if it refuses, the functions that are there stay in use.
    setup.check_deliveries(access_runtime.egress_hosts(), push=access_runtime.pushes())
    setup.prepare_keys()
    setup.check_table()
    return Outcome(known, {} if secret is None else {"FirstKeyId": setup.leave_first_key(secret)})


def _key(event: Mapping[str, Any]) -> Outcome:
    """A key is never changed: another one takes its place, and CloudFormation then has the former
    one deleted, which revokes it.
    """
    setup = access_runtime.setup()
    if event["RequestType"] == "Delete":
        key_id = str(event["PhysicalResourceId"])
        setup.take_back_key(key_id)
        return Outcome(key_id)
    wanted = event["ResourceProperties"]
    key_id = setup.leave_key(
        access_runtime.secret(str(wanted["Secret"])),
        # Lambda repeats a call that failed: with the same id of the request.
        token=str(event["RequestId"]),
        name=str(wanted["Name"]),
        scopes=wanted["Scopes"],
        queues=wanted.get("Queues"),
    )
    return Outcome(key_id)
