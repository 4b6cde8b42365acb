"""FETCH: claims jobs for workers and deliveries.

The index lists the jobs that can be claimed. A conditional write claims a job. If an index entry is
stale, this write fails. It never dispatches the job twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, assert_never

from ojs.bounded import BoundedMap, BoundedSet
from ojs.clock import Clock
from ojs.domain.access import ANYBODY, Principal
from ojs.domain.errors import BackendTimeout, BackendUnavailable, OjsError
from ojs.domain.ids import order_at
from ojs.domain.job import lifecycle
from ojs.domain.job.job import DEFAULT_TIMEOUT_MS, Job, expired
from ojs.domain.job.permits import DELIVERY_PERMIT
from ojs.domain.job.states import State
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.queue.queue import Queue
from ojs.domain.rate_limit.limiter import LimitDecision, OnLimit
from ojs.records import record
from ojs.services.for_each import ForEach, in_threads
from ojs.services.jobs.empty_lines import EmptyIndexCache, IndexReader
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.jobs.transitions import JobChanges
from ojs.services.permits.kinds import Candidate, FetchPermits
from ojs.services.permits.lifecycle import Acquired, Permits
from ojs.services.pools.dispatch import PAGE, DispatchPlan, DispatchPlanner
from ojs.services.pools.membership import FetchContext, Membership
from ojs.store.deployment.maintenance import MaintenanceStore
from ojs.store.jobs import items
from ojs.store.jobs.lease_notes import MOST_JOBS, SHORT_MS, VALID_MS
from ojs.store.jobs.records import JobStore, winner
from ojs.store.table import keys
from ojs.store.table.errors import LostRace, UnreadableItem, WriteNotApplied, ignore_unreadable
from ojs.store.table.keys import Position

if TYPE_CHECKING:
    from ojs.domain.delivery.delivery import Delivery

# Number of additional entries per query, so that a few lost races need no second query.
_SPARE = 5
_MAX_PAGES = 12
# Maximum number of skipped pages that have only jobs of uncommitted batches.
_MAX_STAGED_PAGES = 30
# A fetch ends after this many claims of deleted or expired jobs, so that it returns in time. The
# next fetch and the sweep process the other stale or expired entries.
_LOST_CLAIMS = 20
# After this many failed index partitions, the fetch skips the queue.
_FAILED_LINES = 2
# Minimum time between two reads of the due index by a container, if the ready index has enough
# jobs. Due jobs are then dispatched according to their priority.
_DUE_EVERY_MS = 1_000
# After a lost claim, fetches start at a random job: for this time (ms), and among this number of
# jobs.
_ASIDE_MS = 5_000
_FIRST_ASIDE, _MOST_ASIDE = 32, 400
# A partition is read again after the first lost claim, and then after this number of lost claims.
# By then, the index no longer lists most of the jobs that other fetches claimed.
_LOST_A_PAGE = 4
# How far ahead (ms) a fetch of a worker that listens looks for the first start.
AHEAD_MS = 300_000
# A Lambda response has at most 6 MB. The body is a JSON text in a JSON text, so quotes and
# backslashes count twice. Jobs that don't fit are not claimed.
_MAX_ANSWER_KIB = 2_900
_SMALL_JOB_KIB = 2
# Time (ms) for which fetches remember where to continue after a sequence of rate-limited jobs.
_RESUME_MS = 10_000
_REMEMBERED = 20_000
_MAX_ROTATIONS = 1_000
# Delay of a rate-limited job if it is unknown when the limit allows the next start.
_UNKNOWN_MS = 5_000


@record
class DeliveryFetch:
    """The parameters and the results of a fetch for a delivery.

    Attributes:
        delivery: The delivery whose permits the fetch acquires.
        shards: Shards of the delivery to acquire permits from. Default: all.
        full: Whether each of these shards had no free permit.
        left: Whether the fetch ended before the end of a partition. More jobs might be available.
        freed: Whether the fetch released permits without a job to a limit that had none left. Other
            fetches might have been rejected because of that.
        keys_wait: When the jobs can start whose rate limit keys have reached their limits. See
            `FetchPermits`.
    """

    delivery: Delivery
    shards: Sequence[int] = ()
    full: bool = False
    left: bool = False
    freed: bool = False
    keys_wait: Sequence[int | None] = ()


@record
class WorkerFetch:
    """How a fetch of a worker reads, and its results beyond the jobs.

    Attributes:
        rung: Queues that have new jobs. They are read even if they were empty recently.
        connection: Connection that the worker listens with.
        listed: Whether the worker is listed there. None: it does not know.
        names: Queues that the worker takes jobs from, also paused queues.
        stopped: Whether the worker must not fetch.
        full: Whether there were as many jobs as requested.
        in_line: Queues that it claimed jobs from and that might have more. True: they have.
        in_doubt: Whether it ended early. More jobs might be available.
        starts_ms: When the first job or cron job can start that is not due yet, if known.
        held_back: Queues whose rate limit prevented a start.
        keys_wait: As in `DeliveryFetch`.
    """

    rung: Collection[str] = ()
    connection: str | None = None
    listed: bool | None = None
    names: Sequence[str] = ()
    stopped: bool = False
    full: bool = False
    in_line: Mapping[str, bool] = field(default_factory=dict)
    in_doubt: bool = False
    starts_ms: int | None = None
    held_back: Sequence[Queue] = ()
    keys_wait: Sequence[int | None] = ()

    @property
    def reads_empty_lanes(self) -> bool:
        """Whether lanes are read that were empty recently.

        A listed worker that was not rung looks for jobs whose rings were lost.
        """
        return self.listed is True and not self.rung


@record
class _FetchState:
    """The state of one fetch."""

    plan: DispatchPlan
    # Number of queues that the fetch reads.
    queues: int
    count: int
    worker_id: str | None
    visibility_ms: int | None
    lines: IndexReader
    go_on: Callable[[], bool] = lambda: True
    jobs: list[Job] = field(default_factory=list)
    # Whether the fetch claimed jobs of cancelled workflows. The permits of these jobs are released.
    dropped: bool = False
    kib: int = 0
    # Jobs that the fetch has tried to claim. It tries each job once: a short lease can expire
    # during the fetch that created it, and the permits of the job are released then.
    tried: set[str] = field(default_factory=set)
    # Jobs in lease notes of this fetch, and when each note was written (ms).
    noted: dict[str, int] = field(default_factory=dict)
    # Records of due jobs that are not in the ready index, by `Candidate.entry`.
    due: dict[str, Job] = field(default_factory=dict)
    # Lanes of jobs that were found in due partitions, which several lanes share, by
    # `Candidate.entry`.
    lanes: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    # Whether the last claim was lost to another fetch, and not because of the job's deadline.
    contended: bool = False
    # Whether the last claim used permits for a job that can't be dispatched.
    spent: bool = False
    # Whether reading ended before the end of a partition, although permits might be free.
    cut: bool = False
    # By queue and its lanes: whether the last partition has more jobs than were claimed.
    in_line: dict[tuple[str, int], bool] = field(default_factory=dict)
    # Job types that the fetch accepts. Empty: all types.
    types: Collection[str] = ()
    # Errors of index partitions that this fetch no longer reads.
    errors: list[OjsError] = field(default_factory=list)

    @property
    def permits(self) -> FetchPermits:
        """The acquired permits, and the limits that are known to be reached."""
        return self.plan.permits

    @property
    def wanted(self) -> int:
        """Number of jobs still to claim; 0 after too many lost claims or at the end of the time."""
        if self.lost > _LOST_CLAIMS + 2 * self.count or not self.go_on():
            return 0
        return self.count - len(self.jobs)

    @property
    def freed(self) -> bool:
        """Whether the fetch released permits without a job.

        They might have blocked other fetches.
        """
        return self.permits.freed or self.dropped

    def has_room(self, position: Position) -> bool:
        """Return whether the response stays below the size limit with one more job."""
        return not self.jobs or self.kib + _kib(position) <= _MAX_ANSWER_KIB


def _kib(position: Position) -> int:
    """Size of a job in the response. A copy of a dead letter contains its error twice."""
    return position.size_kib * (2 if position.copy else 1) + _SMALL_JOB_KIB


def _takes(state: _FetchState, job: Job) -> bool:
    """Return whether the fetch accepts the job's type."""
    return not state.types or job.type in state.types


