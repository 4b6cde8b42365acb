"""Clients of the engine, and the table."""

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

# Connections: the likely number of concurrent requests.
_CONNECTIONS = 128


class StaleData(Exception):
    """A version with another schema wrote the data."""


def connect(url: str) -> DynamoDBClient:
    """Return a client for a local engine, with dummy credentials."""
    config = clients.DYNAMODB_CONFIG.merge(Config(max_pool_connections=_CONNECTIONS))
    return clients.dynamodb(**_arguments(url, config))


class Writes:
    """Counts the writes of a client, and calls with an unknown result."""

    def __init__(self, client: DynamoDBClient) -> None:
        self._total = self._seen = 0
        for name in ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"):
            for event in ("after-call", "after-call-error"):
                client.meta.events.register(f"{event}.dynamodb.{name}", self._add)

    def count(self) -> int:
        """Return a number that each write increases."""
        return self._total

    def changed(self) -> bool:
        """Return whether there were writes since the last call."""
        before, self._seen = self._seen, self._total
        return before != self._seen

    def _add(self, **_call: object) -> None:
        # Not exact if two threads write at the same time. But the number changes.
        self._total += 1


def connect_to_streams(url: str) -> Any:
    """Return a client for the streams of a local engine's tables."""
    return clients.client("dynamodbstreams", **_arguments(url, clients.CONFIG))


def _arguments(url: str, config: Config) -> dict[str, Any]:
    return {
        "endpoint_url": url,
        "region_name": "us-east-1",
        "aws_access_key_id": "local",
        "aws_secret_access_key": "local",  # the engines accept any value
        "config": config,
    }


def create_table(
    client: DynamoDBClient, name: str, clock: Clock, *, forget: Callable[[], None]
) -> None:
    """Create the table with its stream, unless it exists.

    `forget` is called before the table is created. A table without a stream, from an older version,
    receives one. Raises StaleData if its schema differs.
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
            "--data: the table in the data folder has another schema. Delete the folder, or use "
            "another"
        )
    if not found.get("StreamSpecification", {}).get("StreamEnabled"):
        # In this order, with repeatable writes: a server that is killed in between repeats both.
        _count(client, name, clock)
        client.update_table(TableName=name, **schema.stream_arguments())


def _count(client: DynamoDBClient, name: str, clock: Clock) -> None:
    """Count the jobs that are older than the stream. No write may happen at the same time."""
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
        # Jobs of a batch that is not committed yet are counted at the commit.
        if job.batch not in staged:
            tally.move(None, job)
    table = Table(client, name)
    for delta in tally.deltas({}):
        key: values.Item = {"pk": keys.stats(delta.queue), "sk": delta.sk}
        table.put(Put({**key, **delta.add, "changed": clock.now_ms()}))
