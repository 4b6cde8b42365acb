"""Alarms and dashboard: that what they look at is there, and that they say what to do."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal

import pytest
from aws_cdk import assertions

from functions.sweep import metrics as gauges
from ojs.domain.counters import definitions as rows
from ojs.domain.job.states import TERMINAL, State
from ojs.projections import metrics
from ojs_aws.cdk.parts import monitoring
from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ALARM = "AWS::CloudWatch::Alarm"
EMAIL = "ops@example.com"
TOPIC = "arn:aws:sns:eu-central-1:123456789012:pager"


def alarms(synthesis: Any) -> dict[str, dict[str, Any]]:
    """By the end of their names."""
    found = synthesis.resources(ALARM).values()
    return {alarm["AlarmName"].removeprefix("ojs-dev-"): alarm for alarm in found}


def measured(alarm: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The metrics an alarm looks at."""
    if "MetricName" in alarm:
        yield alarm
    for part in alarm.get("Metrics", ()):
        if "MetricStat" in part:
            yield part["MetricStat"]["Metric"]


def test_there_is_an_alarm_for_each_thing_that_can_go_wrong(synthesis: Any) -> None:
    looked_at = {
        name: {(metric["Namespace"], metric["MetricName"]) for metric in measured(alarm)}
        for name, alarm in alarms(synthesis).items()
    }
    assert looked_at == {
        "oldest-job": {("OJS", "ojs.queue.oldest_age")},
        "cron-late": {("OJS", "ojs.cron.lateness")},
        "dead-letters": {("OJS", "ojs.dead_letter.added_total")},
        "stream-age": {("AWS/Lambda", "IteratorAge")},
        "stream-failures": {("AWS/SQS", "ApproximateNumberOfMessagesVisible")},
        "sweep-silent": {("AWS/Lambda", "Invocations"), ("AWS/Lambda", "Errors")},
        "server-errors": {("AWS/ApiGateway", "5xx"), ("AWS/ApiGateway", "Count")},
        "latency": {("AWS/ApiGateway", "Latency")},
        "refused": {("OJS/ojs-dev", "ojs.api.refused")},
        "system-errors": {("AWS/DynamoDB", "SystemErrors")},
        "authorizer-errors": {("AWS/Lambda", "Errors")},
        "table-throttles": {
            ("AWS/DynamoDB", "ReadThrottleEvents"),
            ("AWS/DynamoDB", "WriteThrottleEvents"),
        },
        "function-throttles": {("AWS/Lambda", "Throttles")},
    }
    for alarm in alarms(synthesis).values():
        assert alarm["AlarmDescription"].endswith(".")


@pytest.mark.parametrize(
    ("setting", "value", "alarm", "threshold"),
    [
        ("alarm_oldest_job_s", 120, "oldest-job", 120),
        ("alarm_cron_late_s", 90, "cron-late", 90),
        ("alarm_dead_letters", 3, "dead-letters", 3),
        ("alarm_stream_age_s", 30, "stream-age", 30_000),
        ("alarm_server_errors", 1, "server-errors", 1),
        ("alarm_server_errors", 1, "authorizer-errors", 1),
        ("alarm_latency_ms", 700, "latency", 700),
        ("alarm_refused", 9, "refused", 9),
        ("alarm_system_errors", 2, "system-errors", 2),
        ("alarm_throttles", 7, "table-throttles", 7),
        ("alarm_throttles", 7, "function-throttles", 7),
    ],
)
def test_thresholds_are_settings(
    others: Any, setting: str, value: int, alarm: str, threshold: int
) -> None:
    assert getattr(OTHER, setting) == value
    found = alarms(others)[alarm]
    assert found["Threshold"] == threshold
    assert found["ComparisonOperator"] == "GreaterThanOrEqualToThreshold"
    # Nothing measured is nothing wrong: a table that nobody uses is not throttled.
    assert found["TreatMissingData"] == "notBreaching"


OTHER = DeploymentSettings(
    alarm_oldest_job_s=120,
    alarm_cron_late_s=90,
    alarm_dead_letters=3,
    alarm_stream_age_s=30,
    alarm_server_errors=1,
    alarm_error_percent=20,
    alarm_latency_ms=700,
    alarm_refused=9,
    alarm_system_errors=2,
    alarm_throttles=7,
    metrics="queues",
    queue_metrics_max=0,
    dashboard=False,
    alarm_sweep_silence_min=3,
    alarm_email=EMAIL,
    alarm_topic_arn=TOPIC,
    metrics_namespace="Jobs",
)


@pytest.fixture(scope="module")
def others(synthesise: Callable[[DeploymentSettings], Any]) -> Any:
    """A deployment in which everything that can be chosen is."""
    return synthesise(OTHER)


def test_silence_of_the_sweep_is_an_alarm(others: Any) -> None:
    alarm = alarms(others)["sweep-silent"]
    assert alarm["ComparisonOperator"] == "LessThanThreshold"
    assert alarm["Threshold"] == 1
    # A schedule that is gone measures nothing.
    assert alarm["TreatMissingData"] == "breaching"
    assert alarm["EvaluationPeriods"] == alarm["DatapointsToAlarm"] == 3


