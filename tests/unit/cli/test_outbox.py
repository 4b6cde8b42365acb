"""`ojs-aws outbox replay`: what is sent to the relay, and when nothing is."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from botocore.exceptions import ClientError

from cli.__main__ import main

TABLE = {"StreamSpecification": {"StreamViewType": "NEW_IMAGE"}, "LatestStreamArn": "arn:stream"}
ITEMS = [{"id": {"S": f"{number}"}, "ojs_job": {"S": "{}"}} for number in range(3)]


class Aws:
    """The clients that the command uses, and the batches that the relay received."""

    def __init__(self, *answers: dict[str, Any], table: Any = TABLE, relays: int = 1) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self.answers = iter(answers)
        self.scan = Mock(return_value=[{"Items": ITEMS[:2]}, {"Items": []}, {"Items": ITEMS[2:]}])
        self.table, self.relays = table, relays

    def __call__(self, service: str) -> Any:
        if service == "dynamodb":
            return Mock(
                describe_table=Mock(return_value={"Table": self.table}),
                get_paginator=Mock(return_value=Mock(paginate=self.scan)),
            )
        found = [{"FunctionArn": "arn:relay"}] * self.relays
        mappings = Mock(return_value={"EventSourceMappings": found})
        return Mock(list_event_source_mappings=mappings, invoke=self.invoke)

    def invoke(self, *, FunctionName: str, Payload: bytes) -> Any:  # noqa: N803
        assert FunctionName == "arn:relay"
        self.batches.append(json.loads(Payload)["Records"])
        answer: dict[str, Any] = next(self.answers, {"batchItemFailures": []})
        if "FunctionError" in answer:
            return answer
        return {"Payload": BytesIO(json.dumps(answer).encode())}


def replay(monkeypatch: pytest.MonkeyPatch, aws: Aws) -> int:
    monkeypatch.setattr(boto3, "client", aws)
    return main(["outbox", "replay", "Box"])


def test_items_that_are_left_are_sent_as_new_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aws = Aws()
    aws.scan.return_value.append({"Items": [{"id": {"S": "b"}, "ojs_job": {"B": b"{}"}}]})
    assert replay(monkeypatch, aws) == 0
    assert [len(batch) for batch in aws.batches] == [2, 1, 1]
    (record, _), _, (binary,) = aws.batches
    change = record["dynamodb"]
    assert (record["eventName"], change["NewImage"]) == ("INSERT", ITEMS[0])
    assert change["Keys"] == {"id": ITEMS[0]["id"]}
    assert binary["dynamodb"]["NewImage"]["ojs_job"] == {"B": "e30="}
    # Items that expire have their jobs.
    assert aws.scan.call_args.kwargs["FilterExpression"] == "attribute_not_exists(expires)"
    assert capsys.readouterr().out == "4 items sent to the relay, 0 can't be stored now\n"


def test_what_cannot_be_stored_now_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aws = Aws({"batchItemFailures": [{"itemIdentifier": "1"}]})
    assert replay(monkeypatch, aws) == 7
    told = capsys.readouterr()
    assert told.out == "3 items sent to the relay, 1 can't be stored now\n"
    assert "a queue is full" in told.err


@pytest.mark.parametrize(
    ("aws", "status", "message"),
    [
        (Aws(table={}), 6, "Box is not a table of outbox_table"),
        (
            Aws(table={"StreamSpecification": {"StreamViewType": "NEW_AND_OLD_IMAGES"}}), 6,
            "Box is not a table of outbox_table",
        ),
        (Aws(relays=0), 5, "Box has no relay"),
        (Aws({"FunctionError": "Unhandled"}), 1, "the relay failed"),
    ],
)  # fmt: skip
def test_what_is_no_outbox_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    aws: Aws,
    status: int,
    message: str,
) -> None:
    assert replay(monkeypatch, aws) == status
    assert message in capsys.readouterr().err
    assert len(aws.batches) == (1 if status == 1 else 0)


def test_an_error_of_aws_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "DescribeTable")
    monkeypatch.setattr(boto3, "client", Mock(side_effect=error))
    assert main(["outbox", "replay", "Box"]) == 1
    assert capsys.readouterr().err.startswith("error: AWS: ")
