"""Creates jobs from the messages of an SQS queue, at most one for each message.

Lambda deletes a message from the queue if this function returns that its job is stored. All other
messages return to the queue, which redelivers them and finally moves them to its dead-letter queue.

With the setting `outbox`, jobs come from the items of a table (`functions.bridge.outbox`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger

from ojs import runtime
from ojs.domain import jsontext
from ojs.domain.errors import CapacityExceeded, Duplicate, InvalidRequest, OjsError
from ojs.domain.ids import derived_uuid7
from ojs.domain.job import envelope

if TYPE_CHECKING:
    from ojs.domain.job.envelope import JobRequest
    from ojs.runtime import Runtime
    from ojs.settings import Settings

Record = Mapping[str, Any]

logger = Logger()

_IDS_LOGGED = 10


def handler(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Store the jobs of a batch of messages. Return the messages that must be redelivered."""
    records: Sequence[Record] = event.get("Records") or []
    if records and runtime.current().settings.outbox is not None:
        from functions.bridge.outbox import relay

        return relay(runtime.current(), records)
    refused = _Refused()
    if records:
        _Bridge(runtime.current(), refused).push(records)
        runtime.flush()
    if refused.ids:
        # The contents of the messages can be confidential.
        logger.warning(
            "Messages returned to their queue",
            extra={
                "messages": len(records),
                "refused": len(refused.ids),
                "codes": dict(refused.codes),
                "message_ids": refused.ids[:_IDS_LOGGED],
            },
        )
    return {"batchItemFailures": [{"itemIdentifier": each} for each in refused.ids]}


class _Refused:
    """Messages whose jobs are not stored, in order.

    In a FIFO queue, all later messages of their groups are included, so that the order is kept.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.codes: Counter[str] = Counter()
        self._groups: set[str] = set()

    def add(self, record: Record, code: str) -> None:
        self.ids.append(record["messageId"])
        self.codes[code] += 1
        if group := _group(record):
            self._groups.add(group)

    def blocks(self, record: Record) -> bool:
        return _group(record) in self._groups


class _Bridge:
    def __init__(self, current: Runtime, refused: _Refused) -> None:
        self._enqueue = current.enqueue
        self._settings = current.settings
        self._refused = refused

    def push(self, records: Sequence[Record]) -> None:
        """Store the jobs of these messages, in one batch if possible."""
        readable = list(self._readable(records))
        if len(readable) > 1:
            try:
                self._enqueue.push_batch([job for _, job in readable], producer=_producer(records))
            except OjsError as error:
                if error.retryable and not isinstance(error, CapacityExceeded):
                    for record, _ in readable:
                        self._refused.add(record, error.code)
                    return
                # A message is not a valid job, is stored already, or only some jobs fit into the
                # queue. Store each job separately.
            else:
                return
        self._one_by_one(readable, _producer(records))

    def _readable(self, records: Sequence[Record]) -> Iterator[tuple[Record, JobRequest]]:
        for record in records:
            if self._refused.blocks(record):
                self._refused.add(record, "group")
                continue
            try:
                yield record, envelope.parse(_job(record, self._settings))
            except OjsError as error:
                self._refused.add(record, error.code)

    def _one_by_one(self, jobs: Sequence[tuple[Record, JobRequest]], producer: str) -> None:
        busy: str | None = None
        for record, job in jobs:
            if busy or self._refused.blocks(record):
                self._refused.add(record, busy or "group")
                continue
            try:
                self._enqueue.push(job, producer=producer)
            except Duplicate:
                # The message was redelivered, or it is a duplicate of another job.
                continue
            except OjsError as error:
                self._refused.add(record, error.code)
                # If the queue is full or a write fails, the next job would fail, too.
                busy = error.code if error.retryable else None


def _job(record: Record, settings: Settings) -> dict[str, Any]:
    """Return the job of a message, as a client would send it.

    Raises:
        InvalidPayload: The body is not valid JSON.
        InvalidRequest: The body is not a JSON object.
    """
    body: Any = record["body"]
    if settings.bridge_body == "json":
        body = jsontext.loads(body)
    if settings.bridge_type is not None:
        body = {
            "type": settings.bridge_type,
            "args": [body],
            "options": {"queue": settings.bridge_queue},
        }
    elif not isinstance(body, dict):
        raise InvalidRequest("body", "must be a JSON object that describes a job")
    meta = body.get("meta", {})
    if isinstance(meta, dict):
        meta = {**_attributes(record), **meta, "sqs_message_id": record["messageId"]}
    # The time at which the message was sent is the same for each delivery of it.
    sent_ms = int(record["attributes"]["SentTimestamp"])
    if body.get("id") is None:
        body = {**body, "id": derived_uuid7(sent_ms, record["messageId"])}
    return {**body, "meta": meta}


def _attributes(record: Record) -> dict[str, str]:
    """Return the text attributes of the message. Binary attributes are left out."""
    given: Mapping[str, Any] = record.get("messageAttributes") or {}
    return {
        name: each["stringValue"]
        for name, each in given.items()
        if each.get("stringValue") is not None
    }


def _producer(records: Sequence[Record]) -> str:
    """Return the name of the queue of these messages. They all have the same one."""
    return str(records[0]["eventSourceARN"]).rpartition(":")[2]


def _group(record: Record) -> str | None:
    group: str | None = record["attributes"].get("MessageGroupId")
    return group


runtime.prepare("enqueue")
