"""Webhooks: the queue of events to post, and its consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Duration
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from ojs_aws.cdk.functions import WEBHOOK, by_name
from ojs_aws.cdk.parts.push import RECEIVED, encrypted_queue, failure_queue, map_queue

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms

    from ojs_aws.cdk.settings import DeploymentSettings

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
        self.failures = failure_queue(self, key, settings)
        self.queue = encrypted_queue(
            self,
            "Queue",
            key,
            settings,
            visibility_timeout=Duration.seconds(6 * by_name(WEBHOOK).timeout_s),
            # The log has no entry of an event before its first attempt.
            retention_period=Duration.days(14),
            dead_letter_queue=sqs.DeadLetterQueue(queue=self.failures, max_receive_count=RECEIVED),
        )

    def map(self, function: lambda_.Function) -> None:
        """Map the queue to its function."""
        map_queue(
            self,
            "Mapping",
            self.queue,
            function,
            batch_size=_BATCH,
            concurrency=_CONCURRENCY,
        )
