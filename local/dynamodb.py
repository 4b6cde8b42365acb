"""The engine as a DynamoDB: a client of it, and the project's table on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.config import Config

from ojs.store import clients, schema

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# As many calls to the engine at once as there are likely to be requests at once.
_CONNECTIONS = 128


class StaleData(Exception):
    """The engine's data were written by a version with another schema."""


def connect(url: str) -> DynamoDBClient:
    """A client for a local engine, with credentials that are worth nothing."""
    return clients.dynamodb(
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",  # noqa: S106 - the engines take anything
        config=clients.CONFIG.merge(Config(max_pool_connections=_CONNECTIONS)),
    )


def create_table(client: DynamoDBClient, name: str) -> None:
    """Create the table unless it is there; raises StaleData when it has another schema."""
    wanted = schema.create_table_arguments(name)
    try:
        found = client.describe_table(TableName=name)["Table"]
    except client.exceptions.ResourceNotFoundException:
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
