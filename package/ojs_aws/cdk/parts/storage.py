"""All that is kept: the table, the bucket for payloads too large for it, the first key, and the
key that encrypts them, if it is the deployment's own.
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
# What readers and writers of data under the key need of it. Not CreateGrant: DynamoDB makes its
# grants when the table gets the key, which is when the table is deployed.
KEY_USE = frozenset(
    {"Decrypt", "DescribeKey", "Encrypt", "GenerateDataKey", "ReEncryptFrom", "ReEncryptTo"}
)


class Storage(Construct):
    """All state of a deployment: what functions are granted access to.

    `table` and `bucket` always; `secret` with authorizer=keys; `key` with encryption=own.
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
        """`table`, `bucket` and `key` are taken where they are given, and made where they are not.

        A given table must have the keys, indexes, stream and time to live of docs/table.md, and
        a given key must let CloudWatch Logs and the services use it if it is of another app.
        Neither is changed by the settings. Raises ValueError for a table that cannot be the one.
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
            # Absent: DynamoDB encrypts with a key of its own. A KMS key adds a price and a limit on
            # requests; what it brings is that the key's owner can take it away.
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
                # Writes need none: each follows from one of the table.
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
            # Objects that are not deleted stay.
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
            # One data key for many objects, in place of a call of KMS for each.
            bucket_key_enabled=True if self.key else None,
            # The local emulator speaks plain HTTP, and enforces this like AWS does.
            enforce_ssl=not settings.is_local,
            minimum_tls_version=None if settings.is_local else 1.2,
            # A table that is restored to a time before names objects that were deleted since.
            versioned=settings.payload_recovery_days > 0,
            lifecycle_rules=rules,
            removal_policy=removal,
        )
        acknowledge(
            bucket,
            "AwsSolutions-S1",
            "Only the functions' roles reach the bucket, through requests that the API already "
            "logs; a server access log would repeat them in a second bucket to be paid for. "
            "CloudTrail data events can be switched on where an audit asks for them.",
        )
        return bucket

    def _first_key(self, removal: RemovalPolicy) -> secretsmanager.ISecret:
        """A secret without a value, for the function `setup` to fill."""
        # Not the construct for secrets: that has a value made, which would then be no key, and
        # would be there from the start.
        secret = secretsmanager.CfnSecret(
            self,
            "FirstKey",
            description="The first key of the API, which may do everything",
            kms_key_id=self.key.key_arn if self.key else None,
        )
        secret.apply_removal_policy(removal)
        acknowledge(
            secret,
            "AwsSolutions-SMG4",
            "A key is replaced through the API by whoever uses it, and this one is to be deleted "
            "when others are made; rotation here would leave its users without one.",
        )
        # By attribute, which is its ARN everywhere: a reference is its name at the local emulator.
        return secretsmanager.Secret.from_secret_complete_arn(self, "Secret", secret.attr_id)


def _back_up(
    scope: Construct,
    table: dynamodb.ITable,
    key: kms.IKey | None,
    settings: DeploymentSettings,
    removal: RemovalPolicy,
) -> None:
    """A copy of the table each night, in a vault, for as many days as the settings say."""
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
        "The policy that AWS Backup asks for; the plan's selection names one table.",
    )


def _encryption_key(
    scope: Construct, settings: DeploymentSettings, removal: RemovalPolicy
) -> kms.Key:
    """A KMS key, rotated every year, for owners who want to hold the key to the data."""
    return kms.Key(
        Construct(scope, "Encryption"),
        "Key",
        alias=f"alias/{settings.service}",
        description=f"Open Job Spec data of {settings.service}",
        enable_key_rotation=True,
        # Without it nothing of what it encrypted can be read again, backups included.
        removal_policy=removal,
    )


def _let_logs_in(scope: Construct, key: kms.IKey, settings: DeploymentSettings) -> None:
    """Let log groups of the deployment be encrypted with the key."""
    # CloudWatch Logs asks in its own name, not in the name of the function that writes.
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
    """The table, if it can be the one of a deployment. Raises ValueError with what it lacks.

    Of a table of another app only its stream can be looked at; the function `setup` looks at the
    rest when it is deployed.
    """
    if table.table_stream_arn is None:
        raise ValueError(f"table: needs a stream with {server.STREAM_VIEW_TYPE}")
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
        "ttl": f"its time to live in {server.TTL_ATTRIBUTE}",
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
        raise ValueError(f"table: needs {'; '.join(lacking)} (docs/table.md)")
    return table
