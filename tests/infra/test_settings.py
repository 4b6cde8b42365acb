from __future__ import annotations

import json
import platform
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from aws_cdk import App
from pydantic import ValidationError

from infra import ROOT, app
from infra.context import from_context
from ojs.settings import EVENT_PATTERN, MIDDLEWARE_PATTERN, Settings
from ojs_aws.cdk.functions import AUTHORIZER, FUNCTIONS
from ojs_aws.cdk.parts import function
from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from pathlib import Path

CERTIFICATE = "arn:aws:acm:eu-central-1:123456789012:certificate/abc"
IN_US_EAST_1 = CERTIFICATE.replace("eu-central-1", "us-east-1")
NAMED = {"domain_name": "jobs.example.com", "certificate_arn": CERTIFICATE}
WALLED = {**NAMED, "certificate_arn": IN_US_EAST_1, "waf": "true"}
REALTIME = {"realtime_domain": "live.example.com", "certificate_arn": CERTIFICATE}
ACL = "arn:aws:wafv2:us-east-1:123456789012:global/webacl/ours/0123"


def test_cdk_json_leaves_settings_to_files_and_the_command_line() -> None:
    # CDK does not tell what is in cdk.json from what is on the command line.
    context = json.loads((ROOT / "cdk.json").read_text())["context"]
    assert not set(context) & set(DeploymentSettings.model_fields)
    assert from_context(context) == DeploymentSettings()


def test_every_setting_is_described() -> None:
    for name, field in DeploymentSettings.model_fields.items():
        assert field.description, name


def test_values_of_the_command_line_are_texts() -> None:
    context = {"log_retention_days": "7", "deletion_protection": "false", "memory_mb": "512"}
    settings = from_context(context)
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
        ("bus_types", "bulk..completed"),
        ("bus_types", "job.*,job*"),
        ("middleware", "hooks"),
        ("middleware", "hooks.add"),
        ("middleware", "hooks:add,:add"),
        ("middleware", "no-module:add"),
        ("middleware_timeout_ms", "0"),
        ("middleware_timeout_ms", "20001"),
        ("metrics_namespace", ""),
        ("alarm_oldest_job_s", "1"),
        ("alarm_sweep_silence_min", "1"),
        ("alarm_email", "ops"),
        ("alarm_topic_arn", "ojs-alarms"),
        ("authorizer", "none"),
        ("authorizer_cache_s", "3601"),
        ("authorizer_cache_s", "-1"),
        ("old_keys_until", "2027-02-29"),
        ("old_keys_until", "soon"),
        ("jwt_issuer", "http://id.example.com"),
        ("jwt_scope_claim", ""),
        ("jwt_scope_claim", "a b"),
        ("jwt_scope_prefix", "a b"),
        ("jwt_tenant_claim", ""),
        ("cors_origins", "*"),
        ("cors_origins", "https://*.example.com"),
        ("cors_origins", "https://jobs.example.com/"),
        ("cors_origins", "jobs.example.com"),
        ("domain_name", "https://jobs.example.com"),
        ("domain_name", "localhost"),
        ("certificate_arn", "abc"),
        ("hosted_zone_id", "z 1"),
        ("waf_acl_arn", ACL.replace("us-east-1", "eu-central-1")),
        ("waf_rate", "1"),
        ("waf_rotation", "-1"),
        ("encryption", "none"),
        ("payload_recovery_days", "36"),
        ("queue_metrics", "some"),
        ("queue_metrics_max", "-1"),
        ("metrics", "some"),
        ("max_write_units", "-1"),
        ("backup_days", "-1"),
        ("alarm_error_percent", "101"),
        ("reserved_concurrency", "jobs=0"),
        ("reserved_concurrency", "jobs"),
        ("reserved_concurrency", "job=5"),
        ("memory_mb_by_function", "jobs=128"),
        ("memory_mb_by_function", "nothing=512"),
    ],
)
def test_other_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=name):
        from_context({name: value})


