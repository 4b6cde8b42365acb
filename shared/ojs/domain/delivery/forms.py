"""Builds the events that functions and endpoints receive, in three formats that the SDKs read.

Each event identifies the push, so that the outcome can be processed: the job ID, the delivery, and
the lease token. The lease token is the `delivery_id` without its prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from ojs.domain import jsontext
from ojs.domain.delivery.delivery import Form
from ojs.domain.delivery.push import Push
from ojs.domain.job import job as jobs
from ojs.records import record

# The limit of an asynchronous invocation is 1 MB. Its destination record contains the event and the
# response and is an SQS message, at most 1 MiB. A larger event than this is sent synchronously
# (limit 6 MB), so that the result can use two thirds of the record.
MAX_EVENT_BYTES = 262_144
# Maximum size in bytes of a function's response to a synchronous invocation.
MAX_ANSWER_BYTES = 6_291_556


@record(frozen=True)
class PushEvent:
    """An event as JSON, and its pushes.

    If `alone` is true, the sender must wait for the response.
    """

    text: bytes
    pushes: tuple[Push, ...]
    alone: bool


def shown(push: Push) -> dict[str, Any]:
    """Return the job of a push in the format of a fetch response."""
    return jobs.to_dict(push.job)


def pushed(push: Push) -> dict[str, Any]:
    """Return the event of a push in the format of the
    specification (ojs-serverless, section 2.2).
    """
    return {
        "job": shown(push),
        "worker_id": push.worker_id,
        "delivery_id": push.delivery_id,
    }


# Handlers detect the format by these fields. In the format `direct`, where the job is the event,
# custom fields of the job with these names are omitted.
TELLING = frozenset({"Records", "job", "requestContext"})


def direct(push: Push) -> dict[str, Any]:
    """Return the event in the format `direct`: the job itself,
    with `worker_id` and `delivery_id`.
    """
    job = {name: value for name, value in shown(push).items() if name not in TELLING}
    return {**job, "worker_id": push.worker_id, "delivery_id": push.delivery_id}


def sqs_record(push: Push, *, source: str, now_ms: int) -> dict[str, Any]:
    """Build one record of an SQS event. Its message ID is the job ID.

    Args:
        push: Push to encode.
        source: ARN that the record names as its queue.
        now_ms: Current time in milliseconds since the epoch. The receive time if the job has no
            start time.

    Returns:
        The record, with the job in the format `direct` as its `body`.
    """
    body = jsontext.dumps(direct(push))
    attributes = {
        "delivery_id": push.delivery_id,
        "worker_id": push.worker_id,
        "attempt": str(push.job.attempt),
    }
    return {
        "messageId": push.job.id,
        "receiptHandle": push.delivery_id,
        "body": body,
        "attributes": {
            "ApproximateReceiveCount": str(max(push.job.attempt, 1)),
            "SentTimestamp": str(push.job.enqueued_ms or push.job.created_ms),
            "SenderId": push.worker_id,
            "ApproximateFirstReceiveTimestamp": str(push.job.started_ms or now_ms),
        },
        "messageAttributes": {
            name: {
                "stringValue": value,
                "stringListValues": [],
                "binaryListValues": [],
                "dataType": "Number" if name == "attempt" else "String",
            }
            for name, value in attributes.items()
        },
        "md5OfBody": hashlib.md5(body.encode(), usedforsecurity=False).hexdigest(),
        "eventSource": "aws:sqs",
        "eventSourceARN": source,
        "awsRegion": source.split(":")[3],
    }


def alone(push: Push, form: Form) -> bool:
    """Return whether the sender must wait for the response to this push.

    True if the event is larger than `MAX_EVENT_BYTES`, or if the outcome of the previous attempt
    was lost, because the event and the result might have been too large for one destination record.
    """
    return push.outcome_was_lost or len(_encoded(_single(push, form))) > MAX_EVENT_BYTES


def events(
    pushes: Sequence[Push], form: Form, *, source: str, batch_size: int = 1, now_ms: int
) -> Iterator[PushEvent]:
    """Build the events that contain these pushes.

    Events keep the order of the pushes, except that a push that is sent alone can precede earlier
    pushes of an incomplete batch.

    Args:
        pushes: Pushes of one delivery.
        form: Format of the events.
        source: ARN that the records of the format `sqs` name as their queue.
        batch_size: Maximum number of jobs in one event of the format `sqs`. Default: 1.
        now_ms: Current time in milliseconds since the epoch.

    Yields:
        Events. Only those of the format `sqs` contain more than one push.
    """
    if form is not Form.SQS:
        for push in pushes:
            text = _encoded(_single(push, form))
            yield PushEvent(text, (push,), push.outcome_was_lost or len(text) > MAX_EVENT_BYTES)
        return
    waiting: list[tuple[Push, bytes]] = []
    size = 0
    for push in pushes:
        text = _encoded(sqs_record(push, source=source, now_ms=now_ms))
        if push.outcome_was_lost or len(text) > MAX_EVENT_BYTES:
            yield _batch([(push, text)], alone=True)
            continue
        if waiting and (len(waiting) == batch_size or size + len(text) > MAX_EVENT_BYTES):
            yield _batch(waiting)
            waiting, size = [], 0
        waiting.append((push, text))
        size += len(text) + 1
    if waiting:
        yield _batch(waiting)


def _batch(told: Sequence[tuple[Push, bytes]], *, alone: bool = False) -> PushEvent:
    text = b'{"Records":[' + b",".join(text for _, text in told) + b"]}"
    return PushEvent(text, tuple(push for push, _ in told), alone)


def _single(push: Push, form: Form) -> dict[str, Any]:
    return pushed(push) if form is Form.PUSH else direct(push)


def _encoded(event: dict[str, Any]) -> bytes:
    return jsontext.dumps(event).encode()
