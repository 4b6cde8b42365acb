"""docs/cdk-typescript.md: its app is compiled in strict mode, and synthesized with the template."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from infra import ROOT, template
from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from aws_cdk import aws_lambda as lambda_

PAGE = (ROOT / "docs" / "cdk-typescript.md").read_text("utf-8")
# Of the tests of generated clients.
COMPILER = ROOT / "build" / "clients" / "node_modules" / "typescript" / "bin" / "tsc"


def unpack(archive: Path, modules: Path) -> None:
    """Take a package of npm out of its package for Python, which carries it."""
    with tarfile.open(archive) as packed:
        packed.extractall(modules, filter="data")
    name = json.loads((modules / "package" / "package.json").read_text())["name"]
    (modules / name).parent.mkdir(exist_ok=True)
    (modules / "package").rename(modules / name)


@pytest.mark.whole
def test_the_app_of_the_page_synthesizes(code: Callable[[], lambda_.Code], tmp_path: Path) -> None:
    modules = tmp_path / "node_modules"
    modules.mkdir()
    site = Path(sysconfig.get_path("purelib"))
    for archive in (*site.glob("aws_cdk/**/_jsii/*.tgz"), *site.glob("constructs/_jsii/*.tgz")):
        unpack(archive, modules)
    node = modules / "@types" / "node"
    node.mkdir(parents=True)
    (node / "index.d.ts").write_text("declare const process: { env: Record<string, string> };\n")
    (app,) = re.findall(r"^```ts\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "app.ts").write_text(app)
    template.write(DeploymentSettings(), code(), tmp_path / "build" / "template")

    def run(*command: object) -> None:
        env = {"PATH": os.environ["PATH"], "BUCKET": "code", "CDK_OUTDIR": str(tmp_path / "out")}
        done = subprocess.run(
            [str(word) for word in command], cwd=tmp_path, env=env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    (tsc,) = re.findall(r"^npx tsc (.+)$", PAGE, re.MULTILINE)
    run("node", COMPILER, *tsc.split())
    run("node", "app.js")
    written = {
        path.name: json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")
    }
    app_ = written["shop.template.json"]["Resources"]
    (nested,) = (
        each for each in written.values() if "SetupStep1FABE61D" in each.get("Resources", {})
    )
    kinds = sorted(each["Type"] for each in app_.values())
    assert kinds == [
        "AWS::CloudFormation::Stack", "AWS::SecretsManager::Secret", "Custom::OjsDeclared",
        "Custom::OjsKey",
    ]  # fmt: skip
    # Nothing of the template is lost or renamed.
    made: dict[str, Any] = json.loads((tmp_path / "build/template/template.json").read_text())
    assert set(nested["Resources"]) == set(made["Resources"])
    (key,) = (each["Properties"] for each in app_.values() if each["Type"] == "Custom::OjsKey")
    assert (key["Name"], key["Scopes"]) == ("shop", ["jobs:read", "jobs:write"])
