"""Creates the jobs of items that an application wrote to a table, exactly one for each job.

Records come from the table's stream, and from the queue `later`. Both deliver a record again if a
run died. The job is then a duplicate: its ID is in the item, or is derived from the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger

from ojs import runtime
from ojs.domain import jsontext
from ojs.domain.access import Principal
from ojs.domain.errors import (
    BackendUnavailable,
    CapacityExceeded,
    Duplicate,
    InvalidRequest,
    OjsError,
    forbidden,
)
from ojs.domain.events.event import matches
from ojs.domain.ids import derived_uuid7
from ojs.domain.job import envelope
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.job.envelope import JobRequest
    from ojs.runtime import Runtime
    from ojs.settings import Outbox

logger = Logger()

MAX_JOBS = 10
# The stream deletes a record after 24 hours.
LATE_MS = 23 * 3_600_000
# Finished jobs identify repeated records, so they are kept for longer than records are.
_JOBS_KEPT_S = 2 * 86_400
_ITEMS_KEPT_S = 7 * 86_400
# Jobs of one transaction. More jobs would be staged, and a crash would keep their IDs for minutes.
_AT_ONCE = 100


@record
class _Item:
    """An item: the identifier of its record, its key in DynamoDB's format, and its jobs.

    `raw` are the jobs as a client would send them. `error` is the reason why a job is not stored.
    """

    number: str
    key: Mapping[str, Any]
    raw: Sequence[Any] = ()
    jobs: list[JobRequest] = field(default_factory=list)
    error: OjsError | None = None
    late: bool = False


def relay(current: Runtime, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Store the jobs of a batch of records. Return the records that must be redelivered."""
    assert current.settings.outbox is not None
    failed = _Relay(current, current.settings.outbox).run(records)
    runtime.flush()
    return {"batchItemFailures": [{"itemIdentifier": item.number} for item in failed]}


