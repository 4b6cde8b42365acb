"""Parses the records of the DynamoDB stream into changes of domain objects.

Accepts records in the format of Lambda (binary values in base64, times as numbers), and in that of
boto3's `get_records` (bytes, datetimes).
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from ojs.domain.events.event import Event
from ojs.domain.job.job import Job
from ojs.domain.queue.config import DEFAULT_QUEUE_POLICY
from ojs.domain.tenants import get_local_name
from ojs.projections.bulk import BulkPushChange, OperationChange
from ojs.projections.changes import TableChange
from ojs.projections.crons import CronRunChange
from ojs.projections.deliveries import DeliveryChange
from ojs.projections.limits import Adjustment, ThrottleChange
from ojs.projections.pools import AlertsChange, PoolChange, WorkerChange
from ojs.projections.queues import DepthChange, PushRefusal, QueueChange
from ojs.projections.workflows import WorkflowChange
from ojs.records import record
from ojs.store.crons import crons
from ojs.store.deliveries import deliveries
from ojs.store.derived import pool_health
from ojs.store.derived.projection import committed_jobs
from ojs.store.jobs import items
from ojs.store.queues import pools, queues, workers
from ojs.store.table import keys, values
from ojs.store.table.errors import UnreadableItem
from ojs.store.table.schema import TABLE
from ojs.store.table.values import Item
from ojs.store.workflows import workflows
from ojs.store.workflows.workflows import WorkflowRecord

# The commit of a batch is split into parts of up to this many jobs of one queue. The events of each
# part fit into one event page.
PART_JOBS = 500
# The principal in stream records of deletions by DynamoDB's time to live.
_TTL_SERVICE = "dynamodb.amazonaws.com"

_JOB, _QUEUE, _WORKER, _BATCH = keys.job(""), keys.queue(""), keys.worker(""), keys.batch("")
_COUNTER, _POOL = keys.counter(""), keys.pool("")
_OPERATION, _BULK_PUSH = keys.operation(""), keys.bulk_push("")
_CRON_RUNS, _WORKFLOW, _DELIVERY = keys.cron_runs(""), keys.workflow(""), keys.delivery("")
_HOOK = keys.hook("")
_TENANT, _OF_TENANT = keys.tenant_record(""), keys.counter(keys.tenant_name(""))
_IMAGES = {"INSERT": ("NewImage",), "MODIFY": ("OldImage", "NewImage"), "REMOVE": ("OldImage",)}
# Attributes with content. Only their length is read.
_CONTENT = frozenset({"body"})
_CONTENT_BYTES = "body_bytes"
_TEXTS = frozenset(
    (
        "pk", "sk", "state", "type", "queue", "op", "worker", "batch", "lease", "stalled", "retry",
        "payload", "result", "result_ref", "errors", "unique", "info", "directive", "config",
        "inherited", "policy", "dlq", "copy", "copy_of", "key", "strategy", "job", "reason",
        "etype", "replayed", "pool", "seats", "queues", "weights", "prevention", "starved",
        "expression", "zone", "local", "other", "wf", "told", "fault", "action", "atomicity",
    )
)  # fmt: skip
_NUMBERS = frozenset(
    (
        "lane", "priority", "attempt", "created", "enqueued", "scheduled", "expires", "timeout",
        "visibility", "payload_bytes", "life", "activated", "started", "completed", "cancelled",
        "discarded", "retry_at", "retry_delay", "dead", "copy_due", "trimmed", "lease_until",
        "lease_ms", "ttl", "changed", "first", "seen", "active", "n", "b", "bound", "warn",
        "bound_b", "warn_b", "at", "since", "current", "until", "depth", "configured",
        "deleting", "fenced", "changes", "isolated", "seating", "waiting", "rev", "tick", "fired",
        "skipped", "late", "succeeded", "failed", "finished", "total",
    )
)  # fmt: skip


class Malformed(Exception):
    """A stream record that can't be read. Contains its origin, but nothing of its content."""

    def __init__(self, reason: str, raw: Any) -> None:
        super().__init__(reason)
        stream = _mapping(_mapping(raw).get("dynamodb"))
        self.sequence = _text(stream.get("SequenceNumber"))
        self.event_id = _text(_mapping(raw).get("eventID"))
        self.keys = {
            _text(name): _text(_mapping(value).get("S"))
            for name, value in _mapping(stream.get("Keys")).items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for the failure queue."""
        return {
            "error": str(self),
            "sequence_number": self.sequence,
            "event_id": self.event_id,
            "keys": self.keys,
        }


@record(frozen=True)
class Change:
    """The change in a stream record, or in a part of it: a change of jobs, or of another item.

    Attributes:
        identity: Identity of the change. Equal for each delivery of the stream record.
        sequence: Sequence number, which is reported to Lambda if the change fails.
        place: Text that sorts the changes of a stream shard.
        second: Time of the write, in seconds since the epoch.
    """

    identity: bytes
    sequence: str
    place: str
    second: int
    jobs: tuple[tuple[Job | None, Job | None], ...] = ()
    other: TableChange | None = None

    @property
    def written_ms(self) -> int:
        """The time of the write, to the second."""
        return self.second * 1_000

    def events(self, service: str) -> list[Event]:
        """Return the events of a change of an item that is not a job record."""
        news = self.other.events(self.written_ms) if self.other is not None else ()
        return [new.event(service, self.identity.hex()) for new in news]

    @property
    def cleared(self) -> WorkflowRecord | None:
        """A workflow that was removed. Other items of it might still exist."""
        return self.other.removed if isinstance(self.other, WorkflowChange) else None

    @property
    def removed(self) -> list[Job]:
        """Jobs whose records were removed. Other items of them might still exist."""
        return [
            before
            for before, after in self.jobs
            if before is not None
            and after is None
            and (before.attempt or before.life or before.content_ref or before.discarded_ms)
        ]


@record(frozen=True)
class _Record:
    """The attributes that all kinds of stream records have."""

    identity: str
    sequence: str
    second: int
    pk: str
    sk: str
    old: Item | None
    new: Item | None

    def change(self, part: str = "", number: int = 0, **what: Any) -> Change:
        digest = hashlib.blake2b(f"{self.identity}{part}".encode(), digest_size=8).digest()
        # A sequence number has up to 40 digits.
        place = f"{self.sequence:0>40}.{number:04d}" if number else f"{self.sequence:0>40}"
        return Change(digest, self.sequence, place, self.second, **what)


_UNREADABLE = (KeyError, ArithmeticError, AttributeError, TypeError, ValueError, zlib.error)


def parse(raw: Mapping[str, Any]) -> list[Change]:
    """Return the changes in a stream record. Empty if the record has no effect.

    Raises:
        Malformed: The record can't be read.
        UnknownForm: Only a newer version knows the format of the record.
    """
    try:
        return list(_changes(raw))
    except (*_UNREADABLE, UnreadableItem) as error:
        cause = error.__cause__ if isinstance(error, UnreadableItem) else error
        if isinstance(cause, KeyError):
            raise Malformed(f"{cause.args[0]!r} is missing", raw) from None
        # The text of such an error can quote the item's content.
        raise Malformed(f"can't be read: {type(cause).__name__}", raw) from None


def written_ms(raw: Any) -> int | None:
    """Return the time (ms) when a stream record was written, to the second, or None if it has no
    time.
    """
    try:
        return _second(raw["dynamodb"]["ApproximateCreationDateTime"]) * 1_000
    except _UNREADABLE:
        return None


def _changes(raw: Mapping[str, Any]) -> Iterator[Change]:
    stream = raw["dynamodb"]
    pk, sk = (stream["Keys"][name]["S"] for name in ("pk", "sk"))
    if not TABLE.projects(pk, sk):
        return
    images = _IMAGES[raw["eventName"]]
    sequence = stream["SequenceNumber"]
    if not sequence.isdecimal():
        raise ValueError
    record = _Record(
        identity=raw.get("eventID") or sequence,
        sequence=sequence,
        second=_second(stream["ApproximateCreationDateTime"]),
        pk=pk,
        sk=sk,
        old=_image(stream["OldImage"]) if "OldImage" in images else None,
        new=_image(stream["NewImage"]) if "NewImage" in images else None,
    )
    if pk.startswith(_JOB):
        yield from _job(record)
    elif pk.startswith(_BATCH):
        yield from _commit(record)
    else:
        principal = _mapping(raw.get("userIdentity")).get("principalId")
        change = _other(record, by_ttl=principal == _TTL_SERVICE)
        if change is not None:
            yield record.change(other=change)


def _other(record: _Record, *, by_ttl: bool) -> TableChange | None:
    """Return the change of an item that is not a job record, or None if it has no effect."""
    pk, images = record.pk, (record.old, record.new)
    if pk.startswith(_QUEUE):
        return _queue(record)
    if pk.startswith(_CRON_RUNS):
        # An entry of a run log is written once, and deleted when it is old.
        fresh = record.old is None and record.new is not None
        return CronRunChange(crons.RUN.of(record.new or {})) if fresh else None
    if pk.startswith(_WORKFLOW):
        return WorkflowChange(
            *(None if item is None else workflows.WORKFLOW.of(item) for item in images)
        )
    if pk.startswith(_DELIVERY):
        return DeliveryChange(
            *(None if item is None else deliveries.DELIVERY.of(item) for item in images)
        )
    if pk.startswith(_HOOK):
        # Imported on first use: most deployments have no webhooks.
        from ojs.projections.webhooks import HookChange

        return HookChange.of(*images)
    if pk.startswith((_TENANT, _OF_TENANT)):
        from ojs.projections.tenants import read_event

        return read_event(pk, *images)
    if pk.startswith(_OPERATION):
        return OperationChange.of(*images)
    if pk.startswith(_BULK_PUSH):
        return BulkPushChange.of(*images)
    if pk.startswith(_WORKER):
        return _worker(record, by_ttl=by_ttl)
    return _counter(record)


def _job(record: _Record) -> Iterator[Change]:
    before = None if record.old is None else _stored_job(record.old)
    after = None if record.new is None else _stored_job(record.new)
    # A job of an uncommitted batch doesn't count yet. The stream record of the commit creates it.
    # If the batch is undone, the job never counts.
    whole = after if before is None else before if after is None else None
    if whole is None or whole.batch is None:
        yield record.change(jobs=((before, after),))


def _commit(record: _Record) -> Iterator[Change]:
    """Return the changes in the commit of a batch, which removes the batch's item.

    The item is also removed long after the batch was undone. That has no effect.
    """
    if record.new is not None or record.old is None or record.old["state"] != "staging":
        return
    by_queue: defaultdict[str, list[Job]] = defaultdict(list)
    for job in committed_jobs(record.pk.removeprefix(_BATCH), record.old):
        by_queue[job.queue].append(job)
    number = 0
    for queue, jobs in by_queue.items():
        for start in range(0, len(jobs), PART_JOBS):
            part = tuple((None, job) for job in jobs[start : start + PART_JOBS])
            yield record.change(f"|{queue}|{start}", number, jobs=part)
            number += 1


def _stored_job(item: Item) -> Job:
    job = items.job_of(item)
    if job.reserved_bytes is not None:
        _must(job.reserved_bytes, int)
    # The size of a job is in the sum of bytes of each stored state.
    return replace(job, content_bytes=job.content_bytes or int(item.get(_CONTENT_BYTES, 0)))


def _queue(record: _Record) -> QueueChange:
    name = record.pk.removeprefix(_QUEUE)
    policy = get_local_name(name) == DEFAULT_QUEUE_POLICY
    before, after = (
        # The policy for new queues always exists. No request creates it.
        None if item is None and not policy else queues.from_item(name, item or {})
        for item in (record.old, record.new)
    )
    return QueueChange(before, after, explicit="explicit" in (record.new or {}))


def _worker(record: _Record, *, by_ttl: bool) -> WorkerChange:
    old, new = record.old, record.new
    ended = old is not None and int(old.get("ttl", record.second + 1)) <= record.second
    before, after = (None if item is None else workers.from_item(item) for item in (old, new))
    return WorkerChange(before, after, pruned=by_ttl or ended)


def _counter(record: _Record) -> TableChange | None:
    """Parse the record of a counter or of a pool. Return None if it causes no event or metric."""
    pk, old, new = record.pk, record.old, record.new
    if new is None:
        # A counter is removed with its queue, whose own stream record has the event. Alerts are
        # removed with their pool. Other items are removed because they were not used for a long
        # time.
        return None
    queue = pk.removeprefix(_COUNTER)
    match record.sk:
        case keys.DEPTH:
            return DepthChange.of(queue, old, new)
        case keys.REFUSED:
            return PushRefusal.of(queue, old, new)
        case keys.SEMAPHORE_THROTTLED | keys.RATE_THROTTLED:
            return ThrottleChange.of(queue, old, new)
        case keys.THROTTLED:
            return ThrottleChange.of(None, old, new)
        case keys.ADJUSTED:
            return Adjustment.of(new)
        case keys.ALERTS:
            alerts = None if old is None else pool_health.alerts_from(old)
            return AlertsChange(pk.removeprefix(_POOL), alerts, pool_health.alerts_from(new))
        case _ if old is not None:
            return PoolChange(pools.POOL.of(old), pools.POOL.of(new))
        case _:
            # The creation of a pool has no event.
            return None


def _second(created: Any) -> int:
    return int(created.timestamp() if isinstance(created, datetime) else created)


def _image(typed: Mapping[str, Any]) -> Item:
    plain = values.unpack({name: v for name, v in typed.items() if name not in _CONTENT})
    for name, value in typed.items():
        if name in _TEXTS:
            _must(plain[name], str)
        elif name in _NUMBERS:
            _must(plain[name], int)
        elif "B" in value and isinstance(value["B"], str):
            plain[name] = base64.b64decode(value["B"], validate=True)
    if "body" in typed:
        plain[_CONTENT_BYTES] = len(typed["body"]["S"].encode("utf-8"))
    return plain


def _must(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value[:1_024] if isinstance(value, str) else ""
