"""Counts the jobs and bytes of each bounded queue. One item per queue.

Invariant: the counter is never lower than the number of stored jobs. A job is added before it is
stored, and subtracted after it reaches a final state. If the process crashes in between, the
counter is too high until the sweep corrects it (`ojs.services.permits.reconcile`). Each write
carries a marker, so that a retry after a write without a response doesn't count twice.

Each job is also counted in the bucket of the period in which its space was reserved. The count of a
closed period can only decrease, so the sweep can compare it with the stored jobs under traffic. The
item keeps the buckets of the last `KEPT_PERIODS` periods (4 minutes). Older jobs, and jobs counted
by versions without buckets, are in the total only.
"""

from __future__ import annotations

import base64
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from itertools import chain

from ojs.bounded import BoundedMap
from ojs.domain.errors import BackendTimeout, OjsError
from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.errors import LostRace, WriteNotApplied
from ojs.store.table.races import losing_as, wins
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, Value, number

PERIOD_MS = 20_000
# CLOCKS_MS: an upper limit of the difference between two clocks. NOTED_MS: the longest time after
# the end of its period in which a reservation can have an unknown outcome
# (`ojs.services.permits.backpressure.DOUBTED_MS`), plus a margin.
CLOCKS_MS, NOTED_MS = 5_000, 120_000
# Number of periods whose buckets are kept: four minutes. A bucket takes about 27 bytes of the item,
# and a slot 13 bytes. With up to about 30 slots, the item has at most 1 KB, and a write costs one
# write unit. With all slots, a write costs two units.
KEPT_PERIODS = 12
# If the item has this number of buckets, older ones are removed.
_PARTS_REMOVED = 8
# The queue's size limits at the last enqueue. The projection derives events from them.
_BOUNDS = ("bound", "warn", "bound_b", "warn_b")
_UNTRACKED = ("loose", "loose_b")
# A write stores its marker in one of these slots. A slot without a write for `_IDLE_S` seconds is
# reused first. If other writes take the slot first in all `_VIEWS` tries, the write has no marker.
SLOTS = tuple(f"k{number}" for number in range(64))
_IDLE_S = 60
_UNIQUE = 10**8
_CHOICE = 8
_VIEWS = 6
# Attributes that earlier versions wrote.
_FORMER_MARKS = tuple(f"m{number}" for number in range(8))
_MOST_OWED = 100
_REMEMBERED = 1_000


def period_of(ms: int) -> int:
    """Return the number of the period of a time (ms)."""
    return ms // PERIOD_MS


@record(frozen=True)
class CapacityUse:
    """Space for jobs and their bytes, by the period in which it was reserved.

    An unknown period is 0.

    The numbers can be negative, if space is released.
    """

    parts: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> CapacityUse:
        """Return the space of these jobs. Jobs without reserved space are not counted."""
        return cls.sum(
            (job.reserved_in or 0, 1, job.reserved_bytes)
            for job in jobs
            if job.reserved_bytes is not None
        )

    @classmethod
    def sum(cls, all_of: Iterable[tuple[int, int, int]]) -> CapacityUse:
        """Return the sum of rows. Each row is a period, a number of jobs, and a number of bytes."""
        parts: dict[int, tuple[int, int]] = {}
        for period, count, size in all_of:
            jobs, space = parts.get(period, (0, 0))
            parts[period] = jobs + count, space + size
        return cls(parts)

    @property
    def count(self) -> int:
        """Number of all jobs."""
        return sum(count for count, _ in self.parts.values())

    @property
    def size(self) -> int:
        """Number of bytes of all jobs."""
        return sum(size for _, size in self.parts.values())

    def plus(self, count: int, size: int, period: int) -> CapacityUse:
        """Return this space plus `count` jobs.

        Args:
            count: Number of jobs.
            size: Bytes of all these jobs.
            period: Period in which the space was reserved.
        """
        return self.with_all(CapacityUse({period: (count, size)}))

    def with_all(self, other: CapacityUse, sign: int = 1) -> CapacityUse:
        """Return the sum of this space and the other one, or their difference if `sign` is -1."""
        mine = ((period, *part) for period, part in self.parts.items())
        theirs = ((p, sign * count, sign * size) for p, (count, size) in other.parts.items())
        return CapacityUse.sum(chain(mine, theirs))

    def until(self, period: int) -> CapacityUse:
        """Return the space that was reserved in this period or an earlier one."""
        return CapacityUse({one: part for one, part in self.parts.items() if one <= period})

    def added(self, now_ms: int) -> dict[str, int]:
        """Return the number that a write of this space adds to each attribute of the item."""
        added = {"n": self.count, "b": self.size}
        oldest = period_of(now_ms) - KEPT_PERIODS
        for period, part in self.parts.items():
            if period > oldest and any(part):
                added |= dict(zip(_part_names(period), part, strict=True))
        return added


