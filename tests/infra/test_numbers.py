"""docs/numbers/assumed.toml against the deployment: what it has by default is what is priced."""

from __future__ import annotations

import re
from typing import Any

import functions.sweep.handler as sweep
from docs.numbers import assumed, counted, prices
from ojs.projections import notify
from ojs.services.realtime import listening, rings
from ojs_aws.cdk.functions import QUEUES
from ojs_aws.cdk.settings import DeploymentSettings
from ojs_aws.worker.settings import Settings as WorkerSettings

# As an ordinary request has them.
SAMPLES = {
    "requestId": "ZK3jTjFCoAMEPxQ=", "requestTime": "22/Nov/2026:10:00:00 +0000",
    "routeKey": "ANY /ojs/v1/workers/{proxy+}", "httpMethod": "POST",
    "path": "/ojs/v1/workers/fetch", "status": "200", "responseLatency": "25",
    "integrationLatency": "22", "responseLength": "600", "identity.sourceIp": "203.0.113.10",
    "identity.userAgent": "python-httpx/0.28.1", "integrationErrorMessage": "-",
    "authorizer.error": "-", "authorizer.principal": "billing-service",
    "authorizer.key": "k_019414d4",
}  # fmt: skip


def test_functions_are_as_they_are_priced(synthesis: Any) -> None:
    numbers = assumed()
    functions = {
        one["Handler"].split(".")[1]: one
        for one in synthesis.resources("AWS::Lambda::Function").values()
    }
    for name, memory in (
        ("jobs", "memory_mb"), ("workers", "memory_mb"), ("stream", "stream_mb"),
        ("sweep", "sweep_mb"),
    ):  # fmt: skip
        function = functions[name]
        assert function["MemorySize"] == numbers[memory]
        assert (function.get("TracingConfig", {}).get("Mode") == "Active") == numbers["tracing"]
        level = function["LoggingConfig"].get("SystemLogLevel", "INFO")
        assert (level != "WARN") == numbers["system_logs"]


def test_the_stream_is_mapped_as_it_is_priced(synthesis: Any) -> None:
    mapping = synthesis.one("AWS::Lambda::EventSourceMapping")
    assert mapping["MaximumBatchingWindowInSeconds"] == assumed()["window_s"]
    assert mapping["BatchSize"] == assumed()["batch"]


def test_the_rest_is_as_it_is_priced(synthesis: Any) -> None:
    numbers = assumed()
    assert DeploymentSettings().throttle_rate_per_s == numbers["throttle_rate_per_s"]
    worker = WorkerSettings(queues=["q"])
    assert numbers["heartbeat_s"] == worker.longest_beat_s
    assert numbers["sweep_s"] * 1_000 == sweep._DEFAULT_MS - sweep.SPARE_MS
    assert numbers["function_url"] == (DeploymentSettings().entry == "function_url")
    alarms = synthesis.resources("AWS::CloudWatch::Alarm")
    assert len(alarms) == numbers["alarms"]
    assert DeploymentSettings().metrics == "alarms"
    assert DeploymentSettings().queue_metrics_max == numbers["queue_metrics_max"]
    assert len(synthesis.resources("AWS::Logs::MetricFilter")) == 1


def test_a_line_of_the_access_log_is_as_long_as_it_is_priced(synthesis: Any) -> None:
    form = synthesis.one("AWS::ApiGatewayV2::Stage")["AccessLogSettings"]["Format"]
    line = re.sub(r"\$context\.([\w.]+)", lambda found: SAMPLES[found[1]], form)
    assert abs(len(line) - assumed()["access_log_bytes"]) <= 50


def test_an_idle_deployment_costs_at_most_five_dollars() -> None:
    """With dashboard and metrics per queue off, by list prices; with push delivery, too."""
    model = prices.Model(counted(), assumed())
    least = prices.idle(model)
    assert sum(least.values()) + prices.idle_push(model) <= 5, least


def test_realtime_costs_little_at_rest_and_its_default_keeps_the_bounds_of_jobs() -> None:
    counts = prices.Model(counted(), assumed())

    def whole(rate: float, level: str, life: str = "one by one") -> float:
        unheard = counts.unheard(counts.jobs(life, rate), level)
        return counts.whole(life, rate) + unheard / rate * 1e6

    default = str(DeploymentSettings().realtime)
    assert whole(0.4, default) <= 10.7
    assert whole(10, default) <= 8.0
    assert whole(10, default, "in tens") <= 4.5
    # Why that is not the default.
    assert default == "wake"
    assert whole(0.4, "all") > 10.7
    assert counts.listening(1) * prices.MONTH_S <= 0.50
    assert counts.listening(20) * prices.MONTH_S <= 1.40


def test_realtime_is_as_it_is_priced() -> None:
    numbers = assumed()
    assert numbers["fallback_s"] * 1_000 == listening.FALLBACK_MS
    assert prices._LESS_OFTEN == listening._MOST_TIMES
    assert prices._LISTENERS_S * 1_000 == rings.REMEMBERED_MS
    assert prices._SUBSCRIBERS_S * 1_000 == notify.REMEMBERED_MS


def test_alarms_look_at_as_many_metrics_as_are_priced(synthesis: Any, with_jwt: Any) -> None:
    def looked_at(made: Any) -> int:
        return sum(
            len([each for each in alarm.get("Metrics", [1]) if each == 1 or "MetricStat" in each])
            for alarm in made.resources("AWS::CloudWatch::Alarm").values()
        )

    numbers = assumed()
    assert looked_at(synthesis) == numbers["alarm_metrics"]
    assert len(QUEUES) == numbers["push_queues"]
    # With push delivery, and without the authorizer: its errors and its throttles.
    assert looked_at(with_jwt) == looked_at(synthesis) - 2 + numbers["push_alarm_metrics"]
