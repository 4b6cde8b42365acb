"""Log groups. Made here: one that the first writer makes would keep its logs for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import RemovalPolicy
from aws_cdk import aws_logs as logs

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms
    from constructs import Construct

    from infra.settings import DeploymentSettings

# CDK names what CloudWatch counts.
_RETENTION = {
    1: logs.RetentionDays.ONE_DAY,
    3: logs.RetentionDays.THREE_DAYS,
    5: logs.RetentionDays.FIVE_DAYS,
    7: logs.RetentionDays.ONE_WEEK,
    14: logs.RetentionDays.TWO_WEEKS,
    30: logs.RetentionDays.ONE_MONTH,
    60: logs.RetentionDays.TWO_MONTHS,
    90: logs.RetentionDays.THREE_MONTHS,
    180: logs.RetentionDays.SIX_MONTHS,
    365: logs.RetentionDays.ONE_YEAR,
    731: logs.RetentionDays.TWO_YEARS,
    1827: logs.RetentionDays.FIVE_YEARS,
    3653: logs.RetentionDays.TEN_YEARS,
}


def log_group(
    scope: Construct,
    *,
    settings: DeploymentSettings,
    key: kms.IKey | None = None,
    log_group_name: str | None = None,
) -> logs.LogGroup:
    """A log group in `scope` that keeps its lines for as many days as the settings say.

    They are encrypted with `key`, or with one of CloudWatch's.
    """
    return logs.LogGroup(
        scope,
        "Logs",
        log_group_name=log_group_name,
        encryption_key=key,
        retention=_RETENTION[settings.log_retention_days],
        # Logs end by their retention; a stack that is gone leaves no nameless groups behind.
        removal_policy=RemovalPolicy.DESTROY,
    )
