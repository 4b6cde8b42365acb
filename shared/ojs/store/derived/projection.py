"""What follows from the stream, in the table: counters, event pages, and marks of what is counted.

A stream record may come twice, at the same time, and in another company. So each record that has
an effect leaves a mark, an 8-byte hash, in the same transaction as its effect. The marks lie with
those of other records written in the same second, which is the same whenever a record comes again:

    M|{second}  0000   full: never written again
                0001   open: written under the condition that it is as it was read

Two deliveries of one record thus always want to write one item, and the second finds the mark.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from ojs.domain import jsontext, times
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.store.jobs import items
from ojs.store.table import keys
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value

HASH_BYTES = 8
# Among a queue's counts now: copies of dead letters that wait in it.
COPIES = "copies"
# A sub-item of this size takes no more marks. The last ones to join may go beyond it.
_FULL_BYTES = 3_000
# Stream records are kept for a day and so cannot come again after it.
_MARKS_KEPT_S = 2 * 86_400
_EVENTS_KEPT_S = 8 * 86_400
# An item may have 400 KB, of which reading takes a unit for each 4.
_PAGE_BYTES = 200_000
_PAGE_EVENTS = 500

ErrorKey = tuple[str, str]


def error_key(before: Job, attempt: int) -> ErrorKey:
    """Where the error of a job's attempt is, or that which ended it without one."""
    ended = before.state is not State.ACTIVE
    return keys.job(before.id), keys.error(before.life, attempt, ended=ended)


@dataclass(frozen=True)
class Delta:
    """What to add to one item of the statistics. `ends_s` is its time to live, if it has one."""

    queue: str
    sk: str
    add: Mapping[str, int]
    ends_s: int | None = None


@dataclass(frozen=True)
class NewEventPage:
    """Many events in one item, packed."""

    packed: bytes
    count: int


@dataclass(frozen=True)
class DedupRecord:
    """The marks of one second: all that were found, and the sub-item that is still open."""

    second: int
    seen: frozenset[bytes] = frozenset()
    number: int = 0
    packed: bytes = b""
    rev: int = 0

    @property
    def full(self) -> bool:
        """Whether the next mark begins a new sub-item."""
        return len(self.packed) >= _FULL_BYTES

    def found(self, item: Item) -> DedupRecord:
        """With what a sub-item holds, the last read being the one that counts as open."""
        packed = item["seen"]
        assert isinstance(packed, bytes)
        hashes = (packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES))
        number, rev = int(item["sk"]), int(item["rev"])
        return DedupRecord(self.second, self.seen.union(hashes), number, packed, rev)

    def with_(self, hashes: Sequence[bytes]) -> DedupRecord:
        """With more marks, in the open sub-item or a new one."""
        seen, added = self.seen.union(hashes), b"".join(hashes)
        if self.full:
            return DedupRecord(self.second, seen, self.number + 1, added, 1)
        return DedupRecord(self.second, seen, self.number, self.packed + added, self.rev + 1)

    def write(self, now_ms: int) -> Put:
        """The write of the open sub-item as it is here, over the one before."""
        item: Item = {
            "pk": keys.marker(self.second),
            "sk": f"{self.number:04d}",
            "seen": self.packed,
            "rev": self.rev,
            "ttl": now_ms // 1000 + _MARKS_KEPT_S,
        }
        # Race: another delivery, perhaps of the same records. The loser reads the marks again,
        # drops what is counted by now, and comes back with the rest.
        if self.rev == 1:
            return Put(item, condition="attribute_not_exists(pk)")
        return Put(item, condition="#rev = :read", values={":read": self.rev - 1})


@dataclass(frozen=True)
class ProjectedState:
    """What was read before a batch is projected."""

    marks: Mapping[int, DedupRecord]
    failures: Mapping[ErrorKey, Failure] = field(default_factory=dict)
    # By queue and day's sort key: the types of job that are counted by name.
    types: Mapping[tuple[str, str], set[str]] = field(default_factory=dict)
    # By queue: what its dead letters are counted by, as attributes.
    dead: Mapping[str, set[str]] = field(default_factory=dict)


