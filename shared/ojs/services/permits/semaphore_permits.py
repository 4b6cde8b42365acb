"""The permits of semaphores that one fetch acquires for the jobs that it is about to claim.

The name of a permit identifies its job. A fetch that loses the race for a job exchanges its permit
for a permit of the next job, in one write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field

from ojs.clock import Clock
from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job
from ojs.domain.job.permits import (
    DELIVERY_PERMIT,
    RUN_LENGTH,
    RunPermits,
    permit_name,
)
from ojs.records import record
from ojs.services.permits.kinds import KINDS, SemaphoreUse, semaphore_of
from ojs.store.permits.counter_items import PermitGrant
from ojs.store.permits.semaphore import ConcurrencySemaphore


@record
class ReleasedPermits:
    """The permits that were released.

    `room` has the shards of deliveries that had no free permit before, with the number of free
    permits now (0: unknown). `others` is true if permits of other limits were released.
    """

    room: dict[int, int] = field(default_factory=dict)
    others: bool = False

    @property
    def awaited(self) -> bool:
        """Whether other jobs may wait for one of these permits."""
        return bool(self.room) or self.others


class SemaphorePermits:
    """Acquires and releases permits of semaphores."""

    def __init__(self, *, semaphore: ConcurrencySemaphore, clock: Clock, ids: IdSource) -> None:
        self.store = semaphore
        self._clock = clock
        self._ids = ids

    def new_run(self) -> str:
        """Return a token for the permits of one fetch."""
        return self._ids.token().replace("-", "0").replace("_", "1")[:RUN_LENGTH]

    def acquire(
        self, use: SemaphoreUse, job_ids: Sequence[str], *, instead_of: Sequence[str] = ()
    ) -> PermitGrant:
        """Acquire permits for these jobs, in this order, as far as permits are free.

        Args:
            use: The fetch's use of the semaphore. Is updated.
            job_ids: IDs of the jobs.
            instead_of: IDs of jobs whose permits the same write releases.

        Returns:
            The number of granted permits, and the state of the limit.

        Raises:
            OjsError: A write failed.
        """
        jobs = {permit_name(job_id, use.run): job_id for job_id in job_ids}
        returned = {permit_name(job_id, use.run): job_id for job_id in instead_of}
        acquired = self.store.acquire(
            use.name,
            list(jobs),
            limit=use.limit,
            version=use.version,
            now_ms=self._clock.now_ms(),
            returned={name: use.permits[job_id] for name, job_id in returned.items()},
            kept_s=KINDS[use.kind].kept_s,
            exact=use.exact,
            only=use.only,
        )
        use.full, use.short = acquired.full, len(acquired.permits) < len(jobs)
        for name, job_id in returned.items():
            if name not in acquired.unreturned:
                del use.permits[job_id]
        use.permits |= {jobs[name]: shard for name, shard in acquired.permits.items()}
        return acquired.grant

    def ensure(self, use: SemaphoreUse, job_id: str) -> bool:
        """Return whether the job has a permit, or gets an unused permit of another job."""
        if job_id in use.permits:
            return True
        unused = use.unused
        if unused:
            self.acquire(use, [job_id], instead_of=unused[:1])
        return job_id in use.permits

    def release_unused(self, use: SemaphoreUse, *, most: int | None = None) -> None:
        """Release up to `most` permits that no job was claimed with. Default: all of them."""
        unused = use.unused if most is None else use.unused[-most:]
        by_shard: dict[int, list[str]] = {}
        for job_id in unused:
            by_shard.setdefault(use.permits.pop(job_id), []).append(permit_name(job_id, use.run))
        for shard, names in by_shard.items():
            self._free(use, shard, names)

    def release_one(self, use: SemaphoreUse, job_id: str) -> None:
        """Release the permit of a job that was not claimed."""
        self._free(use, use.permits.pop(job_id), [permit_name(job_id, use.run)])

    def release(self, jobs: Sequence[Job], *, now_ms: int) -> ReleasedPermits:
        """Release the permits of jobs that stopped running, for all their limits.

        Makes one write per shard. If a release fails, a later check detects that no job runs with
        the permit.
        """
        found = ReleasedPermits()
        named: defaultdict[tuple[str, str, int], list[str]] = defaultdict(list)
        for job in jobs:
            had = job.permits or RunPermits("")
            for limit, shard in had.shards.items():
                if (name := semaphore_of(job, limit)) is not None:
                    named[limit, name, shard].append(permit_name(job.id, had.run))
            for limit in job.unnamed_permits:
                if (name := semaphore_of(job, limit)) is not None:
                    self.store.release_unnamed(name, now_ms=now_ms)
                    found.others = True
        for (limit, name, shard), permits in named.items():
            found.others |= limit != DELIVERY_PERMIT
            released = self.store.release(name, shard, permits, now_ms=now_ms)
            if limit == DELIVERY_PERMIT and released.full:
                found.room[shard] = released.room
        return found

    def _free(self, use: SemaphoreUse, shard: int, names: Sequence[str]) -> None:
        released = self.store.release(use.name, shard, names, now_ms=self._clock.now_ms())
        use.freed = use.freed or released.full
