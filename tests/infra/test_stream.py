"""The way from the table's stream to the projection, the bus, and the failure queue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ojs.store.table import keys, schema
from ojs_aws.cdk import server
from ojs_aws.cdk.parts.stream import pattern
from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Callable

MAPPING = "AWS::Lambda::EventSourceMapping"
JOB = "019414d4-aaaa-7000-8000-111111111111"
PROJECTED = [
    (keys.job(JOB), keys.RECORD),
    (keys.queue("email"), keys.RECORD),
    (keys.batch("token"), keys.RECORD),
    (keys.worker("07"), "worker_1"),
    (keys.counter("email"), keys.DEPTH),
    (keys.counter("email"), keys.REFUSED),
    (keys.counter("email"), keys.SEMAPHORE_THROTTLED),
    (keys.counter("email"), keys.RATE_THROTTLED),
    (keys.limiter("cell"), keys.THROTTLED),
    (keys.limiter("cell"), keys.ADJUSTED),
]
LEFT_OUT = [
    (keys.job(JOB), keys.PROGRESS),
    (keys.job(JOB), keys.error(0, 1)),
    (keys.job(JOB), f"{keys.PAYLOAD}token"),
    (keys.job(JOB), f"{keys.RESULT}token"),
    (keys.QUEUES, "email"),
    (keys.unique("digest"), keys.RECORD),
    # What changes with every job that is handed out under a limit.
    (keys.counter("email"), keys.SEMAPHORE),
    (keys.counter("email"), keys.RATE),
    (keys.limiter("cell"), keys.RECORD),
    # What the projection writes: it must not feed itself.
    (keys.stats("email"), keys.NOW),
    (keys.stats("email"), keys.day("2026-11-21")),
    (keys.stats(keys.ALL_QUEUES), keys.NOW),
    (keys.dedup_records(1_795_272_604), "0000"),
    (keys.events("2026-11-21"), keys.event_page(1, "token")),
]


def function_of(synthesis: Any, logical_id: str) -> str:
    handler: str = synthesis.resources("AWS::Lambda::Function")[logical_id]["Handler"]
    return handler.split(".")[1]


def test_the_stream_is_mapped_to_its_function(synthesis: Any) -> None:
    mapping = synthesis.one(MAPPING)
    assert function_of(synthesis, mapping["FunctionName"]["Ref"]) == "stream"
    assert "StreamArn" in mapping["EventSourceArn"]["Fn::ImportValue"]
    # The oldest record first: what was written before the mapping was there counts too.
    assert mapping["StartingPosition"] == "TRIM_HORIZON"
    assert mapping["BatchSize"] == schema.STREAM_BATCH == 100
    # More records together cost less; statistics are that far behind.
    assert mapping["MaximumBatchingWindowInSeconds"] == 10


def test_a_tumbling_window_makes_lambda_name_the_shard(synthesis: Any) -> None:
    """Its counters are kept by shard: they must come in order, and one batch after the other."""
    mapping = synthesis.one(MAPPING)
    assert mapping["TumblingWindowInSeconds"] == 900
    assert mapping["ParallelizationFactor"] == 1
    assert mapping["BisectBatchOnFunctionError"] is False


def test_window_and_batch_are_settings(
    synthesise: Callable[[DeploymentSettings], Any],
) -> None:
    chosen = synthesise(DeploymentSettings(stream_batch_size=500, stream_window_s=0)).one(MAPPING)
    assert (chosen["BatchSize"], chosen["MaximumBatchingWindowInSeconds"]) == (500, 0)
    # The alarm on the stream's age allows for the longest window.
    longest = DeploymentSettings(stream_window_s=30)
    assert longest.alarm_stream_age_s >= 2 * longest.stream_window_s
    for wrong in ({"stream_batch_size": 1_001}, {"stream_window_s": 31}, {"stream_window_s": -1}):
        with pytest.raises(ValueError, match="stream_"):
            DeploymentSettings.model_validate(wrong)


def test_failures_are_bounded_and_reported(synthesis: Any) -> None:
    mapping = synthesis.one(MAPPING)
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    # The age alone ends it: before that the function puts aside what fails.
    assert mapping["MaximumRetryAttempts"] == -1
    assert mapping["MaximumRecordAgeInSeconds"] == schema.STREAM_MAX_AGE_S
    assert 3_600 <= mapping["MaximumRecordAgeInSeconds"] < 86_400
    destination = mapping["DestinationConfig"]["OnFailure"]["Destination"]
    (queue,) = synthesis.resources("AWS::SQS::Queue")
    assert destination == {"Fn::GetAtt": [queue, "Arn"]}
    stream = next(
        function
        for function in synthesis.resources("AWS::Lambda::Function").values()
        if function["Handler"] == "functions.stream.handler.handler"
    )
    # Longer than the projection tries by itself: a batch that was cut off would have done nothing.
    assert stream["Timeout"] >= 60
    assert stream["Environment"]["Variables"]["OJS_FAILURE_QUEUE"] == {"Ref": queue}


def test_the_mapping_waits_for_the_role(synthesis: Any) -> None:
    (mapping,) = synthesis.service.find_resources(MAPPING).values()
    policies = synthesis.service.find_resources("AWS::IAM::Policy")
    assert {"StreamRoleDefaultPolicy"} <= {name[:-8] for name in mapping["DependsOn"]}
    assert set(mapping["DependsOn"]) & set(policies)


def matches(wanted: Any, record: Any) -> bool:
    """Whether Lambda would take a record for this pattern, as far as the patterns here go."""
    if isinstance(wanted, dict):
        return all(name in record and matches(wanted[name], record[name]) for name in wanted)
    return any(
        record.startswith(each["prefix"]) if isinstance(each, dict) else record == each
        for each in wanted
    )


@pytest.mark.parametrize(
    ("pk", "sk", "projected"),
    [(*key, True) for key in PROJECTED] + [(*key, False) for key in LEFT_OUT],
)
def test_only_what_is_projected_is_delivered(
    synthesis: Any, pk: str, sk: str, projected: bool
) -> None:
    filters = synthesis.one(MAPPING)["FilterCriteria"]["Filters"]
    # Lambda takes five unless it is asked for more.
    assert len(filters) <= 5
    patterns = [json.loads(each["Pattern"]) for each in filters]
    assert patterns == [pattern(each) for each in server.STREAM_FILTERS]
    record = {"dynamodb": {"Keys": {"pk": {"S": pk}, "sk": {"S": sk}}}}
    assert any(matches(each, record) for each in patterns) is projected
    # The local server filters by the same table.
    assert schema.TABLE.projects(pk, sk) is projected


def test_the_bus_has_the_name_that_rules_know(
    synthesise: Callable[[DeploymentSettings], Any], synthesis: Any
) -> None:
    assert synthesis.one("AWS::Events::EventBus")["Name"] == "ojs-dev"
    synthesis.service.has_output("EventBusName", {})
    other = synthesise(DeploymentSettings(stage="prod-eu", bus_types=("job.*", "worker.started")))
    assert other.one("AWS::Events::EventBus")["Name"] == "ojs-prod-eu"
    # What publishes, and what publishes later.
    functions = {
        function["Handler"]: function["Environment"]["Variables"]
        for function in other.resources("AWS::Lambda::Function").values()
        if "OJS_BUS" in function["Environment"]["Variables"]
    }
    assert sorted(name.split(".")[1] for name in functions) == ["stream", "sweep"]
    for variables in functions.values():
        assert variables["OJS_BUS_TYPES"] == "job.*,worker.started"
        assert variables["OJS_SERVICE"] == "ojs-prod-eu"
        # Only the emulator has one shard.
        assert "OJS_SHARD" not in variables
