"""The two stacks: what must survive, and what can be deployed anew at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import (
    CfnOutput,
    CliCredentialsStackSynthesizer,
    DefaultStackSynthesizer,
    IStackSynthesizer,
    Stack,
)
from aws_cdk import aws_lambda as lambda_

from infra.constructs.api import Api
from infra.constructs.events import EventBus
from infra.constructs.failure_queue import StreamFailureQueue
from infra.constructs.function import Function, Resources
from infra.constructs.monitoring import Monitoring, Observed
from infra.constructs.schedule import EveryMinute
from infra.constructs.storage import Storage
from infra.constructs.stream import StreamMapping
from infra.functions import FUNCTIONS, by_name

if TYPE_CHECKING:
    from constructs import Construct

    from infra.settings import DeploymentSettings


def synthesizer(settings: DeploymentSettings) -> IStackSynthesizer:
    """How a stack's assets and template get to the account.

    On AWS through the roles that bootstrapping made; at the local emulator, which checks policies
    but not every condition in those roles', directly as the account's owner.
    """
    if settings.is_local:
        return CliCredentialsStackSynthesizer()
    return DefaultStackSynthesizer()


class DataStack(Stack):
    """The state: table and payload bucket."""

    def __init__(self, scope: Construct, name: str, *, settings: DeploymentSettings) -> None:
        super().__init__(
            scope,
            name,
            description="Open Job Spec backend: table and payload bucket",
            termination_protection=settings.deletion_protection,
            synthesizer=synthesizer(settings),
        )
        self.storage = Storage(self, "Storage", settings=settings)
        CfnOutput(self, "TableName", value=self.storage.table.table_name)
        CfnOutput(self, "PayloadBucketName", value=self.storage.bucket.bucket_name)


class ServiceStack(Stack):
    """The service: functions, HTTP API, schedules, stream, event bus, alarms, dashboard, logs."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        storage: Storage,
        code: lambda_.Code,
        settings: DeploymentSettings,
    ) -> None:
        super().__init__(
            scope,
            name,
            description="Open Job Spec backend: HTTP API, functions, schedules, events",
            synthesizer=synthesizer(settings),
        )
        table = storage.table
        failures = StreamFailureQueue(self, "StreamFailures", settings=settings).queue
        bus = EventBus(self, "Events", settings=settings).bus
        resources = Resources(table=table, bucket=storage.bucket, bus=bus, failures=failures)
        functions = {
            spec: Function(
                self,
                spec.name.capitalize(),
                spec=spec,
                code=code,
                resources=resources,
                settings=settings,
            ).function
            for spec in FUNCTIONS
        }
        api = Api(self, "Api", functions=functions, settings=settings)
        sweep = by_name("sweep")
        EveryMinute(self, "SweepSchedule", function=functions[sweep], description=sweep.description)
        StreamMapping(
            self,
            "StreamMapping",
            table=table,
            function=functions[by_name("stream")],
            failures=failures,
        )
        Monitoring(
            self,
            "Monitoring",
            observed=Observed(
                api=api.http,
                table=table,
                functions={spec.name: function for spec, function in functions.items()},
                failures=failures,
            ),
            settings=settings,
        )
        CfnOutput(self, "ApiUrl", value=api.url)
        CfnOutput(self, "EventBusName", value=bus.event_bus_name)
        CfnOutput(self, "StreamFailureQueueUrl", value=failures.queue_url)
        CfnOutput(self, "StreamFailureQueueArn", value=failures.queue_arn)
