"""Outcomes of asynchronous invocations: records that Lambda's destinations send. Each ends its jobs
and is followed by as many others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from functions import messages
from ojs import runtime
from ojs.domain.delivery.outcome import MalformedRecord, Settled, settled_by


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Settle the outcomes of a batch of records. Returns the messages that must come again; one
    that is no record comes until its queue puts it aside.
    """
    current = runtime.current()
    again: list[str] = []
    outcomes: list[Settled] = []
    message_of: dict[str, str] = {}
    for message, body in messages.bodies(event):
        try:
            settled = settled_by(body)
        except MalformedRecord as broken:
            messages.logger.error("a message is no record of a push", extra={"reason": str(broken)})
            again.append(message)
            continue
        outcomes += settled
        message_of |= {one.job_id: message for one in settled}
    report = current.dispatch.settle(outcomes, go_on=messages.go_on(context))
    for job_id, why in report.failed.items():
        again.append(messages.failed(message_of[job_id], why))
    return messages.answer(again)


runtime.prepare()
