"""Webhooks: the queue of events to post, and its consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Duration
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from ojs_aws.cdk.functions import WEBHOOK, by_name
from ojs_aws.cdk.parts.acknowledgement import acknowledge
from ojs_aws.cdk.parts.push import encrypted_queue

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms

    from ojs_aws.cdk.settings import DeploymentSettings

# Receives after which a message moves to the dead-letter queue.
_RECEIVED = 5
# The events of a batch are posted at the same time, with one thread for each.
_BATCH = 8
# Endpoints are slow at times. More invocations at the same time would take concurrency from jobs.
_CONCURRENCY = 5


class Webhooks(Construct):
    """The queue of webhooks, and the queue for messages that could not be processed."""

    def __init__(
        self, scope: Construct, name: str, *, key: kms.IKey | None, settings: DeploymentSettings
    ) -> None:
        super().__init__(scope, name)
        self.failures = encrypted_queue(
            self, "Failures", key, settings, retention_period=Duration.days(14)
        )
        acknowledge(
            self.failures,
            "AwsSolutions-SQS3",
            "This queue is a dead-letter queue for messages that could not be processed.",
        )
        self.queue = encrypted_queue(
            self,
            "Queue",
            key,
            settings,
            visibility_timeout=Duration.seconds(6 * by_name(WEBHOOK).timeout_s),
            # The log has no entry of an event before its first attempt.
            retention_period=Duration.days(14),
            dead_letter_queue=sqs.DeadLetterQueue(queue=self.failures, max_receive_count=_RECEIVED),
        )

    def map(self, function: lambda_.Function) -> None:
        """Map the queue to its function."""
        kind = lambda_.CfnEventSourceMapping
        mapping = kind(
            self,
            "Mapping",
            event_source_arn=self.queue.queue_arn,
            function_name=function.function_name,
            batch_size=_BATCH,
            maximum_batching_window_in_seconds=0,
            function_response_types=["ReportBatchItemFailures"],
            scaling_config=kind.ScalingConfigProperty(maximum_concurrency=_CONCURRENCY),
        )
        # Lambda checks the role when it creates the mapping, so the policy must exist first.
        mapping.node.add_dependency(function.role or function)
