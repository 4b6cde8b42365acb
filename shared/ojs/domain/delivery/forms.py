"""The events that functions and endpoints get, in the three forms that handlers of the SDKs read.

Each carries what its outcome is settled by: the job, the delivery, and the lease's token, which is
the `delivery_id` without its prefix.
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

# An asynchronous invocation takes 1 MB, and the record of its outcome, which has the event and the
# answer in it, a message of SQS of 1 MiB. A larger event than this is sent synchronously (6 MB),
# so that results have two thirds of the record.
MAX_EVENT_BYTES = 262_144
# Of what a function of a job's type answers there is at most so much in a synchronous invocation.
MAX_ANSWER_BYTES = 6_291_556


@record(frozen=True)
class PushEvent:
    """A JSON text, and the pushes it carries; `alone` if its answer must be waited for."""

    text: bytes
    pushes: tuple[Push, ...]
    alone: bool


def shown(push: Push) -> dict[str, Any]:
    """The job as a fetch shows it."""
    return jobs.to_dict(push.job)


def pushed(push: Push) -> dict[str, Any]:
    """The form of the specification (ojs-serverless, section 2.2)."""
    return {
        "job": shown(push),
        "worker_id": push.worker_id,
        "delivery_id": push.delivery_id,
    }


# By these fields handlers tell the forms apart. A client's own fields of such names, which jobs may
# have, are left out where the job is the event.
TELLING = frozenset({"Records", "job", "requestContext"})


def direct(push: Push) -> dict[str, Any]:
    """The job itself, with two fields more."""
    job = {name: value for name, value in shown(push).items() if name not in TELLING}
    return {**job, "worker_id": push.worker_id, "delivery_id": push.delivery_id}


def sqs_record(push: Push, *, source: str, now_ms: int) -> dict[str, Any]:
    """A message as an event of SQS has it: the message's id is that of the job."""
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
    """Whether a push does not fit into an asynchronous invocation with its outcome: its event is
    large, or the outcome of the attempt before was lost.
    """
    return push.outcome_was_lost or len(_encoded(_single(push, form))) > MAX_EVENT_BYTES


def events(
    pushes: Sequence[Push], form: Form, *, source: str, batch_size: int = 1, now_ms: int
) -> Iterator[PushEvent]:
    """The events that carry these pushes, in their order but for those that go alone.

    `source` is an ARN that stands for the queue in the form `sqs`.
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
