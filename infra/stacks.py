"""The stacks: what must survive, what can be deployed anew at any time, and a firewall if asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import (
    Aws,
    CfnOutput,
    CliCredentialsStackSynthesizer,
    DefaultStackSynthesizer,
    Environment,
    IStackSynthesizer,
    Stack,
)
from aws_cdk import aws_lambda as lambda_

from infra.constructs.api import Api
from infra.constructs.events import EventBus
from infra.constructs.failure_queue import StreamFailureQueue
from infra.constructs.firewall import Firewall
from infra.constructs.function import Function, Resources
from infra.constructs.monitoring import Monitoring, Observed
from infra.constructs.schedule import EveryMinute
from infra.constructs.setup import Setup
from infra.constructs.storage import Storage
from infra.constructs.stream import StreamMapping
from infra.functions import SETUP, by_name, deployed

if TYPE_CHECKING:
    from constructs import Construct

    from infra.settings import DeploymentSettings


EDGE_REGION = "us-east-1"


def synthesizer(settings: DeploymentSettings) -> IStackSynthesizer:
    """How a stack's assets and template get to the account.

    On AWS through the roles that bootstrapping made; at the local emulator, which checks policies
    but not every condition in those roles', directly as the account's owner.
    """
    if settings.is_local:
        return CliCredentialsStackSynthesizer()
    return DefaultStackSynthesizer()


class DataStack(Stack):
    """The state: table, payload bucket, first key, encryption key."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        settings: DeploymentSettings,
        env: Environment | None = None,
    ) -> None:
        super().__init__(
            scope,
            name,
            env=env,
            description="Open Job Spec backend: table, payload bucket, keys",
            termination_protection=settings.deletion_protection,
            synthesizer=synthesizer(settings),
        )
        self.storage = Storage(self, "Storage", settings=settings)
        CfnOutput(self, "TableName", value=self.storage.table.table_name)
        CfnOutput(self, "PayloadBucketName", value=self.storage.bucket.bucket_name)
        if self.storage.secret is not None:
            CfnOutput(self, "FirstKeySecretArn", value=self.storage.secret.secret_arn)
        if self.storage.key is not None:
            CfnOutput(self, "EncryptionKeyArn", value=self.storage.key.key_arn)


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
        env: Environment | None = None,
    ) -> None:
        super().__init__(
            scope,
            name,
            env=env,
            description="Open Job Spec backend: HTTP API, functions, schedules, events",
            synthesizer=synthesizer(settings),
        )
        table, key = storage.table, storage.key
        failures = StreamFailureQueue(self, "StreamFailures", key=key, settings=settings).queue
        bus = EventBus(self, "Events", settings=settings).bus
        resources = Resources(
            table=table,
            bucket=storage.bucket,
            bus=bus,
            failures=failures,
            secret=storage.secret,
            key=key,
        )
        functions = {
            spec: Function(
                self,
                spec.name.capitalize(),
                spec=spec,
                code=code,
                resources=resources,
                settings=settings,
            ).function
            for spec in deployed(settings.authorizer)
        }
        setup = by_name(SETUP)
        Setup(
            self,
            "SetupStep",
            function=functions[setup],
            others=[function for spec, function in functions.items() if spec is not setup],
            secret=storage.secret,
        )
        self.api = Api(self, "Api", functions=functions, key=key, settings=settings)
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
                api=self.api.http,
                table=table,
                functions={spec.name: function for spec, function in functions.items()},
                failures=failures,
            ),
            settings=settings,
        )
        CfnOutput(self, "ApiUrl", value=self.api.url)
        if self.api.domain_target is not None:
            CfnOutput(self, "DomainTarget", value=self.api.domain_target)
        CfnOutput(self, "EventBusName", value=bus.event_bus_name)
        CfnOutput(self, "StreamFailureQueueUrl", value=failures.queue_url)
        CfnOutput(self, "StreamFailureQueueArn", value=failures.queue_arn)


class EdgeStack(Stack):
    """The firewall in front of the API, in the one region from which CloudFront takes a web ACL."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        service: ServiceStack,
        settings: DeploymentSettings,
    ) -> None:
        super().__init__(
            scope,
            name,
            env=Environment(account=service.account, region=EDGE_REGION),
            description="Open Job Spec backend: CloudFront distribution and web ACL",
            synthesizer=synthesizer(settings),
            cross_region_references=service.region != EDGE_REGION,
        )
        api = service.api.http
        firewall = Firewall(
            self,
            "Firewall",
            api_domain=f"{api.api_id}.execute-api.{service.region}.{Aws.URL_SUFFIX}",
            settings=settings,
        )
        CfnOutput(self, "DomainTarget", value=firewall.distribution.distribution_domain_name)
