"""The table, and the bucket for payloads too large for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.constructs.acknowledgement import acknowledge
from ojs.store.schema import TABLE

if TYPE_CHECKING:
    from infra.settings import DeploymentSettings

_STRING = dynamodb.AttributeType.STRING


class Storage(Construct):
    """All state of a deployment. `table` and `bucket` are what functions are granted."""

    def __init__(self, scope: Construct, name: str, *, settings: DeploymentSettings) -> None:
        super().__init__(scope, name)
        removal = (
            RemovalPolicy.DESTROY if settings.removal_policy == "destroy" else RemovalPolicy.RETAIN
        )
        self.table = dynamodb.Table(
            self,
            "Table",
            partition_key=dynamodb.Attribute(name=TABLE.hash_key, type=_STRING),
            sort_key=dynamodb.Attribute(name=TABLE.range_key, type=_STRING),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            time_to_live_attribute=TABLE.ttl_attribute,
            stream=dynamodb.StreamViewType[TABLE.stream_view_type],
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            deletion_protection=settings.deletion_protection,
            # No `encryption`: DynamoDB then encrypts with a key of its own. A KMS key would add a
            # price and a limit on requests, and keeps out nobody whom the roles let in.
            removal_policy=removal,
        )
        for index in TABLE.indexes:
            self.table.add_global_secondary_index(
                index_name=index.name,
                partition_key=dynamodb.Attribute(name=index.hash_key, type=_STRING),
                sort_key=dynamodb.Attribute(name=index.range_key, type=_STRING),
                projection_type=dynamodb.ProjectionType.KEYS_ONLY,
            )
        self.bucket = s3.Bucket(
            self,
            "Payloads",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            encryption=s3.BucketEncryption.S3_MANAGED,
            # The local emulator speaks plain HTTP, and enforces this like AWS does.
            enforce_ssl=not settings.is_local,
            minimum_tls_version=None if settings.is_local else 1.2,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="abandoned-uploads", abort_incomplete_multipart_upload_after=Duration.days(1)
                )
            ],
            removal_policy=removal,
        )
        acknowledge(
            self.bucket,
            "AwsSolutions-S1",
            "Only the functions' roles reach the bucket, through requests that the API already "
            "logs; a server access log would repeat them in a second bucket to be paid for. "
            "CloudTrail data events can be switched on where an audit asks for them.",
        )
