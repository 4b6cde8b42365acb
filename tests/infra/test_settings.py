from __future__ import annotations

import json
import platform
import sys

import pytest
from pydantic import ValidationError

from infra import ROOT
from infra.settings import DeploymentSettings, project_version

CONTEXT = json.loads((ROOT / "cdk.json").read_text())["context"]


def test_cdk_json_names_every_setting_and_keeps_the_defaults() -> None:
    given = {name: value for name, value in CONTEXT.items() if not name.startswith("@aws-cdk/")}
    assert DeploymentSettings.model_validate(given) == DeploymentSettings()
    assert set(given) == set(DeploymentSettings.model_fields)


def test_values_of_the_command_line_are_texts() -> None:
    given = {"log_retention_days": "7", "deletion_protection": "false", "memory_mb": "512"}
    settings = DeploymentSettings.from_context(given.get)
    assert settings.log_retention_days == 7
    assert settings.deletion_protection is False
    assert settings.memory_mb == 512


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stage", "Prod"),
        ("stage", "a_b"),
        ("removal_policy", "snapshot"),
        ("log_retention_days", "8"),
        ("log_level", "loud"),
        ("memory_mb", "128"),
        ("architecture", "riscv"),
        ("python", "3.9"),
        ("bundle", "docker"),
        ("throttle_burst", "0"),
    ],
)
def test_other_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=name):
        DeploymentSettings.from_context({name: value}.get)


def test_the_local_target_is_this_machine() -> None:
    settings = DeploymentSettings(bundle="host", python="3.14", architecture="arm64")
    assert settings.is_local
    assert settings.runtime_python == f"{sys.version_info.major}.{sys.version_info.minor}"
    expected = "arm64" if platform.machine() in {"arm64", "aarch64"} else "x86_64"
    assert settings.runtime_architecture == expected


def test_the_lambda_target_is_what_was_chosen() -> None:
    settings = DeploymentSettings(python="3.14")
    assert (settings.runtime_python, settings.runtime_architecture) == ("3.14", "arm64")


def test_the_version_is_the_project_s() -> None:
    assert f'version = "{project_version()}"' in (ROOT / "pyproject.toml").read_text()
