"""The settings of the projection, and the projector that is made of them."""

from __future__ import annotations

from typing import Any

import pytest

from ojs import projections
from ojs.clock import ManualClock
from ojs.projections import EventBridge, Projector, SqsFailureQueue
from ojs.settings import Settings
from ojs.store.table.table import Table


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "TABLE": "jobs",
        "SERVICE": "mail-service",
        "BUS": "mail-bus",
        "BUS_TYPES": "job.failed, job.*,,worker.*",
        "FAILURE_QUEUE": "https://sqs.test/q",
        "METRICS": "queues",
        "QUEUE_METRICS_MAX": "7",
        "JWT_SCOPE_CLAIM": "scp",
        "JWT_SCOPE_PREFIX": "ojs/",
        "IAM_OPERATORS": "arn:aws:iam::123456789012:role/a, *",
        "AUTHORIZER_CACHE_S": "5",
        "MAX_QUEUES": "0",
    }.items():
        monkeypatch.setenv(f"OJS_{name}", value)
    settings = Settings.from_environment()
    assert settings.service == "mail-service"
    assert settings.bus == "mail-bus"
    assert settings.bus_types == ("job.failed", "job.*", "worker.*")
    assert settings.failure_queue == "https://sqs.test/q"
    assert settings.metered_queues == 7
    assert (settings.jwt_scope_claim, settings.jwt_scope_prefix) == ("scp", "ojs/")
    assert settings.iam_operators == ("arn:aws:iam::123456789012:role/a", "*")
    assert (settings.authorizer_cache_s, settings.max_queues) == (5, 0)
    monkeypatch.setenv("OJS_IAM_OPERATORS", ",")
    assert Settings.from_environment().iam_operators == ()
    for level, most in (("alarms", 0), ("deployment", 0), ("queues", 7)):
        monkeypatch.setenv("OJS_METRICS", level)
        assert Settings.from_environment().metered_queues == most
    monkeypatch.setenv("OJS_QUEUE_METRICS_MAX", "0")
    assert Settings.from_environment().metered_queues is None


def test_the_environment_must_be_whole_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LookupError, match="OJS_TABLE"):
        Settings.from_environment()
    monkeypatch.setenv("OJS_TABLE", "jobs")
    for text, strict in (("", False), ("false", False), ("true", True), ("True", True)):
        monkeypatch.setenv("OJS_STRICT_QUEUES", text)
        assert Settings.from_environment().strict_queues is strict
    monkeypatch.setenv("OJS_STRICT_QUEUES", "perhaps")
    with pytest.raises(ValueError, match="strict_queues must be true or false"):
        Settings.from_environment()


def test_settings_that_are_not_given() -> None:
    settings = Settings(table="jobs")
    assert settings.service == "ojs-backend-aws"
    assert (settings.bus, settings.bus_types, settings.failure_queue) == (None, (), None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"authorizer": "nobody"},
        {"service": ""},
        {"service": "a/b"},
        {"service": "a b"},
        {"bus_types": ("job",)},
        {"bus_types": ("job.failed;job.started",)},
        {"bus_types": ("**",)},
        {"bus_types": ("Job.*",)},
        {"metrics": "some"},
        {"queue_metrics_max": -1},
        {"iam_operators": ("*", "arn:aws:iam::1:role/a")},
        {"iam_operators": ("arn:aws:sts::123456789012:assumed-role/a/b",)},
        {"authorizer_cache_s": -1},
        {"max_queues": -1},
    ],
)
def test_settings_that_are_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} has an invalid value"):
        Settings(table="jobs", **wrong)


def wired(**settings: Any) -> Projector:
    client: Any = None
    return projections.build(
        Settings(table="jobs", **settings), Table(client, "jobs"), ManualClock()
    )


def test_the_deployments_own_bus_and_failure_queue_are_used() -> None:
    bare = wired()
    assert bare._bus is None
    assert bare._failures is None
    full = wired(bus="mail-bus", failure_queue="https://sqs.test/q", bus_types=("job.*",))
    assert isinstance(full._bus, EventBridge)
    assert isinstance(full._failures, SqsFailureQueue)
    # Clients are made when they are first needed.
    assert full._bus._client is None
    assert full._failures._client is None
    assert "job.*" in full._bus_types
    assert "dead_letter.*" in full._bus_types


def test_without_a_failure_queue_a_malformed_record_is_logged_and_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    projector = wired()
    assert projector.run([{"eventID": "1", "dynamodb": {"args": "secret"}}], "shard") == []
    (logged,) = caplog.records
    assert logged.message == "Stream record skipped"
    assert vars(logged)["record"]["event_id"] == "1"
    assert "secret" not in repr(vars(logged))
    # Nothing follows from these, and nothing is read or written for them.
    assert projector.run([], "shard") == []
