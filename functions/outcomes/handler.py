"""Outcomes of asynchronous invocations: records that Lambda's destinations send. Each ends its
jobs, and others are pushed where there was no room before.

Lambda calls the function with a success itself. Whatever else came of an event comes from a queue,
as do successes that could not be settled, and those of targets that tell the queue alone.
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
    """Settle the outcomes of a batch of records, or of one that Lambda sent itself. Returns the
    messages that must come again; one that is no record comes until its queue puts it aside.

    Raises what Lambda calls it with once more, where it was called with the record itself:
    MalformedRecord, and BackendUnavailable if neither the table nor the queue takes it.
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
    """Settle the outcomes of one record; what cannot be settled now waits in the queue."""
    current = runtime.current()
    report = current.dispatch.settle(_settled(record), go_on=messages.go_on(context))
    if report.failed:
        why: OjsError = next(iter(report.failed.values()))
        messages.logger.warning("Record returned for retry", extra={"reason": str(why)})
        queue = current.outcome_queue
        if queue is None or not queue.put(record):
            raise BackendUnavailable("An outcome could not be settled; it must come again.")
    return messages.answer(())


def _settled(record: object) -> Sequence[Settled]:
    """The outcomes of a record, or of the one in it: that of an invocation of this function that
    failed. Raises MalformedRecord.
    """
    inner = record.get("requestPayload") if isinstance(record, Mapping) else None
    if isinstance(inner, Mapping) and all(name in inner for name in _RECORD):
        return settled_by(inner)
    return settled_by(record)


runtime.prepare("fetch", "settle")
