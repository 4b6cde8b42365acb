"""Log groups with a retention. A log group that its first writer creates has no retention."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from aws_cdk import ArnFormat, Aws, Fn, RemovalPolicy, Stack
from aws_cdk import aws_logs as logs

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms
    from constructs import Construct

    from ojs_aws.cdk.settings import DeploymentSettings


def log_group(
    scope: Construct,
    *,
    settings: DeploymentSettings,
    key: kms.IKey | None = None,
    prefix: str | None = None,
) -> logs.LogGroup:
    """Create a log group with the retention of the settings.

    Args:
        scope: Parent construct.
        settings: Settings of the deployment.
        key: Encryption key. Default: a key of CloudWatch.
        prefix: Prefix of the name, which ends with the ID of the stack. So a new stack can be
            deployed while the log group of a deleted stack with the same name exists.

    Returns:
        The log group.
    """
    group = logs.LogGroup(
        scope,
        "Logs",
        log_group_name=prefix and f"{prefix}-{Fn.select(2, Fn.split('/', Aws.STACK_ID))}",
        encryption_key=key,
        # A stack whose creation failed retains no log group.
        removal_policy=RemovalPolicy.DESTROY
        if settings.removal_policy == "destroy"
        else RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
    )
    # The L2 construct accepts an enumeration only.
    days = settings.log_retention_days
    cast("logs.CfnLogGroup", group.node.default_child).retention_in_days = days
    return group


def log_group_arn(scope: Construct, name: str) -> str:
    """Return the ARN of log groups with this name, without the `:*` that destinations reject."""
    return Stack.of(scope).format_arn(
        service="logs",
        resource="log-group",
        resource_name=name,
        arn_format=ArnFormat.COLON_RESOURCE_NAME,
    )
