"""Job-level rate limits: acquires the permits and starts for the jobs that one fetch claims.

Jobs without a limit need no request here. For jobs with a limit, a fetch reads the state of their
keys, with one call per page of the index. Before a claim, it acquires permits if there is a
concurrency limit, and counts starts if there is a rate. It makes one write of each kind for all
jobs of the page with the same limit. At its end it releases unused permits and starts.

A key's permits are stored in a semaphore with the shards of the key's largest limit. A job with a
smaller limit can use only permits of the first shards. All shards are read before, and the job
starts if fewer jobs of the key are active than its limit allows. Jobs that start at the same moment
are not counted by this read. If all jobs have the same limit, the limit is never exceeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from ojs.clock import Clock
from ojs.domain.errors import OjsError
from ojs.domain.job.job import Job
from ojs.domain.job.permits import KEY_PERMIT
from ojs.domain.rate_limit.limiter import (
    CONCURRENCY,
    LimitBounds,
    LimitDecision,
    LimiterState,
    LimitSpec,
    OnLimit,
    limiter_name,
)
from ojs.services.permits.kinds import Candidate, FetchPermits, KeyGrant, SemaphoreUse
from ojs.services.permits.semaphore_permits import SemaphorePermits
from ojs.store.jobs.reading import JobReader
from ojs.store.permits.counter_items import ANY_VERSION, PermitGrant
from ojs.store.permits.key_limits import KeyLimits, unchanged
from ojs.store.permits.semaphore import SHARD_PERMITS
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.table import keys

# Maximum number of jobs that one fetch postpones or drops, if their limit is configured to do so.
_ENDED_AT_ONCE = 10
# Maximum number of jobs for which one write acquires permits. DynamoDB accepts expressions of up to
# 4 KB.
_ACQUIRED_AT_ONCE = 25
# Maximum number of shards that one fetch repairs, if it found all of them full.
_HEALED_AT_ONCE = 2


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

    def prefetch(self, fetch: FetchPermits, candidates: Iterable[Candidate]) -> None:
        """Read the limiters of these jobs' keys in one call. Skip limiters that were read before.

        If the permits of a limit are in one shard, this shard is read in the same call. While the
        limit is reached, other fetches then write nothing.
        """
        limits: dict[str, int | None] = {}
        for limit in dict.fromkeys(candidate.position.limit for candidate in candidates):
            if limit is None or (spec := LimitSpec.of(limit)).limiter in fetch.limiters:
                continue
            most = spec.bounds.concurrency
            small = most is not None and most <= SHARD_PERMITS
            limits[spec.limiter] = most if small else limits.get(spec.limiter)
        if limits:
            fetch.limiters |= self._store.get_many(limits, whole=False)

    def is_blocked(self, fetch: FetchPermits, candidate: Candidate) -> bool:
        """Return whether this job's limit is already known to be reached. Makes no request."""
        limit = candidate.position.limit
        if limit is None or limit not in fetch.blocked:
            return False
        if candidate.job_id in fetch.open:
            # The limit is reached, because this job already has a permit. It is listed again, later
            # in the index.
            return False
        self._pass_over(fetch, candidate.job_id, limit, fetch.blocked[limit])
        return True

    def acquire(
        self,
        fetch: FetchPermits,
        candidate: Candidate,
        following: Sequence[Candidate],
        *,
        wanted: int,
    ) -> KeyGrant | None:
        """Acquire the grant to claim a job that has a limit.

        Also acquires permits and starts for the following jobs with the same limit.

        Args:
            fetch: State of the fetch.
            candidate: The job to claim.
            following: Jobs that the fetch may claim after it.
            wanted: Maximum number of unused grants of the fetch, including earlier ones.

        Returns:
            The grant. None if the limit is reached and the job must wait.

        Raises:
            OjsError: A read or a write failed.
        """
        job_id, limit = candidate.job_id, candidate.position.limit or ""
        if job_id in fetch.open:
            return fetch.open[job_id]
        spec = LimitSpec.of(limit)
        alike = [c.job_id for c in following if c.position.limit == limit]
        job_ids = [job_id, *(other for other in alike if other not in fetch.open)]
        job_ids = job_ids[: max(1, min(wanted - len(fetch.open), _ACQUIRED_AT_ONCE))]
        now_ms = self._clock.now_ms()
        decision = self._room(fetch, spec, len(job_ids), now_ms)
        limiter, granted = fetch.limiters[spec.limiter], job_ids[: decision.count]
        most, semaphore, starts = limiter.permits(spec.bounds, now_ms), None, None
        active = limiter.active
        if granted and most is not None:
            at = KEY_PERMIT, limit
            semaphore = fetch.uses.get(at) or _use(spec.limiter, limiter, most, fetch.run)
            fetch.uses[at] = semaphore
            grant = self._semaphores.acquire(semaphore, granted)
            granted = [job_id for job_id in granted if job_id in semaphore.permits]
            # If the shard granted some permits, shards that were not tried might have more.
            known = not granted or most <= SHARD_PERMITS
            current = grant.current if known else 0
            active = max(active + len(granted), current + len(limiter.left))
            if not granted:
                # Race: other fetches acquired the free permits. It is then unknown whether the
                # limit is reached.
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
        fetch.limiters[spec.limiter] = replace(limiter, active=active)
        if not granted:
            if decision.strategy:
                fetch.blocked[limit] = decision
                fetch.waiting.setdefault(spec.limiter, (decision, job_id))
            self._pass_over(fetch, job_id, limit, decision)
            return None
        fetch.open |= dict.fromkeys(granted, KeyGrant(spec.limiter, semaphore, starts))
        if limiter.throttled_since_ms is not None and self._has_room(
            fetch, spec, (candidate, *following)
        ):
            fetch.cleared[spec.limiter] = job_id
        return fetch.open[job_id]

    def _room(
        self, fetch: FetchPermits, spec: LimitSpec, wanted: int, now_ms: int
    ) -> LimitDecision:
        """Return how many of `wanted` jobs may start, as known before permits are acquired."""
        name, bounds = spec.limiter, spec.bounds
        limiter = self._seen(name, fetch.limiters[name], bounds, now_ms)
        decision = limiter.room(bounds, now_ms, wanted)
        full = decision.strategy == CONCURRENCY and not decision.count
        if full and limiter.look_ms is not None and limiter.look_ms <= now_ms:
            # Release permits that no job runs with, so that they don't block other jobs.
            shards = {"limit": max(limiter.most, decision.limit), "most": _HEALED_AT_ONCE}
            if self._semaphores.store.heal_all(keys.limiter(name), now_ms=now_ms, **shards):
                limiter = self._store.get_many({name: decision.limit})[name]
                decision = limiter.room(bounds, now_ms, wanted)
        fetch.limiters[name] = limiter
        return decision

    def _seen(
        self, name: str, limiter: LimiterState, bounds: LimitBounds, now_ms: int
    ) -> LimiterState:
        """Return the limiter with all the permits that count for a job with these bounds."""
        limit = limiter.permits(bounds, now_ms)
        if limit is None or limit <= SHARD_PERMITS >= limiter.most:
            return limiter
        if limit == limiter.most and limiter.throttled_since_ms is None:
            # The limit is probably not reached. The write of the shards decides.
            return limiter
        if limit <= limiter.most:
            return self._store.get_many({name: limit})[name]
        # Store the larger limit first. Otherwise a job with a smaller limit would not read this
        # permit.
        self._store.raise_most(name, limit)
        return replace(limiter, most=limit)

    def _has_room(
        self, fetch: FetchPermits, spec: LimitSpec, candidates: Sequence[Candidate]
    ) -> bool:
        """Return whether a key no longer throttles jobs.

        True if more jobs can start, or if the candidates include no other job of the key.
        """
        if fetch.limiters[spec.limiter].room(spec.bounds, self._clock.now_ms(), 1).count:
            return True
        return not any(
            c.position.limit is not None
            and LimitSpec.of(c.position.limit).limiter == spec.limiter
            and c.job_id not in fetch.open
            for c in candidates
        )

    @staticmethod
    def _pass_over(fetch: FetchPermits, job_id: str, limit: str, decision: LimitDecision) -> None:
        """Record that a job must be postponed or dropped, because its limit is reached."""
        waits = LimitSpec.of(limit).on_limit is OnLimit.WAIT
        if not waits and len(fetch.overdue) < _ENDED_AT_ONCE and decision.strategy:
            fetch.overdue[job_id] = decision

    def rollback(self, fetch: FetchPermits, grant: KeyGrant | None, job_id: str) -> None:
        """Return the permit and the start of a job that was not claimed.

        The next job of the fetch can use the capacity.

        Args:
            fetch: State of the fetch.
            grant: The grant of the job. None if the job has no limit.
            job_id: ID of the job.
        """
        if grant is None:
            return
        if grant.semaphore is not None:
            self._semaphores.release_one(grant.semaphore, job_id)
            limiter = fetch.limiters[grant.limiter]
            fetch.limiters[grant.limiter] = replace(limiter, active=max(0, limiter.active - 1))
        if grant.starts is not None:
            self._store.roll_back(grant.starts, 1)

    def close(self, fetch: FetchPermits, end: Callable[[Job, LimitDecision], None]) -> None:
        """Undo unused counted starts, and record limits that start or stop throttling.

        Then call `end` for the jobs that must be postponed or dropped.
        """
        starts = [grant.starts for grant in fetch.open.values() if grant.starts is not None]
        for grant in {id(each): each for each in starts}.values():
            self._store.roll_back(grant, sum(each is grant for each in starts))
        # A failure here must not affect the jobs that were claimed.
        with suppress(OjsError):
            self._record_throttling(fetch)
        # After a failure the jobs stay available. The next fetch tries again.
        with suppress(OjsError):
            for job_id, job in self._jobs.read_records(fetch.overdue).items():
                end(job, fetch.overdue[job_id])

    def release_left(self, job: Job) -> None:
        """Release the permit of a job that version 0.2 claimed."""
        self._store.release_left(job)

    def to_resume(self, job: Job, run: str, *, now_ms: int) -> SemaphoreUse | None:
        """Return the permit to acquire for a job that continues after its lease expired.

        The job has started before, so rate, spacing, and pause do not apply.

        Args:
            job: The job.
            run: Token of the new run.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            The use of the key's semaphore. None if the job needs no permit of a key.
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
        return _use(name, limiter, limit if limiter.active < limit else 0, run)

    def heal(self, name: str, limiter: LimiterState, *, now_ms: int) -> None:
        """Release the permits of a key whose jobs do not run with them.

        Args:
            name: Name of the limiter.
            limiter: State of the limiter, as read.
            now_ms: Current time in milliseconds since the epoch.

        Raises:
            OjsError: A read or a write failed.
        """
        if limiter.look_ms is not None and limiter.look_ms <= now_ms:
            limit = max(1, limiter.most)
            self._semaphores.store.heal_all(keys.limiter(name), limit, now_ms=now_ms, most=limit)
        self._store.drop_left(name, limiter, self._jobs.read_records, now_ms=now_ms)

    def _record_throttling(self, fetch: FetchPermits) -> None:
        """Record keys that start or stop throttling."""
        now_ms = self._clock.now_ms()
        for name, (decision, job_id) in fetch.waiting.items():
            limiter = fetch.limiters[name]
            if limiter.throttled_since_ms is None and limiter.key is not None:
                seen = decision.limit, decision.current, None, unchanged(limiter)
                self._states.mark_throttled(
                    LimitName.of_key(limiter.key),
                    decision.strategy,
                    PermitGrant(0, *seen),
                    job_id=job_id,
                    now_ms=now_ms,
                )
        for name, job_id in fetch.cleared.items():
            limiter = fetch.limiters[name]
            if name not in fetch.waiting and limiter.key is not None:
                grant = PermitGrant(0, 0, 0, limiter.throttled_since_ms)
                named = LimitName.of_key(limiter.key)
                self._states.clear(named, grant, job_id=job_id, now_ms=now_ms)


def _use(name: str, limiter: LimiterState, limit: int, run: str) -> SemaphoreUse:
    """Return a fetch's use of a key's permits, for jobs with this limit."""
    free = max(0, limit - len(limiter.left))
    # Exact, because a rejected job can be dropped: the limit must really be reached.
    return SemaphoreUse(KEY_PERMIT, keys.limiter(name), free, ANY_VERSION, run, exact=True)
