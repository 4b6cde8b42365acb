"""Push delivery: its queues, their consumers, and the target functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from aws_cdk import ArnFormat, Duration, Stack, Token
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from ojs_aws.cdk.functions import DISPATCH, FUNCTIONS, OUTCOMES, QUEUES, SEND
from ojs_aws.cdk.parts.acknowledgement import acknowledge
from ojs_aws.cdk.parts.function import name_of_outcomes
from ojs_aws.cdk.parts.log_group import log_group
from ojs_aws.cdk.parts.storage import KEY_USE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aws_cdk import aws_kms as kms

    from ojs_aws.cdk.settings import DeploymentSettings

# Age in seconds at which Lambda discards an event of a busy function (the minimum). Leases include
# this time.
MAX_EVENT_AGE_S = 60
# Maximum age, for outcomes: none of them may be lost.
MOST_EVENT_AGE_S = 6 * 3_600

# Receives after which a message moves to the dead-letter queue.
RECEIVED = 5
# After 4 days the job of an outcome has run again. Wake-ups and sends are useless after one day.
_KEPT = {OUTCOMES: Duration.days(4)}
# A send takes as long as its endpoint.
_BATCH = {DISPATCH: 10, OUTCOMES: 10, SEND: 1}


class Queues(Construct):
    """The queues of push delivery by name, and their dead-letter queue."""

    def __init__(
        self, scope: Construct, name: str, *, key: kms.IKey | None, settings: DeploymentSettings
    ) -> None:
        super().__init__(scope, name)
        self._settings = settings
        consumers = {spec.consumes: spec for spec in FUNCTIONS if spec.consumes}
        self.failures = failure_queue(self, key, settings)
        self.by_name: Mapping[str, sqs.Queue] = {
            each: encrypted_queue(
                self,
                each.capitalize(),
                key,
                settings,
                # A fixed name: roles of functions in other stacks refer to it.
                queue_name=name_of_outcomes(settings) if each == OUTCOMES else None,
                visibility_timeout=Duration.seconds(6 * consumers[each].timeout_s),
                retention_period=_KEPT.get(each, Duration.days(1)),
                dead_letter_queue=sqs.DeadLetterQueue(
                    queue=self.failures, max_receive_count=RECEIVED
                ),
            )
            for each in QUEUES
        }

    def told_by(self, function: lambda_.Function) -> None:
        """Send outcomes that `function` could not process to the queue of outcomes.

        Lambda invokes the function with successful outcomes directly.
        """
        kind = lambda_.CfnEventInvokeConfig
        config = kind(
            self,
            "Untold",
            function_name=function.function_name,
            qualifier="$LATEST",
            # Retries after 1 minute and after 2 more minutes, within the maximum event age.
            maximum_retry_attempts=2,
            maximum_event_age_in_seconds=MOST_EVENT_AGE_S,
            destination_config=kind.DestinationConfigProperty(
                on_failure=kind.OnFailureProperty(destination=self.by_name[OUTCOMES].queue_arn)
            ),
        )
        # Lambda checks the role when this is set.
        config.node.add_dependency(function.role or function)

    def map(self, name: str, function: lambda_.Function) -> None:
        """Map a queue to a function."""
        map_queue(
            self,
            f"{name.capitalize()}Mapping",
            self.by_name[name],
            function,
            batch_size=_BATCH[name],
            concurrency=self._settings.push_concurrency,
        )


def map_queue(
    scope: Construct,
    name: str,
    queue: sqs.IQueue,
    function: lambda_.Function,
    *,
    batch_size: int,
    concurrency: int,
) -> None:
    """Map a queue to a function."""
    kind = lambda_.CfnEventSourceMapping
    # The L2 construct would add permissions to the function's role. The role has those that it
    # needs (ojs_aws.cdk.functions).
    mapping = kind(
        scope,
        name,
        event_source_arn=queue.queue_arn,
        function_name=function.function_name,
        # Without a batching window, because jobs wait for the messages.
        batch_size=batch_size,
        maximum_batching_window_in_seconds=0,
        function_response_types=["ReportBatchItemFailures"],
        # Many messages must not use up the account's concurrency.
        scaling_config=kind.ScalingConfigProperty(maximum_concurrency=concurrency),
    )
    # Lambda checks the role when it creates the mapping, so the policy must exist first.
    mapping.node.add_dependency(function.role or function)


def failure_queue(
    scope: Construct, key: kms.IKey | None, settings: DeploymentSettings
) -> sqs.Queue:
    """Create the queue for messages that could not be processed."""
    queue = encrypted_queue(scope, "Failures", key, settings, retention_period=Duration.days(14))
    acknowledge(
        queue,
        "AwsSolutions-SQS3",
        "This queue is a dead-letter queue for messages that could not be processed.",
    )
    return queue


def encrypted_queue(
    scope: Construct,
    name: str,
    key: kms.IKey | None,
    settings: DeploymentSettings,
    *,
    retention_period: Duration,
    queue_name: str | None = None,
    visibility_timeout: Duration | None = None,
    dead_letter_queue: sqs.DeadLetterQueue | None = None,
) -> sqs.Queue:
    """Create an encrypted queue."""
    return sqs.Queue(
        scope,
        name,
        queue_name=queue_name,
        encryption=sqs.QueueEncryption.KMS if key else sqs.QueueEncryption.SQS_MANAGED,
        encryption_master_key=key,
        # One call of KMS in an hour, in place of one in five minutes.
        data_key_reuse=Duration.hours(1) if key else None,
        # The local emulator speaks plain HTTP, and enforces this like AWS does.
        enforce_ssl=not settings.is_local,
        retention_period=retention_period,
        visibility_timeout=visibility_timeout,
        dead_letter_queue=dead_letter_queue,
    )


@dataclass(frozen=True)
class Target:
    """A target function of push delivery."""

    path: str
    """Path of the construct: of the function, its alias, or its version."""
    function: lambda_.IFunction
    """The function, without alias or version."""
    arn: str
    """ARN, including the alias or version."""
    qualifier: str
    role: iam.IRole


def target_of(scope: Construct, function: lambda_.IFunction) -> Target:
    """Return the target for a function, alias, or version. Raises ValueError if it can't be
    used.
    """
    itself: lambda_.IFunction = getattr(function, "lambda_", None) or function
    named = itself.node.path
    here, there = Stack.of(scope), itself.env
    for what, ours, theirs in (
        ("account", here.account, there.account),
        ("region", here.region, there.region),
    ):
        known = not (Token.is_unresolved(ours) or Token.is_unresolved(theirs))
        if known and ours != theirs:
            raise ValueError(
                f"function: {named} must be in the {what} of the deployment, {ours}, but is in "
                f"{theirs}"
            )
    if itself.role is None:
        raise ValueError(
            f"function: the role of {named} is unknown. Import the function with its role "
            "(Function.from_function_attributes)"
        )
    if itself.node.try_find_child("EventInvokeConfig") or function.node.try_find_child(
        "EventInvokeConfig"
    ):
        raise ValueError(
            f"function: {named} already has destinations, retries, or a maximum event age. A "
            "function can have one such configuration. Remove them, or use another function"
        )
    qualifier = "$LATEST"
    if itself is not function:
        alias = getattr(function, "alias_name", None)
        qualifier = alias or cast("lambda_.IVersion", function).version
    return Target(function.node.path, itself, function.function_arn, qualifier, itself.role)


def prepare(
    scope: Construct,
    target: Target,
    pushers: Iterable[lambda_.Function],
    *,
    settles: lambda_.Function,
    key: kms.IKey | None,
    settings: DeploymentSettings,
) -> Sequence[Construct]:
    """Allow `pushers` to invoke a target, and configure the destinations of its outcomes.

    Lambda sends successes to `settles`, and failures to the queue of outcomes. Returns the
    constructs that must exist before a job is pushed.
    """
    stack = Stack.of(scope)
    # By name, so that the function's stack doesn't depend on this one.
    outcomes = stack.format_arn(service="sqs", resource=name_of_outcomes(settings))
    settling = stack.format_arn(
        service="lambda",
        resource="function",
        resource_name=name_of_outcomes(settings),
        arn_format=ArnFormat.COLON_RESOURCE_NAME,
    )
    tells = [
        iam.PolicyStatement(actions=["sqs:SendMessage"], resources=[outcomes]),
        iam.PolicyStatement(actions=["lambda:InvokeFunction"], resources=[settling]),
    ]
    if key is not None:
        through = {"StringEquals": {"kms:ViaService": f"sqs.{stack.region}.amazonaws.com"}}
        tells.append(
            iam.PolicyStatement(
                actions=[f"kms:{action}" for action in sorted(KEY_USE)],
                resources=[key.key_arn],
                conditions=through,
            )
        )
    for statement in tells:
        target.role.add_to_principal_policy(statement)
    if isinstance(made := target.function.node.default_child, lambda_.CfnFunction):
        # Same setting as for the functions that push (parts/function.py). For an imported function
        # its owner must set it.
        made.recursive_loop = "Allow"
    # A separate policy: if another function replaces the target, the old one stays allowed until no
    # delivery refers to it.
    policy = iam.Policy(
        scope,
        "Invoke",
        statements=[iam.PolicyStatement(actions=["lambda:InvokeFunction"], resources=[target.arn])],
        roles=[cast("iam.IRole", pusher.role) for pusher in pushers],
    )
    kind = lambda_.CfnEventInvokeConfig
    config = kind(
        scope,
        "Told",
        function_name=target.function.function_name,
        qualifier=target.qualifier,
        # A failure is an outcome: the retry policy of the job decides about retries.
        maximum_retry_attempts=0,
        maximum_event_age_in_seconds=MAX_EVENT_AGE_S,
        destination_config=kind.DestinationConfigProperty(
            # Invokes a function, because most outcomes are successes, and a message would cost as
            # much.
            on_success=kind.OnSuccessProperty(destination=settling),
            on_failure=kind.OnFailureProperty(destination=outcomes),
        ),
    )
    # Lambda checks the function's role when this is set.
    config.node.add_dependency(target.role, settles)
    return [policy, config]


# Jobs of `ojs-aws prove`: one succeeds, and one crashes, so that both destinations are used.
_PROVE = """\
def handler(job, context):
    if job["args"] == ["fail"]:
        raise RuntimeError("fails as asked")
    return {"status": "completed", "job_id": job["id"], "result": job["args"]}
"""


def prove_function(scope: Construct, settings: DeploymentSettings) -> lambda_.Function:
    """Create the function that `ojs-aws prove` pushes jobs to."""
    scope = Construct(scope, "Prove")
    logs = log_group(scope, settings=settings)
    role = iam.Role(
        scope,
        "Role",
        assumed_by=cast("iam.IPrincipal", iam.ServicePrincipal("lambda.amazonaws.com")),
        description=f"ojs {settings.stage}: function prove",
    )
    logs.grant_write(role)
    return lambda_.Function(
        scope,
        "Function",
        description="Receives the pushed jobs of ojs-aws prove",
        code=lambda_.Code.from_inline(_PROVE),
        handler="index.handler",
        runtime=lambda_.Runtime(
            f"python{settings.runtime_python}",
            lambda_.RuntimeFamily.PYTHON,
            supports_inline_code=True,
        ),
        timeout=Duration.seconds(5),
        role=cast("iam.IRole", role),
        log_group=logs,
    )