@record(frozen=True)
class LastRecount:
    """The last recount of the sweep.

    It has the number of tracked jobs, and their bytes, whose space was reserved in `period` or
    before, and the time of the recount (ms).
    """

    period: int
    count: int
    size: int
    at_ms: int


@record(frozen=True)
class DepthValue:
    """The values of a depth counter: jobs and their bytes.

    `untracked` and `untracked_bytes` are for jobs that were stored before the queue had a size
    limit, as of the last recount. `changed_ms` is the last time when the counter was changed by a
    reservation or a release. `drain` is the recent number of jobs per minute that left the queue,
    None if unknown. `parts` are the buckets that the item still has.
    """

    count: int = 0
    size: int = 0
    untracked: int = 0
    untracked_bytes: int = 0
    changed_ms: int = 0
    drain: int | None = None
    parts: CapacityUse = CapacityUse()
    recount: LastRecount | None = None

    @property
    def tracked(self) -> int:
        """Number of jobs that were counted when they were enqueued."""
        return self.count - self.untracked

    @property
    def tracked_room(self) -> tuple[int, int]:
        """The space of the tracked jobs: their number and bytes."""
        return self.tracked, self.size - self.untracked_bytes

    def until(self, period: int) -> tuple[int, int]:
        """Return the tracked jobs, and their bytes, whose space was reserved in this period or
        before.
        """
        newer = self.parts.with_all(self.parts.until(period), -1)
        jobs, size = self.tracked_room
        return jobs - newer.count, size - newer.size


class BoundReached(Exception):
    """The queue doesn't have enough space for the request. `value` is the current depth counter."""

    def __init__(self, value: DepthValue) -> None:
        super().__init__("no room")
        self.value = value


@record(frozen=True)
class _Marked:
    """A write that takes effect at most once, although it can be retried.

    The write sets a slot of the item to its `mark`. The condition is that the slot still has the
    marker `seen`.
    """

    update: Update
    slot: str
    mark: int
    seen: int

    @classmethod
    def of(cls, update: Update, slot: str, mark: int, seen: int) -> _Marked:
        """Return this write with a marker in a slot. `seen` is 0 for an empty slot."""
        # Race: another container takes over the slot. The write of the container that loses had no
        # effect, unless an earlier attempt of it had no response.
        as_seen = f"#{slot} = :mark" if seen else f"attribute_not_exists(#{slot})"
        marked = replace(
            update,
            set={**update.set, slot: mark},
            condition=f"{update.condition} AND {as_seen}" if update.condition else as_seen,
            values={**update.values, **({":mark": seen} if seen else {})},
        )
        return cls(marked, slot, mark, seen)

    def comes_after(self, found: int) -> bool:
        """Return whether the slot has another write that started before this one.

        Then no attempt of this write succeeded, because the other write did not know its marker.
        """
        return found // _UNIQUE < self.mark // _UNIQUE - CLOCKS_MS // 1_000


