"""Processes wake-up messages of deliveries, `{"delivery": name}`, from requests and timers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from functions import messages
from ojs import runtime
from ojs.domain.errors import OjsError


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Dispatch the jobs of each named delivery, once per batch of messages.

    Return the messages that SQS must redeliver.
    """
    current = runtime.current()
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    again: list[str] = []
    for message, body in messages.bodies(event):
        name = body.get("delivery") if isinstance(body, Mapping) else None
        if isinstance(name, str) and name:
            by_name[name].append(message)
        else:
            again.append(message)
    for name, ids in by_name.items():
        try:
            current.dispatch.run(name, go_on=messages.go_on(context))
        except OjsError as error:
            again += [messages.failed(one, error) for one in ids]
    return messages.answer(again)


runtime.prepare("fetch", "settle")
