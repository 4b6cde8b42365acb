"""Webhooks: off unless they are asked for; then a queue, a function, and what these may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from aws_cdk.assertions import Match

from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from tests.infra.conftest import Synthesis

TYPE = "AWS::Lambda::EventSourceMapping"


@pytest.fixture(scope="module")
def on(synthesise: Callable[[DeploymentSettings], Synthesis]) -> Synthesis:
    settings = DeploymentSettings(
        webhooks=True, egress_hosts=("*.example.com",), alarm_email="ops@example.com"
    )
    return synthesise(settings)


def test_there_are_none_unless_they_are_asked_for(synthesis: Synthesis) -> None:
    found = synthesis.service.to_json()["Resources"].values()
    assert not any("WEBHOOK" in str(each) or "Webhooks:" in str(each) for each in found)


def test_the_queue_is_mapped_to_its_function(on: Synthesis) -> None:
    on.service.has_resource_properties(
        TYPE, {"BatchSize": 8, "ScalingConfig": {"MaximumConcurrency": 5}}
    )
    on.service.has_resource_properties(
        "AWS::SQS::Queue",
        {"VisibilityTimeout": 420, "RedrivePolicy": Match.object_like({"maxReceiveCount": 5})},
    )


def test_the_functions_know_what_they_need(on: Synthesis) -> None:
    functions = on.service.find_resources("AWS::Lambda::Function").values()
    known = {
        str(each["Properties"]["Handler"]).split(".")[1]: each["Properties"]
        .get("Environment", {})
        .get("Variables", {})
        for each in functions
        if str(each["Properties"].get("Handler", "")).startswith("functions.")
    }
    named = {name for name, of in known.items() if "OJS_WEBHOOK_QUEUE" in of}
    assert named == {"admin", "stream", "sweep", "webhook"}
    hosts = {name for name, of in known.items() if of.get("OJS_EGRESS_HOSTS") == "*.example.com"}
    assert hosts == {"admin", "setup", "webhook"}


def test_operators_are_told(on: Synthesis) -> None:
    on.service.has_resource_properties(
        "AWS::Events::Rule",
        {"EventPattern": {"source": ["ojs"], "detail-type": ["webhook.subscription.disabled"]}},
    )
    on.service.has_resource_properties(
        "AWS::CloudWatch::Alarm",
        {"AlarmName": Match.string_like_regexp("webhook-failures"), "Threshold": 1},
    )


def test_hosts_need_something_that_is_sent() -> None:
    with pytest.raises(ValueError, match="requires push=true or webhooks=true"):
        DeploymentSettings(egress_hosts=("a.example",))
    with pytest.raises(ValueError, match="webhook requires webhooks=true"):
        DeploymentSettings(memory_mb_by_function={"webhook": 512})