def test_any_record_in_the_failure_queue_is_an_alarm(synthesis: Any) -> None:
    alarm = alarms(synthesis)["stream-failures"]
    (queue,) = synthesis.resources("AWS::SQS::Queue")
    assert alarm["Dimensions"] == [
        {"Name": "QueueName", "Value": {"Fn::GetAtt": [queue, "QueueName"]}}
    ]
    assert (alarm["Threshold"], alarm["EvaluationPeriods"]) == (1, 1)


def test_errors_of_the_authorizer_are_its_own(synthesis: Any) -> None:
    (dimension,) = alarms(synthesis)["authorizer-errors"]["Dimensions"]
    function = synthesis.resources("AWS::Lambda::Function")[dimension["Value"]["Ref"]]
    assert function["Handler"] == "functions.authorizer.handler.handler"


def test_throttles_of_every_index_and_function_count(synthesis: Any) -> None:
    table = list(measured(alarms(synthesis)["table-throttles"]))
    indexes = {
        dimension["Value"]
        for metric in table
        for dimension in metric["Dimensions"]
        if dimension["Name"] == "GlobalSecondaryIndexName"
    }
    assert indexes == {"work", "expiry"}
    functions = list(measured(alarms(synthesis)["function-throttles"]))
    # But for the one that CloudFormation calls, the one with the files of the dashboard, and those
    # of the WebSocket API, which no job depends on.
    assert len(functions) == len(synthesis.resources("AWS::Lambda::Function")) - 4
    # CloudWatch takes ten metrics in one alarm.
    assert max(len(table), len(functions)) < 10


def test_errors_are_an_alarm_if_they_are_many_among_the_others(synthesis: Any, others: Any) -> None:
    for made, percent in ((synthesis, 1), (others, 20)):
        alarm = alarms(made)["server-errors"]
        (expression,) = [each["Expression"] for each in alarm["Metrics"] if "Expression" in each]
        assert expression == f"IF(100 * errors >= {percent} * requests, errors, 0)"


def test_refusals_are_counted_in_the_access_log(synthesis: Any, others: Any) -> None:
    """Of this deployment alone: the metric has no dimensions."""
    for made, namespace in ((synthesis, "OJS/ojs-dev"), (others, "Jobs/ojs-dev")):
        counted = made.one("AWS::Logs::MetricFilter")
        (metric,) = counted["MetricTransformations"]
        assert (metric["MetricNamespace"], metric["DefaultValue"]) == (namespace, 0)
        (looked_at,) = measured(alarms(made)["refused"])
        named = looked_at["Namespace"], looked_at["MetricName"]
        assert named == (namespace, metric["MetricName"])
        assert "Dimensions" not in looked_at
        group = made.resources("AWS::Logs::LogGroup")[counted["LogGroupName"]["Ref"]]
        assert group["LogGroupName"]["Fn::Join"][1][0].endswith("/http-api-")
        pattern = '{ ($.status = "401") || ($.status = "403") }'
        assert counted["FilterPattern"] == pattern
        # As the log has them: as texts.
        form = json.loads(made.one("AWS::ApiGatewayV2::Stage")["AccessLogSettings"]["Format"])
        assert form["status"] == "$context.status"


def warnings(synthesis: Any) -> list[str]:
    found = assertions.Annotations.from_stack(
        synthesis.app.node.find_child("ojs-dev-service")
    ).find_warning("*", assertions.Match.string_like_regexp("alarm"))
    return [str(each.entry.data) for each in found]


def test_who_deploys_is_warned_that_alarms_reach_nobody(synthesis: Any, others: Any) -> None:
    (warning,) = warnings(synthesis)
    assert "alarm_email or alarm_topic_arn" in warning
    assert warnings(others) == []


def test_the_dashboard_and_metrics_of_queues_are_settings(synthesis: Any, others: Any) -> None:
    assert not others.resources("AWS::CloudWatch::Dashboard")
    for made, chosen in (
        (synthesis, ("alarms", "20", "900", "180")),
        (others, ("queues", "0", "120", "90")),
    ):
        names = ("METRICS", "QUEUE_METRICS_MAX", "ALARM_OLDEST_JOB_S", "ALARM_CRON_LATE_S")
        told = {
            one["Handler"].split(".")[1]: tuple(
                one["Environment"]["Variables"].get(f"OJS_{name}") for name in names
            )
            for one in made.resources("AWS::Lambda::Function").values()
        }
        assert {name for name, values in told.items() if any(values)} == {"stream", "sweep"}
        assert {values for values in told.values() if any(values)} == {chosen}


@pytest.mark.parametrize(
    ("former", "level", "most"),
    [("off", "deployment", 20), ("fullest", "queues", 20), ("all", "queues", 0)],
)
def test_the_former_setting_of_metrics_is_read(
    former: Literal["off", "fullest", "all"], level: str, most: int
) -> None:
    settings = DeploymentSettings(queue_metrics=former)
    assert (settings.metrics_level, settings.metered_queues) == (level, most)
    with pytest.raises(ValueError, match="queue_metrics: can't be combined with metrics"):
        DeploymentSettings(queue_metrics=former, metrics="queues")