class _Relay:
    def __init__(self, current: Runtime, outbox: Outbox) -> None:
        self._enqueue = current.enqueue
        self._clock = current.clock
        self._outbox = outbox
        self._current = current

    def run(self, records: Sequence[Mapping[str, Any]]) -> list[_Item]:
        """Store the jobs of these records. Return the items that failed."""
        queued = "messageId" in records[0]
        found = (self._message(each) if queued else self._change(each) for each in records)
        items = [item for item in found if item is not None]
        if ready := [item for item in items if item.error is None]:
            self._push(ready, waits=self._outbox.ordered and not queued)
        failed = [item for item in items if item.error and not self._passed_on(item, queued)]
        failed += self._finish([item for item in items if item.error is None])
        if codes := Counter(item.error.code for item in items if item.error):
            # The contents of items can be confidential.
            extra = {"records": len(records), "failed": len(failed), "codes": dict(codes)}
            logger.warning("Jobs of outbox items not stored", extra=extra)
        return failed

    def _message(self, message: Mapping[str, Any]) -> _Item:
        """Return the item of a message that this function sent to `later`."""
        body = jsontext.stored(message["body"])
        jobs = [envelope.parse(job) for job in body["jobs"]]
        return _Item(message["messageId"], body["keys"], body["jobs"], jobs)

    def _change(self, changed: Mapping[str, Any]) -> _Item | None:
        """Return the item of a stream record. None: the record brings no job."""
        change, outbox = changed["dynamodb"], self._outbox
        new, old = change.get("NewImage") or {}, change.get("OldImage")
        value = new.get(outbox.attribute)
        first = changed["eventName"] == "INSERT"
        if outbox.own and (value is None or (old or {}).get(outbox.attribute) == value):
            return None
        if not (outbox.own or first):
            return None
        created_ms = int(float(change["ApproximateCreationDateTime"]) * 1_000)
        item = _Item(str(change["SequenceNumber"]), change["Keys"])
        try:
            if old is None and not first:
                raise InvalidRequest("stream", "must have the view type NEW_AND_OLD_IMAGES")
            jobs = [jsontext.loads(text) for text in self._texts(value or {})]
            for index, job in enumerate(jobs):
                # The same at each delivery. An item of an own table can have another job later.
                name = f"{outbox.table}|{item.number}|{index}"
                own = derived_uuid7(created_ms, name) if outbox.own else new["id"]["S"]
                if isinstance(job, dict) and job.get("id") is None:
                    job["id"] = own
                item.jobs.append(envelope.parse(job))
            item.raw = jobs
            if self._clock.now_ms() - created_ms > LATE_MS:
                item.late = True
                raise BackendUnavailable("The stream will soon delete the record.")
        except OjsError as error:
            item.error = error
        return item

    def _texts(self, value: Mapping[str, Any]) -> list[str]:
        """Return the jobs of an attribute as JSON. Raises InvalidRequest."""
        listed = value["L"] if "L" in value and self._outbox.own else [value]
        texts = [each["S"] for each in listed if "S" in each]
        if len(texts) != len(listed) or not 1 <= len(texts) <= MAX_JOBS:
            most = f", or a list of 1 to {MAX_JOBS}" if self._outbox.own else ""
            raise InvalidRequest(self._outbox.attribute, f"must be a job as JSON text{most}")
        return texts

    def _push(
        self, items: Sequence[_Item], *, waits: bool, stopped: OjsError | None = None
    ) -> OjsError | None:
        """Store the jobs of these items in order, in one batch if possible.

        An error `stopped` of an earlier item applies to these items, too. If `waits` is true, each
        retryable error does, otherwise only an error of the table. Returns this error.
        """
        jobs = [job for item in items for job in item.jobs]
        parts, size = list(items), 1
        if len(jobs) > _AT_ONCE:
            error, size = None, _AT_ONCE // MAX_JOBS
        elif (error := stopped or self._refusal(jobs)) is None:
            return None
        down = error is not None and error.retryable and not isinstance(error, CapacityExceeded)
        if len(items) == 1 and isinstance(error, Duplicate):
            # A repeated record, or a unique job. The other jobs of a list can be missing.
            parts = [replace(items[0], jobs=[job]) for job in jobs] if len(jobs) > 1 else []
        elif error and (len(items) == 1 or down or stopped):
            for item in items:
                item.error = error
            return error if down or (waits and error.retryable) else None
        for at in range(0, len(parts), size):
            stopped = self._push(parts[at : at + size], waits=waits, stopped=stopped)
        if parts and len(items) == 1:
            items[0].error = next((part.error for part in parts if part.error), None)
        return stopped

    def _refusal(self, jobs: Sequence[JobRequest]) -> OjsError | None:
        """Store these jobs, all or none, with the permissions of the outbox. Return an error."""
        outbox = self._outbox
        reaches = Principal(outbox.table, queues=outbox.queues).reaches
        try:
            push = self._enqueue.prepare(jobs, outbox.table, reaches, batch=len(jobs) > 1)
            if not all(matches(each.type, outbox.types) for each in push.specifications):
                raise forbidden()
            self._enqueue.store(replace(push, kept_s=_JOBS_KEPT_S), 0)
        except OjsError as error:
            return error
        return None

    def _passed_on(self, item: _Item, queued: bool) -> bool:
        """Send an item without stored jobs to a queue. Return false if its record must wait."""
        assert item.error is not None
        if not item.error.retryable:
            told = {"table": self._outbox.table, "keys": item.key, "code": item.error.code}
            return self._current.refused_queue.put(told)
        if queued or (self._outbox.ordered and not item.late):
            return False
        return self._current.later_queue.put({"keys": item.key, "jobs": item.raw})

    def _finish(self, items: Sequence[_Item]) -> Sequence[_Item]:
        """Delete these items, or let them expire. Return them if that failed."""
        keys = {jsontext.dumps(item.key): item.key for item in items}.values()
        try:
            if self._outbox.keep:
                self._current.outbox_table.expire_items(
                    keys, self._clock.now_ms() // 1_000 + _ITEMS_KEPT_S
                )
            elif not self._outbox.own:
                self._current.outbox_table.delete_items(keys)
        except OjsError:
            return items
        return ()
