"""Pushes that wait for their target: `{"delivery": name, "job": id, "token": of the lease}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from functions import messages
from ojs import runtime
from ojs.domain.errors import OjsError


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Send each push, one after the other, and settle what became of it. Returns the messages that
    must come again.
    """
    current = runtime.current()
    again: list[str] = []
    for message, body in messages.bodies(event):
        found = [body.get(name) for name in _NAMES] if isinstance(body, Mapping) else []
        named = [each for each in found if isinstance(each, str) and each]
        if len(named) < len(_NAMES):
            again.append(message)
            continue
        name, job_id, token = named
        try:
            current.dispatch.send_one(name, job_id, token, go_on=messages.go_on(context))
        except OjsError as error:
            again.append(messages.failed(message, error))
    return messages.answer(again)


_NAMES = ("delivery", "job", "token")
runtime.prepare()
