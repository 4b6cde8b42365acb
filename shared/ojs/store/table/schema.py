"""The schema of the table: its keys, indexes, and stream. The CDK and local databases use it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any

from ojs.records import record
from ojs.store.table import keys


@record(frozen=True)
class IndexSchema:
    """A global secondary index with the projection KEYS_ONLY.

    An index is eventually consistent, so its entries are only candidates. The condition of the
    write that follows a query decides.
    """

    name: str
    hash_key: str
    range_key: str


@record(frozen=True)
class StreamFilter:
    """Selects the stream records that are projected.

    The partition key must start with one of the prefixes. The sort key must be one of the given
    ones. An empty list allows any sort key.
    """

    prefixes: tuple[str, ...]
    sort_keys: tuple[str, ...] = (keys.RECORD,)


@record(frozen=True)
class TableSchema:
    """The schema of the one table that stores all data."""

    hash_key: str = "pk"
    range_key: str = "sk"
    ttl_attribute: str = "ttl"
    stream_view_type: str = "NEW_AND_OLD_IMAGES"
    indexes: tuple[IndexSchema, ...] = field(
        default=(
            # Available jobs, jobs that are due at a time, pending jobs, and dead letters.
            IndexSchema("work", "wpk", "wsk"),
            # Jobs with `expires_at`, by deadline. The index is sparse: other jobs have no entry and
            # cost nothing.
            IndexSchema("expiry", "epk", "esk"),
        )
    )
    # Items that the projection writes must not match a filter, because the projection would then
    # trigger itself. An event source mapping has at most five filters (a quota that AWS raises on
    # request).
    stream_filters: tuple[StreamFilter, ...] = field(
        default=(
            StreamFilter(
                (
                    keys.job(""),
                    keys.queue(""),
                    keys.batch(""),
                    keys.workflow(""),
                    keys.delivery(""),
                    keys.hook(""),
                    keys.tenant_record(""),
                    keys.operation(""),
                    keys.bulk_push(""),
                )
            ),
            # The sort key of a worker is its ID. The sort key of an entry of a cron job's run log
            # starts with its time.
            StreamFilter((keys.worker(""), keys.cron_runs("")), sort_keys=()),
            # Of counters and limiters, only the items whose changes become events. Each job changes
            # the other items.
            StreamFilter(
                (keys.counter(""),),
                sort_keys=(keys.DEPTH, keys.REFUSED, keys.SEMAPHORE_THROTTLED, keys.RATE_THROTTLED),
            ),
            StreamFilter((keys.limiter(""),), sort_keys=(keys.THROTTLED, keys.ADJUSTED)),
            StreamFilter((keys.pool(""),), sort_keys=(keys.RECORD, keys.ALERTS)),
        )
    )
    # Changes for the second reader of the stream, which sends events to subscribers.
    live_filters: tuple[StreamFilter, ...] = field(
        default=(
            StreamFilter((keys.job(""),), sort_keys=(keys.RECORD, keys.PROGRESS)),
            StreamFilter((keys.queue(""), keys.batch(""))),
        )
    )

    def projects(self, pk: str, sk: str) -> bool:
        """Return whether the stream records of an item are projected."""
        return _match(self.stream_filters, pk, sk)

    def is_live(self, pk: str, sk: str) -> bool:
        """Return whether the stream records of an item can be events for subscribers."""
        return _match(self.live_filters, pk, sk)


def _match(filters: Iterable[StreamFilter], pk: str, sk: str) -> bool:
    return any(
        pk.startswith(wanted.prefixes) and (not wanted.sort_keys or sk in wanted.sort_keys)
        for wanted in filters
    )


TABLE = TableSchema()

# The version of the item formats. Each format that older items don't have increases the version.
# Code can read all formats up to its own version.
# 2: readers skip entries, records, permits, and attributes of unknown formats.
# 3: statistics counters by DynamoDB stream shard, in addition to those by queue; records in the
#    registry of queues.
# 4: lease notes instead of due entries of recently claimed jobs; replicas of the records of queues
#    with lanes; cron jobs in due index partitions; the most recent errors of a job in its record;
#    workflows, which older code skips, and which the stream consumer or the sweep of newer code
#    advances; deliveries, which older code doesn't know: if it finishes a job, the job's permit of
#    the delivery is released only by the next check.
SCHEMA_VERSION = 4
# The lowest SCHEMA_VERSION of code that can work with these items. It is increased only by a change
# that older code can't handle. After that, a deployment can't be rolled back to an earlier version.
# Items that readers of schema 2 skip require 2. The sweep of schema 3 doesn't read lease notes:
# after a rollback it would not detect the expired leases of the last minute. Schema 3 also updates
# the record of a queue without its replicas, which would become stale.
NEEDED_VERSION = 4

# Default for the number of stream records in one invocation of the projection. The costs in
# docs/performance.md assume batches of this size.
STREAM_BATCH = 100
# Maximum age of a stream record in seconds. Lambda discards a batch with an older record.
STREAM_MAX_AGE_S = 6 * 3_600


def create_table_arguments(name: str, *, stream: bool = False) -> dict[str, Any]:
    """Return the arguments of DynamoDB's CreateTable, for local databases and tests.

    If `stream` is true, the table has a stream, which adds one stream record to each write.
    """
    attributes = {TABLE.hash_key, TABLE.range_key}
    for index in TABLE.indexes:
        attributes |= {index.hash_key, index.range_key}
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": _key_schema(TABLE),
        "AttributeDefinitions": [
            {"AttributeName": attribute, "AttributeType": "S"} for attribute in sorted(attributes)
        ],
        "GlobalSecondaryIndexes": [
            {
                "IndexName": index.name,
                "KeySchema": _key_schema(index),
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
            for index in TABLE.indexes
        ],
        **(stream_arguments() if stream else {}),
    }


def _key_schema(of: TableSchema | IndexSchema) -> list[dict[str, str]]:
    return [
        {"AttributeName": of.hash_key, "KeyType": "HASH"},
        {"AttributeName": of.range_key, "KeyType": "RANGE"},
    ]


def stream_arguments() -> dict[str, Any]:
    """Return the arguments of CreateTable or UpdateTable that enable the stream."""
    return {
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": TABLE.stream_view_type}
    }
