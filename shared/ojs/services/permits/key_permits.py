"""Job-level rate limits: the permits of the jobs that one fetch claims.

Jobs without a limit cost nothing here. For limited jobs a fetch reads the state of their keys (one
call for a page of the line), acquires permits before it claims (one write for all jobs of the page
with one limit), and releases the permits it did not use.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ojs.clock import Clock
from ojs.domain.errors import OjsError
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.rate_limit.limiter import (
    CONCURRENCY,
    LimitDecision,
    LimiterState,
    LimitSpec,
    OnLimit,
    permit_name,
)
from ojs.store.jobs.reading import JobReader
from ojs.store.permits.key_limits import KeyLimits, LimitGrant, LimitRequest, unchanged
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.table.keys import Position

# Jobs that one fetch postpones or drops, where their limit says so.
_ENDED_AT_ONCE = 10
# Jobs for which one write acquires permits: DynamoDB takes expressions of 4 KB.
_ACQUIRED_AT_ONCE = 25


class Candidate(NamedTuple):
    """A job that a fetch might claim, and its position in the ready line, with the stored `key`."""

    job_id: str
    position: Position
    key: str

    @property
    def permit(self) -> str:
        """The name of the permit that it has, or would have, of its key."""
        return permit_name(self.job_id, self.position.order)


@dataclass
class KeyPermitUse:
    """What one fetch knows of the limits of the jobs it has seen."""

    limiters: dict[str, LimiterState] = field(default_factory=dict)
    specs: dict[str, LimitSpec] = field(default_factory=dict)
    # By spec: no more jobs of these now.
    blocked: dict[str, LimitDecision] = field(default_factory=dict)
    # Permits to claim jobs with, each with its grant.
    open: dict[str, LimitGrant] = field(default_factory=dict)
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
        store: KeyLimits,
        jobs: JobReader,
        clock: Clock,
        states: ThrottleStates,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._store = store
        self._states = states
        self._jobs = jobs
        self._clock = clock
        self._choose = choose

    def prefetch(self, use: KeyPermitUse, candidates: Iterable[Candidate]) -> None:
        """Read the limiters of these jobs' keys, except those read already. One call."""
        limits = (candidate.position.limit for candidate in candidates)
        names = {use.spec(limit).limiter for limit in limits if limit is not None}
        if unknown := names - use.limiters.keys():
            use.limiters |= self._store.get_many(sorted(unknown))

    def is_blocked(self, use: KeyPermitUse, candidate: Candidate) -> bool:
        """Whether it is known already that this job's limit is reached; costs nothing."""
        limit = candidate.position.limit
        if limit is None or limit not in use.blocked:
            return False
        if candidate.permit in use.open:
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
        wanted: int,
        lease_ms: Callable[[Position], int],
    ) -> LimitGrant | None:
        """The grant to claim this job with, which has a limit; None if it must wait.

        Acquires also for jobs that follow with the same limit, up to `wanted` in all. `lease_ms`
        returns the length of the lease of a job at a position. Raises OjsError.
        """
        job_id, limit, permit = candidate.job_id, candidate.position.limit or "", candidate.permit
        if permit in use.open:
            return use.open[permit]
        spec = use.spec(limit)
        alike = [candidate]
        alike += [c for c in following if c.position.limit == limit and c.permit not in use.open]
        most = max(1, min(wanted - len(use.open), _ACQUIRED_AT_ONCE))
        requests = [
            LimitRequest(c.job_id, c.position.order, lease_ms(c.position)) for c in alike[:most]
        ]
        limiter = use.limiters.get(spec.limiter) or LimiterState()
        for repaired in (False, True):
            now_ms = self._clock.now_ms()
            grant, decision, limiter = self._store.acquire(
                spec.limiter, spec.bounds, requests, now_ms=now_ms, seen=limiter
            )
            if (
                repaired
                or grant is not None
                or not self._repaired(spec.limiter, limiter, decision, now_ms)
            ):
                break
            limiter = self._store.get(spec.limiter) or LimiterState()
        use.limiters[spec.limiter] = limiter
        if grant is not None:
            use.open |= dict.fromkeys(grant.names, grant)
            if limiter.throttled_since_ms is not None and self._has_room(
                use, spec, grant, (candidate, *following)
            ):
                use.cleared[spec.limiter] = job_id
            # Without it, a permit left by a crashed fetch was reused for an earlier job.
            return grant if permit in grant.names else None
        if decision.strategy:
            use.blocked[limit] = decision
            use.waiting.setdefault(spec.limiter, (decision, job_id))
        self._pass_over(use, job_id, limit, decision)
        return None

    def _has_room(
        self,
        use: KeyPermitUse,
        spec: LimitSpec,
        grant: LimitGrant,
        candidates: Sequence[Candidate],
    ) -> bool:
        """Whether a key throttles no more: there is room for more jobs, or what was read of the
        line has no other job of the key.
        """
        if grant.after.room(spec.bounds, self._clock.now_ms(), 1).count:
            return True
        return not any(
            c.position.limit is not None
            and use.spec(c.position.limit).limiter == spec.limiter
            and c.permit not in use.open
            for c in candidates
        )

    def _repaired(
        self, name: str, limiter: LimiterState, decision: LimitDecision, now_ms: int
    ) -> bool:
        if decision.strategy != CONCURRENCY:
            return False
        return self._store.repair(
            name, limiter, self._jobs.read_records, now_ms=now_ms, choose=self._choose
        )

    @staticmethod
    def _pass_over(use: KeyPermitUse, job_id: str, limit: str, decision: LimitDecision) -> None:
        """Note a job that is to be postponed or dropped, as its limit is reached."""
        waits = use.spec(limit).on_limit is OnLimit.WAIT
        if not waits and len(use.overdue) < _ENDED_AT_ONCE and decision.strategy:
            use.overdue[job_id] = decision

    @staticmethod
    def commit(use: KeyPermitUse, candidate: Candidate) -> None:
        """Use the permit of a job that is about to be claimed.

        If the result of the claim is unknown, the permit is not released.
        """
        use.open.pop(candidate.permit, None)

    def rollback(
        self, grant: LimitGrant | None, candidate: Candidate, found: Job | None, *, unknown: bool
    ) -> None:
        """Release the permit of a job that was not claimed; `found` is the job now.

        `unknown` says that an earlier try may have claimed it, and the job has ended since: that
        counts as a start.
        """
        if grant is None:
            return
        permit = candidate.permit
        if found is not None and found.state is State.ACTIVE and found.key_permit == permit:
            # The job runs with this very permit.
            return
        self._store.roll_back(grant, [permit], started=unknown)

    def close(self, use: KeyPermitUse, end: Callable[[Job, LimitDecision], None]) -> None:
        """Release the permits that were not used, record limits that start or stop throttling, and
        have `end` postpone or drop the jobs whose limit says so.
        """
        unused: dict[int, tuple[LimitGrant, list[str]]] = {}
        for permit, grant in use.open.items():
            unused.setdefault(id(grant), (grant, []))[1].append(permit)
        for grant, permits in unused.values():
            self._store.roll_back(grant, permits)
        # A failure here must not lose the jobs that were claimed.
        with suppress(OjsError):
            self._record_throttling(use)
        # After a failure they stay available; the next fetch tries again.
        with suppress(OjsError):
            for job_id, job in self._jobs.read_records(use.overdue).items():
                end(job, use.overdue[job_id])

    def release(self, job: Job) -> None:
        """Release the permit of a job that stopped running."""
        self._store.release(job)

    def reacquire(self, job: Job, *, now_ms: int, lease_ms: int) -> str | None:
        """The name of the permit of a job that goes on after its lease ended: "" if it needs none,
        None if none is left.
        """
        return self._store.reacquire(job, now_ms=now_ms, lease_ms=lease_ms)

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
