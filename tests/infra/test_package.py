"""The wheel: what is in it, and what works where nothing else of this project is: the quick start
of each page, and an app that is synthesised.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from infra import ROOT, licences
from ojs_aws.cdk import server
from tests.library.pages import TESTED, files
from tests.library.pages import page as text_of

TOOLS = ROOT / "build/packaging"
EXAMPLE = ROOT / "examples/mail_queue/app.py"


def component(name: str, *told: str) -> dict[str, Any]:
    names = [{"license": {"id": each}} for each in told]
    return {"name": name, "version": "1", **({"licenses": names} if names else {})}


def test_licences_that_nobody_has_looked_at_are_refused() -> None:
    good = [component("b", "MIT", "Their-Own"), component("a", "Apache-2.0")]
    assert licences.licences({"components": good}) == {"a 1": "Apache-2.0", "b 1": "MIT"}
    bad = [*good, component("c", "Their-Own"), component("d")]
    with pytest.raises(ValueError, match=r"reviewed: c 1: Their-Own; d 1: none"):
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
    for folder, root in (
        ("shared", ROOT / "shared"),
        ("functions", ROOT / "functions"),
        ("local", ROOT / "local"),
    ):
        for path in root.rglob("*.py"):
            below = path.relative_to(root)
            assert f"ojs_aws/cdk/carried/{folder}/{below.as_posix()}" in carried
    pinned = dict(re.findall(r"^([\w-]+)==([\w.]+)", pins, re.MULTILINE))
    assert {each["name"].lower().replace("_", "-"): each["version"] for each in listed} == pinned
    for each in listed:
        assert f"| {each['name']} {each['version']} |" in page


class Clean:
    """An environment that has the wheel, what it asks for, and pytest."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.python = folder / "clean/bin/python"
        self.cache = folder / "cache"
        self.run(sys.executable, "-m", "venv", "clean")
        pins = [f"{name}=={version(name)}" for name in ("httpx", "pytest")]
        self.run(self.python, "-m", "pip", "install", "-q", wheel, *pins)

    def start(self, *command: object, **more: Any) -> subprocess.Popen[str]:
        mine = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "OJS_"))
        }
        mine |= {"JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20"}
        # What is imported is compiled then. All else would take pip as long as to install it.
        mine |= {"PIP_NO_COMPILE": "1", "XDG_CACHE_HOME": str(self.cache), **more.pop("env", {})}
        return subprocess.Popen(
            [str(word) for word in command], env=mine, cwd=more.pop("cwd", self.folder),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more,
        )  # fmt: skip

    def run(self, *command: object, **more: Any) -> str:
        with self.start(*command, **more) as process:
            printed, _ = process.communicate(timeout=900)
        assert process.returncode == 0, printed
        return printed


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Clean:
    return Clean(tmp_path_factory.mktemp("clean"), wheel)


@pytest.mark.exhaustive
@pytest.mark.whole
def test_the_quick_start_of_each_page_works_with_the_wheel_alone(
    clean: Clean, tmp_path: Path
) -> None:
    for name in ("boto3", "pydantic", "aws_cdk", "ojs"):
        clean.run(
            clean.python, "-c", f"import importlib.util as u; assert not u.find_spec('{name}')"
        )
    for name in TESTED:
        for file, text in files(text_of(name)).items():
            (tmp_path / file).write_text(text, "utf-8")
    pytest_ = (clean.python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    with clean.start(*pytest_, cwd=tmp_path) as lacking:
        told, _ = lacking.communicate(timeout=60)
    assert "python -m ojs_aws.testing install" in told
    assert "passed" not in told
    clean.run(clean.python, "-m", "ojs_aws.testing", "install")
    assert f"{sum(TESTED.values())} passed" in clean.run(*pytest_, cwd=tmp_path)
    # Write a worker: against a server as the fixture starts it.
    (tmp_path / "test_worker.py").write_text(WORKER_TEST, "utf-8")
    for file, text in files(text_of("write-a-worker")).items():
        (tmp_path / file).write_text(text, "utf-8")
    assert "1 passed" in clean.run(*pytest_, "test_worker.py", cwd=tmp_path)


WORKER_TEST = """
import os, signal, subprocess, sys

def test_the_worker_and_its_producer(ojs_server):
    env = os.environ | {"OJS_URL": ojs_server.url}
    with subprocess.Popen([sys.executable, "jobs.py"], env=env) as worker:
        producer = [sys.executable, "producer.py"]
        made = subprocess.run(producer, env=env, capture_output=True, text=True)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    assert made.stdout.splitlines()[0] == "available 2", made
    assert made.stdout.splitlines()[-1] == "duplicate True", made
"""


@pytest.mark.exhaustive
@pytest.mark.whole
def test_an_app_synthesises_with_the_wheel_alone(clean: Clean, tmp_path: Path) -> None:
    # CDK itself and pydantic, as they are here; of this project only the wheel.
    (site,) = (clean.folder / "clean/lib").glob("python*/site-packages")
    (site / "cdk.pth").write_text(sysconfig.get_path("purelib"))
    said = "from importlib.metadata import version; print(version('ojs-backend-aws'))"
    assert clean.run(clean.python, "-c", said).strip() == server.VERSION
    app = tmp_path / "app.py"
    app.write_text(
        EXAMPLE.read_text("utf-8").replace(
            'DeploymentSettings(stage="mail")', 'DeploymentSettings(stage="mail", bundle="host")'
        )
    )
    clean.run(clean.python, app, cwd=tmp_path, env={"CDK_OUTDIR": str(tmp_path / "cdk.out")})
    template = json.loads((tmp_path / "cdk.out/mail.template.json").read_text("utf-8"))
    kinds = [each["Type"] for each in template["Resources"].values()]
    assert kinds.count("Custom::OjsDeclared") == 2
    assert kinds.count("AWS::DynamoDB::Table") == 1
    # The functions' code is there, with the packages that they import.
    (bundle,) = (tmp_path / ".ojs-build/lambda").glob("bundle-*")
    for name in ("functions/jobs/handler.py", "ojs/runtime.py", "isodate", "botocore"):
        assert (bundle / name).exists()
    assert not (bundle / "pydantic").exists()
