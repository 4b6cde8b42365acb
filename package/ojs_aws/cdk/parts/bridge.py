"""SQS bridges: the mapping of each SQS queue to a separate function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from aws_cdk import Annotations, Duration, Token
from aws_cdk import aws_sqs as sqs
from aws_cdk.aws_lambda_event_sources import SqsEventSource

from ojs_aws.cdk.functions import BRIDGING

if TYPE_CHECKING:
    from aws_cdk import aws_lambda as lambda_

MessageBody = Literal["json", "text"]
# For more than 10 messages Lambda waits. 100 jobs fit into one transaction.
_AT_ONCE = 10
MAX_BATCH = 100
# Ages are measured once per minute, and a failed message waits for its visibility timeout.
_MIN_AGE_S = 60


def check_bridge(
    queue: sqs.IQueue,
    job_type: str | None,
    to: str,
    body: MessageBody,
    batch_size: int,
    alarm_age_s: int,
) -> None:
    """Raise ValueError for invalid or contradicting properties."""
    if body not in get_args(MessageBody):
        raise ValueError(f"body: must be {' or '.join(get_args(MessageBody))}, but is {body!r}")
    if job_type is None and (to != "default" or body != "json"):
        raise ValueError(
            "job_type: required with to or body. Without it, each message is a complete job as JSON"
        )
    if not 1 <= batch_size <= MAX_BATCH:
        raise ValueError(f"batch_size: must be 1 to {MAX_BATCH}, but is {batch_size}")
    if queue.fifo and batch_size > _AT_ONCE:
        raise ValueError(f"batch_size: must be at most {_AT_ONCE} for a FIFO queue")
    if alarm_age_s < _MIN_AGE_S:
        raise ValueError(f"alarm_age_s: must be at least {_MIN_AGE_S}, but is {alarm_age_s}")
    made = queue.node.default_child
    hidden_s = made.visibility_timeout if isinstance(made, sqs.CfnQueue) else None
    if hidden_s is None or Token.is_unresolved(hidden_s):
        return
    if hidden_s < BRIDGING.timeout_s:
        raise ValueError(
            f"queue: visibility_timeout must be at least the function's timeout of "
            f"{BRIDGING.timeout_s} s, but is {hidden_s:.0f} s"
        )


def map_queue(
    function: lambda_.Function, queue: sqs.IQueue, *, batch_size: int, max_concurrency: int | None
) -> None:
    """Map the queue to the function."""
    if isinstance(queue, sqs.Queue) and queue.dead_letter_queue is None:
        Annotations.of(function).add_warning_v2(
            "ojs:bridge-without-dead-letter-queue",
            f"{queue.node.path} has no dead-letter queue. SQS redelivers an invalid message until "
            "the queue's retention ends. Add a dead-letter queue",
        )
    function.add_event_source(
        SqsEventSource(
            queue,
            batch_size=batch_size,
            max_batching_window=Duration.seconds(1) if batch_size > _AT_ONCE else None,
            max_concurrency=max_concurrency,
            # Delete only messages whose jobs are stored.
            report_batch_item_failures=True,
        )
    )