def _position(key: str) -> Position | None:
    """Return the position of an index entry, or None if the entry is damaged.

    The fetch skips it then.
    """
    try:
        return Position.parse(key)
    except (ValueError, KeyError):
        return None


def _tell(delivery: DeliveryFetch, state: _FetchState) -> None:
    """Set the results of a fetch for a delivery."""
    use = state.permits.held.get(DELIVERY_PERMIT)
    delivery.full = use is not None and use.full
    refused = use is not None and use.short and not use.full
    in_doubt = state.cut or state.lost > 0 or bool(state.errors) or not state.go_on()
    delivery.left, delivery.freed = in_doubt or refused, state.freed
    delivery.keys_wait = state.permits.keys_wait


def _tell_worker(seen: WorkerFetch, state: _FetchState) -> None:
    """Set the results of a fetch of a worker that listens."""
    seen.full = len(state.jobs) >= state.count
    seen.in_doubt = state.cut or not state.wanted or bool(state.errors)
    # Permits that are in use hold back the others of a fetch that is neither full nor ended early.
    if seen.full or state.cut:
        found: dict[str, bool] = {}
        for (queue, lanes), more in state.in_line.items():
            if more or lanes > 1:
                found[queue] = found.get(queue, False) or more
        seen.in_line = found
    seen.starts_ms = state.lines.starts_ms
    seen.held_back, seen.keys_wait = state.permits.held_back, state.permits.keys_wait


def due_lanes(queue: Queue) -> range:
    """Return the lanes of a queue whose due partitions contain scheduled jobs and retries."""
    return range(min(queue.lanes, keys.DUE_LINES))


# A part of a queue yields the IDs of the jobs that can be claimed, or the claimed job, or None if
# a permit was used for a job that is not dispatched.
_IdsOrJob = list[str] | Job | None


