"""Messages of SQS: what the functions of deliveries have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aws_lambda_powertools import Logger

from ojs.domain import jsontext
from ojs.domain.errors import InvalidPayload, OjsError

logger = Logger()

# A job, or its result, may be as deep as a request may; a record has them some levels further down.
_MAX_DEPTH = jsontext.MAX_DEPTH + 5
# Time (ms) that is left for what is under way when no more jobs are claimed.
SPARE_MS = 8_000


def go_on(context: object) -> Callable[[], bool]:
    """Tells whether there is time for more before the function is stopped."""
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    return lambda: not callable(remaining) or remaining() > SPARE_MS


def bodies(event: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The id and the body of each message. One that is no JSON has the body None: it is logged, and
    comes again until the queue gives it up.
    """
    for record in event.get("Records") or ():
        try:
            body = jsontext.loads(record.get("body") or "", max_depth=_MAX_DEPTH)
        except InvalidPayload as error:
            logger.error("Reading a message failed", extra={"reason": str(error)})  # noqa: TRY400
            body = None
        yield str(record.get("messageId")), body


def failed(message: str, error: OjsError) -> str:
    """Log why a message is to come again; returns its id."""
    logger.warning("Message returned for retry", extra={"reason": str(error)})
    return message


def answer(ids: Sequence[str]) -> dict[str, Any]:
    """The answer that has these messages delivered again."""
    return {"batchItemFailures": [{"itemIdentifier": one} for one in dict.fromkeys(ids)]}
