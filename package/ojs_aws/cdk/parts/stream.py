"""The table's stream, mapped to the function that projects it, and the queue of what failed."""

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
    from aws_cdk import aws_dynamodb as dynamodb
    from aws_cdk import aws_kms as kms

    from ojs_aws.cdk.settings import DeploymentSettings

# A tumbling window, as long as they may be, makes Lambda name the shard that records are from: its
# counters are kept by shard. Each window ends with one more invocation.
TUMBLING_WINDOW_S = 900


def failure_queue(
    scope: Construct, key: kms.IKey | None, settings: DeploymentSettings
) -> sqs.Queue:
    """An encrypted queue that keeps stream records that failed for as long as SQS can."""
    queue = sqs.Queue(
        Construct(scope, "StreamFailures"),
        "Queue",
        encryption=sqs.QueueEncryption.KMS if key else sqs.QueueEncryption.SQS_MANAGED,
        encryption_master_key=key,
        # The local emulator speaks plain HTTP, and enforces this like AWS does.
        enforce_ssl=not settings.is_local,
        # The stream itself forgets a record after a day; here is time to find out why.
        retention_period=Duration.days(14),
    )
    acknowledge(
        queue,
        "AwsSolutions-SQS3",
        "This queue is a dead-letter queue: it takes what the stream's consumer gave up on.",
    )
    return queue


def map_stream(
    scope: Construct,
    table: dynamodb.ITable,
    function: lambda_.Function,
    failures: sqs.IQueue,
    settings: DeploymentSettings,
) -> None:
    """Have Lambda read the stream and call the function with the changes that are projected."""
    assert table.table_stream_arn is not None
    kind = lambda_.CfnEventSourceMapping
    # Not through the construct for it, which would widen the function's role: that has what it
    # needs, by name (ojs_aws.cdk.functions).
    mapping = kind(
        Construct(scope, "StreamMapping"),
        "Mapping",
        event_source_arn=table.table_stream_arn,
        function_name=function.function_name,
        # From the oldest record there is: nothing written before the mapping works is missed.
        starting_position="TRIM_HORIZON",
        batch_size=settings.stream_batch_size,
        maximum_batching_window_in_seconds=settings.stream_window_s,
        tumbling_window_in_seconds=TUMBLING_WINDOW_S,
        # A shard's records must come in order, one batch after the other: what is not after the
        # last one counted is taken for counted.
        parallelization_factor=1,
        bisect_batch_on_function_error=False,
        # Some hours of trying, with growing pauses, survive an outage of the table. Before they are
        # over the function itself puts aside what fails: Lambda would give up the whole batch.
        maximum_retry_attempts=-1,
        maximum_record_age_in_seconds=server.STREAM_MAX_AGE_S,
        function_response_types=["ReportBatchItemFailures"],
        destination_config=kind.DestinationConfigProperty(
            on_failure=kind.OnFailureProperty(destination=failures.queue_arn)
        ),
        filter_criteria=kind.FilterCriteriaProperty(
            filters=[
                kind.FilterProperty(pattern=json.dumps(pattern(each)))
                for each in server.STREAM_FILTERS
            ]
        ),
    )
    # Lambda looks at the role when the mapping is made; the policy must be on it by then.
    mapping.node.add_dependency(function.role or function)


def pattern(wanted: server.StreamFilter) -> dict[str, object]:
    """A filter of the mapping. What no filter matches costs no call."""
    prefixes = [{"prefix": each} for each in wanted.prefixes]
    keys: dict[str, object] = {server.HASH_KEY: {"S": prefixes}}
    if wanted.sort_keys:
        keys[server.RANGE_KEY] = {"S": list(wanted.sort_keys)}
    return {"dynamodb": {"Keys": keys}}
