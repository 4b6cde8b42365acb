"""Lease notes: lists of jobs that a fetch is about to claim, so that expired leases are detected.

A claim removes the job from the index. Most jobs finish before their lease must be checked, so a
claim doesn't create a due entry. Instead, a fetch first writes one lease note with the jobs and the
time to check them. The sweep reads the due notes (`ojs.services.jobs.lost_leases`). If a job is
still active, it is added to a new note that is due when its lease ends.

Notes are stored in 16 slots, ordered by the time of the check. A container writes to one slot, and
marks the slot as in use once an hour. The sweep reads only slots in use. Each slot has the key of
the last note that was checked. The marks and keys of all slots are in one item. Only the table's
time to live deletes notes.

Two rules make sure that no note is missed:

1. A note is stored before it is due. A fetch can claim jobs of a note only for VALID_MS after the
   time in the note, and no note is due before SHORT_MS. The difference covers clock differences.
2. A claim that takes effect late does so within SETTLED_MS. Until then, a job that can still be
   claimed is checked again.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from uuid import UUID

from ojs.clock import Clock
from ojs.domain.errors import BackendTimeout
from ojs.domain.ids import IdSource
from ojs.domain.job.states import TERMINAL, State
from ojs.domain.times import MAX_MS
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value, number

SLOTS = 16
# Jobs with a shorter lease (ms) keep a due entry in the index. If a client requests such a lease,
# the next fetch must detect its end, not the sweep of the next minute.
SHORT_MS = 15_000
# A note is due after the shortest lease of its jobs, but not later than this
# time (ms) after it was written.
LOOK_MS = 60_000
# Time (ms) for which a fetch can claim the jobs of a note, starting with the time of the fetch.
VALID_MS = 5_000
# No claim takes effect later than this (ms) after its note was written: a request ends after 29 s,
# and a write without a response takes effect within seconds.
SETTLED_MS = 60_000
# Maximum time (ms) between two checks of an active job, even if its lease is longer.
MOST_AHEAD_MS = 10 * 60_000
# Active jobs of one queue whose leases end within this time (ms) share a note.
SHARED_MS = 30_000
# Maximum number of jobs in a note. The note then has less than 1 KB.
MOST_JOBS = 40
# Time (ms) for which a slot is in use after a container marked it, and the time between two marks.
_USED_MS = 7_200_000
_SAY_MS = 3_600_000
# Longer than any undetected failure of the sweeps.
_KEPT_S = 7 * 86_400
_PAGE = 500
# Number of notes whose jobs are read in one call.
_NOTES_A_CALL = 50
# Limits up to which active jobs are counted one by one: slots in use, notes in a slot, and jobs in
# these notes. The jobs are read in one call.
_FEW_SLOTS = 4
_FEW_NOTES = 100
_FEW_JOBS = 100
# Jobs whose notes were checked within this time (ms) might be missing in the index.
_LAG_MS = 10_000
# The ID of a job, and the checksum of the index key at which the job can be claimed.
_ENTRY_BYTES = 20


@record(frozen=True)
class LeaseNote:
    """A lease note: the jobs of one queue that a fetch was about to claim at `at_ms`.

    Each job has the checksum of the index key at which it could be claimed.
    """

    slot: int
    key: str
    at_ms: int
    queue: str
    jobs: Mapping[str, int]

    def may_be_claimed(self, job_id: str, record: Item, now_ms: int) -> bool:
        """Return whether the fetch that wrote the note might still claim this job.

        Args:
            job_id: ID of the job.
            record: Record of the job.
            now_ms: Current time in milliseconds since the epoch.
        """
        there = record.get("wsk")
        return (
            now_ms - self.at_ms < SETTLED_MS
            and isinstance(there, str)
            and _checksum(there) == self.jobs[job_id]
        )


@record(frozen=True)
class NotedJob:
    """A job that is added to a new note.

    It has the job's queue, the checksum and claim time of its earlier note, and the time of the
    next check (ms).
    """

    queue: str
    job_id: str
    seen: int
    at_ms: int
    look_ms: int


@record(frozen=True)
class LeaseSlot:
    """A slot in use: until when it is in use, and the key of the last note that was checked."""

    number: int
    used_ms: int
    seen: str

    @property
    def lately(self) -> str:
        """Return the key before all notes whose jobs might be missing in the index.

        These include the notes that were checked most recently.
        """
        if not self.seen:
            return ""
        return keys.instant(max(0, keys.instant_of(self.seen) - _LAG_MS))


# Key of the item of all slots, for callers that read it together with other items.
SLOTS_ITEM = (keys.LEASE_SLOTS, keys.RECORD)
_SEARCHED = "searched"


def _used(slot: int) -> str:
    return f"used_{slot:02d}"


def _seen(slot: int) -> str:
    return f"seen_{slot:02d}"


def slots_in_use(found: Item | None) -> list[LeaseSlot]:
    """Return the slots in use, from the item of all slots. `found` is None if it doesn't exist."""
    item = found or {}
    return [
        LeaseSlot(slot, number(item, _used(slot)), str(item.get(_seen(slot), "")))
        for slot in range(SLOTS)
        if _used(slot) in item
    ]


