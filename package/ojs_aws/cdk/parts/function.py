"""Lambda functions, each with a role that has the permissions of its table entry."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from aws_cdk import CfnResource, CustomResource, Duration, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from ojs_aws.cdk import server
from ojs_aws.cdk.functions import (
    API,
    AUTHORIZER,
    BRIDGE,
    CUSTOM_RESOURCE_S,
    DASHBOARD,
    DECLARE,
    DISPATCH,
    OUTCOMES,
    SEND,
    SETUP,
    SOCKET,
    WEBHOOK,
)
from ojs_aws.cdk.parts.acknowledgement import acknowledge, reported
from ojs_aws.cdk.parts.log_group import log_group
from ojs_aws.cdk.parts.network import Network, addresses
from ojs_aws.cdk.parts.storage import KEY_USE
from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ojs_aws.cdk.functions import Access, FunctionSpec
    from ojs_aws.cdk.parts.realtime import Realtime
    from ojs_aws.cdk.parts.storage import Storage

# Days of point-in-time recovery of the table: DynamoDB's default and maximum.
TABLE_RECOVERY_DAYS = 35


QUEUE_VARIABLES = {
    DISPATCH: "OJS_DISPATCH_QUEUE",
    SEND: "OJS_SEND_QUEUE",
    OUTCOMES: "OJS_OUTCOME_QUEUE",
}
FUNCTIONS_VARIABLE = "OJS_PUSH_FUNCTIONS"
HOSTS_VARIABLE = "OJS_EGRESS_HOSTS"


def name_of_outcomes(settings: DeploymentSettings) -> str:
    """Return the name of the queue of outcomes, and of the function that processes them.

    The name is fixed, because roles of functions in other stacks refer to it.
    """
    return f"{settings.service}-{OUTCOMES}"


@dataclass(frozen=True)
class Resources:
    """Resources that functions can be granted access to."""

    table: dynamodb.ITable
    bucket: s3.IBucket
    bus: events.IEventBus
    failures: sqs.IQueue
    secret: secretsmanager.ISecret | None = None
    origin: secretsmanager.ISecret | None = None
    """Secret header that functions require. None: requests can come from anywhere."""
    key: kms.IKey | None = None
    queues: Mapping[str, sqs.IQueue] = field(default_factory=dict)
    """Queues of push delivery by name. Empty with push=false."""
    webhooks: sqs.IQueue | None = None
    """Queue of webhooks. None with webhooks=false."""
    realtime: Realtime | None = None
    """WebSocket API. None with realtime=off."""


class Function(Construct):
    """A function, its log group, and its role. `function` is the Lambda function."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        spec: FunctionSpec,
        code: lambda_.Code,
        resources: Resources,
        network: Network | None = None,
        settings: DeploymentSettings,
    ) -> None:
        super().__init__(scope, name)
        logs = log_group(self, settings=settings, key=resources.key)
        # A separate role: CDK's default has a managed policy that can write to all log groups of
        # the account.
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            description=f"ojs {settings.stage}: function {spec.name}",
        )
        role.add_to_policy(
            iam.PolicyStatement(
                sid="Logs",
                actions=["logs:CreateLogStream", "logs:PutLogEvents"],
                resources=[logs.log_group_arn],
            )
        )
        region = Stack.of(self).region
        for statement in statements(spec.access, resources, settings, region=region):
            role.add_to_policy(statement)
        if network is not None:
            role.add_to_policy(addresses())
        self.function = lambda_.Function(
            self,
            "Function",
            function_name=name_of_outcomes(settings) if spec.name == OUTCOMES else None,
            description=spec.description,
            code=code,
            handler=spec.handler,
            runtime=lambda_.Runtime(f"python{settings.runtime_python}"),
            architecture=lambda_.Architecture.custom(settings.runtime_architecture),
            memory_size=settings.memory_of(spec.name),
            reserved_concurrent_executions=settings.reserved_concurrency.get(spec.name),
            timeout=Duration.seconds(spec.timeout_s),
            # Processing an outcome dispatches the next job. Without this setting, Lambda treats
            # that as an endless loop and stops it after 16 jobs.
            recursive_loop=lambda_.RecursiveLoop.ALLOW if spec.consumes else None,
            role=role,
            vpc=network.vpc if network else None,
            vpc_subnets=network.subnets if network else None,
            security_groups=network.security_groups if network else None,
            log_group=logs,
            logging_format=lambda_.LoggingFormat.JSON,
            application_log_level_v2=lambda_.ApplicationLogLevel[
                "WARN" if settings.log_level == "WARNING" else settings.log_level
            ],
            # Start, end, and report lines would cost as much as the call. Metrics contain the
            # duration, and failed calls are still logged.
            system_log_level_v2=lambda_.SystemLogLevel.WARN,
            # Disabled is Lambda's PassThrough: API Gateway and EventBridge pass no trace here.
            tracing=lambda_.Tracing.ACTIVE if settings.tracing else lambda_.Tracing.DISABLED,
            environment={
                "OJS_TABLE": resources.table.table_name,
                "OJS_VERSION": server.VERSION,
                "OJS_STRICT_QUEUES": str(settings.strict_queues).lower(),
                "OJS_MAX_QUEUES": str(settings.max_queues),
                "OJS_MAX_CRONS": str(settings.max_crons),
                "OJS_MIN_CRON_INTERVAL_S": str(settings.min_cron_interval_s),
                "OJS_SERVICE": settings.service,
                "POWERTOOLS_SERVICE_NAME": f"ojs-{spec.name}",
                "POWERTOOLS_LOG_LEVEL": settings.log_level,
                "POWERTOOLS_METRICS_NAMESPACE": settings.metrics_namespace,
                **environment(spec, resources, settings),
            },
        )
        if spec.access.payloads:
            bucket = reported(role, resources.bucket, resources.bucket.bucket_arn)
            acknowledge(
                role,
                f"AwsSolutions-IAM5[Resource::{bucket}/*]",
                "The functions name payload objects by job ID, so the role needs all objects of "
                "this bucket. It can't access the bucket's settings.",
            )
        if spec.access.connections and resources.realtime is not None:
            # The part before the first slash belongs to the API.
            before, slash, path = resources.realtime.connections.partition("/")
            arn = reported(role, resources.realtime, before)
            acknowledge(
                role,
                f"AwsSolutions-IAM5[Resource::{arn}{slash}{path}]",
                "The functions send messages to all connections of this WebSocket API. They can't "
                "read or close connections.",
            )
        for each in settings.push_functions if spec.access.targets else ():
            acknowledge(
                role,
                f"AwsSolutions-IAM5[Resource::{each}:*]",
                "A delivery can name an alias or version of the function.",
            )
        if settings.tracing or network is not None:
            acknowledge(
                role,
                "AwsSolutions-IAM5[Resource::*]",
                "Active tracing (xray:PutTraceSegments, xray:PutTelemetryRecords) and network "
                "interfaces of a function in a VPC require permissions that can't be limited to "
                "a resource.",
            )
        acknowledge(
            self.function,
            "AwsSolutions-L1",
            "The runtime is a setting, so deployments from all machines are identical. AWS "
            "supports it. A newer one is chosen together with the Python version that compiles "
            "the bundle's bytecode.",
        )


