"""Reads stream records into changes of domain objects.

Takes records in Lambda's form (binary values in base64, times as numbers) and in that of boto3's
`get_records` (bytes, datetimes).
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ojs.domain.job.job import Job
from ojs.domain.pool.worker import Worker
from ojs.domain.queue.config import DEFAULT_QUEUE_POLICY
from ojs.domain.queue.queue import Queue
from ojs.projections.depth_counters import Depth, DepthChange, PushRefusal, Refused
from ojs.projections.limits import Adjustment, ThrottleChange, ThrottleEvent
from ojs.projections.pools import AlertsChange, PoolChange
from ojs.store.derived.projection import committed_jobs
from ojs.store.jobs import items
from ojs.store.queues import pool_health, pools, queues, workers
from ojs.store.table import keys, values
from ojs.store.table.schema import TABLE
from ojs.store.table.values import Item

# A batch's commit is split into parts of this many jobs of one queue: each fits one transaction.
PART_JOBS = 500
# The principal of deletions by time to live.
_TTL_SERVICE = "dynamodb.amazonaws.com"

_JOB, _QUEUE, _WORKER, _BATCH = keys.job(""), keys.queue(""), keys.worker(""), keys.batch("")
_GATE, _LIMITER, _POOL = keys.gate(""), keys.limiter(""), keys.pool("")
_IMAGES = {"INSERT": ("NewImage",), "MODIFY": ("OldImage", "NewImage"), "REMOVE": ("OldImage",)}
# Content is never read; only its length is.
_CONTENT = frozenset({"body"})
_CONTENT_BYTES = "body_bytes"
_TEXTS = frozenset(
    (
        "pk", "sk", "state", "type", "queue", "op", "worker", "batch", "lease", "stalled", "retry",
        "payload", "result", "result_ref", "unique", "info", "directive", "config", "inherited",
        "policy", "dlq", "copy", "copy_of", "key", "strategy", "job", "reason", "etype",
        "replayed", "pool", "seats", "queues", "weights", "prevention", "starved",
    )
)  # fmt: skip
_NUMBERS = frozenset(
    (
        "lane", "priority", "attempt", "created", "enqueued", "scheduled", "expires", "timeout",
        "visibility", "payload_bytes", "life", "activated", "started", "completed", "cancelled",
        "discarded", "retry_at", "retry_delay", "dead", "copy_due", "trimmed", "lease_until",
        "lease_ms", "ttl", "changed", "first", "seen", "active", "n", "b", "bound", "warn",
        "bound_b", "warn_b", "at", "since", "current", "until", "depth", "configured",
        "deleting", "changes", "isolated", "seating", "waiting", "rev",
    )
)  # fmt: skip


class Malformed(Exception):
    """A stream record that cannot be read. Has its origin, but nothing of its content."""

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
        """The entry for the failure queue."""
        return {
            "error": str(self),
            "sequence_number": self.sequence,
            "event_id": self.event_id,
            "keys": self.keys,
        }


@dataclass(frozen=True)
class Change:
    """What a record changed, or one part of it; exactly one kind of change is set.

    `identity` is the same whenever the record is delivered again, `sequence` is reported to Lambda
    when it failed. `second` is when it was written, since the epoch. `pruned` says that the item
    expired by its time to live, `explicit` that a new queue was created by request.
    """

    identity: bytes
    sequence: str
    second: int
    item: str
    jobs: tuple[tuple[Job | None, Job | None], ...] = ()
    queue: tuple[Queue | None, Queue | None] | None = None
    worker: tuple[Worker | None, Worker | None] | None = None
    depth: DepthChange | None = None
    refusal: PushRefusal | None = None
    throttle: ThrottleChange | None = None
    adjustment: Adjustment | None = None
    pool: PoolChange | None = None
    alerts: AlertsChange | None = None
    explicit: bool = False
    pruned: bool = False

    @property
    def removed(self) -> list[Job]:
        """Jobs whose records were removed, that may have left other items."""
        return [
            before
            for before, after in self.jobs
            if before is not None
            and after is None
            and (before.attempt or before.life or before.content_ref or before.discarded_ms)
        ]


@dataclass(frozen=True)
class _Record:
    """The parts of a stream record that all kinds have."""

    identity: str
    sequence: str
    second: int
    pk: str
    sk: str
    old: Item | None
    new: Item | None
    pruned: bool

    def change(self, part: str = "", **what: Any) -> Change:
        digest = hashlib.blake2b(f"{self.identity}{part}".encode(), digest_size=8).digest()
        item = f"{self.pk}|{self.sk}"
        return Change(digest, self.sequence, self.second, item, pruned=self.pruned, **what)


def parse(raw: Mapping[str, Any]) -> list[Change]:
    """The changes in a stream record; none when nothing follows from it. Raises Malformed."""
    try:
        return list(_changes(raw))
    except KeyError as error:
        raise Malformed(f"{error.args[0]!r} is missing", raw) from None
    except (ArithmeticError, AttributeError, TypeError, ValueError, zlib.error) as error:
        # The text of such an error may quote the item's content.
        raise Malformed(f"cannot be read: {type(error).__name__}", raw) from None


def _changes(raw: Mapping[str, Any]) -> Iterator[Change]:
    stream = raw["dynamodb"]
    pk, sk = (stream["Keys"][name]["S"] for name in ("pk", "sk"))
    if not TABLE.projects(pk, sk):
        return
    images = _IMAGES[raw["eventName"]]
    sequence = stream.get("SequenceNumber") or raw["eventID"]
    record = _Record(
        identity=raw.get("eventID") or sequence,
        sequence=sequence,
        second=_second(stream["ApproximateCreationDateTime"]),
        pk=pk,
        sk=sk,
        old=_image(stream["OldImage"]) if "OldImage" in images else None,
        new=_image(stream["NewImage"]) if "NewImage" in images else None,
        pruned=False,
    )
    if record.new is None and record.old is not None:
        ended = int(record.old.get("ttl", record.second + 1)) <= record.second
        by_ttl = _mapping(raw.get("userIdentity")).get("principalId") == _TTL_SERVICE
        record = replace(record, pruned=ended or by_ttl)
    if pk.startswith(_JOB):
        yield from _job(record)
    elif pk.startswith(_BATCH):
        yield from _commit(record)
    elif pk.startswith(_QUEUE):
        name = pk.removeprefix(_QUEUE)
        if name != DEFAULT_QUEUE_POLICY:
            yield record.change(
                queue=(_queue(name, record.old), _queue(name, record.new)),
                explicit="explicit" in (record.new or {}),
            )
    elif pk.startswith(_GATE):
        yield from _counter(record, pk.removeprefix(_GATE))
    elif pk.startswith(_LIMITER):
        yield from _limiter(record)
    elif pk.startswith(_POOL):
        yield from _pool(record, pk.removeprefix(_POOL))
    else:
        yield record.change(worker=(_worker(record.old), _worker(record.new)))


def _job(record: _Record) -> Iterator[Change]:
    before = None if record.old is None else _head(record.old)
    after = None if record.new is None else _head(record.new)
    # A job of a batch that is not committed does not exist yet: it is created by the commit's own
    # record, and never if the batch is undone.
    whole = after if before is None else before if after is None else None
    if whole is None or whole.batch is None:
        yield record.change(jobs=((before, after),))


def _commit(record: _Record) -> Iterator[Change]:
    """A batch's item is removed when the batch is committed, or long after it was undone."""
    if record.new is not None or record.old is None or record.old["state"] != "staging":
        return
    by_queue: defaultdict[str, list[Job]] = defaultdict(list)
    for job in committed_jobs(record.pk.removeprefix(_BATCH), record.old):
        by_queue[job.queue].append(job)
    for queue, jobs in by_queue.items():
        for start in range(0, len(jobs), PART_JOBS):
            part = jobs[start : start + PART_JOBS]
            yield record.change(f"|{queue}|{start}", jobs=tuple((None, job) for job in part))


