"""What the construct puts into the environment of functions is what these read, and reaches each
function that needs it.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from aws_cdk import App, Environment, Stack, assertions
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_secretsmanager as secretsmanager

from functions.sweep import handler as sweep
from infra import ROOT
from ojs import access_runtime
from ojs.domain.counters.definitions import DEAD_LETTERS, OLDEST_AGE
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import QueueGauges, StateCounts
from ojs.services.operations.metrics_sweep import MetricsReport
from ojs.settings import Settings
from ojs_aws.cdk import DeploymentSettings, OpenJobSpec
from ojs_aws.cdk.parts import fargate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FUNCTION = "arn:aws:lambda:eu-central-1:123456789012:function:thumbnails"


def texts(*folders: str) -> str:
    files = (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))
    return "\n".join(file.read_text("utf-8") for file in files)


def test_each_variable_that_is_set_is_read_and_each_one_that_is_read_is_set() -> None:
    by_name = re.findall(r'(?:configured|required)\(\[?"([a-z_]+)"', texts("shared", "functions"))
    read = {*by_name, *(each.name for each in fields(Settings))}
    written = set(re.findall(r'"OJS_([A-Z_]+)"', texts("package/ojs_aws/cdk")))
    # Workers on Fargate have the variables of the library.
    of_workers = {name.removeprefix("OJS_") for name in fargate._SET}
    # So have functions with durable code.
    of_workers.add("KEY_SECRET")
    assert {name.lower() for name in written - of_workers} == read


def test_each_setting_of_a_function_is_used() -> None:
    used = texts("shared", "functions", "local")
    given = texts("shared/ojs/services", "shared/ojs/store")
    for each in fields(Settings):
        # In settings.py itself only by the properties that others use.
        found = re.findall(rf"(?:settings|current|self)\.{each.name}\b", used)
        # A parameter of a service that has a setting's name is given the setting.
        found += re.findall(rf"^        {each.name}: ", given, re.MULTILINE)
        checks = re.findall(rf'\("{each.name}", .*self\.{each.name}', used)
        assert len(found) > len(checks), each.name


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """The environments of the functions, by name, of a construct to which things are added."""
    stub: Path = tmp_path_factory.mktemp("stub")
    (stub / "handler.py").write_text("# stands for the bundle\n")
    stack = Stack(App(), "shop", env=Environment(account="123456789012", region="eu-central-1"))
    settings = DeploymentSettings(
        push=True, push_functions=(FUNCTION,), egress_hosts=("*.a.example",)
    )
    jobs = OpenJobSpec(stack, "Jobs", settings=settings, code=lambda_.Code.from_asset(str(stub)))
    secret = secretsmanager.Secret(stack, "Signing")
    jobs.add_endpoint("mail", "https://b.example/jobs", queues=["mail"], secret=secret)
    jobs.metric_oldest_job("rare")
    jobs.metric_dead_letters("other")
    found = assertions.Template.from_stack(stack).find_resources("AWS::Lambda::Function").values()
    return {
        each["Properties"]["Handler"].split(".")[1]: each["Properties"]["Environment"]["Variables"]
        for each in found
        if each["Properties"]["Handler"].startswith("functions.")
    }


def test_who_checks_deliveries_knows_hosts_and_functions(
    variables: Mapping[str, Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pushing = {"admin", "dispatch", "outcomes", "sender", "declare"}
    hosts = {name: each.get("OJS_EGRESS_HOSTS") for name, each in variables.items()}
    assert {name for name, each in hosts.items() if each} == {*pushing, "setup"}
    assert {each for each in hosts.values() if each} == {"*.a.example,b.example"}
    functions = {name for name, each in variables.items() if "OJS_PUSH_FUNCTIONS" in each}
    assert functions == pushing
    for name, value in variables["setup"].items():
        monkeypatch.setenv(name, json.dumps(value))
    monkeypatch.setenv("OJS_EGRESS_HOSTS", hosts["setup"] or "")
    monkeypatch.setenv("OJS_PUSH", variables["setup"]["OJS_PUSH"])
    assert access_runtime.egress_hosts() == ("*.a.example", "b.example")
    assert access_runtime.pushes()


def test_a_queue_with_a_metric_of_the_construct_always_has_it_written(
    variables: Mapping[str, Mapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Beside 30 queues with more jobs: in the environment, in the settings, in the output."""
    monkeypatch.setenv("OJS_TABLE", "jobs")
    monkeypatch.setenv("OJS_METRIC_QUEUES", variables["sweep"]["OJS_METRIC_QUEUES"])
    fuller = [QueueGauges(Queue(f"q{n}"), StateCounts({State.AVAILABLE: 9})) for n in range(30)]
    named = [
        QueueGauges(Queue("rare"), StateCounts({State.AVAILABLE: 1}), oldest_ms=40_000),
        QueueGauges(Queue("other"), StateCounts(dead=1)),
    ]
    current = SimpleNamespace(settings=Settings.from_environment())
    sweep._measured(cast("Any", current), MetricsReport(at_ms=100_000, queues=[*fuller, *named]))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for queue, name, value in (
        ("rare", OLDEST_AGE.name, 60.0),
        ("other", DEAD_LETTERS.name, 1),
    ):
        assert [line[name] for line in lines if line["queue"] == queue and name in line] == [
            [value]
        ]
