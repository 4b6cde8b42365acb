"""The secret by which the API knows requests that came through the firewall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import ArnFormat, Fn, RemovalPolicy, SecretValue, Stack
from aws_cdk import aws_secretsmanager as secretsmanager

from ojs_aws.cdk.parts.acknowledgement import acknowledge

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms
    from constructs import Construct

# The one region from which CloudFront takes a web ACL.
EDGE_REGION = "us-east-1"
# CloudFront puts its own value in place of one that a caller sends.
HEADER = "X-Origin-Verify"


def origin_secret(scope: Construct, key: kms.IKey | None) -> secretsmanager.ISecret:
    """A random value, with a replica where the distribution is made."""
    region = Stack.of(scope).region
    replica = secretsmanager.CfnSecret.ReplicaRegionProperty(region=EDGE_REGION)
    # Not the construct for secrets: that would write into the policy of a key of another stack.
    secret = secretsmanager.CfnSecret(
        scope,
        "OriginSecret",
        description="What the firewall adds to each request that it hands to the API",
        generate_secret_string=secretsmanager.CfnSecret.GenerateSecretStringProperty(
            exclude_punctuation=True, password_length=64
        ),
        kms_key_id=key.key_arn if key else None,
        # Under the key that AWS has for secrets there: the deployment's own is of one region.
        replica_regions=[replica] if region != EDGE_REGION else None,
    )
    # Nothing is lost with it: a new deployment makes another one.
    secret.apply_removal_policy(RemovalPolicy.DESTROY)
    acknowledge(
        secret,
        "AwsSolutions-SMG4",
        "A rotation is half done until the distribution is deployed with the new value, which no "
        "rotation function does: it takes two steps, written down in docs/deploy.md.",
    )
    # By attribute, which is its ARN everywhere, as for the first key.
    return secretsmanager.Secret.from_secret_complete_arn(scope, "Origin", secret.attr_id)


def header_value(scope: Construct, secret: secretsmanager.ISecret) -> str:
    """What CloudFormation replaces by the secret's value whenever it changes the resource that has
    it. It reads where `scope` is: of another region's secret the replica, whose ARN is the same but
    for the region.
    """
    here = Stack.of(scope).format_arn(
        service="secretsmanager",
        resource="secret",
        resource_name=Fn.select(6, Fn.split(":", secret.secret_arn)),
        arn_format=ArnFormat.COLON_RESOURCE_NAME,
    )
    # No version: one that is gone would stop each later change of the stack.
    return SecretValue.secrets_manager(here).unsafe_unwrap()
