"""Maps the table's stream to the stream consumer, and creates the queue for failed records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aws_cdk import Duration
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from ojs_aws.cdk import server
from ojs_aws.cdk.parts.acknowledgement import acknowledge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aws_cdk import aws_dynamodb as dynamodb
    from aws_cdk import aws_kms as kms

    from ojs_aws.cdk.settings import DeploymentSettings

# Maximum age in seconds of a record whose events are sent, and retries of a failed batch. Later
# records are more useful to subscribers than old ones.
LIVE_AGE_S = 60
_LIVE_RETRIES = 2
_LIVE_BATCH = 100

# With a tumbling window, Lambda names the shard of the records; counters are kept per shard. The
# longest window is used, because each window ends with one more invocation.
TUMBLING_WINDOW_S = 900


def failure_queue(
    scope: Construct, key: kms.IKey | None, settings: DeploymentSettings
) -> sqs.Queue:
    """Create an encrypted queue for failed stream records with the maximum retention."""
    queue = sqs.Queue(
        Construct(scope, "StreamFailures"),
        "Queue",
        encryption=sqs.QueueEncryption.KMS if key else sqs.QueueEncryption.SQS_MANAGED,
        encryption_master_key=key,
        # The local emulator uses plain HTTP and enforces this setting.
        enforce_ssl=not settings.is_local,
        # The stream deletes a record after one day. The queue leaves more time to find the cause.
        retention_period=Duration.days(14),
    )
    acknowledge(
        queue,
        "AwsSolutions-SQS3",
        "This queue is a dead-letter queue for records that the stream consumer could not process.",
    )
    return queue


def map_stream(
    scope: Construct,
    table: dynamodb.ITable,
    function: lambda_.Function,
    failures: sqs.IQueue,
    settings: DeploymentSettings,
) -> None:
    """Map the stream to the function, filtered by the projected items."""
    assert table.table_stream_arn is not None
    kind = lambda_.CfnEventSourceMapping
    # The L2 construct would add permissions to the function's role. The role has those that it
    # needs (ojs_aws.cdk.functions).
    mapping = kind(
        Construct(scope, "StreamMapping"),
        "Mapping",
        event_source_arn=table.table_stream_arn,
        function_name=function.function_name,
        # Start at the oldest record, so that no earlier change is missed.
        starting_position="TRIM_HORIZON",
        batch_size=settings.stream_batch_size,
        maximum_batching_window_in_seconds=settings.stream_window_s,
        tumbling_window_in_seconds=TUMBLING_WINDOW_S,
        # Process the records of a shard in order: a record before the last counted one is treated
        # as a duplicate.
        parallelization_factor=1,
        bisect_batch_on_function_error=False,
        # Retry for hours, with growing pauses, to survive an outage of the table. The function then
        # stores failed records itself, because Lambda would discard the whole batch.
        maximum_retry_attempts=-1,
        maximum_record_age_in_seconds=server.STREAM_MAX_AGE_S,
        function_response_types=["ReportBatchItemFailures"],
        destination_config=kind.DestinationConfigProperty(
            on_failure=kind.OnFailureProperty(destination=failures.queue_arn)
        ),
        filter_criteria=_filters(server.STREAM_FILTERS),
    )
    # Lambda checks the role when it creates the mapping, so the policy must exist first.
    mapping.node.add_dependency(function.role or function)


def map_live(scope: Construct, table: dynamodb.ITable, function: lambda_.Function) -> None:
    """Map the stream to the function that sends events to subscribers, without a window.

    It is the second of the two readers that a stream supports. Nothing is kept for it: what fails
    is repeated twice, and then skipped.
    """
    assert table.table_stream_arn is not None
    mapping = lambda_.CfnEventSourceMapping(
        Construct(scope, "LiveMapping"),
        "Mapping",
        event_source_arn=table.table_stream_arn,
        function_name=function.function_name,
        starting_position="LATEST",
        batch_size=_LIVE_BATCH,
        maximum_batching_window_in_seconds=0,
        # In order for each job.
        parallelization_factor=1,
        maximum_retry_attempts=_LIVE_RETRIES,
        maximum_record_age_in_seconds=LIVE_AGE_S,
        filter_criteria=_filters(server.LIVE_FILTERS),
    )
    mapping.node.add_dependency(function.role or function)


def _filters(
    wanted: Sequence[server.StreamFilter],
) -> lambda_.CfnEventSourceMapping.FilterCriteriaProperty:
    kind = lambda_.CfnEventSourceMapping
    return kind.FilterCriteriaProperty(
        filters=[kind.FilterProperty(pattern=json.dumps(pattern(each))) for each in wanted]
    )


def pattern(wanted: server.StreamFilter) -> dict[str, object]:
    """Return a filter of the mapping. Records that match no filter cost no invocation."""
    prefixes = [{"prefix": each} for each in wanted.prefixes]
    keys: dict[str, object] = {server.HASH_KEY: {"S": prefixes}}
    if wanted.sort_keys:
        keys[server.RANGE_KEY] = {"S": list(wanted.sort_keys)}
    return {"dynamodb": {"Keys": keys}}
