"""docs/operations.md against the deployment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from infra import ROOT
from ojs.store.table.schema import STREAM_BATCH, STREAM_MAX_AGE_S
from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
ROW = re.compile(
    r"^\| `(ojs-dev-[a-z-]+)` \| .* \| (?:`(alarm_\w+)` \((\d+)\)|[^|`]) \| .* \|$", re.MULTILINE
)


def test_every_alarm_is_there_with_its_setting(synthesis: Any) -> None:
    rows = {name: (setting, default) for name, setting, default in ROW.findall(PAGE)}
    alarms = {
        alarm["AlarmName"] for alarm in synthesis.resources("AWS::CloudWatch::Alarm").values()
    }
    assert set(rows) == alarms
    settings = DeploymentSettings()
    for setting, default in rows.values():
        assert not setting or getattr(settings, setting) == int(default)
    documented = set(re.findall(r"\balarm_\w+", PAGE))
    assert documented == {name for name in DeploymentSettings.model_fields if "alarm" in name}


def test_names_are_the_deployment_s(synthesis: Any, with_jwt: Any) -> None:
    dashboard = synthesis.one("AWS::CloudWatch::Dashboard")["DashboardName"]
    bus = synthesis.one("AWS::Events::EventBus")["Name"]
    assert f"the name of the deployment, `{dashboard}`" in PAGE
    assert f"The bus is `{bus}`" in PAGE
    for output in re.findall(r"output `(\w+)`", PAGE):
        made = with_jwt if output.startswith("Push") else synthesis
        made.service.has_output(output, {})
    groups = synthesis.resources("AWS::Logs::LogGroup").values()
    (name,) = (group["LogGroupName"] for group in groups if "LogGroupName" in group)
    assert f"`{name['Fn::Join'][1][0]}` and the stack's ID" in PAGE


def test_numbers_of_the_stream_are_the_mapping_s() -> None:
    assert f"up to {STREAM_BATCH} records at a time" in PAGE
    assert DeploymentSettings().stream_batch_size == STREAM_BATCH
    assert DeploymentSettings().stream_window_s == 10
    assert "after at most 10 seconds (`stream_window_s`)" in PAGE
    assert "fails for 5 hours 50 minutes" in PAGE
    assert STREAM_MAX_AGE_S == 6 * 3_600


def test_settings_it_names_are_there() -> None:
    def named() -> Iterator[str]:
        yield from re.findall(r"-c (\w+)=", PAGE)
        yield from re.findall(r"`(\w+)` \(\d+\)", PAGE)

    assert set(named()) <= set(DeploymentSettings.model_fields)
    assert f"`metrics_namespace` (`{DeploymentSettings().metrics_namespace}`)" in PAGE
    assert f"`log_retention_days` ({DeploymentSettings().log_retention_days})" in PAGE
