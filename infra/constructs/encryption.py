"""A KMS key of the deployment's own, for owners who want to hold the key to the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import ArnFormat, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

if TYPE_CHECKING:
    from infra.settings import DeploymentSettings

# What readers and writers of data under the key need of it. Not CreateGrant: DynamoDB makes its
# grants when the table gets the key, which is when the table is deployed.
USE = frozenset(
    {
        "Decrypt",
        "DescribeKey",
        "Encrypt",
        "GenerateDataKey",
        "ReEncryptFrom",
        "ReEncryptTo",
    }
)


class EncryptionKey(Construct):
    """A key that is rotated every year. `key`."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        settings: DeploymentSettings,
        removal: RemovalPolicy,
    ) -> None:
        super().__init__(scope, name)
        stack = Stack.of(self)
        self.key = kms.Key(
            self,
            "Key",
            alias=f"alias/{settings.service}",
            description=f"Open Job Spec data of {settings.service}",
            enable_key_rotation=True,
            # Without it nothing of what it encrypted can be read again, backups included.
            removal_policy=removal,
        )
        # CloudWatch Logs asks in its own name, not in the name of the function that writes.
        self.key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="Logs",
                actions=[
                    "kms:Decrypt*",
                    "kms:Describe*",
                    "kms:Encrypt*",
                    "kms:GenerateDataKey*",
                    "kms:ReEncrypt*",
                ],
                principals=[iam.ServicePrincipal(f"logs.{stack.region}.amazonaws.com")],
                resources=["*"],
                conditions={
                    "ArnLike": {
                        "kms:EncryptionContext:aws:logs:arn": stack.format_arn(
                            service="logs",
                            resource="log-group",
                            resource_name=f"*{settings.service}*",
                            arn_format=ArnFormat.COLON_RESOURCE_NAME,
                        )
                    }
                },
            )
        )
