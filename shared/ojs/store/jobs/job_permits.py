"""What a job holds of limited things, and gives back: room in a bounded queue while it is not done,
and concurrency permits of its queue, its rate limit key, its worker pool and its worker while it
runs.

Each permit is noted on the job record, so that it is released once: by the write that ends the run.
If that fails, or the process dies in between, too many count until the repair sweep finds it.
"""

from __future__ import annotations

from dataclasses import replace as changed

from ojs.domain.ids import IdSource
from ojs.domain.job.job import POOL_PERMIT, Job
from ojs.domain.job.states import State
from ojs.store.jobs import items
from ojs.store.permits.depth_counter import DepthCounter
from ojs.store.permits.key_limits import KeyLimits
from ojs.store.permits.pool_permits import PoolPermits
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.queues.queues import QueueStore
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Table, Update


class JobPermits:
    """Acquires and releases what jobs hold of all limits that they are under."""

    def __init__(
        self,
        table: Table,
        ids: IdSource,
        *,
        depth: DepthCounter,
        semaphore: ConcurrencySemaphore,
        limits: KeyLimits,
        queues: QueueStore,
        pools: PoolPermits,
    ) -> None:
        self._table = table
        self._ids = ids
        self._depth = depth
        self._semaphore = semaphore
        self._limits = limits
        self._queues = queues
        self._pools = pools

    # --- release ----------------------------------------------------------------------------

    def release_all(self, job: Job, *, now_ms: int) -> None:
        """Give back everything that a job held. Call it only after the write that ended the job."""
        if job.reserved_bytes is not None:
            self._depth.release(job.queue, count=1, size=job.reserved_bytes, now_ms=now_ms)
        self._release_run(job, now_ms)

    def release_unused(self, before: Job, after: Job) -> None:
        """Give back what a job needs no more after a change that was written."""
        if after.state.terminal and not before.state.terminal:
            self.release_all(before, now_ms=_ended_ms(after))
        elif before.state is State.ACTIVE and after.state is not State.ACTIVE:
            self._release_run(before, _stopped_ms(after))

    def _release_run(self, job: Job, now_ms: int) -> None:
        """Release the concurrency permits of a job that stopped running."""
        self._release_counted(job, now_ms)
        self._limits.release(job)

    def _release_counted(self, job: Job, now_ms: int) -> None:
        """Release the permits of a job's queue, pool and worker."""
        if job.slot:
            self._semaphore.release(job.queue, count=1, now_ms=now_ms)
        self._pools.release(job, now_ms=now_ms)

    # --- acquire, for a job that resumes -----------------------------------------------------

    def reacquire(self, before: Job, after: Job) -> Job:
        """A job that resumes an attempt whose lease had run out, with the permits it needs.

        Raises LostRace when there are none: others acquired them meanwhile.
        """
        if before.order is None or after.lease is None:
            return after
        lease_ms = after.lease.length_ms
        now_ms = after.lease.until_ms - lease_ms
        queue = self._queues.get(before.queue)
        if queue is not None and queue.slotted:
            granted = self._semaphore.acquire(
                queue.name,
                count=1,
                limit=queue.config.concurrency,
                version=queue.version,
                now_ms=now_ms,
            )
            if not granted.count:
                raise LostRace([items.head(before)])
            after = changed(after, slot=True)
        seats = self._pools.reacquire(before, now_ms=now_ms)
        if seats is None:
            self._release_counted(after, now_ms)
            raise LostRace([items.head(before)])
        after = changed(after, seats=seats)
        if before.limit is None:
            return after
        place = self._limits.reacquire(before, now_ms=now_ms, lease_ms=lease_ms)
        if place is None:
            self._release_counted(after, now_ms)
            raise LostRace([items.head(before)])
        return changed(after, place=place or None)

    def roll_back(self, after: Job, *, now_ms: int) -> None:
        """Release what `reacquire` acquired for a job whose write was lost.

        The permit of its rate limit key is left to the repair: a fetch may have acquired it for the
        same job, under the same name.
        """
        self._release_counted(after, now_ms)

    # --- note, on a job that runs already ----------------------------------------------------

    def note_queue_permit(self, job_id: str, lease: str) -> bool:
        """Note on a running job that it holds a permit of its queue; False if it had one noted, or
        does not run under this lease any more.
        """
        # Race: the job ends, and would release no permit; or another sweep notes one. The loser
        # releases the permit that it acquired for the job. A token tells our note from theirs.
        token = self._ids.token()
        try:
            self._table.update(
                Update(
                    keys.job(job_id),
                    keys.HEAD,
                    set={"slot": token},
                    condition="#state = :active AND #lease = :lease "
                    "AND attribute_not_exists(#slot)",
                    values={":active": State.ACTIVE.value, ":lease": lease},
                ),
                own=("slot", token),
            )
        except LostRace as lost:
            # After a repetition it may have been noted, and the permit be released by now.
            return lost.repeated
        return True

    def note_pool_permit(self, job_id: str, lease: str, seats: str) -> bool:
        """Note on a running job that it holds a permit of its pool, beside the `seats` noted
        before; False if it had one noted, or does not run under this lease any more.
        """
        # Race: as in `note_queue_permit`. The note carries no token: if two sweeps write the same
        # at once both have acquired a permit, and one too many counts until it is repaired.
        unchanged = "#seats = :seats" if seats else "attribute_not_exists(#seats)"
        try:
            self._table.update(
                Update(
                    keys.job(job_id),
                    keys.HEAD,
                    set={"seats": POOL_PERMIT + seats},
                    condition=f"#state = :active AND #lease = :lease AND {unchanged}",
                    values={
                        ":active": State.ACTIVE.value,
                        ":lease": lease,
                        **({":seats": seats} if seats else {}),
                    },
                )
            )
        except LostRace as lost:
            return lost.repeated
        return True


def _ended_ms(job: Job) -> int:
    return job.discarded_ms or job.cancelled_ms or job.completed_ms or 0


def _stopped_ms(job: Job) -> int:
    """When a job that is not done stopped running."""
    if job.state is State.RETRYABLE:
        return (job.retry_at_ms or 0) - (job.retry_delay_ms or 0)
    return job.enqueued_ms or 0