def environment(
    spec: FunctionSpec, resources: Resources, settings: DeploymentSettings
) -> dict[str, str]:
    """Return the environment variables that differ by function.

    Variables contain names of secrets, never their values.
    """
    access = spec.access
    found = _callers(spec, resources, settings)
    if access.payloads:
        found["OJS_BUCKET"] = resources.bucket.bucket_name
    if access.secret and resources.secret is not None:
        found["OJS_FIRST_KEY_SECRET"] = resources.secret.secret_arn
    if access.bus:
        found["OJS_BUS"] = resources.bus.event_bus_name
        if settings.bus_types:
            found["OJS_BUS_TYPES"] = ",".join(settings.bus_types)
    if spec.name == "stream" and not settings.results_in_events:
        found["OJS_RESULTS_IN_EVENTS"] = "false"
    if spec.name in ("admin", API):
        # An erasure reports how long copies are retained.
        kept = {
            "table_backups": TABLE_RECOVERY_DAYS,
            "nightly_backups": settings.backup_days,
            "bucket_versions": settings.payload_recovery_days,
        }
        found["OJS_RECOVERY_DAYS"] = json.dumps(kept)
    if spec.name in ("stream", "sweep"):
        found["OJS_METRICS"] = settings.metrics_level
        found["OJS_QUEUE_METRICS_MAX"] = str(settings.metered_queues)
        found["OJS_ALARM_OLDEST_JOB_S"] = str(settings.alarm_oldest_job_s)
        found["OJS_ALARM_CRON_LATE_S"] = str(settings.alarm_cron_late_s)
    if access.failures:
        found["OJS_FAILURE_QUEUE"] = resources.failures.queue_url
    if access.stream and settings.is_local:
        # The emulator has one shard per stream, and doesn't name it in its events.
        found["OJS_SHARD"] = "shardId-emulator"
    found |= _enqueuing(spec, settings) | _pushing(spec, resources, settings)
    return found | _connected(spec, resources, settings)


