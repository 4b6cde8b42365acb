"""Posts events to webhooks: `{"delivery": id, "event": event}`, or `{"delivery": id, "turn": n}`.

SQS can deliver a message twice. An event is then posted twice, with the same delivery ID.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from functions import messages
from ojs import runtime
from ojs.domain.errors import OjsError
from ojs.domain.webhooks import DELIVERY_ID


def handler(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Post the events of a batch at the same time.

    Return the messages that SQS must redeliver.
    """
    current = runtime.current()
    names: list[str] = []
    bodies: list[Mapping[str, Any]] = []
    again: list[str] = []
    for message, body in messages.bodies(event):
        if _is_valid(body):
            names.append(message)
            bodies.append(body)
        else:
            again.append(message)
    try:
        again += [names[at] for at in current.webhook_sender.handle(bodies)]
    except OjsError as error:
        again += [messages.failed(one, error) for one in names]
    return messages.answer(again)


def _is_valid(body: Any) -> bool:
    if not isinstance(body, Mapping) or not isinstance(body.get("delivery"), str):
        return False
    whole = isinstance(body.get("event"), Mapping) or isinstance(body.get("turn"), int)
    return whole and DELIVERY_ID.fullmatch(body["delivery"]) is not None


runtime.prepare("webhook_sender")