@pytest.mark.parametrize(
    ("context", "field"),
    [
        ({"authorizer": "jwt"}, "jwt_issuer"),
        ({"authorizer": "jwt", "jwt_issuer": "https://id.example.com"}, "jwt_audience"),
        ({"jwt_issuer": "https://id.example.com"}, "jwt_issuer"),
        ({"jwt_audience": "jobs"}, "jwt_audience"),
        ({"jwt_scope_claim": "scp"}, "jwt_scope_claim"),
        ({"authorizer": "iam", "jwt_scope_prefix": "ojs/"}, "jwt_scope_prefix"),
        ({"jwt_tenant_claim": "org"}, "jwt_tenant_claim"),
        (
            {
                "authorizer": "jwt",
                "jwt_issuer": "https://id.example.com",
                "jwt_audience": "a",
                "authorizer_cache_s": "60",
            },
            "authorizer_cache_s",
        ),
        ({"iam_operators": "*"}, "iam_operators"),
        ({"authorizer": "iam", "old_keys_until": "2027-03-01"}, "old_keys_until"),
        ({"authorizer": "iam", "reserved_concurrency": "authorizer=5"}, "reserved_concurrency"),
        ({"domain_name": "jobs.example.com"}, "certificate_arn"),
        ({"certificate_arn": CERTIFICATE}, "certificate_arn"),
        ({**NAMED, "hosted_zone_id": "Z1"}, "hosted_zone_id"),
        ({**NAMED, "hosted_zone_name": "example.com"}, "hosted_zone_id"),
        (
            {**NAMED, "hosted_zone_id": "Z1", "hosted_zone_name": "ample.com"},
            "hosted_zone_name",
        ),
        ({"hosted_zone_id": "Z1", "hosted_zone_name": "example.com"}, "hosted_zone_name"),
        ({**NAMED, "bundle": "host"}, "domain_name"),
        ({"entry": "private_api", "realtime": "wake"}, "realtime"),
        ({**REALTIME, "realtime": "off"}, "realtime_domain"),
        ({**REALTIME, "domain_name": REALTIME["realtime_domain"]}, "realtime_domain"),
        ({**REALTIME, "bundle": "host"}, "realtime_domain"),
        ({**WALLED, "realtime_domain": "live.example.com"}, "realtime_domain"),
        ({"realtime_domain": "live.example.com"}, "certificate_arn"),
        (
            {**REALTIME, "hosted_zone_id": "Z1", "hosted_zone_name": "example.org"},
            "hosted_zone_name",
        ),
        ({"realtime": "off", "memory_mb_by_function": "socket=512"}, "reserved_concurrency"),
        ({"memory_mb_by_function": "notify=512"}, "reserved_concurrency"),
        ({"waf": "true"}, "waf"),
        ({**WALLED, "certificate_arn": CERTIFICATE}, "certificate_arn"),
        ({**WALLED, "authorizer": "iam"}, "waf"),
        ({"waf_acl_arn": ACL}, "waf_acl_arn"),
        ({"waf_only": "false"}, "waf_only"),
        ({"waf_rotation": "1"}, "waf_rotation"),
        ({"waf_rate": "1000"}, "waf_rate"),
        ({"queue_metrics": "all", "queue_metrics_max": "5"}, "queue_metrics_max"),
        ({"metrics": "deployment", "queue_metrics_max": "5"}, "queue_metrics_max"),
        ({"metrics": "alarms", "queue_metrics": "off"}, "queue_metrics"),
        ({"middleware": "hooks:add"}, "middleware_folder"),
        ({"middleware_folder": "hooks"}, "middleware_folder"),
        ({"middleware_timeout_ms": "5"}, "middleware_timeout_ms"),
        ({"bundle": "host", "backup_days": "7"}, "backup_days"),
        ({**WALLED, "waf_acl_arn": ACL, "waf_rate": "1000"}, "waf_rate"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(context: dict[str, str], field: str) -> None:
    with pytest.raises(ValidationError, match=f"Value error, {field}"):
        from_context(context)


@pytest.mark.parametrize(
    "operators", ["", "operator", "arn:aws:sts::123456789012:assumed-role/ops/ada", "**"]
)
def test_operators_are_roles(operators: str) -> None:
    with pytest.raises(ValidationError, match="iam_operators"):
        from_context({"authorizer": "iam", "iam_operators": operators})


@pytest.mark.parametrize(
    "context",
    [
        {"authorizer": "jwt", "jwt_issuer": "https://id.example.com/", "jwt_audience": "a, b"},
        {"authorizer": "iam", "cors_origins": "https://jobs.example.com,http://localhost:3000"},
        {
            "authorizer": "iam",
            "authorizer_cache_s": "0",
            "iam_operators": "arn:aws:iam::123456789012:role/ops, arn:aws:iam::123456789012:root",
        },
        {**NAMED, "hosted_zone_id": "Z1", "hosted_zone_name": "jobs.example.com"},
        {**REALTIME, "hosted_zone_id": "Z1", "hosted_zone_name": "example.com"},
        {**REALTIME, **NAMED, "realtime": "all", "memory_mb_by_function": "notify=512"},
        {**REALTIME, "entry": "function_url", "reserved_concurrency": "api=5"},
        {**WALLED, "waf_rate": "1000"},
        {**WALLED, "waf_acl_arn": ACL},
        {**WALLED, "waf_only": "false", "waf_rotation": "1"},
        {"reserved_concurrency": "jobs=5, authorizer=2", "authorizer_cache_s": "0"},
    ],
)
def test_what_fits_together_is_taken(context: dict[str, str]) -> None:
    assert from_context(context).model_fields_set == set(context)


def test_numbers_by_function_are_read_from_either() -> None:
    by_text = from_context({"memory_mb_by_function": "sweep=512, jobs=2048"})
    by_file = DeploymentSettings(memory_mb_by_function={"sweep": 512, "jobs": 2048})
    assert by_text == by_file
    assert (by_text.memory_of("jobs"), by_text.memory_of("workers")) == (2048, 1024)


# --- where settings come from --------------------------------------------------------------------


@pytest.fixture
def cdk_json(tmp_path: Path) -> Path:
    file = tmp_path / "cdk.json"
    file.write_text('{"context": {"@aws-cdk/core:flag": true}}')
    return file


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("prod.toml", 'stage = "prod"\nmemory_mb = 512\n[reserved_concurrency]\nsweep = 1\n'),
        ("prod.json", '{"stage": "prod", "memory_mb": 512, "reserved_concurrency": {"sweep": 1}}'),
    ],
)
def test_the_command_line_wins_over_the_file(cdk_json: Path, name: str, text: str) -> None:
    (cdk_json.parent / name).write_text(text)
    context = {"settings": name, "memory_mb": "2048", "@aws-cdk/core:flag": True}
    settings = from_context(context, cdk_json=cdk_json)
    assert (settings.stage, settings.memory_mb) == ("prod", 2048)
    assert settings.reserved_concurrency == {"sweep": 1}
    assert settings.log_level == "INFO"


def test_a_setting_in_cdk_json_does_not_silently_win_over_the_file(cdk_json: Path) -> None:
    cdk_json.write_text('{"context": {"stage": "dev", "memory_mb": 512}}')
    (cdk_json.parent / "prod.json").write_text('{"stage": "prod"}')
    context = {"settings": "prod.json", "stage": "dev", "memory_mb": 512}
    with pytest.raises(ValueError, match=r"stage: set in cdk\.json and in prod\.json"):
        from_context(context, cdk_json=cdk_json)


def test_names_that_are_no_settings_are_refused(cdk_json: Path) -> None:
    (cdk_json.parent / "prod.json").write_text('{"stgae": "prod"}')
    with pytest.raises(ValueError, match=r"prod\.json: stgae"):
        from_context({"settings": "prod.json"}, cdk_json=cdk_json)
    with pytest.raises(ValueError, match=r"cdk\.json\): removal-policy"):
        from_context({"removal-policy": "destroy"})
    # CDK's own are left to it.
    own = {"aws:cdk:version-reporting": True, "@aws-cdk/core:flag": True, "aws-cdk:x": 1}
    assert from_context(own) == DeploymentSettings()


@pytest.mark.parametrize(
    ("name", "text"),
    [("no.json", None), ("no.json", "{"), ("no.json", "[1]"), ("no.json", "1"), ("no.toml", "= 1")],
)
def test_a_file_that_cannot_be_read_is_named(cdk_json: Path, name: str, text: str | None) -> None:
    if text is not None:
        (cdk_json.parent / name).write_text(text)
    with pytest.raises(ValueError, match=f"can't read the settings in {name}"):
        from_context({"settings": name}, cdk_json=cdk_json)


def test_a_mistake_is_told_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "App", lambda: App(context={"authorizer": "jwt"}))
    assert app.main() == 1
    assert "jwt_issuer: required with authorizer=jwt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("listed", "types"),
    [
        ("", ()),
        ("job.*", ("job.*",)),
        ("job.failed, worker.*", ("job.failed", "worker.*")),
        ("bulk.enqueue.completed,bulk.*", ("bulk.enqueue.completed", "bulk.*")),
        ("bulk.delete.*", ("bulk.delete.*",)),
    ],
)
def test_event_types_are_understood_as_the_functions_understand_them(
    listed: str, types: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = from_context({"bus_types": listed})
    assert settings.bus_types == types
    monkeypatch.setenv("OJS_TABLE", "any")
    monkeypatch.setenv("OJS_BUS_TYPES", ",".join(settings.bus_types))
    assert Settings.from_environment().bus_types == types


def test_the_two_settings_allow_the_same_event_types() -> None:
    described = DeploymentSettings.model_json_schema()["properties"]["bus_types"]
    assert described["items"]["pattern"] == EVENT_PATTERN


def test_middleware_is_understood_as_the_functions_understand_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = {"middleware": "hooks:add_trace, pkg.checks:Args", "middleware_folder": "hooks"}
    settings = from_context(context)
    assert settings.middleware == ("hooks:add_trace", "pkg.checks:Args")
    monkeypatch.setenv("OJS_TABLE", "any")
    monkeypatch.setenv("OJS_MIDDLEWARE", ",".join(settings.middleware))
    found = Settings.from_environment()
    assert found.middleware == settings.middleware
    assert found.middleware_timeout_ms == settings.middleware_timeout_ms
    described = DeploymentSettings.model_json_schema()["properties"]["middleware"]
    assert described["items"]["pattern"] == MIDDLEWARE_PATTERN


def test_the_local_target_is_this_machine() -> None:
    settings = DeploymentSettings(bundle="host", python="3.14", architecture="arm64")
    assert settings.is_local
    assert settings.runtime_python == f"{sys.version_info.major}.{sys.version_info.minor}"
    expected = "arm64" if platform.machine() in {"arm64", "aarch64"} else "x86_64"
    assert settings.runtime_architecture == expected


def test_the_lambda_target_is_what_was_chosen() -> None:
    settings = DeploymentSettings(python="3.14")
    assert (settings.runtime_python, settings.runtime_architecture) == ("3.14", "arm64")


def test_who_looks_up_or_lists_keys_knows_when_old_ones_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = from_context({"old_keys_until": "2027-03-01"})
    found = {
        spec.name: function._callers(spec, SimpleNamespace(origin=None), settings)  # type: ignore[arg-type]
        for spec in FUNCTIONS
    }
    told = {name for name, variables in found.items() if "OJS_OLD_KEYS_UNTIL" in variables}
    assert {AUTHORIZER, "admin"} <= told
    monkeypatch.setenv("OJS_OLD_KEYS_UNTIL", found[AUTHORIZER]["OJS_OLD_KEYS_UNTIL"])
    monkeypatch.setenv("OJS_TABLE", "table")
    assert Settings.from_environment().old_keys_until_ms == 1_803_859_200_000
