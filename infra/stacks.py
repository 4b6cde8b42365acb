"""The stacks: persistent data, the service that you can recreate, and an optional firewall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import (
    Aws,
    CfnOutput,
    CliCredentialsStackSynthesizer,
    DefaultStackSynthesizer,
    Environment,
    Stack,
)

from ojs_aws.cdk import Firewall, OpenJobSpec, Storage
from ojs_aws.cdk.parts.api import Api
from ojs_aws.cdk.parts.origin import EDGE_REGION

if TYPE_CHECKING:
    from aws_cdk import aws_lambda as lambda_
    from constructs import Construct

    from ojs_aws.cdk.settings import DeploymentSettings


class _Stack(Stack):
    """A stack of a deployment. Its name consists of the deployment's name and its part."""

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
            # Access to the account for assets and templates. On AWS through the bootstrap roles.
            # The emulator doesn't check all conditions of these roles, so there directly as the
            # owner.
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
    """Persistent data: table, payload bucket, bootstrap key, and encryption key."""

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
    """The service: functions, API, schedules, stream, event bus, alarms, dashboard, and logs."""

    def __init__(
        self,
        scope: Construct,
        storage: Storage,
        code: lambda_.Code,
        settings: DeploymentSettings,
        env: Environment | None,
    ) -> None:
        super().__init__(scope, "service", "HTTP API, functions, schedules, events", settings, env)
        # The ID adds nothing to the names of its resources: earlier versions had them directly in
        # the stack, and deployed resources keep their names.
        self.jobs = jobs = OpenJobSpec(
            self, "Default", settings=settings, storage=storage, code=code
        )
        self._output("ApiUrl", jobs.url)
        self._output("DomainTarget", jobs.api.domain_target if isinstance(jobs.api, Api) else None)
        realtime = jobs.realtime
        self._output("RealtimeUrl", realtime.url if realtime else None)
        self._output("RealtimeDomainTarget", realtime.domain_target if realtime else None)
        origin = jobs.origin_secret
        self._output("OriginSecretArn", origin.secret_arn if origin else None)
        self._output("EventBusName", jobs.bus.event_bus_name)
        self._output("StreamFailureQueueUrl", jobs.failures.queue_url)
        self._output("StreamFailureQueueArn", jobs.failures.queue_arn)
        self._output("PushFailureQueueUrl", jobs.queues.failures.queue_url if jobs.queues else None)
        self._output("ProveFunctionArn", jobs.prove.function_arn if jobs.prove else None)


class EdgeStack(_Stack):
    """The firewall in front of the API, in the only region where CloudFront accepts a web ACL."""

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
        api = service.jobs.api
        assert isinstance(api, Api), "a firewall requires an HTTP API"
        domain = f"{api.http.api_id}.execute-api.{service.region}.{Aws.URL_SUFFIX}"
        named = service.jobs.domain
        assert named is not None
        firewall = Firewall(
            self,
            "Firewall",
            api_domain=domain,
            domain=named,
            origin_secret=service.jobs.origin_secret,
            realtime=service.jobs.realtime,
            settings=settings,
        )
        self._output("DomainTarget", firewall.distribution.distribution_domain_name)
