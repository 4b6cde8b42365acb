"""Sends pushes and waits for their target: `{"delivery": name, "job": id, "token": of the lease}`.

SQS can deliver a message twice, also at the same time. After a failed invocation, it does so when
the lease of the push has long expired: the queue's visibility timeout is six times the maximum
duration of a sender. A message that is redelivered earlier is being processed by another sender,
and is not sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from functions import messages
from ojs import runtime
from ojs.domain.errors import OjsError


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Send the pushes in order, and process each outcome.

    Return the messages that SQS must redeliver.
    """
    current = runtime.current()
    again: list[str] = []
    repeated = _repeated(event)
    for message, body in messages.bodies(event):
        found = [body.get(name) for name in _NAMES] if isinstance(body, Mapping) else []
        named = [each for each in found if isinstance(each, str) and each]
        if len(named) < len(_NAMES):
            again.append(message)
            continue
        name, job_id, token = named
        if message in repeated:
            messages.logger.warning("Redelivered push skipped", extra={"job": job_id})
            continue
        try:
            current.dispatch.send_one(name, job_id, token, go_on=messages.go_on(context))
        except OjsError as error:
            again.append(messages.failed(message, error))
    return messages.answer(again)


def _repeated(event: Mapping[str, Any]) -> frozenset[str]:
    """Return the messages that SQS marks as received before."""
    return frozenset(
        str(record.get("messageId"))
        for record in event.get("Records") or ()
        if str(record.get("attributes", {}).get("ApproximateReceiveCount", "1")) != "1"
    )


_NAMES = ("delivery", "job", "token")
runtime.prepare("fetch", "settle")
