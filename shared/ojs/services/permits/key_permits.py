"""Job-level rate limits: the permits and starts of the jobs that one fetch claims.

Jobs without a limit cost nothing here. For limited jobs a fetch reads the state of their keys (one
call for a page of the line). Before it claims, it acquires permits where running jobs are limited,
and counts starts where these are: one write of each kind for all jobs of the page with one limit.
It gives back what it did not use.

A key's permits are those of a semaphore with the shards of its largest limit. A job with a smaller
limit may take permits of the first shards only, so all of them are read before it: it starts while
fewer jobs of the key run than its limit says, except for those that are started at that moment.
Where all jobs have one limit, it is never passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import NamedTuple

from ojs.clock import Clock
from ojs.domain.errors import OjsError
from ojs.domain.job.job import Job
from ojs.domain.rate_limit.limiter import (
    CONCURRENCY,
    LimitBounds,
    LimitDecision,
    LimiterState,
    LimitSpec,
    OnLimit,
    limiter_name,
)
from ojs.records import record
from ojs.services.permits.semaphore_permits import SemaphorePermits, SemaphoreUse
from ojs.store.jobs.reading import JobReader
from ojs.store.permits.counter_items import ANY_VERSION
from ojs.store.permits.key_limits import KEPT_S, KeyLimits, StartGrant, unchanged
from ojs.store.permits.semaphore import SHARD_PERMITS
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.table import keys
from ojs.store.table.keys import Position

# Jobs that one fetch postpones or drops, where their limit says so.
_ENDED_AT_ONCE = 10
# Jobs for which one write acquires permits: DynamoDB takes expressions of 4 KB.
_ACQUIRED_AT_ONCE = 25
# Shards that one fetch heals, where it found no room in all of them.
_HEALED_AT_ONCE = 2


class Candidate(NamedTuple):
    """A job that a fetch might claim, and its position in the ready line, with the stored `key`."""

    job_id: str
    position: Position
    key: str

    @property
    def entry(self) -> str:
        """The job at this position: it differs from the same job at another one."""
        return self.job_id + self.key


@record(frozen=True)
class KeyGrant:
    """What some jobs with one limit may be claimed with: permits of a semaphore, and starts that
    were counted; None where jobs take no permits, or starts are not counted.
    """

    limiter: str
    semaphore: SemaphoreUse | None
    starts: StartGrant | None


@record
class KeyPermitUse:
    """What one fetch knows of the limits of the jobs it has seen."""

    limiters: dict[str, LimiterState] = field(default_factory=dict)
    specs: dict[str, LimitSpec] = field(default_factory=dict)
    # By spec: no more jobs of these now.
    blocked: dict[str, LimitDecision] = field(default_factory=dict)
    # By spec: the permits.
    semaphores: dict[str, SemaphoreUse] = field(default_factory=dict)
    # By job that can be claimed.
    open: dict[str, KeyGrant] = field(default_factory=dict)
    # Jobs to postpone or drop, because their limit is reached.
    overdue: dict[str, LimitDecision] = field(default_factory=dict)
    # By key: why a job of the key had to wait, and which; a job that may run though others had to
    # wait before.
    waiting: dict[str, tuple[LimitDecision, str]] = field(default_factory=dict)
    cleared: dict[str, str] = field(default_factory=dict)

    def spec(self, text: str) -> LimitSpec:
        """The limit spec of a sort key, parsed once."""
        if text not in self.specs:
            self.specs[text] = LimitSpec.of(text)
        return self.specs[text]


class KeyPermits:
    """Acquires and releases permits of job-level rate limits."""

    def __init__(
        self,
        *,
        key_limits: KeyLimits,
        semaphores: SemaphorePermits,
        jobs: JobReader,
        clock: Clock,
        throttle_states: ThrottleStates,
    ) -> None:
        self._store = key_limits
        self._semaphores = semaphores
        self._states = throttle_states
        self._jobs = jobs
        self._clock = clock

    def prefetch(self, use: KeyPermitUse, candidates: Iterable[Candidate]) -> None:
        """Read the limiters of these jobs' keys, except those read already. One call.

        Of a limit whose permits are in one shard this is read along: while there is no room, other
        fetches write nothing.
        """
        limits: dict[str, int | None] = {}
        for limit in dict.fromkeys(candidate.position.limit for candidate in candidates):
            if limit is None or (spec := use.spec(limit)).limiter in use.limiters:
                continue
            most = spec.bounds.concurrency
            small = most is not None and most <= SHARD_PERMITS
            limits[spec.limiter] = most if small else limits.get(spec.limiter)
        if limits:
            use.limiters |= self._store.get_many(limits, whole=False)

    def is_blocked(self, use: KeyPermitUse, candidate: Candidate) -> bool:
        """Whether it is known already that this job's limit is reached; costs nothing."""
        limit = candidate.position.limit
        if limit is None or limit not in use.blocked:
            return False
        if candidate.job_id in use.open:
            # The limit is reached because this job, further down the line, has a permit.
            return False
        self._pass_over(use, candidate.job_id, limit, use.blocked[limit])
        return True

    def acquire(
        self,
        use: KeyPermitUse,
        candidate: Candidate,
        following: Sequence[Candidate],
        *,
        run: Callable[[], str],
        wanted: int,
    ) -> KeyGrant | None:
        """The grant to claim this job with, which has a limit; None if it must wait.

        Acquires also for jobs that follow with the same limit, up to `wanted` in all. `run` returns
        the token of the fetch. Raises OjsError.
        """
        job_id, limit = candidate.job_id, candidate.position.limit or ""
        if job_id in use.open:
            return use.open[job_id]
        spec = use.spec(limit)
        alike = [c.job_id for c in following if c.position.limit == limit]
        job_ids = [job_id, *(other for other in alike if other not in use.open)]
        job_ids = job_ids[: max(1, min(wanted - len(use.open), _ACQUIRED_AT_ONCE))]
        now_ms = self._clock.now_ms()
        decision = self._room(use, spec, len(job_ids), now_ms)
        limiter, granted = use.limiters[spec.limiter], job_ids[: decision.count]
        most, semaphore, starts = limiter.permits(spec.bounds, now_ms), None, None
        active = limiter.active
        if granted and most is not None:
            if limit not in use.semaphores:
                use.semaphores[limit] = _semaphore_use(spec.limiter, limiter, most, run())
            semaphore = use.semaphores[limit]
            grant = self._semaphores.acquire(semaphore, granted)
            granted = [job_id for job_id in granted if job_id in semaphore.permits]
            # Where some were granted, shards that were not tried may have more.
            known = not granted or most <= SHARD_PERMITS
            current = grant.current if known else 0
            active = max(active + len(granted), current + len(limiter.left))
            if not granted:
                # Race: others acquired what was free. Whether there is room is not known then.
                full = active >= most
                decision = LimitDecision(0, CONCURRENCY, most, active) if full else LimitDecision(0)
        if granted and limiter.counts_starts(spec.bounds, now_ms):
            starts, decision, limiter = self._store.count_starts(
                spec.limiter, spec.bounds, len(granted), now_ms=now_ms, seen=limiter
            )
            count = starts.count if starts is not None else 0
            if semaphore is not None and count < len(granted):
                self._semaphores.release_unused(semaphore, most=len(granted) - count)
                active -= len(granted) - count
            granted = granted[:count]
        use.limiters[spec.limiter] = replace(limiter, active=active)
        if not granted:
            if decision.strategy:
                use.blocked[limit] = decision
                use.waiting.setdefault(spec.limiter, (decision, job_id))
            self._pass_over(use, job_id, limit, decision)
            return None
        use.open |= dict.fromkeys(granted, KeyGrant(spec.limiter, semaphore, starts))
        if limiter.throttled_since_ms is not None and self._has_room(
            use, spec, (candidate, *following)
        ):
            use.cleared[spec.limiter] = job_id
        return use.open[job_id]

    def _room(self, use: KeyPermitUse, spec: LimitSpec, wanted: int, now_ms: int) -> LimitDecision:
        """How many of so many jobs may start, as far as is known before permits are acquired."""
        name, bounds = spec.limiter, spec.bounds
        limiter = self._seen(name, use.limiters[name], bounds, now_ms)
        decision = limiter.room(bounds, now_ms, wanted)
        full = decision.strategy == CONCURRENCY and not decision.count
        if full and limiter.look_ms is not None and limiter.look_ms <= now_ms:
            # What no job runs with is not to keep others waiting.
            shards = {"limit": max(limiter.most, decision.limit), "most": _HEALED_AT_ONCE}
            if self._semaphores.store.heal_all(keys.limiter(name), now_ms=now_ms, **shards):
                limiter = self._store.get_many({name: decision.limit})[name]
                decision = limiter.room(bounds, now_ms, wanted)
        use.limiters[name] = limiter
        return decision

    def _seen(
        self, name: str, limiter: LimiterState, bounds: LimitBounds, now_ms: int
    ) -> LimiterState:
        """A limiter with as many permits read as matters to a job with these bounds."""
        limit = limiter.permits(bounds, now_ms)
        if limit is None or limit <= SHARD_PERMITS >= limiter.most:
            return limiter
        if limit == limiter.most and limiter.throttled_since_ms is None:
            # Most likely there is room: the shards tell.
            return limiter
        if limit <= limiter.most:
            return self._store.get_many({name: limit})[name]
        # Before any permit is acquired that whoever has a smaller limit would not look for.
        self._store.raise_most(name, limit)
        return replace(limiter, most=limit)

    def _has_room(
        self, use: KeyPermitUse, spec: LimitSpec, candidates: Sequence[Candidate]
    ) -> bool:
        """Whether a key throttles no more: there is room for more jobs, or what was read of the
        line has no other job of the key.
        """
        if use.limiters[spec.limiter].room(spec.bounds, self._clock.now_ms(), 1).count:
            return True
        return not any(
            c.position.limit is not None
            and use.spec(c.position.limit).limiter == spec.limiter
            and c.job_id not in use.open
            for c in candidates
        )

    @staticmethod
    def _pass_over(use: KeyPermitUse, job_id: str, limit: str, decision: LimitDecision) -> None:
        """Note a job that is to be postponed or dropped, as its limit is reached."""
        waits = use.spec(limit).on_limit is OnLimit.WAIT
        if not waits and len(use.overdue) < _ENDED_AT_ONCE and decision.strategy:
            use.overdue[job_id] = decision

    @staticmethod
    def commit(use: KeyPermitUse, job_id: str) -> None:
        """Use what was granted for a job that is about to be claimed.

        If the result of the claim is unknown, it is not given back.
        """
        grant = use.open.pop(job_id, None)
        if grant is not None and grant.semaphore is not None:
            grant.semaphore.used.add(job_id)

    def rollback(self, use: KeyPermitUse, grant: KeyGrant | None, job_id: str) -> None:
        """Give back what was granted for a job that was not claimed, so that it is there for the
        next one.
        """
        if grant is None:
            return
        if grant.semaphore is not None:
            self._semaphores.release_one(grant.semaphore, job_id)
            limiter = use.limiters[grant.limiter]
            use.limiters[grant.limiter] = replace(limiter, active=max(0, limiter.active - 1))
        if grant.starts is not None:
            self._store.roll_back(grant.starts, 1)

    def close(self, use: KeyPermitUse, end: Callable[[Job, LimitDecision], None]) -> None:
        """Release the permits that were not used, record limits that start or stop throttling, and
        have `end` postpone or drop the jobs whose limit says so.
        """
        for semaphore in use.semaphores.values():
            self._semaphores.release_unused(semaphore)
        starts = [grant.starts for grant in use.open.values() if grant.starts is not None]
        for grant in {id(each): each for each in starts}.values():
            self._store.roll_back(grant, sum(each is grant for each in starts))
        # A failure here must not lose the jobs that were claimed.
        with suppress(OjsError):
            self._record_throttling(use)
        # After a failure they stay available; the next fetch tries again.
        with suppress(OjsError):
            for job_id, job in self._jobs.read_records(use.overdue).items():
                end(job, use.overdue[job_id])

    def release_left(self, job: Job) -> None:
        """Release the permit of a job that version 0.2 claimed."""
        self._store.release_left(job)

    def to_resume(self, job: Job, run: str, *, now_ms: int) -> SemaphoreUse | None:
        """What is to be acquired for a job that goes on after its lease ended; None if nothing. It
        has started before: rate, spacing and pause do not apply.
        """
        if job.limit is None:
            return None
        name = limiter_name(job.limit.key_in(job.queue))
        bounds = LimitBounds(concurrency=job.limit.bounds.concurrency)
        limiter = self._store.get_many({name: None}, whole=False)[name]
        limiter = self._seen(name, limiter, bounds, now_ms)
        limit = limiter.permits(bounds, now_ms)
        if limit is None:
            return None
        return _semaphore_use(name, limiter, limit if limiter.active < limit else 0, run)

    def heal(self, name: str, limiter: LimiterState, *, now_ms: int) -> None:
        """Release the permits of a key whose jobs do not run with them. Raises OjsError."""
        if limiter.look_ms is not None and limiter.look_ms <= now_ms:
            limit = max(1, limiter.most)
            self._semaphores.store.heal_all(keys.limiter(name), limit, now_ms=now_ms, most=limit)
        self._store.drop_left(name, limiter, self._jobs.read_records, now_ms=now_ms)

    def _record_throttling(self, use: KeyPermitUse) -> None:
        """Record keys that start or stop throttling."""
        now_ms = self._clock.now_ms()
        for name, (decision, job_id) in use.waiting.items():
            limiter = use.limiters[name]
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
        for name, job_id in use.cleared.items():
            limiter = use.limiters[name]
            if name not in use.waiting and limiter.key is not None:
                self._states.clear(
                    LimitName.of_key(limiter.key),
                    job_id=job_id,
                    since_ms=limiter.throttled_since_ms,
                    now_ms=now_ms,
                )


def _semaphore_use(name: str, limiter: LimiterState, limit: int, run: str) -> SemaphoreUse:
    """A fetch's use of a key's permits, for jobs with this limit."""
    free = max(0, limit - len(limiter.left))
    # Jobs may be dropped when they are refused, so that must be for a reason.
    return SemaphoreUse(keys.limiter(name), free, ANY_VERSION, run, KEPT_S, exact=True)
