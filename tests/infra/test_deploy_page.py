"""docs/deploy.md, endpoint.md, upgrade.md and cost.md against the settings and the deployment."""

from __future__ import annotations

import re
from typing import Any

from infra import ROOT
from ojs_aws.cdk.parts import api
from ojs_aws.cdk.parts.origin import EDGE_REGION
from ojs_aws.cdk.settings import DeploymentSettings

PAGES = ("deploy", "endpoint", "upgrade", "cost")
PAGE = "".join((ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in PAGES)


def test_settings_and_outputs_it_names_are_there(
    synthesis: Any, with_waf: Any, with_jwt: Any
) -> None:
    named = set(re.findall(r"-c (\w+)=", PAGE)) - {"settings"}
    assert named <= set(DeploymentSettings.model_fields)
    there = {
        output
        for template in [*synthesis.templates, *with_waf.templates, *with_jwt.templates]
        for output in template.to_json().get("Outputs", {})
    }
    named = set(re.findall(r"OutputKey=='(\w+)'", PAGE)) | set(re.findall(r"output `(\w+)`", PAGE))
    assert {"ApiUrl", "FirstKeySecretArn", "DomainTarget"} <= named <= there


def test_stacks_that_pages_name_are_there(with_waf: Any) -> None:
    stacks = {stack.stack_name for stack in with_waf.app.node.children if stack.node.children}
    assert set(re.findall(r"\bojs-dev-\w+\b", PAGE)) == stacks
    for page in (ROOT / "docs").glob("*.md"):
        named = set(re.findall(r"stack `(ojs-dev-[\w-]+)`", page.read_text("utf-8")))
        assert named <= stacks, page


def test_outputs_that_pages_name_are_there(synthesis: Any, with_waf: Any, with_jwt: Any) -> None:
    there = {
        output
        for template in [*synthesis.templates, *with_waf.templates, *with_jwt.templates]
        for output in template.to_json().get("Outputs", {})
    }
    for page in (ROOT / "docs").glob("*.md"):
        named = set(re.findall(r"output\s+`(\w+)`", page.read_text("utf-8")))
        assert named <= there, page
    assert f"in {EDGE_REGION}" in PAGE


def test_throttles_are_as_pages_say() -> None:
    said = re.sub(r"\s+", " ", PAGE)
    limits = (api.OPEN_RATE_PER_S, api._OPEN_BURST)
    assert "throttle of {} requests per second and a burst of {}".format(*limits) in said


def test_alarms_are_counted_right(synthesis: Any) -> None:
    alarms = synthesis.resources("AWS::CloudWatch::Alarm").values()
    metrics = sum(
        len([each for each in alarm.get("Metrics", [1]) if each == 1 or "MetricStat" in each])
        for alarm in alarms
    )
    assert f"{len(alarms)} alarms on {metrics} metrics" in PAGE
