"""The template that `make template` writes: its bytes, its bounds, and what a deployer chooses."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from infra import template
from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aws_cdk import aws_lambda as lambda_

# It synthesizes three deployments.
pytestmark = pytest.mark.exhaustive

MOST_BYTES, MOST_RESOURCES = 450_000, 250
ALL = DeploymentSettings(
    push=True, realtime="all", encryption="own", backup_days=30, metrics="queues", tracing=True
)


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_it_has_the_same_bytes_when_it_is_built_again(
    code: Callable[[], lambda_.Code], tmp_path: Path
) -> None:
    first, second = tmp_path / "a", tmp_path / "b" / "longer"
    second.mkdir(parents=True)
    for name in ("left.zip", "template.json"):
        (second / name).write_text("of an earlier build")
    for folder in (first, second):
        template.write(DeploymentSettings(), code(), folder)
    assert hashes(first) == hashes(second)
    assert sorted(path.suffix for path in first.iterdir()) == [".json", ".zip"]


@pytest.fixture(scope="module", params=[DeploymentSettings(), ALL], ids=["default", "all"])
def made(
    request: pytest.FixtureRequest,
    code: Callable[[], lambda_.Code],
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    folder = tmp_path_factory.mktemp("template")
    text = template.write(request.param, code(), folder).read_text("utf-8")
    found = json.loads(text)
    assert len(text.encode()) <= MOST_BYTES
    assert len(found["Resources"]) <= MOST_RESOURCES
    return found


def test_it_needs_no_account_no_cdk_and_no_repository(made: Any) -> None:
    text = json.dumps(made)
    assert set(made) == {"Description", "Parameters", "Conditions", "Resources", "Outputs"}
    assert not re.search(r"\b\d{12}\b|cdk-|BootstrapVersion|[a-z]{2}-[a-z]+-\d", text)
    assert set(made["Outputs"]) == {
        "ApiUrl", "TableName", "FirstKeySecretArn", "DeclareFunctionArn", "SetupFunctionArn",
    }  # fmt: skip


def test_what_it_asks_for_is_used(made: Any) -> None:
    """Each parameter has the default of its setting, and changes something."""
    defaults = DeploymentSettings()
    asked = dict(template.PARAMETERS.values())
    assert set(made["Parameters"]) == {*asked, "AssetBucket", "AssetPrefix"}
    text = json.dumps([made["Resources"], made["Conditions"]])
    for setting, (name, accepted) in template.PARAMETERS.items():
        pattern = accepted.get("allowed_pattern", "^.*$")
        assert re.match(pattern, str(getattr(defaults, setting)))
        assert not accepted.get("allowed_pattern") or not re.match(pattern, "No such Value@")
        assert made["Parameters"][name]["Default"] == str(getattr(defaults, setting))
        assert f'{{"Ref": "{name}"}}' in text
    functions = [each for each in made["Resources"].values() if each["Type"][-8:] == "Function"]
    for each in functions:
        assert each["Properties"]["MemorySize"] == {"Ref": "MemoryMb"}
        assert set(each["Properties"]["Code"]) == {"S3Bucket", "S3Key"}
    (stage,) = (
        each["Properties"]
        for each in made["Resources"].values()
        if each["Type"] == "AWS::ApiGatewayV2::Stage" and "RouteSettings" in each["Properties"]
    )
    # Routes without a key have the same throttle, whatever the others have.
    open_ = {each["ThrottlingRateLimit"] for each in stage["RouteSettings"].values()}
    assert open_ == {made["Parameters"]["ThrottleRate"]["MinValue"]}


def test_alarms_reach_nobody_where_none_is_named(made: Any) -> None:
    resources = made["Resources"].values()
    (email,) = (each for each in resources if each["Type"] == "AWS::SNS::Subscription")
    assert email["Condition"] == "HasEmail"
    for rule in (each for each in resources if each["Type"] == "AWS::Events::Rule"):
        # A target without an ARN would fail the deployment.
        for target in rule["Properties"]["Targets"]:
            assert "Fn::If" in target or "Fn::If" not in target["Arn"]


def test_settings_that_it_cannot_have_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "out")]
    for chosen, told in (
        ("stage=Prod", "stage"),
        ("stages=prod", "unknown setting in the context"),
        ("settings=missing.toml", "can't read the settings in missing.toml"),
    ):
        assert template.main([*out, "-c", chosen]) == 1
        assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_is_left_as_it_is(
    code: Callable[[], lambda_.Code], tmp_path: Path
) -> None:
    (tmp_path / "mine.zip").write_text("mine")
    with pytest.raises(ValueError, match=r"--out: .* must be empty, or have an earlier template"):
        template.write(DeploymentSettings(), code(), tmp_path)
    assert (tmp_path / "mine.zip").read_text() == "mine"


def test_a_firewall_needs_more_than_one_stack(
    code: Callable[[], lambda_.Code], tmp_path: Path
) -> None:
    arn = "arn:aws:acm:us-east-1:123456789012:certificate/abc"
    settings = DeploymentSettings(waf=True, domain_name="jobs.example.com", certificate_arn=arn)
    with pytest.raises(ValueError, match="waf: requires a stack in us-east-1"):
        template.write(settings, code(), tmp_path)
