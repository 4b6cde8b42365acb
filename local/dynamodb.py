"""The engine as a DynamoDB: clients of it, and the project's table on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from botocore.config import Config

from ojs.clock import Clock
from ojs.projections.counters import Tally
from ojs.store.jobs import items
from ojs.store.table import clients, keys, schema, values
from ojs.store.table.table import Put, Table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# As many calls to the engine at once as there are likely to be requests at once.
_CONNECTIONS = 128


class StaleData(Exception):
    """The engine's data were written by a version with another schema."""


def connect(url: str) -> DynamoDBClient:
    """A client for a local engine, with credentials that are worth nothing."""
    config = clients.DYNAMODB_CONFIG.merge(Config(max_pool_connections=_CONNECTIONS))
    return clients.dynamodb(**_arguments(url, config))


def connect_to_streams(url: str) -> Any:
    """A client for the streams of a local engine's tables."""
    return clients.client("dynamodbstreams", **_arguments(url, clients.CONFIG))


def _arguments(url: str, config: Config) -> dict[str, Any]:
    return {
        "endpoint_url": url,
        "region_name": "us-east-1",
        "aws_access_key_id": "local",
        "aws_secret_access_key": "local",  # the engines take anything
        "config": config,
    }


def create_table(
    client: DynamoDBClient, name: str, clock: Clock, *, forget: Callable[[], None]
) -> None:
    """Create the table, with its stream, unless it is there.

    `forget` is called before it is created. A table of a version that had no stream gets one.
    Raises StaleData when it has another schema.
    """
    wanted = schema.create_table_arguments(name, stream=True)
    try:
        found = client.describe_table(TableName=name)["Table"]
    except client.exceptions.ResourceNotFoundException:
        forget()
        client.create_table(**wanted)
        client.update_time_to_live(
            TableName=name,
            TimeToLiveSpecification={"Enabled": True, "AttributeName": schema.TABLE.ttl_attribute},
        )
        return
    indexes = {index["IndexName"] for index in found.get("GlobalSecondaryIndexes", [])}
    if indexes != {index["IndexName"] for index in wanted["GlobalSecondaryIndexes"]}:
        raise StaleData(
            "the data folder holds a table of another version; remove it or choose another folder"
        )
    if not found.get("StreamSpecification", {}).get("StreamEnabled"):
        # In this order, and by writes that may come again: a server that is killed in between
        # does it all again.
        _count(client, name, clock)
        client.update_table(TableName=name, **schema.stream_arguments())


def _count(client: DynamoDBClient, name: str, clock: Clock) -> None:
    """Count the jobs that are older than the stream. No write may happen meanwhile."""
    tally = Tally()
    staged: set[str] = set()
    records: list[values.Item] = []
    for page in client.get_paginator("scan").paginate(TableName=name, ConsistentRead=True):
        for item in map(values.unpack, page["Items"]):
            pk = str(item["pk"])
            if item["sk"] != keys.RECORD:
                continue
            if pk.startswith(keys.batch("")):
                staged.add(pk.removeprefix(keys.batch("")))
            elif pk.startswith(keys.job("")):
                records.append(item)
    for job in map(items.job_of, records):
        # Jobs of a batch that is not committed are counted when it is.
        if job.batch not in staged:
            tally.move(None, job)
    table = Table(client, name)
    for delta in tally.deltas({}):
        key: values.Item = {"pk": keys.stats(delta.queue), "sk": delta.sk}
        table.put(Put({**key, **delta.add, "changed": clock.now_ms()}))