class ProjectionStore:
    """The store of what follows from the stream."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def read(
        self,
        seconds: Iterable[int],
        errors: Iterable[ErrorKey] = (),
        days: Iterable[tuple[str, str]] = (),
        dead: Iterable[str] = (),
    ) -> ProjectedState:
        """All that a batch needs to know, in one call as long as that has fewer than 100 items.

        `days` are queues and sort keys of days, `dead` queues whose dead letters came or went.
        Raises OjsError.
        """
        seconds, errors, days = set(seconds), set(errors), set(days)
        dead_keys = {queue: (keys.stats(queue), keys.DEAD) for queue in dead}
        first = {second: (keys.marker(second), f"{0:04d}") for second in seconds}
        day_keys = {(queue, sk): (keys.stats(queue), sk) for queue, sk in days}
        found = self._table.batch_get(
            [*first.values(), *day_keys.values(), *dead_keys.values(), *errors]
        )
        marks = {second: self._all(second, found.get(first[second])) for second in seconds}
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
        return ProjectedState(marks, failures, types, counted)

    def _all(self, second: int, first: Item | None) -> DedupRecord:
        """The marks of a second, of which the first sub-item was read. Rarely are there more."""
        marks = DedupRecord(second)
        if first is None:
            return marks
        marks = marks.found(first)
        if marks.full:
            values: dict[str, Value] = {":second": keys.marker(second), ":first": f"{0:04d}"}
            for item in self._table.query_all("pk = :second AND sk > :first", values):
                marks = marks.found(item)
        return marks

    def commit(
        self,
        marks: Iterable[DedupRecord],
        deltas: Sequence[Delta],
        pages: Mapping[tuple[int, str], NewEventPage],
        *,
        now_ms: int,
    ) -> None:
        """Marks, counters and event pages, all or none; at most 100 items.

        `pages` by the ms and token of their keys. Raises LostRace when marks have changed since
        they were read, OjsError.
        """
        writes: list[Put | Update] = [mark.write(now_ms) for mark in marks]
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
    """Events, as JSON texts, packed in order: few pages, each well within an item."""
    if not events:
        return []
    if len(events) <= _PAGE_EVENTS:
        packed = zlib.compress(f"[{','.join(events)}]".encode())
        if len(packed) <= _PAGE_BYTES or len(events) == 1:
            return [NewEventPage(packed, len(events))]
    middle = len(events) // 2
    return [*pages(events[:middle]), *pages(events[middle:])]


def committed_jobs(token: str, item: Mapping[str, Any]) -> Iterator[Job]:
    """The jobs of a staged batch, as they were stored. Raises KeyError, ValueError, zlib.error.

    Of their bytes the sums of each queue are known, and are shared out evenly.
    """
    created_ms, packed = int(item["created"]), bytes(item["ids"])
    runs = _unpacked(item["runs"])
    if sum(run[0] for run in runs) * 16 != len(packed):
        raise ValueError("ids and runs of a batch do not belong together")
    held, loose = (
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
                state=State(state),
                created_ms=created_ms,
                priority=priority,
                enqueued_ms=created_ms if state == State.AVAILABLE else None,
                scheduled_ms=scheduled_ms,
                held=next(held[queue], 0) if queue in held else None,
                content_bytes=next(loose[queue], 0) if queue in loose else 0,
                op=token,
            )
            at += 16


def _unpacked(packed: Any) -> Any:
    return jsontext.stored(zlib.decompress(bytes(packed)).decode("utf-8"))


def _shares(count: int, total: int) -> Iterator[int]:
    """A total in so many whole parts, nearly equal."""
    share, rest = divmod(total, max(1, count))
    yield share + rest
    yield from repeat(share, count - 1)
