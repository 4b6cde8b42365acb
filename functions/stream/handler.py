"""The table's stream: projects each change of the table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics
from aws_lambda_powertools.metrics.functions import is_metrics_disabled

from ojs import projections, runtime
from ojs.projections import EmbeddedMetrics, Projector
from ojs.projections.metrics import NAMESPACE, MeteredQueues
from ojs.runtime import Runtime

logger = Logger()

_NUMBERS_LOGGED = 10

# Powertools' batch utility is not used: it calls a function for each record, while here a whole
# batch becomes a few writes.


# The local server and tests replace the runtime.
@lru_cache(maxsize=1)
def _projector(current: Runtime) -> Projector:
    settings = current.settings
    # Powertools itself reads POWERTOOLS_METRICS_NAMESPACE and …_DISABLED.
    namespace = EphemeralMetrics().namespace or NAMESPACE
    metered = MeteredQueues(settings.metered_queues, current.clock)
    written = EmbeddedMetrics(settings.service, namespace, metered)
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
        deliveries=current.wake,
    )


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Project a batch of stream records. Returns those that the stream must deliver again.

    The event is that of a tumbling window, which alone names the shard. Lambda takes an answer
    without the window's `state` for a failure, also that of its last invocation, which may have no
    records. Nothing is kept in it: what is counted is in the table.
    """
    records = event.get("Records") or []
    answer = {"state": event.get("state") or {}} if "shardId" in event else {}
    # The id of this delivery, which Lambda's own log lines and the failure queue have too.
    logger.thread_safe_append_keys(correlation_id=getattr(context, "aws_request_id", None))
    try:
        current = runtime.current()
        shard = event.get("shardId") or current.settings.shard
        failed: list[str] = []
        if shard is not None and records:
            failed = _projector(current).run(records, shard)
        elif records:
            # While an upgrade is under way: the function is new, and the mapping is not yet.
            logger.warning("the mapping of the stream has no tumbling window: to be tried again")
            failed = [str(records[0]["dynamodb"]["SequenceNumber"])]
        if failed:
            # Only the numbers that identify the records: their contents may be confidential.
            logger.warning(
                "records are to be delivered again",
                extra={
                    "records": len(records),
                    "failed": len(failed),
                    "sequence_numbers": failed[:_NUMBERS_LOGGED],
                },
            )
    finally:
        logger.thread_safe_remove_keys(["correlation_id"])
    return answer | {"batchItemFailures": [{"itemIdentifier": number} for number in failed]}


runtime.prepare()
