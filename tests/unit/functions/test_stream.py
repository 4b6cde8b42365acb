"""The stream function's handler: what Lambda gives it, and what Lambda is told."""

from __future__ import annotations

import copy
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from functions.stream import handler as module
from functions.stream.handler import handler
from local.lambda_context import LambdaContext
from ojs import runtime
from ojs.domain.events.query import EventFilter
from ojs.projections import metrics
from ojs.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.functions.client import Api

EVENTS = Path(__file__).parents[3] / "events" / "stream"
LIFE = json.loads((EVENTS / "job_life.json").read_text("utf-8"))
POISON = json.loads((EVENTS / "poison.json").read_text("utf-8"))
# When what the samples tell of happened.
NOW_MS = 1_770_201_010_000
DONE: dict[str, Any] = {"state": {}, "batchItemFailures": []}
WINDOW = {name: value for name, value in LIFE.items() if name != "Records"}


@pytest.fixture(autouse=True)
def now(api: Api) -> None:
    api.clock.advance(NOW_MS - api.clock.now_ms())


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The metrics written."""
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if "_aws" in line]


@pytest.mark.requirement("C-20")
def test_a_jobs_life_is_counted_and_told(
    api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.runtime, "settings", replace(api.runtime.settings, metrics="queues"))
    assert handler(LIFE, LambdaContext("stream")) == DONE
    stats = api("GET", "/ojs/v1/queues/email/stats").json["stats"]
    assert (stats["completed"], stats["available"], stats["active"]) == (1, 0, 0)
    assert (stats["enqueued_today"], stats["completed_today"]) == (1, 1)
    assert stats["avg_wait_ms"] == 1_500
    told = api("GET", "/ojs/v1/events").json["events"]
    assert [event["type"] for event in told] == ["job.enqueued", "job.started", "job.completed"]
    written = printed(capsys)
    assert {name for line in written for name in line if name.startswith("ojs.")} == {
        "ojs.job.enqueued",
        "ojs.job.completed",
        "ojs.job.queue_time",
        "ojs.job.duration",
        "ojs.queue.created.count",
    }
    for line in written:
        if "ojs.queue.created.count" not in line:
            assert (line["queue"], line["type"]) == ("email", "email.send")
        assert line["service"] == Settings(table="any").service
        assert line["_aws"]["CloudWatchMetrics"][0]["Namespace"] == metrics.NAMESPACE


def test_a_batch_that_comes_again_changes_nothing(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    handler(LIFE, LambdaContext("stream"))
    before = api("GET", "/ojs/v1/queues/email/stats").json["stats"]
    capsys.readouterr()
    assert handler(LIFE, LambdaContext("stream")) == DONE
    for record in LIFE["Records"]:
        assert handler({**WINDOW, "Records": [record]}, LambdaContext("stream")) == DONE
    assert api("GET", "/ojs/v1/queues/email/stats").json["stats"] == before
    assert len(api("GET", "/ojs/v1/events").json["events"]) == 3
    assert printed(capsys) == []


@pytest.mark.usefixtures("moto")  # for SQS
def test_one_that_cannot_be_read_goes_to_the_failure_queue_and_the_rest_goes_on(
    make_runtime: Callable[[], runtime.Runtime],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = boto3.client("sqs").create_queue(QueueName="failures-of-this")["QueueUrl"]
    built = make_runtime()
    monkeypatch.setattr(built, "settings", replace(built.settings, failure_queue=queue))
    runtime.use(built)
    assert handler(POISON, LambdaContext("stream")) == DONE
    (message,) = boto3.client("sqs").receive_message(QueueUrl=queue)["Messages"]
    entry = json.loads(message["Body"])
    good, bad = POISON["Records"]
    assert entry["sequence_number"] == bad["dynamodb"]["SequenceNumber"]
    assert entry["keys"]["pk"] == bad["dynamodb"]["Keys"]["pk"]["S"]
    assert built.stats.queue("email").today.enqueued == 1
    assert good["eventName"] == "INSERT"
    # Neither the queue nor the log holds what the job does.
    assert "ada@example.com" not in message["Body"] + caplog.text + str(logged(caplog))


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.__dict__ for record in caplog.records]


class Projector:
    """Reports what it is told to."""

    def __init__(self, *failed: str) -> None:
        self.failed = list(failed)

    def run(self, records: Any, shard: str) -> list[str]:
        assert len(records) == len(LIFE["Records"])
        assert shard == LIFE["shardId"]
        return self.failed


def test_failures_are_reported_by_sequence_number(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = [record["dynamodb"]["SequenceNumber"] for record in LIFE["Records"]]
    monkeypatch.setattr(module, "_projector", lambda _runtime: Projector(*numbers[1:3]))
    answer = handler(LIFE, LambdaContext("stream"))
    assert answer == DONE | {"batchItemFailures": [{"itemIdentifier": n} for n in numbers[1:3]]}
    (record,) = logged(caplog)
    assert record["levelno"] == logging.WARNING
    assert (record["records"], record["failed"]) == (4, 2)
    assert record["sequence_numbers"] == numbers[1:3]
    assert "ada@example.com" not in str(record)


def test_success_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert handler(LIFE, LambdaContext("stream")) == DONE
    assert logged(caplog) == []


def test_everything_logged_meanwhile_has_the_id_of_the_delivery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    class Logging(Projector):
        def run(self, _records: Any, _shard: str) -> list[str]:
            seen.append(dict(module.logger.thread_safe_get_current_keys()))
            raise RuntimeError("defect")

    monkeypatch.setattr(module, "_projector", lambda _runtime: Logging())
    context = LambdaContext("stream")
    with pytest.raises(RuntimeError):
        handler(LIFE, context)
    assert seen == [{"correlation_id": context.aws_request_id}]
    assert module.logger.thread_safe_get_current_keys() == {}


# The documented events of a tumbling window: no emulator here sends them.
@pytest.mark.parametrize("state", [{}, {"1": "state1"}, None])
@pytest.mark.parametrize(
    ("final", "early"), [(False, False), (True, False), (True, True)], ids=["mid", "final", "early"]
)
@pytest.mark.parametrize("records", [LIFE["Records"], [], None], ids=["some", "none", "left out"])
def test_every_answer_within_a_window_has_its_state(
    api: Api, state: Any, final: bool, early: bool, records: Any
) -> None:
    """Lambda takes an answer without it for a failure. The last invocation of a window may have no
    records, and the first no state.
    """
    event = WINDOW | {"isFinalInvokeForWindow": final, "isWindowTerminatedEarly": early}
    event |= {"Records": records, "state": state}
    event = {name: value for name, value in event.items() if value is not None}
    assert handler(event, LambdaContext("stream")) == DONE | {"state": state or {}}
    listed = api("GET", "/ojs/v1/events").json["events"]
    assert len(listed) == (3 if records else 0)


@pytest.mark.parametrize("event", [{}, {"Records": []}])
def test_nothing_is_nothing(event: dict[str, Any]) -> None:
    assert handler(event, LambdaContext("stream")) == {"batchItemFailures": []}


def test_records_of_a_mapping_without_a_window_come_again(
    api: Api, monkeypatch: pytest.MonkeyPatch, make_runtime: Callable[[], runtime.Runtime]
) -> None:
    """An upgrade changes the function, then the mapping: until then nothing is projected, as
    positions of two shards must not be mixed. Only an emulator has just one shard.
    """
    first = LIFE["Records"][0]["dynamodb"]["SequenceNumber"]
    old = {"Records": LIFE["Records"]}
    assert handler(old, LambdaContext("stream")) == {
        "batchItemFailures": [{"itemIdentifier": first}]
    }
    assert api("GET", "/ojs/v1/events").json["events"] == []
    built = make_runtime()
    monkeypatch.setattr(built, "settings", replace(built.settings, shard="the one"))
    runtime.use(built)
    assert handler(old, LambdaContext("stream")) == {"batchItemFailures": []}
    assert len(built.events.list(EventFilter(), limit=9).events) == 3


@pytest.mark.parametrize("kind", ["window", "late"])
def test_records_without_a_shard_are_projected_once(
    api: Api, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """AWS documents `shardId`, and no emulator sends it: without it nothing stops."""
    event = {name: value for name, value in LIFE.items() if name != "shardId"}
    if kind == "late":
        event = {"Records": LIFE["Records"]}
        api.clock.advance(600_000)
    done = DONE if kind == "window" else {"batchItemFailures": []}
    for _ in range(2):
        assert handler(event, LambdaContext("stream")) == done
    stats = api("GET", "/ojs/v1/queues/email/stats").json["stats"]
    assert (stats["enqueued_today"], stats["completed_today"]) == (1, 1)
    assert len(api("GET", "/ojs/v1/events").json["events"]) == 3
    assert any("shardId" in str(record["msg"]) for record in logged(caplog))


def test_records_of_other_items_change_nothing(api: Api) -> None:
    record = copy.deepcopy(LIFE["Records"][1])
    record["dynamodb"]["Keys"] = {"pk": {"S": "S|email"}, "sk": {"S": "@"}}
    assert handler({**WINDOW, "Records": [record]}, None) == DONE
    assert api("GET", "/ojs/v1/events").json["events"] == []


def test_a_projector_is_made_once_for_each_runtime(
    make_runtime: Callable[[], runtime.Runtime],
) -> None:
    first = module._projector(runtime.current())
    assert module._projector(runtime.current()) is first
    runtime.use(make_runtime())
    assert module._projector(runtime.current()) is not first


@pytest.mark.parametrize(
    ("variable", "value", "namespaces"),
    [
        ("POWERTOOLS_METRICS_NAMESPACE", "Jobs", {"Jobs"}),
        # As on a machine without CloudWatch, where the output is somebody's terminal.
        ("POWERTOOLS_METRICS_DISABLED", "true", set()),
    ],
)
def test_metrics_go_where_the_deployment_says(
    make_runtime: Callable[..., runtime.Runtime],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    namespaces: set[str],
) -> None:
    monkeypatch.setenv(variable, value)
    runtime.use(make_runtime(metrics="queues"))
    assert handler(LIFE, LambdaContext("stream")) == DONE
    found = {line["_aws"]["CloudWatchMetrics"][0]["Namespace"] for line in printed(capsys)}
    assert found == namespaces