class _CandidateSource:
    """Claims the jobs of one queue, one by one. Reads only when a job is requested.

    If a partition raises an OjsError, this fetch stops reading it. After the second error, it stops
    reading the queue, because its other partitions might fail as slowly. It still serves the other
    queues.
    """

    def __init__(self, parts: Sequence[Iterator[_IdsOrJob]], errors: list[OjsError]) -> None:
        """Create the source. The errors of all queues are appended to `errors`."""
        # Each part yields the IDs of available jobs first. When it is resumed, it claims one of
        # them.
        self._parts = list(parts)
        self.known: list[str] = []
        self._errors = errors
        self._failed = 0

    def peek(self) -> int:
        """Return the number of jobs that are known to be claimable, or 0."""
        while not self.known and self._parts:
            found = self._resume()
            if isinstance(found, list):
                self.known = found
        return len(self.known)

    def claim(self) -> bool:
        """Claim the next job. Return False if none is left.

        Also returns True if the outcome of the claim is unknown, or if the job can't be dispatched.
        Its permit might be in use and must not be used for another job.
        """
        while self.peek():
            self.known = []
            found = self._resume()
            if found is None or isinstance(found, Job):
                return True
            self.known = found
        return False

    def extend(self, parts: Sequence[Iterator[_IdsOrJob]]) -> None:
        """Add parts to claim from after the current ones."""
        if self._failed < _FAILED_LINES:
            self._parts += parts

    def _resume(self) -> _IdsOrJob:
        """Resume the first part. At its end, remove it and return no IDs; on failure, None."""
        try:
            return next(self._parts[0])
        except StopIteration:
            self._parts.pop(0)
            return []
        except OjsError as error:
            # `Permits.close` releases the permits of a job that was not claimed. If the outcome is
            # unknown, the recovery of leaked permits releases them.
            self._errors.append(error)
            self._failed += 1
            self._parts = [] if self._failed == _FAILED_LINES else self._parts[1:]
            return None


