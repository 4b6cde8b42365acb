"""The outbox of the construct: its table, its relay, and what the relay may do."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from aws_cdk import App, Stack, assertions
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns

from infra import ROOT
from ojs_aws.cdk import DeploymentSettings, OpenJobSpec
from ojs_aws.cdk.functions import STREAM_SOURCE
from tests.infra.construct import PLACE, Made, role

if TYPE_CHECKING:
    from collections.abc import Callable

ID = dynamodb.Attribute(name="pk", type=dynamodb.AttributeType.STRING)
BOTH = dynamodb.StreamViewType.NEW_AND_OLD_IMAGES


def own_table(stack: Stack, name: str = "Orders", **more: Any) -> dynamodb.Table:
    recovery = dynamodb.PointInTimeRecoverySpecification(point_in_time_recovery_enabled=True)
    return dynamodb.Table(
        stack, name, partition_key=ID, point_in_time_recovery_specification=recovery, **more
    )


@pytest.fixture(scope="module")
def made(code: Callable[[], lambda_.Code]) -> Made:
    app = App()
    stack = Stack(app, "shop", env=PLACE)
    jobs = OpenJobSpec(stack, "Jobs", alarm_topics=[sns.Topic(stack, "Ops", enforce_ssl=True)],
                       settings=DeploymentSettings(encryption="own"), code=code())  # fmt: skip
    box = jobs.outbox_table("Outbox")
    jobs.add_outbox(box, queues=["orders"], types=["order.*"], window_s=5)
    box.grant(role(stack, "Shop"), "dynamodb:PutItem")
    jobs.add_outbox(jobs.outbox_table("Kept"), after="keep", ordered=True)
    key = kms.Key(stack, "Key", enable_key_rotation=True)
    jobs.add_outbox(own_table(stack, stream=BOTH, encryption_key=key), attribute="job")
    return Made(app, stack, jobs)


def relays(made: Made) -> dict[str, dict[str, Any]]:
    """The configuration of each relay, by the table's construct."""
    found = {}
    for name, each in made.all("AWS::Lambda::Function").items():
        variables = each["Properties"]["Environment"]["Variables"]
        if "OJS_OUTBOX" in variables:
            table = name.split("shop")[-1].removeprefix("Jobs").partition("Relay")[0]
            found[table] = each["Properties"]
    return found


def statements(made: Made, relay: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        statement
        for policy in made.all("AWS::IAM::Policy").values()
        if policy["Properties"]["Roles"] == [{"Ref": relay["Role"]["Fn::GetAtt"][0]}]
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
    ]


def test_no_finding_without_a_written_reason(made: Made) -> None:
    assert made.findings() == []


def test_a_table_has_a_stream_of_new_items(made: Made) -> None:
    box = made.some("AWS::DynamoDB::Table", "Outbox")
    assert box["KeySchema"] == [{"AttributeName": "id", "KeyType": "HASH"}]
    assert box["StreamSpecification"] == {"StreamViewType": "NEW_IMAGE"}
    assert box["TimeToLiveSpecification"] == {"AttributeName": "expires", "Enabled": True}
    assert box["BillingMode"] == "PAY_PER_REQUEST"
    assert box["DeletionProtectionEnabled"] is True
    assert box["SSESpecification"]["SSEType"] == "KMS"


def test_the_relay_knows_its_table_and_its_limits(made: Made) -> None:
    def said(table: str) -> dict[str, Any]:
        text = relays(made)[table]["Environment"]["Variables"]["OJS_OUTBOX"]
        joined = "".join(each if isinstance(each, str) else "T" for each in text["Fn::Join"][1])
        found: dict[str, Any] = json.loads(joined)
        return found

    names = {"table": "T", "refused": "T", "later": "T"}
    assert said("Outbox") == {
        **names, "attribute": "ojs_job", "own": False, "ordered": False, "keep": False,
        "queues": ["orders"], "types": ["order.*"],
    }  # fmt: skip
    assert said("Kept") == {
        **names, "attribute": "ojs_job", "own": False, "ordered": True, "keep": True,
    }  # fmt: skip
    assert said("Orders") == {
        **names, "attribute": "job", "own": True, "ordered": False, "keep": False,
    }  # fmt: skip


