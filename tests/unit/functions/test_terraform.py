"""The Terraform module: what it has the functions declare, as Terraform itself evaluates it.

The provider for AWS is in no registry of packages. So each of its resources becomes one of
Terraform's own here, with the same arguments.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from functions.declare import handler as declare
from ojs import runtime
from ojs.domain.access import ANYBODY
from ojs.runtime import Runtime

ROOT = Path(__file__).parents[3]
MODULE, EXAMPLE = ROOT / "terraform", ROOT / "terraform" / "example"
_RESOURCE = re.compile(
    r'^(?:resource|data) "(aws_\w+)" "(\w+)" \{\n(.*?)^\}\n', re.MULTILINE | re.DOTALL
)
_META = re.compile(r"^  (?:for_each|depends_on|lifecycle) .*\n", re.MULTILINE)
# Attributes that AWS gives them.
_GIVEN = {
    r"aws_secretsmanager_secret\.key\[each\.key\]\.arn": '"arn:${each.key}"',
    r"secret\.arn": "name",
    r"aws_cloudformation_stack\.jobs\.outputs": '{ ApiUrl = "https://api.example.com" }',
    r"data\.aws_s3_bucket\.files\.bucket_regional_domain_name": '"files.example.com"',
}


@pytest.mark.exhaustive
def test_it_is_hcl() -> None:
    """With a parser of Python's, as Terraform is not on every machine."""
    program = "import hcl2, sys; [hcl2.load(open(name)) for name in sys.argv[1:]]"
    files = [*MODULE.glob("*.tf"), *EXAMPLE.glob("*.tf")]
    python = ROOT / "build" / "integrations" / "bin" / "python"
    subprocess.run([python, "-c", program, *files], check=True)
    assert len(files) == 2


def test_it_names_the_outputs_and_functions_of_the_template() -> None:
    text = (MODULE / "main.tf").read_text("utf-8")
    written = (ROOT / "infra" / "template.py").read_text("utf-8")
    for output in re.findall(r'outputs\["(\w+)"\]', text):
        assert f'CfnOutput(self, "{output}"' in written
    # A rollback of the stack reads the former files.
    assert text.count("create_before_destroy = true") == text.count('resource "aws_s3_object"')
    for parameter in ("AssetBucket", "AssetPrefix", "Stage"):
        assert f'"{parameter}"' in written
        assert f"    {parameter} " in text


def evaluable(text: str) -> str:
    """The module without the provider."""

    def mine(found: re.Match[str]) -> str:
        kind, name, body = found.groups()
        meta, arguments = "".join(_META.findall(body)), _META.sub("", body)
        content = f"{meta}input = {{\n{arguments}}}"
        content = f"{meta}input = {{\n{arguments}}}"
        return f'resource "terraform_data" "{kind[4:]}_{name}" {{\n{content}\n}}\n'

    for pattern, value in _GIVEN.items():
        text = re.sub(pattern, value, text)
    text = re.sub(r"required_providers \{.*?\n  \}\n", "", text, flags=re.DOTALL)
    text = _RESOURCE.sub(mine, text)
    text = re.sub(r"\baws_(\w+)\.(\w+)\.(\w+)", r"terraform_data.\1_\2.input.\3", text)
    return re.sub(r"\baws_(\w+)\.(\w+)", r"terraform_data.\1_\2", text)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The arguments of each resource by its address, for the example."""
    if (terraform := shutil.which("terraform")) is None:
        pytest.skip("needs terraform")
    folder = tmp_path_factory.mktemp("terraform")
    for path in (MODULE / "main.tf", EXAMPLE / "main.tf"):
        target = folder / "terraform" / path.relative_to(MODULE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(evaluable(path.read_text("utf-8")))
    files = folder / "build" / "template"
    files.mkdir(parents=True)
    (files / "template.json").write_text("{}")
    (files / "abc.zip").write_bytes(b"")

    def run(*words: str) -> str:
        done = subprocess.run(
            [terraform, *words], cwd=target.parent, capture_output=True, text=True, check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "CHECKPOINT_DISABLE": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("fmt", "-check", "-diff", str(MODULE))
    run("init", "-no-color")
    run("plan", "-no-color", "-out=plan", "-var=bucket=code")
    changes = json.loads(run("show", "-json", "plan"))["resource_changes"]
    return {
        each["address"].removeprefix("module.jobs.terraform_data."): each["change"]["after"][
            "input"
        ]
        for each in changes
    }


@pytest.mark.exhaustive
def test_the_example_makes_a_stack_of_the_template(planned: dict[str, Any]) -> None:
    stack = planned["cloudformation_stack_jobs"]
    assert stack["parameters"] == {
        "AlarmEmail": "ops@example.com", "AssetBucket": "code", "AssetPrefix": "ojs/",
        "Stage": "prod",
    }  # fmt: skip
    (template,) = (each for name, each in planned.items() if name == "s3_object_template")
    assert stack["template_url"] == f"https://files.example.com/{template['key']}"
    assert planned['s3_object_code["abc.zip"]']["key"] == "ojs/abc.zip"


@pytest.mark.exhaustive
def test_what_the_example_declares_is_there_and_goes(
    planned: dict[str, Any], make_runtime: Callable[..., Runtime]
) -> None:
    runtime.use(make_runtime(authorizer="none"))
    inputs = [
        json.loads(each["input"])
        for name, each in planned.items()
        if name.startswith(("lambda_invocation_queue", "lambda_invocation_declared"))
    ]

    def call(action: str) -> None:
        # Queues first, as Terraform does.
        for each in sorted(inputs, key=lambda each: "TakeBack" in each):
            told = {"action": action, "prev_input": each}
            assert declare.handler({**each, "tf": told}, None) == {"Id": each["Name"]}

    call("create")
    built = runtime.current()
    own = built.queues.get("mail").layers.own
    assert (own["max_size"], own["rate_limit"]) == (10_000, {"limit": 100, "period": "PT1S"})
    (cron,) = built.crons.list(ANYBODY)(limit=10, cursor=None).items
    assert (cron.name, cron.definition.expression) == ("digest", "0 7 * * 1-5")
    assert sorted(each["Name"] for each in inputs) == [
        "cron digest", "pool workers", "queue mail", "rate limit smtp",
    ]  # fmt: skip
    call("delete")
    assert built.crons.list(ANYBODY)(limit=10, cursor=None).items == []
    # The queue stays, with its jobs.
    assert built.queues.get("mail").layers.own["max_size"] == 10_000


@pytest.mark.exhaustive
def test_the_example_declares_keys_in_secrets(planned: dict[str, Any]) -> None:
    secret = planned['secretsmanager_secret_key["shop"]']
    assert secret["name"] == "ojs-prod/keys/shop"
    invocation = planned['lambda_invocation_key["shop"]']
    assert (invocation["function_name"], invocation["lifecycle_scope"]) == (
        "ojs-prod-setup",
        "CRUD",
    )
    assert json.loads(invocation["input"]) == {
        "ResourceType": "Custom::OjsKey", "Name": "shop", "Secret": "arn:shop",
        "Scopes": ["jobs:write", "jobs:read"], "Queues": ["mail"],
    }  # fmt: skip