class JobFetcher:
    """Claims jobs for workers and deliveries."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        membership: Membership,
        planner: DispatchPlanner,
        transitions: TimeTransitions,
        changes: JobChanges,
        permits: Permits,
        empty_lines: EmptyIndexCache,
        maintenance: MaintenanceStore,
        fire: Callable[[str], Job | None],
        clock: Clock,
        choose: Callable[[int], int] = random.randrange,
        for_each: ForEach = in_threads,
        held_back: Callable[[Queue], None] = lambda _: None,
        opened: Callable[[str], None] = lambda _: None,
        stopped: Callable[[Sequence[Job]], Sequence[Job]] = lambda _: (),
    ) -> None:
        """Create the fetcher from its stores and services.

        Callbacks:
            fire: Fires a due cron job and returns the job that it enqueued.
            choose: Returns a random number below its argument.
            held_back: Called with each queue whose rate limit prevented a start.
            opened: Called with each queue whose jobs found no free permit while this fetch had
                unused ones.
            stopped: Returns the jobs that belong to cancelled workflows.
        """
        self._opened = opened
        self._stopped = stopped
        self._fire = fire
        self._held_back = held_back
        self._empty_lines = empty_lines
        self._maintenance = maintenance
        self._for_each = for_each
        self._jobs = jobs
        self._membership = membership
        self._planner = planner
        self._transitions = transitions
        self._changes = changes
        self._permits = permits
        self._clock = clock
        self._choose = choose
        # Jobs that this container knows to be claimed. The index might still list them.
        self._claimed: BoundedSet[str] = BoundedSet(_REMEMBERED)
        # Per-container cache of the job types of jobs, for fetches that accept only certain types.
        self._types: BoundedMap[str, str] = BoundedMap(_REMEMBERED)
        self._promoted_ms: BoundedMap[tuple[str, int], int] = BoundedMap(_MAX_ROTATIONS)
        # Partitions with a recently lost claim: the time until which fetches start at a random job,
        # and the number of jobs to select from.
        self._crowded: BoundedMap[tuple[str, int], tuple[int, int]] = BoundedMap(_MAX_ROTATIONS)
        # Where to continue in a ready partition whose first jobs are blocked by their rate limits.
        self._resume_at: BoundedMap[tuple[str, int], tuple[int, Any]] = BoundedMap(_MAX_ROTATIONS)

    def fetch(
        self,
        queues: Sequence[str] | None,
        count: int = 1,
        worker_id: str | None = None,
        visibility_timeout_ms: int | None = None,
        strategy: str | None = None,
        go_on: Callable[[], bool] = lambda: True,
        *,
        weights: Mapping[str, int] | None = None,
        pool: str | None = None,
        caller: Principal = ANYBODY,
        delivery: DeliveryFetch | None = None,
        seen: WorkerFetch | None = None,
    ) -> list[Job]:
        """Claim up to `count` jobs: in each queue by priority, then first in, first out.

        The order of several queues is that of the worker's pool, if configured. Otherwise it is
        `strategy` and `weights` of this call, then those of the worker's registration, then
        round-robin. A failing queue doesn't delay the jobs of the other queues.

        Args:
            queues: Names of the queues. Default: all queues of the pool.
            count: Maximum number of jobs.
            worker_id: ID of the worker.
            visibility_timeout_ms: Duration of each lease in ms. Default: that of the job, then that
                of its queue.
            strategy: Dispatch strategy, if the worker's pool has none.
            go_on: Returns False when no more jobs must be claimed.
            weights: Weights of the queues for `strategy`.
            pool: Name of the worker pool.
            caller: The authenticated caller.
            delivery: The delivery of the jobs. They use its permits and have its job types.
            seen: How the fetch of a worker reads. Receives its results.

        Returns:
            The claimed jobs. Empty if there are none, if the worker must stop fetching, and in
            maintenance mode. If maintenance mode is enabled during the fetch, it ends early.

        Raises:
            Conflict: The worker belongs to another pool.
            PermissionDenied: The worker belongs to another caller.
            InvalidRequest: No queue was given, and the worker has none.
            TenantSuspended: The tenants of all queues are suspended.
            BackendUnavailable: No job was claimed and a queue failed.
        """
        read = self._membership.read(queues, worker_id, pool, caller)
        stopped = read.worker is not None and not read.worker.may_fetch
        if seen is not None:
            seen.names, seen.stopped = read.names, stopped
        if read.maintenance or stopped:
            return []
        plan = self._plan(read, strategy, weights)
        if delivery is not None:
            plan.permits.delivery, plan.permits.shards = delivery.delivery, delivery.shards
        # A wake-up of a delivery is for new jobs, which another container might have enqueued.
        remembers = delivery is None and not (seen is not None and seen.reads_empty_lanes)
        lines = self._line_reader(plan, read.queues, remembers=remembers, seen=seen)
        state = _FetchState(
            plan,
            max(1, len(read.queues)),
            count,
            worker_id,
            visibility_timeout_ms,
            lines,
            lambda: go_on() and not self._maintenance.on(),
            types=() if delivery is None else delivery.delivery.job_types,
        )
        state.errors += read.errors
        try:
            self._claim_running(state, read.queues)
            if state.errors and not state.jobs:
                raise state.errors[0]
        except OjsError:
            # Jobs that are already claimed must reach the worker. Otherwise they wait until their
            # leases expire.
            if not state.jobs:
                raise
        finally:
            self._permits.close(state.permits, self._end_blocked)
            self._report(state, read.queues, delivery, seen)
        return self._with_contents(state)

    def _report(
        self,
        state: _FetchState,
        queues: Sequence[Queue],
        delivery: DeliveryFetch | None,
        seen: WorkerFetch | None,
    ) -> None:
        """Report what follows from a fetch, to its caller and to the callbacks."""
        for queue in state.permits.held_back:
            self._held_back(queue)
        if seen is not None:
            _tell_worker(seen, state)
        if delivery is not None:
            _tell(delivery, state)
        elif state.freed:
            for queue in queues:
                self._opened(queue.name)

    # --- order of the queues ---------------------------------------------------------------------

    def _plan(
        self, read: FetchContext, strategy: str | None, weights: Mapping[str, int] | None
    ) -> DispatchPlan:
        """Return the order in which queues are served. The pool's configuration has precedence."""
        if read.pool is not None:
            return self._planner.for_pool(read.pool, read.sequencer_state, read.worker)
        names = [queue.name for queue in read.queues]
        registered = read.worker.info if read.worker is not None else {}
        if strategy is None:
            strategy, weights = registered.get("strategy"), registered.get("weights")
        chosen = DispatchStrategy(strategy or DispatchStrategy.ROUND_ROBIN)
        return self._planner.for_request(names, chosen, weights or {})

    def _line_reader(
        self,
        plan: DispatchPlan,
        queues: Sequence[Queue],
        *,
        remembers: bool,
        seen: WorkerFetch | None,
    ) -> IndexReader:
        """Return a reader of the index partitions of these queues.

        The reader does not skip partitions that were empty recently if that could break a
        guarantee: with the strategy `strict`, new jobs of the first queue come before all jobs of
        the next one, and a starved queue is served.
        """
        strict = plan.strategy == DispatchStrategy.STRICT and len(queues) > 1
        lanes = [(queue.name, lane) for queue in queues for lane in range(queue.lanes)]
        remembers = remembers and not strict and not plan.rotates
        return self._empty_lines.reader(
            self._jobs.index,
            lanes,
            self._for_each,
            remembers=remembers,
            rung=() if seen is None else seen.rung,
            ahead_ms=0 if seen is None else AHEAD_MS,
        )

    def _claim_running(self, state: _FetchState, queues: Sequence[Queue]) -> None:
        """Claim jobs. Replace those of cancelled workflows by other jobs."""
        self._claim_all(state, queues)
        while self._drop_stopped(state) and state.wanted and state.plan.plain:
            self._claim_all(state, queues)

    def _claim_all(self, state: _FetchState, queues: Sequence[Queue]) -> None:
        plain = len(queues) == 1 and not state.permits.held
        if plain or state.plan.plain:
            for queue in queues:
                source = _CandidateSource(self._all_parts(state, queue), state.errors)
                while state.wanted and source.claim():
                    pass
            return
        strict = state.plan.strategy == DispatchStrategy.STRICT
        sources = {queue.name: _CandidateSource([], state.errors) for queue in queues}
        # While all permits of the pool are in use, only due jobs are read: expired leases release
        # permits.
        if not state.plan.full:
            for queue in queues:
                # With strict order the due jobs of a queue come before all jobs of the next queue.
                parts = self._all_parts(state, queue) if strict else self._ready_parts(state, queue)
                sources[queue.name].extend(parts)
            self._planner.serve(state.plan, sources, lambda: state.wanted)
            if strict or not state.wanted:
                return
        for queue in queues:
            due = [self._take_due(state, queue, lane) for lane in due_lanes(queue)]
            sources[queue.name].extend(due)
        self._planner.serve(state.plan, sources, lambda: state.wanted)

    def _ready_parts(self, state: _FetchState, queue: Queue) -> list[Iterator[_IdsOrJob]]:
        """Return the claims from the ready partition of each lane of a queue."""
        return [self._candidates(state, queue, lane) for lane in self._lanes(queue)]

    def _all_parts(self, state: _FetchState, queue: Queue) -> list[Iterator[_IdsOrJob]]:
        """Return the claims from the ready partition, then from the due partition, of each lane."""
        parts = []
        for lane in self._lanes(queue):
            parts.append(self._candidates(state, queue, lane))
            if lane in due_lanes(queue):
                parts.append(self._take_due(state, queue, lane))
        return parts

    def _lanes(self, queue: Queue) -> list[int]:
        """Return all lanes of a queue from a random one on, so that fetches spread over them."""
        if queue.lanes == 1:
            return [0]
        start = self._choose(queue.lanes)
        return [(start + step) % queue.lanes for step in range(queue.lanes)]

    # --- claim ------------------------------------------------------------------------------

    def _candidates(self, state: _FetchState, queue: Queue, lane: int) -> Iterator[_IdsOrJob]:
        """Claim jobs of one ready partition in order, one each time it is resumed."""
        after: Any = None
        # The queue with most jobs is served next. To find it, a full page of each partition is
        # read.
        deep = state.plan.strategy == DispatchStrategy.LEAST_LOADED
        aside = self._random_offset(queue.name, lane)
        limit = PAGE if deep else max(aside, min(state.wanted + _SPARE, PAGE))
        losses = 1 if aside else 0
        # Due jobs are merged with the jobs of the ready index.
        joining, more_due = self._newly_ready(state, queue, lane)
        pages = staged_pages = 0
        while pages < _MAX_PAGES and staged_pages < _MAX_STAGED_PAGES:
            found, following = state.lines.ready(queue.name, lane, limit=limit, after=after)
            waiting, staged, others = self._page(state, found, joining)
            self._make_way(state, waiting, more_due=more_due)
            joined, joining, more_due = joining, [], False
            staged_pages, pages = staged_pages + staged, pages + (not staged)
            after, limit = following, max(aside, PAGE)
            # Whether all jobs of the page have other types or are blocked by rate limits.
            blocked = bool(waiting) or others
            lost = False
            self._step_aside(waiting, aside)
            while waiting and not lost:
                yield [candidate.job_id for candidate in waiting]
                acquired = self._next(state, queue, waiting)
                if acquired is None:
                    break
                blocked = False
                job = self._claim(state, lane, acquired, waiting)
                self._claimed.add(acquired.candidate.entry)
                more = bool(waiting) or following is not None
                state.in_line[queue.name, queue.lanes] = more
                if job is not None or state.spent:
                    state.spent = False
                    yield job
                elif state.contended:
                    aside = self._lost(queue.name, lane)
                    self._step_aside(waiting, aside)
                    # The jobs come from a larger page, which was read before.
                    lost, losses = losses % _LOST_A_PAGE == 0, losses + 1
            if lost:
                after, joining = None, joined
                continue
            if waiting:
                state.cut |= not state.has_room(waiting[0].position)
                return
            if following is None:
                self._resume_at.forget((queue.name, lane))
                return
            if blocked:
                after = self._after_blocked_page(queue.name, lane, following, first=pages == 1)
        state.cut = True

    def _page(
        self, state: _FetchState, found: list[tuple[str, str]], joining: list[tuple[str, str]]
    ) -> tuple[list[Candidate], bool, bool]:
        """Return the claimable jobs of a page.

        Also returns whether all new jobs are still being stored, and whether the page has jobs of
        other types.
        """
        # Race: a due job was moved to the ready index after its due entry was read. It is claimed
        # at its new position, because its former position is remembered as claimed.
        entries = sorted(dict([*joining, *found]).items(), key=itemgetter(1)) if joining else found
        unclaimed = [
            candidate
            for job_id, key in entries
            if job_id not in state.tried
            and (position := _position(key)) is not None
            and (candidate := Candidate(job_id, position, key)).entry not in self._claimed
        ]
        stored = self._committed_only(unclaimed)
        waiting = self._of_types(state, stored) if state.types else stored
        self._permits.prefetch(state.permits, waiting)
        return waiting, bool(unclaimed) and not stored, len(waiting) < len(stored)

    def _next(self, state: _FetchState, queue: Queue, waiting: list[Candidate]) -> Acquired | None:
        """Acquire the permits for the next job to claim.

        Return None at the end of the page or the fetch.
        """
        while waiting:
            first = waiting[0]
            if not state.wanted or not state.has_room(first.position):
                return None
            if self._permits.is_blocked(state.permits, first):
                waiting.pop(0)
                continue
            acquired = self._permits.acquire(
                state.permits, queue, first, waiting[1:], wanted=state.wanted
            )
            if acquired is None and state.permits.exhausted(queue):
                return None
            waiting.pop(0)
            if acquired is not None:
                return acquired
        return None

    def _random_offset(self, queue: str, lane: int) -> int:
        """Return the number of first jobs among which a fetch starts.

        0: it starts at the first job.
        """
        until_ms, jobs = self._crowded.get((queue, lane), (0, 0))
        return jobs if self._clock.now_ms() < until_ms else 0

    def _lost(self, queue: str, lane: int) -> int:
        """Record that another fetch won a claim in a partition.

        For some seconds, fetches of this container then start at a random job. With each lost
        race, they choose among more jobs.
        """
        jobs = min(_MOST_ASIDE, max(_FIRST_ASIDE, 2 * self._random_offset(queue, lane)))
        self._crowded.put((queue, lane), (self._clock.now_ms() + _ASIDE_MS, jobs))
        return jobs

    def _step_aside(self, waiting: list[Candidate], aside: int) -> None:
        """Return the jobs from a random one of the first jobs on, to avoid competition between
        fetches.

        No job of a lower priority moves before the first job.
        """
        if aside and waiting:
            priority = waiting[0].position.priority
            same = sum(each.position.priority == priority for each in waiting[:aside])
            at = self._choose(same)
            waiting[:] = [*waiting[at:same], *waiting[:at], *waiting[same:]]

    def _after_blocked_page(self, queue: str, lane: int, following: Any, *, first: bool) -> Any:
        """Return where to continue in a partition after a page that rate limits block completely.

        Every fetch reads the first page. Then it continues where this container stopped before. A
        fetch reads at most `_MAX_PAGES` pages, but in this way several fetches skip any number of
        blocked jobs.
        """
        now_ms = self._clock.now_ms()
        if not first:
            self._resume_at.put((queue, lane), (now_ms, following))
            return following
        at_ms, resume = self._resume_at.get((queue, lane), (0, None))
        return resume if resume is not None and now_ms - at_ms < _RESUME_MS else following

    @staticmethod
    def _lease_ms(state: _FetchState, queue: Queue, position: Position) -> int:
        return state.visibility_ms or position.visibility_ms or queue.config.visibility_ms

    def _newly_ready(
        self, state: _FetchState, queue: Queue, lane: int
    ) -> tuple[list[tuple[str, str]], bool]:
        """Return the result of `_due` for a lane, at most once per second."""
        if lane not in due_lanes(queue):
            return [], False
        now_ms = self._clock.now_ms()
        last_ms = self._promoted_ms.get((queue.name, lane))
        if last_ms is not None and now_ms - last_ms < _DUE_EVERY_MS:
            return [], False
        self._promoted_ms.put((queue.name, lane), now_ms)
        return ([], False) if last_ms is None else self._due(state, queue, lane)

    def _committed_only(self, entries: list[Candidate]) -> list[Candidate]:
        """Return the entries without those of uncommitted batches, whose jobs do not exist yet."""
        tokens = {position.batch for _, position, _ in entries if position.batch is not None}
        staged = self._jobs.batches.uncommitted(tokens)
        return [entry for entry in entries if entry[1].batch not in staged]

    def _of_types(self, state: _FetchState, entries: list[Candidate]) -> list[Candidate]:
        """Return the entries with accepted job types. Reads each job record once."""
        unknown = [each.job_id for each in entries if self._types.get(each.job_id) is None]
        records = self._jobs.read_records(unknown, ignore_unreadable) if unknown else {}
        for job_id, job in records.items():
            self._types.put(job_id, job.type)
        return [each for each in entries if self._types.get(each.job_id) in state.types]

    def _claim(
        self,
        state: _FetchState,
        lane: int,
        acquired: Acquired,
        following: Sequence[Candidate] = (),
    ) -> Job | None:
        """Claim a job. `following` are the jobs that are likely to be claimed next."""
        queue, permits = acquired.queue, acquired.noted
        job_id, position, _ = acquired.candidate
        entry = acquired.candidate.entry
        # While a fetch has a permit, other fetches might wait. So no call is made between the
        # permit and the claim. A delivery keeps its permit much longer than one call takes, and the
        # call saves 1 or 2 WU.
        free = permits.run is None or permits.run.shards.keys() == {DELIVERY_PERMIT}
        noted = free and self._note(state, queue, acquired.candidate, following)
        # A rate-limited job starts at the time when its start was counted.
        now_ms = self._clock.now_ms() if acquired.start_ms is None else acquired.start_ms
        self._permits.commit(acquired)
        state.tried.add(job_id)
        try:
            job = self._jobs.claim(
                job_id,
                position,
                queue=queue.name,
                lane=state.lanes.get(entry, lane),
                now_ms=now_ms,
                lease_ms=self._lease_ms(state, queue, position),
                worker_id=state.worker_id,
                permits=permits,
                fenced=bool(queue.config.require_lease_token),
                noted=noted,
                due=state.due.get(entry),
            )
        except WriteNotApplied:
            self._permits.rollback(acquired, unknown=False)
            raise
        except UnreadableItem:
            # The job now has its lease and permits. The fetch skips it, and the sweep reports it
            # when its lease expires.
            state.lost += 1
            state.spent = True
            return None
        except LostRace as lost:
            # Race: an earlier attempt of the SDK might have claimed the job without a response, and
            # the job finished before the SDK repeated the request (`repeated`).
            state.lost += 1
            found = winner(lost, known_only=True)
            self._permits.rollback(acquired, unknown=lost.repeated)
            if lost.repeated and permits.run is not None:
                raise BackendUnavailable("The outcome of the claim of a job is unknown.") from None
            over = found is not None and found.state is State.AVAILABLE and expired(found, now_ms)
            state.contended = not over
            if over:
                self._transitions.apply(found)
            return None
        state.jobs.append(job)
        state.kib += _kib(position)
        return job

    def _note(
        self,
        state: _FetchState,
        queue: Queue,
        candidate: Candidate,
        following: Sequence[Candidate],
    ) -> bool:
        """Record the job of the next claim in a lease note.

        Return false if it gets a due entry instead.

        Raises:
            OjsError: The job must not be claimed.
        """
        # The sweep counts the jobs of a queue with a size limit from the index, so the job gets a
        # due entry.
        if queue.tracks_depth or self._ends_in_ms(state, queue, candidate) < SHORT_MS:
            return False
        now_ms = self._clock.now_ms()
        if 0 <= now_ms - state.noted.get(candidate.job_id, -VALID_MS) < VALID_MS:
            return True
        # The remaining jobs of this queue's part of the fetch. After a lost claim, a few more,
        # because another claim might be lost.
        share = -(-state.wanted // state.queues)
        most = min(MOST_JOBS, max(1, share + min(state.lost, _SPARE)))
        listed = [
            each
            for each in [candidate, *following][:most]
            if self._ends_in_ms(state, queue, each) >= SHORT_MS
        ]
        self._jobs.notes.write(
            queue.name,
            {each.job_id: each.key for each in listed},
            lease_ms=min(self._ends_in_ms(state, queue, each) for each in listed),
            now_ms=now_ms,
        )
        if self._clock.now_ms() - now_ms >= VALID_MS:
            # The note is not checked before this claim.
            raise BackendTimeout(
                "DynamoDB took too long to store a claim intent. The job was not claimed."
            )
        state.noted |= dict.fromkeys((each.job_id for each in listed), now_ms)
        return True

    def _ends_in_ms(self, state: _FetchState, queue: Queue, candidate: Candidate) -> int:
        """Return how long after its claim a job must be checked (ms)."""
        timeout_ms = candidate.position.timeout_ms or DEFAULT_TIMEOUT_MS
        return min(self._lease_ms(state, queue, candidate.position), timeout_ms)

    def _take_due(self, state: _FetchState, queue: Queue, lane: int) -> Iterator[_IdsOrJob]:
        """Apply time transitions in one lane and claim the jobs that become available."""
        ready, more = self._due(state, queue, lane)
        state.cut |= more
        for at, (job_id, key) in enumerate(sorted(ready, key=lambda entry: entry[1]), 1):
            state.in_line[queue.name, queue.lanes] = more or at < len(ready)
            candidate = Candidate(job_id, Position.parse(key), key)
            if self._permits.is_blocked(state.permits, candidate):
                continue
            yield [job_id]
            if not state.wanted or not state.has_room(candidate.position):
                state.cut = True
                return
            acquired = self._permits.acquire(state.permits, queue, candidate, wanted=1)
            if acquired is not None:
                claimed = self._claim(state, lane, acquired)
                if claimed is not None or state.spent:
                    state.spent = False
                    yield claimed
            elif state.permits.exhausted(queue):
                return

    def _due(
        self, state: _FetchState, queue: Queue, lane: int
    ) -> tuple[list[tuple[str, str]], bool]:
        """Fire cron jobs and apply time transitions to as many jobs of a lane as are wanted.

        A job that is due to start is claimed directly and gets the sort key of its due time. A job
        with a rate limit, or in a queue with round-robin over tenants, becomes `available` first,
        so that it stays in the ready index if it is not claimed.

        Returns:
            The (job ID, key in the ready index) of each job that can be claimed, and whether more
            jobs might be due.
        """
        limit = state.wanted + _SPARE
        found = state.lines.due(queue.name, lane, limit=limit)
        fired = self._fired(state, found.crons, queue.name, lane) if found.crons else []
        ready = [(job.id, items.position(job).key()) for job in fired if _takes(state, job)]
        records = self._jobs.read_records(found.jobs, ignore_unreadable) if found.jobs else {}
        # A job of a batch that is not committed does not exist, and may never.
        tokens = {job.batch for job in records.values() if job.batch is not None}
        staged = self._jobs.batches.uncommitted(tokens)
        for job_id in found.jobs:
            if not state.go_on():
                break
            record = records.get(job_id)
            if record is not None and record.batch in staged:
                continue
            fresh = job_id not in state.tried
            mine = record is not None and _takes(state, record)
            if record is not None and mine and fresh and self._starts_now(queue, lane, record):
                order = order_at(record.due_ms)
                position = items.position(lifecycle.promote(record, now_ms=0, order=order))
                key = position.key()
                state.due[job_id + key], state.lanes[job_id + key] = record, record.lane
                ready.append((job_id, key))
                continue
            settled = self._transitions.apply_indexed(record) if record is not None else None
            if job_id in state.tried:
                # Its lease expired during this fetch. The next fetch can claim the job.
                state.jobs = [job for job in state.jobs if job.id != job_id]
            elif mine and settled is not None and settled.state is State.AVAILABLE:
                key = items.position(settled).key()
                state.lanes[job_id + key] = settled.lane
                ready.append((job_id, key))
        return ready, len(found.jobs) == limit

    def _starts_now(self, queue: Queue, lane: int, job: Job) -> bool:
        """Return whether a job of the due index can be claimed before it becomes `available`."""
        now_ms = self._clock.now_ms()
        return (
            job.state in (State.SCHEDULED, State.RETRYABLE)
            and (job.queue, keys.due_lane(job.lane)) == (queue.name, lane)
            and job.due_ms <= now_ms
            and not expired(job, now_ms)
            and not job.gone(now_ms)
            and job.limit is None
            and queue.fairness is None
        )

    def _make_way(self, state: _FetchState, waiting: list[Candidate], *, more_due: bool) -> None:
        """If more jobs might be due, make the jobs available that this fetch can't claim.

        The next fetch then reads other entries of the due index.
        """
        for candidate in waiting[state.wanted :] if more_due else ():
            if (due := state.due.pop(candidate.entry, None)) is not None:
                waiting.remove(candidate)
                self._transitions.apply(due)

    def _fired(self, state: _FetchState, names: Sequence[str], queue: str, lane: int) -> list[Job]:
        """Fire cron jobs until the fetch has enough jobs. The sweep fires the others.

        Return the created jobs that are available in this lane.
        """
        found: list[Job] = []
        for name in names[: state.wanted + _SPARE]:
            if len(found) >= state.wanted or not state.go_on():
                break
            # A failing cron job delays no other job. The sweep reports it.
            with suppress(OjsError):
                job = self._fire(name)
                if job is not None and job.state is State.AVAILABLE:
                    found += [job] if (job.queue, job.lane) == (queue, lane) else []
        return found

    def _end_blocked(self, job: Job, decision: LimitDecision) -> None:
        """Postpone or drop a job whose rate limit is reached (ojs-rate-limiting section 6.2)."""
        now_ms = self._clock.now_ms()
        if job.state is not State.AVAILABLE or job.limit is None:
            return
        failure = None
        match job.limit.on_limit:
            case OnLimit.DROP:
                after, failure = lifecycle.give_up(job, now_ms=now_ms)
            case OnLimit.RESCHEDULE | OnLimit.WAIT:
                free_ms = decision.free_ms or now_ms + _UNKNOWN_MS
                after = lifecycle.postpone(job, until_ms=max(free_ms, now_ms + 1))
            case _:
                assert_never(job.limit.on_limit)
        # Race: a fetch that acquired a permit, a cancellation, a deadline. The loser changes
        # nothing.
        with suppress(LostRace):
            self._changes.replace(job, after, failure=failure)

    def _drop_stopped(self, state: _FetchState) -> bool:
        """Cancel the claimed jobs of cancelled workflows. Return whether there were any.

        The workflows are read after the claims. If a workflow is not cancelled by then, its job was
        claimed before the cancellation responds. If the read fails, no workflow job is dispatched.
        """
        steps = [job for job in state.jobs if job.workflow is not None]
        if not steps:
            return False
        try:
            stopped = self._stopped(steps)
        except OjsError:
            state.jobs = [job for job in state.jobs if job.workflow is None]
            for job in steps:
                self._transitions.give_back(job)
            raise
        dropped = {job.id for job in stopped}
        state.jobs = [job for job in state.jobs if job.id not in dropped]
        state.lost += len(dropped)
        state.dropped = state.dropped or bool(dropped)
        for job in stopped:
            # Race: its lease expires. The next claim then cancels it, also if this call fails.
            with suppress(LostRace, OjsError):
                after = lifecycle.cancel(job, now_ms=self._clock.now_ms())
                self._changes.replace(job, after, guard="lease")
        return bool(dropped)

    def _fitting(self, state: _FetchState, jobs: list[Job]) -> list[Job]:
        """Release the jobs whose checkpoints make the response too large, but not the first."""
        kib = state.kib
        for at, job in enumerate(jobs):
            kib += 0 if job.checkpoint is None else job.checkpoint.shown_bytes // 1024
            if at and kib > _MAX_ANSWER_KIB:
                for each in jobs[at:]:
                    self._transitions.give_back(each)
                return jobs[:at]
        return jobs

    def _with_contents(self, state: _FetchState) -> list[Job]:
        """Return the claimed jobs with their contents. A job without content is not dispatched."""
        damaged: dict[str, UnreadableItem] = {}
        try:
            jobs = self._jobs.with_contents(state.jobs, damaged.setdefault)
            jobs = self._jobs.with_checkpoints(jobs, damaged.setdefault)
            jobs = self._fitting(state, jobs)
        except OjsError:
            # The worker doesn't receive these jobs, so they are requeued before their leases
            # expire. If that fails, too, the leases still expire.
            for job in state.jobs:
                self._transitions.give_back(job)
            raise
        missing = [job for job in jobs if job.content is None]
        for job in missing:
            # A job with unreadable content is skipped and dispatched again when its lease expires:
            # the content might be in the format of a newer version.
            if f"job {job.id}" not in damaged:
                self._transitions.end_without_content(job)
        return [job for job in jobs if job.content is not None] if missing else jobs
