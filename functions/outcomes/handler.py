"""Processes the outcomes of asynchronous invocations, which Lambda's destinations send.

Each record finishes its jobs. If the delivery was at its concurrency limit, the function then sends
the next jobs. Lambda invokes the function directly with a success. Other outcomes come from an SQS
queue, as do successes that were not processed, and those of targets that send only to the queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from functions import messages
from ojs import runtime
from ojs.domain.delivery.outcome import MalformedRecord, Settled, settled_by
from ojs.domain.errors import BackendUnavailable, OjsError

_RECORD = ("requestContext", "requestPayload")


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Process the outcomes of a batch of messages, or of one record that Lambda sent directly.

    Return the messages that SQS must redeliver, which include messages that are not records.

    Raises (for a direct record only, and Lambda then retries it):
        MalformedRecord: The event is not a valid record.
        BackendUnavailable: Neither the table nor the queue accepted the record.
    """
    if all(name in event for name in _RECORD):
        return _told(event, context)
    current = runtime.current()
    again: list[str] = []
    outcomes: list[Settled] = []
    messages_of: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for message, body in messages.bodies(event):
        try:
            settled = _settled(body)
        except MalformedRecord as broken:
            messages.logger.error(
                "Message rejected: not an outcome of a push", extra={"reason": str(broken)}
            )
            again.append(message)
            continue
        outcomes += settled
        for one in settled:
            messages_of[one.push].append(message)
    report = current.dispatch.settle(outcomes, go_on=messages.go_on(context))
    for push, why in report.failed.items():
        again += [messages.failed(message, why) for message in messages_of[push]]
    return messages.answer(again)


def _told(record: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Process the outcomes of one record. If that fails, put the record into the queue."""
    current = runtime.current()
    report = current.dispatch.settle(_settled(record), go_on=messages.go_on(context))
    if report.failed:
        why: OjsError = next(iter(report.failed.values()))
        messages.logger.warning("Record returned for retry", extra={"reason": str(why)})
        queue = current.outcome_queue
        if queue is None or not queue.put(record):
            raise BackendUnavailable("An outcome was not processed.")
    return messages.answer(())


def _settled(record: object) -> Sequence[Settled]:
    """Return the outcomes of a record. Raise MalformedRecord if it is not valid.

    If the record describes a failed invocation of this function, use the record in its payload.
    """
    inner = record.get("requestPayload") if isinstance(record, Mapping) else None
    if isinstance(inner, Mapping) and all(name in inner for name in _RECORD):
        return settled_by(inner)
    return settled_by(record)


runtime.prepare("fetch", "settle")
