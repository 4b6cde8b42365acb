"""The table: its keys, indexes and stream. CDK and the local engines both read it from here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class IndexSchema:
    """A global secondary index, KEYS_ONLY: it finds, the condition on the head decides."""

    name: str
    hash_key: str
    range_key: str


@dataclass(frozen=True)
class TableSchema:
    """The one table (design section 4)."""

    hash_key: str = "pk"
    range_key: str = "sk"
    ttl_attribute: str = "ttl"
    stream_view_type: str = "NEW_AND_OLD_IMAGES"
    indexes: tuple[IndexSchema, ...] = field(
        default=(
            # Where work may be: ready, due, pending and dead-lettered jobs.
            IndexSchema("work", "wpk", "wsk"),
            # Jobs with an `expires_at`, by deadline. Sparse: the others pay nothing for it.
            IndexSchema("expiry", "epk", "esk"),
        )
    )


TABLE = TableSchema()


def create_table_arguments(name: str, *, stream: bool = False) -> dict[str, Any]:
    """Arguments of DynamoDB's CreateTable for this schema, for local engines and tests.

    Without the stream unless somebody reads it: dynoxide keeps stream records for ever and looks
    through all of them at each write.
    """
    streaming = {
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": TABLE.stream_view_type}
    }
    attributes = {TABLE.hash_key, TABLE.range_key}
    for index in TABLE.indexes:
        attributes |= {index.hash_key, index.range_key}
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [
            {"AttributeName": TABLE.hash_key, "KeyType": "HASH"},
            {"AttributeName": TABLE.range_key, "KeyType": "RANGE"},
        ],
        "AttributeDefinitions": [
            {"AttributeName": attribute, "AttributeType": "S"} for attribute in sorted(attributes)
        ],
        "GlobalSecondaryIndexes": [
            {
                "IndexName": index.name,
                "KeySchema": [
                    {"AttributeName": index.hash_key, "KeyType": "HASH"},
                    {"AttributeName": index.range_key, "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
            for index in TABLE.indexes
        ],
        **(streaming if stream else {}),
    }
