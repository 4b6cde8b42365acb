"""The permits of jobs: acquired for a fetch, taken by the jobs it claims, released when these end.

Three kinds limit running jobs: those of the job's queue, of its rate limit key, and of its worker
pool and worker. A job in a bounded queue holds room there as well, from its push
(`ojs.services.permits.backpressure`) until it is done.

Each permit is noted on the job record by the write that begins the run, and released once, after
the write that ends it. If that fails, or the process dies in between, too many count until a sweep
repairs it (`ojs.services.permits.repair`); there are never too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ojs.domain.job.job import Job, JobPermits
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Queue
from ojs.domain.rate_limit.limiter import LimitDecision
from ojs.services.permits.key_permits import Candidate, KeyPermits, KeyPermitUse
from ojs.services.permits.pool_permits import PoolPermits, PoolPermitUse
from ojs.services.permits.queue_permits import QueuePermits, QueuePermitUse
from ojs.store.permits.depth_counter import DepthCounter, Room
from ojs.store.permits.key_limits import LimitGrant
from ojs.store.table.keys import Position


@dataclass
class FetchPermits:
    """What one fetch has acquired of each kind, and what it knows to be refused."""

    pool: PoolPermitUse
    queues: dict[str, QueuePermitUse] = field(default_factory=dict)
    keys: KeyPermitUse = field(default_factory=KeyPermitUse)

    def exhausted(self, queue: Queue) -> bool:
        """Whether the queue has refused more permits than those taken."""
        use = self.queues.get(queue.name)
        return use is not None and use.closed and use.used >= use.granted


@dataclass(frozen=True)
class Acquired:
    """The permits of all kinds that one candidate of a fetch needs."""

    fetch: FetchPermits
    queue: Queue
    candidate: Candidate
    grant: LimitGrant | None

    @property
    def start_ms(self) -> int | None:
        """When its start was counted; None where no rate limit counts it."""
        return None if self.grant is None else self.grant.now_ms

    @property
    def noted(self) -> JobPermits:
        """The permits as the job record notes them."""
        job_id, position, _ = self.candidate
        pool = self.fetch.pool.pool
        return JobPermits(
            queue=self.queue.limits_concurrency,
            key=None if self.grant is None else self.grant.permit(job_id, position.order),
            pool=None if pool is None else pool.name,
            scopes=self.fetch.pool.scopes,
        )


class Permits:
    """Acquires and releases what jobs hold of all limits that they are under."""

    def __init__(
        self, *, queues: QueuePermits, keys: KeyPermits, pools: PoolPermits, depth: DepthCounter
    ) -> None:
        self._queues = queues
        self._keys = keys
        self._pools = pools
        self._depth = depth

    # --- for a fetch ------------------------------------------------------------------------

    def prefetch(self, fetch: FetchPermits, candidates: Iterable[Candidate]) -> None:
        """Read what the limits of these candidates need, except what was read already. One call."""
        self._keys.prefetch(fetch.keys, candidates)

    def is_blocked(self, fetch: FetchPermits, candidate: Candidate) -> bool:
        """Whether it is known already that the candidate's own limit is reached; costs nothing."""
        return self._keys.is_blocked(fetch.keys, candidate)

    def acquire(
        self,
        fetch: FetchPermits,
        queue: Queue,
        candidate: Candidate,
        following: Sequence[Candidate] = (),
        *,
        wanted: int,
        lease_ms: Callable[[Position], int],
    ) -> Acquired | None:
        """Acquire all permits that a candidate needs; None if one kind refuses them.

        Those of the pool were acquired with the fetch's sequence numbers. Acquires also for jobs
        that follow, up to `wanted` in all; what no job takes is released by `close`. `lease_ms`
        returns the length of the lease of a job at a position. Raises OjsError.
        """
        waiting = 1 + len(following)
        if not self._queues.acquire(
            fetch.queues, queue, candidate.job_id, wanted=min(wanted, waiting), waiting=waiting
        ):
            return None
        if candidate.position.limit is None:
            return Acquired(fetch, queue, candidate, None)
        self._keys.prefetch(fetch.keys, [candidate])
        grant = self._keys.acquire(
            fetch.keys, candidate, following, wanted=wanted, lease_ms=lease_ms
        )
        return None if grant is None else Acquired(fetch, queue, candidate, grant)

    def commit(self, acquired: Acquired) -> None:
        """Take the permits for a claim that is about to be written.

        If its result is unknown they are not released: repair finds out.
        """
        self._keys.commit(acquired.fetch.keys, acquired.candidate)
        self._queues.commit(acquired.fetch.queues, acquired.queue, acquired.candidate.job_id)
        acquired.fetch.pool.used += 1

    def rollback(self, acquired: Acquired, found: Job | None, *, unknown: bool) -> None:
        """Take the permits back from a claim that lost its race; `found` is the job now.

        `unknown` says that an earlier try of the claim may have succeeded, and the job have ended
        since: then its end may have released the permits, so they are left to repair, and the start
        stays counted.
        """
        self._keys.rollback(acquired.grant, acquired.candidate, found, unknown=unknown)
        if not unknown:
            acquired.fetch.pool.used -= 1
            self._queues.rollback(acquired.fetch.queues, acquired.queue)

    def close(self, fetch: FetchPermits, end: Callable[[Job, LimitDecision], None]) -> None:
        """Release what no job took, and record limits that start or stop throttling.

        `end` postpones or drops the jobs whose limit says so when it is reached.
        """
        self._queues.close(fetch.queues)
        self._keys.close(fetch.keys, end)
        self._pools.close(fetch.pool)

    # --- for a job --------------------------------------------------------------------------

    def release(self, job: Job, *, ended_ms: int) -> None:
        """Release everything that a job held. Call it only after the write that ended the job."""
        if job.reserved_bytes is not None:
            self._depth.release(job.queue, Room.of([job]), now_ms=ended_ms)
        self._release_run(job, ended_ms)

    def release_unused(self, before: Job, after: Job) -> None:
        """Release what a job needs no more after a change that was written."""
        if after.state.terminal and not before.state.terminal:
            ended_ms = after.discarded_ms or after.cancelled_ms or after.completed_ms or 0
            self.release(before, ended_ms=ended_ms)
        elif before.state is State.ACTIVE and after.state is not State.ACTIVE:
            stopped_ms = after.enqueued_ms or 0
            if after.state is State.RETRYABLE:
                stopped_ms = (after.retry_at_ms or 0) - (after.retry_delay_ms or 0)
            self._release_run(before, stopped_ms)

    def reacquire(self, before: Job, after: Job) -> Job | None:
        """A job that resumes an attempt whose lease had run out, with the permits it needs; None if
        others acquired them meanwhile.
        """
        if before.order is None or after.lease is None:
            return after
        lease_ms = after.lease.length_ms
        now_ms = after.lease.until_ms - lease_ms
        of_queue = self._queues.reacquire(before, now_ms=now_ms)
        if of_queue is None:
            return None
        after = replace(after, queue_permit=of_queue)
        scopes = self._pools.reacquire(before, now_ms=now_ms)
        if scopes is not None:
            after = replace(after, pool_permits=scopes)
            if before.limit is None:
                return after
            permit = self._keys.reacquire(before, now_ms=now_ms, lease_ms=lease_ms)
            if permit is not None:
                return replace(after, key_permit=permit or None)
        self._release_counted(after, now_ms)
        return None

    def undo_reacquire(self, after: Job) -> None:
        """Release what `reacquire` acquired for a job whose write was lost.

        The permit of its key is left to repair: a fetch may have acquired it for the same job,
        under the same name.
        """
        if after.lease is not None:
            self._release_counted(after, after.lease.until_ms - after.lease.length_ms)

    def _release_run(self, job: Job, now_ms: int) -> None:
        """Release the permits of a job that stopped running."""
        self._release_counted(job, now_ms)
        self._keys.release(job)

    def _release_counted(self, job: Job, now_ms: int) -> None:
        """Release the permits of a job's queue, pool and worker."""
        self._queues.release(job, now_ms=now_ms)
        self._pools.release(job, now_ms=now_ms)
