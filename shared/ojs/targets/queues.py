"""Sends SQS messages of deliveries: wake-up messages, outcomes, and jobs for senders.

A duplicate wake-up message has no effect. A duplicate message to a sender would post the same job
twice. A message to a sender is therefore not retried if SQS may have accepted it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aws_lambda_powertools import Logger
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
)

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.delivery.push import Push
from ojs.domain.errors import BackendUnavailable
from ojs.store.table import clients

logger = Logger()

MAX_MESSAGES = 10
MAX_DELAY_S = 900
# SQS accepts 256 KB per call.
MAX_BATCH_BYTES = 240_000
# Attempts for each message. Only messages that SQS rejected are sent again.
_TRIES = 2
_SERVER_ERROR = 500
# Errors that occur before the request is sent.
_NEVER_SENT = (ConnectTimeoutError, EndpointConnectionError, NoCredentialsError)
_ONCE = clients.CONFIG.merge(Config(retries={"mode": "standard", "total_max_attempts": 1}))


class _Queue:
    def __init__(self, url: str, client: Any = None, *, once: bool = False) -> None:
        """Create a queue. If `once` is true, a message without a response counts as accepted."""
        self._url = url
        self._client = client
        self._once = once

    def send(self, bodies: Sequence[dict[str, Any]], *, delay_s: int = 0) -> list[int]:
        """Send messages. Return the indexes of the messages that SQS didn't accept."""
        missing: list[int] = []
        for start in range(0, len(bodies), MAX_MESSAGES):
            some = range(start, min(start + MAX_MESSAGES, len(bodies)))
            missing += self._request(bodies, some, delay_s)
        return missing

    def _request(
        self, bodies: Sequence[dict[str, Any]], some: Iterable[int], delay_s: int
    ) -> list[int]:
        left = list(some)
        for _ in range(_TRIES):
            left = self._refused(bodies, left, delay_s)
            if not left:
                break
        return left

    def _refused(
        self, bodies: Sequence[dict[str, Any]], some: list[int], delay_s: int
    ) -> list[int]:
        if self._client is None:
            self._client = clients.client("sqs", _ONCE if self._once else clients.CONFIG)
        delay = {"DelaySeconds": min(delay_s, MAX_DELAY_S)} if delay_s > 0 else {}
        entries: list[Any] = [
            {"Id": str(index), "MessageBody": jsontext.dumps(bodies[index]), **delay}
            for index in some
        ]
        try:
            answer = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
        except ClientError as error:
            self._log(len(some), error.response.get("Error", {}))
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return [] if self._once and status >= _SERVER_ERROR else some
        except BotoCoreError as error:
            self._log(len(some), {"Code": type(error).__name__, "Message": str(error)})
            return [] if self._once and not isinstance(error, _NEVER_SENT) else some
        failed = answer.get("Failed", [])
        if failed:
            self._log(len(failed), failed[0])
        return [int(each["Id"]) for each in failed]

    def _log(self, count: int, error: Mapping[str, Any]) -> None:
        """Log the number of rejected messages, with the error of the first one."""
        told = {"code": error.get("Code", ""), "reason": error.get("Message", "")}
        extra = {"queue": self._url.rpartition("/")[2], "messages": count, **told}
        logger.warning("Sending messages to a queue failed", extra=extra)


class SqsWakeQueue:
    """Sends wake-up messages to deliveries: `{"delivery": name, "at_ms"?: time in ms}`."""

    def __init__(self, url: str, clock: Clock, client: Any = None) -> None:
        self._queue = _Queue(url, client)
        self._clock = clock

    def wake(self, names: Iterable[str], *, delay_s: int = 0) -> None:
        """Send a wake-up message to each of these deliveries after `delay_s` seconds (0 to 900).

        Raises:
            BackendUnavailable: SQS didn't accept one of the messages.
        """
        at = {"at_ms": self._clock.now_ms() + 1_000 * delay_s} if delay_s > 0 else {}
        bodies = [{"delivery": name, **at} for name in dict.fromkeys(names)]
        if self._queue.send(bodies, delay_s=delay_s):
            raise BackendUnavailable("The wake-up message of a delivery was not sent.")


class SqsRecordQueue:
    """Sends records to a queue: outcomes of deliveries, or items of an outbox."""

    def __init__(self, url: str, client: Any = None) -> None:
        self._queue = _Queue(url, client)

    def put(self, record: Mapping[str, Any]) -> bool:
        """Send a record. Return whether SQS accepted it."""
        return not self._queue.send([dict(record)])


class SqsSendQueue:
    """Sends claimed jobs to a sender: `{"delivery": name, "job": ID, "token": lease token}`.

    If the outcome of a message is unknown, its job stays claimed: either a sender processes it, or
    its lease expires. Releasing the job earlier could post it twice at the same time.
    """

    def __init__(self, url: str, client: Any = None) -> None:
        self._queue = _Queue(url, client, once=True)

    def send(self, delivery: str, pushes: Sequence[Push]) -> Sequence[Push]:
        """Send a message for each push. Return the pushes that SQS certainly didn't accept."""
        bodies = [
            {"delivery": delivery, "job": push.job.id, "token": push.token} for push in pushes
        ]
        return [pushes[index] for index in self._queue.send(bodies)]


class SqsHookQueue:
    """Sends messages of webhooks. A message contains an event, or names a stored delivery."""

    def __init__(self, url: str, client: Any = None) -> None:
        self._queue = _Queue(url, client)

    def put(self, messages: Sequence[dict[str, Any]], *, delay_s: int = 0) -> list[int]:
        """Send messages after `delay_s` seconds (0 to 900). Return the indexes of rejected ones."""
        refused: list[int] = []
        start = size = 0
        for at, message in enumerate(messages):
            length = jsontext.size_of(message)
            if size + length > MAX_BATCH_BYTES:
                refused += self._send(messages, start, at, delay_s)
                start, size = at, 0
            size += length
        return refused + self._send(messages, start, len(messages), delay_s)

    def _send(
        self, messages: Sequence[dict[str, Any]], start: int, end: int, delay_s: int
    ) -> list[int]:
        left = self._queue.send(messages[start:end], delay_s=delay_s)
        return [start + each for each in left]
