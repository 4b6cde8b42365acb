"""Job-level rate limits: what one fetch may claim, and what an operator sees and overrides.

Jobs without a limit cost nothing here. For limited jobs a fetch reads the state of their keys (one
call for a page of the line), acquires permits before it claims (one write for all jobs of the page
with one limit), and releases the permits it did not use.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import assert_never

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.errors import NotFound, OjsError
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.domain.rate_limit.limiter import (
    CONCURRENCY,
    LimitBounds,
    LimitDecision,
    LimiterState,
    LimitSpec,
    OnLimit,
    Override,
    RateLimit,
    cell_name,
    permit_name,
)
from ojs.store.jobs.records import JobStore
from ojs.store.permits.key_limits import KeyLimits, LimitGrant, LimitRequest, unchanged
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.table.errors import LostRace
from ojs.store.table.keys import Position

# Jobs that one fetch postpones or drops, where their limit says so.
_ENDED_AT_ONCE = 10
# Jobs for which one write acquires permits: DynamoDB takes expressions of 4 KB.
_ACQUIRED_AT_ONCE = 25
# How long a job is postponed when it is unknown when there will be room.
_UNKNOWN_MS = 5_000
# How often each container registers a key, for each kind of limit.
_REGISTER_EVERY_MS = 86_400_000
_REMEMBERED = 10_000
_LINE_PAGES = 5
# Characters.
_MAX_REASON = 1_000

Entry = tuple[str, Position]


@dataclass
class FetchRateLimitState:
    """What one fetch knows of the limits of the jobs it has seen."""

    limiters: dict[str, LimiterState] = field(default_factory=dict)
    specs: dict[str, LimitSpec] = field(default_factory=dict)
    # By spec: no more jobs of these now.
    blocked: dict[str, LimitDecision] = field(default_factory=dict)
    # Permits to claim jobs with, each with its grant.
    open: dict[str, LimitGrant] = field(default_factory=dict)
    overdue: dict[str, LimitDecision] = field(default_factory=dict)
    # By key: why a job of the key had to wait, and which; a job that may run though others had to
    # wait before.
    waiting: dict[str, tuple[LimitDecision, str]] = field(default_factory=dict)
    cleared: dict[str, str] = field(default_factory=dict)
    skipped: int = 0

    def spec(self, text: str) -> LimitSpec:
        """The limit spec of a sort key, parsed once."""
        if text not in self.specs:
            self.specs[text] = LimitSpec.of(text)
        return self.specs[text]


class FetchRateLimits:
    """Acquires permits of job-level limits for fetches."""

    def __init__(
        self,
        *,
        store: KeyLimits,
        jobs: JobStore,
        clock: Clock,
        states: ThrottleStates,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._store = store
        self._states = states
        self._jobs = jobs
        self._clock = clock
        self._choose = choose

    def prefetch(self, state: FetchRateLimitState, positions: Iterable[Position]) -> None:
        """Read the limiters of these jobs' keys, except those read already. One call."""
        names = {state.spec(p.limit).cell for p in positions if p.limit is not None}
        if unknown := names - state.limiters.keys():
            state.limiters |= self._store.get_many(sorted(unknown))

    def is_blocked(self, state: FetchRateLimitState, job_id: str, position: Position) -> bool:
        """Whether it is known already that this job's limit is reached; costs nothing."""
        if position.limit is None or position.limit not in state.blocked:
            return False
        if permit_name(job_id, position.order) in state.open:
            # The limit is reached because this job, further down the line, has a permit.
            return False
        self._skip(state, job_id, position.limit, state.blocked[position.limit])
        return True

    def acquire(
        self,
        state: FetchRateLimitState,
        entry: Entry,
        following: Sequence[Entry],
        *,
        wanted: int,
        lease: Callable[[Position], int],
    ) -> LimitGrant | None:
        """The grant to claim this job with; None if it must wait.

        Acquires also for jobs that follow with the same limit, up to `wanted` in all. `lease`
        returns the length of the lease, in ms, of a job at a position. Raises OjsError.
        """
        job_id, position = entry
        limit = position.limit or ""
        if (permit := permit_name(job_id, position.order)) in state.open:
            return state.open[permit]
        spec = state.spec(limit)
        alike = [entry]
        alike += [
            (other, p)
            for other, p in following
            if p.limit == limit and permit_name(other, p.order) not in state.open
        ]
        most = max(1, min(wanted - len(state.open), _ACQUIRED_AT_ONCE))
        requests = [LimitRequest(other, p.order, lease(p)) for other, p in alike[:most]]
        limiter = state.limiters.get(spec.cell) or LimiterState()
        for repaired in (False, True):
            now_ms = self._clock.now_ms()
            grant, decision, limiter = self._store.acquire(
                spec.cell, spec.bounds, requests, now_ms=now_ms, seen=limiter
            )
            if (
                repaired
                or grant is not None
                or not self._repaired(spec.cell, limiter, decision, now_ms)
            ):
                break
            limiter = self._store.get(spec.cell) or LimiterState()
        state.limiters[spec.cell] = limiter
        if grant is not None:
            state.open |= dict.fromkeys(grant.names, grant)
            if limiter.throttled_since_ms is not None and self._has_room(
                state, spec, grant, entry, following
            ):
                state.cleared[spec.cell] = job_id
            if permit in grant.names:
                return grant
            # A permit left by a crashed fetch was reused for an earlier job.
            return None
        if decision.strategy:
            state.blocked[limit] = decision
            state.waiting.setdefault(spec.cell, (decision, job_id))
        self._skip(state, job_id, limit, decision)
        return None

    def _has_room(
        self,
        state: FetchRateLimitState,
        spec: LimitSpec,
        grant: LimitGrant,
        entry: Entry,
        following: Sequence[Entry],
    ) -> bool:
        """Whether a key throttles no more: there is room for more jobs, or what was read of the
        line has no other job of the key.
        """
        if grant.after.room(spec.bounds, self._clock.now_ms(), 1).count:
            return True
        return not any(
            p.limit is not None
            and state.spec(p.limit).cell == spec.cell
            and permit_name(other, p.order) not in state.open
            for other, p in (entry, *following)
        )

    def _repaired(
        self, name: str, limiter: LimiterState, decision: LimitDecision, now_ms: int
    ) -> bool:
        if decision.strategy != CONCURRENCY:
            return False
        return self._store.repair(
            name, limiter, self._jobs.heads, now_ms=now_ms, choose=self._choose
        )

    def _skip(
        self, state: FetchRateLimitState, job_id: str, limit: str, decision: LimitDecision
    ) -> None:
        state.skipped += 1
        wants_more = (
            state.spec(limit).on_limit is not OnLimit.WAIT and len(state.overdue) < _ENDED_AT_ONCE
        )
        if wants_more and decision.strategy:
            state.overdue[job_id] = decision

    @staticmethod
    def commit(state: FetchRateLimitState, job_id: str, position: Position) -> LimitGrant | None:
        """Use the grant of a job that is about to be claimed; None for one without a limit.

        If the result of the claim is unknown, the permit is not released.
        """
        if position.limit is None:
            return None
        return state.open.pop(permit_name(job_id, position.order))

    def rollback(
        self,
        grant: LimitGrant | None,
        job_id: str,
        position: Position,
        there: Job | None,
        *,
        started: bool,
    ) -> None:
        """Release the permit of a job that was not claimed; `there` is the job now.

        `started` says that an earlier attempt may have claimed it, and the job has ended since:
        that counts as a start.
        """
        if grant is None:
            return
        permit = permit_name(job_id, position.order)
        if there is not None and there.state is State.ACTIVE and there.place == permit:
            # The job runs with this very permit.
            return
        self._store.roll_back(grant, [permit], started=started)

    def close(self, state: FetchRateLimitState) -> None:
        """Release the permits that were not used, record limits that start or stop throttling, and
        postpone or drop jobs whose limit says so.
        """
        unused: dict[int, tuple[LimitGrant, list[str]]] = {}
        for permit, grant in state.open.items():
            unused.setdefault(id(grant), (grant, []))[1].append(permit)
        for grant, permits in unused.values():
            self._store.roll_back(grant, permits)
        state.open.clear()
        # A failure here must not lose the jobs that were claimed.
        with suppress(OjsError):
            self._record_throttling(state)
        if not state.overdue:
            return
        try:
            heads = self._jobs.heads(state.overdue)
            for job_id, job in heads.items():
                self._end(job, state.overdue[job_id])
        except OjsError:
            # They stay available; the next fetch tries again.
            return
        finally:
            state.overdue.clear()

    def _record_throttling(self, state: FetchRateLimitState) -> None:
        """Record keys that start or stop throttling."""
        now_ms = self._clock.now_ms()
        for name, (decision, job_id) in state.waiting.items():
            limiter = state.limiters[name]
            if limiter.throttled_since_ms is None and limiter.key is not None:
                self._states.mark_throttled(
                    LimitName.of_key(limiter.key),
                    strategy=decision.strategy,
                    limit=decision.limit,
                    current=decision.current,
                    job_id=job_id,
                    now_ms=now_ms,
                    unchanged=unchanged(limiter),
                )
        for name, job_id in state.cleared.items():
            limiter = state.limiters[name]
            if name not in state.waiting and limiter.key is not None:
                self._states.clear(
                    LimitName.of_key(limiter.key),
                    job_id=job_id,
                    since_ms=limiter.throttled_since_ms,
                    now_ms=now_ms,
                )
        state.waiting.clear()
        state.cleared.clear()

    def _end(self, job: Job, decision: LimitDecision) -> None:
        """Postpone or drop a job (ojs-rate-limiting section 6.2)."""
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
        # Race: a fetch that found room after all, a cancel, a deadline. The loser changes nothing.
        try:
            self._jobs.replace(job, after, failure=failure)
        except LostRace:
            return