def test_a_stream_is_read_in_order_and_without_end(made: Made) -> None:
    mappings = made.all("AWS::Lambda::EventSourceMapping")
    (box,) = (each["Properties"] for name, each in mappings.items() if "OutboxMapping" in name
              and "Filter" in json.dumps(each))  # fmt: skip
    assert (box["BatchSize"], box["MaximumBatchingWindowInSeconds"]) == (100, 5)
    assert (box["ParallelizationFactor"], box["BisectBatchOnFunctionError"]) == (1, False)
    assert (box["MaximumRetryAttempts"], box["MaximumRecordAgeInSeconds"]) == (-1, -1)
    assert box["StartingPosition"] == "TRIM_HORIZON"
    assert box["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert "Refused" in json.dumps(box["DestinationConfig"])
    assert [json.loads(each["Pattern"]) for each in box["FilterCriteria"]["Filters"]] == [
        {"dynamodb": {"NewImage": {"id": {"S": [{"exists": True}]}}}}
    ]
    (own,) = (each["Properties"] for name, each in mappings.items() if "OrdersMapping" in name
              and "Filter" in json.dumps(each))  # fmt: skip
    images = [json.loads(each["Pattern"])["dynamodb"]["NewImage"]["job"]
              for each in own["FilterCriteria"]["Filters"]]  # fmt: skip
    assert len(images) <= 5  # as many as a mapping takes
    assert {kind for each in images for kind in each} == {"S", "L", "M", "B"}
    later = [each["Properties"] for name, each in mappings.items() if "SqsEventSource" in name]
    assert len(later) == 3
    assert all(each["FunctionResponseTypes"] == ["ReportBatchItemFailures"] for each in later)
    hidden = {each["Properties"]["VisibilityTimeout"] for name, each in
              made.all("AWS::SQS::Queue").items() if "Outboxes" in name}  # fmt: skip
    assert {relay["Timeout"] for relay in relays(made).values()} == {60}
    assert hidden == {360}


@pytest.mark.parametrize(
    ("table", "writes"), [("Outbox", "BatchWriteItem"), ("Kept", "UpdateItem"), ("Orders", None)]
)
def test_the_relay_may_do_no_more_than_it_does(made: Made, table: str, writes: str | None) -> None:
    relay = relays(made)[table]
    streams, changes, sends = set(), set(), set()
    for each in statements(made, relay):
        actions = each["Action"] if isinstance(each["Action"], list) else [each["Action"]]
        where = json.dumps(each["Resource"])
        assert each["Effect"] == "Allow"
        if "JobsStorage" in where:
            continue
        for action in actions:
            if action.removeprefix("dynamodb:") in STREAM_SOURCE:
                assert "StreamArn" in where
                assert table in where
                streams.add(action.removeprefix("dynamodb:"))
            elif action.startswith("dynamodb:"):
                assert table in where
                assert "StreamArn" not in where
                changes.add(action.removeprefix("dynamodb:"))
            elif action.startswith("sqs:"):
                assert "Outboxes" in where
                sends.add(action)
    assert streams == STREAM_SOURCE
    assert changes == ({writes} if writes else set())
    assert sends == {
        "sqs:SendMessage", "sqs:ReceiveMessage", "sqs:ChangeMessageVisibility", "sqs:GetQueueUrl",
        "sqs:DeleteMessage", "sqs:GetQueueAttributes",
    }  # fmt: skip
    assert relay["Handler"] == "functions.bridge.handler.handler"
    assert "OJS_AUTHORIZER" not in relay["Environment"]["Variables"]


def test_the_application_may_put_items_alone(made: Made) -> None:
    policy = made.some("AWS::IAM::Policy", "ShopDefaultPolicy")
    actions = [each["Action"] for each in policy["PolicyDocument"]["Statement"]]
    assert "dynamodb:PutItem" in actions


def test_an_outbox_that_is_behind_or_refuses_items_is_an_alarm(made: Made) -> None:
    alarms = {
        each["Properties"]["AlarmName"].removeprefix("ojs-dev-"): each["Properties"]
        for each in made.all("AWS::CloudWatch::Alarm").values()
        if "-outbox-shop-Orders" in each["Properties"]["AlarmName"]
    }
    told = {
        name: (each["MetricName"], each["Threshold"], each["EvaluationPeriods"])
        for name, each in alarms.items()
    }
    assert told == {
        "outbox-shop-Orders": ("IteratorAge", 300_000, 3),
        "outbox-shop-Orders-later": ("ApproximateAgeOfOldestMessage", 300, 3),
        "outbox-shop-Orders-refused": ("ApproximateNumberOfMessagesVisible", 1, 1),
    }
    page = (ROOT / "docs/operations.md").read_text("utf-8")
    for name in alarms:
        assert name.replace("shop-Orders", "…") in page
    assert all(each["AlarmActions"] for each in alarms.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"after": "drop"}, "after: must be delete or keep, but is 'drop'"),
        ({"queues": []}, "queues: must be a list of names, but is \\[\\]"),
        ({"queues": "orders"}, "queues: must be a list of names, but is 'orders'"),
        ({"types": [""]}, "types: must be a list of names"),
        ({"window_s": 301}, "window_s: must be 0 to 300, but is 301"),
        ({"window_s": -1}, "window_s: must be 0 to 300, but is -1"),
        ({"alarm_age_s": 59}, "alarm_age_s: must be at least 60, but is 59"),
    ],
)
def test_an_outbox_that_contradicts_itself_is_refused(
    code: Callable[[], lambda_.Code], arguments: dict[str, Any], message: str
) -> None:
    stack = Stack(App(), "shop", env=PLACE)
    jobs = OpenJobSpec(stack, "Jobs", code=code())
    with pytest.raises(ValueError, match=message):
        jobs.add_outbox(jobs.outbox_table("Outbox"), **arguments)
    assert "Outboxes" not in [each.node.id for each in jobs.node.children]


