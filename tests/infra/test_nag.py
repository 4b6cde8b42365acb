from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aws_cdk import App, Stack
from aws_cdk import aws_s3 as s3
from cdk_nag import AwsSolutionsChecks

from ojs_aws.cdk.settings import DeploymentSettings


def test_no_finding_without_a_written_reason(each_synthesis: Any) -> None:
    assert findings(each_synthesis) == []


def test_none_in_what_is_there_only_if_asked_for(
    synthesise: Callable[[DeploymentSettings], Any],
) -> None:
    asked = DeploymentSettings(alarm_email="ops@example.com", tracing=True)
    assert findings(synthesise(asked)) == []


def findings(synthesis: Any) -> list[str]:
    report = AwsSolutionsChecks(synthesis.app).validate_scope(synthesis.app)
    return [f"{found.rule_name}: {found.description}" for found in report.violations]


def test_the_checks_find_what_is_wrong() -> None:
    # Guards against a pack that silently checks nothing.
    app = App()
    s3.Bucket(Stack(app, "probe"), "Bucket")
    report = AwsSolutionsChecks(app).validate_scope(app)
    assert "AwsSolutions-S10" in {found.rule_name for found in report.violations}