def _enqueuing(spec: FunctionSpec, settings: DeploymentSettings) -> dict[str, str]:
    # These functions enqueue jobs: requests, SQS bridges, and functions that fire cron jobs.
    asked = spec.routes and not spec.open
    if not (asked or spec.consumes or spec.name in {"sweep", BRIDGE}):
        return {}
    found: dict[str, str] = {"OJS_SCHEMA_MODE": settings.schema_mode}
    if not settings.middleware:
        return found
    return found | {
        "OJS_MIDDLEWARE": ",".join(settings.middleware),
        "OJS_MIDDLEWARE_TIMEOUT_MS": str(settings.middleware_timeout_ms),
    }


def _pushing(
    spec: FunctionSpec, resources: Resources, settings: DeploymentSettings
) -> dict[str, str]:
    queues = resources.queues
    found = {QUEUE_VARIABLES[name]: queues[name].queue_url for name in spec.access.queues if queues}
    if settings.push_functions and (spec.access.targets or spec.name == DECLARE):
        found[FUNCTIONS_VARIABLE] = ",".join(settings.push_functions)
    if resources.webhooks is not None and spec.access.webhooks:
        found["OJS_WEBHOOK_QUEUE"] = resources.webhooks.queue_url
    checks_hosts = spec.access.targets or spec.name in {DECLARE, SETUP, WEBHOOK}
    if settings.egress_hosts and checks_hosts:
        found[HOSTS_VARIABLE] = ",".join(settings.egress_hosts)
    if spec.name == SETUP:
        found["OJS_PUSH"] = str(settings.push).lower()
    if settings.is_local and spec.access.targets:
        # The emulator doesn't send outcomes of asynchronous invocations to destinations.
        found["OJS_DESTINATIONS"] = "false"
    return found


def _connected(
    spec: FunctionSpec, resources: Resources, settings: DeploymentSettings
) -> dict[str, str]:
    realtime = resources.realtime
    if realtime is None:
        return {}
    if spec.name == DASHBOARD:
        # Its pages receive events only.
        events = settings.realtime == "all"
        return {"OJS_REALTIME": "all", "OJS_SOCKET_URL": realtime.url} if events else {}
    if not spec.access.connections:
        return {}
    found = {"OJS_REALTIME": settings.realtime, "OJS_SOCKET_ENDPOINT": realtime.endpoint}
    if spec.name in ("admin", API):
        # Tickets and the manifest contain the address.
        found["OJS_SOCKET_URL"] = realtime.url
    return found


def _callers(
    spec: FunctionSpec, resources: Resources, settings: DeploymentSettings
) -> dict[str, str]:
    """Return the variables for authentication and for the check of the secret header."""
    if spec.name == DECLARE:
        # Only CloudFormation invokes it, and its internal requests have no key.
        return {"OJS_AUTHORIZER": "none"}
    if spec.name == SOCKET:
        # Connections require a caller. The ticket authorizer names it.
        return {"OJS_AUTHORIZER": settings.authorizer}
    until = settings.old_keys_until
    found = {} if until is None else {"OJS_OLD_KEYS_UNTIL": until.isoformat()}
    if not spec.routes:
        return found if spec.name == AUTHORIZER else {}
    found["OJS_AUTHORIZER"] = settings.authorizer
    if spec.access.origin and resources.origin is not None:
        found["OJS_ORIGIN_SECRET"] = resources.origin.secret_arn
    if spec.open:
        # Included in its responses. The function doesn't authenticate requests.
        return found
    found |= _tenants(settings)
    if spec.name == API:
        found["OJS_ENTRY"] = settings.entry
        found["OJS_AUTHORIZER_CACHE_S"] = str(settings.authorizer_cache_s)
    if settings.authorizer == "jwt":
        found["OJS_JWT_SCOPE_CLAIM"] = settings.jwt_scope_claim
        found["OJS_JWT_SCOPE_PREFIX"] = settings.jwt_scope_prefix
    if settings.authorizer == "iam":
        found["OJS_IAM_OPERATORS"] = ",".join(settings.iam_operators)
        found["OJS_AUTHORIZER_CACHE_S"] = str(settings.authorizer_cache_s)
    return found


def _tenants(settings: DeploymentSettings) -> dict[str, str]:
    """Return the variables that select tenants. None by default."""
    found = {"OJS_TENANT_FROM_META": "true"} if settings.tenant_from_meta else {}
    if settings.jwt_tenant_claim != "ojs_tenant":
        found["OJS_JWT_TENANT_CLAIM"] = settings.jwt_tenant_claim
    return found


