"""Stores what the projection derives from the stream: counters, event pages and dedup records.

The stream may deliver a record twice, concurrently, and in different batches. So each stream record
that has an effect leaves an 8-byte hash, in the same transaction as the effect. The hashes are in
the dedup records of the second in which the change was written, which is the same at each delivery:

    M|{second}  0000   full: never written again
                0001   open: written on the condition that it is as read

So two deliveries of a stream record write the same item, and the second one finds the hash.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from ojs.domain import jsontext, times
from ojs.domain.errors import known
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.store.jobs import items
from ojs.store.table import keys
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value

HASH_BYTES = 8
# The attribute of a queue's counters for waiting copies of dead letters.
COPIES = "copies"
# An item of this size gets no more hashes; the last ones may exceed it.
_FULL_BYTES = 3_000
# Stream records are kept for a day, and cannot be delivered again afterwards.
_DEDUP_KEPT_S = 2 * 86_400
_EVENTS_KEPT_S = 8 * 86_400
# An item may have 400 KB; reading it costs a unit for each 4 KB.
_PAGE_BYTES = 200_000
_PAGE_EVENTS = 500

ErrorKey = tuple[str, str]


def error_key(before: Job, attempt: int) -> ErrorKey:
    """The key of the error of a job's attempt, or of the error that ended a job not running."""
    ended = before.state is not State.ACTIVE
    return keys.job(before.id), keys.error(before.life, attempt, ended=ended)


@dataclass(frozen=True)
class Delta:
    """Increments to one item of the statistics. `ends_s` is its time to live (s), if any."""

    queue: str
    sk: str
    add: Mapping[str, int]
    ends_s: int | None = None


@dataclass(frozen=True)
class NewEventPage:
    """The compressed events of one item, and their number."""

    packed: bytes
    count: int


@dataclass(frozen=True)
class DedupRecord:
    """The hashes of one second: all that were found, and the item that is still open."""

    second: int
    seen: frozenset[bytes] = frozenset()
    number: int = 0
    packed: bytes = b""
    rev: int = 0

    @property
    def full(self) -> bool:
        """Whether the next hash begins a new item."""
        return len(self.packed) >= _FULL_BYTES

    def found(self, item: Item) -> DedupRecord:
        """The record with the hashes of another item, which counts as the open one."""
        packed = item["seen"]
        assert isinstance(packed, bytes)
        hashes = (packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES))
        number, rev = int(item["sk"]), int(item["rev"])
        return DedupRecord(self.second, self.seen.union(hashes), number, packed, rev)

    def with_(self, hashes: Sequence[bytes]) -> DedupRecord:
        """The record with more hashes, in the open item or a new one."""
        seen, added = self.seen.union(hashes), b"".join(hashes)
        if self.full:
            return DedupRecord(self.second, seen, self.number + 1, added, 1)
        return DedupRecord(self.second, seen, self.number, self.packed + added, self.rev + 1)

    def write(self, now_ms: int) -> Put:
        """The conditional write of the open item."""
        item: Item = {
            "pk": keys.dedup_records(self.second),
            "sk": f"{self.number:04d}",
            "seen": self.packed,
            "rev": self.rev,
            "ttl": now_ms // 1000 + _DEDUP_KEPT_S,
        }
        # Race: another delivery, perhaps of the same stream records. The loser reads the hashes
        # again, drops what is counted by now, and tries again with the rest.
        if self.rev == 1:
            return Put(item, condition="attribute_not_exists(pk)")
        return Put(item, condition="#rev = :read", values={":read": self.rev - 1})


@dataclass(frozen=True)
class ProjectedState:
    """What is read before a batch is projected."""

    dedup: Mapping[int, DedupRecord]
    failures: Mapping[ErrorKey, Failure] = field(default_factory=dict)
    # By queue and sort key of the day: the types of job that are counted by name.
    types: Mapping[tuple[str, str], set[str]] = field(default_factory=dict)
    # By queue: the attributes that count its dead letters.
    dead: Mapping[str, set[str]] = field(default_factory=dict)


