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

from collections.abc import Callable, Sequence
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
        # By lane: when the due partition had no due jobs (ms), and when the first of its jobs is
        # due, if known.
        self._due: BoundedMap[Lane, tuple[int, int | None]] = BoundedMap(_REMEMBERED)

    def note(self, job: Job) -> None:
        """Record that this container added a job to an index partition."""
        self._placed(job)
        lane, due_lane = (job.queue, job.lane), (job.queue, keys.due_lane(job.lane))
        due_ms = job.retry_at_ms if job.state is State.RETRYABLE else job.scheduled_ms
        if job.state is State.AVAILABLE:
            self._ready.forget(lane)
        elif job.state in (State.RETRYABLE, State.SCHEDULED) and due_ms is not None:
            seen = self._due.get(due_lane)
            if seen is not None and (seen[1] is None or due_ms < seen[1]):
                self._due.put(due_lane, (seen[0], due_ms))

    def reader(
        self, index: JobIndex, lanes: Sequence[Lane], for_each: ForEach, *, remembers: bool
    ) -> IndexReader:
        """Return the reader for one fetch.

        Args:
            index: The index of jobs.
            lanes: The lanes that the fetch reads.
            for_each: Applies a function to several lanes concurrently.
            remembers: Whether to skip partitions that were empty recently.

        Returns:
            The reader.
        """
        return IndexReader(self, index, self._clock, lanes, for_each, remembers=remembers)

    # --- for `IndexReader`, which passes the numbers of ready and due partitions of the fetch -----

    def ready_is_empty(self, lane: Lane, lanes: int, _: int) -> bool:
        """Return whether to skip a ready partition, because a recent read found it empty."""
        seen_ms = self._ready.get(lane)
        return seen_ms is not None and self._clock.now_ms() - seen_ms < _ready_ms(lanes)

    def due_is_empty(self, lane: Lane, lanes: int, due_lanes: int) -> bool:
        """Return whether to skip a due partition, because a recent read found no due jobs."""
        now_ms = self._clock.now_ms()
        seen_ms, next_ms = self._due.get(lane, (None, None))
        if seen_ms is None or (next_ms is not None and next_ms <= now_ms):
            return False
        return now_ms - seen_ms < _due_ms(lanes, due_lanes)

    def saw_ready(self, lane: Lane) -> None:
        """Record that a ready partition is empty."""
        self._ready.put(lane, self._clock.now_ms())

    def saw_due(self, lane: Lane, next_ms: int | None) -> None:
        """Record that nothing in a due partition is due before `next_ms`, if known."""
        self._due.put(lane, (self._clock.now_ms(), next_ms))


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
    ) -> None:
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
            return self._index.due(queue, lane, now_ms=self._clock.now_ms(), limit=limit)
        if self._passes_over(self._empty.due_is_empty, (queue, lane)):
            return DueLine([], [])
        return self._due.take((queue, lane), limit)

    def _passes_over(self, is_empty: Callable[[Lane, int, int], bool], lane: Lane) -> bool:
        return self._remembers and is_empty(lane, self._lanes, self._due_lanes)

    def _look_ready(self, lane: Lane, limit: int) -> ReadyPage:
        entries, last = self._index.ready(*lane, limit=limit)
        if not entries and last is None:
            self._empty.saw_ready(lane)
        return entries, last

    def _look_due(self, lane: Lane, limit: int) -> DueLine:
        now_ms = self._clock.now_ms()
        found = self._index.due_until(*lane, now_ms=now_ms, until_ms=now_ms + _DUE_MS, limit=limit)
        if not found.jobs and not found.crons:
            self._empty.saw_due(lane, found.next_ms)
        return found