def test_an_own_table_needs_a_stream_with_both_images(code: Callable[[], lambda_.Code]) -> None:
    stack = Stack(App(), "shop", env=PLACE)
    jobs = OpenJobSpec(stack, "Jobs", code=code())
    both = own_table(stack, "Both", stream=BOTH)
    assert jobs.outbox_table("Outbox").grant_write_data(role(stack, "Api")).success
    arn = f"arn:aws:dynamodb:eu-central-1:{PLACE.account}:table/old"
    for table in (
        own_table(stack, "None"),
        own_table(stack, "New", stream=dynamodb.StreamViewType.NEW_IMAGE),
        dynamodb.Table.from_table_arn(stack, "Known", arn),
    ):
        with pytest.raises(ValueError, match="table: requires a stream with NEW_AND_OLD_IMAGES"):
            jobs.add_outbox(table)
    with pytest.raises(ValueError, match="after: must be keep"):
        jobs.add_outbox(both, after="delete")
    jobs.add_outbox(both, after="keep")
    with pytest.raises(ValueError, match="shop/Both already has an outbox"):
        jobs.add_outbox(both)
    imported = dynamodb.Table.from_table_attributes(
        stack, "Old", table_arn=arn, table_stream_arn=f"{arn}/stream/2026"
    )
    jobs.add_outbox(imported)
    second = dynamodb.TableV2(stack, "V2", partition_key=ID, dynamo_stream=BOTH)
    jobs.add_outbox(second)
    assert len(assertions.Template.from_stack(stack).find_resources("AWS::SQS::Queue")) == 7


def test_without_an_outbox_nothing_differs(code: Callable[[], lambda_.Code]) -> None:
    stack = Stack(App(), "shop", env=PLACE)
    OpenJobSpec(stack, "Jobs", code=code())
    text = json.dumps(assertions.Template.from_stack(stack).to_json())
    assert "outbox" not in text.lower().replace("ojs_outbox", "outbox")


def test_the_stack_of_the_page(code: Callable[[], lambda_.Code]) -> None:
    text = (ROOT / "docs/outbox.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(box.*?)```", text, re.DOTALL)
    stack = Stack(App(), "shop", env=PLACE)
    jobs = OpenJobSpec(stack, "Jobs", code=code())
    exec(block, {"jobs": jobs, "api": role(stack, "Api")})
    template = assertions.Template.from_stack(stack)
    assert len(template.find_resources("AWS::DynamoDB::Table")) == 2