class DepthCounter:
    """Reads and writes depth counters.

    A write that counts takes effect once, even if it is retried. Each concurrent write has a slot
    of the item. The write sets the slot to a new marker, on the condition that the slot still has
    the last marker of this container. If the slot has the new marker, an earlier attempt succeeded.
    If the slot is unchanged, no attempt succeeded. Other containers write to the slot only if all
    slots are in use: the slot with the oldest write is then taken over.
    """

    def __init__(self, table: Table, ids: IdSource) -> None:
        self._repeating = table
        self._table = table.without_repeats()
        self._ids = ids
        # All markers of a queue as last read by this container, and the container's own slots that
        # are not in use now.
        self._seen: BoundedMap[str, Mapping[str, int]] = BoundedMap(_REMEMBERED)
        self._idle: BoundedMap[str, deque[str]] = BoundedMap(_REMEMBERED)
        # Releases that failed, each with the write that might have succeeded.
        self._owed: deque[tuple[str, Update, _Marked | None]] = deque(maxlen=_MOST_OWED)

    def reserve(
        self,
        queue: str,
        room: CapacityUse,
        *,
        max_count: int | None,
        max_size: int | None,
        warn_at: float,
        now_ms: int,
    ) -> DepthValue:
        """Reserve this space, if the queue stays within its bounds.

        Args:
            queue: Queue name.
            room: The space. Its jobs or bytes can be 0 or less in total, if the caller has space
                already: then that bound is not checked.
            max_count: Maximum number of jobs. None: no limit.
            max_size: Maximum number of bytes. None: no limit.
            warn_at: Fraction of a bound, 0 to 1, from which the stream record leads to a warning.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            The counter after the write.

        Raises:
            BoundReached: The queue doesn't have enough space.
        """
        self._settle()
        count, size = room.count, room.size
        if (max_count is not None and count > max_count) or (
            max_size is not None and size > max_size
        ):
            raise BoundReached(self.value(queue))
        conditions: list[str] = []
        values: dict[str, Value] = {}
        setting: dict[str, Value] = {"at": now_ms}
        # Race: any number of concurrent enqueues. Each is counted only if the sum stays within the
        # limit. A rejected enqueue receives the current value of the counter.
        if max_count is not None:
            if count > 0:
                conditions.append("(attribute_not_exists(#n) OR #n <= :room)")
                values[":room"] = max_count - count
            setting |= {"bound": max_count, "warn": _warning(max_count, warn_at)}
        if max_size is not None:
            if size > 0:
                conditions.append("(attribute_not_exists(#b) OR #b <= :space)")
                values[":space"] = max_size - size
            setting |= {"bound_b": max_size, "warn_b": _warning(max_size, warn_at)}
        with losing_as(lambda lost: BoundReached(value_from(lost.item or {}))):
            item = self._count(
                queue,
                Update(
                    keys.counter(queue),
                    keys.DEPTH,
                    set=setting,
                    add=room.added(now_ms),
                    # A size limit that was removed must not cause warnings.
                    remove=[name for name in _BOUNDS if name not in setting],
                    condition=" AND ".join(conditions) or None,
                    values=values,
                ),
                [],
            )
        value = value_from(item)
        self._remove_old_parts(queue, value, room)
        return value

    def release(
        self, queue: str, room: CapacityUse, *, now_ms: int, doubted_since_ms: int | None = None
    ) -> None:
        """Subtract the space of finished jobs.

        If the write fails, the next write of this container repeats it, or a sweep detects that no
        job uses the space.

        Args:
            queue: Name of the queue.
            room: Space to release.
            now_ms: Current time in milliseconds since the epoch.
            doubted_since_ms: Time of a reservation whose job isn't stored. If the record of a job
                with space of about that time was removed since (`note_removal`), nothing is
                released. Default: the jobs finished.
        """
        self._settle()
        # Race: the queue is deleted with its counter. Nothing remains to be subtracted.
        condition = "attribute_exists(pk)"
        values: dict[str, Value] = {}
        if doubted_since_ms is not None:
            # Race: the job was stored late, then it finished and its space was released, and its
            # record was removed before this check. The removal is recorded before the record is
            # removed.
            condition += " AND (attribute_not_exists(#removed) OR #removed < :since)"
            values[":since"] = doubted_since_ms - CLOCKS_MS
        update = Update(
            keys.counter(queue),
            keys.DEPTH,
            set={"at": now_ms},
            add=CapacityUse().with_all(room, -1).added(now_ms),
            condition=condition,
            values=values,
        )
        self._release(queue, update)

    def _release(self, queue: str, update: Update, before: _Marked | None = None) -> None:
        tried = [] if before is None else [before]
        try:
            self._count(queue, update, tried)
        except LostRace:
            return
        except OjsError as error:
            if tried:
                self._owed.append((queue, update, tried[-1]))
            elif isinstance(error, WriteNotApplied):
                self._owed.append((queue, update, None))

    def _settle(self) -> None:
        """Retry the releases that failed."""
        for _ in range(len(self._owed)):
            with suppress(IndexError):  # another thread took the entry
                self._release(*self._owed.popleft())

    def _count(self, queue: str, update: Update, tried: list[_Marked]) -> Item:
        """Make a counting write with a marker. It takes effect at most once.

        `tried` receives the attempted write. If `tried` has a write already, that write
        might have succeeded. Raises LostRace if the condition of `update` failed, otherwise
        OjsError.
        """
        again = bool(tried)
        for _ in range(_VIEWS):
            if not again:
                tried.append(self._marked(queue, update))
            marked = tried[-1]
            try:
                own = marked.slot, marked.mark
                item = self._see(queue, self._repeating.update(marked.update, own=own))
            except LostRace as lost:
                item = self._see(queue, lost.item or {})
                found = number(item, marked.slot)
                unanswered = lost.repeated or again
                if found == marked.seen:
                    self._give_back(queue, marked.slot)
                    raise
                if not unanswered or found != marked.mark:
                    tried.clear()
                    if unanswered and not marked.comes_after(found):
                        raise BackendTimeout("The outcome of counting a job is unknown.") from None
                    continue
            self._give_back(queue, marked.slot)
            return item
        try:
            return self._see(queue, self._table.update(update))
        except LostRace as lost:
            self._see(queue, lost.item or {})
            raise

    def _marked(self, queue: str, update: Update) -> _Marked:
        """Return the write with a marker in a slot of this container, or in a slot that it takes
        over.
        """
        seen = self._seen.get(queue) or {}
        now_s = self._ids.now_ms() // 1_000
        chance = int.from_bytes(base64.urlsafe_b64decode(self._ids.token()), "big")
        try:
            slot = (self._idle.get(queue) or deque()).pop()
        except IndexError:

            def order(slot: str) -> tuple[int, int]:
                mark = seen.get(slot, 0)
                idle = 0 < mark < (now_s - _IDLE_S) * _UNIQUE
                return (0 if idle else 2 if mark else 1), mark

            slot = sorted(SLOTS, key=order)[chance % _CHOICE]
        # Random markers, so that two containers that take over one slot set different markers.
        mark = now_s * _UNIQUE + chance // _CHOICE % _UNIQUE
        return _Marked.of(update, slot, mark, seen.get(slot, 0))

    def _give_back(self, queue: str, slot: str) -> None:
        """Keep a slot for the next write of this container."""
        idle = self._idle.get(queue)
        if idle is None:
            self._idle.put(queue, idle := deque())
        idle.append(slot)

    def _see(self, queue: str, item: Item) -> Item:
        """Store the markers of a queue's item in the container's cache."""
        self._seen.put(queue, {name: number(item, name) for name in SLOTS if name in item})
        return item

    def note_removal(self, queue: str, period: int, *, now_ms: int) -> None:
        """Record that the record of a job with space of this period is about to be removed.

        Nothing is written if the period is too old for an enqueue with an unknown outcome.

        Args:
            queue: Name of the queue.
            period: Period in which the space was reserved.
            now_ms: Current time in milliseconds since the epoch.

        Raises:
            OjsError: The write failed.
        """
        if period < period_of(now_ms - NOTED_MS):
            return
        # Race: the queue is deleted with its counter.
        with suppress(LostRace):
            self._repeating.update(
                Update(
                    keys.counter(queue),
                    keys.DEPTH,
                    set={"removed": now_ms},
                    condition="attribute_exists(pk)",
                )
            )

    def value(self, queue: str) -> DepthValue:
        """Read the counter, strongly consistent."""
        return value_from(self._table.get(keys.counter(queue), keys.DEPTH) or {})

    def refused(
        self,
        queue: str,
        *,
        count: int,
        depth: int,
        bound: int,
        job_type: str,
        policy: str,
        now_ms: int,
    ) -> None:
        """Store that an enqueue was rejected. The record leads to the event and the metric.

        Args:
            queue: Name of the queue.
            count: Number of rejected jobs.
            depth: Number of jobs in the queue.
            bound: Size limit of the queue.
            job_type: Job type of the request.
            policy: Overflow policy of the queue.
            now_ms: Current time in milliseconds since the epoch.
        """
        self._table.update(
            Update(
                keys.counter(queue),
                keys.REFUSED,
                set={
                    "type": job_type,
                    "depth": depth,
                    "bound": bound,
                    "policy": policy,
                    "at": now_ms,
                },
                add={"n": count},
            )
        )

    def recount(
        self,
        queue: str,
        seen: DepthValue,
        *,
        untracked: int,
        untracked_bytes: int,
        drain: int | None,
    ) -> bool:
        """Set the untracked part to the recounted values. The tracked part doesn't change.

        Args:
            queue: Name of the queue.
            seen: Counter as read.
            untracked: Number of untracked jobs.
            untracked_bytes: Bytes of the untracked jobs.
            drain: Jobs per minute that left the queue. None: the stored value stays.

        Returns:
            False if another recount was stored since `seen`.
        """
        setting: dict[str, Value] = {"loose": untracked, "loose_b": untracked_bytes}
        if drain is not None:
            setting["drain"] = drain
        # Race: another sweep, or the queue gets a size limit. The loser counts again. Concurrent
        # enqueues and completions change only the tracked part, and don't conflict.
        return self._change(
            queue,
            seen,
            _UNTRACKED,
            setting,
            {"n": untracked - seen.untracked, "b": untracked_bytes - seen.untracked_bytes},
        )

    def take_over(self, queue: str, seen: DepthValue, *, count: int, size: int) -> bool:
        """Convert untracked space to space of the caller, which finished those jobs.

        The totals don't change.

        Args:
            queue: Name of the queue.
            seen: Counter as read.
            count: Number of jobs.
            size: Bytes of the jobs.

        Returns:
            False if the counter was recounted since `seen`.
        """
        # Race: a sweep recounts, or another enqueue takes over untracked space. Only the winner
        # knows the remaining space. The loser takes over nothing and tries to reserve space.
        left = {"loose": seen.untracked - count, "loose_b": seen.untracked_bytes - size}
        return self._change(queue, seen, _UNTRACKED, left)

    def subtract(
        self, queue: str, seen: DepthValue, recount: LastRecount, *, count: int, size: int
    ) -> bool:
        """Subtract space that no job uses, and record a new recount.

        Args:
            queue: Name of the queue.
            seen: Counter as read.
            recount: The new recount.
            count: Number of jobs to subtract.
            size: Bytes to subtract.

        Returns:
            False if another recount was recorded since `seen`.
        """
        # Race: another sweep with the same result. Its recount was recorded before, and the loser
        # subtracts nothing. Enqueues and finished jobs in between don't change the space that no
        # job uses.
        noted = {
            "counted_in": recount.period,
            "counted": recount.count,
            "counted_b": recount.size,
            "counted_at": recount.at_ms,
        }
        return self._change(queue, seen, ("counted_at",), noted, {"n": -count, "b": -size})

    def add(self, queue: str, seen: DepthValue, *, count: int, size: int) -> bool:
        """Add jobs that the counter missed.

        Args:
            queue: Name of the queue.
            seen: Counter as read.
            count: Number of jobs.
            size: Bytes of the jobs.

        Returns:
            False if the counter has changed since `seen`.
        """
        # Race: a job was enqueued or finished, and it is unknown whether the recount includes the
        # job. Nothing is written, and the next sweep counts again.
        return self._change(queue, seen, ("at", "n", "b"), {}, {"n": count, "b": size})

    def remove(self, queue: str, *, before_ms: int) -> None:
        """Delete the counter of a deleted queue, unless it changed since `before_ms`."""
        for sort_key in (keys.DEPTH, keys.REFUSED):
            # Race: the queue is created again, and a job is counted. The item then belongs to the
            # new queue and is not deleted. The sweep corrects the counts of the old queue, as it
            # does after a crash.
            with suppress(LostRace):
                self._table.delete(
                    keys.counter(queue),
                    sort_key,
                    condition="#at < :before",
                    values={":before": before_ms},
                )

    def _change(
        self,
        queue: str,
        seen: DepthValue,
        names: Sequence[str],
        setting: Mapping[str, Value],
        added: Mapping[str, int] | None = None,
    ) -> bool:
        """Change the item if the attributes `names` still have the values of `seen`.

        A missing attribute is 0.
        """
        stored = {
            "n": seen.count,
            "b": seen.size,
            "loose": seen.untracked,
            "loose_b": seen.untracked_bytes,
            "at": seen.changed_ms,
            "counted_at": seen.recount.at_ms if seen.recount is not None else 0,
        }
        condition = " AND ".join(
            f"#{name} = :{name}"
            if stored[name]
            else f"(attribute_not_exists(#{name}) OR #{name} = :{name})"
            for name in names
        )
        values = {f":{name}": stored[name] for name in names}
        update = Update(
            keys.counter(queue),
            keys.DEPTH,
            set=setting,
            add=added or {},
            condition=condition,
            values=values,
        )
        return wins(lambda: self._table.update(update))

    def _remove_old_parts(self, queue: str, value: DepthValue, room: CapacityUse) -> None:
        """Remove buckets that the sweep no longer reads, if there are many of them.

        Only the first enqueue of a period does this. It costs one write unit for many minutes of
        enqueues.
        """
        period = max(room.parts, default=0)
        # One period more than necessary, because clocks differ.
        old = [one for one in value.parts.parts if one < period - KEPT_PERIODS]
        if len(old) < _PARTS_REMOVED or value.parts.parts.get(period) != room.parts[period]:
            return
        names = [name for one in old[: 10 * _PARTS_REMOVED] for name in _part_names(one)]
        # Race: the queue is deleted. The space is reserved, whether or not this write succeeds.
        # Finished jobs don't write to old buckets, so a removed bucket isn't created again. If it
        # were, it would not change any total.
        with suppress(LostRace, OjsError):
            self._table.update(
                Update(
                    keys.counter(queue),
                    keys.DEPTH,
                    remove=[*names, *_FORMER_MARKS],
                    condition="attribute_exists(pk)",
                )
            )


def value_from(item: Item) -> DepthValue:
    """Return the values of a depth counter from its item."""
    parts: dict[int, tuple[int, int]] = {}
    for name in item:
        if name[:1] == "n" and name[1:].isdigit():
            of_bytes = _part_names(period := int(name[1:]))[1]
            parts[period] = number(item, name), number(item, of_bytes)
    recount = None
    if "counted_at" in item:
        of_recount = ("counted_in", "counted", "counted_b", "counted_at")
        recount = LastRecount(*(number(item, name) for name in of_recount))
    return DepthValue(
        count=number(item, "n"),
        size=number(item, "b"),
        untracked=number(item, "loose"),
        untracked_bytes=number(item, "loose_b"),
        changed_ms=number(item, "at"),
        drain=number(item, "drain") if "drain" in item else None,
        parts=CapacityUse(parts),
        recount=recount,
    )


def _part_names(period: int) -> tuple[str, str]:
    return f"n{period}", f"b{period}"


def _warning(bound: int, part: float) -> int:
    return max(1, math.ceil(bound * part))
