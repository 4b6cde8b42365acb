"""Restore a table to a new table, with all settings that a backend needs.

    python restore.py ojs-prod-table restored-jobs --at 2026-11-22T10:00:00Z

It uses point-in-time recovery of the last 35 days. To use a copy of AWS Backup, restore it with AWS
Backup, and then run this with `--restored`, which skips the first step. You can repeat it:
completed steps stay unchanged.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import boto3

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import TableDescriptionTypeDef

TTL = "ttl"


def main() -> int:
    """Restore the table, and print the parameter of the new deployment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", help="the table that was damaged")
    parser.add_argument("target", help="the name of the new one")
    parser.add_argument("--at", type=_moment, metavar="TIME", help="as of then; else the latest")
    parser.add_argument("--restored", action="store_true", help="the target is there already")
    options = parser.parse_args()
    table: DynamoDBClient = boto3.client("dynamodb")
    if not options.restored:
        restore(table, options.source, options.target, options.at)
    print(f"stream={complete(table, options.target)}")
    return 0


def restore(table: DynamoDBClient, source: str, target: str, at: datetime | None) -> None:
    """Start the restore of the table in DynamoDB. It takes minutes to hours."""
    when: Any = {"UseLatestRestorableTime": True} if at is None else {"RestoreDateTime": at}
    try:
        table.restore_table_to_point_in_time(SourceTableName=source, TargetTableName=target, **when)
    except table.exceptions.TableAlreadyExistsException:
        print(f"{target} is there already", file=sys.stderr)


def complete(table: DynamoDBClient, name: str) -> str:
    """Set the properties that a restored table lacks. Return the ARN of its stream."""
    wait(table, name)
    aged = table.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    if aged["TimeToLiveStatus"] == "DISABLED":
        table.update_time_to_live(
            TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL}
        )
    found = wait(table, name)
    if not found.get("StreamSpecification", {}).get("StreamEnabled"):
        table.update_table(
            TableName=name,
            # Counters and events need both images.
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )
    found = wait(table, name)
    if not found.get("DeletionProtectionEnabled"):
        table.update_table(TableName=name, DeletionProtectionEnabled=True)
        found = wait(table, name)
    table.update_continuous_backups(
        TableName=name, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
    )
    return found["LatestStreamArn"]


def wait(table: DynamoDBClient, name: str) -> TableDescriptionTypeDef:
    """Wait until the table can be used. Return its description."""
    while (found := table.describe_table(TableName=name)["Table"])["TableStatus"] != "ACTIVE":
        time.sleep(5)
    return found


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError("has no time zone: write 2026-11-22T10:00:00Z")
    return moment


if __name__ == "__main__":
    sys.exit(main())
