"""Writes a CloudFormation template of one stack, and the code of its functions: `make template`.

A deployment of it needs neither CDK nor this repository. What differs between deployments is a
parameter. All other settings are chosen here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from aws_cdk import (
    App,
    ArnFormat,
    Aws,
    CfnCondition,
    CfnOutput,
    CfnParameter,
    CliCredentialsStackSynthesizer,
    Fn,
    Stack,
    Tags,
)
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns

from infra import ROOT
from infra.context import from_context
from ojs_aws.cdk import OpenJobSpec, Storage, bundling
from ojs_aws.cdk.parts.acknowledgement import acknowledge
from ojs_aws.cdk.parts.api import OPEN_RATE_PER_S
from ojs_aws.cdk.settings import LOG_RETENTION_DAYS, DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TEMPLATE = "template.json"
# Settings that are parameters of the template: name of the parameter, and its accepted values.
PARAMETERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "stage": ("Stage", {"allowed_pattern": "^[a-z][a-z0-9-]{0,19}$"}),
    "alarm_email": ("AlarmEmail", {"allowed_pattern": r"^([^@\s]+@[^@\s]+)?$"}),
    "alarm_topic_arn": ("AlarmTopicArn", {"allowed_pattern": r"^(arn:[a-z-]+:sns:\S+)?$"}),
    "log_retention_days": ("LogRetentionDays", {"allowed_values": [*map(str, LOG_RETENTION_DAYS)]}),
    "memory_mb": ("MemoryMb", {"min_value": 256, "max_value": 10_240}),
    # The throttle of routes without a key is not a parameter.
    "throttle_rate_per_s": ("ThrottleRate", {"min_value": OPEN_RATE_PER_S}),
}


class TemplateStack(Stack):
    """A deployment as one stack without account, region, or resources of CDK."""

    def __init__(self, scope: App, settings: DeploymentSettings, code: lambda_.Code) -> None:
        """Add the stack to `scope`. Raises ValueError for settings that need a second stack."""
        if settings.waf:
            raise ValueError("waf: requires a stack in us-east-1. Deploy it with CDK")
        super().__init__(
            scope,
            "template",
            description="Open Job Spec backend",
            synthesizer=CliCredentialsStackSynthesizer(
                file_assets_bucket_name="${AssetBucket}", bucket_prefix="${AssetPrefix}"
            ),
        )
        CfnParameter(self, "AssetBucket", description="Bucket with the code, in this region")
        prefix = "Prefix of its keys, with a slash at the end"
        CfnParameter(self, "AssetPrefix", default="", description=prefix)
        unused = {"throttle_rate_per_s"} if settings.entry == "function_url" else set()
        given = {name: self._parameter(settings, name) for name in PARAMETERS if name not in unused}
        has_email = self._is_given("Email", given["alarm_email"])
        has_topic = self._is_given("Topic", given["alarm_topic_arn"])
        topic = Fn.condition_if(has_topic.logical_id, given["alarm_topic_arn"], Aws.NO_VALUE)
        settings = settings.model_copy(update={**given, "alarm_topic_arn": topic.to_string()})
        # The IDs of the two stacks that CDK deploys, so resources have the same IDs.
        storage = Storage(self, "Storage", settings=settings)
        jobs = OpenJobSpec(self, "Default", settings=settings, storage=storage, code=code)
        empty = "The condition HasTopic covers an empty AlarmTopicArn, which is not evaluated here."
        acknowledge(self, "CloudFormation-Validate::F3033", empty)
        for each in self.node.find_all():
            if isinstance(each, sns.CfnSubscription):
                each.cfn_options.condition = has_email
        setup, declare = jobs.functions["setup"], jobs.declared.function
        for name, function in (("setup", setup), ("declare", declare)):
            # Fixed names, which Terraform knows before it updates the stack.
            made = cast("lambda_.CfnFunction", function.node.default_child)
            made.function_name = f"{settings.service}-{name}"
        if storage.secret is not None:
            keys = self.format_arn(
                service="secretsmanager",
                resource="secret",
                resource_name=f"{settings.service}/keys/*",
                arn_format=ArnFormat.COLON_RESOURCE_NAME,
            )
            actions = ["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"]
            setup.add_to_role_policy(iam.PolicyStatement(actions=actions, resources=[keys]))
            CfnOutput(self, "FirstKeySecretArn", value=storage.secret.secret_arn)
        CfnOutput(self, "ApiUrl", value=jobs.url)
        CfnOutput(self, "TableName", value=storage.table.table_name)
        CfnOutput(self, "DeclareFunctionArn", value=declare.function_arn)
        CfnOutput(self, "SetupFunctionArn", value=setup.function_arn)
        Tags.of(self).add("service", "ojs")
        Tags.of(self).add("stage", settings.stage)

    def _is_given(self, name: str, value: object) -> CfnCondition:
        empty = Fn.condition_equals(value, "")
        return CfnCondition(self, f"Has{name}", expression=Fn.condition_not(empty))

    def _parameter(self, settings: DeploymentSettings, name: str) -> str | float:
        """Create the parameter of a setting, with the chosen value as its default."""
        called, accepted = PARAMETERS[name]
        default, field = getattr(settings, name), type(settings).model_fields[name]
        number = isinstance(default, int)
        made = CfnParameter(
            self,
            called,
            type="Number" if number else "String",
            default=str(default),
            description=field.description,
            **accepted,
        )
        return made.value_as_number if number else made.value_as_string


def write(settings: DeploymentSettings, code: lambda_.Code, folder: Path) -> Path:
    """Write the template and its files into `folder`. Returns the template.

    Raises ValueError if the folder has something else than an earlier template.
    """
    template = folder / TEMPLATE
    if folder.exists() and not template.exists() and any(folder.iterdir()):
        raise ValueError(f"--out: {folder} must be empty, or have an earlier {TEMPLATE}")
    app = App(analytics_reporting=False)
    stack = TemplateStack(app, settings, code)
    assembly = Path(app.synth().directory)
    made: dict[str, Any] = json.loads((assembly / f"{stack.artifact_id}.template.json").read_text())
    for resource in made["Resources"].values():
        # Accepted findings of the review of the construct.
        resource.pop("Metadata", None)
        if resource["Type"] == "AWS::Events::Rule":
            resource["Properties"]["Targets"] = [*map(_whole, resource["Properties"]["Targets"])]
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.glob("*.zip"):
        earlier.unlink()
    listed = json.loads((assembly / f"{stack.artifact_id}.assets.json").read_text())["files"]
    for name, file in listed.items():
        source = assembly / file["source"]["path"]
        if file["source"]["packaging"] == "zip":
            _pack(source, folder / f"{name}.zip")
    template.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    shutil.rmtree(assembly)
    return template


def _whole(target: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a target of a rule that is left out as a whole if its ARN is."""
    match target["Arn"]:
        case {"Fn::If": [condition, arn, nothing]}:
            return {"Fn::If": [condition, {**target, "Arn": arn}, nothing]}
    return target


def _pack(folder: Path, target: Path) -> None:
    """Write a zip whose bytes depend on names and contents only."""
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix())
                entry.external_attr = 0o644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the template. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m infra.template", description=__doc__)
    parser.add_argument("--settings", help="file of settings: prod.toml, or .json")
    parser.add_argument("-c", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "template", help="folder of the template"
    )
    options = parser.parse_args(arguments)
    chosen = dict(each.partition("=")[::2] for each in options.c)
    if options.settings:
        chosen["settings"] = str(Path(options.settings).resolve())
    try:
        settings = from_context(chosen)
        template = write(settings, bundling.code(settings), options.out)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(template)
    return 0


if __name__ == "__main__":
    sys.exit(main())
