"""SQS queues whose messages become jobs: the mapping of each to a function of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from aws_cdk import Annotations, Duration, Token
from aws_cdk import aws_sqs as sqs
from aws_cdk.aws_lambda_event_sources import SqsEventSource

from ojs_aws.cdk.functions import BRIDGING

if TYPE_CHECKING:
    from aws_cdk import aws_lambda as lambda_

MessageBody = Literal["json", "text"]
# More than ten messages make Lambda wait for them; a hundred jobs are what one transaction takes.
_AT_ONCE = 10
MAX_BATCH = 100
# Ages are measured each minute, and a message that was refused waits for a visibility timeout.
_MIN_AGE_S = 60


def check_bridge(
    queue: sqs.IQueue,
    job_type: str | None,
    to: str,
    body: MessageBody,
    batch_size: int,
    alarm_age_s: int,
) -> None:
    """Raises ValueError for what contradicts itself, and what AWS would not take."""
    if body not in get_args(MessageBody):
        raise ValueError(f"body: {body!r} is none of {', '.join(get_args(MessageBody))}")
    if job_type is None and (to != "default" or body != "json"):
        raise ValueError(
            "job_type: without one each message is a whole job, as JSON, that names its queue"
        )
    if not 1 <= batch_size <= MAX_BATCH:
        raise ValueError(f"batch_size: {batch_size} is not from 1 to {MAX_BATCH}")
    if queue.fifo and batch_size > _AT_ONCE:
        raise ValueError(f"batch_size: {_AT_ONCE} is the most of a FIFO queue")
    if alarm_age_s < _MIN_AGE_S:
        raise ValueError(f"alarm_age_s: {alarm_age_s} is less than {_MIN_AGE_S}")
    made = queue.node.default_child
    hidden_s = made.visibility_timeout if isinstance(made, sqs.CfnQueue) else None
    if hidden_s is None or Token.is_unresolved(hidden_s):
        return
    if hidden_s < BRIDGING.timeout_s:
        raise ValueError(
            f"queue: it shows messages again after {hidden_s:.0f} s, while the function may take "
            f"{BRIDGING.timeout_s}: visibility_timeout must not be shorter"
        )


def map_queue(
    function: lambda_.Function, queue: sqs.IQueue, *, batch_size: int, max_concurrency: int | None
) -> None:
    """Have Lambda receive messages and call the function with them."""
    if isinstance(queue, sqs.Queue) and queue.dead_letter_queue is None:
        Annotations.of(function).add_warning_v2(
            "ojs:bridge-without-dead-letter-queue",
            f"{queue.node.path} has no dead-letter queue: a message that is no job comes again "
            "until SQS has kept it for as long as it keeps any",
        )
    function.add_event_source(
        SqsEventSource(
            queue,
            batch_size=batch_size,
            max_batching_window=Duration.seconds(1) if batch_size > _AT_ONCE else None,
            max_concurrency=max_concurrency,
            # Only messages whose jobs are stored are taken from the queue.
            report_batch_item_failures=True,
        )
    )
