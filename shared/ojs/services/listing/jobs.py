"""Lists jobs in all states, page by page.

A response takes at most CALLS calls and UNITS read units. If it lists unfinished jobs across
queues, it takes at most ALL_CALLS and ALL_UNITS.

The index contains unfinished jobs and dead letters. The event log contains the other finished jobs,
by the events that finished them. A listing reads these sources in this order:

    event log of six days       all events, if the filter has neither a queue nor a state
    lease notes                 newly claimed jobs, which have no index entry yet
    each lane of each queue     available, scheduled, retryable, pending, and active jobs
    dead letters                of one queue, or of all
    event log                   from now to the past

A listing across queues skips a queue that has no matching jobs by its counters or, if it is idle,
by the registry. If the listing finds no job, it reads the queues that are not idle, regardless of
their counters. If a page reaches its limits first, it is short, and its cursor continues there. The
index and the log can be behind, so the job record decides whether a job is listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from hashlib import blake2b
from itertools import islice
from math import ceil
from typing import Any

from ojs.clock import Clock
from ojs.domain import jsontext, times
from ojs.domain.errors import BAD_CURSOR, InvalidPayload, InvalidRequest
from ojs.domain.events.types import EventType
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job import envelope
from ojs.domain.job.job import Job
from ojs.domain.job.states import TERMINAL, State
from ojs.domain.page import Page
from ojs.domain.queue.order import QueueOrders
from ojs.domain.stats import DAY_MS, Activity, StateCounts
from ojs.domain.tenants import get_tenant
from ojs.records import record
from ojs.services.for_each import THREADS, ForEach
from ojs.services.listing.dead_letters import POSITION, still_listed
from ojs.store.derived.event_log import EventLog, StoredPage, just_before, ms_of
from ojs.store.derived.sharded import ShardActivity
from ojs.store.derived.statistics import QUEUE_DAYS_MS, StatisticsStore
from ojs.store.jobs import items
from ojs.store.jobs.lease_notes import SLOTS_ITEM, LeaseNote, LeaseSlot, slots_in_use
from ojs.store.jobs.records import JobStore
from ojs.store.queues.registry import QUEUES_A_CALL, QueueRegistry
from ojs.store.table import keys
from ojs.store.table.errors import ignore_unreadable
from ojs.store.table.table import MAX_BATCH_GET

CALLS = 4
UNITS = 60
# Limits of a response across queues: calls and read units.
ALL_CALLS = 60
ALL_UNITS = 120
# Another round of reads starts only if at least this number of calls and read units are left.
_SPARE_CALLS = 6
_SPARE_UNITS = 10
# Number of calls for one part of a bulk operation's jobs. The jobs can be in as many index
# partitions.
_PART_CALLS = 60
# Maximum number of job records that one response reads, at half a read unit each.
MAX_RECORDS = 90
# Maximum number of entries that a query reads if the partition also has entries of other states.
_LOOKS = 1_000
# Minimum number of entries of the queue registry in a read unit.
_QUEUES_A_UNIT = 40
# Read units for the counters of queues, if a page is across queues. Calls for the counters and for
# the reads in the same step.
_SURVEY_UNITS = 50
_SURVEY_CALLS = 10
# Read units that must be left before more queues are read.
_VISIT_UNITS = 30
# Number of queues whose lanes are read in one step.
_SIZED = 50
# Minimum number of queues in a read unit of the sorted list that the metrics sweep stores.
_ORDERED_A_UNIT = 100
# For a bulk operation on all queues: read units for the lanes and counters of queues, and number of
# queue names that are read.
_OUTLINE_UNITS = 25
_NAMES = 25
# Bytes, and minimum number of index entries, in a read unit of an eventually consistent read.
_BYTES_A_UNIT = 8_192
_ENTRIES_A_UNIT = 60
# Maximum bytes of the keys of an item.
_KEY_BYTES = 200
# Target bytes of event pages for one query; the assumed size of a page of unknown size.
_LOG_BYTES = 150_000
_PAGE_BYTES = 40_000
# Bytes of a page without its events (keys, names, numbers), and the maximum pages of a query.
_PAGE_REST = 100
_MAX_PAGES = 60
# Finished jobs are found as long as their event pages are kept, which is at most this time.
KEPT_MS = 399 * DAY_MS
# A listing without a queue and a state begins with the log of this period. Event pages are kept for
# two more days, in which a client can continue with the cursor.
RECENT_MS = 6 * DAY_MS
# Maximum difference to the clocks of other containers.
_AHEAD_MS = 60_000
# A job that is older than the last count by this time is included in the count.
_COUNTED_MS = 60_000
# Days whose sums one query reads to find the most recent day on which jobs finished.
_DAYS = 10
# A lane number that is greater than all lanes of a queue.
_LAST_LANE = 1_000_000
_MAX_CURSOR = 2_000
# Number of lease notes that one query reads, and maximum read units of that query, if it is
# strongly consistent.
_NOTES = 100
_NOTES_UNITS = 25
_NOTE_KEY = re.compile(r"[!-~]{1,64}")
_PAGE_KEY = re.compile(r"\d{15}(\|[A-Za-z0-9_\-]{1,32}(\.ends)?|~)")
_JOB_KEY = re.compile(r"[A-Z]\|[^\s|]{1,100}")
_LINE_KEY = re.compile(r"[!-~]{1,900}")


class _JobSource(StrEnum):
    """The sources of a listing, in the order in which they are read."""

    RECENT = "recent"
    NOTED = "noted"
    RUNNING = "running"
    READY = "ready"
    DUE = "due"
    PENDING = "pending"
    DEAD = "dead"
    ENDED = "ended"


WAITING = frozenset(State) - TERMINAL
_STATES: Mapping[_JobSource, tuple[State, ...]] = {
    _JobSource.RECENT: tuple(State),
    _JobSource.NOTED: (State.ACTIVE,),
    _JobSource.RUNNING: (State.ACTIVE,),
    _JobSource.READY: (State.AVAILABLE,),
    _JobSource.DUE: (State.SCHEDULED, State.RETRYABLE),
    _JobSource.PENDING: (State.PENDING,),
    _JobSource.DEAD: (State.DISCARDED,),
    _JobSource.ENDED: tuple(TERMINAL),
}
# States of the jobs of a due entry, by the letter in its sort key. Entries of version 0.1.0 have no
# letter.
_WAITS: Mapping[str, tuple[State, ...]] = {
    keys.START: (State.SCHEDULED,),
    keys.RETRY: (State.RETRYABLE,),
    keys.LEASE_END: (),
}
_LINES = (
    _JobSource.READY,
    _JobSource.NOTED,
    _JobSource.DUE,
    _JobSource.PENDING,
    _JobSource.RUNNING,
)
# The sources that exist once per lane of a queue.
_OF_LANES = frozenset(_LINES) - {_JobSource.NOTED}
# The order of a bulk operation. Jobs usually change their states in this direction, or finish.
_ONWARD = (
    _JobSource.PENDING,
    _JobSource.DUE,
    _JobSource.READY,
    _JobSource.NOTED,
    _JobSource.RUNNING,
)
_ENDS: Mapping[str, State] = {
    EventType.JOB_COMPLETED: State.COMPLETED,
    EventType.JOB_CANCELLED: State.CANCELLED,
    EventType.JOB_DISCARDED: State.DISCARDED,
}
# Counters of the jobs that reached each state.
_COUNTED = {
    State.COMPLETED: ("completed",),
    State.CANCELLED: ("cancelled",),
    State.DISCARDED: ("failed", "expired"),
}
# The states that a job can have reached, by event type.
_CAME_TO: Mapping[str, tuple[State, ...]] = {
    # A job that was postponed by its rate limit is found by the event of its creation.
    EventType.JOB_ENQUEUED: (State.AVAILABLE, State.SCHEDULED),
    EventType.JOB_SCHEDULED: (State.SCHEDULED,),
    EventType.JOB_STARTED: (State.ACTIVE,),
    EventType.JOB_RETRYING: (State.RETRYABLE,),
    **{kind: (state,) for kind, state in _ENDS.items()},
}
# The sort orders that index partitions provide, and whether the order is descending.
_IN_ORDER: Mapping[tuple[State, str], bool] = {
    (State.AVAILABLE, "priority"): True,
    (State.SCHEDULED, "scheduled_at"): False,
    (State.PENDING, "created_at"): False,
}


@record(frozen=True)
class _ListCursor:
    """The position where a listing continues: in a source, after a key.

    Without a key: at its start.

    Attributes:
        lane: Lane of the queue. For lease notes: their slot. For finished jobs of a queue: the
            number of jobs on the previous pages.
        queue: Queue of the position. Lease notes without a queue are those of all queues.
        left: Number of events of the page `key` that are not read yet, or of jobs of the note `key`
            that were read.
        over: Whether this partition or queue is read completely. The next position is not known
            yet.
    """

    part: _JobSource
    queue: str = ""
    lane: int = 0
    key: tuple[str, ...] = ()
    left: int = 0
    over: bool = False

    def text(self, digest: str, recent_ms: int = 0) -> str:
        """Return the text of a cursor. `digest` identifies the listing."""
        place = [self.part, self.queue, self.lane, list(self.key), self.left, int(self.over)]
        return jsontext.dumps([digest, recent_ms, *place])


@record(frozen=True)
class _Entry:
    """A job that might match, with the position of its read and the position after it."""

    job_id: str
    begin: _ListCursor
    behind: _ListCursor
    # The sort key of the job in the index; or the time of the event and the states that the job can
    # have.
    position: str
    states: tuple[State, ...] = ()

    def still(self, job: Job) -> bool:
        """Return whether the job record still agrees with the entry."""
        if self.states:
            listed = self.begin.part is _JobSource.RECENT or not job.dead_letter
            came_ms = _came_ms(job)
            return (
                listed
                and job.state in self.states
                and came_ms is not None
                and times.format_ms(came_ms) == self.position
            )
        if self.begin.part is _JobSource.NOTED:
            return job.state is State.ACTIVE and self.begin.queue in ("", job.queue)
        if self.begin.part is _JobSource.DEAD:
            return still_listed(job, self.position)
        stored = items.index_entries(job)
        if job.state not in _STATES[self.begin.part] or stored["wpk"] != _line(self.begin):
            return False
        # A heartbeat does not move the entry of an active job.
        return job.state is State.ACTIVE or str(stored["wsk"]).startswith(self.position)

    @property
    def may_be_staged(self) -> bool:
        """Return whether the job's batch might be uncommitted.

        An entry of the ready index includes the batch.
        """
        if self.begin.part is _JobSource.READY:
            return keys.Position.parse(self.position).batch is not None
        return self.begin.part in (_JobSource.DUE, _JobSource.PENDING)


@record
class _PageRead:
    """The state of one page: its filter, its remaining calls and units, and the queues read."""

    wanted: JobFilter
    forward: bool
    order: Sequence[_JobSource]
    calls: int = CALLS
    units: float = UNITS
    page_bytes: int = _PAGE_BYTES
    # The lanes of queues, in order of name, and the jobs of each queue by state, if known.
    lanes: Mapping[str, int] = field(default_factory=dict)
    levels: Mapping[str, StateCounts] = field(default_factory=dict)
    total: StateCounts | None = None
    # When all jobs were last counted (ms), if they were.
    total_ms: int | None = None
    # Whether `lanes` includes the last queue by name.
    last: bool = False
    # The queues that might have matching jobs, by name, if known; and the queues that are not idle.
    names: Sequence[str] | None = None
    busy: Sequence[str] = ()
    # Number of queues, from the last sweep.
    queues: int = 0
    # Whether the page can read many queues, up to ALL_CALLS and ALL_UNITS.
    wide: bool = False
    # Whether the numbers of jobs are those of the last sweep.
    swept: bool = False
    # Whether only those partitions are read that are empty according to the counters.
    doubted: bool = False
    # The queues whose number of lanes is known. Other queues have at least one lane.
    sized: set[str] = field(default_factory=set)
    # Number of matching jobs that must still be skipped, and IDs of the jobs on this page.
    skip: int = 0
    shown: set[str] = field(default_factory=set)
    # Whether to include jobs that are only in the event log.
    log: bool = True
    # The log lists the events since this time (ms); 0 for none.
    recent_ms: int = 0
    # The log is searched only for jobs that finished since this time (ms).
    ended_since_ms: int = 0
    # Whether no job may be missed. No partition is then skipped because of its counters, and no job
    # because its state changed after it was found.
    everything: bool = False
    # The slots of lease notes that are in use, if they were read; and whether notes contained jobs.
    slots: Sequence[LeaseSlot] | None = None
    noted: bool = False
    # Activity per day of the requested queue, from the counters of stream shards, if they were
    # read.
    recent: ShardActivity | None = None
    # The day (ms) on which jobs finished and for which the log is being read.
    day_ms: int | None = None
    # Number of jobs on the previous pages, for a list of finished jobs of a queue.
    before: int = 0

    @property
    def exact(self) -> bool:
        """Whether each entry is a job of the page.

        Most jobs in lease notes are finished already.
        """
        return self.wanted.counted and not self.recent_ms and not self.noted

    @property
    def at_once(self) -> bool:
        """Whether lease notes are read once for all queues.

        A bulk operation reads them for each queue, between the other sources. It then misses no job
        that is claimed while it runs.
        """
        return self.wanted.queue is None and self.order is _LINES

    @property
    def by_queue(self) -> bool:
        """Whether the log is read only for days on which the queue's counters include finished
        jobs.

        A bulk operation does not rely on these counters.
        """
        return self.wanted.queue is not None and self.order is _LINES

    def ends_on(self, day: Activity) -> bool:
        """Return whether requested jobs might have finished on a day."""
        return any(
            sum(getattr(day, name) for name in names) > 0 and self.wanted.wants(state)
            for state, names in _COUNTED.items()
        )

    def notes(self, queue: str) -> Iterator[_ListCursor]:
        """Yield the slots of lease notes."""
        for slot in self.slots or ():
            after = slot.lately if self.order is _ONWARD else slot.seen
            yield _ListCursor(
                _JobSource.NOTED, queue, slot.number, (f"{after}!", keys.upto(times.MAX_MS))
            )

    def shows(self, entry: _Entry, job: Job) -> bool:
        """Return whether the page lists a job because of this entry."""
        if self.everything:
            return True
        came_ms = _came_ms(job)
        recent = 0 < self.recent_ms <= (came_ms or 0)
        return entry.still(job) and recent == (entry.begin.part is _JobSource.RECENT)

    def parts(self) -> list[_JobSource]:
        """Return the sources that can have matching jobs, for each queue."""
        return [
            part
            for part in self.order
            if self.wanted.wants(*_STATES[part]) and not (part is _JobSource.NOTED and self.at_once)
        ]

    def lines(self) -> Iterator[_ListCursor]:
        """Yield the partitions of the known queues, in order. Empty ones are skipped."""
        parts = self.parts()
        # Counters have a delay of some seconds. If only one partition is requested, or for a bulk
        # operation, the jobs of a single queue are read regardless of its counters.
        single = len({_STATES[part] for part in parts}) == 1
        sure = self.wanted.queue is not None and (single or self.order is _ONWARD)
        sure = sure or self.everything
        for queue, lanes in self.lanes.items():
            for part in parts:
                if not sure and self.may_have(queue, part) == self.doubted:
                    continue
                if part is _JobSource.NOTED:
                    yield from self.notes(queue)
                else:
                    yield from (_ListCursor(part, queue, lane) for lane in range(lanes))

    @property
    def of_each(self) -> int:
        """The number of items read per job: its record and, for active jobs, its progress."""
        return 2 if self.live else 1

    def may_rest(self, queue: str) -> bool:
        """Return whether a queue has no jobs in any source of this listing, according to its
        counters.
        """
        return not self.everything and not any(self.may_have(queue, part) for part in self.parts())

    def choose(self) -> None:
        """Select the queues that can have matching jobs, among the known queues."""
        names = {*self.levels, *self.busy}
        self.names = sorted(name for name in names if not self.may_rest(name))

    def goes_on(self, entries: Sequence[_Entry]) -> bool:
        """Return whether calls and read units are left for more than the
        records of these entries.
        """
        needed = sum(self.of_each + entry.may_be_staged for entry in entries) / 2
        return self.calls >= _SPARE_CALLS and self.units >= _SPARE_UNITS + needed

    def level(self, queue: str, part: _JobSource) -> int | None:
        """Return the number of requested jobs in a source of a queue, by the counters.

        None if unknown.
        """
        known = self.levels.get(queue)
        if known is None:
            return None
        return sum(known.of(state) for state in _STATES[part] if self.wanted.wants(state))

    def may_have(self, queue: str, part: _JobSource) -> bool:
        """Return whether a source of a queue might have requested jobs,
        according to the counters.
        """
        return self.level(queue, part) != 0

    def short(self, line: _ListCursor, found: int) -> bool:
        """Return whether a queue has more jobs than the `found` entries, or might have.

        Always false if the lanes of the queue are known.
        """
        level = self.level(line.queue, line.part)
        return line.queue not in self.sized and (level is None or found < level)

    def line_behind(self, at: _ListCursor) -> _ListCursor | None:
        """Return the partition after a position, among those of the known queues."""
        place = self.place(at)
        return next((line for line in self.lines() if self.place(line) > place), None)

    def side_by_side(self, at: _ListCursor, enough: int) -> list[_ListCursor]:
        """Return this partition and the next ones to read at the same time.

        Returns as many partitions as have `enough` jobs together, by their counters.
        """
        place, lines, expected = self.place(at), list[_ListCursor](), 0
        for line in self.lines():
            if self.place(line) >= place:
                lines.append(line)
                expected += self.level(line.queue, line.part) or 0
                if expected >= enough or len(lines) >= min(THREADS, self.calls - _SPARE_CALLS):
                    break
        return lines

    def behind_lines(self) -> _ListCursor | None:
        """Return the position after the index partitions of all queues."""
        return (
            _ListCursor(_JobSource.DEAD)
            if self.wanted.wants(State.DISCARDED)
            else self.behind_dead()
        )

    def behind_dead(self) -> _ListCursor | None:
        """Return the position after the dead letters."""
        ended = self.log and self.wanted.wants(*_STATES[_JobSource.ENDED])
        return _ListCursor(_JobSource.ENDED) if ended else None

    def place(self, at: _ListCursor) -> tuple[str, int, int]:
        """Return the values by which partitions are sorted: queue, source, and lane."""
        return at.queue, self.order.index(at.part), at.lane

    def taken(self, entry: _Entry, likely: dict[str, Job]) -> Job | None:
        """Return the job that an entry shows, and remove it from the likely jobs."""
        job = likely.get(entry.job_id)
        return likely.pop(entry.job_id) if job is not None and self.shows(entry, job) else None

    @property
    def live(self) -> bool:
        """Whether only active jobs are requested. They are listed with their progress."""
        return self.wanted.states == (State.ACTIVE,)

    @property
    def count(self) -> int | None:
        """The number of all matching jobs, or None if the counters don't include it."""
        if self.total is None or not self.wanted.counted:
            return None
        return sum(max(0, self.total.of(state)) for state in self.wanted.states or State)

    def has_all(self, found: Sequence[Job], after: _ListCursor | None) -> bool:
        """Return whether the first page has all jobs, although the log continues after `after`.

        This is true if the page includes every job since the last count, and as many older jobs as
        were counted.
        """
        if (
            after is None
            or after.part not in (_JobSource.RECENT, _JobSource.ENDED)
            or not after.key
        ):
            return after is None
        if self.total_ms is None or self.count is None:
            return False
        counted_ms = self.total_ms - _COUNTED_MS
        came = [_came_ms(job) if self.wanted.states else job.created_ms for job in found]
        before = sum(each is not None and each < counted_ms for each in came)
        return ms_of(after.key[0]) < counted_ms and before >= self.count