def statements(
    access: Access, resources: Resources, settings: DeploymentSettings, *, region: str
) -> list[iam.PolicyStatement]:
    """Return the IAM statements that allow `access` to these resources only."""
    table, bucket, secret = resources.table, resources.bucket, resources.secret
    origin, realtime = resources.origin, resources.realtime
    allowed = [
        ("Table", "dynamodb", access.table, table.table_arn),
        *(
            (f"Index{index.capitalize()}", "dynamodb", actions, f"{table.table_arn}/index/{index}")
            for index, actions in access.indexes.items()
        ),
        ("Payloads", "s3", access.payloads, bucket.arn_for_objects("*")),
        ("Bucket", "s3", access.bucket, bucket.bucket_arn),
        ("Stream", "dynamodb", access.stream, table.table_stream_arn),
        ("Bus", "events", access.bus, resources.bus.event_bus_arn),
        ("Failures", "sqs", access.failures, resources.failures.queue_arn),
        ("Secret", "secretsmanager", access.secret, secret.secret_arn if secret else None),
        ("Origin", "secretsmanager", access.origin, origin.secret_arn if origin else None),
        (
            "Connections",
            "execute-api",
            access.connections,
            realtime.connections if realtime else None,
        ),
        (
            "Webhooks",
            "sqs",
            _as_checked(access.webhooks, settings),
            resources.webhooks.queue_arn if resources.webhooks else None,
        ),
        *(
            (
                queue.capitalize(),
                "sqs",
                _as_checked(actions, settings),
                resources.queues[queue].queue_arn,
            )
            for queue, actions in access.queues.items()
            if queue in resources.queues
        ),
    ]
    wanted = [row for row in allowed if row[2] and row[3]]
    found = [
        iam.PolicyStatement(
            sid=sid,
            actions=[f"{service}:{action}" for action in sorted(actions)],
            resources=[str(arn)],
            conditions={"ForAllValues:StringLike": {"dynamodb:LeadingKeys": list(access.items)}}
            if sid == "Table" and access.items
            else None,
        )
        for sid, service, actions, arn in wanted
    ]
    if settings.push_functions and access.targets:
        found.append(
            iam.PolicyStatement(
                sid="Targets",
                actions=[f"lambda:{action}" for action in sorted(access.targets)],
                # With any alias or version, because a delivery can name one.
                resources=[each + end for each in settings.push_functions for end in ("", ":*")],
            )
        )
    encrypted = {service for _, service, _, _ in wanted} - {"events", "execute-api"}
    if resources.key is not None and encrypted:
        through = [f"{service}.{region}.amazonaws.com" for service in sorted(encrypted)]
        found.append(
            iam.PolicyStatement(
                sid="Key",
                actions=[f"kms:{action}" for action in sorted(KEY_USE)],
                resources=[resources.key.key_arn],
                # Only through the services that store the data, not for other ciphertext.
                conditions={"StringEquals": {"kms:ViaService": through}},
            )
        )
    return found


def _as_checked(actions: frozenset[str], settings: DeploymentSettings) -> frozenset[str]:
    """The emulator requires SendMessageBatch, which AWS includes in SendMessage."""
    batch = settings.is_local and "SendMessage" in actions
    return actions | {"SendMessageBatch"} if batch else actions


def set_up_first(
    scope: Construct,
    function: lambda_.Function,
    others: Iterable[lambda_.Function],
    storage: Storage,
    settings: DeploymentSettings,
) -> CfnResource:
    """Check the table and create the bootstrap key before `others` are deployed.

    CloudFormation runs this step when its properties change: for each version, for each new schema
    version, and for another table. If the step fails, the deployment rolls back, and the other
    functions are unchanged. Returns the step.
    """
    resource = CustomResource(
        Construct(scope, "SetupStep"),
        "Resource",
        resource_type="Custom::OjsSetup",
        service_token=function.function_arn,
        service_timeout=Duration.seconds(CUSTOM_RESOURCE_S),
        properties={
            "Version": server.VERSION,
            "Schema": str(server.SCHEMA_VERSION),
            "Table": storage.table.table_name,
            **({"ReplaceTable": settings.replace_table} if settings.replace_table else {}),
            # Secret for the bootstrap key. The key is created if there is a secret.
            **({"FirstKeySecret": storage.secret.secret_arn} if storage.secret else {}),
        },
    )
    step = cast("CfnResource", resource.node.default_child)
    for other in others:
        cast("lambda_.CfnFunction", other.node.default_child).add_resource_dependency(step)
    return step