@dataclass(frozen=True)
class RateLimitStatus:
    """A key's limits and their use at a time. `waiting` is None where it was not counted."""

    key: str
    cell: LimiterState
    now_ms: int
    waiting: int | None = None
    waiting_exact: bool = True

    @property
    def bounds(self) -> LimitBounds:
        """The bounds that apply: those of the job pushed last, under the override."""
        return self.cell.in_force(self.cell.bounds, self.now_ms)


class RateLimits:
    """Registers keys, shows them, pauses and overrides them."""

    def __init__(
        self, *, store: KeyLimits, jobs: JobStore, lanes: Callable[[str], int], clock: Clock
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._lanes = lanes
        self._clock = clock
        self._known: BoundedMap[tuple[str, str], int] = BoundedMap(_REMEMBERED)

    def register(self, jobs: Iterable[tuple[RateLimit, str]]) -> None:
        """Register the keys of jobs that are about to be pushed, each with its queue."""
        now_ms = self._clock.now_ms()
        for limit, queue in dict.fromkeys(jobs):
            kind = (limit.compact(), queue)
            if now_ms - self._known.get(kind, -_REGISTER_EVERY_MS) < _REGISTER_EVERY_MS:
                continue
            self._store.register(limit, queue, now_ms=now_ms)
            self._known.put(kind, now_ms)

    def pause(self, job: Job, until_ms: int, reason: str) -> None:
        """Start no job of this job's key before `until_ms`; `reason` is for the event."""
        now_ms = self._clock.now_ms()
        if job.limit is not None and until_ms > now_ms:
            self._store.pause(job, until_ms=until_ms, reason=reason[:_MAX_REASON], now_ms=now_ms)

    def status(self, limit: RateLimit, queue: str) -> RateLimitStatus:
        """The status of a job's key; may be a moment old."""
        key = limit.key_in(queue)
        limiter = self._store.get(cell_name(key), consistent=False) or LimiterState()
        return RateLimitStatus(key, limiter, self._clock.now_ms())

    def get(self, key: str) -> RateLimitStatus:
        """The status of a key, and how many jobs wait for it. Raises NotFound."""
        limiter = self._store.get(cell_name(key))
        if limiter is None:
            raise NotFound("rate_limit", key)
        waiting, exact = self.waiting(cell_name(key), limiter.queues)
        return RateLimitStatus(key, limiter, self._clock.now_ms(), waiting, exact)

    def list(self, *, limit: int, cursor: str | None = None) -> Page[RateLimitStatus]:
        """A page of keys in order, without how many jobs wait for each."""
        names, following = self._store.keys(limit=limit, after=cursor)
        limiters = self._store.get_many(cell_name(key) for key in names)
        now_ms = self._clock.now_ms()
        shown = [RateLimitStatus(key, limiters[cell_name(key)], now_ms) for key in names]
        return Page(shown, following)

    def override(self, key: str, override: Override) -> RateLimitStatus:
        """Override the bounds of a key's jobs; replaces an earlier override."""
        now_ms = self._clock.now_ms()
        return RateLimitStatus(key, self._store.override(key, override, now_ms=now_ms), now_ms)

    def lift(self, key: str) -> RateLimitStatus:
        """Remove the override and the pause of a key. Raises NotFound."""
        limiter = self._store.lift(key)
        if limiter is None:
            raise NotFound("rate_limit", key)
        return RateLimitStatus(key, limiter, self._clock.now_ms())

    def waiting(self, name: str, queues: Sequence[str]) -> tuple[int, bool]:
        """How many available jobs of a key are in the first pages of its queues; whether in all."""
        count, exact = 0, True
        for queue in queues:
            for lane in range(self._lanes(queue)):
                found, whole = self._in_line(name, queue, lane)
                count, exact = count + found, exact and whole
        return count, exact

    def _in_line(self, name: str, queue: str, lane: int) -> tuple[int, bool]:
        count, after = 0, None
        for _ in range(_LINE_PAGES):
            entries, after = self._jobs.index.ready(queue, lane, limit=200, after=after)
            limits = (Position.parse(key).limit for _, key in entries)
            count += sum(1 for limit in limits if limit and LimitSpec.of(limit).cell == name)
            if after is None:
                return count, True
        return count, False


def registered(jobs: Iterable[Job]) -> list[tuple[RateLimit, str]]:
    """The limits of jobs, with their queues."""
    return [(job.limit, job.queue) for job in jobs if job.limit is not None]
