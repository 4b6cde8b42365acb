"""Storage of the output of the projection: counters and event pages.

The projection processes the records of the DynamoDB stream. Each stream shard has separate counter
items with its position: the last stream record that was counted (`ojs.store.derived.shards`). The
records of a shard arrive in order. They can be redelivered, but records up to the position are not
counted again.

An event page is written after the counters, under a key that the counter items contain. A
redelivery can therefore detect that the page is missing. A page that a redelivery replaces is
stored as an empty page first, so that its first writer can no longer write it.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from itertools import repeat
from typing import Any

from ojs.domain import jsontext, times
from ojs.domain.errors import known
from ojs.domain.job.failure import ErrorEntry
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.records import record
from ojs.store.derived import event_log
from ojs.store.derived.event_log import ends_of, page_from
from ojs.store.derived.sharded import NOTED_MS, ShardCounters
from ojs.store.derived.shards import ShardCounts
from ojs.store.jobs import items
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.races import won_or
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value, number

# Attribute of a queue's counters with the number of available copies of dead letters.
COPIES = "copies"
# Counts that other writers also change or compare. They are written directly to the queue's own
# item.
AT_ONCE = frozenset({COPIES, "dead"})
# Maximum time for which pages of final events list finished jobs.
_LISTED_S = 400 * 86_400
# Dedup records of version 0.2.0: items with 8-byte hashes of stream records, by the second of
# writing. They are read until they expire.
_HASH_BYTES = 8
_DEDUP_KEPT_MS = 2 * 86_400_000

ErrorKey = tuple[str, str]


def error_key(before: Job, attempt: int) -> ErrorKey:
    """Return the key of an attempt's error, or of an error that occurred while no attempt was
    running.
    """
    ended = before.state is not State.ACTIVE
    return keys.job(before.id), keys.error(before.life, attempt, ended=ended)


@record(frozen=True)
class Delta:
    """Additions to the counters of one statistics item."""

    queue: str
    sk: str
    add: Mapping[str, int]


@record(frozen=True)
class NewEventPage:
    """The compressed events of one page.

    `key` is the sort key, which contains the time of writing. `unpublished` is true if EventBridge
    has not received the events yet. `listed_s` is the time (s) until which the page lists finished
    jobs. `ends` compresses only the final events of these jobs, without results and errors.
    """

    key: str
    packed: bytes
    count: int
    unpublished: bool = False
    listed_s: int = 0
    ends: Callable[[], bytes] | None = None


@record(frozen=True)
class ProjectedState:
    """The stored state that the projection reads before it processes a batch of stream records."""

    counts: Mapping[str, ShardCounts]
    # Hashes of the stream records that version 0.2.0 has counted.
    counted: frozenset[bytes] = frozenset()
    errors: Mapping[ErrorKey, ErrorEntry] = field(default_factory=dict)
    # By queue and sort key of the day: the job types that have separate counters.
    types: Mapping[tuple[str, str], set[str]] = field(default_factory=dict)
    # By queue: the attributes with the counts of its dead letters.
    dead: Mapping[str, set[str]] = field(default_factory=dict)


class ProjectionStore:
    """Reads and writes derived data."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._sharded = ShardCounters(table)
        # By stream shard: when this container last recorded that the shard is in use.
        self._noted: dict[str, int] = {}
        self._dedup_until_ms = 0

    def use(self, shard: str, *, now_ms: int) -> None:
        """Add a stream shard to the list of used shards.

        Makes one call every few minutes. Raises OjsError.

        Call this before anything is counted, because readers read only the counters of listed
        shards.
        """
        if now_ms - self._noted.get(shard, 0) < NOTED_MS:
            return
        since_ms = self._sharded.note(shard, now_ms=now_ms)
        self._noted[shard] = now_ms
        self._dedup_until_ms = since_ms + _DEDUP_KEPT_MS

    def read(
        self,
        shard: str,
        names: Iterable[str],
        seconds: Iterable[int] = (),
        errors: Iterable[ErrorKey] = (),
        days: Iterable[tuple[str, str]] = (),
        dead: Iterable[str] = (),
        *,
        now_ms: int,
    ) -> ProjectedState:
        """Read the items that a batch of stream records needs.

        Makes one call if there are fewer than 100.

        Args:
            shard: ID of the stream shard.
            names: Names of the counters.
            seconds: Seconds in which the stream records were written.
            errors: Keys of the errors that the events need.
            days: Queues and sort keys of days.
            dead: Queues whose number of dead letters changed.
            now_ms: Current time in milliseconds since the epoch.

        Raises:
            OjsError: A read failed.
        """
        errors, days = set(errors), set(days)
        seconds = set(seconds) if now_ms < self._dedup_until_ms else set[int]()
        count_keys = {name: (keys.shard_stats(shard), name) for name in names}
        dedup_keys = {second: (keys.dedup_records(second), f"{0:04d}") for second in seconds}
        dead_keys = {queue: (keys.stats(queue), keys.DEAD) for queue in dead}
        day_keys = {(queue, sk): (keys.stats(queue), sk) for queue, sk in days}
        found = self._table.batch_get(
            [
                *count_keys.values(),
                *dedup_keys.values(),
                *day_keys.values(),
                *dead_keys.values(),
                *errors,
            ]
        )
        types = {
            day: {name.split("|", 1)[1] for name in found[key] if "|" in name}
            for day, key in day_keys.items()
            if key in found
        }
        counted = {
            queue: {name for name in found[key] if "|" in name}
            for queue, key in dead_keys.items()
            if key in found
        }
        return ProjectedState(
            {name: ShardCounts.of(shard, name, found.get(key)) for name, key in count_keys.items()},
            frozenset(self._hashes(s for s, key in dedup_keys.items() if key in found)),
            {key: items.entry_from(found[key]) for key in errors if key in found},
            types,
            counted,
        )

    def _hashes(self, seconds: Iterable[int]) -> Iterator[bytes]:
        """Return the hashes of these seconds' stream records that version 0.2.0 counted."""
        for second in seconds:
            for item in self._table.query_all(
                "pk = :second", {":second": keys.dedup_records(second)}
            ):
                seen = item["seen"]
                assert isinstance(seen, bytes)
                yield from (seen[at : at + _HASH_BYTES] for at in range(0, len(seen), _HASH_BYTES))

    def count(
        self, counts: ShardCounts, at_once: Sequence[Delta], *, hand_over: bool
    ) -> ShardCounts:
        """Write the counters of one queue.

        Usually one conditional write. It is a transaction with the queue's own items if counters
        must be current immediately, if `hand_over` is set, or if the item is too large.

        Args:
            counts: Counters of the queue in this stream shard, including the additions.
            at_once: Additions that must be current immediately.
            hand_over: Whether to move the counts of the shard to the queue's own items.

        Returns:
            The counters as stored.

        Raises:
            LostRace: The item has changed since it was read.
            OjsError: The write failed.
        """
        own: list[Update] = []
        if hand_over or counts.full():
            counts, own = counts.handed_over()
        for delta in at_once:
            # The time of the last change is stored only with counters that readers show for the
            # queue.
            changed: dict[str, Value] = (
                {"changed": counts.changed_ms} if delta.sk == keys.NOW else {}
            )
            own.append(Update(keys.stats(delta.queue), delta.sk, set=changed, add=delta.add))
        if own:
            self._table.transact([counts.written(), *own])
        else:
            self._table.put(counts.written())
        return replace(counts, rev=counts.rev + 1)

    # --- event pages --------------------------------------------------------------------------

    def add_page(self, page: NewEventPage) -> None:
        """Write a page.

        Raises LostRace if a redelivery has abandoned the page, otherwise OjsError.
        """
        index: dict[str, Value] = {}
        if page.unpublished:
            index = {"wpk": keys.UNPUBLISHED, "wsk": page.key}
        written_s = keys.instant_of(page.key) // 1000
        item: Item = {
            **_page_key(page.key),
            "zip": page.packed,
            "n": page.count,
            "ttl": written_s + event_log.KEPT_S,
            **index,
        }
        # Race: a redelivery of the same stream records found the page missing, and has stored an
        # empty page. The loser checks again which of its events are in the log.
        put = Put(item, condition="attribute_not_exists(pk)")
        if page.ends is None or page.listed_s <= written_s + event_log.KEPT_S:
            self._table.put(put)
            return
        ends: Item = {
            **_page_key(ends_of(page.key)),
            "zip": page.ends(),
            "ttl": min(page.listed_s, written_s + _LISTED_S),
        }
        # Both pages are written in one transaction. Otherwise a redelivery could list the final
        # events twice.
        self._table.transact([put, Put(ends)])

    def page_stands(self, key: str) -> bool:
        """Return whether a page was written. A page that was not written is abandoned permanently.

        Raises OjsError if the call fails.
        """
        at = _page_key(key)
        found = self._table.get(at["pk"], at["sk"])
        if found is None:
            page = NewEventPage(key, _EMPTY, 0)
            found = won_or(lambda: self.add_page(page), lambda lost: lost.item)
        return found is not None and number(found, "n") > 0

    def unpublished(self, limit: int) -> list[str]:
        """Return the keys of pages with unpublished events, the oldest first. Makes one call."""
        found = self._table.query(
            "wpk = :line", {":line": keys.UNPUBLISHED}, index="work", limit=limit
        )
        return [str(entry["sk"]) for entry in found.items]

    def page_events(self, key: str) -> list[dict[str, Any]]:
        """Return the events of a page, or none if the page was deleted."""
        at = _page_key(key)
        item = self._table.get(at["pk"], at["sk"])
        return [] if item is None else page_from(item).events()

    def published(self, key: str) -> None:
        """Record that EventBridge has received the events of a page. Safe to repeat."""
        at = _page_key(key)
        # Race: the page's time to live ended and it was deleted. This write must not create it
        # again.
        with suppress(LostRace):
            self._table.update(
                Update(at["pk"], at["sk"], remove=["wpk", "wsk"], condition="attribute_exists(pk)")
            )


_EMPTY = zlib.compress(b"[]")


def _page_key(key: str) -> dict[str, str]:
    """Return the key of the item of an event page."""
    return {"pk": keys.events(times.format_ms(keys.instant_of(key))[:10]), "sk": key}


def packed(events: Sequence[str]) -> bytes:
    """Compress events (JSON texts) for a page."""
    return zlib.compress(f"[{','.join(events)}]".encode())


def committed_jobs(token: str, item: Mapping[str, Any]) -> Iterator[Job]:
    """Return the jobs of a staged batch, as stored. Raises KeyError, ValueError, or zlib.error.

    The batch stores only the total bytes of the jobs of each queue. The total is divided evenly.
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
    """Divide a total into `count` whole numbers that differ by at most 1."""
    share, rest = divmod(total, max(1, count))
    yield share + rest
    yield from repeat(share, count - 1)