def test_nobody_is_told_unless_asked_for(synthesis: Any) -> None:
    assert not synthesis.resources("AWS::SNS::Topic")
    assert not any(alarm.get("AlarmActions") for alarm in alarms(synthesis).values())


def test_alarms_go_to_the_topic_and_the_mail_address(others: Any) -> None:
    (topic,) = others.resources("AWS::SNS::Topic")
    for alarm in alarms(others).values():
        assert alarm["AlarmActions"] == alarm["OKActions"] == [TOPIC, {"Ref": topic}]
    subscription = others.one("AWS::SNS::Subscription")
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", EMAIL)
    statements = others.one("AWS::SNS::TopicPolicy")["PolicyDocument"]["Statement"]
    (allowed,) = (each for each in statements if each["Effect"] == "Allow")
    assert allowed["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    assert allowed["Condition"]["StringEquals"]["aws:SourceAccount"] == {"Ref": "AWS::AccountId"}


def test_metrics_have_the_names_the_functions_write() -> None:
    assert set(monitoring.COUNTERS) == {row.name for row in rows.BY_TYPE.values()}
    assert set(monitoring.LENGTHS) == {rows.QUEUE_TIME.name, rows.DURATION.name}
    for name in (
        "OLDEST_AGE", "DEAD_LETTERS", "DEAD_ADDED", "DEPTH", "ACTIVE_WORKERS", "BACKLOG", "MISSING"
    ):  # fmt: skip
        assert getattr(monitoring, name) == getattr(rows, name).name
    assert rows.LATENESS.name == monitoring.CRON_LATENESS
    assert set(monitoring._STATES) == {state.value for state in State if state not in TERMINAL}
    assert gauges.NAMESPACE == metrics.NAMESPACE == DeploymentSettings().metrics_namespace


def test_alarms_look_where_the_functions_of_this_deployment_write(others: Any) -> None:
    for name in ("oldest-job", "dead-letters"):
        (metric,) = measured(alarms(others)[name])
        assert metric["Namespace"] == "Jobs"
        # No queue: an alarm cannot know of queues that are yet to come.
        assert metric["Dimensions"] == [{"Name": "service", "Value": "ojs-dev"}]
    for function in others.resources("AWS::Lambda::Function").values():
        variables = function["Environment"]["Variables"]
        assert variables["POWERTOOLS_METRICS_NAMESPACE"] == "Jobs"
        assert variables["OJS_SERVICE"] == "ojs-dev"


def dashboard(synthesis: Any) -> dict[str, Any]:
    """The body, with the parts that CloudFormation fills in left as names."""
    found = synthesis.one("AWS::CloudWatch::Dashboard")
    assert found["DashboardName"] == "ojs-dev"
    body = found["DashboardBody"]["Fn::Join"][1]
    text = "".join(part if isinstance(part, str) else "filled-in" for part in body)
    parsed: dict[str, Any] = json.loads(text)
    return parsed


@pytest.mark.parametrize("level", ["alarms", "deployment", "queues"])
def test_the_dashboard_shows_every_alarm_and_the_metrics_of_its_level(
    level: Literal["alarms", "deployment", "queues"],
    synthesis: Any,
    synthesise: Callable[[DeploymentSettings], Any],
) -> None:
    made = synthesis if level == "alarms" else synthesise(DeploymentSettings(metrics=level))
    widgets = dashboard(made)["widgets"]
    (status,) = (each for each in widgets if each["type"] == "alarm")
    assert len(status["properties"]["alarms"]) == len(alarms(made))
    shown = json.dumps(widgets)
    more = {*monitoring.COUNTERS, *monitoring.LENGTHS, monitoring.DEPTH, monitoring.ACTIVE_WORKERS}
    more -= {monitoring.DEAD_ADDED}
    assert {name for name in more if name in shown} == (set() if level == "alarms" else more)
    assert monitoring.OLDEST_AGE in shown
    assert monitoring.DEAD_ADDED in shown
    titles = [each["properties"]["title"] for each in widgets if each["type"] == "metric"]
    assert len(titles) == len(set(titles))


def test_the_dashboard_finds_metrics_by_the_dimensions_they_are_written_with(
    synthesise: Callable[[DeploymentSettings], Any],
) -> None:
    made = synthesise(DeploymentSettings(metrics="queues"))
    of_jobs = (*monitoring.COUNTERS, *monitoring.LENGTHS)
    written = {
        **{name: {"queue", "service", "type"} for name in of_jobs},
        monitoring.DEPTH: {"queue", "service", "state"},
        monitoring.OLDEST_AGE: {"queue", "service"},
    }
    text = json.dumps(dashboard(made)).replace('\\\\"', '"').replace('\\"', '"')
    searches = re.findall(
        r"SEARCH\('\{([^}]*)\} MetricName=\"([^\"]*)\" service=\"([^\"]*)\"", text
    )
    assert {name for _, name, _ in searches} == set(written)
    for schema, name, service in searches:
        namespace, *dimensions = schema.split(",")
        assert (namespace, set(dimensions), service) == ("OJS", written[name], "ojs-dev")
