"""The example of a rule on the bus: what it would make. tests/e2e has it at work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aws_cdk import App, assertions
from cdk_nag import AwsSolutionsChecks

from examples.alert.app import DeadLetterAlert
from infra import ROOT
from ojs.domain.events.types import EventType
from ojs.projections.outlets import SOURCE
from ojs.projections.project import ALWAYS
from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

README = (ROOT / "examples" / "alert" / "README.md").read_text("utf-8")


def made(**options: Any) -> assertions.Template:
    return assertions.Template.from_stack(DeadLetterAlert(App(), "alert", bus="ojs-dev", **options))


def one(template: assertions.Template, kind: str) -> Mapping[str, Any]:
    (found,) = template.find_resources(kind).values()
    properties: Mapping[str, Any] = found["Properties"]
    return properties


def test_the_rule_hears_what_the_backend_sends() -> None:
    rule = one(made(), "AWS::Events::Rule")
    assert rule["EventBusName"] == DeploymentSettings().service
    assert rule["EventPattern"] == {
        "source": [SOURCE],
        "detail-type": [EventType.DEAD_LETTER_ADDED.value],
    }
    assert any(
        EventType.DEAD_LETTER_ADDED.value.startswith(always.rstrip("*")) for always in ALWAYS
    )


def test_the_rule_may_publish_to_the_topic_and_nobody_else() -> None:
    template = made()
    (target,) = one(template, "AWS::Events::Rule")["Targets"]
    allowed = [
        statement
        for statement in one(template, "AWS::SNS::TopicPolicy")["PolicyDocument"]["Statement"]
        if statement["Effect"] == "Allow"
    ]
    assert [statement["Principal"] for statement in allowed] == [
        {"Service": "events.amazonaws.com"}
    ]
    assert allowed[0]["Resource"] == target["Arn"]


def test_only_a_queue_and_by_mail() -> None:
    template = made(queue="billing", email="ops@example.com")
    pattern = one(template, "AWS::Events::Rule")["EventPattern"]
    assert pattern["detail"] == {"data": {"queue": ["billing"]}}
    subscription = one(template, "AWS::SNS::Subscription")
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", "ops@example.com")
    template.resource_count_is("AWS::SNS::Subscription", 1)
    made().resource_count_is("AWS::SNS::Subscription", 0)


@pytest.mark.parametrize("options", [{}, {"email": "ops@example.com"}])
def test_no_finding(options: dict[str, str]) -> None:
    app = App()
    DeadLetterAlert(app, "alert", bus="ojs-dev", **options)
    report = AwsSolutionsChecks(app).validate_scope(app)
    assert [f"{found.rule_name}: {found.description}" for found in report.violations] == []


@pytest.mark.whole
def test_the_command_of_the_readme_makes_it(tmp_path: Path) -> None:
    assert 'examples/alert/app.py" \\\n  -c bus=ojs-dev -c email=ops@example.com' in README
    context = {"bus": "ojs-dev", "email": "ops@example.com"}
    # What the CDK command line does with `--app` and `-c`.
    environment = os.environ | {
        "CDK_OUTDIR": str(tmp_path),
        "CDK_CONTEXT_JSON": json.dumps(context),
        "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20",
    }
    command = [sys.executable, "examples/alert/app.py"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    template = json.loads((tmp_path / "ojs-dev-alert.template.json").read_text())
    kinds = sorted(resource["Type"] for resource in template["Resources"].values())
    assert kinds == [
        "AWS::Events::Rule",
        "AWS::SNS::Subscription",
        "AWS::SNS::Topic",
        "AWS::SNS::TopicPolicy",
    ]
