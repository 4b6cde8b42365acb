"""Processes the table's stream: projects each change of the table."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics
from aws_lambda_powertools.metrics.functions import is_metrics_disabled

from ojs import projections, runtime
from ojs.domain.counters import definitions as rows
from ojs.projections import EmbeddedMetrics, Projector
from ojs.projections.metrics import NAMESPACE, MeteredQueues
from ojs.runtime import Runtime

logger = Logger()

_NUMBERS_LOGGED = 10
_UPGRADE_MS = 300_000
# Fields that only the event of a tumbling window has.
_OF_WINDOW = frozenset({"shardId", "window", "state"})

# Powertools' batch utility is not used, because it calls a function for each record. Here, a whole
# batch takes a few writes.


# The local server and tests replace the runtime.
@lru_cache(maxsize=1)
def _projector(current: Runtime) -> Projector:
    settings = current.settings
    # Powertools itself reads POWERTOOLS_METRICS_NAMESPACE and …_DISABLED.
    namespace = EphemeralMetrics().namespace or NAMESPACE
    metered = MeteredQueues(settings.metered_queues, current.clock)
    # The alarms on dead letters and on late cron jobs.
    watched = {
        rows.DEAD_ADDED.name: 0,
        rows.LATENESS.name: settings.alarm_cron_late_s * rows.NEAR_ALARM,
    }
    written = EmbeddedMetrics(
        settings.service, namespace, metered, watched if settings.metrics == "alarms" else None
    )
    metrics = None if is_metrics_disabled() else written
    return projections.build(
        settings,
        current.table,
        current.clock,
        ids=current.ids,
        blobs=current.blobs,
        metrics=metrics,
        copies=current.copies,
        workflows=lambda: current.workflow_advance,
        durable=lambda: current.durable_ends,
        deliveries=current.wake,
        hooks=current.webhook_matcher,
    )


def _shard_of(record: Mapping[str, Any]) -> str:
    """Return a name for all shards of the stream, for an event that names none.

    Counts are exact for a stream with one open shard. With several, records whose sequence number
    is below the position of another shard are neither counted nor published. Copies, workflows,
    deliveries, and removals don't depend on it.
    """
    logger.warning("Stream event without shardId; counters and events can miss records")
    return f"shardId-{zlib.crc32(str(record.get('eventSourceARN', '')).encode()):08x}"


def _is_old(record: Mapping[str, Any], current: Runtime) -> bool:
    """Return whether a record is older than an upgrade takes from the function to the mapping."""
    created_s = float(record["dynamodb"].get("ApproximateCreationDateTime", 0))
    return current.clock.now_ms() - created_s * 1_000 > _UPGRADE_MS


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Project a batch of stream records. Return those that the stream must redeliver.

    The event is that of a tumbling window, because no other event names the shard. Lambda treats a
    response without the window's `state` as a failure, also in the last invocation of a window,
    which can have no records. The state is always empty: the counters are in the table.
    """
    records = event.get("Records") or []
    answer = {"state": event.get("state") or {}} if event.keys() & _OF_WINDOW else {}
    # The ID of this delivery. It is also in Lambda's own log lines and in the failure queue.
    logger.thread_safe_append_keys(correlation_id=getattr(context, "aws_request_id", None))
    try:
        current = runtime.current()
        failed: list[str] = []
        shard = event.get("shardId") or current.settings.shard
        if shard is None and records and (answer or _is_old(records[0], current)):
            shard = _shard_of(records[0])
        if shard is not None and records:
            failed = _projector(current).run(records, shard)
        elif records:
            # During an upgrade, the function is new, but the mapping isn't yet.
            logger.warning("Stream event without a tumbling window returned for retry")
            failed = [str(records[0]["dynamodb"]["SequenceNumber"])]
        if failed:
            # Only the sequence numbers: the contents of records can be confidential.
            logger.warning(
                "Records returned for retry",
                extra={
                    "records": len(records),
                    "failed": len(failed),
                    "sequence_numbers": failed[:_NUMBERS_LOGGED],
                },
            )
    finally:
        runtime.flush()
        logger.thread_safe_remove_keys(["correlation_id"])
    return answer | {"batchItemFailures": [{"itemIdentifier": number} for number in failed]}


runtime.prepare("copies")
