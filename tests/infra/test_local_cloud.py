from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from infra import ROOT, deploy_local, local_cloud

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_taken_port_is_said_so(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy_local.main(["--port", str(taken)]) == 1
    assert f"{taken} is in use" in capsys.readouterr().err


def test_a_missing_emulator_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert deploy_local.main(["--port", str(local_cloud.free_port())]) == 1
    assert "make setup" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_free_port_is_free() -> None:
    assert not local_cloud.port_taken(local_cloud.free_port())
    assert not local_cloud.is_ministack(local_cloud.free_port())


def test_nothing_leads_to_a_real_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "real")
    monkeypatch.setenv("CDK_DEPLOY_ACCOUNT", "123456789012")
    environment = local_cloud.client_environment(4566)
    aws = {name: value for name, value in environment.items() if name.startswith("AWS_")}
    assert aws == {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:4566",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    assert "CDK_DEPLOY_ACCOUNT" not in environment


def test_functions_cannot_import_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    # They inherit the emulator's environment, and must live from their bundle alone.
    monkeypatch.setenv("PYTHONPATH", "shared")
    assert "PYTHONPATH" not in local_cloud._clean_environment()


def test_a_missing_cdk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cloud, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(local_cloud.LocalCloudError, match="npm ci"):
        local_cloud.deploy(4566, quiet=True)


def test_a_failing_cdk_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cdk = tmp_path / "node_modules" / ".bin" / "cdk"
    cdk.parent.mkdir(parents=True)
    cdk.write_text("#!/bin/sh\necho what went wrong\nexit 1\n")
    cdk.chmod(0o755)
    monkeypatch.setattr(local_cloud, "ROOT", tmp_path)
    with pytest.raises(local_cloud.LocalCloudError, match="what went wrong"):
        local_cloud.deploy(4566, quiet=True)


APP = """
import json, sys
from aws_cdk import App, Stack
from ojs_aws.cdk import DeploymentSettings

own = {"stage": "shop", "bundle": "lambda", "architecture": "x86_64", "deletion_protection": True}
for made in (DeploymentSettings(**own), DeploymentSettings.model_validate(own)):
    told = (made.stage, made.is_local, made.removal_policy, made.deletion_protection)
    assert told == ("shop", True, "destroy", False), told
app = App()
stack = Stack(app, "shop")
print(json.dumps([__name__, sys.argv[1:], type(stack.synthesizer).__name__]))
"""


@pytest.mark.parametrize("how", ["app.py", "-m app"])
def test_an_app_runs_for_the_emulator_without_a_change(tmp_path: Path, how: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    ran = subprocess.run(
        [sys.executable, "-m", "ojs_aws.cdk.local", *how.split(), "--own", "argument"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "package")},
        capture_output=True,
        text=True,
        check=True,
    )
    synthesizer = "CliCredentialsStackSynthesizer"
    assert json.loads(ran.stdout) == ["__main__", ["--own", "argument"], synthesizer]


def test_an_app_runs_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = local_cloud.local_command("python3 'my shop/app.py' --mode x")
    assert command == (
        f"{sys.executable} -m ojs_aws.cdk.local app.py --mode x",
        tmp_path / "my shop",
    )
    module = local_cloud.local_command("python -m shop.app")
    assert module == (f"{sys.executable} -m ojs_aws.cdk.local -m shop.app", tmp_path)
    # A virtual environment is found by the path of its interpreter, which is a link.
    own = tmp_path / "python"
    own.symlink_to(sys.executable)
    assert local_cloud.local_command("./python app.py")[0].startswith(f"{own} -m ojs_aws")


@pytest.mark.parametrize("app", ["app.py", "python", "node app.js", "./no/python app.py", "''"])
def test_a_wrong_app_is_said_so(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy_local.main(["--app", app]) == 1
    assert "APP: " in capsys.readouterr().err


def test_a_wrong_setting_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(deploy_local, "is_ministack", lambda _: True)
    assert deploy_local.main(["-c", "stage=prod"]) == 1
    assert "-c stage: must be omitted" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        deploy_local.main(["-c", "push"])
    assert "-c: must have the form NAME=VALUE" in capsys.readouterr().err


def test_termination_cleans_up_like_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), local_cloud.terminated_like_interrupted():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_throw_away_key_is_shown_with_a_way_to_use_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    deployment = local_cloud.Deployment(
        api_url="http://x.execute-api.localhost:4566",
        direct_url="http://127.0.0.1:4566/x",
        table="table",
        bucket="bucket",
        failure_queue_url="http://127.0.0.1:4566/queue",
        key="ojs_the_key",
    )
    deploy_local._show(deployment, 4566)
    shown = capsys.readouterr().out
    assert "export OJS_KEY=ojs_the_key" in shown
    assert "deleted with\nthe cloud" in shown
    curls = [line for line in shown.splitlines() if line.strip().startswith("curl")]
    assert curls
    assert all('-H "Authorization: Bearer $OJS_KEY"' in line for line in curls)