class ProjectionStore:
    """The store of derived data."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def read(
        self,
        seconds: Iterable[int],
        errors: Iterable[ErrorKey] = (),
        days: Iterable[tuple[str, str]] = (),
        dead: Iterable[str] = (),
    ) -> ProjectedState:
        """Read all that a batch needs, in one call if that has fewer than 100 items.

        `days` are queues and sort keys of days, `dead` queues whose number of dead letters changed.
        Raises OjsError.
        """
        seconds, errors, days = set(seconds), set(errors), set(days)
        dead_keys = {queue: (keys.stats(queue), keys.DEAD) for queue in dead}
        first = {second: (keys.dedup_records(second), f"{0:04d}") for second in seconds}
        day_keys = {(queue, sk): (keys.stats(queue), sk) for queue, sk in days}
        found = self._table.batch_get(
            [*first.values(), *day_keys.values(), *dead_keys.values(), *errors]
        )
        dedup = {second: self._all(second, found.get(first[second])) for second in seconds}
        types = {
            day: {name.split("|", 1)[1] for name in found[key] if "|" in name}
            for day, key in day_keys.items()
            if key in found
        }
        failures = {key: items.failure_from(found[key]) for key in errors if key in found}
        counted = {
            queue: {name for name in found[key] if "|" in name}
            for queue, key in dead_keys.items()
            if key in found
        }
        return ProjectedState(dedup, failures, types, counted)

    def _all(self, second: int, first: Item | None) -> DedupRecord:
        """The dedup record of a second, given its first item. There are rarely more items."""
        record = DedupRecord(second)
        if first is None:
            return record
        record = record.found(first)
        if record.full:
            values: dict[str, Value] = {":second": keys.dedup_records(second), ":first": f"{0:04d}"}
            for item in self._table.query_all("pk = :second AND sk > :first", values):
                record = record.found(item)
        return record

    def commit(
        self,
        dedup: Iterable[DedupRecord],
        deltas: Sequence[Delta],
        pages: Mapping[tuple[int, str], NewEventPage],
        *,
        now_ms: int,
    ) -> None:
        """Write dedup records, counters and event pages in one transaction of at most 100 items.

        `pages` by the ms and token of their keys. Raises LostRace when a dedup record has changed
        since it was read, OjsError.
        """
        writes: list[Put | Update] = [record.write(now_ms) for record in dedup]
        for delta in deltas:
            setting = {"changed": now_ms} if delta.ends_s is None else {"ttl": delta.ends_s}
            writes.append(Update(keys.stats(delta.queue), delta.sk, set=setting, add=delta.add))
        for (ms, token), page in pages.items():
            item: Item = {
                "pk": keys.events(times.format_ms(ms)[:10]),
                "sk": keys.event_page(ms, token),
                "zip": page.packed,
                "n": page.count,
                "ttl": ms // 1000 + _EVENTS_KEPT_S,
            }
            writes.append(Put(item))
        self._table.transact(writes)


def pages(events: Sequence[str]) -> list[NewEventPage]:
    """Compress events (JSON texts) in order into few pages, each well within an item's size."""
    if not events:
        return []
    if len(events) <= _PAGE_EVENTS:
        packed = zlib.compress(f"[{','.join(events)}]".encode())
        if len(packed) <= _PAGE_BYTES or len(events) == 1:
            return [NewEventPage(packed, len(events))]
    middle = len(events) // 2
    return [*pages(events[:middle]), *pages(events[middle:])]


def committed_jobs(token: str, item: Mapping[str, Any]) -> Iterator[Job]:
    """The jobs of a staged batch, as stored. Raises KeyError, ValueError, zlib.error.

    The batch has only the sums of their bytes for each queue, which are divided evenly.
    """
    created_ms, packed = int(item["created"]), bytes(item["ids"])
    runs = _unpacked(item["runs"])
    if sum(run[0] for run in runs) * 16 != len(packed):
        raise ValueError("ids and runs of a batch do not belong together")
    tracked, untracked = (
        {queue: _shares(*sums) for queue, sums in _unpacked(item[name]).items()}
        if name in item
        else {}
        for name in ("held", "loose")
    )
    at = 0
    for count, kind, queue, state, priority, scheduled_ms in runs:
        for _ in range(count):
            yield Job(
                id=str(uuid.UUID(bytes=packed[at : at + 16])),
                type=kind,
                queue=queue,
                state=known(State, state, "jobs in state"),
                created_ms=created_ms,
                priority=priority,
                enqueued_ms=created_ms if state == State.AVAILABLE else None,
                scheduled_ms=scheduled_ms,
                reserved_bytes=next(tracked[queue], 0) if queue in tracked else None,
                content_bytes=next(untracked[queue], 0) if queue in untracked else 0,
                op=token,
            )
            at += 16


def _unpacked(packed: Any) -> Any:
    return jsontext.stored(zlib.decompress(bytes(packed)).decode("utf-8"))


def _shares(count: int, total: int) -> Iterator[int]:
    """Divide a total into `count` whole parts of nearly the same size."""
    share, rest = divmod(total, max(1, count))
    yield share + rest
    yield from repeat(share, count - 1)