def _head(item: Item) -> Job:
    job = items.job_from_head(item)
    if job.reserved_bytes is not None:
        _must(job.reserved_bytes, int)
    # Bytes are counted wherever they are stored.
    return replace(job, content_bytes=job.content_bytes or int(item.get(_CONTENT_BYTES, 0)))


def _counter(record: _Record, queue: str) -> Iterator[Change]:
    """A counter is removed with its queue, whose own record leads to the event."""
    if record.new is None:
        return
    if record.sk in (keys.HELD_SLOTS, keys.HELD_RATE):
        yield from _throttle(record, queue)
        return
    if record.sk == keys.DEPTH:
        before = None if record.old is None else Depth.of(record.old)
        yield record.change(depth=DepthChange(queue, before, Depth.of(record.new)))
        return
    refused = Refused.of(record.new)
    count = refused.count - (0 if record.old is None else Refused.of(record.old).count)
    yield record.change(refusal=PushRefusal(queue, count, refused))


def _limiter(record: _Record) -> Iterator[Change]:
    """An item is removed because it was not used for long: nothing follows."""
    if record.new is None:
        return
    if record.sk == keys.HELD:
        yield from _throttle(record, None)
    else:
        yield record.change(adjustment=Adjustment.of(record.new))


def _throttle(record: _Record, queue: str | None) -> Iterator[Change]:
    if record.new is None:
        return
    before = None if record.old is None else ThrottleEvent.of(record.old)
    yield record.change(throttle=ThrottleChange(queue, before, ThrottleEvent.of(record.new)))


def _pool(record: _Record, name: str) -> Iterator[Change]:
    """Nothing follows from a new pool, nor from one that is deleted with its alerts."""
    if record.new is None:
        return
    if record.sk == keys.WATCH:
        before = None if record.old is None else pool_health.alerts_from(record.old)
        after = pool_health.alerts_from(record.new)
        yield record.change(alerts=AlertsChange(name, before, after))
    elif record.old is not None:
        change = PoolChange(pools.from_item(record.old), pools.from_item(record.new))
        yield record.change(pool=change)


def _queue(name: str, item: Item | None) -> Queue | None:
    return None if item is None else queues.from_item(name, item)


def _worker(item: Item | None) -> Worker | None:
    return None if item is None else workers.from_item(item)


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
