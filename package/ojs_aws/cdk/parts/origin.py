"""The secret header that identifies requests forwarded by the firewall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import ArnFormat, Fn, RemovalPolicy, SecretValue, Stack
from aws_cdk import aws_secretsmanager as secretsmanager

from ojs_aws.cdk.parts.acknowledgement import acknowledge

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms
    from constructs import Construct

# The only region in which CloudFront accepts a web ACL.
EDGE_REGION = "us-east-1"
# CloudFront replaces the value that a client sends.
HEADER = "X-Origin-Verify"


def origin_secret(scope: Construct, key: kms.IKey | None) -> secretsmanager.ISecret:
    """Create a random value, with a replica in the region of the distribution."""
    region = Stack.of(scope).region
    replica = secretsmanager.CfnSecret.ReplicaRegionProperty(region=EDGE_REGION)
    # The L2 construct would change the policy of a key in another stack.
    secret = secretsmanager.CfnSecret(
        scope,
        "OriginSecret",
        description="Header value that the firewall adds to each request to the API",
        generate_secret_string=secretsmanager.CfnSecret.GenerateSecretStringProperty(
            exclude_punctuation=True, password_length=64
        ),
        kms_key_id=key.key_arn if key else None,
        # Encrypted with the AWS managed key: the deployment's key exists in one region only.
        replica_regions=[replica] if region != EDGE_REGION else None,
    )
    # The value can be lost: a new deployment creates another one.
    secret.apply_removal_policy(RemovalPolicy.DESTROY)
    acknowledge(
        secret,
        "AwsSolutions-SMG4",
        "A rotation completes when the distribution is deployed with the new value, which a "
        "rotation function can't do. docs/deploy.md describes the two steps.",
    )
    # The attribute is the ARN everywhere, as for the bootstrap key.
    return secretsmanager.Secret.from_secret_complete_arn(scope, "Origin", secret.attr_id)


def header_value(scope: Construct, secret: secretsmanager.ISecret) -> str:
    """Return a reference that CloudFormation resolves to the secret's value at each update.

    CloudFormation reads the value in the region of `scope`. In another region that is the replica,
    whose ARN differs in the region only.
    """
    here = Stack.of(scope).format_arn(
        service="secretsmanager",
        resource="secret",
        resource_name=Fn.select(6, Fn.split(":", secret.secret_arn)),
        arn_format=ArnFormat.COLON_RESOURCE_NAME,
    )
    # No version: a deleted version would block each later change of the stack.
    return SecretValue.secrets_manager(here).unsafe_unwrap()