@record(frozen=True)
class JobsPage(Page[Job]):
    """Jobs in order, and a cursor when more may follow.

    Attributes:
        total: Number of all matching jobs, if the counters include it.
        unsearched: Number of jobs that were skipped because the filter reads content that is
            offloaded.
    """

    unsearched: int = 0


@record(frozen=True)
class JobPage:
    """Jobs whose records match a filter, each with the cursor after it.

    `next_cursor` continues after all of them. It is None at the end.
    """

    jobs: list[tuple[Job, str]]
    next_cursor: str | None


class JobListing:
    """Lists jobs."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        registry: QueueRegistry,
        statistics: StatisticsStore,
        event_log: EventLog,
        clock: Clock,
        for_each: ForEach,
    ) -> None:
        self._jobs = jobs
        self._registry = registry
        self._stats = statistics
        self._log = event_log
        self._clock = clock
        self._for_each = for_each

    def page(
        self,
        wanted: JobFilter,
        *,
        limit: int,
        skip: int = 0,
        cursor: str | None = None,
        sort: str | None = None,
        descending: bool = True,
        spare_calls: int = 0,
        spare_units: float = 0,
        contents: bool = False,
    ) -> JobsPage:
        """Return a page of jobs. A short or empty page can have a cursor.

        Without `sort`, available jobs are in dispatch order, scheduled and retryable jobs by their
        due time, and finished jobs by their end, most recent first. If only active jobs are
        requested, each has its progress, and a page has half as many jobs.

        The page takes at most CALLS calls and UNITS read units. Across queues, it takes at most
        ALL_CALLS and ALL_UNITS.

        Args:
            wanted: Filter of the jobs.
            limit: Maximum number of jobs.
            skip: Number of matching jobs to skip.
            cursor: Cursor of the previous page.
            sort: Field that each page is sorted by. Jobs of different pages are in this order only
                if the index provides it (`_IN_ORDER`).
            descending: Whether the largest value comes first.
            spare_calls: Calls to reserve for the caller.
            spare_units: Read units to reserve for the caller.
            contents: Whether to read offloaded contents, as far as the limits allow.

        Raises:
            InvalidRequest: The cursor is of another listing, or `skip` is too large.
        """
        digest = _digest(wanted, sort, descending)
        (state,) = wanted.states if len(wanted.states) == 1 else (None,)
        downward = None if state is None or sort is None else _IN_ORDER.get((state, sort))
        forward = downward in (None, descending)
        named = wanted.queue is not None
        # The log has the recent events of all queues.
        wide = not named and bool(wanted.states)
        look = _PageRead(
            wanted,
            forward,
            _LINES,
            calls=(ALL_CALLS if wide else CALLS) - contents - spare_calls,
            units=(ALL_UNITS if wide else UNITS) - spare_units,
            skip=skip,
            wide=wide,
        )
        if cursor is not None:
            at: _ListCursor | None = self._opened(cursor, digest, look)
        elif named or wanted.states:
            at = self._start(look)
        else:
            at, look.recent_ms = _ListCursor(_JobSource.RECENT), self._clock.now_ms() - RECENT_MS
        if wide or (cursor is None and wanted.counted and (named or look.recent_ms)):
            self._outline(look, [wanted.queue] if wanted.queue is not None else [])
        found, unsearched, after = self._filled(look, at, limit)
        first = after is None and cursor is None and not skip
        if first and len(found) < limit and self._doubts(look, found):
            # The position after this is not used: the next page relies on the counters.
            more, missed, _ = self._filled(look, self._start(look), limit - len(found))
            found += more
            unsearched += missed
        if look.skip and after is not None:
            raise _too_far(skip)
        if contents:
            found = self._with_contents(look, found)
        if sort is not None:
            found.sort(key=_VALUES[sort], reverse=descending)
        if cursor is None and not skip and look.has_all(found, after):
            after = None
        if (
            after is not None
            and look.by_queue
            and after.part is _JobSource.ENDED
            and not look.parts()
        ):
            after = replace(after, lane=min(_LAST_LANE, look.before + len(found)))
        cursor = None if after is None else after.text(digest, look.recent_ms)
        total = None if look.count is None else max(look.count, skip + len(found))
        return JobsPage(found, cursor, total, unsearched)

    def part(
        self,
        wanted: JobFilter,
        *,
        limit: int,
        cursor: str | None = None,
        log: bool = True,
        ended_since_ms: int = 0,
        everything: bool = False,
    ) -> JobPage:
        """Return some of the jobs whose records match a filter, in the order of `_ONWARD`.

        The result can be empty and have a cursor. Takes one query for each partition and two calls,
        or four across queues.

        Args:
            wanted: Filter of the jobs.
            limit: Maximum number of jobs.
            cursor: Cursor of the previous part.
            log: Whether to include finished jobs. Otherwise the result has only jobs of the index.
            ended_since_ms: Earliest end of the finished jobs, in milliseconds since the epoch.
            everything: Whether to read partitions that are empty according to their counters, too,
                and to include jobs that changed their state after they were found.

        Returns:
            The jobs, each with a cursor, and the cursor of the next part.

        Raises:
            InvalidRequest: The cursor is of another listing.
        """
        digest = _digest(wanted, None, descending=True)
        look = _PageRead(
            wanted,
            forward=True,
            order=_ONWARD,
            calls=_PART_CALLS,
            log=log,
            ended_since_ms=ended_since_ms,
            everything=everything,
        )
        at = self._start(look) if cursor is None else self._opened(cursor, digest, look)
        entries, after = self._gather(look, at, limit)
        if len(entries) > limit:
            entries, after = entries[:limit], entries[limit - 1].behind
        likely = self._likely(look, entries, consistent=True)
        staged = self._uncommitted(likely.values())
        jobs = [
            (job, entry.behind.text(digest))
            for entry in entries
            if (job := look.taken(entry, likely)) is not None and job.batch not in staged
        ]
        return JobPage(jobs, None if after is None else after.text(digest))

    # --- jobs of a page -----------------------------------------------------------------------

    def _filled(
        self, look: _PageRead, at: _ListCursor | None, limit: int
    ) -> tuple[list[Job], int, _ListCursor | None]:
        """Call `_shown` repeatedly until the page is full; for a single queue, call it once."""
        found: list[Job] = []
        unsearched = 0
        while at is not None:
            begin = at
            most = look.skip + limit - len(found) if look.exact else MAX_RECORDS
            entries, at = self._gather(look, at, most + 1)
            if look.exact and look.skip:
                # Index entries count. The listing reads no records of skipped jobs.
                skipped = min(look.skip, len(entries))
                look.skip -= skipped
                entries = entries[skipped:]
            more, missed, at = self._shown(look, entries, at, limit - len(found))
            found += more
            unsearched += missed
            done = len(found) == limit or not look.wide
            if done or at == begin or look.has_all(found, at) or not look.goes_on(()):
                break
        return found, unsearched, at

    def _shown(
        self, look: _PageRead, entries: Sequence[_Entry], after: _ListCursor | None, limit: int
    ) -> tuple[list[Job], int, _ListCursor | None]:
        """Return the page's jobs among the entries, without the matches to skip.

        Also returns how many jobs could not be searched, and where the next page starts.
        """
        wanted = look.wanted
        most = limit if look.exact else MAX_RECORDS
        # Half a read unit for each record, and the same for the progress of each job.
        items_of_each = look.of_each
        room = max(1, min(most, MAX_RECORDS // items_of_each, int(2 * look.units) // items_of_each))
        read = _first_jobs(entries, room)
        likely = self._likely(look, read, consistent=False, progress=look.live)
        look.calls -= bool(read)
        look.units -= len(read) * items_of_each / 2
        # If no call is left, the page ends before the first job that might belong to an uncommitted
        # batch. The next page starts in this partition, with new calls.
        doubtful = _doubtful(read, likely)
        staged = self._uncommitted(doubtful) if doubtful and look.calls > 0 else set[str]()
        if doubtful:
            look.units -= len({job.batch for job in doubtful}) / 2
        unsure = doubtful if look.calls <= 0 else []
        look.calls -= bool(doubtful)
        found: list[Job] = []
        unsearched, behind = 0, None
        for number, entry in enumerate(read):
            job = look.taken(entry, likely)
            if job in unsure:
                return found, unsearched, read[number - 1].behind if number else entry.begin
            behind = entry.behind
            if job is None or job.batch in staged or job.id in look.shown:
                continue
            if wanted.of_content and job.content is None:
                unsearched += 1
            elif wanted.matches_content(job):
                look.shown.add(job.id)
                if look.skip:
                    look.skip -= 1
                else:
                    found.append(job)
                if len(found) == limit:
                    break
        if behind is None or behind == entries[-1].behind:
            behind = after
        return found, unsearched, behind

    def _with_contents(self, look: _PageRead, found: Sequence[Job]) -> list[Job]:
        """Return the jobs with the content that their clients sent.

        Loads content from the first job on, as far as the remaining units allow. One call, which
        was reserved for this.
        """
        chosen: list[Job] = []
        for job in found:
            if job.content is None:
                look.units -= -(-(job.content_bytes + _KEY_BYTES) // (_BYTES_A_UNIT // 2)) / 2
                if look.units < 0:
                    break
                chosen.append(job)
        loaded = {job.id: job for job in self._jobs.with_sent(chosen)} if chosen else {}
        return [loaded.get(job.id, job) for job in found]

    def _likely(
        self,
        look: _PageRead,
        entries: Sequence[_Entry],
        *,
        consistent: bool,
        progress: bool = False,
    ) -> dict[str, Job]:
        """Return the jobs, by ID, that are still where they were found and match."""
        now_ms = self._clock.now_ms()
        ids = [entry.job_id for entry in entries]
        records = self._jobs.read_records(
            ids, ignore_unreadable, consistent=consistent, progress=progress
        )
        return {
            job.id: job
            for entry in entries
            if (job := records.get(entry.job_id)) is not None
            and look.shows(entry, job)
            and look.wanted.matches_record(job)
            and not job.gone(now_ms)
        }

    def _uncommitted(self, jobs: Iterable[Job]) -> set[str]:
        """Return the tokens of the jobs' uncommitted batches.

        Jobs of these batches do not exist yet.
        """
        return self._jobs.batches.uncommitted({job.batch for job in jobs if job.batch is not None})

    # --- where jobs are found -----------------------------------------------------------------

    @staticmethod
    def _start(look: _PageRead) -> _ListCursor | None:
        """Return the position at which a listing begins."""
        parts = look.parts()
        if not parts:
            return look.behind_lines()
        # If recent events are listed, they include the newly claimed jobs.
        if look.at_once and _JobSource.RUNNING in parts and not look.recent_ms:
            return _ListCursor(_JobSource.NOTED, lane=-1, over=True)
        return _ListCursor(parts[0], look.wanted.queue or "", -1, over=True)

    def _gather(
        self, look: _PageRead, at: _ListCursor | None, enough: int
    ) -> tuple[list[_Entry], _ListCursor | None]:
        """Return entries from a position on, and the position after them."""
        entries: list[_Entry] = []
        staged = False
        while at is not None and len(entries) < enough:
            # One call is reserved for the records, and one to find which batches are committed.
            spare = look.calls - (2 if staged else 1)
            if at.part is _JobSource.ENDED and not at.key and look.recent is not None and spare > 1:
                at = self._earlier(look, self._clock.now_ms() + _AHEAD_MS)
                continue
            if spare <= 0 or (look.wide and entries and not look.goes_on(entries)):
                break
            if at.over:
                following = self._following(look, at, spare - bool(entries))
                if following == at:
                    break
                at = following
                continue
            if look.wide and at.part in _OF_LANES and not at.key:
                found, at = self._read_lines(look, look.side_by_side(at, enough), enough)
            else:
                look.calls -= 1
                found, at = self._read(look, at, enough - len(entries))
            entries += found
            staged = staged or any(entry.may_be_staged for entry in found)
        return entries, at

    def _read(
        self, look: _PageRead, at: _ListCursor, size: int
    ) -> tuple[list[_Entry], _ListCursor | None]:
        """Make one query."""
        match at.part:
            case _JobSource.DEAD:
                return self._read_dead(look, at, size)
            case _JobSource.RECENT | _JobSource.ENDED:
                return self._read_log(look, at)
            case _JobSource.NOTED:
                return self._read_notes(look, at)
            case _:
                found, behind, units = self._read_line(look, at, size)
                look.units -= units
                return found, behind

    def _read_lines(
        self, look: _PageRead, lines: Sequence[_ListCursor], size: int
    ) -> tuple[list[_Entry], _ListCursor]:
        """Read partitions of several queues at the same time, one query each.

        Entries after the first partition with more than one page are skipped.
        """
        read = self._for_each(lambda line: self._read_line(look, line, size, len(lines)), lines)
        look.calls -= len(lines)
        look.units -= sum(units for *_, units in read)
        # If a queue has fewer jobs in its first lane than its counters show, it can have other
        # lanes.
        short = dict.fromkeys(
            line.queue
            for line, (found, behind, _) in zip(lines, read, strict=True)
            if behind.over and look.short(line, len(found))
        )
        self._size(look, [*short])
        entries: list[_Entry] = []
        at = lines[0]
        for line, (found, behind, _) in zip(lines, read, strict=True):
            if at.over and line != look.line_behind(at):
                break
            entries += found
            at = behind
            if not at.over:
                break
        return entries, at

    def _read_line(
        self, look: _PageRead, at: _ListCursor, size: int, beside: int = 1
    ) -> tuple[list[_Entry], _ListCursor, float]:
        """Read a partition, one of several at the same time; also return the read units."""
        line, after = _line(at), None
        if at.key:
            after = {"pk": at.key[0], "sk": keys.RECORD, "wpk": line, "wsk": at.key[1]}
        index = self._jobs.index
        if at.part in (_JobSource.RUNNING, _JobSource.DUE):
            size = max(size, _LOOKS)
        if look.wide:
            size = max(1, min(size, int(look.units * _ENTRIES_A_UNIT / 2 / beside)))
        forward = look.forward or at.part is _JobSource.RUNNING
        entries, last = index.listed(line, limit=size, after=after, forward=forward)
        units = max(0.5, len(entries) / _ENTRIES_A_UNIT)
        if at.part is _JobSource.RUNNING:
            entries = [entry for entry in entries if index.may_run(entry[1])]
        found = [
            _Entry(job_id, at, replace(at, key=(keys.job(job_id), key)), key)
            for job_id, key in entries
            if at.part is not _JobSource.DUE
            or look.wanted.wants(*_WAITS.get(key[-1], _STATES[at.part]))
        ]
        if last is None:
            return found, replace(at, key=(), over=True), units
        return found, replace(at, key=(last["pk"], last["wsk"])), units

    def _read_notes(self, look: _PageRead, at: _ListCursor) -> tuple[list[_Entry], _ListCursor]:
        first, last = at.key
        # A bulk operation begins with the earliest note, because a note can be reused with a later
        # time. A list begins with the most recent claims: these jobs are most likely active.
        bulk = look.order is _ONWARD
        page, whole = self._jobs.notes.between(
            at.lane, first, last, limit=_NOTES, forward=bulk, consistent=bulk
        )
        look.units -= _NOTES_UNITS * len(page) / _NOTES / (1 if bulk else 2)

        def behind(note: LeaseNote, left: int = 0) -> _ListCursor:
            # If only some jobs of a note were listed, the note is read again.
            place = note.key if left else f"{note.key}!" if bulk else keys.just_before(note.key)
            return replace(at, key=(place, last) if bulk else (first, place), left=left)

        found: list[_Entry] = []
        for note in page:
            if at.queue not in ("", note.queue):
                continue
            before = at.left if note.key in at.key else 0
            for number, job_id in list(enumerate(note.jobs, 1))[before:]:
                found.append(_Entry(job_id, at, behind(note, number), note.key))
        look.noted = look.noted or bool(found)
        if whole:
            return found, replace(at, key=(), left=0, over=True)
        return found, behind(page[-1])

    def _read_dead(
        self, look: _PageRead, at: _ListCursor, size: int
    ) -> tuple[list[_Entry], _ListCursor | None]:
        before = at.key[0] if at.key else None
        entries = self._jobs.index.dead(look.wanted.queue, limit=size, before=before)
        look.units -= size / _ENTRIES_A_UNIT
        found = [_Entry(job_id, at, replace(at, key=(key,)), key) for job_id, key in entries]
        return found, found[-1].behind if len(found) == size else look.behind_dead()

    def _read_log(
        self, look: _PageRead, at: _ListCursor
    ) -> tuple[list[_Entry], _ListCursor | None]:
        now_ms = self._clock.now_ms()
        begin = at.key[0] if at.key else keys.upto(now_ms + _AHEAD_MS)
        whole = at.left or begin.endswith("~")
        room = min(_LOG_BYTES, int(look.units * _BYTES_A_UNIT / 2))
        most = max(1, min(_MAX_PAGES, room // look.page_bytes))
        pages, last = self._log.latest_of_day(
            begin if whole else just_before(begin), limit=most, now_ms=now_ms
        )
        found = [
            entry
            for page in pages
            for entry in _told(look.wanted, at.part, page, at.left if page.key == begin else None)
        ]
        size = sum(len(page.packed) + _PAGE_REST for page in pages)
        # A query takes half units, and at least one.
        look.units -= max(1, ceil(2 * size / _BYTES_A_UNIT)) / 2
        if pages:
            look.page_bytes = size // len(pages) + 1
        if last is not None:
            return found, _ListCursor(at.part, key=(last,))
        day_ms = ms_of(begin) // DAY_MS * DAY_MS
        if at.part is _JobSource.RECENT:
            if day_ms <= max(look.recent_ms, look.wanted.since_ms or 0):
                return found, self._start(look)
            return found, _ListCursor(at.part, key=(keys.upto(day_ms - 1),))
        if day_ms <= _first_ms(look, now_ms):
            return found, None
        # The sweep writes the daily sums, so today and yesterday are always read. The sums of a
        # queue are current. They are used if the queue seems to have no jobs on the previous day.
        over = day_ms < now_ms - DAY_MS
        if look.by_queue:
            over = not found and (look.day_ms is None or look.day_ms >= day_ms)
        return found, _ListCursor(_JobSource.ENDED, key=(keys.upto(day_ms - 1),), over=over)

    def _following(self, look: _PageRead, at: _ListCursor, spare: int) -> _ListCursor | None:
        """Return the position after a completed partition or day of the log.

        Returns the same position if `spare` calls are too few to detect it.
        """
        if at.part is _JobSource.ENDED:
            known = not look.by_queue or look.recent is not None
            return self._earlier(look, ms_of(at.key[0])) if known or spare > 2 else at
        if at.part is _JobSource.NOTED and not at.queue:
            if look.slots is None:
                look.calls -= 1
                look.units -= 1
                look.slots = self._jobs.notes.slots()
            later = (slot for slot in look.notes("") if slot.lane > at.lane)
            return next(later, _ListCursor(look.parts()[0], lane=-1, over=True))
        if not look.lanes and not self._read_queues(look, at, spare):
            return at
        if (line := look.line_behind(at)) is not None:
            return line
        if look.last:
            return look.behind_lines()
        # The queues that follow these are read next.
        last = max(look.lanes)
        look.lanes = {}
        return _ListCursor(look.order[-1], last, _LAST_LANE, over=True)

    def _earlier(self, look: _PageRead, last_ms: int) -> _ListCursor | None:
        """Return the log position of the most recent jobs that finished before a time.

        The daily sums show the days on which jobs finished. For a list of one queue, these are the
        sums of the queue, within their retention. Takes one call, and for a queue one or two more
        if its counters are not read yet.
        """
        now_ms = self._clock.now_ms()
        name, first_ms = keys.ALL_QUEUES, max(0, _first_ms(look, now_ms))
        kept_ms = now_ms - QUEUE_DAYS_MS
        if look.by_queue:
            if look.recent is None:
                self._outline(look, [look.wanted.queue or ""])
            if look.count is not None and 0 < look.count <= look.before:
                return None
            if last_ms > kept_ms:
                name, first_ms = look.wanted.queue or "", max(first_ms, kept_ms)
        look.calls -= 1
        look.units -= _DAYS if look.by_queue else _DAYS / 10
        points, whole = self._stats.latest_days(
            name, first_ms, last_ms, limit=_DAYS, recent=look.recent
        )
        for point in points:
            if look.ends_on(point.activity):
                # An event can be stored one day later than it occurred.
                end_ms = min(last_ms, point.start_ms + 2 * DAY_MS - 1)
                look.day_ms = point.start_ms
                return _ListCursor(_JobSource.ENDED, key=(keys.upto(end_ms),))
        if not whole:
            return _ListCursor(
                _JobSource.ENDED, key=(keys.upto(points[-1].start_ms - 1),), over=True
            )
        if name != keys.ALL_QUEUES and first_ms == kept_ms:
            return _ListCursor(_JobSource.ENDED, key=(keys.upto(kept_ms),), over=True)
        return None

    def _read_queues(self, look: _PageRead, at: _ListCursor, spare: int) -> bool:
        """Read the next queues by name, and their counters.

        Return false if too few calls are left.
        """
        if look.wanted.queue is not None:
            names, look.last = [look.wanted.queue], True
        elif spare < (_SURVEY_CALLS if look.wide and look.names is None else 2):
            return False
        else:
            if look.names is None:
                self._survey(look)
            if look.wide:
                look.lanes, look.last = dict.fromkeys(look.names or (), 1), True
                # The queue where the last page ended might have more lanes. Active jobs can be in
                # lease notes, so the number of jobs in the first lane does not show that.
                running = (
                    name
                    for name in look.lanes
                    if name >= at.queue
                    and (name == at.queue or look.level(name, _JobSource.RUNNING))
                )
                self._size(look, [*islice(running, _SIZED)])
                return True
            most = min(_NAMES, self._stats.outlined(_OUTLINE_UNITS))
            names = [name for name in look.names or () if name > at.queue]
            look.last, names = len(names) <= most, names[:most]
            # The remaining lanes of the current queue come first.
            names = [at.queue, *names] if at.queue and at.lane < _LAST_LANE else names
        if not names:
            look.lanes = {}
            return look.last
        self._outline(look, names)
        return True

    def _survey(self, look: _PageRead) -> None:
        """Find the queues that might have matching jobs.

        The registry has the numbers of idle queues. For a page, those of other queues come from
        their counters, or from the last sweep if the counters take too many read units.
        """
        tenant = look.wanted.values.get("tenant")
        every = []
        if look.queues <= QUEUES_A_CALL or not look.wide or tenant is not None:
            every = self._registry.all(tenant)
        look.calls -= ceil((len(every) + 1) / QUEUES_A_CALL)
        look.units -= ceil(len(every) / _QUEUES_A_UNIT)
        look.levels = {each.name: each.rest.levels for each in every if each.rest is not None}
        look.busy = [each.name for each in every if each.rest is None]
        if look.wide:
            orders = QueueOrders()
            if not every or self._stats.levels_units(len(look.busy), len(every)) > _SURVEY_UNITS:
                orders = self._stats.orders()
                look.calls -= 1
                look.units -= 1 + len(orders.rows) / _ORDERED_A_UNIT
            if orders.rows:
                look.swept = True
                nothing = dict.fromkeys(look.busy, StateCounts())
                look.levels = {**nothing, **look.levels, **orders.levels()}
                if tenant is not None:
                    look.levels = {
                        name: each
                        for name, each in look.levels.items()
                        if get_tenant(name) == tenant
                    }
            else:
                self._count(look)
        look.choose()

    def _count(self, look: _PageRead) -> bool:
        """Read the counters of the queues that are not idle.

        Return false if that needs too many units.
        """
        units = self._stats.levels_units(len(look.busy), max(look.queues, len(look.busy)))
        if not look.busy or look.calls < _SURVEY_CALLS or units > look.units - _VISIT_UNITS:
            return False
        counted, calls, units = self._stats.levels(look.busy)
        look.calls -= calls
        look.units -= units
        # A queue without counters is new.
        look.levels = {
            name: each for name, each in look.levels.items() if name not in look.busy
        } | counted
        look.total = sum(look.levels.values(), StateCounts())
        return True

    def _doubts(self, look: _PageRead, found: Sequence[Job]) -> bool:
        """Return whether a listing also reads queues without counted jobs, if its first page is not
        full.

        Counters can be delayed. If the page has jobs, this is done only for few queues.
        """
        if not look.wide:
            return False
        look.sized = set()
        if look.swept:
            look.swept, look.lanes = False, {}
            there = self._count(look)
            look.choose()
            return there
        look.doubted = True
        look.lanes = dict.fromkeys(look.busy, 1)
        names = dict.fromkeys(line.queue for line in look.lines())
        # Each queue takes one read of its lanes and one of a partition.
        most = min(_SIZED if not found else THREADS, int(look.units - _SPARE_UNITS))
        if found and len(names) > most:
            return False
        look.lanes = dict.fromkeys(islice(names, max(0, most)), 1)
        self._size(look, [*look.lanes])
        return bool(look.lanes)

    def _size(self, look: _PageRead, names: Sequence[str]) -> None:
        """Read the number of lanes of queues. Makes one call for 100 queues."""
        if names:
            look.lanes = {**look.lanes, **self._stats.lanes(names)}
            look.sized.update(names)
            look.calls -= ceil(len(names) / MAX_BATCH_GET)
            look.units -= len(names) / 2

    def _outline(self, look: _PageRead, names: Sequence[str]) -> None:
        """Read the lanes and counters of queues.

        Makes one call, or two for a queue with a new shard.
        """
        now_ms = self._clock.now_ms()
        noted = _JobSource.RUNNING in look.parts()
        other = SLOTS_ITEM if noted else None
        outline = self._stats.outline(names, now_ms=now_ms, other=other)
        look.calls -= 1
        look.units -= outline.units
        if look.wanted.queue is not None and not outline.whole:
            outline = self._stats.outline(names, now_ms=now_ms, other=other)
            look.calls -= 1
        look.lanes, look.levels, look.total = outline.lanes, outline.levels, outline.total
        look.total_ms = outline.total_ms
        look.queues = outline.queues
        look.slots = slots_in_use(outline.other) if noted else None
        if look.wanted.queue is not None:
            look.last = True
            look.total, look.total_ms = outline.levels.get(look.wanted.queue), now_ms
            look.recent = outline.recent

    def _opened(self, cursor: str, digest: str, look: _PageRead) -> _ListCursor:
        """Return the position in a cursor. Raises InvalidRequest if it is of another listing."""
        bad = InvalidRequest("cursor", BAD_CURSOR, value=cursor)
        try:
            if len(cursor) > _MAX_CURSOR:
                raise bad
            of, recent_ms, part, queue, lane, key, left, over = jsontext.loads(cursor)
            at = _ListCursor(_JobSource(part), queue, lane, tuple(key), left, over == 1)
            if queue:
                envelope.check_queue(queue)
        except (InvalidPayload, ValueError, TypeError):
            raise bad from None
        if of != digest:
            rule = (
                "belongs to a listing with a different filter or order. Omit it to begin a new "
                "listing"
            )
            raise InvalidRequest("cursor", rule, value=cursor)
        whole = all(type(each) is int for each in (lane, left, recent_ms))
        now_ms = self._clock.now_ms()
        look.before = lane if at.part is _JobSource.ENDED else 0
        if whole and 0 <= left < _LAST_LANE and 0 <= recent_ms <= now_ms:
            look.recent_ms = recent_ms
        else:
            whole = False
        if not whole or not -1 <= lane <= _LAST_LANE or not self._is_place(at, look):
            raise bad
        return at

    def _is_place(self, at: _ListCursor, look: _PageRead) -> bool:
        """Return whether a position is possible in this listing."""
        if not all(isinstance(part, str) for part in at.key):
            return False
        latest_ms = self._clock.now_ms() + _AHEAD_MS
        match at.part:
            case _JobSource.DEAD:
                known = len(at.key) == 1 and POSITION.fullmatch(at.key[0])
                return not at.over and bool(not at.key or known)
            case _JobSource.RECENT | _JobSource.ENDED:
                if not at.key or (at.part is _JobSource.RECENT and at.over):
                    return not at.over
                known = len(at.key) == 1 and _PAGE_KEY.fullmatch(at.key[0])
                return bool(known) and ms_of(at.key[0]) <= latest_ms
            case _JobSource.NOTED:
                if look.wanted.queue not in (None, at.queue) or not (at.queue or look.at_once):
                    return False
                if not at.key:
                    return at.over
                return len(at.key) == 2 and all(map(_NOTE_KEY.fullmatch, at.key))
            case _:
                if look.wanted.queue not in (None, at.queue) or not (at.over or at.queue):
                    return False
                if not at.key:
                    return True
                forms = (_JOB_KEY, _LINE_KEY)
                return len(at.key) == 2 and all(
                    form.fullmatch(part) for form, part in zip(forms, at.key, strict=True)
                )


_VALUES: Mapping[str, Callable[[Job], int]] = {
    "created_at": lambda job: job.created_ms,
    "scheduled_at": lambda job: job.scheduled_ms or 0,
    "priority": lambda job: job.priority,
}


def _line(at: _ListCursor) -> str:
    """Return the index partition of a position."""
    match at.part:
        case _JobSource.READY:
            return keys.ready(at.queue, at.lane)
        case _JobSource.PENDING:
            return keys.pending(at.queue, at.lane)
        case _:
            return keys.due(at.queue, at.lane)


def _told(
    wanted: JobFilter, part: _JobSource, page: StoredPage, left: int | None
) -> Iterator[_Entry]:
    """Yield the jobs of an event page, in descending order of the events.

    If `left` is set, only the first `left` events are used.
    """
    # Most pages have no matching event. Searching their text is cheaper than parsing them.
    kinds = [kind for kind, state in _ENDS.items() if wanted.wants(state)]
    if part is _JobSource.ENDED and not page.names_any(kinds):
        return
    events = page.events()
    for number in reversed(range(len(events) if left is None else min(left, len(events)))):
        event, behind = events[number], _ListCursor(part, key=(page.key,), left=number)
        if states := _meant(wanted, part, event):
            yield _Entry(
                event["subject"], replace(behind, left=number + 1), behind, event["time"], states
            )


def _meant(wanted: JobFilter, part: _JobSource, event: Mapping[str, Any]) -> tuple[State, ...]:
    """Return the possible states of an event's job. Empty if the job can't match."""
    states = _CAME_TO.get(event["type"], ())
    if part is _JobSource.ENDED and event["type"] not in _ENDS:
        return ()
    data = event["data"]
    meant = wanted.queue in (None, data.get("queue")) and wanted.matches_type(
        data.get("job_type", "")
    )
    return states if meant and wanted.wants(*states) else ()


def _came_ms(job: Job) -> int | None:
    """Return when a job reached its state (ms), by the event time, or None without an event."""
    match job.state:
        case State.PENDING:
            return None
        case State.SCHEDULED:
            return job.created_ms
        case State.AVAILABLE:
            return job.enqueued_ms
        case State.ACTIVE:
            return job.started_ms
        case State.RETRYABLE:
            return job.failed_ms
        case _:
            return job.ended_ms


def _doubtful(entries: Sequence[_Entry], likely: Mapping[str, Job]) -> list[Job]:
    """Return jobs whose batch might be uncommitted. The log has only jobs of committed batches."""
    found = [likely[e.job_id] for e in entries if e.job_id in likely and e.begin.part in _LINES]
    return [job for job in found if job.batch is not None]


def _first_jobs(entries: Sequence[_Entry], most: int) -> Sequence[_Entry]:
    """Return the first entries, of at most `most` jobs."""
    ids: set[str] = set()
    for number, entry in enumerate(entries):
        ids.add(entry.job_id)
        if len(ids) > most:
            return entries[:number]
    return entries


def _first_ms(look: _PageRead, now_ms: int) -> int:
    """Return the time before which no event belongs to a matching job.

    A job finishes after its creation.
    """
    since_ms = max(look.wanted.since_ms or 0, look.ended_since_ms)
    return max(now_ms - KEPT_MS, since_ms - DAY_MS)


def _digest(wanted: JobFilter, sort: str | None, descending: bool) -> str:
    """Return a digest that identifies the listing of a cursor."""
    text = jsontext.dumps([wanted.to_dict(), sort, descending])
    return blake2b(text.encode("utf-8"), digest_size=6).hexdigest()


def _too_far(skip: int) -> InvalidRequest:
    return InvalidRequest("offset", "skips too many items. Use cursor", value=skip)
