"""The wheel: what is in it, and that an app synthesises with it alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

from infra import ROOT, licences
from ojs_aws.cdk import server

TOOLS = ROOT / "build/packaging"
EXAMPLE = ROOT / "examples/mail_queue/app.py"


def component(name: str, *told: str) -> dict[str, Any]:
    names = [{"license": {"id": each}} for each in told]
    return {"name": name, "version": "1", **({"licenses": names} if names else {})}


def test_licences_that_nobody_has_looked_at_are_refused() -> None:
    good = [component("b", "MIT", "Their-Own"), component("a", "Apache-2.0")]
    assert licences.licences({"components": good}) == {"a 1": "Apache-2.0", "b 1": "MIT"}
    bad = [*good, component("c", "Their-Own"), component("d")]
    with pytest.raises(ValueError, match=r"at: c 1: Their-Own; d 1: none"):
        licences.licences({"components": bad})


def test_pages_name_the_wheel_as_it_is_called_now() -> None:
    pages = ("docs/construct.md", "docs/releasing.md", "examples/mail_queue/README.md")
    for page in pages:
        named = re.findall(r"backend_aws-([\d.]+)-py3", (ROOT / page).read_text("utf-8"))
        assert set(named) == {server.VERSION}, page


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release is."""
    dist = tmp_path_factory.mktemp("dist")
    made = subprocess.run(
        ["make", "package", f"DIST={dist}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "PASSED" in made.stdout
    (found,) = dist.glob("*.whl")
    return found


@pytest.mark.exhaustive
def test_the_wheel_has_all_that_it_needs_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (sbom,) = (each for each in names if each.endswith(".cdx.json"))
        listed = json.loads(archive.read(sbom))["components"]
        page = archive.read("ojs_aws/cdk/carried/licences.md").decode()
        pins = archive.read("ojs_aws/cdk/carried/requirements/runtime.txt").decode()
    # No package but ours: one called `ojs` or `infra` is somebody else's.
    assert {name.partition("/")[0] for name in names} == {
        "ojs_aws",
        f"ojs_backend_aws-{server.VERSION}.dist-info",
    }
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    carried = {name for name in names if name.startswith("ojs_aws/cdk/carried/")}
    for folder, root in (("shared", ROOT / "shared"), ("functions", ROOT / "functions")):
        for path in root.rglob("*.py"):
            below = path.relative_to(root)
            assert f"ojs_aws/cdk/carried/{folder}/{below.as_posix()}" in carried
    pinned = dict(re.findall(r"^([\w-]+)==([\w.]+)", pins, re.MULTILINE))
    assert {each["name"].lower().replace("_", "-"): each["version"] for each in listed} == pinned
    for each in listed:
        assert f"| {each['name']} {each['version']} |" in page


@pytest.mark.exhaustive
def test_an_app_synthesises_with_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    } | {"JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20"}

    def run(*command: object, **more: str) -> str:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", "clean")
    python = tmp_path / "clean/bin/python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel)
    # CDK itself and pydantic, as they are here; of this project only the wheel.
    (site,) = (tmp_path / "clean/lib").glob("python*/site-packages")
    (site / "cdk.pth").write_text(sysconfig.get_path("purelib"))
    said = "from importlib.metadata import version; print(version('ojs-backend-aws'))"
    assert run(python, "-c", said).strip() == server.VERSION
    app = tmp_path / "app.py"
    app.write_text(
        EXAMPLE.read_text("utf-8").replace(
            'DeploymentSettings(stage="mail")', 'DeploymentSettings(stage="mail", bundle="host")'
        )
    )
    run(python, app, CDK_OUTDIR=str(tmp_path / "cdk.out"))
    template = json.loads((tmp_path / "cdk.out/mail.template.json").read_text("utf-8"))
    kinds = [each["Type"] for each in template["Resources"].values()]
    assert kinds.count("Custom::OjsDeclared") == 2
    assert kinds.count("AWS::DynamoDB::Table") == 1
    # The functions' code is there, with the packages that they import.
    (bundle,) = (tmp_path / ".ojs-build/lambda").glob("bundle-*")
    for name in ("functions/jobs/handler.py", "ojs/runtime.py", "pydantic", "botocore"):
        assert (bundle / name).exists()
