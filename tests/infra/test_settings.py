from __future__ import annotations

import json
import platform
import sys

import pytest
from pydantic import BaseModel, ValidationError

from infra import ROOT
from infra.settings import DeploymentSettings, project_version
from ojs.settings import Settings

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
        ("bus_types", "Job.*"),
        ("bus_types", "job.*,job*"),
        ("metrics_namespace", ""),
        ("alarm_oldest_job_s", "1"),
        ("alarm_sweep_silence_min", "1"),
        ("alarm_email", "ops"),
        ("alarm_topic_arn", "ojs-alarms"),
    ],
)
def test_other_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=name):
        DeploymentSettings.from_context({name: value}.get)


@pytest.mark.parametrize(
    ("given", "types"),
    [("", ()), ("job.*", ("job.*",)), ("job.failed, worker.*", ("job.failed", "worker.*"))],
)
def test_event_types_are_understood_as_the_functions_understand_them(
    given: str, types: tuple[str, ...]
) -> None:
    settings = DeploymentSettings.from_context({"bus_types": given}.get)
    assert settings.bus_types == types
    assert Settings(table="any", bus_types=",".join(settings.bus_types)).bus_types == types  # type: ignore[arg-type]


def test_the_two_settings_allow_the_same_event_types() -> None:
    def pattern(model: type[BaseModel]) -> str:
        found: str = model.model_json_schema()["properties"]["bus_types"]["items"]["pattern"]
        return found

    assert pattern(DeploymentSettings) == pattern(Settings)


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
