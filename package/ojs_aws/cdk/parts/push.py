"""Push delivery: its queues, what reads them, and the functions that jobs are pushed to."""

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
from ojs_aws.cdk.parts.storage import KEY_USE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aws_cdk import aws_kms as kms

    from ojs_aws.cdk.settings import DeploymentSettings

# Lambda keeps an event so long (s) that its function is too busy for, at least; jobs' leases count
# on no more.
MAX_EVENT_AGE_S = 60
# The longest that can be set: for outcomes, of which none may be lost.
MOST_EVENT_AGE_S = 6 * 3_600

# Seen so often without success, a message is put aside.
_RECEIVED = 5
# An outcome that nobody could settle for days is of a job that has long been done again; wake-ups
# and sends are of no use after a day.
_KEPT = {OUTCOMES: Duration.days(4)}
# A send takes as long as its endpoint does.
_BATCH = {DISPATCH: 10, OUTCOMES: 10, SEND: 1}


class Queues(Construct):
    """The queues of push delivery by name, and what takes the messages that nobody could handle."""

    def __init__(
        self, scope: Construct, name: str, *, key: kms.IKey | None, settings: DeploymentSettings
    ) -> None:
        super().__init__(scope, name)
        self._settings, self._key = settings, key
        consumers = {spec.consumes: spec for spec in FUNCTIONS if spec.consumes}
        self.failures = self._queue("Failures", retention_period=Duration.days(14))
        acknowledge(
            self.failures,
            "AwsSolutions-SQS3",
            "This queue is a dead-letter queue: it takes what could not be handled.",
        )
        self.by_name: Mapping[str, sqs.Queue] = {
            each: self._queue(
                each.capitalize(),
                # Known beforehand: roles of functions in other stacks name it.
                queue_name=name_of_outcomes(settings) if each == OUTCOMES else None,
                visibility_timeout=Duration.seconds(6 * consumers[each].timeout_s),
                retention_period=_KEPT.get(each, Duration.days(1)),
                dead_letter_queue=sqs.DeadLetterQueue(
                    queue=self.failures, max_receive_count=_RECEIVED
                ),
            )
            for each in QUEUES
        }

    def _queue(
        self,
        name: str,
        *,
        retention_period: Duration,
        queue_name: str | None = None,
        visibility_timeout: Duration | None = None,
        dead_letter_queue: sqs.DeadLetterQueue | None = None,
    ) -> sqs.Queue:
        return sqs.Queue(
            self,
            name,
            queue_name=queue_name,
            encryption=sqs.QueueEncryption.KMS if self._key else sqs.QueueEncryption.SQS_MANAGED,
            encryption_master_key=self._key,
            # One call of KMS in an hour, in place of one in five minutes.
            data_key_reuse=Duration.hours(1) if self._key else None,
            # The local emulator speaks plain HTTP, and enforces this like AWS does.
            enforce_ssl=not self._settings.is_local,
            retention_period=retention_period,
            visibility_timeout=visibility_timeout,
            dead_letter_queue=dead_letter_queue,
        )

    def told_by(self, function: lambda_.Function) -> None:
        """Have what `function` could not settle, when Lambda called it with an outcome itself, come
        again from the queue of outcomes.
        """
        kind = lambda_.CfnEventInvokeConfig
        config = kind(
            self,
            "Untold",
            function_name=function.function_name,
            qualifier="$LATEST",
            # After one minute, and after two more. As long as Lambda keeps an event at most.
            maximum_retry_attempts=2,
            maximum_event_age_in_seconds=MOST_EVENT_AGE_S,
            destination_config=kind.DestinationConfigProperty(
                on_failure=kind.OnFailureProperty(destination=self.by_name[OUTCOMES].queue_arn)
            ),
        )
        # Lambda looks at the role when this is set.
        config.node.add_dependency(function.role or function)

    def map(self, name: str, function: lambda_.Function) -> None:
        """Have Lambda read a queue and call the function with its messages."""
        kind = lambda_.CfnEventSourceMapping
        # Not through the construct for it, which would widen the function's role: that has what it
        # needs, by name (ojs_aws.cdk.functions).
        mapping = kind(
            self,
            f"{name.capitalize()}Mapping",
            event_source_arn=self.by_name[name].queue_arn,
            function_name=function.function_name,
            # Whatever is there, at once: a job waits for it.
            batch_size=_BATCH[name],
            maximum_batching_window_in_seconds=0,
            function_response_types=["ReportBatchItemFailures"],
            # A heap of messages must not take the functions of the whole account.
            scaling_config=kind.ScalingConfigProperty(
                maximum_concurrency=self._settings.push_concurrency
            ),
        )
        # Lambda looks at the role when the mapping is made; the policy must be on it by then.
        mapping.node.add_dependency(function.role or function)


@dataclass(frozen=True)
class Target:
    """A function that jobs are pushed to, as a delivery names it."""

    path: str
    """Of the construct: of the function, its alias or its version."""
    function: lambda_.IFunction
    """Itself, without alias or version."""
    arn: str
    """With the alias or version, if there is one."""
    qualifier: str
    role: iam.IRole


def target_of(scope: Construct, function: lambda_.IFunction) -> Target:
    """The function, or the one behind an alias or a version. Raises ValueError for one that jobs
    cannot be pushed to from here.
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
            raise ValueError(f"function: {named} is in another {what}: {theirs}, not {ours}")
    if itself.role is None:
        raise ValueError(
            f"function: the role of {named} is not known; import it with its role "
            "(Function.from_function_attributes)"
        )
    if itself.node.try_find_child("EventInvokeConfig") or function.node.try_find_child(
        "EventInvokeConfig"
    ):
        raise ValueError(
            f"function: {named} has destinations, retries or an event age of its own already, and "
            "a function has one such configuration: take another function, or leave these to this"
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
    """Let `pushers` invoke a target, and have Lambda tell what became of each event: `settles` of
    a success, and the queue of outcomes of a failure. Returns what must be there before a job is
    pushed.
    """
    stack = Stack.of(scope)
    # By name, so that a stack which has the function does not depend on this one.
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
        # As the functions that push have it (parts/function.py); of one that was imported its owner
        # must.
        made.recursive_loop = "Allow"
    # A policy of its own: when another function takes its place, this one stays allowed until
    # nothing names it any more.
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
        # A failure is an outcome: whether the job is tried again is said by its own rules.
        maximum_retry_attempts=0,
        maximum_event_age_in_seconds=MAX_EVENT_AGE_S,
        destination_config=kind.DestinationConfigProperty(
            # Most end so, and a message would cost as much as the invocation.
            on_success=kind.OnSuccessProperty(destination=settling),
            on_failure=kind.OnFailureProperty(destination=outcomes),
        ),
    )
    # Lambda looks at the function's role when this is set.
    config.node.add_dependency(target.role, settles)
    return [policy, config]
