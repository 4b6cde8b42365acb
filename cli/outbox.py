"""`ojs-aws outbox`: creates the jobs of items that are left in an outbox."""

from __future__ import annotations

import argparse
import base64
import json
import time
from typing import Any

from cli import output
from cli.target import CommandError, Exit

# Items of one call, as of one batch of the stream.
_BATCH = 100


def add(commands: Any) -> None:
    """Add the command and its subcommands to the parser."""
    parser = commands.add_parser("outbox", help="create the jobs of items that are left")
    actions = parser.add_subparsers(required=True, metavar="replay")
    replay = actions.add_parser(
        "replay",
        help="send all items of an outbox to its relay again; reads the whole table, with your AWS "
        "credentials",
    )
    replay.add_argument("table", metavar="NAME", help="name of the table")
    output.add_json(replay)
    replay.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        sent, failed = _replay(options.table)
    except (BotoCoreError, ClientError) as error:
        raise CommandError(f"AWS: {error}") from None
    if options.json:
        output.as_json({"sent": sent, "failed": failed})
    else:
        print(f"{output.number(sent, 'item')} sent to the relay, {failed} can't be stored now")
    if failed:
        raise CommandError("a queue is full, or the table throttles requests", Exit.BUSY)


def _replay(name: str) -> tuple[int, int]:
    """Send the items to the relay. Returns their number, and the number of failed ones."""
    import boto3

    dynamodb, functions = boto3.client("dynamodb"), boto3.client("lambda")
    table = dynamodb.describe_table(TableName=name)["Table"]
    # Items of an own table are not changed: nothing shows whether their jobs were created.
    if table.get("StreamSpecification", {}).get("StreamViewType") != "NEW_IMAGE":
        raise CommandError(f"{name} is not a table of outbox_table", Exit.REFUSED)
    stream = table["LatestStreamArn"]
    relays = functions.list_event_source_mappings(EventSourceArn=stream)["EventSourceMappings"]
    if not relays:
        raise CommandError(f"{name} has no relay. Add it with add_outbox", Exit.NOT_FOUND)
    sent = failed = 0
    for page in dynamodb.get_paginator("scan").paginate(
        TableName=name,
        FilterExpression="attribute_not_exists(expires)",
        PaginationConfig={"PageSize": _BATCH},
    ):
        records = [_record(number, item) for number, item in enumerate(page["Items"])]
        if records:
            sent += len(records)
            failed += _relay(functions, relays[0]["FunctionArn"], records)
    return sent, failed


def _record(number: int, item: dict[str, Any]) -> dict[str, Any]:
    """Return the stream record of a new item."""
    change = {
        "ApproximateCreationDateTime": time.time(),
        "Keys": {"id": item["id"]},
        "NewImage": item,
        "SequenceNumber": str(number),
    }
    return {"eventName": "INSERT", "eventSource": "aws:dynamodb", "dynamodb": change}


def _relay(functions: Any, function: str, records: list[dict[str, Any]]) -> int:
    """Invoke the relay. Returns the number of failed items."""
    # Binary values, as in an event of the stream.
    text = json.dumps({"Records": records}, default=lambda value: base64.b64encode(value).decode())
    answer = functions.invoke(FunctionName=function, Payload=text.encode())
    if "FunctionError" in answer:
        raise CommandError("the relay failed. Check its log")
    return len(json.loads(answer["Payload"].read())["batchItemFailures"])
