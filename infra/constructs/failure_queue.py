"""Where stream records go that the consumer could not process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Duration
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.constructs.acknowledgement import acknowledge

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms

    from infra.settings import DeploymentSettings


class StreamFailureQueue(Construct):
    """An encrypted queue that keeps what failed for as long as SQS can. `queue`."""

    def __init__(
        self, scope: Construct, name: str, *, key: kms.IKey | None, settings: DeploymentSettings
    ) -> None:
        super().__init__(scope, name)
        self.queue = sqs.Queue(
            self,
            "Queue",
            encryption=sqs.QueueEncryption.KMS if key else sqs.QueueEncryption.SQS_MANAGED,
            encryption_master_key=key,
            # The local emulator speaks plain HTTP, and enforces this like AWS does.
            enforce_ssl=not settings.is_local,
            # The stream itself forgets a record after a day; here is time to find out why.
            retention_period=Duration.days(14),
        )
        acknowledge(
            self.queue,
            "AwsSolutions-SQS3",
            "This queue is a dead-letter queue: it takes what the stream's consumer gave up on.",
        )
