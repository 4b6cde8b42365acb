"""Persistent resources: the table, the bucket for large payloads, the secret of the bootstrap key,
and with encryption=own the KMS key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_backup as backup
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from ojs_aws.cdk import server
from ojs_aws.cdk.parts.acknowledgement import acknowledge
from ojs_aws.cdk.parts.log_group import log_group_arn

if TYPE_CHECKING:
    from ojs_aws.cdk.settings import DeploymentSettings

_STRING = dynamodb.AttributeType.STRING
# Permissions to read and write data with the key. Not CreateGrant: DynamoDB creates its grants when
# the table is deployed.
KEY_USE = frozenset(
    {"Decrypt", "DescribeKey", "Encrypt", "GenerateDataKey", "ReEncryptFrom", "ReEncryptTo"}
)


class Storage(Construct):
    """Persistent resources that functions are granted access to.

    `table` and `bucket` always exist. `secret` requires authorizer=keys, `key` requires
    encryption=own.
    """

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        settings: DeploymentSettings,
        table: dynamodb.ITable | None = None,
        bucket: s3.IBucket | None = None,
        key: kms.IKey | None = None,
    ) -> None:
        """Create the resources that are not passed.

        Args:
            scope: Parent construct.
            name: ID of the construct.
            settings: Settings of the deployment. They don't change a passed table or key.
            table: Existing table with the keys, indexes, stream, and time to live of docs/table.md.
            bucket: Existing bucket.
            key: Existing KMS key. A key of another app must allow CloudWatch Logs and the services.

        Raises:
            ValueError: The table lacks a required property.
        """
        super().__init__(scope, name)
        removal = RemovalPolicy[settings.removal_policy.upper()]
        self.key = key
        if key is None and settings.encryption == "own":
            self.key = _encryption_key(self, settings, removal)
        if self.key is not None:
            _let_logs_in(self, self.key, settings)
        self.secret: secretsmanager.ISecret | None = None
        if settings.authorizer == "keys":
            self.secret = self._first_key(removal)
        self.table = self._table(settings, removal) if table is None else fitting(table)
        if settings.backup_days:
            _back_up(self, self.table, self.key, settings, removal)
        self.bucket = self._bucket(settings, removal) if bucket is None else bucket

    def _table(self, settings: DeploymentSettings, removal: RemovalPolicy) -> dynamodb.Table:
        table = dynamodb.Table(
            self,
            "Table",
            partition_key=dynamodb.Attribute(name=server.HASH_KEY, type=_STRING),
            sort_key=dynamodb.Attribute(name=server.RANGE_KEY, type=_STRING),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            time_to_live_attribute=server.TTL_ATTRIBUTE,
            stream=dynamodb.StreamViewType[server.STREAM_VIEW_TYPE],
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            deletion_protection=settings.deletion_protection,
            # Default: an AWS owned key. A KMS key adds costs and a request quota. Its owner can
            # disable access to the data.
            encryption=dynamodb.TableEncryption.CUSTOMER_MANAGED if self.key else None,
            encryption_key=self.key,
            max_read_request_units=settings.max_read_units or None,
            max_write_request_units=settings.max_write_units or None,
            removal_policy=removal,
        )
        for index in server.INDEXES:
            table.add_global_secondary_index(
                index_name=index.name,
                partition_key=dynamodb.Attribute(name=index.hash_key, type=_STRING),
                sort_key=dynamodb.Attribute(name=index.range_key, type=_STRING),
                projection_type=dynamodb.ProjectionType.KEYS_ONLY,
                # No limit for writes: each write follows a write to the table.
                max_read_request_units=settings.max_read_units or None,
            )
        return table

    def _bucket(self, settings: DeploymentSettings, removal: RemovalPolicy) -> s3.Bucket:
        rules = [
            s3.LifecycleRule(
                id="abandoned-uploads", abort_incomplete_multipart_upload_after=Duration.days(1)
            )
        ]
        if settings.payload_recovery_days:
            # Current objects are not expired.
            rules.append(
                s3.LifecycleRule(
                    id="deleted-payloads",
                    noncurrent_version_expiration=Duration.days(settings.payload_recovery_days),
                    expired_object_delete_marker=True,
                )
            )
        bucket = s3.Bucket(
            self,
            "Payloads",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            encryption=s3.BucketEncryption.KMS if self.key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=self.key,
            # One data key for many objects, instead of one KMS request per object.
            bucket_key_enabled=True if self.key else None,
            # The local emulator uses plain HTTP and enforces this setting.
            enforce_ssl=not settings.is_local,
            minimum_tls_version=None if settings.is_local else 1.2,
            # A table restored to an earlier time refers to objects that were deleted since.
            versioned=settings.payload_recovery_days > 0,
            lifecycle_rules=rules,
            removal_policy=removal,
        )
        acknowledge(
            bucket,
            "AwsSolutions-S1",
            "Only the functions' roles access the bucket, for requests that the API logs. A "
            "server access log would repeat them in a second bucket, at extra cost. For an "
            "audit, enable CloudTrail data events.",
        )
        return bucket

    def _first_key(self, removal: RemovalPolicy) -> secretsmanager.ISecret:
        """Create a secret without a value, for the function `setup` to fill."""
        # The L2 construct would generate a value that is not an access key.
        secret = secretsmanager.CfnSecret(
            self,
            "FirstKey",
            description="Bootstrap key of the API, with all scopes",
            kms_key_id=self.key.key_arn if self.key else None,
        )
        secret.apply_removal_policy(removal)
        acknowledge(
            secret,
            "AwsSolutions-SMG4",
            "Keys are replaced through the API. This key is to be deleted after others are "
            "created. A rotation would leave its users without a key.",
        )
        # The attribute is the ARN everywhere. In the local emulator a reference is the name.
        return secretsmanager.Secret.from_secret_complete_arn(self, "Secret", secret.attr_id)


def _back_up(
    scope: Construct,
    table: dynamodb.ITable,
    key: kms.IKey | None,
    settings: DeploymentSettings,
    removal: RemovalPolicy,
) -> None:
    """Back up the table every night to a vault, with the retention of the settings."""
    inside = Construct(scope, "Backup")
    vault = backup.BackupVault(inside, "Vault", encryption_key=key, removal_policy=removal)
    rule = backup.BackupPlanRule(
        rule_name="nightly",
        schedule_expression=events.Schedule.cron(hour="3", minute="0"),
        delete_after=Duration.days(settings.backup_days),
    )
    plan = backup.BackupPlan(
        inside,
        "Plan",
        backup_plan_name=settings.service,
        backup_vault=vault,
        backup_plan_rules=[rule],
    )
    role = iam.Role(
        inside,
        "Role",
        assumed_by=iam.ServicePrincipal("backup.amazonaws.com"),
        managed_policies=[
            iam.ManagedPolicy.from_aws_managed_policy_name(
                "service-role/AWSBackupServiceRolePolicyForBackup"
            )
        ],
    )
    plan.add_selection(
        "Table",
        resources=[backup.BackupResource.from_dynamo_db_table(table)],
        role=role,
        disable_default_backup_policy=True,
    )
    acknowledge(
        role,
        "AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/"
        "AWSBackupServiceRolePolicyForBackup]",
        "AWS Backup requires this managed policy. The plan's selection names one table.",
    )


def _encryption_key(
    scope: Construct, settings: DeploymentSettings, removal: RemovalPolicy
) -> kms.Key:
    """Create a KMS key that is rotated every year, for owners who control the encryption key."""
    return kms.Key(
        Construct(scope, "Encryption"),
        "Key",
        alias=f"alias/{settings.service}",
        description=f"Open Job Spec data of {settings.service}",
        enable_key_rotation=True,
        # Without the key, encrypted data can't be read, including backups.
        removal_policy=removal,
    )


def _let_logs_in(scope: Construct, key: kms.IKey, settings: DeploymentSettings) -> None:
    """Allow log groups of the deployment to use the key."""
    # CloudWatch Logs uses its own principal, not the function's role.
    logs_arn = log_group_arn(scope, f"*{settings.service}*")
    actions = ("Decrypt", "Describe", "Encrypt", "GenerateDataKey", "ReEncrypt")
    key.add_to_resource_policy(
        iam.PolicyStatement(
            sid="Logs",
            actions=[f"kms:{action}*" for action in actions],
            principals=[iam.ServicePrincipal(f"logs.{Stack.of(scope).region}.amazonaws.com")],
            resources=["*"],
            conditions={"ArnLike": {"kms:EncryptionContext:aws:logs:arn": logs_arn}},
        )
    )


def fitting(table: dynamodb.ITable) -> dynamodb.ITable:
    """Return the table if it meets the requirements. Raises ValueError with the missing ones.

    Only the stream of an imported table is known here. The function `setup` checks the rest at
    deployment.
    """
    if table.table_stream_arn is None:
        raise ValueError(f"table: requires a stream with {server.STREAM_VIEW_TYPE}")
    made = table.node.default_child
    if not isinstance(made, dynamodb.CfnTable):
        return table
    found = Stack.of(table).resolve(
        {
            "stream": made.stream_specification,
            "keys": made.key_schema,
            "ttl": made.time_to_live_specification,
            "indexes": made.global_secondary_indexes,
        }
    )
    needed = {
        "stream": f"a stream with {server.STREAM_VIEW_TYPE}",
        "keys": f"the keys {server.HASH_KEY} and {server.RANGE_KEY}",
        "ttl": f"time to live in {server.TTL_ATTRIBUTE}",
        "indexes": "the indexes " + ", ".join(each.name for each in server.INDEXES),
    }
    told = {name: str(found.get(name)) for name in needed}
    wanted: dict[str, list[str]] = {
        "stream": [server.STREAM_VIEW_TYPE],
        "keys": [server.HASH_KEY, server.RANGE_KEY],
        "ttl": [server.TTL_ATTRIBUTE],
        "indexes": [part for each in server.INDEXES for part in (each.name, each.hash_key)],
    }
    lacking = [
        needed[name]
        for name, words in wanted.items()
        if not all(f"'{word}'" in told[name] for word in words)
    ]
    if lacking:
        raise ValueError(f"table: requires {'; '.join(lacking)} (docs/table.md)")
    return table
