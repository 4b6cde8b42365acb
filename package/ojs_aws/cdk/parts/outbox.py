"""Outboxes: tables whose items carry jobs, and the mapping of their streams to a function."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from aws_cdk.aws_lambda_event_sources import SqsEventSource
from constructs import Construct

from ojs_aws.cdk.functions import OUTBOX_RELAY, STREAM_SOURCE
from ojs_aws.cdk.parts.acknowledgement import acknowledge
from ojs_aws.cdk.parts.storage import KEY_USE

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms

    from ojs_aws.cdk.parts.storage import Storage
    from ojs_aws.cdk.settings import DeploymentSettings

After = Literal["delete", "keep"]
_BATCH = 100
_MAX_WINDOW_S = 300
_MIN_AGE_S = 60
# SQS recommends six times the timeout of the function.
_HIDDEN_S = 6 * OUTBOX_RELAY.timeout_s
_EXISTS = [{"exists": True}]
# Values of the attribute: a job, a list in both notations of filters, and values to reject.
_VALUES: Sequence[dict[str, Any]] = (
    {"S": _EXISTS}, {"L": {"S": _EXISTS}}, {"L": _EXISTS}, {"M": {"type": {"S": _EXISTS}}},
    {"B": _EXISTS},
)  # fmt: skip


class OutboxTable(dynamodb.Table):
    """A table for items with jobs: key `id`, on demand, with a stream."""

    def __init__(
        self, scope: Construct, name: str, *, storage: Storage, settings: DeploymentSettings
    ) -> None:
        super().__init__(
            scope,
            name,
            partition_key=dynamodb.Attribute(name="id", type=dynamodb.AttributeType.STRING),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            time_to_live_attribute="expires",
            stream=dynamodb.StreamViewType.NEW_IMAGE,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            deletion_protection=settings.deletion_protection,
            encryption=dynamodb.TableEncryption.CUSTOMER_MANAGED if storage.key else None,
            encryption_key=storage.key,
            removal_policy=RemovalPolicy[settings.removal_policy.upper()],
        )


def check_outbox(
    table: dynamodb.ITable,
    after: After | None,
    queues: Sequence[str] | None,
    types: Sequence[str] | None,
    window_s: int,
    alarm_age_s: int,
) -> None:
    """Raise ValueError for invalid or contradicting properties."""
    own, made = not isinstance(table, OutboxTable), table.node.default_child
    images = ""
    if isinstance(made, dynamodb.CfnTable):
        images = str(Stack.of(table).resolve(made.stream_specification))
    # The view type of an imported table, or of a global table, is known to its records only.
    if table.table_stream_arn is None or (own and images and "NEW_AND_OLD_IMAGES" not in images):
        raise ValueError("table: requires a stream with NEW_AND_OLD_IMAGES")
    if after not in (None, "delete", "keep"):
        raise ValueError(f"after: must be delete or keep, but is {after!r}")
    if own and after == "delete":
        raise ValueError("after: must be keep for a table that outbox_table didn't create")
    for name, patterns in (("queues", queues), ("types", types)):
        if isinstance(patterns, str) or patterns == [] or not all(patterns or ("*",)):
            raise ValueError(f"{name}: must be a list of names, but is {patterns!r}")
    if not 0 <= window_s <= _MAX_WINDOW_S:
        raise ValueError(f"window_s: must be 0 to {_MAX_WINDOW_S}, but is {window_s}")
    if alarm_age_s < _MIN_AGE_S:
        raise ValueError(f"alarm_age_s: must be at least {_MIN_AGE_S}, but is {alarm_age_s}")


class Outbox(Construct):
    """The queues of an outbox, and the mapping of its table: `map` adds it to a function.

    `refused` is the queue for refused items, `later` the queue for jobs that can't be stored now.
    """

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        table: dynamodb.ITable,
        key: kms.IKey | None,
        settings: DeploymentSettings,
    ) -> None:
        super().__init__(scope, name)
        self._table, self._key, self._settings = table, key, settings
        self.refused, self.later = self._queue("Refused"), self._queue("Later")

    def _queue(self, name: str) -> sqs.Queue:
        queue = sqs.Queue(
            self,
            name,
            encryption=sqs.QueueEncryption.KMS if self._key else sqs.QueueEncryption.SQS_MANAGED,
            encryption_master_key=self._key,
            # The local emulator speaks plain HTTP, and enforces this like AWS does.
            enforce_ssl=not self._settings.is_local,
            retention_period=Duration.days(14),
            visibility_timeout=Duration.seconds(_HIDDEN_S),
        )
        why = (
            "Its messages are refused items, or wait until their jobs are stored. Alarms watch it."
        )
        acknowledge(queue, "AwsSolutions-SQS3", why)
        return queue

    def map(
        self, function: lambda_.Function, window_s: int, *, keep: bool, **configured: object
    ) -> None:
        """Configure the function, and map the table's stream and the queue `later` to it."""
        table, own = self._table, not isinstance(self._table, OutboxTable)
        # The same names as of the server's setting `outbox`.
        configured |= {
            "table": table.table_name, "refused": self.refused.queue_url,
            "later": self.later.queue_url, "own": own, "keep": keep and not own,
        }  # fmt: skip
        text = Stack.of(self).to_json_string(configured)
        function.add_environment("OJS_OUTBOX", text)
        if not own:
            writes = "dynamodb:UpdateItem" if keep else "dynamodb:BatchWriteItem"
            _allow(function, [writes], table.table_arn)
        elif table.encryption_key is not None:
            table.encryption_key.grant_decrypt(function)
        stream = str(table.table_stream_arn)
        _allow(function, [f"dynamodb:{action}" for action in sorted(STREAM_SOURCE)], stream)
        # The emulator requires SendMessageBatch, which AWS includes in SendMessage.
        sends = ["sqs:SendMessage", *(["sqs:SendMessageBatch"] if self._settings.is_local else [])]
        _allow(function, sends, self.refused.queue_arn, self.later.queue_arn)
        if self._key is not None:
            through = {"kms:ViaService": f"sqs.{Stack.of(self).region}.amazonaws.com"}
            uses = [f"kms:{action}" for action in sorted(KEY_USE)]
            _allow(function, uses, self._key.key_arn, conditions={"StringEquals": through})
        # An outbox table has inserts, and the updates and deletions of this function. Updates of
        # kept items invoke the function, which ignores them.
        name = str(configured["attribute"])
        images = [{name: each} for each in _VALUES] if own else [{"id": {"S": _EXISTS}}]
        kind = lambda_.CfnEventSourceMapping
        mapping = kind(
            self,
            "Mapping",
            event_source_arn=stream,
            function_name=function.function_name,
            starting_position="TRIM_HORIZON",
            batch_size=_BATCH,
            maximum_batching_window_in_seconds=window_s,
            # In order for each shard, and a batch is repeated until its jobs are stored.
            parallelization_factor=1,
            bisect_batch_on_function_error=False,
            maximum_retry_attempts=-1,
            maximum_record_age_in_seconds=-1,
            function_response_types=["ReportBatchItemFailures"],
            destination_config=kind.DestinationConfigProperty(
                on_failure=kind.OnFailureProperty(destination=self.refused.queue_arn)
            ),
            filter_criteria=kind.FilterCriteriaProperty(
                filters=[
                    kind.FilterProperty(pattern=json.dumps({"dynamodb": {"NewImage": each}}))
                    for each in images
                ]
            ),
        )
        # Lambda checks the role when it creates the mapping, so the policy must exist first.
        mapping.node.add_dependency(function.role or function)
        function.add_event_source(SqsEventSource(self.later, report_batch_item_failures=True))


def _allow(
    function: lambda_.Function, actions: list[str], *resources: str, conditions: Any = None
) -> None:
    function.add_to_role_policy(
        iam.PolicyStatement(actions=actions, resources=list(resources), conditions=conditions)
    )
