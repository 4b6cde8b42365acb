"""The stacks: what must survive, what can be deployed anew at any time, and a firewall if asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import (
    Aws,
    CfnOutput,
    CliCredentialsStackSynthesizer,
    DefaultStackSynthesizer,
    Duration,
    Environment,
    Stack,
)
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.constructs.api import Api
from infra.constructs.firewall import Firewall
from infra.constructs.function import Function, Resources, set_up_first
from infra.constructs.monitoring import Monitoring
from infra.constructs.storage import Storage
from infra.constructs.stream import failure_queue, map_stream
from infra.functions import SETUP, by_name, deployed

if TYPE_CHECKING:
    from infra.settings import DeploymentSettings


EDGE_REGION = "us-east-1"


class _Stack(Stack):
    """One of a deployment's stacks, which is named for the deployment and for its part in it."""

    def __init__(
        self,
        scope: Construct,
        part: str,
        description: str,
        settings: DeploymentSettings,
        env: Environment | None,
        *,
        termination_protection: bool | None = None,
        cross_region_references: bool | None = None,
    ) -> None:
        super().__init__(
            scope,
            f"{settings.service}-{part}",
            env=env,
            description=f"Open Job Spec backend: {description}",
            # How assets and template get to the account: on AWS through the roles that
            # bootstrapping made; at the local emulator, which checks policies but not every
            # condition in those roles', directly as the account's owner.
            synthesizer=CliCredentialsStackSynthesizer()
            if settings.is_local
            else DefaultStackSynthesizer(),
            termination_protection=termination_protection,
            cross_region_references=cross_region_references,
        )

    def _output(self, name: str, value: str | None) -> None:
        if value is not None:
            CfnOutput(self, name, value=value)


class DataStack(_Stack):
    """The state: table, payload bucket, first key, encryption key."""

    def __init__(
        self, scope: Construct, settings: DeploymentSettings, env: Environment | None
    ) -> None:
        protection = settings.deletion_protection
        what = "table, payload bucket, keys"
        super().__init__(scope, "data", what, settings, env, termination_protection=protection)
        self.storage = storage = Storage(self, "Storage", settings=settings)
        self._output("TableName", storage.table.table_name)
        self._output("PayloadBucketName", storage.bucket.bucket_name)
        secret, key = storage.secret, storage.key
        self._output("FirstKeySecretArn", secret.secret_arn if secret else None)
        self._output("EncryptionKeyArn", key.key_arn if key else None)


class ServiceStack(_Stack):
    """The service: functions, HTTP API, schedules, stream, event bus, alarms, dashboard, logs."""

    def __init__(
        self,
        scope: Construct,
        storage: Storage,
        code: lambda_.Code,
        settings: DeploymentSettings,
        env: Environment | None,
    ) -> None:
        super().__init__(scope, "service", "HTTP API, functions, schedules, events", settings, env)
        failures = failure_queue(self, storage.key, settings)
        bus = events.EventBus(
            Construct(self, "Events"),
            "Bus",
            # A name that can be known beforehand: rules are made elsewhere, and name it.
            event_bus_name=settings.service,
            description=f"Open Job Spec events of {settings.service}",
        )
        resources = Resources(
            table=storage.table,
            bucket=storage.bucket,
            bus=bus,
            failures=failures,
            secret=storage.secret,
            key=storage.key,
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
        by_names = {spec.name: function for spec, function in functions.items()}
        others = [function for name, function in by_names.items() if name != SETUP]
        set_up_first(self, by_names[SETUP], others, storage.secret)
        self.api = Api(self, "Api", functions=functions, key=storage.key, settings=settings)
        _call_every_minute(self, by_names["sweep"], by_name("sweep").description)
        map_stream(self, storage.table, by_names["stream"], failures, settings)
        Monitoring(
            self,
            "Monitoring",
            api=self.api.http,
            access_log=self.api.access_log,
            table=storage.table,
            functions=by_names,
            failures=failures,
            settings=settings,
        )
        self._output("ApiUrl", self.api.url)
        self._output("DomainTarget", self.api.domain_target)
        self._output("EventBusName", bus.event_bus_name)
        self._output("StreamFailureQueueUrl", failures.queue_url)
        self._output("StreamFailureQueueArn", failures.queue_arn)


class EdgeStack(_Stack):
    """The firewall in front of the API, in the one region from which CloudFront takes a web ACL."""

    def __init__(
        self, scope: Construct, service: ServiceStack, settings: DeploymentSettings
    ) -> None:
        super().__init__(
            scope,
            "edge",
            "CloudFront distribution and web ACL",
            settings,
            Environment(account=service.account, region=EDGE_REGION),
            cross_region_references=service.region != EDGE_REGION,
        )
        domain = f"{service.api.http.api_id}.execute-api.{service.region}.{Aws.URL_SUFFIX}"
        firewall = Firewall(self, "Firewall", api_domain=domain, settings=settings)
        self._output("DomainTarget", firewall.distribution.distribution_domain_name)


def _call_every_minute(scope: Construct, function: lambda_.Function, description: str) -> None:
    """Have EventBridge call the sweep.

    A run that failed is not repeated: the next one, a minute later, takes up what it left. Neither
    EventBridge nor Lambda's own queue for asynchronous calls may pile up old runs.
    """
    minute = Duration.minutes(1)
    function.configure_async_invoke(retry_attempts=0, max_event_age=minute)
    events.Rule(
        Construct(scope, "SweepSchedule"),
        "Rule",
        description=description,
        schedule=events.Schedule.rate(minute),
        targets=[targets.LambdaFunction(function, retry_attempts=0, max_event_age=minute)],
    )
