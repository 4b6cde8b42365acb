"""Recounts the jobs of queues with a size limit, to detect errors of their depth counters.

There are two sources. The counters of the projection are cheap to read, but delayed. Job records
found by the index are current. The index is delayed less than the projection, but a job can be
missed if it moves between index partitions during the read.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice
from typing import Any

from ojs.domain import jsontext
from ojs.domain.job.job import Job
from ojs.domain.job.states import TERMINAL, State
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import MINUTE_MS
from ojs.records import record
from ojs.store.bounds.depth_counter import CapacityUse, DepthValue, value_from
from ojs.store.derived.sharded import ShardCounters
from ojs.store.derived.statistics import StatisticsStore
from ojs.store.jobs import items
from ojs.store.jobs.lease_notes import ClaimIntents
from ojs.store.jobs.staged_batches import STAGING_GRACE_MS, StagedBatches
from ojs.store.queues.queues import from_item
from ojs.store.table import keys
from ojs.store.table.errors import Unreadable, readable
from ojs.store.table.table import MAX_BATCH_GET, Table
from ojs.store.table.values import Item, projected

_PAGE = 1_000
# Maximum number of lease notes that are read to count the active jobs of a queue with a new size
# limit.
_NOTES = 20_000


@record(frozen=True)
class Occupancy:
    """The number of unfinished jobs, and their bytes.

    Tracked jobs are counted by the depth counter. Untracked jobs were stored before the queue had a
    size limit. `reserved` has the tracked jobs by the period of their reservation, if it was
    counted. `undated_ms` is the creation time of the latest tracked job with an unknown period.
    `undone` are the tracked jobs (jobs, bytes) of batches that were undone. They have no reserved
    space: they were written late, and are about to be removed.
    """

    tracked: int = 0
    tracked_bytes: int = 0
    untracked: int = 0
    untracked_bytes: int = 0
    reserved: CapacityUse = field(default_factory=CapacityUse)
    undated_ms: int = 0
    undone: tuple[int, int] = (0, 0)

    @property
    def tracked_room(self) -> tuple[int, int]:
        """The space of the tracked jobs: their number and bytes."""
        return self.tracked, self.tracked_bytes

    @property
    def jobs(self) -> int:
        """Number of tracked and untracked jobs."""
        return self.tracked + self.untracked


@record(frozen=True)
class RecountedQueue:
    """A queue with its depth counter and the counts of the projection."""

    queue: Queue
    value: DepthValue
    projected: Occupancy


class Recount:
    """Counts jobs without changing anything."""

    def __init__(self, table: Table, notes: ClaimIntents) -> None:
        self._table = table
        self._notes = notes
        self._stats = StatisticsStore(table)
        self._sharded = ShardCounters(table)

    def known(
        self, names: Sequence[str], unreadable: Unreadable | None = None
    ) -> list[RecountedQueue]:
        """Return the existing queues of these names with their depth counters, in order.

        A call reads 100 items: three for each queue, and one for each open stream shard. The
        counter and the queue are read strongly consistent. `unreadable` is called for each queue
        that can't be read, which is then skipped. If it is None, an error is raised.
        """
        wanted = {
            name: (
                (keys.queue(name), keys.RECORD),
                (keys.counter(name), keys.DEPTH),
                (keys.stats(name), keys.NOW),
            )
            for name in names
        }
        found = self._sharded.batch_get(key for all_of in wanted.values() for key in all_of)

        def read(name: str) -> RecountedQueue:
            queue, depth, stats = wanted[name]
            return RecountedQueue(
                from_item(name, found[queue]),
                value_from(found.get(depth, {})),
                _projected(found.get(stats, {})),
            )

        there = (name for name, (queue, *_) in wanted.items() if queue in found)
        return list(readable(read, there, unreadable))

    def drain(self, name: str, *, now_ms: int, minutes: int) -> int:
        """Return the number of jobs that leave the queue per minute. Makes one call.

        Args:
            name: Name of the queue.
            now_ms: Current time in milliseconds since the epoch.
            minutes: Number of past whole minutes to measure.
        """
        end_ms = now_ms - now_ms % MINUTE_MS
        points = self._stats.points(name, MINUTE_MS, end_ms - minutes * MINUTE_MS, end_ms)
        left = sum(
            point.activity.completed + point.activity.failed + point.activity.cancelled
            for point in points
        )
        return -(-left // minutes)

    def count(self, queue: Queue, *, most: int, noted: bool = False) -> tuple[Occupancy, bool]:
        """Count the queue's jobs by their records.

        Jobs of batches that are being stored are counted as well. In a queue with a size limit,
        each claim keeps an entry in the index. If the size limit is new, active jobs are found only
        if `noted` is true.

        Args:
            queue: The queue.
            most: Approximate maximum number of jobs to read.
            noted: Whether to read the active jobs in lease notes.

        Returns:
            The counts, and whether all jobs were counted.
        """
        slots = self._notes.slots() if noted else ()
        ids, whole = self.listed(queue, most)
        if whole:
            for item in self._notes.not_done(queue.name, slots, most=_NOTES):
                ids.add(keys.job_id(str(item["pk"])))
        wanted = [(keys.job(job_id), keys.RECORD) for job_id in ids]
        held: list[tuple[int, int, int]] = []
        untracked = untracked_bytes = undated_ms = 0
        in_batches: dict[str, list[int]] = {}
        for start in range(0, len(wanted), MAX_BATCH_GET):
            found = self._table.batch_get(wanted[start : start + MAX_BATCH_GET])
            for item in found.values():
                record: dict[str, Any] = dict(item)
                # A job in a state that only a newer version knows is counted, because its space
                # must not be released.
                if record["state"] in TERMINAL or record["queue"] != queue.name:
                    continue
                if "held" in record:
                    period = record.get("held_in", 0)
                    held.append((period, 1, record["held"]))
                    if "batch" in record:
                        in_batches.setdefault(record["batch"], []).append(record["held"])
                    undated_ms = max(undated_ms, 0 if period else record["created"])
                else:
                    untracked += 1
                    body = record.get("body", "")
                    untracked_bytes += record.get("payload_bytes") or len(body.encode("utf-8"))
        tracked = CapacityUse.sum(held)
        sums = tracked.count, tracked.size, untracked, untracked_bytes
        return Occupancy(*sums, tracked, undated_ms, self._undone(in_batches)), whole

    def _undone(self, jobs: Mapping[str, Sequence[int]]) -> tuple[int, int]:
        """Return the number and the bytes of the jobs of undone batches.

        `jobs` has the bytes by batch.
        """
        found = self._table.batch_get((keys.batch(token), keys.RECORD) for token in jobs)
        sizes = [size for token in StagedBatches.undone(found.values()) for size in jobs[token]]
        return len(sizes), sum(sizes)

    def active(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of active jobs of each queue, from the projection, with a delay."""
        wanted = {name: (keys.stats(name), keys.NOW) for name in names}
        found = self._sharded.batch_get(wanted.values())
        return {name: projected(found.get(key, {}), State.ACTIVE) for name, key in wanted.items()}

    def running(self, queue: Queue) -> Iterator[Job]:
        """Yield the records of the queue's active jobs. Reads 100 per call, during the iteration.

        Recently claimed jobs are found by their lease notes. Jobs that are claimed during the
        iteration might be missing.
        """
        # The slots are read before the index. A job that gets its due entry in between is then
        # found in the notes or in the index.
        slots = self._notes.slots()
        noted: set[str] = set()
        for item in self._notes.running(queue.name, slots):
            noted.add(str(item["pk"]))
            yield items.job_of(item)
        for lane in range(queue.lanes):
            listed = self._line(keys.due(queue.name, lane), ending=keys.LEASE_END)
            while ids := list(islice(listed, MAX_BATCH_GET)):
                found = self._table.batch_get((keys.job(job_id), keys.RECORD) for job_id in ids)
                for item in found.values():
                    runs = item["state"] == State.ACTIVE.value and item["queue"] == queue.name
                    if runs and item["pk"] not in noted:
                        yield items.job_of(item)

    def listed(self, queue: Queue, most: int) -> tuple[set[str], bool]:
        """Return up to `most` + 1 IDs of jobs in the index, and whether these are all."""
        ids: set[str] = set()
        for lane in range(queue.lanes):
            ready, due = keys.ready(queue.name, lane), keys.due(queue.name, lane)
            # The ready partition is read again, because it now contains the jobs that left the due
            # partition during the read.
            for line in (keys.pending(queue.name, lane), ready, due, ready):
                for job_id in self._line(line):
                    ids.add(job_id)
                    if len(ids) > most:
                        return ids, False
        return ids, True

    def _line(self, line: str, *, ending: str = "") -> Iterator[str]:
        """Yield the IDs of the jobs of an index partition whose sort key ends with `ending`."""
        after: Any = None
        while True:
            found = self._table.query(
                "wpk = :line", {":line": line}, index="work", limit=_PAGE, after=after
            )
            yield from (
                keys.job_id(str(entry["pk"]))
                for entry in found.items
                if keys.is_job_entry(entry) and str(entry["wsk"]).endswith(ending)
            )
            after = found.last
            if after is None:
                return

    def staged(self, before_ms: int) -> Collection[str] | None:
        """Return the queues in which unfinished batches have reserved space.

        Only batches that started before `before_ms` are read. Returns None if there are too many.
        """
        found: list[Item] = []
        for line in keys.staged_lines():
            until = {":staged": line, ":until": keys.instant(before_ms + STAGING_GRACE_MS)}
            page = self._table.query(
                "wpk = :staged AND wsk < :until", until, index="work", limit=MAX_BATCH_GET
            )
            found += page.items
            if page.last is not None or len(found) > MAX_BATCH_GET:
                return None
        batches = self._table.batch_get((str(item["pk"]), keys.RECORD) for item in found)
        return {queue for batch in batches.values() for queue in _room(batch)}


def _room(batch: Item) -> Collection[str]:
    if "held" not in batch:
        return ()
    packed = batch["held"]
    assert isinstance(packed, bytes)
    room: dict[str, Any] = jsontext.stored(zlib.decompress(packed).decode("utf-8"))
    return room


def _projected(item: Mapping[str, Any]) -> Occupancy:
    held, held_b, loose, loose_b = (
        projected(item, name) for name in ("held", "held_b", "loose", "loose_b")
    )
    return Occupancy(held, held_b, loose, loose_b)
