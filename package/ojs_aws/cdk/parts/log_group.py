"""Log groups. Made here: one that the first writer makes would keep its logs for ever."""

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
    """A log group in `scope` that keeps its lines for as many days as the settings say.

    They are encrypted with `key`, or with one of CloudWatch's. With a `prefix` its name is that and
    the id of the stack: a stack of the same name can be deployed while the group of an earlier one
    is there.
    """
    group = logs.LogGroup(
        scope,
        "Logs",
        log_group_name=prefix and f"{prefix}-{Fn.select(2, Fn.split('/', Aws.STACK_ID))}",
        encryption_key=key,
        # A stack whose creation failed leaves none.
        removal_policy=RemovalPolicy.DESTROY
        if settings.removal_policy == "destroy"
        else RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
    )
    # The construct itself takes no number.
    days = settings.log_retention_days
    cast("logs.CfnLogGroup", group.node.default_child).retention_in_days = days
    return group


def log_group_arn(scope: Construct, name: str) -> str:
    """The ARN of log groups of this name. A group's own ends with `:*`, which is no destination."""
    return Stack.of(scope).format_arn(
        service="logs",
        resource="log-group",
        resource_name=name,
        arn_format=ArnFormat.COLON_RESOURCE_NAME,
    )
