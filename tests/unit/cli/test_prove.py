"""`ojs-aws prove`: what its checks find in AWS, the price, and the report. AWS is a stub."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import boto3
import httpx
import pytest
from botocore.exceptions import ClientError

from cli import prove
from cli.__main__ import main
from cli.prove import cost, report, session, wiring
from cli.prove.aws import Cloud
from cli.prove.made import Made
from cli.prove.probe import Probe, percentiles
from cli.prove.state import Pace, Run
from cli.target import Exit
from docs.numbers import assumed

TABLE = {
    "TableName": "jobs", "TableArn": "arn:table", "WarmThroughput": {"WriteUnitsPerSecond": 4_000},
    "StreamSpecification": {"StreamViewType": "NEW_AND_OLD_IMAGES"},
    "GlobalSecondaryIndexes": [{"IndexName": "work"}],
}  # fmt: skip
NAMES = ("jobs", "workers", "admin", "stream")
JOBS, SECONDS = 600, 60


class Aws:
    """Clients of a healthy deployment. Attributes break it."""

    def __init__(self) -> None:
        self.messages = self.throttles = 0
        self.alarm: dict[str, Any] = {}
        self.mapping: dict[str, Any] = {}
        self.allowed: tuple[str, ...] = ()
        self.ttl = "ENABLED"
        self.denied: set[str] = set()
        self.units = self.slower = 1.0
        self.others = 0.0
        self.data = True

    def __call__(self, service: str) -> Any:
        found = Mock(meta=Mock(region_name="eu-central-1"))
        for name in (
            "describe_stacks", "get_paginator", "get_function_configuration", "describe_table",
            "get_event_source_mapping", "get_queue_attributes", "describe_alarms",
            "describe_time_to_live", "describe_continuous_backups", "simulate_principal_policy",
            "get_metric_statistics",
        ):  # fmt: skip
            setattr(found, name, self._answering(name))
        return found

    def _answering(self, name: str) -> Any:
        def answer(*args: Any, **options: Any) -> Any:
            if name in self.denied:
                raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, name)
            return getattr(self, f"_{name}")(*args, **options)

        return answer

    def _describe_stacks(self, **options: str) -> Any:
        if options["StackName"] not in {"ojs-prod-data", "ojs-prod-service"}:
            message = f"Stack with id {options['StackName']} does not exist"
            raise ClientError(
                {"Error": {"Code": "ValidationError", "Message": message}}, "Describe"
            )
        made = {"ApiUrl": "https://api.test", "TableName": "jobs",
                "StreamFailureQueueUrl": "https://sqs/failures"}  # fmt: skip
        shown = [{"OutputKey": key, "OutputValue": value} for key, value in made.items()]
        return {"Stacks": [{"Outputs": shown}]}

    def _get_paginator(self, _operation: str) -> Any:
        kinds = {"AWS::Lambda::Function": NAMES, "AWS::CloudWatch::Alarm": ["ojs-prod-latency"],
                 "AWS::Lambda::EventSourceMapping": ["uuid"]}  # fmt: skip
        page = [{"ResourceType": kind, "PhysicalResourceId": each}
                for kind, names in kinds.items() for each in names]  # fmt: skip
        return Mock(paginate=Mock(return_value=[{"StackResourceSummaries": page}]))

    def _get_function_configuration(self, *, FunctionName: str) -> Any:  # noqa: N803
        return {
            "FunctionName": FunctionName, "Handler": f"functions.{FunctionName}.handler.handler",
            "Role": "arn:role", "FunctionArn": f"arn:{FunctionName}", "MemorySize": 1024,
        }  # fmt: skip

    def _describe_table(self, **_: str) -> Any:
        return {"Table": TABLE}

    def _get_event_source_mapping(self, **_: str) -> Any:
        healthy = {
            "FunctionArn": "arn:aws:lambda:::stream", "State": "Enabled", "BatchSize": 100,
            "TumblingWindowInSeconds": 900, "MaximumBatchingWindowInSeconds": 10,
        }  # fmt: skip
        return {**healthy, **self.mapping}

    def _get_queue_attributes(self, *, AttributeNames: list[str], **_: str) -> Any:  # noqa: N803
        return {"Attributes": dict.fromkeys(AttributeNames, str(self.messages))}

    def _describe_alarms(self, **_: Any) -> Any:
        healthy = {
            "AlarmName": "ojs-prod-latency", "StateValue": "OK", "AlarmActions": ["arn:topic"],
            "Namespace": "AWS/ApiGateway", "MetricName": "Latency", "Dimensions": [],
        }  # fmt: skip
        return {"MetricAlarms": [{**healthy, **self.alarm}]}

    def _describe_time_to_live(self, **_: str) -> Any:
        return {"TimeToLiveDescription": {"TimeToLiveStatus": self.ttl}}

    def _describe_continuous_backups(self, **_: str) -> Any:
        on = {"PointInTimeRecoveryStatus": "ENABLED"}
        return {"ContinuousBackupsDescription": {"PointInTimeRecoveryDescription": on}}

    def _simulate_principal_policy(self, *, ActionNames: list[str], **_: Any) -> Any:  # noqa: N803
        return {"EvaluationResults": [
            {"EvalActionName": each,
             "EvalDecision": "allowed" if each in self.allowed else "implicitDeny"}
            for each in ActionNames
        ]}  # fmt: skip

    def _get_metric_statistics(
        self, *, MetricName: str, Dimensions: Any, StartTime: datetime,  # noqa: N803
        Statistics: list[str], **_: Any,  # noqa: N803
    ) -> Any:  # fmt: skip
        """Metrics of JOBS jobs since `began`, and of others all the time."""
        (statistic,) = Statistics
        during = StartTime.timestamp() > time.time() - 240
        function = next((d["Value"] for d in Dimensions if d["Name"] == "FunctionName"), "")
        index = len(Dimensions) == 2
        load = cost.model().jobs("one by one", JOBS / SECONDS)
        consumer = cost.model().invocations(load)
        value = {
            "ConsumedWriteCapacityUnits": (load.write + consumer.write) * SECONDS,
            "ConsumedReadCapacityUnits": (load.read + consumer.read) * SECONDS,
        }.get(MetricName, 0.0) * self.units  # fmt: skip
        if MetricName in {"Invocations", "Duration"} and function in {"jobs", "stream"}:
            value = 3.0 * JOBS * during + self.others * 300
            if MetricName == "Duration":
                value *= self.slower * assumed()["request_ms"]
        elif MetricName in {"Invocations", "Duration"} or not during or index:
            value = 0.0
        if statistic == "SampleCount":
            value = 1.0
        return {"Datapoints": [{statistic: value}] if self.data else []}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Aws:
    stub = Aws()
    monkeypatch.setattr(boto3, "client", stub)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    return stub


def served(request: httpx.Request) -> httpx.Response:
    """What a healthy API answers to paths that the checks read."""
    path, key = request.url.path, request.headers.get("authorization", "")
    if path.startswith("/ojs/admin"):
        return httpx.Response(200, text="<!doctype html>")
    if key not in {"Bearer first", "Bearer own"}:
        return httpx.Response(401, json={"error": {"code": "unauthenticated", "message": "no"}})
    status = 404 if path.endswith(("none", "health")) and path != "/health" else 200
    status = 200 if path == "/ojs/v1/health" else status
    status = 403 if path in {"/ojs/v1/workers/fetch", "/ojs/v1/admin/keys"} else status
    return httpx.Response(status, json={})


def run_of(aws: Aws | None, folder: Path, answer: Any = served) -> Run:
    operator = Probe("https://api.test", "first", None, httpx.MockTransport(answer))
    made = Made(folder, "prove-7f3a")
    found = Run("prove-7f3a", operator, operator.other("own"), made, Pace(counted_s=0, look_s=0))
    found.cloud = None if aws is None else Cloud("prod")
    found.say, found.sleep = Mock(), Mock()
    return found


def failed(run: Run) -> dict[str, str]:
    return {each.name: each.seen for each in run.checks if each.verdict == "failed"}


# --- wiring ---------------------------------------------------------------------------------------


def test_a_healthy_deployment_passes(aws: Aws, tmp_path: Path) -> None:
    run = run_of(aws, tmp_path)
    wiring.run_wiring(run)
    assert [each for each in run.checks if each.verdict != "passed"] == []
    assert len(run.checks) == 9


@pytest.mark.parametrize(
    ("broken", "name", "seen"),
    [
        ({"messages": 2}, "failure queues", "StreamFailureQueue: 4 messages"),
        ({"alarm": {"StateValue": "INSUFFICIENT_DATA"}}, "alarms are OK", "INSUFFICIENT_DATA"),
        ({"alarm": {"AlarmActions": []}}, "alarms have actions", "ojs-prod-latency"),
        ({"alarm": {"ActionsEnabled": False}}, "alarms have actions", "ojs-prod-latency"),
        ({"data": False}, "alarms have data", "no data"),
        ({"allowed": ("dynamodb:Scan",)}, "permissions of functions", "dynamodb:Scan"),
        ({"mapping": {"State": "Disabled"}}, "mappings", "stream is Disabled"),
        ({"mapping": {"LastProcessingResult": "PROBLEM: Function call failed"}}, "mappings",
         "Function call failed"),
    ],
)  # fmt: skip
def test_each_fault_fails_one_check_and_says_what_to_do(
    aws: Aws, tmp_path: Path, broken: dict[str, Any], name: str, seen: str
) -> None:
    vars(aws).update(broken)
    run = run_of(aws, tmp_path)
    wiring.run_wiring(run)
    assert [*failed(run)] == [name]
    assert seen in failed(run)[name]
    assert next(each for each in run.checks if each.name == name).todo


def test_a_missing_route_is_found(aws: Aws, tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.startswith("/ojs/v1/workers/none"):
            return httpx.Response(500, json={"message": "Internal Server Error"})
        if request.url.path == "/ojs/v1/jobs":
            return httpx.Response(404, json={"message": "Not Found"})
        return served(request)

    run = run_of(aws, tmp_path, answer)
    wiring.run_wiring(run)
    assert failed(run)["routes"] == "GET /ojs/v1/jobs?limit=1 returned 404"


def test_an_open_api_is_found(tmp_path: Path) -> None:
    run = run_of(None, tmp_path, lambda _: httpx.Response(200, json={"jobs": [], "keys": []}))
    wiring.run_wiring(run)
    assert {*failed(run)} >= {"wrong key or signature", "scope and queue of a key"}


def test_a_stream_without_a_window_and_a_table_without_ttl_are_found(
    aws: Aws, tmp_path: Path
) -> None:
    aws.mapping, aws.ttl = {"TumblingWindowInSeconds": 0}, "DISABLED"
    run = run_of(aws, tmp_path)
    wiring.run_behavior(run)
    assert "no tumbling window" in failed(run)["stream windows"]
    assert failed(run)["table settings"] == "TTL is DISABLED"


def test_calls_that_the_credentials_dont_allow_are_skipped(aws: Aws, tmp_path: Path) -> None:
    aws.denied = {"simulate_principal_policy"}
    run = run_of(aws, tmp_path)
    wiring.run_wiring(run)
    (skipped,) = (each for each in run.checks if each.verdict == "skipped")
    assert skipped.seen == "the credentials don't allow simulate_principal_policy"


# --- cost -----------------------------------------------------------------------------------------


def compared(aws: Aws, folder: Path) -> Run:
    run, now = run_of(aws, folder), time.time()
    run.began = now - 2 * SECONDS
    run.numbers["ramp"] = [{"jobs": JOBS, "requests": 3 * JOBS}]
    run.numbers["ramp_span"] = [now - SECONDS, now]
    cost.run_cost(run)
    return run


def test_what_the_model_expects_passes_and_is_measured(aws: Aws, tmp_path: Path) -> None:
    run = compared(aws, tmp_path)
    assert failed(run) == {}
    rows = run.numbers["cost"]["rows"]
    assert rows["write units"]["ratio"] == rows["requests"]["ratio"] == 1
    cost.write_measured(run, tmp_path)
    values = assumed([str(tmp_path / "measured.toml")])
    assert values["request_ms"] == assumed()["request_ms"]
    assert run.sleep.called  # type: ignore[attr-defined]


def test_twice_the_units_fail(aws: Aws, tmp_path: Path) -> None:
    aws.units = 2.0
    seen = failed(compared(aws, tmp_path))["units, requests, and durations"]
    assert "write units, read units" in seen


def test_slow_functions_fail(aws: Aws, tmp_path: Path) -> None:
    aws.slower = 1.5
    assert "ms of a request" in failed(compared(aws, tmp_path))["units, requests, and durations"]


def test_traffic_before_the_run_is_subtracted(aws: Aws, tmp_path: Path) -> None:
    aws.others = 0.5
    rows = compared(aws, tmp_path).numbers["cost"]["rows"]
    assert rows["requests"]["ratio"] == pytest.approx(1, abs=0.2)


def test_an_emulator_has_no_cost(aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")
    (check,) = compared(aws, tmp_path).checks
    assert (check.verdict, check.seen) == ("skipped", "an emulator doesn't show it")


def test_the_ceiling_holds_with_a_margin() -> None:
    budget = cost.Budget(0.01)
    price = budget.price(100, 0)
    assert price == pytest.approx(100 * cost.model().whole("one by one", 10) / 1e6)
    count = 0
    while budget.affords(100, 0):
        count += 1
    assert count == int(0.01 / cost.MARGIN / price)
    assert cost.MARGIN * budget.spent <= 0.01


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "speed"], ["--only", ""], ["--max-cost", "0"], ["--max-cost", "nan"],
        ["--rate", "201"], ["--rate", "0"], ["--clean", "../prove-7f3a"], ["--clean", "prove-7"],
    ],
)  # fmt: skip
def test_options_are_checked(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["prove", *arguments])
    assert ended.value.code == Exit.USAGE
    assert "must be" in capsys.readouterr().err


def test_parts_keep_their_order() -> None:
    parser = argparse.ArgumentParser()
    prove.add(parser.add_subparsers())
    options = parser.parse_args(["prove", "--only", "ramp,conformance"])
    assert options.only == ("conformance", "ramp")


def test_a_wrong_stage_is_one_line(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.data
    assert main(["prove", "--stage", "prdo", "--yes"]) == Exit.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "ojs-prdo-service does not exist" in line


def test_a_raised_alarm_and_others_traffic_stop_the_run(aws: Aws, tmp_path: Path) -> None:
    scopes = {"scopes": list(session.SCOPES)}
    run = run_of(aws, tmp_path, lambda _: httpx.Response(200, json=scopes))
    aws.alarm = {"StateValue": "ALARM"}
    with pytest.raises(Exception, match="alarms are raised: ojs-prod-latency"):
        session._examine(run, shared=False)
    aws.alarm, aws.others = {}, 40.0
    with pytest.raises(Exception, match="others send"):
        session._examine(run, shared=False)


def test_a_url_needs_neither_the_sdk_nor_credentials() -> None:
    code = (
        "import sys, cli.__main__ as it; url = 'http://127.0.0.1:1'; "
        "print(it.main(['prove', '--url', url, '--yes']), 'boto3' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"{Exit.USAGE:d} False"
    assert found.stderr.startswith("error: No response from http://127.0.0.1:1")
    assert found.stderr.count("\n") == 1


def test_the_command_line_loads_nothing_of_it() -> None:
    code = "import sys, cli.__main__; print([n for n in sys.modules if n.startswith('cli.prove.')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# --- the report -----------------------------------------------------------------------------------


def test_percentiles() -> None:
    assert percentiles([]) == {}
    assert percentiles([3.0, 1.0]) == {"count": 2, "p50": 1, "p90": 3, "p99": 3, "max": 3}
    assert percentiles([float(each) for each in range(1, 201)]) == {
        "count": 200, "p50": 100, "p90": 180, "p99": 198, "max": 200,
    }  # fmt: skip


def test_the_report_escapes_and_is_one_file(aws: Aws, tmp_path: Path) -> None:
    run = compared(aws, tmp_path)
    run.numbers["latency"] = {"<fetch>": percentiles([1.0, 2.0])}
    run.numbers["ramp"] = [
        {"rate": 1, "reached": 1, "errors": 0, "stops": "", **percentiles([3.0])}
    ]
    run.check("wiring", "<b>", lambda _: "<script>\x1b[2J", "")
    facts = {"run": run.name, "finished": False, "seconds": 3, "spent": 0.1, "server": {"a": "<"}}
    report.write(run, tmp_path, facts)
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;fetch&gt;" in page
    assert page.count("<svg") == 3
    assert "src=" not in page
    assert "href=" not in page
    text = (tmp_path / "report.txt").read_text()
    assert "\x1b" not in text
    assert "The run did not finish" in text
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == report.VERSION
