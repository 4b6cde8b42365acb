"""Reads SQS messages and builds responses for the functions of deliveries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aws_lambda_powertools import Logger

from ojs.domain import jsontext
from ojs.domain.errors import InvalidPayload, OjsError

logger = Logger()

# A job or a result can be as deep as a request. A record contains it some levels further down.
_MAX_DEPTH = jsontext.MAX_DEPTH + 5
# Remaining time (ms) below which no more jobs are claimed, so that active work can finish.
SPARE_MS = 8_000


def go_on(context: object) -> Callable[[], bool]:
    """Return a function that checks whether there is time for more before Lambda stops it."""
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    return lambda: not callable(remaining) or remaining() > SPARE_MS


def bodies(event: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the ID and the body of each message.

    If a body is not valid JSON, the error is logged and the body is None. SQS redelivers the
    message until it moves to the dead-letter queue.
    """
    for record in event.get("Records") or ():
        try:
            body = jsontext.loads(record.get("body") or "", max_depth=_MAX_DEPTH)
        except InvalidPayload as error:
            logger.error("Reading a message failed", extra={"reason": str(error)})  # noqa: TRY400
            body = None
        yield str(record.get("messageId")), body


def failed(message: str, error: OjsError) -> str:
    """Log why a message must be redelivered. Return its ID."""
    logger.warning("Message returned for retry", extra={"reason": str(error)})
    return message


def answer(ids: Sequence[str]) -> dict[str, Any]:
    """Build the response that makes SQS redeliver these messages."""
    return {"batchItemFailures": [{"itemIdentifier": one} for one in dict.fromkeys(ids)]}
