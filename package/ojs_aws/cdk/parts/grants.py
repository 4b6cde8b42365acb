"""Grants for the API: policies of roles, or access keys in secrets that roles can read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aws_cdk import CustomResource, Duration, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from ojs_aws.cdk import server
from ojs_aws.cdk.functions import CUSTOM_RESOURCE_S
from ojs_aws.cdk.parts.acknowledgement import acknowledge, reported

if TYPE_CHECKING:
    from aws_cdk import CfnResource
    from aws_cdk import aws_lambda as lambda_
    from constructs import IConstruct

    from ojs_aws.cdk.parts.storage import Storage

_PARAMETER = re.compile(r"\{[^}]*\}")
_JOB = re.compile(r"(?<=/jobs/)\{id\}\Z")
# The same pattern as in the server: logs contain names of keys unescaped.
_NAME = re.compile(r'[^\s"\\\x00-\x1f]([^"\\\x00-\x1f]{0,253}[^\s"\\\x00-\x1f])?')


@dataclass(frozen=True)
class Granted:
    """The grant of a role.

    Attributes:
        grant: The policy.
        secret: With `authorizer=keys` the secret with the access key, otherwise None.
    """

    grant: iam.Grant
    secret: secretsmanager.ISecret | None = None


def paths(scopes: Iterable[str]) -> list[str]:
    """Return policy resources as `METHOD/path` for these scopes, with `*` for any text.

    A `*` in a policy also matches slashes, so a job ID at the end of a path has as many `?` as
    characters. `P*` replaces `P` and `P/*`, because the inline policies of a role are limited to
    10,240 characters. No pattern matches an operation of another scope; a test checks all of them.
    """
    wanted = {None, *scopes}
    found, others = set[str](), set[str]()
    for each in server.OPERATIONS:
        pattern = each.method + _PARAMETER.sub("*", _JOB.sub("?" * 36, each.path))
        (found if each.scope in wanted else others).add(pattern)
    for one in [each for each in found if f"{each}/*" in found and not each.endswith("*")]:
        if not any(reaches(f"{one}*", other) for other in others):
            found.add(f"{one}*")
    return sorted(one for one in found if not any(reaches(other, one) for other in found - {one}))


def reaches(pattern: str, path: str) -> bool:
    """Whether a policy's pattern matches this path."""
    wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(wild, path) is not None


def grant_paths(
    grantee: iam.IGrantable, api: IConstruct, api_id: str, stage: str, scopes: Iterable[str]
) -> iam.Grant:
    """Grant a role signed requests to this stage for the operations of these scopes."""
    stack = Stack.of(api)
    arns = [
        stack.format_arn(service="execute-api", resource=api_id, resource_name=f"{stage}/{path}")
        for path in paths(scopes)
    ]
    role: Any = grantee.grant_principal
    # Findings exist only for constructs, and only for those in this stack.
    here = hasattr(role, "node") and Stack.of(role).node.path == stack.node.path
    for arn in arns:
        if here and "*" in arn:
            # The part before the first slash belongs to the API.
            before, slash, path = arn.partition("/")
            acknowledge(
                role,
                f"AwsSolutions-IAM5[Resource::{reported(role, api, before)}{slash}{path}]",
                "Paths of the API contain names of jobs, queues, and workers.",
            )
    return iam.Grant.add_to_principal(
        grantee=grantee, actions=["execute-api:Invoke"], resource_arns=arns
    )


def key_in_secret(
    scope: Construct,
    name: str,
    scopes: Sequence[str],
    queues: Sequence[str] | None,
    *,
    setup: lambda_.Function,
    step: CfnResource,
    storage: Storage,
) -> secretsmanager.ISecret:
    """Create a secret with an access key. The function `setup` creates the key.

    Raises ValueError if the name or a scope is invalid.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"name: must be printable ASCII without quotes, but is {name!r}")
    known = {each.scope for each in server.OPERATIONS}
    if unknown := [each for each in scopes if each not in known]:
        allowed = ", ".join(sorted(filter(None, known)))
        raise ValueError(f"scopes: unknown: {', '.join(unknown)}. Allowed: {allowed}")
    inside = Construct(scope, f"Key {name}")
    # The function sets the value. The L2 construct would generate one.
    made = secretsmanager.CfnSecret(
        inside,
        "Secret",
        description=f"Access key of {name} for the Open Job Spec API: {', '.join(scopes)}",
        kms_key_id=storage.key.key_arn if storage.key else None,
    )
    # The key is revoked with the secret. A new deployment creates another one.
    made.apply_removal_policy(RemovalPolicy.DESTROY)
    acknowledge(
        made,
        "AwsSolutions-SMG4",
        "A key is replaced by declaring another one, which revokes this one. A rotation would "
        "leave its users without a key.",
    )
    secret = secretsmanager.Secret.from_secret_complete_arn(inside, "Given", made.attr_id)
    setup.add_to_role_policy(
        iam.PolicyStatement(
            actions=["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"],
            resources=[made.attr_id],
        )
    )
    resource = CustomResource(
        inside,
        "Key",
        resource_type="Custom::OjsKey",
        service_token=setup.function_arn,
        service_timeout=Duration.seconds(CUSTOM_RESOURCE_S),
        properties={
            "Secret": made.attr_id,
            "Name": name,
            "Scopes": sorted(scopes),
            **({} if queues is None else {"Queues": list(queues)}),
        },
    )
    resource.node.add_dependency(step)
    # The function needs the permission to write the secret first.
    resource.node.add_dependency(setup.role or setup)
    return secret


def let_read(
    secret: secretsmanager.ISecret, grantee: iam.IGrantable, storage: Storage
) -> iam.Grant:
    """Allow a role to read a secret that is encrypted with the deployment's key."""
    if storage.key is not None:
        # In the role's policy, not the key's: the role's stack can depend on the key's stack.
        through = f"secretsmanager.{Stack.of(secret).region}.amazonaws.com"
        grantee.grant_principal.add_to_principal_policy(
            iam.PolicyStatement(
                actions=["kms:Decrypt"],
                resources=[storage.key.key_arn],
                conditions={"StringEquals": {"kms:ViaService": through}},
            )
        )
    return secret.grant_read(grantee)
