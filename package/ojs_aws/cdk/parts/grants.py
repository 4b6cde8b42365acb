"""Who may do what with the API: roles by policies, or keys in secrets that roles may read."""

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
# As the server has them: names of keys stand in logs as they are.
_NAME = re.compile(r'[^\s"\\\x00-\x1f]([^"\\\x00-\x1f]{0,253}[^\s"\\\x00-\x1f])?')


@dataclass(frozen=True)
class Granted:
    """What a role got: a policy, and with `authorizer=keys` the secret that holds its key."""

    grant: iam.Grant
    secret: secretsmanager.ISecret | None = None


def paths(scopes: Iterable[str]) -> list[str]:
    """What a role with these scopes may ask, as `METHOD/path` with `*` for any text.

    A policy's `*` stands for slashes too. No pattern here reaches an operation of another scope; a
    test tries all.
    """
    wanted = {None, *scopes}
    found = {
        each.method + _PARAMETER.sub("*", each.path)
        for each in server.OPERATIONS
        if each.scope in wanted
    }
    return sorted(one for one in found if not any(reaches(other, one) for other in found - {one}))


def reaches(pattern: str, path: str) -> bool:
    """Whether a policy's pattern has this path."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), path) is not None


def grant_paths(
    grantee: iam.IGrantable, api: IConstruct, api_id: str, stage: str, scopes: Iterable[str]
) -> iam.Grant:
    """Let a role sign requests to this stage of an API for what these scopes allow."""
    stack = Stack.of(api)
    arns = [
        stack.format_arn(service="execute-api", resource=api_id, resource_name=f"{stage}/{path}")
        for path in paths(scopes)
    ]
    role: Any = grantee.grant_principal
    # A principal that is no construct has no finding; nor is that known of one in another stack.
    here = hasattr(role, "node") and Stack.of(role).node.path == stack.node.path
    for arn in arns:
        if here and "*" in arn:
            # What is before the first slash is the API's.
            before, slash, path = arn.partition("/")
            acknowledge(
                role,
                f"AwsSolutions-IAM5[Resource::{reported(role, api, before)}{slash}{path}]",
                "Jobs, queues and workers are named in paths of the API.",
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
    """A secret with a key of the API; the function `setup` makes the one for the other.

    Raises ValueError for a name or scope that the server does not take.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"name: {name!r} must be printable, without quotes, not too long")
    known = {each.scope for each in server.OPERATIONS}
    if unknown := [each for each in scopes if each not in known]:
        raise ValueError(f"scopes: there is no {', '.join(unknown)}")
    inside = Construct(scope, f"Key {name}")
    # Without a value, which the function gives it: the construct for secrets has one made.
    made = secretsmanager.CfnSecret(
        inside,
        "Secret",
        description=f"A key of {name} for the Open Job Spec API: {', '.join(scopes)}",
        kms_key_id=storage.key.key_arn if storage.key else None,
    )
    # Nothing is lost: the key is revoked with it, and another one is made by deploying again.
    made.apply_removal_policy(RemovalPolicy.DESTROY)
    acknowledge(
        made,
        "AwsSolutions-SMG4",
        "A key is replaced by declaring another one, after which this one is revoked; rotation "
        "here would leave its users without one.",
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
    # With its policy: the function must be allowed to write the secret by then.
    resource.node.add_dependency(setup.role or setup)
    return secret


def let_read(
    secret: secretsmanager.ISecret, grantee: iam.IGrantable, storage: Storage
) -> iam.Grant:
    """Let a role read a secret that is encrypted as all of the deployment is."""
    if storage.key is not None:
        # In the role's own policy, and not in the key's: the key may be in another stack, which
        # that of the role depends on.
        through = f"secretsmanager.{Stack.of(secret).region}.amazonaws.com"
        grantee.grant_principal.add_to_principal_policy(
            iam.PolicyStatement(
                actions=["kms:Decrypt"],
                resources=[storage.key.key_arn],
                conditions={"StringEquals": {"kms:ViaService": through}},
            )
        )
    return secret.grant_read(grantee)
