"""The table: its keys, indexes and stream. CDK and the local engines both read it from here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ojs.store.table import keys


@dataclass(frozen=True)
class IndexSchema:
    """A global secondary index, KEYS_ONLY: it finds, the condition on the head decides."""

    name: str
    hash_key: str
    range_key: str


@dataclass(frozen=True)
class StreamFilter:
    """Items whose changes are projected: by the front of their partition key, one of a few, and
    their sort keys.

    Without `sort_keys` every item of such a partition.
    """

    prefixes: tuple[str, ...]
    sort_keys: tuple[str, ...] = (keys.HEAD,)


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
    # Nothing else, and above all nothing that the projection itself writes: it would feed itself.
    # An event source mapping has five filters at most, unless AWS is asked for more.
    stream_filters: tuple[StreamFilter, ...] = field(
        default=(
            StreamFilter((keys.job(""), keys.queue(""), keys.batch(""))),
            # A worker's sort key is its id.
            StreamFilter((keys.worker(""),), sort_keys=()),
            # Of gates and limiters what events follow from; the others change with every job.
            StreamFilter(
                (keys.gate(""),),
                sort_keys=(keys.DEPTH, keys.REFUSED, keys.HELD_SLOTS, keys.HELD_RATE),
            ),
            StreamFilter((keys.limiter(""),), sort_keys=(keys.HELD, keys.ADJUSTED)),
            StreamFilter((keys.pool(""),), sort_keys=(keys.HEAD, keys.WATCH)),
        )
    )

    def projects(self, pk: str, sk: str) -> bool:
        """Whether changes of this item go to the projection."""
        return any(
            pk.startswith(wanted.prefixes) and (not wanted.sort_keys or sk in wanted.sort_keys)
            for wanted in self.stream_filters
        )


TABLE = TableSchema()

# The form of the items. It goes up with each change that items already there do not have; code
# knows all forms up to its own.
SCHEMA_VERSION = 1
# The oldest form that code must know to work on items of this one. It goes up only with a change
# that older code would break: from then on there is no way back to an earlier version.
NEEDED_VERSION = 1

# Records the projection is handed at once: bounds in docs/performance.md are per batch of these.
STREAM_BATCH = 100


def create_table_arguments(name: str, *, stream: bool = False) -> dict[str, Any]:
    """Arguments of DynamoDB's CreateTable for this schema, for local engines and tests.

    Without the stream unless somebody reads it: a record is written with every item.
    """
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
        **(stream_arguments() if stream else {}),
    }


def stream_arguments() -> dict[str, Any]:
    """Arguments of CreateTable, or of UpdateTable, that switch the stream on."""
    return {
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": TABLE.stream_view_type}
    }
