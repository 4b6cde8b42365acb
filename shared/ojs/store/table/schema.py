"""The table: its keys, indexes and stream. Both CDK and the local engines read them from here."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ojs.records import record
from ojs.store.table import keys


@record(frozen=True)
class IndexSchema:
    """A global secondary index, KEYS_ONLY: its entries are candidates, and the conditions of the
    writes that follow decide.
    """

    name: str
    hash_key: str
    range_key: str


@record(frozen=True)
class StreamFilter:
    """Items whose changes are projected: partition keys with one of these prefixes, and one of
    these sort keys (empty: any).
    """

    prefixes: tuple[str, ...]
    sort_keys: tuple[str, ...] = (keys.RECORD,)


@record(frozen=True)
class TableSchema:
    """The one table, which holds everything."""

    hash_key: str = "pk"
    range_key: str = "sk"
    ttl_attribute: str = "ttl"
    stream_view_type: str = "NEW_AND_OLD_IMAGES"
    indexes: tuple[IndexSchema, ...] = field(
        default=(
            # Jobs that are available, due at a time, pending or dead letters.
            IndexSchema("work", "wpk", "wsk"),
            # Jobs with an `expires_at`, by deadline. Sparse: jobs without one cost nothing here.
            IndexSchema("expiry", "epk", "esk"),
        )
    )
    # Nothing that the projection itself writes may match: it would trigger itself. An event source
    # mapping has at most five filters (a quota that AWS raises on request).
    stream_filters: tuple[StreamFilter, ...] = field(
        default=(
            StreamFilter(
                (
                    keys.job(""),
                    keys.queue(""),
                    keys.batch(""),
                    keys.workflow(""),
                    keys.delivery(""),
                    keys.operation(""),
                    keys.bulk_push(""),
                )
            ),
            # A worker's sort key is its id; that of an entry of a cron job's run log begins with
            # its time.
            StreamFilter((keys.worker(""), keys.cron_runs("")), sort_keys=()),
            # Of counters and limiters only the items that events follow from; the others change
            # with every job.
            StreamFilter(
                (keys.counter(""),),
                sort_keys=(keys.DEPTH, keys.REFUSED, keys.SEMAPHORE_THROTTLED, keys.RATE_THROTTLED),
            ),
            StreamFilter((keys.limiter(""),), sort_keys=(keys.THROTTLED, keys.ADJUSTED)),
            StreamFilter((keys.pool(""),), sort_keys=(keys.RECORD, keys.ALERTS)),
        )
    )

    def projects(self, pk: str, sk: str) -> bool:
        """Return whether changes of this item go to the projection."""
        return any(
            pk.startswith(wanted.prefixes) and (not wanted.sort_keys or sk in wanted.sort_keys)
            for wanted in self.stream_filters
        )


TABLE = TableSchema()

# The version of the form of the items. It is increased with each change that existing items do not
# have; code can read all forms up to its own.
# 2: readers skip entries, records, permits, and attributes of unknown forms.
# 3: counters by shard of the stream, in addition to those of queues; notes in the registry of
#    queues.
# 4: lease notes, in place of the due entries of recently claimed jobs; replicas of queues' records,
#    where they have lanes; cron jobs in due index partitions; the latest errors of a job on its
#    record; workflows: older code skips them, and the stream or the sweep of newer code advances
#    them; deliveries, which older code does not know: a job that it finishes keeps its permit of a
#    delivery until a check releases it.
SCHEMA_VERSION = 4
# The lowest SCHEMA_VERSION of code that works on these items: the readers that a writer requires.
# It is increased only with a change that breaks older code: from then on a deployment cannot be
# rolled back to an earlier version. Items that readers of schema 2 skip require 2. The sweep of
# schema 3 reads no lease notes: after a rollback it would not detect expired leases of the last
# minute. Schema 3 also writes the record of a queue without its replicas, which would become stale.
NEEDED_VERSION = 4

# Stream records in one invocation of the projection, unless a deployment configures another number;
# docs/performance.md counts per such batch.
STREAM_BATCH = 100
# Lambda discards a batch with a record that is older than this (s).
STREAM_MAX_AGE_S = 6 * 3_600


def create_table_arguments(name: str, *, stream: bool = False) -> dict[str, Any]:
    """Return the arguments of DynamoDB's CreateTable for this schema, for local engines and tests.

    `stream` enables the stream, which costs a record for each write.
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
