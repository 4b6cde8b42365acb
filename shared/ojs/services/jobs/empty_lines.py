"""Reads the index partitions of many lanes and queues: in parallel, and empty ones less often.

A fetch of up to `FEW` lanes reads their partitions one after the other, each time. A fetch of more
lanes reads several at the same time. It skips partitions that were empty in a recent read of its
container:

- ready index: for at most 3.5 s. A worker that polls once per second gets a new job within 4 s.
- due index: for at most 30 s, depending on the read budget. Jobs that this container read or wrote
  before are claimed when they are due.

Other containers, and fetches of fewer lanes, read the partitions themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.errors import OjsError
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.services.for_each import THREADS, ForEach
from ojs.store.jobs.finding import DueLine, JobIndex, ReadyPage
from ojs.store.table import keys

# Maximum lanes of a fetch, over all its queues, that skips no index partition.
FEW = 8
_READY_MS = 3_500
_DUE_MS = 30_000
# Budget of a container for empty partitions, in reads per second. Due partitions use the part that
# ready partitions leave, but at least `_LEAST_LOOKS`.
_LOOKS = 18
_LEAST_LOOKS = 2.3
_REMEMBERED = 10_000
# Number of entries of a due partition that are read to find the first start.
_AHEAD = 50

# A lane of a queue: queue name and lane number.
Lane = tuple[str, int]
Found = TypeVar("Found")


class EmptyIndexCache:
    """Caches which index partitions are empty. One instance per container."""

    def __init__(self, clock: Clock, placed: Callable[[Job], None] = lambda _: None) -> None:
        """Create the cache. `placed` is called with each job that this container adds."""
        self._placed = placed
        self._clock = clock
        # By lane: when the ready partition was read as empty (ms).
        self._ready: BoundedMap[Lane, int] = BoundedMap(_REMEMBERED)
        # That, and the times of its next entries.
        self._due: BoundedMap[Lane, tuple[int, DueLine]] = BoundedMap(_REMEMBERED)

    def note(self, job: Job) -> None:
        """Record that this container added a job to an index partition."""
        self._placed(job)
        lane, due_lane = (job.queue, job.lane), (job.queue, keys.due_lane(job.lane))
        due_ms = job.retry_at_ms if job.state is State.RETRYABLE else job.scheduled_ms
        if job.state is State.AVAILABLE:
            self._ready.forget(lane)
        elif (
            job.state in (State.RETRYABLE, State.SCHEDULED)
            and due_ms is not None
            and (seen := self._due.get(due_lane)) is not None
        ):
            seen_ms, line = seen
            next_ms = min(due_ms, line.next_ms or due_ms)
            starts_ms = min(due_ms, line.starts_ms or due_ms)
            self._due.put(due_lane, (seen_ms, DueLine([], [], next_ms, starts_ms)))

    def reader(
        self,
        index: JobIndex,
        lanes: Sequence[Lane],
        for_each: ForEach,
        *,
        remembers: bool,
        rung: Collection[str] = (),
        ahead_ms: int = 0,
    ) -> IndexReader:
        """Return the reader for one fetch.

        Args:
            index: The index of jobs.
            lanes: The lanes that the fetch reads.
            for_each: Applies a function to several lanes concurrently.
            remembers: Whether to skip partitions that were empty recently.
            rung: Queues whose partitions are never skipped.
            ahead_ms: How far ahead it looks for the first start.

        Returns:
            The reader.
        """
        return IndexReader(
            self,
            index,
            self._clock,
            lanes,
            for_each,
            remembers=remembers,
            rung=rung,
            ahead_ms=ahead_ms,
        )

    # --- for `IndexReader`, which passes the numbers of ready and due partitions of the fetch -----

    def ready_is_empty(self, lane: Lane, lanes: int, _: int) -> bool:
        """Return whether to skip a ready partition, because a recent read found it empty."""
        seen_ms = self._ready.get(lane)
        return seen_ms is not None and self._clock.now_ms() - seen_ms < _ready_ms(lanes)

    def due_is_empty(self, lane: Lane, lanes: int, due_lanes: int) -> bool:
        """Return whether to skip a due partition, because a recent read found no due jobs."""
        now_ms = self._clock.now_ms()
        if (seen := self._due.get(lane)) is None:
            return False
        seen_ms, line = seen
        if line.next_ms is not None and line.next_ms <= now_ms:
            return False
        return now_ms - seen_ms < _due_ms(lanes, due_lanes)

    def saw_ready(self, lane: Lane) -> None:
        """Record that a ready partition is empty."""
        self._ready.put(lane, self._clock.now_ms())

    def saw_due(self, lane: Lane, line: DueLine) -> None:
        """Record that nothing in a due partition is due before its `next_ms`, if known."""
        self._due.put(lane, (self._clock.now_ms(), line))

    def starts_ms(self, lane: Lane) -> int | None:
        """Return when the first job of a skipped due partition can start, if known."""
        seen = self._due.get(lane)
        return None if seen is None else seen[1].starts_ms


def _ready_ms(lanes: int) -> int:
    """Return how long fetches of `lanes` lanes skip an empty ready partition (ms)."""
    return min(_READY_MS, 2_000 * lanes // _LOOKS)


def _due_ms(lanes: int, due_lanes: int) -> int:
    """Return how long a fetch skips a due partition without due jobs (ms).

    The fetch reads `lanes` ready partitions and `due_lanes` due partitions.
    """
    left = _LOOKS - lanes * 1_000 / _ready_ms(lanes)
    return min(_DUE_MS, round(due_lanes * 1_000 / max(left, _LEAST_LOOKS)))


class _Prefetcher(Generic[Found]):
    """Prefetches partitions: with each requested one, it reads some of the next ones.

    The number doubles from 1 up to `THREADS`, because the first partition that is not empty might
    be enough.
    """

    def __init__(
        self, lanes: Sequence[Lane], look: Callable[[Lane, int], Found], for_each: ForEach
    ) -> None:
        self._left = list(lanes)
        self._look = look
        self._for_each = for_each
        self._found: dict[Lane, Found | OjsError] = {}
        self._size = 1

    def take(self, lane: Lane, limit: int) -> Found:
        """Return the result of a read of a partition. Each call uses a separate read.

        Raises:
            OjsError: The read failed.
        """
        if lane not in self._found:
            wanted = self._following(lane)
            found = self._for_each(lambda each: self._safely(each, limit), wanted)
            self._found.update(zip(wanted, found, strict=True))
        taken = self._found.pop(lane)
        if isinstance(taken, OjsError):
            raise taken
        return taken

    def _following(self, lane: Lane) -> list[Lane]:
        """Return a partition, and those that are read with it."""
        if lane not in self._left:
            return [lane]
        at = self._left.index(lane)
        order = self._left[at:] + self._left[:at]
        wanted, self._left = order[: self._size], order[self._size :]
        self._size = min(2 * self._size, THREADS)
        return wanted

    def _safely(self, lane: Lane, limit: int) -> Found | OjsError:
        # An error of a partition is raised when that partition is requested. It does not affect
        # other partitions.
        try:
            return self._look(lane, limit)
        except OjsError as error:
            return error


class IndexReader:
    """Reads the index partitions of one fetch."""

    def __init__(
        self,
        empty: EmptyIndexCache,
        index: JobIndex,
        clock: Clock,
        lanes: Sequence[Lane],
        for_each: ForEach,
        *,
        remembers: bool,
        rung: Collection[str] = (),
        ahead_ms: int = 0,
    ) -> None:
        # When the first job or cron job of the partitions that were read can start, if known.
        self.starts_ms: int | None = None
        self._rung = rung
        self._ahead_ms = ahead_ms
        self._empty = empty
        self._index = index
        self._clock = clock
        self._lanes = len(lanes)
        self._many = len(lanes) > FEW
        self._remembers = remembers and self._many
        due = [lane for lane in lanes if lane[1] < keys.DUE_LINES]
        self._due_lanes = len(due)
        ready = [lane for lane in lanes if not self._passes_over(empty.ready_is_empty, lane)]
        due = [lane for lane in due if not self._passes_over(empty.due_is_empty, lane)]
        self._ready = _Prefetcher(ready, self._look_ready, for_each)
        self._due = _Prefetcher(due, self._look_due, for_each)

    def ready(self, queue: str, lane: int, *, limit: int, after: object = None) -> ReadyPage:
        """Call `JobIndex.ready`, or return an empty page if the partition is skipped.

        Args:
            queue: Name of the queue.
            lane: Number of the lane.
            limit: Maximum number of entries.
            after: Position in the partition to continue from. Default: its start.

        Returns:
            The page.

        Raises:
            OjsError: The read failed.
        """
        if not self._many or after is not None:
            return self._index.ready(queue, lane, limit=limit, after=after)
        if self._passes_over(self._empty.ready_is_empty, (queue, lane)):
            return [], None
        return self._ready.take((queue, lane), limit)

    def due(self, queue: str, lane: int, *, limit: int) -> DueLine:
        """Call `JobIndex.due`, or return an empty result if the partition is skipped.

        Args:
            queue: Name of the queue.
            lane: Number of the lane.
            limit: Maximum number of entries.

        Returns:
            The due entries.

        Raises:
            OjsError: The read failed.
        """
        if not self._many:
            found = self._read_due((queue, lane), limit, self._ahead_ms)
        elif self._passes_over(self._empty.due_is_empty, (queue, lane)):
            found = DueLine([], [], None, self._empty.starts_ms((queue, lane)))
        else:
            found = self._due.take((queue, lane), limit)
        if found.starts_ms is not None:
            self.starts_ms = min(found.starts_ms, self.starts_ms or found.starts_ms)
        return found

    def _passes_over(self, is_empty: Callable[[Lane, int, int], bool], lane: Lane) -> bool:
        if lane[0] in self._rung:
            return False
        return self._remembers and is_empty(lane, self._lanes, self._due_lanes)

    def _look_ready(self, lane: Lane, limit: int) -> ReadyPage:
        entries, last = self._index.ready(*lane, limit=limit)
        if not entries and last is None:
            self._empty.saw_ready(lane)
        return entries, last

    def _look_due(self, lane: Lane, limit: int) -> DueLine:
        found = self._read_due(lane, limit, max(_DUE_MS, self._ahead_ms))
        if not found.jobs and not found.crons:
            self._empty.saw_due(lane, found)
        return found

    def _read_due(self, lane: Lane, limit: int, ahead_ms: int) -> DueLine:
        now_ms = self._clock.now_ms()
        # Ends of leases can come before the first start.
        most = max(limit, _AHEAD) if self._ahead_ms else limit
        found = self._index.due_until(*lane, now_ms=now_ms, until_ms=now_ms + ahead_ms, limit=most)
        return found._replace(jobs=found.jobs[:limit])