def _checksum(key: str) -> int:
    return zlib.crc32(key.encode("utf-8"))


class ClaimIntents:
    """Reads and writes lease notes, and selects the slot of this container."""

    def __init__(
        self, table: Table, ids: IdSource, *, choose: Callable[[int], int] = random.randrange
    ) -> None:
        self._table = table
        self._ids = ids
        self._slot = choose(SLOTS)
        self._say_ms = 0

    # --- a fetch ----------------------------------------------------------------------------------

    def write(self, queue: str, jobs: Mapping[str, str], *, lease_ms: int, now_ms: int) -> None:
        """Write a note of jobs that are about to be claimed.

        Args:
            queue: Name of the queue.
            jobs: Index key of each job, by ID.
            lease_ms: Minimum duration of the leases in milliseconds.
            now_ms: Current time in milliseconds since the epoch.

        Raises:
            OjsError: The write failed. The jobs must not be claimed.
        """
        if not self._say_ms - _SAY_MS <= now_ms < self._say_ms:
            self._use(self._slot, now_ms)
            self._say_ms = now_ms + _SAY_MS
        look_ms = now_ms + max(SHORT_MS, min(LOOK_MS, lease_ms))
        seen = {job_id: _checksum(key) for job_id, key in jobs.items()}
        key = keys.lease_note(look_ms, self._ids.token())
        self._put(LeaseNote(self._slot, key, now_ms, queue, seen))

    def _use(self, slot: int, now_ms: int) -> None:
        """Record that a slot is in use."""
        used_ms = now_ms + _USED_MS
        self._table.update(Update(*SLOTS_ITEM, set={_used(slot): used_ms}))

    def _put(self, note: LeaseNote) -> None:
        packed = b"".join(
            UUID(job_id).bytes + seen.to_bytes(4, "big") for job_id, seen in note.jobs.items()
        )
        item: dict[str, Value] = {
            "pk": keys.lease_notes(note.slot),
            "sk": note.key,
            "at": note.at_ms,
            "queue": note.queue,
            "jobs": packed,
            "ttl": keys.instant_of(note.key) // 1_000 + _KEPT_S,
        }
        self._table.put(Put(item))

    # --- the sweep --------------------------------------------------------------------------------

    def slots(self) -> list[LeaseSlot]:
        """Return the slots in use. Makes one call, strongly consistent."""
        return slots_in_use(self._table.get(*SLOTS_ITEM))

    def unseen(
        self, slot: int, after: str, *, until_ms: int, limit: int = _PAGE
    ) -> tuple[list[LeaseNote], bool]:
        """Return a page of the due notes after a key, in order, and whether the page has all of
        them.

        Args:
            slot: Slot of the notes.
            after: Key of the last note that was read.
            until_ms: Latest due time of the notes.
            limit: Maximum number of notes.
        """
        # No other key is between the key of a note and this key.
        return self.between(slot, f"{after}!", keys.upto(until_ms), limit=limit)

    def between(
        self,
        slot: int,
        first: str,
        last: str,
        *,
        limit: int,
        forward: bool = True,
        consistent: bool = True,
    ) -> tuple[list[LeaseNote], bool]:
        """Return a page of the notes from `first` to `last`, and whether the page has all of them.

        Args:
            slot: Slot of the notes.
            first: First key.
            last: Last key.
            limit: Maximum number of notes.
            forward: Whether the order is ascending.
            consistent: Whether the read is strongly consistent.
        """
        if first >= last:
            return [], True
        found = self._table.query(
            "pk = :pk AND sk BETWEEN :first AND :last",
            {":pk": keys.lease_notes(slot), ":first": first, ":last": last},
            limit=limit,
            forward=forward,
            consistent=consistent,
        )
        return [_note(slot, item) for item in found.items], found.last is None

    def again(self, slot: LeaseSlot, jobs: Iterable[NotedJob], clock: Clock) -> None:
        """Write new notes for jobs of this slot. Jobs of a queue due within SHARED_MS share a note.

        Two sweeps that process a note at the same time write two notes, which costs reads.

        Args:
            slot: Slot of the notes.
            jobs: Jobs, each with the time when it must be checked, at most MOST_AHEAD_MS from now.
            clock: Current time.

        Raises:
            OjsError: A write failed. The earlier notes must be processed again.
        """
        began_ms = clock.now_ms()
        # As in a fetch, a note must be stored before a sweep reads the notes of its due time.
        first_ms, last_ms = began_ms + SHORT_MS, began_ms + MOST_AHEAD_MS
        ordered = sorted(
            (job.queue, min(max(job.look_ms, first_ms), last_ms), job.job_id, job) for job in jobs
        )
        if ordered and slot.used_ms < began_ms + _SAY_MS:
            self._use(slot.number, began_ms)
        while ordered:
            queue, look_ms, _, _ = ordered[0]
            part = [
                job
                for name, ms, _, job in ordered[:MOST_JOBS]
                if name == queue and ms - look_ms <= SHARED_MS
            ]
            del ordered[: len(part)]
            # There can be many notes, so the time is read again for each one.
            began_ms = clock.now_ms()
            key = keys.lease_note(max(look_ms, began_ms + SHORT_MS), self._ids.token())
            listed = {job.job_id: job.seen for job in part}
            at_ms = max(job.at_ms for job in part)
            self._put(LeaseNote(slot.number, key, at_ms, queue, listed))
            if clock.now_ms() - began_ms >= VALID_MS:
                raise BackendTimeout("DynamoDB took too long to store a claim intent.")

    def advance(self, slot: int, seen: str) -> None:
        """Store that all notes up to this key were checked."""
        self._advance(_seen(slot), seen)

    def _advance(self, name: str, seen: str) -> None:
        # Race: another sweep. Each has checked all notes up to its own key, so the later key is
        # kept.
        with suppress(LostRace):
            self._table.update(
                Update(
                    *SLOTS_ITEM,
                    set={name: seen},
                    condition=f"attribute_not_exists(#{name}) OR #{name} < :further",
                    values={":further": seen},
                )
            )

    def searched(self) -> str:
        """Return the last page of the event log that was searched for active jobs, or ""."""
        return str((self._table.get(*SLOTS_ITEM) or {}).get(_SEARCHED, ""))

    def advance_search(self, seen: str) -> None:
        """Store that the event log was searched for active jobs up to this key."""
        self._advance(_SEARCHED, seen)

    def noted(self, slots: Iterable[LeaseSlot]) -> Iterator[str]:
        """Return the IDs of all jobs in unprocessed notes, about 20,000 per call."""
        for note in self._unlooked(None, slots, None):
            yield from note.jobs

    def retire(self, slot: LeaseSlot) -> None:
        """Remove a slot from the slots in use, after all its notes were checked."""
        # Race: a container marks the slot as in use. Its write takes precedence, and the slot is
        # read again.
        name = _used(slot.number)
        with suppress(LostRace):
            self._table.update(
                Update(
                    *SLOTS_ITEM,
                    remove=[name],
                    condition=f"#{name} = :known",
                    values={":known": slot.used_ms},
                )
            )

    # --- readers of lease notes -------------------------------------------------------------

    def not_done(
        self, queue: str, slots: Iterable[LeaseSlot], *, most: int | None = None
    ) -> Iterator[Item]:
        """Yield the records of a queue's unfinished jobs whose notes were not checked yet.

        A call to the table reads about 100 records. A caller that also reads the index must read
        the `slots` before it, and these jobs after it. Then no job is missed that gets its due
        entry in between.

        Args:
            queue: Name of the queue.
            slots: Slots of the notes.
            most: Approximate maximum number of notes to read. Default: all.
        """
        seen: set[str] = set()
        notes = self._unlooked(queue, slots, most)
        while part := list(islice(notes, _NOTES_A_CALL)):
            listed = dict.fromkeys(job_id for note in part for job_id in note.jobs)
            for item in self.records(job_id for job_id in listed if job_id not in seen).values():
                if item["queue"] == queue and item["state"] not in TERMINAL:
                    yield item
            seen |= listed.keys()

    def running(self, queue: str, slots: Iterable[LeaseSlot]) -> Iterator[Item]:
        """Yield the records that `not_done` yields and whose jobs are active."""
        return (item for item in self.not_done(queue, slots) if item["state"] == State.ACTIVE.value)

    def few_running(self, queue: str, slots: Sequence[LeaseSlot]) -> int | None:
        """Return the number of a queue's active jobs without an entry in the index.

        Return None if there are too many notes, across queues, to count the jobs. One call for each
        slot in use, up to four, and one more if the notes contain jobs of the queue.
        """
        if len(slots) > _FEW_SLOTS:
            return None
        jobs: set[str] = set()
        for slot in slots:
            page, whole = self.unseen(slot.number, slot.seen, until_ms=MAX_MS, limit=_FEW_NOTES)
            if not whole:
                return None
            jobs.update(job_id for note in page if note.queue == queue for job_id in note.jobs)
        if len(jobs) > _FEW_JOBS:
            return None
        return sum(
            "wpk" not in item
            for item in self.records(jobs).values()
            if item["queue"] == queue and item["state"] == State.ACTIVE.value
        )

    def _unlooked(
        self, queue: str | None, slots: Iterable[LeaseSlot], most: int | None
    ) -> Iterator[LeaseNote]:
        read = 0
        for slot in slots:
            after = slot.lately
            whole = False
            while not whole and (most is None or read < most):
                page, whole = self.unseen(slot.number, after, until_ms=MAX_MS)
                read += len(page)
                after = page[-1].key if page else after
                yield from (note for note in page if queue in (None, note.queue))

    def records(self, job_ids: Iterable[str]) -> dict[str, Item]:
        """Return job records by ID. Missing records are skipped."""
        found = self._table.batch_get((keys.job(job_id), keys.RECORD) for job_id in job_ids)
        return {keys.job_id(pk): item for (pk, _), item in found.items()}


def _note(slot: int, item: Item) -> LeaseNote:
    packed = item["jobs"]
    assert isinstance(packed, bytes)
    parts = (packed[at : at + _ENTRY_BYTES] for at in range(0, len(packed), _ENTRY_BYTES))
    jobs = {str(UUID(bytes=part[:16])): int.from_bytes(part[16:], "big") for part in parts}
    return LeaseNote(slot, str(item["sk"]), number(item, "at"), str(item["queue"]), jobs)
